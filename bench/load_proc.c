/* Starts, weighs and ends the processes that load commands measure; see load_proc.h. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/load_proc.h"
#include "shm/base/clock.h"

enum { DEPTH_MAX = 4, STOP_TRIES = 300, PROCESSES_MAX = 8192, URGENT = -15, DESCENDANTS_MAX = 64 };

int load_core_own(void)
{
	return 0;
}

int load_core_measured(void)
{
	return sysconf(_SC_NPROCESSORS_ONLN) > 1 ? 1 : 0;
}

void load_pin(int core)
{
	cpu_set_t set;

	if (core == LOAD_CORE_ANY)
		return;
	CPU_ZERO(&set);
	CPU_SET(core, &set);
	sched_setaffinity(0, sizeof(set), &set); /* a box that forbids it still measures */
}

void load_urgent(void)
{
	setpriority(PRIO_PROCESS, 0, URGENT);
}

unsigned load_descriptors(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return 1024;
	if (limit.rlim_max > 1u << 20)
		limit.rlim_max = 1u << 20;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	return (unsigned)limit.rlim_cur;
}

static volatile sig_atomic_t interrupted;

static void interrupt(int number)
{
	interrupted = 1;
}

void load_interrupt_catch(void)
{
	struct sigaction action = { .sa_handler = interrupt };

	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
}

bool load_interrupted(void)
{
	return interrupted;
}

void load_word(struct load_command *c, const char *format, ...)
{
	va_list args;

	assert(c->n < LOAD_WORDS_MAX);
	va_start(args, format);
	vsnprintf(c->text[c->n], LOAD_WORD_BYTES, format, args);
	va_end(args);
	c->argv[c->n] = c->text[c->n];
	c->argv[++c->n] = NULL;
}

static void child_begin(pid_t parent, int core)
{
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL); /* the caller may wait for signals otherwise */
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		_exit(1); /* it died before we asked to be told */
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_DFL);
	load_pin(core);
}

int load_proc_fork(struct load_proc *ret_proc, int core, void (*run)(void *ctx), void *ctx)
{
	pid_t parent = getpid(), pid = fork();

	if (pid < 0)
		return -errno;
	if (pid == 0) {
		child_begin(parent, core);
		run(ctx);
		_exit(0);
	}
	ret_proc->pid = pid;
	return 0;
}

int load_proc_exec(struct load_proc *ret_proc, int core, const char *log, char *const argv[])
{
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	pid_t parent = getpid(), pid = fork();

	if (pid < 0)
		return -errno;
	if (pid == 0) {
		int fd = open(log ? log : "/dev/null", O_WRONLY | O_CREAT | O_APPEND, 0600);

		child_begin(parent, core);
		signal(SIGINT, SIG_DFL);
		if (fd >= 0) {
			dup2(fd, 1);
			dup2(fd, 2);
		}
		execvp(argv[0], argv);
		_exit(127);
	}
	ret_proc->pid = pid;
	return 0;
}

bool load_proc_alive(struct load_proc *proc)
{
	if (proc->pid == 0)
		return false;
	if (waitpid(proc->pid, NULL, WNOHANG) == 0)
		return true;
	proc->pid = 0;
	return false;
}

static void pause_ms(unsigned ms)
{
	nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * NS_PER_MS },
		  NULL);
}

/* ---- /proc ---- */

struct family {
	size_t n;
	struct {
		pid_t pid, parent;
	} of[PROCESSES_MAX];
};

static pid_t parent_of(const char *pid)
{
	char path[320], text[512];
	int parent = -1;

	snprintf(path, sizeof(path), "/proc/%s/stat", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	ssize_t n = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[n > 0 ? n : 0] = 0;
	char *end = strrchr(text, ')'); /* a program's name may hold anything */
	if (!end || sscanf(end + 1, " %*c %d", &parent) != 1)
		return -1;
	return parent;
}

/* All processes with their parents: /proc/PID/task/TID/children is not in every kernel. */
static void family_read(struct family *family)
{
	struct dirent *entry;
	DIR *all = opendir("/proc");

	family->n = 0;
	while (all && (entry = readdir(all)) != NULL && family->n < PROCESSES_MAX) {
		pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);

		if (pid <= 0)
			continue;
		family->of[family->n].pid = pid;
		family->of[family->n++].parent = parent_of(entry->d_name);
	}
	if (all)
		closedir(all);
}

static uint64_t over(const struct family *family, pid_t pid, uint64_t (*of)(pid_t pid), int depth)
{
	uint64_t sum = of(pid);

	for (size_t i = 0; i < family->n && depth < DEPTH_MAX; i++)
		if (family->of[i].parent == pid)
			sum += over(family, family->of[i].pid, of, depth + 1);
	return sum;
}

static uint64_t over_family(pid_t pid, uint64_t (*of)(pid_t pid))
{
	struct family family;

	family_read(&family);
	return over(&family, pid, of, 0);
}

