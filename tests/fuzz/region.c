/*
 * Hostile bytes in the region: headers, rings, tables and the router's sections as another process
 * may have left them. The input is a list of changes to a sound image, so that they get past the
 * first look.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/files.h"
#include "shm/table.h"
#include "tests/fuzz/fuzz.h"

enum { IMAGE = 64 * 1024, PAYLOAD = 40, RECORD = 72 };

static volatile uint64_t sum; /* so that what is reached is read */
static uint8_t *image;        /* in memory of exactly this size, so that a step beyond is seen */

static void make_room(void)
{
	free(image);
	image = aligned_alloc(4096, IMAGE);
	memset(image, 0, IMAGE);
}

/* Changes: two bytes of offset (in words, wrapped), one byte of place and length, then the bytes.
 */
static void change(const uint8_t *data, size_t size)
{
	while (size >= 4) {
		size_t at = ((size_t)(data[0] | data[1] << 8) * 8 + (data[2] & 7)) % IMAGE;
		size_t n = 1 + (data[2] >> 4) % 8;

		for (size_t i = 0; i < n && 3 + i < size && at + i < IMAGE; i++)
			image[at + i] = data[3 + i];
		if (3 + n >= size)
			break;
		data += 3 + n;
		size -= 3 + n;
	}
}

static void try_ring(const uint8_t *data, size_t size)
{
	struct ring_cursor cursor = { 0 };
	uint8_t record[RING_RECORD_MAX];
	struct ring ring;

	assert(ring_attach(&ring, image, IMAGE, RECORD, NULL) == 0);
	for (int i = 0; i < 900; i++)
		ring_append(&ring, "0123456789", (size_t)i % 11);
	change(data, size);
	if (ring_view(&ring, image, IMAGE) == 0)
		while (ring_next(&ring, &cursor, record, sizeof(record), NULL) == 1)
			;
	if (ring_attach(&ring, image, IMAGE, RECORD, NULL) == 0) {
		uint64_t number = ring_append(&ring, "new", 3);

		assert(ring_read(&ring, number, record, sizeof(record), NULL) == 0);
	}
}

static void try_table(const uint8_t *data, size_t size)
{
	uint64_t payload[PAYLOAD / 8] = { 1, 2, 3, 4, 5 }, cursor = 0, key, walked = 0;
	struct table table;

	assert(table_attach(&table, image, IMAGE, PAYLOAD, NULL) == 0);
	for (uint64_t k = 1; k < 500; k++)
		table_put(&table, k << 20, k, payload, NULL);
	change(data, size);
	if (table_view(&table, image, IMAGE, PAYLOAD) == 0)
		for (uint64_t k = 1; k < 600; k++)
			if (table_read(&table, k << 20, payload, NULL) == 0)
				assert(payload[1] == 2);
	if (table_attach(&table, image, IMAGE, PAYLOAD, NULL) < 0)
		return;
	while (table_next(&table, &cursor, &key, NULL, payload))
		walked++;
	assert(walked == table.used);
	table_put(&table, 7, 1, payload, NULL);
	assert(table_find(&table, 7, 0));
}

/* The directory as router_file.c lays it out: complete, then entries of id, offset, size, ... */
static void try_router(const uint8_t *data, size_t size)
{
	struct router_file file = { .file = { .fd = -1, .map = image, .size = IMAGE } };
	uint64_t *words = (uint64_t *)(image + REGION_PAYLOAD);
	char text[300];
	unsigned nr;

	words[0] = 1;
	for (uint64_t i = 0; i < ROUTER_SECTIONS_NR; i++) {
		uint64_t entry[] = { i + 1, 4096 * (i + 1), 4096, 1, 256 };

		memcpy(words + 8 + i * 8, entry, sizeof(entry));
	}
	change(data, size);
	for (enum router_section i = 0; i < ROUTER_SECTIONS_NR; i++) {
		size_t n;
		const uint8_t *mem = router_file_section(&file, i, &n);

		if (mem && n)
			sum += (uint64_t)mem[0] + mem[n - 1];
	}
	(void)!router_file_params_read(&file, text, sizeof(text));
	(void)!router_file_engine_find(&file, "gpu0");
	(void)!router_file_cursor_get(&file, 1, &(struct router_cursor){ 0 });
	(void)!router_file_timing_read(&file, 1, &(struct latency_record){ 0 });
	if (router_file_counters(&file, &nr) && nr)
		sum += router_file_counters(&file, &nr)[nr - 1].value;
}

static void try_header(const uint8_t *data, size_t size)
{
	struct region_header *header = (struct region_header *)image;
	enum region_damage damage;

	memcpy(header->magic, "TURNWARD", 8);
	header->version = REGION_VERSION;
	header->header_size = sizeof(*header);
	header->kind = REGION_ROUTER;
	header->size = IMAGE;
	change(data, size);
	damage = region_header_check(header, IMAGE, REGION_ROUTER, 1, 0);
	assert(region_damage_text(damage)[0]);
	if (damage == REGION_OK)
		assert(header->size == IMAGE && header->fingerprint == 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const tries[])(const uint8_t *, size_t) = { try_ring, try_table, try_router,
								  try_header };

	if (size == 0)
		return 0;
	make_room();
	tries[data[0] % 4](data + 1, size - 1);
	return 0;
}
