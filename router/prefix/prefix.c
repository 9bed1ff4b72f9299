/* The prefix index: for each engine a ring of insert stamps beside buckets of one-word entries. */
#include "router/prefix/prefix.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "shm/step.h"
#include "shm/words.h"

/*
 * An entry is one word: 32 bits of the block's hash (not those that chose the bucket), the stamp of
 * the insert that last touched it, and its depth in the prompt, which the hash implies and which is
 * therefore 14 bits more of proof.
 *
 * Every insert takes the next number. What is left of an insert when later ones have touched parts
 * of its prompt is a suffix of it, because these touch leading blocks: so {end, count} describes
 * it, and evicting its deepest block is end - 1, count - 1 without looking for the entry. An entry
 * is alive if its stamp is in the window tail..head and its depth is below that stamp's end. Least
 * recently used, deepest first, is hence exact and presence along a chain is monotone, except where
 * a bucket was full.
 */
enum {
	WAYS = 8,  /* one 64-byte line: one miss a look-up */
	SLACK = 4, /* entries' room over the most blocks: a full bucket is then a 1 : 4,000 event */
	DEPTH_BITS = 14,
	STAMP_BITS = 18,
	STAMP_MASK = (1 << STAMP_BITS) - 1,
	DEPTH_MASK = (1 << DEPTH_BITS) - 1,
	RING_MAX = 1 << 16,
	AHEAD = 8, /* look-ups in flight */
	HOLES_MAX = 8,
	HOLE_PROBES = 2,
	IN_FLIGHT = 32,           /* lines a round of look-ups asks for */
	PROBES_MIN = HOLE_PROBES, /* of one engine in a round, and the least to end with */
	PROBES_MAX = 16,
	LEAP = 16, /* 0, 16, 256, 4096 */
};
static_assert(LIMIT_CONTENT_BLOCKS <= 1 << DEPTH_BITS, "a depth fits its bits");
static_assert(WAYS * 8 == 64, "a bucket is one line");
/* Dead entries are swept one bucket an insert; all must be gone before their stamp comes round. */
static_assert((int)PREFIX_BLOCKS_MAX * SLACK / WAYS < (1 << STAMP_BITS) - RING_MAX,
	      "a sweep ends before stamps repeat");

#define MATCH_MASK (0xffffffff00000000ull | DEPTH_MASK)
#define MAGIC      0x31786966657250ull /* "Prefix1" */
#define GET(a)     atomic_load_explicit(&(a), memory_order_acquire)
#define PUT(a, v)                                                       \
	do {                                                            \
		atomic_store_explicit(&(a), (v), memory_order_release); \
		STEP();                                                 \
	} while (0)
#define COUNT(a, by) PUT(a, GET(a) + (by))

struct prefix_section {
	_Alignas(PREFIX_ALIGN) _Atomic uint64_t magic; /* written last, cleared first */
	uint64_t engines, blocks;
};
static_assert(sizeof(struct prefix_section) == PREFIX_ALIGN, "the first engine is aligned");

struct engine_set {
	_Alignas(PREFIX_ALIGN) _Atomic uint64_t epoch;
	_Atomic uint64_t capacity, live;
	_Atomic uint64_t head, tail; /* the last stamp given; the oldest that is alive */
	_Atomic uint64_t sweep;      /* the bucket to clear of dead entries next */
	_Atomic uint64_t inserts, inserted, evicted, truncated, resets, displaced;
};
static_assert(sizeof(struct engine_set) == PREFIX_ALIGN, "ring and buckets are aligned");

/* What is left of one insert: depths [end - count, end). */
static uint32_t rest_of(uint32_t end, uint32_t count)
{
	return end << 16 | count;
}

static uint32_t rest_end(uint32_t rest)
{
	return rest >> 16;
}

static uint32_t rest_count(uint32_t rest)
{
	return rest & 0xffff;
}

/* One engine's set as addresses. */
struct set {
	struct engine_set *head;
	_Atomic uint32_t *ring; /* {end, count} by stamp */
	_Atomic uint64_t *words;
	uint32_t stamps, buckets; /* powers of two */
};

static uint32_t stamps_of(uint32_t blocks)
{
	return blocks < RING_MAX ? blocks : RING_MAX;
}

