/* What charts are made of: text that fits, marks, axes, legends. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/report.h"
#include "bench/report_scale.h"

static const double letter_width = 6.7; /* of 12 px type, on average, generously */

const char *draw_class(int style)
{
	static const char *const classes[] = { "s0", "s1", "s2", "s3", "s4", "s5" };

	static_assert(sizeof(classes) / sizeof(classes[0]) == REPORT_STYLES, "a class each");
	return style < 0 ? "sx" : classes[style];
}

static void open_svg(struct out *o, double height, const char *label)
{
	out_fmt(o, "<svg viewBox=\"0 0 %d %.0f\" role=\"img\" aria-label=\"%s\">\n", CHART_WIDTH,
		height, label);
}

void draw_begin(struct out *o, double height, const char *label)
{
	out_fmt(o, "<figure>");
	open_svg(o, height, label);
}

void draw_next(struct out *o, double height, const char *label)
{
	out_fmt(o, "</svg>\n");
	open_svg(o, height, label);
}

void draw_end(struct out *o, const char *caption)
{
	out_fmt(o, "</svg><figcaption>%s</figcaption></figure>\n", caption);
}

void draw_text(struct out *o, double x, double y, const char *class, const char *anchor,
	       const char *escaped)
{
	out_fmt(o, "<text x=\"%.1f\" y=\"%.1f\"%s%s%s%s%s%s>%s</text>", x, y,
		*class ? " class=\"" : "", class, *class ? "\"" : "",
		strcmp(anchor, "start") ? " text-anchor=\"" : "",
		strcmp(anchor, "start") ? anchor : "", strcmp(anchor, "start") ? "\"" : "",
		escaped);
}

/* Bytes of at most `letters` characters; 0 continuation bytes are counted. */
static size_t bytes_of(const char *text, size_t letters)
{
	size_t i = 0;

	while (text[i]) {
		if ((text[i] & 0xc0) != 0x80 && letters-- == 0)
			break;
		i++;
	}
	return i;
}

void draw_name(struct out *o, double x, double y, const char *anchor, const char *name,
	       double width, int style)
{
	size_t most = (size_t)(width / letter_width), fits = bytes_of(name, most);
	bool cut = name[fits] != 0;

	out_fmt(o, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s>", x, y, anchor,
		style >= 0 ? " class=\"n\"" : "");
	if (cut) {
		out_fmt(o, "<title>");
		out_escaped(o, name);
		out_fmt(o, "</title>");
		fits = bytes_of(name, most > 1 ? most - 1 : 1);
	}
	out_escaped_mem(o, name, fits);
	out_fmt(o, "%s</text>\n", cut ? "\xe2\x80\xa6" : "");
}

void draw_mark(struct out *o, double x, double y, int style, bool filled)
{
	static const char *const shapes[] = {
		"m-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0-7.2 0z",
		"m-3.2-3.2h6.4v6.4h-6.4z",
		"m0-4.2l4 7h-8z",
		"m0-4.4l4.4 4.4l-4.4 4.4l-4.4-4.4z",
		"m0 4.2l4-7h-8z",
		"m-1.4-4h2.8v2.6h2.6v2.8h-2.6v2.6h-2.8v-2.6h-2.6v-2.8h2.6z",
	};

	out_fmt(o, "<path class=\"m %s %s\" d=\"M%.1f %.1f%s\"/>", draw_class(style),
		filled ? "solid" : "hollow", x, y, shapes[style < 0 ? 0 : style]);
}

void draw_axis_x(struct out *o, const struct scale *s, double top, double bottom, double gap,
		 const char *unit)
{
	double tick[SCALE_TICKS_MAX];
	size_t nr = scale_ticks(s, gap, tick);
	char label[SCALE_LABEL_MAX];

	out_fmt(o, "<path class=\"g\" d=\"");
	for (size_t i = 0; i < nr; i++)
		out_fmt(o, "M%.1f %.1fV%.1f", scale_at(s, tick[i]), top, bottom);
	out_fmt(o, "\"/><path class=\"x\" d=\"M%.1f %.1fH%.1f\"/>", s->from, bottom, s->to);
	for (size_t i = 0; i < nr; i++) {
		double x = scale_at(s, tick[i]);

		draw_text(o, x, bottom + 14, "a", "middle", scale_label(label, tick[i]));
		/* The unit follows the last label, which stays under its tick. */
		if (i + 1 == nr && *unit)
			draw_text(o, x + (double)strlen(label) * letter_width / 2 + 3, bottom + 14,
				  "a", "start", unit);
	}
	out_fmt(o, "\n");
}

double draw_legend(struct out *o, const struct report_doc *doc, double top)
{
	double x = 0, y = top + 12;

	for (size_t i = 0; i < doc->arms; i++) {
		const struct report_arm *arm = &doc->arm[i];
		size_t letters = strlen(arm->name) < 30 ? strlen(arm->name) : 30;
		double width = 52 + (double)letters * letter_width + 18;

		if (arm->style < 0)
			continue;
		if (x > 0 && x + width > CHART_WIDTH) {
			x = 0;
			y += 19;
		}
		out_fmt(o, "<path class=\"l %s d%d\" d=\"M%.1f %.1fh40\"/>", draw_class(arm->style),
			arm->style, x, y - 4);
		draw_mark(o, x + 20, y - 4, arm->style, true);
		draw_name(o, x + 47, y, "start", arm->name, 30.5 * letter_width, arm->style);
		x += width;
	}
	return y - top + 10;
}
