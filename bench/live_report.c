/* Figures of a live run: exact quantiles from all samples, as a table and as JSON. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/live.h"
#include "shm/base/clock.h"
#include "shm/base/json.h"
#include "shm/base/scoped.h"

/* Groups that the report tells apart. X(name in JSON, in the table, which requests) */
#define GROUPS(X)                                     \
	X(all, "all", true)                           \
	X(warm, "WARM", r->class == CLASS_WARM)       \
	X(medium, "MEDIUM", r->class == CLASS_MEDIUM) \
	X(heavy, "HEAVY", r->class == CLASS_HEAVY)    \
	X(heavy_turn_2, "HEAVY turn >= 2", r->class == CLASS_HEAVY && r->turn >= 2)

enum group {
#define X(name, text, condition) GROUP_##name,
	GROUPS(X)
#undef X
		GROUPS_NR
};
static const char *const group_names[] = {
#define X(name, text, condition) #name,
	GROUPS(X)
#undef X
};
static const char *const group_texts[] = {
#define X(name, text, condition) text,
	GROUPS(X)
#undef X
};

/* The samples of one kind, sorted when a quantile was asked for. */
struct samples {
	double *value;
	size_t nr;
	double sum;
};

struct figures {
	size_t requests;
	double prompt, cached, output;
	struct samples ttft_s, tpot_s, e2e_s;
};

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Nearest rank; 0 without samples. Sorts. */
double live_quantile(double *values, size_t nr, double q)
{
	assert(q > 0 && q <= 1);
	if (nr == 0)
		return 0;
	qsort(values, nr, sizeof(*values), by_value);
	size_t rank = (size_t)(q * (double)nr);
	rank += (double)rank < q * (double)nr;
	return values[rank ? rank - 1 : 0];
}

/* By length, and by what the engine had to compute. */
void live_classify(struct live_request *r, const struct policy_params *params)
{
	uint32_t uncached =
		r->prompt_tokens > r->cached_tokens ? r->prompt_tokens - r->cached_tokens : 0;

	if (r->prompt_tokens >= params->heavy_threshold)
		r->class = CLASS_HEAVY;
	else
		r->class = uncached <= params->warm_threshold ? CLASS_WARM : CLASS_MEDIUM;
}

static bool in_group(const struct live_request *r, enum group group)
{
	switch (group) {
#define X(name, text, condition) \
	case GROUP_##name:       \
		return condition;
		GROUPS(X)
#undef X
	case GROUPS_NR:
		break;
	}
	return false;
}

static void add(struct samples *s, double value)
{
	s->value[s->nr++] = value;
	s->sum += value;
}

static bool good(const struct live_request *r)
{
	return r->end_ns && r->failure == LIVE_none;
}

static void figures_init(struct figures *f, const struct live_run *run, enum group group)
{
	double speed = run->options->speed;

	*f = (struct figures){ 0 };
	f->ttft_s.value = calloc(3 * run->requests + 1, sizeof(double));
	assert(f->ttft_s.value);
	f->tpot_s.value = f->ttft_s.value + run->requests;
	f->e2e_s.value = f->tpot_s.value + run->requests;
	for (size_t i = 0; i < run->requests; i++) {
		const struct live_request *r = &run->request[i];

		if (!good(r) || !in_group(r, group))
			continue;
		f->requests++;
		f->prompt += r->prompt_tokens;
		f->cached += r->cached_tokens;
		f->output += r->output_tokens;
		add(&f->ttft_s, (double)(r->first_ns - r->start_ns) * 1e-9 * speed);
		add(&f->e2e_s, (double)(r->end_ns - r->start_ns) * 1e-9 * speed);
		if (r->output_tokens > 1)
			add(&f->tpot_s, (double)(r->last_ns - r->first_ns) * 1e-9 * speed /
						(r->output_tokens - 1));
	}
}

static void figures_fini(struct figures *f)
{
	free(f->ttft_s.value);
}

static double mean(const struct samples *s)
{
	return s->nr ? s->sum / (double)s->nr : 0;
}

double live_late_ratio(const struct live_outside *out)
{
	return out->busy_s > 0 ? out->late_s / out->busy_s : 0;
}

static double wall_s(const struct live_run *run)
{
	return (double)(run->end_ns - run->begin_ns) * 1e-9;
}

bool live_valid(const struct live_run *run, const struct live_outside *out)
{
	return !run->interrupted && out->engines_known &&
	       live_late_ratio(out) <= LIVE_LATE_PERCENT * 0.01 &&
	       out->engine_speed == run->options->speed;
}

