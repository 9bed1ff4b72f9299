/* Every policy's formula on a small table, computed by hand. */
#include "tests/unit/policy_world.h"

#include "tests/lib/unit.h"

/*
 * The table: a turn of 30,000 tokens; 5,000 tokens/s, steps of 50 ms.
 *              requests  decoding  contexts  pending   hit
 *   engine 0      7         5       40,000    10,000   29,000
 *   engine 1      3         2       16,000    20,000        0
 *   engine 2      1         1        8,000         0   10,000
 */
static void table(struct world *w, enum policy_kind policy)
{
	static const struct {
		float requests, decoding, context, pending;
		uint32_t hit;
	} rows[3] = {
		{ 7, 5, 40000, 10000, 29000 },
		{ 3, 2, 16000, 20000, 0 },
		{ 1, 1, 8000, 0, 10000 },
	};

	world_init(w, policy, 3);
	w->request.prompt_tokens = 30000;
	for (int i = 0; i < 3; i++) {
		w->engine[i].num_requests = rows[i].requests;
		w->engine[i].decoding = rows[i].decoding;
		w->engine[i].decode_context_tokens = rows[i].context;
		w->engine[i].pending_prefill_tokens = rows[i].pending;
		w->engine[i].hit_tokens = rows[i].hit;
	}
}

static void assert_totals(struct world *w, double zero, double one, double two, int engine)
{
	world_choose(w);
	assert_near(w->choice.cost[0].total_s, zero, 1e-9);
	assert_near(w->choice.cost[1].total_s, one, 1e-9);
	assert_near(w->choice.cost[2].total_s, two, 1e-9);
	assert_int_equal(w->choice.engine, engine);
}

static void linear_adds_uncached_and_weighted_outstanding_tokens(void **state)
{
	struct world w;

	table(&w, POLICY_LINEAR);
	w.params.linear_load_weight = 0.25;
	/* (50,000 / 4 + 1,000) / 5,000; (36,000 / 4 + 30,000) / 5,000; (2,000 + 20,000) / 5,000 */
	assert_totals(&w, 2.7, 7.8, 4.4, 0);
	w.params.linear_load_weight = 1;
	assert_totals(&w, 10.2, 13.2, 5.6, 2);
}

static void v2_counts_prefill_only(void **state)
{
	struct world w;

	table(&w, POLICY_V2);
	assert_totals(&w, 2.0 + 0.2, 4.0 + 6.0, 0 + 4.0, 0);
}

static void v3_reads_decode_tokens_in_three_ways(void **state)
{
	struct world w;

	table(&w, POLICY_V3);
	w.params.overload_factor = 1000;
	/* outputs: 5, 2 and 1 x 200 tokens */
	assert_totals(&w, 2.2 + 0.2, 10.0 + 0.08, 4.0 + 0.04, 0);
	w.params.v3_decode_tokens = READING_CONTEXT;
	assert_totals(&w, 2.2 + 8.0, 10.0 + 3.2, 4.0 + 1.6, 2);
	w.params.v3_decode_tokens = READING_SEQUENCES;
	assert_totals(&w, 2.2 + 0.001, 10.0 + 0.0004, 4.0 + 0.0002, 0);
}

/* Backlogs 2.2, 4.08 and 0.04 s, mean 2.107: only engine 1 is above 1.5 times that. */
static void v3_leaves_out_engines_above_the_mean_unless_all_are(void **state)
{
	struct world w;

	table(&w, POLICY_V3);
	w.engine[1].hit_tokens = 30000; /* cheapest, were it not overloaded */
	w.engine[0].hit_tokens = 0;
	w.engine[2].hit_tokens = 0;
	w.params.overload_factor = 1.5;
	assert_int_equal(world_choose(&w), 2);
	assert_int_equal(w.choice.cost[1].left_out, LEFT_OUT_OVERLOADED);
	assert_int_equal(w.choice.cost[0].left_out, LEFT_OUT_CANDIDATE);
	w.params.overload_factor = 2;
	assert_int_equal(world_choose(&w), 1);
	w.nr = 1;
	w.params.overload_factor = 1;
	assert_int_equal(world_choose(&w), 0);
}

