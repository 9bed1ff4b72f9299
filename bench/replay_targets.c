/* Targets: every arm that one needs is played once, then each is judged; see replay_targets.h. */
#include "bench/replay_targets.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/exit.h"
#include "shm/base/json.h"
#include "shm/base/scoped.h"

enum load { DESIGN, LIGHTER, SESSIONS, LOADS };
enum sense { AT_MOST, AT_LEAST };
enum { ARMS_MAX = 32, SEEDS_MAX = 1000 };

static const char *const load_names[] = { "design", "design at 0.6", "sessions" };
static const char *const sense_names[] = { "at most", "at least" };
static const size_t sessions_requests = 1000;
static const double sessions_rate = 0.25, lighter_rate = 0.6;

static const struct target {
	const char *name, *arm, *over;
	enum load load;
	enum replay_figure figure;
	enum sense sense;
	double limit;
} targets[] = {
#define ROW(name_, load_, arm_, over_, figure_, sense_, limit_) \
	{ .name = name_,                                        \
	  .load = load_,                                        \
	  .arm = arm_,                                          \
	  .over = over_,                                        \
	  .figure = REPLAY_##figure_,                           \
	  .sense = sense_,                                      \
	  .limit = limit_ },
	REPLAY_TARGETS(ROW)
#undef ROW
};
enum { TARGETS = sizeof(targets) / sizeof(targets[0]) };

/* The arms of one workload, and their figures: [arm][seed][figure]. */
struct plays {
	const char *text[ARMS_MAX];
	size_t arms, requests;
	double *figure;
};

struct exam {
	const struct replay_targets_play *play;
	struct plays plays[LOADS];
	size_t done, of;
	char why[WORKLOAD_WHY_MAX + REPLAY_WHY_MAX];
};

struct verdict {
	struct replay_mean ratio;
	int met;
};

static size_t arm_of(struct plays *p, const char *text)
{
	size_t i = 0;

	while (i < p->arms && strcmp(p->text[i], text) != 0)
		i++;
	if (i == p->arms && i < ARMS_MAX)
		p->text[p->arms++] = text;
	return i;
}

static double *figures_at(const struct exam *x, enum load load, size_t arm, size_t seed)
{
	return x->plays[load].figure + (arm * x->play->seeds + seed) * REPLAY_FIGURES_NR;
}

/* ---- playing ---- */

static int make(const struct exam *x, enum load load, uint64_t seed, struct workload *ret,
		char *why)
{
	struct workload_pick pick;
	struct workload_mix mix;

	workload_pick_init(&pick);
	workload_mix_init(&mix);
	pick.seed = seed;
	pick.idle = x->play->base->profile;
	pick.requests = x->play->requests;
	if (load != SESSIONS) {
		mix.rate = load == LIGHTER ? lighter_rate : mix.rate;
		mix.requests = pick.requests ? (double)pick.requests : mix.requests;
		return workload_generate(ret, &mix, &pick);
	}
	pick.rate = sessions_rate;
	pick.requests = pick.requests ? pick.requests : sessions_requests;
	return workload_read(ret, x->play->sessions, WORKLOAD_FORM_SESSIONS, &pick, why);
}

static int play_arm(struct exam *x, enum load load, size_t arm, size_t seed,
		    const struct workload *w)
{
	const char *text = x->plays[load].text[arm];
	struct replay_arm parsed;
	struct replay_run run;
	int err = replay_arm_parse(&parsed, x->play->base, text, x->why);

	if (err)
		return err;
	if (x->play->progress)
		x->play->progress(x->done++, x->of, text);
	err = replay_play(&run, &parsed, w, x->play->seed + seed);
	if (!err)
		err = replay_figures(&run, &parsed, w, figures_at(x, load, arm, seed));
	else
		snprintf(x->why, sizeof(x->why), "arm %s: %s", text, strerror(-err));
	replay_run_free(&run);
	return err;
}

static int play_seed(struct exam *x, enum load load, size_t seed)
{
	struct workload w;
	int err = make(x, load, x->play->seed + seed, &w, x->why);

	x->plays[load].requests = seed ? x->plays[load].requests : w.turns;
	for (size_t arm = 0; arm < x->plays[load].arms && !err; arm++)
		err = play_arm(x, load, arm, seed, &w);
	workload_free(&w);
	return err;
}

static int play_all(struct exam *x)
{
	int err = 0;

	for (enum load load = DESIGN; load < LOADS && !err; load++)
		for (size_t seed = 0; seed < x->play->seeds && !err; seed++)
			err = play_seed(x, load, seed);
	return err;
}

static int prepare(struct exam *x)
{
	for (size_t i = 0; i < TARGETS; i++)
		if (arm_of(&x->plays[targets[i].load], targets[i].arm) == ARMS_MAX ||
		    arm_of(&x->plays[targets[i].load], targets[i].over) == ARMS_MAX)
			return -E2BIG;
	for (enum load load = DESIGN; load < LOADS; load++) {
		struct plays *p = &x->plays[load];

		x->of += p->arms * x->play->seeds;
		p->figure =
			calloc(p->arms * x->play->seeds * REPLAY_FIGURES_NR, sizeof(*p->figure));
		if (!p->figure)
			return -ENOMEM;
	}
	return 0;
}

