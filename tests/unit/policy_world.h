/* A small fleet to decide over: sound, idle, fresh engines, until a test says otherwise. */
#ifndef TURNWARD_TESTS_UNIT_POLICY_WORLD_H
#define TURNWARD_TESTS_UNIT_POLICY_WORLD_H

#include "router/policy/policy.h"

#include <string.h>

/* Doubles, which cmocka's assert_float_equal is not. */
#define assert_near(value, expected, within)                                             \
	do {                                                                             \
		double value_ = (value), expected_ = (expected);                         \
		if (!(value_ - expected_ <= (within) && expected_ - value_ <= (within))) \
			fail_msg("%s is %.12g, not %.12g", #value, value_, expected_);   \
	} while (0)

struct world {
	struct policy_params params;
	struct policy_request request;
	struct policy_engine engine[STATE_ENGINES_MAX];
	unsigned nr;
	struct policy_choice choice;
};

/* Round numbers for sums by hand: 5,000 tokens/s without a quadratic part, 50 ms steps. */
static inline void world_init(struct world *w, enum policy_kind policy, unsigned nr)
{
	memset(w, 0, sizeof(*w));
	policy_params_init(&w->params);
	w->params.policy = policy;
	w->params.throughput = 5000;
	w->params.attention_s = 0;
	w->params.throughput_context = 0;
	w->nr = nr;
	w->request = (struct policy_request){ .random = { 17, 99 },
					      .home = -1,
					      .prompt_tokens = 40000,
					      .turn = 1,
					      .since_move_s = -1,
					      .move_budget = -1 };
	for (unsigned i = 0; i < nr; i++)
		w->engine[i] = (struct policy_engine){
			.id = i, .flags = POLICY_SERVES | POLICY_ALIVE, .weight = 1, .fresh_s = 0.2f
		};
}

static inline int world_choose(struct world *w)
{
	policy_choose(&w->params, &w->request, w->engine, w->nr, &w->choice);
	return w->choice.engine;
}

/* A session's later turn: its home has all of the prompt but 800 tokens. */
static inline void world_settle(struct world *w, int home, unsigned turn)
{
	w->request.home = home;
	w->request.turn = turn;
	w->engine[home].hit_tokens = w->request.prompt_tokens - 800;
}

/* As many sequences decoding at 8,000 tokens of context each. */
static inline void world_decode(struct world *w, unsigned i, unsigned sequences)
{
	w->engine[i].num_requests += (float)sequences;
	w->engine[i].decoding += (float)sequences;
	w->engine[i].decode_context_tokens += 8000.0f * (float)sequences;
}

/* Splitmix64: tests draw the same numbers everywhere. */
static inline uint64_t world_random(uint64_t *seed)
{
	uint64_t x = *seed += 0x9E3779B97F4A7C15u;

	x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
	x = (x ^ x >> 27) * 0x94D049BB133111EBu;
	return x ^ x >> 31;
}

#endif
