/* Reads, checks and writes settings by a table of keys, so that no key is known in two places. */
#include "shm/base/conf.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <ini.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "shm/base/near.h"
#include "shm/base/scoped.h"

enum {
	LINE_MAX_INI = 196, /* libinih as Debian builds it reads no longer lines */
	WHY_MAX = 160,
	TEXT_MAX = 256,
};

struct unit {
	const char *name;
	double factor; /* to the stored unit */
};

static const struct unit time_units[] = {
	{ "h", 3600e9 }, { "m", 60e9 }, { "s", 1e9 }, { "ms", 1e6 },
	{ "us", 1e3 },   { "ns", 1 },   { 0 }
};
static const struct unit byte_units[] = {
	{ "G", 1 << 30 }, { "M", 1 << 20 }, { "K", 1 << 10 }, { "", 1 }, { 0 }
};

static const char *const bool_words[] = { "no", "yes", "off", "on", "false", "true", NULL };

static uint64_t *word_at(const struct conf_key *key, void *settings)
{
	return (uint64_t *)(void *)((char *)settings + key->offset);
}

static double *real_at(const struct conf_key *key, void *settings)
{
	return (double *)(void *)((char *)settings + key->offset);
}

/* ---- values ---- */

/* A plain decimal number; *ret_end is what follows it. No hex, no inf, no nan. */
static int number_of(const char *text, double *ret_value, const char **ret_end)
{
	const char *digits = text + (*text == '-');
	size_t n = strspn(digits, "0123456789.");
	char *end;

	if (!isdigit((unsigned char)digits[0]) && digits[0] != '.')
		return -EINVAL;
	double value = strtod(text, &end);

	/* "0x10" reads as 0 with a tail of "x10", but strtod() takes it whole. */
	if (end < digits + n || !isfinite(value) || (digits[0] == '0' && (digits[1] | 32) == 'x'))
		return -EINVAL;
	*ret_value = value;
	*ret_end = end;
	return 0;
}

static const struct unit *unit_named(const struct unit *units, const char *name)
{
	for (; units->name; units++)
		if (!strcmp(units->name, name))
			return units;
	return NULL;
}

/* A whole number of stored units, written with the largest unit that divides it. */
static void unit_text(const struct unit *units, uint64_t value, char *ret_text, size_t size)
{
	for (; units[1].name; units++)
		if (value && value % (uint64_t)units->factor == 0)
			break;
	snprintf(ret_text, size, "%lu%s", value / (uint64_t)units->factor,
		 value ? units->name : "");
}

static void real_text(double value, char *ret_text, size_t size)
{
	for (int digits = 6; digits <= 17; digits++) {
		snprintf(ret_text, size, "%.*g", digits, value);
		if (strtod(ret_text, NULL) == value)
			return;
	}
}

/* A bound of the range in the form a user would write. */
static void bound_text(const struct conf_key *key, double bound, char *ret_text, size_t size)
{
	if (key->type == CONF_TIME)
		unit_text(time_units, (uint64_t)llrint(bound * 1e9), ret_text, size);
	else if (key->type == CONF_BYTES)
		unit_text(byte_units, (uint64_t)bound, ret_text, size);
	else if (bound == floor(bound) && fabs(bound) < 1e8)
		snprintf(ret_text, size, "%.0f", bound);
	else
		real_text(bound, ret_text, size);
}

static void range_text(const struct conf_key *key, char *ret_text, size_t size)
{
	char low[40], high[40];

	bound_text(key, key->min, low, sizeof(low));
	bound_text(key, key->max, high, sizeof(high));
	snprintf(ret_text, size, "%s..%s", low, high);
}

/* What would be right, for messages and for the example's comments. */
static void expectation(const struct conf_key *key, char *ret_text, size_t size)
{
	char range[96];
	size_t len = 0;

	switch (key->type) {
	case CONF_TEXT:
		snprintf(ret_text, size, "up to %zu characters", key->size - 1);
		return;
	case CONF_BOOL:
		snprintf(ret_text, size, "yes or no");
		return;
	case CONF_CHOICE:
		for (int i = 0; key->choices[i] && len < size; i++)
			len += (size_t)snprintf(ret_text + len, size - len, "%s%s", i ? ", " : "",
						key->choices[i]);
		return;
	default:
		range_text(key, range, sizeof(range));
		snprintf(ret_text, size, "%s", range);
	}
}

static int refuse(const struct conf_key *key, char *why, size_t size, const char *lead)
{
	char right[WHY_MAX];

	expectation(key, right, sizeof(right));
	snprintf(why, size, "%s %s%s (%s is the default)", lead,
		 key->type == CONF_CHOICE ? "one of " : "", right,
		 key->standard[0] ? key->standard : "empty");
	return -EINVAL;
}

