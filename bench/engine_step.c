/* Steps of the modelled engines on the wall clock: submissions, ends of steps, lateness, aborts. */
#include <errno.h>
#include <math.h>

#include "bench/engine.h"
#include "shm/base/clock.h"

uint64_t engine_model_ns(const struct engine_world *w, uint64_t wall_ns)
{
	return (uint64_t)((double)(wall_ns - w->start_ns) * w->options.speed);
}

static uint64_t wall_of(const struct engine_world *w, uint64_t model_ns)
{
	return w->start_ns + (uint64_t)ceil((double)model_ns / w->options.speed);
}

/* Seconds on the wall between two points of the model's clock, never negative. */
static double seconds(const struct engine *e, uint64_t from_ns, uint64_t until_ns)
{
	if (until_ns <= from_ns || from_ns == MODEL_NEVER || until_ns == MODEL_NEVER)
		return 0;
	return (double)(until_ns - from_ns) * 1e-9 / e->world->options.speed;
}

static void ask_link(struct ask *a)
{
	struct engine *e = a->engine;

	a->next = e->asks;
	a->prev = &e->asks;
	if (a->next)
		a->next->prev = &a->next;
	e->asks = a;
}

/* Takes it out of the live list; the memory stays until no event can name it (engine_bury). */
static void ask_end(struct ask *a)
{
	*a->prev = a->next;
	if (a->next)
		a->next->prev = a->prev;
	a->request = NULL;
	a->next = a->engine->graves;
	a->engine->graves = a;
}

void engine_bury(struct engine *e)
{
	while (e->graves) {
		struct ask *a = e->graves;

		e->graves = a->next;
		free(a);
	}
}

static void ask_abort(struct ask *a)
{
	model_abort(a->engine->model, a->request);
	ask_end(a);
}

/*
 * When an engine notices that a client went away: vLLM at once, SGLang at its next poll unless
 * tokens flow, llama.cpp when tokens flow, when the slot starts, or (without a stream) not at all.
 */
void engine_ask_drop(struct ask *a, uint64_t now_ns)
{
	struct engine *e = a->engine;

	a->conn = NULL;
	if (e->head == HEAD_VLLM || (a->streamed && a->emitted > 0)) {
		ask_abort(a);
		if (model_step_end(e->model) == MODEL_NEVER)
			engine_show(e);
	} else if (e->head == HEAD_SGLANG) {
		a->abort_due_ns = now_ns + (uint64_t)(2e9 / e->world->options.speed);
	} else if (a->streamed && a->started) {
		ask_abort(a);
	} else {
		a->abort_at_start = a->streamed;
	}
}

static void aborts_due(struct engine *e, uint64_t now_ns)
{
	for (struct ask *a = e->asks, *next; a; a = next) {
		next = a->next;
		if (a->abort_due_ns && a->abort_due_ns <= now_ns)
			ask_abort(a);
	}
}

/*
 * What /metrics shows. vLLM writes its gauges when a step's results are in, before it looks at new
 * arrivals, so during a long step they are as old as the step, and so it is here.
 */
void engine_show(struct engine *e)
{
	struct model_figures f, *shown = &e->metrics.shown;

	model_figures_get(e->model, &f);
	if (e->head == HEAD_VLLM)
		f.waiting -= f.waiting < e->arrived ? f.waiting : e->arrived;
	if (e->head == HEAD_LLAMACPP && f.finished == shown->finished && f.finished > 0) {
		f.generated_tokens = shown->generated_tokens; /* these move when requests end */
		f.prompt_tokens = shown->prompt_tokens;
		f.hit_tokens = shown->hit_tokens;
	}
	metrics_show(&e->metrics, &f, model_blocks_total(e->model));
}

static void rate_measure(struct engine *e, uint64_t now_ns)
{
	uint64_t tokens = e->metrics.shown.generated_tokens;

	if (now_ns - e->rate_from_ns < NS_PER_S)
		return;
	e->metrics.generation_rate =
		(double)(tokens - e->rate_tokens) * 1e9 / (double)(now_ns - e->rate_from_ns);
	e->rate_from_ns = now_ns;
	e->rate_tokens = tokens;
}

static unsigned late_bucket(uint64_t ns)
{
	if (ns < NS_PER_US)
		return 0;
	double doublings = log2((double)ns / NS_PER_US);
	unsigned i = 1 + (unsigned)(doublings * 8);

	return i < ENGINE_LATE_BUCKETS ? i : ENGINE_LATE_BUCKETS - 1;
}

static void late_count(struct engine *e, uint64_t now_ns)
{
	uint64_t late_ns = now_ns > e->due_ns ? now_ns - e->due_ns : 0;
	struct engine_lateness *l = &e->late;

	l->steps++;
	l->busy_ns += e->due_ns - e->begin_ns;
	l->late_ns += late_ns;
	l->max_ns = late_ns > l->max_ns ? late_ns : l->max_ns;
	l->behind += late_ns > ENGINE_CATCH_UP_NS;
	l->bucket[late_bucket(late_ns)]++;
}

