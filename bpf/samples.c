/* A buffer of whole lines before the file. */
#include "bpf/samples.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int samples_open(struct samples *samples, const char *path)
{
	samples->used = 0;
	samples->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0640);
	return samples->fd < 0 ? -1 : 0;
}

int samples_flush(struct samples *samples)
{
	size_t at = 0;

	while (samples->fd >= 0 && at < samples->used) {
		ssize_t n = write(samples->fd, samples->buffer + at, samples->used - at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			int code = errno;

			close(samples->fd);
			samples->fd = -1;
			samples->used = 0;
			errno = code;
			return -1;
		}
		at += (size_t)n;
	}
	samples->used = 0;
	return 0;
}

void samples_put(struct samples *samples, const char *line, size_t len)
{
	assert(len <= sizeof(samples->buffer));
	if (samples->used + len > sizeof(samples->buffer))
		samples_flush(samples);
	memcpy(samples->buffer + samples->used, line, len);
	samples->used += len;
}

int samples_close(struct samples *samples)
{
	int err = samples->fd >= 0 ? samples_flush(samples) : 0;

	if (samples->fd >= 0 && close(samples->fd) < 0)
		err = -1;
	samples->fd = -1;
	return err;
}
