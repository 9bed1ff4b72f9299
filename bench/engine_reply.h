/* Answers as vLLM, SGLang and llama.cpp write them: server-sent events and whole bodies. */
#ifndef TURNWARD_BENCH_ENGINE_REPLY_H
#define TURNWARD_BENCH_ENGINE_REPLY_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/engine_out.h"
#include "bench/engine_prompt.h"

enum engine_head { HEAD_VLLM, HEAD_SGLANG, HEAD_LLAMACPP };

struct reply {
	enum prompt_api api;
	enum engine_head head;
	bool stream, include_usage, output_given, chunked;
	char id[48], item[48];
	uint64_t created_s;
	char model[PROMPT_MODEL * 2]; /* JSON, with its quotes */
	char previous[80];
	uint32_t choices, max_tokens;
	uint32_t prompt_tokens, cached_tokens, output_tokens;
	double prompt_ms, output_ms; /* llama.cpp's timings */
	uint32_t sequence;
	char start[512]; /* of every chunk, up to the choice's index */
	size_t start_len;
	struct out event; /* one chunk's payload */
	struct out text;  /* responses repeat the whole text in the end */
};

void reply_begin(struct reply *r); /* all fields above `sequence` are set: makes `start` */
void reply_fini(struct reply *r);

/* Each appends whole chunks to `o`, framed when r->chunked. */
void reply_opening(struct reply *r, struct out *o); /* with the head, before any token */
void reply_first(struct reply *r, struct out *o);   /* before the first token of all */
void reply_token(struct reply *r, struct out *o, uint32_t choice, const char *text, size_t len,
		 bool last);
void reply_ending(struct reply *r, struct out *o); /* after the last token of the last choice */

/* A body without a stream; `text` yields each choice's. */
typedef void reply_text(void *ctx, uint32_t choice, struct out *o);
void reply_whole(struct reply *r, struct out *o, reply_text *text, void *ctx);

/* An error in the engine's own form; `param` may be NULL. */
void reply_error(enum engine_head head, struct out *o, int status, const char *type,
		 const char *param, const char *message);

/* The finished answer as the responses API shows it, with `status` and the text so far. */
void reply_response_object(struct reply *r, struct out *o, const char *status, const char *text,
			   size_t len);

#endif
