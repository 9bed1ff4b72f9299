/*
 * Sixty-four bytes become one bit mask per class; escapes are looked at one by one, everything else
 * is counted by mask. Without SSE2 the masks are made byte by byte.
 */
#include <assert.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "router/chat/count.h"

enum { WINDOW = 64, UNICODE_DIGITS = 4 };

struct masks {
	uint64_t quote, backslash, letter, digit, space, high;
};

#ifdef __SSE2__
static __m128i between(__m128i x, char low, char high)
{
	return _mm_and_si128(_mm_cmpgt_epi8(x, _mm_set1_epi8((char)(low - 1))),
			     _mm_cmplt_epi8(x, _mm_set1_epi8((char)(high + 1))));
}

static uint64_t bits(__m128i x, int shift)
{
	return (uint64_t)(uint16_t)_mm_movemask_epi8(x) << shift;
}

static inline void classify(struct masks *m, const uint8_t *in)
{
	memset(m, 0, sizeof(*m));
	for (int at = 0; at < WINDOW; at += 16) {
		__m128i x = _mm_loadu_si128((const __m128i *)(in + at));
		__m128i lower = _mm_or_si128(x, _mm_set1_epi8(0x20));
		__m128i space =
			_mm_or_si128(_mm_cmpeq_epi8(x, _mm_set1_epi8(' ')), between(x, '\t', '\r'));

		m->quote |= bits(_mm_cmpeq_epi8(x, _mm_set1_epi8('"')), at);
		m->backslash |= bits(_mm_cmpeq_epi8(x, _mm_set1_epi8('\\')), at);
		m->letter |= bits(between(lower, 'a', 'z'), at);
		m->digit |= bits(between(x, '0', '9'), at);
		m->space |= bits(space, at);
		m->high |= bits(x, at);
	}
}
#else
static inline void classify(struct masks *m, const uint8_t *in)
{
	memset(m, 0, sizeof(*m));
	for (int at = 0; at < WINDOW; at++) {
		uint64_t bit = 1ull << at;
		uint8_t c = in[at], lower = c | 0x20;

		m->quote |= c == '"' ? bit : 0;
		m->backslash |= c == '\\' ? bit : 0;
		m->letter |= lower >= 'a' && lower <= 'z' ? bit : 0;
		m->digit |= c >= '0' && c <= '9' ? bit : 0;
		m->space |= c == ' ' || (c >= '\t' && c <= '\r') ? bit : 0;
		m->high |= c >= 0x80 ? bit : 0;
	}
}
#endif

/* Not __builtin_popcountll: without a CPU option that is a table walk in a library. */
static inline uint64_t ones(uint64_t x)
{
	x -= x >> 1 & 0x5555555555555555u;
	x = (x & 0x3333333333333333u) + (x >> 2 & 0x3333333333333333u);
	x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu;
	return x * 0x0101010101010101u >> 56;
}

static inline uint64_t low_bits(unsigned n)
{
	return n >= 64 ? ~0ull : (1ull << n) - 1;
}

/* Bits of the bytes that follow a backslash which is not itself escaped. */
static uint64_t escaped_bytes(uint64_t backslash, bool first_escaped)
{
	uint64_t escaped = first_escaped;

	backslash &= ~escaped;
	while (backslash) {
		uint64_t next = (backslash & -backslash) << 1;

		escaped |= next;
		backslash &= backslash - 1;
		backslash &= ~next;
	}
	return escaped;
}

/* What the escapes of a window change: bytes that are no text, and white space in disguise. */
struct escapes {
	uint64_t out, space, units;
	uint8_t unicode; /* digits beyond the window */
};

static void read_escapes(struct escapes *e, const uint8_t *in, uint64_t escaped, unsigned end)
{
	for (uint64_t left = escaped & low_bits(end); left; left &= left - 1) {
		unsigned at = (unsigned)__builtin_ctzll(left);
		uint64_t lead = at ? 1ull << (at - 1) : 0;

		e->out |= lead;
		switch (in[at]) {
		case 'b':
		case 'f':
		case 'n':
		case 'r':
		case 't':
			/* Both bytes, so that "\n\n" is one run. */
			e->space |= lead | 1ull << at;
			break;
		case 'u':
			e->out |= low_bits(UNICODE_DIGITS + 1) << at;
			e->units++;
			if (at + UNICODE_DIGITS >= end)
				e->unicode = (uint8_t)(at + UNICODE_DIGITS + 1 - end);
			break;
		default:
			break;
		}
	}
}

static void count(struct chat_classes *classes, struct chat_cut *cut, const struct masks *m,
		  const struct escapes *e, unsigned end, bool lead_last)
{
	uint64_t valid = low_bits(end), text = valid & ~e->out;
	uint64_t space = ((m->space & text) | e->space) & valid;
	uint64_t letter = m->letter & text & ~space, digit = m->digit & text;
	uint64_t high = m->high & text;
	uint64_t punct = text & ~(space | letter | digit | high);

	if (lead_last) /* says nothing until its second byte is here */
		punct &= ~(1ull << (end - 1));
	classes->letters += ones(letter);
	classes->digits += digit ? ones(digit) : 0;
	classes->punct += ones(punct);
	classes->high += high ? ones(high) : 0;
	classes->space_runs += ones(space & ~(space << 1 | (uint64_t)cut->space));
	classes->escapes += e->units;
	end -= lead_last;
	if (end)
		cut->space = space >> (end - 1) & 1;
}

/* Counts up to `n` bytes of a readable window of 64; returns those before the closing quote. */
static unsigned count_window(struct chat_classes *classes, struct chat_cut *cut, const uint8_t *in,
			     unsigned n)
{
	struct masks m;
	struct escapes e = { 0 };
	uint64_t escaped = 0;

	classify(&m, in);
	if (m.backslash | cut->escape)
		escaped = escaped_bytes(m.backslash, cut->escape);
	uint64_t quote = m.quote & ~escaped & low_bits(n);
	unsigned end = quote ? (unsigned)__builtin_ctzll(quote) : n;

	if (!end)
		return 0;
	if (cut->unicode) {
		unsigned here = cut->unicode < end ? cut->unicode : end;

		e.out = low_bits(here);
		e.unicode = (uint8_t)(cut->unicode - here);
	}
	if (escaped)
		read_escapes(&e, in, escaped, end);
	bool lead_last = m.backslash >> (end - 1) & ~escaped >> (end - 1) & 1;

	count(classes, cut, &m, &e, end, lead_last);
	cut->escape = lead_last;
	cut->unicode = e.unicode;
	return end;
}

size_t chat_classes_count(struct chat_classes *classes, struct chat_cut *cut, const uint8_t *in,
			  size_t len)
{
	size_t at = 0;

	while (at < len) {
		uint8_t window[WINDOW];
		unsigned n = len - at < WINDOW ? (unsigned)(len - at) : WINDOW;
		const uint8_t *bytes = in + at;

		if (n < WINDOW) {
			memset(window, 0, sizeof(window));
			memcpy(window, bytes, n);
			bytes = window;
		}
		unsigned taken = count_window(classes, cut, bytes, n);

		at += taken;
		if (taken < n)
			break;
	}
	return at;
}
