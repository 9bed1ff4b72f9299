/* Claims about how what is known becomes a decision's inputs, each worked out by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "router/view/view.h"

enum { NEAR, HOME, FAR, ENGINES };

#define S 1000000000ull

static struct ledger ledger;
static struct ledger_params ledger_params;
static struct policy_params params;
static struct view_rules rules;
static struct view v;
static struct session session;
static struct engine_state state;
static struct view_calibration calibration;
static uint64_t chain[20];

static int setup(void **context)
{
	struct session_time now = { .ns = 100 * S };

	(void)context;
	ledger_init(&ledger);
	ledger_params_init(&ledger_params);
	policy_params_init(&params);
	rules = (struct view_rules){ .ttft_window = 30 * S,
				     .ttft_quantile = 0.9,
				     .migration_rate = 1,
				     .migration_burst = 8 };
	v = (struct view){ &ledger, &ledger_params, &params, &rules, 100 * S };
	session_init(&session, now);
	memset(&state, 0, sizeof(state));
	memset(&calibration, 0, sizeof(calibration));
	for (uint32_t i = 0; i < 20; i++)
		chain[i] = 1000 + i;
	return 0;
}

static void dispatch(uint32_t engine, uint64_t turn, uint32_t blocks)
{
	struct session_dispatch d = {
		.engine = engine, .turn = turn, .chain = chain, .blocks = blocks
	};

	session_dispatched(&session, &d, (struct session_time){ .ns = v.now_ns });
}

static void answer(uint64_t turn, uint64_t prompt, uint64_t completion)
{
	struct session_result r = { .turn = turn,
				    .prompt_tokens = prompt,
				    .completion_tokens = completion,
				    .cached_tokens = SESSION_UNKNOWN };

	session_answered(&session, &r, (struct session_time){ .ns = v.now_ns });
}

/* 12 blocks of 512 bytes and a part of one: 2,000 tokens in 6,400 bytes, 160 to a block. */
static struct view_prompt prompt_12(void)
{
	return (struct view_prompt){ .chain = chain,
				     .chain_nr = 12,
				     .prompt_tokens = 2000,
				     .content_bytes = 6400,
				     .session = &session,
				     .home = HOME };
}

static void known_session(void)
{
	dispatch(HOME, 1, 10);
	answer(1, 1700, 40);
}

/* ---- hits ---- */

static void blocks_count_by_the_prompts_own_tokens(void **context)
{
	struct view_prompt p = prompt_12();
	uint32_t blocks[ENGINES] = { 3, 0, 11 }, hit[ENGINES];

	(void)context;
	p.session = NULL;
	p.home = -1;
	view_hits(&p, blocks, ENGINES, hit);
	assert_int_equal(hit[NEAR], 3 * 160);
	assert_int_equal(hit[HOME], 0);
	assert_int_equal(hit[FAR], 11 * 160);
}

static void home_holds_the_last_prompt_and_its_answer(void **context)
{
	struct view_prompt p = prompt_12();
	uint32_t blocks[ENGINES] = { 10, 10, 0 }, hit[ENGINES];

	(void)context;
	known_session();
	view_hits(&p, blocks, ENGINES, hit);
	assert_int_equal(hit[HOME], 1740);
	assert_int_equal(hit[NEAR], 1600);
	answer(1, 1700, SESSION_UNKNOWN);
	view_hits(&p, blocks, ENGINES, hit);
	assert_int_equal(hit[HOME], 1700);
}

static void a_home_that_the_index_has_lost_sight_of_is_not_believed(void **context)
{
	struct view_prompt p = prompt_12();
	uint32_t blocks[ENGINES] = { 0, 4, 0 }, hit[ENGINES];

	(void)context;
	known_session();
	/* 4 x 160 + 512 = 1,152 of 1,275 that it takes; 5 blocks are enough. */
	view_hits(&p, blocks, ENGINES, hit);
	assert_int_equal(hit[HOME], 640);
	blocks[HOME] = 5;
	view_hits(&p, blocks, ENGINES, hit);
	assert_int_equal(hit[HOME], 1740);
}

