/* Addresses: what users write is taken, what they mistype is refused with the reason. */
#include <errno.h>
#include <string.h>

#include "shm/base/addr.h"
#include "tests/lib/unit.h"

static void listeners_read_back_as_written(void **state)
{
	static const struct {
		const char *in, *out;
		int local;
	} cases[] = {
		{ "127.0.0.1:8080", "127.0.0.1:8080", 1 },
		{ "[::1]:8080", "[::1]:8080", 1 },
		{ ":9000", "0.0.0.0:9000", 0 },
		{ "*:9000", "0.0.0.0:9000", 0 },
		{ "[::]:9000", "[::]:9000", 0 },
		{ "unix:/run/x/a.sock", "unix:/run/x/a.sock", 1 },
		{ "localhost:1", "127.0.0.1:1", 1 },
		{ "10.0.0.1:0", "10.0.0.1:0", 0 },
		{ "[::ffff:127.0.0.1]:5", "[::ffff:127.0.0.1]:5", 1 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		char why[ADDR_WHY_MAX] = "", text[ADDR_TEXT_MAX];
		struct addr addr;

		if (addr_parse(&addr, cases[i].in, why))
			fail_msg("%s: %s", cases[i].in, why);
		addr_text(&addr, text);
		assert_string_equal(text, cases[i].out);
		assert_int_equal(addr_is_local(&addr), cases[i].local);
	}
}

static void mistyped_listeners_are_refused_with_a_reason(void **state)
{
	static const char *const cases[] = {
		"",           "8080",    "1.2.3.4",     "1.2.3.4:", "1.2.3:80",     "::1:80",
		"[::1]",      "[::1]80", "[::1",        "a.b:80",   "1.2.3.4:http", "1.2.3.4:65536",
		"1.2.3.4:-1", "unix:",   "1.2.3.4:80 ", "[zz]:80"
	};
	char longpath[200];

	memset(longpath, 'x', sizeof(longpath));
	memcpy(longpath, "unix:", 5);
	longpath[5 + 108] = '\0';
	for (size_t i = 0; i <= sizeof(cases) / sizeof(*cases); i++) {
		const char *text = i < sizeof(cases) / sizeof(*cases) ? cases[i] : longpath;
		struct addr addr = { .len = 7 };
		char why[ADDR_WHY_MAX] = "";

		if (addr_parse(&addr, text, why) != -EINVAL)
			fail_msg("taken: %s", text);
		assert_true(why[0] != '\0');
		assert_int_equal(addr.len, 7);
	}
}

static void engines_get_name_host_and_address(void **state)
{
	static const struct {
		const char *in, *name, *url, *host, *addr;
		int named;
	} cases[] = {
		{ "http://127.0.0.1:8000", "127.0.0.1-8000", "http://127.0.0.1:8000",
		  "127.0.0.1:8000", "127.0.0.1:8000", 0 },
		{ "gpu0=http://127.0.0.1:8000/", "gpu0", "http://127.0.0.1:8000", "127.0.0.1:8000",
		  "127.0.0.1:8000", 1 },
		{ "http://127.0.0.1", "127.0.0.1-80", "http://127.0.0.1", "127.0.0.1:80",
		  "127.0.0.1:80", 0 },
		{ "a.b_c-d=http://[::1]:9", "a.b_c-d", "http://[::1]:9", "[::1]:9", "[::1]:9", 1 },
		{ "http://[::1]:8000", "1-8000", "http://[::1]:8000", "[::1]:8000", "[::1]:8000",
		  0 },
		{ "HTTP://localhost:70", "localhost-70", "HTTP://localhost:70", "localhost:70",
		  "127.0.0.1:70", 0 },
		{ "g=unix:/run/vllm 0.sock", "g", "unix:/run/vllm 0.sock", "localhost",
		  "unix:/run/vllm 0.sock", 1 },
		{ "unix:/run/vllm 0.sock", "vllm-0.sock", "unix:/run/vllm 0.sock", "localhost",
		  "unix:/run/vllm 0.sock", 0 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		char why[ADDR_WHY_MAX] = "", text[ADDR_TEXT_MAX];
		struct addr_engine engine;

		if (addr_engine_parse(&engine, cases[i].in, why))
			fail_msg("%s: %s", cases[i].in, why);
		addr_text(&engine.addr, text);
		assert_string_equal(engine.name, cases[i].name);
		assert_string_equal(engine.url, cases[i].url);
		assert_string_equal(engine.host, cases[i].host);
		assert_string_equal(text, cases[i].addr);
		assert_int_equal(engine.named, cases[i].named);
		assert_true(addr_engine_name_valid(engine.name));
	}
}

static void a_made_name_is_valid_however_long_the_host(void **state)
{
	char why[ADDR_WHY_MAX];
	struct addr_engine engine;

	assert_int_equal(addr_engine_parse(&engine,
					   "http://[fe80:1111:2222:3333:4444:5555:6666:7777]:65535",
					   why),
			 0);
	assert_true(addr_engine_name_valid(engine.name));
	assert_string_equal(engine.name + strlen(engine.name) - 6, "-65535");
}

static void mistyped_engines_are_refused_with_a_reason(void **state)
{
	static const struct {
		const char *in, *reason;
	} cases[] = {
		{ "https://127.0.0.1:8000", "https" },
		{ "http://127.0.0.1:8000/v1", "path" },
		{ "http://127.0.0.1:8000?x", "path" },
		{ "http://u:p@127.0.0.1:8000", "user" },
		{ "http://127.0.0.1:0", "port" },
		{ "http://127.0.0.1:99999", "port" },
		{ "http://", "host" },
		{ "127.0.0.1:8000", "http://" },
		{ "-a=http://127.0.0.1", "name" },
		{ "=http://127.0.0.1", "name" },
		{ "a b=http://127.0.0.1", "name" },
		{ "http://a\r\nX", "host" },
		{ "http://a b:80", "host" },
		{ "unix:", "path" },
		{ "http://::1:80", "IPv6" },
		{ "", "http://" },
		{ "x23456789012345678901234567890123=http://127.0.0.1", "name" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct addr_engine engine = { .named = 7 };
		char why[ADDR_WHY_MAX] = "";

		if (addr_engine_parse(&engine, cases[i].in, why) != -EINVAL)
			fail_msg("taken: %s", cases[i].in);
		if (!strstr(why, cases[i].reason))
			fail_msg("%s: the reason is '%s'", cases[i].in, why);
		assert_int_equal(engine.named, 7);
	}
}

static void an_unknown_host_is_told_apart_from_a_wrong_text(void **state)
{
	char why[ADDR_WHY_MAX] = "";
	struct addr_engine engine;

	assert_int_equal(addr_engine_parse(&engine, "http://no-such-host.invalid:80", why),
			 -EHOSTUNREACH);
	assert_non_null(strstr(why, "no-such-host.invalid"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(listeners_read_back_as_written),
		CLAIM(mistyped_listeners_are_refused_with_a_reason),
		CLAIM(engines_get_name_host_and_address),
		CLAIM(a_made_name_is_valid_however_long_the_host),
		CLAIM(mistyped_engines_are_refused_with_a_reason),
		CLAIM(an_unknown_host_is_told_apart_from_a_wrong_text),
	};

	return cmocka_run_group_tests_name("addr", tests, NULL, NULL);
}
