/*
 * From replay's workloads to live's conversations: the same sessions, lengths, pauses and shared
 * beginnings, as text. Session and turn keep their numbers, so that figures are taken by replay's.
 */
#ifndef TURNWARD_BENCH_WORKLOAD_TALK_H
#define TURNWARD_BENCH_WORKLOAD_TALK_H

#include "bench/sessions.h"
#include "bench/workload.h"

/*
 * Closed loops alone: the generated mixes and sessions' traces. 0, -EINVAL (an open loop), -ENOMEM;
 * sessions_free() in any case. An answer is the engine's own, so prompts may differ from the
 * workload's in what their messages' frames take; their lengths do not.
 */
int workload_sessions(struct sessions *ret_sessions, const struct workload *w);

#endif
