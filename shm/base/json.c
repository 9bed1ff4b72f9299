/* JSON out, piece by piece, so that no answer of ours is glued together by hand. */
#include "shm/base/json.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void json_init(struct json *j, char *buf, size_t size)
{
	*j = (struct json){ .buf = buf, .size = size };
}

void json_sink_set(struct json *j, json_sink *sink, void *ctx)
{
	assert(j->size > 0);
	j->sink = sink;
	j->ctx = ctx;
}

static void drain(struct json *j)
{
	if (!j->err && j->sink && j->len)
		j->err = j->sink(j->ctx, j->buf, j->len);
	if (j->sink)
		j->len = 0;
}

static void put(struct json *j, const char *text, size_t len)
{
	while (len && !j->err) {
		size_t room = j->size - j->len;
		size_t n = len < room ? len : room;

		if (!room && !j->sink) {
			j->err = -ENOSPC;
			return;
		}
		memcpy(j->buf + j->len, text, n);
		j->len += n;
		text += n;
		len -= n;
		if (len && j->sink)
			drain(j);
	}
}

/* Length of the valid UTF-8 sequence at text, 0 if it is broken (overlong, surrogate, cut). */
static size_t utf8_len(const unsigned char *text, size_t len)
{
	unsigned char c = text[0];
	size_t n = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;

	if (!n || n > len)
		return 0;
	for (size_t i = 1; i < n; i++)
		if ((text[i] & 0xc0) != 0x80)
			return 0;
	if ((c == 0xe0 && text[1] < 0xa0) || (c == 0xed && text[1] > 0x9f) ||
	    (c == 0xf0 && text[1] < 0x90) || (c == 0xf4 && text[1] > 0x8f))
		return 0;
	return n;
}

static void put_escape(struct json *j, unsigned char c)
{
	static const char letters[] = "\bb\ff\nn\rr\tt\"\"\\\\";
	char out[8];

	for (const char *l = letters; *l; l += 2)
		if ((unsigned char)*l == c) {
			out[0] = '\\';
			out[1] = l[1];
			put(j, out, 2);
			return;
		}
	put(j, out, (size_t)snprintf(out, sizeof(out), "\\u%04x", c));
}

static void put_quoted(struct json *j, const char *text, size_t len)
{
	const unsigned char *at = (const unsigned char *)text, *end = at + len, *from = at;

	put(j, "\"", 1);
	while (at < end) {
		size_t n = utf8_len(at, (size_t)(end - at));
		int plain = n > 1 ||
			    (n == 1 && *at >= 0x20 && *at != '"' && *at != '\\' && *at != 0x7f);

		if (plain) {
			at += n;
			continue;
		}
		put(j, (const char *)from, (size_t)(at - from));
		if (n)
			put_escape(j, *at);
		else
			put(j, "\xEF\xBF\xBD", 3);
		from = ++at;
	}
	put(j, (const char *)from, (size_t)(end - from));
	put(j, "\"", 1);
}

/* The comma and the key before a value. */
static void begin_value(struct json *j, const char *key)
{
	char kind = j->depth ? j->kind[j->depth - 1] : '\0';

	assert((kind == '{') == (key != NULL));
	if (j->depth) {
		if (j->used[j->depth - 1])
			put(j, ",", 1);
		j->used[j->depth - 1] = 1;
	}
	if (key) {
		put_quoted(j, key, strlen(key));
		put(j, ":", 1);
	}
}

static void begin(struct json *j, const char *key, char kind)
{
	begin_value(j, key);
	assert(j->depth < JSON_DEPTH_MAX);
	put(j, &kind, 1);
	j->kind[j->depth] = kind;
	j->used[j->depth++] = 0;
}

static void end(struct json *j, char kind)
{
	assert(j->depth > 0 && j->kind[j->depth - 1] == kind);
	j->depth--;
	put(j, kind == '{' ? "}" : "]", 1);
}

void json_object_begin(struct json *j, const char *key)
{
	begin(j, key, '{');
}

void json_object_end(struct json *j)
{
	end(j, '{');
}

void json_array_begin(struct json *j, const char *key)
{
	begin(j, key, '[');
}

void json_array_end(struct json *j)
{
	end(j, '[');
}

void json_raw(struct json *j, const char *key, const char *text, size_t len)
{
	begin_value(j, key);
	put(j, text, len);
}

void json_mem(struct json *j, const char *key, const char *value, size_t len)
{
	begin_value(j, key);
	put_quoted(j, value, len);
}

void json_str(struct json *j, const char *key, const char *value)
{
	if (value)
		json_mem(j, key, value, strlen(value));
	else
		json_null(j, key);
}

void json_fmt(struct json *j, const char *key, const char *format, ...)
{
	char text[501];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	json_str(j, key, text);
}

void json_u64(struct json *j, const char *key, uint64_t value)
{
	char text[24];

	json_raw(j, key, text, (size_t)snprintf(text, sizeof(text), "%lu", value));
}

void json_i64(struct json *j, const char *key, int64_t value)
{
	char text[24];

	json_raw(j, key, text, (size_t)snprintf(text, sizeof(text), "%ld", value));
}

void json_num(struct json *j, const char *key, double value, int digits)
{
	char text[40];

	if (!isfinite(value)) {
		json_null(j, key);
		return;
	}
	json_raw(j, key, text, (size_t)snprintf(text, sizeof(text), "%.*g", digits, value));
}

void json_f64(struct json *j, const char *key, double value)
{
	char text[40];
	int digits = 6;

	/* The shortest form that reads back as the same double. */
	for (; digits < 17; digits++) {
		snprintf(text, sizeof(text), "%.*g", digits, value);
		if (strtod(text, NULL) == value)
			break;
	}
	json_num(j, key, value, digits);
}

void json_bool(struct json *j, const char *key, int value)
{
	json_raw(j, key, value ? "true" : "false", value ? 4 : 5);
}

void json_null(struct json *j, const char *key)
{
	json_raw(j, key, "null", 4);
}

int json_finish(struct json *j)
{
	assert(j->err || j->depth == 0);
	drain(j);
	return j->err;
}
