/* Brings the engine's answer to the client: head rewritten, body watched and passed on at once. */
#include "router/net/parts.h"

#include "router/net/requeue.h"

#include "router/route.h"
#include "shm/base/clock.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
	RELAY_PIECES = 32,       /* decoded pieces of one read that make one chunk */
	RETRY_AFTER_MAX_S = 60,  /* an engine is not shut out for longer on its own word */
	RELAY_INTERIM_MAX = 100, /* 1xx heads that one answer may have */
};

/* Where many clients take slowly each may have less waiting, so that none is cut for others. */
static size_t most_waiting(const struct worker *w)
{
	if (w->outs.used < w->outs.limit / 2)
		return LIMIT_STREAM_BUFFER;
	return w->outs.used < w->outs.limit / 4 * 3 ? LIMIT_STREAM_BUFFER / 8 : LIMIT_OUT_BLOCK;
}

/* The client takes too slowly: this engine's stream is not read on, no other is touched. */
static void press_back(struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;

	if (!x->engine_paused && x->link && c->out.bytes > most_waiting(w)) {
		x->engine_paused = 1;
		loop_pause(w->loop, x->link->handle);
	}
}

/*
 * vLLM sends its head at once and computes the prompt after it: until a stream's first token the
 * wait is that for the first byte, however long the queue in front of it.
 */
static void wait_on(struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;
	bool token_due = x->generates && x->sse && !x->first_token_ns;

	client_timer(w, c, token_due ? w->set->first_byte_timeout : w->set->stream_idle_timeout);
	x->moved_ns = w->now_ns;
}

void relay_client_took(struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;

	if (x->engine_paused && x->link && c->out.bytes < most_waiting(w) / 2) {
		x->engine_paused = 0;
		loop_receive(w->loop, x->link->handle);
		wait_on(w, c);
	}
}

/* ---- body ---- */

static int emit(struct worker *w, struct conn *c, const struct iovec *piece, int n, size_t bytes)
{
	struct exchange *x = c->x;
	char head[HTTP_CHUNK_HEAD_MAX];
	int err = 0;

	if (bytes == 0 || x->head_only)
		return 0;
	if (x->answer_chunked)
		err = out_append(w, c, head, http_chunk_head(head, bytes));
	for (int i = 0; i < n && err == 0; i++)
		err = out_append(w, c, piece[i].iov_base, piece[i].iov_len);
	if (x->answer_chunked && err == 0)
		err = out_append(w, c, "\r\n", 2);
	x->bytes_out += bytes;
	return err;
}

/* A silent stream gets a comment, so that no proxy or client on the way takes it for dead. */
void relay_comment(struct worker *w, struct conn *c)
{
	static const char text[] = ": keepalive\n\n";
	struct iovec piece = { (void *)text, sizeof(text) - 1 };
	struct exchange *x = c->x;
	uint64_t due;

	if (!x || c->state != CONN_RELAY || !x->comments || !w->set->keepalive_comment)
		return;
	due = x->moved_ns + w->set->keepalive_comment;
	if (due <= w->now_ns) {
		due = w->now_ns + w->set->keepalive_comment;
		/* A client that takes nothing needs no comment. */
		if (c->out.bytes == 0 && chat_watch_between(&x->watch) &&
		    emit(w, c, &piece, 1, piece.iov_len) == 0)
			out_pump(w, c);
	}
	wheel_arm(&w->wheel, &c->comment_timer, due);
}

/* The first event is out: nothing is sent again, and what only that would need goes back. */
static void settle(struct worker *w, struct exchange *x)
{
	dispatch_forget_body(w, x);
	if (x->head)
		slab_give(&w->heads, x->head);
	x->head = NULL;
	x->target.id = x->target.sub = NULL; /* lay there */
	x->settled = (uint8_t)route_settle(w, x);
}

static void note(struct worker *w, struct exchange *x, uint32_t news)
{
	if (x->holds_back && (news & CHAT_SEEN_TOKEN)) /* it stands */
		x->holds_back = 0;
	if (!x->holds_back && (x->watch.seen & CHAT_SEEN_EVENT))
		x->relayed_event = 1;
	if ((news & CHAT_SEEN_TOKEN) && x->first_token_ns == 0 && x->sse) {
		x->first_token_ns = w->now_ns;
		route_first_token(w, x);
	}
	if (news & CHAT_SEEN_RESPONSE_ID)
		route_response_made(w, x);
	if (!x->settled && (x->relayed_event || !x->sse) && x->sent &&
	    !(x->link && x->link->sending))
		settle(w, x);
}

