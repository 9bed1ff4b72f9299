/* Other dispatchers' rules over our inputs; each returns a cost to be least, or a choice. */
#include "router/policy/peers.h"

#include "router/policy/internal.h"

#include <math.h>

struct peer_view {
	const struct peer_params *params;
	const struct policy_params *ours;
	const struct policy_request *request;
	const struct policy_engine *engines;
	const struct peer_engine *peers;
	const struct policy_choice *choice;
	unsigned nr;
};

static const char *const names[] = {
#define NAME(id, name, meaning) name,
	POLICY_PEERS(NAME)
#undef NAME
};
static const char *const meanings[] = {
#define MEANING(id, name, meaning) meaning,
	POLICY_PEERS(MEANING)
#undef MEANING
};

const char *peer_name(unsigned peer)
{
	return peer < PEERS_NR ? names[peer] : NULL;
}

const char *peer_meaning(unsigned peer)
{
	return peer < PEERS_NR ? meanings[peer] : NULL;
}

int peer_parse(const char *name)
{
	for (int i = 0; i < PEERS_NR; i++) {
		const char *a = names[i], *b = name;

		while (*a && *a == *b)
			a++, b++;
		if (*a == *b)
			return i;
	}
	return -1;
}

void peer_params_init(struct peer_params *ret_params)
{
#define STANDARD(name, standard, meaning) ret_params->name = standard;
	PEER_PARAMS(STANDARD)
#undef STANDARD
}

/* ---- what the rules are made of ---- */

static uint64_t candidates_of(const struct peer_view *v)
{
	uint64_t mask = 0;

	for (unsigned i = 0; i < v->nr; i++)
		if (v->choice->cost[i].left_out == LEFT_OUT_CANDIDATE)
			mask |= 1ull << i;
	return mask;
}

static double count_of(const struct peer_view *v, unsigned i)
{
	return sane(v->engines[i].num_requests);
}

static double hit_share(const struct peer_view *v, unsigned i)
{
	double prompt = greater(1, v->request->prompt_tokens);

	return lesser(1, v->engines[i].hit_tokens / prompt);
}

static double uncached(const struct peer_view *v, unsigned i)
{
	return greater(0, (double)v->request->prompt_tokens - v->engines[i].hit_tokens);
}

static double kv_usage(const struct peer_view *v, unsigned i)
{
	double capacity = v->engines[i].kv_capacity_tokens;

	return capacity > 0 ? lesser(1, v->engines[i].kv_used_tokens / capacity) : 0;
}

typedef double cost_fn(const struct peer_view *v, unsigned i);

/* The least cost in `mask`; the random input draws among equals. */
static int32_t least(const struct peer_view *v, uint64_t mask, cost_fn *cost)
{
	double best = INFINITY;
	uint64_t equal = 0, pick;
	unsigned nr = 0;

	for (unsigned i = 0; i < v->nr; i++) {
		double c = mask >> i & 1 ? cost(v, i) : INFINITY;

		if (c < best) {
			best = c;
			equal = 0;
			nr = 0;
		}
		if ((mask >> i & 1) && c == best) {
			equal |= 1ull << i;
			nr++;
		}
	}
	if (nr == 0)
		return -1;
	pick = v->request->random[0] % nr;
	while (pick-- > 0)
		equal &= equal - 1;
	return __builtin_ctzll(equal);
}

static void extremes(const struct peer_view *v, uint64_t mask, cost_fn *value, double *ret_min,
		     double *ret_max)
{
	*ret_min = INFINITY;
	*ret_max = 0;
	for (unsigned i = 0; i < v->nr; i++)
		if (mask >> i & 1) {
			*ret_min = lesser(*ret_min, value(v, i));
			*ret_max = greater(*ret_max, value(v, i));
		}
}

static double miss_share(const struct peer_view *v, unsigned i)
{
	return 1 - hit_share(v, i);
}

/* ---- the rules ---- */

