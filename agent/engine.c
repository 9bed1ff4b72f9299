/* What all kinds of engines share: their list, /v1/models, small helpers; see engine.h. */
#include "agent/engine.h"

#include <errno.h>
#include <string.h>

#include "shm/base/clock.h"
#include "shm/base/jread.h"

const struct engine_ops *const engine_kinds[] = { &engine_vllm, &engine_sglang, &engine_llamacpp,
						  NULL };

const char *engine_source_path(enum engine_source source)
{
#define ENGINE_SOURCE_PATH(id, path) [SOURCE_##id] = path,
	static const char *const paths[SOURCES_NR] = { ENGINE_SOURCES(ENGINE_SOURCE_PATH) };
#undef ENGINE_SOURCE_PATH

	return paths[source];
}

const struct engine_ops *engine_ops_named(const char *name)
{
	for (size_t i = 0; engine_kinds[i]; i++) {
		if (strcmp(engine_kinds[i]->name, name) == 0)
			return engine_kinds[i];
	}
	return NULL;
}

const struct engine_ops *engine_ops_of(enum engine_kind kind)
{
	for (size_t i = 0; engine_kinds[i]; i++) {
		if (engine_kinds[i]->kind == kind)
			return engine_kinds[i];
	}
	return NULL;
}

const char *engine_health_name(enum engine_health health)
{
	switch (health) {
	case ENGINE_HEALTH_UNKNOWN:
		return "unknown";
	case ENGINE_HEALTH_UP:
		return "up";
	case ENGINE_HEALTH_STALLED:
		return "stalled";
	case ENGINE_HEALTH_DOWN:
		return "down";
	}
	return "unknown";
}

int engine_models_owner(const struct engine_page *page, const char *owner)
{
	struct jread root, data;
	struct jread_walk walk;

	if (jread_open(&root, page->body, page->len) < 0 || jread_get(&root, "data", &data) < 0)
		return 0;
	jread_walk_begin(&walk, &data);
	while (jread_walk_next(&walk)) {
		struct jread by;

		if (jread_get(&walk.value, "owned_by", &by) == 0 && jread_is(&by, owner))
			return 1;
	}
	return 0;
}

/* One entry of the list: 0, or -ENODATA when it makes the whole list useless. */
static int take_model(const struct jread *entry, struct engine_info *info, uint64_t *longest)
{
	uint64_t len;

	if (info->models_nr == STATE_MODELS_MAX ||
	    jread_get_str(entry, "id", info->models[info->models_nr], STATE_MODEL_MAX + 1) < 0 ||
	    info->models[info->models_nr][0] == 0)
		return -ENODATA;
	info->models_nr++;
	if (jread_get_u64(entry, "max_model_len", &len) == 0 && len > *longest)
		*longest = len;
	return 0;
}

int engine_models_sample(const struct engine_page *page, struct engine_reading *reading,
			 struct engine_info *info)
{
	struct engine_info fresh = { 0 };
	struct jread root, data;
	struct jread_walk walk;
	uint64_t longest = 0;
	int err = 0;

	if (jread_open(&root, page->body, page->len) < 0)
		return -EBADMSG;
	if (jread_get(&root, "data", &data) < 0 || data.type != JREAD_ARRAY)
		return -EBADMSG;
	jread_walk_begin(&walk, &data);
	while (err == 0 && jread_walk_next(&walk))
		err = take_model(&walk.value, &fresh, &longest);
	if (err < 0)
		memset(&fresh, 0, sizeof(fresh));
	memcpy(info->models, fresh.models, sizeof(info->models));
	info->models_nr = fresh.models_nr;
	if (longest)
		READING_SET(reading, max_model_len, longest);
	return fresh.models_nr ? 0 : -ENODATA;
}

int engine_metrics_begin(const struct engine_page *page, const char *prefix)
{
	size_t len = strlen(prefix);
	const char *end = page->body + page->len;

	for (const char *line = page->body; line < end;) {
		const char *newline = memchr(line, '\n', (size_t)(end - line));

		if ((size_t)(end - line) > len && memcmp(line, prefix, len) == 0)
			return 1;
		line = newline ? newline + 1 : end;
	}
	return 0;
}

uint64_t engine_mix(uint64_t seed, double value)
{
	uint8_t bytes[sizeof(value)];

	memcpy(bytes, &value, sizeof(bytes));
	for (size_t i = 0; i < sizeof(bytes); i++)
		seed = (seed ^ bytes[i]) * 1099511628211u;
	return seed ? seed : 1;
}

void engine_text_set(char *ret_text, size_t size, const char *text, size_t len)
{
	len = len < size - 1 ? len : size - 1;
	memset(ret_text, 0, size);
	memcpy(ret_text, text, len);
}

uint64_t engine_count(double number)
{
	if (!(number > 0))
		return 0;
	return number < 9.0e15 ? (uint64_t)(number + 0.5) : (uint64_t)9.0e15;
}

static const struct engine_source_use other_uses[] = {
	{ .source = SOURCE_MODELS, .interval_ns = NS_PER_S },
};

static int other_probe(const struct engine_page *page)
{
	struct jread root, first;

	return page->source == SOURCE_MODELS && jread_open(&root, page->body, page->len) == 0 &&
	       jread_get(&root, "data[0].id", &first) == 0;
}

const struct engine_ops engine_other = {
	.name = "unknown",
	.kind = ENGINE_KIND_UNKNOWN,
	.period_ns = NS_PER_S,
	.uses = other_uses,
	.uses_nr = sizeof(other_uses) / sizeof(other_uses[0]),
	.probe = other_probe,
	.sample = engine_models_sample,
};
