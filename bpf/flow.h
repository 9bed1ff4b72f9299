/*
 * What one connection's segments mean: which request is under way, when its bytes left, when its
 * first token and its end came. Kernel side and tests compile this very code; who includes it
 * defines the four functions declared below, by which it reads, loops and tells.
 *
 * A connection is followed from the first request that begins on it under our eyes. Its egress and
 * its ingress may run at once on two CPUs: each writes fields of its own while a request is under
 * way. Two segments of one direction at once look like reordering, which is flagged (GAP).
 */
#ifndef TURNWARD_BPF_FLOW_H
#define TURNWARD_BPF_FLOW_H

#include "bpf/record.h"
#include "bpf/scan.h"

enum {
	FLOW_BODY_SCAN = 512,         /* of a request's body, at its start and at its end */
	FLOW_EVENTS_SCAN = 64 * 1024, /* of an answer, until its token */
#ifdef PROBE_BOUNDED
	FLOW_BLOCKS = 16,
#else
	FLOW_BLOCKS = 512, /* of a segment; a chunk takes two at least */
#endif
};

enum flow_request {
	REQUEST_NONE, /* between requests, or in what is none */
	REQUEST_HEAD,
	REQUEST_BODY,
	REQUEST_CHUNKS, /* a body without a length: it lasts until the answer */
};

enum flow_answer {
	ANSWER_NONE, /* nothing is awaited that counts */
	ANSWER_HEAD,
	ANSWER_BODY,
};

/*
 * A segment as its headers tell. It and the window lie in the flow, not on the stack: what comes
 * out of a map's memory the verifier knows nothing of, and so it goes through the scans once and
 * not once for each way that leads there.
 */
struct flow_segment {
	__u64 now;
	__u32 seq, ack;
	__u32 offset, length; /* of the payload */
	__u8 fin, rst;
	__u8 reserved[6];
};

/* The part of a segment that is being scanned. */
struct flow_window {
	__u32 offset, length, done;
#ifdef PROBE_BOUNDED
	__u8 block[SCAN_BLOCK]; /* too long for the stack */
#endif
};

/* Zero for a new connection. */
struct flow {
	__u64 cookie;
	__u64 t0_first, t0_last, t_hdr, t_tok, t_last;
	__u64 tx, rx;           /* bytes of this request and its answer */
	__u64 tx_left, rx_left; /* of their bodies, where a length is known */
	__u64 tail;             /* the answer's last bytes */
	struct flow_segment out, in;
	struct flow_window out_window, in_window;
	struct scan_head sent, answered;
	struct scan_events events;
	__u32 tx_next, rx_next; /* sequence numbers */
	__u32 sequence;
	__u32 events_scanned; /* bytes of the answer's body */
	__u32 segments;       /* from the token's on */
	__u16 tx_flags, rx_flags;
	__u16 client_port;
	__u8 engine;
	__u8 request; /* enum flow_request */
	__u8 answer;  /* enum flow_answer */
	__u8 reserved[7];
};

struct flow_reader; /* the includer's: what a segment's bytes are read from */

/* A scan of more than a block. */
struct flow_walk {
	struct flow_reader *reader;
	struct flow *flow;
};

typedef long flow_block(__u32 index, struct flow_walk *walk);

/* The includer's. Copies n bytes (1 to SCAN_BLOCK) of the segment; 0 if they are there. */
SCAN_INLINE int flow_load(struct flow_reader *reader, __u32 offset, void *to, __u64 n);

/* Calls for block 0, 1 and so on, until it returns 1 or as many have been as can be. */
SCAN_INLINE void flow_walk(struct flow_walk *walk, flow_block *block);

SCAN_INLINE void flow_emit(const struct flow *flow, enum probe_kind kind, __u64 t_end);

SCAN_INLINE void flow_count(enum probe_counter counter, __u64 n);

