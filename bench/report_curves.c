/* Distributions as curves: which share of requests has had its first token after how long. */
#include <stdio.h>

#include "bench/report.h"
#include "bench/report_scale.h"

enum { HEIGHT = 236, HEAD = 26, FOOT = 40, LEFT = 46, GAP = 40 };

/* The tail gets its room: each nine as much as the one before. */
static double nines(double quantile)
{
	return -log10(1 - quantile);
}

static const struct {
	double quantile;
	const char *text;
} levels[] = { { 0, "0" },      { 0.5, "p50" },  { 0.75, "p75" },   { 0.9, "p90" },
	       { 0.95, "p95" }, { 0.99, "p99" }, { 0.999, "p99.9" } };

struct plot {
	const struct report_doc *doc;
	const struct curves *c;
	const struct curves_panel *panel;
	struct scale x, y;
	double left, top;
};

static size_t most_values(const struct curves *c, const struct curves_panel *p, int style)
{
	return p->nr[style] < c->nr ? p->nr[style] : c->nr;
}

static void scales(struct plot *p, double width)
{
	double min = NAN, max = NAN;

	for (int k = 0; k < REPORT_STYLES; k++)
		for (size_t i = 0; i < most_values(p->c, p->panel, k); i++) {
			double v = p->panel->value[k][i];

			if (!(v > 0) || p->c->quantile[i] > 0.9995 || p->c->quantile[i] < 0.05)
				continue;
			min = isnan(min) || v < min ? v : min;
			max = isnan(max) || v > max ? v : max;
		}
	if (min < max / 2000)
		min = max / 2000;
	p->x = scale_make(min, max, true, p->left, p->left + width);
	p->y = (struct scale){ 0, nines(0.999), p->top + HEIGHT, p->top, false };
}

static void draw_levels(struct out *o, const struct plot *p)
{
	for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
		double y = scale_at(&p->y, nines(levels[i].quantile));

		out_fmt(o, "<path class=\"g\" d=\"M%.1f %.1fH%.1f\"/>", p->x.from, y, p->x.to);
		draw_text(o, p->left - 6, y + 4, "a", "end", levels[i].text);
	}
}

static void draw_curve(struct out *o, const struct plot *p, int style)
{
	size_t nr = most_values(p->c, p->panel, style);
	double x_last = -1, y_last = -1;
	bool begun = false;

	if (nr == 0)
		return;
	out_fmt(o, "<path class=\"l %s d%d\" d=\"", draw_class(style), style);
	for (size_t i = 0; i < nr && p->c->quantile[i] <= 0.9995; i++) {
		double x = scale_at(&p->x, p->panel->value[style][i]);
		double y = scale_at(&p->y, nines(p->c->quantile[i]));

		if (begun && hypot(x - x_last, y - y_last) < 0.8)
			continue;
		out_fmt(o, "%c%.1f %.1f", begun ? 'L' : 'M', x, y);
		begun = true;
		x_last = x;
		y_last = y;
	}
	out_fmt(o, "\"/>");
}

static void draw_marks(struct out *o, const struct plot *p, int style)
{
	static const double at[] = { 0.5, 0.9, 0.99 };

	for (size_t i = 0; i < most_values(p->c, p->panel, style); i++)
		for (size_t k = 0; k < sizeof(at) / sizeof(at[0]); k++)
			if (fabs(p->c->quantile[i] - at[k]) < 1e-9)
				draw_mark(o, scale_at(&p->x, p->panel->value[style][i]),
					  scale_at(&p->y, nines(at[k])), style, true);
}

static void draw_panel(struct out *o, const struct report_doc *doc, const struct curves *c,
		       size_t index, double top, double width)
{
	struct plot p = { .doc = doc, .c = c, .panel = &c->panel[index] };

	p.left = LEFT + (double)(index % 2) * (width + LEFT + GAP);
	p.top = top + (double)(index / 2) * (HEAD + HEIGHT + FOOT) + HEAD;
	scales(&p, width);
	draw_text(o, p.left, p.top - 9, "t", "start", p.panel->title);
	draw_axis_x(o, &p.x, p.top, p.top + HEIGHT, 34, "s");
	draw_levels(o, &p);
	/* The base lies on top: it is what all others are looked at against. */
	for (int k = REPORT_STYLES - 1; k >= 0; k--)
		draw_curve(o, &p, k);
	for (int k = REPORT_STYLES - 1; k >= 0; k--)
		draw_marks(o, &p, k);
	out_fmt(o, "\n");
}

static double legend_height(const struct report_doc *doc)
{
	struct out nowhere = { 0 };
	double height = draw_legend(&nowhere, doc, 0);

	out_free(&nowhere);
	return height;
}

void chart_curves(struct out *o, const struct report_doc *doc, const struct curves *c)
{
	double legend = legend_height(doc);
	double width = (CHART_WIDTH - 2 * LEFT - GAP) / 2.0 - 8;
	size_t lines = (c->panels + 1) / 2;

	draw_begin(o, legend + (double)lines * (HEAD + HEIGHT + FOOT) - 14, "Distributions");
	draw_legend(o, doc, 0);
	for (size_t i = 0; i < c->panels; i++)
		draw_panel(o, doc, c, i, legend, width);
	draw_end(o, c->caption);
}
