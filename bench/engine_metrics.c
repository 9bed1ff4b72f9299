/* The page is laid out once as fixed text with holes; a scrape fills the holes and copies the rest.
 */
#include "bench/engine_metrics.h"

#include <math.h>
#include <sys/resource.h>

enum line_kind { LINE_U64, LINE_REAL, LINE_BUCKET, LINE_BUCKET_FIRST, LINE_TEXT };

#define END INFINITY
static const double bounds_TOKENS[] = { 1,    2,    5,    10,    20,    50,    100,    200, 500,
					1000, 2000, 5000, 10000, 20000, 50000, 100000, END };
static const double bounds_ITERATION[] = { 1,   8,    16,   32,   64,   128,   256,
					   512, 1024, 2048, 4096, 8192, 16384, END };
static const double bounds_FEW[] = { 1, 2, 5, 10, 20, END };
static const double bounds_PREEMPTIONS[] = { 1, 2, 3, 4, 5, 10, 20, END };
static const double bounds_TTFT[] = { .001, .005, .01, .02, .04, .06, .08, .1,  .25, .5,   .75, 1,
				      2.5,  5,    7.5, 10,  20,  40,  80,  160, 640, 2560, END };
static const double bounds_ITL[] = { .01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
				     .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80, END };
static const double bounds_LONG[] = { .3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,   20,
				      30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680, END };
static const double bounds_SGLANG_TTFT[] = { .1, .2, .4, .6, .8, 1,   2,   4,   6,  8,
					     10, 20, 40, 60, 80, 100, 200, 400, END };
static const double bounds_SGLANG_ITL[] = { .002, .004, .006, .008, .01, .015, .02, .025,
					    .03,  .035, .04,  .06,  .08, .1,   .2,  .4,
					    .6,   .8,   1,    2,    4,   6,    8,   END };

struct layout {
	struct metrics *m;
	const struct metrics_world *world;
	char labels[256], created[32];
	uint32_t from; /* fixed text not yet in a line */
};

static void line_end(struct layout *l, enum line_kind kind, const void *value)
{
	struct metrics *m = l->m;

	if (m->lines == m->lines_room) {
		m->lines_room = m->lines_room ? 2 * m->lines_room : 256;
		m->line = realloc(m->line, m->lines_room * sizeof(*m->line));
		assert(m->line);
	}
	m->line[m->lines++] = (struct metrics_line){ .at = l->from,
						     .len = (uint32_t)m->text.len - l->from,
						     .kind = (uint8_t)kind,
						     .value = value };
	l->from = (uint32_t)m->text.len;
}

