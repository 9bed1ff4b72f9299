/* Every path of the three engines that a router or an agent may ask for, beside making tokens. */
#include <math.h>
#include <strings.h>

#include "bench/engine.h"
#include "shm/base/clock.h"

enum { FOR_VLLM = 1 << HEAD_VLLM, FOR_SGLANG = 1 << HEAD_SGLANG, FOR_LLAMA = 1 << HEAD_LLAMACPP };
enum { FOR_ALL = FOR_VLLM | FOR_SGLANG | FOR_LLAMA, EMBEDDING_SIZE = 16 };

void api_refuse(struct conn *c, int status, const char *param, const char *message)
{
	static const char *const types[3][2] = {
		[HEAD_VLLM] = { "BadRequestError", "NotFoundError" },
		[HEAD_SGLANG] = { "BadRequestError", "NotFound" },
		[HEAD_LLAMACPP] = { "invalid_request_error", "not_found_error" },
	};

	conn_error(c, status, types[c->engine->head][status == 404], param, message);
}

static void json_answer(struct conn *c, struct out *body)
{
	conn_answer(c, 200,
		    c->engine->head == HEAD_LLAMACPP ? "application/json; charset=utf-8"
						     : "application/json",
		    body->at, body->len);
}

/* The world's scratch, emptied. */
static struct out *fresh(struct conn *c)
{
	struct out *o = &c->engine->world->scratch;

	o->len = 0;
	return o;
}

static void do_chat(struct conn *c, uint64_t now_ns)
{
	answer_generate(c, PROMPT_CHAT, now_ns);
}

static void do_completions(struct conn *c, uint64_t now_ns)
{
	answer_generate(c, PROMPT_COMPLETIONS, now_ns);
}

static void do_messages(struct conn *c, uint64_t now_ns)
{
	answer_generate(c, PROMPT_MESSAGES, now_ns);
}

static void do_responses(struct conn *c, uint64_t now_ns)
{
	answer_generate(c, PROMPT_RESPONSES, now_ns);
}

static void ids_write(struct out *o, const struct prompt *p)
{
	out_str(o, "[");
	for (size_t i = 0; i < p->ids.nr; i++) {
		if (i)
			out_mem(o, ",", 1);
		out_u64(o, p->ids.id[i]);
	}
	out_str(o, "]");
}

static void do_tokenize(struct conn *c, uint64_t now_ns)
{
	const struct prompt *p = &c->engine->world->prompt;
	uint32_t context = model_options_of(c->engine->model)->context_max;

	if (answer_read(c, PROMPT_TOKENIZE) < 0)
		return;
	struct out *o = fresh(c);
	if (c->engine->head == HEAD_VLLM) {
		out_fmt(o, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":", p->ids.nr, context);
		ids_write(o, p);
		out_str(o, ",\"token_strs\":null}");
	} else {
		out_str(o, "{\"tokens\":");
		ids_write(o, p);
		if (c->engine->head == HEAD_SGLANG)
			out_fmt(o, ",\"count\":%zu,\"max_model_len\":%u", p->ids.nr, context);
		out_str(o, "}");
	}
	json_answer(c, o);
}

static void do_detokenize(struct conn *c, uint64_t now_ns)
{
	const struct prompt *p = &c->engine->world->prompt;
	struct out text = { 0 };
	char piece[TOKENIZER_TEXT_MAX];

	if (answer_read(c, PROMPT_DETOKENIZE) < 0)
		return;
	for (size_t i = 0; i < p->ids.nr; i++)
		out_mem(&text, piece,
			tokenizer_text_of(c->engine->world->memory, p->ids.id[i], piece));
	struct out *o = fresh(c);
	out_str(o, c->engine->head == HEAD_VLLM     ? "{\"prompt\":"
		   : c->engine->head == HEAD_SGLANG ? "{\"text\":"
						    : "{\"content\":");
	out_json(o, text.at, text.len);
	out_str(o, "}");
	out_free(&text);
	json_answer(c, o);
}

static void do_count_tokens(struct conn *c, uint64_t now_ns)
{
	if (answer_read(c, PROMPT_MESSAGES) < 0)
		return;
	struct out *o = fresh(c);
	out_fmt(o, "{\"input_tokens\":%zu}", c->engine->world->prompt.ids.nr);
	json_answer(c, o);
}

