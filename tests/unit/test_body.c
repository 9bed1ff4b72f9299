/* Bodies: every framing, cut anywhere, decodes to the same bytes; what is malformed is refused. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "router/http/http.h"
#include "tests/lib/unit.h"

static struct http_body begin(enum http_framing framing, uint64_t length)
{
	static struct http_head head;
	struct http_body body;

	head.framing = framing;
	head.content_length = length;
	http_body_begin(&body, &head);
	return body;
}

/* Decodes in slices of `step` bytes; returns the last result, and where the message ended. */
static int decode(struct http_body *body, const char *in, size_t len, size_t step, char *out,
		  size_t *ret_out, size_t *ret_used)
{
	size_t at = 0, n = 0;
	int done = 0;

	while (at < len && !done) {
		size_t part = step < len - at ? step : len - at, used = 0;
		char *slice = malloc(part);

		memcpy(slice, in + at, part);
		while (used < part && !done) {
			const char *piece;
			size_t took, size;

			done = http_body_step(body, slice + used, part - used, &took, &piece,
					      &size);
			if (done < 0)
				break;
			memcpy(out + n, piece, size);
			n += size;
			used += took;
		}
		free(slice);
		at += used;
	}
	*ret_out = n;
	*ret_used = at;
	return done;
}

static void chunks_decode_the_same_however_cut(void **state)
{
	static const char in[] = "5\r\nhello\r\n01;name=\"v\"\r\n "
				 "\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\nb:\r\n\r\nNEXT";
	size_t len = sizeof(in) - 1, out_len, used;
	char out[100];

	for (size_t step = 1; step <= len; step++) {
		struct http_body body = begin(HTTP_CHUNKED, 0);

		assert_int_equal(decode(&body, in, len, step, out, &out_len, &used), 1);
		assert_int_equal(out_len, 16);
		assert_memory_equal(out, "hello 0123456789", 16);
		assert_int_equal(used, len - 4);
		assert_int_equal(body.decoded, 16);
		assert_int_equal(http_body_eof(&body), 0);
	}
}

static void malformed_chunks_are_refused_however_cut(void **state)
{
	static const char *const bad[] = {
		"x\r\n",
		"\r\n",
		"-5\r\n",
		"+5\r\n",
		"0x5\r\n",
		" 5\r\n",
		"5 \r\nhello\r\n",
		"5\nhello\r\n",
		"5\r\nhello0\r\n",
		"5\r\nhello\n0\r\n",
		"5\r\nhelloX\r\n",
		"5\rXhello",
		"5;a\nb\r\n",
		"5;a=\"b\r\n",
		"5;a=\"\\\"\r\n",
		"fffffffffffffffff\r\n",
		"1000000000000000000\r\n",
		"5;\x01\r\n",
		"0\r\nbad trailer\r\n\r\n",
		"0\r\n: x\r\n\r\n",
		"0\r\nGET / HTTP/1.1\r\n\r\n",
		"0\r\na: b\n\r\n",
		"0\r\n\n",
		"0\r\n\rX",
		"5;\x7f\r\n",
	};
	size_t out_len, used;
	char out[100];

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		for (size_t step = 1; step <= strlen(bad[i]); step++) {
			struct http_body body = begin(HTTP_CHUNKED, 0);

			if (decode(&body, bad[i], strlen(bad[i]), step, out, &out_len, &used) !=
			    -EPROTO)
				fail_msg("%s in steps of %zu", bad[i], step);
		}
}

static void extensions_and_trailers_are_bounded(void **state)
{
	char in[HTTP_TRAILER_MAX * 2], out[10];
	struct http_body body = begin(HTTP_CHUNKED, 0);
	size_t out_len, used;
	int n = sprintf(in, "1;%0*d\r\n", HTTP_CHUNK_LINE_MAX, 0);

	assert_int_equal(decode(&body, in, (size_t)n, 7, out, &out_len, &used), -EPROTO);
	body = begin(HTTP_CHUNKED, 0);
	n = sprintf(in, "0\r\n");
	while (n < HTTP_TRAILER_MAX + 100)
		n += sprintf(in + n, "a: b\r\n");
	assert_int_equal(decode(&body, in, (size_t)n, 1000, out, &out_len, &used), -EPROTO);
	body = begin(HTTP_CHUNKED, 0);
	n = sprintf(in, "1;%0*d\r\nx\r\n0\r\na: %0*d\r\n\r\n", HTTP_CHUNK_LINE_MAX - 4, 0,
		    HTTP_TRAILER_MAX - 9, 0);
	assert_int_equal(decode(&body, in, (size_t)n, 50, out, &out_len, &used), 1);
}

