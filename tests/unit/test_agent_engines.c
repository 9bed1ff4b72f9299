/* Every kind of engine's pages become the numbers that they hold, and nothing that they do not. */
#include <errno.h>
#include <math.h>

#include "agent/engine.h"
#include "tests/lib/engine_fixture.h"
#include "tests/lib/unit.h"

static struct fixture fixture;
static struct engine_reading reading;
static struct engine_info info;

static int sample_text(const struct engine_ops *ops, enum engine_source source, const char *text,
		       size_t len)
{
	struct engine_page page = { .source = source, .body = text, .len = len };

	return ops->sample(&page, &reading, &info);
}

/* Reads one fixture on its own. */
static int sample(const struct engine_ops *ops, enum engine_source source, const char *file)
{
	memset(&reading, 0, sizeof(reading));
	memset(&info, 0, sizeof(info));
	fixture_load(&fixture, file);
	return sample_text(ops, source, fixture.body, fixture.len);
}

#define HAS(name, expected)                                     \
	do {                                                    \
		assert_true(ENGINE_HAS(&reading.state, name));  \
		assert_int_equal(reading.state.name, expected); \
	} while (0)
#define LACKS(name) assert_false(ENGINE_HAS(&reading.state, name))

static int trusted(enum engine_field field)
{
	return (int)(reading.state.trusted >> field & 1);
}

static int near(double a, double b)
{
	return fabs(a - b) <= 1e-9 * fabs(b);
}

static void the_vllm_page_is_read_as_it_was_made(void **state)
{
	assert_int_equal(sample(&engine_vllm, SOURCE_METRICS, "vllm.metrics.txt"), 0);

	HAS(running, 12);
	HAS(waiting, 7);
	HAS(block_size, 16);
	HAS(kv_capacity_tokens, 12801 * 16);
	HAS(kv_used_tokens, 178830); /* 0.873125 of it */
	HAS(queried_tokens_total, 98765432);
	HAS(cached_tokens_total, 91234560);
	HAS(preemptions_total, 3);
	HAS(prompt_tokens_total, 98760001);
	HAS(generation_tokens_total, 1048577);
	HAS(finished_total, 690);
	assert_true(reading.has & READING_DECODE);
	assert_true(near(reading.decode_s / reading.decode_steps, 0.04495));
	assert_true(reading.start_id != 0);
}

static void vllm_reports_no_queued_tokens_and_none_are_made_up(void **state)
{
	assert_int_equal(sample(&engine_vllm, SOURCE_METRICS, "vllm.metrics.txt"), 0);

	LACKS(pending_prefill_tokens);
	LACKS(decode_context_tokens);
	LACKS(admitted_total);
	LACKS(step_budget_tokens);
	assert_false(reading.has & READING_PREFILL); /* the page has no such histograms */
}

static void vllms_finished_requests_are_not_trusted_since_aborts_are_missing(void **state)
{
	assert_int_equal(sample(&engine_vllm, SOURCE_METRICS, "vllm.metrics.txt"), 0);

	assert_false(trusted(ENGINE_FIELD_finished_total));
	assert_true(trusted(ENGINE_FIELD_prompt_tokens_total));
	assert_true(trusted(ENGINE_FIELD_generation_tokens_total));
}

static void a_live_vllm_with_a_queue_is_read(void **state)
{
	assert_int_equal(sample(&engine_vllm, SOURCE_METRICS, "live/vllm.metrics.queued.txt"), 0);

	HAS(running, 1);
	HAS(waiting, 2);
	HAS(block_size, 128);
	HAS(kv_capacity_tokens, 1048576);
	HAS(kv_used_tokens, 768); /* six blocks */
	HAS(prompt_tokens_total, 836);
	HAS(generation_tokens_total, 234);
	assert_true(reading.has & READING_PREFILL);
	assert_true(near(reading.prefill_s, 0.022476065999853745));
	assert_true(reading.prefill_tokens > 400);
	assert_true(near(reading.decode_steps, 232));
}

static void a_live_vllm_short_of_kv_room_is_read(void **state)
{
	assert_int_equal(sample(&engine_vllm, SOURCE_METRICS, "live/vllm.metrics.kvfull.txt"), 0);

	HAS(running, 1);
	HAS(waiting, 3);
	HAS(block_size, 32);
	assert_true(reading.state.kv_used_tokens * 100 / reading.state.kv_capacity_tokens == 65);
}

