/* Claims about the laboratory: exact where it can be worked out by hand, and the same every time.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bench/replay.h"

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

/* A session of one turn, sent at at_s: `prompt` tokens of its own text. */
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

/* The session's next turn: the last one, its answer, `more` new tokens, after `think_s`. */
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

static void play(const char *text)
{
	struct replay_arm base = arm;

	assert_int_equal(replay_arm_parse(&arm, &base, text, why), 0);
	assert_int_equal(workload_finish(&w), 0);
	assert_int_equal(replay_play(&run, &arm, &w, 7), 0);
}

static void make_design(double requests)
{
	struct workload_pick pick;
	struct workload_mix mix;

	workload_mix_init(&mix);
	workload_pick_init(&pick);
	mix.requests = requests;
	pick.seed = 2;
	assert_int_equal(workload_generate(&w, &mix, &pick), 0);
}

static double ttft_s(size_t i)
{
	return (double)(run.request[i].first_ns - run.request[i].arrive_ns) * 1e-9;
}

static double model_s(uint32_t cached, uint32_t tokens)
{
	return model_prefill_s(arm.profile, NULL, cached, tokens);
}

static void a_lone_request_takes_what_the_model_says(void **state)
{
	(void)state;
	lone_turn(1.5, 100, 5000, 3);

	play("eft+engines=1");

	/* 5,000 a + 5,000^2 b + 1 ms; then two decode steps of W + context x kvr + 1 ms. */
	double prefill = 5000 * 2.03e-4 + 25e6 * 2.05e-9 + 1e-3;
	double decodes = 2 * (12.2e-3 + 1e-3) + (5001 + 5002) * 9.8e-8;
	double e2e = (double)(run.request[0].end_ns - run.request[0].arrive_ns) * 1e-9;

	assert_true(fabs(ttft_s(0) - prefill) < 1e-6);
	assert_true(fabs(ttft_s(0) - model_s(0, 5000)) < 1e-6);
	assert_true(fabs(e2e - prefill - decodes) < 1e-4);
	assert_true(fabs((double)run.request[0].arrive_ns * 1e-9 - 1001.5) < 1e-9);
}

static void a_second_request_goes_to_the_empty_engine(void **state)
{
	(void)state;
	lone_turn(0, 100, 8000, 200);
	lone_turn(0.01, 200, 8000, 200);

	play("eft+engines=2");

	assert_int_not_equal(run.request[0].engine, run.request[1].engine);
	assert_true(fabs(ttft_s(1) - model_s(0, 8000)) < 1e-6);
}

static void one_engine_serves_in_order(void **state)
{
	(void)state;
	lone_turn(0, 100, 8192, 1);
	lone_turn(0.1, 200, 8192, 1);

	play("eft+engines=1");

	/* Two full steps, one after the other; the second came 0.1 s late. */
	assert_true(fabs(ttft_s(0) - model_s(0, 8192)) < 1e-6);
	assert_true(fabs(ttft_s(1) - (2 * model_s(0, 8192) - 0.1)) < 1e-6);
}

static void the_next_turn_comes_after_the_answer_and_the_pause(void **state)
{
	(void)state;
	lone_turn(0, 100, 20000, 40);
	next_turn(3.25, 200, 500, 10);

	play("eft");

	assert_int_equal(run.request[1].arrive_ns, run.request[0].end_ns + 3250000000ull);
	assert_int_equal(run.request[1].engine, run.request[0].engine);
	assert_int_equal(run.request[1].home, run.request[0].engine);
	assert_int_equal(run.request[1].cached_tokens, w.turn[1].ideal_hit_tokens);
	assert_true(fabs(ttft_s(1) - model_s(w.turn[1].ideal_hit_tokens, 20540)) < 1e-6);
}

static void moving_costs_the_prefill_again(void **state)
{
	(void)state;
	lone_turn(0, 100, 20000, 40);
	next_turn(3, 200, 500, 10);

	play("round-robin+engines=2"); /* the second turn goes where nothing is */

	assert_int_not_equal(run.request[1].engine, run.request[0].engine);
	assert_int_equal(run.request[1].cached_tokens, 0);
	assert_int_equal(run.request[1].best_hit_tokens, w.turn[1].ideal_hit_tokens);
	assert_true(fabs(ttft_s(1) - model_s(0, 20540)) < 1e-6);
}