/* A piece of the decoded body; `done`: its last, which may be all there is. */
static void watch(struct worker *w, struct exchange *x, const char *p, size_t len, int done)
{
	int whole = done && !x->sse && x->answer.decoded == len;

	note(w, x,
	     whole ? chat_watch_document(&x->watch, p, len) : chat_watch_step(&x->watch, p, len));
}

/* Decodes one read, watches it, appends it for the client. 1: complete, 0: more, -errno. */
static int pass_on(struct worker *w, struct conn *c, const uint8_t *data, size_t len,
		   size_t *ret_used)
{
	struct exchange *x = c->x;
	struct iovec piece[RELAY_PIECES];
	size_t bytes = 0, at = 0;
	int n = 0, done;

	do {
		const char *p;
		size_t used, p_len;

		done = http_body_step(&x->answer, (const char *)data + at, len - at, &used, &p,
				      &p_len);
		if (done < 0)
			return -EPROTO;
		at += used;
		if (p_len) {
			watch(w, x, p, p_len, done);
			piece[n++] = (struct iovec){ (void *)p, p_len };
			bytes += p_len;
		}
		if (n == RELAY_PIECES) {
			if (emit(w, c, piece, n, bytes) < 0)
				return -ENOBUFS;
			n = 0;
			bytes = 0;
		}
	} while (!done && at < len);
	*ret_used = at;
	return emit(w, c, piece, n, bytes) < 0 ? -ENOBUFS : done;
}

static enum conn_state complete(struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;

	x->holds_back = 0;
	note(w, x, chat_watch_end(&x->watch));
	x->answer_complete = 1;
	if (x->answer_chunked && !x->head_only &&
	    out_append(w, c, HTTP_LAST_CHUNK, sizeof(HTTP_LAST_CHUNK) - 1) < 0)
		return exchange_fail(w, c, END_OVERLOAD);
	if (!x->complete || !x->keep_alive)
		c->close_after = 1;
	conn_finish(w, c); /* decides on staying while the exchange still knows */
	exchange_end(w, c, END_OK);
	return CONN_FLUSH;
}

static enum conn_state body_bytes(struct worker *w, struct conn *c, const uint8_t *data, size_t len)
{
	struct exchange *x = c->x;
	size_t used = 0;
	int done = pass_on(w, c, data, len, &used);

	if (done == -ENOBUFS)
		return exchange_fail(w, c, END_OVERLOAD);
	if (done < 0)
		return exchange_fail(w, c, END_ENGINE_GARBAGE);
	if (done) {
		if (used < len)
			x->engine_keep_alive = 0; /* bytes that belong to no answer */
		return complete(w, c);
	}
	if (c->out.bytes > LIMIT_HELD_BACK && x->holds_back) {
		requeue_done(w, x);
		x->holds_back = 0;
	}
	if (x->first_token_ns && !x->relayed_ns && x->token_left == 0)
		x->token_left = c->out.bytes;
	out_pump(w, c);
	press_back(w, c);
	wait_on(w, c);
	return CONN_RELAY;
}

enum conn_state relay_bytes(struct worker *w, struct conn *c, const struct conn_input *in)
{
	rescue_alive(&w->back, (unsigned)c->x->engine, w->now_ns);
	return body_bytes(w, c, in->data, in->len);
}

/* The engine closed: the legal end of a to-close answer, else a cut that the client must see. */
enum conn_state relay_eof(struct worker *w, struct conn *c, const struct conn_input *in)
{
	struct exchange *x = c->x;

	x->engine_keep_alive = 0;
	if (in->res == 0 && http_body_eof(&x->answer) == 0)
		return complete(w, c);
	count_engine(&w->counters, x->engine, ENGINE_COUNTER_errors, 1);
	return exchange_fail(w, c, END_ENGINE_GONE);
}

/* ---- head ---- */

static void head_extra(const struct worker *w, const struct exchange *x, char *out, size_t size)
{
	out[0] = 0;
	if (w->set->debug_headers && x->route)
		snprintf(out, size,
			 "x-turnward-engine: %s\r\nx-turnward-reason: %s\r\n"
			 "x-turnward-predicted-ttft: %.4f\r\n",
			 w->engines[x->engine].at.name, policy_reason_name(x->route->reason),
			 x->route->predicted_ttft_s);
	via_line(w, w->head.minor, out + strlen(out), size - strlen(out));
}

