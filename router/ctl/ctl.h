/* The operator's tool: what its subcommands share. */
#ifndef TURNWARD_ROUTER_CTL_CTL_H
#define TURNWARD_ROUTER_CTL_CTL_H

#include "shm/base/opt.h"
#include "shm/region.h"

/* Each takes its own argv (argv[0] is its name) and returns the exit code. */
int ctl_status(int argc, char **argv);
int ctl_explain(int argc, char **argv);
int ctl_record(int argc, char **argv);
int ctl_replay(int argc, char **argv);

/* Options that all of them have. */
enum { CTL_OPT_REGION = 1, CTL_OPT_ADMIN, CTL_OPT_JSON, CTL_OPT_OWN };
#define CTL_OPTIONS                                                                               \
	{ "region", "DIR", "directory of the shared memory", CTL_OPT_REGION, 0, 0 },              \
		{ "admin", "A:P|unix:PATH", "the router's admin listener", CTL_OPT_ADMIN, 0, 0 }, \
	{                                                                                         \
		"json", NULL, "machine-readable, on stdout", CTL_OPT_JSON, 0, 1                   \
	}

/* Opens a region that exists, or says on stderr why not and where else one lives. 0 or -errno. */
int ctl_region(struct region *ret_region, const char *option);

#endif