/* Home is busy with a long cold prompt; the other engine is empty and can pull the prefix. */
static void a_pull_costs_set_up_and_bytes(void **state)
{
	(void)state;
	lone_turn(0, 100, 20000, 4);
	next_turn(30, 200, 500, 10);
	lone_turn(34, 300, 90000, 4);
	lone_turn(34, 400, 90000, 4);

	play("eft+engines=3+migrate=off+kv_transfer=1+pull_bandwidth=1e9");

	const struct replay_request *r = &run.request[1];
	double bytes = (double)r->pulled_tokens * 147456;

	if (r->home == r->engine) { /* not the case this test is for */
		fail_msg("the session stayed");
	}
	assert_int_equal(r->pulled_tokens, 20000);
	assert_int_equal(r->cached_tokens, 20000);
	assert_true(ttft_s(1) > 0.05 + bytes / 1e9);
}

static unsigned engines_used(void)
{
	unsigned used = 0;

	for (size_t i = 0; i < run.requests; i++)
		used |= 1u << run.request[i].engine;
	return (unsigned)__builtin_popcount(used);
}

/* Eight cold prompts in 80 ms, the samples half a second apart: where own dispatches are left out,
 * the tie of eight idle engines is drawn anew for each, blind to what was sent before. */
static void own_dispatches_spread_a_burst(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 8; i++)
		lone_turn(0.1 + 0.01 * i, 1000 + 10 * i, 8000, 5);

	play("eft+sample=0.5");
	assert_int_equal(engines_used(), 8);
	replay_run_free(&run);
	replay_arm_init(&arm);
	play("eft+sample=0.5+state=record");
	assert_true(engines_used() < 8);
	replay_run_free(&run);
	replay_arm_init(&arm);
	play("eft+head=none");
	assert_int_equal(engines_used(), 8);
	replay_run_free(&run);
	replay_arm_init(&arm);
	play("v2+sample=0.5"); /* by tokens instead of seconds */
	assert_int_equal(engines_used(), 8);
}

static void requests_that_decode_are_counted(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 8; i++)
		lone_turn(1.0 + 2 * i, 1000 + 10 * i, 2000, 3000);

	play("least-requests");

	assert_int_equal(engines_used(), 8);
}

/* Two prompts have been computed and are being answered: nothing of them is ahead any more. */
static void a_first_token_ends_the_prefill_ahead(void **state)
{
	(void)state;
	lone_turn(0, 100, 8000, 2000);
	lone_turn(0.01, 200, 8000, 2000);
	lone_turn(15, 300, 8000, 2);

	play("eft+engines=1+measured=0");

	assert_true(run.request[1].end_ns > run.request[2].arrive_ns);
	assert_true(fabs(run.request[2].predicted_ttft_s / ttft_s(2) - 1) < 0.35);
}

static void a_slow_engine_takes_longer(void **state)
{
	(void)state;
	lone_turn(0, 100, 5000, 3);

	play("eft+engines=1+slow=2.5");

	assert_true(fabs(ttft_s(0) - 2.5 * model_s(0, 5000)) < 1e-6);
}

/* The first engine is slow and nobody says so: how many of 60 lone prompts it gets. */
static unsigned on_the_slow_one(const char *text, double every_s, uint32_t prompt)
{
	unsigned nr = 0;

	teardown(NULL);
	setup(NULL);
	for (unsigned i = 0; i < 60; i++)
		lone_turn(every_s * i, 1000 + 10 * i, prompt, 5);
	play(text);
	for (size_t i = 0; i < run.requests; i++)
		nr += run.request[i].engine == 0;
	return nr;
}

