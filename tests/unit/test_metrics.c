/* The page parser finds every number that the fixtures hold, and survives what they do not. */
#include "agent/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/lib/unit.h"

static char page[METRICS_PAGE_MAX + 2];

static size_t load(const char *name)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/tests/fixtures/engines/%s", getenv("TEST_SOURCE_ROOT"),
		 name);
	FILE *file = fopen(path, "r");
	assert_non_null(file);
	size_t len = fread(page, 1, sizeof(page) - 1, file);
	fclose(file);
	assert_true(len > 0);
	return len;
}

/* One value of one page, by name; fails when it was not reported. */
static struct metric_value read_one(const char *text, size_t len, struct metric_want want,
				    metric_keep *keep)
{
	struct metrics_table table;
	struct metric_value value;
	struct metrics_report report;

	metrics_table_init(&table, &want, 1, keep);
	assert_int_equal(metrics_read(&table, text, len, &value, &report), 0);
	return value;
}

static double number(const char *text, const char *names)
{
	struct metric_value value =
		read_one(text, strlen(text), (struct metric_want){ .names = names }, NULL);

	assert_true(value.samples > 0);
	return value.value;
}

static double fixture(const char *file, const char *names)
{
	size_t len = load(file);
	struct metric_value value =
		read_one(page, len, (struct metric_want){ .names = names }, NULL);

	if (value.samples == 0)
		fail_msg("%s: no %s", file, names);
	return value.value;
}

static int absent(const char *text, const char *names)
{
	return read_one(text, strlen(text), (struct metric_want){ .names = names }, NULL).samples ==
	       0;
}

/* Without a fraction or with few enough digits to be compared exactly. */
#define EQ(a, b) assert_true((a) == (b))

static void the_vllm_page_has_the_values_it_was_made_with(void **state)
{
	const char *f = "vllm.metrics.txt";

	EQ(fixture(f, "vllm:num_requests_running"), 12);
	EQ(fixture(f, "vllm:num_requests_waiting"), 7);
	EQ(fixture(f, "vllm:num_requests_waiting_by_reason"), 7);
	EQ(fixture(f, "vllm:kv_cache_usage_perc"), 0.8731249999999999);
	EQ(fixture(f, "vllm:prefix_cache_queries_total"), 98765432);
	EQ(fixture(f, "vllm:prefix_cache_hits_total"), 91234560);
	EQ(fixture(f, "vllm:num_preemptions_total"), 3);
	EQ(fixture(f, "vllm:request_success_total"), 690);
	EQ(fixture(f, "vllm:time_to_first_token_seconds_count"), 42);
	EQ(fixture(f, "vllm:time_to_first_token_seconds_sum"), 205.51);
}

static void the_sglang_page_sums_both_kinds_of_stream(void **state)
{
	const char *f = "sglang.metrics.txt";

	EQ(fixture(f, "sglang:num_running_reqs"), 9);
	EQ(fixture(f, "sglang:num_queue_reqs"), 4);
	EQ(fixture(f, "sglang:token_usage"), 0.62);
	EQ(fixture(f, "sglang:prompt_tokens_total"), 50124656);
	EQ(fixture(f, "sglang:time_to_first_token_seconds_count"), 21);
	EQ(fixture(f, "sglang:num_retracted_reqs"), 0);
}

static void the_llamacpp_page_has_the_values_it_was_made_with(void **state)
{
	const char *f = "llamacpp.metrics.txt";

	EQ(fixture(f, "llamacpp:requests_processing"), 3);
	EQ(fixture(f, "llamacpp:requests_deferred"), 2);
	EQ(fixture(f, "llamacpp:prompt_tokens_total"), 1234570);
}

static void pages_of_live_engines_have_the_values_seen(void **state)
{
	EQ(fixture("live/vllm.metrics.queued.txt", "vllm:num_requests_running"), 1);
	EQ(fixture("live/vllm.metrics.queued.txt", "vllm:num_requests_waiting"), 2);
	EQ(fixture("live/vllm.metrics.queued.txt", "vllm:inter_token_latency_seconds_count"), 232);
	EQ(fixture("live/vllm.metrics.kvfull.txt", "vllm:num_requests_running"), 1);
	EQ(fixture("live/vllm.metrics.kvfull.txt", "vllm:num_requests_waiting"), 3);
	EQ(fixture("live/sglang.metrics.queued.txt", "sglang:num_running_reqs"), 0);
	EQ(fixture("live/sglang.metrics.txt", "sglang:prompt_tokens_total"), 570 + 1121);
	EQ(fixture("live/llamacpp.metrics.queued.txt", "llamacpp:requests_deferred"), 3);
	EQ(fixture("live/llamacpp.metrics.queued.txt", "llamacpp:prompt_tokens_cached_total"),
	   1978);
}

