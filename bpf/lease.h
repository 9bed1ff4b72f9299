/*
 * The right to publish: of several probes, one holds the region's `latency` file, and the next
 * takes over when it ends. All of them see the traffic meanwhile.
 */
#ifndef TURNWARD_BPF_LEASE_H
#define TURNWARD_BPF_LEASE_H

#include "shm/files.h"
#include "shm/region.h"

#include <stdint.h>

struct lease {
	const char *option; /* --region */
	struct region region;
	uint8_t open, held;
	uint8_t waiting; /* another probe has it */
	struct latency_file file;
	struct latency_info info;
	uint64_t tried_ns, checked_ns;
	char error[REGION_ERROR_MAX];
};

/* Finds or makes the region. -errno with lease->error: nothing will be published. */
int lease_open(struct lease *lease, const char *option);
void lease_close(struct lease *lease);

/* What it may have become: X(ID, said at level, sentence). */
#define LEASE_NEWS(X)                                                               \
	X(NONE, LOG_DEBUG, "nothing new")                                           \
	X(TAKEN, LOG_INFO, "publishes")                                             \
	X(WAITS, LOG_INFO, "another probe publishes; this one takes over after it") \
	X(LOST, LOG_WARN, "the region was removed or replaced: made again")         \
	X(FAILED, LOG_ERROR, "cannot publish")

#define LEASE_NEWS_ENUM(id, level, text) LEASE_##id,
enum lease_news { LEASE_NEWS(LEASE_NEWS_ENUM) };
#undef LEASE_NEWS_ENUM

/* Now and then: takes the lease if it is free, holds on to it where the region was replaced. */
enum lease_news lease_keep(struct lease *lease, uint64_t now_ns);

/* Published with the next taking. */
void lease_describe(struct lease *lease, const struct latency_info *info);
void lease_publish(struct lease *lease, const struct latency_record *records, unsigned nr);

#endif
