/* The tokeniser shared by scan and watch: grammar in a table of states, strings left to the caller.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "router/chat/pull.h"

enum {
	AT_VALUE,
	AT_VALUE_OR_CLOSE, /* after '[' */
	AT_KEY_OR_CLOSE,   /* after '{' */
	AT_KEY,
	AT_COLON,
	AT_COMMA_OR_CLOSE,
	AT_LITERAL,
	AT_END, /* the root value is complete */
	AT_BAD,
};

void pull_begin(struct pull *j)
{
	memset(j, 0, sizeof(*j));
	j->state = AT_VALUE;
}

static enum pull_event bad(struct pull *j)
{
	j->state = AT_BAD;
	return PULL_BAD;
}

static void after_value(struct pull *j)
{
	j->state = j->depth ? AT_COMMA_OR_CLOSE : AT_END;
}

static enum pull_event open_container(struct pull *j, bool object)
{
	if (j->depth == PULL_DEPTH)
		return bad(j);
	uint64_t bit = 1ull << j->depth++;

	j->objects = object ? j->objects | bit : j->objects & ~bit;
	j->state = object ? AT_KEY_OR_CLOSE : AT_VALUE_OR_CLOSE;
	return object ? PULL_OBJECT : PULL_ARRAY;
}

static bool in_object(const struct pull *j)
{
	return j->depth && j->objects >> (j->depth - 1) & 1;
}

static enum pull_event close_container(struct pull *j, bool object)
{
	if (!j->depth || in_object(j) != object)
		return bad(j);
	j->depth--;
	after_value(j);
	return PULL_CLOSE;
}

static bool in_literal(uint8_t c)
{
	return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '-' ||
	       c == '+' || c == '.';
}

static const char *digits(const char *p)
{
	while (*p >= '0' && *p <= '9')
		p++;
	return p;
}

static bool is_number(const char *p)
{
	p += *p == '-';
	if (*p == '0' && p[1] >= '0' && p[1] <= '9')
		return false;
	const char *after = digits(p);

	if (after == p)
		return false;
	p = after;
	if (*p == '.') {
		after = digits(++p);
		if (after == p)
			return false;
		p = after;
	}
	if ((*p | 32) == 'e') {
		p++;
		p += *p == '+' || *p == '-';
		after = digits(p);
		if (after == p)
			return false;
		p = after;
	}
	return *p == 0;
}

/* Also what Python writes for the numbers JSON has no word for. */
static bool is_word(const char *literal)
{
	switch (literal[0]) {
	case 't':
		return strcmp(literal, "true") == 0;
	case 'f':
		return strcmp(literal, "false") == 0;
	case 'n':
		return strcmp(literal, "null") == 0;
	default:
		return strcmp(literal, "NaN") == 0 || strcmp(literal, "Infinity") == 0 ||
		       strcmp(literal, "-Infinity") == 0;
	}
}

static bool is_literal(const struct pull *j)
{
	char first = j->literal[0];

	if ((first < '0' || first > '9') && (first != '-' || j->literal[1] == 'I'))
		return is_word(j->literal);
	/* One too long to keep has been kept in part: judge its beginning only. */
	return j->literal_len == PULL_LITERAL || is_number(j->literal);
}

static enum pull_event end_literal(struct pull *j)
{
	j->literal[j->literal_len] = 0;
	if (!is_literal(j))
		return bad(j);
	after_value(j);
	return PULL_LITERAL_END;
}

static void literal_byte(struct pull *j, uint8_t c)
{
	if (j->literal_len < PULL_LITERAL)
		j->literal[j->literal_len++] = (char)c;
}

static enum pull_event begin_value(struct pull *j, uint8_t c)
{
	if (c == '{' || c == '[')
		return open_container(j, c == '{');
	if (c == ']' && j->state == AT_VALUE_OR_CLOSE)
		return close_container(j, false);
	if (c == '"') {
		j->in_string = true;
		after_value(j);
		return PULL_STRING;
	}
	if (!in_literal(c))
		return bad(j);
	j->state = AT_LITERAL;
	j->literal_len = 0;
	literal_byte(j, c);
	return PULL_MORE;
}

static enum pull_event begin_key(struct pull *j, uint8_t c)
{
	if (c == '}' && j->state == AT_KEY_OR_CLOSE)
		return close_container(j, true);
	if (c != '"')
		return bad(j);
	j->in_string = true;
	j->state = AT_COLON;
	return PULL_KEY;
}

