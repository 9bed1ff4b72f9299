/*
 * llama.cpp's server: /slots shows each running request, /metrics (only with --metrics) the queue
 * and totals. The totals move when a request ends and are printed with six digits, so they measure
 * speeds over many requests and reconcile no books; whether work moves is seen in the slots.
 */
#include "agent/engine.h"

#include <errno.h>
#include <string.h>

#include "shm/base/clock.h"
#include "shm/base/jread.h"

enum { LLAMACPP_DIGITS = 6, LLAMACPP_EXACT_BELOW = 1000000 };

#define LLAMACPP_METRICS(X)                                        \
	X(RUNNING, "llamacpp:requests_processing")                 \
	X(WAITING, "llamacpp:requests_deferred")                   \
	X(PROMPT, "llamacpp:prompt_tokens_total")                  \
	X(PROMPT_S, "llamacpp:prompt_seconds_total")               \
	X(CACHED, "llamacpp:prompt_tokens_cached_total")           \
	X(GENERATION, "llamacpp:tokens_predicted_total")           \
	X(GENERATION_S, "llamacpp:tokens_predicted_seconds_total") \
	X(DECODES, "llamacpp:n_decode_total")

#define LLAMACPP_ENUM(id, names) LLAMACPP_##id,
enum llamacpp_metric { LLAMACPP_METRICS(LLAMACPP_ENUM) LLAMACPP_METRICS_NR };
#undef LLAMACPP_ENUM
static_assert((int)LLAMACPP_METRICS_NR <= (int)METRICS_WANTS_MAX, "one table of the parser");

#define LLAMACPP_WANT(id, names) { names, METRIC_SUM, NULL },
static const struct metric_want llamacpp_wants[] = { LLAMACPP_METRICS(LLAMACPP_WANT) };
#undef LLAMACPP_WANT

static const struct engine_source_use llamacpp_uses[] = {
	{ .source = SOURCE_METRICS, .tells_load = 1 },
	{ .source = SOURCE_SLOTS, .tells_load = 1 },
	{ .source = SOURCE_MODELS, .interval_ns = 5ull * NS_PER_S, .alone_ns = NS_PER_S },
	{ .source = SOURCE_PROPS, .interval_ns = UINT64_MAX },
};

static int is_props(const struct engine_page *page)
{
	struct jread root, unused;

	return jread_open(&root, page->body, page->len) == 0 &&
	       jread_get(&root, "total_slots", &unused) == 0 &&
	       jread_get(&root, "default_generation_settings", &unused) == 0;
}

static int llamacpp_probe(const struct engine_page *page)
{
	switch (page->source) {
	case SOURCE_MODELS:
		return engine_models_owner(page, "llamacpp");
	case SOURCE_METRICS:
		return engine_metrics_begin(page, "llamacpp:");
	case SOURCE_PROPS:
		return is_props(page);
	default:
		return 0;
	}
}

struct slot_sums {
	uint64_t slots, busy, prefilling, context_tokens, decode_tokens, slot_context;
	uint64_t newest_task;
	uint64_t sign;
};

static uint64_t slot_number(const struct jread *slot, const char *path)
{
	uint64_t number;

	return jread_get_u64(slot, path, &number) == 0 ? number : 0;
}

static void add_slot(const struct jread *slot, struct slot_sums *sums)
{
	uint64_t task = slot_number(slot, "id_task");
	uint64_t context = slot_number(slot, "n_ctx");
	struct jread flag;
	int busy = 0;

	sums->slots++;
	sums->slot_context = context > sums->slot_context ? context : sums->slot_context;
	sums->newest_task = task > sums->newest_task ? task : sums->newest_task;
	if (jread_get(slot, "is_processing", &flag) < 0 || jread_bool(&flag, &busy) < 0 || !busy)
		return;
	uint64_t decoded = slot_number(slot, "next_token[0].n_decoded");
	uint64_t computed = slot_number(slot, "n_prompt_tokens_processed");
	uint64_t cached = slot_number(slot, "n_prompt_tokens_cache");
	sums->busy++;
	sums->prefilling += decoded == 0;
	sums->context_tokens += computed + cached + decoded;
	sums->decode_tokens += decoded ? computed + cached + decoded : 0;
	sums->sign = engine_mix(sums->sign, (double)task);
	sums->sign = engine_mix(sums->sign, (double)decoded);
	sums->sign = engine_mix(sums->sign, (double)computed);
}

