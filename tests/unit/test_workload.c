/* Claims about replay's workloads: what is asked is the same for every arm, and as the trace says.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/workload.h"
#include "bench/workload_talk.h"

static struct workload w;
static struct workload_pick pick;
static char path[64], why[WORKLOAD_WHY_MAX];

static int teardown(void **state)
{
	(void)state;
	workload_free(&w);
	if (path[0])
		unlink(path);
	path[0] = 0;
	return 0;
}

static void write_file(const char *text)
{
	snprintf(path, sizeof(path), "workload-XXXXXX");
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
}

static uint32_t *prompt_of(const struct workload_turn *turn)
{
	uint32_t *ids = malloc(turn->prompt_tokens * sizeof(*ids));

	assert_non_null(ids);
	workload_prompt(&w, turn, ids);
	return ids;
}

/* Leading tokens that two prompts have in common. */
static uint32_t common(const struct workload_turn *a, const struct workload_turn *b)
{
	uint32_t *x = prompt_of(a), *y = prompt_of(b), n = 0;

	while (n < a->prompt_tokens && n < b->prompt_tokens && x[n] == y[n])
		n++;
	free(x);
	free(y);
	return n;
}

static void make_design(uint64_t seed)
{
	struct workload_mix mix;

	workload_mix_init(&mix);
	workload_pick_init(&pick);
	pick.seed = seed;
	assert_int_equal(workload_generate(&w, &mix, &pick), 0);
}

static void the_mix_is_the_design_documents(void **state)
{
	double heavy1 = 0, heavy2 = 0, medium = 0, hits = 0, first = 0, n;

	(void)state;
	make_design(11);

	n = (double)w.turns;
	for (size_t i = 0; i < w.turns; i++) {
		const struct workload_turn *t = &w.turn[i];
		int heavy = t->prompt_tokens >= 16384;

		heavy1 += heavy && t->turn == 1;
		first += heavy && t->turn == 1 ? t->prompt_tokens : 0;
		heavy2 += heavy && t->turn > 1;
		hits += heavy && t->turn > 1 ? (double)t->ideal_hit_tokens / t->prompt_tokens : 0;
		medium += !heavy && t->prompt_tokens - t->ideal_hit_tokens > 2048;
	}
	assert_int_equal(w.turns, 850);
	assert_true(heavy2 / n > 0.38 && heavy2 / n < 0.52);
	assert_true(heavy1 / n > 0.11 && heavy1 / n < 0.19);
	assert_true(medium / n > 0.17 && medium / n < 0.27);
	assert_true(first / heavy1 > 34000 && first / heavy1 < 44000);
	assert_true(hits / heavy2 > 0.94 && hits / heavy2 < 0.99);
}

static void a_turn_repeats_the_turn_before_and_its_answer(void **state)
{
	unsigned seen = 0;

	(void)state;
	make_design(3);

	for (size_t i = 1; i < 60; i++) {
		const struct workload_turn *before = &w.turn[i - 1], *t = &w.turn[i];
		uint32_t base = before->prompt_tokens, *ids;
		uint32_t answer[8];
		struct workload_segment head = before->answer;

		if (t->turn == 1)
			continue;
		seen++;
		assert_int_equal(common(before, t), base);
		head.tokens = 8;
		workload_ids(&head, answer);
		ids = prompt_of(t);
		assert_memory_equal(ids + base, answer, sizeof(answer));
		free(ids);
		assert_true(t->ideal_hit_tokens <= base + before->output_tokens);
		assert_true(t->ideal_hit_tokens + 16 > base + before->output_tokens);
	}
	assert_true(seen > 10);
}

static void a_seed_gives_the_same_workload_and_another_one_another(void **state)
{
	struct workload first;

	(void)state;
	make_design(5);
	first = w;
	w = (struct workload){ 0 };
	make_design(5);

	assert_int_equal(w.turns, first.turns);
	assert_memory_equal(w.turn, first.turn, w.turns * sizeof(*w.turn));
	assert_memory_equal(w.segment, first.segment, w.segments * sizeof(*w.segment));
	workload_free(&w);
	make_design(6);
	assert_memory_not_equal(w.turn, first.turn, 10 * sizeof(*w.turn));
	workload_free(&first);
}

