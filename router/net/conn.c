/* The state table of client connections, the one mover of states, and the client's side of sending.
 */
#include "router/net/conn.h"

#include "router/accesslog.h"
#include "router/net/ahead.h"
#include "router/net/parts.h"
#include "router/net/staging.h"
#include "router/route.h"
#include "router/worker.h"
#include "shm/base/clock.h"

#include <assert.h>
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define END_ROW(name, word, outcome, status, type, code, text) \
	[END_##name] = { word, OUTCOME_##outcome, status, type, code, text },
const struct conn_end_info conn_ends[CONN_ENDS_NR] = { CONN_ENDS(END_ROW) };
#define STATE_ROW(name, text) [CONN_##name] = #name,
const char *const conn_state_names[CONN_STATES_NR] = { CONN_STATES(STATE_ROW) };

static const uint64_t LINGER_MAX_NS = 30ull * NS_PER_S; /* with some */

enum {
	HUNGRY_FED_PERCENT = 85, /* of the body arena: below, those that wait read on */
	LINGER_NS = NS_PER_S,    /* without a byte of the client's */
	SEND_LOOKS = 4,          /* at a client's progress, in each client_send_timeout */
	ADMIN_SLOTS = 8, /* kept free of clients: the operator must get in when all is full */
};

/* ---- those that wait for room in the body arena, first come first served ---- */

void hungry_add(struct worker *w, struct conn *c)
{
	struct conn **p = &w->hungry;

	if (c->hungry)
		return;
	while (*p)
		p = &(*p)->hungry_next;
	*p = c;
	c->hungry_next = NULL;
	c->hungry = 1;
}

static void hungry_remove(struct worker *w, struct conn *c)
{
	struct conn **p = &w->hungry;

	if (!c->hungry)
		return;
	while (*p != c)
		p = &(*p)->hungry_next;
	*p = c->hungry_next;
	c->hungry_next = NULL;
	c->hungry = 0;
}

/* ---- output ---- */

int out_append(struct worker *w, struct conn *c, const void *data, size_t len)
{
	return chain_append(&c->out, &w->outs, data, len);
}

/* What the client has confirmed so far. A Unix socket does not tell: 0. */
static uint64_t confirmed(const struct worker *w, const struct conn *c)
{
	struct tcp_info info = { 0 };
	socklen_t len = sizeof(info);

	getsockopt(loop_fd(w->loop, c->handle), IPPROTO_TCP, TCP_INFO, &info, &len);
	return info.tcpi_bytes_acked;
}

static void send_timer(struct worker *w, struct conn *c)
{
	wheel_arm(&w->wheel, &c->send_timer, w->now_ns + w->set->client_send_timeout / SEND_LOOKS);
}

/* Whether the client has taken something within its time. */
static int takes(struct worker *w, struct conn *c)
{
	uint64_t now = confirmed(w, c);

	if (now != c->confirmed)
		c->took_ns = w->now_ns;
	c->confirmed = now;
	return w->now_ns - c->took_ns < w->set->client_send_timeout;
}

void out_pump(struct worker *w, struct conn *c)
{
	struct iovec iov[LOOP_IOV_MAX];
	int n;

	if (c->sending || c->out.bytes == 0 || c->state == CONN_CLOSE || (c->x && c->x->holds_back))
		return;
	n = chain_iov(&c->out, iov, LOOP_IOV_MAX, &c->in_flight);
	c->sending = 1;
	loop_send(w->loop, c->handle, iov, n);
	c->took_ns = w->now_ns;
	send_timer(w, c);
}

void client_timer(struct worker *w, struct conn *c, uint64_t after_ns)
{
	if (after_ns)
		wheel_arm(&w->wheel, &c->timer, w->now_ns + after_ns);
	else
		wheel_disarm(&w->wheel, &c->timer);
}

static void unread_set(struct worker *w, struct conn *c, uint8_t unread)
{
	w->unread_nr += (uint32_t)unread - c->unread;
	c->unread = unread;
}

void client_read(struct worker *w, struct conn *c)
{
	if (c->filling)
		return;
	c->paused = 0;
	unread_set(w, c, 0);
	loop_receive(w->loop, c->handle);
}

void early_keep(struct worker *w, struct conn *c, const uint8_t *data, size_t len)
{
	if (len == 0)
		return;
	if (chain_append(&c->early, &w->outs, data, len) < 0)
		c->close_after = 1; /* what follows is lost: nothing after this request */
	if (c->early.bytes >= LIMIT_HEAD_BYTES && !c->paused) {
		c->paused = 1;
		unread_set(w, c, 1);
		loop_pause(w->loop, c->handle);
	}
}

/* ---- ends ---- */

static void inflight_remove(struct worker *w, struct exchange *x)
{
	*x->prev = x->next;
	if (x->next)
		x->next->prev = x->prev;
	w->inflight_nr--;
}

/* What the end of a request says of the engine that had it. */
static void judge_engine(struct worker *w, struct exchange *x, enum conn_end end)
{
	if (x->engine < 0)
		return;
	switch (end) {
	case END_FIRST_BYTE_TIMEOUT:
	case END_STREAM_IDLE:
	case END_ENGINE_GONE:
	case END_ENGINE_GARBAGE:
		dispatch_judge(w, x, VERDICT_FAILED);
		break;
	default:
		dispatch_judge(w, x, VERDICT_NOTHING);
		break;
	}
}

void exchange_end(struct worker *w, struct conn *c, enum conn_end end)
{
	struct exchange *x = c->x;

	assert(x && x->conn == c);
	x->end = end;
	c->cut |= x->answer_to_close && !x->answer_complete;
	judge_engine(w, x, end);
	wheel_disarm(&w->wheel, &c->comment_timer);
	dispatch_release(w, x);
	route_ended(w, x);
	if (x->counted) {
		static const enum counter by_outcome[] = {
			[OUTCOME_COMPLETED] = COUNTER_requests_completed,
			[OUTCOME_FAILED] = COUNTER_requests_failed,
			[OUTCOME_ABORTED] = COUNTER_requests_aborted,
		};
		count(&w->counters, by_outcome[conn_ends[end].outcome], 1);
		count(&w->counters, COUNTER_bytes_in, x->bytes_in);
		count(&w->counters, COUNTER_bytes_out, x->bytes_out);
		accesslog_request(w, x);
	}
	if (x->id[0])
		request_id_forget(w, x);
	route_free(w, x);
	scan_release(w, x);
	if (x->head)
		slab_give(&w->heads, x->head);
	if (x->answer_head)
		slab_give(&w->heads, x->answer_head);
	assert(!x->out_head && !x->body.head);
	if (w->eldest == c)
		w->eldest = NULL;
	inflight_remove(w, x);
	slab_give(&w->exchanges, x);
	c->x = NULL;
	c->served++;
}

/* Whether the connection can carry another request once `out` is taken. */
static int can_stay(const struct worker *w, const struct conn *c, const struct exchange *x)
{
	return x->keep_alive && x->complete && !c->close_after && !w->draining;
}

enum conn_state conn_finish(struct worker *w, struct conn *c)
{
	if (c->x)
		c->close_after |= !can_stay(w, c, c->x);
	client_timer(w, c, 0);
	if (c->out.bytes == 0 && !c->sending)
		return CONN_FLUSH; /* conn_step() takes it on from there at once */
	out_pump(w, c);
	return CONN_FLUSH;
}

/* What RFC 9110 demands beside a status (15.5.2, 15.5.6). */
static const char *owed_field(int status)
{
	switch (status) {
	case 401:
		return "WWW-Authenticate: Bearer\r\n";
	case 405:
		return "Allow: GET, HEAD\r\n";
	default:
		return NULL;
	}
}

/* Whose clients read the error: where its path was not read, what its head looks like decides. */
static enum http_error_form error_form(const struct exchange *x)
{
	if (x->target.path == HTTP_PATH_MESSAGES || x->target.path == HTTP_PATH_COUNT_TOKENS ||
	    (x->head && http_asks_anthropic((const char *)x->head->data, x->head_len)))
		return HTTP_FORM_ANTHROPIC;
	return HTTP_FORM_OPENAI;
}

enum conn_state exchange_fail(struct worker *w, struct conn *c, enum conn_end end)
{
	struct exchange *x = c->x;
	const struct conn_end_info *info = &conn_ends[end];
	struct http_failure failure = {
		.status = x->error_status ? x->error_status : info->status,
		.form = error_form(x),
		.type = x->error_status ? NULL : info->type,
		.code = x->error_code ? x->error_code : info->code,
		.message = x->error_text ? x->error_text : info->text,
		.request_id = x->id[0] ? x->id : NULL,
		.date = w->date,
		.retry_after_s = info->status == 503 ? 1 : 0,
		.close = !can_stay(w, c, x),
		.head_only = x->head_only,
	};
	char text[4096];
	size_t len;

	if (x->holds_back)
		requeue_unsay(w, c);
	failure.extra = owed_field(failure.status);
	if (x->answered || failure.status == 0) {
		/* A cut stream: no terminator, and the connection ends so that the client sees it.
		 */
		c->close_after = 1;
	} else if (http_error_write(text, sizeof(text), &failure, &len) == 0 &&
		   out_append(w, c, text, len) == 0) {
		x->status = failure.status;
		x->bytes_out += len;
	} else {
		c->close_after = 1;
	}
	c->close_after |= failure.close;
	exchange_end(w, c, end);
	return conn_finish(w, c);
}

enum conn_state exchange_answer(struct worker *w, struct conn *c, int status, const char *type,
				const char *body, size_t len)
{
	struct exchange *x = c->x;
	char head[512];
	int n = snprintf(head, sizeof(head),
			 "HTTP/1.1 %d %s\r\ncontent-type: %s\r\ncontent-length: %zu\r\n"
			 "date: %s\r\nx-request-id: %s\r\n%s\r\n",
			 status, http_status_text(status), type, len, w->date, x->id,
			 can_stay(w, c, x) ? (x->minor ? "" : "connection: keep-alive\r\n")
					   : "connection: close\r\n");

	assert(n > 0 && (size_t)n < sizeof(head));
	x->status = status;
	if (out_append(w, c, head, n) < 0 || (!x->head_only && out_append(w, c, body, len) < 0)) {
		exchange_end(w, c, END_OVERLOAD);
		return conn_shut(w, c);
	}
	x->bytes_out += n + (x->head_only ? 0 : len);
	c->close_after |= !can_stay(w, c, x);
	exchange_end(w, c, END_OK);
	return conn_finish(w, c);
}

/* ---- actions of the client's side ---- */

enum conn_state conn_shut(struct worker *w, struct conn *c)
{
	static const struct linger none = { .l_onoff = 1 };

	if (c->cut)
		setsockopt(loop_fd(w->loop, c->handle), SOL_SOCKET, SO_LINGER, &none, sizeof(none));
	wheel_disarm(&w->wheel, &c->timer);
	wheel_disarm(&w->wheel, &c->send_timer);
	wheel_disarm(&w->wheel, &c->comment_timer);
	loop_close(w->loop, c->handle);
	return CONN_CLOSE;
}

static enum conn_state accepted(struct worker *w, struct conn *c, const struct conn_input *in)
{
	client_timer(w, c, w->set->head_timeout);
	client_read(w, c);
	return CONN_IDLE;
}

/* on_half_close = continue: what it has sent is answered, then the connection ends. */
static void said_all(struct conn *c)
{
	c->gone = 1;
	if (c->early.bytes == 0)
		c->close_after = 1;
}

static enum conn_state hang_up(struct worker *w, struct conn *c, const struct conn_input *in)
{
	/* An end of stream may be a half-close by a client that still reads; the option believes
	 * it. */
	if (in->res == 0 && w->set->on_half_close == HALF_CLOSE_CONTINUE && c->x &&
	    c->x->complete && c->state >= CONN_HOLD && c->state <= CONN_RELAY) {
		said_all(c);
		return c->state;
	}
	if (c->x)
		exchange_end(w, c, END_CLIENT_GONE);
	return conn_shut(w, c);
}

/* The client closed but takes the rest of what is already written: send it, then close. */
static enum conn_state gone_in_flush(struct worker *w, struct conn *c, const struct conn_input *in)
{
	said_all(c);
	if (in->res < 0)
		return conn_shut(w, c);
	c->close_after |= w->set->on_half_close != HALF_CLOSE_CONTINUE;
	return CONN_FLUSH;
}

static enum conn_state took(struct worker *w, struct conn *c, const struct conn_input *in)
{
	return c->state;
}

static enum conn_state relay_took(struct worker *w, struct conn *c, const struct conn_input *in)
{
	relay_client_took(w, c);
	return CONN_RELAY;
}

static enum conn_state keep_early(struct worker *w, struct conn *c, const struct conn_input *in)
{
	if (!c->close_after)
		early_keep(w, c, in->data, in->len);
	return c->state;
}

/* A client that takes no answer before it has sent everything gets the time for it. */
static enum conn_state discard(struct worker *w, struct conn *c, const struct conn_input *in)
{
	if (!w->draining)
		client_timer(w, c, LINGER_NS);
	return c->state;
}

/*
 * Everything is written. A connection that ends while the client may still be sending is
 * half-closed and read off for a moment: closing at once would send a reset that could destroy the
 * answer.
 */
static enum conn_state flushed(struct worker *w, struct conn *c)
{
	assert(!c->x && c->out.bytes == 0);
	if (c->close_after || w->draining) {
		if (c->gone || c->cut)
			return conn_shut(w, c);
		shutdown(loop_fd(w->loop, c->handle), SHUT_WR);
		chain_clear(&c->early, &w->outs);
		client_read(w, c);
		client_timer(w, c, LINGER_NS);
		wheel_arm(&w->wheel, &c->send_timer, w->now_ns + LINGER_MAX_NS);
		return CONN_LINGER;
	}
	client_timer(w, c, w->set->keepalive_timeout);
	if (c->early.bytes == 0)
		client_read(w, c);
	return CONN_IDLE;
}

/* Whether one more client may come in; the operator's places are not theirs. */
static int client_places(const struct worker *w)
{
	uint32_t kept = w->conns_max / 8 < ADMIN_SLOTS ? w->conns_max / 8 : ADMIN_SLOTS;

	return w->conns_nr - w->admin_nr + kept < w->conns_max;
}

static enum conn_state close_done(struct worker *w, struct conn *c, const struct conn_input *in)
{
	assert(!c->x);
	unread_set(w, c, 0);
	hungry_remove(w, c);
	chain_clear(&c->out, &w->outs);
	chain_clear(&c->early, &w->outs);
	if (c->fill)
		slab_give(&w->bodies, c->fill);
	c->fill = NULL;
	c->generation++;
	c->handle = -1;
	c->next = w->conns_free;
	w->conns_free = c;
	w->conns_nr--;
	w->admin_nr -= c->admin;
	if (client_places(w))
		worker_room(w);
	return CONN_FREE;
}

static enum conn_state shut(struct worker *w, struct conn *c, const struct conn_input *in)
{
	return conn_shut(w, c);
}

static enum conn_state body_late(struct worker *w, struct conn *c, const struct conn_input *in)
{
	/* Hungry: the router itself did not read on, no fault of the client's. */
	return exchange_fail(w, c,
			     c->hungry          ? END_OVERLOAD
			     : c->x->pace_short ? END_BODY_RATE
						: END_BODY_TIMEOUT);
}

static enum conn_state hold_late(struct worker *w, struct conn *c, const struct conn_input *in)
{
	c->x->route->waited = 1;
	return dispatch_decide(w, c);
}

static enum conn_state decide(struct worker *w, struct conn *c, const struct conn_input *in)
{
	return dispatch_decide(w, c);
}

static enum conn_state first_byte_late(struct worker *w, struct conn *c,
				       const struct conn_input *in)
{
	if (!c->x->complete)
		return body_late(w, c, in);
	return exchange_fail(w, c, END_FIRST_BYTE_TIMEOUT);
}

static enum conn_state stream_late(struct worker *w, struct conn *c, const struct conn_input *in)
{
	if (c->x->engine_paused) { /* the client is slow, not the engine */
		client_timer(w, c, w->set->stream_idle_timeout);
		return CONN_RELAY;
	}
	return exchange_fail(w, c, END_STREAM_IDLE);
}

/* A fill that was under way when its request ended early: bytes that nobody needs. */
static enum conn_state filled_for_nobody(struct worker *w, struct conn *c,
					 const struct conn_input *in)
{
	if (c->fill)
		slab_give(&w->bodies, c->fill);
	c->fill = NULL;
	client_read(w, c);
	return c->state;
}

/*
 * Every legal pair. A hole is a bug of ours, never bad input: input that has no place in a state is
 * given an entry that says what becomes of it.
 */
static conn_action *const actions[CONN_STATES_NR][CONN_EVENTS_NR] = {
	[CONN_FREE] = { [CONN_EV_ACCEPTED] = accepted },
	[CONN_IDLE] = { [CONN_EV_CLIENT_BYTES] = intake_idle_bytes,
			[CONN_EV_CLIENT_GONE] = shut,
			[CONN_EV_CLIENT_TOOK] = took,
			[CONN_EV_TIMEOUT] = shut },
	[CONN_HEAD] = { [CONN_EV_CLIENT_BYTES] = intake_head_bytes,
			[CONN_EV_CLIENT_GONE] = hang_up,
			[CONN_EV_TIMEOUT] = intake_head_late,
			[CONN_EV_CLIENT_TOOK] = took },
	[CONN_BODY] = { [CONN_EV_CLIENT_BYTES] = intake_body_bytes,
			[CONN_EV_CLIENT_FILLED] = intake_filled,
			[CONN_EV_CLIENT_GONE] = hang_up,
			[CONN_EV_TIMEOUT] = body_late,
			[CONN_EV_CLIENT_TOOK] = took },
	[CONN_AHEAD] = { [CONN_EV_CLIENT_BYTES] = intake_body_bytes,
			 [CONN_EV_CLIENT_FILLED] = intake_filled,
			 [CONN_EV_CLIENT_GONE] = hang_up,
			 [CONN_EV_TIMEOUT] = body_late,
			 [CONN_EV_CLIENT_TOOK] = took,
			 [CONN_EV_ENGINE_UP] = ahead_up,
			 [CONN_EV_ENGINE_TOOK] = dispatch_took,
			 [CONN_EV_ENGINE_DOWN] = ahead_lost,
			 [CONN_EV_ENGINE_BYTES] = ahead_lost,
			 [CONN_EV_ENGINE_EOF] = ahead_lost,
			 [CONN_EV_ENGINE_CLOSED] = ahead_closed },
	[CONN_HOLD] = { [CONN_EV_ENGINE_CLOSED] = ahead_closed,
			[CONN_EV_CLIENT_BYTES] = intake_late_bytes,
			[CONN_EV_CLIENT_FILLED] = intake_late_filled,
			[CONN_EV_CLIENT_GONE] = hang_up,
			[CONN_EV_DECIDE] = decide,
			[CONN_EV_TIMEOUT] = hold_late,
			[CONN_EV_CLIENT_TOOK] = took },
	[CONN_STAGE] = { [CONN_EV_CLIENT_BYTES] = intake_late_bytes,
			 [CONN_EV_CLIENT_GONE] = hang_up,
			 [CONN_EV_CLIENT_TOOK] = took,
			 [CONN_EV_ENGINE_UP] = staging_up,
			 [CONN_EV_ENGINE_DOWN] = staging_down,
			 [CONN_EV_ENGINE_TOOK] = staging_took,
			 [CONN_EV_ENGINE_BYTES] = staging_bytes,
			 [CONN_EV_ENGINE_EOF] = staging_down,
			 [CONN_EV_RESCUE] = rescue_leave,
			 [CONN_EV_TIMEOUT] = staging_late },
	[CONN_AWAY] = { [CONN_EV_CLIENT_BYTES] = intake_late_bytes,
			[CONN_EV_CLIENT_GONE] = hang_up,
			[CONN_EV_CLIENT_TOOK] = took,
			[CONN_EV_ENGINE_CLOSED] = requeue_closed,
			[CONN_EV_RETURN] = requeue_return },
	[CONN_DIAL] = { [CONN_EV_CLIENT_BYTES] = intake_late_bytes,
			[CONN_EV_CLIENT_FILLED] = intake_late_filled,
			[CONN_EV_CLIENT_GONE] = hang_up,
			[CONN_EV_ENGINE_UP] = dispatch_up,
			[CONN_EV_ENGINE_DOWN] = dispatch_down,
			[CONN_EV_ENGINE_CLOSED] = dispatch_closed,
			[CONN_EV_CLIENT_TOOK] = took },
	[CONN_WAIT] = { [CONN_EV_CLIENT_BYTES] = intake_late_bytes,
			[CONN_EV_CLIENT_FILLED] = intake_late_filled,
			[CONN_EV_CLIENT_GONE] = hang_up,
			[CONN_EV_CLIENT_TOOK] = took,
			[CONN_EV_ENGINE_TOOK] = dispatch_took,
			[CONN_EV_ENGINE_BYTES] = relay_head_bytes,
			[CONN_EV_ENGINE_EOF] = dispatch_broke,
			[CONN_EV_ENGINE_DOWN] = dispatch_broke,
			[CONN_EV_GIVE_WAY] = requeue_give_way,
			[CONN_EV_RESCUE] = rescue_leave,
			[CONN_EV_TIMEOUT] = first_byte_late },
	[CONN_RELAY] = { [CONN_EV_CLIENT_BYTES] = intake_late_bytes,
			 [CONN_EV_CLIENT_FILLED] = intake_late_filled,
			 [CONN_EV_CLIENT_GONE] = hang_up,
			 [CONN_EV_CLIENT_TOOK] = relay_took,
			 [CONN_EV_ENGINE_TOOK] = dispatch_took,
			 [CONN_EV_ENGINE_BYTES] = relay_bytes,
			 [CONN_EV_ENGINE_EOF] = relay_eof,
			 [CONN_EV_ENGINE_DOWN] = relay_eof,
			 [CONN_EV_GIVE_WAY] = requeue_give_way,
			 [CONN_EV_RESCUE] = rescue_leave,
			 [CONN_EV_TIMEOUT] = stream_late },
	[CONN_FLUSH] = { [CONN_EV_CLIENT_BYTES] = keep_early,
			 [CONN_EV_CLIENT_FILLED] = filled_for_nobody,
			 [CONN_EV_CLIENT_GONE] = gone_in_flush,
			 [CONN_EV_CLIENT_TOOK] = took,
			 [CONN_EV_TIMEOUT] = shut },
	[CONN_LINGER] = { [CONN_EV_CLIENT_BYTES] = discard,
			  [CONN_EV_CLIENT_FILLED] = filled_for_nobody,
			  [CONN_EV_CLIENT_GONE] = shut,
			  [CONN_EV_CLIENT_TOOK] = took,
			  [CONN_EV_TIMEOUT] = shut },
	[CONN_CLOSE] = { [CONN_EV_CLIENT_CLOSED] = close_done,
			 [CONN_EV_CLIENT_TOOK] = took,
			 [CONN_EV_CLIENT_GONE] = took },
};

/* The client has said all: no request follows what is in the read-ahead, none is completed. */
static void last_of_it(struct worker *w, struct conn *c)
{
	said_all(c);
	if (c->state == CONN_IDLE || c->state == CONN_HEAD || c->state == CONN_BODY ||
	    c->state == CONN_AHEAD)
		conn_step(w, c, CONN_EV_CLIENT_GONE, &(struct conn_input){ 0 });
}

/* Read-ahead that a new request begins with: the blocks are replayed as if they had just come. */
static void take_early(struct worker *w, struct conn *c)
{
	struct chain early = c->early;
	uint8_t within = c->replaying;

	c->early = (struct chain){ 0 };
	c->replaying = 1;
	while (early.head) {
		struct block *b = early.head;
		struct conn_input in = { .data = b->data + b->start, .len = b->end - b->start };

		in.res = (int)in.len;
		early.head = b->next;
		if (actions[c->state][CONN_EV_CLIENT_BYTES] && in.len)
			conn_step(w, c, CONN_EV_CLIENT_BYTES, &in);
		slab_give(&w->outs, b);
	}
	c->replaying = within;
	if (!within && c->gone)
		last_of_it(w, c);
	if (c->early.bytes < LIMIT_HEAD_BYTES && c->paused && !c->filling && !c->hungry &&
	    c->state != CONN_CLOSE && c->state != CONN_FREE)
		client_read(w, c);
}

void conn_step(struct worker *w, struct conn *c, enum conn_event event, const struct conn_input *in)
{
	conn_action *act = actions[c->state][event];

	assert(act != NULL);
	c->state = act(w, c, in);
	/* What is written is taken: the connection rests, lingers or closes. */
	if (c->state == CONN_FLUSH && c->out.bytes == 0 && !c->sending)
		c->state = flushed(w, c);
	if (c->state == CONN_IDLE && c->early.bytes)
		take_early(w, c);
}

/* ---- events of the loop ---- */

/* The client's connection has taken what was in flight; with it perhaps the first token. */
static void token_taken(const struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;

	if (!x || x->token_left == 0)
		return;
	x->token_left = x->token_left > c->in_flight ? x->token_left - c->in_flight : 0;
	if (x->token_left == 0)
		x->relayed_ns = w->now_ns;
}

static void sent(struct worker *w, struct conn *c, int res)
{
	struct conn_input in = { .res = res };

	c->sending = 0;
	wheel_disarm(&w->wheel, &c->send_timer);
	chain_drop(&c->out, &w->outs, c->in_flight);
	if (res >= 0)
		token_taken(w, c);
	c->in_flight = 0;
	if (res < 0) {
		if (c->state != CONN_CLOSE)
			conn_step(w, c, CONN_EV_CLIENT_GONE, &in);
		return;
	}
	out_pump(w, c);
	conn_step(w, c, CONN_EV_CLIENT_TOOK, &in);
}

void conn_event(struct worker *w, struct conn *c, const struct loop_event *ev)
{
	struct conn_input in = { .data = ev->data,
				 .len = ev->res > 0 ? (size_t)ev->res : 0,
				 .res = ev->res };

	switch (ev->op) {
	case LOOP_SENT:
		sent(w, c, ev->res);
		break;
	case LOOP_RECEIVED:
		if (c->state != CONN_CLOSE)
			conn_step(w, c, ev->res > 0 ? CONN_EV_CLIENT_BYTES : CONN_EV_CLIENT_GONE,
				  &in);
		break;
	case LOOP_FILLED:
		c->filling = 0;
		if (c->state != CONN_CLOSE)
			conn_step(w, c, ev->res > 0 ? CONN_EV_CLIENT_FILLED : CONN_EV_CLIENT_GONE,
				  &in);
		break;
	case LOOP_CLOSED:
		conn_step(w, c, CONN_EV_CLIENT_CLOSED, &in);
		break;
	default:
		break;
	}
}

void conn_timeout(struct worker *w, struct conn *c, struct wheel_timer *timer)
{
	if (timer == &c->timer) {
		conn_step(w, c, CONN_EV_TIMEOUT, &(struct conn_input){ 0 });
		return;
	}
	if (timer == &c->comment_timer) {
		relay_comment(w, c);
		return;
	}
	if (c->sending && takes(w, c)) {
		send_timer(w, c);
		return;
	}
	if (c->x)
		exchange_end(w, c, END_CLIENT_STUCK);
	c->close_after = 1;
	conn_step(w, c, CONN_EV_CLIENT_GONE, &(struct conn_input){ .res = -ETIMEDOUT });
}

void conn_accept(struct worker *w, int fd, int admin)
{
	struct conn *c = w->conns_free;
	int one = 1;

	if (!c) { /* one that was accepted in the moment when the last place was taken */
		count(&w->counters, COUNTER_connections_refused, 1);
		close(fd);
		return;
	}
	c->handle = loop_add(w->loop, fd, worker_tag(TAG_CONN, c->generation, c->index));
	if (c->handle < 0) {
		count(&w->counters, COUNTER_connections_refused, 1);
		close(fd);
		return;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)); /* fails on AF_UNIX: fine */
	loop_receive_singly(w->loop, c->handle);
	w->conns_free = c->next;
	w->conns_nr++;
	c->next = NULL;
	c->admin = admin != 0;
	w->admin_nr += c->admin;
	c->sending = c->paused = c->filling = c->close_after = c->hungry = c->gone = 0;
	c->blank_cr = c->unread = c->replaying = c->cut = 0;
	c->served = 0;
	c->confirmed = 0;
	c->in_flight = 0;
	count(&w->counters, COUNTER_connections_accepted, 1);
	conn_step(w, c, CONN_EV_ACCEPTED, &(struct conn_input){ 0 });
	if (!client_places(w))
		worker_full(w);
}

