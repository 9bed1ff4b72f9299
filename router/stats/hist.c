/* The logarithmic histogram: a double's exponent and top mantissa bits are its bucket. */
#include "router/stats/hist.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum {
	MANTISSA_BITS = 52,
	EXPONENT_BIAS = 1023,
	/* Bucket 0 in the numbering of (exponent, top mantissa bits) that the bits of a double
	   have. */
	BUCKET_BASE = (EXPONENT_BIAS + HIST_OCTAVE_MIN) << HIST_SUB_BITS,
};
static_assert(HIST_BUCKETS % 2 == 0, "no padding after the counts");

uint32_t hist_bucket(double value)
{
	uint64_t bits;

	if (!(value >= ldexp(1, HIST_OCTAVE_MIN)))
		return 0;
	if (value >= ldexp(1, HIST_OCTAVE_MAX))
		return HIST_BUCKETS - 1;
	memcpy(&bits, &value, sizeof bits);
	return (uint32_t)(bits >> (MANTISSA_BITS - HIST_SUB_BITS)) - BUCKET_BASE;
}

double hist_bucket_value(uint32_t bucket)
{
	uint64_t bits = (uint64_t)(bucket + BUCKET_BASE) << (MANTISSA_BITS - HIST_SUB_BITS);
	double low;

	assert(bucket < HIST_BUCKETS);
	bits |= 1ull << (MANTISSA_BITS - HIST_SUB_BITS - 1); /* half a bucket up */
	memcpy(&low, &bits, sizeof low);
	return low;
}

/* What a value adds to the sum: outside the range its bucket's, or one absurd value would leave
 * nothing of the others' digits. */
static double summed(double value, uint32_t bucket)
{
	return value >= 0 && value < ldexp(1, HIST_OCTAVE_MAX) ? value : hist_bucket_value(bucket);
}

void hist_add(struct hist *hist, double value)
{
	uint32_t bucket = hist_bucket(value);

	value = summed(value, bucket);
	if (hist->n == 0 || value < hist->min)
		hist->min = value;
	if (hist->n == 0 || value > hist->max)
		hist->max = value;
	hist->counts[bucket]++;
	hist->sum += value;
	hist->n++;
}

void hist_remove(struct hist *hist, double value)
{
	uint32_t bucket = hist_bucket(value);

	if (hist->counts[bucket] == 0)
		return;
	hist->counts[bucket]--;
	hist->sum -= summed(value, bucket);
	if (--hist->n == 0)
		hist->sum = 0; /* what rounding has left behind */
}

void hist_merge(struct hist *into, const struct hist *from)
{
	if (from->n == 0)
		return;
	if (into->n == 0 || from->min < into->min)
		into->min = from->min;
	if (into->n == 0 || from->max > into->max)
		into->max = from->max;
	for (uint32_t i = 0; i < HIST_BUCKETS; i++)
		into->counts[i] += from->counts[i];
	into->sum += from->sum;
	into->n += from->n;
}

void hist_reset(struct hist *hist)
{
	*hist = (struct hist){ 0 };
}

/* What is asked of a bucket's middle never leaves what was really added. */
static double within(const struct hist *hist, double value)
{
	if (value < hist->min)
		return hist->min;
	return value > hist->max ? hist->max : value;
}

void hist_quantiles(const struct hist *hist, const double *q, uint32_t n, double *ret_values)
{
	uint64_t below = 0;
	uint32_t bucket = hist->n ? hist_bucket(hist->min) : HIST_BUCKETS; /* none lies below */

	for (uint32_t i = 0; i < n; i++) {
		double rank = ceil(q[i] * (double)hist->n);

		assert(i == 0 || q[i] >= q[i - 1]);
		rank = rank < 1 ? 1 : rank;
		while (bucket < HIST_BUCKETS && (double)(below + hist->counts[bucket]) < rank)
			below += hist->counts[bucket++];
		if (hist->n == 0)
			ret_values[i] = 0;
		else
			ret_values[i] = bucket < HIST_BUCKETS
						? within(hist, hist_bucket_value(bucket))
						: hist->max;
	}
}

double hist_quantile(const struct hist *hist, double q)
{
	double value;

	hist_quantiles(hist, &q, 1, &value);
	return value;
}

double hist_mean(const struct hist *hist)
{
	return hist->n ? hist->sum / (double)hist->n : 0;
}

uint64_t hist_count_above(const struct hist *hist, double limit)
{
	uint64_t above = 0;

	for (uint32_t i = hist_bucket(limit) + 1; i < HIST_BUCKETS; i++)
		above += hist->counts[i];
	return above;
}
