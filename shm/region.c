/* The region's directory: where it is, who may own it, what lies in it. Files: region_file.c. */
#include "shm/region.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "shm/base/scoped.h"
#include "shm/refuse.h"
#include "shm/state.h"

enum { DIR_MODE = 0750 };

/* What the search came to: a path, and whether the user named it. */
struct place {
	char path[REGION_PATH_MAX];
	int explicit;
};

int region_refuse(int code, char *error, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(error, REGION_ERROR_MAX, format, args);
	va_end(args);
	return code;
}

void region_say_renewed(char *ret_note, const char *refusal)
{
	const char *advice = strstr(refusal, REGION_ADVICE);
	size_t n = advice ? (size_t)(advice - refusal) : strlen(refusal);

	snprintf(ret_note, REGION_ERROR_MAX, "%.*s: made anew", (int)n, refusal);
}

static int place_set(struct place *place, char *error, const char *directory, const char *suffix)
{
	int n = snprintf(place->path, sizeof(place->path), "%s%s", directory, suffix);

	if (n < 0 || n >= (int)sizeof(place->path))
		return region_refuse(-ENAMETOOLONG, error,
				     "the region's path is too long (%d bytes at most): %s%s",
				     REGION_PATH_MAX - 1, directory, suffix);
	while (n > 1 && place->path[n - 1] == '/')
		place->path[--n] = 0;
	return 0;
}

static void parent_of(const char *path, char *ret_parent)
{
	char *slash;

	snprintf(ret_parent, REGION_PATH_MAX, "%s", path);
	slash = strrchr(ret_parent, '/');
	if (!slash)
		snprintf(ret_parent, REGION_PATH_MAX, ".");
	else if (slash == ret_parent)
		slash[1] = 0;
	else
		*slash = 0;
}

/* Of the directory itself or, before it exists, of the one that it will be made in. */
static int is_tmpfs(const char *path)
{
	char parent[REGION_PATH_MAX];
	struct statfs fs;

	parent_of(path, parent);
	if (statfs(path, &fs) < 0 && statfs(parent, &fs) < 0)
		return 0;
	return fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC;
}

static int is_readable(const char *path)
{
	return access(path, R_OK | X_OK) == 0;
}

static int find_default(struct place *place, char *error)
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	char own[64];

	snprintf(own, sizeof(own), "/dev/shm/turnward-%u", geteuid());
	if (is_readable("/run/turnward") || geteuid() == 0)
		return place_set(place, error, "/run/turnward", "");
	if (!is_tmpfs("/run/turnward") && is_readable("/dev/shm/turnward"))
		return place_set(place, error, "/dev/shm/turnward", ""); /* root's stand-in */
	if (runtime && runtime[0] == '/')
		return place_set(place, error, runtime, "/turnward");
	return place_set(place, error, own, "");
}

/* Shared pages on a disk would be written back to it for ever: say so, and go where we may choose.
 */
static int leave_disk(struct place *place, char *note, char *error)
{
	char was[REGION_PATH_MAX], own[64];

	if (is_tmpfs(place->path))
		return 0;
	if (place->explicit) {
		snprintf(note, REGION_ERROR_MAX,
			 "the region %s is not on a tmpfs: its pages will be written to disk; "
			 "/dev/shm is one",
			 place->path);
		return 0;
	}
	snprintf(was, sizeof(was), "%s", place->path);
	snprintf(own, sizeof(own), "/dev/shm/turnward-%u", geteuid());
	snprintf(note, REGION_ERROR_MAX, "%s would not be on a tmpfs: the region is %s instead",
		 was, strcmp(was, "/run/turnward") == 0 ? "/dev/shm/turnward" : own);
	return place_set(place, error,
			 strcmp(was, "/run/turnward") == 0 ? "/dev/shm/turnward" : own, "");
}

static int find_place(struct place *place, const char *option, char *note, char *error)
{
	const char *environment = getenv("TURNWARD_REGION");
	int r;

	if (!option || !option[0])
		option = environment && environment[0] ? environment : NULL;
	place->explicit = option != NULL;
	r = option ? place_set(place, error, option, "") : find_default(place, error);
	return r < 0 ? r : leave_disk(place, note, error);
}

static int make_directory(const char *path, char *error)
{
	if (mkdir(path, DIR_MODE) < 0) {
		if (errno == EEXIST)
			return 0;
		return region_refuse(-errno, error, "cannot make the region %s: %s", path,
				     strerror(errno));
	}

	/* Ours since this instant: give it the rights that the umask may have taken. */
	scoped(fd_drop) int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0 || fchmod(fd, DIR_MODE) < 0)
		return region_refuse(-errno, error, "cannot set the rights of the region %s: %s",
				     path, strerror(errno));
	return 0;
}

