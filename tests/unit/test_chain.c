/* Queues of bytes in blocks: order kept over any cut, all or nothing at the bound, nothing leaks.
 */
#include <errno.h>
#include <string.h>

#include "router/net/chain.h"
#include "tests/lib/unit.h"

enum { BLOCK = 128, LIMIT = 40, IOV = 64 };

static struct slab slab;

static int set_up(void **state)
{
	slab_init(&slab, "test", BLOCK, LIMIT);
	return 0;
}

/* Every claim gives back what it took. */
static int tear_down(void **state)
{
	if (slab.used)
		return -1;
	slab_fini(&slab);
	return 0;
}

static uint8_t byte_at(size_t i)
{
	return (uint8_t)(i * 7 + i / 256);
}

/* Bytes first..first+len of one long sequence. */
static int append(struct chain *chain, size_t first, size_t len)
{
	uint8_t data[LIMIT * BLOCK + 1];

	for (size_t i = 0; i < len; i++)
		data[i] = byte_at(first + i);
	return chain_append(chain, &slab, data, len);
}

static void holds(const struct chain *chain, size_t first, size_t len)
{
	struct iovec iov[IOV];
	size_t bytes, at = first;
	int n = chain_iov(chain, iov, IOV, &bytes);

	assert_int_equal(bytes, len);
	assert_int_equal(chain->bytes, len);
	for (int i = 0; i < n; i++) {
		assert_true(iov[i].iov_len > 0);
		for (size_t k = 0; k < iov[i].iov_len; k++)
			assert_int_equal(((uint8_t *)iov[i].iov_base)[k], byte_at(at++));
	}
	assert_int_equal(at, first + len);
}

static void bytes_come_out_in_order_over_blocks(void **state)
{
	size_t cap = block_capacity(&slab), at = 0;
	struct chain chain = { 0 };

	for (size_t len = 0; at + len < 20 * cap; len += 13) {
		assert_int_equal(append(&chain, at, len), 0);
		at += len;
	}
	holds(&chain, 0, at);
	assert_int_equal(slab.used, (at + cap - 1) / cap);
	chain_clear(&chain, &slab);
	assert_null(chain.tail);
}

static void a_drop_gives_back_what_it_empties(void **state)
{
	size_t cap = block_capacity(&slab);
	struct chain chain = { 0 };

	append(&chain, 0, 3 * cap);
	chain_drop(&chain, &slab, 0);
	holds(&chain, 0, 3 * cap);
	chain_drop(&chain, &slab, cap - 1);
	assert_int_equal(slab.used, 3);
	chain_drop(&chain, &slab, 1);
	assert_int_equal(slab.used, 2);
	chain_drop(&chain, &slab, cap + 5);
	assert_int_equal(slab.used, 1);
	holds(&chain, 2 * cap + 5, cap - 5);
	chain_drop(&chain, &slab, cap - 5);
	assert_int_equal(slab.used, 0);
	assert_null(chain.head);
	assert_int_equal(append(&chain, 0, 1), 0);
	chain_clear(&chain, &slab);
}

/* The loop may be sending the tail's first bytes while more are appended to it. */
static void appending_moves_nothing_that_is_there(void **state)
{
	struct chain chain = { 0 };
	struct iovec before[IOV], after[IOV];
	size_t bytes;

	append(&chain, 0, 10);
	chain_iov(&chain, before, IOV, &bytes);
	append(&chain, 10, 400);
	chain_iov(&chain, after, IOV, &bytes);
	assert_ptr_equal(before[0].iov_base, after[0].iov_base);
	chain_drop(&chain, &slab, 10);
	holds(&chain, 10, 400);
	chain_clear(&chain, &slab);
}

