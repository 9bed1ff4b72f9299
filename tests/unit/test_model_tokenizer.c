/* The tokeniser: stable prefixes, answers that come back as the ids they were made of, proportions.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/model/model.h"
#include "bench/model/tokenizer.h"
#include "tests/lib/unit.h"

static const char code[] =
	"static void request_free(struct model_request "
	"*r)\n{\n\tfree(r->chain);\n\tfree(r->block);\n"
	"\tfree(r);\n}\n\n/* The deepest block becomes idle first, so that it is reused first. */\n"
	"while (r->blocks_nr)\n\tkv_drop(&m->kv, r->block[--r->blocks_nr]);\n";
static const char prose[] = "Turnward is a local dispatcher: it sends every turn of a session "
			    "toward the engine where that "
			    "turn will answer first. This page says what each part owns, how data "
			    "flows, what must always "
			    "hold, and the names that scripts rely on.";

static size_t split(struct tokenizer_ids *ids, const char *text, size_t len)
{
	size_t before = ids->nr;

	assert_int_equal(tokenizer_text(ids, text, len), 0);
	return ids->nr - before;
}

static void the_ids_of_a_prefix_are_a_prefix_but_for_the_last(void **state)
{
	struct tokenizer_ids whole = { 0 };

	split(&whole, code, strlen(code));
	for (size_t cut = 1; cut < strlen(code); cut++) {
		struct tokenizer_ids part = { 0 };

		split(&part, code, cut);
		assert_memory_equal(part.id, whole.id, (part.nr - 1) * sizeof(part.id[0]));
		tokenizer_ids_fini(&part);
	}
	tokenizer_ids_fini(&whole);
}

static void prose_and_code_take_about_four_bytes_a_token(void **state)
{
	struct tokenizer_ids ids = { 0 };
	double of_code = (double)strlen(code) / (double)split(&ids, code, strlen(code));
	double of_prose = (double)strlen(prose) / (double)split(&ids, prose, strlen(prose));

	if (of_code < 3 || of_code > 5.3 || of_prose < 3.5 || of_prose > 5)
		fail_msg("code %.2f, prose %.2f bytes a token", of_code, of_prose);
	tokenizer_ids_fini(&ids);
}

static void every_digit_is_a_token(void **state)
{
	struct tokenizer_ids ids = { 0 };

	assert_int_equal(split(&ids, "1234567890", 10), 10);
	assert_int_equal(split(&ids, " 42", 3), 3);
	tokenizer_ids_fini(&ids);
}

static void a_generated_answer_comes_back_as_its_own_ids(void **state)
{
	struct tokenizer_ids back = { 0 };
	char text[4096];
	uint32_t ids[500];
	size_t len = 0;

	for (uint32_t i = 0; i < 500; i++) {
		ids[i] = model_output_id(0x123456789abcdef0, i);
		len += tokenizer_text_of(NULL, ids[i], text + len);
	}
	split(&back, text, len);

	assert_int_equal(back.nr, 500);
	assert_memory_equal(back.id, ids, sizeof(ids));
	tokenizer_ids_fini(&back);
}

static void a_client_that_trims_the_answer_changes_no_id(void **state)
{
	struct tokenizer_ids plain = { 0 }, trimmed = { 0 };

	split(&plain, " wabc wdef", 10);
	split(&trimmed, "wabc wdef", 9);

	assert_int_equal(plain.nr, 2);
	assert_int_equal(trimmed.nr, 2);
	assert_memory_equal(plain.id, trimmed.id, 2 * sizeof(plain.id[0]));
	tokenizer_ids_fini(&plain);
	tokenizer_ids_fini(&trimmed);
}

static void a_word_that_only_begins_like_an_answers_is_another(void **state)
{
	struct tokenizer_ids ids = { 0 };

	split(&ids, " wabc wabcd wabz", 16);

	assert_int_equal(ids.nr, 3);
	assert_true(ids.id[0] < TOKENIZER_PIECE_FIRST);
	assert_true(ids.id[1] >= TOKENIZER_PIECE_FIRST);
	assert_true(ids.id[2] >= TOKENIZER_PIECE_FIRST);
	tokenizer_ids_fini(&ids);
}

