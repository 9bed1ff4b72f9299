/*
 * Hostile recordings: the file's frames, and records behind sound checksums that no router wrote.
 * The input is a list of changes to a sound image, made here so that it never rots with a layout.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "router/journal/compare.h"
#include "router/journal/record.h"
#include "tests/fuzz/fuzz.h"

enum { IMAGE = 32 * 1024, ENGINES = 3 };

static uint64_t image[IMAGE / 8];
static volatile uint64_t sum; /* so that what is reached is read */

struct input {
	const uint8_t *bytes;
	size_t at, size;
};

static long pull(void *ctx, void *into, size_t room)
{
	struct input *in = ctx;
	size_t n = in->size - in->at;

	n = n < room ? n : room;
	n = n < 4096 ? n : 4096;
	memcpy(into, in->bytes + in->at, n);
	in->at += n;
	return (long)n;
}

static size_t make_decision(void)
{
	static const struct journal_engine names[ENGINES] = { { "a" }, { "b" }, { "c" } };
	struct journal_decision *d = (void *)image;
	struct policy_engine engines[ENGINES];
	struct policy_choice choice;

	memset(image, 0, sizeof(image));
	policy_params_init(&d->params);
	d->request = (struct policy_request){
		.home = 1, .prompt_tokens = 9000, .turn = 3, .since_move_s = -1, .move_budget = -1
	};
	for (uint32_t i = 0; i < ENGINES; i++)
		engines[i] = (struct policy_engine){ .id = i,
						     .flags = POLICY_SERVES | POLICY_ALIVE,
						     .weight = 1,
						     .num_requests = (float)i };
	policy_choose(&d->params, &d->request, engines, ENGINES, &choice);
	return journal_decision_write(d, sizeof(image), names, engines, ENGINES, &choice);
}

/* Changes: two bytes of place in words, one of the byte in it and the length, then the bytes. */
static void change(void *into, size_t room, const uint8_t *data, size_t size)
{
	while (size >= 4) {
		size_t at = ((size_t)(data[0] | data[1] << 8) * 8 + (data[2] & 7)) % room;
		size_t n = 1 + (data[2] >> 4) % 8;

		for (size_t i = 0; i < n && 3 + i < size && at + i < room; i++)
			((uint8_t *)into)[at + i] = data[3 + i];
		if (3 + n >= size)
			break;
		data += 3 + n;
		size -= 3 + n;
	}
}

/* What replay and explain do with a record's payload. */
static void use_record(const void *record, size_t size)
{
	char field[JOURNAL_FIELD_MAX], was[JOURNAL_VALUE_MAX], is[JOURNAL_VALUE_MAX], why[300];
	static struct journal_comparison comparison;
	static struct policy_choice again;
	const struct journal_outcome *outcome;
	const struct journal_shadow *shadow;
	const char *names[STATE_ENGINES_MAX];
	struct policy_params other;
	struct journal_view view;

	if (journal_outcome_read(record, size, &outcome) == 0)
		sum += strlen(outcome->engine) + strlen(outcome->end);
	if (journal_shadow_read(record, size, &shadow) == 0)
		sum += shadow->decision;
	if (journal_decision_read(record, size, &view) < 0)
		return;
	if (journal_replay(&view, &again))
		(void)!journal_difference(&view, &again, field, was, is);
	for (uint64_t i = 0; i < view.decision->engines_nr; i++)
		names[i] = view.names[i].name;
	policy_explain(&view.decision->params, &view.decision->request, &view.choice,
		       (unsigned)view.decision->engines_nr, names, why, sizeof(why));
	for (other = view.decision->params, other.policy = 0; other.policy < POLICIES_NR;
	     other.policy++) {
		journal_compare(&view, &other, &comparison);
		sum += (uint64_t)comparison.differs;
	}
}

static void read_file(const void *bytes, size_t size)
{
	static struct record_reader reader;
	struct input in = { .bytes = bytes, .size = size };
	char error[RECORD_ERROR_MAX] = "";
	struct record_item item;
	int got;

	if (record_open(&reader, pull, &in, "this", error) < 0) {
		assert(error[0]);
		return;
	}
	while ((got = record_next(&reader, &item)) == 1) {
		assert(item.kind > RECORD_KIND_NONE && item.kind < RECORD_KINDS_END);
		if (item.kind == RECORD_JOURNAL)
			use_record(item.payload, item.length);
		if (record_gap_of(&item))
			sum += (uint64_t)record_gap_name(record_gap_of(&item)->why)[0];
	}
	assert(got == 0);
}

static void try_file(const uint8_t *data, size_t size)
{
	static uint64_t record[IMAGE / 8];
	size_t length = make_decision(), n;
	struct record_gap gap = { 1, 2, RECORD_GAP_TORN };

	memcpy(record, image, length);
	n = record_head_write(image, sizeof(image), "fuzz", 1, 0);
	n += record_frame_write((uint8_t *)image + n, IMAGE - n, RECORD_GAP, 3, &gap, sizeof(gap));
	for (uint64_t i = 3; i < 6; i++)
		n += record_frame_write((uint8_t *)image + n, IMAGE - n, RECORD_JOURNAL, i, record,
					length);
	change(image, n, data, size);
	read_file(image, size % 3 ? n : n - size % n);
}

static void try_record(const uint8_t *data, size_t size)
{
	size_t length = make_decision();

	change(image, length, data, size);
	use_record(image, length);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	if (data[0] % 3 == 0)
		try_file(data + 1, size - 1);
	else if (data[0] % 3 == 1)
		try_record(data + 1, size - 1);
	else
		read_file(data + 1, size - 1);
	return 0;
}
