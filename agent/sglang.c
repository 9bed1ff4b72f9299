/*
 * SGLang: /v1/loads tells load, queued uncached tokens and the engine's own timing sums, with the
 * time at which the scheduler wrote them. /metrics adds token totals; it costs the engine much more
 * and its gauges can be seconds behind, so it is read once a second, and for load only when loads
 * are missing.
 */
#include "agent/engine.h"

#include <errno.h>
#include <string.h>

#include "shm/base/clock.h"
#include "shm/base/jread.h"

/* X(id, names, fold) */
#define SGLANG_METRICS(X)                                                                         \
	X(RUNNING, "sglang:num_running_reqs", SUM)                                                \
	X(WAITING, "sglang:num_queue_reqs", SUM)                                                  \
	X(KV_USED, "sglang:num_used_tokens|sglang:kv_used_tokens", SUM)                           \
	X(KV_CAPACITY, "sglang:max_total_num_tokens", SUM)                                        \
	X(PAGE_SIZE, "sglang:page_size", MAX)                                                     \
	X(CONTEXT_LEN, "sglang:context_len", MAX)                                                 \
	X(CONTEXTS, "sglang:decode_sum_seq_lens", SUM)                                            \
	X(PROMPT, "sglang:prompt_tokens_total", SUM)                                              \
	X(GENERATION, "sglang:generation_tokens_total", SUM)                                      \
	X(CACHED, "sglang:cached_tokens_total", SUM)                                              \
	X(FINISHED, "sglang:num_requests_total", SUM)                                             \
	X(RETRACTED, "sglang:num_retracted_requests_total", SUM)                                  \
	X(DECODE_S,                                                                               \
	  "sglang:inter_token_latency_seconds_sum|sglang:time_per_output_token_seconds_sum", SUM) \
	X(DECODE_N,                                                                               \
	  "sglang:inter_token_latency_seconds_count|sglang:time_per_output_token_seconds_count",  \
	  SUM)                                                                                    \
	X(STARTUP, "sglang:startup_time_seconds", SUM)

#define SGLANG_ENUM(id, names, fold) SGLANG_##id,
enum sglang_metric { SGLANG_METRICS(SGLANG_ENUM) SGLANG_METRICS_NR };
#undef SGLANG_ENUM
static_assert((int)SGLANG_METRICS_NR <= (int)METRICS_WANTS_MAX, "one table of the parser");

#define SGLANG_WANT(id, names, fold) { names, METRIC_##fold, NULL },
static const struct metric_want sglang_wants[] = { SGLANG_METRICS(SGLANG_WANT) };
#undef SGLANG_WANT

static const struct engine_source_use sglang_uses[] = {
	{ .source = SOURCE_LOADS, .tells_load = 1 },
	{ .source = SOURCE_METRICS,
	  .interval_ns = NS_PER_S,
	  .alone_ns = 200ull * NS_PER_MS,
	  .tells_load = 1 },
	{ .source = SOURCE_MODELS, .interval_ns = 5ull * NS_PER_S, .alone_ns = NS_PER_S },
	{ .source = SOURCE_SERVER_INFO, .interval_ns = UINT64_MAX },
};

static int label_is_zero_or_absent(const struct metric_label *labels, size_t n, const char *name)
{
	const struct metric_label *label = metrics_label(labels, n, name);

	return !label || (label->value_len == 1 && label->value[0] == '0');
}

/* priority="" is the total of the others; ranks of one model other than the first repeat its
 * numbers. */
static int sglang_keep(const struct metric_label *labels, size_t n)
{
	const struct metric_label *priority = metrics_label(labels, n, "priority");

	return (!priority || priority->value_len == 0) &&
	       label_is_zero_or_absent(labels, n, "tp_rank") &&
	       label_is_zero_or_absent(labels, n, "pp_rank");
}

