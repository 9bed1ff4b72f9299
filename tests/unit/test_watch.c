/* The watch on answers: live captures of three engines and hand-made streams, cut in every way. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "router/chat/watch.h"
#include "router/http/http.h"
#include "tests/lib/unit.h"

enum { CAPTURE_MAX = 16 * 1024 };

static struct chat_watch watch;

/* `step` bytes at a time; 0: random; SIZE_MAX: in one. */
static void feed(enum chat_watch_mode mode, const char *body, size_t len, size_t step)
{
	chat_watch_begin(&watch, mode);
	for (size_t at = 0; at < len;) {
		size_t n = step ? step : (size_t)(rand() % 40) + 1;

		n = n < len - at ? n : len - at;
		char *slice = malloc(n); /* so that a sanitizer sees a read past it */

		memcpy(slice, body + at, n);
		chat_watch_step(&watch, slice, n);
		free(slice);
		at += n;
	}
	chat_watch_end(&watch);
}

static uint32_t seen(const char *stream)
{
	feed(CHAT_WATCH_SSE, stream, strlen(stream), SIZE_MAX);
	return watch.seen;
}

/* What the books take from a watch. */
struct noted {
	uint32_t seen, events;
	int32_t code;
	bool has_usage;
	struct chat_usage usage;
	char id[CHAT_WATCH_ID + 1];
};

static struct noted note(void)
{
	struct noted noted;

	memset(&noted, 0, sizeof(noted));
	noted.seen = watch.seen;
	noted.events = watch.events;
	noted.code = watch.error_code;
	noted.has_usage = chat_watch_usage(&watch, &noted.usage);
	if (watch.response_id_len)
		strcpy(noted.id, watch.response_id);
	return noted;
}

#define TOKENS (CHAT_SEEN_EVENT | CHAT_SEEN_TOKEN | CHAT_SEEN_DONE)
#define USAGE  CHAT_SEEN_USAGE
#define CACHED (CHAT_SEEN_USAGE | CHAT_SEEN_CACHED)
#define ERROR  (CHAT_SEEN_ERROR | CHAT_SEEN_DONE)

/* name, seen, events, code, prompt, completion, cached */
static const struct {
	const char *name;
	uint32_t seen, events;
	int32_t code;
	uint64_t prompt, completion, cached;
} captures[] = {
	{ "llamacpp.chat.nonstream", CHAT_SEEN_DONE | CACHED, 0, 0, 545, 8, 544 },
	{ "llamacpp.chat.stream", TOKENS | CACHED, 11, 0, 545, 8, 0 },
	{ "llamacpp.completions.stream", TOKENS | CACHED, 5, 0, 5, 4, 0 },
	{ "llamacpp.err.404", ERROR, 0, 404, 0, 0, 0 },
	{ "llamacpp.err.badjson", ERROR, 0, 400, 0, 0, 0 },
	{ "llamacpp.err.missing", ERROR, 0, 400, 0, 0, 0 },
	{ "llamacpp.err.toolong", ERROR, 0, 400, 0, 0, 0 },
	{ "llamacpp.messages.stream", TOKENS | CACHED, 9, 0, 13, 4, 0 },
	{ "llamacpp.responses.stream", TOKENS | CACHED | CHAT_SEEN_RESPONSE_ID, 11, 0, 13, 3, 12 },
	{ "sglang.chat.nonstream", CHAT_SEEN_DONE | CACHED, 0, 0, 545, 8, 544 },
	{ "sglang.chat.stream", TOKENS | CACHED, 11, 0, 545, 8, 0 },
	{ "sglang.completions.stream", TOKENS, 4, 0, 0, 0, 0 },
	{ "sglang.err.badjson", ERROR, 0, 400, 0, 0, 0 },
	{ "sglang.err.queuefull", CHAT_SEEN_EVENT | ERROR | CACHED | CHAT_SEEN_OVERLOAD, 2, 503, 0,
	  0, 0 },
	{ "sglang.err.toolong", ERROR, 0, 400, 0, 0, 0 },
	{ "sglang.messages.stream", TOKENS | CACHED, 9, 0, 13, 4, 1 },
	{ "sglang.responses.stream", TOKENS | CACHED | CHAT_SEEN_RESPONSE_ID, 9, 0, 13, 1, 12 },
	{ "vllm.chat.nonstream", CHAT_SEEN_DONE | CACHED, 0, 0, 545, 8, 512 },
	{ "vllm.chat.stream", TOKENS | CACHED, 10, 0, 545, 8, 0 },
	{ "vllm.chat.stream.second", TOKENS | CACHED, 10, 0, 545, 8, 512 },
	{ "vllm.completions.stream", TOKENS | CACHED, 5, 0, 5, 4, 0 },
	{ "vllm.err.badjson", ERROR, 0, 400, 0, 0, 0 },
	{ "vllm.err.model", ERROR, 0, 404, 0, 0, 0 },
	{ "vllm.err.queuefull", ERROR | CHAT_SEEN_OVERLOAD, 0, 503, 0, 0, 0 },
	{ "vllm.messages.stream", TOKENS | CACHED, 9, 0, 13, 4, 0 },
	{ "vllm.responses.stream", TOKENS | CACHED | CHAT_SEEN_RESPONSE_ID, 10, 0, 13, 3, 0 },
};

