/* The waiting room for cold slots, and who is among an engine's cold prompts. */
#include "router/net/staging.h"

#include "router/net/parts.h"
#include "router/route.h"
#include "router/worker.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static const double expects_s = 60;    /* memory of how often short requests come */
static const double overdue_min_s = 1; /* before an engine hangs */

int staging_init(struct worker *w)
{
	struct staging_rules *s = &w->stage;

	s->params = w->set->stage;
	s->admit = w->set->admit;
	s->on = s->params.stage != STAGE_OFF;
	for (uint32_t i = 0; i < w->set->engines_nr; i++)
		s->on |= w->set->engines[i].stage > ENGINE_STAGE_OFF;
	/* However fast the engines are: the machine has hiccups of its own. */
	if (s->params.rescue_overdue_s > 0 && s->params.rescue_overdue_s < overdue_min_s)
		s->params.rescue_overdue_s = overdue_min_s;
	s->room_memory = malloc(admit_size(LIMIT_WAITING_ROOM));
	if (!s->room_memory)
		return -ENOMEM;
	admit_init(&s->room, &s->admit, s->room_memory, LIMIT_WAITING_ROOM);
	return 0;
}

enum stage_mode staging_mode(const struct worker *w, const struct engine *e)
{
	if (e->stage == ENGINE_STAGE_AS_ROUTER)
		return (enum stage_mode)w->stage.params.stage;
	return (enum stage_mode)(e->stage - ENGINE_STAGE_OFF + STAGE_OFF);
}

/* ---- books ---- */

static struct exchange *exchange_of(struct admit_entry *entry)
{
	return ((struct route_asked *)((char *)entry - offsetof(struct route_asked, wait)))->x;
}

static void hold(struct worker *w, struct exchange *x)
{
	const struct admit_entry *wait = &x->route->asked->wait;

	if (x->held || wait->engine < 0)
		return;
	ledger_held(w->ledger, (unsigned)wait->engine, 1, (int64_t)wait->tokens);
	x->held = 1;
}

void staging_unhold(struct worker *w, struct exchange *x)
{
	const struct admit_entry *wait;

	if (!x->held)
		return;
	wait = &x->route->asked->wait;
	ledger_held(w->ledger, (unsigned)wait->engine, -1, -(int64_t)wait->tokens);
	x->held = 0;
}

void staging_uncold(struct worker *w, struct exchange *x)
{
	requeue_done(w, x);
	if (!x->cold)
		return;
	ledger_cold(w->ledger, x->cold - 1u, -1);
	x->cold = 0;
	w->stage.freed = 1;
}

void staging_answers(struct worker *w, struct exchange *x)
{
	/* By its length: one that has ended has given its slot back. */
	if (!admit_is_cold(&w->stage.admit, x->route->uncached_tokens))
		w->stage.comes[x->engine].began_ns = w->now_ns;
	staging_uncold(w, x);
}

double staging_rate(struct worker *w, unsigned engine, int comes)
{
	double since_s = (double)(w->now_ns - w->stage.comes[engine].ns) * 1e-9;
	double *expects = &w->stage.comes[engine].expects;

	*expects = *expects * exp(-since_s * w->set->time_scale / expects_s) + comes;
	w->stage.comes[engine].ns = w->now_ns;
	return *expects * w->set->time_scale / expects_s;
}

void staging_comes(struct worker *w, struct exchange *x, unsigned engine, uint32_t uncached_tokens)
{
	if (!w->stage.on || !x->generates)
		return;
	if (!admit_is_cold(&w->stage.admit, uncached_tokens)) {
		staging_rate(w, engine, 1);
		return;
	}
	if (staging_mode(w, &w->engines[engine]) == STAGE_OFF)
		return;
	assert(!x->cold);
	ledger_cold(w->ledger, engine, 1);
	x->cold = (uint8_t)(engine + 1);
}

void staging_restarted(struct worker *w, struct engine *e)
{
	e->no_tokeniser = e->no_renderer = 0;
	stage_guard_engine_restarted(&w->stage.guard, e->index);
}

/* ---- waiting ---- */

/* One worker decides for a region (the lock on its `router` file), so its ledger is all of them. */

static void let_go(struct worker *w, struct exchange *x)
{
	struct admit_entry *wait = &x->route->asked->wait;

	if (!wait->waiting)
		return;
	count(&w->counters, COUNTER_cold_waited_us, (w->now_ns - wait->since_ns) / 1000);
	admit_release(&w->stage.room, wait, w->now_ns);
}

int staging_waits(struct worker *w, struct exchange *x, const struct policy_choice *choice,
		  uint32_t uncached_tokens)
{
	const struct admit_params *admit = &w->stage.admit;
	struct engine *e = &w->engines[choice->engine];
	struct admit_entry *wait = &x->route->asked->wait;
	struct ledger_sums sums;
	int takes;

	if (!w->stage.on || !x->generates || !x->complete || staging_mode(w, e) == STAGE_OFF ||
	    !admit_is_cold(admit, uncached_tokens)) {
		let_go(w, x);
		return 0;
	}
	ledger_books_get(w->ledger, e->index, &sums);
	takes = admit_takes_cold(admit, sums.cold_prompts);
	/* Who has just come does not overtake those that wait for this engine. */
	if (takes && (wait->waiting || sums.held == 0)) {
		let_go(w, x);
		return 0;
	}
	if (!wait->waiting) {
		if (admit_enter(&w->stage.room, admit, wait, ADMIT_COLD, choice->class, w->now_ns) <
		    0)
			return -END_OVERLOAD;
		count(&w->counters, COUNTER_cold_waits, 1);
		w->stage.freed |= takes != 0;
	}
	wait->engine = choice->engine;
	wait->tokens = uncached_tokens;
	hold(w, x);
	return ROUTE_WAIT;
}

static int slot_free(const struct worker *w)
{
	struct ledger_sums sums;

	for (uint32_t i = 0; i < w->engines_nr; i++) {
		ledger_books_get(w->ledger, i, &sums);
		if (admit_takes_cold(&w->stage.admit, sums.cold_prompts))
			return 1;
	}
	return 0;
}

/* Bound late: in the order of service, each counting only those that are ahead of it. */
void staging_let_out(struct worker *w)
{
	struct admit_entry *entry;
	struct admit_walk walk;

	if (!w->stage.freed)
		return;
	w->stage.freed = 0;
	if (!admit_waiting(&w->stage.room, ADMIT_COLD) || !slot_free(w))
		return;
	admit_walk_begin(&walk, &w->stage.room, ADMIT_COLD);
	while ((entry = admit_walk_next(&walk)) != NULL)
		staging_unhold(w, exchange_of(entry));
	admit_walk_begin(&walk, &w->stage.room, ADMIT_COLD);
	while ((entry = admit_walk_next(&walk)) != NULL) {
		struct exchange *x = exchange_of(entry);

		if (slot_free(w))
			conn_step(w, x->conn, CONN_EV_DECIDE, &(struct conn_input){ 0 });
		else
			hold(w, x);
	}
}