/* Reads the window's next block, `most` bytes or less; how many, 0 = there are none. */
SCAN_INLINE __u64 flow_block_load(struct flow_reader *reader, const struct flow_window *window,
				  __u8 *block, __u32 most)
{
	__u64 n = window->length - window->done;

	if (n > most)
		n = most;
	SCAN_CLAMP(n, SCAN_BLOCK);
	if (!n || flow_load(reader, window->offset + window->done, block, n))
		return 0;
	return n;
}

#ifdef PROBE_BOUNDED
#define FLOW_BLOCK(window) __u8 *block = (window).block
#else
#define FLOW_BLOCK(window) __u8 block[SCAN_BLOCK] = { 0 }
#endif

/* X(function, scan, the flow's window and part, bytes of use at once, what ends the scan) */
#define FLOW_BLOCK_FUNCTION(function, scan, window, part, most, end)                 \
	static long function(__u32 index, struct flow_walk *walk)                    \
	{                                                                            \
		struct flow *flow = walk->flow;                                      \
		FLOW_BLOCK(flow->window);                                            \
		__u64 n = flow_block_load(walk->reader, &flow->window, block, most); \
		if (!n)                                                              \
			return 1;                                                    \
		flow->window.done += scan(&flow->part, block, n);                    \
		return flow->part.found & (end) ? 1 : 0;                             \
	}

FLOW_BLOCK_FUNCTION(flow_request_block, scan_request, out_window, sent, SCAN_BLOCK, FOUND_END)
FLOW_BLOCK_FUNCTION(flow_request_body_block, scan_body, out_window, sent, SCAN_BLOCK, 0)
FLOW_BLOCK_FUNCTION(flow_answer_block, scan_answer, in_window, answered, SCAN_BLOCK, FOUND_END)
FLOW_BLOCK_FUNCTION(flow_events_block, scan_events, in_window, events,
		    scan_events_most(&flow->events), FOUND_TOKEN)

/* Scans n bytes from `offset`, or less if the end comes; returns how many it went over. */
SCAN_INLINE __u32 flow_scan(struct flow *flow, struct flow_reader *reader,
			    struct flow_window *window, __u32 offset, __u32 n, flow_block *block)
{
	struct flow_walk walk = { .reader = reader, .flow = flow };

	window->offset = offset;
	window->length = n;
	window->done = 0;
	SCAN_FORGET();
	flow_walk(&walk, block);
	SCAN_FORGET();
	flow_count(PROBE_COUNTER_scanned_bytes, window->done);
	return window->done;
}

/* Bytes below `next` are known: leaves the rest of the segment, which may be nothing. */
SCAN_INLINE int flow_drop_seen(struct flow_segment *segment, __u32 next)
{
	__u32 seen = next - segment->seq;

	if (!segment->length || (__s32)seen <= 0)
		return 0;
	if (seen > segment->length)
		seen = segment->length;
	segment->offset += seen;
	segment->length -= seen;
	segment->seq += seen;
	flow_count(PROBE_COUNTER_retransmits, 1);
	return 1;
}

SCAN_INLINE struct probe_record flow_record(const struct flow *flow, enum probe_kind kind,
					    __u64 t_end)
{
	return (struct probe_record){
		.cookie = flow->cookie,
		.t0_first_ns = flow->t0_first,
		.t0_last_ns = flow->t0_last,
		.t_hdr_ns = flow->t_hdr,
		.t_tok_ns = flow->t_tok,
		.t_end_ns = t_end,
		.tx_bytes = flow->tx,
		.rx_bytes = flow->rx,
		.sequence = flow->sequence,
		.flags = flow->tx_flags | flow->rx_flags,
		.status = flow->answered.status,
		.client_port = flow->client_port,
		.kind = kind,
		.engine = flow->engine,
		.segments = flow->segments,
	};
}

SCAN_INLINE void flow_end(struct flow *flow, __u64 when, __u16 flags)
{
	flow->rx_flags |= flags;
	flow_emit(flow, PROBE_END, when);
	flow->answer = ANSWER_NONE;
}

/* ---- what we send ---- */

