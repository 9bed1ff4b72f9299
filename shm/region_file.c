/* One file of the region: made whole under a passing name, locked for life, checked, mapped. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/base/scoped.h"
#include "shm/guard.h"
#include "shm/refuse.h"
#include "shm/region.h"
#include "shm/step.h"

enum { FILE_MODE = 0640, RACE_TRIES = 200, PID_LIMIT = 1 << 22 };

static const char region_magic[8] = { 'T', 'U', 'R', 'N', 'W', 'A', 'R', 'D' };

/* What the caller wants of a file; passed along instead of five arguments. */
struct wanted {
	const struct region *region;
	const char *name;
	enum region_kind kind;
	uint64_t fingerprint;
	size_t size; /* 0 = any */
	char *error;
};

/* ---- the header ---- */

static void boot_id_get(char ret_id[40])
{
	scoped(fd_drop) int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, ret_id, 36);

	memset(ret_id + (n > 0 ? n : 0), 0, 40 - (size_t)(n > 0 ? n : 0));
}

/* Field 22 of /proc/self/stat, behind a name that may hold anything; 1 when it cannot be had. */
static uint64_t start_time_get(void)
{
	char text[1024];
	scoped(fd_drop) int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);

	text[n > 0 ? n : 0] = 0;

	char *at = strrchr(text, ')');

	for (int field = 2; at && field < 22; field++)
		at = strchr(at + 1, ' ');

	uint64_t start = at ? strtoull(at, NULL, 10) : 0;

	return start ? start : 1;
}

static void header_init(struct region_header *header, const struct wanted *wanted)
{
	memcpy(header->magic, region_magic, sizeof(header->magic));
	header->version = REGION_VERSION;
	header->header_size = sizeof(*header);
	header->kind = wanted->kind;
	header->fingerprint = wanted->fingerprint;
	header->size = wanted->size;
	boot_id_get(header->boot_id);
	header->created_ns = clock_ns();
}

/* Readers may be looking at these: whole words. */
static void header_sign(struct region_header *header)
{
	__atomic_store_n(&header->writer_pid, (uint64_t)getpid(), __ATOMIC_RELEASE);
	__atomic_store_n(&header->writer_start, start_time_get(), __ATOMIC_RELEASE);
	__atomic_store_n(&header->generation, header->generation + 1, __ATOMIC_RELEASE);
}

static int boot_text_valid(const char *id)
{
	size_t n = strnlen(id, 40);

	if (n == 40)
		return 0;
	for (size_t i = 0; i < n; i++)
		if (id[i] < '-' || id[i] > 'f')
			return 0;
	return 1;
}

static enum region_damage check_shape(const struct region_header *h, size_t file_size,
				      enum region_kind kind)
{
	if (memcmp(h->magic, region_magic, sizeof(h->magic)) != 0)
		return REGION_MAGIC;
	if (h->version == __builtin_bswap32(REGION_VERSION))
		return REGION_BYTE_ORDER;
	if (h->version != REGION_VERSION)
		return h->version < REGION_VERSION ? REGION_VERSION_OLDER : REGION_VERSION_NEWER;
	if (h->header_size != sizeof(*h))
		return REGION_HEADER_SIZE;
	if (h->kind < REGION_ENGINE || h->kind > REGION_ROUTER)
		return REGION_KIND_UNKNOWN;
	if (h->kind != kind)
		return REGION_KIND_OTHER;
	if (h->size < REGION_PAYLOAD)
		return REGION_SIZE_SMALL;
	if (h->size % 8)
		return REGION_SIZE_UNEVEN;
	if (h->size > file_size)
		return REGION_SIZE_CUT;
	if (h->size < file_size)
		return REGION_SIZE_GROWN;
	return REGION_OK;
}

enum region_damage region_header_check(const struct region_header *h, size_t file_size,
				       enum region_kind kind, uint64_t fingerprint, size_t size)
{
	char boot_id[40];
	enum region_damage damage;

