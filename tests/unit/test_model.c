/* The engine model against figures worked out by hand from its formula and vLLM's scheduling order.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/model/model.h"
#include "tests/lib/unit.h"

enum { IDS_MAX = 200000, SEEN_MAX = 4096 };

/* A model on a virtual clock, and all that came out of it. */
struct bench {
	struct model *model;
	uint64_t now_ns;
	struct model_event seen[SEEN_MAX];
	size_t seen_nr;
};

static uint32_t ids[IDS_MAX];

static void bench_open(struct bench *b, const struct model_options *options)
{
	memset(b, 0, sizeof(*b));
	assert_int_equal(model_new(&b->model, model_profile_find("q8b"), options), 0);
}

static void bench_close(struct bench *b)
{
	struct model_figures f;

	model_check(b->model);
	model_figures_get(b->model, &f);
	if (f.running + f.waiting == 0)
		assert_int_equal(f.blocks_used, 0);
	model_free(b->model);
}

/* `count` ids that differ from those of any other `kind`. */
static const uint32_t *text(uint32_t kind, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		ids[i] = 10000 + kind * 1000003 + i * 7;
	return ids;
}

static struct model_request *submit(struct bench *b, uint64_t tag, const uint32_t *prompt,
				    uint32_t prompt_tokens, uint32_t output_tokens)
{
	struct model_request *r = NULL;
	const struct model_submission s = { .tag = tag,
					    .prompt = prompt,
					    .prompt_tokens = prompt_tokens,
					    .output_tokens = output_tokens,
					    .output_seed = tag * 77 };

	assert_int_equal(model_submit(b->model, &s, b->now_ns, &r), 0);
	return r;
}

/* One whole step; returns 0 when there was nothing to do. */
static int step(struct bench *b)
{
	const struct model_event *events;
	uint64_t end_ns = model_begin(b->model, b->now_ns);

	if (end_ns == MODEL_NEVER)
		return 0;
	b->now_ns = end_ns;
	size_t n = model_end(b->model, &events);
	assert_true(b->seen_nr + n <= SEEN_MAX);
	if (n)
		memcpy(&b->seen[b->seen_nr], events, n * sizeof(*events));
	b->seen_nr += n;
	model_check(b->model);
	return 1;
}

static void run(struct bench *b)
{
	while (step(b))
		;
}

static const struct model_event *event_of(const struct bench *b, uint64_t tag,
					  enum model_event_kind kind)
{
	for (size_t i = 0; i < b->seen_nr; i++)
		if (b->seen[i].tag == tag && b->seen[i].kind == kind)
			return &b->seen[i];
	return NULL;
}

static double first_token_s(const struct bench *b, uint64_t tag)
{
	const struct model_event *e = event_of(b, tag, MODEL_TOKEN);

	assert_non_null(e);
	return (double)e->at_ns * 1e-9;
}

static void assert_seconds(double got, double want)
{
	if (fabs(got - want) > 5e-9)
		fail_msg("%.9f s, by hand %.9f s", got, want);
}

static void a_lone_cold_prompt_takes_exactly_what_the_formula_says(void **state)
{
	struct bench b;

	bench_open(&b, NULL);
	submit(&b, 1, text(1, 1000), 1000, 1);

	run(&b);

	/* 1000 x 2.03e-4 + 2.05e-9 x 1000^2 + 1 ms */
	assert_seconds(first_token_s(&b, 1), 0.20605);
	bench_close(&b);
}

static void a_prompt_beyond_the_budget_is_computed_in_chunks(void **state)
{
	struct bench b;

	bench_open(&b, NULL);
	submit(&b, 1, text(1, 10000), 10000, 1);

	run(&b);

	/* 8,192 + 1,808 tokens: the parts of the formula add up, each step pays its 1 ms */
	assert_seconds(first_token_s(&b, 1), 10000 * 2.03e-4 + 2.05e-9 * 1e8 + 2e-3);
	bench_close(&b);
}

static void a_small_prompt_pays_the_weight_pass(void **state)
{
	struct bench b;

	bench_open(&b, NULL);
	submit(&b, 1, text(1, 10), 10, 1);

	run(&b);

	assert_seconds(first_token_s(&b, 1), 12.2e-3 + 2.05e-9 * 100 + 1e-3);
	bench_close(&b);
}