static int has_loads(const struct engine_page *page)
{
	struct jread root, rank;
	double running;

	return jread_open(&root, page->body, page->len) == 0 &&
	       jread_get(&root, "loads[0]", &rank) == 0 &&
	       jread_get_f64(&rank, "num_running_reqs", &running) == 0;
}

static int sglang_probe(const struct engine_page *page)
{
	switch (page->source) {
	case SOURCE_MODELS:
		return engine_models_owner(page, "sglang");
	case SOURCE_METRICS:
		return engine_metrics_begin(page, "sglang:");
	case SOURCE_LOADS:
		return has_loads(page);
	default:
		return 0;
	}
}

/* What a load record holds; summed over data-parallel ranks. X(member, key) */
#define LOAD_SUMS(X)                                       \
	X(running, "num_running_reqs")                     \
	X(waiting, "num_waiting_reqs")                     \
	X(pending, "num_waiting_uncached_tokens")          \
	X(used, "num_used_tokens")                         \
	X(capacity, "max_total_num_tokens")                \
	X(prefill_tokens, "total_prefill_uncached_tokens") \
	X(prefill_us, "total_prefill_busy_us")

struct load_sums {
#define LOAD_MEMBER(member, key) \
	double member;           \
	unsigned member##_nr;
	LOAD_SUMS(LOAD_MEMBER)
#undef LOAD_MEMBER
	double oldest_s; /* of the ranks' time stamps */
	double moments[MOMENTS_NR], tokens;
	unsigned moments_nr, ranks;
};

static void add_moments(const struct jread *rank, struct load_sums *sums)
{
	static const char *const paths[] = { "decode_moments[0]", "decode_moments[1]",
					     "decode_moments[2]", "decode_moments[3]",
					     "decode_moments[4]", "decode_moments[5]" };
	double m[6];

	for (size_t i = 0; i < 6; i++) {
		if (jread_get_f64(rank, paths[i], &m[i]) < 0)
			return;
	}
	sums->moments[MOMENT_N] += m[0];
	sums->moments[MOMENT_B] += m[1];
	sums->moments[MOMENT_T] += m[2] * 1e-6;
	sums->moments[MOMENT_BB] += m[3];
	sums->moments[MOMENT_BT] += m[4] * 1e-6;
	sums->tokens += m[5];
	sums->moments_nr++;
}

static void add_rank(const struct jread *rank, struct load_sums *sums)
{
	double number;

#define LOAD_ADD(member, key)                                        \
	if (jread_get_f64(rank, key, &number) == 0 && number >= 0) { \
		sums->member += number;                              \
		sums->member##_nr++;                                 \
	}
	LOAD_SUMS(LOAD_ADD)
#undef LOAD_ADD
	if (jread_get_f64(rank, "timestamp", &number) == 0 && number > 0 && number < 1e10 &&
	    (sums->oldest_s <= 0 || number < sums->oldest_s))
		sums->oldest_s = number;
	add_moments(rank, sums);
	sums->ranks++;
}

/* A sum counts only if every rank had a part in it. */
#define WHOLE(sums, member) ((sums)->member##_nr == (sums)->ranks)

static void set_load_totals(const struct load_sums *sums, struct engine_reading *reading)
{
	if (WHOLE(sums, prefill_tokens) && WHOLE(sums, prefill_us)) {
		reading->has |= READING_PREFILL;
		reading->prefill_tokens = sums->prefill_tokens;
		reading->prefill_s = sums->prefill_us * 1e-6;
	}
	if (WHOLE(sums, moments)) {
		reading->has |= READING_MOMENTS;
		memcpy(reading->moments, sums->moments, sizeof(reading->moments));
	}
	if (WHOLE(sums, prefill_tokens)) {
		reading->has |= READING_SEQUENCE;
		reading->sequence = sums->prefill_tokens;
	}
	reading->has |= READING_PROGRESS;
	uint64_t sign = engine_mix(ENGINE_MIX_SEED, sums->prefill_tokens);
	sign = engine_mix(sign, sums->moments[MOMENT_N]);
	sign = engine_mix(sign, sums->tokens);
	sign = engine_mix(sign, sums->used);
	sign = engine_mix(sign, sums->pending);
	sign = engine_mix(sign, sums->running);
	if (!WHOLE(sums, moments)) /* before 0.5.17: at least the scheduler's loop turns */
		sign = engine_mix(sign, sums->oldest_s);
	reading->progress = sign;
}