/* ---- judging ---- */

/* A ratio that cannot be had (nothing of that class was played) meets nothing. */
static struct verdict judge(struct exam *x, const struct target *t)
{
	size_t arm = arm_of(&x->plays[t->load], t->arm), over = arm_of(&x->plays[t->load], t->over);
	double ratio[SEEDS_MAX];
	struct verdict v;

	for (size_t seed = 0; seed < x->play->seeds; seed++) {
		double below = figures_at(x, t->load, over, seed)[t->figure];

		ratio[seed] =
			below > 0 ? figures_at(x, t->load, arm, seed)[t->figure] / below : NAN;
	}
	v.ratio = replay_mean_of(ratio, x->play->seeds);
	v.met = t->sense == AT_MOST ? v.ratio.mean <= t->limit : v.ratio.mean >= t->limit;
	return v;
}

static void print(const struct exam *x, const struct verdict *v, size_t met)
{
	printf("%-36s %-13s %-16s %14s  %-8s %5s\n", "target", "played", "figure", "value", "limit",
	       "");
	for (size_t i = 0; i < TARGETS; i++)
		printf("%-36s %-13s %-16s %6.3f +- %.3f  %c= %-5.2f %s\n", targets[i].name,
		       load_names[targets[i].load], replay_figure_names[targets[i].figure],
		       v[i].ratio.mean, v[i].ratio.error, "<>"[targets[i].sense], targets[i].limit,
		       v[i].met ? "met" : "NOT MET");
	printf("%zu of %d targets are met (%zu seeds; values are ratios of paired plays)\n", met,
	       TARGETS, x->play->seeds);
}

static void json_target(struct json *j, const struct target *t, const struct verdict *v)
{
	json_object_begin(j, NULL);
	json_str(j, "name", t->name);
	json_str(j, "workload", load_names[t->load]);
	json_str(j, "figure", replay_figure_names[t->figure]);
	json_str(j, "arm", t->arm);
	json_str(j, "over", t->over);
	json_f64(j, "value", v->ratio.mean);
	json_f64(j, "error", v->ratio.error);
	json_str(j, "sense", sense_names[t->sense]);
	json_f64(j, "limit", t->limit);
	json_bool(j, "met", v->met);
	json_object_end(j);
}

static int to_file(void *ctx, const char *text, size_t len)
{
	return fwrite(text, 1, len, ctx) == len ? 0 : -EIO;
}

static int write_json(const struct exam *x, const struct verdict *v, size_t met)
{
	int to_stdout = strcmp(x->play->json, "-") == 0;
	scoped(file_drop) FILE *file = to_stdout ? NULL : fopen(x->play->json, "we");
	FILE *out = to_stdout ? stdout : file;
	char buf[4096];
	struct json j;
	int err;

	if (!out)
		return -errno;
	json_init(&j, buf, sizeof(buf));
	json_sink_set(&j, to_file, out);
	json_object_begin(&j, NULL);
	json_str(&j, "kind", "targets");
	json_u64(&j, "seed", x->play->seed);
	json_u64(&j, "seeds", x->play->seeds);
	json_u64(&j, "met", met);
	json_u64(&j, "of", TARGETS);
	json_array_begin(&j, "targets");
	for (size_t i = 0; i < TARGETS; i++)
		json_target(&j, &targets[i], &v[i]);
	json_array_end(&j);
	json_object_end(&j);
	err = json_finish(&j);
	if (!err && (fputc('\n', out) == EOF || fflush(out) != 0))
		err = -EIO;
	return err;
}

static int report(struct exam *x)
{
	struct verdict verdict[TARGETS];
	size_t met = 0;
	int err = 0;

	for (size_t i = 0; i < TARGETS; i++) {
		verdict[i] = judge(x, &targets[i]);
		met += verdict[i].met != 0;
	}
	if (!x->play->json || strcmp(x->play->json, "-") != 0)
		print(x, verdict, met);
	if (x->play->json)
		err = write_json(x, verdict, met);
	if (err)
		fprintf(stderr, "turnward-bench replay: %s: %s\n", x->play->json, strerror(-err));
	return err || met < TARGETS ? EXIT_RUNTIME : EXIT_GOOD;
}

int replay_targets(const struct replay_targets_play *play)
{
	struct exam x = { .play = play };
	int err = prepare(&x), code = EXIT_RUNTIME;

	err = err ? err : play_all(&x);
	if (!err)
		code = report(&x);
	else
		fprintf(stderr, "turnward-bench replay: %s\n", x.why[0] ? x.why : strerror(-err));
	for (enum load load = DESIGN; load < LOADS; load++)
		free(x.plays[load].figure);
	return code;
}
