/* What the router knows when a request comes, found as the router finds it, and its decision. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "bench/replay_stage.h"

static const uint64_t stall_ns = 10000000000ull; /* an agent's default */

/* ---- engines seen through their agents ---- */

static double pending_tokens(const struct sim *s, const struct sim_engine *e,
			     const struct model_figures *f)
{
	double running = s->arm->prefill_seen != 0 ? (double)f->pending_prefill_tokens : 0;

	return running + (double)model_waiting_uncached(e->model);
}

/* SGLang counts by batch: prefills apart from decodes, and of these the moments. */
static void count_batch(struct sim_engine *e, double step_s, double prefilled, double decoded)
{
	struct engine_reading *t = &e->totals;

	t->has |= READING_PREFILL | READING_MOMENTS;
	if (prefilled > 0) {
		t->prefill_tokens += prefilled;
		t->prefill_s += step_s;
	} else if (decoded > 0) {
		t->moments[MOMENT_N] += 1;
		t->moments[MOMENT_B] += decoded;
		t->moments[MOMENT_T] += step_s;
		t->moments[MOMENT_BB] += decoded * decoded;
		t->moments[MOMENT_BT] += decoded * step_s;
	}
}

void sim_view_step(struct sim *s, struct sim_engine *e, uint64_t later)
{
	double step_s = (double)(s->now_ns - e->step_begin_ns) * 1e-9;
	uint64_t decoded = e->shown.generated_tokens;

	model_figures_get(e->model, &e->shown);
	decoded = e->shown.generated_tokens - decoded;
	if (s->arm->head == REPLAY_HEAD_SGLANG) {
		count_batch(e, step_s, (double)(e->shown.computed_tokens - e->computed_tokens),
			    (double)decoded);
		return;
	}
	/* vLLM's counts each interval between two tokens, whatever else the step did. */
	e->totals.has |= READING_DECODE;
	e->totals.decode_steps += (double)later;
	e->totals.decode_s += (double)later * step_s;
}

/* The record of it, as an agent of that kind makes it. */
static void set_speeds(const struct sim *s, struct sim_engine *e)
{
	struct engine_state *state = &e->state;
	double seconds;

	speeds_feed(&e->speeds, &e->totals);
	if (s->arm->measured == 0)
		return;
	if (speeds_prefill(&e->speeds, &seconds) == 0)
		ENGINE_SET(state, prefill_tokens_per_s, 1 / seconds);
	if (speeds_decode(&e->speeds, e->totals.has & READING_MOMENTS, &seconds) == 0)
		ENGINE_SET(state, decode_iteration_s, seconds);
}

static uint64_t epoch_of(const struct sim_engine *e)
{
	return 1 + e->restarts;
}

/* An agent calls an engine stalled that has work and shows no progress for its --stall. */
static enum engine_health health_of(const struct sim *s, const struct sim_engine *e)
{
	int still = e->stalled_until_ns > s->now_ns && e->sampled.running > 0 &&
		    s->now_ns - e->stalled_ns > stall_ns;

	return still ? ENGINE_HEALTH_STALLED : ENGINE_HEALTH_UP;
}

/* As the router on an engine that refuses connections: nothing is assumed of what comes back. */
void sim_view_lost(struct sim *s, unsigned engine)
{
	ledger_engine_restarted(&s->ledger, engine, s->now_ns);
	prefix_reset(&s->prefix, engine);
}

