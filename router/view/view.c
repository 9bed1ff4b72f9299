/* The rules by which what is known becomes a decision's inputs, and what comes back is noted. */
#include "router/view/view.h"

#include "router/limits.h"

#include <math.h>
#include <string.h>

static const double calibration_alpha = 0.15;
/* A sample is held within 1/this .. this: alone it does not leave the dead band (5.5 ^ 0.15 = 1.29)
 */
static const double calibration_most = 5.5;
static const double answer_alpha = 0.2;
static const uint64_t answer_least = 32; /* tokens, two blocks: less says nothing */
static const double home_seen = 0.75;    /* of its last prompt, for a home to be believed */

/* ---- hits ---- */

int view_goes_on(const struct session *session, const uint64_t *chain, uint32_t chain_nr)
{
	return session && session->prompt_tokens && session_continues(session, chain, chain_nr);
}

/* What home holds by the session's own count: its last prompt and the answer to it. */
static uint64_t home_tokens(const struct view_prompt *p)
{
	const struct session *s = p->session;

	if (p->bound_tokens)
		return p->bound_tokens;
	if (!view_goes_on(s, p->chain, p->chain_nr))
		return 0;
	if (s->completion_tokens == SESSION_UNKNOWN)
		return s->prompt_tokens;
	return s->prompt_tokens + (uint64_t)((1 - p->answer_lost) * (double)s->completion_tokens);
}

void view_answers_learn(struct view_answers *answers, const struct session *before,
			uint64_t prompt_tokens, uint64_t cached_tokens)
{
	uint64_t could = before->completion_tokens, had = before->prompt_tokens;
	double lost;

	if (could == SESSION_UNKNOWN || had == 0 || prompt_tokens <= had)
		return;
	if (could > prompt_tokens - had)
		could = prompt_tokens - had;
	/* A cache that has lost the prompt itself says nothing of the answer; blocks are cut. */
	if (could < answer_least || cached_tokens + answer_least < had)
		return;
	lost = cached_tokens > had ? 1 - (double)(cached_tokens - had) / (double)could : 1;
	lost = lost < 0 ? 0 : lost;
	/* The first counts whole: until it came nothing was known. */
	answers->lost += (answers->seen ? answer_alpha : 1) * (lost - answers->lost);
	answers->seen = 1;
}

/*
 * Whether home still has what the session knows of it: the session remembers for ever, a cache does
 * not. Where the index has lost sight of the last prompt, its engine has evicted it.
 */
static int home_holds(const struct view_prompt *p, uint32_t blocks, double hit)
{
	return p->bound_tokens || p->chain_nr == 0 || blocks == p->chain_nr ||
	       hit + VIEW_HOME_SLACK_TOKENS >= home_seen * (double)p->session->prompt_tokens;
}

uint32_t view_hit(double tokens, uint32_t prompt_tokens)
{
	return tokens >= prompt_tokens ? prompt_tokens - 1 : (uint32_t)tokens;
}

/* Blocks x bytes of a block x this prompt's tokens per byte. */
void view_hits(const struct view_prompt *prompt, const uint32_t *blocks, unsigned engines_nr,
	       uint32_t *ret_hits)
{
	double at_home = prompt->session ? (double)home_tokens(prompt) : 0, per_block = 0;

	if (prompt->chain_nr && prompt->content_bytes)
		per_block = (double)prompt->prompt_tokens * LIMIT_CONTENT_BLOCK_BYTES /
			    (double)prompt->content_bytes;
	for (unsigned i = 0; i < engines_nr; i++) {
		double hit = blocks[i] * per_block;

		if ((int)i == prompt->home && hit < at_home && home_holds(prompt, blocks[i], hit))
			hit = at_home;
		ret_hits[i] = view_hit(hit, prompt->prompt_tokens);
	}
}

/* ---- inputs ---- */

void view_request_fill(const struct view *v, const struct view_request *request,
		       const struct view_budget *budget, struct policy_request *ret)
{
	const struct session *s = request->session;
	uint64_t most = request->max_tokens;

	memset(ret, 0, sizeof(*ret));
	ret->random[0] = request->random[0];
	ret->random[1] = request->random[1];
	ret->cursor = request->cursor;
	ret->flags = request->flags;
	ret->home = request->home;
	ret->prompt_tokens = request->prompt_tokens;
	ret->output_tokens = s ? (uint32_t)s->output_tokens : 0;
	if (most && (ret->output_tokens == 0 || most < ret->output_tokens))
		ret->output_tokens =
			most < VIEW_OUTPUT_TOKENS_MAX ? (uint32_t)most : VIEW_OUTPUT_TOKENS_MAX;
	ret->sequences = request->sequences;
	ret->turn = request->turn;
	ret->moves = s ? session_recent_moves(s) : 0;
	ret->since_move_s = -1;
	if (s && s->last_move_ns)
		ret->since_move_s = (float)((double)(v->now_ns - s->last_move_ns) * 1e-9);
	if (s && s->moved_turns)
		ret->turns_since_move = (uint32_t)__builtin_ctzll(s->moved_turns);
	ret->move_budget = (float)budget->moves;
}

/* What the agent's record and the caller say, own dispatches left out. */
void view_engine_record(const struct view *v, const struct view_engine *engine,
			struct policy_engine *ret)
{
	const struct engine_state *s = engine->state;

