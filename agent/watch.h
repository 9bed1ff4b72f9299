/*
 * PURE: what follows from a sequence of readings and failures: is the engine up, stalled or down,
 * and is it still the one that we knew (epoch)?
 *
 * Time is an argument. Nothing here knows a kind of engine: the reading brings the signs that are
 * valid for its kind.
 */
#ifndef TURNWARD_AGENT_WATCH_H
#define TURNWARD_AGENT_WATCH_H

#include <stdint.h>

#include "agent/engine.h"

enum {
	WATCH_STALL_STEPS = 20,  /* a stall lasts at least this many decode steps, however slow */
	WATCH_REFUSALS_DOWN = 2, /* nobody listens: down at the second look */
	WATCH_ERRORS_DOWN = 3,   /* errors and garbage in a row */
	WATCH_GOOD_UP = 2,       /* good answers in a row that end `down` */
};

/* How a sample can fail; they differ in what they say about the engine. */
enum watch_failure {
	WATCH_REFUSED, /* nothing listens there: its process is gone */
	WATCH_SILENT,  /* connects, but no whole answer in time: it may be busy or hang */
	WATCH_ERROR,   /* an answer that is an error or not to be understood */
};

struct watch {
	uint64_t stall_ns; /* the limit, given by the user */

	enum engine_health health;
	unsigned refusals, errors, good;
	uint64_t silent_since_ns; /* 0 = it answers */
	uint64_t moved_ns;        /* when work was last seen to move, or nothing ran */
	uint64_t progress;
	int has_progress;

	uint64_t epoch; /* 0 = no reading yet */
	uint64_t start_id;
	int gone;                 /* refused since the last reading */
	struct engine_state last; /* for totals that went backwards */
	double last_sequence;
	int inherited; /* epoch and totals come from a predecessor of this agent */
};

void watch_init(struct watch *watch, uint64_t stall_ns);

/* A predecessor published this: if the engine has not restarted since, its epoch goes on. */
void watch_inherit(struct watch *watch, const struct engine_state *state);

/* Takes a good reading. Returns 1 if the engine is another one than before (epoch changed). */
int watch_reading(struct watch *watch, const struct engine_reading *reading, uint64_t now_ns,
		  uint64_t wall_ns, double decode_iteration_s);

/* Takes a failed sample. */
void watch_failed(struct watch *watch, enum watch_failure failure, uint64_t now_ns);

#endif
