/* Publishing and reading a slot: the only code that touches a record two processes share. */
#include "shm/slot.h"

#include <errno.h>

#ifdef SHM_STEP_HOOK
void (*shm_step_hook)(void);
#endif

void slot_publish(struct slot_head *slot, const void *value, size_t size)
{
	uint64_t seq = atomic_load_explicit(&slot->seq, memory_order_relaxed);

	assert(size > 0 && size % 8 == 0);
	if (atomic_load_explicit(&slot->words, memory_order_relaxed) != size / 8)
		word_set(&slot->words, size / 8);
	words_put(slot_copy(slot, size, seq + 1), value, size);
	word_set(&slot->seq, seq + 1);
}

/* Copies to `copy` until the writer did not come between; then to the caller. */
static inline int read_through(const struct slot_head *slot, uint64_t *copy, void *ret_value,
			       size_t size, uint64_t *ret_seq)
{
	for (int i = 0; i < SLOT_READ_TRIES; i++) {
		uint64_t seq = word_get(&slot->seq);

		if (seq == 0)
			return -ENODATA;
		if (word_get(&slot->words) != size / 8)
			return -EPROTO;
		words_get(copy, slot_copy(slot, size, seq), size);
		/* Not reordered before the loads of the data: these are acquire loads. */
		if (atomic_load_explicit(&slot->seq, memory_order_relaxed) != seq)
			continue;
		memcpy(ret_value, copy, size);
		if (ret_seq)
			*ret_seq = seq;
		return 0;
	}
	return -EAGAIN;
}

/* Apart, so that the frame of a decision's reads stays within warm pages. */
static __attribute__((noinline)) int read_large(const struct slot_head *slot, void *ret_value,
						size_t size, uint64_t *ret_seq)
{
	uint64_t copy[SLOT_VALUE_MAX / 8];

	return read_through(slot, copy, ret_value, size, ret_seq);
}

int slot_read(const struct slot_head *slot, void *ret_value, size_t size, uint64_t *ret_seq)
{
	uint64_t copy[512 / 8];

	assert(size > 0 && size % 8 == 0 && size <= SLOT_VALUE_MAX);
	if (size > sizeof(copy))
		return read_large(slot, ret_value, size, ret_seq);
	return read_through(slot, copy, ret_value, size, ret_seq);
}
