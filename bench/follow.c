/* turnward-bench replay --follow: plays beside a live run and tells how far the two agree. */
#include "bench/follow.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/exit.h"
#include "shm/base/json.h"
#include "shm/base/scoped.h"

static const struct {
	const char *name, *meaning;
} causes[] = {
#define ROW(id, name, meaning) { name, meaning },
	FOLLOW_INPUTS(ROW) FOLLOW_OTHERS(ROW)
#undef ROW
};

static const char *const beside_names[] = {
#define ROW(name, from) #name,
	FOLLOW_BESIDES(ROW)
#undef ROW
};

static const char *const spread_names[3] = { "mean", "p50", "p90" };

/* ---- for people ---- */

static void print_share(const char *of, const struct follow_agreement *a)
{
	printf("  %-36s %5zu of %5zu agree: %6.2f %%", of, a->agree, a->decisions,
	       100 * follow_share(a));
	if (a->agree < a->decisions)
		printf("; where not, the live choice costs %.0f %% more", 100 * a->regret_mean);
	printf("\n");
}

static void print_causes(const struct follow_summary *s)
{
	if (s->all.agree == s->all.decisions)
		return;
	printf("  %-12s %6s %6s %6s  why the others differ\n", "", "clear", "all", "alone");
	for (int c = 0; c < FOLLOW_CAUSES_NR; c++)
		if (s->all.cause[c] || s->all.alone[c])
			printf("  %-12s %6zu %6zu %6zu  %s\n", causes[c].name, s->clear.cause[c],
			       s->all.cause[c], s->all.alone[c], causes[c].meaning);
}

/* Of the engine that was chosen live, over all decisions of the recording. */
static void print_besides(const struct follow_summary *s)
{
	if (s->recorded == 0)
		return;
	printf("  %-22s %12s %12s %10s  of the live choice\n", "", "here", "live", "within 1 %");
	for (int i = 0; i < FOLLOW_BESIDES_NR; i++)
		printf("  %-22s %12.4g %12.4g %9.0f%%\n", beside_names[i], s->mean[i][0],
		       s->mean[i][1], 100 * s->near[i]);
}

static void print_arm(const struct replay_arm *arm, const struct follow_summary *s)
{
	char clear[64];

	printf("\n%s\n", arm->name);
	snprintf(clear, sizeof(clear), "two cheapest differ by over %g %%", 100 * FOLLOW_CLEAR);
	print_share("all decisions", &s->all);
	print_share(clear, &s->clear);
	print_causes(s);
	print_besides(s);
	printf("  TTFT, live / here / apart:");
	for (int i = 0; i < 3; i++)
		printf(" %s %.2f / %.2f / %.2f s", spread_names[i], s->live_ttft_s[i],
		       s->replay_ttft_s[i], s->ttft_off_s[i]);
	printf("\n");
}

/* ---- for scripts ---- */

static int to_file(void *ctx, const char *text, size_t len)
{
	return fwrite(text, 1, len, ctx) == len ? 0 : -errno;
}

static void json_agreement(struct json *j, const char *key, const struct follow_agreement *a)
{
	json_object_begin(j, key);
	json_u64(j, "decisions", a->decisions);
	json_u64(j, "agree", a->agree);
	json_num(j, "agreement", follow_share(a), 6);
	json_num(j, "regret_mean", a->regret_mean, 6);
	json_object_begin(j, "causes");
	for (int c = 0; c < FOLLOW_CAUSES_NR; c++)
		if (a->cause[c])
			json_u64(j, causes[c].name, a->cause[c]);
	json_object_end(j);
	json_object_begin(j, "explain_alone");
	for (int c = 0; c < FOLLOW_INPUTS_NR; c++)
		if (a->alone[c])
			json_u64(j, causes[c].name, a->alone[c]);
	json_object_end(j);
	json_object_end(j);
}

static void json_spread(struct json *j, const char *key, const double values[3])
{
	json_object_begin(j, key);
	for (int i = 0; i < 3; i++)
		json_num(j, spread_names[i], values[i], 6);
	json_object_end(j);
}

static void json_pair(struct json *j, const char *key, const float pair[2])
{
	json_array_begin(j, key);
	json_num(j, NULL, (double)pair[0], 6);
	json_num(j, NULL, (double)pair[1], 6);
	json_array_end(j);
}

/* One line of `differ`: a request whose engines are not the same. */
static void json_difference(struct json *j, const struct follow *f, size_t i,
			    const struct follow_verdict *v)
{
	const struct follow_turn *t = &f->turn[i];

	json_object_begin(j, NULL);
	json_str(j, "id", t->id);
	json_num(j, "at_s", f->workload.turn[i].at_s, 8);
	json_str(j, "live", f->name[t->engine]);
	if ((unsigned)v->engine < f->engines)
		json_str(j, "replay", f->name[v->engine]);
	else
		json_i64(j, "replay", v->engine);
	json_num(j, "gap", v->gap, 4);
	json_num(j, "regret", v->regret, 4);
	json_str(j, "cause", causes[v->cause].name);
	if (t->recorded) {
		for (int k = 0; k < FOLLOW_BESIDES_NR; k++)
			json_pair(j, beside_names[k], v->beside[k]);
	}
	json_object_end(j);
}

