/*
 * The agent's place in the region: holds engine.NAME, publishes into it, and makes it again when
 * somebody removes the file or the whole directory.
 */
#ifndef TURNWARD_AGENT_PUBLISH_H
#define TURNWARD_AGENT_PUBLISH_H

#include "shm/files.h"
#include "shm/region.h"

struct publisher {
	const char *option; /* --region, or NULL */
	const char *name;   /* the engine's */
	struct region region;
	struct engine_file file;
	struct engine_info info; /* as last published */
	int held;
	uint64_t checked_ns;
	char error[REGION_ERROR_MAX]; /* of the last failure */
};

/* 0, or -errno with `error`: -EBUSY when another agent has this engine. */
int publisher_open(struct publisher *publisher, const char *region_option, const char *engine_name);
void publisher_close(struct publisher *publisher);

/* What a predecessor published last: 0 or -ENODATA. */
int publisher_inherit(const struct publisher *publisher, struct engine_state *ret_state);

void publisher_put(struct publisher *publisher, const struct engine_state *state,
		   const struct engine_info *info);

/*
 * At most once a second: is our file still the one that readers find? 0 = yes; 1 = it was not, and
 * is again; -EBUSY: another agent has it now; -errno: it could not be made again (and will be
 * tried).
 */
int publisher_check(struct publisher *publisher, uint64_t now_ns);

#endif
