/*
 * Which folder of the cgroup2 tree the probe attaches to. A socket belongs to the cgroup that its
 * maker was in when it made it, so the root of the tree is the one place where nothing can be
 * missed; a narrower one must hold the router before the router connects.
 */
#ifndef TURNWARD_BPF_CGROUP_H
#define TURNWARD_BPF_CGROUP_H

enum { CGROUP_PATH_MAX = 512, CGROUP_WHY_MAX = 256 };

struct cgroup {
	int fd; /* -1 = none */
	int made;
	char path[CGROUP_PATH_MAX];
	char below[CGROUP_PATH_MAX]; /* the same as cgroup_of() would give it */
};

/*
 * Opens `wanted`: NULL is the root of the cgroup2 tree; an absolute path of a folder in it; or a
 * path below the root ("system.slice/turnward-router.service"). One that is not there is made. 0 or
 * -errno with `why`.
 */
int cgroup_open(struct cgroup *ret_cgroup, const char *wanted, char why[CGROUP_WHY_MAX]);
/* The same, and what is not there is not made: -ENOENT. */
int cgroup_find(struct cgroup *ret_cgroup, const char *wanted, char why[CGROUP_WHY_MAX]);
void cgroup_close(struct cgroup *cgroup);

/* The cgroup2 folder that a process is in, below the root ("/" is the root). 0 or -errno. */
int cgroup_of(int pid, char ret_path[CGROUP_PATH_MAX]);

/* 1 while the folder is there that is open here; a new one under its name is another. */
int cgroup_stands(const struct cgroup *cgroup);

/* 1 if it is the folder that `below` names now. */
int cgroup_is(const struct cgroup *cgroup, const char *below);

/* 1 if a process in `inside` is seen from `from`; both as cgroup_of() gives them. */
int cgroup_contains(const char *from, const char *inside);

#endif
