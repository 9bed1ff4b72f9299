/* Claims about staging in replay: part times by hand, who gets in between, and what it all costs.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bench/replay.h"

#define PIECES  "eft+engines=1+measured=0+stage_alone=0+stage=pieces"
#define REQUEUE "eft+engines=1+measured=0+stage_alone=0+stage=requeue"

static struct workload w;
static struct replay_run run;
static struct replay_arm arm;
static char why[REPLAY_WHY_MAX];

static int setup(void **state)
{
	(void)state;
	replay_arm_init(&arm);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	workload_free(&w);
	replay_run_free(&run);
	return 0;
}

static void lone_turn(double at_s, uint64_t key, uint32_t prompt, uint32_t output)
{
	struct workload_turn t = { .at_s = at_s,
				   .session = (uint32_t)w.sessions,
				   .turn = 1,
				   .prompt_tokens = prompt,
				   .output_tokens = output,
				   .segment = (uint32_t)w.segments };

	t.answer = (struct workload_segment){ key + 1, 0, output };
	assert_int_equal(workload_add_session(&w, at_s), 0);
	assert_int_equal(workload_add_segment(&w, (struct workload_segment){ key, 0, prompt }), 0);
	assert_int_equal(workload_add_turn(&w, &t), 0);
}

static void next_turn(double think_s, uint64_t key, uint32_t more, uint32_t output)
{
	struct workload_turn before = w.turn[w.turns - 1];
	struct workload_turn t = { .at_s = -1,
				   .think_s = think_s,
				   .session = before.session,
				   .turn = before.turn + 1,
				   .output_tokens = output,
				   .segment = (uint32_t)w.segments };

	t.prompt_tokens = before.prompt_tokens + before.output_tokens + more;
	t.answer = (struct workload_segment){ key + 1, 0, output };
	assert_int_equal(workload_repeat(&w, &before, before.prompt_tokens), 0);
	assert_int_equal(workload_add_segment(&w, before.answer), 0);
	assert_int_equal(workload_add_segment(&w, (struct workload_segment){ key, 0, more }), 0);
	assert_int_equal(workload_add_turn(&w, &t), 0);
}

/* Plays by the arm's text; what was played before is forgotten. */
static void play(const char *text)
{
	struct replay_arm base;

	replay_run_free(&run);
	replay_arm_init(&base);
	if (replay_arm_parse(&arm, &base, text, why) != 0)
		fail_msg("%s", why);
	assert_int_equal(workload_finish(&w), 0);
	assert_int_equal(replay_play(&run, &arm, &w, 7), 0);
}

static void make_design(double requests)
{
	struct workload_mix mix;

	workload_mix_init(&mix);
	mix.requests = requests;
	assert_int_equal(workload_design(&w, &mix, 2), 0);
}

static double ttft_s(size_t i)
{
	return (double)(run.request[i].first_ns - run.request[i].arrive_ns) * 1e-9;
}

/* One step that computes a prompt's tokens from `from` to `to`. */
static double step_s(uint32_t from, uint32_t to)
{
	return model_iteration_s(model_profile_at(0), to - from,
				 (double)to * to - (double)from * from, 0);
}

static void assert_seconds(double got, double want)
{
	if (fabs(got - want) > 1e-6)
		fail_msg("%.6f s, by hand %.6f s", got, want);
}

/* ---- pieces ---- */

/* 20,000 tokens: pieces end at 7,680 and 15,360, each with 46 tokens for nothing behind it. */
static double three_parts(void)
{
	return step_s(0, 7680 + 46) + 0.015 + step_s(7680, 15360 + 46) + 0.015 +
	       step_s(15360, 20000);
}

