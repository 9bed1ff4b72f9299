/* Claims about pieces: who is cut, where, what follows each event, and what the guard makes of it.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "router/stage/guard.h"
#include "router/stage/rescue.h"
#include "router/stage/stage.h"

#define S 1000000000ull

static struct stage_params params;
static struct stage_case c;
static struct stage_guard guard;
static struct stage stage;
static struct stage_next next;
static enum stage_reason reason;

static int setup(void **state)
{
	(void)state;
	stage_params_init(&params);
	params.stage = STAGE_BOTH;
	memset(&guard, 0, sizeof(guard));
	c = (struct stage_case){ .prompt_tokens = 40000,
				 .prefill_s = 11,
				 .engine = { .flags = STAGE_ENGINE_STAGES | STAGE_ENGINE_REQUEUES,
					     .others = 1 } };
	return 0;
}

static void begin(uint32_t prompt, uint32_t hit)
{
	struct stage_plan plan;

	c.prompt_tokens = prompt;
	c.hit_tokens = hit;
	stage_plan_make(&params, &c, &plan);
	stage_begin(&stage, &plan, &next);
}

static void piece_done(enum stage_verdict verdict)
{
	stage_event(&stage, &params, STAGE_EVENT_PIECE_DONE, verdict, &next);
}

static enum stage_way way(void)
{
	return stage_choose(&params, &c, &reason);
}

/* ---- size ---- */

static void a_piece_is_just_under_a_step(void **state)
{
	struct stage_engine engine = { 0 };

	(void)state;
	assert_int_equal(stage_piece_tokens(&params, &engine, 40000), 7680); /* 8192 - 8192 / 16 */
	engine.step_tokens = 2048;
	assert_int_equal(stage_piece_tokens(&params, &engine, 20000), 1920);
	engine.sequences_max = 256;
	assert_int_equal(stage_piece_tokens(&params, &engine, 20000), 1792);
	engine.sequences_max = 4096; /* never under half a step */
	assert_int_equal(stage_piece_tokens(&params, &engine, 10000), 1024);
	engine = (struct stage_engine){ .flags = STAGE_ENGINE_HALF_STEP, .step_tokens = 2048 };
	assert_int_equal(stage_piece_tokens(&params, &engine, 10000), 1024);
}

static void a_long_prompt_has_longer_pieces_of_whole_steps_and_blocks(void **state)
{
	struct stage_engine engine = { .step_tokens = 1024 };

	(void)state;
	/* 16,405 / 16 is 1,025: twice as many passes of the engine, every second of one token. */
	assert_int_equal(stage_piece_tokens(&params, &engine, 16405), 960);
	assert_int_equal(stage_piece_tokens(&params, &engine, 23000), 960); /* 1,437 = 1.497 */
	assert_int_equal(stage_piece_tokens(&params, &engine, 23100), 1920);
	assert_int_equal(stage_piece_tokens(&params, &engine, 65536), 3840);
	engine = (struct stage_engine){ .block_tokens = 1000 };
	assert_int_equal(stage_piece_tokens(&params, &engine, 200000), 14000);
	params.piece_tokens = 100;
	assert_int_equal(stage_piece_tokens(&params, &engine, 100), 1000);
}

/* ---- whether ---- */

static void a_cold_prompt_is_cut_and_a_short_one_is_not(void **state)
{
	(void)state;
	assert_int_equal(way(), STAGE_IN_PIECES);
	assert_int_equal(reason, STAGE_REASON_NONE);
	c.hit_tokens = 40000 - 9600; /* 1.25 pieces of 7,680 */
	assert_int_equal(way(), STAGE_WHOLE);
	assert_int_equal(reason, STAGE_REASON_SHORT);
	c.hit_tokens--;
	assert_int_equal(way(), STAGE_IN_PIECES);
}

