/* The world of a timed decision: real files of a region, seconds of history, a long session. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/load_decide.h"
#include "shm/base/clock.h"

enum {
	PAGE = 4096,
	TOKENS_A_BLOCK = 125,
	STEP_MS = 9, /* between two events of an engine: each gets a mark of its own */
	STEPS = 400, /* more than the books remember */
	AGE_MS = 50, /* of a record when it is read */
	PERIOD_MS = 100,
	LATER_NS = 100, /* a record than the one before */
	COMMON = 40,    /* blocks that the first engine shares, the second has twice as many ... */
};

/* Requests come, get their first token and end, as many as stay in the books; then it is now. */
static void books_fill(struct decide *d)
{
	ledger_init(&d->ledger);
	ledger_params_init(&d->books);
	d->now_ns = clock_ns();
	for (unsigned step = 0; step < STEPS; step++) {
		uint64_t at_ns = d->now_ns - (uint64_t)(STEPS - step) * STEP_MS * NS_PER_MS;

		for (unsigned e = 0; e < DECIDE_ENGINES; e++) {
			struct ledger_ticket *t = &d->ticket[e][step % DECIDE_TICKETS];

			ledger_end(&d->ledger, t, LEDGER_COMPLETED, at_ns);
			*t = (struct ledger_ticket){ .engine = e,
						     .sequences = 1,
						     .prompt_tokens = 20000,
						     .uncached_tokens = 2000,
						     .prefill_s = 0.5 };
			ledger_dispatch(&d->ledger, t, at_ns);
			t = &d->ticket[e][(step + DECIDE_TICKETS / 2) % DECIDE_TICKETS];
			if (t->phase == LEDGER_SENT)
				ledger_first_token(&d->ledger, t, at_ns);
		}
	}
}

/* What the router found at the session's last turn, and that home has computed it since. */
static int known_fill(struct decide *d)
{
	size_t size = prefix_known_size(DECIDE_ENGINES);

	d->known_memory = aligned_alloc(PAGE, (size + PAGE - 1) / PAGE * PAGE);
	if (!d->known_memory)
		return -ENOMEM;
	memset(d->known_memory, 0, size);
	prefix_known_init(&d->known, d->known_memory, DECIDE_ENGINES);
	prefix_match_all(&d->index, DECIDE_ENGINES, d->chain, DECIDE_BLOCKS, NULL, d->blocks);
	prefix_known_note(&d->known, DECIDE_SESSION, d->blocks);
	prefix_known_landed(&d->known, DECIDE_SESSION, DECIDE_HOME, DECIDE_BLOCKS);
	return 0;
}

static int index_fill(struct decide *d)
{
	size_t size = prefix_size(DECIDE_ENGINES, DECIDE_ROOM);

	d->memory_size = (size + PAGE - 1) / PAGE * PAGE;
	d->memory = aligned_alloc(PAGE, d->memory_size);
	if (!d->memory)
		return -ENOMEM;
	memset(d->memory, 0, d->memory_size);
	int err = prefix_attach(&d->index, d->memory, d->memory_size, DECIDE_ENGINES, DECIDE_ROOM);
	for (unsigned i = 0; i < DECIDE_CHAIN; i++)
		d->chain[i] = (i + 1) * 0x9e3779b97f4a7c15ull;
	for (uint32_t e = 0; e < DECIDE_ENGINES && !err; e++)
		prefix_insert(&d->index, e, d->chain,
			      e == DECIDE_HOME ? DECIDE_BLOCKS : COMMON * (e + 1));
	return err;
}

/* As an agent of a vLLM engine reports. */
static struct engine_state state_of(const struct decide *d, unsigned e)
{
	struct engine_state state = { .read_ns = d->now_ns - AGE_MS * NS_PER_MS,
				      .period_ns = PERIOD_MS * NS_PER_MS,
				      .epoch = 1 + e,
				      .kind = ENGINE_KIND_VLLM,
				      .health = ENGINE_HEALTH_UP };

