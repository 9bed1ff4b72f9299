/* Settings: what the table allows is taken, everything else is told with place and remedy. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/base/conf.h"
#include "tests/lib/unit.h"

struct settings {
	char name[16];
	uint64_t conns, on, wait, size, color;
	double ratio;
	double factor;
};

struct entry {
	char title[16];
	char url[64];
	double weight;
	int begun;
};

static const char *const colors[] = { "red", "green", "light-blue", NULL };

#define AT(member) offsetof(struct settings, member), sizeof(((struct settings *)0)->member)
static const struct conf_key keys[] = {
	{ "router", "conns_max", CONF_UINT, AT(conns), "4096", 1, 65535, NULL, 0, "connections" },
	{ "router", "name", CONF_TEXT, AT(name), "", 0, 0, NULL, CONF_RELOAD, "a name" },
	{ "router", "on", CONF_BOOL, AT(on), "yes", 0, 0, NULL, 0, "a switch" },
	{ "router", "wait", CONF_TIME, AT(wait), "5s", 0.001, 3600, NULL, CONF_FASTER,
	  "a time limit" },
	{ "router", "size", CONF_BYTES, AT(size), "64M", 1024, 1 << 30, NULL, 0, "a size" },
	{ "policy", "color", CONF_CHOICE, AT(color), "green", 0, 0, colors, 0, "a colour" },
	{ "policy", "migrate_ratio", CONF_REAL, AT(ratio), "1.25", 1.05, 10, NULL, CONF_RELOAD,
	  "leave above this multiple" },
	{ "policy", "throughput", CONF_REAL, AT(factor), "4000", 1, 1e9, NULL, CONF_PER_S,
	  "tokens/s" },
	{ "engine", "url", CONF_TEXT, offsetof(struct entry, url), 64, "", 0, 0, NULL, CONF_NAMED,
	  "where" },
	{ "engine", "weight", CONF_REAL, offsetof(struct entry, weight), 8, "1", 0, 100, NULL,
	  CONF_NAMED, "share" },
	{ 0 },
};

static struct conf conf;
static struct settings settings;
static struct entry entries[4];
static int entries_nr;
static int memory; /* the file read, without a disk */
static char path[40];

static int on_entry(void *ctx, const char *section, const char *title, const struct conf_key *key,
		    const char *value, const char **why)
{
	static char reason[200];

	assert_string_equal(section, "engine");
	if (!key) {
		if (!strcmp(title, "bad")) {
			*why = "bad is no name";
			return -EINVAL;
		}
		struct entry *entry = &entries[entries_nr++];

		snprintf(entry->title, sizeof(entry->title), "%s", title);
		conf_entry_init(keys, section, entry);
		return 0;
	}
	if (!conf_value(key, &entries[entries_nr - 1], value, reason, sizeof(reason)))
		return 0;
	*why = reason;
	return -EINVAL;
}

/* Reads the text as a file; the error names the file as FILE. */
static int read_bytes(const char *text, size_t len)
{
	assert_int_equal(ftruncate(memory, 0), 0);
	assert_int_equal(pwrite(memory, text, len, 0), len);
	entries_nr = 0;
	memset(entries, 0, sizeof(entries));
	conf_init(&conf, keys, &settings);
	return conf_file(&conf, &settings, path, on_entry, NULL);
}

static int read_text(const char *text)
{
	return read_bytes(text, strlen(text));
}

static void an_empty_file_gives_the_defaults(void **state)
{
	assert_int_equal(read_text(""), 0);
	assert_int_equal(settings.conns, 4096);
	assert_string_equal(settings.name, "");
	assert_int_equal(settings.on, 1);
	assert_int_equal(settings.wait, 5000000000);
	assert_int_equal(settings.size, 64 << 20);
	assert_int_equal(settings.color, 1);
	assert_true(settings.ratio == 1.25);
	for (int i = 0; keys[i].name; i++)
		assert_int_equal(conf.origin[i], CONF_STANDARD);
}

