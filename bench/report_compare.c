/* What live --compare becomes: targets, and for each workload medians, ratios and every run. */
#include <stdio.h>
#include <string.h>

#include "bench/report.h"

bool report_is_compare(const struct jread *doc)
{
	char kind[32];

	return jread_get_str(doc, "kind", kind, sizeof(kind)) == 0 && strcmp(kind, "compare") == 0;
}

static void write_list(struct out *o, const struct jread *load, const char *path,
		       const char *caption)
{
	struct jread list;

	if (jread_get(load, path, &list) == 0)
		report_objects(o, &list, caption, true);
}

static void write_rounds(struct out *o, const struct jread *load)
{
	struct jread rounds;
	struct jread_walk walk;
	char caption[64];

	if (jread_get(load, "rounds", &rounds))
		return;
	jread_walk_begin(&walk, &rounds);
	while (jread_walk_next(&walk)) {
		snprintf(caption, sizeof(caption), "Round %zu, seed %.0f.", walk.index + 1,
			 report_get(&walk.value, "seed"));
		write_list(o, &walk.value, "arms", caption);
	}
}

/* Captions and headings are ours, but for the workload's name, which is one of two words. */
static void write_load(struct out *o, const struct report_doc *doc, const struct jread *load)
{
	char name[32];
	bool design =
		jread_get_str(load, "name", name, sizeof(name)) == 0 && strcmp(name, "design") == 0;

	report_heading(o, doc, design ? "design" : "sessions",
		       design ? "The design document's mix" : "Claude Code sessions");
	write_list(
		o, load, "arms",
		"Medians of valid rounds, model seconds. Cold: HEAVY at turn 1; heavy_t2: HEAVY at "
		"turn \xe2\x89\xa5 2, its ideal on an empty engine with a perfect cache.");
	write_list(o, load, "ratios",
		   "Medians of the ratios within rounds; victims: of sums. The same workloads in "
		   "replay's virtual time beside them.");
	write_rounds(o, load);
}

void report_compare(struct out *o, const struct report_doc *doc)
{
	struct jread loads;
	struct jread_walk walk;
	int valid = 0;
	struct jread found;

	if (jread_get(&doc->value, "valid", &found) == 0 && jread_bool(&found, &valid) == 0)
		out_fmt(o, "<p class=\"%s\">%s</p>\n", valid ? "met" : "unmet",
			valid ? "\xe2\x9c\x93 All runs are valid and without errors."
			      : "\xe2\x9c\x97 NOT all runs are valid and without errors.");
	report_targets(o, doc);
	if (jread_get(&doc->value, "workloads", &loads))
		return;
	jread_walk_begin(&walk, &loads);
	while (jread_walk_next(&walk))
		write_load(o, doc, &walk.value);
}
