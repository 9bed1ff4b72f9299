/* Claims about the report: text stays text, axes are round and never crowded, size is bounded. */
#include "tests/lib/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/report.h"
#include "bench/report_scale.h"
#include "bench/report_timeline.h"
#include "shm/base/json.h"

enum { LARGE = 64 << 20 };

/* ---- text ---- */

static void escaped_is(const char *text, const char *wanted)
{
	struct out o = { 0 };

	out_escaped(&o, text);
	assert_string_equal(o.text, wanted);
	assert_int_equal(o.len, strlen(wanted));
	out_free(&o);
}

static void markup_in_names_is_text(void **state)
{
	(void)state;
	escaped_is("<script>&\"'</script>", "&lt;script&gt;&amp;&quot;&#39;&lt;/script&gt;");
	escaped_is("A+B-1.5", "A+B-1.5");
}

static void what_is_no_text_is_replaced(void **state)
{
	(void)state;
	escaped_is("a\x01z", "a\xef\xbf\xbdz");
	escaped_is("\xff\xfe", "\xef\xbf\xbd\xef\xbf\xbd");
	escaped_is("\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd");                 /* overlong */
	escaped_is("\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"); /* surrogate */
	escaped_is("\xef\xbf\xbf", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"); /* U+FFFF */
	escaped_is("\xe2\x82", "\xef\xbf\xbd\xef\xbf\xbd");                 /* cut */
	escaped_is("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\t",
		   "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\t");
}

static void number_is(double value, int digits, const char *wanted)
{
	char buf[OUT_NUMBER_MAX];

	assert_string_equal(out_number(buf, value, digits), wanted);
}

static void numbers_are_for_people(void **state)
{
	(void)state;
	number_is(9.44408, 3, "9.44");
	number_is(112.4, 3, "112");
	number_is(12345.6, 3, "12346");
	number_is(0.0745, 3, "0.0745");
	number_is(850, 3, "850");
	number_is(66000000, 3,
		  "66\xe2\x80\xaf"
		  "000\xe2\x80\xaf"
		  "000");
	number_is(-123456.7, 3,
		  "\xe2\x88\x92"
		  "123\xe2\x80\xaf"
		  "457");
	number_is(0, 3, "0");
	number_is(-2.5, 2,
		  "\xe2\x88\x92"
		  "2.5");
	number_is(NAN, 3, "-");
	number_is(INFINITY, 3, "\xe2\x88\x9e");
	number_is(1e-9, 3, "1e-09");
	number_is(9.999, 3, "10.0");
	char buf[OUT_NUMBER_MAX];

	assert_string_equal(out_fixed(buf, 9, 2), "9.00");
	assert_string_equal(out_fixed(buf, 0, 2), "0");
	assert_string_equal(out_fixed(buf, NAN, 2), "-");
	assert_string_equal(out_fixed(buf, 1e300, 2), "1e+300");
}

static void columns_line_up(void **state)
{
	double times[] = { 9.4, 16.1, 0, NAN, 30.2, 8.25 }, counts[] = { 48, 0, 29 };
	double small[] = { 0.0745, 0.18, 0.2 }, none[] = { NAN, 0 };

	(void)state;
	assert_int_equal(out_places(times, 6, 3), 1);
	assert_int_equal(out_places(counts, 3, 3), 0);
	assert_int_equal(out_places(small, 3, 3), 3);
	assert_int_equal(out_places(none, 2, 3), 0);
}

/* ---- axes ---- */

static bool is_round(double value)
{
	double lead = fabs(value) / pow(10, floor(log10(fabs(value)) + 1e-9));

	return fabs(lead - round(lead)) < 1e-6;
}

static void check_ticks(const struct scale *s, double gap)
{
	double tick[SCALE_TICKS_MAX];
	size_t nr = scale_ticks(s, gap, tick);

	double hair = s->log ? s->min * 1e-6 : (s->max - s->min) * 1e-6;

	assert_true(nr >= 1 && nr < SCALE_TICKS_MAX);
	for (size_t i = 0; i < nr; i++) {
		assert_true(tick[i] >= s->min - hair && tick[i] <= s->max + hair);
		assert_true(!s->log || is_round(tick[i]));
		assert_true(i == 0 || tick[i] > tick[i - 1]);
		assert_true(i == 0 ||
			    fabs(scale_at(s, tick[i]) - scale_at(s, tick[i - 1])) >= gap * 0.999);
	}
}

static void axes_hold_their_values_with_room_between_ticks(void **state)
{
	uint64_t random = 88172645463325252ull;

	(void)state;
	for (int i = 0; i < 4000; i++) {
		double v[2];

		for (int k = 0; k < 2; k++) {
			random ^= random << 13;
			random ^= random >> 7;
			random ^= random << 17;
			v[k] = pow(10, (double)(random % 1200) / 100 - 6);
		}
		double min = fmin(v[0], v[1]), max = fmax(v[0], v[1]);
		bool log = i % 2;
		struct scale s = scale_make(log ? fmax(min, max * 1e-5) : -min, max, log, 100,
					    100 + 60 + (double)(i % 700));

		double hair = (log ? s.min : s.max - s.min) * 1e-8;

		assert_true(s.max >= max - (log ? max * 1e-8 : hair));
		assert_true(s.min <= (log ? fmax(min, max * 1e-5) : -min) + hair);
		check_ticks(&s, 34);
	}
}

static void odd_ranges_make_a_sensible_axis(void **state)
{
	const double odd[][2] = { { NAN, NAN },   { 0, 0 },    { 5, 5 },
				  { -3, -3 },     { 7, 2 },    { 0, INFINITY },
				  { 1e-12, 1e9 }, { 0, 1e-7 }, { -1, 0 } };

	(void)state;
	for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++)
		for (int log = 0; log < 2; log++) {
			struct scale s = scale_make(odd[i][0], odd[i][1], log, 0, 400);

			assert_true(isfinite(s.min) && isfinite(s.max) && s.min < s.max);
			assert_true(!log || s.min > 0);
			check_ticks(&s, 40);
		}
}

