/* The region's place, its trust, its locks: everything that can lie in our way is refused by name.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/region.h"
#include "tests/lib/unit.h"

enum { NOBODY = 65534, SIZE = REGION_PAYLOAD + 64, FINGERPRINT = 77 };

static char directory[64];
static struct region region;
static char error[REGION_ERROR_MAX];

static int set_up(void **state)
{
	snprintf(directory, sizeof(directory), "/dev/shm/turnward-test-XXXXXX");
	if (!mkdtemp(directory))
		return -1;
	error[0] = 0;
	return region_open(&region, directory, 0, error);
}

static void remove_one(void *ctx, const char *name)
{
	unlinkat(region.dir_fd, name, 0);
}

static int tear_down(void **state)
{
	region_list(&region, "", remove_one, NULL);
	region_close(&region);
	return rmdir(directory);
}

static int hold(struct region_file *file, const char *name)
{
	return region_file_hold(file, &region, name, REGION_ENGINE, FINGERPRINT, SIZE, 0, error);
}

static int attach(struct region_file *file, const char *name)
{
	return region_file_attach(file, &region, name, REGION_ENGINE, FINGERPRINT, SIZE, error);
}

/* Runs `body` in a process of its own and returns its exit status. */
static int in_child(int (*body)(void))
{
	int status;
	pid_t pid = fork();

	if (pid == 0)
		_exit(body());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

enum { PASSED = 0, CANNOT = 77 }; /* else the line that failed */
#define CHILD_ASSERT(claim)                                                            \
	do {                                                                           \
		if (!(claim)) {                                                        \
			fprintf(stderr, "line %d: %s: %s\n", __LINE__, #claim, error); \
			return 1;                                                      \
		}                                                                      \
	} while (0)

static int become_nobody(void)
{
	return setgid(NOBODY) == 0 && setuid(NOBODY) == 0;
}

#define NEED_ROOT()                                                \
	do {                                                       \
		if (geteuid() != 0)                                \
			test_skip("only root can play two users"); \
	} while (0)

/* ---- the place ---- */

static void an_explicit_place_is_honoured_and_made_with_our_rights(void **state)
{
	struct region r;
	char path[128];
	struct stat st;
	mode_t old = umask(077);

	snprintf(path, sizeof(path), "%s/new///", directory);
	assert_int_equal(region_open(&r, path, 0, error), -ENOENT);
	assert_non_null(strstr(error, "--region"));
	assert_int_equal(region_open(&r, path, 1, error), 0);
	umask(old);

	assert_int_equal(fstat(r.dir_fd, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0750);
	assert_string_equal(r.note, "");
	assert_int_equal(strlen(r.path), strlen(directory) + 4);
	region_close(&r);
	rmdir(path);
}

static void the_environment_names_a_place_and_an_option_beats_it(void **state)
{
	struct region r;

	setenv("TURNWARD_REGION", directory, 1);
	assert_int_equal(region_open(&r, NULL, 0, error), 0);
	assert_string_equal(r.path, directory);
	region_close(&r);
	assert_int_equal(region_open(&r, "/dev/shm/turnward-test-none", 0, error), -ENOENT);
	unsetenv("TURNWARD_REGION");
}

/* A directory that is surely on no tmpfs, or NULL. */
static const char *disk(void)
{
	static const char *const places[] = { "/var/tmp", "/tmp", "/" };
	struct statfs fs;

	for (int i = 0; i < 3; i++)
		if (statfs(places[i], &fs) == 0 && fs.f_type != TMPFS_MAGIC)
			return places[i];
	return NULL;
}

static void an_explicit_place_that_is_no_tmpfs_is_honoured_with_a_warning(void **state)
{
	struct region_file file;
	struct region r;
	char path[128];

	if (!disk())
		test_skip("every writable place here is a tmpfs");
	snprintf(path, sizeof(path), "%s/turnward-test-XXXXXX", disk());
	assert_non_null(mkdtemp(path));

	assert_int_equal(region_open(&r, path, 1, error), 0);
	assert_string_equal(r.path, path);
	assert_non_null(strstr(r.note, "not on a tmpfs"));
	assert_int_equal(region_file_hold(&file, &r, "engine.a", REGION_ENGINE, 1, SIZE, 0, error),
			 0);
	region_file_drop(&file);
	unlinkat(r.dir_fd, "engine.a", 0);
	region_close(&r);
	rmdir(path);
}

/* As nobody, whose XDG_RUNTIME_DIR lies on a disk and who has nothing in /run. */
static int default_on_disk(void)
{
	char own[64], path[128];
	struct region r;

	snprintf(path, sizeof(path), "%s/turnward-test-xdg-XXXXXX", disk());
	if (!become_nobody() || access("/run/turnward", R_OK) == 0 ||
	    access("/dev/shm/turnward", R_OK) == 0 || !mkdtemp(path))
		return CANNOT;
	snprintf(own, sizeof(own), "/dev/shm/turnward-%d", NOBODY);
	setenv("XDG_RUNTIME_DIR", path, 1);
	CHILD_ASSERT(region_open(&r, NULL, 1, error) == 0);
	CHILD_ASSERT(strcmp(r.path, own) == 0);
	CHILD_ASSERT(strstr(r.note, path) && strstr(r.note, own));
	rmdir(own);
	rmdir(path);
	return PASSED;
}

static int default_on_tmpfs(void)
{
	char path[128];
	struct region r;

	snprintf(path, sizeof(path), "/dev/shm/turnward-test-xdg-XXXXXX");
	if (!become_nobody() || access("/run/turnward", R_OK) == 0 || !mkdtemp(path))
		return CANNOT;
	setenv("XDG_RUNTIME_DIR", path, 1);
	CHILD_ASSERT(region_open(&r, NULL, 1, error) == 0);
	CHILD_ASSERT(strncmp(r.path, path, strlen(path)) == 0);
	CHILD_ASSERT(r.note[0] == 0);
	rmdir(r.path);
	rmdir(path);
	return PASSED;
}

static void a_default_place_that_is_no_tmpfs_gives_way_to_dev_shm_and_says_so(void **state)
{
	NEED_ROOT();
	if (!disk())
		test_skip("every writable place here is a tmpfs");
	unsetenv("TURNWARD_REGION");

	int on_disk = in_child(default_on_disk), on_tmpfs = in_child(default_on_tmpfs);

	if (on_disk == CANNOT || on_tmpfs == CANNOT)
		test_skip("a region of this host's stands in the way");
	assert_int_equal(on_disk, PASSED);
	assert_int_equal(on_tmpfs, PASSED);
}

static void directories_that_others_can_write_or_swap_are_refused(void **state)
{
	struct region r;
	char path[128], link[128];

	snprintf(path, sizeof(path), "%s/d", directory);
	snprintf(link, sizeof(link), "%s/l", directory);
	assert_int_equal(mkdir(path, 0700), 0);
	assert_int_equal(chmod(path, 0770), 0);
	assert_int_equal(region_open(&r, path, 1, error), -EPERM);
	assert_non_null(strstr(error, "writable by others"));
	assert_int_equal(chmod(path, 0750), 0);
	assert_int_equal(region_open(&r, path, 1, error), 0);
	region_close(&r);

	assert_int_equal(symlink(path, link), 0);
	assert_int_equal(region_open(&r, link, 1, error), -EPERM);
	assert_non_null(strstr(error, "symbolic link"));
	unlink(link);
	rmdir(path);
}

static int squat_directory(void)
{
	if (!become_nobody() || mkdir("/dev/shm/turnward-test-squat", 0750) < 0)
		return CANNOT;
	return PASSED;
}

static void a_strangers_directory_where_anybody_can_make_one_is_refused(void **state)
{
	struct region r;

	NEED_ROOT();
	rmdir("/dev/shm/turnward-test-squat");
	assert_int_equal(in_child(squat_directory), PASSED);

	assert_int_equal(region_open(&r, "/dev/shm/turnward-test-squat", 1, error), -EPERM);
	assert_non_null(strstr(error, "65534"));
	rmdir("/dev/shm/turnward-test-squat");
}

/* ---- trust in files ---- */

static void put_file(const char *name, mode_t mode)
{
	int fd = openat(region.dir_fd, name, O_RDWR | O_CREAT | O_EXCL, 0600);

	assert_true(fd >= 0);
	assert_int_equal(fchmod(fd, mode), 0);
	assert_int_equal(ftruncate(fd, SIZE), 0);
	close(fd);
}

static void assert_refused(const char *name, const char *word)
{
	struct region_file file;

	assert_int_equal(hold(&file, name), -EPERM);
	assert_non_null(strstr(error, word));
	assert_non_null(strstr(error, name));
	assert_int_equal(attach(&file, name), -EPERM);
	assert_non_null(strstr(error, word));
}

static void links_wide_rights_and_things_that_are_no_files_are_refused(void **state)
{
	put_file("plain", 0640);
	assert_int_equal(linkat(region.dir_fd, "plain", region.dir_fd, "hard", 0), 0);
	assert_int_equal(symlinkat("plain", region.dir_fd, "soft"), 0);
	assert_int_equal(symlinkat("nowhere", region.dir_fd, "dangling"), 0);
	put_file("wide", 0666);
	put_file("readable", 0644);
	assert_int_equal(mkfifoat(region.dir_fd, "fifo", 0640), 0);

	assert_refused("hard", "2 links");
	assert_refused("plain", "2 links");
	assert_refused("soft", "symbolic link");
	assert_refused("dangling", "symbolic link");
	assert_refused("wide", "0666");
	assert_refused("readable", "0644");
	assert_refused("fifo", "no regular file");
	assert_int_equal(faccessat(region.dir_fd, "nowhere", F_OK, 0), -1); /* nothing was made */
}

static void a_file_of_a_strangers_is_refused(void **state)
{
	NEED_ROOT();
	put_file("owned", 0640);
	assert_int_equal(fchownat(region.dir_fd, "owned", NOBODY, NOBODY, 0), 0);

	assert_refused("owned", "65534");
}

static int touch_as_nobody(void)
{
	if (!become_nobody())
		return CANNOT;
	CHILD_ASSERT(open(directory, O_RDONLY) < 0);
	CHILD_ASSERT(openat(region.dir_fd, "engine.a", O_RDONLY) < 0);
	CHILD_ASSERT(openat(region.dir_fd, "mine", O_WRONLY | O_CREAT, 0600) < 0);
	CHILD_ASSERT(unlinkat(region.dir_fd, "engine.a", 0) < 0);
	CHILD_ASSERT(renameat(region.dir_fd, "engine.a", region.dir_fd, "b") < 0);
	return PASSED;
}

static void nobody_can_neither_read_nor_make_nor_remove(void **state)
{
	struct region_file file;

	NEED_ROOT();
	assert_int_equal(hold(&file, "engine.a"), 0);

	assert_int_equal(in_child(touch_as_nobody), PASSED);
	region_file_drop(&file);
}

static void names_that_lead_elsewhere_are_refused(void **state)
{
	struct region_file file;
	char longest[100];

	memset(longest, 'x', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = 0;
	assert_int_equal(hold(&file, "../x"), -EINVAL);
	assert_int_equal(hold(&file, ""), -EINVAL);
	assert_int_equal(hold(&file, ".hidden"), -EINVAL);
	assert_int_equal(hold(&file, longest), -EINVAL);
	assert_true(region_engine_name_valid("gpu-0_a.b"));
	assert_true(region_engine_name_valid("0123456789abcdef0123456789ABCDEF"));
	assert_false(region_engine_name_valid("0123456789abcdef0123456789ABCDEFg"));
	assert_false(region_engine_name_valid(""));
	assert_false(region_engine_name_valid("-x"));
	assert_false(region_engine_name_valid("a/b"));
	assert_false(region_engine_name_valid("a b"));
}

/* ---- holding ---- */

static void a_new_file_is_whole_private_and_reserved(void **state)
{
	struct region_file file, reader;
	struct stat st;

	assert_int_equal(hold(&file, "engine.a"), 0);
	assert_int_equal(file.fresh, 1);
	assert_int_equal(fstat(file.fd, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0640);
	assert_int_equal(st.st_size, SIZE);
	assert_true(st.st_blocks * 512 >= SIZE); /* reserved: no SIGBUS later */
	for (int i = REGION_PAYLOAD; i < SIZE; i++)
		assert_int_equal(file.map[i], 0);
	assert_int_equal(attach(&reader, "engine.a"), 0);
	assert_int_equal(region_file_alive(&reader), 1);
	region_file_drop(&file);
	assert_int_equal(region_file_alive(&reader), 0);
	region_file_drop(&reader);
}

static void a_second_writer_is_refused_and_told_the_pid(void **state)
{
	struct region_file file, other = { .fd = 123 };
	char pid[32];

	assert_int_equal(hold(&file, "engine.a"), 0);
	snprintf(pid, sizeof(pid), "pid %d", getpid());

	assert_int_equal(hold(&other, "engine.a"), -EBUSY);
	assert_non_null(strstr(error, pid));
	assert_non_null(strstr(error, "engine.a"));
	assert_int_equal(other.fd, 123);
	region_file_drop(&file);
}

static void a_successor_keeps_the_content_and_counts_on(void **state)
{
	struct region_file file;
	uint64_t ino;

	assert_int_equal(hold(&file, "engine.a"), 0);
	ino = file.ino;
	memcpy(region_payload(&file), "kept", 4);
	region_file_drop(&file);

	assert_int_equal(hold(&file, "engine.a"), 0);
	assert_int_equal(file.fresh, 0);
	assert_int_equal(file.ino, ino);
	assert_memory_equal(region_payload(&file), "kept", 4);
	assert_int_equal(((struct region_header *)file.map)->generation, 2);
	region_file_drop(&file);
}

/* The pid in the header is ours, a living process's; without the lock the writer is dead all the
 * same. */
static void a_living_strangers_pid_does_not_revive_a_dead_writer(void **state)
{
	struct region_file file, reader;

	assert_int_equal(hold(&file, "engine.a"), 0);
	region_file_drop(&file);
	assert_int_equal(attach(&reader, "engine.a"), 0);

	assert_int_equal(((struct region_header *)reader.map)->writer_pid, getpid());
	assert_int_equal(region_file_alive(&reader), 0);
	region_file_drop(&reader);
}

enum { WRITERS = 20, ROUNDS = 15 };

/* Starts WRITERS at one signal; each reports 'h' (holds, and stays) or 'b' (busy). */
static void start_writers(pid_t pids[WRITERS], int report, int gate)
{
	for (int i = 0; i < WRITERS; i++) {
		pids[i] = fork();
		if (pids[i] != 0)
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);

		struct region_file file;
		char go;
		int r;

		if (read(gate, &go, 1) != 0) /* ends when the parent closes the other end */
			_exit(1);
		r = hold(&file, "engine.a");
		if (write(report, r == 0 ? "h" : r == -EBUSY ? "b" : "?", 1) == 1 && r == 0)
			pause();
		_exit(0);
	}
}

static int race_once(int round)
{
	int report[2], gate[2], held = 0, holder = -1;
	pid_t pids[WRITERS];
	struct region_file file;

	assert_int_equal(pipe2(report, O_CLOEXEC), 0);
	assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
	for (int i = 0; i < WRITERS; i++)
		pids[i] = -1;

	/* The writers must not keep the gate's other end open: it is closed in each by a second
	 * fork. */
	pid_t parent_of_writers = fork();

	if (parent_of_writers == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* a claim that fails leaves nobody behind */
		close(gate[1]);
		start_writers(pids, report[1], gate[0]);
		for (int i = 0; i < WRITERS; i++)
			waitpid(pids[i], NULL, 0);
		_exit(0);
	}
	close(gate[0]);
	close(report[1]);
	usleep(3000);
	close(gate[1]);
	for (int i = 0; i < WRITERS; i++) {
		char said = 0;

		assert_int_equal(read(report[0], &said, 1), 1);
		assert_true(said == 'h' || said == 'b');
		held += said == 'h';
	}
	close(report[0]);
	assert_int_equal(hold(&file, "engine.a"), -EBUSY);
	assert_non_null(strstr(error, "pid "));
	holder = atoi(strstr(error, "pid ") + 4);
	assert_true(holder > 1);
	kill(holder, SIGKILL);
	waitpid(parent_of_writers, NULL, 0);

	/* The lock fell with its holder: the next one gets the file at once. */
	assert_int_equal(hold(&file, "engine.a"), 0);
	region_file_drop(&file);
	if (round % 2)
		unlinkat(region.dir_fd, "engine.a", 0);
	return held;
}

static void of_twenty_writers_at_once_exactly_one_holds(void **state)
{
	for (int round = 0; round < ROUNDS; round++)
		assert_int_equal(race_once(round), 1);
}

static void a_file_of_an_earlier_boot_begins_anew(void **state)
{
	struct region_file file, reader;
	uint64_t ino;

	assert_int_equal(hold(&file, "engine.a"), 0);
	memcpy(region_payload(&file), "old", 3);
	memcpy(((struct region_header *)file.map)->boot_id, "00000000-0000", 13);
	ino = file.ino;
	region_file_drop(&file);

	assert_int_equal(attach(&reader, "engine.a"), -ENOENT);
	assert_non_null(strstr(error, "earlier boot"));
	assert_int_equal(hold(&file, "engine.a"), 0);
	assert_int_equal(file.fresh, 1);
	assert_true(file.ino != ino);
	assert_int_equal(*(uint8_t *)region_payload(&file), 0);
	region_file_drop(&file);
}

/* ---- headers ---- */

static struct region_header *header;

#define DAMAGE(id, statement)       \
	static void make_##id(void) \
	{                           \
		statement;          \
	}
DAMAGE(magic, header->magic[7] = 'd')
DAMAGE(byte_order, header->version = __builtin_bswap32(REGION_VERSION))
DAMAGE(older, header->version = REGION_VERSION - 1)
DAMAGE(newer, header->version = REGION_VERSION + 1)
DAMAGE(header_size, header->header_size += 8)
DAMAGE(no_kind, header->kind = 0)
DAMAGE(high_kind, header->kind = 99)
DAMAGE(other_kind, header->kind = REGION_ROUTER)
DAMAGE(small, header->size = 16)
DAMAGE(uneven, header->size = SIZE - 3)
DAMAGE(cut, header->size = SIZE + 8)
DAMAGE(huge, header->size = UINT64_MAX - 7)
DAMAGE(grown, header->size = SIZE - 8)
DAMAGE(boot_open, memset(header->boot_id, 'a', sizeof(header->boot_id)))
DAMAGE(boot_bytes, header->boot_id[3] = 7)
DAMAGE(no_pid, header->writer_pid = 0)
DAMAGE(high_pid, header->writer_pid = 1ull << 40)
DAMAGE(no_start, header->writer_start = 0)
DAMAGE(no_generation, header->generation = 0)
DAMAGE(high_generation, header->generation = UINT64_MAX)
DAMAGE(never_created, header->created_ns = 0)
DAMAGE(future, header->created_ns = UINT64_MAX)
DAMAGE(reserved, header->reserved[2] = 1)
DAMAGE(fingerprint, header->fingerprint ^= 1)

static const struct {
	void (*make)(void);
	enum region_damage damage;
} damages[] = {
	{ make_magic, REGION_MAGIC },
	{ make_byte_order, REGION_BYTE_ORDER },
	{ make_older, REGION_VERSION_OLDER },
	{ make_newer, REGION_VERSION_NEWER },
	{ make_header_size, REGION_HEADER_SIZE },
	{ make_no_kind, REGION_KIND_UNKNOWN },
	{ make_high_kind, REGION_KIND_UNKNOWN },
	{ make_other_kind, REGION_KIND_OTHER },
	{ make_small, REGION_SIZE_SMALL },
	{ make_uneven, REGION_SIZE_UNEVEN },
	{ make_cut, REGION_SIZE_CUT },
	{ make_huge, REGION_SIZE_CUT },
	{ make_grown, REGION_SIZE_GROWN },
	{ make_boot_open, REGION_BOOT_TEXT },
	{ make_boot_bytes, REGION_BOOT_TEXT },
	{ make_no_pid, REGION_PID },
	{ make_high_pid, REGION_PID },
	{ make_no_start, REGION_START },
	{ make_no_generation, REGION_GENERATION },
	{ make_high_generation, REGION_GENERATION },
	{ make_never_created, REGION_CREATED },
	{ make_future, REGION_CREATED_LATER },
	{ make_reserved, REGION_RESERVED },
	{ make_fingerprint, REGION_FINGERPRINT },
};

static void every_damaged_header_is_refused_with_its_own_reason(void **state)
{
	struct region_file file, other;

	for (size_t i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
		assert_int_equal(region_file_hold(&file, &region, "engine.a", REGION_ENGINE,
						  FINGERPRINT, SIZE, 1, error),
				 0);
		header = (struct region_header *)file.map;
		damages[i].make();
		assert_int_equal(
			region_header_check(header, SIZE, REGION_ENGINE, FINGERPRINT, SIZE),
			damages[i].damage);
		assert_int_equal(attach(&other, "engine.a"), -EPROTO);
		assert_non_null(strstr(error, region_damage_text(damages[i].damage)));
		region_file_drop(&file);
		error[0] = 0;
		if (damages[i].damage == REGION_SIZE_CUT)
			continue; /* its writer begins anew: the next test */
		assert_int_equal(hold(&other, "engine.a"), -EPROTO);
		assert_non_null(strstr(error, region_damage_text(damages[i].damage)));
	}
}

static void a_short_file_is_made_anew_by_its_writer_and_another_size_refused(void **state)
{
	struct region_file file;

	put_file("short", 0640);

	int fd = openat(region.dir_fd, "short", O_RDWR);

	assert_int_equal(ftruncate(fd, 10), 0);
	close(fd);
	assert_int_equal(attach(&file, "short"), -EPROTO);
	assert_non_null(strstr(error, region_damage_text(REGION_SHORT)));
	assert_int_equal(hold(&file, "short"), 0); /* its writer heals it */
	assert_int_equal(file.fresh, 1);
	region_file_drop(&file);

	assert_int_equal(hold(&file, "engine.a"), 0);
	region_file_drop(&file);
	assert_int_equal(region_file_attach(&file, &region, "engine.a", REGION_ENGINE, FINGERPRINT,
					    SIZE + 8, error),
			 -EPROTO);
	assert_non_null(strstr(error, region_damage_text(REGION_SIZE_OTHER)));
	assert_int_equal(region_file_attach(&file, &region, "engine.a", REGION_ENGINE, FINGERPRINT,
					    0, error),
			 0);
	assert_int_equal(file.size, SIZE);
	region_file_drop(&file);
}

static void a_foreign_version_is_refused_with_both_named_unless_told_to_begin_anew(void **state)
{
	struct region_file file, reader;

	assert_int_equal(hold(&file, "engine.a"), 0);
	((struct region_header *)file.map)->version = 7;
	region_file_drop(&file);

	assert_int_equal(hold(&file, "engine.a"), -EPROTO);
	assert_non_null(strstr(error, "version 7, this program's is 1"));
	assert_int_equal(region_file_hold(&file, &region, "engine.a", REGION_ENGINE, FINGERPRINT,
					  SIZE, 1, error),
			 0);
	assert_int_equal(file.fresh, 1);
	assert_int_equal(attach(&reader, "engine.a"), 0);
	region_file_drop(&reader);
	region_file_drop(&file);
}

static void a_map_for_reading_cannot_be_written(void **state)
{
	struct region_file file, reader;

	assert_int_equal(hold(&file, "engine.a"), 0);
	assert_int_equal(attach(&reader, "engine.a"), 0);

	assert_int_equal(mprotect(reader.map, reader.size, PROT_READ | PROT_WRITE), -1);
	assert_int_equal(errno, EACCES);
	region_file_drop(&reader);
	region_file_drop(&file);
}

/* ---- replaced, removed, cut ---- */

static void fill_copy(void *ctx, const struct region_file *old, struct region_file *new_file)
{
	memcpy(region_payload(new_file), region_payload(old), old->size - REGION_PAYLOAD);
}

static void readers_notice_a_file_that_was_replaced_or_removed(void **state)
{
	struct region_file file, reader, again;

	assert_int_equal(hold(&file, "engine.a"), 0);
	memcpy(region_payload(&file), "kept", 4);
	assert_int_equal(attach(&reader, "engine.a"), 0);
	assert_int_equal(region_file_moved(&region, &reader), 0);

	assert_int_equal(region_file_replace(&file, &region, REGION_ENGINE, FINGERPRINT,
					     SIZE + 4096, fill_copy, NULL, error),
			 0);
	assert_int_equal(region_file_moved(&region, &reader), 1);
	assert_int_equal(region_file_moved(&region, &file), 0);
	assert_memory_equal(region_payload(&reader), "kept", 4); /* still mapped, still whole */
	assert_int_equal(region_file_attach(&again, &region, "engine.a", REGION_ENGINE, FINGERPRINT,
					    0, error),
			 0);
	assert_int_equal(again.size, SIZE + 4096);
	assert_memory_equal(region_payload(&again), "kept", 4);
	assert_int_equal(region_file_alive(&again), 1);
	unlinkat(region.dir_fd, "engine.a", 0);
	assert_int_equal(region_file_moved(&region, &again), 1);
	assert_int_equal(region_file_moved(&region, &file), 1);
	region_file_drop(&again);
	region_file_drop(&reader);
	region_file_drop(&file);
}

static void a_directory_that_was_made_anew_is_noticed(void **state)
{
	char aside[80];

	assert_int_equal(region_moved(&region), 0);
	snprintf(aside, sizeof(aside), "%s-aside", directory);
	assert_int_equal(rename(directory, aside), 0);
	assert_int_equal(region_moved(&region), 1);
	assert_int_equal(mkdir(directory, 0750), 0);
	assert_int_equal(region_moved(&region), 1);
	rmdir(directory);
	assert_int_equal(rename(aside, directory), 0);
	assert_int_equal(region_moved(&region), 0);
}

static int read_cut_file(void)
{
	struct region_file file, reader;
	volatile uint8_t *payload;

	region_guard();
	CHILD_ASSERT(hold(&file, "engine.a") == 0 && attach(&reader, "engine.a") == 0);
	payload = region_payload(&reader);
	memcpy(region_payload(&file), "x", 1);
	CHILD_ASSERT(payload[0] == 'x');
	CHILD_ASSERT(ftruncate(file.fd, 0) == 0);
	CHILD_ASSERT(payload[0] == 0); /* was SIGBUS */
	CHILD_ASSERT(region_file_moved(&region, &reader) == 1);
	memcpy(region_payload(&file), "y", 1); /* the writer lives on, too */
	CHILD_ASSERT(region_file_moved(&region, &file) == 1);
	region_file_drop(&reader);
	region_file_drop(&file);
	CHILD_ASSERT(hold(&file, "engine.a") == 0 && file.fresh == 1);
	return PASSED;
}

static int read_other_cut_file(void)
{
	struct region_file file;
	volatile uint8_t *map;
	int fd;

	region_guard();
	CHILD_ASSERT(hold(&file, "engine.a") == 0);
	fd = memfd_create("other", 0);
	map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
	return map[0];
}

static void a_file_cut_under_us_is_survived_and_noticed(void **state)
{
	assert_int_equal(in_child(read_cut_file), PASSED);
	/* A sanitizer reports SIGBUS by itself and exits 1. */
	if (!TEST_SANITIZED)
		assert_int_equal(in_child(read_other_cut_file), 128 + SIGBUS);
}

static int hold_on_full_tmpfs(void)
{
	struct region_file file;
	struct region small;

	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("tmpfs", directory, "tmpfs", 0, "size=64k,mode=0750") < 0)
		return CANNOT;
	CHILD_ASSERT(region_open(&small, directory, 0, error) == 0);
	CHILD_ASSERT(region_file_hold(&file, &small, "router", REGION_ROUTER, 1, 1 << 20, 0,
				      error) == -ENOSPC);
	CHILD_ASSERT(strstr(error, "1048576 bytes") && strstr(error, directory));
	CHILD_ASSERT(region_list(&small, ".router", remove_one, NULL) ==
		     0); /* nothing left behind */
	CHILD_ASSERT(
		region_file_hold(&file, &small, "engine.a", REGION_ENGINE, 1, SIZE, 0, error) == 0);
	return PASSED;
}

static void a_full_tmpfs_is_told_at_the_start_with_the_bytes_needed(void **state)
{
	int r = in_child(hold_on_full_tmpfs);

	if (r == CANNOT)
		test_skip("mounting a tmpfs is not permitted");
	assert_int_equal(r, PASSED);
}

static void list_one(void *ctx, const char *name)
{
	strcat(ctx, name);
	strcat(ctx, " ");
}

static void files_are_listed_by_prefix_in_name_order(void **state)
{
	char names[200] = "";

	put_file("engine.b", 0640);
	put_file("engine.a", 0640);
	put_file("engine.A", 0640);
	put_file("ledger.0", 0640);
	put_file(".engine.c.1.2", 0640);

	assert_int_equal(region_list(&region, "engine.", list_one, names), 3);
	assert_string_equal(names, "engine.A engine.a engine.b ");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(an_explicit_place_is_honoured_and_made_with_our_rights),
		TEST(the_environment_names_a_place_and_an_option_beats_it),
		TEST(an_explicit_place_that_is_no_tmpfs_is_honoured_with_a_warning),
		TEST(a_default_place_that_is_no_tmpfs_gives_way_to_dev_shm_and_says_so),
		TEST(directories_that_others_can_write_or_swap_are_refused),
		TEST(a_strangers_directory_where_anybody_can_make_one_is_refused),
		TEST(links_wide_rights_and_things_that_are_no_files_are_refused),
		TEST(a_file_of_a_strangers_is_refused),
		TEST(nobody_can_neither_read_nor_make_nor_remove),
		TEST(names_that_lead_elsewhere_are_refused),
		TEST(a_new_file_is_whole_private_and_reserved),
		TEST(a_second_writer_is_refused_and_told_the_pid),
		TEST(a_successor_keeps_the_content_and_counts_on),
		TEST(a_living_strangers_pid_does_not_revive_a_dead_writer),
		TEST(of_twenty_writers_at_once_exactly_one_holds),
		TEST(a_file_of_an_earlier_boot_begins_anew),
		TEST(every_damaged_header_is_refused_with_its_own_reason),
		TEST(a_short_file_is_made_anew_by_its_writer_and_another_size_refused),
		TEST(a_foreign_version_is_refused_with_both_named_unless_told_to_begin_anew),
		TEST(a_map_for_reading_cannot_be_written),
		TEST(readers_notice_a_file_that_was_replaced_or_removed),
		TEST(a_directory_that_was_made_anew_is_noticed),
		TEST(a_file_cut_under_us_is_survived_and_noticed),
		TEST(a_full_tmpfs_is_told_at_the_start_with_the_bytes_needed),
		TEST(files_are_listed_by_prefix_in_name_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
