/* Three sources of evidence, and the memory of what they showed. */
#include "router/stage/guard.h"

#include <stddef.h>

#define NAME(id, name, meaning) name,
static const char *const source_names[] = { STAGE_SOURCES(NAME) };
#undef NAME

const char *stage_source_name(unsigned source)
{
	return source < STAGE_SOURCES_NR ? source_names[source] : NULL;
}

/*
 * Others' requests move the counters too: too few hits in all are a miss for certain, too few
 * tokens looked up in vain a hit for certain, and anything between says nothing.
 */
static enum stage_verdict by_counters(const struct stage_evidence *e, double wanted)
{
	uint64_t missed = e->queried_tokens > e->hit_tokens ? e->queried_tokens - e->hit_tokens : 0;

	if (e->queried_tokens < e->prompt_tokens)
		return STAGE_UNCLEAR; /* read before the piece was counted */
	if ((double)e->hit_tokens < wanted)
		return STAGE_MISS;
	return (double)missed <= e->prompt_tokens - wanted ? STAGE_HIT : STAGE_UNCLEAR;
}

/* Others only add to it: quick enough is a hit for certain, slow says something when idle. */
static enum stage_verdict by_time(const struct stage_evidence *e)
{
	if (!(e->hit_s > 0 && e->miss_s > e->hit_s + e->clock_s))
		return STAGE_UNCLEAR;
	if (e->took_s <= (e->hit_s + e->miss_s) / 2)
		return STAGE_HIT;
	return e->sees & STAGE_SEES_IDLE ? STAGE_MISS : STAGE_UNCLEAR;
}

enum stage_verdict stage_judge(const struct stage_params *params, const struct stage_evidence *e,
			       enum stage_source *ret_source)
{
	const uint32_t able = STAGE_HAS_COUNTERS | STAGE_SEES_COUNTERS | STAGE_SEES_TIME;
	double wanted = params->stage_guard_ratio * e->expected_tokens;
	enum stage_verdict verdict = STAGE_UNCLEAR;

	*ret_source = STAGE_SOURCE_CACHED;
	if (e->sees & STAGE_SEES_CACHED)
		return e->cached_tokens >= wanted ? STAGE_HIT : STAGE_MISS;
	*ret_source = STAGE_SOURCE_COUNTER;
	if (e->sees & STAGE_SEES_COUNTERS)
		verdict = by_counters(e, wanted);
	if (verdict != STAGE_UNCLEAR)
		return verdict;
	*ret_source = STAGE_SOURCE_TIME;
	if (e->sees & STAGE_SEES_TIME)
		verdict = by_time(e);
	if (verdict != STAGE_UNCLEAR)
		return verdict;
	*ret_source = STAGE_SOURCE_NONE;
	return e->sees & able ? STAGE_UNCLEAR : STAGE_NO_SOURCE;
}

static uint64_t until(const struct stage_params *params, uint64_t now_ns)
{
	return now_ns + (uint64_t)(params->stage_guard_off_s * 1e9);
}

/* The key's own place, else a free or expired one, else the one that ends first. */
static unsigned place_of(const struct stage_guard *guard, uint64_t key, uint64_t now_ns)
{
	unsigned best = 0;
	uint64_t least = UINT64_MAX;

	for (unsigned i = 0; i < LIMIT_STAGE_GUARDS; i++) {
		uint64_t ends_ns = guard->shape[i].until_ns;

		if (guard->shape[i].key == key)
			return i;
		if (guard->shape[i].key == 0 || ends_ns <= now_ns)
			ends_ns = 0;
		if (ends_ns < least) {
			least = ends_ns;
			best = i;
		}
	}
	return best;
}

static enum stage_guard_news silent(struct stage_guard *guard, const struct stage_params *params,
				    unsigned engine, uint64_t now_ns)
{
	uint32_t said = guard->engine[engine].said;

	guard->engine[engine].until_ns = until(params, now_ns);
	guard->engine[engine].unclear = 0;
	guard->engine[engine].said = 1;
	return said ? STAGE_NO_NEWS : STAGE_ENGINE_SILENT;
}

static enum stage_guard_news missed(struct stage_guard *guard, const struct stage_params *params,
				    uint64_t key, uint64_t now_ns)
{
	unsigned i = place_of(guard, key, now_ns);
	int was_off = guard->shape[i].key == key && guard->shape[i].until_ns > now_ns;

	guard->shape[i].key = key;
	guard->shape[i].until_ns = until(params, now_ns);
	return was_off ? STAGE_NO_NEWS : STAGE_SHAPE_OFF;
}

enum stage_guard_news stage_guard_note(struct stage_guard *guard, const struct stage_params *params,
				       uint64_t key, unsigned engine, uint32_t piece,
				       enum stage_verdict *verdict, uint64_t now_ns)
{
	assert(engine < STATE_ENGINES_MAX && key != 0);
	if (piece < 2)
		return STAGE_NO_NEWS; /* there was none before it */
	if (*verdict == STAGE_UNCLEAR) {
		uint64_t proven_ns = guard->engine[engine].proven_ns;

		if (proven_ns != 0 && now_ns < until(params, proven_ns))
			return STAGE_NO_NEWS; /* it is known to hit here */
		if (++guard->engine[engine].unclear < LIMIT_STAGE_UNCLEAR)
			return STAGE_NO_NEWS;
		*verdict = STAGE_NO_SOURCE;
	}
	if (*verdict == STAGE_NO_SOURCE)
		return silent(guard, params, engine, now_ns);
	guard->engine[engine].unclear = 0;
	guard->engine[engine].said = 0;
	if (*verdict == STAGE_HIT)
		guard->engine[engine].proven_ns = now_ns;
	/* Later pieces go missing under cache pressure: that is no fault of the shape. */
	if (*verdict == STAGE_MISS && piece == 2)
		return missed(guard, params, key, now_ns);
	return STAGE_NO_NEWS;
}

int stage_guard_shape_off(const struct stage_guard *guard, uint64_t key, uint64_t now_ns)
{
	for (unsigned i = 0; i < LIMIT_STAGE_GUARDS; i++)
		if (guard->shape[i].key == key)
			return guard->shape[i].until_ns > now_ns;
	return 0;
}

int stage_guard_engine_off(const struct stage_guard *guard, unsigned engine, uint64_t now_ns)
{
	assert(engine < STATE_ENGINES_MAX);
	return guard->engine[engine].until_ns > now_ns;
}

void stage_guard_engine_restarted(struct stage_guard *guard, unsigned engine)
{
	assert(engine < STATE_ENGINES_MAX);
	guard->engine[engine].until_ns = guard->engine[engine].proven_ns = 0;
	guard->engine[engine].unclear = guard->engine[engine].said = 0;
}
