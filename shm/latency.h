/*
 * What is known of an engine's latency: one record, published by the probe and by the router alike,
 * so that a reader can take whichever is there.
 */
#ifndef TURNWARD_SHM_LATENCY_H
#define TURNWARD_SHM_LATENCY_H

#include "shm/state.h"

#include <assert.h>
#include <stdint.h>

enum {
	FILES_NAME_SIZE = STATE_NAME_MAX + 8, /* an engine's name, zero-terminated, whole words */
	/* A probe's record that is older gives way to the router's own. */
	LATENCY_FRESH_NS = 1000 * 1000 * 1000,
};

/*
 * X(name, type, meaning). Times are 0 where `n` is 0. "recent": of first tokens in the window, of
 * waits that their clients gave up in it, and of requests that wait still, each of the latter two
 * with the time waited so far: what a completed first token says of an overload comes too late.
 */
#define LATENCY_FIELDS(X)                                                               \
	X(ttft_p50_s, double, "time to first token, median of the window")              \
	X(ttft_p90_s, double, "its 90th percentile")                                    \
	X(ttft_p99_s, double, "its 99th percentile")                                    \
	X(ttft_ewma_s, double, "its moving average")                                    \
	X(ttft_max_s, double, "its maximum in the window")                              \
	X(recent_p50_s, double, "the same with unfinished waits at their age, median")  \
	X(recent_p90_s, double, "its 90th percentile")                                  \
	X(recent_p99_s, double, "its 99th percentile")                                  \
	X(e2e_p50_s, double, "whole request, median")                                   \
	X(e2e_p90_s, double, "whole request, 90th percentile")                          \
	X(itl_p50_s, double, "mean time between an answer's tokens, median")            \
	X(itl_p90_s, double, "its 90th percentile over answers")                        \
	X(n, uint64_t, "first tokens in the window")                                    \
	X(recent_n, uint64_t, "first tokens and unfinished waits behind `recent`")      \
	X(first_tokens_total, uint64_t, "first tokens ever seen")                       \
	X(finished_total, uint64_t, "requests ever seen to end well")                   \
	X(waiting, uint64_t, "requests known to stream that have no first token yet")   \
	X(waiting_other, uint64_t, "unanswered requests not known to stream")           \
	X(oldest_wait_start_ns, uint64_t,                                               \
	  "CLOCK_MONOTONIC start of the oldest that is known to stream, 0 = none")      \
	X(errors, uint64_t, "answers that were errors, ever")                           \
	X(aborts, uint64_t, "requests the client left, ever")                           \
	X(flagged, uint64_t, "requests counted, but not timed for doubt, ever")         \
	X(lost, uint64_t, "events lost before they were counted, ever, of all engines") \
	X(updated_ns, uint64_t, "CLOCK_MONOTONIC of this record, 0 = never")

struct latency_record {
	char name[FILES_NAME_SIZE]; /* the engine's; "" = the place is free */
#define LATENCY_FIELD_MEMBER(name, type, meaning) type name;
	LATENCY_FIELDS(LATENCY_FIELD_MEMBER)
#undef LATENCY_FIELD_MEMBER
};
static_assert(sizeof(struct latency_record) % 8 == 0, "the slot copies words");

/* 1 if the probe's record may be used instead of the router's. */
static inline int latency_fresh(const struct latency_record *record, uint64_t now_ns)
{
	return record->updated_ns && record->updated_ns + LATENCY_FRESH_NS > now_ns;
}

#endif
