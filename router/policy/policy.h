/*
 * Which engine answers first: the decision, as a pure function of what was known.
 *
 * No clock, no globals, no allocation, no I/O: ages, random draws, cursors, cool-downs and budgets
 * are inputs. The inputs are what the journal records, word for word; `explain` and replay feed
 * them back and get the same bytes out. All formulas stand in README.md.
 */
#ifndef TURNWARD_ROUTER_POLICY_POLICY_H
#define TURNWARD_ROUTER_POLICY_POLICY_H

#include "router/policy/params.h"
#include "shm/state.h"

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

/* Request flags. */
enum {
	POLICY_STREAMED = 1 << 0,    /* its first token will be seen */
	POLICY_STAGEABLE = 1 << 1,   /* its body can be cut into pieces */
	POLICY_ESTIMATED = 1 << 2,   /* prompt_tokens is an estimate without an exact base */
	POLICY_NO_MIGRATION = 1 << 3 /* bound to its home: a response id, a file id */
};

/* Classes by input length and hit. X(ID, name, meaning) */
#define POLICY_CLASSES(X)                                                      \
	X(WARM, "WARM", "short, and little of it uncached at the best engine") \
	X(MEDIUM, "MEDIUM", "short, with more to compute")                     \
	X(HEAVY, "HEAVY", "a prompt of heavy_threshold tokens or more")
#define POLICY_CLASS_ENUM(id, name, meaning) CLASS_##id,
enum policy_class { POLICY_CLASSES(POLICY_CLASS_ENUM) POLICY_CLASSES_NR };
#undef POLICY_CLASS_ENUM

struct policy_request {
	uint64_t random[2];        /* two draws, uniform */
	uint64_t cursor;           /* of round-robin; the choice says where it stands next */
	uint32_t flags;            /* POLICY_STREAMED ... */
	int32_t home;              /* index into the engines given, -1 = none */
	uint32_t prompt_tokens;    /* whole input */
	uint32_t output_tokens;    /* expected, 0 = unknown */
	uint32_t sequences;        /* n: answers decoded side by side, 0 counts as 1 */
	uint32_t turn;             /* 1 = first */
	uint32_t moves;            /* of this session in its last 5 turns */
	uint32_t turns_since_move; /* turns decided after it; 0 = the last one moved, or none did */
	float since_move_s;        /* < 0 = never moved */
	float move_budget;         /* moves that the pool may still make now; < 0 = unlimited */
};
static_assert(sizeof(struct policy_request) == 64, "one line of a record");

/* Engine flags. Only the first three, set so, make a candidate. */
enum {
	POLICY_SERVES = 1 << 0,   /* has the model */
	POLICY_ALIVE = 1 << 1,    /* answers, by probe or traffic */
	POLICY_DRAINED = 1 << 2,  /* operator: nothing new */
	POLICY_EXCLUDED = 1 << 3, /* this request has already failed there */
	POLICY_STALLED = 1 << 4,  /* requests run and nothing moves: only if nothing else is left */
	POLICY_MEASURED_PREFILL = 1 << 5, /* prefill_tokens_per_s is the engine's own, and fresh */
	POLICY_MEASURED_DECODE = 1 << 6,  /* likewise decode_iteration_s */
	POLICY_PENDING_S = 1 << 7,        /* pending_prefill_s is known (quadratic) */
	POLICY_STEP_REST = 1 << 8,        /* step_rest_s is known */
	POLICY_PULLS = 1 << 9,            /* can pull a prefix from others */
	POLICY_SOURCE = 1 << 10,          /* others can pull from it */
	POLICY_PROBE = 1 << 11, /* has claimed foreign work for long: a short request may look */
};

/* How far an engine's record can be believed. */
#define POLICY_STALENESS(X)                                    \
	X(FRESH, "fresh", "within two periods: as is")         \
	X(AGED, "aged", "own books plus a penalty that grows") \
	X(UNKNOWN, "unknown", "own books, and no better than the median of the known engines")
#define POLICY_STALENESS_ENUM(id, name, meaning) STALENESS_##id,
enum policy_staleness { POLICY_STALENESS(POLICY_STALENESS_ENUM) POLICY_STALENESS_NR };
#undef POLICY_STALENESS_ENUM

/*
 * One engine at the moment of the decision. Four-byte words in two lines, so that eight engines are
 * cheap to record. A value that is not known is 0 where no flag says otherwise.
 */
