/* Reads one request: head, body, scan; refuses early what must not go on. */
#include "router/net/parts.h"

#include "router/net/ahead.h"
#include "router/route.h"
#include "shm/base/clock.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

enum {
	FILL_FROM = 16 * 1024,    /* a rest of the body above this is received in one piece */
	BODY_HUNGRY_PERCENT = 90, /* of the arena: beyond, bodies are not read on but the eldest */
	BODY_DROP_PERCENT = 75,   /* beyond, what was sent is not kept for a resend */
};

int bodies_beyond(const struct worker *w, unsigned percent)
{
	return w->bodies.used > w->bodies.limit * percent / 100;
}

struct exchange *intake_begin(struct worker *w, struct conn *c)
{
	struct exchange *x = slab_take(&w->exchanges);
	struct block *head = x ? slab_take(&w->heads) : NULL;

	if (!head) {
		if (x)
			slab_give(&w->exchanges, x);
		return NULL;
	}
	memset(x, 0, offsetof(struct exchange, watch));
	x->conn = c;
	x->head = head;
	x->engine = -1;
	x->end = END_OK;
	x->start_ns = w->now_ns;
	x->next = w->inflight;
	x->prev = &w->inflight;
	if (w->inflight)
		w->inflight->prev = &x->next;
	w->inflight = x;
	w->inflight_nr++;
	c->x = x;
	return x;
}

void scan_release(struct worker *w, struct exchange *x)
{
	if (x->scan)
		slab_give(&w->scans, x->scan);
	x->scan = NULL;
}

/* ---- body ---- */

/* Takes decoded body bytes into the scan; their storing is the caller's. */
static void scan(struct exchange *x, const void *data, size_t len)
{
	if (x->scan && !x->cut_through)
		chat_scan_step(&x->scan->scan, data, len);
}

static int store(struct worker *w, struct exchange *x, const void *data, size_t len)
{
	if (chain_append(&x->body, &w->bodies, data, len) < 0) {
		count(&w->counters, COUNTER_body_memory_refused, 1);
		return -END_OVERLOAD;
	}
	x->received += len;
	x->bytes_in += len;
	scan(x, data, len);
	return 0;
}

static int take_chunked(struct worker *w, struct conn *c, const uint8_t *data, size_t len)
{
	struct exchange *x = c->x;

	for (;;) {
		const char *piece;
		size_t used, piece_len;
		int done =
			http_body_step(&x->in, (const char *)data, len, &used, &piece, &piece_len);
		int err;

		if (done < 0) {
			const struct http_error_info *info = http_error_info(HTTP_ERROR_CHUNK);

			x->error_status = info->status;
			x->error_code = info->code;
			x->error_text = info->text;
			return -END_REFUSED;
		}
		/* What the chunk's size announces counts at once. */
		if (x->received + piece_len + x->in.left > w->set->max_body)
			return -END_BODY_TOO_LARGE;
		if (piece_len && (err = store(w, x, piece, piece_len)) < 0)
			return err;
		data += used;
		len -= used;
		if (done) {
			early_keep(w, c, data, len);
			return 1;
		}
		if (len == 0)
			return 0;
	}
}

/* 1: the body is complete; 0: more to come; -enum conn_end. */
static int take_body(struct worker *w, struct conn *c, const uint8_t *data, size_t len)
{
	struct exchange *x = c->x;
	uint64_t left = x->length - x->received;
	size_t n = len < left ? len : left;
	int err;

	if (x->framing == HTTP_CHUNKED)
		return take_chunked(w, c, data, len);
	if (x->framing == HTTP_NO_BODY)
		n = 0;
	if (n && (err = store(w, x, data, n)) < 0)
		return err;
	early_keep(w, c, data + n, len - n);
	return x->framing == HTTP_NO_BODY || x->received == x->length;
}

void intake_pace(const struct worker *w, struct exchange *x)
{
	x->pace_ns = w->now_ns;
	x->pace_bytes = x->received;
}