static size_t set_size(uint32_t blocks)
{
	return sizeof(struct engine_set) + stamps_of(blocks) * sizeof(uint32_t) +
	       (size_t)blocks * SLACK * sizeof(uint64_t);
}

static struct set set_of(const struct prefix_index *index, uint32_t engine)
{
	uint8_t *at = (uint8_t *)(index->section + 1) + engine * set_size(index->blocks);
	struct set set = { .head = (struct engine_set *)at };

	assert(engine < index->engines);
	set.stamps = stamps_of(index->blocks);
	set.buckets = index->blocks * SLACK / WAYS;
	set.ring = (_Atomic uint32_t *)(at + sizeof(struct engine_set));
	set.words = (_Atomic uint64_t *)(at + sizeof(struct engine_set) + set.stamps * 4ul);
	return set;
}

static uint32_t round_up(uint32_t blocks)
{
	uint32_t size = PREFIX_BLOCKS_MIN;

	while (size < blocks)
		size *= 2;
	return size;
}

static int sizes_valid(uint64_t engines, uint64_t blocks)
{
	return engines >= 1 && engines <= PREFIX_ENGINES_MAX && blocks <= PREFIX_BLOCKS_MAX;
}

size_t prefix_size(uint32_t engines, uint32_t blocks)
{
	assert(sizes_valid(engines, blocks));
	return sizeof(struct prefix_section) + engines * set_size(round_up(blocks));
}

/* ------- entries */

static uint64_t word_key(uint64_t hash, uint32_t depth)
{
	uint64_t tag = hash >> 32 ? hash >> 32 : 1; /* a word of zero is an empty way */

	return tag << 32 | depth;
}

static _Atomic uint64_t *bucket_of(const struct set *set, uint64_t hash)
{
	return set->words + (hash & (set->buckets - 1)) * WAYS;
}

static uint32_t word_stamp(uint64_t word)
{
	return (uint32_t)(word >> DEPTH_BITS) & STAMP_MASK;
}

static _Atomic uint32_t *rest_at(const struct set *set, uint64_t stamp)
{
	return &set->ring[stamp & (set->stamps - 1)];
}

/* The full number of a living entry's stamp, 0 if the entry is dead or the way empty. */
static uint64_t word_alive(const struct set *set, uint64_t word)
{
	uint64_t head = GET(set->head->head), tail = GET(set->head->tail);
	uint64_t age = (head - word_stamp(word)) & STAMP_MASK;

	if (word == 0 || age >= set->stamps || head - age < tail || age >= head)
		return 0;
	if ((word & DEPTH_MASK) >= rest_end(GET(*rest_at(set, head - age))))
		return 0;
	return head - age;
}

/* 0: no way of the bucket has this tag, as usual; else one may have. */
static inline int tag_may_be(const _Atomic uint64_t *bucket, uint64_t key)
{
#ifdef WORDS_ONLY
	return 1;
#else
	typedef uint32_t half4 __attribute__((vector_size(16), may_alias));
	const volatile half4 *two =
		(const volatile half4 *)bucket; /* ways: tag in the upper half */
	const uint32_t tag = (uint32_t)(key >> 32);
	const half4 tags = { tag, tag, tag, tag };
	half4 a = two[0], b = two[1], c = two[2], d = two[3];
	half4 equal = (half4)(__builtin_shufflevector(a, b, 1, 3, 5, 7) == tags) |
		      (half4)(__builtin_shufflevector(c, d, 1, 3, 5, 7) == tags);
	typedef uint64_t whole2 __attribute__((vector_size(16)));
	whole2 any = (whole2)equal;

	return (any[0] | any[1]) != 0;
#endif
}

/* The block's entry, dead or alive; 0 if there is none. */
static uint64_t word_of(const struct set *set, uint64_t hash, uint32_t depth)
{
	const _Atomic uint64_t *way = bucket_of(set, hash);
	uint64_t key = word_key(hash, depth), found = 0;

	if (!tag_may_be(way, key))
		return 0;
	for (int i = 0; i < WAYS; i++) {
		uint64_t word = GET(way[i]);

		found = (word & MATCH_MASK) == key ? word : found;
	}
	return found;
}

/* ------- attaching */

