/* What the writer writes is JSON, whatever the strings and however small the buffer. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "shm/base/jread.h"
#include "shm/base/json.h"
#include "tests/lib/unit.h"

static void a_nested_document_has_its_commas_in_place(void **state)
{
	char buf[200];
	struct json j;

	json_init(&j, buf, sizeof(buf));
	json_object_begin(&j, NULL);
	json_u64(&j, "n", UINT64_MAX);
	json_array_begin(&j, "list");
	json_i64(&j, NULL, -5);
	json_bool(&j, NULL, 1);
	json_null(&j, NULL);
	json_object_begin(&j, NULL);
	json_object_end(&j);
	json_array_end(&j);
	json_fmt(&j, "f", "%d%%", 7);
	json_object_end(&j);

	assert_int_equal(json_finish(&j), 0);
	buf[j.len] = '\0';
	assert_string_equal(buf,
			    "{\"n\":18446744073709551615,\"list\":[-5,true,null,{}],\"f\":\"7%\"}");
}

static void every_byte_string_becomes_a_valid_one(void **state)
{
	static const char in[] =
		"q\" b\\ \n\x01\x7f ok\xc3\xa9 bad\xff\xc0\xaf\xed\xa0\x80 cut\xe2\x82";
	char buf[200];
	struct json j;

	json_init(&j, buf, sizeof(buf));
	json_mem(&j, NULL, in, sizeof(in) - 1);

	assert_int_equal(json_finish(&j), 0);
	buf[j.len] = '\0';
	assert_string_equal(
		buf, "\"q\\\" b\\\\ \\n\\u0001\\u007f ok\xc3\xa9 bad"
		     "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
		     " cut\xEF\xBF\xBD\xEF\xBF\xBD\"");
}

static void a_double_reads_back_as_the_same_double(void **state)
{
	static const double values[] = { 0.1, 1.0 / 3, 1e-300, 123456789.123, 5e-324, -0.05, 3 };

	for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++) {
		char buf[64];
		struct json j;
		struct jread v;
		double back = 0;

		json_init(&j, buf, sizeof(buf));
		json_f64(&j, NULL, values[i]);
		assert_int_equal(json_finish(&j), 0);
		assert_int_equal(jread_open(&v, buf, j.len), 0);
		assert_int_equal(jread_f64(&v, &back), 0);
		assert_true(back == values[i]);
	}
}

static void what_is_no_number_becomes_null(void **state)
{
	char buf[64];
	struct json j;

	json_init(&j, buf, sizeof(buf));
	json_array_begin(&j, NULL);
	json_f64(&j, NULL, NAN);
	json_f64(&j, NULL, INFINITY);
	json_str(&j, NULL, NULL);
	json_array_end(&j);

	assert_int_equal(json_finish(&j), 0);
	assert_memory_equal(buf, "[null,null,null]", j.len);
}

static void a_full_buffer_is_an_error_and_never_overrun(void **state)
{
	char buf[12] = "...........";
	struct json j;

	json_init(&j, buf, 8);
	json_str(&j, NULL, "longer than eight");

	assert_int_equal(json_finish(&j), -ENOSPC);
	assert_memory_equal(buf + 8, "...", 4);
}

struct collected {
	char text[4000];
	size_t len;
};

static int collect(void *ctx, const char *text, size_t len)
{
	struct collected *c = ctx;

	assert_true(c->len + len < sizeof(c->text));
	memcpy(c->text + c->len, text, len);
	c->len += len;
	return 0;
}

static void a_sink_gets_the_same_bytes_through_any_buffer(void **state)
{
	struct collected all[2] = { 0 };
	static const size_t sizes[2] = { 1, 3000 };

	for (int i = 0; i < 2; i++) {
		char buf[3000];
		struct json j;

		json_init(&j, buf, sizes[i]);
		json_sink_set(&j, collect, &all[i]);
		json_array_begin(&j, NULL);
		for (unsigned n = 0; n < 200; n++)
			json_fmt(&j, NULL, "item %u \"\n", n);
		json_array_end(&j);
		assert_int_equal(json_finish(&j), 0);
	}

	assert_int_equal(all[0].len, all[1].len);
	assert_memory_equal(all[0].text, all[1].text, all[0].len);
}

static int refuse(void *ctx, const char *text, size_t len)
{
	++*(int *)ctx;
	return -EPIPE;
}

static void after_the_sink_failed_it_is_not_called_again(void **state)
{
	int calls = 0;
	char buf[4];
	struct json j;

	json_init(&j, buf, sizeof(buf));
	json_sink_set(&j, refuse, &calls);
	for (int i = 0; i < 10; i++)
		json_str(&j, NULL, "text");

	assert_int_equal(json_finish(&j), -EPIPE);
	assert_int_equal(calls, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(a_nested_document_has_its_commas_in_place),
		CLAIM(every_byte_string_becomes_a_valid_one),
		CLAIM(a_double_reads_back_as_the_same_double),
		CLAIM(what_is_no_number_becomes_null),
		CLAIM(a_full_buffer_is_an_error_and_never_overrun),
		CLAIM(a_sink_gets_the_same_bytes_through_any_buffer),
		CLAIM(after_the_sink_failed_it_is_not_called_again),
	};

	return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
