/* From a scanned request to an engine: the one file where the pure parts meet. */
#include "router/route.h"

#include "router/http/http.h"
#include "router/journal/journal.h"
#include "router/net/parts.h"
#include "router/worker.h"
#include "shm/base/clock.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

enum {
	OUTPUT_TOKENS_MAX = 1 << 20,
	PROMPT_TOKENS_MAX = 1 << 30,
	ID_SUFFIXES_MAX = 32,     /* tried before a fresh id is made */
	HOME_SLACK_TOKENS = 512,  /* what whole blocks leave out of a short prompt */
	CHARGE_SMALL_TOKENS = 16, /* what a request that makes no tokens is taken for */
};

static const double calibration_alpha = 0.15;
static const double home_seen = 0.75; /* of its last prompt, for a home to be believed */

/* ---- begin, free ---- */

int route_begin(struct worker *w, struct exchange *x)
{
	struct route *r = slab_take(&w->routes);

	if (!r)
		return -ENOBUFS;
	memset(r, 0, sizeof(*r));
	r->bound = r->home = -1;
	x->route = r;
	return 0;
}

static struct slab *chain_slab(struct worker *w, const struct route *r)
{
	return r->chain_small ? &w->outs : &w->bodies;
}

void route_free(struct worker *w, struct exchange *x)
{
	struct route *r = x->route;

	if (!r)
		return;
	assert(r->ticket.phase == LEDGER_FREE);
	if (r->chain_block)
		slab_give(chain_slab(w, r), r->chain_block);
	slab_give(&w->routes, r);
	x->route = NULL;
}

uint64_t route_seed(const struct worker *w)
{
	return w->content_seed;
}

int route_is_own(const struct http_route *target)
{
	return target->path == HTTP_PATH_MODELS || target->path == HTTP_PATH_HEALTH;
}

/* ---- who asks ---- */

static const char *bearer(const struct http_head *head, const char *buf, size_t *ret_len)
{
	const struct http_field *f = http_head_field(head, HTTP_FIELD_AUTHORIZATION);
	const char *value;

	if (f) {
		value = buf + f->value.at;
		*ret_len = f->value.len;
		if (f->value.len > 7 && strncasecmp(value, "Bearer ", 7) == 0) {
			*ret_len -= 7;
			return value + 7;
		}
		return value;
	}
	f = http_head_field(head, HTTP_FIELD_API_KEY); /* Anthropic's clients */
	*ret_len = f ? f->value.len : 0;
	return f ? buf + f->value.at : NULL;
}

int route_authorized(const struct worker *w, const struct http_head *head, const char *buf)
{
	size_t len = 0;
	const char *key = bearer(head, buf, &len);
	int found = 0;

	if (w->api_keys.nr == 0)
		return 1;
	/* Every key is compared, in time that does not depend on where they differ. */
	for (uint32_t i = 0; key && i < w->api_keys.nr; i++) {
		const char *mine = w->api_keys.key[i];
		size_t n = strlen(mine);
		unsigned differ = n != len;

		for (size_t j = 0; j < len && j < n; j++)
			differ |= (unsigned char)(mine[j] ^ key[j]);
		found |= !differ;
	}
	return found;
}

/* The session id that a configured header carries, in the configuration's order. */
void route_head(struct worker *w, struct exchange *x, const struct http_head *head, const char *buf)
{
	struct route *r = x->route;
	size_t len = 0;
	const char *key = bearer(head, buf, &len);

	r->scope = key ? sessions_hash(&w->sessions, key, len) : 0;
	for (uint32_t i = 0; i < w->set->session_headers.nr; i++) {
		const struct http_field *f =
			http_head_named(head, buf, w->set->session_headers.word[i]);

		if (f && f->value.len && f->value.len <= LIMIT_SESSION_ID) {
			memcpy(r->header_session, buf + f->value.at, f->value.len);
			r->header_session_len = f->value.len;
			return;
		}
	}
}

/* ---- what the body says ---- */

static void take_scan(struct worker *w, struct exchange *x)
{
	struct route *r = x->route;
	struct chat_scan *scan = x->scan ? &x->scan->scan : NULL;
	size_t small = block_capacity(&w->outs) / sizeof(uint64_t), want;

	if (r->scanned || !scan)
		return;
	r->scanned = 1;
	want = scan->req.content_bytes / LIMIT_CONTENT_BLOCK_BYTES + 3;
	r->chain_small = want <= small;
	r->chain_block = block_take(chain_slab(w, r));
	r->chain = r->chain_block ? (uint64_t *)r->chain_block->data : NULL;
	r->chain_nr =
		chat_scan_end(scan, x->complete, r->chain,
			      r->chain ? block_capacity(chain_slab(w, r)) / sizeof(uint64_t) : 0);
	r->request = scan->req;
	x->stream = r->request.stream;
}

