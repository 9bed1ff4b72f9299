/* Sessions are found by name or by how their prompt begins, and outlive the router that knew them.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "router/session/session.h"
#include "shm/step.h"
#include "tests/lib/unit.h"

enum { ENTRIES = 256, ENGINES = 4, BLOCKS = 900, KILLS = 120 };

static uint8_t *mem;
static size_t size;
static struct sessions sessions;

static int set_up(void **state)
{
	size = sessions_size(ENTRIES);
	mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED)
		return -1;
	return sessions_attach(&sessions, mem, size, ENTRIES, 4242, NULL);
}

static int tear_down(void **state)
{
	return munmap(mem, size);
}

static struct session_time at(uint64_t s)
{
	return (struct session_time){ .ns = s * 1000000000, .wall_s = 1700000000 + s };
}

static struct session_key named(const char *id)
{
	return sessions_key(&sessions, 1, id, strlen(id), 99);
}

/* The chain of a conversation: up to `fork` the family's blocks, then the member's own. */
static void chain_of(uint64_t family, uint64_t member, uint32_t fork, uint64_t *ret_chain)
{
	uint64_t hash = family * 0x9e3779b97f4a7c15;

	for (uint32_t d = 0; d < BLOCKS; d++) {
		hash = (hash ^ hash >> 29) * 0xbf58476d1ce4e5b9 + (d < fork ? 1 : member + 2);
		ret_chain[d] = hash;
	}
}

static int dispatch(struct session_key key, uint32_t engine, uint64_t turn, uint64_t s)
{
	struct session_dispatch d = { .engine = engine, .epoch = 10 + engine, .turn = turn };

	return session_note_dispatch(&sessions, key, 1, &d, at(s));
}

static void dispatch_prompt(struct session_key key, uint64_t turn, const uint64_t *chain,
			    uint32_t n, uint64_t s)
{
	struct session_dispatch d = { .engine = 1, .turn = turn, .chain = chain, .blocks = n };

	session_note_dispatch(&sessions, key, 1, &d, at(s));
}

static struct session found(struct session_key key, uint64_t s)
{
	struct session session;

	assert_int_equal(session_find(&sessions, key, at(s).ns, &session), 0);
	return session;
}

static int same(struct session_key a, struct session_key b)
{
	return a.key == b.key && a.check == b.check;
}

static void a_key_depends_on_scope_id_and_identity(void **state)
{
	struct session_key key = sessions_key(&sessions, 1, "abc", 3, 7);

	assert_true(same(key, sessions_key(&sessions, 1, "abc", 3, 7)));
	assert_false(same(key, sessions_key(&sessions, 2, "abc", 3, 7)));
	assert_false(same(key, sessions_key(&sessions, 1, "abd", 3, 7)));
	assert_false(same(key, sessions_key(&sessions, 1, "abc", 3, 8)));
	assert_true(key.key != 0);
}

static void another_secret_gives_other_keys_but_a_kept_region_keeps_its_own(void **state)
{
	struct session_key key = named("a");
	struct sessions next;

	assert_int_equal(sessions_attach(&next, mem, size, ENTRIES, 1111, NULL), 0);
	assert_true(same(key, sessions_key(&next, 1, "a", 1, 99)));
	assert_int_equal(sessions_clear(&next, mem, size, ENTRIES, 1111), 0);
	assert_false(same(key, sessions_key(&next, 1, "a", 1, 99)));
}

static void what_was_noted_is_found(void **state)
{
	struct session_key key = named("a");
	struct session_result result = { .turn = 1,
					 .prompt_tokens = 5000,
					 .completion_tokens = 100,
					 .cached_tokens = 4800,
					 .prompt.text.letters = 20000 };
	struct session s;

	assert_int_equal(session_find(&sessions, key, at(1).ns, &s), -ENOENT);
	assert_int_equal(dispatch(key, 2, 1, 10), 0);
	session_note_result(&sessions, key, &result, at(12));
	s = found(key, 13);

	assert_int_equal(s.engine, 2);
	assert_int_equal(s.epoch, 12);
	assert_int_equal(s.turn, 1);
	assert_int_equal(s.prompt_tokens, 5000);
	assert_int_equal(s.completion_tokens, 100);
	assert_int_equal(s.cached_tokens, 4800);
	assert_int_equal(s.prompt.text.letters, 20000);
	assert_int_equal(s.first_wall_s, 1700000010);
	assert_int_equal(s.last_ns, at(12).ns);
	assert_true(s.output_tokens == 100);
}

