/*
 * turnward-bench report from the inside: JSON results of ours in, one HTML page out.
 *
 * The page stands alone: styles and pictures are in it, nothing is fetched, no script is needed.
 * Names come from files and are escaped, numbers are the file's own. A kind of result is a row of
 * REPORT_KINDS; what no row knows becomes tables of its lists and a picture of its quantiles.
 */
#ifndef TURNWARD_BENCH_REPORT_H
#define TURNWARD_BENCH_REPORT_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#include "bench/report_out.h"
#include "shm/base/jread.h"

enum {
	REPORT_FILES_MAX = 64,
	REPORT_FILE_MAX = 64 << 20, /* bytes */
	REPORT_ARMS_MAX = 64,       /* of a file; more are counted and left out */
	REPORT_NAME_MAX = 128,      /* longer names are cut */
	REPORT_STYLES = 6,          /* arms that have a colour, a line and a mark of their own */
	REPORT_GREY = -1,           /* style of all others */
	REPORT_PATH_MAX = 128,
};

struct report_arm {
	char name[REPORT_NAME_MAX];
	struct jread value;
	int style;
	double rank; /* what arms are sorted by: TTFT p90 */
};

/* What the table of contents lists. */
enum { REPORT_HEADS_MAX = 512 };
struct report_head {
	unsigned number; /* of the document */
	const char *id, *title;
};
struct report_heads {
	struct report_head head[REPORT_HEADS_MAX];
	size_t nr;
};

struct report_doc {
	const char *path;
	struct report_heads *heads;
	time_t written;        /* the file's time, 0 = unknown */
	unsigned number;       /* on the page, from 1 */
	const char *highlight; /* names of arms that get a style, or NULL */
	struct jread value;
	struct report_arm arm[REPORT_ARMS_MAX];
	size_t arms, arms_left_out;
	int base; /* index of the arm that others are compared with, -1 = none */
};

/*
 * X(id, the headline's word): report_is_ID() knows such a file by its contents, report_ID() writes
 * all that comes below the headline. The first that fits is taken; the last fits everything.
 */
#define REPORT_KINDS(X)                                \
	X(replay, "Policies compared in virtual time") \
	X(live, "Live runs")                           \
	X(compare, "The same sessions, several arms")  \
	X(load, "Load beside peers")                   \
	X(generic, "Results")
#define REPORT_DECLARE(id, title)                     \
	bool report_is_##id(const struct jread *doc); \
	void report_##id(struct out *o, const struct report_doc *doc);
REPORT_KINDS(REPORT_DECLARE)
#undef REPORT_DECLARE

/* ---- report_page.c: the whole page ---- */

/* Reads arms, gives them styles and order. -EINVAL: the document is no object. */
int report_doc_open(struct report_doc *doc, const struct jread *value, const char *highlight);
/* One document makes a page without contents. `now`: the date on it. */
void report_page(struct out *o, struct report_doc *doc, size_t docs, time_t now);
/* A heading that the table of contents leads to; id is unique within a document. */
void report_heading(struct out *o, const struct report_doc *doc, const char *id, const char *title);
extern const char report_style_sheet[]; /* report_style.c */

/* ---- report_read.c: values from a document, absent ones as NaN ---- */

double report_get(const struct jread *value, const char *path);
__attribute__((format(printf, 2, 3))) double report_getf(const struct jread *value,
							 const char *format, ...);
/* A list's numbers, NaN for what is none; their count, at most max. */
size_t report_list(const struct jread *value, const char *path, double *ret, size_t max);
bool report_has(const struct jread *value, const char *path);
/* A string at `path`, escaped; what it is otherwise as it stands; nothing when absent. */
void report_put(struct out *o, const struct jread *value);

/* ---- report_table.c ---- */

/* A table of a list of objects: nested names joined by points; numbers right, lists left out.
 * Terse: without what is 0 or absent in all of them. */
void report_objects(struct out *o, const struct jread *list, const char *caption, bool terse);
/* The document's own words and numbers, lists and objects left out. */
void report_facts(struct out *o, const struct report_doc *doc);
void report_targets(struct out *o, const struct report_doc *doc);

/* ---- report_figures.c: chosen figures ---- */