static void a_staged_prompts_parts_take_what_the_model_says(void **state)
{
	(void)state;
	lone_turn(0, 100, 20000, 3);

	play(PIECES);

	assert_seconds(ttft_s(0), three_parts());
	assert_int_equal(run.stage.pieces, 2);
	assert_int_equal(run.stage.pieces_done, 2);
	assert_int_equal(run.request[0].cached_tokens,
			 0); /* what it found before its first piece */
	assert_true(run.computed_tokens == 20000 + 2 * 46);
}

static void a_short_request_gets_in_behind_one_piece(void **state)
{
	double first = step_s(0, 7680 + 46), own = step_s(0, 1000);

	(void)state;
	lone_turn(0, 100, 20000, 1);
	lone_turn(0.5, 300, 1000, 1);

	play("eft+engines=1+measured=0");
	/* The whole prompt is ahead; its last chunk leaves room in the third step. */
	assert_true(ttft_s(1) > step_s(0, 8192) + step_s(8192, 16384) + step_s(16384, 20000) - 0.5);
	play(PIECES);
	assert_seconds(ttft_s(1), first - 0.5 + own);
	/* The long one loses the short one's step, not the gap before its next part. */
	assert_seconds(ttft_s(0), three_parts() - 0.015 + own);
}

static void an_idle_engine_gets_the_prompt_whole(void **state)
{
	(void)state;
	lone_turn(0, 100, 20000, 1);

	play("eft+stage=pieces");

	assert_int_equal(run.stage.pieces, 0);
	assert_int_equal(run.stage.reason[STAGE_REASON_ALONE], 1);
	assert_seconds(ttft_s(0), step_s(0, 8192) + step_s(8192, 16384) + step_s(16384, 20000));
}

static void a_staged_session_hits_as_any_other(void **state)
{
	(void)state;
	lone_turn(0, 100, 30000, 40);
	next_turn(3, 200, 500, 5);

	play(PIECES);

	assert_int_equal(run.stage.staged, 1);
	assert_int_equal(run.request[1].cached_tokens, w.turn[1].ideal_hit_tokens);
}

static void overheads_are_paid(void **state)
{
	(void)state;
	lone_turn(0, 100, 20000, 1);

	play(PIECES "+piece_overhead=1000+piece_api=0.2");

	/* 8,680 tokens are two steps. */
	assert_seconds(ttft_s(0), step_s(0, 8192) + step_s(8192, 8680) + 0.2 + step_s(7680, 15872) +
					  step_s(15872, 16360) + 0.2 + step_s(15360, 20000));
	assert_true(run.computed_tokens == 22000);
}

/* Room for 32,000 tokens; while parts of one prompt pass, others' prompts come and go. */
static void pieces_that_are_evicted_are_computed_again(void **state)
{
	(void)state;
	lone_turn(0, 100, 30000, 1);
	for (unsigned i = 0; i < 12; i++)
		lone_turn(0.3 + 0.8 * i, 1000 + 10 * i, 9000, 1);

	play(PIECES "+kv_tokens=32000+stage_last=1.25");

	assert_true(run.computed_tokens > 30000 + 12 * 9000 + 46.0 * (double)run.stage.pieces);
	assert_int_equal(
		run.stage.reason[STAGE_REASON_MISSED] + run.stage.reason[STAGE_REASON_EVICTED], 1);
}

/* ---- the guard ---- */

static void pieces_that_miss_are_ended_by_each_source(void **state)
{
	static const char *const arms[] = { PIECES "+pieces_hit=0+evidence=1",
					    PIECES "+pieces_hit=0+evidence=2",
					    PIECES "+pieces_hit=0+evidence=3" };

	(void)state;
	lone_turn(0, 100, 40000, 1);
	lone_turn(100, 200, 40000, 1); /* off by now */
	lone_turn(800, 300, 40000, 1); /* on again, for two pieces */
	for (unsigned i = 0; i < 3; i++) {
		play(arms[i]);
		assert_int_equal(run.stage.pieces, 4);
		assert_int_equal(run.stage.guards, 2);
		assert_int_equal(run.stage.reason[STAGE_REASON_MISSED], 2);
		assert_int_equal(run.stage.reason[STAGE_REASON_GUARD], 1);
	}
}

