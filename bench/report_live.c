/* What runs of live and demo become: quantiles of each class, and all figures as a table. */
#include <stdio.h>
#include <string.h>

#include "bench/report.h"

#define PANELS(X)                                                   \
	X("ttft_s", "All requests: TTFT")                           \
	X("warm.ttft_s", "WARM: TTFT")                              \
	X("medium.ttft_s", "MEDIUM: TTFT")                          \
	X("heavy_turn_2.ttft_s", "HEAVY turn \xe2\x89\xa5 2: TTFT") \
	X("tpot_s", "All requests: TPOT")                           \
	X("e2e_s", "All requests: E2E")
#define X(path, title) { path, title },
static const struct {
	const char *path, *title;
} panels[] = { PANELS(X) };
#undef X
enum { PANELS_NR = sizeof(panels) / sizeof(panels[0]) };

static const struct report_column columns[] = {
	{ "TTFT, s", "mean", "ttft_s.mean", NULL, LOWER },
	{ NULL, "p50", "ttft_s.p50", NULL, LOWER },
	{ NULL, "p90", "ttft_s.p90", NULL, LOWER },
	{ NULL, "p99", "ttft_s.p99", NULL, LOWER },
	{ "TTFT mean, s", "HEAVY turn \xe2\x89\xa5 2", "heavy_turn_2.ttft_s.mean", NULL, LOWER },
	{ "TPOT, s", "p90", "tpot_s.p90", NULL, LOWER },
	{ "E2E, s", "mean", "e2e_s.mean", NULL, LOWER },
	{ NULL, "p50", "e2e_s.p50", NULL, LOWER },
	{ "requests", "ended", "requests", NULL, NEITHER },
	{ NULL, "failed", "errors", NULL, LOWER },
	{ NULL, "moved", "migrations", NULL, NEITHER },
	{ "engines", "hit", "hit_ratio", NULL, HIGHER },
	{ NULL, "late", "late_ratio", NULL, NEITHER },
	{ "router", "cores", "router_cpu_share", NULL, LOWER },
};

bool report_is_live(const struct jread *doc)
{
	char kind[32];

	if (jread_get_str(doc, "kind", kind, sizeof(kind)) == 0)
		return strcmp(kind, "live") == 0 || strcmp(kind, "demo") == 0;
	return report_has(doc, "speed") && report_has(doc, "valid") &&
	       report_has(doc, "arms[0].ttft_s");
}

static void write_strips(struct out *o, const struct report_doc *doc)
{
	static struct strips_panel panel[PANELS_NR];
	size_t nr = 0;

	for (size_t k = 0; k < PANELS_NR; k++) {
		bool any = false;

		panel[nr].title = panels[k].title;
		panel[nr].unit = "s";
		for (size_t i = 0; i < doc->arms; i++) {
			const struct jread *v = &doc->arm[i].value;
			const char *path = panels[k].path;

			panel[nr].strip[i] =
				(struct strip){ .p10 = NAN,
						.p50 = report_getf(v, "%s.p50", path),
						.p90 = report_getf(v, "%s.p90", path),
						.p99 = report_getf(v, "%s.p99", path),
						.mean = report_getf(v, "%s.mean", path) };
			any |= panel[nr].strip[i].p90 > 0;
		}
		nr += any;
	}
	if (nr == 0)
		return;
	report_heading(o, doc, "classes", "Latency, by class");
	chart_strips(o, doc, panel, nr,
		     "Model seconds (wall seconds times the speed), log axes, one scale a panel. "
		     "Further left is better. TTFT: from when the client wants the request sent to "
		     "the first event with content; TPOT: the rest of the stream over the rest of "
		     "its tokens; E2E: to the last byte.");
}

static void write_validity(struct out *o, const struct report_doc *doc)
{
	struct jread found;
	int valid;

	if (jread_get(&doc->value, "valid", &found) || jread_bool(&found, &valid))
		return;
	out_fmt(o, "<p class=\"%s\">%s</p>\n", valid ? "met" : "unmet",
		valid ? "\xe2\x9c\x93 The run is valid: engines kept their schedule."
		      : "\xe2\x9c\x97 The run is NOT valid: the machine was too busy for the "
			"engines to keep their schedule, or it was broken off. Repeat it.");
}

static void write_words(struct out *o, const struct report_doc *doc)
{
	if (doc->arms < 2)
		return;
	out_fmt(o, "<ul class=\"says\">\n");
	report_best(o, doc, "Lowest TTFT p90", "ttft_s.p90", " s");
	report_best(o, doc, "Lowest TPOT p90", "tpot_s.p90", " s");
	report_best(o, doc, "Lowest E2E mean", "e2e_s.mean", " s");
	out_fmt(o, "</ul>\n");
}

void report_live(struct out *o, const struct report_doc *doc)
{
	struct jread list;

	write_validity(o, doc);
	write_words(o, doc);
	report_heading(o, doc, "table", "Figures");
	report_columns(
		o, doc, columns, sizeof(columns) / sizeof(columns[0]),
		"Times in model seconds. Hit: cached over prompt tokens, as engines report "
		"them. Moved: sessions sent elsewhere than home at turn \xe2\x89\xa5 2. Late: the "
		"engines' lateness over their busy time, at most 0.05 in a valid run. Arms by "
		"TTFT p90, the best value of a column bold; the base is the first arm of the "
		"file.");
	report_targets(o, doc);
	write_strips(o, doc);
	if (jread_get(&doc->value, "arms", &list))
		return;
	report_heading(o, doc, "all", "All figures");
	report_objects(
		o, &list,
		"As the file has them, arms in its order; what is 0 or unknown in all arms is "
		"left out.",
		true);
}