void sim_view_sample(struct sim *s, unsigned engine)
{
	struct sim_engine *e = &s->engine[engine];
	const struct model_options *options = model_options_of(e->model);
	struct engine_state *state = &e->state;
	const struct model_figures *f = &e->shown;

	if (e->down_until_ns > s->now_ns) { /* nobody answers its agent */
		state->health = ENGINE_HEALTH_DOWN;
		return;
	}
	model_figures_get(e->model, &e->sampled);
	e->sampled_pending_tokens = pending_tokens(s, e, &e->sampled);
	*state = (struct engine_state){ .read_ns = s->now_ns,
					.period_ns = sim_ns(s->arm->sample),
					.epoch = epoch_of(e),
					.health = health_of(s, e) };
	if (s->arm->head == REPLAY_HEAD_SGLANG) {
		f = &e->sampled;
		ENGINE_SET(state, pending_prefill_tokens, (uint64_t)e->sampled_pending_tokens);
		ENGINE_SET(state, decode_context_tokens, f->decode_context_tokens);
	}
	ENGINE_SET(state, running, f->running);
	ENGINE_SET(state, waiting, f->waiting);
	if (s->arm->kv_seen) {
		ENGINE_SET(state, kv_used_tokens, f->blocks_used * MODEL_BLOCK);
		ENGINE_SET(state, kv_capacity_tokens, options->kv_tokens);
	}
	ENGINE_SET(state, max_model_len,
		   options->kv_tokens < options->context_max ? options->kv_tokens
							     : options->context_max);
	ENGINE_SET(state, generation_tokens_total, f->generated_tokens);
	ENGINE_SET(state, prompt_tokens_total, f->prompt_tokens);
	set_speeds(s, e);
	ledger_observe(&s->ledger, &s->ledger_params, engine, state, s->now_ns);
}

/* ---- what a decision is made of ---- */

static int home_of(const struct sim *s, uint32_t session)
{
	uint64_t epochs[STATE_ENGINES_MAX];
	uint32_t home;

	for (unsigned i = 0; i < s->engines; i++)
		epochs[i] = epoch_of(&s->engine[i]);
	home = session_home(&s->session[session], epochs, s->engines);

	return home == SESSION_NO_ENGINE ? -1 : (int)home;
}

/* A live run's content has blocks of its own, as the router hashed them. */
static int chain_live(struct sim *s, uint32_t index)
{
	const struct follow_turn *live = &s->follow->turn[index];
	struct sim_request *r = &s->request[index];

	r->chain = malloc((live->chain_nr + 1) * sizeof(*r->chain));
	if (!r->chain)
		return -ENOMEM;
	memcpy(r->chain, s->follow->chain + live->chain, live->chain_nr * sizeof(*r->chain));
	r->chain_nr = live->chain_nr;
	return 0;
}

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

static void hits(struct sim *s, uint32_t index, uint32_t *ret_hit)
{
	const struct workload_turn *turn = &s->workload->turn[index];
	const struct sim_request *r = &s->request[index];
	struct replay_request *result = &s->run->request[index];
	uint32_t blocks[STATE_ENGINES_MAX] = { 0 };
	struct view_prompt prompt = {
		.answer_lost = s->answers.lost,
		.chain = r->chain,
		.chain_nr = r->chain_nr,
		.prompt_tokens = turn->prompt_tokens,
		.content_bytes = (uint64_t)turn->prompt_tokens * SIM_TOKEN_BYTES,
		.session = &s->session[turn->session],
		.home = home_of(s, turn->session),
	};

	if (s->follow)
		prompt.content_bytes = s->follow->turn[index].content_bytes;
	prefix_match_all(&s->prefix, s->engines, r->chain, r->chain_nr, NULL, blocks);
	view_hits(&prompt, blocks, s->engines, ret_hit);
	for (unsigned i = 0; i < s->engines; i++) {
		uint32_t truly = model_probe(s->engine[i].model, 0, s->ids, turn->prompt_tokens);

		if (truly > result->best_hit_tokens)
			result->best_hit_tokens = truly;
		if (s->arm->cache == REPLAY_CACHE_EXACT)
			ret_hit[i] = view_hit(truly, turn->prompt_tokens);
		if (s->arm->first_hits == 0 && turn->turn == 1)
			ret_hit[i] = 0;
	}
}

