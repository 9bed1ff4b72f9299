/* Hostile answers: as a stream and as a document, cuts change nothing. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "router/chat/watch.h"
#include "tests/fuzz/fuzz.h"

static void watch_in(struct chat_watch *watch, enum chat_watch_mode mode, const uint8_t *data,
		     size_t size, size_t step)
{
	chat_watch_begin(watch, mode);
	for (size_t at = 0; at < size;) {
		size_t n = step < size - at ? step : size - at;
		uint8_t *slice = malloc(n);

		memcpy(slice, data + at, n);
		chat_watch_step(watch, slice, n);
		free(slice);
		at += n;
	}
	chat_watch_end(watch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct chat_watch whole, cut;

	for (int mode = CHAT_WATCH_SSE; mode <= CHAT_WATCH_JSON; mode++) {
		watch_in(&whole, mode, data, size, size);
		watch_in(&cut, mode, data, size, size ? 1 + data[size / 2] % 9 : 1);
		assert(whole.seen == cut.seen && whole.events == cut.events);
		assert(whole.error_code == cut.error_code && whole.given == cut.given);
		assert(memcmp(whole.count, cut.count, sizeof(whole.count)) == 0);
		assert(strcmp(whole.response_id, cut.response_id) == 0);
		assert(whole.response_id_len <= CHAT_WATCH_ID);
	}
	return 0;
}
