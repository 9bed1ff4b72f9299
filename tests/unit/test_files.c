/* The region's four files: one writer each, content kept over writers and growth, hostile bytes
 * bounded. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/files.h"
#include "shm/table.h"
#include "tests/lib/unit.h"

static char directory[64];
static struct region region;
static char error[REGION_ERROR_MAX], note[REGION_ERROR_MAX];

static int set_up(void **state)
{
	snprintf(directory, sizeof(directory), "/dev/shm/turnward-test-XXXXXX");
	if (!mkdtemp(directory))
		return -1;
	return region_open(&region, directory, 0, error);
}

static void remove_one(void *ctx, const char *name)
{
	unlinkat(region.dir_fd, name, 0);
}

static int tear_down(void **state)
{
	region_list(&region, "", remove_one, NULL);
	region_close(&region);
	return rmdir(directory);
}

/* ---- engine.NAME ---- */

static void an_agents_values_arrive_and_a_second_agent_is_refused(void **state)
{
	struct engine_file agent, second, router;
	struct engine_state s = { .read_ns = 5 }, got;
	struct engine_info info = { .name = "gpu0", .models_nr = 2 }, got_info;
	uint64_t seq = 0;

	assert_int_equal(engine_file_hold(&agent, &region, "gpu0", error), 0);
	assert_int_equal(engine_file_hold(&second, &region, "gpu0", error), -EBUSY);
	assert_non_null(strstr(error, "engine.gpu0"));
	assert_int_equal(engine_file_attach(&router, &region, "gpu0", error), 0);
	assert_int_equal(engine_file_read(&router, &got, NULL), -ENODATA);
	ENGINE_SET(&s, running, 17);
	ENGINE_SET(&s, decode_iteration_s, 0.05);
	strcpy(info.models[1], "qwen3");
	engine_file_prefetch(&router, 0);
	engine_file_prefetch_state(&router, 0);
	assert_int_equal(engine_file_seq(&router), 0);
	engine_file_publish(&agent, &s);
	engine_file_publish_info(&agent, &info);

	assert_int_equal(engine_file_read(&router, &got, &seq), 0);
	assert_memory_equal(&got, &s, sizeof(s));
	assert_int_equal(engine_file_seq(&router), seq); /* nothing new since */
	engine_file_publish(&agent, &s);
	assert_int_not_equal(engine_file_seq(&router), seq);
	assert_int_equal(engine_file_read_info(&router, &got_info, NULL), 0);
	assert_string_equal(got_info.models[1], "qwen3");
	assert_int_equal(engine_file_hold(&second, &region, "no/name", error), -EINVAL);
	engine_file_drop(&agent);
	engine_file_drop(&router);
}

/* As after an upgrade: the old agent is dead, the old router still has its file mapped. */
static void an_agents_file_of_another_layout_is_renewed_and_its_readers_told(void **state)
{
	struct engine_file agent, reader;

	assert_int_equal(engine_file_hold(&agent, &region, "gpu0", error), 0);
	assert_string_equal(error, "");
	((struct region_header *)agent.file.map)->version = 9;
	assert_int_equal(engine_file_attach(&reader, &region, "gpu0", error), -EPROTO);
	assert_non_null(strstr(error, "version 9, this program's is 1"));
	assert_int_equal(engine_file_hold(&reader, &region, "gpu0", error), -EBUSY); /* it lives */
	engine_file_drop(&agent);

	assert_int_equal(engine_file_hold(&agent, &region, "gpu0", error), 0);
	assert_int_equal(agent.file.fresh, 1);
	assert_non_null(strstr(error, "version 9, this program's is 1"));
	assert_non_null(strstr(error, "made anew"));
	assert_null(strstr(error, "remove"));
	engine_file_drop(&agent);
}

