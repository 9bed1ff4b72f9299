/* Hostile pages of engines: /metrics, loads, slots, models, as each kind of agent reads them. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "agent/engine.h"
#include "tests/fuzz/fuzz.h"

/* Text of a page must end where it says, so that reading on is seen. */
static char copy[64 * 1024];

static void check_reading(const struct engine_reading *reading, const struct engine_info *info)
{
	assert(info->models_nr <= STATE_MODELS_MAX);
	for (uint32_t i = 0; i < info->models_nr; i++)
		assert(memchr(info->models[i], 0, sizeof(info->models[i])));
	assert(!(reading->state.trusted & ~reading->state.present));
	if (ENGINE_HAS(&reading->state, prefill_tokens_per_s))
		assert(isfinite(reading->state.prefill_tokens_per_s));
	if (ENGINE_HAS(&reading->state, decode_iteration_s))
		assert(isfinite(reading->state.decode_iteration_s));
}

static void read_as(const struct engine_ops *ops, const struct engine_page *page)
{
	static struct engine_info info;
	struct engine_reading reading;

	memset(&info, 0, sizeof(info));
	memset(&reading, 0, sizeof(reading));
	ops->probe(page);
	if (ops->sample(page, &reading, &info) == 0)
		check_reading(&reading, &info);
	/* A second page of the same engine is added to what the first one said. */
	if (ops->sample(page, &reading, &info) == 0)
		check_reading(&reading, &info);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct engine_page page = { .body = copy };

	if (size < 1 || size - 1 > sizeof(copy))
		return 0;
	page.source = data[0] % SOURCES_NR;
	page.len = size - 1;
	memcpy(copy, data + 1, page.len);
	for (int i = 0; engine_kinds[i]; i++)
		for (size_t u = 0; u < engine_kinds[i]->uses_nr; u++)
			if (engine_kinds[i]->uses[u].source == page.source)
				read_as(engine_kinds[i], &page);
	return 0;
}
