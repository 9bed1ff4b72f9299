/* The broadcast ring: numbering, checks, and what an attaching writer makes of a predecessor's end.
 */
#include "shm/ring.h"

#include "shm/check.h"
#include "shm/words.h"
#include <assert.h>
#include <errno.h>

static const uint64_t ring_magic = 0x31474e4952575424; /* "$TWRING1" */

struct ring_head {
	_Alignas(RING_ALIGN) _Atomic uint64_t magic; /* stored last: 0 = no ring yet */
	_Atomic uint64_t records, record_size;
	_Alignas(RING_ALIGN) _Atomic uint64_t next; /* number of the record to be written next */
};
static_assert(sizeof(struct ring_head) == 2 * RING_ALIGN, "the number has its own line");

struct ring_slot {
	_Atomic uint64_t number; /* 0 while it is being written */
	_Atomic uint64_t check;  /* over number, length and the record */
	_Atomic uint64_t length; /* bytes as appended */
	_Atomic uint64_t record[];
};

static size_t padded(size_t size)
{
	return (size + 7) / 8 * 8;
}

static size_t slot_size(size_t record_size)
{
	return (sizeof(struct ring_slot) + padded(record_size) + RING_ALIGN - 1) / RING_ALIGN *
	       RING_ALIGN;
}

static struct ring_head *head_of(const struct ring *ring)
{
	return (struct ring_head *)ring->mem;
}

static struct ring_slot *slot_at(const struct ring *ring, uint64_t index)
{
	assert(index < ring->records);
	return (struct ring_slot *)(ring->mem + sizeof(struct ring_head) +
				    index * slot_size(ring->record_size));
}

static struct ring_slot *slot_of(const struct ring *ring, uint64_t number)
{
	return slot_at(ring, number % ring->records);
}

/* Of the zero-padded record, so that the words in the ring can be checked as they lie. */
static uint64_t check_of(uint64_t number, uint64_t length, const void *record)
{
	return shm_check(record, padded(length), number ^ length << 48);
}

size_t ring_size(uint64_t records, size_t record_size)
{
	assert(records > 0 && record_size > 0 && record_size <= RING_RECORD_MAX);
	return sizeof(struct ring_head) + records * slot_size(record_size);
}

static int ring_shape(struct ring *ret_ring, const void *mem, size_t size, size_t record_size)
{
	if ((uintptr_t)mem % RING_ALIGN != 0 || record_size == 0 || record_size > RING_RECORD_MAX ||
	    size < ring_size(1, record_size))
		return -EINVAL;
	*ret_ring = (struct ring){
		.mem = (uint8_t *)(uintptr_t)mem,
		.records = (size - sizeof(struct ring_head)) / slot_size(record_size),
		.record_size = record_size,
	};
	return 0;
}

/* 1 if the slot holds record `number` whole, judged by the writer, which nobody overtakes. */
static int slot_whole(const struct ring_slot *slot, size_t record_size)
{
	uint64_t length = word_get(&slot->length);

	return length <= record_size &&
	       word_get(&slot->check) ==
		       check_of(word_get(&slot->number), length, (const void *)slot->record);
}

/* Empties what is torn or out of place and returns the highest number found whole. */
static uint64_t ring_repair(struct ring *ring)
{
	uint64_t highest = 0;

	for (uint64_t i = 0; i < ring->records; i++) {
		struct ring_slot *slot = slot_at(ring, i);
		uint64_t number = word_get(&slot->number);

		if (number == 0)
			continue;
		if (number % ring->records != i || !slot_whole(slot, ring->record_size))
			word_set(&slot->number, 0);
		else if (number > highest)
			highest = number;
	}
	return highest;
}

static uint64_t ring_count_missing(const struct ring *ring)
{
	uint64_t missing = 0;

	for (uint64_t n = ring_first(ring); n < ring->next; n++)
		missing += word_get(&slot_of(ring, n)->number) != n;
	return missing;
}

int ring_attach(struct ring *ret_ring, void *mem, size_t size, size_t record_size,
		uint64_t *ret_dropped)
{
	struct ring_head *head = mem;
	struct ring ring;
	int r = ring_shape(&ring, mem, size, record_size);

	if (r < 0)
		return r;
	if (word_get(&head->magic) == 0) {
		r = ring_clear(&ring, mem, size, record_size, 1);
		assert(r == 0);
	} else if (word_get(&head->magic) != ring_magic ||
		   word_get(&head->records) != ring.records ||
		   word_get(&head->record_size) != ring.record_size) {
		return -EPROTO;
	}

	uint64_t highest = ring_repair(&ring), next = word_get(&head->next);

	/* A number is stored before `next` is: the last record may be whole and not yet counted. */
	ring.next = next > highest && next < UINT64_MAX / 2 ? next : highest + 1;
	ring.writable = 1;
	word_set(&head->next, ring.next);
	if (ret_dropped)
		*ret_dropped = ring_count_missing(&ring);
	*ret_ring = ring;
	return 0;
}