static void pieces_that_hit_are_believed_by_each_source(void **state)
{
	static const char *const arms[] = { PIECES "+evidence=1", PIECES "+evidence=2",
					    PIECES "+evidence=3" };

	(void)state;
	lone_turn(0, 100, 40000, 1);
	for (unsigned i = 0; i < 3; i++) {
		play(arms[i]);
		assert_int_equal(run.stage.pieces, 4);
		assert_int_equal(run.stage.guards, 0);
	}
}

static void without_evidence_there_are_no_pieces_unless_forced(void **state)
{
	(void)state;
	lone_turn(0, 100, 40000, 1);
	lone_turn(100, 200, 40000, 1);

	play(PIECES "+evidence=0");
	assert_int_equal(run.stage.pieces, 2);
	assert_int_equal(run.stage.reason[STAGE_REASON_EVIDENCE], 2); /* given up, and not begun */
	play(PIECES "+evidence=0+stage_force=1");
	assert_int_equal(run.stage.pieces, 8);
}

/* ---- the cold slot ---- */

static void one_cold_prompt_at_a_time(void **state)
{
	(void)state;
	lone_turn(0, 100, 20000, 1);
	lone_turn(0.1, 200, 20000, 1);

	play(PIECES "+cold_slots=1");

	assert_seconds(ttft_s(0), three_parts());
	assert_int_equal(run.stage.waited, 1);
	/* Let out at the first one's token, 15 ms on its way. */
	assert_seconds(ttft_s(1), 2 * three_parts() + 0.015 - 0.1);
}

static void a_cold_prompt_is_bound_when_a_slot_is_free(void **state)
{
	(void)state;
	lone_turn(0, 100, 60000, 1);
	lone_turn(0.01, 200, 20000, 1);
	lone_turn(0.02, 300, 20000, 1);
	lone_turn(0.03, 400, 60000, 1);

	play("eft+engines=2+measured=0+stage=pieces+stage_alone=0+cold_slots=1");

	/* The two that wait go where the short one was, one after the other, or where that ends. */
	assert_int_not_equal(run.request[0].engine, run.request[1].engine);
	assert_int_equal(run.request[2].engine, run.request[1].engine);
	assert_int_equal(run.stage.waited, 2);
}

static void a_lone_cold_slot_changes_nothing_for_short_requests(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 20; i++)
		lone_turn(0.05 * i, 1000 + 10 * i, 4000, 20);

	play("eft+engines=2+stage=pieces+cold_slots=1");
	assert_int_equal(run.stage.waited, 0);
	assert_int_equal(run.stage.pieces, 0);
}

static void room_is_waited_for_too(void **state)
{
	unsigned most = 0;

	(void)state;
	for (unsigned i = 0; i < 12; i++)
		lone_turn(0.01 * i, 1000 + 10 * i, 4000, 20);

	play("eft+engines=1+engine_requests=3");

	assert_int_equal(run.stage.waited, 9);
	for (size_t i = 0; i < run.requests; i++) {
		unsigned beside = 0;

		for (size_t k = 0; k < run.requests; k++)
			beside += run.request[k].first_ns <= run.request[i].end_ns &&
				  run.request[k].end_ns > run.request[i].end_ns;
		most = beside > most ? beside : most;
	}
	assert_true(most <= 3);
}

/* ---- requeue ---- */

/* 40,000 tokens, closed in its first step by a request of 1,000; sent again after that one's token,
 * a millisecond for the router to see it and 115 for the way. */
