/* From a scanned request to an engine: the one file where the pure parts meet. */
#include "router/route.h"

#include "router/http/http.h"
#include "router/journal/journal.h"
#include "router/net/parts.h"
#include "router/net/staging.h"
#include "router/view/view.h"
#include "router/worker.h"
#include "shm/base/clock.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

enum {
	PROMPT_TOKENS_MAX = 1 << 30,
	ID_SUFFIXES_MAX = 32,     /* tried before a fresh id is made */
	CHARGE_SMALL_TOKENS = 16, /* what a request that makes no tokens is taken for */
};

static struct view view_now(const struct worker *w)
{
	return (struct view){ .ledger = w->ledger,
			      .ledger_params = &w->ledger_params,
			      .params = &w->params,
			      .rules = &w->set->view,
			      .now_ns = w->now_ns };
}

/* ---- begin, free ---- */

int route_begin(struct worker *w, struct exchange *x)
{
	struct route *r = slab_take(&w->routes);
	struct route_asked *asked = r ? slab_take(&w->asked) : NULL;

	if (!asked) {
		if (r)
			slab_give(&w->routes, r);
		return -ENOBUFS;
	}
	memset(r, 0, sizeof(*r));
	memset(asked, 0, sizeof(*asked));
	r->asked = asked;
	asked->x = x;
	r->bound = r->home = -1;
	x->route = r;
	return 0;
}

static struct slab *chain_slab(struct worker *w, const struct route *r)
{
	return r->chain_small ? &w->outs : &w->bodies;
}

static void forget_asked(struct worker *w, struct route *r)
{
	if (r->chain_block)
		slab_give(chain_slab(w, r), r->chain_block);
	r->chain_block = NULL;
	r->chain = NULL;
	r->chain_nr = 0;
	if (r->asked) {
		assert(!r->asked->wait.waiting && r->asked->yields.state == REQUEUE_IDLE);
		slab_give(&w->asked, r->asked);
	}
	r->asked = NULL;
}

int route_settle(struct worker *w, struct exchange *x)
{
	struct route *r = x->route;

	if (!r || !r->asked)
		return 1;
	/* The first token puts the chain into the index; what went in pieces, or more than once, is
	 * judged at its end. */
	if ((x->generates && !r->token_seen) || x->staged || requeue_closes(x))
		return 0;
	forget_asked(w, r);
	return 1;
}

void route_free(struct worker *w, struct exchange *x)
{
	struct route *r = x->route;

	if (!r)
		return;
	assert(r->ticket.phase == LEDGER_FREE);
	forget_asked(w, r);
	slab_give(&w->routes, r);
	x->route = NULL;
}

uint64_t route_seed(const struct worker *w)
{
	return w->content_seed;
}

