/*
 * Hostile heads and bodies. What is accepted must be written as a head that is accepted again and
 * means the same; a body must decode alike however it is cut; no path with two readings gets
 * through.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "router/http/http.h"
#include "router/http/path.h"
#include "tests/fuzz/fuzz.h"

enum {
	OUT = LIMIT_HEAD_BYTES + 1024,
	ADDED = 8, /* fields that a head gets on its way, at most */
};

static struct http_head head, again;

static void check_path(const char *buf)
{
	struct http_path_rules rules = { .all = true };
	struct http_route route;
	const char *path = buf + head.path.at;
	const char *query = memchr(path, '?', head.path.len);
	size_t len = query ? (size_t)(query - path) : head.path.len;

	http_path_classify(path, head.path.len, &rules, &route);
	if (route.path == HTTP_PATH_FORBIDDEN)
		return;
	assert(!memmem(path, len, "/../", 4) && !memmem(path, len, "//", 2));
	assert(!memmem(path, len, "/%2e%2e/", 8) && !memchr(path, '\\', len));
	if (route.id)
		assert(route.id >= path && route.id + route.id_len <= path + len);
	if (route.sub)
		assert(route.sub >= path && route.sub + route.sub_len <= path + len);
}

/* One whole decoding and one in slices give the same bytes and the same verdict. */
static void check_body(const struct http_head *from, const char *in, size_t len, size_t step)
{
	struct http_body bodies[2];
	uint64_t sum[2] = { 0 }, used[2] = { 0 };
	int done[2] = { 0 };

	for (int i = 0; i < 2; i++) {
		http_body_begin(&bodies[i], from);
		for (size_t at = 0; at < len && !done[i];) {
			size_t n = i && step < len - at ? step : len - at, took, size;
			char *slice = malloc(n);
			const char *piece;

			memcpy(slice, in + at, n);
			done[i] = http_body_step(&bodies[i], slice, n, &took, &piece, &size);
			for (size_t k = 0; done[i] >= 0 && k < size; k++)
				sum[i] = sum[i] * 31 + (unsigned char)piece[k];
			at += done[i] < 0 ? 0 : took;
			used[i] = at;
			free(slice);
		}
	}
	assert(done[0] == done[1]);
	if (done[0] >= 0)
		assert(sum[0] == sum[1] && used[0] == used[1]);
}

/* What was written is refused for nothing but the fields that were added to so many. */
static bool too_many_now(void)
{
	return again.error == HTTP_ERROR_FIELDS_MANY && head.fields + ADDED > LIMIT_HEAD_FIELDS;
}

static void try_request(const char *buf, size_t len, size_t end)
{
	struct http_forward how = { .framing = HTTP_LENGTH,
				    .content_length = 5,
				    .request_id = "r" };
	static char out[OUT];
	size_t size;

	if (http_request_parse(&head, buf, end))
		return;
	assert(http_head_confirmed(&head, buf, end, true));
	assert(http_request_write(out, sizeof(out), &head, buf, &how, &size) == 0);
	assert(http_head_end(out, size, 0) == size);
	if (http_request_parse(&again, out, size)) {
		assert(too_many_now());
		return;
	}
	assert(again.framing == HTTP_LENGTH && again.content_length == 5);
	assert(again.method == head.method && again.authority.len == 0);
	if (!head.authority.len)
		assert(again.path.len == head.path.len &&
		       memcmp(out + again.path.at, buf + head.path.at, head.path.len) == 0);
	check_path(buf);
	check_body(&head, buf + end, len - end, 1 + end % 7);
}

static void try_response(const char *buf, size_t len, size_t end)
{
	struct http_answer how = { .framing = HTTP_CHUNKED };
	static char out[OUT];
	size_t size;

	if (http_response_parse(&head, buf, end, HTTP_METHOD_POST))
		return;
	assert(http_head_confirmed(&head, buf, end, false));
	check_body(&head, buf + end, len - end, 1 + end % 7);
	if (head.framing == HTTP_NO_BODY)
		return;
	assert(http_response_write(out, sizeof(out), &head, buf, &how, &size) == 0);
	assert(http_head_end(out, size, 0) == size);
	if (http_response_parse(&again, out, size, HTTP_METHOD_POST)) {
		assert(too_many_now());
		return;
	}
	assert(again.framing == HTTP_CHUNKED && again.status == head.status);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct http_head chunked = { .framing = HTTP_CHUNKED };
	char *buf = malloc(size + 1); /* not a byte more than what there is, but never nothing */

	memcpy(buf, data, size);
	size_t end = http_head_end(buf, size, 0);

	if (end) {
		try_request(buf, size, end);
		try_response(buf, size, end);
	}
	check_body(&chunked, buf, size, 3);
	free(buf);
	return 0;
}