static int32_t choose_sglang(const struct peer_view *v, uint64_t mask)
{
	const struct peer_params *p = v->params;
	double fewest, most;

	extremes(v, mask, count_of, &fewest, &most);
	if (most - fewest > p->sglang_balance_abs && most > p->sglang_balance_rel * fewest)
		return least(v, mask, count_of);
	int32_t match = least(v, mask, miss_share);
	if (match >= 0 && hit_share(v, (unsigned)match) > p->sglang_cache_threshold)
		return match;
	return least(v, mask, count_of);
}

static double least_load_cost(const struct peer_view *v, unsigned i)
{
	double k = lesser(0.999, kv_usage(v, i));

	return sane(v->engines[i].pending_prefill_tokens) / v->params->least_load_throughput +
	       v->params->least_load_kv_weight * k / (1 - k);
}

static double dynamo_cost(const struct peer_view *v, unsigned i)
{
	const struct peer_params *p = v->params;
	double request = ceil(v->request->prompt_tokens / p->dynamo_block);
	double prefill = sane(v->engines[i].pending_prefill_tokens) / p->dynamo_block + request;
	double overlap = floor(v->engines[i].hit_tokens / p->dynamo_block);
	double decode = sane(v->engines[i].decode_context_tokens) / p->dynamo_block + request;

	return p->dynamo_prefill_scale * greater(0, prefill - p->dynamo_overlap_credit * overlap) +
	       decode + p->dynamo_request_weight * count_of(v, i);
}

static double waiting_of(const struct peer_view *v, unsigned i)
{
	return sane(v->peers[i].waiting);
}

static int32_t choose_llm_d(const struct peer_view *v, uint64_t mask)
{
	const struct peer_params *p = v->params;
	double score[STATE_ENGINES_MAX], best = -1, fewest, most;
	uint64_t equal = 0;

	extremes(v, mask, waiting_of, &fewest, &most);
	for (unsigned i = 0; i < v->nr; i++) {
		double queue = most > fewest ? (most - waiting_of(v, i)) / (most - fewest) : 1;

		score[i] = p->llm_d_queue * queue + p->llm_d_kv * (1 - kv_usage(v, i)) +
			   p->llm_d_prefix * hit_share(v, i);
		if ((mask >> i & 1) && score[i] > best)
			best = score[i];
	}
	for (unsigned i = 0; i < v->nr; i++)
		if ((mask >> i & 1) && score[i] == best)
			equal |= 1ull << i;
	return least(v, equal, count_of);
}

static double llm_d_ttft_s(const struct peer_view *v, unsigned i)
{
	return sane(v->engines[i].pending_prefill_tokens) / v->params->llm_d_throughput;
}

/* Sticky engines only, unless the best of them is later than the best other by the penalty. */
static int32_t choose_llm_d_affinity(const struct peer_view *v, uint64_t mask)
{
	uint64_t sticky = 0;

	for (unsigned i = 0; i < v->nr; i++)
		if ((mask >> i & 1) && hit_share(v, i) >= v->params->llm_d_affinity)
			sticky |= 1ull << i;
	if (sticky && sticky != mask) {
		int32_t in = least(v, sticky, llm_d_ttft_s);
		int32_t out = least(v, mask & ~sticky, llm_d_ttft_s);

		if (llm_d_ttft_s(v, (unsigned)in) - llm_d_ttft_s(v, (unsigned)out) <=
		    v->params->llm_d_penalty_s)
			return choose_llm_d(v, sticky);
	}
	return choose_llm_d(v, mask);
}

static double count_limit(const struct peer_view *v, uint64_t mask, double sigmas)
{
	double n = 0, sum = 0, squares = 0;

	for (unsigned i = 0; i < v->nr; i++)
		if (mask >> i & 1) {
			n++;
			sum += count_of(v, i);
			squares += count_of(v, i) * count_of(v, i);
		}
	double mean = sum / greater(1, n);

	return mean + sigmas * sqrt(greater(0, squares / greater(1, n) - mean * mean));
}

