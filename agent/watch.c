/* Health and epoch of an engine; see watch.h. */
#include "agent/watch.h"

#include <string.h>

void watch_init(struct watch *watch, uint64_t stall_ns)
{
	*watch = (struct watch){ .stall_ns = stall_ns };
}

void watch_inherit(struct watch *watch, const struct engine_state *state)
{
	if (state->epoch == 0)
		return;
	watch->epoch = state->epoch;
	watch->last = *state;
	watch->inherited = 1;
}

/* A total that both know and that shrank. */
static int went_backwards(const struct engine_state *was, const struct engine_state *is)
{
	uint64_t both = was->present & is->present;

#define SHRANK(field) ((both >> ENGINE_FIELD_##field & 1) && is->field < was->field)
	return SHRANK(cached_tokens_total) || SHRANK(queried_tokens_total) ||
	       SHRANK(admitted_total) || SHRANK(finished_total) || SHRANK(prompt_tokens_total) ||
	       SHRANK(generation_tokens_total) || SHRANK(preemptions_total);
#undef SHRANK
}

static uint64_t fresh_epoch(const struct engine_reading *reading, uint64_t wall_ns)
{
	uint64_t epoch = reading->start_id ? reading->start_id : wall_ns;

	return epoch ? epoch : 1;
}

/*
 * A start id decides alone. Without one, totals that shrank or a spell without a listener mean a
 * new process. An id that only now appears belongs to the engine that we know.
 */
static int is_another_engine(const struct watch *watch, const struct engine_reading *reading)
{
	if (watch->inherited && reading->start_id)
		return reading->start_id != watch->epoch;
	if (watch->start_id && reading->start_id)
		return watch->start_id != reading->start_id;
	int sequence = reading->has & READING_SEQUENCE && reading->sequence < watch->last_sequence;

	return watch->gone || sequence || went_backwards(&watch->last, &reading->state);
}

static int take_epoch(struct watch *watch, const struct engine_reading *reading, uint64_t wall_ns)
{
	int another = watch->epoch == 0 || is_another_engine(watch, reading);

	if (another)
		watch->epoch = fresh_epoch(reading, wall_ns);
	if (another || reading->start_id)
		watch->start_id = reading->start_id;
	watch->last = reading->state;
	if (another || reading->has & READING_SEQUENCE)
		watch->last_sequence = reading->has & READING_SEQUENCE ? reading->sequence : 0;
	watch->inherited = 0;
	watch->gone = 0;
	return another;
}

/* Whether work stands still although requests run. */
static int stands_still(struct watch *watch, const struct engine_reading *reading, uint64_t now_ns,
			double decode_iteration_s)
{
	int sign = (reading->has & READING_PROGRESS) != 0;
	uint64_t limit = (uint64_t)(WATCH_STALL_STEPS * decode_iteration_s * 1e9);
	int moved = !sign || !watch->has_progress || reading->progress != watch->progress;

	if (moved || !ENGINE_HAS(&reading->state, running) || reading->state.running == 0)
		watch->moved_ns = now_ns;
	watch->progress = reading->progress;
	watch->has_progress = sign;
	limit = limit > watch->stall_ns ? limit : watch->stall_ns;
	return now_ns - watch->moved_ns > limit;
}

int watch_reading(struct watch *watch, const struct engine_reading *reading, uint64_t now_ns,
		  uint64_t wall_ns, double decode_iteration_s)
{
	int another = take_epoch(watch, reading, wall_ns);

	if (another)
		watch->has_progress = 0;
	int still = stands_still(watch, reading, now_ns, decode_iteration_s);

	watch->refusals = watch->errors = 0;
	watch->silent_since_ns = 0;
	watch->good++;
	if (watch->health == ENGINE_HEALTH_DOWN && watch->good < WATCH_GOOD_UP)
		return another;
	watch->health = still ? ENGINE_HEALTH_STALLED : ENGINE_HEALTH_UP;
	return another;
}

void watch_failed(struct watch *watch, enum watch_failure failure, uint64_t now_ns)
{
	watch->good = 0;
	switch (failure) {
	case WATCH_REFUSED:
		watch->gone = 1;
		watch->has_progress = 0; /* time without an engine is no time without movement */
		watch->silent_since_ns = 0;
		if (++watch->refusals >= WATCH_REFUSALS_DOWN)
			watch->health = ENGINE_HEALTH_DOWN;
		return;
	case WATCH_ERROR:
		watch->silent_since_ns = 0;
		if (++watch->errors >= WATCH_ERRORS_DOWN)
			watch->health = ENGINE_HEALTH_DOWN;
		return;
	case WATCH_SILENT:
		if (watch->silent_since_ns == 0)
			watch->silent_since_ns = now_ns;
		/* Down stays down: only answers end it. */
		if (now_ns - watch->silent_since_ns > watch->stall_ns &&
		    watch->health != ENGINE_HEALTH_DOWN)
			watch->health = ENGINE_HEALTH_STALLED;
		return;
	}
}
