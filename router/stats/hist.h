/*
 * A histogram of positive values over twelve decades, every value kept to within 1.6 %, in fixed
 * memory: 32 buckets per octave, found from the bits of the double. Two of them can be merged.
 */
#ifndef TURNWARD_ROUTER_STATS_HIST_H
#define TURNWARD_ROUTER_STATS_HIST_H

#include <stdint.h>

enum {
	HIST_OCTAVE_MIN = -20, /* values below 2^-20 (a microsecond, in seconds) count as that */
	HIST_OCTAVE_MAX = 24,  /* values from 2^24 on count as just below it */
	HIST_SUB_BITS = 5,     /* 2^5 buckets per octave: half a bucket is at most 1/64 = 1.6 % */
	HIST_BUCKETS = (HIST_OCTAVE_MAX - HIST_OCTAVE_MIN) << HIST_SUB_BITS,
};

/* All-zero is empty. Plain values: may be copied, and lie in shared memory behind a slot. */
struct hist {
	uint64_t n;
	double sum;
	double min, max; /* exact; of everything ever added, also when removed since */
	uint32_t counts[HIST_BUCKETS];
};

/* The bucket a value falls into. Not-a-number, zero and below fall into the lowest. */
uint32_t hist_bucket(double value);

/* The value that stands for a bucket: its middle. */
double hist_bucket_value(uint32_t bucket);

void hist_add(struct hist *hist, double value);

/* Takes out a value that was added; one that was not is ignored. */
void hist_remove(struct hist *hist, double value);

void hist_merge(struct hist *into, const struct hist *from);
void hist_reset(struct hist *hist);

/* The value below which the share q (0..1) lies, nearest rank; 0 when empty. */
double hist_quantile(const struct hist *hist, double q);

/* Several quantiles in one pass; q ascending. */
void hist_quantiles(const struct hist *hist, const double *q, uint32_t n, double *ret_values);

/* Exact up to rounding; 0 when empty. */
double hist_mean(const struct hist *hist);

/* Values above `limit`, to the grain of a bucket. */
uint64_t hist_count_above(const struct hist *hist, double limit);

#endif