static int set_text(const struct conf_key *key, void *settings, const char *text, char *why,
		    size_t size)
{
	size_t len = strlen(text);

	if (len >= key->size)
		return refuse(key, why, size, "must be");
	memset((char *)settings + key->offset, 0, key->size);
	memcpy((char *)settings + key->offset, text, len);
	return 0;
}

static int set_word(const struct conf_key *key, void *settings, const char *text, char *why,
		    size_t size)
{
	const char *const *words = key->type == CONF_BOOL ? bool_words : key->choices;

	for (int i = 0; words[i]; i++)
		if (!strcasecmp(words[i], text)) {
			*word_at(key, settings) = (uint64_t)(key->type == CONF_BOOL ? i & 1 : i);
			return 0;
		}
	return refuse(key, why, size, "must be");
}

/* Finds the factor for what follows the number; units are required for times but for a bare 0. */
static int unit_factor(const struct conf_key *key, double value, const char *name,
		       double *ret_factor)
{
	const struct unit *unit = NULL;

	if (key->type == CONF_TIME)
		unit = unit_named(time_units, value == 0 && !*name ? "ns" : name);
	else if (key->type == CONF_BYTES)
		unit = unit_named(byte_units, name);
	else
		unit = unit_named(byte_units, *name ? "?" : "");
	if (!unit)
		return -EINVAL;
	*ret_factor = unit->factor;
	return 0;
}

static int set_number(const struct conf_key *key, void *settings, const char *text, char *why,
		      size_t size)
{
	const char *end;
	double value, factor;

	if (number_of(text, &value, &end))
		return refuse(key, why, size, "must be a number,");
	while (*end == ' ')
		end++;
	if (unit_factor(key, value, end, &factor)) {
		if (key->type == CONF_TIME)
			return refuse(key, why, size, "needs a unit (ns us ms s m h) and must be");
		if (key->type == CONF_BYTES)
			return refuse(key, why, size, "takes K, M, G or plain bytes and must be");
		return refuse(key, why, size, "must be a plain number,");
	}
	double stored = value * factor;
	double scale = key->type == CONF_TIME ? 1e9 : 1;

	/* Half a nanosecond's worth of slack: 1e9 * 0.1 is not exact. */
	if (stored < key->min * scale - 1e-3 || stored > key->max * scale * (1 + 1e-12))
		return refuse(key, why, size, "must be");
	if (key->type == CONF_REAL) {
		*real_at(key, settings) = value;
		return 0;
	}
	if (key->type != CONF_TIME && stored != floor(stored))
		return refuse(key, why, size, "must be a whole number,");
	*word_at(key, settings) = stored < 0 ? 0 : (uint64_t)nearbyint(stored);
	return 0;
}

int conf_value(const struct conf_key *key, void *settings, const char *text, char *why,
	       size_t why_size)
{
	switch (key->type) {
	case CONF_TEXT:
		return set_text(key, settings, text, why, why_size);
	case CONF_BOOL:
	case CONF_CHOICE:
		return set_word(key, settings, text, why, why_size);
	case CONF_UINT:
	case CONF_REAL:
	case CONF_TIME:
	case CONF_BYTES:
		return set_number(key, settings, text, why, why_size);
	}
	assert(!"a type missing above");
	return -EINVAL;
}

void conf_text(const struct conf_key *key, const void *settings, char *ret_text, size_t size)
{
	const char *at = (const char *)settings + key->offset;
	uint64_t word = 0;
	double real = 0;

	if (key->type == CONF_TEXT) {
		snprintf(ret_text, size, "%s", at);
		return;
	}
	memcpy(&word, at, sizeof(word));
	memcpy(&real, at, sizeof(real));
	switch (key->type) {
	case CONF_REAL:
		real_text(real, ret_text, size);
		return;
	case CONF_BOOL:
		snprintf(ret_text, size, "%s", bool_words[word & 1]);
		return;
	case CONF_TIME:
		unit_text(time_units, word, ret_text, size);
		return;
	case CONF_BYTES:
		unit_text(byte_units, word, ret_text, size);
		return;
	case CONF_CHOICE:
		snprintf(ret_text, size, "%s", key->choices[word]);
		return;
	default:
		snprintf(ret_text, size, "%lu", word);
	}
}

/* ---- the table ---- */

static void set_standard(const struct conf_key *key, void *settings)
{
	char why[WHY_MAX * 2];

	if (!conf_value(key, settings, key->standard, why, sizeof(why)))
		return;
	fprintf(stderr, "default of %s = %s: %s\n", key->name, key->standard, why);
	abort();
}

