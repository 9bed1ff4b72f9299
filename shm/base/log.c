/* Turns facts into lines and gets them to descriptor 2 without ever waiting for it. */
#include "shm/base/log.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shm/base/clock.h"

enum {
	RING_BYTES = 256 * 1024, /* some thousand lines: a burst outlives a busy reader */
	RING_MASK = RING_BYTES - 1,
	CHUNK_BYTES = PIPE_BUF, /* a pipe takes this much whole or not at all: lines stay whole */
	TAIL_BYTES = 2,         /* kept free in a line for its end */
	SAY_MAX = 1024,         /* a message of our own */
};

static_assert((RING_BYTES & RING_MASK) == 0, "positions are masked");
static_assert((int)LOG_LINE_MAX <= (int)CHUNK_BYTES, "a line is one write");

/* How bytes leave: chosen once, by what descriptor 2 is. */
enum way {
	WAY_OWN,    /* an open file of ours (reopened, non-blocking): a pipe or a terminal */
	WAY_SOCKET, /* send(MSG_DONTWAIT), as journald's stream wants */
	WAY_POLLED, /* somebody's blocking file that cannot be reopened: ask first, write little */
	WAY_FILE,   /* never blocks */
};

static struct {
	int fd;
	enum way way;
	enum log_level level;
	enum log_format format;
	char program[32];
	uint64_t head, tail; /* bytes ever written to and read from the ring */
	uint64_t dropped;
	uint64_t dropped_said;
	time_t second; /* the one that `stamp` shows */
	char stamp[24];
	char ring[RING_BYTES];
} log_state = { .fd = STDERR_FILENO, .way = WAY_POLLED, .level = LOG_INFO };

static const char *const level_names[] = { "error", "warn", "info", "debug", "trace" };

/* ---- the way out ---- */

static void choose_way(void)
{
	struct stat st;

	log_state.fd = STDERR_FILENO;
	log_state.way = WAY_POLLED;
	if (fstat(STDERR_FILENO, &st))
		return;
	if (S_ISREG(st.st_mode) || S_ISBLK(st.st_mode)) {
		log_state.way = WAY_FILE;
		return;
	}
	if (S_ISSOCK(st.st_mode)) {
		log_state.way = WAY_SOCKET;
		return;
	}
	/* A new open file of the same pipe or terminal: its O_NONBLOCK is ours alone. */
	int fd = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);

	if (fd >= 0) {
		log_state.fd = fd;
		log_state.way = WAY_OWN;
	}
}

void log_open(const char *program, enum log_level level)
{
	if (log_state.way == WAY_OWN && log_state.fd > STDERR_FILENO)
		close(log_state.fd);
	log_state.level = level;
	snprintf(log_state.program, sizeof(log_state.program), "%s", program);
	log_state.tail = log_state.head; /* after fork() the lines are the parent's to write */
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* a log at its file size limit ends nothing */
	choose_way();
}

/* Bytes taken, 0 when it would block, -errno when the way is gone. */
static ssize_t push_out(const char *text, size_t len)
{
	struct pollfd ready = { .fd = log_state.fd, .events = POLLOUT };
	ssize_t n;

	if (log_state.way == WAY_POLLED && poll(&ready, 1, 0) != 1)
		return 0;
	if (log_state.way == WAY_SOCKET)
		n = send(log_state.fd, text, len, MSG_DONTWAIT | MSG_NOSIGNAL);
	else
		n = write(log_state.fd, text, len);
	if (n >= 0)
		return n;
	return errno == EAGAIN || errno == EINTR || errno == ENOBUFS ? 0 : -errno;
}

/* Copies whole lines, at most CHUNK_BYTES, from the ring's tail. */
static size_t next_chunk(char *ret_chunk)
{
	size_t have = log_state.head - log_state.tail;
	size_t len = have < CHUNK_BYTES ? have : CHUNK_BYTES;
	size_t at = log_state.tail & RING_MASK;
	size_t first = RING_BYTES - at < len ? RING_BYTES - at : len;

	memcpy(ret_chunk, log_state.ring + at, first);
	memcpy(ret_chunk + first, log_state.ring, len - first);

	const char *end = memrchr(ret_chunk, '\n', len);

	return end ? (size_t)(end - ret_chunk) + 1 : len;
}