/* 1 for /dev/shm/turnward-1000 owned by 1000: its name says whose it is. */
static int named_after(const char *path, uid_t owner)
{
	char suffix[24];
	size_t n = (size_t)snprintf(suffix, sizeof(suffix), "-%u", owner), len = strlen(path);

	return len > n && strcmp(path + len - n, suffix) == 0;
}

/* Where anybody can make a directory, one of a stranger's is a trap. */
static int check_owner(const struct place *place, const struct stat *st, char *error)
{
	char parent[REGION_PATH_MAX];
	struct stat up;

	if (st->st_mode & 022)
		return region_refuse(
			-EPERM, error,
			"the region %s is writable by others (mode %04o): chmod go-w it "
			"or choose another with --region",
			place->path, st->st_mode & 07777);
	if (st->st_uid == 0 || st->st_uid == geteuid())
		return 0;
	parent_of(place->path, parent);
	if (stat(parent, &up) == 0 && !(up.st_mode & 02))
		return 0;
	if (place->explicit && named_after(place->path, st->st_uid))
		return 0;
	return region_refuse(
		-EPERM, error,
		"the region %s belongs to uid %u, neither root nor us (%u): remove it or "
		"choose another with --region",
		place->path, st->st_uid, geteuid());
}

static int open_directory(const struct place *place, int *ret_fd, char *error)
{
	scoped(fd_drop) int fd = open(place->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;
	int r;

	if (fd < 0 && errno == ENOENT)
		return region_refuse(-ENOENT, error,
				     "there is no region at %s: nothing runs, or it "
				     "is elsewhere (--region, TURNWARD_REGION)",
				     place->path);
	if (fd < 0 && (errno == ELOOP || errno == ENOTDIR))
		return region_refuse(-EPERM, error,
				     "%s is no directory or a symbolic link: name the "
				     "directory itself with --region",
				     place->path);
	if (fd < 0 || fstat(fd, &st) < 0)
		return region_refuse(-errno, error, "cannot open the region %s: %s", place->path,
				     strerror(errno));
	r = check_owner(place, &st, error);
	if (r < 0)
		return r;
	*ret_fd = take_fd(fd);
	return 0;
}

int region_open(struct region *ret_region, const char *option, int create, char *error)
{
	struct region region = { .dir_fd = -1 };
	struct place place;
	int r = find_place(&place, option, region.note, error);

	if (r == 0 && create)
		r = make_directory(place.path, error);
	if (r == 0)
		r = open_directory(&place, &region.dir_fd, error);
	if (r < 0)
		return r;
	memcpy(region.path, place.path, sizeof(region.path));
	*ret_region = region;
	return 0;
}

void region_close(struct region *region)
{
	fd_drop(&region->dir_fd);
	region->dir_fd = -1;
}

int region_moved(const struct region *region)
{
	struct stat held, named;

	return fstat(region->dir_fd, &held) < 0 || stat(region->path, &named) < 0 ||
	       held.st_dev != named.st_dev || held.st_ino != named.st_ino;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

int region_list(const struct region *region, const char *prefix,
		void (*each)(void *ctx, const char *name), void *ctx)
{
	struct dirent **entries;
	int n = scandirat(region->dir_fd, ".", &entries, NULL, by_name), found = 0;

	if (n < 0)
		return -errno;
	for (int i = 0; i < n; i++) {
		if (strncmp(entries[i]->d_name, prefix, strlen(prefix)) == 0) {
			each(ctx, entries[i]->d_name);
			found++;
		}
		free(entries[i]);
	}
	free(entries);
	return found;
}

uint64_t region_fingerprint(uint64_t seed, const char *text, uint64_t value)
{
	uint64_t h = seed ? seed : 0xcbf29ce484222325;

	for (; *text; text++)
		h = (h ^ (uint8_t)*text) * 0x100000001b3;
	for (int i = 0; i < 8; i++)
		h = (h ^ (value >> 8 * i & 0xff)) * 0x100000001b3;
	return h;
}

static int is_alnum(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

int region_engine_name_valid(const char *name)
{
	size_t n = strnlen(name, STATE_NAME_MAX + 1);

	if (n == 0 || n > STATE_NAME_MAX || !is_alnum(name[0]))
		return 0;
	for (size_t i = 1; i < n; i++)
		if (!is_alnum(name[i]) && name[i] != '.' && name[i] != '_' && name[i] != '-')
			return 0;
	return 1;
}