static void two_prompts_are_served_first_come_first_served(void **state)
{
	struct bench b;
	double first = 8192 * 2.03e-4 + 2.05e-9 * 8192.0 * 8192 + 1e-3;
	/* second step: the first one's last 1,808 tokens and the other prompt's 500 */
	double second = 2308 * 2.03e-4 + 2.05e-9 * (1e8 - 8192.0 * 8192 + 250000) + 1e-3;

	bench_open(&b, NULL);
	submit(&b, 1, text(1, 10000), 10000, 1);
	submit(&b, 2, text(2, 500), 500, 1);

	run(&b);

	assert_seconds(first_token_s(&b, 1), first + second);
	assert_seconds(first_token_s(&b, 2), first + second);
	bench_close(&b);
}

static void a_short_prompt_waits_for_the_whole_cold_one_before_it(void **state)
{
	struct bench b;
	double sum = 0;

	bench_open(&b, NULL);
	submit(&b, 1, text(1, 16384), 16384, 1);
	submit(&b, 2, text(2, 100), 100, 1);

	run(&b);

	sum = 16384 * 2.03e-4 + 2.05e-9 * 16384.0 * 16384 + 2e-3;
	assert_seconds(first_token_s(&b, 1), sum);
	/* the two full steps left no token of budget for it */
	assert_seconds(first_token_s(&b, 2), sum + 100 * 2.03e-4 + 2.05e-9 * 10000 + 1e-3);
	bench_close(&b);
}

static void a_cap_on_long_prefills_lets_the_short_prompt_in(void **state)
{
	struct bench b;
	const struct model_options capped = { .long_prefill_cap = 2048 };

	bench_open(&b, &capped);
	submit(&b, 1, text(1, 16384), 16384, 1);
	submit(&b, 2, text(2, 100), 100, 1);

	run(&b);

	assert_seconds(first_token_s(&b, 2),
		       2148 * 2.03e-4 + 2.05e-9 * (2048.0 * 2048 + 10000) + 1e-3);
	bench_close(&b);
}

static void a_decode_stands_still_beside_a_prefill_chunk(void **state)
{
	struct bench b;
	double alone_s, stalled_s;

	bench_open(&b, NULL);
	submit(&b, 1, text(1, 100), 100, 10);
	step(&b);
	uint64_t before_ns = b.now_ns;
	step(&b);
	alone_s = (double)(b.now_ns - before_ns) * 1e-9;
	submit(&b, 2, text(2, 8000), 8000, 1);
	before_ns = b.now_ns;

	step(&b);

	stalled_s = (double)(b.now_ns - before_ns) * 1e-9;
	/* context: 100 of the prompt, one token made, the second made from it: 101, then 102 */
	assert_seconds(alone_s, 12.2e-3 + 9.8e-8 * 101 + 1e-3);
	assert_seconds(stalled_s, 8001 * 2.03e-4 + 2.05e-9 * 64e6 + 9.8e-8 * 102 + 1e-3);
	assert_int_equal(b.seen[b.seen_nr - 3].tag, 1); /* its third token came with that step */
	assert_int_equal(b.seen[b.seen_nr - 3].index, 2);
	run(&b);
	bench_close(&b);
}

static void the_same_history_hits_whoever_sends_it(void **state)
{
	struct bench b;

	bench_open(&b, NULL);
	submit(&b, 1, text(1, 1000), 1000, 1);
	run(&b);
	uint64_t before_ns = b.now_ns;

	submit(&b, 2, text(1, 1000), 1000, 1);
	run(&b);

	/* 62 full blocks of 16: 992 tokens; 8 are computed */
	assert_int_equal(event_of(&b, 2, MODEL_FINISHED)->life.cached_tokens, 992);
	assert_seconds(first_token_s(&b, 2) - (double)before_ns * 1e-9,
		       12.2e-3 + 2.05e-9 * (1e6 - 992.0 * 992) + 1e-3);
	bench_close(&b);
}

static void the_last_block_of_a_prompt_is_never_a_full_hit(void **state)
{
	struct bench b;

	bench_open(&b, NULL);
	submit(&b, 1, text(1, 64), 64, 1);
	run(&b);
	submit(&b, 2, text(1, 64), 64, 1);
	run(&b);

	assert_int_equal(event_of(&b, 2, MODEL_FINISHED)->life.cached_tokens, 48);
	bench_close(&b);
}