	ENGINE_SET(&state, running, 12);
	ENGINE_SET(&state, waiting, 11 + e);
	ENGINE_SET(&state, kv_used_tokens, 250000 + 1000 * e);
	ENGINE_SET(&state, kv_capacity_tokens, 454000);
	ENGINE_SET(&state, step_budget_tokens, 8192);
	ENGINE_SET(&state, prefill_tokens_per_s, 4500 + 20 * e);
	ENGINE_SET(&state, decode_iteration_s, 0.02 + 0.001 * e);
	ENGINE_SET(&state, cached_tokens_total, 7000000);
	ENGINE_SET(&state, queried_tokens_total, 8000000);
	ENGINE_SET(&state, finished_total, 375);
	ENGINE_SET(&state, prompt_tokens_total, 8000000);
	ENGINE_SET(&state, generation_tokens_total, 90000);
	ENGINE_SET(&state, max_model_len, 262144);
	ENGINE_SET(&state, block_size, 16);
	return state;
}

static int files_make(struct decide *d, const char *dir)
{
	char error[REGION_ERROR_MAX], name[16];
	int err = region_open(&d->region, dir, 1, error);

	for (unsigned e = 0; e < DECIDE_ENGINES && !err; e++) {
		snprintf(name, sizeof(name), "e%u", e);
		d->said[e] = state_of(d, e);
		d->plain[e] = aligned_alloc(PAGE, PAGE);
		if (!d->plain[e])
			return -ENOMEM;
		*d->plain[e] = d->said[e];
		err = engine_file_hold(&d->own[e], &d->region, name, error);
		if (!err)
			engine_file_publish(&d->own[e], &d->said[e]);
		if (!err)
			err = engine_file_attach(&d->seen[e], &d->region, name, error);
	}
	return err;
}

static void session_make(struct decide *d)
{
	struct session_time now = { .ns = d->now_ns - 10ull * NS_PER_S };
	struct session_dispatch sent = {
		.engine = DECIDE_HOME, .turn = 4, .chain = d->chain, .blocks = DECIDE_BLOCKS
	};
	struct session_result result = { .turn = 4,
					 .prompt_tokens = sent.blocks * TOKENS_A_BLOCK,
					 .completion_tokens = 300,
					 .cached_tokens = SESSION_UNKNOWN };

	session_init(&d->session, now);
	session_dispatched(&d->session, &sent, now);
	session_answered(&d->session, &result, now);
}

void decide_publish(struct decide *d)
{
	for (unsigned e = 0; e < DECIDE_ENGINES; e++) {
		d->said[e].read_ns += LATER_NS;
		engine_file_publish(&d->own[e], &d->said[e]);
		*d->plain[e] = d->said[e];
	}
}

int decide_init(struct decide *d, const char *dir)
{
	memset(d, 0, sizeof(*d));
	policy_params_init(&d->params);
	d->rules = (struct view_rules){ .ttft_window = 60ull * NS_PER_S,
					.ttft_quantile = 0.9,
					.migration_rate = 0.5,
					.migration_burst = 4 };
	books_fill(d);
	for (unsigned e = 0; e < DECIDE_ENGINES; e++)
		d->calibration[e] =
			(struct view_calibration){ .ratio = 1 + 0.02 * e, .learnt_ns = d->now_ns };
	int err = index_fill(d);
	if (err)
		return err;
	err = known_fill(d);
	if (err)
		return err;
	session_make(d);
	return files_make(d, dir);
}

void decide_fini(struct decide *d)
{
	for (unsigned e = 0; e < DECIDE_ENGINES; e++) {
		engine_file_drop(&d->seen[e]);
		engine_file_drop(&d->own[e]);
		free(d->plain[e]);
	}
	region_close(&d->region);
	free(d->memory);
	free(d->known_memory);
}
