/* The set-associative table: layout, checks, and the order of stores that makes a kill harmless. */
#include "shm/table.h"

#include "shm/check.h"
#include "shm/words.h"
#include <assert.h>
#include <errno.h>
#include <string.h>

static const uint64_t table_magic = 0x31454c4241545754; /* "TWTABLE1" */

struct table_head {
	_Alignas(TABLE_ALIGN) _Atomic uint64_t magic; /* stored last: 0 = no table yet */
	_Atomic uint64_t buckets, payload;
};
static_assert(sizeof(struct table_head) == TABLE_ALIGN, "buckets begin on a line");

/* Keys and stamps of a bucket fill a line each: a miss costs one line. Then 8 bodies. */
struct table_bucket {
	_Alignas(TABLE_ALIGN) _Atomic uint64_t key[TABLE_WAYS]; /* 0 = empty way */
	_Atomic uint64_t stamp[TABLE_WAYS];
};
static_assert(sizeof(struct table_bucket) == 2 * TABLE_ALIGN, "two lines");

struct table_body {
	_Atomic uint64_t check; /* over key, generation and payload */
	_Atomic uint64_t generation;
	_Atomic uint64_t payload[];
};

static size_t body_size(size_t payload)
{
	return sizeof(struct table_body) + payload;
}

static size_t bucket_size(size_t payload)
{
	size_t size = sizeof(struct table_bucket) + TABLE_WAYS * body_size(payload);

	return (size + TABLE_ALIGN - 1) / TABLE_ALIGN * TABLE_ALIGN;
}

static uint64_t bucket_of(uint64_t buckets, uint64_t key)
{
	uint64_t mixed = (key ^ key >> 32) * 0x9e3779b97f4a7c15;

	return (uint64_t)((unsigned __int128)mixed * buckets >> 64);
}

static struct table_bucket *bucket_at(const struct table *table, uint64_t index)
{
	uint8_t *first = table->mem + sizeof(struct table_head);

	assert(index < table->buckets);
	return (struct table_bucket *)(first + index * bucket_size(table->payload));
}

static struct table_body *body_at(const struct table *table, struct table_bucket *bucket, int way)
{
	return (struct table_body *)((uint8_t *)(bucket + 1) +
				     (size_t)way * body_size(table->payload));
}

static uint64_t check_of(uint64_t key, uint64_t generation, const void *payload, size_t size)
{
	return shm_check(payload, size, key ^ (generation << 32 | generation >> 32));
}

static struct table_bucket *bucket_for(const struct table *table, uint64_t key)
{
	assert(key != 0);
	return bucket_at(table, bucket_of(table->buckets, key));
}

static int way_of(const struct table_bucket *bucket, uint64_t key)
{
	for (int way = 0; way < TABLE_WAYS; way++)
		if (word_get(&bucket->key[way]) == key)
			return way;
	return -1;
}

/* 1 with a whole copy of the way's payload if its checksum holds for `key`. */
static int body_get(const struct table *table, struct table_bucket *bucket, int way, uint64_t key,
		    void *ret_payload)
{
	struct table_body *body = body_at(table, bucket, way);
	uint64_t check = word_get(&body->check), generation = word_get(&body->generation);
	uint64_t copy[TABLE_PAYLOAD_MAX / 8];

	words_get(copy, body->payload, table->payload);
	if (check_of(key, generation, copy, table->payload) != check)
		return 0;
	if (ret_payload)
		memcpy(ret_payload, copy, table->payload);
	return 1;
}

size_t table_size(uint64_t entries, size_t payload)
{
	uint64_t buckets = entries ? (entries + TABLE_WAYS - 1) / TABLE_WAYS : 1;

	assert(payload > 0 && payload % 8 == 0 && payload <= TABLE_PAYLOAD_MAX);
	return sizeof(struct table_head) + buckets * bucket_size(payload);
}

