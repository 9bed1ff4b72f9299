/* Writers that are killed for real, thousands of times, under readers that check every copy. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shm/files.h"
#include "shm/step.h"
#include "shm/table.h"
#include "tests/lib/unit.h"

enum {
	/* A fork costs much more under a sanitizer. */
	SLOT_KILLS = TEST_SANITIZED ? 500 : 10000,
	MEMORY_KILLS = TEST_SANITIZED ? 200 : 3000,
};

/* What supervisor, writers and reader tell each other. */
struct control {
	_Atomic uint64_t done;   /* operations of all writers so far */
	_Atomic uint64_t errors; /* of writers: an invariant that did not hold after attaching */
	_Atomic uint64_t dropped;
	_Atomic uint64_t reads, torn, backwards;
	_Atomic uint64_t seen, lost;
	_Atomic int stop;
};

static struct control *control;
static char directory[64];
static struct region region;
static char error[REGION_ERROR_MAX];

static int set_up(void **state)
{
	snprintf(directory, sizeof(directory), "/dev/shm/turnward-test-XXXXXX");
	if (!mkdtemp(directory))
		return -1;
	control = mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);
	return region_open(&region, directory, 1, error);
}

static void remove_one(void *ctx, const char *name)
{
	unlinkat(region.dir_fd, name, 0);
}

static int tear_down(void **state)
{
	region_list(&region, "", remove_one, NULL);
	region_close(&region);
	munmap(control, sizeof(*control));
	return rmdir(directory);
}

static pid_t start(void (*body)(void))
{
	pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* a claim that fails leaves nobody behind */
		body();
		_exit(0);
	}
	assert_true(pid > 0);
	return pid;
}

static void sleep_us(long us)
{
	nanosleep(&(struct timespec){ .tv_nsec = us * 1000 }, NULL);
}