int ring_clear(struct ring *ret_ring, void *mem, size_t size, size_t record_size, uint64_t first)
{
	struct ring_head *head = mem;
	struct ring ring;
	int r = ring_shape(&ring, mem, size, record_size);

	assert(first > 0);
	if (r < 0)
		return r;
	word_set(&head->magic, 0);
	for (uint64_t i = 0; i < ring.records; i++)
		word_set(&slot_at(&ring, i)->number, 0);
	word_set(&head->records, ring.records);
	word_set(&head->record_size, ring.record_size);
	word_set(&head->next, first);
	word_set(&head->magic, ring_magic);
	ring.next = first;
	ring.writable = 1;
	*ret_ring = ring;
	return 0;
}

int ring_view(struct ring *ret_ring, const void *mem, size_t size)
{
	const struct ring_head *head = mem;
	struct ring ring;
	int r;

	if (size < sizeof(*head) || (uintptr_t)mem % RING_ALIGN != 0)
		return -EINVAL;
	if (word_get(&head->magic) != ring_magic)
		return -EPROTO;
	r = ring_shape(&ring, mem, size, word_get(&head->record_size));
	if (r < 0 || word_get(&head->records) > ring.records || word_get(&head->records) == 0)
		return -EPROTO;
	ring.records = word_get(&head->records);
	*ret_ring = ring;
	return 0;
}

static void append_as(struct ring *ring, uint64_t number, const void *record, size_t size)
{
	struct ring_slot *slot = slot_of(ring, number);

	word_set(&slot->number, 0);
	word_set(&slot->length, size);
	words_put(slot->record, record, size);
	/* Nobody else writes here, so the words as they lie are the record. */
	word_set(&slot->check, check_of(number, size, (const void *)slot->record));
	word_set(&slot->number, number);
	word_set(&head_of(ring)->next, number + 1);
	ring->next = number + 1;
}

uint64_t ring_append(struct ring *ring, const void *record, size_t size)
{
	uint64_t number = ring->next;

	assert(ring->writable && size <= ring->record_size);
	append_as(ring, number, record, size);
	return number;
}

uint64_t ring_last(const struct ring *ring)
{
	uint64_t next = word_get(&head_of(ring)->next);

	return next ? next - 1 : 0;
}

uint64_t ring_first(const struct ring *ring)
{
	uint64_t last = ring_last(ring);

	return last > ring->records ? last - ring->records + 1 : 1;
}

int ring_read(const struct ring *ring, uint64_t number, void *ret_record, size_t room,
	      size_t *ret_size)
{
	struct ring_slot *slot = slot_of(ring, number);
	uint64_t length, check, copy[RING_RECORD_MAX / 8];

	if (number == 0 || number > ring_last(ring) || word_get(&slot->number) != number)
		return -ENOENT;
	length = word_get(&slot->length);
	check = word_get(&slot->check);
	if (length > ring->record_size)
		return -ENOENT;
	words_get(copy, slot->record, padded(length));
	if (word_get(&slot->number) != number || check_of(number, length, copy) != check)
		return -ENOENT;
	if (length > room)
		return -EMSGSIZE;
	memcpy(ret_record, copy, length);
	if (ret_size)
		*ret_size = length;
	return 0;
}

int ring_next(const struct ring *ring, struct ring_cursor *cursor, void *ret_record, size_t room,
	      size_t *ret_size)
{
	uint64_t last = ring_last(ring), first = ring_first(ring);

	if (cursor->next == 0 || cursor->next > last + 1)
		cursor->next = first; /* new, or made for a ring that this one replaced */
	while (cursor->next <= last) {
		if (cursor->next < first) {
			cursor->lost += first - cursor->next;
			cursor->next = first;
		}

		int r = ring_read(ring, cursor->next, ret_record, room, ret_size);

		if (r == -EMSGSIZE)
			return r;
		cursor->next++;
		if (r == 0)
			return 1;
		cursor->lost++;
	}
	return 0;
}

int ring_find_last(const struct ring *ring,
		   int (*match)(void *ctx, const void *record, size_t size), void *ctx,
		   void *ret_record, size_t room, uint64_t *ret_number)
{
	uint64_t first = ring_first(ring);

	for (uint64_t n = ring_last(ring); n >= first; n--) {
		size_t size;

		if (ring_read(ring, n, ret_record, room, &size) < 0 ||
		    !match(ctx, ret_record, size))
			continue;
		if (ret_number)
			*ret_number = n;
		return 0;
	}
	return -ENOENT;
}

void ring_copy(struct ring *to, const struct ring *from)
{
	uint64_t last = ring_last(from), n = ring_first(from);
	uint64_t record[RING_RECORD_MAX / 8];
	size_t size;

	assert(to->writable);
	if (last >= n + to->records)
		n = last - to->records + 1;
	for (; n <= last; n++)
		if (ring_read(from, n, record, sizeof(record), &size) == 0 &&
		    size <= to->record_size)
			append_as(to, n, record, size);
	if (last >= to->next) {
		word_set(&head_of(to)->next, last + 1);
		to->next = last + 1;
	}
}
