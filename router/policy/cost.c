/* What a request would cost on each engine, term by term, under each policy. */
#include "router/policy/internal.h"

#include <math.h>

enum { STEP_BUDGET_TOKENS = 8192 }; /* of an engine that does not tell */

/* sane() of four floats: the greatest that is less than 1e15 is the one nearest to it. */
static inline void clean_four(const float *from, float *to)
{
	typedef float four __attribute__((vector_size(16), aligned(4), may_alias));
	typedef int32_t mask __attribute__((vector_size(16)));
	four v = *(const four *)from;
	mask good = (v > 0) & (v <= 1e15f);

	*(four *)to = (four)((mask)v & good);
}

/* An engine whose real values are all sane(); they lie four by four, two counts among them. What
 * has just been stored is not loaded: a load that two stores make up would wait for both. */
static inline void clean(const struct policy_engine *engine, struct policy_engine *ret)
{
	*ret = *engine;
	clean_four(&engine->weight, &ret->weight);
	clean_four(&engine->pending_prefill_tokens, &ret->pending_prefill_tokens);
	clean_four(&engine->prefill_tokens_per_s, &ret->prefill_tokens_per_s);
	clean_four(&engine->age_s, &ret->age_s);
	clean_four(&engine->recent_ttft_s, &ret->recent_ttft_s);
	ret->hit_tokens = engine->hit_tokens;
	ret->recent_ttft_n = engine->recent_ttft_n;
}
#define FOURTH(first) (offsetof(struct policy_engine, first) + 3 * sizeof(float))
static_assert(FOURTH(weight) == offsetof(struct policy_engine, decode_context_tokens) &&
		      FOURTH(pending_prefill_tokens) ==
			      offsetof(struct policy_engine, step_rest_s) &&
		      FOURTH(prefill_tokens_per_s) == offsetof(struct policy_engine, hit_tokens) &&
		      FOURTH(age_s) == offsetof(struct policy_engine, calibration) &&
		      FOURTH(recent_ttft_s) == offsetof(struct policy_engine, requeueable_tokens),
	      "clean() leaves no real out");
#undef FOURTH

static double throughput_of(double standard, const struct policy_engine *engine)
{
	double measured = engine->prefill_tokens_per_s;

	return (engine->flags & POLICY_MEASURED_PREFILL) && measured > 0 ? measured : standard;
}

static double decode_iteration_s(const struct decision *d, const struct policy_engine *engine)
{
	double measured = engine->decode_iteration_s;

	return (engine->flags & POLICY_MEASURED_DECODE) && measured > 0
		       ? measured
		       : d->rates.decode_iteration_s;
}

/*
 * A measured throughput is a mean over the prompts that an engine happened to get: half as long,
 * they look half as fast again. Believed to the letter, that sends the next long prompt to the
 * engine that had short ones, whatever decodes there, and an engine left with the ends of long
 * conversations alone looks slow, gets nothing else and stays so. So engines near the median one
 * are taken to be equally fast, and only those beyond the band for what they measure.
 */
static void find_token_s(struct decision *d)
{
	double values[STATE_ENGINES_MAX];
	unsigned nr = 0;

	for (unsigned i = 0; i < d->nr; i++) {
		d->terms[i].token_s = 1 / throughput_of(d->rates.throughput, &d->engines[i]);
		if ((d->engines[i].flags & POLICY_MEASURED_PREFILL) &&
		    d->engines[i].prefill_tokens_per_s > 0)
			values[nr++] = d->terms[i].token_s;
	}
	double common = policy_cost_median(values, nr), band = 1 + sane(d->params->measured_band);

	for (unsigned i = 0; i < d->nr; i++) {
		double own = d->terms[i].token_s;

		d->terms[i].token_s = own <= common * band && own * band >= common ? common : own;
	}
}

/*
 * The quadratic part of a throughput's mean is taken out to get a, but a quarter of it always
 * stays, whatever the lengths are said to be.
 */