static void a_session_idle_too_long_is_unknown(void **state)
{
	struct session_key key = named("a");
	uint64_t cursor = 0;

	sessions.idle_ns = at(100).ns;
	dispatch(key, 2, 1, 10);

	found(key, 110);
	assert_int_equal(session_find(&sessions, key, at(111).ns, NULL), -ENOENT);
	assert_int_equal(sessions_next(&sessions, &cursor, at(111).ns, NULL, NULL), 0);
	assert_int_equal(dispatch(key, 3, 7, 200), 0); /* begins anew: no move */
	assert_int_equal(found(key, 200).first_ns, at(200).ns);
}

static void an_engine_that_restarted_is_no_home(void **state)
{
	struct session s = { .engine = 1, .epoch = 11 };

	assert_int_equal(session_home(&s, (uint64_t[]){ 10, 11 }, 2), 1);
	assert_int_equal(session_home(&s, (uint64_t[]){ 10, 12 }, 2), SESSION_NO_ENGINE);
	assert_int_equal(session_home(&s, (uint64_t[]){ 10, 0 }, 2), 1); /* its agent is silent */
	assert_int_equal(session_home(&s, (uint64_t[]){ 10 }, 1), SESSION_NO_ENGINE);
	s.epoch = 0;
	assert_int_equal(session_home(&s, (uint64_t[]){ 10, 12 }, 2), 1);
	s.engine = SESSION_NO_ENGINE;
	assert_int_equal(session_home(&s, (uint64_t[]){ 10, 12 }, 2), SESSION_NO_ENGINE);
}

static void moves_are_counted_and_the_last_five_turns_remembered(void **state)
{
	struct session_key key = named("a");
	static const uint32_t engines[] = { 0, 0, 1, 1, 2, 2, 2, 2, 2 };
	static const uint32_t recent[] = { 0, 0, 1, 1, 2, 2, 2, 1, 1 };

	for (uint64_t turn = 1; turn <= 9; turn++) {
		int moved = dispatch(key, engines[turn - 1], turn, turn);

		assert_int_equal(moved, turn == 3 || turn == 5);
		assert_int_equal(session_recent_moves(&(struct session){ 0 }), 0);
		struct session s = found(key, turn);

		assert_int_equal(session_recent_moves(&s), recent[turn - 1]);
	}
	assert_int_equal(found(key, 9).moves, 2);
	assert_int_equal(found(key, 9).last_move_ns, at(5).ns);
	dispatch(key, 2, 30, 30);
	struct session s = found(key, 30);

	assert_int_equal(session_recent_moves(&s), 0);
}

static void a_retry_binds_to_the_engine_that_served(void **state)
{
	struct session_key key = named("a");

	dispatch(key, 0, 1, 1);
	assert_int_equal(dispatch(key, 0, 2, 2), 0);
	assert_int_equal(dispatch(key, 3, 2, 2), 1); /* 0 refused the connection */
	struct session s = found(key, 2);

	assert_int_equal(s.engine, 3);
	assert_int_equal(session_recent_moves(&s), 1);
	assert_int_equal(s.turn, 2);
	assert_int_equal(s.dispatches, 3);
}

