/* Measures one decision among eight engines piece by piece: hits, effective loads, the choice. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "router/ledger/ledger.h"
#include "router/policy/policy.h"
#include "router/prefix/prefix.h"
#include "router/stats/hist.h"
#include "shm/base/clock.h"

enum { ENGINES = 8, ROOM = 16384, BLOCKS = 320 /* 40,000 tokens */, TICKETS = 200, ROUNDS = 20000 };

static uint64_t chain[BLOCKS];
static struct ledger ledger;
static struct ledger_ticket tickets[TICKETS];

static void tell(const char *what, struct hist *hist)
{
	printf("%-52s p50 %6.0f ns   p99 %6.0f ns\n", what, hist_quantile(hist, 0.5),
	       hist_quantile(hist, 0.99));
	hist_reset(hist);
}

static void fill_books(uint64_t now_ns)
{
	ledger_init(&ledger);
	for (unsigned i = 0; i < TICKETS; i++) {
		tickets[i].engine = (uint8_t)(i % ENGINES);
		tickets[i].sequences = 1;
		tickets[i].prompt_tokens = 20000;
		tickets[i].uncached_tokens = 2000;
		tickets[i].prefill_s = 0.5;
		ledger_dispatch(&ledger, &tickets[i], now_ns);
		if (i % 2)
			ledger_first_token(&ledger, &tickets[i], now_ns);
	}
}

static void views_get(const struct ledger_params *params, struct engine_state *state,
		      struct ledger_view *ret_view)
{
	uint64_t now_ns = clock_ns();

	for (unsigned e = 0; e < ENGINES; e++)
		ledger_effective(&ledger, params, e, &state[e], NULL, 4500, now_ns, &ret_view[e]);
}

static void engines_of(const struct ledger_view *view, const uint32_t *blocks,
		       struct policy_engine *ret_engine)
{
	for (unsigned e = 0; e < ENGINES; e++)
		ret_engine[e] = (struct policy_engine){
			.id = e,
			.flags = POLICY_SERVES | POLICY_ALIVE,
			.weight = 1,
			.fresh_s = 0.2f,
			.num_requests = (uint32_t)view[e].num_requests,
			.decoding = (uint32_t)view[e].decoding,
			.pending_prefill_tokens = (uint32_t)view[e].pending_prefill_tokens,
			.hit_tokens = blocks[e] * 125,
		};
}

static void measure_policy(struct policy_params *params, const struct policy_request *request,
			   const struct policy_engine *engine)
{
	static struct hist hist;
	struct policy_choice choice;
	static const struct {
		enum policy_kind kind;
		const char *what;
	} kinds[] = { { POLICY_CONTENTION, "policy_choose, contention" },
		      { POLICY_EFT, "policy_choose, eft" },
		      { POLICY_LINEAR, "policy_choose, linear" } };

	for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
		params->policy = kinds[k].kind;
		for (int i = 0; i < ROUNDS; i++) {
			uint64_t before = clock_ns();

			policy_choose(params, request, engine, ENGINES, &choice);
			hist_add(&hist, (double)(clock_ns() - before));
		}
		tell(kinds[k].what, &hist);
	}
}

int main(void)
{
	static struct hist hist, whole;
	static struct engine_state state[ENGINES];
	struct ledger_params books;
	struct ledger_view view[ENGINES];
	struct policy_engine engine[ENGINES];
	struct policy_params params;
	struct policy_choice choice;
	struct policy_request request = { .random = { 17, 99 },
					  .home = 3,
					  .prompt_tokens = 40000,
					  .turn = 5,
					  .since_move_s = -1,
					  .move_budget = -1 };
	struct prefix_index index;
	uint32_t blocks[ENGINES];
	size_t size = (prefix_size(ENGINES, ROOM) + 4095) / 4096 * 4096;
	void *mem = aligned_alloc(4096, size);

	if (!mem || prefix_attach(&index, memset(mem, 0, size), size, ENGINES, ROOM))
		return 1;
	for (int i = 0; i < BLOCKS; i++)
		chain[i] = (uint64_t)(i + 1) * 0x9e3779b97f4a7c15ull;
	for (uint32_t e = 0; e < ENGINES; e++)
		prefix_insert(&index, e, chain, e == 3 ? BLOCKS : 40);
	fill_books(clock_ns());
	ledger_params_init(&books);
	policy_params_init(&params);
	for (int i = 0; i < ROUNDS; i++) {
		uint64_t before = clock_ns();

		prefix_match_all(&index, ENGINES, chain, BLOCKS, blocks);
		uint64_t matched = clock_ns();
		views_get(&books, state, view);
		engines_of(view, blocks, engine);
		policy_choose(&params, &request, engine, ENGINES, &choice);
		hist_add(&hist, (double)(matched - before));
		hist_add(&whole, (double)(clock_ns() - before));
	}
	tell("prefix_match_all, 320 blocks, 8 engines", &hist);
	tell("all three: hits, 8 effective loads, the choice", &whole);
	for (int i = 0; i < ROUNDS; i++) {
		uint64_t before = clock_ns();

		views_get(&books, state, view);
		hist_add(&hist, (double)(clock_ns() - before));
	}
	tell("ledger_effective, 8 engines", &hist);
	measure_policy(&params, &request, engine);
	free(mem);
	return choice.engine < 0;
}
