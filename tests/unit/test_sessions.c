/* bench/sessions: traces are read strictly, prompts have the trace's lengths, equal ids equal text.
 */
#include "tests/lib/unit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/sessions.h"
#include "shm/base/jread.h"

static const struct sessions_limits wide = {
	.first_prompt_max = 100000, .turns_max = 100, .context_max = 200000, .think_max_s = 60
};

/* Two sessions with equal tools and system prompt: five turns, the third rewrites its end. */
static const char two[] =
	"{\"id\":\"a\",\"bs\":64,\"tool_tokens\":500,\"system_tokens\":100,\"r\":["
	"[0,1000,50,0,1,[[1,15]]],[5,1200,60,3,1,[[1,18]]],[9,1500,40,500,1,[[1,17],[30,35]]],"
	"[9,1600,40,1,1,[[1,17],[30,37]]],[9,700,40,1,1,[[1,10]]]]}\n"
	"\n"
	"{\"id\":\"b\",\"bs\":64,\"tool_tokens\":500,\"system_tokens\":100,\"r\":["
	"[0,900,50,0,1,[[1,14]]]]}\n";

static int read_text(struct sessions *s, const char *text, const struct sessions_limits *limits,
		     char *why)
{
	char path[] = "/tmp/turnward-sessions-XXXXXX";
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
	int err = sessions_read(s, path, limits, why);
	unlink(path);
	return err;
}

static void read_two(struct sessions *s)
{
	char why[SESSIONS_WHY_MAX] = "";

	if (read_text(s, two, &wide, why))
		fail_msg("%s", why);
}

/* An answer as the modelled engine gives one. */
static void answer_of(char *text, uint32_t tokens, uint64_t key)
{
	for (uint32_t i = 0; i < tokens; i++)
		sessions_word(key, i, text + i * TOKENIZER_WORD_BYTES);
}

static uint32_t ids_of(const struct talk *talk, uint32_t *ret_ids, size_t room)
{
	struct tokenizer_ids ids = { 0 };

	assert_int_equal(talk_ids(talk, &ids), 0);
	size_t nr = ids.nr;
	if (ret_ids) {
		assert_true(nr <= room);
		memcpy(ret_ids, ids.id, nr * sizeof(*ret_ids));
	}
	tokenizer_ids_fini(&ids);
	return (uint32_t)nr;
}

static uint32_t common(const uint32_t *a, uint32_t n, const uint32_t *b, uint32_t m)
{
	uint32_t i = 0;

	while (i < n && i < m && a[i] == b[i])
		i++;
	return i;
}

static void a_file_gives_its_sessions_and_turns(void **state)
{
	struct sessions s;

	read_two(&s);

	assert_int_equal(s.sessions, 2);
	assert_int_equal(s.session[0].turns, 5);
	assert_int_equal(s.session[0].system_tokens, 600);
	assert_int_equal(s.session[0].system_key, s.session[1].system_key);
	assert_int_not_equal(s.session[0].key, s.session[1].key);
	assert_int_equal(s.turn[1].prompt_tokens, 1200);
	assert_int_equal(s.turn[1].output_tokens, 60);
	assert_true(s.turn[1].think_s == 3 && s.turn[2].think_s == 60);
	assert_int_equal(s.turn[1].kept_tokens, UINT32_MAX);
	assert_int_equal(s.turn[2].kept_tokens, 17 * 64);
	assert_int_equal(s.turn[4].kept_tokens, 10 * 64);
	sessions_free(&s);
}

static void limits_leave_out_and_cut(void **state)
{
	struct sessions_limits limits = wide;
	char why[SESSIONS_WHY_MAX];
	struct sessions s;

	limits.first_prompt_max = 950;
	assert_int_equal(read_text(&s, two, &limits, why), 0);
	assert_int_equal(s.sessions, 1);
	assert_int_equal(s.turns, 1);
	sessions_free(&s);
	limits = wide;
	limits.context_max = 1260;
	assert_int_equal(read_text(&s, two, &limits, why), 0);
	assert_int_equal(s.session[0].turns, 2);
	sessions_free(&s);
	limits.first_prompt_max = 10;
	assert_int_equal(read_text(&s, two, &limits, why), -EINVAL);
	sessions_free(&s);
}