static void a_prompt_that_went_another_way_has_only_its_blocks(void **context)
{
	struct view_prompt p = prompt_12();
	uint32_t blocks[ENGINES] = { 0, 9, 0 }, hit[ENGINES];

	(void)context;
	known_session();
	chain[9] = 7; /* the session's tenth block was another one */
	assert_int_equal(view_goes_on(&session, chain, 12), 0);
	view_hits(&p, blocks, ENGINES, hit);
	assert_int_equal(hit[HOME], 9 * 160);
}

static void an_unanswered_session_has_no_counts_to_build_on(void **context)
{
	(void)context;
	assert_int_equal(view_goes_on(NULL, chain, 12), 0);
	dispatch(HOME, 1, 10);
	assert_int_equal(view_goes_on(&session, chain, 12), 0);
	answer(1, 1700, 40);
	assert_int_equal(view_goes_on(&session, chain, 12), 1);
	assert_int_equal(view_goes_on(&session, chain, 9), 0);
}

static void the_last_token_is_always_computed(void **context)
{
	struct view_prompt p = prompt_12();
	uint32_t blocks[ENGINES] = { 12, 12, 13 }, hit[ENGINES];

	(void)context;
	known_session();
	answer(1, 1990, 500);
	view_hits(&p, blocks, ENGINES, hit);
	assert_int_equal(hit[NEAR], 12 * 160);
	assert_int_equal(hit[HOME], 1999);
	assert_int_equal(hit[FAR], 1999);
	assert_int_equal(view_hit(1, 1), 0);
}

static void what_engines_do_not_find_again_of_answers_is_learnt(void **context)
{
	struct view_answers answers = { 0 };
	struct session before = { .prompt_tokens = 5000, .completion_tokens = 400 };

	(void)context;
	view_answers_learn(&answers, &before, 6000, 5392); /* in whole blocks */
	assert_true(answers.lost < 0.03);
	answers = (struct view_answers){ 0 };
	view_answers_learn(&answers, &before, 6000, 4992); /* the answer came back otherwise */
	assert_true(answers.lost == 1);
	view_answers_learn(&answers, &before, 6000, 100);  /* evicted: says nothing */
	view_answers_learn(&answers, &before, 4000, 4000); /* another prompt */
	assert_true(answers.lost == 1);
	view_answers_learn(&answers, &before, 6000, 5400);
	assert_true(answers.lost > 0.79 && answers.lost < 0.81);
}

static void a_stored_response_counts_for_its_engine_whatever_the_index_says(void **context)
{
	struct view_prompt p = prompt_12();
	uint32_t blocks[ENGINES] = { 0, 0, 0 }, hit[ENGINES];

	(void)context;
	known_session();
	p.bound_tokens = 1500;
	view_hits(&p, blocks, ENGINES, hit);
	assert_int_equal(hit[HOME], 1500);
	assert_int_equal(hit[NEAR], 0);
}

/* ---- the request ---- */

static struct policy_request filled(uint64_t max_tokens)
{
	struct view_request asked = { .random = { 5, 6 },
				      .cursor = 7,
				      .flags = POLICY_STREAMED,
				      .home = HOME,
				      .prompt_tokens = 2000,
				      .turn = 3,
				      .sequences = 2,
				      .max_tokens = max_tokens,
				      .session = &session };
	struct view_budget budget = { .moves = 2.5 };
	struct policy_request q;

	view_request_fill(&v, &asked, &budget, &q);
	return q;
}

static void an_answer_is_expected_as_long_as_the_session_s_and_as_allowed(void **context)
{
	(void)context;
	dispatch(HOME, 1, 10);
	assert_int_equal(filled(0).output_tokens, 0);
	assert_int_equal(filled(64).output_tokens, 64);
	answer(1, 1700, 100);
	dispatch(HOME, 2, 10);
	answer(2, 1900, 200);
	assert_int_equal(filled(0).output_tokens, 130); /* 100 + 0.3 x (200 - 100) */
	assert_int_equal(filled(64).output_tokens, 64);
	assert_int_equal(filled(1000).output_tokens, 130);
	session.output_tokens = 0;
	assert_int_equal(filled(1ull << 40).output_tokens, VIEW_OUTPUT_TOKENS_MAX);
}

