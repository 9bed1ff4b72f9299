/* The supervisor: listening sockets, one worker at a time, signals passed on. */
#include "router/supervisor.h"

#include "router/worker.h"
#include "shm/base/clock.h"
#include "shm/base/exit.h"
#include "shm/base/log.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	LISTEN_BACKLOG = 4096,
	DEATHS_MAX = 5, /* workers lost within DEATHS_WINDOW_S: something is wrong for good */
	DEATHS_WINDOW_S = 10,
};

struct supervisor {
	const struct router_settings *set;
	struct listener listeners[WORKER_LISTENERS_MAX];
	uint32_t nr;
	pid_t worker;
	int stopping;
	uint64_t deaths[DEATHS_MAX];
	uint64_t deaths_nr;
};

/* ---- sockets ---- */

/* A socket file that nobody listens on any more is in the way of bind(). */
static void unlink_stale(const struct addr *a)
{
	struct stat st;
	int fd;

	if (lstat(a->sa.local.sun_path, &st) < 0 || !S_ISSOCK(st.st_mode))
		return;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd >= 0 && connect(fd, &a->sa.any, a->len) < 0 && errno == ECONNREFUSED)
		unlink(a->sa.local.sun_path);
	if (fd >= 0)
		close(fd);
}

static int bind_one(struct supervisor *s, const struct addr *a, int admin)
{
	struct listener *l = &s->listeners[s->nr];
	int one = 1, local = a->sa.any.sa_family == AF_UNIX;
	int fd = socket(a->sa.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int err = 0;

	addr_text(a, l->text);
	if (local)
		unlink_stale(a);
	else if (fd >= 0)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (fd < 0 || bind(fd, &a->sa.any, a->len) < 0 || listen(fd, LISTEN_BACKLOG) < 0)
		err = -errno;
	if (err < 0) {
		log_say(LOG_ERROR, "cannot listen on %s: %s", l->text, strerror(-err));
		if (fd >= 0)
			close(fd);
		return err;
	}
	if (local)
		chmod(a->sa.local.sun_path, admin ? 0660 : 0666);
	l->fd = fd;
	l->admin = admin;
	s->nr++;
	return 0;
}

static int admin_address(const struct supervisor *s, struct addr *ret)
{
	char text[REGION_PATH_MAX + 32], error[REGION_ERROR_MAX] = "", why[ADDR_WHY_MAX] = "";
	struct region region;

	if (s->set->admin_addr.len) {
		*ret = s->set->admin_addr;
		return 0;
	}
	if (region_open(&region, s->set->region[0] ? s->set->region : NULL, 1, error) < 0) {
		log_say(LOG_ERROR, "%s", error);
		return -EXIT_REGION;
	}
	snprintf(text, sizeof(text), "unix:%s/admin.sock", region.path);
	region_close(&region);
	if (addr_parse(ret, text, why) < 0) {
		log_say(LOG_ERROR, "admin: %s: %s", text, why);
		return -EXIT_CONFIG;
	}
	return 0;
}

static int bind_all(struct supervisor *s)
{
	struct addr admin;
	int err = admin_address(s, &admin);

	if (err < 0)
		return err;
	if (bind_one(s, &s->set->listen_addr, 0) < 0 || bind_one(s, &admin, 1) < 0)
		return -EXIT_RUNTIME;
	return 0;
}

/* ---- the worker ---- */

static int spawn(struct supervisor *s)
{
	pid_t parent = getpid(), pid;

	log_flush();
	pid = fork();
	if (pid < 0) {
		log_say(LOG_ERROR, "cannot start a worker: %s", strerror(errno));
		return -errno;
	}
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGTERM); /* no orphan: it drains and leaves */
		if (getppid() != parent)
			_exit(EXIT_RUNTIME);
		log_open("turnward-router", (enum log_level)s->set->log_level);
		log_format_set((enum log_format)s->set->log_format);
		_exit(worker_run(s->set, s->listeners, s->nr));
	}
	s->worker = pid;
	return 0;
}

/* A worker that ends by itself with one of these cannot be helped by another try. */
static int hopeless(int status)
{
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;

	return code == EXIT_USAGE || code == EXIT_REGION || code == EXIT_KERNEL ||
	       code == EXIT_CONFIG;
}

static int too_many_deaths(struct supervisor *s)
{
	uint64_t now = clock_ns(), *oldest = &s->deaths[s->deaths_nr++ % DEATHS_MAX];
	uint64_t then = *oldest;

	*oldest = now;
	return s->deaths_nr > DEATHS_MAX && now - then < DEATHS_WINDOW_S * (uint64_t)NS_PER_S;
}

/* The exit code if the supervisor's work is over, -1 if it goes on. */
static int worker_ended(struct supervisor *s, int status)
{
	if (s->stopping || hopeless(status))
		return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_GOOD;
	if (WIFSIGNALED(status))
		log_say(LOG_ERROR, "worker %d was ended by signal %d (%s); another takes its place",
			(int)s->worker, WTERMSIG(status), strsignal(WTERMSIG(status)));
	else
		log_say(LOG_ERROR, "worker %d ended with code %d; another takes its place",
			(int)s->worker, WEXITSTATUS(status));
	if (too_many_deaths(s)) {
		log_say(LOG_ERROR, "%d workers were lost within %d s: giving up", DEATHS_MAX,
			DEATHS_WINDOW_S);
		return EXIT_RUNTIME;
	}
	return spawn(s) < 0 ? EXIT_RUNTIME : -1;
}

static int reap(struct supervisor *s)
{
	int status, code = -1;
	pid_t pid;

	while (code < 0 && (pid = waitpid(-1, &status, WNOHANG)) > 0)
		if (pid == s->worker)
			code = worker_ended(s, status);
	return code;
}

static void raise_descriptors(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static void sockets_remove(const struct supervisor *s)
{
	for (uint32_t i = 0; i < s->nr; i++)
		if (strncmp(s->listeners[i].text, "unix:", 5) == 0)
			unlink(s->listeners[i].text + 5);
}

int supervisor_run(const struct router_settings *settings)
{
	struct supervisor s = { .set = settings };
	sigset_t signals;
	int code;

	raise_descriptors();
	sigemptyset(&signals);
	sigaddset(&signals, SIGCHLD);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGHUP);
	sigaddset(&signals, SIGUSR1);
	sigaddset(&signals, SIGUSR2);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	code = bind_all(&s);
	if (code < 0)
		return -code;
	if (spawn(&s) < 0)
		return EXIT_RUNTIME;
	for (code = -1; code < 0;) {
		int sig = sigwaitinfo(&signals, NULL);

		if (sig == SIGCHLD)
			code = reap(&s);
		if (sig == SIGHUP || sig == SIGUSR1 || sig == SIGUSR2)
			log_say(LOG_WARN, "%s has no effect: what is configured is read at start",
				strsignal(sig));
		if (sig == SIGTERM || sig == SIGINT) {
			s.stopping = 1;
			kill(s.worker, sig);
		}
	}
	sockets_remove(&s);
	log_drain(500);
	return code;
}