static void a_broken_line_is_named(void **state)
{
	static const char *const broken[] = {
		"{\"id\":\"a\",\"r\":[]}\nnonsense\n",
		"\n{\"id\":\"a\"}\n",
		"\n{\"id\":\"a\",\"r\":[[0,5]]}\n",
		"\n{\"id\":\"a\",\"r\":[[0,0,1,0,0,[]]]}\n",
		"\n{\"id\":\"a\",\"r\":[[0,100,1,-1,0,[]]]}\n",
		"\n{\"id\":\"a\",\"r\":[[0,100,1,0,0,[[5,4]]]]}\n",
		"\n{\"id\":\"a\",\"bs\":0,\"r\":[[0,100,1,0,0,[]]]}\n",
	};
	char why[SESSIONS_WHY_MAX];
	struct sessions s;

	for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
		assert_int_equal(read_text(&s, broken[i], &wide, why), -EINVAL);
		assert_non_null(strstr(why, "line 2"));
		sessions_free(&s);
	}
	assert_int_equal(sessions_read(&s, "/nonexistent/file", &wide, why), -ENOENT);
	sessions_free(&s);
}

static void every_prompt_has_its_length_to_the_token(void **state)
{
	static const uint32_t lengths[] = { 1000, 1200, 1500, 1600, 700 };
	char answer[100 * TOKENIZER_WORD_BYTES];
	struct sessions s;
	struct talk talk;

	read_two(&s);
	talk_init(&talk, &s, 0, 0);
	answer_of(answer, 50, 7);

	for (int i = 0; i < 5; i++) {
		assert_int_equal(talk_next(&talk, answer, 50 * TOKENIZER_WORD_BYTES, 50), 0);
		assert_int_equal(ids_of(&talk, NULL, 0), lengths[i]);
	}
	assert_int_equal(talk_next(&talk, answer, 0, 0), -ENODATA);
	talk_fini(&talk);
	sessions_free(&s);
}

static void a_turn_repeats_what_the_trace_says_it_keeps(void **state)
{
	static const uint32_t kept[] = { 0, 1000 - 2, 17 * 64, 1500 - 2, 10 * 64 };
	char answer[100 * TOKENIZER_WORD_BYTES];
	uint32_t before[2048], now[2048], had = 0;
	struct sessions s;
	struct talk talk;

	read_two(&s);
	talk_init(&talk, &s, 0, 0);
	answer_of(answer, 50, 7);

	for (int i = 0; i < 5; i++) {
		assert_int_equal(talk_next(&talk, answer, 50 * TOKENIZER_WORD_BYTES, 50), 0);
		uint32_t nr = ids_of(&talk, now, 2048), same = common(before, had, now, nr);

		assert_true(i == 0 || (same >= kept[i] - SESSIONS_MESSAGE_MIN &&
				       same <= kept[i] + SESSIONS_OPENING));
		memcpy(before, now, sizeof(now));
		had = nr;
	}
	talk_fini(&talk);
	sessions_free(&s);
}

static void equal_system_prompts_are_equal_text_and_the_rest_is_not(void **state)
{
	uint32_t a[2048], b[2048], c[2048];
	struct sessions s;
	struct talk one, other, copy;

	read_two(&s);
	talk_init(&one, &s, 0, 0);
	talk_init(&other, &s, 1, 0);
	talk_init(&copy, &s, 0, 1);
	talk_next(&one, NULL, 0, 0);
	talk_next(&other, NULL, 0, 0);
	talk_next(&copy, NULL, 0, 0);

	uint32_t n = ids_of(&one, a, 2048), m = ids_of(&other, b, 2048), k = ids_of(&copy, c, 2048);
	assert_in_range(common(a, n, b, m), 600, 604);
	assert_in_range(common(a, n, c, k), 600, 604);
	talk_fini(&one);
	talk_fini(&other);
	talk_fini(&copy);
	sessions_free(&s);
}

static void the_answer_stands_in_the_history(void **state)
{
	char answer[50 * TOKENIZER_WORD_BYTES + 1] = "";
	struct sessions s;
	struct talk talk;

	read_two(&s);
	talk_init(&talk, &s, 0, 0);
	answer_of(answer, 50, 7);
	talk_next(&talk, NULL, 0, 0);
	talk_next(&talk, answer, 50 * TOKENIZER_WORD_BYTES, 50);

	assert_non_null(memmem(talk.text, talk.len, answer, 50 * TOKENIZER_WORD_BYTES));
	talk_fini(&talk);
	sessions_free(&s);
}

