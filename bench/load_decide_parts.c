/* Times the parts of a decision on real files of a region; see load_decide.h. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/load_decide.h"
#include "shm/base/clock.h"

enum { BATCH = 64, PAGE = 4096, SWEEP = 64 << 20, LINE = 64, CLOCK_ROUNDS = 1000 };

/* ---- what is timed ---- */

static void copy_one(struct decide *d)
{
	memcpy(&d->state[0], d->plain[0], sizeof(d->state[0]));
	__asm__ volatile("" ::: "memory");
}

static void copy_all(struct decide *d)
{
	for (unsigned e = 0; e < DECIDE_ENGINES; e++)
		for (size_t at = 0; at < sizeof(d->state[0]); at += LINE)
			__builtin_prefetch((char *)d->plain[e] + at);
	for (unsigned e = 0; e < DECIDE_ENGINES; e++)
		memcpy(&d->state[e], d->plain[e], sizeof(d->state[0]));
	__asm__ volatile("" ::: "memory");
}

static void slot_one(struct decide *d)
{
	engine_file_read(&d->seen[0], &d->state[0], NULL);
}

static void slot_all(struct decide *d)
{
	for (unsigned e = 0; e < DECIDE_ENGINES; e++)
		engine_file_prefetch(&d->seen[e]);
	for (unsigned e = 0; e < DECIDE_ENGINES; e++)
		engine_file_read(&d->seen[e], &d->state[e], NULL);
}

static void prefix(struct decide *d)
{
	prefix_match_all(&d->index, DECIDE_ENGINES, d->chain, DECIDE_BLOCKS, d->blocks);
}

static void books(struct decide *d)
{
	uint64_t now_ns = clock_ns();

	for (unsigned e = 0; e < DECIDE_ENGINES; e++)
		ledger_effective(&d->ledger, &d->books, e, &d->state[e], NULL, 4500, now_ns,
				 &d->view[e]);
}

static void engines_of(struct decide *d)
{
	for (unsigned e = 0; e < DECIDE_ENGINES; e++)
		d->engine[e] = (struct policy_engine){
			.id = e,
			.flags = POLICY_SERVES | POLICY_ALIVE,
			.weight = 1,
			.fresh_s = 0.2f,
			.num_requests = (uint32_t)d->view[e].num_requests,
			.decoding = (uint32_t)d->view[e].decoding,
			.pending_prefill_tokens = (uint32_t)d->view[e].pending_prefill_tokens,
			.hit_tokens = d->blocks[e] * 125,
		};
}

static void choose(struct decide *d, enum policy_kind kind)
{
	d->params.policy = kind;
	policy_choose(&d->params, &d->request, d->engine, DECIDE_ENGINES, &d->choice);
}

static void contention(struct decide *d)
{
	choose(d, POLICY_CONTENTION);
}

static void eft(struct decide *d)
{
	choose(d, POLICY_EFT);
}

static void linear(struct decide *d)
{
	choose(d, POLICY_LINEAR);
}

static void bare(struct decide *d)
{
	slot_all(d);
	books(d);
	engines_of(d);
	contention(d);
}

static void whole(struct decide *d)
{
	prefix(d);
	bare(d);
}

/* ---- cold lines ---- */

static void evict(const void *from, size_t len)
{
#ifdef __x86_64__
	const char *at = from;

	for (size_t i = 0; i < len; i += LINE)
		__builtin_ia32_clflush(at + i);
	__builtin_ia32_mfence();
#else
	/* Without an instruction for it other memory takes the caches' place. */
	static char sweep[SWEEP];

	for (size_t i = 0; i < sizeof(sweep); i += LINE)
		sweep[i]++;
#endif
}

