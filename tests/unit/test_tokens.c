/* Token estimates start near, come nearer with every report, and no report can drive them off. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "router/tokens/tokens.h"
#include "tests/lib/unit.h"

static uint8_t *mem;
static size_t size;
static struct tokens tokens;
static uint64_t model, stamp;

static int set_up(void **state)
{
	size = tokens_size();
	mem = aligned_alloc(TABLE_ALIGN, (size + TABLE_ALIGN - 1) / TABLE_ALIGN * TABLE_ALIGN);
	memset(mem, 0, size);
	model = tokens_model_key("m", 1);
	stamp = 1;
	return tokens_attach(&tokens, mem, size, NULL);
}

static int tear_down(void **state)
{
	free(mem);
	return 0;
}

/* Counts text as the body's scan does. */
static struct chat_classes classes_of(const char *text)
{
	struct chat_classes c = { 0 };
	int in_space = 0;

	for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
		int space = *p == ' ' || *p == '\t' || *p == '\n' || *p == '\r';

		c.space_runs += space && !in_space;
		c.letters += (*p | 32) >= 'a' && (*p | 32) <= 'z';
		c.digits += *p >= '0' && *p <= '9';
		c.high += *p >= 0x80;
		in_space = space;
	}
	for (const unsigned char *p = (const unsigned char *)text; *p; p++)
		c.punct += *p > ' ' && *p < 0x80 && !((*p | 32) >= 'a' && (*p | 32) <= 'z') &&
			   !(*p >= '0' && *p <= '9');
	return c;
}

/* Samples with the tokens that Qwen's vocabulary has for them. */
static const struct {
	const char *text;
	uint64_t exact;
} samples[] = {
#include "tests/unit/tokens_samples.h"
};
enum { SAMPLES = sizeof(samples) / sizeof(samples[0]) };

/* Kinds of text in proportions of their own; a prompt of about `bytes` bytes. */
static struct tokens_prompt prompt_of(unsigned *seed, uint64_t bytes)
{
	struct tokens_prompt p = { .messages = 1 + (uint64_t)rand_r(seed) % 20 };
	uint64_t kind = (uint64_t)rand_r(seed) % 4;

	p.text.letters = bytes * (kind == 0 ? 75 : kind == 1 ? 55 : kind == 2 ? 30 : 10) / 100;
	p.text.digits = bytes * (kind == 2 ? 30 : kind == 3 ? 2 : 3) / 100;
	p.text.punct = bytes * (kind == 1 ? 20 : kind == 2 ? 20 : 6) / 100;
	p.text.space_runs = bytes * (kind == 3 ? 3 : 14) / 100;
	p.text.high = kind == 3 ? bytes * 75 / 100 : 0;
	return p;
}

/* A tokenizer that differs from the priors: fewer tokens for digits, more for what is not ASCII. */
static uint64_t truth(const struct tokens_prompt *p)
{
	return (uint64_t)(0.24 * (double)p->text.letters + 0.45 * (double)p->text.digits +
			  0.5 * (double)p->text.punct + 0.2 * (double)p->text.space_runs +
			  0.4 * (double)p->text.high + 6.0 * (double)p->messages + 12);
}

static double error_over(unsigned seed, int n)
{
	double sum = 0;

	for (int i = 0; i < n; i++) {
		struct tokens_prompt p = prompt_of(&seed, 2000 + (uint64_t)rand_r(&seed) % 200000);
		double exact = (double)truth(&p);

		sum += fabs((double)tokens_estimate(&tokens, model, &p) - exact) / exact;
	}
	return sum / n;
}

static void learn(unsigned *seed, int n)
{
	for (int i = 0; i < n; i++) {
		struct tokens_prompt p = prompt_of(seed, 2000 + (uint64_t)rand_r(seed) % 200000);

		tokens_learn(&tokens, model, &p, truth(&p), stamp++);
	}
}

static void priors_are_near_for_every_kind_of_text(void **state)
{
	double sum = 0, quarter = 0;

	for (int i = 0; i < SAMPLES; i++) {
		struct tokens_prompt p = { .text = classes_of(samples[i].text) };
		double exact = (double)samples[i].exact;
		double estimate = (double)tokens_estimate(&tokens, model, &p);

		assert_true(estimate > 0.6 * exact && estimate < 1.6 * exact);
		sum += fabs(estimate - exact) / exact;
		quarter += fabs((double)strlen(samples[i].text) / 4 - exact) / exact;
	}
	assert_true(sum / SAMPLES < 0.2);
	assert_true(sum < quarter / 2);
}

static void few_reports_are_enough(void **state)
{
	unsigned seed = 3;
	double before = error_over(99, 200);

	learn(&seed, 8);
	assert_true(error_over(99, 200) < before / 2);
	learn(&seed, 40);
	assert_true(error_over(99, 200) < 0.03);
}

