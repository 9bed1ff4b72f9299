/* The probe's tables find the first token where slow readers written apart find it, however the
 * stream is cut into segments and chunks. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "router/chat/watch.h"
#include "tests/lib/flow_host.h"
#include "tests/lib/unit.h"

static const char request[] = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
			      "Content-Length: 2\r\n\r\n{}";

static const char *const streams[] = {
	"llamacpp.chat.stream.http",     "llamacpp.completions.stream.http",
	"llamacpp.messages.stream.http", "llamacpp.responses.stream.http",
	"sglang.chat.stream.http",       "sglang.completions.stream.http",
	"sglang.messages.stream.http",   "sglang.responses.stream.http",
	"vllm.chat.stream.http",         "vllm.completions.stream.http",
	"vllm.messages.stream.http",     "vllm.responses.stream.http",
};

enum { STREAMS_NR = sizeof(streams) / sizeof(streams[0]), BYTES_MAX = 16384 };

struct bytes {
	size_t n;
	uint8_t at[BYTES_MAX];
};

static void read_fixture(const char *name, struct bytes *ret)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/tests/fixtures/engines/live/%s",
		 getenv("TEST_SOURCE_ROOT"), name);
	FILE *file = fopen(path, "rb");

	assert_non_null(file);
	ret->n = fread(ret->at, 1, sizeof(ret->at), file);
	fclose(file);
	assert_true(ret->n > 0 && ret->n < sizeof(ret->at));
}

static size_t head_end(const struct bytes *b)
{
	const uint8_t *p = memmem(b->at, b->n, "\r\n\r\n", 4);

	assert_non_null(p);
	return (size_t)(p - b->at) + 4;
}

/* Takes the chunks' framing off; `ret_from[i]` is where byte i stood. */
static void unchunk(const struct bytes *raw, struct bytes *ret, size_t ret_from[BYTES_MAX])
{
	size_t at = head_end(raw);

	ret->n = 0;
	for (;;) {
		size_t left = strtoul((const char *)raw->at + at, NULL, 16);

		at = (size_t)((uint8_t *)memchr(raw->at + at, '\n', raw->n - at) - raw->at) + 1;
		if (!left)
			return;
		for (; left; left--, at++) {
			ret_from[ret->n] = at;
			ret->at[ret->n++] = raw->at[at];
		}
		at += 2;
	}
}

/* Puts head and body together again, in chunks of `size` bytes. */
static void rechunk(const struct bytes *raw, const struct bytes *body, size_t size,
		    struct bytes *ret)
{
	size_t head = head_end(raw);

	memcpy(ret->at, raw->at, head);
	ret->n = head;
	for (size_t at = 0; at < body->n; at += size) {
		size_t n = size < body->n - at ? size : body->n - at;

		assert_true(ret->n + n + 16 < sizeof(ret->at));
		ret->n += (size_t)sprintf((char *)ret->at + ret->n, "%zx\r\n", n);
		memcpy(ret->at + ret->n, body->at + at, n);
		ret->n += n;
		ret->n += (size_t)sprintf((char *)ret->at + ret->n, "\r\n");
	}
	ret->n += (size_t)sprintf((char *)ret->at + ret->n, "0\r\n\r\n");
}

/* Where the router's reader of JSON sees the first token. */
static size_t watched_token(const struct bytes *raw)
{
	static struct bytes body;
	static size_t from[BYTES_MAX];
	struct chat_watch watch;

	unchunk(raw, &body, from);
	chat_watch_begin(&watch, CHAT_WATCH_SSE);
	for (size_t i = 0; i < body.n; i++)
		if (chat_watch_step(&watch, body.at + i, 1) & CHAT_SEEN_TOKEN)
			return from[i];
	return SIZE_MAX;
}

/* The answer in segments that begin at 0 and at the given places. A time is the number of the
 * answer's segment, from 1. */
static struct probe_record answered(const struct bytes *raw, const size_t *cuts, size_t cuts_nr)
{
	static struct host_line line;

	host_begin(&line);
	host_out(&line, request, sizeof(request) - 1);
	line.now = 0;
	for (size_t i = 0, at = 0; i <= cuts_nr; i++) {
		size_t end = i < cuts_nr ? cuts[i] : raw->n;

		host_in(&line, raw->at + at, end - at);
		at = end;
	}
	assert_int_equal(host_records[host_records_nr - 1].kind, PROBE_END);
	return host_records[host_records_nr - 1];
}

static struct probe_record answered_in_steps(const struct bytes *raw, size_t step)
{
	static size_t cuts[BYTES_MAX];
	size_t n = 0;

	for (size_t at = step; at < raw->n; at += step)
		cuts[n++] = at;
	return answered(raw, cuts, n);
}

static void check_clean(const struct probe_record *record, const struct bytes *raw)
{
	assert_int_equal(record->flags, PROBE_FLAG_STREAM);
	assert_int_equal(record->status, 200);
	assert_int_equal(record->rx_bytes, raw->n);
	assert_true(record->t_tok_ns && record->t_hdr_ns == 1);
}

