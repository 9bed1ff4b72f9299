/* Command lines: values, operands, help on stdout, usage errors on stderr with exit 2 and a hint.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/near.h"
#include "shm/base/opt.h"
#include "tests/lib/unit.h"

enum { ENGINE = 1, JSON, LISTEN };

static const struct opt options[] = {
	{ "engine", "[NAME=]URL", "an engine to dispatch to; give it once for each of them", ENGINE,
	  'e', 0 },
	{ "json", NULL, "machine-readable", JSON, 0, 1 },
	{ "listen", "A:P", NULL, LISTEN, 0, 0 },
	{ 0 },
};
static const struct opt_program program = {
	"turnward test",
	"[options] ID",
	"Tries the options.",
	options,
	"  turnward test -e URL 7\n",
	"liburing 2.3",
};

struct outcome {
	int code;
	char out[2000], err[500];
};

static size_t slurp(int fd, char *text, size_t size)
{
	size_t len = 0;
	ssize_t n;

	while ((n = read(fd, text + len, size - 1 - len)) > 0)
		len += (size_t)n;
	text[len] = '\0';
	close(fd);
	return len;
}

static void child(int argc, char **argv)
{
	struct opt_scan scan;
	int id;

	opt_begin(&scan, &program, argc, argv);
	while ((id = opt_next(&scan)))
		printf("%d=%s ", id, scan.value ? scan.value : "");
	for (int i = scan.first; i < argc; i++)
		printf("<%s>", argv[i]);
	fflush(stdout);
	exit(0);
}

/* Runs the scan in a child with the words after the program's name. */
static struct outcome run(const char *words)
{
	struct outcome r = { 0 };
	char copy[200], name[] = "x", *argv[20] = { name };
	int argc = 1, out[2], err[2], status;

	snprintf(copy, sizeof(copy), "%s", words);
	for (char *w = strtok(copy, " "); w; w = strtok(NULL, " "))
		argv[argc++] = w;
	assert_int_equal(pipe(out) | pipe(err), 0);
	fflush(NULL);
	pid_t pid = fork();

	if (!pid) {
		dup2(out[1], 1);
		dup2(err[1], 2);
		child(argc, argv);
	}
	close(out[1]);
	close(err[1]);
	slurp(out[0], r.out, sizeof(r.out));
	slurp(err[0], r.err, sizeof(r.err));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	r.code = WEXITSTATUS(status);
	return r;
}

static void options_and_operands_may_be_mixed(void **state)
{
	assert_string_equal(run("a -e u1 b --engine=u2 --engine u3 c").out,
			    "1=u1 1=u2 1=u3 <a><b><c>");
	assert_string_equal(run("--json -- -e x").out, "2= <-e><x>");
	assert_string_equal(run("").out, "");
	assert_string_equal(run("--listen :1").out, "3=:1 ");
}

static void a_dash_after_json_is_taken(void **state)
{
	assert_string_equal(run("--json - 7").out, "2= <7>");
	assert_string_equal(run("--json 7 -").out, "2= <7><->");
}

static void help_fits_the_screen_and_ends_with_examples(void **state)
{
	struct outcome r = run("--help --wrong");
	size_t width = 0;

	assert_int_equal(r.code, 0);
	assert_string_equal(r.err, "");
	for (char *c = r.out; *c; c++) {
		width = *c == '\n' ? 0 : width + 1;
		assert_true(width <= 80);
	}
	assert_memory_equal(r.out, "Usage: turnward test [options] ID\nTries the options.\n", 53);
	assert_non_null(strstr(r.out, "\nExamples:\n  turnward test -e URL 7\n"));
	assert_string_equal(strstr(r.out, "\nExamples:"),
			    "\nExamples:\n  turnward test -e URL 7\n");
	assert_non_null(strstr(r.out, "--version"));
	assert_null(strstr(r.out, "--listen"));
}

static void version_is_one_line(void **state)
{
	struct outcome r = run("--version");

	assert_int_equal(r.code, 0);
	assert_memory_equal(r.out, "turnward ", 9);
	assert_non_null(strstr(r.out, ") liburing 2.3\n"));
	assert_ptr_equal(strchr(r.out, '\n'), r.out + strlen(r.out) - 1);
}

static void usage_errors_exit_2_and_name_the_nearest(void **state)
{
	static const char *const cases[][2] = {
		{ "--enigne x",
		  "turnward test: unknown option '--enigne'; did you mean '--engine'?\n" },
		{ "--jsn", "turnward test: unknown option '--jsn'; did you mean '--json'?\n" },
		{ "--quux", "turnward test: unknown option '--quux'\n" },
		{ "-q", "turnward test: unknown option '-q'\n" },
		{ "7 --enginee=4",
		  "turnward test: unknown option '--enginee'; did you mean '--engine'?\n" },
		{ "--engine", "turnward test: option '--engine' needs a value\n" },
		{ "a -e", "turnward test: option '-e' needs a value\n" },
		{ "--json=x", "turnward test: option '--json' takes no value\n" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct outcome r = run(cases[i][0]);

		assert_int_equal(r.code, 2);
		assert_string_equal(r.out, "");
		r.err[strlen(cases[i][1])] = '\0';
		assert_string_equal(r.err, cases[i][1]);
	}
}

static void distance_counts_edits_and_swaps(void **state)
{
	assert_int_equal(near_distance("", ""), 0);
	assert_int_equal(near_distance("abc", ""), 3);
	assert_int_equal(near_distance("kitten", "sitting"), 3);
	assert_int_equal(near_distance("wieght", "weight"), 1);
	assert_int_equal(near_distance("conn_max", "conns_max"), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(options_and_operands_may_be_mixed),
		CLAIM(a_dash_after_json_is_taken),
		CLAIM(help_fits_the_screen_and_ends_with_examples),
		CLAIM(version_is_one_line),
		CLAIM(usage_errors_exit_2_and_name_the_nearest),
		CLAIM(distance_counts_edits_and_swaps),
	};

	return cmocka_run_group_tests_name("opt", tests, NULL, NULL);
}