static void an_old_vllms_names_are_found_and_told(void **state)
{
	const char *old = "vllm:num_requests_running 2\nvllm:gpu_cache_usage_perc 0.5\n"
			  "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\"} 1\n"
			  "vllm:gpu_prefix_cache_hits_total 7\n"
			  "vllm:time_per_output_token_seconds_sum 3\n"
			  "vllm:time_per_output_token_seconds_count 60\n";
	size_t aliases = 0;

	memset(&reading, 0, sizeof(reading));
	assert_int_equal(sample_text(&engine_vllm, SOURCE_METRICS, old, strlen(old)), 0);

	HAS(kv_used_tokens, 800);
	HAS(cached_tokens_total, 7);
	assert_true(near(reading.decode_s / reading.decode_steps, 0.05));
	for (size_t i = 0; i < METRICS_WANTS_MAX; i++)
		aliases += reading.found[i] == 2;
	assert_int_equal(aliases, 4);
}

static void a_vllm_without_statistics_is_told_apart_from_an_idle_one(void **state)
{
	const char *bare = "process_cpu_seconds_total 3\nhttp_requests_total 4\n";

	memset(&reading, 0, sizeof(reading));
	assert_int_equal(sample_text(&engine_vllm, SOURCE_METRICS, bare, strlen(bare)), -ENODATA);
	assert_int_equal(reading.state.present, 0);
}

static void data_parallel_ranks_of_one_vllm_add_up(void **state)
{
	const char *two = "vllm:num_requests_running{engine=\"0\"} 2\n"
			  "vllm:num_requests_running{engine=\"1\"} 3\n"
			  "vllm:kv_cache_usage_perc{engine=\"0\"} 0.2\n"
			  "vllm:kv_cache_usage_perc{engine=\"1\"} 0.4\n"
			  "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\"} 1\n"
			  "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\"} 1\n";

	memset(&reading, 0, sizeof(reading));
	assert_int_equal(sample_text(&engine_vllm, SOURCE_METRICS, two, strlen(two)), 0);

	HAS(running, 5);
	HAS(kv_capacity_tokens, 3200);
	HAS(kv_used_tokens, 960);
}

static void sglang_loads_are_read_with_their_own_timing(void **state)
{
	assert_int_equal(sample(&engine_sglang, SOURCE_LOADS, "sglang.loads.json"), 0);

	HAS(running, 9);
	HAS(waiting, 4);
	HAS(pending_prefill_tokens, 18233);
	HAS(kv_used_tokens, 126976);
	HAS(kv_capacity_tokens, 204800);
	assert_string_equal(info.version, "0.5.17");
	assert_in_range(reading.snapshot_wall_ns / 1000, 1796020801241199, 1796020801241201);
	assert_true(near(reading.prefill_tokens, 7525441));
	assert_true(near(reading.prefill_s, 2400.118007));
	assert_true(near(reading.moments[MOMENT_N], 61012));
	assert_true(near(reading.moments[MOMENT_T], 2745.54));
	assert_true(near(reading.moments[MOMENT_BT], 24100));
}

static void a_live_sglang_queue_shows_in_loads_although_metrics_say_zero(void **state)
{
	assert_int_equal(sample(&engine_sglang, SOURCE_LOADS, "live/sglang.loads.queued.http"), 0);
	HAS(running, 1);
	HAS(waiting, 3);
	HAS(pending_prefill_tokens, 1242);
	LACKS(decode_context_tokens);

	assert_int_equal(sample(&engine_sglang, SOURCE_METRICS, "live/sglang.metrics.queued.txt"),
			 0);
	HAS(running, 0);
	LACKS(decode_context_tokens); /* its 0 is stale, not true */
	LACKS(cached_tokens_total);   /* not on the page before the first hit */
}

static void the_sglang_page_adds_totals_that_are_not_trusted(void **state)
{
	assert_int_equal(sample(&engine_sglang, SOURCE_METRICS, "sglang.metrics.txt"), 0);

	HAS(running, 9);
	HAS(waiting, 4);
	HAS(prompt_tokens_total, 50124656);
	HAS(cached_tokens_total, 46111111);
	HAS(kv_capacity_tokens, 204800);
	HAS(block_size, 1);
	assert_int_equal(reading.state.trusted, 0);
}