/* The shape that `size` bytes give; -EINVAL when not even one bucket fits. */
static int table_shape(struct table *ret_table, const void *mem, size_t size, size_t payload)
{
	assert(payload > 0 && payload % 8 == 0 && payload <= TABLE_PAYLOAD_MAX);
	if ((uintptr_t)mem % TABLE_ALIGN != 0 || size < table_size(1, payload))
		return -EINVAL;
	*ret_table = (struct table){
		.mem = (uint8_t *)(uintptr_t)mem,
		.buckets = (size - sizeof(struct table_head)) / bucket_size(payload),
		.payload = payload,
	};
	return 0;
}

static int head_fits(const struct table *table)
{
	const struct table_head *head = (const struct table_head *)table->mem;

	return word_get(&head->magic) == table_magic &&
	       word_get(&head->buckets) == table->buckets &&
	       word_get(&head->payload) == table->payload;
}

/* Drops what no whole put can have left: a torn body, a key of another bucket, a key twice. */
static uint64_t bucket_repair(struct table *table, uint64_t index)
{
	struct table_bucket *bucket = bucket_at(table, index);
	uint64_t dropped = 0;

	for (int way = 0; way < TABLE_WAYS; way++) {
		uint64_t key = word_get(&bucket->key[way]);

		if (key == 0)
			continue;
		if (bucket_of(table->buckets, key) == index && way_of(bucket, key) == way &&
		    body_get(table, bucket, way, key, NULL)) {
			table->used++;
			continue;
		}
		word_set(&bucket->key[way], 0);
		dropped++;
	}
	return dropped;
}

int table_attach(struct table *ret_table, void *mem, size_t size, size_t payload,
		 uint64_t *ret_dropped)
{
	struct table table;
	uint64_t dropped = 0;
	int r = table_shape(&table, mem, size, payload);

	if (r < 0)
		return r;
	if (word_get(&((struct table_head *)mem)->magic) == 0) {
		r = table_clear(&table, mem, size, payload);
		assert(r == 0);
	} else if (!head_fits(&table)) {
		return -EPROTO;
	}
	table.writable = 1;
	for (uint64_t i = 0; i < table.buckets; i++)
		dropped += bucket_repair(&table, i);
	*ret_table = table;
	if (ret_dropped)
		*ret_dropped = dropped;
	return 0;
}

int table_view(struct table *ret_table, const void *mem, size_t size, size_t payload)
{
	struct table table;
	int r = table_shape(&table, mem, size, payload);

	if (r < 0)
		return r;
	if (!head_fits(&table))
		return -EPROTO;
	*ret_table = table;
	return 0;
}

int table_clear(struct table *ret_table, void *mem, size_t size, size_t payload)
{
	struct table_head *head = mem;
	struct table table;
	int r = table_shape(&table, mem, size, payload);

	if (r < 0)
		return r;
	word_set(&head->magic, 0);
	for (uint64_t i = 0; i < table.buckets; i++)
		for (int way = 0; way < TABLE_WAYS; way++)
			word_set(&bucket_at(&table, i)->key[way], 0);
	word_set(&head->buckets, table.buckets);
	word_set(&head->payload, table.payload);
	word_set(&head->magic, table_magic);
	table.writable = 1;
	*ret_table = table;
	return 0;
}

const void *table_find(struct table *table, uint64_t key, uint64_t stamp)
{
	struct table_bucket *bucket = bucket_for(table, key);
	int way = way_of(bucket, key);

	assert(table->writable);
	if (way < 0)
		return NULL;
	if (stamp)
		word_set(&bucket->stamp[way], stamp);
	return body_at(table, bucket, way)->payload;
}

/* An empty way, else the one with the oldest stamp. */
static int way_to_give(const struct table_bucket *bucket)
{
	int oldest = 0;

	for (int way = 0; way < TABLE_WAYS; way++) {
		if (word_get(&bucket->key[way]) == 0)
			return way;
		if (word_get(&bucket->stamp[way]) < word_get(&bucket->stamp[oldest]))
			oldest = way;
	}
	return oldest;
}

