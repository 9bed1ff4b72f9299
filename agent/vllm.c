/* vLLM: everything comes from /metrics; queued prefill tokens are not on it, so they stay absent.
 */
#include "agent/engine.h"

#include <errno.h>
#include <string.h>

#include "shm/base/clock.h"
#include "shm/base/jread.h"

/* Old names follow new ones. X(id, names, fold, label) */
#define VLLM_METRICS(X)                                                                            \
	X(RUNNING, "vllm:num_requests_running", SUM, NULL)                                         \
	X(WAITING, "vllm:num_requests_waiting", SUM, NULL)                                         \
	X(KV_USAGE, "vllm:kv_cache_usage_perc|vllm:gpu_cache_usage_perc", MEAN, NULL)              \
	X(QUERIES, "vllm:prefix_cache_queries_total|vllm:gpu_prefix_cache_queries_total", SUM,     \
	  NULL)                                                                                    \
	X(HITS, "vllm:prefix_cache_hits_total|vllm:gpu_prefix_cache_hits_total", SUM, NULL)        \
	X(PREEMPTIONS, "vllm:num_preemptions_total", SUM, NULL)                                    \
	X(PROMPT, "vllm:prompt_tokens_total", SUM, NULL)                                           \
	X(GENERATION, "vllm:generation_tokens_total", SUM, NULL)                                   \
	X(FINISHED, "vllm:request_success_total", SUM, NULL)                                       \
	X(PREFILL_TOKENS, "vllm:request_prefill_kv_computed_tokens_sum", SUM, NULL)                \
	X(PREFILLS, "vllm:request_prefill_kv_computed_tokens_count", SUM, NULL)                    \
	X(PREFILL_S, "vllm:request_prefill_time_seconds_sum", SUM, NULL)                           \
	X(DECODE_S, "vllm:inter_token_latency_seconds_sum|vllm:time_per_output_token_seconds_sum", \
	  SUM, NULL)                                                                               \
	X(DECODE_N,                                                                                \
	  "vllm:inter_token_latency_seconds_count|vllm:time_per_output_token_seconds_count", SUM,  \
	  NULL)                                                                                    \
	X(ITERATIONS, "vllm:iteration_tokens_total_count", SUM, NULL)                              \
	X(KV_TOKENS, "vllm:cache_config_info", SUM, "kv_cache_size_tokens")                        \
	X(KV_BLOCKS, "vllm:cache_config_info", SUM, "num_gpu_blocks")                              \
	X(BLOCK_SIZE, "vllm:cache_config_info", MAX, "block_size")                                 \
	X(CREATED, "vllm:prompt_tokens_created|process_start_time_seconds", MIN, NULL)

#define VLLM_ENUM(id, names, fold, label) VLLM_##id,
enum vllm_metric { VLLM_METRICS(VLLM_ENUM) VLLM_METRICS_NR };
#undef VLLM_ENUM
static_assert((int)VLLM_METRICS_NR <= (int)METRICS_WANTS_MAX, "one table of the parser");

#define VLLM_WANT(id, names, fold, label) { names, METRIC_##fold, label },
static const struct metric_want vllm_wants[] = { VLLM_METRICS(VLLM_WANT) };
#undef VLLM_WANT

static const struct engine_source_use vllm_uses[] = {
	{ .source = SOURCE_METRICS, .tells_load = 1 },
	{ .source = SOURCE_MODELS, .interval_ns = 5ull * NS_PER_S, .alone_ns = NS_PER_S },
	/* Its front end outlives a dead core and goes on serving that core's last numbers. */
	{ .source = SOURCE_HEALTH, .interval_ns = NS_PER_S, .vital = 1 },
	{ .source = SOURCE_VERSION, .interval_ns = UINT64_MAX },
};

/* {"version":"0.32.0"} and nothing else; other servers have more or none. */
static int read_version(const struct engine_page *page, char *ret_text, size_t size)
{
	struct jread root;

	if (jread_open(&root, page->body, page->len) < 0 ||
	    jread_get_str(&root, "version", ret_text, size) < 0)
		return -EBADMSG;
	return (int)jread_count(&root);
}

static int vllm_probe(const struct engine_page *page)
{
	switch (page->source) {
	case SOURCE_MODELS:
		return engine_models_owner(page, "vllm");
	case SOURCE_METRICS:
		return engine_metrics_begin(page, "vllm:");
	default:
		return 0;
	}
}

static void set_kv(const struct metric_value *v, struct engine_reading *reading)
{
	double capacity = 0;

	if (v[VLLM_BLOCK_SIZE].samples)
		READING_SET(reading, block_size, engine_count(v[VLLM_BLOCK_SIZE].value));
	if (v[VLLM_KV_TOKENS].samples)
		capacity = v[VLLM_KV_TOKENS].value;
	else if (v[VLLM_KV_BLOCKS].samples && v[VLLM_BLOCK_SIZE].samples)
		capacity = v[VLLM_KV_BLOCKS].value * v[VLLM_BLOCK_SIZE].value;
	if (capacity <= 0)
		return;
	READING_SET(reading, kv_capacity_tokens, engine_count(capacity));
	if (v[VLLM_KV_USAGE].samples)
		READING_SET(reading, kv_used_tokens,
			    engine_count(v[VLLM_KV_USAGE].value * capacity));
}

