/* The shapes were taken down from live engines; fields nobody reads are kept, since parsers meet
 * them. */
#include "bench/engine_reply.h"

#define LIT(o, literal) out_mem(o, literal, sizeof(literal) - 1)

/* One event is one chunk. */
static void emit(struct reply *r, struct out *o)
{
	if (r->chunked) {
		out_hex(o, r->event.len);
		LIT(o, "\r\n");
	}
	out_mem(o, r->event.at, r->event.len);
	if (r->chunked)
		LIT(o, "\r\n");
	r->event.len = 0;
}

static const char *finish_of(const struct reply *r)
{
	if (r->api == PROMPT_MESSAGES)
		return r->output_given ? "max_tokens" : "end_turn";
	return r->output_given ? "length" : "stop";
}

/* What llama.cpp puts behind the choices, other engines before them. */
static void llama_rest(const struct reply *r, struct out *e)
{
	out_fmt(e,
		",\"created\":%llu,\"id\":\"%s\",\"model\":%s,\"system_fingerprint\":\"b0-"
		"unknown\","
		"\"object\":\"%s\"",
		(unsigned long long)r->created_s, r->id, r->model,
		r->api == PROMPT_CHAT ? "chat.completion.chunk" : "text_completion");
}

void reply_begin(struct reply *r)
{
	int n;

	if (r->head == HEAD_LLAMACPP)
		n = snprintf(r->start, sizeof(r->start), "data: {\"choices\":[{%s",
			     r->api == PROMPT_CHAT ? "\"finish_reason\":null,\"index\":" : "");
	else
		n = snprintf(r->start, sizeof(r->start),
			     "data: {\"id\":\"%s\",\"object\":\"%s\",\"created\":%llu,\"model\":%s,"
			     "\"choices\":[{\"index\":",
			     r->id,
			     r->api == PROMPT_CHAT ? "chat.completion.chunk" : "text_completion",
			     (unsigned long long)r->created_s, r->model);
	assert(n > 0 && (size_t)n < sizeof(r->start));
	r->start_len = (size_t)n;
	r->event.len = r->text.len = 0;
	r->sequence = 0;
}

void reply_fini(struct reply *r)
{
	out_free(&r->event);
	out_free(&r->text);
}

static void usage(const struct reply *r, struct out *e)
{
	uint32_t all = r->prompt_tokens + r->output_tokens;
	uint32_t created = r->prompt_tokens / 16 * 16;

	if (r->head == HEAD_LLAMACPP) {
		out_fmt(e,
			"\"usage\":{\"completion_tokens\":%u,\"prompt_tokens\":%u,\"total_tokens\":"
			"%u,"
			"\"prompt_tokens_details\":{\"cached_tokens\":%u}}",
			r->output_tokens, r->prompt_tokens, all, r->cached_tokens);
		return;
	}
	out_fmt(e,
		"\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u,\"completion_tokens\":%u,"
		"\"prompt_tokens_details\":{\"cached_tokens\":%u",
		r->prompt_tokens, all, r->output_tokens, r->cached_tokens);
	if (r->head == HEAD_VLLM)
		out_fmt(e, ",\"created_cache_tokens\":%u}}",
			created > r->cached_tokens ? created - r->cached_tokens : 0);
	else
		out_str(e, "},\"reasoning_tokens\":0,\"completion_tokens_details\":null}");
}

static void timings(const struct reply *r, struct out *e)
{
	uint32_t computed = r->prompt_tokens - r->cached_tokens;
	double prompt_ms = r->prompt_ms > 0 ? r->prompt_ms : 1e-3;
	double output_ms = r->output_ms > 0 ? r->output_ms : 1e-3;

	out_fmt(e,
		",\"timings\":{\"cache_n\":%u,\"prompt_n\":%u,\"prompt_ms\":%.3f,"
		"\"prompt_per_token_ms\":%.6f,\"prompt_per_second\":%.6f,\"predicted_n\":%u,"
		"\"predicted_ms\":%.3f,\"predicted_per_token_ms\":%.6f,"
		"\"predicted_per_second\":%.6f}",
		r->cached_tokens, computed, prompt_ms, prompt_ms / (computed ? computed : 1),
		computed * 1e3 / prompt_ms, r->output_tokens, output_ms,
		output_ms / (r->output_tokens ? r->output_tokens : 1),
		r->output_tokens * 1e3 / output_ms);
}

