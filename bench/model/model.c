/* The engine's scheduler and its books: which tokens each step computes, and what they cost. */
#include "bench/model/model.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "bench/model/kv.h"
#include "bench/model/tokenizer.h"

enum request_state { WAITING, RUNNING, DEAD };

struct model_request {
	enum request_state state;
	struct model_request *next, *prev; /* waiting queue; `next` also of the dead */
	uint64_t tag, seed;
	const uint32_t *output;
	uint32_t chunk;     /* tokens of it in the step that runs */
	uint32_t looked_up; /* its first look-up was counted */
	uint32_t doomed;    /* steps, the one under way included, that an aborted one is still in */
	struct model_life life;
	uint32_t blocks_nr, named_nr, chain_nr, tail_nr;
	uint32_t tail[MODEL_BLOCK]; /* known ids past the last full block */
	uint64_t *chain;      /* hashes of its full blocks; what each follows from is before it */
	uint32_t *block;      /* held KV blocks, in order */
	uint64_t chain_start; /* the salt */
};

struct model {
	struct model_profile profile;
	struct model_options options;
	struct kv kv;
	struct model_request **running; /* in the order they were admitted */
	uint32_t running_nr, waiting_nr;
	struct model_request *waiting, *waiting_last, *dead;
	uint64_t step_end_ns, step_begin_ns;
	int unbroken; /* the last step has ended just now: the next was planned when it began */
	struct model_event *event;
	size_t events_nr, events_room; /* a start, preemption, token and end for each sequence */
	int events_given;              /* the caller has them: the next one starts afresh */
	struct model_figures count;    /* counters only */
};

#define PROFILE(name_, model_, w, w_all, share, a, b, kvr, kv, capacity) \
	{ .name = #name_,                                                \
	  .model = model_,                                               \
	  .weights_s = w,                                                \
	  .weights_all_s = w_all,                                        \
	  .expert_share = share,                                         \
	  .token_s = a,                                                  \
	  .attention_s = b,                                              \
	  .kv_read_s = kvr,                                              \
	  .overhead_s = 1e-3,                                            \
	  .kv_bytes_per_token = kv,                                      \
	  .kv_capacity_tokens = capacity },
static const struct model_profile profiles[] = { MODEL_PROFILES(PROFILE) };

const struct model_profile *model_profile_at(unsigned index)
{
	return index < sizeof(profiles) / sizeof(profiles[0]) ? &profiles[index] : NULL;
}

const struct model_profile *model_profile_find(const char *name)
{
	for (unsigned i = 0; model_profile_at(i); i++)
		if (strcmp(profiles[i].name, name) == 0)
			return &profiles[i];
	return NULL;
}

/* Tokens choose experts on their own: what a pass of n reads of the weights grows towards all. */
static double weights_s(const struct model_profile *p, uint64_t tokens)
{
	if (p->expert_share >= 1 || tokens <= 1)
		return p->weights_s;
	return p->weights_s + (p->weights_all_s - p->weights_s) *
				      (1 - pow(1 - p->expert_share, (double)(tokens - 1)));
}

double model_iteration_s(const struct model_profile *profile, uint64_t tokens, double pairs,
			 double decode_context)
{
	return fmax(weights_s(profile, tokens), profile->token_s * (double)tokens) +
	       profile->attention_s * pairs + profile->kv_read_s * decode_context +
	       profile->overhead_s;
}

double model_prefill_s(const struct model_profile *profile, const struct model_options *options,
		       uint32_t cached, uint32_t tokens)
{
	uint32_t budget = options && options->budget_tokens ? options->budget_tokens : MODEL_BUDGET;
	uint32_t cap = options && options->long_prefill_cap ? options->long_prefill_cap : budget;
	double seconds = 0;

	budget = cap < budget ? cap : budget;
	while (cached < tokens) {
		uint32_t chunk = tokens - cached < budget ? tokens - cached : budget;
		double before = cached, after = before + chunk;

		seconds += model_iteration_s(profile, chunk, after * after - before * before, 0);
		cached += chunk;
	}
	return options && options->slowdown > 0 ? seconds * options->slowdown : seconds;
}

