/* What the scripted engines say: answers to every question a router asks, events step by step. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "bench/load_sink_impl.h"
#include "shm/base/clock.h"

enum { FLOOD_BYTES = 32 * 1024 };

static void want_out(struct sink *sink, struct sink_conn *c, bool wanted)
{
	struct epoll_event ev = { .events = wanted ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.ptr = c };

	epoll_ctl(sink->epoll, EPOLL_CTL_MOD, c->fd, &ev);
}

void sink_flush(struct sink *sink, struct sink_conn *c)
{
	if (c->out_len == 0)
		return;
	ssize_t n = send(c->fd, c->out, c->out_len, MSG_NOSIGNAL);
	if (n < 0 && errno == EAGAIN)
		return;
	if (n < 0)
		n = (ssize_t)c->out_len; /* the next read tells of the end */
	c->out_len -= (size_t)n;
	memmove(c->out, c->out + n, c->out_len);
	if (c->out_len == 0)
		want_out(sink, c, false);
}

static void put(struct sink *sink, struct sink_conn *c, const char *bytes, size_t len)
{
	ssize_t n = c->out_len ? 0 : send(c->fd, bytes, len, MSG_NOSIGNAL);

	if (n < 0 && errno != EAGAIN)
		return;
	if (n < 0)
		n = 0;
	if ((size_t)n == len)
		return;
	char *grown = realloc(c->out, c->out_len + len - (size_t)n);
	if (!grown)
		return;
	c->out = grown;
	memcpy(c->out + c->out_len, bytes + n, len - (size_t)n);
	c->out_len += len - (size_t)n;
	want_out(sink, c, true);
}

static void put_json(struct sink *sink, struct sink_conn *c, const char *json)
{
	char text[2048];
	int n = snprintf(text, sizeof(text),
			 "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
			 "Content-Length: %zu\r\n\r\n%s",
			 strlen(json), json);

	put(sink, c, text, (size_t)n);
}

/* ---- what routers ask before they route ---- */

static bool path_is(const struct sink_conn *c, const char *word)
{
	const char *end = memchr(c->head, '\r', c->body_at);

	return end && memmem(c->head, (size_t)(end - c->head), word, strlen(word)) != NULL;
}

static void answer_get(struct sink *sink, struct sink_conn *c)
{
	if (path_is(c, "/v1/models "))
		put_json(sink, c,
			 "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\","
			 "\"created\":1,\"owned_by\":\"x\",\"root\":\"m\","
			 "\"max_model_len\":131072}]}");
	else if (path_is(c, "model_info "))
		put_json(sink, c,
			 "{\"model_path\":\"m\",\"tokenizer_path\":\"/nonexistent/m\","
			 "\"is_generation\":true}");
	else if (path_is(c, "server_info "))
		put_json(sink, c,
			 "{\"model_path\":\"m\",\"served_model_name\":\"m\",\"dp_size\":1,"
			 "\"tp_size\":1,\"version\":\"0.5\"}");
	else
		put_json(sink, c, "{}");
}

/* One five-digit token id for every four bytes of the body, as fast as it can be written. */
static void answer_render(struct sink *sink, struct sink_conn *c)
{
	static const char begin[] = "{\"request_id\":\"r\",\"token_ids\":[";
	static const char end[] = "],\"features\":null,\"sampling_params\":{\"max_tokens\":16},"
				  "\"model\":\"m\",\"stream\":false}";
	size_t ids = c->whole_len / 4, len = 0;
	char *text = malloc(256 + sizeof(begin) + sizeof(end) + ids * 6), *body = text + 256;

	if (!text)
		return;
	memcpy(body, begin, sizeof(begin) - 1);
	len = sizeof(begin) - 1;
	for (size_t i = 0; i < ids; i++) {
		uint32_t word;

		memcpy(&word, c->whole + 4 * i, 4);
		word = 10000 + (word * 2654435761u >> 16);
		for (int d = 4; d >= 0; d--, word /= 10)
			body[len + (size_t)d] = (char)('0' + word % 10);
		len += 5;
		if (i + 1 < ids)
			body[len++] = ',';
	}
	memcpy(body + len, end, sizeof(end) - 1);
	len += sizeof(end) - 1;
	char head[200];
	int n = snprintf(head, sizeof(head),
			 "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
			 "Content-Length: %zu\r\n\r\n",
			 len);
	memcpy(body - n, head, (size_t)n);
	put(sink, c, body - n, (size_t)n + len);
	free(text);
	atomic_fetch_add_explicit(&sink->shared->renders, 1, memory_order_relaxed);
}

static void answer_whole(struct sink *sink, struct sink_conn *c)
{
	char json[512];

	snprintf(json, sizeof(json),
		 "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1767000000,"
		 "\"model\":\"m\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
		 "\"content\":\"engine %u T=%020" PRIu64 "\"},\"finish_reason\":\"stop\"}],"
		 "\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,\"total_tokens\":12}}",
		 c->engine, c->taken_ns);
	put_json(sink, c, json);
}

/* ---- streams ---- */

static bool kept_has(const struct sink_conn *c, const char *word, const char **ret_behind)
{
	const char *at = memmem(c->head + c->body_at, c->head_len - c->body_at, word, strlen(word));

	if (!at)
		at = memmem(c->tail, c->tail_len, word, strlen(word));
	if (at && ret_behind)
		*ret_behind = at + strlen(word);
	return at != NULL;
}

static uint64_t events_wanted(const struct sink_conn *c)
{
	const char *behind;

	/* A router may have renamed the field; the digits end before the kept bytes do. */
	if (kept_has(c, "\"max_tokens\":", &behind) ||
	    kept_has(c, "\"max_completion_tokens\":", &behind))
		return strtoull(behind, NULL, 10);
	return 16;
}