/* The decoded body of a capture, and which watch its head calls for. */
static size_t load(const char *name, char *ret_body, enum chat_watch_mode *ret_mode)
{
	static char raw[CAPTURE_MAX];
	static struct http_head head;
	char path[4096];
	struct http_body body;
	size_t used, size, n = 0;
	const char *piece;
	int done = 0;

	snprintf(path, sizeof(path), "%s/tests/fixtures/engines/live/%s.http",
		 getenv("TEST_SOURCE_ROOT"), name);
	FILE *file = fopen(path, "r");

	assert_non_null(file);
	size_t len = fread(raw, 1, sizeof(raw), file), at = http_head_end(raw, len, 0);

	fclose(file);
	assert_true(at > 0 && len < sizeof(raw));
	assert_int_equal(http_response_parse(&head, raw, at, HTTP_METHOD_POST), 0);
	http_body_begin(&body, &head);
	for (; at < len && !done; at += used) {
		done = http_body_step(&body, raw + at, len - at, &used, &piece, &size);
		assert_true(done >= 0);
		memcpy(ret_body + n, piece, size);
		n += size;
	}
	assert_int_equal(done, 1);
	*ret_mode = head.sse ? CHAT_WATCH_SSE : CHAT_WATCH_JSON;
	return n;
}

static void live_answers_are_understood(void **state)
{
	char body[CAPTURE_MAX];
	enum chat_watch_mode mode;

	for (size_t i = 0; i < sizeof(captures) / sizeof(captures[0]); i++) {
		size_t len = load(captures[i].name, body, &mode);

		feed(mode, body, len, SIZE_MAX);
		struct noted noted = note();

		if (noted.seen != captures[i].seen || noted.events != captures[i].events ||
		    noted.code != captures[i].code ||
		    noted.usage.prompt_tokens != captures[i].prompt ||
		    noted.usage.completion_tokens != captures[i].completion ||
		    noted.usage.cached_tokens != captures[i].cached)
			fail_msg("%s: seen %x events %u code %d usage %lu %lu %lu",
				 captures[i].name, noted.seen, noted.events, noted.code,
				 (unsigned long)noted.usage.prompt_tokens,
				 (unsigned long)noted.usage.completion_tokens,
				 (unsigned long)noted.usage.cached_tokens);
	}
	assert_string_equal(watch.response_id, "resp_af926272413f4ff1");
}