uint64_t model_block_hash(uint64_t before, const uint32_t ids[MODEL_BLOCK])
{
	uint64_t hash = XXH3_64bits_withSeed(ids, MODEL_BLOCK * sizeof(ids[0]), before);

	return hash ? hash : 1; /* 0 means "none" in the KV index */
}

uint32_t model_output_id(uint64_t seed, uint32_t index)
{
	uint64_t word = seed >> 12 * (index & 3);

	if (index >= 4) {
		word = seed + index * 0x9e3779b97f4a7c15ull;
		word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9ull;
		word = (word ^ word >> 27) * 0x94d049bb133111ebull;
		word ^= word >> 31;
	}
	return TOKENIZER_WORD_FIRST + (uint32_t)(word % TOKENIZER_WORDS);
}

/* Standards filled in; returns -EINVAL for what cannot work. */
static int options_complete(struct model_options *o, const struct model_profile *profile)
{
	o->budget_tokens = o->budget_tokens ? o->budget_tokens : MODEL_BUDGET;
	o->sequences_max = o->sequences_max ? o->sequences_max : MODEL_SEQUENCES;
	o->context_max = o->context_max ? o->context_max : MODEL_CONTEXT;
	o->kv_tokens = o->kv_tokens ? o->kv_tokens : profile->kv_capacity_tokens;
	o->slowdown = o->slowdown > 0 ? o->slowdown : 1;
	if (!o->long_prefill_cap || o->long_prefill_cap > o->budget_tokens)
		o->long_prefill_cap = o->budget_tokens;
	if (o->kv_tokens < 2 * MODEL_BLOCK || o->kv_tokens / MODEL_BLOCK >= KV_NONE / 2 ||
	    o->context_max < 2)
		return -EINVAL;
	return 0;
}

int model_new(struct model **ret_model, const struct model_profile *profile,
	      const struct model_options *options)
{
	struct model *m = calloc(1, sizeof(*m));

	if (!m)
		return -ENOMEM;
	m->profile = *profile;
	if (options)
		m->options = *options;
	int err = options_complete(&m->options, profile);
	if (!err)
		err = kv_init(&m->kv, (uint32_t)(m->options.kv_tokens / MODEL_BLOCK));
	m->running = calloc(m->options.sequences_max, sizeof(struct model_request *));
	m->events_room = 4 * (size_t)m->options.sequences_max;
	m->event = malloc(m->events_room * sizeof(*m->event));
	if (!err && (!m->running || !m->event))
		err = -ENOMEM;
	if (err) {
		model_free(m);
		return err;
	}
	m->step_end_ns = MODEL_NEVER;
	*ret_model = m;
	return 0;
}

static void request_free(struct model_request *r)
{
	free(r->chain);
	free(r->block);
	free(r);
}

static void reap(struct model *m)
{
	while (m->dead) {
		struct model_request *r = m->dead;

		m->dead = r->next;
		request_free(r);
	}
}

static void drop_requests(struct model *m)
{
	reap(m);
	while (m->running_nr)
		request_free(m->running[--m->running_nr]);
	while (m->waiting) {
		struct model_request *r = m->waiting;

		m->waiting = r->next;
		m->waiting_nr--;
		request_free(r);
	}
	m->waiting_last = NULL;
}

void model_free(struct model *m)
{
	if (!m)
		return;
	drop_requests(m);
	kv_fini(&m->kv);
	free(m->running);
	free(m->event);
	free(m);
}

static void queue_append(struct model *m, struct model_request *r)
{
	r->state = WAITING;
	r->next = NULL;
	r->prev = m->waiting_last;
	*(r->prev ? &r->prev->next : &m->waiting) = r;
	m->waiting_last = r;
	m->waiting_nr++;
}

static void queue_prepend(struct model *m, struct model_request *r)
{
	r->state = WAITING;
	r->prev = NULL;
	r->next = m->waiting;
	*(r->next ? &r->next->prev : &m->waiting_last) = r;
	m->waiting = r;
	m->waiting_nr++;
}

static void queue_remove(struct model *m, struct model_request *r)
{
	*(r->prev ? &r->prev->next : &m->waiting) = r->next;
	*(r->next ? &r->next->prev : &m->waiting_last) = r->prev;
	m->waiting_nr--;
}

