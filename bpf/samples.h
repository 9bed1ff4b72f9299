/* --samples: lines that go out whole. */
#ifndef TURNWARD_BPF_SAMPLES_H
#define TURNWARD_BPF_SAMPLES_H

#include <stddef.h>

enum { SAMPLES_BUFFER = 64 * 1024 };

/* fd -1 = none. After a failed write nothing more is taken. */
struct samples {
	int fd;
	size_t used;
	char buffer[SAMPLES_BUFFER];
};

int samples_open(struct samples *samples, const char *path); /* emptied; -1 with errno */
int samples_flush(struct samples *samples);                  /* -1 with errno, once */
void samples_put(struct samples *samples, const char *line, size_t len); /* flushes when full */
int samples_close(struct samples *samples);

#endif
