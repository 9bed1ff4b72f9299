/*
 * Staging in the laboratory: the waiting room, pieces, requeue and rescue, driven by the router's
 * own machines (router/stage, router/admit) on the virtual clock, at honest prices.
 *
 * A lane is what one request needs for that beside its sim_request. Events of the engines come in
 * through the functions below; what they make due goes out as events of the clock.
 */
#ifndef TURNWARD_BENCH_REPLAY_STAGE_H
#define TURNWARD_BENCH_REPLAY_STAGE_H

#include "bench/replay_sim.h"
#include "router/admit/admit.h"
#include "router/stage/guard.h"
#include "router/stage/requeue.h"
#include "router/stage/rescue.h"
#include "router/stage/stage.h"

enum { STAGE_TICK_MS = 100 }; /* between looks for engines that hang */

struct sim_lane {
	struct admit_entry entry;
	struct stage stage;
	struct stage_next next; /* the part that is about to be sent */
	struct requeue_cold cold;
	struct requeue_pass pass;
	struct ledger_ticket piece;
	struct ledger_ticket left;   /* abandoned on a hanging engine, until that shows it gone */
	struct model_request *model; /* the part under way, NULL = none */
	struct policy_engine seen;   /* its engine, at the decision */
	struct model_figures before; /* of the engine when the piece was sent */
	uint64_t sent_ns;            /* of the part under way */
	uint64_t committed_ns;       /* decided for good: the prediction counts from here */
	uint64_t excluded;           /* engines, a bit each */
	double start_s;              /* predicted, from the decision until its prefill begins */
	uint32_t way;                /* enum stage_way */
	uint32_t slot;               /* 1: it takes its engine's cold slot */
	uint32_t staged_tokens;      /* in the ledger as staged */
	uint32_t looked_up;          /* its first part has been: the hit is known */
	uint32_t rescued;
	uint32_t sends; /* of the request itself */
};

struct sim_stage {
	struct sim_lane *lane; /* a turn each */
	struct admit_room room;
	void *room_memory;
	struct stage_guard guard;
	struct requeue requeue;
	struct {
		uint64_t alive_ns;   /* the last sign of life */
		uint64_t due_ns;     /* of the next look at its requeue, REQUEUE_NEVER */
		uint64_t expects_ns; /* rate of short requests, an EWMA: when it was last */
		double expects;      /* ... and how many it then was worth */
		uint64_t began_ns;   /* the last first token of a short request; 0 = none yet */
		uint32_t left;       /* tickets abandoned there */
		uint64_t lefts;      /* ever */
	} engine[STATE_ENGINES_MAX];
	uint64_t computed_tokens; /* by parts that ended */
	uint64_t aborts;          /* sends of requests that were taken back */
	int releasing;
};

/* Begin and end of a play. */
int stage_sim_new(struct sim *s);
void stage_sim_free(struct sim *s);
void stage_sim_check(const struct sim *s); /* nothing is lost, nothing left */

/* A request comes: decides, lets it wait, or sends it. */
int stage_sim_arrive(struct sim *s, uint32_t index);

/* Called by sim_decide(): what only staging knows of the engines; 1 = the choice has to wait. */
void stage_sim_fill(struct sim *s, uint32_t index, struct policy_engine *engines);
int stage_sim_waits(struct sim *s, uint32_t index, const struct policy_engine *engine);
void stage_sim_decided(struct sim *s, uint32_t index, const struct policy_engine *engine);

/* The request's own bytes have reached the engine. */
int stage_sim_submitted(struct sim *s, uint32_t index, struct model_request *model);

/* What engines and the clock say. */
void stage_sim_comes(struct sim *s, unsigned engine); /* something is about to be submitted */
int stage_sim_piece_due(struct sim *s, uint32_t index);
int stage_sim_grace(struct sim *s, uint32_t index); /* a pause between pieces is over */
int stage_sim_piece_done(struct sim *s, uint32_t index, const struct model_event *event);
int stage_sim_started(struct sim *s, uint32_t index, const struct model_event *event);
int stage_sim_first_token(struct sim *s, uint32_t index);
int stage_sim_finished(struct sim *s, uint32_t index, const struct model_event *event);
int stage_sim_step(struct sim *s, unsigned engine); /* one has ended, its events have been told */
int stage_sim_poll(struct sim *s, unsigned engine); /* its requeue: the time for it may have come */
int stage_sim_tick(struct sim *s);

/* replay_stage.c, for replay_requeue.c: sends what was decided; who waits is decided anew. */
int stage_sim_send(struct sim *s, uint32_t index, double after_s);
int stage_sim_release(struct sim *s);
/* Seconds from the decision to now: what its prediction is held against. */
double stage_sim_took_s(const struct sim *s, uint32_t index);
void stage_sim_drop_books(struct sim *s, uint32_t index);

/* replay_requeue.c */
int stage_sim_lose_all(struct sim *s, unsigned engine); /* what it had is gone, and sent again */
int requeue_sim_passes(struct sim *s, uint32_t index);  /* a request that is not cold was sent */
int requeue_sim_leaves(struct sim *s, uint32_t index);  /* first token */
int requeue_sim_running(struct sim *s, uint32_t index); /* a cold one has reached the engine */

static inline struct sim_lane *sim_lane(struct sim *s, uint32_t index)
{
	return &s->stage->lane[index];
}

#endif
