/* The laboratory's tables, for people and as JSON: means over seeds, differences seed by seed. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/replay.h"
#include "bench/replay_detail.h"
#include "shm/base/json.h"
#include "shm/base/opt.h"
#include "shm/base/scoped.h"

enum { SEEDS_MAX = 1024 };

static const char *const class_names[3] = { "WARM", "MEDIUM", "HEAVY" };
static const enum replay_figure class_figures[3][3] = {
	{ REPLAY_warm_n, REPLAY_warm_mean_s, REPLAY_warm_p90_s },
	{ REPLAY_medium_n, REPLAY_medium_mean_s, REPLAY_medium_p90_s },
	{ REPLAY_heavy_n, REPLAY_heavy_mean_s, REPLAY_heavy_p90_s },
};

static const double *figures_of(const struct replay_table *t, size_t arm, size_t seed)
{
	return t->figure + (arm * t->seeds + seed) * REPLAY_FIGURES_NR;
}

static struct replay_mean figure_of(const struct replay_table *t, size_t arm,
				    enum replay_figure figure)
{
	double values[SEEDS_MAX];
	size_t nr = t->seeds < SEEDS_MAX ? t->seeds : SEEDS_MAX;

	for (size_t i = 0; i < nr; i++)
		values[i] = figures_of(t, arm, i)[figure];
	return replay_mean_of(values, nr);
}

/* Per cent over the base arm, seed by seed: the traffic's own spread cancels out. NaN: no base. */
static struct replay_mean against_base(const struct replay_table *t, size_t arm,
				       enum replay_figure figure)
{
	double values[SEEDS_MAX];
	size_t nr = 0;

	for (size_t i = 0; i < t->seeds && nr < SEEDS_MAX; i++) {
		double base = figures_of(t, t->base, i)[figure];

		if (base > 0)
			values[nr++] = 100 * (figures_of(t, arm, i)[figure] / base - 1);
	}
	if (nr == 0)
		return (struct replay_mean){ NAN, NAN };
	return replay_mean_of(values, nr);
}

/* ---- for people ---- */

static void print_mean(const struct replay_table *t, size_t arm, enum replay_figure figure,
		       int width, int digits)
{
	printf(" %*.*f", width, digits, figure_of(t, arm, figure).mean);
}

static void print_error(const struct replay_table *t, size_t arm, enum replay_figure figure)
{
	struct replay_mean m = figure_of(t, arm, figure);

	printf(" %7.2f+-%-4.2f", m.mean, m.error);
}

static void print_against(const struct replay_table *t, size_t arm, enum replay_figure figure)
{
	struct replay_mean m = against_base(t, arm, figure);

	if (arm == t->base || isnan(m.mean))
		printf(" %11s", "");
	else
		printf(" %+5.0f+-%-4.1f", m.mean, m.error);
}

static void print_times(const struct replay_table *t)
{
	printf("%-22s %13s %6s %13s %6s  %6s %6s %6s %11s %11s %11s\n", "s", "TTFT mean", "p50",
	       "p90", "p99", "TPOT90", "E2E", "E2E50", "mean %", "p90 %", "TPOT90 %");
	for (size_t i = 0; i < t->arms; i++) {
		printf("%-22s", t->arm[i].name);
		print_error(t, i, REPLAY_ttft_mean_s);
		print_mean(t, i, REPLAY_ttft_p50_s, 6, 2);
		print_error(t, i, REPLAY_ttft_p90_s);
		print_mean(t, i, REPLAY_ttft_p99_s, 6, 1);
		print_mean(t, i, REPLAY_tpot_p90_s, 7, 3);
		print_mean(t, i, REPLAY_e2e_mean_s, 6, 2);
		print_mean(t, i, REPLAY_e2e_p50_s, 6, 2);
		print_against(t, i, REPLAY_ttft_mean_s);
		print_against(t, i, REPLAY_ttft_p90_s);
		print_against(t, i, REPLAY_tpot_p90_s);
		putchar('\n');
	}
	printf("%-22s", "floor");
	print_error(t, t->base, REPLAY_floor_mean_s);
	printf(" %6s", "");
	print_error(t, t->base, REPLAY_floor_p90_s);
	printf("\n\n");
}