static void a_late_answer_does_not_hide_a_later_turn_s_count(void **state)
{
	struct session_key key = named("a");
	struct session_result late = { .turn = 4, .prompt_tokens = 400, .completion_tokens = 10 };
	struct session_result newer = { .turn = 5, .prompt_tokens = 500, .completion_tokens = 20 };

	dispatch(key, 0, 4, 1);
	dispatch(key, 0, 5, 2);
	session_note_result(&sessions, key, &newer, at(3));
	session_note_result(&sessions, key, &late, at(4));

	assert_int_equal(found(key, 4).prompt_tokens, 500);
	assert_int_equal(found(key, 4).base_turn, 5);
	assert_true(found(key, 4).output_tokens < 20 && found(key, 4).output_tokens > 10);
}

static void an_answer_without_usage_keeps_the_last_exact_count(void **state)
{
	struct session_key key = named("a");
	struct session_result exact = { .turn = 1, .prompt_tokens = 400, .completion_tokens = 10 };
	struct session_result silent = { .turn = 2,
					 .completion_tokens = SESSION_UNKNOWN,
					 .cached_tokens = SESSION_UNKNOWN };

	dispatch(key, 0, 1, 1);
	session_note_result(&sessions, key, &exact, at(2));
	dispatch(key, 0, 2, 3);
	session_note_result(&sessions, key, &silent, at(4));

	assert_int_equal(found(key, 4).prompt_tokens, 400);
	assert_int_equal(found(key, 4).base_turn, 1);
	assert_true(found(key, 4).output_tokens == 10);
}

static void a_compacted_session_counts_from_its_new_turn(void **state)
{
	struct session_key key = named("a");
	struct session_result before = { .turn = 40, .prompt_tokens = 90000 };
	struct session_result after = { .turn = 3, .prompt_tokens = 8000 };

	dispatch(key, 0, 40, 1);
	session_note_result(&sessions, key, &before, at(2));
	dispatch(key, 0, 3, 3);
	session_note_result(&sessions, key, &after, at(4));

	assert_int_equal(found(key, 4).prompt_tokens, 8000);
	assert_int_equal(found(key, 4).base_turn, 3);
}

static void an_answer_to_a_forgotten_session_is_dropped(void **state)
{
	struct session_result result = { .turn = 1, .prompt_tokens = 5 };

	session_note_result(&sessions, named("never"), &result, at(1));
	assert_int_equal(session_find(&sessions, named("never"), at(1).ns, NULL), -ENOENT);
}

static void a_client_that_names_no_session_is_known_by_its_prompt(void **state)
{
	uint64_t chain[BLOCKS];
	struct session_key first, next;

	chain_of(5, 0, BLOCKS, chain);
	first = sessions_infer(&sessions, 1, 33, chain, 40, at(1).ns);
	dispatch_prompt(first, 1, chain, 40, 1);

	for (uint32_t n = 40; n < 40 + SESSION_INFER_BLOCKS; n += 17) {
		next = sessions_infer(&sessions, 1, 33, chain, n, at(2).ns);
		assert_true(same(first, next));
	}
	next = sessions_infer(&sessions, 2, 33, chain, 50, at(2).ns);
	assert_false(same(first, next)); /* another client's key */
	next = sessions_infer(&sessions, 1, 33, chain, 40 + SESSION_INFER_BLOCKS + 1, at(2).ns);
	assert_false(same(first, next));
}

static void conversations_that_begin_alike_part_where_they_differ(void **state)
{
	uint64_t a[BLOCKS], b[BLOCKS];
	struct session_key first, second;

	chain_of(5, 1, 20, a);
	chain_of(5, 2, 20, b);
	first = sessions_infer(&sessions, 1, 33, a, 20, at(1).ns);
	dispatch_prompt(first, 1, a, 20, 1);
	assert_true(same(first, sessions_infer(&sessions, 1, 33, a, 30, at(2).ns)));
	dispatch_prompt(first, 2, a, 30, 2);

	second = sessions_infer(&sessions, 1, 33, b, 25, at(3).ns);
	assert_false(same(first, second));
	dispatch_prompt(second, 2, b, 25, 3);
	assert_true(same(second, sessions_infer(&sessions, 1, 33, b, 40, at(4).ns)));
	assert_true(same(first, sessions_infer(&sessions, 1, 33, a, 45, at(4).ns)));
}

