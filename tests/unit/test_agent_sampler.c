/* Whole lives of engines, scripted page by page on a clock that the test turns. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "agent/sampler.h"
#include "shm/base/clock.h"
#include "tests/lib/unit.h"

enum { PAGE_MAX = 4096 };

static const uint64_t MS = NS_PER_MS;

/* The engine that answers: a body per source, "" = 404; err and status strike every page. */
static struct script {
	uint64_t now_ns, wall_ns;
	char body[SOURCES_NR][PAGE_MAX];
	uint64_t took_ns[SOURCES_NR];
	unsigned asked[SOURCES_NR];
	int err, status;
	int status_of[SOURCES_NR]; /* of one page, 0 = as the others */
	uint64_t start_id;
} script;

static struct sampler sampler;
static uint64_t due_ns;

static enum engine_source source_of(const char *path)
{
	for (int i = 0; i < SOURCES_NR; i++) {
		if (strcmp(path, engine_source_path((enum engine_source)i)) == 0)
			return (enum engine_source)i;
	}
	fail_msg("asked for %s", path);
	return SOURCES_NR;
}

static int script_fetch(void *ctx, const char *path, uint64_t timeout_ns,
			struct sampler_answer *ret_answer)
{
	enum engine_source source = source_of(path);

	script.asked[source]++;
	if (script.err == -ETIMEDOUT)
		script.now_ns += timeout_ns;
	if (script.err)
		return script.err;
	script.now_ns += script.took_ns[source];
	script.wall_ns += script.took_ns[source];
	const char *body = script.body[source];
	int status = script.status_of[source] ? script.status_of[source] : script.status;
	if (!status)
		status = body[0] ? 200 : 404;
	*ret_answer = (struct sampler_answer){
		.status = status, .body = body, .len = strlen(body), .start_id = script.start_id
	};
	return 0;
}

static uint64_t script_now(void *ctx)
{
	return script.now_ns;
}

static uint64_t script_wall(void *ctx)
{
	return script.wall_ns;
}

static void begin(enum engine_kind kind)
{
	struct sampler_params params = { .kind = kind, .stall_ns = 10ull * NS_PER_S };
	struct sampler_io io = { NULL, script_fetch, script_now, script_wall };

	memset(&script, 0, sizeof(script));
	script.now_ns = 5000ull * NS_PER_S;
	script.wall_ns = 1796020000ull * NS_PER_S;
	sampler_init(&sampler, &params, &io);
}

/* One round, then the clock is turned to the next one's time. */
static void round_now(void)
{
	assert_int_equal(sampler_round(&sampler, &due_ns), 0);
	assert_true(due_ns > script.now_ns);
	script.wall_ns += due_ns - script.now_ns;
	script.now_ns = due_ns;
}

static void rounds(unsigned n)
{
	while (n-- > 0)
		round_now();
}

/* A vLLM as its totals stand. */
static struct vllm {
	double running, waiting, usage, prompt, generation, itl_s, itl_n, prefill_tokens, prefill_s;
	double prefills;
	double started;
} vllm;

static void vllm_says(void)
{
	snprintf(script.body[SOURCE_METRICS], PAGE_MAX,
		 "vllm:num_requests_running{engine=\"0\"} %.1f\n"
		 "vllm:num_requests_waiting{engine=\"0\"} %.1f\n"
		 "vllm:kv_cache_usage_perc{engine=\"0\"} %.17g\n"
		 "vllm:prompt_tokens_total{engine=\"0\"} %.1f\n"
		 "vllm:generation_tokens_total{engine=\"0\"} %.1f\n"
		 "vllm:inter_token_latency_seconds_sum{engine=\"0\"} %.17g\n"
		 "vllm:inter_token_latency_seconds_count{engine=\"0\"} %.1f\n"
		 "vllm:request_prefill_kv_computed_tokens_sum{engine=\"0\"} %.1f\n"
		 "vllm:request_prefill_kv_computed_tokens_count{engine=\"0\"} %.1f\n"
		 "vllm:request_prefill_time_seconds_sum{engine=\"0\"} %.17g\n"
		 "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\"} 1.0\n"
		 "vllm:prompt_tokens_created{engine=\"0\"} %.17g\n",
		 vllm.running, vllm.waiting, vllm.usage, vllm.prompt, vllm.generation, vllm.itl_s,
		 vllm.itl_n, vllm.prefill_tokens, vllm.prefills, vllm.prefill_s, vllm.started);
	strcpy(script.body[SOURCE_MODELS],
	       "{\"data\":[{\"id\":\"m\",\"owned_by\":\"vllm\",\"max_model_len\":4096}]}");
	strcpy(script.body[SOURCE_VERSION], "{\"version\":\"0.32.0\"}");
	strcpy(script.body[SOURCE_HEALTH], " ");
}

