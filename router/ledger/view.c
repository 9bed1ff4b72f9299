/* What an engine has to do by now: the agent's record, and own books of what it cannot yet hold. */
#include "router/ledger/internal.h"

enum { PERIOD_NS = 100 * 1000 * 1000 }; /* of an agent that announces none */

struct reconciled {
	const struct ledger_engine *books;
	const struct engine_state *agent;  /* NULL: no usable record */
	const struct ledger_totals *taken; /* whose requests the record certainly holds */
	const struct ledger_totals *left;  /* of what may have left before the record */
	uint64_t taken_requests;           /* the same, a trusted counter asked */
	double believed;                   /* 1 fresh .. 0 unknown */
};

/* A count of our own, or a time that has passed: far below 2^63, which spares a case. */
static inline double real(uint64_t count)
{
	return (double)(int64_t)count;
}

static double greater(double a, double b)
{
	return a > b ? a : b;
}

static double lesser(double a, double b)
{
	return a < b ? a : b;
}

static uint64_t ns_of(double seconds)
{
	return seconds > 0 ? (uint64_t)(lesser(seconds, 1e9) * 1e9) : 0;
}

static double period_s(const struct engine_state *agent)
{
	return (agent->period_ns ? (double)agent->period_ns : (double)PERIOD_NS) / 1e9;
}

/* Returns the age from which on nothing is believed. */
static double judge_age(const struct ledger_params *params, const struct engine_state *agent,
			uint64_t now_ns, struct ledger_view *ret)
{
	ret->staleness = LEDGER_UNKNOWN;
	if (agent == NULL || agent->read_ns == 0)
		return 0;
	double period = period_s(agent);
	double unknown_s = greater(params->unknown_periods * period, params->unknown_s);

	ret->age_s = real(since(now_ns, agent->read_ns)) / 1e9;
	ret->fresh_s = params->fresh_periods * period;
	if (ret->age_s <= ret->fresh_s)
		ret->staleness = LEDGER_FRESH;
	else if (ret->age_s <= unknown_s)
		ret->staleness = LEDGER_AGED;
	return unknown_s;
}

/* How much of what the record says beyond our books still counts: all of it fresh, none unknown. */
static double belief(double unknown_s, const struct ledger_view *view)
{
	if (view->staleness == LEDGER_UNKNOWN)
		return 0;
	if (view->staleness == LEDGER_FRESH || unknown_s <= view->fresh_s)
		return 1;
	return lesser(1, (unknown_s - view->age_s) / (unknown_s - view->fresh_s));
}

/* Of our dispatches, how many a trusted counter says the engine had taken. */
static uint64_t taken_by_counter(const struct ledger_engine *books,
				 const struct engine_state *agent)
{
	int64_t admitted = (int64_t)agent->admitted_total - books->admitted_base;

	return admitted > 0 ? (uint64_t)admitted : 0;
}

static int counter_usable(const struct engine_state *agent)
{
	return ENGINE_HAS(agent, admitted_total) &&
	       (agent->trusted >> ENGINE_FIELD_admitted_total & 1);
}

/*
 * By time: what was dispatched an admission lag before the reading is in the record, what ended
 * before it is not. A trusted counter says it exactly while nobody else sends, and while somebody
 * does it still says when fewer were taken. When in doubt a request counts twice: that spreads, and
 * missing one herds.
 */
static inline struct reconciled reconcile(const struct ledger_engine *books,
					  const struct ledger_params *params,
					  const struct engine_state *agent)
{
	struct reconciled r = { .books = books, .agent = agent, .believed = 1 };

	r.taken = ledger_reached(books, since(agent->read_ns, ns_of(params->admission_lag_s)));
	r.left = ledger_bounded(books, agent->read_ns);
	r.taken_requests = r.taken->dispatched;
	if (books->admitted_known && counter_usable(agent)) {
		uint64_t taken = taken_by_counter(books, agent);
		uint64_t most = r.left->dispatched;
		int alone = since(agent->read_ns, books->drift_ns) > ns_of(params->settle_s);

		if (taken > most)
			taken = most;
		if (alone || taken < r.taken_requests)
			r.taken_requests = taken;
	}
	return r;
}

/* The moments that reconcile() asks about. */
void ledger_prefetch_past(struct ledger *ledger, const struct ledger_params *params,
			  unsigned engine, const struct engine_state *agent)
{
	assert(engine < STATE_ENGINES_MAX);
	ledger_locate(&ledger->engine[engine],
		      since(agent->read_ns, ns_of(params->admission_lag_s)), agent->read_ns);
}

static double reported_requests(const struct engine_state *agent)
{
	double requests = 0;

	if (ENGINE_HAS(agent, running) || ENGINE_HAS(agent, waiting)) {
		if (ENGINE_HAS(agent, running))
			requests += (double)agent->running;
		if (ENGINE_HAS(agent, waiting))
			requests += (double)agent->waiting;
		return requests;
	}
	if (counter_usable(agent) && ENGINE_HAS(agent, finished_total) &&
	    (agent->trusted >> ENGINE_FIELD_finished_total & 1))
		return (double)since(agent->admitted_total, agent->finished_total);
	return 0;
}

