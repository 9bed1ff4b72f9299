/* The laboratory along a live run: its own choice is noted, the live one is carried out. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/follow.h"
#include "bench/replay_sim.h"

/* ---- what a difference is put down to ---- */

static void take_session(struct policy_request *q, const struct policy_request *live)
{
	q->home = live->home;
	q->turn = live->turn;
	q->moves = live->moves;
	q->turns_since_move = live->turns_since_move;
	q->since_move_s = live->since_move_s;
	q->move_budget = live->move_budget;
}

static void take_request(enum follow_cause group, struct policy_request *q,
			 const struct policy_request *live)
{
	if (group == FOLLOW_SESSION)
		take_session(q, live);
	if (group == FOLLOW_TOKENS) {
		q->flags = live->flags;
		q->prompt_tokens = live->prompt_tokens;
		q->output_tokens = live->output_tokens;
		q->sequences = live->sequences;
	}
	if (group == FOLLOW_DRAW) {
		memcpy(q->random, live->random, sizeof(q->random));
		q->cursor = live->cursor;
	}
}

static void take_flags(struct policy_engine *e, const struct policy_engine *live, uint32_t flags)
{
	e->flags = (e->flags & ~flags) | (live->flags & flags);
}

static void take_load(enum follow_cause group, struct policy_engine *e,
		      const struct policy_engine *live)
{
	if (group == FOLLOW_REQUESTS)
		e->num_requests = live->num_requests;
	if (group == FOLLOW_DECODE) {
		e->decoding = live->decoding;
		e->decode_context_tokens = live->decode_context_tokens;
	}
	if (group == FOLLOW_PREFILL) {
		e->pending_prefill_tokens = live->pending_prefill_tokens;
		e->pending_prefill_s = live->pending_prefill_s;
		e->staged_rest_tokens = live->staged_rest_tokens;
		e->requeueable_tokens = live->requeueable_tokens;
		e->step_rest_s = live->step_rest_s;
		take_flags(e, live, POLICY_PENDING_S | POLICY_STEP_REST);
	}
}

static void take_engine(enum follow_cause group, struct policy_engine *e,
			const struct policy_engine *live)
{
	take_load(group, e, live);
	if (group == FOLLOW_HITS)
		e->hit_tokens = live->hit_tokens;
	if (group == FOLLOW_SPEED) {
		e->prefill_tokens_per_s = live->prefill_tokens_per_s;
		e->prefill_context_tokens = live->prefill_context_tokens;
		e->decode_iteration_s = live->decode_iteration_s;
		take_flags(e, live, POLICY_MEASURED_PREFILL | POLICY_MEASURED_DECODE);
	}
	if (group == FOLLOW_CALIBRATION) {
		e->calibration = live->calibration;
		e->recent_ttft_s = live->recent_ttft_s;
		e->recent_ttft_n = live->recent_ttft_n;
		e->oldest_wait_s = live->oldest_wait_s;
	}
	if (group == FOLLOW_AGE) {
		e->staleness = live->staleness;
		e->age_s = live->age_s;
		e->fresh_s = live->fresh_s;
		e->penalty_s = live->penalty_s;
		take_flags(e, live, POLICY_PROBE | POLICY_STALLED);
	}
	if (group == FOLLOW_ROOM) {
		e->kv_used_tokens = live->kv_used_tokens;
		e->kv_capacity_tokens = live->kv_capacity_tokens;
		e->step_budget_tokens = live->step_budget_tokens;
		e->max_model_len = live->max_model_len;
		e->weight = live->weight;
		take_flags(e, live,
			   POLICY_SERVES | POLICY_ALIVE | POLICY_DRAINED | POLICY_EXCLUDED);
	}
}

static const uint32_t every = (1u << FOLLOW_INPUTS_NR) - 1;

