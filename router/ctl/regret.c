/* Sums and shows regrets. */
#include "router/ctl/regret.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void name_engine(const struct journal_view *view, int32_t engine, char *ret, size_t size)
{
	snprintf(ret, size, "%s", engine >= 0 ? view->names[engine].name : "none");
}

/* Into its place among the worst, if it has one. */
static void top_add(struct regret *r, uint64_t number, const struct journal_view *view,
		    const struct journal_comparison *c)
{
	unsigned at = r->top_nr;
	struct regret_top *t;

	while (at > 0 && r->top[at - 1].regret.other_s < c->regret.other_s)
		at--;
	if (at == REGRET_TOP)
		return;
	if (r->top_nr < REGRET_TOP)
		r->top_nr++;
	memmove(&r->top[at + 1], &r->top[at], (r->top_nr - at - 1) * sizeof(r->top[0]));
	t = &r->top[at];
	*t = (struct regret_top){ .number = number,
				  .own_reason = policy_reason_name(view->choice.reason),
				  .other_reason = policy_reason_name(c->other.reason),
				  .class = view->choice.class,
				  .turn = view->decision->request.turn,
				  .prompt_tokens = view->decision->request.prompt_tokens,
				  .regret = c->regret };
	snprintf(t->id, sizeof(t->id), "%s", view->decision->head.id);
	name_engine(view, view->choice.engine, t->own, sizeof(t->own));
	name_engine(view, c->other.engine, t->other, sizeof(t->other));
}

static int case_add(struct regret *r, const struct regret_case *one)
{
	if (r->cases_nr == r->room) {
		size_t room = r->room ? r->room * 2 : 1024;
		struct regret_case *more = realloc(r->cases, room * sizeof(*more));

		if (!more)
			return -ENOMEM;
		r->cases = more;
		r->room = room;
	}
	r->cases[r->cases_nr++] = *one;
	return 0;
}

void regret_asked(struct regret *r, const struct journal_view *view)
{
	r->decisions++;
	r->class_nr[view->choice.class]++;
	r->reason_nr[view->choice.reason]++;
}

int regret_add(struct regret *r, uint64_t number, const struct journal_view *view,
	       const struct journal_comparison *c)
{
	if (!c->differs)
		return 0;
	r->differ++;
	if (!c->comparable) {
		r->incomparable++;
		return 0;
	}
	top_add(r, number, view, c);
	return case_add(r, &(struct regret_case){ c->regret, (uint8_t)view->choice.class,
						  (uint8_t)view->choice.reason });
}

void regret_free(struct regret *r)
{
	free(r->cases);
	r->cases = NULL;
}

/* ---- sums ---- */

enum measure {
#define MEASURE(field, key, meaning) MEASURE_##field,
	REGRETS(MEASURE)
#undef MEASURE
		MEASURES_NR
};

static double value_of(const struct regret_case *one, enum measure measure)
{
	switch (measure) {
#define MEASURE(field, key, meaning) \
	case MEASURE_##field:        \
		return one->regret.field;
		REGRETS(MEASURE)
#undef MEASURE
	default:
		return 0;
	}
}

static const char *const measure_keys[] = {
#define MEASURE(field, key, meaning) key,
	REGRETS(MEASURE)
#undef MEASURE
};

static const char *const measure_meanings[] = {
#define MEASURE(field, key, meaning) meaning,
	REGRETS(MEASURE)
#undef MEASURE
};

struct sums {
	size_t n;
	double mean, p90, sum, loss; /* loss: of those above 0, what is really lost by this model */
};

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Over the cases of that class or reason (-1: all). `values` has room for all of them. */
static struct sums sums_of(const struct regret *r, enum measure measure, int class, int reason,
			   double *values)
{
	struct sums s = { 0 };

	for (size_t i = 0; i < r->cases_nr; i++) {
		const struct regret_case *one = &r->cases[i];

		if ((class >= 0 && one->class != class) || (reason >= 0 && one->reason != reason))
			continue;
		values[s.n] = value_of(one, measure);
		s.loss += values[s.n] > 0 ? values[s.n] : 0;
		s.sum += values[s.n++];
	}
	if (s.n == 0)
		return s;
	qsort(values, s.n, sizeof(*values), by_value);
	s.mean = s.sum / (double)s.n;
	s.p90 = values[(s.n * 9 + 9) / 10 - 1]; /* nearest rank */
	return s;
}

static double *values_new(const struct regret *r)
{
	double *values = malloc((r->cases_nr + 1) * sizeof(*values));

	if (!values)
		abort(); /* 8 bytes a case, of which 32 are held */
	return values;
}

/* ---- for scripts ---- */

static void sums_json(struct json *j, const struct regret *r, int class, int reason, double *values)
{
	for (int m = 0; m < MEASURES_NR; m++) {
		struct sums s = sums_of(r, (enum measure)m, class, reason, values);

		if (m == 0)
			json_u64(j, "differ", s.n);
		json_object_begin(j, measure_keys[m]);
		json_f64(j, "mean_s", s.mean);
		json_f64(j, "p90_s", s.p90);
		json_f64(j, "sum_s", s.sum);
		json_f64(j, "loss_s", s.loss);
		json_object_end(j);
	}
}

