/* What a result of no known kind becomes: pictures of its quantiles, tables of its lists. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/report.h"
#include "shm/base/scoped.h"

enum { NESTED_MAX = 4, TABLES_MAX = 32 };

struct found {
	struct strips_panel panel[CHART_PANELS_MAX];
	char path[CHART_PANELS_MAX][REPORT_PATH_MAX], unit[CHART_PANELS_MAX][16];
	struct out title[CHART_PANELS_MAX];
	size_t panels;
};

bool report_is_generic(const struct jread *doc)
{
	return true;
}

/* "latency_us" is in us. */
static void unit_of(const char *path, char unit[16])
{
	static const char *const units[] = { "s", "ms", "us", "ns", "bytes", "tokens", "ratio" };
	const char *last = strrchr(path, '_');

	unit[0] = 0;
	for (size_t i = 0; last && i < sizeof(units) / sizeof(units[0]); i++)
		if (strcmp(last + 1, units[i]) == 0)
			snprintf(unit, 16, "%s", units[i]);
}

static void add_panel(struct found *f, const char *path)
{
	for (size_t i = 0; i < f->panels; i++)
		if (strcmp(f->path[i], path) == 0)
			return;
	if (f->panels == CHART_PANELS_MAX)
		return;
	snprintf(f->path[f->panels], REPORT_PATH_MAX, "%s", path);
	unit_of(path, f->unit[f->panels]);
	f->panels++;
}

/* Every object that has a p50 or a p90 gets a panel; names that no path can hold are left out. */
static void seek(struct found *f, const struct jread *object, const char *before, int depth)
{
	struct jread_walk walk;

	if (*before && (report_has(object, "p90") || report_has(object, "p50")))
		add_panel(f, before);
	jread_walk_begin(&walk, object);
	while (depth < NESTED_MAX && jread_walk_next(&walk)) {
		char key[REPORT_PATH_MAX], path[REPORT_PATH_MAX];

		if (walk.value.type != JREAD_OBJECT ||
		    jread_str(&walk.key, key, sizeof(key), NULL) || strpbrk(key, ".[]"))
			continue;
		if (snprintf(path, sizeof(path), "%s%s%s", before, *before ? "." : "", key) <
		    (int)sizeof(path) - 8)
			seek(f, &walk.value, path, depth + 1);
	}
}

static void write_strips(struct out *o, const struct report_doc *doc)
{
	scoped(free_drop) struct found *f = calloc(1, sizeof(*f));

	for (size_t i = 0; f && i < doc->arms; i++)
		seek(f, &doc->arm[i].value, "", 0);
	if (!f || f->panels == 0)
		return;
	for (size_t k = 0; k < f->panels; k++) {
		out_escaped(&f->title[k], f->path[k]);
		f->panel[k].title = f->title[k].text ? f->title[k].text : "";
		f->panel[k].unit = f->unit[k];
		for (size_t i = 0; i < doc->arms; i++) {
			const struct jread *v = &doc->arm[i].value;

			f->panel[k].strip[i] =
				(struct strip){ report_getf(v, "%s.p10", f->path[k]),
						report_getf(v, "%s.p50", f->path[k]),
						report_getf(v, "%s.p90", f->path[k]),
						report_getf(v, "%s.p99", f->path[k]),
						report_getf(v, "%s.mean", f->path[k]) };
		}
	}
	report_heading(o, doc, "quantiles", "Quantiles");
	chart_strips(o, doc, f->panel, f->panels, "Log axes, one scale a panel; units as named.");
	for (size_t k = 0; k < f->panels; k++)
		out_free(&f->title[k]);
}

static bool is_table(const struct jread_walk *walk)
{
	struct jread first;

	return !jread_is(&walk->key, "targets") && walk->value.type == JREAD_ARRAY &&
	       jread_get(&walk->value, "[0]", &first) == 0 && first.type == JREAD_OBJECT;
}

void report_generic(struct out *o, const struct report_doc *doc)
{
	struct jread_walk walk;
	size_t tables = 0;

	report_targets(o, doc);
	write_strips(o, doc);
	jread_walk_begin(&walk, &doc->value);
	while (jread_walk_next(&walk)) {
		if (!is_table(&walk) || tables++ >= TABLES_MAX)
			continue;
		if (tables == 1)
			report_heading(o, doc, "tables", "Tables");
		out_fmt(o, "<h4>");
		report_put(o, &walk.key);
		out_fmt(o, "</h4>\n");
		report_objects(o, &walk.value, "");
	}
	if (tables > TABLES_MAX)
		out_fmt(o, "<p>%zu more tables are left out.</p>\n", tables - TABLES_MAX);
}