static int worker_index(const struct worker *w, uint32_t region_index)
{
	for (uint32_t i = 0; i < w->engines_nr; i++)
		if (w->engines[i].region_index == (int)region_index)
			return (int)i;
	return -1;
}

uint64_t route_epoch(const struct engine *e)
{
	/* The agent's start id, moved on when the router itself has seen the engine away. */
	return e->state.epoch ? e->state.epoch + e->own_restarts * 0x9e3779b97f4a7c15ull
			      : e->own_restarts;
}

static void epochs_get(const struct worker *w, uint64_t epochs[STATE_ENGINES_MAX])
{
	memset(epochs, 0, STATE_ENGINES_MAX * sizeof(*epochs));
	for (uint32_t i = 0; i < w->engines_nr; i++)
		if (w->engines[i].region_index >= 0)
			epochs[w->engines[i].region_index] = route_epoch(&w->engines[i]);
}

/* A stored response binds the request to the engine that made it, unless that has restarted. */
static void find_bound(struct worker *w, struct exchange *x, const uint64_t *epochs)
{
	struct route *r = x->route;
	struct response response;
	const char *id = NULL;
	size_t len = 0;
	uint32_t home;

	if (x->target.path == HTTP_PATH_RESPONSE) {
		id = x->target.id;
		len = x->target.id_len;
	} else if (r->scanned && r->request.previous_response_id_len) {
		id = r->request.previous_response_id;
		len = r->request.previous_response_id_len;
	}
	if (!id || responses_find(&w->responses, id, len, w->now_ns, &response) < 0)
		return;
	home = response_home(&response, epochs, STATE_ENGINES_MAX);
	if (home != SESSION_NO_ENGINE)
		r->bound = worker_index(w, home);
	r->session = response.session;
	r->has_session = r->session.key != 0; /* it may have been made outside of any */
	r->bound_turn = response.turn + 1;
	r->bound_tokens = response.tokens;
}

static void find_session(struct worker *w, struct exchange *x)
{
	struct route *r = x->route;
	const struct chat_request *q = &r->request;

	if (r->has_session || !r->scanned || !x->generates)
		return;
	if (r->header_session_len)
		r->session = sessions_key(&w->sessions, r->scope, r->header_session,
					  r->header_session_len, q->identity);
	else if (q->session_len && q->session_source > CHAT_SESSION_USER)
		r->session = sessions_key(&w->sessions, r->scope, q->session, q->session_len,
					  q->identity);
	else if (r->chain_nr || q->identity)
		r->session = sessions_infer(&w->sessions, r->scope, q->identity, r->chain,
					    r->chain_nr, w->now_ns);
	else
		return;
	r->has_session = 1;
}

/* Prompt tokens, turn and home from what the session knows. */
static void estimate(struct worker *w, struct exchange *x, const uint64_t *epochs,
		     struct session *ret_session, uint64_t *ret_home_hit)
{
	struct route *r = x->route;
	const struct chat_request *q = &r->request;
	struct tokens_prompt *prompt = &r->prompt;
	struct session *s = ret_session;
	int known = r->has_session && session_find(&w->sessions, r->session, w->now_ns, s) == 0;
	int goes_on = known && session_continues(s, r->chain, r->chain_nr);

	*ret_home_hit = 0;
	*prompt = (struct tokens_prompt){ .text = q->classes,
					  .messages = q->messages,
					  .tools = q->tools,
					  .images = q->images,
					  .token_ids = q->token_ids };
	if (!known)
		memset(s, 0, sizeof(*s));
	r->model_key = tokens_model_key(q->model, q->model_len);
	r->turn = r->bound_turn ? r->bound_turn : q->turn ? q->turn : 1;
	if (goes_on && s->prompt_tokens) {
		struct tokens_base base = { .exact = s->prompt_tokens, .prompt = s->prompt };

		r->prompt_tokens = tokens_estimate_turn(&w->tokens, r->model_key, &base, prompt);
		r->exact_base = 1;
	} else if (q->unreadable || q->content_bytes + q->token_ids == 0) {
		r->prompt_tokens = tokens_median(&w->tokens, r->model_key);
	} else {
		r->prompt_tokens = tokens_estimate(&w->tokens, r->model_key, prompt);
	}
	if (r->bound_tokens > PROMPT_TOKENS_MAX) /* as an engine says */
		r->bound_tokens = PROMPT_TOKENS_MAX;
	r->prompt_tokens += (uint32_t)r->bound_tokens;
	if (r->prompt_tokens == 0)
		r->prompt_tokens = 1;
	if (!known)
		return;
	uint32_t home = session_home(s, epochs, STATE_ENGINES_MAX);