static void mooncakes_blocks_are_shared_by_id(void **state)
{
	(void)state;
	write_file("{\"timestamp\": 1000, \"input_length\": 2100, \"output_length\": 5, "
		   "\"hash_ids\": [0, 1, 2, 3, 4]}\n"
		   "[3000, 2700, 6, [[0, 3], 9, 10]]\n"
		   "[3500, 600, 7, [0, 77]]\n");
	workload_pick_init(&pick);

	assert_int_equal(workload_read(&w, path, WORKLOAD_FORM_MOONCAKE, &pick, why), 0);

	assert_int_equal(w.turns, 3);
	assert_true(w.turn[0].at_s == 0 && w.turn[1].at_s == 2 && w.turn[2].at_s == 2.5);
	assert_int_equal(w.turn[0].prompt_tokens, 2100);
	assert_int_equal(common(&w.turn[0], &w.turn[1]), 2048);
	assert_int_equal(w.turn[1].ideal_hit_tokens, 2048);
	assert_int_equal(w.turn[2].ideal_hit_tokens, 512);
	assert_int_equal(w.turn[0].ideal_hit_tokens, 0);
}

static void the_last_token_is_always_computed(void **state)
{
	(void)state;
	write_file("[0, 1024, 5, [3, 4]]\n[9, 1024, 5, [3, 4]]\n");
	workload_pick_init(&pick);

	assert_int_equal(workload_read(&w, path, WORKLOAD_FORM_MOONCAKE, &pick, why), 0);

	assert_int_equal(w.turn[1].ideal_hit_tokens, 1008);
}

static void a_conversation_of_mooncake_is_found_by_its_blocks(void **state)
{
	(void)state;
	/* Its last block is not full, and so not the same when the conversation goes on. */
	write_file("[0, 2000, 5, [0, 1, 2, 3]]\n[9, 2048, 5, [0, 1, 8, 9]]\n"
		   "[50, 3072, 5, [0, 1, 2, 19, 20, 21]]\n");
	workload_pick_init(&pick);

	assert_int_equal(workload_read(&w, path, WORKLOAD_FORM_MOONCAKE, &pick, why), 0);

	assert_int_equal(w.sessions, 2);
	assert_int_equal(w.turn[2].session, w.turn[0].session);
	assert_int_equal(w.turn[2].turn, 2);
	assert_int_equal(w.turn[1].turn, 1);
}

static void azures_times_are_read_in_both_forms(void **state)
{
	(void)state;
	write_file("TIMESTAMP,ContextTokens,GeneratedTokens\n"
		   "2023-11-16 23:59:59.500000,4808,10\n2023-11-17 00:00:01.000000,3180,8\n");
	workload_pick_init(&pick);

	assert_int_equal(workload_read(&w, path, WORKLOAD_FORM_AZURE, &pick, why), 0);

	assert_int_equal(w.turns, 2);
	assert_true(w.turn[1].at_s > 1.499 && w.turn[1].at_s < 1.501);
	assert_int_equal(w.turn[1].prompt_tokens, 3180);
	assert_int_equal(w.turn[1].output_tokens, 8);
	assert_int_equal(w.turn[1].ideal_hit_tokens, 0);
}

static void an_asked_rate_keeps_the_rhythm(void **state)
{
	(void)state;
	write_file("t_s,input,output\n0,100,1\n1,100,1\n4,100,1\n");
	workload_pick_init(&pick);
	pick.rate = 3;

	assert_int_equal(workload_read(&w, path, WORKLOAD_FORM_AZURE, &pick, why), 0);

	assert_true(w.turn[1].at_s == 0.25 && w.turn[2].at_s == 1);
}

static void a_broken_line_is_named(void **state)
{
	(void)state;
	write_file("[0, 100, 5, [0]]\n[0, 100, 5]\n");
	workload_pick_init(&pick);

	assert_int_equal(workload_read(&w, path, WORKLOAD_FORM_MOONCAKE, &pick, why), -22);

	assert_non_null(strstr(why, "line 2"));
}

