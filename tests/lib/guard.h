/* A copy of bytes that ends (or begins) at an unmapped page, so that reading one too many crashes.
 */
#ifndef TURNWARD_TESTS_LIB_GUARD_H
#define TURNWARD_TESTS_LIB_GUARD_H

#include <assert.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct guard {
	char *map;
	size_t size;
	char *bytes; /* the copy; bytes + len is the unmapped page */
};

static inline struct guard guard_copy(const void *from, size_t len)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t body = (len + page - 1) / page * page;
	struct guard g = { .size = body + page };

	g.map = (char *)mmap(NULL, g.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			     0);
	assert(g.map != MAP_FAILED);
	assert(!mprotect(g.map + body, page, PROT_NONE));
	g.bytes = g.map + body - len;
	if (len)
		memcpy(g.bytes, from, len);
	return g;
}

static inline void guard_free(struct guard *g)
{
	munmap(g->map, g->size);
}

#endif
