/* What load commands' results become: targets, a picture of every cell's figures, all as tables. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/load.h"
#include "bench/report.h"
#include "shm/base/scoped.h"

#define FIGURE(id, key, cell, title) { key, title, LOAD_CELL_##cell },
static const struct {
	const char *key, *title;
	enum load_cell cell;
} figures[] = { LOAD_FIGURES(FIGURE) };
#define CELL(id, name, title) { "cell-" #id, title },
static const struct {
	const char *id, *title;
} cells[] = { LOAD_CELLS(CELL) };

bool report_is_load(const struct jread *doc)
{
	char kind[32];

	return jread_get_str(doc, "kind", kind, sizeof(kind)) == 0 && strcmp(kind, "load") == 0;
}

/* Every figure of the cell that some arm has; negative ones (noise of what is added) are bars of 0.
 */
static void write_cell(struct out *o, const struct report_doc *doc, enum load_cell cell,
		       struct bars_panel *panel)
{
	size_t panels = 0;

	for (size_t f = 0; f < LOAD_FIGURES_NR && panels < CHART_PANELS_MAX; f++) {
		bool any = false;

		if (figures[f].cell != cell || !figures[f].title)
			continue;
		panel[panels].title = figures[f].title;
		panel[panels].unit = "";
		for (size_t i = 0; i < doc->arms; i++) {
			double value = report_get(&doc->arm[i].value, figures[f].key);

			panel[panels].value[i] = value < 0 ? 0 : value;
			any |= value > 0;
		}
		panels += any;
	}
	if (panels == 0)
		return;
	report_heading(o, doc, cells[cell].id, cells[cell].title);
	chart_bars(o, doc, panel, panels,
		   "Medians of the rounds, one scale a panel, from zero. Relay is the floor.");
}

/* Parts of a decision: arms are what was timed. */
static void write_parts(struct out *o, const struct report_doc *doc, struct strips_panel *panel)
{
	if (doc->arms == 0 || isnan(report_get(&doc->arm[0].value, "p50_ns")))
		return;
	panel->title = "ns";
	panel->unit = "ns";
	for (size_t i = 0; i < doc->arms; i++)
		panel->strip[i] = (struct strip){ .p10 = NAN,
						  .p50 = report_get(&doc->arm[i].value, "p50_ns"),
						  .p90 = NAN,
						  .p99 = report_get(&doc->arm[i].value, "p99_ns"),
						  .mean = NAN };
	report_heading(o, doc, "parts", "Parts of a decision");
	chart_strips(o, doc, panel, 1, "p50 and p99, log axis.");
}

static void write_list(struct out *o, const struct report_doc *doc, const char *path,
		       const char *id, const char *title)
{
	struct jread list;

	if (jread_get(&doc->value, path, &list) || jread_count(&list) == 0)
		return;
	report_heading(o, doc, id, title);
	report_objects(o, &list, "", false);
}

void report_load(struct out *o, const struct report_doc *doc)
{
	scoped(free_drop) struct bars_panel *bars = calloc(CHART_PANELS_MAX, sizeof(*bars));
	scoped(free_drop) struct strips_panel *strips = calloc(1, sizeof(*strips));

	if (!bars || !strips) {
		o->err = -ENOMEM;
		return;
	}
	report_targets(o, doc);
	for (int cell = 0; cell < LOAD_CELLS_NR; cell++)
		write_cell(o, doc, (enum load_cell)cell, bars);
	write_parts(o, doc, strips);
	write_list(o, doc, "peers", "peers", "Who ran");
	write_list(o, doc, "arms", "all", "All figures");
	write_list(o, doc, "readers", "readers", "Reads beside a writer");
	write_list(o, doc, "decide.arms", "decide", "Parts of a decision");
	write_list(o, doc, "decide.readers", "decide-readers", "Reads beside a writer");
	write_list(o, doc, "agents.arms", "agents", "Eight agents");
}