static double quadratic_s(double b, double context, double token_s, double prompt, double uncached)
{
	double a = greater(token_s - b * context, token_s / 4);

	uncached = lesser(uncached, prompt);
	double hit = prompt - uncached;

	return a * uncached + b * (prompt * prompt - hit * hit);
}

static double context_of(double standard, const struct policy_engine *engine)
{
	double measured = engine->prefill_context_tokens;

	return (engine->flags & POLICY_MEASURED_PREFILL) && measured > 0 ? measured : standard;
}

static double throughput_standard(const struct policy_params *params)
{
	return greater(1, sane(params->throughput));
}

double policy_prefill_s(const struct policy_params *params, const struct policy_engine *engine,
			double prompt_tokens, double uncached_tokens)
{
	struct policy_engine e;

	clean(engine, &e);
	return quadratic_s(sane(params->attention_s),
			   context_of(sane(params->throughput_context), &e),
			   1 / throughput_of(throughput_standard(params), &e), sane(prompt_tokens),
			   sane(uncached_tokens));
}

/*
 * Tokens ahead of this request: all that is pending, but of a cold prompt that will be requeued to
 * let a short request in only the step under way.
 */
static double tokens_ahead(const struct decision *d, unsigned i)
{
	double pending = d->engines[i].pending_prefill_tokens;
	double yields = lesser(pending, d->engines[i].requeueable_tokens) - d->terms[i].step_tokens;

	if (yields <= 0 || d->terms[i].uncached > d->params->long_tokens)
		return pending;
	return pending - yields;
}

static void find_rates(struct decision *d)
{
	const struct policy_params *params = d->params;
	double most = greater(1, sane(params->calibration_max));

	d->rates = (struct cost_rates){
		.throughput = throughput_standard(params),
		.decode_iteration_s = sane(params->decode_iteration_s),
		.attention_s = sane(params->attention_s),
		.context = sane(params->throughput_context),
		.output_tokens = d->request->output_tokens ? d->request->output_tokens
							   : sane(params->output_tokens),
		.calibration_most = most,
		.calibration_least = 1 / most,
		.stale_penalty = sane(params->stale_penalty),
	};
}

void policy_cost_begin(struct decision *d, const struct policy_engine *engines)
{
	double prompt = d->request->prompt_tokens;

	for (unsigned i = 0; i < d->nr; i++)
		clean(&engines[i], &d->clean[i]);
	d->engines = d->clean;
	find_rates(d);
	find_token_s(d);
	for (unsigned i = 0; i < d->nr; i++) {
		const struct policy_engine *engine = &d->engines[i];
		struct engine_terms *terms = &d->terms[i];

		terms->iteration_s = decode_iteration_s(d, engine);
		terms->uncached = greater(0, prompt - engine->hit_tokens);
		terms->decoding = engine->decoding;
		terms->step_tokens = engine->step_budget_tokens ? engine->step_budget_tokens
								: STEP_BUDGET_TOKENS;
		terms->ahead = tokens_ahead(d, i);
	}
}

/*
 * The same in seconds, by the quadratic figure where it is known. For predictions: in a cost the
 * tokens at the common speed choose better, since what is ahead delays this request alone, and own
 * prefill all who come after it.
 */
static double ahead_s(const struct decision *d, unsigned i)
{
	double pending = d->engines[i].pending_prefill_tokens;
	double all_s = policy_cost_queue_s(d, i);

	return pending > 0 ? all_s * (d->terms[i].ahead / pending) : all_s;
}

double policy_cost_queue_s(const struct decision *d, unsigned i)
{
	const struct policy_engine *engine = &d->engines[i];

	if (engine->flags & POLICY_PENDING_S)
		return engine->pending_prefill_s;
	return engine->pending_prefill_tokens * d->terms[i].token_s;
}

/* What is staged or held for an engine lets short requests through, and delays long ones. */
static double staged_s(const struct decision *d, unsigned i)
{
	const struct policy_engine *engine = &d->engines[i];

	if (d->terms[i].uncached <= d->params->long_tokens)
		return 0;
	return engine->staged_rest_tokens * d->terms[i].token_s;
}

