/* What the router knows when a request comes, found as the router finds it, and its decision. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "bench/replay_sim.h"

static const double calibration_alpha = 0.15, output_alpha = 0.3;
/* Agents' estimates fade by work, and are absent before there was enough (agent/sampler.c). */
static const double prefill_memory = 65536, prefill_enough = 256;
static const double decode_memory = 4096, decode_enough = 32;

/* ---- engines seen through their agents ---- */

static void rate_add(struct sim_rate *r, double memory, double amount, double time_s)
{
	double keep = exp(-amount / memory);

	r->amount = r->amount * keep + amount;
	r->time_s = r->time_s * keep + time_s;
}

static double pending_tokens(const struct sim_engine *e, const struct model_figures *f)
{
	return (double)f->pending_prefill_tokens + (double)model_waiting_uncached(e->model);
}

/* A step is over: what its metrics show moves on, and a step of decodes alone is timed. */
void sim_view_step(struct sim *s, struct sim_engine *e)
{
	uint64_t decoded = e->shown.generated_tokens;

	model_figures_get(e->model, &e->shown);
	decoded = e->shown.generated_tokens - decoded;
	if (decoded > 0 && e->shown.computed_tokens == e->computed_tokens)
		rate_add(&e->decode, decode_memory, (double)decoded,
			 (double)(s->now_ns - e->step_begin_ns) * 1e-9 * (double)decoded);
}

void sim_view_sample(struct sim *s, unsigned engine)
{
	struct sim_engine *e = &s->engine[engine];
	const struct model_options *options = model_options_of(e->model);
	struct engine_state *state = &e->state;
	const struct model_figures *f = &e->shown;

	model_figures_get(e->model, &e->sampled);
	e->sampled_pending_tokens = pending_tokens(e, &e->sampled);
	*state = (struct engine_state){ .read_ns = s->now_ns,
					.period_ns = sim_ns(s->arm->sample),
					.epoch = 1,
					.health = ENGINE_HEALTH_UP };
	if (s->arm->head == REPLAY_HEAD_SGLANG) {
		f = &e->sampled;
		ENGINE_SET(state, pending_prefill_tokens, (uint64_t)e->sampled_pending_tokens);
		ENGINE_SET(state, decode_context_tokens, f->decode_context_tokens);
	}
	ENGINE_SET(state, running, f->running);
	ENGINE_SET(state, waiting, f->waiting);
	ENGINE_SET(state, kv_used_tokens, f->blocks_used * MODEL_BLOCK);
	ENGINE_SET(state, kv_capacity_tokens, options->kv_tokens);
	ENGINE_SET(state, max_model_len, options->context_max);
	ENGINE_SET(state, generation_tokens_total, f->generated_tokens);
	ENGINE_SET(state, prompt_tokens_total, f->prompt_tokens);
	if (s->arm->measured && e->prefill.amount >= prefill_enough)
		ENGINE_SET(state, prefill_tokens_per_s, e->prefill.amount / e->prefill.time_s);
	if (s->arm->measured && e->decode.amount >= decode_enough)
		ENGINE_SET(state, decode_iteration_s, e->decode.time_s / e->decode.amount);
	ledger_observe(&s->ledger, &s->ledger_params, engine, state, s->now_ns);
}

/* ---- what a decision is made of ---- */

static int chain_of(struct sim *s, uint32_t index)
{
	struct sim_request *r = &s->request[index];
	uint32_t blocks = s->workload->turn[index].prompt_tokens / SIM_BLOCK;
	uint64_t hash = 0;

	r->chain = malloc((blocks + 1) * sizeof(*r->chain));
	if (!r->chain)
		return -ENOMEM;
	for (uint32_t i = 0; i < blocks; i++) {
		hash = XXH3_64bits_withSeed(s->ids + (size_t)i * SIM_BLOCK,
					    SIM_BLOCK * sizeof(*s->ids), hash);
		r->chain[i] = hash;
	}
	r->chain_nr = blocks;
	return 0;
}

/* The prompt continues the session's last one block by block: then home has its answer, too. */
static int goes_on(const struct sim_player *p, const struct sim_request *r)
{
	if (!p->prompt_tokens || p->blocks == 0) /* too short to tell: nothing speaks against it */
		return p->prompt_tokens != 0;
	return p->blocks <= r->chain_nr && r->chain[p->blocks - 1] == p->chain;
}

/* Where the index has lost sight of the last prompt, home is taken to have evicted it. */
static int home_holds(const struct sim_player *p, const struct sim_request *r, uint32_t blocks)
{
	return blocks == r->chain_nr ||
	       blocks * SIM_BLOCK + SIM_HOME_SLACK >= SIM_HOME_SEEN * p->prompt_tokens;
}