static void remembered_pieces_turn_back_into_their_text(void **state)
{
	struct tokenizer_memory *memory = calloc(1, sizeof(*memory));
	struct tokenizer_ids ids = { .memory = memory };
	char text[4096];
	size_t len = 0;

	split(&ids, prose, strlen(prose));
	for (size_t i = 0; i < ids.nr; i++)
		len += tokenizer_text_of(memory, ids.id[i], text + len);

	assert_int_equal(len, strlen(prose));
	assert_memory_equal(text, prose, len);
	tokenizer_ids_fini(&ids);
	free(memory);
}

/* Opens and closes one message. */
static void message(struct tokenizer_ids *ids, const char *role, const char *text)
{
	assert_int_equal(tokenizer_open(ids, tokenizer_role(role, strlen(role))), 0);
	split(ids, text, strlen(text));
	assert_int_equal(tokenizer_close(ids), 0);
}

static void the_next_turns_prompt_extends_this_ones_and_its_answer(void **state)
{
	struct tokenizer_ids first = { 0 }, second = { 0 };
	char answer[TOKENIZER_TEXT_MAX] = { 0 };

	message(&first, "system", prose);
	message(&first, "user", code);
	tokenizer_open(&first, TOKENIZER_ASSISTANT);
	tokenizer_id(&first, TOKENIZER_WORD_FIRST + 0x123);
	tokenizer_text_of(NULL, TOKENIZER_WORD_FIRST + 0x123, answer);

	message(&second, "system", prose);
	message(&second, "user", code);
	message(&second, "assistant", answer);
	message(&second, "user", "and then?");

	assert_true(second.nr > first.nr);
	assert_memory_equal(first.id, second.id, first.nr * sizeof(first.id[0]));
	tokenizer_ids_fini(&first);
	tokenizer_ids_fini(&second);
}

static void a_prefix_of_a_chat_prompts_ids_hits(void **state)
{
	struct tokenizer_ids ids = { 0 };
	struct model *m;
	struct model_request *r;
	const struct model_event *events;

	for (int i = 0; i < 20; i++)
		message(&ids, "user", prose);
	assert_int_equal(model_new(&m, model_profile_find("q14b"), NULL), 0);
	struct model_submission s = {
		.prompt = ids.id, .prompt_tokens = 512, .output_tokens = 1 /* a piece of it first */
	};
	assert_int_equal(model_submit(m, &s, 0, &r), 0);
	assert_true(model_begin(m, 0) != MODEL_NEVER);
	model_end(m, &events);

	assert_int_equal(model_probe(m, 0, ids.id, (uint32_t)ids.nr), 512);
	model_free(m);
	tokenizer_ids_fini(&ids);
}

static void any_bytes_split_and_end(void **state)
{
	struct tokenizer_ids ids = { 0 };
	char text[513];

	for (int i = 0; i < 512; i++)
		text[i] = (char)(i * 37);
	split(&ids, text, 512);
	split(&ids, " ", 1);
	split(&ids, "", 0);
	split(&ids, "\xe4\xbd\xa0\xe5\xa5\xbd", 6);

	assert_true(ids.nr > 100);
	tokenizer_ids_fini(&ids);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(the_ids_of_a_prefix_are_a_prefix_but_for_the_last),
		CLAIM(prose_and_code_take_about_four_bytes_a_token),
		CLAIM(every_digit_is_a_token),
		CLAIM(a_generated_answer_comes_back_as_its_own_ids),
		CLAIM(a_client_that_trims_the_answer_changes_no_id),
		CLAIM(a_word_that_only_begins_like_an_answers_is_another),
		CLAIM(remembered_pieces_turn_back_into_their_text),
		CLAIM(the_next_turns_prompt_extends_this_ones_and_its_answer),
		CLAIM(a_prefix_of_a_chat_prompts_ids_hits),
		CLAIM(any_bytes_split_and_end),
	};

	return cmocka_run_group_tests_name("model_tokenizer", tests, NULL, NULL);
}