static void bury(struct model *m, struct model_request *r)
{
	r->state = DEAD;
	r->next = m->dead;
	m->dead = r;
}

/* Tokens whose ids are known: the prompt and what was emitted. */
static uint32_t known(const struct model_request *r)
{
	return r->life.prompt_tokens + r->life.emitted;
}

static int decoding(const struct model_request *r)
{
	return r->life.emitted > 0 && r->life.computed_tokens + 1 == known(r);
}

static void append_id(struct model_request *r, uint32_t id)
{
	r->tail[r->tail_nr++] = id;
	if (r->tail_nr == MODEL_BLOCK) {
		uint64_t before = r->chain_nr ? r->chain[r->chain_nr - 1] : r->chain_start;

		r->chain[r->chain_nr++] = model_block_hash(before, r->tail);
		r->tail_nr = 0;
	}
}

static struct model_request *request_new(const struct model_submission *s, uint32_t output_tokens,
					 uint64_t now_ns)
{
	struct model_request *r = calloc(1, sizeof(*r));
	size_t blocks = (s->prompt_tokens + output_tokens) / MODEL_BLOCK + 1;

	if (!r)
		return NULL;
	r->chain = malloc(blocks * sizeof(*r->chain));
	r->block = malloc(blocks * sizeof(*r->block));
	if (!r->chain || !r->block) {
		request_free(r);
		return NULL;
	}
	r->tag = s->tag;
	r->seed = s->output_seed;
	r->output = s->output;
	r->chain_start = s->salt;
	r->life = (struct model_life){ .prompt_tokens = s->prompt_tokens,
				       .output_tokens = output_tokens,
				       .submitted_ns = now_ns,
				       .started_ns = MODEL_NEVER,
				       .first_token_ns = MODEL_NEVER,
				       .last_token_ns = MODEL_NEVER };
	for (uint32_t i = 0; i < s->prompt_tokens; i++)
		append_id(r, s->prompt[i]);
	return r;
}

int model_submit(struct model *m, const struct model_submission *s, uint64_t now_ns,
		 struct model_request **ret_request)
{
	uint64_t room = (uint64_t)m->kv.nr * MODEL_BLOCK;
	uint32_t output_tokens = s->output_tokens;

	if (m->options.context_max < room)
		room = m->options.context_max;
	if (s->prompt_tokens == 0 || output_tokens == 0)
		return -EINVAL;
	if (s->prompt_tokens >= room)
		return -E2BIG;
	if (output_tokens > room - s->prompt_tokens)
		output_tokens = (uint32_t)(room - s->prompt_tokens);
	struct model_request *r = request_new(s, output_tokens, now_ns);
	if (!r)
		return -ENOMEM;
	queue_append(m, r);
	m->count.submitted++;
	*ret_request = r;
	return 0;
}

static struct model_event *event_add(struct model *m, enum model_event_kind kind,
				     struct model_request *r, uint64_t at_ns)
{
	if (m->events_given)
		m->events_nr = 0, m->events_given = 0;
	assert(m->events_nr < m->events_room);
	struct model_event *e = &m->event[m->events_nr++];
	*e = (struct model_event){
		.kind = kind, .tag = r->tag, .at_ns = at_ns, .request = r, .life = r->life
	};
	return e;
}

/* The deepest block becomes idle first, so that it is reused first. */
static void release(struct model *m, struct model_request *r)
{
	while (r->blocks_nr)
		kv_drop(&m->kv, r->block[--r->blocks_nr]);
	r->named_nr = 0;
	r->life.computed_tokens = 0;
	r->chunk = 0;
}

static void running_remove(struct model *m, uint32_t index)
{
	memmove(&m->running[index], &m->running[index + 1],
		(m->running_nr - index - 1) * sizeof(m->running[0]));
	m->running_nr--;
}

