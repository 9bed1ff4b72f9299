/* A stored response leads to the engine that made it, or to none when that has gone. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "router/session/responses.h"
#include "shm/step.h"
#include "tests/lib/unit.h"

enum { ENTRIES = 128 };

static uint8_t *mem;
static size_t size;
static struct responses responses;

static int set_up(void **state)
{
	size = responses_size(ENTRIES);
	mem = aligned_alloc(TABLE_ALIGN, size);
	memset(mem, 0, size);
	return responses_attach(&responses, mem, size, NULL);
}

static int tear_down(void **state)
{
	free(mem);
	return 0;
}

static struct session_time at(uint64_t s)
{
	return (struct session_time){ .ns = s * 1000000000, .wall_s = 1700000000 + s };
}

static int put(const char *id, uint32_t engine, uint64_t s)
{
	struct response r = { .engine = engine,
			      .epoch = engine * 7,
			      .session = { engine * 11, engine * 13 },
			      .turn = 3 };

	return responses_put(&responses, id, strlen(id), &r, at(s));
}

static int find(const char *id, uint64_t s, struct response *ret_response)
{
	return responses_find(&responses, id, strlen(id), at(s).ns, ret_response);
}

static void an_id_leads_to_where_it_was_made(void **state)
{
	struct response r;

	assert_int_equal(find("resp_1", 1, &r), -ENOENT);
	assert_int_equal(put("resp_1", 5, 1), 0);
	assert_int_equal(find("resp_1", 2, &r), 0);
	assert_int_equal(r.engine, 5);
	assert_int_equal(r.epoch, 35);
	assert_int_equal(r.session.key, 55);
	assert_int_equal(r.session.check, 65);
	assert_int_equal(r.turn, 3);
	assert_int_equal(r.made_wall_s, 1700000001);
	assert_int_equal(find("resp_2", 2, &r), -ENOENT);
}

static void its_tokens_come_later(void **state)
{
	struct response r;

	put("resp_1", 5, 1);
	assert_int_equal(responses_set_tokens(&responses, "resp_1", 6, 4321, at(2).ns), 0);
	assert_int_equal(responses_set_tokens(&responses, "resp_9", 6, 1, at(2).ns), -ENOENT);
	assert_int_equal(find("resp_1", 3, &r), 0);
	assert_int_equal(r.tokens, 4321);
	assert_int_equal(r.engine, 5);
}

static void a_restarted_engine_has_no_stored_responses(void **state)
{
	struct response r = { .engine = 1, .epoch = 11 };

	assert_int_equal(response_home(&r, (uint64_t[]){ 10, 11 }, 2), 1);
	assert_int_equal(response_home(&r, (uint64_t[]){ 10, 12 }, 2), SESSION_NO_ENGINE);
	assert_int_equal(response_home(&r, (uint64_t[]){ 10 }, 1), SESSION_NO_ENGINE);
}

static void an_id_too_long_or_empty_is_refused(void **state)
{
	char id[RESPONSES_ID_MAX + 1];
	struct response r = { 0 };

	memset(id, 'x', sizeof id);
	assert_int_equal(responses_put(&responses, id, sizeof id, &r, at(1)), -EINVAL);
	assert_int_equal(responses_put(&responses, id, 0, &r, at(1)), -EINVAL);
	assert_int_equal(responses_put(&responses, id, RESPONSES_ID_MAX, &r, at(1)), 0);
	assert_int_equal(responses_find(&responses, id, RESPONSES_ID_MAX, 1, &r), 0);
	assert_int_equal(responses_find(&responses, id, sizeof id, 1, &r), -ENOENT);
}

static void old_ones_expire_and_deleted_ones_are_gone(void **state)
{
	struct response r;

	responses.idle_ns = at(100).ns;
	put("resp_1", 5, 1);
	assert_int_equal(find("resp_1", 101, &r), 0);
	assert_int_equal(find("resp_1", 102, &r), -ENOENT);
	put("resp_2", 5, 1);
	assert_int_equal(responses_forget(&responses, "resp_2", 6), 1);
	assert_int_equal(responses_forget(&responses, "resp_2", 6), 0);
	assert_int_equal(find("resp_2", 2, &r), -ENOENT);
}

static void the_ones_asked_for_stay_when_the_table_is_full(void **state)
{
	struct response r;
	char id[24];

	put("resp_kept", 5, 1);
	for (uint64_t i = 0; i < 50 * ENTRIES; i++) {
		snprintf(id, sizeof id, "resp_%u", (unsigned)i);
		put(id, 1, 2 + i);
		assert_int_equal(find("resp_kept", 2 + i, &r), 0);
	}
	assert_int_equal(r.engine, 5);
	assert_true(responses.table.evicted > 40 * ENTRIES);
}

static jmp_buf out;
static int steps_left;

static void abandon(void)
{
	if (steps_left-- == 0)
		longjmp(out, 1);
}

static void a_writer_that_ends_at_any_store_misleads_nobody(void **state)
{
	unsigned seed = 4;
	struct response r;
	char id[24];

	for (unsigned round = 1; round < 2000; round++) {
		uint64_t dropped;

		snprintf(id, sizeof id, "resp_%u", (unsigned)rand_r(&seed) % 60);
		steps_left = rand_r(&seed) % 20;
		shm_step_hook = abandon;
		if (!setjmp(out))
			put(id, 1 + (uint32_t)rand_r(&seed) % 8, round);
		shm_step_hook = NULL;
		assert_int_equal(responses_attach(&responses, mem, size, &dropped), 0);
		assert_true(dropped <= 1);
		if (find(id, round, &r) == 0) {
			assert_int_equal(r.epoch, r.engine * 7);
			assert_int_equal(r.session.check, r.engine * 13);
		}
	}
}

static void a_reader_may_look_but_changes_nothing(void **state)
{
	struct responses view;
	struct response r;

	put("resp_1", 5, 1);
	assert_int_equal(responses_view(&view, mem, size), 0);
	assert_int_equal(responses_find(&view, "resp_1", 6, at(2).ns, &r), 0);
	assert_int_equal(r.engine, 5);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(an_id_leads_to_where_it_was_made),
		TEST(its_tokens_come_later),
		TEST(a_restarted_engine_has_no_stored_responses),
		TEST(an_id_too_long_or_empty_is_refused),
		TEST(old_ones_expire_and_deleted_ones_are_gone),
		TEST(the_ones_asked_for_stay_when_the_table_is_full),
		TEST(a_writer_that_ends_at_any_store_misleads_nobody),
		TEST(a_reader_may_look_but_changes_nothing),
	};

	return cmocka_run_group_tests_name("response_ids", tests, NULL, NULL);
}
