/*
 * Steps over a connection's bytes with the generated tables. The kernel side and the tests compile
 * this very code. The loops have few branches or none but their end, so that the verifier walks few
 * paths through them whatever the bytes are: results are mixed in by masks.
 */
#ifndef TURNWARD_BPF_SCAN_H
#define TURNWARD_BPF_SCAN_H

#include <linux/types.h>

/* libbpf places constants by their symbols, which only global ones have. */
#ifdef __bpf__
#define SCAN_TABLE const
#else
#define SCAN_TABLE static const
#endif

#ifdef PROBE_FIRST_EVENT
#include "bpf/tables_first_event.h"
#else
#include "bpf/tables.h"
#endif

#define SCAN_INLINE static inline __attribute__((always_inline))

/* Bytes that are stepped over at once. */
#ifdef PROBE_BOUNDED
enum { SCAN_BLOCK = 256 };
#else
enum { SCAN_BLOCK = 128 };
#endif

/* A head, or a request's body. Zero but for `state` at its start. */
struct scan_head {
	__u64 length; /* Content-Length */
	__u16 status;
	__u16 found; /* FOUND_... so far */
	__u8 state;
	__u8 reserved[3];
};

/* The body of an answer: events inside chunks, which may be cut anywhere. */
struct scan_events {
	__u32 raw;  /* all ones: not chunked, or no longer known where chunks begin */
	__u32 left; /* of the current chunk */
	__u32 size; /* as far as its digits are read */
	__u16 found;
	__u8 state;
	__u8 frame;
};

/* Hides from the compiler how a mask came about; it would make a branch of it. */
#define SCAN_HIDE(value) __asm__("" : "+r"(value))

/* All ones where the bit is set, else 0. */
SCAN_INLINE __u64 scan_mask(__u64 found, __u64 bit)
{
	__u64 mask = -(found / bit & 1);

	SCAN_HIDE(mask);
	return mask;
}

/* What is in memory is read again: so that it comes from there, unknown. */
#define SCAN_FORGET() __asm__ volatile("" ::: "memory")

/* n = min(n, max), said so that the verifier knows it: clang loses the bound on its way to a call.
 */
#ifdef __bpf__
#define SCAN_CLAMP(n, max) \
	__asm__ volatile("%0 <<= 32; %0 >>= 32; if %0 <= %1 goto +1; %0 = %1" : "+r"(n) : "i"(max))
#else
#define SCAN_CLAMP(n, max) ((void)((n) > (max) ? (n) = (max) : (n)))
#endif

/*
 * Both are bytes, which the verifier knows to stay within the table. A row for each state and byte
 * takes 64 KiB; sharing columns would cost a second look-up for every byte.
 */
#define SCAN_NEXT(next, state, byte) (next)[(state) << 8 | (byte)]
_Static_assert(SCAN_STATES == 256, "a state is a byte");

/* Whether to look at what a state finds: seldom, or, for an older verifier's sake, always. */
#ifdef PROBE_BOUNDED
#define SCAN_FINDS(table, state) 1
#else
#define SCAN_FINDS(table, state) ((state) >= table##_FINDS)
#endif

/*
 * Each goes over min(n, SCAN_BLOCK) bytes, or up to and including the one that ends a head or
 * brings the token; returns how many that were.
 */
#define SCAN_HEAD_FUNCTION(name, table, has_status)                                            \
	SCAN_INLINE __u32 name(struct scan_head *scan, const __u8 *bytes, __u64 n)             \
	{                                                                                      \
		__u64 state = scan->state, found = scan->found, status = scan->status, left;   \
		__u64 length = scan->length;                                                   \
		const __u8 *next = table##_next;                                               \
		SCAN_CLAMP(n, SCAN_BLOCK);                                                     \
		SCAN_HIDE(next);                                                               \
		SCAN_HIDE(bytes);                                                              \
		for (left = n; left; left--, bytes++) {                                        \
			__u64 byte = *bytes, digit, now;                                       \
			state = SCAN_NEXT(next, state, byte);                                  \
			if (!SCAN_FINDS(table, state))                                         \
				continue;                                                      \
			now = table##_found[state];                                            \
			digit = (byte - '0') & 15;                                             \
			found |= now;                                                          \
			length += scan_mask(now, FOUND_LENGTH) & (length * 9 + digit);         \
			if (has_status)                                                        \
				status += scan_mask(now, FOUND_STATUS) & (status * 9 + digit); \
			if (now & FOUND_END) {                                                 \
				left--;                                                        \
				break;                                                         \
			}                                                                      \
		}                                                                              \
		scan->state = state;                                                           \
		scan->found = found;                                                           \
		scan->status = status;                                                         \
		scan->length = length;                                                         \
		return n - left;                                                               \
	}

SCAN_HEAD_FUNCTION(scan_request, request, 0)
SCAN_HEAD_FUNCTION(scan_answer, answer, 1)

