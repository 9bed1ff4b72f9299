/* What the parts of the policy share while one decision is being made. */
#ifndef TURNWARD_ROUTER_POLICY_INTERNAL_H
#define TURNWARD_ROUTER_POLICY_INTERNAL_H

#include "router/policy/policy.h"

/* What several terms of an engine's cost are made of, reckoned once. */
struct engine_terms {
	double token_s;     /* of prefill */
	double iteration_s; /* of decode */
	double uncached;    /* tokens of this prompt */
	double ahead;       /* tokens of others before it */
	double decoding;
	double step_tokens; /* budget of its steps */
};

/* Parameters as numbers that sums can bear, and what follows from them and the request alone. */
struct cost_rates {
	double throughput, decode_iteration_s, attention_s, context;
	double output_tokens; /* of this request */
	double calibration_most, calibration_least, stale_penalty;
};

struct decision {
	const struct policy_params *params;
	const struct policy_request *request;
	const struct policy_engine *engines; /* every real value is sane() */
	unsigned nr;
	int32_t home;        /* request's, -1 when it is not an index here */
	uint64_t candidates; /* a bit per engine */
	int last_resort;     /* no sound engine was left */
	struct policy_choice *choice;
	struct cost_rates rates;
	struct engine_terms terms[STATE_ENGINES_MAX]; /* of [0, nr) */
	struct policy_engine clean[STATE_ENGINES_MAX];
};

static inline int is_candidate(const struct decision *d, int32_t i)
{
	return i >= 0 && (d->candidates >> i & 1);
}

/* An input as a number that sums can bear: not NaN, not negative, not infinite. */
static inline double sane(double value)
{
	return value > 0 && value < 1e15 ? value : 0;
}

static inline double greater(double a, double b)
{
	return a > b ? a : b;
}

static inline double lesser(double a, double b)
{
	return a < b ? a : b;
}

static inline double weight_of(const struct policy_engine *engine)
{
	double weight = sane(engine->weight);

	return weight > 0 ? weight
			  : 1; /* weightless engines are left out before, or all there is */
}

/* Requests per weight: the load that the policies without costs compare. */
static inline double load_of(const struct policy_engine *engine)
{
	return sane(engine->num_requests) / weight_of(engine);
}

/* cost.c */
double policy_cost_queue_s(const struct decision *d, unsigned i);
/* Fills engines and terms[] from the engines given. */
void policy_cost_begin(struct decision *d, const struct policy_engine *engines);
/* Fills cost[] of every engine for the policy in force, gate of v3 included. */
void policy_cost_all(struct decision *d);
/* First token on engine i by the step model alone. */
double policy_cost_predict_raw_s(const struct decision *d, unsigned i);
double policy_cost_band_s(const struct policy_params *params, double cost_s);
/* Median of at most STATE_ENGINES_MAX values, no NaN among them; 0 for none. */
double policy_cost_median(const double *values, unsigned nr);

/* migrate.c: decides between home and the cheapest engine; writes engine, reason and the move. */
void policy_migrate(struct decision *d, int32_t cheapest);

/* policy.c: the cheapest in `mask`: home within the band, else a draw; *ret_drawn when drawn. */
int32_t policy_pick_cheapest(const struct decision *d, uint64_t mask, int *ret_drawn);

#endif
