/* Connections of the modelled engines: requests in, answers out, and who went away meanwhile. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <time.h>
#include <unistd.h>

#include "bench/engine.h"
#include "shm/base/clock.h"

static uint64_t tag_of(const struct conn *c)
{
	return (uint64_t)c->generation << 32 | c->index;
}

struct conn *conn_of_tag(struct engine_world *w, uint64_t tag)
{
	uint32_t index = (uint32_t)tag;

	if (index >= w->conns || w->conn[index]->generation != tag >> 32)
		return NULL;
	return w->conn[index];
}

static struct conn *conn_take(struct engine_world *w)
{
	struct conn *c = w->free_conn;

	if (c) {
		w->free_conn = c->next_free;
		return c;
	}
	if (w->conns == w->conns_max)
		return NULL;
	c = calloc(1, sizeof(*c));
	assert(c);
	c->index = w->conns;
	w->conn[w->conns++] = c;
	return c;
}

static void shrink(struct out *o)
{
	if (o->room > ENGINE_KEEP_BYTES)
		out_free(o);
	o->len = 0;
}

static void idle_arm(struct conn *c)
{
	struct engine_world *w = c->engine->world;

	/* vLLM leaves a connection open that has not asked anything yet */
	if (c->served == 0 && c->engine->head != HEAD_LLAMACPP)
		return;
	wheel_arm(&w->wheel, &c->idle, clock_ns() + w->options.idle_ns);
}

void conn_accepted(struct engine *e, int fd)
{
	struct engine_world *w = e->world;
	struct conn *c = conn_take(w);
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	int handle = c ? loop_add(w->loop, fd, tag_of(c)) : -ENFILE;
	if (handle < 0) {
		close(fd);
		if (c)
			c->next_free = w->free_conn, w->free_conn = c;
		return;
	}
	c->engine = e;
	c->handle = handle;
	c->state = CONN_HEAD;
	c->head_seen = 0;
	c->send_busy = c->close_after = c->paused = false;
	c->served = 0;
	loop_receive(w->loop, handle);
	idle_arm(c);
}

/* Lets go of everything that works for the client; the engine's kind decides how soon it notices.
 */
static void choices_drop(struct conn *c)
{
	uint64_t now_ns = clock_ns();

	for (uint32_t i = 0; i < c->choices; i++)
		if (c->choice[i].ask)
			engine_ask_drop(c->choice[i].ask, now_ns);
	c->choices = c->choices_live = 0;
	free(c->kept_ids);
	c->kept_ids = NULL;
}

static void conn_close(struct conn *c)
{
	if (c->state == CONN_CLOSING)
		return;
	choices_drop(c);
	wheel_disarm(&c->engine->world->wheel, &c->idle);
	c->state = CONN_CLOSING;
	loop_close(c->engine->world->loop, c->handle);
}

void conn_cut(struct conn *c)
{
	c->pending.len = 0;
	conn_close(c);
}

static void conn_release(struct conn *c)
{
	struct engine_world *w = c->engine->world;

	shrink(&c->in);
	shrink(&c->body);
	shrink(&c->sending);
	shrink(&c->pending);
	c->state = CONN_FREE;
	c->generation++;
	c->next_free = w->free_conn;
	w->free_conn = c;
}

void conn_flush(struct conn *c)
{
	struct out sending = c->sending;

	if (c->send_busy || c->state == CONN_CLOSING)
		return;
	if (c->pending.len == 0) {
		if (c->close_after)
			conn_close(c);
		return;
	}
	c->sending = c->pending;
	c->pending = sending;
	c->pending.len = 0;
	c->send_busy = true;
	const struct iovec iov = { .iov_base = c->sending.at, .iov_len = c->sending.len };
	loop_send(c->engine->world->loop, c->handle, &iov, 1);
}

static void on_sent(struct conn *c, int res)
{
	c->send_busy = false;
	if (res < 0)
		conn_close(c);
	else
		conn_flush(c);
	shrink(&c->sending);
}

static const char *date_line(void)
{
	static char text[48];
	static time_t shown;
	time_t now = time(NULL);
	struct tm tm;

	if (now != shown) {
		gmtime_r(&now, &tm);
		strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &tm);
		shown = now;
	}
	return text;
}

static void head_llama(struct conn *c, struct out *o, const char *type, int64_t length)
{
	out_str(o, "Server: llama.cpp\r\nAccess-Control-Allow-Origin: \r\n");
	if (length < 0)
		out_str(o, "X-Accel-Buffering: no\r\n");
	out_fmt(o, "Content-Type: %s\r\n", type);
	if (length >= 0)
		out_fmt(o, "Content-Length: %lld\r\n", (long long)length);
	else if (!c->is_1_0)
		out_str(o, "Transfer-Encoding: chunked\r\n");
	out_str(o,
		c->keep ? "Keep-Alive: timeout=5, max=100\r\n\r\n" : "Connection: close\r\n\r\n");
}

