/* KV blocks: one array, a reuse list through it and a hash index over it. */
#include "bench/model/kv.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int kv_init(struct kv *kv, uint32_t blocks)
{
	uint32_t buckets = 1;

	assert(blocks > 0 && blocks < KV_NONE / 2);
	while (buckets < blocks)
		buckets *= 2;
	*kv = (struct kv){ .nr = blocks, .bucket_mask = buckets - 1, .idle = blocks };
	kv->block = calloc(blocks + 1, sizeof(*kv->block));
	kv->bucket = malloc(buckets * sizeof(*kv->bucket));
	if (!kv->block || !kv->bucket) {
		kv_fini(kv);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < buckets; i++)
		kv->bucket[i] = KV_NONE;
	for (uint32_t i = 0; i <= blocks; i++) {
		kv->block[i].next = i == blocks ? 0 : i + 1;
		kv->block[i].prev = i == 0 ? blocks : i - 1;
		kv->block[i].chain = KV_NONE;
	}
	return 0;
}

void kv_fini(struct kv *kv)
{
	free(kv->block);
	free(kv->bucket);
	*kv = (struct kv){ 0 };
}

uint32_t kv_find(const struct kv *kv, uint64_t hash)
{
	uint32_t i = kv->bucket[hash & kv->bucket_mask];

	while (i != KV_NONE && kv->block[i].hash != hash)
		i = kv->block[i].chain;
	return i;
}

static void list_remove(struct kv *kv, uint32_t i)
{
	struct kv_block *b = &kv->block[i];

	kv->block[b->prev].next = b->next;
	kv->block[b->next].prev = b->prev;
	kv->idle--;
}

static void list_append(struct kv *kv, uint32_t i)
{
	struct kv_block *b = &kv->block[i], *anchor = &kv->block[kv->nr];

	b->next = kv->nr;
	b->prev = anchor->prev;
	kv->block[anchor->prev].next = i;
	anchor->prev = i;
	kv->idle++;
}

static void unname(struct kv *kv, uint32_t i)
{
	uint32_t *at = &kv->bucket[kv->block[i].hash & kv->bucket_mask];

	while (*at != i) {
		assert(*at != KV_NONE);
		at = &kv->block[*at].chain;
	}
	*at = kv->block[i].chain;
	kv->block[i].chain = KV_NONE;
	kv->block[i].hash = 0;
	kv->findable--;
}

void kv_hold(struct kv *kv, uint32_t block)
{
	assert(block < kv->nr);
	if (kv->block[block].refs++ == 0)
		list_remove(kv, block);
}

uint32_t kv_take(struct kv *kv)
{
	uint32_t i = kv->block[kv->nr].next;

	assert(kv->idle > 0 && i < kv->nr && kv->block[i].refs == 0);
	if (kv->block[i].hash) {
		unname(kv, i);
		kv->evicted++;
	}
	kv_hold(kv, i);
	return i;
}

void kv_drop(struct kv *kv, uint32_t block)
{
	assert(block < kv->nr && kv->block[block].refs > 0);
	if (--kv->block[block].refs == 0)
		list_append(kv, block);
}

void kv_name(struct kv *kv, uint32_t block, uint64_t hash)
{
	uint32_t *bucket = &kv->bucket[hash & kv->bucket_mask];

	assert(hash != 0 && kv->block[block].refs > 0 && kv->block[block].hash == 0);
	if (kv_find(kv, hash) != KV_NONE)
		return;
	kv->block[block].hash = hash;
	kv->block[block].chain = *bucket;
	*bucket = block;
	kv->findable++;
}

void kv_forget(struct kv *kv)
{
	for (uint32_t i = 0; i < kv->nr; i++)
		if (kv->block[i].refs == 0 && kv->block[i].hash)
			unname(kv, i);
}

void kv_copy(struct kv *to, const struct kv *from)
{
	struct kv_block *block = to->block;
	uint32_t *bucket = to->bucket;

	assert(to->nr == from->nr);
	memcpy(block, from->block, ((size_t)from->nr + 1) * sizeof(*block));
	memcpy(bucket, from->bucket, ((size_t)from->bucket_mask + 1) * sizeof(*bucket));
	*to = *from;
	to->block = block;
	to->bucket = bucket;
}

void kv_check(const struct kv *kv)
{
	uint32_t listed = 0, named = 0, found = 0;

	for (uint32_t i = kv->block[kv->nr].next; i != kv->nr; i = kv->block[i].next) {
		assert(kv->block[i].refs == 0);
		assert(kv->block[kv->block[i].next].prev == i);
		listed++;
	}
	for (uint32_t i = 0; i < kv->nr; i++) {
		listed += kv->block[i].refs > 0;
		named += kv->block[i].hash != 0;
	}
	for (uint32_t b = 0; b <= kv->bucket_mask; b++) {
		for (uint32_t i = kv->bucket[b]; i != KV_NONE; i = kv->block[i].chain) {
			assert((kv->block[i].hash & kv->bucket_mask) == b);
			found++;
		}
	}
	assert(listed == kv->nr && named == kv->findable && found == kv->findable);
}