/* By match, then by count; the first that is not overloaded. */
static int32_t choose_aibrix(const struct peer_view *v, uint64_t mask)
{
	const struct peer_params *p = v->params;
	double limit = count_limit(v, mask, p->aibrix_sigma), fewest, most;
	int32_t best = -1;

	extremes(v, mask, count_of, &fewest, &most);
	if (most - fewest > p->aibrix_imbalance)
		return least(v, mask, count_of);
	for (unsigned i = 0; i < v->nr; i++) {
		if (!(mask >> i & 1) || v->engines[i].hit_tokens == 0 || count_of(v, i) > limit)
			continue;
		if (best < 0 || hit_share(v, i) > hit_share(v, (unsigned)best) ||
		    (hit_share(v, i) == hit_share(v, (unsigned)best) &&
		     count_of(v, i) < count_of(v, (unsigned)best)))
			best = (int32_t)i;
	}
	return best >= 0 ? best : least(v, mask, count_of);
}

static double preble_cost(const struct peer_view *v, unsigned i)
{
	const struct peer_params *p = v->params;

	return sane(v->peers[i].window_prefill_s) +
	       count_of(v, i) * p->preble_output_tokens * p->preble_tpot_s +
	       uncached(v, i) / greater(1, sane(v->ours->throughput));
}

static int32_t choose_preble(const struct peer_view *v, uint64_t mask)
{
	uint64_t holders = 0;
	double best = 0;

	for (unsigned i = 0; i < v->nr; i++)
		if (mask >> i & 1)
			best = greater(best, v->engines[i].hit_tokens);
	if (best > v->request->prompt_tokens - best)
		for (unsigned i = 0; i < v->nr; i++)
			if ((mask >> i & 1) && v->engines[i].hit_tokens == best)
				holders |= 1ull << i;
	return least(v, holders ? holders : mask, preble_cost);
}

/* One number first; requests only where it is equal (a millionth of a token each). */
static double llumnix_cost(const struct peer_view *v, unsigned i)
{
	return uncached(v, i) + sane(v->engines[i].pending_prefill_tokens) + 1e-6 * count_of(v, i);
}

static int32_t choose(enum policy_peer peer, const struct peer_view *v, uint64_t mask)
{
	switch (peer) {
	case PEER_SGLANG:
		return choose_sglang(v, mask);
	case PEER_LEAST_LOAD:
		return least(v, mask, least_load_cost);
	case PEER_DYNAMO:
		return least(v, mask, dynamo_cost);
	case PEER_LLM_D:
		return choose_llm_d(v, mask);
	case PEER_LLM_D_AFFINITY:
		return choose_llm_d_affinity(v, mask);
	case PEER_AIBRIX:
		return choose_aibrix(v, mask);
	case PEER_PREBLE:
		return choose_preble(v, mask);
	case PEER_LLUMNIX:
		return least(v, mask, llumnix_cost);
	case PEERS_NR:
		break;
	}
	return -1;
}

void peer_choose(enum policy_peer peer, const struct peer_params *peer_params,
		 const struct policy_params *params, const struct policy_request *request,
		 const struct policy_engine *engines, const struct peer_engine *peers,
		 unsigned engines_nr, struct policy_choice *ret_choice)
{
	struct policy_params counts = *params;
	struct peer_view v = {
		peer_params, params, request, engines, peers, ret_choice, engines_nr
	};

	/* Who is a candidate, the class and the terms to show are found as by any policy. */
	counts.policy = POLICY_LEAST_REQUESTS;
	counts.kv_transfer = 0;
	policy_choose(&counts, request, engines, engines_nr, ret_choice);
	if (ret_choice->engine < 0)
		return;
	int32_t engine = choose(peer, &v, candidates_of(&v));
	if (engine < 0)
		return;
	const struct policy_cost *cost = &ret_choice->cost[engine];

	ret_choice->engine = engine;
	ret_choice->reason = request->home == engine ? REASON_HOME : REASON_CHEAPEST;
	ret_choice->predicted_raw_s = cost->step_s + cost->queue_s + cost->staged_s +
				      cost->prefill_s + cost->passes_s + cost->kv_wait_s;
	ret_choice->predicted_ttft_s = ret_choice->predicted_raw_s;
}
