/* What a replay's result becomes: table, differences, distributions, queues, moves. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/report.h"
#include "bench/report_timeline.h"
#include "shm/base/scoped.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static const struct report_column times[] = {
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

static const struct report_column causes[] = {
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

bool report_is_replay(const struct jread *doc)
{
	char kind[32];

	if (jread_get_str(doc, "kind", kind, sizeof(kind)) == 0)
		return strcmp(kind, "replay") == 0;
	return report_has(doc, "base") && report_has(doc, "arms[0].figures");
}

static void write_tables(struct out *o, const struct report_doc *doc)
{
	report_heading(o, doc, "table", "Figures");
	report_columns(o, doc, times, LENGTH(times), times_caption);
	if (!report_has(&doc->arm[0].value, "figures"))
		return;
	report_heading(o, doc, "causes", "What is behind them");
	report_columns(o, doc, causes, LENGTH(causes), causes_caption);
}

/* ---- in words ---- */

static void write_words(struct out *o, const struct report_doc *doc)
{
	const struct report_arm *arm = &doc->arm[doc->base >= 0 ? doc->base : 0];
	double mean = report_get(&arm->value, "figures.floor_mean_s.mean");
	double p90 = report_get(&arm->value, "figures.floor_p90_s.mean");
	char a[OUT_NUMBER_MAX], b[OUT_NUMBER_MAX];

	out_fmt(o, "<ul class=\"says\">\n");
	report_best(o, doc, "Lowest TTFT p90", "ttft_s.p90", " s");
	report_best(o, doc, "Lowest TTFT mean of HEAVY turns \xe2\x89\xa5 2", "heavy_t2_mean_s",
		    " s");
	report_best(o, doc, "Lowest TPOT p90", "tpot_s.p90", " s");
	report_best(o, doc, "Fewest victims", "victims", "");
	if (isfinite(mean) && isfinite(p90))
		out_fmt(o,
			"<li>The floor, an empty engine and a perfect cache: TTFT mean %s s, p90 "
			"%s s.</li>\n",
			out_number(a, mean, 3), out_number(b, p90, 3));
	out_fmt(o, "</ul>\n");
}

/* ---- differences ---- */

static void write_against(struct out *o, const struct report_doc *doc)
{
	static const struct {
		const char *title, *figure;
	} what[] = { { "TTFT mean", "ttft_mean_s" },
		     { "TTFT p90", "ttft_p90_s" },
		     { "TTFT mean, HEAVY turn \xe2\x89\xa5 2", "heavy_t2_mean_s" },
		     { "TPOT p90", "tpot_p90_s" } };
	enum { NR = sizeof(what) / sizeof(what[0]) };
	static struct against panel[NR];

	if (doc->base < 0 || doc->arms < 2 || !report_has(&doc->arm[0].value, "figures"))
		return;
	for (size_t k = 0; k < NR; k++) {
		panel[k].title = what[k].title;
		for (size_t i = 0; i < doc->arms; i++) {
			const struct jread *v = &doc->arm[i].value;

			panel[k].percent[i] =
				report_getf(v, "figures.%s.against_base_percent", what[k].figure);
			panel[k].error[i] =
				report_getf(v, "figures.%s.against_base_error", what[k].figure);
		}
	}
	report_heading(o, doc, "against", "Differences to the base");
	chart_against(
		o, doc, panel, NR,
		"Per cent over the base arm, taken seed by seed so that the traffic's own "
		"spread cancels out; the bar is twice the standard error to either side, the "
		"number the error itself. Left of zero is better. A hollow mark is within its "
		"bar of zero: no difference was shown. An arrow lies beyond the axis.");
}

/* ---- distributions ---- */

/* Panels of first tokens: X(key of the detail's curves, title, path of mean, path of p90) */
#define PANELS(X)                                                                \
	X("ALL", "All requests: TTFT", "ttft_s.mean", "ttft_s.p90")              \
	X("WARM", "WARM: TTFT", "class.WARM.mean_s", "class.WARM.p90_s")         \
	X("MEDIUM", "MEDIUM: TTFT", "class.MEDIUM.mean_s", "class.MEDIUM.p90_s") \
	X("HEAVY_T2", "HEAVY turn \xe2\x89\xa5 2: TTFT", "heavy_t2_mean_s",      \
	  "figures.heavy_t2_p90_s.mean")
#define X(key, title, mean, p90) { key, title, mean, p90 },
static const struct {
	const char *key, *title, *mean, *p90;
} panels[] = { PANELS(X) };
#undef X
enum { PANELS_NR = sizeof(panels) / sizeof(panels[0]) };

/* Means and p90 as in the table, over seeds; what the table lacks from the pooled curves. */
static struct strip strip_of(const struct report_arm *arm, size_t panel)
{
	const struct jread *v = &arm->value;
	const char *key = panels[panel].key;
	struct strip s = { .p10 = report_getf(v, "detail.ttft_s.%s[10]", key),
			   .p50 = report_getf(v, "detail.ttft_s.%s[50]", key),
			   .p90 = report_get(v, panels[panel].p90),
			   .p99 = report_getf(v, "detail.ttft_s.%s[99]", key),
			   .mean = report_get(v, panels[panel].mean) };