void reply_response_object(struct reply *r, struct out *o, const char *status, const char *text,
			   size_t len)
{
	int done = strcmp(status, "in_progress") != 0;

	out_fmt(o, "{\"id\":\"%s\",\"created_at\":%llu,\"incomplete_details\":%s,", r->id,
		(unsigned long long)r->created_s,
		done && r->output_given ? "{\"reason\":\"max_output_tokens\"}" : "null");
	out_fmt(o,
		"\"instructions\":null,\"metadata\":null,\"model\":%s,\"object\":\"response\","
		"\"output\":[",
		r->model);
	if (done) {
		out_fmt(o, "{\"id\":\"%s\",\"content\":[{\"annotations\":[],\"text\":", r->item);
		out_json(o, text, len);
		LIT(o, ",\"type\":\"output_text\",\"logprobs\":null}],\"role\":\"assistant\","
		       "\"status\":\"completed\",\"type\":\"message\",\"phase\":null}");
	}
	out_fmt(o,
		"],\"parallel_tool_calls\":true,\"temperature\":0.0,\"tool_choice\":\"auto\","
		"\"tools\":[],\"top_p\":1.0,\"background\":false,\"max_output_tokens\":%u,"
		"\"max_tool_calls\":null,\"previous_response_id\":",
		r->max_tokens);
	if (r->previous[0])
		out_json(o, r->previous, strlen(r->previous));
	else
		LIT(o, "null");
	out_fmt(o,
		",\"prompt\":null,\"reasoning\":null,\"service_tier\":\"auto\",\"status\":\"%s\","
		"\"text\":null,\"top_logprobs\":null,\"truncation\":\"disabled\",\"usage\":",
		status);
	if (done)
		out_fmt(o,
			"{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u},"
			"\"output_tokens\":%u,\"output_tokens_details\":{\"reasoning_tokens\":0},"
			"\"total_tokens\":%u}",
			r->prompt_tokens, r->cached_tokens, r->output_tokens,
			r->prompt_tokens + r->output_tokens);
	else
		LIT(o, "null");
	LIT(o, ",\"user\":null}");
}

static const char *response_status(const struct reply *r)
{
	return r->output_given && r->head != HEAD_LLAMACPP ? "incomplete" : "completed";
}

/* "event: response.NAME" with its data; `body` is everything but type and number. */
__attribute__((format(printf, 3, 4))) static void response_event(struct reply *r, const char *name,
								 const char *format, ...)
{
	struct out *e = &r->event;
	va_list list;
	char body[1024];

	va_start(list, format);
	vsnprintf(body, sizeof(body), format, list);
	va_end(list);
	out_fmt(e,
		"event: response.%s\ndata: {%s\"sequence_number\":%u,\"type\":\"response.%s\"}\n\n",
		name, body, r->sequence++, name);
}

/* Events that carry the response itself, or the whole text, which no fixed buffer can hold. */
static void response_event_object(struct reply *r, const char *name, const char *status)
{
	struct out *e = &r->event;

	out_fmt(e, "event: response.%s\ndata: {\"response\":", name);
	reply_response_object(r, e, status, r->text.at, r->text.len);
	out_fmt(e, ",\"sequence_number\":%u,\"type\":\"response.%s\"}\n\n", r->sequence++, name);
}

static void responses_start(struct reply *r, struct out *o, bool apart)
{
	response_event_object(r, "created", "in_progress");
	if (apart)
		emit(r, o);
	response_event_object(r, "in_progress", "in_progress");
	if (apart)
		emit(r, o);
}

void reply_opening(struct reply *r, struct out *o)
{
	if (r->api == PROMPT_RESPONSES && r->head != HEAD_LLAMACPP)
		responses_start(r, o, true);
}

static void responses_first(struct reply *r, struct out *o)
{
	bool apart = r->head != HEAD_LLAMACPP;

	if (!apart)
		responses_start(r, o, false);
	response_event(r, "output_item.added",
		       "\"item\":{\"id\":\"%s\",\"content\":[],\"role\":\"assistant\",\"status\":"
		       "\"in_progress\",\"type\":\"message\",\"phase\":null},\"output_index\":0,",
		       r->item);
	if (apart)
		emit(r, o);
	response_event(
		r, "content_part.added",
		"\"content_index\":0,\"item_id\":\"%s\",\"output_index\":0,\"part\":"
		"{\"annotations\":[],\"text\":\"\",\"type\":\"output_text\",\"logprobs\":[]},",
		r->item);
	if (apart)
		emit(r, o);
}