void intake_body_timer(struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;
	uint64_t after = w->set->body_timeout, rate = w->set->body_rate, due;

	x->pace_short = 0;
	if (rate && !c->hungry) {
		due = x->pace_ns + after + (x->received - x->pace_bytes) * NS_PER_S / rate;
		if (due < w->now_ns + after) {
			after = due > w->now_ns ? due - w->now_ns : 1;
			x->pace_short = 1;
		}
	}
	client_timer(w, c, after);
}

/*
 * Where the next receive goes: on in the last block while that has much room, so that a body that
 * trickles in takes no more memory than its bytes. What is being sent already is left alone.
 */
static struct block *block_for_fill(struct worker *w, struct exchange *x)
{
	const struct block *last = x->body.tail;

	if (last && !x->cut_through && !x->link &&
	    block_capacity(&w->bodies) - last->end >= FILL_FROM)
		return chain_pop(&x->body);
	return block_take(&w->bodies);
}

void intake_read_on(struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;
	uint64_t left = x->length - x->received, room;

	if (x->complete || c->filling)
		return;
	if (bodies_beyond(w, BODY_HUNGRY_PERCENT) && w->eldest != c) {
		if (!c->paused)
			loop_pause(w->loop, c->handle);
		c->paused = 1;
		hungry_add(w, c);
		return;
	}
	if (x->framing != HTTP_LENGTH || left <= FILL_FROM) {
		client_read(w, c);
		return;
	}
	c->fill = block_for_fill(w, x);
	if (!c->fill) { /* between the marks: rare, waits its turn */
		hungry_add(w, c);
		return;
	}
	if (!c->paused)
		loop_pause(w->loop, c->handle);
	c->paused = c->filling = 1;
	room = block_capacity(&w->bodies) - c->fill->end;
	loop_fill(w->loop, c->handle, c->fill->data + c->fill->end, left < room ? left : room);
}

/*
 * What the stream still held has come in front of a fill, which would now reach into the next
 * request.
 */
static void fill_undo(struct worker *w, struct conn *c)
{
	if (!c->filling)
		return;
	loop_fill_cancel(w->loop, c->handle);
	if (c->fill->end > 0)
		chain_push(&c->x->body, c->fill);
	else
		slab_give(&w->bodies, c->fill);
	c->fill = NULL;
	c->filling = 0;
}

/* Bytes that the loop put straight into c->fill. 1, 0 or -enum conn_end as take_body(). */
static int take_filled(struct worker *w, struct conn *c, size_t len)
{
	struct exchange *x = c->x;
	struct block *b = c->fill;
	uint64_t left = x->length - x->received;

	assert(len <= left);
	c->fill = NULL;
	scan(x, b->data + b->end, len);
	b->end += len;
	chain_push(&x->body, b);
	x->received += len;
	x->bytes_in += len;
	return x->received == x->length;
}

static void body_done(struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;

	x->complete = 1;
	x->body_ns = w->now_ns;
	if (w->eldest == c)
		w->eldest = NULL;
	if (c->early.bytes < LIMIT_HEAD_BYTES)
		client_read(w, c); /* from here on: to notice that the client leaves */
}

/* After bytes of the body in BODY: go on, decide, or fail. */
static enum conn_state body_next(struct worker *w, struct conn *c, int got)
{
	struct exchange *x = c->x;

	if (got < 0)
		return exchange_fail(w, c, -got);
	if (got > 0) {
		body_done(w, c);
		return dispatch_decide(w, c);
	}
	intake_body_timer(w, c);
	intake_read_on(w, c);
	if (x->framing == HTTP_LENGTH && x->received >= w->set->body_cut_through && !x->link) {
		enum conn_state next;

		x->cut_through = 1;
		next = dispatch_decide(w, c);
		return next;
	}
	return ahead_go(w, c);
}

enum conn_state intake_body_bytes(struct worker *w, struct conn *c, const struct conn_input *in)
{
	fill_undo(w, c);
	return body_next(w, c, take_body(w, c, in->data, in->len));
}

enum conn_state intake_filled(struct worker *w, struct conn *c, const struct conn_input *in)
{
	return body_next(w, c, take_filled(w, c, in->len));
}