static void a_traces_sessions_share_their_system_prompt(void **state)
{
	const struct workload_turn *second;

	(void)state;
	write_file("{\"id\":\"a\",\"bs\":64,\"tool_tokens\":640,\"system_tokens\":0,\"r\":"
		   "[[0,1000,30,0,1,[[1,15]]],[9,1500,20,4.5,1,[[1,23]]]]}\n"
		   "{\"id\":\"b\",\"bs\":64,\"tool_tokens\":640,\"system_tokens\":0,\"r\":"
		   "[[0,2000,30,0,1,[[1,31]]]]}\n");
	workload_pick_init(&pick);

	assert_int_equal(workload_read(&w, path, WORKLOAD_FORM_SESSIONS, &pick, why), 0);

	assert_int_equal(w.turns, 3);
	assert_int_equal(w.sessions, 2);
	size_t a = w.session[0].turns == 2 ? 0 : 1;
	second = &w.turn[w.session[a].turn + 1];
	assert_int_equal(common(&w.turn[w.session[0].turn], &w.turn[w.session[1].turn]), 640);
	assert_int_equal(common(&w.turn[w.session[a].turn], second), 1000);
	assert_true(second->think_s == 4.5 && second->at_s < 0);
	assert_int_equal(second->ideal_hit_tokens, 1024); /* with the answer of 30 tokens */
}

/* Contexts of which an engine of 329,000 tokens has room for three or four, answers of minutes. */
static void the_long_mix_is_long(void **state)
{
	struct workload_mix mix;
	double tokens = 0, output = 0, fresh = 0, later = 0;

	(void)state;
	workload_mix_long(&mix);
	workload_pick_init(&pick);
	assert_int_equal(workload_generate(&w, &mix, &pick), 0);

	for (size_t i = 0; i < w.turns; i++) {
		const struct workload_turn *t = &w.turn[i];

		output += t->output_tokens / (double)w.turns;
		if (t->turn < 2)
			continue;
		later++;
		tokens += t->prompt_tokens;
		fresh += t->prompt_tokens - t->ideal_hit_tokens;
	}
	assert_int_equal(w.turns, 600);
	assert_true(tokens / later > 50000 && tokens / later < 95000);
	assert_true(fresh / later < 3500 && output > 1400 && output < 2200);
	assert_true(later > 0.8 * 600);
}

#define QWEN(chat, parent, at, input, ids)                                                       \
	"{\"chat_id\": " chat ", \"parent_chat_id\": " parent ", \"timestamp\": " at             \
	", \"input_length\": " input ", \"output_length\": 9, \"type\": \"text\", \"turn\": 1, " \
	"\"hash_ids\": [" ids "]}\n"

/* Three chats: the second answers the first, the third's parent is not in the file. */
static void qwens_turns_follow_their_parents(void **state)
{
	(void)state;
	write_file(QWEN("7", "-1", "0.5", "40", "5, 6, 900") QWEN(
		"9", "3", "1.0", "33", "5, 70000, 2") QWEN("8", "7", "4.5", "64", "5, 6, 7, 8"));
	workload_pick_init(&pick);

	assert_int_equal(workload_read(&w, path, WORKLOAD_FORM_QWEN, &pick, why), 0);

	assert_int_equal(w.turns, 3);
	assert_int_equal(w.sessions, 2);
	assert_int_equal(w.turn[2].session, w.turn[0].session);
	assert_int_equal(w.turn[2].turn, 2);
	assert_int_equal(w.turn[1].turn, 1);
	assert_true(w.turn[1].at_s == 0.5 && w.turn[2].at_s == 4);
	assert_int_equal(common(&w.turn[0], &w.turn[1]), 16);
	assert_int_equal(common(&w.turn[0], &w.turn[2]), 32);
	assert_int_equal(w.turn[2].ideal_hit_tokens, 32);
}

/* Rows out of order, a pause of 4 s and one that is longer than anybody is thought to think. */
static void a_closed_loop_waits_for_the_answer(void **state)
{
	(void)state;
	write_file(QWEN("2", "1", "14", "64", "5, 6, 7, 8") QWEN("1", "-1", "10", "40", "5, 6, 9")
			   QWEN("4", "-1", "12", "40", "1, 2, 3")
				   QWEN("3", "2", "900", "64", "5, 6, 7, 8"));
	workload_pick_init(&pick);
	pick.loop = WORKLOAD_CLOSED;
	/* the parent of the first row comes behind it: a session of its own */
	assert_int_equal(workload_read(&w, path, WORKLOAD_FORM_QWEN, &pick, why), 0);

	assert_int_equal(w.sessions, 3);
	for (size_t i = 0; i < w.turns; i++) {
		assert_true(w.turn[i].at_s < 0);
		if (w.turn[i].turn == 2)
			assert_true(w.turn[i].think_s == 60 && w.turn[i - 1].turn == 1);
	}
	assert_true(w.session[0].start_s == 4 && w.session[1].start_s == 0);
}

