/* One decision as it is told: what was known, chosen, said by a shadow, and what came of it. */
#ifndef TURNWARD_ROUTER_CTL_STORY_H
#define TURNWARD_ROUTER_CTL_STORY_H

#include "router/journal/compare.h"

struct story {
	uint64_t number; /* of the decision's record */
	struct journal_view view;
	const struct journal_outcome *outcome; /* NULL = none yet, or not recorded */
	const struct journal_shadow *shadow;   /* NULL = it agreed, or none was asked */
	int differs;                           /* decided again, it comes out otherwise */
	struct policy_choice again;
};

void story_print(const struct story *story);
void story_json(const struct story *story); /* to stdout */

#endif
