/* The page around all results: head, contents, a part for each file, its arms in order. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/report.h"
#include "shm/base/opt.h"

/* ---- arms ---- */

/* The list whose objects are compared: arms[], else the first list of objects. */
static int find_arms(const struct jread *doc, struct jread *ret_list)
{
	struct jread_walk walk;
	struct jread first;

	if (jread_get(doc, "arms", ret_list) == 0 && ret_list->type == JREAD_ARRAY)
		return 0;
	jread_walk_begin(&walk, doc);
	while (jread_walk_next(&walk))
		if (walk.value.type == JREAD_ARRAY && jread_get(&walk.value, "[0]", &first) == 0 &&
		    first.type == JREAD_OBJECT) {
			*ret_list = walk.value;
			return 0;
		}
	return -ENOENT;
}

static void arm_read(struct report_arm *arm, const struct jread *value, size_t index)
{
	static const char *const rank[] = { "ttft_s.p90", "p90", "latency_s.p90", "mean" };
	struct jread name;

	arm->value = *value;
	arm->style = REPORT_GREY;
	arm->rank = NAN;
	for (size_t i = 0; i < sizeof(rank) / sizeof(rank[0]) && isnan(arm->rank); i++)
		arm->rank = report_get(value, rank[i]);
	snprintf(arm->name, sizeof(arm->name), "%zu", index + 1);
	if (jread_get(value, "name", &name) || name.type != JREAD_STRING)
		return;
	if (jread_str(&name, arm->name, sizeof(arm->name), NULL) == -ENOSPC)
		snprintf(arm->name, sizeof(arm->name), "%.*s...",
			 name.len < 100 ? (int)name.len - 2 : 100, name.text + 1);
}

/* Best first, unknown ones last; equals stay as they were. */
static void sort_arms(struct report_doc *doc)
{
	for (size_t i = 1; i < doc->arms; i++) {
		struct report_arm arm = doc->arm[i];
		size_t k = i;

		while (k > 0 && (doc->arm[k - 1].rank > arm.rank ||
				 (isnan(doc->arm[k - 1].rank) && !isnan(arm.rank)))) {
			doc->arm[k] = doc->arm[k - 1];
			k--;
		}
		doc->arm[k] = arm;
	}
}

static int index_of(const struct report_doc *doc, const char *name, size_t len)
{
	for (size_t i = 0; i < doc->arms; i++)
		if (strlen(doc->arm[i].name) == len && strncmp(doc->arm[i].name, name, len) == 0)
			return (int)i;
	return -1;
}

/* Styles for those asked for, else for the best ones; 0 is the base's. */
static void give_styles(struct report_doc *doc, const char *list)
{
	int next = doc->base >= 0 ? 1 : 0;

	if (doc->base >= 0)
		doc->arm[doc->base].style = 0;
	while (list && *list) {
		size_t len = strcspn(list, ",");
		int i = index_of(doc, list, len);

		if (i >= 0 && doc->arm[i].style < 0 && next < REPORT_STYLES)
			doc->arm[i].style = next++;
		list += len + (list[len] == ',');
	}
	for (size_t i = 0; next < REPORT_STYLES && i < doc->arms && !doc->highlight; i++)
		if (doc->arm[i].style < 0)
			doc->arm[i].style = next++;
}

int report_doc_open(struct report_doc *doc, const struct jread *value, const char *highlight)
{
	char base[REPORT_NAME_MAX] = "";
	struct jread_walk walk;
	struct jread list;

	if (value->type != JREAD_OBJECT)
		return -EINVAL;
	doc->value = *value;
	doc->highlight = highlight;
	doc->base = -1;
	if (find_arms(value, &list))
		return 0;
	jread_walk_begin(&walk, &list);
	while (jread_walk_next(&walk)) {
		if (walk.value.type != JREAD_OBJECT)
			continue;
		if (doc->arms < REPORT_ARMS_MAX)
			arm_read(&doc->arm[doc->arms], &walk.value, doc->arms);
		else
			doc->arms_left_out++;
		doc->arms += doc->arms < REPORT_ARMS_MAX;
	}
	if (jread_get_str(value, "base", base, sizeof(base)) && doc->arms > 1)
		snprintf(base, sizeof(base), "%s", doc->arm[0].name);
	sort_arms(doc);
	doc->base = *base ? index_of(doc, base, strlen(base)) : -1;
	give_styles(doc, highlight);
	return 0;
}

/* ---- the page ---- */

struct kind {
	const char *title;
	bool (*is)(const struct jread *doc);
	void (*write)(struct out *o, const struct report_doc *doc);
};