static void begin_vllm(enum engine_kind kind)
{
	begin(kind);
	vllm = (struct vllm){ .running = 2, .usage = 0.25, .started = 1796010000 };
	vllm_says();
}

/* 100 ms of decoding `batch` sequences at `step_s`. */
static void vllm_decodes(double batch, double step_s)
{
	double steps = 0.1 / step_s;

	vllm.generation += steps * batch;
	vllm.itl_n += steps * batch;
	vllm.itl_s += 0.1 * batch;
	vllm_says();
	round_now();
}

static void the_kind_is_found_and_its_facts_are_read(void **state)
{
	begin_vllm(ENGINE_KIND_UNKNOWN);
	round_now();

	assert_int_equal(sampler.state.kind, ENGINE_KIND_VLLM);
	assert_int_equal(sampler.state.health, ENGINE_HEALTH_UP);
	assert_int_equal(sampler.state.running, 2);
	assert_int_equal(sampler.state.kv_used_tokens, 4000);
	assert_int_equal(sampler.state.max_model_len, 4096);
	assert_string_equal(sampler.info.version, "0.32.0");
	assert_string_equal(sampler.info.models[0], "m");
	assert_int_equal(sampler.state.period_ns, 100 * MS);
	assert_true(sampler.state.epoch != 0);
}

static void what_seldom_changes_is_seldom_asked_for(void **state)
{
	begin_vllm(ENGINE_KIND_VLLM);
	rounds(101); /* ten seconds */

	assert_int_equal(script.asked[SOURCE_METRICS], 101);
	assert_int_equal(script.asked[SOURCE_MODELS], 3);
	assert_int_equal(script.asked[SOURCE_VERSION], 1);
}

static void speeds_come_from_differences_and_are_absent_before(void **state)
{
	begin_vllm(ENGINE_KIND_VLLM);
	vllm.prefill_tokens = 1e6, vllm.prefill_s = 1; /* a life before us says nothing */
	vllm_says();
	round_now();
	assert_false(ENGINE_HAS(&sampler.state, decode_iteration_s));
	assert_false(ENGINE_HAS(&sampler.state, prefill_tokens_per_s));

	for (int i = 0; i < 20; i++)
		vllm_decodes(10, 0.05);
	assert_true(fabs(sampler.state.decode_iteration_s - 0.05) < 1e-6);
	assert_false(ENGINE_HAS(&sampler.state, prefill_tokens_per_s));
	vllm.prefill_tokens += 16000, vllm.prefills += 1, vllm.prefill_s += 4;
	vllm_decodes(10, 0.05);
	assert_true(fabs(sampler.state.prefill_tokens_per_s - 4000) < 1e-6);
	assert_false(ENGINE_HAS(&sampler.state, decode_per_sequence_s));
}

static void prompts_that_share_their_step_do_not_pull_throughput_down(void **state)
{
	begin_vllm(ENGINE_KIND_VLLM);
	round_now();
	for (int i = 0; i < 50; i++) {
		/* sixteen short prompts in one step of 150 ms, each charged with all of it */
		vllm.prefill_tokens += 16 * 30, vllm.prefills += 16, vllm.prefill_s += 16 * 0.15;
		vllm_decodes(10, 0.05);
		/* a long one alone, and one that overlapped with its neighbour */
		vllm.prefill_tokens += 32000, vllm.prefills += 1, vllm.prefill_s += 10;
		vllm_decodes(10, 0.05);
		vllm.prefill_tokens += 16000, vllm.prefills += 1, vllm.prefill_s += 10;
		vllm_decodes(10, 0.05);
	}
	assert_true(sampler.state.prefill_tokens_per_s > 3000);
	assert_true(sampler.state.prefill_tokens_per_s <= 3200);
}