/* An aborted request that is in no queue any more. */
static void abandon(struct model *m, struct model_request *r)
{
	uint32_t tokens = r->life.computed_tokens + r->chunk;

	if (tokens > r->life.prompt_tokens)
		tokens = r->life.prompt_tokens;
	if (tokens > r->life.cached_tokens)
		m->count.abandoned_tokens += tokens - r->life.cached_tokens;
	release(m, r);
	bury(m, r);
	m->count.aborted++;
}

/* Is it in a plan that was made before anybody knew? */
static int planned_ahead(const struct model *m, const struct model_request *r)
{
	return m->options.async && m->step_end_ns != MODEL_NEVER && r->state == RUNNING &&
	       r->life.computed_tokens + r->chunk < known(r);
}

void model_abort(struct model *m, struct model_request *r)
{
	assert(r->state != DEAD && !r->doomed);
	if (planned_ahead(m, r)) {
		r->doomed = 2;
	} else if (r->state == WAITING) {
		queue_remove(m, r);
		abandon(m, r);
	} else {
		uint32_t i = 0;

		while (m->running[i] != r)
			i++;
		running_remove(m, i);
		abandon(m, r);
	}
	if (m->events_given)
		return;
	size_t kept = 0;
	for (size_t i = 0; i < m->events_nr; i++)
		if (m->event[i].request != r)
			m->event[kept++] = m->event[i];
	m->events_nr = kept;
}

static uint32_t blocks_for(uint32_t tokens)
{
	return (tokens + MODEL_BLOCK - 1) / MODEL_BLOCK;
}

/* Gives `r` blocks for `chunk` more tokens; those it fills are findable from now on. */
static void extend(struct model *m, struct model_request *r, uint32_t chunk)
{
	uint32_t until = r->life.computed_tokens + chunk;

	while (r->blocks_nr < blocks_for(until))
		r->block[r->blocks_nr++] = kv_take(&m->kv);
	for (; r->named_nr < until / MODEL_BLOCK; r->named_nr++)
		kv_name(&m->kv, r->block[r->named_nr], r->chain[r->named_nr]);
	r->chunk = chunk;
	m->count.computed_tokens += decoding(r) ? 0 : chunk;
}

static uint32_t chunk_of(const struct model *m, const struct model_request *r, uint32_t computed,
			 uint32_t budget)
{
	uint32_t chunk = known(r) - computed;

	if (chunk > m->options.long_prefill_cap)
		chunk = m->options.long_prefill_cap;
	return chunk < budget ? chunk : budget;
}

static void preempt_youngest(struct model *m, uint64_t now_ns)
{
	struct model_request *r = m->running[--m->running_nr];

	if (r->doomed) {
		abandon(m, r);
		return;
	}
	release(m, r);
	queue_prepend(m, r);
	m->count.preemptions++;
	event_add(m, MODEL_PREEMPTED, r, now_ns);
}

/* Running requests' next tokens. Returns how many requests were preempted for them. */
static uint32_t schedule_running(struct model *m, uint32_t *budget, uint64_t now_ns)
{
	uint32_t preempted = 0;

	for (uint32_t i = 0; i<m->running_nr && * budget> 0; i++) {
		struct model_request *r = m->running[i];
		uint32_t chunk = chunk_of(m, r, r->life.computed_tokens, *budget);
		uint32_t until = blocks_for(r->life.computed_tokens + chunk);

		while (r->state == RUNNING && until - r->blocks_nr > m->kv.idle) {
			preempt_youngest(m, now_ns);
			preempted++;
		}
		if (r->state != RUNNING)
			break;
		extend(m, r, chunk);
		*budget -= chunk;
	}
	return preempted;
}

/* Full blocks of `r` that are cached now, never with its last token; *ret_idle: held by nobody. */
static uint32_t cached_blocks(const struct model *m, const struct model_request *r,
			      uint32_t *ret_idle)
{
	uint32_t most = (known(r) - 1) / MODEL_BLOCK, n = 0;

	for (*ret_idle = 0; n < most; n++) {
		uint32_t block = kv_find(&m->kv, r->chain[n]);

		if (block == KV_NONE)
			break;
		*ret_idle += m->kv.block[block].refs == 0;
	}
	return n;
}

