/*
 * Sixty-four bytes become one bit mask per class, and everything is counted by mask: escapes cost a
 * few more masks, not a loop over bytes. How the masks are made is chosen by the processor.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "router/chat/count.h"

#define INLINE static inline __attribute__((always_inline))

enum { WINDOW = 64, UNICODE_DIGITS = 4 };

struct masks {
	uint64_t quote, backslash, letter, digit, space, high;
};

/* Of bytes that may be escaped: letters that stand for white space, and the 'u' of \uXXXX. */
struct letters {
	uint64_t blank, unicode;
};

/* Not __builtin_popcountll in plain code: without the instruction that is a table in a library. */
INLINE uint64_t ones(uint64_t x, bool instruction)
{
	if (instruction)
		return (uint64_t)__builtin_popcountll(x);
	x -= x >> 1 & 0x5555555555555555u;
	x = (x & 0x3333333333333333u) + (x >> 2 & 0x3333333333333333u);
	x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu;
	return x * 0x0101010101010101u >> 56;
}

INLINE uint64_t low_bits(unsigned n)
{
	return n >= 64 ? ~0ull : (1ull << n) - 1;
}

/* Bits of the bytes that follow a backslash which is not itself escaped. */
INLINE uint64_t escaped_bytes(uint64_t backslash, bool first_escaped)
{
	uint64_t escaped = first_escaped;

	if (!(backslash & (backslash << 1 | escaped)))
		return backslash << 1 | escaped;
	backslash &= ~escaped;
	while (backslash) {
		uint64_t next = (backslash & -backslash) << 1;

		escaped |= next;
		backslash &= (backslash - 1) & ~next;
	}
	return escaped;
}

/* What the escapes of a window change: bytes that are no text, and white space in disguise. */
struct escapes {
	uint64_t out, space, units;
	uint8_t unicode; /* digits beyond the window */
};

INLINE void read_escapes(struct escapes *e, uint64_t escaped, uint64_t space,
			 const struct letters *letters, unsigned end)
{
	uint64_t blank = escaped & (letters->blank | space);

	/* Both bytes of "\n", so that "\n\n" is one run. */
	e->space = blank | blank >> 1;
	e->out |= escaped >> 1;
	for (uint64_t left = escaped & letters->unicode; left; left &= left - 1) {
		unsigned at = (unsigned)__builtin_ctzll(left);

		e->out |= low_bits(UNICODE_DIGITS + 1) << at;
		e->units++;
		if (at + UNICODE_DIGITS >= end)
			e->unicode = (uint8_t)(at + UNICODE_DIGITS + 1 - end);
	}
}

INLINE void add(struct chat_classes *classes, struct chat_cut *cut, const struct masks *m,
		const struct escapes *e, unsigned end, bool lead_last, bool instruction)
{
	uint64_t valid = low_bits(end), text = valid & ~e->out;
	uint64_t space = ((m->space & text) | e->space) & valid;
	uint64_t letter = m->letter & text & ~space, digit = m->digit & text;
	uint64_t high = m->high & text;
	uint64_t punct = text & ~(space | letter | digit | high);

	if (lead_last) /* says nothing until its second byte is here */
		punct &= ~(1ull << (end - 1));
	classes->letters += ones(letter, instruction);
	classes->digits += ones(digit, instruction);
	classes->punct += ones(punct, instruction);
	classes->high += ones(high, instruction);
	classes->space_runs += ones(space & ~(space << 1 | (uint64_t)cut->space), instruction);
	classes->escapes += e->units;
	end -= lead_last;
	if (end)
		cut->space = space >> (end - 1) & 1;
}

/* Counts a window of `n` bytes; returns those before the closing quote. */
INLINE unsigned add_window(struct chat_classes *classes, struct chat_cut *cut,
			   const struct masks *m, const struct letters *letters, unsigned n,
			   bool instruction)
{
	struct escapes e = { 0 };
	uint64_t escaped = escaped_bytes(m->backslash, cut->escape);
	uint64_t quote = m->quote & ~escaped & low_bits(n);
	unsigned end = quote ? (unsigned)__builtin_ctzll(quote) : n;

	if (!end)
		return 0;
	if (cut->unicode) {
		unsigned here = cut->unicode < end ? cut->unicode : end;

		e.out = low_bits(here);
		e.unicode = (uint8_t)(cut->unicode - here);
	}
	read_escapes(&e, escaped & low_bits(end), m->space, letters, end);
	bool lead_last = (m->backslash & ~escaped) >> (end - 1) & 1;

	add(classes, cut, m, &e, end, lead_last, instruction);
	cut->escape = lead_last;
	cut->unicode = e.unicode;
	return end;
}