static void top_json(struct json *j, const struct regret_top *t)
{
	json_object_begin(j, NULL);
	json_str(j, "id", t->id);
	json_u64(j, "number", t->number);
	json_str(j, "class", policy_class_name(t->class));
	json_u64(j, "turn", t->turn);
	json_u64(j, "prompt_tokens", t->prompt_tokens);
	json_str(j, "engine", t->own);
	json_str(j, "reason", t->own_reason);
	json_str(j, "other_engine", t->other);
	json_str(j, "other_reason", t->other_reason);
	json_f64(j, "own_s", t->regret.own_s);
	json_f64(j, "other_s", t->regret.other_s);
	json_f64(j, "ttft_s", t->regret.ttft_s);
	json_object_end(j);
}

static void groups_json(struct json *j, const struct regret *r, double *values)
{
	json_array_begin(j, "classes");
	for (int i = 0; i < POLICY_CLASSES_NR; i++)
		if (r->class_nr[i]) {
			json_object_begin(j, NULL);
			json_str(j, "name", policy_class_name((unsigned)i));
			json_u64(j, "decisions", r->class_nr[i]);
			sums_json(j, r, i, -1, values);
			json_object_end(j);
		}
	json_array_end(j);
	json_array_begin(j, "reasons");
	for (int i = 0; i < POLICY_REASONS_NR; i++)
		if (r->reason_nr[i]) {
			json_object_begin(j, NULL);
			json_str(j, "name", policy_reason_name((unsigned)i));
			json_u64(j, "decisions", r->reason_nr[i]);
			sums_json(j, r, -1, i, values);
			json_object_end(j);
		}
	json_array_end(j);
}

void regret_json(struct json *j, const char *key, const struct regret *r, const char *policy)
{
	double *values = values_new(r);

	json_object_begin(j, key);
	json_str(j, "policy", policy);
	json_u64(j, "decisions", r->decisions);
	json_u64(j, "differ", r->differ);
	json_u64(j, "incomparable", r->incomparable);
	json_object_begin(j, "regret");
	sums_json(j, r, -1, -1, values);
	json_object_end(j);
	groups_json(j, r, values);
	json_array_begin(j, "top");
	for (unsigned i = 0; i < r->top_nr; i++)
		top_json(j, &r->top[i]);
	json_array_end(j);
	json_object_end(j);
	free(values);
}

/* ---- for people ---- */

static void row(const struct regret *r, const char *name, uint64_t decisions, int class, int reason,
		double *values, FILE *out)
{
	struct sums s = sums_of(r, MEASURE_own_s, class, reason, values);

	fprintf(out, "  %-14s %9lu %7zu", name, (unsigned long)decisions, s.n);
	for (int m = 0; m < MEASURES_NR; m++) {
		s = sums_of(r, (enum measure)m, class, reason, values);
		if (s.n)
			fprintf(out, " %8.3f %8.3f %9.2f", s.mean, s.p90, s.sum);
		else
			fprintf(out, " %8s %8s %9s", "-", "-", "-");
	}
	fprintf(out, "\n");
}

static void print_table(const struct regret *r, FILE *out)
{
	double *values = values_new(r);

	fprintf(out, "\n  %-14s %9s %7s", "", "decisions", "differ");
	for (int m = 0; m < MEASURES_NR; m++)
		fprintf(out, " %5.5s: mean %8s %9s", measure_keys[m], "p90", "sum s");
	fprintf(out, "\n");
	row(r, "all", r->decisions, -1, -1, values, out);
	for (int i = 0; i < POLICY_CLASSES_NR; i++)
		if (r->class_nr[i])
			row(r, policy_class_name((unsigned)i), r->class_nr[i], i, -1, values, out);
	for (int i = 0; i < POLICY_REASONS_NR; i++)
		if (r->reason_nr[i])
			row(r, policy_reason_name((unsigned)i), r->reason_nr[i], -1, i, values,
			    out);
	fprintf(out, "\n");
	for (int m = 0; m < MEASURES_NR; m++)
		fprintf(out, "  %5s: %s\n", measure_keys[m], measure_meanings[m]);
	free(values);
}

static void print_top(const struct regret *r, FILE *out)
{
	fprintf(out, "\nthe dearest, by the other policy; see them with turnward explain ID:\n");
	fprintf(out, "  %-26s %-6s %4s %7s  %-34s %8s %8s\n", "id", "class", "turn", "prompt",
		"chosen -> other", "other s", "own s");
	for (unsigned i = 0; i < r->top_nr; i++) {
		const struct regret_top *t = &r->top[i];
		char move[96];

		snprintf(move, sizeof(move), "%s (%s) -> %s (%s)", t->own, t->own_reason, t->other,
			 t->other_reason);
		fprintf(out, "  %-26s %-6s %4u %7u  %-34s %8.3f %8.3f\n", t->id,
			policy_class_name(t->class), t->turn, t->prompt_tokens, move,
			t->regret.other_s, t->regret.own_s);
	}
}

void regret_print(const struct regret *r, const char *policy, FILE *out)
{
	fprintf(out, "\n%s would have chosen another engine in %lu of %lu decisions (%.1f %%)",
		policy, (unsigned long)r->differ, (unsigned long)r->decisions,
		r->decisions ? 100.0 * (double)r->differ / (double)r->decisions : 0);
	if (r->incomparable)
		fprintf(out, "; %lu of them cannot be priced by both",
			(unsigned long)r->incomparable);
	fprintf(out, "\n");
	if (r->differ == 0)
		return;
	print_table(r, out);
	print_top(r, out);
}