static void measured_speeds_show_a_slow_engine(void **state)
{
	(void)state;
	assert_true(on_the_slow_one("eft+engines=2+slow=4+calibration_max=1+measured=0", 8, 16000) >
		    15);
	assert_true(on_the_slow_one("eft+engines=2+slow=4+calibration_max=1", 8, 16000) < 6);
}

/* vLLM counts prefills by request, which says nothing where prompts share steps; SGLang by batch.
 */
static void short_prompts_show_it_only_where_batches_are_counted(void **state)
{
	(void)state;
	assert_true(on_the_slow_one("eft+engines=2+slow=4+calibration_max=1", 8, 4000) > 15);
	assert_true(on_the_slow_one("eft+engines=2+slow=4+calibration_max=1+head=sglang", 8, 4000) <
		    6);
}

/* Nine prompts one after the other, then the first once more, from another session. The engine
 * has it still; so has the router's index, unless that is too small. */
static void a_small_index_forgets(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 10; i++)
		lone_turn(20.0 * i, 1000 + 10 * (i % 9), 20000, 2);

	play("eft+engines=1");
	assert_int_equal(run.request[9].cached_tokens, 19984);
	assert_true(run.request[9].predicted_ttft_s < 0.5);
	replay_run_free(&run);
	replay_arm_init(&arm);
	play("eft+engines=1+index_scale=0.01");
	assert_int_equal(run.request[9].cached_tokens, 19984);
	assert_true(run.request[9].predicted_ttft_s > 3);
	replay_run_free(&run);
	replay_arm_init(&arm);
	play("eft+engines=1+index_scale=0.01+cache=exact");
	assert_true(run.request[9].predicted_ttft_s < 0.5);
}

/* An index of 131,000 tokens; the first prompt is answered until after two others have come. */
static void a_touched_prompt_outlives_what_came_meanwhile(void **state)
{
	(void)state;
	lone_turn(0, 100, 60000, 3000);
	lone_turn(30, 200, 60000, 2);
	lone_turn(60, 300, 30000, 2);
	lone_turn(300, 100, 60000, 2);

	play("eft+engines=1+index_scale=0.16");
	assert_true(run.request[0].end_ns > run.request[2].first_ns);
	assert_true(run.request[3].predicted_ttft_s > 3);
	replay_run_free(&run);
	replay_arm_init(&arm);
	play("eft+engines=1+index_scale=0.16+index_touch=1");
	assert_true(run.request[3].predicted_ttft_s < 0.5);
}

/* A long prompt that begins as the session does holds up its home; 8,102 tokens computed again on
 * the other engine take 1.8 s. */
static void the_oracle_leaves_home_where_that_is_sooner(void **state)
{
	double f[REPLAY_FIGURES_NR];

	(void)state;
	lone_turn(0, 100, 8000, 2);
	next_turn(9, 200, 100, 2);
	lone_turn(10, 100, 60000, 2);

	play("round-robin+engines=2+oracle=own");
	assert_int_equal(replay_figures(&run, &arm, &w, f), 0);

	assert_int_equal(run.request[2].engine, run.request[0].engine);
	assert_int_not_equal(run.request[1].engine, run.request[0].engine);
	assert_true(fabs(ttft_s(1) - model_s(0, 8102)) < 1e-6);
	assert_int_equal(run.request[1].offload, REPLAY_MIGRATED);
	assert_true(run.request[1].stay_s > 10);
	assert_true(f[REPLAY_migrations] == 1 && f[REPLAY_migrations_paid] == 1);
	assert_true(f[REPLAY_offloads] == 1 && f[REPLAY_offloads_t1] == 0);
}

/* A copy, run ahead, tells the first token to the nanosecond when nobody else comes. */
static void what_is_run_ahead_comes_true(void **state)
{
	double stayed_s;

	(void)state;
	lone_turn(0, 100, 20000, 40);
	next_turn(5, 200, 100, 10);

	play("round-robin+engines=2"); /* turn 2 leaves; where it was, nothing runs */
	stayed_s = run.request[1].stay_s;
	assert_int_equal(run.request[1].offload, REPLAY_MIGRATED);
	assert_int_equal(run.request[1].held_tokens, w.turn[1].ideal_hit_tokens);
	replay_run_free(&run);
	replay_arm_init(&arm);
	play("sticky+engines=2");
	assert_int_equal(run.request[1].offload, REPLAY_STAYED);
	assert_true(run.request[1].stay_s == 0);
	assert_true(fabs(stayed_s - ttft_s(1)) < 1e-9);
}

