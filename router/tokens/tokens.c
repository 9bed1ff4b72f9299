/* The token estimate: priors per byte class, and gains on them learnt by recursive least squares.
 */
#include "router/tokens/tokens.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>
#include <xxhash.h>

/*
 * Tokens per unit of each class, before anything is learnt; README.md says from what they were
 * fitted. Bytes beyond ASCII and \u escapes share one gain (the same characters, written
 * otherwise), as do messages, tools and the prompt's own frame (the template's).
 */
enum feature { LETTERS, DIGITS, PUNCT, SPACES, HIGH, FRAME, FEATURES };

static const double per_letter = 0.21, per_digit = 1.1, per_punct = 0.64, per_space_run = 0.29,
		    per_high = 0.23, per_escape = 0.62, per_message = 5, per_tool = 4,
		    per_prompt = 3;
static const double image_prior = 1200, image_min = 16, image_max = 16384;

static const double prior_variance = 0.25; /* of a gain: a factor of 1.5 is nothing unusual */
static const double noise_variance = 0.05 * 0.05; /* of exact / estimate within one kind of text */
static const double noise_tokens = 8;  /* templates differ by about that, whatever the length */
static const double forgetting = 0.98; /* the last fifty reports count */
static const double step_max = 0.5, step_min = 0.1, step_errors = 3; /* of a report's surprise */
static const double belief = 8; /* a report further than this factor off is not believed */

enum { STREAK_MAX = 8 }; /* surprises beyond the limit, all one way: what was learnt was wrong */
enum { MEDIAN_PER_OCTAVE = 4, MEDIAN_BUCKETS = 24 * MEDIAN_PER_OCTAVE, MEDIAN_MEMORY = 1024 };

/* A served model's calibration, as it lies in the section. */
struct model {
	uint64_t samples, refused, images_seen;
	double gain[FEATURES];
	double cov[FEATURES][FEATURES];
	double image;
	double error; /* smoothed relative error */
	double bytes_per_token;
	int64_t streak; /* of surprises beyond the limit; its sign is theirs */
	uint64_t median_total;
	uint32_t median[MEDIAN_BUCKETS];
};
static_assert(sizeof(struct model) % 8 == 0 && sizeof(struct model) <= TABLE_PAYLOAD_MAX,
	      "a table's payload");

size_t tokens_size(void)
{
	return table_size(TOKENS_MODELS_MAX, sizeof(struct model));
}

int tokens_attach(struct tokens *ret_tokens, void *mem, size_t size, uint64_t *ret_dropped)
{
	return table_attach(&ret_tokens->table, mem, size, sizeof(struct model), ret_dropped);
}

int tokens_view(struct tokens *ret_tokens, const void *mem, size_t size)
{
	return table_view(&ret_tokens->table, mem, size, sizeof(struct model));
}

int tokens_clear(struct tokens *ret_tokens, void *mem, size_t size)
{
	return table_clear(&ret_tokens->table, mem, size, sizeof(struct model));
}

uint64_t tokens_model_key(const void *name, size_t len)
{
	uint64_t key = XXH3_64bits(name, len);

	return key ? key : 1;
}

/* ------- models */

static void cov_reset(struct model *model)
{
	memset(model->cov, 0, sizeof model->cov);
	for (int i = 0; i < FEATURES; i++)
		model->cov[i][i] = prior_variance;
}

static void model_begin(struct model *model)
{
	*model = (struct model){ .image = image_prior, .error = step_max };
	for (int i = 0; i < FEATURES; i++)
		model->gain[i] = 1;
	cov_reset(model);
}

/* What has been learnt about a model, the priors if nothing has. */
static void model_get(const struct tokens *tokens, uint64_t key, struct model *ret_model)
{
	assert(key != 0);
	if (table_read(&tokens->table, key, ret_model, NULL))
		model_begin(ret_model);
}

/* Prior tokens by feature. */
static void features_of(const struct tokens_prompt *p, double frame, double *ret_z)
{
	ret_z[LETTERS] = per_letter * (double)p->text.letters;
	ret_z[DIGITS] = per_digit * (double)p->text.digits;
	ret_z[PUNCT] = per_punct * (double)p->text.punct;
	ret_z[SPACES] = per_space_run * (double)p->text.space_runs;
	ret_z[HIGH] = per_high * (double)p->text.high + per_escape * (double)p->text.escapes;
	ret_z[FRAME] = per_message * (double)p->messages + per_tool * (double)p->tools + frame;
}

static double dot(const double *a, const double *b)
{
	double sum = 0;

	for (int i = 0; i < FEATURES; i++)
		sum += a[i] * b[i];
	return sum;
}

static double sum_of(const double *a)
{
	double sum = 0;

	for (int i = 0; i < FEATURES; i++)
		sum += a[i];
	return sum;
}

