/* Claims about the waiting room: order, ageing, deadlines, bounds, and leaving at any moment. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "router/admit/admit.h"

#define S 1000000000ull

enum { LIMIT = 64, WARM = 0, HEAVY = 2 };

static struct admit_params params;
static struct admit_room room;
static struct admit_entry entry[LIMIT + 1];
static struct admit_entry *memory[LIMIT];

static int setup(void **state)
{
	(void)state;
	admit_params_init(&params);
	memset(entry, 0, sizeof(entry));
	assert_true(admit_size(LIMIT) <= sizeof(memory));
	admit_init(&room, &params, memory, LIMIT);
	return 0;
}

static void enter(unsigned i, enum admit_wait what, unsigned class_, uint64_t at_s)
{
	assert_int_equal(admit_enter(&room, &params, &entry[i], what, class_, at_s * S), 0);
}

/* Indices in the order of service, -1 at the end. */
static void assert_order(enum admit_wait what, const int *expected)
{
	struct admit_walk walk;
	struct admit_entry *e;

	admit_walk_begin(&walk, &room, what);
	while ((e = admit_walk_next(&walk)) != NULL) {
		assert_int_equal(e - entry, *expected);
		expected++;
	}
	assert_int_equal(*expected, -1);
}

static void a_class_is_served_in_order_of_arrival(void **state)
{
	(void)state;
	enter(3, ADMIT_COLD, HEAVY, 10);
	enter(1, ADMIT_COLD, HEAVY, 11);
	enter(2, ADMIT_COLD, HEAVY, 11);
	assert_order(ADMIT_COLD, (int[]){ 3, 1, 2, -1 });
	assert_order(ADMIT_ROOM, (int[]){ -1 });
	assert_int_equal(admit_waiting(&room, ADMIT_COLD), 3);
}

static void a_light_class_goes_first_until_a_heavy_one_has_aged(void **state)
{
	(void)state;
	enter(0, ADMIT_COLD, HEAVY, 10);
	enter(1, ADMIT_COLD, WARM, 19);
	enter(2, ADMIT_COLD, WARM, 21); /* more than two handicaps of 5 s later */
	assert_order(ADMIT_COLD, (int[]){ 1, 0, 2, -1 });
}

static void who_waits_for_room_has_a_deadline_and_a_cold_one_has_none(void **state)
{
	(void)state;
	enter(0, ADMIT_COLD, HEAVY, 1);
	enter(1, ADMIT_ROOM, HEAVY, 2);
	enter(2, ADMIT_ROOM, WARM, 3);
	assert_int_equal(admit_deadline_ns(&room), 32 * S);
	assert_null(admit_expire(&room, 32 * S - 1));
	assert_ptr_equal(admit_expire(&room, 32 * S), &entry[1]);
	assert_null(admit_expire(&room, 32 * S));
	assert_ptr_equal(admit_expire(&room, 40 * S), &entry[2]);
	assert_null(admit_expire(&room, 1000000 * S));
	assert_order(ADMIT_COLD, (int[]){ 0, -1 });
	assert_int_equal(admit_deadline_ns(&room), ADMIT_NEVER);
}

static void a_client_that_goes_leaves_nothing_behind(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 5; i++)
		enter(i, ADMIT_ROOM, HEAVY, i);
	admit_leave(&room, &entry[2]);
	admit_leave(&room, &entry[2]); /* twice is harmless */
	assert_order(ADMIT_ROOM, (int[]){ 0, 1, 3, 4, -1 });
	admit_leave(&room, &entry[0]);
	admit_leave(&room, &entry[4]);
	assert_order(ADMIT_ROOM, (int[]){ 1, 3, -1 });
	assert_int_equal(admit_deadline_ns(&room), 31 * S);
	enter(2, ADMIT_COLD, WARM, 9); /* the same entry again, for something else */
	assert_order(ADMIT_COLD, (int[]){ 2, -1 });
}

static void a_full_room_refuses(void **state)
{
	(void)state;
	for (unsigned i = 0; i < LIMIT; i++)
		enter(i, i % 2 ? ADMIT_COLD : ADMIT_ROOM, i % 3, i);
	assert_int_equal(admit_enter(&room, &params, &entry[LIMIT], ADMIT_COLD, 0, 99 * S),
			 -ENOSPC);
	assert_int_equal(entry[LIMIT].waiting, 0);
	admit_release(&room, &entry[7], 100 * S);
	enter(LIMIT, ADMIT_COLD, 0, 101);
}

