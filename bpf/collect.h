/*
 * From the kernel's records to what is known of each engine: windows, counts, requests under way.
 * What is doubtful is counted and not timed.
 */
#ifndef TURNWARD_BPF_COLLECT_H
#define TURNWARD_BPF_COLLECT_H

#include "bpf/open.h"
#include "bpf/record.h"
#include "router/stats/timing.h"
#include "shm/latency.h"
#include "shm/state.h"

#include <stdint.h>

enum { COLLECT_SAMPLE_MAX = 512 }; /* bytes of a sample's line */

/* After collect_init(); an engine in use costs a quarter of a MB. */
struct collect {
	struct timing *engine[STATE_ENGINES_MAX]; /* NULL = nobody has that index */
	struct open_table open;
	uint64_t lost; /* records, by the kernel's counter */
};

void collect_init(struct collect *c);
void collect_fini(struct collect *c);

/* Another engine takes the index: it starts with nothing. -ENOMEM: it is not timed. */
int collect_engine_reset(struct collect *c, unsigned engine, uint64_t window_ns);

/* One record. 1 if it ends a request: there is a sample to write. */
int collect_take(struct collect *c, const struct probe_record *record, uint64_t now_ns);

/* The kernel's count of lost records. 1 if it has moved: open_settle() is due. */
int collect_lost(struct collect *c, uint64_t drops);

/* Every engine's record, names left alone. */
void collect_records(struct collect *c, uint64_t now_ns,
		     struct latency_record records[STATE_ENGINES_MAX], unsigned engines_nr);

/* An END record as a line of JSON with its newline; its length. */
unsigned collect_sample(char line[COLLECT_SAMPLE_MAX], const struct probe_record *record,
			const char *engine);

#endif
