/* Recordings: read back as written, whole up to wherever they were cut, refused by name if foreign.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "router/journal/record.h"
#include "tests/lib/unit.h"

enum { FRAMES = 12, FILE_MAX = 64 * 1024 };

static uint64_t file[FILE_MAX / 8];
static size_t size, head_size;
static size_t ends[FRAMES]; /* where each frame ends */
static struct record_reader reader;
static char error[RECORD_ERROR_MAX];

struct input {
	const uint8_t *bytes;
	size_t at, size, piece; /* at most so many bytes a pull */
	int fail;               /* at the end, instead of it */
};

static long pull(void *ctx, void *into, size_t room)
{
	struct input *in = ctx;
	size_t n = in->size - in->at;

	if (n == 0)
		return in->fail;
	n = n < room ? n : room;
	n = n < in->piece ? n : in->piece;
	memcpy(into, in->bytes + in->at, n);
	in->at += n;
	return (long)n;
}

/* The payload of frame i: another length and other bytes each. */
static size_t payload(unsigned i, uint8_t *into)
{
	size_t length = i * 37 % 101;

	for (size_t k = 0; k < length; k++)
		into[k] = (uint8_t)(i * 7 + k);
	return length;
}

static void write_file(void)
{
	uint8_t bytes[128];

	size = head_size = record_head_write(file, sizeof(file), "turnward 1.2.3 (abc)", 42, 3);
	assert_true(head_size > 0 && head_size % 8 == 0);
	for (unsigned i = 0; i < FRAMES; i++) {
		size_t length = payload(i, bytes);
		size_t n = record_frame_write((uint8_t *)file + size, sizeof(file) - size,
					      RECORD_JOURNAL, 1000 + i, bytes, length);

		assert_true(n > length);
		ends[i] = size += n;
	}
}

static int open_at(struct input *in, size_t length)
{
	*in = (struct input){ .bytes = (const uint8_t *)file, .size = length, .piece = SIZE_MAX };
	return record_open(&reader, pull, in, "turnward 9.9.9 (def)", error);
}

/* Reads on; each frame is one of those written, in order. Returns their number. */
static unsigned read_all(void)
{
	struct record_item item;
	unsigned n = 0;
	uint64_t before = 0;
	int got;

	while ((got = record_next(&reader, &item)) == 1) {
		uint8_t bytes[128];

		assert_int_equal(item.kind, RECORD_JOURNAL);
		assert_in_range(item.number, 1000, 1000 + FRAMES - 1);
		assert_true(item.number > before);
		assert_int_equal(item.length, payload((unsigned)item.number - 1000, bytes));
		assert_memory_equal(item.payload, bytes, item.length);
		before = item.number;
		n++;
	}
	assert_int_equal(got, 0);
	return n;
}

static void a_recording_is_read_back_as_written(void **state)
{
	struct input in;

	write_file();

	assert_int_equal(open_at(&in, size), 0);
	assert_string_equal(reader.head.program, "turnward 1.2.3 (abc)");
	assert_int_equal(reader.head.part, 3);
	assert_int_equal(read_all(), FRAMES);
	assert_int_equal(reader.torn + reader.damaged, 0);
}

static void it_may_come_byte_by_byte(void **state)
{
	struct input in = { .bytes = (const uint8_t *)file, .piece = 1 };

	write_file();
	in.size = size;

	assert_int_equal(record_open(&reader, pull, &in, "x", error), 0);
	assert_int_equal(read_all(), FRAMES);
}

static void a_recording_cut_anywhere_is_read_up_to_its_last_whole_frame(void **state)
{
	struct input in;

	write_file();
	for (size_t cut = 0; cut <= size; cut++) {
		unsigned whole = 0;

		if (cut < head_size) {
			assert_int_equal(open_at(&in, cut), -EPROTO);
			continue;
		}
		while (whole < FRAMES && ends[whole] <= cut)
			whole++;
		assert_int_equal(open_at(&in, cut), 0);
		assert_int_equal(read_all(), whole);
		assert_int_equal(reader.torn, cut - (whole ? ends[whole - 1] : head_size));
		assert_int_equal(reader.damaged, 0);
	}
}

static void a_changed_byte_costs_its_own_frame_only(void **state)
{
	struct input in;

	write_file();
	for (size_t at = head_size; at < size; at++) {
		((uint8_t *)file)[at] ^= 0x41;
		assert_int_equal(open_at(&in, size), 0);
		assert_int_equal(read_all(), FRAMES - 1);
		assert_true(at < ends[FRAMES - 2] ? reader.damaged > 0 : reader.torn > 0);
		((uint8_t *)file)[at] ^= 0x41;
	}
}

static void a_head_changed_anywhere_is_refused(void **state)
{
	struct input in;

	write_file();
	for (size_t at = 0; at < head_size; at++) {
		((uint8_t *)file)[at] ^= 0x41;
		assert_int_equal(open_at(&in, size), -EPROTO);
		assert_true(error[0]);
		((uint8_t *)file)[at] ^= 0x41;
	}
	assert_int_equal(open_at(&in, size), 0);
}