/* The engine with the longest hit that others can pull from, if it has more than i; -1 = none. */
static int32_t pull_source(const struct decision *d, unsigned i)
{
	int32_t source = -1;
	uint32_t best = d->engines[i].hit_tokens;

	if (!(d->engines[i].flags & POLICY_PULLS) || d->params->kv_transfer == 0)
		return -1;
	for (unsigned k = 0; k < d->nr; k++) {
		const struct policy_engine *engine = &d->engines[k];
		const uint32_t able = POLICY_SOURCE | POLICY_ALIVE;

		if (k == i || (engine->flags & able) != able)
			continue;
		if (engine->hit_tokens > best || (source >= 0 && engine->hit_tokens == best &&
						  engine->id < d->engines[source].id)) {
			best = engine->hit_tokens;
			source = (int32_t)k;
		}
	}
	return source;
}

static double own_prefill_s(const struct decision *d, unsigned i, int eft, double uncached)
{
	if (eft)
		return quadratic_s(d->rates.attention_s,
				   context_of(d->rates.context, &d->engines[i]),
				   d->terms[i].token_s, d->request->prompt_tokens, uncached);
	return uncached * d->terms[i].token_s;
}

/* Own prefill: computed, or pulled from another engine and the rest computed, if that is less. */
static void price_prefill(const struct decision *d, unsigned i, int eft, struct policy_cost *cost)
{
	const struct policy_params *params = d->params;
	double uncached = d->terms[i].uncached;
	int32_t source = pull_source(d, i);

	cost->pull_from = -1;
	cost->uncached_tokens = (uint32_t)uncached;
	cost->prefill_s = own_prefill_s(d, i, eft, uncached);
	if (source < 0)
		return;

	double rest = d->terms[source].uncached, pulled = uncached - rest;
	double pull_s = sane(params->kv_transfer_setup_s) +
			pulled * sane(params->kv_bytes_per_token) /
				greater(1, sane(params->kv_transfer_bandwidth));
	double with_pull_s = pull_s + own_prefill_s(d, i, eft, rest);

	if (with_pull_s < cost->prefill_s) {
		cost->prefill_s = with_pull_s;
		cost->pull_from = source;
		cost->pull_tokens = (uint32_t)pulled;
		cost->uncached_tokens = (uint32_t)rest;
	}
}

/*
 * A prompt that does not fit beside what is booked waits for some of it to end. Answers end all the
 * time, each with its part of what the memory holds: all of it in one answer's time, for which the
 * session's own answers are the best guess.
 */
static double kv_wait_s(const struct decision *d, unsigned i)
{
	const struct policy_engine *engine = &d->engines[i];
	double capacity = engine->kv_capacity_tokens;
	double booked =
		greater(engine->kv_used_tokens, (double)engine->decode_context_tokens +
							(double)engine->pending_prefill_tokens);
	double missing = d->request->prompt_tokens - (capacity - booked);

	if (capacity == 0 || missing <= 0 || booked == 0)
		return 0;
	return d->rates.output_tokens * d->terms[i].iteration_s * missing /
	       lesser(booked, capacity);
}

/* One decode pass per chunk, of the work ahead and of our own. */
static double passes_s(const struct engine_terms *terms, double uncached)
{
	double tokens = terms->ahead + uncached;
	double chunks = (double)(int64_t)(tokens / terms->step_tokens);

	if (terms->decoding == 0)
		return 0;
	if (chunks * terms->step_tokens < tokens)
		chunks++;
	return chunks * terms->iteration_s;
}

static double step_rest_s(const struct decision *d, unsigned i)
{
	const struct policy_engine *engine = &d->engines[i];

	if (engine->flags & POLICY_STEP_REST)
		return engine->step_rest_s;
	if (d->terms[i].decoding == 0)
		return 0; /* a prefill step's rest is in the prefill ahead */
	return d->terms[i].iteration_s / 2;
}