static void hits(struct sim *s, uint32_t index, uint32_t *ret_hit)
{
	const struct workload_turn *turn = &s->workload->turn[index];
	const struct sim_player *p = &s->player[turn->session];
	const struct sim_request *r = &s->request[index];
	struct replay_request *result = &s->run->request[index];
	uint32_t blocks[STATE_ENGINES_MAX] = { 0 };

	prefix_match_all(&s->prefix, s->engines, r->chain, r->chain_nr, blocks);
	for (unsigned i = 0; i < s->engines; i++) {
		uint32_t truly = model_probe(s->engine[i].model, 0, s->ids, turn->prompt_tokens);
		uint32_t hit = blocks[i] * SIM_BLOCK;

		if (truly > result->best_hit_tokens)
			result->best_hit_tokens = truly;
		if ((int)i == p->home && goes_on(p, r) && home_holds(p, r, blocks[i]) &&
		    hit < p->prompt_tokens + p->completion_tokens)
			hit = p->prompt_tokens + p->completion_tokens;
		if (s->arm->cache == REPLAY_CACHE_EXACT)
			hit = truly;
		if (s->arm->first_hits == 0 && turn->turn == 1)
			hit = 0;
		ret_hit[i] = hit >= turn->prompt_tokens ? turn->prompt_tokens - 1 : hit;
	}
}

/* The engine's figures as they are, or as they were sampled: no books of our own. */
static void view_of(const struct sim *s, const struct sim_engine *e, struct policy_engine *p)
{
	struct model_figures f = e->sampled;
	double pending = e->sampled_pending_tokens;

	if (s->arm->state == REPLAY_STATE_LIVE) {
		model_figures_get(e->model, &f);
		pending = pending_tokens(e, &f);
	}
	p->num_requests = (float)(f.running + f.waiting);
	p->decoding = (float)f.decoding;
	p->decode_context_tokens = (float)f.decode_context_tokens;
	p->pending_prefill_tokens = (float)pending;
	p->kv_used_tokens = (uint32_t)f.blocks_used * MODEL_BLOCK;
	p->kv_capacity_tokens = (uint32_t)model_options_of(e->model)->kv_tokens;
}

static void books_of(struct sim *s, unsigned engine, struct policy_engine *p)
{
	struct sim_engine *e = &s->engine[engine];
	const struct engine_state *state = &e->state;
	double tokens_per_s = p->flags & POLICY_MEASURED_PREFILL ? p->prefill_tokens_per_s
								 : s->arm->params.throughput;
	struct ledger_view view;

	ledger_effective(&s->ledger, &s->ledger_params, engine,
			 s->arm->head == REPLAY_HEAD_NONE ? NULL : state, NULL, tokens_per_s,
			 s->now_ns, &view);
	p->staleness = view.staleness;
	p->age_s = (float)view.age_s;
	p->fresh_s = (float)view.fresh_s;
	p->num_requests = (float)view.num_requests;
	p->decoding = (float)view.decoding;
	p->decode_context_tokens = (float)view.decode_context_tokens;
	p->pending_prefill_tokens = (float)view.pending_prefill_tokens;
	if (view.pending_prefill_s >= 0) {
		p->flags |= POLICY_PENDING_S;
		p->pending_prefill_s = (float)view.pending_prefill_s;
	}
	if (view.probe)
		p->flags |= POLICY_PROBE;
	p->staged_rest_tokens = (float)view.staged_rest_tokens;
	p->oldest_wait_s = (float)view.oldest_wait_s;
	p->kv_used_tokens = ENGINE_HAS(state, kv_used_tokens) ? (uint32_t)state->kv_used_tokens : 0;
	p->kv_capacity_tokens =
		ENGINE_HAS(state, kv_capacity_tokens) ? (uint32_t)state->kv_capacity_tokens : 0;
}

/* As the router's: an expired ratio does not act. */
static double calibration_in_force(const struct sim *s, const struct sim_engine *e)
{
	return e->calibration_ns + SIM_TTFT_WINDOW_NS > s->now_ns ? e->calibration : 0;
}

static void fill_engine(struct sim *s, unsigned engine, uint32_t hit, struct policy_engine *p)
{
	struct sim_engine *e = &s->engine[engine];
	const struct engine_state *state = &e->state;

	memset(p, 0, sizeof(*p));
	p->id = engine;
	p->weight = 1;
	p->flags = POLICY_SERVES | POLICY_ALIVE;
	if (s->arm->params.kv_transfer != 0)
		p->flags |= POLICY_PULLS | POLICY_SOURCE;
	if (ENGINE_HAS(state, prefill_tokens_per_s)) {
		p->flags |= POLICY_MEASURED_PREFILL;
		p->prefill_tokens_per_s = (float)state->prefill_tokens_per_s;
	}
	if (ENGINE_HAS(state, decode_iteration_s)) {
		p->flags |= POLICY_MEASURED_DECODE;
		p->decode_iteration_s = (float)state->decode_iteration_s;
	}
	if (s->arm->state == REPLAY_STATE_BOOKS)
		books_of(s, engine, p);
	else
		view_of(s, e, p);
	p->hit_tokens = hit;
	p->calibration = (float)calibration_in_force(s, e);
	window_expire(&e->ttft, s->now_ns, SIM_TTFT_WINDOW_NS);
	p->recent_ttft_n = (uint32_t)window_n(&e->ttft);
	p->recent_ttft_s = (float)window_quantile(&e->ttft, SIM_TTFT_QUANTILE);
}

