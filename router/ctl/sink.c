/* Writes a recording's parts; every error is told once, and tried again when asked. */
#include "router/ctl/sink.h"

#include "shm/base/clock.h"
#include "shm/base/scoped.h"
#include "shm/base/version.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

const char *sink_program(void)
{
	return "turnward " TURNWARD_VERSION " (" TURNWARD_COMMIT "), " COMPILER;
}

static int to_stdout(const struct sink *sink)
{
	return strcmp(sink->path, "-") == 0;
}

static int complain(struct sink *sink, const char *what, int err)
{
	if (!sink->told)
		fprintf(stderr, "turnward record: %s: %s: %s\n", sink->path, what, strerror(-err));
	sink->told = 1;
	return err;
}

/* All of it or nothing: what a failed write left is cut off. */
static int write_whole(int fd, const void *bytes, size_t size, uint64_t at, int regular)
{
	const uint8_t *from = bytes;
	size_t done = 0;

	while (done < size) {
		ssize_t n = write(fd, from + done, size - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			int err = n < 0 ? -errno : -ENOSPC;

			if (regular && ftruncate(fd, (off_t)at) == 0)
				lseek(fd, (off_t)at, SEEK_SET);
			return err;
		}
		done += (size_t)n;
	}
	return 0;
}

static int write_head(struct sink *sink, int fd)
{
	uint64_t head[RECORD_HEAD_MAX / 8];
	size_t size =
		record_head_write(head, sizeof(head), sink_program(), clock_wall_ns(), sink->part);
	int err;

	if (sink->source.continues)
		size += record_frame_write((uint8_t *)head + size, sizeof(head) - size,
					   RECORD_SOURCE, sink->source.first, &sink->source,
					   sizeof(sink->source));
	err = write_whole(fd, head, size, 0, !to_stdout(sink));
	if (!err)
		sink->size = size;
	return err;
}

static void name_of(const struct sink *sink, unsigned part, char name[SINK_PATH_MAX])
{
	if (part)
		snprintf(name, SINK_PATH_MAX, "%s.%u", sink->path, part);
	else
		snprintf(name, SINK_PATH_MAX, "%s", sink->path);
}

static void shift_names(const struct sink *sink)
{
	char from[SINK_PATH_MAX], to[SINK_PATH_MAX];

	for (unsigned i = sink->keep; i > 0; i--) {
		name_of(sink, i - 1, from);
		name_of(sink, i, to);
		rename(from, to); /* one that is not there moves nowhere */
	}
}

/* A new file under the name, its head in it, locked; the old one moves on to .1. */
static int begin_part(struct sink *sink)
{
	char name[SINK_PATH_MAX];
	scoped(fd_drop) int fd = -1;
	uint64_t size = sink->size;
	int err = 0;

	snprintf(name, sizeof(name), "%s.new", sink->path);
	fd = open(name, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
	if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0 || ftruncate(fd, 0) < 0)
		return -errno;
	err = write_head(sink, fd);
	if (!err) {
		shift_names(sink);
		err = rename(name, sink->path) < 0 ? -errno : 0;
	}
	if (err) {
		sink->size = size;
		unlink(name);
		return err;
	}
	if (sink->fd >= 0)
		close(sink->fd);
	sink->fd = take_fd(fd);
	sink->total += sink->size;
	sink->part++;
	return 0;
}

/* What stands under the name already: nothing or an earlier recording nobody writes, or -errno. */
static int look_at(const struct sink *sink)
{
	scoped(fd_drop) int fd = open(sink->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	char magic[8] = "";
	struct stat st;

	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode) ||
	    (st.st_size > 0 && (pread(fd, magic, sizeof(magic), 0) != sizeof(magic) ||
				memcmp(magic, "TWRECORD", sizeof(magic)) != 0))) {
		fprintf(stderr, "turnward record: %s is there and no recording: it is left alone\n",
			sink->path);
		return -EEXIST;
	}
	if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		fprintf(stderr, "turnward record: %s is being written by another recorder\n",
			sink->path);
		return -EBUSY;
	}
	if (st.st_size == 0)
		unlink(sink->path); /* made in advance, and no part worth keeping */
	return 0;
}

int sink_open(struct sink *sink, const char *path, uint64_t max_size, unsigned keep)
{
	int err;

	*sink = (struct sink){ .path = path, .max_size = max_size, .keep = keep, .fd = -1 };
	if (to_stdout(sink)) {
		sink->fd = STDOUT_FILENO;
		err = write_head(sink, sink->fd);
		return err ? complain(sink, "cannot write", err) : 0;
	}
	if (strlen(path) + 16 > SINK_PATH_MAX)
		return complain(sink, "cannot write", -ENAMETOOLONG);
	err = look_at(sink);
	if (err == -EEXIST || err == -EBUSY)
		return err;
	if (!err)
		err = begin_part(sink);
	return err ? complain(sink, "cannot write", err) : 0;
}

int sink_flush(struct sink *sink)
{
	int err = 0;

	if (sink->used == 0)
		return 0;
	if (!to_stdout(sink) && sink->size + sink->used > sink->max_size)
		err = begin_part(sink);
	if (!err)
		err = write_whole(sink->fd, sink->buffer, sink->used, sink->size, !to_stdout(sink));
	if (err) {
		sink->failing = 1;
		return complain(sink, "cannot write; trying on", err);
	}
	if (sink->failing)
		fprintf(stderr, "turnward record: %s: writing again\n", sink->path);
	sink->failing = sink->told = 0;
	sink->size += sink->used;
	sink->total += sink->used;
	sink->used = 0;
	return 0;
}

int sink_put(struct sink *sink, enum record_kind kind, uint64_t number, const void *payload,
	     size_t length)
{
	size_t n = record_frame_write(sink->buffer + sink->used, sizeof(sink->buffer) - sink->used,
				      kind, number, payload, length);
	int err = 0;

	if (n == 0) {
		err = sink_flush(sink);
		if (err)
			return err;
		n = record_frame_write(sink->buffer, sizeof(sink->buffer), kind, number, payload,
				       length);
	}
	sink->used += n;
	if (kind == RECORD_SOURCE) {
		memcpy(&sink->source, payload, sizeof(sink->source));
		sink->source.continues = 1;
	}
	return 0;
}

int sink_look(struct sink *sink)
{
	struct stat mine, there;
	int err;

	if (to_stdout(sink) || fstat(sink->fd, &mine) < 0)
		return 0;
	if (stat(sink->path, &there) == 0 && there.st_ino == mine.st_ino &&
	    there.st_dev == mine.st_dev)
		return 0;
	err = begin_part(sink);
	if (err)
		return complain(sink, "it has been moved away, and no other can be made", err);
	fprintf(stderr, "turnward record: %s has been moved away: a new one is written\n",
		sink->path);
	return 0;
}

int sink_close(struct sink *sink)
{
	int err = sink_flush(sink);

	if (!to_stdout(sink) && fdatasync(sink->fd) < 0 && !err)
		err = complain(sink, "cannot reach the disk", -errno);
	if (close(sink->fd) < 0 && !err)
		err = complain(sink, "cannot close", -errno);
	sink->fd = -1;
	return err;
}
