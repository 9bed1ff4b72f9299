/* Requests of a storm as bytes, and what their answers must hold. */
#include "tests/lib/storm_ask.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/model/tokenizer.h"

#define ASK_NAME(id, name, share) name,
const char *const ask_kind_names[] = { ASK_KINDS(ASK_NAME) };

enum { DRAW_KIND = 100, DRAW_BYTES, DRAW_TOKENS, DRAW_PLACE, DRAW_SESSION, DRAW_USAGE };
enum { WORDS = 4, WORD = 4 /* w and three letters */, VECTOR = 16 };
/* What a short path takes: an embedding's and a token list's answers grow with the question. */
enum { EMBEDDING_MAX = 16 * 1024, TOKENIZE_MAX = 2 * 1024 };
static const uint64_t FNV_START = 0xcbf29ce484222325ull, FNV_PRIME = 0x100000001b3ull;

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

uint64_t ask_draw(const struct ask_world *world, uint64_t number, uint32_t purpose)
{
	return mix(mix(world->seed ^ mix(number)) + purpose);
}

static uint64_t fnv(uint64_t hash, const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		hash = (hash ^ (uint8_t)text[i]) * FNV_PRIME;
	return hash;
}

int ask_world_init(struct ask_world *world)
{
	uint64_t bits = 0;

	world->filler = malloc(ASK_FILLER);
	if (!world->filler)
		return -ENOMEM;
	for (size_t i = 0; i < ASK_FILLER; i++) {
		if (i % 10 == 0)
			bits = mix(world->seed + i);
		world->filler[i] = bits % 32 < 26 ? (char)('a' + bits % 32) : ' ';
		bits >>= 5;
	}
	return 0;
}

void ask_world_fini(struct ask_world *world)
{
	free(world->filler);
	world->filler = NULL;
}

static enum ask_kind kind_of(const struct ask_world *world, uint64_t number)
{
	uint32_t sum = 0, at;

	for (int i = 0; i < ASK_KINDS_NR; i++)
		sum += world->share[i];
	assert(sum > 0);
	at = (uint32_t)(ask_draw(world, number, DRAW_KIND) % sum);
	for (int i = 0; i < ASK_KINDS_NR; i++) {
		if (at < world->share[i])
			return (enum ask_kind)i;
		at -= world->share[i];
	}
	return ASK_CHAT;
}

/* Bytes of filler: sizes are spread evenly over their logarithm, as real bodies are. */
static size_t filler_of(const struct ask *ask, const struct ask_world *world)
{
	double u = (double)(ask_draw(world, ask->number, DRAW_BYTES) >> 11) / (double)(1ull << 53);
	double least = (double)world->body_min, most = (double)world->body_max;
	size_t bytes = (size_t)(least * pow(most / least, u));

	if (ask->kind == ASK_EMBEDDING && bytes > EMBEDDING_MAX)
		bytes = EMBEDDING_MAX;
	if (ask->kind == ASK_TOKENIZE && bytes > TOKENIZE_MAX)
		bytes = TOKENIZE_MAX;
	return bytes > 200 ? bytes - 200 : 0;
}

static const char *path_of(enum ask_kind kind)
{
	static const char *const paths[] = {
		[ASK_CHAT] = "/v1/chat/completions", [ASK_CHAT_STREAM] = "/v1/chat/completions",
		[ASK_TEXT] = "/v1/completions",      [ASK_TEXT_STREAM] = "/v1/completions",
		[ASK_MESSAGE] = "/v1/messages",      [ASK_MESSAGE_STREAM] = "/v1/messages",
		[ASK_EMBEDDING] = "/v1/embeddings",  [ASK_TOKENIZE] = "/tokenize",
	};

	return paths[kind];
}

