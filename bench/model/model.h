/*
 * One LLM engine on one H20 GPU, as a machine that can be stepped: what it computes, when it is
 *done.
 *
 * Pure: no clock, no I/O, no randomness; the same calls give the same events. Time is the caller's,
 *in nanoseconds, so that replay runs it on a virtual clock and turnward-engine on the wall clock:
 *
 *	end = model_begin(m, now);          schedules one step (UINT64_MAX: nothing to do)
 *	... submissions and aborts may come while it runs ...
 *	n = model_end(m, &events);          at `end`: tokens, ends, preemptions of that step
 *
 * A step is one pass of continuous batching in the order of vLLM's scheduler (V1): the running
 *requests first (one token for a decode, the next chunk for an unfinished prefill), then the
 *waiting ones first come first served while token budget, sequence limit and KV room last. A step
 *lasts
 *
 *	max(W, a n) + sum over prefill chunks b ((c+k)^2 - c^2) + kvr x sum of decode contexts + 1
 *ms
 *
 * n tokens in the pass, c tokens already there, k the chunk; of a mixture of experts W grows with n
 * to that of all of them: W + (W_all - W) (1 - (1 - share)^(n-1)). W, a, b and kvr follow from
 *published batch-1 speeds of Qwen3 on an H20, within 3 %. BATCHED DECODE IS AN EXTRAPOLATION of
 *this formula, not a measurement, and so is every figure that rests on it.
 *
 * KV memory is paged: blocks of 16 tokens with reference counts. A full block is found again by the
 * hash of its tokens chained with its predecessor's, whoever sends it; the last token of a prompt
 *is always computed. A block nobody refers to stays findable until it is needed: least recently
 *used first, of one request the deepest first. Without room the youngest running request is
 *preempted and later recomputed. A request may be aborted at any time; what it computed stays
 *cached.
 */
#ifndef TURNWARD_BENCH_MODEL_MODEL_H
#define TURNWARD_BENCH_MODEL_MODEL_H

#include <stddef.h>
#include <stdint.h>

enum {
	MODEL_BLOCK = 16,       /* tokens of a KV block */
	MODEL_SEQUENCES = 1024, /* vLLM's max_num_seqs on a GPU of this size */
	MODEL_BUDGET = 8192,    /* its max_num_batched_tokens */
	MODEL_CONTEXT = 131072, /* longest prompt plus answer */
};
#define MODEL_NEVER UINT64_MAX

/* X(name, served model, W s, W of all experts s, experts' share a token uses, a s/token,
 * b s/token^2, kvr s/token, KV bytes/token, KV capacity tokens); a dense model's share is 1. */
#define MODEL_PROFILES(X)                                                                        \
	X(q8b, "Qwen3-8B", 12.2e-3, 12.2e-3, 1, 2.03e-4, 2.05e-9, 9.8e-8, 147456, 454000)        \
	X(q14b, "Qwen3-14B", 21.2e-3, 21.2e-3, 1, 3.04e-4, 2.81e-9, 1.1e-7, 163840, 329000)      \
	X(q32b, "Qwen3-32B", 48.3e-3, 48.3e-3, 1, 6.4e-4, 7.14e-9, 1.75e-7, 262144, 68000)       \
	X(q32f8, "Qwen3-32B-FP8", 21.7e-3, 21.7e-3, 1, 4.2e-4, 7.31e-9, 1.75e-7, 262144, 192000) \
	X(a3b, "Qwen3-30B-A3B", 7.3e-3, 41e-3, 0.0625, 1.34e-4, 2.66e-9, 6.6e-8, 98304, 228000)

struct model_profile {
	const char *name, *model;
	double weights_s;     /* W: one pass over the weights that one token uses */
	double weights_all_s; /* and over all of them */
	double expert_share;  /* of the experts, what one token uses */
	double token_s;       /* a: per token of the pass, once compute-bound */
	double attention_s;   /* b: per pair of tokens in prefill attention */
	double kv_read_s;     /* kvr: per token of context read by a decode */
	double overhead_s;    /* per step, outside the GPU */
	uint64_t kv_bytes_per_token;
	uint64_t kv_capacity_tokens;
};

const struct model_profile *model_profile_find(const char *name); /* NULL when there is none */
const struct model_profile *model_profile_at(unsigned index);     /* NULL past the last */