/* Two sessions begin alike; the second is sent where none of it is. */
static void turn_1_elsewhere_than_the_longest_hit_is_an_offload(void **state)
{
	double f[REPLAY_FIGURES_NR];

	(void)state;
	lone_turn(0, 100, 20000, 2);
	lone_turn(30, 100, 20000, 2);

	play("round-robin+engines=2");
	assert_int_equal(replay_figures(&run, &arm, &w, f), 0);

	assert_int_equal(run.request[1].offload, REPLAY_OFFLOADED);
	assert_true(fabs(run.request[1].stay_s - model_s(19984, 20000)) < 1e-6);
	assert_true(f[REPLAY_offloads] == 1 && f[REPLAY_offloads_t1] == 1);
	assert_true(f[REPLAY_offloads_t1_paid] == 0 && f[REPLAY_migrations] == 0);
	/* ideal: the first prompt whole, of the second what is not held where most of it is */
	assert_true(fabs(f[REPLAY_ideal_mean_s] - (model_s(0, 20000) + model_s(19984, 20000)) / 2) <
		    1e-9);
	assert_true(fabs(f[REPLAY_over_ideal] * f[REPLAY_ideal_mean_s] - f[REPLAY_ttft_mean_s]) <
		    1e-9);
}

/* One engine decodes four answers, the other one, behind a prefill that a new prompt has to wait
 * for: its own first token would be earlier beside the four. */
static void the_social_oracle_spares_those_who_decode(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 2; k++) {
		lone_turn(4, 100, 500, 300);
		for (unsigned i = 1; i < 4; i++)
			lone_turn(4 + 0.2 * i, 100, 500 + i, 300);
		lone_turn(5, 200, 16000, 2);
		lone_turn(5.5, 300, 16000, 2);
		play(k ? "sticky+engines=2+oracle=social" : "sticky+engines=2+oracle=own");
		assert_int_equal(run.request[1].engine == run.request[0].engine, 1);
		assert_int_not_equal(run.request[4].engine, run.request[0].engine);
		assert_int_equal(run.request[5].engine == run.request[0].engine, k == 0);
		workload_free(&w);
		replay_run_free(&run);
		replay_arm_init(&arm);
	}
}

/* The only engine stands still from second 10 to 14: the first prompt's step takes 4 s longer, the
 * second prompt, which comes meanwhile, waits for it. */
static void a_stall_delays_what_runs_and_what_comes(void **state)
{
	(void)state;
	lone_turn(9.9, 100, 8000, 2);
	play("eft+engines=1+stall=4+stall_every=10");
	assert_true(fabs(ttft_s(0) - (model_s(0, 8000) + 4)) < 1e-6);
	workload_free(&w);
	replay_run_free(&run);
	replay_arm_init(&arm);
	lone_turn(11, 200, 1000, 2);
	play("eft+engines=1+stall=4+stall_every=10");
	assert_true(fabs(ttft_s(0) - (model_s(0, 1000) + 3)) < 1e-6);
}

/* Engines stand still one after the other: the second one from 20 to 24. */
static void stalls_go_round(void **state)
{
	(void)state;
	lone_turn(19, 100, 40000, 2);
	lone_turn(19.5, 200, 40000, 2);

	play("eft+engines=2+stall=4+stall_every=10");

	double least = model_s(0, 40000);
	int second = run.request[0].engine == 1 ? 0 : 1;

	assert_true(fabs(ttft_s((size_t)second) - (least + 4)) < 1e-6);
	/* the other engine's turn is at 30, when its prompt is still being computed */
	assert_true(fabs(ttft_s((size_t)!second) - (least + 4)) < 1e-6);
}

