/*
 * PURE: an engine's speeds as its agent publishes them, out of the totals of its readings.
 *
 * Beside rate.h's estimates it knows what the kinds' totals are worth: times counted by request say
 * nothing of short prompts. The laboratory makes its agents' records by it, too.
 */
#ifndef TURNWARD_AGENT_SPEEDS_H
#define TURNWARD_AGENT_SPEEDS_H

#include "agent/engine.h"
#include "agent/rate.h"

/* All-zero has seen nothing. */
struct speeds {
	struct rate prefill, decode;
	struct step_rate steps;
	double prefills; /* requests that the prefill totals were last seen with */
};

/* Takes a reading's totals; those that it does not have are left alone. */
void speeds_feed(struct speeds *speeds, const struct engine_reading *reading);

/* Seconds per unit: 0, or -ENODATA while too little was seen. */
int speeds_prefill(const struct speeds *speeds, double *ret_token_s);
/* `moments`: the reading has them, and nothing else counts. */
int speeds_decode(const struct speeds *speeds, int moments, double *ret_step_s);
int speeds_per_sequence(const struct speeds *speeds, double *ret_s);

#endif
