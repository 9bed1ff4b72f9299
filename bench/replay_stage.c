/* The waiting room and pieces in replay: who waits, what is sent next, and what that costs. */
#include "bench/replay_stage.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double expects_s = 60; /* memory of how often short requests come */

enum { GUARD_KEY = 1 }; /* one model, one shape */

/* ---- begin and end ---- */

int stage_sim_new(struct sim *s)
{
	uint32_t limit = (uint32_t)s->workload->turns + 1;

	s->stage = calloc(1, sizeof(*s->stage));
	if (!s->stage)
		return -ENOMEM;
	s->stage->lane = calloc(limit, sizeof(*s->stage->lane));
	s->stage->room_memory = malloc(admit_size(limit));
	if (!s->stage->lane || !s->stage->room_memory)
		return -ENOMEM;
	admit_init(&s->stage->room, &s->arm->admit, s->stage->room_memory, limit);
	for (unsigned i = 0; i < s->engines; i++)
		s->stage->engine[i].due_ns = REQUEUE_NEVER;
	if (s->arm->rescue == 0)
		return 0;
	return sim_push(s, SIM_BEGIN_NS + STAGE_TICK_MS * 1000000ull, EVENT_TICK, 0);
}

void stage_sim_free(struct sim *s)
{
	if (!s->stage)
		return;
	free(s->stage->lane);
	free(s->stage->room_memory);
	free(s->stage);
}

static void check_engine(const struct sim *s, unsigned engine, uint64_t *submitted)
{
	struct ledger_sums sums;
	struct model_figures f;

	ledger_books_get(&s->ledger, engine, &sums);
	model_figures_get(s->engine[engine].model, &f);
	/* An engine that hangs to the end still has what was abandoned there. */
	assert(sums.requests == s->stage->engine[engine].left && sums.decoding == 0);
	assert(sums.requests || (sums.waiting_tokens == 0 && sums.pieces == 0));
	assert(sums.staged_rest_tokens == 0 && sums.cold_prompts == 0);
	assert(sums.held == 0 && sums.held_tokens == 0);
	assert(sums.dispatched_total == f.submitted + s->stage->engine[engine].lefts);
	assert(f.submitted == f.finished + f.aborted + f.running + f.waiting);
	assert(s->stage->requeue.engine[engine].cold == NULL);
	assert(s->stage->requeue.engine[engine].waiting == 0);
	*submitted += f.submitted;
}

/* Requests and pieces sent = ended + taken back; tokens computed = what each part did not find. */
void stage_sim_check(const struct sim *s)
{
	uint64_t submitted = 0, computed = 0, abandoned = 0, preemptions = 0;
	const struct replay_stage_counts *n = &s->run->stage;

	for (unsigned i = 0; i < s->engines; i++) {
		struct model_figures f;

		check_engine(s, i, &submitted);
		model_figures_get(s->engine[i].model, &f);
		computed += f.computed_tokens;
		abandoned += f.abandoned_tokens;
		preemptions += f.preemptions;
	}
	assert(s->stage->room.nr == 0 && s->stage->room.entered_total == n->waited);
	assert(submitted == s->run->requests + n->pieces + s->stage->aborts);
	assert(n->pieces >= n->pieces_done);
	if (preemptions == 0) /* what is computed twice has no part of its own */
		assert(computed - abandoned == s->stage->computed_tokens);
}

/* ---- the waiting room ---- */

static uint64_t cold_on(const struct sim *s, unsigned engine)
{
	struct ledger_sums sums;

	ledger_books_get(&s->ledger, engine, &sums);
	return sums.cold_prompts;
}

static void hold(struct sim *s, struct admit_entry *entry, int by)
{
	if (entry->engine >= 0)
		ledger_held(&s->ledger, (unsigned)entry->engine, by, by * (int64_t)entry->tokens);
}