static void every_type_is_read_with_its_units(void **state)
{
	assert_int_equal(read_text("\xEF\xBB\xBF# a comment\n; another\n[router]\r\n"
				   "conns_max=7\n  name = a b # rest\n\ton = Off ; rest\n"
				   "wait: 250ms\nsize = 1G\n\n[policy]\ncolor = LIGHT-blue\n"
				   "migrate_ratio = 2.5"),
			 0);
	assert_int_equal(settings.conns, 7);
	assert_string_equal(settings.name, "a b");
	assert_int_equal(settings.on, 0);
	assert_int_equal(settings.wait, 250000000);
	assert_int_equal(settings.size, 1 << 30);
	assert_int_equal(settings.color, 2);
	assert_true(settings.ratio == 2.5);
	assert_int_equal(conf.origin[0], CONF_FILE);
	assert_int_equal(conf.line[0], 4);
}

static void named_sections_fill_their_entries(void **state)
{
	assert_int_equal(read_text("[engine gpu0]\nurl = http://127.0.0.1:8000\n[engine gpu1]\n"
				   "weight = 0.5\nurl = unix:/x\n[engine gpu2]\n"),
			 0);
	assert_int_equal(entries_nr, 3);
	assert_string_equal(entries[0].title, "gpu0");
	assert_string_equal(entries[0].url, "http://127.0.0.1:8000");
	assert_true(entries[0].weight == 1 && entries[1].weight == 0.5);
	assert_string_equal(entries[2].title, "gpu2");
}

static const struct {
	const char *text, *error; /* what follows the file's name */
} mistakes[] = {
	{ "[policy]\n\n migrate_ratio = 0",
	  ":3:18: migrate_ratio = 0: must be 1.05..10 (1.25 is the default)" },
	{ "[router]\nconn_max = 1", ":2:1: unknown key conn_max; did you mean conns_max?" },
	{ "[router]\nzzzzzz = 1", ":2:1: unknown key zzzzzz" },
	{ "[router]\ncolor = red", ":2:1: key color belongs into section [policy]" },
	{ "[router]\nname = a\nname = b", ":3:1: key name was set in line 2 already" },
	{ "[polciy]\n", ":1:1: unknown section [polciy]; did you mean [policy]?" },
	{ "[policy x]\n", ":1:1: section [policy] takes no name" },
	{ "[engine]\nurl = x", ":1:1: section [engine] needs a name: [engine NAME]" },
	{ "[router\nname = x", ":1:1: a section is written [name] or [name title]" },
	{ "[engine a b]\n", ":1:1: a section is written [name] or [name title]" },
	{ "[engine bad]\n", ":1:9: [engine bad]: bad is no name" },
	{ "[engine a]\nweight = 1\nweight = 2", ":3:1: key weight was set in line 2 already" },
	{ "[engine a]\nweight = -1", ":2:10: weight = -1: must be 0..100 (1 is the default)" },
	{ "[engine a]\nwieght = 1", ":2:1: unknown key wieght; did you mean weight?" },
	{ "name = x", ":1:1: key name stands before any section such as [router]" },
	{ "[router]\nname", ":2:1: neither [section], KEY = VALUE nor a comment" },
	{ "[router]\nwait = 5",
	  ":2:8: wait = 5: needs a unit (ns us ms s m h) and must be 1ms..1h (5s is the default)" },
	{ "[router]\nwait = 2h", ":2:8: wait = 2h: must be 1ms..1h (5s is the default)" },
	{ "[router]\nsize = 5X",
	  ":2:8: size = 5X: takes K, M, G or plain bytes and must be 1K..1G (64M is the default)" },
	{ "[router]\nconns_max = 1.5",
	  ":2:13: conns_max = 1.5: must be a whole number, 1..65535 (4096 is the default)" },
	{ "[router]\nconns_max = 0x10",
	  ":2:13: conns_max = 0x10: must be a number, 1..65535 (4096 is the default)" },
	{ "[router]\nconns_max = nan",
	  ":2:13: conns_max = nan: must be a number, 1..65535 (4096 is the default)" },
	{ "[router]\nconns_max = 1.2.3",
	  ":2:13: conns_max = 1.2.3: must be a number, 1..65535 (4096 is the default)" },
	{ "[router]\nconns_max =",
	  ":2:1: conns_max = : must be a number, 1..65535 (4096 is the default)" },
	{ "[router]\nname = 0123456789abcdef",
	  ":2:8: name = 0123456789abcdef: must be up to 15 characters (empty is the default)" },
	{ "[router]\non = maybe", ":2:6: on = maybe: must be yes or no (yes is the default)" },
	{ "[policy]\ncolor = blue",
	  ":2:9: color = blue: must be one of red, green, light-blue (green is the default)" },
};

