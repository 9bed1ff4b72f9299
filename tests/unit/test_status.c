/* The picture of a region: what is absent is named, what is dead does not count, junk is bounded.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "router/status/status.h"
#include "shm/base/clock.h"
#include "shm/base/jread.h"
#include "shm/base/json.h"
#include "tests/lib/unit.h"

static char directory[64], error[REGION_ERROR_MAX], note[REGION_ERROR_MAX];
static struct region region;
static struct status *status;

static int set_up(void **state)
{
	snprintf(directory, sizeof(directory), "/dev/shm/turnward-test-XXXXXX");
	status = malloc(sizeof(*status));
	if (!status || !mkdtemp(directory))
		return -1;
	return region_open(&region, directory, 0, error);
}

static void remove_one(void *ctx, const char *name)
{
	unlinkat(region.dir_fd, name, 0);
}

static int tear_down(void **state)
{
	free(status);
	region_list(&region, "", remove_one, NULL);
	region_close(&region);
	return rmdir(directory);
}

static void router_start(struct router_file *file)
{
	const struct router_file_sizes sizes = {
		.sessions = { 4096, 11, 1 },
		.responses = { 4096, 12, 1 },
		.prefix = { 4096, 13, 1 },
		.calibration = { 4096, 14, 1 },
		.journal_records = 16,
		.journal_record_size = 64,
		.counters = 8,
	};

	assert_int_equal(router_file_hold(file, &region, &sizes, NULL, NULL, note, error), 0);
}

/* As the router publishes them: every key of its configuration, a line each. */
static void the_policies_in_force_are_told(void **state)
{
	static const char *const names[] = { "shadow_decisions", "shadow_regret_us" };
	struct router_file file;
	unsigned nr;

	router_start(&file);
	router_file_params_publish(&file, "policy.migrate = priced\npolicy.shadow_policy = eft\n"
					  "policy.policy = contention\npolicy.throughput = 1\n");
	assert_int_equal(router_file_counters_bind(&file, names, 2), 0);
	router_counter_add(&router_file_counters(&file, &nr)[1], 250000);
	assert_int_equal(status_read(status, &region), 0);
	assert_string_equal(status->policy, "contention");
	assert_string_equal(status->shadow_policy, "eft");
	assert_int_equal(status_counter(status, "shadow_regret_us"), 250000);
	assert_int_equal(status_counter(status, "no such counter"), 0);
	status_free(status);

	router_file_params_publish(&file, "policy.policy = eft\npolicy.shadow_policy =\n");
	assert_int_equal(status_read(status, &region), 0);
	assert_string_equal(status->policy, "eft");
	assert_string_equal(status->shadow_policy, "");
	status_free(status);
	router_file_drop(&file);
}

static void agent_start(struct engine_file *agent, const char *name, uint64_t health,
			uint64_t read_ns)
{
	struct engine_state s = { .health = health,
				  .read_ns = read_ns,
				  .period_ns = 100 * NS_PER_MS };

	assert_int_equal(engine_file_hold(agent, &region, name, error), 0);
	ENGINE_SET(&s, running, 7);
	engine_file_publish(agent, &s);
}

static void read_all(void)
{
	assert_int_equal(status_read(status, &region), 0);
}

static void an_empty_region_is_told_as_such(void **state)
{
	read_all();
	assert_int_equal(status->verdict, STATUS_UNKNOWN);
	assert_string_equal(status->sentence, "nothing runs in this region");
	assert_int_equal(status->engines_nr, 0);
	status_free(status);
}

static void a_router_alone_is_well_and_a_dead_one_critical(void **state)
{
	struct router_file router;

	router_start(&router);
	assert_int_equal(router_file_engine(&router, "gpu0", 1), 0);
	router_file_engine_publish(&router, 0,
				   &(struct router_engine){ .name = "gpu0", .weight = 2 });
	read_all();
	assert_int_equal(status->verdict, STATUS_OK);
	assert_int_equal(status->engines_nr, 1);
	assert_int_equal(status->engines[0].region_index, 0);
	assert_int_equal(status->engines[0].agent_present, 0);
	assert_true(status->engines[0].weight == 2);
	status_free(status);

	router_file_drop(&router);
	read_all();
	assert_int_equal(status->router_present, 1);
	assert_int_equal(status->router_alive, 0);
	assert_int_equal(status->verdict, STATUS_CRITICAL);
	status_free(status);
}

static void agents_that_are_down_old_or_dead_make_it_a_warning(void **state)
{
	struct engine_file up, down, old, dead;
	struct router_file router;

	router_start(&router);
	agent_start(&up, "a", ENGINE_HEALTH_UP, clock_ns());
	read_all();
	assert_int_equal(status->verdict, STATUS_OK);
	status_free(status);
	agent_start(&down, "b", ENGINE_HEALTH_DOWN, clock_ns());
	agent_start(&old, "c", ENGINE_HEALTH_UP, clock_ns() - 3 * (uint64_t)NS_PER_S);
	agent_start(&dead, "d", ENGINE_HEALTH_UP, clock_ns());
	engine_file_drop(&dead);
	read_all();
	assert_int_equal(status->verdict, STATUS_WARNING);
	assert_string_equal(status->sentence, "router up, 1 of 4 engines usable");
	status_free(status);
	engine_file_drop(&up);
	read_all();
	assert_int_equal(status->verdict, STATUS_CRITICAL);
	status_free(status);
	engine_file_drop(&down);
	engine_file_drop(&old);
	router_file_drop(&router);
}