static void one_token_changed_early_misses_all_that_follows(void **state)
{
	struct bench b;

	bench_open(&b, NULL);
	submit(&b, 1, text(1, 1000), 1000, 1);
	run(&b);
	text(1, 1000);
	ids[40]++; /* in the third block */
	submit(&b, 2, ids, 1000, 1);
	run(&b);

	assert_int_equal(event_of(&b, 2, MODEL_FINISHED)->life.cached_tokens, 32);
	bench_close(&b);
}

static void a_salt_divides_the_cache(void **state)
{
	struct bench b;
	struct model_request *r;

	bench_open(&b, NULL);
	submit(&b, 1, text(1, 1000), 1000, 1);
	run(&b);
	const struct model_submission salted = {
		.tag = 2, .prompt = ids, .prompt_tokens = 1000, .output_tokens = 1, .salt = 5
	};
	assert_int_equal(model_submit(b.model, &salted, b.now_ns, &r), 0);
	run(&b);

	assert_int_equal(event_of(&b, 2, MODEL_FINISHED)->life.cached_tokens, 0);
	bench_close(&b);
}

static void the_answer_is_cached_for_the_next_turn_but_its_last_token(void **state)
{
	struct bench b;

	bench_open(&b, NULL);
	submit(&b, 1, text(1, 100), 100, 60);
	run(&b);
	uint32_t nr = 100;
	for (size_t i = 0; i < b.seen_nr; i++)
		if (b.seen[i].kind == MODEL_TOKEN)
			ids[nr++] = b.seen[i].id;
	assert_int_equal(nr, 160);
	for (; nr < 400; nr++)
		ids[nr] = nr;

	submit(&b, 2, ids, nr, 1);
	run(&b);

	/* 159 of the 160 were computed: nine full blocks */
	assert_int_equal(event_of(&b, 2, MODEL_FINISHED)->life.cached_tokens, 144);
	bench_close(&b);
}

static void an_answer_spells_its_seed_first(void **state)
{
	uint64_t seed = 0x5a5a123456789abc, low = 0;

	for (uint32_t i = 0; i < 4; i++)
		low |= (uint64_t)(model_output_id(seed, i) - 1024) << 12 * i;

	assert_int_equal(low, seed & 0xffffffffffff);
	assert_int_not_equal(model_output_id(seed, 7), model_output_id(seed + (1ull << 48), 7));
}

static void the_youngest_is_preempted_and_recomputed_from_the_cache(void **state)
{
	/* 8 blocks. Two prompts of 48 tokens (3 blocks) and 40 of output grow to 6 blocks each. */
	const struct model_options small = { .kv_tokens = 128 };
	struct bench b;
	struct model_figures f;

	bench_open(&b, &small);
	submit(&b, 1, text(1, 48), 48, 40);
	submit(&b, 2, text(2, 48), 48, 40);

	run(&b);

	const struct model_event *lost = event_of(&b, 2, MODEL_PREEMPTED);
	model_figures_get(b.model, &f);
	assert_non_null(lost);
	assert_null(event_of(&b, 1, MODEL_PREEMPTED));
	/* at 65 tokens each needs its fifth block: the elder takes the youngest's */
	assert_int_equal(lost->life.emitted, 17);
	assert_int_equal(f.preemptions, 1);
	assert_int_equal(f.finished, 2);
	assert_int_equal(f.generated_tokens, 80);
	assert_int_equal(f.queried_tokens, 96); /* the second look-up is not counted */
	assert_true(event_of(&b, 1, MODEL_FINISHED)->at_ns <
		    event_of(&b, 2, MODEL_FINISHED)->at_ns);
	bench_close(&b);
}

static void a_prompt_waits_until_its_first_chunk_has_room(void **state)
{
	const struct model_options small = { .kv_tokens = 128 };
	struct bench b;

	bench_open(&b, &small);
	submit(&b, 1, text(1, 60), 60, 3);
	submit(&b, 2, text(2, 90), 90, 1); /* 6 blocks; 4 are free until the first has ended */
	run(&b);

	assert_int_equal(event_of(&b, 2, MODEL_STARTED)->at_ns,
			 event_of(&b, 1, MODEL_FINISHED)->at_ns);
	bench_close(&b);
}

static void the_deepest_block_of_the_oldest_prompt_is_evicted_first(void **state)
{
	/* 12 blocks: two prompts of 4 blocks each fill 8, a third of 6 needs two that are named. */
	const struct model_options small = { .kv_tokens = 192 };
	struct bench b;

	bench_open(&b, &small);
	submit(&b, 1, text(1, 64), 64, 1);
	run(&b);
	submit(&b, 2, text(2, 64), 64, 1);
	run(&b);
	submit(&b, 3, text(3, 96), 96, 1);
	run(&b);

	/* one more token than the blocks, so that the last one counts too */
	assert_int_equal(model_probe(b.model, 0, text(1, 65), 65), 32);
	assert_int_equal(model_probe(b.model, 0, text(2, 65), 65), 64);
	assert_int_equal(model_probe(b.model, 0, text(3, 97), 97), 96);
	bench_close(&b);
}