/* length < 0: a stream, chunked unless the client speaks HTTP/1.0. */
void conn_send_head(struct conn *c, int status, const char *type, int64_t length)
{
	struct out *o = &c->pending;
	enum engine_head head = c->engine->head;

	c->status = status;
	c->head_sent = true;
	if (length < 0 && c->is_1_0)
		c->keep = false;
	out_fmt(o, "HTTP/1.1 %d %s\r\n%s", status, http_status_text(status), c->extra);
	c->extra[0] = '\0';
	if (head == HEAD_LLAMACPP) {
		if (status >= 400)
			c->keep = false; /* it closes after every error */
		head_llama(c, o, type, length);
		return;
	}
	out_fmt(o, "date: %s\r\nserver: uvicorn\r\n", date_line());
	if (status == 405)
		out_str(o, "allow: POST\r\n");
	if (length >= 0)
		out_fmt(o, "content-length: %lld\r\n", (long long)length);
	out_fmt(o, "content-type: %s\r\nvary: Origin\r\n", type);
	if (length < 0 && !c->is_1_0)
		out_str(o, head == HEAD_SGLANG ? "Transfer-Encoding: chunked\r\n"
					       : "transfer-encoding: chunked\r\n");
	if (!c->keep)
		out_str(o, "connection: close\r\n");
	out_str(o, "\r\n");
}

void conn_answer(struct conn *c, int status, const char *type, const void *body, size_t len)
{
	conn_send_head(c, status, type, (int64_t)len);
	if (c->method != HTTP_METHOD_HEAD)
		out_mem(&c->pending, body, len);
	conn_done(c);
}

void conn_error(struct conn *c, int status, const char *type, const char *param,
		const char *message)
{
	struct out body = { 0 };

	reply_error(c->engine->head, &body, status, type, param, message);
	conn_answer(c, status, "application/json", body.at, body.len);
	out_free(&body);
}

/* The answer is complete: counts it, then waits for the next request or closes behind it. */
void conn_done(struct conn *c)
{
	double seconds = (double)(clock_ns() - c->began_ns) * 1e-9;

	metrics_http_done(&c->engine->metrics, c->handler, c->status, c->body_bytes, c->pending.len,
			  seconds);
	c->served++;
	c->choices = 0;
	free(c->kept_ids);
	c->kept_ids = NULL;
	c->close_after = !c->keep;
	c->state = CONN_HEAD;
	c->head_seen = 0;
	conn_flush(c);
	if (c->state == CONN_HEAD && !c->close_after && c->in.len == 0)
		idle_arm(c);
}

static void refuse_head(struct conn *c, int status, const char *message)
{
	c->keep = false;
	c->handler = METRICS_HANDLER_NONE;
	c->began_ns = clock_ns();
	c->body_bytes = 0;
	conn_error(c, status, "Bad Request", NULL, message);
}

/* Drops `n` bytes from the front of what was received. */
static void in_consume(struct conn *c, size_t n)
{
	assert(n <= c->in.len);
	if (n == 0)
		return;
	memmove(c->in.at, c->in.at + n, c->in.len - n);
	c->in.len -= n;
}

static void request_start(struct conn *c, const struct http_head *head)
{
	const char *buf = c->in.at;
	size_t path = 0;

	c->method = head->method;
	while (path < head->path.len && path < sizeof(c->path) - 1 &&
	       buf[head->path.at + path] != '?') {
		c->path[path] = buf[head->path.at + path];
		path++;
	}
	c->path[path] = '\0';
	c->is_1_0 = head->minor == 0;
	c->keep = head->keep_alive;
	if (c->engine->head == HEAD_LLAMACPP && c->served + 1 >= 100)
		c->keep = false;
	c->began_ns = clock_ns();
	c->body.len = c->body_bytes = c->sent_bytes = 0;
	c->head_sent = c->first_sent = c->failed = false;
	c->status = 0;
	http_body_begin(&c->framing, head);
}

/* 1: a head was used; 0: more bytes are needed, or the connection is past help. */
static int take_head(struct conn *c)
{
	static struct http_head head;
	size_t end = http_head_end(c->in.at, c->in.len, c->head_seen);

	if (end == 0) {
		c->head_seen = c->in.len > 3 ? c->in.len - 3 : 0;
		if (c->in.len >= LIMIT_HEAD_BYTES)
			refuse_head(c, 431, "the request head is too long");
		return 0;
	}
	wheel_disarm(&c->engine->world->wheel, &c->idle);
	if (http_request_parse(&head, c->in.at, end) < 0) {
		const struct http_error_info *why = http_error_info(head.error);

		refuse_head(c, why->status, why->text);
		return 0;
	}
	request_start(c, &head);
	in_consume(c, end);
	c->head_seen = 0;
	if (head.has_content_length && head.content_length > ENGINE_BODY_MAX) {
		refuse_head(c, 413, "the body is larger than 64 MiB");
		return 0;
	}
	if (head.expect_continue) {
		out_str(&c->pending, HTTP_CONTINUE);
		conn_flush(c);
	}
	if (head.has_content_length)
		out_reserve(&c->body, head.content_length + 1);
	c->state = CONN_BODY;
	return 1;
}