/* Writes the client's head. 0 or -errno. */
static int begin(struct worker *w, struct conn *c, const struct http_head *head, const char *buf)
{
	struct exchange *x = c->x;
	struct block *b = slab_take(&w->heads);
	struct http_answer how = { .framing = head->framing,
				   .content_length = head->content_length,
				   .request_id = x->id,
				   .date = w->date };
	char extra[256 + SETTINGS_WORD_MAX];
	size_t len;
	int err;

	if (!b)
		return -ENOBUFS;
	if (head->framing == HTTP_CHUNKED || head->framing == HTTP_TO_CLOSE) {
		how.framing = x->minor ? HTTP_CHUNKED : HTTP_TO_CLOSE;
		x->answer_chunked = x->minor && !x->head_only;
	}
	x->answer_to_close = how.framing == HTTP_TO_CLOSE;
	if (x->answer_to_close || w->draining || !x->complete)
		c->close_after = 1;
	how.close = c->close_after || !x->keep_alive;
	how.keep_alive_1_0 = !x->minor && !how.close;
	head_extra(w, x, extra, sizeof(extra));
	how.extra = extra[0] ? extra : NULL;
	err = http_response_write((char *)b->data, block_capacity(&w->heads), head, buf, &how,
				  &len);
	if (err == 0)
		err = out_append(w, c, b->data, len);
	slab_give(&w->heads, b);
	x->bytes_out += err == 0 ? len : 0;
	return err;
}

static void keep_alive_limits(struct worker *w, struct exchange *x, const struct http_head *head)
{
	struct link *link = x->link;
	uint64_t limit;

	x->engine_keep_alive = head->keep_alive && head->framing != HTTP_TO_CLOSE;
	if (head->keep_alive_max && link->left == UINT32_MAX)
		link->left = head->keep_alive_max;
	if (head->keep_alive_timeout_s == 0)
		return;
	/* A second below the engine's own limit, or half of it where that is short. */
	limit = head->keep_alive_timeout_s > 1
			? (head->keep_alive_timeout_s - 1) * (uint64_t)NS_PER_S
			: NS_PER_S / 2;
	if (limit < link->idle_ns)
		link->idle_ns = limit;
}

/* Retry-After in seconds; a date, or nothing, leaves the short default. */
static uint64_t retry_after_ns(const struct http_head *head, const char *buf)
{
	const struct http_field *f = http_head_field(head, HTTP_FIELD_RETRY_AFTER);
	uint64_t s = 0;

	for (uint16_t i = 0; f && i < f->value.len && i < 6; i++) {
		char d = buf[f->value.at + i];

		if (d < '0' || d > '9')
			return 0;
		s = s * 10 + (uint64_t)(d - '0');
	}
	return (s < RETRY_AFTER_MAX_S ? s : RETRY_AFTER_MAX_S) * NS_PER_S;
}

static int encoded(const struct http_head *head)
{
	return http_head_field(head, HTTP_FIELD_CONTENT_ENCODING) != NULL;
}

/* A whole head of a final answer: a refusal may be tried elsewhere, else it is relayed. */
static enum conn_state head_done(struct worker *w, struct conn *c, const char *buf, size_t head_len,
				 const uint8_t *rest, size_t rest_len)
{
	struct exchange *x = c->x;
	enum conn_state next;

	w->head_of = NULL;
	/* An interim head that blank lines hid from interim() is no answer either. */
	if (http_response_parse(&w->head, buf, head_len, x->method) < 0 || w->head.status < 200) {
		count_engine(&w->counters, x->engine, ENGINE_COUNTER_errors, 1);
		return exchange_fail(w, c, END_ENGINE_GARBAGE);
	}
	/* 408 and a close: how some say that a connection rested too long (RFC 9110, 15.5.9). */
	if (w->head.status == 408 && !w->head.keep_alive) {
		next = dispatch_stale(w, c);
		if (next != CONN_STATES_NR)
			return next;
	}
	x->status = w->head.status;
	dispatch_judge(w, x,
		       x->status == 500 || x->status == 502 || x->status == 504 ? VERDICT_FAILED
										: VERDICT_ANSWERED);
	if (x->status == 429 || x->status == 503) {
		engine_refused(w, &w->engines[x->engine], retry_after_ns(&w->head, buf));
		next = dispatch_refused(w, c);
		if (next != CONN_STATES_NR)
			return next;
	}
	if (x->status >= 500)
		count_engine(&w->counters, x->engine, ENGINE_COUNTER_errors, 1);
	x->first_byte_ns = w->now_ns;
	x->sse = w->head.sse;
	if (!x->sse || rest_len) /* it computes; a stream's head may come long before that */
		rescue_alive(&w->back, (unsigned)x->engine, w->now_ns);
	keep_alive_limits(w, x, &w->head);
	http_body_begin(&x->answer, &w->head);
	chat_watch_begin(&x->watch, x->sse ? CHAT_WATCH_SSE : CHAT_WATCH_JSON);
	if (!x->answered) {
		x->holds_back = (uint8_t)requeue_holds(w, c, x->status, x->sse);
		if (begin(w, c, &w->head, buf) < 0)
			return exchange_fail(w, c, END_ENGINE_GARBAGE);
	} else if (x->status != 200 || !x->sse || encoded(&w->head)) {
		/* Of one rescued the client has a head: only a stream of that kind can follow. */
		return exchange_fail(w, c, END_ENGINE_GONE);
	}
	x->answered = 1;
	x->comments =
		x->sse && w->head.framing != HTTP_LENGTH && !x->head_only && !encoded(&w->head);
	if (x->comments && w->set->keepalive_comment)
		wheel_arm(&w->wheel, &c->comment_timer, w->now_ns + w->set->keepalive_comment);
	return body_bytes(w, c, rest, rest_len);
}

