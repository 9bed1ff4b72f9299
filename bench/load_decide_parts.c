/* Times the parts of a decision, one after the other and together; see load_decide.h. */
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

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
		engine_file_prefetch(&d->seen[e], d->seq[e]);
	for (unsigned e = 0; e < DECIDE_ENGINES; e++)
		engine_file_prefetch_state(&d->seen[e], d->seq[e]);
	for (unsigned e = 0; e < DECIDE_ENGINES; e++)
		engine_file_read(&d->seen[e], &d->state[e], &d->seq[e]);
}

static void same_all(struct decide *d)
{
	for (unsigned e = 0; e < DECIDE_ENGINES; e++)
		engine_file_prefetch(&d->seen[e], d->seq[e]);
	for (unsigned e = 0; e < DECIDE_ENGINES; e++)
		d->seq[e] = engine_file_seq(&d->seen[e]);
}

static const uint16_t *known_depths(const struct decide *d)
{
	return prefix_known_find(&d->known, DECIDE_SESSION);
}

static void match(struct decide *d, const uint16_t *known)
{
	prefix_match_all(&d->index, DECIDE_ENGINES, d->chain, DECIDE_CHAIN, known, d->blocks);
}

static void prefix(struct decide *d)
{
	match(d, NULL);
}

static void prefix_known(struct decide *d)
{
	match(d, known_depths(d));
}

/* Records that have been read, a bit for each. */
static void observe_all(struct decide *d, uint64_t read)
{
	for (uint64_t left = read; left; left &= left - 1) {
		unsigned e = (unsigned)__builtin_ctzll(left);

		ledger_prefetch_past(&d->ledger, &d->books, e, &d->state[e]);
	}
	for (; read; read &= read - 1) {
		unsigned e = (unsigned)__builtin_ctzll(read);

		ledger_observe(&d->ledger, &d->books, e, &d->state[e], d->now_ns);
	}
}

static void observe(struct decide *d)
{
	for (unsigned e = 0; e < DECIDE_ENGINES; e++)
		ledger_prefetch(&d->ledger, e);
	for (unsigned e = 0; e < DECIDE_ENGINES; e++)
		ledger_prefetch_recent(&d->ledger, e);
	observe_all(d, (1ull << DECIDE_ENGINES) - 1);
}

/* By the router's own rules, from what has been read and found. */
static void fill(struct decide *d)
{
	struct view v = { .ledger = &d->ledger,
			  .ledger_params = &d->books,
			  .params = &d->params,
			  .rules = &d->rules,
			  .now_ns = d->now_ns };
	struct view_prompt prompt = { .chain = d->chain,
				      .chain_nr = DECIDE_CHAIN,
				      .prompt_tokens = DECIDE_CHAIN * 125,
				      .content_bytes = DECIDE_CHAIN * 512,
				      .session = &d->session,
				      .home = DECIDE_HOME };
	struct view_request asked = { .random = { 17, 99 },
				      .flags = POLICY_STREAMED,
				      .home = DECIDE_HOME,
				      .prompt_tokens = DECIDE_CHAIN * 125,
				      .turn = 5,
				      .sequences = 1,
				      .session = &d->session };
	uint32_t hits[DECIDE_ENGINES];

	view_hits(&prompt, d->blocks, DECIDE_ENGINES, hits);
	view_budget_refill(&d->moves, &d->rules, d->now_ns);
	view_request_fill(&v, &asked, &d->moves, &d->request);
	for (unsigned e = 0; e < DECIDE_ENGINES; e++) {
		struct view_engine seen = { .index = e,
					    .id = e,
					    .flags = POLICY_SERVES | POLICY_ALIVE,
					    .attached = 1,
					    .weight = 1,
					    .state = &d->state[e],
					    .calibration = &d->calibration[e],
					    .hit_tokens = hits[e] };

		view_engine_fill(&v, &seen, &d->engine[e]);
	}
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

/* As the router asks for them and reads them (engines_prefetch, engines_read). */
static void ask_all(struct decide *d)
{
	for (unsigned e = 0; e < DECIDE_ENGINES; e++) {
		engine_file_prefetch(&d->seen[e], d->seq[e]);
		ledger_prefetch(&d->ledger, e);
	}
}

static void read_all(struct decide *d)
{
	uint64_t new = 0;

	for (unsigned e = 0; e < DECIDE_ENGINES; e++)
		if (engine_file_seq(&d->seen[e]) != d->seq[e]) {
			engine_file_prefetch_state(&d->seen[e], d->seq[e]);
			ledger_prefetch_recent(&d->ledger, e);
			new |= 1ull << e;
		} else {
			ledger_prefetch_known(&d->ledger, e);
		}
	for (uint64_t left = new; left; left &= left - 1) {
		unsigned e = (unsigned)__builtin_ctzll(left);

		engine_file_read(&d->seen[e], &d->state[e], &d->seq[e]);
	}
	observe_all(d, new);
}

/* In the router's order (route_decide), the default policy. */
static void bare(struct decide *d)
{
	ask_all(d);
	read_all(d);
	fill(d);
	eft(d);
}

static void decide_with(struct decide *d, const uint16_t *known)
{
	prefix_prefetch(&d->index, DECIDE_ENGINES, d->chain, DECIDE_CHAIN, known);
	read_all(d);
	match(d, known);
	fill(d);
	eft(d);
}

static void whole(struct decide *d)
{
	ask_all(d);
	prefix_known_prefetch(&d->known, DECIDE_SESSION);
	decide_with(d, known_depths(d));
}

static void first(struct decide *d)
{
	ask_all(d);
	decide_with(d, NULL);
}

/* ---- cold lines ---- */

#ifdef __x86_64__
static int flushes_unordered(void)
{
	static int known = -1; /* asking leaves a virtual machine */
	unsigned a, b = 0, c, d;

	if (known < 0)
		known = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_CLFLUSHOPT);
	return known;
}