static int checked(void *mem, size_t size, uint32_t engines, uint32_t blocks)
{
	if ((uintptr_t)mem % PREFIX_ALIGN || !sizes_valid(engines, blocks))
		return -EINVAL;
	return size < prefix_size(engines, blocks) ? -EINVAL : 0;
}

int prefix_clear(struct prefix_index *ret_index, void *mem, size_t size, uint32_t engines,
		 uint32_t blocks)
{
	struct prefix_section *section = mem;
	int err = checked(mem, size, engines, blocks);

	if (err)
		return err;
	PUT(section->magic, 0);
	memset((uint8_t *)mem + sizeof(uint64_t), 0,
	       prefix_size(engines, blocks) - sizeof(uint64_t));
	section->engines = engines;
	section->blocks = round_up(blocks);
	*ret_index = (struct prefix_index){ section, engines, round_up(blocks) };
	for (uint32_t i = 0; i < engines; i++) {
		struct set set = set_of(ret_index, i);

		PUT(set.head->tail, 1);
		prefix_set_capacity(ret_index, i, PREFIX_BLOCKS_UNKNOWN);
	}
	PUT(section->magic, MAGIC);
	return 0;
}

static void head_repair(const struct set *set, uint32_t blocks)
{
	struct engine_set *h = set->head;
	uint64_t head = GET(h->head), tail = GET(h->tail);

	if (tail == 0 || tail > head + 1 || head + 1 - tail > set->stamps)
		PUT(h->tail, head + 1);
	if (GET(h->capacity) == 0 || GET(h->capacity) > blocks)
		PUT(h->capacity, blocks);
}

/*
 * Takes {end, count} of every insert anew from the entries: a writer killed inside one has left a
 * count that lags and an end that no entry reaches. Killed itself, this costs hits.
 */
static void set_recount(const struct set *set, uint32_t blocks)
{
	uint64_t words = (uint64_t)set->buckets * WAYS, live = 0;

	head_repair(set, blocks);
	for (uint64_t i = 0; i < words; i++)
		if (GET(set->words[i]) && !word_alive(set, GET(set->words[i])))
			PUT(set->words[i], 0);
	for (uint32_t i = 0; i < set->stamps; i++)
		PUT(set->ring[i], 0);
	for (uint64_t i = 0; i < words; i++) {
		uint64_t word = GET(set->words[i]), depth = word & DEPTH_MASK;
		_Atomic uint32_t *rest = rest_at(set, word_stamp(word));
		uint32_t end = rest_end(GET(*rest)), count = rest_count(GET(*rest));

		if (word == 0)
			continue;
		PUT(*rest, rest_of(depth < end ? end : (uint32_t)depth + 1,
				   count < LIMIT_CONTENT_BLOCKS ? count + 1 : count));
		live++;
	}
	PUT(set->head->live, live);
}

static int opened(struct prefix_index *ret_index, void *mem, size_t size)
{
	struct prefix_section *section = mem;

	if ((uintptr_t)mem % PREFIX_ALIGN || size < sizeof *section)
		return -EINVAL;
	if (GET(section->magic) != MAGIC || !sizes_valid(section->engines, section->blocks))
		return -EPROTO;
	if (section->blocks != round_up((uint32_t)section->blocks) ||
	    size < prefix_size((uint32_t)section->engines, (uint32_t)section->blocks))
		return -EPROTO;
	*ret_index = (struct prefix_index){ section, (uint32_t)section->engines,
					    (uint32_t)section->blocks };
	return 0;
}

int prefix_attach(struct prefix_index *ret_index, void *mem, size_t size, uint32_t engines,
		  uint32_t blocks)
{
	struct prefix_section *section = mem;
	struct prefix_index index;
	int err = checked(mem, size, engines, blocks);

	if (err)
		return err;
	if (GET(section->magic) == 0) /* new, or its maker died while clearing it */
		return prefix_clear(ret_index, mem, size, engines, blocks);
	err = opened(&index, mem, size);
	if (err)
		return err;
	if (index.engines != engines || index.blocks != round_up(blocks))
		return -EPROTO;
	for (uint32_t i = 0; i < engines; i++) {
		struct set set = set_of(&index, i);

		set_recount(&set, index.blocks);
	}
	*ret_index = index;
	return 0;
}