	r->home = home == SESSION_NO_ENGINE ? -1 : worker_index(w, home);
	if (goes_on && s->prompt_tokens)
		*ret_home_hit =
			s->prompt_tokens +
			(s->completion_tokens == SESSION_UNKNOWN ? 0 : s->completion_tokens);
	if (r->bound_tokens)
		*ret_home_hit = r->bound_tokens;
}

/*
 * Whether home still has what the session knows of it: the session remembers for ever, a cache does
 * not. Where the index has lost sight of the last prompt, its engine has evicted it.
 */
static int home_holds(const struct route *r, const struct session *s, uint32_t blocks, double hit)
{
	return r->bound_tokens || r->chain_nr == 0 || blocks == r->chain_nr ||
	       hit + HOME_SLACK_TOKENS >= home_seen * (double)s->prompt_tokens;
}

/* Hits in tokens: blocks x bytes of a block x this prompt's tokens per byte; home knows better. */
static void hits(struct worker *w, struct route *r, const struct session *s, uint64_t home_hit,
		 uint32_t *ret_hits)
{
	uint32_t blocks[STATE_ENGINES_MAX] = { 0 };
	double per_block = 0;

	if (r->chain_nr && r->request.content_bytes)
		per_block = (double)r->prompt_tokens * LIMIT_CONTENT_BLOCK_BYTES /
			    (double)r->request.content_bytes;
	if (r->chain_nr)
		prefix_match_all(&w->prefix, w->prefix.engines, r->chain, r->chain_nr, blocks);
	for (uint32_t i = 0; i < w->engines_nr; i++) {
		int region = w->engines[i].region_index;
		double hit = region >= 0 ? blocks[region] * per_block : 0;

		if ((int)i == r->home && hit < (double)home_hit &&
		    (region < 0 || home_holds(r, s, blocks[region], hit)))
			hit = (double)home_hit;
		/* The last token is always computed. */
		ret_hits[i] = hit >= r->prompt_tokens ? r->prompt_tokens - 1 : (uint32_t)hit;
	}
}

/* ---- what the engines say ---- */

/* An expired ratio does not act: an engine that it kept work from would never show that it is well.
 */
static double calibration_in_force(const struct worker *w, const struct engine *e)
{
	return e->learnt->learnt_ns + w->set->ttft_window > w->now_ns ? e->learnt->calibration : 0;
}

static void fill_engine(struct worker *w, struct exchange *x, struct engine *e, uint32_t hit,
			struct policy_engine *p)
{
	const struct route *r = x->route;
	const struct engine_state *s = &e->state;
	double tokens_per_s = w->params.throughput;
	struct ledger_view view;

	memset(p, 0, sizeof(*p));
	p->id = e->region_index >= 0 ? (uint32_t)e->region_index : e->index;
	p->weight = e->weight;
	if (r->candidates >> e->index & 1)
		p->flags |= POLICY_SERVES;
	if (r->any_open ? engine_open(w, e) : engine_reachable(w, e))
		p->flags |= POLICY_ALIVE;
	if (e->drained)
		p->flags |= POLICY_DRAINED;
	if (x->tried >> e->index & 1)
		p->flags |= POLICY_EXCLUDED;
	if (s->health == ENGINE_HEALTH_STALLED)
		p->flags |= POLICY_STALLED;
	if (ENGINE_HAS(s, prefill_tokens_per_s)) {
		p->flags |= POLICY_MEASURED_PREFILL;
		p->prefill_tokens_per_s = tokens_per_s = s->prefill_tokens_per_s;
	}
	if (ENGINE_HAS(s, decode_iteration_s)) {
		p->flags |= POLICY_MEASURED_DECODE;
		p->decode_iteration_s = s->decode_iteration_s;
	}
	ledger_effective(w->ledger, &w->ledger_params, e->index, e->attached ? s : NULL, NULL,
			 tokens_per_s, w->now_ns, &view);
	p->staleness = view.staleness;
	p->age_s = view.age_s;
	p->fresh_s = view.fresh_s;
	p->num_requests = view.num_requests;
	p->decoding = view.decoding;
	p->decode_context_tokens = view.decode_context_tokens;
	p->pending_prefill_tokens = view.pending_prefill_tokens;
	if (view.pending_prefill_s >= 0) {
		p->flags |= POLICY_PENDING_S;
		p->pending_prefill_s = view.pending_prefill_s;
	}
	if (view.probe)
		p->flags |= POLICY_PROBE;
	p->staged_rest_tokens = view.staged_rest_tokens;
	p->oldest_wait_s = view.oldest_wait_s;
	p->hit_tokens = hit;
	p->step_budget_tokens = ENGINE_HAS(s, step_budget_tokens) ? s->step_budget_tokens : 0;
	p->kv_used_tokens = ENGINE_HAS(s, kv_used_tokens) ? s->kv_used_tokens : 0;
	p->kv_capacity_tokens = e->kv_capacity;
	if (!e->kv_capacity && ENGINE_HAS(s, kv_capacity_tokens))
		p->kv_capacity_tokens = s->kv_capacity_tokens;
	p->max_model_len = ENGINE_HAS(s, max_model_len) ? s->max_model_len : 0;
	p->calibration = calibration_in_force(w, e);
	p->recent_ttft_s = e->recent_ttft_s;
	p->recent_ttft_n = (uint32_t)e->recent_ttft_n;
}

