/* The slot: what a reader gets, what a killed writer leaves, and no torn snapshot under load. */
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "shm/slot.h"
#include "shm/step.h"
#include "tests/lib/unit.h"

enum { WORDS = 31 };

struct value {
	uint64_t w[WORDS];
};

/* Every word follows from the first: a mixture of two values cannot pass. */
static struct value value_of(uint64_t seed)
{
	struct value v = { .w[0] = seed };

	for (int i = 1; i < WORDS; i++)
		v.w[i] = v.w[i - 1] * 6364136223846793005 + (uint64_t)i;
	return v;
}

static int value_whole(const struct value *v)
{
	struct value want = value_of(v->w[0]);

	return memcmp(&want, v, sizeof(want)) == 0;
}

static SLOT(struct value) slot;

static int set_up(void **state)
{
	memset(&slot, 0, sizeof(slot));
	return 0;
}

static void nothing_is_read_before_the_first_publish(void **state)
{
	struct value got = value_of(7);

	assert_int_equal(SLOT_READ(&slot, &got, NULL), -ENODATA);
	assert_int_equal(got.w[0], 7);
	assert_int_equal(slot_seq(&slot.head), 0);
}

static void the_newest_value_is_read_and_numbered(void **state)
{
	struct value got;
	uint64_t seq, again;

	for (uint64_t i = 1; i < 100; i++) {
		struct value v = value_of(i);

		SLOT_PUBLISH(&slot, &v);

		assert_int_equal(SLOT_READ(&slot, &got, &seq), 0);
		assert_int_equal(got.w[0], i);
		assert_true(value_whole(&got));
		assert_int_equal(SLOT_READ(&slot, &got, &again), 0);
		assert_int_equal(again, seq);
		assert_int_equal(slot_seq(&slot.head), seq);
	}
}

static void a_reader_of_another_size_is_refused(void **state)
{
	struct value v = value_of(1);
	uint64_t got[WORDS + 1] = { 5 };

	SLOT_PUBLISH(&slot, &v);

	assert_int_equal(slot_read(&slot.head, got, sizeof(got), NULL), -EPROTO);
	assert_int_equal(got[0], 5);
}

/* By registers up to 256 bytes, by way of the stack beyond. */
#define WIDTH_CHECK(words)                                                             \
	static void width_check_##words(void)                                          \
	{                                                                              \
		struct wide {                                                          \
			uint64_t w[words];                                             \
		} v, got[2] = { { { 0 } } };                                           \
		static SLOT(struct wide) wide;                                         \
		for (uint64_t n = 1; n < 4; n++) {                                     \
			for (int i = 0; i < (words); i++)                              \
				v.w[i] = n * 1000 + (uint64_t)i;                       \
			SLOT_PUBLISH(&wide, &v);                                       \
			assert_int_equal(SLOT_READ(&wide, &got[0], NULL), 0);          \
			assert_memory_equal(&got[0], &v, sizeof(v));                   \
			assert_int_equal(got[1].w[0], 0); /* nothing beyond its end */ \
		}                                                                      \
	}
#define WIDTHS(X) X(1) X(2) X(3) X(15) X(30) X(31) X(32) X(33) X(100)
WIDTHS(WIDTH_CHECK)

static void a_value_of_any_width_is_read_whole_and_no_further(void **state)
{
#define WIDTH_CALL(words) width_check_##words();
	WIDTHS(WIDTH_CALL)
#undef WIDTH_CALL
}

static void the_copies_and_the_number_share_no_line(void **state)
{
	assert_int_equal((uintptr_t)&slot.copy[0] % SLOT_ALIGN, 0);
	assert_int_equal((uintptr_t)&slot.copy[1] % SLOT_ALIGN, 0);
	assert_true((uintptr_t)&slot.copy[0] - (uintptr_t)&slot >= SLOT_ALIGN);
	assert_int_equal(sizeof(slot), SLOT_SIZE(sizeof(struct value)));
}

