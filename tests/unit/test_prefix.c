/* The prefix index agrees with a naive one, and survives its writer's end at any store. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "router/prefix/prefix.h"
#include "shm/step.h"
#include "tests/lib/unit.h"

enum { ENGINES = 3, ROOM = 4096, LONGEST = 400, USUAL = 120, KILLS = 120 };

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

/* A family of prompts: the blocks up to `fork` are the family's, the rest the member's own. */
static void prompt(uint64_t family, uint64_t member, uint32_t fork, uint32_t n, uint64_t *ret_chain)
{
	uint64_t hash = mix(family + 77);

	for (uint32_t d = 0; d < n; d++) {
		hash = mix(hash + (d < fork ? 1 : member * 1000 + 2));
		ret_chain[d] = hash;
	}
}

static uint8_t *mem;
static size_t size;
static struct prefix_index idx;

static int set_up(void **state)
{
	size = prefix_size(ENGINES, ROOM);
	mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED)
		return -1;
	return prefix_attach(&idx, mem, size, ENGINES, ROOM);
}

static int tear_down(void **state)
{
	return munmap(mem, size);
}

static struct prefix_stats stats_of(uint32_t engine)
{
	struct prefix_stats stats;

	assert_int_equal(prefix_stats(&idx, engine, &stats), 0);
	return stats;
}

static void what_was_inserted_is_matched_as_far_as_it_goes(void **state)
{
	uint64_t chain[LONGEST], other[LONGEST];

	prompt(1, 1, 100, 300, chain);
	prompt(1, 2, 100, 400, other);
	prefix_insert(&idx, 1, chain, 300);

	for (uint32_t n = 0; n <= 300; n++)
		assert_int_equal(prefix_match(&idx, 1, chain, n), n);
	assert_int_equal(prefix_match(&idx, 1, other, 400), 100);
	assert_int_equal(prefix_match(&idx, 0, chain, 300), 0);
	assert_int_equal(stats_of(1).live, 300);
}

static void all_engines_at_once_answer_as_each_alone(void **state)
{
	uint64_t chain[LONGEST];
	uint32_t all[ENGINES];

	prompt(1, 1, 0, LONGEST, chain);
	prefix_insert(&idx, 0, chain, 37);
	prefix_insert(&idx, 2, chain, LONGEST);
	for (uint32_t n = 0; n <= LONGEST; n++) {
		prefix_match_all(&idx, ENGINES, chain, n, NULL, all);
		assert_int_equal(all[0], n < 37 ? n : 37);
		assert_int_equal(all[1], 0);
		assert_int_equal(all[2], n);
	}
}

static void the_least_recent_prompt_goes_first_and_its_tail_before_its_head(void **state)
{
	uint64_t a[100], b[100], c[100];

	prompt(1, 1, 0, 100, a);
	prompt(2, 1, 0, 100, b);
	prompt(3, 1, 0, 100, c);
	prefix_set_capacity(&idx, 0, 250);
	prefix_insert(&idx, 0, a, 100);
	prefix_insert(&idx, 0, b, 100);
	prefix_insert(&idx, 0, a, 100);
	prefix_insert(&idx, 0, c, 100);

	assert_int_equal(prefix_match(&idx, 0, a, 100), 100);
	assert_int_equal(prefix_match(&idx, 0, b, 100), 50);
	assert_int_equal(prefix_match(&idx, 0, c, 100), 100);
	assert_int_equal(stats_of(0).live, 250);
	assert_int_equal(stats_of(0).evicted, 50);
}

static void a_turn_keeps_its_session_s_older_blocks_young(void **state)
{
	uint64_t session[300], noise[60];

	prompt(1, 1, 0, 300, session);
	prefix_set_capacity(&idx, 0, 400);
	for (uint32_t turn = 1; turn <= 30; turn++) {
		prefix_insert(&idx, 0, session, turn * 10);
		prompt(100 + turn, 1, 0, 60, noise);
		prefix_insert(&idx, 0, noise, 60);
		assert_int_equal(prefix_match(&idx, 0, session, 300), turn * 10);
	}
}

