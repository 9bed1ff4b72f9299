/*
 * Logging: one JSON object a line to stderr, never blocking. Lines go through a bounded ring; when
 * stderr does not take them they are dropped and counted. Only process-level code logs, never a
 * library.
 */
#ifndef TURNWARD_SHM_BASE_LOG_H
#define TURNWARD_SHM_BASE_LOG_H

#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG, LOG_TRACE };

enum { LOG_LINE_MAX = 2048, LOG_TEXT_MAX = 256 /* longest foreign text, cut beyond */ };

/* A line under construction; lives on the stack, no allocation. */
struct log_line {
	size_t len;
	int off; /* below the level in force: appending does nothing */
	char text[LOG_LINE_MAX];
};

enum log_format { LOG_AS_JSON, LOG_AS_TEXT /* for people: key=value */ };

/*
 * From here on lines go to descriptor 2 without ever blocking on it and without changing the flags
 * of an open file that a shell may share. Ignores SIGPIPE: a reader that left costs lines, no
 * process. Call again after fork() in a child that logs.
 */
void log_open(const char *program, enum log_level level);
void log_format_set(enum log_format format);
void log_level_set(enum log_level level);
enum log_level log_level_get(void);
int log_level_parse(const char *name); /* enum log_level or -EINVAL */

/* {"ts":..,"lvl":..,"ev":EVENT ... }; `event` is a constant word. Text is escaped and cut. */
void log_begin(struct log_line *line, enum log_level level, const char *event);
void log_str(struct log_line *line, const char *key, const char *value);
void log_mem(struct log_line *line, const char *key, const char *value, size_t len);
void log_u64(struct log_line *line, const char *key, uint64_t value);
void log_i64(struct log_line *line, const char *key, int64_t value);
void log_f64(struct log_line *line, const char *key, double value); /* NaN and Inf become null */
void log_bool(struct log_line *line, const char *key, int value);
void log_end(struct log_line *line); /* into the ring and, where stderr takes it, out */

/* One message for people: {"ev":"notice","msg":...}, printf-like. */
void log_say(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Tries to write what the ring still holds; call it once per loop turn. */
void log_flush(void);
void log_drain(unsigned timeout_ms); /* before exit */
uint64_t log_dropped(void);

#endif
