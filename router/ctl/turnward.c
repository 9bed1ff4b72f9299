/* turnward: the operator's tool. One word chooses the subcommand. */
#include "router/ctl/ctl.h"

#include "shm/base/exit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
	const char *name, *purpose;
	int (*run)(int argc, char **argv);
} commands[] = {
	{ "status", "engines, books and latency, from the region alone", ctl_status },
	{ "explain", "why a request went where it went", ctl_explain },
	{ "record", "decisions and outcomes into a file", ctl_record },
	{ "replay", "decides a recording again, by its own policy or another", ctl_replay },
};

enum { COMMANDS = sizeof(commands) / sizeof(commands[0]) };

static const struct opt none[] = { { 0 } };
static char examples[1024];
static struct opt_program program = {
	.name = "turnward",
	.operands = "COMMAND [options]",
	.purpose = "Looks into a running turnward.",
	.options = none,
	.examples = examples,
};

int ctl_region(struct region *ret_region, const char *option)
{
	char error[REGION_ERROR_MAX] = "", own[64];
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	char elsewhere[256];
	int err = region_open(ret_region, option, 0, error);
	const char *places[] = { "/run/turnward", elsewhere, own };
	struct region other;

	if (err == 0)
		return 0;
	fprintf(stderr, "turnward: %s\n", error);
	snprintf(own, sizeof(own), "/dev/shm/turnward-%u", (unsigned)getuid());
	snprintf(elsewhere, sizeof(elsewhere), "%s/turnward", runtime ? runtime : "/nonexistent");
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		char ignored[REGION_ERROR_MAX];

		if (region_open(&other, places[i], 0, ignored) < 0)
			continue;
		fprintf(stderr, "turnward: there is a region at %s: --region %s\n", other.path,
			other.path);
		region_close(&other);
		break;
	}
	return err;
}

int main(int argc, char **argv)
{
	const char *words[COMMANDS + 1] = { 0 };
	struct opt_scan scan;
	size_t n = 0;

	for (int i = 0; i < COMMANDS; i++) {
		words[i] = commands[i].name;
		n += snprintf(examples + n, sizeof(examples) - n, "  turnward %-10s %s\n",
			      commands[i].name, commands[i].purpose);
	}
	for (int i = 0; argc > 1 && i < COMMANDS; i++)
		if (strcmp(argv[1], commands[i].name) == 0)
			return commands[i].run(argc - 1, argv + 1);
	if (argc > 1 && argv[1][0] != '-')
		opt_unknown(&program, "command", argv[1], words);
	opt_begin(&scan, &program, argc, argv);
	while (opt_next(&scan) != OPT_END)
		;
	opt_fail(&program, "a command is needed");
}
