/* One request through its pieces: asks for token ids, sends prefixes, judges each, goes on. */
#include "router/net/staging.h"

#include "router/net/parts.h"
#include "router/route.h"
#include "router/worker.h"
#include "shm/base/clock.h"
#include "shm/base/log.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
	ARENA_PERCENT = 75,   /* of body memory in use: beyond, no pieces */
	SAMPLE_WAITS = 4,     /* looks for an agent's sample after a piece */
	LLAMACPP_STEP = 2048, /* its n_batch unless told otherwise, and it does not tell */
};

static const uint64_t TOKENISE_NS = 10ull * NS_PER_S; /* 100k tokens take 0.3 s */
static const uint64_t SAMPLE_NS = 20 * NS_PER_MS;     /* beyond an agent's period */
static const uint64_t SAMPLE_MAX_NS = NS_PER_S;

/* ---- whether ---- */

static uint64_t guard_key(const struct exchange *x, const struct staging *st)
{
	uint64_t key = x->route->model_key ^
		       (uint64_t)(x->target.path + 1) * 0x9e3779b97f4a7c15ull ^ st->by_ids;

	return key ? key : 1;
}

uint32_t staging_kind(const struct engine *e)
{
	return e->kind || !e->state.read_ns ? e->kind : (uint32_t)e->state.kind;
}

uint32_t staging_step(const struct worker *w, const struct engine *e)
{
	uint32_t step = (uint32_t)w->set->step_budget;

	if (e->step_budget)
		return e->step_budget;
	if (ENGINE_HAS(&e->state, step_budget_tokens) && e->state.step_budget_tokens)
		return (uint32_t)e->state.step_budget_tokens;
	return staging_kind(e) == ENGINE_KIND_LLAMACPP && step > LLAMACPP_STEP ? LLAMACPP_STEP
									       : step;
}

static uint32_t block_of(const struct engine *e, uint32_t kind)
{
	if (ENGINE_HAS(&e->state, block_size) && e->state.block_size)
		return (uint32_t)e->state.block_size;
	return kind == ENGINE_KIND_SGLANG || kind == ENGINE_KIND_LLAMACPP ? 1 : 0;
}

static void case_fill(struct worker *w, const struct exchange *x, const struct engine *e,
		      const struct policy_engine *seen, struct stage_case *ret)
{
	const struct route *r = x->route;
	double rate = staging_rate(w, e->index, 0);
	uint32_t kind = staging_kind(e);
	struct ledger_sums sums;

	ledger_books_get(w->ledger, e->index, &sums);
	*ret = (struct stage_case){
		.prompt_tokens = r->prompt_tokens,
		.hit_tokens = r->hit_tokens,
		.engine = { .flags = STAGE_ENGINE_STAGES,
			    .step_tokens = staging_step(w, e),
			    .block_tokens = block_of(e, kind),
			    .kv_capacity_tokens = seen->kv_capacity_tokens,
			    .others = seen->num_requests + (float)sums.held,
			    .expected_s = rate > 0 ? (float)(1 / rate) : 0 },
	};
	if (seen->kv_capacity_tokens > seen->kv_used_tokens)
		ret->engine.kv_free_tokens = seen->kv_capacity_tokens - seen->kv_used_tokens;
	if (kind == ENGINE_KIND_LLAMACPP)
		ret->engine.flags |= STAGE_ENGINE_HALF_STEP;
	/* SGLang acts on a close after seconds only, llama.cpp not at all. */
	if (kind == ENGINE_KIND_VLLM)
		ret->engine.flags |= STAGE_ENGINE_REQUEUES;
	if (stage_guard_engine_off(&w->stage.guard, e->index, w->now_ns))
		ret->engine.flags |= STAGE_ENGINE_OFF;
	if (r->asked->request.images)
		ret->body |= STAGE_BODY_IMAGES;
	if (bodies_beyond(w, ARENA_PERCENT))
		ret->body |= STAGE_BODY_ARENA;
	if (!x->complete || x->body_dropped || x->at || !r->scanned ||
	    r->asked->request.unreadable || r->bound_tokens ||
	    r->asked->request.previous_response_id_len)
		ret->body |= STAGE_BODY_UNCUT;
}

/* Which question gives its ids; STAGING_PIECE = none does. */
static enum staging_phase ids_phase(const struct exchange *x, const struct staging *st,
				    int no_renderer, int no_tokeniser)
{
	if (!no_renderer && staging_renders(x, st))
		return STAGING_RENDER;
	if (no_tokeniser || !staging_tokenises(x, st))
		return STAGING_PIECE;
	return st->kind == ENGINE_KIND_LLAMACPP && x->target.path == HTTP_PATH_CHAT
		       ? STAGING_TEMPLATE
		       : STAGING_TOKENS;
}

