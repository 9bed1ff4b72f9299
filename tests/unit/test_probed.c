/* What the probe's daemon makes of the kernel's records, whole or with holes. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bpf/cgroup.h"
#include "bpf/collect.h"
#include "bpf/lease.h"
#include "bpf/sockets.h"
#include "bpf/targets.h"
#include "tests/lib/unit.h"

#define S  1000000000ull
#define MS 1000000ull

static struct collect collect;
static struct open_table *table = &collect.open;
static struct latency_record records[STATE_ENGINES_MAX];

static int set_up(void **state)
{
	collect_fini(&collect);
	collect_init(&collect);
	collect_engine_reset(&collect, 0, 30 * S);
	collect_engine_reset(&collect, 1, 30 * S);
	memset(records, 0, sizeof(records));
	return 0;
}

static struct probe_record record_of(int kind, uint64_t cookie, uint32_t sequence)
{
	return (struct probe_record){ .kind = (uint8_t)kind,
				      .cookie = cookie,
				      .sequence = sequence,
				      .flags = PROBE_FLAG_STREAM,
				      .t0_first_ns = 10 * S,
				      .t0_last_ns = 10 * S + MS };
}

static void give(int kind, uint64_t cookie, uint32_t sequence, unsigned flags)
{
	struct probe_record r = record_of(kind, cookie, sequence);

	r.flags |= (uint16_t)flags;
	r.status = flags & PROBE_FLAG_ERROR ? 503 : 200;
	if (kind != PROBE_START) {
		r.t_hdr_ns = 10 * S + 5 * MS;
		r.t_tok_ns = 10 * S + 250 * MS;
	}
	if (kind == PROBE_END) {
		r.t_end_ns = 12 * S + 250 * MS;
		r.segments = 21;
	}
	collect_take(&collect, &r, 13 * S);
}

static const struct latency_record *ask(uint64_t now_ns)
{
	collect_records(&collect, now_ns, records, 2);
	return &records[0];
}

static int near(double value, double want)
{
	return value > 0.95 * want && value < 1.05 * want;
}

/* ---- what counts ---- */

static void a_clean_stream_counts_once_with_all_its_times(void **state)
{
	give(PROBE_START, 1, 1, 0);
	assert_int_equal(ask(11 * S)->waiting, 1);
	assert_int_equal(ask(11 * S)->oldest_wait_start_ns, 10 * S);
	give(PROBE_TOKEN, 1, 1, 0);
	assert_int_equal(ask(11 * S)->waiting, 0);
	give(PROBE_END, 1, 1, 0);
	const struct latency_record *r = ask(13 * S);

	assert_int_equal(r->n, 1);
	assert_int_equal(r->first_tokens_total, 1);
	assert_int_equal(r->finished_total, 1);
	assert_true(near(r->ttft_p50_s, 0.25) && near(r->e2e_p50_s, 2.25));
	assert_true(near(r->itl_p50_s, 0.1));
	assert_int_equal(table->n, 0);
}

static void a_lost_token_or_start_costs_freshness_only(void **state)
{
	give(PROBE_START, 1, 1, 0);
	give(PROBE_END, 1, 1, 0); /* its TOKEN was lost */
	give(PROBE_TOKEN, 2, 1, 0);
	give(PROBE_END, 2, 1, 0); /* its START was */
	give(PROBE_END, 3, 1, 0); /* both were */

	assert_int_equal(ask(13 * S)->n, 3);
	assert_int_equal(records[0].finished_total, 3);
	assert_int_equal(records[0].waiting, 0);
	assert_int_equal(table->n, 0);
}

