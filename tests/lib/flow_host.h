/* The kernel side's flow and scan code (bpf/flow.h) run on the host: segments come out of memory,
 * and what would go into the ring is kept in a list. */
#ifndef TURNWARD_TESTS_LIB_FLOW_HOST_H
#define TURNWARD_TESTS_LIB_FLOW_HOST_H

#include <assert.h>
#include <string.h>

#include "bpf/flow.h"

struct flow_reader {
	const __u8 *bytes;
	__u32 length;
};

enum { HOST_RECORDS = 64 };

static struct probe_record host_records[HOST_RECORDS];
static unsigned host_records_nr;
static __u64 host_counts[PROBE_COUNTER_NR];

SCAN_INLINE int flow_load(struct flow_reader *reader, __u32 offset, void *to, __u64 n)
{
	assert(n >= 1 && n <= SCAN_BLOCK && offset + n <= reader->length);
	memcpy(to, reader->bytes + offset, n);
	return 0;
}

/* As many blocks as the kernel side has. */
SCAN_INLINE void flow_walk(struct flow_walk *walk, flow_block *block)
{
	for (__u32 i = 0; i < FLOW_BLOCKS; i++)
		if (block(i, walk))
			break;
}

SCAN_INLINE void flow_count(enum probe_counter counter, __u64 n)
{
	host_counts[counter] += n;
}

SCAN_INLINE void flow_emit(const struct flow *flow, enum probe_kind kind, __u64 t_end)
{
	if (host_records_nr == HOST_RECORDS) { /* the latest are of interest */
		memmove(host_records, host_records + 1,
			sizeof(host_records) - sizeof(host_records[0]));
		host_records_nr--;
	}
	host_records[host_records_nr++] = flow_record(flow, kind, t_end);
}

/* A connection between two hosts that number their bytes. */
struct host_line {
	struct flow flow;
	__u32 out_seq, in_seq;
	__u64 now;
	int begun; /* the kernel side makes its state with the first payload */
};

static inline void host_begin(struct host_line *line)
{
	*line = (struct host_line){ .out_seq = 0xfffffff0u, .in_seq = 0xffffff00u };
	host_records_nr = 0;
	memset(host_counts, 0, sizeof(host_counts));
}

enum { HOST_FIN = 1, HOST_RST = 2 };

static inline void host_out_at(struct host_line *line, __u32 seq, const void *bytes, size_t n,
			       int ends)
{
	struct flow_reader reader = { bytes, (__u32)n };

	if (!line->begun) {
		if (!n)
			return;
		line->begun = 1;
		line->flow.tx_next = seq;
		line->flow.cookie = 7;
	}
	line->flow.out = (struct flow_segment){ .now = ++line->now,
						.seq = seq,
						.ack = line->in_seq,
						.length = (__u32)n,
						.fin = ends & HOST_FIN,
						.rst = !!(ends & HOST_RST) };
	flow_sent(&line->flow, &reader);
}

static inline void host_in_at(struct host_line *line, __u32 seq, const void *bytes, size_t n,
			      int ends)
{
	struct flow_reader reader = { bytes, (__u32)n };

	if (!line->begun)
		return;
	line->flow.in = (struct flow_segment){ .now = ++line->now,
					       .seq = seq,
					       .length = (__u32)n,
					       .fin = ends & HOST_FIN,
					       .rst = !!(ends & HOST_RST) };
	flow_received(&line->flow, &reader);
}

static inline void host_out(struct host_line *line, const void *bytes, size_t n)
{
	host_out_at(line, line->out_seq, bytes, n, 0);
	line->out_seq += (__u32)n;
}

static inline void host_in(struct host_line *line, const void *bytes, size_t n)
{
	host_in_at(line, line->in_seq, bytes, n, 0);
	line->in_seq += (__u32)n;
}

#endif
