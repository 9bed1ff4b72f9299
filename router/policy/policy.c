/* The choice itself: who may take the request, and which of them does. */
#include "router/policy/internal.h"

#include <math.h>
#include <string.h>

/* splitmix64's finaliser: every engine's draw depends on nothing but the input and its own id. */
static uint64_t draw(uint64_t random, uint32_t id)
{
	uint64_t x = random + 0x9E3779B97F4A7C15u * (id + 1ull);

	x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
	x = (x ^ x >> 27) * 0x94D049BB133111EBu;
	return x ^ x >> 31;
}

/* The highest draw in mask, and of equal draws the lower id; -1 for an empty mask. */
static int32_t drawn_of(const struct decision *d, uint64_t mask, uint64_t random)
{
	int32_t best = -1;
	uint64_t high = 0;

	for (; mask; mask &= mask - 1) {
		unsigned i = (unsigned)__builtin_ctzll(mask);
		uint64_t own = draw(random, d->engines[i].id);

		if (best < 0 || own > high ||
		    (own == high && d->engines[i].id < d->engines[best].id)) {
			best = (int32_t)i;
			high = own;
		}
	}
	return best;
}

int32_t policy_pick_cheapest(const struct decision *d, uint64_t mask, int *ret_drawn)
{
	const struct policy_cost *cost = d->choice->cost;
	uint64_t equal = 0;
	int32_t best = -1;

	*ret_drawn = 0;
	for (uint64_t left = mask; left; left &= left - 1) {
		int32_t i = __builtin_ctzll(left);

		best = best < 0 || cost[i].total_s < cost[best].total_s ? i : best;
	}
	if (best < 0)
		return -1;
	double limit = cost[best].total_s + policy_cost_band_s(d->params, cost[best].total_s);

	for (uint64_t left = mask; left; left &= left - 1)
		equal |= cost[__builtin_ctzll(left)].total_s <= limit ? left & -left : 0;
	if (d->home >= 0 && (equal >> d->home & 1))
		return d->home;
	if ((equal & (equal - 1)) == 0)
		return best;
	*ret_drawn = 1;
	return drawn_of(d, equal, d->request->random[0]);
}

static int32_t fewest_requests(const struct decision *d, uint64_t mask)
{
	uint64_t equal = 0;
	double least = 0;

	for (unsigned i = 0; i < d->nr; i++) {
		double load = load_of(&d->engines[i]);

		if (!(mask >> i & 1))
			continue;
		if (equal == 0 || load < least) {
			least = load;
			equal = 0;
		}
		if (load == least)
			equal |= 1ull << i;
	}
	return drawn_of(d, equal, d->request->random[0]);
}

static int32_t fewer_of_two(const struct decision *d)
{
	int32_t one = drawn_of(d, d->candidates, d->request->random[0]);
	int32_t two = drawn_of(d, d->candidates & ~(1ull << one), d->request->random[1]);

	if (two < 0 || load_of(&d->engines[one]) <= load_of(&d->engines[two]))
		return one;
	return two;
}

/* The candidate with the lowest id above prev's (prev -1: the lowest of all), -1 = there is none.
 */
static int32_t next_by_id(const struct decision *d, int32_t prev)
{
	int32_t next = -1;

	for (unsigned i = 0; i < d->nr; i++) {
		uint32_t id = d->engines[i].id;

		if (!is_candidate(d, (int32_t)i) || (prev >= 0 && id <= d->engines[prev].id))
			continue;
		if (next < 0 || id < d->engines[next].id)
			next = (int32_t)i;
	}
	return next;
}

/*
 * Equal weights: one after another. Else the cursor walks the weights' sum in steps of the golden
 * ratio, which visits every stretch of it in proportion, with small gaps.
 */
static int32_t next_in_turn(const struct decision *d)
{
	double sum = 0, least = 0, most = 0;
	unsigned nr = d->choice->candidates;

	for (unsigned i = 0; i < d->nr; i++)
		if (is_candidate(d, (int32_t)i)) {
			double weight = weight_of(&d->engines[i]);

			least = sum == 0 ? weight : lesser(least, weight);
			most = greater(most, weight);
			sum += weight;
		}
	int32_t i = next_by_id(d, -1);
	int equal = least == most;
	double at =
		equal ? (double)(d->request->cursor % nr)
		      : (double)(d->request->cursor * 0x9E3779B97F4A7C15u >> 11) * 0x1p-53 * sum;

	for (unsigned rank = 0; rank + 1 < nr; rank++) {
		at -= equal ? 1 : weight_of(&d->engines[i]);
		if (at < 0)
			break;
		i = next_by_id(d, i);
	}
	assert(i >= 0); /* ids are unique, so there are nr of them */
	return i;
}