static void strings_and_counts_of_a_hostile_agent_are_closed(void **state)
{
	struct engine_file agent;
	struct engine_info info;

	memset(&info, 'x', sizeof(info));
	assert_int_equal(engine_file_hold(&agent, &region, "gpu0", error), 0);
	engine_file_publish_info(&agent, &info);

	assert_int_equal(engine_file_read_info(&agent, &info, NULL), 0);
	assert_int_equal(strlen(info.name), sizeof(info.name) - 1);
	assert_int_equal(strlen(info.url), sizeof(info.url) - 1);
	assert_int_equal(info.models_nr, STATE_MODELS_MAX);
	for (int i = 0; i < STATE_MODELS_MAX; i++)
		assert_int_equal(strlen(info.models[i]), sizeof(info.models[i]) - 1);
	engine_file_drop(&agent);
}

/* ---- latency ---- */

static void a_probes_windows_are_found_by_engine_and_end_with_the_probe(void **state)
{
	struct latency_file probe, reader;
	struct latency_record r = { .name = "gpu3", .ttft_p90_s = 7.5, .n = 9 }, got;

	assert_int_equal(latency_file_hold(&probe, &region, error), 0);
	assert_int_equal(latency_file_attach(&reader, &region, error), 0);
	assert_int_equal(latency_file_find(&reader, "gpu3"), -ENOENT);
	latency_file_publish(&probe, 5, &r);
	latency_file_publish_info(&probe, &(struct latency_info){ .source = "cgroup_skb" });

	assert_int_equal(latency_file_find(&reader, "gpu3"), 5);
	assert_int_equal(latency_file_read(&reader, 5, &got), 0);
	assert_true(got.ttft_p90_s > 7.4 && got.n == 9);
	assert_int_equal(latency_file_read(&reader, STATE_ENGINES_MAX, &got), -EINVAL);
	latency_file_drop(&probe);
	assert_int_equal(region_file_alive(&reader.file), 0);
	assert_int_equal(latency_file_hold(&probe, &region, error), 0);
	assert_int_equal(latency_file_find(&reader, "gpu3"),
			 -ENOENT); /* its successor starts empty */
	latency_file_drop(&probe);
	latency_file_drop(&reader);
}

/* ---- ledger.N ---- */

static void workers_get_the_lowest_free_ledgers_and_a_dead_ones_books_are_gone(void **state)
{
	struct ledger_file a, b, reader;
	struct ledger_books books = { .name = "gpu0", .waiting_tokens = 4000 }, got;
	struct ring_cursor cursor = { .next = 1 };
	char record[64];

	assert_int_equal(ledger_file_hold(&a, &region, 32, 64, error), 0);
	assert_int_equal(ledger_file_hold(&b, &region, 32, 64, error), 0);
	assert_int_equal(a.number, 0);
	assert_int_equal(b.number, 1);
	ledger_file_publish(&a, 2, &books);
	ring_append(&a.ring, "first", 6);
	assert_int_equal(ledger_file_attach(&reader, &region, 0, error), 0);
	assert_int_equal(ledger_file_read(&reader, 2, &got), 0);
	assert_int_equal(got.waiting_tokens, 4000);
	assert_int_equal(ring_next(&reader.ring, &cursor, record, sizeof(record), NULL), 1);
	assert_string_equal(record, "first");

	ledger_file_drop(&a); /* as the kernel does for a killed one */
	assert_int_equal(region_file_alive(&reader.file), 0);
	assert_int_equal(ledger_file_hold(&a, &region, 32, 64, error), 0);

	assert_int_equal(a.number, 0);
	assert_int_equal(ledger_file_read(&reader, 2, &got), 0);
	assert_int_equal(got.waiting_tokens, 0);
	assert_int_equal(ring_append(&a.ring, "second", 7),
			 2); /* numbers go on, the cursor holds */
	assert_int_equal(ring_next(&reader.ring, &cursor, record, sizeof(record), NULL), 1);
	assert_string_equal(record, "second");
	assert_int_equal(cursor.lost, 0);
	ledger_file_drop(&a);
	ledger_file_drop(&b);
	ledger_file_drop(&reader);
}