static void a_cold_prompt_gives_way_and_loses_nothing(void **state)
{
	double first = step_s(0, 8192), own = step_s(0, 1000), rest = 0;

	(void)state;
	lone_turn(0, 100, 40000, 1);
	lone_turn(1.6, 300, 1000, 1);
	for (uint32_t at = 8192; at < 40000; at += 8192)
		rest += step_s(at, at + 8192 < 40000 ? at + 8192 : 40000);

	play(REQUEUE);

	assert_int_equal(run.stage.closes, 1);
	assert_seconds(ttft_s(1), first - 1.6 + own);
	assert_seconds(ttft_s(0), first + own + 0.001 + 0.115 + rest);
	assert_true(run.computed_tokens == 41000);
}

static void with_async_it_computes_one_step_more_first(void **state)
{
	double first = step_s(0, 8192), second = step_s(8192, 16384), own = step_s(0, 1000);

	(void)state;
	lone_turn(0, 100, 40000, 1);
	lone_turn(1.6, 300, 1000, 1);

	play(REQUEUE "+scheduling=async");

	assert_int_equal(run.stage.closes, 1);
	assert_seconds(ttft_s(1), first + second - 1.6 + own);
	assert_true(run.computed_tokens == 41000);
}

static void nobody_waits_nobody_closes(void **state)
{
	(void)state;
	lone_turn(0, 100, 40000, 1);

	play(REQUEUE);

	assert_int_equal(run.stage.closes, 0);
	assert_int_equal(run.stage.pieces, 0);
}

static void both_cuts_what_can_be_cut_and_requeues_the_rest(void **state)
{
	(void)state;
	make_design(250);
	play("eft+stage=both+cold_slots=1+uncuttable=0.5");
	assert_true(run.stage.pieces > 20 && run.stage.closes > 2);
	play("eft+stage=both+cold_slots=1+uncuttable=1");
	assert_int_equal(run.stage.pieces, 0);
	play("eft+stage=pieces+cold_slots=1+uncuttable=1");
	assert_int_equal(run.stage.pieces + run.stage.closes, 0);
}

/* ---- rescue ---- */

/* Both engines compute a prompt when the first one hangs for a minute. */
static void who_waits_on_a_hanging_engine_is_taken_off_it_once(void **state)
{
	(void)state;
	lone_turn(99.5, 100, 20000, 1);
	lone_turn(99.5, 200, 20000, 1);

	play("eft+engines=2+stall=60+stall_every=100");
	assert_true(ttft_s(0) > 60 || ttft_s(1) > 60);
	assert_int_equal(run.stage.rescued, 0);
	play("eft+engines=2+stall=60+stall_every=100+rescue=1");
	assert_true(ttft_s(0) < 15 && ttft_s(1) < 15);
	assert_int_equal(run.stage.rescued, 1);
	/* 6 s past the end of the step that began at 99.5 s, and not before. */
	assert_true(fmax(ttft_s(0), ttft_s(1)) > step_s(0, 8192) + 6 + step_s(0, 8192));
}

static void a_staged_prompt_that_is_rescued_is_staged_anew(void **state)
{
	(void)state;
	lone_turn(99.5, 100, 40000, 1);
	lone_turn(99.5, 200, 40000, 1);

	play("eft+engines=2+stage=pieces+stage_alone=0+stall=60+stall_every=100+rescue=1");

	assert_int_equal(run.stage.rescued, 1);
	assert_int_equal(run.stage.staged, 3);
	assert_true(ttft_s(0) < 40 && ttft_s(1) < 40);
}

static void healthy_engines_rescue_nobody(void **state)
{
	(void)state;
	make_design(300);
	play("eft-staged+rescue=1");
	assert_int_equal(run.stage.rescued, 0);
}

/* ---- all together ---- */

