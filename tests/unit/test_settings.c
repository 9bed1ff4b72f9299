/* The router's settings: defaults as documented, mistakes told, the example file up to date. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "router/settings.h"
#include "shm/base/clock.h"
#include "tests/lib/unit.h"

static char path[] = "/tmp/turnward-settings-XXXXXX";
static struct router_settings settings;
static struct conf conf;

static int load(const char *text, const struct settings_given *more)
{
	struct settings_given given = more ? *more : (struct settings_given){ 0 };
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	fputs(text, file);
	fclose(file);
	given.file = path;
	return settings_load(&settings, &conf, &given);
}

static void nothing_need_be_configured(void **state)
{
	struct settings_given none = { 0 };

	assert_int_equal(settings_load(&settings, &conf, &none), 0);
	assert_string_equal(settings.listen, "127.0.0.1:8080");
	assert_int_equal(settings.admin_addr.len, 0);
	assert_true(settings.max_body == 64u << 20 && settings.body_memory == 1u << 30);
	assert_true(settings.first_byte_timeout == 600ull * NS_PER_S);
	assert_true(settings.engine_idle_timeout == 3ull * NS_PER_S);
	assert_true(settings.drain_timeout == 300ull * NS_PER_S);
	assert_int_equal(settings.engines_nr, 0);
	assert_int_equal(settings.paths_all, 0);
	assert_string_equal(settings.session_headers.word[0], "x-claude-code-session-id");
}

static void the_policy_has_the_defaults_of_its_own_list(void **state)
{
	struct settings_given none = { 0 };
	struct policy_params params;

	policy_params_init(&params);
	assert_int_equal(settings_load(&settings, &conf, &none), 0);
	assert_memory_equal(&settings.policy, &params, sizeof(params));
}

static void a_whole_file_is_read(void **state)
{
	assert_int_equal(
		load("[router]\nlisten = [::]:9000\nadmin = 127.0.0.1:9001\n"
		     "session_headers = X-One,  x-two\npaths = /metrics, all\nio = epoll\n"
		     "[policy]\npolicy = eft\nthroughput = 8000\n"
		     "[engine gpu0]\nurl = http://127.0.0.1:8000/\nweight = 0.5\nkind = vllm\n"
		     "[engine gpu1]\nurl = unix:/run/e1\nany_model = yes\nkv_capacity = 454000\n",
		     NULL),
		0);
	assert_int_equal(settings.engines_nr, 2);
	assert_string_equal(settings.engines[0].at.host, "127.0.0.1:8000");
	assert_string_equal(settings.engines[0].at.name, "gpu0");
	assert_int_equal(settings.engines[0].kind, ENGINE_KIND_VLLM);
	assert_int_equal(settings.engines[1].any_model, 1);
	assert_int_equal(settings.engines[1].kv_capacity, 454000);
	assert_int_equal(settings.policy.policy, POLICY_EFT);
	assert_string_equal(settings.session_headers.word[0], "x-one");
	assert_int_equal(settings.session_headers.nr, 2);
	assert_int_equal(settings.paths_all, 1);
	assert_int_equal(settings.io, 2);
}

static void the_command_line_is_above_the_file(void **state)
{
	struct settings_given given = { 0 };

	assert_int_equal(settings_note(&given, SETTINGS_OPT_LISTEN, ":1234"), 0);
	assert_int_equal(settings_note(&given, SETTINGS_OPT_ENGINE, "gpu0=http://127.0.0.1:1"), 0);
	assert_int_equal(settings_note(&given, SETTINGS_OPT_ENGINE, "http://127.0.0.1:2"), 0);
	assert_int_equal(settings_note(&given, SETTINGS_OPT_SET, "policy.heavy_threshold=9999"), 0);
	assert_int_equal(settings_note(&given, 1, "x"), -ENOENT);
	assert_int_equal(load("[router]\nlisten = :1\n[engine gpu0]\nurl = http://127.0.0.1:9\n"
			      "weight = 2\n",
			      &given),
			 0);
	assert_string_equal(settings.listen, ":1234");
	assert_int_equal(settings.engines_nr, 2);
	assert_string_equal(settings.engines[0].at.host, "127.0.0.1:1");
	assert_true(settings.engines[0].weight == 2);
	assert_string_equal(settings.engines[1].name, "127.0.0.1-2");
	assert_true(settings.policy.heavy_threshold == 9999);
}

static void a_reload_with_the_same_words_gives_the_same(void **state)
{
	struct settings_given given = { 0 };
	static struct router_settings first;

	settings_note(&given, SETTINGS_OPT_ENGINE, "http://127.0.0.1:2");
	settings_note(&given, SETTINGS_OPT_POLICY, "v3");
	assert_int_equal(settings_load(&first, &conf, &given), 0);
	assert_int_equal(settings_load(&settings, &conf, &given), 0);
	assert_memory_equal(&first, &settings, sizeof(settings));
	assert_null(settings_needs_restart(&first, &settings));
	settings.connections_max++;
	assert_string_equal(settings_needs_restart(&first, &settings), "connections_max");
	settings.connections_max--;
	settings.policy.policy = POLICY_EFT;
	settings.debug_headers ^= 1;
	assert_null(settings_needs_restart(&first, &settings));
}

static const char *const mistakes[][2] = {
	{ "[router]\nlisten = 8080", "listen = 8080: write ADDRESS:PORT" },
	{ "[router]\nadmin = :9000", "admin = :9000: must be a loopback address or unix:PATH" },
	{ "[router]\nadmin = 127.0.0.1:8080", "is where clients connect" },
	{ "[router]\nreceive_buffers = 1000", "must be a power of two" },
	{ "[router]\nmax_body = 2G", "max_body is larger than body_memory" },
	{ "[router]\npaths = metrics", "paths: 'metrics' is no path" },
	{ "[router]\nsession_headers = a b:c", "session_headers: 'b:c' is no header's name" },
	{ "[policy]\nwarm_threshold = 20000", "warm_threshold is larger than heavy_threshold" },
	{ "[policy]\npolicy = contention2", "must be one of round-robin, least-requests" },
	{ "[policy]\ndecode_iteration_s = 5s",
	  "must be a plain number, 0..10 (0.05 is the default)" },
	{ "[engine a]\nurl = https://x", "https is not spoken" },
	{ "[engine a]\n", "[engine a]: url is missing" },
	{ "[engine a]\nurl = http://127.0.0.1:1\n[engine a]\n",
	  "this engine has a section already" },
	{ "[engine a:b]\n", "a name has letters" },
	{ "[engine a]\nurl = http://127.0.0.1:1\n[engine b]\nurl = http://127.0.0.1:1/",
	  "engines a and b are the same" },
	{ "[engine a]\nurl = http://127.0.0.1:8080", "is this router itself" },
	{ "[router]\nlisten = :9\n[engine a]\nurl = http://127.0.0.1:9", "is this router itself" },
	{ "[router]\nlisten = [::]:9\n[engine a]\nurl = http://127.0.0.1:9", "router itself" },
	{ "[router]\nlisten = [::]:9\n[engine a]\nurl = http://[::1]:9", "is this router itself" },
	{ "[router]\nadmin = 127.0.0.1:9\n[engine a]\nurl = http://127.0.0.1:9", "router itself" },
	{ "[router]\nlisten = unix:/a\n[engine a]\nurl = unix:/a", "is this router itself" },
	{ "[polcy]\n", "did you mean [policy]?" },
	{ "[router]\nmigration_factor = 1", "unknown key migration_factor" },
};

static void a_mistake_is_told(void **state)
{
	for (size_t i = 0; i < sizeof(mistakes) / sizeof(*mistakes); i++) {
		if (load(mistakes[i][0], NULL) != -EINVAL)
			fail_msg("taken: %s", mistakes[i][0]);
		if (!strstr(conf.error, mistakes[i][1]))
			fail_msg("%s\n... gave: %s", mistakes[i][0], conf.error);
	}
}

static void a_mistake_of_the_command_line_is_told_apart(void **state)
{
	static const struct {
		int id;
		const char *value, *error;
	} cases[] = {
		{ SETTINGS_OPT_POLICY, "best", "policy = best: must be one of" },
		{ SETTINGS_OPT_SET, "polcy=eft", "unknown key polcy; did you mean policy?" },
		{ SETTINGS_OPT_ENGINE, "https://x", "--engine https://x: https is not spoken" },
		{ SETTINGS_OPT_MAX_BODY, "5Q", "max_body = 5Q: takes K, M, G" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct settings_given given = { 0 };

		settings_note(&given, cases[i].id, cases[i].value);
		assert_int_equal(settings_load(&settings, &conf, &given), -EDOM);
		if (!strstr(conf.error, cases[i].error))
			fail_msg("gave: %s", conf.error);
	}
}

static void more_engines_than_the_region_holds_are_refused(void **state)
{
	struct settings_given given = { 0 };
	char url[STATE_ENGINES_MAX + 1][40];

	for (int i = 0; i <= STATE_ENGINES_MAX; i++) {
		snprintf(url[i], sizeof(url[i]), "http://127.0.0.1:%d", 9000 + i);
		settings_note(&given, SETTINGS_OPT_ENGINE, url[i]);
	}
	assert_int_equal(settings_load(&settings, &conf, &given), -EDOM);
	given.nr--;
	assert_int_equal(settings_load(&settings, &conf, &given), 0);
	assert_int_equal(settings.engines_nr, STATE_ENGINES_MAX);
}

/* The policy's own translation to a faster world and the table's must be the same. */
static void time_scale_changes_the_engines_world_only(void **state)
{
	struct settings_given given = { 0 };
	struct policy_params params;

	settings_note(&given, SETTINGS_OPT_SET, "time_scale=20");
	assert_int_equal(settings_load(&settings, &conf, &given), 0);
	settings_scale(&settings);
	policy_params_init(&params);
	policy_params_scale(&params, 20);
	for (const struct conf_key *key = router_keys; key->name; key++) {
		size_t at = key->offset - offsetof(struct router_settings, policy);
		double got, want;

		if (key->type != CONF_REAL ||
		    key->offset < offsetof(struct router_settings, policy) ||
		    at >= sizeof(params) || key->flags & CONF_NAMED)
			continue;
		memcpy(&got, (char *)&settings.policy + at, sizeof(got));
		memcpy(&want, (char *)&params + at, sizeof(want));
		if (got < want * 0.999999 || got > want * 1.000001)
			fail_msg("%s: %g, not %g", key->name, got, want);
	}
	assert_true(settings.first_byte_timeout == 30ull * NS_PER_S);
	assert_true(settings.connect_timeout == 1ull * NS_PER_S);
	assert_true(settings.drain_timeout == 300ull * NS_PER_S);
}