static void drop_all(void)
{
	for (; log_state.tail != log_state.head; log_state.tail++)
		log_state.dropped += log_state.ring[log_state.tail & RING_MASK] == '\n';
}

void log_flush(void)
{
	char chunk[CHUNK_BYTES];

	while (log_state.tail != log_state.head) {
		size_t len = next_chunk(chunk);
		ssize_t n = push_out(chunk, len);

		if (n < 0)
			drop_all();
		if (n <= 0)
			return;
		log_state.tail += (size_t)n;
		if ((size_t)n < len)
			return;
	}
}

void log_drain(unsigned timeout_ms)
{
	uint64_t end = clock_ns() + (uint64_t)timeout_ms * NS_PER_MS;

	for (log_flush(); log_state.tail != log_state.head; log_flush()) {
		uint64_t now = clock_ns();
		struct pollfd ready = { .fd = log_state.fd, .events = POLLOUT };

		if (now >= end)
			return;
		poll(&ready, 1, (int)((end - now) / NS_PER_MS) + 1);
	}
}

static int ring_put(const char *text, size_t len)
{
	if (RING_BYTES - (log_state.head - log_state.tail) < len) {
		log_state.dropped++;
		return -ENOBUFS;
	}
	size_t at = log_state.head & RING_MASK;
	size_t first = RING_BYTES - at < len ? RING_BYTES - at : len;

	memcpy(log_state.ring + at, text, first);
	memcpy(log_state.ring, text + first, len - first);
	log_state.head += len;
	return 0;
}

uint64_t log_dropped(void)
{
	return log_state.dropped;
}

/* ---- levels ---- */

void log_level_set(enum log_level level)
{
	assert(level <= LOG_TRACE);
	log_state.level = level;
}

enum log_level log_level_get(void)
{
	return log_state.level;
}

void log_format_set(enum log_format format)
{
	log_state.format = format;
}

int log_level_parse(const char *name)
{
	for (int i = 0; i <= LOG_TRACE; i++)
		if (!strcmp(name, level_names[i]))
			return i;
	return -EINVAL;
}

/* ---- lines ---- */

static int room(const struct log_line *line, size_t len)
{
	return line->len + len + TAIL_BYTES <= sizeof(line->text);
}

static void append(struct log_line *line, const char *text, size_t len)
{
	assert(room(line, len));
	memcpy(line->text + line->len, text, len);
	line->len += len;
}

/* What a byte becomes in a line: one printable character, or an escape; returns its length. */
static size_t escape(unsigned char c, char ret_text[8])
{
	if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\') {
		ret_text[0] = (char)c;
		return 1;
	}
	if (c == '"' || c == '\\') {
		ret_text[0] = '\\';
		ret_text[1] = (char)c;
		return 2;
	}
	return (size_t)snprintf(ret_text, 8, "\\u%04x", c);
}

/* The quoted, escaped text, cut where the line has no more room for its end. */
static void append_quoted(struct log_line *line, const char *value, size_t len)
{
	char out[8];

	append(line, "\"", 1);
	for (size_t i = 0; i < len; i++) {
		size_t n = escape((unsigned char)value[i], out);

		if (!room(line, n + 1))
			break;
		append(line, out, n);
	}
	append(line, "\"", 1);
}

/* Writes the key if it and `value_len` more bytes fit; 0 when the field is left out. */
static int begin_field(struct log_line *line, const char *key, size_t value_len)
{
	size_t len = strlen(key);

	if (line->off || !room(line, len + 4 + value_len))
		return 0;
	if (log_state.format == LOG_AS_TEXT) {
		append(line, " ", 1);
		append(line, key, len);
		append(line, "=", 1);
		return 1;
	}
	append(line, ",\"", 2);
	append(line, key, len);
	append(line, "\":", 2);
	return 1;
}