SCAN_INLINE void flow_begin(struct flow *flow)
{
	flow->request = REQUEST_HEAD;
	flow->answer = ANSWER_NONE;
	flow->sent = (struct scan_head){ .state = STATE_REQUEST_HEAD };
	flow->answered = (struct scan_head){ .state = STATE_ANSWER_START };
	flow->events = (struct scan_events){ .state = STATE_EVENTS };
	flow->t0_first = flow->out.now;
	flow->t_hdr = flow->t_tok = flow->t_last = 0;
	flow->tx = flow->rx = 0;
	flow->rx_left = flow->tail = 0;
	flow->events_scanned = flow->segments = 0;
	flow->tx_flags = flow->rx_flags = 0;
	flow->rx_next = flow->out.ack; /* so that even the answer's first segment can be missed */
}

SCAN_INLINE int flow_is_post(const struct flow *flow, struct flow_reader *reader)
{
	__u8 method[4] = { 0 };

	if (flow->out.length < sizeof(method) ||
	    flow_load(reader, flow->out.offset, method, sizeof(method)))
		return 0;
	return method[0] == 'P' && method[1] == 'O' && method[2] == 'S' && method[3] == 'T';
}

/* A payload while no request is being sent: it begins one. */
SCAN_INLINE void flow_request_begins(struct flow *flow, struct flow_reader *reader)
{
	int post = flow_is_post(flow, reader);

	if (flow->request == REQUEST_CHUNKS && !post)
		return; /* more of the body, the answer being over */
	if (flow->answer != ANSWER_NONE)
		flow_end(flow, flow->t_last, PROBE_FLAG_LAZY);
	if (post) {
		flow_begin(flow);
	} else {
		flow_count(PROBE_COUNTER_ignored, 1);
		flow->request = REQUEST_NONE;
	}
}

/* The head is whole: what is it, and what follows? */
SCAN_INLINE void flow_head_sent(struct flow *flow)
{
	__u16 found = flow->sent.found;

	flow->tx_left = flow->sent.length;
	flow->request = found & FOUND_CHUNKED ? REQUEST_CHUNKS : REQUEST_BODY;
	if (found & FOUND_INTERNAL) {
		flow_count(PROBE_COUNTER_internal, 1);
	} else if (!(found & FOUND_GENERATION)) {
		flow_count(PROBE_COUNTER_ignored, 1);
	} else {
		flow_count(PROBE_COUNTER_requests, 1);
		flow->answer = ANSWER_HEAD;
		flow->sequence++;
	}
}

/* The body from `from` on. Whether it asks for a stream stands near either end of it. */
SCAN_INLINE void flow_body_sent(struct flow *flow, struct flow_reader *reader, __u32 from)
{
	__u32 n = flow->out.length - from, scanned = 0;
	int last = flow->request == REQUEST_BODY && n >= flow->tx_left;

	flow->tx_left = last ? 0 : flow->tx_left - n;
	if (last)
		flow->request = REQUEST_NONE;
	if (flow->answer == ANSWER_NONE)
		return;
	/* Nothing in it can tell more of one that is known to stream and cannot echo its prompt. */
	if ((~flow->sent.found & (FOUND_STREAM | FOUND_UNECHOED)) == 0)
		return;
	if (from && n)
		scanned =
			flow_scan(flow, reader, &flow->out_window, flow->out.offset + from,
				  n < FLOW_BODY_SCAN ? n : FLOW_BODY_SCAN, flow_request_body_block);
	n -= scanned;
	if (!last || !n)
		return;
	if (n > FLOW_BODY_SCAN) {
		n = FLOW_BODY_SCAN;
		flow->sent.state = STATE_REQUEST_BODY;
	}
	flow_scan(flow, reader, &flow->out_window, flow->out.offset + flow->out.length - n, n,
		  flow_request_body_block);
}

