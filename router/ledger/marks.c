/* The recent past of an engine's books: what had been dispatched or ended at a given moment. */
#include "router/ledger/internal.h"

enum {
	LINE = 64,
	RECENT = 24, /* newest marks, among which a record's age and the lag usually end */
};
static_assert((LEDGER_MARKS & (LEDGER_MARKS - 1)) == 0, "a ring's index is a mask");

static uint64_t mark_ns(const struct ledger_engine *engine, uint32_t number)
{
	return engine->mark_ns[number & (LEDGER_MARKS - 1)];
}

void ledger_mark(struct ledger_engine *engine, uint64_t now_ns)
{
	if (engine->marks != 0 &&
	    since(now_ns, mark_ns(engine, engine->marks - 1)) < LEDGER_MARK_NS)
		return;
	engine->mark_ns[engine->marks & (LEDGER_MARKS - 1)] = now_ns;
	engine->before[engine->marks & (LEDGER_MARKS - 1)] = engine->totals;
	engine->marks++;
	if (engine->marks == 2u * LEDGER_MARKS)
		engine->marks = LEDGER_MARKS; /* the same places, and no wrap */
}

static uint32_t oldest_kept(const struct ledger_engine *engine)
{
	return engine->marks > LEDGER_MARKS ? engine->marks - LEDGER_MARKS : 0;
}

/*
 * The number of the first mark later than at_ns, in [oldest kept, marks]. Marks are a grain apart
 * or more, so that few of the newest can be later.
 */
static uint32_t first_after(const struct ledger_engine *engine, uint64_t at_ns)
{
	uint32_t high = engine->marks, low = oldest_kept(engine);

	if (low == high || mark_ns(engine, high - 1) <= at_ns)
		return high;
	uint64_t later = (mark_ns(engine, high - 1) - at_ns) / LEDGER_MARK_NS + 1;

	if (later < high - low)
		low = high - (uint32_t)later;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (mark_ns(engine, middle) > at_ns)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

static const struct ledger_totals *before_mark(const struct ledger_engine *engine, uint32_t number)
{
	return number == engine->marks ? &engine->totals
				       : &engine->before[number & (LEDGER_MARKS - 1)];
}

const struct ledger_totals *ledger_bounded(const struct ledger_engine *engine, uint64_t at_ns)
{
	return before_mark(engine, first_after(engine, at_ns));
}

const struct ledger_totals *ledger_reached(const struct ledger_engine *engine, uint64_t at_ns)
{
	uint32_t oldest = oldest_kept(engine);
	uint32_t next = first_after(engine, at_ns);

	if (next == oldest)
		return before_mark(engine, oldest);
	if (since(at_ns, mark_ns(engine, next - 1)) >= LEDGER_MARK_NS)
		return before_mark(engine, next); /* that mark's grain was over */
	return before_mark(engine, next - 1);
}

void ledger_prefetch(const struct ledger *ledger, unsigned engine)
{
	const char *books = (const char *)&ledger->engine[engine];

	for (size_t at = 0; at < offsetof(struct ledger_engine, newest); at += LINE)
		__builtin_prefetch(books + at);
}

void ledger_prefetch_recent(const struct ledger *ledger, unsigned engine)
{
	const struct ledger_engine *books = &ledger->engine[engine];

	for (uint32_t back = 1; back <= RECENT; back += LINE / sizeof(uint64_t))
		__builtin_prefetch(&books->mark_ns[(books->marks - back) & (LEDGER_MARKS - 1)]);
	if (books->oldest)
		__builtin_prefetch(books->oldest);
}
