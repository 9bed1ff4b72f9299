/* Takes a request to an engine: choose, dial, send, and the few cases in which it is sent again. */
#include "router/net/parts.h"

#include "router/net/ahead.h"
#include "router/net/staging.h"
#include "router/route.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { DISPATCH_ATTEMPTS_MAX = STATE_ENGINES_MAX };

/* Connects to x->engine, or takes a link that rests. */
enum conn_state dispatch_start(struct worker *w, struct conn *c, int fresh)
{
	struct exchange *x = c->x;
	struct engine *e = engine_of(w, x);
	struct link *link =
		fresh ? link_dial(w, e, LINK_CONN, c->index) : link_get(w, e, LINK_CONN, c->index);

	if (!link) {
		x->end = END_CONNECT;
		return exchange_fail(w, c, END_CONNECT);
	}
	x->link = link;
	x->reused = link->reused;
	x->at = NULL;
	x->at_offset = 0;
	x->sent = x->heard = x->interims = 0;
	x->sent_bytes = x->queued_bytes = 0;
	x->attempts++;
	x->trial |= health_dispatched(&e->health);
	client_timer(w, c, 0);
	if (link->state == LINK_DIALING)
		return CONN_DIAL;
	return dispatch_up(w, c, &(struct conn_input){ 0 });
}

static enum conn_state decide(struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;
	int engine = ahead_decide(w, x);

	if (engine == ROUTE_HOLD) {
		if (c->state != CONN_HOLD) /* once: questions that follow prolong nothing */
			client_timer(w, c, w->set->connect_timeout);
		return CONN_HOLD;
	}
	if (engine == ROUTE_WAIT) {
		client_timer(w, c, 0);
		return CONN_HOLD;
	}
	if (engine < 0)
		return exchange_fail(w, c, -engine);
	x->engine = engine;
	x->decided_ns = w->now_ns;
	if (x->complete)
		scan_release(w, x);
	if (x->ahead)
		return ahead_goes_on(w, c);
	if (x->link) { /* to another engine, whose connection is still being closed */
		client_timer(w, c, 0);
		return CONN_DIAL;
	}
	if (x->staging)
		return staging_begin(w, c);
	return dispatch_start(w, c, 0);
}

/* The request first, then the record of why it went there. */
enum conn_state dispatch_decide(struct worker *w, struct conn *c)
{
	enum conn_state next = decide(w, c);

	route_noted(w);
	return next;
}

/* ---- sending ---- */

/* The client's address without its port; 0 for a Unix socket. Asked for only with forwarded_for. */
static int client_address(const struct worker *w, const struct conn *c, char text[ADDR_TEXT_MAX])
{
	struct addr peer = { .len = sizeof(peer.sa) };
	char *colon;

	if (getpeername(loop_fd(w->loop, c->handle), &peer.sa.any, &peer.len) < 0 ||
	    peer.sa.any.sa_family == AF_UNIX)
		return 0;
	addr_text(&peer, text);
	colon = strrchr(text, ':');
	if (colon)
		*colon = 0;
	return 1;
}

static int adds_address(const struct worker *w, const struct http_head *head)
{
	if (w->set->forwarded_for == FORWARDED_TRUST)
		return !http_head_field(head, HTTP_FIELD_X_FORWARDED_FOR);
	return w->set->forwarded_for == FORWARDED_APPEND;
}

const char *via_line(const struct worker *w, unsigned minor, char *text, size_t size)
{
	if (!w->set->via[0])
		return NULL;
	snprintf(text, size, "Via: 1.%u %s\r\n", minor, w->set->via);
	return text;
}

/* Written anew for each engine: its key may differ. */
int dispatch_head_write(struct worker *w, struct exchange *x, struct http_forward *how, char *out,
			size_t size, size_t *ret_len)
{
	struct engine *e = engine_of(w, x);
	const char *buf = (const char *)x->head->data, *mine = how->extra ? how->extra : "";
	char authorization[320], address[ADDR_TEXT_MAX], via[SETTINGS_WORD_MAX + 16];
	char extra[sizeof(via) + 64];

	if (e->key[0]) {
		snprintf(authorization, sizeof(authorization), "Bearer %s", e->key);
		how->authorization = authorization;
	} else if (w->api_keys.nr) {
		how->authorization = ""; /* the client's key is ours, not the engine's */
	}
	if (w->head_of != x && http_request_parse(&w->head, buf, x->head_len) < 0)
		return -EPROTO;
	w->head_of = x;
	if (adds_address(w, &w->head) && client_address(w, x->conn, address))
		how->client_address = address;
	if (!via_line(w, w->head.minor, via, sizeof(via)))
		via[0] = 0;
	if (via[0]) {
		snprintf(extra, sizeof(extra), "%s%s", via, mine);
		how->extra = extra;
	}
	if (http_request_write(out, size, &w->head, buf, how, ret_len) < 0)
		return -ENOSPC;
	return 0;
}