static void fill_request(struct sim *s, uint32_t index, struct policy_request *p)
{
	const struct workload_turn *turn = &s->workload->turn[index];
	const struct sim_player *player = &s->player[turn->session];
	uint64_t kept = player->moved_turns & ((1u << SIM_MOVES_KEPT) - 1);

	memset(p, 0, sizeof(*p));
	p->random[0] = workload_random(&s->random);
	p->random[1] = workload_random(&s->random);
	p->cursor = s->cursor;
	p->flags = POLICY_STREAMED;
	p->home = player->home;
	p->prompt_tokens = turn->prompt_tokens;
	p->output_tokens = (uint32_t)player->output_tokens;
	p->sequences = 1;
	p->turn = turn->turn;
	p->moves = (uint32_t)__builtin_popcountll(kept);
	p->since_move_s = player->last_move_ns
				  ? (float)((double)(s->now_ns - player->last_move_ns) * 1e-9)
				  : -1;
	p->turns_since_move =
		player->moved_turns ? (uint32_t)__builtin_ctzll(player->moved_turns) : 0;
	s->move_budget += (double)(s->now_ns - s->budget_ns) * 1e-9 * SIM_MOVE_RATE;
	if (s->move_budget > SIM_MOVE_BURST)
		s->move_budget = SIM_MOVE_BURST;
	s->budget_ns = s->now_ns;
	p->move_budget = (float)s->move_budget;
}

static void fill_peers(struct sim *s, struct peer_engine *peers)
{
	while (s->sents_old < s->sents) {
		uint32_t index = s->sent[s->sents_old];
		const struct sim_request *r = &s->request[index];

		if (s->now_ns - s->run->request[index].arrive_ns <
		    SIM_PEER_WINDOW_S * 1000000000ull)
			break;
		s->window_prefill_s[r->ticket.engine] -= r->prefill_s;
		s->sents_old++;
	}
	for (unsigned i = 0; i < s->engines; i++) {
		peers[i].waiting = (double)s->engine[i].shown.waiting;
		peers[i].window_prefill_s = s->window_prefill_s[i];
	}
}

/* ---- the decision, and what the router notes of it ---- */

/* What a pull really moves and takes: what the source truly has beyond the target. */
static void pull(struct sim *s, uint32_t index, uint32_t engine, int32_t source)
{
	const struct workload_turn *turn = &s->workload->turn[index];
	struct sim_request *r = &s->request[index];
	uint32_t there = model_probe(s->engine[source].model, 0, s->ids, turn->prompt_tokens);
	uint32_t here = model_probe(s->engine[engine].model, 0, s->ids, turn->prompt_tokens);

	r->pulled_tokens = there;
	r->pull_s = s->arm->pull_setup;
	if (there > here)
		r->pull_s += (double)(there - here) * (double)s->arm->profile->kv_bytes_per_token /
			     s->arm->pull_bandwidth;
	s->run->request[index].pulled_tokens = there > here ? there - here : 0;
}

static double stay_s(struct sim *s, const struct policy_request *request,
		     const struct policy_engine *engines)
{
	struct policy_params params = s->arm->params;
	const struct policy_cost *home = &s->stay.cost[request->home];

	params.policy = POLICY_LEAST_REQUESTS; /* shows the step model's terms */
	policy_choose(&params, request, engines, s->engines, &s->stay);
	return home->step_s + home->queue_s + home->staged_s + home->prefill_s + home->passes_s +
	       home->kv_wait_s;
}

static void note_session(struct sim *s, uint32_t index, int32_t engine)
{
	const struct workload_turn *turn = &s->workload->turn[index];
	const struct sim_request *r = &s->request[index];
	struct sim_player *p = &s->player[turn->session];
	int moved = p->home >= 0 && p->home != engine;
	uint64_t turns = turn->turn > p->turn ? turn->turn - p->turn : 0;

	p->moved_turns = turns < SIM_MOVES_KEPT ? p->moved_turns << turns : 0;
	p->moved_turns = (p->moved_turns | (uint64_t)moved) & ((1u << SIM_MOVES_KEPT) - 1);
	if (moved)
		p->last_move_ns = s->now_ns;
	p->home = engine;
	p->turn = turn->turn;
	p->blocks = r->chain_nr;
	p->chain = r->chain_nr ? r->chain[r->chain_nr - 1] : 0;
}