	if (file_size < REGION_PAYLOAD)
		return REGION_SHORT;
	damage = check_shape(h, file_size, kind);
	if (damage != REGION_OK)
		return damage;
	if (!boot_text_valid(h->boot_id))
		return REGION_BOOT_TEXT;
	if (h->writer_pid == 0 || h->writer_pid > PID_LIMIT)
		return REGION_PID;
	if (h->writer_start == 0 || h->writer_start > INT64_MAX)
		return REGION_START;
	if (h->generation == 0 || h->generation > INT64_MAX)
		return REGION_GENERATION;
	if (h->created_ns == 0)
		return REGION_CREATED;
	if (h->reserved[0] || h->reserved[1] || h->reserved[2])
		return REGION_RESERVED;
	boot_id_get(boot_id);
	if (strcmp(h->boot_id, boot_id) != 0)
		return REGION_OTHER_BOOT;
	if (h->created_ns > clock_ns())
		return REGION_CREATED_LATER; /* only within a boot do clocks compare */
	if (h->fingerprint != fingerprint)
		return REGION_FINGERPRINT;
	if (size && h->size != size)
		return REGION_SIZE_OTHER;
	return REGION_OK;
}

const char *region_damage_text(enum region_damage damage)
{
#define REGION_DAMAGE_TEXT(id, text) [REGION_##id] = text,
	static const char *const texts[] = { REGION_DAMAGES(REGION_DAMAGE_TEXT) };
#undef REGION_DAMAGE_TEXT

	assert(damage < REGION_DAMAGES_NR);
	return texts[damage];
}

static int refuse_damage(const struct wanted *w, const struct region_header *h,
			 enum region_damage damage, size_t file_size)
{
	char versions[200] = "";

	if (damage == REGION_VERSION_OLDER || damage == REGION_VERSION_NEWER)
		snprintf(versions, sizeof(versions), " (version %u, this program's is %d)",
			 h->version, REGION_VERSION);
	else if (damage == REGION_FINGERPRINT)
		snprintf(versions, sizeof(versions), " (%016llx, this program's is %016llx)",
			 (unsigned long long)h->fingerprint, (unsigned long long)w->fingerprint);
	else if (damage == REGION_SIZE_OTHER || damage == REGION_SIZE_CUT ||
		 damage == REGION_SIZE_GROWN)
		snprintf(versions, sizeof(versions),
			 " (it says %llu bytes, has %zu, %zu are wanted)",
			 (unsigned long long)h->size, file_size, w->size);
	return region_refuse(-EPROTO, w->error, "%s/%s: %s%s" REGION_ADVICE, w->region->path,
			     w->name, region_damage_text(damage), versions);
}

/* ---- opening ---- */

static int refuse_errno(const struct wanted *w, const char *what, int code)
{
	return region_refuse(-code, w->error, "cannot %s %s/%s: %s", what, w->region->path, w->name,
			     strerror(code));
}

static int check_trust(const struct wanted *w, const struct stat *st)
{
	struct stat dir;

	if (fstat(w->region->dir_fd, &dir) < 0)
		return refuse_errno(w, "look at the directory of", errno);
	if (!S_ISREG(st->st_mode))
		return region_refuse(-EPERM, w->error, "%s/%s is no regular file: remove it",
				     w->region->path, w->name);
	if (st->st_uid != 0 && st->st_uid != geteuid() && st->st_uid != dir.st_uid)
		return region_refuse(-EPERM, w->error,
				     "%s/%s belongs to uid %u, which is neither root, the region's "
				     "owner nor us (%u): remove it",
				     w->region->path, w->name, st->st_uid, geteuid());
	if (st->st_nlink != 1)
		return region_refuse(-EPERM, w->error, "%s/%s has %u links: remove it",
				     w->region->path, w->name, (unsigned)st->st_nlink);
	if (st->st_mode & 07777 & ~FILE_MODE)
		return region_refuse(-EPERM, w->error,
				     "%s/%s has mode %04o, more than %04o: chmod it",
				     w->region->path, w->name, st->st_mode & 07777, FILE_MODE);
	return 0;
}

/* 1 if the name still leads to the file that was opened. */
static int still_named(const struct wanted *w, const struct stat *st)
{
	struct stat now;

	return fstatat(w->region->dir_fd, w->name, &now, AT_SYMLINK_NOFOLLOW) == 0 &&
	       now.st_dev == st->st_dev && now.st_ino == st->st_ino;
}

