/* The clients of a live run: connections, streamed requests, think times, all on one event loop. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "bench/live.h"
#include "bench/live_trace.h"
#include "router/chat/watch.h"
#include "router/http/http.h"
#include "shm/base/clock.h"
#include "shm/base/jread.h"

enum { TAG_SIGNAL = UINT32_MAX, PROGRESS_NS = 250 * NS_PER_MS };
#define TOKEN_S 0.03 /* of an answer, roughly */
#define NEVER   UINT64_MAX

enum phase {
	PHASE_AHEAD,   /* has not arrived, or thinks */
	PHASE_CONNECT, /* the request waits for its connection */
	PHASE_ANSWER,  /* sent; the answer is awaited or under way */
	PHASE_OVER,
};

/* What a session has only while it is there: from its arrival to its last answer. */
struct client {
	struct talk talk;
	struct chat_watch watch;
	struct http_body framing;
	size_t head_len; /* of the answer's head received so far */
	bool head_done, body_done, send_done, sse, keep, fresh;
	char *answer; /* the answer's text so far, as it stands in JSON strings */
	size_t answer_len, answer_room;
	uint32_t answer_tokens;
	size_t line_len;
	char id[48], engine[64]; /* for the trace */
	char out_head[640];
	struct live_body body;
	char head[LIVE_HEAD_MAX], line[LIVE_LINE_MAX];
};

struct player {
	uint32_t index; /* of the session in the file */
	uint32_t copy;
	enum phase phase;
	int handle; /* -1 = no connection */
	bool closing;
	struct live_request *request;
	struct client *client;
};

struct play {
	struct live_run *run;
	struct loop *loop;
	struct live_trace *trace; /* NULL = none is kept */
	struct player *player;
	uint64_t *due_ns; /* per player: its arrival or next request */
	size_t players, live;
	uint64_t next_due_ns, last_byte_ns, now_ns;
	struct http_head scratch;
	char path_line[256];
};

static void due_at(struct play *p, const struct player *s, uint64_t ns)
{
	p->due_ns[s - p->player] = ns;
	p->next_due_ns = ns < p->next_due_ns ? ns : p->next_due_ns;
}

static void player_over(struct play *p, struct player *s)
{
	assert(s->phase != PHASE_OVER);
	s->phase = PHASE_OVER;
	p->due_ns[s - p->player] = NEVER;
	p->live--;
	if (s->handle >= 0 && !s->closing) {
		s->closing = true;
		loop_close(p->loop, s->handle);
	}
}

/* Its memory goes when no operation can refer to it any more. */
static void player_release(struct player *s)
{
	if (s->phase != PHASE_OVER || s->handle >= 0 || !s->client)
		return;
	talk_fini(&s->client->talk);
	free(s->client->answer);
	free(s->client);
	s->client = NULL;
}

static void hang_up(struct play *p, struct player *s)
{
	if (s->handle < 0 || s->closing)
		return;
	s->closing = true;
	loop_close(p->loop, s->handle);
}

static void trace_add(struct play *p, struct player *s)
{
	struct client *c = s->client;
	struct live_trace_entry e = {
		.request = s->request,
		.id = c->id,
		.engine = c->engine,
		.player = (uint32_t)(s - p->player),
		.talk = &c->talk,
		.answer = c->answer,
		.answer_len = c->answer_len,
		.max_tokens = talk_turn(&c->talk)->output_tokens,
	};

	if (!p->trace)
		return;
	for (int i = 0; i < 3 && i < c->body.parts; i++) {
		e.body[i] = c->body.part[i].iov_base;
		e.body_len[i] = c->body.part[i].iov_len;
	}
	live_trace_add(p->trace, &e);
	p->run->trace_unnamed += s->request->failure == LIVE_none && !c->engine[0];
}

static void request_fail(struct play *p, struct player *s, enum live_failure why)
{
	struct live_run *run = p->run;
	uint32_t turns = run->sessions.session[s->index].turns;

	s->request->failure = (uint8_t)why;
	s->request->end_ns = p->now_ns;
	trace_add(p, s);
	run->ended++;
	run->failed++;
	run->abandoned += turns - s->request->turn;
	player_over(p, s);
	player_release(s);
}

