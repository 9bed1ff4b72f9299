/* From a request to its answer: the prompt into the model, each of its tokens onto the connection.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>

#include "bench/engine.h"
#include "shm/base/clock.h"

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static uint64_t id_make(struct engine *e)
{
	return mix(e->world->start_wall_ns + e->port * 0x9e3779b97f4a7c15ull + ++e->ids_made);
}

/* Responses kept for previous_response_id: a ring, bounded in number and bytes. */

static struct stored *stored_find(struct engine *e, const char *id)
{
	for (size_t i = 0; i < ENGINE_STORE_MAX; i++)
		if (e->stored[i].ids && strcmp(e->stored[i].id, id) == 0)
			return &e->stored[i];
	return NULL;
}

static void stored_drop(struct engine *e, struct stored *s)
{
	if (!s->ids)
		return;
	e->stored_bytes -= s->nr * sizeof(uint32_t) + s->body_len;
	free(s->ids);
	free(s->body);
	*s = (struct stored){ 0 };
}

void engine_store_free(struct engine *e)
{
	for (size_t i = 0; i < ENGINE_STORE_MAX; i++)
		stored_drop(e, &e->stored[i]);
}

static bool recall(void *ctx, const char *id, struct tokenizer_ids *ids)
{
	const struct stored *s = stored_find(ctx, id);

	for (size_t i = 0; s && i < s->nr; i++)
		tokenizer_id(ids, s->ids[i]);
	return s != NULL;
}

/* Takes the connection's kept ids, adds the answer, and makes room by dropping the oldest. */
static void stored_add(struct conn *c)
{
	struct engine *e = c->engine;
	struct stored *s = &e->stored[e->stored_at++ % ENGINE_STORE_MAX];
	const struct choice *choice = &c->choice[0];
	struct out body = { 0 };
	size_t nr = c->kept_nr;

	stored_drop(e, s);
	for (uint32_t i = 0; i < choice->tokens; i++)
		c->kept_ids[nr++] = model_output_id(choice->seed, i);
	c->kept_ids[nr++] = TOKENIZER_END;
	c->kept_ids[nr++] = TOKENIZER_NEWLINE;
	reply_response_object(&c->reply, &body, "completed", c->reply.text.at, c->reply.text.len);
	snprintf(s->id, sizeof(s->id), "%s", c->reply.id);
	s->ids = c->kept_ids;
	s->nr = nr;
	s->body = body.at;
	s->body_len = body.len;
	c->kept_ids = NULL;
	e->stored_bytes += nr * sizeof(uint32_t) + body.len;
	for (size_t i = 0; e->stored_bytes > ENGINE_STORE_BYTES && i + 1 < ENGINE_STORE_MAX; i++)
		stored_drop(e, &e->stored[(e->stored_at + i) % ENGINE_STORE_MAX]);
}

void answer_stored(struct conn *c, const char *id)
{
	const struct stored *s = stored_find(c->engine, id);
	char why[160];

	if (s) {
		conn_answer(c, 200, "application/json", s->body, s->body_len);
		return;
	}
	snprintf(why, sizeof(why), "Response with id '%.100s' not found.", id);
	api_refuse(c, 404, "response_id", why);
}

/* Reads the body into the world's prompt; on failure the answer is out and -EINVAL comes back. */
int answer_read(struct conn *c, enum prompt_api api)
{
	struct engine_world *w = c->engine->world;
	const struct prompt_world world = { .tools_always = c->engine->head != HEAD_SGLANG,
					    .skip_billing = c->engine->head == HEAD_VLLM,
					    .recall = recall,
					    .ctx = c->engine };
	struct prompt *p = &w->prompt;
	bool known = false;

	/* /detokenize need only know what /tokenize told */
	p->ids.memory = api == PROMPT_TOKENIZE ? w->memory : NULL;
	if (prompt_read(p, api, c->body.at ? c->body.at : "", c->body.len, &world) < 0) {
		api_refuse(c, p->status, p->param, p->why);
		return -EINVAL;
	}
	for (unsigned i = 0; i < w->options.models; i++)
		known |= strcmp(p->model, w->options.model[i]) == 0;
	known |= w->options.models == 0 && strcmp(p->model, c->engine->served) == 0;
	if (p->model[0] && !known && c->engine->head == HEAD_VLLM) {
		char why[256];

		snprintf(why, sizeof(why), "The model `%s` does not exist. Valid aliases: %.80s.",
			 p->model, c->engine->served);
		api_refuse(c, 404, "model", why);
		return -EINVAL;
	}
	return 0;
}