static double model_text(const struct model *model, const struct tokens_prompt *prompt,
			 double frame)
{
	double z[FEATURES];

	features_of(prompt, frame, z);
	return dot(model->gain, z);
}

static double model_estimate(const struct model *model, const struct tokens_prompt *prompt,
			     double frame)
{
	return model_text(model, prompt, frame) + (double)prompt->token_ids +
	       model->image * (double)prompt->images;
}

static uint64_t as_count(double tokens)
{
	if (!(tokens >= 1))
		return 1;
	return tokens < 1e15 ? (uint64_t)(tokens + 0.5) : (uint64_t)1e15;
}

/* ------- estimating */

uint64_t tokens_estimate(const struct tokens *tokens, uint64_t model_key,
			 const struct tokens_prompt *prompt)
{
	struct model model;

	model_get(tokens, model_key, &model);
	return as_count(model_estimate(&model, prompt, per_prompt));
}

/* 0 if anything shrank. */
static int is_longer(const struct tokens_prompt *than, const struct tokens_prompt *prompt,
		     struct tokens_prompt *ret_new)
{
	struct tokens_prompt d = *prompt;
	int shrank = 0;

#define LESS(field)      (shrank |= d.field < than->field, d.field -= than->field)
#define X(name, meaning) LESS(text.name);
	CHAT_CLASSES(X)
#undef X
	LESS(messages);
	LESS(tools);
	LESS(images);
	LESS(token_ids);
#undef LESS
	*ret_new = d;
	return !shrank;
}

uint64_t tokens_estimate_turn(const struct tokens *tokens, uint64_t model_key,
			      const struct tokens_base *base, const struct tokens_prompt *prompt)
{
	struct tokens_prompt more;
	struct model model;
	double whole, ratio;

	model_get(tokens, model_key, &model);
	whole = model_estimate(&model, prompt, per_prompt);
	if (base->exact == 0)
		return as_count(whole);
	if (is_longer(&base->prompt, prompt, &more))
		return as_count((double)base->exact + model_estimate(&model, &more, 0));
	ratio = (double)base->exact / fmax(1, model_estimate(&model, &base->prompt, per_prompt));
	return as_count(whole * fmin(fmax(ratio, 1.0 / TOKENS_GAIN_MAX), TOKENS_GAIN_MAX));
}

uint64_t tokens_bytes(const struct tokens_prompt *prompt)
{
	const struct chat_classes *t = &prompt->text;

	return t->letters + t->digits + t->punct + t->space_runs + t->high + 3 * t->escapes;
}

/* ------- learning */

static void median_add(struct model *model, uint64_t exact)
{
	double octaves = log2((double)exact) * MEDIAN_PER_OCTAVE;
	uint32_t bucket = octaves < MEDIAN_BUCKETS ? (uint32_t)octaves : MEDIAN_BUCKETS - 1;

	model->median[bucket]++;
	if (++model->median_total < MEDIAN_MEMORY)
		return;
	model->median_total = 0;
	for (int i = 0; i < MEDIAN_BUCKETS; i++)
		model->median_total += model->median[i] /= 2;
}

static uint64_t median_of(const struct model *model)
{
	uint64_t below = 0;

	if (model->median_total == 0)
		return TOKENS_MEDIAN_PRIOR;
	for (int i = 0; i < MEDIAN_BUCKETS; i++) {
		below += model->median[i];
		if (2 * below >= model->median_total)
			return as_count(exp2((i + 0.5) / MEDIAN_PER_OCTAVE));
	}
	return TOKENS_MEDIAN_PRIOR;
}

/* Keeps the uncertainty from growing where a stream of like prompts teaches nothing, and from
 * becoming nonsense by rounding. */
static void cov_bound(struct model *model)
{
	double trace = 0;

	for (int i = 0; i < FEATURES; i++) {
		trace += model->cov[i][i];
		if (!(model->cov[i][i] > 0)) {
			cov_reset(model);
			return;
		}
	}
	if (trace <= FEATURES * prior_variance)
		return;
	for (int i = 0; i < FEATURES * FEATURES; i++)
		model->cov[i / FEATURES][i % FEATURES] *= FEATURES * prior_variance / trace;
}

/* Bounds a surprise. Many in a row on one side make the model doubt itself and learn fast again. */
static double surprise_bound(struct model *model, double surprise)
{
	double limit = fmin(step_max, fmax(step_min, step_errors * model->error));

	if (fabs(surprise) <= limit) {
		model->streak = 0;
		return surprise;
	}
	if (surprise > 0)
		model->streak = model->streak > 0 ? model->streak + 1 : 1;
	else
		model->streak = model->streak < 0 ? model->streak - 1 : -1;
	if (model->streak == STREAK_MAX || model->streak == -STREAK_MAX) {
		model->streak = 0;
		cov_reset(model);
	}
	return surprise > 0 ? limit : -limit;
}

