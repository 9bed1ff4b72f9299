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

#include "router/chat/json.h"

enum chat_watch_mode {
	CHAT_WATCH_SSE,  /* text/event-stream */
	CHAT_WATCH_JSON, /* one document */
};

/* News of a step, and all of them so far in `seen`. */
enum chat_seen {
	CHAT_SEEN_EVENT = 1, /* a data event, whatever it holds; comments and [DONE] are none */
	CHAT_SEEN_TOKEN = 2, /* content, reasoning, tool call or text: the first token is out */
	CHAT_SEEN_DONE = 4,  /* [DONE], response.completed/incomplete/failed, message_stop */
	CHAT_SEEN_ERROR = 8,
	CHAT_SEEN_USAGE = 16,  /* prompt and completion counts */
	CHAT_SEEN_CACHED = 32, /* the engine reports cached tokens */
	CHAT_SEEN_RESPONSE_ID = 64,
	CHAT_SEEN_OVERLOAD = 128, /* the error says 429, 503 or overloaded: not processed */
};

enum { CHAT_WATCH_PATH = 6, CHAT_WATCH_ID = 96, CHAT_WATCH_NAME = 40 };

struct chat_watch {
	uint32_t seen; /* enum chat_seen */
	uint32_t events;
	int32_t error_code;     /* as the engine gave it, when a number; else 0 */
	uint64_t prompt_tokens; /* chat_watch_usage() joins the spellings */
	uint64_t completion_tokens;
	uint64_t input_tokens, cache_read, cache_creation, cached_tokens;
	uint32_t given; /* which of the numbers were there */
	uint16_t response_id_len;
	uint8_t mode;
	uint8_t line; /* where in a line of the stream */
	uint8_t field_len;
	bool data;    /* the event has a data line */
	bool is_json; /* ... that is being read as JSON */
	bool last_cr;
	uint8_t done_match; /* bytes of "[DONE]" that the data matched */
	uint8_t key;        /* of the value being read */
	uint8_t sink;
	uint8_t path[CHAT_WATCH_PATH]; /* keys that lead to the open containers */
	struct json json;
	struct json_copy copy;
	char response_id[CHAT_WATCH_ID + 1];
	char text[CHAT_WATCH_NAME + CHAT_WATCH_ID]; /* field names, keys and captured values */
};
static_assert(sizeof(struct chat_watch) <= 768, "one lives in every connection");

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

/* The counts in one form; false while the answer has not named them. */
bool chat_watch_usage(const struct chat_watch *watch, struct chat_usage *ret_usage);

#endif