static void a_recorded_stream_cut_anywhere_has_its_token_where_the_router_sees_it(void **state)
{
	static struct bytes raw;

	for (size_t f = 0; f < STREAMS_NR; f++) {
		read_fixture(streams[f], &raw);
		size_t token = watched_token(&raw);

		assert_true(token < raw.n);
		for (size_t cut = 1; cut < raw.n; cut++) {
			struct probe_record record = answered(&raw, &cut, 1);

			assert_int_equal(record.flags, PROBE_FLAG_STREAM);
			assert_int_equal(record.t_tok_ns, token < cut ? 1 : 2);
			assert_int_equal(record.t_end_ns, 2);
			assert_int_equal(record.rx_bytes, raw.n);
		}
	}
}

static void byte_by_byte_the_token_is_found_on_the_very_byte(void **state)
{
	static struct bytes raw;

	for (size_t f = 0; f < STREAMS_NR; f++) {
		read_fixture(streams[f], &raw);
		struct probe_record record = answered_in_steps(&raw, 1);

		assert_int_equal(record.t_tok_ns, watched_token(&raw) + 1);
		assert_int_equal(record.t_end_ns, raw.n);
		assert_int_equal(record.segments, raw.n - watched_token(&raw));
	}
}

static void chunks_that_cut_events_anywhere_change_nothing(void **state)
{
	static struct bytes raw, body, again;
	static size_t from[BYTES_MAX];

	for (size_t f = 0; f < STREAMS_NR; f++) {
		read_fixture(streams[f], &raw);
		unchunk(&raw, &body, from);
		for (size_t size = 2; size < 40; size++) {
			rechunk(&raw, &body, size, &again);
			for (size_t step = 1; step < 1500; step = step * 3 + 1) {
				struct probe_record record = answered_in_steps(&again, step);

				assert_int_equal(record.t_tok_ns, watched_token(&again) / step + 1);
				assert_int_equal(record.rx_bytes, again.n);
			}
		}
	}
}

static void a_head_found_in_pieces_is_read_whole(void **state)
{
	static struct bytes raw;

	for (size_t f = 0; f < STREAMS_NR; f++) {
		read_fixture(streams[f], &raw);
		for (size_t step = 1; step < 700; step = step * 2 + 1) {
			struct probe_record record = answered_in_steps(&raw, step);

			if (step >= 9) /* a digit of the status is in the first segment */
				check_clean(&record, &raw);
		}
	}
}

static void an_error_event_and_a_document_have_no_token(void **state)
{
	static struct bytes raw;

	read_fixture("sglang.err.queuefull.http", &raw);
	struct probe_record record = answered_in_steps(&raw, raw.n);

	assert_int_equal(record.t_tok_ns, 0);
	assert_int_equal(record.flags, PROBE_FLAG_STREAM);
	read_fixture("vllm.chat.nonstream.http", &raw);
	record = answered_in_steps(&raw, 100);
	assert_int_equal(record.t_tok_ns, 0);
	assert_int_equal(record.flags, PROBE_FLAG_NONSTREAM);
	assert_int_equal(record.rx_bytes, raw.n);
	read_fixture("vllm.err.queuefull.http", &raw);
	record = answered_in_steps(&raw, 100);
	assert_int_equal(record.t_tok_ns, 0);
	assert_int_equal(record.flags, PROBE_FLAG_NONSTREAM | PROBE_FLAG_ERROR);
	assert_int_equal(record.status, 503);
}

/* ---- a slow reader of event streams, to compare with ---- */

static bool is_end(char c)
{
	return c == '\r' || c == '\n';
}

static const char *skip_blanks(const char *p)
{
	return p + strspn(p, " \t");
}

/* The byte that makes a token of what begins at this quote, or NULL. */
static const char *token_here(const char *p)
{
	static const char *const strings[] = {
		"content",           "delta",   "partial_json", "reasoning",
		"reasoning_content", "refusal", "text",         "thinking"
	};
	char key[32];
	size_t n = strcspn(p + 1, "\"\r\n");

	if (n >= sizeof(key) || p[1 + n] != '"')
		return NULL;
	memcpy(key, p + 1, n);
	key[n] = 0;
	p = skip_blanks(p + n + 2);
	if (*p != ':')
		return NULL;
	p = skip_blanks(p + 1);
	for (size_t i = 0; i < sizeof(strings) / sizeof(strings[0]); i++)
		if (strcmp(key, strings[i]) == 0)
			return *p == '"' && p[1] && p[1] != '"' && !is_end(p[1]) ? p + 1 : NULL;
	if (strcmp(key, "function_call") == 0)
		return *p == '{' ? p : NULL;
	if (strcmp(key, "tool_calls") == 0)
		return *p == '[' && *skip_blanks(p + 1) == '{' ? skip_blanks(p + 1) : NULL;
	if (strcmp(key, "token_ids") == 0) {
		const char *item = *p == '[' ? skip_blanks(p + 1) : "]";

		return *item && *item != ']' && !is_end(*item) ? item : NULL;
	}
	if (strcmp(key, "type") != 0 || *p != '"')
		return NULL;
	n = strspn(++p, "abcdefghijklmnopqrstuvwxyz_");
	if (p[n] != '"')
		return NULL;
	bool call = n >= 5 && memcmp(p + n - 5, "_call", 5) == 0;

	return call || (n >= 8 && memcmp(p + n - 8, "tool_use", 8) == 0) ? p + n : NULL;
}

