/* The detail of a comparison: first tokens pooled to curves, one play's timeline, both as JSON. */
#include "bench/replay_detail.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The groups that curves are drawn of; X(name in JSON, which of (class, turn)) */
#define GROUPS(X)                                         \
	X(ALL, true)                                      \
	X(WARM, class == CLASS_WARM)                      \
	X(MEDIUM, class == CLASS_MEDIUM)                  \
	X(HEAVY, class == CLASS_HEAVY)                    \
	X(HEAVY_T1, class == CLASS_HEAVY && t->turn == 1) \
	X(HEAVY_T2, class == CLASS_HEAVY && t->turn >= 2)

enum group {
#define X(name, condition) GROUP_##name,
	GROUPS(X)
#undef X
		GROUPS_NR
};
static const char *const group_names[] = {
#define X(name, condition) #name,
	GROUPS(X)
#undef X
};

struct values {
	float *value;
	size_t nr, room;
};

struct move {
	float at_s, ttft_s;
	uint32_t turn;
	int16_t from, to;
};

struct arm_detail {
	struct values ttft[GROUPS_NR], tpot, e2e;
	size_t requests, left_out;
	struct detail_watch *watch; /* of the first play */
	struct move *move;
	size_t moves, moves_total;
	uint64_t seed;
};

struct replay_detail {
	size_t arms;
	unsigned points;
	struct arm_detail arm[];
};

double replay_detail_quantile(unsigned i)
{
	static const double tail[] = { 0.995, 0.999, 1 };

	assert(i < DETAIL_QUANTILES);
	return i < 100 ? i / 100.0 : tail[i - 100];
}

int replay_detail_new(struct replay_detail **ret_detail, size_t arms, unsigned points)
{
	struct replay_detail *d = calloc(1, sizeof(*d) + arms * sizeof(d->arm[0]));

	if (!d)
		return -ENOMEM;
	d->arms = arms;
	d->points = points;
	*ret_detail = d;
	return 0;
}

void replay_detail_free(struct replay_detail *d)
{
	for (size_t i = 0; d && i < d->arms; i++) {
		struct arm_detail *a = &d->arm[i];

		for (int g = 0; g < GROUPS_NR; g++)
			free(a->ttft[g].value);
		free(a->tpot.value);
		free(a->e2e.value);
		free(a->move);
		detail_watch_free(a->watch);
	}
	free(d);
}

/* ---- keeping ---- */

