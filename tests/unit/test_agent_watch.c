/* Health and epoch follow from what was seen, with patience where one look can be wrong. */
#include "agent/watch.h"
#include "shm/base/clock.h"
#include "tests/lib/unit.h"

enum { STALL_S = 10 };

static struct watch watch;
static uint64_t now_s;

static int fresh(void **state)
{
	watch_init(&watch, STALL_S * (uint64_t)NS_PER_S);
	now_s = 1000;
	return 0;
}

static struct engine_reading working(uint64_t running, uint64_t progress)
{
	struct engine_reading reading = { .has = READING_PROGRESS, .progress = progress };

	ENGINE_SET(&reading.state, running, running);
	return reading;
}

static int see(struct engine_reading reading)
{
	return watch_reading(&watch, &reading, now_s * NS_PER_S, 77, 0.05);
}

static void fail_with(enum watch_failure failure, int times)
{
	while (times-- > 0)
		watch_failed(&watch, failure, now_s * NS_PER_S);
}

static void an_engine_that_answers_is_up(void **state)
{
	assert_int_equal(watch.health, ENGINE_HEALTH_UNKNOWN);
	see(working(0, 1));
	assert_int_equal(watch.health, ENGINE_HEALTH_UP);
}

static void a_refused_connection_means_down_at_the_second_look(void **state)
{
	see(working(1, 1));
	fail_with(WATCH_REFUSED, 1);
	assert_int_equal(watch.health, ENGINE_HEALTH_UP);
	fail_with(WATCH_REFUSED, 1);
	assert_int_equal(watch.health, ENGINE_HEALTH_DOWN);
}

static void one_error_answer_is_forgiven_three_in_a_row_are_not(void **state)
{
	see(working(1, 1));
	fail_with(WATCH_ERROR, 2);
	see(working(1, 2));
	fail_with(WATCH_ERROR, 2);
	assert_int_equal(watch.health, ENGINE_HEALTH_UP);
	fail_with(WATCH_ERROR, 1);
	assert_int_equal(watch.health, ENGINE_HEALTH_DOWN);
}

static void down_ends_with_the_second_good_answer(void **state)
{
	fail_with(WATCH_REFUSED, 2);
	see(working(0, 1));
	assert_int_equal(watch.health, ENGINE_HEALTH_DOWN);
	fail_with(WATCH_ERROR, 1);
	see(working(0, 1));
	assert_int_equal(watch.health, ENGINE_HEALTH_DOWN);
	see(working(0, 1));
	assert_int_equal(watch.health, ENGINE_HEALTH_UP);
}

static void running_without_movement_is_a_stall_after_the_limit(void **state)
{
	see(working(3, 5));
	now_s += STALL_S;
	see(working(3, 5));
	assert_int_equal(watch.health, ENGINE_HEALTH_UP);
	now_s += 1;
	see(working(3, 5));
	assert_int_equal(watch.health, ENGINE_HEALTH_STALLED);
	see(working(3, 6));
	assert_int_equal(watch.health, ENGINE_HEALTH_UP);
}

static void an_idle_engine_never_stalls(void **state)
{
	see(working(0, 5));
	now_s += 1000;
	see(working(0, 5));
	see(working(2, 5)); /* just began */
	assert_int_equal(watch.health, ENGINE_HEALTH_UP);
	now_s += 2;
	see(working(2, 5));
	assert_int_equal(watch.health, ENGINE_HEALTH_UP);
}

static void a_kind_without_a_valid_sign_is_never_called_stalled(void **state)
{
	struct engine_reading reading = working(3, 5);

	reading.has = 0;
	see(reading);
	now_s += 1000;
	see(reading);
	assert_int_equal(watch.health, ENGINE_HEALTH_UP);
}

static void slow_steps_stretch_the_limit(void **state)
{
	struct engine_reading reading = working(3, 5);

	watch_reading(&watch, &reading, now_s * NS_PER_S, 77, 2);
	now_s += WATCH_STALL_STEPS * 2 - 1;
	watch_reading(&watch, &reading, now_s * NS_PER_S, 77, 2);
	assert_int_equal(watch.health, ENGINE_HEALTH_UP);
	now_s += 2;
	watch_reading(&watch, &reading, now_s * NS_PER_S, 77, 2);
	assert_int_equal(watch.health, ENGINE_HEALTH_STALLED);
}

