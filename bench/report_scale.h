/* Axes: where a value lies on paper, and which values are worth a tick. Pure arithmetic. */
#ifndef TURNWARD_BENCH_REPORT_SCALE_H
#define TURNWARD_BENCH_REPORT_SCALE_H

#include <stdbool.h>
#include <stddef.h>

enum { SCALE_TICKS_MAX = 40, SCALE_LABEL_MAX = 32 };

struct scale {
	double min, max; /* of the values: round numbers, min < max */
	double from, to; /* where they lie on paper; to < from on an upward axis */
	bool log;
};

/*
 * A scale that holds [min, max], widened to round numbers (1, 2, 5 times a power of ten). Whatever
 * is given, something sensible comes out: values that are equal, none at all (NaN), zeros on a log
 * axis.
 */
struct scale scale_make(double min, double max, bool log, double from, double to);

/* On paper; values outside lie on the edge. */
double scale_at(const struct scale *s, double value);

/* Round values within the scale, rising, at least `gap` apart on paper; their number. */
size_t scale_ticks(const struct scale *s, double gap, double ret_tick[SCALE_TICKS_MAX]);

/* "0.05", "20", "50k", "2M". */
const char *scale_label(char buf[SCALE_LABEL_MAX], double value);

/* The greatest 1, 2 or 5 times a power of ten that is at most `value` (> 0), and the least at
 * least. */
double scale_round_down(double value);
double scale_round_up(double value);

#endif
