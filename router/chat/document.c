/* A short JSON answer that came whole: only its end is read, where the counts are. */
#include <string.h>

#include "router/chat/watch.h"

enum { SHORT_MAX = 2048 }; /* bytes; in longer ones the way to the end is dearer than reading */

static bool begins(const uint8_t *p, const uint8_t *end, const char *word, size_t len)
{
	return (size_t)(end - p) >= len && memcmp(p, word, len) == 0;
}

#define BEGINS(p, end, word) begins(p, end, word, sizeof(word) - 1)

/*
 * Where the key of the counts stands, NULL if the whole must be read: something in front of it, be
 * it in a string, is what the watch looks for, too (by its plain name: no engine writes escapes).
 */
static const uint8_t *find_counts(const uint8_t *p, const uint8_t *end)
{
	for (const uint8_t *at = p; (at = memchr(at, '"', (size_t)(end - at))); at++) {
		switch (at + 1 < end ? at[1] : 0) {
		case 'u':
			if (BEGINS(at, end, "\"usage\"") && at > p && at[-1] != '\\')
				return at;
			break;
		case 'e':
			if (BEGINS(at, end, "\"error"))
				return NULL;
			break;
		case 'm':
			if (BEGINS(at, end, "\"meta_info\""))
				return NULL;
			break;
		case 'r':
			if (BEGINS(at, end, "\"resp"))
				return NULL;
			break;
		case 't':
			if (BEGINS(at, end, "\"timings\""))
				return NULL;
			break;
		default:
			break;
		}
	}
	return NULL;
}

uint32_t chat_watch_document(struct chat_watch *watch, const void *bytes, size_t len)
{
	const uint8_t *p = bytes, *end = p + len;
	const uint8_t *counts = len <= SHORT_MAX && *p == '{' ? find_counts(p, end) : NULL;
	uint32_t news;

	assert(watch->mode == CHAT_WATCH_JSON && len > 0);
	if (counts) {
		/* Only a key of the document itself leaves one brace to be closed. */
		news = chat_watch_step(watch, "{", 1);
		news |= chat_watch_step(watch, counts, (size_t)(end - counts));
		news |= chat_watch_end(watch);
		if (watch->seen & CHAT_SEEN_DONE)
			return news;
		chat_watch_begin(watch, CHAT_WATCH_JSON);
	}
	news = chat_watch_step(watch, p, len);
	return news | chat_watch_end(watch);
}
