/* Tells a decision to people, as a sentence and tables, and to scripts. */
#include "router/ctl/story.h"

#include "shm/base/clock.h"
#include "shm/base/json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* The reason in one sentence, from the policy's own table. */
static void sentence(const struct journal_view *v, char *out, size_t size)
{
	const char *names[STATE_ENGINES_MAX];

	for (uint64_t i = 0; i < v->decision->engines_nr; i++)
		names[i] = v->names[i].name;
	policy_explain(&v->decision->params, &v->decision->request, &v->choice,
		       (unsigned)v->decision->engines_nr, names, out, size);
}

static const char *engine_name(const struct journal_view *v, int64_t engine)
{
	return engine >= 0 && engine < (int64_t)v->decision->engines_nr ? v->names[engine].name
									: "none";
}

/* The fixed part of what the shadow chose; its costs were not journalled. */
static void shadow_choice(const struct journal_shadow *s, struct policy_choice *ret)
{
	memcpy(ret, s->choice, sizeof(s->choice));
}

static const char *shadow_policy(const struct journal_decision *d)
{
	return d->shadow ? policy_name((unsigned)(d->shadow - 1)) : NULL;
}

/* ---- where the time went ---- */

struct phase {
	const char *name, *until;
	double s; /* < 0 = its moment has not happened */
};

enum { PHASES = JOURNAL_MOMENTS_NR };

/* As the metrics have it: a moment that comes out of order has taken no time. */
static void phase_set(struct phase *p, const char *name, const char *until, double at_s,
		      double *before_s)
{
	*p = (struct phase){ name, until, -1 };
	if (at_s < 0)
		return;
	p->s = at_s > *before_s ? at_s - *before_s : 0;
	if (at_s > *before_s)
		*before_s = at_s;
}

static void phases_of(const struct journal_outcome *o, struct phase ret[PHASES])
{
	double before = 0;
	int n = 0;

#define PHASE(name, meaning, word) phase_set(&ret[n++], word, meaning, o->name##_s, &before);
	JOURNAL_MOMENTS(PHASE)
#undef PHASE
}

/* ---- for people ---- */

/* Terms that are 0 for every engine say nothing: they are left out. */
static uint64_t terms_used(const struct journal_view *v)
{
	uint64_t used = 0, bit;

	for (uint64_t i = 0; i < v->decision->engines_nr; i++) {
		const struct policy_cost *c = &v->choice.cost[i];

		if (c->left_out)
			continue;
		bit = 1;
#define TERM(name, meaning)             \
	used |= c->name != 0 ? bit : 0; \
	bit <<= 1;
		POLICY_TERMS(TERM)
#undef TERM
	}
	return used;
}

