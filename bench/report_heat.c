/* Queues over time as strips: a row an engine, a block an arm, one scale for all of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/report.h"
#include "bench/report_scale.h"
#include "bench/report_timeline.h"
#include "shm/base/scoped.h"

enum {
	STEPS = 6, /* shades */
	BLOCK_GAP = 7,
	RIGHT = 118, /* the figures beside a block */
	KEY = 34,
	FOOT = 24,
	BLOCKS = 10, /* of a picture, so that it fits on a page */
};

struct heat {
	const struct heat_of *of;
	size_t cells; /* of a row, at most */
	struct scale time;
	double step[STEPS]; /* the least value of each shade */
	double row;         /* height of an engine's row */
};

/* Rows as high as make a block of about 44 px. */
static double row_height(size_t engines)
{
	double row = 44.0 / (double)engines;

	return row < 3 ? 3 : row > 14 ? 14 : row;
}

/* The darkest shade is for values from a 1, 2 or 5 below the greatest on, the others are for round
 * shares of it. */
static void steps_make(double step[STEPS], double most)
{
	static const double shares[3][STEPS] = { { 0.05, 0.1, 0.2, 0.3, 0.5, 1 },
						 { 0.025, 0.05, 0.1, 0.25, 0.5, 1 },
						 { 0.04, 0.1, 0.2, 0.4, 0.6, 1 } };
	double top = scale_round_down(most > 0 ? most * 0.9 : 1);
	double lead = top / pow(10, floor(log10(top) + 1e-9));

	for (int i = 0; i < STEPS; i++)
		step[i] = top * shares[lead > 3 ? 2 : lead > 1.5 ? 1 : 0][i];
}

static int shade_of(const struct heat *h, float value)
{
	int shade = 0;

	while (shade < STEPS && value >= h->step[shade])
		shade++;
	return shade;
}

/* All cells of one shade: a path of short thick lines, neighbours in one. */
static void draw_shade(struct out *o, const struct heat *h, const struct timeline *t, double top,
		       int shade)
{
	bool begun = false;

	for (size_t e = 0; e < t->engines; e++)
		for (size_t c = 0; c < t->cells; c++) {
			size_t from = c;

			if (shade_of(h, t->value[e][c]) != shade)
				continue;
			while (c + 1 < t->cells && shade_of(h, t->value[e][c + 1]) == shade)
				c++;
			double x = scale_at(&h->time, (double)from * t->cell_s);
			double to = scale_at(&h->time, (double)(c + 1) * t->cell_s);

			if (!begun)
				out_fmt(o, "<path class=\"h%d\" stroke-width=\"%.1f\" d=\"", shade,
					h->row);
			begun = true;
			out_fmt(o, "M%.1f %.1fH%.1f", x, top + ((double)e + 0.5) * h->row, to);
		}
	if (begun)
		out_fmt(o, "\"/>");
}

static const char *figure(const struct heat *h, char buf[SCALE_LABEL_MAX], double value)
{
	if (h->of->ratio)
		snprintf(buf, SCALE_LABEL_MAX, "%.2f", value);
	else
		scale_label(buf, value >= 100 ? round(value / 100) * 100 : round(value));
	return buf;
}

static void draw_block(struct out *o, const struct heat *h, const struct report_arm *arm,
		       const struct timeline *t, double top)
{
	double height = h->row * (double)t->engines, end_s = (double)t->cells * t->cell_s;
	char mean[SCALE_LABEL_MAX], most[SCALE_LABEL_MAX], text[2 * SCALE_LABEL_MAX + 16];

	draw_name(o, CHART_NAMES - 14, top + height / 2 + 4, "end", arm->name, CHART_NAMES - 16,
		  arm->style);
	out_fmt(o, "<path class=\"row\" d=\"M%.1f %.1fH%.1fv%.1fH%.1fz\"/>", h->time.from, top,
		scale_at(&h->time, end_s), height, h->time.from);
	for (int shade = 1; shade <= STEPS; shade++)
		draw_shade(o, h, t, top, shade);
	bool cut = end_s > h->time.max * 1.001;

	snprintf(text, sizeof(text), "%s / %s", figure(h, mean, t->mean), figure(h, most, t->most));
	draw_text(o, CHART_WIDTH, top + height / 2 + (cut ? -2 : 4), "v", "end", text);
	if (cut) {
		snprintf(text, sizeof(text), "ends at %.0f s", end_s);
		draw_text(o, CHART_WIDTH, top + height / 2 + 12, "a", "end", text);
	}
	out_fmt(o, "\n");
}