/* Zero in a field means the standard value named beside it. */
struct model_options {
	uint32_t budget_tokens;    /* of one step: MODEL_BUDGET */
	uint32_t sequences_max;    /* running at once: MODEL_SEQUENCES */
	uint32_t long_prefill_cap; /* most prompt tokens of one request in one step: no cap */
	uint32_t context_max;      /* prompt plus answer: MODEL_CONTEXT */
	uint64_t kv_tokens;        /* KV capacity: the profile's */
	double slowdown;           /* every step takes this many times longer: 1 */
	uint32_t async;            /* 1: the next step is planned when one begins: 0 */
};

/* Seconds of one step; the formula above, for tests, floors and the laboratory. */
double model_iteration_s(const struct model_profile *profile, uint64_t tokens, double pairs,
			 double decode_context);

/* Seconds to a lone prompt's first token on an idle engine: `cached` of `tokens` are there already.
 */
double model_prefill_s(const struct model_profile *profile, const struct model_options *options,
		       uint32_t cached, uint32_t tokens);

/* Chained hash of one full block; the first block's `before` is the salt (0 without one). */
uint64_t model_block_hash(uint64_t before, const uint32_t ids[MODEL_BLOCK]);

/*
 * The answer's i-th token when the request names none: a word of the tokeniser's fixed vocabulary
 * (tokenizer.h). The first four words spell the seed's low 48 bits, so an answer shows whose it is;
 * the upper 16 bits vary the rest (choices of n > 1). The next turn's prompt repeats these very
 * ids.
 */
uint32_t model_output_id(uint64_t seed, uint32_t index);

struct model;
struct model_request; /* a live request: valid until its MODEL_FINISHED was delivered or its abort
		       */

struct model_submission {
	uint64_t tag;           /* the caller's; comes back in every event */
	const uint32_t *prompt; /* token ids, read during the call only */
	uint32_t prompt_tokens; /* >= 1 */
	uint32_t output_tokens; /* length of the answer, >= 1; cut where the context ends */
	uint64_t salt;          /* part of the cache identity: cache_salt, LoRA */
	uint64_t output_seed;   /* see model_output_id() */
	const uint32_t
		*output; /* the answer's ids instead, borrowed until the request ends, or NULL */
};

enum model_event_kind {
	MODEL_STARTED, /* first scheduled (again after a preemption): its slot starts. At the step's
			  begin */
	MODEL_TOKEN,   /* `id` is the answer's token number `index` (from 0) */
	MODEL_FINISHED,  /* all tokens are out; comes right behind its last MODEL_TOKEN */
	MODEL_PREEMPTED, /* lost its KV blocks, waits to be recomputed */
};

/* What is known of a request's life so far; times as the caller gave them, MODEL_NEVER = not yet.
 */
struct model_life {
	uint32_t prompt_tokens, cached_tokens; /* cached: by the first look-up */
	uint32_t output_tokens;                /* to come in all */
	uint32_t emitted;                      /* so far */
	uint32_t computed_tokens;              /* in KV now */
	uint64_t submitted_ns, started_ns, first_token_ns, last_token_ns;
};

struct model_event {
	enum model_event_kind kind;
	uint32_t index, id; /* MODEL_TOKEN */
	uint64_t tag;
	uint64_t at_ns; /* begin of the step (STARTED, PREEMPTED) or its end */
	struct model_request *request;
	struct model_life life; /* as of this event */
};

int model_new(struct model **ret_model, const struct model_profile *profile,
	      const struct model_options *options); /* options may be NULL; -ENOMEM, -EINVAL */
void model_free(struct model *model);

/*
 * Queues a request. -EINVAL: empty prompt or no output; -E2BIG: the prompt leaves no room for an
 * answer in the context, or it can never fit in the KV cache; -ENOMEM.
 */
int model_submit(struct model *model, const struct model_submission *submission, uint64_t now_ns,
		 struct model_request **ret_request);

/*
 * Ends the request in whatever state; no event follows and it may not be named again. What it holds
 * is free at once, but with `async`: a prefill that the step under way does not end is in the next
 * one already and holds its blocks until that is over. What was computed stays cached.
 */
void model_abort(struct model *model, struct model_request *request);

/* Schedules a step that starts now and returns its end; MODEL_NEVER when there is nothing to run.
 */
uint64_t model_begin(struct model *model, uint64_t now_ns);

/* From the next step on every step takes this many times longer. */
void model_slowdown_set(struct model *model, double slowdown);