static void a_ledger_of_another_size_keeps_its_notes(void **state)
{
	struct ledger_file a, reader;
	char record[128];

	assert_int_equal(ledger_file_hold(&a, &region, 32, 64, error), 0);
	for (int i = 0; i < 10; i++)
		ring_append(&a.ring, "note", 5);
	ledger_file_drop(&a);
	assert_int_equal(ledger_file_hold(&a, &region, 64, 128, error), 0);

	assert_int_equal(a.number, 0);
	assert_int_equal(ring_last(&a.ring), 10);
	assert_int_equal(ring_read(&a.ring, 10, record, sizeof(record), NULL), 0);
	assert_string_equal(record, "note");
	assert_int_equal(ledger_file_attach(&reader, &region, 0, error), 0);
	assert_int_equal(reader.ring.record_size, 128);
	ledger_file_drop(&a);
	ledger_file_drop(&reader);
}

static void beyond_the_last_ledger_a_worker_is_told(void **state)
{
	struct ledger_file all[LEDGER_FILES_MAX], more;

	for (unsigned i = 0; i < LEDGER_FILES_MAX; i++)
		assert_int_equal(ledger_file_hold(&all[i], &region, 4, 64, error), 0);

	assert_int_equal(ledger_file_hold(&more, &region, 4, 64, error), -EBUSY);
	for (unsigned i = 0; i < LEDGER_FILES_MAX; i++)
		ledger_file_drop(&all[i]);
}

/* ---- router ---- */

enum { PAYLOAD = 32 };

static struct router_file_sizes sizes_of(uint64_t sessions)
{
	return (struct router_file_sizes){
		.sessions = { table_size(sessions, PAYLOAD), 11, sessions },
		.responses = { 4096, 12, 1 },
		.prefix = { 10000, 13, 1 },
		.calibration = { 808, 14, 1 },
		.journal_records = 16,
		.journal_record_size = 64,
		.params_bytes = 256,
		.counters = 8,
	};
}

static void migrate_sessions(void *ctx, enum router_section section, const void *old_mem,
			     size_t old_size, void *new_mem, size_t new_size)
{
	struct table from, to;

	++*(int *)ctx;
	assert_int_equal(section, ROUTER_SESSIONS);
	assert_int_equal(table_view(&from, old_mem, old_size, PAYLOAD), 0);
	assert_int_equal(table_attach(&to, new_mem, new_size, PAYLOAD, NULL), 0);
	table_copy(&to, &from);
}

static int hold_router(struct router_file *file, const struct router_file_sizes *sizes,
		       int *migrated)
{
	return router_file_hold(file, &region, sizes, migrate_sessions, migrated, note, error);
}

static struct table sessions_of(struct router_file *file)
{
	struct table table;
	size_t size;
	void *mem = router_file_section(file, ROUTER_SESSIONS, &size);

	assert_int_equal(table_attach(&table, mem, size, PAYLOAD, NULL), 0);
	return table;
}

/* Something in every section, so that a test can look whether it stayed. */
static void fill_router(struct router_file *file)
{
	static const char *const names[] = { "started", "completed/gpu0" };
	uint64_t payload[PAYLOAD / 8] = { 1, 2, 3, 4 };
	struct table sessions = sessions_of(file);
	unsigned nr;

	for (uint64_t key = 1; key <= 20; key++)
		table_put(&sessions, key * 0x9e3779b97f4a7c15, key, payload, NULL);
	memcpy(router_file_section(file, ROUTER_PREFIX, NULL), "prefix", 7);
	router_file_params_publish(file, "policy = eft\n");
	assert_int_equal(router_file_engine(file, "gpu0", 1), 0);
	assert_int_equal(router_file_engine(file, "gpu1", 1), 1);
	for (int i = 0; i < 20; i++)
		ring_append(&file->journal, "decision", 9);
	assert_int_equal(router_file_counters_bind(file, names, 2), 0);
	router_counter_add(&router_file_counters(file, &nr)[1], 42);
	router_file_cursor_set(file, 3, &(struct router_cursor){ .ring.next = 99 });
	router_file_timing_publish(file, 7, &(struct latency_record){ .name = "gpu7", .n = 3 });
}