/* -ESTALE: it was replaced under our hands, look again. */
static int open_checked(const struct wanted *w, int flags, int *ret_fd, struct stat *ret_st)
{
	/* O_NONBLOCK: a fifo of that name must not stop us. */
	scoped(fd_drop) int fd = openat(w->region->dir_fd, w->name,
					flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	int r;

	if (fd < 0 && errno == ENOENT)
		return region_refuse(-ENOENT, w->error, "%s/%s does not exist", w->region->path,
				     w->name);
	if (fd < 0 && errno == ELOOP)
		return region_refuse(-EPERM, w->error, "%s/%s is a symbolic link: remove it",
				     w->region->path, w->name);
	if (fd < 0 || fstat(fd, ret_st) < 0)
		return refuse_errno(w, "open", errno);
	r = check_trust(w, ret_st);
	if (r < 0)
		return still_named(w, ret_st) ? r : -ESTALE;
	*ret_fd = take_fd(fd);
	return 0;
}

static int map_file(const struct wanted *w, struct region_file *file)
{
	int prot = file->writable ? PROT_READ | PROT_WRITE : PROT_READ;
	void *map = mmap(NULL, file->size, prot, MAP_SHARED | MAP_POPULATE, file->fd, 0);

	if (map == MAP_FAILED)
		return refuse_errno(w, "map", errno);
	file->map = map;
	guard_add(map, file->size, prot);
	return 0;
}

static void file_identify(struct region_file *file, const struct wanted *w, const struct stat *st)
{
	snprintf(file->name, sizeof(file->name), "%s", w->name);
	file->dev = st->st_dev;
	file->ino = st->st_ino;
	file->size = (size_t)st->st_size;
}

static int try_lock(int fd)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

	return fcntl(fd, F_OFD_SETLK, &lock) < 0 ? -errno : 0;
}

/* ---- making ---- */

/* A file made by root in a service's region stays readable to the service's group. */
static int give_rights(const struct wanted *w, int fd)
{
	struct stat dir;

	if (fstat(w->region->dir_fd, &dir) == 0 && fchown(fd, (uid_t)-1, dir.st_gid) < 0 &&
	    errno != EPERM)
		return -errno;
	return fchmod(fd, FILE_MODE) < 0 ? -errno : 0;
}

/* A whole, locked, mapped file under `temporary`; on failure that name is gone again. */
static int make_temporary(const struct wanted *w, const char *temporary,
			  struct region_file *ret_file)
{
	struct region_file file = { .fd = -1, .writable = 1, .fresh = 1 };
	int dir = w->region->dir_fd, r;
	struct stat st;