static void contention_charges_every_request_a_decode_step(void **state)
{
	struct world w;

	table(&w, POLICY_CONTENTION);
	/* 7, 3 and 1 x 0.05 + pending + own */
	assert_totals(&w, 0.35 + 2.0 + 0.2, 0.15 + 4.0 + 6.0, 0.05 + 0 + 4.0, 0);
	assert_near(w.choice.cost[0].decode_s, 0.35, 1e-9);
	assert_near(w.choice.cost[0].queue_s, 2.0, 1e-9);
	assert_near(w.choice.cost[0].prefill_s, 0.2, 1e-9);
}

static void measured_values_replace_the_priors(void **state)
{
	struct world w;

	table(&w, POLICY_CONTENTION);
	w.engine[0].prefill_tokens_per_s = 1000;
	w.engine[0].decode_iteration_s = 0.25f;
	assert_totals(&w, 2.55, 10.15, 4.05, 0); /* without the flags they are not in force */
	w.engine[0].flags |= POLICY_MEASURED_PREFILL | POLICY_MEASURED_DECODE;
	assert_totals(&w, 7 * 0.25 + 10.0 + 1.0, 10.15, 4.05, 2);
}

/* 4,000 and 5,500 tokens/s beside 5,000 are the same engine with other prompts; 2,000 is a slow
 * one. */
static void a_speed_near_the_median_is_the_median_and_one_beyond_the_band_counts(void **state)
{
	static const float speed[] = { 5000, 4000, 5500, 2000 };
	struct world w;

	world_init(&w, POLICY_V2, 5);
	for (unsigned i = 0; i < 4; i++) {
		w.engine[i].flags |= POLICY_MEASURED_PREFILL;
		w.engine[i].prefill_tokens_per_s = speed[i];
		w.engine[i].pending_prefill_tokens = 8000;
	}
	w.params.throughput = 4400; /* of the fifth, which has not been measured */

	world_choose(&w);

	double median_s = (1 / 5000.0 + 1 / 4000.0) / 2;

	for (unsigned i = 0; i < 3; i++)
		assert_near(w.choice.cost[i].total_s, 48000 * median_s, 1e-9);
	assert_near(w.choice.cost[3].total_s, 24.0, 1e-9);
	assert_near(w.choice.cost[4].total_s, 40000 * median_s, 1e-9);
	w.params.measured_band = 0;
	world_choose(&w);
	assert_near(w.choice.cost[1].total_s, 12.0, 1e-9);
	assert_near(w.choice.cost[4].total_s, 40000 / 4400.0, 1e-9);
}

/* Linear prefill here: harm is own x (0.5 + 0.1 x decoding), one decode pass per chunk of 8,192. */
static void eft_adds_step_passes_and_harm(void **state)
{
	struct world w;

	table(&w, POLICY_EFT);
	/* 11,000, 50,000 and 20,000 tokens are 2, 7 and 3 chunks */
	assert_totals(&w, 0.025 + 2.0 + 0.2 + 2 * 0.05 + 0.2 * 1.0,
		      0.025 + 4.0 + 6.0 + 7 * 0.05 + 6.0 * 0.7,
		      0.025 + 0.0 + 4.0 + 3 * 0.05 + 4.0 * 0.6, 0);
	assert_near(w.choice.predicted_raw_s, 0.025 + 2.0 + 0.2 + 0.1, 1e-9);
	w.params.harm_share = 0, w.params.harm_per_decode = 0.2;
	world_choose(&w);
	assert_near(w.choice.cost[1].harm_s, 6.0 * 0.4, 1e-9);
}

/* Engine 1 has 3 requests of which 2 decode. */
static void own_prefill_harms_those_that_wait_where_requests_are_counted(void **state)
{
	struct world w;

	table(&w, POLICY_EFT);
	w.params.harm_share = 0, w.params.harm_per_decode = 0, w.params.harm_per_request = 0.1;
	world_choose(&w);
	assert_near(w.choice.cost[1].harm_s, 6.0 * 0.3, 1e-9);
}