static inline void price_eft(const struct decision *d, unsigned i, int eft,
			     struct policy_cost *cost)
{
	const struct engine_terms *terms = &d->terms[i];

	price_prefill(d, i, eft, cost);
	cost->step_s = step_rest_s(d, i);
	cost->queue_s = terms->ahead * terms->token_s;
	cost->staged_s = staged_s(d, i);
	cost->passes_s = passes_s(terms, cost->uncached_tokens);
	cost->kv_wait_s = kv_wait_s(d, i);
	cost->harm_s = cost->prefill_s *
		       (d->params->harm_share + d->params->harm_per_decode * terms->decoding +
			d->params->harm_per_request * d->engines[i].num_requests);
}

static void price_contention(const struct decision *d, unsigned i, struct policy_cost *cost)
{
	const struct policy_engine *engine = &d->engines[i];

	price_prefill(d, i, 0, cost);
	cost->decode_s = engine->num_requests * d->terms[i].iteration_s;
	cost->queue_s = d->terms[i].ahead * d->terms[i].token_s;
	cost->staged_s = staged_s(d, i);
}

static double decode_tokens(const struct decision *d, unsigned i)
{
	const struct policy_engine *engine = &d->engines[i];

	switch ((enum decode_reading)d->params->v3_decode_tokens) {
	case READING_CONTEXT:
		return engine->decode_context_tokens;
	case READING_SEQUENCES:
		return engine->decoding;
	case READING_OUTPUT:
	case DECODE_READINGS_NR:
		break;
	}
	return engine->decoding * sane(d->params->output_tokens);
}

static void price_v2(const struct decision *d, unsigned i, struct policy_cost *cost)
{
	double token_s = d->terms[i].token_s;

	cost->pull_from = -1;
	cost->uncached_tokens = (uint32_t)d->terms[i].uncached;
	cost->queue_s = d->engines[i].pending_prefill_tokens * token_s;
	cost->prefill_s = d->terms[i].uncached * token_s;
	if (d->params->policy == POLICY_V3)
		cost->decode_s = decode_tokens(d, i) * token_s;
}

/* The baseline counts tokens and knows one speed; seconds only for the eye. */
static void price_linear(const struct decision *d, unsigned i, struct policy_cost *cost)
{
	const struct policy_engine *engine = &d->engines[i];
	double outstanding =
		(double)engine->pending_prefill_tokens + (double)engine->decode_context_tokens;
	double rate = d->rates.throughput;

	cost->pull_from = -1;
	cost->uncached_tokens = (uint32_t)d->terms[i].uncached;
	cost->queue_s = d->params->linear_load_weight * outstanding / rate;
	cost->prefill_s = d->terms[i].uncached / rate;
}

static void price(const struct decision *d, unsigned i, struct policy_cost *cost)
{
	switch ((enum policy_kind)d->params->policy) {
	case POLICY_LINEAR:
		price_linear(d, i, cost);
		return;
	case POLICY_V2:
	case POLICY_V3:
		price_v2(d, i, cost);
		return;
	case POLICY_CONTENTION:
		price_contention(d, i, cost);
		return;
	default: /* policies without costs show the step model's */
		price_eft(d, i, d->params->policy == POLICY_EFT, cost);
		return;
	}
}

/* The best network of eight: no branch depends on what the values are. */
static void sort_eight(double *v)
{
	static const uint8_t pairs[][2] = { { 0, 1 }, { 2, 3 }, { 4, 5 }, { 6, 7 }, { 0, 2 },
					    { 1, 3 }, { 4, 6 }, { 5, 7 }, { 1, 2 }, { 5, 6 },
					    { 0, 4 }, { 3, 7 }, { 1, 5 }, { 2, 6 }, { 1, 4 },
					    { 3, 6 }, { 2, 4 }, { 3, 5 }, { 3, 4 } };

#pragma GCC unroll 19
	for (unsigned i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
		double a = v[pairs[i][0]], b = v[pairs[i][1]];

		v[pairs[i][0]] = lesser(a, b);
		v[pairs[i][1]] = greater(a, b);
	}
}