static void values_lie_where_they_belong(void **state)
{
	struct scale log = scale_make(0.1, 100, true, 0, 300);
	struct scale up = scale_make(0, 10, false, 200, 0);

	(void)state;
	assert_float_equal(scale_at(&log, 1), 100, 1e-6);
	assert_float_equal(scale_at(&log, 10), 200, 1e-6);
	assert_float_equal(scale_at(&log, 0), 0, 0);
	assert_float_equal(scale_at(&log, 1e9), 300, 0);
	assert_float_equal(scale_at(&log, NAN), 0, 0);
	assert_float_equal(scale_at(&up, 5), 100, 1e-9);
	assert_float_equal(scale_at(&up, 10), 0, 1e-9);
}

static void bounds_are_one_two_or_five(void **state)
{
	(void)state;
	assert_float_equal(scale_round_down(0.37), 0.2, 1e-12);
	assert_float_equal(scale_round_down(0.5), 0.5, 1e-12);
	assert_float_equal(scale_round_down(0.3 / 0.1 * 1000), 2000, 1e-9);
	assert_float_equal(scale_round_up(0.37), 0.5, 1e-12);
	assert_float_equal(scale_round_up(51), 100, 1e-9);
	assert_float_equal(scale_round_up(1000), 1000, 1e-9);
	assert_float_equal(scale_round_up(0.11), 0.2, 1e-12);
}

static void labels_are_short(void **state)
{
	char buf[SCALE_LABEL_MAX];

	(void)state;
	assert_string_equal(scale_label(buf, 0.05), "0.05");
	assert_string_equal(scale_label(buf, 5000), "5000");
	assert_string_equal(scale_label(buf, 20000), "20k");
	assert_string_equal(scale_label(buf, 2e6), "2M");
	assert_string_equal(scale_label(buf, -50), "\xe2\x88\x92"
						   "50");
}