/* Looks at the body, which costs its length: only for prompts that would not go whole. */
static void map_body(struct worker *w, struct exchange *x, struct staging *st)
{
	const struct engine *e = engine_of(w, x);
	struct stage_case *c = &st->asked;

	staging_map(&x->body, &st->map);
	if (chat_map_find(&st->map, CHAT_MAP_PROMPT_LOGPROBS) ||
	    chat_map_find(&st->map, CHAT_MAP_ECHO))
		c->body |= STAGE_BODY_PROMPT_LOGPROBS;
	st->first_phase = (uint8_t)ids_phase(x, st, e->no_renderer, e->no_tokeniser);
	st->by_ids = st->first_phase != STAGING_PIECE;
	if (!st->by_ids && !staging_cuts(x, st))
		c->body |= STAGE_BODY_UNCUT;
	/* What an engine goes on with when nobody listens is not taken back from it. */
	if (st->map.odd || chat_map_find(&st->map, CHAT_MAP_BACKGROUND))
		c->engine.flags &= ~(uint32_t)STAGE_ENGINE_REQUEUES;
	c->guarded = stage_guard_shape_off(&w->stage.guard, guard_key(x, st), w->now_ns);
}

static struct staging *staging_new(struct worker *w, const struct engine *e)
{
	struct staging *st = slab_take(&w->stagings);

	if (!st)
		return NULL;
	memset(st, 0, offsetof(struct staging, map));
	st->kind = staging_kind(e);
	return st;
}

/* By what is known without its body; then, if it is to let others through, by its body, too. */
static enum stage_way way_of(struct worker *w, struct exchange *x, const struct policy_engine *seen,
			     double prefill_s, struct staging **ret_st,
			     enum stage_reason *ret_reason)
{
	struct engine *e = engine_of(w, x);
	struct stage_params params = w->stage.params;
	enum stage_way way;
	struct staging *st;
	struct stage_case c;

	params.stage = staging_mode(w, e);
	case_fill(w, x, e, seen, &c);
	c.prefill_s = (float)prefill_s;
	way = stage_choose(&params, &c, ret_reason);
	if (way == STAGE_WHOLE)
		return way;
	if (engine_standing(w, e) != HEALTH_OPEN) {
		*ret_reason = STAGE_REASON_OFF;
		return STAGE_WHOLE;
	}
	st = *ret_st = staging_new(w, e);
	if (!st) {
		*ret_reason = STAGE_REASON_MEMORY;
		return STAGE_WHOLE;
	}
	st->params = params;
	st->asked = c;
	st->seen = *seen;
	map_body(w, x, st);
	return stage_choose(&params, &st->asked, ret_reason);
}

int staging_choose(struct worker *w, struct exchange *x, const struct policy_engine *seen,
		   double prefill_s)
{
	struct staging *st = NULL;
	enum stage_reason reason;
	enum stage_way way;

	if (!w->stage.on || !x->generates || x->staging)
		return 0;
	x->gives_way = 0;
	way = way_of(w, x, seen, prefill_s, &st, &reason);
	w->stage.reasons[reason]++;
	if (way == STAGE_BY_REQUEUE && requeue_fits(w, x, &st->asked))
		requeue_take(w, x);
	if (way != STAGE_IN_PIECES) {
		if (st)
			slab_give(&w->stagings, st);
		return 0;
	}
	x->staging = st;
	x->staged = 1;
	x->route->predicted_raw_s = 0; /* what pieces cost it says nothing of the engine */
	count(&w->counters, COUNTER_staged_requests, 1);
	return 1;
}

/* ---- books ---- */

static void book(struct worker *w, struct exchange *x, uint32_t tokens)
{
	struct staging *st = x->staging;

	ledger_staged(w->ledger, engine_of(w, x)->index,
		      (int64_t)tokens - (int64_t)st->booked_tokens);
	st->booked_tokens = tokens;
}

static void link_part(struct worker *w, struct exchange *x, int clean)
{
	struct staging *st = x->staging;
	struct link *link = x->link;

	if (st->head)
		slab_give(&w->heads, st->head);
	st->head = NULL;
	x->link = NULL;
	if (link && link->sending) { /* the loop still reads these bytes */
		link->held_body = st->out;
		st->out = (struct chain){ 0 };
		clean = 0;
	}
	clean &= st->out.bytes == 0;
	chain_clear(&st->out, &w->bodies);
	if (!link)
		return;
	if (clean)
		link_rest(w, link);
	else
		link_drop(w, link);
}