/* The 10,000 tokens ahead are charged as such; what they will take is for the prediction. */
static void eft_charges_tokens_ahead_and_predicts_their_seconds(void **state)
{
	struct world w;

	table(&w, POLICY_EFT);
	w.engine[0].flags |= POLICY_STEP_REST | POLICY_PENDING_S;
	w.engine[0].step_rest_s = 1.5f;
	w.engine[0].pending_prefill_s = 3.25f;
	world_choose(&w);

	assert_int_equal(w.choice.engine, 0);
	assert_true(w.choice.cost[0].step_s == 1.5);
	assert_near(w.choice.cost[0].queue_s, 2.0, 1e-9);
	assert_near(w.choice.predicted_raw_s, 1.5 + 3.25 + 0.2 + 0.1, 1e-9);
}

static void an_engine_without_decodes_has_no_steps_between_the_chunks(void **state)
{
	struct world w;

	world_init(&w, POLICY_EFT, 1);
	w.engine[0].pending_prefill_tokens = 30000;
	world_choose(&w);

	assert_true(w.choice.cost[0].step_s == 0 && w.choice.cost[0].passes_s == 0);
}

/* q8b: 1,000 new tokens on a cached context of 99,000 take 0.62 s, not 0.2 (facts of the H20). */
static void own_prefill_is_quadratic_also_for_cached_turns(void **state)
{
	struct world w;

	world_init(&w, POLICY_EFT, 1);
	policy_params_init(&w.params);
	double cached_s = policy_prefill_s(&w.params, &w.engine[0], 100000, 1000);
	double cold_s = policy_prefill_s(&w.params, &w.engine[0], 32768, 32768);

	assert_near(cached_s, 0.2029 + 2.05e-9 * (1e10 - 99000.0 * 99000), 1e-3);
	assert_near(cached_s, 0.61, 0.01);
	assert_near(32768 / cold_s, 3700, 40);
}

/* 1,250 tokens/s measured on long prompts: 8e-4 s a token, of which b x 250,000 = 5.125e-4. */
static void a_throughput_measured_on_long_prompts_is_freed_of_its_quadratic_part(void **state)
{
	struct world w;

	world_init(&w, POLICY_EFT, 1);
	policy_params_init(&w.params);
	w.engine[0].flags |= POLICY_MEASURED_PREFILL;
	w.engine[0].prefill_tokens_per_s = 1250;
	w.engine[0].prefill_context_tokens = 250000;
	double short_s = policy_prefill_s(&w.params, &w.engine[0], 1000, 1000);

	assert_near(short_s, 1000 * (8e-4 - 5.125e-4) + 2.05e-3, 1e-6);
	w.engine[0].prefill_context_tokens = 1e6; /* nonsense: a quarter stays */
	short_s = policy_prefill_s(&w.params, &w.engine[0], 1000, 1000);
	assert_near(short_s, 0.2 + 2.05e-3, 1e-6);
}

/* A short request passes between the pieces of a staged prompt; another long one does not. */
static void only_long_requests_count_what_is_staged(void **state)
{
	static const enum policy_kind models[] = { POLICY_CONTENTION, POLICY_EFT };

	for (unsigned k = 0; k < 2; k++) {
		struct world w;

		world_init(&w, models[k], 1);
		w.engine[0].staged_rest_tokens = 30000;
		world_choose(&w);
		assert_near(w.choice.cost[0].staged_s, 6.0, 1e-9);
		w.engine[0].hit_tokens = 40000 - 9600;
		world_choose(&w);
		assert_true(w.choice.cost[0].staged_s == 0);
	}
}

/* 30,000 of the 36,000 pending will be requeued: a short request waits for a step of 8,192 of them.
 */
static void only_long_requests_wait_for_a_cold_prompt_that_gives_way(void **state)
{
	static const enum policy_kind models[] = { POLICY_CONTENTION, POLICY_EFT };

	for (unsigned k = 0; k < 2; k++) {
		struct world w;

		world_init(&w, models[k], 1);
		w.engine[0].pending_prefill_tokens = 36000;
		w.engine[0].requeueable_tokens = 30000;
		world_choose(&w);
		assert_near(w.choice.cost[0].queue_s, 36000 / 5000.0, 1e-9);
		w.engine[0].hit_tokens = 40000 - 9600;
		world_choose(&w);
		assert_near(w.choice.cost[0].queue_s, (6000 + 8192) / 5000.0, 1e-9);
		w.engine[0].requeueable_tokens = 8000; /* less than a step: nothing to gain */
		world_choose(&w);
		assert_near(w.choice.cost[0].queue_s, 36000 / 5000.0, 1e-9);
	}
}