/* Where not even the eldest finds room, the youngest that waits is refused for it. */
static void feed_eldest(struct worker *w)
{
	struct conn *youngest = NULL;

	if (w->bodies.used < w->bodies.limit) {
		hungry_remove(w, w->eldest);
		intake_read_on(w, w->eldest);
		return;
	}
	for (struct conn *c = w->hungry; c; c = c->hungry_next)
		if (c != w->eldest && (c->state == CONN_BODY || c->state == CONN_AHEAD))
			youngest = c;
	if (youngest)
		conn_step(w, youngest, CONN_EV_TIMEOUT, &(struct conn_input){ 0 });
}

void conn_feed_hungry(struct worker *w)
{
	struct conn *c;

	while ((c = w->hungry) && (!bodies_beyond(w, HUNGRY_FED_PERCENT) || !w->eldest)) {
		hungry_remove(w, c);
		if (c->state == CONN_CLOSE || !c->x || c->x->complete)
			continue;
		/* All wait for each other: the eldest gets the rest of the arena, then the next. */
		if (bodies_beyond(w, HUNGRY_FED_PERCENT))
			w->eldest = c;
		intake_pace(w, c->x);
		intake_read_on(w, c);
		if (c->hungry)
			return; /* no memory at all */
	}
	if (w->eldest && w->eldest->hungry)
		feed_eldest(w);
}

