/* When a session leaves its home: the rule before the cost model, and the price of leaving. */
#include "router/policy/internal.h"

static double mean_requests(const struct decision *d)
{
	double sum = 0;

	for (unsigned i = 0; i < d->nr; i++)
		if (is_candidate(d, (int32_t)i))
			sum += sane(d->engines[i].num_requests);
	return sum / d->choice->candidates;
}

static int is_busy(const struct decision *d)
{
	const struct policy_params *params = d->params;
	const struct policy_engine *home = &d->engines[d->home];
	double requests = sane(home->num_requests);

	switch ((enum migration_trigger)params->migration_trigger) {
	case TRIGGER_FACTOR:
		return requests > params->migration_request_factor * mean_requests(d);
	case TRIGGER_ABSOLUTE:
		return requests > params->migration_request_excess + mean_requests(d);
	case TRIGGER_RECENT_TTFT:
		if (sane(home->oldest_wait_s) > params->migration_wait_s)
			return 1;
		return home->recent_ttft_n >= params->migration_ttft_samples &&
		       sane(home->recent_ttft_s) > params->migration_ttft_s;
	case TRIGGER_PENDING:
		return policy_cost_queue_s(d, (unsigned)d->home) > params->migration_pending_s;
	default:
		return 0;
	}
}

/* Engines with fewer requests than home by more than the gap. */
static uint64_t lighter_engines(const struct decision *d)
{
	double limit = sane(d->engines[d->home].num_requests) - d->params->migration_request_gap;
	uint64_t mask = 0;

	for (unsigned i = 0; i < d->nr; i++)
		if (is_candidate(d, (int32_t)i) && (int32_t)i != d->home &&
		    sane(d->engines[i].num_requests) < limit)
			mask |= 1ull << i;
	return mask;
}

/* The rule before the cost model: may this session be moved, and where to? */
static enum policy_move nominate(const struct decision *d, int32_t *ret_target)
{
	double hit = d->engines[d->home].hit_tokens;
	int drawn;

	if (d->choice->class != CLASS_HEAVY)
		return MOVE_LIGHT;
	if (hit <= d->params->cache_ratio * d->request->prompt_tokens)
		return MOVE_COLD;
	int32_t target = policy_pick_cheapest(d, lighter_engines(d), &drawn);

	if (target < 0)
		return MOVE_TARGET;
	*ret_target = target;
	return MOVE_NONE;
}

static double undiscounted(const struct policy_cost *cost)
{
	return cost->total_s + cost->discount_s;
}

/*
 * Net gain, and what it has to be. Hysteresis never asks for more than the extra prefill itself:
 * where nothing is computed again there is nothing to protect.
 */
static void price_move(const struct decision *d, int32_t target)
{
	struct policy_choice *choice = d->choice;
	const struct policy_cost *here = &choice->cost[d->home], *there = &choice->cost[target];
	double extra_s = greater(0, there->prefill_s - here->prefill_s);

	choice->target = target;
	choice->extra_prefill_s = extra_s;
	choice->gain_s = undiscounted(here) - undiscounted(there);
	choice->margin_s = greater(lesser(sane(d->params->migration_hysteresis_s), extra_s),
				   sane(d->params->migration_margin) * extra_s);
}

static enum policy_move judge_move(const struct decision *d)
{
	const struct policy_choice *choice = d->choice;
	const struct policy_request *request = d->request;

	if (!(choice->gain_s > 0) || choice->gain_s < choice->margin_s)
		return MOVE_PRICE;
	if (choice->extra_prefill_s == 0 || choice->gain_s >= d->params->migration_overrule_s)
		return MOVE_MADE;
	if (request->since_move_s >= 0 && (request->turns_since_move < 1 ||
					   request->since_move_s < d->params->migration_cooldown_s))
		return MOVE_COOLDOWN;
	if (request->moves >= d->params->migration_moves ||
	    (request->move_budget >= 0 && request->move_budget < 1))
		return MOVE_BUDGET;
	return MOVE_MADE;
}

static void stay(struct decision *d, enum policy_reason reason)
{
	d->choice->engine = d->home;
	d->choice->reason = reason;
}

static void leave(struct decision *d, enum policy_reason reason)
{
	d->choice->engine = d->choice->target;
	d->choice->reason = reason;
	d->choice->move = MOVE_MADE;
}

/* Home is cheapest: what the rule nominated stays a refused move. */
static void stay_at_cheapest(struct decision *d, int32_t nominated, enum policy_move refused)
{
	d->choice->move = refused;
	if (nominated >= 0) {
		price_move(d, nominated);
		d->choice->move = MOVE_PRICE;
	}
	stay(d, REASON_HOME);
}

void policy_migrate(struct decision *d, int32_t cheapest)
{
	struct policy_choice *choice = d->choice;
	enum policy_move refused = MOVE_NONE;
	int32_t nominated = -1;

	assert(is_candidate(d, d->home) && is_candidate(d, cheapest));
	if (d->params->migrate != MIGRATE_OFF && d->request->turn >= 2 && is_busy(d)) {
		choice->trigger = (uint32_t)d->params->migration_trigger;
		refused = nominate(d, &nominated);
	}
	if (d->params->migrate == MIGRATE_FORCE && nominated >= 0) {
		price_move(d, nominated);
		leave(d, REASON_FORCED);
		return;
	}
	if (cheapest == d->home) {
		stay_at_cheapest(d, nominated, refused);
		return;
	}
	price_move(d, cheapest);
	if (d->params->migrate == MIGRATE_PRICED)
		choice->move = judge_move(d);
	else
		choice->move = MOVE_MADE;
	if (choice->move == MOVE_MADE)
		leave(d, REASON_MOVED);
	else
		stay(d, REASON_STAYED);
}
