/*
 * The GPU beside the engine, through the driver's own library (NVML), loaded at run time if it is
 * there. Without a GPU, a driver or a permission the values are absent and `why` says which.
 */
#ifndef TURNWARD_AGENT_GPU_H
#define TURNWARD_AGENT_GPU_H

#include <stddef.h>
#include <stdint.h>

#include "shm/state.h"

enum { GPU_WHY_MAX = 160 };

struct gpu {
	void *library;
	void *device; /* NVML's handle, NULL = none */
	const struct gpu_calls *calls;
	uint64_t read_ns;
	double utilization; /* 0..1, negative = not told */
	uint64_t memory_used;
	int has_memory;
	char name[64]; /* "0 NVIDIA H20" */
};

/* 0, or -ENODEV with `why`. The struct is usable either way. */
int gpu_open(struct gpu *gpu, unsigned index, char why[GPU_WHY_MAX]);
void gpu_close(struct gpu *gpu);

/* Reads the driver at most once a second, sets what it tells in `state`. */
void gpu_sample(struct gpu *gpu, uint64_t now_ns, struct engine_state *state);

#endif