enum better { LOWER = -1, NEITHER, HIGHER };

/* A column of a table; a group of NULL goes on with the one before. */
struct report_column {
	const char *group, *head, *path; /* path: in an arm */
	const char *error;               /* the figure whose error stands beside it, or NULL */
	enum better better;
};

/* Arms by columns; columns that no arm has a value for are left out. */
void report_columns(struct out *o, const struct report_doc *doc, const struct report_column *from,
		    size_t nr, const char *caption);
/* "WHAT: ARM, so much; the base has so much" as an item of a list, for a path where less is better.
 */
void report_best(struct out *o, const struct report_doc *doc, const char *what, const char *path,
		 const char *unit);

/* ---- report_overview.c: several replays' TTFT p90 side by side ---- */

void report_overview(struct out *o, const struct report_doc *doc, size_t docs);

/* ---- charts: each writes one <figure>; captions are ours or were escaped ---- */

enum { CHART_WIDTH = 1080, CHART_NAMES = 176, CHART_PANELS_MAX = 32 };

/* Quantiles of one arm in one panel; NaN: not known. */
struct strip {
	double p10, p50, p90, p99, mean;
};
struct strips_panel {
	const char *title; /* escaped already */
	const char *unit;
	struct strip strip[REPORT_ARMS_MAX];
};
/* report_strips.c: a line from p10 to p99 each, on log axes. */
void chart_strips(struct out *o, const struct report_doc *doc, const struct strips_panel *panel,
		  size_t panels, const char *caption);

/* A number of each arm as a bar from zero; NaN: not known. */
struct bars_panel {
	const char *title, *unit; /* escaped already */
	double value[REPORT_ARMS_MAX];
};
void chart_bars(struct out *o, const struct report_doc *doc, const struct bars_panel *panel,
		size_t panels, const char *caption);

/* Per cent over the base and its error. */
struct against {
	double percent[REPORT_ARMS_MAX], error[REPORT_ARMS_MAX];
	const char *title;
};
void chart_against(struct out *o, const struct report_doc *doc, const struct against *panel,
		   size_t panels, const char *caption);

/* Curves of the arms that have a style, quantile over value. */
enum { CURVE_MAX = 512 };
struct curves_panel {
	const char *title;
	double value[REPORT_STYLES][CURVE_MAX];
	size_t nr[REPORT_STYLES];
};
struct curves {
	double quantile[CURVE_MAX];
	size_t nr;
	struct curves_panel *panel;
	size_t panels;
	const char *caption;
};
void chart_curves(struct out *o, const struct report_doc *doc, const struct curves *c);

/* Queues over time: engines above each other, an arm a block. A ratio's shades are fixed ones, and
 * only arms that have a style are shown. */
enum { HEAT_POINTS_MAX = 4000 };
struct heat_of {
	const char *series, *unit, *caption;
	bool ratio;
};
void chart_heat(struct out *o, const struct report_doc *doc, const struct heat_of *of);

/* Moves, pieces and outages of the arms that have a style. */
void chart_lanes(struct out *o, const struct report_doc *doc, const char *caption);

/* ---- report_draw.c: what charts share ---- */

struct scale;
/* Text cut to `width` with the whole in a tooltip; font of 12 px. anchor: "start", "end". */
void draw_name(struct out *o, double x, double y, const char *anchor, const char *name,
	       double width, int style);
void draw_text(struct out *o, double x, double y, const char *class, const char *anchor,
	       const char *escaped);
/* A mark of the style's own shape, hollow or filled. */
void draw_mark(struct out *o, double x, double y, int style, bool filled);
/* Vertical grid lines over [top, bottom] with labels below. */
void draw_axis_x(struct out *o, const struct scale *s, double top, double bottom, double gap,
		 const char *unit);
void draw_begin(struct out *o, double height, const char *label);
/* The figure goes on in a picture of its own: between the two a page may end. */
void draw_next(struct out *o, double height, const char *label);
void draw_end(struct out *o, const char *caption);
/* The arms with a style, in one line each: line, mark and name. Returns the height used. */
double draw_legend(struct out *o, const struct report_doc *doc, double top);
const char *draw_class(int style); /* "s0".."s5", "sx" */

#endif