static void live_answers_read_the_same_however_cut(void **state)
{
	char body[CAPTURE_MAX];
	enum chat_watch_mode mode;

	srand(5);
	for (size_t i = 0; i < sizeof(captures) / sizeof(captures[0]); i++) {
		size_t len = load(captures[i].name, body, &mode);

		feed(mode, body, len, SIZE_MAX);
		struct noted whole = note();

		for (size_t step = 0; step < 20; step++) {
			feed(mode, body, len, step < 10 ? step : 0);
			struct noted cut = note();

			assert_memory_equal(&whole, &cut, sizeof(whole));
		}
	}
}

/* The byte with which the first token is seen lies in the first event that holds content. */
static void the_first_token_is_seen_in_its_own_event(void **state)
{
	char body[CAPTURE_MAX];
	enum chat_watch_mode mode;

	for (size_t i = 0; i < sizeof(captures) / sizeof(captures[0]); i++) {
		if (!(captures[i].seen & CHAT_SEEN_TOKEN))
			continue;
		size_t len = load(captures[i].name, body, &mode), at = 0;

		chat_watch_begin(&watch, mode);
		while (at < len && !(chat_watch_step(&watch, body + at, 1) & CHAT_SEEN_TOKEN))
			at++;
		assert_true(at < len);
		/* Events ended before it: role, or created, in_progress, item, part; or start,
		 * block. */
		uint32_t before = strstr(captures[i].name, "completions") ? 0
				  : strstr(captures[i].name, "responses") ? 4
				  : strstr(captures[i].name, "messages")  ? 2
									  : 1;

		assert_int_equal(watch.events, before);
	}
}

#define CHUNK(delta) "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":" delta "}]}\n\n"

static void only_content_is_a_token(void **state)
{
	static const char *const none[] = {
		CHUNK("{\"role\":\"assistant\",\"content\":\"\"}"),
		CHUNK("{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":null}"),
		CHUNK("{\"tool_calls\":[]}"),
		CHUNK("{}"),
		": ping\n\n",
		"data: {\"choices\":[{\"text\":\"\",\"token_ids\":[]}]}\n\n",
		"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\n",
		"data: {\"x\":{\"choices\":[{\"delta\":{\"content\":\"deep\"}}]}}\n\n",
		"event: message_start\ndata: "
		"{\"type\":\"message_start\",\"message\":{\"content\":[{\"text\":\"x\"}]}}\n\n",
		"event: ping\ndata: {\"type\": \"ping\"}\n\n",
		"data: "
		"{\"type\":\"content_block_start\",\"content_block\":{\"type\":\"text\",\"text\":"
		"\"\"}}\n\n",
		"data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n",
		"data: "
		"{\"type\":\"response.created\",\"response\":{\"instructions\":\"x\",\"text\":"
		"\"y\"}}\n\n",
		"data: "
		"{\"type\":\"response.output_item.added\",\"item\":{\"type\":\"message\"}}\n\n",
		"data: [DONE]\n\n",
		"event: content\nid: text\nretry: 5\n\n",
	};
	static const char *const some[] = {
		CHUNK("{\"content\":\"x\"}"),
		CHUNK("{\"content\":\"\\n\"}"),
		CHUNK("{\"reasoning\":\"x\"}"),
		CHUNK("{\"reasoning_content\":\"x\",\"content\":null}"),
		CHUNK("{\"refusal\":\"no\"}"),
		CHUNK("{\"tool_calls\":[{\"index\":0}]}"),
		CHUNK("{\"function_call\":{\"name\":\"f\"}}"),
		CHUNK("{\"c\\u006fntent\":\"x\"}"),
		"data: {\"choices\":[{\"text\":\"\"},{\"text\":\"x\"}]}\n\n",
		"data: {\"choices\":[{\"token_ids\":[5]}]}\n\n",
		"data: "
		"{\"type\":\"content_block_start\",\"content_block\":{\"type\":\"tool_use\","
		"\"name\":\"f\"}}\n\n",
		"data: "
		"{\"type\":\"content_block_delta\",\"delta\":{\"type\":\"thinking_delta\","
		"\"thinking\":\"x\"}}\n\n",
		"data: {\"type\":\"content_block_delta\",\"delta\":{\"partial_json\":\"{\"}}\n\n",
		"data: {\"type\":\"response.reasoning_text.delta\",\"delta\":\"x\"}\n\n",
		"data: "
		"{\"type\":\"response.output_item.added\",\"item\":{\"type\":\"function_call\"}}"
		"\n\n",
		"data: {\"content\":\"x\",\"stop\":false}\n\n",
		"data: {\"text\":\"x\",\"meta_info\":{\"prompt_tokens\":3}}\n\n",
	};

	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
		if (seen(none[i]) & CHAT_SEEN_TOKEN)
			fail_msg("a token: %s", none[i]);
	for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++)
		if (!(seen(some[i]) & CHAT_SEEN_TOKEN))
			fail_msg("no token: %s", some[i]);
}

