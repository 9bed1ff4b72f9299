/* What a request's JSON body asks of a modelled engine: token ids, length of the answer, its shape.
 */
#ifndef TURNWARD_BENCH_ENGINE_PROMPT_H
#define TURNWARD_BENCH_ENGINE_PROMPT_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/engine_out.h"
#include "bench/model/tokenizer.h"

enum prompt_api {
	PROMPT_CHAT,
	PROMPT_COMPLETIONS,
	PROMPT_MESSAGES,
	PROMPT_RESPONSES,
	PROMPT_EMBEDDINGS,
	PROMPT_TOKENIZE, /* messages, prompt or content */
	PROMPT_DETOKENIZE,
};

enum {
	PROMPT_PARTS = 64,          /* prompts of one completions request */
	PROMPT_CHOICES = 128,       /* prompts times n */
	PROMPT_MODEL = 120,         /* bytes of a model's name */
	PROMPT_OUTPUT_TOKENS = 128, /* of an answer whose length nobody set */
};

struct prompt_part {
	size_t at, nr; /* ids of one prompt */
	uint64_t hash; /* FNV-1a of the last user message, or of the whole prompt: the answer's seed
			*/
};

struct prompt {
	struct tokenizer_ids ids;
	struct prompt_part part[PROMPT_PARTS];
	uint32_t parts;
	uint32_t conversation_at; /* responses: where the ids begin that the next turn repeats */
	uint32_t n, output_tokens;
	bool output_given; /* the request set the length: it ends with "length", else with "stop" */
	bool stream, include_usage, store, base64;
	uint64_t salt;
	char model[PROMPT_MODEL + 8]; /* "" = none given */
	char previous[80];            /* previous_response_id */
	struct out scratch;           /* decoded strings */
	/* On failure: what to answer. */
	int status;
	char why[256], param[32];
};

/* Appends the ids of an earlier response's conversation; false = it is not known here. */
typedef bool prompt_recall(void *ctx, const char *id, struct tokenizer_ids *ids);

struct prompt_world {
	bool tools_always; /* tool_choice "none" leaves the tools in the prompt (vLLM) */
	bool skip_billing; /* system blocks that change with every request are dropped (vLLM) */
	prompt_recall *recall;
	void *ctx;
};

/* 0, or -EINVAL with status, why and param. The struct's buffers are reused from call to call. */
int prompt_read(struct prompt *p, enum prompt_api api, const char *body, size_t len,
		const struct prompt_world *world);
void prompt_fini(struct prompt *p);

uint64_t prompt_hash(uint64_t hash, const void *bytes, size_t len);
#define PROMPT_HASH_START 0xcbf29ce484222325ull

#endif