void stage_sim_fill(struct sim *s, uint32_t index, struct policy_engine *engines)
{
	uint64_t excluded = sim_lane(s, index)->excluded;

	for (unsigned i = 0; i < s->engines; i++) {
		struct ledger_sums sums;

		if (excluded >> i & 1)
			engines[i].flags |= POLICY_EXCLUDED;
		/* The step that is planned already does not give way either. */
		if (s->arm->scheduling == REPLAY_SCHEDULING_ASYNC)
			engines[i].requeueable_tokens -= fminf(
				engines[i].requeueable_tokens,
				(float)model_options_of(s->engine[i].model)->long_prefill_cap);
		if (s->arm->state == REPLAY_STATE_BOOKS)
			continue;
		ledger_books_get(&s->ledger, i, &sums);
		engines[i].staged_rest_tokens = (float)(sums.staged_rest_tokens + sums.held_tokens);
	}
}

static int must_wait(const struct sim *s, const struct policy_engine *engine, uint32_t uncached,
		     enum admit_wait *ret_what)
{
	const struct admit_params *params = &s->arm->admit;

	*ret_what = ADMIT_COLD;
	if (admit_is_cold(params, uncached) &&
	    !admit_takes_cold(params, cold_on(s, (unsigned)s->choice.engine)))
		return 1;
	*ret_what = ADMIT_ROOM;
	return !admit_has_room(params, engine->num_requests);
}

int stage_sim_waits(struct sim *s, uint32_t index, const struct policy_engine *engine)
{
	struct admit_entry *entry = &sim_lane(s, index)->entry;
	uint32_t prompt = s->workload->turn[index].prompt_tokens;
	uint32_t uncached = s->choice.cost[s->choice.engine].uncached_tokens;
	enum admit_wait what;

	if (uncached > prompt - engine->hit_tokens || uncached == 0)
		uncached = prompt - engine->hit_tokens;
	if (!must_wait(s, engine, uncached, &what))
		return 0;
	if (!entry->waiting) {
		int err = admit_enter(&s->stage->room, &s->arm->admit, entry, what, s->choice.class,
				      s->now_ns);

		assert(!err); /* as much room as there are requests */
		s->run->stage.waited++;
	}
	entry->engine = s->choice.engine;
	entry->tokens = uncached;
	hold(s, entry, 1);
	return 1;
}

static int slot_free(const struct sim *s)
{
	for (unsigned i = 0; i < s->engines; i++)
		if (admit_takes_cold(&s->arm->admit, cold_on(s, i)))
			return 1;
	return 0;
}

/* Decides one who waits again; those ahead of it have been, and are counted again. */
static int decide_again(struct sim *s, uint32_t index)
{
	struct sim_lane *lane = sim_lane(s, index);
	double waited_s = (double)(s->now_ns - lane->entry.since_ns) * 1e-9;
	int err;

	sim_prompt(s, index);
	err = sim_decide(s, index);
	if (err == -E2BIG && sim_back_ns(s) != MODEL_NEVER) { /* it waits on for any to come back */
		hold(s, &lane->entry, 1);
		return 0;
	}
	if (err || s->waits)
		return err;
	err = sim_measure(s, index);
	if (err)
		return err;
	admit_release(&s->stage->room, &lane->entry, s->now_ns);
	s->run->stage.waited_s += waited_s;
	s->run->request[index].predicted_ttft_s += waited_s;
	return stage_sim_send(s, index, s->arm->piece_api);
}

/* Late binding: whoever waits is decided anew, in order, as long as somebody may go. */
static int release_all(struct sim *s, enum admit_wait what)
{
	struct admit_entry *entry;
	struct admit_walk walk;
	int err = 0;

	admit_walk_begin(&walk, &s->stage->room, what);
	while ((entry = admit_walk_next(&walk)) != NULL)
		hold(s, entry, -1);
	admit_walk_begin(&walk, &s->stage->room, what);
	while (!err && (entry = admit_walk_next(&walk)) != NULL) {
		/* A lane begins with its entry. */
		uint32_t index = (uint32_t)((struct sim_lane *)entry - s->stage->lane);

		if (what == ADMIT_COLD && !slot_free(s))
			hold(s, entry, 1);
		else
			err = decide_again(s, index);
	}
	return err;
}