void live_progress_print(struct live_run *run, uint64_t now_ns)
{
	static uint64_t said_ns;
	bool tty = isatty(STDERR_FILENO);
	size_t nr = 0;

	if (!tty && now_ns - said_ns < 5ull * NS_PER_S)
		return;
	said_ns = now_ns;
	scoped(free_drop) double *ttft_s = calloc(run->requests + 1, sizeof(double));
	assert(ttft_s);
	for (size_t i = 0; i < run->requests; i++)
		if (run->request[i].first_ns)
			ttft_s[nr++] =
				(double)(run->request[i].first_ns - run->request[i].start_ns) *
				1e-9 * run->options->speed;
	fprintf(stderr,
		"%slive: %3.0f s, %zu of %zu requests, %zu in flight, %zu failed, TTFT p90 "
		"%.2f s%s",
		tty ? "\r" : "", (double)(now_ns - run->begin_ns) * 1e-9, run->ended, run->planned,
		run->requests - run->ended, run->failed, live_quantile(ttft_s, nr, 0.9),
		tty ? "  " : "\n");
}

/* ---- the table ---- */

static void print_group(const struct live_run *run, enum group group)
{
	struct figures f;

	figures_init(&f, run, group);
	printf("%-16s %6zu  %7.3f %7.3f %7.3f %7.3f  %7.4f %7.4f  %7.2f %7.2f  %5.1f %%\n",
	       group_texts[group], f.requests, mean(&f.ttft_s),
	       live_quantile(f.ttft_s.value, f.ttft_s.nr, 0.5),
	       live_quantile(f.ttft_s.value, f.ttft_s.nr, 0.9),
	       live_quantile(f.ttft_s.value, f.ttft_s.nr, 0.99), mean(&f.tpot_s),
	       live_quantile(f.tpot_s.value, f.tpot_s.nr, 0.9), mean(&f.e2e_s),
	       live_quantile(f.e2e_s.value, f.e2e_s.nr, 0.5),
	       f.prompt > 0 ? 100 * f.cached / f.prompt : 0);
	figures_fini(&f);
}

static void print_failures(const struct live_run *run)
{
	static const char *const meanings[] = {
#define X(name, meaning) meaning,
		LIVE_FAILURES(X)
#undef X
	};
	size_t count[LIVE_FAILURES_NR] = { 0 };

	for (size_t i = 0; i < run->requests; i++)
		count[run->request[i].failure] += run->request[i].end_ns != 0;
	for (int i = 1; i < LIVE_FAILURES_NR; i++)
		if (count[i])
			printf("failed: %zu, %s\n", count[i], meanings[i]);
	if (run->abandoned)
		printf("not sent: %zu, their sessions had failed\n", run->abandoned);
}

static void print_validity(const struct live_run *run, const struct live_outside *out)
{
	double speed = run->options->speed;

	if (out->engines_known)
		printf("engines: late by %.2f %% of their busy time (at most %d %%), a step's "
		       "p99 %.2f ms = %.1f ms of model time\n",
		       100 * live_late_ratio(out), LIVE_LATE_PERCENT, out->late_p99_s * 1e3,
		       out->late_p99_s * speed * 1e3);
	else
		printf("engines: their lateness is not known (--lateness URL, or --admin and "
		       "agents)\n");
	if (out->engines_known && out->engine_speed != speed)
		printf("engines: they run at speed %g, this client was told %g\n",
		       out->engine_speed, speed);
	if (out->router_known)
		printf("router: %.1f %% of a core, %.0f migrations\n",
		       100 * out->router_cpu_s / wall_s(run), out->migrations);
	printf("machine: %.0f %% busy; the run is %s\n",
	       out->machine_all_s > 0 ? 100 * out->machine_busy_s / out->machine_all_s : 0,
	       live_valid(run, out) ? "valid" : "NOT VALID");
}

void live_report_print(const struct live_run *run, const struct live_outside *out)
{
	if (isatty(STDERR_FILENO))
		fputc('\n', stderr);
	printf("%zu of %zu requests in %.1f s, speed %g: %.0f model seconds; %zu failed; io %s\n",
	       run->ended, run->planned, wall_s(run), run->options->speed,
	       wall_s(run) * run->options->speed, run->failed, run->io_name);
	printf("%-16s %6s  %31s  %15s  %15s  %7s\n", "model seconds", "n",
	       "TTFT mean     p50     p90     p99", "TPOT mean    p90", "E2E mean    p50", "hit");
	for (int g = 0; g < GROUPS_NR; g++)
		print_group(run, (enum group)g);
	print_failures(run);
	print_validity(run, out);
}