/* Errors would look like excellent first tokens. */
static void no_ttft_comes_from_what_is_doubtful(void **state)
{
	static const unsigned spoiled[] = { PROBE_FLAG_LAZY,     PROBE_FLAG_GAP,
					    PROBE_FLAG_EARLY,    PROBE_FLAG_ECHO,
					    PROBE_FLAG_CAPPED,   PROBE_FLAG_ERROR,
					    PROBE_FLAG_NONSTREAM };

	for (uint64_t i = 0; i < 7; i++) {
		give(PROBE_START, i + 1, 1, 0);
		give(PROBE_TOKEN, i + 1, 1, spoiled[i]);
		give(PROBE_END, i + 1, 1, spoiled[i]);
	}

	assert_int_equal(ask(13 * S)->n, 0);
	assert_int_equal(records[0].flagged, 5); /* all but an error and an answer without stream */
	assert_int_equal(records[0].errors, 1);
	assert_int_equal(records[0].finished_total, 5);
}

static void sent_again_is_harmless(void **state)
{
	give(PROBE_TOKEN, 1, 1, PROBE_FLAG_RETX);

	assert_int_equal(ask(13 * S)->n, 1);
}

static void a_wait_that_its_client_gave_up_is_recent_and_no_ttft(void **state)
{
	struct probe_record r = record_of(PROBE_END, 1, 1);

	give(PROBE_START, 1, 1, 0);
	r.flags |= PROBE_FLAG_ABORT;
	r.t_end_ns = 17 * S;
	assert_int_equal(collect_take(&collect, &r, 17 * S), 1);

	assert_int_equal(ask(18 * S)->n, 0);
	assert_int_equal(records[0].aborts, 1);
	assert_int_equal(records[0].recent_n, 1);
	assert_true(near(records[0].recent_p90_s, 7));
}

static void what_is_not_known_to_stream_waits_apart_until_it_is(void **state)
{
	struct probe_record r = record_of(PROBE_START, 1, 1);

	r.flags = 0;
	collect_take(&collect, &r, 11 * S);
	assert_int_equal(ask(11 * S)->waiting, 0);
	assert_int_equal(records[0].waiting_other, 1);
	assert_int_equal(records[0].oldest_wait_start_ns, 0);
	give(PROBE_START, 1, 1, 0); /* a later part of the body says so */
	assert_int_equal(ask(11 * S)->waiting, 1);
	assert_int_equal(records[0].waiting_other, 0);
}

static void a_second_start_after_the_token_opens_no_wait(void **state)
{
	give(PROBE_START, 1, 1, 0);
	give(PROBE_TOKEN, 1, 1, 0);
	give(PROBE_START, 1, 1, 0);

	assert_int_equal(ask(13 * S)->waiting, 0);
	give(PROBE_END, 1, 1, 0);
	assert_int_equal(ask(13 * S)->n, 1);
}

static void records_of_no_engine_of_ours_are_passed_over(void **state)
{
	struct probe_record r = record_of(PROBE_START, 1, 1);

	r.engine = 200;
	assert_int_equal(collect_take(&collect, &r, 11 * S), 0);
	r.engine = 2; /* nobody has it */
	assert_int_equal(collect_take(&collect, &r, 11 * S), 0);
	assert_int_equal(table->n, 0);
}

/* ---- the open table ---- */

static void the_next_request_of_a_socket_ends_one_whose_end_was_lost(void **state)
{
	give(PROBE_START, 1, 1, 0);
	give(PROBE_START, 1, 2, 0);
	assert_int_equal(ask(13 * S)->waiting, 1);
	give(PROBE_END, 1, 1, 0); /* late, of the former: the present one still waits */
	assert_int_equal(ask(13 * S)->waiting, 1);
	give(PROBE_END, 1, 2, 0);
	assert_int_equal(ask(13 * S)->waiting, 0);
}

static enum open_socket ask_by_parity(void *ctx, struct open_entry *e)
{
	(*(int *)ctx)++;
	return e->cookie % 3 == 0   ? OPEN_SOCKET_SILENT
	       : e->cookie % 3 == 1 ? OPEN_SOCKET_GONE
				    : OPEN_SOCKET_ANSWERED;
}