int prefix_view(struct prefix_index *ret_index, const void *mem, size_t size)
{
	return opened(ret_index, (void *)(uintptr_t)mem, size);
}

/* ------- capacity and epoch */

uint32_t prefix_blocks_of(uint64_t kv_tokens, double bytes_per_token)
{
	double bytes = bytes_per_token > 0 ? bytes_per_token : 5;
	double blocks;

	if (kv_tokens == 0)
		return PREFIX_BLOCKS_UNKNOWN;
	bytes = bytes < 1 ? 1 : bytes > 16 ? 16 : bytes;
	blocks = (double)kv_tokens * bytes / LIMIT_CONTENT_BLOCK_BYTES * 1.2 + 1;
	return blocks < PREFIX_BLOCKS_MAX ? (uint32_t)blocks : PREFIX_BLOCKS_MAX;
}

/* Forgets the deepest blocks of the oldest inserts until the capacity holds. */
static void evict(const struct set *set)
{
	struct engine_set *h = set->head;
	uint64_t live = GET(h->live), capacity = GET(h->capacity), before = live;

	while (live > capacity && GET(h->tail) <= GET(h->head)) {
		_Atomic uint32_t *rest = rest_at(set, GET(h->tail));
		uint32_t end = rest_end(GET(*rest)), count = rest_count(GET(*rest));
		uint32_t some = live - capacity < count ? (uint32_t)(live - capacity) : count;

		if (some < count && some < end) {
			PUT(*rest, rest_of(end - some, count - some));
		} else {
			COUNT(h->tail, 1);
			some = count;
		}
		live -= some < live ? some : live;
	}
	if (GET(h->tail) > GET(h->head))
		live = 0;
	PUT(h->live, live);
	COUNT(h->evicted, before - live);
}

void prefix_set_capacity(struct prefix_index *index, uint32_t engine, uint32_t blocks)
{
	struct set set = set_of(index, engine);

	blocks = blocks < index->blocks ? blocks : index->blocks;
	PUT(set.head->capacity, blocks ? blocks : 1);
}

void prefix_reset(struct prefix_index *index, uint32_t engine)
{
	struct set set = set_of(index, engine);

	PUT(set.head->tail, GET(set.head->head) + 1);
	PUT(set.head->live, 0);
	COUNT(set.head->resets, 1);
}

int prefix_set_epoch(struct prefix_index *index, uint32_t engine, uint64_t epoch)
{
	struct set set = set_of(index, engine);
	uint64_t known = GET(set.head->epoch);

	if (epoch == 0 || epoch == known)
		return 0;
	if (known != 0)
		prefix_reset(index, engine);
	PUT(set.head->epoch, epoch); /* after the reset: killed between them, it is done again */
	return known != 0;
}

/* ------- matching */

/*
 * All blocks above `first` are present, that at `absent` is not (or is the end). A round looks at
 * some depths between them at once, as many as keep IN_FLIGHT lines under way for all engines
 * together: near the top first, for most prompts are new to most engines, then at even distances.
 * The deepest one that is present moves `first`, the next one moves `absent`. Where what is left
 * fits in one round it is looked at whole, together with what lies below a boundary there: a block
 * that is present below proves that a full bucket has cost one in mid-chain.
 *
 * Where the end of the last prompt is known the first round looks at it alone: at the block above
 * it and, as in the last round of a search, at what follows.
 */
struct search {
	uint32_t first, absent;
	uint32_t holes, probes;
	uint32_t known; /* PREFIX_NOT_KNOWN once it has been looked at */
	int leaping, last, done;
	uint32_t depth[PROBES_MAX]; /* ascending */
	uint64_t word[PROBES_MAX];
};

static void search_begin(struct search *s, uint32_t first, uint32_t n, uint32_t holes)
{
	s->first = first;
	s->absent = n;
	s->holes = holes;
	s->known = PREFIX_NOT_KNOWN;
	s->leaping = holes == 0;
	s->done = 0;
}

static void search_begin_known(struct search *s, uint32_t n, const uint16_t *known, uint32_t engine)
{
	search_begin(s, 0, n, 0);
	if (known && known[engine] != PREFIX_NOT_KNOWN)
		s->known = known[engine] < n ? known[engine] : n;
}