SCAN_INLINE void flow_bytes_sent(struct flow *flow, struct flow_reader *reader)
{
	__u32 used = 0;
	__u16 flags;

	flow->t0_last = flow->out.now;
	flow->tx += flow->out.length;
	if (flow->request == REQUEST_HEAD) {
		used = flow_scan(flow, reader, &flow->out_window, flow->out.offset,
				 flow->out.length, flow_request_block);
		if (flow->sent.found & FOUND_END) {
			flow_head_sent(flow);
		} else if (used < flow->out.length) { /* too long a head: nothing is known */
			flow_count(PROBE_COUNTER_capped, 1);
			flow->request = REQUEST_NONE;
		}
		if (!(flow->sent.found & FOUND_END))
			return;
	}
	flow_body_sent(flow, reader, used);
	flags = (flow->sent.found & FOUND_STREAM ? PROBE_FLAG_STREAM : 0) |
		(flow->sent.found & FOUND_ECHO ? PROBE_FLAG_ECHO : 0);
	if (flow->answer != ANSWER_NONE && (used || flags != (flow->tx_flags & flags))) {
		flow->tx_flags |= flags;
		flow_emit(flow, PROBE_START, 0);
	}
}

SCAN_INLINE void flow_sent(struct flow *flow, struct flow_reader *reader)
{
	if (flow_drop_seen(&flow->out, flow->tx_next))
		flow->tx_flags |= PROBE_FLAG_RETX;
	if (flow->out.length) {
		flow->tx_next = flow->out.seq + flow->out.length;
		if (flow->request == REQUEST_NONE ||
		    (flow->request == REQUEST_CHUNKS && flow->answer == ANSWER_NONE))
			flow_request_begins(flow, reader);
		if (flow->request != REQUEST_NONE)
			flow_bytes_sent(flow, reader);
	}
	if ((flow->out.fin || flow->out.rst) && flow->answer != ANSWER_NONE)
		flow_end(flow, flow->out.now, PROBE_FLAG_ABORT);
}

/* ---- what the engine answers ---- */

/* The eight bytes as they stand in memory, the first one highest. */
SCAN_INLINE __u64 flow_big_endian(__u64 bytes)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return __builtin_bswap64(bytes);
#else
	return bytes;
#endif
}

/* Bytes went by unread: what follows is not known to be in step. */
SCAN_INLINE void flow_out_of_step(struct flow *flow, enum probe_counter counter, __u16 flag)
{
	flow_count(counter, 1);
	flow->rx_flags |= flag;
	flow->events.raw = ~0u;
	flow->events.state = STATE_EVENTS;
	if (flow->answer == ANSWER_HEAD) { /* the head may be lost: take what comes for events */
		flow->answer = ANSWER_BODY;
		flow->answered.found |= FOUND_CHUNKED | FOUND_EVENTS;
	}
}

SCAN_INLINE void flow_head_received(struct flow *flow)
{
	__u16 found = flow->answered.found, status = flow->answered.status;

	flow->answer = ANSWER_BODY;
	flow->rx_left = flow->answered.length;
	if (status == 204 || status == 304) { /* no body, whatever the head says */
		flow->answered.found = FOUND_END | FOUND_LENGTH;
		flow->rx_left = 0;
	}
	if (status != 200)
		flow->rx_flags |= PROBE_FLAG_ERROR;
	flow->rx_flags |= found & FOUND_EVENTS ? PROBE_FLAG_STREAM : PROBE_FLAG_NONSTREAM;
	if (!(found & FOUND_CHUNKED))
		flow->events.raw = ~0u;
	if (flow->request == REQUEST_BODY)
		flow->rx_flags |= PROBE_FLAG_EARLY;
}

/* Looks for the token in the part of the body that begins at `from`. */
SCAN_INLINE void flow_events(struct flow *flow, struct flow_reader *reader, __u32 from)
{
	__u32 n = flow->in.length - from, used;

	if (flow->events_scanned >= FLOW_EVENTS_SCAN)
		return;
	used = flow_scan(flow, reader, &flow->in_window, flow->in.offset + from, n,
			 flow_events_block);
	flow->events_scanned += used;
	if (flow->events.found & FOUND_TOKEN) {
		flow->t_tok = flow->in.now;
		flow->segments = 1;
		flow_emit(flow, PROBE_TOKEN, 0);
		return;
	}
	if (used < n)
		scan_events_skip(&flow->events, n - used);
	if ((used < n || flow->events_scanned >= FLOW_EVENTS_SCAN) &&
	    !(flow->rx_flags & PROBE_FLAG_CAPPED)) {
		flow_count(PROBE_COUNTER_capped, 1);
		flow->rx_flags |= PROBE_FLAG_CAPPED;
	}
}