/* Requests in the record that our books do not explain. */
static double foreign_requests(const struct reconciled *r, const struct ledger_sums *others)
{
	double own = real(since(r->taken_requests, r->left->ended));

	if (others != NULL)
		own += (double)others->requests;
	return greater(0, reported_requests(r->agent) - own);
}

/* Share of the engine's requests that are in the batch; the others wait there. */
static double running_share(const struct engine_state *agent)
{
	double running = ENGINE_HAS(agent, running) ? (double)agent->running : 0;
	double waiting = ENGINE_HAS(agent, waiting) ? (double)agent->waiting : 0;

	return running + waiting > 0 ? running / (running + waiting) : 1;
}

/* Own books: what is sent and not at its first token, less what the engine can have done of it. */
static void own_pending(const struct ledger_engine *books, uint64_t now_ns, struct ledger_view *ret)
{
	const struct ledger_ticket *head = books->oldest;

	ret->pending_prefill_tokens = real(books->uncached_tokens);
	ret->pending_prefill_s = books->prefill_s;
	ret->requeueable_tokens = real(books->requeueable_tokens);
	if (head == NULL)
		return;
	uint64_t began_ns = head->dispatch_ns > books->head_ns ? head->dispatch_ns : books->head_ns;
	double done_s = lesser(real(since(now_ns, began_ns)) / 1e9, head->prefill_s);
	double part = head->prefill_s > 0 ? done_s / head->prefill_s : 0;

	ret->pending_prefill_s = greater(0, ret->pending_prefill_s - done_s);
	ret->pending_prefill_tokens =
		greater(0, ret->pending_prefill_tokens - part * head->uncached_tokens);
	if (head->flags & LEDGER_REQUEUEABLE)
		ret->requeueable_tokens =
			greater(0, ret->requeueable_tokens - part * head->uncached_tokens);
	while (head != NULL && head->flags & LEDGER_PIECE)
		head = head->newer;
	if (head != NULL)
		ret->oldest_wait_s = real(since(now_ns, head->dispatch_ns)) / 1e9;
}

/* The agent's backlog, what it cannot hold yet, less what has been computed since. */
static void agent_pending(const struct reconciled *r, double tokens_per_s, double age_s,
			  struct ledger_view *ret)
{
	const struct ledger_totals *now = &r->books->totals;
	double added = real(since(now->uncached_in, r->taken->uncached_in));
	double gone = real(since(now->uncached_out, r->left->uncached_out));
	double done = greater(gone, greater(0, tokens_per_s) * age_s);
	double tokens = greater(0, (double)r->agent->pending_prefill_tokens + added - done);
	double own_tokens = ret->pending_prefill_tokens;

	/* In seconds at the pace of our own books, which know the lengths; else unknown. */
	ret->pending_prefill_s = own_tokens > 0 ? ret->pending_prefill_s / own_tokens * tokens : -1;
	ret->pending_prefill_tokens = tokens;
}

/* Foreign requests beside ours: in the batch they decode, waiting they are like our usual one. */
static void add_foreign(const struct reconciled *r, const struct ledger_sums *others, int by_agent,
			struct ledger_view *ret)
{
	double foreign = foreign_requests(r, others) * r->believed;
	double running = foreign * running_share(r->agent);
	const struct ledger_engine *books = r->books;

	ret->foreign_requests = foreign;
	ret->num_requests += foreign;
	ret->decoding += running;
	if (ENGINE_HAS(r->agent, decode_context_tokens)) {
		double own = real(since(r->taken->context_in, r->left->context_out));

		if (others != NULL)
			own += (double)others->decode_context_tokens;
		ret->decode_context_tokens +=
			greater(0, (double)r->agent->decode_context_tokens - own) * r->believed;
	}
	if (!by_agent && foreign > running) {
		double tokens = (foreign - running) * books->mean_uncached_tokens;
		double pace = ret->pending_prefill_tokens > 0
				      ? ret->pending_prefill_s / ret->pending_prefill_tokens
				      : 0;

		ret->pending_prefill_tokens += tokens;
		ret->pending_prefill_s = pace > 0 ? ret->pending_prefill_s + tokens * pace : -1;
	}
}

static void add_others(const struct ledger_sums *others, int with_pending, struct ledger_view *ret)
{
	ret->num_requests += (double)others->requests;
	ret->decoding += (double)others->decoding;
	ret->decode_context_tokens += (double)others->decode_context_tokens;
	ret->staged_rest_tokens += (double)(others->staged_rest_tokens + others->held_tokens);
	if (!with_pending)
		return;
	ret->pending_prefill_tokens += (double)others->waiting_tokens;
	ret->pending_prefill_s += others->waiting_prefill_s;
	if (others->waiting_tokens > 0 && others->waiting_prefill_s == 0)
		ret->pending_prefill_s = -1; /* the region's books count tokens only */
}

