/* Bytes on their way out: a growing buffer that the modelled engine writes text into without
 * formats. */
#ifndef TURNWARD_BENCH_ENGINE_OUT_H
#define TURNWARD_BENCH_ENGINE_OUT_H

#include <assert.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct out {
	char *at;
	size_t len, room;
};

static inline void out_free(struct out *o)
{
	free(o->at);
	*o = (struct out){ 0 };
}

/* Room for `more` bytes; a bench without memory cannot go on. */
static inline void out_reserve(struct out *o, size_t more)
{
	size_t room = o->room ? o->room : 1024;

	if (o->room - o->len >= more)
		return;
	while (room - o->len < more)
		room *= 2;
	o->at = realloc(o->at, room);
	assert(o->at);
	o->room = room;
}

static inline void out_mem(struct out *o, const void *bytes, size_t len)
{
	if (len == 0)
		return; /* nothing, perhaps from nowhere */
	out_reserve(o, len);
	memcpy(o->at + o->len, bytes, len);
	o->len += len;
}

static inline void out_str(struct out *o, const char *text)
{
	out_mem(o, text, strlen(text));
}

static inline void out_u64(struct out *o, uint64_t value)
{
	char digits[20];
	size_t n = sizeof(digits);

	do
		digits[--n] = (char)('0' + value % 10);
	while (value /= 10);
	out_mem(o, digits + n, sizeof(digits) - n);
}

static inline void out_hex(struct out *o, uint64_t value)
{
	char digits[16];
	size_t n = sizeof(digits);

	do
		digits[--n] = "0123456789abcdef"[value & 15];
	while (value >>= 4);
	out_mem(o, digits + n, sizeof(digits) - n);
}

__attribute__((format(printf, 2, 3))) static inline void out_fmt(struct out *o, const char *format,
								 ...)
{
	va_list list;

	va_start(list, format);
	int n = vsnprintf(NULL, 0, format, list);
	va_end(list);
	assert(n >= 0);
	out_reserve(o, (size_t)n + 1);
	va_start(list, format);
	vsnprintf(o->at + o->len, (size_t)n + 1, format, list);
	va_end(list);
	o->len += (size_t)n;
}

/* A JSON string with its quotes. */
static inline void out_json(struct out *o, const char *text, size_t len)
{
	out_mem(o, "\"", 1);
	for (size_t i = 0; i < len; i++) {
		uint8_t c = (uint8_t)text[i];

		if (c == '"' || c == '\\')
			out_fmt(o, "\\%c", c);
		else if (c == '\n' || c == '\t')
			out_fmt(o, "\\%c", c == '\n' ? 'n' : 't');
		else if (c < 0x20)
			out_fmt(o, "\\u%04x", c);
		else
			out_mem(o, &text[i], 1);
	}
	out_mem(o, "\"", 1);
}

#endif
