/* The broadcast ring: numbering, slow readers, and a writer that ends in mid-record. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "shm/ring.h"
#include "shm/step.h"
#include "tests/lib/unit.h"

enum { RECORDS = 16, RECORD_SIZE = 100 };

static uint8_t *mem;
static size_t size;
static struct ring ring;

static int set_up(void **state)
{
	size = ring_size(RECORDS, RECORD_SIZE);
	mem = aligned_alloc(RING_ALIGN, size);
	memset(mem, 0, size);
	return ring_attach(&ring, mem, size, RECORD_SIZE, NULL);
}

static int tear_down(void **state)
{
	free(mem);
	return 0;
}

/* A record of a length and content that follow from `n`. */
static size_t record_of(uint64_t n, uint8_t ret_record[RECORD_SIZE])
{
	size_t length = 9 + n % (RECORD_SIZE - 8);

	memcpy(ret_record, &n, 8);
	for (size_t i = 8; i < length; i++)
		ret_record[i] = (uint8_t)(n * 31 + i * 7);
	return length;
}

static void append(uint64_t n)
{
	uint8_t record[RECORD_SIZE];
	size_t length = record_of(n, record);

	assert_int_equal(ring_append(&ring, record, length), n);
}

static int record_whole(const uint8_t *got, size_t length)
{
	uint8_t want[RECORD_SIZE];
	uint64_t n;

	memcpy(&n, got, 8);
	return length == record_of(n, want) && memcmp(got, want, length) == 0;
}

static void records_come_in_order_with_their_numbers(void **state)
{
	struct ring_cursor cursor = { 0 };
	uint8_t got[RECORD_SIZE];
	size_t length;

	assert_int_equal(ring_last(&ring), 0);
	assert_int_equal(ring_next(&ring, &cursor, got, sizeof(got), &length), 0);
	for (uint64_t n = 1; n <= 10; n++)
		append(n);
	for (uint64_t n = 1; n <= 10; n++) {
		assert_int_equal(ring_next(&ring, &cursor, got, sizeof(got), &length), 1);
		assert_true(record_whole(got, length));
		assert_int_equal(cursor.next, n + 1);
	}

	assert_int_equal(ring_next(&ring, &cursor, got, sizeof(got), &length), 0);
	assert_int_equal(cursor.lost, 0);
}

static void a_slow_reader_counts_what_it_missed(void **state)
{
	struct ring_cursor cursor = { .next = 1 };
	uint8_t got[RECORD_SIZE];
	uint64_t seen = 0;

	for (uint64_t n = 1; n <= 100; n++)
		append(n);
	while (ring_next(&ring, &cursor, got, sizeof(got), NULL) == 1)
		seen++;

	assert_int_equal(seen, RECORDS);
	assert_int_equal(cursor.lost, 100 - RECORDS);
	assert_int_equal(ring_read(&ring, 84, got, sizeof(got), NULL), -ENOENT);
	assert_int_equal(ring_read(&ring, 85, got, sizeof(got), NULL), 0);
	assert_int_equal(ring_read(&ring, 101, got, sizeof(got), NULL), -ENOENT);
}

static void a_cursor_of_a_ring_that_was_replaced_begins_anew(void **state)
{
	struct ring_cursor cursor = { .next = 5000 };
	uint8_t got[RECORD_SIZE];

	append(1);

	assert_int_equal(ring_next(&ring, &cursor, got, sizeof(got), NULL), 1);
	assert_int_equal(cursor.next, 2);
}

static void too_little_room_is_said_and_nothing_skipped(void **state)
{
	struct ring_cursor cursor = { 0 };
	uint8_t got[RECORD_SIZE];
	size_t length;

	append(1);

	assert_int_equal(ring_next(&ring, &cursor, got, 4, &length), -EMSGSIZE);
	assert_int_equal(ring_next(&ring, &cursor, got, sizeof(got), &length), 1);
}

