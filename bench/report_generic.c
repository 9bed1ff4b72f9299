/* What a result of no known kind becomes: pictures of its quantiles, tables of its lists. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/report.h"
#include "shm/base/scoped.h"

enum { NESTED_MAX = 4, TABLES_MAX = 32 };

/* What is worth a panel: places in arms, quantiles' or numbers'. */
struct places {
	char path[CHART_PANELS_MAX][REPORT_PATH_MAX], unit[CHART_PANELS_MAX][16];
	struct out title[CHART_PANELS_MAX];
	size_t nr;
};
struct found {
	struct places quantiles, numbers;
	struct strips_panel strips[CHART_PANELS_MAX];
	struct bars_panel bars[CHART_PANELS_MAX];
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
			snprintf(unit, 16, "%s", i == 2 ? "\xc2\xb5s" : units[i]);
}

static void add_place(struct places *p, const char *path)
{
	for (size_t i = 0; i < p->nr; i++)
		if (strcmp(p->path[i], path) == 0)
			return;
	if (p->nr == CHART_PANELS_MAX)
		return;
	snprintf(p->path[p->nr], REPORT_PATH_MAX, "%s", path);
	unit_of(path, p->unit[p->nr]);
	out_escaped(&p->title[p->nr], path);
	p->nr++;
}

/* A panel for every object that has a p50 or a p90, one for every number outside such objects.
 * Names that no path can hold are left out. */
static void seek(struct found *f, const struct jread *object, const char *before, int depth)
{
	bool has_quantiles = report_has(object, "p90") || report_has(object, "p50");
	struct jread_walk walk;

	if (*before && has_quantiles)
		add_place(&f->quantiles, before);
	jread_walk_begin(&walk, object);
	while (depth < NESTED_MAX && jread_walk_next(&walk)) {
		char key[REPORT_PATH_MAX], path[REPORT_PATH_MAX];

		if (jread_str(&walk.key, key, sizeof(key), NULL) || strpbrk(key, ".[]"))
			continue;
		if (snprintf(path, sizeof(path), "%s%s%s", before, *before ? "." : "", key) >=
		    (int)sizeof(path) - 8)
			continue;
		if (walk.value.type == JREAD_OBJECT)
			seek(f, &walk.value, path, depth + 1);
		else if (walk.value.type == JREAD_NUMBER && !(*before && has_quantiles))
			add_place(&f->numbers, path);
	}
}

static void write_strips(struct out *o, const struct report_doc *doc, struct found *f)
{
	for (size_t k = 0; k < f->quantiles.nr; k++) {
		const char *path = f->quantiles.path[k];

		f->strips[k].title = f->quantiles.title[k].text;
		f->strips[k].unit = f->quantiles.unit[k];
		for (size_t i = 0; i < doc->arms; i++) {
			const struct jread *v = &doc->arm[i].value;

			f->strips[k].strip[i] = (struct strip){ report_getf(v, "%s.p10", path),
								report_getf(v, "%s.p50", path),
								report_getf(v, "%s.p90", path),
								report_getf(v, "%s.p99", path),
								report_getf(v, "%s.mean", path) };
		}
	}
	if (f->quantiles.nr == 0)
		return;
	report_heading(o, doc, "quantiles", "Quantiles");
	chart_strips(o, doc, f->strips, f->quantiles.nr,
		     "Log axes, one scale a panel; units as named.");
}

/* Numbers that differ between arms. */
static void write_bars(struct out *o, const struct report_doc *doc, struct found *f)
{
	size_t panels = 0;

	for (size_t k = 0; k < f->numbers.nr; k++) {
		struct bars_panel *p = &f->bars[panels];
		bool differ = false;

		p->title = f->numbers.title[k].text;
		p->unit = f->numbers.unit[k];
		for (size_t i = 0; i < doc->arms; i++) {
			p->value[i] = report_get(&doc->arm[i].value, f->numbers.path[k]);
			differ |= i > 0 && p->value[i] != p->value[0];
		}
		panels += differ;
	}
	if (panels == 0)
		return;
	report_heading(o, doc, "numbers", "Numbers");
	chart_bars(o, doc, f->bars, panels,
		   "Numbers in which arms differ, one scale a panel, from zero; units as named.");
}

static void write_charts(struct out *o, const struct report_doc *doc)
{
	scoped(free_drop) struct found *f = calloc(1, sizeof(*f));

	if (!f) {
		o->err = -ENOMEM;
		return;
	}
	for (size_t i = 0; i < doc->arms; i++)
		seek(f, &doc->arm[i].value, "", 0);
	write_strips(o, doc, f);
	write_bars(o, doc, f);
	for (size_t k = 0; k < CHART_PANELS_MAX; k++) {
		out_free(&f->quantiles.title[k]);
		out_free(&f->numbers.title[k]);
	}
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
	write_charts(o, doc);
	jread_walk_begin(&walk, &doc->value);
	while (jread_walk_next(&walk)) {
		if (!is_table(&walk) || tables++ >= TABLES_MAX)
			continue;
		if (tables == 1)
			report_heading(o, doc, "tables", "Tables");
		out_fmt(o, "<h4>");
		report_put(o, &walk.key);
		out_fmt(o, "</h4>\n");
		report_objects(o, &walk.value, "", false);
	}
	if (tables > TABLES_MAX)
		out_fmt(o, "<p>%zu more tables are left out.</p>\n", tables - TABLES_MAX);
}