static int read_slots(const struct engine_page *page, struct engine_reading *reading)
{
	struct slot_sums sums = { .sign = ENGINE_MIX_SEED };
	struct jread root;
	struct jread_walk walk;

	if (jread_open(&root, page->body, page->len) < 0 || root.type != JREAD_ARRAY)
		return -EBADMSG;
	jread_walk_begin(&walk, &root);
	while (jread_walk_next(&walk))
		add_slot(&walk.value, &sums);
	if (sums.slots == 0)
		return -ENODATA;
	READING_SET(reading, running, sums.busy);
	READING_SET(reading, decode_context_tokens, sums.decode_tokens);
	READING_SET(reading, kv_used_tokens, sums.context_tokens);
	if (sums.slot_context) {
		READING_SET(reading, max_model_len, sums.slot_context);
		/* More slots may share one cache or have a part each: not told apart, so not told.
		 */
		if (sums.slots == 1)
			READING_SET(reading, kv_capacity_tokens, sums.slot_context);
	}
	reading->has |= READING_PROGRESS;
	reading->progress = sums.sign;
	if (sums.newest_task) {
		reading->has |= READING_SEQUENCE;
		reading->sequence = (double)sums.newest_task;
	}
	return 0;
}

/* Exact enough for books only as long as six digits hold it. */
#define SET_TOTAL(reading, name, number)                                    \
	((number) < LLAMACPP_EXACT_BELOW                                    \
		 ? (void)READING_TRUST(reading, name, engine_count(number)) \
		 : (void)READING_SET(reading, name, engine_count(number)))

static void set_totals(const struct metric_value *v, struct engine_reading *reading)
{
	double cached = v[LLAMACPP_CACHED].value;

	reading->digits = LLAMACPP_DIGITS;
	if (v[LLAMACPP_PROMPT].samples && v[LLAMACPP_CACHED].samples) {
		/* Theirs excludes cached tokens, ours does not. */
		SET_TOTAL(reading, prompt_tokens_total, v[LLAMACPP_PROMPT].value + cached);
		SET_TOTAL(reading, queried_tokens_total, v[LLAMACPP_PROMPT].value + cached);
		SET_TOTAL(reading, cached_tokens_total, cached);
	}
	if (v[LLAMACPP_GENERATION].samples)
		SET_TOTAL(reading, generation_tokens_total, v[LLAMACPP_GENERATION].value);
	if (v[LLAMACPP_PROMPT].samples && v[LLAMACPP_PROMPT_S].samples) {
		reading->has |= READING_PREFILL;
		reading->prefill_tokens = v[LLAMACPP_PROMPT].value;
		reading->prefill_s = v[LLAMACPP_PROMPT_S].value;
	}
	if (v[LLAMACPP_GENERATION].samples && v[LLAMACPP_GENERATION_S].samples) {
		reading->has |= READING_DECODE;
		reading->decode_steps = v[LLAMACPP_GENERATION].value;
		reading->decode_s = v[LLAMACPP_GENERATION_S].value;
	}
}

static int read_metrics(const struct engine_page *page, struct engine_reading *reading)
{
	struct metric_value v[LLAMACPP_METRICS_NR];
	struct metrics_table table;
	struct metrics_report report;

	metrics_table_init(&table, llamacpp_wants, LLAMACPP_METRICS_NR, NULL);
	if (metrics_read(&table, page->body, page->len, v, &report) < 0)
		return -EBADMSG;
	if (!v[LLAMACPP_RUNNING].samples)
		return -ENODATA;
	READING_SET(reading, running, engine_count(v[LLAMACPP_RUNNING].value));
	if (v[LLAMACPP_WAITING].samples)
		READING_SET(reading, waiting, engine_count(v[LLAMACPP_WAITING].value));
	set_totals(v, reading);
	reading->start_id = page->start_id;
	for (size_t i = 0; i < LLAMACPP_METRICS_NR; i++)
		reading->found[i] = v[i].samples ? (uint8_t)(1 + v[i].alias) : 0;
	return 0;
}

static int read_props(const struct engine_page *page, struct engine_info *info)
{
	char version[sizeof(info->version)];
	struct jread root;

	if (!is_props(page) || jread_open(&root, page->body, page->len) < 0)
		return -EBADMSG;
	if (jread_get_str(&root, "build_info", version, sizeof(version)) == 0)
		engine_text_set(info->version, sizeof(info->version), version, strlen(version));
	return 0;
}

static int llamacpp_sample(const struct engine_page *page, struct engine_reading *reading,
			   struct engine_info *info)
{
	switch (page->source) {
	case SOURCE_METRICS:
		return read_metrics(page, reading);
	case SOURCE_SLOTS:
		return read_slots(page, reading);
	case SOURCE_MODELS:
		return engine_models_sample(page, reading, info);
	case SOURCE_PROPS:
		return read_props(page, info);
	default:
		return -EBADMSG;
	}
}

const struct engine_ops engine_llamacpp = {
	.name = "llamacpp",
	.kind = ENGINE_KIND_LLAMACPP,
	.period_ns = 50ull * NS_PER_MS,
	.uses = llamacpp_uses,
	.uses_nr = sizeof(llamacpp_uses) / sizeof(llamacpp_uses[0]),
	.wants = llamacpp_wants,
	.wants_nr = LLAMACPP_METRICS_NR,
	.probe = llamacpp_probe,
	.sample = llamacpp_sample,
};
