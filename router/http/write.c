/*
 * Writes heads: what was received, byte for byte, less what ends at this hop, plus our own framing.
 * A line that cannot be written whole fails the head: nothing is ever cut.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "router/http/http.h"

enum { MESSAGE_MAX = 1024 };

struct sink {
	char *out;
	size_t size, len;
	bool full;
};

static void put(struct sink *sink, const char *bytes, size_t len)
{
	if (sink->full || sink->size - sink->len < len) {
		sink->full = true;
		return;
	}
	memcpy(sink->out + sink->len, bytes, len);
	sink->len += len;
}

static void put_text(struct sink *sink, const char *text)
{
	put(sink, text, strlen(text));
}

static void put_slice(struct sink *sink, const char *buf, struct http_slice slice)
{
	put(sink, buf + slice.at, slice.len);
}

static void put_count(struct sink *sink, uint64_t count)
{
	char digits[20];
	size_t at = sizeof(digits);

	do
		digits[--at] = (char)('0' + count % 10);
	while (count /= 10);
	put(sink, digits + at, sizeof(digits) - at);
}

/* A value of ours may hold no line end, or it would be two fields. */
static void put_line(struct sink *sink, const char *name, const char *value)
{
	size_t len = strlen(value);

	assert(!memchr(value, '\r', len) && !memchr(value, '\n', len));
	put_text(sink, name);
	put_text(sink, ": ");
	put(sink, value, len);
	put_text(sink, "\r\n");
}

static void put_length(struct sink *sink, uint64_t length)
{
	put_text(sink, "Content-Length: ");
	put_count(sink, length);
	put_text(sink, "\r\n");
}

static void put_field(struct sink *sink, const char *buf, const struct http_field *field)
{
	put_slice(sink, buf, field->name);
	put_text(sink, ": ");
	put_slice(sink, buf, field->value);
	put_text(sink, "\r\n");
}

/* Lines on end that go on as they came: copied together. */
struct run {
	size_t from, to;
};

static void put_run(struct sink *sink, const char *buf, struct run *run)
{
	put(sink, buf + run->from, run->to - run->from);
	*run = (struct run){ 0 };
}

/* Whether the line stands in the buffer as put_field() would write it. */
static bool as_written(const char *buf, const struct http_field *field)
{
	size_t colon = (size_t)field->name.at + field->name.len, value = field->value.at;

	return value == colon + 2 && buf[colon + 1] == ' ' && buf[value + field->value.len] == '\r';
}

static void keep_field(struct sink *sink, const char *buf, const struct http_field *field,
		       struct run *run)
{
	bool joins = as_written(buf, field);

	if (!joins || run->to != field->name.at)
		put_run(sink, buf, run);
	if (!joins) {
		put_field(sink, buf, field);
		return;
	}
	if (run->to == 0)
		run->from = field->name.at;
	run->to = (size_t)field->value.at + field->value.len + 2;
}

static int finish(const struct sink *sink, size_t *ret_len)
{
	if (sink->full)
		return -ENOSPC;
	*ret_len = sink->len;
	return 0;
}

static void put_request_line(struct sink *sink, const struct http_head *head, const char *buf,
			     const char *path)
{
	put_slice(sink, buf, head->method_text);
	put_text(sink, " ");
	if (path) {
		put_text(sink, path);
	} else {
		/* "http://host" and "http://host?query" have no slash of their own. */
		if (head->authority.len && (!head->path.len || buf[head->path.at] != '/'))
			put_text(sink, "/");
		put_slice(sink, buf, head->path);
	}
	put_text(sink, " HTTP/1.1\r\n");
}

static bool request_field_passes(const struct http_field *field, const struct http_head *head,
				 const struct http_forward *how)
{
	if (field->hop)
		return false;
	switch (field->id) {
	case HTTP_FIELD_AUTHORIZATION:
	case HTTP_FIELD_API_KEY: /* the same key, as Anthropic's clients send it */
		return !how->authorization;
	case HTTP_FIELD_REQUEST_ID:
		return !how->request_id;
	case HTTP_FIELD_X_FORWARDED_FOR:
		return !how->client_address;
	case HTTP_FIELD_HOST:
		return !head->authority.len;
	default:
		return true;
	}
}

/* All the addresses that were there, in order, and the one we saw. */
static void put_forwarded_for(struct sink *sink, const struct http_head *head, const char *buf,
			      const char *address)
{
	put_text(sink, "X-Forwarded-For: ");
	for (unsigned i = 0; i < head->fields; i++) {
		const struct http_field *field = &head->field[i];

		if (field->id != HTTP_FIELD_X_FORWARDED_FOR || field->hop || !field->value.len)
			continue;
		put_slice(sink, buf, field->value);
		put_text(sink, ", ");
	}
	put_text(sink, address);
	put_text(sink, "\r\n");
}