/* Back to the pool, books and links included; what its engine has, it has. */
static void staging_free(struct worker *w, struct exchange *x)
{
	struct staging *st = x->staging;

	link_part(w, x, 0);
	ledger_end(w->ledger, &st->ticket, LEDGER_ABORTED, w->now_ns);
	if (x->engine >= 0)
		book(w, x, 0);
	assert(st->booked_tokens == 0);
	chain_clear(&st->answer, &w->bodies);
	slab_give(&w->stagings, st);
	x->staging = NULL;
}

void staging_over(struct worker *w, struct exchange *x)
{
	if (x->staging)
		staging_free(w, x);
	requeue_forget(w, x);
	staging_unhold(w, x);
	if (x->route && x->route->asked)
		admit_leave(&w->stage.room, &x->route->asked->wait);
	staging_uncold(w, x);
}

/* ---- the request itself ---- */

/* At once after the last piece, or instead of it: what the pieces computed is unreferenced there.
 */
static enum conn_state request_send(struct worker *w, struct conn *c, enum stage_reason reason)
{
	struct exchange *x = c->x;
	struct staging *st = x->staging;
	uint32_t prompt = st->stage.plan.prompt_tokens, cached = st->stage.cached;

	if (st->stage.state == STAGE_STATE_IDLE) { /* not begun: nothing is known anew */
		prompt = st->asked.prompt_tokens;
		cached = st->asked.hit_tokens;
	}
	if (reason != STAGE_REASON_NONE) {
		w->stage.reasons[reason]++;
		count(&w->counters, COUNTER_staged_given_up, st->stage.pieces > 0);
		if (st->params.stage == STAGE_BOTH && requeue_fits(w, x, &st->asked))
			requeue_take(w, x);
	}
	x->pieces = st->stage.done;
	x->pieces_tokens = cached;
	x->guard_key = guard_key(x, st);
	route_send(w, x, prompt, cached,
		   policy_prefill_s(&w->params, &st->seen, prompt, prompt - cached));
	staging_free(w, x);
	return dispatch_start(w, c, 0);
}

/* ---- sending ---- */

static void pump(struct worker *w, struct exchange *x)
{
	struct staging *st = x->staging;
	struct iovec iov[LOOP_IOV_MAX];
	int n;

	if (x->link->sending || x->link->deaf || st->out.bytes == 0)
		return;
	n = chain_iov(&st->out, iov, LOOP_IOV_MAX, &st->out_flight);
	x->link->sending = 1;
	loop_send(w->loop, x->link->handle, iov, n);
}

/* The head in front of the body that is in st->out. */
static int head_push(struct worker *w, struct exchange *x, const char *path)
{
	struct staging *st = x->staging;
	struct block *b = block_take(&w->bodies);
	char id[sizeof(x->id) + 24];
	struct http_forward how = { .framing = HTTP_LENGTH,
				    .content_length = st->out.bytes,
				    .path = path,
				    .request_id = id,
				    .extra = st->phase == STAGING_PIECE
						     ? "x-turnward-internal: piece\r\n"
						     : "x-turnward-internal: tokenise\r\n" };
	size_t len;
	int err;

	if (!b)
		return -ENOBUFS;
	/* Engines take it for their own id: no two may be the same. */
	snprintf(id, sizeof(id), "%s-%c%u", x->id, st->phase == STAGING_PIECE ? 'p' : 't',
		 st->stage.pieces);
	err = dispatch_head_write(w, x, &how, (char *)b->data, block_capacity(&w->bodies), &len);
	if (err < 0) {
		slab_give(&w->bodies, b);
		return err;
	}
	b->end = (uint32_t)len;
	b->next = st->out.head;
	st->out.head = b;
	st->out.tail = st->out.tail ? st->out.tail : b;
	st->out.bytes += len;
	return 0;
}

