/* Edit distance for "did you mean". */
#include "shm/base/near.h"

#include <string.h>

static int least(int a, int b, int c)
{
	int m = a < b ? a : b;

	return m < c ? m : c;
}

int near_distance(const char *a, const char *b)
{
	int rows[3][NEAR_NAME_MAX + 1];
	int *before = rows[0], *last = rows[1], *now = rows[2];
	size_t la = strlen(a), lb = strlen(b);

	if (la > NEAR_NAME_MAX || lb > NEAR_NAME_MAX)
		return NEAR_NAME_MAX;
	for (size_t j = 0; j <= lb; j++)
		last[j] = (int)j;
	for (size_t i = 1; i <= la; i++) {
		now[0] = (int)i;
		for (size_t j = 1; j <= lb; j++) {
			now[j] = least(last[j] + 1, now[j - 1] + 1,
				       last[j - 1] + (a[i - 1] != b[j - 1]));
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				now[j] = least(now[j], before[j - 2] + 1, now[j]);
		}
		int *spare = before;

		before = last, last = now, now = spare;
	}
	return last[lb];
}

void near_offer(const char *name, const char *candidate, const char **best, int *distance)
{
	int d = near_distance(name, candidate);

	if (d < *distance && 2 * (size_t)d <= strlen(candidate)) {
		*distance = d;
		*best = candidate;
	}
}
