/* Arms that several replays have in common, side by side: does what wins here win there? */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/report.h"

enum { ROWS_MAX = 2 * REPORT_ARMS_MAX, COLUMNS_MAX = 12 };

struct overview {
	const struct report_doc *doc[COLUMNS_MAX];
	const char *name[ROWS_MAX]; /* of arms, in the order of the first file that has them */
	size_t docs, names;
};

static const struct report_arm *arm_of(const struct report_doc *doc, const char *name)
{
	for (size_t i = 0; i < doc->arms; i++)
		if (strcmp(doc->arm[i].name, name) == 0)
			return &doc->arm[i];
	return NULL;
}

static size_t holders(const struct overview *v, const char *name)
{
	size_t nr = 0;

	for (size_t i = 0; i < v->docs; i++)
		nr += arm_of(v->doc[i], name) != NULL;
	return nr;
}

static bool is_listed(const struct overview *v, const char *name)
{
	for (size_t i = 0; i < v->names; i++)
		if (strcmp(v->name[i], name) == 0)
			return true;
	return false;
}

static void gather(struct overview *v, const struct report_doc *doc, size_t docs)
{
	for (size_t i = 0; i < docs && v->docs < COLUMNS_MAX; i++)
		if (report_is_replay(&doc[i].value) && doc[i].arms > 0)
			v->doc[v->docs++] = &doc[i];
	for (size_t i = 0; i < v->docs; i++)
		for (size_t k = 0; k < v->doc[i]->arms && v->names < ROWS_MAX; k++) {
			const char *name = v->doc[i]->arm[k].name;

			if (holders(v, name) > 1 && !is_listed(v, name))
				v->name[v->names++] = name;
		}
}

static void write_cells(struct out *o, const struct report_doc *doc, const struct report_arm *arm)
{
	char number[OUT_NUMBER_MAX];
	double percent;

	if (!arm) {
		out_fmt(o, "<td>\xe2\x80\x93</td><td></td>");
		return;
	}
	out_fmt(o, "<td%s>", arm == &doc->arm[0] ? " class=\"best\"" : "");
	out_data(o, arm->rank, out_fixed(number, arm->rank, 2));
	out_fmt(o, "</td><td class=\"l\">");
	percent = report_get(&arm->value, "figures.ttft_p90_s.against_base_percent");
	if (doc->base >= 0 && arm == &doc->arm[doc->base])
		out_fmt(o, "<span class=\"se\">base</span>");
	else if (isfinite(percent))
		out_fmt(o, "<span class=\"se\">%s%s\xc2\xa0%%</span>", percent > 0 ? "+" : "",
			out_fixed(number, percent, 0));
	out_fmt(o, "</td>");
}

static void write_heads(struct out *o, const struct overview *v)
{
	out_fmt(o, "<thead><tr><th scope=\"col\">TTFT p90, s</th>");
	for (size_t i = 0; i < v->docs; i++) {
		const char *slash = strrchr(v->doc[i]->path, '/');

		out_fmt(o, "<th scope=\"col\" colspan=\"2\"><a href=\"#f%u\">", v->doc[i]->number);
		out_escaped(o, slash ? slash + 1 : v->doc[i]->path);
		out_fmt(o, "</a></th>");
	}
	out_fmt(o, "</tr></thead>\n<tbody>");
}

void report_overview(struct out *o, const struct report_doc *doc, size_t docs)
{
	struct overview v = { 0 };

	gather(&v, doc, docs);
	if (v.docs < 2 || v.names == 0)
		return;
	out_fmt(o,
		"<h2 class=\"first\" id=\"overview\">Side by side</h2>\n<div class=\"wide\"><table>"
		"<caption>TTFT p90 of arms that more than one file has, and per cent over the "
		"file's base, seed by seed; lower is better, a file's best is bold.</caption>");
	write_heads(o, &v);
	for (size_t i = 0; i < v.names; i++) {
		out_fmt(o, "<tr><th scope=\"row\">");
		out_escaped(o, v.name[i]);
		out_fmt(o, "</th>");
		for (size_t k = 0; k < v.docs; k++)
			write_cells(o, v.doc[k], arm_of(v.doc[k], v.name[i]));
		out_fmt(o, "</tr>\n");
	}
	out_fmt(o, "</tbody></table></div>\n");
}