static void base64_write(struct out *o, const uint8_t *bytes, size_t len)
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

	for (size_t i = 0; i < len; i += 3) {
		uint32_t three = (uint32_t)bytes[i] << 16;
		char four[4] = { 0, 0, '=', '=' };

		three |= i + 1 < len ? (uint32_t)bytes[i + 1] << 8 : 0;
		three |= i + 2 < len ? bytes[i + 2] : 0;
		four[0] = digits[three >> 18];
		four[1] = digits[three >> 12 & 63];
		if (i + 1 < len)
			four[2] = digits[three >> 6 & 63];
		if (i + 2 < len)
			four[3] = digits[three & 63];
		out_mem(o, four, 4);
	}
}

/* A unit vector drawn from the text's hash: equal texts, equal vectors. */
static void embedding(uint64_t hash, float vector[EMBEDDING_SIZE])
{
	double length = 0;

	for (int i = 0; i < EMBEDDING_SIZE; i++) {
		hash = hash * 6364136223846793005ull + 1442695040888963407ull;
		vector[i] = (float)((double)(hash >> 11) / (double)(1ull << 52) - 1);
		length += (double)vector[i] * vector[i];
	}
	for (int i = 0; i < EMBEDDING_SIZE; i++)
		vector[i] = (float)(vector[i] / sqrt(length));
}

static void do_embeddings(struct conn *c, uint64_t now_ns)
{
	const struct prompt *p = &c->engine->world->prompt;
	float vector[EMBEDDING_SIZE];

	if (answer_read(c, PROMPT_EMBEDDINGS) < 0)
		return;
	struct out *o = fresh(c);
	out_str(o, "{\"object\":\"list\",\"data\":[");
	for (uint32_t i = 0; i < p->parts; i++) {
		embedding(p->part[i].hash, vector);
		out_fmt(o, "%s{\"index\":%u,\"object\":\"embedding\",\"embedding\":", i ? "," : "",
			i);
		if (p->base64) {
			out_str(o, "\"");
			base64_write(o, (const uint8_t *)vector, sizeof(vector));
			out_str(o, "\"}");
			continue;
		}
		for (int k = 0; k < EMBEDDING_SIZE; k++)
			out_fmt(o, "%s%.9g", k ? "," : "[", (double)vector[k]);
		out_str(o, "]}");
	}
	out_str(o, "],\"model\":");
	out_json(o, c->engine->served, strlen(c->engine->served));
	out_fmt(o, ",\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu}}", p->ids.nr,
		p->ids.nr);
	json_answer(c, o);
}

static void model_entry(struct conn *c, struct out *o, const char *name)
{
	const struct engine *e = c->engine;
	unsigned long long created = e->world->start_wall_ns / NS_PER_S;

	out_str(o, "{\"id\":");
	out_json(o, name, strlen(name));
	out_fmt(o, ",\"object\":\"model\",\"created\":%llu,\"owned_by\":\"%s\",\"root\":", created,
		e->head == HEAD_VLLM     ? "vllm"
		: e->head == HEAD_SGLANG ? "sglang"
					 : "llamacpp");
	out_json(o, name, strlen(name));
	out_fmt(o, ",\"parent\":null,\"max_model_len\":%u",
		model_options_of(e->model)->context_max);
	if (e->head == HEAD_VLLM)
		out_fmt(o,
			",\"permission\":[{\"id\":\"modelperm-b8086c1ea120ac03\",\"object\":"
			"\"model_permission\",\"created\":%llu,\"allow_create_engine\":false,"
			"\"allow_sampling\":true,\"allow_logprobs\":true,\"allow_search_indices\":"
			"false,\"allow_view\":true,\"allow_fine_tuning\":false,\"organization\":\"*"
			"\","
			"\"group\":null,\"is_blocking\":false}]",
			created);
	out_str(o, "}");
}

static void do_models(struct conn *c, uint64_t now_ns)
{
	const struct engine_options *options = &c->engine->world->options;
	struct out *o = fresh(c);

	out_str(o, "{\"object\":\"list\",\"data\":[");
	for (unsigned i = 0; i < options->models || (i == 0 && !options->models); i++) {
		if (i)
			out_str(o, ",");
		model_entry(c, o, options->models ? options->model[i] : c->engine->served);
	}
	out_str(o, "]}");
	json_answer(c, o);
}

static void do_version(struct conn *c, uint64_t now_ns)
{
	struct out *o = fresh(c);

	out_str(o, "{\"version\":\"0.32.0\"}");
	json_answer(c, o);
}