static void print_terms_head(uint64_t used)
{
	uint64_t bit = 1;

#define TERM(name, meaning)                \
	if (used & bit)                    \
		printf(" %10.10s", #name); \
	bit <<= 1;
	POLICY_TERMS(TERM)
#undef TERM
}

static void print_terms(const struct policy_cost *c, uint64_t used)
{
	uint64_t bit = 1;

#define TERM(name, meaning)                 \
	if (used & bit)                     \
		printf(" %10.4f", c->name); \
	bit <<= 1;
	POLICY_TERMS(TERM)
#undef TERM
}

static void print_meanings(uint64_t used)
{
	uint64_t bit = 1;

#define TERM(name, meaning)                               \
	if (used & bit)                                   \
		printf("    %-10s %s\n", #name, meaning); \
	bit <<= 1;
	POLICY_TERMS(TERM)
#undef TERM
}

static void print_engine(const struct journal_view *v, uint64_t i, uint64_t used)
{
	const struct policy_engine *e = &v->engines[i];
	const struct policy_cost *c = &v->choice.cost[i];

	printf("%c %-14s %8.0f %8.0f %8u %8.0f", (int)i == v->choice.engine ? '>' : ' ',
	       v->names[i].name, e->num_requests, e->decoding, e->hit_tokens,
	       e->pending_prefill_tokens);
	if (e->age_s > 0)
		printf(" %6.0f", e->age_s * 1e3);
	else
		printf(" %6s", "-");
	if (c->left_out) {
		printf("  %s\n", policy_left_out_meaning(c->left_out));
		return;
	}
	printf(" %10.4f", c->total_s);
	print_terms(c, used);
	if (c->factor != 1)
		printf("  x %.2f", c->factor);
	if (e->staleness != STALENESS_FRESH)
		printf("  record %s", policy_staleness_name(e->staleness));
	printf("\n");
}

static void print_engines(const struct journal_view *v)
{
	uint64_t used = terms_used(v);

	printf("\n  %-14s %8s %8s %8s %8s %6s %10s", "engine", "requests", "decoding", "hit",
	       "pending", "age ms", "total_s");
	print_terms_head(used);
	printf("\n");
	for (uint64_t i = 0; i < v->decision->engines_nr; i++)
		print_engine(v, i, used);
	print_meanings(used);
}

static void print_request(const struct story *s)
{
	const struct journal_decision *d = s->view.decision;
	const struct policy_request *r = &d->request;
	time_t wall = (time_t)(d->head.wall_ns / NS_PER_S);
	char when[32];
	struct tm tm;

	strftime(when, sizeof(when), "%F %T", localtime_r(&wall, &tm));
	printf("%s, %s turn %u%s, prompt %u tokens%s, home %s%s\n", d->model[0] ? d->model : "-",
	       policy_class_name(s->view.choice.class), r->turn,
	       r->flags & POLICY_STREAMED ? " (streamed)" : "", r->prompt_tokens,
	       r->flags & POLICY_ESTIMATED ? " (estimated)" : "", engine_name(&s->view, r->home),
	       r->flags & POLICY_NO_MIGRATION ? " (bound)" : "");
	printf("decided %s.%03lu by %s in %.1f us%s; record %lu, ", when,
	       (unsigned long)(d->head.wall_ns % NS_PER_S / NS_PER_MS),
	       policy_name((unsigned)d->params.policy), (double)d->took_ns * 1e-3,
	       d->attempt > 1 ? ", again after an engine that did not take it" : "",
	       (unsigned long)s->number);
	if (s->differs)
		printf("and ANOTHER choice when decided again: a different build, or damage\n");
	else
		printf("decided again the same, bit for bit\n");
}

static void say_difference(const char *what, double s, const char *above, const char *below)
{
	printf("%s %.3f s %s", what, s < 0 ? -s : s, s < 0 ? below : above);
}

static void print_shadow(const struct story *s)
{
	const char *policy = shadow_policy(s->view.decision);
	struct policy_choice choice;

	if (!policy)
		return;
	if (!s->shadow) {
		printf("\nshadow %s: no other choice\n", policy);
		return;
	}
	shadow_choice(s->shadow, &choice);
	printf("\nshadow %s: %s (%s)", policy, engine_name(&s->view, choice.engine),
	       policy_reason_name(choice.reason));
	if (s->shadow->comparable) {
		say_difference("; the choice made costs", s->shadow->regret.other_s, "more",
			       "less");
		printf(" by its model");
		say_difference(", its own", s->shadow->regret.own_s, "more", "less");
		printf(" by %s", policy_name((unsigned)s->view.decision->params.policy));
		say_difference("; first token there", s->shadow->regret.ttft_s, "earlier", "later");
		printf(" by the step model");
	}
	printf("\n");
}

static void print_phases(const struct journal_outcome *o)
{
	struct phase phases[PHASES];
	double whole = 0;

	phases_of(o, phases);
	for (int i = 0; i < PHASES; i++)
		whole += phases[i].s > 0 ? phases[i].s : 0;
	for (int i = 0; i < PHASES; i++)
		if (phases[i].s >= 0)
			printf("  %-14s %10.6f s %5.1f %%  until %s\n", phases[i].name, phases[i].s,
			       whole > 0 ? 100 * phases[i].s / whole : 0, phases[i].until);
	printf("  %-14s %10.6f s in all, from the request's first byte on\n", "ended", o->end_s);
}

static void print_outcome(const struct story *s)
{
	const struct journal_outcome *o = s->outcome;
	const struct policy_choice *choice = &s->view.choice;

	if (!o) {
		printf("\nno outcome yet\n");
		return;
	}
	printf("\noutcome: %s, status %lu, on %s\n", o->end, (unsigned long)o->status,
	       o->engine[0] ? o->engine : "no engine");
	print_phases(o);
#define WAY(name, meaning) \
	if (o->name)       \
		printf("  %-14lu %s\n", (unsigned long)o->name, meaning);
	JOURNAL_WAYS(WAY)
#undef WAY
	if (o->first_token_s >= 0 && o->sent_s >= 0)
		printf("  engine's TTFT  %10.6f s, predicted %.6f s\n",
		       o->first_token_s - o->sent_s, choice->predicted_ttft_s);
	if (o->prompt_tokens != UINT64_MAX)
		printf("  prompt %lu tokens (%u believed)", (unsigned long)o->prompt_tokens,
		       s->view.decision->request.prompt_tokens);
	if (o->prompt_tokens != UINT64_MAX && o->cached_tokens != UINT64_MAX && choice->engine >= 0)
		printf(", %lu of them cached (%u believed)", (unsigned long)o->cached_tokens,
		       s->view.engines[choice->engine].hit_tokens);
	if (o->completion_tokens != UINT64_MAX)
		printf("; %lu generated", (unsigned long)o->completion_tokens);
	if (o->prompt_tokens != UINT64_MAX || o->completion_tokens != UINT64_MAX)
		printf("\n");
}

void story_print(const struct story *s)
{
	char why[512];

	sentence(&s->view, why, sizeof(why));
	printf("%s\n", why);
	print_request(s);
	print_engines(&s->view);
	print_shadow(s);
	print_outcome(s);
}

/* ---- for scripts ---- */

static int to_stdout(void *ctx, const char *text, size_t len)
{
	return fwrite(text, 1, len, stdout) == len ? 0 : -EIO;
}

static void number_json(struct json *j, const struct journal_field *f, const char *key,
			const uint8_t *at)
{
	union {
		uint32_t u32;
		int32_t i32;
		uint64_t u64;
		float f32;
		double f64;
	} v = { .u64 = 0 };
	int eight = f->size % 8 == 0 && strcmp(f->type, "u32s") != 0;

	memcpy(&v, at, eight ? 8 : 4);
	if (!strcmp(f->type, "f64"))
		json_f64(j, key, v.f64);
	else if (!strcmp(f->type, "f32"))
		json_f64(j, key, v.f32);
	else if (!strcmp(f->type, "i32"))
		json_i64(j, key, v.i32);
	else
		json_u64(j, key, eight ? v.u64 : v.u32);
}

/* Every field of one of the policy's structures, as the layout has them. */
static void fields_json(struct json *j, const char *of, const void *from)
{
	unsigned nr;
	const struct journal_field *all = journal_fields(&nr);

	for (const struct journal_field *f = all; f < all + nr; f++) {
		const uint8_t *at = (const uint8_t *)from + f->offset;

		if (strcmp(f->of, of) != 0 || !strcmp(f->name, "reserved"))
			continue;
		if (strcmp(f->type, "u64s") != 0) {
			number_json(j, f, f->name, at);
			continue;
		}
		json_array_begin(j, f->name);
		for (size_t i = 0; i < f->size / 8; i++)
			number_json(j, f, NULL, at + 8 * i);
		json_array_end(j);
	}
}

/* Parameters by name; those that are a word from a list as that word. */
static void params_json(struct json *j, const char *key, const struct policy_params *p)
{
	json_object_begin(j, key);
#define CHOICE(name, names, standard, meaning) json_str(j, #name, names[p->name]);
	POLICY_CHOICE_PARAMS(CHOICE)
#undef CHOICE
#define REAL(name, standard, min, max, kind, unit, meaning) json_f64(j, #name, p->name);
	POLICY_REAL_PARAMS(REAL)
#undef REAL
	json_object_end(j);
}

static void engine_json(struct json *j, const struct journal_view *v, uint64_t i)
{
	const struct policy_engine *e = &v->engines[i];
	const struct policy_cost *c = &v->choice.cost[i];

	json_object_begin(j, NULL);
	json_str(j, "name", v->names[i].name);
	json_bool(j, "chosen", (int)i == v->choice.engine);
	json_str(j, "left_out", c->left_out ? policy_left_out_name(c->left_out) : NULL);
	json_str(j, "staleness", policy_staleness_name(e->staleness));
	json_u64(j, "uncached_tokens", c->uncached_tokens);
	json_object_begin(j, "cost");
#define TERM(name, meaning) json_f64(j, #name, c->name);
	POLICY_TERMS(TERM)
#undef TERM
	json_f64(j, "factor", c->factor);
	json_f64(j, "total_s", c->total_s);
	json_object_end(j);
	json_object_begin(j, "input");
	fields_json(j, "policy_engine", e);
	json_object_end(j);
	json_object_end(j);
}

static void moment_json(struct json *j, const char *key, double s)
{
	if (s >= 0)
		json_f64(j, key, s);
	else
		json_null(j, key);
}

static void count_json(struct json *j, const char *key, uint64_t n)
{
	if (n != UINT64_MAX)
		json_u64(j, key, n);
	else
		json_null(j, key);
}

static void outcome_json(struct json *j, const struct journal_outcome *o)
{
	struct phase phases[PHASES];

	json_object_begin(j, "outcome");
	json_str(j, "end", o->end);
	json_u64(j, "status", o->status);
	json_str(j, "engine", o->engine);
#define MOMENT(name, meaning, phase) moment_json(j, #name "_s", o->name##_s);
	JOURNAL_MOMENTS(MOMENT)
#undef MOMENT
	moment_json(j, "end_s", o->end_s);
	json_object_begin(j, "phases_s");
	phases_of(o, phases);
	for (int i = 0; i < PHASES; i++)
		moment_json(j, phases[i].name, phases[i].s);
	json_object_end(j);
	count_json(j, "prompt_tokens", o->prompt_tokens);
	count_json(j, "cached_tokens", o->cached_tokens);
	count_json(j, "completion_tokens", o->completion_tokens);
#define WAY(name, meaning) json_u64(j, #name, o->name);
	JOURNAL_WAYS(WAY)
#undef WAY
	json_object_end(j);
}

static void shadow_json(struct json *j, const struct story *s)
{
	const char *policy = shadow_policy(s->view.decision);
	struct policy_choice choice = s->view.choice;

	if (!policy) {
		json_null(j, "shadow");
		return;
	}
	json_object_begin(j, "shadow");
	json_str(j, "policy", policy);
	json_bool(j, "differs", s->shadow != NULL);
	if (s->shadow)
		shadow_choice(s->shadow, &choice);
	json_str(j, "engine", engine_name(&s->view, choice.engine));
	if (s->shadow) {
		json_str(j, "reason", policy_reason_name(choice.reason));
		json_bool(j, "comparable", s->shadow->comparable != 0);
		json_f64(j, "own_s", s->shadow->regret.own_s);
		json_f64(j, "other_s", s->shadow->regret.other_s);
		json_f64(j, "ttft_s", s->shadow->regret.ttft_s);
		params_json(j, "params", &s->shadow->params);
	}
	json_object_end(j);
}

static void choice_json(struct json *j, const struct story *s)
{
	const struct policy_choice *c = &s->view.choice;

	json_str(j, "engine", c->engine >= 0 ? engine_name(&s->view, c->engine) : NULL);
	json_str(j, "reason", policy_reason_name(c->reason));
	json_str(j, "class", policy_class_name(c->class));
	json_str(j, "trigger", policy_trigger_name(c->trigger));
	json_str(j, "move", policy_move_name(c->move));
	json_f64(j, "gain_s", c->gain_s);
	json_f64(j, "margin_s", c->margin_s);
	json_f64(j, "predicted_ttft_s", c->predicted_ttft_s);
	json_f64(j, "predicted_raw_s", c->predicted_raw_s);
	json_bool(j, "replay_same", !s->differs);
}

void story_json(const struct story *s)
{
	const struct journal_decision *d = s->view.decision;
	int64_t home = d->request.home;
	char buf[4096], why[512];
	struct json j;

	sentence(&s->view, why, sizeof(why));
	json_init(&j, buf, sizeof(buf));
	json_sink_set(&j, to_stdout, NULL);
	json_object_begin(&j, NULL);
	json_str(&j, "id", d->head.id);
	json_u64(&j, "number", s->number);
	json_str(&j, "model", d->model);
	json_fmt(&j, "session", "%016lx", (unsigned long)d->session);
	json_u64(&j, "wall_ns", d->head.wall_ns);
	json_str(&j, "policy", policy_name((unsigned)d->params.policy));
	json_str(&j, "why", why);
	choice_json(&j, s);
	json_str(&j, "home",
		 home >= 0 && home < (int64_t)d->engines_nr ? engine_name(&s->view, home) : NULL);
	json_u64(&j, "turn", d->request.turn);
	json_u64(&j, "prompt_tokens", d->request.prompt_tokens);
	json_u64(&j, "attempt", d->attempt);
	json_u64(&j, "took_ns", d->took_ns);
	json_object_begin(&j, "request");
	fields_json(&j, "policy_request", &d->request);
	json_object_end(&j);
	params_json(&j, "params", &d->params);
	json_array_begin(&j, "engines");
	for (uint64_t i = 0; i < d->engines_nr; i++)
		engine_json(&j, &s->view, i);
	json_array_end(&j);
	shadow_json(&j, s);
	if (s->outcome)
		outcome_json(&j, s->outcome);
	else
		json_null(&j, "outcome");
	json_object_end(&j);
	json_finish(&j);
	putchar('\n');
}