static void request_done(struct play *p, struct player *s)
{
	struct client *c = s->client;
	struct live_run *run = p->run;

	s->request->end_ns = p->now_ns;
	run->ended++;
	trace_add(p, s);
	if (!c->keep)
		hang_up(p, s);
	if (talk_next(&c->talk, c->answer, c->answer_len, c->answer_tokens) < 0) {
		player_over(p, s);
		player_release(s);
		return;
	}
	s->phase = PHASE_AHEAD;
	double wait_s = talk_turn(&c->talk)->think_s / run->options->speed;
	due_at(p, s, p->now_ns + (uint64_t)(wait_s * NS_PER_S));
}

/* The answer is whole and the request left entirely: judge it. */
static void request_end(struct play *p, struct player *s)
{
	struct client *c = s->client;
	struct live_request *r = s->request;
	struct chat_usage usage;

	if (!c->body_done || !c->send_done)
		return;
	if (r->status != 200) {
		bool refused = r->status == 429 || r->status == 503;

		request_fail(p, s,
			     refused           ? LIVE_refused
			     : r->status < 500 ? LIVE_client
					       : LIVE_server);
	} else if (!c->sse) {
		request_fail(p, s, LIVE_malformed);
	} else if (c->watch.seen & CHAT_SEEN_ERROR) {
		request_fail(p, s, LIVE_event);
	} else if (!(c->watch.seen & CHAT_SEEN_DONE) || !r->first_ns ||
		   !chat_watch_usage(&c->watch, &usage)) {
		request_fail(p, s, LIVE_incomplete);
	} else {
		r->prompt_tokens = (uint32_t)usage.prompt_tokens;
		r->output_tokens = (uint32_t)usage.completion_tokens;
		r->cached_tokens =
			c->watch.seen & CHAT_SEEN_CACHED ? (uint32_t)usage.cached_tokens : 0;
		c->answer_tokens = r->output_tokens;
		request_done(p, s);
	}
}

/* ---- the answer's text ---- */

static void answer_add(struct client *c, const char *text, size_t len)
{
	if (len == 0)
		return;
	if (c->answer_room - c->answer_len < len) {
		size_t room = 2 * (c->answer_room + len);
		char *grown = realloc(c->answer, room);

		assert(grown);
		c->answer = grown;
		c->answer_room = room;
	}
	memcpy(c->answer + c->answer_len, text, len);
	c->answer_len += len;
}

/* One line of the stream; its delta's text is kept as it stands between the quotes. */
static void line_take(struct client *c, enum live_api api)
{
	struct jread root;
	const char *line = c->line, *text;
	size_t len = c->line_len, text_len;

	if (len < 8 || memcmp(line, "data: {", 7) != 0)
		return;
	if (jread_open(&root, line + 6, len - 6) == 0 &&
	    live_api_text(api, &root, &text, &text_len) == 0)
		answer_add(c, text, text_len);
}

static void lines_take(struct client *c, enum live_api api, const char *bytes, size_t len)
{
	while (len > 0) {
		const char *end = memchr(bytes, '\n', len);
		size_t part = end ? (size_t)(end - bytes) : len;

		if (c->line_len + part <= LIVE_LINE_MAX)
			memcpy(c->line + c->line_len, bytes, part);
		c->line_len += part;
		if (!end)
			return;
		if (c->line_len <= LIVE_LINE_MAX)
			line_take(c, api);
		c->line_len = 0;
		bytes += part + 1;
		len -= part + 1;
	}
}

/* ---- the answer's bytes ---- */

static void body_take(struct play *p, struct player *s, const char *piece, size_t len)
{
	struct client *c = s->client;

	if (!c->sse || len == 0)
		return;
	uint32_t news = chat_watch_step(&c->watch, piece, len);
	if (news & CHAT_SEEN_TOKEN) {
		if (!s->request->first_ns)
			s->request->first_ns = p->now_ns;
		s->request->last_ns = p->now_ns;
	}
	lines_take(c, p->run->options->api, piece, len);
}

