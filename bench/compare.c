/* What is compared with what, in which order, until when; see compare.h. */
#include "bench/compare.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "shm/base/clock.h"
#include "shm/base/exit.h"
#include "shm/base/scoped.h"

static const double speed_first = 12, speed_least = 2, speed_late = 0.03, measure_s = 3;

const char *const compare_load_names[] = {
#define X(id, name, requests, rate, why) name,
	COMPARE_LOADS(X) NULL
#undef X
};
const char *const compare_kind_names[] = {
#define X(id, name, meaning) name,
	COMPARE_KINDS(X) NULL
#undef X
};
static const struct {
	double requests, rate;
} loads[] = {
#define X(id, name, requests_, rate_, why) { .requests = requests_, .rate = rate_ },
	COMPARE_LOADS(X)
#undef X
};

#define OURS(name_, set_)                              \
	{                                              \
		.name = name_, .set = set_, .peer = -1 \
	}
/* A long message of an API that engines do not tokenise can be taken back, not cut. */
#define OURS_IN_PIECES(name_)                                                               \
	{                                                                                   \
		.name = name_, .set = "stage=pieces", .set_uncut = "stage=both", .peer = -1 \
	}

enum { PLAIN, STAGED };
static const struct compare_arm staging_arms[] = {
	[PLAIN] = OURS("plain", "stage=off"), [STAGED] = OURS_IN_PIECES("staged")
};

#define STAGED_TARGET(load_, figure_, limit_)                                                \
	{                                                                                    \
		.name = #load_ " " #figure_ " staged / plain", .load = COMPARE_LOAD_##load_, \
		.arm = STAGED, .over = PLAIN, .figure = REPLAY_##figure_, .limit = limit_    \
	}
static const struct compare_target staging_targets[] = {
	STAGED_TARGET(DESIGN, ttft_p90_s, 0.90),
	STAGED_TARGET(DESIGN, heavy_t2_mean_s, 0.65),
	STAGED_TARGET(DESIGN, victims, 0.25),
	STAGED_TARGET(DESIGN, heavy_t1_p90_s, 1.10),
	STAGED_TARGET(DESIGN, e2e_mean_s, 1.06),
	STAGED_TARGET(DESIGN, tpot_p90_s, 1.25),
	STAGED_TARGET(SESSIONS, ttft_p90_s, 0.85),
	STAGED_TARGET(SESSIONS, heavy_t2_mean_s, 0.90),
	STAGED_TARGET(SESSIONS, heavy_t1_p90_s, 1.10),
	STAGED_TARGET(SESSIONS, e2e_mean_s, 1.06),
	STAGED_TARGET(SESSIONS, tpot_p90_s, 1.15),
};

enum { OURS_PLAIN, OURS_STAGED };
#define PEER(name_, id, policy, extra_)                                              \
	{                                                                            \
		.name = name_, .set = policy, .peer = LOAD_ARM_##id, .extra = extra_ \
	}
static const struct compare_arm routers_arms[] = {
	[OURS_PLAIN] = OURS("turnward", "stage=off"),
	[OURS_STAGED] = OURS_IN_PIECES("turnward-staged"),
	PEER("vllm-router:cache_aware", VLLM_CACHE, NULL, false),
	PEER("vllm-router:consistent_hash", VLLM_HASH, NULL, false),
	PEER("sglang-router:cache_aware", SGLANG_CACHE, NULL, false),
	PEER("vllm-router:power_of_two", VLLM_CACHE, "power_of_two", true),
	PEER("vllm-router:round_robin", VLLM_CACHE, "round_robin", true),
	PEER("sglang-router:power_of_two", SGLANG_CACHE, "power_of_two", true),
	PEER("sglang-router:round_robin", SGLANG_CACHE, "round_robin", true),
};

#define ROUTERS_TARGET(load_, arm_, text, limit_)                                                \
	{                                                                                        \
		.name = #load_ " ttft_p90_s " text " / best peer", .load = COMPARE_LOAD_##load_, \
		.arm = arm_, .over = COMPARE_OVER_PEERS, .figure = REPLAY_ttft_p90_s,            \
		.limit = limit_                                                                  \
	}
