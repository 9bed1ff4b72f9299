/*
 * turnward-bench live --compare from the inside: the same sessions through several arms, each with
 * engines, agents and a router of its own, started and ended here.
 *
 * What is played is one of replay's workloads (workload_talk.h), and its figures are taken by
 * replay's own functions, so that classes, cold prompts and victims mean there and here the same.
 */
#ifndef TURNWARD_BENCH_COMPARE_H
#define TURNWARD_BENCH_COMPARE_H

#include "bench/live.h"
#include "bench/load.h"
#include "bench/load_arms.h"
#include "bench/replay.h"

enum {
	COMPARE_ENGINES = LOAD_ENGINES,
	COMPARE_ROUNDS = 5, /* standard; fewer say little */
	COMPARE_ROUNDS_MAX = 32,
	COMPARE_ARMS_MAX = 12,
	COMPARE_TRIES = 3, /* of one run, until one is valid */
	COMPARE_SETS_MAX = 16,
	COMPARE_WHY_MAX = 400,
};

/* X(ID, name, requests, new sessions a model second, why these) */
#define COMPARE_LOADS(X)                                                            \
	X(DESIGN, "design", 850, 0.8, "the design document's mix, at its own rate") \
	X(SESSIONS, "sessions", 1000, 0.25, "Claude Code sessions")
enum compare_load {
#define X(id, name, requests, rate, why) COMPARE_LOAD_##id,
	COMPARE_LOADS(X)
#undef X
		COMPARE_LOADS_NR
};
extern const char *const compare_load_names[];

/* Who stands between clients and engines. */
struct compare_arm {
	const char *name;
	const char *set;       /* KEY=VALUE of turnward's router; a peer's policy, NULL = load's */
	const char *set_uncut; /* the same where bodies have no token ids to cut at; NULL = set */
	int peer;              /* enum load_arm_id, or -1 = turnward */
	bool extra;            /* played when asked for by name */
};

/* A figure of one arm over the same of another: the median of the rounds' ratios, at most. */
struct compare_target {
	const char *name;
	enum compare_load load;
	int arm, over; /* OVER_PEERS: the best of the peers; OVER_FIGURE: `below` */
	enum replay_figure figure, below;
	double limit;
};
enum { COMPARE_OVER_PEERS = -1, COMPARE_OVER_FIGURE = -2 };

/* A comparison. X(ID, name, what it compares) */
#define COMPARE_KINDS(X)                                                  \
	X(STAGING, "staging", "turnward without and with staged prefill") \
	X(ROUTERS, "routers", "LLM routers and turnward, the same sessions")
enum compare_kind_id {
#define X(id, name, meaning) COMPARE_##id,
	COMPARE_KINDS(X)
#undef X
		COMPARE_KINDS_NR
};
extern const char *const compare_kind_names[];

struct compare_kind {
	const struct compare_arm *arm;
	unsigned arms;
	const struct compare_target *target;
	unsigned targets;
};
extern const struct compare_kind compare_kinds[];

struct compare_options {
	enum compare_kind_id kind;
	unsigned rounds;
	bool load[COMPARE_LOADS_NR];
	bool arm[COMPARE_ARMS_MAX];
	const char *set[COMPARE_SETS_MAX];
	unsigned sets;
	const char *peers; /* configurations; NULL = bench/peers */
};

/* One run of one arm. */
struct compare_play {
	bool played, valid;
	double figure[REPLAY_FIGURES_NR]; /* model seconds */
	double machine_load; /* of all cores: near 1, router and client waited for them */
	double speed, errors, late_ratio, migrations, pieces, closes, router_cpu_share, busy_s,
		wall_s;
	unsigned tries, place;     /* place: which of its round's runs it was */
	char why[COMPARE_WHY_MAX]; /* it is not valid */
};

struct compare {
	const struct compare_options *options;
	const struct live_options *live; /* speed, api, seed, requests, sessions' file */
	const struct compare_kind *kind;
	struct load_sink sink; /* ports alone */
	struct load_place place;
	double speed; /* of the run under way */
	double arm_speed[COMPARE_ARMS_MAX];
	struct compare_play play[COMPARE_LOADS_NR][COMPARE_ARMS_MAX][COMPARE_ROUNDS_MAX];
	struct compare_play replay[COMPARE_LOADS_NR][COMPARE_ARMS_MAX][COMPARE_ROUNDS_MAX];
	size_t requests[COMPARE_LOADS_NR];
	unsigned rounds; /* that were played whole: options->rounds, less when interrupted */
	double wall_s;
};

/* Those whose names begin with one of the words; NULL: all that are no extras. The word that fits
 * none, or NULL. */
const char *compare_arms_choose(struct compare_options *o, const char *words);

/* What makes the arm; NULL = nothing does. */
const char *compare_set_of(const struct compare *c, const struct compare_arm *arm);

/* An exit code: EXIT_GOOD when all runs are valid and none has an error. */
int compare_run(const struct compare_options *options, const struct live_options *live);

/* ---- compare_world.c: engines, agents and a router, for one run ---- */

/* Of agents' reading, wall: a hundred model milliseconds, if a machine can do that. */
double compare_period_ms(const struct compare *c);

struct compare_world {
	struct compare *compare;
	const struct compare_arm *arm;
	struct load_proc engines, agent[COMPARE_ENGINES], router;
	uint16_t port[COMPARE_ENGINES], router_port;
	char dir[96];
	char admin[120]; /* "unix:..."; "" = a peer, which has none */
	char why[COMPARE_WHY_MAX];
};

/* 0, -ECHILD (`why`), -EINTR. compare_world_end() in any case. */
int compare_world_begin(struct compare_world *world);
/* Whether all that was started still runs; `why` names who does not. */
bool compare_world_whole(struct compare_world *world);
void compare_world_end(struct compare_world *world);

/* ---- compare_play.c: one run ---- */

/* 0 with what was played, valid or not; -EINTR; -ECHILD, -errno with `why`. measure_s > 0: only so
 * long. */
int compare_play(struct compare *c, const struct compare_arm *arm, const struct workload *w,
		 double measure_s, struct compare_play *ret_play);

/* ---- compare_report.c ---- */

void compare_print(const struct compare *c);
int compare_json(const struct compare *c, const char *path); /* -errno */
bool compare_all_valid(const struct compare *c);

#endif