static void a_prompt_longer_than_the_cache_leaves_its_head(void **state)
{
	uint64_t chain[LONGEST];

	prompt(1, 1, 0, LONGEST, chain);
	prefix_set_capacity(&idx, 0, 150);
	prefix_insert(&idx, 0, chain, LONGEST);

	assert_int_equal(prefix_match(&idx, 0, chain, LONGEST), 150);
	assert_int_equal(stats_of(0).live, 150);
}

static void a_lowered_capacity_holds_from_the_next_insert_on(void **state)
{
	uint64_t a[200], b[10];

	prompt(1, 1, 0, 200, a);
	prompt(2, 1, 0, 10, b);
	prefix_insert(&idx, 0, a, 200);
	prefix_set_capacity(&idx, 0, 60);
	prefix_insert(&idx, 0, b, 10);

	assert_int_equal(prefix_match(&idx, 0, a, 200), 50);
	assert_int_equal(prefix_match(&idx, 0, b, 10), 10);
}

static void a_restarted_engine_has_no_prefix_but_a_late_epoch_costs_nothing(void **state)
{
	uint64_t chain[100];

	prompt(1, 1, 0, 100, chain);
	prefix_insert(&idx, 0, chain, 100);
	prefix_insert(&idx, 1, chain, 100);

	assert_int_equal(prefix_set_epoch(&idx, 0, 11), 0); /* the first agent's word */
	assert_int_equal(prefix_match(&idx, 0, chain, 100), 100);
	assert_int_equal(prefix_set_epoch(&idx, 0, 0), 0); /* no agent any more */
	assert_int_equal(prefix_set_epoch(&idx, 0, 11), 0);
	assert_int_equal(prefix_match(&idx, 0, chain, 100), 100);
	assert_int_equal(prefix_set_epoch(&idx, 0, 12), 1);
	assert_int_equal(prefix_match(&idx, 0, chain, 100), 0);
	assert_int_equal(prefix_match(&idx, 1, chain, 100), 100);
	assert_int_equal(stats_of(0).live, 0);
	prefix_insert(&idx, 0, chain, 60);
	assert_int_equal(prefix_match(&idx, 0, chain, 100), 60);
}

static void an_engine_s_correction_cuts_the_prompt_and_what_hangs_below(void **state)
{
	uint64_t turn[300], other[100];

	prompt(1, 1, 0, 300, turn);
	prompt(1, 2, 0, 100, other);
	prefix_insert(&idx, 0, turn, 300);
	prefix_insert(&idx, 0, other, 100);
	prefix_truncate(&idx, 0, turn, 200, 120); /* the prompt was shorter than what is known */

	assert_int_equal(prefix_match(&idx, 0, turn, 300), 120);
	assert_int_equal(prefix_match(&idx, 0, other, 100), 100);
	assert_int_equal(stats_of(0).live, 220);
	assert_int_equal(stats_of(0).truncated, 180);
	prefix_insert(&idx, 0, turn, 300);
	assert_int_equal(prefix_match(&idx, 0, turn, 300), 300);
}

static void capacity_errs_on_the_high_side(void **state)
{
	assert_int_equal(prefix_blocks_of(0, 4), PREFIX_BLOCKS_UNKNOWN);
	assert_true(prefix_blocks_of(454000, 4.5) >= 454000 * 4.5 / 512);
	assert_true(prefix_blocks_of(454000, 0) > prefix_blocks_of(454000, 4.0));
	assert_int_equal(prefix_blocks_of(UINT64_MAX, 4), PREFIX_BLOCKS_MAX);
	assert_true(prefix_blocks_of(1, 1e9) < 10);
}

static void another_shape_is_refused_and_left_alone(void **state)
{
	struct prefix_index other = { 0 };
	uint64_t chain[50];

	prompt(1, 1, 0, 50, chain);
	prefix_insert(&idx, 0, chain, 50);

	assert_int_equal(prefix_attach(&other, mem, size, ENGINES, ROOM / 2), -EPROTO);
	assert_int_equal(prefix_attach(&other, mem, size - 1, ENGINES, ROOM), -EINVAL);
	assert_int_equal(prefix_attach(&other, mem + 8, size - 8, 1, ROOM / 4), -EINVAL);
	assert_int_equal(prefix_attach(&other, mem, size, PREFIX_ENGINES_MAX + 1, 1), -EINVAL);
	assert_null(other.section);
	assert_int_equal(prefix_view(&other, mem, size), 0);
	assert_int_equal(prefix_match(&other, 0, chain, 50), 50);
	assert_int_equal(prefix_stats(&other, ENGINES, &(struct prefix_stats){ 0 }), -EINVAL);
	assert_int_equal(prefix_clear(&other, mem, size, ENGINES, ROOM), 0);
	assert_int_equal(prefix_match(&other, 0, chain, 50), 0);
}

