/* What the agent tells people: one sample as text or JSON, and log lines when something changes. */
#ifndef TURNWARD_AGENT_REPORT_H
#define TURNWARD_AGENT_REPORT_H

#include "agent/sampler.h"

enum { REPORT_JSON_MAX = 16 * 1024 };

/* One sample to stdout. 0 or -errno. */
int report_print(const struct sampler *sampler, const struct engine_state *state, int as_json);

/* What was last logged. */
struct report {
	uint64_t health, epoch, kind, sources, period_ns, models_nr;
	char note[SAMPLER_NOTE_MAX];
	uint64_t note_ns; /* when it was logged */
};

/* Logs what changed since the last call; a lasting failure once a minute. */
void report_changes(struct report *report, const struct sampler *sampler, uint64_t now_ns);

#endif