static void assert_filled(struct router_file *file)
{
	struct table sessions = sessions_of(file);
	struct router_cursor cursor;
	struct latency_record timing;
	char text[64];
	unsigned nr;

	assert_int_equal(sessions.used, 20);
	assert_string_equal(router_file_section(file, ROUTER_PREFIX, NULL), "prefix");
	assert_int_equal(router_file_engine(file, "gpu1", 0), 1);
	assert_int_equal(ring_last(&file->journal), 20);
	assert_int_equal(ring_read(&file->journal, 20, text, sizeof(text), NULL), 0);
	assert_string_equal(router_file_counters(file, &nr)[1].name, "completed/gpu0");
	assert_int_equal(router_file_counters(file, &nr)[1].value, 42);
	assert_int_equal(router_file_cursor_get(file, 3, &cursor), 0);
	assert_int_equal(cursor.ring.next, 99);
	assert_int_equal(router_file_timing_read(file, 7, &timing), 0);
	assert_string_equal(timing.name, "gpu7");
}

static void sections_are_there_apart_and_zero(void **state)
{
	struct router_file_sizes sizes = sizes_of(100);
	struct router_file file;

	assert_int_equal(hold_router(&file, &sizes, NULL), 0);
	assert_int_equal(file.file.fresh, 1);
	assert_string_equal(note, "");
	for (enum router_section i = 0; i < ROUTER_SECTIONS_NR; i++) {
		size_t size;
		uint8_t *mem = router_file_section(&file, i, &size);

		assert_non_null(mem);
		assert_int_equal((uintptr_t)mem % 4096, 0);
		assert_int_equal(mem[size - 1], 0);
		for (size_t k = 0; i < ROUTER_TIMING && k < size; k++)
			assert_int_equal(mem[k], 0);
		if (i < ROUTER_TIMING) /* found by the next test if two overlapped */
			memset(mem, i + 1, size);
	}
	for (enum router_section i = 0; i < ROUTER_TIMING; i++) {
		size_t size;
		uint8_t *mem = router_file_section(&file, i, &size);

		assert_int_equal(mem[0], i + 1);
		assert_int_equal(mem[size - 1], i + 1);
	}
	assert_int_equal(router_file_section_fingerprint(&file, ROUTER_PREFIX), 13);
	router_file_drop(&file);
}

static void the_active_role_is_one_and_its_content_outlives_the_worker(void **state)
{
	struct router_file_sizes sizes = sizes_of(100);
	struct router_file file, second;
	int migrated = 0;

	assert_int_equal(hold_router(&file, &sizes, &migrated), 0);
	assert_int_equal(hold_router(&second, &sizes, &migrated), -EBUSY);
	fill_router(&file);
	router_file_drop(&file);

	assert_int_equal(hold_router(&file, &sizes, &migrated), 0);
	assert_int_equal(file.file.fresh, 0);
	assert_int_equal(migrated, 0);
	assert_filled(&file);
	router_file_drop(&file);
}

static void a_grown_file_keeps_what_it_held_and_its_readers_notice(void **state)
{
	struct router_file_sizes small = sizes_of(100), large = sizes_of(1000);
	struct router_file file, reader;
	int migrated = 0;

	assert_int_equal(hold_router(&file, &small, &migrated), 0);
	fill_router(&file);
	assert_int_equal(router_file_attach(&reader, &region, error), 0);
	router_file_drop(&file);
	large.journal_records = 64;
	large.counters = 16;

	assert_int_equal(hold_router(&file, &large, &migrated), 0);
	assert_int_equal(migrated, 1);
	assert_int_equal(file.file.fresh, 0);
	assert_string_equal(note, "");
	assert_filled(&file);
	assert_int_equal(file.journal.records, 64);
	assert_int_equal(region_file_moved(&region, &reader.file), 1);
	assert_int_equal(ring_last(&reader.journal), 20); /* the old one stays readable meanwhile */
	router_file_drop(&reader);
	assert_int_equal(router_file_attach(&reader, &region, error), 0);
	assert_filled(&file);
	router_file_drop(&reader);
	router_file_drop(&file);

	assert_int_equal(hold_router(&file, &small, &migrated), 0); /* and back */
	assert_filled(&file);
	router_file_drop(&file);
}