/* A window that may be read whole: the bytes themselves, or a copy of the last few. */
INLINE const uint8_t *readable(const uint8_t *in, unsigned n, uint8_t window[WINDOW])
{
	if (n == WINDOW)
		return in;
	memset(window, 0, WINDOW);
	memcpy(window, in, n);
	return window;
}

#ifdef __SSE2__
INLINE __m128i between16(__m128i x, char low, char high)
{
	return _mm_and_si128(_mm_cmpgt_epi8(x, _mm_set1_epi8((char)(low - 1))),
			     _mm_cmplt_epi8(x, _mm_set1_epi8((char)(high + 1))));
}

INLINE __m128i is16(__m128i x, char c)
{
	return _mm_cmpeq_epi8(x, _mm_set1_epi8(c));
}

INLINE uint64_t bits16(__m128i x, int shift)
{
	return (uint64_t)(uint16_t)_mm_movemask_epi8(x) << shift;
}

INLINE void classify_plain(struct masks *m, const uint8_t *in)
{
	memset(m, 0, sizeof(*m));
	for (int at = 0; at < WINDOW; at += 16) {
		__m128i x = _mm_loadu_si128((const __m128i *)(in + at));

		m->quote |= bits16(is16(x, '"'), at);
		m->backslash |= bits16(is16(x, '\\'), at);
		m->letter |= bits16(between16(_mm_or_si128(x, _mm_set1_epi8(0x20)), 'a', 'z'), at);
		m->digit |= bits16(between16(x, '0', '9'), at);
		m->space |= bits16(_mm_or_si128(is16(x, ' '), between16(x, '\t', '\r')), at);
		m->high |= bits16(x, at);
	}
}
#else
INLINE void classify_plain(struct masks *m, const uint8_t *in)
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

/* Looks only at the bytes after a backslash: there are few. */
INLINE void letters_plain(struct letters *letters, const uint8_t *in, uint64_t after)
{
	*letters = (struct letters){ 0 };
	for (; after; after &= after - 1) {
		uint64_t bit = after & -after;

		switch (in[__builtin_ctzll(after)]) {
		case 'b':
		case 'f':
		case 'n':
		case 'r':
		case 't':
			letters->blank |= bit;
			break;
		case 'u':
			letters->unicode |= bit;
			break;
		default:
			break;
		}
	}
}

static size_t count_plain(struct chat_classes *classes, struct chat_cut *cut, const uint8_t *in,
			  size_t len)
{
	struct letters letters = { 0 };
	uint8_t window[WINDOW];
	struct masks m;
	/* Local, so that the sums stay in registers. */
	struct chat_classes sum = *classes;
	struct chat_cut now = *cut;
	size_t at = 0;
	unsigned n, end;

	do {
		n = len - at < WINDOW ? (unsigned)(len - at) : WINDOW;
		const uint8_t *bytes = readable(in + at, n, window);

		classify_plain(&m, bytes);
		if (m.backslash | now.escape)
			letters_plain(&letters, bytes, m.backslash << 1 | now.escape);
		end = add_window(&sum, &now, &m, &letters, n, false);
		at += end;
	} while (end == WINDOW && at < len);
	*classes = sum;
	*cut = now;
	return at;
}

#ifdef __x86_64__
#define AVX2   __attribute__((target("avx2,bmi,popcnt")))
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vbmi,bmi,popcnt")))

AVX2 INLINE __m256i between32(__m256i x, char low, char high)
{
	return _mm256_and_si256(_mm256_cmpgt_epi8(x, _mm256_set1_epi8((char)(low - 1))),
				_mm256_cmpgt_epi8(_mm256_set1_epi8((char)(high + 1)), x));
}

AVX2 INLINE __m256i is32(__m256i x, char c)
{
	return _mm256_cmpeq_epi8(x, _mm256_set1_epi8(c));
}

AVX2 INLINE uint64_t bits32(__m256i x, int shift)
{
	return (uint64_t)(uint32_t)_mm256_movemask_epi8(x) << shift;
}

