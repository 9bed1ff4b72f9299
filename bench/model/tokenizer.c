/* Splitting text into tokens by byte classes; see tokenizer.h for what holds about the ids. */
#include "bench/model/tokenizer.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a byte may be part of. A class has a longest run; digits stand alone. */
enum byte_class { LETTER, DIGIT, BLANK, MARK, HIGH, CONTROL };
enum { LETTER_RUN = 7, BLANK_RUN = 8, MARK_RUN = 3, HIGH_RUN = 5 };

static const uint8_t classes[256] = {
	[0 ... 8] = CONTROL,    ['\t'] = BLANK,         ['\n'] = BLANK,
	[11 ... 12] = CONTROL,  ['\r'] = BLANK,         [14 ... 31] = CONTROL,
	[' '] = BLANK,          ['!' ... '/'] = MARK,   ['0' ... '9'] = DIGIT,
	[':' ... '@'] = MARK,   ['A' ... 'Z'] = LETTER, ['[' ... '`'] = MARK,
	['a' ... 'z'] = LETTER, ['{' ... '~'] = MARK,   [0x7f] = CONTROL,
	[0x80 ... 0xff] = HIGH,
};

static size_t run(const uint8_t *text, size_t len, enum byte_class class, size_t most)
{
	size_t n = 0;

	while (n < len && n < most && classes[text[n]] == class)
		n++;
	return n;
}

/* Marks, and the line end behind them. */
static size_t marks(const uint8_t *text, size_t len)
{
	size_t n = run(text, len, MARK, MARK_RUN);

	return n + (n < len && text[n] == '\n');
}

/* The top bit of each byte of the result tells whether that byte of `word` is a letter. */
static uint64_t letter_bits(uint64_t word)
{
	const uint64_t ones = 0x0101010101010101, tops = 0x8080808080808080;
	uint64_t low = (word | 0x20 * ones) & ~tops;

	return ((low | tops) - 'a' * ones) & (('z' * ones | tops) - low) & ~word & tops;
}

/* Letters from text[from] on, at most LETTER_RUN of them; from is 0 or 1. */
static size_t letters(const uint8_t *text, size_t len, size_t from)
{
	uint64_t word, others;

	if (len < sizeof(word) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__)
		return run(text + from, len - from, LETTER, LETTER_RUN);
	memcpy(&word, text, sizeof(word));
	others = ~letter_bits(word >> 8 * from) & 0x8080808080808080;
	size_t n = others ? (size_t)__builtin_ctzll(others) / 8 : LETTER_RUN;
	return n < LETTER_RUN ? n : LETTER_RUN;
}

/*
 * Length of the token that starts at `text`; looks at most one byte past it. A space, tab or mark
 * goes with the letters behind it, a space also with marks: where real tokenisers split, too.
 */
static size_t piece_length(const uint8_t *text, size_t len)
{
	enum byte_class first = classes[text[0]], next = len > 1 ? classes[text[1]] : CONTROL;
	size_t lead = first == MARK || text[0] == ' ' || text[0] == '\t';

	if (first == LETTER || (lead && next == LETTER))
		return lead + letters(text, len, lead);
	if (first == MARK)
		return marks(text, len);
	if (text[0] == ' ' && next == MARK)
		return 1 + marks(text + 1, len - 1);
	if (text[0] == ' ' && next == DIGIT)
		return 1;
	if (first == BLANK)
		return run(text, len, BLANK, BLANK_RUN);
	return first == HIGH ? run(text, len, HIGH, HIGH_RUN) : 1;
}

/* The piece's bytes in one word; with eight bytes to read from there is nothing to loop over. */
static uint64_t pack(const uint8_t *piece, size_t len, size_t readable)
{
	uint64_t packed = 0;

	assert(len > 0 && len <= TOKENIZER_PIECE_MAX);
	if (readable < sizeof(packed) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__) {
		memcpy(&packed, piece, len);
		return packed;
	}
	memcpy(&packed, piece, sizeof(packed));
	return packed & UINT64_MAX >> 8 * (sizeof(packed) - len);
}

/* "wabc": the number its letters spell, or -1. */
static int word_of(const uint8_t *piece)
{
	unsigned a = piece[1] - 'a', b = piece[2] - 'a', c = piece[3] - 'a';

	return piece[0] == 'w' && (a | b | c) < 16 ? (int)(a << 8 | b << 4 | c) : -1;
}

static uint32_t piece_id(struct tokenizer_memory *memory, const uint8_t *piece, size_t len,
			 size_t readable)
{
	size_t space = piece[0] == ' ';

	if (len == 1)
		return TOKENIZER_BYTE_FIRST + piece[0];
	if (len - space == 4 && word_of(piece + space) >= 0)
		return TOKENIZER_WORD_FIRST + (uint32_t)word_of(piece + space);
	uint64_t packed = pack(piece, len, readable), mixed = packed * 0x9e3779b97f4a7c15ull;
	mixed = (mixed ^ mixed >> 32) * 0xd6e8feb86659fd93ull;
	uint32_t number = (uint32_t)(mixed >> 32) % TOKENIZER_PIECES;
	if (memory)
		memory->piece[number] = packed;
	return TOKENIZER_PIECE_FIRST + number;
}