/* Max-Forwards of OPTIONS counts the hops that are left (RFC 9110, 7.6.2); what is none stays. */
static bool put_hops_left(struct sink *sink, const char *buf, struct http_slice value)
{
	uint64_t hops = 0;

	for (unsigned i = 0; i < value.len; i++) {
		unsigned digit = (unsigned char)buf[value.at + i] - '0';

		if (digit > 9 || hops > UINT32_MAX)
			return false;
		hops = hops * 10 + digit;
	}
	if (hops == 0)
		return false;
	put_text(sink, "Max-Forwards: ");
	put_count(sink, hops - 1);
	put_text(sink, "\r\n");
	return true;
}

static void put_request_fields(struct sink *sink, const struct http_head *head, const char *buf,
			       const struct http_forward *how)
{
	struct run run = { 0 };

	for (unsigned i = 0; i < head->fields; i++) {
		const struct http_field *field = &head->field[i];

		if (!request_field_passes(field, head, how))
			continue;
		if (field->id == HTTP_FIELD_MAX_FORWARDS && head->method == HTTP_METHOD_OPTIONS) {
			put_run(sink, buf, &run);
			if (put_hops_left(sink, buf, field->value))
				continue;
		}
		keep_field(sink, buf, field, &run);
	}
	put_run(sink, buf, &run);
}

static bool wants_length(enum http_method method)
{
	return method == HTTP_METHOD_POST || method == HTTP_METHOD_PUT ||
	       method == HTTP_METHOD_PATCH;
}

int http_request_write(char *out, size_t size, const struct http_head *head, const char *buf,
		       const struct http_forward *how, size_t *ret_len)
{
	struct sink sink = { .out = out, .size = size };

	assert(how->framing != HTTP_TO_CLOSE);
	put_request_line(&sink, head, buf, how->path);
	if (head->authority.len) {
		put_text(&sink, "Host: ");
		put_slice(&sink, buf, head->authority);
		put_text(&sink, "\r\n");
	} else if (!http_head_field(head, HTTP_FIELD_HOST)) {
		put_text(&sink, "Host: engine\r\n"); /* a HTTP/1.0 client named none */
	}
	put_request_fields(&sink, head, buf, how);
	if (how->authorization && *how->authorization)
		put_line(&sink, "Authorization", how->authorization);
	if (how->request_id)
		put_line(&sink, "x-request-id", how->request_id);
	if (how->client_address)
		put_forwarded_for(&sink, head, buf, how->client_address);
	if (how->extra)
		put_text(&sink, how->extra);
	if (how->framing == HTTP_CHUNKED)
		put_text(&sink, "Transfer-Encoding: chunked\r\n");
	else if (how->framing == HTTP_LENGTH || wants_length(head->method))
		put_length(&sink, how->framing == HTTP_LENGTH ? how->content_length : 0);
	put_text(&sink, "\r\n");
	return finish(&sink, ret_len);
}

static void put_status_line(struct sink *sink, int status, const char *reason, size_t len)
{
	put_text(sink, "HTTP/1.1 ");
	put_count(sink, (uint64_t)status);
	put_text(sink, " ");
	put(sink, reason, len);
	put_text(sink, "\r\n");
}

/* The length of a body that is not sent still says something with HEAD and 304. */
static void put_answer_framing(struct sink *sink, const struct http_head *head,
			       const struct http_answer *how)
{
	switch (how->framing) {
	case HTTP_CHUNKED:
		put_text(sink, "Transfer-Encoding: chunked\r\n");
		break;
	case HTTP_LENGTH:
		put_length(sink, how->content_length);
		break;
	case HTTP_NO_BODY:
		if (head->has_content_length && head->status >= 200 && head->status != 204)
			put_length(sink, head->content_length);
		break;
	case HTTP_TO_CLOSE:
		break;
	}
	if (how->close || how->framing == HTTP_TO_CLOSE)
		put_text(sink, "Connection: close\r\n");
	else if (how->keep_alive_1_0)
		put_text(sink, "Connection: keep-alive\r\n");
}

int http_response_write(char *out, size_t size, const struct http_head *head, const char *buf,
			const struct http_answer *how, size_t *ret_len)
{
	struct sink sink = { .out = out, .size = size };
	struct run run = { 0 };

	put_status_line(&sink, head->status, buf + head->reason.at, head->reason.len);
	for (unsigned i = 0; i < head->fields; i++) {
		const struct http_field *field = &head->field[i];

		if (field->hop || (field->id == HTTP_FIELD_REQUEST_ID && how->request_id))
			continue;
		keep_field(&sink, buf, field, &run);
	}
	put_run(&sink, buf, &run);
	if (how->request_id)
		put_line(&sink, "x-request-id", how->request_id);
	if (how->date && !http_head_field(head, HTTP_FIELD_DATE))
		put_line(&sink, "Date", how->date);
	/* A buffering proxy in front of us would hold tokens back. */
	if (head->sse && !http_head_field(head, HTTP_FIELD_ACCEL_BUFFERING))
		put_text(&sink, "X-Accel-Buffering: no\r\n");
	if (how->extra)
		put_text(&sink, how->extra);
	put_answer_framing(&sink, head, how);
	put_text(&sink, "\r\n");
	return finish(&sink, ret_len);
}

