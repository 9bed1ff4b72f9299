/*
 * What the kernel side of the probe tells the daemon of one request: one record in the ring. Plain
 * types only, since the BPF program includes it too.
 */
#ifndef TURNWARD_BPF_RECORD_H
#define TURNWARD_BPF_RECORD_H

#include <linux/types.h>

/*
 * When a record is written. END carries every stamp, so that a lost START or TOKEN costs freshness
 * and nothing else. START comes when the request's head is complete, and once more when a later
 * part of a long body shows a flag (STREAM, ECHO) that it did not have.
 */
#define PROBE_KINDS(X)                                                              \
	X(START, "a generation request leaves for an engine")                       \
	X(TOKEN, "the first event with non-empty content, reasoning, tool or text") \
	X(END, "the answer is complete, or will never be")

enum probe_kind {
	PROBE_NONE,
#define X(name, meaning) PROBE_##name,
	PROBE_KINDS(X)
#undef X
};

/*
 * What is special about a request; 0 is a clean stream, as far as it has got. X(name, bit,
 * meaning). PROBE_FLAGS_STREAM is information, not a blemish, and is left out of `flags` in
 * samples.
 */
#define PROBE_FLAGS(X)                                                                      \
	X(LAZY, 0, "the end was inferred from the connection's next request")               \
	X(ABORT, 1, "our side closed or reset before the answer was complete")              \
	X(TRUNC, 2, "the engine closed or reset before the answer was complete")            \
	X(GAP, 3, "bytes of the answer were lost or out of order: stamps may be late")      \
	X(RETX, 4, "bytes were sent again; harmless, the first time counts")                \
	X(EARLY, 5, "the answer began before the request was sent whole")                   \
	X(NONSTREAM, 6, "the answer is not an event stream: no first token is visible")     \
	X(ECHO, 7, "the prompt is echoed: the first text is none of the engine's")          \
	X(CAPPED, 8, "bytes before the first token went unscanned: it may be late or none") \
	X(ERROR, 9, "the status is not 200")                                                \
	X(STREAM, 15, "known to stream: the request asks so, or the answer's type says so")

enum probe_flag {
#define X(name, bit, meaning) PROBE_FLAG_##name = 1 << bit,
	PROBE_FLAGS(X)
#undef X
};

/* With any of these a first token's time is not a sample of TTFT. */
enum {
	PROBE_FLAGS_NO_TTFT = PROBE_FLAG_LAZY | PROBE_FLAG_GAP | PROBE_FLAG_EARLY |
			      PROBE_FLAG_NONSTREAM | PROBE_FLAG_ECHO | PROBE_FLAG_CAPPED |
			      PROBE_FLAG_ERROR,
};

/*
 * Times are CLOCK_MONOTONIC nanoseconds, 0 where the event has not come. The first token's wait of
 * a user is t_tok - t0_first; the engine's own is t_tok - t0_last.
 */
struct probe_record {
	__u64 cookie;                  /* the socket's, never used again while the host runs */
	__u64 t0_first_ns, t0_last_ns; /* first and last byte of the request left TCP */
	__u64 t_hdr_ns;                /* first byte of the answer's final head */
	__u64 t_tok_ns;
	__u64 t_end_ns;
	__u64 tx_bytes, rx_bytes; /* of the stream, heads and framing included */
	__u32 sequence;           /* the request's number on its connection, from 1 */
	__u16 flags;              /* enum probe_flag */
	__u16 status;             /* 0 = no head yet */
	__u16 client_port;        /* our end, host order */
	__u8 kind;                /* enum probe_kind */
	__u8 engine;              /* index given by probe_engines_set() */
	__u32 segments;           /* of the answer with payload, from the first token's on */
};
_Static_assert(sizeof(struct probe_record) == 80, "both sides agree on the ring's records");

/* Counted on every CPU and summed; none is ever reset. X(name, meaning). */
#define PROBE_COUNTERS(X)                                                       \
	X(packets, "segments with payload, or FIN or RST, of engines' sockets") \
	X(scanned_bytes, "bytes that the tables stepped over")                  \
	X(requests, "generation requests that were counted")                    \
	X(ignored, "other requests: not a generation path, not POST")           \
	X(internal, "requests marked x-turnward-internal")                      \
	X(records, "records put in the ring")                                   \
	X(drops, "records lost because the ring was full")                      \
	X(gaps, "holes in an answer's sequence numbers")                        \
	X(retransmits, "segments seen before")                                  \
	X(capped, "requests whose scan ended at its bound")

enum probe_counter {
#define X(name, meaning) PROBE_COUNTER_##name,
	PROBE_COUNTERS(X)
#undef X
		PROBE_COUNTER_NR
};

struct probe_counters {
#define X(name, meaning) __u64 name;
	PROBE_COUNTERS(X)
#undef X
};

#endif
