/* What the laboratory's parts share while one arm is played: the world, and the router in it. */
#ifndef TURNWARD_BENCH_REPLAY_SIM_H
#define TURNWARD_BENCH_REPLAY_SIM_H

#include <assert.h>

#include "agent/speeds.h"
#include "bench/follow.h"
#include "bench/replay.h"
#include "bench/replay_detail.h"
#include "router/ledger/ledger.h"
#include "router/limits.h"
#include "router/prefix/prefix.h"
#include "router/session/session.h"
#include "router/stats/window.h"
#include "router/view/view.h"
#include "shm/state.h"

/* The virtual clock does not start at 0, which stands for "never" in many places. */
#define SIM_BEGIN_NS 1000000000000ull

enum {
	SIM_BLOCK = 128,     /* tokens of a content block */
	SIM_TOKEN_BYTES = 4, /* so that it has as many bytes as the router's */
	SIM_PEER_WINDOW_S = 180,
};
static_assert(SIM_BLOCK * SIM_TOKEN_BYTES == LIMIT_CONTENT_BLOCK_BYTES, "the index's grain");

/* In the order in which they happen when they fall on the same moment. */
enum event_kind {
	EVENT_STEP,
	EVENT_FAULT,  /* index: enum fault, of replay_faults.c */
	EVENT_RESUME, /* an engine that stood still or was away goes on */
	EVENT_SAMPLE,
	EVENT_SUBMIT,
	EVENT_PIECE,   /* of a staged request: it reaches the engine */
	EVENT_GRACE,   /* of a staged request: a pause between pieces is over */
	EVENT_REQUEUE, /* of an engine: its cold request may have to give way, or come back */
	EVENT_TICK,    /* a look for engines that hang */
	EVENT_RELEASE, /* a request that was held after its decision */
	EVENT_ARRIVE,
};

#define SIM_PIECE (1ull << 32) /* in the tag of a piece, beside its request's index */

struct event {
	uint64_t at_ns;
	enum event_kind kind;
	uint32_t index; /* engine, or turn of the workload */
};

struct sim_engine {
	struct model *model;
	uint64_t stalled_ns, stalled_until_ns, down_until_ns, restarts; /* replay_faults.c */
	uint64_t step_begin_ns, step_end_ns; /* MODEL_NEVER = none runs */
	uint64_t step_lasts_ns;              /* as the step model has it: no stall in it */
	uint64_t computed_tokens;            /* by the step's begin */
	struct model_figures shown;          /* what its own metrics say: of the last step's end */
	struct engine_state state;           /* the agent's record */
	struct model_figures sampled;        /* all of its figures, truly, when it was sampled, */
	double sampled_pending_tokens;       /* and what it had to prefill then */
	struct engine_reading totals;        /* as its metrics count them, for its agent */
	struct speeds speeds;                /* that the agent makes of them */
	struct window ttft;
	struct view_calibration calibration;
};

struct sim_request {
	struct ledger_ticket ticket;
	uint64_t *chain; /* of its content blocks, until its end */
	uint32_t chain_nr;
	uint32_t *answer; /* the model borrows it */
	uint32_t pulled_tokens;
	uint32_t expected_tokens; /* to be found cached */
	double pull_s, predicted_raw_s, prefill_s;
	struct session before; /* its session as it was when this was sent, */
	int stayed;            /* and 1 if it goes on there, at home */
	uint64_t submit_ns;    /* when its next part reaches the engine; 0 = none is on its way */
	struct policy_choice *held; /* decided and held, not yet committed */
	uint64_t held_tokens;       /* uncached, as the ledger counts it */
	uint64_t draw[2];           /* the decision's, for its re-check */
};

/* What was sent, in order, for peers' windows. */
struct sim_sent {
	uint64_t at_ns;
	double prefill_s;
	uint32_t engine;
};

struct sim {
	const struct replay_arm *arm;
	const struct workload *workload;
	struct replay_run *run;
	struct detail_watch *watch;     /* looks on, if not NULL */
	const struct follow *follow;    /* the live run that is followed; NULL = none is */
	struct follow_verdict *verdict; /* of it, one a turn */
	uint64_t now_ns;
	struct event *event;
	size_t events, events_room;
	size_t due, left; /* events that lead on; requests not yet answered */
	unsigned engines;
	struct sim_engine engine[STATE_ENGINES_MAX];
	struct session *session;     /* as the router's table has them */
	struct sim_request *request; /* a turn each */
	uint32_t *ids;               /* of the prompt at hand */
	uint32_t ids_of, ids_are;
	struct ledger_params ledger_params;
	struct prefix_index prefix;
	void *prefix_memory;
	uint64_t random, cursor;
	struct view_budget moves;
	struct view_answers answers;
	struct sim_sent *sent;
	size_t sents, sents_old, sents_room;
	uint32_t faults[2]; /* so far, of each kind */
	double window_prefill_s[STATE_ENGINES_MAX];
	struct policy_choice choice;
	int waits;                                /* what sim_decide() chose cannot be sent yet */
	struct sim_stage *stage;                  /* replay_stage.h */
	struct model *scratch[STATE_ENGINES_MAX]; /* engines' copies, to be run ahead */
	struct ledger ledger;
};

