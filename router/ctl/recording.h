/* A recording as the subcommands read it: a path, or "-" for stdin. */
#ifndef TURNWARD_ROUTER_CTL_RECORDING_H
#define TURNWARD_ROUTER_CTL_RECORDING_H

#include "router/journal/record.h"

struct recording {
	int fd;
	struct record_reader reader;
};

/* 0, or -errno with the reason said on stderr in the name of `who` ("turnward replay"). */
int recording_open(struct recording *ret, const char *path, const char *who);
void recording_close(struct recording *recording);

#endif
