/* What holds for any input: valid, finite, blind to order, never drawn by load, replayed exactly.
 */
#include "tests/unit/policy_world.h"

#include "tests/lib/unit.h"

#include <math.h>

enum { ROUNDS = 20000, ENGINES = 8 };

static const uint64_t DIGEST = 0x08814F296B3EE448u; /* of five thousand choices */

static double random_real(uint64_t *seed, double most)
{
	return (double)(world_random(seed) >> 11) * 0x1p-53 * most;
}

static uint32_t random_below(uint64_t *seed, uint32_t limit)
{
	return (uint32_t)(world_random(seed) % limit);
}

static void random_engine(struct policy_engine *e, uint64_t *seed, uint32_t prompt)
{
	e->flags = POLICY_SERVES | POLICY_ALIVE;
	e->flags |= (uint32_t)world_random(seed) &
		    (POLICY_MEASURED_PREFILL | POLICY_MEASURED_DECODE | POLICY_PENDING_S |
		     POLICY_STEP_REST | POLICY_PULLS | POLICY_SOURCE);
	if (random_below(seed, 8) == 0)
		e->flags |= 1u << random_below(seed, 5);
	e->weight = random_below(seed, 10) ? 1 : (float)random_real(seed, 2);
	e->num_requests = (float)random_below(seed, 30);
	e->decoding = (float)random_below(seed, 20);
	e->decode_context_tokens = e->decoding * (float)random_below(seed, 20000);
	e->pending_prefill_tokens = (float)random_below(seed, 60000);
	e->pending_prefill_s = (float)random_real(seed, 20);
	e->staged_rest_tokens = (float)random_below(seed, 30000);
	e->requeueable_tokens = (float)random_below(seed, (uint32_t)e->pending_prefill_tokens + 1);
	e->step_rest_s = (float)random_real(seed, 2);
	e->prefill_tokens_per_s = (float)random_real(seed, 9000);
	e->prefill_context_tokens = (float)random_below(seed, 100000);
	e->decode_iteration_s = (float)random_real(seed, 0.2);
	e->hit_tokens = random_below(seed, prompt + 1);
	e->kv_capacity_tokens = random_below(seed, 3) ? 454000 : 0;
	e->kv_used_tokens = random_below(seed, 454000);
	e->penalty_s = (float)random_real(seed, 1);
	e->calibration = (float)random_real(seed, 3);
	e->recent_ttft_s = (float)random_real(seed, 12);
	e->recent_ttft_n = random_below(seed, 9);
	e->oldest_wait_s = (float)random_real(seed, 9);
	e->fresh_s = 0.2f;
}

static void random_world(struct world *w, uint64_t *seed)
{
	world_init(w, (enum policy_kind)random_below(seed, POLICIES_NR), ENGINES);
	policy_params_init(&w->params);
	w->params.policy = random_below(seed, POLICIES_NR);
	w->params.migrate = random_below(seed, MIGRATE_MODES_NR);
	w->params.migration_trigger = random_below(seed, MIGRATION_TRIGGERS_NR);
	w->params.migration_discount = random_below(seed, MIGRATION_DISCOUNTS_NR);
	w->params.v3_decode_tokens = random_below(seed, DECODE_READINGS_NR);
	w->params.kv_transfer = random_below(seed, 2);
	w->request.random[0] = world_random(seed);
	w->request.random[1] = world_random(seed);
	w->request.cursor = random_below(seed, 1000);
	w->request.prompt_tokens = random_below(seed, 120000);
	w->request.turn = 1 + random_below(seed, 9);
	w->request.home = (int32_t)random_below(seed, ENGINES + 1) - 1;
	w->request.since_move_s = (float)random_real(seed, 30) - 5;
	w->request.turns_since_move = random_below(seed, 3);
	w->request.moves = random_below(seed, 4);
	w->request.move_budget = (float)random_real(seed, 4) - 1;
	for (unsigned i = 0; i < w->nr; i++) {
		random_engine(&w->engine[i], seed, w->request.prompt_tokens);
		w->engine[i].id = i * 7 + 3;
	}
}

