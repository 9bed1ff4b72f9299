/* Claims about where a body's members and the ends of its messages are found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "router/chat/map.h"

static struct chat_map map;

static void read_whole(const char *text)
{
	chat_map_begin(&map);
	chat_map_step(&map, text, strlen(text));
}

static void assert_value(const char *text, enum chat_map_key key, const char *value)
{
	const struct chat_map_member *m = chat_map_find(&map, key);

	assert_non_null(m);
	assert_int_equal(m->end - m->value, strlen(value));
	assert_memory_equal(text + m->value, value, strlen(value));
	assert_int_equal(text[m->at], '"');
}

#define USER(text)      "{\"role\":\"user\",\"content\":\"" text "\"}"
#define ASSISTANT(text) "{\"content\":\"" text "\",\"role\":\"assistant\"}"
#define TOOL(text)      "{\"role\":\"tool\",\"content\":[{\"role\":\"user\",\"t\":\"" text "\"}]}"

/* clang-format off */
static const char *const talk =
	"{ \"model\" : \"a \\\"b\\\" c\" , \"messages\": ["
	USER("one, {\\\"two\\\"") "," ASSISTANT("x") "," TOOL("r1") "," TOOL("r2") ","
	ASSISTANT("y") "," USER("z") " ] ,\"n\":1,"
	"\"tools\":[{\"messages\":[1]}],\"stream\":true,\"odd one\":{\"stop\":[\"]\"]}}";
/* clang-format on */

static void members_are_where_they_are(void **state)
{
	read_whole(talk);
	assert_false(map.odd);
	assert_int_equal(map.members, 6);
	assert_value(talk, CHAT_MAP_MODEL, "\"a \\\"b\\\" c\"");
	assert_value(talk, CHAT_MAP_N, "1");
	assert_value(talk, CHAT_MAP_STREAM, "true");
	assert_value(talk, CHAT_MAP_TOOLS, "[{\"messages\":[1]}]");
	assert_value(talk, CHAT_MAP_OTHER, "{\"stop\":[\"]\"]}");
	assert_null(chat_map_find(&map, CHAT_MAP_STOP));
}

static void a_list_is_cut_behind_users_and_the_last_result_of_a_tool(void **state)
{
	const char *first = strstr(talk, "," ASSISTANT("x")),
		   *second = strstr(talk, "," ASSISTANT("y"));

	read_whole(talk);
	assert_int_equal(map.cuts, 2); /* the last message is no place to cut */
	assert_int_equal(map.cut[0], first - talk);
	assert_int_equal(map.cut[1], second - talk);
}

static void items_of_responses_are_cut_alike(void **state)
{
	static const char text[] =
		"{\"input\":[{\"role\":\"user\",\"content\":[]},{\"type\":\"function_call\"},"
		"{\"type\":\"function_call_output\",\"output\":\"1\"},"
		"{\"type\":\"function_call_output\",\"output\":\"2\"},{\"type\":\"reasoning\"}]}";

	read_whole(text);
	assert_int_equal(map.cuts, 2);
	assert_int_equal(map.cut[0], strstr(text, ",{\"type\":\"function_call\"}") - text);
	assert_int_equal(map.cut[1], strstr(text, ",{\"type\":\"reasoning\"}") - text);
}

static void any_segmentation_gives_the_same(void **state)
{
	static struct chat_map whole;
	size_t len = strlen(talk);

	read_whole(talk);
	whole = map;
	for (size_t n = 1; n < len; n++) {
		chat_map_begin(&map);
		for (size_t i = 0; i < len; i += n)
			chat_map_step(&map, talk + i, n < len - i ? n : len - i);
		assert_int_equal(map.members, whole.members);
		assert_memory_equal(map.member, whole.member,
				    whole.members * sizeof(map.member[0]));
		assert_int_equal(map.cuts, whole.cuts);
		assert_memory_equal(map.cut, whole.cut, whole.cuts * sizeof(map.cut[0]));
	}
}

static void nothing_is_made_of_a_body_that_is_odd(void **state)
{
	char many[8192] = "{\"a\":1";

	read_whole("{\"mod\\u0065l\":\"m\"}");
	assert_true(map.odd);
	read_whole("{\"model\":\"m\",\"stream\":true,\"model\":\"n\"}");
	assert_true(map.odd);
	for (int i = 0; i < LIMIT_BODY_MEMBERS; i++)
		snprintf(many + strlen(many), sizeof(many) - strlen(many), ",\"k%d\":%d", i, i);
	read_whole(strcat(many, "}"));
	assert_true(map.odd);
}

static void of_a_long_talk_places_far_apart_are_kept(void **state)
{
	static const char pair[] = USER("u") "," ASSISTANT("a") ",";
	uint64_t messages = 5 * LIMIT_STAGE_CUTS;

	chat_map_begin(&map);
	chat_map_step(&map, "{\"messages\":[", 13);
	for (uint64_t i = 0; i < messages; i++)
		chat_map_step(&map, pair, strlen(pair));
	assert_in_range(map.cuts, LIMIT_STAGE_CUTS / 2, LIMIT_STAGE_CUTS);
	for (uint32_t i = 0; i < map.cuts; i++) {
		if (i > 0)
			assert_true(map.cut[i] > map.cut[i - 1]);
		assert_int_equal((map.cut[i] - 13) % strlen(pair), strlen(USER("u")));
	}
	assert_true(map.cut[map.cuts - 1] > messages * strlen(pair) * 9 / 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(members_are_where_they_are),
		cmocka_unit_test(a_list_is_cut_behind_users_and_the_last_result_of_a_tool),
		cmocka_unit_test(items_of_responses_are_cut_alike),
		cmocka_unit_test(any_segmentation_gives_the_same),
		cmocka_unit_test(nothing_is_made_of_a_body_that_is_odd),
		cmocka_unit_test(of_a_long_talk_places_far_apart_are_kept),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
