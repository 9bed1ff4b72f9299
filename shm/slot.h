/*
 * A seqlock with two copies: one writer, any number of readers, none of which ever waits for
 * another.
 *
 * The writer fills copy[(seq + 1) & 1], the one nobody is told to read, and then stores seq + 1. A
 * reader copies copy[seq & 1] and accepts it if seq has not moved. So a writer killed at any
 * instruction leaves a whole snapshot behind, and its successor needs no repair: it just publishes.
 * Data are 64-bit words with release stores and acquire loads, no fences: ThreadSanitizer can judge
 * it.
 *
 * On x86-64 a reader of a small record takes it through vector registers instead, 16 bytes a load:
 * loads are not reordered there, a mixture is refused by seq as ever, and ThreadSanitizer's build
 * has the words.
 */
#ifndef TURNWARD_SHM_SLOT_H
#define TURNWARD_SHM_SLOT_H

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/words.h"

enum {
	SLOT_ALIGN = 128,           /* adjacent-line prefetch pulls pairs of 64-byte lines */
	SLOT_VALUE_MAX = 64 * 1024, /* bytes of one value; a reader copies it to its stack */
	SLOT_READ_TRIES = 15,       /* and one through registers; then the last good copy stays */
	SLOT_LINE = 64,             /* what one miss brings */
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

/* The current number, 0 = never published: a cheap "did it change" before a read. */
static inline uint64_t slot_seq(const struct slot_head *slot)
{
	return word_get(&slot->seq);
}

/* The copy that `seq` names, for a record of `size` bytes. */
static inline _Atomic uint64_t *slot_copy(const struct slot_head *slot, size_t size, uint64_t seq)
{
	const uint8_t *first = (const uint8_t *)slot + sizeof(struct slot_head);

	return (_Atomic uint64_t *)(uintptr_t)(first + (seq & 1) * SLOT_COPY_SIZE(size));
}

/* Asks for the number's line. All slots' first, then slot_prefetch_copy() of all, then the reads:
 * two misses for all together, one where the copy was guessed. */
static inline void slot_prefetch(const struct slot_head *slot)
{
	__builtin_prefetch(slot);
}

/* Asks for the lines of the copy that `seq` names: of the newest where that is known, else of the
 * likeliest, which is the one after that read last. */
static inline __attribute__((always_inline)) void slot_prefetch_copy(const struct slot_head *slot,
								     size_t size, uint64_t seq)
{
	const uint8_t *copy = (const uint8_t *)slot_copy(slot, size, seq);

	for (size_t at = 0; at < size; at += SLOT_LINE)
		__builtin_prefetch(copy + at);
}

#ifndef WORDS_ONLY
/* 16 bytes each: what the 16 registers of the oldest x86-64 hold. */
#define SLOT_LANES(X) \
	X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
typedef uint64_t slot_lane __attribute__((vector_size(16), may_alias));
typedef slot_lane slot_lane_anywhere __attribute__((aligned(8)));
enum { SLOT_LANE = sizeof(slot_lane), SLOT_WIDE_MAX = 16 * SLOT_LANE };

/*
 * One try, of a size that the compiler knows: nothing is stored before seq has been looked at
 * again, so there is no second copy. 1: read; 0: the writer came between.
 */
static inline __attribute__((always_inline)) int
slot_try_wide(const struct slot_head *slot, uint64_t seq, void *ret_value, const size_t size)
{
	const volatile slot_lane *from = (const volatile slot_lane *)slot_copy(slot, size, seq);
	slot_lane_anywhere *to = (slot_lane_anywhere *)ret_value;
	uint64_t rest = 0;

#define SLOT_LANE_GET(i) \
	const slot_lane lane##i = (i) < size / SLOT_LANE ? from[i] : (slot_lane){ 0 };
	SLOT_LANES(SLOT_LANE_GET)
#undef SLOT_LANE_GET
	if (size % SLOT_LANE)
		rest = *(const volatile uint64_t *)&from[size / SLOT_LANE];
	atomic_signal_fence(memory_order_acquire); /* all that the processor needs */
	if (atomic_load_explicit(&slot->seq, memory_order_relaxed) != seq)
		return 0;
#define SLOT_LANE_PUT(i)            \
	if ((i) < size / SLOT_LANE) \
		to[i] = lane##i;
	SLOT_LANES(SLOT_LANE_PUT)
#undef SLOT_LANE_PUT
	if (size % SLOT_LANE)
		memcpy(&to[size / SLOT_LANE], &rest, sizeof(rest));
	return 1;
}
#endif

/* slot_read() of a size that the compiler knows, in the caller's own code. */
static inline __attribute__((always_inline)) int
slot_read_fixed(const struct slot_head *slot, void *ret_value, const size_t size, uint64_t *ret_seq)
{
#ifndef WORDS_ONLY
	if (size <= SLOT_WIDE_MAX) {
		uint64_t seq = slot_seq(slot);

		/* What is rare (nothing there, another size, a writer between) is told apart there.
		 */
		if (seq == 0 || word_get(&slot->words) != size / 8 ||
		    !slot_try_wide(slot, seq, ret_value, size))
			return slot_read(slot, ret_value, size, ret_seq);
		if (ret_seq)
			*ret_seq = seq;
		return 0;
	}
#endif
	return slot_read(slot, ret_value, size, ret_seq);
}

/* The same with the shared form and the plain value: SLOT_PUBLISH(&file->state, &state). */
#define SLOT_PUBLISH(slot, value) slot_publish(&(slot)->head, (value), sizeof(*(value)))
#define SLOT_READ(slot, ret, ret_seq) \
	slot_read_fixed(&(slot)->head, (ret), sizeof(*(ret)), (ret_seq))

#endif