static void every_body_that_cannot_be_cut_says_why(void **state)
{
	static const struct {
		uint32_t body;
		enum stage_reason reason;
		enum stage_way way;
	} rows[] = {
		{ STAGE_BODY_IMAGES, STAGE_REASON_IMAGES, STAGE_BY_REQUEUE },
		{ STAGE_BODY_AUDIO, STAGE_REASON_AUDIO, STAGE_BY_REQUEUE },
		{ STAGE_BODY_UNCUT, STAGE_REASON_SHAPE, STAGE_BY_REQUEUE },
		{ STAGE_BODY_PROMPT_LOGPROBS, STAGE_REASON_PROMPT_LOGPROBS, STAGE_WHOLE },
		{ STAGE_BODY_ARENA, STAGE_REASON_MEMORY, STAGE_WHOLE }, /* it would be kept */
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		c.body = rows[i].body;
		assert_int_equal(way(), rows[i].way);
		assert_int_equal(reason, rows[i].reason);
	}
}

static void the_mode_decides_between_pieces_and_requeue(void **state)
{
	(void)state;
	params.stage = STAGE_PIECES;
	assert_int_equal(way(), STAGE_IN_PIECES);
	c.body = STAGE_BODY_IMAGES;
	assert_int_equal(way(), STAGE_WHOLE);
	params.stage = STAGE_REQUEUE;
	assert_int_equal(way(), STAGE_BY_REQUEUE);
	c.engine.flags = STAGE_ENGINE_STAGES;
	assert_int_equal(way(), STAGE_WHOLE);
	params.stage = STAGE_OFF;
	assert_int_equal(way(), STAGE_WHOLE);
	assert_int_equal(reason, STAGE_REASON_OFF);
}

static void engines_that_would_lose_by_it_get_no_pieces(void **state)
{
	(void)state;
	c.engine.block_tokens = 1024;
	assert_int_equal(way(), STAGE_BY_REQUEUE);
	assert_int_equal(reason, STAGE_REASON_BLOCKS);
	c.engine.block_tokens = 16;
	c.engine.kv_capacity_tokens = 400000;
	c.engine.kv_free_tokens = 39999;
	way();
	assert_int_equal(reason, STAGE_REASON_KV_ROOM);
	c.engine.kv_free_tokens = 40000;
	c.engine.flags |= STAGE_ENGINE_OFF;
	way();
	assert_int_equal(reason, STAGE_REASON_EVIDENCE);
	params.stage_force = 1;
	assert_int_equal(way(), STAGE_IN_PIECES);
}

static void nobody_pays_where_nobody_waits(void **state)
{
	(void)state;
	c.engine.others = 0;
	assert_int_equal(way(), STAGE_WHOLE);
	assert_int_equal(reason, STAGE_REASON_ALONE);
	c.engine.expected_s = 200; /* 11 / 200 requests while it computes */
	assert_int_equal(way(), STAGE_WHOLE);
	c.engine.expected_s = 5;
	assert_int_equal(way(), STAGE_IN_PIECES);
}

/* ---- one request's life ---- */

static void pieces_grow_by_whole_pieces_and_the_request_goes_last(void **state)
{
	static const uint32_t cuts[] = { 7680, 15360, 23040, 30720 };

	(void)state;
	begin(40000, 0);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(next.action, STAGE_SEND_PIECE);
		assert_int_equal(next.cut_tokens, cuts[i]);
		assert_int_equal(next.expected_tokens, i ? cuts[i - 1] : 0);
		assert_int_equal(next.rest_tokens, 40000 - cuts[i]);
		piece_done(STAGE_HIT);
	}
	/* 9,280 are left: not more than 1.25 pieces. */
	assert_int_equal(next.action, STAGE_SEND_REQUEST);
	assert_int_equal(next.expected_tokens, 30720);
	assert_int_equal(next.rest_tokens, 0);
	assert_int_equal(stage.pieces, 4);
	assert_int_equal(stage.done, 4);
}

static void a_hit_is_not_sent_again(void **state)
{
	(void)state;
	begin(40000, 20005);

	assert_int_equal(next.cut_tokens, 27680); /* 20,005 + 7,680, in whole blocks */
	assert_int_equal(next.expected_tokens, 20005);
	piece_done(STAGE_UNCLEAR);
	assert_int_equal(next.cut_tokens, 35360); /* 12,320 were left, more than 1.25 pieces */
	piece_done(STAGE_UNCLEAR);
	assert_int_equal(next.action, STAGE_SEND_REQUEST);
	assert_int_equal(next.expected_tokens, 35360);
	piece_done(STAGE_HIT);
	assert_int_equal(next.action, STAGE_NOTHING); /* the request is out already */
}

