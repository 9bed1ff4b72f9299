/* Lines are JSON whatever text comes, and nothing that stderr does ever holds the program up. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/base/jread.h"
#include "shm/base/log.h"
#include "tests/lib/unit.h"

static int saved_stderr = -1;
static int pipe_fds[2];

/* Descriptor 2 becomes `fd` until restore(). */
static void redirect(int fd)
{
	saved_stderr = dup(STDERR_FILENO);
	assert_true(saved_stderr >= 0);
	assert_int_equal(dup2(fd, STDERR_FILENO), STDERR_FILENO);
	log_format_set(LOG_AS_JSON);
	log_open("test", LOG_INFO);
}

static void restore(void)
{
	dup2(saved_stderr, STDERR_FILENO);
	close(saved_stderr);
	log_open("test", LOG_INFO);
}

static void begin_pipe(void)
{
	assert_int_equal(pipe(pipe_fds), 0);
	redirect(pipe_fds[1]);
}

/* Takes what the pipe holds; returns its length, zero-terminated. */
static size_t end_pipe(char *text, size_t size)
{
	size_t len = 0;
	ssize_t n;

	log_flush();
	restore();
	close(pipe_fds[1]);
	while (len < size - 1 && (n = read(pipe_fds[0], text + len, size - 1 - len)) > 0)
		len += (size_t)n;
	close(pipe_fds[0]);
	text[len] = '\0';
	return len;
}

static void a_line_has_its_fields_in_order(void **state)
{
	struct log_line line;
	struct jread doc, ts;
	char text[4096];

	begin_pipe();
	log_begin(&line, LOG_INFO, "request");
	log_str(&line, "id", "abc");
	log_u64(&line, "in", 31744);
	log_i64(&line, "delta", -2);
	log_f64(&line, "ttft_s", 1.9);
	log_f64(&line, "bad", NAN);
	log_bool(&line, "stream", 1);
	log_str(&line, "none", NULL);
	log_end(&line);
	size_t len = end_pipe(text, sizeof(text));

	assert_int_equal(jread_open(&doc, text, len), 0);
	assert_int_equal(jread_get(&doc, "ts", &ts), 0);
	assert_int_equal(ts.len, sizeof("\"2026-11-30T05:41:55.123Z\"") - 1);
	assert_non_null(strstr(text,
			       ",\"lvl\":\"info\",\"ev\":\"request\",\"id\":\"abc\",\"in\":31744,"
			       "\"delta\":-2,\"ttft_s\":1.9,\"bad\":null,\"stream\":true,"
			       "\"none\":null}\n"));
}

static void foreign_text_cannot_break_the_line(void **state)
{
	static const char nasty[] = "a\n\"}\\\x1b[31m\xe2\x80\xa8\x7f\xff";
	char text[4096], back[64];
	struct log_line line;
	struct jread doc;

	begin_pipe();
	log_begin(&line, LOG_ERROR, "x");
	log_mem(&line, "s", nasty, sizeof(nasty)); /* with its closing zero */
	log_end(&line);
	size_t len = end_pipe(text, sizeof(text));

	for (size_t i = 0; i < len - 1; i++)
		assert_true(text[i] >= 0x20 && text[i] < 0x7f);
	assert_int_equal(jread_open(&doc, text, len), 0);
	assert_non_null(strstr(text, "\\u00e2\\u0080\\u00a8\\u007f\\u00ff\\u0000\"}"));
	assert_int_equal(jread_get_str(&doc, "ev", back, sizeof(back)), 0);
}

static void long_text_is_cut_and_a_full_line_still_closes(void **state)
{
	char text[8192], big[3000];
	struct log_line line;
	struct jread doc, v;

	memset(big, '\n', sizeof(big));
	begin_pipe();
	log_begin(&line, LOG_ERROR, "x");
	for (int i = 0; i < 40; i++)
		log_mem(&line, "big", big, sizeof(big));
	log_end(&line);
	size_t len = end_pipe(text, sizeof(text));

	assert_true(len <= LOG_LINE_MAX);
	assert_int_equal(jread_open(&doc, text, len), 0);
	assert_int_equal(jread_get(&doc, "big", &v), 0);
}

static void lines_below_the_level_cost_nothing(void **state)
{
	char text[4096];
	struct log_line line;

	begin_pipe();
	log_begin(&line, LOG_DEBUG, "x");
	log_str(&line, "a", "b");
	log_end(&line);
	log_say(LOG_TRACE, "no");
	log_level_set(LOG_DEBUG);
	log_say(LOG_DEBUG, "yes %d", 1);
	size_t len = end_pipe(text, sizeof(text));

	assert_true(len > 0);
	assert_null(strstr(text, "\"no\""));
	assert_non_null(strstr(text, "\"msg\":\"yes 1\""));
	assert_int_equal(log_level_parse("trace"), LOG_TRACE);
	assert_int_equal(log_level_parse("loud"), -EINVAL);
}