/* The engine's figures as they are, or as they were sampled: no books of our own. */
static void view_of(const struct sim *s, const struct sim_engine *e, struct policy_engine *p)
{
	struct model_figures f = e->sampled;
	double pending = e->sampled_pending_tokens;

	if (s->arm->state == REPLAY_STATE_LIVE) {
		model_figures_get(e->model, &f);
		pending = pending_tokens(s, e, &f);
	}
	p->num_requests = (float)(f.running + f.waiting);
	p->decoding = (float)f.decoding;
	p->decode_context_tokens = (float)f.decode_context_tokens;
	p->pending_prefill_tokens = (float)pending;
	if (!s->arm->kv_seen)
		return;
	p->kv_used_tokens = (uint32_t)f.blocks_used * MODEL_BLOCK;
	p->kv_capacity_tokens = (uint32_t)model_options_of(e->model)->kv_tokens;
}

static void fill_engine(struct sim *s, unsigned engine, uint32_t hit, struct policy_engine *p)
{
	struct sim_engine *e = &s->engine[engine];
	struct view v = sim_view(s);
	struct view_engine seen = { .index = engine,
				    .id = engine,
				    .flags = POLICY_SERVES | POLICY_ALIVE,
				    .attached = s->arm->head != REPLAY_HEAD_NONE,
				    .weight = 1,
				    .state = &e->state,
				    .calibration = &e->calibration,
				    .hit_tokens = hit };

	if (e->down_until_ns > s->now_ns)
		seen.flags &= ~(uint32_t)POLICY_ALIVE;
	if (s->arm->params.kv_transfer != 0)
		seen.flags |= POLICY_PULLS | POLICY_SOURCE;
	window_expire(&e->ttft, s->now_ns, s->arm->rules.ttft_window);
	seen.recent_ttft_n = window_n(&e->ttft);
	seen.recent_ttft_s = window_quantile(&e->ttft, s->arm->rules.ttft_quantile);
	view_engine_record(&v, &seen, p);
	if (s->arm->state == REPLAY_STATE_BOOKS)
		view_engine_books(&v, &seen, p);
	else
		view_of(s, e, p);
}

static void fill_request(struct sim *s, uint32_t index, struct policy_request *p)
{
	const struct workload_turn *turn = &s->workload->turn[index];
	struct view v = sim_view(s);
	struct view_request asked = { .cursor = s->cursor,
				      .flags = POLICY_STREAMED,
				      .home = home_of(s, turn->session),
				      .prompt_tokens = turn->prompt_tokens,
				      .turn = turn->turn,
				      .sequences = 1,
				      .session = &s->session[turn->session] };

	if (s->follow)
		asked.max_tokens = s->follow->turn[index].max_tokens;
	asked.random[0] = workload_random(&s->random);
	asked.random[1] = workload_random(&s->random);
	view_budget_refill(&s->moves, &s->arm->rules, s->now_ns);
	view_request_fill(&v, &asked, &s->moves, p);
}

