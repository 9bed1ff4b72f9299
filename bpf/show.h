/* --print: the engines' latency as a table for people. */
#ifndef TURNWARD_BPF_SHOW_H
#define TURNWARD_BPF_SHOW_H

#include "bpf/record.h"
#include "bpf/targets.h"
#include "shm/latency.h"

#include <stdio.h>

void show_table(FILE *out, const struct targets *targets, const struct latency_record *records,
		const struct probe_counters *counters, uint64_t now_ns, uint64_t window_ns);

#endif
