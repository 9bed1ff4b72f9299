/* What the agent of one engine says about it: plain values, the only header the policy needs. */
#ifndef TURNWARD_SHM_STATE_H
#define TURNWARD_SHM_STATE_H

#include <assert.h>
#include <stdint.h>

enum {
	STATE_ENGINES_MAX = 64, /* engines of one region; a bit mask of engines is one word */
	STATE_NAME_MAX = 32,    /* [A-Za-z0-9][A-Za-z0-9._-]{0,31}, without the closing zero */
	STATE_MODELS_MAX = 16,  /* models (and LoRA names) that one engine serves */
	STATE_MODEL_MAX = 120,  /* bytes of a model's name, without the closing zero */
};

enum engine_kind {
	ENGINE_KIND_UNKNOWN,
	ENGINE_KIND_VLLM,
	ENGINE_KIND_SGLANG,
	ENGINE_KIND_LLAMACPP
};

enum engine_health {
	ENGINE_HEALTH_UNKNOWN, /* no agent has reported yet */
	ENGINE_HEALTH_UP,
	ENGINE_HEALTH_STALLED, /* requests run and nothing moves, by a sign valid for that kind */
	ENGINE_HEALTH_DOWN,    /* refuses connections or answers errors */
};

/*
 * The numbers an agent can publish, with unit and meaning. One list: the struct, the mask of fields
 * present, status --json and the "signal missing" metric all come from it. Every value is one
 * 64-bit word. A field whose bit is not in `present` was not reported: it is unknown, never 0.
 * X(name, type, unit, meaning)
 */
#define ENGINE_FIELDS(X)                                                                          \
	X(running, uint64_t, "requests", "in the batch, prefill included")                        \
	X(waiting, uint64_t, "requests", "queued in the engine")                                  \
	X(pending_prefill_tokens, uint64_t, "tokens",                                             \
	  "uncached prompt tokens not yet computed, running prefills' rest included where known") \
	X(decode_context_tokens, uint64_t, "tokens", "sum of contexts being decoded")             \
	X(kv_used_tokens, uint64_t, "tokens", "KV cache held by live requests")                   \
	X(kv_capacity_tokens, uint64_t, "tokens", "KV cache in all")                              \
	X(step_budget_tokens, uint64_t, "tokens", "most tokens of one engine step")               \
	X(prefill_tokens_per_s, double, "tokens/s", "measured from counters, smoothed")           \
	X(decode_iteration_s, double, "s", "measured time of one decode step, smoothed")          \
	X(decode_per_sequence_s, double, "s", "slope of the step time over batch size")           \
	X(cached_tokens_total, uint64_t, "tokens", "prompt tokens served from the prefix cache")  \
	X(queried_tokens_total, uint64_t, "tokens", "prompt tokens looked up in it")              \
	X(admitted_total, uint64_t, "requests", "ever taken by the engine")                       \
	X(finished_total, uint64_t, "requests", "ever ended, by any reason the engine counts")    \
	X(prompt_tokens_total, uint64_t, "tokens", "prompt tokens processed")                     \
	X(generation_tokens_total, uint64_t, "tokens", "tokens generated")                        \
	X(preemptions_total, uint64_t, "requests", "preempted for want of KV room")               \
	X(max_model_len, uint64_t, "tokens", "longest context served")                            \
	X(block_size, uint64_t, "tokens", "of the KV cache's blocks")                             \
	X(gpu_utilization, double, "ratio", "0..1, from the driver")                              \
	X(gpu_memory_used, uint64_t, "bytes", "from the driver")

#define ENGINE_FIELD_ENUM(name, type, unit, meaning) ENGINE_FIELD_##name,
enum engine_field { ENGINE_FIELDS(ENGINE_FIELD_ENUM) ENGINE_FIELDS_NR };
#undef ENGINE_FIELD_ENUM
static_assert(ENGINE_FIELDS_NR <= 64, "`present` and `trusted` are one word each");

struct engine_state {
	uint64_t present;   /* bit (1 << ENGINE_FIELD_x): x was reported */
	uint64_t trusted;   /* likewise: this counter is exact enough to reconcile books with */
	uint64_t read_ns;   /* CLOCK_MONOTONIC when the engine was read, 0 = never */
	uint64_t period_ns; /* the agent's announced sampling period */
	uint64_t epoch;   /* start id of the engine: another value = restarted, its cache is gone */
	uint64_t kind;    /* enum engine_kind */
	uint64_t health;  /* enum engine_health */
	uint64_t scrapes; /* samples published since the agent's start */
	uint64_t failures; /* scrapes that failed since the agent's start */
#define ENGINE_FIELD_MEMBER(name, type, unit, meaning) type name;
	ENGINE_FIELDS(ENGINE_FIELD_MEMBER)
#undef ENGINE_FIELD_MEMBER
};
static_assert(sizeof(struct engine_state) % 8 == 0, "the slot copies words");
static_assert(sizeof(struct engine_state) == (9 + ENGINE_FIELDS_NR) * 8, "one word per value");

static inline int engine_has(const struct engine_state *s, enum engine_field field)
{
	return (int)(s->present >> field & 1);
}

#define ENGINE_HAS(s, name) engine_has((s), ENGINE_FIELD_##name)
#define ENGINE_SET(s, name, value) \
	((s)->name = (value), (s)->present |= 1ull << ENGINE_FIELD_##name)

/* What seldom changes about an engine; published apart so that a decision need not copy it. */
struct engine_info {
	char name[STATE_NAME_MAX + 8]; /* zero-terminated, as every string here */
	char url[256];
	char version[64];
	char gpu[64];       /* index and product name, "" when unknown */
	uint64_t models_nr; /* 0 = the list could not be had: the engine takes any name */
	char models[STATE_MODELS_MAX][STATE_MODEL_MAX + 8];
	uint64_t metrics_source; /* bit mask, the agent's own: which endpoints answered */
};
static_assert(sizeof(struct engine_info) % 8 == 0, "the slot copies words");

#endif