static enum pull_event structure(struct pull *j, uint8_t c)
{
	switch (j->state) {
	case AT_VALUE:
	case AT_VALUE_OR_CLOSE:
		return begin_value(j, c);
	case AT_KEY:
	case AT_KEY_OR_CLOSE:
		return begin_key(j, c);
	case AT_COLON:
		if (c != ':')
			return bad(j);
		j->state = AT_VALUE;
		return PULL_MORE;
	case AT_COMMA_OR_CLOSE:
		if (c == '}' || c == ']')
			return close_container(j, c == '}');
		if (c != ',')
			return bad(j);
		j->state = in_object(j) ? AT_KEY : AT_VALUE;
		return PULL_MORE;
	default:
		return bad(j);
	}
}

enum pull_event pull_next(struct pull *j, const uint8_t **p, const uint8_t *end)
{
	assert(!j->in_string);
	if (j->state == AT_BAD)
		return PULL_BAD;
	while (*p < end) {
		uint8_t c = **p;

		if (j->state == AT_LITERAL) {
			if (!in_literal(c))
				return end_literal(j);
			literal_byte(j, c);
			++*p;
			continue;
		}
		++*p;
		if (c == ' ' || c == '\n' || c == '\r' || c == '\t')
			continue;
		enum pull_event event = structure(j, c);

		if (event != PULL_MORE)
			return event;
	}
	return PULL_MORE;
}

int pull_finish(struct pull *j, enum pull_event *ret_last)
{
	enum pull_event last = PULL_MORE;

	if (j->state == AT_LITERAL && j->depth == 0)
		last = end_literal(j);
	if (j->state == AT_BAD)
		return -EPROTO;
	if (j->state != AT_END || j->in_string)
		return -EAGAIN;
	*ret_last = last;
	return 0;
}

/* Bytes before the next quote or backslash. */
static size_t plain(const uint8_t *p, size_t n)
{
	size_t at = 0;

#ifdef __SSE2__
	const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\');

	for (; at + 16 <= n; at += 16) {
		__m128i x = _mm_loadu_si128((const __m128i *)(p + at));
		int hit = _mm_movemask_epi8(
			_mm_or_si128(_mm_cmpeq_epi8(x, quote), _mm_cmpeq_epi8(x, backslash)));

		if (hit)
			return at + (size_t)__builtin_ctz((unsigned)hit);
	}
#endif
	while (at < n && p[at] != '"' && p[at] != '\\')
		at++;
	return at;
}

bool pull_span(struct pull *j, const uint8_t **p, const uint8_t *end)
{
	assert(j->in_string);
	while (*p < end) {
		if (j->escape) {
			j->escape = 0;
			++*p;
			continue;
		}
		*p += plain(*p, (size_t)(end - *p));
		if (*p == end)
			return false;
		if (*(*p)++ == '"') {
			j->in_string = false;
			return true;
		}
		j->escape = 1;
	}
	return false;
}

static void copy_byte(struct pull_copy *copy, unsigned c)
{
	if (copy->len < copy->max)
		copy->to[copy->len++] = (char)c;
	else
		copy->over = true;
}

static void copy_code(struct pull_copy *copy, uint32_t code)
{
	if (code < 0x80) {
		copy_byte(copy, code);
	} else if (code < 0x800) {
		copy_byte(copy, 0xc0 | code >> 6);
		copy_byte(copy, 0x80 | (code & 63));
	} else if (code < 0x10000) {
		copy_byte(copy, 0xe0 | code >> 12);
		copy_byte(copy, 0x80 | (code >> 6 & 63));
		copy_byte(copy, 0x80 | (code & 63));
	} else {
		copy_byte(copy, 0xf0 | code >> 18);
		copy_byte(copy, 0x80 | (code >> 12 & 63));
		copy_byte(copy, 0x80 | (code >> 6 & 63));
		copy_byte(copy, 0x80 | (code & 63));
	}
}

/* Half a surrogate pair on its own stands for no character. */
static void drop_half(struct pull *j, struct pull_copy *copy)
{
	if (j->high)
		copy_code(copy, 0xfffd);
	j->high = 0;
}

static void end_of_unicode(struct pull *j, struct pull_copy *copy)
{
	uint32_t unit = j->hex;

	j->escape = 0;
	j->hex = 0;
	if (unit >= 0xdc00 && unit < 0xe000 && j->high) {
		copy_code(copy, 0x10000 + ((uint32_t)(j->high - 0xd800) << 10) + (unit - 0xdc00));
		j->high = 0;
		return;
	}
	drop_half(j, copy);
	if (unit >= 0xd800 && unit < 0xdc00)
		j->high = (uint16_t)unit;
	else
		copy_code(copy, unit >= 0xdc00 && unit < 0xe000 ? 0xfffd : unit);
}

