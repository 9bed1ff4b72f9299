/* Takes cold prompts back from their engine, so that others get in, and sends them again. */
#include "router/net/requeue.h"

#include "router/net/parts.h"
#include "router/net/staging.h"
#include "router/route.h"
#include "router/worker.h"
#include "shm/base/log.h"

#include <assert.h>
#include <stddef.h>

static struct exchange *exchange_of(struct requeue_cold *cold)
{
	return ((struct route_asked *)((char *)cold - offsetof(struct route_asked, yields)))->x;
}

/* NULL: it is past giving way, and never did. */
static struct requeue_cold *yields_of(const struct exchange *x)
{
	return x->route && x->route->asked ? &x->route->asked->yields : NULL;
}

uint32_t requeue_closes(const struct exchange *x)
{
	const struct requeue_cold *yields = yields_of(x);

	return yields ? yields->closes : 0;
}

/* ---- before it goes ---- */

int requeue_fits(struct worker *w, struct exchange *x, const struct stage_case *c)
{
	return (c->engine.flags & STAGE_ENGINE_REQUEUES) && x->complete && !x->body_dropped &&
	       !x->at && x->route->scanned && !x->route->asked->request.unreadable &&
	       !x->head_only && requeue_may(&w->back.requeue, (unsigned)x->engine, w->now_ns) &&
	       !(c->body & STAGE_BODY_PROMPT_LOGPROBS);
}

void requeue_take(struct worker *w, struct exchange *x)
{
	x->gives_way = 1;
	x->route->ticket.flags |= LEDGER_REQUEUEABLE;
	count(&w->counters, COUNTER_requeue_requests, 1);
}

static void send_of(struct worker *w, const struct exchange *x, struct requeue_send *ret)
{
	const struct engine *e = engine_of(w, x);
	const struct ledger_ticket *ticket = &x->route->ticket;
	double ratio = e->learnt->calibration.ratio;
	double rate = ticket->prefill_s > 0 ? ticket->uncached_tokens / ticket->prefill_s
					    : w->params.throughput;
	struct ledger_sums sums;
	double ahead_s;

	if (ratio > 0)
		rate /= ratio;
	ledger_books_get(w->ledger, e->index, &sums);
	ahead_s = sums.waiting_prefill_s - ticket->prefill_s;
	*ret = (struct requeue_send){ .uncached_tokens = ticket->uncached_tokens,
				      .step_tokens = staging_step(w, e),
				      .going_tokens = staging_step(w, e),
				      .tokens_per_s = rate,
				      .step_s = staging_step(w, e) / rate,
				      .start_ns = w->now_ns };
	/* One that returns is alone: those who waited have their tokens. */
	if (x->route->asked->yields.state == REQUEUE_IDLE && ahead_s > 0)
		ret->start_ns += (uint64_t)(ahead_s * (ratio > 0 ? ratio : 1) * 1e9);
}

void requeue_goes(struct worker *w, struct exchange *x)
{
	struct requeue *rq = &w->back.requeue;
	struct requeue_send send;

	if (x->first_sent_ns) /* its client has waited since */
		x->sent_ns = x->first_sent_ns;
	if (!w->stage.on || !x->generates)
		return;
	if (!x->gives_way) {
		requeue_leave(rq, &x->passes);
		if (!x->cold && x->wait_prev)
			requeue_enter(rq, &x->passes, (unsigned)x->engine);
		return;
	}
	if (x->route->asked->yields.state == REQUEUE_IDLE &&
	    !requeue_may(rq, (unsigned)x->engine, w->now_ns)) {
		x->gives_way = 0;
		return;
	}
	send_of(w, x, &send);
	requeue_sent(rq, &x->route->asked->yields, (unsigned)x->engine, &send, w->now_ns);
}

void requeue_done(struct worker *w, struct exchange *x)
{
	struct requeue_cold *yields = yields_of(x);

	requeue_leave(&w->back.requeue, &x->passes);
	if (yields)
		requeue_over(&w->back.requeue, yields);
}