static void the_same_first_prompt_again_is_another_conversation(void **state)
{
	uint64_t chain[BLOCKS];
	struct session_key first, again;

	chain_of(5, 1, BLOCKS, chain);
	first = sessions_infer(&sessions, 1, 33, chain, 20, at(1).ns);
	dispatch_prompt(first, 1, chain, 20, 1);
	dispatch_prompt(first, 2, chain, 30, 2);
	again = sessions_infer(&sessions, 1, 33, chain, 20, at(3).ns);

	assert_false(same(first, again));
}

static void a_short_first_prompt_is_continued_by_its_identity(void **state)
{
	uint64_t chain[BLOCKS];
	struct session_key first;

	chain_of(6, 1, BLOCKS, chain);
	first = sessions_infer(&sessions, 1, 44, chain, 0, at(1).ns);
	dispatch_prompt(first, 1, chain, 0, 1);

	assert_true(same(first, sessions_infer(&sessions, 1, 44, chain, 0, at(2).ns)));
	assert_true(same(first, sessions_infer(&sessions, 1, 44, chain, 3, at(2).ns)));
	assert_false(same(first, sessions_infer(&sessions, 1, 45, chain, 3, at(2).ns)));
}

static void a_prompt_that_was_rewritten_continues_nothing(void **state)
{
	uint64_t chain[BLOCKS], other[BLOCKS];
	struct session_key key = named("a");
	struct session s;

	chain_of(1, 1, 10, chain);
	chain_of(1, 2, 10, other);
	dispatch_prompt(key, 1, chain, 12, 1);
	s = found(key, 1);

	assert_int_equal(session_continues(&s, chain, 12), 1);
	assert_int_equal(session_continues(&s, chain, 20), 1);
	assert_int_equal(session_continues(&s, chain, 11), 0);
	assert_int_equal(session_continues(&s, other, 20), 0);
}

static void the_least_recently_used_give_way(void **state)
{
	struct session_totals totals;
	struct session_key keep = named("keep");
	char id[16];

	dispatch(keep, 1, 1, 1);
	for (uint64_t i = 0; i < 20 * ENTRIES; i++) {
		snprintf(id, sizeof id, "s%u", (unsigned)i);
		dispatch(named(id), 0, 1, 2 + i);
		dispatch(keep, 1, 2 + i, 2 + i);
	}
	sessions_totals(&sessions, &totals);

	found(keep, 20 * ENTRIES + 2);
	assert_true(totals.entries >= ENTRIES / 2 && totals.entries <= totals.capacity);
	assert_true(totals.evicted > 18 * ENTRIES);
	assert_int_equal(totals.created, 20 * ENTRIES + 1);
}

static void a_removed_engine_is_forgotten_by_every_session(void **state)
{
	char id[16];
	struct session s;
	uint64_t cursor = 0, homeless = 0;

	for (unsigned i = 0; i < 90; i++) {
		snprintf(id, sizeof id, "s%u", i);
		dispatch(named(id), i % 3, 1, 1 + i);
	}
	assert_int_equal(sessions_forget_engine(&sessions, 1), 30);
	while (sessions_next(&sessions, &cursor, at(100).ns, NULL, &s)) {
		assert_int_not_equal(s.engine, 1);
		homeless += s.engine == SESSION_NO_ENGINE;
	}
	assert_int_equal(homeless, 30);
}

static void a_reader_sees_what_the_writer_noted(void **state)
{
	struct sessions view;
	struct session s;

	dispatch(named("a"), 3, 2, 5);
	assert_int_equal(sessions_view(&view, mem, size, ENTRIES), 0);
	assert_int_equal(session_find(&view, named("a"), at(6).ns, &s), 0);
	assert_int_equal(s.engine, 3);
	assert_int_equal(sessions_view(&view, mem, size, ENTRIES * 2), -EINVAL);
	assert_int_equal(sessions_view(&view, mem, size, ENTRIES / 2), -EPROTO);
}

