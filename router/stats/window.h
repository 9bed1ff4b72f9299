/*
 * Quantiles of what happened lately: a ring of samples with their times beside a histogram of
 * exactly those that are young enough. Adding, expiring and asking cost no allocation and no clock.
 */
#ifndef TURNWARD_ROUTER_STATS_WINDOW_H
#define TURNWARD_ROUTER_STATS_WINDOW_H

#include <stdint.h>

#include "router/stats/hist.h"

enum { WINDOW_SAMPLES = 1024 }; /* a power of two; when more come within the span the oldest go */

/* All-zero is empty; about 22 KB, the caller's memory. */
struct window {
	struct hist hist;
	uint64_t head, tail; /* samples ever added, ever expired */
	struct {
		uint64_t ns;
		double value;
	} samples[WINDOW_SAMPLES];
};

/* Times are CLOCK_MONOTONIC and may come slightly out of order. */
void window_add(struct window *window, uint64_t now_ns, double value);

/* Drops what is older than span_ns at now_ns. Call before asking. */
void window_expire(struct window *window, uint64_t now_ns, uint64_t span_ns);

static inline uint64_t window_n(const struct window *window)
{
	return window->head - window->tail;
}

/* Of the samples not expired; 0 when there are none. */
static inline double window_quantile(const struct window *window, double q)
{
	return hist_quantile(&window->hist, q);
}

static inline double window_mean(const struct window *window)
{
	return hist_mean(&window->hist);
}

/* The largest sample not expired; 0 when there are none. */
double window_max(const struct window *window);

#endif
