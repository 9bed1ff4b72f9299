/*
 * Where in the cgroup2 tree the probe is attached, and why there: the place that was asked for;
 * else the cgroup of the router that lives in the region, wherever that goes; else the root, which
 * holds every process of the host.
 */
#ifndef TURNWARD_BPF_PLACE_H
#define TURNWARD_BPF_PLACE_H

#include "bpf/cgroup.h"
#include "shm/region.h"

/* X(ID, words behind "every socket made in cgroup X": whose it is) */
#define PLACES(X)                                    \
	X(GIVEN, "as asked")                         \
	X(ROUTER, "the router's")                    \
	X(ENGINES, "the root: engines were named")   \
	X(NO_ROUTER, "the root: no router runs yet") \
	X(HIDDEN, "the root: the router's cannot be opened")

#define PLACES_ENUM(id, words) PLACE_##id,
enum place_why { PLACES(PLACES_ENUM) };
#undef PLACES_ENUM

struct place {
	struct cgroup cgroup; /* fd -1 = none yet */
	enum place_why why;
	int router_pid;  /* the region's router, when last looked for; 0 = none */
	int outside_pid; /* a router that was told of as being outside */
};

/*
 * To attach to before the region is known: `given` (--cgroup), or NULL: the root. `engines`: whose
 * traffic is timed was said by name, so whoever asks them counts. 0 or -errno with `why`.
 */
int place_open(struct place *ret_place, const char *given, int engines, char why[CGROUP_WHY_MAX]);

/* 1 with the place to attach to now, whose cgroup the caller closes; 0 = it is where it should be.
 */
int place_moved(struct place *place, const struct region *region, struct place *ret_to);

/* 1, once, of a router outside of the place that was asked for: `ret_inside` is where it is. */
int place_misses_router(struct place *place, const struct region *region,
			char ret_inside[CGROUP_PATH_MAX]);

const char *place_words(const struct place *place);

#endif
