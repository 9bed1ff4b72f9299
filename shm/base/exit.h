/* Exit codes of every program: what scripts and unit files (RestartPreventExitStatus) rely on. */
#ifndef TURNWARD_SHM_BASE_EXIT_H
#define TURNWARD_SHM_BASE_EXIT_H

enum {
	EXIT_GOOD = 0,
	EXIT_RUNTIME = 1, /* failed while running */
	EXIT_USAGE = 2,   /* the command line is wrong */
	EXIT_ABSENT = 3,  /* what was asked about does not run (`turnward status`) */
	EXIT_REGION = 4,  /* region not usable, or its lock is held by another process */
	EXIT_KERNEL = 5,  /* a kernel feature or limit is missing */
	EXIT_CONFIG = 78, /* the configuration is wrong (EX_CONFIG) */
};

#endif