static void put_json_text(struct sink *sink, const char *text)
{
	put_text(sink, "\"");
	for (size_t i = 0; text[i] && i < MESSAGE_MAX; i++) {
		unsigned char c = (unsigned char)text[i];

		if (c == '"' || c == '\\') {
			put(sink, "\\", 1);
			put(sink, text + i, 1);
		} else if (c < 0x20 || c >= 0x7f) {
			char escape[7];

			snprintf(escape, sizeof(escape), "\\u%04x", c);
			put(sink, escape, 6);
		} else {
			put(sink, text + i, 1);
		}
	}
	put_text(sink, "\"");
}

static void put_anthropic_error(struct sink *sink, const struct http_failure *failure)
{
	put_text(sink, "{\"type\":\"error\",\"error\":{\"type\":");
	put_json_text(sink, http_anthropic_type(failure->status));
	put_text(sink, ",\"message\":");
	put_json_text(sink, failure->message);
	put_text(sink, "}");
	if (failure->request_id) {
		put_text(sink, ",\"request_id\":");
		put_json_text(sink, failure->request_id);
	}
	put_text(sink, "}");
}

static void put_error_body(struct sink *sink, const struct http_failure *failure)
{
	if (failure->form == HTTP_FORM_ANTHROPIC) {
		put_anthropic_error(sink, failure);
		return;
	}
	put_text(sink, "{\"error\":{\"message\":");
	put_json_text(sink, failure->message);
	put_text(sink, ",\"type\":");
	put_json_text(sink, failure->type ? failure->type : http_error_type(failure->status));
	put_text(sink, ",\"param\":null,\"code\":");
	if (failure->code)
		put_json_text(sink, failure->code);
	else
		put_text(sink, "null");
	put_text(sink, "}}");
}

int http_error_write(char *out, size_t size, const struct http_failure *failure, size_t *ret_len)
{
	struct sink sink = { .out = out, .size = size };
	char text[7 * MESSAGE_MAX];
	struct sink body = { .out = text, .size = sizeof(text) };
	const char *reason = http_status_text(failure->status);

	assert(failure->message);
	put_error_body(&body, failure);
	put_status_line(&sink, failure->status, reason, strlen(reason));
	put_line(&sink, "Content-Type", "application/json");
	put_length(&sink, body.len);
	if (failure->request_id)
		put_line(&sink, "x-request-id", failure->request_id);
	if (failure->date)
		put_line(&sink, "Date", failure->date);
	if (failure->retry_after_s) {
		put_text(&sink, "Retry-After: ");
		put_count(&sink, failure->retry_after_s);
		put_text(&sink, "\r\n");
	}
	if (failure->extra)
		put_text(&sink, failure->extra);
	if (failure->close)
		put_text(&sink, "Connection: close\r\n");
	put_text(&sink, "\r\n");
	if (!failure->head_only)
		put(&sink, body.out, body.len);
	return body.full ? -ENOSPC : finish(&sink, ret_len);
}

const char *http_error_type(int status)
{
	switch (status) {
	case 401:
	case 403:
		return "authentication_error";
	case 429:
		return "rate_limit_error";
	default:
		return status >= 500 ? "server_error" : "invalid_request_error";
	}
}

const char *http_anthropic_type(int status)
{
	switch (status) {
	case 401:
		return "authentication_error";
	case 403:
		return "permission_error";
	case 404:
		return "not_found_error";
	case 413:
		return "request_too_large";
	case 429:
		return "rate_limit_error";
	case 503:
		return "overloaded_error";
	case 504:
		return "timeout_error";
	default:
		return status >= 500 ? "api_error" : "invalid_request_error";
	}
}

const char *http_status_text(int status)
{
	static const struct {
		int status;
		const char *text;
	} texts[] = {
		{ 200, "OK" },
		{ 400, "Bad Request" },
		{ 401, "Unauthorized" },
		{ 403, "Forbidden" },
		{ 404, "Not Found" },
		{ 405, "Method Not Allowed" },
		{ 408, "Request Timeout" },
		{ 409, "Conflict" },
		{ 411, "Length Required" },
		{ 413, "Content Too Large" },
		{ 414, "URI Too Long" },
		{ 417, "Expectation Failed" },
		{ 429, "Too Many Requests" },
		{ 431, "Request Header Fields Too Large" },
		{ 499, "Client Closed Request" },
		{ 500, "Internal Server Error" },
		{ 501, "Not Implemented" },
		{ 502, "Bad Gateway" },
		{ 503, "Service Unavailable" },
		{ 504, "Gateway Timeout" },
		{ 505, "HTTP Version Not Supported" },
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (texts[i].status == status)
			return texts[i].text;
	return "Error";
}