int stage_sim_release(struct sim *s)
{
	int err = 0;

	if (s->stage->releasing)
		return 0;
	s->stage->releasing = 1;
	if (admit_waiting(&s->stage->room, ADMIT_COLD) && slot_free(s))
		err = release_all(s, ADMIT_COLD);
	if (!err && admit_waiting(&s->stage->room, ADMIT_ROOM))
		err = release_all(s, ADMIT_ROOM);
	s->stage->releasing = 0;
	return err;
}

int stage_sim_arrive(struct sim *s, uint32_t index)
{
	int err;

	sim_prompt(s, index);
	err = sim_decide(s, index);
	if (err == -E2BIG)
		return sim_nowhere(s, index);
	if (err || s->waits)
		return err;
	err = sim_measure(s, index);
	return err ? err : stage_sim_send(s, index, 0);
}

void stage_sim_decided(struct sim *s, uint32_t index, const struct policy_engine *engine)
{
	const struct policy_cost *cost = &s->choice.cost[s->choice.engine];
	struct sim_lane *lane = sim_lane(s, index);

	lane->seen = *engine;
	lane->start_s = cost->step_s + cost->queue_s;
	lane->committed_ns = s->now_ns;
}

double stage_sim_took_s(const struct sim *s, uint32_t index)
{
	return (double)(s->now_ns - s->stage->lane[index].committed_ns) * 1e-9;
}

/* ---- which way it goes ---- */

/* Short requests a second on this engine, by those of the last minute. */
static double expected_rate(struct sim *s, unsigned engine, int comes)
{
	double since_s = (double)(s->now_ns - s->stage->engine[engine].expects_ns) * 1e-9;
	double *expects = &s->stage->engine[engine].expects;

	*expects = *expects * exp(-since_s / expects_s) + comes;
	s->stage->engine[engine].expects_ns = s->now_ns;
	return *expects / expects_s;
}

static int uncuttable(const struct sim *s, uint32_t index)
{
	uint64_t draw = workload_key(s->workload->turn[index].session, 77);

	return (double)(draw >> 11) * 0x1p-53 < s->arm->uncuttable;
}

static enum stage_way way_of(struct sim *s, uint32_t index, struct stage_plan *ret_plan)
{
	struct sim_lane *lane = sim_lane(s, index);
	const struct sim_request *r = &s->request[index];
	const struct policy_engine *seen = &lane->seen;
	const struct model_options *options = model_options_of(s->engine[r->ticket.engine].model);
	double rate = expected_rate(s, r->ticket.engine, 0);
	struct stage_case c = {
		.body = uncuttable(s, index) ? STAGE_BODY_UNCUT : 0,
		.prompt_tokens = r->ticket.prompt_tokens,
		.hit_tokens = r->ticket.prompt_tokens - r->ticket.uncached_tokens,
		.guarded = (uint32_t)stage_guard_shape_off(&s->stage->guard, GUARD_KEY, s->now_ns),
		.prefill_s = (float)r->prefill_s,
		.engine = { .flags = STAGE_ENGINE_STAGES | STAGE_ENGINE_REQUEUES,
			    .step_tokens = options->budget_tokens,
			    .block_tokens = MODEL_BLOCK,
			    .kv_capacity_tokens = seen->kv_capacity_tokens,
			    .kv_free_tokens =
				    seen->kv_capacity_tokens > seen->kv_used_tokens
					    ? seen->kv_capacity_tokens - seen->kv_used_tokens
					    : 0,
			    .others = seen->num_requests,
			    .expected_s = rate > 0 ? (float)(1 / rate) : 0 },
	};
	enum stage_reason reason;
	enum stage_way way;

	if (stage_guard_engine_off(&s->stage->guard, r->ticket.engine, s->now_ns))
		c.engine.flags |= STAGE_ENGINE_OFF;
	way = stage_choose(&s->arm->stage, &c, &reason);
	s->run->stage.reason[reason]++;
	if (way == STAGE_IN_PIECES)
		stage_plan_make(&s->arm->stage, &c, ret_plan);
	if (way == STAGE_BY_REQUEUE &&
	    !requeue_may(&s->stage->requeue, r->ticket.engine, s->now_ns))
		return STAGE_WHOLE;
	return way;
}