static void books_of_living_workers_are_summed_and_a_dead_ones_are_not(void **state)
{
	struct ledger_file a, b;
	struct ledger_books books = { .name = "gpu0", .waiting_requests = 3, .decoding = 5 };

	assert_int_equal(ledger_file_hold(&a, &region, 16, 64, error), 0);
	assert_int_equal(ledger_file_hold(&b, &region, 16, 64, error), 0);
	ledger_file_publish(&a, 0, &books);
	books.waiting_requests = 4;
	ledger_file_publish(&b, 2, &books); /* another index, the same engine */
	read_all();
	assert_int_equal(status->engines_nr, 1);
	assert_int_equal(status->engines[0].books.waiting_requests, 7);
	assert_int_equal(status->engines[0].books.decoding, 10);
	status_free(status);
	ledger_file_drop(&a);
	read_all();
	assert_int_equal(status->engines[0].books.waiting_requests, 4);
	status_free(status);
	ledger_file_drop(&b);
}

static void the_probes_times_count_while_they_are_fresh(void **state)
{
	struct router_file router;
	struct latency_file probe;
	struct latency_record own = { .name = "gpu0", .ttft_p90_s = 1 };
	struct latency_record seen = { .name = "gpu0", .ttft_p90_s = 2 };

	router_start(&router);
	router_file_engine(&router, "gpu0", 1);
	router_file_engine_publish(&router, 0, &(struct router_engine){ .name = "gpu0" });
	own.updated_ns = seen.updated_ns = clock_ns();
	router_file_timing_publish(&router, 0, &own);
	assert_int_equal(latency_file_hold(&probe, &region, error), 0);
	latency_file_publish(&probe, 3, &seen);
	read_all();
	assert_string_equal(status->engines[0].timing_source, "probe");
	assert_true(status->engines[0].timing.ttft_p90_s == 2);
	status_free(status);
	seen.updated_ns -= 2 * (uint64_t)NS_PER_S;
	latency_file_publish(&probe, 3, &seen);
	read_all();
	assert_string_equal(status->engines[0].timing_source, "router");
	assert_true(status->engines[0].timing.ttft_p90_s == 1);
	status_free(status);
	latency_file_drop(&probe);
	router_file_drop(&router);
}

static void an_engine_that_only_the_probe_knows_is_shown_and_counts_for_no_verdict(void **state)
{
	struct latency_file probe;
	struct latency_record seen = { .name = "alone", .updated_ns = clock_ns() };

	assert_int_equal(latency_file_hold(&probe, &region, error), 0);
	latency_file_publish(&probe, 0, &seen);
	read_all();
	assert_int_equal(status->engines_nr, 1);
	assert_string_equal(status->engines[0].name, "alone");
	assert_string_equal(status->engines[0].timing_source, "probe");
	assert_int_equal(status->verdict, STATUS_UNKNOWN);
	status_free(status);
	latency_file_drop(&probe);
}

static int to_text(void *ctx, const char *text, size_t len)
{
	return fwrite(text, 1, len, ctx) == len ? 0 : -1;
}

/* The JSON of the picture; the caller frees it. */
static char *json_of(void)
{
	char buf[512], *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);
	struct json j;

	read_all();
	json_init(&j, buf, sizeof(buf));
	json_sink_set(&j, to_text, out);
	status_json(&j, status);
	assert_int_equal(json_finish(&j), 0);
	status_free(status);
	fclose(out);
	return text;
}

static void what_is_not_reported_is_named_and_never_shown_as_0(void **state)
{
	struct engine_file agent;
	char *text;

	agent_start(&agent, "gpu0", ENGINE_HEALTH_UP, clock_ns());
	text = json_of();
	assert_non_null(strstr(text, "\"running\":7"));
	assert_null(strstr(text, "\"waiting\":0"));
	assert_non_null(strstr(text, "\"waiting\""));
	assert_non_null(strstr(text, "\"ledger\":null"));
	assert_non_null(strstr(text, "\"latency\":null"));
	free(text);
	engine_file_drop(&agent);
}

static void whatever_an_agent_writes_the_json_is_whole(void **state)
{
	struct engine_file agent;
	struct engine_state s;
	struct engine_info info;
	struct jread doc;
	char *text;

	assert_int_equal(engine_file_hold(&agent, &region, "gpu0", error), 0);
	for (int round = 0; round < 64; round++) {
		memset(&s, round * 37 + 1, sizeof(s));
		memset(&info, round == 0 ? '"' : round * 5, sizeof(info));
		engine_file_publish(&agent, &s);
		engine_file_publish_info(&agent, &info);
		text = json_of();
		assert_int_equal(jread_open(&doc, text, strlen(text)), 0);
		free(text);
	}
	engine_file_drop(&agent);
}

int main(void)
{
#define IN_REGION(claim) cmocka_unit_test_setup_teardown(claim, set_up, tear_down)
	const struct CMUnitTest claims[] = {
		IN_REGION(an_empty_region_is_told_as_such),
		IN_REGION(a_router_alone_is_well_and_a_dead_one_critical),
		IN_REGION(the_policies_in_force_are_told),
		IN_REGION(agents_that_are_down_old_or_dead_make_it_a_warning),
		IN_REGION(books_of_living_workers_are_summed_and_a_dead_ones_are_not),
		IN_REGION(the_probes_times_count_while_they_are_fresh),
		IN_REGION(an_engine_that_only_the_probe_knows_is_shown_and_counts_for_no_verdict),
		IN_REGION(what_is_not_reported_is_named_and_never_shown_as_0),
		IN_REGION(whatever_an_agent_writes_the_json_is_whole),
	};

	return cmocka_run_group_tests_name("status", claims, NULL, NULL);
}