static uint64_t first_number(const char *path)
{
	uint64_t value = 0;
	FILE *file = fopen(path, "re");

	if (!file)
		return 0;
	if (fscanf(file, "%" SCNu64, &value) != 1)
		value = 0;
	fclose(file);
	return value;
}

static uint64_t cpu_of(pid_t pid)
{
	char path[320];
	uint64_t sum = 0;
	struct dirent *entry;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	DIR *threads = opendir(path);
	if (!threads)
		return 0;
	while ((entry = readdir(threads)) != NULL) {
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/%d/task/%s/schedstat", pid, entry->d_name);
		sum += first_number(path);
	}
	closedir(threads);
	return sum;
}

uint64_t load_proc_cpu_ns(pid_t pid)
{
	return over_family(pid, cpu_of);
}

static uint64_t rss_of(pid_t pid)
{
	char path[64];
	uint64_t size, resident = 0;

	snprintf(path, sizeof(path), "/proc/%d/statm", pid);
	FILE *file = fopen(path, "re");
	if (!file)
		return 0;
	if (fscanf(file, "%" SCNu64 " %" SCNu64, &size, &resident) != 2)
		resident = 0;
	fclose(file);
	return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t load_proc_rss(pid_t pid)
{
	return over_family(pid, rss_of);
}

void load_proc_ask(const char *program, const char *flag, char *ret_text, size_t size)
{
	int ends[2];
	ssize_t n, len = 0;

	ret_text[0] = 0;
	if (pipe2(ends, O_CLOEXEC) < 0)
		return;
	pid_t pid = fork();
	if (pid == 0) {
		dup2(ends[1], 1);
		dup2(ends[1], 2);
		execlp(program, program, flag, NULL);
		_exit(127);
	}
	close(ends[1]);
	while (len < (ssize_t)size - 1 &&
	       (n = read(ends[0], ret_text + len, size - 1 - (size_t)len)) > 0)
		len += n;
	close(ends[0]);
	if (pid > 0)
		waitpid(pid, NULL, 0);
	ret_text[len] = 0;
	size_t blank = strspn(ret_text, " \n");
	memmove(ret_text, ret_text + blank, (size_t)len - blank + 1);
	ret_text[strcspn(ret_text, "\n")] = 0;
}

/* ---- the end ---- */

/* Whoever outlives its parent becomes our child: load_proc_exec() asked for that. */
static void descendants(const struct family *family, pid_t pid, pid_t *ret_pids, unsigned *n,
			int depth)
{
	for (size_t i = 0; i < family->n && depth < DEPTH_MAX; i++) {
		if (family->of[i].parent != pid || *n == DESCENDANTS_MAX)
			continue;
		ret_pids[(*n)++] = family->of[i].pid;
		descendants(family, family->of[i].pid, ret_pids, n, depth + 1);
	}
}

static void wait_or_kill(pid_t pid, int tries)
{
	for (int i = 0; i < tries; i++) {
		if (waitpid(pid, NULL, WNOHANG) != 0)
			return; /* it ended, or is nobody of ours */
		pause_ms(10);
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

void load_proc_stop(struct load_proc *proc)
{
	struct family family;
	pid_t pids[DESCENDANTS_MAX];
	unsigned n = 0;

	if (proc->pid == 0)
		return;
	family_read(&family);
	descendants(&family, proc->pid, pids, &n, 0);
	kill(proc->pid, SIGCONT);
	kill(proc->pid, SIGTERM);
	wait_or_kill(proc->pid, STOP_TRIES);
	for (unsigned i = 0; i < n; i++)
		wait_or_kill(pids[i], STOP_TRIES);
	proc->pid = 0;
}

void load_orphans_stop(void)
{
	struct family family;
	pid_t self = getpid();

	family_read(&family);
	for (size_t i = 0; i < family.n; i++) {
		if (family.of[i].parent != self)
			continue;
		kill(family.of[i].pid, SIGTERM);
		wait_or_kill(family.of[i].pid, STOP_TRIES);
	}
}

void load_last_words(const char *log, char *ret_text, size_t size)
{
	char line[400];
	FILE *file = fopen(log, "re");

	ret_text[0] = 0;
	while (file && fgets(line, sizeof(line), file)) {
		size_t n = strcspn(line, "\n"), from = n < size ? 0 : n - size + 1;

		if (n > 0) /* a log line's end says more than its beginning */
			snprintf(ret_text, size, "%.*s", (int)(n - from), line + from);
	}
	if (file)
		fclose(file);
	for (char *at = ret_text; *at; at++)
		*at = (unsigned char)*at < ' ' ? ' ' : *at;
}

void load_remove(const char *dir)
{
	struct load_proc proc = { 0 };
	char words[][256] = { "rm", "-rf", "" };
	char *argv[] = { words[0], words[1], words[2], NULL };

	snprintf(words[2], sizeof(words[2]), "%s", dir);
	if (load_proc_exec(&proc, load_core_own(), NULL, argv) == 0)
		waitpid(proc.pid, NULL, 0);
}