static void engine_note(struct play *p, struct client *c)
{
	const struct http_field *f = http_head_named(&p->scratch, c->head, "x-turnward-engine");

	c->engine[0] = 0;
	if (f && f->value.len < sizeof(c->engine))
		snprintf(c->engine, sizeof(c->engine), "%.*s", (int)f->value.len,
			 c->head + f->value.at);
}

/* Returns bytes that belong to the head; the body's framing is known when head_done is set. */
static int head_take(struct play *p, struct player *s, const char *bytes, size_t len,
		     size_t *ret_used)
{
	struct client *c = s->client;
	size_t before = c->head_len, part = len;

	if (part > LIVE_HEAD_MAX - before)
		part = LIVE_HEAD_MAX - before;
	memcpy(c->head + before, bytes, part);
	size_t end = http_head_end(c->head, before + part, before > 3 ? before - 3 : 0);
	if (end == 0) {
		c->head_len += part;
		*ret_used = part;
		return part == len ? 0 : -E2BIG;
	}
	if (http_response_parse(&p->scratch, c->head, end, HTTP_METHOD_POST) < 0)
		return -EPROTO;
	*ret_used = end - before;
	if (p->scratch.status < 200) {
		c->head_len = 0;
		return 0;
	}
	s->request->status = p->scratch.status;
	engine_note(p, c);
	c->head_len = end;
	c->head_done = true;
	c->sse = p->scratch.sse;
	c->keep = p->scratch.keep_alive && p->scratch.framing != HTTP_TO_CLOSE;
	http_body_begin(&c->framing, &p->scratch);
	c->body_done = p->scratch.framing == HTTP_NO_BODY;
	return 0;
}

/* 0, or -errno when the bytes are no HTTP. */
static int bytes_take(struct play *p, struct player *s, const char *bytes, size_t len)
{
	struct client *c = s->client;
	const char *piece;
	size_t used, part;

	while (len > 0 && !c->body_done) {
		if (!c->head_done) {
			int err = head_take(p, s, bytes, len, &used);

			if (err)
				return err;
		} else {
			int step = http_body_step(&c->framing, bytes, len, &used, &piece, &part);

			if (step < 0)
				return step;
			body_take(p, s, piece, part);
			c->body_done = step == 1;
		}
		bytes += used;
		len -= used;
	}
	return len == 0 ? 0 : -EPROTO;
}

/* ---- the request ---- */

static void request_send(struct play *p, struct player *s)
{
	struct client *c = s->client;
	const struct live_options *o = p->run->options;
	char session[64] = "", id[80] = "";
	struct iovec iov[1 + LIVE_BODY_PARTS];

	if (o->session_header)
		snprintf(session, sizeof(session), "x-session-id: s%u-%u\r\n", s->index, s->copy);
	if (p->trace) {
		snprintf(c->id, sizeof(c->id), "live-%x-%zu-%u", (unsigned)(p->run->begin_ns >> 10),
			 (size_t)(s - p->player), s->request->turn);
		snprintf(id, sizeof(id), "x-request-id: %s\r\n", c->id);
	}
	int head = snprintf(c->out_head, sizeof(c->out_head),
			    "POST %s HTTP/1.1\r\nHost: localhost\r\n"
			    "Content-Type: application/json\r\nAccept: text/event-stream\r\n%s%s"
			    "Content-Length: %zu\r\n\r\n",
			    live_api_paths[o->api], session, id, c->body.len);
	iov[0] = (struct iovec){ c->out_head, (size_t)head };
	memcpy(iov + 1, c->body.part, sizeof(c->body.part));
	s->phase = PHASE_ANSWER;
	c->send_done = false;
	loop_send(p->loop, s->handle, iov, 1 + c->body.parts);
	loop_receive(p->loop, s->handle);
}

