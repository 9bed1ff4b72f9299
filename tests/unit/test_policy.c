/* The incidents that the policies exist for, and who may take a request at all. */
#include "tests/unit/policy_world.h"

#include "tests/lib/unit.h"

static const enum policy_kind cost_models[] = { POLICY_CONTENTION, POLICY_EFT };

/* The incident that started this project: 99 % cached, and queued behind a crowd. */
static void a_warm_cache_does_not_outweigh_a_long_queue(void **state)
{
	for (unsigned k = 0; k < 2; k++) {
		struct world w;

		world_init(&w, cost_models[k], 2);
		world_settle(&w, 0, 3);
		world_decode(&w, 0, 4);
		world_decode(&w, 1, 4);
		w.engine[0].pending_prefill_tokens = 100000; /* 20 s, a cold one takes 8 here */
		w.engine[0].num_requests += 3;

		assert_int_equal(world_choose(&w), 1);
		assert_int_equal(w.choice.reason, REASON_MOVED);
		assert_true(w.choice.cost[0].queue_s > 19.9 && w.choice.cost[0].queue_s < 20.1);
	}
}

static void a_decode_crowd_counts_under_contention_and_not_under_v2(void **state)
{
	struct world w;

	world_init(&w, POLICY_CONTENTION, 2);
	w.request.prompt_tokens = 2000;
	world_decode(&w, 0, 200);
	w.engine[0].hit_tokens = 1900;

	assert_int_equal(world_choose(&w), 1);
	w.params.policy = POLICY_V2;
	assert_int_equal(world_choose(&w), 0);
}

static void a_session_stays_home_while_home_is_not_busy(void **state)
{
	for (unsigned k = 0; k < 2; k++) {
		struct world w;

		world_init(&w, cost_models[k], 8);
		world_settle(&w, 5, 2);
		world_decode(&w, 5, 6);

		assert_int_equal(world_choose(&w), 5);
		assert_int_equal(w.choice.reason, REASON_HOME);
	}
}

/* B08, B13: each dispatch is charged before the next decision, as the ledger does. */
static void identical_cold_prompts_in_a_burst_spread(void **state)
{
	for (int policy = POLICY_LEAST_REQUESTS; policy < POLICIES_NR; policy++) {
		struct world w;
		unsigned taken[8] = { 0 };
		uint64_t seed = 5;

		if (policy == POLICY_POWER_OF_TWO)
			continue; /* spreads, but not evenly */
		world_init(&w, (enum policy_kind)policy, 8);
		w.request.prompt_tokens = 32000;
		for (int n = 0; n < 64; n++) {
			w.request.random[0] = world_random(&seed);
			int i = world_choose(&w);

			taken[i]++;
			w.engine[i].num_requests++;
			w.engine[i].pending_prefill_tokens += 32000;
		}
		for (int i = 0; i < 8; i++)
			assert_int_equal(taken[i], 8);
	}
}

static void ties_are_drawn_and_not_given_to_the_first(void **state)
{
	for (int policy = POLICY_LEAST_REQUESTS; policy < POLICIES_NR; policy++) {
		struct world w;
		unsigned taken[8] = { 0 };
		uint64_t seed = 11;

		world_init(&w, (enum policy_kind)policy, 8);
		for (int n = 0; n < 4000; n++) {
			w.request.random[0] = world_random(&seed);
			w.request.random[1] = world_random(&seed);
			taken[world_choose(&w)]++;
		}
		for (int i = 0; i < 8; i++)
			assert_true(taken[i] > 400 && taken[i] < 600);
	}
}

/* Everybody's 6,000-token system prompt lies on engine 0. */
static void a_shared_system_prompt_does_not_pull_all_sessions_to_one_engine(void **state)
{
	for (unsigned k = 0; k < 2; k++) {
		struct world w;
		unsigned taken[4] = { 0 };

		world_init(&w, cost_models[k], 4);
		w.request.prompt_tokens = 10000;
		w.engine[0].hit_tokens = 6000;
		for (int n = 0; n < 40; n++) {
			int i = world_choose(&w);

			taken[i]++;
			w.engine[i].num_requests++;
			w.engine[i].pending_prefill_tokens += 10000 - (float)w.engine[i].hit_tokens;
			w.engine[i].hit_tokens = 6000;
		}
		for (int i = 0; i < 4; i++)
			assert_true(taken[i] >= 8 && taken[i] <= 12);
	}
}

