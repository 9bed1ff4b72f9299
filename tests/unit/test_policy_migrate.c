/* When a session leaves its home, by rule and by price, and how it is said. */
#include "tests/unit/policy_world.h"

#include "tests/lib/unit.h"

/*
 * Turn 3 of a 40,000-token session: home 0 has all but 800 tokens of it, 5,000 tokens/s. Moving
 * costs 39,200 tokens more, 7.84 s; eft's harm without decodes is half of own prefill: 11.76 s in
 * all.
 */
static void session(struct world *w, enum policy_kind policy)
{
	world_init(w, policy, 3);
	world_settle(w, 0, 3);
	w->params.migration_discount = DISCOUNT_NONE;
	w->engine[2].num_requests = 1; /* engine 1 is the better target */
	w->engine[2].pending_prefill_tokens = 100;
}

static void home_waits(struct world *w, double seconds)
{
	w->engine[0].pending_prefill_tokens = (float)(seconds * 5000);
}

static void a_move_must_gain_its_margin_after_the_extra_prefill(void **state)
{
	struct world w;

	session(&w, POLICY_CONTENTION);
	home_waits(&w, 7.84 + 1.9); /* gains 1.9; must gain 25 % of 7.84 = 1.96 */
	assert_int_equal(world_choose(&w), 0);
	assert_int_equal(w.choice.reason, REASON_STAYED);
	assert_int_equal(w.choice.move, MOVE_PRICE);
	assert_int_equal(w.choice.target, 1);
	assert_near(w.choice.gain_s, 1.9, 1e-3);
	assert_near(w.choice.margin_s, 1.96, 1e-6);
	assert_near(w.choice.extra_prefill_s, 7.84, 1e-6);

	home_waits(&w, 7.84 + 2.0);
	assert_int_equal(world_choose(&w), 1);
	assert_int_equal(w.choice.reason, REASON_MOVED);
	assert_int_equal(w.choice.move, MOVE_MADE);
}

static void without_priced_migration_the_cost_model_chooses_freely(void **state)
{
	struct world w;

	session(&w, POLICY_CONTENTION);
	w.params.migrate = MIGRATE_OFF;
	home_waits(&w, 7.84 + 0.5);

	assert_int_equal(world_choose(&w), 1);
	assert_int_equal(w.choice.reason, REASON_MOVED);
	assert_int_equal(w.choice.trigger, TRIGGER_NONE);
}

/* Home lost its cache: nothing is computed twice, so nothing holds the session back. */
static void where_nothing_is_computed_again_nothing_protects_home(void **state)
{
	struct world w;

	session(&w, POLICY_CONTENTION);
	w.engine[0].hit_tokens = 0;
	home_waits(&w, 0.3);
	w.request.since_move_s = 1;
	w.request.moves = 5;

	assert_int_equal(world_choose(&w), 1);
	assert_true(w.choice.margin_s == 0);
}

static void cool_down_and_budgets_hold_a_session_back(void **state)
{
	static const struct {
		float since_move_s, budget;
		uint32_t turns, moves;
		int engine;
		enum policy_move move;
	} cases[] = {
		{ -1, -1, 0, 0, 1, MOVE_MADE },
		{ 5, -1, 1, 1, 0, MOVE_COOLDOWN },
		{ 11, -1, 1, 1, 1, MOVE_MADE },
		{ 11, -1, 0, 1, 0, MOVE_COOLDOWN }, /* the last turn moved */
		{ 11, -1, 3, 2, 0, MOVE_BUDGET },
		{ -1, 0.5f, 0, 0, 0, MOVE_BUDGET },
		{ -1, 1, 0, 0, 1, MOVE_MADE },
	};

	for (unsigned k = 0; k < sizeof(cases) / sizeof(*cases); k++) {
		struct world w;

		session(&w, POLICY_CONTENTION);
		home_waits(&w, 7.84 + 5);
		w.request.since_move_s = cases[k].since_move_s;
		w.request.move_budget = cases[k].budget;
		w.request.turns_since_move = cases[k].turns;
		w.request.moves = cases[k].moves;

		assert_int_equal(world_choose(&w), cases[k].engine);
		assert_int_equal(w.choice.move, cases[k].move);
	}
}

