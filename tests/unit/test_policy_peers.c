/* Claims about other dispatchers' rules, worked out by hand from their documentation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "router/policy/peers.h"

enum { ENGINES = 4 };

static struct policy_params params;
static struct peer_params peer_params;
static struct policy_request request;
static struct policy_engine engine[ENGINES];
static struct peer_engine peer[ENGINES];
static struct policy_choice choice;

static int setup(void **state)
{
	(void)state;
	policy_params_init(&params);
	peer_params_init(&peer_params);
	request = (struct policy_request){ .prompt_tokens = 10000, .home = -1, .turn = 1 };
	memset(engine, 0, sizeof(engine));
	memset(peer, 0, sizeof(peer));
	for (unsigned i = 0; i < ENGINES; i++) {
		engine[i].id = i;
		engine[i].weight = 1;
		engine[i].flags = POLICY_SERVES | POLICY_ALIVE;
		engine[i].kv_capacity_tokens = 100000;
	}
	return 0;
}

static int32_t chosen(enum policy_peer rule)
{
	peer_choose(rule, &peer_params, &params, &request, engine, peer, ENGINES, &choice);
	return choice.engine;
}

static void sglang_keeps_affinity_until_64_requests_apart(void **state)
{
	(void)state;
	engine[2].hit_tokens = 3001;
	engine[2].num_requests = 64;

	assert_int_equal(chosen(PEER_SGLANG), 2);
	engine[2].num_requests = 65; /* most - fewest > 64, and most > 1.5 x fewest */
	assert_int_not_equal(chosen(PEER_SGLANG), 2);
}

static void sglang_wants_three_tenths_of_the_prompt(void **state)
{
	(void)state;
	engine[2].hit_tokens = 3000; /* not more than 0.3 */
	engine[0].num_requests = engine[2].num_requests = engine[3].num_requests = 2;
	engine[1].num_requests = 1;

	assert_int_equal(chosen(PEER_SGLANG), 1);
}

static void least_load_is_blind_to_hits(void **state)
{
	(void)state;
	for (unsigned i = 0; i < ENGINES; i++)
		engine[i].pending_prefill_tokens = 1000;
	engine[0].hit_tokens = 9900;
	engine[3].pending_prefill_tokens = 900;

	assert_int_equal(chosen(PEER_LEAST_LOAD), 3);
	engine[3].kv_used_tokens = 50000; /* 0.15 s x 0.5 / 0.5 against 100 / 2000 s */
	assert_int_not_equal(chosen(PEER_LEAST_LOAD), 3);
}

static void dynamo_weighs_overlap_against_decode_blocks(void **state)
{
	(void)state;
	for (unsigned i = 0; i < ENGINES; i++)
		engine[i].decode_context_tokens = 40000;
	engine[1].hit_tokens = 8000;
	engine[2].decode_context_tokens = 32016;

	assert_int_equal(chosen(PEER_DYNAMO), 1); /* 500 blocks of overlap against 499 fewer */
	engine[2].decode_context_tokens = 31984;
	assert_int_equal(chosen(PEER_DYNAMO), 2);
	engine[2].num_requests = 1000; /* its default gives the batch no weight */
	assert_int_equal(chosen(PEER_DYNAMO), 2);
}

static void llm_d_adds_two_two_and_three(void **state)
{
	(void)state;
	for (unsigned i = 0; i < ENGINES; i++)
		peer[i].waiting = 1;
	peer[3].waiting = 0; /* one waiting against none counts as a hundred would: 2 points */
	engine[0].hit_tokens = 6000; /* 1.8 points */

	assert_int_equal(chosen(PEER_LLM_D), 3);
	engine[0].hit_tokens = 7000; /* 2.1 points */
	assert_int_equal(chosen(PEER_LLM_D), 0);
	engine[0].kv_used_tokens = 10000; /* less 0.2 */
	assert_int_equal(chosen(PEER_LLM_D), 3);
}