static void odd_spellings_are_read_and_free_text_is_skipped(void **state)
{
	const char *f = "parser-edge-cases.metrics.txt";

	EQ(fixture(f, "vllm:num_requests_running"), 3); /* escapes; the second has a time stamp */
	EQ(fixture(f, "vllm:kv_cache_usage_perc"), 5e-05); /* the NaN does not count */
	EQ(fixture(f, "vllm:iteration_tokens_total_sum"), 16777217);
	EQ(fixture(f, "unlabelled_metric"), 3);
	EQ(fixture(f, "last_line_without_newline"), 12);
	size_t len = load(f);
	assert_int_equal(
		read_one(page, len, (struct metric_want){ .names = "some_counter_total" }, NULL)
			.samples,
		0);
}

static int totals_only(const struct metric_label *labels, size_t n)
{
	const struct metric_label *priority = metrics_label(labels, n, "priority");

	return !priority || priority->value_len == 0;
}

static void a_part_beside_its_total_is_left_out_by_the_tables_rule(void **state)
{
	size_t len = load("parser-edge-cases.metrics.txt");
	struct metric_want want = { .names = "sglang:num_queue_reqs" };

	EQ(read_one(page, len, want, totals_only).value, 13);
	EQ(read_one(page, len, want, NULL).value, 14);
}

static void the_first_alias_wins_wherever_it_stands(void **state)
{
	const char *both = "old 1\nnew{a=\"x\"} 2\nold 4\nnew{a=\"y\"} 3\n";
	struct metric_want want = { .names = "new|old" };
	struct metrics_table table;
	struct metric_value value;
	struct metrics_report report;
	size_t len = 0;

	EQ(number(both, "new|old"), 5);
	EQ(number("old 7\n", "new|old"), 7);
	metrics_table_init(&table, &want, 1, NULL);
	assert_int_equal(metrics_read(&table, "old 7\n", 6, &value, &report), 0);
	const char *found = metrics_found(&table, &value, 0, &len);
	assert_int_equal(len, 3);
	assert_memory_equal(found, "old", 3);
}

static void samples_of_one_name_fold_as_the_table_says(void **state)
{
	const char *text = "x{e=\"0\"} 1\nx{e=\"1\"} 6\nx{e=\"2\"} 2\n";
	size_t len = strlen(text);

	EQ(read_one(text, len, (struct metric_want){ .names = "x", .fold = METRIC_SUM }, NULL)
		   .value,
	   9);
	EQ(read_one(text, len, (struct metric_want){ .names = "x", .fold = METRIC_MEAN }, NULL)
		   .value,
	   3);
	EQ(read_one(text, len, (struct metric_want){ .names = "x", .fold = METRIC_MAX }, NULL)
		   .value,
	   6);
	EQ(read_one(text, len, (struct metric_want){ .names = "x", .fold = METRIC_MIN }, NULL)
		   .value,
	   1);
}

static void a_label_can_be_the_number(void **state)
{
	size_t len = load("vllm.metrics.txt");
	struct metric_want want = { .names = "vllm:cache_config_info",
				    .fold = METRIC_SUM,
				    .label = "num_gpu_blocks" };

	EQ(read_one(page, len, want, NULL).value, 12801);
	want.label = "cache_dtype"; /* "auto" is no number: not reported, never 0 */
	assert_int_equal(read_one(page, len, want, NULL).samples, 0);
}

static void a_histograms_sum_and_count_may_come_in_any_order(void **state)
{
	EQ(number("h_sum 4\nh_bucket{le=\"+Inf\"} 2\nh_count 2\n", "h_sum"), 4);
	EQ(number("h_count 2\nh_bucket{le=\"+Inf\"} 9\nh_sum 4\n", "h_count"), 2);
}

static void a_name_is_never_mistaken_for_its_own_prefix(void **state)
{
	assert_true(absent("tokens_total_created 5\ntokens 4\n", "tokens_total"));
}

static void broken_lines_are_counted_and_harm_no_other(void **state)
{
	const char *text =
		"a{x=\"1\" 5\na{x=1} 5\na{=\"\"} 5\na{x=\"y 5\na 0x10\na 1e\na\na{} 7 8 9\n"
		"{x=\"y\"} 3\n-- 3\na nan\n";
	struct metric_want want = { .names = "a" };
	struct metrics_table table;
	struct metric_value value;
	struct metrics_report report;

	metrics_table_init(&table, &want, 1, NULL);
	assert_int_equal(metrics_read(&table, text, strlen(text), &value, &report), 0);

	EQ(value.value, 7);
	assert_int_equal(value.samples, 1);
	assert_int_equal(report.malformed, 9);
}

