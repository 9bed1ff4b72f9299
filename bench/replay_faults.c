/* What goes wrong in a play: engines that stand still for a while, or come back empty. */
#include <errno.h>
#include <stdlib.h>

#include "bench/replay_stage.h"

enum fault { FAULT_STALL, FAULT_RESTART };
/* Of a kind in one play. Then engines are left in peace, so that every request comes to its end. */
enum { FAULTS_MAX = 200 };

static double every_s(const struct sim *s, enum fault fault)
{
	if (fault == FAULT_STALL)
		return s->arm->stall > 0 ? s->arm->stall_every : 0;
	return s->arm->restart_every;
}

static int next(struct sim *s, enum fault fault)
{
	double after_s = every_s(s, fault);

	if (s->faults[fault] == FAULTS_MAX)
		return 0;
	return after_s > 0 ? sim_push(s, s->now_ns + sim_ns(after_s), EVENT_FAULT, fault) : 0;
}

int sim_faults_begin(struct sim *s)
{
	int err = next(s, FAULT_STALL);

	return err ? err : next(s, FAULT_RESTART);
}

/* ---- stalls ---- */

static int stall(struct sim *s, unsigned engine)
{
	struct sim_engine *e = &s->engine[engine];
	uint64_t lasts_ns = sim_ns(s->arm->stall), until_ns = s->now_ns + lasts_ns;
	int err = 0;

	if (e->down_until_ns > s->now_ns)
		return 0;
	if (e->stalled_until_ns <= s->now_ns)
		e->stalled_ns = s->now_ns;
	if (until_ns > e->stalled_until_ns)
		e->stalled_until_ns = until_ns;
	sim_note_outage(s, DETAIL_stall, engine, until_ns);
	if (e->step_end_ns != MODEL_NEVER) {
		model_stall(e->model, lasts_ns);
		e->step_end_ns += lasts_ns;
		err = sim_push(s, e->step_end_ns, EVENT_STEP, engine);
	}
	return err ? err : sim_push(s, until_ns, EVENT_RESUME, engine);
}

/* ---- restarts ---- */

/* From the beginning; nothing of the broken answer counts. */
static int ask_again(struct sim *s, uint32_t index, uint64_t at_ns)
{
	struct sim_request *r = &s->request[index];
	struct replay_request *result = &s->run->request[index];

	free(r->chain);
	free(r->answer);
	r->chain = NULL;
	r->answer = NULL;
	r->submit_ns = 0;
	r->pulled_tokens = 0;
	r->pull_s = 0;
	result->resends++;
	result->best_hit_tokens = 0;
	result->first_ns = 0;
	return sim_push(s, at_ns, EVENT_ARRIVE, index);
}

int sim_resend(struct sim *s, uint32_t index)
{
	s->run->request[index].lost++;
	return ask_again(s, index, s->now_ns + sim_ns(s->arm->resend));
}

static int restart(struct sim *s, unsigned engine)
{
	struct sim_engine *e = &s->engine[engine];
	uint64_t until_ns = s->now_ns + sim_ns(s->arm->restart_down);
	int err;

	if (e->down_until_ns > s->now_ns)
		return 0;
	model_restart(e->model);
	e->restarts++;
	e->down_until_ns = until_ns;
	e->stalled_until_ns = 0;
	e->step_end_ns = MODEL_NEVER;
	model_figures_get(e->model, &e->shown);
	e->totals = (struct engine_reading){ 0 };
	e->speeds = (struct speeds){ 0 };
	sim_note_outage(s, DETAIL_restart, engine, until_ns);
	err = stage_sim_lose_all(s, engine);
	if (err)
		return err;
	sim_view_lost(s, engine);
	err = sim_push(s, until_ns, EVENT_RESUME, engine);
	return err ? err : stage_sim_release(s);
}

/* ---- events ---- */

int sim_fault(struct sim *s, uint32_t fault)
{
	unsigned engine = s->faults[fault]++ % s->engines; /* one after the other */
	int err = fault == FAULT_STALL ? stall(s, engine) : restart(s, engine);

	return err ? err : next(s, (enum fault)fault);
}

int sim_resting(const struct sim *s, const struct sim_engine *e)
{
	return e->stalled_until_ns > s->now_ns || e->down_until_ns > s->now_ns;
}

uint64_t sim_back_ns(const struct sim *s)
{
	uint64_t back_ns = MODEL_NEVER;

	for (unsigned i = 0; i < s->engines; i++)
		if (s->engine[i].down_until_ns > s->now_ns && s->engine[i].down_until_ns < back_ns)
			back_ns = s->engine[i].down_until_ns;
	return back_ns;
}

/* No engine would take it: its client tries again when the first comes back. */
int sim_nowhere(struct sim *s, uint32_t index)
{
	uint64_t back_ns = sim_back_ns(s);

	return back_ns == MODEL_NEVER ? -E2BIG : ask_again(s, index, back_ns);
}
