/* Speeds are measured only where they can be, and follow the engine without jumping at oddities. */
#include <errno.h>
#include <math.h>

#include "agent/rate.h"
#include "tests/lib/unit.h"

static const struct rate_params params = {
	.memory = 10000, .enough = 256, .window_min = 64, .odd_factor = 2.5
};
static const struct rate_params steps = {
	.memory = 500, .enough = 8, .window_min = 1, .odd_factor = 2.5
};

static int near(double a, double b, double share)
{
	return fabs(a - b) <= share * fabs(b);
}

static void nothing_is_estimated_from_one_look_at_totals(void **state)
{
	struct rate rate = { 0 };
	double s = 7;

	rate_feed(&rate, &params, 1e6, 1000, 0);

	assert_int_equal(rate_time_per_unit(&rate, &params, &s), -ENODATA);
	assert_true(near(s, 7, 0)); /* untouched */
}

static void the_difference_of_totals_is_the_speed(void **state)
{
	struct rate rate = { 0 };
	double s;

	rate_feed(&rate, &params, 1e6, 1000, 0);
	rate_feed(&rate, &params, 1e6 + 3000, 1001, 0);

	assert_int_equal(rate_time_per_unit(&rate, &params, &s), 0);
	assert_true(near(1 / s, 3000, 1e-9));
}

static void small_differences_wait_until_they_are_worth_counting(void **state)
{
	struct rate rate = { 0 };
	double s;

	rate_feed(&rate, &params, 0, 0, 0);
	for (int i = 1; i <= 30; i++)
		rate_feed(&rate, &params, i * 10, i * 0.01, 0);

	assert_int_equal(rate_time_per_unit(&rate, &params, &s), 0);
	assert_true(near(1 / s, 1000, 1e-9));
}

static void idle_time_changes_nothing(void **state)
{
	struct rate rate = { 0 };
	double before, after;

	rate_feed(&rate, &params, 0, 0, 0);
	rate_feed(&rate, &params, 5000, 2, 0);
	assert_int_equal(rate_time_per_unit(&rate, &params, &before), 0);
	for (int i = 0; i < 1000; i++)
		rate_feed(&rate, &params, 5000, 2, 0);
	assert_int_equal(rate_time_per_unit(&rate, &params, &after), 0);

	assert_true(near(after, before, 0));
}

static void a_lasting_change_is_followed(void **state)
{
	struct rate rate = { 0 };
	double amount = 0, time = 0, s;

	for (int i = 0; i < 100; i++)
		rate_feed(&rate, &params, amount += 1000, time += 0.5, 0);
	for (int i = 0; i < 50; i++)
		rate_feed(&rate, &params, amount += 1000, time += 1, 0);

	assert_int_equal(rate_time_per_unit(&rate, &params, &s), 0);
	assert_true(near(1 / s, 1000, 0.02));
}

static void one_odd_window_hardly_moves_the_estimate(void **state)
{
	struct rate rate = { 0 };
	double amount = 0, time = 0, s;

	for (int i = 0; i < 100; i++)
		rate_feed(&rate, &params, amount += 100, time += 5, 0); /* 50 ms a step */
	rate_feed(&rate, &params, amount += 100, time += 270, 0); /* a prefill in between: 2.7 s */

	assert_int_equal(rate_time_per_unit(&rate, &params, &s), 0);
	assert_true(s < 0.056);
}

static void a_start_amid_disturbance_is_corrected_by_the_first_clean_windows(void **state)
{
	struct rate rate = { 0 };
	double amount = 0, time = 0, s;

	rate_feed(&rate, &params, 0, 0, 0);
	for (int i = 0; i < 4; i++)
		rate_feed(&rate, &params, amount += 100, time += 250, 0);
	for (int i = 0; i < 10; i++)
		rate_feed(&rate, &params, amount += 100, time += 5, 0);

	assert_int_equal(rate_time_per_unit(&rate, &params, &s), 0);
	assert_true(near(s, 0.05, 0.4));
}

static void disturbance_in_every_other_window_leaves_the_clean_speed(void **state)
{
	struct rate rate = { 0 };
	double amount = 0, time = 0, s;

	for (int i = 0; i < 400; i++) {
		rate_feed(&rate, &params, amount += 100, time += 5, 0);
		rate_feed(&rate, &params, amount += 100, time += 250, 0);
	}

	assert_int_equal(rate_time_per_unit(&rate, &params, &s), 0);
	assert_true(near(s, 0.05, 0.15));
}

static void slow_windows_without_end_are_the_new_truth(void **state)
{
	struct rate rate = { 0 };
	double amount = 0, time = 0, s;

	for (int i = 0; i < 200; i++)
		rate_feed(&rate, &params, amount += 100, time += 2, 0);
	for (int i = 0; i < RATE_ODD_RUN_MAX; i++)
		rate_feed(&rate, &params, amount += 100, time += 8, 0);
	assert_int_equal(rate_time_per_unit(&rate, &params, &s), 0);
	assert_true(s < 0.021); /* doubted so far */
	for (int i = 0; i < 300; i++)
		rate_feed(&rate, &params, amount += 100, time += 8, 0);
	assert_int_equal(rate_time_per_unit(&rate, &params, &s), 0);
	assert_true(s > 0.075);
}

static void what_is_skipped_is_not_counted(void **state)
{
	struct rate rate = { 0 };
	double s;

	rate_feed(&rate, &params, 0, 0, 0);
	rate_skip(&rate, 5000, 500);
	rate_feed(&rate, &params, 6000, 500.5, 0);

	assert_int_equal(rate_time_per_unit(&rate, &params, &s), 0);
	assert_true(near(1 / s, 2000, 1e-9));
}