/* ---- the decision ---- */

/* Where every engine has refused something lately, one of them is asked all the same. */
static int any_open(const struct worker *w, const struct exchange *x)
{
	uint64_t left = x->route->candidates & ~x->tried;

	for (uint32_t i = 0; i < w->engines_nr; i++)
		if ((left >> i & 1) && !w->engines[i].drained && engine_open(w, &w->engines[i]))
			return 1;
	return 0;
}

static void refill_budget(struct worker *w)
{
	w->move_budget += (double)(w->now_ns - w->move_budget_ns) * 1e-9 * w->set->migration_rate;
	if (w->move_budget > w->set->migration_burst)
		w->move_budget = w->set->migration_burst;
	w->move_budget_ns = w->now_ns;
}

static void fill_request(struct worker *w, struct exchange *x, const struct session *s,
			 struct policy_request *p)
{
	const struct route *r = x->route;
	const struct chat_request *q = &r->request;

	memset(p, 0, sizeof(*p));
	p->random[0] = worker_random(w);
	p->random[1] = worker_random(w);
	p->cursor = w->cursor;
	p->flags = (x->stream ? POLICY_STREAMED : 0) | (r->exact_base ? 0 : POLICY_ESTIMATED) |
		   (r->bound >= 0 ? POLICY_NO_MIGRATION : 0);
	p->home = r->bound >= 0 ? r->bound : r->home;
	p->prompt_tokens = r->prompt_tokens;
	p->output_tokens = (uint32_t)s->output_tokens;
	if (q->max_tokens && (p->output_tokens == 0 || q->max_tokens < p->output_tokens))
		p->output_tokens =
			q->max_tokens < OUTPUT_TOKENS_MAX ? q->max_tokens : OUTPUT_TOKENS_MAX;
	p->sequences = q->n;
	p->turn = r->turn;
	p->moves = session_recent_moves(s);
	p->since_move_s =
		s->last_move_ns ? (float)((double)(w->now_ns - s->last_move_ns) * 1e-9) : -1;
	p->turns_since_move = s->moved_turns ? __builtin_ctzll(s->moved_turns) : 0;
	p->move_budget = (float)w->move_budget;
}

static void journal_note(struct worker *w, struct exchange *x, const struct policy_request *request,
			 const struct policy_engine *engines, const struct policy_choice *choice,
			 uint64_t took_ns)
{
	struct journal_decision *d = (void *)w->record;
	struct route *r = x->route;
	struct journal_engine names[STATE_ENGINES_MAX];
	size_t size;

	memset(d, 0, sizeof(*d));
	memset(names, 0, w->engines_nr * sizeof(names[0]));
	d->head.wall_ns = clock_wall_ns();
	d->head.ns = w->now_ns;
	snprintf(d->head.id, sizeof(d->head.id), "%s", x->id);
	memcpy(d->model, r->request.model, r->request.model_len);
	d->session = r->has_session ? r->session.key : 0;
	d->took_ns = took_ns;
	d->attempt = x->attempts + 1;
	d->params = w->params;
	d->request = *request;
	for (uint32_t i = 0; i < w->engines_nr; i++)
		memcpy(names[i].name, w->engines[i].at.name, sizeof(names[i].name));
	size = journal_decision_write(d, sizeof(w->record), names, engines, w->engines_nr, choice);
	if (size && size <= w->file.journal.record_size)
		r->decision = ring_append(&w->file.journal, d, size);
}