static bool streams(const struct sink_conn *c)
{
	return kept_has(c, "\"stream\":true", NULL) || kept_has(c, "\"stream\": true", NULL);
}

static void stream_join(struct sink *sink, struct sink_conn *c)
{
	unsigned e = c->engine;

	if (sink->engine[e].n == sink->engine[e].room) {
		int room = sink->engine[e].room ? 2 * sink->engine[e].room : 64;
		void *grown = realloc(sink->engine[e].conn, (size_t)room * sizeof(void *));

		if (!grown)
			return;
		sink->engine[e].conn = grown;
		sink->engine[e].room = room;
	}
	c->place = sink->engine[e].n;
	sink->engine[e].conn[sink->engine[e].n++] = c;
	sink->streams++;
}

void sink_stream_leave(struct sink *sink, struct sink_conn *c)
{
	unsigned e = c->engine;

	if (c->place < 0)
		return;
	struct sink_conn *last = sink->engine[e].conn[--sink->engine[e].n];
	sink->engine[e].conn[c->place] = last;
	last->place = c->place;
	c->place = -1;
	sink->streams--;
}

/* Makes an event's chunk of `len` bytes of data in `text`; returns its length, the stamp's place.
 */
static size_t event_make(char *text, size_t len, size_t *ret_stamp)
{
	static const char begin[] = "data: {\"id\":\"chatcmpl-7f2ab6f1d34f4bd0\",\"object\":"
				    "\"chat.completion.chunk\",\"created\":1767000000,\"model\":"
				    "\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" T=";
	static const char end[] = "\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n\r\n";
	size_t n = (size_t)snprintf(text, 16, "%zx\r\n", len), body = n;

	memcpy(text + n, begin, sizeof(begin) - 1);
	n += sizeof(begin) - 1;
	*ret_stamp = n;
	n += LOAD_STAMP_DIGITS;
	size_t pad = body + len - n - (sizeof(end) - 1 - 2);
	memset(text + n, 'p', pad);
	text[n] = ' ';
	n += pad;
	memcpy(text + n, end, sizeof(end) - 1);
	return n + sizeof(end) - 1;
}

static void event_put(struct sink *sink, struct sink_conn *c)
{
	static char text[2][FLOOD_BYTES + 64];
	static size_t len[2], stamp[2];
	int kind = c->flood;
	uint64_t now = clock_ns();

	if (len[kind] == 0)
		len[kind] =
			event_make(text[kind], kind ? FLOOD_BYTES : LOAD_EVENT_BYTES, &stamp[kind]);
	for (int d = LOAD_STAMP_DIGITS - 1; d >= 0; d--, now /= 10)
		text[kind][stamp[kind] + (size_t)d] = (char)('0' + now % 10);
	put(sink, c, text[kind], len[kind]);
	atomic_fetch_add_explicit(&sink->shared->events, 1, memory_order_relaxed);
}

static void answer_stream(struct sink *sink, struct sink_conn *c)
{
	static const char head[] = "HTTP/1.1 200 OK\r\n"
				   "Content-Type: text/event-stream; charset=utf-8\r\n"
				   "Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n";

	put(sink, c, head, sizeof(head) - 1);
	c->state = SINK_STREAM;
	c->flood = kept_has(c, "@flood", NULL);
	c->left = events_wanted(c);
	if (kept_has(c, "@idle", NULL))
		event_put(sink, c);
	else
		stream_join(sink, c);
}

void sink_answer(struct sink *sink, struct sink_conn *c)
{
	bool post = memcmp(c->head, "POST", 4) == 0;

	c->state = SINK_HEAD;
	if (!post && memcmp(c->head, "PRI ", 4) == 0) {
		put_json(sink, c, "{}"); /* a question for HTTP/2 */
		return;
	}
	if (!post) {
		answer_get(sink, c);
		return;
	}
	if (c->renders) {
		answer_render(sink, c);
		return;
	}
	atomic_fetch_add_explicit(&sink->shared->requests, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&sink->shared->at_engine[c->engine], 1, memory_order_relaxed);
	if (streams(c))
		answer_stream(sink, c);
	else
		answer_whole(sink, c);
}

/* ---- decode steps ---- */

static void engine_step(struct sink *sink, unsigned e)
{
	for (int i = 0; i < sink->engine[e].n;) {
		struct sink_conn *c = sink->engine[e].conn[i];

		if (c->out_len == 0) { /* a reader that is behind gets no more meanwhile */
			event_put(sink, c);
			if (--c->left == 0) {
				static const char end[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

				put(sink, c, end, sizeof(end) - 1);
				sink_stream_leave(sink, c);
				c->state = SINK_HEAD;
				continue; /* another has its place now */
			}
		}
		i++;
	}
}

uint64_t sink_step(struct sink *sink, uint64_t now_ns)
{
	uint64_t tick =
		atomic_load_explicit(&sink->shared->period_ns, memory_order_relaxed) / LOAD_ENGINES;
	uint64_t due = now_ns / tick;

	if (sink->streams == 0) {
		sink->stepped = due;
		return UINT64_MAX;
	}
	if (due - sink->stepped > LOAD_ENGINES) /* also when the period was changed */
		sink->stepped = due - 1;
	while (sink->stepped < due) {
		unsigned e = (unsigned)(++sink->stepped % LOAD_ENGINES);

		if (e >= sink->first && e < sink->last)
			engine_step(sink, e);
	}
	uint64_t next = (sink->stepped + 1) * tick, now = clock_ns();
	return next > now ? next - now : 0;
}