static void a_total_that_shrank_is_a_new_base_not_a_speed(void **state)
{
	struct rate rate = { 0 };
	double s;

	rate_feed(&rate, &params, 1e6, 1000, 0);
	rate_feed(&rate, &params, 10, 0.1, 0);
	assert_int_equal(rate_time_per_unit(&rate, &params, &s), -ENODATA);
	rate_feed(&rate, &params, 1010, 0.6, 0);

	assert_int_equal(rate_time_per_unit(&rate, &params, &s), 0);
	assert_true(near(1 / s, 2000, 1e-9));
}

static void rounded_totals_wait_for_a_difference_that_rounding_cannot_spoil(void **state)
{
	struct rate rate = { 0 };
	double s;

	/* 1.23457e+06 moves in steps of ten, 2048.61 in hundredths. */
	rate_feed(&rate, &params, 1.23457e6, 2048.61, 6);
	rate_feed(&rate, &params, 1.23466e6, 2048.62, 6); /* 90 tokens in 0.01 s? rounding */
	assert_int_equal(rate_time_per_unit(&rate, &params, &s), -ENODATA);
	rate_feed(&rate, &params, 1.23657e6, 2049.61, 6);

	assert_int_equal(rate_time_per_unit(&rate, &params, &s), 0);
	assert_true(near(1 / s, 2000, 1e-6));
}

/* Totals of `n` steps at batch size b of an engine with the given line. */
static void run_steps(double totals[MOMENTS_NR], double n, double b, double alpha, double beta)
{
	double t = alpha + beta * b;

	totals[MOMENT_N] += n;
	totals[MOMENT_B] += n * b;
	totals[MOMENT_T] += n * t;
	totals[MOMENT_BB] += n * b * b;
	totals[MOMENT_BT] += n * b * t;
}

static void step_time_and_slope_come_out_of_the_moments(void **state)
{
	struct step_rate rate = { 0 };
	double totals[MOMENTS_NR] = { 0 }, mean, slope;

	step_rate_feed(&rate, &steps, totals);
	for (int i = 0; i < 40; i++) {
		run_steps(totals, 10, 4 + i % 8, 0.035, 0.0012);
		step_rate_feed(&rate, &steps, totals);
	}

	assert_int_equal(step_rate_mean(&rate, &steps, &mean), 0);
	assert_int_equal(step_rate_slope(&rate, &steps, &slope), 0);
	assert_true(near(slope, 0.0012, 1e-6));
	assert_true(near(mean, 0.035 + 0.0012 * 7.5, 0.02));
}

static void the_fixtures_moments_give_the_line_they_were_made_with(void **state)
{
	const double fixture[MOMENTS_NR] = { 61012, 512500, 2745.54, 5201250, 24100 };
	struct step_rate rate = { 0 };
	double none[MOMENTS_NR] = { 0 }, mean, slope;

	step_rate_feed(&rate, &steps, none);
	step_rate_feed(&rate, &steps, fixture);

	assert_int_equal(step_rate_mean(&rate, &steps, &mean), 0);
	assert_int_equal(step_rate_slope(&rate, &steps, &slope), 0);
	assert_true(near(mean, 0.0450, 1e-3));
	assert_true(near(slope, 0.00116, 0.01));
	assert_true(near(mean - slope * 512500 / 61012, 0.0353, 0.01)); /* alpha */
}

static void a_constant_batch_tells_no_slope(void **state)
{
	struct step_rate rate = { 0 };
	double totals[MOMENTS_NR] = { 0 }, mean, slope;

	step_rate_feed(&rate, &steps, totals);
	run_steps(totals, 100, 8, 0.035, 0.0012);
	step_rate_feed(&rate, &steps, totals);

	assert_int_equal(step_rate_mean(&rate, &steps, &mean), 0);
	assert_int_equal(step_rate_slope(&rate, &steps, &slope), -ENODATA);
}

static void a_line_that_no_engine_has_is_not_published(void **state)
{
	struct step_rate rate = { 0 };
	double totals[MOMENTS_NR] = { 0 }, slope;

	step_rate_feed(&rate, &steps, totals);
	run_steps(totals, 100, 2, 0.08, 0); /* larger batches were faster: something else went on */
	run_steps(totals, 100, 10, 0.05, 0);
	step_rate_feed(&rate, &steps, totals);

	assert_int_equal(step_rate_slope(&rate, &steps, &slope), -ENODATA);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(nothing_is_estimated_from_one_look_at_totals),
		CLAIM(the_difference_of_totals_is_the_speed),
		CLAIM(small_differences_wait_until_they_are_worth_counting),
		CLAIM(idle_time_changes_nothing),
		CLAIM(a_lasting_change_is_followed),
		CLAIM(one_odd_window_hardly_moves_the_estimate),
		CLAIM(a_start_amid_disturbance_is_corrected_by_the_first_clean_windows),
		CLAIM(disturbance_in_every_other_window_leaves_the_clean_speed),
		CLAIM(slow_windows_without_end_are_the_new_truth),
		CLAIM(what_is_skipped_is_not_counted),
		CLAIM(a_total_that_shrank_is_a_new_base_not_a_speed),
		CLAIM(rounded_totals_wait_for_a_difference_that_rounding_cannot_spoil),
		CLAIM(step_time_and_slope_come_out_of_the_moments),
		CLAIM(the_fixtures_moments_give_the_line_they_were_made_with),
		CLAIM(a_constant_batch_tells_no_slope),
		CLAIM(a_line_that_no_engine_has_is_not_published),
	};

	return cmocka_run_group_tests_name("agent_rate", tests, NULL, NULL);
}
