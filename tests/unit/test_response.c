/* Response heads: what engines send is read, what is ambiguous refused, and what clients get is
 * ours. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "router/http/http.h"
#include "tests/lib/unit.h"

static struct http_head head;

static int parse(const char *text, enum http_method method)
{
	size_t len = strlen(text);

	assert_int_equal(http_head_end(text, len, 0), len);
	int err = http_response_parse(&head, text, len, method);

	if (!err)
		assert_true(http_head_confirmed(&head, text, len, false));
	return err;
}

static void framing_follows_status_and_fields(void **state)
{
	static const struct {
		const char *text;
		enum http_method method;
		enum http_framing framing;
	} cases[] = {
		{ "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", HTTP_METHOD_POST, HTTP_LENGTH },
		{ "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n", HTTP_METHOD_POST,
		  HTTP_CHUNKED },
		{ "HTTP/1.1 200 OK\r\n\r\n", HTTP_METHOD_POST, HTTP_TO_CLOSE },
		{ "HTTP/1.0 200\r\n\r\n", HTTP_METHOD_POST, HTTP_TO_CLOSE },
		{ "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", HTTP_METHOD_HEAD, HTTP_NO_BODY },
		{ "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", HTTP_METHOD_HEAD,
		  HTTP_NO_BODY },
		{ "HTTP/1.1 204 No Content\r\n\r\n", HTTP_METHOD_POST, HTTP_NO_BODY },
		{ "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", HTTP_METHOD_POST,
		  HTTP_NO_BODY },
		{ "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", HTTP_METHOD_GET,
		  HTTP_NO_BODY },
		{ "HTTP/1.1 100 Continue\r\n\r\n", HTTP_METHOD_POST, HTTP_NO_BODY },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(parse(cases[i].text, cases[i].method), 0);
		assert_int_equal(head.framing, cases[i].framing);
		assert_int_equal(head.keep_alive, cases[i].framing != HTTP_TO_CLOSE);
	}
}

static void every_malformed_answer_is_refused_by_name(void **state)
{
	static const struct {
		enum http_error error;
		const char *text;
	} cases[] = {
		{ HTTP_ERROR_AMBIGUOUS,
		  "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" },
		{ HTTP_ERROR_LENGTH,
		  "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n" },
		{ HTTP_ERROR_LENGTH, "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n" },
		{ HTTP_ERROR_TRANSFER, "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n" },
		{ HTTP_ERROR_TRANSFER, "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" },
		{ HTTP_ERROR_AMBIGUOUS, "HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n" },
		{ HTTP_ERROR_AMBIGUOUS, "HTTP/1.1 100 Continue\r\nContent-Length: 3\r\n\r\n" },
		{ HTTP_ERROR_STATUS, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n" },
		{ HTTP_ERROR_STATUS, "HTTP/1.1 20 OK\r\n\r\n" },
		{ HTTP_ERROR_STATUS, "HTTP/1.1 2000 OK\r\n\r\n" },
		{ HTTP_ERROR_STATUS, "HTTP/1.1  200 OK\r\n\r\n" },
		{ HTTP_ERROR_STATUS, "HTTP/1.1 2x0 OK\r\n\r\n" },
		{ HTTP_ERROR_STATUS, "HTTP/1.1 600 OK\r\n\r\n" },
		{ HTTP_ERROR_STATUS, "HTTP/1.1 099 OK\r\n\r\n" },
		{ HTTP_ERROR_STATUS, "ICY 200 OK\r\n\r\n" },
		{ HTTP_ERROR_VERSION, "HTTP/2.0 200 OK\r\n\r\n" },
		{ HTTP_ERROR_BARE_LINE_END, "HTTP/1.1 200 OK\nA: b\n\n" },
		{ HTTP_ERROR_FOLDED, "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n" },
		{ HTTP_ERROR_FIELD_NAME, "HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\n" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int err = parse(cases[i].text, HTTP_METHOD_POST);

		if (err != -EPROTO || head.error != cases[i].error)
			fail_msg("%zu \"%s\": %d %s", i, cases[i].text, err,
				 http_error_info(head.error)->name);
	}
}

static const char *answered(const char *text, const struct http_answer *how)
{
	static char out[4096];
	size_t len = 0;

	assert_int_equal(parse(text, HTTP_METHOD_POST), 0);
	assert_int_equal(http_response_write(out, sizeof(out) - 1, &head, text, how, &len), 0);
	out[len] = 0;
	return out;
}

static void a_relayed_head_has_our_framing_only(void **state)
{
	struct http_answer how = { .framing = HTTP_CHUNKED,
				   .request_id = "r1",
				   .extra = "x-turnward-engine: g0\r\n" };

	assert_string_equal(answered("HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: "
				     "text/event-stream; charset=utf-8\r\n"
				     "Transfer-Encoding: chunked\r\nConnection: keep-alive, "
				     "x-gone\r\nx-gone: 1\r\n"
				     "Keep-Alive: timeout=5\r\nX-Request-Id: theirs\r\n\r\n",
				     &how),
			    "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: "
			    "text/event-stream; charset=utf-8\r\n"
			    "x-request-id: r1\r\nX-Accel-Buffering: no\r\nx-turnward-engine: "
			    "g0\r\nTransfer-Encoding: chunked\r\n\r\n");
	how = (struct http_answer){ .framing = HTTP_LENGTH, .content_length = 9, .close = true };
	assert_string_equal(
		answered("HTTP/1.1 200 OK\r\nX-Accel-Buffering: no\r\nContent-Type: "
			 "text/event-stream\r\n"
			 "Content-Length: 9\r\nX-Request-Id: theirs\r\n\r\n",
			 &how),
		"HTTP/1.1 200 OK\r\nX-Accel-Buffering: no\r\nContent-Type: text/event-stream\r\n"
		"X-Request-Id: theirs\r\nContent-Length: 9\r\nConnection: close\r\n\r\n");
}

static void an_answer_has_one_date(void **state)
{
	struct http_answer how = { .framing = HTTP_LENGTH, .date = "ours" };

	assert_string_equal(answered("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", &how),
			    "HTTP/1.1 200 OK\r\nDate: ours\r\nContent-Length: 0\r\n\r\n");
	assert_string_equal(
		answered("HTTP/1.1 200 OK\r\ndate: theirs\r\nContent-Length: 0\r\n\r\n", &how),
		"HTTP/1.1 200 OK\r\ndate: theirs\r\nContent-Length: 0\r\n\r\n");
}

static void clients_of_1_0_get_no_chunks(void **state)
{
	struct http_answer how = { .framing = HTTP_TO_CLOSE };

	assert_string_equal(answered("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", &how),
			    "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
	how = (struct http_answer){ .framing = HTTP_LENGTH,
				    .content_length = 3,
				    .keep_alive_1_0 = true };
	assert_string_equal(answered("HTTP/1.1 404 \r\nContent-Length: 3\r\n\r\n", &how),
			    "HTTP/1.1 404 \r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\n");
}

static void a_head_answer_keeps_its_length(void **state)
{
	static const char text[] = "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n";
	struct http_answer how = { .framing = HTTP_NO_BODY };
	char out[200];
	size_t len;

	assert_int_equal(parse(text, HTTP_METHOD_HEAD), 0);
	assert_int_equal(http_response_write(out, sizeof(out), &head, text, &how, &len), 0);
	assert_int_equal(len, strlen(text));
	assert_memory_equal(out, text, len);
}

static void an_error_of_ours_is_whole_and_in_openais_form(void **state)
{
	struct http_failure failure = { .status = 503,
					.code = "overloaded",
					.message = "queue \"full\"\n\x01",
					.request_id = "r1",
					.retry_after_s = 7,
					.close = true };
	char out[2000];
	size_t len;

	assert_int_equal(http_error_write(out, sizeof(out) - 1, &failure, &len), 0);
	out[len] = 0;
	size_t end = http_head_end(out, len, 0);

	assert_string_equal(out + end,
			    "{\"error\":{\"message\":\"queue \\\"full\\\"\\u000a\\u0001\",\"type\":"
			    "\"server_error\",\"param\":null,\"code\":\"overloaded\"}}");
	assert_int_equal(http_response_parse(&head, out, end, HTTP_METHOD_POST), 0);
	assert_int_equal(head.status, 503);
	assert_int_equal(head.content_length, len - end);
	assert_false(head.keep_alive);
	assert_non_null(strstr(out, "Retry-After: 7\r\n"));
	assert_non_null(strstr(out, "x-request-id: r1\r\n"));
	for (size_t size = 0; size < len; size++)
		assert_int_equal(http_error_write(out, size, &failure, &len), -ENOSPC);
}

static void an_error_of_ours_can_be_in_anthropics_form(void **state)
{
	struct http_failure failure = { .status = 404,
					.form = HTTP_FORM_ANTHROPIC,
					.code = "model_not_found",
					.message = "no \"m\"",
					.request_id = "r1" };
	char out[2000];
	size_t len;

	assert_int_equal(http_error_write(out, sizeof(out) - 1, &failure, &len), 0);
	out[len] = 0;
	assert_string_equal(out + http_head_end(out, len, 0),
			    "{\"type\":\"error\",\"error\":{\"type\":\"not_found_error\","
			    "\"message\":\"no \\\"m\\\"\"},\"request_id\":\"r1\"}");
	for (size_t size = 0; size < len; size++)
		assert_int_equal(http_error_write(out, size, &failure, &len), -ENOSPC);
}

static void an_error_to_a_head_request_has_no_body(void **state)
{
	struct http_failure failure = { .status = 404, .message = "no", .head_only = true };
	char out[500];
	size_t len;

	assert_int_equal(http_error_write(out, sizeof(out), &failure, &len), 0);
	assert_int_equal(http_head_end(out, len, 0), len);
}

static void error_types_follow_the_status(void **state)
{
	assert_string_equal(http_error_type(404), "invalid_request_error");
	assert_string_equal(http_error_type(401), "authentication_error");
	assert_string_equal(http_error_type(429), "rate_limit_error");
	assert_string_equal(http_error_type(504), "server_error");
	for (int i = 1; i < HTTP_ERROR_NR; i++)
		assert_string_not_equal(http_status_text(http_error_info(i)->status), "Error");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(framing_follows_status_and_fields),
		CLAIM(every_malformed_answer_is_refused_by_name),
		CLAIM(a_relayed_head_has_our_framing_only),
		CLAIM(an_answer_has_one_date),
		CLAIM(clients_of_1_0_get_no_chunks),
		CLAIM(a_head_answer_keeps_its_length),
		CLAIM(an_error_of_ours_is_whole_and_in_openais_form),
		CLAIM(an_error_of_ours_can_be_in_anthropics_form),
		CLAIM(an_error_to_a_head_request_has_no_body),
		CLAIM(error_types_follow_the_status),
	};

	return cmocka_run_group_tests_name("response", tests, NULL, NULL);
}