/* Many at a time where the processor can: it must be over before others take the caches. */
static __attribute__((target("clflushopt"))) void evict_unordered(const char *at, size_t len)
{
	for (size_t i = 0; i < len; i += LINE)
		__builtin_ia32_clflushopt(at + i);
}
#endif

static void evict(const void *from, size_t len)
{
#ifdef __x86_64__
	const char *at = from;

	if (flushes_unordered())
		evict_unordered(at, len);
	else
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

static void evict_all(struct decide *d, enum decide_cold cold)
{
	for (unsigned e = 0; e < DECIDE_ENGINES; e++) {
		evict(d->seen[e].file.map,
		      d->seen[e].file.size < 2 * PAGE ? d->seen[e].file.size : 2 * PAGE);
		evict(d->plain[e], PAGE);
	}
	if (cold >= DECIDE_BOOKS) {
		evict(&d->ledger, DECIDE_ENGINES * sizeof(d->ledger.engine[0]));
		evict(d->ticket, sizeof(d->ticket));
	}
	if (cold >= DECIDE_ALL) {
		evict(d->chain, sizeof(d->chain));
		evict(d->memory, d->memory_size);
		evict(d->known_memory, prefix_known_size(DECIDE_ENGINES));
	}
}

#define PART_ROW(id, name, op, cold) { op, cold },
static const struct {
	void (*op)(struct decide *d);
	enum decide_cold cold;
} parts[] = { DECIDE_PARTS(PART_ROW) };

static double clock_cost_ns(void)
{
	uint64_t before = clock_ns(), now = before;

	for (int i = 0; i < CLOCK_ROUNDS; i++)
		now = clock_ns();
	return (double)(now - before) / CLOCK_ROUNDS;
}

void decide_time(struct decide *d, enum decide_part part, unsigned samples, struct hist *hist_ns)
{
	unsigned batch = parts[part].cold ? 1 : BATCH;
	double clock = clock_cost_ns();

	whole(d);
	for (unsigned i = 0; i < samples; i++) {
		if (parts[part].cold) {
			whole(d); /* what is not flushed is in place: code, stack, parameters */
			decide_publish(d);
			if (part == DECIDE_OBSERVE) /* has been read */
				memcpy(d->state, d->said, sizeof(d->state));
			evict_all(d, parts[part].cold);
		}
		uint64_t before = clock_ns();
		for (unsigned k = 0; k < batch; k++)
			parts[part].op(d);
		double ns = ((double)(clock_ns() - before) - clock) / batch;
		hist_add(hist_ns, ns);
	}
}