/* What the next prompt has no room for was reasoning: the answer's end is kept. */
static void an_answer_too_long_for_the_trace_keeps_its_end(void **state)
{
	enum { TOKENS = 400 };
	char answer[TOKENS * TOKENIZER_WORD_BYTES];
	const size_t last = 100 * TOKENIZER_WORD_BYTES;
	struct sessions s;
	struct talk talk;

	read_two(&s);
	talk_init(&talk, &s, 0, 0);
	answer_of(answer, TOKENS, 7);
	talk_next(&talk, NULL, 0, 0);
	talk_next(&talk, answer, sizeof(answer), TOKENS);

	assert_int_equal(ids_of(&talk, NULL, 0), 1200);
	assert_null(memmem(talk.text, talk.len, answer, last));
	assert_non_null(memmem(talk.text, talk.len, answer + sizeof(answer) - last, last));
	talk_fini(&talk);
	sessions_free(&s);
}

static void the_messages_are_json(void **state)
{
	char answer[] = "caf\\u00e9 \\\"quoted\\\" \\n end", text[8192];
	struct jread root, last;
	struct sessions s;
	struct talk talk;

	read_two(&s);
	talk_init(&talk, &s, 0, 0);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(talk_next(&talk, answer, sizeof(answer) - 1, 9), 0);
		char *whole = malloc(talk.len + 3);
		int n = snprintf(whole, talk.len + 3, "[%.*s]", (int)talk.len, talk.text);

		assert_int_equal(jread_open(&root, whole, (size_t)n), 0);
		assert_int_equal(jread_count(&root), talk.messages);
		assert_int_equal(jread_get(&root, "[0].role", &last), 0);
		assert_true(jread_is(&last, "system"));
		free(whole);
	}
	assert_int_equal(talk.message[2].role, TALK_ASSISTANT);
	snprintf(text, sizeof(text), "\"%.*s\"", (int)talk.message[2].text_len,
		 talk.text + talk.message[2].text_at);
	assert_int_equal(jread_open(&root, text, strlen(text)), 0);
	talk_fini(&talk);
	sessions_free(&s);
}

static void the_excerpt_is_read_and_plays_to_its_end(void **state)
{
	const struct sessions_limits limits = {
		.first_prompt_max = 40000, .turns_max = 12, .context_max = 120000, .think_max_s = 60
	};
	char path[4096], why[SESSIONS_WHY_MAX] = "";
	const char *root = getenv("TEST_SOURCE_ROOT");
	struct sessions s;
	uint32_t off = 0;

	snprintf(path, sizeof(path), "%s/bench/traces/claude_code.jsonl", root ? root : ".");
	if (sessions_read(&s, path, &limits, why))
		fail_msg("%s", why);
	assert_int_equal(s.sessions, 200);
	for (size_t i = 0; i < 20; i++) {
		char *answer = malloc(20000 * TOKENIZER_WORD_BYTES);
		uint32_t tokens = 0;
		struct talk talk;

		answer_of(answer, 20000, i);
		talk_init(&talk, &s, i, 0);
		while (talk_next(&talk, answer, tokens * TOKENIZER_WORD_BYTES, tokens) == 0) {
			uint32_t wanted = talk_turn(&talk)->prompt_tokens;
			uint32_t got = ids_of(&talk, NULL, 0);

			tokens = talk_turn(&talk)->output_tokens;
			off += got != wanted;
			assert_in_range(got, wanted, wanted + 2 * SESSIONS_MESSAGE_MIN);
		}
		talk_fini(&talk);
		free(answer);
	}
	assert_true(off <= 4); /* where a trace's prompt shrinks by less than a message */
	sessions_free(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(a_file_gives_its_sessions_and_turns),
		CLAIM(limits_leave_out_and_cut),
		CLAIM(a_broken_line_is_named),
		CLAIM(every_prompt_has_its_length_to_the_token),
		CLAIM(a_turn_repeats_what_the_trace_says_it_keeps),
		CLAIM(equal_system_prompts_are_equal_text_and_the_rest_is_not),
		CLAIM(the_answer_stands_in_the_history),
		CLAIM(an_answer_too_long_for_the_trace_keeps_its_end),
		CLAIM(the_messages_are_json),
		CLAIM(the_excerpt_is_read_and_plays_to_its_end),
	};

	return cmocka_run_group_tests_name("sessions", tests, NULL, NULL);
}
