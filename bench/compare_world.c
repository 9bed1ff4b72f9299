/* Starts what one run of a comparison needs, sees that it lives, ends it; see compare.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "bench/ask.h"
#include "bench/compare.h"
#include "shm/base/clock.h"
#include "shm/base/scoped.h"

enum { READY_S = 20, PERIOD_MS = 100, PERIOD_MIN_MS = 20 };

static void path_of(const struct compare_world *w, const char *name, char *ret_path, size_t size)
{
	snprintf(ret_path, size, "%s/%s", w->dir, name);
}

/* Says what ended it, as far as it has told. */
static int fail(struct compare_world *w, const char *who, const char *what, const char *log)
{
	char words[160];

	load_last_words(log, words, sizeof(words));
	snprintf(w->why, sizeof(w->why), "%s %s%s%s", who, what, words[0] ? ": " : "", words);
	return -ECHILD;
}

static int start(struct compare_world *w, struct load_proc *proc, const char *name,
		 struct load_command *c)
{
	char log[160];

	path_of(w, name, log, sizeof(log));
	int err = load_proc_exec(proc, LOAD_CORE_ANY, log, c->argv);
	if (err)
		snprintf(w->why, sizeof(w->why), "%s: %s", name, strerror(-err));
	return err;
}

static int wait_until(struct compare_world *w, struct load_proc *proc, const char *name,
		      bool (*ready)(const struct compare_world *w))
{
	uint64_t end = clock_ns() + READY_S * (uint64_t)NS_PER_S;
	char log[160];

	path_of(w, name, log, sizeof(log));
	while (!ready(w)) {
		if (load_interrupted())
			return -EINTR;
		if (!load_proc_alive(proc))
			return fail(w, name, "ended at once", log);
		if (clock_ns() > end)
			return fail(w, name, "was not ready in time", log);
		nanosleep(&(struct timespec){ .tv_nsec = 20 * NS_PER_MS }, NULL);
	}
	return 0;
}

static struct addr at_port(uint16_t port)
{
	struct addr addr = { .len = sizeof(addr.sa.v4) };

