/* Reads the ring, tells what is missing, and gives the rest to the sink. */
#include "router/ctl/follow.h"

#include <stdio.h>

int follow_flush(struct follow *f)
{
	uint64_t n = f->gap.last - f->gap.first + 1;
	int err;

	if (!f->gap.first)
		return 0;
	err = sink_put(f->sink, RECORD_GAP, f->gap.last + 1, &f->gap, sizeof(f->gap));
	if (err)
		return err;
	f->sum.gaps++;
	f->sum.lost += n;
	fprintf(stderr, "turnward record: %lu records are missing from %lu on: %s\n",
		(unsigned long)n, (unsigned long)f->gap.first, record_gap_meaning(f->gap.why));
	f->gap.first = 0;
	return 0;
}

/* Notes records [first, last] as missing; joins what adjoins. */
static int miss(struct follow *f, uint64_t first, uint64_t last, enum record_gap_why why)
{
	int err = 0;

	if (f->gap.first && f->gap.why == why && f->gap.last + 1 == first) {
		f->gap.last = last;
		return 0;
	}
	err = follow_flush(f);
	if (!err)
		f->gap = (struct record_gap){ first, last, why };
	return err;
}

static void tell_foreign(struct follow *f, const struct journal_head *head)
{
	if (!f->foreign_told)
		fprintf(stderr,
			"turnward record: records of journal version %u, layout %016lx are left "
			"out: this is %s with version %d, layout %016lx\n",
			head->version, (unsigned long)head->layout, sink_program(), JOURNAL_VERSION,
			(unsigned long)journal_layout());
	f->foreign_told = 1;
}

/* One record of the ring: into the file, or noted as another version's. */
static int put(struct follow *f, uint64_t number, size_t size)
{
	const struct journal_head *head = (const void *)f->record;
	int err;

	if (size < sizeof(*head) || head->version != JOURNAL_VERSION ||
	    head->layout != journal_layout()) {
		tell_foreign(f, head);
		return miss(f, number, number, RECORD_GAP_FOREIGN);
	}
	err = follow_flush(f);
	if (!err)
		err = sink_put(f->sink, RECORD_JOURNAL, number, f->record, size);
	if (err)
		return err;
	f->last_number = number;
	f->last_wall = head->wall_ns;
	f->sum.decisions += head->kind == JOURNAL_DECISION;
	f->sum.outcomes += head->kind == JOURNAL_OUTCOME;
	f->sum.shadows += head->kind == JOURNAL_SHADOW;
	return 0;
}

static enum record_gap_why why_missing(const struct follow *f, const struct ring *ring)
{
	if (f->hindered)
		return RECORD_GAP_UNWRITTEN;
	/* The slot of the oldest may be being written. */
	return f->next > ring_first(ring) ? RECORD_GAP_TORN : RECORD_GAP_OVERWRITTEN;
}

int follow_pump(struct follow *f, const struct ring *ring, uint64_t last)
{
	struct ring_cursor cursor = { .next = f->next };
	int got = 1;
	size_t size;

	while (got && cursor.next <= last) {
		uint64_t number;
		int err = 0;

		got = ring_next(ring, &cursor, f->record, sizeof(f->record), &size);
		if (got < 0)
			return got;
		number = cursor.next - (uint64_t)got; /* the one read, or where there is none yet */
		if (number > f->next)
			err = miss(f, f->next, number - 1, why_missing(f, ring));
		if (err)
			return err;
		f->next = number;
		f->hindered = 0;
		if (got)
			err = put(f, number, size);
		if (err)
			return err;
		f->next = cursor.next;
	}
	return 0;
}

/* Our last record stands in it under its number. */
static int same_numbers(struct follow *f, const struct ring *ring)
{
	const struct journal_head *head = (const void *)f->record;
	size_t size;

	return f->last_number > 0 && ring_last(ring) + 1 >= f->next &&
	       ring_read(ring, f->last_number, f->record, sizeof(f->record), &size) == 0 &&
	       size >= sizeof(*head) && head->wall_ns == f->last_wall;
}

int follow_ring(struct follow *f, const struct ring *ring)
{
	if (same_numbers(f, ring))
		return 1;
	f->next = ring_first(ring);
	return 0;
}