static int number_is(void *ctx, const void *record, size_t length)
{
	return memcmp(record, ctx, 8) == 0;
}

static void the_last_match_is_found_backwards(void **state)
{
	uint64_t want = 90, gone = 3, number;
	uint8_t got[RECORD_SIZE];

	for (uint64_t n = 1; n <= 100; n++)
		append(n);

	assert_int_equal(ring_find_last(&ring, number_is, &want, got, sizeof(got), &number), 0);
	assert_int_equal(number, 90);
	assert_int_equal(ring_find_last(&ring, number_is, &gone, got, sizeof(got), &number),
			 -ENOENT);
}

static void a_successor_goes_on_with_the_numbers(void **state)
{
	uint64_t dropped = 9;

	for (uint64_t n = 1; n <= 40; n++)
		append(n);

	assert_int_equal(ring_attach(&ring, mem, size, RECORD_SIZE, &dropped), 0);
	assert_int_equal(dropped, 0);
	append(41);
	assert_int_equal(ring_attach(&ring, mem, size, RECORD_SIZE + 200, NULL), -EPROTO);
}

/* Killed between the record's number and the ring's: the record is whole and stays. */
static void a_whole_record_that_was_not_yet_counted_is_kept(void **state)
{
	uint64_t next, dropped;

	for (uint64_t n = 1; n <= 5; n++)
		append(n);
	memcpy(&next, mem + 64, 8);
	assert_int_equal(next, 6);
	next = 5;
	memcpy(mem + 64, &next, 8);

	assert_int_equal(ring_attach(&ring, mem, size, RECORD_SIZE, &dropped), 0);
	assert_int_equal(dropped, 0);
	assert_int_equal(ring_last(&ring), 5);
	append(6);
}

static void a_grown_ring_keeps_records_and_numbers(void **state)
{
	size_t more = ring_size(RECORDS * 4, RECORD_SIZE * 2);
	uint8_t *to_mem = aligned_alloc(RING_ALIGN, more), got[RECORD_SIZE];
	struct ring to;
	size_t length;

	for (uint64_t n = 1; n <= 100; n++)
		append(n);
	memset(to_mem, 0, more);
	assert_int_equal(ring_attach(&to, to_mem, more, RECORD_SIZE * 2, NULL), 0);
	ring_copy(&to, &ring);

	assert_int_equal(ring_last(&to), 100);
	assert_int_equal(ring_read(&to, 84, got, sizeof(got), NULL), -ENOENT);
	for (uint64_t n = 85; n <= 100; n++) {
		assert_int_equal(ring_read(&to, n, got, sizeof(got), &length), 0);
		assert_true(record_whole(got, length));
	}
	assert_int_equal(ring_append(&to, got, 8), 101);
	free(to_mem);
}

static jmp_buf out;
static int steps_left;

static void abandon(void)
{
	if (steps_left-- == 0)
		longjmp(out, 1);
}

/* 1 if the record was appended whole, 0 if the writer ended after `steps` stores. */
static int append_abandoned(uint64_t number, int steps)
{
	uint8_t record[RECORD_SIZE];
	size_t length = record_of(number, record);

	steps_left = steps;
	shm_step_hook = abandon;
	if (setjmp(out)) {
		shm_step_hook = NULL;
		return 0;
	}
	ring_append(&ring, record, length);
	shm_step_hook = NULL;
	return 1;
}

