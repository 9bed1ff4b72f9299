/*
 * How long engines take, as far as this router can tell: its own timing of each request, the
 * probe's record beside it, and which of the two is believed.
 *
 * The router always times for itself and publishes that. Where the kernel's probe runs, its record
 * is free of what this process adds, and is taken while it is younger than a second; the difference
 * of the two is the router's own delay.
 */
#ifndef TURNWARD_ROUTER_LATENCY_H
#define TURNWARD_ROUTER_LATENCY_H

#include "router/stats/slices.h"
#include "router/stats/timing.h"

#include <stdint.h>
#include <stdio.h>

struct worker;
struct exchange;
struct engine;

/* Of one engine. */
struct engine_latency {
	struct timing own;
	struct latency_record mine, probed; /* as published last; as read last */
	int probe_index;                    /* in the `latency` file, -1 = not there */
	uint8_t from_probe;                 /* the probe's is the one in force */
	struct hist ratio;                  /* measured over predicted TTFT, since the start */
	/* |predicted - measured| / measured, lately: as announced, and by the step model alone */
	struct slices error, model_error;
};

void latency_engine_init(const struct worker *w, struct engine_latency *latency);

/* The record in force. */
static inline const struct latency_record *latency_of(const struct engine_latency *latency)
{
	return latency->from_probe ? &latency->probed : &latency->mine;
}

/* Moments of a request that makes tokens on an engine. */
void latency_first_token(struct worker *w, const struct exchange *x);
void latency_ended(struct worker *w, const struct exchange *x);

/* Own records into the region, the probe's out of it. */
void latency_publish(struct worker *w);

/* Once a second: a probe that came, went or was replaced. */
void latency_tick(struct worker *w);

void latency_metrics(struct worker *w, FILE *out);

#endif
