/* Histograms keep every value to 1.6 %, windows speak of exactly what is young enough. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "router/stats/ewma.h"
#include "router/stats/hist.h"
#include "router/stats/window.h"
#include "tests/lib/unit.h"

enum { SAMPLES = 20000 };

static struct hist hist, other;
static struct window window;
static double sorted[SAMPLES];

static int set_up(void **state)
{
	hist = other = (struct hist){ 0 };
	window = (struct window){ 0 };
	return 0;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double uniform(unsigned *seed)
{
	return ((double)rand_r(seed) + 0.5) / ((double)RAND_MAX + 1);
}

static double exact_quantile(double q, uint32_t n)
{
	double rank = ceil(q * n);

	return sorted[rank < 1 ? 0 : (uint32_t)rank - 1];
}

static int close_to(double value, double want, double share)
{
	return fabs(value - want) <= share * fabs(want);
}

static void every_value_in_range_is_kept_to_two_percent(void **state)
{
	for (double v = ldexp(1, HIST_OCTAVE_MIN); v < ldexp(1, HIST_OCTAVE_MAX); v *= 1.0031)
		assert_true(close_to(hist_bucket_value(hist_bucket(v)), v, 1.0 / 64));
}

static void buckets_rise_with_values_and_border_each_other(void **state)
{
	for (uint32_t b = 1; b < HIST_BUCKETS; b++) {
		assert_true(hist_bucket_value(b) > hist_bucket_value(b - 1));
		assert_int_equal(hist_bucket(hist_bucket_value(b)), b);
	}
}

static void what_is_no_duration_does_no_harm(void **state)
{
	static const double odd[] = { 0, -1, NAN, INFINITY, -INFINITY, 1e300, 1e-300 };

	for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++)
		hist_add(&hist, odd[i]);
	hist_add(&hist, 2);

	assert_int_equal(hist.n, 8);
	assert_true(isfinite(hist_mean(&hist)));
	assert_true(isfinite(hist_quantile(&hist, 1)));
	for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++)
		hist_remove(&hist, odd[i]);
	assert_int_equal(hist.n, 1);
	assert_true(close_to(hist_mean(&hist), 2, 1e-6));
}

static void an_empty_histogram_says_zero(void **state)
{
	assert_true(hist_quantile(&hist, 0.5) == 0);
	assert_true(hist_mean(&hist) == 0);
	hist_remove(&hist, 3);
	assert_int_equal(hist.n, 0);
}

static void quantiles_agree_with_sorting(void **state)
{
	static const double q[] = { 0, 0.01, 0.5, 0.9, 0.99, 0.999, 1 };
	double values[7], sum = 0;
	unsigned seed = 3;

	for (int i = 0; i < SAMPLES; i++) {
		sorted[i] = exp(8 * uniform(&seed) - 5);
		sum += sorted[i];
		hist_add(&hist, sorted[i]);
	}
	qsort(sorted, SAMPLES, sizeof(double), by_value);
	hist_quantiles(&hist, q, 7, values);

	for (int i = 0; i < 7; i++)
		assert_true(close_to(values[i], exact_quantile(q[i], SAMPLES), 0.0157));
	assert_true(close_to(hist_mean(&hist), sum / SAMPLES, 1e-9));
	assert_true(hist.min == sorted[0] && hist.max == sorted[SAMPLES - 1]);
}

static void few_samples_are_told_by_nearest_rank(void **state)
{
	hist_add(&hist, 1);
	assert_true(hist_quantile(&hist, 0.99) == 1);
	hist_add(&hist, 10);
	assert_true(close_to(hist_quantile(&hist, 0.5), 1, 0.016));
	assert_true(close_to(hist_quantile(&hist, 0.51), 10, 0.016));
}

static void merging_is_adding_all(void **state)
{
	struct hist all = { 0 };
	unsigned seed = 5;

	for (int i = 0; i < 1000; i++) {
		double v = uniform(&seed) * 7;

		hist_add(i % 3 ? &hist : &other, v);
		hist_add(&all, v);
	}
	hist_merge(&hist, &other);
	hist_merge(&hist, &(struct hist){ 0 });

	assert_int_equal(hist.n, all.n);
	assert_memory_equal(hist.counts, all.counts, sizeof(all.counts));
	assert_true(hist.min == all.min && hist.max == all.max);
	assert_true(close_to(hist.sum, all.sum, 1e-12));
}

static void values_above_a_limit_are_counted(void **state)
{
	for (int i = 1; i <= 100; i++)
		hist_add(&hist, i);
	assert_int_equal(hist_count_above(&hist, 1e9), 0);
	assert_in_range(hist_count_above(&hist, 50), 48, 50);
	assert_int_equal(hist_count_above(&hist, 0), 100);
}

/* What a window of `span` must say, from all samples ever. */
static uint32_t young(const double *values, const uint64_t *times, uint32_t n, uint64_t limit)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < n; i++)
		if (times[i] >= limit)
			sorted[count++] = values[i];
	qsort(sorted, count, sizeof(double), by_value);
	return count;
}