static int reap(pid_t pid)
{
	int status = 0;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static int steps_left;

static void die_at_step(void)
{
	if (steps_left-- == 0)
		kill(getpid(), SIGKILL);
}

/*
 * Ends writers with SIGKILL: three of four by themselves at a random store, which is certain to be
 * amid a write, every fourth by us at a random moment.
 */
static void kill_writers(void (*writer)(void), int times)
{
	unsigned seed = 17;

	for (int i = 0; i < times; i++) {
		uint64_t before = atomic_load(&control->done);
		int by_us = i % 4 == 0;

		steps_left = by_us ? -1 : rand_r(&seed) % 300;
		shm_step_hook = die_at_step;

		pid_t pid = start(writer);

		shm_step_hook = NULL;
		if (by_us) {
			while (atomic_load(&control->done) == before &&
			       atomic_load(&control->errors) == 0)
				sleep_us(20);
			sleep_us(rand_r(&seed) % 40);
			kill(pid, SIGKILL);
		}
		assert_true(WIFSIGNALED(reap(pid)));
	}
}

static void stop_reader(pid_t reader)
{
	atomic_store(&control->stop, 1);
	assert_int_equal(reap(reader), 0);
}

/* ---- slot: agents killed while they publish ---- */

enum { STATE_WORDS = sizeof(struct engine_state) / 8 };

static struct engine_state state_of(uint64_t seed)
{
	uint64_t w[STATE_WORDS] = { seed };
	struct engine_state s;

	for (int i = 1; i < STATE_WORDS; i++)
		w[i] = w[i - 1] * 6364136223846793005 + 1;
	memcpy(&s, w, sizeof(s));
	return s;
}

static void publish_for_ever(void)
{
	struct engine_file file;

	if (engine_file_hold(&file, &region, "gpu0", error) < 0) {
		atomic_fetch_add(&control->errors, 1);
		return;
	}
	for (;;) {
		struct engine_state s = state_of(atomic_load(&control->done) + 1);

		engine_file_publish(&file, &s);
		atomic_fetch_add(&control->done, 1);
	}
}

static void check_states(void)
{
	struct engine_file file;
	struct engine_state got, want;
	uint64_t last = 0;

	while (engine_file_attach(&file, &region, "gpu0", error) < 0)
		sleep_us(100);
	while (!atomic_load(&control->stop)) {
		sleep_us(20);
		for (int i = 0; i < 50; i++) {
			if (engine_file_read(&file, &got, NULL) < 0)
				continue;
			want = state_of(got.present);
			atomic_fetch_add(&control->reads, 1);
			if (memcmp(&got, &want, sizeof(got)) != 0)
				atomic_fetch_add(&control->torn, 1);
			if (got.present < last)
				atomic_fetch_add(&control->backwards, 1);
			last = got.present;
		}
	}
	/* The file is the one of the first writer: successors re-attached it. */
	if (region_file_moved(&region, &file.file))
		atomic_fetch_add(&control->errors, 1);
}

static void killed_agents_tear_no_read_and_their_successors_publish_in_the_same_file(void **state)
{
	struct engine_file file;
	struct engine_state got, last = state_of(UINT64_MAX);
	pid_t reader = start(check_states);

	kill_writers(publish_for_ever, SLOT_KILLS);
	stop_reader(reader);

	assert_int_equal(atomic_load(&control->errors), 0);
	assert_int_equal(atomic_load(&control->torn), 0);
	assert_int_equal(atomic_load(&control->backwards), 0);
	assert_true(atomic_load(&control->reads) > (uint64_t)SLOT_KILLS);
	assert_int_equal(engine_file_hold(&file, &region, "gpu0", error), 0);
	assert_int_equal(file.file.fresh, 0);
	/* A few died before they had signed the header. */
	uint64_t generation = ((struct region_header *)file.file.map)->generation;

	assert_true(generation <= SLOT_KILLS + 1 && generation > SLOT_KILLS * 9 / 10);
	engine_file_publish(&file, &last);
	assert_int_equal(engine_file_read(&file, &got, NULL), 0);
	assert_memory_equal(&got, &last, sizeof(got));
	engine_file_drop(&file);
}

/* ---- table ---- */

enum { ENTRIES = 256, PAYLOAD_WORDS = 12 };

static uint8_t *memory;
static size_t memory_size;

static void payload_of(uint64_t key, uint64_t version, uint64_t ret_payload[PAYLOAD_WORDS])
{
	ret_payload[0] = key;
	ret_payload[1] = version;
	for (int i = 2; i < PAYLOAD_WORDS; i++)
		ret_payload[i] = ret_payload[i - 1] * 2862933555777941757 + ret_payload[i - 2];
}

static int payload_whole(const uint64_t *payload, uint64_t key)
{
	uint64_t want[PAYLOAD_WORDS];

	payload_of(key, payload[1], want);
	return memcmp(want, payload, sizeof(want)) == 0;
}

/* Everything the walk meets must be whole, and as many as the table counts. */
static void check_table(const struct table *table)
{
	uint64_t cursor = 0, key, n = 0, payload[PAYLOAD_WORDS];

	while (table_next(table, &cursor, &key, NULL, payload)) {
		n++;
		if (!payload_whole(payload, key))
			atomic_fetch_add(&control->errors, 1);
	}
	if (n != table->used)
		atomic_fetch_add(&control->errors, 1);
}

static void change_table_for_ever(void)
{
	uint64_t dropped = 0, payload[PAYLOAD_WORDS];
	unsigned seed = (unsigned)atomic_load(&control->done);
	struct table table;

	if (table_attach(&table, memory, memory_size, sizeof(payload), &dropped) < 0 || dropped > 1)
		atomic_fetch_add(&control->errors, 1);
	atomic_fetch_add(&control->dropped, dropped);
	check_table(&table);
	for (;;) {
		uint64_t version = atomic_load(&control->done) + 1;
		uint64_t key = 1 + (uint64_t)rand_r(&seed) % (2 * ENTRIES);

		payload_of(key, version, payload);
		if (rand_r(&seed) % 8)
			table_put(&table, key, version, payload, NULL);
		else
			table_erase(&table, key);
		atomic_store(&control->done, version);
	}
}

static void read_table(void)
{
	uint64_t payload[PAYLOAD_WORDS];
	unsigned seed = 3;
	struct table table;

	while (table_view(&table, memory, memory_size, sizeof(payload)) < 0)
		sleep_us(100);
	while (!atomic_load(&control->stop)) {
		sleep_us(20);
		for (int i = 0; i < 50; i++) {
			uint64_t key = 1 + (uint64_t)rand_r(&seed) % (2 * ENTRIES);

			if (table_read(&table, key, payload, NULL) < 0)
				continue;
			atomic_fetch_add(&control->reads, 1);
			if (!payload_whole(payload, key))
				atomic_fetch_add(&control->torn, 1);
		}
	}
}

static void map_memory(size_t size)
{
	memory_size = size;
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(memory != MAP_FAILED);
}

static void a_table_survives_its_killed_writers_with_one_entry_lost_at_most(void **state)
{
	map_memory(table_size(ENTRIES, PAYLOAD_WORDS * 8));

	pid_t reader = start(read_table);

	kill_writers(change_table_for_ever, MEMORY_KILLS);
	stop_reader(reader);

	assert_int_equal(atomic_load(&control->errors), 0);
	assert_int_equal(atomic_load(&control->torn), 0);
	assert_true(atomic_load(&control->reads) > 100);
	assert_true(atomic_load(&control->dropped) > 0); /* else the kills hit nothing */
	munmap(memory, memory_size);
}

/* ---- ring ---- */

enum { RECORDS = 64, RECORD_WORDS = 20 };

static void record_of(uint64_t number, uint64_t ret_record[RECORD_WORDS])
{
	for (int i = 0; i < RECORD_WORDS; i++)
		ret_record[i] = number * 0x9e3779b97f4a7c15 + (uint64_t)i;
}

static void append_for_ever(void)
{
	uint64_t dropped = 0, record[RECORD_WORDS];
	struct ring ring;

	if (ring_attach(&ring, memory, memory_size, sizeof(record), &dropped) < 0 || dropped > 1 ||
	    ring.next < atomic_load(&control->done) + 1)
		atomic_fetch_add(&control->errors, 1);
	atomic_fetch_add(&control->dropped, dropped);
	for (;;) {
		record_of(ring.next, record);
		atomic_store(&control->done, ring_append(&ring, record, sizeof(record)));
	}
}

static void follow_ring(void)
{
	uint64_t record[RECORD_WORDS], want[RECORD_WORDS];
	struct ring_cursor cursor = { .next = 1 };
	struct ring ring;
	int last_look;

	while (ring_view(&ring, memory, memory_size) < 0)
		sleep_us(100);
	do {
		last_look = atomic_load(&control->stop);
		while (ring_next(&ring, &cursor, record, sizeof(record), NULL) == 1) {
			record_of(cursor.next - 1, want);
			atomic_fetch_add(&control->seen, 1);
			if (memcmp(record, want, sizeof(record)) != 0)
				atomic_fetch_add(&control->torn, 1);
		}
		sched_yield();
	} while (!last_look);
	atomic_store(&control->lost, cursor.lost);
}

static void
a_rings_numbers_go_on_over_killed_writers_and_every_record_is_seen_or_counted(void **state)
{
	struct ring ring;

	map_memory(ring_size(RECORDS, RECORD_WORDS * 8));

	pid_t reader = start(follow_ring);

	kill_writers(append_for_ever, MEMORY_KILLS);
	stop_reader(reader);

	assert_int_equal(ring_view(&ring, memory, memory_size), 0);
	assert_int_equal(atomic_load(&control->errors), 0);
	assert_int_equal(atomic_load(&control->torn), 0);
	assert_int_equal(atomic_load(&control->seen) + atomic_load(&control->lost),
			 ring_last(&ring));
	assert_true(atomic_load(&control->seen) > 0);
	munmap(memory, memory_size);
}

/* ---- making and taking over files, killed at every step of it ---- */

static struct router_file_sizes sizes_of(uint64_t records)
{
	return (struct router_file_sizes){
		.sessions = { .size = 4096, .fingerprint = 1, .count = 1 },
		.journal_records = records,
		.journal_record_size = 64,
		.params_bytes = 64,
		.counters = 4,
	};
}

static void hold_and_grow(void)
{
	char note[REGION_ERROR_MAX];
	struct router_file file;
	struct router_file_sizes small = sizes_of(8), large = sizes_of(16);

	shm_step_hook = die_at_step;
	if (router_file_hold(&file, &region, &small, NULL, NULL, note, error) < 0)
		_exit(1);
	ring_append(&file.journal, "kept", 4);
	router_file_drop(&file);
	if (router_file_hold(&file, &region, &large, NULL, NULL, note, error) < 0)
		_exit(1);
	ring_append(&file.journal, "kept", 4);
	router_file_drop(&file);
}

static int temporaries;

static void count_one(void *ctx, const char *name)
{
	temporaries += strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* After each death: readers get a whole file or none, and the next holder takes over and cleans up.
 */
static void a_router_killed_at_any_step_of_making_or_growing_its_file_leaves_no_trap(void **state)
{
	struct router_file_sizes sizes = sizes_of(8);
	char note[REGION_ERROR_MAX];
	int died = 0;

	for (int step = 0; step < 2000; step += step < 40 ? 1 : 7) {
		struct router_file file;
		pid_t pid;
		int status;

		steps_left = step;
		pid = start(hold_and_grow);
		status = reap(pid);
		assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
		died += WIFSIGNALED(status) != 0;

		int r = router_file_attach(&file, &region, error);

		assert_true(r == 0 || r == -ENOENT);
		if (r == 0)
			router_file_drop(&file);
		assert_int_equal(router_file_hold(&file, &region, &sizes, NULL, NULL, note, error),
				 0);
		router_file_drop(&file);
		assert_int_equal(router_file_hold(&file, &region, &sizes, NULL, NULL, note, error),
				 0);
		router_file_drop(&file);
		if (step % 3 == 0)
			unlinkat(region.dir_fd, "router", 0); /* so that making is killed, too */
	}
	assert_true(died > 40);
	unlinkat(region.dir_fd, "router", 0);
	close(openat(region.dir_fd, ".router.99999.0", O_CREAT | O_WRONLY, 0600));
	assert_int_equal(router_file_hold(&(struct router_file){ 0 }, &region, &sizes, NULL, NULL,
					  note, error),
			 0);
	temporaries = 0;
	region_list(&region, ".", count_one, NULL);
	assert_int_equal(temporaries, 0);
}

static void remove_file_once(void)
{
	shm_step_hook = NULL;
	unlinkat(region.dir_fd, "engine.gpu0", 0);
}

/* Else the lock would be on a file that nobody can find any more. */
static void a_file_that_vanishes_while_it_is_being_locked_is_made_anew(void **state)
{
	struct engine_file file;

	assert_int_equal(engine_file_hold(&file, &region, "gpu0", error), 0);
	engine_file_drop(&file);
	shm_step_hook = remove_file_once; /* the first step of taking over is the lock */

	assert_int_equal(engine_file_hold(&file, &region, "gpu0", error), 0);
	assert_null(shm_step_hook);
	assert_int_equal(region_file_moved(&region, &file.file), 0);
	engine_file_drop(&file);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(killed_agents_tear_no_read_and_their_successors_publish_in_the_same_file),
		TEST(a_table_survives_its_killed_writers_with_one_entry_lost_at_most),
		TEST(a_rings_numbers_go_on_over_killed_writers_and_every_record_is_seen_or_counted),
		TEST(a_router_killed_at_any_step_of_making_or_growing_its_file_leaves_no_trap),
		TEST(a_file_that_vanishes_while_it_is_being_locked_is_made_anew),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