static int read_loads(const struct engine_page *page, struct engine_reading *reading,
		      struct engine_info *info)
{
	struct load_sums sums = { 0 };
	struct jread root, loads;
	struct jread_walk walk;
	char version[sizeof(info->version)];

	if (jread_open(&root, page->body, page->len) < 0 || jread_get(&root, "loads", &loads) < 0)
		return -EBADMSG;
	jread_walk_begin(&walk, &loads);
	while (loads.type == JREAD_ARRAY && jread_walk_next(&walk))
		add_rank(&walk.value, &sums);
	if (sums.ranks == 0 || !WHOLE(&sums, running))
		return -ENODATA;
	READING_SET(reading, running, engine_count(sums.running));
	if (WHOLE(&sums, waiting))
		READING_SET(reading, waiting, engine_count(sums.waiting));
	if (WHOLE(&sums, pending))
		READING_SET(reading, pending_prefill_tokens, engine_count(sums.pending));
	if (WHOLE(&sums, used))
		READING_SET(reading, kv_used_tokens, engine_count(sums.used));
	if (WHOLE(&sums, capacity))
		READING_SET(reading, kv_capacity_tokens, engine_count(sums.capacity));
	if (sums.running < 0.5)
		READING_SET(reading, decode_context_tokens, 0);
	set_load_totals(&sums, reading);
	if (sums.oldest_s > 0)
		reading->snapshot_wall_ns = (uint64_t)(sums.oldest_s * 1e9);
	if (jread_get_str(&root, "version", version, sizeof(version)) == 0)
		engine_text_set(info->version, sizeof(info->version), version, strlen(version));
	return 0;
}

static void set_metrics_totals(const struct metric_value *v, struct engine_reading *reading)
{
	/* Not trusted: up to a second older than the load that they stand beside. */
	if (v[SGLANG_PROMPT].samples) {
		READING_SET(reading, prompt_tokens_total, engine_count(v[SGLANG_PROMPT].value));
		READING_SET(reading, queried_tokens_total, engine_count(v[SGLANG_PROMPT].value));
	}
	if (v[SGLANG_CACHED].samples)
		READING_SET(reading, cached_tokens_total, engine_count(v[SGLANG_CACHED].value));
	if (v[SGLANG_GENERATION].samples)
		READING_SET(reading, generation_tokens_total,
			    engine_count(v[SGLANG_GENERATION].value));
	if (v[SGLANG_FINISHED].samples)
		READING_SET(reading, finished_total, engine_count(v[SGLANG_FINISHED].value));
	if (v[SGLANG_RETRACTED].samples)
		READING_SET(reading, preemptions_total, engine_count(v[SGLANG_RETRACTED].value));
	if (v[SGLANG_DECODE_S].samples && v[SGLANG_DECODE_N].samples) {
		reading->has |= READING_DECODE;
		reading->decode_steps = v[SGLANG_DECODE_N].value;
		reading->decode_s = v[SGLANG_DECODE_S].value;
	}
}