/* ---- JSON ---- */

static void json_samples(struct json *j, const char *key, struct samples *s)
{
	json_object_begin(j, key);
	json_num(j, "mean", mean(s), 6);
	json_num(j, "p50", live_quantile(s->value, s->nr, 0.5), 6);
	json_num(j, "p90", live_quantile(s->value, s->nr, 0.9), 6);
	json_num(j, "p99", live_quantile(s->value, s->nr, 0.99), 6);
	json_object_end(j);
}

static void json_group(struct json *j, const struct live_run *run, enum group group)
{
	struct figures f;

	figures_init(&f, run, group);
	if (group != GROUP_all)
		json_object_begin(j, group_names[group]);
	json_u64(j, "completed", f.requests);
	json_samples(j, "ttft_s", &f.ttft_s);
	json_samples(j, "tpot_s", &f.tpot_s);
	json_samples(j, "e2e_s", &f.e2e_s);
	json_num(j, "hit_ratio", f.prompt > 0 ? f.cached / f.prompt : 0, 6);
	json_num(j, "prompt_tokens", f.prompt, 12);
	json_num(j, "output_tokens", f.output, 12);
	if (group != GROUP_all)
		json_object_end(j);
	figures_fini(&f);
}

static void json_failures(struct json *j, const struct live_run *run)
{
	static const char *const names[] = {
#define X(name, meaning) #name,
		LIVE_FAILURES(X)
#undef X
	};
	size_t count[LIVE_FAILURES_NR] = { 0 };

	for (size_t i = 0; i < run->requests; i++)
		count[run->request[i].failure] += run->request[i].end_ns != 0;
	json_object_begin(j, "errors_by_kind");
	for (int i = 1; i < LIVE_FAILURES_NR; i++)
		json_u64(j, names[i], count[i]);
	json_object_end(j);
}

static void json_outside(struct json *j, const struct live_run *run, const struct live_outside *out)
{
	if (out->router_known) {
		json_num(j, "migrations", out->migrations, 12);
		json_num(j, "router_cpu_share", out->router_cpu_s / wall_s(run), 4);
	} else {
		json_null(j, "migrations");
		json_null(j, "router_cpu_share");
	}
	if (out->engines_known) {
		json_num(j, "late_ratio", live_late_ratio(out), 6);
		json_num(j, "late_p99_s", out->late_p99_s * run->options->speed, 6);
		json_num(j, "engines_busy_s", out->busy_s * run->options->speed, 6);
	} else {
		json_null(j, "late_ratio");
		json_null(j, "late_p99_s");
		json_null(j, "engines_busy_s");
	}
	json_num(j, "machine_load",
		 out->machine_all_s > 0 ? out->machine_busy_s / out->machine_all_s : 0, 4);
}

static int to_file(void *ctx, const char *text, size_t len)
{
	return fwrite(text, 1, len, ctx) == len ? 0 : -EIO;
}

int live_report_json(const struct live_run *run, const struct live_outside *out, const char *path)
{
	bool to_stdout = strcmp(path, "-") == 0;
	scoped(file_drop) FILE *file = to_stdout ? NULL : fopen(path, "we");
	struct json j;
	char buf[4096];

	if (!to_stdout && !file)
		return -errno;
	json_init(&j, buf, sizeof(buf));
	json_sink_set(&j, to_file, to_stdout ? stdout : file);
	json_object_begin(&j, NULL);
	json_num(&j, "speed", run->options->speed, 6);
	json_bool(&j, "valid", live_valid(run, out));
	json_array_begin(&j, "arms");
	json_object_begin(&j, NULL);
	json_str(&j, "name", "live");
	json_u64(&j, "planned", run->planned);
	json_u64(&j, "requests", run->ended);
	json_u64(&j, "errors", run->failed);
	json_u64(&j, "not_sent", run->abandoned);
	json_num(&j, "wall_s", wall_s(run), 6);
	json_group(&j, run, GROUP_all);
	for (int g = GROUP_all + 1; g < GROUPS_NR; g++)
		json_group(&j, run, (enum group)g);
	json_failures(&j, run);
	json_outside(&j, run, out);
	json_object_end(&j);
	json_array_end(&j);
	json_object_end(&j);
	int err = json_finish(&j);
	fputc('\n', to_stdout ? stdout : file);
	return err;
}
