/*
 * The router's own books of what it has in each engine, and what they say together with the agent's
 * record: record + own dispatches the record cannot yet contain.
 *
 * Pure: the caller keeps one ticket per request it has sent and brings the time. Nothing is
 * allocated, every operation is O(1), reading an engine is O(log LEDGER_MARKS). Sums are never
 * reset by a sample and never negative; a ticket is counted from its dispatch to its end, however
 * long. Formulas stand in README.md.
 */
#ifndef TURNWARD_ROUTER_LEDGER_LEDGER_H
#define TURNWARD_ROUTER_LEDGER_LEDGER_H

#include "shm/state.h"

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

enum {
	LEDGER_MARKS = 256,               /* of an engine's recent past; a power of two */
	LEDGER_MARK_NS = 8 * 1000 * 1000, /* grain of it: 2 s when something happens all the time */
};

enum ledger_phase {
	LEDGER_FREE,     /* not in the books; a zeroed ticket is free */
	LEDGER_SENT,     /* dispatched, no first token yet */
	LEDGER_DECODING, /* past it */
};

enum ledger_end { LEDGER_COMPLETED, LEDGER_FAILED, LEDGER_ABORTED, LEDGER_ENDS_NR };

/* Ticket flags. */
enum {
	LEDGER_PIECE = 1 << 0,       /* load and nobody's request: a staged prefix, what was left */
	LEDGER_REQUEUEABLE = 1 << 1, /* a cold prompt that gives way to short requests (requeue) */
};

/* One request in one engine; lives in the caller's own entry for it and must not move meanwhile. */
struct ledger_ticket {
	struct ledger_ticket *older, *newer; /* those without a first token, by dispatch */
	uint64_t dispatch_ns;
	uint64_t epoch;   /* of the engine's books: a restart leaves the ticket behind */
	double prefill_s; /* estimated seconds of its prefill */
	uint32_t engine;
	uint32_t phase; /* enum ledger_phase */
	uint32_t flags;
	uint32_t sequences; /* decoded side by side, >= 1 */
	uint32_t prompt_tokens;
	uint32_t uncached_tokens;
	uint32_t output_tokens; /* produced so far, where it is known */
	uint32_t reserved;
};

/* Totals since the start: they only grow, so that any two moments can be subtracted. */
struct ledger_totals {
	uint64_t dispatched, ended;         /* requests */
	uint64_t uncached_in, uncached_out; /* tokens: dispatched; at first token or earlier end */
	uint64_t context_in, context_out;   /* tokens: at first token; at end */
};

/*
 * One engine's books. Owned by ledger.c; read through the functions below. In the order of use:
 * what a decision reads comes first, in few lines.
 */
struct ledger_engine {
	struct ledger_ticket *oldest; /* without a first token */
	uint64_t head_ns;             /* since when the engine can have worked on the oldest */
	uint64_t decoding, decode_context_tokens, uncached_tokens, requeueable_tokens;
	uint64_t sent_prompt_tokens; /* whole prompts of those without a first token */
	double prefill_s;
	double mean_uncached_tokens; /* EWMA over dispatches: what a foreign request is taken for */
	uint64_t staged_rest_tokens, held_tokens;
	uint64_t last_dispatch_ns;
	struct ledger_totals totals;
	/* what the agent's samples showed */
	uint64_t read_ns, progress_ns, foreign_since_ns, progress_sum;
	uint64_t engine_epoch; /* the agent's start id, 0 = not seen */
	int64_t admitted_base; /* admitted_total - own dispatches taken, while that is trusted */
	uint64_t drift_ns;     /* when it last rose: somebody else sends */
	uint32_t admitted_known;
	uint32_t marks; /* ever written */
	uint32_t taken_mark,
		left_mark; /* where the last record's moments led to, if they still do */
	/* what only events need */
	struct ledger_ticket *newest; /* without a first token */
	uint64_t epoch;               /* of these books, counted here */
	uint64_t sent, pieces, cold, held;
	uint64_t pieces_sent, pieces_ended; /* without a first token; ever */
	uint64_t by_end[LEDGER_ENDS_NR];    /* users' requests */
	/* Marks: totals as they were before anything that happened at or after that time (grain
	 * LEDGER_MARK_NS). */
	uint64_t mark_ns[LEDGER_MARKS];
	struct ledger_totals before[LEDGER_MARKS];
};

struct ledger {
	struct ledger_engine engine[STATE_ENGINES_MAX];
};

struct ledger_params {
	double admission_lag_s; /* 0.1: from dispatch to the engine's gauges, about one step */
	double unknown_periods; /* 20 */
	double unknown_s;       /* 2: beyond max of both a record is unknown */
	double fresh_periods;   /* 2 */
	double probe_after_s;   /* 10: foreign work without progress for this long */
	double probe_every_s;   /* 5: since our last dispatch to it */
	double settle_s;        /* 5: a dispatch older than this is admitted, or lost */
};

/* Plain sums, for the region's books, metrics and `status`. All zero when idle. */
struct ledger_sums {
	uint64_t requests;         /* in the engine, pieces too: waiting + past their first token */
	uint64_t waiting_requests; /* of these, dispatched and without first token */
	uint64_t user_requests, user_waiting_requests; /* the same without pieces */
	uint64_t waiting_tokens;                       /* uncached prompt tokens of these */
	double waiting_prefill_s;                      /* estimated seconds of these */
	uint64_t decoding;                             /* sequences past their first token */
	uint64_t decode_context_tokens;                /* contexts of these */
	uint64_t staged_rest_tokens, pieces, cold_prompts, held, held_tokens;
	uint64_t dispatched_total, finished_total; /* load: pieces too */
	uint64_t pieces_ended_total;
	uint64_t ends_total[LEDGER_ENDS_NR]; /* users' requests */
	uint64_t progress_ns; /* when an agent's sample last showed some, 0 = never */
	uint64_t oldest_ns;   /* dispatch of the oldest without a first token, 0 = none */
};