#define SHARE_TARGET(figure_, below_, limit_)                                                 \
	{                                                                                     \
		.name = "DESIGN turnward-staged " #figure_ " / " #below_,                     \
		.load = COMPARE_LOAD_DESIGN, .arm = OURS_STAGED, .over = COMPARE_OVER_FIGURE, \
		.figure = REPLAY_##figure_, .below = REPLAY_##below_, .limit = limit_         \
	}
static const struct compare_target routers_targets[] = {
	ROUTERS_TARGET(DESIGN, OURS_PLAIN, "turnward", 0.85),
	ROUTERS_TARGET(DESIGN, OURS_STAGED, "turnward-staged", 0.70),
	ROUTERS_TARGET(SESSIONS, OURS_PLAIN, "turnward", 1.02),
	ROUTERS_TARGET(SESSIONS, OURS_STAGED, "turnward-staged", 0.80),
	SHARE_TARGET(victims, hot, 0.01),
	SHARE_TARGET(heavy_t2_mean_s, floor_heavy_t2_mean_s, 1.7),
};

#define NUMBER(list) (sizeof(list) / sizeof((list)[0]))
const struct compare_kind compare_kinds[] = {
	[COMPARE_STAGING] = { staging_arms, NUMBER(staging_arms), staging_targets,
			      NUMBER(staging_targets) },
	[COMPARE_ROUTERS] = { routers_arms, NUMBER(routers_arms), routers_targets,
			      NUMBER(routers_targets) },
};

const char *compare_arms_choose(struct compare_options *o, const char *words)
{
	const struct compare_kind *kind = &compare_kinds[o->kind];

	for (unsigned a = 0; a < kind->arms; a++)
		o->arm[a] = !words && !kind->arm[a].extra;
	while (words && *words) {
		size_t len = strcspn(words, ",");
		bool known = false;

		for (unsigned a = 0; a < kind->arms; a++) {
			/* a name, or the program's part of it: all its standard policies */
			const char *name = kind->arm[a].name;
			bool hit = strncmp(name, words, len) == 0 &&
				   (name[len] == 0 || (name[len] == ':' && !kind->arm[a].extra));

			o->arm[a] |= hit;
			known |= hit;
		}
		if (!known)
			return words;
		words += len + (words[len] == ',');
	}
	return NULL;
}

const char *compare_set_of(const struct compare *c, const struct compare_arm *arm)
{
	return c->live->api != LIVE_API_chat && arm->set_uncut ? arm->set_uncut : arm->set;
}

/* ---- what is played ---- */

static int make(const struct compare *c, enum compare_load load, uint64_t seed,
		struct workload *ret, char *why)
{
	const struct live_options *o = c->live;
	double requests = loads[load].requests;
	struct workload_pick pick;
	struct workload_mix mix;

	if ((double)o->requests_max < requests)
		requests = (double)o->requests_max;
	workload_pick_init(&pick);
	workload_mix_init(&mix);
	pick.seed = seed;
	pick.sessions = o->sessions_max;
	pick.turns_max = o->limits.turns_max;
	pick.requests = (size_t)requests;
	pick.rate = o->rate > 0 ? o->rate : loads[load].rate;
	mix.requests = requests;
	mix.rate = pick.rate;
	if (load == COMPARE_LOAD_DESIGN)
		return workload_generate(ret, &mix, &pick);
	return workload_read(ret, o->path, WORKLOAD_FORM_SESSIONS, &pick, why);
}

/* ---- replay beside it ---- */

static void set_from(struct replay_arm *arm, const char *text)
{
	char key[64], why[REPLAY_WHY_MAX];
	size_t len = strcspn(text, "=");

	if (len >= sizeof(key) || !text[len])
		return;
	memcpy(key, text, len);
	key[len] = 0;
	replay_arm_set(arm, key, text + len + 1, why); /* the router has keys that replay has not */
}

