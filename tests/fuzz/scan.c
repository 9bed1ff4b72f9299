/* Hostile request bodies: whatever they are, cuts change nothing and every bound holds. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "router/chat/scan.h"
#include "tests/fuzz/fuzz.h"

enum { BLOCKS = 256 };

static uint32_t scan_in(struct chat_scan *scan, const uint8_t *data, size_t size, size_t step,
			uint64_t *chain)
{
	static uint64_t blocks[BLOCKS];

	chat_scan_begin(scan, blocks, BLOCKS, 3);
	for (size_t at = 0; at < size;) {
		size_t n = step < size - at ? step : size - at;
		uint8_t *slice = malloc(n);

		memcpy(slice, data + at, n);
		chat_scan_step(scan, slice, n);
		free(slice);
		at += n;
	}
	return chat_scan_end(scan, true, chain, BLOCKS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct chat_scan whole, cut;
	static uint64_t a[BLOCKS], b[BLOCKS];
	size_t step = size ? 1 + data[size / 2] % 9 : 1;
	uint32_t n = scan_in(&whole, data, size, size, a);

	assert(scan_in(&cut, data, size, step, b) == n);
	assert(memcmp(a, b, n * sizeof(*a)) == 0);
	assert(memcmp(&whole.req, &cut.req, sizeof(whole.req)) == 0);
	assert(whole.req.model_len <= LIMIT_MODEL_NAME &&
	       whole.req.session_len <= LIMIT_SESSION_ID);
	assert(whole.req.complete != whole.req.unreadable);
	assert(whole.req.turn == whole.req.assistant_messages + 1 && whole.req.n >= 1);
	return 0;
}