static void lines_end_in_every_way_the_format_allows(void **state)
{
	assert_int_equal(seen("\xef\xbb\xbf"
			      "data:{\"choices\":[{\"text\":\"x\"}]}\r\n\r\ndata: [DONE]\r\n\r\n"),
			 TOKENS);
	assert_int_equal(watch.events, 1);
	assert_int_equal(seen("data: {\"choices\":\rdata: [{\"text\":\"x\"}]}\r\rdata: [DONE]\r\r"),
			 TOKENS);
	assert_int_equal(watch.events, 1);
	assert_int_equal(seen("event: message_stop\r\ndata: {\r\ndata: }\r\n\r\n"),
			 CHAT_SEEN_EVENT | CHAT_SEEN_DONE);
	assert_int_equal(watch.events, 1);
	assert_int_equal(seen("data\n\ndata: x\n\n: c\n\n\n\n"), CHAT_SEEN_EVENT);
	assert_int_equal(watch.events, 1);
}

static void a_broken_event_does_not_hide_the_next(void **state)
{
	assert_int_equal(seen("data: {\"choices\":[{\"text\":\"\n\ndata: nonsense}\n\n" CHUNK(
				 "{\"content\":\"x\"}") "data: [DONE]\n\n"),
			 TOKENS);
	assert_int_equal(watch.events, 3);
}

static void a_stream_ends_only_with_its_terminator(void **state)
{
	static const char *const ends[] = {
		"data: [DONE]\n\n",
		"data: {\"type\":\"response.completed\"}\n\n",
		"data: {\"type\":\"response.incomplete\"}\n\n",
		"event: message_stop\ndata: {}\n\n",
		"data: {\"content\":\"\",\"stop\":true}\n\n",
	};
	static const char *const open[] = {
		"",
		CHUNK("{\"content\":\"[DONE]\"}"),
		"data: [DONE\n\n",
		"data: [DONE]]\n\n",
		"data: [[DONE]\n\n",
		": [DONE]\n\n",
		"data: {\"x\":\"response.completed\"}\n\n",
		"data: {\"stop\":false}\n\n",
	};

	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		if (!(seen(ends[i]) & CHAT_SEEN_DONE))
			fail_msg("does not end: %s", ends[i]);
	for (size_t i = 0; i < sizeof(open) / sizeof(open[0]); i++)
		if (seen(open[i]) & CHAT_SEEN_DONE)
			fail_msg("ends: %s", open[i]);
}

