/*
 * PURE: reads a Prometheus text page in one pass and keeps only the metrics that one table asks
 * for.
 *
 * The order of lines and labels means nothing, histograms count through their _sum and _count
 * names, unknown names are skipped, a broken line is counted and skipped. NaN and infinite samples
 * count as not reported. Nothing is allocated and the page is not changed.
 */
#ifndef TURNWARD_AGENT_METRICS_H
#define TURNWARD_AGENT_METRICS_H

#include <stddef.h>
#include <stdint.h>

enum {
	METRICS_PAGE_MAX = 1024 * 1024, /* real pages have 3 to 100 KB */
	METRICS_LABELS_MAX = 96,        /* of one sample; vLLM's cache_config_info has 39 */
	METRICS_WANTS_MAX = 48,
	METRICS_NAMES_MAX = 96, /* names and aliases of one table */
	METRICS_BUCKETS = 128,
	METRICS_NUMBER_MAX = 63, /* longest spelling of a number */
};

/* How the samples of one name (several label sets) become one number. */
enum metric_fold { METRIC_SUM, METRIC_MEAN, METRIC_MAX, METRIC_MIN };

struct metric_want {
	const char *names; /* aliases separated by '|': the first that the page has wins */
	enum metric_fold fold;
	const char *label; /* not NULL: the number is this label's value, not the sample's (info
			      metrics) */
};

struct metric_value {
	double value;
	unsigned samples; /* 0 = not reported */
	unsigned alias;   /* which of the names was found */
};

/* A label as it stands in the page: escapes are not resolved, none of the labels we compare has
 * any. */
struct metric_label {
	const char *name, *value;
	size_t name_len, value_len;
};

/* Returns 0 for a sample that must not count (a part beside its total, another rank's copy). */
typedef int metric_keep(const struct metric_label *labels, size_t n);

struct metrics_name {
	const char *name;
	uint32_t len, hash;
	uint16_t want, alias;
	int16_t next; /* in the same bucket, -1 = last */
};

struct metrics_table {
	const struct metric_want *wants;
	size_t wants_nr, names_nr;
	metric_keep *keep; /* NULL = every sample counts */
	int16_t bucket[METRICS_BUCKETS];
	struct metrics_name name[METRICS_NAMES_MAX];
};

struct metrics_report {
	unsigned samples;   /* lines that are samples, wanted or not */
	unsigned wanted;    /* samples that went into a value */
	unsigned malformed; /* lines that are neither sample nor comment */
};

/* `wants` must outlive the table. Asserts on a table beyond the bounds above: a bug, not input. */
void metrics_table_init(struct metrics_table *table, const struct metric_want *wants, size_t n,
			metric_keep *keep);

/*
 * Fills ret_values[wants_nr]. -EFBIG for a page over METRICS_PAGE_MAX; -ENOMSG for one without any
 * sample (an error page, HTML): both leave the outputs untouched.
 */
int metrics_read(const struct metrics_table *table, const char *page, size_t len,
		 struct metric_value *ret_values, struct metrics_report *ret_report);

/* The alias that was found, as text of `*ret_len` bytes; NULL when the value was not reported. */
const char *metrics_found(const struct metrics_table *table, const struct metric_value *values,
			  size_t want, size_t *ret_len);

/* The label called `name`, or NULL. */
const struct metric_label *metrics_label(const struct metric_label *labels, size_t n,
					 const char *name);

/* A whole number text (no sign tricks, no hex): 0, or -EINVAL. Accepts NaN and infinities. */
int metrics_number(const char *text, size_t len, double *ret_number);

#endif
