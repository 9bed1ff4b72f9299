/*
 * Which engine holds which prompt prefix: per engine a bounded set of content-block chain hashes.
 *
 * A prompt is a chain of block hashes, each depending on all before it, so a block's presence
 * implies that of every block above it and the length of a hit is found by bisection. Eviction
 * follows what engines do: least recently inserted prompt first, and of that its deepest block
 * first. An entry is one 64-bit word that carries its own tag, depth and stamp: it is there whole
 * or not at all, and a writer killed at any instruction costs hits, never a wrong one. One writer;
 * readers may look in.
 *
 * The caller inserts when the prefill has landed (first token, or the response where nothing is
 * streamed), not at dispatch: what is in flight is in the ledger's books, so that a burst of
 * identical cold prompts is not counted as a burst of hits.
 */
#ifndef TURNWARD_ROUTER_PREFIX_PREFIX_H
#define TURNWARD_ROUTER_PREFIX_PREFIX_H

#include <stddef.h>
#include <stdint.h>

#include "router/limits.h"

enum {
	PREFIX_ALIGN = 128,
	PREFIX_ENGINES_MAX = 64,
	PREFIX_BLOCKS_MIN = 1024,       /* smallest room per engine */
	PREFIX_BLOCKS_MAX = 256 * 1024, /* largest: 128 MiB of content, ~32 M tokens */
	PREFIX_BLOCKS_UNKNOWN = 8192,   /* capacity of an engine whose KV capacity is not known */
	PREFIX_KNOWN = 4096,            /* sessions whose last depths are remembered */
	PREFIX_KNOWN_ALIGN = 64,
	PREFIX_NOT_KNOWN = 0xffff,
};

struct prefix_section;

/* A process's own view of the section. */
struct prefix_index {
	struct prefix_section *section;
	uint32_t engines; /* engines that have room, by stable index 0.. */
	uint32_t blocks;  /* room per engine; a capacity may be set below */
};

struct prefix_stats {
	uint64_t epoch;
	uint64_t capacity, live;    /* blocks */
	uint64_t inserts;           /* prompts */
	uint64_t inserted, evicted; /* blocks, ever */
	uint64_t truncated, resets; /* blocks that an engine disowned; times emptied */
	uint64_t displaced;         /* blocks lost to a full bucket before their turn */
};

/* Bytes for `engines` engines with room for `blocks` blocks each (rounded up to a power of two). */
size_t prefix_size(uint32_t engines, uint32_t blocks);

/*
 * Attaches as the writer. All-zero memory becomes an empty index; a predecessor's is checked and
 * its counts are taken anew from the entries. -EPROTO: an index of another shape (prefix_clear() is
 * the way out); -EINVAL: memory too small or unaligned, or sizes out of bounds.
 */
int prefix_attach(struct prefix_index *ret_index, void *mem, size_t size, uint32_t engines,
		  uint32_t blocks);

/* Attaches for reading (match and stats); the memory may be mapped read-only. */
int prefix_view(struct prefix_index *ret_index, const void *mem, size_t size);

/* Makes the memory an empty index, whatever it held, and attaches as its writer. */
int prefix_clear(struct prefix_index *ret_index, void *mem, size_t size, uint32_t engines,
		 uint32_t blocks);

/*
 * The capacity in blocks that stands for `kv_tokens` of KV cache, bytes_per_token as measured or
 * 0 = not known (then 5, on the high side). An index too large costs nothing, half the cache costs
 * +14 to +131 % p90, so a fifth is added. kv_tokens 0 = unknown.
 */
uint32_t prefix_blocks_of(uint64_t kv_tokens, double bytes_per_token);

/* Bounded by the room; a smaller one evicts as inserts come. A fresh index has
 * PREFIX_BLOCKS_UNKNOWN or its room, whichever is less. */
void prefix_set_capacity(struct prefix_index *index, uint32_t engine, uint32_t blocks);

/*
 * The engine now runs with start id `epoch` (0 = unknown). Another known epoch than before means
 * its cache is gone: the set is emptied and 1 returned. Learning an epoch for the first time
 * empties nothing, nor does losing it. Cheap when nothing changed.
 */
int prefix_set_epoch(struct prefix_index *index, uint32_t engine, uint64_t epoch);

/* Empties one engine's set, at once whatever its size. */
void prefix_reset(struct prefix_index *index, uint32_t engine);

/* Number of leading blocks of chain[0..n) that the engine is believed to hold. */
uint32_t prefix_match(const struct prefix_index *index, uint32_t engine, const uint64_t *chain,
		      uint32_t n);

/*
 * The same for engines 0..engines-1 at once, their memory accesses overlapped. `known`: for each
 * engine the depth at which to look first, as it was for the session's last prompt
 * (PREFIX_NOT_KNOWN for an engine of which that is not known; NULL for none). Where it still is the
 * end one look is enough; it changes no answer.
 */
void prefix_match_all(const struct prefix_index *index, uint32_t engines, const uint64_t *chain,
		      uint32_t n, const uint16_t *known, uint32_t *ret_blocks);

/*
 * Asks for the lines that prefix_match_all() will look at first, while the caller has other memory
 * to wait for. Changes no answer.
 */
void prefix_prefetch(const struct prefix_index *index, uint32_t engines, const uint64_t *chain,
		     uint32_t n, const uint16_t *known);

/* The engine has computed this prompt: all its blocks are there and the most recently used. */
void prefix_insert(struct prefix_index *index, uint32_t engine, const uint64_t *chain, uint32_t n);

/*
 * The engine has shown (fewer cached tokens than expected) that of this prompt it held only the
 * first `from` blocks: the others are forgotten, and what else was inserted below them by the same
 * prompts.
 */
void prefix_truncate(struct prefix_index *index, uint32_t engine, const uint64_t *chain, uint32_t n,
		     uint32_t from);

/*
 * How deep each engine held the last prompt of a session: a small memory of a process's own, that
 * may forget. One place for each of PREFIX_KNOWN keys (never 0), a new one takes an old one's.
 */
struct prefix_known {
	uint8_t *mem;
	uint32_t engines, stride;
};

/* Bytes of it, and what they must be aligned to; they must be zero. */
size_t prefix_known_size(uint32_t engines);
void prefix_known_init(struct prefix_known *ret_known, void *mem, uint32_t engines);

/* Depths for prefix_match_all(), or NULL. The first asks for the line that the second reads. */
void prefix_known_prefetch(const struct prefix_known *known, uint64_t key);
const uint16_t *prefix_known_find(const struct prefix_known *known, uint64_t key);

/* What prefix_match_all() found; and that an engine has inserted the prompt since. */
void prefix_known_note(struct prefix_known *known, uint64_t key, const uint32_t *blocks);
void prefix_known_landed(struct prefix_known *known, uint64_t key, uint32_t engine,
			 uint32_t blocks);

/* -EINVAL if there is no such engine. Any process. */
int prefix_stats(const struct prefix_index *index, uint32_t engine, struct prefix_stats *ret_stats);

#endif