/* Each value goes to its rank, without such a branch either. */
static void sort_many(const double *values, unsigned nr, double *ret_sorted)
{
	for (unsigned i = 0; i < nr; i++) {
		unsigned rank = 0;

		for (unsigned k = 0; k < nr; k++)
			rank += (values[k] < values[i]) | ((values[k] == values[i]) & (k < i));
		ret_sorted[rank] = values[i];
	}
}

double policy_cost_median(const double *values, unsigned nr)
{
	double sorted[STATE_ENGINES_MAX];

	assert(nr <= STATE_ENGINES_MAX);
	if (nr == 0)
		return 0;
	if (nr <= 8) {
		for (unsigned i = 0; i < 8; i++)
			sorted[i] = i < nr ? values[i] : HUGE_VAL;
		sort_eight(sorted);
	} else {
		sort_many(values, nr, sorted);
	}
	return nr % 2 ? sorted[nr / 2] : (sorted[nr / 2 - 1] + sorted[nr / 2]) / 2;
}

/* How slow this engine is against the median one, by its measured first tokens; 1 inside the band.
 */
static double calibration_of(const struct decision *d, unsigned i, double median)
{
	double own = d->engines[i].calibration;

	if (own == 0 || median == 0)
		return 1;
	double ratio = own / median;

	if (ratio <= 1 + d->params->calibration_band && ratio >= 1 - d->params->calibration_band)
		return 1;
	return lesser(d->rates.calibration_most, greater(d->rates.calibration_least, ratio));
}

static double median_calibration(const struct decision *d)
{
	double values[STATE_ENGINES_MAX];
	unsigned nr = 0;

	if (d->params->policy != POLICY_CONTENTION && d->params->policy != POLICY_EFT)
		return 0;
	for (unsigned i = 0; i < d->nr; i++)
		if (is_candidate(d, (int32_t)i) && d->engines[i].calibration > 0)
			values[nr++] = d->engines[i].calibration;
	return nr < 2 ? 0 : policy_cost_median(values, nr);
}

static double wait_s(const struct policy_cost *cost)
{
	return cost->step_s + cost->decode_s + cost->queue_s + cost->kv_wait_s;
}

/*
 * An engine that nobody can see is neither empty nor endless: it waits at least as long as the
 * median of those that can be seen. One that is to be probed waits at most that long, for requests
 * short enough to lose little.
 */
static void bound_unknown(const struct decision *d)
{
	double waits[STATE_ENGINES_MAX];
	unsigned nr = 0, bounded = 0;

	for (unsigned i = 0; i < d->nr; i++)
		bounded += d->engines[i].staleness == STALENESS_UNKNOWN ||
			   (d->engines[i].flags & POLICY_PROBE);
	if (bounded == 0)
		return;
	for (unsigned i = 0; i < d->nr; i++)
		if (is_candidate(d, (int32_t)i) && d->engines[i].staleness != STALENESS_UNKNOWN &&
		    !(d->engines[i].flags & POLICY_PROBE))
			waits[nr++] = wait_s(&d->choice->cost[i]);
	if (nr == 0)
		return;
	double median = policy_cost_median(waits, nr);

	for (unsigned i = 0; i < d->nr; i++) {
		const struct policy_engine *engine = &d->engines[i];
		struct policy_cost *cost = &d->choice->cost[i];
		double above = median - wait_s(cost);
		int probing = (engine->flags & POLICY_PROBE) != 0 &&
			      d->terms[i].uncached <= d->params->probe_tokens;

		if (engine->staleness == STALENESS_UNKNOWN && above > 0)
			cost->unknown_s = above;
		else if (probing && above < 0)
			cost->unknown_s = above;
	}
}