static void errors_are_told_from_overload(void **state)
{
	assert_int_equal(seen("data: {\"error\":{\"message\":\"m\",\"code\":500}}\n\n"),
			 CHAT_SEEN_EVENT | CHAT_SEEN_ERROR);
	assert_int_equal(watch.error_code, 500);
	assert_true(seen("data: {\"error\":{\"code\":429}}\n\n") & CHAT_SEEN_OVERLOAD);
	assert_true(seen("event: error\ndata: "
			 "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n") &
		    CHAT_SEEN_OVERLOAD);
	assert_true(seen("data: "
			 "{\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"server_"
			 "error\"}}}\n\n") &
		    CHAT_SEEN_ERROR);
	assert_true(seen("data: {\"code\":503,\"object\":\"error\"}\n\n") & CHAT_SEEN_OVERLOAD);
	assert_true(seen("data: {\"object\":\"error\",\"code\":503}\n\n") & CHAT_SEEN_OVERLOAD);
	assert_true(seen("data: {\"error\":\"text\"}\n\n") & CHAT_SEEN_ERROR);
	assert_false(seen("data: {\"error\":null,\"response\":{\"error\":null}}\n\n") &
		     CHAT_SEEN_ERROR);
	assert_false(seen(CHUNK("{\"content\":\"\\\"error\\\":{}\"}")) & CHAT_SEEN_ERROR);
}

static struct chat_usage usage_of(const char *document)
{
	struct chat_usage usage = { 0 };

	feed(CHAT_WATCH_JSON, document, strlen(document), SIZE_MAX);
	assert_true(chat_watch_usage(&watch, &usage));
	return usage;
}

static void usage_is_read_in_every_dialect(void **state)
{
	struct chat_usage usage =
		usage_of("{\"usage\":{\"input_tokens\":5,\"cache_read_input_tokens\":90,"
			 "\"cache_creation_input_tokens\":7,\"output_tokens\":3}}");

	assert_int_equal(usage.prompt_tokens, 102);
	assert_int_equal(usage.cached_tokens, 90);
	assert_int_equal(usage.completion_tokens, 3);
	usage = usage_of(
		"{\"id\":\"resp_1\",\"usage\":{\"input_tokens\":50,\"input_tokens_details\":"
		"{\"cached_tokens\":40},\"output_tokens\":6}}");
	assert_int_equal(usage.prompt_tokens, 50);
	assert_int_equal(usage.cached_tokens, 40);
	assert_string_equal(watch.response_id, "resp_1");
	usage = usage_of("{\"timings\":{\"cache_n\":12,\"prompt_n\":1,\"predicted_n\":3}}");
	assert_int_equal(usage.prompt_tokens, 13);
	assert_int_equal(usage.cached_tokens, 12);
	assert_int_equal(usage.completion_tokens, 3);
	usage = usage_of("{\"text\":\"x\",\"meta_info\":{\"prompt_tokens\":9,\"completion_tokens\":"
			 "2,\"cached_tokens\":8}}");
	assert_int_equal(usage.prompt_tokens, 9);
	assert_int_equal(usage.cached_tokens, 8);
	usage = usage_of("{\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\"prompt_tokens_"
			 "details\":null}}");
	assert_false(watch.seen & CHAT_SEEN_CACHED);
	assert_int_equal(usage.prompt_tokens, 9);
	feed(CHAT_WATCH_JSON, "{\"usage\":null}", 14, 1);
	assert_false(chat_watch_usage(&watch, &usage));
}

static void only_the_routers_own_kind_of_id_is_kept(void **state)
{
	char document[300];

	feed(CHAT_WATCH_JSON, "{\"id\":\"chatcmpl-1\"}", 19, 1);
	assert_int_equal(watch.response_id_len, 0);
	snprintf(document, sizeof(document), "{\"id\":\"resp_%0*d\"}", CHAT_WATCH_ID - 5, 1);
	feed(CHAT_WATCH_JSON, document, strlen(document), 3);
	assert_int_equal(watch.response_id_len, CHAT_WATCH_ID);
	snprintf(document, sizeof(document), "{\"id\":\"resp_%0*d\"}", CHAT_WATCH_ID, 1);
	feed(CHAT_WATCH_JSON, document, strlen(document), 3);
	assert_int_equal(watch.response_id_len, 0);
}

/* Events that differ from the one before in their text only are passed over, and nothing else is.
 */
