/*
 * The engines whose traffic is timed: given on the command line, or followed in the region, with
 * every address that their names lead to.
 */
#ifndef TURNWARD_BPF_TARGETS_H
#define TURNWARD_BPF_TARGETS_H

#include "bpf/probe.h"
#include "shm/files.h"
#include "shm/region.h"
#include "shm/state.h"

#include <stdint.h>

enum { TARGET_ADDRESSES_MAX = 8, TARGET_WHY_MAX = 400 };

struct target {
	char name[FILES_NAME_SIZE]; /* "" = the index is free */
	char url[256];
	struct sockaddr_storage address[TARGET_ADDRESSES_MAX];
	uint32_t addresses_nr; /* 0: it cannot be timed, `why` says why */
	char why[TARGET_WHY_MAX];
	uint8_t found; /* by the walk under way */
	uint64_t resolved_ns;
};

/* An engine keeps its index while it is there; the index is what records name it by. */
struct targets {
	struct target target[STATE_ENGINES_MAX];
	uint32_t nr; /* one past the highest index in use */
	uint64_t
		renamed; /* bit i: index i has begun to mean another engine; the caller clears it */
	uint8_t changed; /* the set of addresses is another; the caller clears it */
};

/* "[NAME=]URL" as on the command line. -EINVAL with `why`; -ENOSPC. */
int targets_add(struct targets *targets, const char *text, uint64_t now_ns,
		char why[TARGET_WHY_MAX]);

/* Engines of agents' files and of the router's; those no longer there leave. */
void targets_follow(struct targets *targets, const struct region *region, uint64_t now_ns);

/* Names that led nowhere are looked up again now and then. */
void targets_retry(struct targets *targets, uint64_t now_ns);

/* What the kernel side is to look at; at most `room`. */
unsigned targets_addresses(const struct targets *targets, struct probe_address *ret_list,
			   unsigned room);

#endif
