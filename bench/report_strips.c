/* Rows of arms under panels of a quantity: quantiles on log axes, differences to the base. */
#include <stdio.h>
#include <string.h>

#include "bench/report.h"
#include "bench/report_scale.h"

enum {
	ROW = 17,   /* px an arm */
	HEAD = 24,  /* the panel's title */
	FOOT = 34,  /* axis labels and what separates panels */
	GAP = 26,   /* between panels */
	VALUE = 44, /* the number beside a strip */
	VALUE_WIDE = 86,
};

/* Panels in a grid, rows of names at the left of each of its lines. */
struct grid {
	const struct report_doc *doc;
	size_t columns, panels;
	double plot; /* width of a plot */
	double value;
	double top; /* of the line being drawn */
};

static double rows_height(const struct grid *g)
{
	return (double)g->doc->arms * ROW;
}

static double line_height(const struct grid *g)
{
	return HEAD + rows_height(g) + FOOT;
}

static double panel_left(const struct grid *g, size_t panel)
{
	return CHART_NAMES + (double)(panel % g->columns) * (g->plot + g->value + GAP);
}

static double panel_top(const struct grid *g)
{
	return g->top + HEAD;
}

static double row_y(double top, size_t row)
{
	return top + ((double)row + 0.5) * ROW;
}

static struct grid grid_make(const struct report_doc *doc, size_t panels, size_t columns,
			     double value, double top)
{
	struct grid g = { .doc = doc,
			  .columns = panels < columns ? panels : columns,
			  .panels = panels,
			  .value = value,
			  .top = top };

	g.plot = (CHART_WIDTH - CHART_NAMES + GAP) / (double)g.columns - GAP - value;
	return g;
}

/* Stripes and names of one line of panels. */
static void draw_rows(struct out *o, const struct grid *g, size_t panel, double top)
{
	size_t last = panel + g->columns < g->panels ? panel + g->columns - 1 : g->panels - 1;
	double right = panel_left(g, last) + g->plot + g->value;

	for (size_t i = 0; i < g->doc->arms; i++) {
		const struct report_arm *arm = &g->doc->arm[i];
		double y = row_y(top, i);

		if (i % 2 == 0)
			out_fmt(o, "<path class=\"row\" d=\"M0 %.1fH%.1fv%dH0z\"/>", y - ROW / 2.0,
				right, ROW);
		draw_name(o, CHART_NAMES - 14, y + 4, "end", arm->name, CHART_NAMES - 16,
			  arm->style);
	}
}

static void draw_head(struct out *o, const struct grid *g, size_t panel, const char *title,
		      const char *value)
{
	double left = panel_left(g, panel), top = panel_top(g);

	if (panel % g->columns == 0)
		draw_rows(o, g, panel, top);
	draw_text(o, left, top - 8, "t", "start", title);
	draw_text(o, left + g->plot + g->value, top - 8, "a", "end", value);
}

/* ---- quantiles ---- */

static void stretch(double value, double *min, double *max)
{
	if (!(value > 0))
		return;
	*min = isnan(*min) || value < *min ? value : *min;
	*max = isnan(*max) || value > *max ? value : *max;
}

static struct scale strips_scale(const struct grid *g, const struct strips_panel *p, double left)
{
	double min = NAN, max = NAN;

	for (size_t i = 0; i < g->doc->arms; i++) {
		const struct strip *s = &p->strip[i];
		const double all[] = { s->p10, s->p50, s->p90, s->p99, s->mean };

		for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++)
			stretch(all[k], &min, &max);
	}
	/* What is next to nothing would squeeze what matters. */
	if (min < max / 2000)
		min = max / 2000;
	return scale_make(min, max, true, left, left + g->plot);
}

static void line(struct out *o, const struct scale *s, double y, double from, double to,
		 const char *class, int style)
{
	if (isfinite(from) && isfinite(to))
		out_fmt(o, "<path class=\"l %s %s\" d=\"M%.1f %.1fH%.1f\"/>", class,
			draw_class(style), scale_at(s, from), y, scale_at(s, to));
}