static void json_arm(struct json *j, const struct follow *f, const struct replay_arm *arm,
		     const struct follow_summary *s, const struct follow_verdict *v)
{
	json_object_begin(j, NULL);
	json_str(j, "name", arm->name);
	json_num(j, "sample_s", arm->sample, 6);
	json_agreement(j, "all", &s->all);
	json_agreement(j, "clear", &s->clear);
	json_spread(j, "live_ttft_s", s->live_ttft_s);
	json_spread(j, "replay_ttft_s", s->replay_ttft_s);
	json_spread(j, "ttft_apart_s", s->ttft_off_s);
	json_object_begin(j, "inputs");
	for (int i = 0; s->recorded && i < FOLLOW_BESIDES_NR; i++) {
		json_object_begin(j, beside_names[i]);
		json_num(j, "here", s->mean[i][0], 6);
		json_num(j, "live", s->mean[i][1], 6);
		json_num(j, "within_1_percent", s->near[i], 4);
		json_object_end(j);
	}
	json_object_end(j);
	json_array_begin(j, "differ");
	for (size_t i = 0; i < f->workload.turns; i++)
		if (v[i].engine != f->turn[i].engine)
			json_difference(j, f, i, &v[i]);
	json_array_end(j);
	json_object_end(j);
}

/* ---- the command ---- */

static int fail(const char *what, const char *why)
{
	fprintf(stderr, "turnward-bench replay: %s: %s\n", what, why);
	return EXIT_RUNTIME;
}

/* Engines that nobody was sent to do not stand in a trace: there are as many as the arm has. */
static void arm_fit(struct replay_arm *arm, const struct follow *f)
{
	if (f->decisions || arm->engines < f->engines)
		arm->engines = f->engines;
}

/* Policy, parameters and sampling period of the recording. */
static void arm_recorded(struct replay_arm *ret, const struct follow *f,
			 const struct replay_arm *base)
{
	*ret = *base;
	ret->params = f->params;
	if (f->sample_s > 0)
		ret->sample = f->sample_s;
	snprintf(ret->name, sizeof(ret->name), "%s", policy_name((unsigned)f->params.policy));
}

static int play_arm(const struct follow_command *c, const struct follow *f,
		    const struct replay_arm *given, struct json *j)
{
	struct replay_arm arm = *given;
	struct follow_verdict *verdict = NULL;
	struct follow_summary summary;
	struct replay_run run;
	int err;

	arm_fit(&arm, f);
	err = follow_play(&verdict, &run, &arm, f, c->seed);
	err = err ? err : follow_summarize(&summary, f, verdict, &run);
	if (!err && (!c->json || strcmp(c->json, "-") != 0))
		print_arm(&arm, &summary);
	if (!err && j)
		json_arm(j, f, &arm, &summary, verdict);
	free(verdict);
	replay_run_free(&run);
	return err;
}

static int play_arms(const struct follow_command *c, const struct follow *f, struct json *j)
{
	struct replay_arm recorded;
	int err = 0;

	if (c->arms == 0) {
		arm_recorded(&recorded, f, c->base);
		return play_arm(c, f, &recorded, j);
	}
	for (size_t i = 0; i < c->arms && !err; i++)
		err = play_arm(c, f, &c->arm[i], j);
	return err;
}

static void json_head(struct json *j, const struct follow_command *c, const struct follow *f)
{
	json_object_begin(j, NULL);
	json_str(j, "kind", "follow");
	json_str(j, "trace", c->trace);
	if (c->recording)
		json_str(j, "recording", c->recording);
	json_num(j, "speed", f->speed, 6);
	json_u64(j, "requests", f->workload.turns);
	json_u64(j, "left_out", f->left_out);
	json_u64(j, "recorded", f->decisions);
	json_num(j, "clear_gap", FOLLOW_CLEAR, 4);
	json_array_begin(j, "arms");
}

static int play(const struct follow_command *c, const struct follow *f)
{
	int to_stdout = c->json && strcmp(c->json, "-") == 0, err;
	scoped(file_drop) FILE *file = c->json && !to_stdout ? fopen(c->json, "we") : NULL;
	struct json j;
	char buf[4096];

	if (c->json && !to_stdout && !file)
		return fail(c->json, strerror(errno));
	if (!to_stdout)
		printf("%zu requests of a live run at speed %g, %zu left out, %zu decisions in its "
		       "recording\n",
		       f->workload.turns, f->speed, f->left_out, f->decisions);
	json_init(&j, buf, sizeof(buf));
	json_sink_set(&j, to_file, to_stdout ? stdout : file);
	if (c->json)
		json_head(&j, c, f);
	err = play_arms(c, f, c->json ? &j : NULL);
	if (err)
		return fail(c->trace,
			    err == -E2BIG ? "a prompt fits into no engine" : strerror(-err));
	if (!c->json)
		return EXIT_GOOD;
	json_array_end(&j);
	json_object_end(&j);
	err = json_finish(&j);
	fputc('\n', to_stdout ? stdout : file);
	return err ? fail(c->json, strerror(-err)) : EXIT_GOOD;
}

int follow_run(const struct follow_command *c)
{
	char why[FOLLOW_WHY_MAX] = "";
	struct follow f;
	int code = EXIT_GOOD;

	if (follow_read(&f, c->trace, why) < 0)
		code = fail(c->trace, why);
	else if (c->recording && follow_recording(&f, c->recording, why) < 0)
		code = fail(c->recording, why);
	else
		code = play(c, &f);
	follow_free(&f);
	return code;
}
