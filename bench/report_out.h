/* Text of a page under way: grows, escapes what comes from files, remembers its first failure. */
#ifndef TURNWARD_BENCH_REPORT_OUT_H
#define TURNWARD_BENCH_REPORT_OUT_H

#include <stddef.h>

struct out {
	char *text; /* zero-terminated; NULL before anything was written */
	size_t len, room;
	int err; /* -ENOMEM: nothing more is written */
};

void out_free(struct out *o);

/* Markup and numbers of our own. */
void out_fmt(struct out *o, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Everything else: fit for text and for attributes in quotes, in HTML and in XML. What is no UTF-8
 * and what XML forbids becomes U+FFFD. */
void out_escaped(struct out *o, const char *text);
void out_escaped_mem(struct out *o, const char *text, size_t len);

/*
 * A number for people: `digits` significant ones, no exponent between 1e-6 and 1e15; "-" for NaN.
 * Negative ones have a true minus sign.
 */
enum { OUT_NUMBER_MAX = 48 };
const char *out_number(char buf[OUT_NUMBER_MAX], double value, int digits);
/* With as many digits after the point as a column of its kind has; 0 is "0". */
const char *out_fixed(char buf[OUT_NUMBER_MAX], double value, int places);
/* How many: `digits` significant ones in the middle of the values that are not 0 or NaN; sorts.
 * None when all are whole. */
int out_places(double *values, size_t nr, int digits);
/* A number as it is shown in a <data> element that has the exact value, too. */
void out_data(struct out *o, double value, const char *shown);

#endif
