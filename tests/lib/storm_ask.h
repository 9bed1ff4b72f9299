/*
 * One request of a storm: made from its number alone, and its answer recognised as its own.
 *
 * Every request carries a text that no other one has; the modelled engine spells that text's hash
 * in its answer (bench/README.md). So an answer that belongs to another request, in whole or in
 * part, is seen as such.
 */
#ifndef TURNWARD_TESTS_LIB_STORM_ASK_H
#define TURNWARD_TESTS_LIB_STORM_ASK_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* X(id, name, share in a hundred) */
#define ASK_KINDS(X)                           \
	X(CHAT, "chat", 25)                    \
	X(CHAT_STREAM, "chat-stream", 25)      \
	X(TEXT, "text", 10)                    \
	X(TEXT_STREAM, "text-stream", 10)      \
	X(MESSAGE, "message", 8)               \
	X(MESSAGE_STREAM, "message-stream", 7) \
	X(EMBEDDING, "embedding", 8)           \
	X(TOKENIZE, "tokenize", 7)

#define ASK_ENUM(id, name, share) ASK_##id,
enum ask_kind { ASK_KINDS(ASK_ENUM) ASK_KINDS_NR };
#undef ASK_ENUM
extern const char *const ask_kind_names[ASK_KINDS_NR];

struct ask_world {
	uint64_t seed;
	const char *model;
	size_t body_min, body_max;
	uint32_t tokens_min, tokens_max; /* of an answer; >= 4, for the hash takes four */
	uint32_t share[ASK_KINDS_NR];
	uint32_t sessions; /* different session ids that a third of the requests bear; 0 = none */
	char *filler;
};

enum { ASK_IOV = 3, ASK_FILLER = 256 * 1024 };

struct ask {
	uint64_t number;
	enum ask_kind kind;
	uint64_t hash;   /* of what the engine hashes */
	char unique[64]; /* the text that is its own */
	char open[1024], close[256];
	size_t head_len, bytes;
	struct iovec iov[ASK_IOV];
};

enum ask_verdict { ASK_OWN, ASK_FOREIGN, ASK_SILENT /* no value in it */, ASK_UNENDED };

int ask_world_init(struct ask_world *world);
void ask_world_fini(struct ask_world *world);

/* A number that depends on seed, request and purpose only. */
uint64_t ask_draw(const struct ask_world *world, uint64_t number, uint32_t purpose);

/* `close_after` asks the server to close. iov points into `ask` and the world. */
void ask_make(struct ask *ask, const struct ask_world *world, uint64_t number, int close_after);
enum ask_verdict ask_check(const struct ask *ask, const char *body, size_t len);

static inline int ask_streams(const struct ask *ask)
{
	return ask->kind == ASK_CHAT_STREAM || ask->kind == ASK_TEXT_STREAM ||
	       ask->kind == ASK_MESSAGE_STREAM;
}

#endif