static void search_plan_known(struct search *s, uint32_t n)
{
	uint32_t at = s->known ? s->known - 1 : 0;

	s->probes = 0;
	for (; at < n && at <= s->known + HOLE_PROBES; at++)
		s->depth[s->probes++] = at;
}

/* `present` probes lead to the deepest that is alive. */
static void search_judge_known(struct search *s, const struct set *set, uint32_t n,
			       uint32_t present)
{
	uint32_t known = s->known, above = known > 0;

	s->known = PREFIX_NOT_KNOWN;
	if (present < above) { /* not even the block above */
		s->absent = known - 1;
		s->done = s->absent == 0;
	} else if (present == above) {
		s->first = known;
		s->done = 1;
	} else { /* more than it was */
		uint32_t hole = 0;

		for (uint32_t i = above; i < present; i++)
			hole |= !word_alive(set, s->word[i]);
		search_begin(s, s->depth[present - 1] + 1, n, hole);
		s->done = s->first == n;
	}
}

/* The depths of this round, `share` at most. */
static void search_plan(struct search *s, uint32_t n, uint32_t share)
{
	uint32_t wide = s->absent - s->first, at = s->first, leap = 0;

	if (s->known != PREFIX_NOT_KNOWN) {
		search_plan_known(s, n);
		return;
	}
	s->probes = 0;
	s->last = wide + HOLE_PROBES <= share;
	if (s->last) {
		for (; at < s->absent; at++)
			s->depth[s->probes++] = at;
		for (uint32_t i = 1; i <= HOLE_PROBES && at + i < n; i++)
			s->depth[s->probes++] = at + i;
		return;
	}
	if (share > wide)
		share = wide;
	for (uint32_t i = 0; i < share; i++) {
		uint32_t even = wide * (i + 1) / (share + 1);

		at = s->first + (s->leaping && leap < even ? leap : even);
		leap = leap == 0 ? LEAP : leap < even ? leap * LEAP : leap;
		if (s->probes == 0 || at > s->depth[s->probes - 1])
			s->depth[s->probes++] = at;
	}
}

static void search_ask(const struct search *s, const struct set *set, const uint64_t *chain)
{
	for (uint32_t i = 0; i < s->probes; i++)
		__builtin_prefetch(bucket_of(set, chain[s->depth[i]]));
}

static void search_look(struct search *s, const struct set *set, const uint64_t *chain)
{
	for (uint32_t i = 0; i < s->probes; i++) {
		s->word[i] = word_of(set, chain[s->depth[i]], s->depth[i]);
		__builtin_prefetch(rest_at(set, word_stamp(s->word[i])));
	}
}

static void search_judge(struct search *s, const struct set *set, uint32_t n)
{
	uint32_t present = s->probes; /* leading ones, up to the deepest that is present */

	while (present > 0 && !word_alive(set, s->word[present - 1]))
		present--;
	if (s->known != PREFIX_NOT_KNOWN) {
		search_judge_known(s, set, n, present);
		return;
	}
	s->leaping = 0;
	if (present > 0 && s->depth[present - 1] > s->absent) {
		if (s->holes < HOLES_MAX)
			search_begin(s, s->depth[present - 1] + 1, n, s->holes + 1);
		else
			s->done = 1;
		return;
	}
	if (present < s->probes && s->depth[present] < s->absent)
		s->absent = s->depth[present];
	if (present > 0)
		s->first = s->depth[present - 1] + 1;
	s->done = s->last;
}

static uint32_t bounded(const struct prefix_index *index, uint32_t n)
{
	assert(index->section != NULL);
	return n < LIMIT_CONTENT_BLOCKS ? n : LIMIT_CONTENT_BLOCKS;
}

uint32_t prefix_match(const struct prefix_index *index, uint32_t engine, const uint64_t *chain,
		      uint32_t n)
{
	struct set set = set_of(index, engine);
	struct search s;

	n = bounded(index, n);
	search_begin(&s, 0, n, 0);
	while (!s.done) {
		search_plan(&s, n, PROBES_MAX);
		search_ask(&s, &set, chain);
		search_look(&s, &set, chain);
		search_judge(&s, &set, n);
	}
	return s.first;
}