static void set_metrics_gauges(const struct metric_value *v, struct engine_reading *reading)
{
	if (v[SGLANG_RUNNING].samples)
		READING_SET(reading, running, engine_count(v[SGLANG_RUNNING].value));
	if (v[SGLANG_WAITING].samples)
		READING_SET(reading, waiting, engine_count(v[SGLANG_WAITING].value));
	if (v[SGLANG_KV_USED].samples)
		READING_SET(reading, kv_used_tokens, engine_count(v[SGLANG_KV_USED].value));
	if (v[SGLANG_KV_CAPACITY].samples)
		READING_SET(reading, kv_capacity_tokens, engine_count(v[SGLANG_KV_CAPACITY].value));
	if (v[SGLANG_PAGE_SIZE].samples)
		READING_SET(reading, block_size, engine_count(v[SGLANG_PAGE_SIZE].value));
	if (v[SGLANG_CONTEXT_LEN].samples)
		READING_SET(reading, max_model_len, engine_count(v[SGLANG_CONTEXT_LEN].value));
	/* Written every 40 decode steps, with the count of running: 0 beside 0 may be long past. */
	if (v[SGLANG_CONTEXTS].samples && v[SGLANG_CONTEXTS].value > 0)
		READING_SET(reading, decode_context_tokens, engine_count(v[SGLANG_CONTEXTS].value));
}

static int read_metrics(const struct engine_page *page, struct engine_reading *reading)
{
	struct metric_value v[SGLANG_METRICS_NR];
	struct metrics_table table;
	struct metrics_report report;

	metrics_table_init(&table, sglang_wants, SGLANG_METRICS_NR, sglang_keep);
	if (metrics_read(&table, page->body, page->len, v, &report) < 0)
		return -EBADMSG;
	if (!v[SGLANG_RUNNING].samples && !v[SGLANG_PROMPT].samples)
		return -ENODATA;
	set_metrics_gauges(v, reading);
	set_metrics_totals(v, reading);
	if (v[SGLANG_GENERATION].samples) {
		reading->has |= READING_PROGRESS;
		reading->progress = engine_mix(ENGINE_MIX_SEED, v[SGLANG_GENERATION].value);
		reading->progress = engine_mix(reading->progress, v[SGLANG_PROMPT].value);
		reading->progress = engine_mix(reading->progress, v[SGLANG_KV_USED].value);
	}
	if (v[SGLANG_STARTUP].samples)
		reading->start_id = engine_mix(ENGINE_MIX_SEED, v[SGLANG_STARTUP].value);
	for (size_t i = 0; i < SGLANG_METRICS_NR; i++)
		reading->found[i] = v[i].samples ? (uint8_t)(1 + v[i].alias) : 0;
	return 0;
}

static int read_server_info(const struct engine_page *page, struct engine_reading *reading,
			    struct engine_info *info)
{
	char version[sizeof(info->version)];
	struct jread root;
	uint64_t number;

	if (jread_open(&root, page->body, page->len) < 0 || root.type != JREAD_OBJECT)
		return -EBADMSG;
	if (jread_get_u64(&root, "chunked_prefill_size", &number) == 0 && number > 0)
		READING_SET(reading, step_budget_tokens, number);
	if (jread_get_str(&root, "version", version, sizeof(version)) == 0)
		engine_text_set(info->version, sizeof(info->version), version, strlen(version));
	return 0;
}

static int sglang_sample(const struct engine_page *page, struct engine_reading *reading,
			 struct engine_info *info)
{
	switch (page->source) {
	case SOURCE_LOADS:
		return read_loads(page, reading, info);
	case SOURCE_METRICS:
		return read_metrics(page, reading);
	case SOURCE_MODELS:
		return engine_models_sample(page, reading, info);
	case SOURCE_SERVER_INFO:
		return read_server_info(page, reading, info);
	default:
		return -EBADMSG;
	}
}

const struct engine_ops engine_sglang = {
	.name = "sglang",
	.kind = ENGINE_KIND_SGLANG,
	.period_ns = 50ull * NS_PER_MS,
	.uses = sglang_uses,
	.uses_nr = sizeof(sglang_uses) / sizeof(sglang_uses[0]),
	.wants = sglang_wants,
	.wants_nr = SGLANG_METRICS_NR,
	.probe = sglang_probe,
	.sample = sglang_sample,
};
