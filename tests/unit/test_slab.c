/* Pools of blocks: none is handed out twice, bounds hold, memory follows the load down again. */
#include <stdlib.h>
#include <string.h>

#include "router/net/slab.h"
#include "tests/lib/unit.h"

enum { BLOCK = 100 * 1024, MANY = 64 };

static struct slab slab;

/* Every byte of a block says whose it is. */
static void mark(uint8_t *block, unsigned i, size_t size)
{
	memset(block, (int)(i + 1), size);
}

static int is_marked(const uint8_t *block, unsigned i, size_t size)
{
	for (size_t k = 0; k < size; k++)
		if (block[k] != (uint8_t)(i + 1))
			return 0;
	return 1;
}

static void blocks_do_not_overlap(void **state)
{
	uint8_t *block[MANY];

	slab_init(&slab, "test", BLOCK, MANY);
	for (unsigned i = 0; i < MANY; i++) {
		block[i] = slab_take(&slab);
		assert_non_null(block[i]);
		assert_int_equal((uintptr_t)block[i] % 64, 0);
		mark(block[i], i, slab.block_size);
	}
	assert_true(slab.chunks > 1);
	for (unsigned i = 0; i < MANY; i++)
		assert_true(is_marked(block[i], i, slab.block_size));
	for (unsigned i = 0; i < MANY; i++)
		slab_give(&slab, block[i]);
	slab_fini(&slab);
}

static void the_limit_holds_and_what_it_refuses_is_counted(void **state)
{
	void *block[3];

	slab_init(&slab, "test", 64, 3);
	for (int i = 0; i < 3; i++)
		block[i] = slab_take(&slab);
	assert_null(slab_take(&slab));
	assert_null(slab_take(&slab));
	assert_int_equal(slab.refused, 2);
	assert_int_equal(slab.peak, 3);
	slab_give(&slab, block[1]);
	assert_ptr_equal(slab_take(&slab), block[1]);
	for (int i = 0; i < 3; i++)
		slab_give(&slab, block[i]);
	assert_int_equal(slab.used, 0);
	slab_fini(&slab);
}

static void take_and_give(int n)
{
	void *block[MANY];

	for (int i = 0; i < n; i++)
		block[i] = slab_take(&slab);
	for (int i = 0; i < n; i++)
		slab_give(&slab, block[i]);
}

static void memory_goes_back_but_for_one_chunk(void **state)
{
	slab_init(&slab, "test", BLOCK, MANY);
	take_and_give(MANY);
	slab_trim(&slab);
	slab_trim(&slab);
	assert_int_equal(slab.chunks, 1);
	assert_int_equal(slab.spares, 1);
	take_and_give(1);
	assert_int_equal(slab.chunks, 1);
	assert_int_equal(slab.spares, 1);
	slab_fini(&slab);
}

/* A load that comes and goes pays for its memory once. */
static void chunks_in_use_now_and_then_stay(void **state)
{
	uint64_t chunks;

	slab_init(&slab, "test", BLOCK, MANY);
	take_and_give(MANY);
	chunks = slab.chunks;
	assert_true(chunks > 3);
	for (int i = 0; i < 5; i++) {
		slab_trim(&slab);
		take_and_give(MANY);
		assert_int_equal(slab.chunks, chunks);
	}
	slab_trim(&slab); /* since this one fewer are needed */
	take_and_give((int)(2 * slab.per_chunk));
	slab_trim(&slab);
	assert_int_equal(slab.chunks, 3);
	slab_fini(&slab);
	assert_int_equal(slab.chunks, 0);
}

static void the_largest_blocks_fit(void **state)
{
	void *block[4];

	slab_init(&slab, "test", 256 * 1024, 4);
	assert_int_equal(slab.per_chunk, 3);
	for (int i = 0; i < 4; i++) {
		block[i] = slab_take(&slab);
		mark(block[i], (unsigned)i, slab.block_size);
	}
	for (unsigned i = 0; i < 4; i++) {
		assert_true(is_marked(block[i], i, slab.block_size));
		slab_give(&slab, block[i]);
	}
	slab_fini(&slab);
}

/* Any order of taking and giving: counts are right and no block is out twice. */
static void any_order_keeps_every_block_whole(void **state)
{
	uint8_t *block[MANY] = { NULL };
	unsigned out = 0, random = 1;

	slab_init(&slab, "test", BLOCK, MANY - 5);
	for (int round = 0; round < 4000; round++) {
		unsigned i = (random = random * 1103515245 + 12345) / 65536 % MANY;

		if (block[i]) {
			assert_true(is_marked(block[i], i, 64) &&
				    is_marked(block[i] + BLOCK - 64, i, 64));
			slab_give(&slab, block[i]);
			block[i] = NULL;
			out--;
		} else if ((block[i] = slab_take(&slab))) {
			mark(block[i], i, 64);
			mark(block[i] + BLOCK - 64, i, 64);
			out++;
		} else {
			assert_int_equal(out, MANY - 5);
		}
		assert_int_equal(slab.used, out);
		assert_true(slab.chunks <= (MANY - 5 + slab.per_chunk - 1) / slab.per_chunk * 2);
	}
	for (int i = 0; i < MANY; i++)
		if (block[i])
			slab_give(&slab, block[i]);
	slab_fini(&slab);
}

int main(void)
{
	const struct CMUnitTest claims[] = {
		CLAIM(blocks_do_not_overlap),
		CLAIM(the_limit_holds_and_what_it_refuses_is_counted),
		CLAIM(memory_goes_back_but_for_one_chunk),
		CLAIM(chunks_in_use_now_and_then_stay),
		CLAIM(the_largest_blocks_fit),
		CLAIM(any_order_keeps_every_block_whole),
	};

	return cmocka_run_group_tests_name("slab", claims, NULL, NULL);
}
