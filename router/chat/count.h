/* Counts the bytes of a JSON string by class and finds its end, 64 bytes at a time. */
#ifndef TURNWARD_ROUTER_CHAT_COUNT_H
#define TURNWARD_ROUTER_CHAT_COUNT_H

#include "router/chat/scan.h"

/*
 * Counts in[0..len) up to the string's closing quote and returns the bytes before it (len: it is
 * not here). The counts do not depend on where a text is cut, nor on the processor.
 */
size_t chat_count(struct chat_classes *classes, struct chat_cut *cut, const uint8_t *in,
		  size_t len);

/* The same by one way of making the masks, for tests: -ENOTSUP where the processor lacks it. */
enum chat_count_way { CHAT_COUNT_PLAIN, CHAT_COUNT_AVX2, CHAT_COUNT_AVX512, CHAT_COUNT_WAYS };
int chat_count_by(enum chat_count_way way, struct chat_classes *classes, struct chat_cut *cut,
		  const uint8_t *in, size_t len, size_t *ret_before);

#endif