static void a_request_tells_of_its_session_s_moves(void **context)
{
	struct policy_request q = filled(0);

	(void)context;
	assert_true(q.since_move_s < 0);
	assert_int_equal(q.moves, 0);
	dispatch(HOME, 1, 10);
	v.now_ns = 104 * S;
	dispatch(FAR, 2, 10);
	v.now_ns = 110 * S;
	dispatch(FAR, 3, 10);
	q = filled(0);
	assert_int_equal(q.moves, 1);
	assert_int_equal(q.turns_since_move, 1);
	assert_true(q.since_move_s == 6);
	assert_true(q.move_budget == 2.5f);
	assert_int_equal(q.random[0], 5);
	assert_int_equal(q.random[1], 6);
	assert_int_equal(q.cursor, 7);
	assert_int_equal(q.home, HOME);
	assert_int_equal(q.sequences, 2);
	assert_int_equal(q.turn, 3);
}

/* ---- the engine ---- */

static struct policy_engine engine_now(uint64_t kv_capacity)
{
	struct view_engine seen = { .index = 4,
				    .id = 9,
				    .flags = POLICY_SERVES | POLICY_ALIVE,
				    .attached = state.read_ns != 0,
				    .weight = 0.5,
				    .state = &state,
				    .kv_capacity = kv_capacity,
				    .calibration = &calibration,
				    .recent_ttft_s = 1.5,
				    .recent_ttft_n = 11,
				    .hit_tokens = 77 };
	struct policy_engine p;

	view_engine_fill(&v, &seen, &p);
	return p;
}

static void an_engine_without_an_agent_has_our_own_books(void **context)
{
	struct ledger_ticket sent = { .engine = 4,
				      .sequences = 1,
				      .prompt_tokens = 3000,
				      .uncached_tokens = 2500,
				      .prefill_s = 0.5 };
	struct policy_engine p;

	(void)context;
	ledger_dispatch(&ledger, &sent, v.now_ns);
	p = engine_now(0);
	assert_int_equal(p.id, 9);
	assert_int_equal(p.flags & (POLICY_SERVES | POLICY_ALIVE | POLICY_MEASURED_PREFILL),
			 POLICY_SERVES | POLICY_ALIVE);
	assert_true(p.num_requests == 1);
	assert_true(p.pending_prefill_tokens == 2500);
	assert_true(p.weight == 0.5f);
	assert_int_equal(p.hit_tokens, 77);
	assert_int_equal(p.recent_ttft_n, 11);
	assert_true(p.recent_ttft_s == 1.5f);
	assert_int_equal(p.kv_capacity_tokens, 0);
	ledger_end(&ledger, &sent, LEDGER_COMPLETED, v.now_ns);
}

static void a_wait_that_only_the_probe_sees_is_a_wait(void **context)
{
	struct view_engine seen = { .index = 4, .state = &state, .calibration = &calibration };
	struct policy_engine p;

	(void)context;
	view_engine_fill(&v, &seen, &p);
	assert_true(p.oldest_wait_s == 0);
	seen.oldest_wait_start_ns = v.now_ns - 7 * S;
	view_engine_fill(&v, &seen, &p);
	assert_true(p.oldest_wait_s == 7);
	seen.oldest_wait_start_ns = v.now_ns + S; /* of a clock read since */
	view_engine_fill(&v, &seen, &p);
	assert_true(p.oldest_wait_s == 0);
}

/* An engine's gauge knows nothing of the prompts that wait for room in it; the books do. */
static void who_waits_for_room_has_booked_it(void **context)
{
	struct ledger_ticket waits = { .engine = 4, .prompt_tokens = 90000 };
	struct policy_engine p;

	(void)context;
	state = (struct engine_state){ .read_ns = v.now_ns - S / 100,
				       .period_ns = S / 10,
				       .health = ENGINE_HEALTH_UP };
	ENGINE_SET(&state, kv_used_tokens, 1000);
	ENGINE_SET(&state, kv_capacity_tokens, 400000);
	ledger_dispatch(&ledger, &waits, v.now_ns - S);
	p = engine_now(0);
	assert_int_equal(p.kv_used_tokens, 90000);
	ENGINE_SET(&state, kv_used_tokens, 350000);
	p = engine_now(0);
	assert_int_equal(p.kv_used_tokens, 350000);
	ledger_end(&ledger, &waits, LEDGER_ABORTED, v.now_ns);
}

