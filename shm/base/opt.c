/* One way to read a command line and to tell what it may hold. */
#include "shm/base/opt.h"

#include <assert.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/base/exit.h"
#include "shm/base/near.h"
#include "shm/base/version.h"

enum {
	OPTIONS_MAX = 64,
	HELP_COLUMN = 28, /* where phrases begin */
	HELP_WIDTH = 80,
	ID_HELP = 1000, /* beyond any program's own ids */
	ID_VERSION,
	ID_BASE =
		2000, /* getopt_long()'s value is this + index: ids need not be distinct letters */
};

void opt_version(char *ret_text, size_t size)
{
	snprintf(ret_text, size, "%s (%s)", TURNWARD_VERSION, TURNWARD_COMMIT);
}

void opt_print_version(const struct opt_program *program)
{
	printf("turnward %s (%s)%s%s\n", TURNWARD_VERSION, TURNWARD_COMMIT,
	       program->built_with ? " " : "", program->built_with ? program->built_with : "");
}

/* Prints the phrase from HELP_COLUMN on, broken between words. */
static void print_phrase(int column, const char *phrase)
{
	if (column > HELP_COLUMN - 2) {
		putchar('\n');
		column = 0;
	}
	printf("%*s", HELP_COLUMN - column, "");
	column = HELP_COLUMN;
	while (*phrase) {
		int len = (int)strcspn(phrase, " ");

		if (column > HELP_COLUMN && column + 1 + len > HELP_WIDTH) {
			printf("\n%*s", HELP_COLUMN, "");
			column = HELP_COLUMN;
		}
		column += printf("%s%.*s", column > HELP_COLUMN ? " " : "", len, phrase);
		phrase += len;
		phrase += strspn(phrase, " ");
	}
	putchar('\n');
}

static void print_option(const struct opt *opt)
{
	char head[64];

	if (!opt->help)
		return;
	snprintf(head, sizeof(head), "  %c%c%c --%s%s%s", opt->letter ? '-' : ' ',
		 opt->letter ? opt->letter : ' ', opt->letter ? ',' : ' ', opt->name,
		 opt->value ? " " : "", opt->value ? opt->value : "");
	print_phrase(printf("%s", head), opt->help);
}

void opt_print_help(const struct opt_program *program)
{
	printf("Usage: %s %s\n%s\n\n", program->name, program->operands, program->purpose);
	for (const struct opt *opt = program->options; opt->name; opt++)
		print_option(opt);
	printf("  -h, --help; -V, --version\n");
	if (program->examples)
		printf("Examples:\n%s", program->examples);
}

void opt_fail(const struct opt_program *program, const char *format, ...)
{
	va_list args;

	fprintf(stderr, "%s: ", program->name);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, "\nTry '%s --help'.\n", program->name);
	exit(EXIT_USAGE);
}

void opt_unknown(const struct opt_program *program, const char *what, const char *got,
		 const char *const *words)
{
	const char *best = NULL;
	int distance = NEAR_DISTANCE_MAX + 1;

	for (; *words; words++)
		near_offer(got, *words, &best, &distance);
	if (best)
		opt_fail(program, "unknown %s '%s'; did you mean '%s'?", what, got, best);
	opt_fail(program, "unknown %s '%s'", what, got);
}

static void fail_option(const struct opt_scan *scan, const char *word)
{
	const char *names[OPTIONS_MAX + 3];
	char name[NEAR_NAME_MAX + 1];
	int n = 0;

	if (strncmp(word, "--", 2))
		opt_fail(scan->program, "unknown option '%s'", word);
	for (const struct opt *opt = scan->program->options; opt->name; opt++)
		names[n++] = opt->name;
	names[n++] = "help";
	names[n++] = "version";
	names[n] = NULL;

	snprintf(name, sizeof(name), "%.*s", (int)strcspn(word + 2, "="), word + 2);

	const char *best = NULL;
	int distance = NEAR_DISTANCE_MAX + 1;

	for (n = 0; names[n]; n++)
		near_offer(name, names[n], &best, &distance);
	if (best)
		opt_fail(scan->program, "unknown option '--%s'; did you mean '--%s'?", name, best);
	opt_fail(scan->program, "unknown option '--%s'", name);
}

/*
 * What is closed of the three descriptors that every program may write to is opened on nothing:
 * else the first socket or file would be taken for it, and log lines would be written into that.
 */
static void keep_standard_streams(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

void opt_begin(struct opt_scan *scan, const struct opt_program *program, int argc, char **argv)
{
	*scan = (struct opt_scan){ .program = program, .argc = argc, .argv = argv, .first = argc };
	optind = 0; /* glibc: forget a scan that another sub-command began */
	opterr = 0;
	keep_standard_streams();
}

/* Builds getopt_long()'s two tables; returns the number of options of the program's own. */
static int build_tables(const struct opt_program *program, struct option *longs, char *shorts)
{
	int n = 0;

	*shorts++ = ':';
	for (; program->options[n].name; n++) {
		const struct opt *opt = &program->options[n];

		assert(n < OPTIONS_MAX && opt->id > 0 && !(opt->value && opt->dash));
		longs[n] = (struct option){ opt->name, opt->value ? required_argument : no_argument,
					    NULL, ID_BASE + n };
		if (opt->letter)
			*shorts++ = opt->letter;
		if (opt->letter && opt->value)
			*shorts++ = ':';
	}
	longs[n] = (struct option){ "help", no_argument, NULL, ID_HELP };
	longs[n + 1] = (struct option){ "version", no_argument, NULL, ID_VERSION };
	longs[n + 2] = (struct option){ 0 };
	*shorts++ = 'h';
	*shorts++ = 'V';
	*shorts = '\0';
	return n;
}

static int take_option(struct opt_scan *scan, const struct opt *opt)
{
	scan->value = opt->value ? optarg : NULL;
	if (opt->dash && optind < scan->argc && !strcmp(scan->argv[optind], "-"))
		optind++;
	return opt->id;
}

static const struct opt *by_letter(const struct opt_program *program, int letter)
{
	for (const struct opt *opt = program->options; opt->name; opt++)
		if (opt->letter && opt->letter == letter)
			return opt;
	return NULL;
}

int opt_next(struct opt_scan *scan)
{
	struct option longs[OPTIONS_MAX + 3];
	char shorts[2 * OPTIONS_MAX + 4];
	int n = build_tables(scan->program, longs, shorts);
	int at = optind ? optind : 1; /* the word looked at, should it be a wrong one */
	int c = getopt_long(scan->argc, scan->argv, shorts, longs, NULL);

	if (c == -1) {
		scan->first = optind;
		return OPT_END;
	}
	if (c == ID_HELP || c == 'h') {
		opt_print_help(scan->program);
		exit(EXIT_GOOD);
	}
	if (c == ID_VERSION || c == 'V') {
		opt_print_version(scan->program);
		exit(EXIT_GOOD);
	}
	if (c >= ID_BASE && c < ID_BASE + n)
		return take_option(scan, &scan->program->options[c - ID_BASE]);

	const char *word = scan->argv[optind > at ? optind - 1 : at];

	if (c == ':')
		opt_fail(scan->program, "option '%s' needs a value", word);
	if (c == '?' && optopt >= ID_HELP)
		opt_fail(scan->program, "option '%.*s' takes no value", (int)strcspn(word, "="),
			 word);
	if (c == '?')
		fail_option(scan, word);

	const struct opt *opt = by_letter(scan->program, c);

	assert(opt);
	return take_option(scan, opt);
}
