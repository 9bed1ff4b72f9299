/* The KV cache of a modelled engine: blocks with reference counts, found again by hash, LRU reuse.
 */
#ifndef TURNWARD_BENCH_MODEL_KV_H
#define TURNWARD_BENCH_MODEL_KV_H

#include <stdint.h>

#define KV_NONE UINT32_MAX

struct kv_block {
	uint64_t hash; /* of its tokens and all before them; 0 = cannot be found */
	uint32_t refs; /* requests that hold it; 0 = on the reuse list */
	uint32_t next,
		prev;   /* reuse list, oldest first; the entry past the last block is its anchor */
	uint32_t chain; /* next block of the same hash bucket */
};

struct kv {
	struct kv_block *block; /* nr of them and the anchor */
	uint32_t *bucket;
	uint32_t nr, bucket_mask;
	uint32_t idle;     /* blocks nobody holds */
	uint32_t findable; /* blocks with a hash */
	uint64_t evicted;
};

int kv_init(struct kv *kv, uint32_t blocks); /* 0 or -ENOMEM */
void kv_fini(struct kv *kv);

uint32_t kv_find(const struct kv *kv, uint64_t hash); /* KV_NONE when it is not there */
void kv_hold(struct kv *kv, uint32_t block);          /* one more holder */
uint32_t kv_take(struct kv *kv); /* the least recently used idle block, empty; needs one */
void kv_drop(struct kv *kv, uint32_t block); /* the last holder's drop makes it idle and youngest */

/* Makes a held, full block findable; a second block of the same tokens stays nameless. */
void kv_name(struct kv *kv, uint32_t block, uint64_t hash);
void kv_forget(struct kv *kv);                      /* no idle block is findable any more */
void kv_copy(struct kv *to, const struct kv *from); /* of equal size */
void kv_check(const struct kv *kv); /* aborts when list, index and counts disagree */

#endif