static void retry_after_follows_the_pace_of_the_queue(void **state)
{
	(void)state;
	enter(0, ADMIT_ROOM, HEAVY, 1);
	assert_int_equal(admit_retry_after_s(&room, &params), 30); /* nothing known: the time-out */
	for (unsigned i = 1; i < 7; i++)
		enter(i, ADMIT_ROOM, HEAVY, 1);
	for (unsigned i = 0; i < 4; i++)
		admit_release(&room, &entry[i], (10 + 2 * i) * S);
	assert_int_equal(admit_retry_after_s(&room, &params), 8); /* three, and oneself, 2 s each */
	for (unsigned i = 10; i < 60; i++)
		enter(i, ADMIT_ROOM, HEAVY, 20);
	assert_int_equal(admit_retry_after_s(&room, &params), 60); /* never longer */
}

static void an_engine_takes_as_many_cold_prompts_as_it_has_slots(void **state)
{
	(void)state;
	assert_true(admit_takes_cold(&params, 1000)); /* no limit by default */
	params.cold_slots = 1;
	assert_true(admit_takes_cold(&params, 0));
	assert_false(admit_takes_cold(&params, 1));
	assert_false(admit_is_cold(&params, 8191));
	assert_true(admit_is_cold(&params, 8192));
	assert_true(admit_has_room(&params, 1e9));
	params.engine_requests = 10;
	assert_true(admit_has_room(&params, 9));
	assert_false(admit_has_room(&params, 10));
}

/* Against a naive list: order, deadlines and counts agree after any operation. */
static void random_operations_agree_with_a_naive_list(void **state)
{
	uint64_t now = S;
	unsigned expired = 0;

	(void)state;
	srandom(11);
	for (unsigned n = 0; n < 100000; n++, now += (uint64_t)random() % S) {
		struct admit_entry *e = &entry[random() % LIMIT];
		uint64_t least = ADMIT_NEVER;
		unsigned waiting = 0;

		if (!e->waiting)
			admit_enter(&room, &params, e, (enum admit_wait)(random() % 2),
				    (unsigned)random() % 3, now);
		else if (random() % 2)
			admit_leave(&room, e);
		else
			admit_release(&room, e, now);
		params.queue_timeout_s = 1 + (double)(random() % 30); /* deadlines out of order */
		while ((e = admit_expire(&room, now)) != NULL) {
			assert_true(e->deadline_ns <= now && !e->waiting);
			expired++;
		}
		for (unsigned i = 0; i < LIMIT; i++) {
			waiting += entry[i].waiting != 0;
			if (entry[i].waiting && entry[i].deadline_ns < least)
				least = entry[i].deadline_ns;
		}
		assert_int_equal(room.nr, waiting);
		assert_int_equal(admit_waiting(&room, ADMIT_ROOM) +
					 admit_waiting(&room, ADMIT_COLD),
				 waiting);
		assert_int_equal(admit_deadline_ns(&room), least);
		assert_true(least > now);
		assert_int_equal(room.entered_total, room.released_total + room.expired_total +
							     room.left_total + room.nr);
	}
	assert_true(expired > 1000);
}

static void walking_and_releasing_meet_everyone_once(void **state)
{
	struct admit_walk walk;
	struct admit_entry *e;
	uint64_t rank = 0;
	unsigned met = 0;

	(void)state;
	for (unsigned i = 0; i < LIMIT; i++)
		enter(i, ADMIT_COLD, i % 3, i / 2);
	admit_walk_begin(&walk, &room, ADMIT_COLD);
	while ((e = admit_walk_next(&walk)) != NULL) {
		assert_true(e->since_ns + e->class * 5 * S >= rank);
		rank = e->since_ns + e->class * 5 * S;
		if (met++ % 3)
			admit_release(&room, e, 100 * S);
	}
	assert_int_equal(met, LIMIT);
	assert_int_equal(admit_waiting(&room, ADMIT_COLD), 22);
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_setup(name, setup)
	const struct CMUnitTest tests[] = {
		CLAIM(a_class_is_served_in_order_of_arrival),
		CLAIM(a_light_class_goes_first_until_a_heavy_one_has_aged),
		CLAIM(who_waits_for_room_has_a_deadline_and_a_cold_one_has_none),
		CLAIM(a_client_that_goes_leaves_nothing_behind),
		CLAIM(a_full_room_refuses),
		CLAIM(retry_after_follows_the_pace_of_the_queue),
		CLAIM(an_engine_takes_as_many_cold_prompts_as_it_has_slots),
		CLAIM(random_operations_agree_with_a_naive_list),
		CLAIM(walking_and_releasing_meet_everyone_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