static void short_prompts_alone_tell_no_throughput(void **state)
{
	begin_vllm(ENGINE_KIND_VLLM);
	round_now();
	for (int i = 0; i < 50; i++) {
		vllm.prefill_tokens += 6000, vllm.prefills += 1, vllm.prefill_s += 8;
		vllm_decodes(10, 0.05);
	}
	assert_false(ENGINE_HAS(&sampler.state, prefill_tokens_per_s));
}

static void a_restart_changes_the_epoch_and_forgets_speeds_and_models(void **state)
{
	begin_vllm(ENGINE_KIND_VLLM);
	for (int i = 0; i < 20; i++)
		vllm_decodes(10, 0.05);
	uint64_t epoch = sampler.state.epoch;
	unsigned asked = script.asked[SOURCE_MODELS];
	vllm = (struct vllm){ .started = 1796020000 };
	vllm_says();
	strcpy(script.body[SOURCE_MODELS], "{\"data\":[{\"id\":\"other\"}]}");

	rounds(2);

	assert_true(sampler.state.epoch != epoch);
	assert_false(ENGINE_HAS(&sampler.state, decode_iteration_s));
	assert_int_equal(script.asked[SOURCE_MODELS], asked + 1);
	assert_string_equal(sampler.info.models[0], "other");
}

static void a_successor_keeps_epoch_and_speeds_of_an_engine_that_lived_on(void **state)
{
	begin_vllm(ENGINE_KIND_VLLM);
	for (int i = 0; i < 20; i++)
		vllm_decodes(10, 0.04);
	struct engine_state last = sampler.state;

	begin(ENGINE_KIND_UNKNOWN);
	sampler_inherit(&sampler, &last);
	vllm_says();
	round_now();

	assert_int_equal(sampler.state.epoch, last.epoch);
	assert_true(fabs(sampler.state.decode_iteration_s - 0.04) < 1e-6);
	assert_false(ENGINE_HAS(&sampler.state, prefill_tokens_per_s));
}

static void a_successor_of_another_engine_keeps_nothing(void **state)
{
	begin_vllm(ENGINE_KIND_VLLM);
	for (int i = 0; i < 20; i++)
		vllm_decodes(10, 0.04);
	struct engine_state last = sampler.state;

	begin_vllm(ENGINE_KIND_UNKNOWN);
	sampler_inherit(&sampler, &last);
	vllm.started = 1796020001;
	vllm_says();
	round_now();

	assert_true(sampler.state.epoch != last.epoch);
	assert_false(ENGINE_HAS(&sampler.state, decode_iteration_s));
}

static void slow_answers_lengthen_the_period_that_is_announced(void **state)
{
	begin_vllm(ENGINE_KIND_VLLM);
	script.took_ns[SOURCE_METRICS] = 60 * MS;
	round_now();
	round_now();
	assert_int_equal(sampler.state.period_ns, 400 * MS);
	rounds(10);
	assert_int_equal(sampler.state.period_ns, 2000 * MS);

	script.took_ns[SOURCE_METRICS] = 3 * MS;
	rounds(100);
	assert_int_equal(sampler.state.period_ns, 100 * MS);
}

static void a_scrape_slower_than_the_period_is_never_queued(void **state)
{
	begin_vllm(ENGINE_KIND_VLLM);
	script.took_ns[SOURCE_METRICS] = 4000 * MS;
	for (int i = 0; i < 5; i++) {
		uint64_t start = script.now_ns;

		round_now();
		assert_true(due_ns >= start + 4000 * MS);
	}
}

static void a_long_prefill_is_no_stall_while_it_takes_kv_room(void **state)
{
	begin_vllm(ENGINE_KIND_VLLM);
	vllm.running = 1;
	for (int i = 0; i < 30; i++) { /* 30 s, a chunk every second, no token counted */
		vllm.usage += 0.02;
		vllm_says();
		rounds(10);
	}
	assert_int_equal(sampler.state.health, ENGINE_HEALTH_UP);
	rounds(90); /* with the nine since the last chunk not yet ten seconds */
	assert_int_equal(sampler.state.health, ENGINE_HEALTH_UP);
	rounds(4);
	assert_int_equal(sampler.state.health, ENGINE_HEALTH_STALLED);
	vllm.generation += 1;
	vllm_says();
	round_now();
	assert_int_equal(sampler.state.health, ENGINE_HEALTH_UP);
}

