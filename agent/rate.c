/* Fading ratios and a fading least-squares fit; see rate.h. */
#include "agent/rate.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum { QUANTA_MIN = 20 /* a difference of fewer last digits is mostly rounding */ };

static const double doubt = 1.0 / 16;

/* The step in which a number printed with so many digits moves. */
static double quantum(double total, unsigned digits)
{
	if (digits == 0 || total <= 0)
		return 0;
	return pow(10, floor(log10(total)) - (double)digits + 1);
}

/* How a window counts: its own weight, the share of its time, and what the past keeps. */
struct judgement {
	double weight, time_share, past;
};

static struct judgement judge(unsigned *odd_run, const struct rate_params *params,
			      double time_per_unit, double usual, double seen)
{
	struct judgement as_is = { 1, 1, 1 };
	double slow = params->odd_factor * usual;

	if (params->odd_factor <= 0 || seen < params->enough || usual <= 0)
		return as_is;
	if (time_per_unit * params->odd_factor < usual)
		as_is.past = doubt;
	*odd_run = time_per_unit > slow ? *odd_run + 1 : 0;
	if (*odd_run == 0 || *odd_run > RATE_ODD_RUN_MAX)
		return as_is;
	return (struct judgement){ doubt, slow / time_per_unit, 1 };
}

void rate_skip(struct rate *rate, double amount_total, double time_total)
{
	rate->base_amount = amount_total;
	rate->base_time = time_total;
	rate->based = 1;
}

void rate_feed(struct rate *rate, const struct rate_params *params, double amount_total,
	       double time_total, unsigned digits)
{
	double amount = amount_total - rate->base_amount, time = time_total - rate->base_time;

	if (!rate->based || amount < 0 || time < 0) {
		rate_skip(rate, amount_total, time_total);
		return;
	}
	if (amount <= 0 || time <= 0 || amount < params->window_min ||
	    amount < QUANTA_MIN * quantum(amount_total, digits) ||
	    time < QUANTA_MIN * quantum(time_total, digits))
		return;
	double usual = rate->amount > 0 ? rate->time / rate->amount : 0;
	struct judgement j = judge(&rate->odd_run, params, time / amount, usual, rate->seen);
	double keep = j.past * exp(-j.weight * amount / params->memory);

	rate->amount = rate->amount * keep + j.weight * amount;
	rate->time = rate->time * keep + j.weight * j.time_share * time;
	rate->seen += amount;
	rate_skip(rate, amount_total, time_total);
}

int rate_time_per_unit(const struct rate *rate, const struct rate_params *params, double *ret_s)
{
	if (rate->seen < params->enough || rate->amount <= 0 || rate->time <= 0)
		return -ENODATA;
	*ret_s = rate->time / rate->amount;
	return 0;
}

void rate_reset(struct rate *rate)
{
	*rate = (struct rate){ 0 };
}

void step_rate_feed(struct step_rate *rate, const struct rate_params *params,
		    const double totals[MOMENTS_NR])
{
	double delta[MOMENTS_NR];
	int shrank = !rate->based;

	for (int i = 0; i < MOMENTS_NR; i++) {
		delta[i] = totals[i] - rate->base[i];
		shrank |= delta[i] < 0;
	}
	double n = delta[MOMENT_N];
	if (!shrank && (n < 1 || n < params->window_min))
		return;
	memcpy(rate->base, totals, sizeof(rate->base));
	rate->based = 1;
	if (shrank || delta[MOMENT_T] <= 0)
		return;
	double usual = rate->sum[MOMENT_N] > 0 ? rate->sum[MOMENT_T] / rate->sum[MOMENT_N] : 0;
	struct judgement j = judge(&rate->odd_run, params, delta[MOMENT_T] / n, usual, rate->seen);
	double keep = j.past * exp(-j.weight * n / params->memory);

	delta[MOMENT_T] *= j.time_share;
	delta[MOMENT_BT] *= j.time_share;
	for (int i = 0; i < MOMENTS_NR; i++)
		rate->sum[i] = rate->sum[i] * keep + j.weight * delta[i];
	rate->seen += n;
}

int step_rate_mean(const struct step_rate *rate, const struct rate_params *params, double *ret_s)
{
	if (rate->seen < params->enough || rate->sum[MOMENT_N] <= 0)
		return -ENODATA;
	*ret_s = rate->sum[MOMENT_T] / rate->sum[MOMENT_N];
	return 0;
}

int step_rate_slope(const struct step_rate *rate, const struct rate_params *params, double *ret_s)
{
	const double *m = rate->sum;
	double mean_s;

	if (step_rate_mean(rate, params, &mean_s) < 0)
		return -ENODATA;
	double mean_b = m[MOMENT_B] / m[MOMENT_N];
	double variance = m[MOMENT_BB] / m[MOMENT_N] - mean_b * mean_b;
	double covariance = m[MOMENT_BT] / m[MOMENT_N] - mean_b * mean_s;
	if (variance < 0.25 || variance < 0.0025 * mean_b * mean_b)
		return -ENODATA;
	double slope = covariance / variance;
	if (!(slope >= 0) || slope * mean_b > mean_s)
		return -ENODATA;
	*ret_s = slope;
	return 0;
}

void step_rate_reset(struct step_rate *rate)
{
	*rate = (struct step_rate){ 0 };
}