static void after_a_loss_only_sockets_that_wait_still_wait(void **state)
{
	int asked = 0;

	for (uint64_t i = 1; i <= 3000; i++)
		give(PROBE_START, i, 1, 0);
	assert_int_equal(collect_lost(&collect, 17), 1);
	give(PROBE_START, 4000, 1, 0); /* since the loss: no doubt */
	open_settle(table, ask_by_parity, &asked);

	assert_int_equal(asked, 3000);
	assert_int_equal(ask(13 * S)->waiting, 1001);
	assert_int_equal(records[0].lost, 17);
	assert_int_equal(collect_lost(&collect, 17), 0);
	open_settle(table, ask_by_parity, &asked);
	assert_int_equal(asked, 3000); /* settled is settled */
}

static void what_is_very_old_waits_no_longer(void **state)
{
	give(PROBE_START, 1, 1, 0);

	assert_int_equal(open_expire(table, (10 + OPEN_AGE_MAX_S) * S), 0);
	assert_int_equal(open_expire(table, (10 + OPEN_AGE_MAX_S) * S + 1), 1);
	assert_int_equal(ask(13 * S)->waiting, 0);
}

static void a_full_table_waits_with_what_it_has(void **state)
{
	for (uint64_t i = 1; i <= OPEN_MAX + 100; i++)
		give(PROBE_START, i, 1, 0);
	assert_int_equal(ask(13 * S)->waiting, OPEN_MAX);
	assert_int_equal(table->unseen, 100);
	for (uint64_t i = 1; i <= OPEN_MAX + 100; i++)
		give(PROBE_END, i, 1, 0);
	assert_int_equal(ask(13 * S)->waiting, 0);
	assert_int_equal(records[0].n, OPEN_MAX + 100); /* none is lost */
}

/* Random requests against a plain list: removal must never hide an entry from its socket. */
static void the_table_agrees_with_a_list_of_what_is_open(void **state)
{
	static uint32_t sequence[500];
	static uint8_t is_open[500];
	unsigned seed = 5;
	uint64_t waiting = 0;

	memset(sequence, 0, sizeof(sequence));
	memset(is_open, 0, sizeof(is_open));
	for (int i = 0; i < 200000; i++) {
		unsigned k = (unsigned)rand_r(&seed) % 500;
		struct probe_record r = record_of(PROBE_START, 0x10001ull * (k + 1), 0);

		if (rand_r(&seed) % 2) {
			sequence[k]++;
			waiting += !is_open[k];
			is_open[k] = 1;
		} else {
			waiting -= is_open[k];
			is_open[k] = 0;
			r.kind = PROBE_END;
		}
		r.sequence = sequence[k];
		collect_take(&collect, &r, 13 * S);
		assert_int_equal(table->n, waiting);
	}
}

/* ---- samples and the lease ---- */

static void a_sample_is_one_line_of_json(void **state)
{
	struct probe_record r = record_of(PROBE_END, 1, 1);
	char line[COLLECT_SAMPLE_MAX];
	unsigned n;

	r.flags |= PROBE_FLAG_RETX;
	r.client_port = 40000;
	r.status = 200;
	r.tx_bytes = r.rx_bytes = UINT64_MAX; /* the longest there is */
	r.t_hdr_ns = r.t_tok_ns = r.t_end_ns = UINT64_MAX;
	n = collect_sample(line, &r, "a23456789a123456789a123456789a12");

	assert_int_equal(n, strlen(line));
	assert_int_equal(line[n - 1], '\n');
	assert_non_null(strstr(line, "\"client_port\":40000,\"status\":200,\"flags\":16,"));
}

static void empty(const char *dir)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/latency", dir);
	unlink(path);
	rmdir(dir);
}

