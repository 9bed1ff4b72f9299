/* What the probe makes of a connection's segments: which requests count, when they begin and end,
 * and what spoils a sample. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/flow_host.h"
#include "tests/lib/unit.h"

static struct host_line line;

#define CHAT        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
#define BODY        "{\"stream\":true}"
#define LENGTH      "Content-Length: 15\r\n"
#define REQUEST     CHAT LENGTH "\r\n" BODY
#define STREAM_HEAD "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
#define CHUNKED     "Transfer-Encoding: chunked\r\n"
#define ROLE        "data: {\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}\n\n"
#define TOKEN       "data: {\"delta\":{\"content\":\"a\"}}\n\n"
#define CHUNK_END   "0\r\n\r\n"

static void out(const char *text)
{
	host_out(&line, text, strlen(text));
}

static void in(const char *text)
{
	host_in(&line, text, strlen(text));
}

static void in_chunk(const char *text)
{
	char chunk[512];

	snprintf(chunk, sizeof(chunk), "%zx\r\n%s\r\n", strlen(text), text);
	in(chunk);
}

/* The last record, which must be of this kind. */
static const struct probe_record *last(enum probe_kind kind)
{
	assert_true(host_records_nr > 0);
	assert_int_equal(host_records[host_records_nr - 1].kind, kind);
	return &host_records[host_records_nr - 1];
}

static int begin(void **state)
{
	host_begin(&line);
	return 0;
}

static void every_time_of_a_stream_is_that_of_its_segment(void **state)
{
	out(REQUEST);
	in(STREAM_HEAD CHUNKED "\r\n");
	in_chunk(ROLE);
	in_chunk(TOKEN);
	in_chunk(TOKEN);
	in(CHUNK_END);

	const struct probe_record *r = last(PROBE_END);

	assert_int_equal(host_records_nr, 3);
	assert_int_equal(host_records[0].kind, PROBE_START);
	assert_int_equal(host_records[0].flags, PROBE_FLAG_STREAM);
	assert_int_equal(host_records[1].kind, PROBE_TOKEN);
	assert_int_equal(r->t0_first_ns, 1);
	assert_int_equal(r->t0_last_ns, 1);
	assert_int_equal(r->t_hdr_ns, 2);
	assert_int_equal(r->t_tok_ns, 4);
	assert_int_equal(r->t_end_ns, 6);
	assert_int_equal(r->status, 200);
	assert_int_equal(r->flags, PROBE_FLAG_STREAM);
	assert_int_equal(r->segments, 3);
	assert_int_equal(r->tx_bytes, strlen(REQUEST));
}

static void requests_on_one_connection_are_told_apart(void **state)
{
	for (unsigned i = 1; i <= 5; i++) {
		out(REQUEST);
		in(STREAM_HEAD CHUNKED "\r\n");
		in_chunk(TOKEN);
		in(CHUNK_END);
		assert_int_equal(last(PROBE_END)->sequence, i);
		assert_int_equal(last(PROBE_END)->flags, PROBE_FLAG_STREAM);
		assert_int_equal(last(PROBE_END)->tx_bytes, strlen(REQUEST));
		assert_true(last(PROBE_END)->t_tok_ns > last(PROBE_END)->t0_first_ns);
	}
	assert_int_equal(host_records_nr, 15);
}

/* Path, whether a POST to it counts. */
static const struct {
	const char *path;
	int counts;
} paths[] = {
	{ "/v1/chat/completions", 1 },
	{ "/v1/completions", 1 },
	{ "/v1/completions?x=1", 1 },
	{ "/v1/responses", 1 },
	{ "/v1/messages", 1 },
	{ "/generate", 1 },
	{ "/inference/v1/generate", 1 },
	{ "/completion", 1 },
	{ "/infill", 1 },
	{ "/prefix/v1/messages", 1 },
	{ "/v1/messages/count_tokens", 0 },
	{ "/v1/responses/resp_1/cancel", 0 },
	{ "/v1/chat/completions/render", 0 },
	{ "/v1/embeddings", 0 },
	{ "/tokenize", 0 },
	{ "/x?y=/v1/completions", 0 },
};