static void a_live_sglang_page_is_read(void **state)
{
	assert_int_equal(sample(&engine_sglang, SOURCE_METRICS, "live/sglang.metrics.txt"), 0);

	HAS(prompt_tokens_total, 570 + 1121);
	HAS(generation_tokens_total, 17 + 25);
	HAS(finished_total, 3 + 5);
	HAS(cached_tokens_total, 1113);
	HAS(max_model_len, 32768);
	assert_true(reading.start_id != 0);
}

static void sglangs_priorities_and_ranks_are_not_counted_twice(void **state)
{
	const char *page = "sglang:num_running_reqs{priority=\"\",tp_rank=\"0\"} 5\n"
			   "sglang:num_running_reqs{priority=\"1\",tp_rank=\"0\"} 2\n"
			   "sglang:num_running_reqs{priority=\"2\",tp_rank=\"0\"} 3\n"
			   "sglang:num_running_reqs{priority=\"\",tp_rank=\"1\"} 5\n";

	memset(&reading, 0, sizeof(reading));
	assert_int_equal(sample_text(&engine_sglang, SOURCE_METRICS, page, strlen(page)), 0);
	HAS(running, 5);
}

static void an_older_sglangs_loads_lack_what_they_lack(void **state)
{
	const char *old = "{\"loads\":[{\"num_running_reqs\":2,\"num_waiting_reqs\":0,"
			  "\"timestamp\":1.5}]}";

	memset(&reading, 0, sizeof(reading));
	assert_int_equal(sample_text(&engine_sglang, SOURCE_LOADS, old, strlen(old)), 0);

	HAS(running, 2);
	LACKS(pending_prefill_tokens);
	LACKS(kv_used_tokens);
	assert_false(reading.has & (READING_PREFILL | READING_MOMENTS));
	assert_true(reading.has & READING_PROGRESS); /* the stamp itself */
}

static void ranks_that_tell_unequally_are_not_summed(void **state)
{
	const char *two = "{\"loads\":[{\"num_running_reqs\":2,\"num_waiting_uncached_tokens\":5},"
			  "{\"num_running_reqs\":1}]}";

	memset(&reading, 0, sizeof(reading));
	assert_int_equal(sample_text(&engine_sglang, SOURCE_LOADS, two, strlen(two)), 0);
	HAS(running, 3);
	LACKS(pending_prefill_tokens);
}

static void the_llamacpp_page_is_read_and_its_six_digits_are_not_trusted(void **state)
{
	assert_int_equal(sample(&engine_llamacpp, SOURCE_METRICS, "llamacpp.metrics.txt"), 0);

	HAS(running, 3);
	HAS(waiting, 2);
	HAS(generation_tokens_total, 88123);
	LACKS(prompt_tokens_total); /* without the cached ones it would be another number */
	assert_int_equal(reading.digits, 6);
	assert_true(near(reading.prefill_tokens, 1234570));
	assert_true(near(reading.decode_s, 5011.02));
}

static void a_live_llamacpp_counts_cached_tokens_as_prompt_tokens(void **state)
{
	assert_int_equal(
		sample(&engine_llamacpp, SOURCE_METRICS, "live/llamacpp.metrics.queued.txt"), 0);

	HAS(running, 1);
	HAS(waiting, 3);
	HAS(prompt_tokens_total, 2214 + 1978);
	HAS(cached_tokens_total, 1978);
	HAS(queried_tokens_total, 2214 + 1978);
	assert_true(trusted(ENGINE_FIELD_prompt_tokens_total)); /* below 10^6: six digits hold it */
}

static void a_total_past_six_digits_loses_its_trust(void **state)
{
	const char *big =
		"llamacpp:requests_processing 0\nllamacpp:tokens_predicted_total 1.23457e+06\n";

	memset(&reading, 0, sizeof(reading));
	assert_int_equal(sample_text(&engine_llamacpp, SOURCE_METRICS, big, strlen(big)), 0);
	HAS(generation_tokens_total, 1234570);
	assert_false(trusted(ENGINE_FIELD_generation_tokens_total));
}

