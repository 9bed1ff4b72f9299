/*
 * A seqlock with two copies: one writer, any number of readers, none of which ever waits for
 * another.
 *
 * The writer fills copy[(seq + 1) & 1], the one nobody is told to read, and then stores seq + 1. A
 * reader copies copy[seq & 1] and accepts it if seq has not moved. So a writer killed at any
 * instruction leaves a whole snapshot behind, and its successor needs no repair: it just publishes.
 * Data are 64-bit words with release stores and acquire loads, no fences: ThreadSanitizer can judge
 * it.
 */
#ifndef TURNWARD_SHM_SLOT_H
#define TURNWARD_SHM_SLOT_H

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum {
	SLOT_ALIGN = 128,           /* adjacent-line prefetch pulls pairs of 64-byte lines */
	SLOT_VALUE_MAX = 64 * 1024, /* bytes of one value; a reader copies it to its stack */
	SLOT_READ_TRIES = 16,       /* then the caller keeps its last good copy */
};

struct slot_head {
	_Alignas(SLOT_ALIGN) _Atomic uint64_t seq; /* 0 = never published */
	_Atomic uint64_t words; /* of one copy: a reader of another size is told -EPROTO */
};
static_assert(sizeof(struct slot_head) == SLOT_ALIGN, "the counter has its own line");

/* Bytes of one copy of `size` payload bytes, padded so that the two copies share no line. */
#define SLOT_COPY_SIZE(size) (((size) + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN)
#define SLOT_SIZE(size)      (sizeof(struct slot_head) + 2 * SLOT_COPY_SIZE(size))

/* Declares the shared form of a plain struct whose size is a multiple of 8. */
#define SLOT(type)                                                          \
	struct {                                                            \
		struct slot_head head;                                      \
		_Atomic uint64_t copy[2][SLOT_COPY_SIZE(sizeof(type)) / 8]; \
	}

/* Publishes `size` bytes (multiple of 8). Only the holder of the file's lock may call it. */
void slot_publish(struct slot_head *slot, const void *value, size_t size);

/*
 * Copies the newest snapshot to ret_value. 0; -ENODATA if nothing was ever published; -EAGAIN if
 * the writer overtook SLOT_READ_TRIES times. On failure ret_value is untouched: the caller's last
 * good copy stays. ret_seq may be NULL; equal numbers mean an unchanged snapshot.
 */
int slot_read(const struct slot_head *slot, void *ret_value, size_t size, uint64_t *ret_seq);

/* The same with the shared form and the plain value: SLOT_PUBLISH(&file->state, &state). */
#define SLOT_PUBLISH(slot, value)     slot_publish(&(slot)->head, (value), sizeof(*(value)))
#define SLOT_READ(slot, ret, ret_seq) slot_read(&(slot)->head, (ret), sizeof(*(ret)), (ret_seq))

/* The current number, 0 = never published: a cheap "did it change" before a read. */
static inline uint64_t slot_seq(const struct slot_head *slot)
{
	return atomic_load_explicit(&slot->seq, memory_order_acquire);
}

#endif