static void admit(struct model *m, struct model_request *r, uint32_t hit_blocks, uint64_t now_ns)
{
	queue_remove(m, r);
	r->state = RUNNING;
	m->running[m->running_nr++] = r;
	for (uint32_t i = 0; i < hit_blocks; i++) {
		r->block[i] = kv_find(&m->kv, r->chain[i]);
		kv_hold(&m->kv, r->block[i]);
	}
	r->blocks_nr = r->named_nr = hit_blocks;
	r->life.computed_tokens = hit_blocks * MODEL_BLOCK;
	if (!r->looked_up) {
		r->looked_up = 1;
		r->life.started_ns = now_ns;
		r->life.cached_tokens = r->life.computed_tokens;
		m->count.queried_tokens += r->life.prompt_tokens;
		m->count.hit_tokens += r->life.cached_tokens;
	}
	event_add(m, MODEL_STARTED, r, now_ns);
}

/* Until when a request must have come to be in the step that begins now. */
static uint64_t plan_ns(const struct model *m, uint64_t now_ns)
{
	const struct model_request *first = m->waiting;
	int nothing = m->running_nr == 0 && (!first || first->life.submitted_ns > m->step_begin_ns);

	return m->options.async && m->unbroken && !nothing ? m->step_begin_ns : now_ns;
}

/* Returns whether the queue was left for want of KV room. */
static int schedule_waiting(struct model *m, uint32_t *budget, uint64_t now_ns)
{
	uint64_t until_ns = plan_ns(m, now_ns);

	while (m->waiting && *budget > 0 && m->running_nr < m->options.sequences_max) {
		struct model_request *r = m->waiting;

		if (r->life.submitted_ns > until_ns)
			break;
		uint32_t idle_hits, hits = cached_blocks(m, r, &idle_hits);
		uint32_t chunk = chunk_of(m, r, hits * MODEL_BLOCK, *budget);
		uint32_t fresh = blocks_for(hits * MODEL_BLOCK + chunk) - hits;

		if (fresh + idle_hits > m->kv.idle)
			return 1;
		admit(m, r, hits, now_ns);
		extend(m, r, chunk);
		*budget -= chunk;
	}
	return 0;
}

static double step_s(const struct model *m)
{
	uint64_t tokens = 0;
	double pairs = 0, context = 0;

	for (uint32_t i = 0; i < m->running_nr; i++) {
		const struct model_request *r = m->running[i];
		double before = r->life.computed_tokens, after = before + r->chunk;

		tokens += r->chunk;
		if (decoding(r))
			context += r->chunk ? after : 0;
		else
			pairs += after * after - before * before;
	}
	assert(tokens > 0 && tokens <= m->options.budget_tokens);
	return model_iteration_s(&m->profile, tokens, pairs, context);
}

uint64_t model_begin(struct model *m, uint64_t now_ns)
{
	uint32_t budget = m->options.budget_tokens;
	int full;

	assert(m->step_end_ns == MODEL_NEVER);
	reap(m);
	if (m->running_nr + m->waiting_nr == 0) {
		m->unbroken = 0;
		return MODEL_NEVER;
	}
	for (uint32_t i = 0; i < m->running_nr; i++)
		m->running[i]->chunk = 0;
	full = schedule_running(m, &budget, now_ns) > 0;
	full = full || schedule_waiting(m, &budget, now_ns);
	assert(m->running_nr > 0); /* a request that is alone always fits */
	uint64_t lasts_ns = (uint64_t)llround(step_s(m) * m->options.slowdown * 1e9);
	m->count.steps++;
	m->count.busy_ns += lasts_ns;
	m->count.held_block_ns += lasts_ns * (m->kv.nr - m->kv.idle);
	*(full ? &m->count.waited_kv_ns : &m->count.waited_budget_ns) += lasts_ns * m->waiting_nr;
	m->step_begin_ns = now_ns;
	m->step_end_ns = now_ns + lasts_ns;
	return m->step_end_ns;
}

void model_slowdown_set(struct model *m, double slowdown)
{
	assert(slowdown > 0);
	m->options.slowdown = slowdown;
}