/* B10: a cache miss goes where there is room, not where the cache is large. */
static void an_idle_engine_beats_a_busy_one_when_nothing_is_cached(void **state)
{
	for (int policy = POLICY_LEAST_REQUESTS; policy < POLICIES_NR; policy++) {
		struct world w;

		if (policy == POLICY_POWER_OF_TWO)
			continue;
		world_init(&w, (enum policy_kind)policy, 3);
		for (unsigned i = 0; i < 2; i++) {
			world_decode(&w, i, 10);
			w.engine[i].pending_prefill_tokens = 60000;
		}

		assert_int_equal(world_choose(&w), 2);
	}
}

/* B23: how full the KV cache is does not count until the prompt no longer fits. */
static void kv_usage_is_a_barrier_and_not_a_slope(void **state)
{
	struct world w;

	world_init(&w, POLICY_EFT, 2);
	for (unsigned i = 0; i < 2; i++) {
		w.engine[i].kv_capacity_tokens = 400000;
		w.engine[i].kv_used_tokens = i == 0 ? 350000 : 10000;
		world_choose(&w);
		assert_true(w.choice.cost[0].kv_wait_s == 0);
	}
	assert_true(w.choice.cost[0].total_s == w.choice.cost[1].total_s);

	w.engine[0].kv_used_tokens = 380000; /* 20,000 of 40,000 are missing */
	assert_int_equal(world_choose(&w), 1);
	/* 200 tokens x 50 ms x 20000 / 380000 */
	assert_near(w.choice.cost[0].kv_wait_s, 10.0 * 20000 / 380000, 1e-9);

	/* Two prompts wait for room already; the session's answers are of 1,800 tokens. */
	w.engine[0].kv_used_tokens = 480000;
	w.request.output_tokens = 1800;
	world_choose(&w);
	assert_near(w.choice.cost[0].kv_wait_s, 1800 * 0.05 * 120000 / 400000, 1e-9);
}

static void who_may_not_take_it_is_left_out_with_a_reason(void **state)
{
	static const struct {
		uint32_t set, clear;
		enum policy_left_out why;
	} cases[] = {
		{ 0, POLICY_SERVES, LEFT_OUT_MODEL },    { 0, POLICY_ALIVE, LEFT_OUT_DOWN },
		{ POLICY_DRAINED, 0, LEFT_OUT_DRAINED }, { POLICY_EXCLUDED, 0, LEFT_OUT_EXCLUDED },
		{ POLICY_STALLED, 0, LEFT_OUT_STALLED },
	};

	for (unsigned k = 0; k < sizeof(cases) / sizeof(*cases); k++)
		for (int policy = 0; policy < POLICIES_NR; policy++) {
			struct world w;

			world_init(&w, (enum policy_kind)policy, 2);
			world_settle(&w, 0, 2);
			world_decode(&w, 1, 3);
			w.engine[0].flags |= cases[k].set;
			w.engine[0].flags &= ~cases[k].clear;

			assert_int_equal(world_choose(&w), 1);
			assert_int_equal(w.choice.cost[0].left_out, cases[k].why);
			assert_int_equal(w.choice.reason, REASON_ONLY);
		}
}

static void a_lost_home_is_named_and_its_session_placed_by_cost(void **state)
{
	struct world w;

	world_init(&w, POLICY_EFT, 3);
	world_settle(&w, 0, 4);
	w.engine[0].flags |= POLICY_DRAINED;
	world_decode(&w, 1, 4);

	assert_int_equal(world_choose(&w), 2);
	assert_int_equal(w.choice.reason, REASON_HOME_LOST);
}

static void no_engine_is_an_answer(void **state)
{
	struct world w;

	world_init(&w, POLICY_CONTENTION, 2);
	w.engine[0].flags = POLICY_SERVES;
	w.engine[1].flags = POLICY_ALIVE;

	assert_int_equal(world_choose(&w), -1);
	assert_int_equal(w.choice.reason, REASON_NONE);
	w.nr = 0;
	assert_int_equal(world_choose(&w), -1);
}

static void stalled_and_weightless_engines_are_the_last_resort(void **state)
{
	struct world w;

	world_init(&w, POLICY_EFT, 3);
	w.engine[0].flags |= POLICY_STALLED;
	w.engine[1].weight = 0;
	w.engine[2].flags |= POLICY_EXCLUDED;

	assert_int_equal(world_choose(&w), 1);
	assert_int_equal(w.choice.reason, REASON_LAST_RESORT);
	w.engine[1].flags |= POLICY_DRAINED;
	assert_int_equal(world_choose(&w), 0);
	assert_int_equal(w.choice.reason, REASON_LAST_RESORT);
}