static void a_section_of_another_layout_begins_empty_alone_and_says_so(void **state)
{
	struct router_file_sizes sizes = sizes_of(100);
	struct router_file file;
	int migrated = 0;

	assert_int_equal(hold_router(&file, &sizes, &migrated), 0);
	fill_router(&file);
	router_file_drop(&file);
	sizes.prefix.fingerprint = 99;

	assert_int_equal(hold_router(&file, &sizes, &migrated), 0);
	assert_non_null(strstr(note, "prefix"));
	assert_null(strstr(note, "sessions"));
	assert_int_equal(*(uint8_t *)router_file_section(&file, ROUTER_PREFIX, NULL), 0);
	assert_int_equal(sessions_of(&file).used, 20);
	router_file_drop(&file);
}

static void a_foreign_file_is_replaced_by_an_empty_one_with_the_reason(void **state)
{
	struct router_file_sizes sizes = sizes_of(100);
	struct router_file file;

	assert_int_equal(hold_router(&file, &sizes, NULL), 0);
	((struct region_header *)file.file.map)->version = 9;
	router_file_drop(&file);
	assert_int_equal(router_file_attach(&file, &region, error), -EPROTO);

	assert_int_equal(hold_router(&file, &sizes, NULL), 0);
	assert_int_equal(file.file.fresh, 1);
	assert_non_null(strstr(note, "version 9, this program's is 1"));
	router_file_drop(&file);
}

static void counters_follow_their_names(void **state)
{
	static const char *const before[] = { "a", "b", "c" }, *const after[] = { "c", "new", "a" };
	struct router_file_sizes sizes = sizes_of(100);
	struct router_file file;
	struct router_counter *c;
	unsigned nr;

	assert_int_equal(hold_router(&file, &sizes, NULL), 0);
	assert_int_equal(router_file_counters_bind(&file, before, 3), 0);
	c = router_file_counters(&file, &nr);
	assert_int_equal(nr, 8);
	for (unsigned i = 0; i < 3; i++)
		router_counter_add(&c[i], 10 + i);
	assert_int_equal(router_file_counters_bind(&file, after, 3), 0);

	assert_int_equal(c[0].value, 12);
	assert_int_equal(c[1].value, 0);
	assert_int_equal(c[2].value, 10);
	assert_string_equal(c[1].name, "new");
	assert_int_equal(router_file_counters_bind(&file, after, 2), 0);
	assert_string_equal(c[2].name, "");
	assert_int_equal(router_file_counters_bind(&file, after, 9), -ENOSPC);
	router_file_drop(&file);
}

static void engines_keep_their_index_and_free_ones_are_reused(void **state)
{
	struct router_file_sizes sizes = sizes_of(100);
	struct router_engine engine;
	struct router_file file;
	char name[16];

	assert_int_equal(hold_router(&file, &sizes, NULL), 0);
	for (int i = 0; i < STATE_ENGINES_MAX; i++) {
		snprintf(name, sizeof(name), "gpu%d", i);
		assert_int_equal(router_file_engine(&file, name, 1), i);
	}
	assert_int_equal(router_file_engine(&file, "one-more", 1), -ENOSPC);
	assert_int_equal(router_file_engine(&file, "one-more", 0), -ENOENT);
	assert_int_equal(router_file_engine_read(&file, 9, &engine), 0);
	assert_true(engine.weight == 1 && engine.drain == 0);
	router_file_engine_publish(&file, 9, &(struct router_engine){ 0 });

	assert_int_equal(router_file_engine(&file, "one-more", 1), 9);
	assert_int_equal(router_file_engine(&file, "gpu10", 1), 10);
	assert_int_equal(router_file_engine(&file, "bad name", 1), -EINVAL);
	router_file_drop(&file);
}

