/* bench/load: what is told of times is right, what is read is read however it is cut. */
#include "tests/lib/unit.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/load.h"
#include "bench/load_client_impl.h"
#include "shm/base/clock.h"
#include "shm/base/jread.h"

/* ---- numbers ---- */

static void quantiles_of_latencies_are_within_two_percent(void **state)
{
	static struct hist hist;
	static const double asked[] = { 0.5, 0.9, 0.99, 0.999 };
	enum { N = 100000 };

	hist_reset(&hist);
	for (int i = 1; i <= N; i++)
		hist_add(&hist, i * 7.3); /* up to 0.7 s in us */
	for (size_t i = 0; i < 4; i++) {
		double exact = ceil(asked[i] * N) * 7.3, got = hist_quantile(&hist, asked[i]);

		assert_true(fabs(got - exact) / exact < 0.02);
	}
}

static void a_late_answer_moves_no_due_time(void **state)
{
	/* 1,000 requests/s over 4 connections: each is due every 4 ms, whenever it was answered. */
	assert_int_equal(load_due_next(5 * NS_PER_MS, 1000, 4), 9 * NS_PER_MS);
	assert_int_equal(load_due_next(load_due_next(0, 1000, 4), 1000, 4), 8 * NS_PER_MS);
}

static void medians_pass_over_what_was_not_measured(void **state)
{
	double values[] = { 5, NAN, 1, 3 }, none[] = { NAN, NAN }, two[] = { 4, 2 };

	assert_true(load_median(values, 4) == 3);
	assert_true(load_least(values, 4) == 1);
	assert_true(load_most(values, 4) == 5);
	assert_true(load_median(two, 2) == 3);
	assert_true(isnan(load_median(none, 2)));
}

static struct load_run *run_of(struct load_options *o, unsigned rounds)
{
	static struct load_run run;

	*o = (struct load_options){ .command = "http", .rounds = rounds };
	o->cell[LOAD_CELL_HTTP16] = true;
	run.options = o;
	for (int a = 0; a < LOAD_ARMS_NR; a++)
		for (int f = 0; f < LOAD_FIGURES_NR; f++)
			for (int r = 0; r < LOAD_ROUNDS_MAX; r++)
				run.value[a][f][r] = NAN;
	return &run;
}

static void ratios_are_taken_within_a_round_to_the_better_peer(void **state)
{
	struct load_options o;
	struct load_run *run = run_of(&o, 3);
	static const double own[] = { 8, 30, 10 }, haproxy[] = { 10, 40, 20 },
			    nginx[] = { 20, 30, 10 };

	for (int r = 0; r < 3; r++) {
		run->value[LOAD_ARM_URING][LOAD_FIGURE_CPU_16][r] = own[r];
		run->value[LOAD_ARM_HAPROXY][LOAD_FIGURE_CPU_16][r] = haproxy[r];
		run->value[LOAD_ARM_NGINX][LOAD_FIGURE_CPU_16][r] = nginx[r];
	}
	/* 0.8, 1, 1 */
	assert_true(load_ratio(run, LOAD_ARM_URING, LOAD_FIGURE_CPU_16,
			       LOAD_BASE(HAPROXY) | LOAD_BASE(NGINX)) == 1);
	/* 0.8, 0.75, 0.5 */
	assert_true(load_ratio(run, LOAD_ARM_URING, LOAD_FIGURE_CPU_16, LOAD_BASE(HAPROXY)) ==
		    0.75);
}

static const struct load_target *target_named(const struct load_target *t, unsigned n,
					      const char *name)
{
	for (unsigned i = 0; i < n; i++)
		if (strcmp(t[i].name, name) == 0)
			return &t[i];
	return NULL;
}