struct policy_engine {
	uint32_t id;    /* stable and unique among the engines given; ties are drawn by it */
	uint32_t flags; /* POLICY_SERVES ... */
	uint32_t staleness;
	float weight;                 /* 1 = normal; 0 = only if nothing else is left */
	float num_requests;           /* in the engine: own and foreign, running and waiting */
	float decoding;               /* sequences past their first token */
	float decode_context_tokens;  /* contexts of these */
	float pending_prefill_tokens; /* uncached, not yet computed, running prefills' rest included
				       */
	float pending_prefill_s;      /* the same in seconds, with POLICY_PENDING_S */
	float staged_rest_tokens;   /* of cold prompts staged on it or held for it, not in it yet */
	float step_rest_s;          /* of the step under way, with POLICY_STEP_REST */
	float prefill_tokens_per_s; /* in force with POLICY_MEASURED_PREFILL, else the parameter is
				     */
	float prefill_context_tokens; /* mean prompt + hit where that was measured, 0 = unknown */
	float decode_iteration_s; /* in force with POLICY_MEASURED_DECODE, else the parameter is */
	uint32_t hit_tokens;      /* of this prompt, in its prefix cache */
	uint32_t step_budget_tokens; /* 0 = unknown: 8192 */
	uint32_t kv_used_tokens;     /* by live requests, own ones that wait for room included */
	uint32_t kv_capacity_tokens; /* 0 = unknown: never full */
	uint32_t max_model_len;      /* 0 = unknown */
	float age_s;                 /* of its record; 0 when there is none */
	float fresh_s;               /* age up to which the record is believed */
	float penalty_s;             /* the caller's: back-off after refusals, slow start */
	float calibration;           /* EWMA of measured / predicted_raw_s, 0 = none yet */
	float recent_ttft_s;         /* quantile of the window, requests still waiting included */
	uint32_t recent_ttft_n;
	float oldest_wait_s;      /* for a first token, streamed requests only */
	float requeueable_tokens; /* of pending: rest of cold prompts that give way to short
				     requests */
	uint32_t reserved[5];     /* 0 */
};
static_assert(sizeof(struct policy_engine) == 128, "two lines of a record");
static_assert(offsetof(struct policy_engine, reserved) == 108, "record layout 1");

/* The cost of one engine, every term apart; all in seconds. total_s decides. */
#define POLICY_TERMS(X)                                                                            \
	X(step_s, "rest of the running step")                                                      \
	X(decode_s, "decode contention: num_requests x decode_iteration_s, or v3's decode tokens") \
	X(queue_s, "prefill ahead")                                                                \
	X(staged_s, "staged and held cold prompts ahead, for a long request")                      \
	X(prefill_s, "own prefill, or pull and the rest of it")                                    \
	X(passes_s, "decode passes between the chunks")                                            \
	X(harm_s, "what own prefill costs the sequences decoding there")                           \
	X(kv_wait_s, "wait for KV room")                                                           \
	X(unknown_s, "raised to the median of the known engines (or lowered, for a probe)")        \
	X(penalty_s, "age of the record and the caller's penalties")                               \
	X(discount_s, "forgiven to a move, subtracted")

struct policy_cost {
#define POLICY_TERM_MEMBER(name, meaning) double name;
	POLICY_TERMS(POLICY_TERM_MEMBER)
#undef POLICY_TERM_MEMBER
	double factor; /* calibration / weight: multiplies the terms from step_s to kv_wait_s */
	double total_s;
	uint32_t left_out; /* enum policy_left_out: why it is no candidate, 0 = it is one */
	uint32_t uncached_tokens;
	int32_t pull_from; /* engine to pull the prefix from, -1 = compute it */
	uint32_t pull_tokens;
};

/* Why an engine was no candidate. */
#define POLICY_LEFT_OUT(X)                                             \
	X(CANDIDATE, "candidate", "was considered")                    \
	X(MODEL, "model", "does not serve the model")                  \
	X(DOWN, "down", "does not answer")                             \
	X(DRAINED, "drained", "is drained")                            \
	X(EXCLUDED, "excluded", "has already failed this request")     \
	X(WEIGHTLESS, "weightless", "has weight 0")                    \
	X(STALLED, "stalled", "runs requests and nothing moves")       \
	X(TOO_LONG, "too-long", "cannot hold a prompt of this length") \
	X(OVERLOADED, "overloaded", "is above overload_factor x the mean (v3)")
#define POLICY_LEFT_OUT_ENUM(id, name, meaning) LEFT_OUT_##id,
enum policy_left_out { POLICY_LEFT_OUT(POLICY_LEFT_OUT_ENUM) POLICY_LEFT_OUT_NR };
#undef POLICY_LEFT_OUT_ENUM

/* Why the chosen engine. The text completes "<engine>: ...". X(ID, name, text) */
#define POLICY_REASONS(X)                                                                         \
	X(NONE, "none", "no engine may take it")                                                  \
	X(ONLY, "only", "the only engine that may take it")                                       \
	X(LAST_RESORT, "last-resort", "no sound engine is left")                                  \
	X(CHEAPEST, "cheapest", "its first token comes earliest there")                           \
	X(DRAWN, "drawn", "costs are equal, drawn at random")                                     \
	X(HOME, "home", "the session's home, and cheapest")                                       \
	X(STAYED, "stayed", "the session's home: leaving it would not pay")                       \
	X(MOVED, "moved", "leaving home pays: the saved wait exceeds the extra prefill")          \
	X(FORCED, "forced", "home is busy: moved by the rule before the cost model")              \
	X(HOME_LOST, "home-lost", "home cannot take it, and this engine is cheapest of the rest") \
	X(ROTATION, "rotation", "next in turn")                                                   \
	X(FEWEST, "fewest", "fewest requests")                                                    \
	X(TWO, "two", "fewer requests of two drawn")                                              \
	X(BOUND, "bound", "bound to the engine that holds its state")