/* The choice when these groups of inputs (a bit each) are the live run's. */
static int choice_with(const struct sim *s, const struct follow_turn *live, uint32_t groups,
		       const struct policy_request *request, const struct policy_engine *engines)
{
	static struct policy_choice choice; /* large */
	struct policy_engine mixed[STATE_ENGINES_MAX];
	struct policy_request q = *request;

	memcpy(mixed, groups == every ? live->engines : engines, s->engines * sizeof(mixed[0]));
	for (int g = 0; g < FOLLOW_INPUTS_NR; g++) {
		if (!(groups >> g & 1))
			continue;
		take_request((enum follow_cause)g, &q, &live->request);
		for (unsigned i = 0; i < s->engines; i++)
			take_engine((enum follow_cause)g, &mixed[i], &live->engines[i]);
	}
	policy_choose(&s->arm->params, &q, mixed, s->engines, &choice);
	return choice.engine;
}

static void find_cause(const struct sim *s, const struct follow_turn *live,
		       const struct policy_request *request, const struct policy_engine *engines,
		       struct follow_verdict *v)
{
	v->cause = FOLLOW_UNKNOWN;
	if (!live->recorded || s->arm->peer >= 0)
		return;
	v->cause = FOLLOW_RULE;
	if (choice_with(s, live, every, request, engines) == live->engine)
		v->cause = FOLLOW_SEVERAL;
	for (int g = FOLLOW_INPUTS_NR; g-- > 0;)
		if (choice_with(s, live, 1u << g, request, engines) == live->engine) {
			v->alone |= 1u << g;
			v->cause = (enum follow_cause)g;
		}
}

/* ---- the live choice ---- */

/* How far apart the two cheapest are; < 0: there are no two, or no costs. */
static double gap_of(const struct policy_choice *c, unsigned engines)
{
	double least = INFINITY, next = INFINITY;

	if (c->runner_up < 0)
		return -1;
	for (unsigned i = 0; i < engines; i++) {
		double cost =
			c->cost[i].left_out == LEFT_OUT_CANDIDATE ? c->cost[i].total_s : INFINITY;

		if (cost < least) {
			next = least;
			least = cost;
		} else if (cost < next) {
			next = cost;
		}
	}
	return isinf(next) ? -1 : (next - least) / fmax(least, 1e-9);
}

/* The same decision as if there were no other engine: its prediction, for what is learnt of it. */
static void carry_out(struct sim *s, int engine, const struct policy_request *request,
		      const struct policy_engine *engines)
{
	struct policy_engine only[STATE_ENGINES_MAX];
	uint32_t move = s->choice.engine == engine ? s->choice.move : MOVE_NONE;

	memcpy(only, engines, s->engines * sizeof(only[0]));
	for (unsigned i = 0; i < s->engines; i++)
		if ((int)i != engine)
			only[i].flags |= POLICY_EXCLUDED;
	policy_choose(&s->arm->params, request, only, s->engines, &s->choice);
	s->choice.engine = engine;
	s->choice.move = move;
}

