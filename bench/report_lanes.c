/* What happened to sessions, arm by arm: moves between engines' lanes, pieces, outages. */
#include <stdio.h>
#include <stdlib.h>

#include "bench/report.h"
#include "bench/report_scale.h"
#include "bench/report_timeline.h"
#include "shm/base/scoped.h"

enum {
	LANE = 18,
	HEAD = 22,
	FOOT = 34,
	LEFT = 62,    /* engines' numbers */
	MATRIX = 200, /* moves from - to, beside the lanes */
	MATRIX_ENGINES = 10,
	MARKS_MAX = 1000,
};

/* Lists side by side, an entry a mark. */
struct marks {
	double at_s[MARKS_MAX], until_s[MARKS_MAX], from[MARKS_MAX], to[MARKS_MAX];
	size_t nr;
	double total;
};

struct lanes {
	struct scale time;
	size_t engines, cells;
	double lane, most; /* a lane's height; the longest queue of all */
	double top;
	struct timeline requests;
	struct marks moves, pieces, outages;
};

static bool is_engine(const struct lanes *l, double number)
{
	return number >= 0 && number < (double)l->engines && number == floor(number);
}

static double lane_y(const struct lanes *l, double engine)
{
	return l->top + (engine + 0.5) * l->lane;
}

static size_t column(const struct report_arm *arm, const char *path, double *ret, size_t nr)
{
	size_t got = report_list(&arm->value, path, ret, MARKS_MAX);

	return got < nr ? got : nr;
}

static void marks_read(struct lanes *l, const struct report_arm *arm)
{
	struct marks *m = &l->moves, *p = &l->pieces, *u = &l->outages;

	m->nr = column(arm, "detail.moves.at_s", m->at_s, MARKS_MAX);
	m->nr = column(arm, "detail.moves.from", m->from, m->nr);
	m->nr = column(arm, "detail.moves.to", m->to, m->nr);
	m->total = report_get(&arm->value, "detail.moves.total");
	p->nr = column(arm, "detail.pieces.at_s", p->at_s, MARKS_MAX);
	p->nr = column(arm, "detail.pieces.engine", p->to, p->nr);
	p->total = report_get(&arm->value, "detail.pieces.total");
	u->nr = column(arm, "detail.outages.from_s", u->at_s, MARKS_MAX);
	u->nr = column(arm, "detail.outages.until_s", u->until_s, u->nr);
	u->nr = column(arm, "detail.outages.engine", u->to, u->nr);
	u->total = report_get(&arm->value, "detail.outages.total");
}

/* ---- lanes ---- */

/* The queue of an engine as an area that stands on its lane's lower edge. */
static void draw_queue(struct out *o, const struct lanes *l, size_t engine)
{
	const struct timeline *t = &l->requests;
	double bottom = l->top + (double)(engine + 1) * l->lane - 0.5;

	out_fmt(o, "<path class=\"area\" d=\"M%.1f %.1f", l->time.from, bottom);
	for (size_t c = 0; c < t->cells; c++) {
		double height = t->value[engine][c] / l->most * (l->lane - 2);
		double x = scale_at(&l->time, (double)c * t->cell_s);

		out_fmt(o, "L%.1f %.1fH%.1f", x, bottom - height,
			scale_at(&l->time, (double)(c + 1) * t->cell_s));
	}
	out_fmt(o, "V%.1fz\"/>", bottom);
}

static void draw_ground(struct out *o, const struct lanes *l, const struct report_arm *arm)
{
	char text[64];

	for (size_t e = 0; e < l->engines; e++) {
		double y = l->top + (double)(e + 1) * l->lane;

		if (e < l->requests.engines && l->most > 0)
			draw_queue(o, l, e);
		out_fmt(o, "<path class=\"g\" d=\"M%.1f %.1fH%.1f\"/>", l->time.from, y,
			l->time.to);
		if (l->lane < 12 && e % 4)
			continue;
		snprintf(text, sizeof(text), "engine %zu", e);
		draw_text(o, LEFT - 6, lane_y(l, (double)e) + 4, "a", "end", text);
	}
	draw_name(o, LEFT, l->top - 8, "start", arm->name, 420, arm->style);
}

static void draw_outages(struct out *o, const struct lanes *l)
{
	const struct marks *m = &l->outages;

	for (size_t i = 0; i < m->nr; i++) {
		double x = scale_at(&l->time, m->at_s[i]);
		double width = fmax(scale_at(&l->time, m->until_s[i]) - x, 1.5);

		if (is_engine(l, m->to[i]))
			out_fmt(o, "<path class=\"out\" d=\"M%.1f %.1fh%.1fv%.1fh%.1fz\"/>", x,
				lane_y(l, m->to[i]) - l->lane / 2 + 1, width, l->lane - 2, -width);
	}
}

static void draw_pieces(struct out *o, const struct lanes *l)
{
	const struct marks *m = &l->pieces;

	if (m->nr == 0)
		return;
	out_fmt(o, "<path class=\"piece\" d=\"");
	for (size_t i = 0; i < m->nr; i++)
		if (is_engine(l, m->to[i]))
			out_fmt(o, "M%.1f %.1fv%.1f", scale_at(&l->time, m->at_s[i]),
				lane_y(l, m->to[i]) - l->lane / 2 + 1, l->lane * 0.4);
	out_fmt(o, "\"/>");
}