/* ---- a writer that ends at any store, without a process: the hook jumps out of it ---- */

static jmp_buf out;
static int steps_left;

static void abandon(void)
{
	if (steps_left-- == 0)
		longjmp(out, 1);
}

/* Returns 1 if the publish ran to its end before `steps` stores were done. */
static int publish_abandoned(uint64_t seed, int steps)
{
	struct value v = value_of(seed);

	steps_left = steps;
	shm_step_hook = abandon;
	if (setjmp(out) == 0) {
		SLOT_PUBLISH(&slot, &v);
		shm_step_hook = NULL;
		return 1;
	}
	shm_step_hook = NULL;
	return 0;
}

static void
a_writer_killed_at_any_store_leaves_the_last_value_and_its_successor_publishes(void **state)
{
	int steps = 0;

	for (;; steps++) {
		struct value before = value_of(1000 + (uint64_t)steps), got;

		SLOT_PUBLISH(&slot, &before);

		int finished = publish_abandoned(5, steps);

		assert_int_equal(SLOT_READ(&slot, &got, NULL), 0);
		assert_true(value_whole(&got));
		/* The last store is the number: abandoned after it, the new value is out. */
		assert_true(got.w[0] == before.w[0] || (got.w[0] == 5 && steps >= WORDS));

		struct value after = value_of(9);

		SLOT_PUBLISH(&slot, &after);
		assert_int_equal(SLOT_READ(&slot, &got, NULL), 0);
		assert_int_equal(got.w[0], 9);
		if (finished)
			break;
	}
	assert_int_equal(steps, WORDS + 1); /* the hook saw every store */
}

/* ---- writer and readers at full speed; also the test that ThreadSanitizer judges ---- */

enum { PUBLISHES = 200000, READERS = 2 };
static _Atomic int writing;

static void *write_fast(void *arg)
{
	for (uint64_t i = 1; i <= PUBLISHES; i++) {
		struct value v = value_of(i);

		SLOT_PUBLISH(&slot, &v);
	}
	atomic_store(&writing, 0);
	return NULL;
}

/* Returns how many reads were torn or went back in time. */
static void *read_fast(void *arg)
{
	uint64_t wrong = 0, last = 0, seq = 0, last_seq = 0;
	struct value got = { 0 };

	while (atomic_load(&writing)) {
		if (SLOT_READ(&slot, &got, &seq) < 0)
			continue;
		wrong += !value_whole(&got) || got.w[0] < last || seq < last_seq || got.w[0] != seq;
		last = got.w[0];
		last_seq = seq;
	}
	return (void *)(uintptr_t)wrong;
}

static void no_snapshot_is_torn_or_older_than_the_one_before(void **state)
{
	pthread_t writer, reader[READERS];

	atomic_store(&writing, 1);
	for (int i = 0; i < READERS; i++)
		assert_int_equal(pthread_create(&reader[i], NULL, read_fast, NULL), 0);
	assert_int_equal(pthread_create(&writer, NULL, write_fast, NULL), 0);

	pthread_join(writer, NULL);
	for (int i = 0; i < READERS; i++) {
		void *wrong;

		pthread_join(reader[i], &wrong);
		assert_int_equal((uintptr_t)wrong, 0);
	}
	assert_int_equal(slot_seq(&slot.head), PUBLISHES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(nothing_is_read_before_the_first_publish, set_up),
		cmocka_unit_test_setup(the_newest_value_is_read_and_numbered, set_up),
		cmocka_unit_test_setup(a_reader_of_another_size_is_refused, set_up),
		cmocka_unit_test(a_value_of_any_width_is_read_whole_and_no_further),
		cmocka_unit_test_setup(the_copies_and_the_number_share_no_line, set_up),
		cmocka_unit_test_setup(
			a_writer_killed_at_any_store_leaves_the_last_value_and_its_successor_publishes,
			set_up),
		cmocka_unit_test_setup(no_snapshot_is_torn_or_older_than_the_one_before, set_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