	memset(ret, 0, sizeof(*ret));
	ret->id = engine->id;
	ret->flags = engine->flags;
	ret->weight = (float)engine->weight;
	if (s->health == ENGINE_HEALTH_STALLED)
		ret->flags |= POLICY_STALLED;
	if (ENGINE_HAS(s, prefill_tokens_per_s)) {
		ret->flags |= POLICY_MEASURED_PREFILL;
		ret->prefill_tokens_per_s = (float)s->prefill_tokens_per_s;
	}
	if (ENGINE_HAS(s, decode_iteration_s)) {
		ret->flags |= POLICY_MEASURED_DECODE;
		ret->decode_iteration_s = (float)s->decode_iteration_s;
	}
	ret->hit_tokens = engine->hit_tokens;
	ret->step_budget_tokens =
		ENGINE_HAS(s, step_budget_tokens) ? (uint32_t)s->step_budget_tokens : 0;
	ret->kv_used_tokens = ENGINE_HAS(s, kv_used_tokens) ? (uint32_t)s->kv_used_tokens : 0;
	ret->kv_capacity_tokens = (uint32_t)engine->kv_capacity;
	if (!engine->kv_capacity && ENGINE_HAS(s, kv_capacity_tokens))
		ret->kv_capacity_tokens = (uint32_t)s->kv_capacity_tokens;
	ret->max_model_len = ENGINE_HAS(s, max_model_len) ? (uint32_t)s->max_model_len : 0;
	ret->calibration =
		(float)view_calibration_in_force(engine->calibration, v->rules, v->now_ns);
	ret->recent_ttft_s = (float)engine->recent_ttft_s;
	ret->recent_ttft_n = (uint32_t)engine->recent_ttft_n;
}

/* Record and own books, joined by the ledger. */
void view_engine_books(const struct view *v, const struct view_engine *engine,
		       struct policy_engine *p)
{
	const struct engine_state *s = engine->state;
	double tokens_per_s = ENGINE_HAS(s, prefill_tokens_per_s) ? s->prefill_tokens_per_s
								  : v->params->throughput;
	struct ledger_view view;

	ledger_effective(v->ledger, v->ledger_params, engine->index, engine->attached ? s : NULL,
			 NULL, tokens_per_s, v->now_ns, &view);
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
	/* Of those who wait for room the engine's figure says nothing. */
	if (view.booked_tokens > p->kv_used_tokens)
		p->kv_used_tokens =
			view.booked_tokens < UINT32_MAX ? (uint32_t)view.booked_tokens : UINT32_MAX;
	p->staged_rest_tokens = (float)view.staged_rest_tokens;
	p->requeueable_tokens = (float)view.requeueable_tokens;
	p->oldest_wait_s = (float)view.oldest_wait_s;
	/* The probe sees waits of others than this router, too. */
	if (engine->oldest_wait_start_ns && engine->oldest_wait_start_ns < v->now_ns) {
		double waits_s = (double)(v->now_ns - engine->oldest_wait_start_ns) * 1e-9;

		if (waits_s > view.oldest_wait_s)
			p->oldest_wait_s = (float)waits_s;
	}
}

void view_engine_fill(const struct view *v, const struct view_engine *engine,
		      struct policy_engine *ret)
{
	view_engine_record(v, engine, ret);
	view_engine_books(v, engine, ret);
}

/* ---- what the choice costs ---- */

int view_moves(const struct policy_request *request, const struct policy_choice *choice)
{
	if (choice->move == MOVE_MADE)
		return 1;
	return request->home >= 0 && request->turn > 1 && request->home != choice->engine &&
	       !(request->flags & POLICY_NO_MIGRATION);
}

struct ledger_ticket view_ticket(const struct policy_params *params,
				 const struct policy_engine *engine, uint32_t index,
				 uint32_t sequences, uint32_t prompt_tokens,
				 uint32_t uncached_tokens)
{
	return (struct ledger_ticket){
		.engine = index,
		.sequences = sequences,
		.prompt_tokens = prompt_tokens,
		.uncached_tokens = uncached_tokens,
		.prefill_s = policy_prefill_s(params, engine, prompt_tokens, uncached_tokens),
	};
}

void view_budget_refill(struct view_budget *budget, const struct view_rules *rules, uint64_t now_ns)
{
	budget->moves += (double)(now_ns - budget->since_ns) * 1e-9 * rules->migration_rate;
	if (budget->moves > rules->migration_burst)
		budget->moves = rules->migration_burst;
	budget->since_ns = now_ns;
}

void view_budget_spend(struct view_budget *budget, const struct policy_choice *choice)
{
	if (choice->move == MOVE_MADE)
		budget->moves = budget->moves > 1 ? budget->moves - 1 : 0;
}

/* ---- calibration ---- */

/* An expired ratio does not act: an engine that it kept work from would never show that it is well.
 */
double view_calibration_in_force(const struct view_calibration *c, const struct view_rules *rules,
				 uint64_t now_ns)
{
	return c->learnt_ns + rules->ttft_window > now_ns ? c->ratio : 0;
}

void view_calibration_learn(struct view_calibration *c, const struct view *v,
			    double predicted_raw_s, double ttft_s)
{
	/* Where little is predicted the step under way decides: it says nothing of speed. */
	double step_s = v->params->decode_iteration_s;
	double ratio = (ttft_s + step_s) / (predicted_raw_s + step_s);
	double known = view_calibration_in_force(c, v->rules, v->now_ns);

	if (predicted_raw_s <= 0)
		return;
	if (ratio > calibration_most)
		ratio = calibration_most;
	if (ratio < 1 / calibration_most)
		ratio = 1 / calibration_most;
	/* A geometric mean that begins at 1: one wait that was misjudged shows by a third, not
	 * whole, and a ratio and its inverse cancel out. */
	known = known == 0 ? 1 : known;
	c->ratio = known * pow(ratio / known, calibration_alpha);
	c->learnt_ns = v->now_ns;
}