/* Few of what is in flight: most have their first token and need no look until the end. */
static void waiting_add(struct worker *w, struct exchange *x)
{
	assert(!x->wait_prev);
	x->wait_next = w->waiting;
	x->wait_prev = &w->waiting;
	if (w->waiting)
		w->waiting->wait_prev = &x->wait_next;
	w->waiting = x;
}

static void waiting_remove(struct exchange *x)
{
	if (!x->wait_prev)
		return;
	*x->wait_prev = x->wait_next;
	if (x->wait_next)
		x->wait_next->wait_prev = x->wait_prev;
	x->wait_prev = NULL;
}

/* The choice is made: into the books, before the request's first byte leaves. */
static void commit(struct worker *w, struct exchange *x, const struct policy_engine *engines,
		   const struct policy_choice *choice)
{
	struct route *r = x->route;
	struct engine *e = &w->engines[choice->engine];
	struct session_time now = { .ns = w->now_ns, .wall_s = clock_wall_ns() / NS_PER_S };

	r->hit_tokens = engines[choice->engine].hit_tokens;
	r->uncached_tokens = r->prompt_tokens - r->hit_tokens;
	r->class = choice->class;
	r->reason = choice->reason;
	r->predicted_ttft_s = choice->predicted_ttft_s;
	r->predicted_raw_s = choice->predicted_raw_s;
	w->cursor = choice->cursor;
	r->ticket = (struct ledger_ticket){
		.engine = e->index,
		.sequences = x->generates ? (r->request.n ? r->request.n : 1) : 1,
		.prompt_tokens = x->generates ? r->prompt_tokens : CHARGE_SMALL_TOKENS,
		.uncached_tokens = x->generates                             ? r->uncached_tokens
				   : x->target.path == HTTP_PATH_EMBEDDINGS ? r->prompt_tokens
									    : CHARGE_SMALL_TOKENS,
	};
	r->ticket.prefill_s = policy_prefill_s(&w->params, &engines[choice->engine],
					       r->ticket.prompt_tokens, r->ticket.uncached_tokens);
	ledger_dispatch(w->ledger, &r->ticket, w->now_ns);
	r->dispatched = 1;
	if (x->generates)
		waiting_add(w, x);
	if (choice->move == MOVE_MADE || (x->generates && r->home >= 0 && r->turn > 1 &&
					  r->home != choice->engine && r->bound < 0))
		count(&w->counters, COUNTER_migrations, 1);
	/* Never below 0, which would mean that there is no limit. */
	if (choice->move == MOVE_MADE)
		w->move_budget = w->move_budget > 1 ? w->move_budget - 1 : 0;
	count_engine(&w->counters, e->index, ENGINE_COUNTER_requests, 1);
	count_engine(&w->counters, e->index, ENGINE_COUNTER_hit_tokens_predicted,
		     x->generates ? r->hit_tokens : 0);
	if (r->has_session && x->generates && e->region_index >= 0) {
		struct session_dispatch d = { .engine = e->region_index,
					      .epoch = route_epoch(e),
					      .turn = r->turn,
					      .class = r->class,
					      .chain = r->chain,
					      .blocks = r->chain_nr };

		r->was_known = session_find(&w->sessions, r->session, w->now_ns, &r->before) == 0;
		session_note_dispatch(&w->sessions, r->session, r->scope, &d, now);
		r->moved_home = 1;
	}
}

/* The engine has computed nothing of it: the session is still at home where it was. */
static void session_take_back(struct worker *w, struct exchange *x)
{
	struct route *r = x->route;

	if (r->moved_home && !r->token_seen)
		session_undo_dispatch(&w->sessions, r->session, r->was_known ? &r->before : NULL,
				      (uint32_t)w->engines[x->engine].region_index, w->now_ns);
	r->moved_home = 0;
}

/* Which engines serve it: the mask, ROUTE_HOLD in *ret_err while lists are asked for, or an end. */
static int find_candidates(struct worker *w, struct exchange *x)
{
	struct route *r = x->route;
	const struct chat_request *q = &r->request;

	r->candidates =
		engines_serving(w, q->model, r->scanned && !q->model_long ? q->model_len : 0);
	if (q->model_long)
		r->candidates = 0;
	/* A worker that has just started: the session's home may be among those not yet known. */
	if (!r->waited && engines_asking(w, 1))
		return ROUTE_HOLD;
	if (r->candidates)
		return 0;
	if (w->engines_nr == 0)
		return -END_NO_ENGINE;
	if (!r->refreshed) {
		r->refreshed = 1;
		engines_ask(w);
	}
	if (!r->waited && engines_asking(w, 0))
		return ROUTE_HOLD;
	/* One whose list cannot be had takes any name. */
	r->candidates = q->model_long ? 0 : engines_unlisted(w);
	return r->candidates ? 0 : -END_MODEL;
}