static double late_quantile(const struct engine_lateness *l, double q)
{
	uint64_t rank = (uint64_t)ceil(q * (double)l->steps), seen = 0;

	for (unsigned i = 0; i < ENGINE_LATE_BUCKETS; i++) {
		seen += l->bucket[i];
		if (seen >= rank && seen > 0)
			return 1e-6 * exp2(i / 8.0);
	}
	return 0;
}

void engine_lateness_json(const struct engine *e, struct out *o)
{
	const struct engine_lateness *l = &e->late;

	out_fmt(o,
		"{\"speed\":%g,\"steps\":%llu,\"busy_s\":%.9f,\"late_s\":%.9f,\"late_ratio\":%.6f,"
		"\"late_p50_s\":%.9f,\"late_p99_s\":%.9f,\"late_max_s\":%.9f,\"behind\":%llu}",
		e->world->options.speed, (unsigned long long)l->steps, (double)l->busy_ns * 1e-9,
		(double)l->late_ns * 1e-9,
		l->busy_ns ? (double)l->late_ns / (double)l->busy_ns : 0.0, late_quantile(l, .5),
		late_quantile(l, .99), (double)l->max_ns * 1e-9, (unsigned long long)l->behind);
}

static void on_token(struct engine *e, struct ask *a, const struct model_event *event)
{
	const struct model_life *life = &event->life;
	struct metrics *m = &e->metrics;
	bool last = life->emitted == life->output_tokens;

	a->emitted = life->emitted;
	if (event->index == 0)
		metrics_observe(m, METRICS_TTFT,
				seconds(e, life->submitted_ns, life->first_token_ns));
	else
		metrics_observe(m, METRICS_ITL, seconds(e, a->last_ns, event->at_ns));
	a->last_ns = event->at_ns;
	if (a->conn)
		answer_token(a, event->id, last);
}

static void on_finished(struct engine *e, struct ask *a, const struct model_life *life)
{
	double decode_s = seconds(e, life->first_token_ns, life->last_token_ns);
	double prefill_s = seconds(e, life->started_ns, life->first_token_ns);
	struct metrics *m = &e->metrics;
	uint32_t context = life->prompt_tokens + life->output_tokens;

	metrics_observe(m, METRICS_E2E, seconds(e, life->submitted_ns, life->last_token_ns));
	metrics_observe(m, METRICS_QUEUE, seconds(e, life->submitted_ns, life->started_ns));
	metrics_observe(m, METRICS_INFERENCE, seconds(e, life->started_ns, life->last_token_ns));
	metrics_observe(m, METRICS_PREFILL, prefill_s);
	metrics_observe(m, METRICS_DECODE, decode_s);
	metrics_observe(m, METRICS_PROMPT, life->prompt_tokens);
	metrics_observe(m, METRICS_GENERATION, life->output_tokens);
	metrics_observe(m, METRICS_MAX_GENERATION, life->output_tokens);
	metrics_observe(m, METRICS_PARAM_MAX, life->output_tokens);
	metrics_observe(m, METRICS_PARAM_N, a->n);
	metrics_observe(m, METRICS_PREEMPTIONS, a->preempted);
	metrics_observe(m, METRICS_COMPUTED, life->prompt_tokens - life->cached_tokens);
	if (life->output_tokens > 1)
		metrics_observe(m, METRICS_TPOT, decode_s / (life->output_tokens - 1));
	*(a->capped ? &m->finished_length : &m->finished_stop) += 1;
	m->prompt_s += prefill_s;
	m->output_s += decode_s;
	m->longest_tokens = context > m->longest_tokens ? context : m->longest_tokens;
	ask_end(a);
}

static void deliver(struct engine *e, const struct model_event *event)
{
	struct ask *a = (struct ask *)(uintptr_t)event->tag;

	if (!a->request)
		return; /* aborted by an earlier event of this very step */
	switch (event->kind) {
	case MODEL_STARTED:
		a->started = true;
		if (a->abort_at_start)
			ask_abort(a);
		else if (a->conn)
			answer_started(a);
		break;
	case MODEL_TOKEN:
		on_token(e, a, event);
		break;
	case MODEL_FINISHED:
		on_finished(e, a, &event->life);
		break;
	case MODEL_PREEMPTED:
		a->preempted++;
		break;
	}
}