void tokenizer_ids_fini(struct tokenizer_ids *ids)
{
	free(ids->id);
	ids->id = NULL;
	ids->nr = ids->room = 0;
}

static int reserve(struct tokenizer_ids *ids, size_t more)
{
	size_t room = ids->room ? ids->room : 1024;

	while (room - ids->nr < more)
		room *= 2;
	if (room == ids->room)
		return 0;
	uint32_t *grown = realloc(ids->id, room * sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	ids->id = grown;
	ids->room = room;
	return 0;
}

int tokenizer_id(struct tokenizer_ids *ids, uint32_t id)
{
	int err = reserve(ids, 1);

	if (!err)
		ids->id[ids->nr++] = id;
	return err;
}

int tokenizer_marker(struct tokenizer_ids *ids, enum tokenizer_marker marker)
{
	assert((uint32_t)marker < TOKENIZER_MARKERS);
	return tokenizer_id(ids, marker);
}

int tokenizer_text(struct tokenizer_ids *ids, const char *text, size_t len)
{
	const uint8_t *at = (const uint8_t *)text, *end = at + len;

	while (at < end) {
		if (ids->nr == ids->room && reserve(ids, 1) < 0)
			return -ENOMEM;
		size_t n = piece_length(at, (size_t)(end - at));
		ids->id[ids->nr++] = piece_id(ids->memory, at, n, (size_t)(end - at));
		at += n;
	}
	return 0;
}

enum tokenizer_marker tokenizer_role(const char *role, size_t len)
{
	static const struct {
		const char *name;
		enum tokenizer_marker marker;
	} roles[] = {
		{ "system", TOKENIZER_SYSTEM }, { "developer", TOKENIZER_SYSTEM },
		{ "user", TOKENIZER_USER },     { "assistant", TOKENIZER_ASSISTANT },
		{ "tool", TOKENIZER_TOOL },     { "function", TOKENIZER_TOOL },
	};

	for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++)
		if (strlen(roles[i].name) == len && memcmp(roles[i].name, role, len) == 0)
			return roles[i].marker;
	return TOKENIZER_OTHER;
}

int tokenizer_open(struct tokenizer_ids *ids, enum tokenizer_marker role)
{
	int err = tokenizer_marker(ids, role);

	return err ? err : tokenizer_marker(ids, TOKENIZER_NEWLINE);
}

int tokenizer_close(struct tokenizer_ids *ids)
{
	int err = tokenizer_marker(ids, TOKENIZER_END);

	return err ? err : tokenizer_marker(ids, TOKENIZER_NEWLINE);
}

static size_t marker_text(uint32_t id, char ret_text[TOKENIZER_TEXT_MAX])
{
	static const char *const names[] = {
		[TOKENIZER_END] = "end",
		[TOKENIZER_NEWLINE] = "newline",
		[TOKENIZER_SYSTEM] = "system",
		[TOKENIZER_USER] = "user",
		[TOKENIZER_ASSISTANT] = "assistant",
		[TOKENIZER_TOOL] = "tool",
		[TOKENIZER_OTHER] = "other",
		[TOKENIZER_TOOLS] = "tools",
		[TOKENIZER_CALL] = "call",
		[TOKENIZER_IMAGE] = "image",
	};
	const char *name = id < sizeof(names) / sizeof(names[0]) ? names[id] : "unused";

	return (size_t)snprintf(ret_text, TOKENIZER_TEXT_MAX, "<|%s|>", name);
}

size_t tokenizer_text_of(const struct tokenizer_memory *memory, uint32_t id,
			 char ret_text[TOKENIZER_TEXT_MAX])
{
	uint32_t number;

	if (id < TOKENIZER_MARKERS)
		return marker_text(id, ret_text);
	if (id < TOKENIZER_BYTE_FIRST + 256) {
		ret_text[0] = (char)(id - TOKENIZER_BYTE_FIRST);
		return 1;
	}
	if (id >= TOKENIZER_WORD_FIRST && id < TOKENIZER_PIECE_FIRST) {
		number = id - TOKENIZER_WORD_FIRST;
		ret_text[0] = ' ';
		ret_text[1] = 'w';
		for (int i = 0; i < 3; i++)
			ret_text[2 + i] = (char)('a' + (number >> (8 - 4 * i) & 15));
		return TOKENIZER_WORD_BYTES;
	}
	number = id - TOKENIZER_PIECE_FIRST;
	if (memory && id >= TOKENIZER_PIECE_FIRST && number < TOKENIZER_PIECES &&
	    memory->piece[number]) {
		memcpy(ret_text, &memory->piece[number], TOKENIZER_PIECE_MAX);
		return strnlen(ret_text, TOKENIZER_PIECE_MAX);
	}
	return (size_t)snprintf(ret_text, TOKENIZER_TEXT_MAX, "[%x]", id);
}