int route_is_own(const struct http_route *target)
{
	return target->path == HTTP_PATH_MODELS || target->path == HTTP_PATH_MODEL ||
	       target->path == HTTP_PATH_HEALTH;
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
			memcpy(r->asked->header_session, buf + f->value.at, f->value.len);
			r->asked->header_session_len = f->value.len;
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
	r->asked->request = scan->req;
	x->stream = scan->req.stream;
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

/* The stored response that the request goes on from or is about, NULL if it names none. */
static const char *named_response(const struct exchange *x, size_t *ret_len)
{
	const struct route *r = x->route;

	if (x->target.path == HTTP_PATH_RESPONSE) {
		*ret_len = x->target.id_len;
		return x->target.id;
	}
	*ret_len = r->scanned ? r->asked->request.previous_response_id_len : 0;
	return *ret_len ? r->asked->request.previous_response_id : NULL;
}

/* A stored response binds the request to the engine that made it, unless that has restarted. */
static void find_bound(struct worker *w, struct exchange *x, const uint64_t *epochs)
{
	struct route *r = x->route;
	struct response response;
	size_t len;
	const char *id = named_response(x, &len);
	uint32_t home;

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
	const struct chat_request *q = &r->asked->request;

	if (r->has_session || !r->scanned || !x->generates)
		return;
	if (r->asked->header_session_len)
		r->session = sessions_key(&w->sessions, r->scope, r->asked->header_session,
					  r->asked->header_session_len, q->identity);
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

/* Prompt tokens, turn and home from what the session knows; 1 if it is known. */
static int estimate(struct worker *w, struct exchange *x, const uint64_t *epochs,
		    struct session *ret_session)
{
	struct route *r = x->route;
	const struct chat_request *q = &r->asked->request;
	struct tokens_prompt *prompt = &r->prompt;
	struct session *s = ret_session;
	int known = r->has_session && session_find(&w->sessions, r->session, w->now_ns, s) == 0;

	*prompt = (struct tokens_prompt){ .text = q->classes,
					  .messages = q->messages,
					  .tools = q->tools,
					  .images = q->images,
					  .token_ids = q->token_ids };
	r->model_key = tokens_model_key(q->model, q->model_len);
	r->turn = r->bound_turn ? r->bound_turn : q->turn ? q->turn : 1;
	if (known && view_goes_on(s, r->chain, r->chain_nr)) {
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
		return 0;
	uint32_t home = session_home(s, epochs, STATE_ENGINES_MAX);

	r->home = home == SESSION_NO_ENGINE ? -1 : worker_index(w, home);
	return 1;
}

/* What is known of the model's answers; a model that comes new takes a place over. */
static struct view_answers *answers_of(struct worker *w, const struct route *r)
{
	struct view_answers *a = &w->answers[r->model_key % WORKER_ANSWERS];

	if (a->model != r->model_key)
		*a = (struct view_answers){ .model = r->model_key };
	return a;
}

/* How deep each engine held the session's last prompt: there the search begins. */
static const uint16_t *known_depths(const struct worker *w, const struct route *r)
{
	return r->has_session ? prefix_known_find(&w->prefix_known, r->session.key) : NULL;
}

static void hits(struct worker *w, struct route *r, const struct session *s, uint32_t *ret_hits)
{
	uint32_t by_region[STATE_ENGINES_MAX] = { 0 }, blocks[STATE_ENGINES_MAX];
	struct view_prompt prompt = { .answer_lost = answers_of(w, r)->lost,
				      .chain = r->chain,
				      .chain_nr = r->chain_nr,
				      .prompt_tokens = r->prompt_tokens,
				      .content_bytes = r->asked->request.content_bytes,
				      .bound_tokens = r->bound_tokens,
				      .session = s,
				      .home = r->home };

	if (r->chain_nr) {
		prefix_match_all(&w->prefix, w->prefix.engines, r->chain, r->chain_nr,
				 known_depths(w, r), by_region);
		if (r->has_session)
			prefix_known_note(&w->prefix_known, r->session.key, by_region);
	}
	for (uint32_t i = 0; i < w->engines_nr; i++) {
		int region = w->engines[i].region_index;

		blocks[i] = region >= 0 ? by_region[region] : 0;
	}
	view_hits(&prompt, blocks, w->engines_nr, ret_hits);
}

/* ---- what the engines say ---- */

static void fill_engine(struct worker *w, struct exchange *x, struct engine *e, uint32_t hit,
			struct policy_engine *p)
{
	const struct route *r = x->route;
	struct view v = view_now(w);
	struct view_engine seen = {
		.index = e->index,
		.id = e->region_index >= 0 ? (uint32_t)e->region_index : e->index,
		.attached = e->attached,
		.weight = e->weight,
		.state = &e->state,
		.kv_capacity = e->kv_capacity,
		.calibration = &e->learnt->calibration,
		.recent_ttft_s = e->recent_ttft_s,
		.recent_ttft_n = e->recent_ttft_n,
		.oldest_wait_start_ns = e->probed_wait_ns,
		.hit_tokens = hit,
	};

	if (r->candidates >> e->index & 1)
		seen.flags |= POLICY_SERVES;
	if (r->takers >> e->index & 1)
		seen.flags |= POLICY_ALIVE;
	if (e->drained)
		seen.flags |= POLICY_DRAINED;
	if (x->tried >> e->index & 1)
		seen.flags |= POLICY_EXCLUDED;
	view_engine_fill(&v, &seen, p);
	/* For each request that it has, so that an idle one is used at once and no herd comes. */
	p->penalty_s += (float)engine_slow_start_s(w, e) * p->num_requests;
}

/* ---- the decision ---- */

/* Health chooses among the candidates; what is bound to one goes there while it lives. */
static uint64_t takers(const struct worker *w, const struct exchange *x)
{
	const struct route *r = x->route;
	uint64_t left = r->candidates & ~x->tried, found;

	for (uint32_t i = 0; i < w->engines_nr; i++)
		if (w->engines[i].drained)
			left &= ~(1ull << i);
	found = engines_takers(w, left);
	if (r->bound >= 0 && engine_standing(w, &w->engines[r->bound]) == HEALTH_SPARED)
		found |= left & 1ull << r->bound;
	return found;
}

static void fill_request(struct worker *w, struct exchange *x, const struct session *s,
			 struct policy_request *p)
{
	const struct route *r = x->route;
	struct view v = view_now(w);
	struct view_request asked = {
		.cursor = r->asked->cursor ? r->asked->cursor - 1 : w->cursor,
		.flags = (x->stream ? POLICY_STREAMED : 0) |
			 (r->exact_base ? 0 : POLICY_ESTIMATED) |
			 (r->bound >= 0 ? POLICY_NO_MIGRATION : 0),
		.home = r->bound >= 0 ? r->bound : r->home,
		.prompt_tokens = r->prompt_tokens,
		.turn = r->turn,
		.sequences = r->asked->request.n,
		.max_tokens = r->asked->request.max_tokens,
		.session = s,
	};

	asked.random[0] = r->asked->cursor ? r->asked->random[0] : worker_random(w);
	asked.random[1] = r->asked->cursor ? r->asked->random[1] : worker_random(w);
	view_budget_refill(&w->moves, &w->set->view, w->now_ns);
	view_request_fill(&v, &asked, &w->moves, p);
}

void route_noted(struct worker *w)
{
	if (w->record_size)
		ring_append(&w->file.journal, w->record, w->record_size);
	w->record_size = 0;
}

/* Its record is made now, and its number known; it is appended when the request is on its way. */
static void journal_note(struct worker *w, struct exchange *x, const struct policy_request *request,
			 const struct policy_engine *engines, const struct policy_choice *choice,
			 uint64_t took_ns)
{
	struct journal_decision *d = (void *)w->record;
	struct route *r = x->route;
	struct journal_engine names[STATE_ENGINES_MAX];
	size_t size;

	route_noted(w); /* of one before */
	memset(d, 0, sizeof(*d));
	memset(names, 0, w->engines_nr * sizeof(names[0]));
	d->head.wall_ns = clock_wall_ns();
	d->head.ns = w->now_ns;
	memcpy(d->head.id, x->id, sizeof(x->id));
	memcpy(d->model, r->asked->request.model, r->asked->request.model_len);
	d->session = r->has_session ? r->session.key : 0;
	d->took_ns = took_ns;
	d->attempt = x->attempts + 1;
	d->shadow = shadow_word(w);
	d->params = w->params;
	d->request = *request;
	for (uint32_t i = 0; i < w->engines_nr; i++)
		memcpy(names[i].name, w->engines[i].at.name, sizeof(names[i].name));
	size = journal_decision_write(d, sizeof(w->record), names, engines, w->engines_nr, choice);
	if (size && size <= w->file.journal.record_size) {
		w->record_size = (uint32_t)size;
		r->decision = w->file.journal.next;
	}
	if (choice->engine >= 0)
		shadow_note(w, r->decision);
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

/* What its engine is charged: little for a request that makes no tokens. */
static struct ledger_ticket ticket_of(const struct worker *w, const struct exchange *x,
				      const struct policy_engine *p, uint32_t index)
{
	const struct route *r = x->route;
	uint32_t sequences = x->generates && r->asked->request.n ? r->asked->request.n : 1;
	uint32_t prompt = x->generates ? r->prompt_tokens : CHARGE_SMALL_TOKENS;
	uint32_t uncached = CHARGE_SMALL_TOKENS;

	if (x->generates)
		uncached = r->uncached_tokens;
	else if (x->target.path == HTTP_PATH_EMBEDDINGS)
		uncached = r->prompt_tokens;
	return view_ticket(&w->params, p, index, sequences, prompt, uncached);
}

static void dispatch(struct worker *w, struct exchange *x)
{
	ledger_dispatch(w->ledger, &x->route->ticket, w->now_ns);
	x->route->dispatched = 1;
	if (x->generates)
		waiting_add(w, x);
}

void route_send(struct worker *w, struct exchange *x, uint32_t prompt_tokens,
		uint32_t cached_tokens, double prefill_s)
{
	struct ledger_ticket *ticket = &x->route->ticket;

	ticket->prompt_tokens = prompt_tokens;
	ticket->uncached_tokens = prompt_tokens > cached_tokens ? prompt_tokens - cached_tokens : 1;
	ticket->prefill_s = prefill_s;
	if (prefill_s < x->route->assume_s)
		x->route->assume_s = prefill_s; /* only the last part is left */
	dispatch(w, x);
}

/* What cold prompts let through, and what it is spared by that: their prefill, were they whole. */
static void note_passed(struct worker *w, const struct exchange *x, const struct policy_engine *p)
{
	double rest = (double)p->staged_rest_tokens;

	if (!x->generates || rest <= 0 || x->route->uncached_tokens > w->params.long_tokens)
		return;
	count(&w->counters, COUNTER_staged_passed, 1);
	count(&w->counters, COUNTER_staged_passed_us,
	      (uint64_t)(policy_prefill_s(&w->params, p, rest, rest) * 1e6));
}

/*
 * The choice is made: into the books, before the request's first byte leaves. Nothing lies between
 * the two, so there is nothing to ask again; what is held after its choice asks policy_reprice().
 */
static void commit(struct worker *w, struct exchange *x, const struct policy_request *request,
		   const struct policy_engine *engines, const struct policy_choice *choice)
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
	r->assume_s = choice->predicted_ttft_s;
	if (!r->asked->cursor)
		w->cursor = choice->cursor;
	r->asked->cursor = 0;
	r->ticket = ticket_of(w, x, &engines[choice->engine], e->index);
	x->engine = choice->engine;
	staging_comes(w, x, e->index, r->uncached_tokens);
	if (!staging_choose(w, x, &engines[choice->engine], r->ticket.prefill_s)) {
		note_passed(w, x, &engines[choice->engine]);
		dispatch(w, x);
	}
	if (x->generates && view_moves(request, choice))
		count(&w->counters, COUNTER_migrations, 1);
	view_budget_spend(&w->moves, choice);
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

		r->was_known =
			session_find(&w->sessions, r->session, w->now_ns, &r->asked->before) == 0;
		r->had_tokens = r->asked->before.prompt_tokens;
		r->said_tokens = r->asked->before.completion_tokens;
		session_note_dispatch(&w->sessions, r->session, r->scope, &d, now);
		r->moved_home = 1;
	}
}

/* The engine has computed nothing of it: the session is still at home where it was. */
static void session_take_back(struct worker *w, struct exchange *x)
{
	struct route *r = x->route;

	if (r->moved_home && !r->token_seen)
		session_undo_dispatch(&w->sessions, r->session,
				      r->was_known ? &r->asked->before : NULL,
				      (uint32_t)w->engines[x->engine].region_index, w->now_ns);
	r->moved_home = 0;
}

/* Which engines serve it: the mask, ROUTE_HOLD in *ret_err while lists are asked for, or an end. */
static int find_candidates(struct worker *w, struct exchange *x)
{
	struct route *r = x->route;
	const struct chat_request *q = &r->asked->request;

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

/*
 * Asks for the memory that the decision reads, as far as it is known where that lies, so that all
 * of it is waited for together: first for every engine's number and books and the session's place,
 * then for what these lead to. engines_read() asks for the rest.
 */
static void prefetch(struct worker *w, struct exchange *x)
{
	struct route *r = x->route;

	engines_prefetch(w);
	if (!named_response(x, &(size_t){ 0 }))
		find_session(w, x);
	if (r->has_session) {
		session_prefetch(&w->sessions, r->session);
		prefix_known_prefetch(&w->prefix_known, r->session.key);
		session_prefetch_entry(&w->sessions, r->session);
	}
	if (r->chain_nr)
		prefix_prefetch(&w->prefix, w->prefix.engines, r->chain, r->chain_nr,
				known_depths(w, r));
}

/* Chooses among r->candidates. `rest`: the body is so many times as long as what was scanned. */
static void weigh(struct worker *w, struct exchange *x, double rest, struct policy_request *request,
		  struct policy_engine *engines, struct policy_choice *choice)
{
	uint64_t epochs[STATE_ENGINES_MAX];
	uint32_t hit[STATE_ENGINES_MAX];
	struct route *r = x->route;
	struct session session;
	int known;

	prefetch(w, x);
	engines_read(w);
	epochs_get(w, epochs);
	find_bound(w, x, epochs);
	find_session(w, x);
	known = estimate(w, x, epochs, &session);
	hits(w, r, known ? &session : NULL, hit);
	if (rest > 1) {
		r->prompt_tokens = (uint32_t)(r->prompt_tokens * rest);
		for (uint32_t i = 0; i < w->engines_nr; i++)
			hit[i] = (uint32_t)(hit[i] * rest);
	}
	fill_request(w, x, known ? &session : NULL, request);
	r->takers = takers(w, x);
	for (uint32_t i = 0; i < w->engines_nr; i++)
		fill_engine(w, x, &w->engines[i], hit[i], &engines[i]);
	policy_choose(&w->params, request, engines, w->engines_nr, choice);
}

/* Of a body that has not said its model yet: 1 if every engine had the last one's. */
static int one_model(const struct worker *w)
{
	return w->ahead.candidates && w->ahead.candidates == engines_serving(w, "", 0);
}

/* The same as the decision, with nothing that remains. */
static int guess(struct worker *w, struct exchange *x)
{
	static struct policy_choice choice;
	struct policy_engine engines[STATE_ENGINES_MAX];
	struct policy_request request;
	struct route *r = x->route;
	const struct chat_request *q = &r->asked->request;
	uint32_t cold;

	r->candidates = engines_serving(w, q->model, q->model_len);
	if (!r->candidates || q->model_long || q->unreadable || engines_asking(w, 1) ||
	    (!q->model_len && !one_model(w)))
		return -1;
	weigh(w, x, (double)x->length / (double)x->received, &request, engines, &choice);
	if (choice.engine < 0)
		return -1;
	r->asked->cursor = request.cursor + 1;
	r->asked->random[0] = request.random[0];
	r->asked->random[1] = request.random[1];
	w->cursor = choice.cursor;
	cold = r->prompt_tokens > engines[choice.engine].hit_tokens
		       ? r->prompt_tokens - engines[choice.engine].hit_tokens
		       : 0;
	if (w->stage.on && staging_mode(w, &w->engines[choice.engine]) != STAGE_OFF &&
	    admit_is_cold(&w->stage.admit, cold))
		return -1;
	return choice.engine;
}

int route_guess(struct worker *w, struct exchange *x)
{
	struct route *r = x->route, before = *r;
	int engine;

	assert(!x->complete && !r->scanned && !r->dispatched);
	take_scan(w, x);
	engine = r->scanned ? guess(w, x) : -1;
	if (r->chain_block)
		slab_give(chain_slab(w, r), r->chain_block);
	*r = before;
	return engine;
}

int route_decide(struct worker *w, struct exchange *x)
{
	static struct policy_choice choice; /* large; written by every call before it is read */
	struct policy_engine engines[STATE_ENGINES_MAX];
	uint64_t t0 = clock_ns(), took;
	struct policy_request request;
	struct route *r = x->route;
	int err;

	take_scan(w, x);
	staging_unhold(w, x);
	err = find_candidates(w, x);
	if (err)
		return err;
	w->ahead.candidates = r->candidates;
	weigh(w, x, 1, &request, engines, &choice);
	took = clock_ns() - t0;
	hist_add(&w->decision, (double)took * 1e-9);
	count(&w->counters, COUNTER_decisions, 1);
	journal_note(w, x, &request, engines, &choice, took);
	if (choice.engine < 0)
		return x->tried ? -END_CONNECT : -END_NO_ENGINE;
	err = staging_waits(w, x, &choice, r->prompt_tokens - engines[choice.engine].hit_tokens);
	if (err)
		return err;
	commit(w, x, &request, engines, &choice);
	return choice.engine;
}

int route_has_other(struct worker *w, const struct exchange *x, enum health_standing worst)
{
	uint64_t others = x->route->candidates & ~x->tried & ~(1ull << x->engine);

	if (x->route->bound >= 0)
		return 0; /* only that engine has its state */
	for (uint32_t i = 0; i < w->engines_nr; i++)
		if ((others >> i & 1) && !w->engines[i].drained &&
		    engine_standing(w, &w->engines[i]) <= worst)
			return 1;
	return 0;
}

void route_undo(struct worker *w, struct exchange *x)
{
	struct route *r = x->route;

	ledger_end(w->ledger, &r->ticket, LEDGER_FAILED, w->now_ns);
	staging_uncold(w, x);
	waiting_remove(x);
	r->dispatched = 0;
	r->token_seen = 0; /* assumed, as it turns out */
	x->sent_ns = x->first_sent_ns = 0;
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
	staging_answers(w, x);
	ledger_first_token(w->ledger, &r->ticket, w->now_ns);
	if (r->chain_nr && e->region_index >= 0) {
		prefix_insert(&w->prefix, e->region_index, r->chain, r->chain_nr);
		if (r->has_session)
			prefix_known_landed(&w->prefix_known, r->session.key,
					    (uint32_t)e->region_index, r->chain_nr);
	}
}

void route_first_token(struct worker *w, struct exchange *x)
{
	struct route *r = x->route;
	struct engine *e = &w->engines[x->engine];
	double ttft_s = (double)(w->now_ns - x->sent_ns) * 1e-9;
	struct view v = view_now(w);

	if (!r || !x->generates)
		return;
	waiting_remove(x);
	if (!r->token_seen)
		prefill_landed(w, x);
	latency_first_token(w, x);
	view_calibration_learn(&e->learnt->calibration, &v, r->predicted_raw_s, ttft_s);
}

void route_assume_tokens(struct worker *w)
{
	for (struct exchange *x = w->waiting, *next; x; x = next) {
		next = x->wait_next;
		if (x->stream || !x->sent_ns ||
		    (double)(w->now_ns - x->sent_ns) * 1e-9 <= x->route->assume_s)
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

/* Only a turn that was asked where the one before was answered says what is kept of answers. */
static void learn_answers(struct worker *w, const struct exchange *x,
			  const struct chat_usage *usage)
{
	struct route *r = x->route;
	struct session before = { .prompt_tokens = r->had_tokens,
				  .completion_tokens = r->said_tokens };

	if (r->exact_base && r->was_known && r->home == x->engine && !r->bound_tokens)
		view_answers_learn(answers_of(w, r), &before, usage->prompt_tokens,
				   usage->cached_tokens);
}

static void learn(struct worker *w, struct exchange *x)
{
	struct route *r = x->route;
	struct chat_usage usage;
	int cached_known = (x->watch.seen & CHAT_SEEN_CACHED) != 0;
	struct session_time now = { .ns = w->now_ns, .wall_s = clock_wall_ns() / NS_PER_S };

	if (!x->generates || x->status != 200 || !chat_watch_usage(&x->watch, &usage))
		return;
	if (cached_known)
		staging_found(w, x, usage.cached_tokens);
	usage.cached_tokens = requeue_found(w, x, usage.cached_tokens, cached_known);
	/* What its own pieces brought in was not there before: no cache saved it. */
	if (x->pieces && x->first_cached == UINT32_MAX)
		cached_known = 0;
	else if (x->pieces && usage.cached_tokens > x->first_cached)
		usage.cached_tokens = x->first_cached;
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
	if (cached_known)
		learn_answers(w, x, &usage);
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

	route_noted(w);
	memset(&o, 0, sizeof(o));
	journal_head_init(&o.head, JOURNAL_OUTCOME);
	o.head.wall_ns = clock_wall_ns();
	o.head.ns = w->now_ns;
	memcpy(o.head.id, x->id, sizeof(x->id));
	o.decision = r->decision;
	if (x->engine >= 0)
		memcpy(o.engine, w->engines[x->engine].at.name,
		       sizeof(w->engines[x->engine].at.name));
	memcpy(o.end, conn_ends[x->end].word, strnlen(conn_ends[x->end].word, sizeof(o.end) - 1));
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
	o.pieces = x->pieces;
	o.taken_back = requeue_closes(x);
	o.rescued = x->rescued;
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
	if (ledger_observe(w->ledger, &w->ledger_params, e->index, &e->state, w->now_ns)) {
		staging_restarted(w, e);
		link_drop_idle(w, e);
	}
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
	staging_restarted(w, e);
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
		books.staging_off = (uint64_t)stage_guard_engine_off(&w->stage.guard, i, w->now_ns);
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

/* 24 hexadecimal digits and a zero. */
static void id_make(char *id, uint32_t high, uint64_t low)
{
	for (int i = 7; i >= 0; i--, high >>= 4)
		id[i] = "0123456789abcdef"[high & 15];
	for (int i = 23; i >= 8; i--, low >>= 4)
		id[i] = "0123456789abcdef"[low & 15];
	id[24] = 0;
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
		id_make(x->id, (uint32_t)(w->id_seed >> 32),
			w->id_seed * 0x9e3779b97f4a7c15ull + ++w->id_next);
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
