/* JSON in: one scanner that steps over a value without recursion, and look-ups built on it. */
#include "shm/base/jread.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER_MAX = 400 /* digits of a number that strtod() is given */ };

struct scan {
	const char *at, *end;
};

static void skip_space(struct scan *s)
{
	while (s->at < s->end &&
	       (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r'))
		s->at++;
}

static int peek(const struct scan *s)
{
	return s->at < s->end ? (unsigned char)*s->at : -1;
}

static int hex_digit(int c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Four hex digits at `at`, or -EINVAL. */
static int hex4(const char *at, const char *end)
{
	int value = 0;

	if (end - at < 4)
		return -EINVAL;
	for (int i = 0; i < 4; i++) {
		int digit = hex_digit((unsigned char)at[i]);

		if (digit < 0)
			return -EINVAL;
		value = value * 16 + digit;
	}
	return value;
}

static int skip_string(struct scan *s)
{
	assert(peek(s) == '"');
	for (s->at++; s->at < s->end; s->at++) {
		unsigned char c = (unsigned char)*s->at;

		if (c == '"') {
			s->at++;
			return 0;
		}
		if (c < 0x20)
			return -EINVAL;
		if (c != '\\')
			continue;
		if (++s->at == s->end)
			return -EINVAL;
		if (*s->at == 'u' && hex4(s->at + 1, s->end) < 0)
			return -EINVAL;
		if (!memchr("\"\\/bfnrtu", *s->at, 9))
			return -EINVAL;
	}
	return -EINVAL;
}

static int skip_digits(struct scan *s)
{
	const char *from = s->at;

	while (s->at < s->end && *s->at >= '0' && *s->at <= '9')
		s->at++;
	return s->at > from ? 0 : -EINVAL;
}

static int skip_number(struct scan *s)
{
	if (peek(s) == '-')
		s->at++;
	if (peek(s) == '0')
		s->at++;
	else if (skip_digits(s))
		return -EINVAL;
	if (peek(s) == '.') {
		s->at++;
		if (skip_digits(s))
			return -EINVAL;
	}
	if (peek(s) == 'e' || peek(s) == 'E') {
		s->at++;
		if (peek(s) == '+' || peek(s) == '-')
			s->at++;
		return skip_digits(s);
	}
	return 0;
}

static int skip_word(struct scan *s, const char *word)
{
	size_t len = strlen(word);

	if ((size_t)(s->end - s->at) < len || memcmp(s->at, word, len))
		return -EINVAL;
	s->at += len;
	return 0;
}

static int type_at(const struct scan *s)
{
	switch (peek(s)) {
	case '{':
		return JREAD_OBJECT;
	case '[':
		return JREAD_ARRAY;
	case '"':
		return JREAD_STRING;
	case 't':
	case 'f':
		return JREAD_BOOL;
	case 'n':
		return JREAD_NULL;
	default:
		return JREAD_NUMBER;
	}
}

static int skip_scalar(struct scan *s)
{
	switch (peek(s)) {
	case '"':
		return skip_string(s);
	case 't':
		return skip_word(s, "true");
	case 'f':
		return skip_word(s, "false");
	case 'n':
		return skip_word(s, "null");
	default:
		return skip_number(s);
	}
}

/* A key and its colon. */
static int skip_key(struct scan *s)
{
	skip_space(s);
	if (peek(s) != '"' || skip_string(s))
		return -EINVAL;
	skip_space(s);
	if (peek(s) != ':')
		return -EINVAL;
	s->at++;
	skip_space(s);
	return 0;
}

/* Closes every container that ends here; stops before the next value. 0 = the outermost is done. */
static int after_value(struct scan *s, const char *open, int *depth)
{
	while (*depth) {
		char kind = open[*depth - 1];

		skip_space(s);
		if (peek(s) == ',') {
			s->at++;
			skip_space(s);
			return kind == '{' ? (skip_key(s) ? -EINVAL : 1) : 1;
		}
		if (peek(s) != (kind == '{' ? '}' : ']'))
			return -EINVAL;
		s->at++;
		--*depth;
	}
	return 0;
}

/* Enters a container: 1 = a value comes first, 0 = it was empty. */
static int enter(struct scan *s, char *open, int *depth)
{
	char kind = *s->at++;

	skip_space(s);
	if (peek(s) == (kind == '{' ? '}' : ']')) {
		s->at++;
		return 0;
	}
	if (*depth == JREAD_DEPTH_MAX)
		return -E2BIG;
	open[(*depth)++] = kind;
	return kind == '{' && skip_key(s) ? -EINVAL : 1;
}

/* Steps over one value, checking it; `s` stands at its first character. */
static int skip_value(struct scan *s)
{
	char open[JREAD_DEPTH_MAX];
	int depth = 0, more = 1;

	while (more > 0) {
		int c = peek(s);

		if (c == '{' || c == '[') {
			more = enter(s, open, &depth);
			if (more)
				continue;
		} else if (skip_scalar(s)) {
			return -EINVAL;
		}
		more = after_value(s, open, &depth);
	}
	return more;
}

static int take_value(struct scan *s, struct jread *ret_value)
{
	const char *from = s->at;
	int type = type_at(s);
	int err = skip_value(s);

	if (err)
		return err;
	*ret_value = (struct jread){ .type = (enum jread_type)type,
				     .text = from,
				     .len = (size_t)(s->at - from) };
	return 0;
}

int jread_open_at(struct jread *ret_value, const char *text, size_t len, size_t *ret_offset)
{
	struct scan s = { text, text + len };
	struct jread value;

	skip_space(&s);
	int err = take_value(&s, &value);

	if (!err) {
		skip_space(&s);
		err = s.at == s.end ? 0 : -EINVAL;
	}
	if (err)
		*ret_offset = (size_t)(s.at - text);
	else
		*ret_value = value;
	return err;
}

int jread_open(struct jread *ret_value, const char *text, size_t len)
{
	size_t offset;

	return jread_open_at(ret_value, text, len, &offset);
}

/* ---- walking ---- */

void jread_walk_begin(struct jread_walk *walk, const struct jread *container)
{
	*walk = (struct jread_walk){ .in = *container, .index = SIZE_MAX };
}

int jread_walk_next(struct jread_walk *walk)
{
	struct scan s = { walk->in.text + walk->at, walk->in.text + walk->in.len };
	int object = walk->in.type == JREAD_OBJECT;

	if (!object && walk->in.type != JREAD_ARRAY)
		return 0;
	if (walk->index == SIZE_MAX)
		s.at++; /* the bracket */
	skip_space(&s);
	if (peek(&s) == ',')
		s.at++;
	skip_space(&s);
	if (peek(&s) == ']' || peek(&s) == '}' || s.at == s.end)
		return 0;
	if (object) {
		if (take_value(&s, &walk->key))
			return 0;
		skip_space(&s);
		s.at++; /* the colon */
		skip_space(&s);
	}
	if (take_value(&s, &walk->value))
		return 0;
	walk->at = (size_t)(s.at - walk->in.text);
	walk->index++;
	return 1;
}

size_t jread_count(const struct jread *container)
{
	struct jread_walk walk;
	size_t n = 0;

	for (jread_walk_begin(&walk, container); jread_walk_next(&walk);)
		n++;
	return n;
}

/* ---- strings ---- */

static size_t put_utf8(unsigned code, char *out)
{
	if (code < 0x80) {
		out[0] = (char)code;
		return 1;
	}
	if (code < 0x800) {
		out[0] = (char)(0xc0 | code >> 6);
		out[1] = (char)(0x80 | (code & 0x3f));
		return 2;
	}
	if (code < 0x10000) {
		out[0] = (char)(0xe0 | code >> 12);
		out[1] = (char)(0x80 | (code >> 6 & 0x3f));
		out[2] = (char)(0x80 | (code & 0x3f));
		return 3;
	}
	out[0] = (char)(0xf0 | code >> 18);
	out[1] = (char)(0x80 | (code >> 12 & 0x3f));
	out[2] = (char)(0x80 | (code >> 6 & 0x3f));
	out[3] = (char)(0x80 | (code & 0x3f));
	return 4;
}

/* A \u escape at s->at (after the 'u'), with its second half if it is a pair. */
static unsigned take_unicode(struct scan *s)
{
	int high = hex4(s->at, s->end), low;

	assert(high >= 0);
	s->at += 4;
	if (high < 0xd800 || high > 0xdfff)
		return (unsigned)high;
	if (high > 0xdbff || s->end - s->at < 6 || s->at[0] != '\\' || s->at[1] != 'u')
		return 0xfffd;
	low = hex4(s->at + 2, s->end);
	if (low < 0xdc00 || low > 0xdfff)
		return 0xfffd;
	s->at += 6;
	return 0x10000u + ((unsigned)(high - 0xd800) << 10) + (unsigned)(low - 0xdc00);
}

/* The next decoded character (1..4 bytes); a string that is at its end gives 0. */
static size_t next_char(struct scan *s, char out[4])
{
	static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
	const char *known;
	char c;

	if (s->at >= s->end)
		return 0;
	c = *s->at++;
	if (c == '\\') {
		c = *s->at++;
		if (c == 'u')
			return put_utf8(take_unicode(s), out);
		known = strchr(from, c);
		if (known)
			c = to[known - from];
	}
	out[0] = c;
	return 1;
}

static struct scan inside(const struct jread *string)
{
	assert(string->type == JREAD_STRING && string->len >= 2);
	return (struct scan){ string->text + 1, string->text + string->len - 1 };
}

int jread_str(const struct jread *value, char *ret_text, size_t size, size_t *ret_len)
{
	size_t len = 0, n;
	char out[4];

	if (value->type != JREAD_STRING)
		return -EINVAL;
	for (struct scan s = inside(value); (n = next_char(&s, out)); len += n)
		if (len + n >= size)
			return -ENOSPC;
	len = 0;
	for (struct scan s = inside(value); (n = next_char(&s, out)); len += n)
		memcpy(ret_text + len, out, n);
	ret_text[len] = '\0';
	if (ret_len)
		*ret_len = len;
	return 0;
}

static int string_is(const struct jread *value, const char *text, size_t len)
{
	size_t n, at = 0;
	char out[4];

	for (struct scan s = inside(value); (n = next_char(&s, out)); at += n)
		if (n > len - at || memcmp(text + at, out, n))
			return 0;
	return at == len;
}

int jread_is(const struct jread *value, const char *text)
{
	return value->type == JREAD_STRING && string_is(value, text, strlen(text));
}

/* ---- paths ---- */

static int member(const struct jread *object, const char *name, size_t len, struct jread *ret_value)
{
	struct jread_walk walk;
	int found = -ENOENT;

	if (object->type != JREAD_OBJECT)
		return -ENOENT;
	for (jread_walk_begin(&walk, object); jread_walk_next(&walk);)
		if (string_is(&walk.key, name, len)) {
			*ret_value = walk.value;
			found = 0;
		}
	return found;
}

static int element(const struct jread *array, size_t index, struct jread *ret_value)
{
	struct jread_walk walk;

	if (array->type != JREAD_ARRAY)
		return -ENOENT;
	for (jread_walk_begin(&walk, array); jread_walk_next(&walk);)
		if (walk.index == index) {
			*ret_value = walk.value;
			return 0;
		}
	return -ENOENT;
}

int jread_get(const struct jread *value, const char *path, struct jread *ret_value)
{
	struct jread at = *value, next;
	int err = 0;

	while (*path && !err) {
		if (*path == '[') {
			char *end;
			size_t index = strtoul(path + 1, &end, 10);

			assert(*end == ']');
			path = end + 1;
			err = element(&at, index, &next);
		} else {
			path += *path == '.';

			size_t len = strcspn(path, ".[");

			err = member(&at, path, len, &next);
			path += len;
		}
		if (!err)
			at = next;
	}
	if (err)
		return err;
	*ret_value = at;
	return 0;
}

/* ---- numbers ---- */

int jread_u64(const struct jread *value, uint64_t *ret)
{
	uint64_t n = 0;

	if (value->type != JREAD_NUMBER)
		return -EINVAL;
	for (size_t i = 0; i < value->len; i++) {
		unsigned digit = (unsigned char)value->text[i] - '0';

		if (digit > 9)
			return -EINVAL;
		if (n > (UINT64_MAX - digit) / 10) {
			*ret = UINT64_MAX;
			return -ERANGE;
		}
		n = n * 10 + digit;
	}
	*ret = n;
	return 0;
}

int jread_f64(const struct jread *value, double *ret)
{
	char text[NUMBER_MAX + 1];

	if (value->type != JREAD_NUMBER)
		return -EINVAL;
	if (value->len > NUMBER_MAX)
		return -ERANGE;
	memcpy(text, value->text, value->len);
	text[value->len] = '\0';

	double n = strtod(text, NULL);

	if (!isfinite(n))
		return -ERANGE;
	*ret = n;
	return 0;
}

int jread_bool(const struct jread *value, int *ret)
{
	if (value->type != JREAD_BOOL)
		return -EINVAL;
	*ret = value->text[0] == 't';
	return 0;
}

int jread_get_u64(const struct jread *value, const char *path, uint64_t *ret)
{
	struct jread found;
	int err = jread_get(value, path, &found);

	return err ? err : jread_u64(&found, ret);
}

int jread_get_f64(const struct jread *value, const char *path, double *ret)
{
	struct jread found;
	int err = jread_get(value, path, &found);

	return err ? err : jread_f64(&found, ret);
}

int jread_get_str(const struct jread *value, const char *path, char *ret_text, size_t size)
{
	struct jread found;
	int err = jread_get(value, path, &found);

	return err ? err : jread_str(&found, ret_text, size, NULL);
}
