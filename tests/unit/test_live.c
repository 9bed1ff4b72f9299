/* bench/live: its statistics are exact and its classes the policy's. */
#include "tests/lib/unit.h"

#include <stdlib.h>

#include "bench/live.h"

static void quantiles_are_by_nearest_rank(void **state)
{
	double ten[] = { 10, 3, 7, 1, 9, 2, 8, 5, 4, 6 }, one[] = { 4 };

	assert_true(live_quantile(ten, 10, 0.5) == 5);
	assert_true(live_quantile(ten, 10, 0.9) == 9);
	assert_true(live_quantile(ten, 10, 0.91) == 10);
	assert_true(live_quantile(ten, 10, 1) == 10);
	assert_true(live_quantile(ten, 10, 0.01) == 1);
	assert_true(live_quantile(one, 1, 0.99) == 4);
	assert_true(live_quantile(NULL, 0, 0.9) == 0);
}

static uint8_t class_of(uint32_t prompt, uint32_t cached)
{
	struct live_request r = { .prompt_tokens = prompt, .cached_tokens = cached };
	struct policy_params params;

	policy_params_init(&params);
	live_classify(&r, &params);
	return r.class;
}

static void classes_follow_length_and_what_was_not_cached(void **state)
{
	struct policy_params params;

	policy_params_init(&params);
	uint32_t heavy = (uint32_t)params.heavy_threshold, warm = (uint32_t)params.warm_threshold;

	assert_int_equal(class_of(heavy, heavy), CLASS_HEAVY);
	assert_int_equal(class_of(heavy - 1, 0), CLASS_MEDIUM);
	assert_int_equal(class_of(heavy - 1, heavy - 1 - warm), CLASS_WARM);
	assert_int_equal(class_of(heavy - 1, heavy - 2 - warm), CLASS_MEDIUM);
	assert_int_equal(class_of(100, 0), CLASS_WARM);
	assert_int_equal(class_of(100, 200), CLASS_WARM);
}

static void a_run_is_valid_only_when_engines_kept_their_time(void **state)
{
	const struct live_options options = { .speed = 10 };
	struct live_run run = { .options = &options };
	struct live_outside out = {
		.engines_known = true, .busy_s = 100, .late_s = 4.9, .engine_speed = 10
	};

	assert_true(live_valid(&run, &out));
	out.late_s = 5.1;
	assert_false(live_valid(&run, &out));
	out.late_s = 1, out.engine_speed = 5;
	assert_false(live_valid(&run, &out));
	out.engine_speed = 10, out.engines_known = false;
	assert_false(live_valid(&run, &out));
	out.engines_known = true, run.interrupted = true;
	assert_false(live_valid(&run, &out));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(quantiles_are_by_nearest_rank),
		CLAIM(classes_follow_length_and_what_was_not_cached),
		CLAIM(a_run_is_valid_only_when_engines_kept_their_time),
	};

	return cmocka_run_group_tests_name("live", tests, NULL, NULL);
}