static void draw_key(struct out *o, const struct heat *h, const char *unit)
{
	char label[SCALE_LABEL_MAX];
	double x = CHART_NAMES;

	for (int i = 0; i < STEPS; i++) {
		out_fmt(o, "<path class=\"h%d\" stroke-width=\"10\" d=\"M%.1f 11h46\"/>", i + 1, x);
		draw_text(o, x, 29, "a", "start", scale_label(label, h->step[i]));
		x += 46;
	}
	draw_text(o, x + 8, 15, "a", "start", unit);
	draw_text(o, CHART_WIDTH, 29, "a", "end", "mean / most");
	out_fmt(o, "\n");
}

static bool is_shown(const struct heat *h, const struct report_arm *arm, struct timeline *t)
{
	if (h->of->ratio && arm->style < 0)
		return false;
	timeline_read(t, arm, h->of->series, h->cells);
	return t->engines > 0;
}

/* Arms that are to be shown, what fills the darkest shade, and the most engines. */
static size_t survey(const struct report_doc *doc, struct timeline *t, struct heat *h,
		     size_t *ret_engines)
{
	double most = 0;
	size_t blocks = 0;

	for (size_t i = 0; i < doc->arms; i++) {
		if (!is_shown(h, &doc->arm[i], t))
			continue;
		blocks++;
		if (t->engines > *ret_engines)
			*ret_engines = t->engines;
		for (size_t e = 0; e < t->engines && doc->arm[i].style >= 0; e++)
			for (size_t c = 0; c < t->cells; c++)
				most = fmax(most, (double)t->value[e][c]);
	}
	if (h->of->ratio)
		memcpy(h->step, (double[STEPS]){ 0.1, 0.25, 0.5, 0.75, 0.9, 0.98 },
		       sizeof(h->step));
	else
		steps_make(h->step, most);
	return blocks;
}

void chart_heat(struct out *o, const struct report_doc *doc, const struct heat_of *of)
{
	static const char label[] = "Queues over time";
	scoped(free_drop) struct timeline *t = malloc(sizeof(*t));
	struct heat h = { .of = of, .cells = TIMELINE_CELLS };
	size_t engines = 0, left = t ? survey(doc, t, &h, &engines) : 0, drawn = 0;
	double top = KEY, block, bottom;

	if (left == 0)
		return;
	h.cells = timeline_cells_for(left * engines);
	h.row = row_height(engines);
	h.time =
		(struct scale){ 0, timeline_shown_s(doc), CHART_NAMES, CHART_WIDTH - RIGHT, false };
	block = h.row * (double)engines + BLOCK_GAP;
	for (size_t i = 0; i < doc->arms; i++) {
		if (!is_shown(&h, &doc->arm[i], t))
			continue;
		if (drawn % BLOCKS == 0) {
			top = drawn ? 4 : KEY;
			bottom = top + (double)(left < BLOCKS ? left : BLOCKS) * block;
			(drawn ? draw_next : draw_begin)(o, bottom + FOOT, label);
			if (drawn == 0)
				draw_key(o, &h, of->unit);
			draw_axis_x(o, &h.time, top, bottom, 60, "s");
		}
		draw_block(o, &h, &doc->arm[i], t, top);
		top += block;
		left--;
		drawn++;
	}
	draw_end(o, of->caption);
}
