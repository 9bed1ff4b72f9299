/* The scan of request bodies: what it reads, that cuts do not matter, and that turns extend turns.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "router/chat/count.h"
#include "router/chat/scan.h"
#include "router/chat/stream.h"
#include "shm/base/clock.h"
#include "tests/lib/unit.h"

enum { CHAIN_MAX = 4096, SEED = 77 };

static struct chat_scan scan;
static uint64_t blocks[CHAIN_MAX];

struct result {
	struct chat_request req;
	uint32_t n;
	uint64_t chain[CHAIN_MAX];
};

/* Scans `body` in slices of `step` bytes; 0: in one. */
static void scan_in(const char *body, size_t len, size_t step, struct result *ret)
{
	memset(ret, 0, sizeof(*ret));
	chat_scan_begin(&scan, blocks, CHAIN_MAX, SEED);
	for (size_t at = 0; at < len; at += step ? step : len) {
		size_t n = step && step < len - at ? step : len - at;
		char *slice = malloc(n); /* so that a sanitizer sees a read past it */

		memcpy(slice, body + at, n);
		chat_scan_step(&scan, slice, n);
		free(slice);
	}
	ret->n = chat_scan_end(&scan, true, ret->chain, CHAIN_MAX);
	ret->req = scan.req;
}

static const struct chat_request *read_body(const char *body)
{
	static struct result result;

	scan_in(body, strlen(body), 0, &result);
	return &result.req;
}

static void random_cuts(const char *body, size_t len, unsigned seed, struct result *ret)
{
	memset(ret, 0, sizeof(*ret));
	srand(seed);
	chat_scan_begin(&scan, blocks, CHAIN_MAX, SEED);
	for (size_t at = 0; at < len;) {
		size_t n = (size_t)(rand() % (rand() % 7 ? 9 : 700)) + 1;

		n = n < len - at ? n : len - at;
		chat_scan_step(&scan, body + at, n);
		at += n;
	}
	ret->n = chat_scan_end(&scan, true, ret->chain, CHAIN_MAX);
	ret->req = scan.req;
}

static void assert_same(const struct result *a, const struct result *b)
{
	assert_int_equal(a->n, b->n);
	assert_memory_equal(a->chain, b->chain, sizeof(a->chain));
	assert_memory_equal(&a->req, &b->req, sizeof(a->req));
}

/* Appends to a growing text. */
static void add(char **text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(char **text, const char *format, ...)
{
	va_list args;
	char *more, *joined;

	va_start(args, format);
	assert_true(vasprintf(&more, format, args) >= 0);
	va_end(args);
	assert_true(asprintf(&joined, "%s%s", *text ? *text : "", more) >= 0);
	free(more);
	free(*text);
	*text = joined;
}

/* Some `n` bytes of text with every kind of escape in it, as a JSON string's inside. */
static void add_words(char **text, unsigned n, unsigned seed)
{
	static const char *const words[] = { "alpha ",
					     "x = 17;\\n",
					     "\\t\\t",
					     "\\\"quoted\\\" ",
					     "\\u00e9\\ud83d\\ude00",
					     "C:\\\\dir\\\\",
					     "café ",
					     "a/b\\/c ",
					     "      ",
					     "1234567890 " };
	size_t begin = *text ? strlen(*text) : 0;
	unsigned i = seed;

	while (strlen(*text) - begin < n) {
		add(text, "%s", words[i % 10]);
		i = i * 1103515245 + 12345;
		i ^= i >> 16;
	}
}

static void a_chat_request_is_read(void **state)
{
	const struct chat_request *req = read_body(
		"{\"model\":\"qwen\",\"stream\":true,\"n\":2,\"max_tokens\":64,\"max_completion_"
		"tokens\":32,"
		"\"stream_options\":{\"include_usage\":true},\"user\":\"u1\",\"messages\":["
		"{\"role\":\"system\",\"content\":\"Be "
		"brief.\"},{\"role\":\"user\",\"content\":\"Hi\"},"
		"{\"role\":\"assistant\",\"content\":\"Hello\"},{\"role\":\"user\",\"content\":"
		"\"Go on\"}]}");

	assert_true(req->complete && !req->unreadable);
	assert_string_equal(req->model, "qwen");
	assert_int_equal(req->model_len, 4);
	assert_true(req->stream && req->stream_options && req->include_usage);
	assert_int_equal(req->n, 2);
	assert_int_equal(req->max_tokens, 32);
	assert_int_equal(req->messages, 4);
	assert_int_equal(req->assistant_messages, 1);
	assert_int_equal(req->turn, 2);
	assert_int_equal(req->prompts, 0);
	assert_int_equal(req->session_source, CHAT_SESSION_USER);
	assert_string_equal(req->session, "u1");
	assert_int_equal(req->brace, 0);
	assert_true(req->identity != 0);
}

static void a_messages_request_is_read(void **state)
{
	const struct chat_request *req = read_body(
		"\n {\"max_tokens\":5,\"system\":[{\"type\":\"text\",\"text\":\"You are Claude.\","
		"\"cache_control\":{\"type\":\"ephemeral\"}}],\"messages\":[{\"role\":\"user\","
		"\"content\":["
		"{\"type\":\"image\",\"source\":{\"type\":\"base64\",\"media_type\":\"image/"
		"png\",\"data\":"
		"\"iVBORw0KGgoAAAANSUhEUgAA\"}},{\"type\":\"text\",\"text\":\"What?\"}]}],"
		"\"tools\":[{\"name\":"
		"\"run\",\"input_schema\":{\"type\":\"object\"}}],\"model\":\"m\"}");

	assert_true(req->complete);
	assert_int_equal(req->images, 1);
	assert_int_equal(req->tools, 1);
	assert_int_equal(req->messages, 1);
	assert_int_equal(req->turn, 1);
	assert_int_equal(req->brace, 2);
	/* "You are Claude." 12, "What?" 4, run 3, name 4, input_schema 11, type 4, object 6; no
	 * image. */
	assert_int_equal(req->classes.letters, 44);
	assert_int_equal(req->classes.digits, 0);
}

static void a_responses_request_counts_runs_of_output_items_as_answers(void **state)
{
	const struct chat_request *req = read_body(
		"{\"model\":\"m\",\"instructions\":\"Work.\",\"previous_response_id\":\"resp_1\","
		"\"input\":["
		"{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\","
		"\"text\":\"a\"}]},"
		"{\"type\":\"reasoning\",\"id\":\"r\",\"summary\":[],\"encrypted_content\":"
		"\"zzzz\"},"
		"{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"}"
		","
		"{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"done\"},"
		"{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_"
		"text\",\"text\":\"b\"}]},"
		"{\"type\":\"message\",\"role\":\"user\",\"content\":\"c\"}],\"max_output_tokens\":"
		"9}");

	assert_true(req->complete);
	assert_int_equal(req->messages, 6);
	assert_int_equal(req->assistant_messages, 2);
	assert_int_equal(req->turn, 3);
	assert_int_equal(req->max_tokens, 9);
	assert_string_equal(req->previous_response_id, "resp_1");
}