	addr.sa.v4 = (struct sockaddr_in){ .sin_family = AF_INET,
					   .sin_port = htons(port),
					   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	return addr;
}

static bool engines_ready(const struct compare_world *w)
{
	for (int i = 0; i < COMPARE_ENGINES; i++) {
		struct addr addr = at_port(w->port[i]);
		scoped(free_drop) char *text = ask_http(&addr, "GET", "/health", NULL);

		if (!text)
			return false;
	}
	return true;
}

/* The router is there and has read a record of every agent. */
static bool router_ready(const struct compare_world *w)
{
	static const char age[] = "\nturnward_agent_sample_age_seconds{";
	char why[ADDR_WHY_MAX];
	struct addr admin;
	int known = 0;

	if (addr_parse(&admin, w->admin, why) < 0)
		return false;
	scoped(free_drop) char *ready = ask_http(&admin, "GET", "/ready", NULL);
	scoped(free_drop) char *page = ready ? ask_http(&admin, "GET", "/metrics", NULL) : NULL;

	for (const char *at = page; at && (at = strstr(at, age)); at++) {
		const char *value = strchr(at, '}');

		known += value && strtod(value + 1, NULL) > 0;
	}
	return known == COMPARE_ENGINES;
}

static int engines_begin(struct compare_world *w)
{
	const struct compare *c = w->compare;
	struct load_command words = { .n = 0 };
	uint16_t first = load_ports_free(COMPARE_ENGINES);
	char program[300];

	for (int i = 0; i < COMPARE_ENGINES; i++)
		w->port[i] = w->compare->sink.port[i] = (uint16_t)(first + i);
	load_program(&c->place, "turnward-engine", program, sizeof(program));
	load_word(&words, "%s", program);
	load_word(&words, "--ports=%u-%u", first, first + COMPARE_ENGINES - 1);
	load_word(&words, "--speed=%g", c->speed);
	load_word(&words, "--profile=q8b");
	load_word(&words, "--head=vllm");
	load_word(&words, "--model=m"); /* what load's greeting asks for */
	/* They stand for GPUs, which do not compete with the router for processors. */
	load_word(&words, "--realtime");
	int err = start(w, &w->engines, "engines", &words);
	return err ? err : wait_until(w, &w->engines, "engines", engines_ready);
}

double compare_period_ms(const struct compare *c)
{
	double period_ms = PERIOD_MS / c->speed;

	return period_ms > PERIOD_MIN_MS ? period_ms : PERIOD_MIN_MS;
}

static int agents_begin(struct compare_world *w)
{
	char program[300], name[16];
	int err = 0;

	load_program(&w->compare->place, "turnward-agent", program, sizeof(program));
	for (int i = 0; i < COMPARE_ENGINES && !err; i++) {
		struct load_command words = { .n = 0 };

		load_word(&words, "%s", program);
		load_word(&words, "--engine=gpu%d=http://127.0.0.1:%u", i, w->port[i]);
		load_word(&words, "--kind=vllm");
		load_word(&words, "--period=%g", compare_period_ms(w->compare));
		load_word(&words, "--region=%s/region", w->dir);
		load_word(&words, "--log-level=warn");
		snprintf(name, sizeof(name), "agent%d", i);
		err = start(w, &w->agent[i], name, &words);
	}
	return err;
}

static int router_begin(struct compare_world *w)
{
	const struct compare *c = w->compare;
	struct load_command words = { .n = 0 };
	char program[300];

	w->router_port = load_port_free();
	snprintf(w->admin, sizeof(w->admin), "unix:%s/admin", w->dir);
	load_program(&c->place, "turnward-router", program, sizeof(program));
	load_word(&words, "%s", program);
	load_word(&words, "--listen=127.0.0.1:%u", w->router_port);
	load_word(&words, "--admin=%s", w->admin);
	load_word(&words, "--region=%s/region", w->dir);
	load_word(&words, "--set=time_scale=%g", c->speed);
	load_word(&words, "--set=log_level=warn");
	for (unsigned i = 0; i < c->options->sets; i++)
		load_word(&words, "--set=%s", c->options->set[i]);
	if (w->arm->set) /* what makes the arm prevails */
		load_word(&words, "--set=%s", compare_set_of(c, w->arm));
	for (int i = 0; i < COMPARE_ENGINES; i++)
		load_word(&words, "--engine=gpu%d=http://127.0.0.1:%u", i, w->port[i]);
	int err = start(w, &w->router, "router", &words);
	return err ? err : wait_until(w, &w->router, "router", router_ready);
}

/* A peer is load's: its configuration, its start, its greeting. */
static int peer_begin(struct compare_world *w)
{
	struct load_place *place = &w->compare->place;
	struct load_arm *arm = &place->arm[w->arm->peer];
	const char *detail = arm->detail;

	arm->detail = w->arm->set ? w->arm->set : detail;
	int err = load_arm_start(place, (enum load_arm_id)w->arm->peer);

	if (err)
		snprintf(w->why, sizeof(w->why), "%s did not start: %s", w->arm->name, arm->why);
	arm->detail = detail;
	w->router = arm->proc;
	w->router_port = arm->port;
	if (load_interrupted())
		return -EINTR;
	return err ? -ECHILD : 0;
}

int compare_world_begin(struct compare_world *w)
{
	char region[120];

	snprintf(w->dir, sizeof(w->dir), "%s/world.%u", w->compare->place.dir,
		 ++w->compare->place.starts);
	path_of(w, "region", region, sizeof(region));
	if (mkdir(w->dir, 0700) < 0 || mkdir(region, 0750) < 0) {
		snprintf(w->why, sizeof(w->why), "%s: %s", w->dir, strerror(errno));
		return -errno;
	}
	int err = engines_begin(w);
	if (err || w->arm->peer >= 0)
		return err ? err : peer_begin(w);
	err = agents_begin(w);
	return err ? err : router_begin(w);
}

bool compare_world_whole(struct compare_world *w)
{
	char log[160], name[32];

	path_of(w, "engines", log, sizeof(log));
	if (!load_proc_alive(&w->engines))
		return fail(w, "the engines' process", "ended during the run", log) == 0;
	path_of(w, "router", log, sizeof(log));
	if (!load_proc_alive(&w->router))
		return fail(w, w->arm->name, "ended during the run: the router", log) == 0;
	for (int i = 0; i < COMPARE_ENGINES && w->arm->peer < 0; i++) {
		snprintf(name, sizeof(name), "agent%d", i);
		path_of(w, name, log, sizeof(log));
		if (!load_proc_alive(&w->agent[i]))
			return fail(w, name, "ended during the run", log) == 0;
	}
	return true;
}

void compare_world_end(struct compare_world *w)
{
	load_proc_stop(&w->router);
	if (w->arm->peer >= 0)
		w->compare->place.arm[w->arm->peer].proc.pid = 0;
	for (int i = 0; i < COMPARE_ENGINES; i++)
		load_proc_stop(&w->agent[i]);
	load_proc_stop(&w->engines);
	load_orphans_stop(); /* of a router that was killed */
	if (w->dir[0])
		load_remove(w->dir);
}