enum ledger_staleness { LEDGER_FRESH, LEDGER_AGED, LEDGER_UNKNOWN }; /* as the policy's */

/* What the policy needs, own books and agent's record together. */
struct ledger_view {
	uint32_t staleness; /* enum ledger_staleness */
	uint32_t probe; /* it has claimed foreign work for long without progress: let one look */
	double age_s;   /* of the record, 0 = never published */
	double fresh_s; /* bound of LEDGER_FRESH */
	double num_requests, decoding, decode_context_tokens;
	double pending_prefill_tokens;
	double pending_prefill_s;  /* < 0: unknown (the tokens are the agent's) */
	double booked_tokens;      /* KV room that our own want: prompts sent and contexts */
	double requeueable_tokens; /* of pending: rest of tickets marked so */
	double staged_rest_tokens; /* staged rest and held */
	double foreign_requests;   /* in it, not ours */
	double oldest_wait_s; /* of our own dispatches, pieces left out: nobody waits for these */
};

/* All books empty. */
void ledger_init(struct ledger *ledger);

/* The defaults named above. */
void ledger_params_init(struct ledger_params *ret_params);

/* For engines that run `speed` times faster than life: their times are divided by it. unknown_s
 * stays, which is about agents and their machine. */
void ledger_params_scale(struct ledger_params *params, double speed);

/*
 * The ticket's request is being sent: call before its first byte, in the same turn of the loop as
 * the decision. The ticket must be free; its engine, flags, sequences, prompt_tokens,
 * uncached_tokens and prefill_s are set by the caller, the rest is the ledger's from here on.
 */
void ledger_dispatch(struct ledger *ledger, struct ledger_ticket *ticket, uint64_t now_ns);

/* First token seen, or predicted where it cannot be seen. Once only; later calls do nothing. */
void ledger_first_token(struct ledger *ledger, struct ledger_ticket *ticket, uint64_t now_ns);

/* Exact counts became known (usage, tokenise): corrects what is in the books. */
void ledger_correct(struct ledger *ledger, struct ledger_ticket *ticket, uint32_t prompt_tokens,
		    uint32_t uncached_tokens, uint64_t now_ns);

/* The request is over on that engine, however; frees the ticket. A free ticket is left alone. */
void ledger_end(struct ledger *ledger, struct ledger_ticket *ticket, enum ledger_end how,
		uint64_t now_ns);

/*
 * The request was taken back from the engine, which may go on with it for a while: what it was
 * charged stands on under `left`, which was free, as load and nobody's request. Its own is free.
 */
void ledger_leave(struct ledger *ledger, struct ledger_ticket *ticket, struct ledger_ticket *left);

/*
 * What waits in the router for an engine, in changes: uncached tokens of staged prompts not yet
 * sent as pieces; cold prompts in progress (from the first piece or send to the first token);
 * requests held for it. A result below 0 is held at 0.
 */
void ledger_staged(struct ledger *ledger, unsigned engine, int64_t tokens);
void ledger_cold(struct ledger *ledger, unsigned engine, int prompts);
void ledger_held(struct ledger *ledger, unsigned engine, int requests, int64_t tokens);

/*
 * The engine has restarted: whatever it had is gone with its cache. Books start at zero; tickets of
 * before can still be ended and change nothing but the totals of ends. What waits in the router for
 * it (staged, cold, held) stays: its owners decide.
 */
void ledger_engine_restarted(struct ledger *ledger, unsigned engine, uint64_t now_ns);

/*
 * A sample was read: follows the epoch, trusted counters, progress and foreign work. Call when the
 * record's read_ns has changed (calling again does nothing). Returns 1 if the engine has restarted
 * (the books were emptied; its prefix index and homes are void), else 0.
 */
int ledger_observe(struct ledger *ledger, const struct ledger_params *params, unsigned engine,
		   const struct engine_state *agent, uint64_t now_ns);

/*
 * Asks for the lines of an engine's books that ledger_observe() and ledger_effective() will read,
 * each call for all engines before the next: the first; then, where the record has been observed,
 * the second, and where a new one is there, the third and, once it has been read, the fourth.
 */
void ledger_prefetch(const struct ledger *ledger, unsigned engine);
void ledger_prefetch_known(const struct ledger *ledger, unsigned engine);
void ledger_prefetch_recent(const struct ledger *ledger, unsigned engine);
void ledger_prefetch_past(struct ledger *ledger, const struct ledger_params *params,
			  unsigned engine, const struct engine_state *agent);

/*
 * The engine's effective numbers at now_ns. `agent` may be NULL or never published: own books
 * alone. `others` are the summed books of other workers on that engine, or NULL. `tokens_per_s` is
 * the throughput in force, by which an agent's backlog is aged.
 */
void ledger_effective(const struct ledger *ledger, const struct ledger_params *params,
		      unsigned engine, const struct engine_state *agent,
		      const struct ledger_sums *others, double tokens_per_s, uint64_t now_ns,
		      struct ledger_view *ret);

void ledger_books_get(const struct ledger *ledger, unsigned engine, struct ledger_sums *ret_sums);

#endif