static void assert_valid(const struct world *w)
{
	const struct policy_choice *c = &w->choice;

	if (c->engine < 0) {
		assert_int_equal(c->candidates, 0);
		return;
	}
	assert_true((unsigned)c->engine < w->nr);
	assert_int_equal(c->cost[c->engine].left_out, LEFT_OUT_CANDIDATE);
	assert_true(c->reason < POLICY_REASONS_NR && c->reason != REASON_NONE);
	assert_true(isfinite(c->predicted_ttft_s) && c->predicted_raw_s >= 0);
	for (unsigned i = 0; i < w->nr; i++)
		assert_true(isfinite(c->cost[i].total_s));
}

static void any_input_gives_a_candidate_and_finite_costs(void **state)
{
	uint64_t seed = 1;

	for (int n = 0; n < ROUNDS; n++) {
		struct world w;

		random_world(&w, &seed);
		for (unsigned i = 0; i < w.nr; i++)
			w.engine[i].staleness = random_below(&seed, POLICY_STALENESS_NR);
		world_choose(&w);
		assert_valid(&w);
	}
}

/* Bits of any kind in the engine records: what a broken caller could hand over. */
static void garbage_gives_a_valid_choice_all_the_same(void **state)
{
	uint64_t seed = 2;

	for (int n = 0; n < ROUNDS; n++) {
		struct world w;

		random_world(&w, &seed);
		for (unsigned i = 0; i < w.nr; i++) {
			uint32_t *words = (uint32_t *)&w.engine[i];

			for (unsigned k = 2; k < sizeof(w.engine[i]) / 4; k++)
				words[k] = (uint32_t)world_random(&seed);
			w.engine[i].num_requests = n % 3 ? NAN : -INFINITY;
		}
		w.request.since_move_s = NAN;
		world_choose(&w);
		assert_valid(&w);
	}
}

static void the_order_of_engines_does_not_matter(void **state)
{
	uint64_t seed = 3;

	for (int n = 0; n < ROUNDS; n++) {
		struct world w, turned;
		unsigned by = 1 + random_below(&seed, ENGINES - 1);

		random_world(&w, &seed);
		if (n % 4 == 0) /* all alike: ties */
			for (unsigned i = 0; i < w.nr; i++) {
				w.engine[i] = w.engine[0];
				w.engine[i].id = i;
			}
		turned = w;
		for (unsigned i = 0; i < w.nr; i++)
			turned.engine[(i + by) % w.nr] = w.engine[i];
		if (w.request.home >= 0)
			turned.request.home = (int32_t)(((unsigned)w.request.home + by) % w.nr);
		int one = world_choose(&w), two = world_choose(&turned);

		assert_int_equal(two, one < 0 ? -1 : (one + (int)by) % (int)w.nr);
	}
}

/* Adds load of one kind to engine i. */
static void burden(struct policy_engine *e, unsigned kind, uint64_t *seed)
{
	switch (kind) {
	case 0:
		e->num_requests += 1 + (float)random_below(seed, 5);
		return;
	case 1:
		e->decoding += 1 + (float)random_below(seed, 5);
		return;
	case 2:
		e->pending_prefill_tokens += (float)random_below(seed, 20000);
		return;
	case 3:
		e->pending_prefill_s += (float)random_real(seed, 5);
		return;
	case 4:
		e->decode_context_tokens += (float)random_below(seed, 50000);
		return;
	case 5:
		e->kv_used_tokens += random_below(seed, 50000);
		return;
	default:
		e->staged_rest_tokens += (float)random_below(seed, 20000);
		return;
	}
}

/*
 * An engine that was not chosen is not chosen either when it has more to do. Not promised by rules
 * that look at means: force's triggers, v3's gate; nor by round-robin and sticky, which look at
 * nothing.
 */
static void more_load_never_attracts(void **state)
{
	uint64_t seed = 4;
	unsigned tried = 0;

	for (int n = 0; n < ROUNDS * 4; n++) {
		struct world w;

		random_world(&w, &seed);
		if (w.params.migrate == MIGRATE_FORCE)
			w.params.migrate = MIGRATE_PRICED;
		if (w.params.policy == POLICY_V3 || w.params.policy == POLICY_ROUND_ROBIN)
			continue;
		int before = world_choose(&w);
		unsigned i = random_below(&seed, ENGINES);

		if (before < 0 || i == (unsigned)before)
			continue;
		burden(&w.engine[i], random_below(&seed, 7), &seed);
		assert_int_not_equal(world_choose(&w), (int)i);
		tried++;
	}
	assert_true(tried > ROUNDS);
}

