/* One run of a comparison: a world, the workload's sessions through it, replay's figures of them.
 */
#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/compare.h"
#include "bench/workload_talk.h"
#include "shm/base/clock.h"
#include "shm/base/scoped.h"

/* Who died ends the run: what others still do means nothing then. */
static void watch(struct live_run *run, uint64_t now_ns)
{
	run->stop = run->stop || !compare_world_whole(run->ctx);
	if (isatty(STDERR_FILENO))
		live_progress_print(run, now_ns);
}

static void options_fill(struct live_options *o, const struct compare_world *world)
{
	char why[ADDR_WHY_MAX], text[64];

	o->speed = world->compare->speed;
	o->requests_max = SIZE_MAX;
	o->sessions_max = 0;
	o->session_header = true;
	snprintf(o->model, sizeof(o->model), "m");
	snprintf(text, sizeof(text), "127.0.0.1:%u", world->router_port);
	addr_parse(&o->router, text, why);
	o->has_admin = world->admin[0] && addr_parse(&o->admin, world->admin, why) == 0;
	o->engines = COMPARE_ENGINES;
	for (int i = 0; i < COMPARE_ENGINES; i++) {
		snprintf(text, sizeof(text), "127.0.0.1:%u", world->port[i]);
		addr_parse(&o->engine[i], text, why);
	}
}

static uint64_t model_ns(const struct live_run *run, uint64_t wall_ns)
{
	return wall_ns ? (uint64_t)((double)(wall_ns - run->begin_ns) * run->options->speed) + 1
		       : 0;
}

/*
 * As replay sees a request. What engines truly held at the decision is not known here: what an
 * endless cache would hold stands for it, which in replay of these workloads makes no difference.
 */
static void take(const struct live_run *run, const struct live_request *r, const struct workload *w,
		 struct replay_run *ret)
{
	size_t i = w->session[r->session].turn + r->turn - 1;

	assert(i < w->turns && w->turn[i].turn == r->turn);
	if (r->failure != LIVE_none || !r->end_ns)
		return;
	ret->request[i] = (struct replay_request){
		.arrive_ns = model_ns(run, r->start_ns),
		.first_ns = model_ns(run, r->first_ns),
		.end_ns = model_ns(run, r->end_ns),
		.cached_tokens = r->cached_tokens,
		.best_hit_tokens = w->turn[i].ideal_hit_tokens,
		.held_tokens = w->turn[i].ideal_hit_tokens,
		.offload = REPLAY_STAYED,
	};
}

static int figures(const struct live_run *run, const struct workload *w,
		   struct compare_play *ret_play)
{
	struct replay_run seen = { .requests = w->turns,
				   .end_s = (double)(run->end_ns - run->begin_ns) * 1e-9 *
					    run->options->speed };
	struct replay_arm arm;

	seen.request = calloc(w->turns + 1, sizeof(*seen.request));
	if (!seen.request)
		return -ENOMEM;
	for (size_t i = 0; i < run->requests; i++)
		take(run, &run->request[i], w, &seen);
	replay_arm_init(&arm);
	int err = replay_figures(&seen, &arm, w, ret_play->figure);
	free(seen.request);
	return err;
}

static void outside(const struct live_run *run, const struct live_outside *out, uint64_t cpu_ns,
		    struct compare_play *p)
{
	p->speed = run->options->speed;
	p->machine_load = out->machine_all_s > 0 ? out->machine_busy_s / out->machine_all_s : 0;
	p->wall_s = (double)(run->end_ns - run->begin_ns) * 1e-9;
	p->late_ratio = live_late_ratio(out);
	p->busy_s = out->busy_s * run->options->speed;
	p->migrations = out->migrations;
	p->pieces = out->pieces;
	p->closes = out->closes;
	p->router_cpu_share = (double)cpu_ns * 1e-9 / p->wall_s;
	p->errors = (double)(run->failed + run->abandoned);
	p->valid = live_valid(run, out);
	p->played = true;
	if (p->valid)
		return;
	if (!out->engines_known)
		snprintf(p->why, sizeof(p->why), "the engines did not say how late they were");
	else
		snprintf(p->why, sizeof(p->why),
			 "engines were late by %.1f %% of their busy time, %d are allowed",
			 100 * p->late_ratio, LIVE_LATE_PERCENT);
}

/* The run itself, in a world that is there. */
static int play(struct compare_world *world, struct live_run *run, const struct workload *w,
		struct compare_play *ret_play)
{
	uint64_t cpu_ns = load_proc_cpu_ns(world->router.pid);
	struct live_outside out;
	sigset_t ends;

	if (live_outside_begin(run->options, &out) < 0) {
		snprintf(world->why, sizeof(world->why), "engines did not say how late they are");
		return -ECHILD;
	}
	int err = live_play(run, watch);
	/* It held them back; load_interrupted() hears of them now. */
	sigemptyset(&ends);
	sigaddset(&ends, SIGINT);
	sigaddset(&ends, SIGTERM);
	sigprocmask(SIG_UNBLOCK, &ends, NULL);
	if (isatty(STDERR_FILENO))
		fputs("\r\033[K", stderr);
	if (err)
		return err;
	if (run->interrupted || load_interrupted())
		return -EINTR;
	if (!compare_world_whole(world))
		return -ECHILD;
	live_outside_end(run->options, &out);
	outside(run, &out, load_proc_cpu_ns(world->router.pid) - cpu_ns, ret_play);
	return run->options->measure_s > 0 ? 0 : figures(run, w, ret_play);
}

int compare_play(struct compare *c, const struct compare_arm *arm, const struct workload *w,
		 double measure_s, struct compare_play *ret_play)
{
	scoped(free_drop) double *start_s = calloc(w->sessions + 1, sizeof(*start_s));
	struct compare_world world = { .compare = c, .arm = arm };
	struct live_options o = *c->live;
	struct live_run run = { .options = &o, .ctx = &world };
	int err = start_s ? workload_sessions(&run.sessions, w) : -ENOMEM;

	*ret_play = (struct compare_play){ 0 };
	for (size_t i = 0; i < w->sessions && !err; i++)
		start_s[i] = w->session[i].start_s;
	o.start_s = start_s;
	o.measure_s = measure_s;
	if (!err)
		err = compare_world_begin(&world);
	options_fill(&o, &world);
	if (!err)
		err = play(&world, &run, w, ret_play);
	compare_world_end(&world);
	if (err)
		snprintf(ret_play->why, sizeof(ret_play->why), "%s",
			 world.why[0] ? world.why : strerror(-err));
	free(run.request);
	sessions_free(&run.sessions);
	return err;
}
