/* Sends long bodies ahead to the engine that they will probably get. */
#include "router/net/ahead.h"

#include "router/net/parts.h"
#include "router/route.h"
#include "router/worker.h"
#include "shm/base/clock.h"

#include <assert.h>

enum {
	AHEAD_FROM = 64 * 1024,   /* bytes of the body: enough to know whose it is */
	AHEAD_SHORT_PERCENT = 75, /* of the body arena: what was sent may not be given up for it */
};

static const double wrong_weight = 1.0 / 16, wrong_most = 0.25;
static const uint64_t off_ns = 10ull * NS_PER_S;

/* ---- does it pay ---- */

static void learn(struct worker *w, int wrong)
{
	struct sent_ahead *a = &w->ahead;

	count(&w->counters, COUNTER_ahead_wrong, wrong);
	a->wrong += (wrong - a->wrong) * wrong_weight;
	if (a->wrong <= wrong_most)
		return;
	a->off_until_ns = w->now_ns + off_ns;
	a->wrong = wrong_most / 2;
}

static int may(const struct worker *w, const struct conn *c)
{
	const struct exchange *x = c->x;

	return w->set->body_ahead && x->framing == HTTP_LENGTH && x->length >= w->set->body_ahead &&
	       x->received >= AHEAD_FROM && x->generates && !x->was_ahead &&
	       w->now_ns >= w->ahead.off_until_ns && !w->draining &&
	       x->length < w->set->body_cut_through && !bodies_beyond(w, AHEAD_SHORT_PERCENT);
}

/* ---- sending ---- */

/* Begins with the head; x->engine stays -1 until the decision. */
static int send_head(struct worker *w, struct exchange *x)
{
	int err;

	x->engine = x->ahead - 1;
	err = dispatch_write_head(w, x);
	x->engine = -1;
	if (err == 0)
		dispatch_pump(w, x);
	return err;
}

/* Not to that engine: the connection is dropped, at once or when the loop is done with the body. */
static void give_up(struct worker *w, struct exchange *x)
{
	struct link *link = x->link;

	x->ahead = 0;
	x->at = NULL;
	x->at_offset = 0;
	x->sent_bytes = x->queued_bytes = 0;
	if (link->sending) {
		link_drop_and_tell(w, link);
		return;
	}
	link_drop(w, link);
	x->link = NULL;
	dispatch_head_back(w, x);
}

static enum conn_state begin(struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;
	int engine = route_guess(w, x);
	struct link *link;

	x->was_ahead = 1;
	if (engine < 0 || !(link = link_get(w, &w->engines[engine], LINK_CONN, c->index)))
		return CONN_BODY;
	count(&w->counters, COUNTER_ahead_requests, 1);
	x->ahead = (uint8_t)(engine + 1);
	x->ahead_stream = x->stream |= w->ahead.stream;
	x->link = link;
	x->reused = link->reused;
	if (link->state != LINK_DIALING && send_head(w, x) < 0)
		give_up(w, x);
	return x->link ? CONN_AHEAD : CONN_BODY;
}

enum conn_state ahead_go(struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;

	if (!x->link)
		return may(w, c) ? begin(w, c) : CONN_BODY;
	if (x->ahead && x->link->state == LINK_BUSY)
		dispatch_pump(w, x);
	return CONN_AHEAD;
}

enum conn_state ahead_up(struct worker *w, struct conn *c, const struct conn_input *in)
{
	struct exchange *x = c->x;

	if (send_head(w, x) < 0)
		give_up(w, x);
	return x->link ? CONN_AHEAD : CONN_BODY;
}

/* Refused, closed, or answered before it was whole: whatever it says, it is asked anew. */
enum conn_state ahead_lost(struct worker *w, struct conn *c, const struct conn_input *in)
{
	learn(w, 1);
	give_up(w, c->x);
	return c->x->link ? CONN_AHEAD : CONN_BODY;
}

enum conn_state ahead_closed(struct worker *w, struct conn *c, const struct conn_input *in)
{
	struct exchange *x = c->x;

	assert(!x->ahead);
	x->link = NULL;
	dispatch_head_back(w, x);
	return c->state == CONN_AHEAD ? CONN_BODY : c->state;
}

/* ---- the decision ---- */

int ahead_decide(struct worker *w, struct exchange *x)
{
	const struct block *at = x->at;
	int engine, right;

	if (!x->ahead) {
		engine = route_decide(w, x);
	} else {
		x->at = NULL; /* of what is chosen nothing counts as sent */
		engine = route_decide(w, x);
		right = engine == x->ahead - 1 && !x->staging && !x->gives_way && !x->link->deaf &&
			(x->stream == x->ahead_stream || !w->set->stream_hint);
		learn(w, !right);
		if (right)
			x->at = at;
		else
			give_up(w, x);
	}
	if (x->generates) /* other paths have no such word */
		w->ahead.stream = x->stream;
	return engine;
}

enum conn_state ahead_goes_on(struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;

	x->ahead = 0;
	x->attempts++;
	x->trial |= health_dispatched(&engine_of(w, x)->health);
	client_timer(w, c, 0);
	if (x->link->state == LINK_DIALING)
		return CONN_DIAL;
	return dispatch_goes(w, c);
}
