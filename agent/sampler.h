/*
 * Decides when to ask an engine for which page, and makes of the answers what the agent publishes.
 *
 * It does no I/O itself: pages and clocks come through struct sampler_io, so that a test can script
 * a whole life of an engine. Scrapes never queue: a round ends before the next is due, an engine
 * that answers slowly is asked less often, and the period in force is published.
 */
#ifndef TURNWARD_AGENT_SAMPLER_H
#define TURNWARD_AGENT_SAMPLER_H

#include <stdint.h>

#include "agent/engine.h"
#include "agent/speeds.h"
#include "agent/watch.h"

enum { SAMPLER_USES_MAX = 6, SAMPLER_NOTE_MAX = 160 };

struct sampler_answer {
	int status;
	const char *body; /* valid until the next fetch */
	size_t len;
	uint64_t start_id;
};

struct sampler_io {
	void *ctx;
	/* GET. 0; -ECONNREFUSED, -ENOENT: nobody listens; -ETIMEDOUT; -EINTR: stop; else -errno. */
	int (*fetch)(void *ctx, const char *path, uint64_t timeout_ns,
		     struct sampler_answer *ret_answer);
	uint64_t (*now_ns)(void *ctx);  /* monotonic */
	uint64_t (*wall_ns)(void *ctx); /* since 1970 */
};

struct sampler_params {
	enum engine_kind kind; /* ENGINE_KIND_UNKNOWN = find out */
	uint64_t period_ns;    /* 0 = the kind's own */
	uint64_t stall_ns;
};

/* How often something is asked for: doubles while answers are slow, halves back when they are not.
 */
struct pace {
	uint64_t base_ns, now_ns, max_ns;
	unsigned fast;
};

/* One row of the kind's table at work. */
struct source_work {
	struct pace pace;
	uint64_t due_ns;
	int sick;  /* a vital source answered with an error, and not well since */
	int works; /* the last answer was good */
	int has_layer;
	struct engine_reading layer; /* what it said last */
};

struct sampler {
	struct sampler_params params;
	struct sampler_io io;
	const struct engine_ops *ops; /* NULL = not known yet */
	uint64_t recognise_ns;        /* engine_other: when to look again what it is */
	struct source_work work[SAMPLER_USES_MAX];
	struct pace pace; /* of rounds */
	unsigned failed_in_row;

	struct watch watch;
	struct speeds speeds;
	struct engine_state
		inherited; /* a predecessor's measured speeds, until there are own ones */
	uint64_t snapshot_wall_ns, refresh_ns; /* SGLang's own publishing interval, as seen */

	struct engine_reading reading; /* all layers together */
	struct engine_state state;     /* what to publish */
	struct engine_info info;
	char note[SAMPLER_NOTE_MAX]; /* why the last round failed, "" when it did not */
};

void sampler_init(struct sampler *sampler, const struct sampler_params *params,
		  const struct sampler_io *io);

/* A predecessor's last words, as the region still holds them. */
void sampler_inherit(struct sampler *sampler, const struct engine_state *state);

/*
 * One round: asks for what is due, updates state, info and note. Returns 0 with the time of the
 * next round in ret_due_ns; -EINTR when the fetch was stopped: then nothing changed.
 */
int sampler_round(struct sampler *sampler, uint64_t *ret_due_ns);

#endif