void model_restart(struct model *m)
{
	while (m->running_nr)
		abandon(m, m->running[--m->running_nr]);
	while (m->waiting) {
		struct model_request *r = m->waiting;

		queue_remove(m, r);
		abandon(m, r);
	}
	kv_forget(&m->kv);
	m->step_end_ns = MODEL_NEVER;
	m->unbroken = 0;
	m->events_nr = 0;
}

void model_stall(struct model *m, uint64_t ns)
{
	if (m->step_end_ns != MODEL_NEVER)
		m->step_end_ns += ns;
}

size_t model_take_started(struct model *m, const struct model_event **ret_events)
{
	assert(m->step_end_ns != MODEL_NEVER);
	*ret_events = m->event;
	size_t nr = m->events_given ? 0 : m->events_nr;
	m->events_given = 1;
	return nr;
}

static void emit_token(struct model *m, struct model_request *r)
{
	uint32_t index = r->life.emitted;
	uint32_t id = r->output ? r->output[index] : model_output_id(r->seed, index);

	if (index == 0) {
		r->life.first_token_ns = m->step_end_ns;
		m->count.prompt_tokens += r->life.prompt_tokens;
	}
	r->life.last_token_ns = m->step_end_ns;
	r->life.emitted++;
	append_id(r, id);
	m->count.generated_tokens++;
	struct model_event *e = event_add(m, MODEL_TOKEN, r, m->step_end_ns);
	e->index = index;
	e->id = id;
}

size_t model_end(struct model *m, const struct model_event **ret_events)
{
	uint32_t kept = 0;

	assert(m->step_end_ns != MODEL_NEVER);
	if (m->events_given)
		m->events_nr = 0, m->events_given = 0;
	for (uint32_t i = 0; i < m->running_nr; i++) {
		struct model_request *r = m->running[i];

		r->life.computed_tokens += r->chunk;
		if (r->doomed) {
			r->chunk = 0;
			if (--r->doomed > 0)
				m->running[kept++] = r;
			else
				abandon(m, r);
			continue;
		}
		if (r->chunk && r->life.computed_tokens == known(r))
			emit_token(m, r);
		r->chunk = 0;
		if (r->life.emitted < r->life.output_tokens) {
			m->running[kept++] = r;
			continue;
		}
		event_add(m, MODEL_FINISHED, r, m->step_end_ns);
		release(m, r);
		bury(m, r);
		m->count.finished++;
	}
	m->running_nr = kept;
	m->unbroken = 1;
	m->step_end_ns = MODEL_NEVER;
	m->events_given = 1;
	*ret_events = m->event;
	return m->events_nr;
}

uint64_t model_step_end(const struct model *m)
{
	return m->step_end_ns;
}

void model_request_life(const struct model_request *r, struct model_life *ret_life)
{
	*ret_life = r->life;
}

void model_figures_get(const struct model *m, struct model_figures *ret_figures)
{
	struct model_figures f = m->count;

	f.running = m->running_nr;
	f.waiting = m->waiting_nr;
	f.blocks_used = m->kv.nr - m->kv.idle;
	f.blocks_cached = m->kv.findable;
	f.evicted_blocks = m->kv.evicted;
	for (uint32_t i = 0; i < m->running_nr; i++) {
		const struct model_request *r = m->running[i];

		if (decoding(r)) {
			f.decoding++;
			f.decode_context_tokens += known(r);
		} else {
			f.pending_prefill_tokens += known(r) - r->life.computed_tokens;
		}
	}
	*ret_figures = f;
}

uint64_t model_blocks_total(const struct model *m)
{
	return m->kv.nr;
}

const struct model_profile *model_profile_of(const struct model *m)
{
	return &m->profile;
}

const struct model_options *model_options_of(const struct model *m)
{
	return &m->options;
}

uint32_t model_probe(const struct model *m, uint64_t salt, const uint32_t *prompt, uint32_t tokens)
{
	uint32_t hit = 0;

	for (uint64_t hash = salt; hit + MODEL_BLOCK < tokens; hit += MODEL_BLOCK) {
		hash = model_block_hash(hash, prompt + hit);
		if (kv_find(&m->kv, hash) == KV_NONE)
			break;
	}
	return hit;
}

