/* turnward-router: reads the settings, then hands over to the supervisor. */
#include "router/settings.h"
#include "router/supervisor.h"
#include "shm/base/exit.h"
#include "shm/base/log.h"
#include "shm/base/opt.h"

#include <errno.h>
#include <stdio.h>

#ifdef TURNWARD_JEMALLOC
/*
 * What the pools free goes back to the system at once: they keep spares themselves, and an idle
 * worker makes no calls by which jemalloc would notice that time has passed. Measured after three
 * storms of 10,000 requests: 29 MiB, with its defaults 130, in the same CPU time.
 */
extern const char *malloc_conf;
const char *malloc_conf = "dirty_decay_ms:0,muzzy_decay_ms:0";
#endif

static const struct opt options[] = { SETTINGS_OPTIONS, { 0 } };

static const struct opt_program program = {
	.name = "turnward-router",
	.operands = "[options]",
	.purpose = "Dispatches LLM requests among the engines of one server.",
	.options = options,
	.examples =
		"  turnward-router --engine http://127.0.0.1:8000 --engine http://127.0.0.1:8001\n"
		"  turnward-router -c /etc/turnward/turnward.conf --policy eft\n",
};

int main(int argc, char **argv)
{
	static struct router_settings settings;
	static struct conf conf;
	struct settings_given given = { 0 };
	struct opt_scan scan;
	int id, err;

	opt_begin(&scan, &program, argc, argv);
	while ((id = opt_next(&scan)) != OPT_END)
		if (settings_note(&given, id, scan.value) < 0)
			opt_fail(&program, "too many settings on the command line");
	if (scan.first < argc)
		opt_fail(&program, "%s: takes no operands", argv[scan.first]);
	err = settings_load(&settings, &conf, &given);
	if (err < 0) {
		fprintf(stderr, "turnward-router: %s\n", conf.error);
		return err == -EDOM ? EXIT_USAGE : EXIT_CONFIG;
	}
	settings_scale(&settings);
	log_open("turnward-router", (enum log_level)settings.log_level);
	log_format_set((enum log_format)settings.log_format);
	return supervisor_run(&settings);
}