/* Asks what the phase says. 0, or -errno with nothing under way. */
static int part_send(struct worker *w, struct conn *c, int fresh)
{
	struct exchange *x = c->x;
	struct engine *e = engine_of(w, x);
	struct staging *st = x->staging;
	const char *path;
	int err = staging_body_write(w, x, &path);

	if (err == 0)
		err = head_push(w, x, path);
	if (err < 0)
		return err;
	x->link =
		fresh ? link_dial(w, e, LINK_CONN, c->index) : link_get(w, e, LINK_CONN, c->index);
	if (!x->link)
		return -ENOBUFS;
	st->reused = x->link->reused;
	st->heard = st->have_head = st->keep_alive = 0;
	st->status = 0;
	st->sent_ns = w->now_ns;
	chat_watch_begin(&st->watch, CHAT_WATCH_JSON);
	client_timer(w, c, st->phase == STAGING_PIECE ? w->set->first_byte_timeout : TOKENISE_NS);
	if (x->link->state != LINK_DIALING)
		pump(w, x);
	return 0;
}

enum conn_state staging_up(struct worker *w, struct conn *c, const struct conn_input *in)
{
	pump(w, c->x);
	return CONN_STAGE;
}

enum conn_state staging_took(struct worker *w, struct conn *c, const struct conn_input *in)
{
	struct staging *st = c->x->staging;

	chain_drop(&st->out, &w->bodies, st->out_flight);
	st->out_flight = 0;
	pump(w, c->x);
	return CONN_STAGE;
}

/* ---- pieces ---- */

/* The engine's counters, and whether anything else is there: what its answer may not tell. */
static void look_before(struct worker *w, struct exchange *x)
{
	struct staging *st = x->staging;
	const struct engine *e = engine_of(w, x);
	struct ledger_sums sums;

	ledger_books_get(w->ledger, e->index, &sums);
	st->dispatched = sums.dispatched_total;
	st->idle_before = sums.requests == 0 && !(ENGINE_HAS(&e->state, running) &&
						  e->state.running + e->state.waiting > 0);
	/* Others' counters are up to a second old, or move one after the other. */
	st->has_before = (st->kind == ENGINE_KIND_VLLM || st->kind == ENGINE_KIND_UNKNOWN) &&
			 ENGINE_HAS(&e->state, cached_tokens_total) &&
			 ENGINE_HAS(&e->state, queried_tokens_total);
	st->hit_before = e->state.cached_tokens_total;
	st->queried_before = e->state.queried_tokens_total;
}

static int piece_send(struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;
	struct staging *st = x->staging;
	struct engine *e = engine_of(w, x);
	const struct stage_next *next = &st->next;
	int err;

	st->phase = STAGING_PIECE;
	look_before(w, x);
	book(w, x, next->rest_tokens);
	st->ticket = view_ticket(&w->params, &st->seen, e->index, 1, next->cut_tokens,
				 next->cut_tokens - next->expected_tokens);
	st->ticket.flags = LEDGER_PIECE;
	ledger_dispatch(w->ledger, &st->ticket, w->now_ns);
	err = part_send(w, c, 0);
	if (err < 0)
		return err;
	count(&w->counters, COUNTER_staged_pieces, 1);
	count_engine(&w->counters, e->index, ENGINE_COUNTER_staged_pieces, 1);
	return 0;
}

static enum conn_state do_next(struct worker *w, struct conn *c)
{
	struct staging *st = c->x->staging;

	switch (st->next.action) {
	case STAGE_SEND_PIECE:
		if (piece_send(w, c) == 0)
			return CONN_STAGE;
		return request_send(w, c, STAGE_REASON_MEMORY);
	case STAGE_GIVE_UP:
		return request_send(w, c, st->next.reason);
	case STAGE_SEND_REQUEST:
		return request_send(w, c, STAGE_REASON_NONE);
	case STAGE_NOTHING:
	case STAGE_PLACE:
	case STAGE_DROP:
	case STAGE_ACTIONS_NR:
		break;
	}
	assert(!"lost engines and clients are seen to elsewhere");
	return CONN_STAGE;
}

/* The plan, once the prompt's length and places to cut are known as well as they will be. */
static enum conn_state plan(struct worker *w, struct conn *c)
{
	struct staging *st = c->x->staging;
	struct stage_plan p;

	if (st->by_ids) {
		st->asked.prompt_tokens = (uint32_t)st->ids;
		if (st->asked.hit_tokens >= st->asked.prompt_tokens)
			st->asked.hit_tokens = st->asked.prompt_tokens - 1;
	}
	stage_plan_make(&st->params, &st->asked, &p);
	if (!st->by_ids) {
		staging_cuts_place(st, st->asked.prompt_tokens);
		p.cut = st->cut_tokens;
		p.cuts_nr = st->map.cuts;
	}
	stage_begin(&st->stage, &p, &st->next);
	return do_next(w, c);
}

