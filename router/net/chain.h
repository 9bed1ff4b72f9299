/* A queue of bytes in pool blocks: request bodies, output waiting for a client, read-ahead. */
#ifndef TURNWARD_ROUTER_NET_CHAIN_H
#define TURNWARD_ROUTER_NET_CHAIN_H

#include "router/net/slab.h"

#include <sys/uio.h>

struct block {
	struct block *next;
	uint32_t start, end; /* the bytes in use: data[start..end) */
	uint8_t data[];
};

struct chain {
	struct block *head, *tail;
	size_t bytes;
};

/* What fits in one block of the pool. */
static inline size_t block_capacity(const struct slab *slab)
{
	return slab->block_size - sizeof(struct block);
}

struct block *block_take(struct slab *slab); /* empty, or NULL */

/* Appends a copy; 0 or -ENOBUFS with nothing appended. */
int chain_append(struct chain *chain, struct slab *slab, const void *data, size_t len);

/* Hangs a block (its bytes are start..end) at the tail; an empty block is allowed. */
void chain_push(struct chain *chain, struct block *block);

/* Unhangs the last block; it walks there. NULL when there is none. */
struct block *chain_pop(struct chain *chain);

/* Drops `len` bytes at the head and the blocks that become empty. */
void chain_drop(struct chain *chain, struct slab *slab, size_t len);
void chain_clear(struct chain *chain, struct slab *slab);

/* Fills iov with up to `n` spans from the head; returns how many, *ret_bytes their sum. */
int chain_iov(const struct chain *chain, struct iovec *iov, int n, size_t *ret_bytes);

#endif