static void do_health(struct conn *c, uint64_t now_ns)
{
	struct out *o = fresh(c);

	if (c->engine->head == HEAD_LLAMACPP)
		out_str(o, "{\"status\":\"ok\"}");
	json_answer(c, o);
}

static void do_load(struct conn *c, uint64_t now_ns)
{
	struct out *o = fresh(c);

	out_str(o, "{\"server_load\":0}"); /* vLLM counts only with a flag that few set */
	json_answer(c, o);
}

static void do_metrics(struct conn *c, uint64_t now_ns)
{
	static const char type[] = "text/plain; version=1.0.0; charset=utf-8";
	struct out *o = fresh(c);

	metrics_page(&c->engine->metrics, o);
	if (c->engine->head == HEAD_LLAMACPP)
		snprintf(c->extra, sizeof(c->extra), "Process-Start-Time-Unix: %llu\r\n",
			 (unsigned long long)(c->engine->world->start_wall_ns / NS_PER_S));
	if (c->engine->head != HEAD_SGLANG || c->is_1_0) {
		conn_answer(c, 200,
			    c->engine->head == HEAD_LLAMACPP ? "text/plain; version=0.0.4" : type,
			    o->at, o->len);
		return;
	}
	conn_send_head(c, 200, type, -1);
	out_fmt(&c->pending, "%zx\r\n", o->len);
	out_mem(&c->pending, o->at, o->len);
	out_str(&c->pending, "\r\n0\r\n\r\n");
	conn_done(c);
}

/* SGLang's own account of its load; engines.md of any SGLang since 0.5.17 has these fields. */
static void do_loads(struct conn *c, uint64_t now_ns)
{
	struct engine *e = c->engine;
	const struct metrics *m = &e->metrics;
	const struct model_options *options = model_options_of(e->model);
	uint64_t waiting = model_waiting_uncached(e->model), used = m->kv_used_tokens;
	struct out *o = fresh(c);

	out_fmt(o,
		"{\"timestamp\":\"\",\"version\":\"0.5.23\",\"accelerator\":null,"
		"\"num_accelerators\":1,\"loads\":[{\"timestamp\":%.6f,\"dp_rank\":0,"
		"\"num_running_reqs\":%llu,\"num_waiting_reqs\":%llu,"
		"\"num_waiting_uncached_tokens\":%llu,\"num_used_tokens\":%llu,"
		"\"num_total_tokens\":%llu,\"num_active_tokens\":%llu,"
		"\"num_prealloc_ready_tokens\":0,\"max_total_num_tokens\":%llu,"
		"\"max_running_requests\":%u,\"token_usage\":%.4f,\"gen_throughput\":%.2f,"
		"\"cache_hit_rate\":%.4f,\"utilization\":0.0,",
		(double)clock_wall_ns() * 1e-9, (unsigned long long)m->shown.running,
		(unsigned long long)m->shown.waiting,
		(unsigned long long)(waiting + m->shown.pending_prefill_tokens),
		(unsigned long long)used, (unsigned long long)(used + waiting),
		(unsigned long long)(used + waiting),
		(unsigned long long)(model_blocks_total(e->model) * MODEL_BLOCK),
		options->sequences_max, m->kv_usage, m->generation_rate, m->hit_rate);
	out_fmt(o,
		"\"total_prefill_uncached_tokens\":%llu,\"total_prefill_busy_us\":%llu,"
		"\"decode_moments\":[%.1f,%.1f,%.1f,%.1f,%.1f,%.1f]}]}",
		(unsigned long long)e->prefill_tokens, (unsigned long long)e->prefill_busy_us,
		e->moments[0], e->moments[1], e->moments[2], e->moments[3], e->moments[4],
		e->moments[5]);
	json_answer(c, o);
}

static void do_model_info(struct conn *c, uint64_t now_ns)
{
	struct out *o = fresh(c);

	out_str(o, "{\"model_path\":");
	out_json(o, c->engine->served, strlen(c->engine->served));
	out_str(o, ",\"tokenizer_path\":");
	out_json(o, c->engine->served, strlen(c->engine->served));
	out_str(o, ",\"is_generation\":true,\"weight_version\":\"default\"}");
	json_answer(c, o);
}