static void pauses_can_be_drawn_and_sessions_given_a_rate(void **state)
{
	double think_s = 0;

	(void)state;
	write_file("[0, 2000, 5, [0, 1, 2]]\n[9000, 2048, 5, [0, 1, 2, 3]]\n"
		   "[30000, 3072, 5, [0, 1, 8, 9]]\n[40000, 3072, 5, [0, 1, 8, 9, 10]]\n");
	workload_pick_init(&pick);
	pick.loop = WORKLOAD_CLOSED;
	assert_int_equal(workload_read(&w, path, WORKLOAD_FORM_MOONCAKE, &pick, why), 0);
	assert_int_equal(w.sessions, 2);
	assert_true(w.turn[1].think_s == 9 && w.turn[3].think_s == 10);
	workload_free(&w);
	pick.think_s = 500;
	pick.rate = 0.5;
	assert_int_equal(workload_read(&w, path, WORKLOAD_FORM_MOONCAKE, &pick, why), 0);

	for (size_t i = 0; i < w.turns; i++)
		think_s += w.turn[i].think_s;
	assert_true(think_s > 0 && think_s != 19);
	assert_true(w.session[1].start_s > 3.999 && w.session[1].start_s < 4.001);
}

/* The second turn of an idle engine's open loop comes when the closed loop's would. */
static void an_open_loop_knows_no_answers(void **state)
{
	struct workload_mix mix;
	unsigned later = 0;

	(void)state;
	workload_mix_init(&mix);
	workload_pick_init(&pick);
	mix.requests = 200;
	pick.loop = WORKLOAD_OPEN;

	assert_int_equal(workload_generate(&w, &mix, &pick), 0);

	for (size_t i = 0; i < w.turns; i++) {
		const struct workload_turn *t = &w.turn[i];

		assert_true(t->at_s >= 0);
		if (t->turn == 1) {
			assert_true(t->at_s == w.session[t->session].start_s);
			continue;
		}
		later++;
		assert_true(t->at_s > t[-1].at_s + t->think_s + 0.0132 * t[-1].output_tokens);
	}
	assert_true(later > 80);
}

static void blocks_can_be_of_any_size(void **state)
{
	(void)state;
	write_file("[0, 300, 5, [1, 2, 3]]\n[9, 300, 5, [[1, 2], 9]]\n");
	workload_pick_init(&pick);
	pick.block = 128;

	assert_int_equal(workload_read(&w, path, WORKLOAD_FORM_MOONCAKE, &pick, why), 0);

	assert_int_equal(common(&w.turn[0], &w.turn[1]), 256);
	assert_int_equal(w.turn[0].segments, 1); /* ids that follow each other are one text */
}

/* A range says no less than its ids one by one. */
static void a_conversation_is_found_inside_a_range(void **state)
{
	(void)state;
	write_file("[0, 2048, 5, [[0, 3]]]\n[9000, 4096, 5, [[0, 7]]]\n");
	workload_pick_init(&pick);

	assert_int_equal(workload_read(&w, path, WORKLOAD_FORM_MOONCAKE, &pick, why), 0);

	assert_int_equal(w.sessions, 1);
	assert_int_equal(w.turn[1].turn, 2);
}

static void sessions_can_be_bounded(void **state)
{
	(void)state;
	write_file("[0, 2048, 5, [[0, 3]]]\n[5, 2048, 5, [[10, 13]]]\n[9000, 4096, 5, [[0, 7]]]\n");
	workload_pick_init(&pick);
	pick.sessions = 1;

	assert_int_equal(workload_read(&w, path, WORKLOAD_FORM_MOONCAKE, &pick, why), 0);

	assert_int_equal(w.turns, 2);
	assert_int_equal(w.turn[1].at_s, 9);
}

static void a_form_is_known_by_its_first_line(void **state)
{
	static const struct {
		const char *text;
		int form; /* -1 = none */
	} cases[] = {
		{ "\n[0, 100, 5, [0]]\n", WORKLOAD_FORM_MOONCAKE },
		{ "{\"timestamp\": 0, \"input_length\": 9, \"output_length\": 1, \"hash_ids\": []}",
		  WORKLOAD_FORM_MOONCAKE },
		{ QWEN("1", "-1", "0", "9", ""), WORKLOAD_FORM_QWEN },
		{ "{\"id\":\"a\",\"bs\":64,\"r\":[]}", WORKLOAD_FORM_SESSIONS },
		{ "TIMESTAMP,ContextTokens,GeneratedTokens\n", WORKLOAD_FORM_AZURE },
		{ "0.0,1,2\n", WORKLOAD_FORM_AZURE },
		{ "{\"model\": \"none\"}\n", -1 },
		{ "[0, 100, 5, [0\n", -1 },
		{ "\xfd"
		  "7zXZ...",
		  -1 },
		{ "\n\n", -1 },
	};
	enum workload_form form;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		write_file(cases[i].text);
		if (cases[i].form >= 0) {
			assert_int_equal(workload_form_of(path, &form, why), 0);
			assert_int_equal(form, cases[i].form);
		} else {
			assert_int_equal(workload_form_of(path, &form, why), -22);
			assert_true(why[0] != 0);
		}
		unlink(path);
	}
}

