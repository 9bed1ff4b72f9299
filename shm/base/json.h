/*
 * Writes JSON into a caller's buffer, piece by piece, without allocating: status, admin, bench
 * output. Commas, quotes and escapes are its business; nesting is checked by assertion.
 */
#ifndef TURNWARD_SHM_BASE_JSON_H
#define TURNWARD_SHM_BASE_JSON_H

#include <stddef.h>
#include <stdint.h>

enum { JSON_DEPTH_MAX = 16 };

/* Takes bytes when the buffer is full; returns 0 or -errno, after which nothing more is written. */
typedef int json_sink(void *ctx, const char *text, size_t len);

struct json {
	char *buf;
	size_t size, len; /* bytes in the buffer */
	int err;          /* first failure: -ENOSPC without a sink, or the sink's */
	int depth;
	char kind[JSON_DEPTH_MAX]; /* '{' or '[' */
	char used[JSON_DEPTH_MAX]; /* a comma is due before the next */
	json_sink *sink;
	void *ctx;
};

void json_init(struct json *j, char *buf, size_t size);
void json_sink_set(struct json *j, json_sink *sink, void *ctx);

/* `key` is NULL in an array and at the top. */
void json_object_begin(struct json *j, const char *key);
void json_object_end(struct json *j);
void json_array_begin(struct json *j, const char *key);
void json_array_end(struct json *j);

/* Valid UTF-8 passes; control characters are escaped, a broken byte becomes U+FFFD. */
void json_str(struct json *j, const char *key, const char *value); /* NULL becomes null */
void json_mem(struct json *j, const char *key, const char *value, size_t len);
void json_fmt(struct json *j, const char *key, const char *format, ...)
	__attribute__((format(printf, 3, 4))); /* up to 500 bytes */
void json_u64(struct json *j, const char *key, uint64_t value);
void json_i64(struct json *j, const char *key, int64_t value);
void json_f64(struct json *j, const char *key, double value); /* exact; NaN, Inf become null */
void json_num(struct json *j, const char *key, double value, int digits); /* `digits` significant */
void json_bool(struct json *j, const char *key, int value);
void json_null(struct json *j, const char *key);
void json_raw(struct json *j, const char *key, const char *text, size_t len); /* JSON already */

/* Closes the text, flushes to the sink; 0, or the first failure. The buffer is not zero-terminated.
 */
int json_finish(struct json *j);

#endif