static void unstage(struct worker *w, struct exchange *x)
{
	if (x->away_tokens)
		ledger_staged(w->ledger, engine_of(w, x)->index, -(int64_t)x->away_tokens);
	x->away_tokens = 0;
}

void requeue_forget(struct worker *w, struct exchange *x)
{
	if (x->engine >= 0)
		unstage(w, x);
	requeue_done(w, x);
	x->again = 0;
}

/* ---- its answer ---- */

int requeue_holds(struct worker *w, struct conn *c, int status, int sse)
{
	struct exchange *x = c->x;
	struct requeue_cold *yields = yields_of(x);

	if (!yields || yields->state != REQUEUE_RUNNING)
		return 0;
	if (status == 200 && sse && c->out.bytes == 0 && !c->sending)
		return 1;
	requeue_over(&w->back.requeue, yields); /* what comes now is the answer */
	return 0;
}

void requeue_unsay(struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;

	assert(x->holds_back && !c->sending);
	chain_clear(&c->out, &w->outs);
	wheel_disarm(&w->wheel, &c->comment_timer);
	x->holds_back = x->answered = x->answer_chunked = x->sse = x->comments = 0;
	x->engine_paused = 0;
	x->status = 0;
	x->first_byte_ns = x->bytes_out = 0;
}

/* By its time, where the engine names no cached tokens: 1 kept, 0 lost, -1 it does not tell. */
static int time_tells(struct worker *w, const struct exchange *x)
{
	const struct ledger_ticket *ticket = &x->route->ticket;
	const struct engine *e = engine_of(w, x);
	double ratio = e->learnt->calibration.ratio;
	struct stage_evidence seen = { .sees = STAGE_SEES_TIME };
	struct ledger_sums sums;
	enum stage_source source;

	if (!x->first_token_ns || (!ENGINE_HAS(&e->state, prefill_tokens_per_s) && !(ratio > 0)))
		return -1;
	ledger_books_get(w->ledger, e->index, &sums);
	if (x->alone_total == sums.dispatched_total)
		seen.sees |= STAGE_SEES_IDLE;
	seen.prompt_tokens = ticket->prompt_tokens;
	seen.expected_tokens = ticket->prompt_tokens - ticket->uncached_tokens;
	seen.clock_s = STAGING_CLOCK_S / w->set->time_scale;
	seen.took_s = (double)(x->first_token_ns - x->route->asked->yields.sent_ns) * 1e-9;
	seen.hit_s = ticket->prefill_s * (ratio > 0 ? ratio : 1);
	seen.miss_s = seen.hit_s / ticket->uncached_tokens * x->route->uncached_tokens;
	switch (stage_judge(&w->stage.params, &seen, &source)) {
	case STAGE_HIT:
		return 1;
	case STAGE_MISS:
		return 0;
	default:
		return -1;
	}
}

uint64_t requeue_found(struct worker *w, const struct exchange *x, uint64_t cached_tokens,
		       int known)
{
	uint64_t before = x->route->hit_tokens;
	uint32_t kept = cached_tokens > before ? (uint32_t)(cached_tokens - before) : 0;
	int told = 1;

	if (requeue_closes(x) == 0)
		return cached_tokens;
	if (!known) {
		told = time_tells(w, x);
		kept = told > 0 ? x->route->asked->yields.kept_tokens : 0;
	}
	if (told >= 0 && requeue_kept(&w->back.requeue, &w->stage.params, &x->route->asked->yields,
				      kept, w->now_ns)) {
		count(&w->counters, COUNTER_requeue_guards, 1);
		log_say(LOG_WARN,
			"no prompt is taken back from engine %s: it computes again what it had",
			engine_of(w, x)->at.name);
	}
	return cached_tokens < before ? cached_tokens : before;
}

/* ---- back, and again ---- */

