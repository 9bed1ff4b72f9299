/* Axes: round bounds, round ticks, never two labels in one place. */
#include "bench/report_scale.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

static const double hair = 1e-9; /* relative: 0.3 / 0.1 is not quite 3 */

double scale_round_down(double value)
{
	assert(value > 0 && isfinite(value));
	double power = pow(10, floor(log10(value) + hair));
	double lead = value / power * (1 + hair);

	return power * (lead >= 5 ? 5 : lead >= 2 ? 2 : 1);
}

double scale_round_up(double value)
{
	double down = scale_round_down(value);

	if (down >= value * (1 - hair))
		return down;
	double lead = down / pow(10, floor(log10(down) + hair));
	return down * (lead > 1.5 && lead < 3 ? 2.5 : 2);
}

static void widen_log(struct scale *s)
{
	if (!(s->max > 0) || !isfinite(s->max))
		s->max = 1;
	if (!(s->min > 0) || !isfinite(s->min) || s->min < s->max * 1e-6)
		s->min = s->max * (s->min > 0 ? 1e-6 : 1e-3);
	if (s->min > s->max)
		s->min = s->max;
	s->min = scale_round_down(s->min);
	s->max = scale_round_up(s->max);
	if (s->min >= s->max * (1 - hair)) {
		s->min /= 2;
		s->max *= 2;
	}
}

static void widen_linear(struct scale *s)
{
	if (!isfinite(s->min) || !isfinite(s->max) || s->min > s->max)
		s->min = s->max = 0;
	if (s->min == s->max) {
		double by = s->max != 0 ? fabs(s->max) / 2 : 1;

		s->min -= s->min == 0 ? 0 : by;
		s->max += by;
	}
	double step = scale_round_down((s->max - s->min) / 4);

	s->min = step * floor(s->min / step + hair);
	s->max = step * ceil(s->max / step - hair);
}

/* Beyond any measurement of ours, and where powers of ten are still exact enough. */
static double within(double value)
{
	return value > 1e15 ? 1e15 : value < -1e15 ? -1e15 : fabs(value) < 1e-15 ? 0 : value;
}

struct scale scale_make(double min, double max, bool log, double from, double to)
{
	struct scale s = {
		.min = within(min), .max = within(max), .from = from, .to = to, .log = log
	};

	if (log)
		widen_log(&s);
	else
		widen_linear(&s);
	assert(s.min < s.max);
	return s;
}

double scale_at(const struct scale *s, double value)
{
	double share;

	if (!(value > s->min)) /* NaN, too */
		return s->from;
	if (value >= s->max)
		return s->to;
	if (s->log)
		share = log(value / s->min) / log(s->max / s->min);
	else
		share = (value - s->min) / (s->max - s->min);
	return s->from + share * (s->to - s->from);
}

/* Multiples of step, which is on a log axis a factor's place in 1, 2, 5. */
static size_t linear_ticks(const struct scale *s, double step, double ret_tick[SCALE_TICKS_MAX])
{
	size_t nr = 0;

	for (double i = ceil(s->min / step - hair); i * step <= s->max + step * hair; i++)
		if (nr < SCALE_TICKS_MAX)
			ret_tick[nr++] = i == 0 ? 0 : i * step;
	return nr;
}

/* Of each decade those whose leading digit is among `leads`; `every`-th decades only. */
static size_t log_ticks(const struct scale *s, const char *leads, int every,
			double ret_tick[SCALE_TICKS_MAX])
{
	int first = (int)floor(log10(s->min) + hair), last = (int)ceil(log10(s->max) - hair);
	size_t nr = 0;

	for (int decade = first; decade <= last; decade++)
		for (const char *lead = leads; *lead && decade % every == 0; lead++) {
			double value = (*lead - '0') * pow(10, decade);

			if (value >= s->min * (1 - hair) && value <= s->max * (1 + hair) &&
			    nr < SCALE_TICKS_MAX)
				ret_tick[nr++] = value;
		}
	return nr;
}

static bool apart(const struct scale *s, const double *tick, size_t nr, double gap)
{
	for (size_t i = 1; i < nr; i++)
		if (fabs(scale_at(s, tick[i]) - scale_at(s, tick[i - 1])) < gap)
			return false;
	return nr < SCALE_TICKS_MAX;
}

size_t scale_ticks(const struct scale *s, double gap, double ret_tick[SCALE_TICKS_MAX])
{
	static const struct {
		const char *leads;
		int every;
	} choices[] = { { "123456789", 1 }, { "12357", 1 }, { "125", 1 }, { "13", 1 },
			{ "1", 1 },         { "1", 2 },     { "1", 3 } };
	for (size_t i = 0; s->log && i < sizeof(choices) / sizeof(choices[0]); i++) {
		size_t nr = log_ticks(s, choices[i].leads, choices[i].every, ret_tick);
		if (apart(s, ret_tick, nr, gap) && nr > 1)
			return nr;
	}
	if (s->log) { /* too narrow for any of them: its ends are round, too */
		ret_tick[0] = s->min;
		ret_tick[1] = s->max;
		return fabs(s->to - s->from) >= gap ? 2 : 1;
	}
	return linear_ticks(s, scale_round_up((s->max - s->min) * gap / fabs(s->to - s->from)),
			    ret_tick);
}

const char *scale_label(char buf[SCALE_LABEL_MAX], double value)
{
	double size = fabs(value);
	const char *sign = value < 0 ? "\xe2\x88\x92" : "";

	if (size >= 1e6)
		snprintf(buf, SCALE_LABEL_MAX, "%s%.4gM", sign, size / 1e6);
	else if (size >= 1e4)
		snprintf(buf, SCALE_LABEL_MAX, "%s%.4gk", sign, size / 1e3);
	else
		snprintf(buf, SCALE_LABEL_MAX, "%s%.6g", sign, size);
	return buf;
}