/* 39,000 tokens of 147,456 bytes at 10 GB/s take 0.575 s and 0.05 of set-up; computing them, 7.8.
 */
static void a_pull_is_priced_where_engines_can(void **state)
{
	struct world w;

	world_init(&w, POLICY_CONTENTION, 3);
	w.params.kv_transfer = 1;
	w.engine[0].hit_tokens = 39000;
	w.engine[0].flags |= POLICY_SOURCE;
	w.engine[0].pending_prefill_tokens = 50000;
	w.engine[1].flags |= POLICY_PULLS;
	double pull_s = 0.05 + 39000 * 147456.0 / 10e9;

	assert_int_equal(world_choose(&w), 1);
	assert_near(w.choice.cost[1].prefill_s, pull_s + 0.2, 1e-9);
	assert_int_equal(w.choice.cost[1].pull_from, 0);
	assert_int_equal(w.choice.cost[1].pull_tokens, 39000);
	assert_int_equal(w.choice.cost[1].uncached_tokens, 1000);
	assert_int_equal(w.choice.cost[2].pull_from, -1);
	assert_near(w.choice.cost[2].prefill_s, 8.0, 1e-9);

	w.params.kv_transfer_bandwidth = 0.5e9; /* 11.5 s: computing is faster */
	world_choose(&w);
	assert_int_equal(w.choice.cost[1].pull_from, -1);
	w.params.kv_transfer_bandwidth = 10e9;
	w.params.kv_transfer = 0;
	world_choose(&w);
	assert_near(w.choice.cost[1].prefill_s, 8.0, 1e-9);
}

/* Turn 3, home 0; engine 2 costs 4.05 s of which 4 are prefill. */
static void the_discount_of_a_move_has_four_forms(void **state)
{
	static const struct {
		enum migration_discount form;
		unsigned turn;
		double discount_s;
	} cases[] = {
		{ DISCOUNT_NONE, 3, 0 },
		{ DISCOUNT_AUTO, 3, 3 * 0.05 }, /* contention's own: subtract */
		{ DISCOUNT_SUBTRACT, 3, 3 * 0.05 },
		{ DISCOUNT_SUBTRACT, 9, 5 * 0.05 }, /* the cap */
		{ DISCOUNT_SUBTRACT, 1, 0 },
		{ DISCOUNT_AMORTISE, 3, 4.0 - 4.0 / 3 },
		{ DISCOUNT_AMORTISE, 20, 4.0 - 4.0 / 5 },
		{ DISCOUNT_PERCENT, 3, 0.3 * 4.05 },
		{ DISCOUNT_PERCENT, 7, 0.5 * 4.05 },
	};

	for (unsigned k = 0; k < sizeof(cases) / sizeof(*cases); k++) {
		struct world w;

		table(&w, POLICY_CONTENTION);
		w.request.home = 0;
		w.request.turn = cases[k].turn;
		w.params.migration_discount = cases[k].form;
		world_choose(&w);

		assert_near(w.choice.cost[2].discount_s, cases[k].discount_s, 1e-9);
		assert_near(w.choice.cost[2].total_s, 4.05 - cases[k].discount_s, 1e-9);
		assert_true(w.choice.cost[0].discount_s == 0);
	}
}

static void eft_has_no_discount_of_its_own(void **state)
{
	struct world w;

	table(&w, POLICY_EFT);
	w.request.home = 0, w.request.turn = 3;
	world_choose(&w);

	assert_true(w.choice.cost[2].discount_s == 0);
}

