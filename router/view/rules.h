/* What a configuration says of the inputs of a decision; the settings' table has the defaults. */
#ifndef TURNWARD_ROUTER_VIEW_RULES_H
#define TURNWARD_ROUTER_VIEW_RULES_H

#include <stdint.h>

struct view_rules {
	uint64_t ttft_window; /* ns: of the recent first tokens that the policy sees */
	double ttft_quantile;
	/* the pool's budget: moves per second, and at once */
	double migration_rate, migration_burst;
};

#endif