static void a_writer_that_ends_at_any_store_loses_one_record_at_most(void **state)
{
	unsigned seed = 5;
	struct ring_cursor cursor = { 0 };
	uint64_t abandoned = 0, seen = 0;

	for (int round = 0; round < 3000; round++) {
		uint64_t number = ring.next, dropped;
		uint8_t got[RECORD_SIZE];
		size_t length;

		abandoned += !append_abandoned(number, rand_r(&seed) % 20);
		while (ring_next(&ring, &cursor, got, sizeof(got), &length) == 1) {
			assert_true(record_whole(got, length));
			seen++;
		}
		assert_int_equal(ring_attach(&ring, mem, size, RECORD_SIZE, &dropped), 0);
		/* The one under the pen; that number's place held the oldest record. */
		assert_true(dropped <= 1);
		assert_true(ring.next == number || ring.next == number + 1);
		append(ring.next);
	}
	assert_true(abandoned > 1000);
	while (ring_next(&ring, &cursor, (uint8_t[RECORD_SIZE]){ 0 }, RECORD_SIZE, NULL) == 1)
		seen++;
	assert_int_equal(cursor.lost, 0); /* the reader kept up: it missed none that was numbered */
	assert_int_equal(seen, ring_last(&ring));
}

static void random_bytes_are_survived(void **state)
{
	unsigned seed = 11;

	for (int round = 0; round < 500; round++) {
		struct ring_cursor cursor = { 0 };
		struct ring view;
		uint8_t got[RECORD_SIZE];
		size_t length, seen = 0;

		free(mem);
		set_up(NULL);
		for (uint64_t n = 1; n <= 40; n++)
			append(n);
		for (int i = 0; i < 1 + round; i++)
			mem[128 + (unsigned)rand_r(&seed) % (size - 128)] = (uint8_t)rand_r(&seed);

		assert_int_equal(ring_view(&view, mem, size), 0);
		while (ring_next(&view, &cursor, got, sizeof(got), &length) == 1) {
			assert_true(record_whole(got, length));
			seen++;
		}
		assert_true(seen <= RECORDS);
		assert_int_equal(seen + cursor.lost, RECORDS);
		assert_int_equal(ring_attach(&ring, mem, size, RECORD_SIZE, NULL), 0);
		append(ring.next);
	}
}

enum { APPENDS = 100000 };
static _Atomic int writing;

static void *append_fast(void *arg)
{
	for (uint64_t n = 1; n <= APPENDS; n++) {
		uint8_t record[RECORD_SIZE];

		ring_append(&ring, record, record_of(n, record));
	}
	atomic_store(&writing, 0);
	return NULL;
}

/* Seen and lost add up to what was written, and nothing seen is torn. */
static void a_reader_beside_a_fast_writer_sees_whole_records_and_counts_the_rest(void **state)
{
	struct ring_cursor cursor = { .next = 1 };
	uint64_t seen = 0, torn = 0;
	uint8_t got[RECORD_SIZE];
	struct ring view;
	size_t length;
	pthread_t writer;
	int more;

	assert_int_equal(ring_view(&view, mem, size), 0);
	atomic_store(&writing, 1);
	assert_int_equal(pthread_create(&writer, NULL, append_fast, NULL), 0);
	do {
		more = atomic_load(&writing);
		while (ring_next(&view, &cursor, got, sizeof(got), &length) == 1) {
			seen++;
			torn += !record_whole(got, length);
		}
	} while (more);
	pthread_join(writer, NULL);

	assert_int_equal(torn, 0);
	assert_int_equal(seen + cursor.lost, APPENDS);
	assert_true(seen > 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(records_come_in_order_with_their_numbers),
		TEST(a_slow_reader_counts_what_it_missed),
		TEST(a_cursor_of_a_ring_that_was_replaced_begins_anew),
		TEST(too_little_room_is_said_and_nothing_skipped),
		TEST(the_last_match_is_found_backwards),
		TEST(a_successor_goes_on_with_the_numbers),
		TEST(a_whole_record_that_was_not_yet_counted_is_kept),
		TEST(a_grown_ring_keeps_records_and_numbers),
		TEST(a_writer_that_ends_at_any_store_loses_one_record_at_most),
		TEST(random_bytes_are_survived),
		TEST(a_reader_beside_a_fast_writer_sees_whole_records_and_counts_the_rest),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
