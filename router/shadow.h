/*
 * A second policy that is asked on the same inputs and never acts: `shadow_policy`.
 *
 * A decision's number in the journal is noted when it is made; once its request has been handed to
 * the kernel and the loop has nothing else at hand, the record is read back and the other policy is
 * asked on it. Disagreements become a record of their own. No clock of a request waits for it.
 */
#ifndef TURNWARD_ROUTER_SHADOW_H
#define TURNWARD_ROUTER_SHADOW_H

#include "router/journal/compare.h"
#include "router/stats/hist.h"

#include <stdint.h>

struct worker;

enum {
	SHADOW_QUEUE = 64,  /* decisions that may wait; a ring holds at least as many records */
	SHADOW_AT_ONCE = 8, /* of a turn: 30 us */
};

struct shadow {
	int on;
	struct policy_params params;
	uint64_t queue[SHADOW_QUEUE]; /* numbers of decisions, oldest at `first` */
	unsigned first, nr;
	unsigned due;                         /* of these, decided before the turn under way */
	struct journal_comparison comparison; /* scratch; large */
	struct hist took;                     /* s, one evaluation */
};

void shadow_init(struct worker *w);

/* What a decision's record says of it. */
uint64_t shadow_word(const struct worker *w);

/* Notes a decision. One that finds no room pushes out the oldest, which is counted. */
void shadow_note(struct worker *w, uint64_t number);

/* Before the loop waits: 1 if it should not, because a decision is to be evaluated then. */
int shadow_due(struct worker *w);

/* After a turn that delivered so many events: evaluates what was due, if there is time. */
void shadow_turn(struct worker *w, int delivered);

#endif