static void a_failed_scrape_ages_the_state_and_says_why(void **state)
{
	begin_vllm(ENGINE_KIND_VLLM);
	rounds(2);
	uint64_t read_ns = sampler.state.read_ns, scrapes = sampler.state.scrapes;
	script.err = -ECONNREFUSED;
	rounds(2);

	assert_int_equal(sampler.state.read_ns, read_ns);
	assert_int_equal(sampler.state.scrapes, scrapes);
	assert_int_equal(sampler.state.failures, 2);
	assert_int_equal(sampler.state.running, 2);
	assert_int_equal(sampler.state.health, ENGINE_HEALTH_DOWN);
	assert_non_null(strstr(sampler.note, "/metrics"));
}

static void a_dead_engine_is_asked_seldom_and_seen_again_soon(void **state)
{
	begin_vllm(ENGINE_KIND_VLLM);
	round_now();
	script.err = -ECONNREFUSED;
	uint64_t start = script.now_ns;
	rounds(200);
	assert_true(script.now_ns - start > 90ull * NS_PER_S); /* half a second apart */

	script.err = 0;
	start = script.now_ns;
	rounds(2);
	assert_int_equal(sampler.state.health, ENGINE_HEALTH_UP);
	assert_true(script.now_ns - start < NS_PER_S);
}

static void what_comes_back_may_be_another_kind(void **state)
{
	begin_vllm(ENGINE_KIND_UNKNOWN);
	round_now();
	uint64_t epoch = sampler.state.epoch;
	script.err = -ECONNREFUSED;
	rounds(3);
	memset(script.body, 0, sizeof(script.body));
	script.err = 0;
	strcpy(script.body[SOURCE_MODELS], "{\"data\":[{\"id\":\"g\",\"owned_by\":\"llamacpp\"}]}");
	strcpy(script.body[SOURCE_SLOTS], "[{\"id\":0,\"n_ctx\":100,\"is_processing\":false}]");
	rounds(2);

	assert_int_equal(sampler.state.kind, ENGINE_KIND_LLAMACPP);
	assert_int_equal(sampler.state.health, ENGINE_HEALTH_UP);
	assert_true(sampler.state.epoch != epoch);
	assert_string_equal(sampler.info.models[0], "g");
	assert_string_equal(sampler.info.version, "");
	assert_false(ENGINE_HAS(&sampler.state, prompt_tokens_total)); /* the old one's */
}

static void an_engine_behind_a_key_is_up_and_says_what_is_missing(void **state)
{
	begin_vllm(ENGINE_KIND_UNKNOWN);
	script.status = 401;
	round_now();
	assert_non_null(strstr(sampler.note, "--key-file"));
	rounds(5);
	assert_int_equal(sampler.state.health, ENGINE_HEALTH_UP);
	assert_int_equal(sampler.state.present, 0);

	script.status = 0;
	rounds(40);
	assert_int_equal(sampler.state.kind, ENGINE_KIND_VLLM);
	assert_int_equal(sampler.state.running, 2);
}

static void a_locked_page_of_a_known_kind_is_not_its_death(void **state)
{
	begin_vllm(ENGINE_KIND_VLLM);
	round_now();
	script.status = 403;
	rounds(20);
	assert_int_equal(sampler.state.health, ENGINE_HEALTH_UP);
	assert_false(ENGINE_HAS(&sampler.state, running));
}

static void an_engine_of_no_known_kind_is_watched_for_life_and_models(void **state)
{
	begin(ENGINE_KIND_UNKNOWN);
	strcpy(script.body[SOURCE_MODELS], "{\"data\":[{\"id\":\"x\",\"owned_by\":\"somebody\"}]}");
	rounds(10);
	assert_int_equal(sampler.state.health, ENGINE_HEALTH_UP);
	assert_int_equal(sampler.state.kind, ENGINE_KIND_UNKNOWN);
	assert_string_equal(sampler.info.models[0], "x");
	assert_int_equal(sampler.state.period_ns, 1000 * MS);

	script.err = -ECONNREFUSED;
	rounds(2);
	assert_int_equal(sampler.state.health, ENGINE_HEALTH_DOWN);
}

