/*
 * What the router must know of a request body to place it, read while the body arrives: model,
 * stream, lengths, session, turn, and the hashed content blocks of its prompt.
 *
 * One linear pass, no DOM, no recursion, no allocation; slices may be cut anywhere and the result
 * is the same. It reads and never judges: what it cannot read it says (`unreadable`), and the
 * request is placed by load alone and forwarded unchanged.
 */
#ifndef TURNWARD_ROUTER_CHAT_SCAN_H
#define TURNWARD_ROUTER_CHAT_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "router/chat/classes.h"
#include "router/chat/pull.h"
#include "router/limits.h"

/* Where a session id was found, weakest first. */
#define CHAT_SESSIONS(X)                                                \
	X(NONE, "none")                                                 \
	X(USER, "user") /* a person rather than a session */            \
	X(CONVERSATION_ID, "conversation_id")                           \
	X(CONVERSATION, "conversation") /* string, or object with id */ \
	X(PROMPT_CACHE_KEY, "prompt_cache_key")                         \
	X(SESSION_ID, "session_id")                                     \
	X(METADATA, "metadata.user_id") /* the session inside Claude Code's user id */

enum chat_session_source {
#define X(name, text) CHAT_SESSION_##name,
	CHAT_SESSIONS(X)
#undef X
		CHAT_SESSION_NR
};

enum { CHAT_RESPONSE_ID = 128 };

/* What has been read so far; valid after every step. */
struct chat_request {
	bool complete;   /* the whole body was one JSON object */
	bool unreadable; /* not JSON, or deeper than 64: what is here was read before */
	bool stream;
	bool include_usage;  /* stream_options.include_usage */
	bool stream_options; /* the key is there: a second one must not be inserted */
	bool model_long;     /* the model's name did not fit: no table can match it */
	bool blocks_full;    /* content beyond the block memory is not indexed */
	bool prompt_is_ids;  /* (part of) the prompt came as token ids */
	uint32_t n;          /* decodes: the larger of n and best_of, 1 when absent */
	uint64_t max_tokens; /* in any of its spellings; 0: not said */
	uint32_t messages;   /* of the messages or input items */
	uint32_t assistant_messages;
	uint32_t turn;    /* assistant messages + 1 */
	uint32_t prompts; /* sequences of a prompt array; 0: messages */
	uint32_t tools;
	uint32_t images;        /* images, audio, files: their bytes are in no count */
	uint64_t token_ids;     /* of id prompts, summed */
	uint64_t body_bytes;    /* scanned so far */
	uint64_t content_bytes; /* of the hashed stream; LIMIT_CONTENT_BLOCK_BYTES make a full block
				 */
	struct chat_classes classes;
	uint64_t identity; /* of system prompt + first user message: tells sub-agents apart; 0: none
			    */
	int64_t brace;     /* offset of the opening brace, for insertions; -1 */
	uint16_t model_len;
	uint16_t previous_response_id_len;
	uint16_t session_len;
	uint8_t session_source; /* enum chat_session_source */
	char model[LIMIT_MODEL_NAME + 1];
	char previous_response_id[CHAT_RESPONSE_ID + 1];
	char session[LIMIT_SESSION_ID + 1];
};

/* Template order; every part has a block grid of its own, so that the body's key order is free. */
enum chat_part { CHAT_TOOLS, CHAT_SYSTEM, CHAT_MESSAGES, CHAT_PARTS };

struct chat_stream {
	uint32_t first, blocks; /* full blocks, in chat_scan.blocks */
	uint64_t bytes;
	uint64_t fold; /* of the full blocks' hashes */
	uint32_t fill; /* bytes in `block` */
	uint32_t items;
	uint32_t images;
	uint64_t token_ids;
	struct chat_classes classes;
};

/* Where counted text was cut off. */
struct chat_cut {
	uint8_t escape;  /* the next byte is an escaped one */
	uint8_t unicode; /* hex digits of an escape still to come */
	bool space;      /* the last byte counted was white space */
};

enum { CHAT_SECRET = 192 }; /* bytes that the seed of hashes is spread to */

/* Opaque; 4 KiB, needed only while a body arrives. */
struct chat_scan {
	struct chat_request req;
	struct pull json;
	struct pull_copy copy;
	uint64_t seed;
	uint8_t secret[CHAT_SECRET];
	uint64_t *blocks;
	uint32_t blocks_max, blocks_used;
	struct chat_stream part[CHAT_PARTS];
	struct chat_cut cut;
	uint64_t salt;              /* LoRA and cache_salt */
	uint64_t identity_messages; /* up to the first user message */
	uint32_t n, best_of, messages, assistants, prompts;
	uint8_t max_tokens_rank;
	uint8_t mark;              /* bytes of a byte order mark in front */
	uint8_t now;               /* enum chat_part that content goes to */
	uint8_t key;               /* of the value being read */
	uint8_t sink;              /* what the current string is for */
	uint8_t nonce_kind, nonce; /* a nonce that may begin here, and how much of it matched */
	bool said;                 /* the current string has given content */
	bool first_user_seen;
	bool in_output;                /* the last item came from the model */
	bool system_item;              /* the current message is a system prompt */
	bool text_source;              /* the current document is plain text */
	uint8_t where[PULL_DEPTH + 1]; /* what each open container is */
	char role[24], type[32];       /* of the current message */
	char text[512];                /* keys and captured values */
	uint8_t block[CHAT_PARTS][LIMIT_CONTENT_BLOCK_BYTES];
	_Alignas(64) uint8_t media[576]; /* hash of an image's bytes */
};

/* Block memory a body of that size can need. */
size_t chat_scan_blocks(uint64_t body_bytes);

/*
 * `blocks` is the caller's, for as long as the scan lasts, and may be replaced by larger memory
 * (chat_scan_grow copies). `seed` must be the same for every body whose blocks are compared.
 */
void chat_scan_begin(struct chat_scan *scan, uint64_t *blocks, uint32_t blocks_max, uint64_t seed);
void chat_scan_grow(struct chat_scan *scan, uint64_t *blocks, uint32_t blocks_max);

/* Takes the next bytes of the body, however few. */
void chat_scan_step(struct chat_scan *scan, const void *bytes, size_t len);

/*
 * Writes the chain of the content seen so far: block i's hash covers all content before its end, in
 * template order, and model, LoRA and cache salt. With `complete` a body that has not ended is
 * unreadable; without, the scan may go on. Returns the number of blocks, at most chain_max.
 */
uint32_t chat_scan_end(struct chat_scan *scan, bool complete, uint64_t *chain, uint32_t chain_max);

/* A name of CHAT_SESSIONS, for logs. */
const char *chat_session_name(enum chat_session_source source);

#endif
