/*
 * What is known, as a decision sees it: records, books, hits, homes, budgets and calibration become
 * the policy's inputs here, and what comes back is noted here.
 *
 * The router and the laboratory both call it, so that a rule is written once. Pure: no clock, no
 * I/O, no allocation; the caller owns every struct and brings the time.
 */
#ifndef TURNWARD_ROUTER_VIEW_VIEW_H
#define TURNWARD_ROUTER_VIEW_VIEW_H

#include "router/ledger/ledger.h"
#include "router/policy/policy.h"
#include "router/session/session.h"
#include "router/view/rules.h"

#include <stdint.h>

enum {
	VIEW_OUTPUT_TOKENS_MAX = 1 << 20, /* that a client's max_tokens is believed for */
	VIEW_HOME_SLACK_TOKENS = 512,     /* what whole blocks leave out of a short prompt */
};

/* Measured over predicted first tokens of one engine; all-zero has seen none. Lies in the region.
 */
struct view_calibration {
	double ratio;       /* geometric EWMA, 0 = none yet */
	uint64_t learnt_ns; /* of its last sample */
};

/* Moves that the pool may make; all-zero is empty, and full again after burst / rate seconds. */
struct view_budget {
	double moves; /* never below 0, which would mean that there is no limit */
	uint64_t since_ns;
};

/* What all inputs of one moment share. */
struct view {
	const struct ledger *ledger;
	const struct ledger_params *ledger_params;
	const struct policy_params *params;
	const struct view_rules *rules;
	uint64_t now_ns;
};

/* A prompt whose hits are asked for. */
struct view_prompt {
	const uint64_t *chain; /* hashes of its content blocks; may be NULL when there are none */
	uint32_t chain_nr;
	uint32_t prompt_tokens;
	uint64_t content_bytes;
	uint64_t bound_tokens;         /* that a stored response stands for, 0 = it names none */
	const struct session *session; /* NULL = not known */
	int home;                      /* index into the engines, -1 = none */
	double answer_lost; /* share of an answer that home is not seen to hold for the next turn */
};

/* What only the caller knows of a request. */
struct view_request {
	uint64_t random[2], cursor;
	uint32_t flags; /* POLICY_STREAMED ... */
	int home;
	uint32_t prompt_tokens, turn, sequences;
	uint64_t max_tokens;           /* that the client allows, 0 = does not say */
	const struct session *session; /* NULL = not known */
};

/* What only the caller knows of an engine. */
struct view_engine {
	uint32_t index; /* in the ledger */
	uint32_t id;    /* stable: ties are drawn by it */
	uint32_t flags; /* POLICY_SERVES, ALIVE, DRAINED, EXCLUDED, PULLS, SOURCE */
	int attached;   /* `state` is an agent's, not merely zero */
	double weight;
	const struct engine_state *state; /* the agent's record */
	uint64_t kv_capacity;             /* configured, tokens; 0 = as its agent says */
	const struct view_calibration *calibration;
	double recent_ttft_s; /* ttft_quantile of its window */
	uint64_t recent_ttft_n;
	uint64_t oldest_wait_start_ns; /* that the probe sees, 0 = none: the books know theirs */
	uint32_t hit_tokens;
};

/* 1 if the prompt goes on where the session's last answered one ended: its counts may be built on.
 */
int view_goes_on(const struct session *session, const uint64_t *chain, uint32_t chain_nr);

/* What an engine is taken to hold of a prompt: the last token is always computed. */
uint32_t view_hit(double tokens, uint32_t prompt_tokens);

/* Hits in tokens by each engine, of its leading blocks in the prefix index; home knows better. */
void view_hits(const struct view_prompt *prompt, const uint32_t *blocks, unsigned engines_nr,
	       uint32_t *ret_hits);

/*
 * What of an answer the next turn does not find in the cache: thinking that clients leave out, text
 * that comes back otherwise than it went. All-zero: nothing is lost.
 */
struct view_answers {
	uint64_t model; /* the key that it is of */
	double lost;    /* EWMA, 0..1 */
	uint32_t seen;  /* a sample has come */
};

/* A turn that stayed at home found `cached_tokens`; `before` is the session as it was asked. */
void view_answers_learn(struct view_answers *answers, const struct session *before,
			uint64_t prompt_tokens, uint64_t cached_tokens);

/* The policy's inputs. view_engine_fill() is the two behind it, one after the other. */
void view_request_fill(const struct view *v, const struct view_request *request,
		       const struct view_budget *budget, struct policy_request *ret);
void view_engine_fill(const struct view *v, const struct view_engine *engine,
		      struct policy_engine *ret);
void view_engine_record(const struct view *v, const struct view_engine *engine,
			struct policy_engine *ret);
void view_engine_books(const struct view *v, const struct view_engine *engine,
		       struct policy_engine *p);

/* The choice leaves a home at turn >= 2 that it could have kept, by rule or by cost. */
int view_moves(const struct policy_request *request, const struct policy_choice *choice);

/* The ticket of what is sent to `engine`, the ledger's `index`. */
struct ledger_ticket view_ticket(const struct policy_params *params,
				 const struct policy_engine *engine, uint32_t index,
				 uint32_t sequences, uint32_t prompt_tokens,
				 uint32_t uncached_tokens);

void view_budget_refill(struct view_budget *budget, const struct view_rules *rules,
			uint64_t now_ns);
void view_budget_spend(struct view_budget *budget, const struct policy_choice *choice);

/* The ratio that acts now; 0 = none does. */
double view_calibration_in_force(const struct view_calibration *c, const struct view_rules *rules,
				 uint64_t now_ns);

/* A first token came ttft_s after the request was sent; 0 predicted = nothing to learn from. */
void view_calibration_learn(struct view_calibration *c, const struct view *v,
			    double predicted_raw_s, double ttft_s);

#endif
