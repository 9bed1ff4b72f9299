/* The probe's library where it was built without BPF: it says so, and everything else works. */
#include <errno.h>
#include <stdio.h>

#include "bpf/probe.h"

int probe_open(struct probe **ret_probe, const struct probe_options *options,
	       char ret_reason[PROBE_REASON_SIZE])
{
	snprintf(ret_reason, PROBE_REASON_SIZE,
		 "built without BPF; to have it, install libbpf-dev, clang and bpftool and build "
		 "with "
		 "-Dbpf=enabled");
	return -EOPNOTSUPP;
}

void probe_close(struct probe *probe)
{
}

int probe_move(struct probe *probe, int cgroup_fd)
{
	return -EOPNOTSUPP;
}

const char *probe_variant(const struct probe *probe)
{
	return "none";
}

int probe_engines_set(struct probe *probe, const struct probe_address *list, unsigned n)
{
	return -EOPNOTSUPP;
}

int probe_drain(struct probe *probe, probe_take *take, void *context)
{
	return -EOPNOTSUPP;
}

int probe_counters(const struct probe *probe, struct probe_counters *ret_counters)
{
	return -EOPNOTSUPP;
}
