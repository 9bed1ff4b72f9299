/* Opens recordings and feeds their reader. */
#include "router/ctl/recording.h"

#include "router/ctl/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static long pull(void *ctx, void *into, size_t room)
{
	const struct recording *recording = ctx;
	ssize_t n;

	do
		n = read(recording->fd, into, room);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

int recording_open(struct recording *ret, const char *path, const char *who)
{
	char error[RECORD_ERROR_MAX];
	int err;

	ret->fd = strcmp(path, "-") == 0 ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
	if (ret->fd < 0) {
		err = -errno;
		fprintf(stderr, "%s: %s: %s\n", who, path, strerror(-err));
		return err;
	}
	err = record_open(&ret->reader, pull, ret, sink_program(), error);
	if (err) {
		fprintf(stderr, "%s: %s: %s\n", who, path, error);
		recording_close(ret);
	}
	return err;
}

void recording_close(struct recording *recording)
{
	close(recording->fd);
	recording->fd = -1;
}
