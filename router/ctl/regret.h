/*
 * What another policy would have done, summed over a recording: how often it differs, and what that
 * costs by either model; by class, by reason, and the worst cases by id.
 */
#ifndef TURNWARD_ROUTER_CTL_REGRET_H
#define TURNWARD_ROUTER_CTL_REGRET_H

#include "router/journal/compare.h"
#include "shm/base/json.h"

#include <stdio.h>

enum { REGRET_TOP = 10 };

/* The measures of struct journal_regret. X(field, JSON key, meaning) */
#define REGRETS(X)                                                               \
	X(own_s, "own", "the other engine costs more, by the policy in force")   \
	X(other_s, "other", "the chosen engine costs more, by the other policy") \
	X(ttft_s, "ttft", "predicted first token there minus the other's, step model")

struct regret_case {
	struct journal_regret regret;
	uint8_t class, reason;
};

struct regret_top {
	char id[JOURNAL_ID_SIZE];
	uint64_t number;
	char own[STATE_NAME_MAX + 8], other[STATE_NAME_MAX + 8];
	const char *own_reason, *other_reason;
	uint32_t class, turn, prompt_tokens;
	struct journal_regret regret;
};

struct regret {
	uint64_t decisions, differ,
		incomparable; /* of these, one's engine was none for the other */
	uint64_t class_nr[POLICY_CLASSES_NR], reason_nr[POLICY_REASONS_NR];
	struct regret_case *cases; /* that differ and can be compared; grows */
	size_t cases_nr, room;
	struct regret_top top[REGRET_TOP]; /* by regret by the other's model, worst first */
	unsigned top_nr;
};

/* Counts a decision on which the other policy was asked. */
void regret_asked(struct regret *regret, const struct journal_view *view);

/* Adds what it said, if it differs. 0 or -ENOMEM. */
int regret_add(struct regret *regret, uint64_t number, const struct journal_view *view,
	       const struct journal_comparison *comparison);
void regret_free(struct regret *regret);

/* `key`: of the object; `policy`: how the other one is called. */
void regret_json(struct json *j, const char *key, const struct regret *regret, const char *policy);
void regret_print(const struct regret *regret, const char *policy, FILE *out);

#endif
