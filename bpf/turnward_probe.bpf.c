/*
 * The kernel side of the probe: two programs on a cgroup that see what its sockets send to engines
 * and get back, and tell the daemon when. Uses only what the kernel's stable headers declare, so it
 * needs no type information of the running kernel. No payload leaves it.
 *
 * Compiled twice: as it is (kernels from 5.17), and with PROBE_BOUNDED (from 5.8), whose loop the
 * verifier walks through.
 *
 * SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
 */
#include <linux/bpf.h>
#include <linux/in.h>
#include <stddef.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "bpf/flow.h"
#include "bpf/maps.h"

/* Tells libbpf which licence permits the helpers; the source is under either. */
char probe_license[] SEC("license") = "Dual BSD/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE); /* goes with its socket: nothing to evict */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAPS_ENGINES);
	__type(key, struct maps_address);
	__type(value, __u8);
} engines SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, MAPS_RING_BYTES);
} records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct probe_counters);
} counters SEC(".maps");

enum {
	TCP_FIN = 1,
	TCP_RST = 4,
	TCP_HEAD = 20,
	IPV4_HEAD = 20, /* without options */
	IPV6_HEAD = 40,
	IPV6_HOP_BY_HOP = 0,
};

struct flow_reader {
	struct __sk_buff skb;
};

SCAN_INLINE int flow_load(struct flow_reader *reader, __u32 offset, void *to, __u64 n)
{
	return bpf_skb_load_bytes(&reader->skb, offset, to, n);
}

SCAN_INLINE struct bpf_sock *tcp_socket(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;

	if (!sk)
		return NULL;
	sk = bpf_sk_fullsock(sk);
	return sk && sk->protocol == IPPROTO_TCP ? sk : NULL;
}

#ifdef PROBE_BOUNDED

/*
 * The verifier goes through every turn of a block's loop, so it may meet the loop but once: in a
 * function that is global and checked by itself, and so can be given no more than the packet.
 */
#define BLOCK_FUNCTION(name, block)                                              \
	__attribute__((noinline)) int name(struct __sk_buff *skb)                \
	{                                                                        \
		struct flow_walk walk = { .reader = (struct flow_reader *)skb }; \
		struct bpf_sock *sk = tcp_socket(skb);                           \
		if (!sk)                                                         \
			return 1;                                                \
		walk.flow = bpf_sk_storage_get(&flows, sk, NULL, 0);             \
		return walk.flow ? block(0, &walk) : 1;                          \
	}

BLOCK_FUNCTION(turnward_request, flow_request_block)
BLOCK_FUNCTION(turnward_request_body, flow_request_body_block)
BLOCK_FUNCTION(turnward_answer, flow_answer_block)
BLOCK_FUNCTION(turnward_events, flow_events_block)

SCAN_INLINE int walk_block(struct __sk_buff *skb, flow_block *block)
{
	if (block == flow_request_block)
		return turnward_request(skb);
	if (block == flow_request_body_block)
		return turnward_request_body(skb);
	if (block == flow_answer_block)
		return turnward_answer(skb);
	return turnward_events(skb);
}

SCAN_INLINE void flow_walk(struct flow_walk *walk, flow_block *block)
{
	for (int i = 0; i < FLOW_BLOCKS; i++)
		if (walk_block(&walk->reader->skb, block))
			break;
}

#else

SCAN_INLINE void flow_walk(struct flow_walk *walk, flow_block *block)
{
	bpf_loop(FLOW_BLOCKS, block, walk, 0);
}

#endif

/*
 * A softirq may come in between on the same CPU, hence atomic; of what goes up with every packet
 * one more or less means nothing.
 */
SCAN_INLINE void flow_count(enum probe_counter counter, __u64 n)
{
	__u32 zero = 0;
	__u64 *counts = bpf_map_lookup_elem(&counters, &zero);

	if (!counts)
		return;
	if (counter == PROBE_COUNTER_packets || counter == PROBE_COUNTER_scanned_bytes)
		counts[counter] += n;
	else
		__sync_fetch_and_add(&counts[counter], n);
}

/* Never wakes the reader: that costs more than all the rest. It comes by itself. */
SCAN_INLINE void flow_emit(const struct flow *flow, enum probe_kind kind, __u64 t_end)
{
	struct probe_record *record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);

	if (!record) {
		flow_count(PROBE_COUNTER_drops, 1);
		return;
	}
	*record = flow_record(flow, kind, t_end);
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	flow_count(PROBE_COUNTER_records, 1);
}

/* What matters of TCP's header, in the network's order. */
struct tcp_fields {
	__be32 seq, ack;
	__u8 length, flags; /* the former in its upper half, in words */
};

enum { TCP_FIELDS_AT = 4, TCP_FIELDS = 10 };

/* Where TCP's header begins; 0 = this is not TCP. */
SCAN_INLINE __u32 tcp_at(struct __sk_buff *skb)
{
	__u8 head[10], option[2];

	if (bpf_skb_load_bytes(skb, 0, head, sizeof(head)))
		return 0;
	if (head[0] >> 4 == 4)
		return head[9] == IPPROTO_TCP ? (head[0] & 15) * 4 : 0;
	if (head[6] == IPPROTO_TCP)
		return IPV6_HEAD;
	/* Segments beyond 64 KiB (BIG TCP) bear their size in a hop-by-hop option. */
	if (head[6] != IPV6_HOP_BY_HOP ||
	    bpf_skb_load_bytes(skb, IPV6_HEAD, option, sizeof(option)) || option[0] != IPPROTO_TCP)
		return 0;
	return IPV6_HEAD + (option[1] + 1) * 8;
}

