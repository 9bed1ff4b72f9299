/* An open-addressed table with linear steps; a removal closes the gap it leaves. */
#include "bpf/open.h"

#include <assert.h>

static_assert((OPEN_PLACES & (OPEN_PLACES - 1)) == 0, "places are found by mask");

static uint32_t home(uint64_t cookie)
{
	return (uint32_t)(cookie * 0x9e3779b97f4a7c15ull >> 32) & (OPEN_PLACES - 1);
}

static uint32_t next_of(uint32_t i)
{
	return (i + 1) & (OPEN_PLACES - 1);
}

/* The socket's place, or the free one where it would be. There is always a free place. */
static struct open_entry *place_of(struct open_table *table, uint64_t cookie)
{
	uint32_t i = home(cookie);

	while (table->place[i].cookie && table->place[i].cookie != cookie)
		i = next_of(i);
	return &table->place[i];
}

struct open_entry *open_find(struct open_table *table, const struct probe_record *r)
{
	struct open_entry *e = place_of(table, r->cookie);

	return e->cookie && e->sequence == r->sequence ? e : NULL;
}

struct open_entry *open_begin(struct open_table *table, const struct probe_record *r)
{
	struct open_entry *e = place_of(table, r->cookie);

	if (!e->cookie && table->n == OPEN_MAX) {
		table->unseen++;
		return NULL;
	}
	if (!e->cookie)
		table->n++;
	/* Another request of the same socket: the end of the former one was lost. */
	if (!e->cookie || e->sequence != r->sequence)
		*e = (struct open_entry){ .cookie = r->cookie, .sequence = r->sequence };
	e->start_ns = r->t0_first_ns;
	e->sent_ns = r->t0_last_ns;
	e->engine = r->engine;
	e->streams |= (r->flags & PROBE_FLAG_STREAM) != 0;
	return e;
}

void open_end(struct open_table *table, struct open_entry *entry)
{
	uint32_t hole = (uint32_t)(entry - table->place), i = next_of(hole);

	assert(entry->cookie && table->n > 0);
	table->n--;
	for (; table->place[i].cookie; i = next_of(i)) {
		uint32_t from = home(table->place[i].cookie);

		/* Whoever is at or behind the hole on its way moves into it. */
		if (((i - from) & (OPEN_PLACES - 1)) < ((i - hole) & (OPEN_PLACES - 1)))
			continue;
		table->place[hole] = table->place[i];
		hole = i;
	}
	table->place[hole] = (struct open_entry){ 0 };
}

void open_doubt(struct open_table *table)
{
	for (uint32_t i = 0; i < OPEN_PLACES; i++)
		table->place[i].doubt = table->place[i].cookie != 0;
}

/* Removing moves others into the place: it is looked at until it holds one that stays. */
void open_settle(struct open_table *table,
		 enum open_socket (*ask)(void *ctx, struct open_entry *entry), void *ctx)
{
	for (uint32_t i = 0; i < OPEN_PLACES; i++) {
		struct open_entry *e = &table->place[i];

		while (e->cookie && e->doubt) {
			if (ask(ctx, e) == OPEN_SOCKET_SILENT)
				e->doubt = 0;
			else
				open_end(table, e);
		}
	}
}

unsigned open_expire(struct open_table *table, uint64_t now_ns)
{
	uint64_t age_max = OPEN_AGE_MAX_S * 1000000000ull;
	uint64_t limit = now_ns > age_max ? now_ns - age_max : 0;
	unsigned n = 0;

	for (uint32_t i = 0; i < OPEN_PLACES; i++)
		while (table->place[i].cookie && table->place[i].start_ns < limit) {
			open_end(table, &table->place[i]);
			n++;
		}
	return n;
}

const struct open_entry *open_next(const struct open_table *table, const struct open_entry *after)
{
	const struct open_entry *e = after ? after + 1 : table->place;

	if (table->n == 0)
		return NULL;
	for (; e < table->place + OPEN_PLACES; e++)
		if (e->cookie)
			return e;
	return NULL;
}