static void what_is_no_engine_at_all_is_down_and_named_so(void **state)
{
	begin(ENGINE_KIND_UNKNOWN);
	strcpy(script.body[SOURCE_MODELS], "<html>a web server</html>");
	rounds(3);
	assert_int_equal(sampler.state.health, ENGINE_HEALTH_DOWN);
	assert_non_null(strstr(sampler.note, "--kind"));
}

static void an_engine_that_tells_no_load_is_up_and_its_load_unknown(void **state)
{
	begin_vllm(ENGINE_KIND_VLLM);
	strcpy(script.body[SOURCE_METRICS], "process_cpu_seconds_total 3\n");
	rounds(40);

	assert_int_equal(sampler.state.health, ENGINE_HEALTH_UP);
	assert_false(ENGINE_HAS(&sampler.state, running));
	assert_true(sampler.state.period_ns >= 1000 * MS);
	assert_true(script.now_ns - sampler.state.read_ns < 2ull * sampler.state.period_ns);
}

static void a_front_end_whose_core_died_is_down_although_its_page_looks_idle(void **state)
{
	begin_vllm(ENGINE_KIND_UNKNOWN);
	vllm.running = 0;
	vllm_says();
	rounds(3);
	script.status_of[SOURCE_HEALTH] = 503;
	rounds(15);
	assert_int_equal(sampler.state.health, ENGINE_HEALTH_DOWN);
	rounds(15);
	assert_int_equal(sampler.state.health, ENGINE_HEALTH_DOWN);

	script.status_of[SOURCE_HEALTH] = 0;
	rounds(15);
	assert_int_equal(sampler.state.health, ENGINE_HEALTH_UP);
}

static void a_load_page_that_fails_does_not_cover_the_one_that_works(void **state)
{
	begin(ENGINE_KIND_LLAMACPP);
	strcpy(script.body[SOURCE_METRICS],
	       "llamacpp:requests_processing 3\nllamacpp:requests_deferred 2\n");
	strcpy(script.body[SOURCE_SLOTS], "[{\"id\":0,\"n_ctx\":9,\"is_processing\":false}]");
	round_now();
	assert_int_equal(sampler.state.running, 3);
	script.status_of[SOURCE_METRICS] = 500;
	round_now();
	assert_int_equal(sampler.state.health, ENGINE_HEALTH_UP);
	assert_int_equal(sampler.state.running, 0);
	assert_false(ENGINE_HAS(&sampler.state, waiting));
}

static void a_garbled_page_is_an_error_not_a_reading(void **state)
{
	begin_vllm(ENGINE_KIND_VLLM);
	round_now();
	strcpy(script.body[SOURCE_METRICS], "<html>\n<body>oops</body>\n");
	rounds(3);

	assert_int_equal(sampler.state.health, ENGINE_HEALTH_DOWN);
	assert_int_equal(sampler.state.running, 2);
	assert_int_equal(sampler.state.failures, 3);
}

static void a_list_of_models_that_vanishes_opens_the_engine_to_any_name(void **state)
{
	begin_vllm(ENGINE_KIND_VLLM);
	round_now();
	assert_int_equal(sampler.info.models_nr, 1);
	strcpy(script.body[SOURCE_MODELS], "{\"data\":[]}");
	rounds(60);
	assert_int_equal(sampler.info.models_nr, 0);
}

static void a_silent_engine_is_given_time_and_then_called_stalled(void **state)
{
	begin_vllm(ENGINE_KIND_VLLM);
	round_now();
	script.err = -ETIMEDOUT;
	round_now();
	assert_int_equal(sampler.state.health, ENGINE_HEALTH_UP);
	rounds(3);
	assert_int_equal(sampler.state.health, ENGINE_HEALTH_STALLED);
}

/* ---- SGLang ---- */

static struct sglang {
	double running, waiting, pending, used, prefill_tokens, prefill_s;
	double n, b, t, bb, bt;
	uint64_t stamped_ns;
} sglang;

