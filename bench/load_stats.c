/* Medians, ratios and targets of what load commands measured. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/load.h"

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Copies what was measured, sorted; returns how many. */
static unsigned known(const double *values, unsigned n, double *ret_sorted)
{
	unsigned found = 0;

	for (unsigned i = 0; i < n; i++)
		if (!isnan(values[i]))
			ret_sorted[found++] = values[i];
	qsort(ret_sorted, found, sizeof(double), ascending);
	return found;
}

double load_median(const double *values, unsigned n)
{
	double sorted[LOAD_ROUNDS_MAX];
	unsigned found = known(values, n, sorted);

	if (found == 0)
		return NAN;
	return (sorted[(found - 1) / 2] + sorted[found / 2]) / 2;
}

double load_least(const double *values, unsigned n)
{
	double sorted[LOAD_ROUNDS_MAX];

	return known(values, n, sorted) ? sorted[0] : NAN;
}

double load_most(const double *values, unsigned n)
{
	double sorted[LOAD_ROUNDS_MAX];
	unsigned found = known(values, n, sorted);

	return found ? sorted[found - 1] : NAN;
}

double load_ratio(const struct load_run *run, enum load_arm_id id, enum load_figure figure,
		  unsigned base)
{
	double ratio[LOAD_ROUNDS_MAX];

	for (unsigned r = 0; r < run->options->rounds; r++) {
		double best = NAN;

		for (unsigned a = 0; a < LOAD_ARMS_NR; a++) {
			double value = run->value[a][figure][r];

			if (base & (1u << a) && !isnan(value) && !(best <= value))
				best = value;
		}
		ratio[r] = best > 0.001 ? run->value[id][figure][r] / best : NAN;
	}
	return load_median(ratio, run->options->rounds);
}

/* ---- targets ---- */

#define PROXIES (LOAD_BASE(HAPROXY) | LOAD_BASE(NGINX))
#define OLD(id) LOAD_BASE(BEFORE_##id)
#define LLMS    (LOAD_BASE(VLLM_CACHE) | LOAD_BASE(VLLM_HASH) | LOAD_BASE(SGLANG_CACHE))

/*
 * X(name, arm, figure, base arms (0: the figure itself), limit, at least). Beside an earlier build
 * "no worse" leaves 5 % to chance.
 */
#define LOAD_RATIO_TARGETS(X)                                                                \
	X("added p50, 1 connection / better proxy", URING, ADDED_1_P50, PROXIES, 0.95, 0)    \
	X("added p99, 1 connection / better proxy", URING, ADDED_1_P99, PROXIES, 1, 0)       \
	X("added p50, 16 connections / better proxy", URING, ADDED_16_P50, PROXIES, 0.95, 0) \
	X("added p99, 16 connections / better proxy", URING, ADDED_16_P99, PROXIES, 1, 0)    \
	X("CPU per request, io_uring / better proxy", URING, CPU_16, PROXIES, 0.8, 0)        \
	X("CPU per request, epoll / better proxy", EPOLL, CPU_16, PROXIES, 0.8, 0)           \
	X("CPU per chunk, io_uring / better proxy", URING, CPU_HIGH, PROXIES, 0.65, 0)       \
	X("CPU per chunk, epoll / better proxy", EPOLL, CPU_HIGH, PROXIES, 0.85, 0)          \
	X("ITL p50 / direct, at most", URING, ITL_RATIO_MID, 0, 1.02, 0)                     \
	X("ITL p50 / direct, at least", URING, ITL_RATIO_MID, 0, 0.98, 1)                    \
	X("reads per chunk", URING, READS_MID, 0, 0.95, 1)                                   \
	X("added chunk delay p50 / nginx", URING, DELAY_P50_MID, LOAD_BASE(NGINX), 1, 0)     \
	X("CPU per MB of body / haproxy", URING, CPU_1M, LOAD_BASE(HAPROXY), 0.55, 0)        \
	X("CPU per MB of body / nginx", URING, CPU_1M, LOAD_BASE(NGINX), 1.1, 0)             \
	X("body hop p50, 4 MB / 40 KB", URING, HOP_SLOPE, 0, 1.2, 0)                         \
	X("RSS per idle stream / haproxy", URING, RSS_STREAM, LOAD_BASE(HAPROXY), 0.35, 0)   \
	X("live streams without a late chunk", URING, LIVE, 0, 9000, 1)                      \
	X("healthy p99, disturbed / undisturbed", URING, ISOLATION_RATIO, 0, 1.1, 0)         \
	X("added p50 / best LLM router", URING, ADDED_1_P50, LLMS, 1, 0)                     \
	X("CPU per request / best LLM router", URING, CPU_16, LLMS, 1, 0)                    \
	X("CPU per chunk / best LLM router", URING, CPU_MID, LLMS, 1, 0)                     \
	X("CPU per MB of body / best LLM router", URING, CPU_1M, LLMS, 1, 0)                 \
	X("RSS per idle stream / best LLM router", URING, RSS_STREAM, LLMS, 1, 0)            \
	X("CPU per request, io_uring / before", URING, CPU_16, OLD(URING), 1.05, 0)          \
	X("CPU per request, epoll / before", EPOLL, CPU_16, OLD(EPOLL), 1.05, 0)             \
	X("CPU per chunk, io_uring / before", URING, CPU_HIGH, OLD(URING), 1.05, 0)          \
	X("CPU per chunk, epoll / before", EPOLL, CPU_HIGH, OLD(EPOLL), 1.05, 0)             \
	X("CPU per MB of body, io_uring / before", URING, CPU_1M, OLD(URING), 1.05, 0)       \
	X("RSS per idle stream / before", URING, RSS_STREAM, OLD(URING), 1.05, 0)