	if (panel == 0) {
		s.p50 = report_get(v, "ttft_s.p50");
		s.p99 = report_get(v, "ttft_s.p99");
	}
	return s;
}

static void write_strips(struct out *o, const struct report_doc *doc)
{
	static struct strips_panel panel[PANELS_NR];

	for (size_t k = 0; k < PANELS_NR; k++) {
		panel[k].title = panels[k].title;
		panel[k].unit = "s";
		for (size_t i = 0; i < doc->arms; i++)
			panel[k].strip[i] = strip_of(&doc->arm[i], k);
	}
	report_heading(o, doc, "classes", "Time to first token, by class");
	chart_strips(
		o, doc, panel, PANELS_NR,
		"Seconds from arrival to the first token, log axes, one scale a panel. Further "
		"left is better. Classes are by length and by what a perfect cache would leave "
		"to compute: the same requests in every arm.");
}

static void write_curves(struct out *o, const struct report_doc *doc)
{
	scoped(free_drop) struct curves_panel *panel = calloc(PANELS_NR, sizeof(*panel));
	static struct curves c;

	if (!panel) {
		o->err = -ENOMEM;
		return;
	}
	c = (struct curves){ .panel = panel, .panels = PANELS_NR };
	c.nr = report_list(&doc->value, "detail.quantiles", c.quantile, CURVE_MAX);
	c.caption = "Share of requests (upwards, each nine as high as the one before it) that had "
		    "their first token after so many seconds (log axis). Further left is better; "
		    "marks at p50, p90 and p99. Requests of all seeds together. Of more than six "
		    "arms the base and the five best by p90, unless others were asked for.";
	if (c.nr == 0)
		return;
	for (size_t k = 0; k < PANELS_NR; k++) {
		panel[k].title = panels[k].title;
		for (size_t i = 0; i < doc->arms; i++) {
			char path[REPORT_PATH_MAX];
			int style = doc->arm[i].style;

			if (style < 0)
				continue;
			snprintf(path, sizeof(path), "detail.ttft_s.%s", panels[k].key);
			panel[k].nr[style] = report_list(&doc->arm[i].value, path,
							 panel[k].value[style], CURVE_MAX);
		}
	}
	report_heading(o, doc, "curves", "Distributions");
	chart_curves(o, doc, &c);
}

/* ---- over time ---- */

static const char queue_caption[] =
	"Prompt tokens that an engine has still to compute, running and "
	"waiting requests together; what the router still holds back is not "
	"among them. A row an engine, 0 on top. The fainter the better, and "
	"rows alike: a strong row beside faint ones is an engine that others "
	"could have helped.";
static const char room_caption[] =
	"Share of the KV blocks that requests hold. Near 1 an engine is bound "
	"by room, not by compute, and requests wait for it.";
static const char lanes_caption[] =
	"A line leads from the engine that had a session (cross-bar) to the one "
	"its next turn went to (dot). Ticks at a lane's upper edge are pieces "
	"of staged prompts, hatched spans stalls and restarts. The grey area is "
	"the number of requests on the engine. At the right, how many moves "
	"went from where (row) to where (column).";

enum { CAPTION_MAX = 700 };

/* Timelines are of one play of each arm. */
static const char *of_a_play(char buf[CAPTION_MAX], const char *caption, double seed)
{
	snprintf(buf, CAPTION_MAX,
		 "%s One play of each arm, seed %.0f; seconds of the virtual clock.", caption,
		 fabs(seed) < 1e16 ? seed : 0);
	return buf;
}

static void write_time(struct out *o, const struct report_doc *doc)
{
	double seed = timeline_seed(doc);
	char caption[CAPTION_MAX];

	if (timeline_shown_s(doc) <= 0)
		return;
	report_heading(o, doc, "queues", "Queues over time");
	chart_heat(o, doc,
		   &(struct heat_of){ .series = "pending_prefill_tokens",
				      .unit = "prompt tokens or more",
				      .caption = of_a_play(caption, queue_caption, seed) });
	chart_heat(o, doc,
		   &(struct heat_of){ .series = "kv_used_ratio",
				      .unit = "of the KV blocks or more",
				      .caption = of_a_play(caption, room_caption, seed),
				      .ratio = true });
	report_heading(o, doc, "moves", "Moves and pieces over time");
	chart_lanes(o, doc, of_a_play(caption, lanes_caption, seed));
}

void report_replay(struct out *o, const struct report_doc *doc)
{
	if (doc->arms == 0)
		return;
	write_words(o, doc);
	write_tables(o, doc);
	report_targets(o, doc);
	write_against(o, doc);
	write_strips(o, doc);
	write_curves(o, doc);
	write_time(o, doc);
}
