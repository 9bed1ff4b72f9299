/* What of an engine's totals becomes a speed; see speeds.h. */
#include "agent/speeds.h"

#include <errno.h>

/* Work units are tokens, token intervals and decode steps. */
static const struct rate_params prefill_params = { 65536, 256, 256, 1.25 };
static const struct rate_params decode_params = { 4096, 32, 8, 1.5 };
static const struct rate_params step_params = { 512, 8, 1, 1.5 };

/*
 * Where times are counted by request, those in one step are each charged with all of it. A prompt
 * of this many tokens has steps of its own (a budget of 8192 or less is usual).
 */
static const double prefill_mean_min = 12288;

/*
 * Times by request are a lower bound of throughput, close only for long prompts: windows of others
 * are left out, and the throughput is absent rather than several times too low.
 */
static void feed_prefill(struct speeds *s, const struct engine_reading *reading)
{
	double requests = reading->prefills - s->prefills;
	double tokens = reading->prefill_tokens - s->prefill.base_amount;

	if (!(reading->has & READING_PREFILL))
		return;
	if (reading->has & READING_PREFILLS && requests > 0 && tokens < prefill_mean_min * requests)
		rate_skip(&s->prefill, reading->prefill_tokens, reading->prefill_s);
	else
		rate_feed(&s->prefill, &prefill_params, reading->prefill_tokens, reading->prefill_s,
			  reading->digits);
	s->prefills = reading->prefills;
}

void speeds_feed(struct speeds *s, const struct engine_reading *reading)
{
	feed_prefill(s, reading);
	if (reading->has & READING_DECODE)
		rate_feed(&s->decode, &decode_params, reading->decode_steps, reading->decode_s,
			  reading->digits);
	if (reading->has & READING_MOMENTS)
		step_rate_feed(&s->steps, &step_params, reading->moments);
}

int speeds_prefill(const struct speeds *s, double *ret_token_s)
{
	return rate_time_per_unit(&s->prefill, &prefill_params, ret_token_s);
}

int speeds_decode(const struct speeds *s, int moments, double *ret_step_s)
{
	if (step_rate_mean(&s->steps, &step_params, ret_step_s) == 0)
		return 0;
	return moments ? -ENODATA : rate_time_per_unit(&s->decode, &decode_params, ret_step_s);
}

int speeds_per_sequence(const struct speeds *s, double *ret_s)
{
	return step_rate_slope(&s->steps, &step_params, ret_s);
}
