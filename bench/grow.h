/* Lists that grow by doubling, for readers of files whose length is not known. */
#ifndef TURNWARD_BENCH_GROW_H
#define TURNWARD_BENCH_GROW_H

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

/* Room for one more of `size` bytes in *array, which has nr of *room. 0 or -ENOMEM. */
static inline int grow(void **array, size_t nr, size_t *room, size_t size)
{
	size_t more = *room ? 2 * *room : 64;

	if (nr < *room)
		return 0;
	void *grown = realloc(*array, more * size);
	if (!grown)
		return -ENOMEM;
	*array = grown;
	*room = more;
	return 0;
}

#endif