static enum policy_left_out hard_reason(const struct policy_engine *engine)
{
	const uint32_t good = POLICY_SERVES | POLICY_ALIVE;

	if ((engine->flags & (good | POLICY_DRAINED | POLICY_EXCLUDED)) == good)
		return LEFT_OUT_CANDIDATE;
	if (!(engine->flags & POLICY_SERVES))
		return LEFT_OUT_MODEL;
	if (!(engine->flags & POLICY_ALIVE))
		return LEFT_OUT_DOWN;
	if (engine->flags & POLICY_DRAINED)
		return LEFT_OUT_DRAINED;
	return LEFT_OUT_EXCLUDED;
}

/* The gravest reason first: what stays when only the lighter ones are overlooked. */
static enum policy_left_out soft_reason(const struct decision *d, unsigned i)
{
	const struct policy_engine *engine = &d->engines[i];
	uint32_t prompt = d->request->prompt_tokens;

	if (engine->flags & POLICY_STALLED)
		return LEFT_OUT_STALLED;
	if (sane(engine->weight) == 0)
		return LEFT_OUT_WEIGHTLESS;
	if ((engine->max_model_len != 0 && prompt > engine->max_model_len) ||
	    (engine->kv_capacity_tokens != 0 && prompt > engine->kv_capacity_tokens))
		return LEFT_OUT_TOO_LONG;
	return LEFT_OUT_CANDIDATE;
}

/*
 * Sound engines; if there are none, those that only seem too small for the prompt (its length may
 * be an estimate, and the engine says so better than we do), then weightless, then stalled ones.
 */
static void find_candidates(struct decision *d)
{
	static const enum policy_left_out overlooked[] = { LEFT_OUT_CANDIDATE, LEFT_OUT_TOO_LONG,
							   LEFT_OUT_WEIGHTLESS, LEFT_OUT_STALLED };
	uint64_t soft[POLICY_LEFT_OUT_NR] = { 0 };
	uint64_t allowed = 0;

	for (unsigned i = 0; i < d->nr; i++) {
		enum policy_left_out why = hard_reason(&d->engines[i]);

		if (why == LEFT_OUT_CANDIDATE) {
			why = soft_reason(d, i);
			soft[why] |= 1ull << i;
		}
		d->choice->cost[i].left_out = why;
	}
	for (unsigned k = 0; k < sizeof(overlooked) / sizeof(*overlooked) && allowed == 0; k++) {
		allowed = soft[overlooked[k]];
		d->last_resort = k > 1;
	}
	d->candidates = allowed;
	for (unsigned i = 0; i < d->nr; i++)
		if (is_candidate(d, (int32_t)i))
			d->choice->cost[i].left_out = LEFT_OUT_CANDIDATE;
}

static enum policy_class class_of(const struct decision *d)
{
	double least = d->request->prompt_tokens;

	for (unsigned i = 0; i < d->nr; i++)
		if (is_candidate(d, (int32_t)i))
			least = lesser(least, d->terms[i].uncached);
	if (d->request->prompt_tokens >= d->params->heavy_threshold)
		return CLASS_HEAVY;
	return least <= d->params->warm_threshold ? CLASS_WARM : CLASS_MEDIUM;
}

static void settle(struct decision *d, int32_t engine, enum policy_reason reason)
{
	d->choice->engine = engine;
	d->choice->reason = reason;
}

static void choose_by_cost(struct decision *d)
{
	int drawn, ignored;
	int32_t cheapest = policy_pick_cheapest(d, d->candidates, &drawn);
	enum policy_kind policy = (enum policy_kind)d->params->policy;

	if (d->home < 0)
		settle(d, cheapest, drawn ? REASON_DRAWN : REASON_CHEAPEST);
	else if (!is_candidate(d, d->home))
		settle(d, cheapest, REASON_HOME_LOST);
	else if (policy == POLICY_CONTENTION || policy == POLICY_EFT)
		policy_migrate(d, cheapest);
	else
		settle(d, cheapest, cheapest == d->home ? REASON_HOME : REASON_CHEAPEST);
	d->choice->runner_up =
		policy_pick_cheapest(d, d->candidates & ~(1ull << d->choice->engine), &ignored);
}