static void print_classes(const struct replay_table *t)
{
	printf("%-22s %6s %6s  %6s %6s  %6s %6s  %6s  %13s %6s %11s\n", "TTFT, s", "WARM", "p90",
	       "MEDIUM", "p90", "HEAVY", "p90", "turn 1", "turn >= 2", "p90", "mean %");
	for (size_t i = 0; i < t->arms; i++) {
		printf("%-22s", t->arm[i].name);
		print_mean(t, i, REPLAY_warm_mean_s, 6, 2);
		print_mean(t, i, REPLAY_warm_p90_s, 6, 2);
		print_mean(t, i, REPLAY_medium_mean_s, 7, 2);
		print_mean(t, i, REPLAY_medium_p90_s, 6, 2);
		print_mean(t, i, REPLAY_heavy_mean_s, 7, 2);
		print_mean(t, i, REPLAY_heavy_p90_s, 6, 2);
		print_mean(t, i, REPLAY_heavy_t1_mean_s, 7, 2);
		print_error(t, i, REPLAY_heavy_t2_mean_s);
		print_mean(t, i, REPLAY_heavy_t2_p90_s, 7, 2);
		print_against(t, i, REPLAY_heavy_t2_mean_s);
		putchar('\n');
	}
	putchar('\n');
}

static void print_moves(const struct replay_table *t)
{
	printf("%-22s %6s %6s %7s  %6s %6s %6s %6s %6s %6s  %6s %6s\n", "requests", "hot", "victim",
	       "cand", "moves", "hot", "forced", "paid", "turn 1", "paid", "pulls", "lost");
	for (size_t i = 0; i < t->arms; i++) {
		printf("%-22s", t->arm[i].name);
		print_mean(t, i, REPLAY_hot, 6, 0);
		print_mean(t, i, REPLAY_victims, 6, 1);
		print_mean(t, i, REPLAY_candidates, 7, 0);
		print_mean(t, i, REPLAY_migrations, 7, 1);
		print_mean(t, i, REPLAY_migrations_hot, 6, 1);
		print_mean(t, i, REPLAY_migrations_forced, 6, 1);
		print_mean(t, i, REPLAY_migrations_paid, 6, 1);
		print_mean(t, i, REPLAY_offloads_t1, 6, 1);
		print_mean(t, i, REPLAY_offloads_t1_paid, 6, 1);
		print_mean(t, i, REPLAY_pulls, 7, 1);
		print_mean(t, i, REPLAY_lost, 6, 1);
		putchar('\n');
	}
	putchar('\n');
}

static void print_engines(const struct replay_table *t)
{
	printf("%-22s %6s %7s %6s %6s %6s  %6s %6s %6s %6s  %6s\n", "", "hit", "balance", "ideal",
	       "x", "t>=2 x", "wait", "for KV", "held", "preem.", "error");
	for (size_t i = 0; i < t->arms; i++) {
		printf("%-22s", t->arm[i].name);
		print_mean(t, i, REPLAY_hit_ratio, 6, 3);
		print_mean(t, i, REPLAY_balance, 7, 2);
		print_mean(t, i, REPLAY_ideal_mean_s, 6, 2);
		print_mean(t, i, REPLAY_over_ideal, 6, 2);
		print_mean(t, i, REPLAY_heavy_t2_over_ideal, 6, 2);
		print_mean(t, i, REPLAY_waited_budget_s, 7, 2);
		print_mean(t, i, REPLAY_waited_kv_s, 6, 2);
		print_mean(t, i, REPLAY_kv_held, 6, 2);
		print_mean(t, i, REPLAY_preemptions, 6, 1);
		print_mean(t, i, REPLAY_prediction_error, 7, 2);
		putchar('\n');
	}
}

