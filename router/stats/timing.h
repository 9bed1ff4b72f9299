/*
 * One engine's latency as it is observed: moments go in, the record that everybody reads comes out.
 * The probe and the router keep their windows here, so that their records mean the same.
 */
#ifndef TURNWARD_ROUTER_STATS_TIMING_H
#define TURNWARD_ROUTER_STATS_TIMING_H

#include <stdint.h>

#include "router/stats/ewma.h"
#include "router/stats/slices.h"
#include "shm/latency.h"

/* After timing_init(); about 250 KB, the caller's memory. */
struct timing {
	struct slices ttft, given_up, e2e, itl;
	struct ewma ttft_ewma;
	uint64_t first_tokens_total, finished_total, errors, aborts, flagged;
};

/* What is under way at the moment of asking. All-zero is nothing. */
struct timing_open {
	struct hist waits; /* seconds waited so far, of requests known to stream */
	uint64_t oldest_start_ns;
	uint64_t other; /* unanswered requests not known to stream */
};

/* Of zeroed memory, or of one in use. */
void timing_init(struct timing *timing, uint64_t window_ns);

void timing_first_token(struct timing *timing, uint64_t now_ns, double ttft_s);

/* The client left before the first token: the wait would have been this long at least. */
void timing_given_up(struct timing *timing, uint64_t now_ns, double waited_s);

/* A request ended well; `itl_s` is the mean time between its tokens, < 0 = unknown. */
void timing_finished(struct timing *timing, uint64_t now_ns, double e2e_s, double itl_s);

/* One that waits: begun at `start_ns`, known to stream or not. */
void timing_open_add(struct timing_open *open, uint64_t now_ns, uint64_t start_ns, int streams);

/* All but name and lost. */
void timing_record(struct timing *timing, uint64_t now_ns, const struct timing_open *open,
		   struct latency_record *ret_record);

/* The recent quantile q of a record: exact at 0.5, 0.9 and 0.99, geometric between and constant
 * beyond. */
double timing_recent(const struct latency_record *record, double q);

#endif
