/* What the cells share: figures of the round at hand, clients of an arm. */
#ifndef TURNWARD_BENCH_LOAD_CELLS_H
#define TURNWARD_BENCH_LOAD_CELLS_H

#include <stdio.h>

#include "bench/load.h"

void load_set(struct load_run *run, enum load_arm_id id, enum load_figure figure, double value);
double load_get(const struct load_run *run, enum load_arm_id id, enum load_figure figure);

/* NULL without memory. */
struct load_client *load_client_for(struct load_run *run, enum load_arm_id id,
				    const struct load_ask *ask);
uint64_t load_arm_cpu_ns(const struct load_run *run, enum load_arm_id id);

/* Nothing failed and something came; else the arm's complaint is kept. */
bool load_good(struct load_run *run, enum load_arm_id id, const struct load_told *told);

/* Works until so many streams have had an event, or so long. */
void load_wait_streaming(struct load_client *client, unsigned streams, double seconds);

void load_cell_idle(struct load_run *run, enum load_arm_id id);
void load_cell_isolation(struct load_run *run, enum load_arm_id id);

#endif