static void print_load(const struct replay_table *t)
{
	size_t b = t->base;

	printf("%s: %zu requests a seed, %zu seeds; WARM %.0f, MEDIUM %.0f, HEAVY turn 1 %.0f, "
	       "later %.0f %%; a perfect cache would hold %.1f %%\n",
	       t->workload, t->requests, t->seeds, 100 * figure_of(t, b, REPLAY_warm_share).mean,
	       100 * figure_of(t, b, REPLAY_medium_share).mean,
	       100 * figure_of(t, b, REPLAY_heavy_t1_share).mean,
	       100 * figure_of(t, b, REPLAY_heavy_t2_share).mean,
	       100 * figure_of(t, b, REPLAY_ideal_hit_ratio).mean);
	printf("first prompts of HEAVY sessions %.0f tokens; of their later ones cached at best: "
	       "%.1f, %.1f, %.1f %% (p10, p50, p90)\n",
	       figure_of(t, b, REPLAY_heavy_t1_tokens).mean,
	       100 * figure_of(t, b, REPLAY_heavy_t2_hit_p10).mean,
	       100 * figure_of(t, b, REPLAY_heavy_t2_hit_p50).mean,
	       100 * figure_of(t, b, REPLAY_heavy_t2_hit_p90).mean);
}

/* Left out where no arm stages, waits or rescues. */
static void print_stage(const struct replay_table *t)
{
	double sum = 0;

	for (size_t i = 0; i < t->arms; i++)
		sum += figure_of(t, i, REPLAY_pieces).mean + figure_of(t, i, REPLAY_closes).mean +
		       figure_of(t, i, REPLAY_waited).mean + figure_of(t, i, REPLAY_rescued).mean;
	if (sum == 0)
		return;
	printf("\n%-22s %6s %6s %6s  %6s %6s  %6s %6s  %10s %11s\n", "staging", "staged", "pieces",
	       "closes", "waited", "s", "off", "rescue", "t1 p90, s", "p90 %");
	for (size_t i = 0; i < t->arms; i++) {
		printf("%-22s", t->arm[i].name);
		print_mean(t, i, REPLAY_staged, 6, 1);
		print_mean(t, i, REPLAY_pieces, 6, 0);
		print_mean(t, i, REPLAY_closes, 6, 1);
		print_mean(t, i, REPLAY_waited, 7, 1);
		print_mean(t, i, REPLAY_waited_mean_s, 6, 1);
		print_mean(t, i, REPLAY_guards, 7, 1);
		print_mean(t, i, REPLAY_rescued, 6, 1);
		print_mean(t, i, REPLAY_heavy_t1_p90_s, 11, 2);
		print_against(t, i, REPLAY_heavy_t1_p90_s);
		putchar('\n');
	}
}

void replay_report_print(const struct replay_table *t)
{
	print_load(t);
	printf("mean over seeds +- its standard error; %% against %s, seed by seed\n\n",
	       t->arm[t->base].name);
	print_times(t);
	print_classes(t);
	print_moves(t);
	print_engines(t);
	print_stage(t);
}

/* ---- JSON ---- */

static void json_mean(struct json *j, const char *key, const struct replay_table *t, size_t arm,
		      enum replay_figure figure)
{
	json_num(j, key, figure_of(t, arm, figure).mean, 6);
}

static void json_figure(struct json *j, const struct replay_table *t, size_t arm,
			enum replay_figure figure)
{
	struct replay_mean m = figure_of(t, arm, figure);
	struct replay_mean against = against_base(t, arm, figure);

	json_object_begin(j, replay_figure_names[figure]);
	json_num(j, "mean", m.mean, 6);
	json_num(j, "error", m.error, 6);
	json_num(j, "against_base_percent", against.mean, 6);
	json_num(j, "against_base_error", against.error, 6);
	json_array_begin(j, "seeds");
	for (size_t i = 0; i < t->seeds; i++)
		json_num(j, NULL, figures_of(t, arm, i)[figure], 6);
	json_array_end(j);
	json_object_end(j);
}