static void prompts_are_counted_in_every_form(void **state)
{
	assert_int_equal(read_body("{\"prompt\":\"one\"}")->prompts, 1);
	assert_int_equal(read_body("{\"prompt\":\"one\"}")->turn, 1);
	assert_int_equal(read_body("{\"prompt\":[\"one\",\"two\"]}")->prompts, 2);
	assert_int_equal(read_body("{\"input\":[\"a\",\"b\",\"c\"]}")->prompts, 3);

	const struct chat_request *req = read_body("{\"prompt\":[1,22,333]}");

	assert_int_equal(req->prompts, 1);
	assert_int_equal(req->token_ids, 3);
	assert_true(req->prompt_is_ids);
	assert_int_equal(req->classes.digits, 0);
	req = read_body("{\"prompt\":[[1,2],[3,4,5]],\"best_of\":3,\"n\":2}");
	assert_int_equal(req->prompts, 2);
	assert_int_equal(req->token_ids, 5);
	assert_int_equal(req->n, 3);
	req = read_body("{\"input_ids\":[7,8],\"sampling_params\":{\"max_new_tokens\":4}}");
	assert_int_equal(req->token_ids, 2);
	assert_int_equal(req->max_tokens, 4);
}

static void classes_count_the_text_behind_the_escapes(void **state)
{
	const struct chat_request *req =
		read_body("{\"prompt\":\"ab\\n\\n  c1\\t\\\"\\\\\\/\\u00e9\\u20ACz9 \xc3\xa9.\"}");

	assert_int_equal(req->classes.letters, 4);    /* a b c z */
	assert_int_equal(req->classes.digits, 2);     /* 1 9 */
	assert_int_equal(req->classes.punct, 4);      /* " \ / . */
	assert_int_equal(req->classes.space_runs, 3); /* \n\n__, \t, the blank */
	assert_int_equal(req->classes.escapes, 2);
	assert_int_equal(req->classes.high, 2);
}

/* What a reader of one byte at a time would count: the specification of the masks. */
static size_t count_slowly(struct chat_classes *c, struct chat_cut *cut, const uint8_t *in,
			   size_t len)
{
	for (size_t at = 0; at < len; at++) {
		uint8_t b = in[at], was_escaped = cut->escape, digits = cut->unicode;
		bool blank =
			b == ' ' || (b >= 9 && b <= 13) || (was_escaped && b && strchr("bfnrt", b));

		if (!was_escaped && b == '"')
			return at;
		cut->escape = !was_escaped && b == '\\';
		cut->unicode = digits ? digits - 1 : 0;
		if (was_escaped && b == 'u')
			c->escapes++, cut->unicode = 4, cut->space = 0;
		else if (was_escaped && blank)
			c->space_runs += !cut->space, cut->space = 1;
		else if (digits && !cut->escape)
			cut->space = 0;
		else if (cut->escape)
			continue; /* judged with its second byte */
		else if (blank)
			c->space_runs += !cut->space, cut->space = 1;
		else
			cut->space = 0, *(b >= 0x80                            ? &c->high
					  : (b | 32) >= 'a' && (b | 32) <= 'z' ? &c->letters
					  : b >= '0' && b <= '9'               ? &c->digits
									       : &c->punct) += 1;
	}
	return len;
}