static void messages_first(struct reply *r, struct out *o)
{
	struct out *e = &r->event;

	out_fmt(e,
		"event: message_start\ndata: "
		"{\"type\":\"message_start\",\"message\":{\"id\":\"%s\","
		"\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"model\":%s,"
		"\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":%u,"
		"\"output_tokens\":0}}}\n\n",
		r->id, r->model, r->prompt_tokens);
	if (r->head != HEAD_LLAMACPP)
		emit(r, o);
	LIT(e, "event: content_block_start\ndata: {\"type\":\"content_block_start\","
	       "\"content_block\":{\"type\":\"text\",\"text\":\"\"},\"index\":0}\n\n");
	if (r->head != HEAD_LLAMACPP)
		emit(r, o);
}

static void chat_first(struct reply *r, struct out *o)
{
	struct out *e = &r->event;

	for (uint32_t i = 0; i < r->choices; i++) {
		out_mem(e, r->start, r->start_len);
		out_u64(e, i);
		if (r->head == HEAD_VLLM) {
			LIT(e, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":"
			       "null,\"finish_reason\":null}],\"prompt_token_ids\":null,"
			       "\"prompt_text\":null}\n\n");
		} else if (r->head == HEAD_SGLANG) {
			LIT(e, ",\"delta\":{\"reasoning_content\":null,\"role\":\"assistant\","
			       "\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null,"
			       "\"matched_stop\":null}]}\n\n");
		} else {
			LIT(e, ",\"delta\":{\"role\":\"assistant\",\"content\":null}}]");
			llama_rest(r, e);
			LIT(e, "}\n\n");
			continue; /* in one chunk with the first token */
		}
		emit(r, o);
	}
}

void reply_first(struct reply *r, struct out *o)
{
	if (r->api == PROMPT_CHAT)
		chat_first(r, o);
	else if (r->api == PROMPT_MESSAGES)
		messages_first(r, o);
	else if (r->api == PROMPT_RESPONSES)
		responses_first(r, o);
}

/* The tail of a choice's chunk: vLLM's last token says why it ended, the others say it apart. */
static void choice_end(struct reply *r, struct out *e, bool last)
{
	if (r->head == HEAD_VLLM && last)
		out_fmt(e, ",\"logprobs\":null,\"finish_reason\":\"%s\",\"stop_reason\":null,",
			finish_of(r));
	else if (r->head == HEAD_VLLM)
		LIT(e, ",\"logprobs\":null,\"finish_reason\":null,");
	else
		LIT(e, ",\"logprobs\":null,\"finish_reason\":null,\"matched_stop\":null}]");
	if (r->head == HEAD_VLLM)
		LIT(e, "\"token_ids\":null}]");
	if (r->head == HEAD_SGLANG && r->api == PROMPT_COMPLETIONS)
		LIT(e, ",\"usage\":null");
	LIT(e, "}\n\n");
}

static void chat_token(struct reply *r, uint32_t choice, const char *text, size_t len, bool last)
{
	struct out *e = &r->event;

	out_mem(e, r->start, r->start_len);
	out_u64(e, choice);
	if (r->head == HEAD_SGLANG)
		LIT(e, ",\"delta\":{\"reasoning_content\":null,\"content\":\"");
	else
		LIT(e, ",\"delta\":{\"content\":\"");
	out_mem(e, text, len);
	LIT(e, "\"}");
	if (r->head != HEAD_LLAMACPP) {
		choice_end(r, e, last);
		return;
	}
	LIT(e, "}]");
	llama_rest(r, e);
	LIT(e, "}\n\n");
}

static void completions_token(struct reply *r, uint32_t choice, const char *text, size_t len,
			      bool last)
{
	struct out *e = &r->event;

	out_mem(e, r->start, r->start_len);
	if (r->head == HEAD_LLAMACPP) {
		LIT(e, "\"text\":\"");
		out_mem(e, text, len);
		LIT(e, "\",\"index\":");
		out_u64(e, choice);
		LIT(e, ",\"logprobs\":null,\"finish_reason\":null}]");
		llama_rest(r, e);
		LIT(e, "}\n\n");
		return;
	}
	out_u64(e, choice);
	LIT(e, ",\"text\":\"");
	out_mem(e, text, len);
	LIT(e, "\"");
	choice_end(r, e, last);
}