/* It has no such path, or not for us. */
static int never_will(int status, enum staging_phase phase)
{
	return status == 404 || status == 405 || status == 501 ||
	       (status == 403 && phase == STAGING_RENDER); /* switched off */
}

static enum conn_state ask(struct worker *w, struct conn *c, enum staging_phase phase);

/* It will not tell ids: it is asked in the other way, else whole messages, if the body has any. */
static enum conn_state without_ids(struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;
	struct staging *st = x->staging;
	struct engine *e = engine_of(w, x);
	int rendered = st->phase == STAGING_RENDER;
	enum staging_phase other = ids_phase(x, st, 1, e->no_tokeniser);

	if (never_will(st->status, (enum staging_phase)st->phase)) {
		e->no_renderer |= rendered;
		e->no_tokeniser |= !rendered;
	}
	chain_clear(&st->answer, &w->bodies);
	if (rendered && other != STAGING_PIECE)
		return ask(w, c, other);
	st->by_ids = 0;
	if (!staging_cuts(x, st))
		return request_send(w, c, STAGE_REASON_TOKENISE);
	w->stage.reasons[STAGE_REASON_TOKENISE]++;
	return plan(w, c);
}

static enum conn_state ask(struct worker *w, struct conn *c, enum staging_phase phase)
{
	struct staging *st = c->x->staging;

	st->phase = (uint8_t)phase;
	if (part_send(w, c, 0) == 0)
		return CONN_STAGE;
	link_part(w, c->x, 0);
	return without_ids(w, c);
}

enum conn_state staging_begin(struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;
	struct staging *st = x->staging;

	client_timer(w, c, 0);
	book(w, x, st->asked.prompt_tokens - st->asked.hit_tokens);
	if (!st->by_ids)
		return plan(w, c);
	count(&w->counters, COUNTER_staged_tokenised, 1);
	return ask(w, c, (enum staging_phase)st->first_phase);
}

/* ---- what a piece has shown ---- */

static int proven(const struct worker *w, const struct exchange *x)
{
	uint64_t at = w->stage.guard.engine[x->engine].proven_ns;

	return at && w->now_ns < at + (uint64_t)(w->stage.params.stage_guard_off_s * 1e9);
}

static void evidence(struct worker *w, struct exchange *x, struct stage_evidence *ret)
{
	struct staging *st = x->staging;
	const struct engine *e = engine_of(w, x);
	double ratio = e->learnt->calibration.ratio;
	struct chat_usage usage;
	struct ledger_sums sums;

	*ret = (struct stage_evidence){ .prompt_tokens = st->next.cut_tokens,
					.expected_tokens = st->stage.cached,
					.took_s = (double)(st->done_ns - st->sent_ns) * 1e-9 };
	if (!st->by_ids && st->found_tokens) /* as the engine counted them */
		ret->expected_tokens = st->found_tokens;
	if (chat_watch_usage(&st->watch, &usage)) {
		if (st->watch.seen & CHAT_SEEN_CACHED)
			ret->sees |= STAGE_SEES_CACHED;
		ret->cached_tokens = (uint32_t)usage.cached_tokens;
		if (usage.prompt_tokens)
			ret->prompt_tokens = (uint32_t)usage.prompt_tokens;
	}
	if (st->has_before) {
		ret->sees |= STAGE_HAS_COUNTERS;
		if (e->state.read_ns > st->done_ns)
			ret->sees |= STAGE_SEES_COUNTERS;
		ret->hit_tokens = e->state.cached_tokens_total - st->hit_before;
		ret->queried_tokens = e->state.queried_tokens_total - st->queried_before;
	}
	if (ENGINE_HAS(&e->state, prefill_tokens_per_s) || ratio > 0)
		ret->sees |= STAGE_SEES_TIME;
	ledger_books_get(w->ledger, e->index, &sums);
	if (st->idle_before && sums.dispatched_total == st->dispatched + 1)
		ret->sees |= STAGE_SEES_IDLE;
	ratio = ratio > 0 ? ratio : 1;
	ret->clock_s = STAGING_CLOCK_S / w->set->time_scale;
	ret->hit_s = ratio * policy_prefill_s(&w->params, &st->seen, ret->prompt_tokens,
					      ret->prompt_tokens - (double)ret->expected_tokens);
	ret->miss_s = ratio * policy_prefill_s(&w->params, &st->seen, ret->prompt_tokens,
					       ret->prompt_tokens);
}

