/*
 * Whether pieces hit: what a finished piece shows about the one before it, and for whom staging is
 * off.
 *
 * If pieces miss, staging computes a prompt many times over; so every piece from the second on is
 * judged by the first of three sources that can tell: cached tokens in its answer, the engine's own
 * hit counter over the piece, its time on an otherwise idle engine. Absent is not 0. A miss of the
 * second piece switches staging off for that model and shape; an engine that has none of the three
 * gets no pieces. Pure.
 */
#ifndef TURNWARD_ROUTER_STAGE_GUARD_H
#define TURNWARD_ROUTER_STAGE_GUARD_H

#include "router/limits.h"
#include "router/stage/stage.h"
#include "shm/state.h"

enum {
	STAGE_SEES_CACHED = 1 << 0,   /* the answer named its cached tokens */
	STAGE_SEES_COUNTERS = 1 << 1, /* the engine's counters were read after the piece ended */
	STAGE_SEES_TIME = 1 << 2,     /* its times are predicted well enough to tell */
	STAGE_SEES_IDLE = 1 << 3,     /* nothing else was in the engine meanwhile */
	STAGE_HAS_COUNTERS = 1 << 4,  /* the engine has such counters, if not for this piece */
};

struct stage_evidence {
	uint32_t sees;            /* STAGE_SEES_..., STAGE_HAS_... */
	uint32_t prompt_tokens;   /* of the piece */
	uint32_t expected_tokens; /* of it cached: the cut before */
	uint32_t cached_tokens;
	uint64_t hit_tokens, queried_tokens; /* the counters' growth over the piece */
	double took_s, hit_s, miss_s; /* predicted with the piece before in the cache; without */
	double clock_s; /* less difference of these two is lost in what else a request takes */
};

/* The sources in order of trust. X(ID, name, meaning) */
#define STAGE_SOURCES(X)                                                   \
	X(NONE, "none", "none")                                            \
	X(CACHED, "cached-tokens", "cached tokens in the answer")          \
	X(COUNTER, "hit-counter", "the engine's prefix cache hit counter") \
	X(TIME, "time", "the time it took on an otherwise idle engine")
#define STAGE_SOURCE_ENUM(id, name, meaning) STAGE_SOURCE_##id,
enum stage_source { STAGE_SOURCES(STAGE_SOURCE_ENUM) STAGE_SOURCES_NR };
#undef STAGE_SOURCE_ENUM

enum stage_verdict stage_judge(const struct stage_params *params, const struct stage_evidence *e,
			       enum stage_source *ret_source);

struct stage_guard {
	struct {
		uint64_t key, until_ns; /* key 0 = free */
	} shape[LIMIT_STAGE_GUARDS];
	struct {
		uint64_t until_ns;  /* nothing tells whether pieces hit there */
		uint64_t proven_ns; /* when something last did */
		uint32_t unclear;   /* pieces in a row */
		uint32_t said;      /* the log has been told, once */
	} engine[STATE_ENGINES_MAX];
};

/* What a note has changed, for the log to say once. */
enum stage_guard_news { STAGE_NO_NEWS, STAGE_SHAPE_OFF, STAGE_ENGINE_SILENT };

/*
 * A staged request's piece number `piece` (1 = its first) was judged. `key` stands for model and
 * shape, not 0. Of an engine whose sources were unclear too often in a row the verdict becomes
 * STAGE_NO_SOURCE (unless one has hit in the last stage_guard_off_s): *verdict is what
 * stage_event() is to be given.
 */
enum stage_guard_news stage_guard_note(struct stage_guard *guard, const struct stage_params *params,
				       uint64_t key, unsigned engine, uint32_t piece,
				       enum stage_verdict *verdict, uint64_t now_ns);

int stage_guard_shape_off(const struct stage_guard *guard, uint64_t key, uint64_t now_ns);
int stage_guard_engine_off(const struct stage_guard *guard, unsigned engine, uint64_t now_ns);

/* The engine has restarted, perhaps with the flag that helps. */
void stage_guard_engine_restarted(struct stage_guard *guard, unsigned engine);

const char *stage_source_name(unsigned source); /* NULL out of range */

#endif