static void a_target_whose_peer_did_not_run_is_missed(void **state)
{
	static const char name[] = "CPU per request, io_uring / better proxy";
	struct load_target t[LOAD_TARGETS_MAX];
	struct load_options o;
	struct load_run *run = run_of(&o, 1);

	run->value[LOAD_ARM_URING][LOAD_FIGURE_CPU_16][0] = 7;
	run->value[LOAD_ARM_HAPROXY][LOAD_FIGURE_CPU_16][0] = 10;
	const struct load_target *found = target_named(t, load_targets(run, t), name);
	assert_non_null(found);
	assert_true(isnan(found->value));
	assert_false(found->met);

	run->value[LOAD_ARM_NGINX][LOAD_FIGURE_CPU_16][0] = 9;
	found = target_named(t, load_targets(run, t), name);
	assert_true(found->met && found->value < 0.78);
	assert_false(load_target_of("x", NAN, 1, true).met);
	assert_true(load_target_of("x", 1, 1, true).met && load_target_of("x", 1, 1, false).met);
}

/* ---- text ---- */

static void bodies_are_json_of_the_size_asked_for(void **state)
{
	static const size_t sizes[] = { 300, 900, 4999, 100000, 4000000 };

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct load_ask ask = { .body_bytes = sizes[i], .word = "@idle", .events = 16 };
		size_t len, number;
		char *body = load_body_new(&ask, &len, &number);
		struct jread value, text;

		assert_non_null(body);
		assert_int_equal(len, sizes[i]);
		assert_memory_equal(body + number, "00000000", 8);
		assert_int_equal(jread_open(&value, body, len), 0);
		assert_int_equal(jread_get(&value, "messages[0].content", &text), 0);
		assert_memory_equal(text.text, "\"@idle 00000000", 15);
		free(body);
	}
}

static void stamps_are_found_whole_or_not_at_all(void **state)
{
	static const char text[] = "T=12 \"T=00000000000000000123\" T=00000000000000000456";
	const char *behind;

	assert_int_equal(load_stamp_find(text, sizeof(text) - 1, &behind), 123);
	assert_int_equal(load_stamp_find(behind, strlen(behind), &behind), 456);
	assert_int_equal(load_stamp_find(behind, strlen(behind), NULL), 0);
	assert_int_equal(load_stamp_find(text, 27, NULL), 0); /* its last digit is missing */
}

static void versions_are_found_in_what_programs_say(void **state)
{
	char version[64];

	load_version_find("HAProxy version 2.6.12-1+deb12u4 2026/10/17", version, sizeof(version));
	assert_string_equal(version, "2.6.12");
	load_version_find("envoy  version: 9e5/1.40.0/Clean", version, sizeof(version));
	assert_string_equal(version, "1.40.0");
	load_version_find("nothing 12 here.", version, sizeof(version));
	assert_string_equal(version, "?");
}

static void templates_repeat_a_line_for_each_engine(void **state)
{
	char from[] = "/tmp/test-load-XXXXXX", to[64], text[1024] = "";
	const uint16_t engine[LOAD_ENGINES] = { 1, 2, 3, 4, 5, 6, 7, 8 };
	int fd = mkstemp(from);
	FILE *file = fdopen(fd, "w");

	snprintf(to, sizeof(to), "%s.out", from);
	fputs("port @PORT@ in @DIR@, @STREAMS@\n@FOR ENGINES@ s@N@ @ADDRESS@;\nend\n", file);
	fclose(file);
	assert_int_equal(load_template(from, to, "/d", 80, 9, engine), 0);
	file = fopen(to, "r");
	assert_true(fread(text, 1, sizeof(text) - 1, file) > 0);
	fclose(file);
	unlink(from);
	unlink(to);
	assert_non_null(strstr(text, "port 80 in /d, 9\n s1 127.0.0.1:1;\n s2 127.0.0.1:2;\n"));
	assert_non_null(strstr(text, " s8 127.0.0.1:8;\nend\n"));
}

/* ---- answers, cut anywhere ---- */

#define EVENT "data: {\"content\":\" T=00000000000000001000\"}\n\n"
#define CHUNK "2e\r\n" EVENT "\r\n"
static const char stream[] = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" CHUNK CHUNK
			     "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
static const char whole[] = "HTTP/1.1 200 OK\r\ncontent-length: 24\r\n\r\n"
			    "{T=00000000000000001000}";

