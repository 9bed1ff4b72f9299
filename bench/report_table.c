/* Tables of whatever a file holds: lists of objects, its own words and numbers, its targets. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/report.h"
#include "shm/base/scoped.h"

enum {
	ROWS_MAX = REPORT_ARMS_MAX,
	COLUMNS_MAX = 160,
	COLUMN_NAME_MAX = 96,
	NESTED_MAX = 4,
	WIDE = 10, /* more columns than this are turned into rows, if rows are few */
};

struct cells {
	size_t rows, columns, rows_left_out, columns_left_out;
	char name[COLUMNS_MAX][COLUMN_NAME_MAX];
	int places[COLUMNS_MAX];                  /* digits after the point */
	struct jread cell[ROWS_MAX][COLUMNS_MAX]; /* len 0: empty */
};

static size_t column_of(struct cells *t, const char *name)
{
	for (size_t i = 0; i < t->columns; i++)
		if (strcmp(t->name[i], name) == 0)
			return i;
	if (t->columns == COLUMNS_MAX) {
		t->columns_left_out++;
		return COLUMNS_MAX;
	}
	snprintf(t->name[t->columns], COLUMN_NAME_MAX, "%s", name);
	return t->columns++;
}

/* Nested objects' names are joined by points; lists are no cells. */
static void take_object(struct cells *t, size_t row, const struct jread *object, const char *before,
			int depth)
{
	struct jread_walk walk;

	jread_walk_begin(&walk, object);
	while (jread_walk_next(&walk)) {
		char key[COLUMN_NAME_MAX], name[COLUMN_NAME_MAX];

		if (jread_str(&walk.key, key, sizeof(key), NULL))
			snprintf(key, sizeof(key), "...");
		if (snprintf(name, sizeof(name), "%s%s%s", before, *before ? "." : "", key) >=
		    (int)sizeof(name))
			name[sizeof(name) - 1] = 0;
		if (walk.value.type == JREAD_OBJECT && depth < NESTED_MAX)
			take_object(t, row, &walk.value, name, depth + 1);
		if (walk.value.type == JREAD_OBJECT || walk.value.type == JREAD_ARRAY)
			continue;
		size_t column = column_of(t, name);

		if (column < COLUMNS_MAX)
			t->cell[row][column] = walk.value;
	}
}

static void take_list(struct cells *t, const struct jread *list)
{
	struct jread_walk walk;

	jread_walk_begin(&walk, list);
	while (jread_walk_next(&walk)) {
		if (walk.value.type != JREAD_OBJECT)
			continue;
		if (t->rows < ROWS_MAX)
			take_object(t, t->rows++, &walk.value, "", 0);
		else
			t->rows_left_out++;
	}
}

static bool is_zero(const struct cells *t, size_t column)
{
	for (size_t r = 0; r < t->rows; r++) {
		const struct jread *v = &t->cell[r][column];
		double number;

		if (v->len && v->type != JREAD_NULL && (jread_f64(v, &number) || number != 0))
			return false;
	}
	return true;
}

static void drop_zeros(struct cells *t)
{
	size_t kept = 0;

	for (size_t c = 0; c < t->columns; c++) {
		if (is_zero(t, c))
			continue;
		if (kept != c)
			memcpy(t->name[kept], t->name[c], COLUMN_NAME_MAX);
		for (size_t r = 0; r < t->rows; r++)
			t->cell[r][kept] = t->cell[r][c];
		kept++;
	}
	t->columns = kept;
}

/* Four digits that count in the middle one of a column's numbers; none when all are whole. */
static void find_places(struct cells *t)
{
	double value[ROWS_MAX];

	for (size_t c = 0; c < t->columns; c++) {
		size_t nr = 0;

		for (size_t r = 0; r < t->rows; r++)
			nr += t->cell[r][c].len && jread_f64(&t->cell[r][c], &value[nr]) == 0;
		t->places[c] = out_places(value, nr, 4);
	}
}

static void put_bool(struct out *o, const char *name, int yes)
{
	if (strcmp(name, "met") == 0)
		out_fmt(o, "<span class=\"%s\">%s</span>", yes ? "met" : "unmet",
			yes ? "\xe2\x9c\x93 met" : "\xe2\x9c\x97 NOT met");
	else
		out_fmt(o, "%s", yes ? "yes" : "no");
}

/* `places` < 0: as many digits as a number alone has. */
static void put_cell(struct out *o, const char *name, const struct jread *value, int places)
{
	char shown[OUT_NUMBER_MAX];
	double number;
	int yes;

	if (value->len == 0 || value->type == JREAD_NULL)
		out_fmt(o, "\xe2\x80\x93");
	else if (value->type == JREAD_NUMBER && jread_f64(value, &number) == 0)
		out_data(o, number,
			 places < 0 ? out_number(shown, number, 4)
				    : out_fixed(shown, number, places));
	else if (value->type == JREAD_BOOL && jread_bool(value, &yes) == 0)
		put_bool(o, name, yes);
	else
		report_put(o, value);
}