/* A line from lane to lane, a small cross-bar where the session was, a dot where it is. */
static void draw_moves(struct out *o, const struct lanes *l, int style)
{
	const struct marks *m = &l->moves;

	out_fmt(o, "<path class=\"mv %s\" d=\"", draw_class(style));
	for (size_t i = 0; i < m->nr; i++)
		if (is_engine(l, m->from[i]) && is_engine(l, m->to[i]))
			out_fmt(o, "M%.1f %.1fh4m-2 0V%.1f", scale_at(&l->time, m->at_s[i]) - 2,
				lane_y(l, m->from[i]), lane_y(l, m->to[i]));
	out_fmt(o, "M0 0\"/><path class=\"solid m %s\" stroke-width=\"0\" d=\"", draw_class(style));
	for (size_t i = 0; i < m->nr; i++)
		if (is_engine(l, m->from[i]) && is_engine(l, m->to[i]))
			out_fmt(o, "M%.1f %.1fa1.9 1.9 0 1 0 3.8 0a1.9 1.9 0 1 0-3.8 0z",
				scale_at(&l->time, m->at_s[i]) - 1.9, lane_y(l, m->to[i]));
	out_fmt(o, "M0 0\"/>\n");
}

static void draw_counts(struct out *o, const struct lanes *l)
{
	static const char *const words[] = { "move", "piece", "outage" };
	const struct marks *all[] = { &l->moves, &l->pieces, &l->outages };
	char number[OUT_NUMBER_MAX];
	struct out text = { 0 };

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		if (!(all[i]->total > 0))
			continue;
		out_fmt(&text, "%s%s %s%s", text.len ? ", " : "",
			out_number(number, all[i]->total, 3), words[i],
			all[i]->total == 1 ? "" : "s");
		if (all[i]->total > (double)all[i]->nr)
			out_fmt(&text, " (the first %zu shown)", all[i]->nr);
	}
	draw_text(o, l->time.to, l->top - 8, "v", "end", text.len ? text.text : "no moves");
	out_free(&text);
}

/* ---- who moved where ---- */

static void draw_matrix(struct out *o, const struct lanes *l)
{
	unsigned count[MATRIX_ENGINES][MATRIX_ENGINES] = { 0 };
	double left = CHART_WIDTH - (double)l->engines * 18, cell = 18;
	char text[16];

	if (l->engines > MATRIX_ENGINES || l->moves.nr == 0)
		return;
	for (size_t i = 0; i < l->moves.nr; i++)
		if (is_engine(l, l->moves.from[i]) && is_engine(l, l->moves.to[i]))
			count[(size_t)l->moves.from[i]][(size_t)l->moves.to[i]]++;
	draw_text(o, left - 8, l->top - 8, "a z", "end", "from \\ to");
	for (size_t i = 0; i < l->engines; i++) {
		snprintf(text, sizeof(text), "%zu", i);
		draw_text(o, left + ((double)i + 0.5) * cell, l->top - 8, "a z", "middle", text);
		draw_text(o, left - 8, lane_y(l, (double)i) + 3.5, "a z", "end", text);
		for (size_t k = 0; k < l->engines; k++) {
			snprintf(text, sizeof(text), "%u", count[i][k]);
			draw_text(o, left + ((double)k + 0.5) * cell, lane_y(l, (double)i) + 3.5,
				  count[i][k] ? "z" : "a z", "middle",
				  i == k        ? "\\"
				  : count[i][k] ? text
						: "\xc2\xb7");
		}
	}
	out_fmt(o, "\n");
}

static void draw_arm(struct out *o, struct lanes *l, const struct report_arm *arm)
{
	timeline_read(&l->requests, arm, "requests", l->cells);
	marks_read(l, arm);
	draw_axis_x(o, &l->time, l->top, l->top + (double)l->engines * l->lane, 60, "s");
	draw_ground(o, l, arm);
	draw_outages(o, l);
	draw_pieces(o, l);
	draw_moves(o, l, arm->style);
	draw_counts(o, l);
	draw_matrix(o, l);
}

/* The longest queue and the most engines of those that are to be shown; their number. */
static size_t survey(const struct report_doc *doc, struct lanes *l)
{
	size_t arms = 0;

	for (size_t i = 0; i < doc->arms; i++) {
		if (doc->arm[i].style < 0)
			continue;
		timeline_read(&l->requests, &doc->arm[i], "requests", TIMELINE_CELLS);
		arms += l->requests.engines > 0;
		if (l->requests.engines > l->engines)
			l->engines = l->requests.engines;
		for (size_t e = 0; e < l->requests.engines; e++)
			for (size_t c = 0; c < l->requests.cells; c++)
				l->most = fmax(l->most, (double)l->requests.value[e][c]);
	}
	return arms;
}

void chart_lanes(struct out *o, const struct report_doc *doc, const char *caption)
{
	static const char label[] = "Moves, pieces and outages over time";
	scoped(free_drop) struct lanes *l = calloc(1, sizeof(*l));
	bool begun = false;
	size_t arms = l ? survey(doc, l) : 0;

	if (arms == 0)
		return;
	l->cells = timeline_cells_for(3 * arms * l->engines);
	double right = l->engines > MATRIX_ENGINES ? 14 : MATRIX + 24;

	l->lane = l->engines > 16 ? 8 : LANE;
	l->top = HEAD;
	l->time = (struct scale){ 0, timeline_shown_s(doc), LEFT, CHART_WIDTH - right, false };
	double height = HEAD + l->lane * (double)l->engines + FOOT;

	for (size_t i = 0; i < doc->arms; i++) {
		if (doc->arm[i].style < 0 || !report_has(&doc->arm[i].value, "detail.timeline"))
			continue;
		(begun ? draw_next : draw_begin)(o, height, label);
		begun = true;
		draw_arm(o, l, &doc->arm[i]);
	}
	draw_end(o, caption);
}