/* As a writer of another version would have signed it. */
static void sign(void)
{
	struct record_head *head = (void *)file;

	head->check = XXH3_64bits_withSeed(head + 1, head->size - sizeof(*head),
					   XXH3_64bits(head, offsetof(struct record_head, check)));
}

static void says(const char *word)
{
	if (!strstr(error, word))
		fail_msg("'%s' is not in: %s", word, error);
}

static void another_layout_is_refused_with_both_versions_named(void **state)
{
	struct record_head *head = (void *)file;
	char *line, mine[32];
	struct input in;

	write_file();
	line = strstr((char *)(head + 1), "  turn u32");
	assert_non_null(line);
	memcpy(line, "  tarn u32", 10);
	head->layout = 0xabc0def;
	sign();

	assert_int_equal(open_at(&in, size), -EPROTO);
	says("turnward 1.2.3 (abc)");
	says("turnward 9.9.9 (def)");
	says("000000000abc0def");
	snprintf(mine, sizeof(mine), "%016lx", (unsigned long)journal_layout());
	says(mine);
	says("tarn u32 at");
}

static void another_format_is_refused_with_both_versions_named(void **state)
{
	struct record_head *head = (void *)file;
	struct input in;

	write_file();
	head->version = RECORD_VERSION + 1;
	sign();

	assert_int_equal(open_at(&in, size), -EPROTO);
	says("turnward 1.2.3 (abc)");
	says("turnward 9.9.9 (def)");
	says("format 2");
}

static void another_byte_order_is_refused_by_name(void **state)
{
	struct record_head *head = (void *)file;
	struct input in;

	write_file();
	head->byte_order = __builtin_bswap32(head->byte_order);

	assert_int_equal(open_at(&in, size), -EPROTO);
	says("another byte order");
}

static void a_file_of_something_else_is_refused(void **state)
{
	struct input in;

	memset(file, 'x', sizeof(file));
	assert_int_equal(open_at(&in, sizeof(file)), -EPROTO);
	says("no recording");
	assert_int_equal(open_at(&in, 0), -EPROTO);
}

static void an_error_of_the_input_is_passed_on(void **state)
{
	struct record_item item;
	struct input in;

	write_file();
	assert_int_equal(open_at(&in, ends[1]), 0);
	in.fail = -EIO;

	assert_int_equal(record_next(&reader, &item), 1);
	assert_int_equal(record_next(&reader, &item), 1);
	assert_int_equal(record_next(&reader, &item), -EIO);
}

static void what_does_not_fit_is_not_written(void **state)
{
	static uint8_t big[RECORD_PAYLOAD_MAX + 8];
	static uint8_t room[RECORD_PAYLOAD_MAX + 64];

	assert_int_equal(record_frame_write(room, sizeof(room), RECORD_GAP, 1, big, sizeof(big)),
			 0);
	assert_int_equal(record_frame_write(room, 39, RECORD_GAP, 1, big, 8), 0);
	assert_int_equal(record_frame_write(room, 40, RECORD_GAP, 1, big, 8), 40);
	assert_true(record_frame_write(room, sizeof(room), RECORD_GAP, 1, big, RECORD_PAYLOAD_MAX) >
		    0);
	assert_int_equal(record_head_write(room, 100, "x", 1, 0), 0);
}

static void a_payload_too_short_for_its_kind_is_none(void **state)
{
	struct record_gap gap = { 1, 2, RECORD_GAP_TORN };
	struct record_item item = { RECORD_GAP, 3, &gap, sizeof(gap) };

	assert_ptr_equal(record_gap_of(&item), &gap);
	assert_null(record_source_of(&item));
	item.length--;
	assert_null(record_gap_of(&item));
	assert_string_equal(record_gap_name(RECORD_GAP_TORN), "torn");
	assert_string_equal(record_gap_name(99), "unknown");
}

static void the_head_tells_the_layout_as_text(void **state)
{
	static const char *const words[] = { "struct policy_params ", "  heavy_threshold f64 at ",
					     "words policy round-robin ", "struct journal_outcome ",
					     "words reason none " };

	write_file();
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (!strstr((char *)file + sizeof(struct record_head), words[i]))
			fail_msg("'%s' is not in the head", words[i]);
}

int main(void)
{
	const struct CMUnitTest claims[] = {
		CLAIM(a_recording_is_read_back_as_written),
		CLAIM(it_may_come_byte_by_byte),
		CLAIM(a_recording_cut_anywhere_is_read_up_to_its_last_whole_frame),
		CLAIM(a_changed_byte_costs_its_own_frame_only),
		CLAIM(a_head_changed_anywhere_is_refused),
		CLAIM(another_layout_is_refused_with_both_versions_named),
		CLAIM(another_format_is_refused_with_both_versions_named),
		CLAIM(another_byte_order_is_refused_by_name),
		CLAIM(a_file_of_something_else_is_refused),
		CLAIM(an_error_of_the_input_is_passed_on),
		CLAIM(what_does_not_fit_is_not_written),
		CLAIM(a_payload_too_short_for_its_kind_is_none),
		CLAIM(the_head_tells_the_layout_as_text),
	};

	return cmocka_run_group_tests_name("record", claims, NULL, NULL);
}