static const struct ratio_target {
	const char *name;
	enum load_arm_id arm;
	enum load_figure figure;
	unsigned base;
	double limit;
	bool at_least;
} ratio_targets[] = {
#define RATIO_ROW(name, arm, figure, base, limit, at_least) \
	{ name, LOAD_ARM_##arm, LOAD_FIGURE_##figure, base, limit, at_least },
	LOAD_RATIO_TARGETS(RATIO_ROW)
#undef RATIO_ROW
};

struct load_target load_target_of(const char *name, double value, double limit, bool at_least)
{
	struct load_target t = {
		.name = name, .value = value, .limit = limit, .at_least = at_least
	};

	t.met = at_least ? value >= limit : value <= limit; /* NAN: neither */
	return t;
}

/* A base that did not run leaves the value unknown, hence the target missed. */
static double ratio_value(const struct load_run *run, const struct ratio_target *t)
{
	for (unsigned a = 0; a < LOAD_ARMS_NR; a++)
		if (t->base & (1u << a) &&
		    isnan(load_median(run->value[a][t->figure], run->options->rounds)))
			return NAN;
	if (t->base == 0)
		return load_median(run->value[t->arm][t->figure], run->options->rounds);
	return load_ratio(run, t->arm, t->figure, t->base);
}

/* Two that are no plain ratio: medians over rounds of what is left after the relay. */
static double over_relay(const struct load_run *run, enum load_figure figure, double scan_share)
{
	double left[LOAD_ROUNDS_MAX];

	for (unsigned r = 0; r < run->options->rounds; r++) {
		double own = run->value[LOAD_ARM_URING][figure][r];
		double relay = run->value[LOAD_ARM_RELAY][figure][r];

		left[r] = own - relay;
		if (scan_share > 0)
			left[r] = own / (relay + scan_share * run->scan_mb_us);
	}
	return load_median(left, run->options->rounds);
}

unsigned load_targets(const struct load_run *run, struct load_target *ret_targets)
{
	unsigned n = 0;

	for (size_t i = 0; i < sizeof(ratio_targets) / sizeof(ratio_targets[0]); i++) {
		const struct ratio_target *t = &ratio_targets[i];

		if (!run->options->cell[load_figure_cells[t->figure]])
			continue;
		if (t->base == LLMS && strcmp(run->options->command, "peers") != 0)
			continue;
		if (t->base & (OLD(URING) | OLD(EPOLL)) && !run->options->before)
			continue;
		assert(n < LOAD_TARGETS_MAX);
		ret_targets[n++] =
			load_target_of(t->name, ratio_value(run, t), t->limit, t->at_least);
	}
	if (run->options->cell[LOAD_CELL_BODY])
		ret_targets[n++] =
			load_target_of("CPU per MB / (relay + 1.3 x scan and hash)",
				       over_relay(run, LOAD_FIGURE_CPU_1M, 1.3), 1, false);
	if (run->options->cell[LOAD_CELL_HOP])
		ret_targets[n++] =
			load_target_of("body hop p99, 400 KB, over relay, us",
				       over_relay(run, LOAD_FIGURE_HOP_400K_P99, 0), 50, false);
	return n;
}

void load_targets_print(const struct load_target *targets, unsigned n)
{
	unsigned missed = 0;

	printf("\n%-46s %10s %12s\n", "target", "value", "limit");
	for (unsigned i = 0; i < n; i++) {
		char value[32] = "not run";

		if (!isnan(targets[i].value))
			snprintf(value, sizeof(value), "%.4g", targets[i].value);
		printf("%-46s %10s   %s %-8.4g %s\n", targets[i].name, value,
		       targets[i].at_least ? ">=" : "<=", targets[i].limit,
		       targets[i].met ? "met" : "MISSED");
		missed += !targets[i].met;
	}
	printf("%u of %u targets missed\n", missed, n);
}

void load_targets_json(struct json *j, const struct load_target *targets, unsigned n)
{
	unsigned missed = 0;

	json_array_begin(j, "targets");
	for (unsigned i = 0; i < n; i++) {
		json_object_begin(j, NULL);
		json_str(j, "name", targets[i].name);
		json_num(j, "value", targets[i].value, 6);
		json_num(j, "limit", targets[i].limit, 6);
		json_str(j, "wanted", targets[i].at_least ? "at least" : "at most");
		json_bool(j, "met", targets[i].met);
		json_object_end(j);
		missed += !targets[i].met;
	}
	json_array_end(j);
	json_u64(j, "targets_missed", missed);
}
