/* Figures of one play: quantiles over requests, shares, moves; means over seeds. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/replay.h"
#include "shm/base/scoped.h"

const char *const replay_figure_names[] = {
#define NAME(name, unit, meaning) #name,
	REPLAY_FIGURES(NAME)
#undef NAME
};

static const double victim_s = 5, hot_share = 0.8, error_pad_s = 0.05;

/* The groups that figures are taken over. */
enum group { ALL, WARM, MEDIUM, HEAVY, HEAVY_T1, HEAVY_T2, GROUPS };

struct series {
	double *value;
	size_t nr;
	double sum;
};

struct tally {
	const struct replay_run *run;
	const struct replay_arm *arm;
	const struct workload *w;
	struct series ttft[GROUPS], floor[GROUPS], tpot, e2e, hits;
	double *figure;
};

static void add(struct series *s, double value)
{
	s->value[s->nr++] = value;
	s->sum += value;
}

static double mean(const struct series *s)
{
	return s->nr ? s->sum / (double)s->nr : 0;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Nearest rank; sorts. */
static double quantile(struct series *s, double q)
{
	if (s->nr == 0)
		return 0;
	qsort(s->value, s->nr, sizeof(*s->value), by_value);
	size_t rank = (size_t)ceil(q * (double)s->nr);

	return s->value[rank ? rank - 1 : 0];
}

static enum group group_of(const struct replay_arm *arm, const struct workload_turn *turn)
{
	static const enum group groups[] = {
		[CLASS_WARM] = WARM, [CLASS_MEDIUM] = MEDIUM, [CLASS_HEAVY] = HEAVY
	};

	return groups[replay_class_of(arm, turn)];
}

/* On an empty engine of one of the arm's profiles; engine < 0: of the fastest. */
static double empty_s(const struct tally *t, int engine, uint32_t cached, uint32_t prompt)
{
	struct model_options options = { .budget_tokens = (uint32_t)t->arm->budget,
					 .long_prefill_cap = (uint32_t)t->arm->long_prefill_cap };
	double least_s = INFINITY;

	if (engine >= 0)
		return model_prefill_s(replay_profile_of(t->arm, (unsigned)engine), &options,
				       cached, prompt);
	for (unsigned i = 0; i < t->arm->profiles; i++)
		least_s =
			fmin(least_s, model_prefill_s(t->arm->mixed[i], &options, cached, prompt));
	return least_s;
}

static double floor_s(const struct tally *t, const struct workload_turn *turn)
{
	return empty_s(t, -1, turn->ideal_hit_tokens, turn->prompt_tokens);
}

static double ideal_s(const struct tally *t, const struct replay_request *r,
		      const struct workload_turn *turn)
{
	return empty_s(t, turn->turn >= 2 ? r->home : -1, r->held_tokens, turn->prompt_tokens);
}

static void take_offload(struct tally *t, const struct replay_request *r, int hot, double ttft_s)
{
	double *f = t->figure;

	if (r->offload == REPLAY_STAYED)
		return;
	f[REPLAY_offloads]++;
	if (r->offload == REPLAY_OFFLOADED) {
		f[REPLAY_offloads_t1]++;
		f[REPLAY_offloads_t1_paid] += ttft_s < r->stay_s;
		return;
	}
	f[REPLAY_migrations]++;
	f[REPLAY_migrations_hot] += hot;
	f[REPLAY_migrations_forced] += r->reason == REASON_FORCED;
	f[REPLAY_migrations_paid] += ttft_s < r->stay_s;
}

static void take_request(struct tally *t, size_t i)
{
	const struct replay_request *r = &t->run->request[i];
	const struct workload_turn *turn = &t->w->turn[i];
	double ttft_s = (double)(r->first_ns - r->arrive_ns) * 1e-9;
	double least_s = floor_s(t, turn), *f = t->figure;
	enum group group = group_of(t->arm, turn);
	int later = turn->turn >= 2, candidate = group == HEAVY && later;
	int hot = candidate && r->best_hit_tokens > hot_share * turn->prompt_tokens;

	add(&t->ttft[ALL], ttft_s);
	add(&t->floor[ALL], least_s);
	add(&t->ttft[group], ttft_s);
	f[REPLAY_ideal_mean_s] += ideal_s(t, r, turn);
	f[REPLAY_heavy_t1_tokens] += group == HEAVY && !later ? turn->prompt_tokens : 0;
	if (candidate) {
		f[REPLAY_ideal_heavy_t2_mean_s] += ideal_s(t, r, turn);
		add(&t->hits, (double)turn->ideal_hit_tokens / turn->prompt_tokens);
	}
	if (group == HEAVY) {
		add(&t->ttft[later ? HEAVY_T2 : HEAVY_T1], ttft_s);
		add(&t->floor[later ? HEAVY_T2 : HEAVY_T1], least_s);
	}
	add(&t->e2e, (double)(r->end_ns - r->arrive_ns) * 1e-9);
	if (turn->output_tokens > 1)
		add(&t->tpot, (double)(r->end_ns - r->first_ns) * 1e-9 / (turn->output_tokens - 1));
	f[REPLAY_candidates] += candidate;
	f[REPLAY_hot] += hot;
	f[REPLAY_victims] += hot && ttft_s > victim_s;
	f[REPLAY_lost] += r->lost;
	f[REPLAY_pulls] += r->pulled_tokens > 0;
	f[REPLAY_hit_ratio] += r->cached_tokens;
	f[REPLAY_ideal_hit_ratio] += turn->ideal_hit_tokens;
	f[REPLAY_prediction_error] +=
		fabs(log((ttft_s + error_pad_s) / (r->predicted_ttft_s + error_pad_s)));
	take_offload(t, r, hot, ttft_s);
}

static void settle_times(struct tally *t)
{
	double *f = t->figure;

	f[REPLAY_ttft_mean_s] = mean(&t->ttft[ALL]);
	f[REPLAY_ttft_p50_s] = quantile(&t->ttft[ALL], 0.5);
	f[REPLAY_ttft_p90_s] = quantile(&t->ttft[ALL], 0.9);
	f[REPLAY_ttft_p99_s] = quantile(&t->ttft[ALL], 0.99);
	f[REPLAY_tpot_mean_s] = mean(&t->tpot);
	f[REPLAY_tpot_p90_s] = quantile(&t->tpot, 0.9);
	f[REPLAY_e2e_mean_s] = mean(&t->e2e);
	f[REPLAY_e2e_p50_s] = quantile(&t->e2e, 0.5);
	f[REPLAY_e2e_p90_s] = quantile(&t->e2e, 0.9);
	f[REPLAY_warm_mean_s] = mean(&t->ttft[WARM]);
	f[REPLAY_warm_p90_s] = quantile(&t->ttft[WARM], 0.9);
	f[REPLAY_medium_mean_s] = mean(&t->ttft[MEDIUM]);
	f[REPLAY_medium_p90_s] = quantile(&t->ttft[MEDIUM], 0.9);
	f[REPLAY_heavy_mean_s] = mean(&t->ttft[HEAVY]);
	f[REPLAY_heavy_p90_s] = quantile(&t->ttft[HEAVY], 0.9);
	f[REPLAY_heavy_t1_mean_s] = mean(&t->ttft[HEAVY_T1]);
	f[REPLAY_heavy_t1_p90_s] = quantile(&t->ttft[HEAVY_T1], 0.9);
	f[REPLAY_heavy_t2_mean_s] = mean(&t->ttft[HEAVY_T2]);
	f[REPLAY_heavy_t2_p90_s] = quantile(&t->ttft[HEAVY_T2], 0.9);
	f[REPLAY_floor_mean_s] = mean(&t->floor[ALL]);
	f[REPLAY_floor_p90_s] = quantile(&t->floor[ALL], 0.9);
	f[REPLAY_floor_heavy_t2_mean_s] = mean(&t->floor[HEAVY_T2]);
}

static double over(double sum, double by)
{
	return by > 0 ? sum / by : 0;
}

static void settle_ideal(struct tally *t, double n)
{
	double *f = t->figure;

	f[REPLAY_ideal_mean_s] /= n;
	f[REPLAY_ideal_heavy_t2_mean_s] =
		over(f[REPLAY_ideal_heavy_t2_mean_s], (double)t->ttft[HEAVY_T2].nr);
	f[REPLAY_over_ideal] = over(f[REPLAY_ttft_mean_s], f[REPLAY_ideal_mean_s]);
	f[REPLAY_heavy_t2_over_ideal] =
		over(f[REPLAY_heavy_t2_mean_s], f[REPLAY_ideal_heavy_t2_mean_s]);
	f[REPLAY_heavy_t1_tokens] = over(f[REPLAY_heavy_t1_tokens], (double)t->ttft[HEAVY_T1].nr);
	f[REPLAY_heavy_t2_hit_p10] = quantile(&t->hits, 0.1);
	f[REPLAY_heavy_t2_hit_p50] = quantile(&t->hits, 0.5);
	f[REPLAY_heavy_t2_hit_p90] = quantile(&t->hits, 0.9);
	f[REPLAY_waited_kv_s] = t->run->waited_kv_s / n;
	f[REPLAY_waited_budget_s] = t->run->waited_budget_s / n;
	f[REPLAY_kv_held] = t->run->held_share;
}

static void settle(struct tally *t)
{
	const struct replay_run *run = t->run;
	double *f = t->figure, n = (double)t->ttft[ALL].nr, prompt = 0;

	for (size_t i = 0; i < t->w->turns; i++)
		prompt += t->w->turn[i].prompt_tokens;
	n = n > 0 ? n : 1;
	settle_times(t);
	settle_ideal(t, n);
	f[REPLAY_warm_n] = (double)t->ttft[WARM].nr;
	f[REPLAY_medium_n] = (double)t->ttft[MEDIUM].nr;
	f[REPLAY_heavy_n] = (double)t->ttft[HEAVY].nr;
	f[REPLAY_warm_share] = (double)t->ttft[WARM].nr / n;
	f[REPLAY_medium_share] = (double)t->ttft[MEDIUM].nr / n;
	f[REPLAY_heavy_t1_share] = (double)t->ttft[HEAVY_T1].nr / n;
	f[REPLAY_heavy_t2_share] = (double)t->ttft[HEAVY_T2].nr / n;
	f[REPLAY_hit_ratio] /= prompt > 0 ? prompt : 1;
	f[REPLAY_ideal_hit_ratio] /= prompt > 0 ? prompt : 1;
	f[REPLAY_prediction_error] /= n;
	f[REPLAY_balance] = run->fewest_tokens > 0 ? run->most_tokens / run->fewest_tokens : 0;
	f[REPLAY_rerouted] = (double)run->rerouted;
	f[REPLAY_preemptions] = (double)run->preemptions;
	f[REPLAY_computed_tokens] = run->computed_tokens;
	f[REPLAY_staged] = (double)run->stage.staged;
	f[REPLAY_pieces] = (double)run->stage.pieces;
	f[REPLAY_closes] = (double)run->stage.closes;
	f[REPLAY_waited] = (double)run->stage.waited;
	f[REPLAY_waited_mean_s] =
		run->stage.waited ? run->stage.waited_s / (double)run->stage.waited : 0;
	f[REPLAY_guards] = (double)run->stage.guards;
	f[REPLAY_rescued] = (double)run->stage.rescued;
	f[REPLAY_span_s] = run->end_s;
}

int replay_figures(const struct replay_run *run, const struct replay_arm *arm,
		   const struct workload *workload, double ret_figure[REPLAY_FIGURES_NR])
{
	struct tally t = { .run = run, .arm = arm, .w = workload, .figure = ret_figure };
	size_t n = workload->turns + 1;

	assert(run->requests == workload->turns);
	scoped(free_drop) double *room = malloc((2 * GROUPS + 3) * n * sizeof(*room));
	if (!room)
		return -ENOMEM;
	memset(ret_figure, 0, REPLAY_FIGURES_NR * sizeof(*ret_figure));
	for (int g = 0; g < GROUPS; g++) {
		t.ttft[g].value = room + (size_t)(2 * g) * n;
		t.floor[g].value = room + (size_t)(2 * g + 1) * n;
	}
	t.tpot.value = room + (size_t)(2 * GROUPS) * n;
	t.e2e.value = room + (size_t)(2 * GROUPS + 1) * n;
	t.hits.value = room + (size_t)(2 * GROUPS + 2) * n;
	for (size_t i = 0; i < workload->turns; i++)
		if (run->request[i].end_ns) /* all in replay; live ones may fail */
			take_request(&t, i);
	settle(&t);
	return 0;
}

struct replay_mean replay_mean_of(const double *values, size_t nr)
{
	struct replay_mean m = { 0 };
	double squares = 0;

	for (size_t i = 0; i < nr; i++)
		m.mean += values[i] / (double)nr;
	for (size_t i = 0; i < nr; i++)
		squares += (values[i] - m.mean) * (values[i] - m.mean);
	if (nr > 1)
		m.error = sqrt(squares / (double)(nr - 1) / (double)nr);
	return m;
}