/* ---- the writer ends ---- */

static jmp_buf out;
static int steps_left;

static void abandon(void)
{
	if (steps_left-- == 0)
		longjmp(out, 1);
}

/* A session whose every field follows from its engine and turn, so that a mixture shows. */
static void note(struct session_key key, uint32_t engine, uint64_t turn, const uint64_t *chain)
{
	struct session_dispatch d = { .engine = engine,
				      .epoch = engine * 100 + turn,
				      .turn = turn,
				      .class = engine,
				      .chain = chain,
				      .blocks = (uint32_t)turn };

	session_note_dispatch(&sessions, key, 1, &d, at(turn));
}

static void assert_whole(const struct session *s)
{
	assert_true(s->engine < ENGINES);
	assert_int_equal(s->epoch, s->engine * 100 + s->turn);
	assert_int_equal(s->class, s->engine);
	assert_int_equal(s->blocks, s->turn);
	assert_int_equal(s->last_ns, at(s->turn).ns);
}

static void assert_all_whole(uint64_t now_s)
{
	struct session s;
	uint64_t cursor = 0;

	while (sessions_next(&sessions, &cursor, at(now_s).ns, NULL, &s))
		assert_whole(&s);
}

static void note_and_end(unsigned *seed, struct session_key key, uint64_t turn,
			 const uint64_t *chain)
{
	steps_left = (int)((uint32_t)rand_r(seed) % (sizeof(struct session) / 8 + 40));
	shm_step_hook = abandon;
	if (!setjmp(out))
		note(key, (uint32_t)turn % ENGINES, turn, chain);
	shm_step_hook = NULL;
}

static void a_writer_that_ends_at_any_store_loses_one_session_at_most(void **state)
{
	uint64_t chain[BLOCKS], lost = 0;
	unsigned seed = 4;

	chain_of(1, 1, BLOCKS, chain);
	for (uint64_t round = 1; round < 800; round++) {
		char id[16];
		uint64_t dropped;
		struct session_key kept = named("kept");

		snprintf(id, sizeof id, "s%u", (unsigned)rand_r(&seed) % 100);
		note(kept, 1, round, chain);
		note_and_end(&seed, named(id), round, chain);
		assert_int_equal(sessions_attach(&sessions, mem, size, ENTRIES, round, &dropped),
				 0);

		assert_true(dropped <= 1);
		assert_int_equal(found(kept, round).turn, round);
		assert_all_whole(round);
		note(named(id), 2, round, chain);
		assert_int_equal(found(named(id), round).engine, 2);
		lost += dropped;
	}
	assert_true(lost > 50);
}

static void write_for_ever(unsigned seed, _Atomic uint32_t *done)
{
	uint64_t chain[BLOCKS];

	chain_of(1, 1, BLOCKS, chain);
	for (;; ++*done) {
		char id[16];
		uint32_t engine = (uint32_t)rand_r(&seed) % ENGINES;

		snprintf(id, sizeof id, "s%u", (unsigned)rand_r(&seed) % 400);
		note(named(id), engine, 1 + (uint64_t)rand_r(&seed) % 500, chain);
	}
}

