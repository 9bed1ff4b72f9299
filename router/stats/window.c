/* The sliding window: samples leave the histogram when they leave the ring. */
#include "router/stats/window.h"

#include <assert.h>

static_assert((WINDOW_SAMPLES & (WINDOW_SAMPLES - 1)) == 0, "the ring is indexed by mask");

static void drop_oldest(struct window *window)
{
	assert(window->head != window->tail);
	hist_remove(&window->hist, window->samples[window->tail++ % WINDOW_SAMPLES].value);
	if (window->head == window->tail)
		hist_reset(&window->hist); /* its extremes are of nothing any more */
}

void window_add(struct window *window, uint64_t now_ns, double value)
{
	if (window_n(window) == WINDOW_SAMPLES)
		drop_oldest(window);
	window->samples[window->head % WINDOW_SAMPLES].ns = now_ns;
	window->samples[window->head % WINDOW_SAMPLES].value = value;
	window->head++;
	hist_add(&window->hist, value);
}

void window_expire(struct window *window, uint64_t now_ns, uint64_t span_ns)
{
	uint64_t limit = now_ns > span_ns ? now_ns - span_ns : 0;

	while (window_n(window) && window->samples[window->tail % WINDOW_SAMPLES].ns < limit)
		drop_oldest(window);
}

double window_max(const struct window *window)
{
	double max = 0;

	for (uint64_t i = window->tail; i != window->head; i++)
		if (window->samples[i % WINDOW_SAMPLES].value > max)
			max = window->samples[i % WINDOW_SAMPLES].value;
	return max;
}