static void a_hit_makes_a_prefix_young_again(void **state)
{
	const struct model_options small = { .kv_tokens = 192 };
	struct bench b;

	bench_open(&b, &small);
	submit(&b, 1, text(1, 64), 64, 1);
	run(&b);
	submit(&b, 2, text(2, 64), 64, 1);
	run(&b);
	submit(&b, 4, text(1, 65), 65, 1); /* touches the first; its fifth block is never full */
	run(&b);
	submit(&b, 3, text(3, 96), 96, 1);
	run(&b);

	assert_int_equal(model_probe(b.model, 0, text(1, 65), 65), 64);
	assert_true(model_probe(b.model, 0, text(2, 65), 65) < 64);
	bench_close(&b);
}

static void requests_with_the_same_prefix_share_its_blocks(void **state)
{
	struct bench b;
	struct model_figures f;

	bench_open(&b, NULL);
	submit(&b, 1, text(1, 160), 160, 5);
	submit(&b, 2, text(1, 160), 160, 5);
	step(&b);

	model_figures_get(b.model, &f);
	assert_int_equal(f.running, 2);
	assert_int_equal(f.blocks_used, 11); /* 9 shared, the last one each */
	run(&b);
	bench_close(&b);
}

static void blocks_in_use_are_the_sum_over_live_requests(void **state)
{
	struct bench b;
	struct model_figures f;

	bench_open(&b, NULL);
	for (uint32_t i = 0; i < 20; i++)
		submit(&b, i, text(i, 100 + 40 * i), 100 + 40 * i, 30);
	for (int s = 0; s < 5; s++)
		step(&b);

	uint64_t want = 0;
	for (uint32_t i = 0; i < 20; i++) /* whoever gave k tokens holds its prompt and k - 1 */
		want += (100 + 40 * i + 15) / 16;
	model_figures_get(b.model, &f);
	assert_true(f.blocks_used >= want && f.blocks_used <= want + 20);
	run(&b);
	model_figures_get(b.model, &f);
	assert_int_equal(f.blocks_used, 0);
	assert_int_equal(f.finished, 20);
	bench_close(&b);
}

static void an_abort_in_mid_prefill_keeps_what_was_computed(void **state)
{
	struct bench b;
	struct model_figures f;

	bench_open(&b, NULL);
	struct model_request *r = submit(&b, 1, text(1, 30000), 30000, 10);
	step(&b);
	step(&b);

	model_abort(b.model, r);

	model_figures_get(b.model, &f);
	assert_int_equal(f.running, 0);
	assert_int_equal(f.blocks_used, 0);
	assert_int_equal(model_probe(b.model, 0, text(1, 30000), 30000), 2 * 8192);
	assert_int_equal(step(&b), 0);
	bench_close(&b);
}

static void an_abort_frees_in_every_state(void **state)
{
	struct bench b;
	struct model_figures f;
	const struct model_event *events;
	const struct model_options two = { .sequences_max = 2 };
	struct model_request *r[4];

	bench_open(&b, &two);
	for (uint32_t i = 0; i < 4; i++)
		r[i] = submit(&b, i, text(i, 100), 100, 50);
	step(&b); /* two decode, two wait */
	model_abort(b.model, r[2]);
	uint64_t end_ns = model_begin(b.model, b.now_ns);
	model_abort(b.model, r[0]); /* while the step runs */
	b.now_ns = end_ns;

	size_t n = model_end(b.model, &events);

	for (size_t i = 0; i < n; i++)
		assert_int_equal(events[i].tag, 1);
	model_figures_get(b.model, &f);
	assert_int_equal(f.running, 1);
	assert_int_equal(f.waiting, 1);
	run(&b);
	model_figures_get(b.model, &f);
	assert_int_equal(f.finished, 2);
	assert_int_equal(f.aborted, 2);
	bench_close(&b);
}

/* Begins the step, lets 50 ms of it pass. */
static uint64_t into_a_step(struct bench *b)
{
	uint64_t end_ns = model_begin(b->model, b->now_ns);

	b->now_ns += 50000000;
	return end_ns;
}

