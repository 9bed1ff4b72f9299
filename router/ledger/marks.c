/* The recent past of an engine's books: what had been dispatched or ended at a given moment. */
#include "router/ledger/internal.h"

static_assert((LEDGER_MARKS & (LEDGER_MARKS - 1)) == 0, "a ring's index is a mask");

static const struct ledger_mark *mark_at(const struct ledger_engine *engine, uint32_t number)
{
	return &engine->mark[number & (LEDGER_MARKS - 1)];
}

void ledger_mark(struct ledger_engine *engine, uint64_t now_ns)
{
	if (engine->marks != 0 &&
	    since(now_ns, mark_at(engine, engine->marks - 1)->from_ns) < LEDGER_MARK_NS)
		return;
	engine->mark[engine->marks & (LEDGER_MARKS - 1)] =
		(struct ledger_mark){ .from_ns = now_ns, .before = engine->totals };
	engine->marks++;
	if (engine->marks == 2u * LEDGER_MARKS)
		engine->marks = LEDGER_MARKS; /* the same places, and no wrap */
}

/*
 * The number of the first mark with from_ns > at_ns, in [oldest kept, marks].
 */
static uint32_t first_after(const struct ledger_engine *engine, uint64_t at_ns)
{
	uint32_t high = engine->marks;
	uint32_t low = high > LEDGER_MARKS ? high - LEDGER_MARKS : 0;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (mark_at(engine, middle)->from_ns > at_ns)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

static struct ledger_totals before_mark(const struct ledger_engine *engine, uint32_t number)
{
	return number == engine->marks ? engine->totals : mark_at(engine, number)->before;
}

struct ledger_totals ledger_bounded(const struct ledger_engine *engine, uint64_t at_ns)
{
	return before_mark(engine, first_after(engine, at_ns));
}

struct ledger_totals ledger_reached(const struct ledger_engine *engine, uint64_t at_ns)
{
	uint32_t oldest = engine->marks > LEDGER_MARKS ? engine->marks - LEDGER_MARKS : 0;
	uint32_t next = first_after(engine, at_ns);

	if (next == oldest)
		return before_mark(engine, oldest);
	if (since(at_ns, mark_at(engine, next - 1)->from_ns) >= LEDGER_MARK_NS)
		return before_mark(engine, next); /* that mark's grain was over */
	return before_mark(engine, next - 1);
}