static void events_alike_but_for_their_text_are_read_as_if_alone(void **state)
{
#define ALIKE(text, usage) \
	"data: {\"id\":\"c\",\"choices\":[{\"delta\":{\"content\":" text "}}]" usage "}\n\n"
	static const char *const events[] = {
		ALIKE("\"Hello\"", ""),
		ALIKE("\" wor\\\"ld\\\\\"", ""),
		ALIKE("\"\"", ""),
		ALIKE("\"x\\\"", ""), /* its string does not end there */
		ALIKE("\"a\",\"role\":\"b\"", ""),
		ALIKE("\"a\"}}],\"usage\":{\"prompt_tokens\":7},\"n\":[{\"a\":{\"b\":\"c\"", ""),
		ALIKE("\"one\"", ",\"usage\":{\"prompt_tokens\":1}"),
		ALIKE("\"two\"", ",\"usage\":{\"prompt_tokens\":1}"),
		ALIKE("\"a\rb\"", ""),
		ALIKE("\"a\nb\"", ""),
		ALIKE("null", ""),
		"data: [DONE]\n\n",
		"data: {\"error\":{\"code\":503}}\n\n",
		"\n",
		": silence\n\n",
		"event: e\ndata: {\"delta\":{\"text\":\"t\"}}\n\n",
		"event: e\ndata: {\"delta\":{\"text\":\"u\"}}\n\n",
		"event: e\rdata: {\"delta\":{\"text\":\"u\"}}\r\r",
	};
#undef ALIKE
	enum { EVENTS = sizeof(events) / sizeof(events[0]) };

	srand(5);
	for (int round = 0; round < 3000; round++) {
		struct chat_watch whole, slow;
		char step[4096];

		chat_watch_begin(&whole, CHAT_WATCH_SSE);
		chat_watch_begin(&slow, CHAT_WATCH_SSE);
		for (int i = 0; i < 12; i++) {
			uint32_t news = 0;
			size_t len = 0;

			/* Often the first ones: events must be alike to be passed over. */
			for (int n = rand() % 3; n >= 0; n--) {
				const char *e = events[rand() % 2 ? rand() % 3 : rand() % EVENTS];

				memcpy(step + len, e, strlen(e));
				len += strlen(e);
			}
			for (size_t at = 0; at < len; at++)
				news |= chat_watch_step(&slow, step + at, 1);
			assert_int_equal(chat_watch_step(&whole, step, len), news);
			assert_int_equal(whole.events, slow.events);
			assert_int_equal(whole.seen, slow.seen);
			assert_int_equal(whole.error_code, slow.error_code);
			assert_memory_equal(whole.count, slow.count, sizeof(slow.count));
			assert_int_equal(chat_watch_between(&whole), chat_watch_between(&slow));
		}
	}
}

/* Of a document that is JSON the quick look brings the same; returns whether it is. */
static bool check_document(const char *text, size_t len)
{
	struct noted quick, whole;
	char *copy = malloc(len);

	memcpy(copy, text, len);
	chat_watch_begin(&watch, CHAT_WATCH_JSON);
	chat_watch_document(&watch, copy, len);
	quick = note();
	free(copy);
	feed(CHAT_WATCH_JSON, text, len, SIZE_MAX);
	whole = note();
	if (!(whole.seen & CHAT_SEEN_DONE))
		return false;
	assert_memory_equal(&quick, &whole, sizeof(whole));
	return true;
}