/* The JSON before and after the filler. The unique text is last in a chat, first in a prompt. */
static size_t json_of(struct ask *ask, const struct ask_world *world, char *ret_open, size_t room)
{
	uint32_t tokens =
		world->tokens_min + (uint32_t)(ask_draw(world, ask->number, DRAW_TOKENS) %
					       (world->tokens_max - world->tokens_min + 1));
	const char *usage = ask_streams(ask) && ask_draw(world, ask->number, DRAW_USAGE) % 2
				    ? ",\"stream_options\":{\"include_usage\":true}"
				    : "";
	const char *stream = ask_streams(ask) ? ",\"stream\":true" : "";
	int n = 0;

	snprintf(ask->close, sizeof(ask->close), "\"}");
	switch (ask->kind) {
	case ASK_CHAT:
	case ASK_CHAT_STREAM:
	case ASK_MESSAGE:
	case ASK_MESSAGE_STREAM:
		if (ask->kind == ASK_MESSAGE || ask->kind == ASK_MESSAGE_STREAM)
			usage = "";
		n = snprintf(ret_open, room,
			     "{\"model\":\"%s\",\"max_tokens\":%u%s%s,\"messages\":[{\"role\":"
			     "\"user\",\"content\":\"",
			     world->model, tokens, stream, usage);
		snprintf(ask->close, sizeof(ask->close),
			 " x\"},{\"role\":\"assistant\",\"content\":\"yes\"},{\"role\":\"user\","
			 "\"content\":\"%s\"}]}",
			 ask->unique);
		break;
	case ASK_TEXT:
	case ASK_TEXT_STREAM:
		n = snprintf(ret_open, room,
			     "{\"model\":\"%s\",\"max_tokens\":%u%s%s,\"prompt\":\"%s",
			     world->model, tokens, stream, usage, ask->unique);
		break;
	case ASK_EMBEDDING:
		n = snprintf(ret_open, room, "{\"model\":\"%s\",\"input\":\"%s", world->model,
			     ask->unique);
		break;
	default:
		n = snprintf(ret_open, room, "{\"model\":\"%s\",\"prompt\":\"%s", world->model,
			     ask->unique);
		break;
	}
	assert(n > 0 && (size_t)n < room);
	return (size_t)n;
}

static int hashes_filler(const struct ask *ask)
{
	return ask->kind == ASK_TEXT || ask->kind == ASK_TEXT_STREAM ||
	       ask->kind == ASK_EMBEDDING || ask->kind == ASK_TOKENIZE;
}

void ask_make(struct ask *ask, const struct ask_world *world, uint64_t number, int close_after)
{
	char json[512], session[64] = "";
	size_t filler, place, json_len;

	ask->number = number;
	ask->kind = kind_of(world, number);
	snprintf(ask->unique, sizeof(ask->unique), "storm %llu %016llx ",
		 (unsigned long long)number, (unsigned long long)ask_draw(world, number, 0));
	filler = filler_of(ask, world);
	place = ask_draw(world, number, DRAW_PLACE) % (ASK_FILLER / 2);
	if (place % 2) /* half of them share what they begin with */
		place = 0;
	if (world->sessions && ask_draw(world, number, DRAW_SESSION) % 3 == 0)
		snprintf(session, sizeof(session), "X-Session-Id: storm-%llu\r\n",
			 (unsigned long long)(ask_draw(world, number, DRAW_SESSION) / 3 %
					      world->sessions));
	json_len = json_of(ask, world, json, sizeof(json));
	int n = snprintf(ask->open, sizeof(ask->open),
			 "POST %s HTTP/1.1\r\nHost: storm\r\nContent-Type: application/json\r\n"
			 "X-Request-Id: storm-%llu\r\n%s%sContent-Length: %zu\r\n\r\n",
			 path_of(ask->kind), (unsigned long long)number, session,
			 close_after ? "Connection: close\r\n" : "",
			 json_len + filler + strlen(ask->close));
	assert(n > 0 && (size_t)n + json_len < sizeof(ask->open));
	memcpy(ask->open + n, json, json_len);
	ask->head_len = (size_t)n;
	ask->iov[0] = (struct iovec){ ask->open, ask->head_len + json_len };
	ask->iov[1] = (struct iovec){ world->filler + place, filler };
	ask->iov[2] = (struct iovec){ ask->close, strlen(ask->close) };
	ask->bytes = ask->iov[0].iov_len + filler + ask->iov[2].iov_len;
	ask->hash = fnv(FNV_START, ask->unique, strlen(ask->unique));
	if (hashes_filler(ask))
		ask->hash = fnv(ask->hash, world->filler + place, filler);
}

/* The next string that is the key's value, from *at on; its length, or -1. */
static long value_next(const char *body, size_t len, const char *key, size_t *at)
{
	size_t key_len = strlen(key);

	while (*at < len) {
		const char *found = memmem(body + *at, len - *at, key, key_len);
		size_t from, to;

		if (!found)
			return -1;
		for (from = (size_t)(found - body) + key_len; from < len && body[from] == ' ';)
			from++;
		*at = from;
		if (from >= len || body[from] != '"')
			continue;
		for (to = ++from; to < len && body[to] != '"';)
			to++;
		*at = from;
		return (long)(to - from);
	}
	return -1;
}

