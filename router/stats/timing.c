/* Fills the latency record from the windows of one engine. */
#include "router/stats/timing.h"

#include <assert.h>
#include <math.h>

static const double ewma_alpha = 0.1;
static const double quantiles[] = { 0.5, 0.9, 0.99 };

void timing_init(struct timing *timing, uint64_t window_ns)
{
	timing->ttft_ewma = (struct ewma){ 0 };
	timing->first_tokens_total = timing->finished_total = 0;
	timing->errors = timing->aborts = timing->flagged = 0;
	slices_init(&timing->ttft, window_ns);
	slices_init(&timing->given_up, window_ns);
	slices_init(&timing->e2e, window_ns);
	slices_init(&timing->itl, window_ns);
}

void timing_first_token(struct timing *timing, uint64_t now_ns, double ttft_s)
{
	slices_add(&timing->ttft, now_ns, ttft_s);
	ewma_add(&timing->ttft_ewma, ttft_s, ewma_alpha);
	timing->first_tokens_total++;
}

void timing_given_up(struct timing *timing, uint64_t now_ns, double waited_s)
{
	slices_add(&timing->given_up, now_ns, waited_s);
}

void timing_finished(struct timing *timing, uint64_t now_ns, double e2e_s, double itl_s)
{
	slices_add(&timing->e2e, now_ns, e2e_s);
	if (itl_s >= 0)
		slices_add(&timing->itl, now_ns, itl_s);
	timing->finished_total++;
}

void timing_open_add(struct timing_open *open, uint64_t now_ns, uint64_t start_ns, int streams)
{
	if (!streams) {
		open->other++;
		return;
	}
	hist_add(&open->waits, now_ns > start_ns ? (double)(now_ns - start_ns) * 1e-9 : 0);
	if (open->oldest_start_ns == 0 || start_ns < open->oldest_start_ns)
		open->oldest_start_ns = start_ns;
}

static void recent(const struct timing *timing, const struct timing_open *open,
		   struct latency_record *r)
{
	struct hist all = timing->ttft.total;
	double v[3];

	hist_merge(&all, &timing->given_up.total);
	hist_merge(&all, &open->waits);
	hist_quantiles(&all, quantiles, 3, v);
	r->recent_p50_s = v[0];
	r->recent_p90_s = v[1];
	r->recent_p99_s = v[2];
	r->recent_n = all.n;
}

void timing_record(struct timing *timing, uint64_t now_ns, const struct timing_open *open,
		   struct latency_record *r)
{
	double v[3];

	slices_expire(&timing->ttft, now_ns);
	slices_expire(&timing->given_up, now_ns);
	slices_expire(&timing->e2e, now_ns);
	slices_expire(&timing->itl, now_ns);
	hist_quantiles(&timing->ttft.total, quantiles, 3, v);
	r->ttft_p50_s = v[0];
	r->ttft_p90_s = v[1];
	r->ttft_p99_s = v[2];
	r->ttft_max_s = timing->ttft.total.max;
	r->ttft_ewma_s = timing->ttft_ewma.value;
	r->n = timing->ttft.total.n;
	recent(timing, open, r);
	hist_quantiles(&timing->e2e.total, quantiles, 2, v);
	r->e2e_p50_s = v[0];
	r->e2e_p90_s = v[1];
	hist_quantiles(&timing->itl.total, quantiles, 2, v);
	r->itl_p50_s = v[0];
	r->itl_p90_s = v[1];
	r->first_tokens_total = timing->first_tokens_total;
	r->finished_total = timing->finished_total;
	r->waiting = open->waits.n;
	r->waiting_other = open->other;
	r->oldest_wait_start_ns = open->oldest_start_ns;
	r->errors = timing->errors;
	r->aborts = timing->aborts;
	r->flagged = timing->flagged;
	r->updated_ns = now_ns;
}

static double between(double q, double q0, double v0, double q1, double v1)
{
	double share = (q - q0) / (q1 - q0);

	if (share <= 0)
		return v0;
	if (share >= 1)
		return v1;
	return v0 > 0 && v1 > 0 ? v0 * pow(v1 / v0, share) : v0 + share * (v1 - v0);
}

double timing_recent(const struct latency_record *r, double q)
{
	if (q <= quantiles[1])
		return between(q, quantiles[0], r->recent_p50_s, quantiles[1], r->recent_p90_s);
	return between(q, quantiles[1], r->recent_p90_s, quantiles[2], r->recent_p99_s);
}