static int replay(struct compare *c, const struct compare_arm *arm, const struct workload *w,
		  uint64_t seed, struct compare_play *ret_play)
{
	struct replay_arm sim;
	struct replay_run run;

	replay_arm_init(&sim);
	for (unsigned i = 0; i < c->options->sets; i++)
		set_from(&sim, c->options->set[i]);
	if (arm->set)
		set_from(&sim, compare_set_of(c, arm));
	sim.admit.cold_slots = sim.stage.stage ? 1 : 0; /* the router's standard */
	sim.sample = compare_period_ms(c) * 1e-3 * c->speed;
	int err = replay_play(&run, &sim, w, seed);
	if (!err)
		err = replay_figures(&run, &sim, w, ret_play->figure);
	ret_play->played = ret_play->valid = !err;
	ret_play->pieces = (double)run.stage.pieces;
	ret_play->closes = (double)run.stage.closes;
	replay_run_free(&run);
	return err;
}

/* ---- rounds ---- */

static int fail(const char *what, const char *why)
{
	fprintf(stderr, "turnward-bench live: %s: %s\n", what, why);
	return EXIT_RUNTIME;
}

static void said(const struct compare_play *p)
{
	if (p->valid)
		fprintf(stderr, "%.0f s, late by %.1f %%, TTFT p90 %.2f s, %.0f errors\n",
			p->wall_s, 100 * p->late_ratio, p->figure[REPLAY_ttft_p90_s], p->errors);
	else
		fprintf(stderr, "not valid: %s\n", p->why);
}

/*
 * A run was late: a peer alone goes on more slowly (one that has engines tokenise each prompt keeps
 * them from their steps), which favours it, its own time being multiplied by less. Turnward's arms
 * are to have one speed: they try the same again and then become slower together.
 */
static void slow_down(struct compare *c, unsigned a, unsigned try)
{
	double speed = c->arm_speed[a] * (c->kind->arm[a].peer >= 0 ? 0.5 : 0.75);

	speed = speed > speed_least ? speed : speed_least;
	if (c->live->speed > 0 && c->kind->arm[a].peer < 0)
		return; /* as it was asked for */
	if (c->kind->arm[a].peer >= 0)
		c->arm_speed[a] = speed;
	for (unsigned i = 0; i < c->kind->arms && c->kind->arm[a].peer < 0 && try > 0; i++)
		c->arm_speed[i] = c->arm_speed[i] < speed ? c->arm_speed[i] : speed;
}

/* Until a run is valid; the least late of them, if none is. */
static int play_arm(struct compare *c, enum compare_load load, unsigned round, unsigned place,
		    unsigned a, const struct workload *w)
{
	struct compare_play *best = &c->play[load][a][round], p;
	const struct compare_arm *arm = &c->kind->arm[a];
	int err = 0;

	for (unsigned try = 0; try < COMPARE_TRIES && !err && !best->valid; try++) {
		c->speed = c->arm_speed[a];
		fprintf(stderr, "round %u of %u, %s, %s, speed %.3g: ", round + 1,
			c->options->rounds, compare_load_names[load], arm->name, c->speed);
		err = compare_play(c, arm, w, 0, &p);
		if (err == -ECHILD && arm->peer >= 0) {
			fprintf(stderr, "%s\n", p.why);
			snprintf(best->why, sizeof(best->why), "%s", p.why);
			return 0;
		}
		if (err) {
			fprintf(stderr, "%s\n", err == -EINTR ? "interrupted" : p.why);
			return err;
		}
		said(&p);
		if (!p.valid)
			slow_down(c, a, try);
		p.tries = try + 1;
		p.place = place;
		if (!best->played || p.valid || p.late_ratio < best->late_ratio)
			*best = p;
		best->tries = try + 1;
	}
	return err;
}