static void writers_that_are_killed_leave_whole_sessions(void **state)
{
	unsigned seed = 17;
	uint64_t dropped;
	_Atomic uint32_t *done = mmap(NULL, sizeof(*done), PROT_READ | PROT_WRITE,
				      MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	for (unsigned round = 0; round < KILLS; round++) {
		pid_t pid = fork();

		*done = 0;
		if (pid == 0)
			write_for_ever((unsigned)rand_r(&seed) + round, done);
		assert_true(pid > 0);
		while (*done == 0)
			sched_yield();
		nanosleep(&(struct timespec){ .tv_nsec = rand_r(&seed) % 500000 }, NULL);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		assert_int_equal(sessions_attach(&sessions, mem, size, ENTRIES, 1, &dropped), 0);
		assert_true(dropped <= 1);
		assert_all_whole(500);
	}
	munmap((void *)done, sizeof(*done));
}

static void random_bytes_are_survived(void **state)
{
	unsigned seed = 9;

	for (int round = 0; round < 30; round++) {
		for (size_t i = 64; i < size; i++) /* the section's own head stays */
			mem[i] = (uint8_t)rand_r(&seed);
		int err = sessions_attach(&sessions, mem, size, ENTRIES, 1, NULL);

		assert_true(err == 0 || err == -EPROTO);
		assert_int_equal(sessions_clear(&sessions, mem, size, ENTRIES, 1), 0);
		dispatch(named("a"), 3, 2, 5);
		assert_int_equal(found(named("a"), 5).engine, 3);
	}
}

static void a_dispatch_that_came_to_nothing_is_taken_back(void **state)
{
	const uint64_t epochs[ENGINES] = { 10, 11, 12, 13 };
	struct session_key key = named("a");
	struct session before, after;

	dispatch(key, 2, 1, 5);
	before = found(key, 5);
	assert_int_equal(dispatch(key, 3, 2, 6), 1);
	session_undo_dispatch(&sessions, key, &before, 3, at(6).ns);
	after = found(key, 6);
	assert_int_equal(session_home(&after, epochs, ENGINES), 2);
	assert_int_equal(session_recent_moves(&after), 0);
	assert_int_equal(after.turn, 1);
	assert_int_equal(after.dispatches, 1);

	dispatch(named("new"), 3, 1, 6);
	session_undo_dispatch(&sessions, named("new"), NULL, 3, at(6).ns);
	after = found(named("new"), 6);
	assert_int_equal(session_home(&after, epochs, ENGINES), SESSION_NO_ENGINE);
}

static void a_dispatch_is_not_taken_back_over_a_later_one(void **state)
{
	struct session_key key = named("a");
	struct session before;

	dispatch(key, 2, 1, 5);
	before = found(key, 5);
	dispatch(key, 3, 2, 6);
	dispatch(key, 3, 2, 6); /* a second request of the same turn */
	session_undo_dispatch(&sessions, key, &before, 3, at(6).ns);
	assert_int_equal(found(key, 6).engine, 3);
	session_undo_dispatch(&sessions, named("unknown"), NULL, 3, at(6).ns);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(a_key_depends_on_scope_id_and_identity),
		TEST(another_secret_gives_other_keys_but_a_kept_region_keeps_its_own),
		TEST(what_was_noted_is_found),
		TEST(a_session_idle_too_long_is_unknown),
		TEST(an_engine_that_restarted_is_no_home),
		TEST(moves_are_counted_and_the_last_five_turns_remembered),
		TEST(a_retry_binds_to_the_engine_that_served),
		TEST(a_dispatch_that_came_to_nothing_is_taken_back),
		TEST(a_dispatch_is_not_taken_back_over_a_later_one),
		TEST(a_late_answer_does_not_hide_a_later_turn_s_count),
		TEST(an_answer_without_usage_keeps_the_last_exact_count),
		TEST(a_compacted_session_counts_from_its_new_turn),
		TEST(an_answer_to_a_forgotten_session_is_dropped),
		TEST(a_client_that_names_no_session_is_known_by_its_prompt),
		TEST(conversations_that_begin_alike_part_where_they_differ),
		TEST(the_same_first_prompt_again_is_another_conversation),
		TEST(a_short_first_prompt_is_continued_by_its_identity),
		TEST(a_prompt_that_was_rewritten_continues_nothing),
		TEST(the_least_recently_used_give_way),
		TEST(a_removed_engine_is_forgotten_by_every_session),
		TEST(a_reader_sees_what_the_writer_noted),
		TEST(a_writer_that_ends_at_any_store_loses_one_session_at_most),
		TEST(writers_that_are_killed_leave_whole_sessions),
		TEST(random_bytes_are_survived),
	};

	return cmocka_run_group_tests_name("session", tests, NULL, NULL);
}
