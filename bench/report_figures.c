/* A replay's tables: what was measured, and what is behind it. */
#include <assert.h>
#include <stdio.h>

#include "bench/report.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
enum { COLUMNS_MAX = 24, PLACES_MAX = 4 };
enum better { LOWER = -1, NEITHER, HIGHER };

/* A column of a table; a group of NULL goes on with the one before. */
struct column {
	const char *group, *head, *path;
	const char *error; /* the figure whose error stands beside it, or NULL */
	enum better better;
};

/* The same as a document's values want it. */
struct shown {
	const struct column *column;
	const char *group; /* NULL as above */
	int places;        /* digits after the point */
	double best;
};

static const struct column times[] = {
	{ "TTFT, s", "mean", "ttft_s.mean", "ttft_mean_s", LOWER },
	{ NULL, "p50", "ttft_s.p50", NULL, LOWER },
	{ NULL, "p90", "ttft_s.p90", "ttft_p90_s", LOWER },
	{ NULL, "p99", "ttft_s.p99", NULL, LOWER },
	{ "TTFT mean of a class, s", "WARM", "class.WARM.mean_s", NULL, LOWER },
	{ NULL, "MEDIUM", "class.MEDIUM.mean_s", NULL, LOWER },
	{ NULL, "HEAVY", "class.HEAVY.mean_s", NULL, LOWER },
	{ NULL, "turn \xe2\x89\xa5 2", "heavy_t2_mean_s", "heavy_t2_mean_s", LOWER },
	{ "TPOT, s", "p90", "tpot_s.p90", NULL, LOWER },
	{ "E2E, s", "mean", "e2e_s.mean", NULL, LOWER },
	{ NULL, "p50", "e2e_s.p50", NULL, LOWER },
	{ "requests", "victims", "victims", NULL, LOWER },
	{ NULL, "moves", "migrations", NULL, NEITHER },
	{ "engines", "hit", "hit_ratio", NULL, HIGHER },
	{ NULL, "balance", "balance", NULL, LOWER },
};
static const char times_caption[] = "Means over seeds \xc2\xb1 their standard error; arms by "
				    "TTFT p90, the best value of a column bold, the base's "
				    "name bold. Lower is better, but for hit (the share of "
				    "prompt tokens found cached). Turn \xe2\x89\xa5 2: of "
				    "HEAVY requests. <em>Victims</em>: HEAVY turns "
				    "\xe2\x89\xa5 2, over 80 % of whose prompt some engine "
				    "held, that waited more than 5 s. <em>Moves</em>: turns "
				    "\xe2\x89\xa5 2 sent elsewhere than the turn before. "
				    "<em>Balance</em>: most over fewest prompt tokens computed "
				    "by an engine.";

static const struct column causes[] = {
	{ "moves", "all", "figures.migrations.mean", NULL, NEITHER },
	{ NULL, "of hot ones", "figures.migrations_hot.mean", NULL, NEITHER },
	{ NULL, "forced", "figures.migrations_forced.mean", NULL, NEITHER },
	{ NULL, "paid", "figures.migrations_paid.mean", NULL, NEITHER },
	{ "offloads at turn 1", "all", "figures.offloads_t1.mean", NULL, NEITHER },
	{ NULL, "paid", "figures.offloads_t1_paid.mean", NULL, NEITHER },
	{ "prefixes", "pulls", "figures.pulls.mean", NULL, NEITHER },
	{ "TTFT over ideal", "all", "figures.over_ideal.mean", NULL, LOWER },
	{ NULL, "turn \xe2\x89\xa5 2", "figures.heavy_t2_over_ideal.mean", NULL, LOWER },
	{ "waited a request, s", "for KV room", "figures.waited_kv_s.mean", NULL, LOWER },
	{ NULL, "for a step", "figures.waited_budget_s.mean", NULL, LOWER },
	{ "engines", "KV held", "figures.kv_held.mean", NULL, NEITHER },
	{ NULL, "preemptions", "figures.preemptions.mean", NULL, LOWER },
	{ "prediction", "error", "figures.prediction_error.mean", NULL, LOWER },
};
static const char causes_caption[] =
	"Means over seeds. <em>Hot</em>: HEAVY turns \xe2\x89\xa5 2 over 80 % of whose prompt some "
	"engine "
	"held. <em>Forced</em>: by the rule before the cost model. <em>Paid</em>: the first token "
	"came "
	"before the home that was left would have given it. <em>Ideal</em>: an empty engine that "
	"holds "
	"what home held. <em>Error</em>: mean |ln(measured / predicted)| of first tokens.";

/* NaN: no arm has it, or none is best. *ret_any: there is something to show. */
static double best_of(const struct report_doc *doc, const struct column *c, bool *ret_any)
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

/* Digits after the point of a column: three that count in its middle value. */
static int places_of(const struct report_doc *doc, const struct column *c)
{
	double value[REPORT_ARMS_MAX];
	size_t nr = 0;

	for (size_t i = 0; i < doc->arms; i++) {
		double v = report_get(&doc->arm[i].value, c->path);
		size_t k = nr;

		if (!(v > 0) || !isfinite(v))
			continue;
		for (nr++; k > 0 && value[k - 1] > v; k--)
			value[k] = value[k - 1];
		value[k] = v;
	}
	int places = nr ? 2 - (int)floor(log10(value[nr / 2])) : 0;

	return places < 0 ? 0 : places > PLACES_MAX ? PLACES_MAX : places;
}

static void write_cell(struct out *o, const struct report_arm *arm, const struct shown *s)
{
	const struct column *c = s->column;
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
static size_t pick(const struct report_doc *doc, const struct column *from, size_t nr,
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

static void write_table(struct out *o, const struct report_doc *doc, const struct column *from,
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

void report_figures(struct out *o, const struct report_doc *doc)
{
	report_heading(o, doc, "table", "Figures");
	write_table(o, doc, times, LENGTH(times), times_caption);
	if (!report_has(&doc->arm[0].value, "figures"))
		return;
	report_heading(o, doc, "causes", "What is behind them");
	write_table(o, doc, causes, LENGTH(causes), causes_caption);
}