static void a_body_is_cut_at_its_boundaries_only(void **state)
{
	static const uint32_t cut[] = { 3000, 7000, 7600, 19000, 30000, 39990 };
	static const uint32_t expected[] = { 7600, 19000, 30000 };
	struct stage_plan plan;

	(void)state;
	stage_plan_make(&params, &c, &plan);
	plan.cut = cut;
	plan.cuts_nr = 6;
	stage_begin(&stage, &plan, &next);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(next.cut_tokens, expected[i]);
		piece_done(STAGE_HIT);
	}
	assert_int_equal(next.cut_tokens, expected[2]); /* 21,000 left, the next place is 30,000 */
	plan.cuts_nr = 1;
	plan.prompt_tokens = 11000;
	stage_begin(&stage, &plan, &next);
	assert_int_equal(next.cut_tokens, 3000);
	piece_done(STAGE_HIT);
	assert_int_equal(next.action, STAGE_SEND_REQUEST);
}

static void a_second_piece_that_misses_ends_it(void **state)
{
	(void)state;
	begin(40000, 0);
	piece_done(STAGE_MISS); /* of the first piece nothing is expected */
	assert_int_equal(next.action, STAGE_SEND_PIECE);
	piece_done(STAGE_MISS);
	assert_int_equal(next.action, STAGE_GIVE_UP);
	assert_int_equal(next.reason, STAGE_REASON_MISSED);
	assert_int_equal(next.rest_tokens, 0);
	assert_int_equal(stage.state, STAGE_STATE_REQUEST);
}

static void a_later_miss_is_an_eviction(void **state)
{
	(void)state;
	begin(40000, 0);
	piece_done(STAGE_HIT);
	piece_done(STAGE_HIT);
	piece_done(STAGE_MISS);
	assert_int_equal(next.action, STAGE_GIVE_UP);
	assert_int_equal(next.reason, STAGE_REASON_EVICTED);
}

static void force_goes_on_whatever_is_shown(void **state)
{
	(void)state;
	params.stage_force = 1;
	begin(40000, 0);
	piece_done(STAGE_MISS);
	piece_done(STAGE_MISS);
	piece_done(STAGE_NO_SOURCE);
	assert_int_equal(next.action, STAGE_SEND_PIECE);
}

static void every_end_in_a_piece_has_its_answer(void **state)
{
	static const struct {
		enum stage_event event;
		enum stage_action action;
		enum stage_reason reason;
		enum stage_state state;
	} rows[] = {
		{ STAGE_EVENT_REFUSED, STAGE_GIVE_UP, STAGE_REASON_REFUSED, STAGE_STATE_REQUEST },
		{ STAGE_EVENT_TIMEOUT, STAGE_GIVE_UP, STAGE_REASON_TIMEOUT, STAGE_STATE_REQUEST },
		{ STAGE_EVENT_ENGINE_LOST, STAGE_PLACE, STAGE_REASON_NONE, STAGE_STATE_OVER },
		{ STAGE_EVENT_CLIENT_GONE, STAGE_DROP, STAGE_REASON_NONE, STAGE_STATE_OVER },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		begin(40000, 0);
		stage_event(&stage, &params, rows[i].event, STAGE_UNCLEAR, &next);
		assert_int_equal(next.action, rows[i].action);
		assert_int_equal(next.reason, rows[i].reason);
		assert_int_equal(stage.state, rows[i].state);
	}
	begin(9000, 0); /* too short to cut: the request is out at once */
	assert_int_equal(next.action, STAGE_SEND_REQUEST);
	stage_event(&stage, &params, STAGE_EVENT_CLIENT_GONE, STAGE_UNCLEAR, &next);
	assert_int_equal(next.action, STAGE_DROP);
	stage_event(&stage, &params, STAGE_EVENT_ENDED, STAGE_UNCLEAR, &next);
	assert_int_equal(next.action, STAGE_NOTHING);
}