static void the_second_probe_publishes_when_the_first_has_ended(void **state)
{
	static struct lease first, second;
	char dir[] = "/tmp/turnward-unit-XXXXXX";
	struct latency_file reader;
	struct latency_record got;
	char error[REGION_ERROR_MAX];

	assert_non_null(mkdtemp(dir));
	assert_int_equal(lease_open(&first, dir), 0);
	assert_int_equal(lease_open(&second, dir), 0);
	assert_int_equal(lease_keep(&first, 10 * S), LEASE_TAKEN);
	assert_int_equal(lease_keep(&second, 10 * S), LEASE_WAITS);
	assert_int_equal(lease_keep(&second, 11 * S), LEASE_NONE);
	strcpy(records[0].name, "e0");
	records[0].updated_ns = 5;
	lease_publish(&second, records, 1); /* has no right to */
	assert_int_equal(latency_file_attach(&reader, &first.region, error), 0);
	assert_int_equal(latency_file_find(&reader, "e0"), -ENOENT);
	lease_publish(&first, records, 1);
	assert_int_equal(latency_file_find(&reader, "e0"), 0);

	lease_close(&first);

	assert_int_equal(latency_file_read(&reader, 0, &got), 0);
	assert_int_equal(got.updated_ns, 0); /* nobody waits for it to grow old */
	assert_int_equal(lease_keep(&second, 12 * S), LEASE_TAKEN);
	latency_file_drop(&reader);
	lease_close(&second);
	empty(dir);
}

static void a_region_that_was_removed_is_made_again(void **state)
{
	static struct lease lease;
	char dir[] = "/tmp/turnward-unit-XXXXXX";

	assert_non_null(mkdtemp(dir));
	assert_int_equal(lease_open(&lease, dir), 0);
	assert_int_equal(lease_keep(&lease, 10 * S), LEASE_TAKEN);
	empty(dir);

	assert_int_equal(lease_keep(&lease, 12 * S), LEASE_LOST);
	lease_publish(&lease, records, 1); /* nowhere, and no harm */
	assert_int_equal(lease_keep(&lease, 13 * S), LEASE_TAKEN);
	assert_int_equal(access(dir, R_OK), 0);
	lease_close(&lease);
	empty(dir);
}

/* ---- engines, sockets, cgroups ---- */

static void an_engine_keeps_its_index_and_its_addresses_are_looked_up(void **state)
{
	static struct targets targets;
	static struct probe_address list[PROBE_ADDRESSES_MAX];
	char why[TARGET_WHY_MAX];

	memset(&targets, 0, sizeof(targets));
	assert_int_equal(targets_add(&targets, "a=http://127.0.0.1:8000", 1, why), 0);
	assert_int_equal(targets_add(&targets, "b=http://[::1]:8001", 1, why), 0);
	assert_int_equal(targets_add(&targets, "c=unix:/run/c", 1, why), 0);
	assert_int_equal(targets_add(&targets, "d=https://127.0.0.1:1", 1, why), -EINVAL);
	assert_int_equal(targets.renamed, 7);
	assert_int_equal(targets_addresses(&targets, list, PROBE_ADDRESSES_MAX), 2);
	assert_int_equal(list[1].engine, 1);
	assert_int_equal(list[1].address.ss_family, AF_INET6);
	assert_int_equal(((struct sockaddr_in6 *)&list[1].address)->sin6_port, htons(8001));
	assert_non_null(strstr(targets.target[2].why, "Unix socket"));
	targets.renamed = targets.changed = 0;
	assert_int_equal(targets_add(&targets, "a=http://127.0.0.1:9000", 2, why), 0);
	assert_int_equal(targets.nr, 3);
	assert_int_equal(targets.renamed, 0); /* the same engine elsewhere: its window goes on */
	assert_int_equal(targets.changed, 1);
}