static void a_mistake_is_told_with_place_and_remedy(void **state)
{
	for (size_t i = 0; i < sizeof(mistakes) / sizeof(*mistakes); i++) {
		assert_int_equal(read_text(mistakes[i].text), -EINVAL);
		assert_memory_equal(conf.error, path, strlen(path));
		assert_string_equal(conf.error + strlen(path), mistakes[i].error);
	}
}

static void what_is_no_text_file_is_refused(void **state)
{
	char line[400];

	assert_int_equal(read_bytes("[router]\nname = a\0b\n", 20), -EINVAL);
	assert_non_null(strstr(conf.error, ":2:1: a zero byte"));
	memset(line, 'x', sizeof(line));
	memcpy(line, "[router]\nname = ", 16);
	assert_int_equal(read_bytes(line, sizeof(line)), -EINVAL);
	assert_non_null(strstr(conf.error, ":2:1: line longer than"));
	line[9] = '#';
	assert_int_equal(read_bytes(line, sizeof(line)), 0);
	conf_init(&conf, keys, &settings);
	assert_int_equal(conf_file(&conf, &settings, "/no/such/file", on_entry, NULL), -ENOENT);
	assert_non_null(strstr(conf.error, "/no/such/file"));
	assert_int_equal(conf_file(&conf, &settings, "/tmp", on_entry, NULL), -EIO);
}

static void the_first_mistake_is_the_one_told(void **state)
{
	assert_int_equal(read_text("[router]\nconns_max = x\nwait = y\n"), -EINVAL);
	assert_non_null(strstr(conf.error, ":2:"));
}

static void options_override_and_say_so(void **state)
{
	assert_int_equal(read_text("[router]\nname = file\n"), 0);
	assert_int_equal(conf_set(&conf, &settings, "name=a=b"), 0);
	assert_string_equal(settings.name, "a=b");
	assert_int_equal(conf.origin[1], CONF_OPTION);
	assert_int_equal(conf_set(&conf, &settings, "policy.migrate_ratio=3"), 0);
	assert_true(settings.ratio == 3);
	assert_int_equal(conf_set_key(&conf, &settings, "color", "red"), 0);
	assert_int_equal(settings.color, 0);
}

static void wrong_options_are_told(void **state)
{
	static const char *const cases[][2] = {
		{ "name", "name: write KEY=VALUE" },
		{ "=x", "=x: write KEY=VALUE" },
		{ "nmae=x", "unknown key nmae; did you mean name?" },
		{ "policy.name=x", "unknown key name" },
		{ "url=x", "unknown key url" },
		{ "conns_max=0", "conns_max = 0: must be 1..65535 (4096 is the default)" },
	};

	conf_init(&conf, keys, &settings);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		assert_int_equal(conf_set(&conf, &settings, cases[i][0]), -EINVAL);
		assert_string_equal(conf.error, cases[i][1]);
	}
	assert_int_equal(settings.conns, 4096);
}

