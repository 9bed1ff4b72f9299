/* Claims about requeue: when a cold prompt gives way, to whom, and when it comes back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "router/stage/requeue.h"

#define MS 1000000ull

static struct stage_params params;
static struct requeue rq;
static struct requeue_cold cold, *about;
static struct requeue_pass pass[8];
/* 40,000 tokens at 4,000 a second: a step takes 2 s. */
static const struct requeue_send whole = {
	.uncached_tokens = 40000,
	.step_tokens = 8000,
	.going_tokens = 8000,
	.tokens_per_s = 4000,
	.step_s = 2,
};

static int setup(void **state)
{
	(void)state;
	stage_params_init(&params);
	memset(&rq, 0, sizeof(rq));
	memset(&cold, 0, sizeof(cold));
	memset(pass, 0, sizeof(pass));
	return 0;
}

static enum requeue_action poll_at(uint64_t ms)
{
	return requeue_poll(&rq, &params, 2, ms * MS, &about);
}

static void sent_at(uint64_t ms, const struct requeue_send *send)
{
	requeue_sent(&rq, &cold, 2, send, ms * MS);
}

static void a_cold_prompt_alone_is_left_alone(void **state)
{
	(void)state;
	sent_at(1000, &whole);

	assert_int_equal(poll_at(9000), REQUEUE_NOTHING);
	assert_int_equal(requeue_due_ns(&rq, &params, 2), REQUEUE_NEVER);
	assert_int_equal(requeue_poll(&rq, &params, 3, 9000 * MS, &about), REQUEUE_NOTHING);
	assert_false(requeue_may(&rq, 2, 0));
	assert_true(requeue_may(&rq, 3, 0));
}

static void it_gives_way_after_half_a_step(void **state)
{
	(void)state;
	sent_at(1000, &whole);
	requeue_enter(&rq, &pass[0], 2);

	assert_int_equal(poll_at(1999), REQUEUE_NOTHING);
	assert_int_equal(requeue_due_ns(&rq, &params, 2), 2000 * MS);
	assert_int_equal(poll_at(2000), REQUEUE_CLOSE);
	assert_ptr_equal(about, &cold);
	assert_int_equal(cold.computed_tokens, 4000);
	assert_int_equal(poll_at(2000), REQUEUE_NOTHING); /* said once */
}

static void a_short_step_still_runs_for_the_least_time(void **state)
{
	struct requeue_send quick = whole;

	(void)state;
	quick.step_s = 0.1;
	quick.step_tokens = quick.going_tokens = 400;
	sent_at(1000, &quick);
	requeue_enter(&rq, &pass[0], 2);
	assert_int_equal(poll_at(1399), REQUEUE_NOTHING);
	assert_int_equal(poll_at(1400), REQUEUE_CLOSE);
}

static void it_returns_when_all_who_waited_have_begun(void **state)
{
	(void)state;
	requeue_enter(&rq, &pass[0], 2); /* before it */
	sent_at(1000, &whole);
	requeue_enter(&rq, &pass[1], 2);
	assert_int_equal(poll_at(2500), REQUEUE_CLOSE);
	requeue_enter(&rq, &pass[2], 2); /* after: not waited for */
	requeue_leave(&rq, &pass[2]);
	requeue_leave(&rq, &pass[2]); /* twice is harmless */
	assert_int_equal(poll_at(2600), REQUEUE_NOTHING);
	requeue_leave(&rq, &pass[0]);
	assert_int_equal(poll_at(2700), REQUEUE_NOTHING);
	requeue_leave(&rq, &pass[1]);
	assert_int_equal(poll_at(2800), REQUEUE_SEND);
	assert_int_equal(poll_at(2800), REQUEUE_NOTHING);
	sent_at(2900, &whole);
	assert_int_equal(cold.state, REQUEUE_RUNNING);
}

static void it_returns_after_two_steps_whatever_happens(void **state)
{
	(void)state;
	sent_at(1000, &whole);
	requeue_enter(&rq, &pass[0], 2);
	assert_int_equal(poll_at(2500), REQUEUE_CLOSE);
	assert_int_equal(requeue_due_ns(&rq, &params, 2), 6500 * MS);
	assert_int_equal(poll_at(6499), REQUEUE_NOTHING);
	assert_int_equal(poll_at(6500), REQUEUE_SEND);
}

static void the_number_of_sends_is_bounded(void **state)
{
	uint64_t ms = 1000;
	unsigned closes = 0;

	(void)state;
	requeue_enter(&rq, &pass[0], 2);
	for (unsigned i = 0; i < 20; i++, ms += 10000) {
		sent_at(ms, &whole);
		closes += poll_at(ms + 1500) == REQUEUE_CLOSE;
		if (cold.state == REQUEUE_RUNNING)
			break;
		assert_int_equal(poll_at(ms + 9000), REQUEUE_SEND);
	}
	assert_int_equal(closes, 7); /* eight sends */
}

