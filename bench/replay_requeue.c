/* Requeue and rescue in replay: cold prompts taken back, requests taken off an engine that hangs.
 */
#include "bench/replay_stage.h"

#include <errno.h>
#include <string.h>

enum { REQUEUE_SEEN_NS = 1000000 }; /* from an engine's token to what the router does of it */

/* The part under way is closed; what the engine had looked up of the first one is its hit. */
static void take_back(struct sim *s, uint32_t index)
{
	struct sim_lane *lane = sim_lane(s, index);
	struct model_life life;

	if (!lane->model)
		return;
	model_request_life(lane->model, &life);
	if (!lane->looked_up && life.started_ns != MODEL_NEVER) {
		s->run->request[index].cached_tokens = life.cached_tokens;
		lane->looked_up = 1;
	}
	model_abort(s->engine[s->request[index].ticket.engine].model, lane->model);
	lane->model = NULL;
	s->stage->aborts += lane->stage.state != STAGE_STATE_OVER; /* else it was a piece */
}

/* ---- requeue ---- */

static int close_cold(struct sim *s, uint32_t index)
{
	struct sim_lane *lane = sim_lane(s, index);
	struct sim_request *r = &s->request[index];
	uint32_t rest = r->ticket.uncached_tokens - lane->cold.computed_tokens;
	uint32_t held = r->ticket.prompt_tokens - rest;

	take_back(s, index);
	ledger_end(&s->ledger, &r->ticket, LEDGER_ABORTED, s->now_ns);
	ledger_staged(&s->ledger, r->ticket.engine, rest);
	lane->staged_tokens = rest;
	prefix_insert(&s->prefix, r->ticket.engine, r->chain, held / SIM_BLOCK);
	s->run->stage.closes++;
	return 0;
}

/* The same bytes again: its rest is ahead of others once more. */
static int send_again(struct sim *s, uint32_t index)
{
	struct sim_lane *lane = sim_lane(s, index);
	struct ledger_ticket *ticket = &s->request[index].ticket;
	uint32_t rest = lane->staged_tokens;

	ledger_staged(&s->ledger, ticket->engine, -(int64_t)rest);
	lane->staged_tokens = 0;
	ticket->uncached_tokens = rest;
	ticket->prefill_s =
		policy_prefill_s(&s->arm->params, &lane->seen, ticket->prompt_tokens, rest);
	ledger_dispatch(&s->ledger, ticket, s->now_ns);
	lane->sends++;
	return sim_push_part(s, EVENT_SUBMIT, index, s->arm->requeue_api);
}

static uint32_t index_of(struct sim *s, struct requeue_cold *cold)
{
	char *lane = (char *)cold - offsetof(struct sim_lane, cold);

	return (uint32_t)((struct sim_lane *)lane - s->stage->lane);
}

int stage_sim_poll(struct sim *s, unsigned engine)
{
	struct requeue *rq = &s->stage->requeue;
	enum requeue_action action;
	struct requeue_cold *cold;
	uint64_t due_ns;
	int err = 0;

	while (!err && (action = requeue_poll(rq, &s->arm->stage, engine, s->now_ns, &cold)) !=
			       REQUEUE_NOTHING)
		err = action == REQUEUE_CLOSE ? close_cold(s, index_of(s, cold))
					      : send_again(s, index_of(s, cold));
	due_ns = requeue_due_ns(rq, &s->arm->stage, engine);
	if (err || due_ns == REQUEUE_NEVER || due_ns <= s->now_ns ||
	    due_ns == s->stage->engine[engine].due_ns)
		return err;
	s->stage->engine[engine].due_ns = due_ns;
	return sim_push(s, due_ns, EVENT_REQUEUE, engine);
}

int requeue_sim_passes(struct sim *s, uint32_t index)
{
	unsigned engine = s->request[index].ticket.engine;

	requeue_enter(&s->stage->requeue, &sim_lane(s, index)->pass, engine);
	return stage_sim_poll(s, engine);
}

