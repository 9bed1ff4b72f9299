/*
 * PURE: speeds out of pairs of totals that an engine counts itself (tokens, seconds).
 *
 * The estimate is amount over time of a fading sum: what was seen `memory` units of work ago counts
 * 1/e. It fades by work, not by the clock, so an idle engine forgets nothing and a sped-up one
 * needs no other settings. Nothing is estimated before `enough` work was seen: then it is absent.
 */
#ifndef TURNWARD_AGENT_RATE_H
#define TURNWARD_AGENT_RATE_H

#include <stdint.h>

#include "agent/engine.h"

struct rate_params {
	double memory;     /* units of work */
	double enough;     /* units of work before there is an estimate */
	double window_min; /* a difference smaller than this waits for more */
	double odd_factor; /* what a window may be slower or faster than usual; 0 = anything */
};

/*
 * What disturbs these measures only ever slows them: a prefill between two decode steps, a
 * neighbour in the same step. So a slow window is doubted (it counts 1/16, and as no slower than
 * odd_factor says) until so many in a row show that the engine changed; a fast one shows that the
 * estimate was wrong.
 */
enum { RATE_ODD_RUN_MAX = 20 };

struct rate {
	double base_amount, base_time; /* the totals last counted up to */
	int based;
	double amount, time, seen;
	unsigned odd_run;
};

/* Takes the newest totals. A total that shrank only sets a new base. `digits`: see engine.h. */
void rate_feed(struct rate *rate, const struct rate_params *params, double amount_total,
	       double time_total, unsigned digits);

/* What happened up to these totals is not to be counted. */
void rate_skip(struct rate *rate, double amount_total, double time_total);

/* Seconds per unit of work: 0, or -ENODATA while too little was seen. */
int rate_time_per_unit(const struct rate *rate, const struct rate_params *params, double *ret_s);

/* Forgets the base (the engine restarted) and all that was seen. */
void rate_reset(struct rate *rate);

/* Decode steps: mean time, and the least-squares slope over the batch size. */
struct step_rate {
	double base[MOMENTS_NR];
	int based;
	double sum[MOMENTS_NR], seen;
	unsigned odd_run;
};

void step_rate_feed(struct step_rate *rate, const struct rate_params *params,
		    const double totals[MOMENTS_NR]);
int step_rate_mean(const struct step_rate *rate, const struct rate_params *params, double *ret_s);

/*
 * -ENODATA as well while the batch size varied too little to tell a slope, or the line found would
 * not be one of an engine (falling, or below zero at an empty batch).
 */
int step_rate_slope(const struct step_rate *rate, const struct rate_params *params, double *ret_s);
void step_rate_reset(struct step_rate *rate);

#endif