static void only_posts_to_what_generates_count(void **state)
{
	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		char text[256];

		host_begin(&line);
		snprintf(text, sizeof(text), "POST %s HTTP/1.1\r\nHost: x\r\n" LENGTH "\r\n" BODY,
			 paths[i].path);
		out(text);
		if ((int)host_records_nr != paths[i].counts)
			print_error("%s\n", paths[i].path);
		assert_int_equal(host_records_nr, paths[i].counts);
		assert_int_equal(host_counts[PROBE_COUNTER_ignored], !paths[i].counts);
	}
	host_begin(&line);
	out("GET /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n");
	out("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
	in(STREAM_HEAD CHUNKED "\r\n");
	in_chunk(TOKEN);
	assert_int_equal(host_records_nr, 0);
}

static void what_the_router_asks_for_itself_is_never_told(void **state)
{
	out(CHAT "X-Turnward-Internal: piece\r\n" LENGTH "\r\n" BODY);
	in(STREAM_HEAD CHUNKED "\r\n");
	in_chunk(TOKEN);
	in(CHUNK_END);
	assert_int_equal(host_records_nr, 0);
	assert_int_equal(host_counts[PROBE_COUNTER_internal], 1);
	out(REQUEST);
	assert_int_equal(last(PROBE_START)->sequence, 1);
}

static void a_head_may_be_cut_anywhere(void **state)
{
	const char *text = "POST /v1/messages HTTP/1.1\r\nauthorization: Bearer x\r\n"
			   "content-length: 15\r\n\r\n" BODY;

	for (size_t cut = 4; cut < strlen(text) - 1; cut++) {
		host_begin(&line);
		host_out(&line, text, cut);
		out(text + cut);
		assert_int_equal(last(PROBE_START)->t0_first_ns, 1);
		assert_int_equal(last(PROBE_START)->t0_last_ns, 2);
		assert_int_equal(last(PROBE_START)->tx_bytes, strlen(text));
		assert_int_equal(last(PROBE_START)->flags, PROBE_FLAG_STREAM);
	}
}

static void a_long_body_tells_at_its_end_that_it_streams(void **state)
{
	static char body[200000];

	memset(body, 'x', sizeof(body));
	memcpy(body + sizeof(body) - 15, ",\"stream\" : true", 15);
	body[sizeof(body) - 1] = 'e';
	memcpy(body + sizeof(body) - 17, ",\"stream\" : true}", 17);
	out(CHAT "Content-Length: 200000\r\n\r\n");
	assert_int_equal(last(PROBE_START)->flags, 0);
	for (size_t at = 0; at < sizeof(body); at += 50000)
		host_out(&line, body + at, 50000);
	assert_int_equal(host_records_nr, 2);
	assert_int_equal(last(PROBE_START)->flags, PROBE_FLAG_STREAM);
	assert_int_equal(last(PROBE_START)->t0_last_ns, 5);
	assert_true(host_counts[PROBE_COUNTER_scanned_bytes] < 3000);
}

static void a_head_can_tell_that_the_request_streams(void **state)
{
	static const struct {
		const char *field;
		unsigned flags;
	} cases[] = { { "Accept: text/event-stream\r\n", PROBE_FLAG_STREAM },
		      { "x-turnward-stream: 1\r\n", PROBE_FLAG_STREAM },
		      { "x-turnward-stream: 0\r\n", 0 },
		      { "Accept: application/json, text/event-stream\r\n", 0 } };

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char text[256];

		host_begin(&line);
		snprintf(text, sizeof(text), CHAT "%sContent-Length: 20000\r\n\r\n",
			 cases[i].field);
		out(text);
		assert_int_equal(last(PROBE_START)->flags, cases[i].flags);
	}
}

static void a_body_is_no_request_whatever_it_says(void **state)
{
	out(CHAT "Content-Length: 200\r\n\r\n");
	out(REQUEST);
	assert_int_equal(host_records_nr, 1);
	assert_int_equal(host_counts[PROBE_COUNTER_requests], 1);
	host_begin(&line);
	out("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 300\r\n\r\n");
	out(REQUEST);
	out(REQUEST);
	assert_int_equal(host_records_nr, 0);
}