static void arrivals_of_a_year_are_refused(void **state)
{
	(void)state;
	write_file("0,100,1\n31536000,100,1\n");
	workload_pick_init(&pick);
	assert_int_equal(workload_read(&w, path, WORKLOAD_FORM_AZURE, &pick, why), -7);
	assert_non_null(strstr(why, "--rate"));
	workload_free(&w);
	pick.rate = 1;
	assert_int_equal(workload_read(&w, path, WORKLOAD_FORM_AZURE, &pick, why), 0);
	assert_true(w.turn[1].at_s == 2);
}

static void every_broken_line_is_named(void **state)
{
	static const struct {
		enum workload_form form;
		const char *text;
	} cases[] = {
		{ WORKLOAD_FORM_MOONCAKE, "\n[0, 100, 5, [0]]\n[1, 100, 5, [0]\n" },
		{ WORKLOAD_FORM_MOONCAKE, "\n[0, 100, 5, [0]]\n[1, 100, 5, [-1]]\n" },
		{ WORKLOAD_FORM_MOONCAKE, "\n[0, 100, 5, [0]]\n[1, 100, 5, [[3, 2]]]\n" },
		{ WORKLOAD_FORM_MOONCAKE, "\n[0, 100, 5, [0]]\n[1, 100, 5, [99999999]]\n" },
		{ WORKLOAD_FORM_MOONCAKE, "\n[0, 100, 5, [0]]\n[1, 0, 5, [0]]\n" },
		{ WORKLOAD_FORM_MOONCAKE, "\n[0, 100, 5, [0]]\n[1, 99999999, 5, [0]]\n" },
		{ WORKLOAD_FORM_MOONCAKE, "\n[0, 100, 5, [0]]\n[-1, 9, 5, [0]]\n" },
		{ WORKLOAD_FORM_QWEN,
		  "\n" QWEN("1", "-1", "0", "9", "1") QWEN("-1", "-1", "0", "9", "1") },
		{ WORKLOAD_FORM_QWEN,
		  "\n" QWEN("1", "-1", "0", "9", "1") QWEN("2", "-1", "\"x\"", "9", "1") },
		{ WORKLOAD_FORM_AZURE, "\n0,5,1\n1,5\n" },
		{ WORKLOAD_FORM_AZURE, "\n0,5,1\n1,,5\n" },
		{ WORKLOAD_FORM_AZURE, "\n0,5,1\nnan,5,1\n" },
		{ WORKLOAD_FORM_AZURE, "\n0,5,1\n1,5,1x\n" },
	};

	(void)state;
	workload_pick_init(&pick);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		write_file(cases[i].text);
		why[0] = 0;
		assert_int_equal(workload_read(&w, path, cases[i].form, &pick, why), -22);
		if (!strstr(why, "line 3"))
			fail_msg("case %zu: '%s'", i, why);
		workload_free(&w);
		unlink(path);
	}
}

/* Plays one session with answers of the lengths asked for; each prompt is looked at. */
static void converse(const struct sessions *s, size_t index)
{
	const struct workload_session *from = &w.session[index];
	struct tokenizer_ids ids = { 0 }, before = { 0 };
	struct talk talk;
	uint32_t had = 0;

	talk_init(&talk, s, index, 0);
	for (uint32_t i = 0; i < from->turns; i++) {
		const struct workload_turn *turn = &w.turn[from->turn + i];
		char *answer = malloc((size_t)had * TOKENIZER_WORD_BYTES + 1);

		assert_non_null(answer);
		for (uint32_t k = 0; k < had; k++)
			sessions_word(99, k, answer + (size_t)k * TOKENIZER_WORD_BYTES);
		assert_int_equal(talk_next(&talk, answer, (size_t)had * TOKENIZER_WORD_BYTES, had),
				 0);
		free(answer);
		ids.nr = 0;
		assert_int_equal(talk_ids(&talk, &ids), 0);
		assert_int_equal(ids.nr, turn->prompt_tokens);
		if (i > 0)
			assert_memory_equal(ids.id, before.id, before.nr * sizeof(*ids.id));
		before.nr = 0;
		assert_int_equal(talk_ids(&talk, &before), 0);
		had = turn->output_tokens;
	}
	talk_fini(&talk);
	tokenizer_ids_fini(&ids);
	tokenizer_ids_fini(&before);
}

