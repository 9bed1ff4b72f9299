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

static int is_first_after(const struct ledger_engine *engine, uint32_t number, uint64_t at_ns)
{
	uint32_t high = engine->marks, low = oldest_kept(engine);

	return number >= low && number <= high &&
	       (number == high || mark_ns(engine, number) > at_ns) &&
	       (number == low || mark_ns(engine, number - 1) <= at_ns);
}

/*
 * The number of the first mark later than at_ns, in [oldest kept, marks]. It stays so while newer
 * marks come: `guess` is what it was. Marks are a grain apart or more, so that few of the newest
 * can be later.
 */
static uint32_t first_after(const struct ledger_engine *engine, uint64_t at_ns, uint32_t guess)
{
	uint32_t high = engine->marks, low = oldest_kept(engine);

	if (is_first_after(engine, guess, at_ns))
		return guess;
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
	return before_mark(engine, first_after(engine, at_ns, engine->left_mark));
}

static uint32_t reached_mark(const struct ledger_engine *engine, uint64_t at_ns, uint32_t next)
{
	if (next == oldest_kept(engine))
		return next;
	if (since(at_ns, mark_ns(engine, next - 1)) >= LEDGER_MARK_NS)
		return next; /* that mark's grain was over */
	return next - 1;
}

const struct ledger_totals *ledger_reached(const struct ledger_engine *engine, uint64_t at_ns)
{
	uint32_t next = first_after(engine, at_ns, engine->taken_mark);

	return before_mark(engine, reached_mark(engine, at_ns, next));
}

static void prefetch_totals(const struct ledger_totals *totals)
{
	__builtin_prefetch(totals);
	__builtin_prefetch((const char *)(totals + 1) - 1);
}

static void prefetch_mark(const struct ledger_engine *books, uint32_t number)
{
	__builtin_prefetch(&books->mark_ns[number & (LEDGER_MARKS - 1)]);
	__builtin_prefetch(&books->mark_ns[(number - 1) & (LEDGER_MARKS - 1)]);
}

void ledger_prefetch(const struct ledger *ledger, unsigned engine)
{
	const char *books = (const char *)&ledger->engine[engine];

	for (size_t at = 0; at < offsetof(struct ledger_engine, newest); at += LINE)
		__builtin_prefetch(books + at);
}

void ledger_prefetch_known(const struct ledger *ledger, unsigned engine)
{
	const struct ledger_engine *books = &ledger->engine[engine];

	prefetch_mark(books, books->taken_mark);
	prefetch_mark(books, books->left_mark);
	prefetch_totals(before_mark(books, books->taken_mark));
	prefetch_totals(before_mark(books, books->left_mark));
	if (books->oldest)
		__builtin_prefetch(books->oldest);
}

void ledger_prefetch_recent(const struct ledger *ledger, unsigned engine)
{
	const struct ledger_engine *books = &ledger->engine[engine];

	for (uint32_t back = 1; back <= RECENT; back += LINE / sizeof(uint64_t))
		__builtin_prefetch(&books->mark_ns[(books->marks - back) & (LEDGER_MARKS - 1)]);
	if (books->oldest)
		__builtin_prefetch(books->oldest);
}

void ledger_locate(struct ledger_engine *books, uint64_t taken_ns, uint64_t left_ns)
{
	books->taken_mark = first_after(books, taken_ns, books->taken_mark);
	books->left_mark = first_after(books, left_ns, books->left_mark);
	prefetch_totals(before_mark(books, reached_mark(books, taken_ns, books->taken_mark)));
	prefetch_totals(before_mark(books, books->left_mark));
}
