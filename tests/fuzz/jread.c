/* Hostile JSON: what is taken can be walked, decoded and written again to the same meaning. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/jread.h"
#include "shm/base/json.h"
#include "tests/fuzz/fuzz.h"

enum { TEXT = 8192 };

static void copy_value(struct json *j, const char *key, const struct jread *value, int depth);

static void copy_entries(struct json *j, const struct jread *value, int depth)
{
	struct jread_walk walk;
	char key[TEXT];
	size_t len, n = 0;

	for (jread_walk_begin(&walk, value); jread_walk_next(&walk); n++) {
		assert(walk.index == n);
		if (value->type == JREAD_ARRAY) {
			copy_value(j, NULL, &walk.value, depth + 1);
			continue;
		}
		assert(jread_str(&walk.key, key, sizeof(key), &len) == 0);
		copy_value(j, key, &walk.value, depth + 1);
	}
	assert(n == jread_count(value));
}

static void copy_value(struct json *j, const char *key, const struct jread *value, int depth)
{
	char text[TEXT];
	size_t len;

	if (value->type == JREAD_STRING) {
		assert(jread_str(value, text, sizeof(text), &len) == 0);
		json_mem(j, key, text, len);
	} else if (value->type < JREAD_STRING || depth + 1 >= JSON_DEPTH_MAX) {
		json_raw(j, key, value->text, value->len);
	} else if (value->type == JREAD_ARRAY) {
		json_array_begin(j, key);
		copy_entries(j, value, depth);
		json_array_end(j);
	} else {
		json_object_begin(j, key);
		copy_entries(j, value, depth);
		json_object_end(j);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char out[8 * TEXT];
	struct jread value, again;
	struct json j;
	uint64_t n;
	double f;

	if (size >= TEXT)
		return 0;

	/* Of exactly its length, so that a byte too many is seen. */
	char *text = malloc(size ? size : 1);

	memcpy(text, data, size);
	if (jread_open(&value, text, size) == 0) {
		jread_get_u64(&value, "usage.prompt_tokens", &n);
		jread_get_f64(&value, "data[1].id[0]", &f);
		json_init(&j, out, sizeof(out));
		copy_value(&j, NULL, &value, 0);
		assert(json_finish(&j) == 0);
		assert(jread_open(&again, out, j.len) == 0);
		assert(again.type == value.type && jread_count(&again) == jread_count(&value));
	}
	free(text);
	return 0;
}