static void every_processor_counts_the_same(void **state)
{
	static const char alphabet[] = "ab\\\\\\\"nturbf01289  \t\n/{\xc3\xa9Zu";
	uint8_t in[400];

	srand(11);
	for (int round = 0; round < 30000; round++) {
		size_t len = (size_t)rand() % sizeof(in), cuts = (size_t)rand() % 90 + 1;

		for (size_t i = 0; i < len; i++)
			in[i] = (uint8_t)alphabet[(size_t)rand() % (sizeof(alphabet) - 1)];
		if (round % 3) /* long strings, too */
			for (size_t i = 0; i < len; i++)
				in[i] = in[i] == '"' ? 'x' : in[i];
		struct chat_classes want = { 0 };
		struct chat_cut want_cut = { 0 };
		size_t want_len = count_slowly(&want, &want_cut, in, len);

		for (int way = 0; way < CHAT_COUNT_WAYS; way++) {
			struct chat_classes got = { 0 };
			struct chat_cut cut = { 0 };
			size_t at = 0, before = 0;

			while (at < len) {
				size_t n = cuts < len - at ? cuts : len - at;

				if (chat_count_by(way, &got, &cut, in + at, n, &before))
					break;
				at += before;
				if (before < n)
					break;
			}
			if (!at && len && want_len)
				continue; /* not on this processor */
			if (at != want_len || memcmp(&got, &want, sizeof(got)))
				fail_msg("round %d, way %d", round, way);
		}
	}
}

/* The index and the sessions outlive an upgrade: what a processor can do must not show in them. */
static void a_block_hashes_alike_by_every_way(void **state)
{
	uint8_t block[LIMIT_CONTENT_BLOCK_BYTES], secret[CHAT_SECRET];

	srand(12);
	for (int round = 0; round < 1000; round++) {
		uint64_t seed = round ? (uint64_t)rand() << 33 ^ (uint64_t)rand() : 0;

		for (size_t i = 0; i < sizeof(block); i++)
			block[i] = (uint8_t)(rand() >> 7);
		stream_secret(secret, seed);
		assert_int_equal(stream_block_hash(block, secret),
				 stream_hash(block, sizeof(block), seed));
	}
}

static void the_model_is_unescaped_and_bounded(void **state)
{
	char body[400];

	assert_string_equal(read_body("{\"mo\\u0064el\":\"a\\/b\\u00e9\\ud83d\\ude00\"}")->model,
			    "a/b\xc3\xa9\xf0\x9f\x98\x80");
	snprintf(body, sizeof(body), "{\"model\":\"%0200d\"}", 7);
	const struct chat_request *req = read_body(body);

	assert_true(req->model_long);
	assert_int_equal(req->model_len, LIMIT_MODEL_NAME);
}

static void a_byte_order_mark_in_front_says_nothing(void **state)
{
	static const char body[] = "\xef\xbb\xbf{\"model\":\"m\"}";
	struct result result;

	for (size_t step = 0; step < 5; step++) {
		scan_in(body, sizeof(body) - 1, step, &result);
		assert_true(result.req.complete);
		assert_string_equal(result.req.model, "m");
		assert_int_equal(result.req.brace, 3);
	}
	assert_true(read_body(" \xef\xbb\xbf{}")->unreadable);
	assert_true(read_body("\xef{}")->unreadable);
}

static void the_rest_of_a_byte_order_mark_is_none(void **state)
{
	static const char body[] = "{\xbb\"text\":\"abc\"}", late[] = " \xbb{}";
	struct result result;

	for (size_t step = 0; step < 5; step++) {
		scan_in(body, sizeof(body) - 1, step, &result);
		assert_true(result.req.unreadable);
		assert_int_equal(result.req.content_bytes, 0);
		scan_in(late, sizeof(late) - 1, step, &result);
		assert_true(result.req.unreadable);
	}
}

static void of_a_repeated_key_the_last_counts(void **state)
{
	const struct chat_request *req = read_body(
		"{\"model\":\"a\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":"
		"\"one\"},"
		"{\"role\":\"assistant\",\"content\":\"x\"}],\"model\":\"b\",\"stream\":false,"
		"\"messages\":[{\"role\":\"user\",\"content\":\"three\"}]}");

	assert_string_equal(req->model, "b");
	assert_false(req->stream);
	assert_int_equal(req->messages, 1);
	assert_int_equal(req->turn, 1);
	assert_int_equal(req->classes.letters, 5);
}

static void the_stronger_session_field_wins(void **state)
{
	const struct chat_request *req = read_body(
		"{\"prompt_cache_key\":\"k\",\"user\":\"u\",\"conversation\":{\"id\":\"c\"}}");

	assert_string_equal(req->session, "k");
	assert_int_equal(req->session_source, CHAT_SESSION_PROMPT_CACHE_KEY);
	assert_string_equal(
		read_body("{\"conversation\":\"c\",\"conversation_id\":\"d\"}")->session, "c");
	assert_string_equal(read_body("{\"session_id\":\"s\\u0001\\n1\",\"user\":\"u\"}")->session,
			    "s1");
	req = read_body("{\"session_id\":\"s\",\"metadata\":{\"user_id\":"
			"\"user_ab12_account_c-d_session_11-22\"}}");
	assert_string_equal(req->session, "11-22");
	assert_int_equal(req->session_source, CHAT_SESSION_METADATA);
	req = read_body(
		"{\"metadata\":{\"user_id\":\"{\\\"device_id\\\":\\\"x\\\",\\\"session_id\\\":"
		"\\\"33-44\\\"}\"},\"user\":\"u\"}");
	assert_string_equal(req->session, "33-44");
	req = read_body("{\"metadata\":{\"user_id\":\"just-someone\"}}");
	assert_string_equal(req->session, "just-someone");
	assert_int_equal(req->session_source, CHAT_SESSION_USER);
}

