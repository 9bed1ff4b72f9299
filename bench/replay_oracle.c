/* What would come of a choice: a copy of the engine is run ahead, as if nobody else ever came. */
#include <assert.h>
#include <errno.h>
#include <math.h>

#include "bench/replay_sim.h"

static const uint64_t nobody = UINT64_MAX;

/* What a copy that was run ahead shows. */
struct ahead {
	uint64_t first_ns; /* of the request tried, MODEL_NEVER without one */
	double others_s;   /* sum over the others of when their answers end */
	size_t others;     /* still to end */
};

static int copy_of(struct sim *s, unsigned engine)
{
	struct sim_engine *e = &s->engine[engine];
	int err = 0;

	if (!s->scratch[engine])
		err = model_new(&s->scratch[engine], model_profile_of(e->model),
				model_options_of(e->model));
	return err ? err : model_copy(s->scratch[engine], e->model);
}

static int try_request(struct sim *s, struct model *m, uint32_t index)
{
	const struct workload_turn *turn = &s->workload->turn[index];
	struct model_request *ignored;
	struct model_submission submission = { .tag = index,
					       .prompt = s->ids,
					       .prompt_tokens = turn->prompt_tokens,
					       .output_tokens = turn->output_tokens,
					       .output_seed = index };

	assert(s->ids_are && s->ids_of == index);
	return model_submit(m, &submission, s->now_ns, &ignored);
}

static void take(struct ahead *a, uint64_t index, const struct model_event *event)
{
	if (event->kind == MODEL_TOKEN && event->index == 0 && event->tag == index)
		a->first_ns = event->at_ns;
	if (event->kind == MODEL_FINISHED && event->tag != index) {
		a->others_s += (double)event->at_ns * 1e-9;
		a->others--;
	}
}

/* Until the request tried has its first token and, where asked for, all others have ended. */
static void run_on(struct sim *s, unsigned engine, uint64_t index, int others, struct ahead *a)
{
	struct model *m = s->scratch[engine];
	uint64_t now_ns = s->now_ns;

	if (s->engine[engine].stalled_until_ns > now_ns)
		now_ns = s->engine[engine].stalled_until_ns;
	while ((index != nobody && a->first_ns == MODEL_NEVER) || (others && a->others > 0)) {
		const struct model_event *events;
		size_t nr;

		if (model_step_end(m) == MODEL_NEVER && model_begin(m, now_ns) == MODEL_NEVER)
			return; /* nothing is left: it was not admitted */
		now_ns = model_step_end(m);
		nr = model_end(m, &events);
		for (size_t i = 0; i < nr; i++)
			take(a, index, &events[i]);
	}
}

static int run_ahead(struct sim *s, unsigned engine, uint64_t index, int others,
		     struct ahead *ret_ahead)
{
	struct ahead a = { .first_ns = MODEL_NEVER };
	int err = copy_of(s, engine);

	while (!err && model_request_at(s->scratch[engine], a.others))
		a.others++;
	if (!err && index != nobody)
		err = try_request(s, s->scratch[engine], (uint32_t)index);
	if (err)
		return err;
	run_on(s, engine, index, others, &a);
	*ret_ahead = a;
	return 0;
}

int sim_ahead_ttft(struct sim *s, uint32_t index, unsigned engine, double *ret_s)
{
	struct ahead a;
	int err = run_ahead(s, engine, index, 0, &a);

	if (err == -E2BIG) { /* never there */
		*ret_s = INFINITY;
		return 0;
	}
	if (!err)
		*ret_s = (double)(a.first_ns - s->now_ns) * 1e-9;
	return err;
}

/* The request's own wait, and where asked for what it adds to the others' answers. */
static int price(struct sim *s, uint32_t index, unsigned engine, double *ret_s)
{
	int social = s->arm->oracle == REPLAY_ORACLE_SOCIAL;
	struct ahead with, without = { 0 };
	int err = run_ahead(s, engine, index, social, &with);

	if (!err && social)
		err = run_ahead(s, engine, nobody, 1, &without);
	if (err == -E2BIG) {
		*ret_s = INFINITY;
		return 0;
	}
	if (err)
		return err;
	*ret_s = (double)(with.first_ns - s->now_ns) * 1e-9;
	if (social)
		*ret_s += with.others_s - without.others_s;
	return 0;
}

int sim_oracle(struct sim *s, uint32_t index, int home, int *ret_engine)
{
	double least_s = INFINITY;
	uint64_t tie = 0;

	*ret_engine = -1;
	for (unsigned i = 0; i < s->engines; i++) {
		/* Equal ones: home, else any; the draw is the request's own. */
		uint64_t draw = (int)i == home ? 0 : 1 + workload_key(index, i) / 2;
		double cost_s;
		int err = s->engine[i].down_until_ns > s->now_ns ? 0 : price(s, index, i, &cost_s);

		if (err)
			return err;
		if (s->engine[i].down_until_ns > s->now_ns || isinf(cost_s))
			continue;
		if (*ret_engine >= 0 && (cost_s > least_s || (cost_s == least_s && draw > tie)))
			continue;
		*ret_engine = (int)i;
		least_s = cost_s;
		tie = draw;
	}
	return 0;
}

/* ---- what a decision is measured by ---- */

/* The engine with most of the prompt in its cache, and how much that is. */
static unsigned best_of(struct sim *s, const struct workload_turn *turn, uint32_t *ret_hit)
{
	unsigned best = 0;

	*ret_hit = 0;
	for (unsigned i = 0; i < s->engines; i++) {
		uint32_t hit = model_probe(s->engine[i].model, 0, s->ids, turn->prompt_tokens);

		if (hit > *ret_hit) {
			*ret_hit = hit;
			best = i;
		}
	}
	return best;
}

int sim_measure(struct sim *s, uint32_t index)
{
	const struct workload_turn *turn = &s->workload->turn[index];
	struct replay_request *r = &s->run->request[index];
	int moved = turn->turn >= 2 && r->home >= 0 && r->home != r->engine;
	unsigned from = (unsigned)r->home;
	uint32_t held, here;

	if (turn->turn >= 2 && r->home >= 0) {
		held = model_probe(s->engine[from].model, 0, s->ids, turn->prompt_tokens);
	} else {
		from = best_of(s, turn, &held);
		here = model_probe(s->engine[r->engine].model, 0, s->ids, turn->prompt_tokens);
		moved = turn->turn == 1 && held > here + SIM_BLOCK;
	}
	r->held_tokens = held;
	r->offload = moved ? turn->turn >= 2 ? REPLAY_MIGRATED : REPLAY_OFFLOADED : REPLAY_STAYED;
	r->stay_s = 0;
	return moved ? sim_ahead_ttft(s, index, from, &r->stay_s) : 0;
}
