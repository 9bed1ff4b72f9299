/* An arm's play over time as its file tells it, read once for the charts that show it. */
#ifndef TURNWARD_BENCH_REPORT_TIMELINE_H
#define TURNWARD_BENCH_REPORT_TIMELINE_H

#include "bench/report.h"

enum {
	TIMELINE_ENGINES_MAX = 64,
	TIMELINE_CELLS = 200, /* on paper; more points are averaged */
};

struct timeline {
	size_t engines, cells;
	double cell_s; /* how long a cell is */
	float value[TIMELINE_ENGINES_MAX][TIMELINE_CELLS];
	double mean, most;
};

/* Zero engines where the file has none. `cells`: most of an engine, at most TIMELINE_CELLS. */
void timeline_read(struct timeline *ret, const struct report_arm *arm, const char *series,
		   size_t cells);
/* So many cells that `rows` engines in all make a picture of bounded size. */
size_t timeline_cells_for(size_t rows);
/* How much of the time is worth paper: up to the end of the longest play of an arm that has a
 * style. 0 without any timeline. */
double timeline_shown_s(const struct report_doc *doc);
/* The seed that timelines are of, NaN = unknown. */
double timeline_seed(const struct report_doc *doc);

#endif
