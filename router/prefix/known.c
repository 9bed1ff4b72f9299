/* Remembers how deep each engine held a session's last prompt: where the next look begins. */
#include "router/prefix/prefix.h"

#include <assert.h>

struct place {
	uint64_t key; /* 0 = empty */
	uint16_t depth[];
};
static_assert((int)LIMIT_CONTENT_BLOCKS < (int)PREFIX_NOT_KNOWN, "a depth fits");

static uint32_t stride_of(uint32_t engines)
{
	size_t size = sizeof(struct place) + engines * sizeof(uint16_t);

	return (uint32_t)((size + PREFIX_KNOWN_ALIGN - 1) / PREFIX_KNOWN_ALIGN *
			  PREFIX_KNOWN_ALIGN);
}

size_t prefix_known_size(uint32_t engines)
{
	assert(engines <= PREFIX_ENGINES_MAX);
	return (size_t)PREFIX_KNOWN * stride_of(engines);
}

void prefix_known_init(struct prefix_known *ret_known, void *mem, uint32_t engines)
{
	assert((uintptr_t)mem % PREFIX_KNOWN_ALIGN == 0 && engines <= PREFIX_ENGINES_MAX);
	*ret_known = (struct prefix_known){ mem, engines, stride_of(engines) };
}

static struct place *place_of(const struct prefix_known *known, uint64_t key)
{
	uint64_t mixed = (key ^ key >> 32) * 0x9e3779b97f4a7c15ull;

	assert(key != 0);
	return (struct place *)(known->mem + (mixed >> 32) % PREFIX_KNOWN * known->stride);
}

void prefix_known_prefetch(const struct prefix_known *known, uint64_t key)
{
	__builtin_prefetch(place_of(known, key));
}

const uint16_t *prefix_known_find(const struct prefix_known *known, uint64_t key)
{
	const struct place *place = place_of(known, key);

	return place->key == key ? place->depth : NULL;
}

void prefix_known_note(struct prefix_known *known, uint64_t key, const uint32_t *blocks)
{
	struct place *place = place_of(known, key);

	place->key = key;
	for (uint32_t i = 0; i < known->engines; i++)
		place->depth[i] = (uint16_t)blocks[i];
}

void prefix_known_landed(struct prefix_known *known, uint64_t key, uint32_t engine, uint32_t blocks)
{
	struct place *place = place_of(known, key);

	assert(engine < known->engines);
	if (place->key == key)
		place->depth[engine] =
			blocks < LIMIT_CONTENT_BLOCKS ? (uint16_t)blocks : LIMIT_CONTENT_BLOCKS;
}
