/* When turns come: recorded arrivals at another rate, open loops closed, closed loops opened. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench/model/model.h"
#include "bench/workload_forms.h"

struct place {
	double at_s;
	uint32_t session, index;
};

static int by_time(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	if (x->at_s != y->at_s)
		return x->at_s < y->at_s ? -1 : 1;
	return x->index < y->index ? -1 : 1;
}

static int by_session(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	if (x->session != y->session)
		return x->session < y->session ? -1 : 1;
	return x->index < y->index ? -1 : 1;
}

static int reorder(struct workload *w, int (*before)(const void *, const void *))
{
	struct place *place = malloc((w->turns + 1) * sizeof(*place));
	struct workload_turn *turn = malloc((w->turns + 1) * sizeof(*turn));

	if (!place || !turn) {
		free(place);
		free(turn);
		return -ENOMEM;
	}
	for (size_t i = 0; i < w->turns; i++)
		place[i] = (struct place){ w->turn[i].at_s, w->turn[i].session, (uint32_t)i };
	qsort(place, w->turns, sizeof(*place), before);
	for (size_t i = 0; i < w->turns; i++)
		turn[i] = w->turn[place[i].index];
	free(place);
	free(w->turn);
	w->turn = turn;
	w->turns_room = w->turns + 1;
	return 0;
}

/* Each session's turns counted afresh, in the order in which they stand. */
static void count_turns(struct workload *w)
{
	for (size_t i = 0; i < w->sessions; i++)
		w->session[i].turns = 0;
	for (size_t i = 0; i < w->turns; i++) {
		struct workload_session *session = &w->session[w->turn[i].session];

		if (session->turns == 0)
			session->turn = (uint32_t)i;
		w->turn[i].turn = ++session->turns;
	}
}

int workload_settle(struct workload *w, const struct workload_pick *pick)
{
	double first_s, span_s, factor = 1;
	int err = reorder(w, by_time);

	if (err)
		return err;
	count_turns(w);
	first_s = w->turns ? w->turn[0].at_s : 0;
	span_s = w->turns ? w->turn[w->turns - 1].at_s - first_s : 0;
	if (pick->loop != WORKLOAD_CLOSED && pick->rate > 0 && span_s > 0)
		factor = (double)w->turns / (pick->rate * span_s);
	for (size_t i = 0; i < w->turns; i++)
		w->turn[i].at_s = (w->turn[i].at_s - first_s) * factor;
	return 0;
}

/* Sessions begin when they did, or at the rate asked for in the rhythm in which they did. */
static void begin_sessions(struct workload *w, const struct workload_pick *pick)
{
	double last_s = 0, factor = 1;

	for (size_t i = 0; i < w->sessions; i++) {
		struct workload_session *session = &w->session[i];

		session->start_s = session->turns ? w->turn[session->turn].at_s : 0;
		last_s = session->start_s > last_s ? session->start_s : last_s;
	}
	if (pick->rate > 0 && last_s > 0)
		factor = (double)w->sessions / (pick->rate * last_s);
	for (size_t i = 0; i < w->sessions; i++)
		w->session[i].start_s *= factor;
}

void workload_think(struct workload *w, const struct workload_pick *pick)
{
	uint64_t random = workload_key(pick->seed, 4);

	for (size_t i = 0; i < w->turns && pick->think_s >= 0; i++)
		if (w->turn[i].turn > 1)
			w->turn[i].think_s = workload_exponential(&random, pick->think_s);
}

int workload_close(struct workload *w, const struct workload_pick *pick)
{
	double before_s = 0;
	int err = reorder(w, by_session);

	if (err)
		return err;
	count_turns(w);
	begin_sessions(w, pick);
	for (size_t i = 0; i < w->turns; i++) {
		struct workload_turn *turn = &w->turn[i];
		double at_s = turn->at_s, gap_s = at_s - before_s;

		before_s = at_s;
		turn->at_s = -1;
		if (turn->turn == 1)
			continue;
		turn->think_s = gap_s < pick->think_max_s ? gap_s : pick->think_max_s;
	}
	workload_think(w, pick);
	return 0;
}

void workload_open(struct workload *w, const struct model_profile *profile)
{
	double at_s = 0;

	profile = profile ? profile : model_profile_at(0);
	for (size_t i = 0; i < w->turns; i++) {
		struct workload_turn *turn = &w->turn[i];
		double context = turn->prompt_tokens + 0.5 * turn->output_tokens;

		at_s = turn->turn == 1 ? w->session[turn->session].start_s : at_s + turn->think_s;
		turn->at_s = at_s;
		at_s += model_prefill_s(profile, NULL, turn->ideal_hit_tokens,
					turn->prompt_tokens) +
			(turn->output_tokens - 1) * model_iteration_s(profile, 1, 0, context);
	}
}