void conf_init(struct conf *conf, const struct conf_key *keys, void *settings)
{
	*conf = (struct conf){ .keys = keys };
	for (int i = 0; keys[i].name; i++) {
		assert(i < CONF_KEYS_MAX);
		if (!(keys[i].flags & CONF_NAMED))
			set_standard(&keys[i], settings);
	}
}

void conf_entry_init(const struct conf_key *keys, const char *section, void *entry)
{
	for (; keys->name; keys++)
		if (keys->flags & CONF_NAMED && !strcmp(keys->section, section))
			set_standard(keys, entry);
}

int conf_find(const struct conf_key *keys, const char *section, const char *name)
{
	for (int i = 0; keys[i].name; i++)
		if (!strcmp(keys[i].name, name) &&
		    (section ? !strcmp(keys[i].section, section) : !(keys[i].flags & CONF_NAMED)))
			return i;
	return -ENOENT;
}

static const char *nearest_in(const struct conf_key *keys, const char *section, const char *name)
{
	const char *best = NULL;
	int distance = NEAR_DISTANCE_MAX + 1;

	for (; keys->name; keys++)
		if (section ? !strcmp(keys->section, section) : !(keys->flags & CONF_NAMED))
			near_offer(name, keys->name, &best, &distance);
	return best;
}

const char *conf_nearest(const struct conf_key *keys, const char *name)
{
	return nearest_in(keys, NULL, name);
}

void conf_scale(const struct conf_key *keys, const char *section, void *settings, double scale)
{
	assert(scale > 0);
	for (; keys->name; keys++) {
		int named = (keys->flags & CONF_NAMED) != 0;
		double by = keys->flags & CONF_FASTER  ? 1 / scale
			    : keys->flags & CONF_PER_S ? scale
						       : 1;

		if (by == 1 || named != (section != NULL) ||
		    (section && strcmp(section, keys->section)))
			continue;
		if (keys->type == CONF_REAL)
			*real_at(keys, settings) *= by;
		else
			*word_at(keys, settings) =
				(uint64_t)llrint((double)*word_at(keys, settings) * by);
	}
}

/* ---- the file ---- */

struct reader {
	struct conf *conf;
	void *settings;
	const char *path;
	FILE *file;
	conf_named_entry *on_entry;
	void *ctx;
	int line;                      /* of the line handed to libinih last */
	char raw[LINE_MAX_INI + 4];    /* that line, to find the column */
	char section[64], title[64];   /* as the last header said */
	int entry_line[CONF_KEYS_MAX]; /* of named keys, since that header */
	int failed;
};

/* Keeps the first error: file:line:column, where `at` lies in the raw line. */
static int complain(struct reader *r, const char *at, const char *format, ...)
{
	char *error = r->conf->error;
	va_list args;

	if (r->failed)
		return 0;
	r->failed = 1;

	const char *found = at ? strstr(r->raw, at) : NULL;
	int n = snprintf(error, CONF_ERROR_MAX, "%s:%d:%d: ", r->path, r->line,
			 found ? (int)(found - r->raw) + 1 : 1);

	va_start(args, format);
	if (n < CONF_ERROR_MAX)
		vsnprintf(error + n, (size_t)(CONF_ERROR_MAX - n), format, args);
	va_end(args);
	return 0; /* what libinih's handler returns on failure */
}

static int section_known(const struct conf_key *keys, const char *section, int named)
{
	for (; keys->name; keys++)
		if (!strcmp(keys->section, section) && !(keys->flags & CONF_NAMED) == !named)
			return 1;
	return 0;
}

static void complain_section(struct reader *r)
{
	const struct conf_key *keys = r->conf->keys;
	const char *best = NULL;
	int distance = NEAR_DISTANCE_MAX + 1;

	if (section_known(keys, r->section, !r->title[0])) {
		if (r->title[0])
			complain(r, "[", "section [%s] takes no name", r->section);
		else
			complain(r, "[", "section [%s] needs a name: [%s NAME]", r->section,
				 r->section);
		return;
	}
	for (; keys->name; keys++)
		near_offer(r->section, keys->section, &best, &distance);
	complain(r, "[", "unknown section [%s]%s%s%s", r->section, best ? "; did you mean [" : "",
		 best ? best : "", best ? "]?" : "");
}

/* A header line "[section]" or "[section title]": checked here, since libinih tells of keys only.
 */