static void agents_engines_come_and_go(void **state)
{
	static struct targets targets;
	char dir[] = "/tmp/turnward-unit-XXXXXX", error[REGION_ERROR_MAX], path[128];
	struct engine_info info = { .url = "http://127.0.0.1:8000" };
	struct engine_file agent;
	struct region region;

	memset(&targets, 0, sizeof(targets));
	assert_non_null(mkdtemp(dir));
	assert_int_equal(region_open(&region, dir, 1, error), 0);
	assert_int_equal(engine_file_hold(&agent, &region, "gpu0", error), 0);
	engine_file_publish_info(&agent, &info);
	targets_follow(&targets, &region, 1);
	assert_string_equal(targets.target[0].name, "gpu0");
	assert_int_equal(targets.target[0].addresses_nr, 1);
	targets.changed = 0;
	targets_follow(&targets, &region, 2);
	assert_int_equal(targets.changed, 0);
	engine_file_drop(&agent);
	snprintf(path, sizeof(path), "%s/engine.gpu0", dir);
	unlink(path);
	targets_follow(&targets, &region, 3);
	assert_int_equal(targets.changed, 1);
	assert_string_equal(targets.target[0].name, "");
	region_close(&region);
	rmdir(dir);
}

static void a_socket_is_known_by_its_cookie_and_tells_that_it_waits(void **state)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(at), cookie_len = sizeof(uint64_t);
	int listener = socket(AF_INET, SOCK_STREAM, 0), mine = socket(AF_INET, SOCK_STREAM, 0);
	const struct socket_seen *seen;
	struct sockets sockets;
	uint64_t cookie = 0;
	int peer;

	assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &len), 0);
	assert_int_equal(connect(mine, (struct sockaddr *)&at, len), 0);
	peer = accept(listener, NULL, NULL);
	assert_int_equal(getsockopt(mine, SOL_SOCKET, SO_COOKIE, &cookie, &cookie_len), 0);
	assert_int_equal(write(mine, "x", 1), 1);
	if (sockets_read(&sockets) < 0)
		test_skip("the kernel has no sock_diag");
	seen = sockets_find(&sockets, cookie);
	assert_non_null(seen);
	assert_true(seen->received_ms >= seen->sent_ms); /* asked, not answered */
	assert_null(sockets_find(&sockets, cookie ^ 1ull << 60));
	sockets_free(&sockets);
	close(peer);
	close(mine);
	close(listener);
}

static void a_cgroup_contains_itself_and_what_is_below(void **state)
{
	assert_true(cgroup_contains("/", "/a/b"));
	assert_true(cgroup_contains("/a", "/a"));
	assert_true(cgroup_contains("/a/", "/a/b"));
	assert_false(cgroup_contains("/a", "/ab"));
	assert_false(cgroup_contains("/a/b", "/a"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define SET_UP(claim) cmocka_unit_test_setup(claim, set_up)
		SET_UP(a_clean_stream_counts_once_with_all_its_times),
		SET_UP(a_lost_token_or_start_costs_freshness_only),
		SET_UP(no_ttft_comes_from_what_is_doubtful),
		SET_UP(sent_again_is_harmless),
		SET_UP(a_wait_that_its_client_gave_up_is_recent_and_no_ttft),
		SET_UP(what_is_not_known_to_stream_waits_apart_until_it_is),
		SET_UP(a_second_start_after_the_token_opens_no_wait),
		SET_UP(records_of_no_engine_of_ours_are_passed_over),
		SET_UP(the_next_request_of_a_socket_ends_one_whose_end_was_lost),
		SET_UP(after_a_loss_only_sockets_that_wait_still_wait),
		SET_UP(what_is_very_old_waits_no_longer),
		SET_UP(a_full_table_waits_with_what_it_has),
		SET_UP(the_table_agrees_with_a_list_of_what_is_open),
		SET_UP(a_sample_is_one_line_of_json),
		SET_UP(the_second_probe_publishes_when_the_first_has_ended),
		SET_UP(a_region_that_was_removed_is_made_again),
		SET_UP(an_engine_keeps_its_index_and_its_addresses_are_looked_up),
		SET_UP(agents_engines_come_and_go),
		SET_UP(a_socket_is_known_by_its_cookie_and_tells_that_it_waits),
		SET_UP(a_cgroup_contains_itself_and_what_is_below),
	};

	return cmocka_run_group_tests_name("probed", tests, NULL, NULL);
}