int route_decide(struct worker *w, struct exchange *x)
{
	static struct policy_choice choice; /* large; written by every call before it is read */
	struct policy_engine engines[STATE_ENGINES_MAX];
	uint32_t hit[STATE_ENGINES_MAX];
	uint64_t epochs[STATE_ENGINES_MAX], home_hit, t0 = clock_ns(), took;
	struct policy_request request;
	struct route *r = x->route;
	struct session session;
	int err;

	take_scan(w, x);
	err = find_candidates(w, x);
	if (err)
		return err;
	engines_read(w);
	epochs_get(w, epochs);
	find_bound(w, x, epochs);
	find_session(w, x);
	estimate(w, x, epochs, &session, &home_hit);
	hits(w, r, &session, home_hit, hit);
	refill_budget(w);
	fill_request(w, x, &session, &request);
	r->any_open = any_open(w, x);
	for (uint32_t i = 0; i < w->engines_nr; i++)
		fill_engine(w, x, &w->engines[i], hit[i], &engines[i]);
	policy_choose(&w->params, &request, engines, w->engines_nr, &choice);
	took = clock_ns() - t0;
	hist_add(&w->decision, (double)took * 1e-9);
	count(&w->counters, COUNTER_decisions, 1);
	journal_note(w, x, &request, engines, &choice, took);
	if (choice.engine < 0)
		return x->tried ? -END_CONNECT : -END_NO_ENGINE;
	commit(w, x, engines, &choice);
	return choice.engine;
}

int route_has_other(struct worker *w, const struct exchange *x)
{
	uint64_t others = x->route->candidates & ~x->tried & ~(1ull << x->engine);

	if (x->route->bound >= 0)
		return 0; /* only that engine has its state */
	for (uint32_t i = 0; i < w->engines_nr; i++)
		if ((others >> i & 1) && engine_open(w, &w->engines[i]) && !w->engines[i].drained)
			return 1;
	return 0;
}

void route_undo(struct worker *w, struct exchange *x)
{
	struct route *r = x->route;

	ledger_end(w->ledger, &r->ticket, LEDGER_FAILED, w->now_ns);
	waiting_remove(x);
	r->dispatched = 0;
	r->token_seen = 0; /* assumed, as it turns out */
	x->sent_ns = 0;
	session_take_back(w, x);
	if (r->bound == x->engine)
		r->bound = -1;
}

/* ---- what comes back ---- */

static void prefill_landed(struct worker *w, struct exchange *x)
{
	struct route *r = x->route;
	struct engine *e = &w->engines[x->engine];

	r->token_seen = 1;
	ledger_first_token(w->ledger, &r->ticket, w->now_ns);
	if (r->chain_nr && e->region_index >= 0)
		prefix_insert(&w->prefix, e->region_index, r->chain, r->chain_nr);
}

void route_first_token(struct worker *w, struct exchange *x)
{
	struct route *r = x->route;
	struct engine *e = &w->engines[x->engine];
	double ttft_s = (double)(w->now_ns - x->sent_ns) * 1e-9;

	if (!r || !x->generates)
		return;
	waiting_remove(x);
	if (!r->token_seen)
		prefill_landed(w, x);
	latency_first_token(w, x);
	if (r->predicted_raw_s > 0) {
		/* Where little is predicted the step under way decides: it says nothing of speed.
		 */
		double step_s = w->params.decode_iteration_s;
		double ratio = (ttft_s + step_s) / (r->predicted_raw_s + step_s);
		double known = calibration_in_force(w, e);

		ratio = ratio < 0.1 ? 0.1 : ratio > 10 ? 10 : ratio;
		e->learnt->calibration =
			known == 0 ? ratio : known + calibration_alpha * (ratio - known);
		e->learnt->learnt_ns = w->now_ns;
	}
}

void route_assume_tokens(struct worker *w)
{
	for (struct exchange *x = w->waiting, *next; x; x = next) {
		next = x->wait_next;
		if (x->stream || !x->sent_ns ||
		    (double)(w->now_ns - x->sent_ns) * 1e-9 <= x->route->predicted_ttft_s)
			continue;
		waiting_remove(x);
		prefill_landed(w, x);
	}
}