/* One step of recursive least squares on shares, which makes prompts of every length alike: the
 * features' shares of the prior estimate explain the ratio of exact to prior estimate. */
static void gains_learn(struct model *model, const double *z, double target)
{
	double sum = sum_of(z), share[FEATURES], ps[FEATURES], surprise, variance;

	for (int i = 0; i < FEATURES; i++)
		share[i] = z[i] / sum;
	surprise = surprise_bound(model, target / sum - dot(model->gain, share));
	for (int i = 0; i < FEATURES; i++)
		ps[i] = dot(model->cov[i], share);
	variance = noise_variance + noise_tokens * noise_tokens / (sum * sum) + dot(share, ps);
	for (int i = 0; i < FEATURES; i++) {
		double gain = model->gain[i] + ps[i] / variance * surprise;

		model->gain[i] = fmin(fmax(gain, 1.0 / TOKENS_GAIN_MAX), TOKENS_GAIN_MAX);
	}
	for (int i = 0; i < FEATURES; i++)
		for (int j = 0; j < FEATURES; j++)
			model->cov[i][j] =
				(model->cov[i][j] - ps[i] * ps[j] / variance) / forgetting;
	cov_bound(model);
}

/* The price of an image is what the rest of the prompt does not explain. */
static void image_learn(struct model *model, const struct tokens_prompt *prompt, double rest)
{
	double price = rest / (double)prompt->images;
	double weight = fmax(0.1, 1.0 / (double)++model->images_seen);

	price = fmin(fmax(price, image_min), image_max);
	model->image += weight * (price - model->image);
}

static int believable(const struct tokens_prompt *prompt, double estimate, double exact)
{
	if (!(exact >= 1 && exact <= TOKENS_PROMPT_MAX))
		return 0;
	if (prompt->images) /* between nothing and the dearest image each, beside the text */
		return exact <= belief * estimate + image_max * (double)prompt->images;
	return exact <= belief * estimate + noise_tokens && exact >= estimate / belief;
}

static void note_error(struct model *model, double estimate, double exact)
{
	double weight = fmax(0.05, 1.0 / (double)(model->samples + 1));

	model->error += weight * (fmin(fabs(estimate - exact) / exact, 1) - model->error);
}

static void note_grain(struct model *model, const struct tokens_prompt *prompt, double exact)
{
	double bytes = (double)tokens_bytes(prompt);

	if (bytes < 256 || prompt->images || prompt->token_ids)
		return;
	if (model->bytes_per_token == 0)
		model->bytes_per_token = bytes / exact;
	model->bytes_per_token += 0.05 * (bytes / exact - model->bytes_per_token);
}

static void model_learn(struct model *model, const struct tokens_prompt *prompt, double exact)
{
	double estimate = model_estimate(model, prompt, per_prompt);
	double text = exact - (double)prompt->token_ids, z[FEATURES];

	features_of(prompt, per_prompt, z);
	if (prompt->images) {
		image_learn(model, prompt, text - dot(model->gain, z));
	} else if (text > 0 && text >= exact / 2) { /* ids alone teach nothing about text */
		gains_learn(model, z, text);
		note_error(model, estimate, exact);
	}
	note_grain(model, prompt, exact);
	model->samples++;
}

void tokens_learn(struct tokens *tokens, uint64_t model_key, const struct tokens_prompt *prompt,
		  uint64_t exact, uint64_t stamp)
{
	struct model model;

	model_get(tokens, model_key, &model);
	if (prompt &&
	    !believable(prompt, model_estimate(&model, prompt, per_prompt), (double)exact)) {
		model.refused++;
	} else if (exact >= 1 && exact <= TOKENS_PROMPT_MAX) {
		median_add(&model, exact);
		if (prompt)
			model_learn(&model, prompt, (double)exact);
	}
	table_put(&tokens->table, model_key, stamp, &model, NULL);
}

/* ------- looking in */

uint64_t tokens_median(const struct tokens *tokens, uint64_t model_key)
{
	struct model model;

	model_get(tokens, model_key, &model);
	return median_of(&model);
}

double tokens_bytes_per_token(const struct tokens *tokens, uint64_t model_key)
{
	struct model model;

	model_get(tokens, model_key, &model);
	return model.bytes_per_token;
}

int tokens_stats(const struct tokens *tokens, uint64_t model_key,
		 struct tokens_model_stats *ret_stats)
{
	struct model model;

	if (table_read(&tokens->table, model_key, &model, NULL))
		return -ENOENT;
	*ret_stats = (struct tokens_model_stats){
		.samples = model.samples,
		.refused = model.refused,
		.median = median_of(&model),
		.error = model.error,
		.tokens_per_image = model.image,
		.bytes_per_token = model.bytes_per_token,
	};
	return 0;
}
