/* Takes requests off an engine that hangs, and knows what such an engine may still hold. */
#include "router/net/requeue.h"

#include "router/net/parts.h"
#include "router/net/staging.h"
#include "router/route.h"
#include "router/worker.h"
#include "shm/base/clock.h"
#include "shm/base/log.h"

#include <assert.h>
#include <string.h>

static const double silent_margin = 2; /* on predictions of many steps that nobody sees end */
static const uint64_t stall_ns = 300 * NS_PER_MS; /* between two looks, usually 50 ms */
static const uint64_t settle_ns =
	200 * NS_PER_MS; /* until a sample must show a closed request gone */

/* ---- what was left behind ---- */

void rescue_leave_behind(struct worker *w, struct ledger_ticket *ticket, uint32_t tokens_max,
			 uint64_t until_ns)
{
	struct taking_back *t = &w->back;
	uint32_t i = 0;

	while (i < LIMIT_LEFT_BEHIND && t->left[i].ticket.phase != LEDGER_FREE)
		i++;
	struct ledger_ticket none = { 0 };
	struct ledger_ticket *left = i < LIMIT_LEFT_BEHIND ? &t->left[i].ticket : &none;

	ledger_leave(w->ledger, ticket, left);
	if (left == &none) { /* its load is forgotten early */
		ledger_end(w->ledger, left, LEDGER_ABORTED, w->now_ns);
		return;
	}
	if (left->uncached_tokens > tokens_max)
		ledger_correct(w->ledger, left, left->prompt_tokens, tokens_max, w->now_ns);
	t->left[i].since_ns = w->now_ns;
	t->left[i].until_ns = until_ns;
	t->left_nr += left->phase != LEDGER_FREE;
}

/* The engine has moved since, or its agent has looked and seen it idle. */
static int shown_gone(const struct worker *w, const struct left_behind *left)
{
	const struct engine *e = &w->engines[left->ticket.engine];
	struct ledger_sums sums;

	ledger_books_get(w->ledger, e->index, &sums);
	if (w->back.alive_ns[e->index] > left->since_ns)
		return 1;
	if (e->state.read_ns <= left->since_ns + settle_ns)
		return 0;
	return sums.progress_ns > left->since_ns ||
	       (ENGINE_HAS(&e->state, running) && ENGINE_HAS(&e->state, waiting) &&
		e->state.running + e->state.waiting == 0);
}

static void left_look(struct worker *w)
{
	struct taking_back *t = &w->back;

	for (uint32_t i = 0; i < LIMIT_LEFT_BEHIND && t->left_nr; i++) {
		struct left_behind *left = &t->left[i];

		if (left->ticket.phase == LEDGER_FREE ||
		    (w->now_ns < left->until_ns && !shown_gone(w, left)))
			continue;
		ledger_end(w->ledger, &left->ticket, LEDGER_ABORTED, w->now_ns);
		t->left_nr--;
	}
}

/* ---- who hangs ---- */

/* Its answers flow, token by token: every step of an engine that mixes prefills and decodes shows.
 */
static int shows_steps(const struct worker *w, const struct engine *e)
{
	if (staging_kind(e) != ENGINE_KIND_VLLM)
		return 0;
	for (const struct exchange *x = w->inflight; x; x = x->next)
		if (x->engine == (int)e->index && x->first_token_ns && x->sse &&
		    !x->answer_complete && !x->engine_paused && x->conn->state == CONN_RELAY)
			return 1;
	return 0;
}

