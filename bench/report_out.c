/* Text of a page under way: growing, escaping, numbers for people. */
#include "bench/report_out.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLACES_MAX = 5 };

void out_free(struct out *o)
{
	free(o->text);
	*o = (struct out){ 0 };
}

static int make_room(struct out *o, size_t more)
{
	size_t room = o->room ? o->room : 65536;

	if (o->err || o->len + more < o->room)
		return o->err;
	while (room <= o->len + more)
		room *= 2;
	char *grown = realloc(o->text, room);

	if (!grown)
		return o->err = -ENOMEM;
	o->text = grown;
	o->room = room;
	return 0;
}

void out_fmt(struct out *o, const char *format, ...)
{
	va_list list;
	int len;

	va_start(list, format);
	len = vsnprintf(NULL, 0, format, list);
	va_end(list);
	if (len < 0 || make_room(o, (size_t)len + 1))
		return;
	va_start(list, format);
	vsnprintf(o->text + o->len, (size_t)len + 1, format, list);
	va_end(list);
	o->len += (size_t)len;
}

/* Bytes of the character at `text` if it is UTF-8 that XML admits, else 0. */
static size_t character(const unsigned char *text, size_t len)
{
	static const unsigned least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	unsigned c = text[0];
	size_t need = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;

	if (need == 1)
		return c >= 0x20 || c == '\t' || c == '\n' || c == '\r';
	if (need == 0 || need > len)
		return 0;
	c &= 0x7fu >> need;
	for (size_t i = 1; i < need; i++) {
		if ((text[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (text[i] & 0x3f);
	}
	if (c < least[need] || (c >= 0xd800 && c < 0xe000) || c > 0x10ffff ||
	    (c & 0xfffe) == 0xfffe)
		return 0;
	return c >= 0x80 && c < 0xa0 ? 0 : need; /* C1 controls say nothing to anybody */
}

static const char *replacement(unsigned char c)
{
	switch (c) {
	case '&':
		return "&amp;";
	case '<':
		return "&lt;";
	case '>':
		return "&gt;";
	case '"':
		return "&quot;";
	case '\'':
		return "&#39;";
	default:
		return NULL;
	}
}

void out_escaped_mem(struct out *o, const char *text, size_t len)
{
	for (size_t i = 0; i < len;) {
		size_t n = character((const unsigned char *)text + i, len - i);
		const char *instead = n ? replacement((unsigned char)text[i]) : "\xef\xbf\xbd";

		if (instead)
			out_fmt(o, "%s", instead);
		else if (!make_room(o, n + 1)) {
			memcpy(o->text + o->len, text + i, n);
			o->len += n;
			o->text[o->len] = 0;
		}
		i += n ? n : 1;
	}
}

void out_escaped(struct out *o, const char *text)
{
	out_escaped_mem(o, text, strlen(text));
}

/* Digits after the point that leave `digits` significant ones of what is printed: 9.999 is 10.0. */
static int places_for(double value, int digits)
{
	int magnitude = (int)floor(log10(value)) + 1;

	if (value * (1 + 0.5 * pow(10, -digits)) >= pow(10, magnitude))
		magnitude++;
	return magnitude >= digits ? 0 : digits - magnitude;
}

/* A large whole number in groups of three, between them a narrow space that does not break. */
static void grouped(char buf[OUT_NUMBER_MAX], const char *sign, double size)
{
	char digits[24];
	int nr = snprintf(digits, sizeof(digits), "%.0f", size);
	size_t len = (size_t)snprintf(buf, OUT_NUMBER_MAX, "%s", sign);

	for (int i = 0; i < nr; i++)
		len += (size_t)snprintf(buf + len, OUT_NUMBER_MAX - len, "%s%c",
					i > 0 && (nr - i) % 3 == 0 ? "\xe2\x80\xaf" : "",
					digits[i]);
}

const char *out_number(char buf[OUT_NUMBER_MAX], double value, int digits)
{
	double size = fabs(value);
	const char *sign = value < 0 ? "\xe2\x88\x92" : "";

	if (!isfinite(value))
		snprintf(buf, OUT_NUMBER_MAX, "%s", isnan(value) ? "-" : "\xe2\x88\x9e");
	else if (size == 0)
		snprintf(buf, OUT_NUMBER_MAX, "0");
	else if (size < 1e-6 || size >= 1e15)
		snprintf(buf, OUT_NUMBER_MAX, "%s%.*g", sign, digits, size);
	else if (size == floor(size) && size < 1e5)
		snprintf(buf, OUT_NUMBER_MAX, "%s%.0f", sign, size);
	else if (size >= 1e5)
		grouped(buf, sign, size);
	else
		snprintf(buf, OUT_NUMBER_MAX, "%s%.*f", sign, places_for(size, digits), size);
	return buf;
}

const char *out_fixed(char buf[OUT_NUMBER_MAX], double value, int places)
{
	if (!isfinite(value) || value == 0 || fabs(value) >= 1e5)
		return out_number(buf, value, 3);
	snprintf(buf, OUT_NUMBER_MAX, "%s%.*f", value < 0 ? "\xe2\x88\x92" : "", places,
		 fabs(value));
	return buf;
}

int out_places(double *values, size_t nr, int digits)
{
	size_t kept = 0;
	int whole = 1, places;

	for (size_t i = 0; i < nr; i++) {
		double v = fabs(values[i]);
		size_t k = kept;

		if (!(v > 0) || !isfinite(v))
			continue;
		whole &= v == floor(v);
		for (kept++; k > 0 && values[k - 1] > v; k--)
			values[k] = values[k - 1];
		values[k] = v;
	}
	if (kept == 0 || whole)
		return 0;
	places = digits - 1 - (int)floor(log10(values[kept / 2]));
	return places < 0 ? 0 : places > PLACES_MAX ? PLACES_MAX : places;
}

void out_data(struct out *o, double value, const char *shown)
{
	if (isfinite(value))
		out_fmt(o, "<data value=\"%.12g\">%s</data>", value, shown);
	else
		out_fmt(o, "%s", shown);
}