#define TCP_FIELDS_READ(at)                                       \
	((struct tcp_fields){ .seq = *(const __be32 *)((at) + 4), \
			      .ack = *(const __be32 *)((at) + 8), \
			      .length = (at)[12],                 \
			      .flags = (at)[13] })

/* The same with its fields, in a few loads for the two forms that nearly all packets have. */
SCAN_INLINE __u32 tcp_read(struct __sk_buff *skb, struct tcp_fields *ret)
{
	const __u8 *ip = (const __u8 *)(long)skb->data, *end = (const __u8 *)(long)skb->data_end;
	__u32 at;

	if (ip + IPV4_HEAD + TCP_HEAD <= end && ip[0] == (4 << 4 | IPV4_HEAD / 4)) {
		if (ip[9] != IPPROTO_TCP)
			return 0;
		*ret = TCP_FIELDS_READ(ip + IPV4_HEAD);
		return IPV4_HEAD;
	}
	if (ip + IPV6_HEAD + TCP_HEAD <= end && ip[0] >> 4 == 6 && ip[6] == IPPROTO_TCP) {
		*ret = TCP_FIELDS_READ(ip + IPV6_HEAD);
		return IPV6_HEAD;
	}
	at = tcp_at(skb);
	return at && bpf_skb_load_bytes(skb, at + TCP_FIELDS_AT, ret, TCP_FIELDS) == 0 ? at : 0;
}

/* 0, or -1 where there is nothing to see: an empty acknowledgement, or not TCP. */
SCAN_INLINE int segment_read(struct __sk_buff *skb, struct flow_segment *ret)
{
	struct tcp_fields fields = { 0 };
	__u32 at = tcp_read(skb, &fields);

	if (!at)
		return -1;
	ret->fin = fields.flags & TCP_FIN;
	ret->rst = fields.flags & TCP_RST;
	ret->offset = at + (fields.length >> 4) * 4;
	ret->length = skb->len > ret->offset ? skb->len - ret->offset : 0;
	if (!ret->length && !ret->fin && !ret->rst)
		return -1;
	ret->seq = bpf_ntohl(fields.seq);
	ret->ack = bpf_ntohl(fields.ack);
	return 0;
}

/* A load of 32 bits straight from the socket: what every kernel allows, also of the port. Left to
 * itself clang computes the address first, which none does. */
#define SOCKET_WORD(sk, field)                                                                  \
	({                                                                                      \
		__u64 word_;                                                                    \
		__asm__ volatile("%[word] = *(u32 *)(%[from] + %[at])"                          \
				 : [word] "=r"(word_)                                           \
				 : [from] "r"(sk), [at] "i"(offsetof(struct bpf_sock, field))); \
		(__u32) word_;                                                                  \
	})

/* The engine that the socket is connected to. The socket's idea of it counts, not the packet's:
 * after address translation they differ. */
SCAN_INLINE __u8 *engine_of(struct bpf_sock *sk)
{
	struct maps_address address = { 0 };

	address.port = SOCKET_WORD(sk, dst_port);
	if (sk->family == MAPS_INET6) {
		address.ip[0] = SOCKET_WORD(sk, dst_ip6[0]);
		address.ip[1] = SOCKET_WORD(sk, dst_ip6[1]);
		address.ip[2] = SOCKET_WORD(sk, dst_ip6[2]);
		address.ip[3] = SOCKET_WORD(sk, dst_ip6[3]);
	} else {
		address.ip[2] = bpf_htonl(0xffff);
		address.ip[3] = SOCKET_WORD(sk, dst_ip4);
	}
	return bpf_map_lookup_elem(&engines, &address);
}

enum { PASS = 1 };

/* A payload now may begin a request, which counts only if it is for an engine. */
SCAN_INLINE int may_begin(const struct flow *flow)
{
	return flow->request == REQUEST_NONE || flow->request == REQUEST_CHUNKS;
}

SEC("cgroup_skb/egress")
int turnward_sent(struct __sk_buff *skb)
{
	struct flow_segment segment = { 0 };
	struct bpf_sock *sk;
	struct flow *flow;
	__u8 *engine = NULL;

	if (segment_read(skb, &segment))
		return PASS;
	sk = tcp_socket(skb);
	if (!sk)
		return PASS;
	flow = bpf_sk_storage_get(&flows, sk, NULL, 0);
	if (segment.length && (!flow || may_begin(flow))) {
		engine = engine_of(sk);
		if (!engine)
			return PASS;
		if (!flow)
			flow = bpf_sk_storage_get(&flows, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	}
	if (!flow)
		return PASS;
	if (!flow->cookie) {
		flow->cookie = bpf_get_socket_cookie(skb);
		flow->client_port = sk->src_port;
		flow->tx_next = segment.seq;
	}
	if (engine && flow->answer == ANSWER_NONE)
		flow->engine = *engine;
	segment.now = bpf_ktime_get_ns();
	flow_count(PROBE_COUNTER_packets, 1);
	flow->out = segment;
	SCAN_FORGET();
	flow_sent(flow, (struct flow_reader *)skb);
	return PASS;
}

SEC("cgroup_skb/ingress")
int turnward_received(struct __sk_buff *skb)
{
	struct flow_segment segment = { 0 };
	struct bpf_sock *sk;
	struct flow *flow;

	if (segment_read(skb, &segment))
		return PASS;
	sk = tcp_socket(skb);
	if (!sk)
		return PASS;
	flow = bpf_sk_storage_get(&flows, sk, NULL, 0);
	if (!flow)
		return PASS;
	segment.now = bpf_ktime_get_ns();
	flow_count(PROBE_COUNTER_packets, 1);
	flow->in = segment;
	SCAN_FORGET();
	flow_received(flow, (struct flow_reader *)skb);
	return PASS;
}