#define POLICY_REASON_ENUM(id, name, text) REASON_##id,
enum policy_reason { POLICY_REASONS(POLICY_REASON_ENUM) POLICY_REASONS_NR };
#undef POLICY_REASON_ENUM

/* What became of the move that was considered. */
#define POLICY_MOVES(X)                                                                     \
	X(NONE, "none", "no move was considered")                                           \
	X(MADE, "made", "the session moves")                                                \
	X(PRICE, "price", "the saved wait does not exceed the extra prefill by the margin") \
	X(COOLDOWN, "cool-down", "the session moved too recently")                          \
	X(BUDGET, "budget", "the session or the pool has moved enough")                     \
	X(TARGET, "target", "no engine has that many fewer requests")                       \
	X(LIGHT, "light", "not HEAVY")                                                      \
	X(COLD, "cold", "home holds too little of it")
#define POLICY_MOVE_ENUM(id, name, meaning) MOVE_##id,
enum policy_move { POLICY_MOVES(POLICY_MOVE_ENUM) POLICY_MOVES_NR };
#undef POLICY_MOVE_ENUM

struct policy_choice {
	int32_t engine;   /* index into the engines given, -1 = none */
	uint32_t reason;  /* enum policy_reason */
	uint32_t class;   /* enum policy_class */
	uint32_t trigger; /* enum migration_trigger that nominated home, TRIGGER_NONE = none did */
	uint32_t move;    /* enum policy_move */
	int32_t target;   /* of the move considered, -1 = none */
	uint32_t candidates;     /* engines that were considered */
	int32_t runner_up;       /* next cheapest candidate, -1 = none or the policy has no costs */
	uint64_t cursor;         /* to be given back with the next request */
	double gain_s;           /* of that move: what it saves, after its extra prefill */
	double margin_s;         /* what it had to gain */
	double extra_prefill_s;  /* what it computes again */
	double predicted_raw_s;  /* first token on the chosen engine by the step model alone:
				    calibration  learns from measured / this */
	double predicted_ttft_s; /* the same times the engine's ratio where that is out of its
				    band: what to announce */
	struct policy_cost cost[STATE_ENGINES_MAX]; /* only [0, engines_nr) is written */
};

/*
 * Chooses among engines[0, engines_nr), engines_nr <= STATE_ENGINES_MAX. Always writes the head of
 * ret_choice and cost[0, engines_nr), padding included, so that equal inputs give equal bytes.
 */
void policy_choose(const struct policy_params *params, const struct policy_request *request,
		   const struct policy_engine *engines, unsigned engines_nr,
		   struct policy_choice *ret_choice);

/*
 * The re-check at commit: engines' numbers have moved on since `before` was chosen (other requests
 * were dispatched, the target is already charged). Keeps before's engine while it is still a
 * candidate and its cost within the tie band of the fresh choice's (policies without costs: while
 * it is a candidate); a move that no longer pays goes home. Returns 1 if the engine changed, 0 if
 * not; ret_choice is fresh either way. Same indices as before; `before` may be ret_choice.
 */
int policy_reprice(const struct policy_params *params, const struct policy_request *request,
		   const struct policy_engine *engines, unsigned engines_nr,
		   const struct policy_choice *before, struct policy_choice *ret_choice);

/* Bytes of a choice that policy_choose wrote. */
static inline size_t policy_choice_size(unsigned engines_nr)
{
	return offsetof(struct policy_choice, cost) + engines_nr * sizeof(struct policy_cost);
}

/* Seconds to prefill `uncached` of `prompt` tokens on this engine: a u + b (L^2 - h^2). */
double policy_prefill_s(const struct policy_params *params, const struct policy_engine *engine,
			double prompt_tokens, double uncached_tokens);

/* Names; NULL for a number out of range. */
const char *policy_name(unsigned policy);
const char *policy_meaning(unsigned policy);
const char *policy_reason_name(unsigned reason);
const char *policy_reason_text(unsigned reason);
const char *policy_class_name(unsigned class_);
const char *policy_move_name(unsigned move);
const char *policy_move_meaning(unsigned move);
const char *policy_trigger_name(unsigned trigger);
const char *policy_left_out_name(unsigned left_out);
const char *policy_left_out_meaning(unsigned left_out);
const char *policy_staleness_name(unsigned staleness);

/* The policy of that name, or -1. */
int policy_parse(const char *name);

/*
 * One sentence of why into buffer (zero-terminated, cut to size). names[i] names engine i. Returns
 * the length written, without the zero.
 */
size_t policy_explain(const struct policy_params *params, const struct policy_request *request,
		      const struct policy_choice *choice, unsigned engines_nr,
		      const char *const *names, char *buffer, size_t size);

#endif
