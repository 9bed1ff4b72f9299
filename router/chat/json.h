/*
 * A JSON tokeniser for bytes that arrive in pieces: no recursion, no buffer but the current
 * literal, a bounded depth. It is shared by the scanner of requests and the watcher of answers.
 */
#ifndef TURNWARD_ROUTER_CHAT_JSON_H
#define TURNWARD_ROUTER_CHAT_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { JSON_DEPTH = 64, JSON_LITERAL = 31 };

enum json_event {
	JSON_MORE,   /* the bytes are used up */
	JSON_OBJECT, /* opened; j->depth counts it */
	JSON_ARRAY,
	JSON_CLOSE, /* j->depth no longer counts it */
	JSON_KEY,   /* a string begins; json_span() or json_capture() takes it */
	JSON_STRING,
	JSON_LITERAL_END, /* j->literal holds a number, true, false or null */
	JSON_BAD,         /* not JSON, or too deep; stays so */
};

struct json {
	uint64_t objects; /* bit d - 1: the container at depth d is an object */
	uint8_t depth;
	uint8_t state;
	bool in_string; /* between JSON_KEY or JSON_STRING and the end of that string */
	uint8_t escape; /* bytes still to come of an escape: 1 = the one after '\', 2..5 = hex
			   digits */
	uint16_t hex;   /* digits of \uXXXX so far */
	uint16_t high;  /* first half of a surrogate pair, or 0 */
	uint8_t literal_len;
	char literal[JSON_LITERAL + 1]; /* ended by NUL at JSON_LITERAL_END */
};

/* The place a string's unescaped bytes go; what exceeds `max` is dropped and `over` set. */
struct json_copy {
	char *to;
	uint16_t max, len;
	bool over;
};

void json_begin(struct json *j);

/* The next event of *p..end; never called while j->in_string. Moves *p. */
enum json_event json_next(struct json *j, const uint8_t **p, const uint8_t *end);

/* 0: one whole value has been read; -EAGAIN: not yet; -EPROTO: bad. A literal may need this. */
int json_finish(struct json *j, enum json_event *ret_last);

/* Takes string bytes as they are; true: the string ended (the quote is taken). Moves *p. */
bool json_span(struct json *j, const uint8_t **p, const uint8_t *end);

/* The same, unescaping into `copy`. NUL and other control characters are kept: the caller judges.
 */
bool json_capture(struct json *j, const uint8_t **p, const uint8_t *end, struct json_copy *copy);

/* The literal as a count: fractions cut, negative 0, saturating at UINT64_MAX. */
bool json_count(const struct json *j, uint64_t *ret_count);
bool json_is_true(const struct json *j);
bool json_is_null(const struct json *j);

#endif