/* Feeds in pieces of `piece` bytes; true when exactly the last byte ended the answer. */
static bool feed(struct load_client *client, const char *text, size_t piece)
{
	struct load_conn *c = &client->conn[0];
	size_t len = strlen(text);
	bool ended = false;

	memset(c, 0, sizeof(*c));
	memset(&client->told, 0, sizeof(client->told));
	c->state = LOAD_WAITING;
	for (size_t at = 0; at < len; at += piece) {
		assert_false(ended);
		ended = load_reply_take(client, c, text + at, at + piece < len ? piece : len - at,
					1000000);
	}
	return ended;
}

static struct load_client *client_asking(bool streams)
{
	const uint16_t port = 9;
	struct load_ask ask = { .body_bytes = 300, .word = "", .stream = streams, .events = 2 };
	struct load_client *client = load_client_new(&port, 1);

	assert_non_null(client);
	assert_int_equal(load_client_ask(client, &ask), 0);
	return client;
}

static void streams_are_read_however_they_are_cut(void **state)
{
	struct load_client *client = client_asking(true);

	for (size_t piece = 1; piece <= sizeof(stream); piece++) {
		assert_true(feed(client, stream, piece));
		assert_int_equal(client->told.events, 2);
		assert_int_equal(client->told.delay_us.n, 2);
		assert_int_equal(client->told.itl_us.n, 1);
		assert_true(client->told.reads >= 1 && client->told.reads <= 2);
	}
	client->conns = 0;
	load_client_free(client);
}

static void whole_answers_are_read_however_they_are_cut(void **state)
{
	struct load_client *client = client_asking(false);

	for (size_t piece = 1; piece <= sizeof(whole); piece++) {
		assert_true(feed(client, whole, piece));
		assert_int_equal(client->told.body_us.n, 1);
		assert_int_equal(client->told.events, 0);
	}
	load_client_free(client);
}

static void another_status_is_a_failure_that_is_told(void **state)
{
	struct load_client *client = client_asking(true);

	client->conn[0].fd = -1;
	assert_false(feed(client, "HTTP/1.1 503 Service Unavailable\r\n\r\n", 100));
	assert_int_equal(client->told.failed, 1);
	assert_non_null(strstr(client->told.complaint, "503"));
	load_client_free(client);
}

/* ---- with scripted engines ---- */

static struct load_sink sink;

static int engines_start(void **state)
{
	return load_sink_start(&sink);
}

static int engines_stop(void **state)
{
	load_sink_stop(&sink);
	return 0;
}

/* Runs until so many requests were answered, or half a minute is over. */
static const struct load_told *answers(struct load_client *client, uint64_t wanted)
{
	uint64_t end = clock_ns() + 30ull * NS_PER_S;

	while (((const struct load_client *)client)->told.requests < wanted && clock_ns() < end)
		load_client_run(client, 0.02);
	return &client->told;
}

static struct load_client *client_of(const uint16_t *port, unsigned ports,
				     const struct load_ask *ask)
{
	struct load_client *client = load_client_new(port, ports);

	assert_non_null(client);
	assert_int_equal(load_client_ask(client, ask), 0);
	return client;
}

static void a_stream_has_the_events_it_asked_for(void **state)
{
	struct load_ask ask = { .body_bytes = 900, .word = "", .stream = true, .events = 5 };
	struct load_client *client = client_of(sink.port, LOAD_ENGINES, &ask);

	atomic_store(&sink.shared->period_ns, 4 * NS_PER_MS);
	assert_int_equal(load_client_open(client, 16, false), 0);
	const struct load_told *told = answers(client, 64);
	assert_true(told->requests >= 64);
	assert_int_equal(told->failed, 0);
	/* Streams that are not over have some events, whole ones five each. */
	assert_true(told->events >= 5 * told->requests);
	assert_true(told->events <= 5 * told->requests + 16 * 5);
	load_client_free(client);
}

