/* Finds the cgroup2 tree on hybrid and pure hosts alike: by its file system, not by its place. */
#include "bpf/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "shm/base/scoped.h"

/* The mount point of the first cgroup2 tree: field 5 of a line whose type, after " - ", is that. */
static int find_root(char ret_path[CGROUP_PATH_MAX])
{
	scoped(file_drop) FILE *in = fopen("/proc/self/mountinfo", "re");
	char line[2048], path[CGROUP_PATH_MAX];

	while (in && fgets(line, sizeof(line), in)) {
		if (!strstr(line, " - cgroup2 ") ||
		    sscanf(line, "%*s %*s %*s %*s %511s", path) != 1)
			continue;
		memcpy(ret_path, path, sizeof(path));
		return 0;
	}
	return -ENOENT;
}

static int is_cgroup2(int fd)
{
	struct statfs fs;

	return fstatfs(fd, &fs) == 0 && fs.f_type == CGROUP2_SUPER_MAGIC;
}

/* Makes what is missing of a path whose beginning is there. */
static int make(const char *path)
{
	char part[CGROUP_PATH_MAX];

	for (const char *at = strchr(path + 1, '/');; at = strchr(at + 1, '/')) {
		size_t n = at ? (size_t)(at - path) : strlen(path);

		memcpy(part, path, n);
		part[n] = 0;
		if (mkdir(part, 0755) < 0 && errno != EEXIST)
			return -errno;
		if (!at)
			return 0;
	}
}

static int climbs(const char *path)
{
	return strstr(path, "/../") || strncmp(path, "../", 3) == 0 ||
	       (strlen(path) >= 3 && strcmp(path + strlen(path) - 3, "/..") == 0);
}

static int full_path(struct cgroup *c, const char *wanted, char *why)
{
	char root[CGROUP_PATH_MAX];
	int n;

	if (find_root(root) < 0) {
		snprintf(
			why, CGROUP_WHY_MAX,
			"no cgroup2 tree is mounted: mount -t cgroup2 none /sys/fs/cgroup/unified");
		return -ENOENT;
	}
	if (!wanted)
		wanted = "";
	if (climbs(wanted)) {
		snprintf(why, CGROUP_WHY_MAX, "%.100s: no way up in it, please", wanted);
		return -EINVAL;
	}
	if (cgroup_contains(root, wanted))
		wanted += strlen(root);
	n = snprintf(c->below, sizeof(c->below), "%s%s", wanted[0] == '/' ? "" : "/", wanted);
	if (n >= CGROUP_PATH_MAX)
		return -ENAMETOOLONG;
	n = snprintf(c->path, sizeof(c->path), "%s%s", root, c->below[1] ? c->below : "");
	return n < CGROUP_PATH_MAX ? 0 : -ENAMETOOLONG;
}

static int open_folder(struct cgroup *ret_cgroup, const char *wanted, int makes, char *why)
{
	struct cgroup c = { .fd = -1 };
	int err = full_path(&c, wanted, why);

	if (err < 0)
		return err;
	c.fd = open(c.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (c.fd < 0 && errno == ENOENT && makes) {
		err = make(c.path);
		if (err < 0) {
			snprintf(why, CGROUP_WHY_MAX, "%.150s cannot be made: %s", c.path,
				 strerror(-err));
			return err;
		}
		c.made = 1;
		c.fd = open(c.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	}
	if (c.fd < 0 || !is_cgroup2(c.fd)) {
		err = c.fd < 0 ? -errno : -EBADF;
		snprintf(why, CGROUP_WHY_MAX, "%.150s: %s", c.path,
			 c.fd < 0 ? strerror(-err) : "not in a cgroup2 tree");
		cgroup_close(&c);
		return err;
	}
	*ret_cgroup = c;
	return 0;
}

int cgroup_open(struct cgroup *ret_cgroup, const char *wanted, char why[CGROUP_WHY_MAX])
{
	return open_folder(ret_cgroup, wanted, 1, why);
}

int cgroup_find(struct cgroup *ret_cgroup, const char *wanted, char why[CGROUP_WHY_MAX])
{
	return open_folder(ret_cgroup, wanted, 0, why);
}

void cgroup_close(struct cgroup *cgroup)
{
	fd_drop(&cgroup->fd);
	cgroup->fd = -1;
}

int cgroup_stands(const struct cgroup *cgroup)
{
	struct stat mine, named;

	return fstat(cgroup->fd, &mine) == 0 && stat(cgroup->path, &named) == 0 &&
	       mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
}

int cgroup_is(const struct cgroup *cgroup, const char *below)
{
	return strcmp(cgroup->below, below) == 0 && cgroup_stands(cgroup);
}

int cgroup_of(int pid, char ret_path[CGROUP_PATH_MAX])
{
	char name[64], line[CGROUP_PATH_MAX + 8];
	scoped(file_drop) FILE *in = NULL;

	snprintf(name, sizeof(name), "/proc/%d/cgroup", pid);
	in = fopen(name, "re");
	if (!in)
		return -errno;
	while (fgets(line, sizeof(line), in)) {
		if (strncmp(line, "0::", 3) != 0)
			continue;
		line[strcspn(line, "\n")] = 0;
		snprintf(ret_path, CGROUP_PATH_MAX, "%.511s", line + 3);
		return 0;
	}
	return -ENOENT;
}

int cgroup_contains(const char *from, const char *inside)
{
	size_t n = strlen(from);

	while (n > 0 && from[n - 1] == '/')
		n--;
	return strncmp(from, inside, n) == 0 && (inside[n] == 0 || inside[n] == '/');
}
