/*
 * Command lines of all programs, declared in a table: --help, --version and usage errors look
 * alike.
 *
 * --help goes to stdout with exit 0, fits 24 x 80, examples last; --version is one line; a usage
 * error goes to stderr with exit 2 and names the nearest option. Only program-level code uses this.
 */
#ifndef TURNWARD_SHM_BASE_OPT_H
#define TURNWARD_SHM_BASE_OPT_H

#include <stddef.h>

struct opt {
	const char *name;  /* without the dashes */
	const char *value; /* "FILE": it takes one; NULL: it takes none */
	const char *help;  /* one phrase; NULL hides it from --help */
	int id;            /* > 0, what opt_next() returns */
	char letter;       /* its short form, or 0 */
	char dash;         /* takes none, yet a following "-" is swallowed (--json -) */
};

struct opt_program {
	const char *name;     /* "turnward-agent", "turnward status" */
	const char *operands; /* "[options] ID" */
	const char *purpose;  /* one sentence */
	const struct opt
		*options;     /* ended by .name == NULL; --help and --version come by themselves */
	const char *examples; /* lines, each ended by \n */
	const char *built_with; /* "liburing 2.3", or NULL */
};

struct opt_scan {
	const struct opt_program *program;
	int argc;
	char **argv;
	const char *value; /* of the option just returned */
	int first;         /* after OPT_END: argv[first..argc) are the operands */
};

enum { OPT_END = 0 };

void opt_begin(struct opt_scan *scan, const struct opt_program *program, int argc, char **argv);

/* The next option's id, or OPT_END. Options may follow operands; "--" ends them. */
int opt_next(struct opt_scan *scan);

/* A usage error: "NAME: message", a pointer to --help, exit 2. */
void opt_fail(const struct opt_program *program, const char *format, ...)
	__attribute__((format(printf, 2, 3), noreturn));

/* For a word that must be one of several: fails naming the nearest. `words` is NULL-terminated. */
void opt_unknown(const struct opt_program *program, const char *what, const char *got,
		 const char *const *words) __attribute__((noreturn));

/* "0.3.1 (abc1234)": for files that say what wrote them. */
void opt_version(char *ret_text, size_t size);

/* What --help and --version print. */
void opt_print_help(const struct opt_program *program);
void opt_print_version(const struct opt_program *program);

#endif
