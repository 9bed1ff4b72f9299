/* What a prompt is made of, counted byte class by byte class: what its number of tokens is
 * estimated from, filled by the body's scan. */
#ifndef TURNWARD_ROUTER_CHAT_CLASSES_H
#define TURNWARD_ROUTER_CHAT_CLASSES_H

#include <assert.h>
#include <stdint.h>

/*
 * Content only (strings that become prompt text, after JSON unescaping; tool schemas count as they
 * stand), no payload of images. Cumulative over a prompt, so that the part which is new in a turn
 * is a difference. X(name, meaning)
 */
#define CHAT_CLASSES(X)                                                      \
	X(letters, "bytes A-Z a-z")                                          \
	X(digits, "bytes 0-9")                                               \
	X(punct, "bytes: other printable ASCII, control bytes")              \
	X(spaces, "runs of whitespace (a run is one)")                       \
	X(space_bytes, "bytes of whitespace in these runs")                  \
	X(words, "runs of letters (a run is one)")                           \
	X(high, "bytes >= 0x80 of UTF-8, those written as \\uXXXX included") \
	X(messages, "messages or input items of the prompt")                 \
	X(tools, "tool definitions")                                         \
	X(images, "images, whatever their size")                             \
	X(token_ids, "prompt tokens given as numbers")

struct chat_classes {
#define CHAT_CLASS_MEMBER(name, meaning) uint32_t name;
	CHAT_CLASSES(CHAT_CLASS_MEMBER)
#undef CHAT_CLASS_MEMBER
	uint32_t reserved;
};
static_assert(sizeof(struct chat_classes) == 48, "stored in sections of the region: whole words");

#endif