static void reply_prepare(struct conn *c, enum prompt_api api)
{
	static const char *const prefix[] = { [PROMPT_CHAT] = "chatcmpl-",
					      [PROMPT_COMPLETIONS] = "cmpl-",
					      [PROMPT_MESSAGES] = "chatcmpl-",
					      [PROMPT_RESPONSES] = "resp_" };
	const struct prompt *p = &c->engine->world->prompt;
	const char *model = p->model[0] ? p->model : c->engine->served;
	struct reply *r = &c->reply;
	struct out name = { 0 };

	*r = (struct reply){ .event = r->event, .text = r->text };
	r->api = api;
	r->head = c->engine->head;
	r->stream = p->stream;
	r->include_usage = p->include_usage;
	r->output_given = p->output_given;
	r->chunked = !c->is_1_0;
	r->created_s = (uint64_t)time(NULL);
	r->choices = p->n * p->parts;
	r->max_tokens = p->output_tokens;
	snprintf(r->previous, sizeof(r->previous), "%s", p->previous);
	snprintf(r->id, sizeof(r->id), "%s%016llx", prefix[api],
		 (unsigned long long)id_make(c->engine));
	snprintf(r->item, sizeof(r->item), "msg_%016llx", (unsigned long long)id_make(c->engine));
	out_json(&name, model, strlen(model));
	assert(name.len < sizeof(r->model));
	memcpy(r->model, name.at, name.len);
	out_free(&name);
	for (uint32_t i = 0; i < p->parts; i++)
		r->prompt_tokens += (uint32_t)p->part[i].nr;
	reply_begin(r);
}

/* Faults asked for on the command line; true when the request was dealt with. */
static bool faults(struct conn *c)
{
	struct engine *e = c->engine;
	const struct engine_options *o = &e->world->options;

	e->taken++;
	if (o->refuse_after && e->taken >= o->refuse_after && e->listener >= 0) {
		loop_close(e->world->loop, e->listener);
		e->listener = -1;
	}
	if (o->fail_head && e->taken % o->fail_head == 0) {
		conn_cut(c);
		return true;
	}
	return false;
}

/* The queue's bound counts running and waiting, as vLLM's does. SGLang refuses inside the stream.
 */
static bool queue_full(struct conn *c)
{
	struct engine *e = c->engine;
	struct engine_world *w = e->world;
	struct model_figures f;
	struct out *o = &c->pending;

	if (!w->options.max_queued)
		return false;
	model_figures_get(e->model, &f);
	if (f.running + f.waiting < w->options.max_queued)
		return false;
	e->metrics.rejected++;
	if (e->head != HEAD_SGLANG || !w->prompt.stream) {
		conn_error(
			c, 503, "Service Unavailable", NULL,
			"The engine is currently busy and cannot accept new requests. Please try "
			"again later.");
		return true;
	}
	static const char event[] =
		"data: {\"error\": {\"object\": \"error\", \"message\": \"The request queue is "
		"full.\", \"type\": \"SERVICE_UNAVAILABLE\", \"param\": null, \"code\": 503}}\n\n";
	conn_send_head(c, 200, "text/event-stream; charset=utf-8", -1);
	if (c->is_1_0)
		out_fmt(o, "%sdata: [DONE]\n\n", event);
	else
		out_fmt(o, "%zx\r\n%s\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n", sizeof(event) - 1,
			event);
	conn_done(c);
	return true;
}

static void stream_head(struct conn *c)
{
	if (c->head_sent)
		return;
	conn_send_head(c, 200,
		       c->engine->head == HEAD_LLAMACPP ? "text/event-stream"
							: "text/event-stream; charset=utf-8",
		       -1);
	reply_opening(&c->reply, &c->pending);
}

/* Whether the head of a stream goes out before the request has even been queued. */
static bool head_at_once(const struct conn *c)
{
	if (c->engine->head == HEAD_SGLANG)
		return c->reply.api == PROMPT_MESSAGES || c->reply.api == PROMPT_RESPONSES;
	return c->engine->head == HEAD_VLLM;
}

static void keep_ids(struct conn *c)
{
	const struct prompt *p = &c->engine->world->prompt;
	size_t nr = p->ids.nr - p->conversation_at;

	free(c->kept_ids);
	c->kept_ids = NULL;
	if (c->reply.api != PROMPT_RESPONSES || !p->store)
		return;
	c->kept_ids = malloc((nr + p->output_tokens + 2) * sizeof(uint32_t));
	if (!c->kept_ids)
		return;
	memcpy(c->kept_ids, p->ids.id + p->conversation_at, nr * sizeof(uint32_t));
	c->kept_nr = nr;
}

static void too_long(struct conn *c, uint64_t tokens)
{
	const struct engine *e = c->engine;
	uint32_t context = model_options_of(e->model)->context_max;
	char why[400];

	if (e->head == HEAD_LLAMACPP) {
		snprintf(why, sizeof(why),
			 "request (%llu tokens) exceeds the available context size (%u tokens), "
			 "try increasing it",
			 (unsigned long long)tokens, context);
		conn_error(c, 400, "exceed_context_size_error", NULL, why);
		return;
	}
	snprintf(
		why, sizeof(why),
		"This model's maximum context length is %u tokens. However, your prompt and answer "
		"need %llu tokens. Please reduce the length of the input prompt. "
		"(parameter=input_tokens)",
		context, (unsigned long long)tokens);
	api_refuse(c, 400, "input_tokens", why);
}

static uint64_t longest(const struct prompt *p)
{
	uint64_t most = 0;

	for (uint32_t i = 0; i < p->parts; i++)
		most = p->part[i].nr > most ? p->part[i].nr : most;
	return most + (p->output_given ? p->output_tokens : 1);
}

