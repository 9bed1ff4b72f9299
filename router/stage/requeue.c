/* When a cold prompt is closed, whom that lets in, and when it is sent again. */
#include "router/stage/requeue.h"

#include <stddef.h>

static uint64_t ns_of(double seconds)
{
	return seconds > 0 ? (uint64_t)((seconds < 1e9 ? seconds : 1e9) * 1e9) : 0;
}

static double greater(double a, double b)
{
	return a > b ? a : b;
}

static struct requeue_engine *engine_of(struct requeue *rq, unsigned engine)
{
	assert(engine < STATE_ENGINES_MAX);
	return &rq->engine[engine];
}

int requeue_may(const struct requeue *rq, unsigned engine, uint64_t now_ns)
{
	assert(engine < STATE_ENGINES_MAX);
	return rq->engine[engine].cold == NULL && rq->engine[engine].off_until_ns <= now_ns;
}

void requeue_sent(struct requeue *rq, struct requeue_cold *cold, unsigned engine,
		  const struct requeue_send *send, uint64_t now_ns)
{
	struct requeue_engine *e = engine_of(rq, engine);

	assert(cold->state == REQUEUE_IDLE || cold->state == REQUEUE_RETURNING);
	assert(e->cold == NULL || e->cold == cold);
	e->cold = cold;
	if (cold->state == REQUEUE_IDLE)
		cold->kept_tokens = 0;
	cold->state = REQUEUE_RUNNING;
	cold->engine = engine;
	cold->uncached_tokens = send->uncached_tokens;
	cold->step_tokens = send->step_tokens;
	cold->going_tokens = send->going_tokens;
	cold->tokens_per_s = send->tokens_per_s;
	cold->step_s = send->step_s;
	cold->sent_ns = now_ns;
	cold->start_ns = send->start_ns > now_ns ? send->start_ns : now_ns;
}

void requeue_over(struct requeue *rq, struct requeue_cold *cold)
{
	if (cold->state == REQUEUE_IDLE)
		return;
	struct requeue_engine *e = engine_of(rq, cold->engine);

	assert(e->cold == cold);
	e->cold = NULL;
	cold->state = REQUEUE_IDLE;
	cold->owed = 0;
}

void requeue_enter(struct requeue *rq, struct requeue_pass *pass, unsigned engine)
{
	struct requeue_engine *e = engine_of(rq, engine);

	assert(!pass->waiting);
	*pass = (struct requeue_pass){ .round = e->round, .engine = engine, .waiting = 1 };
	e->waiting++;
}

void requeue_leave(struct requeue *rq, struct requeue_pass *pass)
{
	if (!pass->waiting)
		return;
	struct requeue_engine *e = engine_of(rq, pass->engine);

	pass->waiting = 0;
	assert(e->waiting > 0);
	e->waiting--;
	/* It waited when the cold one was closed: one fewer to come before that returns. */
	if (e->cold != NULL && e->cold->state == REQUEUE_AWAY && pass->round < e->round &&
	    e->cold->owed > 0)
		e->cold->owed--;
}

static uint32_t computed(const struct requeue_cold *cold, uint64_t now_ns)
{
	double seconds = now_ns > cold->start_ns ? (double)(now_ns - cold->start_ns) * 1e-9 : 0;
	double tokens = seconds * cold->tokens_per_s;

	return tokens < cold->uncached_tokens ? (uint32_t)tokens : cold->uncached_tokens;
}

/* From when on it may be closed, whoever waits. */
static uint64_t ripe_ns(const struct requeue_engine *e, const struct stage_params *params)
{
	double run_s = greater(params->requeue_run_s, e->cold->step_s / 2);
	uint64_t ripe = e->cold->sent_ns + ns_of(run_s);
	uint64_t gap = e->last_close_ns ? e->last_close_ns + ns_of(params->requeue_gap_s) : 0;

	return ripe > gap ? ripe : gap;
}

static int worth_it(const struct requeue_cold *cold, const struct stage_params *params,
		    uint64_t now_ns)
{
	double rest = (double)cold->uncached_tokens - computed(cold, now_ns) - cold->going_tokens;

	return cold->closes + 1 < params->requeue_sends &&
	       rest > params->requeue_rest * cold->step_tokens;
}

static void close_it(struct requeue_engine *e, const struct stage_params *params, uint64_t now_ns)
{
	struct requeue_cold *cold = e->cold;

	cold->state = REQUEUE_AWAY;
	cold->closes++;
	cold->owed = e->waiting;
	cold->computed_tokens = computed(cold, now_ns);
	cold->kept_tokens += cold->computed_tokens;
	cold->resend_by_ns = now_ns + ns_of(params->requeue_patience * cold->step_s);
	e->last_close_ns = now_ns;
	e->round++;
}

enum requeue_action requeue_poll(struct requeue *rq, const struct stage_params *params,
				 unsigned engine, uint64_t now_ns, struct requeue_cold **ret_cold)
{
	struct requeue_engine *e = engine_of(rq, engine);
	struct requeue_cold *cold = e->cold;

	*ret_cold = cold;
	if (cold == NULL)
		return REQUEUE_NOTHING;
	if (cold->state == REQUEUE_AWAY && (cold->owed == 0 || now_ns >= cold->resend_by_ns)) {
		cold->state = REQUEUE_RETURNING;
		cold->owed = 0;
		return REQUEUE_SEND;
	}
	if (cold->state == REQUEUE_RUNNING && e->waiting > 0 && e->off_until_ns <= now_ns &&
	    now_ns >= ripe_ns(e, params) && worth_it(cold, params, now_ns)) {
		close_it(e, params, now_ns);
		return REQUEUE_CLOSE;
	}
	return REQUEUE_NOTHING;
}

uint64_t requeue_due_ns(const struct requeue *rq, const struct stage_params *params,
			unsigned engine)
{
	assert(engine < STATE_ENGINES_MAX);
	const struct requeue_engine *e = &rq->engine[engine];

	if (e->cold == NULL)
		return REQUEUE_NEVER;
	if (e->cold->state == REQUEUE_AWAY)
		return e->cold->resend_by_ns;
	if (e->cold->state == REQUEUE_RUNNING && e->waiting > 0)
		return ripe_ns(e, params);
	return REQUEUE_NEVER;
}

int requeue_kept(struct requeue *rq, const struct stage_params *params,
		 const struct requeue_cold *cold, uint32_t cached_tokens, uint64_t now_ns)
{
	struct requeue_engine *e = engine_of(rq, cold->engine);

	if (cold->closes == 0 || cold->kept_tokens == 0)
		return 0;
	if (cached_tokens >= params->requeue_kept_ratio * cold->kept_tokens) {
		e->lost = 0;
		return 0;
	}
	if (++e->lost < 2)
		return 0;
	e->lost = 0;
	e->off_until_ns = now_ns + ns_of(params->stage_guard_off_s);
	return 1;
}
