/* What a prompt's text is made of, byte class by byte class: filled by the body's scan, and what
 * its number of tokens is estimated from. */
#ifndef TURNWARD_ROUTER_CHAT_CLASSES_H
#define TURNWARD_ROUTER_CHAT_CLASSES_H

#include <assert.h>
#include <stdint.h>

/*
 * Bytes of model text by kind, after unescaping. Cumulative over a prompt, so that what is new in a
 * turn is a difference. X(name, meaning)
 */
#define CHAT_CLASSES(X)                                                               \
	X(letters, "bytes A-Z a-z")                                                   \
	X(digits, "bytes 0-9")                                                        \
	X(punct, "other printable ASCII, and JSON structure where it is prompt text") \
	X(space_runs, "runs of space, tab, line ends")                                \
	X(high, "bytes >= 0x80")                                                      \
	X(escapes, "\\uXXXX, each one UTF-16 unit")

struct chat_classes {
#define CHAT_CLASS_MEMBER(name, meaning) uint64_t name;
	CHAT_CLASSES(CHAT_CLASS_MEMBER)
#undef CHAT_CLASS_MEMBER
};
static_assert(sizeof(struct chat_classes) == 48, "stored in sections of the region: whole words");

#endif
