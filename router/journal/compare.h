/*
 * What another policy would have done with a recorded decision, and what that says: a decision is
 * priced by both models, so that neither policy judges itself alone.
 */
#ifndef TURNWARD_ROUTER_JOURNAL_COMPARE_H
#define TURNWARD_ROUTER_JOURNAL_COMPARE_H

#include "router/journal/journal.h"

struct journal_comparison {
	int differs;    /* they chose different engines */
	int comparable; /* each one's engine was a candidate of the other: `regret` is valid */
	struct journal_regret regret;
	struct policy_choice other;
};

/*
 * Where both choose the same engine all regrets are 0. Policies without costs are priced as eft,
 * the step model. Round-robin beside another policy takes its place in the rotation from the
 * record's random draw: the recorded cursor stands still while nobody uses it.
 */
void journal_compare(const struct journal_view *view, const struct policy_params *other,
		     struct journal_comparison *ret);

enum { JOURNAL_FIELD_MAX = 96, JOURNAL_VALUE_MAX = 32 };

/*
 * The first field in which a choice made again differs from the recorded one, as
 * "cost[gpu1].queue_s", with both values. 0, or -ENOENT when they are the same.
 */
int journal_difference(const struct journal_view *view, const struct policy_choice *again,
		       char field[JOURNAL_FIELD_MAX], char was[JOURNAL_VALUE_MAX],
		       char is[JOURNAL_VALUE_MAX]);

#endif