/* Two turns at home, a restart between: nothing is cached, and the router knows. */
static void a_restart_empties_cache_index_and_home(void **state)
{
	(void)state;
	lone_turn(0, 100, 20000, 40);
	next_turn(30, 200, 500, 10);

	play("eft+engines=1+restart_every=25+restart_down=5");

	assert_int_equal(run.request[1].lost, 0);
	assert_int_equal(run.request[1].home, -1);
	assert_int_equal(run.request[1].cached_tokens, 0);
	assert_int_equal(run.request[1].offload, REPLAY_STAYED);
	assert_true(run.request[1].predicted_ttft_s > 0.5 * model_s(0, 20540));
	assert_true(ttft_s(1) >= model_s(0, 20540) - 1e-6);
}

/* Lost at second 10, sent again at 11; its engine is away until 15. Alone it waits for it, with a
 * second engine it goes there. */
static void what_a_restart_breaks_off_is_sent_again(void **state)
{
	double f[REPLAY_FIGURES_NR], from_arrival_s = 11 - 9.5;

	(void)state;
	for (unsigned engines = 1; engines <= 2; engines++) {
		lone_turn(9.5, 100, 1000, 200);
		play(engines == 1 ? "sticky+engines=1+restart_every=10+restart_down=5"
				  : "sticky+engines=2+restart_every=10+restart_down=5");
		assert_int_equal(replay_figures(&run, &arm, &w, f), 0);
		if (engines == 2 && run.request[0].lost == 0) {
			assert_true(ttft_s(0) < 1); /* it was on the other one */
		} else {
			double wait_s = engines == 1 ? 15 - 9.5 : from_arrival_s;

			assert_true(fabs(ttft_s(0) - (wait_s + model_s(0, 1000))) < 1e-6);
			assert_true(f[REPLAY_lost] == 1);
		}
		workload_free(&w);
		replay_run_free(&run);
		replay_arm_init(&arm);
	}
}

static void every_request_survives_faults(void **state)
{
	static const char *const arms[] = {
		"eft+restart_every=15+restart_down=10",
		"eft+restart_every=20+stall=12+stall_every=7+kv_transfer=1+sample=1",
		"eft+stall=30+stall_every=40+head=sglang",
		"preble+restart_every=10+engines=2",
		"eft+restart_every=30+restart_down=40+engines=1",
		"oracle+restart_every=15+stall=3+stall_every=5",
		"eft-no-agents+restart_every=20",
		"eft-staged+restart_every=11+engines=3",
		"eft-requeue+restart_every=13+engines=3+scheduling=async",
		"eft-both+restart_every=17+stall=15+stall_every=20+rescue=1",
		"eft-staged+hold=0.3+restart_every=9+restart_down=12+engines=2",
	};
	uint64_t lost = 0;

	(void)state;
	make_design(40);
	for (size_t i = 0; i < sizeof(arms) / sizeof(arms[0]); i++) {
		replay_arm_init(&arm);
		play(arms[i]); /* conservation is asserted at the end of every play */
		for (size_t k = 0; k < run.requests; k++)
			lost += run.request[k].lost;
		replay_run_free(&run);
	}
	assert_true(lost > 50);
}

static void agents_that_say_nothing_of_memory_hide_it(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 3; i++)
		lone_turn(8.0 * i, 1000 + 10 * i, 30000, 3000);
	play("eft+engines=1+kv_tokens=70000");
	double seen_s = run.request[2].predicted_ttft_s;

	replay_run_free(&run);
	replay_arm_init(&arm);
	play("eft+engines=1+kv_tokens=70000+kv_seen=0");
	assert_true(run.request[2].predicted_ttft_s < seen_s - 0.3);
}