void intake_relieve(struct worker *w, struct exchange *x)
{
	if (!x->ahead && bodies_beyond(w, BODY_DROP_PERCENT))
		dispatch_forget_body(w, x);
}

/* The body of a request that is already on its way: cut through to the engine. */
static enum conn_state late(struct worker *w, struct conn *c, int got)
{
	struct exchange *x = c->x;

	if (got < 0)
		return exchange_fail(w, c, -got);
	if (got > 0)
		body_done(w, c);
	if (c->state == CONN_WAIT)
		dispatch_timer(w, c);
	if (c->state == CONN_WAIT || c->state == CONN_RELAY)
		dispatch_pump(w, x);
	if (!x->complete) {
		intake_relieve(w, x);
		intake_read_on(w, c);
	}
	return c->state;
}

enum conn_state intake_late_bytes(struct worker *w, struct conn *c, const struct conn_input *in)
{
	if (c->x->complete) {
		early_keep(w, c, in->data, in->len);
		return c->state;
	}
	fill_undo(w, c);
	return late(w, c, take_body(w, c, in->data, in->len));
}

enum conn_state intake_late_filled(struct worker *w, struct conn *c, const struct conn_input *in)
{
	return late(w, c, take_filled(w, c, in->len));
}

/* ---- head ---- */

/* From here on it is a request that is named, counted and logged, however it ends. */
static void known(struct worker *w, struct conn *c, const struct http_head *head, const char *buf)
{
	request_id_take(w, c->x, head, buf);
	c->x->target.path = HTTP_PATH_FORBIDDEN; /* until it is read */
	if (c->admin)
		return;
	c->x->counted = 1;
	count(&w->counters, COUNTER_requests_started, 1);
}

enum conn_state intake_head_late(struct worker *w, struct conn *c, const struct conn_input *in)
{
	known(w, c, NULL, NULL);
	return exchange_fail(w, c, END_HEAD_TIMEOUT);
}

static enum conn_state refuse_head(struct worker *w, struct conn *c, enum http_error error)
{
	const struct http_error_info *info = http_error_info(error);
	struct exchange *x = c->x;

	x->error_status = info->status;
	x->error_code = info->code;
	x->error_text = info->text;
	c->close_after = 1;
	return exchange_fail(w, c, END_REFUSED);
}

/* The decision's memory and the scan, for what an engine will get. 0 or -enum conn_end. */
static int prepare(struct worker *w, struct exchange *x)
{
	if (route_begin(w, x) < 0)
		return -END_OVERLOAD;
	route_head(w, x, &w->head, (const char *)x->head->data);
	if (x->framing == HTTP_NO_BODY)
		return 0;
	x->scan = slab_take(&w->scans);
	if (!x->scan)
		return -END_OVERLOAD;
	chat_scan_begin(&x->scan->scan, x->scan->blocks, LIMIT_CONTENT_BLOCKS, route_seed(w));
	return 0;
}

static void take_over(const struct worker *w, struct exchange *x, const struct http_head *head)
{
	x->method = head->method;
	x->minor = head->minor;
	x->keep_alive = head->keep_alive;
	x->head_only = head->method == HTTP_METHOD_HEAD;
	x->framing = head->framing;
	x->length = head->framing == HTTP_LENGTH ? head->content_length : 0;
	if (x->framing == HTTP_LENGTH && x->length == 0)
		x->complete = 1;
	if (x->framing == HTTP_NO_BODY)
		x->complete = 1;
	http_body_begin(&x->in, head);
	intake_pace(w, x);
}

/* What of the head decides that the body need not be read. 0 or -enum conn_end. */
static int admit(struct worker *w, struct conn *c, const struct http_head *head, const char *buf)
{
	struct exchange *x = c->x;

	http_path_classify(buf + head->path.at, head->path.len, &w->path_rules, &x->target);
	if (c->admin)
		return 0;
	if (x->target.path == HTTP_PATH_FORBIDDEN)
		return -END_PATH;
	if (!route_authorized(w, head, buf))
		return -END_UNAUTHORIZED;
	if (x->framing == HTTP_LENGTH && x->length > w->set->max_body)
		return -END_BODY_TOO_LARGE;
	x->generates = x->target.generates && head->method == HTTP_METHOD_POST;
	return prepare(w, x);
}