static void begin_section(struct reader *r)
{
	const char *why = NULL;
	int n = 0;

	r->section[0] = r->title[0] = '\0';
	memset(r->entry_line, 0, sizeof(r->entry_line));
	sscanf(r->raw, " [ %49[^] \t] %49[^] \t] ]%n", r->section, r->title, &n);
	if (!n) {
		r->title[0] = '\0';
		sscanf(r->raw, " [ %49[^] \t] ]%n", r->section, &n);
	}
	if (!n || r->raw[n]) {
		complain(r, "[", "a section is written [name] or [name title]");
		return;
	}
	if (!section_known(r->conf->keys, r->section, r->title[0] != '\0')) {
		complain_section(r);
		return;
	}
	if (r->title[0] && r->on_entry &&
	    r->on_entry(r->ctx, r->section, r->title, NULL, NULL, &why))
		complain(r, r->title, "[%s %s]: %s", r->section, r->title, why ? why : "refused");
}

/* Cuts a comment that begins with '#' or ';' at the line's start or after a space. */
static void cut_comment(char *line)
{
	for (char *c = line; *c; c++)
		if ((*c == '#' || *c == ';') && (c == line || isspace((unsigned char)c[-1]))) {
			*c = '\0';
			break;
		}
	for (size_t n = strlen(line); n && isspace((unsigned char)line[n - 1]); n--)
		line[n - 1] = '\0';
}

/* One line into `raw` without its end and comment; 0 at the end of the file. */
static int take_line(struct reader *r)
{
	size_t len = 0;
	int c, commented = 0, long_line = 0, zero = 0;

	while ((c = getc(r->file)) != EOF && c != '\n') {
		zero |= c == '\0';
		commented |= c == '#' && (!len || isspace((unsigned char)r->raw[len - 1]));
		if (len < LINE_MAX_INI)
			r->raw[len++] = (char)c;
		else
			long_line = 1;
	}
	if (c == EOF && !len)
		return 0;
	r->raw[len] = '\0';
	r->line++;
	cut_comment(r->raw);
	if (zero)
		complain(r, NULL, "a zero byte: this is no text file");
	else if (long_line && !commented)
		complain(r, NULL, "line longer than %d characters", LINE_MAX_INI);
	return 1;
}

/* libinih's reader: without leading spaces, which it would take for a continued value. */
static char *read_line(char *str, int num, void *stream)
{
	struct reader *r = stream;

	if (r->failed || !take_line(r))
		return NULL;

	const char *text = r->raw;

	if (r->line == 1 && !strncmp(text, "\xEF\xBB\xBF", 3))
		text += 3;
	text += strspn(text, " \t\r\f\v");
	if (*text == '[')
		begin_section(r);
	if (r->failed)
		return NULL;
	snprintf(str, (size_t)num, "%s\n", text);
	return str;
}

static int unknown_key(struct reader *r, const char *name)
{
	const struct conf_key *keys = r->conf->keys;
	const char *near = nearest_in(keys, r->section, name);
	int other = conf_find(keys, NULL, name);

	if (other >= 0)
		return complain(r, name, "key %s belongs into section [%s]", name,
				keys[other].section);
	if (!near)
		near = conf_nearest(keys, name);
	return complain(r, name, "unknown key %s%s%s%s", name, near ? "; did you mean " : "",
			near ? near : "", near ? "?" : "");
}

/* Secrets are in no message. */
static const char *shown(const struct conf_key *key, const char *value)
{
	return key->flags & CONF_SECRET ? "***" : value;
}

/* Where the value stands in the raw line, for the column. */
static const char *value_in(const struct reader *r, const char *value)
{
	const char *eq = strpbrk(r->raw, "=:");

	return eq && *value ? strstr(eq + 1, value) : NULL;
}

static int on_key(void *user, const char *section, const char *name, const char *value)
{
	struct reader *r = user;
	struct conf *conf = r->conf;
	char why[WHY_MAX * 2] = "";
	const char *entry_why = NULL;

	if (r->failed)
		return 0;
	if (!r->section[0])
		return complain(r, name, "key %s stands before any section such as [%s]", name,
				conf->keys[0].section);

	int i = conf_find(conf->keys, r->section, name);

	if (i < 0)
		return unknown_key(r, name);

	int named = conf->keys[i].flags & CONF_NAMED;
	int *line = named ? &r->entry_line[i] : &conf->line[i];

	if (*line)
		return complain(r, name, "key %s was set in line %d already", name, *line);
	*line = r->line;
	if (!named) {
		conf->origin[i] = CONF_FILE;
		if (conf_value(&conf->keys[i], r->settings, value, why, sizeof(why)))
			return complain(r, value_in(r, value), "%s = %s: %s", name,
					shown(&conf->keys[i], value), why);
		return 1;
	}
	if (!r->on_entry ||
	    !r->on_entry(r->ctx, r->section, r->title, &conf->keys[i], value, &entry_why))
		return 1;
	return complain(r, value_in(r, value), "%s = %s: %s", name, shown(&conf->keys[i], value),
			entry_why ? entry_why : "refused");
}