static double penalty_of(const struct decision *d, unsigned i)
{
	const struct policy_engine *engine = &d->engines[i];
	double late_s = (double)engine->age_s - (double)engine->fresh_s;

	if (engine->staleness != STALENESS_AGED || late_s <= 0)
		late_s = 0;
	return engine->penalty_s + d->rates.stale_penalty * late_s;
}

static double discount_of(const struct decision *d, unsigned i, const struct policy_cost *cost,
			  double undiscounted_s)
{
	const struct policy_params *params = d->params;
	enum migration_discount form = (enum migration_discount)params->migration_discount;
	double turns;

	if (d->request->turn < 2 || d->home < 0 || (unsigned)d->home == i)
		return 0;
	if (params->policy != POLICY_CONTENTION && params->policy != POLICY_EFT)
		return 0;
	if (form == DISCOUNT_AUTO)
		form = params->policy == POLICY_CONTENTION ? DISCOUNT_SUBTRACT : DISCOUNT_NONE;
	turns = lesser(d->request->turn, greater(1, sane(params->migration_discount_cap)));
	switch (form) {
	case DISCOUNT_SUBTRACT:
		return turns * d->terms[i].iteration_s;
	case DISCOUNT_AMORTISE:
		return cost->prefill_s * cost->factor * (1 - 1 / turns);
	case DISCOUNT_PERCENT:
		return undiscounted_s *
		       lesser(1, sane(params->migration_discount_percent) / 100 * turns);
	default:
		return 0;
	}
}

/* v3's gate: what is overloaded against the mean leaves the choice. */
static void gate_overloaded(struct decision *d)
{
	double sum = 0;
	unsigned nr = 0;

	for (unsigned i = 0; i < d->nr; i++)
		if (is_candidate(d, (int32_t)i)) {
			sum += d->choice->cost[i].queue_s + d->choice->cost[i].decode_s;
			nr++;
		}
	if (nr == 0)
		return;
	uint64_t kept = 0;

	for (unsigned i = 0; i < d->nr; i++) {
		struct policy_cost *cost = &d->choice->cost[i];
		double limit = d->params->overload_factor * (sum / nr);

		if (!is_candidate(d, (int32_t)i))
			continue;
		if (cost->queue_s + cost->decode_s > limit)
			cost->left_out = LEFT_OUT_OVERLOADED;
		else
			kept |= 1ull << i;
	}
	if (kept != 0) {
		d->candidates = kept;
		return;
	}
	for (unsigned i = 0; i < d->nr; i++)
		if (is_candidate(d, (int32_t)i))
			d->choice->cost[i].left_out = LEFT_OUT_CANDIDATE;
}

void policy_cost_all(struct decision *d)
{
	double median = median_calibration(d);

	for (unsigned i = 0; i < d->nr; i++)
		price(d, i, &d->choice->cost[i]);
	bound_unknown(d);
	for (unsigned i = 0; i < d->nr; i++) {
		struct policy_cost *cost = &d->choice->cost[i];
		double base = wait_s(cost) + cost->staged_s + cost->prefill_s + cost->passes_s +
			      cost->harm_s;

		cost->factor = calibration_of(d, i, median) / weight_of(&d->engines[i]);
		cost->penalty_s = penalty_of(d, i);
		double undiscounted = base * cost->factor + cost->unknown_s + cost->penalty_s;

		cost->discount_s = discount_of(d, i, cost, undiscounted);
		cost->total_s = undiscounted - cost->discount_s;
	}
	if (d->params->policy == POLICY_V3)
		gate_overloaded(d);
}

double policy_cost_predict_raw_s(const struct decision *d, unsigned i)
{
	struct policy_cost cost = { 0 };

	price_eft(d, i, 1, &cost);
	cost.queue_s = ahead_s(d, i);
	return wait_s(&cost) + cost.staged_s + cost.prefill_s + cost.passes_s;
}

double policy_cost_band_s(const struct policy_params *params, double cost_s)
{
	double size = cost_s < 0 ? -cost_s : cost_s;

	return greater(sane(params->tie_band) * size, sane(params->tie_band_s));
}
