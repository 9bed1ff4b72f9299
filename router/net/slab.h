/*
 * Pools of fixed-size blocks: bodies, heads, output, exchanges. Bounded by name, no malloc per
 * block.
 *
 * Blocks are cut from 1 MiB slabs. A slab whose blocks are all free is kept for the next that needs
 * one: to give it back and take it again costs 256 page faults a MiB. slab_trim(), called now and
 * then, gives back those that nobody needed since, so memory follows the load down again.
 */
#ifndef TURNWARD_ROUTER_NET_SLAB_H
#define TURNWARD_ROUTER_NET_SLAB_H

#include <stddef.h>
#include <stdint.h>

enum {
	SLAB_BYTES = 1024 * 1024,
	SLAB_ALIGN = 16, /* what is aligned to more has a size that is a multiple of it */
};

struct slab_chunk;

struct slab {
	const char *name;
	size_t block_size;
	uint32_t per_chunk;
	uint64_t limit, used, peak, refused, chunks; /* blocks, but for chunks */
	struct slab_chunk *open;                     /* chunks with room */
	struct slab_chunk *spare;                    /* empty ones */
	uint32_t spares, spares_least;               /* now; since the last slab_trim() */
};

/* `limit` blocks at most; block_size is rounded up to SLAB_ALIGN, at most 256 KiB. */
void slab_init(struct slab *slab, const char *name, size_t block_size, uint64_t limit);
void slab_fini(struct slab *slab); /* every block must be back */

/* A block of undefined content, or NULL at the limit (counted in `refused`) or out of memory. */
void *slab_take(struct slab *slab);
void slab_give(struct slab *slab, void *block);

/* Gives back the chunks that were empty ever since the last call, but for the first 64 KiB of one.
 */
void slab_trim(struct slab *slab);

#endif