static void a_successor_finds_what_its_predecessor_left(void **state)
{
	struct prefix_index next;
	struct prefix_stats before, after;
	uint64_t chain[200];

	prompt(1, 1, 0, 200, chain);
	prefix_set_epoch(&idx, 2, 7);
	prefix_set_capacity(&idx, 2, 1000);
	prefix_insert(&idx, 2, chain, 200);
	before = stats_of(2);
	assert_int_equal(prefix_attach(&next, mem, size, ENGINES, ROOM), 0);
	prefix_stats(&next, 2, &after);

	assert_memory_equal(&before, &after, sizeof(before));
	assert_int_equal(prefix_match(&next, 2, chain, 200), 200);
}

/* ---- against a naive index: a list of blocks, each with its last insert ---- */

static struct naive {
	struct {
		uint64_t hash, stamp;
		uint32_t depth;
	} block[ROOM + LONGEST];
	uint32_t n, capacity;
	uint64_t stamp;
} naive;

static int naive_find(uint64_t hash)
{
	for (uint32_t i = 0; i < naive.n; i++)
		if (naive.block[i].hash == hash)
			return (int)i;
	return -1;
}

static void naive_drop(uint32_t i)
{
	naive.block[i] = naive.block[--naive.n];
}

static void naive_drop_first(void)
{
	uint32_t v = 0;

	for (uint32_t i = 1; i < naive.n; i++)
		if (naive.block[i].stamp < naive.block[v].stamp ||
		    (naive.block[i].stamp == naive.block[v].stamp &&
		     naive.block[i].depth > naive.block[v].depth))
			v = i;
	naive_drop(v);
}

static void naive_insert(const uint64_t *chain, uint32_t n)
{
	n = n < naive.capacity ? n : naive.capacity;
	naive.stamp++;
	for (uint32_t d = 0; d < n; d++) {
		int at = naive_find(chain[d]);

		if (at < 0)
			at = (int)naive.n++;
		naive.block[at].hash = chain[d];
		naive.block[at].depth = d;
		naive.block[at].stamp = naive.stamp;
	}
	while (naive.n > naive.capacity)
		naive_drop_first();
}

static uint32_t naive_match(const uint64_t *chain, uint32_t n)
{
	uint32_t d = 0;

	while (d < n && naive_find(chain[d]) >= 0)
		d++;
	return d;
}

static void naive_truncate(const uint64_t *chain, uint32_t n, uint32_t from)
{
	for (uint32_t d = from; d < n; d++) {
		int at = naive_find(chain[d]);
		uint64_t stamp = at < 0 ? 0 : naive.block[at].stamp;

		for (uint32_t i = 0; stamp && i < naive.n; i++)
			if (naive.block[i].stamp == stamp && naive.block[i].depth >= from)
				naive_drop(i--);
	}
}

static uint32_t random_prompt(unsigned *seed, uint64_t *ret_chain)
{
	uint64_t family = (uint64_t)rand_r(seed) % 6, member = (uint64_t)rand_r(seed) % 4;
	uint32_t fork = (uint32_t)rand_r(seed) % 4 * 25, n = 1 + (uint32_t)rand_r(seed) % USUAL;

	prompt(family, member, fork, USUAL, ret_chain);
	return n;
}