static void llm_ds_filter_sticks_for_18_seconds(void **state)
{
	(void)state;
	engine[1].hit_tokens = 8000;
	for (unsigned i = 0; i < ENGINES; i++)
		peer[i].waiting = i == 1 ? 5 : 0;
	engine[1].kv_used_tokens = 90000;
	engine[1].pending_prefill_tokens = 17 * 15928;

	assert_int_equal(chosen(PEER_LLM_D_AFFINITY), 1);
	engine[1].pending_prefill_tokens = 19 * 15928;
	assert_int_not_equal(chosen(PEER_LLM_D_AFFINITY), 1);
}

static void aibrix_takes_the_longest_match_within_one_sigma(void **state)
{
	(void)state;
	engine[0].hit_tokens = 9000;
	engine[0].num_requests = 6; /* mean 3, sigma 1.73: above */
	engine[1].hit_tokens = 4000;
	for (unsigned i = 1; i < ENGINES; i++)
		engine[i].num_requests = 2;

	assert_int_equal(chosen(PEER_AIBRIX), 1);
	engine[0].num_requests = 2;
	assert_int_equal(chosen(PEER_AIBRIX), 0);
	engine[0].num_requests = 11; /* 9 apart: counts alone */
	engine[3].num_requests = 1;
	assert_int_equal(chosen(PEER_AIBRIX), 3);
}

static void preble_exploits_a_prefix_longer_than_the_rest(void **state)
{
	(void)state;
	engine[2].hit_tokens = 5001;
	peer[2].window_prefill_s = 100;

	assert_int_equal(chosen(PEER_PREBLE), 2);
	engine[2].hit_tokens = 5000;
	assert_int_not_equal(chosen(PEER_PREBLE), 2);
}

static void llumnix_adds_misses_and_prefills(void **state)
{
	(void)state;
	for (unsigned i = 0; i < ENGINES; i++)
		engine[i].pending_prefill_tokens = 4000;
	engine[0].hit_tokens = 3000;
	engine[1].pending_prefill_tokens = 999;

	assert_int_equal(chosen(PEER_LLUMNIX), 1);
	engine[1].pending_prefill_tokens = 1001;
	assert_int_equal(chosen(PEER_LLUMNIX), 0);
}

static void no_rule_takes_an_engine_that_may_not_be_taken(void **state)
{
	(void)state;
	for (int rule = 0; rule < PEERS_NR; rule++) {
		setup(state);
		engine[0].flags = POLICY_SERVES; /* down */
		engine[1].flags |= POLICY_DRAINED;
		engine[3].flags |= POLICY_EXCLUDED;
		engine[0].hit_tokens = engine[1].hit_tokens = engine[3].hit_tokens = 9000;
		engine[2].num_requests = 500;
		peer[2].waiting = 400;
		assert_int_equal(chosen((enum policy_peer)rule), 2);
		assert_int_equal(choice.candidates, 1);
	}
}

static void peers_are_known_by_name(void **state)
{
	(void)state;
	assert_int_equal(peer_parse("llm-d-affinity"), PEER_LLM_D_AFFINITY);
	assert_int_equal(peer_parse("llm"), -1);
	assert_string_equal(peer_name(PEER_AIBRIX), "aibrix");
	assert_null(peer_name(PEERS_NR));
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_setup(name, setup)
	const struct CMUnitTest tests[] = {
		CLAIM(sglang_keeps_affinity_until_64_requests_apart),
		CLAIM(sglang_wants_three_tenths_of_the_prompt),
		CLAIM(least_load_is_blind_to_hits),
		CLAIM(dynamo_weighs_overlap_against_decode_blocks),
		CLAIM(llm_d_adds_two_two_and_three),
		CLAIM(llm_ds_filter_sticks_for_18_seconds),
		CLAIM(aibrix_takes_the_longest_match_within_one_sigma),
		CLAIM(preble_exploits_a_prefix_longer_than_the_rest),
		CLAIM(llumnix_adds_misses_and_prefills),
		CLAIM(no_rule_takes_an_engine_that_may_not_be_taken),
		CLAIM(peers_are_known_by_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
