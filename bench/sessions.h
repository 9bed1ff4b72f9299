/*
 * Sessions of a trace and the conversations that play them: what each turn's prompt says, token by
 * token.
 *
 * A trace gives lengths and block ids, no text. The text here is made of words that are one token
 * each for the modelled engines (model/tokenizer.h) and follows from the block's id alone, so that
 * a turn repeats its history to the byte, and sessions with equal tools and system prompt share
 * that prefix. Answers are the engine's own, put into the history as a client does.
 */
#ifndef TURNWARD_BENCH_SESSIONS_H
#define TURNWARD_BENCH_SESSIONS_H

#include <stddef.h>
#include <stdint.h>

#include "bench/model/tokenizer.h"

enum {
	SESSIONS_BLOCK = 64,      /* tokens of a trace's block when it does not say */
	SESSIONS_FRAME = 4,       /* tokens of a message around its text */
	SESSIONS_OPENING = 2,     /* tokens that open the answer, last of every prompt */
	SESSIONS_MESSAGE_MIN = 8, /* tokens of the shortest message, its frame included */
	SESSIONS_WHY_MAX = 200,
};

struct sessions_range {
	uint32_t first, last; /* block ids, both inclusive */
};

struct sessions_turn {
	uint32_t prompt_tokens, output_tokens;
	double think_s;       /* the client's pause before this request */
	uint32_t kept_tokens; /* of the prompt before that this one begins with; UINT32_MAX = all */
	uint32_t range, ranges; /* of the file's ranges */
};

struct session_trace {
	uint64_t key;           /* of its id: what its text follows from */
	uint32_t system_tokens; /* tools and system prompt together: what sessions share */
	uint64_t system_key;
	uint32_t block; /* tokens */
	uint32_t turn, turns;
};

struct sessions {
	struct session_trace *session;
	struct sessions_turn *turn;
	struct sessions_range *range;
	size_t sessions, turns, ranges;
	size_t sessions_room, turns_room, ranges_room;
};

struct sessions_limits {
	uint32_t first_prompt_max; /* longer first prompts are left out */
	uint32_t turns_max;        /* of one session */
	uint32_t context_max;      /* a session ends before a turn that exceeds it */
	double think_max_s;
};

/*
 * Reads a file of sessions, one JSON object a line (traces/README.md). 0; -EINVAL with the line in
 * `why`; -errno of the file. sessions_free() in any case.
 */
int sessions_read(struct sessions *ret_sessions, const char *path,
		  const struct sessions_limits *limits, char why[SESSIONS_WHY_MAX]);
void sessions_free(struct sessions *sessions);

/* The i-th word of a text that is known by its key: " w" and three letters. */
void sessions_word(uint64_t key, uint32_t index, char ret_word[TOKENIZER_WORD_BYTES]);

struct talk_message {
	uint32_t at; /* byte of `text` where its object begins, behind the comma */
	uint32_t text_at, text_len;
	uint32_t first, tokens; /* position in the prompt, length with its frame */
	uint8_t role;           /* enum talk_role */
};

enum talk_role { TALK_SYSTEM, TALK_USER, TALK_ASSISTANT };

/* One session's conversation as its client holds it: grows from turn to turn. */
struct talk {
	const struct sessions *sessions;
	const struct session_trace *trace;
	uint64_t key;
	uint32_t turn;   /* turns opened so far; the current one is turn - 1 */
	uint32_t tokens; /* of all messages; the prompt has SESSIONS_OPENING more */
	char *text;      /* the messages' JSON objects, with commas between them */
	size_t len, room;
	struct talk_message *message;
	uint32_t messages, messages_room;
};

/* `copy` tells several plays of one session apart: each has text of its own. */
void talk_init(struct talk *talk, const struct sessions *sessions, size_t session, uint32_t copy);
void talk_fini(struct talk *talk);

/*
 * Opens the next turn: cuts what the client rewrote, adds the last answer (what stands between the
 * quotes of a JSON string; 0 tokens: none) and the new text. What the trace's prompt has no room
 * for of an answer was reasoning, which clients drop: its beginning. 0, -ENODATA after the last
 * turn, -ENOMEM.
 */
int talk_next(struct talk *talk, const char *answer, size_t len, uint32_t answer_tokens);

const struct sessions_turn *talk_turn(const struct talk *talk); /* the current one */

/* The prompt's ids as a modelled engine makes them; for tests and for the model's prediction. */
int talk_ids(const struct talk *talk, struct tokenizer_ids *ids);

#endif
