/* A queue of bytes in pool blocks. */
#include "router/net/chain.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

struct block *block_take(struct slab *slab)
{
	struct block *block = slab_take(slab);

	if (block) {
		block->next = NULL;
		block->start = block->end = 0;
	}
	return block;
}

void chain_push(struct chain *chain, struct block *block)
{
	block->next = NULL;
	if (chain->tail)
		chain->tail->next = block;
	else
		chain->head = block;
	chain->tail = block;
	chain->bytes += block->end - block->start;
}

struct block *chain_pop(struct chain *chain)
{
	struct block *last = chain->tail, *before = NULL;

	if (!last)
		return NULL;
	if (chain->head != last)
		for (before = chain->head; before->next != last; before = before->next)
			;
	if (before)
		before->next = NULL;
	else
		chain->head = NULL;
	chain->tail = before;
	chain->bytes -= last->end - last->start;
	return last;
}

/* Takes every block that `len` bytes will need before touching the chain: all or nothing. */
static int reserve(struct slab *slab, size_t len, struct block **ret_list)
{
	struct block *list = NULL;

	for (size_t left = len; left > 0;) {
		struct block *b = block_take(slab);

		if (!b) {
			while (list) {
				b = list->next;
				slab_give(slab, list);
				list = b;
			}
			return -ENOBUFS;
		}
		b->next = list;
		list = b;
		left -= left < block_capacity(slab) ? left : block_capacity(slab);
	}
	*ret_list = list;
	return 0;
}

int chain_append(struct chain *chain, struct slab *slab, const void *data, size_t len)
{
	size_t cap = block_capacity(slab);
	size_t room = chain->tail ? cap - chain->tail->end : 0;
	size_t n = len < room ? len : room;
	const uint8_t *from = data;
	struct block *list = NULL;

	if (len > n && reserve(slab, len - n, &list) < 0)
		return -ENOBUFS;
	if (n > 0) {
		memcpy(chain->tail->data + chain->tail->end, from, n);
		chain->tail->end += n;
		chain->bytes += n;
	}
	for (from += n, len -= n; len > 0; from += n, len -= n) {
		struct block *b = list;

		list = b->next;
		n = len < cap ? len : cap;
		memcpy(b->data, from, n);
		b->end = n;
		chain_push(chain, b);
	}
	assert(!list);
	return 0;
}

void chain_drop(struct chain *chain, struct slab *slab, size_t len)
{
	assert(len <= chain->bytes);
	chain->bytes -= len;
	while (chain->head) {
		struct block *b = chain->head;
		size_t n = b->end - b->start;

		if (len < n) {
			b->start += len;
			return;
		}
		len -= n;
		chain->head = b->next;
		if (!chain->head)
			chain->tail = NULL;
		slab_give(slab, b);
		if (len == 0 && chain->head && chain->head->end > chain->head->start)
			return;
	}
}

void chain_clear(struct chain *chain, struct slab *slab)
{
	chain_drop(chain, slab, chain->bytes);
	assert(!chain->head && chain->bytes == 0);
}

int chain_iov(const struct chain *chain, struct iovec *iov, int n, size_t *ret_bytes)
{
	int used = 0;
	size_t bytes = 0;

	for (const struct block *b = chain->head; b && used < n; b = b->next) {
		if (b->end == b->start)
			continue;
		iov[used].iov_base = (void *)(b->data + b->start);
		iov[used].iov_len = b->end - b->start;
		bytes += iov[used++].iov_len;
	}
	*ret_bytes = bytes;
	return used;
}