static void a_busy_slot_tells_context_and_movement(void **state)
{
	assert_int_equal(sample(&engine_llamacpp, SOURCE_SLOTS, "live/llamacpp.slots.busy.http"),
			 0);
	uint64_t progress = reading.progress;

	HAS(running, 1);
	HAS(decode_context_tokens, 418 + 1 + 1215);
	HAS(kv_used_tokens, 1634);
	HAS(max_model_len, 32768);
	HAS(kv_capacity_tokens, 32768);
	LACKS(waiting);
	LACKS(pending_prefill_tokens);
	char *decoded = strstr(fixture.text, "\"n_decoded\":1215");
	assert_non_null(decoded);
	memcpy(decoded, "\"n_decoded\":1216", 16);
	assert_int_equal(sample_text(&engine_llamacpp, SOURCE_SLOTS, fixture.body, fixture.len), 0);
	assert_true(reading.progress != progress);
}

static void an_idle_slot_is_zero_running_not_unknown(void **state)
{
	assert_int_equal(sample(&engine_llamacpp, SOURCE_SLOTS, "live/llamacpp.slots.idle.http"),
			 0);

	HAS(running, 0);
	HAS(decode_context_tokens, 0);
}

static void models_come_with_the_longest_context(void **state)
{
	assert_int_equal(sample(&engine_vllm, SOURCE_MODELS, "live/vllm.models.http"), 0);

	assert_int_equal(info.models_nr, 1);
	assert_string_equal(info.models[0], "tiny");
	HAS(max_model_len, 32768);
}

static void a_list_that_cannot_be_kept_whole_means_any_name(void **state)
{
	char many[4096] = "{\"data\":[";
	const char *empty = "{\"data\":[]}", *none = "{\"error\":1}";

	for (int i = 0; i <= STATE_MODELS_MAX; i++)
		snprintf(many + strlen(many), sizeof(many) - strlen(many), "%s{\"id\":\"m%d\"}",
			 i ? "," : "", i);
	strcat(many, "]}");
	assert_int_equal(sample_text(&engine_vllm, SOURCE_MODELS, many, strlen(many)), -ENODATA);
	assert_int_equal(info.models_nr, 0);
	assert_int_equal(sample_text(&engine_vllm, SOURCE_MODELS, empty, strlen(empty)), -ENODATA);
	assert_int_equal(sample_text(&engine_vllm, SOURCE_MODELS, none, strlen(none)), -EBADMSG);
}

static void versions_are_read(void **state)
{
	assert_int_equal(sample(&engine_vllm, SOURCE_VERSION, "live/vllm.version.http"), 0);
	assert_string_equal(info.version, "0.32.0");
	assert_int_equal(sample(&engine_llamacpp, SOURCE_PROPS, "live/llamacpp.props.http"), 0);
	assert_string_equal(info.version, "b0-unknown");
}

static const struct engine_ops *recognised(enum engine_source source, const char *file)
{
	const struct engine_ops *found = NULL;

	fixture_load(&fixture, file);
	struct engine_page page = { .source = source, .body = fixture.body, .len = fixture.len };
	for (size_t i = 0; engine_kinds[i]; i++) {
		if (!engine_kinds[i]->probe(&page))
			continue;
		assert_null(found); /* no page is claimed by two */
		found = engine_kinds[i];
	}
	return found;
}

static void each_kind_knows_its_own_pages_and_no_others(void **state)
{
	assert_ptr_equal(recognised(SOURCE_MODELS, "live/vllm.models.http"), &engine_vllm);
	assert_ptr_equal(recognised(SOURCE_METRICS, "live/vllm.metrics.txt"), &engine_vllm);
	assert_ptr_equal(recognised(SOURCE_METRICS, "live/sglang.metrics.txt"), &engine_sglang);
	assert_ptr_equal(recognised(SOURCE_LOADS, "live/sglang.loads.http"), &engine_sglang);
	assert_ptr_equal(recognised(SOURCE_METRICS, "live/llamacpp.metrics.txt"), &engine_llamacpp);
	assert_ptr_equal(recognised(SOURCE_PROPS, "live/llamacpp.props.http"), &engine_llamacpp);
	assert_null(recognised(SOURCE_METRICS, "live/vllm.err.404.http"));
	assert_null(recognised(SOURCE_MODELS, "live/vllm.err.badjson.http"));
}

