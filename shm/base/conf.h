/*
 * Configuration from one table of keys: INI file, --set KEY=VALUE and dedicated options all end
 * here.
 *
 * A key's default is text in the table; values carry units ("250ms", "64M"); an unknown or repeated
 * key, a bad value or one out of range is an error with file:line and what would be right.
 */
#ifndef TURNWARD_SHM_BASE_CONF_H
#define TURNWARD_SHM_BASE_CONF_H

#include <stddef.h>
#include <stdint.h>

enum conf_type {
	CONF_TEXT,   /* char[size] in the struct */
	CONF_UINT,   /* uint64_t */
	CONF_REAL,   /* double */
	CONF_BOOL,   /* uint64_t 0 or 1: yes/no, on/off, true/false */
	CONF_TIME,   /* uint64_t nanoseconds; unit required: ns us ms s m h */
	CONF_BYTES,  /* uint64_t bytes: plain, K, M, G (1024) */
	CONF_CHOICE, /* uint64_t index into `choices` */
};

enum {
	CONF_RELOAD = 1, /* takes effect on reload; others need a restart */
	CONF_NAMED = 2,  /* in a section with a name; offset is into that entry's own struct */
	CONF_SECRET = 4, /* starred wherever values are shown */
	CONF_FASTER = 8, /* a time of the engines' world: divided by time_scale */
	CONF_PER_S = 16, /* a rate of the engines' world: multiplied by time_scale */
};

struct conf_key {
	const char *section; /* "router", "policy", "engine" (in [engine NAME]) */
	const char *name;
	enum conf_type type;
	size_t offset, size;        /* into the settings struct */
	const char *standard;       /* the default, as text */
	double min, max;            /* inclusive, in the value's own unit (seconds for CONF_TIME) */
	const char *const *choices; /* CONF_CHOICE: NULL-terminated */
	unsigned flags;
	const char *help; /* one sentence, no full stop */
};

enum { CONF_ERROR_MAX = 400, CONF_KEYS_MAX = 256 };

/* Where each value came from, for `check --dump`. */
enum conf_origin { CONF_STANDARD, CONF_FILE, CONF_OPTION };

struct conf {
	const struct conf_key *keys; /* ended by .name == NULL */
	enum conf_origin origin[CONF_KEYS_MAX];
	int line[CONF_KEYS_MAX];
	char error[CONF_ERROR_MAX]; /* file:line:column: what, and what would be right */
};

/* Fills `settings` with the defaults, but for CONF_NAMED keys (conf_entry_init). Aborts on a table
 * whose default does not parse: a bug. */
void conf_init(struct conf *conf, const struct conf_key *keys, void *settings);

/* The defaults of one entry of a named section. */
void conf_entry_init(const struct conf_key *keys, const char *section, void *entry);

/*
 * Sections with a name ("[engine gpu0]") go to on_entry: once with key NULL when the section
 * begins, then per key, which is in the table as CONF_NAMED. Returns 0, or -EINVAL with *why set.
 */
typedef int conf_named_entry(void *ctx, const char *section, const char *title,
			     const struct conf_key *key, const char *value, const char **why);

/* 0; -EINVAL with conf->error; -errno when the file cannot be read (error says so). */
int conf_file(struct conf *conf, void *settings, const char *path, conf_named_entry *on_entry,
	      void *ctx);

/* "KEY=VALUE" or "SECTION.KEY=VALUE" from the command line. */
int conf_set(struct conf *conf, void *settings, const char *assignment);

/* One value by key, as an option of its own does ("--policy NAME"); counts as CONF_OPTION. */
int conf_set_key(struct conf *conf, void *settings, const char *name, const char *value);

/* Parses one value by type and range; on failure *why receives "must be 1..10 (5 is the default)".
 */
int conf_value(const struct conf_key *key, void *settings, const char *text, char *why,
	       size_t why_size);

/* Writes the value back as the text that would set it. */
void conf_text(const struct conf_key *key, const void *settings, char *ret_text, size_t size);

/* The index of a key, or -ENOENT; `section` NULL = any that is not named. */
int conf_find(const struct conf_key *keys, const char *section, const char *name);

/* The name in the table nearest to `name` (edit distance <= 3), or NULL: "did you mean". */
const char *conf_nearest(const struct conf_key *keys, const char *name);

/*
 * Divides the engines' times and multiplies their rates by `scale` (CONF_FASTER, CONF_PER_S), in
 * the settings (section NULL) or in one entry of a named section.
 */
void conf_scale(const struct conf_key *keys, const char *section, void *settings, double scale);

/* The commented example file, byte for byte what router/etc/turnward.conf holds. */
int conf_write_example(const struct conf_key *keys, int fd);

#endif