static const char *event_is_skipped(const char *line)
{
	static const char *const names[] = { "response.created", "response.queued",
					     "response.in_progress", "message_start" };

	if (strncmp(line, "event:", 6) != 0)
		return NULL;
	line = skip_blanks(line + 6);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strncmp(line, names[i], strlen(names[i])) == 0)
			return line + strlen(names[i]);
	return NULL;
}

static const char *event_end(const char *p)
{
	for (; *p; p++)
		if (p[0] == '\n' && (p[1] == '\n' || (p[1] == '\r' && p[2] == '\n')))
			return p + (p[1] == '\n' ? 2 : 3);
	return p;
}

/* Where the first token of a stream of events is complete, or NULL. */
static const char *token_by_hand(const char *text)
{
	while (*text) {
		const char *skipped = event_is_skipped(text), *token = NULL;
		size_t n = strcspn(text, "\r\n");

		if (skipped) {
			text = event_end(skipped);
			continue;
		}
		for (size_t i = 5; i < n && strncmp(text, "data:", 5) == 0; i++) {
			const char *here = text[i] == '"' ? token_here(text + i) : NULL;

			if (here && (!token || here < token))
				token = here;
		}
		if (token)
			return token;
		text += n + (text[n] != 0);
	}
	return NULL;
}

static const char *token_by_tables(const char *text, size_t n, uint32_t *seed)
{
	struct scan_events scan = { .state = STATE_EVENTS, .raw = ~0u };

	for (size_t at = 0; at < n;) {
		size_t part = 1 + rand_r(seed) % SCAN_BLOCK;

		at += scan_events(&scan, (const uint8_t *)text + at, part < n - at ? part : n - at);
		if (scan.found & FOUND_TOKEN)
			return text + at - 1;
	}
	return NULL;
}

static size_t random_events(char *text, size_t size, uint32_t *seed)
{
	static const char *const parts[] = {
		"data:",
		"\ndata: ",
		"data: {",
		"\"content\"",
		"\"content\":\"",
		"\"text\": \"",
		"\"reasoning",
		"_content\"",
		"\"text\"",
		"\"delta\"",
		"\"tool_calls\"",
		"\"token_ids\"",
		"\"type\"",
		"\"function_call\"",
		"\"thinking\"",
		"\"partial_json\"",
		"\"refusal\"",
		":",
		" : ",
		": ",
		"\"",
		"\"\"",
		"[",
		"{",
		"]",
		"}",
		"[{",
		" ",
		"\t",
		"x",
		"\\\"",
		"\\",
		"tool_use",
		"function",
		"_call\"",
		"\n",
		"\n\n",
		"\r\n",
		"\r\n\r\n",
		": ping",
		"event: ",
		"response.created",
		"response.in_progress",
		"message_start",
		"response.queued",
		"null",
		",",
		"\"role\"",
	};
	size_t n = 0, parts_nr = sizeof(parts) / sizeof(parts[0]);

	for (int i = 3 + rand_r(seed) % 20; i; i--) {
		const char *part = parts[rand_r(seed) % parts_nr];

		if (n + strlen(part) >= size)
			break;
		strcpy(text + n, part);
		n += strlen(part);
	}
	return n;
}

static void a_million_random_streams_have_their_tokens_where_a_slow_reader_finds_them(void **state)
{
	uint32_t seed = 1;
	unsigned found = 0, rounds = TEST_SANITIZED ? 100000 : 1000000;
	char text[512];

	for (unsigned i = 0; i < rounds; i++) {
		size_t n = random_events(text, sizeof(text), &seed);
		const char *wanted = token_by_hand(text), *got = token_by_tables(text, n, &seed);

		if (got != wanted)
			print_error("%s\nby hand %td, by tables %td\n", text,
				    wanted ? wanted - text : -1, got ? got - text : -1);
		assert_ptr_equal(got, wanted);
		found += got != NULL;
	}
	assert_true(found > rounds / 50 && found < rounds / 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(a_recorded_stream_cut_anywhere_has_its_token_where_the_router_sees_it),
		CLAIM(byte_by_byte_the_token_is_found_on_the_very_byte),
		CLAIM(chunks_that_cut_events_anywhere_change_nothing),
		CLAIM(a_head_found_in_pieces_is_read_whole),
		CLAIM(an_error_event_and_a_document_have_no_token),
		CLAIM(a_million_random_streams_have_their_tokens_where_a_slow_reader_finds_them),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