static void profiles_go_round_the_engines(void **state)
{
	double f[REPLAY_FIGURES_NR], q14b_s;

	(void)state;
	lone_turn(0, 100, 8000, 2);
	lone_turn(0.01, 200, 8000, 2);

	play("eft+engines=2+profile=q8b:q14b");
	assert_int_equal(replay_figures(&run, &arm, &w, f), 0);

	q14b_s = model_prefill_s(model_profile_find("q14b"), NULL, 0, 8000);
	assert_int_not_equal(run.request[0].engine, run.request[1].engine);
	for (size_t i = 0; i < 2; i++)
		assert_true(fabs(ttft_s(i) - (run.request[i].engine ? q14b_s : model_s(0, 8000))) <
			    1e-6);
	assert_true(fabs(f[REPLAY_floor_mean_s] - model_s(0, 8000)) < 1e-9);
	struct replay_arm base = arm;
	assert_int_equal(replay_arm_parse(&arm, &base, "eft+profile=q8b:none", why), -22);
	assert_int_equal(replay_arm_parse(&arm, &base, "eft+profile=", why), -22);
}

static void the_same_seed_gives_the_same_bytes(void **state)
{
	static const char *const arms[] = { "eft",
					    "oracle-social",
					    "eft-staged",
					    "preble",
					    "eft+restart_every=9+stall=3+stall_every=7",
					    "power-of-two+profile=a3b:q32f8" };

	(void)state;
	make_design(50);
	for (size_t i = 0; i < sizeof(arms) / sizeof(arms[0]); i++) {
		struct replay_run first;

		replay_arm_init(&arm);
		play(arms[i]);
		first = run;
		run = (struct replay_run){ 0 };
		replay_arm_init(&arm);
		play(arms[i]);
		assert_int_equal(first.events, run.events);
		assert_memory_equal(first.request, run.request,
				    run.requests * sizeof(*run.request));
		replay_run_free(&first);
		replay_run_free(&run);
	}
}

static void every_arm_answers_every_request(void **state)
{
	static const char *const arms[] = {
		"round-robin", "power-of-two",  "sticky",     "linear",       "v2",
		"v3",          "A+B-ttft",      "A-amortise", "eft",          "sglang",
		"least-load",  "dynamo",        "llm-d",      "preble",       "llumnix",
		"eft-live",    "eft-no-agents", "oracle",     "oracle-social"
	};

	(void)state;
	make_design(120);
	for (size_t i = 0; i < sizeof(arms) / sizeof(arms[0]); i++) {
		replay_arm_init(&arm);
		play(arms[i]); /* conservation is asserted at the end of every play */
		for (size_t k = 0; k < run.requests; k++) {
			assert_true(run.request[k].engine >= 0 && run.request[k].engine < 8);
			assert_true(run.request[k].end_ns >= run.request[k].first_ns);
		}
		replay_run_free(&run);
	}
}

static void nothing_is_faster_than_the_floor(void **state)
{
	double figure[REPLAY_FIGURES_NR];

	(void)state;
	make_design(200);
	play("eft-live");

	assert_int_equal(replay_figures(&run, &arm, &w, figure), 0);
	for (size_t i = 0; i < run.requests; i++)
		assert_true(ttft_s(i) >
			    model_s(w.turn[i].ideal_hit_tokens, w.turn[i].prompt_tokens) - 1e-6);
	assert_true(figure[REPLAY_floor_mean_s] <= figure[REPLAY_ttft_mean_s]);
	assert_true(figure[REPLAY_hit_ratio] <= figure[REPLAY_ideal_hit_ratio]);
}

static void seeing_the_load_beats_turns(void **state)
{
	double blind[REPLAY_FIGURES_NR], seeing[REPLAY_FIGURES_NR];

	(void)state;
	make_design(300);
	play("round-robin");
	assert_int_equal(replay_figures(&run, &arm, &w, blind), 0);
	replay_run_free(&run);
	replay_arm_init(&arm);
	play("eft");
	assert_int_equal(replay_figures(&run, &arm, &w, seeing), 0);

	assert_true(seeing[REPLAY_ttft_p90_s] < 0.7 * blind[REPLAY_ttft_p90_s]);
	assert_true(seeing[REPLAY_hit_ratio] > blind[REPLAY_hit_ratio] + 0.2);
}

