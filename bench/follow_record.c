/* What the router saw in the run that is followed, from its recording, brought to model time. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/follow.h"
#include "router/journal/record.h"
#include "router/ledger/ledger.h"

struct pulling {
	struct record_reader reader;
	int fd;
};

static long pull(void *ctx, void *into, size_t room)
{
	const struct pulling *p = ctx;
	ssize_t n;

	do
		n = read(p->fd, into, room);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

/* Times that pass `speed` times faster than life, as they would have passed there. */
static void request_slow(struct policy_request *q, double speed)
{
	if (q->since_move_s > 0)
		q->since_move_s *= (float)speed;
}

static void engine_slow(struct policy_engine *e, double speed)
{
	float *const time_s[] = {
		&e->pending_prefill_s, &e->step_rest_s, &e->decode_iteration_s, &e->age_s,
		&e->fresh_s,           &e->penalty_s,   &e->recent_ttft_s,      &e->oldest_wait_s
	};

	for (size_t i = 0; i < sizeof(time_s) / sizeof(time_s[0]); i++)
		*time_s[i] *= (float)speed;
	e->prefill_tokens_per_s /= (float)speed;
}

static int turn_of(const struct follow *f, const char *id)
{
	for (size_t i = 0; i < f->workload.turns; i++)
		if (strcmp(f->turn[i].id, id) == 0)
			return (int)i;
	return -1;
}

/* place[i]: where the recording's engine i stands here. Engines that got nothing are new. */
static int places(struct follow *f, const struct journal_view *view, int place[STATE_ENGINES_MAX])
{
	unsigned nr = (unsigned)view->decision->engines_nr;

	for (unsigned i = 0; i < nr; i++) {
		place[i] = -1;
		for (unsigned k = 0; k < f->engines; k++)
			if (strcmp(f->name[k], view->names[i].name) == 0)
				place[i] = (int)k;
		if (place[i] >= 0)
			continue;
		if (f->engines == STATE_ENGINES_MAX)
			return -EINVAL;
		snprintf(f->name[f->engines], FOLLOW_NAME_MAX, "%s", view->names[i].name);
		place[i] = (int)f->engines++;
	}
	return 0;
}

static int index_at(const int *place, unsigned nr, int32_t index)
{
	return index >= 0 && (unsigned)index < nr ? place[index] : -1;
}

/* The last decision of a request is the one that was carried out. */
static int decision_take(struct follow *f, const struct journal_view *view)
{
	const struct journal_decision *d = view->decision;
	int place[STATE_ENGINES_MAX], i = turn_of(f, d->head.id);
	unsigned nr = (unsigned)d->engines_nr;
	struct follow_turn *turn;

	if (i < 0)
		return 0;
	turn = &f->turn[i];
	if (places(f, view, place) < 0 || index_at(place, nr, view->choice.engine) != turn->engine)
		return 0;
	if (f->decisions == 0) {
		f->params = d->params;
		policy_params_scale(&f->params, 1 / f->speed);
	}
	f->decisions += !turn->recorded;
	turn->recorded = 1;
	turn->request = d->request;
	turn->request.home = index_at(place, nr, d->request.home);
	request_slow(&turn->request, f->speed);
	turn->engines = f->seen + (size_t)i * STATE_ENGINES_MAX;
	for (unsigned k = 0; k < nr; k++) {
		struct policy_engine *e = &turn->engines[place[k]];

		*e = view->engines[k];
		engine_slow(e, f->speed);
		e->id = (uint32_t)place[k];
		if (e->fresh_s > 0 && f->sample_s == 0) {
			struct ledger_params params;

			ledger_params_init(&params);
			f->sample_s = (double)e->fresh_s / params.fresh_periods;
		}
	}
	return 0;
}

static int frames_take(struct follow *f, struct pulling *p, char why[FOLLOW_WHY_MAX])
{
	struct record_item item;
	struct journal_view view;
	int more, err = 0;

	while (!err && (more = record_next(&p->reader, &item)) > 0)
		if (item.kind == RECORD_JOURNAL &&
		    journal_is(item.payload, item.length, JOURNAL_DECISION, NULL) &&
		    journal_decision_read(item.payload, item.length, &view) == 0)
			err = decision_take(f, &view);
	if (!err && more < 0)
		err = more;
	if (!err && f->decisions == 0) {
		snprintf(why, FOLLOW_WHY_MAX, "no decision of the trace's requests is in it");
		err = -EINVAL;
	}
	return err;
}

int follow_recording(struct follow *f, const char *path, char why[FOLLOW_WHY_MAX])
{
	struct pulling *p = calloc(1, sizeof(*p));
	char error[RECORD_ERROR_MAX] = "";
	int err = -ENOMEM;

	snprintf(why, FOLLOW_WHY_MAX, "out of memory");
	f->seen = calloc(f->workload.turns * STATE_ENGINES_MAX, sizeof(*f->seen));
	if (p && f->seen) {
		p->fd = open(path, O_RDONLY | O_CLOEXEC);
		err = p->fd < 0 ? -errno : 0;
		snprintf(why, FOLLOW_WHY_MAX, "%s", strerror(-err));
	}
	if (!err) {
		err = record_open(&p->reader, pull, p, "turnward-bench", error);
		snprintf(why, FOLLOW_WHY_MAX, "%.*s", FOLLOW_WHY_MAX - 1, error);
		err = err ? err : frames_take(f, p, why);
		close(p->fd);
	}
	free(p);
	return err;
}