static const struct kind *kind_of(const struct report_doc *doc)
{
#define X(id, title) { title, report_is_##id, report_##id },
	static const struct kind kinds[] = { REPORT_KINDS(X) };
#undef X
	const struct kind *kind = kinds;

	while (!kind->is(&doc->value))
		kind++;
	return kind;
}

void report_heading(struct out *o, const struct report_doc *doc, const char *id, const char *title)
{
	struct report_heads *heads = doc->heads;

	if (heads && heads->nr < REPORT_HEADS_MAX)
		heads->head[heads->nr++] = (struct report_head){ doc->number, id, title };
	out_fmt(o, "<h3 id=\"f%u-%s\">%s</h3>\n", doc->number, id, title);
}

static const char *file_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static void write_title(struct out *o, const struct report_doc *doc)
{
	struct jread workload;

	out_fmt(o, "%s: ", kind_of(doc)->title);
	if (jread_get(&doc->value, "workload", &workload) == 0) {
		report_put(o, &workload);
		out_fmt(o, " (");
	}
	out_escaped(o, file_name(doc->path));
	if (jread_get(&doc->value, "workload", &workload) == 0)
		out_fmt(o, ")");
}

static void write_doc(struct out *o, const struct report_doc *doc)
{
	out_fmt(o, "<section>\n<h2 id=\"f%u\"%s>", doc->number,
		doc->number == 1 ? " class=\"first\"" : "");
	write_title(o, doc);
	out_fmt(o, "</h2>\n");
	report_facts(o, doc);
	if (doc->arms_left_out)
		out_fmt(o, "<p>%zu arms more are left out: a page shows %d.</p>\n",
			doc->arms_left_out, REPORT_ARMS_MAX);
	kind_of(doc)->write(o, doc);
	out_fmt(o, "</section>\n");
}

static void write_contents(struct out *o, const struct report_doc *doc, size_t docs,
			   const struct report_heads *heads)
{
	out_fmt(o, "<nav aria-label=\"contents\"><strong>Contents</strong><ol>\n");
	for (size_t i = 0; i < docs; i++) {
		out_fmt(o, "<li><a href=\"#f%u\">", doc[i].number);
		write_title(o, &doc[i]);
		out_fmt(o, "</a><ul>");
		for (size_t k = 0; k < heads->nr; k++)
			if (heads->head[k].number == doc[i].number)
				out_fmt(o, "<li><a href=\"#f%u-%s\">%s</a></li>", doc[i].number,
					heads->head[k].id, heads->head[k].title);
		out_fmt(o, "%s</ul></li>\n", "<li></li>");
	}
	out_fmt(o, "</ol></nav>\n");
}

static void write_head(struct out *o, const struct report_doc *doc, size_t docs, time_t now)
{
	char date[64] = "", version[128];
	struct tm tm;

	if (gmtime_r(&now, &tm))
		strftime(date, sizeof(date), "%Y-%m-%d %H:%M UTC", &tm);
	opt_version(version, sizeof(version));
	out_fmt(o, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
		   "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>"
		   "<title>turnward report: ");
	out_escaped(o, file_name(doc[0].path));
	if (docs > 1)
		out_fmt(o, " and %zu more", docs - 1);
	out_fmt(o, "</title>\n<style>%s</style></head><body>\n", report_style_sheet);
	out_fmt(o, "<svg class=\"defs\" width=\"0\" height=\"0\" aria-hidden=\"true\"><defs>"
		   "<pattern id=\"hatch\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\">"
		   "<path class=\"x\" d=\"M0 5L5 0\"/></pattern></defs></svg>\n");
	out_fmt(o, "<header><h1>turnward report</h1><p class=\"dim\">%s, by turnward ", date);
	out_escaped(o, version);
	out_fmt(o, "</p></header>\n");
}

void report_page(struct out *o, struct report_doc *doc, size_t docs, time_t now)
{
	struct report_heads heads = { 0 };
	struct out body = { 0 };

	for (size_t i = 0; i < docs; i++) {
		doc[i].number = (unsigned)i + 1;
		doc[i].heads = &heads;
		write_doc(&body, &doc[i]);
	}
	write_head(o, doc, docs, now);
	if (docs > 1)
		write_contents(o, doc, docs, &heads);
	report_overview(o, doc, docs);
	if (body.text)
		out_fmt(o, "%s", body.text);
	out_fmt(o, "</body></html>\n");
	o->err = o->err ? o->err : body.err;
	out_free(&body);
}