static void least_requests_counts_requests_per_weight(void **state)
{
	struct world w;

	table(&w, POLICY_LEAST_REQUESTS);
	assert_int_equal(world_choose(&w), 2);
	w.engine[2].weight = 0.25f; /* 1 / 0.25 against 3 */
	assert_int_equal(world_choose(&w), 1);
	assert_int_equal(w.choice.reason, REASON_FEWEST);
}

static void round_robin_goes_by_id_and_over_the_gaps(void **state)
{
	static const int order[] = { 2, 0, 3, 2, 0, 3 };
	struct world w;

	world_init(&w, POLICY_ROUND_ROBIN, 4);
	w.engine[2].id = 0, w.engine[0].id = 5, w.engine[3].id = 7, w.engine[1].id = 6;
	w.engine[1].flags |= POLICY_DRAINED;
	for (unsigned n = 0; n < 6; n++) {
		assert_int_equal(world_choose(&w), order[n]);
		w.request.cursor = w.choice.cursor;
	}
}

static void power_of_two_never_takes_the_fullest(void **state)
{
	struct world w;
	uint64_t seed = 1;
	unsigned taken[3] = { 0 };

	table(&w, POLICY_POWER_OF_TWO);
	for (int n = 0; n < 3000; n++) {
		w.request.random[0] = world_random(&seed);
		w.request.random[1] = world_random(&seed);
		taken[world_choose(&w)]++;
	}
	assert_int_equal(taken[0], 0);
	assert_true(taken[1] > 900 && taken[1] < 1100); /* drawn with engine 0: one pair of three */
}

static void sticky_follows_its_home_and_places_new_sessions_by_requests(void **state)
{
	struct world w;

	table(&w, POLICY_STICKY);
	assert_int_equal(world_choose(&w), 2);
	w.request.home = 0;
	assert_int_equal(world_choose(&w), 0);
	assert_int_equal(w.choice.reason, REASON_HOME);
}

static void a_faster_world_divides_every_time(void **state)
{
	struct world slow, fast;

	table(&slow, POLICY_EFT);
	slow.params.attention_s = 2e-9;
	fast = slow;
	policy_params_scale(&fast.params, 8);
	world_choose(&slow);
	world_choose(&fast);

	assert_near(fast.params.decode_iteration_s, 0.05 / 8, 1e-15);
	assert_near(fast.params.migration_request_factor, 1.5, 0);
	for (int i = 0; i < 3; i++)
		assert_near(fast.choice.cost[i].total_s * 8, slow.choice.cost[i].total_s, 1e-9);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(linear_adds_uncached_and_weighted_outstanding_tokens),
		CLAIM(v2_counts_prefill_only),
		CLAIM(v3_reads_decode_tokens_in_three_ways),
		CLAIM(v3_leaves_out_engines_above_the_mean_unless_all_are),
		CLAIM(contention_charges_every_request_a_decode_step),
		CLAIM(measured_values_replace_the_priors),
		CLAIM(a_speed_near_the_median_is_the_median_and_one_beyond_the_band_counts),
		CLAIM(eft_adds_step_passes_and_harm),
		CLAIM(own_prefill_harms_those_that_wait_where_requests_are_counted),
		CLAIM(eft_charges_tokens_ahead_and_predicts_their_seconds),
		CLAIM(an_engine_without_decodes_has_no_steps_between_the_chunks),
		CLAIM(own_prefill_is_quadratic_also_for_cached_turns),
		CLAIM(a_throughput_measured_on_long_prompts_is_freed_of_its_quadratic_part),
		CLAIM(only_long_requests_count_what_is_staged),
		CLAIM(only_long_requests_wait_for_a_cold_prompt_that_gives_way),
		CLAIM(a_pull_is_priced_where_engines_can),
		CLAIM(the_discount_of_a_move_has_four_forms),
		CLAIM(eft_has_no_discount_of_its_own),
		CLAIM(least_requests_counts_requests_per_weight),
		CLAIM(round_robin_goes_by_id_and_over_the_gaps),
		CLAIM(power_of_two_never_takes_the_fullest),
		CLAIM(sticky_follows_its_home_and_places_new_sessions_by_requests),
		CLAIM(a_faster_world_divides_every_time),
	};

	return cmocka_run_group_tests_name("policy_costs", tests, NULL, NULL);
}