static void a_page_over_the_bound_is_refused_whole(void **state)
{
	struct metric_want want = { .names = "a" };
	struct metrics_table table;
	struct metric_value value = { .value = 77 };
	struct metrics_report report;

	memset(page, '#', sizeof(page));
	metrics_table_init(&table, &want, 1, NULL);

	assert_int_equal(metrics_read(&table, page, METRICS_PAGE_MAX + 1, &value, &report), -EFBIG);
	EQ(value.value, 77);
}

static void a_page_that_is_no_metrics_page_is_named_so(void **state)
{
	const char *html = "<html><body>\nNot Found\n</body></html>\n";
	struct metric_want want = { .names = "a" };
	struct metrics_table table;
	struct metric_value value = { .value = 77 };
	struct metrics_report report;

	metrics_table_init(&table, &want, 1, NULL);

	assert_int_equal(metrics_read(&table, "", 0, &value, &report), -ENOMSG);
	assert_int_equal(metrics_read(&table, "# only comments\n", 16, &value, &report), -ENOMSG);
	assert_true(metrics_read(&table, html, strlen(html), &value, &report) <= 0);
	EQ(value.value == 77 ? 0 : (double)value.samples, 0);
}

/* The page ends where readable memory ends: reading one byte too far is a crash, sanitizer or not.
 */
static char *against_a_guard_page(const char *text, size_t len)
{
	size_t room = (len + 4095) / 4096 * 4096;
	char *map =
		mmap(NULL, room + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(map != MAP_FAILED);
	assert_int_equal(mprotect(map + room, 4096, PROT_NONE), 0);
	memcpy(map + room - len, text, len);
	return map + room - len;
}

static uint64_t next_random(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

static void mutate(char *text, size_t len, uint64_t *seed)
{
	static const char spice[] = "{}\",=\\\n #+-.eENaInf0\0\xff";

	for (unsigned i = 0; i < 12; i++) {
		size_t at = next_random(seed) % len;

		text[at] = spice[next_random(seed) % (sizeof(spice) - 1)];
	}
}

static void mutated_and_cut_pages_never_crash(void **state)
{
	struct metric_want wants[] = {
		{ .names = "vllm:num_requests_running" },
		{ .names = "vllm:cache_config_info", .label = "block_size" },
		{ .names = "vllm:kv_cache_usage_perc|unlabelled_metric", .fold = METRIC_MEAN },
		{ .names = "sglang:num_queue_reqs" },
	};
	static const char *const files[] = { "parser-edge-cases.metrics.txt", "vllm.metrics.txt" };
	struct metrics_table table;
	uint64_t seed = 88172645463325252u;
	char copy[16384];

	metrics_table_init(&table, wants, 4, totals_only);
	for (unsigned f = 0; f < 2; f++) {
		size_t len = load(files[f]);

		assert_true(len <= sizeof(copy));
		char *guarded = against_a_guard_page(page, len);
		for (unsigned round = 0; round < 4000; round++) {
			struct metric_value values[4];
			struct metrics_report report;
			size_t cut = next_random(&seed) % len;

			memcpy(guarded, page, len);
			mutate(guarded + cut, len - cut, &seed);
			int err = metrics_read(&table, guarded + cut, len - cut, values, &report);
			assert_true(err == 0 || err == -ENOMSG);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(the_vllm_page_has_the_values_it_was_made_with),
		CLAIM(the_sglang_page_sums_both_kinds_of_stream),
		CLAIM(the_llamacpp_page_has_the_values_it_was_made_with),
		CLAIM(pages_of_live_engines_have_the_values_seen),
		CLAIM(odd_spellings_are_read_and_free_text_is_skipped),
		CLAIM(a_part_beside_its_total_is_left_out_by_the_tables_rule),
		CLAIM(the_first_alias_wins_wherever_it_stands),
		CLAIM(samples_of_one_name_fold_as_the_table_says),
		CLAIM(a_label_can_be_the_number),
		CLAIM(a_histograms_sum_and_count_may_come_in_any_order),
		CLAIM(a_name_is_never_mistaken_for_its_own_prefix),
		CLAIM(broken_lines_are_counted_and_harm_no_other),
		CLAIM(a_page_over_the_bound_is_refused_whole),
		CLAIM(a_page_that_is_no_metrics_page_is_named_so),
		CLAIM(mutated_and_cut_pages_never_crash),
	};

	return cmocka_run_group_tests_name("metrics", tests, NULL, NULL);
}