/* Whatever happens: cuts grow, stay under the prompt, and nothing is sent after the end. */
static void random_lives_keep_the_rules(void **state)
{
	(void)state;
	srandom(7);
	for (unsigned k = 0; k < 20000; k++) {
		uint32_t prompt = 1 + (uint32_t)random() % 200000, last = 0, sent = 0;
		uint32_t hit = (uint32_t)random() % prompt;

		c.engine.block_tokens = 1u << random() % 9;
		begin(prompt, hit);
		while (next.action == STAGE_SEND_PIECE) {
			assert_true(next.cut_tokens > last && next.cut_tokens < prompt);
			assert_true(next.cut_tokens > hit);
			assert_int_equal(next.cut_tokens % c.engine.block_tokens, 0);
			assert_int_equal(next.rest_tokens, prompt - next.cut_tokens);
			last = next.cut_tokens;
			sent++;
			stage_event(&stage, &params,
				    (enum stage_event)(random() % 20 ? 0 : random() % 5),
				    (enum stage_verdict)(random() % 4), &next);
		}
		assert_true(sent <= 17 && sent == stage.pieces);
		assert_true(next.action != STAGE_NOTHING);
		assert_int_equal(next.rest_tokens, 0);
	}
}

/* ---- the guard ---- */

static struct stage_evidence seen(uint32_t sees)
{
	return (struct stage_evidence){ .sees = sees,
					.prompt_tokens = 15360,
					.expected_tokens = 7680,
					.hit_s = 2,
					.miss_s = 4 };
}

static enum stage_verdict judged(const struct stage_evidence *e, enum stage_source source)
{
	enum stage_source by;
	enum stage_verdict verdict = stage_judge(&params, e, &by);

	assert_int_equal(by, source);
	return verdict;
}

static void cached_tokens_alone_can_tell(void **state)
{
	struct stage_evidence e = seen(STAGE_SEES_CACHED);

	(void)state;
	e.cached_tokens = 6912; /* 90 % */
	assert_int_equal(judged(&e, STAGE_SOURCE_CACHED), STAGE_HIT);
	e.cached_tokens = 6911;
	assert_int_equal(judged(&e, STAGE_SOURCE_CACHED), STAGE_MISS);
	e.sees = 0; /* absent is not 0 */
	assert_int_equal(judged(&e, STAGE_SOURCE_NONE), STAGE_NO_SOURCE);
}

static void the_hit_counter_alone_can_tell(void **state)
{
	struct stage_evidence e = seen(STAGE_SEES_COUNTERS | STAGE_HAS_COUNTERS);

	(void)state;
	e.queried_tokens = 15360;
	e.hit_tokens = 7680;
	assert_int_equal(judged(&e, STAGE_SOURCE_COUNTER), STAGE_HIT);
	e.hit_tokens = 6000;
	assert_int_equal(judged(&e, STAGE_SOURCE_COUNTER), STAGE_MISS);
	e.queried_tokens = 25360; /* another's 10,000, all but 1,000 of them hits */
	e.hit_tokens = 7680 + 9000;
	assert_int_equal(judged(&e, STAGE_SOURCE_NONE), STAGE_UNCLEAR);
	e.hit_tokens = 7680 + 10000;
	assert_int_equal(judged(&e, STAGE_SOURCE_COUNTER), STAGE_HIT);
	e.queried_tokens = 100; /* read too early */
	assert_int_equal(judged(&e, STAGE_SOURCE_NONE), STAGE_UNCLEAR);
}

