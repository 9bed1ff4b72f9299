/* Pools of fixed-size blocks cut from aligned slabs, so that a block finds its slab by its address.
 */
#include "router/net/slab.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>

struct slab_chunk {
	struct slab_chunk *next, **prev; /* in slab->open; prev NULL = not listed (full or spare) */
	void *free;                      /* given back, linked through their first word */
	uint32_t used, fresh;            /* blocks out; blocks never handed out start at `fresh` */
	uint32_t bare;                   /* empty, and only its beginning is in memory */
};

enum {
	CHUNK_HEAD = 64,
	CHUNK_KEPT = 64 * 1024, /* bytes of the last empty one: what a single request needs */
};
static_assert(sizeof(struct slab_chunk) <= CHUNK_HEAD, "blocks start on the next line");

void slab_init(struct slab *slab, const char *name, size_t block_size, uint64_t limit)
{
	block_size = (block_size + SLAB_ALIGN - 1) / SLAB_ALIGN * SLAB_ALIGN;
	assert(block_size <= 256 * 1024 && limit > 0);
	*slab = (struct slab){ .name = name, .block_size = block_size, .limit = limit };
	slab->per_chunk = (SLAB_BYTES - CHUNK_HEAD) / block_size;
}

static void open_push(struct slab *slab, struct slab_chunk *chunk)
{
	chunk->next = slab->open;
	chunk->prev = &slab->open;
	if (slab->open)
		slab->open->prev = &chunk->next;
	slab->open = chunk;
}

static void open_remove(struct slab_chunk *chunk)
{
	*chunk->prev = chunk->next;
	if (chunk->next)
		chunk->next->prev = chunk->prev;
	chunk->prev = NULL;
}

static struct slab_chunk *spare_take(struct slab *slab)
{
	struct slab_chunk *chunk = slab->spare;

	if (!chunk)
		return NULL;
	slab->spare = chunk->next;
	if (--slab->spares < slab->spares_least)
		slab->spares_least = slab->spares;
	return chunk;
}

static void spare_free(struct slab *slab)
{
	free(spare_take(slab));
	slab->chunks--;
}

void slab_trim(struct slab *slab)
{
	struct slab_chunk *last;

	for (uint32_t n = slab->spares_least; n > 1; n--)
		spare_free(slab);
	last = slab->spares_least == 1 && slab->spares == 1 ? slab->spare : NULL;
	slab->spares_least = slab->spares;
	if (!last || last->bare)
		return;
	/* A few requests a second find its first blocks in memory; what a burst took goes. */
	madvise((char *)last + CHUNK_KEPT, SLAB_BYTES - CHUNK_KEPT, MADV_DONTNEED);
	last->bare = 1;
}

void slab_fini(struct slab *slab)
{
	assert(slab->used == 0);
	while (slab->spare)
		spare_free(slab);
}

static struct slab_chunk *chunk_new(struct slab *slab)
{
	struct slab_chunk *chunk = spare_take(slab);

	if (!chunk) {
		chunk = aligned_alloc(SLAB_BYTES, SLAB_BYTES);
		if (!chunk)
			return NULL;
		slab->chunks++;
	}
	chunk->free = NULL;
	chunk->used = chunk->fresh = chunk->bare = 0;
	open_push(slab, chunk);
	return chunk;
}

void *slab_take(struct slab *slab)
{
	struct slab_chunk *chunk = slab->open;
	void *block;

	if (slab->used >= slab->limit || (!chunk && !(chunk = chunk_new(slab)))) {
		slab->refused++;
		return NULL;
	}
	if (chunk->free) {
		block = chunk->free;
		chunk->free = *(void **)block;
	} else {
		block = (char *)chunk + CHUNK_HEAD + (size_t)chunk->fresh++ * slab->block_size;
	}
	if (++chunk->used == slab->per_chunk)
		open_remove(chunk);
	if (++slab->used > slab->peak)
		slab->peak = slab->used;
	return block;
}

void slab_give(struct slab *slab, void *block)
{
	struct slab_chunk *chunk = (void *)((uintptr_t)block & ~(uintptr_t)(SLAB_BYTES - 1));

	assert(slab->used > 0 && chunk->used > 0);
	slab->used--;
	*(void **)block = chunk->free;
	chunk->free = block;
	if (chunk->used-- == slab->per_chunk)
		open_push(slab, chunk);
	if (chunk->used > 0)
		return;
	open_remove(chunk);
	chunk->next = slab->spare;
	slab->spare = chunk;
	slab->spares++;
}
