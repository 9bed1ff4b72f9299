/* Request heads: what is read, everything that is refused and as what, and what goes to an engine.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "router/http/http.h"
#include "router/http/path.h"
#include "tests/lib/unit.h"

static struct http_head head;

#define GOOD "GET / HTTP/1.1\r\nHost: a\r\n"

static int parse_n(const char *text, size_t len)
{
	char *copy = malloc(len); /* so that a sanitizer sees a read past it */

	memcpy(copy, text, len);
	assert_int_equal(http_head_end(copy, len, 0), len);
	int err = http_request_parse(&head, copy, len);

	if (!err)
		assert_true(http_head_confirmed(&head, copy, len, true));
	free(copy);
	return err;
}

static int parse(const char *text)
{
	return parse_n(text, strlen(text));
}

static void assert_slice(const char *buf, struct http_slice slice, const char *text)
{
	assert_int_equal(slice.len, strlen(text));
	assert_memory_equal(buf + slice.at, text, slice.len);
}

/* Accepted means accepted by both readers alike, also where only one was asked. */
static unsigned check_readers(const char *buf, size_t len, bool request)
{
	int err;

	if (http_head_end(buf, len, 0) != len)
		return 0;
	err = request ? http_request_parse(&head, buf, len)
		      : http_response_parse(&head, buf, len, HTTP_METHOD_POST);
	if (err)
		return 0;
	assert_true(http_head_confirmed(&head, buf, len, request));
	return head.plain;
}

/* Every byte of it as every other, left out, and put before every one. */
static unsigned mutate(const char *text, bool request)
{
	char buf[512];
	size_t len = strlen(text);
	unsigned plain = 0;

	assert_true(len < sizeof(buf));
	for (size_t at = 0; at < len; at++) {
		for (unsigned c = 0; c < 256; c++) {
			memcpy(buf, text, len);
			buf[at] = (char)c;
			plain += check_readers(buf, len, request);
			memmove(buf + at + 1, text + at, len - at);
			plain += check_readers(buf, len + 1, request);
		}
		memcpy(buf, text, at);
		memcpy(buf + at, text + at + 1, len - at - 1);
		plain += check_readers(buf, len - 1, request);
	}
	return plain;
}

static void what_is_read_once_the_second_reader_would_have_read_the_same(void **state)
{
	static const char *const requests[] = {
		"POST /v1/a_b.c?x=%41&y=~1 HTTP/1.1\r\nHost: h:80\r\nContent-Length: 12\r\n"
		"Content-Type: application/json; charset=\"utf-8\"\r\nConnection: close\r\n\r\n",
		"PUT / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n"
		"connection: keep-alive\r\nexpect: 100-continue\r\nX:  a b \r\nte:\r\n\r\n",
		"OPTIONS * HTTP/1.0\r\nUpgrade: h2c\r\nConnection: upgrade, te\r\n"
		"Proxy-Connection: x\r\nKeep-Alive: timeout=5\r\n\r\n",
		"DELETE /a HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
	};
	static const char *const answers[] = {
		"HTTP/1.1 200 OK\r\ndate: Tue, 01 Dec 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
		"content-length: 341\r\ncontent-type: application/json\r\n\r\n",
		"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n"
		"Keep-Alive: timeout=5, max=9\r\nX_y:\r\n\r\n",
		"HTTP/1.1 200 \r\nConnection: keep-alive\r\nUpgrade: x\r\n\r\n",
		"HTTP/1.0 204\r\nContent-Length: 0\r\n\r\n",
	};

	for (size_t i = 0; i < 4; i++) {
		unsigned plain_requests = mutate(requests[i], true);
		unsigned plain_answers = mutate(answers[i], false);

		assert_true((plain_requests > 1000) == (i != 2));
		assert_true((plain_answers > 500) == (i < 2));
	}
	assert_int_equal(parse("GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"), 0);
	assert_true(head.plain);
	assert_int_equal(parse("GET /v1/models HTTP/1.1\r\nHost: a\r\nX: \xc3\xa4\r\n\r\n"), 0);
	assert_false(head.plain);
}

