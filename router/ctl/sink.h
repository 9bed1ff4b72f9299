/*
 * The file that `turnward record` writes: whole at any instant, bounded, rotated, and patient with
 * a full disk.
 *
 * Frames collect in a buffer and go out with one write; what a failed write left behind is cut off
 * again. FILE becomes FILE.1, that FILE.2, up to `keep`; the new file gets its head under a passing
 * name first.
 */
#ifndef TURNWARD_ROUTER_CTL_SINK_H
#define TURNWARD_ROUTER_CTL_SINK_H

#include "router/journal/record.h"

#include <stdint.h>

enum {
	SINK_PATH_MAX = 1024,
	SINK_BUFFER = RECORD_PAYLOAD_MAX + 8192, /* of one write; the largest frame and more */
	SINK_SIZE_MIN = 128 * 1024,              /* of a part: a head, its source, a buffer */
};

struct sink {
	const char *path; /* "-" = stdout, which is neither bounded nor rotated */
	uint64_t max_size;
	unsigned keep;
	int fd;
	uint64_t size, part;
	uint64_t total; /* bytes in all parts */
	int failing;    /* the last write did not go through; the buffer is kept */
	int told;
	struct record_source source; /* the last one put: each later part begins with it */
	size_t used;
	uint8_t buffer[SINK_BUFFER];
};

/* Opens the file, moving an earlier recording of that name out of the way. 0 or -errno, said. */
int sink_open(struct sink *sink, const char *path, uint64_t max_size, unsigned keep);

/* Takes a frame; -errno when the file takes nothing (said once), and the frame was not taken. */
int sink_put(struct sink *sink, enum record_kind kind, uint64_t number, const void *payload,
	     size_t length);

/* Writes what is buffered. 0 or -errno. */
int sink_flush(struct sink *sink);

/* Begins a new file if somebody has moved or removed the one being written. 0 or -errno, said. */
int sink_look(struct sink *sink);

/* Flushes to the disk and closes. 0 or -errno. */
int sink_close(struct sink *sink);

/* "turnward 0.1.0 (1a2b3c4), gcc 12.2.0": this program, as recordings name it. */
const char *sink_program(void);

#endif