static void size_lines_may_not_outweigh_their_chunks_for_ever(void **state)
{
	static char in[400 * 110], out[64 * 1024];
	struct http_body body;
	size_t out_len, used, n = 0;

	for (int i = 0; i < 180; i++) /* each is 86 bytes too long */
		n += (size_t)sprintf(in + n, "1;%0100d\r\nx\r\n", 0);
	n += (size_t)sprintf(in + n, "0\r\n\r\n");
	body = begin(HTTP_CHUNKED, 0);
	assert_int_equal(decode(&body, in, n, 777, out, &out_len, &used), 1);
	assert_int_equal(out_len, 180);
	for (n -= 5; n < sizeof(in) - 110;)
		n += (size_t)sprintf(in + n, "1;%0100d\r\nx\r\n", 0);
	body = begin(HTTP_CHUNKED, 0);
	assert_int_equal(decode(&body, in, n, 777, out, &out_len, &used), -EPROTO);
	/* A signature to each chunk of some size weighs nothing. */
	n = (size_t)sprintf(in, "400;%0200d\r\n%01024d\r\n", 0, 0);
	body = begin(HTTP_CHUNKED, 0);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(decode(&body, in, n, n, out, &out_len, &used), 0);
}

static void a_length_is_kept_to_the_byte(void **state)
{
	size_t out_len, used;
	char out[10];

	for (size_t step = 1; step < 8; step++) {
		struct http_body body = begin(HTTP_LENGTH, 5);

		assert_int_equal(http_body_eof(&body), -EPROTO);
		assert_int_equal(decode(&body, "helloNEXT", 9, step, out, &out_len, &used), 1);
		assert_int_equal(used, 5);
		assert_memory_equal(out, "hello", 5);
		assert_int_equal(http_body_eof(&body), 0);
	}
}

static void messages_without_a_body_are_complete_at_once(void **state)
{
	struct http_body bodies[] = { begin(HTTP_NO_BODY, 0), begin(HTTP_LENGTH, 0) };
	const char *piece;
	size_t used, len;

	for (int i = 0; i < 2; i++) {
		assert_int_equal(http_body_step(&bodies[i], "GET", 3, &used, &piece, &len), 1);
		assert_int_equal(used, 0);
		assert_int_equal(len, 0);
	}
}

static void only_a_to_close_body_may_end_with_the_connection(void **state)
{
	struct http_body body = begin(HTTP_TO_CLOSE, 0);
	const char *piece;
	size_t used, len;

	assert_int_equal(http_body_step(&body, "abc", 3, &used, &piece, &len), 0);
	assert_int_equal(len, 3);
	assert_int_equal(http_body_eof(&body), 0);
	body = begin(HTTP_CHUNKED, 0);
	assert_int_equal(http_body_step(&body, "3\r\nabc\r\n0\r\n", 11, &used, &piece, &len), 0);
	assert_int_equal(http_body_eof(&body), -EPROTO);
	assert_int_equal(http_body_step(&body, piece + len, 11 - used, &used, &piece, &len), 0);
	assert_int_equal(http_body_eof(&body), -EPROTO); /* the last empty line is missing */
}

static void failure_leaves_the_outputs_alone(void **state)
{
	struct http_body body = begin(HTTP_CHUNKED, 0), before = body;
	const char *piece = "untouched";
	size_t used = 77, len = 88;

	assert_int_equal(http_body_step(&body, "5\r\nhello0", 9, &used, &piece, &len), 0);
	assert_int_equal(used, 8);
	used = 77, len = 88, piece = "untouched", before = body;
	assert_int_equal(http_body_step(&body, "0", 1, &used, &piece, &len), -EPROTO);
	assert_int_equal(used, 77);
	assert_int_equal(len, 88);
	assert_string_equal(piece, "untouched");
	assert_memory_equal(&body, &before, sizeof(body));
}

static void our_chunk_heads_decode(void **state)
{
	static const uint64_t sizes[] = { 1, 15, 16, 255, 65536, 0x123456789abcdef };
	char head[HTTP_CHUNK_HEAD_MAX];

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct http_body body = begin(HTTP_CHUNKED, 0);
		const char *piece;
		size_t used, len, n = http_chunk_head(head, sizes[i]);

		assert_int_equal(http_body_step(&body, head, n, &used, &piece, &len), 0);
		assert_int_equal(used, n);
		assert_int_equal(body.left, sizes[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(chunks_decode_the_same_however_cut),
		CLAIM(malformed_chunks_are_refused_however_cut),
		CLAIM(extensions_and_trailers_are_bounded),
		CLAIM(size_lines_may_not_outweigh_their_chunks_for_ever),
		CLAIM(a_length_is_kept_to_the_byte),
		CLAIM(messages_without_a_body_are_complete_at_once),
		CLAIM(only_a_to_close_body_may_end_with_the_connection),
		CLAIM(failure_leaves_the_outputs_alone),
		CLAIM(our_chunk_heads_decode),
	};

	return cmocka_run_group_tests_name("body", tests, NULL, NULL);
}