static void json_class(struct json *j, const char *key, const struct replay_table *t, size_t arm,
		       const enum replay_figure of[3])
{
	json_object_begin(j, key);
	json_mean(j, "n", t, arm, of[0]);
	json_mean(j, "mean_s", t, arm, of[1]);
	json_mean(j, "p90_s", t, arm, of[2]);
	json_object_end(j);
}

static void json_arm(struct json *j, const struct replay_table *t, size_t arm)
{
	json_object_begin(j, NULL);
	json_str(j, "name", t->arm[arm].name);
	json_object_begin(j, "ttft_s");
	json_mean(j, "mean", t, arm, REPLAY_ttft_mean_s);
	json_mean(j, "p50", t, arm, REPLAY_ttft_p50_s);
	json_mean(j, "p90", t, arm, REPLAY_ttft_p90_s);
	json_mean(j, "p99", t, arm, REPLAY_ttft_p99_s);
	json_object_end(j);
	json_object_begin(j, "tpot_s");
	json_mean(j, "mean", t, arm, REPLAY_tpot_mean_s);
	json_mean(j, "p90", t, arm, REPLAY_tpot_p90_s);
	json_object_end(j);
	json_object_begin(j, "e2e_s");
	json_mean(j, "mean", t, arm, REPLAY_e2e_mean_s);
	json_mean(j, "p50", t, arm, REPLAY_e2e_p50_s);
	json_object_end(j);
	json_object_begin(j, "class");
	for (int i = 0; i < 3; i++)
		json_class(j, class_names[i], t, arm, class_figures[i]);
	json_object_end(j);
	json_mean(j, "heavy_t2_mean_s", t, arm, REPLAY_heavy_t2_mean_s);
	json_mean(j, "victims", t, arm, REPLAY_victims);
	json_mean(j, "migrations", t, arm, REPLAY_migrations);
	json_mean(j, "hit_ratio", t, arm, REPLAY_hit_ratio);
	json_mean(j, "balance", t, arm, REPLAY_balance);
	json_object_begin(j, "figures");
	for (int f = 0; f < REPLAY_FIGURES_NR; f++)
		json_figure(j, t, arm, (enum replay_figure)f);
	json_object_end(j);
	replay_detail_json_arm(j, t->detail, arm);
	json_object_end(j);
}

/* What is in the file and how to get it again. No date: equal seeds give equal bytes. */
static void json_about(struct json *j, const struct replay_table *t)
{
	char version[128];

	opt_version(version, sizeof(version));
	json_str(j, "kind", "replay");
	json_str(j, "version", version);
	json_array_begin(j, "command");
	for (int i = 0; i < t->argc; i++)
		json_str(j, NULL, t->argv[i]);
	json_array_end(j);
	json_u64(j, "seed", t->seed);
}

static int to_file(void *ctx, const char *text, size_t len)
{
	return fwrite(text, 1, len, ctx) == len ? 0 : -EIO;
}

int replay_report_json(const struct replay_table *t, const char *path)
{
	int to_stdout = strcmp(path, "-") == 0;
	scoped(file_drop) FILE *file = to_stdout ? NULL : fopen(path, "we");
	FILE *out = to_stdout ? stdout : file;
	char buf[4096];
	struct json j;
	int err;

	if (!out)
		return -errno;
	json_init(&j, buf, sizeof(buf));
	json_sink_set(&j, to_file, out);
	json_object_begin(&j, NULL);
	json_about(&j, t);
	json_str(&j, "workload", t->workload);
	json_u64(&j, "requests", t->requests);
	json_u64(&j, "seeds", t->seeds);
	json_str(&j, "base", t->arm[t->base].name);
	replay_detail_json(&j, t->detail);
	json_array_begin(&j, "arms");
	for (size_t i = 0; i < t->arms; i++)
		json_arm(&j, t, i);
	json_array_end(&j);
	json_object_end(&j);
	err = json_finish(&j);
	if (!err && (fputc('\n', out) == EOF || fflush(out) != 0))
		err = -EIO;
	return err;
}