static void a_whole_document_is_read_the_same_from_its_counts_on(void **state)
{
	static const char *const documents[] = {
		"{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"choices\":[{\"message\":{"
		"\"role\":\"assistant\",\"content\":\"a \\\"usage\\\": 5\"},\"finish_reason\":"
		"\"stop\"}],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,"
		"\"prompt_tokens_details\":{\"cached_tokens\":4}}}",
		("{\"choices\":[{\"usage\":{\"prompt_tokens\":1}}],\"usage\":{\"prompt_tokens\":2},"
		 "\"timings\":{\"cache_n\":3,\"prompt_n\":1,\"predicted_n\":3}}"),
		"{\"a\":\"usage\",\"usage\":{\"prompt_tokens\":2},\"usage\":{\"prompt_tokens\":3}}",
		"{\"timings\":{\"cache_n\":3},\"usage\":{\"input_tokens\":2}}",
		"{\"meta_info\":{\"cached_tokens\":3},\"usage\":{\"prompt_tokens\":2}}",
		"{\"id\":\"resp_7\",\"usage\":{\"input_tokens\":2,\"output_tokens\":1}}",
		"{\"object\":\"error\",\"code\":429,\"usage\":{\"prompt_tokens\":2}}",
		"{\"message\":{\"usage\":{\"output_tokens\":1}},\"response\":{\"id\":\"resp_1\"}}",
		"[{\"usage\":{\"prompt_tokens\":2}}]",
		" {\"usage\":null}",
	};
	static const char odd[] = "\"{}[]:,u0 \nx\\";
	char buf[600];
	unsigned valid = 0;

	for (size_t i = 0; i < sizeof(documents) / sizeof(documents[0]); i++) {
		size_t len = strlen(documents[i]);

		/* A name written with escapes is not looked for in front of the counts. */
		size_t odds = sizeof(odd) - (i >= 3 && i <= 6 ? 2 : 1);

		assert_true(check_document(documents[i], len));
		for (size_t at = 0; at < len; at++) {
			for (size_t k = 0; k < odds; k++) {
				memcpy(buf, documents[i], len);
				buf[at] = odd[k];
				valid += check_document(buf, len);
				memmove(buf + at + 1, documents[i] + at, len - at);
				valid += check_document(buf, len + 1);
			}
			memcpy(buf + at, documents[i] + at + 1, len - at - 1);
			valid += check_document(buf, len - 1);
		}
	}
	assert_true(valid > 1000);
}

static void an_answer_that_is_not_json_is_survived(void **state)
{
	static const char *const odd[] = {
		"", "<html>", "{", "[[[[", "{\"usage\":{\"prompt_tokens\":\"x\"}}", "null"
	};
	char deep[300];

	for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++)
		feed(CHAT_WATCH_JSON, odd[i], strlen(odd[i]), 1);
	memset(deep, '[', sizeof(deep));
	feed(CHAT_WATCH_JSON, deep, sizeof(deep), SIZE_MAX);
	assert_int_equal(watch.seen, 0);
}

static void each_step_tells_its_own_news(void **state)
{
	static const char chunk[] = CHUNK("{\"content\":\"x\"}");

	chat_watch_begin(&watch, CHAT_WATCH_SSE);
	for (int i = 0; i < 3; i++)
		assert_int_equal(chat_watch_step(&watch, chunk, sizeof(chunk) - 1),
				 CHAT_SEEN_EVENT | CHAT_SEEN_TOKEN);
	assert_int_equal(chat_watch_step(&watch, ": x\n", 4), 0);
	assert_int_equal(chat_watch_step(&watch, "data: [DONE]\n\n", 14), CHAT_SEEN_DONE);
	assert_int_equal(chat_watch_end(&watch), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(live_answers_are_understood),
		CLAIM(live_answers_read_the_same_however_cut),
		CLAIM(the_first_token_is_seen_in_its_own_event),
		CLAIM(only_content_is_a_token),
		CLAIM(lines_end_in_every_way_the_format_allows),
		CLAIM(a_broken_event_does_not_hide_the_next),
		CLAIM(a_stream_ends_only_with_its_terminator),
		CLAIM(errors_are_told_from_overload),
		CLAIM(usage_is_read_in_every_dialect),
		CLAIM(only_the_routers_own_kind_of_id_is_kept),
		CLAIM(a_whole_document_is_read_the_same_from_its_counts_on),
		CLAIM(events_alike_but_for_their_text_are_read_as_if_alone),
		CLAIM(an_answer_that_is_not_json_is_survived),
		CLAIM(each_step_tells_its_own_news),
	};

	return cmocka_run_group_tests_name("watch", tests, NULL, NULL);
}
