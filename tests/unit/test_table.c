/* The table: it finds what was put, gives way to the young, and survives its writer's end anywhere.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "shm/step.h"
#include "shm/table.h"
#include "tests/lib/unit.h"

enum { ENTRIES = 512, WORDS = 9, PAYLOAD = WORDS * 8 };

struct payload {
	uint64_t w[WORDS];
};

static struct payload payload_of(uint64_t key, uint64_t version)
{
	struct payload p = { .w[0] = key, .w[1] = version };

	for (int i = 2; i < WORDS; i++)
		p.w[i] = p.w[i - 1] * 2862933555777941757 + p.w[i - 2];
	return p;
}

static int payload_whole(const struct payload *p, uint64_t key)
{
	struct payload want = payload_of(p->w[0], p->w[1]);

	return p->w[0] == key && memcmp(&want, p, sizeof(want)) == 0;
}

static uint8_t *mem;
static size_t size;
static struct table table;

static int set_up(void **state)
{
	size = table_size(ENTRIES, PAYLOAD);
	mem = aligned_alloc(TABLE_ALIGN, size);
	memset(mem, 0, size);
	return table_attach(&table, mem, size, PAYLOAD, NULL);
}

static int tear_down(void **state)
{
	free(mem);
	return 0;
}

static void put(uint64_t key, uint64_t stamp, uint64_t version, uint64_t *ret_evicted)
{
	struct payload p = payload_of(key, version);
	const struct payload *stored = table_put(&table, key, stamp, &p, ret_evicted);

	assert_memory_equal(stored, &p, sizeof(p));
}

/* A look-up of every kind agrees that `key` is there with `version`. */
static void assert_there(uint64_t key, uint64_t version)
{
	const struct payload *found = table_find(&table, key, 0);
	struct payload got;

	assert_non_null(found);
	assert_int_equal(found->w[1], version);
	assert_int_equal(table_read(&table, key, &got, NULL), 0);
	assert_true(payload_whole(&got, key));
	assert_int_equal(got.w[1], version);
}

static void what_was_put_is_found_replaced_and_erased(void **state)
{
	uint64_t evicted;
	struct payload got = payload_of(1, 1);

	put(42, 1, 7, &evicted);
	assert_int_equal(evicted, 0);
	assert_there(42, 7);
	put(42, 2, 8, &evicted);
	assert_int_equal(evicted, 0);
	assert_there(42, 8);
	assert_int_equal(table.used, 1);
	assert_null(table_find(&table, 43, 0));
	assert_int_equal(table_read(&table, 43, &got, NULL), -ENOENT);
	assert_int_equal(got.w[0], 1);

	assert_int_equal(table_erase(&table, 42), 1);
	assert_int_equal(table_erase(&table, 42), 0);
	assert_null(table_find(&table, 42, 0));
	assert_int_equal(table.used, 0);
}

/* All keys fall into one bucket of a table that has one. */
static void the_oldest_stamp_gives_way_and_a_look_up_makes_young(void **state)
{
	size_t small = table_size(1, PAYLOAD);
	uint64_t evicted;

	memset(mem, 0, small);
	assert_int_equal(table_attach(&table, mem, small, PAYLOAD, NULL), 0);
	for (uint64_t key = 1; key <= TABLE_WAYS; key++)
		put(key, 10 + key, 0, NULL);
	assert_non_null(table_find(&table, 1, 100)); /* 1 was the oldest; now 2 is */

	put(99, 101, 0, &evicted);

	assert_int_equal(evicted, 2);
	assert_int_equal(table.evicted, 1);
	assert_int_equal(table.used, TABLE_WAYS);
	assert_there(1, 0);
	assert_there(99, 0);
	assert_null(table_find(&table, 2, 0));
}

