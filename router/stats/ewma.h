/* Exponentially weighted means: one by sample, one by time, both started by their first sample. */
#ifndef TURNWARD_ROUTER_STATS_EWMA_H
#define TURNWARD_ROUTER_STATS_EWMA_H

#include <math.h>
#include <stdint.h>

/* All-zero is empty. */
struct ewma {
	double value;
	uint64_t last_ns;
	uint64_t n;
};

/* Each sample weighs alpha (0..1), but never less than a plain mean's 1/n: no slow start. */
static inline void ewma_add(struct ewma *ewma, double sample, double alpha)
{
	double weight = 1.0 / (double)(ewma->n + 1);

	if (!isfinite(sample))
		return;
	if (weight < alpha)
		weight = alpha;
	ewma->value += weight * (sample - ewma->value);
	ewma->n++;
}

/* What was known fades by half in half_life_s, however many samples came. */
static inline void ewma_add_timed(struct ewma *ewma, double sample, uint64_t now_ns,
				  double half_life_s)
{
	double elapsed_s = now_ns > ewma->last_ns ? (double)(now_ns - ewma->last_ns) * 1e-9 : 0;
	double alpha = 1 - exp2(-elapsed_s / half_life_s);

	if (!isfinite(sample))
		return;
	ewma_add(ewma, sample, alpha);
	ewma->last_ns = now_ns > ewma->last_ns ? now_ns : ewma->last_ns;
}

#endif
