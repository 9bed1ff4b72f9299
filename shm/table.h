/*
 * A set-associative table in memory that outlives its writer: sessions, response ids, learnt
 * ratios.
 *
 * Buckets of 8 ways, 64-bit keys, one payload size, least recently stamped way evicted. There are
 * no links and no pointers, so whatever bytes lie there every look-up ends. Each entry carries a
 * checksum over key, generation and payload: a writer killed at any instruction loses at most the
 * entry it was writing, which attaching drops. One writer; readers in other processes copy and
 * check.
 */
#ifndef TURNWARD_SHM_TABLE_H
#define TURNWARD_SHM_TABLE_H

#include <stddef.h>
#include <stdint.h>

enum {
	TABLE_WAYS = 8,
	TABLE_ALIGN = 64,         /* of the memory given to it */
	TABLE_PAYLOAD_MAX = 4096, /* bytes of an entry; a multiple of 8 */
	TABLE_READ_TRIES = 16,
};

/* A process's own view. `writable` only in the one that attached as writer. */
struct table {
	uint8_t *mem;
	uint64_t buckets;
	size_t payload; /* bytes */
	int writable;
	uint64_t used;    /* entries; the writer's count, 0 for readers */
	uint64_t evicted; /* by table_put() since attaching */
};

/* Bytes of memory for at least `entries` entries of `payload` bytes each. */
size_t table_size(uint64_t entries, size_t payload);

/*
 * Attaches as the writer to `size` bytes. All-zero memory becomes an empty table; else every entry
 * is checked and the torn ones are dropped, ret_dropped (may be NULL) says how many. -EPROTO if the
 * memory holds a table of another shape (nothing is changed then: table_clear() or a copy is the
 * way out); -EINVAL for memory too small or unaligned.
 */
int table_attach(struct table *ret_table, void *mem, size_t size, size_t payload,
		 uint64_t *ret_dropped);

/* Attaches for table_read() and table_next() only; the memory may be mapped read-only. */
int table_view(struct table *ret_table, const void *mem, size_t size, size_t payload);

/* Makes the memory an empty table, whatever it held, and attaches as its writer. */
int table_clear(struct table *ret_table, void *mem, size_t size, size_t payload);

/*
 * The writer's look-up: the payload in place, or NULL. A stamp other than 0 becomes the entry's age
 * stamp (any clock that only grows). Valid until the next put or erase. Keys are hashes, never 0.
 */
const void *table_find(struct table *table, uint64_t key, uint64_t stamp);

/*
 * Stores a copy of the payload, in the place of the same key, else an empty way, else the way with
 * the oldest stamp. Returns the stored payload; ret_evicted (may be NULL) receives the key that had
 * to go or 0. Never fails.
 */
const void *table_put(struct table *table, uint64_t key, uint64_t stamp, const void *payload,
		      uint64_t *ret_evicted);

/* 1 if there was such an entry, 0 if not. */
int table_erase(struct table *table, uint64_t key);

/* Any process: begins to fetch what a look-up of this key will read first; and, once that is there,
 * the rest. */
void table_prefetch(const struct table *table, uint64_t key);
void table_prefetch_entry(const struct table *table, uint64_t key);

/* Any process: 0 with a whole, checked copy; -ENOENT; -EAGAIN if the entry kept changing or is
 * torn. The writer checked them all when it attached and copies at once. */
int table_read(const struct table *table, uint64_t key, void *ret_payload, uint64_t *ret_stamp);

/*
 * Any process: walks the entries, `*cursor` from 0; 1 with a checked copy, 0 at the end. Entries
 * put during the walk may or may not be seen; none is seen torn. ret_payload and ret_stamp may be
 * NULL.
 */
int table_next(const struct table *table, uint64_t *cursor, uint64_t *ret_key, uint64_t *ret_stamp,
	       void *ret_payload);

/* Puts every entry of `from` (same payload size) into `to`; of too many the youngest stay. */
void table_copy(struct table *to, const struct table *from);

#endif
