/*
 * How many tokens a prompt has, from its byte classes: one linear model per served model, corrected
 * by every `usage.prompt_tokens` that comes back.
 *
 * Coefficients start at priors measured with real tokenizers and may move only within a factor of
 * TOKENS_GAIN_MAX of them, each report moves them by a bounded step: no usage, however wrong, can
 * wreck the estimate. State lies in a section of the region, so calibration survives restarts.
 * One writer; other processes may read.
 */
#ifndef TURNWARD_ROUTER_TOKENS_TOKENS_H
#define TURNWARD_ROUTER_TOKENS_TOKENS_H

#include <stddef.h>
#include <stdint.h>

#include "router/chat/classes.h"
#include "shm/table.h"

enum {
	TOKENS_MODELS_MAX = 128, /* served models whose calibration is kept; the stalest goes */
	TOKENS_GAIN_MAX = 4,     /* a coefficient stays within this factor of its prior */
	TOKENS_PROMPT_MAX = 16 << 20, /* a usage above is not believed */
	TOKENS_MEDIAN_PRIOR = 1024,   /* of a model that has not answered yet */
};

/* A process's own view of the section. */
struct tokens {
	struct table table;
};

/* What of a prompt costs tokens: text by class, and what has a price of its own. Whole words. */
struct tokens_prompt {
	struct chat_classes text;
	uint64_t messages;  /* or input items */
	uint64_t tools;     /* definitions; their JSON is in `text` */
	uint64_t images;    /* and other parts whose bytes are in no count */
	uint64_t token_ids; /* given as numbers */
};

/* What a session knows exactly: the prompt that `exact` tokens were reported for. */
struct tokens_base {
	uint64_t exact;              /* usage.prompt_tokens, 0 = nothing known */
	struct tokens_prompt prompt; /* that same one */
};

struct tokens_model_stats {
	uint64_t samples; /* reports that were used */
	uint64_t refused; /* reports that could not be true */
	uint64_t median;  /* prompt tokens */
	double error;     /* smoothed |estimate - usage| / usage, before each correction */
	double tokens_per_image;
	double bytes_per_token; /* of text, smoothed */
};

size_t tokens_size(void);

/* As table_attach(): zero memory becomes empty, torn entries are dropped, -EPROTO if foreign. */
int tokens_attach(struct tokens *ret_tokens, void *mem, size_t size, uint64_t *ret_dropped);
int tokens_view(struct tokens *ret_tokens, const void *mem, size_t size);
int tokens_clear(struct tokens *ret_tokens, void *mem, size_t size);

/* The key of a served model (its name as in the request; LoRA names are models of their own). */
uint64_t tokens_model_key(const void *name, size_t len);

/* Tokens of a whole prompt, at least 1. Unknown models have the priors. */
uint64_t tokens_estimate(const struct tokens *tokens, uint64_t model,
			 const struct tokens_prompt *prompt);

/*
 * Tokens of a session's next prompt: the last exact count + the estimate of what is new, the error
 * being that of the new part only. A prompt that is not a continuation (some class shrank: the
 * client edited or compacted) is estimated as a whole, at the session's own ratio of exact to
 * estimate.
 */
uint64_t tokens_estimate_turn(const struct tokens *tokens, uint64_t model,
			      const struct tokens_base *base, const struct tokens_prompt *prompt);

/* The median prompt of the model: for bodies that could not be read. */
uint64_t tokens_median(const struct tokens *tokens, uint64_t model);

/* Content bytes per token of the model's prompts as seen, 0 = nothing seen. */
double tokens_bytes_per_token(const struct tokens *tokens, uint64_t model);

/* The engine reported `exact` prompt tokens for this prompt; NULL = a body that could not be read,
 * then only the median learns. `stamp`: any clock that only grows. */
void tokens_learn(struct tokens *tokens, uint64_t model, const struct tokens_prompt *prompt,
		  uint64_t exact, uint64_t stamp);

/* -ENOENT for a model that never reported. Any process. */
int tokens_stats(const struct tokens *tokens, uint64_t model, struct tokens_model_stats *ret_stats);

/* Bytes of text that were counted (a run of white space as one). */
uint64_t tokens_bytes(const struct tokens_prompt *prompt);

#endif
