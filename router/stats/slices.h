/*
 * Quantiles of what happened lately, however much that was: a ring of time slices, each a
 * histogram, beside their sum. A slice leaves as a whole, so a sample counts for the span less at
 * most one slice. window.h is exact to the sample, and holds a thousand.
 */
#ifndef TURNWARD_ROUTER_STATS_SLICES_H
#define TURNWARD_ROUTER_STATS_SLICES_H

#include <stdint.h>

#include "router/stats/hist.h"

enum { SLICES_NR = 10 };

/* After slices_init(); about 62 KB, the caller's memory. */
struct slices {
	struct hist total; /* of the slices below; its extremes are theirs */
	struct hist slice[SLICES_NR];
	uint64_t slice_ns; /* span / SLICES_NR */
	uint64_t newest;   /* number of the youngest slice since time 0 */
};

/* Of zeroed memory, or of slices in use: empties them. */
void slices_init(struct slices *slices, uint64_t span_ns);

/* Times are CLOCK_MONOTONIC; a sample older than the youngest slice falls into that one. */
void slices_add(struct slices *slices, uint64_t now_ns, double value);

/* Drops the slices that are over at now_ns. Call before asking `total`. */
void slices_expire(struct slices *slices, uint64_t now_ns);

#endif
