/* The clocks agree with each other and never run backwards. */
#include "shm/base/clock.h"
#include "tests/lib/unit.h"

static void the_monotonic_clock_never_runs_backwards(void **state)
{
	uint64_t before = clock_ns();

	for (int i = 0; i < 1000; i++) {
		uint64_t now = clock_ns();

		assert_true(now >= before);
		before = now;
	}
}

static void the_wall_clock_is_in_nanoseconds_since_1970(void **state)
{
	uint64_t seconds = clock_wall_ns() / NS_PER_S;

	assert_true(seconds > 1600000000 && seconds < 10000000000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(the_monotonic_clock_never_runs_backwards),
		CLAIM(the_wall_clock_is_in_nanoseconds_since_1970),
	};

	return cmocka_run_group_tests_name("clock", tests, NULL, NULL);
}