static void draw_strip(struct out *o, const struct scale *s, double y, const struct strip *v,
		       int style)
{
	double low = isfinite(v->p10) ? v->p10 : v->p50;

	line(o, s, y, low, v->p99, "thin", style);
	line(o, s, y, v->p50, v->p90, "thick", style);
	if (isfinite(v->p99))
		out_fmt(o, "<path class=\"l thin %s\" d=\"M%.1f %.1fv8\"/>", draw_class(style),
			scale_at(s, v->p99), y - 4);
	if (isfinite(v->p50))
		draw_mark(o, scale_at(s, v->p50), y, style, false);
	if (isfinite(v->p90))
		draw_mark(o, scale_at(s, v->p90), y, style, true);
	if (isfinite(v->mean))
		out_fmt(o, "<path class=\"mean\" d=\"M%.1f %.1fv12\"/>", scale_at(s, v->mean),
			y - 6);
}

static void draw_strips_panel(struct out *o, const struct grid *g, size_t panel,
			      const struct strips_panel *p)
{
	double left = panel_left(g, panel), top = panel_top(g);
	double bottom = top + rows_height(g);
	struct scale s = strips_scale(g, p, left);
	char number[OUT_NUMBER_MAX];
	int base = g->doc->base;

	draw_head(o, g, panel, p->title, "p90");
	draw_axis_x(o, &s, top, bottom, 34, p->unit);
	if (base >= 0 && isfinite(p->strip[base].p90))
		out_fmt(o, "<path class=\"ref\" d=\"M%.1f %.1fV%.1f\"/>",
			scale_at(&s, p->strip[base].p90), top, bottom);
	for (size_t i = 0; i < g->doc->arms; i++) {
		double y = row_y(top, i);

		draw_strip(o, &s, y, &p->strip[i], g->doc->arm[i].style);
		draw_text(o, left + g->plot + g->value, y + 4, "v", "end",
			  out_number(number, p->strip[i].p90, 3));
		out_fmt(o, "\n");
	}
}

static void draw_strips_key(struct out *o, double y, bool has_base)
{
	struct scale s = { .min = 0, .max = 100, .from = CHART_NAMES, .to = CHART_NAMES + 240 };
	const struct strip sample = { 0, 28, 62, 100, NAN };
	static const struct {
		const char *text;
		double at;
	} words[] = { { "p10", 0 }, { "p50", 28 }, { "p90", 62 }, { "p99", 100 } };

	draw_strip(o, &s, y, &sample, REPORT_GREY);
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		draw_text(o, scale_at(&s, words[i].at), y - 8, "a", "middle", words[i].text);
	out_fmt(o, "<path class=\"mean\" d=\"M%d %.1fv12\"/>", CHART_NAMES + 290, y - 6);
	draw_text(o, CHART_NAMES + 297, y + 4, "a", "start", "mean");
	if (has_base) {
		out_fmt(o, "<path class=\"ref\" d=\"M%d %.1fv18\"/>", CHART_NAMES + 364, y - 9);
		draw_text(o, CHART_NAMES + 372, y + 4, "a", "start", "the base's p90");
	}
	out_fmt(o, "\n");
}

void chart_strips(struct out *o, const struct report_doc *doc, const struct strips_panel *panel,
		  size_t panels, const char *caption)
{
	struct grid g = grid_make(doc, panels, 2, VALUE, 34);

	draw_begin(o, g.top + line_height(&g) - 4, "Quantiles of each arm");
	draw_strips_key(o, 22, doc->base >= 0);
	for (size_t i = 0; i < panels; i++) {
		if (i && i % g.columns == 0) {
			g.top = 0;
			draw_next(o, line_height(&g) - 4, "Quantiles of each arm");
		}
		draw_strips_panel(o, &g, i, &panel[i]);
	}
	draw_end(o, caption);
}

/* ---- plain values ---- */

static void draw_bars_panel(struct out *o, const struct grid *g, size_t panel,
			    const struct bars_panel *p)
{
	double left = panel_left(g, panel), top = panel_top(g);
	double bottom = top + rows_height(g), min = 0, max = 0, sorted[REPORT_ARMS_MAX];
	char number[OUT_NUMBER_MAX];

	memcpy(sorted, p->value, g->doc->arms * sizeof(sorted[0]));
	int places = out_places(sorted, g->doc->arms, 3);

	for (size_t i = 0; i < g->doc->arms; i++) {
		min = fmin(min, p->value[i]); /* of a number and NaN they take the number */
		max = fmax(max, p->value[i]);
	}
	struct scale s = scale_make(min, max, false, left, left + g->plot);

	draw_head(o, g, panel, p->title, "");
	draw_axis_x(o, &s, top, bottom, 44, p->unit);
	out_fmt(o, "<path class=\"x\" d=\"M%.1f %.1fV%.1f\"/>", scale_at(&s, 0), top, bottom);
	for (size_t i = 0; i < g->doc->arms; i++) {
		double y = row_y(top, i);

		line(o, &s, y, 0, p->value[i], "bar", g->doc->arm[i].style);
		draw_text(o, left + g->plot + g->value, y + 4, "v", "end",
			  out_fixed(number, p->value[i], places));
		out_fmt(o, "\n");
	}
}