static void one_report_corrects_its_own_kind(void **state)
{
	struct tokens_prompt p = { .text.letters = 40000, .text.space_runs = 8000 };
	uint64_t before = tokens_estimate(&tokens, model, &p), exact = before * 13 / 10;

	tokens_learn(&tokens, model, &p, exact, stamp++);
	assert_true(tokens_estimate(&tokens, model, &p) > before * 12 / 10);
	tokens_learn(&tokens, model, &p, exact, stamp++);
	assert_true(tokens_estimate(&tokens, model, &p) > before * 126 / 100);
	assert_true(tokens_estimate(&tokens, model, &p) < before * 134 / 100);
}

static void models_learn_apart(void **state)
{
	uint64_t other = tokens_model_key("other", 5);
	struct tokens_prompt p = { .text.letters = 40000 };
	uint64_t before = tokens_estimate(&tokens, other, &p);

	for (int i = 0; i < 20; i++)
		tokens_learn(&tokens, model, &p, before * 2, stamp++);
	assert_true(tokens_estimate(&tokens, model, &p) > before * 18 / 10);
	assert_int_equal(tokens_estimate(&tokens, other, &p), before);
}

static void junk_is_bounded_and_truth_wins_it_back(void **state)
{
	unsigned seed = 3;
	struct tokens_prompt p = prompt_of(&seed, 50000);
	double prior = (double)tokens_estimate(&tokens, model, &p);

	for (int i = 0; i < 3000; i++) {
		struct tokens_prompt junk = prompt_of(&seed, (uint64_t)rand_r(&seed) % 100000);
		uint64_t claim = (uint64_t)rand_r(&seed) << (rand_r(&seed) % 40);

		claim = rand_r(&seed) % 3 ? claim : tokens_estimate(&tokens, model, &junk) * 7;
		tokens_learn(&tokens, model, &junk, claim, stamp++);

		double now = (double)tokens_estimate(&tokens, model, &p);

		assert_true(now <= prior * TOKENS_GAIN_MAX + 1);
		assert_true(now >= prior / TOKENS_GAIN_MAX - 1);
	}
	learn(&seed, 300);
	assert_true(error_over(99, 200) < 0.05);
}

static void a_report_that_cannot_be_true_teaches_nothing(void **state)
{
	static const uint64_t lies[] = { 0, 1, 1u << 31, UINT64_MAX };
	struct tokens_prompt p = { .text.letters = 40000 };
	uint64_t before = tokens_estimate(&tokens, model, &p);
	struct tokens_model_stats stats;

	for (int i = 0; i < 4; i++)
		tokens_learn(&tokens, model, &p, lies[i], stamp++);
	assert_int_equal(tokens_estimate(&tokens, model, &p), before);
	assert_int_equal(tokens_stats(&tokens, model, &stats), 0);
	assert_int_equal(stats.refused, 4);
	assert_int_equal(stats.samples, 0);
}

static void a_turn_builds_on_the_last_exact_count(void **state)
{
	struct tokens_base base = { .exact = 50000, .prompt.text.letters = 150000 };
	struct tokens_prompt p = base.prompt;

	assert_int_equal(tokens_estimate_turn(&tokens, model, &base, &p), 50000);
	p.text.letters += 1000;
	p.messages += 2;
	assert_in_range(tokens_estimate_turn(&tokens, model, &base, &p), 50180, 50260);
	base.exact = 0;
	assert_int_equal(tokens_estimate_turn(&tokens, model, &base, &p),
			 tokens_estimate(&tokens, model, &p));
}

static void a_shortened_history_is_estimated_at_the_session_s_own_ratio(void **state)
{
	struct tokens_base base = { .exact = 50000, .prompt.text.letters = 150000 };
	struct tokens_prompt p = { .text.letters = 15000 };
	uint64_t plain = tokens_estimate(&tokens, model, &p);
	double ratio = 50000.0 / (double)tokens_estimate(&tokens, model, &base.prompt);

	assert_in_range(tokens_estimate_turn(&tokens, model, &base, &p),
			(uint64_t)((double)plain * ratio) - 5,
			(uint64_t)((double)plain * ratio) + 5);
	base.exact = 1; /* nonsense in a session's entry does not reach the decision */
	assert_true(tokens_estimate_turn(&tokens, model, &base, &p) >= plain / TOKENS_GAIN_MAX - 1);
}

static void token_ids_count_as_they_are(void **state)
{
	struct tokens_prompt p = { .token_ids = 1234 };

	assert_in_range(tokens_estimate(&tokens, model, &p), 1234, 1240);
	for (int i = 0; i < 50; i++)
		tokens_learn(&tokens, model, &p, 1234, stamp++);
	assert_in_range(tokens_estimate(&tokens, model, &p), 1234, 1240);
}