AVX2 INLINE void classify_avx2(struct masks *m, const uint8_t *in)
{
	memset(m, 0, sizeof(*m));
	for (int at = 0; at < WINDOW; at += 32) {
		__m256i x = _mm256_loadu_si256((const __m256i *)(in + at));
		__m256i lower = _mm256_or_si256(x, _mm256_set1_epi8(0x20));

		m->quote |= bits32(is32(x, '"'), at);
		m->backslash |= bits32(is32(x, '\\'), at);
		m->letter |= bits32(between32(lower, 'a', 'z'), at);
		m->digit |= bits32(between32(x, '0', '9'), at);
		m->space |= bits32(_mm256_or_si256(is32(x, ' '), between32(x, '\t', '\r')), at);
		m->high |= bits32(x, at);
	}
}

AVX2 static size_t count_avx2(struct chat_classes *classes, struct chat_cut *cut, const uint8_t *in,
			      size_t len)
{
	struct letters letters = { 0 };
	uint8_t window[WINDOW];
	struct masks m;
	/* Local, so that the sums stay in registers. */
	struct chat_classes sum = *classes;
	struct chat_cut now = *cut;
	size_t at = 0;
	unsigned n, end;

	do {
		n = len - at < WINDOW ? (unsigned)(len - at) : WINDOW;
		const uint8_t *bytes = readable(in + at, n, window);

		classify_avx2(&m, bytes);
		if (m.backslash | now.escape)
			letters_plain(&letters, bytes, m.backslash << 1 | now.escape);
		end = add_window(&sum, &now, &m, &letters, n, true);
		at += end;
	} while (end == WINDOW && at < len);
	*classes = sum;
	*cut = now;
	return at;
}

AVX512 INLINE uint64_t is64(__m512i x, char c)
{
	return _mm512_cmpeq_epi8_mask(x, _mm512_set1_epi8(c));
}

AVX512 INLINE uint64_t between64(__m512i x, char low, char high)
{
	return _mm512_cmple_epu8_mask(_mm512_sub_epi8(x, _mm512_set1_epi8(low)),
				      _mm512_set1_epi8((char)(high - low)));
}

/*
 * White space, and the letters that stand for some after a backslash. Their low six bits differ, so
 * that one look-up finds both: whose own byte comes out is one of them.
 */
static const uint8_t blanks[WINDOW] __attribute__((aligned(WINDOW))) = {
	[0x00] = 0xff,    [' ' & 63] = ' ', ['\t'] = '\t',    ['\n'] = '\n',
	['\v'] = '\v',    ['\f'] = '\f',    ['\r'] = '\r',    ['b' & 63] = 'b',
	['f' & 63] = 'f', ['n' & 63] = 'n', ['r' & 63] = 'r', ['t' & 63] = 't',
};

/* Of a window's bytes: what escapes read_escapes() of, but for \uXXXX. */
struct vector {
	uint64_t quote, backslash, letter, digit, blank, high, u;
};

AVX512 INLINE void classify_avx512(struct vector *v, __m512i x)
{
	__m512i table = _mm512_load_si512(blanks);

	v->quote = is64(x, '"');
	v->backslash = is64(x, '\\');
	v->letter = between64(_mm512_or_si512(x, _mm512_set1_epi8(0x20)), 'a', 'z');
	v->digit = between64(x, '0', '9');
	v->blank = _mm512_cmpeq_epi8_mask(x, _mm512_permutexvar_epi8(x, table));
	v->high = (uint64_t)_mm512_movepi8_mask(x);
	v->u = is64(x, 'u');
}

/*
 * Which bytes are escaped: those behind an odd run of backslashes, by one subtraction whose borrow
 * runs through each of them. No branch: half of the windows of code hold an escape, and none can be
 * guessed.
 */
INLINE uint64_t escaped_by_borrow(uint64_t backslash, uint64_t first_escaped)
{
	const uint64_t odd = 0xaaaaaaaaaaaaaaaau;
	uint64_t lead = backslash & ~first_escaped;
	uint64_t ends = (((lead << 1) | odd) - lead) ^ odd;

	return ends ^ (backslash | first_escaped);
}

/* What is carried from window to window in registers. */
struct carry {
	uint64_t escaped, space; /* of the first byte; of the last one counted */
};

/*
 * A whole window of text. False, and nothing counted, where it holds the end of the string or
 * \uXXXX: these take the general way.
 */
