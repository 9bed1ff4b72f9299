/* Reads an arm's play over time, as many points as there is paper for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/report_timeline.h"
#include "shm/base/scoped.h"

#define VALUE_MOST 1e12
#define STEP_MOST  1e9

enum { CELLS_ALL = 60000, TIMELINE_CELLS_LEAST = 15 };

static const char *const any_series[] = { "pending_prefill_tokens", "requests", "kv_used_ratio" };

/* Of a point, in seconds; 0 = there is no timeline. */
static double step_of(const struct report_arm *arm)
{
	double step_s = report_get(&arm->value, "detail.timeline.step_s");

	return step_s > 1 / STEP_MOST && step_s < STEP_MOST ? step_s : 0;
}

/* One engine's points, averaged to cells. */
static void read_engine(struct timeline *t, size_t engine, const struct jread *points,
			double *point, size_t cells)
{
	size_t nr = report_list(points, "", point, HEAT_POINTS_MAX);
	size_t each = (nr + cells - 1) / cells;

	for (size_t i = 0; i < nr; i++) {
		double v = point[i] > 0 ? fmin(point[i], VALUE_MOST) : 0;
		size_t cell = i / each, last = nr - cell * each;

		t->value[engine][cell] += (float)(v / (double)(last < each ? last : each));
		t->mean += v / (double)nr;
		t->most = fmax(t->most, v);
	}
	if (nr && (nr + each - 1) / each > t->cells)
		t->cells = (nr + each - 1) / each;
}

static size_t points_of(const struct jread *list)
{
	struct jread first;

	return jread_get(list, "[0]", &first) == 0 ? jread_count(&first) : 0;
}

void timeline_read(struct timeline *ret, const struct report_arm *arm, const char *series,
		   size_t cells)
{
	char path[REPORT_PATH_MAX];
	struct jread_walk walk;
	struct jread list;

	memset(ret, 0, sizeof(*ret));
	snprintf(path, sizeof(path), "detail.timeline.%s", series);
	double step_s = step_of(arm);

	if (step_s <= 0 || jread_get(&arm->value, path, &list))
		return;
	scoped(free_drop) double *point = malloc(HEAT_POINTS_MAX * sizeof(*point));
	if (!point)
		return;
	size_t points = points_of(&list);

	points = points < HEAT_POINTS_MAX ? points : HEAT_POINTS_MAX;
	ret->cell_s = step_s * (double)((points + cells - 1) / cells);
	jread_walk_begin(&walk, &list);
	while (ret->engines < TIMELINE_ENGINES_MAX && jread_walk_next(&walk))
		read_engine(ret, ret->engines++, &walk.value, point, cells);
	if (ret->engines)
		ret->mean /= (double)ret->engines;
	if (ret->cells == 0)
		ret->engines = 0;
}

size_t timeline_cells_for(size_t rows)
{
	size_t cells = CELLS_ALL / (rows ? rows : 1);

	return cells < TIMELINE_CELLS_LEAST ? TIMELINE_CELLS_LEAST
	       : cells > TIMELINE_CELLS     ? TIMELINE_CELLS
					    : cells;
}

double timeline_shown_s(const struct report_doc *doc)
{
	double end_s = 0;

	for (size_t i = 0; i < doc->arms; i++)
		for (size_t k = 0;
		     doc->arm[i].style >= 0 && k < sizeof(any_series) / sizeof(any_series[0]);
		     k++) {
			double step_s = step_of(&doc->arm[i]);
			char path[REPORT_PATH_MAX];
			struct jread list;

			snprintf(path, sizeof(path), "detail.timeline.%s", any_series[k]);
			if (step_s > 0 && !jread_get(&doc->arm[i].value, path, &list))
				end_s = fmax(end_s, step_s * (double)points_of(&list));
		}
	return end_s;
}

double timeline_seed(const struct report_doc *doc)
{
	for (size_t i = 0; i < doc->arms; i++) {
		double seed = report_get(&doc->arm[i].value, "detail.timeline.seed");

		if (!isnan(seed))
			return seed;
	}
	return NAN;
}
