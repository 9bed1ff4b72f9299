/* The latency record says of the last span what sorting all its samples would, to 5 %. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "router/stats/timing.h"
#include "tests/lib/unit.h"

enum { SAMPLES = 100000 };

#define S 1000000000ull

static struct timing timing;
static struct timing_open nothing, open_now;
static struct latency_record record;
static struct slices slices;
static double sorted[SAMPLES];

static int set_up(void **state)
{
	timing_init(&timing, 30 * S);
	open_now = (struct timing_open){ 0 };
	record = (struct latency_record){ 0 };
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

static double normal(unsigned *seed)
{
	return sqrt(-2 * log(uniform(seed))) * cos(2 * M_PI * uniform(seed));
}

static double log_normal(unsigned *seed)
{
	return exp(-0.7 + 1.3 * normal(seed));
}

/* A warm cache or a cold one. */
static double bimodal(unsigned *seed)
{
	return uniform(seed) < 0.7 ? 0.04 + 0.02 * uniform(seed) : exp(2 + 0.5 * normal(seed));
}

static int close_to(double value, double want)
{
	return fabs(value - want) <= 0.05 * want;
}

static double exact(double q, size_t n)
{
	size_t rank = (size_t)ceil(q * (double)n);

	return sorted[rank < 1 ? 0 : rank - 1];
}

/* All samples within one span, spread over its slices. */
static void compare(double (*draw)(unsigned *seed), unsigned seed)
{
	for (size_t i = 0; i < SAMPLES; i++) {
		sorted[i] = draw(&seed);
		timing_first_token(&timing, 100 * S + i * (27 * S / SAMPLES), sorted[i]);
	}
	qsort(sorted, SAMPLES, sizeof(double), by_value);
	timing_record(&timing, 127 * S, &nothing, &record);

	assert_int_equal(record.n, SAMPLES);
	assert_true(close_to(record.ttft_p50_s, exact(0.5, SAMPLES)));
	assert_true(close_to(record.ttft_p90_s, exact(0.9, SAMPLES)));
	assert_true(close_to(record.ttft_p99_s, exact(0.99, SAMPLES)));
	assert_true(record.ttft_max_s == sorted[SAMPLES - 1]);
}

static void quantiles_of_log_normal_times_are_kept_to_five_percent(void **state)
{
	compare(log_normal, 1);
}

static void quantiles_of_warm_and_cold_times_are_kept_to_five_percent(void **state)
{
	compare(bimodal, 2);
}

/* Against all samples ever: what is in the sum is exactly what is in the slices still open. */
static void a_sample_leaves_with_its_slice_and_not_before(void **state)
{
	static uint64_t at[5000];
	uint64_t now = 7 * S;
	unsigned seed = 3;
	size_t n = 0;

	slices_init(&slices, 30 * S);
	for (size_t i = 0; i < 5000; i++) {
		now += (uint64_t)(uniform(&seed) * 40e6);
		at[n++] = now;
		slices_add(&slices, now, 1 + uniform(&seed));
		if (i % 17 == 0)
			now += 2 * S;
		uint64_t kept = 0;

		slices_expire(&slices, now);
		for (size_t j = 0; j < n; j++)
			kept += at[j] / (3 * S) + SLICES_NR > now / (3 * S);
		assert_int_equal(slices.total.n, kept);
	}
}

static void the_sum_forgets_extremes_and_mean_with_their_slice(void **state)
{
	slices_init(&slices, 10 * S);
	slices_add(&slices, 1 * S, 500);
	slices_add(&slices, 5 * S, 2);
	slices_add(&slices, 6 * S, 1);

	slices_expire(&slices, 11 * S);

	assert_true(slices.total.max == 2 && slices.total.min == 1);
	assert_true(hist_mean(&slices.total) == 1.5);
	slices_expire(&slices, 1000000 * S);
	assert_int_equal(slices.total.n, 0);
	assert_true(slices.total.max == 0);
}

static void a_long_wait_shows_before_any_slow_token_has_come(void **state)
{
	for (int i = 0; i < 50; i++)
		timing_first_token(&timing, (uint64_t)(100 * S + i * 10000000ull), 0.2);
	for (int i = 0; i < 12; i++)
		timing_open_add(&open_now, 105 * S, 101 * S, 1);
	timing_record(&timing, 105 * S, &open_now, &record);

	assert_true(close_to(record.ttft_p90_s, 0.2));
	assert_true(close_to(record.recent_p90_s, 4));
	assert_int_equal(record.recent_n, 62);
	assert_int_equal(record.waiting, 12);
	assert_int_equal(record.oldest_wait_start_ns, 101 * S);
}

static void a_wait_given_up_counts_in_recent_and_never_as_a_ttft(void **state)
{
	for (int i = 0; i < 9; i++)
		timing_given_up(&timing, 100 * S, 8);
	timing_record(&timing, 101 * S, &nothing, &record);

	assert_int_equal(record.n, 0);
	assert_true(record.ttft_p99_s == 0);
	assert_int_equal(record.recent_n, 9);
	assert_true(close_to(record.recent_p50_s, 8));
}

static void what_is_not_known_to_stream_is_no_wait(void **state)
{
	timing_open_add(&open_now, 105 * S, 1 * S, 0);
	timing_open_add(&open_now, 105 * S, 104 * S, 1);
	timing_record(&timing, 105 * S, &open_now, &record);

	assert_int_equal(record.waiting, 1);
	assert_int_equal(record.waiting_other, 1);
	assert_int_equal(record.oldest_wait_start_ns, 104 * S);
	assert_true(close_to(record.recent_p99_s, 1));
}

static void the_recent_quantile_lies_between_its_neighbours(void **state)
{
	record.recent_p50_s = 1, record.recent_p90_s = 4, record.recent_p99_s = 9;

	assert_true(timing_recent(&record, 0.1) == 1);
	assert_true(timing_recent(&record, 0.5) == 1);
	assert_true(fabs(timing_recent(&record, 0.7) - 2) < 1e-9); /* geometric */
	assert_true(timing_recent(&record, 0.9) == 4);
	assert_true(timing_recent(&record, 0.99) == 9);
	assert_true(timing_recent(&record, 1) == 9);
}

static void a_record_is_fresh_for_a_second(void **state)
{
	assert_false(latency_fresh(&record, 5 * S));
	record.updated_ns = 4 * S + 1;
	assert_true(latency_fresh(&record, 5 * S));
	assert_false(latency_fresh(&record, 5 * S + 1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(quantiles_of_log_normal_times_are_kept_to_five_percent,
				       set_up),
		cmocka_unit_test_setup(quantiles_of_warm_and_cold_times_are_kept_to_five_percent,
				       set_up),
		cmocka_unit_test_setup(a_sample_leaves_with_its_slice_and_not_before, set_up),
		cmocka_unit_test_setup(the_sum_forgets_extremes_and_mean_with_their_slice, set_up),
		cmocka_unit_test_setup(a_long_wait_shows_before_any_slow_token_has_come, set_up),
		cmocka_unit_test_setup(a_wait_given_up_counts_in_recent_and_never_as_a_ttft,
				       set_up),
		cmocka_unit_test_setup(what_is_not_known_to_stream_is_no_wait, set_up),
		cmocka_unit_test_setup(the_recent_quantile_lies_between_its_neighbours, set_up),
		cmocka_unit_test_setup(a_record_is_fresh_for_a_second, set_up),
	};

	return cmocka_run_group_tests_name("latency", tests, NULL, NULL);
}
