/* The reader finds what is there, refuses what is no JSON, and never reads past the end. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/jread.h"
#include "tests/lib/guard.h"
#include "tests/lib/unit.h"

static const char models[] =
	" {\"object\":\"list\",\"data\":[{\"id\":\"a\",\"n\":[1,2,{}]},"
	"{\"id\":\"Qwen\\/Qwen3-8B\",\"max_model_len\":40960,\"root\":null}],"
	"\"usage\":{\"prompt_tokens\":12,\"details\":{\"cached_tokens\":7.5}}}\n";

static struct jread opened(const char *text)
{
	struct jread v;

	assert_int_equal(jread_open(&v, text, strlen(text)), 0);
	return v;
}

static void values_are_found_by_path(void **state)
{
	struct jread doc = opened(models), v;
	uint64_t n = 0;
	double f = 0;
	char text[40];

	assert_int_equal(jread_get_u64(&doc, "usage.prompt_tokens", &n), 0);
	assert_int_equal(n, 12);
	assert_int_equal(jread_get_f64(&doc, "usage.details.cached_tokens", &f), 0);
	assert_true(f == 7.5);
	assert_int_equal(jread_get_str(&doc, "data[1].id", text, sizeof(text)), 0);
	assert_string_equal(text, "Qwen/Qwen3-8B");
	assert_int_equal(jread_get(&doc, "data[0].n[2]", &v), 0);
	assert_int_equal(v.type, JREAD_OBJECT);
	assert_int_equal(jread_get(&doc, "data[1].root", &v), 0);
	assert_int_equal(v.type, JREAD_NULL);
	assert_int_equal(jread_get(&doc, "", &v), 0);
	assert_int_equal(v.type, JREAD_OBJECT);
}

static void what_is_absent_leaves_the_result_alone(void **state)
{
	static const char *const paths[] = { "usage.total", "data[2]", "data.id",     "object.x",
					     "usage[0]",    "x",       "data[0].n[3]" };
	struct jread doc = opened(models);
	uint64_t n = 99;

	for (size_t i = 0; i < sizeof(paths) / sizeof(*paths); i++)
		assert_int_equal(jread_get_u64(&doc, paths[i], &n), -ENOENT);
	assert_int_equal(jread_get_u64(&doc, "object", &n), -EINVAL);
	assert_int_equal(jread_get_u64(&doc, "usage.details.cached_tokens", &n), -EINVAL);
	assert_int_equal(n, 99);
}

static void entries_come_in_order_with_their_keys(void **state)
{
	struct jread doc = opened("{ \"a\" : 1 , \"b\":[ ] ,\"c\":{ \"d\" : \"}\" } }");
	struct jread_walk walk;
	char seen[8] = "";

	for (jread_walk_begin(&walk, &doc); jread_walk_next(&walk);)
		seen[walk.index] = walk.key.text[1];

	assert_string_equal(seen, "abc");
	assert_int_equal(jread_count(&doc), 3);
	doc = opened("[[],{},\",\",[1,2]]");
	assert_int_equal(jread_count(&doc), 4);
	doc = opened("[]");
	assert_int_equal(jread_count(&doc), 0);
	doc = opened("17");
	assert_int_equal(jread_count(&doc), 0);
}

static void of_repeated_keys_the_last_counts(void **state)
{
	struct jread doc = opened("{\"n\":1,\"\\u006e\":2}");
	uint64_t n = 0;

	assert_int_equal(jread_get_u64(&doc, "n", &n), 0);
	assert_int_equal(n, 2);
}

static void strings_are_decoded_and_keep_their_zero(void **state)
{
	struct jread v = opened("\"a\\u0000b\\n\\u00e9\\u20ac\\ud83d\\ude00\\ud83dx\\udead\"");
	static const char want[] =
		"a\0b\n\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xEF\xBF\xBDx\xEF\xBF\xBD";
	char text[64];
	size_t len = 0;

	assert_int_equal(jread_str(&v, text, sizeof(text), &len), 0);
	assert_int_equal(len, sizeof(want) - 1);
	assert_memory_equal(text, want, len);
	assert_int_equal(jread_str(&v, text, sizeof(want) - 1, &len), -ENOSPC);
	assert_int_equal(jread_str(&v, text, sizeof(want), &len), 0);
	v = opened("\"a\\u0000\"");
	assert_false(jread_is(&v, "a"));
	v = opened("\"\\u0061\"");
	assert_true(jread_is(&v, "a"));
	assert_false(jread_is(&v, "ab"));
	assert_false(jread_is(&v, ""));
}

static void numbers_saturate_and_say_so(void **state)
{
	struct jread v = opened("18446744073709551615");
	uint64_t n = 0;
	double f = 0;

	assert_int_equal(jread_u64(&v, &n), 0);
	assert_true(n == UINT64_MAX);
	v = opened("18446744073709551616");
	assert_int_equal(jread_u64(&v, &n), -ERANGE);
	assert_true(n == UINT64_MAX);
	v = opened("1e999");
	assert_int_equal(jread_f64(&v, &f), -ERANGE);
	v = opened("-1");
	assert_int_equal(jread_u64(&v, &n), -EINVAL);
	assert_int_equal(jread_f64(&v, &f), 0);
	assert_true(f == -1);
	v = opened("1.0");
	assert_int_equal(jread_u64(&v, &n), -EINVAL);
}

static const char *const junk[] = {
	"",
	" ",
	"{",
	"}",
	"[",
	"]",
	"[1,]",
	"[,1]",
	"{\"a\"}",
	"{\"a\":}",
	"{\"a\":1,}",
	"{a:1}",
	"{1:2}",
	"\"",
	"\"\\\"",
	"\"\\x\"",
	"\"\\u12\"",
	"\"\n\"",
	"01",
	"-",
	"+1",
	"1.",
	".5",
	"1e",
	"1e+",
	"0x10",
	"NaN",
	"Infinity",
	"tru",
	"nullx",
	"true false",
	"[1 2]",
	"{\"a\" 1}",
	"[1}",
	"{\"a\":1]",
	"[1]]",
	"1,2",
	"{\"a\":1}x",
	"'a'",
	"// c\n1",
	"\xEF\xBB\xBF[1]",
	"[\"a\":1]",
	"{\"a\",\"b\"}",
	"[1,{\"a\":[2}]]",
};

static void junk_is_refused(void **state)
{
	for (size_t i = 0; i < sizeof(junk) / sizeof(*junk); i++) {
		struct guard g = guard_copy(junk[i], strlen(junk[i]));
		struct jread v = { .len = 77 };

		if (jread_open(&v, g.bytes, strlen(junk[i])) != -EINVAL)
			fail_msg("taken: %s", junk[i]);
		assert_int_equal(v.len, 77);
		guard_free(&g);
	}
}

static void every_cut_of_a_document_is_refused(void **state)
{
	size_t len = strlen(models) - 2; /* up to its last brace */

	for (size_t n = 0; n < len; n++) {
		struct guard g = guard_copy(models, n);
		struct jread v;

		assert_int_equal(jread_open(&v, g.bytes, n), -EINVAL);
		guard_free(&g);
	}
}