/* Of one engine in a round, with so many still being searched. */
static uint32_t share_of(uint32_t searching)
{
	uint32_t share = IN_FLIGHT / searching;

	return share > PROBES_MAX ? PROBES_MAX : share < PROBES_MIN ? PROBES_MIN : share;
}

void prefix_prefetch(const struct prefix_index *index, uint32_t engines, const uint64_t *chain,
		     uint32_t n, const uint16_t *known)
{
	struct search s;

	assert(engines <= index->engines);
	n = bounded(index, n);
	if (engines == 0)
		return;
	for (uint32_t i = 0; i < engines; i++) {
		struct set set = set_of(index, i);

		__builtin_prefetch(set.head);
		search_begin_known(&s, n, known, i);
		search_plan(&s, n, share_of(engines));
		search_ask(&s, &set, chain);
	}
}

/*
 * A step is three rounds over all engines, so that their cache misses overlap: ask for the buckets,
 * look into them and ask for the stamps, judge.
 */
void prefix_match_all(const struct prefix_index *index, uint32_t engines, const uint64_t *chain,
		      uint32_t n, const uint16_t *known, uint32_t *ret_blocks)
{
	struct set sets[PREFIX_ENGINES_MAX];
	struct search s[PREFIX_ENGINES_MAX];
	uint8_t at[PREFIX_ENGINES_MAX]; /* engines still being searched */
	uint32_t searching = engines, left, share;

	assert(engines <= index->engines);
	n = bounded(index, n);
	for (uint32_t i = 0; i < engines; i++) {
		sets[i] = set_of(index, i);
		__builtin_prefetch(sets[i].head);
		search_begin_known(&s[i], n, known, i);
		at[i] = (uint8_t)i;
	}
	for (; searching; searching = left) {
		share = share_of(searching);
		left = 0;
		for (uint32_t i = 0; i < searching; i++) {
			search_plan(&s[at[i]], n, share);
			search_ask(&s[at[i]], &sets[at[i]], chain);
		}
		for (uint32_t i = 0; i < searching; i++)
			search_look(&s[at[i]], &sets[at[i]], chain);
		for (uint32_t i = 0; i < searching; i++) {
			search_judge(&s[at[i]], &sets[at[i]], n);
			if (s[at[i]].done)
				ret_blocks[at[i]] = s[at[i]].first;
			else
				at[left++] = at[i];
		}
	}
}

/* ------- changing */

static void rest_drop(const struct set *set, uint64_t stamp)
{
	_Atomic uint32_t *rest = rest_at(set, stamp);

	if (rest_count(GET(*rest)))
		PUT(*rest, GET(*rest) - 1);
}

/* The way that holds the block, dead or alive; NULL if none does. */
static _Atomic uint64_t *way_of(const struct set *set, uint64_t hash, uint64_t key)
{
	_Atomic uint64_t *way = bucket_of(set, hash), *found = NULL;

	for (int i = 0; i < WAYS; i++)
		found = (GET(way[i]) & MATCH_MASK) == key ? &way[i] : found;
	return found;
}

/* The way that a new block gets: an empty or dead one, else that whose turn to go comes first. */
static _Atomic uint64_t *way_to_take(const struct set *set, uint64_t hash)
{
	_Atomic uint64_t *way = bucket_of(set, hash), *choice = NULL;
	uint64_t choice_stamp = UINT64_MAX, choice_depth = 0;

	for (int i = 0; i < WAYS && choice_stamp; i++) {
		uint64_t word = GET(way[i]), depth = word & DEPTH_MASK;
		uint64_t stamp = word_alive(set, word);

		if (stamp < choice_stamp || (stamp == choice_stamp && depth > choice_depth)) {
			choice = &way[i];
			choice_stamp = stamp;
			choice_depth = depth;
		}
	}
	return choice;
}

/* Stores one block under a stamp. Returns by how many that raises the number of living entries. */
static uint64_t store(const struct set *set, uint64_t hash, uint32_t depth, uint64_t stamp)
{
	uint64_t key = word_key(hash, depth), old;
	_Atomic uint64_t *way = way_of(set, hash, key);
	int known = way != NULL;

	if (!known)
		way = way_to_take(set, hash);
	old = word_alive(set, GET(*way));
	PUT(*way, key | (stamp & STAMP_MASK) << DEPTH_BITS);
	if (old && old != stamp)
		rest_drop(set, old);
	if (old != stamp)
		COUNT(*rest_at(set, stamp), 1);
	if (old && !known)
		COUNT(set->head->displaced, 1);
	if (!old || !known)
		COUNT(set->head->inserted, 1);
	return old == 0;
}

