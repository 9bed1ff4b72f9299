/* Frames a recording and takes it apart; nothing in it is believed before its checksum is. */
#include "router/journal/record.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

static const char head_magic[8] = { 'T', 'W', 'R', 'E', 'C', 'O', 'R', 'D' };

enum { BYTE_ORDER_MARK = 0x01020304, BYTE_ORDER_SWAPPED = 0x04030201, FRAME_MAGIC = 0x4d524654 };

static size_t padded(size_t size)
{
	return (size + 7) / 8 * 8;
}

/* ---- writing ---- */

static uint64_t head_check(const struct record_head *head, const void *text)
{
	uint64_t fixed = XXH3_64bits(head, offsetof(struct record_head, check));

	return XXH3_64bits_withSeed(text, head->size - sizeof(*head), fixed);
}

static uint64_t frame_check(const struct record_frame *frame, const void *payload)
{
	uint64_t fixed = XXH3_64bits(frame, offsetof(struct record_frame, check));

	return XXH3_64bits_withSeed(payload, padded(frame->length), fixed);
}

size_t record_head_write(void *into, size_t room, const char *program, uint64_t wall_ns,
			 uint64_t part)
{
	struct record_head head;
	char text[JOURNAL_LAYOUT_MAX];
	size_t length = journal_layout_text(text, sizeof(text));
	char *behind = (char *)into + sizeof(head);

	assert(length + 1 < sizeof(text)); /* it was not cut */
	memset(&head, 0, sizeof(head));
	memcpy(head.magic, head_magic, sizeof(head.magic));
	head.byte_order = BYTE_ORDER_MARK;
	head.version = RECORD_VERSION;
	head.layout = journal_layout();
	head.size = padded(sizeof(head) + length);
	head.wall_ns = wall_ns;
	head.part = part;
	snprintf(head.program, sizeof(head.program), "%s", program);
	if (head.size > room)
		return 0;
	memset(behind, 0, head.size - sizeof(head));
	memcpy(behind, text, length);
	head.check = head_check(&head, behind);
	memcpy(into, &head, sizeof(head));
	return head.size;
}

size_t record_frame_write(void *into, size_t room, enum record_kind kind, uint64_t number,
			  const void *payload, size_t length)
{
	struct record_frame frame = {
		.magic = FRAME_MAGIC, .kind = kind, .length = length, .number = number
	};
	size_t size = sizeof(frame) + padded(length);
	uint8_t *behind = (uint8_t *)into + sizeof(frame);

	if (length > RECORD_PAYLOAD_MAX || size > room)
		return 0;
	memcpy(behind, payload, length);
	memset(behind + length, 0, padded(length) - length);
	frame.check = frame_check(&frame, behind);
	memcpy(into, &frame, sizeof(frame));
	return size;
}

/* ---- reading ---- */

static const void *bytes_at(const struct record_reader *r)
{
	return (const uint8_t *)r->buffer + r->at;
}

static size_t at_hand(const struct record_reader *r)
{
	return r->have - r->at;
}

/* Has `want` bytes at hand, fewer if the input ends before; `at` stays a multiple of 8. */
static int fill(struct record_reader *r, size_t want)
{
	assert(want <= sizeof(r->buffer));
	if (at_hand(r) >= want || r->ended)
		return 0;
	memmove(r->buffer, bytes_at(r), at_hand(r));
	r->have -= r->at;
	r->at = 0;
	while (r->have < want && !r->ended) {
		long n = r->pull(r->ctx, (uint8_t *)r->buffer + r->have,
				 sizeof(r->buffer) - r->have);

		if (n < 0)
			return (int)n;
		assert((size_t)n <= sizeof(r->buffer) - r->have);
		r->ended = n == 0;
		r->have += (size_t)n;
	}
	return 0;
}

