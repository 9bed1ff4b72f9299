/* Finds, starts, greets and ends what is measured; see load_arms.h. */
#include <arpa/inet.h>
#include <errno.h>
#include <glob.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "bench/load_arms.h"
#include "shm/base/clock.h"
#include "shm/base/opt.h"

enum { READY_S = 90, SPARE_DESCRIPTORS = 200, GREETINGS = 16 };

#define ARM_ROW(id, name_, family_, program_, detail_) \
	{ .name = name_, .family = LOAD_##family_, .program = program_, .detail = detail_ },
static const struct load_arm arms[] = { LOAD_ARMS(ARM_ROW) };

/* ---- where things are ---- */

void load_program(const struct load_place *place, const char *name, char *ret_path, size_t size)
{
	static const char *const places[] = { "router", "agent", "bench" };

	for (size_t i = 0; place->build[0] && i < sizeof(places) / sizeof(places[0]); i++) {
		snprintf(ret_path, size, "%.200s/%s/%s", place->build, places[i], name);
		if (access(ret_path, X_OK) == 0)
			return;
	}
	snprintf(ret_path, size, "%s", name);
}

static bool find_in_path(const char *name, char *ret_path, size_t size)
{
	const char *path = getenv("PATH");

	while (path && *path) {
		int len = (int)strcspn(path, ":");

		snprintf(ret_path, size, "%.*s/%s", len, path, name);
		if (access(ret_path, X_OK) == 0)
			return true;
		path += len + (path[len] == ':');
	}
	return false;
}

static void find_peer(const struct load_place *place, struct load_arm *arm)
{
	snprintf(arm->path, sizeof(arm->path), "/usr/sbin/%s", arm->program);
	if (access(arm->path, X_OK) == 0)
		return;
	snprintf(arm->path, sizeof(arm->path), "%.200s/bin/%s", place->venv, arm->program);
	if (access(arm->path, X_OK) == 0)
		return;
	if (!find_in_path(arm->program, arm->path, sizeof(arm->path))) {
		arm->path[0] = 0;
		snprintf(arm->why, sizeof(arm->why), "%s is not installed: bench/peers/setup",
			 arm->program);
	}
}

/* Of a package in the virtual environment: its own directory's name tells. */
static void package_version(const struct load_place *place, struct load_arm *arm)
{
	bool vllm = strcmp(arm->program, "vllm-router") == 0;
	char pattern[400];
	glob_t found;

	snprintf(pattern, sizeof(pattern), "%s/lib/python3*/site-packages/%s_router-*.dist-info",
		 place->venv, vllm ? "vllm" : "sglang");
	if (glob(pattern, 0, NULL, &found) == 0)
		load_version_find(strrchr(found.gl_pathv[0], '/'), arm->version,
				  sizeof(arm->version));
	globfree(&found);
}

static void arm_find(struct load_place *place, struct load_arm *arm, const char *before)
{
	char text[200];

	if (arm->family == LOAD_FLOOR)
		return;
	if (arm->family == LOAD_OWN) {
		load_program(place, arm->program, arm->path, sizeof(arm->path));
		opt_version(arm->version, sizeof(arm->version));
		return;
	}
	if (arm->family == LOAD_BEFORE) {
		snprintf(arm->path, sizeof(arm->path), "%s", before ? before : "");
		if (before)
			load_proc_ask(before, "--version", arm->version, sizeof(arm->version));
		return;
	}
	find_peer(place, arm);
	if (!arm->path[0])
		return;
	if (arm->family == LOAD_LLM) {
		package_version(place, arm);
		return;
	}
	load_proc_ask(arm->path, strcmp(arm->name, "envoy") == 0 ? "--version" : "-v", text,
		      sizeof(text));
	load_version_find(text, arm->version, sizeof(arm->version));
}

static int templates_find(struct load_place *place, const char *peers)
{
	char path[300];

	if (peers) {
		snprintf(place->peers, sizeof(place->peers), "%s", peers);
	} else {
		snprintf(place->peers, sizeof(place->peers), "bench/peers");
		if (access("bench/peers/nginx.conf", R_OK) < 0)
			snprintf(place->peers, sizeof(place->peers), "%.200s/../bench/peers",
				 place->build);
	}
	snprintf(path, sizeof(path), "%s/nginx.conf", place->peers);
	return access(path, R_OK) < 0 ? -errno : 0;
}

void load_build_find(struct load_place *place)
{
	char *slash;
	ssize_t n = readlink("/proc/self/exe", place->build, sizeof(place->build) - 1);

	place->build[n > 0 ? n : 0] = 0;
	for (int up = 0; up < 2; up++)
		if ((slash = strrchr(place->build, '/')) != NULL)
			*slash = 0;
}

int load_place_init(struct load_place *place, const struct load_sink *sink, const char *peers,
		    const char *before)
{
	const char *venv = getenv("TURNWARD_PEERS"), *home = getenv("HOME");

	memset(place, 0, sizeof(*place));
	place->sink = sink;
	place->core = load_core_measured();
	load_build_find(place);
	if (venv)
		snprintf(place->venv, sizeof(place->venv), "%s", venv);
	else
		snprintf(place->venv, sizeof(place->venv), "%s/.cache/turnward-peers",
			 home ? home : "");
	snprintf(place->dir, sizeof(place->dir), "/dev/shm/turnward-bench-XXXXXX");
	if (!mkdtemp(place->dir)) {
		snprintf(place->dir, sizeof(place->dir), "/tmp/turnward-bench-XXXXXX");
		if (!mkdtemp(place->dir))
			return -errno;
	}
	memcpy(place->arm, arms, sizeof(arms));
	int err = templates_find(place, peers);
	for (int i = 0; i < LOAD_ARMS_NR && !err; i++)
		arm_find(place, &place->arm[i], before);
	return err;
}

void load_place_fini(struct load_place *place)
{
	load_remove(place->dir);
}

/* ---- how each is started ---- */

static void command_own(const struct load_place *place, const struct load_arm *arm,
			struct load_command *c)
{
	load_word(c, "%s", arm->path);
	load_word(c, "--listen=127.0.0.1:%u", arm->port);
	load_word(c, "--io=%s", arm->detail);
	/* A region for each start: the kernel may still hold a predecessor's admin socket. */
	load_word(c, "--region=%s/%s.%u", place->dir, arm->name, place->starts);
	load_word(c, "--set=log_level=error");
	for (int i = 0; i < LOAD_ENGINES; i++)
		load_word(c, "--engine=e%d=http://127.0.0.1:%u", i, place->sink->port[i]);
}

static int command_proxy(const struct load_place *place, struct load_arm *arm,
			 struct load_command *c)
{
	char from[400], to[200];
	unsigned streams = load_descriptors() > 2 * SPARE_DESCRIPTORS
				   ? (load_descriptors() - SPARE_DESCRIPTORS) / 2
				   : SPARE_DESCRIPTORS;

	snprintf(from, sizeof(from), "%s/%s", place->peers, arm->detail);
	snprintf(to, sizeof(to), "%s/%s", place->dir, arm->detail);
	int err = load_template(from, to, place->dir, arm->port, streams, place->sink->port);
	if (err) {
		snprintf(arm->why, sizeof(arm->why), "%.150s: %s", from, strerror(-err));
		return err;
	}
	load_word(c, "%s", arm->path);
	if (strcmp(arm->name, "haproxy") == 0)
		load_word(c, "-db");
	if (strcmp(arm->name, "envoy") == 0) {
		load_word(c, "--concurrency");
		load_word(c, "1");
		load_word(c, "-l");
		load_word(c, "error");
		load_word(c, "--disable-hot-restart");
	}
	load_word(c, strcmp(arm->name, "haproxy") == 0 ? "-f" : "-c");
	load_word(c, "%s", to);
	return 0;
}

static void command_llm(const struct load_place *place, const struct load_arm *arm,
			struct load_command *c)
{
	bool vllm = strcmp(arm->program, "vllm-router") == 0;

	load_word(c, "%s", arm->path);
	if (!vllm)
		load_word(c, "launch");
	load_word(c, "--host=127.0.0.1");
	load_word(c, "--port=%u", arm->port);
	load_word(c, "--prometheus-host=127.0.0.1");
	load_word(c, "--prometheus-port=%u", load_port_free());
	load_word(c, "--worker-startup-check-interval=1");
	load_word(c, "--log-level=%s", vllm ? "warning" : "warn");
	load_word(c, "--policy=%s", arm->detail);
	load_word(c, "--worker-urls");
	for (int i = 0; i < LOAD_ENGINES; i++)
		load_word(c, "http://127.0.0.1:%u", place->sink->port[i]);
}

/* ---- the first answer ---- */

static bool answers(uint16_t port)
{
	static const char ask[] =
		"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
		"Content-Type: application/json\r\nConnection: close\r\n"
		"Content-Length: 57\r\n\r\n"
		"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_port = htons(port),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct timeval limit = { .tv_sec = 2 };
	char got[64] = "";
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return false;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	if (connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0 &&
	    send(fd, ask, sizeof(ask) - 1, MSG_NOSIGNAL) > 0)
		if (recv(fd, got, sizeof(got) - 1, 0) < 0)
			got[0] = 0;
	close(fd);
	return strncmp(got, "HTTP/1.1 200", 12) == 0;
}

static int greet(struct load_arm *arm)
{
	uint64_t end = clock_ns() + READY_S * (uint64_t)NS_PER_S;

	while (!answers(arm->port)) {
		if (!load_proc_alive(&arm->proc)) {
			snprintf(arm->why, sizeof(arm->why), "it ended at once");
			return -ECHILD;
		}
		if (clock_ns() > end || load_interrupted()) {
			snprintf(arm->why, sizeof(arm->why), "no answer within %d s", READY_S);
			return -ETIMEDOUT;
		}
		nanosleep(&(struct timespec){ .tv_nsec = 20 * NS_PER_MS }, NULL);
	}
	/* Some register their engines one by one after they listen. */
	for (int i = 0; i < GREETINGS; i++)
		answers(arm->port);
	nanosleep(&(struct timespec){ .tv_nsec = 500 * NS_PER_MS }, NULL);
	return 0;
}

/* The end of what it said, for whoever must know why it does not run. */
static void last_words(const struct load_place *place, struct load_arm *arm, const char *log)
{
	char last[120];
	size_t len = strlen(arm->why);

	load_last_words(log, last, sizeof(last));
	if (last[0])
		snprintf(arm->why + len, sizeof(arm->why) - len, ": %s", last);
}

int load_arm_start(struct load_place *place, enum load_arm_id id)
{
	struct load_arm *arm = &place->arm[id];
	struct load_command c = { .n = 0 };
	char log[200];
	int err = 0;

	if (id == LOAD_ARM_DIRECT) {
		arm->ran = true;
		return 0;
	}
	if (id == LOAD_ARM_RELAY) {
		err = load_relay_start(&place->relay, place->sink->port);
		arm->proc = place->relay.proc;
		arm->port = place->relay.port;
		arm->ran = !err;
		return err;
	}
	if (!arm->path[0])
		return -ENOENT;
	arm->port = load_port_free();
	place->starts++;
	snprintf(log, sizeof(log), "%s/%s.log", place->dir, arm->name);
	if (arm->family == LOAD_OWN || arm->family == LOAD_BEFORE)
		command_own(place, arm, &c);
	else if (arm->family == LOAD_PROXY)
		err = command_proxy(place, arm, &c);
	else
		command_llm(place, arm, &c);
	if (!err)
		err = load_proc_exec(&arm->proc, place->core, log, c.argv);
	if (!err && (err = greet(arm)) != 0) {
		last_words(place, arm, log);
		load_proc_stop(&arm->proc);
	}
	if (!err)
		arm->ran = true;
	return err;
}

void load_arm_stop(struct load_place *place, enum load_arm_id id)
{
	struct load_arm *arm = &place->arm[id];

	if (id == LOAD_ARM_RELAY) {
		load_relay_stop(&place->relay);
		arm->proc.pid = 0;
		return;
	}
	load_proc_stop(&arm->proc);
}

const uint16_t *load_arm_ports(const struct load_place *place, enum load_arm_id id,
			       unsigned *ret_ports)
{
	*ret_ports = id == LOAD_ARM_DIRECT ? LOAD_ENGINES : 1;
	return id == LOAD_ARM_DIRECT ? place->sink->port : &place->arm[id].port;
}