static void commit(struct sim *s, uint32_t index, const struct policy_request *request,
		   const struct policy_engine *engines)
{
	const struct policy_choice *choice = &s->choice;
	const struct policy_cost *cost = &choice->cost[choice->engine];
	const struct policy_engine *e = &engines[choice->engine];
	struct sim_request *r = &s->request[index];
	struct replay_request *result = &s->run->request[index];
	int moves = request->home >= 0 && request->turn > 1 && request->home != choice->engine;

	result->engine = (int16_t)choice->engine;
	result->home = (int16_t)request->home;
	result->reason = choice->reason;
	result->move = choice->move;
	result->predicted_ttft_s = choice->predicted_ttft_s;
	result->stay_s = moves ? stay_s(s, request, engines) : 0;
	if (choice->move == MOVE_MADE || moves)
		s->move_budget -= 1;
	s->cursor = choice->cursor;
	r->predicted_raw_s = choice->predicted_raw_s;
	r->expected_tokens = e->hit_tokens;
	r->ticket =
		(struct ledger_ticket){ .engine = (uint32_t)choice->engine,
					.sequences = 1,
					.prompt_tokens = request->prompt_tokens,
					.uncached_tokens = request->prompt_tokens - e->hit_tokens };
	if (cost->pull_from >= 0) {
		pull(s, index, (uint32_t)choice->engine, cost->pull_from);
		r->ticket.uncached_tokens = cost->uncached_tokens;
	}
	r->prefill_s = policy_prefill_s(&s->arm->params, e, request->prompt_tokens,
					r->ticket.uncached_tokens);
	r->ticket.prefill_s = r->prefill_s + r->pull_s;
	s->window_prefill_s[choice->engine] += r->prefill_s;
	s->sent[s->sents++] = index;
	note_session(s, index, choice->engine);
}

int sim_decide(struct sim *s, uint32_t index)
{
	const struct replay_arm *arm = s->arm;
	struct policy_engine engines[STATE_ENGINES_MAX];
	struct peer_engine peers[STATE_ENGINES_MAX];
	uint32_t hit[STATE_ENGINES_MAX];
	struct policy_request request;
	int err = chain_of(s, index);

	if (err)
		return err;
	hits(s, index, hit);
	fill_request(s, index, &request);
	for (unsigned i = 0; i < s->engines; i++)
		fill_engine(s, i, hit[i], &engines[i]);
	fill_peers(s, peers);
	if (arm->peer >= 0)
		peer_choose((enum policy_peer)arm->peer, &arm->peer_params, &arm->params, &request,
			    engines, peers, s->engines, &s->choice);
	else
		policy_choose(&arm->params, &request, engines, s->engines, &s->choice);
	if (s->choice.engine < 0)
		return -E2BIG;
	commit(s, index, &request, engines);
	return 0;
}

/* ---- what comes back ---- */

void sim_view_first_token(struct sim *s, struct sim_engine *e, const struct sim_request *r,
			  double ttft_s, uint32_t cached_tokens)
{
	int missed = cached_tokens + SIM_HOME_SLACK < r->expected_tokens;
	double step_s = s->arm->params.decode_iteration_s;
	double ratio =
		r->predicted_raw_s > 0 ? (ttft_s + step_s) / (r->predicted_raw_s + step_s) : 0;
	double known = calibration_in_force(s, e);

	window_add(&e->ttft, s->now_ns, ttft_s);
	if (ratio <= 0 || (missed && s->arm->calibrate_misses == 0))
		return;
	ratio = ratio < 0.1 ? 0.1 : ratio > 10 ? 10 : ratio;
	e->calibration = known == 0 ? ratio : known + calibration_alpha * (ratio - known);
	e->calibration_ns = s->now_ns;
}

void sim_view_finished(struct sim *s, const struct workload_turn *turn, const struct sim_request *r,
		       const struct model_event *event)
{
	struct sim_player *p = &s->player[turn->session];
	const struct model_life *life = &event->life;
	double weight = p->output_tokens > 0 ? output_alpha : 1;

	/* The engine counts a request's prefill when it is over. */
	rate_add(&s->engine[r->ticket.engine].prefill, prefill_memory,
		 (double)(life->prompt_tokens - life->cached_tokens),
		 (double)(life->first_token_ns - life->started_ns) * 1e-9);
	p->output_tokens += weight * ((double)turn->output_tokens - p->output_tokens);
	if (turn->turn == p->turn) {
		p->prompt_tokens = turn->prompt_tokens;
		p->completion_tokens = turn->output_tokens;
	}
}