static inline struct view sim_view(const struct sim *s)
{
	return (struct view){ .ledger = &s->ledger,
			      .ledger_params = &s->ledger_params,
			      .params = &s->arm->params,
			      .rules = &s->arm->rules,
			      .now_ns = s->now_ns };
}

static inline uint64_t sim_ns(double seconds)
{
	return (uint64_t)(seconds * 1e9 + 0.5);
}

/* For who looks on, if anybody does: a piece of a staged prompt leaves, an engine is away. */
static inline void sim_note_piece(struct sim *s, uint32_t index, unsigned engine, uint32_t tokens)
{
	detail_watch_piece(s->watch, s->now_ns, index, engine, tokens);
}

static inline void sim_note_outage(struct sim *s, enum detail_outage kind, unsigned engine,
				   uint64_t until_ns)
{
	detail_watch_outage(s->watch, kind, engine, s->now_ns, until_ns);
}

/* replay_sim.c: what others may do to the world. */
int sim_push(struct sim *s, uint64_t at_ns, enum event_kind kind, uint32_t index);
void sim_prompt(struct sim *s, uint32_t index); /* makes it the prompt at hand */
int sim_submit(struct sim *s, uint32_t index);  /* the request's own bytes reach its engine */
int sim_kick(struct sim *s, unsigned engine);   /* something was submitted to it */
/* A part of the request, piece or itself, reaches its engine after so long. */
int sim_push_part(struct sim *s, enum event_kind kind, uint32_t index, double after_s);

/* replay_faults.c */
int sim_faults_begin(struct sim *s);
int sim_fault(struct sim *s, uint32_t fault);
int sim_resting(const struct sim *s, const struct sim_engine *e); /* it begins no step */
uint64_t sim_back_ns(const struct sim *s);      /* when the first that is away is back */
int sim_resend(struct sim *s, uint32_t index);  /* lost with its engine: its client asks again */
int sim_nowhere(struct sim *s, uint32_t index); /* -E2BIG: no engine will ever take it */

/* replay_view.c: what the router knows, and its decision; s->waits: it is none yet. */
int sim_decide(struct sim *s, uint32_t index);
/* Decides and holds; the next sim_decide() of the request is the re-check. */
int sim_hold(struct sim *s, uint32_t index);
/* The engine's own metrics count a prefill, a request's or a piece's. */
void sim_view_computed(struct sim *s, unsigned engine, const struct model_life *life);
void sim_view_sample(struct sim *s, unsigned engine);
void sim_view_lost(struct sim *s, unsigned engine); /* the router sees it away */
/* A step is over; `later`: tokens that it gave to answers already begun. */
void sim_view_step(struct sim *s, struct sim_engine *e, uint64_t later);
void sim_view_first_token(struct sim *s, struct sim_engine *e, const struct sim_request *r,
			  double ttft_s, uint32_t cached_tokens);
void sim_view_finished(struct sim *s, const struct workload_turn *turn, const struct sim_request *r,
		       const struct model_event *event);

/* follow_play.c: notes the choice just made, and puts the live run's in its place. */
struct sim_beside {
	const struct follow *follow;
	struct follow_verdict *verdict;
};
void sim_follow(struct sim *s, uint32_t index, const struct policy_request *request,
		const struct policy_engine *engines);
/* replay_sim.c: as replay_play(), beside a live run. */
int replay_play_beside(struct replay_run *ret_run, const struct replay_arm *arm,
		       const struct workload *workload, uint64_t seed,
		       const struct sim_beside *beside);

/* replay_oracle.c: engines run ahead from now. The prompt at hand must be that of `index`. */
int sim_oracle(struct sim *s, uint32_t index, int home, int *ret_engine); /* -1: none can */
int sim_ahead_ttft(struct sim *s, uint32_t index, unsigned engine, double *ret_s);
/* Notes what the decision just made is measured by: call before anything is sent. */
int sim_measure(struct sim *s, uint32_t index);

#endif
