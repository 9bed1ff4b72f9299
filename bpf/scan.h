/*
 * Steps over a connection's bytes with the generated tables. The kernel side and the tests compile
 * this very code. The loops have no branch but their end, so that the verifier walks one path
 * through them whatever the bytes are: results are mixed in by masks.
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
enum { SCAN_BLOCK = 1024 };
#else
enum { SCAN_BLOCK = 64 };
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

SCAN_INLINE __u64 scan_mask_nonzero(__u32 value)
{
	__u64 mask = (__u64)0 - value; /* its upper half: all ones unless the value is 0 */

	SCAN_HIDE(mask);
	return (__s64)mask >> 32;
}

SCAN_INLINE __u64 scan_mix(__u64 mask, __u64 yes, __u64 no)
{
	return (yes & mask) | (no & ~mask);
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

#define SCAN_NEXT(table, state, byte)                                                            \
	table##_next[((state)*SCAN_CLASSES + (table##_class[(byte)&255] & (SCAN_CLASSES - 1))) & \
		     (SCAN_STATES * SCAN_CLASSES - 1)]

/*
 * Each goes over min(n, SCAN_BLOCK) bytes, or up to and including the one that ends a head or
 * brings the token; returns how many that were.
 */
#define SCAN_HEAD_FUNCTION(name, table)                                                      \
	SCAN_INLINE __u32 name(struct scan_head *scan, const __u8 *bytes, __u64 n)           \
	{                                                                                    \
		__u64 state = scan->state, found = scan->found, status = scan->status, mask; \
		__u64 length = scan->length;                                                 \
		__u32 i;                                                                     \
		for (i = 0; i < SCAN_BLOCK; i++) {                                           \
			if (i >= n)                                                          \
				break;                                                       \
			__u64 byte = bytes[i], digit = (byte - '0') & 15, now;               \
			state = SCAN_NEXT(table, state, byte);                               \
			now = table##_found[state & (SCAN_STATES - 1)];                      \
			found |= now;                                                        \
			length += scan_mask(now, FOUND_LENGTH) & (length * 9 + digit);       \
			status += scan_mask(now, FOUND_STATUS) & (status * 9 + digit);       \
			mask = scan_mask(now, FOUND_END);                                    \
			n &= ~mask;                                                          \
		}                                                                            \
		scan->state = state;                                                         \
		scan->found = found;                                                         \
		scan->status = status;                                                       \
		scan->length = length;                                                       \
		return i;                                                                    \
	}

SCAN_HEAD_FUNCTION(scan_request, request)
SCAN_HEAD_FUNCTION(scan_answer, answer)

/*
 * The bytes around a chunk's data. SIZE awaits a size's line; DATA is where data begin and where,
 * they being over, the line's end before the next size is awaited.
 */
enum { FRAME_SIZE, FRAME_DIGITS, FRAME_EXTENSION, FRAME_CR, FRAME_DATA, FRAME_NEXT, FRAMES = 8 };

/* On which kind of byte (other, hexadecimal digit, CR, LF) comes what. */
SCAN_TABLE __u8 frame_next[FRAMES * BYTE_KINDS] = {
	/* SIZE */ FRAME_SIZE,           FRAME_DIGITS,    FRAME_SIZE, FRAME_SIZE,
	/* DIGITS */ FRAME_EXTENSION,    FRAME_DIGITS,    FRAME_CR,   FRAME_DATA,
	/* EXTENSION */ FRAME_EXTENSION, FRAME_EXTENSION, FRAME_CR,   FRAME_DATA,
	/* CR */ FRAME_EXTENSION,        FRAME_EXTENSION, FRAME_CR,   FRAME_DATA,
	/* DATA */ FRAME_SIZE,           FRAME_SIZE,      FRAME_NEXT, FRAME_SIZE,
	/* NEXT */ FRAME_SIZE,           FRAME_SIZE,      FRAME_NEXT, FRAME_SIZE,
};

SCAN_INLINE __u32 scan_events(struct scan_events *scan, const __u8 *bytes, __u64 n)
{
	__u64 state = scan->state, found = scan->found, frame = scan->frame;
	__u64 size = scan->size;
	__u32 left = scan->left, raw = scan->raw, i;

	for (i = 0; i < SCAN_BLOCK; i++) {
		if (i >= n)
			break;
		__u64 byte = bytes[i], inside = scan_mask_nonzero(left | raw), token;

		state = scan_mix(inside, SCAN_NEXT(events, state, byte), state);
		token = events_found[state & (SCAN_STATES - 1)] & inside;
		found |= token;
		n &= ~scan_mask(token, FOUND_TOKEN);
		left -= inside & 1;

		__u64 kind = frame_byte[byte & 255];
		__u64 next = frame_next[((frame * BYTE_KINDS) | (kind >> 4 & 3)) &
					(FRAMES * BYTE_KINDS - 1)];
		__u64 digit = ~inside & ~scan_mask_nonzero(next ^ FRAME_DIGITS);
		__u64 whole = ~inside & ~scan_mask_nonzero(next ^ FRAME_DATA);

		frame = scan_mix(inside, frame, next);
		size = scan_mix(digit, size * 16 + (kind & 15), size);
		left = scan_mix(whole, size, left);
		size &= ~whole;
	}
	scan->state = state;
	scan->found = found;
	scan->frame = frame;
	scan->size = size;
	scan->left = left;
	return i;
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