void route_response_made(struct worker *w, struct exchange *x)
{
	const struct chat_watch *watch = &x->watch;
	struct route *r = x->route;
	struct engine *e = &w->engines[x->engine];
	struct session_time now = { .ns = w->now_ns, .wall_s = clock_wall_ns() / NS_PER_S };
	struct response made = { .session = r->session, .turn = r->turn };

	if (x->target.path != HTTP_PATH_RESPONSES || e->region_index < 0)
		return;
	made.engine = e->region_index;
	made.epoch = route_epoch(e);
	responses_put(&w->responses, watch->response_id, watch->response_id_len, &made, now);
}

static void learn(struct worker *w, struct exchange *x)
{
	struct route *r = x->route;
	struct chat_usage usage;
	int cached_known = (x->watch.seen & CHAT_SEEN_CACHED) != 0;
	struct session_time now = { .ns = w->now_ns, .wall_s = clock_wall_ns() / NS_PER_S };

	if (!x->generates || x->status != 200 || !chat_watch_usage(&x->watch, &usage))
		return;
	count(&w->counters, COUNTER_prompt_tokens, usage.prompt_tokens);
	count(&w->counters, COUNTER_completion_tokens, usage.completion_tokens);
	count_engine(&w->counters, x->engine, ENGINE_COUNTER_prompt_tokens, usage.prompt_tokens);
	if (cached_known) {
		count(&w->counters, COUNTER_cached_tokens, usage.cached_tokens);
		count_engine(&w->counters, x->engine, ENGINE_COUNTER_cached_tokens,
			     usage.cached_tokens);
	}
	if (x->watch.response_id_len)
		responses_set_tokens(&w->responses, x->watch.response_id, x->watch.response_id_len,
				     usage.prompt_tokens + usage.completion_tokens, w->now_ns);
	if (!r->scanned)
		return;
	if (!r->bound_tokens)
		tokens_learn(&w->tokens, r->model_key, &r->prompt, usage.prompt_tokens, w->now_ns);
	if (r->has_session) {
		struct session_result result = {
			.turn = r->turn,
			.prompt_tokens = usage.prompt_tokens,
			.completion_tokens = usage.completion_tokens,
			.cached_tokens = cached_known ? usage.cached_tokens : SESSION_UNKNOWN,
			.prompt = r->prompt,
		};

		session_note_result(&w->sessions, r->session, &result, now);
	}
}

static void journal_outcome_note(struct worker *w, const struct exchange *x)
{
	struct journal_outcome o;
	const struct route *r = x->route;
	struct chat_usage usage;
	int have = x->answered && chat_watch_usage(&x->watch, &usage);

	memset(&o, 0, sizeof(o));
	journal_head_init(&o.head, JOURNAL_OUTCOME);
	o.head.wall_ns = clock_wall_ns();
	o.head.ns = w->now_ns;
	snprintf(o.head.id, sizeof(o.head.id), "%s", x->id);
	o.decision = r->decision;
	if (x->engine >= 0)
		snprintf(o.engine, sizeof(o.engine), "%s", w->engines[x->engine].at.name);
	snprintf(o.end, sizeof(o.end), "%s", conn_ends[x->end].word);
	o.status = x->status;
	o.prompt_tokens = have ? usage.prompt_tokens : UINT64_MAX;
	o.completion_tokens = have ? usage.completion_tokens : UINT64_MAX;
	o.cached_tokens =
		have && (x->watch.seen & CHAT_SEEN_CACHED) ? usage.cached_tokens : UINT64_MAX;
#define SINCE(ns)                    ((ns) ? (double)((ns)-x->start_ns) * 1e-9 : -1)
#define MOMENT(name, meaning, phase) o.name##_s = SINCE(x->name##_ns);
	JOURNAL_MOMENTS(MOMENT)
#undef MOMENT
	o.end_s = SINCE(w->now_ns);
#undef SINCE
	ring_append(&w->file.journal, &o, sizeof(o));
}