/* It claims requests we did not send, none of its counters moves, and we have long stayed away. */
static int should_probe(const struct ledger_engine *books, const struct ledger_params *params,
			uint64_t now_ns)
{
	uint64_t quiet_ns = books->progress_ns > books->foreign_since_ns ? books->progress_ns
									 : books->foreign_since_ns;

	return books->foreign_since_ns != 0 && ledger_in_engine(books) == 0 &&
	       since(now_ns, quiet_ns) >= ns_of(params->probe_after_s) &&
	       since(now_ns, books->last_dispatch_ns) >= ns_of(params->probe_every_s);
}

void ledger_effective(const struct ledger *ledger, const struct ledger_params *params,
		      unsigned engine, const struct engine_state *agent,
		      const struct ledger_sums *others, double tokens_per_s, uint64_t now_ns,
		      struct ledger_view *ret)
{
	assert(engine < STATE_ENGINES_MAX);
	const struct ledger_engine *books = &ledger->engine[engine];
	int by_agent = 0;

	struct ledger_view view = {
		.num_requests = real(ledger_in_engine(books)),
		.decoding = real(books->decoding),
		.decode_context_tokens = real(books->decode_context_tokens),
		.booked_tokens = real(books->decode_context_tokens + books->sent_prompt_tokens),
		.staged_rest_tokens = real(books->staged_rest_tokens + books->held_tokens),
	};
	double unknown_s = judge_age(params, agent, now_ns, &view);

	own_pending(books, now_ns, &view);
	if (view.staleness != LEDGER_UNKNOWN) {
		struct reconciled r = reconcile(books, params, agent);

		r.believed = belief(unknown_s, &view);
		by_agent =
			view.staleness == LEDGER_FRESH && ENGINE_HAS(agent, pending_prefill_tokens);
		if (by_agent)
			agent_pending(&r, tokens_per_s, view.age_s, &view);
		add_foreign(&r, others, by_agent, &view);
		view.probe = (uint32_t)(view.foreign_requests > 0 &&
					should_probe(books, params, now_ns));
	}
	if (others != NULL)
		add_others(others, !by_agent, &view);
	*ret = view;
}

/*
 * Keeps admitted_base: what the counter has beyond our dispatches is foreign; what it lacks long
 * after our last dispatch was never taken.
 */
static void follow_admitted(struct ledger_engine *books, const struct ledger_params *params,
			    const struct engine_state *agent)
{
	if (!counter_usable(agent)) {
		books->admitted_known = 0;
		return;
	}
	uint64_t settled_ns = since(agent->read_ns, ns_of(params->settle_s));
	uint64_t sent = ledger_bounded(books, agent->read_ns)->dispatched;
	int settled = ledger_reached(books, settled_ns)->dispatched == books->totals.dispatched;

	if (!books->admitted_known && !settled)
		return; /* begin where nothing is under way */
	int64_t base = (int64_t)(agent->admitted_total - sent);

	if (books->admitted_known && base > books->admitted_base)
		books->drift_ns = agent->read_ns;
	if (settled || base > books->admitted_base)
		books->admitted_base = base;
	books->admitted_known = 1;
}

static uint64_t progress_of(const struct engine_state *agent)
{
	uint64_t sum = 0;

	if (ENGINE_HAS(agent, generation_tokens_total))
		sum += agent->generation_tokens_total;
	if (ENGINE_HAS(agent, prompt_tokens_total))
		sum += agent->prompt_tokens_total;
	if (ENGINE_HAS(agent, finished_total))
		sum += agent->finished_total;
	return sum;
}

int ledger_observe(struct ledger *ledger, const struct ledger_params *params, unsigned engine,
		   const struct engine_state *agent, uint64_t now_ns)
{
	assert(engine < STATE_ENGINES_MAX);
	struct ledger_engine *books = &ledger->engine[engine];
	int restarted = 0;

	if (agent->read_ns <= books->read_ns)
		return 0; /* none, seen already, or late */
	if (agent->epoch != 0) {
		restarted = books->engine_epoch != 0 && books->engine_epoch != agent->epoch;
		books->engine_epoch = agent->epoch;
	}
	if (restarted)
		ledger_engine_restarted(ledger, engine, now_ns);
	books->read_ns = agent->read_ns;
	follow_admitted(books, params, agent);
	if (progress_of(agent) != books->progress_sum) {
		books->progress_sum = progress_of(agent);
		books->progress_ns = now_ns;
	}
	ledger_prefetch_past(ledger, params, engine, agent);
	struct reconciled r = reconcile(books, params, agent);

	if (foreign_requests(&r, NULL) == 0)
		books->foreign_since_ns = 0;
	else if (books->foreign_since_ns == 0)
		books->foreign_since_ns = now_ns;
	return restarted;
}