/* 38 of 298 hot turns waited 5 to 150 s: no budget shall cause that again. */
static void a_great_gain_waits_for_no_budget(void **state)
{
	struct world w;

	session(&w, POLICY_CONTENTION);
	home_waits(&w, 7.84 + 11);
	w.request.since_move_s = 1;
	w.request.moves = 2;
	w.request.move_budget = 0;

	assert_int_equal(world_choose(&w), 1);
}

/* The design's rule: it moves although staying is cheaper by far. */
static void force_moves_whatever_it_costs_and_priced_does_not(void **state)
{
	struct world w;

	session(&w, POLICY_CONTENTION);
	w.params.migration_trigger = TRIGGER_FACTOR;
	world_decode(&w, 0, 12);
	w.params.migrate = MIGRATE_FORCE;
	assert_int_equal(world_choose(&w), 1);
	assert_int_equal(w.choice.reason, REASON_FORCED);
	assert_int_equal(w.choice.trigger, TRIGGER_FACTOR);
	assert_true(w.choice.gain_s < -7);

	w.params.migrate = MIGRATE_PRICED;
	assert_int_equal(world_choose(&w), 0);
	assert_int_equal(w.choice.reason, REASON_HOME);
	assert_int_equal(w.choice.trigger, TRIGGER_FACTOR);
	assert_int_equal(w.choice.move, MOVE_PRICE);
	assert_int_equal(w.choice.target, 1);
}

static int forced(struct world *w)
{
	w->params.migrate = MIGRATE_FORCE;
	world_choose(w);
	return w->choice.reason == REASON_FORCED;
}

static void each_trigger_fires_above_its_bound_and_not_at_it(void **state)
{
	struct world w;

	session(&w, POLICY_CONTENTION);
	w.params.migration_trigger =
		TRIGGER_FACTOR; /* mean (n + 1) / 3, x 1.5: from n = 2 on ... */
	w.engine[0].num_requests = 1;
	w.engine[1].num_requests = 1;
	assert_false(forced(&w));
	w.engine[0].num_requests = 4; /* 4 > 1.5 x 2 */
	assert_true(forced(&w));

	w.params.migration_trigger = TRIGGER_ABSOLUTE;
	w.engine[0].num_requests = 5.5f; /* 5.5 = 2.5 + 3 */
	assert_false(forced(&w));
	w.engine[0].num_requests = 7; /* 7 > 3 + 3 */
	assert_true(forced(&w));

	w.params.migration_trigger = TRIGGER_PENDING;
	home_waits(&w, 5);
	assert_false(forced(&w));
	home_waits(&w, 5.1);
	assert_true(forced(&w));

	w.params.migration_trigger = TRIGGER_NONE;
	assert_false(forced(&w));
}

static void recent_first_tokens_count_from_five_samples_or_by_the_oldest_wait(void **state)
{
	struct world w;

	session(&w, POLICY_CONTENTION);
	w.params.migration_trigger = TRIGGER_RECENT_TTFT;
	w.engine[0].num_requests = 9;
	w.engine[0].recent_ttft_s = 8;
	w.engine[0].recent_ttft_n = 4;
	assert_false(forced(&w));
	w.engine[0].recent_ttft_n = 5;
	assert_true(forced(&w));
	w.engine[0].recent_ttft_s = 5;
	assert_false(forced(&w));
	w.engine[0].oldest_wait_s = 5.5f; /* nobody has had a first token yet */
	w.engine[0].recent_ttft_n = 0;
	assert_true(forced(&w));
}

static void the_rule_asks_for_heavy_hot_later_turns_and_a_lighter_target(void **state)
{
	struct world w;

	session(&w, POLICY_CONTENTION);
	w.params.migration_trigger = TRIGGER_PENDING;
	home_waits(&w, 6);
	w.engine[0].num_requests = 9;
	assert_true(forced(&w));

	w.request.turn = 1;
	assert_false(forced(&w)); /* six of the design's eight moves were such */
	assert_int_equal(w.choice.trigger, TRIGGER_NONE);
	w.request.turn = 2;
	w.params.heavy_threshold = 50000;
	assert_false(forced(&w));
	w.params.heavy_threshold = 16384;
	w.engine[0].hit_tokens = 20000; /* half is not above half */
	assert_false(forced(&w));
	w.engine[0].hit_tokens = 20001;
	assert_true(forced(&w));
	w.engine[1].num_requests = w.engine[2].num_requests = 7; /* 7 < 9 - 2 does not hold */
	assert_false(forced(&w));
}