static void describe(struct layout *l, const char *name, const char *type, const char *help)
{
	out_fmt(&l->m->text, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* name{labels,more} VALUE */
static void sample(struct layout *l, const char *name, const char *more, enum line_kind kind,
		   const void *value)
{
	struct out *t = &l->m->text;
	const char *comma = l->labels[0] && more[0] ? "," : "";

	out_str(t, name);
	if (l->labels[0] || more[0])
		out_fmt(t, "{%s%s%s}", l->labels, comma, more);
	out_str(t, " ");
	line_end(l, kind, value);
}

static void fixed(struct layout *l, const char *name, const char *more, const char *value)
{
	out_fmt(&l->m->text, "%s{%s%s%s} %s\n", name, l->labels, more[0] ? "," : "", more, value);
}

static void gauge(struct layout *l, const char *name, const char *help, enum line_kind kind,
		  const void *value)
{
	describe(l, name, "gauge", help);
	sample(l, name, "", kind, value);
}

/* One counter split by a label's values (ended by NULL), with its _created twin as vLLM has it. */
static void counter(struct layout *l, const char *name, const char *help, const char *label,
		    const char *const values[], const void *const at[])
{
	static const char *const alone[] = { "", NULL };
	char full[128], more[64];

	snprintf(full, sizeof(full), "%s_total", name);
	describe(l, full, "counter", help);
	for (int i = 0; (values ? values : alone)[i]; i++) {
		snprintf(more, sizeof(more), values ? "%s=\"%s\"" : "%s%s", label,
			 (values ? values : alone)[i]);
		sample(l, full, more, LINE_U64, at[i]);
	}
	if (l->m->head != HEAD_VLLM)
		return;
	snprintf(full, sizeof(full), "%s_created", name);
	describe(l, full, "gauge", help);
	for (int i = 0; (values ? values : alone)[i]; i++) {
		snprintf(more, sizeof(more), values ? "%s=\"%s\"" : "%s%s", label,
			 (values ? values : alone)[i]);
		fixed(l, full, more, l->created);
	}
}

static void counter_one(struct layout *l, const char *name, const char *help, const void *at)
{
	counter(l, name, help, "", NULL, &at);
}

static void bound_text(char text[32], double bound)
{
	if (isinf(bound))
		snprintf(text, 32, "le=\"+Inf\"");
	else
		snprintf(text, 32, bound == floor(bound) ? "le=\"%.1f\"" : "le=\"%g\"", bound);
}

static void histogram(struct layout *l, const char *name, enum metrics_histogram which,
		      const char *help)
{
	const double *bounds = l->m->bounds[which];
	struct metrics_count *h = &l->m->histogram[which];
	char full[128], more[32];

	describe(l, name, "histogram", help);
	snprintf(full, sizeof(full), "%s_bucket", name);
	for (int i = 0;; i++) {
		bound_text(more, bounds[i]);
		sample(l, full, more, i ? LINE_BUCKET : LINE_BUCKET_FIRST, &h->bucket[i]);
		if (isinf(bounds[i]))
			break;
	}
	snprintf(full, sizeof(full), "%s_count", name);
	sample(l, full, "", LINE_U64, &h->count);
	snprintf(full, sizeof(full), "%s_sum", name);
	sample(l, full, "", LINE_REAL, &h->sum);
	if (l->m->head != HEAD_VLLM)
		return;
	snprintf(full, sizeof(full), "%s_created", name);
	describe(l, full, "gauge", help);
	fixed(l, full, "", l->created);
}

static void lay_process(struct layout *l, const char *prefix)
{
	struct metrics *m = l->m;
	char name[96];

	if (!prefix[0]) {
		out_str(&m->text,
			"# HELP python_info Python platform information\n"
			"# TYPE python_info gauge\npython_info{implementation=\"CPython\","
			"major=\"3\",minor=\"12\",patchlevel=\"8\",version=\"3.12.8\"} 1.0\n");
		gauge(l, "process_resident_memory_bytes", "Resident memory size in bytes.",
		      LINE_REAL, &m->resident_bytes);
		describe(l, "process_start_time_seconds", "gauge",
			 "Start time of the process since unix epoch in seconds.");
		out_fmt(&m->text, "process_start_time_seconds %s\n", l->created);
	}
	snprintf(name, sizeof(name), "%sprocess_cpu_seconds_total", prefix);
	describe(l, name, "counter", "Total user and system CPU time spent in seconds.");
	sample(l, name, "", LINE_REAL, &m->cpu_s);
}

static void lay_vllm_gauges(struct layout *l)
{
	struct metrics *m = l->m;

	gauge(l, "vllm:num_requests_running", "Number of requests in model execution batches.",
	      LINE_U64, &m->shown.running);
	gauge(l, "vllm:num_requests_waiting", "Number of requests waiting to be processed.",
	      LINE_U64, &m->shown.waiting);
	describe(l, "vllm:num_requests_waiting_by_reason", "gauge",
		 "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for "
		 "scheduling capacity; 'deferred' = deferred by transient constraints.");
	sample(l, "vllm:num_requests_waiting_by_reason", "reason=\"capacity\"", LINE_U64,
	       &m->shown.waiting);
	sample(l, "vllm:num_requests_waiting_by_reason", "reason=\"deferred\"", LINE_U64, &m->zero);
	describe(
		l, "vllm:engine_sleep_state", "gauge",
		"Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is "
		"awake; weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep "
		"level 2.");
	sample(l, "vllm:engine_sleep_state", "sleep_state=\"awake\"", LINE_U64, &m->one);
	sample(l, "vllm:engine_sleep_state", "sleep_state=\"weights_offloaded\"", LINE_U64,
	       &m->zero);
	sample(l, "vllm:engine_sleep_state", "sleep_state=\"discard_all\"", LINE_U64, &m->zero);
	gauge(l, "vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.",
	      LINE_REAL, &m->kv_usage);
}

static void lay_vllm_counters(struct layout *l)
{
	static const char *const sources[] = { "local_compute", "local_cache_hit",
					       "external_kv_transfer", NULL };
	static const char *const tiers[] = {
		"device", "host", "p2p", "disk", "external_unspecified", NULL
	};
	static const char *const reasons[] = { "stop",  "length",     "abort",
					       "error", "repetition", NULL };
	static const char *const limits[] = { "max_num_queued_reqs", "max_num_queued_tokens",
					      NULL };
	struct metrics *m = l->m;
	const struct model_figures *f = &m->shown;

	counter_one(l, "vllm:prefix_cache_queries",
		    "Prefix cache queries, in terms of number of queried tokens.",
		    &f->queried_tokens);
	counter_one(l, "vllm:prefix_cache_hits",
		    "Prefix cache hits, in terms of number of cached tokens.", &f->hit_tokens);
	counter_one(l, "vllm:external_prefix_cache_queries",
		    "External prefix cache queries from KV connector cache sharing, in "
		    "terms of number of queried tokens.",
		    &m->zero);
	counter_one(l, "vllm:external_prefix_cache_hits",
		    "External prefix cache hits from KV connector cache sharing, in "
		    "terms of number of cached tokens.",
		    &m->zero);
	counter_one(l, "vllm:mm_cache_queries",
		    "Multi-modal cache queries, in terms of number of queried items.", &m->zero);
	counter_one(l, "vllm:mm_cache_hits",
		    "Multi-modal cache hits, in terms of number of cached items.", &m->zero);
	counter_one(l, "vllm:num_preemptions", "Cumulative number of preemption from the engine.",
		    &f->preemptions);
	counter_one(l, "vllm:prompt_tokens", "Number of prefill tokens processed.",
		    &f->prompt_tokens);
	counter(l, "vllm:prompt_tokens_by_source", "Number of prompt tokens by source.", "source",
		sources, (const void *[]){ &m->computed_prompt_tokens, &f->hit_tokens, &m->zero });
	counter_one(l, "vllm:prompt_tokens_cached",
		    "Number of cached prompt tokens (local + external).", &f->hit_tokens);
	counter(l, "vllm:prompt_tokens_cached_by_source",
		"Prefix-cache hit tokens by the cache tier that supplied them.", "source", tiers,
		(const void *[]){ &f->hit_tokens, &m->zero, &m->zero, &m->zero, &m->zero });
	counter_one(l, "vllm:generation_tokens", "Number of generation tokens processed.",
		    &f->generated_tokens);
	counter(l, "vllm:request_success", "Count of successfully processed requests.",
		"finished_reason", reasons,
		(const void *[]){ &m->finished_stop, &m->finished_length, &m->zero, &m->zero,
				  &m->zero });
	counter(l, "vllm:admission_rejections",
		"Number of admission attempts rejected by a queue limit, by reason.", "reason",
		limits, (const void *[]){ &m->rejected, &m->zero });
}

static void lay_vllm_config(struct layout *l)
{
	const struct metrics_world *w = l->world;

	describe(l, "vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
	out_fmt(&l->m->text,
		"vllm:cache_config_info{_block_size_resolved=\"True\",block_size=\"%d\","
		"cache_dtype=\"auto\",cache_hit_alignment_tokens=\"None\","
		"effective_attention_block_size=\"%d\",enable_prefix_caching=\"True\",engine=\"0\","
		"gpu_memory_utilization=\"0.9\",hash_block_size=\"None\",is_attention_free="
		"\"False\","
		"kv_cache_dtype_skip_layers=\"[]\",kv_cache_layout=\"None\","
		"kv_cache_max_concurrency=\"%.2f\",kv_cache_memory_bytes=\"%llu\","
		"kv_cache_size_tokens=\"%llu\",kv_offloading_backend=\"native\","
		"kv_offloading_size=\"None\",kv_sharing_fast_prefill=\"False\","
		"mamba_block_size=\"None\",mamba_cache_dtype=\"auto\",mamba_cache_mode=\"none\","
		"num_cpu_blocks=\"None\",num_gpu_blocks=\"%llu\",num_gpu_blocks_override=\"None\","
		"prefix_caching_hash_algo=\"sha256\",sliding_window=\"None\","
		"user_specified_block_size=\"False\"} 1.0\n",
		MODEL_BLOCK, MODEL_BLOCK,
		(double)(w->kv_blocks * MODEL_BLOCK) / (double)w->context_max,
		(unsigned long long)w->kv_bytes, (unsigned long long)(w->kv_blocks * MODEL_BLOCK),
		(unsigned long long)w->kv_blocks);
}

static void lay_http_handlers(struct layout *l, const char *name, const char *type,
			      const char *suffix, const char *help)
{
#define HANDLER(id, path, method) { path, method },
	static const struct {
		const char *path, *method;
	} handlers[] = { METRICS_HANDLERS(HANDLER) };
	char full[96];

	describe(l, name, type, help);
	for (int i = 0; i < METRICS_HANDLERS_NR; i++) {
		struct metrics_http *h = &l->m->http[i];

		snprintf(l->labels, sizeof(l->labels), "handler=\"%s\"", handlers[i].path);
		snprintf(full, sizeof(full), "%s%s", name, suffix);
		if (strcmp(name, "http_requests_total") == 0) {
			char more[64];

			snprintf(more, sizeof(more), "method=\"%s\",status=\"2xx\"",
				 handlers[i].method);
			sample(l, name, more, LINE_U64, &h->good);
			snprintf(more, sizeof(more), "method=\"%s\",status=\"4xx\"",
				 handlers[i].method);
			sample(l, name, more, LINE_U64, &h->bad);
		} else if (strcmp(name, "http_request_size_bytes") == 0) {
			sample(l, "http_request_size_bytes_count", "", LINE_U64, &h->all);
			sample(l, "http_request_size_bytes_sum", "", LINE_U64, &h->request_bytes);
		} else if (strcmp(name, "http_response_size_bytes") == 0) {
			sample(l, "http_response_size_bytes_count", "", LINE_U64, &h->all);
			sample(l, "http_response_size_bytes_sum", "", LINE_U64, &h->response_bytes);
		} else {
			sample(l, full, "le=\"0.1\"", LINE_BUCKET_FIRST, &h->seconds_bucket[0]);
			sample(l, full, "le=\"1.0\"", LINE_BUCKET, &h->seconds_bucket[1]);
			sample(l, full, "le=\"+Inf\"", LINE_BUCKET, &h->seconds_bucket[2]);
			sample(l, "http_request_duration_seconds_count", "", LINE_U64, &h->all);
			sample(l, "http_request_duration_seconds_sum", "", LINE_REAL, &h->seconds);
		}
	}
}

static void lay_vllm(struct layout *l)
{
#define LAY(id, name, bounds_, help) histogram(l, "vllm:" name, METRICS_##id, help);
	char labels[sizeof(l->labels)];

	memcpy(labels, l->labels, sizeof(labels));
	l->labels[0] = '\0';
	lay_process(l, "");
	memcpy(l->labels, labels, sizeof(labels));
	lay_vllm_gauges(l);
	lay_vllm_counters(l);
	METRICS_HISTOGRAMS(LAY)
	lay_vllm_config(l);
	lay_http_handlers(l, "http_requests_total", "counter", "",
			  "Total number of requests by method, status and handler.");
	lay_http_handlers(l, "http_request_size_bytes", "summary", "",
			  "Content length of incoming requests by handler.");
	lay_http_handlers(l, "http_response_size_bytes", "summary", "",
			  "Content length of outgoing responses by handler.");
	lay_http_handlers(l, "http_request_duration_seconds", "histogram", "_bucket",
			  "Latency with only few buckets by handler.");
}

/* X(name, help, value kind, value) */
#define SGLANG_GAUGES(X)                                                                           \
	X("num_running_reqs", "The number of running requests.", LINE_U64, &m->shown.running)      \
	X("num_queue_reqs", "The number of requests in the waiting queue.", LINE_U64,              \
	  &m->shown.waiting)                                                                       \
	X("num_grammar_queue_reqs", "The number of requests in the grammar waiting queue.",        \
	  LINE_U64, &m->zero)                                                                      \
	X("gen_throughput", "The generation throughput (token/s).", LINE_REAL,                     \
	  &m->generation_rate)                                                                     \
	X("cache_hit_rate", "The prefix cache hit rate.", LINE_REAL, &m->hit_rate)                 \
	X("decode_sum_seq_lens", "The sum of all sequence lengths in decode.", LINE_U64,           \
	  &m->shown.decode_context_tokens)                                                         \
	X("token_usage", "The token usage.", LINE_REAL, &m->kv_usage)                              \
	X("full_token_usage", "The token usage for full attention layers.", LINE_REAL,             \
	  &m->kv_usage)                                                                            \
	X("num_used_tokens", "The number of used tokens.", LINE_U64, &m->kv_used_tokens)           \
	X("kv_available_tokens", "Number of free token slots in the KV cache pool.", LINE_U64,     \
	  &m->kv_free_tokens)                                                                      \
	X("kv_evictable_tokens",                                                                   \
	  "Number of evictable (radix-cached) token slots in the KV cache pool.", LINE_U64,        \
	  &m->kv_cached_tokens)                                                                    \
	X("kv_used_tokens", "Number of actively used token slots in the KV cache pool.", LINE_U64, \
	  &m->kv_used_tokens)                                                                      \
	X("num_retracted_reqs", "The number of retracted requests.", LINE_U64, &m->zero)           \
	X("num_paused_reqs", "The number of paused requests by async weight sync.", LINE_U64,      \
	  &m->zero)                                                                                \
	X("utilization", "The utilization.", LINE_REAL, &m->kv_usage)

static void lay_sglang_constants(struct layout *l, const char *ranks)
{
	static const char *const names[] = { "max_total_num_tokens", "page_size", "num_pages",
					     "context_len" };
	const uint64_t values[] = { l->world->kv_blocks * MODEL_BLOCK, MODEL_BLOCK,
				    l->world->kv_blocks, l->world->context_max };
	char name[64], value[32];

	for (int i = 0; i < 4; i++) {
		snprintf(name, sizeof(name), "sglang:%s", names[i]);
		snprintf(value, sizeof(value), "%llu.0", (unsigned long long)values[i]);
		describe(l, name, "gauge", "Size fixed at start.");
		fixed(l, name, ranks, value);
	}
}

static void lay_sglang(struct layout *l)
{
#define GAUGE(name, help, kind, value)              \
	describe(l, "sglang:" name, "gauge", help); \
	sample(l, "sglang:" name, ranks, kind, value);
	static const char ranks[] = "moe_ep_rank=\"0\",pp_rank=\"0\",tp_rank=\"0\"";
	static const char *const modes[] = { "prefill_compute", "decode", "prefill_cache", NULL };
	static const char *const sources[] = { "device", NULL };
	struct metrics *m = l->m;

	lay_process(l, "sglang:");
	counter_one(l, "sglang:prompt_tokens", "Number of prefill tokens processed.",
		    &m->shown.prompt_tokens);
	counter_one(l, "sglang:generation_tokens", "Number of generation tokens processed.",
		    &m->shown.generated_tokens);
	counter_one(l, "sglang:num_requests", "Number of requests processed.", &m->shown.finished);
	counter_one(l, "sglang:num_aborted_requests", "Number of requests aborted.",
		    &m->shown.aborted);
	counter(l, "sglang:cached_tokens",
		"Number of cached prompt tokens by source (device/host/storage).", "cache_source",
		sources, (const void *[]){ &m->shown.hit_tokens });
	counter(l, "sglang:realtime_tokens", "Total number of tokens processed.", "mode", modes,
		(const void *[]){ &m->shown.computed_tokens, &m->shown.generated_tokens,
				  &m->shown.hit_tokens });
	lay_sglang_constants(l, ranks);
	SGLANG_GAUGES(GAUGE)
	histogram(l, "sglang:time_to_first_token_seconds", METRICS_TTFT,
		  "Histogram of time to first token in seconds.");
	histogram(l, "sglang:e2e_request_latency_seconds", METRICS_E2E,
		  "Histogram of End-to-end request latency in seconds");
	histogram(l, "sglang:inter_token_latency_seconds", METRICS_ITL,
		  "Histogram of inter-token latency in seconds.");
	histogram(l, "sglang:queue_time_seconds", METRICS_QUEUE,
		  "Histogram of queueing time in seconds.");
	histogram(l, "sglang:prompt_tokens_histogram", METRICS_PROMPT,
		  "Histogram of prompt token length.");
	histogram(l, "sglang:uncached_prompt_tokens_histogram", METRICS_COMPUTED,
		  "Histogram of uncached prompt token length.");
}

/* X(name, type, help, kind, value) */
#define LLAMA_LINES(X)                                                                            \
	X("prompt_tokens_total", "counter",                                                       \
	  "Number of prompt tokens processed, excluding cached tokens", LINE_U64,                 \
	  &m->computed_prompt_tokens)                                                             \
	X("prompt_tokens_cached_total", "counter",                                                \
	  "Number of prompt tokens reused from the cache", LINE_U64, &m->shown.hit_tokens)        \
	X("prompt_seconds_total", "counter", "Total time spent processing prompts", LINE_REAL,    \
	  &m->prompt_s)                                                                           \
	X("tokens_predicted_total", "counter", "Number of generation tokens processed", LINE_U64, \
	  &m->shown.generated_tokens)                                                             \
	X("tokens_predicted_seconds_total", "counter", "Total time spent generating tokens",      \
	  LINE_REAL, &m->output_s)                                                                \
	X("n_decode_total", "counter", "Total number of llama_decode() calls", LINE_U64,          \
	  &m->shown.steps)                                                                        \
	X("n_tokens_max", "counter", "Largest observed sequence length (prompt + generation)",    \
	  LINE_U64, &m->longest_tokens)                                                           \
	X("prompt_tokens_seconds", "gauge", "Average prompt throughput in tokens/s", LINE_REAL,   \
	  &m->prompt_rate)                                                                        \
	X("predicted_tokens_seconds", "gauge", "Average generation throughput in tokens/s",       \
	  LINE_REAL, &m->output_rate)                                                             \
	X("requests_processing", "gauge", "Number of requests processing", LINE_U64,              \
	  &m->shown.running)                                                                      \
	X("requests_deferred", "gauge", "Number of requests deferred", LINE_U64,                  \
	  &m->shown.waiting)                                                                      \
	X("n_busy_slots_per_decode", "gauge",                                                     \
	  "Average number of busy slots per llama_decode() call", LINE_REAL, &m->busy_slots)

static void lay_llama(struct layout *l)
{
#define LLAMA(name, type, help, kind, value)       \
	describe(l, "llamacpp:" name, type, help); \
	sample(l, "llamacpp:" name, "", kind, value);
	struct metrics *m = l->m;

	l->labels[0] = '\0';
	LLAMA_LINES(LLAMA)
}

void metrics_init(struct metrics *m, const struct metrics_world *world)
{
#define BOUNDS(id, name, which, help) bounds_##which,
	static const double *const bounds[] = { METRICS_HISTOGRAMS(BOUNDS) };
	struct layout l = { .m = m, .world = world };

	*m = (struct metrics){ .head = world->head, .one = 1 };
	memcpy(m->bounds, bounds, sizeof(m->bounds));
	if (world->head == HEAD_SGLANG) {
		m->bounds[METRICS_TTFT] = bounds_SGLANG_TTFT;
		m->bounds[METRICS_ITL] = bounds_SGLANG_ITL;
	}
	snprintf(l.created, sizeof(l.created), "%.10e", (double)world->start_wall_ns * 1e-9);
	snprintf(l.labels, sizeof(l.labels), "%s=\"%s\",model_name=\"%.120s\"",
		 world->head == HEAD_SGLANG ? "engine_type" : "engine",
		 world->head == HEAD_SGLANG ? "unified" : "0", world->model);
	if (world->head == HEAD_VLLM)
		lay_vllm(&l);
	else if (world->head == HEAD_SGLANG)
		lay_sglang(&l);
	else
		lay_llama(&l);
	line_end(&l, LINE_TEXT, NULL);
}

void metrics_fini(struct metrics *m)
{
	out_free(&m->text);
	free(m->line);
	m->line = NULL;
}

void metrics_observe(struct metrics *m, enum metrics_histogram which, double value)
{
	const double *bound = m->bounds[which];
	struct metrics_count *h = &m->histogram[which];
	int i = 0;

	while (value > bound[i])
		i++;
	h->bucket[i]++;
	h->count++;
	h->sum += value;
}

void metrics_show(struct metrics *m, const struct model_figures *f, uint64_t blocks_total)
{
	m->shown = *f;
	m->kv_usage = (double)f->blocks_used / (double)blocks_total;
	m->kv_used_tokens = f->blocks_used * MODEL_BLOCK;
	m->kv_cached_tokens = f->blocks_cached * MODEL_BLOCK;
	m->kv_free_tokens = (blocks_total - f->blocks_used) * MODEL_BLOCK;
	m->hit_rate = f->queried_tokens ? (double)f->hit_tokens / (double)f->queried_tokens : 0;
	m->computed_prompt_tokens =
		f->prompt_tokens > f->hit_tokens ? f->prompt_tokens - f->hit_tokens : 0;
	m->prompt_rate = m->prompt_s > 0 ? (double)m->computed_prompt_tokens / m->prompt_s : 0;
	m->output_rate = m->output_s > 0 ? (double)f->generated_tokens / m->output_s : 0;
	m->busy_slots = f->steps ? (double)f->generated_tokens / (double)f->steps : 0;
}

void metrics_http_done(struct metrics *m, enum metrics_handler handler, int status,
		       uint64_t request_bytes, uint64_t response_bytes, double seconds)
{
	struct metrics_http *h = &m->http[handler];

	*(status < 400 ? &h->good : &h->bad) += 1;
	h->all++;
	h->request_bytes += request_bytes;
	h->response_bytes += response_bytes;
	h->seconds += seconds;
	h->seconds_bucket[seconds <= 0.1 ? 0 : seconds <= 1 ? 1 : 2]++;
}

/* As the Prometheus client prints: 12.0, from a million on 1.234567e+06. */
static void number(struct out *o, uint64_t value)
{
	char digits[32];

	if (value < 1000000) {
		out_u64(o, value);
		out_mem(o, ".0", 2);
		return;
	}
	int n = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)value);
	int kept = n;
	while (kept > 1 && digits[kept - 1] == '0')
		kept--;
	out_mem(o, digits, 1);
	if (kept > 1) {
		out_mem(o, ".", 1);
		out_mem(o, digits + 1, (size_t)kept - 1);
	}
	out_fmt(o, "e+%02d", n - 1);
}

/* llama.cpp prints integers plainly and six significant digits else. */
static void value_write(const struct metrics *m, struct out *o, const struct metrics_line *line,
			uint64_t *cumulative)
{
	uint64_t value = line->kind == LINE_REAL ? 0 : *(const uint64_t *)line->value;

	if (line->kind == LINE_BUCKET_FIRST)
		*cumulative = 0;
	if (line->kind != LINE_U64)
		value = *cumulative += value;
	if (line->kind == LINE_REAL)
		out_fmt(o, m->head == HEAD_LLAMACPP ? "%g" : "%.12g", *(const double *)line->value);
	else if (m->head == HEAD_LLAMACPP)
		out_fmt(o, "%g", (double)value);
	else
		number(o, value);
	out_mem(o, "\n", 1);
}

void metrics_page(struct metrics *m, struct out *o)
{
	uint64_t cumulative = 0;
	struct rusage used;

	if (getrusage(RUSAGE_SELF, &used) == 0) {
		m->cpu_s = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
			   (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
		m->resident_bytes = (double)used.ru_maxrss * 1024;
	}
	out_reserve(o, m->text.len + m->lines * 24);
	for (uint32_t i = 0; i < m->lines; i++) {
		const struct metrics_line *line = &m->line[i];

		out_mem(o, m->text.at + line->at, line->len);
		if (line->kind != LINE_TEXT)
			value_write(m, o, line, &cumulative);
	}
}