static void do_server_info(struct conn *c, uint64_t now_ns)
{
	const struct model_options *options = model_options_of(c->engine->model);
	struct out *o = fresh(c);

	out_fmt(o,
		"{\"version\":\"0.5.23\",\"context_length\":%u,\"chunked_prefill_size\":%u,"
		"\"max_running_requests\":%u,\"max_total_num_tokens\":%llu,\"page_size\":%d,"
		"\"kv_events\":null,\"internal_states\":[{}]}",
		options->context_max, options->budget_tokens, options->sequences_max,
		(unsigned long long)(model_blocks_total(c->engine->model) * MODEL_BLOCK),
		MODEL_BLOCK);
	json_answer(c, o);
}

static void slot_write(struct out *o, uint32_t id, uint32_t context, const struct ask *a)
{
	struct model_life life;

	out_fmt(o, "%s{\"id\":%u,\"n_ctx\":%u,\"speculative\":false,\"is_processing\":%s",
		id ? "," : "", id, context, a ? "true" : "false");
	if (a) {
		model_request_life(a->request, &life);
		uint32_t done = life.computed_tokens < life.prompt_tokens ? life.computed_tokens
									  : life.prompt_tokens;
		out_fmt(o,
			",\"id_task\":%llu,\"n_prompt_tokens\":%u,\"n_prompt_tokens_processed\":%u,"
			"\"n_prompt_tokens_cache\":%u,\"next_token\":[{\"has_next_token\":true,"
			"\"has_new_line\":false,\"n_remain\":%u,\"n_decoded\":%u}]",
			(unsigned long long)(a->seed & 0xffffff), life.prompt_tokens,
			done > life.cached_tokens ? done - life.cached_tokens : 0,
			life.cached_tokens, life.output_tokens - life.emitted, life.emitted);
	}
	out_str(o, "}");
}

static void do_slots(struct conn *c, uint64_t now_ns)
{
	const struct model_options *options = model_options_of(c->engine->model);
	const struct ask *a = c->engine->asks;
	struct out *o = fresh(c);

	out_str(o, "[");
	for (uint32_t i = 0; i < options->sequences_max; i++) {
		while (a && !a->started)
			a = a->next;
		slot_write(o, i, options->context_max, a);
		a = a ? a->next : NULL;
	}
	out_str(o, "]");
	json_answer(c, o);
}

static void do_props(struct conn *c, uint64_t now_ns)
{
	const struct model_options *options = model_options_of(c->engine->model);
	struct out *o = fresh(c);

	out_fmt(o,
		"{\"default_generation_settings\":{\"params\":{\"n_predict\":-1},\"n_ctx\":%u},"
		"\"total_slots\":%u,\"model_alias\":",
		options->context_max, options->sequences_max);
	out_json(o, c->engine->served, strlen(c->engine->served));
	out_str(o,
		",\"model_path\":\"model.gguf\",\"endpoint_slots\":true,\"endpoint_metrics\":true,"
		"\"build_info\":\"b0-unknown\",\"is_sleeping\":false}");
	json_answer(c, o);
}

/* GET tells how late steps ended; POST tells it and starts counting afresh. */
static void do_lateness(struct conn *c, uint64_t now_ns)
{
	struct out *o = fresh(c);

	engine_lateness_json(c->engine, o);
	if (c->method == HTTP_METHOD_POST)
		c->engine->late = (struct engine_lateness){ 0 };
	json_answer(c, o);
}

/* Steps take that many times longer from the next one on: {"slowdown": 5}, or the bare number. */
static void do_slowdown(struct conn *c, uint64_t now_ns)
{
	struct out *o = fresh(c);
	char text[64], *end;
	size_t n = c->body.len < sizeof(text) - 1 ? c->body.len : sizeof(text) - 1;
	const char *at;
	double factor;

	if (c->method == HTTP_METHOD_POST) {
		memcpy(text, c->body.at, n);
		text[n] = 0;
		at = strchr(text, ':') ? strchr(text, ':') + 1 : text;
		factor = strtod(at, &end);
		if (end == at || !(factor >= 0.01 && factor <= 1000)) {
			api_refuse(c, 400, "slowdown", "a factor of 0.01 to 1000 is needed");
			return;
		}
		model_slowdown_set(c->engine->model, factor);
	}
	out_fmt(o, "{\"slowdown\":%g}", model_options_of(c->engine->model)->slowdown);
	json_answer(c, o);
}

struct endpoint {
	const char *path;
	uint8_t get, post; /* which engines have it */
	enum metrics_handler handler;
	void (*answer)(struct conn *c, uint64_t now_ns);
};