static void put_column(struct out *o, const struct cells *t, size_t column, size_t row,
		       const char *element)
{
	const struct jread *value = &t->cell[row][column];
	bool words = value->len && value->type == JREAD_STRING;

	out_fmt(o, "<%s%s>", element, words && strcmp(element, "td") == 0 ? " class=\"w\"" : "");
	put_cell(o, t->name[column], value, t->places[column]);
	out_fmt(o, "</%s>", element);
}

static void print_rows(struct out *o, const struct cells *t)
{
	out_fmt(o, "<thead><tr>");
	for (size_t c = 0; c < t->columns; c++) {
		out_fmt(o, "<th scope=\"col\">");
		out_escaped(o, t->name[c]);
		out_fmt(o, "</th>");
	}
	out_fmt(o, "</tr></thead><tbody>\n");
	for (size_t r = 0; r < t->rows; r++) {
		out_fmt(o, "<tr>");
		for (size_t c = 0; c < t->columns; c++)
			put_column(o, t, c, r, c ? "td" : "th");
		out_fmt(o, "</tr>\n");
	}
	out_fmt(o, "</tbody>");
}

/* The first column, their names as a rule, becomes the head. */
static void print_turned(struct out *o, const struct cells *t)
{
	for (size_t c = 0; c < t->columns; c++) {
		out_fmt(o, "%s<tr><th scope=\"row\">", c == 0 ? "<thead>" : "");
		out_escaped(o, t->name[c]);
		out_fmt(o, "</th>");
		for (size_t r = 0; r < t->rows; r++)
			put_column(o, t, c, r, c ? "td" : "th");
		out_fmt(o, "</tr>%s\n", c == 0 ? "</thead><tbody>" : "");
	}
	out_fmt(o, "</tbody>");
}

void report_objects(struct out *o, const struct jread *list, const char *caption, bool terse)
{
	scoped(free_drop) struct cells *t = calloc(1, sizeof(*t));

	if (!t) {
		o->err = -ENOMEM;
		return;
	}
	take_list(t, list);
	if (terse)
		drop_zeros(t);
	find_places(t);
	if (t->columns == 0)
		return;
	out_fmt(o, "<div class=\"wide\"><table%s>\n<caption>%s", terse ? " class=\"dense\"" : "",
		caption);
	if (t->rows_left_out)
		out_fmt(o, " %zu more rows are left out.", t->rows_left_out);
	if (t->columns_left_out)
		out_fmt(o, " Values under further names are left out.");
	out_fmt(o, "</caption>");
	if (t->columns > WIDE && t->rows <= WIDE)
		print_turned(o, t);
	else
		print_rows(o, t);
	out_fmt(o, "</table></div>\n");
}

void report_targets(struct out *o, const struct report_doc *doc)
{
	struct jread list;

	if (jread_get(&doc->value, "targets", &list) || list.type != JREAD_ARRAY ||
	    jread_count(&list) == 0)
		return;
	report_heading(o, doc, "targets", "Targets");
	report_objects(o, &list, "What was to be shown, and whether it was.", false);
}

/* ---- a file's own facts ---- */

static void put_words(struct out *o, const struct jread *list)
{
	struct jread_walk walk;

	out_fmt(o, "<code>");
	jread_walk_begin(&walk, list);
	while (jread_walk_next(&walk) && walk.index < COLUMNS_MAX) {
		out_fmt(o, "%s", walk.index ? " " : "");
		report_put(o, &walk.value);
	}
	out_fmt(o, "</code>");
}

static bool is_words(const struct jread *list)
{
	struct jread first;

	return list->type == JREAD_ARRAY && jread_get(list, "[0]", &first) == 0 &&
	       first.type == JREAD_STRING;
}

void report_facts(struct out *o, const struct report_doc *doc)
{
	char written[64] = "unknown";
	struct jread_walk walk;
	struct tm tm;

	if (doc->written && gmtime_r(&doc->written, &tm))
		strftime(written, sizeof(written), "%Y-%m-%d %H:%M UTC", &tm);
	out_fmt(o, "<dl class=\"facts\"><div><dt>file</dt><dd>");
	out_escaped(o, doc->path);
	out_fmt(o, "</dd></div><div><dt>written</dt><dd>%s</dd></div>", written);
	jread_walk_begin(&walk, &doc->value);
	while (jread_walk_next(&walk)) {
		const struct jread *v = &walk.value;

		if (v->type == JREAD_OBJECT || (v->type == JREAD_ARRAY && !is_words(v)))
			continue;
		out_fmt(o, "<div><dt>");
		report_put(o, &walk.key);
		out_fmt(o, "</dt><dd>");
		if (v->type == JREAD_ARRAY)
			put_words(o, v);
		else
			put_cell(o, "", v, -1);
		out_fmt(o, "</dd></div>");
	}
	out_fmt(o, "</dl>\n");
}