static void the_price_of_an_image_is_learnt_and_bounded(void **state)
{
	struct tokens_prompt p = { .text.letters = 4000, .images = 3 };
	struct tokens_prompt text = { .text.letters = 4000 };
	uint64_t without = tokens_estimate(&tokens, model, &text);
	struct tokens_model_stats stats;

	for (int i = 0; i < 40; i++)
		tokens_learn(&tokens, model, &p, without + 3 * 256, stamp++);
	tokens_stats(&tokens, model, &stats);
	assert_true(fabs(stats.tokens_per_image - 256) < 10);
	assert_int_equal(tokens_estimate(&tokens, model, &text), without);
	for (int i = 0; i < 400; i++)
		tokens_learn(&tokens, model, &p, 1, stamp++);
	tokens_stats(&tokens, model, &stats);
	assert_true(stats.tokens_per_image >= 16);
}

static void escapes_weigh_like_the_characters_they_stand_for(void **state)
{
	struct tokens_prompt utf8 = { .text.high = 3000 }, escaped = { .text.escapes = 1000 };
	double a = (double)tokens_estimate(&tokens, model, &utf8);
	double b = (double)tokens_estimate(&tokens, model, &escaped);

	assert_true(fabs(a / b - 1) < 0.15);
}

static void bodies_that_cannot_be_read_cost_the_median(void **state)
{
	assert_int_equal(tokens_median(&tokens, model), TOKENS_MEDIAN_PRIOR);
	for (uint64_t i = 0; i < 3000; i++)
		tokens_learn(&tokens, model, NULL,
			     i % 3 == 0   ? 100
			     : i % 3 == 1 ? 5000
					  : 90000,
			     stamp++);
	assert_in_range(tokens_median(&tokens, model), 4500, 5500);
	for (uint64_t i = 0; i < 6000; i++)
		tokens_learn(&tokens, model, NULL, 20000, stamp++);
	assert_in_range(tokens_median(&tokens, model), 18000, 22000); /* the old fade */
}

static void an_empty_prompt_has_a_token(void **state)
{
	struct tokens_prompt p = { 0 };

	assert_true(tokens_estimate(&tokens, model, &p) >= 1);
	tokens_learn(&tokens, model, &p, 3, stamp++);
	assert_true(tokens_estimate(&tokens, model, &p) >= 1);
}

static void absurd_counts_stay_finite(void **state)
{
	struct tokens_prompt p = { .text.letters = UINT64_MAX, .images = UINT64_MAX };
	struct tokens_base base = { .exact = UINT64_MAX };

	assert_true(tokens_estimate(&tokens, model, &p) <= 1000000000000000);
	assert_true(tokens_estimate_turn(&tokens, model, &base, &p) <= 1000000000000000);
	tokens_learn(&tokens, model, &p, 5, stamp++);
}

static void calibration_survives_its_writer(void **state)
{
	unsigned seed = 3;
	struct tokens next, view;
	struct tokens_prompt p = prompt_of(&seed, 30000);
	uint64_t dropped, estimate;

	learn(&seed, 30);
	estimate = tokens_estimate(&tokens, model, &p);
	assert_int_equal(tokens_attach(&next, mem, size, &dropped), 0);
	assert_int_equal(dropped, 0);
	assert_int_equal(tokens_estimate(&next, model, &p), estimate);
	assert_int_equal(tokens_view(&view, mem, size), 0);
	assert_int_equal(tokens_estimate(&view, model, &p), estimate);
	assert_true(tokens_bytes_per_token(&view, model) > 1);
}

static void the_number_of_models_is_bounded(void **state)
{
	struct tokens_prompt p = { .text.letters = 4000 };
	struct tokens_model_stats stats;

	for (uint64_t i = 1; i <= 10 * TOKENS_MODELS_MAX; i++) {
		tokens_learn(&tokens, i * 0x9e3779b97f4a7c15, &p, 900, stamp++);
		tokens_learn(&tokens, model, &p, 900, stamp++);
	}
	assert_int_equal(tokens_stats(&tokens, model, &stats), 0);
	assert_int_equal(stats.samples, 10 * TOKENS_MODELS_MAX);
	assert_int_equal(tokens_stats(&tokens, 0x9e3779b97f4a7c15, &stats), -ENOENT);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(priors_are_near_for_every_kind_of_text),
		TEST(few_reports_are_enough),
		TEST(one_report_corrects_its_own_kind),
		TEST(models_learn_apart),
		TEST(junk_is_bounded_and_truth_wins_it_back),
		TEST(a_report_that_cannot_be_true_teaches_nothing),
		TEST(a_turn_builds_on_the_last_exact_count),
		TEST(a_shortened_history_is_estimated_at_the_session_s_own_ratio),
		TEST(token_ids_count_as_they_are),
		TEST(the_price_of_an_image_is_learnt_and_bounded),
		TEST(escapes_weigh_like_the_characters_they_stand_for),
		TEST(bodies_that_cannot_be_read_cost_the_median),
		TEST(an_empty_prompt_has_a_token),
		TEST(absurd_counts_stay_finite),
		TEST(calibration_survives_its_writer),
		TEST(the_number_of_models_is_bounded),
	};

	return cmocka_run_group_tests_name("tokens", tests, NULL, NULL);
}