static void a_shadow_differs_in_what_it_is_told_only(void **state)
{
	struct policy_params expected;

	assert_int_equal(load("[policy]\npolicy = contention\ntie_band = 0.05\n", NULL), 0);
	assert_int_equal(settings.shadow_on, 0);
	assert_int_equal(load("[router]\ntime_scale = 7\n[policy]\npolicy = contention\n"
			      "tie_band = 0.05\nshadow_policy = eft\n"
			      "shadow_set = harm_share=0.25 , migrate=off,migration_pending_s=3\n",
			      NULL),
			 0);
	settings_scale(&settings);
	assert_int_equal(settings.shadow_on, 1);
	assert_int_equal(settings.policy.policy, POLICY_CONTENTION);
	expected = settings.policy;
	expected.policy = POLICY_EFT;
	expected.harm_share = 0.25;
	expected.migrate = MIGRATE_OFF;
	expected.migration_pending_s = settings.shadow.migration_pending_s;
	assert_true(fabs(settings.shadow.migration_pending_s - 3.0 / 7) < 1e-9);
	assert_memory_equal(&settings.shadow, &expected, sizeof(expected));
}

static void a_shadow_that_cannot_be_is_told(void **state)
{
	static const char *const cases[][2] = {
		{ "shadow_policy = best", "shadow_policy = best: is no policy" },
		{ "shadow_set = tie_band=1", "no shadow_policy that it is for" },
		{ "shadow_policy = eft\nshadow_set = tie_band", "'tie_band' is no KEY=VALUE" },
		{ "shadow_policy = eft\nshadow_set = policy=v2", "policy is not a choice's own" },
		{ "shadow_policy = eft\nshadow_set = migration_rate=2", "is not a choice's own" },
		{ "shadow_policy = eft\nshadow_set = harm_shar=2", "did you mean harm_share" },
		{ "shadow_policy = eft\nshadow_set = migrate=never", "migrate = never: must be" },
	};
	char text[200];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		snprintf(text, sizeof(text), "[policy]\n%s\n", cases[i][0]);
		assert_int_equal(load(text, NULL), -EINVAL);
		if (!strstr(conf.error, cases[i][1]))
			fail_msg("'%s' is not in: %s", cases[i][1], conf.error);
	}
}