static void figures_are_worked_out_by_hand(void **state)
{
	double f[REPLAY_FIGURES_NR];

	(void)state;
	lone_turn(0, 100, 20000, 2);
	next_turn(1, 200, 500, 2);
	lone_turn(90, 300, 1000, 2);
	lone_turn(95, 400, 4000, 2);

	play("round-robin+engines=2");
	assert_int_equal(replay_figures(&run, &arm, &w, f), 0);

	assert_true(fabs(f[REPLAY_heavy_t1_mean_s] - ttft_s(0)) < 1e-12);
	assert_true(fabs(f[REPLAY_heavy_t2_mean_s] - ttft_s(1)) < 1e-12);
	assert_true(fabs(f[REPLAY_warm_mean_s] - ttft_s(2)) < 1e-12);
	assert_true(fabs(f[REPLAY_medium_p90_s] - ttft_s(3)) < 1e-12);
	assert_true(fabs(f[REPLAY_ttft_p50_s] - ttft_s(3)) < 1e-12); /* second of four */
	assert_true(ttft_s(1) > ttft_s(0));
	assert_true(fabs(f[REPLAY_ttft_p90_s] - ttft_s(1)) < 1e-12); /* fourth of four */
	assert_true(f[REPLAY_candidates] == 1 && f[REPLAY_hot] == 1);
	assert_true(f[REPLAY_victims] == (ttft_s(1) > 5));
	assert_true(f[REPLAY_migrations] == 1 && f[REPLAY_migrations_hot] == 1);
	assert_true(f[REPLAY_hit_ratio] == 0);
}

static void means_and_their_errors(void **state)
{
	const double values[] = { 2, 4, 9 };
	struct replay_mean m = replay_mean_of(values, 3);

	(void)state;
	assert_true(fabs(m.mean - 5) < 1e-12);
	assert_true(fabs(m.error - sqrt(26.0 / 2 / 3)) < 1e-12);
	assert_true(replay_mean_of(values, 1).error == 0);
}

static void an_arms_text_says_all_of_it(void **state)
{
	struct replay_arm base = arm;

	(void)state;
	assert_int_equal(replay_arm_parse(&arm, &base, "A+B-1.5+sample=0.5+state=live", why), 0);
	assert_int_equal(arm.params.policy, POLICY_CONTENTION);
	assert_int_equal(arm.params.migrate, MIGRATE_FORCE);
	assert_true(arm.sample == 0.5 && arm.state == REPLAY_STATE_LIVE);
	assert_string_equal(arm.name, "A+B-1.5+sample=0.5+state=live");
	assert_int_equal(replay_arm_parse(&arm, &base, "dynamo", why), 0);
	assert_int_equal(arm.peer, PEER_DYNAMO);
	assert_int_equal(replay_arm_parse(&arm, &base, "eft+smaple=1", why), -22);
	assert_non_null(strstr(why, "smaple"));
	assert_int_equal(replay_arm_parse(&arm, &base, "nobody", why), -22);
	assert_int_equal(replay_arm_parse(&arm, &base, "eft+engines=0", why), -22);
}

static void every_preset_can_be_parsed(void **state)
{
	struct replay_arm base = arm;
	const char *meaning, *name;
	unsigned suites;

	(void)state;
	for (size_t i = 0; (name = replay_preset(i, &meaning, &suites)); i++) {
		if (replay_arm_parse(&arm, &base, name, why) != 0)
			fail_msg("%s: %s", name, why);
		assert_true(suites != 0 && suites < 1u << REPLAY_SUITES_NR);
	}
}

/* Six equal prompts, all decided before the first is sent: each alone sees two empty engines. */
static void play_held(const char *text, unsigned ret_sent[2])
{
	teardown(NULL);
	setup(NULL);
	for (uint64_t i = 0; i < 6; i++)
		lone_turn(0.01 * (double)i, 100 * (i + 1), 5000, 50);
	play(text);
	ret_sent[0] = ret_sent[1] = 0;
	for (size_t i = 0; i < 6; i++)
		ret_sent[run.request[i].engine]++;
}