static void end_step(struct bench *b, uint64_t end_ns)
{
	const struct model_event *events;
	size_t n = model_end(b->model, &events);

	b->now_ns = end_ns;
	if (n)
		memcpy(&b->seen[b->seen_nr], events, n * sizeof(*events));
	b->seen_nr += n;
	model_check(b->model);
}

/* A prompt of one step that decodes on, and another that comes while it is computed. */
static double second_in_step(uint32_t async, uint32_t output)
{
	const struct model_options options = { .async = async };
	struct bench b;
	double seconds;
	uint64_t end_ns;

	bench_open(&b, &options);
	submit(&b, 1, text(1, 8000), 8000, output);
	end_ns = into_a_step(&b);
	submit(&b, 2, text(2, 1000), 1000, 1);
	end_step(&b, end_ns);
	run(&b);
	seconds = first_token_s(&b, 2) - first_token_s(&b, 1);
	bench_close(&b);
	return seconds;
}

static void who_comes_in_a_step_is_in_the_next_or_with_async_the_one_after(void **state)
{
	double both = 1001 * 2.03e-4 + 2.05e-9 * 1e6 + 1e-3; /* 1,000 tokens beside a decode */
	double decode = 12.2e-3 + 8001 * 9.8e-8 + 1e-3;

	assert_seconds(second_in_step(0, 5), both + 8001 * 9.8e-8);
	assert_seconds(second_in_step(1, 5), decode + both + 8002 * 9.8e-8);
	/* Nothing was planned behind the first: it need not wait for a plan. */
	assert_seconds(second_in_step(1, 1), 1000 * 2.03e-4 + 2.05e-9 * 1e6 + 1e-3);
}

/* A cold prompt of three steps is closed in its first; a short one follows at once. */
static void with_async_a_close_comes_a_step_late_and_keeps_that_step(void **state)
{
	for (uint32_t async = 0; async < 2; async++) {
		const struct model_options options = { .async = async };
		struct model_figures f;
		struct model_request *r;
		struct bench b;
		uint64_t end_ns;
		double second = model_iteration_s(model_profile_find("q8b"), 8192,
						  16384.0 * 16384 - 8192.0 * 8192, 0);

		bench_open(&b, &options);
		r = submit(&b, 1, text(1, 24576), 24576, 1);
		end_ns = into_a_step(&b);
		model_abort(b.model, r);
		submit(&b, 2, text(2, 1000), 1000, 1);
		end_step(&b, end_ns);
		assert_int_equal(model_probe(b.model, 0, text(1, 24576), 24576), 8192);
		run(&b);

		assert_seconds(first_token_s(&b, 2) - (double)end_ns * 1e-9,
			       1000 * 2.03e-4 + 2.05e-9 * 1e6 + 1e-3 + (async ? second : 0));
		assert_int_equal(model_probe(b.model, 0, text(1, 24576), 24576),
				 async ? 16384 : 8192);
		model_figures_get(b.model, &f);
		assert_int_equal(f.abandoned_tokens, async ? 16384 : 8192);
		assert_int_equal(f.computed_tokens, f.abandoned_tokens + 1000);
		assert_int_equal(f.aborted, 1);
		assert_null(event_of(&b, 1, MODEL_TOKEN));
		bench_close(&b);
	}
}

static void the_idle_engines_prefill_time_is_what_a_run_takes(void **state)
{
	const struct model_options capped = { .long_prefill_cap = 3000, .slowdown = 2.5 };
	const struct model_profile *q8b = model_profile_find("q8b");
	struct bench b;

	bench_open(&b, &capped);
	submit(&b, 1, text(1, 20000), 20000, 1);
	run(&b);
	uint64_t before_ns = b.now_ns;
	submit(&b, 2, text(1, 20000), 20000, 1);
	run(&b);

	assert_seconds(first_token_s(&b, 1), model_prefill_s(q8b, &capped, 0, 20000));
	assert_seconds(first_token_s(&b, 2) - (double)before_ns * 1e-9,
		       model_prefill_s(q8b, &capped, 19984, 20000));
	bench_close(&b);
}