static void guard_say(struct worker *w, const struct exchange *x, enum stage_guard_news news,
		      const char *why)
{
	static const char *const flags[] = { [ENGINE_KIND_VLLM] = "--enable-prompt-tokens-details",
					     [ENGINE_KIND_SGLANG] = "--enable-cache-report" };
	struct engine *e = engine_of(w, x);
	uint32_t kind = staging_kind(e);
	const char *flag = kind < sizeof(flags) / sizeof(flags[0]) ? flags[kind] : NULL;

	if (news == STAGE_NO_NEWS)
		return;
	count(&w->counters, COUNTER_staged_guards, 1);
	if (news == STAGE_ENGINE_SILENT) {
		count_engine(&w->counters, e->index, ENGINE_COUNTER_staged_guards, 1);
		log_say(LOG_WARN,
			"engine %s gets no pieces: nothing tells whether they are found cached%s%s",
			e->at.name, flag ? "; it would with " : "", flag ? flag : "");
		return;
	}
	log_say(LOG_WARN, "no pieces of %s prompts of model %.*s: %s (engine %s)",
		http_path_name(x->target.path), (int)x->route->asked->request.model_len,
		x->route->asked->request.model, why, e->at.name);
}

/* A miss of this shape, found out otherwise than by the second piece. */
static void guard_miss(struct worker *w, const struct exchange *x, uint64_t key, const char *why)
{
	enum stage_verdict verdict = STAGE_MISS;

	if (w->stage.params.stage_force == 0)
		guard_say(w, x,
			  stage_guard_note(&w->stage.guard, &w->stage.params, key,
					   (unsigned)x->engine, 2, &verdict, w->now_ns),
			  why);
}

/* A piece has come back, or a pause is over: the next part, once others have had their time. */
static enum conn_state go_on(struct worker *w, struct conn *c, uint64_t piece_ns)
{
	struct staging *st = c->x->staging;
	unsigned engine = (unsigned)c->x->engine;
	uint64_t began_ns = w->stage.comes[engine].began_ns;
	struct ledger_sums sums;
	struct stage_others others;
	double pause_s;

	ledger_books_get(w->ledger, engine, &sums);
	others = (struct stage_others){
		.waiting = (uint32_t)sums.user_waiting_requests,
		.decoding = (uint32_t)sums.decoding,
		.waiting_s = sums.waiting_prefill_s,
		.began_s = began_ns ? (double)(w->now_ns - began_ns) * 1e-9 : INFINITY,
		.piece_s = (double)piece_ns * 1e-9,
	};
	pause_s = stage_pause_s(&st->stage, &st->params, &st->next, &others);
	if (pause_s <= 0)
		return do_next(w, c);
	st->phase = STAGING_GRACE;
	client_timer(w, c, (uint64_t)(pause_s * 1e9) + 1); /* 0 would disarm it */
	return CONN_STAGE;
}

static enum conn_state piece_judged(struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;
	struct staging *st = x->staging;
	struct engine *e = engine_of(w, x);
	struct stage_evidence seen;
	enum stage_verdict verdict;
	enum stage_source source;
	enum stage_guard_news news;

	evidence(w, x, &seen);
	verdict = stage_judge(&st->params, &seen, &source);
	news = stage_guard_note(&w->stage.guard, &st->params, guard_key(x, st), e->index,
				st->stage.done + 1, &verdict, w->now_ns);
	if (st->params.stage_force == 0)
		guard_say(w, x, news, "a piece did not find the one before it");
	if (seen.sees & STAGE_SEES_CACHED)
		count(&w->counters, COUNTER_staged_pieces_cached_tokens, seen.cached_tokens);
	if (st->stage.done == 0)
		x->first_cached = seen.sees & STAGE_SEES_CACHED ? seen.cached_tokens : UINT32_MAX;
	st->found_tokens = seen.prompt_tokens;
	stage_event(&st->stage, &st->params, STAGE_EVENT_PIECE_DONE, verdict, &st->next);
	return go_on(w, c, st->done_ns - st->sent_ns);
}

/* Where only its counters can tell, the agent's next sample is waited for until they have. */
static int sample_due(struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;
	struct staging *st = x->staging;
	const struct engine *e = engine_of(w, x);
	uint64_t after = e->state.period_ns + SAMPLE_NS;

	engines_read(w);
	if ((st->watch.seen & CHAT_SEEN_CACHED) || !st->has_before || proven(w, x) ||
	    st->params.stage_force != 0 || e->state.read_ns > st->done_ns ||
	    st->waits == SAMPLE_WAITS)
		return 0;
	st->waits++;
	st->phase = STAGING_JUDGE;
	client_timer(w, c, after < SAMPLE_MAX_NS ? after : SAMPLE_MAX_NS);
	return 1;
}