static void time_alone_can_tell(void **state)
{
	struct stage_evidence e = seen(STAGE_SEES_TIME | STAGE_SEES_IDLE);

	(void)state;
	e.took_s = 2.9;
	assert_int_equal(judged(&e, STAGE_SOURCE_TIME), STAGE_HIT);
	e.took_s = 3.1;
	assert_int_equal(judged(&e, STAGE_SOURCE_TIME), STAGE_MISS);
	e.sees = STAGE_SEES_TIME; /* others were there: they only add to it */
	assert_int_equal(judged(&e, STAGE_SOURCE_NONE), STAGE_UNCLEAR);
	e.took_s = 2.9;
	assert_int_equal(judged(&e, STAGE_SOURCE_TIME), STAGE_HIT);
	e.clock_s = e.miss_s - e.hit_s; /* too coarse for this difference */
	assert_int_equal(judged(&e, STAGE_SOURCE_NONE), STAGE_UNCLEAR);
	e.sees |= STAGE_SEES_IDLE;
	e.took_s = 9;
	assert_int_equal(judged(&e, STAGE_SOURCE_NONE), STAGE_UNCLEAR);
}

static enum stage_guard_news note(uint64_t key, uint32_t piece, enum stage_verdict *verdict,
				  uint64_t now_ns)
{
	return stage_guard_note(&guard, &params, key, 3, piece, verdict, now_ns);
}

static void a_miss_switches_the_shape_off_for_ten_minutes(void **state)
{
	enum stage_verdict miss = STAGE_MISS;

	(void)state;
	assert_int_equal(note(5, 1, &miss, S), STAGE_NO_NEWS);
	assert_false(stage_guard_shape_off(&guard, 5, S));
	assert_int_equal(note(5, 3, &miss, S), STAGE_NO_NEWS); /* evicted, no fault of the shape */
	assert_false(stage_guard_shape_off(&guard, 5, S));
	assert_int_equal(note(5, 2, &miss, S), STAGE_SHAPE_OFF);
	assert_int_equal(note(5, 2, &miss, 2 * S), STAGE_NO_NEWS); /* said once */
	assert_true(stage_guard_shape_off(&guard, 5, 601 * S));
	assert_false(stage_guard_shape_off(&guard, 5, 602 * S));
	assert_false(stage_guard_shape_off(&guard, 6, 3 * S));
	assert_false(stage_guard_engine_off(&guard, 3, 3 * S));
}

static void an_engine_that_tells_nothing_gets_no_pieces(void **state)
{
	enum stage_verdict silent = STAGE_NO_SOURCE, unclear = STAGE_UNCLEAR, hit = STAGE_HIT;

	(void)state;
	assert_int_equal(note(5, 2, &silent, S), STAGE_ENGINE_SILENT);
	assert_true(stage_guard_engine_off(&guard, 3, 2 * S));
	assert_false(stage_guard_engine_off(&guard, 4, 2 * S));
	assert_int_equal(note(5, 2, &silent, 700 * S), STAGE_NO_NEWS); /* tried again, said once */
	stage_guard_engine_restarted(&guard, 3);
	assert_false(stage_guard_engine_off(&guard, 3, 701 * S));
	for (unsigned i = 1; i < LIMIT_STAGE_UNCLEAR; i++)
		assert_int_equal(note(5, 2, &unclear, 701 * S), STAGE_NO_NEWS);
	assert_int_equal(note(5, 2, &hit, 701 * S), STAGE_NO_NEWS); /* starts afresh */
	for (unsigned i = 1; i < 3 * LIMIT_STAGE_UNCLEAR; i++) /* known to hit for ten minutes */
		assert_int_equal(note(5, 2, &unclear, 1300 * S), STAGE_NO_NEWS);
	for (unsigned i = 1; i < LIMIT_STAGE_UNCLEAR; i++)
		assert_int_equal(note(5, 2, &unclear, 1302 * S), STAGE_NO_NEWS);
	assert_int_equal(note(5, 2, &unclear, 1302 * S), STAGE_ENGINE_SILENT);
	assert_int_equal(unclear, STAGE_NO_SOURCE);
}

static void the_table_of_shapes_keeps_the_latest(void **state)
{
	enum stage_verdict miss = STAGE_MISS;

	(void)state;
	for (uint64_t i = 1; i <= LIMIT_STAGE_GUARDS + 10; i++)
		assert_int_equal(note(i, 2, &miss, i * S), STAGE_SHAPE_OFF);
	for (uint64_t i = 1; i <= LIMIT_STAGE_GUARDS + 10; i++)
		assert_int_equal(stage_guard_shape_off(&guard, i, 100 * S), i > 10);
}

