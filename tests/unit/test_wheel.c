/* The timer wheel against a plain table of due times: same timers, never early, at most a tick
 * late. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "shm/loop/wheel.h"

enum { TIMERS = 500, TICK_NS = 1000 * 1000 };

struct model {
	struct wheel wheel;
	struct wheel_timer timer[TIMERS];
	uint64_t due_ns[TIMERS]; /* 0 = not armed */
	uint64_t now_ns, random, armed;
};

static uint64_t next_random(struct model *m)
{
	m->random ^= m->random << 13;
	m->random ^= m->random >> 7;
	m->random ^= m->random << 17;
	return m->random;
}

static void model_init(struct model *m, uint64_t seed)
{
	*m = (struct model){ .now_ns = 123456789012345, .random = seed * 2654435761u + 1 };
	wheel_init(&m->wheel, TICK_NS, m->now_ns);
}

static void arm(struct model *m, unsigned i, uint64_t due_ns)
{
	m->armed += m->due_ns[i] == 0;
	m->due_ns[i] = due_ns;
	wheel_arm(&m->wheel, &m->timer[i], due_ns);
}

static void disarm(struct model *m, unsigned i)
{
	m->armed -= m->due_ns[i] != 0;
	m->due_ns[i] = 0;
	wheel_disarm(&m->wheel, &m->timer[i]);
}

/* Expires everything at now and compares with the table. */
static void expire(struct model *m)
{
	struct wheel_timer *t;

	while ((t = wheel_expire(&m->wheel, m->now_ns)) != NULL) {
		unsigned i = (unsigned)(t - m->timer);

		assert_true(m->due_ns[i] != 0);
		assert_true(m->due_ns[i] <= m->now_ns);
		assert_null(t->prev);
		m->due_ns[i] = 0;
		m->armed--;
	}
	for (unsigned i = 0; i < TIMERS; i++)
		assert_true(m->due_ns[i] == 0 || m->due_ns[i] + TICK_NS > m->now_ns);
	assert_int_equal(m->wheel.armed, m->armed);
}

/* The wait may be short by what was disarmed, never so long that a timer is more than a tick late.
 */
static void check_wait(struct model *m)
{
	uint64_t wait_ns = wheel_wait_ns(&m->wheel, m->now_ns), first_ns = UINT64_MAX;

	for (unsigned i = 0; i < TIMERS; i++) {
		if (m->due_ns[i] != 0 && m->due_ns[i] < first_ns)
			first_ns = m->due_ns[i];
	}
	if (first_ns == UINT64_MAX)
		assert_true(wait_ns == UINT64_MAX);
	else
		assert_true(wait_ns <= (first_ns > m->now_ns ? first_ns - m->now_ns : 0) + TICK_NS);
}

static uint64_t random_delay_ns(struct model *m)
{
	static const uint64_t reach_ns[] = {
		1, TICK_NS, 50ull * TICK_NS, 1000ull * TICK_NS, 1024ull * TICK_NS, 5000ull * TICK_NS
	};

	return next_random(m) % (reach_ns[next_random(m) % 6] + 1);
}

static void one_step(struct model *m)
{
	unsigned i = (unsigned)(next_random(m) % TIMERS);

	switch (next_random(m) % 8) {
	case 0:
		disarm(m, i);
		break;
	case 1: /* the past is due at once */
		arm(m, i, m->now_ns - next_random(m) % (3ull * TICK_NS));
		break;
	case 2:
		m->now_ns += random_delay_ns(m);
		expire(m);
		break;
	case 3: { /* sleep as long as the wheel says */
		uint64_t wait_ns = wheel_wait_ns(&m->wheel, m->now_ns);

		m->now_ns += wait_ns == UINT64_MAX ? 0 : wait_ns;
		expire(m);
		break;
	}
	default:
		arm(m, i, m->now_ns + random_delay_ns(m));
	}
}

static void any_course_fires_what_a_sorted_table_would(void **state)
{
	struct model *m = malloc(sizeof(*m));

	for (uint64_t seed = 1; seed <= 20; seed++) {
		model_init(m, seed);

		for (int step = 0; step < 5000; step++) {
			one_step(m);
			if (step % 16 == 0)
				check_wait(m);
		}
	}
	free(m);
}

static void a_sleeper_that_follows_the_wait_misses_nothing_and_ends(void **state)
{
	struct model *m = malloc(sizeof(*m));
	unsigned wakes = 0;

	model_init(m, 7);
	for (unsigned i = 0; i < TIMERS; i++)
		arm(m, i, m->now_ns + 1 + i * 20ull * TICK_NS);
	while (m->armed > 0) {
		uint64_t wait_ns = wheel_wait_ns(&m->wheel, m->now_ns);

		assert_true(wait_ns != UINT64_MAX);
		m->now_ns += wait_ns;
		expire(m);
		wakes++;
	}

	/* One wake for each, and a few for rounds of the wheel: no polling. */
	assert_true(wakes <= TIMERS + 20);
	assert_true(wheel_wait_ns(&m->wheel, m->now_ns) == UINT64_MAX);
	free(m);
}

static void a_wheel_that_slept_for_an_hour_finds_every_timer(void **state)
{
	struct model *m = malloc(sizeof(*m));

	model_init(m, 3);
	for (unsigned i = 0; i < TIMERS; i++)
		arm(m, i, m->now_ns + i * 7777777ull);

	m->now_ns += 3600ull * 1000 * TICK_NS;
	expire(m);

	assert_int_equal(m->armed, 0);
	free(m);
}

static void arming_again_moves_a_timer_and_disarming_twice_is_harmless(void **state)
{
	struct model *m = malloc(sizeof(*m));

	model_init(m, 5);
	arm(m, 0, m->now_ns + 10ull * TICK_NS);
	arm(m, 0, m->now_ns + 5000ull * TICK_NS);
	m->now_ns += 11ull * TICK_NS;
	assert_null(wheel_expire(&m->wheel, m->now_ns));
	disarm(m, 0);
	disarm(m, 0);
	m->now_ns += 6000ull * TICK_NS;

	assert_null(wheel_expire(&m->wheel, m->now_ns));
	assert_int_equal(m->wheel.armed, 0);
	free(m);
}

static void a_timer_disarmed_between_due_and_returned_stays_silent(void **state)
{
	struct model *m = malloc(sizeof(*m));
	struct wheel_timer *first;

	model_init(m, 9);
	arm(m, 0, m->now_ns + TICK_NS);
	arm(m, 1, m->now_ns + TICK_NS);
	m->now_ns += 3ull * TICK_NS;
	first = wheel_expire(&m->wheel, m->now_ns);
	assert_non_null(first);
	disarm(m, first == &m->timer[0] ? 1 : 0);

	assert_null(wheel_expire(&m->wheel, m->now_ns));
	free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_course_fires_what_a_sorted_table_would),
		cmocka_unit_test(a_sleeper_that_follows_the_wait_misses_nothing_and_ends),
		cmocka_unit_test(a_wheel_that_slept_for_an_hour_finds_every_timer),
		cmocka_unit_test(arming_again_moves_a_timer_and_disarming_twice_is_harmless),
		cmocka_unit_test(a_timer_disarmed_between_due_and_returned_stays_silent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