/*
 * To whoever can read it (RFC 9110, 15.2), but 100: where the client expected that, it had ours.
 * One that the client is too slow for is dropped: nothing hangs on it.
 */
static void interim_on(struct worker *w, struct conn *c, const void *head)
{
	struct http_answer how = { .framing = HTTP_NO_BODY };
	struct exchange *x = c->x;
	struct block *b;
	size_t len;

	if (w->head.status == 100 || !x->minor || x->answered || c->out.bytes > most_waiting(w))
		return;
	b = slab_take(&w->heads);
	if (b &&
	    http_response_write((char *)b->data, block_capacity(&w->heads), &w->head, head, &how,
				&len) == 0 &&
	    out_append(w, c, b->data, len) == 0)
		out_pump(w, c);
	if (b)
		slab_give(&w->heads, b);
}

/* Read like any other: what is malformed is no interim answer. */
static int interim(struct worker *w, const struct exchange *x, const void *head, size_t len)
{
	w->head_of = NULL;
	return len > 12 && memcmp(head, "HTTP/1.", 7) == 0 && ((const char *)head)[9] == '1' &&
	       http_response_parse(&w->head, head, len, x->method) == 0;
}

/* Heads are parsed where they lie; one that came in pieces is gathered in a block first. */
enum conn_state relay_head_bytes(struct worker *w, struct conn *c, const struct conn_input *in)
{
	struct exchange *x = c->x;
	const uint8_t *data = in->data;
	size_t len = in->len, end;

	x->heard = 1;
	while (x->interims <= RELAY_INTERIM_MAX) {
		if (x->answer_head) {
			struct block *b = x->answer_head;
			size_t had = b->end, room = LIMIT_HEAD_BYTES - had;
			size_t n = len < room ? len : room;
			enum conn_state next;

			memcpy(b->data + had, data, n);
			b->end += n;
			end = http_head_end((char *)b->data, b->end, had);
			if (end == 0 && b->end >= LIMIT_HEAD_BYTES)
				return exchange_fail(w, c, END_ENGINE_GARBAGE);
			if (end == 0)
				return CONN_WAIT;
			x->answer_head = NULL;
			data += end - had;
			len -= end - had;
			if (interim(w, x, b->data, end)) {
				interim_on(w, c, b->data);
				slab_give(&w->heads, b);
				x->interims++;
				continue;
			}
			next = head_done(w, c, (char *)b->data, end, data, len);
			slab_give(&w->heads, b);
			return next;
		}
		end = http_head_end((const char *)data, len, 0);
		if (end && !interim(w, x, data, end))
			return head_done(w, c, (const char *)data, end, data + end, len - end);
		if (end)
			interim_on(w, c, data);
		data += end;
		len -= end;
		x->interims += end > 0;
		if (len == 0)
			return CONN_WAIT;
		if (end)
			continue;
		if (len >= LIMIT_HEAD_BYTES || !(x->answer_head = block_take(&w->heads)))
			return exchange_fail(w, c, END_ENGINE_GARBAGE);
	}
	return exchange_fail(w, c, END_ENGINE_GARBAGE);
}