static const struct endpoint endpoints[] = {
	{ "/v1/chat/completions", 0, FOR_ALL, METRICS_HANDLER_CHAT, do_chat },
	{ "/v1/completions", 0, FOR_ALL, METRICS_HANDLER_COMPLETIONS, do_completions },
	{ "/v1/messages", 0, FOR_ALL, METRICS_HANDLER_MESSAGES, do_messages },
	{ "/v1/responses", 0, FOR_ALL, METRICS_HANDLER_RESPONSES, do_responses },
	{ "/v1/embeddings", 0, FOR_ALL, METRICS_HANDLER_EMBEDDINGS, do_embeddings },
	{ "/v1/messages/count_tokens", 0, FOR_ALL, METRICS_HANDLER_NONE, do_count_tokens },
	{ "/tokenize", 0, FOR_ALL, METRICS_HANDLER_TOKENIZE, do_tokenize },
	{ "/v1/tokenize", 0, FOR_SGLANG, METRICS_HANDLER_TOKENIZE, do_tokenize },
	{ "/detokenize", 0, FOR_ALL, METRICS_HANDLER_NONE, do_detokenize },
	{ "/v1/models", FOR_ALL, 0, METRICS_HANDLER_MODELS, do_models },
	{ "/version", FOR_VLLM, 0, METRICS_HANDLER_NONE, do_version },
	{ "/health", FOR_ALL, 0, METRICS_HANDLER_NONE, do_health },
	{ "/ping", FOR_VLLM, FOR_VLLM, METRICS_HANDLER_NONE, do_health },
	{ "/load", FOR_VLLM, 0, METRICS_HANDLER_NONE, do_load },
	{ "/metrics", FOR_ALL, 0, METRICS_HANDLER_NONE, do_metrics },
	{ "/v1/loads", FOR_SGLANG, 0, METRICS_HANDLER_NONE, do_loads },
	{ "/get_model_info", FOR_SGLANG, 0, METRICS_HANDLER_NONE, do_model_info },
	{ "/model_info", FOR_SGLANG, 0, METRICS_HANDLER_NONE, do_model_info },
	{ "/get_server_info", FOR_SGLANG, 0, METRICS_HANDLER_NONE, do_server_info },
	{ "/server_info", FOR_SGLANG, 0, METRICS_HANDLER_NONE, do_server_info },
	{ "/slots", FOR_LLAMA, 0, METRICS_HANDLER_NONE, do_slots },
	{ "/props", FOR_LLAMA, 0, METRICS_HANDLER_NONE, do_props },
	{ "/turnward/lateness", FOR_ALL, FOR_ALL, METRICS_HANDLER_NONE, do_lateness },
	{ "/turnward/slowdown", FOR_ALL, FOR_ALL, METRICS_HANDLER_NONE, do_slowdown },
};

static void not_found(struct conn *c)
{
	static const char detail[] = "{\"detail\":\"Not Found\"}";

	if (c->engine->head == HEAD_LLAMACPP)
		api_refuse(c, 404, NULL, "File Not Found");
	else
		conn_answer(c, 404, "application/json", detail, sizeof(detail) - 1);
}

void api_handle(struct conn *c, uint64_t now_ns)
{
	static const char stored[] = "/v1/responses/",
			  refusal[] = "{\"detail\":\"Method Not Allowed\"}";
	uint8_t bit = (uint8_t)(1 << c->engine->head);

	c->handler = METRICS_HANDLER_NONE;
	if (strncmp(c->path, stored, sizeof(stored) - 1) == 0 && c->method == HTTP_METHOD_GET) {
		answer_stored(c, c->path + sizeof(stored) - 1);
		return;
	}
	for (size_t i = 0; i < sizeof(endpoints) / sizeof(endpoints[0]); i++) {
		const struct endpoint *p = &endpoints[i];
		uint8_t have = c->method == HTTP_METHOD_POST  ? p->post
			       : c->method == HTTP_METHOD_GET ? p->get
							      : 0;

		if (strcmp(c->path, p->path) != 0 || !((p->get | p->post) & bit))
			continue;
		if (have & bit) {
			c->handler = p->handler;
			p->answer(c, now_ns);
		} else {
			conn_answer(c, 405, "application/json", refusal, sizeof(refusal) - 1);
		}
		return;
	}
	not_found(c);
}