/* Every play ends with its conservation asserted: requests, pieces, tokens, books. */
static void under_cache_pressure_nothing_is_lost(void **state)
{
	static const char *const arms[] = {
		"pieces+cold_slots=1",
		"pieces+piece_tokens=3000",
		"pieces+cold_slots=2+scheduling=async",
		"requeue+cold_slots=1",
		"requeue+requeue_run_s=0.05+requeue_rest=0+requeue_sends=100",
		"requeue+cold_slots=1+scheduling=async",
		"both+uncuttable=0.4+cold_slots=1+scheduling=async",
		"both+uncuttable=0.4+stage_force=1+pieces_hit=0",
		"both+uncuttable=0.4+cold_slots=1+engine_requests=4",
		"requeue+cold_slots=1+long_prefill_cap=2048",
		"pieces+cold_slots=1+rescue=1+stall=20+stall_every=25",
		"requeue+cold_slots=1+rescue=1+stall=20+stall_every=25",
		"both+uncuttable=0.4+cold_slots=1+restart_every=40",
	};

	(void)state;
	make_design(90);
	for (size_t i = 0; i < sizeof(arms) / sizeof(arms[0]); i++) {
		char text[REPLAY_NAME_MAX];

		snprintf(text, sizeof(text), "eft+engines=3+kv_tokens=132000+stage=%s", arms[i]);
		play(text);
		assert_true(run.stage.staged + run.stage.closes > 0);
	}
}

static void the_same_seed_gives_the_same_bytes(void **state)
{
	struct replay_run first;

	(void)state;
	make_design(150);
	play("eft-both");
	first = run;
	run = (struct replay_run){ 0 };
	play("eft-both");

	assert_int_equal(first.events, run.events);
	assert_memory_equal(first.request, run.request, run.requests * sizeof(*run.request));
	replay_run_free(&first);
}

static void short_turns_gain_what_it_is_for(void **state)
{
	double plain[REPLAY_FIGURES_NR], staged[REPLAY_FIGURES_NR];

	(void)state;
	make_design(400);
	play("eft");
	assert_int_equal(replay_figures(&run, &arm, &w, plain), 0);
	play("eft-staged");
	assert_int_equal(replay_figures(&run, &arm, &w, staged), 0);

	assert_true(staged[REPLAY_heavy_t2_mean_s] < 0.7 * plain[REPLAY_heavy_t2_mean_s]);
	assert_true(staged[REPLAY_heavy_t1_mean_s] < 1.1 * plain[REPLAY_heavy_t1_mean_s]);
	assert_true(staged[REPLAY_pieces] > 0 && plain[REPLAY_pieces] == 0);
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		CLAIM(a_staged_prompts_parts_take_what_the_model_says),
		CLAIM(a_short_request_gets_in_behind_one_piece),
		CLAIM(an_idle_engine_gets_the_prompt_whole),
		CLAIM(a_staged_session_hits_as_any_other),
		CLAIM(overheads_are_paid),
		CLAIM(pieces_that_are_evicted_are_computed_again),
		CLAIM(pieces_that_miss_are_ended_by_each_source),
		CLAIM(pieces_that_hit_are_believed_by_each_source),
		CLAIM(without_evidence_there_are_no_pieces_unless_forced),
		CLAIM(one_cold_prompt_at_a_time),
		CLAIM(a_cold_prompt_is_bound_when_a_slot_is_free),
		CLAIM(a_lone_cold_slot_changes_nothing_for_short_requests),
		CLAIM(room_is_waited_for_too),
		CLAIM(a_cold_prompt_gives_way_and_loses_nothing),
		CLAIM(with_async_it_computes_one_step_more_first),
		CLAIM(nobody_waits_nobody_closes),
		CLAIM(both_cuts_what_can_be_cut_and_requeues_the_rest),
		CLAIM(who_waits_on_a_hanging_engine_is_taken_off_it_once),
		CLAIM(a_staged_prompt_that_is_rescued_is_staged_anew),
		CLAIM(healthy_engines_rescue_nobody),
		CLAIM(under_cache_pressure_nothing_is_lost),
		CLAIM(the_same_seed_gives_the_same_bytes),
		CLAIM(short_turns_gain_what_it_is_for),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