static void another_shape_is_refused_and_left_alone(void **state)
{
	struct table other;

	put(5, 1, 1, NULL);

	assert_int_equal(table_attach(&other, mem, size, PAYLOAD + 8, NULL), -EPROTO);
	assert_int_equal(table_attach(&other, mem, size / 2, PAYLOAD, NULL), -EPROTO);
	assert_int_equal(table_view(&other, mem, size, PAYLOAD - 8), -EPROTO);
	assert_int_equal(table_attach(&other, mem + 8, size - 64, PAYLOAD, NULL), -EINVAL);
	assert_int_equal(table_attach(&other, mem, 100, PAYLOAD, NULL), -EINVAL);
	assert_there(5, 1);
	assert_int_equal(table_clear(&other, mem, size, PAYLOAD + 8), 0);
	assert_int_equal(other.used, 0);
}

static void walking_meets_every_entry_once(void **state)
{
	uint64_t cursor = 0, key, stamp, seen = 0, sum = 0;
	struct payload got;

	for (uint64_t k = 1; k <= 100; k++)
		put(k, k, k, NULL);
	while (table_next(&table, &cursor, &key, &stamp, &got)) {
		assert_true(payload_whole(&got, key));
		assert_int_equal(stamp, key);
		seen++;
		sum += key;
	}

	assert_int_equal(seen, table.used);
	assert_int_equal(sum, 5050);
}

static void a_copy_into_a_smaller_table_keeps_the_youngest(void **state)
{
	size_t small = table_size(1, PAYLOAD);
	uint8_t *to_mem = aligned_alloc(TABLE_ALIGN, small);
	struct table to;

	for (uint64_t k = 1; k <= 60; k++)
		put(k, 1000 - k, k, NULL);
	memset(to_mem, 0, small);
	assert_int_equal(table_attach(&to, to_mem, small, PAYLOAD, NULL), 0);

	table_copy(&to, &table);

	assert_int_equal(to.used, TABLE_WAYS);
	for (uint64_t k = 1; k <= TABLE_WAYS; k++)
		assert_non_null(table_find(&to, k, 0));
	free(to_mem);
}

static void damaged_entries_are_dropped_and_counted_at_attach(void **state)
{
	struct payload *found;
	uint64_t dropped = 99;

	for (uint64_t k = 1; k <= 100; k++)
		put(k, k, k, NULL);
	for (uint64_t k = 1; k <= 30; k++) {
		found = (void *)(uintptr_t)table_find(&table, k * 3, 0);
		found->w[k % WORDS] ^= 1ull << (k + 20);
	}

	struct payload got;
	struct table view;

	assert_int_equal(table_view(&view, mem, size, PAYLOAD), 0);
	assert_int_equal(table_read(&view, 3, &got, NULL), -EAGAIN);
	assert_int_equal(table_attach(&table, mem, size, PAYLOAD, &dropped), 0);
	assert_int_equal(dropped, 30);
	assert_int_equal(table.used, 70);
	assert_null(table_find(&table, 3, 0));
	assert_there(4, 4);
}

/* Whatever the bytes: attach refuses or repairs, every look-up ends, nothing is found that is torn.
 */
static void random_bytes_are_survived(void **state)
{
	unsigned seed = 1;

	for (int round = 0; round < 200; round++) {
		uint64_t cursor = 0, key, walked = 0;
		struct payload got;

		free(mem);
		set_up(NULL);
		for (uint64_t k = 1; k <= 200; k++)
			put(k, k, k, NULL);
		for (int i = 0; i < 1 + round * 8; i++)
			mem[64 + (unsigned)rand_r(&seed) % (size - 64)] = (uint8_t)rand_r(&seed);

		struct table view;

		assert_int_equal(table_view(&view, mem, size, PAYLOAD), 0);
		for (uint64_t k = 1; k <= 300; k++)
			if (table_read(&view, k, &got, NULL) == 0)
				assert_true(payload_whole(&got, k));
		assert_int_equal(table_attach(&table, mem, size, PAYLOAD, NULL), 0);
		while (table_next(&table, &cursor, &key, NULL, &got)) {
			assert_true(payload_whole(&got, key));
			walked++;
		}
		assert_int_equal(walked, table.used);
		put(7, 7, 77, NULL);
		assert_there(7, 77);
	}
}