static void keys_are_in_alphabetical_order(void **state)
{
	for (const struct conf_key *key = router_keys; key[1].name; key++)
		if (!strcmp(key->section, "router") && !strcmp(key[1].section, "router") &&
		    strcmp(key->name, key[1].name) >= 0)
			fail_msg("%s stands before %s", key->name, key[1].name);
}

static void no_key_is_twice_in_the_table(void **state)
{
	for (const struct conf_key *key = router_keys; key->name; key++)
		assert_ptr_equal(key,
				 &router_keys[conf_find(router_keys, key->section, key->name)]);
}

static void secrets_are_never_shown(void **state)
{
	static char shown[32768];
	FILE *out = fmemopen(shown, sizeof(shown), "w");
	struct settings_given given = { 0 };

	settings_note(&given, SETTINGS_OPT_SET, "debug_headers=on");
	assert_int_equal(load("[router]\nengine_key = canary1\nlisten = :7\n"
			      "[engine a]\nurl = http://127.0.0.1:1\nkey = canary2\n",
			      &given),
			 0);
	settings_dump(&settings, &conf, "F", out);
	fclose(out);

	assert_null(strstr(shown, "canary"));

	/* Not even when they are refused. */
	static char text[230] = "engine_key=canary";

	memset(text + strlen(text), 'y', 200);
	given.nr = 0;
	settings_note(&given, SETTINGS_OPT_SET, text);
	assert_int_equal(settings_load(&settings, &conf, &given), -EDOM);
	assert_null(strstr(conf.error, "canary"));
	assert_non_null(strstr(conf.error, "engine_key = ***"));
	assert_non_null(strstr(shown, "\nengine_key = *** # F:2\n"));
	assert_non_null(strstr(shown, "\nlisten = :7 # F:3\n"));
	assert_non_null(strstr(shown, "\ndebug_headers = yes # option\n"));
	assert_non_null(strstr(shown, "\nfirst_byte_timeout = 10m # default\n"));
	assert_non_null(strstr(shown, "\n[engine a]\nany_model = no\nkey = ***\n"));
}