static void a_session_id_is_cut_at_its_limit(void **state)
{
	char body[600];

	snprintf(body, sizeof(body), "{\"session_id\":\"%0400d\"}", 7);
	assert_int_equal(read_body(body)->session_len, LIMIT_SESSION_ID);
}

static void what_is_not_json_is_unreadable_and_no_more(void **state)
{
	static const char *const bodies[] = {
		"",
		"{",
		"[]",
		"\"x\"",
		"17",
		"{\"model\":\"m\"",
		"{\"model\":\"m\"}x",
		"{\"a\":01}",
		"{\"a\":tru}",
		"{\"a\" 1}",
		"{\"a\":1,}",
		"{a:1}",
		"{\"a\":[1,]}",
		"{\"a\":[1}}",
		"{\"a\":.5}",
		"{\"a\":1e}",
		"{\"a\":\"b}",
		"{\"a\":'b'}",
		"\xff\xfe",
		"{\"a\":-}",
		"{,}",
	};

	for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++)
		assert_true(read_body(bodies[i])->unreadable);
	/* What was read before stays. */
	assert_string_equal(read_body("{\"model\":\"m\",\"stream\":true,!")->model, "m");
	assert_true(read_body("{\"model\":\"m\",\"stream\":true,!")->stream);
}

static void all_of_json_is_readable(void **state)
{
	static const char *const bodies[] = {
		"{}",
		" { } ",
		"{\"a\":[]}",
		"{\"a\":[[],{}]}",
		"{\"a\":-0.5e+10,\"b\":1E2,\"c\":0}",
		"{\"\":null}",
		"{\"a\":NaN}",
		"{\"a\":\"\\u0000\\b\\f\"}",
		"{\"a\":true,\"b\":false}\r\n\t",
		"{\"a\":0.12345678901234567890123456789012345678901234567890}",
	};

	for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++)
		assert_true(read_body(bodies[i])->complete);
}

static void depth_is_bounded_and_never_an_error(void **state)
{
	char *body = NULL;

	add(&body, "{\"model\":\"m\",\"x\":");
	for (int i = 0; i < 63; i++)
		add(&body, "[");
	for (int i = 0; i < 63; i++)
		add(&body, "]");
	add(&body, "}");
	assert_true(read_body(body)->complete);
	free(body);
	body = NULL;
	add(&body, "{\"model\":\"m\",\"x\":");
	for (int i = 0; i < 64; i++)
		add(&body, "[");
	assert_true(read_body(body)->unreadable);
	assert_string_equal(read_body(body)->model, "m");
	free(body);
}