static void people_get_key_equals_value(void **state)
{
	char text[4096];
	struct log_line line;

	begin_pipe();
	log_format_set(LOG_AS_TEXT);
	log_begin(&line, LOG_WARN, "engine_down");
	log_str(&line, "engine", "gpu 0");
	log_u64(&line, "n", 3);
	log_end(&line);
	end_pipe(text, sizeof(text));

	assert_non_null(strstr(text, "Z warn engine_down engine=\"gpu 0\" n=3\n"));
	log_format_set(LOG_AS_JSON);
}

/* Nobody reads: 10,000 lines take no time worth naming, and what was lost is counted and told. */
static void a_stuck_pipe_drops_lines_and_never_blocks(void **state)
{
	char text[4096];
	uint64_t before, lost;
	size_t newlines = 0;

	begin_pipe();
	before = log_dropped();
	alarm(10); /* blocking would end the test */
	for (int i = 0; i < 10000; i++)
		log_say(LOG_INFO, "line %d", i);
	log_drain(1);
	alarm(0);
	lost = log_dropped() - before;
	assert_true(lost > 0);
	fcntl(pipe_fds[0], F_SETFL, O_NONBLOCK);
	for (;;) {
		ssize_t n = read(pipe_fds[0], text, sizeof(text));

		if (n <= 0) {
			log_flush();
			n = read(pipe_fds[0], text, sizeof(text));
		}
		if (n <= 0)
			break;
		for (ssize_t i = 0; i < n; i++)
			newlines += text[i] == '\n';
	}
	assert_int_equal(newlines + lost, 10000);
	log_say(LOG_INFO, "after");
	end_pipe(text, sizeof(text));
	assert_non_null(strstr(text, "\"ev\":\"log_dropped\",\"lines\":"));
	assert_non_null(strstr(text, "\"msg\":\"after\""));
}

static void the_flags_of_a_shared_pipe_stay_as_they_were(void **state)
{
	char text[4096];

	begin_pipe();
	log_say(LOG_INFO, "x");
	int flags = fcntl(pipe_fds[1], F_GETFL);
	end_pipe(text, sizeof(text));

	assert_int_equal(flags & O_NONBLOCK, 0);
}

static void a_reader_that_left_costs_lines_only(void **state)
{
	uint64_t before;

	begin_pipe();
	before = log_dropped();
	close(pipe_fds[0]);
	log_say(LOG_INFO, "one");
	log_say(LOG_INFO, "two");
	assert_true(log_dropped() - before >= 2); /* and the line that tells of the first */
	restore();
	close(pipe_fds[1]);
}

static void a_stuck_socket_never_blocks_either(void **state)
{
	uint64_t before = log_dropped();
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	redirect(pair[1]);
	alarm(10);
	for (int i = 0; i < 20000; i++)
		log_say(LOG_INFO, "line %d", i);
	alarm(0);
	restore();
	assert_true(log_dropped() > before);
	close(pair[0]);
	close(pair[1]);
}

/* `{ program; other; } 2>file`: both write at the shared position, nobody overwrites. */
static void a_shared_file_is_written_where_its_owner_stands(void **state)
{
	char name[] = "/tmp/turnward-log-XXXXXX", text[4096] = "";
	int fd = mkstemp(name);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, "before\n", 7), 7);
	redirect(fd);
	log_say(LOG_INFO, "ours");
	restore();
	assert_int_equal(write(fd, "after\n", 6), 6);
	assert_true(pread(fd, text, sizeof(text) - 1, 0) > 0);
	close(fd);
	unlink(name);

	assert_memory_equal(text, "before\n{", 8);
	assert_non_null(strstr(text, "\"msg\":\"ours\"}\nafter\n"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(a_line_has_its_fields_in_order),
		CLAIM(foreign_text_cannot_break_the_line),
		CLAIM(long_text_is_cut_and_a_full_line_still_closes),
		CLAIM(lines_below_the_level_cost_nothing),
		CLAIM(people_get_key_equals_value),
		CLAIM(a_stuck_pipe_drops_lines_and_never_blocks),
		CLAIM(the_flags_of_a_shared_pipe_stay_as_they_were),
		CLAIM(a_reader_that_left_costs_lines_only),
		CLAIM(a_stuck_socket_never_blocks_either),
		CLAIM(a_shared_file_is_written_where_its_owner_stands),
	};

	return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