/* ---- the writer ends at a store ---- */

static jmp_buf out;
static int steps_left;

static void abandon(void)
{
	if (steps_left-- == 0)
		longjmp(out, 1);
}

/* One random put or erase that ends after `steps` stores; ret_key: the key it was at. 1 = finished.
 */
static int operate(unsigned *seed, int steps, uint64_t version, uint64_t *ret_key)
{
	uint64_t key = 1 + (uint64_t)rand_r(seed) % (ENTRIES * 2);
	struct payload p = payload_of(key, version);
	int erase = rand_r(seed) % 8 == 0;

	*ret_key = key;
	steps_left = steps;
	shm_step_hook = abandon;
	if (setjmp(out)) {
		shm_step_hook = NULL;
		return 0;
	}
	if (erase)
		table_erase(&table, key);
	else
		table_put(&table, key, version, &p, NULL);
	shm_step_hook = NULL;
	return 1;
}

static void a_writer_that_ends_at_any_store_loses_one_entry_at_most(void **state)
{
	unsigned seed = 3;
	uint64_t killed = 0, lost = 0;

	for (uint64_t round = 1; round < 4000; round++) {
		uint64_t key, dropped, before;

		for (int i = 0; i < 3; i++)
			operate(&seed, 1000, round, &key);
		before = table.used;
		killed += !operate(&seed, rand_r(&seed) % (WORDS + 6), round, &key);

		assert_int_equal(table_attach(&table, mem, size, PAYLOAD, &dropped), 0);
		assert_true(dropped <= 1);
		assert_true(table.used + 1 >= before && table.used <= before + 1);
		lost += dropped;

		const struct payload *found = table_find(&table, key, 0);

		assert_true(!found || payload_whole(found, key));
	}
	assert_true(killed > 2000);
	assert_true(lost > 0); /* overwriting a key in place is where one is torn */
}

/* ---- a reader beside the writer, for ThreadSanitizer to judge as well ---- */

enum { PUTS = 100000 };
static _Atomic int writing;

static void *put_fast(void *arg)
{
	unsigned seed = 9;

	for (uint64_t i = 1; i <= PUTS; i++) {
		uint64_t key = 1 + (uint64_t)rand_r(&seed) % (ENTRIES * 2);
		struct payload p = payload_of(key, i);

		table_put(&table, key, i, &p, NULL);
	}
	atomic_store(&writing, 0);
	return NULL;
}

static void what_a_reader_gets_beside_a_fast_writer_is_whole(void **state)
{
	uint64_t found = 0, torn = 0;
	unsigned seed = 10;
	struct payload got;
	struct table view;
	pthread_t writer;

	assert_int_equal(table_view(&view, mem, size, PAYLOAD), 0);
	atomic_store(&writing, 1);
	assert_int_equal(pthread_create(&writer, NULL, put_fast, NULL), 0);
	while (atomic_load(&writing) || found == 0) {
		uint64_t key = 1 + (uint64_t)rand_r(&seed) % (ENTRIES * 2);

		if (table_read(&view, key, &got, NULL) < 0)
			continue;
		found++;
		torn += !payload_whole(&got, key);
	}
	pthread_join(writer, NULL);

	assert_int_equal(torn, 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(what_was_put_is_found_replaced_and_erased),
		TEST(the_oldest_stamp_gives_way_and_a_look_up_makes_young),
		TEST(another_shape_is_refused_and_left_alone),
		TEST(walking_meets_every_entry_once),
		TEST(a_copy_into_a_smaller_table_keeps_the_youngest),
		TEST(damaged_entries_are_dropped_and_counted_at_attach),
		TEST(random_bytes_are_survived),
		TEST(a_writer_that_ends_at_any_store_loses_one_entry_at_most),
		TEST(what_a_reader_gets_beside_a_fast_writer_is_whole),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