static void an_echoed_prompt_is_no_sample(void **state)
{
	out("POST /v1/completions HTTP/1.1\r\nContent-Length: 27\r\n\r\n"
	    "{\"echo\":true,\"stream\":true}");
	assert_int_equal(last(PROBE_START)->flags, PROBE_FLAG_STREAM | PROBE_FLAG_ECHO);
	assert_true(PROBE_FLAGS_NO_TTFT & PROBE_FLAG_ECHO);
}

static void interim_answers_are_passed_over(void **state)
{
	const char *both = "HTTP/1.1 100 Continue\r\nContent-Length: 9\r\n\r\n"
			   "HTTP/1.1 103 Early Hints\r\n\r\n" STREAM_HEAD CHUNKED "\r\n";

	for (size_t cut = 1; cut < strlen(both); cut++) {
		host_begin(&line);
		out(CHAT LENGTH "Expect: 100-continue\r\n\r\n");
		host_in(&line, both, cut);
		out(BODY);
		host_in(&line, both + cut, strlen(both) - cut);
		in_chunk(TOKEN);
		in(CHUNK_END);
		assert_int_equal(last(PROBE_END)->status, 200);
		assert_true(last(PROBE_END)->t_tok_ns == 5);
		assert_int_equal(last(PROBE_END)->rx_bytes,
				 strlen(both) + strlen(TOKEN) + 6 + strlen(CHUNK_END));
	}
	host_begin(&line);
	out(CHAT LENGTH "Expect: 100-continue\r\n\r\n");
	in("HTTP/1.1 100 Continue\r\n\r\n");
	out(BODY);
	in(STREAM_HEAD CHUNKED "\r\n");
	assert_int_equal(line.flow.rx_flags, PROBE_FLAG_STREAM);
	assert_int_equal(line.flow.t_hdr, 4);
}

static void an_answer_before_the_request_is_whole_is_early(void **state)
{
	out(CHAT LENGTH "\r\n{");
	in("HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\n{}");
	assert_int_equal(last(PROBE_END)->flags,
			 PROBE_FLAG_EARLY | PROBE_FLAG_ERROR | PROBE_FLAG_NONSTREAM);
	assert_int_equal(last(PROBE_END)->status, 413);
}

static void each_framing_has_its_own_end(void **state)
{
	out(REQUEST);
	in("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{\"a\"");
	assert_int_equal(host_records_nr, 1);
	in(":true}");
	assert_int_equal(last(PROBE_END)->flags, PROBE_FLAG_NONSTREAM | PROBE_FLAG_STREAM);
	assert_int_equal(last(PROBE_END)->t_end_ns, 3);

	host_begin(&line);
	out(REQUEST);
	in(STREAM_HEAD "\r\n" TOKEN);
	assert_int_equal(last(PROBE_TOKEN)->t_tok_ns, 2);
	host_in_at(&line, line.in_seq, "", 0, HOST_FIN);
	assert_int_equal(last(PROBE_END)->flags, PROBE_FLAG_STREAM);

	host_begin(&line);
	out(REQUEST);
	in("HTTP/1.1 204 No Content\r\n\r\n");
	assert_int_equal(last(PROBE_END)->status, 204);
}

static void a_last_chunk_may_be_cut_anywhere(void **state)
{
	const char *end = "\r\n" CHUNK_END;

	for (size_t cut = 0; cut <= strlen(end); cut++) {
		host_begin(&line);
		out(REQUEST);
		in(STREAM_HEAD CHUNKED "\r\n");
		in_chunk(TOKEN);
		in("2\r\n\n\n");
		host_in(&line, end, cut);
		in(end + cut);
		assert_int_equal(last(PROBE_END)->flags, PROBE_FLAG_STREAM);
		assert_int_equal(last(PROBE_END)->t_end_ns, cut == 0 ? 6 : cut == 7 ? 5 : 6);
	}
}