/* The same for a request's body, which has no numbers and no end of its own. */
SCAN_INLINE __u32 scan_body(struct scan_head *scan, const __u8 *bytes, __u64 n)
{
	__u64 state = scan->state, found = scan->found, left;
	const __u8 *next = request_next;

	SCAN_CLAMP(n, SCAN_BLOCK);
	SCAN_HIDE(next);
	SCAN_HIDE(bytes);
	for (left = n; left; left--, bytes++) {
		state = SCAN_NEXT(next, state, *bytes);
		if (SCAN_FINDS(request, state))
			found |= request_found[state];
	}
	scan->state = state;
	scan->found = found;
	return n;
}

/*
 * The bytes around a chunk's data. SIZE awaits a size's line; DATA is where data begin and where,
 * they being over, the line's end before the next size is awaited.
 */
enum {
	FRAME_SIZE = 0,
	FRAME_DIGITS = 1, /* this and DATA can be told by their bits */
	FRAME_EXTENSION = 2,
	FRAME_DATA = 4,
	FRAME_NEXT = 8,
	FRAME_CR = 10,
	FRAMES = 16,
};

/* On which kind of byte (other, hexadecimal digit, CR, LF) comes what. */
SCAN_TABLE __u8 frame_next[FRAMES * BYTE_KINDS] = {
	/* SIZE */ FRAME_SIZE,
	FRAME_DIGITS,
	FRAME_SIZE,
	FRAME_SIZE,
	/* DIGITS */ FRAME_EXTENSION,
	FRAME_DIGITS,
	FRAME_CR,
	FRAME_DATA,
	/* EXTENSION */ FRAME_EXTENSION,
	FRAME_EXTENSION,
	FRAME_CR,
	FRAME_DATA,
	0,
	0,
	0,
	0,
	/* DATA */ FRAME_SIZE,
	FRAME_SIZE,
	FRAME_NEXT,
	FRAME_SIZE,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	0,
	/* NEXT */ FRAME_SIZE,
	FRAME_SIZE,
	FRAME_NEXT,
	FRAME_SIZE,
	0,
	0,
	0,
	0,
	/* CR */ FRAME_EXTENSION,
	FRAME_EXTENSION,
	FRAME_CR,
	FRAME_DATA,
};

/* The framing up to the first byte of the next chunk's data, or to the end of the last chunk. */
SCAN_INLINE __u32 scan_frame(struct scan_events *scan, const __u8 *bytes, __u64 n)
{
	__u64 frame = scan->frame, size = scan->size;
	__u32 i;

	for (i = 0; i < SCAN_BLOCK; i++) {
		if (i >= n)
			break;
		__u64 byte = frame_byte[bytes[i]], digit;

		frame = frame_next[((frame * BYTE_KINDS) | (byte >> 4 & (BYTE_KINDS - 1))) &
				   (FRAMES * BYTE_KINDS - 1)];
		digit = scan_mask(frame, FRAME_DIGITS);
		size = ((size * 16 + (byte & 15)) & digit) | (size & ~digit);
		n &= ~scan_mask(frame, FRAME_DATA);
	}
	scan->frame = frame;
	scan->size = size;
	if (frame == FRAME_DATA) {
		scan->left = size;
		scan->size = 0;
	}
	return i;
}

SCAN_INLINE __u32 scan_data(struct scan_events *scan, const __u8 *bytes, __u64 n)
{
	__u64 state = scan->state, left;
	const __u8 *next = events_next;

	SCAN_CLAMP(n, SCAN_BLOCK);
	SCAN_HIDE(next);
	SCAN_HIDE(bytes);
	for (left = n; left; left--, bytes++) {
		state = SCAN_NEXT(next, state, *bytes);
		if (state >= events_FINDS) { /* nothing else is found there */
			left--;
			break;
		}
	}
	scan->state = state;
	scan->found |= events_found[state];
	return n - left;
}

/* How many bytes the next call of scan_events() can use, about: more need not be read. */
SCAN_INLINE __u32 scan_events_most(const struct scan_events *scan)
{
	enum { A_SIZE = 16 };

	if (scan->raw)
		return SCAN_BLOCK;
	return scan->left ? scan->left : A_SIZE;
}

/* Goes over the data of one chunk at most, or over what stands between two. */
SCAN_INLINE __u32 scan_events(struct scan_events *scan, const __u8 *bytes, __u64 n)
{
	__u32 done;

	if (!scan->raw && !scan->left)
		return scan_frame(scan, bytes, n);
	if (!scan->raw && n > scan->left)
		n = scan->left;
	done = scan_data(scan, bytes, n);
	scan->left -= done;
	return done;
}

/* Bytes pass that are not scanned: the place in the chunk is kept while they lie within it. */
SCAN_INLINE void scan_events_skip(struct scan_events *scan, __u32 n)
{
	scan->state = STATE_EVENTS;
	if (scan->left > n)
		scan->left -= n;
	else
		scan->raw = ~0u;
}

#endif