static char *rich_body(unsigned seed)
{
	char *body = NULL;

	add(&body, "{\"messages\": [ {\"role\" : \"system\", \"content\": \"");
	add_words(&body, 900, seed);
	add(&body, "\\n<total_tokens>%u tokens left</total_tokens>\\n\"},", seed);
	for (int i = 0; i < 6; i++) {
		add(&body, "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"");
		add_words(&body, 700, seed + 1u + (unsigned)i);
		add(&body,
		    "\"},{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:image/"
		    "png;base64,AAAA%d\"}}]},",
		    i);
		add(&body,
		    "{\"content\":\"\",\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"call%d\","
		    "\"type\":"
		    "\"function\",\"function\":{\"name\":\"run\",\"arguments\":\"{\\\"k\\\":%d}\"}}"
		    "]},",
		    i, i);
		add(&body, "{\"role\":\"tool\",\"tool_call_id\":\"call%d\",\"content\":\"", i);
		add_words(&body, 1500, seed * 3 + (unsigned)i);
		add(&body, "\"}%s", i < 5 ? "," : "]");
	}
	add(&body,
	    ",\"model\":\"m\\u0061x\",\"stream\":true,\"tools\":[{\"type\":\"function\","
	    "\"function\":"
	    "{\"name\":\"run\",\"parameters\":{\"type\":\"object\",\"properties\":{\"k\":{\"type\":"
	    "\"integer\","
	    "\"minimum\":-1.5e3,\"default\":null}}}}}],\"metadata\":{\"user_id\":\"u_session_9\"},"
	    "\"logit_bias\":{\"50256\":-100}}");
	return body;
}

static void cuts_do_not_matter(void **state)
{
	static struct result whole, cut;

	for (unsigned seed = 1; seed <= 5; seed++) {
		char *body = rich_body(seed);
		size_t len = strlen(body);

		scan_in(body, len, 0, &whole);
		assert_true(whole.req.complete);
		assert_true(whole.n > 20);
		assert_int_equal(whole.req.images, 6);
		for (size_t step = 1; step < 70; step += step < 8 ? 1 : 13) {
			scan_in(body, len, step, &cut);
			assert_same(&whole, &cut);
		}
		for (unsigned i = 0; i < 20; i++) {
			random_cuts(body, len, seed * 100 + i, &cut);
			assert_same(&whole, &cut);
		}
		free(body);
	}
}

static void every_prefix_of_a_body_is_survived(void **state)
{
	static struct result cut;
	char *body = rich_body(9);
	size_t len = strlen(body);

	for (size_t n = 0; n < len; n += 7) {
		scan_in(body, n, 0, &cut);
		assert_true(cut.req.unreadable);
	}
	free(body);
}

/* `more` turns after the first, in the given client's shape; `marker` is where cache_control
 * stands. */
static char *claude_body(int turns, int marker, unsigned cch)
{
	char *body = NULL;

	add(&body,
	    "{\"model\":\"m\",\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header:"
	    " "
	    "cc_version=2.1; cch=%05x;\"},{\"type\":\"text\",\"text\":\"",
	    cch);
	add_words(&body, 3000, 5);
	add(&body, "\",\"cache_control\":{\"type\":\"ephemeral\"}}],\"messages\":[");
	for (int i = 0; i < turns; i++) {
		add(&body, "%s{\"role\":\"user\",\"content\":", i ? "," : "");
		add(&body, i == marker ? "[{\"type\":\"text\",\"text\":\"" : "\"");
		add_words(&body, 1200, 40 + (unsigned)i);
		add(&body,
		    i == marker ? "\",\"cache_control\":{\"type\":\"ephemeral\"}}]}" : "\"}");
		if (i == turns - 1)
			break;
		add(&body, ",{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"");
		add_words(&body, 800, 60 + (unsigned)i);
		add(&body,
		    "\"},{\"type\":\"tool_use\",\"id\":\"t%d\",\"name\":\"ls\",\"input\":{\"path\":"
		    "\"/\"}}]}",
		    i);
	}
	add(&body, "]}");
	return body;
}

static void the_next_turn_extends_the_chain_of_the_last(void **state)
{
	static struct result last, next;

	for (int turns = 1; turns < 6; turns++) {
		char *a = claude_body(turns, turns - 1, 0x11111),
		     *b = claude_body(turns + 1, turns, 0xabcde);

		scan_in(a, strlen(a), 0, &last);
		scan_in(b, strlen(b), 0, &next);
		assert_true(last.n >= 7);
		assert_true(next.n > last.n);
		assert_memory_equal(last.chain, next.chain, last.n * sizeof(uint64_t));
		assert_int_equal(next.req.turn, turns + 1);
		assert_true(last.req.identity == next.req.identity);
		free(a);
		free(b);
	}
}

static void a_line_of_tokens_left_does_not_change_the_chain(void **state)
{
	static struct result one, two;
	char *a = rich_body(3), *b = rich_body(3);
	char *left = strstr(b, "<total_tokens>");

	left[strlen("<total_tokens>")] = '8';
	scan_in(a, strlen(a), 0, &one);
	scan_in(b, strlen(b), 0, &two);
	assert_int_equal(one.n, two.n);
	assert_memory_equal(one.chain, two.chain, one.n * sizeof(uint64_t));
	free(a);
	free(b);
}

static void chain_of(const char *format, struct result *ret)
{
	char *text = NULL, *body = NULL;

	add(&text, "x");
	add_words(&text, 2000, 8);
	assert_true(asprintf(&body, format, text) >= 0);
	scan_in(body, strlen(body), 0, ret);
	assert_true(ret->req.complete);
	assert_true(ret->n >= 3);
	free(body);
	free(text);
}

#pragma GCC diagnostic ignored "-Wformat-nonliteral"

static void a_billing_line_does_not_change_the_chain_nor_hide_the_rest(void **state)
{
	static const char *const systems[] = {
		"{\"system\":\"x-anthropic-billing-header: cch=1;\\nA%s\"}",
		"{\"system\":\"x-anthropic-billing-header: cch=2;\\nA%s\"}",
		"{\"system\":\"x-anthropic-billing-header: cch=2;\\nB%s\"}",
		"{\"system\":\"x-anthropic-billing-heade: cch=2;\\nA%s\"}",
		("{\"system\":[{\"text\":\"x-anthropic-billing-header: "
		 "cch=3;\"},{\"text\":\"A%s\"}]}"),
	};
	static struct result results[5];

	for (size_t i = 0; i < 5; i++)
		chain_of(systems[i], &results[i]);
	assert_memory_equal(results[0].chain, results[1].chain, 3 * sizeof(uint64_t));
	assert_memory_equal(results[0].chain, results[4].chain, 3 * sizeof(uint64_t));
	assert_true(results[0].chain[0] != results[2].chain[0]);
	assert_true(results[0].chain[0] != results[3].chain[0]);
}

static void objects_of_the_responses_api_are_no_prompts(void **state)
{
	const struct chat_request *req = read_body(
		"{\"input\":[{\"role\":\"user\",\"content\":\"abc\"}],\"text\":{\"format\":"
		"{\"type\":\"text\"}},\"prompt\":{\"id\":\"p\",\"variables\":{\"x\":\"y\"}}}");

	assert_int_equal(req->messages, 1);
	assert_int_equal(req->classes.letters, 3);
}

static void the_chain_covers_text_roles_and_boundaries(void **state)
{
	static const char *const tails[] = {
		"{\"role\":\"user\",\"content\":\"ab\"},{\"role\":\"user\",\"content\":\"c",
		"{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"bc",
		"{\"role\":\"user\",\"content\":\"abc\"},{\"role\":\"user\",\"content\":\"",
		"{\"role\":\"assistant\",\"content\":\"ab\"},{\"role\":\"user\",\"content\":\"c",
		"{\"role\":\"user\",\"content\":\"abc",
	};
	static struct result results[5];

	for (size_t i = 0; i < 5; i++) {
		char *body = NULL;

		add(&body, "{\"model\":\"m\",\"messages\":[%s", tails[i]);
		for (int k = 0; k < 80; k++)
			add(&body, "0123456789");
		add(&body, "\"}]}");
		scan_in(body, strlen(body), 0, &results[i]);
		free(body);
		assert_int_equal(results[i].n, 1);
		for (size_t k = 0; k < i; k++)
			assert_true(results[i].chain[0] != results[k].chain[0]);
	}
}

static void form_and_order_do_not_change_the_chain(void **state)
{
	static const char *const same[] = {
		"{\"model\":\"m\",\"tools\":[{\"a\":1}],\"messages\":[{\"role\":\"user\","
		"\"content\":\"%s\"}]}",
		"{\"messages\":[{\"content\":\"%s\",\"role\":\"user\"}],\"tools\":[{\"a\":1}],"
		"\"model\":\"m\"}",
		" { \"model\" : \"m\" ,\"tools\":[ {\"a\" :1 } ] , \"messages\" : "
		"[{\"role\":\"user\",\"content\":[\n"
		"{\"type\":\"text\",\"text\":\"%s\",\"cache_control\":{\"type\":\"ephemeral\","
		"\"ttl\":\"1h\"}}]}]"
		"}",
		"{\"model\":\"m\",\"tools\":[{\"a\":1,\"cache_control\":{\"type\":\"ephemeral\","
		"\"ttl\":\"1h\"}}],"
		"\"input\":[{\"type\":\"message\",\"role\":\"user\",\"id\":\"x\",\"content\":\"%"
		"s\"}]}",
		"{\"model\":\"m\",\"tools\":[{\"a\":1}],\"input\":\"%s\",\"temperature\":0}",
	};
	static struct result first, other;

	chain_of(same[0], &first);
	for (size_t i = 1; i < sizeof(same) / sizeof(same[0]); i++) {
		chain_of(same[i], &other);
		assert_int_equal(first.n, other.n);
		assert_memory_equal(first.chain, other.chain, first.n * sizeof(uint64_t));
		assert_true(first.req.identity == other.req.identity);
	}
}

static void model_adapter_salt_tools_and_images_key_the_chain(void **state)
{
	static const char *const different[] = {
		"{\"model\":\"m\",\"prompt\":\"%s\"}",
		"{\"model\":\"n\",\"prompt\":\"%s\"}",
		"{\"model\":\"m\",\"prompt\":\"%s\",\"cache_salt\":\"a\"}",
		"{\"model\":\"m\",\"prompt\":\"%s\",\"cache_salt\":\"b\"}",
		"{\"model\":\"m\",\"prompt\":\"%s\",\"lora_path\":\"a\"}",
		"{\"model\":\"m\",\"prompt\":\"%s\",\"lora\":[{\"id\":1,\"scale\":0.5}]}",
		"{\"model\":\"m\",\"tools\":[{\"a\":1}],\"prompt\":\"%s\"}",
		"{\"model\":\"m\",\"tools\":[{\"b\":1}],\"prompt\":\"%s\"}",
		"{\"model\":\"m\",\"messages\":[{\"content\":[{\"image_url\":{\"url\":\"a\"}},{"
		"\"text\":\"%s\"}]}]}",
		"{\"model\":\"m\",\"messages\":[{\"content\":[{\"image_url\":{\"url\":\"b\"}},{"
		"\"text\":\"%s\"}]}]}",
	};
	static struct result results[10];

	for (size_t i = 0; i < 10; i++) {
		chain_of(different[i], &results[i]);
		for (size_t k = 0; k < i; k++)
			if (results[i].chain[0] == results[k].chain[0])
				fail_msg("%zu and %zu share a chain", i, k);
	}
}

static void equal_token_ids_make_equal_chains(void **state)
{
	static struct result flat, more, spaced;
	char *a = NULL, *b = NULL, *c = NULL;

	add(&a, "{\"model\":\"m\",\"prompt\":[1");
	add(&c, "{\"model\":\"m\",\"prompt\":[1");
	for (int i = 2; i <= 600; i++) {
		add(&a, ",%d", i * 37);
		add(&c, " , %d", i * 37);
	}
	add(&b, "%s,5,6,7]}", a);
	add(&a, "]}");
	add(&c, "]}");
	scan_in(a, strlen(a), 0, &flat);
	scan_in(b, strlen(b), 3, &more);
	scan_in(c, strlen(c), 1, &spaced);
	assert_int_equal(flat.n, 600 * 4 / LIMIT_CONTENT_BLOCK_BYTES);
	assert_memory_equal(flat.chain, more.chain, flat.n * sizeof(uint64_t));
	assert_memory_equal(flat.chain, spaced.chain, flat.n * sizeof(uint64_t));
	free(a);
	free(b);
	free(c);
}

static void sub_agents_of_a_session_have_identities_of_their_own(void **state)
{
	uint64_t main_agent =
		read_body("{\"system\":\"A\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}")
			->identity;
	uint64_t other_system =
		read_body("{\"system\":\"B\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}")
			->identity;
	uint64_t other_task =
		read_body("{\"system\":\"A\",\"messages\":[{\"role\":\"user\",\"content\":\"y\"}]}")
			->identity;
	uint64_t later = read_body("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":"
				   "\"assistant\","
				   "\"content\":\"z\"},{\"role\":\"user\",\"content\":\"y\"}],"
				   "\"system\":\"A\"}")
				 ->identity;

	assert_true(main_agent == later);
	assert_true(main_agent != other_system && main_agent != other_task);
	assert_true(read_body("{\"prompt\":\"x\"}")->identity == 0);
}

static void block_memory_bounds_the_chain_and_says_so(void **state)
{
	static struct result whole;
	uint64_t few[8], chain[CHAIN_MAX];
	char *body = rich_body(2);

	scan_in(body, strlen(body), 0, &whole);
	chat_scan_begin(&scan, few, 8, SEED);
	chat_scan_step(&scan, body, strlen(body));
	assert_true(scan.req.blocks_full);
	assert_int_equal(chat_scan_end(&scan, true, chain, CHAIN_MAX), 8);
	assert_false(whole.req.blocks_full);
	assert_true(chat_scan_blocks(strlen(body)) >= whole.n);
	assert_int_equal(chat_scan_blocks(UINT64_MAX), LIMIT_CONTENT_BLOCKS);
	free(body);
}

static void block_memory_can_grow_on_the_way(void **state)
{
	static struct result whole;
	uint64_t few[8], chain[CHAIN_MAX];
	char *body = rich_body(2);
	size_t len = strlen(body);

	scan_in(body, len, 0, &whole);
	chat_scan_begin(&scan, few, 8, SEED);
	chat_scan_step(&scan, body, 3000);
	chat_scan_grow(&scan, blocks, CHAIN_MAX);
	chat_scan_step(&scan, body + 3000, len - 3000);
	assert_int_equal(chat_scan_end(&scan, true, chain, CHAIN_MAX), whole.n);
	assert_memory_equal(chain, whole.chain, whole.n * sizeof(uint64_t));
	free(body);
}

static void a_body_can_be_decided_on_its_first_part(void **state)
{
	static struct result whole;
	uint64_t chain[CHAIN_MAX];
	char *body = claude_body(6, 5, 1);
	size_t len = strlen(body);

	scan_in(body, len, 0, &whole);
	chat_scan_begin(&scan, blocks, CHAIN_MAX, SEED);
	chat_scan_step(&scan, body, len / 2);
	uint32_t n = chat_scan_end(&scan, false, chain, CHAIN_MAX);

	assert_true(n > 4 && n < whole.n);
	assert_memory_equal(chain, whole.chain, n * sizeof(uint64_t));
	assert_false(scan.req.unreadable);
	chat_scan_step(&scan, body + len / 2, len - len / 2);
	assert_int_equal(chat_scan_end(&scan, true, chain, CHAIN_MAX), whole.n);
	assert_true(scan.req.complete);
	free(body);
}

static void numbers_saturate(void **state)
{
	assert_true(read_body("{\"max_tokens\":99999999999999999999999999}")->max_tokens ==
		    UINT64_MAX);
	assert_int_equal(read_body("{\"max_tokens\":-5}")->max_tokens, 0);
	assert_int_equal(read_body("{\"max_tokens\":1.5e3}")->max_tokens, 1500);
	assert_int_equal(read_body("{\"n\":1e99}")->n, UINT32_MAX);
	assert_int_equal(read_body("{\"n\":null}")->n, 1);
}

/* Ten megabytes in one string, a byte at a time: quadratic work would take hours. */
static void one_huge_string_in_single_bytes_stays_linear(void **state)
{
	enum { BYTES = 10 * 1000 * 1000 };
	char *text = malloc(BYTES);
	static uint64_t chain[LIMIT_CONTENT_BLOCKS];

	memset(text, 'a', BYTES);
	chat_scan_begin(&scan, blocks, CHAIN_MAX, SEED);
	chat_scan_step(&scan, "{\"prompt\":\"", 11);
	for (size_t i = 0; i < BYTES; i++)
		chat_scan_step(&scan, text + i, 1);
	chat_scan_step(&scan, "\"}", 2);
	assert_int_equal(chat_scan_end(&scan, true, chain, LIMIT_CONTENT_BLOCKS), CHAIN_MAX);
	assert_int_equal(scan.req.classes.letters, BYTES);
	assert_true(scan.req.complete && scan.req.blocks_full);
	free(text);
}

/* The scan and the watch look keys up by halving. */
static void the_key_tables_are_sorted(void **state)
{
	static const char *const files[] = { "router/chat/scan.c", "router/chat/watch.c" };

	for (size_t i = 0; i < 2; i++) {
		char path[4096], line[256], last[64] = "", key[64];
		unsigned n = 0;

		snprintf(path, sizeof(path), "%s/%s", getenv("TEST_SOURCE_ROOT"), files[i]);
		FILE *file = fopen(path, "r");

		assert_non_null(file);
		while (fgets(line, sizeof(line), file)) {
			if (sscanf(line, "\tX(%*[A-Z0-9_], \"%63[^\"]\")", key) != 1)
				continue;
			assert_true(strcmp(last, key) < 0);
			strcpy(last, key);
			n++;
		}
		fclose(file);
		assert_true(n > 30);
	}
}

/* A body of `unit` repeated to some 2 MB, scanned as it would arrive; returns the best GB/s of ten.
 */
static double best_rate(const char *unit)
{
	static uint64_t many[LIMIT_CONTENT_BLOCKS], chain[LIMIT_CONTENT_BLOCKS];
	size_t unit_len = strlen(unit), copies = 2000000 / unit_len, len = 0;
	char *body = malloc(copies * unit_len + 100);
	double best = 0;

	len = (size_t)sprintf(body, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
	for (size_t i = 0; i < copies; i++, len += unit_len)
		memcpy(body + len, unit, unit_len);
	len += (size_t)sprintf(body + len, "\"}]}");
	for (int round = 0; round < 10; round++) {
		uint64_t begin = clock_ns();

		chat_scan_begin(&scan, many, LIMIT_CONTENT_BLOCKS, SEED);
		for (size_t at = 0; at < len; at += 16384)
			chat_scan_step(&scan, body + at, len - at < 16384 ? len - at : 16384);
		chat_scan_end(&scan, true, chain, LIMIT_CONTENT_BLOCKS);
		double rate = (double)len / (double)(clock_ns() - begin);

		best = rate > best ? rate : best;
		assert_true(scan.req.complete);
	}
	free(body);
	return best;
}

/* No limit is checked: the figures are for the README. */
static void speed_is_printed(void **state)
{
	double code =
		best_rate("static int take(struct head *head, const char *buf)\\n{\\n\\treturn "
			  "head->fields == LIMIT ? -1 : put(\\\"x\\\", 17); /* as is */\\n}\\n");
	double plain = best_rate(
		"The quick brown fox jumps over the lazy dog, 17 times a day; so it goes. ");
	double messages = best_rate(
		"a\"},{\"role\":\"user\",\"content\":\"What is the next step here, then?");

	print_message("# scan: code %.2f GB/s, prose %.2f GB/s, short messages %.2f GB/s\n", code,
		      plain, messages);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(a_chat_request_is_read),
		CLAIM(a_messages_request_is_read),
		CLAIM(a_responses_request_counts_runs_of_output_items_as_answers),
		CLAIM(prompts_are_counted_in_every_form),
		CLAIM(classes_count_the_text_behind_the_escapes),
		CLAIM(every_processor_counts_the_same),
		CLAIM(a_block_hashes_alike_by_every_way),
		CLAIM(the_model_is_unescaped_and_bounded),
		CLAIM(a_byte_order_mark_in_front_says_nothing),
		CLAIM(the_rest_of_a_byte_order_mark_is_none),
		CLAIM(of_a_repeated_key_the_last_counts),
		CLAIM(the_stronger_session_field_wins),
		CLAIM(a_session_id_is_cut_at_its_limit),
		CLAIM(what_is_not_json_is_unreadable_and_no_more),
		CLAIM(all_of_json_is_readable),
		CLAIM(depth_is_bounded_and_never_an_error),
		CLAIM(cuts_do_not_matter),
		CLAIM(every_prefix_of_a_body_is_survived),
		CLAIM(the_next_turn_extends_the_chain_of_the_last),
		CLAIM(a_line_of_tokens_left_does_not_change_the_chain),
		CLAIM(a_billing_line_does_not_change_the_chain_nor_hide_the_rest),
		CLAIM(objects_of_the_responses_api_are_no_prompts),
		CLAIM(the_chain_covers_text_roles_and_boundaries),
		CLAIM(form_and_order_do_not_change_the_chain),
		CLAIM(model_adapter_salt_tools_and_images_key_the_chain),
		CLAIM(equal_token_ids_make_equal_chains),
		CLAIM(sub_agents_of_a_session_have_identities_of_their_own),
		CLAIM(block_memory_bounds_the_chain_and_says_so),
		CLAIM(block_memory_can_grow_on_the_way),
		CLAIM(a_body_can_be_decided_on_its_first_part),
		CLAIM(numbers_saturate),
		CLAIM(one_huge_string_in_single_bytes_stays_linear),
		CLAIM(the_key_tables_are_sorted),
		CLAIM(speed_is_printed),
	};

	return cmocka_run_group_tests_name("scan", tests, NULL, NULL);
}
