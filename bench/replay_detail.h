/*
 * What a picture of a replay needs beside its figures: whole distributions, queues over time, moves
 * and pieces one by one. Bounded whatever is played; what was left out is counted and said.
 */
#ifndef TURNWARD_BENCH_REPLAY_DETAIL_H
#define TURNWARD_BENCH_REPLAY_DETAIL_H

#include "bench/replay.h"
#include "shm/base/json.h"

enum {
	DETAIL_POINTS = 200, /* of a queue over time, unless told otherwise */
	DETAIL_POINTS_MAX = 4000,
	DETAIL_MARKS_MAX = 2000,     /* moves, pieces and outages kept of an arm, of each */
	DETAIL_VALUES_MAX = 1 << 20, /* first tokens of an arm that its curves are made of */
	DETAIL_QUANTILES = 103,      /* 0, 1, ... 99, 99.5, 99.9, 100 % */
};

/* Series over time, one a row and an engine. X(name in JSON, meaning) */
#define DETAIL_SERIES(X)                                                                 \
	X(pending_prefill_tokens, "prompt tokens not yet computed: running and waiting") \
	X(requests, "running and waiting")                                               \
	X(kv_used_ratio, "KV blocks that requests hold")

/* What happens to an engine. X(name in JSON, meaning) */
#define DETAIL_OUTAGES(X)                           \
	X(stall, "it computes nothing for a while") \
	X(restart, "it is gone, then back and empty")

enum detail_series {
#define DETAIL_SERIES_ENUM(name, meaning) DETAIL_##name,
	DETAIL_SERIES(DETAIL_SERIES_ENUM)
#undef DETAIL_SERIES_ENUM
		DETAIL_SERIES_NR
};
enum detail_outage {
#define DETAIL_OUTAGE_ENUM(name, meaning) DETAIL_##name,
	DETAIL_OUTAGES(DETAIL_OUTAGE_ENUM)
#undef DETAIL_OUTAGE_ENUM
		DETAIL_OUTAGES_NR
};

struct detail_mark {
	double at_s, until_s; /* of the play's begin; until_s: outages */
	uint32_t index;       /* turn of the workload (pieces, moves), enum detail_outage */
	uint32_t tokens;      /* of a piece */
	int16_t from, engine; /* from: of a move */
};

struct detail_marks {
	struct detail_mark *mark;
	size_t nr, room, total; /* total: with those that were not kept */
};

/*
 * Looks on while an arm is played. Queues are read at fixed distances of virtual time, which double
 * (neighbours averaged) whenever `points` are reached: no play is too long.
 */
struct detail_watch {
	unsigned points, engines;
	uint64_t begin_ns, next_ns, step_ns;
	size_t nr;                       /* points so far */
	float *series[DETAIL_SERIES_NR]; /* [point][engine] */
	struct detail_marks pieces, outages;
	int err; /* first failure; then it sleeps */
};

int detail_watch_new(struct detail_watch **ret_watch, unsigned points, unsigned engines);
void detail_watch_free(struct detail_watch *watch);
void detail_watch_begin(struct detail_watch *watch, uint64_t begin_ns);
/* 1: a point is due before `now_ns`, to be given by detail_watch_point(). */
int detail_watch_due(const struct detail_watch *watch, uint64_t now_ns);
void detail_watch_point(struct detail_watch *watch, const float (*value)[DETAIL_SERIES_NR]);
void detail_watch_piece(struct detail_watch *watch, uint64_t now_ns, uint32_t index,
			unsigned engine, uint32_t tokens);
void detail_watch_outage(struct detail_watch *watch, enum detail_outage kind, unsigned engine,
			 uint64_t from_ns, uint64_t until_ns);

/* As replay_play(), watched; `watch` may be NULL. */
int replay_play_watched(struct replay_run *ret_run, const struct replay_arm *arm,
			const struct workload *workload, uint64_t seed, struct detail_watch *watch);

/* ---- all arms of a comparison ---- */

struct replay_detail;

/* `points` 0: nothing is kept, all calls do nothing. */
int replay_detail_new(struct replay_detail **ret_detail, size_t arms, unsigned points);
void replay_detail_free(struct replay_detail *detail);

/*
 * Plays as replay_play() does and keeps what belongs into the detail: the first tokens of every
 * play, the timeline of an arm's first. `detail` may be NULL.
 */
int replay_detail_play(struct replay_detail *detail, size_t arm_index, struct replay_run *ret_run,
		       const struct replay_arm *arm, const struct workload *workload,
		       uint64_t seed);

/* "detail": {...}, of the whole and of one arm; nothing when nothing was kept. */
void replay_detail_json(struct json *j, const struct replay_detail *detail);
void replay_detail_json_arm(struct json *j, struct replay_detail *detail, size_t arm_index);

/* The i-th quantile of the curves, 0..100 %. */
double replay_detail_quantile(unsigned i);

#endif
