/* "Did you mean": the nearest name to one that was mistyped. */
#ifndef TURNWARD_SHM_BASE_NEAR_H
#define TURNWARD_SHM_BASE_NEAR_H

enum { NEAR_NAME_MAX = 64, NEAR_DISTANCE_MAX = 3 };

/*
 * Edits (insert, delete, replace, swap of neighbours) from one name to the other; names beyond
 * NEAR_NAME_MAX bytes are at distance NEAR_NAME_MAX from everything.
 */
int near_distance(const char *a, const char *b);

/*
 * Keeps the best of a series: start with *best = NULL, *distance = NEAR_DISTANCE_MAX + 1. A
 * candidate that shares less than half its letters with the name does not count.
 */
void near_offer(const char *name, const char *candidate, const char **best, int *distance);

#endif