static void sglang_says(void)
{
	snprintf(script.body[SOURCE_LOADS], PAGE_MAX,
		 "{\"version\":\"0.5.23\",\"loads\":[{\"timestamp\":%.6f,\"num_running_reqs\":%.0f,"
		 "\"num_waiting_reqs\":%.0f,\"num_waiting_uncached_tokens\":%.0f,"
		 "\"num_used_tokens\":%.0f,\"max_total_num_tokens\":65536,"
		 "\"total_prefill_uncached_tokens\":%.0f,\"total_prefill_busy_us\":%.0f,"
		 "\"decode_moments\":[%.1f,%.1f,%.1f,%.1f,%.1f,%.1f]}]}",
		 (double)sglang.stamped_ns * 1e-9, sglang.running, sglang.waiting, sglang.pending,
		 sglang.used, sglang.prefill_tokens, sglang.prefill_s * 1e6, sglang.n, sglang.b,
		 sglang.t * 1e6, sglang.bb, sglang.bt * 1e6, sglang.b);
	strcpy(script.body[SOURCE_MODELS], "{\"data\":[{\"id\":\"s\",\"owned_by\":\"sglang\"}]}");
}

static void begin_sglang(void)
{
	begin(ENGINE_KIND_SGLANG);
	sglang = (struct sglang){ .stamped_ns = script.wall_ns };
	sglang_says();
	strcpy(script.body[SOURCE_METRICS], "sglang:num_running_reqs 0.0\nsglang:page_size 1.0\n"
					    "sglang:prompt_tokens_total 500.0\n");
	strcpy(script.body[SOURCE_SERVER_INFO], "{\"chunked_prefill_size\":8192}");
}

static void sglang_steps(double steps, double batch)
{
	double t = 0.035 + 0.001 * batch;

	sglang.n += steps;
	sglang.b += steps * batch;
	sglang.t += steps * t;
	sglang.bb += steps * batch * batch;
	sglang.bt += steps * batch * t;
	sglang.stamped_ns = script.wall_ns;
	sglang_says();
	round_now();
}

static void sglangs_loads_win_over_its_page_and_both_add_up(void **state)
{
	begin_sglang();
	sglang.running = 3, sglang.waiting = 2, sglang.pending = 700;
	sglang_says();
	round_now();

	assert_int_equal(sampler.state.running, 3);
	assert_int_equal(sampler.state.pending_prefill_tokens, 700);
	assert_int_equal(sampler.state.prompt_tokens_total, 500);
	assert_int_equal(sampler.state.step_budget_tokens, 8192);
	assert_int_equal(sampler.state.block_size, 1);
}

static void sglangs_expensive_page_is_read_once_a_second(void **state)
{
	begin_sglang();
	rounds(101); /* five seconds */

	assert_int_equal(script.asked[SOURCE_LOADS], 101);
	assert_int_equal(script.asked[SOURCE_METRICS], 6);
	assert_int_equal(script.asked[SOURCE_SERVER_INFO], 1);
}

static void sglangs_page_stands_in_when_loads_are_missing(void **state)
{
	begin_sglang();
	script.body[SOURCE_LOADS][0] = 0;
	rounds(101);

	assert_int_equal(sampler.state.health, ENGINE_HEALTH_UP);
	assert_true(ENGINE_HAS(&sampler.state, running));
	assert_false(ENGINE_HAS(&sampler.state, pending_prefill_tokens));
	assert_in_range(script.asked[SOURCE_METRICS], 20, 30);
	assert_int_equal(script.asked[SOURCE_LOADS], 1);
	assert_int_equal(sampler.state.period_ns, 200 * MS);
}

static void sglangs_own_sums_give_step_time_slope_and_throughput(void **state)
{
	begin_sglang();
	sglang.running = 4;
	for (int i = 0; i < 60; i++) {
		sglang.prefill_tokens += 400, sglang.prefill_s += 0.1;
		sglang_steps(5, 4 + i % 6);
	}

	assert_true(fabs(sampler.state.decode_iteration_s - 0.0415) < 0.001);
	assert_true(fabs(sampler.state.decode_per_sequence_s - 0.001) < 1e-5);
	assert_true(fabs(sampler.state.prefill_tokens_per_s - 4000) < 1);
}

static void a_snapshot_is_as_old_as_its_stamp_and_the_period_as_long_as_its_refreshing(void **state)
{
	begin_sglang();
	sglang.running = 4;
	for (int i = 0; i < 40; i++) { /* a new snapshot every 750 ms: fifteen steps */
		sglang_steps(15, 4);
		rounds(14);
	}

	assert_in_range(script.now_ns - sampler.state.read_ns, 700 * MS, 800 * MS);
	assert_in_range(sampler.state.period_ns, 650 * MS, 800 * MS);
}