static void a_value_written_out_reads_back_the_same(void **state)
{
	static const char *const cases[][2] = {
		{ "wait", "1500ms" },
		{ "wait", "1h" },
		{ "wait", "90s" },
		{ "wait", "1001us" },
		{ "size", "1536K" },
		{ "size", "1025" },
		{ "on", "no" },
		{ "color", "light-blue" },
		{ "migrate_ratio", "1.3333333333333333" },
		{ "name", "x y" },
		{ "conns_max", "65535" },
	};
	char text[64], why[100];

	conf_init(&conf, keys, &settings);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		const struct conf_key *key = &keys[conf_find(keys, NULL, cases[i][0])];
		struct settings back = settings;

		assert_int_equal(conf_value(key, &settings, cases[i][1], why, sizeof(why)), 0);
		conf_text(key, &settings, text, sizeof(text));
		assert_int_equal(conf_value(key, &back, text, why, sizeof(why)), 0);
		assert_memory_equal(&back, &settings, sizeof(back));
	}
}

static void speed_divides_times_and_multiplies_rates(void **state)
{
	conf_init(&conf, keys, &settings);
	conf_scale(keys, NULL, &settings, 20);

	assert_int_equal(settings.wait, 250000000);
	assert_true(settings.factor == 80000);
	assert_true(settings.ratio == 1.25);
}

static void the_example_is_a_file_that_changes_nothing(void **state)
{
	struct settings standard;
	FILE *file = fopen(path, "w+");
	char text[4000] = "";

	assert_non_null(file);
	assert_int_equal(conf_write_example(keys, fileno(file)), 0);
	rewind(file);
	assert_true(fread(text, 1, sizeof(text) - 1, file) > 0);
	fclose(file);
	assert_non_null(strstr(text, "\n[router]\n# connections (1..65535)\n#conns_max = 4096\n"));
	assert_non_null(strstr(text, "\n# a name (reload)\n#name =\n"));
	assert_non_null(strstr(text, "\n#[engine NAME]\n# where\n#url =\n"));
	conf_init(&conf, keys, &settings);
	standard = settings;
	assert_int_equal(conf_file(&conf, &settings, path, on_entry, NULL), 0);
	assert_memory_equal(&settings, &standard, sizeof(settings));

	/* With every # before a key taken away it still does. */
	char all[4000] = "", *line = strtok(text, "\n");

	for (; line; line = strtok(NULL, "\n"))
		snprintf(all + strlen(all), sizeof(all) - strlen(all), "%s\n",
			 line[0] == '#' && line[1] != ' ' ? line + 1 : line);
	assert_int_equal(read_text(all), 0);
	assert_memory_equal(&settings, &standard, sizeof(settings));
}

static void random_files_never_crash(void **state)
{
	unsigned seed = 3;

	for (int round = 0; round < 3000; round++) {
		char text[200];
		size_t len = (size_t)rand_r(&seed) % sizeof(text);

		for (size_t i = 0; i < len; i++)
			text[i] = "[]\n\n=:# ;abenginwtrouter0129.sM\t\xff\0"[rand_r(&seed) % 34];
		if (len > 10 && round & 1)
			memcpy(text, "[router]\n", 9);
		read_bytes(text, len);
		entries_nr = 0;
	}
}

static int begin(void **state)
{
	memory = memfd_create("conf", MFD_CLOEXEC);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", memory);
	return memory < 0;
}

static int finish(void **state)
{
	return close(memory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(an_empty_file_gives_the_defaults),
		CLAIM(every_type_is_read_with_its_units),
		CLAIM(named_sections_fill_their_entries),
		CLAIM(a_mistake_is_told_with_place_and_remedy),
		CLAIM(what_is_no_text_file_is_refused),
		CLAIM(the_first_mistake_is_the_one_told),
		CLAIM(options_override_and_say_so),
		CLAIM(wrong_options_are_told),
		CLAIM(a_value_written_out_reads_back_the_same),
		CLAIM(speed_divides_times_and_multiplies_rates),
		CLAIM(the_example_is_a_file_that_changes_nothing),
		CLAIM(random_files_never_crash),
	};

	return cmocka_run_group_tests_name("conf", tests, begin, finish);
}
