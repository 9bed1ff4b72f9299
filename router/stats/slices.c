/* The sliced window: a slice is taken out of the sum bucket by bucket when its time is over. */
#include "router/stats/slices.h"

#include <assert.h>

void slices_init(struct slices *slices, uint64_t span_ns)
{
	/* What is empty is zero: pages that nobody needs are not touched. */
	if (slices->total.n)
		hist_reset(&slices->total);
	for (int i = 0; i < SLICES_NR; i++)
		if (slices->slice[i].n)
			hist_reset(&slices->slice[i]);
	slices->slice_ns = span_ns < SLICES_NR ? 1 : span_ns / SLICES_NR;
	slices->newest = 0;
}

/* Sum and extremes anew from the slices that are left: neither can be taken out again exactly. */
static void settle(struct slices *slices)
{
	struct hist *total = &slices->total;
	int first = 1;

	total->sum = total->min = total->max = 0;
	for (int i = 0; i < SLICES_NR; i++) {
		const struct hist *s = &slices->slice[i];

		if (s->n == 0)
			continue;
		total->sum += s->sum;
		total->min = first || s->min < total->min ? s->min : total->min;
		total->max = first || s->max > total->max ? s->max : total->max;
		first = 0;
	}
}

static void drop(struct slices *slices, uint64_t number)
{
	struct hist *s = &slices->slice[number % SLICES_NR];

	if (s->n == 0)
		return;
	assert(slices->total.n >= s->n);
	for (uint32_t i = 0; i < HIST_BUCKETS; i++)
		slices->total.counts[i] -= s->counts[i];
	slices->total.n -= s->n;
	hist_reset(s);
	settle(slices);
}

void slices_expire(struct slices *slices, uint64_t now_ns)
{
	uint64_t now = now_ns / slices->slice_ns;

	if (now <= slices->newest)
		return;
	/* After a long silence each place is emptied once, not once per slice that passed. */
	for (uint64_t i = 1; i <= now - slices->newest && i <= SLICES_NR; i++)
		drop(slices, slices->newest + i);
	slices->newest = now;
}

void slices_add(struct slices *slices, uint64_t now_ns, double value)
{
	slices_expire(slices, now_ns);
	hist_add(&slices->slice[slices->newest % SLICES_NR], value);
	hist_add(&slices->total, value);
}