static void a_prompt_too_long_for_one_engine_goes_to_one_that_holds_it(void **state)
{
	struct world w;

	world_init(&w, POLICY_CONTENTION, 3);
	w.engine[0].max_model_len = 32768;
	w.engine[1].kv_capacity_tokens = 30000;
	world_decode(&w, 2, 50);

	assert_int_equal(world_choose(&w), 2);
	assert_int_equal(w.choice.cost[0].left_out, LEFT_OUT_TOO_LONG);
	assert_int_equal(w.choice.cost[1].left_out, LEFT_OUT_TOO_LONG);
	w.engine[2].max_model_len = 1000; /* too long for all: the engine shall say so */
	assert_int_equal(world_choose(&w), 0);
	assert_int_equal(w.choice.reason, REASON_DRAWN);
}

static void a_bound_request_goes_to_the_engine_that_holds_its_state(void **state)
{
	struct world w;

	world_init(&w, POLICY_EFT, 2);
	w.request.home = 0;
	w.request.flags = POLICY_NO_MIGRATION;
	w.engine[0].pending_prefill_tokens = 1e6;

	assert_int_equal(world_choose(&w), 0);
	assert_int_equal(w.choice.reason, REASON_BOUND);
}

/* Half the weight: half the traffic, in every policy that balances. */
static void weight_sets_the_share(void **state)
{
	for (int policy = 0; policy < POLICIES_NR; policy++) {
		struct world w;
		unsigned taken[3] = { 0 };
		uint64_t seed = 3;

		if (policy == POLICY_POWER_OF_TWO || policy == POLICY_V3)
			continue; /* two of three drawn; v3's gate knows no weights */
		world_init(&w, (enum policy_kind)policy, 3);
		w.request.prompt_tokens = 100;
		w.engine[0].weight = 0.5f;
		for (int n = 0; n < 500; n++) {
			w.request.random[0] = world_random(&seed);
			int i = world_choose(&w);

			w.request.cursor = w.choice.cursor;
			taken[i]++;
			w.engine[i].num_requests++;
			w.engine[i].pending_prefill_tokens += 100;
		}
		assert_true(taken[0] >= 95 && taken[0] <= 105);
		assert_true(taken[1] >= 195 && taken[2] >= 195);
	}
}

/* A record frozen at "idle" must not draw the herd, and one frozen at "busy" must not repel it. */
static void an_unknown_engine_is_neither_empty_nor_infinite(void **state)
{
	for (unsigned k = 0; k < 2; k++) {
		struct world w;

		world_init(&w, cost_models[k], 4);
		for (unsigned i = 1; i < 4; i++)
			w.engine[i].pending_prefill_tokens = 10000.0f * (float)i;
		w.engine[0].staleness = STALENESS_UNKNOWN;
		w.engine[0].age_s = 1e6f;

		assert_int_equal(world_choose(&w), 1);
		assert_near(w.choice.cost[0].unknown_s, 4.0, 1e-6); /* median 20,000 */
		assert_near(w.choice.cost[0].total_s, w.choice.cost[2].total_s, 1e-6);
		w.engine[1].pending_prefill_tokens = 25000;
		assert_int_equal(world_choose(&w), 2);
		w.engine[2].pending_prefill_tokens = 30000;
		assert_int_equal(world_choose(&w), 1); /* own median now */
		w.engine[0].pending_prefill_tokens = 1000000;
		assert_true(world_choose(&w) != 0); /* own books count even so */
		assert_true(w.choice.cost[0].unknown_s == 0);
	}
}

static void with_no_record_at_all_own_books_decide(void **state)
{
	struct world w;

	world_init(&w, POLICY_EFT, 3);
	for (unsigned i = 0; i < 3; i++)
		w.engine[i].staleness = STALENESS_UNKNOWN;
	w.engine[0].pending_prefill_tokens = 5000;
	w.engine[2].pending_prefill_tokens = 6000;

	assert_int_equal(world_choose(&w), 1);
	assert_true(w.choice.cost[1].unknown_s == 0);
}

static void an_aged_record_is_penalised_by_the_time_it_is_late(void **state)
{
	struct world w;

	world_init(&w, POLICY_EFT, 2);
	w.engine[0].staleness = STALENESS_AGED;
	w.engine[0].age_s = 1.25f, w.engine[0].fresh_s = 0.25f;
	w.engine[1].age_s = 0.25f, w.engine[1].fresh_s = 0.25f;

	assert_int_equal(world_choose(&w), 1);
	assert_near(w.choice.cost[0].penalty_s, 0.5, 1e-9);
	assert_true(w.choice.cost[1].penalty_s == 0);
}