static void an_idle_scheduler_asleep_on_an_old_stamp_is_not_stale(void **state)
{
	begin_sglang();
	rounds(200);

	assert_true(script.now_ns - sampler.state.read_ns <= 3 * sampler.state.period_ns);
	assert_int_equal(sampler.state.health, ENGINE_HEALTH_UP);
}

static void another_hosts_clock_is_not_believed(void **state)
{
	begin_sglang();
	sglang.running = 1;
	sglang.stamped_ns = script.wall_ns - 3600ull * NS_PER_S;
	sglang_says();
	uint64_t sent_ns = script.now_ns;
	round_now();
	assert_int_equal(sampler.state.read_ns, sent_ns);

	sglang.stamped_ns = script.wall_ns + 3600ull * NS_PER_S;
	sglang_says();
	sent_ns = script.now_ns;
	round_now();
	assert_int_equal(sampler.state.read_ns, sent_ns);
}

static void a_restarted_sglang_is_noticed_by_its_sums(void **state)
{
	begin_sglang();
	sglang.prefill_tokens = 9000;
	sglang_steps(5, 4);
	uint64_t epoch = sampler.state.epoch;
	sglang = (struct sglang){ .prefill_tokens = 12 };
	sglang_steps(1, 1);

	assert_true(sampler.state.epoch != epoch);
}

/* ---- llama.cpp ---- */

static void llamacpp_says(unsigned decoded, const char *generated)
{
	snprintf(script.body[SOURCE_SLOTS], PAGE_MAX,
		 "[{\"id\":0,\"n_ctx\":32768,\"is_processing\":true,\"id_task\":7,"
		 "\"n_prompt_tokens\":%u,\"n_prompt_tokens_processed\":100,"
		 "\"n_prompt_tokens_cache\":50,\"next_token\":[{\"n_decoded\":%u}]}]",
		 150 + decoded, decoded);
	snprintf(script.body[SOURCE_METRICS], PAGE_MAX,
		 "llamacpp:requests_processing 1\nllamacpp:requests_deferred 3\n"
		 "llamacpp:tokens_predicted_total %s\n",
		 generated);
}

static void llamacpps_standing_totals_are_no_stall_while_slots_move(void **state)
{
	begin(ENGINE_KIND_LLAMACPP);
	script.start_id = 99;
	for (unsigned i = 0; i < 400; i++) { /* twenty seconds */
		llamacpp_says(i, "1.23457e+06");
		round_now();
	}
	assert_int_equal(sampler.state.health, ENGINE_HEALTH_UP);
	assert_int_equal(sampler.state.waiting, 3);
	assert_int_equal(sampler.state.decode_context_tokens, 150 + 399);
	rounds(199);
	assert_int_equal(sampler.state.health, ENGINE_HEALTH_UP);
	rounds(10);
	assert_int_equal(sampler.state.health, ENGINE_HEALTH_STALLED);
}

static void llamacpp_without_metrics_is_read_by_its_slots(void **state)
{
	begin(ENGINE_KIND_LLAMACPP);
	llamacpp_says(5, "1");
	script.body[SOURCE_METRICS][0] = 0;
	rounds(3);

	assert_int_equal(sampler.state.running, 1);
	assert_false(ENGINE_HAS(&sampler.state, waiting));
	assert_int_equal(script.asked[SOURCE_METRICS], 1);
}

static void llamacpps_start_time_is_compared_for_equality_only(void **state)
{
	begin(ENGINE_KIND_LLAMACPP);
	llamacpp_says(5, "500");
	script.start_id = 99;
	round_now();
	uint64_t epoch = sampler.state.epoch;
	script.start_id = 98;
	round_now();
	assert_true(sampler.state.epoch != epoch);
}

/* ---- anything at all ---- */