static void choose(struct decision *d)
{
	if ((d->request->flags & POLICY_NO_MIGRATION) && is_candidate(d, d->home)) {
		settle(d, d->home, REASON_BOUND);
		return;
	}
	switch ((enum policy_kind)d->params->policy) {
	case POLICY_ROUND_ROBIN:
		settle(d, next_in_turn(d), REASON_ROTATION);
		d->choice->cursor++;
		return;
	case POLICY_LEAST_REQUESTS:
		settle(d, fewest_requests(d, d->candidates), REASON_FEWEST);
		return;
	case POLICY_POWER_OF_TWO:
		settle(d, fewer_of_two(d), REASON_TWO);
		return;
	case POLICY_STICKY:
		if (is_candidate(d, d->home))
			settle(d, d->home, REASON_HOME);
		else
			settle(d, fewest_requests(d, d->candidates), REASON_FEWEST);
		return;
	default:
		choose_by_cost(d);
		return;
	}
}

static void predict(struct decision *d)
{
	struct policy_choice *choice = d->choice;
	double raw, ratio;

	if (choice->engine < 0)
		return;
	raw = policy_cost_predict_raw_s(d, (unsigned)choice->engine);
	ratio = sane(d->engines[choice->engine].calibration);
	/* What calibration ignores as noise is none the better for being announced. */
	if (ratio == 0 || fabs(ratio - 1) <= d->params->calibration_band)
		ratio = 1;
	choice->predicted_raw_s = raw;
	choice->predicted_ttft_s = raw * ratio;
}

/* Zeroes what the decision writes, padding included: equal inputs give equal bytes. */
static void begin(struct decision *d)
{
	memset(d->choice, 0, policy_choice_size(d->nr));
	d->choice->engine = -1;
	d->choice->target = -1;
	d->choice->runner_up = -1;
	d->choice->cursor = d->request->cursor;
	for (unsigned i = 0; i < d->nr; i++)
		d->choice->cost[i].pull_from = -1;
	find_candidates(d);
	for (uint64_t mask = d->candidates; mask != 0; mask &= mask - 1)
		d->choice->candidates++;
}

static void decision_init(struct decision *d, const struct policy_params *params,
			  const struct policy_request *request, const struct policy_engine *engines,
			  unsigned engines_nr, struct policy_choice *choice)
{
	assert(engines_nr <= STATE_ENGINES_MAX && params->policy < POLICIES_NR);
	d->params = params;
	d->request = request;
	d->nr = engines_nr;
	d->home = request->home;
	if (d->home < 0 || (unsigned)d->home >= engines_nr)
		d->home = -1;
	d->candidates = 0;
	d->last_resort = 0;
	d->choice = choice;
	policy_cost_begin(d, engines);
}

void policy_choose(const struct policy_params *params, const struct policy_request *request,
		   const struct policy_engine *engines, unsigned engines_nr,
		   struct policy_choice *ret_choice)
{
	struct decision d;

	decision_init(&d, params, request, engines, engines_nr, ret_choice);
	begin(&d);
	if (d.candidates == 0)
		return;
	ret_choice->class = class_of(&d);
	policy_cost_all(&d);
	choose(&d);
	if (d.last_resort)
		ret_choice->reason = REASON_LAST_RESORT;
	else if (ret_choice->candidates == 1 && ret_choice->reason != REASON_BOUND)
		ret_choice->reason = REASON_ONLY;
	predict(&d);
}

static int has_costs(const struct policy_params *params)
{
	return params->policy >= POLICY_LINEAR;
}

/* May the earlier engine stand, although a fresh decision would take another? */
static int still_good(const struct policy_params *params, const struct policy_request *request,
		      int32_t engine, const struct policy_choice *fresh)
{
	const struct policy_cost *cost = fresh->cost;

	if (fresh->engine < 0 || cost[engine].left_out != LEFT_OUT_CANDIDATE)
		return 0;
	if (!has_costs(params))
		return 1;
	if (fresh->engine == request->home)
		return 0; /* a move that no longer pays */
	return cost[engine].total_s - cost[fresh->engine].total_s <=
	       policy_cost_band_s(params, cost[fresh->engine].total_s);
}

int policy_reprice(const struct policy_params *params, const struct policy_request *request,
		   const struct policy_engine *engines, unsigned engines_nr,
		   const struct policy_choice *before, struct policy_choice *ret_choice)
{
	int32_t engine = before->engine;
	uint32_t reason = before->reason, move = before->move;
	struct decision d;

	decision_init(&d, params, request, engines, engines_nr, ret_choice);
	policy_choose(params, request, engines, engines_nr, ret_choice);
	if (ret_choice->engine == engine)
		return 0;
	if (engine < 0 || (unsigned)engine >= engines_nr ||
	    !still_good(params, request, engine, ret_choice))
		return 1;
	ret_choice->runner_up = ret_choice->engine;
	ret_choice->engine = engine;
	ret_choice->reason = reason;
	ret_choice->move = move;
	predict(&d);
	return 0;
}