/* SGLang measures its own prefill and decode steps; its /v1/loads shows them. */
static void sglang_measure(struct engine *e, const struct model_figures *before,
			   const struct model_figures *after)
{
	double us = (double)(e->due_ns - e->begin_ns) * 1e-3, batch = (double)before->decoding;
	uint64_t computed = after->computed_tokens - e->prefill_tokens;

	if (computed > 0) {
		e->prefill_tokens = after->computed_tokens;
		e->prefill_busy_us += (uint64_t)us;
	} else if (batch > 0) {
		const double add[6] = { 1, batch, us, batch * batch, batch * us, batch };

		for (int i = 0; i < 6; i++)
			e->moments[i] += add[i];
	}
}

static void step_end(struct engine *e, uint64_t now_ns)
{
	const struct model_event *events;
	struct model_figures before, after;

	model_figures_get(e->model, &before);
	size_t n = model_end(e->model, &events);
	late_count(e, now_ns);
	for (size_t i = 0; i < n; i++)
		deliver(e, &events[i]);
	model_figures_get(e->model, &after);
	metrics_observe(&e->metrics, METRICS_ITERATION,
			(double)(after.generated_tokens + after.computed_tokens - e->step_tokens));
	e->step_tokens = (uint32_t)(after.generated_tokens + after.computed_tokens);
	if (e->head == HEAD_SGLANG)
		sglang_measure(e, &before, &after);
	engine_show(e);
	rate_measure(e, now_ns);
	e->due_ns = UINT64_MAX;
}

static void step_begin(struct engine *e, uint64_t from_ns)
{
	const struct model_event *events;
	uint64_t end_ns = model_begin(e->model, engine_model_ns(e->world, from_ns));

	e->arrived = 0;
	if (end_ns == MODEL_NEVER) {
		engine_show(e);
		return;
	}
	e->begin_ns = from_ns;
	e->due_ns = wall_of(e->world, end_ns);
	size_t n = model_take_started(e->model, &events);
	for (size_t i = 0; i < n; i++)
		deliver(e, &events[i]);
	if (e->head != HEAD_VLLM)
		engine_show(e);
}

void engine_pump(struct engine *e, uint64_t now_ns)
{
	if (e->asks)
		aborts_due(e, now_ns);
	while (e->due_ns <= now_ns) {
		uint64_t due_ns = e->due_ns;

		step_end(e, now_ns);
		step_begin(e, now_ns - due_ns <= ENGINE_CATCH_UP_NS ? due_ns : now_ns);
	}
	if (e->due_ns == UINT64_MAX && e->asks)
		step_begin(e, now_ns);
	engine_bury(e);
}

uint64_t engine_due(const struct engine_world *w)
{
	uint64_t due_ns = UINT64_MAX;

	for (unsigned i = 0; i < w->engines; i++) {
		const struct engine *e = &w->engine[i];

		due_ns = e->due_ns < due_ns ? e->due_ns : due_ns;
		for (const struct ask *a = e->head == HEAD_SGLANG ? e->asks : NULL; a; a = a->next)
			if (a->abort_due_ns && a->abort_due_ns < due_ns)
				due_ns = a->abort_due_ns;
	}
	return due_ns;
}

static int submit_one(struct engine *e, struct conn *c, const struct prompt *p, uint32_t choice,
		      uint64_t now_ns)
{
	const struct prompt_part *part = &p->part[choice / p->n];
	struct ask *a = calloc(1, sizeof(*a));

	assert(a);
	*a = (struct ask){ .engine = e,
			   .conn = c,
			   .choice = choice,
			   .n = p->n,
			   .capped = p->output_given,
			   .streamed = p->stream };
	a->seed = (part->hash & 0xffffffffffff) | (uint64_t)(choice % p->n) << 48;
	const struct model_submission s = { .tag = (uint64_t)(uintptr_t)a,
					    .prompt = p->ids.id + part->at,
					    .prompt_tokens = (uint32_t)part->nr,
					    .output_tokens = p->output_tokens,
					    .salt = e->world->options.no_hits ? now_ns : p->salt,
					    .output_seed = a->seed };
	int err = model_submit(e->model, &s, engine_model_ns(e->world, now_ns), &a->request);
	if (err) {
		free(a);
		return err;
	}
	ask_link(a);
	c->choice[c->choices++] = (struct choice){ .ask = a, .seed = a->seed };
	c->choices_live++;
	e->arrived++;
	return 0;
}

/* All choices of a request, or none. */
int engine_submit(struct engine *e, struct conn *c, const struct prompt *p, uint64_t now_ns)
{
	uint32_t choices = p->n * p->parts;

	if (c->choices_room < choices) {
		c->choice = realloc(c->choice, choices * sizeof(struct choice));
		assert(c->choice);
		c->choices_room = choices;
	}
	c->choices = c->choices_live = 0;
	for (uint32_t i = 0; i < choices; i++) {
		int err = submit_one(e, c, p, i, now_ns);

		if (err) {
			while (c->choices > 0)
				ask_abort(c->choice[--c->choices].ask);
			c->choices_live = 0;
			return err;
		}
	}
	return 0;
}