/* Takes body bytes from data[0..len); returns how many were used, or -errno. */
static ssize_t take_body(struct conn *c, const char *data, size_t len)
{
	size_t used, piece_len, all = 0;
	const char *piece;
	int complete = 0;

	while (!complete) {
		complete = http_body_step(&c->framing, data + all, len - all, &used, &piece,
					  &piece_len);
		if (complete < 0 || c->body.len + piece_len > ENGINE_BODY_MAX)
			return -EPROTO;
		if (piece_len)
			out_mem(&c->body, piece, piece_len);
		all += used;
		if (!complete && (all == len || used == 0))
			break;
	}
	if (complete) {
		c->body_bytes = c->body.len;
		c->state = CONN_READY;
	}
	return (ssize_t)all;
}

/* Works off what was received until more is needed or an answer is under way. */
static void advance(struct conn *c)
{
	for (;;) {
		if (c->state == CONN_HEAD && !c->close_after && c->in.len > 0) {
			if (!take_head(c))
				return;
		} else if (c->state == CONN_BODY) {
			ssize_t used = take_body(c, c->in.at, c->in.len);

			if (used < 0) {
				refuse_head(c, 400, "the body is malformed");
				return;
			}
			in_consume(c, (size_t)used);
			if (c->state == CONN_BODY)
				return;
		} else if (c->state == CONN_READY) {
			c->state = CONN_BUSY;
			api_handle(c, clock_ns());
			shrink(&c->body);
		} else {
			return;
		}
	}
}

static void on_bytes(struct conn *c, const char *data, size_t len)
{
	struct engine_world *w = c->engine->world;

	if (c->state == CONN_BODY && c->in.len == 0) {
		ssize_t used = take_body(c, data, len);

		if (used < 0) {
			refuse_head(c, 400, "the body is malformed");
			return;
		}
		data += used;
		len -= (size_t)used;
	}
	out_mem(&c->in, data, len);
	if (c->state == CONN_BUSY && c->in.len > ENGINE_AHEAD_MAX && !c->paused) {
		loop_pause(w->loop, c->handle);
		c->paused = true;
	}
	advance(c);
}

static void on_received(struct conn *c, const struct loop_event *event)
{
	struct engine_world *w = c->engine->world;

	if (event->res > 0) {
		if (c->state != CONN_CLOSING && !c->close_after)
			on_bytes(c, (const char *)event->data, (size_t)event->res);
		loop_give_back(w->loop, event->buffer);
	} else {
		conn_close(c); /* a half-close counts as gone, with all three engines */
	}
}

void conn_event(struct engine_world *w, const struct loop_event *event)
{
	struct conn *c = conn_of_tag(w, event->tag);

	if (!c) {
		if (event->op == LOOP_RECEIVED && event->res > 0)
			loop_give_back(w->loop, event->buffer);
		return;
	}
	if (event->op == LOOP_RECEIVED)
		on_received(c, event);
	else if (event->op == LOOP_SENT)
		on_sent(c, event->res);
	else if (event->op == LOOP_CLOSED)
		conn_release(c);
	if (c->state == CONN_HEAD && !c->send_busy) {
		if (c->paused) {
			c->paused = false;
			loop_receive(w->loop, c->handle);
		}
		advance(c);
	}
}

/* Closes one connection whose keep-alive ran out; false when there is none. */
bool conn_idle_expire(struct engine_world *w, uint64_t now_ns)
{
	struct wheel_timer *timer = wheel_expire(&w->wheel, now_ns);

	if (!timer)
		return false;
	struct conn *c = (struct conn *)((char *)timer - offsetof(struct conn, idle));
	if (c->state == CONN_HEAD && c->in.len == 0)
		conn_close(c);
	return true;
}

void conns_free(struct engine_world *w)
{
	for (uint32_t i = 0; i < w->conns; i++) {
		struct conn *c = w->conn[i];

		out_free(&c->in);
		out_free(&c->body);
		out_free(&c->sending);
		out_free(&c->pending);
		reply_fini(&c->reply);
		free(c->choice);
		free(c->kept_ids);
		free(c);
	}
	free(w->conn);
}