void conn_leavers(struct worker *w)
{
	struct exchange *next;

	if (w->unread_nr == 0)
		return;
	for (struct exchange *x = w->inflight; x; x = next) {
		struct conn *c = x->conn;
		struct pollfd p = { .fd = loop_fd(w->loop, c->handle), .events = POLLRDHUP };

		next = x->next;
		if (!c->unread || c->gone || poll(&p, 1, 0) <= 0)
			continue;
		/* What lies in front of a half-close is read before it is believed. */
		if (w->set->on_half_close == HALF_CLOSE_CONTINUE &&
		    !(p.revents & (POLLERR | POLLHUP)))
			continue;
		conn_step(w, c, CONN_EV_CLIENT_GONE,
			  &(struct conn_input){ .res = p.revents & (POLLERR | POLLHUP) ? -ECONNRESET
										       : 0 });
	}
}

void conn_drain_all(struct worker *w)
{
	for (uint32_t i = 0; i < w->conns_max; i++) {
		struct conn *c = &w->conns[i];

		/* One that has not yet carried a request may be about to: it is served. */
		if (c->state == CONN_IDLE && !c->admin && c->served && c->early.bytes == 0)
			conn_step(w, c, CONN_EV_TIMEOUT, &(struct conn_input){ 0 });
	}
}

void conn_stop_all(struct worker *w)
{
	for (uint32_t i = 0; i < w->conns_max; i++) {
		struct conn *c = &w->conns[i];

		if (c->state == CONN_FREE || c->state == CONN_CLOSE)
			continue;
		if (c->x)
			exchange_end(w, c, END_STOPPED);
		c->close_after = c->gone = 1;
		conn_step(w, c, CONN_EV_CLIENT_GONE, &(struct conn_input){ .res = -ECONNABORTED });
	}
}