/* The engine begins anew: requests, the step under way and the cache are gone; counters go on. */
void model_restart(struct model *model);

/* What runs stands still for so long: the step under way, if there is one, ends later. */
void model_stall(struct model *model, uint64_t ns);

/* The step is over: its events, in order, valid until the next call into the model. Not without
 * one. */
size_t model_end(struct model *model, const struct model_event **ret_events);

/* Begin-of-step events alone (STARTED, PREEMPTED), for callers that act on them before the step
 * ends; model_end() delivers them all the same unless they were taken here. */
size_t model_take_started(struct model *model, const struct model_event **ret_events);

uint64_t
model_step_end(const struct model *model); /* of the step that runs, MODEL_NEVER = none runs */
void model_request_life(const struct model_request *request, struct model_life *ret_life);

/* X(name, meaning): gauges are of this moment, counters since model_new(). */
#define MODEL_GAUGES(X)                                                                 \
	X(running, "requests in the batch, unfinished prefills included")               \
	X(waiting, "requests queued, preempted ones included")                          \
	X(blocks_used, "KV blocks held by live requests, shared ones once")             \
	X(blocks_cached, "KV blocks findable by their hash, held or not")               \
	X(pending_prefill_tokens, "prompt tokens of running requests not yet computed") \
	X(decode_context_tokens, "sum of the contexts being decoded")                   \
	X(decoding, "requests past their prefill")
#define MODEL_COUNTERS(X)                                                                     \
	X(steps, "steps begun")                                                               \
	X(busy_ns, "their durations")                                                         \
	X(submitted, "requests queued")                                                       \
	X(finished, "requests that gave all their tokens")                                    \
	X(aborted, "requests aborted")                                                        \
	X(preemptions, "times a request lost its blocks")                                     \
	X(queried_tokens, "prompt tokens looked up in the prefix cache, first look-ups only") \
	X(hit_tokens, "of these found")                                                       \
	X(prompt_tokens, "prompt tokens of requests that gave their first token")             \
	X(computed_tokens, "prompt tokens computed, recomputation included")                  \
	X(abandoned_tokens, "of these, for requests that were then aborted")                  \
	X(generated_tokens, "tokens given")                                                   \
	X(evicted_blocks, "cached blocks given up for room")                                  \
	X(waited_kv_ns,                                                                       \
	  "durations of steps that left a queue for want of KV room, times its requests")     \
	X(waited_budget_ns, "the same for want of tokens or sequences in the step")           \
	X(held_block_ns, "durations of steps, times the KV blocks held")

struct model_figures {
#define MODEL_FIGURE(name, meaning) uint64_t name;
	MODEL_GAUGES(MODEL_FIGURE)
	MODEL_COUNTERS(MODEL_FIGURE)
#undef MODEL_FIGURE
};

void model_figures_get(const struct model *model, struct model_figures *ret_figures);
uint64_t model_blocks_total(const struct model *model);
const struct model_profile *model_profile_of(const struct model *model);
const struct model_options *model_options_of(const struct model *model); /* standards filled in */

/* Prompt tokens the engine would find cached now, were this prompt admitted. */
uint32_t model_probe(const struct model *model, uint64_t salt, const uint32_t *prompt,
		     uint32_t tokens);

/* Uncached tokens of all waiting requests, as of now: what SGLang reports and vLLM does not. */
uint64_t model_waiting_uncached(const struct model *model);

/*
 * Makes a prefix findable as if it had been pulled from another engine's cache, as far as idle
 * blocks go; what the transfer costs is the caller's business. Returns the tokens of it that are
 * cached now.
 */
uint32_t model_import(struct model *model, uint64_t salt, const uint32_t *prompt, uint32_t tokens);

/* Drops every cached block nobody holds (an engine restarted, a laboratory arm started afresh). */
void model_forget(struct model *model);

/*
 * Makes `to`, of equal profile and options, what `from` is now, requests and the step under way
 * included; what `to` had is dropped. Begin-of-step events are not repeated. -ENOMEM: `to` is
 * good for another copy or model_free() only.
 */
int model_copy(struct model *to, const struct model *from);

/* The live requests, running ones first, each queue in its order; NULL past the last. */
struct model_request *model_request_at(const struct model *model, size_t index);
uint64_t model_request_tag(const struct model_request *request);

/* Aborts the process when the books do not balance: references, free list, hash index, queues. */
void model_check(const struct model *model);

#endif