/* ---- the page ---- */

static struct report_doc doc;

static void open_doc(const char *text, size_t len, const char *highlight)
{
	struct jread value;

	memset(&doc, 0, sizeof(doc));
	doc.path = "results/x.json";
	assert_int_equal(jread_open(&value, text, len), 0);
	assert_int_equal(report_doc_open(&doc, &value, highlight), 0);
}

static void the_base_and_the_best_have_styles(void **state)
{
	static const char text[] =
		"{\"base\":\"h\",\"arms\":["
		"{\"name\":\"h\",\"ttft_s\":{\"p90\":9}},{\"name\":\"a\",\"ttft_s\":{\"p90\":3}},"
		"{\"name\":\"b\",\"ttft_s\":{\"p90\":1}},{\"name\":\"c\"},"
		"{\"name\":\"d\",\"ttft_s\":{\"p90\":2}},{\"name\":\"e\",\"ttft_s\":{\"p90\":4}},"
		"{\"name\":\"f\",\"ttft_s\":{\"p90\":5}},{\"name\":\"g\",\"ttft_s\":{\"p90\":6}}]}";
	static const char order[] = "bdaefghc";
	static const int styles[] = { 1, 2, 3, 4, 5, REPORT_GREY, 0, REPORT_GREY };

	(void)state;
	open_doc(text, sizeof(text) - 1, NULL);
	assert_int_equal(doc.arms, 8);
	for (size_t i = 0; i < 8; i++) {
		assert_int_equal(doc.arm[i].name[0], order[i]);
		assert_int_equal(doc.arm[i].style, styles[i]);
	}
	assert_int_equal(doc.base, 6);
	open_doc(text, sizeof(text) - 1, "g,nobody,c");
	assert_int_equal(doc.arm[5].style, 1);
	assert_int_equal(doc.arm[7].style, 2);
	assert_int_equal(doc.arm[0].style, REPORT_GREY);
}

/* The path of quantiles to paper: a strip's p90 mark lies where the panel's scale puts it. */
static void a_quantile_reaches_its_place_on_paper(void **state)
{
	static const char text[] =
		"{\"rows\":[{\"name\":\"one\",\"wait_ms\":{\"p50\":1,\"p90\":10,\"p99\":100}}]}";
	struct scale s;
	struct out o = { 0 };
	char wanted[64];

	(void)state;
	open_doc(text, sizeof(text) - 1, NULL);
	report_generic(&o, &doc);
	double from = CHART_NAMES, to = CHART_WIDTH - 44; /* beside it the p90 as a number */

	s = scale_make(1, 100, true, from, to);
	snprintf(wanted, sizeof(wanted), "M%.1f", scale_at(&s, 10));
	assert_non_null(strstr(o.text, wanted));
	assert_float_equal(scale_at(&s, 10), (from + to) / 2, 1e-9);
	assert_non_null(strstr(o.text, "wait_ms"));
	assert_non_null(strstr(o.text, ">ms</text>"));
	out_free(&o);
}

static void numbers_of(struct json *j, const char *key, size_t nr, size_t seed)
{
	json_array_begin(j, key);
	for (size_t i = 0; i < nr; i++)
		json_u64(j, NULL, (i * 7919 + seed * 104729) % 90000);
	json_array_end(j);
}

