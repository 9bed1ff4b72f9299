/* Hostile bytes in both directions of a followed connection: nothing is read out of bounds, and
 * cuts do not change what the tables find. */
#include <stdlib.h>

#include "tests/fuzz/fuzz.h"
#include "tests/lib/flow_host.h"

static const char request[] = "POST /v1/messages HTTP/1.1\r\nContent-Length: 0\r\n\r\n";

static size_t piece(const uint8_t *data, size_t size, size_t at)
{
	size_t n = 1 + data[at] % 70;

	return n < size - at ? n : size - at;
}

static void follow(struct host_line *line, const uint8_t *data, size_t size, int outwards)
{
	for (size_t at = 0; at < size;) {
		size_t n = piece(data, size, at);
		uint8_t *slice = malloc(n);

		memcpy(slice, data + at, n);
		if (outwards)
			host_out(line, slice, n);
		else if (data[at] & 64) /* again, or ahead of what is missing */
			host_in_at(line, line->in_seq + data[at] % 5 - 2, slice, n, data[at] >> 6);
		else
			host_in(line, slice, n);
		free(slice);
		at += n;
	}
}

static struct scan_events events_in(const uint8_t *data, size_t size, int cut)
{
	struct scan_events scan = { .state = STATE_EVENTS, .raw = size & 1 ? ~0u : 0 };

	for (size_t at = 0; at < size && !(scan.found & FOUND_TOKEN);) {
		size_t n = cut ? piece(data, size, at) : size - at;

		at += scan_events(&scan, data + at, n);
	}
	return scan;
}

static struct scan_head head_in(const uint8_t *data, size_t size, int cut)
{
	struct scan_head scan = { .state = STATE_ANSWER_START };

	for (size_t at = 0; at < size && !(scan.found & FOUND_END);) {
		size_t n = cut ? piece(data, size, at) : size - at;

		at += scan_answer(&scan, data + at, n);
	}
	return scan;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct host_line line;
	struct scan_events whole = events_in(data, size, 0), cut = events_in(data, size, 1);
	struct scan_head head = head_in(data, size, 0), cut_head = head_in(data, size, 1);

	assert(memcmp(&whole, &cut, sizeof(whole)) == 0);
	assert(memcmp(&head, &cut_head, sizeof(head)) == 0);
	host_begin(&line);
	host_out(&line, request, sizeof(request) - 1);
	follow(&line, data, size, 0);
	assert(line.flow.answer <= ANSWER_BODY && host_counts[PROBE_COUNTER_requests] == 1);
	host_begin(&line);
	follow(&line, data, size, 1);
	assert(line.flow.request <= REQUEST_CHUNKS);
	return 0;
}