AVX512 INLINE bool add_whole(struct chat_classes *sum, struct carry *carry, const struct vector *v)
{
	uint64_t escaped = escaped_by_borrow(v->backslash, carry->escaped);
	uint64_t lead = v->backslash & ~escaped;
	uint64_t blank = v->blank & escaped;
	/* Both bytes of "\n", so that "\n\n" is one run. */
	uint64_t space = (v->blank & ~v->letter) | blank | blank >> 1;
	uint64_t letter = v->letter & ~space;

	if ((v->quote & ~escaped) | (v->u & escaped))
		return false;
	sum->letters += (uint64_t)__builtin_popcountll(letter);
	sum->digits += (uint64_t)__builtin_popcountll(v->digit);
	sum->high += (uint64_t)__builtin_popcountll(v->high);
	sum->punct += (uint64_t)__builtin_popcountll(~(letter | v->digit | v->high | space | lead));
	sum->space_runs += (uint64_t)__builtin_popcountll(space & ~(space << 1 | carry->space));
	/* A lead at the end says nothing until its second byte is here. */
	carry->escaped = lead >> (WINDOW - 1);
	carry->space = (space | (space << 1 & lead)) >> (WINDOW - 1);
	return true;
}

/* Whole windows from in[at]; returns where they end. */
AVX512 INLINE size_t count_whole(struct chat_classes *sum, struct chat_cut *cut, const uint8_t *in,
				 size_t at, size_t len)
{
	struct carry carry = { .escaped = cut->escape, .space = cut->space };
	struct vector v;

	for (; at + WINDOW <= len; at += WINDOW) {
		classify_avx512(&v, _mm512_loadu_si512(in + at));
		if (!add_whole(sum, &carry, &v))
			break;
	}
	cut->escape = (uint8_t)carry.escaped;
	cut->space = carry.space;
	return at;
}

AVX512 static size_t count_avx512(struct chat_classes *classes, struct chat_cut *cut,
				  const uint8_t *in, size_t len)
{
	struct letters letters;
	struct vector v;
	/* Local, so that the sums stay in registers. */
	struct chat_classes sum = *classes;
	struct chat_cut now = *cut;
	size_t at = 0;
	unsigned n, end;

	do {
		if (!now.unicode)
			at = count_whole(&sum, &now, in, at, len);
		n = len - at < WINDOW ? (unsigned)(len - at) : WINDOW;
		classify_avx512(&v, _mm512_maskz_loadu_epi8(low_bits(n), in + at));
		struct masks m = { v.quote, v.backslash,         v.letter,
				   v.digit, v.blank & ~v.letter, v.high };

		letters = (struct letters){ .blank = v.blank & v.letter, .unicode = v.u };
		end = add_window(&sum, &now, &m, &letters, n, true);
		at += end;
	} while (end == WINDOW && at < len);
	*classes = sum;
	*cut = now;
	return at;
}
#endif

static bool is_supported(enum chat_count_way way)
{
#ifdef __x86_64__
	if (way == CHAT_COUNT_AVX2)
		return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
		       __builtin_cpu_supports("popcnt");
	if (way == CHAT_COUNT_AVX512)
		return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		       __builtin_cpu_supports("avx512vbmi") && is_supported(CHAT_COUNT_AVX2);
#endif
	return way == CHAT_COUNT_PLAIN;
}

int chat_count_by(enum chat_count_way way, struct chat_classes *classes, struct chat_cut *cut,
		  const uint8_t *in, size_t len, size_t *ret_before)
{
	if (!is_supported(way))
		return -ENOTSUP;
#ifdef __x86_64__
	if (way == CHAT_COUNT_AVX512)
		*ret_before = count_avx512(classes, cut, in, len);
	else if (way == CHAT_COUNT_AVX2)
		*ret_before = count_avx2(classes, cut, in, len);
	else
#endif
		*ret_before = count_plain(classes, cut, in, len);
	return 0;
}

size_t chat_count(struct chat_classes *classes, struct chat_cut *cut, const uint8_t *in, size_t len)
{
#ifdef __x86_64__
	if (is_supported(CHAT_COUNT_AVX512))
		return count_avx512(classes, cut, in, len);
	if (is_supported(CHAT_COUNT_AVX2))
		return count_avx2(classes, cut, in, len);
#endif
	return count_plain(classes, cut, in, len);
}