static void a_refused_nomination_says_why(void **state)
{
	struct world w;

	session(&w, POLICY_EFT);
	home_waits(&w, 6);
	w.params.heavy_threshold = 50000;
	world_choose(&w);
	assert_int_equal(w.choice.move, MOVE_LIGHT);
	w.params.heavy_threshold = 16384;
	world_choose(&w);
	assert_int_equal(w.choice.move, MOVE_TARGET);
	w.engine[0].hit_tokens = 15000;
	home_waits(&w, 5.5);
	w.engine[1].pending_prefill_tokens = w.engine[2].pending_prefill_tokens = 30000;
	world_choose(&w);
	assert_int_equal(w.choice.move, MOVE_COLD);
	assert_int_equal(w.choice.engine, 0);
}

/* B29: forty sessions of a busy engine do not all go to the same place. */
static void sessions_that_leave_one_engine_spread(void **state)
{
	struct world w;
	unsigned taken[8] = { 0 };
	uint64_t seed = 8;

	world_init(&w, POLICY_EFT, 8);
	world_settle(&w, 0, 3);
	home_waits(&w, 400);
	for (int n = 0; n < 35; n++) {
		w.request.random[0] = world_random(&seed);
		int i = world_choose(&w);

		taken[i]++;
		w.engine[i].num_requests++;
		w.engine[i].pending_prefill_tokens += (float)w.choice.cost[i].uncached_tokens;
	}
	assert_int_equal(taken[0], 0);
	for (int i = 1; i < 8; i++)
		assert_int_equal(taken[i], 5);
}

/* B30: between decision and commit somebody else was sent to the target. */
static void a_move_that_no_longer_pays_is_taken_back_at_commit(void **state)
{
	struct world w;
	struct policy_choice after;

	session(&w, POLICY_CONTENTION);
	w.nr = 2;
	home_waits(&w, 7.84 + 2.5);
	assert_int_equal(world_choose(&w), 1);
	w.engine[1].pending_prefill_tokens = 5000;
	w.engine[1].num_requests = 1;

	assert_int_equal(policy_reprice(&w.params, &w.request, w.engine, 2, &w.choice, &after), 1);
	assert_int_equal(after.engine, 0);
	assert_int_equal(after.reason, REASON_STAYED);
}

static void a_choice_stands_at_commit_while_it_is_within_the_band(void **state)
{
	struct world w;
	struct policy_choice before;

	world_init(&w, POLICY_EFT, 2);
	w.engine[1].pending_prefill_tokens = 2000;
	assert_int_equal(world_choose(&w), 0);
	before = w.choice;
	w.engine[0].pending_prefill_tokens = 2500; /* 0.1 s of 12.4: within 2 % */
	assert_int_equal(policy_reprice(&w.params, &w.request, w.engine, 2, &before, &w.choice), 0);
	assert_int_equal(w.choice.engine, 0);
	assert_true(w.choice.cost[0].queue_s == 0.5); /* the terms are today's */

	w.engine[0].pending_prefill_tokens = 4000;
	assert_int_equal(policy_reprice(&w.params, &w.request, w.engine, 2, &before, &w.choice), 1);
	assert_int_equal(w.choice.engine, 1);
}

static void a_choice_without_costs_stands_while_its_engine_may_take_it(void **state)
{
	struct world w;
	struct policy_choice after;

	world_init(&w, POLICY_LEAST_REQUESTS, 2);
	w.engine[1].num_requests = 1;
	assert_int_equal(world_choose(&w), 0);
	w.engine[0].num_requests = 2;
	w.engine[0].pending_prefill_tokens = 90000;

	assert_int_equal(policy_reprice(&w.params, &w.request, w.engine, 2, &w.choice, &after), 0);
	assert_int_equal(after.engine, 0);
}

static void a_choice_whose_engine_went_down_is_made_afresh(void **state)
{
	for (int policy = 0; policy < POLICIES_NR; policy++) {
		struct world w;
		struct policy_choice after;

		world_init(&w, (enum policy_kind)policy, 2);
		int before = world_choose(&w);

		w.engine[before].flags &= ~POLICY_ALIVE;
		assert_int_equal(
			policy_reprice(&w.params, &w.request, w.engine, 2, &w.choice, &after), 1);
		assert_int_equal(after.engine, 1 - before);
	}
}

static const char *const names[] = { "gpu0", "gpu1", "gpu2" };