static void book_staged(struct sim *s, uint32_t index, uint32_t tokens)
{
	struct sim_lane *lane = sim_lane(s, index);

	ledger_staged(&s->ledger, s->request[index].ticket.engine,
		      (int64_t)tokens - (int64_t)lane->staged_tokens);
	lane->staged_tokens = tokens;
}

/* The request itself, with what is left of it by now. */
static int send_request(struct sim *s, uint32_t index, uint32_t cached, double after_s)
{
	struct sim_lane *lane = sim_lane(s, index);
	struct ledger_ticket *ticket = &s->request[index].ticket;
	uint32_t uncached = ticket->prompt_tokens - cached;

	book_staged(s, index, 0);
	if (uncached != ticket->uncached_tokens) {
		ticket->uncached_tokens = uncached;
		ticket->prefill_s = policy_prefill_s(&s->arm->params, &lane->seen,
						     ticket->prompt_tokens, uncached);
	}
	ledger_dispatch(&s->ledger, ticket, s->now_ns);
	lane->sends++;
	if (after_s > 0)
		return sim_push_part(s, EVENT_SUBMIT, index, after_s);
	return sim_submit(s, index);
}

static int send_piece(struct sim *s, uint32_t index, double after_s)
{
	struct sim_lane *lane = sim_lane(s, index);
	const struct stage_next *next = &lane->next;
	uint32_t thrown = (uint32_t)s->arm->piece_overhead;
	uint32_t tokens = next->cut_tokens + thrown;

	book_staged(s, index, next->rest_tokens);
	lane->piece = view_ticket(&s->arm->params, &lane->seen, s->request[index].ticket.engine, 1,
				  tokens, tokens - next->expected_tokens);
	lane->piece.flags = LEDGER_PIECE;
	ledger_dispatch(&s->ledger, &lane->piece, s->now_ns);
	s->run->stage.pieces++;
	sim_note_piece(s, index, lane->piece.engine, next->cut_tokens);
	if (after_s > 0)
		return sim_push_part(s, EVENT_PIECE, index, after_s);
	return stage_sim_piece_due(s, index);
}

static int do_next(struct sim *s, uint32_t index, double after_s)
{
	struct sim_lane *lane = sim_lane(s, index);

	switch (lane->next.action) {
	case STAGE_SEND_PIECE:
		return send_piece(s, index, after_s);
	case STAGE_GIVE_UP:
		s->run->stage.reason[lane->next.reason]++;
		/* fall through */
	case STAGE_SEND_REQUEST:
		return send_request(s, index, lane->next.expected_tokens, after_s);
	case STAGE_NOTHING:
	case STAGE_PLACE:
	case STAGE_DROP:
	case STAGE_ACTIONS_NR:
		break;
	}
	assert(!"nothing else comes of a piece here");
	return -EINVAL;
}

int stage_sim_send(struct sim *s, uint32_t index, double after_s)
{
	struct sim_request *r = &s->request[index];
	struct sim_lane *lane = sim_lane(s, index);
	struct stage_plan plan;

	lane->slot = (uint32_t)admit_is_cold(&s->arm->admit, r->ticket.uncached_tokens);
	if (lane->slot)
		ledger_cold(&s->ledger, r->ticket.engine, 1);
	lane->way = r->pull_s > 0 ? STAGE_WHOLE : way_of(s, index, &plan);
	s->run->stage.staged += lane->way == STAGE_IN_PIECES;
	if (lane->way != STAGE_WHOLE && s->arm->calibrate_staged == 0)
		r->predicted_raw_s = 0; /* what pieces cost it says nothing of the engine */
	if (!lane->slot)
		expected_rate(s, r->ticket.engine, 1);
	if (lane->way == STAGE_IN_PIECES) {
		stage_begin(&lane->stage, &plan, &lane->next);
		return do_next(s, index, after_s);
	}
	if (lane->way == STAGE_BY_REQUEUE)
		r->ticket.flags |= LEDGER_REQUEUEABLE;
	return send_request(s, index, r->ticket.prompt_tokens - r->ticket.uncached_tokens,
			    after_s + r->pull_s);
}

/* ---- pieces ---- */

