/* Tables of chosen figures: columns that line up, the best value bold; the best arm in words. */
#include <assert.h>
#include <stdio.h>

#include "bench/report.h"

enum { COLUMNS_MAX = 24 };

/* A column as a document's values want it. */
struct shown {
	const struct report_column *column;
	const char *group; /* NULL as above */
	int places;        /* digits after the point */
	double best;
};

/* NaN: no arm has it, or none is best. *ret_any: there is something to show. */
static double best_of(const struct report_doc *doc, const struct report_column *c, bool *ret_any)
{
	double best = NAN;
	size_t equal = 0;

	*ret_any = false;
	for (size_t i = 0; i < doc->arms; i++) {
		double v = report_get(&doc->arm[i].value, c->path);

		*ret_any |= isfinite(v) && (v != 0 || c->better != NEITHER);
		equal += v == best;
		if (isfinite(v) && (isnan(best) || (c->better == LOWER ? v < best : v > best))) {
			best = v;
			equal = 1;
		}
	}
	return c->better == NEITHER || doc->arms < 2 || equal > 2 ? NAN : best;
}

static int places_of(const struct report_doc *doc, const struct report_column *c)
{
	double value[REPORT_ARMS_MAX];

	for (size_t i = 0; i < doc->arms; i++)
		value[i] = report_get(&doc->arm[i].value, c->path);
	return out_places(value, doc->arms, 3);
}

static void write_cell(struct out *o, const struct report_arm *arm, const struct shown *s)
{
	const struct report_column *c = s->column;
	double value = report_get(&arm->value, c->path);
	double error = c->error ? report_getf(&arm->value, "figures.%s.error", c->error) : NAN;
	char number[OUT_NUMBER_MAX];

	out_fmt(o, "<td%s>", value == s->best ? " class=\"best\"" : "");
	out_data(o, value, out_fixed(number, value, s->places));
	if (error > 0)
		out_fmt(o, " <span class=\"se\">\xc2\xb1\xc2\xa0%s</span>",
			out_fixed(number, error, s->places));
	out_fmt(o, "</td>");
}

static void write_heads(struct out *o, const struct shown *shown, size_t nr)
{
	out_fmt(o, "<thead><tr class=\"of\"><th></th>");
	for (size_t i = 0; i < nr;) {
		size_t span = 1;

		while (i + span < nr && !shown[i + span].group)
			span++;
		out_fmt(o, "<th scope=\"colgroup\" colspan=\"%zu\">%s</th>", span, shown[i].group);
		i += span;
	}
	out_fmt(o, "</tr><tr><th scope=\"col\">arm</th>");
	for (size_t i = 0; i < nr; i++)
		out_fmt(o, "<th scope=\"col\">%s</th>", shown[i].column->head);
	out_fmt(o, "</tr></thead>\n");
}

/* Columns that some arm has a value for, groups intact. */
static size_t pick(const struct report_doc *doc, const struct report_column *from, size_t nr,
		   struct shown *ret)
{
	const char *group = "", *last = NULL;
	size_t picked = 0;
	bool any;

	for (size_t i = 0; i < nr; i++) {
		double best = best_of(doc, &from[i], &any);

		group = from[i].group ? from[i].group : group;
		if (!any)
			continue;
		ret[picked++] = (struct shown){ .column = &from[i],
						.group = group == last ? NULL : group,
						.places = places_of(doc, &from[i]),
						.best = best };
		last = group;
	}
	return picked;
}

void report_columns(struct out *o, const struct report_doc *doc, const struct report_column *from,
		    size_t nr, const char *caption)
{
	struct shown shown[COLUMNS_MAX];

	assert(nr <= COLUMNS_MAX);
	nr = pick(doc, from, nr, shown);
	if (nr == 0)
		return;
	out_fmt(o, "<div class=\"wide\"><table class=\"dense\">\n<caption>%s</caption>", caption);
	write_heads(o, shown, nr);
	out_fmt(o, "<tbody>\n");
	for (size_t i = 0; i < doc->arms; i++) {
		out_fmt(o, "<tr%s><th scope=\"row\">",
			(int)i == doc->base ? " class=\"base\"" : "");
		out_escaped(o, doc->arm[i].name);
		out_fmt(o, "</th>");
		for (size_t c = 0; c < nr; c++)
			write_cell(o, &doc->arm[i], &shown[c]);
		out_fmt(o, "</tr>\n");
	}
	out_fmt(o, "</tbody></table></div>\n");
}

void report_best(struct out *o, const struct report_doc *doc, const char *what, const char *path,
		 const char *unit)
{
	double best = NAN;
	size_t who = 0;
	char number[OUT_NUMBER_MAX];

	for (size_t i = 0; i < doc->arms; i++) {
		double v = report_get(&doc->arm[i].value, path);

		if (isfinite(v) && (isnan(best) || v < best)) {
			best = v;
			who = i;
		}
	}
	if (isnan(best))
		return;
	out_fmt(o, "<li>%s: <strong>", what);
	out_escaped(o, doc->arm[who].name);
	out_fmt(o, "</strong>, %s%s", out_number(number, best, 3), unit);
	if (doc->base >= 0 && doc->base != (int)who) {
		double base = report_get(&doc->arm[doc->base].value, path);

		out_fmt(o, "; the base, ");
		out_escaped(o, doc->arm[doc->base].name);
		out_fmt(o, ", has %s%s", out_number(number, base, 3), unit);
		if (base > 0)
			out_fmt(o, " (%s %%)",
				out_number(number, round(100 * (best / base - 1)), 3));
	}
	out_fmt(o, ".</li>\n");
}
