/* Looks on while an arm is played: queues at growing distances of time, pieces, outages. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench/replay_detail.h"

static const uint64_t first_step_ns = 250000000;

int detail_watch_new(struct detail_watch **ret_watch, unsigned points, unsigned engines)
{
	struct detail_watch *w = calloc(1, sizeof(*w));
	int err = 0;

	assert(points >= 2 && points <= DETAIL_POINTS_MAX && engines > 0);
	if (!w)
		return -ENOMEM;
	w->points = points - points % 2;
	w->engines = engines;
	for (int i = 0; i < DETAIL_SERIES_NR; i++) {
		w->series[i] = calloc((size_t)w->points * engines, sizeof(float));
		err = w->series[i] ? err : -ENOMEM;
	}
	if (err) {
		detail_watch_free(w);
		return err;
	}
	*ret_watch = w;
	return 0;
}

void detail_watch_free(struct detail_watch *w)
{
	if (!w)
		return;
	for (int i = 0; i < DETAIL_SERIES_NR; i++)
		free(w->series[i]);
	free(w->pieces.mark);
	free(w->outages.mark);
	free(w);
}

void detail_watch_begin(struct detail_watch *w, uint64_t begin_ns)
{
	w->begin_ns = begin_ns;
	w->step_ns = first_step_ns;
	w->next_ns = begin_ns + w->step_ns;
	w->nr = 0;
}

int detail_watch_due(const struct detail_watch *w, uint64_t now_ns)
{
	return w && w->next_ns < now_ns;
}

/* Full: neighbours become one, the distance doubles. */
static void halve(struct detail_watch *w)
{
	for (int i = 0; i < DETAIL_SERIES_NR; i++)
		for (size_t p = 0; p < w->nr / 2; p++)
			for (size_t e = 0; e < w->engines; e++) {
				float *v = w->series[i];

				v[p * w->engines + e] = (v[2 * p * w->engines + e] +
							 v[(2 * p + 1) * w->engines + e]) /
							2;
			}
	w->nr /= 2;
	w->step_ns *= 2;
}

void detail_watch_point(struct detail_watch *w, const float (*value)[DETAIL_SERIES_NR])
{
	assert(w->nr < w->points);
	for (int i = 0; i < DETAIL_SERIES_NR; i++)
		for (size_t e = 0; e < w->engines; e++)
			w->series[i][w->nr * w->engines + e] = value[e][i];
	w->nr++;
	if (w->nr == w->points)
		halve(w);
	w->next_ns = w->begin_ns + (w->nr + 1) * w->step_ns;
}

static void keep(struct detail_watch *w, struct detail_marks *marks, struct detail_mark mark)
{
	marks->total++;
	if (marks->nr == DETAIL_MARKS_MAX || w->err)
		return;
	if (marks->nr == marks->room) {
		size_t room = marks->room ? 2 * marks->room : 64;
		struct detail_mark *grown = realloc(marks->mark, room * sizeof(*grown));

		if (!grown) {
			w->err = -ENOMEM;
			return;
		}
		marks->mark = grown;
		marks->room = room;
	}
	marks->mark[marks->nr++] = mark;
}

static double since_s(const struct detail_watch *w, uint64_t at_ns)
{
	return (double)(at_ns - w->begin_ns) * 1e-9;
}

void detail_watch_piece(struct detail_watch *w, uint64_t now_ns, uint32_t index, unsigned engine,
			uint32_t tokens)
{
	if (w)
		keep(w, &w->pieces,
		     (struct detail_mark){ .at_s = since_s(w, now_ns),
					   .index = index,
					   .tokens = tokens,
					   .engine = (int16_t)engine });
}

void detail_watch_outage(struct detail_watch *w, enum detail_outage kind, unsigned engine,
			 uint64_t from_ns, uint64_t until_ns)
{
	if (w)
		keep(w, &w->outages,
		     (struct detail_mark){ .at_s = since_s(w, from_ns),
					   .until_s = since_s(w, until_ns),
					   .index = kind,
					   .engine = (int16_t)engine });
}