static void set_counters(const struct metric_value *v, struct engine_reading *reading)
{
	if (v[VLLM_QUERIES].samples)
		READING_TRUST(reading, queried_tokens_total, engine_count(v[VLLM_QUERIES].value));
	if (v[VLLM_HITS].samples)
		READING_TRUST(reading, cached_tokens_total, engine_count(v[VLLM_HITS].value));
	if (v[VLLM_PREEMPTIONS].samples)
		READING_TRUST(reading, preemptions_total, engine_count(v[VLLM_PREEMPTIONS].value));
	if (v[VLLM_PROMPT].samples)
		READING_TRUST(reading, prompt_tokens_total, engine_count(v[VLLM_PROMPT].value));
	if (v[VLLM_GENERATION].samples)
		READING_TRUST(reading, generation_tokens_total,
			      engine_count(v[VLLM_GENERATION].value));
	if (v[VLLM_FINISHED].samples) /* not trusted: a client's abort does not move it */
		READING_SET(reading, finished_total, engine_count(v[VLLM_FINISHED].value));
}

static void set_totals(const struct metric_value *v, struct engine_reading *reading)
{
	if (v[VLLM_PREFILL_TOKENS].samples && v[VLLM_PREFILL_S].samples) {
		reading->has |= READING_PREFILL;
		reading->prefill_tokens = v[VLLM_PREFILL_TOKENS].value;
		reading->prefill_s = v[VLLM_PREFILL_S].value;
	}
	if (v[VLLM_PREFILLS].samples) {
		reading->has |= READING_PREFILLS;
		reading->prefills = v[VLLM_PREFILLS].value;
	}
	if (v[VLLM_DECODE_S].samples && v[VLLM_DECODE_N].samples) {
		reading->has |= READING_DECODE;
		reading->decode_steps = v[VLLM_DECODE_N].value;
		reading->decode_s = v[VLLM_DECODE_S].value;
	}
}

/*
 * A chunked prefill moves no token counter before its last chunk, but it takes KV blocks with every
 * chunk: with the usage among the signs, a long prefill is not mistaken for a stall.
 */
static void set_progress(const struct metric_value *v, struct engine_reading *reading)
{
	static const enum vllm_metric signs[] = { VLLM_GENERATION, VLLM_PROMPT,   VLLM_ITERATIONS,
						  VLLM_QUERIES,    VLLM_FINISHED, VLLM_KV_USAGE,
						  VLLM_RUNNING,    VLLM_WAITING };

	if (!v[VLLM_GENERATION].samples)
		return;
	reading->has |= READING_PROGRESS;
	reading->progress = ENGINE_MIX_SEED;
	for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++)
		reading->progress = engine_mix(reading->progress, v[signs[i]].value);
}

static int read_metrics(const struct engine_page *page, struct engine_reading *reading)
{
	struct metric_value v[VLLM_METRICS_NR];
	struct metrics_table table;
	struct metrics_report report;

	metrics_table_init(&table, vllm_wants, VLLM_METRICS_NR, NULL);
	if (metrics_read(&table, page->body, page->len, v, &report) < 0)
		return -EBADMSG;
	if (!v[VLLM_RUNNING].samples)
		return -ENODATA; /* --disable-log-stats, or not a vLLM */
	READING_SET(reading, running, engine_count(v[VLLM_RUNNING].value));
	if (v[VLLM_WAITING].samples)
		READING_SET(reading, waiting, engine_count(v[VLLM_WAITING].value));
	set_kv(v, reading);
	set_counters(v, reading);
	set_totals(v, reading);
	set_progress(v, reading);
	if (v[VLLM_CREATED].samples)
		reading->start_id = engine_mix(ENGINE_MIX_SEED, v[VLLM_CREATED].value);
	for (size_t i = 0; i < VLLM_METRICS_NR; i++)
		reading->found[i] = v[i].samples ? (uint8_t)(1 + v[i].alias) : 0;
	return 0;
}

static int vllm_sample(const struct engine_page *page, struct engine_reading *reading,
		       struct engine_info *info)
{
	char version[sizeof(info->version)] = "";

	switch (page->source) {
	case SOURCE_METRICS:
		return read_metrics(page, reading);
	case SOURCE_MODELS:
		return engine_models_sample(page, reading, info);
	case SOURCE_HEALTH:
		return 0; /* the status says it all */
	case SOURCE_VERSION:
		if (read_version(page, version, sizeof(version)) < 0)
			return -EBADMSG;
		engine_text_set(info->version, sizeof(info->version), version, strlen(version));
		return 0;
	default:
		return -EBADMSG;
	}
}

const struct engine_ops engine_vllm = {
	.name = "vllm",
	.kind = ENGINE_KIND_VLLM,
	.period_ns = 100ull * NS_PER_MS,
	.uses = vllm_uses,
	.uses_nr = sizeof(vllm_uses) / sizeof(vllm_uses[0]),
	.wants = vllm_wants,
	.wants_nr = VLLM_METRICS_NR,
	.probe = vllm_probe,
	.sample = vllm_sample,
};