/* The prefix, and behind it what a piece computes for nothing; a piece that misses has a salt. */
static void piece_make(struct sim *s, uint32_t index, struct model_submission *ret)
{
	struct sim_lane *lane = sim_lane(s, index);
	uint32_t cut = lane->next.cut_tokens, thrown = (uint32_t)s->arm->piece_overhead;
	uint64_t key = workload_key(index, 1000 + lane->stage.pieces);

	sim_prompt(s, index);
	for (uint32_t i = 0; i < thrown; i++)
		s->ids[cut + i] = (uint32_t)(key >> 8) + i * 2654435761u;
	s->ids_are = 0;
	*ret = (struct model_submission){ .tag = SIM_PIECE | index,
					  .prompt = s->ids,
					  .prompt_tokens = cut + thrown,
					  .output_tokens = 1,
					  .salt = s->arm->pieces_hit != 0 ? 0 : key,
					  .output_seed = key };
}

/* Until when the next part is held back for others' sake. */
static double pause_s(struct sim *s, uint32_t index, unsigned engine, double piece_s)
{
	struct sim_lane *lane = sim_lane(s, index);
	uint64_t began_ns = s->stage->engine[engine].began_ns;
	struct ledger_sums sums;
	struct stage_others others;

	ledger_books_get(&s->ledger, engine, &sums);
	others = (struct stage_others){
		.waiting = (uint32_t)sums.user_waiting_requests,
		.decoding = (uint32_t)sums.decoding,
		.waiting_s = sums.waiting_prefill_s,
		.began_s = began_ns ? (double)(s->now_ns - began_ns) * 1e-9 : INFINITY,
		.piece_s = piece_s,
	};
	return stage_pause_s(&lane->stage, &s->arm->stage, &lane->next, &others);
}

/* A part is over, or the pause after it. */
static int go_on(struct sim *s, uint32_t index, double piece_s)
{
	double after_s = pause_s(s, index, s->request[index].ticket.engine, piece_s);

	if (after_s <= 0)
		return do_next(s, index, s->arm->piece_api);
	return sim_push_part(s, EVENT_GRACE, index, after_s);
}

int stage_sim_grace(struct sim *s, uint32_t index)
{
	s->request[index].submit_ns = 0;
	return go_on(s, index, 0);
}

int stage_sim_piece_due(struct sim *s, uint32_t index)
{
	struct sim_lane *lane = sim_lane(s, index);
	struct sim_engine *e = &s->engine[lane->piece.engine];
	struct model_submission submission;
	int err;

	s->request[index].submit_ns = 0;
	piece_make(s, index, &submission);
	model_figures_get(e->model, &lane->before);
	lane->sent_ns = s->now_ns;
	stage_sim_comes(s, lane->piece.engine);
	err = model_submit(e->model, &submission, s->now_ns, &lane->model);
	return err ? err : sim_kick(s, lane->piece.engine);
}

/* What can be seen of it: by one of the three sources, or by none. */
static enum stage_verdict verdict_of(const struct sim *s, const struct sim_lane *lane,
				     const struct model_life *life)
{
	const struct sim_engine *e = &s->engine[lane->piece.engine];
	uint32_t prompt = life->prompt_tokens, expected = lane->next.expected_tokens;
	struct stage_evidence seen = { .prompt_tokens = prompt,
				       .expected_tokens = expected,
				       .cached_tokens = life->cached_tokens };
	struct model_figures now;
	enum stage_source source;

	model_figures_get(e->model, &now);
	seen.hit_tokens = now.hit_tokens - lane->before.hit_tokens;
	seen.queried_tokens = now.queried_tokens - lane->before.queried_tokens;
	seen.took_s = (double)(s->now_ns - lane->sent_ns) * 1e-9;
	seen.hit_s = policy_prefill_s(&s->arm->params, &lane->seen, prompt, prompt - expected);
	seen.miss_s = policy_prefill_s(&s->arm->params, &lane->seen, prompt, prompt);
	switch ((int)s->arm->evidence) {
	case STAGE_SOURCE_CACHED:
		seen.sees = STAGE_SEES_CACHED;
		break;
	case STAGE_SOURCE_COUNTER:
		seen.sees = STAGE_HAS_COUNTERS | STAGE_SEES_COUNTERS;
		break;
	case STAGE_SOURCE_TIME:
		seen.sees = STAGE_SEES_TIME;
		if (lane->before.running + lane->before.waiting == 0 &&
		    now.submitted == lane->before.submitted + 1)
			seen.sees |= STAGE_SEES_IDLE;
		break;
	default:
		break;
	}
	return stage_judge(&s->arm->stage, &seen, &source);
}