static void a_record_brings_speeds_and_room_and_foreign_requests(void **context)
{
	struct policy_engine p;

	(void)context;
	state = (struct engine_state){ .read_ns = v.now_ns - S / 100,
				       .period_ns = S / 10,
				       .health = ENGINE_HEALTH_UP };
	ENGINE_SET(&state, running, 3);
	ENGINE_SET(&state, waiting, 1);
	ENGINE_SET(&state, prefill_tokens_per_s, 5000);
	ENGINE_SET(&state, decode_iteration_s, 0.02);
	ENGINE_SET(&state, kv_used_tokens, 1000);
	ENGINE_SET(&state, kv_capacity_tokens, 400000);
	ENGINE_SET(&state, max_model_len, 32768);
	ENGINE_SET(&state, step_budget_tokens, 2048);
	p = engine_now(0);
	assert_int_equal(p.staleness, STALENESS_FRESH);
	assert_true(p.num_requests == 4);
	assert_true(p.prefill_tokens_per_s == 5000 && p.decode_iteration_s == 0.02f);
	assert_int_equal(p.flags & (POLICY_MEASURED_PREFILL | POLICY_MEASURED_DECODE),
			 POLICY_MEASURED_PREFILL | POLICY_MEASURED_DECODE);
	assert_int_equal(p.kv_used_tokens, 1000);
	assert_int_equal(p.kv_capacity_tokens, 400000);
	assert_int_equal(p.max_model_len, 32768);
	assert_int_equal(p.step_budget_tokens, 2048);
	assert_int_equal(engine_now(123456).kv_capacity_tokens, 123456);
	assert_int_equal(p.flags & POLICY_STALLED, 0);
	state.health = ENGINE_HEALTH_STALLED;
	assert_int_equal(engine_now(0).flags & POLICY_STALLED, POLICY_STALLED);
}

/* ---- moves and their budget ---- */

static void a_budget_starts_empty_fills_by_rate_and_holds_the_burst(void **context)
{
	struct policy_choice made = { .move = MOVE_MADE }, none = { .move = MOVE_PRICE };
	struct view_budget b = { .since_ns = 100 * S };

	(void)context;
	view_budget_refill(&b, &rules, 100 * S);
	assert_true(b.moves == 0);
	view_budget_refill(&b, &rules, 103 * S);
	assert_true(fabs(b.moves - 3) < 1e-9);
	view_budget_refill(&b, &rules, 200 * S);
	assert_true(b.moves == 8);
	view_budget_spend(&b, &none);
	assert_true(b.moves == 8);
	view_budget_spend(&b, &made);
	assert_true(b.moves == 7);
	b.moves = 0.5;
	view_budget_spend(&b, &made); /* below 0 would be no limit at all */
	assert_true(b.moves == 0);
}

static void a_move_leaves_a_home_that_it_could_have_kept(void **context)
{
	struct policy_request q = { .home = HOME, .turn = 2 };
	struct policy_choice away = { .engine = FAR }, stays = { .engine = HOME };
	struct policy_choice ruled = { .engine = FAR, .move = MOVE_MADE };

	(void)context;
	assert_int_equal(view_moves(&q, &away), 1);
	assert_int_equal(view_moves(&q, &stays), 0);
	q.flags = POLICY_NO_MIGRATION;
	assert_int_equal(view_moves(&q, &away), 0);
	q = (struct policy_request){ .home = HOME, .turn = 1 };
	assert_int_equal(view_moves(&q, &away), 0);
	assert_int_equal(view_moves(&q, &ruled), 1);
	q = (struct policy_request){ .home = -1, .turn = 2 };
	assert_int_equal(view_moves(&q, &away), 0);
}

static void a_ticket_is_charged_what_the_policy_predicts(void **context)
{
	struct policy_engine p = engine_now(0);
	struct ledger_ticket t = view_ticket(&params, &p, 4, 2, 3000, 2500);

	(void)context;
	assert_int_equal(t.engine, 4);
	assert_int_equal(t.sequences, 2);
	assert_int_equal(t.prompt_tokens, 3000);
	assert_int_equal(t.uncached_tokens, 2500);
	assert_int_equal(t.phase, LEDGER_FREE);
	assert_true(t.prefill_s > 0 && t.prefill_s == policy_prefill_s(&params, &p, 3000, 2500));
}

