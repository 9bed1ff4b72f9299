/* Prometheus text to numbers; see metrics.h. */
#include "agent/metrics.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct cursor {
	const char *at, *end; /* end = the line's end */
};

static uint32_t name_hash(const char *name, size_t len)
{
	uint32_t hash = 2166136261u;

	for (size_t i = 0; i < len; i++)
		hash = (hash ^ (uint8_t)name[i]) * 16777619u;
	return hash;
}

static void add_name(struct metrics_table *table, const char *name, size_t len, size_t want,
		     unsigned alias)
{
	assert(table->names_nr < METRICS_NAMES_MAX);
	struct metrics_name *entry = &table->name[table->names_nr];
	uint32_t hash = name_hash(name, len);
	int16_t *link = &table->bucket[hash % METRICS_BUCKETS];

	while (*link >= 0)
		link = &table->name[*link].next;
	*link = (int16_t)table->names_nr++;
	*entry = (struct metrics_name){
		.name = name,
		.len = (uint32_t)len,
		.hash = hash,
		.want = (uint16_t)want,
		.alias = (uint16_t)alias,
		.next = -1,
	};
}

void metrics_table_init(struct metrics_table *table, const struct metric_want *wants, size_t n,
			metric_keep *keep)
{
	assert(n <= METRICS_WANTS_MAX);
	*table = (struct metrics_table){ .wants = wants, .wants_nr = n, .keep = keep };
	for (size_t i = 0; i < METRICS_BUCKETS; i++)
		table->bucket[i] = -1;
	for (size_t want = 0; want < n; want++) {
		const char *name = wants[want].names;

		for (unsigned alias = 0; name; alias++) {
			const char *bar = strchr(name, '|');

			add_name(table, name, bar ? (size_t)(bar - name) : strlen(name), want,
				 alias);
			name = bar ? bar + 1 : NULL;
		}
	}
}