static void say_continue(struct worker *w, struct conn *c, size_t arrived)
{
	struct exchange *x = c->x;

	if (!w->head.expect_continue || x->complete || arrived > 0 || x->minor == 0)
		return;
	if (out_append(w, c, HTTP_CONTINUE, sizeof(HTTP_CONTINUE) - 1) == 0)
		out_pump(w, c);
}

static enum conn_state head_done(struct worker *w, struct conn *c, const uint8_t *rest, size_t len)
{
	struct exchange *x = c->x;
	char *buf = (char *)x->head->data;
	int err = http_request_parse(&w->head, buf, x->head_len);

	w->head_of = err < 0 ? NULL : x;
	x->head_ns = w->now_ns;
	known(w, c, err < 0 ? NULL : &w->head, buf);
	if (err < 0)
		return refuse_head(w, c, w->head.error);
	take_over(w, x, &w->head);
	err = admit(w, c, &w->head, buf);
	if (x->complete) { /* whoever answers: what follows is another request */
		early_keep(w, c, rest, len);
		len = 0;
	}
	if (err < 0)
		return exchange_fail(w, c, -err);
	if (c->admin || route_is_own(&x->target) || w->head.last_hop) {
		if (!x->complete)
			c->close_after = 1; /* a body that nobody wants */
		return own_answer(w, c);
	}
	say_continue(w, c, len);
	if (x->complete)
		return body_next(w, c, 1);
	return body_next(w, c, take_body(w, c, rest, len));
}

enum conn_state intake_head_bytes(struct worker *w, struct conn *c, const struct conn_input *in)
{
	struct exchange *x = c->x;
	uint32_t had = x->head_len;
	size_t room = LIMIT_HEAD_BYTES - had;
	size_t n = in->len < room ? in->len : room;
	size_t end;

	memcpy(x->head->data + had, in->data, n);
	x->head_len += n;
	end = http_head_end((const char *)x->head->data, x->head_len, had);
	if (end == 0) {
		const char *buf = (const char *)x->head->data;
		enum http_error error = x->head_len >= LIMIT_HEAD_BYTES
						? http_head_too_long(buf, x->head_len)
						: http_head_hopeless(buf, x->head_len);

		if (error == HTTP_ERROR_NONE)
			return CONN_HEAD;
		known(w, c, NULL, NULL);
		return refuse_head(w, c, error);
	}
	assert(end > had);
	x->head_len = end;
	return head_done(w, c, in->data + (end - had), in->len - (end - had));
}

/* Empty lines between requests begin none (RFC 9112, 2.2). Returns how many bytes they take. */
static size_t skip_blank(struct conn *c, const uint8_t *data, size_t len)
{
	size_t at = 0;

	while (at < len && data[at] == (c->blank_cr ? '\n' : '\r')) {
		c->blank_cr = !c->blank_cr;
		at++;
	}
	return at;
}

enum conn_state intake_idle_bytes(struct worker *w, struct conn *c, const struct conn_input *in)
{
	size_t blank = skip_blank(c, in->data, in->len);
	struct conn_input rest = { .data = in->data + blank, .len = in->len - blank };

	if (rest.len == 0)
		return CONN_IDLE;
	if (!intake_begin(w, c)) {
		static const char text[] =
			"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n"
			"retry-after: 1\r\nconnection: close\r\n\r\n";

		c->close_after = 1;
		out_append(w, c, text, sizeof(text) - 1);
		return conn_finish(w, c);
	}
	client_timer(w, c, w->set->head_timeout);
	if (c->blank_cr) /* no line end: part of the head, which is refused for it */
		c->x->head->data[c->x->head_len++] = '\r';
	c->blank_cr = 0;
	return intake_head_bytes(w, c, &rest);
}
