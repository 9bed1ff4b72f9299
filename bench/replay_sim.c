/* The laboratory's clock: events in order, engines stepped, the router's libraries called. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench/replay_stage.h"

/* ---- the queue of events: a binary heap, equal times in a fixed order ---- */

static int earlier(const struct event *a, const struct event *b)
{
	if (a->at_ns != b->at_ns)
		return a->at_ns < b->at_ns;
	if (a->kind != b->kind)
		return a->kind < b->kind;
	return a->index < b->index;
}

/* Samples, looks and faults go on for ever: they alone bring nothing to an end. */
static int leads_on(enum event_kind kind)
{
	return kind != EVENT_SAMPLE && kind != EVENT_TICK && kind != EVENT_FAULT;
}

int sim_push(struct sim *s, uint64_t at_ns, enum event_kind kind, uint32_t index)
{
	struct event e = { at_ns, kind, index };
	size_t i = s->events;

	if (s->events == s->events_room) {
		size_t room = s->events_room ? 2 * s->events_room : 1024;
		struct event *grown = realloc(s->event, room * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		s->event = grown;
		s->events_room = room;
	}
	s->events++;
	s->due += leads_on(kind);
	while (i > 0 && earlier(&e, &s->event[(i - 1) / 2])) {
		s->event[i] = s->event[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	s->event[i] = e;
	return 0;
}

static struct event pop(struct sim *s)
{
	struct event top = s->event[0], last = s->event[--s->events];
	size_t i = 0, child;

	while ((child = 2 * i + 1) < s->events) {
		if (child + 1 < s->events && earlier(&s->event[child + 1], &s->event[child]))
			child++;
		if (!earlier(&s->event[child], &last))
			break;
		s->event[i] = s->event[child];
		i = child;
	}
	s->event[i] = last;
	return top;
}

/* ---- engines ---- */

static int step_begin(struct sim *s, unsigned engine)
{
	struct sim_engine *e = &s->engine[engine];
	struct model_figures f;
	uint64_t end;

	model_figures_get(e->model, &f); /* what a step computes is counted when it begins */
	end = sim_resting(s, e) ? MODEL_NEVER : model_begin(e->model, s->now_ns);
	e->step_end_ns = end;
	if (end == MODEL_NEVER)
		return 0;
	e->step_begin_ns = s->now_ns;
	e->step_lasts_ns = end - s->now_ns;
	e->computed_tokens = f.computed_tokens;
	return sim_push(s, end, EVENT_STEP, engine);
}

void sim_prompt(struct sim *s, uint32_t index)
{
	if (s->ids_are && s->ids_of == index)
		return;
	workload_prompt(s->workload, &s->workload->turn[index], s->ids);
	s->ids_of = index;
	s->ids_are = 1;
}

int sim_push_part(struct sim *s, enum event_kind kind, uint32_t index, double after_s)
{
	s->request[index].submit_ns = s->now_ns + sim_ns(after_s);
	return sim_push(s, s->request[index].submit_ns, kind, index);
}

int sim_kick(struct sim *s, unsigned engine)
{
	return s->engine[engine].step_end_ns == MODEL_NEVER ? step_begin(s, engine) : 0;
}

int sim_submit(struct sim *s, uint32_t index)
{
	const struct workload_turn *turn = &s->workload->turn[index];
	struct sim_request *r = &s->request[index];
	struct sim_engine *e = &s->engine[r->ticket.engine];
	struct model_request *request;

	sim_prompt(s, index);
	r->submit_ns = 0;
	if (!r->answer) { /* it may be sent again */
		r->answer = malloc(turn->output_tokens * sizeof(*r->answer));
		if (!r->answer)
			return -ENOMEM;
		workload_ids(&turn->answer, r->answer);
	}
	if (r->pulled_tokens)
		model_import(e->model, 0, s->ids, r->pulled_tokens);
	struct model_submission submission = { .tag = index,
					       .prompt = s->ids,
					       .prompt_tokens = turn->prompt_tokens,
					       .output_tokens = turn->output_tokens,
					       .output = r->answer };
	stage_sim_comes(s, r->ticket.engine);
	int err = model_submit(e->model, &submission, s->now_ns, &request);
	if (!err)
		err = stage_sim_submitted(s, index, request);
	if (err)
		return err;
	return sim_kick(s, r->ticket.engine);
}

/* ---- what comes back ---- */

static int first_token(struct sim *s, uint32_t index)
{
	struct sim_request *r = &s->request[index];
	struct sim_engine *e = &s->engine[r->ticket.engine];
	struct replay_request *result = &s->run->request[index];

	result->first_ns = s->now_ns;
	ledger_first_token(&s->ledger, &r->ticket, s->now_ns);
	sim_view_first_token(s, e, r, stage_sim_took_s(s, index), result->cached_tokens);
	prefix_insert(&s->prefix, r->ticket.engine, r->chain, r->chain_nr);
	return stage_sim_first_token(s, index);
}

static int finished(struct sim *s, uint32_t index, const struct model_event *event)
{
	const struct workload_turn *turn = &s->workload->turn[index];
	const struct workload_turn *next = index + 1 < s->workload->turns ? turn + 1 : NULL;
	struct sim_request *r = &s->request[index];
	int err;

	s->run->request[index].end_ns = s->now_ns;
	s->left--;
	ledger_end(&s->ledger, &r->ticket, LEDGER_COMPLETED, s->now_ns);
	sim_view_finished(s, turn, r, event);
	if (s->arm->index_touch != 0)
		prefix_insert(&s->prefix, r->ticket.engine, r->chain, r->chain_nr);
	free(r->chain);
	free(r->answer);
	r->chain = NULL;
	r->answer = NULL;
	err = stage_sim_finished(s, index, event);
	if (err || !next || next->session != turn->session || next->at_s >= 0)
		return err;
	return sim_push(s, s->now_ns + sim_ns(next->think_s), EVENT_ARRIVE, index + 1);
}

static int engine_said(struct sim *s, const struct model_event *event)
{
	uint32_t index = (uint32_t)event->tag;
	int piece = (event->tag & SIM_PIECE) != 0;

	if (event->kind == MODEL_STARTED)
		return stage_sim_started(s, index, event);
	if (event->kind == MODEL_TOKEN && event->index == 0 && !piece)
		return first_token(s, index);
	if (event->kind == MODEL_FINISHED)
		return piece ? stage_sim_piece_done(s, index, event) : finished(s, index, event);
	return 0;
}

static int step_end(struct sim *s, unsigned engine)
{
	struct sim_engine *e = &s->engine[engine];
	const struct model_event *events;
	uint64_t later = 0;
	size_t nr;
	int err = 0;

	if (e->step_end_ns != s->now_ns) /* it was put off, or the engine is gone */
		return 0;
	nr = model_end(e->model, &events);
	e->step_end_ns = MODEL_NEVER;
	for (size_t i = 0; i < nr && !err; i++) {
		later += events[i].kind == MODEL_TOKEN && events[i].index > 0;
		err = engine_said(s, &events[i]);
	}
	sim_view_step(s, e, later);
	err = err ? err : stage_sim_step(s, engine);
	return err ? err : step_begin(s, engine);
}

/* ---- a request comes ---- */

static int arrive(struct sim *s, uint32_t index)
{
	int err;

	if (!s->run->request[index].resends)
		s->run->request[index].arrive_ns = s->now_ns;
	if (s->arm->hold == 0)
		return stage_sim_arrive(s, index);
	sim_prompt(s, index);
	err = sim_hold(s, index);
	if (err == -E2BIG)
		return sim_nowhere(s, index);
	return err ? err : sim_push(s, s->now_ns + sim_ns(s->arm->hold), EVENT_RELEASE, index);
}

static int sample(struct sim *s, unsigned engine)
{
	sim_view_sample(s, engine);
	return sim_push(s, s->now_ns + sim_ns(s->arm->sample), EVENT_SAMPLE, engine);
}

static int resume(struct sim *s, unsigned engine)
{
	int err = sim_kick(s, engine);

	return err ? err : stage_sim_release(s);
}

static int happen(struct sim *s, const struct event *e)
{
	int part = e->kind == EVENT_SUBMIT || e->kind == EVENT_PIECE || e->kind == EVENT_GRACE;

	if (part && s->request[e->index].submit_ns != s->now_ns) /* it was lost on its way */
		return 0;
	switch (e->kind) {
	case EVENT_STEP:
		return step_end(s, e->index);
	case EVENT_FAULT:
		return sim_fault(s, e->index);
	case EVENT_RESUME:
		return resume(s, e->index);
	case EVENT_SAMPLE:
		return sample(s, e->index);
	case EVENT_SUBMIT:
		return sim_submit(s, e->index);
	case EVENT_PIECE:
		return stage_sim_piece_due(s, e->index);
	case EVENT_GRACE:
		return stage_sim_grace(s, e->index);
	case EVENT_REQUEUE:
		return stage_sim_poll(s, e->index);
	case EVENT_TICK:
		return stage_sim_tick(s);
	case EVENT_RELEASE:
		return stage_sim_arrive(s, e->index);
	case EVENT_ARRIVE:
		return arrive(s, e->index);
	}
	return -EINVAL;
}

/* ---- begin and end ---- */

static int engines_new(struct sim *s)
{
	const struct replay_arm *arm = s->arm;
	int err = 0;

	for (unsigned i = 0; i < s->engines && !err; i++) {
		struct model_options options = {
			.budget_tokens = (uint32_t)arm->budget,
			.long_prefill_cap = (uint32_t)arm->long_prefill_cap,
			.kv_tokens = (uint64_t)arm->kv_tokens,
			.slowdown = i == 0 ? arm->slow : 1,
			.async = arm->scheduling == REPLAY_SCHEDULING_ASYNC,
		};

		s->engine[i].step_end_ns = MODEL_NEVER;
		err = model_new(&s->engine[i].model, replay_profile_of(arm, i), &options);
		if (err || arm->head == REPLAY_HEAD_NONE || arm->state == REPLAY_STATE_LIVE)
			continue;
		/* Agents have begun before; processes of their own, they sample at other times. */
		sim_view_sample(s, i);
		err = sim_push(s, SIM_BEGIN_NS + sim_ns(arm->sample * (i + 1) / s->engines),
			       EVENT_SAMPLE, i);
	}
	return err;
}

static uint32_t index_blocks(const struct sim *s, unsigned engine)
{
	uint64_t kv = model_options_of(s->engine[engine].model)->kv_tokens;
	double blocks = prefix_blocks_of(kv, 0) * s->arm->index_scale;

	return blocks < PREFIX_BLOCKS_MAX ? (uint32_t)blocks + 1 : PREFIX_BLOCKS_MAX;
}

static int index_new(struct sim *s)
{
	uint32_t room = PREFIX_BLOCKS_MIN;
	size_t size;

	for (unsigned i = 0; i < s->engines; i++)
		while (room < index_blocks(s, i))
			room *= 2;
	size = prefix_size(s->engines, room);
	size = (size + PREFIX_ALIGN - 1) / PREFIX_ALIGN * PREFIX_ALIGN;
	s->prefix_memory = aligned_alloc(PREFIX_ALIGN, size);
	if (!s->prefix_memory)
		return -ENOMEM;
	memset(s->prefix_memory, 0, size);
	int err = prefix_attach(&s->prefix, s->prefix_memory, size, s->engines, room);
	for (unsigned i = 0; i < s->engines && !err; i++)
		prefix_set_capacity(&s->prefix, i, index_blocks(s, i));
	return err;
}

static int arrivals(struct sim *s)
{
	const struct workload *w = s->workload;
	int err = 0;

	for (size_t i = 0; i < w->turns && !err; i++) {
		const struct workload_turn *turn = &w->turn[i];
		double at_s = turn->at_s;

		if (at_s < 0 && turn->turn == 1)
			at_s = w->session[turn->session].start_s;
		if (at_s >= 0)
			err = sim_push(s, SIM_BEGIN_NS + sim_ns(at_s), EVENT_ARRIVE, (uint32_t)i);
	}
	return err;
}

static int begin(struct sim *s, uint64_t seed)
{
	const struct workload *w = s->workload;
	size_t longest = 1;

	for (size_t i = 0; i < w->turns; i++)
		if (w->turn[i].prompt_tokens > longest)
			longest = w->turn[i].prompt_tokens;
	s->engines = (unsigned)s->arm->engines;
	s->random = workload_key(seed, 3);
	s->left = w->turns;
	s->now_ns = s->moves.since_ns = SIM_BEGIN_NS;
	ledger_init(&s->ledger);
	ledger_params_init(&s->ledger_params);
	s->request = calloc(w->turns + 1, sizeof(*s->request));
	s->session = calloc(w->sessions + 1, sizeof(*s->session));
	s->ids = malloc((longest + (size_t)s->arm->piece_overhead) * sizeof(*s->ids));
	s->run->request = calloc(w->turns + 1, sizeof(*s->run->request));
	s->run->requests = w->turns;
	if (!s->request || !s->session || !s->ids || !s->run->request)
		return -ENOMEM;
	for (size_t i = 0; i < w->sessions; i++)
		session_init(&s->session[i], (struct session_time){ .ns = s->now_ns });
	int err = engines_new(s);
	err = err ? err : index_new(s);
	err = err ? err : stage_sim_new(s);
	err = err ? err : sim_faults_begin(s);
	return err ? err : arrivals(s);
}

static void take_totals(struct sim *s)
{
	struct replay_run *run = s->run;
	double busy = 0, held = 0;
	struct model_figures f;

	run->end_s = (double)(s->now_ns - SIM_BEGIN_NS) * 1e-9;
	for (unsigned i = 0; i < s->engines; i++) {
		double computed;

		model_check(s->engine[i].model);
		model_figures_get(s->engine[i].model, &f);
		computed = (double)f.computed_tokens;
		run->preemptions += f.preemptions;
		run->computed_tokens += computed;
		run->waited_kv_s += (double)f.waited_kv_ns * 1e-9;
		run->waited_budget_s += (double)f.waited_budget_ns * 1e-9;
		busy += (double)f.busy_ns * (double)model_blocks_total(s->engine[i].model);
		held += (double)f.held_block_ns;
		if (i == 0 || computed > run->most_tokens)
			run->most_tokens = computed;
		if (i == 0 || computed < run->fewest_tokens)
			run->fewest_tokens = computed;
	}
	run->held_share = busy > 0 ? held / busy : 0;
}

/* What must be so when all is over: no request lost, none left in the books. */
static void check(struct sim *s)
{
	stage_sim_check(s);
	for (size_t i = 0; i < s->run->requests; i++) {
		const struct replay_request *r = &s->run->request[i];

		assert(r->arrive_ns < r->first_ns && r->first_ns <= r->end_ns);
	}
}

static void fini(struct sim *s)
{
	for (unsigned i = 0; i < s->engines; i++) {
		model_free(s->engine[i].model);
		model_free(s->scratch[i]);
	}
	for (size_t i = 0; s->request && i < s->workload->turns; i++) {
		free(s->request[i].chain);
		free(s->request[i].answer);
		free(s->request[i].held);
	}
	stage_sim_free(s);
	free(s->request);
	free(s->session);
	free(s->event);
	free(s->ids);
	free(s->sent);
	free(s->prefix_memory);
	free(s);
}

/* Nothing changes between events, so what is so now was so at every moment since the last one. */
static void show(struct sim *s, uint64_t until_ns)
{
	float value[STATE_ENGINES_MAX][DETAIL_SERIES_NR];

	if (!detail_watch_due(s->watch, until_ns))
		return;
	for (unsigned i = 0; i < s->engines; i++) {
		const struct model *model = s->engine[i].model;
		struct model_figures f;

		model_figures_get(model, &f);
		value[i][DETAIL_pending_prefill_tokens] =
			(float)(f.pending_prefill_tokens + model_waiting_uncached(model));
		value[i][DETAIL_requests] = (float)(f.running + f.waiting);
		value[i][DETAIL_kv_used_ratio] =
			(float)f.blocks_used / (float)model_blocks_total(model);
	}
	while (detail_watch_due(s->watch, until_ns))
		detail_watch_point(s->watch, value);
}

static int play(struct replay_run *ret_run, const struct replay_arm *arm,
		const struct workload *workload, uint64_t seed, struct detail_watch *watch,
		const struct sim_beside *beside)
{
	struct sim *s = calloc(1, sizeof(*s));
	int err;

	*ret_run = (struct replay_run){ 0 };
	if (!s)
		return -ENOMEM;
	s->arm = arm;
	s->workload = workload;
	s->run = ret_run;
	s->watch = watch;
	if (beside) {
		s->follow = beside->follow;
		s->verdict = beside->verdict;
	}
	if (watch)
		detail_watch_begin(watch, SIM_BEGIN_NS);
	err = begin(s, seed);
	while (!err && s->left > 0) {
		/* Samples alone bring nothing to an end: a request would have been lost. */
		assert(s->due > 0);
		struct event e = pop(s);

		s->due -= leads_on(e.kind);
		assert(e.at_ns >= s->now_ns);
		show(s, e.at_ns);
		s->now_ns = e.at_ns;
		ret_run->events++;
		err = happen(s, &e);
	}
	if (!err) {
		take_totals(s);
		check(s);
	}
	fini(s);
	return err;
}

int replay_play(struct replay_run *ret_run, const struct replay_arm *arm,
		const struct workload *workload, uint64_t seed)
{
	return play(ret_run, arm, workload, seed, NULL, NULL);
}

int replay_play_watched(struct replay_run *ret_run, const struct replay_arm *arm,
			const struct workload *workload, uint64_t seed, struct detail_watch *watch)
{
	return play(ret_run, arm, workload, seed, watch, NULL);
}

int replay_play_beside(struct replay_run *ret_run, const struct replay_arm *arm,
		       const struct workload *workload, uint64_t seed,
		       const struct sim_beside *beside)
{
	return play(ret_run, arm, workload, seed, NULL, beside);
}

void replay_run_free(struct replay_run *run)
{
	free(run->request);
	*run = (struct replay_run){ 0 };
}
