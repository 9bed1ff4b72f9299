/*
 * A broadcast ring of numbered records in shared memory: the journal of decisions, a ledger's
 * notes.
 *
 * One writer that never waits; any number of readers, each with a cursor of its own, that never
 * hold it up. Records are numbered from 1 without gaps and never rewritten: what is learnt later
 * about record n is a record of its own that names n. A slow reader finds records overwritten and
 * counts them. A writer killed in mid-record loses that record only; its successor goes on with the
 * same number.
 */
#ifndef TURNWARD_SHM_RING_H
#define TURNWARD_SHM_RING_H

#include <stddef.h>
#include <stdint.h>

enum { RING_ALIGN = 64, RING_RECORD_MAX = 64 * 1024 /* bytes of a record, a multiple of 8 */ };

/* A process's own view. */
struct ring {
	uint8_t *mem;
	uint64_t records;   /* that it holds */
	size_t record_size; /* the most bytes of one */
	int writable;
	uint64_t next; /* the writer's: the number of the next record */
};

/* A reader's place; `next` 0 or 1 = from the oldest record still there. */
struct ring_cursor {
	uint64_t next; /* the number to read next */
	uint64_t lost; /* records that were overwritten or torn before they were read */
};

size_t ring_size(uint64_t records, size_t record_size);

/*
 * Attaches as the writer. All-zero memory becomes an empty ring; else numbering goes on behind the
 * last whole record, torn ones are dropped and counted in ret_dropped (may be NULL). -EPROTO: a
 * ring of another record size or length; -EINVAL: memory too small or unaligned.
 */
int ring_attach(struct ring *ret_ring, void *mem, size_t size, size_t record_size,
		uint64_t *ret_dropped);

/* Makes the memory an empty ring whose first record is number `first` (>= 1), and attaches. */
int ring_clear(struct ring *ret_ring, void *mem, size_t size, size_t record_size, uint64_t first);

/* Attaches for reading; takes the record size from the ring, bounded by `size`. */
int ring_view(struct ring *ret_ring, const void *mem, size_t size);

/* Appends `size` bytes (<= record_size; padded with zeroes to a multiple of 8); returns its number.
 */
uint64_t ring_append(struct ring *ring, const void *record, size_t size);

/* The number of the newest record, 0 if there is none; the oldest that may still be there, >= 1. */
uint64_t ring_last(const struct ring *ring);
uint64_t ring_first(const struct ring *ring);

/*
 * Copies record `number` into `room` bytes; ret_size (may be NULL) receives its length. 0; -ENOENT
 * if it is not yet written, overwritten, or torn; -EMSGSIZE if `room` is too small.
 */
int ring_read(const struct ring *ring, uint64_t number, void *ret_record, size_t room,
	      size_t *ret_size);

/*
 * The cursor's next record: 1 with a copy (its number is cursor->next - 1), 0 when there is none
 * yet, -EMSGSIZE. What could not be read is skipped and added to cursor->lost.
 */
int ring_next(const struct ring *ring, struct ring_cursor *cursor, void *ret_record, size_t room,
	      size_t *ret_size);

/*
 * Walks backwards from the newest record to the first for which `match` returns 1 and leaves that
 * one in ret_record, its number in ret_number (may be NULL). 0 or -ENOENT.
 */
int ring_find_last(const struct ring *ring,
		   int (*match)(void *ctx, const void *record, size_t size), void *ctx,
		   void *ret_record, size_t room, uint64_t *ret_number);

/* Appends the records of `from` that fit, under their own numbers; `to` must be empty. */
void ring_copy(struct ring *to, const struct ring *from);

#endif