/* Whatever depth the search begins at: right, near, far, none. */
static void assert_matched_from(unsigned *seed, const uint64_t *chain, uint32_t n, uint32_t held)
{
	const uint32_t depths[] = { held,
				    held + 1,
				    held ? held - 1 : 0,
				    held + 3,
				    (uint32_t)rand_r(seed) % (USUAL + 9),
				    PREFIX_NOT_KNOWN };

	for (unsigned i = 0; i < sizeof(depths) / sizeof(depths[0]); i++) {
		uint16_t known[ENGINES] = { (uint16_t)depths[i] };
		uint32_t all[ENGINES];

		prefix_prefetch(&idx, ENGINES, chain, n, known);
		prefix_match_all(&idx, ENGINES, chain, n, known, all);
		assert_int_equal(all[0], held);
		assert_int_equal(all[1], 0);
	}
}

static void the_depths_of_a_session_are_kept_until_another_takes_the_place(void **state)
{
	uint32_t blocks[ENGINES] = { 3, 0, 900 };
	struct prefix_known known;
	uint64_t other = 8;
	void *place = aligned_alloc(PREFIX_KNOWN_ALIGN, prefix_known_size(ENGINES));

	memset(place, 0, prefix_known_size(ENGINES));
	prefix_known_init(&known, place, ENGINES);
	assert_null(prefix_known_find(&known, 7));
	prefix_known_landed(&known, 7, 1, 5); /* of a session that is not there */
	assert_null(prefix_known_find(&known, 7));
	prefix_known_note(&known, 7, blocks);
	prefix_known_landed(&known, 7, 1, 950);
	assert_int_equal(prefix_known_find(&known, 7)[0], 3);
	assert_int_equal(prefix_known_find(&known, 7)[1], 950);
	assert_int_equal(prefix_known_find(&known, 7)[2], 900);
	for (; prefix_known_find(&known, 7); other++)
		prefix_known_note(&known, other, blocks);
	assert_true(other > 8 + PREFIX_KNOWN / 100);
	free(place);
}

static void it_agrees_with_a_naive_index_over_random_histories(void **state)
{
	uint64_t chain[LONGEST];
	unsigned seed = 5;

	naive = (struct naive){ .capacity = 700 };
	prefix_set_capacity(&idx, 0, 700);
	for (int round = 0; round < 3000; round++) {
		uint32_t n = random_prompt(&seed, chain), what = (uint32_t)rand_r(&seed) % 20;

		if (what == 0) { /* the report comes with the first token, when all is there */
			uint32_t from = (uint32_t)rand_r(&seed) % USUAL;

			prefix_truncate(&idx, 0, chain, USUAL, from);
			naive_truncate(chain, USUAL, from);
			assert_true(prefix_match(&idx, 0, chain, USUAL) <= from);
			prefix_insert(&idx, 0, chain, USUAL);
			naive_insert(chain, USUAL);
		} else if (what == 1 && round % 7 == 0) {
			prefix_reset(&idx, 0);
			naive.n = 0;
		} else if (what < 14) {
			prefix_insert(&idx, 0, chain, n);
			naive_insert(chain, n);
		}
		n = random_prompt(&seed, chain);
		assert_int_equal(prefix_match(&idx, 0, chain, n), naive_match(chain, n));
		assert_matched_from(&seed, chain, n, naive_match(chain, n));
		assert_int_equal(stats_of(0).live, naive.n);
	}
	assert_int_equal(stats_of(0).displaced, 0);
	assert_true(stats_of(0).evicted > 10000);
}

static void a_full_index_misjudges_hardly_any_prompt(void **state)
{
	uint64_t chain[LONGEST];
	uint32_t wrong = 0, prompts = 0;

	prefix_set_capacity(&idx, 0, ROOM);
	for (uint64_t round = 0; round < 20000; round++) {
		prompt(round, 1, 0, 64, chain);
		prefix_insert(&idx, 0, chain, 64);
		if (round < ROOM / 64)
			continue;
		prompt(round - (ROOM / 64 - 1), 1, 0, 64,
		       chain); /* the oldest that must be whole */
		wrong += prefix_match(&idx, 0, chain, 64) != 64;
		prompts++;
		/* The one before has gone, but for as many blocks as others have lost. */
		prompt(round - ROOM / 64, 1, 0, 64, chain);
		assert_true(prefix_match(&idx, 0, chain, 64) < 10);
	}
	assert_true(wrong < prompts / 100);
	assert_true(stats_of(0).displaced > 0);
}