/* The worst a file can ask for: all arms, many engines, restless queues, moves without end. */
static void write_arm(struct json *j, size_t index, size_t engines)
{
	char name[160];

	snprintf(name, sizeof(name), "%zu%0140d", index, 7);
	json_object_begin(j, NULL);
	json_str(j, "name", name);
	json_object_begin(j, "detail");
	json_object_begin(j, "timeline");
	json_u64(j, "step_s", 1);
	for (int k = 0; k < 3; k++) {
		static const char *const series[] = { "pending_prefill_tokens", "requests",
						      "kv_used_ratio" };

		json_array_begin(j, series[k]);
		for (size_t e = 0; e < engines; e++)
			numbers_of(j, NULL, 200, e + index);
		json_array_end(j);
	}
	json_object_end(j);
	json_object_begin(j, "moves");
	json_u64(j, "total", 5000);
	json_array_begin(j, "at_s");
	for (size_t i = 0; i < 2000; i++)
		json_num(j, NULL, (double)i / 10, 5);
	json_array_end(j);
	for (int k = 0; k < 2; k++) {
		json_array_begin(j, k ? "from" : "to");
		for (size_t i = 0; i < 2000; i++)
			json_u64(j, NULL, (i + (size_t)k) % engines);
		json_array_end(j);
	}
	json_object_end(j);
	json_object_end(j);
	json_object_end(j);
}

static void the_largest_page_is_bounded(void **state)
{
	char *text = malloc(LARGE);
	struct out o = { 0 };
	struct json j;

	(void)state;
	assert_non_null(text);
	json_init(&j, text, LARGE);
	json_object_begin(&j, NULL);
	json_str(&j, "kind", "replay");
	json_array_begin(&j, "arms");
	for (size_t i = 0; i < REPORT_ARMS_MAX + 5; i++)
		write_arm(&j, i, 32);
	json_array_end(&j);
	json_object_end(&j);
	assert_int_equal(json_finish(&j), 0);
	open_doc(text, j.len, NULL);
	assert_int_equal(doc.arms, REPORT_ARMS_MAX);
	assert_int_equal(doc.arms_left_out, 5);
	report_page(&o, &doc, 1, 0);
	assert_int_equal(o.err, 0);
	assert_true(o.len < 3000000);
	assert_non_null(strstr(o.text, "5 arms more are left out"));
	assert_non_null(strstr(o.text, "5000 moves (the first 1000 shown)"));
	out_free(&o);
	free(text);
}

static void cells_are_averages_and_keep_the_time(void **state)
{
	static const char text[] =
		"{\"arms\":[{\"name\":\"a\",\"detail\":{\"timeline\":{\"step_s\":2,"
		"\"requests\":[[1,3,5,7,9],[0,0,0,0,4]]}}}]}";
	struct timeline *t = malloc(sizeof(*t));

	(void)state;
	assert_non_null(t);
	open_doc(text, sizeof(text) - 1, NULL);
	timeline_read(t, &doc.arm[0], "requests", 3);
	assert_int_equal(t->engines, 2);
	assert_int_equal(t->cells, 3);
	assert_true(t->cell_s == 4);
	assert_true(t->value[0][0] == 2 && t->value[0][1] == 6 && t->value[0][2] == 9);
	assert_true(t->value[1][2] == 4);
	assert_true(t->most == 9);
	assert_float_equal(t->mean, (5 + 0.8) / 2, 1e-9);
	timeline_read(t, &doc.arm[0], "nothing", 3);
	assert_int_equal(t->engines, 0);
	free(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLAIM(markup_in_names_is_text),
		CLAIM(what_is_no_text_is_replaced),
		CLAIM(numbers_are_for_people),
		CLAIM(columns_line_up),
		CLAIM(axes_hold_their_values_with_room_between_ticks),
		CLAIM(odd_ranges_make_a_sensible_axis),
		CLAIM(values_lie_where_they_belong),
		CLAIM(bounds_are_one_two_or_five),
		CLAIM(labels_are_short),
		CLAIM(the_base_and_the_best_have_styles),
		CLAIM(a_quantile_reaches_its_place_on_paper),
		CLAIM(the_largest_page_is_bounded),
		CLAIM(cells_are_averages_and_keep_the_time),
	};

	return cmocka_run_group_tests_name("report", tests, NULL, NULL);
}