static void request_connect(struct play *p, struct player *s)
{
	const struct addr *to = &p->run->options->router;
	int one = 1,
	    fd = socket(to->sa.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	s->phase = PHASE_CONNECT;
	s->client->fresh = true;
	if (fd >= 0 && to->sa.any.sa_family != AF_UNIX)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	s->handle = fd < 0 ? -1 : loop_add(p->loop, fd, (uint64_t)(s - p->player));
	if (s->handle < 0) {
		if (fd >= 0)
			close(fd);
		s->handle = -1;
		request_fail(p, s, LIVE_connect);
		return;
	}
	loop_connect(p->loop, s->handle, &to->sa.any, to->len);
}

static void request_again(struct play *p, struct player *s)
{
	struct client *c = s->client;

	c->head_len = c->line_len = c->answer_len = 0;
	c->head_done = c->body_done = c->sse = c->keep = false;
	c->send_done = true;
	live_body_make(&c->body, p->run->options->api, &c->talk, p->run->options->model);
	chat_watch_begin(&c->watch, CHAT_WATCH_SSE);
	if (s->handle >= 0) {
		c->fresh = false;
		request_send(p, s);
	} else {
		request_connect(p, s);
	}
}

static int session_arrives(struct play *p, struct player *s)
{
	s->client = malloc(sizeof(*s->client));
	if (!s->client)
		return -ENOMEM;
	memset(s->client, 0, offsetof(struct client, head));
	talk_init(&s->client->talk, &p->run->sessions, s->index, s->copy);
	return talk_next(&s->client->talk, NULL, 0, 0);
}

static void request_begin(struct play *p, struct player *s)
{
	struct live_run *run = p->run;

	if (s->closing) {
		due_at(p, s, p->now_ns + NS_PER_MS);
		return;
	}
	if (run->requests == run->options->requests_max || run->interrupted ||
	    (!s->client && session_arrives(p, s) < 0)) {
		player_over(p, s);
		player_release(s);
		return;
	}
	s->request = &run->request[run->requests++];
	*s->request = (struct live_request){ .session = s->index,
					     .turn = s->client->talk.turn,
					     .start_ns = p->now_ns };
	if (run->options->verify_model) {
		struct tokenizer_ids ids = { 0 };

		talk_ids(&s->client->talk, &ids);
		s->request->ids = ids.id;
		s->request->prompt_tokens = (uint32_t)ids.nr;
		s->request->output_tokens = talk_turn(&s->client->talk)->output_tokens;
	}
	request_again(p, s);
}

/* ---- events ---- */

/* The connection ended under a request: once more if it was a kept one and nothing came. */
static void on_lost(struct play *p, struct player *s, int err)
{
	struct client *c = s->client;

	hang_up(p, s);
	if (s->phase != PHASE_ANSWER)
		return;
	if (err == 0 && c->head_done && http_body_eof(&c->framing) == 0) {
		c->body_done = true;
		c->send_done = true;
		request_end(p, s);
	} else if (!c->fresh && c->head_len == 0) {
		s->phase = PHASE_CONNECT; /* on_closed() connects anew */
	} else {
		request_fail(p, s, c->head_done ? LIVE_cut : LIVE_closed);
	}
}

static void on_received(struct play *p, struct player *s, const struct loop_event *event)
{
	if (event->res <= 0) {
		on_lost(p, s, event->res);
		return;
	}
	p->last_byte_ns = p->now_ns;
	if (s->phase == PHASE_ANSWER && !s->closing) {
		int err = bytes_take(p, s, (const char *)event->data, (size_t)event->res);

		if (err) {
			hang_up(p, s);
			request_fail(p, s, LIVE_malformed);
		} else {
			request_end(p, s);
		}
	}
	loop_give_back(p->loop, event->buffer);
}

static void on_sent(struct play *p, struct player *s, int res)
{
	if (!s->client || s->phase != PHASE_ANSWER || s->closing)
		return;
	s->client->send_done = true;
	if (res < 0 && !s->client->head_done)
		on_lost(p, s, res);
	else
		request_end(p, s);
}

static void on_closed(struct play *p, struct player *s)
{
	s->handle = -1;
	s->closing = false;
	if (s->phase == PHASE_CONNECT)
		request_again(p, s);
	else
		player_release(s);
}

static void on_event(void *ctx, const struct loop_event *event)
{
	struct play *p = ctx;

	p->now_ns = clock_ns();
	if (event->tag == TAG_SIGNAL) {
		p->run->interrupted |= event->op == LOOP_READABLE;
		return;
	}
	struct player *s = &p->player[event->tag];
	switch (event->op) {
	case LOOP_CONNECTED:
		if (s->phase != PHASE_CONNECT || s->closing)
			break;
		if (event->res == 0) {
			request_send(p, s);
		} else {
			hang_up(p, s);
			request_fail(p, s, LIVE_connect);
		}
		break;
	case LOOP_RECEIVED:
		on_received(p, s, event);
		break;
	case LOOP_SENT:
		on_sent(p, s, event->res);
		break;
	case LOOP_CLOSED:
		on_closed(p, s);
		break;
	case LOOP_ACCEPTED:
	case LOOP_FILLED:
	case LOOP_READABLE:
		break;
	}
}

/* ---- the run ---- */

static uint64_t draw(uint64_t *state)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15ull;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

/* About how long a session takes by itself, model seconds. */
static double session_s(const struct sessions *sessions, uint32_t index)
{
	const struct session_trace *session = &sessions->session[index];
	double sum_s = 0;

	for (uint32_t i = 0; i < session->turns; i++)
		sum_s += sessions->turn[session->turn + i].think_s +
			 sessions->turn[session->turn + i].output_tokens * TOKEN_S;
	return sum_s;
}

static int by_length(const void *a, const void *b, void *sessions)
{
	double x = session_s(sessions, ((const struct player *)a)->index);
	double y = session_s(sessions, ((const struct player *)b)->index);

	return (x < y) - (x > y);
}

/* Each session once, when the workload says. */
static void arrivals_given(struct play *p, uint64_t begin_ns)
{
	const struct live_options *o = p->run->options;

	for (size_t i = 0; i < p->players; i++) {
		p->player[i] = (struct player){ .index = (uint32_t)i, .handle = -1 };
		due_at(p, &p->player[i],
		       begin_ns + (uint64_t)(o->start_s[i] / o->speed * NS_PER_S));
		p->run->planned += p->run->sessions.session[i].turns;
	}
}

/* Which sessions, in which order, when: all from the seed. More than the file has are copies. */
static void arrivals_draw(struct play *p, uint64_t begin_ns)
{
	const struct live_options *o = p->run->options;
	size_t all = p->run->sessions.sessions;
	uint64_t state = o->seed * 0x2545f4914f6cdd1dull + 1;
	double at_s = 0;
	uint32_t *order = calloc(all, sizeof(*order));

	assert(order);
	for (size_t i = 0; i < all; i++)
		order[i] = (uint32_t)i;
	for (size_t i = all; i-- > 1;) {
		size_t other = draw(&state) % (i + 1);
		uint32_t index = order[i];

		order[i] = order[other];
		order[other] = index;
	}
	for (size_t i = 0; i < p->players; i++)
		p->player[i] = (struct player){ .index = order[i % all],
						.copy = (uint32_t)(i / all),
						.handle = -1 };
	free(order);
	if (o->long_first)
		qsort_r(p->player, p->players, sizeof(*p->player), by_length, &p->run->sessions);
	for (size_t i = 0; i < p->players; i++) {
		double u = ((double)(draw(&state) >> 11) + 0.5) * 0x1p-53;

		due_at(p, &p->player[i], begin_ns + (uint64_t)(at_s / o->speed * NS_PER_S));
		at_s += o->rate > 0 ? -log(u) / o->rate : 0;
		p->run->planned += p->run->sessions.session[p->player[i].index].turns;
	}
}

static void due_run(struct play *p)
{
	if (p->now_ns < p->next_due_ns)
		return;
	p->next_due_ns = NEVER;
	for (size_t i = 0; i < p->players; i++) {
		if (p->due_ns[i] > p->now_ns) {
			if (p->due_ns[i] < p->next_due_ns)
				p->next_due_ns = p->due_ns[i];
			continue;
		}
		p->due_ns[i] = NEVER;
		request_begin(p, &p->player[i]);
	}
}

/* Ends what is in flight: the run was interrupted, measured long enough, or nothing comes. */
static void give_up(struct play *p, bool as_failures)
{
	for (size_t i = 0; i < p->players; i++) {
		struct player *s = &p->player[i];

		if (s->phase == PHASE_OVER)
			continue;
		bool in_flight = s->phase == PHASE_ANSWER || s->phase == PHASE_CONNECT;
		hang_up(p, s);
		if (in_flight && as_failures) {
			request_fail(p, s, LIVE_stalled);
			continue;
		}
		player_over(p, s);
		player_release(s);
	}
}

static int turns_take(struct play *p, live_progress *progress)
{
	struct live_run *run = p->run;
	double measure_s = run->options->measure_s;
	uint64_t shown_ns = run->begin_ns;
	uint64_t until_ns =
		measure_s > 0 ? run->begin_ns + (uint64_t)(measure_s * NS_PER_S) : NEVER;

	while (p->live > 0) {
		uint64_t wake_ns = shown_ns + PROGRESS_NS;

		wake_ns = p->next_due_ns < wake_ns ? p->next_due_ns : wake_ns;
		int n = loop_turn(p->loop, wake_ns > p->now_ns ? wake_ns - p->now_ns : 0);
		if (n < 0 && n != -EINTR)
			return n;
		p->now_ns = clock_ns();
		due_run(p);
		if (p->now_ns >= shown_ns + PROGRESS_NS) {
			progress(run, p->now_ns);
			shown_ns = p->now_ns;
		}
		if (run->requests > run->ended && p->now_ns > p->last_byte_ns &&
		    p->now_ns - p->last_byte_ns > LIVE_STALL_S * (uint64_t)NS_PER_S)
			give_up(p, true);
		else if (run->interrupted || run->stop || p->now_ns >= until_ns)
			give_up(p, false);
		if (run->requests == run->ended)
			p->last_byte_ns = p->now_ns;
	}
	return 0;
}

static void drain(struct play *p)
{
	for (size_t i = 0; i < p->players; i++) {
		while (p->player[i].handle >= 0)
			if (loop_turn(p->loop, 100 * NS_PER_MS) < 0)
				return;
		player_release(&p->player[i]);
	}
}

static int signals_watch(struct play *p)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	int fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
	if (fd < 0)
		return -errno;
	int handle = loop_add(p->loop, fd, TAG_SIGNAL);
	loop_watch(p->loop, handle);
	return 0;
}

