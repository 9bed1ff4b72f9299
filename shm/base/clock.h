/* Time: one monotonic clock for every interval, wall clock for log lines only. */
#ifndef TURNWARD_SHM_BASE_CLOCK_H
#define TURNWARD_SHM_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

enum { NS_PER_US = 1000, NS_PER_MS = 1000 * 1000, NS_PER_S = 1000 * 1000 * 1000 };

/* Nanoseconds of CLOCK_MONOTONIC: equal in all processes of the host, so ages across them are
 * valid. */
static inline uint64_t clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

/* Nanoseconds since the Unix epoch; jumps, so never subtract two of them. */
static inline uint64_t clock_wall_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

#endif
