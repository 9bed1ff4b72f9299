/*
 * A modelled engine's /metrics page: the names, labels and size of the engine it plays, the values
 * of its model. Seconds are the wall's: at --speed X they are the model's divided by X.
 */
#ifndef TURNWARD_BENCH_ENGINE_METRICS_H
#define TURNWARD_BENCH_ENGINE_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/engine_out.h"
#include "bench/engine_reply.h"
#include "bench/model/model.h"

/* X(id, name behind "vllm:", bounds, help) */
#define METRICS_HISTOGRAMS(X)                                                                      \
	X(PROMPT, "request_prompt_tokens", TOKENS, "Number of prefill tokens processed.")          \
	X(GENERATION, "request_generation_tokens", TOKENS,                                         \
	  "Number of generation tokens processed.")                                                \
	X(ITERATION, "iteration_tokens_total", ITERATION,                                          \
	  "Histogram of number of tokens per engine_step.")                                        \
	X(MAX_GENERATION, "request_max_num_generation_tokens", TOKENS,                             \
	  "Histogram of maximum number of requested generation tokens.")                           \
	X(PARAM_N, "request_params_n", FEW, "Histogram of the n request parameter.")               \
	X(PARAM_MAX, "request_params_max_tokens", TOKENS,                                          \
	  "Histogram of the max_tokens request parameter.")                                        \
	X(TTFT, "time_to_first_token_seconds", TTFT,                                               \
	  "Histogram of time to first token in seconds.")                                          \
	X(ITL, "inter_token_latency_seconds", ITL, "Histogram of inter-token latency in seconds.") \
	X(TPOT, "request_time_per_output_token_seconds", ITL,                                      \
	  "Histogram of time_per_output_token_seconds per request.")                               \
	X(E2E, "e2e_request_latency_seconds", LONG,                                                \
	  "Histogram of e2e request latency in seconds.")                                          \
	X(QUEUE, "request_queue_time_seconds", LONG,                                               \
	  "Histogram of time spent in WAITING phase for request.")                                 \
	X(INFERENCE, "request_inference_time_seconds", LONG,                                       \
	  "Histogram of time spent in RUNNING phase for request.")                                 \
	X(PREFILL, "request_prefill_time_seconds", LONG,                                           \
	  "Histogram of time spent in PREFILL phase for request.")                                 \
	X(DECODE, "request_decode_time_seconds", LONG,                                             \
	  "Histogram of time spent in DECODE phase for request.")                                  \
	X(PREEMPTIONS, "request_num_preemptions", PREEMPTIONS,                                     \
	  "Histogram of the number of times a request was preempted.")                             \
	X(COMPUTED, "request_prefill_kv_computed_tokens", TOKENS,                                  \
	  "Histogram of new KV tokens computed during prefill (excluding cached tokens).")
#define METRICS_ENUM(id, name, bounds, help) METRICS_##id,
enum metrics_histogram { METRICS_HISTOGRAMS(METRICS_ENUM) METRICS_HISTOGRAMS_NR };
#undef METRICS_ENUM

/* The paths that the HTTP counters tell apart. X(id, path, method) */
#define METRICS_HANDLERS(X)                       \
	X(CHAT, "/v1/chat/completions", "POST")   \
	X(COMPLETIONS, "/v1/completions", "POST") \
	X(MESSAGES, "/v1/messages", "POST")       \
	X(RESPONSES, "/v1/responses", "POST")     \
	X(EMBEDDINGS, "/v1/embeddings", "POST")   \
	X(TOKENIZE, "/tokenize", "POST")          \
	X(MODELS, "/v1/models", "GET")            \
	X(NONE, "none", "GET")
#define METRICS_ENUM(id, path, method) METRICS_HANDLER_##id,
enum metrics_handler { METRICS_HANDLERS(METRICS_ENUM) METRICS_HANDLERS_NR };
#undef METRICS_ENUM

enum { METRICS_BOUNDS_MAX = 24 };

struct metrics_count {
	uint64_t bucket[METRICS_BOUNDS_MAX]; /* not cumulative; the last is +Inf */
	uint64_t count;
	double sum;
};

struct metrics_http {
	uint64_t good, bad, request_bytes, response_bytes, seconds_bucket[3], all;
	double seconds;
};

struct metrics_line {
	uint32_t at, len; /* of the fixed text before the value */
	uint8_t kind;
	const void *value;
};

struct metrics {
	enum engine_head head;
	const double *bounds[METRICS_HISTOGRAMS_NR];
	struct metrics_count histogram[METRICS_HISTOGRAMS_NR];
	struct metrics_http http[METRICS_HANDLERS_NR];
	struct model_figures shown; /* what the engine would show: as of its last step */
	double kv_usage, hit_rate, generation_rate, cpu_s, resident_bytes;
	uint64_t zero, one, finished_stop, finished_length, rejected;
	uint64_t kv_used_tokens, kv_free_tokens, kv_cached_tokens, computed_prompt_tokens;
	uint64_t longest_tokens;
	double prompt_s, output_s, prompt_rate, output_rate, busy_slots; /* llama.cpp */
	struct out text;                                                 /* all fixed text */
	struct metrics_line *line;
	uint32_t lines, lines_room;
};

struct metrics_world {
	enum engine_head head;
	const char *model;
	uint64_t start_wall_ns; /* process_start_time_seconds and the _created series */
	uint64_t kv_blocks, kv_bytes, context_max;
};

void metrics_init(struct metrics *m, const struct metrics_world *world);
void metrics_fini(struct metrics *m);

void metrics_observe(struct metrics *m, enum metrics_histogram which, double value);
void metrics_show(struct metrics *m, const struct model_figures *figures, uint64_t blocks_total);
void metrics_http_done(struct metrics *m, enum metrics_handler handler, int status,
		       uint64_t request_bytes, uint64_t response_bytes, double seconds);
void metrics_page(struct metrics *m, struct out *o);

#endif