/* Until when it may well be silent: a step, or all prefills that it has where no step shows. */
static void look_at(struct worker *w, const struct engine *e, struct rescue_engine *ret)
{
	double ratio = e->learnt->calibration.ratio, rate, steps_s;
	struct ledger_sums sums;

	ledger_books_get(w->ledger, e->index, &sums);
	*ret = (struct rescue_engine){ .alive_ns = w->back.alive_ns[e->index],
				       .busy = sums.user_waiting_requests + sums.pieces > 0 };
	ret->stops = staging_kind(e) == ENGINE_KIND_VLLM || staging_kind(e) == ENGINE_KIND_SGLANG;
	if (sums.progress_ns > ret->alive_ns)
		ret->alive_ns = sums.progress_ns;
	if (sums.oldest_ns > ret->alive_ns) /* it had nothing to show before */
		ret->alive_ns = sums.oldest_ns;
	if (w->back.excused_ns > ret->alive_ns)
		ret->alive_ns = w->back.excused_ns;
	/* Of a pace that was never measured a prediction says nothing. */
	if (!ENGINE_HAS(&e->state, prefill_tokens_per_s) && !(ratio > 0))
		ret->busy = 0;
	if (!ret->busy || !rescue_overdue(&w->stage.params, ret, w->now_ns))
		return;
	ratio = ratio > 0 ? ratio : 1;
	rate = sums.waiting_prefill_s > 0 ? (double)sums.waiting_tokens / sums.waiting_prefill_s
					  : w->params.throughput;
	ret->step_s = ratio * staging_step(w, e) / (rate > 1 ? rate : 1);
	steps_s = ratio * silent_margin * sums.waiting_prefill_s;
	if (steps_s > ret->step_s && !shows_steps(w, e))
		ret->step_s = steps_s;
}

static int waits_on_engine(const struct exchange *x)
{
	switch (x->conn->state) {
	case CONN_STAGE:
		return staging_under_way(x);
	case CONN_WAIT:
	case CONN_RELAY:
		return x->generates && !x->first_token_ns;
	default:
		return 0;
	}
}

static void try_rescue(struct worker *w, struct exchange *x, const struct rescue_engine *engine)
{
	struct rescue_request r = {
		.streamed = x->stream && (!x->answered || x->comments),
		.events_relayed = x->relayed_event,
		.rescued = x->rescued,
		.body_kept = x->complete && !x->body_dropped && !bodies_beyond(w, 75),
		.others = (uint32_t)route_has_other(w, x, HEALTH_OPEN),
	};
	enum rescue_reason reason = rescue_judge(&w->stage.params, engine, &r, w->now_ns);

	if (reason != RESCUE_NONE) {
		w->back.rescues[reason] += !x->stranded;
		x->stranded = 1;
		return;
	}
	w->back.rescues[RESCUE_NONE]++;
	conn_step(w, x->conn, CONN_EV_RESCUE, &(struct conn_input){ 0 });
}

static void leave_engine(struct worker *w, struct engine *e, const struct rescue_engine *state)
{
	struct exchange *next;
	uint64_t before = w->back.rescues[RESCUE_NONE];

	for (struct exchange *x = w->inflight; x; x = next) {
		next = x->next;
		if (x->engine == (int)e->index && waits_on_engine(x))
			try_rescue(w, x, state);
	}
	if (w->back.rescues[RESCUE_NONE] == before)
		return;
	log_say(LOG_WARN, "engine %s hangs, silent for %.1f s: %lu requests go elsewhere",
		e->at.name, (double)(w->now_ns - state->alive_ns) * 1e-9,
		(unsigned long)(w->back.rescues[RESCUE_NONE] - before));
	engine_failed(w, e);
}

void rescue_look(struct worker *w)
{
	/* Who has not run for a while himself takes nobody for late. */
	if (w->now_ns - w->back.looked_ns > stall_ns)
		w->back.excused_ns = w->now_ns;
	w->back.looked_ns = w->now_ns;
	if (w->back.left_nr)
		left_look(w);
	if (w->stage.params.rescue_overdue_s == 0 || !w->inflight)
		return;
	for (uint32_t i = 0; i < w->engines_nr; i++) {
		struct rescue_engine state;

		look_at(w, &w->engines[i], &state);
		if (rescue_overdue(&w->stage.params, &state, w->now_ns))
			leave_engine(w, &w->engines[i], &state);
	}
}

/* ---- leaving ---- */

enum conn_state rescue_leave(struct worker *w, struct conn *c, const struct conn_input *in)
{
	struct exchange *x = c->x;
	uint64_t until_ns;

	x->rescued = 1;
	count(&w->counters, COUNTER_rescued, 1);
	count_engine(&w->counters, x->engine, ENGINE_COUNTER_rescued, 1);
	until_ns = w->now_ns + w->set->first_byte_timeout;
	if (c->state == CONN_STAGE)
		return staging_elsewhere(w, c, until_ns);
	rescue_leave_behind(w, &x->route->ticket, UINT32_MAX, until_ns);
	if (x->holds_back)
		requeue_unsay(w, c);
	x->engine_paused = 0;
	return dispatch_again(w, c, 1);
}
