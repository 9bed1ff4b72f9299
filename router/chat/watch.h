/*
 * Watches an engine's answer go by and notes what the router's books need: first token, end, error,
 * usage, response id. State of a connection: small, no buffer of events, any segmentation.
 */
#ifndef TURNWARD_ROUTER_CHAT_WATCH_H
#define TURNWARD_ROUTER_CHAT_WATCH_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "router/chat/pull.h"

enum chat_watch_mode {
	CHAT_WATCH_SSE,  /* text/event-stream */
	CHAT_WATCH_JSON, /* one document */
};

/* What a step brought (each time it comes), and in `seen` all of it so far. */
enum chat_seen {
	CHAT_SEEN_EVENT = 1, /* a data event ended; comments and [DONE] are none */
	CHAT_SEEN_TOKEN = 2, /* content, reasoning, tool call or text; only in streams */
	CHAT_SEEN_DONE = 4,  /* [DONE], response.completed/incomplete/failed, message_stop */
	CHAT_SEEN_ERROR = 8,
	CHAT_SEEN_USAGE = 16,  /* a count of prompt or completion tokens */
	CHAT_SEEN_CACHED = 32, /* the engine reports cached tokens */
	CHAT_SEEN_RESPONSE_ID = 64,
	CHAT_SEEN_OVERLOAD = 128, /* the error says 429, 503 or overloaded: not processed */
};

enum {
	CHAT_WATCH_ID = 96,
	CHAT_WATCH_FIELD = 8,
	CHAT_WATCH_TEXT = 32,  /* longer than any word that is looked for */
	CHAT_WATCH_DEPTH = 10, /* nothing that matters is nested deeper */
};

/* The counts in their dialects, as far as they were named; later ones replace earlier ones. */
#define CHAT_COUNTS(X)                                                  \
	X(PROMPT) /* cached tokens included */                          \
	X(COMPLETION)                                                   \
	X(INPUT) /* Anthropic: without the two below; Responses: all */ \
	X(CACHE_READ)                                                   \
	X(CACHE_CREATION)                                               \
	X(CACHED)                                                       \
	X(TIMED_CACHED) /* llama.cpp's timings */                       \
	X(TIMED_PROMPT)                                                 \
	X(TIMED_COMPLETION)

enum chat_count {
#define X(name) CHAT_COUNT_##name,
	CHAT_COUNTS(X)
#undef X
		CHAT_COUNT_NR
};

struct chat_watch {
	/* The last event that brought a token and nothing else: what stood around its text. */
	uint64_t like_head_hash, like_tail_hash;
	uint16_t like_head, like_tail; /* bytes; like_tail 0 = there was none */
	uint16_t given;                /* bit per enum chat_count */
	uint16_t response_id_len;
	uint32_t seen, news; /* enum chat_seen */
	uint32_t events;
	uint8_t mode;
	uint8_t line; /* where in a line of the stream */
	uint8_t field_len;
	bool inside; /* an event (or a comment) has begun and not ended */
	bool data;   /* the event has a data line */
	bool broken; /* ... that is not JSON, or no longer */
	bool ends;   /* ... that ends the stream */
	bool after_cr;
	uint8_t done_match; /* bytes of [DONE] that the data are so far; beyond: they are not */
	uint8_t key;        /* of the value being read */
	uint8_t sink;       /* what the current string is for */
	uint8_t where[CHAT_WATCH_DEPTH + 1]; /* what each open container is; deeper: nothing */
	char field[CHAT_WATCH_FIELD];
	struct pull json;
	struct pull_copy copy;
	int32_t error_code;                  /* as the engine gave it, when a number; else 0 */
	int32_t root_code;                   /* SGLang writes it beside the message */
	uint32_t count[CHAT_COUNT_NR];       /* saturating */
	char text[CHAT_WATCH_TEXT];          /* event names, keys and captured values */
	char response_id[CHAT_WATCH_ID + 1]; /* or what may become it, while its length is 0 */
};
static_assert(sizeof(struct chat_watch) <= 320, "one lives in every connection");

struct chat_usage {
	uint64_t prompt_tokens; /* cached ones included, whatever the dialect */
	uint64_t completion_tokens;
	uint64_t cached_tokens; /* valid with CHAT_SEEN_CACHED */
};

void chat_watch_begin(struct chat_watch *watch, enum chat_watch_mode mode);

/* Takes the next bytes of the decoded body. Returns what this step brought (enum chat_seen). */
uint32_t chat_watch_step(struct chat_watch *watch, const void *bytes, size_t len);

/* The body has ended: what a last event without its blank line or a document still held. */
uint32_t chat_watch_end(struct chat_watch *watch);

/*
 * A whole document after chat_watch_begin(): brings what chat_watch_step() and chat_watch_end()
 * would, with less reading; what stands in front of the counts of a short one need not be JSON.
 */
uint32_t chat_watch_document(struct chat_watch *watch, const void *bytes, size_t len);

/* A stream is between two events: a comment put in here breaks none of them. */
bool chat_watch_between(const struct chat_watch *watch);

/* The counts in one form; false while the answer has not named them. */
bool chat_watch_usage(const struct chat_watch *watch, struct chat_usage *ret_usage);

#endif