void route_ended(struct worker *w, struct exchange *x)
{
	static const enum ledger_end how[] = { [OUTCOME_COMPLETED] = LEDGER_COMPLETED,
					       [OUTCOME_FAILED] = LEDGER_FAILED,
					       [OUTCOME_ABORTED] = LEDGER_ABORTED };
	struct route *r = x->route;
	enum conn_outcome outcome = conn_ends[x->end].outcome;
	struct engine *e = x->engine >= 0 ? &w->engines[x->engine] : NULL;

	if (!r)
		return;
	waiting_remove(x);
	if (r->dispatched) {
		if (outcome == OUTCOME_COMPLETED && x->status == 200 && x->generates &&
		    !r->token_seen)
			prefill_landed(w, x);
		ledger_end(w->ledger, &r->ticket, how[outcome], w->now_ns);
		r->dispatched = 0;
		if (x->status >= 400)
			session_take_back(w, x);
	}
	if (e && x->answered && outcome == OUTCOME_COMPLETED)
		learn(w, x);
	if (e && outcome == OUTCOME_ABORTED)
		count_engine(&w->counters, e->index, ENGINE_COUNTER_aborts, 1);
	latency_ended(w, x);
	if (r->decision)
		journal_outcome_note(w, x);
}

/* ---- engines that come and go ---- */

void route_observe(struct worker *w, struct engine *e)
{
	if (ledger_observe(w->ledger, &w->ledger_params, e->index, &e->state, w->now_ns))
		link_drop_idle(w, e);
	if (e->region_index < 0)
		return;
	prefix_set_epoch(&w->prefix, e->region_index, route_epoch(e));
	if (ENGINE_HAS(&e->state, kv_capacity_tokens) || e->kv_capacity)
		prefix_set_capacity(&w->prefix, e->region_index,
				    prefix_blocks_of(e->kv_capacity ? e->kv_capacity
								    : e->state.kv_capacity_tokens,
						     0));
}

void route_engine_lost(struct worker *w, struct engine *e)
{
	e->learnt->restarts = e->own_restarts;
	if (e->region_index >= 0)
		prefix_reset(&w->prefix, e->region_index);
}

/* ---- publishing ---- */

void route_publish(struct worker *w)
{
	for (uint32_t i = 0; i < w->engines_nr; i++) {
		struct engine *e = &w->engines[i];
		struct ledger_books books;
		struct ledger_sums sums;

		ledger_books_get(w->ledger, i, &sums);
		memset(&books, 0, sizeof(books));
		memcpy(books.name, e->at.name, sizeof(books.name));
#define COPY(field) books.field = sums.field
		COPY(waiting_requests), COPY(waiting_tokens), COPY(decoding);
		COPY(decode_context_tokens), COPY(staged_rest_tokens), COPY(pieces);
		COPY(cold_prompts), COPY(held), COPY(held_tokens);
		COPY(dispatched_total), COPY(finished_total);
#undef COPY
		books.updated_ns = w->now_ns;
		ledger_file_publish(&w->ledger_file, i, &books);
	}
}

/* ---- request ids ---- */

static uint32_t id_bucket(const char *id)
{
	return XXH3_64bits(id, strlen(id)) % WORKER_ID_BUCKETS;
}

static int id_live(struct worker *w, const char *id)
{
	for (struct exchange *x = w->ids[id_bucket(id)]; x; x = x->same_id)
		if (strcmp(x->id, id) == 0)
			return 1;
	return 0;
}

static int id_acceptable(const char *text, size_t len)
{
	if (len == 0 || len > LIMIT_REQUEST_ID)
		return 0;
	for (size_t i = 0; i < len; i++)
		if (!((text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'z') ||
		      (text[i] >= 'A' && text[i] <= 'Z') || text[i] == '.' || text[i] == '_' ||
		      text[i] == '-'))
			return 0;
	return 1;
}

void request_id_take(struct worker *w, struct exchange *x, const struct http_head *head,
		     const char *buf)
{
	const struct http_field *f = head ? http_head_field(head, HTTP_FIELD_REQUEST_ID) : NULL;
	uint32_t b;

	if (f && id_acceptable(buf + f->value.at, f->value.len)) {
		memcpy(x->id, buf + f->value.at, f->value.len);
		x->id[f->value.len] = 0;
		for (unsigned n = 2; id_live(w, x->id) && n < ID_SUFFIXES_MAX; n++)
			snprintf(x->id + f->value.len, sizeof(x->id) - f->value.len, "-%u", n);
	}
	if (!x->id[0] || id_live(w, x->id))
		snprintf(x->id, sizeof(x->id), "%08x%016lx", (uint32_t)(w->id_seed >> 32),
			 (unsigned long)(w->id_seed * 0x9e3779b97f4a7c15ull + ++w->id_next));
	b = id_bucket(x->id);
	x->same_id = w->ids[b];
	w->ids[b] = x;
}

void request_id_forget(struct worker *w, struct exchange *x)
{
	struct exchange **p = &w->ids[id_bucket(x->id)];

	while (*p && *p != x)
		p = &(*p)->same_id;
	if (*p)
		*p = x->same_id;
}