static void stamps_that_come_round_revive_nothing(void **state)
{
	uint64_t old[20], chain[1];

	prompt(1, 1, 0, 20, old);
	prefix_insert(&idx, 0, old, 20);
	for (uint64_t i = 0; i < (1 << 18) + 10; i++) {
		prompt(1000 + i, 1, 0, 1, chain);
		prefix_insert(&idx, 0, chain, 1);
		if (i > ROOM)
			assert_int_equal(prefix_match(&idx, 0, old, 20), 0);
	}
}

static void random_bytes_are_survived(void **state)
{
	uint64_t chain[LONGEST];
	unsigned seed = 9;

	for (int round = 0; round < 60; round++) {
		for (size_t i = 128; i < size; i++) /* the shape in front stays */
			mem[i] = (uint8_t)rand_r(&seed);
		assert_int_equal(prefix_attach(&idx, mem, size, ENGINES, ROOM), 0);
		for (uint32_t e = 0; e < ENGINES; e++) {
			prompt(1, (uint64_t)round, 0, 50, chain);
			assert_int_equal(prefix_match(&idx, e, chain, 50), 0);
			prefix_insert(&idx, e, chain, 50);
			assert_int_equal(prefix_match(&idx, e, chain, 50),
					 stats_of(e).capacity < 50 ? stats_of(e).capacity : 50);
		}
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

/* One operation that ends after `steps` stores. 1 = finished. */
static int operate(uint32_t what, const uint64_t *chain, uint32_t n, int steps)
{
	steps_left = steps;
	shm_step_hook = abandon;
	if (setjmp(out)) {
		shm_step_hook = NULL;
		return 0;
	}
	if (what == 0)
		prefix_truncate(&idx, 0, chain, n, n / 2);
	else if (what == 1)
		prefix_reset(&idx, 0);
	else
		prefix_insert(&idx, 0, chain, n);
	shm_step_hook = NULL;
	return 1;
}

static void assert_books_are_right(uint32_t engine)
{
	struct prefix_stats stats = stats_of(engine), again;

	assert_int_equal(prefix_attach(&idx, mem, size, ENGINES, ROOM), 0);
	again = stats_of(engine);
	assert_int_equal(stats.live, again.live);
}

static void a_writer_that_ends_at_any_store_costs_only_what_it_was_at(void **state)
{
	uint64_t kept[60], chain[LONGEST], never[50];
	unsigned seed = 3;
	uint32_t killed = 0;

	prefix_set_capacity(&idx, 0, 500);
	prompt(999, 1, 0, 50, never);
	for (uint64_t round = 0; round < 4000; round++) {
		uint32_t n = random_prompt(&seed, chain), what = (uint32_t)rand_r(&seed) % 20;

		prompt(1000 + round, 1, 0, 60, kept);
		prefix_insert(&idx, 0, kept, 60);
		killed += !operate(what, chain, n, (int)((uint32_t)rand_r(&seed) % (4 * n)));
		assert_int_equal(prefix_attach(&idx, mem, size, ENGINES, ROOM), 0);

		if (what != 1)
			assert_int_equal(prefix_match(&idx, 0, kept, 60), 60);
		assert_int_equal(prefix_match(&idx, 0, never, 50), 0);
		assert_true(stats_of(0).live <= 500 + n);
		for (int i = 0; i < 3; i++) {
			n = random_prompt(&seed, chain);
			prefix_insert(&idx, 0, chain, n);
			assert_int_equal(prefix_match(&idx, 0, chain, n), n);
			assert_true(stats_of(0).live <= 500);
		}
		assert_books_are_right(0);
	}
	assert_true(killed > 2000);
}

static void write_for_ever(unsigned seed, _Atomic uint32_t *done)
{
	uint64_t chain[LONGEST];

	for (;; ++*done) {
		uint32_t n = random_prompt(&seed, chain), what = (uint32_t)rand_r(&seed) % 30;
		uint32_t engine = (uint32_t)rand_r(&seed) % ENGINES;

		if (what == 0)
			prefix_truncate(&idx, engine, chain, n, n / 3);
		else if (what == 1)
			prefix_set_epoch(&idx, engine, 1 + (uint64_t)rand_r(&seed) % 3);
		else
			prefix_insert(&idx, engine, chain, n);
	}
}

/* Starts a writer and kills it while it is at work. */
static void write_and_die(unsigned *seed, _Atomic uint32_t *done)
{
	pid_t pid = fork();

	*done = 0;
	if (pid == 0)
		write_for_ever((unsigned)rand_r(seed), done);
	assert_true(pid > 0);
	while (*done == 0)
		sched_yield();
	nanosleep(&(struct timespec){ .tv_nsec = rand_r(seed) % 500000 }, NULL);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void writers_that_are_killed_leave_an_index_that_works(void **state)
{
	uint64_t chain[LONGEST], never[50];
	unsigned seed = 17;
	_Atomic uint32_t *done = mmap(NULL, sizeof(*done), PROT_READ | PROT_WRITE,
				      MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	prompt(999, 1, 0, 50, never);
	for (uint32_t e = 0; e < ENGINES; e++)
		prefix_set_capacity(&idx, e, 600);
	for (unsigned round = 0; round < KILLS; round++) {
		write_and_die(&seed, done);
		assert_int_equal(prefix_attach(&idx, mem, size, ENGINES, ROOM), 0);
		for (uint32_t e = 0; e < ENGINES; e++) {
			uint32_t n = random_prompt(&seed, chain);

			assert_int_equal(prefix_match(&idx, e, never, 50), 0);
			assert_true(stats_of(e).live <= 600 + USUAL);
			prefix_insert(&idx, e, chain, n);
			assert_int_equal(prefix_match(&idx, e, chain, n), n);
			assert_books_are_right(e);
		}
	}
	munmap((void *)done, sizeof(*done));
}

static void a_reader_beside_a_busy_writer_is_never_led_astray(void **state)
{
	uint64_t chain[LONGEST], never[50];
	struct prefix_index view;
	unsigned seed = 23;
	uint64_t hits = 0;
	_Atomic uint32_t *done = mmap(NULL, sizeof(*done), PROT_READ | PROT_WRITE,
				      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid = fork();

	if (pid == 0)
		write_for_ever(5, done);
	assert_true(pid > 0);
	prompt(999, 1, 0, 50, never);
	assert_int_equal(prefix_view(&view, mem, size), 0);
	while (*done < 3000) {
		uint32_t all[ENGINES], n = random_prompt(&seed, chain);

		prefix_match_all(&view, ENGINES, chain, n, NULL, all);
		for (uint32_t e = 0; e < ENGINES; e++) {
			assert_true(all[e] <= n);
			assert_int_equal(prefix_match(&view, e, never, 50), 0);
			hits += all[e] > 0;
		}
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	munmap((void *)done, sizeof(*done));
	assert_true(hits > 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(what_was_inserted_is_matched_as_far_as_it_goes),
		TEST(all_engines_at_once_answer_as_each_alone),
		TEST(the_least_recent_prompt_goes_first_and_its_tail_before_its_head),
		TEST(a_turn_keeps_its_session_s_older_blocks_young),
		TEST(a_prompt_longer_than_the_cache_leaves_its_head),
		TEST(a_lowered_capacity_holds_from_the_next_insert_on),
		TEST(a_restarted_engine_has_no_prefix_but_a_late_epoch_costs_nothing),
		TEST(an_engine_s_correction_cuts_the_prompt_and_what_hangs_below),
		TEST(capacity_errs_on_the_high_side),
		TEST(another_shape_is_refused_and_left_alone),
		TEST(a_successor_finds_what_its_predecessor_left),
		TEST(the_depths_of_a_session_are_kept_until_another_takes_the_place),
		TEST(it_agrees_with_a_naive_index_over_random_histories),
		TEST(a_full_index_misjudges_hardly_any_prompt),
		TEST(stamps_that_come_round_revive_nothing),
		TEST(random_bytes_are_survived),
		TEST(a_writer_that_ends_at_any_store_costs_only_what_it_was_at),
		TEST(writers_that_are_killed_leave_an_index_that_works),
		TEST(a_reader_beside_a_busy_writer_is_never_led_astray),
	};

	return cmocka_run_group_tests_name("prefix", tests, NULL, NULL);
}