/* ---- rescue ---- */

static void an_overdue_engine_is_left_and_a_slow_one_is_not(void **state)
{
	struct rescue_engine engine = { .alive_ns = 100 * S, .step_s = 3, .busy = 1, .stops = 1 };
	struct rescue_request r = { .streamed = 1, .body_kept = 1, .others = 7 };

	(void)state;
	assert_int_equal(rescue_judge(&params, &engine, &r, 109 * S - 1), RESCUE_IN_TIME);
	assert_int_equal(rescue_judge(&params, &engine, &r, 109 * S), RESCUE_NONE);
	assert_int_equal(rescue_due_ns(&params, &engine), 109 * S);
	engine.busy = 0;
	assert_int_equal(rescue_judge(&params, &engine, &r, 200 * S), RESCUE_IN_TIME);
	engine.busy = 1;
	params.rescue_overdue_s = 0;
	assert_int_equal(rescue_judge(&params, &engine, &r, 200 * S), RESCUE_OFF);
}

static void a_rescue_needs_a_stream_nothing_relayed_and_a_body(void **state)
{
	struct rescue_engine engine = { .alive_ns = S, .busy = 1, .stops = 1 };
	struct rescue_request r = { .streamed = 1, .body_kept = 1, .others = 7 }, good = r;

	(void)state;
	r.streamed = 0;
	assert_int_equal(rescue_judge(&params, &engine, &r, 9 * S), RESCUE_NO_STREAM);
	r = good;
	r.events_relayed = 1;
	assert_int_equal(rescue_judge(&params, &engine, &r, 9 * S), RESCUE_RELAYED);
	r = good;
	r.rescued = 1;
	assert_int_equal(rescue_judge(&params, &engine, &r, 9 * S), RESCUE_ONCE);
	r = good;
	r.body_kept = 0;
	assert_int_equal(rescue_judge(&params, &engine, &r, 9 * S), RESCUE_MEMORY);
	r = good;
	r.others = 0;
	assert_int_equal(rescue_judge(&params, &engine, &r, 9 * S), RESCUE_NOWHERE);
	engine.stops = 0;
	assert_int_equal(rescue_judge(&params, &engine, &good, 9 * S), RESCUE_ENGINE);
}

static void a_faster_world_shortens_times_only(void **state)
{
	struct stage_params fast;

	(void)state;
	stage_params_init(&fast);
	stage_params_scale(&fast, 10);
	assert_true(fast.rescue_overdue_s == 0.6 && fast.stage_guard_off_s == 60);
	assert_true(fast.stage_last == 1.25 && fast.requeue_sends == 8);
}

static void every_word_has_its_name(void **state)
{
	(void)state;
	for (unsigned i = 0; i < STAGE_REASONS_NR; i++)
		assert_non_null(stage_reason_meaning(i));
	assert_string_equal(stage_reason_name(STAGE_REASON_KV_ROOM), "kv-room");
	assert_null(stage_reason_name(STAGE_REASONS_NR));
	assert_string_equal(stage_state_name(STAGE_STATE_PIECE), "piece");
	assert_string_equal(stage_action_name(STAGE_GIVE_UP), "give-up");
	assert_string_equal(stage_source_name(STAGE_SOURCE_COUNTER), "hit-counter");
	assert_string_equal(rescue_reason_name(RESCUE_ONCE), "once");
}

/* ---- pauses ---- */

static int near(double a, double b)
{
	return a > b - 1e-6 && a < b + 1e-6;
}

static double pause_of(uint32_t waiting, uint32_t decoding, double began_s, double piece_s)
{
	struct stage_others others = { .waiting = waiting,
				       .decoding = decoding,
				       .waiting_s = waiting ? 0.2 : 0,
				       .began_s = began_s,
				       .piece_s = piece_s };

	return stage_pause_s(&stage, &params, &next, &others);
}