static void silence_is_no_death_but_in_the_end_a_stall(void **state)
{
	see(working(1, 1));
	fail_with(WATCH_SILENT, 1);
	now_s += STALL_S;
	fail_with(WATCH_SILENT, 1);
	assert_int_equal(watch.health, ENGINE_HEALTH_UP);
	now_s += 1;
	fail_with(WATCH_SILENT, 1);
	assert_int_equal(watch.health, ENGINE_HEALTH_STALLED);
	see(working(1, 2));
	assert_int_equal(watch.health, ENGINE_HEALTH_UP);
}

static struct engine_reading with_id(uint64_t id, uint64_t tokens)
{
	struct engine_reading reading = working(0, tokens);

	reading.start_id = id;
	ENGINE_SET(&reading.state, generation_tokens_total, tokens);
	return reading;
}

static void a_start_id_alone_decides_about_a_restart(void **state)
{
	assert_true(see(with_id(9, 100)));
	assert_int_equal(watch.epoch, 9);
	fail_with(WATCH_REFUSED, 5);
	assert_false(see(with_id(9, 50))); /* a network trouble, and a counter that was rebuilt */
	assert_true(see(with_id(8, 200)));
	assert_int_equal(watch.epoch, 8);
}

static void without_an_id_a_shrunken_total_means_a_restart(void **state)
{
	assert_true(see(with_id(0, 100)));
	assert_int_equal(watch.epoch, 77);
	assert_false(see(with_id(0, 100)));
	assert_false(see(with_id(0, 150)));
	assert_true(see(with_id(0, 149)));
}

static void without_an_id_a_refused_connection_means_a_restart(void **state)
{
	see(with_id(0, 100));
	fail_with(WATCH_REFUSED, 1);
	assert_true(see(with_id(0, 100)));
	fail_with(WATCH_SILENT, 3);
	fail_with(WATCH_ERROR, 3);
	assert_false(see(with_id(0, 100)));
}

static void a_task_number_that_fell_means_a_restart(void **state)
{
	struct engine_reading reading = working(0, 1);

	reading.has |= READING_SEQUENCE;
	reading.sequence = 500;
	see(reading);
	reading.has &= ~(uint32_t)READING_SEQUENCE; /* slots without a task tell none */
	assert_false(see(reading));
	reading.has |= READING_SEQUENCE;
	reading.sequence = 3;
	assert_true(see(reading));
}

static void an_id_that_appears_late_changes_no_epoch(void **state)
{
	see(with_id(0, 100));
	assert_false(see(with_id(5, 110)));
	assert_int_equal(watch.epoch, 77);
	assert_true(see(with_id(6, 120)));
	assert_int_equal(watch.epoch, 6);
}

static void a_new_agent_goes_on_with_the_epoch_of_an_engine_that_lived_on(void **state)
{
	struct engine_state before = { .epoch = 4711 };

	ENGINE_SET(&before, generation_tokens_total, 100);
	watch_inherit(&watch, &before);
	assert_false(see(with_id(0, 120)));
	assert_int_equal(watch.epoch, 4711);

	fresh(NULL);
	watch_inherit(&watch, &before);
	assert_false(see(with_id(4711, 120)));

	fresh(NULL);
	watch_inherit(&watch, &before);
	assert_true(see(with_id(4712, 120)));

	fresh(NULL);
	watch_inherit(&watch, &before);
	assert_true(see(with_id(0, 20)));
	assert_true(watch.epoch != 4711);
}

#define FRESH(function) cmocka_unit_test_setup(function, fresh)

int main(void)
{
	const struct CMUnitTest tests[] = {
		FRESH(an_engine_that_answers_is_up),
		FRESH(a_refused_connection_means_down_at_the_second_look),
		FRESH(one_error_answer_is_forgiven_three_in_a_row_are_not),
		FRESH(down_ends_with_the_second_good_answer),
		FRESH(running_without_movement_is_a_stall_after_the_limit),
		FRESH(an_idle_engine_never_stalls),
		FRESH(a_kind_without_a_valid_sign_is_never_called_stalled),
		FRESH(slow_steps_stretch_the_limit),
		FRESH(silence_is_no_death_but_in_the_end_a_stall),
		FRESH(a_start_id_alone_decides_about_a_restart),
		FRESH(without_an_id_a_shrunken_total_means_a_restart),
		FRESH(without_an_id_a_refused_connection_means_a_restart),
		FRESH(a_task_number_that_fell_means_a_restart),
		FRESH(an_id_that_appears_late_changes_no_epoch),
		FRESH(a_new_agent_goes_on_with_the_epoch_of_an_engine_that_lived_on),
	};

	return cmocka_run_group_tests_name("agent_watch", tests, NULL, NULL);
}
