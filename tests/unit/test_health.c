/* Engines are shut and opened by what is seen of them, and never all of them for good. */
#include "router/health/health.h"
#include "tests/lib/unit.h"

#include <string.h>

#define MS 1000000ull
#define S  (1000 * MS)

static struct health health;
static uint64_t now;

static int fresh(void **state)
{
	memset(&health, 0, sizeof(health));
	now = 1000 * S;
	return 0;
}

static void a_failed_connect_shuts_at_once_and_pauses_double(void **state)
{
	static const uint64_t pauses[] = { 100, 200, 400, 800, 1600, 2000, 2000 };

	for (unsigned i = 0; i < sizeof(pauses) / sizeof(pauses[0]); i++) {
		assert_int_equal(health_standing(&health, now), HEALTH_OPEN);
		assert_int_equal(health_dispatched(&health), i > 0);
		assert_int_equal(health_connect_failed(&health, now), i == 0);
		assert_int_equal(health_ends_ns(&health), now + pauses[i] * MS);
		assert_int_equal(health_standing(&health, now), HEALTH_CLOSED);
		now += pauses[i] * MS;
	}
	assert_int_equal(health_answered(&health, now), 1);
	assert_int_equal(health_answered(&health, now), 0);
	health_connect_failed(&health, now);
	assert_int_equal(health_ends_ns(&health), now + 100 * MS);
}

static void failures_shut_only_in_a_row(void **state)
{
	for (int round = 0; round < 10; round++) {
		for (int i = 1; i < HEALTH_FAILURES; i++)
			assert_int_equal(health_failed(&health, now), 0);
		health_answered(&health, now); /* a 4xx, too */
	}
	assert_int_equal(health_standing(&health, now), HEALTH_OPEN);
	for (int i = 1; i < HEALTH_FAILURES; i++)
		health_failed(&health, now);
	assert_int_equal(health_failed(&health, now), 1);
	assert_int_equal(health_standing(&health, now), HEALTH_CLOSED);
	assert_int_equal(health_ends_ns(&health), now + S);
}

static void streams_that_die_together_cost_one_pause(void **state)
{
	for (int i = 0; i < 200; i++)
		health_failed(&health, now + (uint64_t)i);
	assert_int_equal(health_ends_ns(&health), now + HEALTH_FAILURES - 1 + S);
}

static void exactly_one_request_is_the_trial(void **state)
{
	health_connect_failed(&health, now);
	now += 100 * MS;
	assert_int_equal(health_standing(&health, now), HEALTH_OPEN);
	assert_int_equal(health_dispatched(&health), 1);
	assert_int_equal(health_standing(&health, now), HEALTH_CLOSED);
	assert_int_equal(health_dispatched(&health), 0);
	now += 3600 * S; /* however long it takes */
	assert_int_equal(health_standing(&health, now), HEALTH_CLOSED);
	health_trial_void(&health);
	assert_int_equal(health_standing(&health, now), HEALTH_OPEN);
	assert_int_equal(health_dispatched(&health), 1);
	assert_int_equal(health_answered(&health, now), 1);
	assert_int_equal(health_dispatched(&health), 0);
}

static void one_failure_of_the_trial_shuts_for_twice_as_long(void **state)
{
	for (int i = 0; i < HEALTH_FAILURES; i++)
		health_failed(&health, now);
	now += S;
	health_dispatched(&health);
	health_failed(&health, now);
	assert_int_equal(health_ends_ns(&health), now + 2 * S);
}

static void a_refusal_spares_and_never_shuts(void **state)
{
	for (int i = 0; i < 1000; i++)
		health_refused(&health, now, 0);
	assert_int_equal(health_standing(&health, now), HEALTH_SPARED);
	assert_int_equal(health_standing(&health, now + 250 * MS), HEALTH_OPEN);
	health_refused(&health, now, 7 * S);
	health_refused(&health, now, 0); /* shortens nothing */
	assert_int_equal(health_standing(&health, now + 6 * S), HEALTH_SPARED);
	assert_int_equal(health_standing(&health, now + 7 * S), HEALTH_OPEN);
}

static void a_refusal_ends_a_trial_well(void **state)
{
	health_connect_failed(&health, now);
	now += 100 * MS;
	health_dispatched(&health);
	assert_int_equal(health_refused(&health, now, 0), 1);
	assert_int_equal(health_standing(&health, now), HEALTH_SPARED);
}