static void parameters_are_read_as_they_were_published(void **state)
{
	struct router_file_sizes sizes = sizes_of(100);
	struct router_file file;
	char text[300], longest[400];

	assert_int_equal(hold_router(&file, &sizes, NULL), 0);
	assert_int_equal(router_file_params_read(&file, text, sizeof(text)), -ENODATA);
	router_file_params_publish(&file, "policy = eft\n");
	assert_int_equal(router_file_params_read(&file, text, sizeof(text)), 0);
	assert_string_equal(text, "policy = eft\n");
	memset(longest, 'x', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = 0;
	router_file_params_publish(&file, longest);

	assert_int_equal(router_file_params_read(&file, text, sizeof(text)), 0);
	assert_int_equal(strlen(text), 255);
	assert_int_equal(router_file_params_read(&file, text, 4), 0);
	assert_string_equal(text, "xxx");
	router_file_drop(&file);
}

/* Reads everything that a reader can read; only that it ends, within bounds, is asked (ASan
 * watches). */
static volatile uint64_t sum; /* so that the reading is done */

static void read_everything(void)
{
	char text[512], record[64];
	struct ring_cursor cursor = { 0 };
	struct router_engine engine;
	struct router_cursor applied;
	struct latency_record timing;
	struct router_file file;

	if (router_file_attach(&file, &region, error) < 0)
		return;
	for (enum router_section i = 0; i < ROUTER_SECTIONS_NR; i++) {
		size_t size;
		const uint8_t *mem = router_file_section(&file, i, &size);

		for (size_t k = 0; mem && k < size; k++)
			sum += mem[k];
	}
	for (unsigned i = 0; i < STATE_ENGINES_MAX; i++) {
		(void)!router_file_engine_read(&file, i, &engine);
		(void)!router_file_timing_read(&file, i, &timing);
		(void)!router_file_cursor_get(&file, i, &applied);
	}
	(void)!router_file_params_read(&file, text, sizeof(text));
	for (int i = 0; i < 100 && ring_next(&file.journal, &cursor, record, 64, NULL) == 1; i++)
		;
	router_file_drop(&file);
}

static void random_bytes_in_the_routers_file_lead_nowhere(void **state)
{
	struct router_file_sizes sizes = sizes_of(10);
	unsigned seed = 23;

	for (int round = 0; round < 300; round++) {
		struct router_file file;

		assert_int_equal(hold_router(&file, &sizes, &(int){ 0 }), 0);
		fill_router(&file);
		for (int i = 0; i < 1 + round % 50; i++) {
			/* The directory most of all; elsewhere anything. */
			size_t span = i % 2 ? 2048 + 256 : file.file.size - REGION_PAYLOAD;

			file.file.map[REGION_PAYLOAD + (unsigned)rand_r(&seed) % span] =
				(uint8_t)rand_r(&seed);
		}
		read_everything();
		router_file_drop(&file);
		unlinkat(region.dir_fd, "router", 0);
	}
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(an_agents_values_arrive_and_a_second_agent_is_refused),
		TEST(an_agents_file_of_another_layout_is_renewed_and_its_readers_told),
		TEST(strings_and_counts_of_a_hostile_agent_are_closed),
		TEST(a_probes_windows_are_found_by_engine_and_end_with_the_probe),
		TEST(workers_get_the_lowest_free_ledgers_and_a_dead_ones_books_are_gone),
		TEST(a_ledger_of_another_size_keeps_its_notes),
		TEST(beyond_the_last_ledger_a_worker_is_told),
		TEST(sections_are_there_apart_and_zero),
		TEST(the_active_role_is_one_and_its_content_outlives_the_worker),
		TEST(a_grown_file_keeps_what_it_held_and_its_readers_notice),
		TEST(a_section_of_another_layout_begins_empty_alone_and_says_so),
		TEST(a_foreign_file_is_replaced_by_an_empty_one_with_the_reason),
		TEST(counters_follow_their_names),
		TEST(engines_keep_their_index_and_free_ones_are_reused),
		TEST(parameters_are_read_as_they_were_published),
		TEST(random_bytes_in_the_routers_file_lead_nowhere),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
