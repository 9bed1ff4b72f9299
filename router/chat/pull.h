/*
 * A JSON tokeniser for bytes that arrive in pieces: no recursion, no buffer but the current
 * literal, a bounded depth. It is shared by the scanner of requests and the watcher of answers.
 */
#ifndef TURNWARD_ROUTER_CHAT_JSON_H
#define TURNWARD_ROUTER_CHAT_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PULL_DEPTH = 64, PULL_LITERAL = 31 };

enum pull_event {
	PULL_MORE,   /* the bytes are used up */
	PULL_OBJECT, /* opened; j->depth counts it */
	PULL_ARRAY,
	PULL_CLOSE, /* j->depth no longer counts it */
	PULL_KEY,   /* a string begins; pull_span() or pull_capture() takes it */
	PULL_STRING,
	PULL_LITERAL_END, /* j->literal holds a number, true, false or null */
	PULL_BAD,         /* not JSON, or too deep; stays so */
};

struct pull {
	uint64_t objects; /* bit d - 1: the container at depth d is an object */
	uint8_t depth;
	uint8_t state;
	bool in_string; /* between PULL_KEY or PULL_STRING and the end of that string */
	uint8_t escape; /* bytes still to come of an escape: 1 = the one after '\', 2..5 = hex
			   digits */
	uint16_t hex;   /* digits of \uXXXX so far */
	uint16_t high;  /* first half of a surrogate pair, or 0 */
	uint8_t literal_len;
	char literal[PULL_LITERAL + 1]; /* ended by NUL at PULL_LITERAL_END */
};

/* The place a string's unescaped bytes go; what exceeds `max` is dropped and `over` set. */
struct pull_copy {
	char *to;
	uint16_t max, len;
	bool over;
};

void pull_begin(struct pull *j);

/* The next event of *p..end; never called while j->in_string. Moves *p. */
enum pull_event pull_next(struct pull *j, const uint8_t **p, const uint8_t *end);

/* 0: one whole value has been read; -EAGAIN: not yet; -EPROTO: bad. A literal may need this. */
int pull_finish(struct pull *j, enum pull_event *ret_last);

/* Takes string bytes as they are; true: the string ended (the quote is taken). Moves *p. */
bool pull_span(struct pull *j, const uint8_t **p, const uint8_t *end);

/* The same, unescaping into `copy`. NUL and other control characters are kept: the caller judges.
 */
bool pull_capture(struct pull *j, const uint8_t **p, const uint8_t *end, struct pull_copy *copy);

/* The literal as a count: fractions cut, negative 0, saturating at UINT64_MAX. */
bool pull_count(const struct pull *j, uint64_t *ret_count);
bool pull_is_true(const struct pull *j);
bool pull_is_null(const struct pull *j);

#endif