static void probes_have_hysteresis(void **state)
{
	assert_int_equal(health_probed(&health, now, 0), 0);
	assert_int_equal(health_probed(&health, now, 0), 0);
	health_probed(&health, now, 1);
	assert_int_equal(health_probed(&health, now, 0), 0);
	assert_int_equal(health_probed(&health, now, 0), 0);
	assert_int_equal(health_probed(&health, now, 0), 1);
	assert_int_equal(health_standing(&health, now), HEALTH_CLOSED);
	assert_int_equal(health_probed(&health, now, 1), 0);
	assert_int_equal(health_probed(&health, now, 1), 1);
	assert_int_equal(health_standing(&health, now), HEALTH_OPEN);
}

static void a_probe_alone_never_shuts_an_engine_that_is_heard(void **state)
{
	for (int i = 0; i < 100; i++, now += 4 * S) {
		health_answered(&health, now);
		health_probed(&health, now + 3 * S, 0);
	}
	assert_int_equal(health_standing(&health, now), HEALTH_OPEN);
}

static void good_probes_do_not_open_what_answers_wrongly(void **state)
{
	for (int i = 0; i < HEALTH_FAILURES; i++)
		health_failed(&health, now);
	for (int i = 0; i < 10; i++)
		health_probed(&health, now, 1);
	assert_int_equal(health_standing(&health, now), HEALTH_CLOSED);
	health_connect_failed(&health, now); /* now it is gone */
	health_probed(&health, now, 1);
	health_probed(&health, now, 1);
	assert_int_equal(health_standing(&health, now), HEALTH_OPEN);
}

static void an_engine_that_comes_back_starts_slowly(void **state)
{
	assert_true(health_slow(&health, now, 10 * S) == 0);
	health_connect_failed(&health, now);
	health_answered(&health, now);
	assert_true(health_slow(&health, now, 10 * S) == 1);
	assert_true(health_slow(&health, now + 5 * S, 10 * S) == 0.5);
	assert_true(health_slow(&health, now + 10 * S, 10 * S) == 0);
	assert_true(health_slow(&health, now + 10 * S, 0) == 0);
}

static void whatever_happens_it_can_be_tried_within_half_a_minute(void **state)
{
	uint64_t random = 42;

	for (int i = 0; i < 200000; i++) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		now += random % (100 * MS);
		switch (random >> 60) {
		case 0:
		case 1:
		case 2:
			health_failed(&health, now);
			break;
		case 3:
		case 4:
			health_connect_failed(&health, now);
			break;
		case 5:
			health_answered(&health, now);
			break;
		case 6:
			health_refused(&health, now, random % (5 * S));
			break;
		case 7:
		case 8:
			health_probed(&health, now, random >> 20 & 1);
			break;
		case 9:
			health_trial_void(&health);
			break;
		default:
			if (health_standing(&health, now) != HEALTH_CLOSED)
				health_dispatched(&health);
			break;
		}
		if (!health.trial)
			assert_true(health_ends_ns(&health) <= now + 30 * S);
		assert_true(health.trial == 0 || health.cause != HEALTH_NONE);
	}
}

#undef CLAIM

int main(void)
{
	static const struct CMUnitTest tests[] = {
#define CLAIM(name) cmocka_unit_test_setup(name, fresh)
		CLAIM(a_failed_connect_shuts_at_once_and_pauses_double),
		CLAIM(failures_shut_only_in_a_row),
		CLAIM(streams_that_die_together_cost_one_pause),
		CLAIM(exactly_one_request_is_the_trial),
		CLAIM(one_failure_of_the_trial_shuts_for_twice_as_long),
		CLAIM(a_refusal_spares_and_never_shuts),
		CLAIM(a_refusal_ends_a_trial_well),
		CLAIM(probes_have_hysteresis),
		CLAIM(a_probe_alone_never_shuts_an_engine_that_is_heard),
		CLAIM(good_probes_do_not_open_what_answers_wrongly),
		CLAIM(an_engine_that_comes_back_starts_slowly),
		CLAIM(whatever_happens_it_can_be_tried_within_half_a_minute),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