static void beside(const struct follow_turn *live, const struct policy_engine *engines,
		   struct follow_verdict *v)
{
	const struct policy_engine *e = &engines[live->engine];
	const struct policy_engine *r = &live->engines[live->engine];

#define PAIR(name, from)                                       \
	v->beside[FOLLOW_BESIDE_##name][0] = (float)(e->from); \
	v->beside[FOLLOW_BESIDE_##name][1] = (float)(r->from);
	FOLLOW_BESIDES(PAIR)
#undef PAIR
}

void sim_follow(struct sim *s, uint32_t index, const struct policy_request *request,
		const struct policy_engine *engines)
{
	const struct follow_turn *live = &s->follow->turn[index];
	struct follow_verdict *v = &s->verdict[index];
	const struct policy_cost *cost = s->choice.cost;

	v->engine = s->choice.engine;
	v->gap = gap_of(&s->choice, s->engines);
	if (live->recorded)
		beside(live, engines, v);
	if (v->engine != live->engine) {
		find_cause(s, live, request, engines, v);
		if (v->gap >= 0)
			v->regret =
				cost[live->engine].total_s / fmax(cost[v->engine].total_s, 1e-9) -
				1;
	}
	carry_out(s, live->engine, request, engines);
}

int follow_play(struct follow_verdict **ret_verdict, struct replay_run *ret_run,
		const struct replay_arm *arm, const struct follow *f, uint64_t seed)
{
	struct follow_verdict *verdict = calloc(f->workload.turns + 1, sizeof(*verdict));
	struct sim_beside beside = { .follow = f, .verdict = verdict };
	int err = -ENOMEM;

	*ret_run = (struct replay_run){ 0 };
	if (verdict)
		err = replay_play_beside(ret_run, arm, &f->workload, seed, &beside);
	if (err) {
		free(verdict);
		return err;
	}
	*ret_verdict = verdict;
	return 0;
}

/* ---- sums ---- */

static void count(struct follow_agreement *a, const struct follow_verdict *v, int engine)
{
	a->decisions++;
	if (v->engine == engine) {
		a->agree++;
		return;
	}
	a->cause[v->cause]++;
	for (int g = 0; g < FOLLOW_INPUTS_NR; g++)
		a->alone[g] += v->alone >> g & 1;
	a->regret_mean += v->regret;
}

static void count_besides(struct follow_summary *s, const struct follow_verdict *v)
{
	s->recorded++;
	for (int i = 0; i < FOLLOW_BESIDES_NR; i++) {
		double here = (double)v->beside[i][0], live = (double)v->beside[i][1];

		s->mean[i][0] += here;
		s->mean[i][1] += live;
		s->near[i] += fabs(here - live) <= 0.01 * fabs(live);
	}
}

static void mean_of(struct follow_agreement *a)
{
	size_t differ = a->decisions - a->agree;

	a->regret_mean = differ ? a->regret_mean / (double)differ : 0;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void spread(double *values, size_t nr, double ret[3])
{
	double sum = 0;

	qsort(values, nr, sizeof(*values), by_value);
	for (size_t i = 0; i < nr; i++)
		sum += values[i];
	ret[0] = sum / (double)nr;
	ret[1] = values[(nr - 1) / 2];
	ret[2] = values[(nr * 9 + 9) / 10 - 1];
}

int follow_summarize(struct follow_summary *ret, const struct follow *f,
		     const struct follow_verdict *verdict, const struct replay_run *run)
{
	size_t nr = f->workload.turns;
	double *ttft = calloc(3 * nr + 1, sizeof(*ttft));

	if (!ttft)
		return -ENOMEM;
	*ret = (struct follow_summary){ 0 };
	for (size_t i = 0; i < nr; i++) {
		const struct replay_request *r = &run->request[i];

		count(&ret->all, &verdict[i], f->turn[i].engine);
		if (verdict[i].gap > FOLLOW_CLEAR)
			count(&ret->clear, &verdict[i], f->turn[i].engine);
		if (f->turn[i].recorded)
			count_besides(ret, &verdict[i]);
		ttft[i] = f->turn[i].first_s - f->workload.turn[i].at_s;
		ttft[nr + i] = (double)(r->first_ns - r->arrive_ns) * 1e-9;
		ttft[2 * nr + i] = fabs(ttft[i] - ttft[nr + i]);
	}
	for (int i = 0; i < FOLLOW_BESIDES_NR && ret->recorded; i++) {
		ret->mean[i][0] /= (double)ret->recorded;
		ret->mean[i][1] /= (double)ret->recorded;
		ret->near[i] /= (double)ret->recorded;
	}
	mean_of(&ret->all);
	mean_of(&ret->clear);
	spread(ttft, nr, ret->live_ttft_s);
	spread(ttft + nr, nr, ret->replay_ttft_s);
	spread(ttft + 2 * nr, nr, ret->ttft_off_s);
	free(ttft);
	return 0;
}
