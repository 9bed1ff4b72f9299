/*
 * Reads small JSON documents that lie complete in memory: /v1/models, /v1/loads, our own output.
 *
 * No tree and no allocation: values are slices of the text, looked up by path or walked in order.
 * Not recursive; nesting is bounded; junk is refused, never guessed at. Of repeated keys the last
 * counts, as in the engines.
 */
#ifndef TURNWARD_SHM_BASE_JREAD_H
#define TURNWARD_SHM_BASE_JREAD_H

#include <stddef.h>
#include <stdint.h>

enum { JREAD_DEPTH_MAX = 64 };

enum jread_type { JREAD_NULL, JREAD_BOOL, JREAD_NUMBER, JREAD_STRING, JREAD_ARRAY, JREAD_OBJECT };

struct jread {
	enum jread_type type;
	const char *text; /* strings: with their quotes */
	size_t len;
};

/*
 * The whole document, checked to its last byte. -EINVAL: no JSON; -E2BIG: nested beyond
 * JREAD_DEPTH_MAX. Only values that come from here may be given to the functions below.
 */
int jread_open(struct jread *ret_value, const char *text, size_t len);
/* As jread_open(), and on failure the offset of the byte that cannot stand there (len: too short).
 */
int jread_open_at(struct jread *ret_value, const char *text, size_t len, size_t *ret_offset);

/*
 * The value at a path such as "usage.prompt_tokens" or "data[3].id"; "" is the value itself.
 * -ENOENT when there is none, or when a step meets the wrong type.
 */
int jread_get(const struct jread *value, const char *path, struct jread *ret_value);

/* Walks an object or array in order; all zero but `in` at the start. */
struct jread_walk {
	struct jread in;
	size_t at;        /* bytes consumed */
	size_t index;     /* of the entry just returned */
	struct jread key; /* objects: a JREAD_STRING */
	struct jread value;
};

void jread_walk_begin(struct jread_walk *walk, const struct jread *container);
int jread_walk_next(struct jread_walk *walk); /* 1: key (objects) and value are set; 0: the end */

/* Entries of an array or object, 0 for anything else. */
size_t jread_count(const struct jread *container);

/* -EINVAL for another type, a fraction or a sign; beyond 64 bits it saturates with -ERANGE. */
int jread_u64(const struct jread *value, uint64_t *ret);
int jread_f64(const struct jread *value, double *ret); /* -ERANGE when it overflows */
int jread_bool(const struct jread *value, int *ret);

/*
 * Decodes a string to UTF-8, zero-terminated; lone surrogates become U+FFFD, an escaped zero ends
 * nothing (ret_len has the true length, and may be NULL). -ENOSPC when it does not fit.
 */
int jread_str(const struct jread *value, char *ret_text, size_t size, size_t *ret_len);

/* 1 if the string's decoded form is `text`. */
int jread_is(const struct jread *value, const char *text);

/* Shorthands for one number by path: 0, or the error of the step that failed. */
int jread_get_u64(const struct jread *value, const char *path, uint64_t *ret);
int jread_get_f64(const struct jread *value, const char *path, double *ret);
int jread_get_str(const struct jread *value, const char *path, char *ret_text, size_t size);

#endif