static void a_client_head_is_read(void **state)
{
	static const char text[] =
		"POST /v1/chat/completions?x=1 HTTP/1.1\r\nHost: h:8080\r\n"
		"Content-Type: application/json; charset=utf-8\r\nX-Request-Id:  r1 \r\n"
		"Content-Length: 12\r\nExpect: 100-continue\r\n\r\n";

	assert_int_equal(parse(text), 0);
	assert_int_equal(head.method, HTTP_METHOD_POST);
	assert_int_equal(head.minor, 1);
	assert_slice(text, head.target, "/v1/chat/completions?x=1");
	assert_slice(text, head.path, "/v1/chat/completions?x=1");
	assert_int_equal(head.framing, HTTP_LENGTH);
	assert_int_equal(head.content_length, 12);
	assert_true(head.keep_alive && head.expect_continue && head.json);
	assert_int_equal(head.fields, 5);
	assert_slice(text, http_head_field(&head, HTTP_FIELD_REQUEST_ID)->value, "r1");
	assert_slice(text, http_head_named(&head, text, "host")->value, "h:8080");
	assert_null(http_head_named(&head, text, "hos"));
	assert_int_equal(head.bytes, sizeof(text) - 1);
}

/* Every way a head can be wrong, and what it is called. `~` stands for a NUL byte. */
static const struct {
	enum http_error error;
	const char *text;
} refusals[] = {
	{ HTTP_ERROR_HOST, "GET / HTTP/1.1\r\n\r\n" },
	{ HTTP_ERROR_HOST, GOOD "Host: a\r\n\r\n" },
	{ HTTP_ERROR_HOST, "GET / HTTP/1.1\r\nHost: a b\r\n\r\n" },
	{ HTTP_ERROR_HOST, "GET / HTTP/1.1\r\nHost: a,b\r\n\r\n" },
	{ HTTP_ERROR_HOST, "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n" },
	{ HTTP_ERROR_HOST, "GET / HTTP/1.1\r\nHost: u@b\r\n\r\n" },
	{ HTTP_ERROR_HOST, "GET / HTTP/1.1\r\nHost: a:8x\r\n\r\n" },
	{ HTTP_ERROR_HOST, "GET / HTTP/1.1\r\nHost: [::1\r\n\r\n" },
	{ HTTP_ERROR_HOST, "GET / HTTP/1.1\r\nHost:\r\n\r\n" },
	{ HTTP_ERROR_HOST, "GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n" },
	{ HTTP_ERROR_LENGTH, GOOD "Content-Length: +1\r\n\r\n" },
	{ HTTP_ERROR_LENGTH, GOOD "Content-Length: -1\r\n\r\n" },
	{ HTTP_ERROR_LENGTH, GOOD "Content-Length: 1 2\r\n\r\n" },
	{ HTTP_ERROR_LENGTH, GOOD "Content-Length: 1,1\r\n\r\n" },
	{ HTTP_ERROR_LENGTH, GOOD "Content-Length: 0x10\r\n\r\n" },
	{ HTTP_ERROR_LENGTH, GOOD "Content-Length:\r\n\r\n" },
	{ HTTP_ERROR_LENGTH, GOOD "Content-Length: 1\r\nContent-Length: 1\r\n\r\n" },
	{ HTTP_ERROR_LENGTH, GOOD "Content-Length: 1\r\ncontent-length: 2\r\n\r\n" },
	{ HTTP_ERROR_LENGTH, GOOD "Content-Length: 9223372036854775808\r\n\r\n" },
	{ HTTP_ERROR_LENGTH, GOOD "Content-Length: 99999999999999999999\r\n\r\n" },
	{ HTTP_ERROR_AMBIGUOUS, GOOD "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" },
	{ HTTP_ERROR_AMBIGUOUS, GOOD "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n" },
	{ HTTP_ERROR_TRANSFER, GOOD "Transfer-Encoding: gzip, chunked\r\n\r\n" },
	{ HTTP_ERROR_TRANSFER, GOOD "Transfer-Encoding: chunked, identity\r\n\r\n" },
	{ HTTP_ERROR_TRANSFER, GOOD "Transfer-Encoding: identity\r\n\r\n" },
	{ HTTP_ERROR_TRANSFER, GOOD "Transfer-Encoding: xchunked\r\n\r\n" },
	{ HTTP_ERROR_TRANSFER, GOOD "Transfer-Encoding: \"chunked\"\r\n\r\n" },
	{ HTTP_ERROR_TRANSFER, GOOD "Transfer-Encoding: chunked;q=1\r\n\r\n" },
	{ HTTP_ERROR_TRANSFER, GOOD "Transfer-Encoding:\r\n\r\n" },
	{ HTTP_ERROR_TRANSFER,
	  GOOD "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" },
	{ HTTP_ERROR_TRANSFER, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" },
	{ HTTP_ERROR_FIELD_NAME, GOOD "Content-Length : 1\r\n\r\n" },
	{ HTTP_ERROR_FIELD_NAME, GOOD "Transfer-Encoding\t: chunked\r\n\r\n" },
	{ HTTP_ERROR_FIELD_NAME, GOOD ": x\r\n\r\n" },
	{ HTTP_ERROR_FIELD_NAME, GOOD "a b: x\r\n\r\n" },
	{ HTTP_ERROR_FIELD_NAME, GOOD "a\xc3\xa9: x\r\n\r\n" },
	{ HTTP_ERROR_FIELD_NAME, GOOD "nocolon\r\n\r\n" },
	{ HTTP_ERROR_FIELD_NAME, GOOD "a(b): x\r\n\r\n" },
	{ HTTP_ERROR_FOLDED, GOOD "a: x\r\n y\r\n\r\n" },
	{ HTTP_ERROR_FOLDED, GOOD "a: x\r\n\ty\r\n\r\n" },
	{ HTTP_ERROR_FOLDED, "GET / HTTP/1.1\r\n Host: a\r\n\r\n" },
	{ HTTP_ERROR_BARE_LINE_END, "GET / HTTP/1.1\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_BARE_LINE_END, "GET / HTTP/1.1\r\nHost: a\n\r\n" },
	{ HTTP_ERROR_BARE_LINE_END, GOOD "a: x\rb: y\r\n\r\n" },
	{ HTTP_ERROR_BARE_LINE_END, GOOD "a: x\r\r\n\r\n" },
	{ HTTP_ERROR_BARE_LINE_END, GOOD "\n" },
	{ HTTP_ERROR_BARE_LINE_END, "\n" GOOD "\r\n" },
	{ HTTP_ERROR_CONTROL_BYTE, GOOD "a: x~y\r\n\r\n" },
	{ HTTP_ERROR_CONTROL_BYTE, GOOD "a~: y\r\n\r\n" },
	{ HTTP_ERROR_CONTROL_BYTE, "GET /~ HTTP/1.1\r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_CONTROL_BYTE, GOOD "a: \x01\r\n\r\n" },
	{ HTTP_ERROR_CONTROL_BYTE, GOOD "a: \x7f\r\n\r\n" },
	{ HTTP_ERROR_VERSION, "GET / HTTP/2.0\r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_VERSION, "GET / HTTP/0.9\r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_VERSION, "GET / HTTP/1.2\r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_SYNTAX, "GET / HTTP/1.10\r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_SYNTAX, "GET / http/1.1\r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_SYNTAX, "GET / ICE/1.0\r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_SYNTAX, "GET /\r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_SYNTAX, "GET  / HTTP/1.1\r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_SYNTAX, "GET /  HTTP/1.1\r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_SYNTAX, "GET / HTTP/1.1 \r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_SYNTAX, "GET / x HTTP/1.1\r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_SYNTAX, " GET / HTTP/1.1\r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_SYNTAX, "G@T / HTTP/1.1\r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_METHOD, "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_METHOD, "TRACE / HTTP/1.1\r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_METHOD, "get / HTTP/1.1\r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_METHOD, "BREW / HTTP/1.1\r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_METHOD, "PRI * HTTP/2.0\r\n\r\n" },
	{ HTTP_ERROR_TARGET, "GET * HTTP/1.1\r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_TARGET, "GET v1 HTTP/1.1\r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_TARGET, "GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_TARGET, "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_TARGET, "GET /\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_TARGET, "GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_TARGET, "GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_TARGET, "GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n" },
	{ HTTP_ERROR_EXPECT, GOOD "Expect: 200-ok\r\n\r\n" },
};

static void every_malformed_head_is_refused_by_name(void **state)
{
	for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
		char text[300];
		size_t len = strlen(refusals[i].text);

		memcpy(text, refusals[i].text, len + 1);
		for (char *at = text; *at; at++)
			*at = *at == '~' ? 0 : *at;
		/* strchr would stop at the first of them. */
		for (size_t k = 0; k < len; k++)
			text[k] = refusals[i].text[k] == '~' ? 0 : refusals[i].text[k];
		int err = parse_n(text, len);

		if (err != -EPROTO || head.error != refusals[i].error)
			fail_msg("%zu \"%s\": %d %s", i, refusals[i].text, err,
				 http_error_info(head.error)->name);
	}
}

static void limits_have_answers_of_their_own(void **state)
{
	char *text = malloc(LIMIT_HEAD_BYTES * 2);
	int n = sprintf(text, "GET /%0*d HTTP/1.1\r\nHost: a\r\n\r\n", LIMIT_TARGET_BYTES, 0);

	assert_int_equal(http_request_parse(&head, text, (size_t)n), -E2BIG);
	assert_int_equal(http_error_info(head.error)->status, 414);
	n = sprintf(text, GOOD "a: %0*d\r\n\r\n", LIMIT_HEAD_FIELD, 0);
	assert_int_equal(http_request_parse(&head, text, (size_t)n), -E2BIG);
	assert_int_equal(head.error, HTTP_ERROR_FIELD_LONG);
	n = sprintf(text, GOOD);
	for (int i = 0; i < LIMIT_HEAD_FIELDS; i++)
		n += sprintf(text + n, "f%d: x\r\n", i);
	n += sprintf(text + n, "\r\n");
	assert_int_equal(http_request_parse(&head, text, (size_t)n), -E2BIG);
	assert_int_equal(head.error, HTTP_ERROR_FIELDS_MANY);
	n = sprintf(text, GOOD "a: %016000d\r\nb: %016000d\r\nc: %01000d\r\n\r\n", 0, 0, 0);
	assert_int_equal(http_request_parse(&head, text, (size_t)n), -E2BIG);
	assert_int_equal(http_error_info(head.error)->status, 431);
	memset(text, 'a', LIMIT_HEAD_BYTES);
	assert_int_equal(http_head_too_long(text, LIMIT_HEAD_BYTES), HTTP_ERROR_TARGET_LONG);
	memcpy(text, GOOD, strlen(GOOD));
	assert_int_equal(http_head_too_long(text, LIMIT_HEAD_BYTES), HTTP_ERROR_HEAD_LONG);
	free(text);
}

static void the_largest_allowed_head_is_read(void **state)
{
	char *text = malloc(LIMIT_HEAD_BYTES);
	int n = sprintf(text, "GET /%0*d HTTP/1.1\r\nHost: a\r\n", LIMIT_TARGET_BYTES - 1, 0);

	for (int i = 1; i < LIMIT_HEAD_FIELDS; i++)
		n += sprintf(text + n, "f%d: x\r\n", i);
	n += sprintf(text + n, "\r\n");
	assert_int_equal(http_request_parse(&head, text, (size_t)n), 0);
	assert_int_equal(head.fields, LIMIT_HEAD_FIELDS);
	free(text);
}

static void the_head_is_found_however_it_arrives(void **state)
{
	static const char text[] = "\r\n" GOOD "a: b\r\n\r\nGET /next";
	size_t end = sizeof(text) - 1 - strlen("GET /next"), seen = 0;

	for (size_t n = 1; n <= end; n++) {
		size_t at = http_head_end(text, n, seen);

		assert_int_equal(at, n == end ? end : 0);
		seen = n;
	}
	assert_int_equal(http_head_end(text, sizeof(text) - 1, 0), end);
	assert_int_equal(http_head_end("\r\n\r\n\r\n", 6, 0), 0);
	assert_int_equal(http_request_parse(&head, text, end), 0);
	assert_int_equal(head.bytes, end);
}

static void connection_decides_what_ends_here(void **state)
{
	static const char text[] = GOOD
		"Connection: close, X-Hop\r\nconnection: Upgrade, host\r\nx-hop: 1\r\n"
		"X-End: 2\r\nUpgrade: h2c\r\nTE: trailers\r\nKeep-Alive: timeout=5, max=9\r\n\r\n";

	assert_int_equal(parse(text), 0);
	assert_false(head.keep_alive);
	assert_true(head.upgrade);
	assert_true(http_head_named(&head, text, "x-hop")->hop);
	assert_false(http_head_named(&head, text, "x-end")->hop);
	assert_false(http_head_named(&head, text, "host")->hop);
	assert_true(http_head_named(&head, text, "te")->hop);
	assert_int_equal(head.keep_alive_timeout_s, 5);
	assert_int_equal(head.keep_alive_max, 9);
	assert_int_equal(parse("GET / HTTP/1.0\r\n\r\n"), 0);
	assert_false(head.keep_alive);
	assert_int_equal(parse("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"), 0);
	assert_true(head.keep_alive);
}

static void targets_come_in_three_forms(void **state)
{
	static const char absolute[] = "GET http://h:1/p?q HTTP/1.1\r\nHost: other\r\n\r\n";

	assert_int_equal(parse(absolute), 0);
	assert_slice(absolute, head.authority, "h:1");
	assert_slice(absolute, head.path, "/p?q");
	assert_int_equal(parse("OPTIONS * HTTP/1.1\r\nHost: [::1]:80\r\n\r\n"), 0);
	assert_int_equal(parse("GET HTTPS://h HTTP/1.1\r\nHost: h\r\n\r\n"), 0);
	assert_int_equal(head.path.len, 0);
}

static const char *forwarded(const char *text, const struct http_forward *how)
{
	static char out[4096];
	size_t len = 0;

	assert_int_equal(http_request_parse(&head, text, strlen(text)), 0);
	assert_int_equal(http_request_write(out, sizeof(out) - 1, &head, text, how, &len), 0);
	out[len] = 0;
	return out;
}

static void a_forwarded_head_keeps_all_that_is_end_to_end(void **state)
{
	struct http_forward how = { .framing = HTTP_LENGTH, .content_length = 12 };

	assert_string_equal(
		forwarded(
			"POST /v1/x?y HTTP/1.1\r\nhOsT: h\r\nX-A:  v  \r\nTransfer-Encoding: "
			"chunked\r\n"
			"Connection: keep-alive, X-B\r\nX-B: gone\r\nExpect: 100-continue\r\nX-A: "
			"w\r\n"
			"Authorization: Bearer k\r\nx-turnward-internal: 1\r\nx-turnward-stream: "
			"1\r\nTE: trailers\r\n\r\n",
			&how),
		"POST /v1/x?y HTTP/1.1\r\nhOsT: h\r\nX-A: v\r\nX-A: w\r\nAuthorization: Bearer "
		"k\r\n"
		"Content-Length: 12\r\n\r\n");
}

static void a_forwarded_head_carries_what_the_router_sets(void **state)
{
	struct http_forward how = { .authorization = "Bearer engine",
				    .request_id = "r9",
				    .client_address = "10.0.0.7",
				    .extra = "x-turnward-internal: piece\r\n" };

	assert_string_equal(forwarded("POST /a HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer "
				      "client\r\nx-api-key: client\r\n"
				      "X-Request-Id: r1\r\nX-Forwarded-For: 1.1.1.1\r\n\r\n",
				      &how),
			    "POST /a HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer "
			    "engine\r\nx-request-id: r9\r\n"
			    "X-Forwarded-For: 1.1.1.1, 10.0.0.7\r\nx-turnward-internal: "
			    "piece\r\nContent-Length: 0\r\n\r\n");
	how = (struct http_forward){ .authorization = "", .path = "/v1/completions" };
	assert_string_equal(
		forwarded("GET /a HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer client\r\n\r\n",
			  &how),
		"GET /v1/completions HTTP/1.1\r\nHost: h\r\n\r\n");
}

static void hops_of_options_are_counted(void **state)
{
	static const struct {
		const char *method, *hops, *left;
		bool last;
	} rows[] = {
		{ "OPTIONS", "9", "8", false },   { "OPTIONS", "1", "0", false },
		{ "OPTIONS", "0", "0", true },    { "OPTIONS", "010", "9", false },
		{ "OPTIONS", "00", "00", true },  { "OPTIONS", "x", "x", false },
		{ "OPTIONS", "-1", "-1", false }, { "OPTIONS", "1 0", "1 0", false },
		{ "GET", "0", "0", false },       { "GET", "9", "9", false },
	};
	struct http_forward how = { 0 };
	char text[200], wanted[200];

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		sprintf(text, "%s /a HTTP/1.1\r\nHost: h\r\nMax-Forwards: %s\r\n\r\n",
			rows[i].method, rows[i].hops);
		sprintf(wanted, "%s /a HTTP/1.1\r\nHost: h\r\nMax-Forwards: %s\r\n\r\n",
			rows[i].method, rows[i].left);
		assert_string_equal(forwarded(text, &how), wanted);
		assert_int_equal(head.last_hop, rows[i].last);
	}
}

static void an_absolute_target_is_forwarded_as_path_and_host(void **state)
{
	struct http_forward how = { 0 };

	assert_string_equal(forwarded("GET http://h:1?q HTTP/1.1\r\nHost: other\r\n\r\n", &how),
			    "GET /?q HTTP/1.1\r\nHost: h:1\r\n\r\n");
	how.framing = HTTP_CHUNKED;
	assert_string_equal(
		forwarded("POST / HTTP/1.0\r\n\r\n", &how),
		"POST / HTTP/1.1\r\nHost: engine\r\nTransfer-Encoding: chunked\r\n\r\n");
}

static void a_head_that_does_not_fit_is_not_cut(void **state)
{
	static const char text[] = GOOD "\r\n";
	struct http_forward how = { 0 };
	char out[100];
	size_t len = 77, whole;

	assert_int_equal(http_request_parse(&head, text, strlen(text)), 0);
	assert_int_equal(http_request_write(out, sizeof(out), &head, text, &how, &whole), 0);
	for (size_t size = 0; size < whole; size++)
		assert_int_equal(http_request_write(out, size, &head, text, &how, &len), -ENOSPC);
	assert_int_equal(len, 77);
	assert_int_equal(http_request_write(out, whole, &head, text, &how, &len), 0);
}

/* What goes out is read back, by the same strict parser, as the same message. */
static void what_is_written_is_valid_and_unambiguous(void **state)
{
	static const char text[] =
		"POST /v1/x HTTP/1.1\r\nHost: h\r\nConnection: content-type, transfer-encoding\r\n"
		"Transfer-Encoding: chunked\r\nContent-Type: text/plain\r\n\r\n";
	struct http_forward how = { .framing = HTTP_LENGTH, .content_length = 3 };
	char out[1000];
	size_t len;

	assert_int_equal(http_request_parse(&head, text, strlen(text)), 0);
	assert_int_equal(http_request_write(out, sizeof(out), &head, text, &how, &len), 0);
	assert_int_equal(http_head_end(out, len, 0), len);
	assert_int_equal(http_request_parse(&head, out, len), 0);
	assert_int_equal(head.framing, HTTP_LENGTH);
	assert_int_equal(head.content_length, 3);
	assert_int_equal(head.fields, 2);
}

static enum http_path classify(const char *target)
{
	struct http_path_rules rules = { .extras = 2, .extra = { "/custom", "/open/*" } };
	struct http_route route;

	http_path_classify(target, strlen(target), &rules, &route);
	return route.path;
}

static void paths_are_known_by_the_table(void **state)
{
	assert_int_equal(classify("/v1/chat/completions"), HTTP_PATH_CHAT);
	assert_int_equal(classify("/v1/chat/completions?a=/../x"), HTTP_PATH_CHAT);
	assert_int_equal(classify("/v1/chat%2Fcompletions"), HTTP_PATH_CHAT);
	assert_int_equal(classify("/v1/ch%61t/completions"), HTTP_PATH_CHAT);
	assert_int_equal(classify("/v1/completions"), HTTP_PATH_COMPLETIONS);
	assert_int_equal(classify("/v1/responses"), HTTP_PATH_RESPONSES);
	assert_int_equal(classify("/v1/messages"), HTTP_PATH_MESSAGES);
	assert_int_equal(classify("/v1/messages/count_tokens"), HTTP_PATH_COUNT_TOKENS);
	assert_int_equal(classify("/v1/embeddings"), HTTP_PATH_EMBEDDINGS);
	assert_int_equal(classify("/v1/models"), HTTP_PATH_MODELS);
	assert_int_equal(classify("/v1/models/Qwen%2FQwen3"), HTTP_PATH_MODEL);
	assert_int_equal(classify("/v1/rerank"), HTTP_PATH_OTHER_V1);
	assert_int_equal(classify("/v1/chat/completions/"), HTTP_PATH_OTHER_V1);
	assert_int_equal(classify("/tokenize"), HTTP_PATH_TOKENIZE);
	assert_int_equal(classify("/v1/tokenize"), HTTP_PATH_TOKENIZE);
	assert_int_equal(classify("/detokenize"), HTTP_PATH_DETOKENIZE);
	assert_int_equal(classify("/generate"), HTTP_PATH_GENERATE);
	assert_int_equal(classify("/inference/v1/generate"), HTTP_PATH_INFERENCE);
	assert_int_equal(classify("/version"), HTTP_PATH_VERSION);
	assert_int_equal(classify("/health"), HTTP_PATH_HEALTH);
	assert_int_equal(classify("/custom"), HTTP_PATH_CONFIGURED);
	assert_int_equal(classify("/open/sesame"), HTTP_PATH_CONFIGURED);
}

static bool asks_anthropic(const char *text)
{
	return http_asks_anthropic(text, strlen(text));
}

static void a_broken_head_still_tells_whose_api_it_asks(void **state)
{
	assert_true(asks_anthropic("POST /v1/messages HTTP/1.1\r\n"));
	assert_true(asks_anthropic("\r\nPOST /v1/messages"));
	assert_true(asks_anthropic("x /v1/messages/count_tokens"));
	assert_true(asks_anthropic("POST /v1/messages?beta=true HTTP/1.1"));
	assert_true(asks_anthropic("POST http://a:80/v1/messages HTTP/1.1"));
	assert_true(asks_anthropic("POST https://a/v1/messages HTTP/1.1"));
	assert_false(asks_anthropic(""));
	assert_false(asks_anthropic("POST"));
	assert_false(asks_anthropic("POST "));
	assert_false(asks_anthropic("POST /v1/message"));
	assert_false(asks_anthropic("POST /v1/messagesx HTTP/1.1"));
	assert_false(asks_anthropic("POST http://a HTTP/1.1"));
	assert_false(asks_anthropic("POST http://"));
	assert_false(asks_anthropic("GET /x HTTP/1.1\r\nReferer: /v1/messages"));
}

static enum http_error hopeless(const char *text)
{
	return http_head_hopeless(text, strlen(text));
}

static void what_is_no_head_is_known_before_its_end(void **state)
{
	assert_int_equal(hopeless(""), HTTP_ERROR_NONE);
	assert_int_equal(hopeless("G"), HTTP_ERROR_NONE);
	assert_int_equal(hopeless("GET /a HTTP/1.1\r"), HTTP_ERROR_NONE);
	assert_int_equal(hopeless("GET /a HTTP/1.1\r\nA: b\r\n"), HTTP_ERROR_NONE);
	assert_int_equal(hopeless("\x16\x03\x01"), HTTP_ERROR_SYNTAX);
	assert_int_equal(hopeless(" GET"), HTTP_ERROR_SYNTAX);
	assert_int_equal(hopeless("\n"), HTTP_ERROR_SYNTAX);
	assert_int_equal(hopeless("GET /a\r\n"), HTTP_ERROR_SYNTAX);
	assert_int_equal(hopeless("PROXY TCP4 1 2 3 4\r\nGET / HTTP/1.1\r\n"), HTTP_ERROR_SYNTAX);
	assert_int_equal(hopeless("GET /a HTTP/1.1\nA: b\r\n"), HTTP_ERROR_BARE_LINE_END);
}

static const char *const closed[] = {
	"/",
	"/metrics",
	"/v1",
	"/v1/",
	"/V1/models",
	"/v1x/models",
	"//v1/models",
	"/v1//metrics",
	"/v1/../metrics",
	"/v1/%2e%2e/metrics",
	"/v1/%2E./metrics",
	"/v1/.%2e/metrics",
	"/v1/./models",
	"/v1/..;/metrics",
	"/v1/..;a=b/metrics",
	"/v1/.;/x",
	"/v1/;x/y",
	"/v1/%2f/metrics",
	"/v1/%252e%252e/metrics",
	"/v1/..%2fmetrics",
	"/v1/..%5cmetrics",
	"/v1\\..\\metrics",
	"/v1/x%00",
	"/v1/%0d%0a",
	"/v1/%",
	"/v1/%2",
	"/v1/%zz",
	"/health/",
	"/Health",
	"/generate/x",
	"/version/",
	"/inference",
	"/inference/",
	"/tokenize/../metrics",
	"/custom/",
	"/customs",
	"/open/",
	"/open/../metrics",
	"/admin",
	"/load",
	"/slots",
	"/props",
	"/server_info",
	"/flush_cache",
	"/sleep",
	"/abort_request",
	"/v1/..",
	"/v1/.",
	"*",
	"",
	"?",
	"v1/models",
};

static void nothing_that_is_not_listed_is_forwarded_however_spelt(void **state)
{
	for (size_t i = 0; i < sizeof(closed) / sizeof(closed[0]); i++)
		if (classify(closed[i]) != HTTP_PATH_FORBIDDEN)
			fail_msg("%s is %s", closed[i], http_path_name(classify(closed[i])));
}

static void opening_all_paths_still_closes_the_tricky_ones(void **state)
{
	struct http_path_rules rules = { .all = true };
	struct http_route route;

	http_path_classify("/metrics", 8, &rules, &route);
	assert_int_equal(route.path, HTTP_PATH_CONFIGURED);
	http_path_classify("/v1/../metrics", 14, &rules, &route);
	assert_int_equal(route.path, HTTP_PATH_FORBIDDEN);
}

static void a_response_is_named_by_its_id(void **state)
{
	static const char target[] = "/v1/responses/resp_1/input_items?limit=2";
	struct http_path_rules rules = { 0 };
	struct http_route route;

	http_path_classify(target, strlen(target), &rules, &route);
	assert_int_equal(route.path, HTTP_PATH_RESPONSE);
	assert_false(route.generates);
	assert_int_equal(route.id_len, 6);
	assert_memory_equal(route.id, "resp_1", 6);
	assert_int_equal(route.sub_len, 11);
	assert_memory_equal(route.sub, "input_items", 11);
	http_path_classify(target, strlen("/v1/responses/resp_1"), &rules, &route);
	assert_int_equal(route.id_len, 6);
	assert_null(route.sub);
	http_path_classify(target, strlen("/v1/responses"), &rules, &route);
	assert_true(route.generates);
	assert_null(route.id);
	/* An encoded prefix cannot be pointed into. */
	http_path_classify("/v1/r%65sponses/resp_1", 22, &rules, &route);
	assert_int_equal(route.path, HTTP_PATH_FORBIDDEN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(a_client_head_is_read),
		CLAIM(what_is_read_once_the_second_reader_would_have_read_the_same),
		CLAIM(every_malformed_head_is_refused_by_name),
		CLAIM(limits_have_answers_of_their_own),
		CLAIM(the_largest_allowed_head_is_read),
		CLAIM(the_head_is_found_however_it_arrives),
		CLAIM(connection_decides_what_ends_here),
		CLAIM(targets_come_in_three_forms),
		CLAIM(a_forwarded_head_keeps_all_that_is_end_to_end),
		CLAIM(a_forwarded_head_carries_what_the_router_sets),
		CLAIM(hops_of_options_are_counted),
		CLAIM(an_absolute_target_is_forwarded_as_path_and_host),
		CLAIM(a_head_that_does_not_fit_is_not_cut),
		CLAIM(what_is_written_is_valid_and_unambiguous),
		CLAIM(a_broken_head_still_tells_whose_api_it_asks),
		CLAIM(what_is_no_head_is_known_before_its_end),
		CLAIM(paths_are_known_by_the_table),
		CLAIM(nothing_that_is_not_listed_is_forwarded_however_spelt),
		CLAIM(opening_all_paths_still_closes_the_tricky_ones),
		CLAIM(a_response_is_named_by_its_id),
	};

	return cmocka_run_group_tests_name("request", tests, NULL, NULL);
}