const void *table_put(struct table *table, uint64_t key, uint64_t stamp, const void *payload,
		      uint64_t *ret_evicted)
{
	struct table_bucket *bucket = bucket_for(table, key);
	int way = way_of(bucket, key), is_new = way < 0;
	uint64_t evicted = 0;

	assert(table->writable);
	if (is_new) {
		way = way_to_give(bucket);
		evicted = word_get(&bucket->key[way]);
		/* Killed from here on, the way is empty; with its old key it would be torn. */
		word_set(&bucket->key[way], 0);
		table->used += evicted == 0;
		table->evicted += evicted != 0;
	}

	struct table_body *body = body_at(table, bucket, way);
	uint64_t generation = word_get(&body->generation) + 1;

	word_set(&body->generation, generation);
	words_put(body->payload, payload, table->payload);
	word_set(&body->check, check_of(key, generation, payload, table->payload));
	word_set(&bucket->stamp[way], stamp);
	if (is_new)
		word_set(&bucket->key[way], key);
	if (ret_evicted)
		*ret_evicted = evicted;
	return body->payload;
}

int table_erase(struct table *table, uint64_t key)
{
	struct table_bucket *bucket = bucket_for(table, key);
	int way = way_of(bucket, key);

	assert(table->writable);
	if (way < 0)
		return 0;
	word_set(&bucket->key[way], 0);
	table->used--;
	return 1;
}

void table_prefetch(const struct table *table, uint64_t key)
{
	__builtin_prefetch(bucket_for(table, key));
}

void table_prefetch_entry(const struct table *table, uint64_t key)
{
	struct table_bucket *bucket = bucket_for(table, key);
	int way = way_of(bucket, key);

	if (way < 0)
		return;
	const char *body = (const char *)body_at(table, bucket, way);

	for (size_t at = 0; at < body_size(table->payload); at += TABLE_ALIGN)
		__builtin_prefetch(body + at);
}

int table_read(const struct table *table, uint64_t key, void *ret_payload, uint64_t *ret_stamp)
{
	struct table_bucket *bucket = bucket_for(table, key);

	for (int i = 0; i < TABLE_READ_TRIES; i++) {
		int way = way_of(bucket, key);

		if (way < 0)
			return -ENOENT;
		if (table->writable) /* checked when it attached, and nobody else writes */
			memcpy(ret_payload, (const void *)body_at(table, bucket, way)->payload,
			       table->payload);
		else if (!body_get(table, bucket, way, key, ret_payload))
			continue;
		if (ret_stamp)
			*ret_stamp = word_get(&bucket->stamp[way]);
		return 0;
	}
	return -EAGAIN;
}

int table_next(const struct table *table, uint64_t *cursor, uint64_t *ret_key, uint64_t *ret_stamp,
	       void *ret_payload)
{
	while (*cursor < table->buckets * TABLE_WAYS) {
		struct table_bucket *bucket = bucket_at(table, *cursor / TABLE_WAYS);
		int way = (int)(*cursor % TABLE_WAYS);
		uint64_t key = word_get(&bucket->key[way]);

		++*cursor;
		if (key == 0 || !body_get(table, bucket, way, key, ret_payload))
			continue;
		*ret_key = key;
		if (ret_stamp)
			*ret_stamp = word_get(&bucket->stamp[way]);
		return 1;
	}
	return 0;
}

/* 1 if `stamp` is younger than what a put of this key would push out. */
static int worth_a_place(const struct table *table, uint64_t key, uint64_t stamp)
{
	struct table_bucket *bucket = bucket_for(table, key);
	int way = way_of(bucket, key);

	if (way < 0)
		way = way_to_give(bucket);
	return word_get(&bucket->key[way]) == 0 || word_get(&bucket->stamp[way]) < stamp;
}

void table_copy(struct table *to, const struct table *from)
{
	uint64_t payload[TABLE_PAYLOAD_MAX / 8], cursor = 0, key, stamp;

	assert(to->payload == from->payload);
	while (table_next(from, &cursor, &key, &stamp, payload))
		if (worth_a_place(to, key, stamp))
			table_put(to, key, stamp, payload, NULL);
}