/* The first four words of an answer, however many events they came in. */
static enum ask_verdict check_words(const struct ask *ask, const char *body, size_t len)
{
	const char *key = ask->kind == ASK_CHAT || ask->kind == ASK_CHAT_STREAM ? "\"content\":"
										: "\"text\":";
	char want[WORDS * WORD + 1], got[WORDS * WORD + 1];
	size_t at = 0, have = 0;
	long n;

	for (int i = 0; i < WORDS; i++) {
		uint32_t word = (uint32_t)(ask->hash >> 12 * i & 4095);

		snprintf(want + WORD * i, sizeof(want) - (size_t)(WORD * i), "w%c%c%c",
			 'a' + (word >> 8 & 15), 'a' + (word >> 4 & 15), 'a' + (word & 15));
	}
	while (have < WORDS * WORD && (n = value_next(body, len, key, &at)) >= 0) {
		for (long i = 0; i < n && have < WORDS * WORD; i++)
			if (body[at + (size_t)i] != ' ')
				got[have++] = body[at + (size_t)i];
		at += (size_t)n;
	}
	if (have < WORDS * WORD)
		return ASK_SILENT;
	return memcmp(got, want, WORDS * WORD) == 0 ? ASK_OWN : ASK_FOREIGN;
}

static enum ask_verdict check_vector(const struct ask *ask, const char *body, size_t len)
{
	static const char key[] = "\"embedding\":[";
	const char *at = memmem(body, len, key, sizeof(key) - 1);
	uint64_t hash = ask->hash;
	float vector[VECTOR];
	double length = 0;
	char text[40];

	if (!at)
		return ASK_SILENT;
	for (int i = 0; i < VECTOR; i++) {
		hash = hash * 6364136223846793005ull + 1442695040888963407ull;
		vector[i] = (float)((double)(hash >> 11) / (double)(1ull << 52) - 1);
		length += (double)vector[i] * vector[i];
	}
	at += sizeof(key) - 1;
	for (int i = 0; i < VECTOR; i++) {
		int n = snprintf(text, sizeof(text), "%.9g%c",
				 (double)(float)(vector[i] / sqrt(length)),
				 i + 1 < VECTOR ? ',' : ']');

		if ((size_t)(body + len - at) < (size_t)n || memcmp(at, text, (size_t)n) != 0)
			return ASK_FOREIGN;
		at += n;
	}
	return ASK_OWN;
}

static enum ask_verdict check_tokens(const struct ask *ask, const char *body, size_t len)
{
	static const char key[] = "\"tokens\":[";
	const char *at = memmem(body, len, key, sizeof(key) - 1);
	struct tokenizer_ids ids = { 0 };
	enum ask_verdict verdict = ASK_OWN;
	size_t unique = strlen(ask->unique), all = unique + ask->iov[1].iov_len;
	char *prompt;

	if (!at)
		return ASK_SILENT;
	prompt = malloc(all + 1);
	assert(prompt);
	memcpy(prompt, ask->unique, unique);
	memcpy(prompt + unique, ask->iov[1].iov_base, ask->iov[1].iov_len);
	assert(tokenizer_text(&ids, prompt, all) == 0);
	at += sizeof(key) - 1;
	for (size_t i = 0; i < ids.nr && verdict == ASK_OWN; i++) {
		char text[24];
		int n = snprintf(text, sizeof(text), "%u%c", ids.id[i], i + 1 < ids.nr ? ',' : ']');

		if ((size_t)(body + len - at) < (size_t)n || memcmp(at, text, (size_t)n) != 0)
			verdict = ASK_FOREIGN;
		at += n;
	}
	tokenizer_ids_fini(&ids);
	free(prompt);
	return verdict;
}

enum ask_verdict ask_check(const struct ask *ask, const char *body, size_t len)
{
	const char *end = ask->kind == ASK_MESSAGE_STREAM ? "message_stop" : "[DONE]";

	if (ask->kind == ASK_EMBEDDING)
		return check_vector(ask, body, len);
	if (ask->kind == ASK_TOKENIZE)
		return check_tokens(ask, body, len);
	enum ask_verdict verdict = check_words(ask, body, len);
	if (verdict == ASK_OWN && ask_streams(ask) && !memmem(body, len, end, strlen(end)))
		return ASK_UNENDED;
	return verdict;
}