void chart_bars(struct out *o, const struct report_doc *doc, const struct bars_panel *panel,
		size_t panels, const char *caption)
{
	struct grid g = grid_make(doc, panels, 2, VALUE_WIDE, 0);

	draw_begin(o, line_height(&g) - 4, "Values of each arm");
	for (size_t i = 0; i < panels; i++) {
		if (i && i % g.columns == 0)
			draw_next(o, line_height(&g) - 4, "Values of each arm");
		draw_bars_panel(o, &g, i, &panel[i]);
	}
	draw_end(o, caption);
}

/* ---- against the base ---- */

static const double percent_most = 100; /* beyond: an arrow at the edge */

static struct scale against_scale(const struct grid *g, const struct against *a, double left)
{
	double min = -5, max = 5;

	for (size_t i = 0; i < g->doc->arms; i++) {
		double spread = isfinite(a->error[i]) ? 2 * a->error[i] : 0;

		if (!isfinite(a->percent[i]))
			continue;
		min = fmin(min, a->percent[i] - spread);
		max = fmax(max, a->percent[i] + spread);
	}
	return scale_make(fmax(min, -100), fmin(max, percent_most), false, left, left + g->plot);
}

static void draw_difference(struct out *o, const struct scale *s, double x_value, double y,
			    double percent, double error, int style)
{
	char text[96];
	bool sure = fabs(percent) > 2 * error;

	line(o, s, y, percent - 2 * error, percent + 2 * error, "thin", style);
	if (percent > s->max)
		out_fmt(o, "<path class=\"m solid %s\" d=\"M%.1f %.1fl8 4l-8 4z\"/>",
			draw_class(style), s->to - 6, y - 4);
	else
		draw_mark(o, scale_at(s, percent), y, style, sure);
	snprintf(text, sizeof(text), "%s%.*f \xc2\xb1 %.*f", percent < 0 ? "\xe2\x88\x92" : "+",
		 fabs(percent) < 99.95, fabs(percent), error < 9.95, error);
	draw_text(o, x_value, y + 4, "v", "end", text);
}

static void draw_against_panel(struct out *o, const struct grid *g, size_t panel,
			       const struct against *a)
{
	double left = panel_left(g, panel), top = panel_top(g);
	double bottom = top + rows_height(g);
	struct scale s = against_scale(g, a, left);

	draw_head(o, g, panel, a->title, "");
	draw_axis_x(o, &s, top, bottom, 40, "%");
	out_fmt(o, "<path class=\"x\" d=\"M%.1f %.1fV%.1f\"/>", scale_at(&s, 0), top, bottom);
	for (size_t i = 0; i < g->doc->arms; i++) {
		double y = row_y(top, i), x = left + g->plot + g->value;

		if ((int)i == g->doc->base)
			draw_text(o, x, y + 4, "a", "end", "base");
		else if (isfinite(a->percent[i]))
			draw_difference(o, &s, x, y, a->percent[i],
					isfinite(a->error[i]) ? a->error[i] : 0,
					g->doc->arm[i].style);
		out_fmt(o, "\n");
	}
}

void chart_against(struct out *o, const struct report_doc *doc, const struct against *panel,
		   size_t panels, const char *caption)
{
	struct grid g = grid_make(doc, panels, 2, VALUE_WIDE, 0);

	draw_begin(o, line_height(&g) - 4, "Differences to the base");
	for (size_t i = 0; i < panels; i++) {
		if (i && i % g.columns == 0)
			draw_next(o, line_height(&g) - 4, "Differences to the base");
		draw_against_panel(o, &g, i, &panel[i]);
	}
	draw_end(o, caption);
}