static void whoever_closes_first_is_named(void **state)
{
	static const struct {
		int in, ends;
		unsigned flag;
	} cases[] = { { 1, HOST_FIN, PROBE_FLAG_TRUNC },
		      { 1, HOST_RST, PROBE_FLAG_TRUNC },
		      { 0, HOST_FIN, PROBE_FLAG_ABORT },
		      { 0, HOST_RST, PROBE_FLAG_ABORT } };

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		for (int answered = 0; answered < 2; answered++) {
			host_begin(&line);
			out(REQUEST);
			if (answered)
				in(STREAM_HEAD CHUNKED "\r\n");
			if (cases[i].in)
				host_in_at(&line, line.in_seq, "", 0, cases[i].ends);
			else
				host_out_at(&line, line.out_seq, "", 0, cases[i].ends);
			assert_int_equal(last(PROBE_END)->flags, cases[i].flag | PROBE_FLAG_STREAM);
			assert_int_equal(last(PROBE_END)->t_tok_ns, 0);
			host_in_at(&line, line.in_seq, "", 0, HOST_FIN);
			assert_int_equal(host_counts[PROBE_COUNTER_requests], 1);
			assert_int_equal(host_records_nr, 2);
		}
	}
}

static void a_next_request_ends_one_whose_end_was_missed(void **state)
{
	out(REQUEST);
	in(STREAM_HEAD CHUNKED "\r\n");
	in_chunk(TOKEN);
	in("0\r\nTrailer: x\r\n\r\n");
	out(REQUEST);
	assert_int_equal(host_records[2].kind, PROBE_END);
	assert_int_equal(host_records[2].flags, PROBE_FLAG_LAZY | PROBE_FLAG_STREAM);
	assert_int_equal(host_records[2].t_end_ns, 4);
	assert_int_equal(last(PROBE_START)->sequence, 2);
}

static void bytes_sent_again_count_once(void **state)
{
	__u32 seq = line.out_seq;

	out(REQUEST);
	host_out_at(&line, seq, REQUEST, strlen(REQUEST), 0);
	seq = line.in_seq;
	in(STREAM_HEAD CHUNKED "\r\n");
	host_in_at(&line, seq, STREAM_HEAD CHUNKED "\r\n", strlen(STREAM_HEAD CHUNKED "\r\n"), 0);
	/* Again, with new bytes behind: only these are taken. */
	host_in_at(&line, line.in_seq - 2, "\r\n21\r\n" TOKEN, 2 + 4 + 33, 0);
	line.in_seq += 4 + 33;
	assert_int_equal(last(PROBE_TOKEN)->flags, PROBE_FLAG_RETX | PROBE_FLAG_STREAM);
	in("\r\n" CHUNK_END);
	assert_int_equal(last(PROBE_END)->tx_bytes, strlen(REQUEST));
	assert_int_equal(last(PROBE_END)->rx_bytes,
			 strlen(STREAM_HEAD CHUNKED "\r\n") + 4 + 33 + 7);
	assert_int_equal(host_counts[PROBE_COUNTER_requests], 1);
	assert_int_equal(host_counts[PROBE_COUNTER_retransmits], 3);
}

static void a_hole_is_flagged_and_its_bytes_count(void **state)
{
	const char *text = STREAM_HEAD CHUNKED "\r\n";

	out(REQUEST);
	in(text);
	line.in_seq += 100; /* lost, or late */
	in_chunk(TOKEN);
	in(CHUNK_END);
	assert_int_equal(last(PROBE_END)->flags, PROBE_FLAG_GAP | PROBE_FLAG_STREAM);
	assert_int_equal(last(PROBE_END)->t_tok_ns, 3);
	assert_int_equal(last(PROBE_END)->rx_bytes, strlen(text) + 100 + 33 + 6 + 5);
	assert_true(PROBE_FLAGS_NO_TTFT & PROBE_FLAG_GAP);

	host_begin(&line);
	out(REQUEST);
	line.in_seq += strlen(text); /* even the head */
	in_chunk(TOKEN);
	in(CHUNK_END);
	assert_true(last(PROBE_END)->flags & PROBE_FLAG_GAP);
	out(REQUEST);
	assert_int_equal(last(PROBE_START)->flags, PROBE_FLAG_STREAM);
}

static void a_connection_met_in_the_middle_is_followed_from_its_next_request(void **state)
{
	out("rest of some body\"}"); /* makes the state, as any payload does */
	in(STREAM_HEAD CHUNKED "\r\n");
	in_chunk(TOKEN);
	in(CHUNK_END);
	assert_int_equal(host_records_nr, 0);
	out(REQUEST);
	in(STREAM_HEAD CHUNKED "\r\n");
	in_chunk(TOKEN);
	in(CHUNK_END);
	assert_int_equal(last(PROBE_END)->flags, PROBE_FLAG_STREAM);
	assert_int_equal(host_records_nr, 3);
}