int requeue_sim_leaves(struct sim *s, uint32_t index)
{
	unsigned engine = s->request[index].ticket.engine;

	requeue_leave(&s->stage->requeue, &sim_lane(s, index)->pass);
	if (!s->stage->requeue.engine[engine].cold)
		return 0;
	/* The engine's next step has begun before anybody can act on this one's tokens. */
	return sim_push(s, s->now_ns + REQUEUE_SEEN_NS, EVENT_REQUEUE, engine);
}

int requeue_sim_running(struct sim *s, uint32_t index)
{
	struct sim_lane *lane = sim_lane(s, index);
	const struct ledger_ticket *ticket = &s->request[index].ticket;
	const struct model_options *options = model_options_of(s->engine[ticket->engine].model);
	uint32_t step = options->long_prefill_cap;
	double rate = ticket->prefill_s > 0 ? ticket->uncached_tokens / ticket->prefill_s
					    : s->arm->params.throughput;
	struct requeue_send send = { .uncached_tokens = ticket->uncached_tokens,
				     .step_tokens = step,
				     .going_tokens = options->async ? 2 * step : step,
				     .tokens_per_s = rate,
				     .step_s = step / rate,
				     .start_ns = s->now_ns };

	if (lane->sends == 1)
		send.start_ns += sim_ns(lane->start_s);
	requeue_sent(&s->stage->requeue, &lane->cold, ticket->engine, &send, s->now_ns);
	return stage_sim_poll(s, ticket->engine);
}

/* ---- restarts ---- */

/* On its engine, on its way to it, or between two parts of it. */
static int is_on(const struct sim *s, uint32_t index, unsigned engine)
{
	const struct sim_request *r = &s->request[index];
	const struct sim_lane *lane = &s->stage->lane[index];

	return r->chain && !r->held && !lane->entry.waiting && lane->committed_ns != 0 &&
	       r->ticket.engine == engine;
}

/* A ticket of a part that had not reached the engine. */
static int unsent(struct sim *s, const struct sim_lane *lane, const struct ledger_ticket *ticket)
{
	int so = ticket->phase != LEDGER_FREE && !lane->model;

	s->stage->engine[ticket->engine].lefts += (uint64_t)so;
	return so;
}

static void lose(struct sim *s, uint32_t index)
{
	struct sim_lane *lane = sim_lane(s, index);
	struct sim_request *r = &s->request[index];
	int piece = lane->piece.phase != LEDGER_FREE;

	s->stage->aborts += lane->model && !piece;
	s->run->stage.pieces -= (uint64_t)unsent(s, lane, &lane->piece);
	unsent(s, lane, &r->ticket);
	ledger_end(&s->ledger, &lane->piece, LEDGER_FAILED, s->now_ns);
	ledger_end(&s->ledger, &r->ticket, LEDGER_FAILED, s->now_ns);
	stage_sim_drop_books(s, index);
	requeue_leave(&s->stage->requeue, &lane->pass);
	memset(&lane->stage, 0, sizeof(lane->stage));
	lane->model = NULL;
	lane->committed_ns = 0;
	lane->sends = lane->looked_up = 0;
}

int stage_sim_lose_all(struct sim *s, unsigned engine)
{
	int err = 0;

	for (uint32_t i = 0; i < s->run->requests && !err; i++) {
		struct ledger_ticket *left = &s->stage->lane[i].left;

		if (left->phase != LEDGER_FREE && left->engine == engine) {
			ledger_end(&s->ledger, left, LEDGER_ABORTED, s->now_ns);
			s->stage->engine[engine].left--;
		}
		if (!is_on(s, i, engine))
			continue;
		lose(s, i);
		err = sim_resend(s, i);
	}
	return err;
}

/* ---- rescue ---- */

static int sim_busy(const struct sim_engine *e)
{
	struct model_figures f;

	model_figures_get(e->model, &f);
	return f.running + f.waiting > 0;
}