void answer_generate(struct conn *c, enum prompt_api api, uint64_t now_ns)
{
	struct engine *e = c->engine;
	struct prompt *p = &e->world->prompt;

	if (answer_read(c, api) < 0)
		return;
	if (faults(c) || queue_full(c))
		return;
	if (longest(p) > model_options_of(e->model)->context_max) {
		too_long(c, longest(p));
		return;
	}
	engine_pump(e, now_ns); /* what is due ends before this request is seen */
	reply_prepare(c, api);
	int err = engine_submit(e, c, p, now_ns);
	if (err) {
		too_long(c, longest(p));
		return;
	}
	keep_ids(c);
	if (p->stream && head_at_once(c)) {
		stream_head(c);
		conn_flush(c);
	}
	engine_pump(e, now_ns);
}

/* llama.cpp sends the head when the slot starts on the prompt. */
void answer_started(struct ask *a)
{
	struct conn *c = a->conn;

	if (c->engine->head == HEAD_LLAMACPP && a->streamed && !c->head_sent) {
		stream_head(c);
		conn_flush(c);
	}
}

static void choice_text(void *ctx, uint32_t choice, struct out *o)
{
	const struct conn *c = ctx;
	char word[TOKENIZER_TEXT_MAX];

	for (uint32_t i = 0; i < c->choice[choice].tokens; i++) {
		size_t len =
			tokenizer_text_of(NULL, model_output_id(c->choice[choice].seed, i), word);

		out_mem(o, word, len);
	}
}

static void answer_end(struct conn *c)
{
	struct out *body = &c->engine->world->scratch;

	if (c->kept_ids && !c->reply.stream) {
		c->reply.text.len = 0;
		choice_text(c, 0, &c->reply.text);
	}
	if (c->kept_ids)
		stored_add(c);
	if (c->reply.stream) {
		reply_ending(&c->reply, &c->pending);
		conn_done(c);
		return;
	}
	body->len = 0;
	reply_whole(&c->reply, body, choice_text, c);
	conn_answer(c, 200,
		    c->engine->head == HEAD_LLAMACPP ? "application/json; charset=utf-8"
						     : "application/json",
		    body->at, body->len);
}

/* The engine dies in mid-answer, as far as this client can see. */
static void cut(struct conn *c)
{
	c->close_after = true;
	for (uint32_t i = 0; i < c->choices; i++)
		if (c->choice[i].ask)
			engine_ask_drop(c->choice[i].ask, clock_ns());
	c->choices = c->choices_live = 0;
	conn_flush(c);
}

static void first_token(struct ask *a)
{
	struct conn *c = a->conn;
	struct model_life life;

	model_request_life(a->request, &life);
	if (a->choice % a->n == 0)
		c->reply.cached_tokens += life.cached_tokens;
	c->reply.prompt_ms = (double)(life.first_token_ns - life.started_ns) * 1e-6 /
			     c->engine->world->options.speed;
	if (c->reply.stream && !c->first_sent) {
		stream_head(c);
		reply_first(&c->reply, &c->pending);
	}
	c->first_sent = true;
}

static double output_ms(const struct ask *a)
{
	struct model_life life;

	model_request_life(a->request, &life);
	return (double)(life.last_token_ns - life.first_token_ns) * 1e-6 /
	       a->engine->world->options.speed;
}

/* The moment before the first token goes out, for who compares clocks along its way. */
static void stamp(const struct conn *c)
{
	const struct engine_world *w = c->engine->world;
	struct sockaddr_in peer = { 0 };
	socklen_t len = sizeof(peer);

	if (!w->stamps || getpeername(loop_fd(w->loop, c->handle), (struct sockaddr *)&peer, &len))
		return;
	fprintf(w->stamps, "{\"port\":%u,\"client_port\":%u,\"token_ns\":%llu}\n", c->engine->port,
		ntohs(peer.sin_port), (unsigned long long)clock_ns());
}

void answer_token(struct ask *a, uint32_t id, bool last)
{
	struct conn *c = a->conn;
	struct choice *choice = &c->choice[a->choice];
	const struct engine_options *options = &c->engine->world->options;
	char text[TOKENIZER_TEXT_MAX];

	if (a->emitted == 1)
		first_token(a);
	c->reply.output_tokens++;
	choice->tokens++;
	if (c->reply.stream)
		reply_token(&c->reply, &c->pending, a->choice, text,
			    tokenizer_text_of(NULL, id, text), last);
	if (a->emitted == 1 && c->reply.stream)
		stamp(c);
	if (last) {
		choice->ask = NULL;
		a->conn = NULL;
		c->reply.output_ms = output_ms(a);
		if (--c->choices_live == 0)
			answer_end(c);
		else
			conn_flush(c);
		return;
	}
	if (options->cut_after && a->emitted >= options->cut_after) {
		cut(c);
		return;
	}
	if (c->pending.len > ENGINE_UNSENT_MAX)
		conn_cut(c);
	else
		conn_flush(c);
}