/* Arms in turn, each round beginning with the next of them. */
static int play_round(struct compare *c, enum compare_load load, unsigned round)
{
	uint64_t seed = c->live->seed + round;
	char why[WORKLOAD_WHY_MAX] = "out of memory";
	struct workload w;
	int err = make(c, load, seed, &w, why);

	if (err)
		fail(compare_load_names[load], why);
	c->requests[load] = round ? c->requests[load] : w.turns;
	for (unsigned k = 0; k < c->kind->arms && !err; k++) {
		unsigned a = (k + round) % c->kind->arms;

		if (!c->options->arm[a])
			continue;
		err = play_arm(c, load, round, k, a, &w);
		if (!err && c->options->kind == COMPARE_STAGING)
			err = replay(c, &c->kind->arm[a], &w, seed, &c->replay[load][a][round]);
	}
	workload_free(&w);
	return err;
}

/* An interruption after the first round leaves the whole ones to be reported. */
static int play_all(struct compare *c)
{
	int err = 0;

	while (c->rounds < c->options->rounds && !err) {
		for (int load = 0; load < COMPARE_LOADS_NR && !err; load++)
			if (c->options->load[load])
				err = play_round(c, (enum compare_load)load, c->rounds);
		c->rounds += !err;
	}
	return err == -EINTR && c->rounds ? 0 : err;
}

/* The highest of a few speeds at which engines keep their time for some seconds. */
static int find_speed(struct compare *c)
{
	char why[WORKLOAD_WHY_MAX] = "out of memory";
	struct compare_play p;
	struct workload w;

	c->speed = c->live->speed;
	if (c->speed > 0)
		return 0;
	int load = c->options->load[0] ? 0 : 1, err = make(c, load, c->live->seed, &w, why);
	if (err)
		fail(compare_load_names[load], why);
	for (c->speed = speed_first; !err; c->speed *= 0.7) {
		c->speed = c->speed > speed_least ? c->speed : speed_least;
		err = compare_play(c, &c->kind->arm[0], &w, measure_s, &p);
		if (err)
			fail("measuring the speed", err == -EINTR ? "interrupted" : p.why);
		else
			fprintf(stderr, "speed %.3g: late by %.1f %% of busy time in %g s\n",
				c->speed, 100 * p.late_ratio, measure_s);
		if (p.late_ratio <= speed_late || c->speed <= speed_least)
			break;
	}
	workload_free(&w);
	return err;
}

static int report(const struct compare *c)
{
	const char *json = c->live->json;
	int err = 0;

	if (!json || strcmp(json, "-") != 0)
		compare_print(c);
	if (json)
		err = compare_json(c, json);
	if (err)
		return fail(json, strerror(-err));
	if (c->rounds < c->options->rounds)
		fprintf(stderr, "interrupted: %u of %u rounds\n", c->rounds, c->options->rounds);
	return compare_all_valid(c) && c->rounds == c->options->rounds ? EXIT_GOOD : EXIT_RUNTIME;
}

int compare_run(const struct compare_options *options, const struct live_options *live)
{
	static struct compare c;
	uint64_t begin_ns = clock_ns();

	c.options = options;
	c.live = live;
	c.kind = &compare_kinds[options->kind];
	load_descriptors();
	load_interrupt_catch();
	/* Without configurations of peers there are no peers: a comparison without them goes on. */
	int err = load_place_init(&c.place, &c.sink, options->peers, NULL);
	if (err && (options->kind == COMPARE_ROUTERS || !c.place.dir[0])) {
		load_place_fini(&c.place);
		return fail("bench/peers", strerror(-err));
	}
	c.place.core = LOAD_CORE_ANY;
	err = find_speed(&c);
	for (unsigned a = 0; a < c.kind->arms; a++)
		c.arm_speed[a] = c.speed;
	if (!err)
		err = play_all(&c);
	c.speed = c.arm_speed[0];
	load_place_fini(&c.place);
	c.wall_s = (double)(clock_ns() - begin_ns) * 1e-9;
	return err ? EXIT_RUNTIME : report(&c);
}
