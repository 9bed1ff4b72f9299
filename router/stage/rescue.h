/*
 * Overdue rescue: when a request that waits for its first token leaves an engine that hangs.
 *
 * Only against hangs, never to balance load (that loses): the engine has shown no sign of life for
 * rescue_overdue_s past the predicted end of its step. Once per request, streams only, nothing
 * relayed, and only engines that stop on close. What is abandoned stays in that engine's books
 * until the engine shows it gone. Pure.
 */
#ifndef TURNWARD_ROUTER_STAGE_RESCUE_H
#define TURNWARD_ROUTER_STAGE_RESCUE_H

#include "router/stage/params.h"

#include <stdint.h>

/* Why not; the first that holds. X(ID, name, meaning) */
#define RESCUE_REASONS(X)                                                          \
	X(NONE, "none", "it is rescued")                                           \
	X(OFF, "off", "by configuration")                                          \
	X(IN_TIME, "in-time", "the engine is not overdue")                         \
	X(NO_STREAM, "no-stream", "its first token cannot be seen")                \
	X(RELAYED, "relayed", "an event has been relayed")                         \
	X(ONCE, "once", "it has been rescued before")                              \
	X(ENGINE, "engine", "the engine does not stop when its connection closes") \
	X(MEMORY, "memory", "its body is no longer kept, or body memory is short") \
	X(NOWHERE, "nowhere", "no other engine may take it")
#define RESCUE_REASON_ENUM(id, name, meaning) RESCUE_##id,
enum rescue_reason { RESCUE_REASONS(RESCUE_REASON_ENUM) RESCUE_REASONS_NR };
#undef RESCUE_REASON_ENUM

/* An engine's signs of life: any byte of an answer, any progress in its agent's record. */
struct rescue_engine {
	uint64_t alive_ns; /* the last sign, or since when it has had something to do */
	double step_s;     /* predicted length of its step under way */
	uint32_t busy;     /* it has something of ours to do */
	uint32_t stops;    /* it stops on close (not llama.cpp) */
};

struct rescue_request {
	uint32_t streamed;
	uint32_t events_relayed;
	uint32_t rescued;   /* before */
	uint32_t body_kept; /* whole, and body memory is below its threshold */
	uint32_t others;    /* engines that may take it instead */
};

int rescue_overdue(const struct stage_params *params, const struct rescue_engine *engine,
		   uint64_t now_ns);

/* When it will be overdue if nothing is heard; UINT64_MAX. */
uint64_t rescue_due_ns(const struct stage_params *params, const struct rescue_engine *engine);

enum rescue_reason rescue_judge(const struct stage_params *params,
				const struct rescue_engine *engine,
				const struct rescue_request *request, uint64_t now_ns);

const char *rescue_reason_name(unsigned reason); /* NULL out of range */

#endif
