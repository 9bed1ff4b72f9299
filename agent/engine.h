/*
 * PURE: what the agent knows about each kind of engine: the pages it serves, how to recognise it by
 * them, and how a page becomes a reading.
 *
 * A reading holds only what the page said. What follows from two readings (speeds, a restart, a
 * stall) is rate.h's and watch.h's business; when to ask for which page is sampler.h's.
 */
#ifndef TURNWARD_AGENT_ENGINE_H
#define TURNWARD_AGENT_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "agent/metrics.h"
#include "shm/state.h"

/* Everything the agent can read from; a bit each in engine_info.metrics_source once it answered. */
#define ENGINE_SOURCES(X)                  \
	X(METRICS, "/metrics")             \
	X(LOADS, "/v1/loads?include=core") \
	X(SLOTS, "/slots")                 \
	X(MODELS, "/v1/models")            \
	X(VERSION, "/version")             \
	X(SERVER_INFO, "/get_server_info") \
	X(PROPS, "/props")                 \
	X(HEALTH, "/health")               \
	X(GPU, "the driver (NVML)")

#define ENGINE_SOURCE_ENUM(id, path) SOURCE_##id,
enum engine_source { ENGINE_SOURCES(ENGINE_SOURCE_ENUM) SOURCES_NR };
#undef ENGINE_SOURCE_ENUM

/* The path, or for SOURCE_GPU words for people. */
const char *engine_source_path(enum engine_source source);

/* The answer to a GET of a source, complete and with status 200. */
struct engine_page {
	enum engine_source source;
	const char *body;
	size_t len;
	uint64_t start_id; /* of the head's Process-Start-Time-Unix, for equality only; 0 = none */
};

/* Pairs of totals that only grow while an engine lives; `has` says which a reading has. */
enum {
	READING_PREFILL = 1,   /* prefill_tokens in prefill_s */
	READING_DECODE = 2,    /* decode_steps in decode_s */
	READING_MOMENTS = 4,   /* moments[] */
	READING_PROGRESS = 8,  /* progress */
	READING_SEQUENCE = 16, /* sequence */
	READING_PREFILLS = 32  /* prefills */
};

enum reading_moment { MOMENT_N, MOMENT_B, MOMENT_T, MOMENT_BB, MOMENT_BT, MOMENTS_NR };

struct engine_reading {
	struct engine_state state; /* values, present, trusted; the rest of it is the sampler's */
	uint64_t start_id; /* of the engine's process, for equality only; 0 = it tells none */
	uint64_t
		snapshot_wall_ns; /* when the engine wrote down what it told; 0 = it does not say */
	uint64_t progress;        /* changes whenever work moves: a sign valid for this kind */
	uint32_t has;
	uint32_t digits; /* significant digits of the totals below; 0 = exact */
	double prefill_tokens, prefill_s, prefills; /* the last: requests they belong to */
	double decode_steps, decode_s;
	double moments[MOMENTS_NR];       /* sums over decode steps; b = batch size, t in seconds */
	double sequence;                  /* grows while the engine lives and has no other use */
	uint8_t found[METRICS_WANTS_MAX]; /* per row of the kind's table: 0 = absent, else 1 + alias
					   */
};

/* A page of a kind and how often it is worth asking for. */
struct engine_source_use {
	enum engine_source source;
	uint64_t interval_ns; /* 0 = every sample, UINT64_MAX = once per life of the engine */
	uint64_t alone_ns;    /* instead, while no source above it in the table answers */
	int tells_load;       /* 1: a sample is good when one of these answered */
	int vital; /* 1: an error answer means the engine is dead, whatever else answers */
};

struct engine_ops {
	const char *name; /* "vllm" */
	enum engine_kind kind;
	uint64_t period_ns;                   /* default sampling period */
	const struct engine_source_use *uses; /* required */
	size_t uses_nr;
	const struct metric_want *wants; /* required: the rows of /metrics */
	size_t wants_nr;

	/* Required: 1 if only this kind of engine says so, 0 if the page does not tell. */
	int (*probe)(const struct engine_page *page);

	/*
	 * Required: adds what the page says. -EBADMSG: not what that source should say; -ENODATA:
	 * the page is served but none of its signals is on it. Both leave reading and info
	 * untouched.
	 */
	int (*sample)(const struct engine_page *page, struct engine_reading *reading,
		      struct engine_info *info);
};

extern const struct engine_ops engine_vllm, engine_sglang, engine_llamacpp;

/* What serves models and is none of these: watched for life and models, its load stays unknown. */
extern const struct engine_ops engine_other;

/* All kinds but engine_other, NULL-terminated. */
extern const struct engine_ops *const engine_kinds[];

const struct engine_ops *engine_ops_named(const char *name); /* NULL when there is none */
const struct engine_ops *engine_ops_of(enum engine_kind kind);
const char *engine_health_name(enum engine_health health);

/* ---- for the kinds' own files ---- */

/* /v1/models: names and the longest context. 1 if some model is owned by `owner`. */
int engine_models_owner(const struct engine_page *page, const char *owner);

/*
 * Fills models and models_nr; adds max_model_len. -ENODATA (and models_nr = 0: any name is taken)
 * for a list that is empty, longer than STATE_MODELS_MAX, or has a name too long to be matched.
 */
int engine_models_sample(const struct engine_page *page, struct engine_reading *reading,
			 struct engine_info *info);

/* 1 if some line of a metrics page begins with `prefix` ("vllm:"). */
int engine_metrics_begin(const struct engine_page *page, const char *prefix);

/* Mixes a number into a progress sign or a start id (FNV-1a over its bits). */
uint64_t engine_mix(uint64_t seed, double value);
enum { ENGINE_MIX_SEED = 0x1b873593 };

/* Copies a JSON string, or a text, into a field of engine_info, cut to fit. */
void engine_text_set(char *ret_text, size_t size, const char *text, size_t len);

#define READING_SET(reading, name, value) ENGINE_SET(&(reading)->state, name, value)
#define READING_TRUST(reading, name, value)          \
	(ENGINE_SET(&(reading)->state, name, value), \
	 (reading)->state.trusted |= 1ull << ENGINE_FIELD_##name)

/* A count as the region holds it: clamped, never a wrapped or NaN value. */
uint64_t engine_count(double number);

#endif