static int add(struct values *v, double value)
{
	if (v->nr == v->room) {
		size_t room = v->room ? 2 * v->room : 256;
		float *grown = realloc(v->value, room * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		v->value = grown;
		v->room = room;
	}
	v->value[v->nr++] = (float)value;
	return 0;
}

static bool in_group(enum group group, enum policy_class class, const struct workload_turn *t)
{
	switch (group) {
#define X(name, condition) \
	case GROUP_##name: \
		return condition;
		GROUPS(X)
#undef X
	case GROUPS_NR:
		break;
	}
	return false;
}

static int take_request(struct arm_detail *a, const struct replay_arm *arm,
			const struct workload_turn *turn, const struct replay_request *r)
{
	enum policy_class class = replay_class_of(arm, turn);
	double ttft_s = (double)(r->first_ns - r->arrive_ns) * 1e-9;
	int err = add(&a->e2e, (double)(r->end_ns - r->arrive_ns) * 1e-9);

	for (int g = 0; g < GROUPS_NR && !err; g++)
		if (in_group((enum group)g, class, turn))
			err = add(&a->ttft[g], ttft_s);
	if (turn->output_tokens > 1 && !err)
		err = add(&a->tpot,
			  (double)(r->end_ns - r->first_ns) * 1e-9 / (turn->output_tokens - 1));
	a->requests++;
	return err;
}

static int take_moves(struct arm_detail *a, const struct replay_run *run, const struct workload *w,
		      uint64_t begin_ns)
{
	a->move = calloc(DETAIL_MARKS_MAX, sizeof(*a->move));
	if (!a->move)
		return -ENOMEM;
	for (size_t i = 0; i < run->requests; i++) {
		const struct replay_request *r = &run->request[i];

		if (w->turn[i].turn < 2 || r->home < 0 || r->home == r->engine)
			continue;
		if (a->moves_total++ < DETAIL_MARKS_MAX)
			a->move[a->moves++] = (struct move){
				.at_s = (float)((double)(r->arrive_ns - begin_ns) * 1e-9),
				.ttft_s = (float)((double)(r->first_ns - r->arrive_ns) * 1e-9),
				.turn = w->turn[i].turn,
				.from = r->home,
				.to = r->engine,
			};
	}
	return 0;
}

static int take(struct arm_detail *a, const struct replay_run *run, const struct replay_arm *arm,
		const struct workload *w)
{
	int err = 0;

	for (size_t i = 0; i < run->requests && !err; i++) {
		if (a->requests == DETAIL_VALUES_MAX)
			a->left_out++;
		else
			err = take_request(a, arm, &w->turn[i], &run->request[i]);
	}
	if (!err && !a->move)
		err = take_moves(a, run, w, a->watch->begin_ns);
	return err ? err : a->watch->err;
}

int replay_detail_play(struct replay_detail *d, size_t arm_index, struct replay_run *ret_run,
		       const struct replay_arm *arm, const struct workload *workload, uint64_t seed)
{
	struct arm_detail *a = d ? &d->arm[arm_index] : NULL;
	int err;

	if (!a || d->points == 0)
		return replay_play(ret_run, arm, workload, seed);
	if (a->watch) {
		err = replay_play(ret_run, arm, workload, seed);
	} else {
		*ret_run = (struct replay_run){ 0 };
		a->seed = seed;
		err = detail_watch_new(&a->watch, d->points, (unsigned)arm->engines);
		if (!err)
			err = replay_play_watched(ret_run, arm, workload, seed, a->watch);
	}
	return err ? err : take(a, ret_run, arm, workload);
}

/* ---- JSON ---- */

static int by_value(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

/* Nearest rank, as the figures are; sorts. Empty without values. */
static void json_curve(struct json *j, const char *key, struct values *v)
{
	if (v->nr)
		qsort(v->value, v->nr, sizeof(*v->value), by_value);
	json_array_begin(j, key);
	for (unsigned i = 0; i < DETAIL_QUANTILES && v->nr; i++) {
		size_t rank = (size_t)ceil(replay_detail_quantile(i) * (double)v->nr);

		json_num(j, NULL, (double)v->value[rank ? rank - 1 : 0], 4);
	}
	json_array_end(j);
}

static void json_series(struct json *j, const struct detail_watch *w, int series, const char *key)
{
	json_array_begin(j, key);
	for (size_t e = 0; e < w->engines; e++) {
		json_array_begin(j, NULL);
		for (size_t p = 0; p < w->nr; p++)
			json_num(j, NULL, (double)w->series[series][p * w->engines + e], 3);
		json_array_end(j);
	}
	json_array_end(j);
}

static void json_timeline(struct json *j, const struct arm_detail *a)
{
	static const char *const names[] = {
#define X(name, meaning) #name,
		DETAIL_SERIES(X)
#undef X
	};
	const struct detail_watch *w = a->watch;

	json_object_begin(j, "timeline");
	json_u64(j, "seed", a->seed);
	json_u64(j, "engines", w->engines);
	json_num(j, "step_s", (double)w->step_ns * 1e-9, 6);
	for (int i = 0; i < DETAIL_SERIES_NR; i++)
		json_series(j, w, i, names[i]);
	json_object_end(j);
}

/* Lists side by side, an entry an index: half the size of a list of objects. */
static void json_moves(struct json *j, const struct arm_detail *a)
{
#define COLUMN(key, expression)                           \
	do {                                              \
		json_array_begin(j, key);                 \
		for (size_t i = 0; i < a->moves; i++)     \
			json_num(j, NULL, expression, 5); \
		json_array_end(j);                        \
	} while (0)
	json_object_begin(j, "moves");
	json_u64(j, "total", a->moves_total);
	COLUMN("at_s", (double)a->move[i].at_s);
	COLUMN("from", a->move[i].from);
	COLUMN("to", a->move[i].to);
	COLUMN("turn", a->move[i].turn);
	COLUMN("ttft_s", (double)a->move[i].ttft_s);
	json_object_end(j);
#undef COLUMN
}

#define COLUMN(marks, key, expression)                                   \
	do {                                                             \
		json_array_begin(j, key);                                \
		for (size_t i = 0; i < (marks)->nr; i++) {               \
			const struct detail_mark *m = &(marks)->mark[i]; \
			json_num(j, NULL, expression, 5);                \
		}                                                        \
		json_array_end(j);                                       \
	} while (0)

static void json_pieces(struct json *j, const struct detail_marks *marks)
{
	json_object_begin(j, "pieces");
	json_u64(j, "total", marks->total);
	COLUMN(marks, "at_s", m->at_s);
	COLUMN(marks, "engine", m->engine);
	COLUMN(marks, "tokens", m->tokens);
	json_object_end(j);
}

static void json_outages(struct json *j, const struct detail_marks *marks)
{
	static const char *const names[] = {
#define X(name, meaning) #name,
		DETAIL_OUTAGES(X)
#undef X
	};

	json_object_begin(j, "outages");
	json_u64(j, "total", marks->total);
	json_array_begin(j, "kind");
	for (size_t i = 0; i < marks->nr; i++)
		json_str(j, NULL, names[marks->mark[i].index]);
	json_array_end(j);
	COLUMN(marks, "engine", m->engine);
	COLUMN(marks, "from_s", m->at_s);
	COLUMN(marks, "until_s", m->until_s);
	json_object_end(j);
}
#undef COLUMN

void replay_detail_json(struct json *j, const struct replay_detail *d)
{
	if (!d || d->points == 0)
		return;
	json_object_begin(j, "detail");
	json_u64(j, "points", d->points);
	json_array_begin(j, "quantiles");
	for (unsigned i = 0; i < DETAIL_QUANTILES; i++)
		json_num(j, NULL, replay_detail_quantile(i), 4);
	json_array_end(j);
	json_object_end(j);
}

void replay_detail_json_arm(struct json *j, struct replay_detail *d, size_t arm_index)
{
	struct arm_detail *a = d ? &d->arm[arm_index] : NULL;

	if (!a || !a->watch || !a->move)
		return;
	json_object_begin(j, "detail");
	json_u64(j, "requests", a->requests);
	json_u64(j, "left_out", a->left_out);
	json_object_begin(j, "ttft_s");
	for (int g = 0; g < GROUPS_NR; g++)
		json_curve(j, group_names[g], &a->ttft[g]);
	json_object_end(j);
	json_curve(j, "tpot_s", &a->tpot);
	json_curve(j, "e2e_s", &a->e2e);
	json_timeline(j, a);
	json_moves(j, a);
	json_pieces(j, &a->watch->pieces);
	json_outages(j, &a->watch->outages);
	json_object_end(j);
}