/* The line of the two texts in which they differ first. */
static void first_difference(const char *theirs, size_t their_len, char *ret_line, size_t size)
{
	char ours[JOURNAL_LAYOUT_MAX];
	size_t len = journal_layout_text(ours, sizeof(ours)), i = 0, line = 0, end;

	while (i < len && i < their_len && ours[i] == theirs[i])
		if (ours[i++] == '\n')
			line = i;
	for (end = line; end < their_len && theirs[end] != '\n' && theirs[end];)
		end++;
	while (line < end && theirs[line] == ' ')
		line++;
	snprintf(ret_line, size, "%.*s", (int)(end - line), theirs + line);
	for (char *c = ret_line; *c; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
}

/* Frames and versions first: nothing else can be trusted of a head of another format. */
static int check_head(struct record_reader *r, const char *program, char *error)
{
	const struct record_head *head = &r->head;

	if (at_hand(r) < sizeof(*head) ||
	    memcmp(bytes_at(r), head_magic, sizeof(head_magic)) != 0) {
		snprintf(error, RECORD_ERROR_MAX, "it is no recording of turnward");
		return -EPROTO;
	}
	memcpy(&r->head, bytes_at(r), sizeof(r->head));
	r->head.program[sizeof(r->head.program) - 1] = 0;
	for (char *c = r->head.program; *c; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
	if (head->byte_order == BYTE_ORDER_SWAPPED) {
		snprintf(error, RECORD_ERROR_MAX,
			 "it was written with another byte order, by %s; this is %s", head->program,
			 program);
		return -EPROTO;
	}
	if (head->byte_order != BYTE_ORDER_MARK || head->version != RECORD_VERSION) {
		snprintf(error, RECORD_ERROR_MAX,
			 "it has format %u, written by %s; this is %s and reads format %d",
			 head->version, head->program, program, RECORD_VERSION);
		return -EPROTO;
	}
	if (head->size < sizeof(*head) || head->size > RECORD_HEAD_MAX || head->size % 8) {
		snprintf(error, RECORD_ERROR_MAX, "its head is damaged");
		return -EPROTO;
	}
	return 0;
}

static int check_layout(struct record_reader *r, const char *program, char *error)
{
	const struct record_head *head = bytes_at(r);
	const char *text = (const char *)(head + 1);
	char line[128];

	if (at_hand(r) < r->head.size || head_check(head, text) != head->check) {
		snprintf(error, RECORD_ERROR_MAX, "its head is %s",
			 at_hand(r) < r->head.size ? "cut" : "damaged");
		return -EPROTO;
	}
	if (head->layout == journal_layout())
		return 0;
	first_difference(text, head->size - sizeof(*head), line, sizeof(line));
	snprintf(error, RECORD_ERROR_MAX,
		 "its records have layout %016lx, written by %s; this is %s with layout %016lx; "
		 "they "
		 "differ first in its '%s'",
		 (unsigned long)head->layout, r->head.program, program,
		 (unsigned long)journal_layout(), line);
	return -EPROTO;
}

int record_open(struct record_reader *r, record_pull *pull, void *ctx, const char *program,
		char *error)
{
	int err;

	memset(r, 0, offsetof(struct record_reader, buffer));
	r->pull = pull;
	r->ctx = ctx;
	err = fill(r, sizeof(r->head));
	if (!err)
		err = check_head(r, program, error);
	if (err == -EPROTO)
		return err;
	if (!err)
		err = fill(r, r->head.size);
	if (!err)
		err = check_layout(r, program, error);
	if (err && err != -EPROTO)
		snprintf(error, RECORD_ERROR_MAX, "it cannot be read: %s", strerror(-err));
	if (!err)
		r->at += r->head.size;
	return err;
}

/* Bytes of the sound frame at hand; 0 if there is none. */
static size_t sound_frame(struct record_reader *r, int *ret_err)
{
	struct record_frame frame;
	size_t size;

	memcpy(&frame, bytes_at(r), sizeof(frame));
	*ret_err = 0;
	if (frame.magic != FRAME_MAGIC || frame.kind == RECORD_KIND_NONE ||
	    frame.kind >= RECORD_KINDS_END || frame.length > RECORD_PAYLOAD_MAX)
		return 0;
	size = sizeof(frame) + padded(frame.length);
	*ret_err = fill(r, size);
	if (*ret_err || at_hand(r) < size ||
	    frame_check(&frame, (const uint8_t *)bytes_at(r) + sizeof(frame)) != frame.check)
		return 0;
	return size;
}

int record_next(struct record_reader *r, struct record_item *ret_item)
{
	const struct record_frame *frame;
	size_t size;
	int err;

	for (;;) {
		err = fill(r, sizeof(*frame));
		if (err)
			return err;
		if (at_hand(r) < sizeof(*frame)) {
			r->torn = r->skipping + at_hand(r);
			return 0;
		}
		size = sound_frame(r, &err);
		if (err)
			return err;
		if (size)
			break;
		r->at += 8;
		r->skipping += 8;
	}
	frame = bytes_at(r);
	*ret_item = (struct record_item){ .kind = (enum record_kind)frame->kind,
					  .number = frame->number,
					  .payload = frame + 1,
					  .length = frame->length };
	r->at += size;
	r->frames++;
	r->damaged += r->skipping;
	r->skipping = 0;
	return 1;
}

static const void *payload_of(const struct record_item *item, enum record_kind kind, size_t size)
{
	return item->kind == kind && item->length >= size ? item->payload : NULL;
}

const struct record_gap *record_gap_of(const struct record_item *item)
{
	return payload_of(item, RECORD_GAP, sizeof(struct record_gap));
}

const struct record_source *record_source_of(const struct record_item *item)
{
	return payload_of(item, RECORD_SOURCE, sizeof(struct record_source));
}

const struct record_end *record_end_of(const struct record_item *item)
{
	return payload_of(item, RECORD_END, sizeof(struct record_end));
}

#define NAME(id, name, meaning)    name,
#define MEANING(id, name, meaning) meaning,

const char *record_gap_name(uint64_t why)
{
	static const char *const names[] = { RECORD_GAPS(NAME) };

	return why < RECORD_GAPS_NR ? names[why] : "unknown";
}

const char *record_gap_meaning(uint64_t why)
{
	static const char *const meanings[] = { RECORD_GAPS(MEANING) };

	return why < RECORD_GAPS_NR ? meanings[why] : "missing for an unknown reason";
}