static void one_sentence_says_why(void **state)
{
	struct world w;
	char text[400];

	session(&w, POLICY_CONTENTION);
	home_waits(&w, 12.84);
	world_choose(&w);
	policy_explain(&w.params, &w.request, &w.choice, w.nr, names, text, sizeof(text));
	assert_string_equal(
		text,
		"gpu1: leaving home pays: the saved wait exceeds the extra prefill; cost 8.00 s"
		" = 8.00 s own prefill; next gpu2 at 8.07 s; home nominated by pending; the"
		" move to gpu1 (gains 5.00 s, must gain 1.96 s)");

	home_waits(&w, 8.5);
	world_choose(&w);
	policy_explain(&w.params, &w.request, &w.choice, w.nr, names, text, sizeof(text));
	assert_string_equal(
		text, "gpu0: the session's home: leaving it would not pay; cost 8.66 s = 8.50 s"
		      " prefill ahead + 0.16 s own prefill; next gpu1 at 8.00 s; home nominated by"
		      " pending; no move to gpu1 (gains 0.66 s, must gain 1.96 s): the saved wait"
		      " does not exceed the extra prefill by the margin");
}

static void a_sentence_is_cut_to_its_buffer(void **state)
{
	struct world w;
	char text[16];

	session(&w, POLICY_EFT);
	world_choose(&w);
	memset(text, 'x', sizeof(text));
	size_t used = policy_explain(&w.params, &w.request, &w.choice, w.nr, names, text, 10);

	assert_int_equal(used, 9);
	assert_string_equal(text, "gpu0: the");
	assert_int_equal(text[10], 'x');
}

static void every_word_has_its_meaning_and_every_name_is_found(void **state)
{
	for (int i = 0; i < POLICIES_NR; i++) {
		assert_int_equal(policy_parse(policy_name((unsigned)i)), i);
		assert_true(strlen(policy_meaning((unsigned)i)) > 10);
	}
	assert_null(policy_names[POLICIES_NR]);
	assert_null(policy_name(POLICIES_NR));
	assert_int_equal(policy_parse("round"), -1);
	assert_int_equal(policy_parse("v22"), -1);
	for (unsigned i = 0; i < POLICY_REASONS_NR; i++)
		assert_non_null(policy_reason_text(i));
	for (unsigned i = 0; i < POLICY_MOVES_NR; i++)
		assert_non_null(policy_move_meaning(i));
	for (unsigned i = 0; i < POLICY_LEFT_OUT_NR; i++)
		assert_non_null(policy_left_out_meaning(i));
}

/* But for the policy, which is the laboratory's (bench/design_document.md). */
static void the_defaults_are_the_design_documents(void **state)
{
	struct policy_params params;

	policy_params_init(&params);
	assert_int_equal(params.policy, POLICY_EFT);
	assert_int_equal(params.migrate, MIGRATE_PRICED);
	assert_true(params.decode_iteration_s == 0.05);
	assert_true(params.migration_discount_cap == 5);
	assert_true(params.migration_request_factor == 1.5);
	assert_true(params.cache_ratio == 0.5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(a_move_must_gain_its_margin_after_the_extra_prefill),
		CLAIM(without_priced_migration_the_cost_model_chooses_freely),
		CLAIM(where_nothing_is_computed_again_nothing_protects_home),
		CLAIM(cool_down_and_budgets_hold_a_session_back),
		CLAIM(a_great_gain_waits_for_no_budget),
		CLAIM(force_moves_whatever_it_costs_and_priced_does_not),
		CLAIM(each_trigger_fires_above_its_bound_and_not_at_it),
		CLAIM(recent_first_tokens_count_from_five_samples_or_by_the_oldest_wait),
		CLAIM(the_rule_asks_for_heavy_hot_later_turns_and_a_lighter_target),
		CLAIM(a_refused_nomination_says_why),
		CLAIM(sessions_that_leave_one_engine_spread),
		CLAIM(a_move_that_no_longer_pays_is_taken_back_at_commit),
		CLAIM(a_choice_stands_at_commit_while_it_is_within_the_band),
		CLAIM(a_choice_without_costs_stands_while_its_engine_may_take_it),
		CLAIM(a_choice_whose_engine_went_down_is_made_afresh),
		CLAIM(one_sentence_says_why),
		CLAIM(a_sentence_is_cut_to_its_buffer),
		CLAIM(every_word_has_its_meaning_and_every_name_is_found),
		CLAIM(the_defaults_are_the_design_documents),
	};

	return cmocka_run_group_tests_name("policy_migrate", tests, NULL, NULL);
}