static void a_workload_becomes_conversations_of_its_lengths(void **state)
{
	struct sessions s;

	(void)state;
	make_design(4);

	assert_int_equal(workload_sessions(&s, &w), 0);
	assert_int_equal(s.sessions, w.sessions);
	assert_int_equal(s.turns, w.turns);
	for (size_t i = 0; i < 8; i++)
		converse(&s, i);
	sessions_free(&s);
}

static void conversations_keep_and_share_what_the_trace_does(void **state)
{
	struct sessions s;

	(void)state;
	write_file("{\"id\":\"a\",\"bs\":64,\"tool_tokens\":60,\"system_tokens\":40,\"r\":["
		   "[0,1000,10,0,1,[[1,15]]],[9,1100,10,5,1,[[1,10],[21,27]]]]}\n"
		   "{\"id\":\"b\",\"bs\":64,\"tool_tokens\":60,\"system_tokens\":40,\"r\":["
		   "[0,900,10,0,1,[[1,14]]],[9,950,10,5,1,[[1,14]]]]}\n");
	workload_pick_init(&pick);
	assert_int_equal(workload_read(&w, path, WORKLOAD_FORM_SESSIONS, &pick, why), 0);

	assert_int_equal(workload_sessions(&s, &w), 0);
	assert_int_equal(s.session[0].system_tokens, 100);
	assert_true(s.session[0].system_key == s.session[1].system_key);
	assert_true(s.session[0].key != s.session[1].key);
	for (size_t i = 0; i < 2; i++) {
		const struct sessions_turn *second = &s.turn[s.session[i].turn + 1];
		bool cut = second->prompt_tokens == 1100;

		assert_int_equal(second->kept_tokens, cut ? 640 : UINT32_MAX);
		assert_true(second->think_s == 5);
	}
	sessions_free(&s);
}

static void an_open_loop_is_no_conversation(void **state)
{
	struct sessions s;

	(void)state;
	write_file("TIMESTAMP,ContextTokens,GeneratedTokens\n0.5,100,10\n");
	workload_pick_init(&pick);
	assert_int_equal(workload_read(&w, path, WORKLOAD_FORM_AZURE, &pick, why), 0);

	assert_int_equal(workload_sessions(&s, &w), -22);
	sessions_free(&s);
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_teardown(name, teardown)
	const struct CMUnitTest tests[] = {
		CLAIM(the_mix_is_the_design_documents),
		CLAIM(a_turn_repeats_the_turn_before_and_its_answer),
		CLAIM(a_seed_gives_the_same_workload_and_another_one_another),
		CLAIM(mooncakes_blocks_are_shared_by_id),
		CLAIM(the_last_token_is_always_computed),
		CLAIM(a_conversation_of_mooncake_is_found_by_its_blocks),
		CLAIM(azures_times_are_read_in_both_forms),
		CLAIM(an_asked_rate_keeps_the_rhythm),
		CLAIM(a_broken_line_is_named),
		CLAIM(the_long_mix_is_long),
		CLAIM(qwens_turns_follow_their_parents),
		CLAIM(a_closed_loop_waits_for_the_answer),
		CLAIM(pauses_can_be_drawn_and_sessions_given_a_rate),
		CLAIM(an_open_loop_knows_no_answers),
		CLAIM(blocks_can_be_of_any_size),
		CLAIM(a_conversation_is_found_inside_a_range),
		CLAIM(sessions_can_be_bounded),
		CLAIM(a_form_is_known_by_its_first_line),
		CLAIM(arrivals_of_a_year_are_refused),
		CLAIM(every_broken_line_is_named),
		CLAIM(a_traces_sessions_share_their_system_prompt),
		CLAIM(a_workload_becomes_conversations_of_its_lengths),
		CLAIM(conversations_keep_and_share_what_the_trace_does),
		CLAIM(an_open_loop_is_no_conversation),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