static uint64_t next_random(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

static void disturb(uint64_t *seed)
{
	static const int errors[] = {
		0, 0, 0, 0, 0, -ECONNREFUSED, -ETIMEDOUT, -ECONNRESET, -EFBIG
	};
	static const int statuses[] = { 0, 0, 0, 0, 500, 503, 404, 401 };
	char *body = script.body[next_random(seed) % SOURCES_NR];

	script.err = errors[next_random(seed) % 9];
	script.status = statuses[next_random(seed) % 8];
	if (body[0])
		body[next_random(seed) % strlen(body)] = (char)(' ' + next_random(seed) % 90);
	script.start_id = next_random(seed) % 3;
}

static void no_sequence_of_junk_breaks_the_rules(void **state)
{
	uint64_t seed = 7946853201u;

	for (int life = 0; life < 30; life++) {
		if (life % 3 == 0)
			begin_vllm(ENGINE_KIND_UNKNOWN);
		else if (life % 3 == 1)
			begin_sglang();
		else
			begin(ENGINE_KIND_LLAMACPP), llamacpp_says(3, "10");
		for (int i = 0; i < 150; i++) {
			disturb(&seed);
			uint64_t at = script.now_ns;
			round_now();
			assert_true(due_ns >= at && due_ns - at < 120ull * NS_PER_S);
			assert_true(sampler.state.read_ns <= script.now_ns);
			assert_true(sampler.state.scrapes == 0 || sampler.state.epoch != 0);
			assert_true((sampler.state.trusted & ~sampler.state.present) == 0);
			assert_true(sampler.info.models_nr <= STATE_MODELS_MAX);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(the_kind_is_found_and_its_facts_are_read),
		CLAIM(what_seldom_changes_is_seldom_asked_for),
		CLAIM(speeds_come_from_differences_and_are_absent_before),
		CLAIM(prompts_that_share_their_step_do_not_pull_throughput_down),
		CLAIM(short_prompts_alone_tell_no_throughput),
		CLAIM(a_restart_changes_the_epoch_and_forgets_speeds_and_models),
		CLAIM(a_successor_keeps_epoch_and_speeds_of_an_engine_that_lived_on),
		CLAIM(a_successor_of_another_engine_keeps_nothing),
		CLAIM(slow_answers_lengthen_the_period_that_is_announced),
		CLAIM(a_scrape_slower_than_the_period_is_never_queued),
		CLAIM(a_long_prefill_is_no_stall_while_it_takes_kv_room),
		CLAIM(a_failed_scrape_ages_the_state_and_says_why),
		CLAIM(a_dead_engine_is_asked_seldom_and_seen_again_soon),
		CLAIM(what_comes_back_may_be_another_kind),
		CLAIM(an_engine_behind_a_key_is_up_and_says_what_is_missing),
		CLAIM(a_locked_page_of_a_known_kind_is_not_its_death),
		CLAIM(an_engine_of_no_known_kind_is_watched_for_life_and_models),
		CLAIM(what_is_no_engine_at_all_is_down_and_named_so),
		CLAIM(an_engine_that_tells_no_load_is_up_and_its_load_unknown),
		CLAIM(a_front_end_whose_core_died_is_down_although_its_page_looks_idle),
		CLAIM(a_load_page_that_fails_does_not_cover_the_one_that_works),
		CLAIM(a_garbled_page_is_an_error_not_a_reading),
		CLAIM(a_list_of_models_that_vanishes_opens_the_engine_to_any_name),
		CLAIM(a_silent_engine_is_given_time_and_then_called_stalled),
		CLAIM(sglangs_loads_win_over_its_page_and_both_add_up),
		CLAIM(sglangs_expensive_page_is_read_once_a_second),
		CLAIM(sglangs_page_stands_in_when_loads_are_missing),
		CLAIM(sglangs_own_sums_give_step_time_slope_and_throughput),
		CLAIM(a_snapshot_is_as_old_as_its_stamp_and_the_period_as_long_as_its_refreshing),
		CLAIM(an_idle_scheduler_asleep_on_an_old_stamp_is_not_stale),
		CLAIM(another_hosts_clock_is_not_believed),
		CLAIM(a_restarted_sglang_is_noticed_by_its_sums),
		CLAIM(llamacpps_standing_totals_are_no_stall_while_slots_move),
		CLAIM(llamacpp_without_metrics_is_read_by_its_slots),
		CLAIM(llamacpps_start_time_is_compared_for_equality_only),
		CLAIM(no_sequence_of_junk_breaks_the_rules),
	};

	return cmocka_run_group_tests_name("agent_sampler", tests, NULL, NULL);
}