uint64_t model_waiting_uncached(const struct model *m)
{
	uint64_t tokens = 0;
	uint32_t idle;

	for (const struct model_request *r = m->waiting; r; r = r->next)
		tokens += known(r) - cached_blocks(m, r, &idle) * MODEL_BLOCK;
	return tokens;
}

uint32_t model_import(struct model *m, uint64_t salt, const uint32_t *prompt, uint32_t tokens)
{
	uint32_t most = tokens / MODEL_BLOCK, n = 0;
	uint32_t *held = malloc((most + 1) * sizeof(*held));

	for (uint64_t hash = salt; held && n < most; n++) {
		hash = model_block_hash(hash, prompt + n * MODEL_BLOCK);
		held[n] = kv_find(&m->kv, hash);
		if (held[n] != KV_NONE) {
			kv_hold(&m->kv, held[n]);
		} else if (m->kv.idle > 0) {
			held[n] = kv_take(&m->kv);
			kv_name(&m->kv, held[n], hash);
		} else {
			break;
		}
	}
	for (uint32_t i = n; i > 0; i--)
		kv_drop(&m->kv, held[i - 1]);
	free(held);
	return n * MODEL_BLOCK;
}

void model_forget(struct model *m)
{
	kv_forget(&m->kv);
}

/* ---- copies ---- */

/* A request with chain and blocks of its own; *ret stays in no queue. */
static int request_copy(const struct model_request *from, struct model_request **ret)
{
	struct model_request *r = malloc(sizeof(*r));
	size_t room = (from->life.prompt_tokens + from->life.output_tokens) / MODEL_BLOCK + 1;

	if (!r)
		return -ENOMEM;
	*r = *from;
	r->chain = malloc(room * sizeof(*r->chain));
	r->block = malloc(room * sizeof(*r->block));
	if (!r->chain || !r->block) {
		request_free(r);
		return -ENOMEM;
	}
	memcpy(r->chain, from->chain, from->chain_nr * sizeof(*r->chain));
	memcpy(r->block, from->block, from->blocks_nr * sizeof(*r->block));
	*ret = r;
	return 0;
}

int model_copy(struct model *to, const struct model *from)
{
	struct model_request *copy;
	int err = 0;

	assert(to != from && to->kv.nr == from->kv.nr);
	assert(to->options.sequences_max == from->options.sequences_max);
	drop_requests(to);
	kv_copy(&to->kv, &from->kv);
	to->step_end_ns = from->step_end_ns;
	to->step_begin_ns = from->step_begin_ns;
	to->unbroken = from->unbroken;
	to->events_nr = 0;
	to->count = from->count;
	for (uint32_t i = 0; i < from->running_nr && !err; i++) {
		err = request_copy(from->running[i], &copy);
		if (!err)
			to->running[to->running_nr++] = copy;
	}
	for (const struct model_request *r = from->waiting; r && !err; r = r->next) {
		err = request_copy(r, &copy);
		if (!err)
			queue_append(to, copy);
	}
	return err;
}

struct model_request *model_request_at(const struct model *m, size_t index)
{
	struct model_request *r = m->waiting;

	if (index < m->running_nr)
		return m->running[index];
	for (index -= m->running_nr; r && index > 0; index--)
		r = r->next;
	return r;
}

uint64_t model_request_tag(const struct model_request *r)
{
	return r->tag;
}

void model_check(const struct model *m)
{
	uint64_t held = 0, references = 0;
	uint32_t waiting = 0;

	kv_check(&m->kv);
	for (uint32_t i = 0; i < m->kv.nr; i++)
		references += m->kv.block[i].refs;
	for (uint32_t i = 0; i < m->running_nr; i++) {
		const struct model_request *r = m->running[i];

		assert(r->state == RUNNING && r->blocks_nr >= blocks_for(r->life.computed_tokens));
		held += r->blocks_nr;
	}
	for (const struct model_request *r = m->waiting; r; r = r->next) {
		assert(r->state == WAITING && r->blocks_nr == 0);
		waiting++;
	}
	assert(held == references && waiting == m->waiting_nr);
	assert(m->count.submitted ==
	       m->count.finished + m->count.aborted + m->running_nr + m->waiting_nr);
}