static enum conn_state piece_done(struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;
	struct staging *st = x->staging;
	struct engine *e = engine_of(w, x);
	struct route *r = x->route;
	uint64_t blocks = (uint64_t)r->chain_nr * st->stage.cut / st->stage.plan.prompt_tokens;

	if (st->status != 200) {
		ledger_end(w->ledger, &st->ticket, LEDGER_FAILED, w->now_ns);
		if (st->status >= 400 && st->status < 500 && st->status != 429)
			guard_miss(w, x, guard_key(x, st), "the engine refuses pieces");
		stage_event(&st->stage, &st->params, STAGE_EVENT_REFUSED, STAGE_UNCLEAR, &st->next);
		return do_next(w, c);
	}
	ledger_first_token(w->ledger, &st->ticket, w->now_ns);
	ledger_end(w->ledger, &st->ticket, LEDGER_COMPLETED, w->now_ns);
	if (blocks && e->region_index >= 0)
		prefix_insert(&w->prefix, e->region_index, r->chain, (uint32_t)blocks);
	st->done_ns = w->now_ns;
	st->waits = 0;
	return sample_due(w, c) ? CONN_STAGE : piece_judged(w, c);
}

void staging_found(struct worker *w, const struct exchange *x, uint64_t cached_tokens)
{
	if (x->pieces &&
	    (double)cached_tokens < w->stage.params.stage_guard_ratio * x->pieces_tokens)
		guard_miss(w, x, x->guard_key, "a request did not find its own pieces");
}

/* ---- answers ---- */

static enum conn_state part_done(struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;
	struct staging *st = x->staging;

	client_timer(w, c, 0);
	link_part(w, x, st->keep_alive);
	if (st->phase == STAGING_PIECE) {
		chat_watch_end(&st->watch);
		return piece_done(w, c);
	}
	if (st->status != 200)
		return without_ids(w, c);
	if (st->phase == STAGING_TEMPLATE) {
		staging_map(&st->answer, &st->told);
		if (!st->told.odd && chat_map_find(&st->told, CHAT_MAP_PROMPT))
			return ask(w, c, STAGING_TOKENS);
		return without_ids(w, c);
	}
	return staging_ids_count(st) ? plan(w, c) : without_ids(w, c);
}

/* From the beginning on another engine. Its piece is in no books, or in those of what was left. */
static enum conn_state start_over(struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;
	struct staging *st = x->staging;
	struct link *link = x->link;

	if (link->sending) {
		link->held_body = st->out;
		st->out = (struct chain){ 0 };
	}
	x->link = NULL;
	staging_free(w, x);
	x->link = link;
	return dispatch_again(w, c, 1);
}

int staging_under_way(const struct exchange *x)
{
	return x->staging && x->link && x->link->state == LINK_BUSY &&
	       x->staging->phase == STAGING_PIECE;
}

enum conn_state staging_elsewhere(struct worker *w, struct conn *c, uint64_t until_ns)
{
	rescue_leave_behind(w, &c->x->staging->ticket, UINT32_MAX, until_ns);
	return start_over(w, c);
}

/* The engine is gone or talks nonsense: elsewhere; or whole, if there is nowhere else. */
static enum conn_state lost(struct worker *w, struct conn *c, int connect)
{
	struct exchange *x = c->x;
	struct staging *st = x->staging;
	struct engine *e = engine_of(w, x);

	if (connect) {
		engine_connect_failed(w, e);
		count_engine(&w->counters, e->index, ENGINE_COUNTER_connect_failures, 1);
	} else {
		engine_failed(w, e);
		count_engine(&w->counters, e->index, ENGINE_COUNTER_errors, 1);
	}
	ledger_end(w->ledger, &st->ticket, LEDGER_FAILED, w->now_ns);
	if (x->link->state == LINK_CLOSING || !route_has_other(w, x, HEALTH_SPARED)) {
		link_part(w, x, 0);
		return request_send(w, c, STAGE_REASON_NONE);
	}
	count(&w->counters, COUNTER_resent_connect, 1);
	return start_over(w, c);
}

enum conn_state staging_down(struct worker *w, struct conn *c, const struct conn_input *in)
{
	struct exchange *x = c->x;
	struct staging *st = x->staging;