void reply_token(struct reply *r, struct out *o, uint32_t choice, const char *text, size_t len,
		 bool last)
{
	struct out *e = &r->event;

	if (r->api == PROMPT_CHAT) {
		chat_token(r, choice, text, len, last);
	} else if (r->api == PROMPT_COMPLETIONS) {
		completions_token(r, choice, text, len, last);
	} else if (r->api == PROMPT_MESSAGES) {
		LIT(e, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\","
		       "\"delta\":{\"type\":\"text_delta\",\"text\":\"");
		out_mem(e, text, len);
		LIT(e, "\"},\"index\":0}\n\n");
	} else {
		out_mem(&r->text, text, len);
		response_event(r, "output_text.delta",
			       "\"content_index\":0,\"delta\":\"%.*s\",\"item_id\":\"%s\","
			       "\"logprobs\":[],\"output_index\":0,",
			       (int)len, text, r->item);
	}
	emit(r, o);
	if (last && r->head == HEAD_SGLANG &&
	    (r->api == PROMPT_CHAT || r->api == PROMPT_COMPLETIONS)) {
		out_mem(e, r->start, r->start_len);
		out_u64(e, choice);
		out_fmt(e,
			",%s,\"logprobs\":null,\"finish_reason\":\"%s\",\"matched_stop\":null}]}"
			"\n\n",
			r->api == PROMPT_CHAT ? "\"delta\":{\"reasoning_content\":null}"
					      : "\"text\":\"\"",
			finish_of(r));
		emit(r, o);
	}
}

static void openai_ending(struct reply *r, struct out *o)
{
	struct out *e = &r->event;

	for (uint32_t i = 0; r->head == HEAD_LLAMACPP && i < r->choices; i++) {
		out_fmt(e, "data: {\"choices\":[{\"finish_reason\":\"%s\",\"index\":%u,%s}]",
			finish_of(r), i, r->api == PROMPT_CHAT ? "\"delta\":{}" : "\"text\":\"\"");
		llama_rest(r, e);
		if (!r->include_usage)
			timings(r, e);
		LIT(e, "}\n\n");
	}
	if (r->include_usage && r->head == HEAD_LLAMACPP) {
		LIT(e, "data: {\"choices\":[]");
		llama_rest(r, e);
		LIT(e, ",");
		usage(r, e);
		timings(r, e);
		LIT(e, "}\n\n");
	} else if (r->include_usage) {
		out_mem(e, r->start, r->start_len - sizeof("{\"index\":") + 1);
		LIT(e, "],");
		usage(r, e);
		if (r->head == HEAD_VLLM)
			LIT(e, ",\"system_fingerprint\":\"vllm-0.32.0-24986a73\"");
		LIT(e, "}\n\n");
	}
	if (e->len)
		emit(r, o);
	LIT(e, "data: [DONE]\n\n");
	emit(r, o);
}