static void a_prefix_pulled_from_elsewhere_hits(void **state)
{
	const struct model_options small = { .kv_tokens = 160 };
	struct bench b;

	bench_open(&b, &small);
	assert_int_equal(model_import(b.model, 0, text(1, 100), 100), 96);
	submit(&b, 1, text(1, 110), 110, 1);
	run(&b);
	assert_int_equal(model_import(b.model, 0, text(2, 1000), 1000), 160); /* all there is */

	assert_int_equal(event_of(&b, 1, MODEL_FINISHED)->life.cached_tokens, 96);
	assert_int_equal(model_probe(b.model, 0, text(2, 1000), 1000), 160);
	bench_close(&b);
}

static void what_can_never_run_is_refused(void **state)
{
	const struct model_options small = { .kv_tokens = 128 };
	struct bench b;
	struct model_request *r = NULL;
	struct model_submission s = { .prompt = text(1, 200),
				      .prompt_tokens = 0,
				      .output_tokens = 1 };

	bench_open(&b, &small);
	assert_int_equal(model_submit(b.model, &s, 0, &r), -EINVAL);
	s.prompt_tokens = 128;
	assert_int_equal(model_submit(b.model, &s, 0, &r), -E2BIG);
	s.prompt_tokens = 100, s.output_tokens = 1000;
	assert_int_equal(model_submit(b.model, &s, 0, &r), 0);
	run(&b);

	assert_int_equal(event_of(&b, 0, MODEL_FINISHED)->life.emitted, 28);
	bench_close(&b);
}

static void the_gauges_show_the_rest_of_a_running_prefill(void **state)
{
	struct bench b;
	struct model_figures f;

	bench_open(&b, NULL);
	submit(&b, 1, text(1, 20000), 20000, 1);
	submit(&b, 2, text(2, 500), 500, 1);
	step(&b);

	model_figures_get(b.model, &f);
	assert_int_equal(f.running, 1);
	assert_int_equal(f.waiting, 1);
	assert_int_equal(f.pending_prefill_tokens, 20000 - 8192);
	assert_int_equal(model_waiting_uncached(b.model), 500);
	run(&b);
	bench_close(&b);
}

/* A thousand operations drawn from a fixed seed: the books balance after each of them. */
/* Submissions at any time, aborts between steps and in the middle of one. */
static void churn(const struct model_options *options)
{
	struct model_request *live[64] = { 0 };
	const struct model_event *events;
	struct bench b;
	uint64_t draw = 1;

	bench_open(&b, options);
	for (int i = 0; i < 3000; i++) {
		draw = draw * 6364136223846793005ull + 1442695040888963407ull;
		uint32_t slot = draw >> 58, kind = (draw >> 40) % 9,
			 length = 1 + (draw >> 20) % 900;

		if (!live[slot])
			live[slot] = submit(&b, slot, text(kind, length), length, 1 + length % 70);
		else if (kind == 0)
			model_abort(b.model, live[slot]), live[slot] = NULL;
		uint64_t end_ns = model_begin(b.model, b.now_ns);
		if (end_ns == MODEL_NEVER)
			continue;
		slot = (draw >> 33) % 64;
		if (live[slot] && kind < 3)
			model_abort(b.model, live[slot]), live[slot] = NULL;
		b.now_ns = end_ns;
		for (size_t n = model_end(b.model, &events), e = 0; e < n; e++)
			if (events[e].kind == MODEL_FINISHED)
				live[events[e].tag] = NULL;
		model_check(b.model);
	}
	while (model_begin(b.model, b.now_ns) != MODEL_NEVER)
		model_end(b.model, &events);
	bench_close(&b);
}

static void the_books_balance_whatever_happens(void **state)
{
	const struct model_options small = { .kv_tokens = 4000,
					     .sequences_max = 12,
					     .budget_tokens = 512 };
	struct model_options async = small;

	async.async = 1;
	churn(&small);
	churn(&async);
}