static void who_waited_for_a_piece_answers_before_the_next(void **state)
{
	(void)state;
	params.stage_grace_s = 0.7;
	params.stage_grace_most_s = 100;
	c.prefill_s = 1000;
	begin(40000, 0);
	piece_done(STAGE_UNCLEAR);
	assert_true(near(pause_of(1, 0, INFINITY, 2), 0.9));
	/* It began with the piece under way: the piece was no time for it. */
	assert_true(near(pause_of(0, 1, 2, 2), 0.7));
	assert_true(near(pause_of(0, 1, 2.3, 2), 0.4));
	/* At the end of a pause, who came in it. */
	assert_true(near(pause_of(0, 1, 0.1, 0), 0.6));
	assert_true(pause_of(0, 1, 5, 2) == 0);
	assert_true(pause_of(0, 0, 1, 2) == 0);
	assert_true(pause_of(0, 0, INFINITY, 2) == 0);
	params.stage_grace_s = 0;
	assert_true(pause_of(1, 1, 2, 2) == 0);
}

static void pauses_of_a_prompt_have_an_end(void **state)
{
	(void)state;
	params.stage_grace_s = 0.7;
	params.stage_grace_most_s = 1.5;
	begin(40000, 0);
	piece_done(STAGE_UNCLEAR);
	assert_true(near(pause_of(0, 1, 2, 2), 0.7));
	assert_true(near(pause_of(0, 1, 2, 2), 0.7));
	assert_true(near(pause_of(0, 1, 2, 2), 0.1));
	assert_true(pause_of(0, 1, 2, 2) == 0);
	/* A fifth of what it computes itself, if that is less. */
	c.prefill_s = 2;
	begin(40000, 0);
	piece_done(STAGE_UNCLEAR);
	assert_true(near(pause_of(0, 1, 2, 2), 0.4));
	assert_true(pause_of(0, 1, 2, 2) == 0);
}

static void the_last_part_waits_for_nobody(void **state)
{
	(void)state;
	begin(40000, 0);
	while (next.action == STAGE_SEND_PIECE)
		piece_done(STAGE_HIT);
	assert_int_equal(next.action, STAGE_SEND_REQUEST);
	assert_true(pause_of(1, 1, 2, 2) == 0);
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_setup(name, setup)
	const struct CMUnitTest tests[] = {
		CLAIM(who_waited_for_a_piece_answers_before_the_next),
		CLAIM(pauses_of_a_prompt_have_an_end),
		CLAIM(the_last_part_waits_for_nobody),
		CLAIM(a_piece_is_just_under_a_step),
		CLAIM(a_long_prompt_has_longer_pieces_of_whole_steps_and_blocks),
		CLAIM(a_cold_prompt_is_cut_and_a_short_one_is_not),
		CLAIM(every_body_that_cannot_be_cut_says_why),
		CLAIM(the_mode_decides_between_pieces_and_requeue),
		CLAIM(engines_that_would_lose_by_it_get_no_pieces),
		CLAIM(nobody_pays_where_nobody_waits),
		CLAIM(pieces_grow_by_whole_pieces_and_the_request_goes_last),
		CLAIM(a_hit_is_not_sent_again),
		CLAIM(a_body_is_cut_at_its_boundaries_only),
		CLAIM(a_second_piece_that_misses_ends_it),
		CLAIM(a_later_miss_is_an_eviction),
		CLAIM(force_goes_on_whatever_is_shown),
		CLAIM(every_end_in_a_piece_has_its_answer),
		CLAIM(random_lives_keep_the_rules),
		CLAIM(cached_tokens_alone_can_tell),
		CLAIM(the_hit_counter_alone_can_tell),
		CLAIM(time_alone_can_tell),
		CLAIM(a_miss_switches_the_shape_off_for_ten_minutes),
		CLAIM(an_engine_that_tells_nothing_gets_no_pieces),
		CLAIM(the_table_of_shapes_keeps_the_latest),
		CLAIM(an_overdue_engine_is_left_and_a_slow_one_is_not),
		CLAIM(a_rescue_needs_a_stream_nothing_relayed_and_a_body),
		CLAIM(a_faster_world_shortens_times_only),
		CLAIM(every_word_has_its_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