static int hex_digit(uint8_t c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 32;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static void escaped_byte(struct pull *j, uint8_t c, struct pull_copy *copy)
{
	static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
	const char *known = c ? strchr(from, c) : NULL;

	j->escape = 0;
	if (c == 'u') {
		j->escape = 5;
		j->hex = 0;
		return;
	}
	drop_half(j, copy);
	copy_byte(copy, known ? (uint8_t)to[known - from] : c);
}

/* True when `c` was a digit of the escape; else the escape is over and `c` still to be read. */
static bool unicode_byte(struct pull *j, uint8_t c, struct pull_copy *copy)
{
	int digit = hex_digit(c);

	if (digit < 0) {
		end_of_unicode(j, copy);
		return false;
	}
	j->hex = (uint16_t)(j->hex << 4 | digit);
	if (--j->escape == 1)
		end_of_unicode(j, copy);
	return true;
}

static void copy_plain(const uint8_t **p, const uint8_t *end, struct pull_copy *copy)
{
	size_t n = plain(*p, (size_t)(end - *p)), room = copy->max - copy->len;
	size_t kept = n < room ? n : room;

	memcpy(copy->to + copy->len, *p, kept);
	copy->len = (uint16_t)(copy->len + kept);
	copy->over |= kept < n;
	*p += n;
}

/* A string without escapes that begins and ends here, as most that are captured are. */
static bool capture_simple(struct pull *j, const uint8_t **p, const uint8_t *end,
			   struct pull_copy *copy)
{
	size_t n;

	if (j->escape || j->high || copy->len)
		return false;
	n = plain(*p, (size_t)(end - *p));
	if (n == (size_t)(end - *p) || (*p)[n] != '"' || n > copy->max)
		return false;
	memcpy(copy->to, *p, n);
	copy->len = (uint16_t)n;
	*p += n + 1;
	j->in_string = false;
	return true;
}

bool pull_capture(struct pull *j, const uint8_t **p, const uint8_t *end, struct pull_copy *copy)
{
	assert(j->in_string);
	if (capture_simple(j, p, end, copy))
		return true;
	while (*p < end) {
		uint8_t c = **p;

		if (j->escape > 1) {
			*p += unicode_byte(j, c, copy);
			continue;
		}
		if (j->escape == 0 && c != '\\' && c != '"') {
			drop_half(j, copy);
			copy_plain(p, end, copy);
			continue;
		}
		++*p;
		if (j->escape == 1) {
			escaped_byte(j, c, copy);
		} else if (c == '\\') {
			j->escape = 1;
		} else {
			drop_half(j, copy);
			j->in_string = false;
			return true;
		}
	}
	return false;
}

bool pull_is_true(const struct pull *j)
{
	return strcmp(j->literal, "true") == 0;
}

bool pull_is_null(const struct pull *j)
{
	return strcmp(j->literal, "null") == 0;
}

static uint64_t times_ten(uint64_t value)
{
	return value > UINT64_MAX / 10 ? UINT64_MAX : value * 10;
}

bool pull_count(const struct pull *j, uint64_t *ret_count)
{
	const char *p = j->literal;
	bool negative = *p == '-';
	uint64_t value = 0;
	int exponent = 0, sign = 1;

	p += negative;
	if (*p < '0' || *p > '9')
		return false;
	for (; *p >= '0' && *p <= '9'; p++) {
		value = times_ten(value);
		value = value > UINT64_MAX - 9 ? UINT64_MAX : value + (uint64_t)(*p - '0');
	}
	const char *fraction = *p == '.' ? p + 1 : "";

	for (p = *p == '.' ? digits(p + 1) : p; *p && (*p < '0' || *p > '9'); p++)
		sign = *p == '-' ? -1 : sign;
	for (; *p >= '0' && *p <= '9' && exponent < 1000; p++)
		exponent = exponent * 10 + *p - '0';
	for (; exponent && sign > 0 && value < UINT64_MAX; exponent--) {
		value = times_ten(value);
		if (*fraction >= '0' && *fraction <= '9')
			value += (uint64_t)(*fraction++ - '0');
		else if (!value)
			break;
	}
	for (; exponent && sign < 0 && value; exponent--)
		value /= 10;
	*ret_count = negative ? 0 : value;
	return true;
}