int live_play(struct live_run *run, live_progress *progress)
{
	const struct live_options *o = run->options;
	size_t all = run->sessions.sessions;
	struct play p = { .run = run, .next_due_ns = NEVER };
	struct rlimit files;

	p.players = p.live = o->sessions_max ? o->sessions_max : all;
	p.player = calloc(p.players, sizeof(*p.player));
	p.due_ns = calloc(p.players, sizeof(*p.due_ns));
	size_t turns = 0;
	for (size_t i = 0; i < all; i++)
		turns += run->sessions.session[i].turns;
	run->request = calloc(turns * (p.players / all + 1), sizeof(*run->request));
	assert(p.player && p.due_ns && run->request);
	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	const struct loop_params params = { .kind = o->io,
					    .handles_max = (unsigned)p.players + 8,
					    .buffers = 1024,
					    .buffer_size = 8192,
					    .entries = 1024 };
	int err = loop_new(&p.loop, &params, on_event, &p, &run->io_name);
	if (!err)
		err = signals_watch(&p);
	if (!err && o->trace)
		err = live_trace_new(&p.trace, o->trace, o->speed, o->model, clock_ns());
	if (!err) {
		run->io_name = loop_kind_name(loop_kind_of(p.loop));
		run->begin_ns = p.last_byte_ns = p.now_ns = clock_ns();
		if (o->start_s)
			arrivals_given(&p, run->begin_ns);
		else
			arrivals_draw(&p, run->begin_ns);
		due_run(&p);
		err = turns_take(&p, progress);
		run->end_ns = clock_ns();
		drain(&p);
	}
	int end = p.trace ? live_trace_free(p.trace, &run->trace_unlike) : 0;
	err = err ? err : end;
	if (p.loop)
		loop_free(p.loop);
	free(p.player);
	free(p.due_ns);
	return err;
}
