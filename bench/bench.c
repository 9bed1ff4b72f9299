/* turnward-bench: measurements of turnward's parts; one word chooses which. */
#include <stdio.h>
#include <string.h>

#include "bench/bench.h"
#include "shm/base/opt.h"

#define ROW(name, purpose) { #name, purpose, bench_##name },
static const struct {
	const char *name, *purpose;
	int (*run)(int argc, char **argv);
} commands[] = { BENCH_COMMANDS(ROW) };

enum { COMMANDS = sizeof(commands) / sizeof(commands[0]) };

static const struct opt none[] = { { 0 } };
static char examples[1024];
static struct opt_program program = {
	.name = "turnward-bench",
	.operands = "COMMAND [options]",
	.purpose = "Measures turnward, part by part and as a whole.",
	.options = none,
	.examples = examples,
};

int main(int argc, char **argv)
{
	const char *words[COMMANDS + 1] = { 0 };
	size_t len = 0;

	for (size_t i = 0; i < COMMANDS; i++) {
		words[i] = commands[i].name;
		len += (size_t)snprintf(examples + len, sizeof(examples) - len,
					"  turnward-bench %-9s %s\n", commands[i].name,
					commands[i].purpose);
		if (argc > 1 && strcmp(argv[1], commands[i].name) == 0)
			return commands[i].run(argc - 1, argv + 1);
	}
	if (argc > 1 && argv[1][0] != '-')
		opt_unknown(&program, "command", argv[1], words);
	struct opt_scan scan;
	opt_begin(&scan, &program, argc, argv);
	opt_next(&scan);
	opt_fail(&program, "a command is missing");
}