static void messages_ending(struct reply *r, struct out *o)
{
	struct out *e = &r->event;
	bool apart = r->head != HEAD_LLAMACPP;

	LIT(e,
	    "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n");
	if (apart)
		emit(r, o);
	out_fmt(e,
		"event: message_delta\ndata: "
		"{\"type\":\"message_delta\",\"delta\":{\"stop_reason\":"
		"\"%s\",\"stop_sequence\":null},\"usage\":{\"input_tokens\":%u,\"output_tokens\":%"
		"u,"
		"\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%u}}\n\n",
		finish_of(r), r->prompt_tokens - r->cached_tokens, r->output_tokens,
		r->cached_tokens);
	if (apart)
		emit(r, o);
	LIT(e, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
	emit(r, o);
}

static void responses_ending(struct reply *r, struct out *o)
{
	struct out *e = &r->event;
	bool apart = r->head != HEAD_LLAMACPP;

	for (int i = 0; i < 3; i++) {
		static const char *const names[] = { "output_text.done", "content_part.done",
						     "output_item.done" };

		out_fmt(e, "event: response.%s\ndata: {", names[i]);
		out_fmt(e,
			i == 2 ? "\"item\":{\"id\":\"%s\",\"content\":["
			       : "\"content_index\":0,\"item_id\":\"%s\",",
			r->item);
		out_str(e, i == 0   ? ""
			   : i == 1 ? "\"part\":{\"annotations\":[],"
				    : "{\"annotations\":[],");
		LIT(e, "\"text\":");
		out_json(e, r->text.at, r->text.len);
		out_str(e,
			i == 0 ? ",\"logprobs\":[],"
			: i == 1
				? ",\"type\":\"output_text\",\"logprobs\":null},"
				: ",\"type\":\"output_text\",\"logprobs\":null}],\"role\":"
				  "\"assistant\","
				  "\"status\":\"completed\",\"type\":\"message\",\"phase\":null},");
		out_fmt(e,
			"\"output_index\":0,\"sequence_number\":%u,\"type\":\"response.%s\"}\n\n",
			r->sequence++, names[i]);
		if (apart)
			emit(r, o);
	}
	response_event_object(
		r, r->head == HEAD_SGLANG && r->output_given ? "incomplete" : "completed",
		response_status(r));
	emit(r, o);
}

void reply_ending(struct reply *r, struct out *o)
{
	if (r->api == PROMPT_MESSAGES)
		messages_ending(r, o);
	else if (r->api == PROMPT_RESPONSES)
		responses_ending(r, o);
	else
		openai_ending(r, o);
	if (r->chunked)
		LIT(o, "0\r\n\r\n");
}

static void whole_choices(struct reply *r, struct out *o, reply_text *text, void *ctx)
{
	struct out words = { 0 };

	LIT(o, "\"choices\":[");
	for (uint32_t i = 0; i < r->choices; i++) {
		words.len = 0;
		text(ctx, i, &words);
		out_fmt(o, "%s{\"index\":%u,", i ? "," : "", i);
		if (r->api == PROMPT_CHAT)
			LIT(o, "\"message\":{\"role\":\"assistant\",\"content\":");
		else
			LIT(o, "\"text\":");
		out_json(o, words.at, words.len);
		if (r->api == PROMPT_CHAT && r->head == HEAD_VLLM)
			LIT(o, ",\"refusal\":null,\"annotations\":null,\"audio\":null,"
			       "\"function_call\":null,\"reasoning\":null");
		out_fmt(o, "%s,\"logprobs\":null,\"finish_reason\":\"%s\",\"%s\":null}",
			r->api == PROMPT_CHAT ? "}" : "", finish_of(r),
			r->head == HEAD_SGLANG ? "matched_stop" : "stop_reason");
	}
	LIT(o, "]");
	out_free(&words);
}

static void whole_openai(struct reply *r, struct out *o, reply_text *text, void *ctx)
{
	out_fmt(o, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%llu,\"model\":%s,", r->id,
		r->api == PROMPT_CHAT ? "chat.completion" : "text_completion",
		(unsigned long long)r->created_s, r->model);
	whole_choices(r, o, text, ctx);
	LIT(o, ",");
	usage(r, o);
	if (r->head == HEAD_VLLM)
		LIT(o, ",\"service_tier\":null,\"system_fingerprint\":\"vllm-0.32.0-24986a73\","
		       "\"prompt_logprobs\":null,\"prompt_token_ids\":null,\"prompt_text\":null,"
		       "\"kv_transfer_params\":null,\"metrics\":null");
	else if (r->head == HEAD_LLAMACPP)
		timings(r, o);
	LIT(o, "}");
}

void reply_whole(struct reply *r, struct out *o, reply_text *text, void *ctx)
{
	struct out words = { 0 };

	if (r->api == PROMPT_CHAT || r->api == PROMPT_COMPLETIONS) {
		whole_openai(r, o, text, ctx);
		return;
	}
	text(ctx, 0, &words);
	if (r->api == PROMPT_RESPONSES) {
		reply_response_object(r, o, response_status(r), words.at, words.len);
	} else {
		out_fmt(o,
			"{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"content\":"
			"[{\"type\":\"text\",\"text\":",
			r->id);
		out_json(o, words.at, words.len);
		out_fmt(o,
			"}],\"model\":%s,\"stop_reason\":\"%s\",\"stop_sequence\":null,\"usage\":"
			"{\"input_tokens\":%u,\"output_tokens\":%u,\"cache_creation_input_tokens\":"
			"0,"
			"\"cache_read_input_tokens\":%u}}",
			r->model, finish_of(r), r->prompt_tokens - r->cached_tokens,
			r->output_tokens, r->cached_tokens);
	}
	out_free(&words);
}

void reply_error(enum engine_head head, struct out *o, int status, const char *type,
		 const char *param, const char *message)
{
	out_str(o, head == HEAD_SGLANG ? "{\"object\":\"error\",\"message\":"
				       : "{\"error\":{\"message\":");
	out_json(o, message, strlen(message));
	LIT(o, ",\"type\":");
	out_json(o, type, strlen(type));
	if (head != HEAD_LLAMACPP) {
		LIT(o, ",\"param\":");
		if (param && param[0])
			out_json(o, param, strlen(param));
		else
			LIT(o, "null");
	}
	out_fmt(o, ",\"code\":%d}%s", status, head == HEAD_SGLANG ? "" : "}");
}