	if (!x->link) /* between two parts */
		return CONN_STAGE;
	if (x->link->state == LINK_DIALING)
		return lost(w, c, 1);
	if (in->res == 0 && st->have_head && http_body_eof(&st->body) == 0) {
		st->keep_alive = 0;
		return part_done(w, c);
	}
	if (st->reused && !st->heard) { /* closed as it was taken up again */
		link_part(w, x, 0);
		if (part_send(w, c, 1) == 0)
			return CONN_STAGE;
		link_part(w, x, 0);
		if (st->phase != STAGING_PIECE)
			return without_ids(w, c);
		ledger_end(w->ledger, &st->ticket, LEDGER_FAILED, w->now_ns);
		return request_send(w, c, STAGE_REASON_MEMORY);
	}
	return lost(w, c, 0);
}

enum conn_state staging_late(struct worker *w, struct conn *c, const struct conn_input *in)
{
	struct exchange *x = c->x;
	struct staging *st = x->staging;

	if (st->phase == STAGING_JUDGE)
		return sample_due(w, c) ? CONN_STAGE : piece_judged(w, c);
	if (st->phase == STAGING_GRACE)
		return go_on(w, c, 0);
	link_part(w, x, 0);
	if (st->phase != STAGING_PIECE)
		return without_ids(w, c);
	ledger_end(w->ledger, &st->ticket, LEDGER_FAILED, w->now_ns);
	stage_event(&st->stage, &st->params, STAGE_EVENT_TIMEOUT, STAGE_UNCLEAR, &st->next);
	return do_next(w, c);
}

/* Gathers the head. 1 when it is whole (*ret_used bytes taken), 0, or -errno. */
static int head_take(struct worker *w, struct staging *st, const uint8_t *data, size_t len,
		     size_t *ret_used)
{
	struct block *b = st->head ? st->head : block_take(&w->heads);
	size_t had, room, n, end;

	st->head = b;
	if (!b)
		return -ENOBUFS;
	had = b->end;
	room = LIMIT_HEAD_BYTES - had;
	n = len < room ? len : room;
	memcpy(b->data + had, data, n);
	b->end += n;
	*ret_used = n;
	end = http_head_end((char *)b->data, b->end, had);
	if (end == 0)
		return b->end >= LIMIT_HEAD_BYTES ? -E2BIG : 0;
	*ret_used = end - had;
	b->end = 0;
	w->head_of = NULL;
	if (http_response_parse(&w->head, (char *)b->data, end, HTTP_METHOD_POST) < 0)
		return -EPROTO;
	if (w->head.status < 200)
		return 0;
	st->status = w->head.status;
	st->keep_alive = w->head.keep_alive && w->head.framing != HTTP_TO_CLOSE;
	http_body_begin(&st->body, &w->head);
	st->have_head = 1;
	return 1;
}

/* 1: the answer is whole; 0: more to come; -errno. */
static int body_take(struct worker *w, struct staging *st, const uint8_t *data, size_t len)
{
	for (;;) {
		const char *piece;
		size_t used, n;
		int done = http_body_step(&st->body, (const char *)data, len, &used, &piece, &n);

		if (done < 0)
			return done;
		if (n && st->phase == STAGING_PIECE)
			chat_watch_step(&st->watch, piece, n);
		else if (n && (st->answer.bytes + n > LIMIT_STAGE_ANSWER ||
			       chain_append(&st->answer, &w->bodies, piece, n) < 0))
			return -ENOBUFS;
		data += used;
		len -= used;
		if (done && len)
			st->keep_alive = 0; /* bytes that belong to no answer */
		if (done || len == 0)
			return done;
	}
}

enum conn_state staging_bytes(struct worker *w, struct conn *c, const struct conn_input *in)
{
	struct exchange *x = c->x;
	struct staging *st = x->staging;
	const uint8_t *data = in->data;
	size_t len = in->len, used;
	int got = 0;

	st->heard = 1;
	rescue_alive(&w->back, (unsigned)x->engine, w->now_ns);
	while (!st->have_head && len > 0 && got >= 0) {
		got = head_take(w, st, data, len, &used);
		data += got >= 0 ? used : 0;
		len -= got >= 0 ? used : 0;
	}
	if (got >= 0 && st->have_head)
		got = body_take(w, st, data, len);
	else if (got >= 0)
		return CONN_STAGE;
	if (got > 0)
		return part_done(w, c);
	if (got == 0)
		return CONN_STAGE;
	if (got == -ENOBUFS && st->phase != STAGING_PIECE) {
		link_part(w, x, 0);
		return without_ids(w, c);
	}
	return lost(w, c, 0);
}