static void at_the_bound_all_or_nothing_is_appended(void **state)
{
	size_t cap = block_capacity(&slab), fits = LIMIT * cap;
	struct chain chain = { 0 };

	append(&chain, 0, fits - 10);
	assert_int_equal(append(&chain, fits - 10, 11), -ENOBUFS);
	holds(&chain, 0, fits - 10);
	assert_int_equal(append(&chain, fits - 10, 10), 0);
	assert_int_equal(append(&chain, fits, 1), -ENOBUFS);
	chain_drop(&chain, &slab, cap);
	assert_int_equal(append(&chain, fits, 2 * cap), -ENOBUFS); /* no block is kept for it */
	assert_int_equal(slab.used, LIMIT - 1);
	assert_int_equal(append(&chain, fits, cap), 0);
	holds(&chain, cap, fits);
	chain_clear(&chain, &slab);
}

static void empty_blocks_are_passed_over(void **state)
{
	struct chain chain = { 0 };
	struct iovec iov[IOV];
	size_t bytes;

	chain_push(&chain, block_take(&slab));
	assert_int_equal(chain_iov(&chain, iov, IOV, &bytes), 0);
	append(&chain, 0, 5);
	chain_push(&chain, block_take(&slab));
	holds(&chain, 0, 5);
	chain_drop(&chain, &slab, 3);
	holds(&chain, 3, 2);
	chain_clear(&chain, &slab);
	assert_int_equal(slab.used, 0);
	chain_push(&chain, block_take(&slab));
	chain_clear(&chain, &slab);
}

static void iov_takes_as_much_as_fits(void **state)
{
	size_t cap = block_capacity(&slab), bytes;
	struct chain chain = { 0 };
	struct iovec iov[2];

	append(&chain, 0, 5 * cap);
	assert_int_equal(chain_iov(&chain, iov, 2, &bytes), 2);
	assert_int_equal(bytes, 2 * cap);
	chain_clear(&chain, &slab);
}

static void the_last_block_comes_off_and_goes_on_again(void **state)
{
	size_t cap = block_capacity(&slab);
	struct chain chain = { 0 };
	struct block *last;

	assert_null(chain_pop(&chain));
	append(&chain, 0, 2 * cap + 5);
	last = chain_pop(&chain);
	assert_int_equal(last->end - last->start, 5);
	holds(&chain, 0, 2 * cap);
	chain_push(&chain, last);
	holds(&chain, 0, 2 * cap + 5);
	for (int i = 0; i < 3; i++)
		slab_give(&slab, chain_pop(&chain));
	assert_null(chain.head);
	holds(&chain, 0, 0);
}

static void any_order_of_appends_and_drops_keeps_the_sequence(void **state)
{
	struct chain chain = { 0 };
	size_t first = 0, len = 0;
	unsigned random = 7;

	for (int round = 0; round < 5000; round++) {
		unsigned n = (random = random * 1103515245 + 12345) / 65536 % 700;

		if (random & 1 << 20) {
			if (append(&chain, first + len, n) == 0)
				len += n;
		} else {
			n = n < len ? n : (unsigned)len;
			chain_drop(&chain, &slab, n);
			first += n;
			len -= n;
		}
		if (round % 16 == 0)
			holds(&chain, first, len);
	}
	chain_clear(&chain, &slab);
}

int main(void)
{
#define WITH_POOL(claim) cmocka_unit_test_setup_teardown(claim, set_up, tear_down)
	const struct CMUnitTest claims[] = {
		WITH_POOL(bytes_come_out_in_order_over_blocks),
		WITH_POOL(a_drop_gives_back_what_it_empties),
		WITH_POOL(appending_moves_nothing_that_is_there),
		WITH_POOL(at_the_bound_all_or_nothing_is_appended),
		WITH_POOL(empty_blocks_are_passed_over),
		WITH_POOL(iov_takes_as_much_as_fits),
		WITH_POOL(the_last_block_comes_off_and_goes_on_again),
		WITH_POOL(any_order_of_appends_and_drops_keeps_the_sequence),
	};

	return cmocka_run_group_tests_name("chain", claims, NULL, NULL);
}