static void two_closes_keep_their_distance(void **state)
{
	(void)state;
	params.requeue_gap_s = 4;
	requeue_enter(&rq, &pass[0], 2);
	sent_at(1000, &whole);
	assert_int_equal(poll_at(2000), REQUEUE_CLOSE);
	assert_int_equal(poll_at(6000), REQUEUE_SEND);
	requeue_over(&rq, &cold);
	sent_at(2500, &whole);
	assert_int_equal(poll_at(5999), REQUEUE_NOTHING);
	assert_int_equal(poll_at(6000), REQUEUE_CLOSE);
}

static void a_prompt_that_is_nearly_done_is_left_alone(void **state)
{
	struct requeue_send queued = whole;

	(void)state;
	sent_at(1000, &whole);
	requeue_enter(&rq, &pass[0], 2);
	/* 24,000 done after 6 s; 8,000 under way, 8,000 left: not more than a step. */
	assert_int_equal(poll_at(7000), REQUEUE_NOTHING);
	requeue_over(&rq, &cold);
	queued.start_ns = 4000 * MS; /* it had to wait itself */
	sent_at(1000, &queued);
	queued.going_tokens = 20000; /* a plan that is made already */
	assert_int_equal(poll_at(7000), REQUEUE_CLOSE);
	assert_int_equal(cold.computed_tokens, 12000);
	requeue_over(&rq, &cold);
	sent_at(1000, &queued);
	assert_int_equal(poll_at(7000), REQUEUE_NOTHING);
}

static void an_engine_that_loses_what_it_computed_gets_no_more(void **state)
{
	(void)state;
	requeue_enter(&rq, &pass[0], 2);
	sent_at(1000, &whole);
	assert_int_equal(poll_at(3000), REQUEUE_CLOSE); /* 8,000 computed */
	requeue_over(&rq, &cold);
	assert_false(requeue_kept(&rq, &params, &cold, 6399, 9000 * MS));
	assert_false(requeue_kept(&rq, &params, &cold, 6400, 9000 * MS)); /* kept: starts afresh */
	assert_false(requeue_kept(&rq, &params, &cold, 0, 9000 * MS));
	assert_true(requeue_kept(&rq, &params, &cold, 0, 9000 * MS));
	assert_false(requeue_may(&rq, 2, 608000 * MS));
	assert_true(requeue_may(&rq, 2, 609000 * MS));
	cold.closes = 0; /* never closed: nothing to learn */
	assert_false(requeue_kept(&rq, &params, &cold, 0, 700000 * MS));
}

/* Any order of events: counts are never negative, every close is followed by a send or an end. */
static void random_events_keep_the_books(void **state)
{
	uint64_t ms = 1000;
	unsigned closes = 0, sends = 0, waiting;

	(void)state;
	srandom(3);
	for (unsigned i = 0; i < 200000; i++, ms += (uint64_t)random() % 400) {
		unsigned k = (unsigned)random() % 8;
		enum requeue_action action;

		if (pass[k].waiting)
			requeue_leave(&rq, &pass[k]);
		else if (random() % 3 == 0)
			requeue_enter(&rq, &pass[k], 2);
		if (cold.state == REQUEUE_IDLE) {
			cold.closes = 0;
			sent_at(ms, &whole);
		} else if (random() % 40 == 0) {
			closes -= cold.state == REQUEUE_AWAY;
			requeue_over(&rq, &cold);
		}
		action = poll_at(ms);
		closes += action == REQUEUE_CLOSE;
		sends += action == REQUEUE_SEND;
		if (action == REQUEUE_SEND)
			sent_at(ms, &whole);
		waiting = 0;
		for (unsigned n = 0; n < 8; n++)
			waiting += pass[n].waiting;
		assert_int_equal(rq.engine[2].waiting, waiting);
		assert_true(cold.owed <= waiting && cold.closes < 8);
		assert_int_equal(closes, sends + (cold.state == REQUEUE_AWAY));
	}
	assert_true(closes > 1000);
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_setup(name, setup)
	const struct CMUnitTest tests[] = {
		CLAIM(a_cold_prompt_alone_is_left_alone),
		CLAIM(it_gives_way_after_half_a_step),
		CLAIM(a_short_step_still_runs_for_the_least_time),
		CLAIM(it_returns_when_all_who_waited_have_begun),
		CLAIM(it_returns_after_two_steps_whatever_happens),
		CLAIM(the_number_of_sends_is_bounded),
		CLAIM(two_closes_keep_their_distance),
		CLAIM(a_prompt_that_is_nearly_done_is_left_alone),
		CLAIM(an_engine_that_loses_what_it_computed_gets_no_more),
		CLAIM(random_events_keep_the_books),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