/* What is left of it waits in the router; what its engine has in hand stays there for a step. */
static void books_taken_back(struct worker *w, struct exchange *x)
{
	struct route *r = x->route;
	struct engine *e = engine_of(w, x);
	uint32_t done = x->route->asked->yields.computed_tokens, blocks, rest;
	uint64_t step_ns = (uint64_t)(x->route->asked->yields.step_s * 1e9);

	rest = done < r->ticket.uncached_tokens ? r->ticket.uncached_tokens - done : 1;
	rescue_leave_behind(w, &r->ticket, x->route->asked->yields.step_tokens,
			    w->now_ns + 2 * step_ns);
	ledger_staged(w->ledger, e->index, rest);
	x->away_tokens = rest;
	r->ticket.prefill_s *= (double)rest / r->ticket.uncached_tokens;
	r->ticket.uncached_tokens = rest;
	r->predicted_raw_s = 0; /* says nothing of the engine any more */
	blocks = (uint32_t)((uint64_t)r->chain_nr * (r->ticket.prompt_tokens - rest) /
			    r->ticket.prompt_tokens);
	if (blocks && e->region_index >= 0)
		prefix_insert(&w->prefix, e->region_index, r->chain, blocks);
}

enum conn_state requeue_give_way(struct worker *w, struct conn *c, const struct conn_input *in)
{
	struct exchange *x = c->x;

	if (x->settled || x->body_dropped || x->relayed_event || (x->answered && !x->holds_back)) {
		requeue_over(&w->back.requeue, &x->route->asked->yields);
		x->gives_way = 0;
		return c->state;
	}
	if (x->holds_back)
		requeue_unsay(w, c);
	if (x->answer_head)
		slab_give(&w->heads, x->answer_head);
	x->answer_head = NULL;
	if (!x->first_sent_ns)
		x->first_sent_ns = x->sent_ns;
	x->sent_ns = 0; /* no token of it is assumed meanwhile */
	books_taken_back(w, x);
	count(&w->counters, COUNTER_requeue_closes, 1);
	count_engine(&w->counters, x->engine, ENGINE_COUNTER_requeue_closes, 1);
	client_timer(w, c, 0);
	link_drop_and_tell(w, x->link);
	return CONN_AWAY;
}

/* To its engine, or afresh to another where that one has gone meanwhile. */
static enum conn_state send_again(struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;
	struct route *r = x->route;
	struct ledger_sums sums;

	x->again = x->resent = 0;
	unstage(w, x);
	if (engine_standing(w, engine_of(w, x)) != HEALTH_OPEN &&
	    route_has_other(w, x, HEALTH_OPEN)) {
		x->tried |= 1ull << x->engine;
		route_undo(w, x);
		x->engine = -1;
		return dispatch_decide(w, c);
	}
	if (!x->stream) /* its token is assumed when the rest will have been computed */
		r->assume_s = (double)(w->now_ns - x->first_sent_ns) * 1e-9 + r->ticket.prefill_s;
	ledger_dispatch(w->ledger, &r->ticket, w->now_ns);
	ledger_books_get(w->ledger, (unsigned)x->engine, &sums);
	x->alone_total = sums.user_requests == 1 ? sums.dispatched_total : 0;
	x->attempts--; /* it was not refused */
	return dispatch_start(w, c, 0);
}

enum conn_state requeue_closed(struct worker *w, struct conn *c, const struct conn_input *in)
{
	struct exchange *x = c->x;

	x->link = NULL;
	dispatch_head_back(w, x);
	return x->again ? send_again(w, c) : CONN_AWAY;
}

enum conn_state requeue_return(struct worker *w, struct conn *c, const struct conn_input *in)
{
	struct exchange *x = c->x;

	x->again = 1;
	return x->link ? CONN_AWAY : send_again(w, c);
}

void requeue_turn(struct worker *w)
{
	struct requeue *rq = &w->back.requeue;

	if (!w->stage.on)
		return;
	for (uint32_t i = 0; i < w->engines_nr; i++) {
		struct requeue_cold *cold;
		enum requeue_action action;

		if (rq->engine[i].cold == NULL)
			continue;
		action = requeue_poll(rq, &w->stage.params, i, w->now_ns, &cold);
		if (action != REQUEUE_NOTHING)
			conn_step(w, exchange_of(cold)->conn,
				  action == REQUEUE_CLOSE ? CONN_EV_GIVE_WAY : CONN_EV_RETURN,
				  &(struct conn_input){ 0 });
	}
}