static void a_scan_that_gives_up_says_so(void **state)
{
	static char event[4000];

	memset(event, 'x', sizeof(event));
	memcpy(event, "data: {\"a\":\"", 12);
	memcpy(event + sizeof(event) - 4, "\"}\n\n", 4);
	out(REQUEST);
	in(STREAM_HEAD "\r\n");
	for (int i = 0; i < 20; i++)
		host_in(&line, event, sizeof(event));
	in(TOKEN);
	host_in_at(&line, line.in_seq, "", 0, HOST_FIN);
	assert_int_equal(last(PROBE_END)->flags, PROBE_FLAG_CAPPED | PROBE_FLAG_STREAM);
	assert_int_equal(last(PROBE_END)->t_tok_ns, 0);
	assert_int_equal(host_counts[PROBE_COUNTER_capped], 1);
	assert_true(host_counts[PROBE_COUNTER_scanned_bytes] < FLOW_EVENTS_SCAN + 8000);
}

static void a_comment_is_no_event(void **state)
{
	out(REQUEST);
	in(STREAM_HEAD CHUNKED "\r\n");
	in_chunk(": \"content\":\"x\"\n\n");
	in_chunk(": ping data: \"text\":\"x\"\n\n");
	assert_int_equal(last(PROBE_START)->t_tok_ns, 0);
	in_chunk(TOKEN);
	assert_int_equal(last(PROBE_TOKEN)->t_tok_ns, 5);
}

static void a_chunked_request_lasts_until_its_answer(void **state)
{
	out(CHAT CHUNKED "\r\n1\r\n{\r\n");
	out("POST\r\n");
	out("e\r\n\"stream\":true}\r\n0\r\n\r\n");
	assert_int_equal(host_records_nr, 1);
	in(STREAM_HEAD CHUNKED "\r\n");
	in_chunk(TOKEN);
	in(CHUNK_END);
	assert_int_equal(last(PROBE_END)->t0_last_ns, 3);
	assert_int_equal(last(PROBE_END)->flags, PROBE_FLAG_STREAM);
	out(REQUEST);
	assert_int_equal(last(PROBE_START)->sequence, 2);
}

#define FLOW_CLAIM(function) cmocka_unit_test_setup(function, begin)

int main(void)
{
	const struct CMUnitTest tests[] = {
		FLOW_CLAIM(every_time_of_a_stream_is_that_of_its_segment),
		FLOW_CLAIM(requests_on_one_connection_are_told_apart),
		FLOW_CLAIM(only_posts_to_what_generates_count),
		FLOW_CLAIM(what_the_router_asks_for_itself_is_never_told),
		FLOW_CLAIM(a_head_may_be_cut_anywhere),
		FLOW_CLAIM(a_long_body_tells_at_its_end_that_it_streams),
		FLOW_CLAIM(a_head_can_tell_that_the_request_streams),
		FLOW_CLAIM(a_body_is_no_request_whatever_it_says),
		FLOW_CLAIM(an_echoed_prompt_is_no_sample),
		FLOW_CLAIM(interim_answers_are_passed_over),
		FLOW_CLAIM(an_answer_before_the_request_is_whole_is_early),
		FLOW_CLAIM(each_framing_has_its_own_end),
		FLOW_CLAIM(a_last_chunk_may_be_cut_anywhere),
		FLOW_CLAIM(whoever_closes_first_is_named),
		FLOW_CLAIM(a_next_request_ends_one_whose_end_was_missed),
		FLOW_CLAIM(bytes_sent_again_count_once),
		FLOW_CLAIM(a_hole_is_flagged_and_its_bytes_count),
		FLOW_CLAIM(a_connection_met_in_the_middle_is_followed_from_its_next_request),
		FLOW_CLAIM(a_scan_that_gives_up_says_so),
		FLOW_CLAIM(a_comment_is_no_event),
		FLOW_CLAIM(a_chunked_request_lasts_until_its_answer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
