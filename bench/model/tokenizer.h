/*
 * Text to token ids and back, the same on every path: the modelled engine's tokeniser.
 *
 * Not a real vocabulary but with a real one's proportions: about four bytes a token on prose and
 * code, every digit a token of its own. A token depends only on the bytes from its own start to one
 * byte beyond its end, so the ids of a prefix are a prefix of the ids, except for the last token.
 * The words of generated answers (" w" and three letters a..p) are one token each and come back as
 * the same ids, with or without the space (clients trim).
 */
#ifndef TURNWARD_BENCH_MODEL_TOKENIZER_H
#define TURNWARD_BENCH_MODEL_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

enum {
	TOKENIZER_PIECE_MAX = 8,  /* bytes of the longest text token */
	TOKENIZER_WORD_BYTES = 5, /* of every word of an answer */
	TOKENIZER_WORDS = 4096,   /* different words: 12 bits each */

	/* Ids: markers, then single bytes, then the answer's words, then hashed pieces. */
	TOKENIZER_MARKERS = 64,
	TOKENIZER_BYTE_FIRST = TOKENIZER_MARKERS,
	TOKENIZER_WORD_FIRST = 1024,
	TOKENIZER_PIECE_FIRST = TOKENIZER_WORD_FIRST + TOKENIZER_WORDS,
};

/* The chat template's fixed tokens; each message is ROLE_x NEWLINE text END NEWLINE. */
enum tokenizer_marker {
	TOKENIZER_END, /* closes a message; also the last token a finished answer implies */
	TOKENIZER_NEWLINE,
	TOKENIZER_SYSTEM,
	TOKENIZER_USER,
	TOKENIZER_ASSISTANT,
	TOKENIZER_TOOL,
	TOKENIZER_OTHER, /* a role unknown here */
	TOKENIZER_TOOLS, /* opens the list of tools */
	TOKENIZER_CALL,  /* opens a tool call within a message */
	TOKENIZER_IMAGE, /* stands for a picture, TOKENIZER_IMAGE_TOKENS times */
};
enum { TOKENIZER_IMAGE_TOKENS = 256 };

/* Pieces seen so far, by id: what lets an engine turn ids back into text. One per process, 8 MiB.
 */
enum { TOKENIZER_PIECES = 1 << 20 };
struct tokenizer_memory {
	uint64_t piece[TOKENIZER_PIECES]; /* the bytes themselves, 0 = never seen */
};

/* Ids of a prompt under construction; grows by doubling, reused from one request to the next. */
struct tokenizer_ids {
	uint32_t *id;
	size_t nr, room;
	struct tokenizer_memory *memory; /* learns every piece when not NULL */
};

void tokenizer_ids_fini(struct tokenizer_ids *ids);
int tokenizer_marker(struct tokenizer_ids *ids, enum tokenizer_marker marker); /* 0 or -ENOMEM */
int tokenizer_id(struct tokenizer_ids *ids, uint32_t id);

/* Appends the ids of `text`; call it with a whole text: two calls may end a token between them. */
int tokenizer_text(struct tokenizer_ids *ids, const char *text, size_t len);

/* Opens a message of that role and closes it; the pair brackets its texts. */
enum tokenizer_marker tokenizer_role(const char *role, size_t len);
int tokenizer_open(struct tokenizer_ids *ids, enum tokenizer_marker role);
int tokenizer_close(struct tokenizer_ids *ids);

/*
 * The text of an id: exact for words, single bytes and remembered pieces; a marker or an unknown
 * piece gives a printable stand-in ("<|user|>", "[1a2b3]"). `memory` may be NULL. Returns its
 * length.
 */
enum { TOKENIZER_TEXT_MAX = 16 };
size_t tokenizer_text_of(const struct tokenizer_memory *memory, uint32_t id,
			 char ret_text[TOKENIZER_TEXT_MAX]);

#endif
