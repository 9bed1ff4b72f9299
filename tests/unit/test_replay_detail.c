/* Claims about a replay's detail: it disturbs nothing, is bounded, and says what it left out. */
#include "tests/lib/unit.h"

#include <stdlib.h>
#include <string.h>

#include "bench/replay_detail.h"
#include "shm/base/jread.h"

enum { TEXT = 4 << 20 };

static void point(struct detail_watch *w, float value)
{
	float all[2][DETAIL_SERIES_NR] = { 0 };

	all[0][DETAIL_requests] = value;
	all[1][DETAIL_requests] = 2 * value;
	detail_watch_point(w, all);
}

static void a_long_play_halves_its_points_and_keeps_the_average(void **state)
{
	struct detail_watch *w;
	uint64_t steps = 0;

	(void)state;
	assert_int_equal(detail_watch_new(&w, 8, 2), 0);
	detail_watch_begin(w, 1000);
	uint64_t step_ns = w->step_ns;
	while (steps < 128) {
		uint64_t now_ns = 1000 + ++steps * step_ns;

		while (detail_watch_due(w, now_ns + 1))
			point(w, 3);
	}
	assert_true(w->nr < 8 && w->nr >= 4);
	assert_int_equal(w->step_ns, 32 * step_ns);
	assert_true((w->nr + 1) * w->step_ns > steps * step_ns);
	for (size_t i = 0; i < w->nr; i++) {
		assert_true(w->series[DETAIL_requests][2 * i] == 3);
		assert_true(w->series[DETAIL_requests][2 * i + 1] == 6);
	}
	detail_watch_free(w);
}

static void marks_beyond_the_bound_are_counted_not_kept(void **state)
{
	struct detail_watch *w;

	(void)state;
	assert_int_equal(detail_watch_new(&w, 8, 2), 0);
	detail_watch_begin(w, 500);
	for (uint32_t i = 0; i < DETAIL_MARKS_MAX + 3; i++)
		detail_watch_piece(w, 500 + 2000000000ull * i, i, 1, 1024);
	detail_watch_outage(w, DETAIL_restart, 1, 500, 1000000500);
	assert_int_equal(w->pieces.nr, DETAIL_MARKS_MAX);
	assert_int_equal(w->pieces.total, DETAIL_MARKS_MAX + 3);
	assert_true(w->pieces.mark[1].at_s == 2);
	assert_true(w->outages.mark[0].until_s == 1);
	assert_int_equal(w->err, 0);
	detail_watch_free(w);
	detail_watch_piece(NULL, 0, 0, 0, 0); /* nobody looks on */
}

static void design(struct workload *w, struct replay_arm *arm, const char *name)
{
	struct workload_mix mix;
	struct replay_arm base;
	char why[REPLAY_WHY_MAX];

	workload_mix_init(&mix);
	mix.requests = 120;
	mix.rate = 2;
	assert_int_equal(workload_design(w, &mix, 4), 0);
	replay_arm_init(&base);
	base.engines = 3;
	assert_int_equal(replay_arm_parse(arm, &base, name, why), 0);
}

static void looking_on_changes_nothing(void **state)
{
	struct workload w;
	struct replay_arm arm;
	struct replay_run plain, watched;
	struct detail_watch *watch;

	(void)state;
	design(&w, &arm, "eft");
	assert_int_equal(replay_play(&plain, &arm, &w, 3), 0);
	assert_int_equal(detail_watch_new(&watch, 50, 3), 0);
	assert_int_equal(replay_play_watched(&watched, &arm, &w, 3, watch), 0);
	assert_memory_equal(plain.request, watched.request,
			    plain.requests * sizeof(*plain.request));
	assert_int_equal(plain.events, watched.events);
	/* The last point lies within the play, the next one would not. */
	assert_true((double)(watch->nr * watch->step_ns) * 1e-9 <= plain.end_s);
	assert_true((double)((watch->nr + 1) * watch->step_ns) * 1e-9 >= plain.end_s);
	detail_watch_free(watch);
	replay_run_free(&plain);
	replay_run_free(&watched);
	workload_free(&w);
}

static double number(const struct jread *v, const char *path)
{
	double value;

	assert_int_equal(jread_get_f64(v, path, &value), 0);
	return value;
}

static void curves_and_moves_agree_with_the_figures(void **state)
{
	static char text[TEXT];
	struct replay_detail *detail;
	struct workload w;
	struct replay_arm arm;
	struct replay_run run;
	double figure[REPLAY_FIGURES_NR];
	struct json j;
	struct jread v;

	(void)state;
	design(&w, &arm, "linear");
	assert_int_equal(replay_detail_new(&detail, 1, 20), 0);
	assert_int_equal(replay_detail_play(detail, 0, &run, &arm, &w, 3), 0);
	assert_int_equal(replay_figures(&run, &arm, &w, figure), 0);
	json_init(&j, text, sizeof(text));
	json_object_begin(&j, NULL);
	replay_detail_json_arm(&j, detail, 0);
	json_object_end(&j);
	assert_int_equal(json_finish(&j), 0);
	assert_int_equal(jread_open(&v, text, j.len), 0);

	assert_float_equal(number(&v, "detail.ttft_s.ALL[50]"), figure[REPLAY_ttft_p50_s], 1e-2);
	assert_float_equal(number(&v, "detail.ttft_s.ALL[90]"), figure[REPLAY_ttft_p90_s], 1e-2);
	assert_float_equal(number(&v, "detail.ttft_s.HEAVY_T2[90]"), figure[REPLAY_heavy_t2_p90_s],
			   1e-2);
	assert_float_equal(number(&v, "detail.tpot_s[90]"), figure[REPLAY_tpot_p90_s], 1e-4);
	assert_true(figure[REPLAY_migrations] > 3);
	assert_true(number(&v, "detail.moves.total") == figure[REPLAY_migrations]);
	assert_true(number(&v, "detail.moves.from[0]") != number(&v, "detail.moves.to[0]"));
	assert_true(number(&v, "detail.requests") == 120);
	replay_run_free(&run);
	replay_detail_free(detail);
	workload_free(&w);
}

static void quantiles_rise_from_the_least_to_the_most(void **state)
{
	(void)state;
	assert_true(replay_detail_quantile(0) == 0);
	assert_true(replay_detail_quantile(DETAIL_QUANTILES - 1) == 1);
	for (unsigned i = 1; i < DETAIL_QUANTILES; i++)
		assert_true(replay_detail_quantile(i) > replay_detail_quantile(i - 1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(a_long_play_halves_its_points_and_keeps_the_average),
		CLAIM(marks_beyond_the_bound_are_counted_not_kept),
		CLAIM(looking_on_changes_nothing),
		CLAIM(curves_and_moves_agree_with_the_figures),
		CLAIM(quantiles_rise_from_the_least_to_the_most),
	};

	return cmocka_run_group_tests_name("replay_detail", tests, NULL, NULL);
}
