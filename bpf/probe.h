/*
 * The probe's kernel side as a library: load, attach, drain. Nothing is pinned: when the handle is
 * closed or its process dies, no program stays behind.
 */
#ifndef TURNWARD_BPF_PROBE_H
#define TURNWARD_BPF_PROBE_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "bpf/record.h"

enum {
	PROBE_ADDRESSES_MAX = 256,  /* engines x their addresses ("localhost" has two) */
	PROBE_REASON_SIZE = 320,    /* a refusal in words, with what to do about it */
	PROBE_RING_BYTES = 1 << 20, /* ~11,900 records: 0.6 s at 20,000 records/s */
	PROBE_DRAIN_MS = 10,        /* no wake-ups: whoever drains does it this often */
	PROBE_DRAIN_IDLE_MS = 50,   /* ... and this often when nothing came */
};

struct probe;

struct probe_address {
	struct sockaddr_storage address; /* AF_INET or AF_INET6 with its port: what clients dial */
	uint8_t engine;                  /* comes back in every record */
};

struct probe_options {
	int cgroup_fd; /* a folder of a cgroup2 tree, open for reading; stays the caller's */
	bool bounded;  /* the variant for kernels 5.8-5.16 even on a newer one */
	bool first_event_rule; /* wrong on purpose: takes any event for a token (tests) */
};

/*
 * Loads and attaches to every socket that processes of the cgroup make from now on (and, late, to
 * those they have). On failure -errno, and `ret_reason` says in one line what is missing and how to
 * grant it:
 *   -EOPNOTSUPP built without BPF; -EBADF not a cgroup2 folder; -EPERM capabilities are missing or
 *   the kernel is locked down; -ENOSYS the kernel is too old or has no BPF; else what failed.
 */
int probe_open(struct probe **ret_probe, const struct probe_options *options,
	       char ret_reason[PROBE_REASON_SIZE]);

/* Detaches at once; what was not drained is lost. */
void probe_close(struct probe *probe);

/* Attaches to another cgroup instead. On failure -errno, and it stays where it was. */
int probe_move(struct probe *probe, int cgroup_fd);

/* "cgroup_skb" or "cgroup_skb, bounded loop". */
const char *probe_variant(const struct probe *probe);

/*
 * Which sockets are looked at from now on: replaces the former set. Requests under way keep the
 * engine that they began with. -E2BIG beyond PROBE_ADDRESSES_MAX, -EAFNOSUPPORT for other families;
 * then nothing has changed.
 */
int probe_engines_set(struct probe *probe, const struct probe_address *list, unsigned n);

typedef void probe_take(void *context, const struct probe_record *record);

/* Gives every record that waits, oldest first; returns how many, or -errno. Never blocks. */
int probe_drain(struct probe *probe, probe_take *take, void *context);

int probe_counters(const struct probe *probe, struct probe_counters *ret_counters);

#endif
