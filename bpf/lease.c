/* Holding `latency` through restarts of the region and of other probes. */
#include "bpf/lease.h"

#include <errno.h>
#include <string.h>

#include "shm/base/clock.h"

static const uint64_t TRY_NS = NS_PER_S / 4;

int lease_open(struct lease *lease, const char *option)
{
	int err;

	*lease = (struct lease){ .option = option, .region.dir_fd = -1 };
	err = region_open(&lease->region, option, 1, lease->error);
	lease->open = err == 0;
	return err;
}

static void let_go(struct lease *lease)
{
	if (lease->held)
		latency_file_drop(&lease->file);
	lease->held = 0;
	if (lease->open)
		region_close(&lease->region);
	lease->open = 0;
}

/* Readers need not wait a second to see that there is no probe any more. */
void lease_close(struct lease *lease)
{
	static const struct latency_record gone;

	for (unsigned i = 0; lease->held && i < STATE_ENGINES_MAX; i++)
		latency_file_publish(&lease->file, i, &gone);
	let_go(lease);
}

static enum lease_news take(struct lease *lease)
{
	int err = latency_file_hold(&lease->file, &lease->region, lease->error);
	uint8_t waited = lease->waiting;

	lease->waiting = err == -EBUSY;
	if (err == 0) {
		lease->held = 1;
		latency_file_publish_info(&lease->file, &lease->info);
		return LEASE_TAKEN;
	}
	if (err != -EBUSY)
		return LEASE_FAILED;
	return waited ? LEASE_NONE : LEASE_WAITS;
}

enum lease_news lease_keep(struct lease *lease, uint64_t now_ns)
{
	if (lease->open && lease->held) {
		if (now_ns - lease->checked_ns < NS_PER_S)
			return LEASE_NONE;
		lease->checked_ns = now_ns;
		if (!region_moved(&lease->region) &&
		    !region_file_moved(&lease->region, &lease->file.file))
			return LEASE_NONE;
		let_go(lease);
		return LEASE_LOST;
	}
	if (now_ns - lease->tried_ns < TRY_NS)
		return LEASE_NONE;
	lease->tried_ns = now_ns;
	if (lease->open && region_moved(&lease->region))
		let_go(lease);
	if (!lease->open) {
		if (region_open(&lease->region, lease->option, 1, lease->error) < 0)
			return LEASE_FAILED;
		lease->open = 1;
	}
	return take(lease);
}

void lease_describe(struct lease *lease, const struct latency_info *info)
{
	lease->info = *info;
	if (lease->held)
		latency_file_publish_info(&lease->file, info);
}

void lease_publish(struct lease *lease, const struct latency_record *records, unsigned nr)
{
	for (unsigned i = 0; lease->held && i < nr; i++)
		latency_file_publish(&lease->file, i, &records[i]);
}