static void sweep(const struct set *set)
{
	uint64_t bucket = GET(set->head->sweep) & (set->buckets - 1);

	for (uint64_t i = bucket * WAYS; i < (bucket + 1) * WAYS; i++)
		if (GET(set->words[i]) && !word_alive(set, GET(set->words[i])))
			PUT(set->words[i], 0);
	PUT(set->head->sweep, bucket + 1);
}

/* Opens the next insert's stamp; a full ring forgets what is left of its oldest. */
static uint64_t stamp_next(const struct set *set, uint32_t end)
{
	struct engine_set *h = set->head;
	uint64_t stamp = GET(h->head) + 1;

	if (stamp - GET(h->tail) >= set->stamps) {
		uint64_t lost = rest_count(GET(*rest_at(set, GET(h->tail))));

		COUNT(h->tail, 1);
		PUT(h->live, GET(h->live) > lost ? GET(h->live) - lost : 0);
		COUNT(h->evicted, lost);
	}
	PUT(*rest_at(set, stamp), rest_of(end, 0));
	PUT(h->head, stamp); /* now its entries are believed */
	return stamp;
}

void prefix_insert(struct prefix_index *index, uint32_t engine, const uint64_t *chain, uint32_t n)
{
	struct set set = set_of(index, engine);
	uint64_t stamp, more = 0;

	n = bounded(index, n);
	if (n > GET(set.head->capacity))
		n = (uint32_t)GET(set.head->capacity);
	if (n == 0)
		return;
	stamp = stamp_next(&set, n);
	for (uint32_t d = 0; d < n; d++) {
		if (d + AHEAD < n)
			__builtin_prefetch(bucket_of(&set, chain[d + AHEAD]), 1);
		more += store(&set, chain[d], d, stamp);
	}
	COUNT(set.head->live, more);
	COUNT(set.head->inserts, 1);
	evict(&set);
	sweep(&set);
}

/* Cuts what is left of an insert to depths below `from`. Returns how many blocks went. */
static uint32_t cut(const struct set *set, uint64_t stamp, uint32_t from)
{
	_Atomic uint32_t *rest = rest_at(set, stamp);
	uint32_t end = rest_end(GET(*rest)), count = rest_count(GET(*rest));
	uint32_t begin = end > count ? end - count : 0;
	uint32_t kept = from > begin ? from - begin : 0;

	assert(from < end);
	kept = kept < count ? kept : count;
	PUT(*rest, rest_of(from, kept));
	return count - kept;
}

void prefix_truncate(struct prefix_index *index, uint32_t engine, const uint64_t *chain, uint32_t n,
		     uint32_t from)
{
	struct set set = set_of(index, engine);
	uint64_t gone = 0, live;

	n = bounded(index, n);
	for (uint32_t d = from; d < n; d++) {
		uint64_t key = word_key(chain[d], d);
		_Atomic uint64_t *way = bucket_of(&set, chain[d]);

		for (int i = 0; i < WAYS; i++) {
			uint64_t word = GET(way[i]), stamp = word_alive(&set, word);

			if (stamp && (word & MATCH_MASK) == key)
				gone += cut(&set, stamp, from);
		}
	}
	live = GET(set.head->live);
	PUT(set.head->live, live > gone ? live - gone : 0);
	COUNT(set.head->truncated, gone);
}

int prefix_stats(const struct prefix_index *index, uint32_t engine, struct prefix_stats *ret_stats)
{
	struct engine_set *h;

	if (engine >= index->engines)
		return -EINVAL;
	h = set_of(index, engine).head;
	*ret_stats = (struct prefix_stats){
		.epoch = GET(h->epoch),
		.capacity = GET(h->capacity),
		.live = GET(h->live),
		.inserts = GET(h->inserts),
		.inserted = GET(h->inserted),
		.evicted = GET(h->evicted),
		.truncated = GET(h->truncated),
		.resets = GET(h->resets),
		.displaced = GET(h->displaced),
	};
	return 0;
}