static void an_engine_that_claims_unseen_work_is_probed_by_short_requests_only(void **state)
{
	struct world w;

	world_init(&w, POLICY_CONTENTION, 3);
	w.engine[0].flags |= POLICY_PROBE;
	w.engine[0].num_requests = 500;
	world_decode(&w, 1, 20);
	world_decode(&w, 2, 30);

	w.request.prompt_tokens = 40000;
	assert_int_equal(world_choose(&w), 1);
	w.request.prompt_tokens = 1000;
	world_choose(&w);
	assert_near(w.choice.cost[0].total_s, 0.2 + 25 * 0.05, 1e-9); /* median wait */
	world_decode(&w, 1, 20);
	world_decode(&w, 2, 20);
	world_choose(&w);
	assert_true(w.choice.cost[0].total_s < w.choice.cost[2].total_s);
}

/* B16: one engine answers 2.5 times later than the model says; the noise of the others is ignored.
 */
static void calibration_finds_the_slow_engine_and_ignores_noise(void **state)
{
	struct world w;

	world_init(&w, POLICY_EFT, 4);
	w.engine[0].calibration = 2.5f;
	w.engine[1].calibration = 1.1f;
	w.engine[2].calibration = 0.9f;
	w.engine[3].calibration = 1.0f;

	assert_true(world_choose(&w) != 0);
	assert_near(w.choice.cost[0].factor, 2.5 / 1.05, 1e-6);
	for (int i = 1; i < 4; i++)
		assert_true(w.choice.cost[i].factor == 1);
	w.params.calibration_max = 1;
	world_choose(&w);
	assert_true(w.choice.cost[0].factor == 1);
}

static void a_single_measured_engine_is_calibrated_against_nobody(void **state)
{
	struct world w;

	world_init(&w, POLICY_EFT, 4);
	w.engine[0].calibration = 4;
	world_choose(&w);

	assert_true(w.choice.cost[0].factor == 1);
}

static void classes_follow_length_and_hit(void **state)
{
	struct world w;

	world_init(&w, POLICY_EFT, 2);
	world_choose(&w);
	assert_int_equal(w.choice.class, CLASS_HEAVY);
	w.engine[1].hit_tokens = 39900;
	world_choose(&w);
	assert_int_equal(w.choice.class, CLASS_HEAVY);
	w.request.prompt_tokens = 10000;
	w.engine[1].hit_tokens = 0;
	world_choose(&w);
	assert_int_equal(w.choice.class, CLASS_MEDIUM);
	w.engine[1].hit_tokens = 9000;
	world_choose(&w);
	assert_int_equal(w.choice.class, CLASS_WARM);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(a_warm_cache_does_not_outweigh_a_long_queue),
		CLAIM(a_decode_crowd_counts_under_contention_and_not_under_v2),
		CLAIM(a_session_stays_home_while_home_is_not_busy),
		CLAIM(identical_cold_prompts_in_a_burst_spread),
		CLAIM(ties_are_drawn_and_not_given_to_the_first),
		CLAIM(a_shared_system_prompt_does_not_pull_all_sessions_to_one_engine),
		CLAIM(an_idle_engine_beats_a_busy_one_when_nothing_is_cached),
		CLAIM(kv_usage_is_a_barrier_and_not_a_slope),
		CLAIM(who_may_not_take_it_is_left_out_with_a_reason),
		CLAIM(a_lost_home_is_named_and_its_session_placed_by_cost),
		CLAIM(no_engine_is_an_answer),
		CLAIM(stalled_and_weightless_engines_are_the_last_resort),
		CLAIM(a_prompt_too_long_for_one_engine_goes_to_one_that_holds_it),
		CLAIM(a_bound_request_goes_to_the_engine_that_holds_its_state),
		CLAIM(weight_sets_the_share),
		CLAIM(an_unknown_engine_is_neither_empty_nor_infinite),
		CLAIM(with_no_record_at_all_own_books_decide),
		CLAIM(an_aged_record_is_penalised_by_the_time_it_is_late),
		CLAIM(an_engine_that_claims_unseen_work_is_probed_by_short_requests_only),
		CLAIM(calibration_finds_the_slow_engine_and_ignores_noise),
		CLAIM(a_single_measured_engine_is_calibrated_against_nobody),
		CLAIM(classes_follow_length_and_hit),
	};

	return cmocka_run_group_tests_name("policy", tests, NULL, NULL);
}