static void nesting_is_bounded_not_recursed(void **state)
{
	enum { DEEP = 1000000 };
	char *text = malloc(2 * DEEP);
	struct jread v;

	memset(text, '[', DEEP);
	memset(text + DEEP, ']', DEEP);

	assert_int_equal(jread_open(&v, text, 2 * DEEP), -E2BIG);
	assert_int_equal(jread_open(&v, text + DEEP - JREAD_DEPTH_MAX, 2 * JREAD_DEPTH_MAX), 0);
	assert_int_equal(jread_open(&v, text + DEEP - JREAD_DEPTH_MAX - 2, 2 * JREAD_DEPTH_MAX + 4),
			 -E2BIG);
	free(text);
}

/* Whatever bytes come: no crash, no read past the end, and what is taken can be walked. */
static void random_damage_never_crashes(void **state)
{
	unsigned seed = 1;
	unsigned taken = 0;

	for (int round = 0; round < 20000; round++) {
		struct guard g = guard_copy(models, strlen(models));
		int edits = 1 + round % 4;
		struct jread v;
		struct jread_walk walk;
		char text[64];

		while (edits--)
			g.bytes[(unsigned)rand_r(&seed) % strlen(models)] =
				"{}[]\",:\\u0019eE.-+tfn \xff"[rand_r(&seed) % 23];
		if (!jread_open(&v, g.bytes, strlen(models))) {
			taken++;
			for (jread_walk_begin(&walk, &v); jread_walk_next(&walk);)
				jread_str(&walk.value, text, sizeof(text), NULL);
			jread_get(&v, "data[1].id", &walk.value);
		}
		guard_free(&g);
	}
	assert_true(taken > 100);
}

static void junk_is_told_with_its_place(void **state)
{
	static const struct {
		const char *text;
		size_t offset;
	} cases[] = { { "{\"a\": 1, }", 9 }, { "[1, 2", 5 }, { "{\"a\" 1}", 5 },
		      { "[1] 2", 4 },        { "", 0 },      { "[nul]", 1 } };
	struct jread v;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		size_t offset = SIZE_MAX;

		assert_int_equal(jread_open_at(&v, cases[i].text, strlen(cases[i].text), &offset),
				 -EINVAL);
		assert_int_equal(offset, cases[i].offset);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(values_are_found_by_path),
		CLAIM(what_is_absent_leaves_the_result_alone),
		CLAIM(entries_come_in_order_with_their_keys),
		CLAIM(of_repeated_keys_the_last_counts),
		CLAIM(strings_are_decoded_and_keep_their_zero),
		CLAIM(numbers_saturate_and_say_so),
		CLAIM(junk_is_refused),
		CLAIM(junk_is_told_with_its_place),
		CLAIM(every_cut_of_a_document_is_refused),
		CLAIM(nesting_is_bounded_not_recursed),
		CLAIM(random_damage_never_crashes),
	};

	return cmocka_run_group_tests_name("jread", tests, NULL, NULL);
}