static void evict_all(struct decide *d, bool index)
{
	for (unsigned e = 0; e < DECIDE_ENGINES; e++) {
		evict(d->seen[e].file.map,
		      d->seen[e].file.size < 2 * PAGE ? d->seen[e].file.size : 2 * PAGE);
		evict(d->plain[e], PAGE);
	}
	evict(&d->ledger, DECIDE_ENGINES * sizeof(d->ledger.engine[0]));
	evict(d->chain, sizeof(d->chain));
	if (index)
		evict(d->memory, d->memory_size);
}

#define PART_ROW(id, name, op, cold) { op, cold },
static const struct {
	void (*op)(struct decide *d);
	bool cold;
} parts[] = { DECIDE_PARTS(PART_ROW) };

static double clock_cost_ns(void)
{
	uint64_t before = clock_ns(), now = before;

	for (int i = 0; i < CLOCK_ROUNDS; i++)
		now = clock_ns();
	return (double)(now - before) / CLOCK_ROUNDS;
}

void decide_time(struct decide *d, enum decide_part part, unsigned samples, struct hist *ret_ns)
{
	unsigned batch = parts[part].cold ? 1 : BATCH;
	double clock = clock_cost_ns();

	hist_reset(ret_ns);
	whole(d); /* what is not under test is in place */
	for (unsigned i = 0; i < samples; i++) {
		if (parts[part].cold)
			evict_all(d, part == DECIDE_PREFIX_COLD || part == DECIDE_WHOLE_COLD);
		uint64_t before = clock_ns();
		for (unsigned k = 0; k < batch; k++)
			parts[part].op(d);
		double ns = ((double)(clock_ns() - before) - clock) / batch;
		hist_add(ret_ns, ns);
	}
}

/* ---- the world of a decision ---- */

static void books_fill(struct decide *d)
{
	uint64_t now_ns = clock_ns();

	ledger_init(&d->ledger);
	ledger_params_init(&d->books);
	for (unsigned i = 0; i < DECIDE_TICKETS; i++) {
		struct ledger_ticket *t = &d->ticket[i];

		t->engine = i % DECIDE_ENGINES;
		t->sequences = 1;
		t->prompt_tokens = 20000;
		t->uncached_tokens = 2000;
		t->prefill_s = 0.5;
		ledger_dispatch(&d->ledger, t, now_ns);
		if (i % 2)
			ledger_first_token(&d->ledger, t, now_ns);
	}
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
	for (unsigned i = 0; i < DECIDE_BLOCKS; i++)
		d->chain[i] = (i + 1) * 0x9e3779b97f4a7c15ull;
	for (uint32_t e = 0; e < DECIDE_ENGINES && !err; e++)
		prefix_insert(&d->index, e, d->chain, e == 3 ? DECIDE_BLOCKS : 40 * (e + 1));
	return err;
}

static int files_make(struct decide *d, const char *dir)
{
	char error[REGION_ERROR_MAX], name[16];
	int err = region_open(&d->region, dir, 1, error);

	for (unsigned e = 0; e < DECIDE_ENGINES && !err; e++) {
		struct engine_state state = { .read_ns = clock_ns(), .period_ns = 100000000 };

		ENGINE_SET(&state, running, 12);
		ENGINE_SET(&state, waiting, e);
		snprintf(name, sizeof(name), "e%u", e);
		d->plain[e] = aligned_alloc(PAGE, PAGE);
		if (!d->plain[e])
			return -ENOMEM;
		*d->plain[e] = state;
		err = engine_file_hold(&d->own[e], &d->region, name, error);
		if (!err)
			engine_file_publish(&d->own[e], &state);
		if (!err)
			err = engine_file_attach(&d->seen[e], &d->region, name, error);
	}
	return err;
}

int decide_init(struct decide *d, const char *dir)
{
	memset(d, 0, sizeof(*d));
	policy_params_init(&d->params);
	d->request = (struct policy_request){ .random = { 17, 99 },
					      .home = 3,
					      .prompt_tokens = 200000,
					      .turn = 5,
					      .since_move_s = -1,
					      .move_budget = -1 };
	books_fill(d);
	int err = index_fill(d);
	return err ? err : files_make(d, dir);
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
}