static int number_byte(char c)
{
	return (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.' || c == 'e' || c == 'E';
}

static int is_word(const char *text, size_t len, const char *word)
{
	return len == strlen(word) && strncasecmp(text, word, len) == 0;
}

int metrics_number(const char *text, size_t len, double *ret_number)
{
	char copy[METRICS_NUMBER_MAX + 1];
	char *end;

	if (len == 0 || len > METRICS_NUMBER_MAX)
		return -EINVAL;
	if (is_word(text, len, "NaN")) {
		*ret_number = (double)NAN;
		return 0;
	}
	if (is_word(text, len, "+Inf") || is_word(text, len, "Inf") || is_word(text, len, "-Inf")) {
		*ret_number = text[0] == '-' ? -(double)INFINITY : (double)INFINITY;
		return 0;
	}
	for (size_t i = 0; i < len; i++) {
		if (!number_byte(text[i]))
			return -EINVAL;
	}
	memcpy(copy, text, len);
	copy[len] = 0;
	double number = strtod(copy, &end);
	if (*end)
		return -EINVAL;
	*ret_number = number;
	return 0;
}

const struct metric_label *metrics_label(const struct metric_label *labels, size_t n,
					 const char *name)
{
	size_t len = strlen(name);

	for (size_t i = 0; i < n; i++) {
		if (labels[i].name_len == len && memcmp(labels[i].name, name, len) == 0)
			return &labels[i];
	}
	return NULL;
}

static void skip_blanks(struct cursor *c)
{
	while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\r'))
		c->at++;
}

static int name_byte(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '_' || c == ':';
}

static size_t take_name(struct cursor *c)
{
	const char *start = c->at;

	while (c->at < c->end && name_byte(*c->at))
		c->at++;
	return (size_t)(c->at - start);
}

/* One name="value" with its closing quote; -EINVAL for anything else. */
static int take_label(struct cursor *c, struct metric_label *ret_label)
{
	struct metric_label label = { .name = c->at };

	label.name_len = take_name(c);
	skip_blanks(c);
	if (label.name_len == 0 || c->at == c->end || *c->at++ != '=')
		return -EINVAL;
	skip_blanks(c);
	if (c->at == c->end || *c->at++ != '"')
		return -EINVAL;
	label.value = c->at;
	while (c->at < c->end && *c->at != '"')
		c->at += *c->at == '\\' && c->at + 1 < c->end ? 2 : 1;
	if (c->at >= c->end)
		return -EINVAL;
	label.value_len = (size_t)(c->at - label.value);
	c->at++;
	*ret_label = label;
	return 0;
}

/* {a="b",c="d",}: returns the number of labels, or -EINVAL. Labels past the bound are dropped. */
static int take_labels(struct cursor *c, struct metric_label *labels)
{
	int n = 0;

	skip_blanks(c);
	if (c->at == c->end || *c->at != '{')
		return 0;
	c->at++;
	for (;;) {
		struct metric_label label;

		skip_blanks(c);
		if (c->at < c->end && *c->at == '}') {
			c->at++;
			return n;
		}
		if (take_label(c, &label) < 0)
			return -EINVAL;
		if (n < METRICS_LABELS_MAX)
			labels[n++] = label;
		skip_blanks(c);
		if (c->at < c->end && *c->at == ',')
			c->at++;
		else if (c->at == c->end || *c->at != '}')
			return -EINVAL;
	}
}

static int take_number(struct cursor *c, double *ret_number)
{
	skip_blanks(c);
	const char *start = c->at;

	while (c->at < c->end && *c->at != ' ' && *c->at != '\t' && *c->at != '\r')
		c->at++;
	return metrics_number(start, (size_t)(c->at - start), ret_number);
}

static void fold_in(struct metric_value *value, enum metric_fold fold, unsigned alias,
		    double number)
{
	if (!isfinite(number) || (value->samples && alias > value->alias))
		return;
	if (value->samples == 0 || alias < value->alias) {
		*value = (struct metric_value){ .value = number, .samples = 1, .alias = alias };
		return;
	}
	value->samples++;
	switch (fold) {
	case METRIC_SUM:
		value->value += number;
		break;
	case METRIC_MEAN:
		value->value += (number - value->value) / value->samples;
		break;
	case METRIC_MAX:
		value->value = number > value->value ? number : value->value;
		break;
	case METRIC_MIN:
		value->value = number < value->value ? number : value->value;
		break;
	}
}

/* Gives one sample to every want that asked for its name; returns how many took it. */
static unsigned deliver(const struct metrics_table *table, const struct metrics_name *entry,
			struct cursor *c, struct metric_value *values, int *ret_malformed)
{
	struct metric_label labels[METRICS_LABELS_MAX];
	unsigned taken = 0;
	double number;
	int n = take_labels(c, labels);

	if (n < 0 || take_number(c, &number) < 0) {
		*ret_malformed = 1;
		return 0;
	}
	if (table->keep && !table->keep(labels, (size_t)n))
		return 0;
	const struct metrics_name *first = entry;
	for (;; entry = &table->name[entry->next]) {
		if (entry->hash == first->hash && entry->len == first->len &&
		    memcmp(entry->name, first->name, first->len) == 0) {
			const struct metric_want *want = &table->wants[entry->want];
			double value = number;
			int usable = 1;

			if (want->label) {
				const struct metric_label *label =
					metrics_label(labels, (size_t)n, want->label);
				usable = label && metrics_number(label->value, label->value_len,
								 &value) == 0;
			}
			if (usable) {
				fold_in(&values[entry->want], want->fold, entry->alias, value);
				taken++;
			}
		}
		if (entry->next < 0)
			return taken;
	}
}

static const struct metrics_name *find_name(const struct metrics_table *table, const char *name,
					    size_t len)
{
	uint32_t hash = name_hash(name, len);

	for (int16_t i = table->bucket[hash % METRICS_BUCKETS]; i >= 0; i = table->name[i].next) {
		const struct metrics_name *entry = &table->name[i];

		if (entry->hash == hash && entry->len == len && memcmp(entry->name, name, len) == 0)
			return entry;
	}
	return NULL;
}

static void read_line(const struct metrics_table *table, const char *line, const char *end,
		      struct metric_value *values, struct metrics_report *report)
{
	struct cursor c = { line, end };

	skip_blanks(&c);
	if (c.at == c.end || *c.at == '#')
		return;
	const char *name = c.at;
	size_t len = take_name(&c);
	if (len == 0 || c.at == c.end || (*c.at != '{' && *c.at != ' ' && *c.at != '\t')) {
		report->malformed++;
		return;
	}
	const struct metrics_name *entry = find_name(table, name, len);
	int malformed = 0;
	if (entry)
		report->wanted += deliver(table, entry, &c, values, &malformed) > 0;
	if (malformed)
		report->malformed++;
	else
		report->samples++;
}

int metrics_read(const struct metrics_table *table, const char *page, size_t len,
		 struct metric_value *ret_values, struct metrics_report *ret_report)
{
	struct metric_value values[METRICS_WANTS_MAX] = { 0 };
	struct metrics_report report = { 0 };

	if (len > METRICS_PAGE_MAX)
		return -EFBIG;
	for (const char *line = page, *end = page + len; line < end;) {
		const char *newline = memchr(line, '\n', (size_t)(end - line));
		const char *stop = newline ? newline : end;

		read_line(table, line, stop, values, &report);
		line = stop + 1;
	}
	if (report.samples == 0)
		return -ENOMSG;
	memcpy(ret_values, values, table->wants_nr * sizeof(values[0]));
	*ret_report = report;
	return 0;
}

const char *metrics_found(const struct metrics_table *table, const struct metric_value *values,
			  size_t want, size_t *ret_len)
{
	if (want >= table->wants_nr || values[want].samples == 0)
		return NULL;
	for (size_t i = 0; i < table->names_nr; i++) {
		const struct metrics_name *entry = &table->name[i];

		if (entry->want == want && entry->alias == values[want].alias) {
			*ret_len = entry->len;
			return entry->name;
		}
	}
	return NULL;
}
