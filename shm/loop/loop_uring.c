/* The loop over io_uring. */
#include "shm/loop/loop_impl.h"
#include <errno.h>
#include <stdio.h>

static int uring_start(struct loop *loop, char *why, size_t why_size)
{
	snprintf(why, why_size, "io_uring: not built yet");
	return -ENOSYS;
}

const struct loop_ops loop_uring_ops = { .start = uring_start };