int conf_file(struct conf *conf, void *settings, const char *path, conf_named_entry *on_entry,
	      void *ctx)
{
	scoped(file_drop) FILE *file = fopen(path, "re");
	struct reader r = { .conf = conf,
			    .settings = settings,
			    .path = path,
			    .file = file,
			    .on_entry = on_entry,
			    .ctx = ctx };
	int err = errno;

	conf->error[0] = '\0';
	memset(conf->line, 0, sizeof(conf->line));
	if (!file) {
		snprintf(conf->error, sizeof(conf->error), "cannot read %s: %s", path,
			 strerror(err));
		return -err;
	}
	int line = ini_parse_stream(read_line, &r, on_key, &r);

	if (ferror(file)) {
		snprintf(conf->error, sizeof(conf->error), "cannot read %s: it is no regular file?",
			 path);
		return -EIO;
	}
	if (line > 0 && !r.failed) {
		r.line = line;
		complain(&r, NULL, "neither [section], KEY = VALUE nor a comment");
	}
	return r.failed ? -EINVAL : 0;
}

/* ---- the command line ---- */

static int set_one(struct conf *conf, void *settings, const char *section, const char *name,
		   const char *value)
{
	char why[WHY_MAX * 2];
	int i = conf_find(conf->keys, section, name);

	if (i < 0 || conf->keys[i].flags & CONF_NAMED) {
		const char *near = nearest_in(conf->keys, section, name);

		snprintf(conf->error, sizeof(conf->error), "unknown key %s%s%s%s", name,
			 near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
		return -EINVAL;
	}
	if (conf_value(&conf->keys[i], settings, value, why, sizeof(why))) {
		snprintf(conf->error, sizeof(conf->error), "%s = %s: %s", name,
			 shown(&conf->keys[i], value), why);
		return -EINVAL;
	}
	conf->origin[i] = CONF_OPTION;
	return 0;
}

int conf_set_key(struct conf *conf, void *settings, const char *name, const char *value)
{
	return set_one(conf, settings, NULL, name, value);
}

int conf_set(struct conf *conf, void *settings, const char *assignment)
{
	char name[TEXT_MAX];
	const char *eq = strchr(assignment, '=');
	size_t len = eq ? (size_t)(eq - assignment) : 0;

	if (!len || len >= sizeof(name)) {
		snprintf(conf->error, sizeof(conf->error), "%.100s: write KEY=VALUE", assignment);
		return -EINVAL;
	}
	memcpy(name, assignment, len);
	name[len] = '\0';

	char *dot = strchr(name, '.');

	if (!dot)
		return set_one(conf, settings, NULL, name, eq + 1);
	*dot = '\0';
	return set_one(conf, settings, name, dot + 1, eq + 1);
}

/* ---- the example ---- */

static void write_key(const struct conf_key *key, FILE *out)
{
	char right[TEXT_MAX];

	expectation(key, right, sizeof(right));
	fprintf(out, "# %s", key->help);
	if (key->type != CONF_TEXT)
		fprintf(out, " (%s%s)", right, key->flags & CONF_RELOAD ? "; reload" : "");
	else if (key->flags & CONF_RELOAD)
		fprintf(out, " (reload)");
	fprintf(out, "\n#%s =%s%s\n", key->name, *key->standard ? " " : "", key->standard);
}

int conf_write_example(const struct conf_key *keys, int fd)
{
	int copy = dup(fd);
	FILE *out = copy < 0 ? NULL : fdopen(copy, "w");
	const char *section = "";

	if (!out) {
		int err = errno;

		fd_drop(&copy);
		return -err;
	}
	fputs("# Every key with its default; a line counts once its leading # is gone. Times need "
	      "a\n"
	      "# unit (ns us ms s m h), sizes may have one (K M G). A change needs a restart, of\n"
	      "# \"reload\" keys, too, as yet. Options and --set KEY=VALUE are above this file.\n",
	      out);
	for (; keys->name; keys++) {
		if (strcmp(section, keys->section))
			fprintf(out, keys->flags & CONF_NAMED ? "\n#[%s NAME]\n" : "\n[%s]\n",
				keys->section);
		else
			fputc('\n', out);
		section = keys->section;
		write_key(keys, out);
	}
	return fclose(out) ? -errno : 0;
}