/* ---- calibration ---- */

static void a_ratio_moves_by_little_and_an_outlier_cancels_out(void **context)
{
	(void)context;
	/* decode_iteration_s 0.05 on both sides: 2.05 / 1.05 */
	view_calibration_learn(&calibration, &v, 1, 2);
	assert_true(fabs(calibration.ratio - pow(2.05 / 1.05, 0.15)) < 1e-12);
	assert_true(fabs((double)engine_now(0).calibration - calibration.ratio) < 1e-6);
	for (int i = 0; i < 40; i++) /* what is so each time is believed in the end */
		view_calibration_learn(&calibration, &v, 1, 2);
	assert_true(fabs(calibration.ratio - 2.05 / 1.05) < 0.01);
	memset(&calibration, 0, sizeof(calibration));
	view_calibration_learn(&calibration, &v, 1, 50);
	assert_true(calibration.ratio < 1 + params.calibration_band); /* one alone does nothing */
	view_calibration_learn(&calibration, &v, 50, 1);
	assert_true(calibration.ratio > 0.9 && calibration.ratio < 1.1);
}

static void a_ratio_that_is_old_rests(void **context)
{
	(void)context;
	view_calibration_learn(&calibration, &v, 1, 2);
	assert_true(view_calibration_in_force(&calibration, &rules, 130 * S - 1) > 0);
	assert_true(view_calibration_in_force(&calibration, &rules, 130 * S) == 0);
	v.now_ns = 140 * S;
	assert_true(engine_now(0).calibration == 0);
	view_calibration_learn(&calibration, &v, 1, 0.5); /* begins anew */
	assert_true(fabs(calibration.ratio - pow(0.55 / 1.05, 0.15)) < 1e-12);
}

static void a_ratio_is_held_and_milliseconds_say_nothing(void **context)
{
	(void)context;
	view_calibration_learn(&calibration, &v, 0, 5);
	assert_true(calibration.ratio == 0 && calibration.learnt_ns == 0);
	for (int i = 0; i < 100; i++)
		view_calibration_learn(&calibration, &v, 0.002, 0.01); /* not 5: 0.06 / 0.052 */
	assert_true(calibration.ratio < 1.2);
	for (int i = 0; i < 100; i++)
		view_calibration_learn(&calibration, &v, 0.1, 100);
	assert_true(calibration.ratio > 5.4 && calibration.ratio <= 5.5);
	for (int i = 0; i < 200; i++)
		view_calibration_learn(&calibration, &v, 100, 0.1);
	assert_true(calibration.ratio >= 1 / 5.5 && calibration.ratio < 0.19);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup(name, setup)
		TEST(blocks_count_by_the_prompts_own_tokens),
		TEST(home_holds_the_last_prompt_and_its_answer),
		TEST(a_home_that_the_index_has_lost_sight_of_is_not_believed),
		TEST(a_prompt_that_went_another_way_has_only_its_blocks),
		TEST(an_unanswered_session_has_no_counts_to_build_on),
		TEST(the_last_token_is_always_computed),
		TEST(what_engines_do_not_find_again_of_answers_is_learnt),
		TEST(a_stored_response_counts_for_its_engine_whatever_the_index_says),
		TEST(an_answer_is_expected_as_long_as_the_session_s_and_as_allowed),
		TEST(a_request_tells_of_its_session_s_moves),
		TEST(an_engine_without_an_agent_has_our_own_books),
		TEST(a_wait_that_only_the_probe_sees_is_a_wait),
		TEST(who_waits_for_room_has_booked_it),
		TEST(a_record_brings_speeds_and_room_and_foreign_requests),
		TEST(a_budget_starts_empty_fills_by_rate_and_holds_the_burst),
		TEST(a_move_leaves_a_home_that_it_could_have_kept),
		TEST(a_ticket_is_charged_what_the_policy_predicts),
		TEST(a_ratio_moves_by_little_and_an_outlier_cancels_out),
		TEST(a_ratio_that_is_old_rests),
		TEST(a_ratio_is_held_and_milliseconds_say_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