static void a_window_speaks_of_the_young_samples_only(void **state)
{
	static double values[2000];
	static uint64_t times[2000];
	uint64_t now = 1000;
	unsigned seed = 8;

	for (uint32_t i = 0; i < 2000; i++) {
		now += (uint64_t)rand_r(&seed) % 20;
		values[i] = exp(6 * uniform(&seed) - 3);
		times[i] = now;
		window_add(&window, now, values[i]);
		window_expire(&window, now, 5000);
		if (i % 50)
			continue;
		uint32_t n = young(values, times, i + 1, now > 5000 ? now - 5000 : 0);

		assert_int_equal(window_n(&window), n);
		assert_true(
			close_to(window_quantile(&window, 0.9), exact_quantile(0.9, n), 0.0157));
		assert_true(window_max(&window) == sorted[n - 1]);
	}
	window_expire(&window, now + 6000, 5000);
	assert_int_equal(window_n(&window), 0);
	assert_true(window_quantile(&window, 0.5) == 0);
	assert_true(window_mean(&window) == 0);
}

static void a_window_that_overflows_keeps_the_newest(void **state)
{
	for (uint64_t i = 0; i < 3 * WINDOW_SAMPLES; i++)
		window_add(&window, 1, i < 2 * WINDOW_SAMPLES ? 100 : 1);

	assert_int_equal(window_n(&window), WINDOW_SAMPLES);
	assert_true(window_mean(&window) == 1);
	assert_true(window_max(&window) == 1);
}

static void an_absurd_sample_leaves_no_trace_when_it_has_gone(void **state)
{
	window_add(&window, 1, 1e300);
	window_add(&window, 2, 3);
	window_add(&window, 2, 5);
	window_expire(&window, 3, 1);

	assert_int_equal(window_n(&window), 2);
	assert_true(close_to(window_mean(&window), 4, 1e-6));
}

static void a_mean_starts_at_its_first_sample_and_follows(void **state)
{
	struct ewma e = { 0 };

	ewma_add(&e, 10, 0.1);
	assert_true(e.value == 10);
	ewma_add(&e, 20, 0.1);
	assert_true(e.value == 15); /* a plain mean while there are few */
	ewma_add(&e, NAN, 0.1);
	assert_true(e.value == 15);
	for (int i = 0; i < 100; i++)
		ewma_add(&e, 2, 0.1);
	assert_true(fabs(e.value - 2) < 0.01);
}

static void a_timed_mean_fades_by_half_in_its_half_life(void **state)
{
	struct ewma e = { .value = 8, .n = 1000000, .last_ns = 1000000000 };

	ewma_add_timed(&e, 0, 3000000000, 2);
	assert_true(close_to(e.value, 4, 1e-9));
	ewma_add_timed(&e, 0, 1000000000, 2); /* an older sample does not turn the clock back */
	assert_true(close_to(e.value, 4, 1e-5));
	assert_true(e.last_ns == 3000000000);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, set_up)
	const struct CMUnitTest tests[] = {
		TEST(every_value_in_range_is_kept_to_two_percent),
		TEST(buckets_rise_with_values_and_border_each_other),
		TEST(what_is_no_duration_does_no_harm),
		TEST(an_empty_histogram_says_zero),
		TEST(quantiles_agree_with_sorting),
		TEST(few_samples_are_told_by_nearest_rank),
		TEST(merging_is_adding_all),
		TEST(values_above_a_limit_are_counted),
		TEST(a_window_speaks_of_the_young_samples_only),
		TEST(a_window_that_overflows_keeps_the_newest),
		TEST(an_absurd_sample_leaves_no_trace_when_it_has_gone),
		TEST(a_mean_starts_at_its_first_sample_and_follows),
		TEST(a_timed_mean_fades_by_half_in_its_half_life),
	};

	return cmocka_run_group_tests_name("stats", tests, NULL, NULL);
}