static void append_stamp(struct log_line *line)
{
	uint64_t now = clock_wall_ns();
	time_t second = (time_t)(now / NS_PER_S);
	char text[32];

	if (second != log_state.second) {
		struct tm tm;

		gmtime_r(&second, &tm);
		strftime(log_state.stamp, sizeof(log_state.stamp), "%Y-%m-%dT%H:%M:%S", &tm);
		log_state.second = second;
	}
	int n = snprintf(text, sizeof(text), "%s.%03uZ", log_state.stamp,
			 (unsigned)(now % NS_PER_S / NS_PER_MS));

	append(line, text, (size_t)n);
}

void log_begin(struct log_line *line, enum log_level level, const char *event)
{
	int json = log_state.format == LOG_AS_JSON;

	assert(level <= LOG_TRACE);
	line->len = 0;
	line->off = level > log_state.level;
	if (line->off)
		return;
	append(line, "{\"ts\":\"", json ? 7 : 0);
	append_stamp(line);
	if (!json) {
		append(line, " ", 1);
		append(line, level_names[level], strlen(level_names[level]));
		append(line, " ", 1);
		append(line, event, strlen(event));
		return;
	}
	append(line, "\"", 1);
	if (begin_field(line, "lvl", 16))
		append_quoted(line, level_names[level], strlen(level_names[level]));
	if (begin_field(line, "ev", 128))
		append_quoted(line, event, strlen(event));
}

void log_mem(struct log_line *line, const char *key, const char *value, size_t len)
{
	if (begin_field(line, key, 8))
		append_quoted(line, value, len < LOG_TEXT_MAX ? len : LOG_TEXT_MAX);
}

void log_str(struct log_line *line, const char *key, const char *value)
{
	if (value)
		log_mem(line, key, value, strlen(value));
	else if (begin_field(line, key, 4))
		append(line, "null", 4);
}

static void append_number(struct log_line *line, const char *key, const char *text, int len)
{
	if (begin_field(line, key, (size_t)len))
		append(line, text, (size_t)len);
}

void log_u64(struct log_line *line, const char *key, uint64_t value)
{
	char text[24];

	if (line->off)
		return;
	append_number(line, key, text, snprintf(text, sizeof(text), "%lu", value));
}

void log_i64(struct log_line *line, const char *key, int64_t value)
{
	char text[24];

	if (line->off)
		return;
	append_number(line, key, text, snprintf(text, sizeof(text), "%ld", value));
}

void log_f64(struct log_line *line, const char *key, double value)
{
	char text[32] = "null";

	if (line->off)
		return;
	append_number(line, key, text,
		      isfinite(value) ? snprintf(text, sizeof(text), "%.6g", value) : 4);
}

void log_bool(struct log_line *line, const char *key, int value)
{
	append_number(line, key, value ? "true" : "false", value ? 4 : 5);
}

/* Once there is room again, one line tells how many had none. */
static void say_dropped(void)
{
	struct log_line line;
	uint64_t lines = log_state.dropped - log_state.dropped_said;

	if (!lines || RING_BYTES - (log_state.head - log_state.tail) < 2 * LOG_LINE_MAX)
		return;
	log_state.dropped_said = log_state.dropped;
	log_begin(&line, LOG_ERROR, "log_dropped");
	log_u64(&line, "lines", lines);
	log_end(&line);
}

void log_end(struct log_line *line)
{
	if (line->off)
		return;
	say_dropped();
	if (log_state.format == LOG_AS_JSON)
		line->text[line->len++] = '}';
	line->text[line->len++] = '\n';
	assert(line->len <= sizeof(line->text));
	ring_put(line->text, line->len);
	line->off = 1;
	log_flush();
}

void log_say(enum log_level level, const char *format, ...)
{
	struct log_line line;
	char text[SAY_MAX];
	va_list args;

	log_begin(&line, level, "notice");
	if (line.off)
		return;
	va_start(args, format);
	int n = vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (n < 0)
		return;
	log_str(&line, "program", log_state.program);
	if (begin_field(&line, "msg", 8))
		append_quoted(&line, text, strlen(text));
	log_end(&line);
}