/* Whether the segment ends with a last chunk, however the stream is cut. */
SCAN_INLINE int flow_chunks_end(struct flow *flow, struct flow_reader *reader)
{
	__u64 n = flow->in.length, tail = 0;

	SCAN_CLAMP(n, sizeof(tail));
	if (!n || flow_load(reader, flow->in.offset + flow->in.length - n, &tail, n))
		return 0;
	tail = flow_big_endian(tail);
	flow->tail = n == sizeof(tail) ? tail : flow->tail << n * 8 | tail >> (64 - n * 8);
	return (flow->tail & 0x00ffffffffffffff) == 0x0d0a300d0a0d0a; /* "\r\n0\r\n\r\n" */
}

/* `passed`: bytes of the body that this segment has brought us past. */
SCAN_INLINE void flow_body_received(struct flow *flow, struct flow_reader *reader, __u32 from,
				    __u32 passed)
{
	__u16 found = flow->answered.found;
	int chunks_end = found & FOUND_CHUNKED && flow_chunks_end(flow, reader);

	if (flow->t_tok)
		flow->segments++;
	else if ((found & FOUND_EVENTS) && !(flow->rx_flags & PROBE_FLAG_ERROR) &&
		 from < flow->in.length)
		flow_events(flow, reader, from);
	if (found & FOUND_CHUNKED) {
		if (chunks_end)
			flow_end(flow, flow->in.now, 0);
	} else if (found & FOUND_LENGTH) {
		flow->rx_left = passed < flow->rx_left ? flow->rx_left - passed : 0;
		if (!flow->rx_left)
			flow_end(flow, flow->in.now, 0);
	}
}

/* `hole`: bytes that should have come before these. */
SCAN_INLINE void flow_bytes_received(struct flow *flow, struct flow_reader *reader, __u32 hole)
{
	__u32 used = 0;

	flow->rx += hole + flow->in.length;
	flow->t_last = flow->in.now;
	if (hole)
		flow_out_of_step(flow, PROBE_COUNTER_gaps, PROBE_FLAG_GAP);
	if (flow->answer == ANSWER_HEAD) {
		used = flow_scan(flow, reader, &flow->in_window, flow->in.offset, flow->in.length,
				 flow_answer_block);
		if (!flow->t_hdr && (flow->answered.found & FOUND_STATUS))
			flow->t_hdr = flow->in.now;
		if (flow->answered.found & FOUND_END)
			flow_head_received(flow);
		else if (used < flow->in.length)
			flow_out_of_step(flow, PROBE_COUNTER_capped, PROBE_FLAG_CAPPED);
		if (!(flow->answered.found & FOUND_END))
			return;
	}
	flow_body_received(flow, reader, used, hole + flow->in.length - used);
}

SCAN_INLINE void flow_received(struct flow *flow, struct flow_reader *reader)
{
	if (flow_drop_seen(&flow->in, flow->rx_next))
		flow->rx_flags |= PROBE_FLAG_RETX;
	if (flow->in.length) {
		__u32 hole = flow->in.seq - flow->rx_next;

		flow->rx_next = flow->in.seq + flow->in.length;
		if (flow->answer != ANSWER_NONE)
			flow_bytes_received(flow, reader, hole);
	}
	if ((flow->in.fin || flow->in.rst) && flow->answer != ANSWER_NONE) {
		int unframed = flow->answer == ANSWER_BODY &&
			       !(flow->answered.found & (FOUND_CHUNKED | FOUND_LENGTH));

		flow_end(flow, flow->in.now, unframed && !flow->in.rst ? 0 : PROBE_FLAG_TRUNC);
	}
}

#endif