/* Whoever steps the copy sees what the original goes on to do, and neither touches the other. */
static void a_copy_goes_on_as_the_original_does(void **state)
{
	struct model_options options = { .kv_tokens = 20000, .budget_tokens = 2048 };
	struct bench a, b;

	(void)state;
	bench_open(&a, &options);
	bench_open(&b, &options);
	submit(&b, 99, text(9, 3000), 3000, 40); /* what a copy replaces */
	assert_true(step(&b));
	for (unsigned i = 0; i < 7; i++)
		submit(&a, i + 1, text(i % 4, 3000), 3000, 60);
	for (unsigned i = 0; i < 5; i++)
		assert_true(step(&a));
	submit(&a, 50, text(50, 500), 500, 5);
	assert_true(model_begin(a.model, a.now_ns) != MODEL_NEVER); /* in mid-step */

	assert_int_equal(model_copy(b.model, a.model), 0);
	model_check(b.model);
	assert_int_equal(model_step_end(b.model), model_step_end(a.model));
	for (int k = 0; k < 2; k++) {
		struct bench *x = k ? &b : &a;
		const struct model_event *events;
		size_t n;

		x->seen_nr = 0;
		x->now_ns = model_step_end(x->model);
		n = model_end(x->model, &events);
		for (size_t i = 0; i < n; i++)
			if (events[i].kind == MODEL_TOKEN || events[i].kind == MODEL_FINISHED)
				x->seen[x->seen_nr++] = events[i];
		run(x);
	}

	assert_true(a.seen_nr > 400 && a.seen_nr == b.seen_nr && a.now_ns == b.now_ns);
	for (size_t i = 0; i < a.seen_nr; i++) {
		assert_int_equal(a.seen[i].tag, b.seen[i].tag);
		assert_int_equal(a.seen[i].kind, b.seen[i].kind);
		assert_int_equal(a.seen[i].id, b.seen[i].id);
		assert_int_equal(a.seen[i].at_ns, b.seen[i].at_ns);
	}
	bench_close(&a);
	bench_close(&b);
}

static void the_live_requests_can_be_walked(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b, NULL);
	submit(&b, 1, text(1, 9000), 9000, 5); /* takes the whole first step */
	submit(&b, 2, text(2, 100), 100, 5);
	assert_true(step(&b));
	submit(&b, 3, text(3, 100), 100, 5);

	for (uint64_t i = 0; i < 3; i++)
		assert_int_equal(model_request_tag(model_request_at(b.model, i)), i + 1);
	assert_null(model_request_at(b.model, 3));
	run(&b);
	assert_null(model_request_at(b.model, 0));
	bench_close(&b);
}

static void a_stall_delays_the_step_under_way(void **state)
{
	const struct model_event *events;
	struct bench b;

	(void)state;
	bench_open(&b, NULL);
	submit(&b, 1, text(1, 1000), 1000, 1);
	uint64_t end_ns = model_begin(b.model, 0);

	model_stall(b.model, 5000);
	assert_int_equal(model_step_end(b.model), end_ns + 5000);
	assert_int_equal(model_end(b.model, &events), 3); /* started, token, end */
	assert_int_equal(events[1].at_ns, end_ns + 5000);
	model_stall(b.model, 5000); /* nothing runs: nothing happens */
	assert_int_equal(model_step_end(b.model), MODEL_NEVER);
	bench_close(&b);
}

/* Eight experts of 128 a token: two tokens use 15.5 of them on average. */
static void a_mixture_reads_more_experts_with_every_token(void **state)
{
	const struct model_profile *p = model_profile_find("a3b");

	(void)state;
	double one = model_iteration_s(p, 1, 0, 0), two = model_iteration_s(p, 2, 0, 0);

	assert_true(fabs(one - (7.3e-3 + 1e-3)) < 1e-12);
	assert_true(fabs(two - one - (41e-3 - 7.3e-3) / 16) < 1e-12);
	assert_true(fabs(model_iteration_s(p, 200, 0, 0) - 42e-3) < 1e-5);
}

/* One queue stands for tokens of the step, the other for KV blocks. */
static void what_a_queue_waits_for_is_counted(void **state)
{
	struct model_options small = { .kv_tokens = 8192 };
	struct model_figures f;
	struct bench b;

	(void)state;
	bench_open(&b, NULL);
	submit(&b, 1, text(1, 8192), 8192, 1);
	submit(&b, 2, text(2, 8192), 8192, 1);
	assert_true(step(&b));
	model_figures_get(b.model, &f);
	assert_int_equal(f.waited_budget_ns, b.now_ns);
	assert_int_equal(f.waited_kv_ns, 0);
	assert_int_equal(f.held_block_ns, b.now_ns * 512);
	run(&b);
	bench_close(&b);
	bench_open(&b, &small);
	submit(&b, 1, text(1, 6100), 6100, 2);
	submit(&b, 2, text(2, 6100), 6100, 1);
	assert_true(step(&b));
	model_figures_get(b.model, &f);
	assert_int_equal(f.waited_kv_ns, b.now_ns);
	assert_int_equal(f.waited_budget_ns, 0);
	run(&b);
	bench_close(&b);
}