/* The head of the client's own request. */
int dispatch_write_head(struct worker *w, struct exchange *x)
{
	struct http_forward how = {
		.framing = x->framing == HTTP_NO_BODY ? HTTP_NO_BODY : HTTP_LENGTH,
		.content_length = x->framing == HTTP_LENGTH ? x->length : x->received,
		.request_id = x->id,
		/* Its body may tell so far behind the head, where the probe does not look. */
		.extra = x->stream && x->generates && w->set->stream_hint
				 ? "x-turnward-stream: 1\r\n"
				 : NULL,
	};
	size_t len;
	int err;

	if (!x->out_head)
		x->out_head = block_take(&w->heads);
	if (!x->out_head)
		return -ENOBUFS;
	err = dispatch_head_write(w, x, &how, (char *)x->out_head->data, block_capacity(&w->heads),
				  &len);
	if (err < 0)
		return err;
	x->out_head->start = 0;
	x->out_head->end = len;
	return 0;
}

static const struct block *cursor(struct exchange *x)
{
	if (!x->at && x->body.head) {
		x->at = x->body.head;
		x->at_offset = x->at->start;
	}
	while (x->at && x->at_offset == x->at->end && x->at->next) {
		x->at = x->at->next;
		x->at_offset = x->at->start;
	}
	return x->at;
}

void dispatch_pump(struct worker *w, struct exchange *x)
{
	struct iovec iov[LOOP_IOV_MAX];
	const struct block *b = cursor(x);
	int n = 0;

	if (!x->link || x->link->sending || x->link->deaf || x->sent)
		return;
	x->queued_bytes = 0;
	if (x->out_head && x->out_head->start < x->out_head->end) {
		iov[n].iov_base = x->out_head->data;
		iov[n++].iov_len = x->out_head->end;
	}
	for (uint32_t from = x->at_offset; b && n < LOOP_IOV_MAX; b = b->next) {
		if (b != x->at)
			from = b->start;
		if (b->end > from) {
			iov[n].iov_base = (void *)(b->data + from);
			iov[n++].iov_len = b->end - from;
			x->queued_bytes += b->end - from;
		}
	}
	if (n > 0) {
		x->link->sending = 1;
		loop_send(w->loop, x->link->handle, iov, n);
	} else if (x->complete) {
		x->sent = 1;
		x->uploaded_ns = w->now_ns;
	}
}

/* Moves the cursor over what the loop has sent. */
static void advance(struct worker *w, struct exchange *x)
{
	uint64_t n = x->queued_bytes;

	dispatch_head_back(w, x);
	x->queued_bytes = 0;
	x->sent_bytes += n;
	if (x->body_dropped) {
		chain_drop(&x->body, &w->bodies, n);
		x->at = NULL;
		return;
	}
	while (n > 0) {
		uint64_t here;

		cursor(x);
		here = x->at->end - x->at_offset;
		if (here > n)
			here = n;
		x->at_offset += here;
		n -= here;
	}
}

void dispatch_forget_body(struct worker *w, struct exchange *x)
{
	if (x->body_dropped || (x->link && x->link->sending))
		return; /* in flight: tried again when it is taken */
	x->body_dropped = 1;
	chain_drop(&x->body, &w->bodies, x->sent_bytes);
	x->at = NULL;
}

void dispatch_timer(struct worker *w, struct conn *c)
{
	if (c->x->complete)
		client_timer(w, c, w->set->first_byte_timeout);
	else
		intake_body_timer(w, c);
}

enum conn_state dispatch_goes(struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;

	x->sent_ns = w->now_ns;
	x->uploaded_ns = 0;
	requeue_goes(w, x);
	dispatch_pump(w, x);
	dispatch_timer(w, c);
	return CONN_WAIT;
}

enum conn_state dispatch_up(struct worker *w, struct conn *c, const struct conn_input *in)
{
	struct exchange *x = c->x;

	int err = dispatch_write_head(w, x);

	if (err == -ENOBUFS)
		return exchange_fail(w, c, END_OVERLOAD);
	if (err < 0) {
		x->error_status = 431;
		x->error_code = "head_too_long";
		x->error_text = "the request head does not fit when forwarded";
		return exchange_fail(w, c, END_REFUSED);
	}
	return dispatch_goes(w, c);
}

enum conn_state dispatch_took(struct worker *w, struct conn *c, const struct conn_input *in)
{
	struct exchange *x = c->x;

	advance(w, x);
	if (!x->complete)
		intake_relieve(w, x);
	dispatch_pump(w, x);
	return c->state;
}

/* ---- again ---- */

/* Only while nothing was relayed and the whole body is still here. */
static int can_resend(const struct exchange *x)
{
	return (!x->answered || (x->rescued && !x->relayed_event)) &&
	       (!x->body_dropped || x->sent_bytes == 0) && x->attempts < DISPATCH_ATTEMPTS_MAX;
}

