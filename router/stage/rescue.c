/* Who is taken off an engine that hangs. */
#include "router/stage/rescue.h"

#include <stddef.h>

#define NAME(id, name, meaning) name,
static const char *const reason_names[] = { RESCUE_REASONS(NAME) };
#undef NAME

const char *rescue_reason_name(unsigned reason)
{
	return reason < RESCUE_REASONS_NR ? reason_names[reason] : NULL;
}

uint64_t rescue_due_ns(const struct stage_params *params, const struct rescue_engine *engine)
{
	double step_s = engine->step_s > 0 && engine->step_s < 1e6 ? engine->step_s : 0;

	if (params->rescue_overdue_s == 0 || !engine->busy)
		return UINT64_MAX;
	return engine->alive_ns + (uint64_t)((step_s + params->rescue_overdue_s) * 1e9);
}

int rescue_overdue(const struct stage_params *params, const struct rescue_engine *engine,
		   uint64_t now_ns)
{
	return now_ns >= rescue_due_ns(params, engine);
}

enum rescue_reason rescue_judge(const struct stage_params *params,
				const struct rescue_engine *engine,
				const struct rescue_request *request, uint64_t now_ns)
{
	if (params->rescue_overdue_s == 0)
		return RESCUE_OFF;
	if (!rescue_overdue(params, engine, now_ns))
		return RESCUE_IN_TIME;
	if (!request->streamed)
		return RESCUE_NO_STREAM;
	if (request->events_relayed)
		return RESCUE_RELAYED;
	if (request->rescued)
		return RESCUE_ONCE;
	if (!engine->stops)
		return RESCUE_ENGINE;
	if (!request->body_kept)
		return RESCUE_MEMORY;
	return request->others ? RESCUE_NONE : RESCUE_NOWHERE;
}