static void a_restart_leaves_nothing_but_counters(void **state)
{
	struct model_options async = { .async = 1 };
	struct model_figures f;
	struct bench b;

	(void)state;
	bench_open(&b, &async);
	submit(&b, 1, text(1, 20000), 20000, 5);
	submit(&b, 2, text(2, 20000), 20000, 5);
	assert_true(step(&b));
	assert_true(model_begin(b.model, b.now_ns) != MODEL_NEVER);
	model_abort(b.model, model_request_at(b.model, 0)); /* planned: it would hold its blocks */

	model_restart(b.model);

	model_check(b.model);
	model_figures_get(b.model, &f);
	assert_int_equal(f.running + f.waiting + f.blocks_used + f.blocks_cached, 0);
	assert_int_equal(f.submitted, 2);
	assert_int_equal(f.aborted, 2);
	assert_int_equal(f.abandoned_tokens, f.computed_tokens);
	assert_int_equal(model_step_end(b.model), MODEL_NEVER);
	submit(&b, 3, text(1, 1000), 1000, 1);
	run(&b);
	assert_int_equal(b.seen[b.seen_nr - 1].life.cached_tokens, 0);
	bench_close(&b);
}

static void the_same_calls_give_the_same_events(void **state)
{
	static struct bench one, two;
	struct bench *both[] = { &one, &two };

	for (int i = 0; i < 2; i++) {
		bench_open(both[i], NULL);
		for (uint32_t k = 0; k < 12; k++)
			submit(both[i], k, text(k % 5, 300 + 1000 * k), 300 + 1000 * k, 20);
		run(both[i]);
		bench_close(both[i]);
	}

	assert_int_equal(one.seen_nr, two.seen_nr);
	for (size_t i = 0; i < one.seen_nr; i++) {
		assert_int_equal(one.seen[i].at_ns, two.seen[i].at_ns);
		assert_int_equal(one.seen[i].id, two.seen[i].id);
		assert_int_equal(one.seen[i].tag, two.seen[i].tag);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(a_lone_cold_prompt_takes_exactly_what_the_formula_says),
		CLAIM(a_prompt_beyond_the_budget_is_computed_in_chunks),
		CLAIM(a_small_prompt_pays_the_weight_pass),
		CLAIM(two_prompts_are_served_first_come_first_served),
		CLAIM(a_short_prompt_waits_for_the_whole_cold_one_before_it),
		CLAIM(a_cap_on_long_prefills_lets_the_short_prompt_in),
		CLAIM(a_decode_stands_still_beside_a_prefill_chunk),
		CLAIM(the_same_history_hits_whoever_sends_it),
		CLAIM(the_last_block_of_a_prompt_is_never_a_full_hit),
		CLAIM(one_token_changed_early_misses_all_that_follows),
		CLAIM(a_salt_divides_the_cache),
		CLAIM(the_answer_is_cached_for_the_next_turn_but_its_last_token),
		CLAIM(an_answer_spells_its_seed_first),
		CLAIM(the_youngest_is_preempted_and_recomputed_from_the_cache),
		CLAIM(a_prompt_waits_until_its_first_chunk_has_room),
		CLAIM(the_deepest_block_of_the_oldest_prompt_is_evicted_first),
		CLAIM(a_hit_makes_a_prefix_young_again),
		CLAIM(requests_with_the_same_prefix_share_its_blocks),
		CLAIM(blocks_in_use_are_the_sum_over_live_requests),
		CLAIM(an_abort_in_mid_prefill_keeps_what_was_computed),
		CLAIM(an_abort_frees_in_every_state),
		CLAIM(who_comes_in_a_step_is_in_the_next_or_with_async_the_one_after),
		CLAIM(with_async_a_close_comes_a_step_late_and_keeps_that_step),
		CLAIM(the_idle_engines_prefill_time_is_what_a_run_takes),
		CLAIM(a_prefix_pulled_from_elsewhere_hits),
		CLAIM(what_can_never_run_is_refused),
		CLAIM(the_gauges_show_the_rest_of_a_running_prefill),
		CLAIM(the_books_balance_whatever_happens),
		CLAIM(a_copy_goes_on_as_the_original_does),
		CLAIM(the_live_requests_can_be_walked),
		CLAIM(a_stall_delays_the_step_under_way),
		CLAIM(a_mixture_reads_more_experts_with_every_token),
		CLAIM(what_a_queue_waits_for_is_counted),
		CLAIM(a_restart_leaves_nothing_but_counters),
		CLAIM(the_same_calls_give_the_same_events),
	};

	return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
