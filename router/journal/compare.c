/* Asks a second policy on a recorded decision's inputs. */
#include "router/journal/compare.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* A candidate in `choice`, so that its cost there means something. */
static int candidate(const struct policy_choice *choice, int32_t engine)
{
	return engine >= 0 && choice->cost[engine].left_out == LEFT_OUT_CANDIDATE;
}

/* First token on that engine by the step model: what the policy predicts of one that is bound. */
static double predicted_s(const struct journal_view *view, int32_t engine)
{
	struct policy_choice bound;
	struct policy_request request = view->decision->request;

	request.home = engine;
	request.flags |= POLICY_NO_MIGRATION;
	policy_choose(&view->decision->params, &request, view->engines,
		      (unsigned)view->decision->engines_nr, &bound);
	return bound.predicted_ttft_s;
}

void journal_compare(const struct journal_view *view, const struct policy_params *other,
		     struct journal_comparison *ret)
{
	const struct policy_choice *own = &view->choice, *their = &ret->other;
	struct policy_request request = view->decision->request;

	if (other->policy == POLICY_ROUND_ROBIN &&
	    view->decision->params.policy != POLICY_ROUND_ROBIN)
		request.cursor = request.random[1];
	policy_choose(other, &request, view->engines, (unsigned)view->decision->engines_nr,
		      &ret->other);
	ret->differs = their->engine != own->engine;
	ret->comparable = candidate(own, own->engine) && candidate(own, their->engine) &&
			  candidate(their, own->engine) && candidate(their, their->engine);
	ret->regret = (struct journal_regret){ 0 };
	if (!ret->differs || !ret->comparable)
		return;
	ret->regret.own_s = own->cost[their->engine].total_s - own->cost[own->engine].total_s;
	ret->regret.other_s = their->cost[own->engine].total_s - their->cost[their->engine].total_s;
	ret->regret.ttft_s = own->predicted_ttft_s - predicted_s(view, their->engine);
}

static void value_text(const struct journal_field *f, const void *at, char text[JOURNAL_VALUE_MAX])
{
	union {
		uint32_t u32;
		int32_t i32;
		uint64_t u64;
		double f64;
	} v = { .u64 = 0 };

	memcpy(&v, at, f->size < sizeof(v) ? f->size : sizeof(v));
	if (!strcmp(f->type, "f64"))
		snprintf(text, JOURNAL_VALUE_MAX, "%.17g", v.f64);
	else if (!strcmp(f->type, "i32"))
		snprintf(text, JOURNAL_VALUE_MAX, "%d", v.i32);
	else
		snprintf(text, JOURNAL_VALUE_MAX, "%lu",
			 (unsigned long)(f->size == 4 ? v.u32 : v.u64));
}

/* The field of one structure in which the two differ, or NULL. */
static const struct journal_field *differing(const char *of, const void *a, const void *b)
{
	unsigned nr;
	const struct journal_field *all = journal_fields(&nr);

	for (unsigned i = 0; i < nr; i++)
		if (!strcmp(all[i].of, of) &&
		    memcmp((const char *)a + all[i].offset, (const char *)b + all[i].offset,
			   all[i].size) != 0)
			return &all[i];
	return NULL;
}

int journal_difference(const struct journal_view *view, const struct policy_choice *again,
		       char field[JOURNAL_FIELD_MAX], char was[JOURNAL_VALUE_MAX],
		       char is[JOURNAL_VALUE_MAX])
{
	const void *a = &view->choice, *b = again;
	const struct journal_field *f = differing("policy_choice", a, b);

	if (f)
		snprintf(field, JOURNAL_FIELD_MAX, "%s", f->name);
	for (uint64_t i = 0; !f && i < view->decision->engines_nr; i++) {
		a = &view->choice.cost[i];
		b = &again->cost[i];
		f = differing("policy_cost", a, b);
		if (f)
			snprintf(field, JOURNAL_FIELD_MAX, "cost[%s].%s", view->names[i].name,
				 f->name);
	}
	if (!f)
		return -ENOENT;
	value_text(f, (const char *)a + f->offset, was);
	value_text(f, (const char *)b + f->offset, is);
	return 0;
}