static void equal_inputs_give_equal_bytes(void **state)
{
	uint64_t seed = 5;

	for (int n = 0; n < ROUNDS; n++) {
		struct world w;
		struct policy_choice again;

		random_world(&w, &seed);
		memset(&w.choice, 0xaa, sizeof(w.choice));
		memset(&again, 0x55, sizeof(again));
		world_choose(&w);
		policy_choose(&w.params, &w.request, w.engine, w.nr, &again);
		assert_memory_equal(&w.choice, &again, policy_choice_size(w.nr));
	}
}

/* Only engines_nr engines are read and written: the rest may lie behind the end of a record. */
static void nothing_beyond_the_engines_given_is_touched(void **state)
{
	struct world w;

	world_init(&w, POLICY_EFT, 3);
	memset(&w.engine[3], 0xff, sizeof(w.engine[0]));
	memset(&w.choice, 0xaa, sizeof(w.choice));
	world_choose(&w);

	assert_int_equal(((unsigned char *)&w.choice)[policy_choice_size(3)], 0xaa);
	assert_int_equal(((unsigned char *)&w.choice)[sizeof(w.choice) - 1], 0xaa);
}

/* A journal's record: parameters, request, engines as bytes, moved through memory unaligned. */
static void a_recorded_decision_is_made_again_from_its_bytes(void **state)
{
	uint64_t seed = 6;
	unsigned char record[sizeof(struct policy_params) + sizeof(struct policy_request) +
			     ENGINES * sizeof(struct policy_engine) + 1];

	for (int n = 0; n < ROUNDS / 4; n++) {
		struct world w, read = { 0 };
		unsigned char *at = record + 1;

		random_world(&w, &seed);
		world_choose(&w);
		memcpy(at, &w.params, sizeof(w.params));
		memcpy(at + sizeof(w.params), &w.request, sizeof(w.request));
		memcpy(at + sizeof(w.params) + sizeof(w.request), w.engine,
		       w.nr * sizeof(w.engine[0]));

		memcpy(&read.params, at, sizeof(w.params));
		memcpy(&read.request, at + sizeof(w.params), sizeof(w.request));
		memcpy(read.engine, at + sizeof(w.params) + sizeof(w.request),
		       w.nr * sizeof(w.engine[0]));
		read.nr = w.nr;
		world_choose(&read);
		assert_memory_equal(&w.choice, &read.choice, policy_choice_size(w.nr));
	}
}

static uint64_t digest(const void *bytes, size_t size, uint64_t sum)
{
	const unsigned char *at = bytes;

	for (size_t i = 0; i < size; i++)
		sum = (sum ^ at[i]) * 0x100000001B3u;
	return sum;
}

/*
 * Builds of other compilers and options make the same decisions, bit for bit. The digest changes
 * with any formula, default or layout, and is then to be taken over from the message.
 */
static void every_build_decides_alike(void **state)
{
	uint64_t seed = 7, sum = 0xCBF29CE484222325u;

	for (int n = 0; n < ROUNDS / 4; n++) {
		struct world w;

		random_world(&w, &seed);
		world_choose(&w);
		sum = digest(&w.choice, policy_choice_size(w.nr), sum);
	}
	if (sum != DIGEST)
		fail_msg("the digest is 0x%016llX", (unsigned long long)sum);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(any_input_gives_a_candidate_and_finite_costs),
		CLAIM(garbage_gives_a_valid_choice_all_the_same),
		CLAIM(the_order_of_engines_does_not_matter),
		CLAIM(more_load_never_attracts),
		CLAIM(equal_inputs_give_equal_bytes),
		CLAIM(nothing_beyond_the_engines_given_is_touched),
		CLAIM(a_recorded_decision_is_made_again_from_its_bytes),
		CLAIM(every_build_decides_alike),
	};

	return cmocka_run_group_tests_name("policy_random", tests, NULL, NULL);
}