	file.fd = openat(dir, temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (file.fd < 0)
		return refuse_errno(w, "create", errno);
	STEP();
	r = try_lock(file.fd);
	if (r == -EAGAIN || r == -EACCES)
		r = -ESTALE; /* being swept in its first instant: made again */
	STEP();
	if (r == 0)
		r = give_rights(w, file.fd);
	if (r == 0)
		r = -posix_fallocate(file.fd, 0, (off_t)w->size);
	STEP();
	if (r == 0 && fstat(file.fd, &st) < 0)
		r = -errno;
	if (r < 0) {
		region_refuse(r, w->error, "cannot make %s/%s, %zu bytes: %s", w->region->path,
			      w->name, w->size, strerror(-r));
	} else {
		file_identify(&file, w, &st);
		r = map_file(w, &file);
	}
	if (r < 0) {
		unlinkat(dir, temporary, 0);
		region_file_drop(&file);
		return r;
	}
	header_init((struct region_header *)file.map, w);
	header_sign((struct region_header *)file.map);
	STEP();
	*ret_file = file;
	return 0;
}

/* Names of one process never collide, and a killed one's are swept by lock, not by name. */
static void temporary_name(const struct wanted *w, char *ret_name, size_t size)
{
	static _Atomic unsigned counter;

	snprintf(ret_name, size, ".%s.%d.%u", w->name, getpid(), atomic_fetch_add(&counter, 1));
}

static void sweep_one(void *ctx, const char *name)
{
	const struct wanted *w = ctx;
	scoped(fd_drop) int fd =
		openat(w->region->dir_fd, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);

	if (fd >= 0 && try_lock(fd) == 0)
		unlinkat(w->region->dir_fd, name, 0);
}

/* Half-made files of killed writers. One swept in its maker's first instant is simply made again.
 */
static void sweep(const struct wanted *w)
{
	char prefix[80];

	snprintf(prefix, sizeof(prefix), ".%s.", w->name);
	region_list(w->region, prefix, sweep_one, (void *)(uintptr_t)w);
}

/* -ESTALE: somebody else was first (no_replace), or our temporary was swept: look again. */
static int appear(const struct wanted *w, const char *temporary, int no_replace)
{
	int dir = w->region->dir_fd;

	if (renameat2(dir, temporary, dir, w->name, no_replace ? RENAME_NOREPLACE : 0) == 0)
		return 0;

	int code = errno;

	unlinkat(dir, temporary, 0);
	if (code == EEXIST || code == ENOENT)
		return -ESTALE;
	if (code == EINVAL)
		return region_refuse(
			-EOPNOTSUPP, w->error,
			"the file system of %s cannot rename without replacing: choose a "
			"tmpfs such as /dev/shm with --region",
			w->region->path);
	return refuse_errno(w, "rename into place", code);
}

static int make(const struct wanted *w, int no_replace, struct region_file *ret_file)
{
	char temporary[128];
	struct region_file file;
	int r;

	sweep(w);
	temporary_name(w, temporary, sizeof(temporary));
	r = make_temporary(w, temporary, &file);
	if (r < 0)
		return r;
	r = appear(w, temporary, no_replace);
	STEP();
	if (r < 0) {
		region_file_drop(&file);
		return r;
	}
	*ret_file = file;
	return 0;
}

/* ---- holding ---- */

static int refuse_busy(const struct wanted *w, int fd)
{
	struct region_header h = { 0 };
	ssize_t n = pread(fd, &h, sizeof(h), 0);

	return region_refuse(-EBUSY, w->error, "%s/%s is held by another process (pid %llu)",
			     w->region->path, w->name,
			     (unsigned long long)(n == sizeof(h) ? h.writer_pid : 0));
}

/* Nothing of any version's is lost by beginning anew: another boot's, or cut under its writer. */
static int counts_as_absent(enum region_damage damage)
{
	return damage == REGION_OTHER_BOOT || damage == REGION_SHORT || damage == REGION_SIZE_CUT;
}

/* The lock is ours and the name leads here: keep the content, or refuse, or make it anew. */
static int take_over(const struct wanted *w, int fd, const struct stat *st, int reinit,
		     struct region_file *ret_file)
{
	struct region_file file = { .fd = fd, .writable = 1 };
	struct region_header h = { 0 };
	enum region_damage damage;
	int r;

