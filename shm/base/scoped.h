/* Scope-bound release for set-up code: scoped(fd_drop) int fd = open(...). Never for connections.
 */
#ifndef TURNWARD_SHM_BASE_SCOPED_H
#define TURNWARD_SHM_BASE_SCOPED_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define scoped(drop) __attribute__((cleanup(drop)))

/* Takes the value out, so that the scope's end releases nothing. */
#define take_fd(fd)                \
	({                         \
		int taken_ = (fd); \
		(fd) = -1;         \
		taken_;            \
	})
#define take_ptr(p)                         \
	({                                  \
		__typeof__(p) taken_ = (p); \
		(p) = NULL;                 \
		taken_;                     \
	})

static inline void fd_drop(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

static inline void free_drop(void *p)
{
	free(*(void **)p);
}

static inline void file_drop(FILE **f)
{
	if (*f)
		fclose(*f);
}

#endif