static void a_held_request_is_decided_again_when_it_leaves(void **state)
{
	unsigned sent[2];

	(void)state;
	play_held("eft+engines=2+hold=1+recheck=0", sent);
	assert_int_equal(run.rerouted, 0);
	assert_int_not_equal(sent[0], 3); /* as drawn */
	play_held("eft+engines=2+hold=1", sent);
	assert_int_equal(sent[0], 3);
	assert_true(run.rerouted > 0);
	assert_true(ttft_s(0) > 1 + model_s(0, 5000) - 1e-6);
}

/* Like next_turn(), but its client does not send the last answer back. */
static void turn_without_answer(double think_s, uint64_t key, uint32_t more, uint32_t output)
{
	struct workload_turn before = w.turn[w.turns - 1];
	struct workload_turn t = { .at_s = -1,
				   .think_s = think_s,
				   .session = before.session,
				   .turn = before.turn + 1,
				   .prompt_tokens = before.prompt_tokens + more,
				   .output_tokens = output,
				   .segment = (uint32_t)w.segments };

	t.answer = (struct workload_segment){ key + 1, 0, output };
	assert_int_equal(workload_repeat(&w, &before, before.prompt_tokens), 0);
	assert_int_equal(workload_add_segment(&w, (struct workload_segment){ key, 0, more }), 0);
	assert_int_equal(workload_add_turn(&w, &t), 0);
}

/* The answer that home is first thought to hold is not asked for; the third turn expects none. */
static void answers_that_do_not_come_back_are_expected_once(void **state)
{
	(void)state;
	lone_turn(0, 100, 5000, 1000);
	turn_without_answer(5, 200, 1100, 1000);
	turn_without_answer(5, 300, 1100, 1000);

	play("eft+engines=1+measured=0+calibration_max=1");

	double second_s = run.request[1].predicted_ttft_s,
	       third_s = run.request[2].predicted_ttft_s;

	assert_true(second_s < 100 / 4000.0 * 2 + 0.1);
	assert_true(third_s > second_s + 1000 / 4000.0 / 2);
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		CLAIM(a_lone_request_takes_what_the_model_says),
		CLAIM(a_second_request_goes_to_the_empty_engine),
		CLAIM(one_engine_serves_in_order),
		CLAIM(the_next_turn_comes_after_the_answer_and_the_pause),
		CLAIM(moving_costs_the_prefill_again),
		CLAIM(a_pull_costs_set_up_and_bytes),
		CLAIM(own_dispatches_spread_a_burst),
		CLAIM(requests_that_decode_are_counted),
		CLAIM(a_first_token_ends_the_prefill_ahead),
		CLAIM(a_slow_engine_takes_longer),
		CLAIM(measured_speeds_show_a_slow_engine),
		CLAIM(short_prompts_show_it_only_where_batches_are_counted),
		CLAIM(a_small_index_forgets),
		CLAIM(a_touched_prompt_outlives_what_came_meanwhile),
		CLAIM(the_oracle_leaves_home_where_that_is_sooner),
		CLAIM(what_is_run_ahead_comes_true),
		CLAIM(turn_1_elsewhere_than_the_longest_hit_is_an_offload),
		CLAIM(the_social_oracle_spares_those_who_decode),
		CLAIM(a_stall_delays_what_runs_and_what_comes),
		CLAIM(stalls_go_round),
		CLAIM(a_restart_empties_cache_index_and_home),
		CLAIM(what_a_restart_breaks_off_is_sent_again),
		CLAIM(every_request_survives_faults),
		CLAIM(agents_that_say_nothing_of_memory_hide_it),
		CLAIM(profiles_go_round_the_engines),
		CLAIM(the_same_seed_gives_the_same_bytes),
		CLAIM(every_arm_answers_every_request),
		CLAIM(nothing_is_faster_than_the_floor),
		CLAIM(seeing_the_load_beats_turns),
		CLAIM(figures_are_worked_out_by_hand),
		CLAIM(means_and_their_errors),
		CLAIM(an_arms_text_says_all_of_it),
		CLAIM(every_preset_can_be_parsed),
		CLAIM(a_held_request_is_decided_again_when_it_leaves),
		CLAIM(answers_that_do_not_come_back_are_expected_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
