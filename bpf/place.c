/* Finds the router's cgroup by the process that holds the region's `router` file. */
#include "bpf/place.h"

#include <fcntl.h>
#include <unistd.h>

#include "shm/base/scoped.h"

/* Who holds the region's `router` file; its header is read and not mapped, since it is large. */
static int router_pid(const struct region *region)
{
	scoped(fd_drop) int fd = openat(region->dir_fd, "router", O_RDONLY | O_CLOEXEC);
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	struct region_header header;

	if (fd < 0 || pread(fd, &header, sizeof(header), 0) != sizeof(header))
		return 0;
	if (header.kind != REGION_ROUTER || fcntl(fd, F_OFD_GETLK, &lock) < 0 ||
	    lock.l_type == F_UNLCK)
		return 0;
	return (int)header.writer_pid;
}

int place_open(struct place *ret_place, const char *given, int engines, char why[CGROUP_WHY_MAX])
{
	struct place p = { .why = given ? PLACE_GIVEN : engines ? PLACE_ENGINES : PLACE_NO_ROUTER };
	int err = cgroup_open(&p.cgroup, given, why);

	if (err == 0)
		*ret_place = p;
	return err;
}

static int stays(const struct place *place)
{
	return place->why == PLACE_GIVEN || place->why == PLACE_ENGINES;
}

/* Its own place first; where that cannot be had, the root. */
static int open_for(struct place *to, const char *inside)
{
	char why[CGROUP_WHY_MAX];

	to->why = inside ? PLACE_ROUTER : PLACE_NO_ROUTER;
	if (inside && cgroup_find(&to->cgroup, inside, why) == 0)
		return 0;
	if (inside)
		to->why = PLACE_HIDDEN;
	return cgroup_open(&to->cgroup, NULL, why);
}

/*
 * A router that is started anew may get a new cgroup under the old name, and what was attached to
 * the old one is gone with it. So is looked at what the name stands for now. Without a router the
 * place is kept while it is there: the next one is likely to come back to it.
 */
int place_moved(struct place *place, const struct region *region, struct place *ret_to)
{
	char inside[CGROUP_PATH_MAX];
	struct place to = *place;
	int err;

	if (stays(place))
		return 0;
	to.router_pid = router_pid(region);
	if (to.router_pid && cgroup_of(to.router_pid, inside) < 0)
		to.router_pid = 0; /* it has just ended */
	place->router_pid = to.router_pid;
	if (to.router_pid == 0) {
		if (cgroup_stands(&place->cgroup))
			return 0;
		err = open_for(&to, NULL);
	} else {
		if (cgroup_is(&place->cgroup, inside) && place->why == PLACE_ROUTER)
			return 0;
		err = open_for(&to, inside);
	}
	if (err == 0 && to.why == place->why && cgroup_is(&place->cgroup, to.cgroup.below)) {
		cgroup_close(&to.cgroup);
		return 0;
	}
	if (err == 0)
		*ret_to = to;
	return err == 0;
}

int place_misses_router(struct place *place, const struct region *region,
			char ret_inside[CGROUP_PATH_MAX])
{
	int pid;

	if (place->why != PLACE_GIVEN)
		return 0;
	pid = router_pid(region);
	if (pid == 0 || pid == place->outside_pid || cgroup_of(pid, ret_inside) < 0 ||
	    cgroup_contains(place->cgroup.below, ret_inside))
		return 0;
	place->outside_pid = pid;
	return 1;
}

const char *place_words(const struct place *place)
{
	static const char *const words[] = {
#define PLACES_ROW(id, text) text,
		PLACES(PLACES_ROW)
#undef PLACES_ROW
	};

	return words[place->why];
}