static void fill_peers(struct sim *s, struct peer_engine *peers)
{
	for (; s->sents_old < s->sents; s->sents_old++) {
		const struct sim_sent *sent = &s->sent[s->sents_old];

		if (s->now_ns - sent->at_ns < SIM_PEER_WINDOW_S * 1000000000ull)
			break;
		s->window_prefill_s[sent->engine] -= sent->prefill_s;
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
		r->pull_s += (double)(there - here) *
			     (double)model_profile_of(s->engine[source].model)->kv_bytes_per_token /
			     s->arm->pull_bandwidth;
	s->run->request[index].pulled_tokens = there > here ? there - here : 0;
}

static void note_session(struct sim *s, uint32_t index)
{
	const struct workload_turn *turn = &s->workload->turn[index];
	const struct sim_request *r = &s->request[index];
	struct session_dispatch d = { .engine = (uint32_t)s->choice.engine,
				      .turn = turn->turn,
				      .epoch = epoch_of(&s->engine[s->choice.engine]),
				      .class = s->choice.class,
				      .chain = r->chain,
				      .blocks = r->chain_nr };

	session_dispatched(&s->session[turn->session], &d,
			   (struct session_time){ .ns = s->now_ns });
}

static int note_sent(struct sim *s, uint32_t engine, double prefill_s)
{
	if (s->sents == s->sents_room) {
		size_t room = s->sents_room ? 2 * s->sents_room : 1024;
		struct sim_sent *grown = realloc(s->sent, room * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		s->sent = grown;
		s->sents_room = room;
	}
	s->window_prefill_s[engine] += prefill_s;
	s->sent[s->sents++] = (struct sim_sent){ s->now_ns, prefill_s, engine };
	return 0;
}

static int commit(struct sim *s, uint32_t index, const struct policy_request *request,
		  const struct policy_engine *engines)
{
	const struct policy_choice *choice = &s->choice;
	const struct policy_cost *cost = &choice->cost[choice->engine];
	const struct policy_engine *e = &engines[choice->engine];
	struct sim_request *r = &s->request[index];
	struct replay_request *result = &s->run->request[index];
	uint32_t uncached = request->prompt_tokens - e->hit_tokens;

	result->engine = (int16_t)choice->engine;
	result->home = (int16_t)request->home;
	result->reason = choice->reason;
	result->move = choice->move;
	result->predicted_ttft_s = choice->predicted_ttft_s;
	view_budget_spend(&s->moves, choice);
	s->cursor = choice->cursor;
	r->predicted_raw_s = choice->predicted_raw_s;
	r->expected_tokens = e->hit_tokens;
	if (cost->pull_from >= 0) {
		pull(s, index, (uint32_t)choice->engine, cost->pull_from);
		uncached = cost->uncached_tokens;
	}
	r->ticket = view_ticket(&s->arm->params, e, (uint32_t)choice->engine, 1,
				request->prompt_tokens, uncached);
	r->prefill_s = r->ticket.prefill_s;
	r->ticket.prefill_s += r->pull_s;
	r->before = s->session[s->workload->turn[index].session];
	r->stayed =
		request->home == choice->engine && view_goes_on(&r->before, r->chain, r->chain_nr);
	note_session(s, index);
	return note_sent(s, (uint32_t)choice->engine, r->prefill_s);
}

/* All that one decision is made of. */
struct look {
	struct policy_request request;
	struct policy_engine engines[STATE_ENGINES_MAX];
};

static int look(struct sim *s, uint32_t index, struct look *l)
{
	uint32_t hit[STATE_ENGINES_MAX];
	int err = 0;

	if (!s->request[index].chain) /* it may be decided again */
		err = s->follow ? chain_live(s, index) : chain_of(s, index);
	if (err)
		return err;
	hits(s, index, hit);
	fill_request(s, index, &l->request);
	for (unsigned i = 0; i < s->engines; i++)
		fill_engine(s, i, hit[i], &l->engines[i]);
	stage_sim_fill(s, index, l->engines);
	return 0;
}

static int choose(struct sim *s, uint32_t index, const struct look *l)
{
	const struct replay_arm *arm = s->arm;
	struct peer_engine peers[STATE_ENGINES_MAX];
	int err = 0;

	fill_peers(s, peers);
	if (arm->peer >= 0)
		peer_choose((enum policy_peer)arm->peer, &arm->peer_params, &arm->params,
			    &l->request, l->engines, peers, s->engines, &s->choice);
	else
		policy_choose(&arm->params, &l->request, l->engines, s->engines, &s->choice);
	if (arm->oracle != REPLAY_ORACLE_OFF)
		err = sim_oracle(s, index, l->request.home, &s->choice.engine);
	if (err)
		return err;
	if (s->follow && s->choice.engine >= 0)
		sim_follow(s, index, &l->request, l->engines);
	return s->choice.engine < 0 ? -E2BIG : 0;
}

int sim_hold(struct sim *s, uint32_t index)
{
	struct sim_request *r = &s->request[index];
	struct look l;
	int err = look(s, index, &l);

	err = err ? err : choose(s, index, &l);
	if (err)
		return err;
	r->held = malloc(policy_choice_size(s->engines));
	if (!r->held)
		return -ENOMEM;
	memcpy(r->held, &s->choice, policy_choice_size(s->engines));
	memcpy(r->draw, l.request.random, sizeof(r->draw));
	r->held_tokens = l.request.prompt_tokens - l.engines[s->choice.engine].hit_tokens;
	ledger_held(&s->ledger, (unsigned)s->choice.engine, 1, (int64_t)r->held_tokens);
	return 0;
}

/* Of what was held: its own hold is taken back first, it must not be what sends it away. */
static int choose_again(struct sim *s, uint32_t index, struct look *l)
{
	struct sim_request *r = &s->request[index];
	int err;

	ledger_held(&s->ledger, (unsigned)r->held->engine, -1, -(int64_t)r->held_tokens);
	err = look(s, index, l);
	memcpy(l->request.random, r->draw, sizeof(r->draw));
	if (!err && s->arm->recheck != 0 && s->arm->peer < 0)
		s->run->rerouted += (uint64_t)policy_reprice(
			&s->arm->params, &l->request, l->engines, s->engines, r->held, &s->choice);
	else
		memcpy(&s->choice, r->held, policy_choice_size(s->engines));
	free(r->held);
	r->held = NULL;
	return err ? err : s->choice.engine < 0 ? -E2BIG : 0;
}

int sim_decide(struct sim *s, uint32_t index)
{
	struct look l;
	int err;

	if (s->request[index].held) {
		err = choose_again(s, index, &l);
	} else {
		err = look(s, index, &l);
		err = err ? err : choose(s, index, &l);
	}
	if (err)
		return err;
	s->waits = stage_sim_waits(s, index, &l.engines[s->choice.engine]);
	if (s->waits)
		return 0;
	stage_sim_decided(s, index, &l.engines[s->choice.engine]);
	return commit(s, index, &l.request, l.engines);
}

/* ---- what comes back ---- */

void sim_view_first_token(struct sim *s, struct sim_engine *e, const struct sim_request *r,
			  double ttft_s, uint32_t cached_tokens)
{
	int missed = cached_tokens + VIEW_HOME_SLACK_TOKENS < r->expected_tokens;
	struct view v = sim_view(s);

	window_add(&e->ttft, s->now_ns, ttft_s);
	if (!missed || s->arm->calibrate_misses != 0)
		view_calibration_learn(&e->calibration, &v, r->predicted_raw_s, ttft_s);
}

/* When it is over. */
void sim_view_computed(struct sim *s, unsigned engine, const struct model_life *life)
{
	struct engine_reading *t = &s->engine[engine].totals;

	if (s->arm->head == REPLAY_HEAD_SGLANG) /* counts by batch */
		return;
	t->has |= READING_PREFILL | READING_PREFILLS;
	t->prefill_tokens += (double)(life->prompt_tokens - life->cached_tokens);
	t->prefill_s += (double)(life->first_token_ns - life->started_ns) * 1e-9;
	t->prefills += 1;
}

void sim_view_finished(struct sim *s, const struct workload_turn *turn, const struct sim_request *r,
		       const struct model_event *event)
{
	const struct model_life *life = &event->life;
	struct session_result result = { .turn = turn->turn,
					 .prompt_tokens = turn->prompt_tokens,
					 .completion_tokens = turn->output_tokens,
					 .cached_tokens = life->cached_tokens };

	sim_view_computed(s, r->ticket.engine, life);
	/* Pieces find one another, and say nothing of the answer before. */
	if (r->stayed && sim_lane(s, (uint32_t)(turn - s->workload->turn))->way == STAGE_WHOLE)
		view_answers_learn(&s->answers, &r->before, turn->prompt_tokens,
				   life->cached_tokens);
	session_answered(&s->session[turn->session], &result,
			 (struct session_time){ .ns = s->now_ns });
}