	if (pread(fd, &h, sizeof(h), 0) < 0)
		return refuse_errno(w, "read", errno);
	damage = region_header_check(&h, (size_t)st->st_size, w->kind, w->fingerprint, w->size);
	if (counts_as_absent(damage) && w->size == 0)
		return region_refuse(-ENOENT, w->error, "%s/%s: %s", w->region->path, w->name,
				     region_damage_text(damage));
	if (counts_as_absent(damage) || (damage != REGION_OK && reinit && w->size))
		return make(w, 0,
			    ret_file); /* the old one stays locked until the caller closes it */
	if (damage != REGION_OK)
		return refuse_damage(w, &h, damage, (size_t)st->st_size);
	file_identify(&file, w, st);
	r = map_file(w, &file);
	if (r < 0)
		return r;
	header_sign((struct region_header *)file.map);
	*ret_file = file;
	return 0;
}

static int hold_once(const struct wanted *w, int reinit, struct region_file *ret_file)
{
	scoped(fd_drop) int fd = -1;
	struct stat st;
	int r = open_checked(w, O_RDWR, &fd, &st);

	if (r == -ENOENT && w->size)
		return make(w, 1, ret_file);
	if (r < 0)
		return r;
	r = try_lock(fd);
	if (r == -EAGAIN || r == -EACCES)
		return still_named(w, &st) ? refuse_busy(w, fd) : -ESTALE;
	if (r < 0)
		return refuse_errno(w, "lock", -r);
	STEP();
	if (!still_named(w, &st))
		return -ESTALE;
	r = take_over(w, fd, &st, reinit, ret_file);
	if (r == 0 && ret_file->fd == fd)
		fd = -1;
	return r;
}

static int name_check(const struct wanted *w)
{
	struct region_file file;

	if (w->name[0] == 0 || w->name[0] == '.' || strchr(w->name, '/') ||
	    strlen(w->name) >= sizeof(file.name))
		return region_refuse(-EINVAL, w->error, "'%s' is no name for a file of the region",
				     w->name);
	return 0;
}

int region_file_hold(struct region_file *ret_file, const struct region *region, const char *name,
		     enum region_kind kind, uint64_t fingerprint, size_t size, int reinit,
		     char *error)
{
	struct wanted w = { region, name, kind, fingerprint, size, error };
	int r = name_check(&w);

	assert(size == 0 || (size >= REGION_PAYLOAD && size % 8 == 0));
	if (r < 0)
		return r;
	for (int i = 0; i < RACE_TRIES; i++) {
		r = hold_once(&w, reinit, ret_file);
		if (r == 0)
			error[0] = 0; /* an absence may have been noted on the way */
		if (r != -ESTALE)
			return r;
	}
	return region_refuse(-EAGAIN, error, "%s/%s keeps being replaced", region->path, name);
}

int region_file_replace(struct region_file *file, const struct region *region,
			enum region_kind kind, uint64_t fingerprint, size_t size,
			void (*fill)(void *ctx, const struct region_file *old,
				     struct region_file *new_file),
			void *ctx, char *error)
{
	struct wanted w = { region, file->name, kind, fingerprint, size, error };
	struct region_file new_file;
	char temporary[128];
	int r;

	assert(file->writable && size >= REGION_PAYLOAD && size % 8 == 0);
	sweep(&w);
	temporary_name(&w, temporary, sizeof(temporary));
	r = make_temporary(&w, temporary, &new_file);
	if (r < 0)
		return r;
	fill(ctx, file, &new_file);
	r = appear(&w, temporary, 0);
	if (r < 0) {
		region_file_drop(&new_file);
		return r;
	}
	new_file.fresh = file->fresh;
	region_file_drop(file);
	*file = new_file;
	return 0;
}

/* ---- reading ---- */

static int attach_once(const struct wanted *w, struct region_file *ret_file)
{
	struct region_file file = { .fd = -1 };
	scoped(fd_drop) int fd = -1;
	struct region_header h = { 0 };
	enum region_damage damage;
	struct stat st;
	int r = open_checked(w, O_RDONLY, &fd, &st);

	if (r < 0)
		return r;
	if (pread(fd, &h, sizeof(h), 0) < 0)
		return refuse_errno(w, "read", errno);
	damage = region_header_check(&h, (size_t)st.st_size, w->kind, w->fingerprint, w->size);
	if (damage == REGION_OTHER_BOOT)
		return region_refuse(-ENOENT, w->error, "%s/%s: %s", w->region->path, w->name,
				     region_damage_text(damage));
	if (damage != REGION_OK)
		return refuse_damage(w, &h, damage, (size_t)st.st_size);
	file.fd = fd;
	file_identify(&file, w, &st);
	r = map_file(w, &file);
	if (r < 0)
		return r;
	fd = -1;
	*ret_file = file;
	return 0;
}

int region_file_attach(struct region_file *ret_file, const struct region *region, const char *name,
		       enum region_kind kind, uint64_t fingerprint, size_t size, char *error)
{
	struct wanted w = { region, name, kind, fingerprint, size, error };
	int r = name_check(&w);

	if (r < 0)
		return r;
	for (int i = 0; i < RACE_TRIES; i++) {
		r = attach_once(&w, ret_file);
		if (r != -ESTALE)
			return r;
	}
	return region_refuse(-EAGAIN, error, "%s/%s keeps being replaced", region->path, name);
}

void region_file_drop(struct region_file *file)
{
	if (file->map) {
		guard_remove(file->map);
		munmap(file->map, file->size);
	}
	fd_drop(&file->fd);
	*file = (struct region_file){ .fd = -1 };
}

int region_file_alive(const struct region_file *file)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

	if (file->writable)
		return 1; /* it is us */
	return fcntl(file->fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

int region_file_moved(const struct region *region, const struct region_file *file)
{
	struct stat st;

	return fstatat(region->dir_fd, file->name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
	       st.st_dev != file->dev || st.st_ino != file->ino || (size_t)st.st_size < file->size;
}