int stage_sim_step(struct sim *s, unsigned engine)
{
	s->stage->engine[engine].alive_ns = s->now_ns;
	if (s->stage->engine[engine].left == 0)
		return 0;
	/* It has shown what was abandoned there gone. */
	for (size_t i = 0; i < s->run->requests; i++) {
		struct ledger_ticket *left = &s->stage->lane[i].left;

		if (left->phase == LEDGER_FREE || left->engine != engine)
			continue;
		ledger_end(&s->ledger, left, LEDGER_ABORTED, s->now_ns);
		s->stage->engine[engine].left--;
	}
	return stage_sim_release(s);
}

/* The hanging engine keeps it in its books, under a ticket of its own. */
static void leave_behind(struct sim *s, uint32_t index, struct ledger_ticket *ticket)
{
	struct sim_lane *lane = sim_lane(s, index);

	if (ticket->phase != LEDGER_SENT)
		return;
	lane->left = (struct ledger_ticket){ .engine = ticket->engine,
					     .sequences = 1,
					     .flags = ticket->flags & LEDGER_PIECE,
					     .prompt_tokens = ticket->prompt_tokens,
					     .uncached_tokens = ticket->uncached_tokens,
					     .prefill_s = ticket->prefill_s };
	ledger_end(&s->ledger, ticket, LEDGER_ABORTED, s->now_ns);
	ledger_dispatch(&s->ledger, &lane->left, s->now_ns);
	s->stage->engine[ticket->engine].left++;
	s->stage->engine[ticket->engine].lefts++;
}

static int rescue(struct sim *s, uint32_t index)
{
	struct sim_lane *lane = sim_lane(s, index);
	struct sim_request *r = &s->request[index];
	unsigned engine = r->ticket.engine;
	int err;

	if (lane->stage.state == STAGE_STATE_PIECE) {
		stage_event(&lane->stage, &s->arm->stage, STAGE_EVENT_ENGINE_LOST, STAGE_UNCLEAR,
			    &lane->next);
		assert(lane->next.action == STAGE_PLACE);
	}
	take_back(s, index);
	leave_behind(s, index, &lane->piece);
	leave_behind(s, index, &r->ticket);
	stage_sim_drop_books(s, index);
	requeue_leave(&s->stage->requeue, &lane->pass);
	lane->excluded |= 1ull << engine;
	lane->rescued = 1;
	lane->sends = 0;
	memset(&lane->stage, 0, sizeof(lane->stage));
	s->run->stage.rescued++;
	err = stage_sim_arrive(s, index);
	return err ? err : stage_sim_poll(s, engine);
}

static int rescue_all(struct sim *s, unsigned engine, const struct rescue_engine *state)
{
	int err = 0;

	for (uint32_t i = 0; i < s->run->requests && !err; i++) {
		const struct sim_lane *lane = sim_lane(s, i);
		struct rescue_request r = { .streamed = 1,
					    .rescued = lane->rescued,
					    .body_kept = 1,
					    .others = s->engines - 1 };

		/* Between two parts there is nothing to close: the next one goes nowhere else. */
		if (!lane->model || s->request[i].ticket.engine != engine ||
		    s->run->request[i].first_ns != 0)
			continue;
		if (rescue_judge(&s->arm->stage, state, &r, s->now_ns) == RESCUE_NONE)
			err = rescue(s, i);
	}
	return err;
}

void stage_sim_comes(struct sim *s, unsigned engine)
{
	if (!sim_busy(&s->engine[engine]))
		s->stage->engine[engine].alive_ns = s->now_ns;
}

int stage_sim_tick(struct sim *s)
{
	int err = 0;

	for (unsigned i = 0; i < s->engines && !err; i++) {
		const struct sim_engine *e = &s->engine[i];
		struct rescue_engine state = { .alive_ns = s->stage->engine[i].alive_ns,
					       .busy = (uint32_t)sim_busy(e),
					       .stops = 1 };

		if (e->step_end_ns != MODEL_NEVER)
			state.step_s = (double)e->step_lasts_ns * 1e-9;
		if (rescue_overdue(&s->arm->stage, &state, s->now_ns))
			err = rescue_all(s, i, &state);
	}
	return err ? err : sim_push(s, s->now_ns + STAGE_TICK_MS * 1000000ull, EVENT_TICK, 0);
}