static void large_bodies_pass_the_relay_whole(void **state)
{
	struct load_ask ask = { .body_bytes = 3000000, .word = "", .events = 4 };
	struct load_relay relay;

	assert_int_equal(load_relay_start(&relay, sink.port), 0);
	struct load_client *client = client_of(&relay.port, 1, &ask);
	assert_int_equal(load_client_open(client, 2, false), 0);
	const struct load_told *told = answers(client, 6);
	assert_true(told->requests >= 6);
	assert_int_equal(told->failed, 0);
	assert_int_equal(told->body_bytes, told->requests * 3000000);
	assert_true(load_proc_cpu_ns(relay.proc.pid) > 0);
	assert_true(load_proc_rss(relay.proc.pid) > 0);
	load_client_free(client);
	load_relay_stop(&relay);
}

static void a_client_that_leaves_is_noticed_by_the_engine(void **state)
{
	struct load_ask ask = { .body_bytes = 900, .word = "@idle", .stream = true, .events = 5 };
	struct load_client *client = client_of(sink.port, LOAD_ENGINES, &ask);
	uint64_t before = atomic_load(&sink.shared->aborted), end = clock_ns() + 30ull * NS_PER_S;

	assert_int_equal(load_client_open(client, 8, false), 0);
	while (load_client_streaming(client) < 8 && clock_ns() < end)
		load_client_run(client, 0.02);
	assert_int_equal(load_client_streaming(client), 8);
	load_client_abort(client, 3);
	assert_int_equal(load_client_streaming(client), 5);
	while (atomic_load(&sink.shared->aborted) < before + 3 && clock_ns() < end)
		load_client_run(client, 0.02);
	assert_int_equal(atomic_load(&sink.shared->aborted), before + 3);
	load_client_free(client);
}

static void let_go_later(void *ctx)
{
	const struct load_sink *of = ctx;

	nanosleep(&(struct timespec){ .tv_nsec = 400 * NS_PER_MS }, NULL);
	kill(of->proc[1].pid, SIGCONT);
}

/* Those who would have asked during the stall are counted, each with the whole of its wait. */
static void a_stall_is_felt_by_all_who_were_due(void **state)
{
	struct load_ask ask = { .body_bytes = 300, .word = "", .events = 4, .rate = 500 };
	struct load_client *client = client_of(&sink.port[LOAD_ENGINES - 1], 1, &ask);
	struct load_proc timer = { 0 };

	assert_int_equal(load_client_open(client, 4, false), 0);
	load_client_run(client, 0.1);
	load_sink_halt(&sink, true);
	assert_int_equal(load_proc_fork(&timer, load_core_own(), let_go_later, &sink), 0);
	const struct load_told *told = load_client_measure(client, 0.9);
	waitpid(timer.pid, NULL, 0);
	/* 200 were due in 0.4 s, 150 of them waited 0.1 s and more; a closed loop sees four. */
	assert_true(hist_count_above(&told->latency_us, 100 * 1000) >= 100);
	assert_int_equal(told->failed, 0);
	load_client_free(client);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(quantiles_of_latencies_are_within_two_percent),
		CLAIM(a_late_answer_moves_no_due_time),
		CLAIM(medians_pass_over_what_was_not_measured),
		CLAIM(ratios_are_taken_within_a_round_to_the_better_peer),
		CLAIM(a_target_whose_peer_did_not_run_is_missed),
		CLAIM(bodies_are_json_of_the_size_asked_for),
		CLAIM(stamps_are_found_whole_or_not_at_all),
		CLAIM(versions_are_found_in_what_programs_say),
		CLAIM(templates_repeat_a_line_for_each_engine),
		CLAIM(streams_are_read_however_they_are_cut),
		CLAIM(whole_answers_are_read_however_they_are_cut),
		CLAIM(another_status_is_a_failure_that_is_told),
		CLAIM(a_stream_has_the_events_it_asked_for),
		CLAIM(large_bodies_pass_the_relay_whole),
		CLAIM(a_client_that_leaves_is_noticed_by_the_engine),
		CLAIM(a_stall_is_felt_by_all_who_were_due),
	};

	return cmocka_run_group_tests(tests, engines_start, engines_stop);
}