/* Every page of every kind, hit at random places: never a crash, and failures change nothing. */
static const struct {
	const struct engine_ops *ops;
	enum engine_source source;
	const char *file;
} pages[] = {
	{ &engine_vllm, SOURCE_METRICS, "vllm.metrics.txt" },
	{ &engine_vllm, SOURCE_MODELS, "live/vllm.models.http" },
	{ &engine_sglang, SOURCE_LOADS, "sglang.loads.json" },
	{ &engine_sglang, SOURCE_METRICS, "sglang.metrics.txt" },
	{ &engine_llamacpp, SOURCE_METRICS, "llamacpp.metrics.txt" },
	{ &engine_llamacpp, SOURCE_SLOTS, "live/llamacpp.slots.busy.http" },
	{ &engine_llamacpp, SOURCE_PROPS, "live/llamacpp.props.http" },
};

static uint64_t next_random(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

static void mutate_and_sample(size_t p, uint64_t *seed)
{
	static const char spice[] = "{}[]\",:=\\\n 0-.eN\xff";
	size_t len = fixture.len - next_random(seed) % (fixture.len / 2);
	char *copy = malloc(len); /* exact size: the sanitizer sees a byte too far */

	memcpy(copy, fixture.body, len);
	for (unsigned i = 0; i < 1 + next_random(seed) % 6; i++)
		copy[next_random(seed) % len] = spice[next_random(seed) % (sizeof(spice) - 1)];
	memset(&reading, 0, sizeof(reading));
	int err = sample_text(pages[p].ops, pages[p].source, copy, len);
	assert_true(err == 0 || err == -EBADMSG || err == -ENODATA);
	if (err == -EBADMSG)
		assert_int_equal(reading.state.present, 0);
	assert_true(info.models_nr <= STATE_MODELS_MAX);
	struct engine_page page = { pages[p].source, copy, len, 0 };
	for (size_t i = 0; engine_kinds[i]; i++)
		(void)engine_kinds[i]->probe(&page);
	free(copy);
}

static void mutated_pages_never_crash_and_failures_leave_no_trace(void **state)
{
	uint64_t seed = 2463534242u;

	for (size_t p = 0; p < sizeof(pages) / sizeof(pages[0]); p++) {
		fixture_load(&fixture, pages[p].file);
		for (unsigned round = 0; round < 700; round++)
			mutate_and_sample(p, &seed);
	}
}

static void counts_are_clamped_not_wrapped(void **state)
{
	assert_int_equal(engine_count(-5), 0);
	assert_int_equal(engine_count((double)NAN), 0);
	assert_int_equal(engine_count(1e300), 9000000000000000);
	assert_int_equal(engine_count(2.9999), 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(the_vllm_page_is_read_as_it_was_made),
		CLAIM(vllm_reports_no_queued_tokens_and_none_are_made_up),
		CLAIM(vllms_finished_requests_are_not_trusted_since_aborts_are_missing),
		CLAIM(a_live_vllm_with_a_queue_is_read),
		CLAIM(a_live_vllm_short_of_kv_room_is_read),
		CLAIM(an_old_vllms_names_are_found_and_told),
		CLAIM(a_vllm_without_statistics_is_told_apart_from_an_idle_one),
		CLAIM(data_parallel_ranks_of_one_vllm_add_up),
		CLAIM(sglang_loads_are_read_with_their_own_timing),
		CLAIM(a_live_sglang_queue_shows_in_loads_although_metrics_say_zero),
		CLAIM(the_sglang_page_adds_totals_that_are_not_trusted),
		CLAIM(a_live_sglang_page_is_read),
		CLAIM(sglangs_priorities_and_ranks_are_not_counted_twice),
		CLAIM(an_older_sglangs_loads_lack_what_they_lack),
		CLAIM(ranks_that_tell_unequally_are_not_summed),
		CLAIM(the_llamacpp_page_is_read_and_its_six_digits_are_not_trusted),
		CLAIM(a_live_llamacpp_counts_cached_tokens_as_prompt_tokens),
		CLAIM(a_total_past_six_digits_loses_its_trust),
		CLAIM(a_busy_slot_tells_context_and_movement),
		CLAIM(an_idle_slot_is_zero_running_not_unknown),
		CLAIM(models_come_with_the_longest_context),
		CLAIM(a_list_that_cannot_be_kept_whole_means_any_name),
		CLAIM(versions_are_read),
		CLAIM(each_kind_knows_its_own_pages_and_no_others),
		CLAIM(mutated_pages_never_crash_and_failures_leave_no_trace),
		CLAIM(counts_are_clamped_not_wrapped),
	};

	return cmocka_run_group_tests_name("agent_engines", tests, NULL, NULL);
}