void dispatch_judge(struct worker *w, struct exchange *x, enum dispatch_verdict verdict)
{
	struct engine *e = engine_of(w, x);

	switch (verdict) {
	case VERDICT_NOTHING:
		if (x->trial)
			health_trial_void(&e->health);
		break;
	case VERDICT_ANSWERED:
		engine_answered(w, e);
		break;
	case VERDICT_FAILED:
		engine_failed(w, e);
		break;
	case VERDICT_UNREACHED:
		engine_connect_failed(w, e);
		break;
	}
	x->trial = 0;
}

/* Closes this engine's connection first; dispatch_closed() goes on from there. */
enum conn_state dispatch_again(struct worker *w, struct conn *c, int other)
{
	struct exchange *x = c->x;

	requeue_done(w, x);
	if (other) {
		dispatch_judge(w, x, VERDICT_NOTHING);
		x->tried |= 1ull << x->engine;
		route_undo(w, x);
		x->engine = -1;
	}
	if (x->answer_head) {
		slab_give(&w->heads, x->answer_head);
		x->answer_head = NULL;
	}
	client_timer(w, c, 0);
	link_drop_and_tell(w, x->link);
	return CONN_DIAL;
}

enum conn_state dispatch_closed(struct worker *w, struct conn *c, const struct conn_input *in)
{
	struct exchange *x = c->x;

	x->link = NULL;
	dispatch_head_back(w, x);
	if (x->staging)
		return staging_begin(w, c);
	if (x->engine >= 0)
		return dispatch_start(w, c, x->resent);
	return dispatch_decide(w, c);
}

/* Connecting failed: another engine at once, or an answer when none is left. */
enum conn_state dispatch_down(struct worker *w, struct conn *c, const struct conn_input *in)
{
	struct exchange *x = c->x;
	struct engine *e = engine_of(w, x);

	dispatch_judge(w, x, VERDICT_UNREACHED);
	count_engine(&w->counters, e->index, ENGINE_COUNTER_connect_failures, 1);
	/* Where all others are in a pause, the one that ends first was this one. */
	if (can_resend(x) && route_has_other(w, x, HEALTH_SPARED)) {
		count(&w->counters, COUNTER_resent_connect, 1);
		return dispatch_again(w, c, 1);
	}
	return exchange_fail(w, c, END_CONNECT);
}

/* The engine was closing the kept connection when the request came: once, a fresh one is tried. */
enum conn_state dispatch_stale(struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;

	if (!x->reused || x->resent || !can_resend(x) || !w->set->retry_reused)
		return CONN_STATES_NR;
	x->resent = 1;
	count(&w->counters, COUNTER_resent_reused, 1);
	return dispatch_again(w, c, 0);
}

/* The connection ended before a whole head of the answer. */
enum conn_state dispatch_broke(struct worker *w, struct conn *c, const struct conn_input *in)
{
	struct exchange *x = c->x;
	enum conn_state next = x->heard ? CONN_STATES_NR : dispatch_stale(w, c);

	if (next != CONN_STATES_NR)
		return next;
	count_engine(&w->counters, x->engine, ENGINE_COUNTER_errors, 1);
	return exchange_fail(w, c, END_ENGINE_GONE);
}

/* 429 or 503 with nothing relayed: one other engine, once. CONN_STATES_NR = relay the answer. */
enum conn_state dispatch_refused(struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;

	count_engine(&w->counters, x->engine, ENGINE_COUNTER_refusals, 1);
	if (x->relayed_event || x->tried || !can_resend(x) || !route_has_other(w, x, HEALTH_OPEN))
		return CONN_STATES_NR;
	count(&w->counters, COUNTER_resent_refused, 1);
	return dispatch_again(w, c, 1);
}

/* ---- the end ---- */

void dispatch_head_back(struct worker *w, struct exchange *x)
{
	if (x->out_head)
		slab_give(&w->heads, x->out_head);
	x->out_head = NULL;
}

void dispatch_release(struct worker *w, struct exchange *x)
{
	struct link *link = x->link;
	/* It carried the body that was sent ahead; the pieces that were decided have none yet. */
	int ahead = x->staging && link && link->state == LINK_CLOSING;

	if (ahead)
		x->link = NULL;
	staging_over(w, x);
	if (!ahead)
		link = x->link;
	x->link = NULL;
	/* The loop still reads these bytes, or a piece's, which are held already. */
	if (link && link->sending && !link->held_body.head) {
		link->held_head = x->out_head;
		link->held_body = x->body;
		x->out_head = NULL;
		x->body = (struct chain){ 0 };
	}
	dispatch_head_back(w, x);
	chain_clear(&x->body, &w->bodies);
	x->at = NULL;
	if (!link)
		return;
	if (x->end == END_OK && x->answer_complete && x->engine_keep_alive && x->sent &&
	    !link->sending)
		link_rest(w, link);
	else
		link_drop(w, link);
}