static void the_example_file_is_up_to_date(void **state)
{
	static char want[65536], have[65536];
	const char *root = getenv("TEST_SOURCE_ROOT");
	char name[4096];

	snprintf(name, sizeof(name), "%s/router/etc/turnward.conf", root ? root : ".");
	int fd = open(name, O_RDONLY | O_CLOEXEC);
	int made = open(path, O_RDWR | O_TRUNC | O_CLOEXEC);

	if (fd < 0)
		fail_msg("cannot read %s", name);
	assert_int_equal(settings_write_example(made), 0);
	ssize_t want_len = pread(made, want, sizeof(want), 0);
	ssize_t have_len = read(fd, have, sizeof(have));

	close(fd);
	close(made);
	if (want_len != have_len || memcmp(want, have, (size_t)want_len))
		fail_msg("%s differs from the table: build/tests/unit/test_settings write", name);
	assert_int_equal(load(have, NULL), 0);
}

static int begin(void **state)
{
	int fd = mkstemp(path);

	close(fd);
	return fd < 0;
}

static int finish(void **state)
{
	return unlink(path);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CLAIM(nothing_need_be_configured),
		CLAIM(the_policy_has_the_defaults_of_its_own_list),
		CLAIM(a_whole_file_is_read),
		CLAIM(the_command_line_is_above_the_file),
		CLAIM(a_reload_with_the_same_words_gives_the_same),
		CLAIM(a_mistake_is_told),
		CLAIM(a_mistake_of_the_command_line_is_told_apart),
		CLAIM(more_engines_than_the_region_holds_are_refused),
		CLAIM(time_scale_changes_the_engines_world_only),
		CLAIM(a_shadow_differs_in_what_it_is_told_only),
		CLAIM(a_shadow_that_cannot_be_is_told),
		CLAIM(keys_are_in_alphabetical_order),
		CLAIM(no_key_is_twice_in_the_table),
		CLAIM(secrets_are_never_shown),
		CLAIM(the_example_file_is_up_to_date),
	};

	/* `test_settings write > router/etc/turnward.conf` makes the example anew. */
	if (argc > 1 && !strcmp(argv[1], "write"))
		return settings_write_example(STDOUT_FILENO) != 0;
	return cmocka_run_group_tests_name("settings", tests, begin, finish);
}