int stage_sim_piece_done(struct sim *s, uint32_t index, const struct model_event *event)
{
	struct sim_lane *lane = sim_lane(s, index);
	struct sim_request *r = &s->request[index];
	unsigned engine = lane->piece.engine;
	enum stage_verdict verdict = verdict_of(s, lane, &event->life);

	lane->model = NULL;
	s->run->stage.pieces_done++;
	s->stage->computed_tokens += event->life.prompt_tokens - event->life.cached_tokens;
	sim_view_computed(s, engine, &event->life);
	ledger_first_token(&s->ledger, &lane->piece, s->now_ns);
	ledger_end(&s->ledger, &lane->piece, LEDGER_COMPLETED, s->now_ns);
	if (s->arm->pieces_hit != 0)
		prefix_insert(&s->prefix, engine, r->chain, lane->next.cut_tokens / SIM_BLOCK);
	if (stage_guard_note(&s->stage->guard, &s->arm->stage, GUARD_KEY, engine,
			     lane->stage.done + 1, &verdict, s->now_ns) != STAGE_NO_NEWS)
		s->run->stage.guards++;
	stage_event(&lane->stage, &s->arm->stage, STAGE_EVENT_PIECE_DONE, verdict, &lane->next);
	return go_on(s, index, (double)(s->now_ns - lane->sent_ns) * 1e-9);
}

/* ---- the request itself ---- */

int stage_sim_started(struct sim *s, uint32_t index, const struct model_event *event)
{
	struct sim_lane *lane = sim_lane(s, index);

	if (!lane->looked_up)
		s->run->request[index].cached_tokens = event->life.cached_tokens;
	lane->looked_up = 1;
	return 0;
}

int stage_sim_submitted(struct sim *s, uint32_t index, struct model_request *model)
{
	struct sim_lane *lane = sim_lane(s, index);

	lane->model = model;
	lane->sent_ns = s->now_ns;
	if (lane->way == STAGE_BY_REQUEUE)
		return requeue_sim_running(s, index);
	return lane->slot ? 0 : requeue_sim_passes(s, index);
}

/* Whatever becomes of it: its places in the books are free. */
void stage_sim_drop_books(struct sim *s, uint32_t index)
{
	struct sim_lane *lane = sim_lane(s, index);

	book_staged(s, index, 0);
	if (lane->slot)
		ledger_cold(&s->ledger, s->request[index].ticket.engine, -1);
	lane->slot = 0;
	requeue_over(&s->stage->requeue, &lane->cold);
}

int stage_sim_first_token(struct sim *s, uint32_t index)
{
	struct sim_lane *lane = sim_lane(s, index);
	int err;

	if (lane->stage.state == STAGE_STATE_REQUEST)
		stage_event(&lane->stage, &s->arm->stage, STAGE_EVENT_ENDED, STAGE_UNCLEAR,
			    &lane->next);
	if (!lane->slot)
		s->stage->engine[s->request[index].ticket.engine].began_ns = s->now_ns;
	stage_sim_drop_books(s, index);
	err = requeue_sim_leaves(s, index);
	return err ? err : stage_sim_release(s);
}

int stage_sim_finished(struct sim *s, uint32_t index, const struct model_event *event)
{
	struct sim_lane *lane = sim_lane(s, index);
	uint32_t found = event->life.cached_tokens, hit = s->run->request[index].cached_tokens;

	lane->model = NULL;
	s->stage->computed_tokens += event->life.prompt_tokens - event->life.cached_tokens;
	if (requeue_kept(&s->stage->requeue, &s->arm->stage, &lane->cold,
			 found > hit ? found - hit : 0, s->now_ns))
		s->run->stage.guards++;
	return stage_sim_release(s);
}
