/* What the model alone says of a live run's requests: same prompts, same arrivals, virtual time. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/live.h"
#include "bench/model/model.h"
#include "shm/base/clock.h"
#include "shm/base/scoped.h"

struct prediction {
	double ttft_s, e2e_s;
};

static uint64_t model_time(const struct live_run *run, uint64_t wall_ns)
{
	return (uint64_t)((double)(wall_ns - run->begin_ns) * run->options->speed);
}

static int submit(struct model *m, const struct live_run *run, size_t i)
{
	const struct live_request *r = &run->request[i];
	const struct model_submission s = { .tag = i,
					    .prompt = r->ids,
					    .prompt_tokens = r->prompt_tokens,
					    .output_tokens = r->output_tokens,
					    .output_seed = i };
	struct model_request *request;

	return model_submit(m, &s, model_time(run, r->start_ns), &request);
}

static void take(const struct live_run *run, const struct model_event *event,
		 struct prediction *predicted)
{
	double since_s = ((double)event->at_ns -
			  (double)model_time(run, run->request[event->tag].start_ns)) *
			 1e-9;

	if (event->kind == MODEL_TOKEN && event->index == 0)
		predicted[event->tag].ttft_s = since_s;
	else if (event->kind == MODEL_FINISHED)
		predicted[event->tag].e2e_s = since_s;
}

/* Steps the model through all arrivals, which are in order of time. */
static int predict(const struct live_run *run, struct model *m, struct prediction *predicted)
{
	uint64_t now_ns = 0, end_ns = MODEL_NEVER;
	const struct model_event *events;
	size_t next = 0;

	while (next < run->requests || end_ns != MODEL_NEVER) {
		uint64_t due_ns = next < run->requests
					  ? model_time(run, run->request[next].start_ns)
					  : MODEL_NEVER;

		if (due_ns <= end_ns && next < run->requests) {
			int err = submit(m, run, next++);

			if (err)
				return err;
			now_ns = due_ns;
		} else {
			size_t n = model_end(m, &events);

			now_ns = end_ns;
			for (size_t i = 0; i < n; i++)
				take(run, &events[i], predicted);
			end_ns = MODEL_NEVER;
		}
		if (end_ns == MODEL_NEVER)
			end_ns = model_begin(m, now_ns);
	}
	return 0;
}

static void compare(const char *name, double *live, double *model, size_t nr)
{
	double live_sum = 0, model_sum = 0;
	scoped(free_drop) double *off = calloc(nr + 1, sizeof(*off));

	if (!off)
		return;
	for (size_t i = 0; i < nr; i++) {
		off[i] = fabs(live[i] - model[i]) / fmax(model[i], 1e-9);
		live_sum += live[i];
		model_sum += model[i];
	}
	printf("%s: mean %.4f s live, %.4f s model (%+.2f %%); one request differs by p50 %.2f %%, "
	       "p90 %.2f %%\n",
	       name, live_sum / (double)nr, model_sum / (double)nr,
	       100 * (live_sum / model_sum - 1), 100 * live_quantile(off, nr, 0.5),
	       100 * live_quantile(off, nr, 0.9));
}

static void compare_all(const struct live_run *run, const struct prediction *predicted)
{
	scoped(free_drop) double *room = calloc(4 * run->requests + 1, sizeof(*room));
	double *live_ttft = room, *live_e2e = room + run->requests;
	double *model_ttft = live_e2e + run->requests, *model_e2e = model_ttft + run->requests;
	size_t nr = 0;

	for (size_t i = 0; room && i < run->requests; i++) {
		const struct live_request *r = &run->request[i];

		if (r->failure != LIVE_none || !r->end_ns)
			continue;
		live_ttft[nr] = (double)(r->first_ns - r->start_ns) * 1e-9 * run->options->speed;
		live_e2e[nr] = (double)(r->end_ns - r->start_ns) * 1e-9 * run->options->speed;
		model_ttft[nr] = predicted[i].ttft_s;
		model_e2e[nr++] = predicted[i].e2e_s;
	}
	if (nr == 0)
		return;
	compare("TTFT", live_ttft, model_ttft, nr);
	compare("E2E ", live_e2e, model_e2e, nr);
}

int live_verify(const struct live_run *run)
{
	scoped(free_drop) struct prediction *predicted =
		calloc(run->requests + 1, sizeof(*predicted));
	struct model *m = NULL;
	int err = predicted ? model_new(&m, model_profile_at(0), NULL) : -ENOMEM;

	for (size_t i = 0; !err && i < run->requests; i++)
		if (!run->request[i].ids)
			err = -EINVAL;
	if (!err)
		err = predict(run, m, predicted);
	if (!err)
		compare_all(run, predicted);
	else
		fprintf(stderr, "turnward-bench live: the model took not every request (%d)\n",
			err);
	model_free(m);
	return err;
}
