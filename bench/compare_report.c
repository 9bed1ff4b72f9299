/* Medians of rounds, ratios within rounds, targets: as tables and as JSON; see compare.h. */
#include "bench/compare.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* X(group in JSON or NULL, key, head of the column, digits behind the point, figure of replay) */
#define COLUMNS(X)                                                     \
	X("ttft_s", "mean", "TTFT", 2, ttft_mean_s)                    \
	X("ttft_s", "p50", "p50", 2, ttft_p50_s)                       \
	X("ttft_s", "p90", "p90", 2, ttft_p90_s)                       \
	X("ttft_s", "p99", "p99", 2, ttft_p99_s)                       \
	X(NULL, "heavy_t2_mean_s", "H2 mean", 2, heavy_t2_mean_s)      \
	X(NULL, "heavy_t2_ideal_s", "ideal", 2, floor_heavy_t2_mean_s) \
	X("cold_ttft_s", "mean", "cold", 2, heavy_t1_mean_s)           \
	X("cold_ttft_s", "p90", "p90", 2, heavy_t1_p90_s)              \
	X("medium_ttft_s", "p90", "MED p90", 2, medium_p90_s)          \
	X("e2e_s", "mean", "E2E", 2, e2e_mean_s)                       \
	X("e2e_s", "p50", "p50", 2, e2e_p50_s)                         \
	X("tpot_s", "mean", "TPOT", 4, tpot_mean_s)                    \
	X("tpot_s", "p90", "p90", 4, tpot_p90_s)                       \
	X(NULL, "victims", "victims", 0, victims)                      \
	X(NULL, "hot", "of hot", 0, hot)

struct column {
	const char *group, *key, *head;
	int digits;
	enum replay_figure figure;
};
static const struct column columns[] = {
#define X(group, key, head, digits, figure) { group, key, head, digits, REPLAY_##figure },
	COLUMNS(X)
#undef X
};
enum { COLUMNS_NR = sizeof(columns) / sizeof(columns[0]) };

struct ratio {
	double median, least, most;
	unsigned rounds;
};

static unsigned rounds_of(const struct compare *c)
{
	return c->rounds;
}

static bool good(const struct compare_play *p)
{
	return p->played && p->valid;
}

static double median(const struct compare *c, const struct compare_play *of,
		     enum replay_figure figure)
{
	double value[COMPARE_ROUNDS_MAX] = { 0 };

	for (unsigned r = 0; r < rounds_of(c); r++)
		value[r] = good(&of[r]) ? of[r].figure[figure] : NAN;
	return load_median(value, rounds_of(c));
}

static double sum(const struct compare *c, const struct compare_play *of, enum replay_figure figure,
		  const struct compare_play *with)
{
	double all = 0;

	for (unsigned r = 0; r < rounds_of(c); r++)
		if (good(&of[r]) && good(&with[r]))
			all += of[r].figure[figure];
	return all;
}

/* Of times: within rounds. Of victims, which are few: of their sums, nobody over nobody being 1. */
static struct ratio ratio_of(const struct compare *c, const struct compare_play *arm,
			     enum replay_figure figure, const struct compare_play *over,
			     enum replay_figure below)
{
	double value[COMPARE_ROUNDS_MAX] = { 0 }, above, under;
	struct ratio ratio = { NAN, NAN, NAN, 0 };

	for (unsigned r = 0; r < rounds_of(c); r++) {
		bool both = good(&arm[r]) && good(&over[r]);

		under = both ? over[r].figure[below] : 0;
		value[r] = under > 0 ? arm[r].figure[figure] / under : NAN;
		ratio.rounds += both;
	}
	ratio.median = load_median(value, rounds_of(c));
	ratio.least = load_least(value, rounds_of(c));
	ratio.most = load_most(value, rounds_of(c));
	if (figure == REPLAY_victims && ratio.rounds) {
		above = sum(c, arm, figure, over);
		under = sum(c, over, below, arm);
		ratio.median = under > 0 ? above / under : above > 0 ? INFINITY : 1;
	}
	return ratio;
}

/* The peer whose TTFT p90 is the least; -1 when none ran. */
static int best_peer(const struct compare *c, int load)
{
	int best = -1;

	for (unsigned a = 0; a < c->kind->arms; a++) {
		double p90 = median(c, c->play[load][a], REPLAY_ttft_p90_s);

		if (c->kind->arm[a].peer < 0 || isnan(p90))
			continue;
		if (best < 0 || p90 < median(c, c->play[load][best], REPLAY_ttft_p90_s))
			best = (int)a;
	}
	return best;
}

/* What the others are held against: the first arm, or the best of the peers. */
static int base_of(const struct compare *c, int load)
{
	return c->options->kind == COMPARE_ROUTERS ? best_peer(c, load) : 0;
}

static unsigned targets(const struct compare *c, struct load_target *ret)
{
	unsigned n = 0;

	for (unsigned i = 0; i < c->kind->targets && n < LOAD_TARGETS_MAX; i++) {
		const struct compare_target *t = &c->kind->target[i];
		int over = t->over;
		enum replay_figure below = t->figure;
		double value = NAN;

		if (!c->options->load[t->load] || !c->options->arm[t->arm])
			continue;
		if (over == COMPARE_OVER_PEERS)
			over = best_peer(c, t->load);
		if (over == COMPARE_OVER_FIGURE) {
			over = t->arm;
			below = t->below;
		}
		if (over >= 0)
			value = ratio_of(c, c->play[t->load][t->arm], t->figure,
					 c->play[t->load][over], below)
					.median;
		ret[n++] = load_target_of(t->name, value, t->limit, false);
	}
	return n;
}

bool compare_all_valid(const struct compare *c)
{
	for (int load = 0; load < COMPARE_LOADS_NR; load++)
		for (unsigned a = 0; c->options->load[load] && a < c->kind->arms; a++)
			for (unsigned r = 0; r < rounds_of(c) && c->options->arm[a]; r++)
				if (!good(&c->play[load][a][r]) || c->play[load][a][r].errors > 0)
					return false;
	return true;
}

/* ---- tables ---- */

static void print_head(void)
{
	printf("%-28s", "");
	for (int i = 0; i < COLUMNS_NR; i++)
		printf(" %7s", columns[i].head);
	printf("\n");
}

static void print_medians(const struct compare *c, const char *name, const struct compare_play *of)
{
	printf("%-28s", name);
	for (int i = 0; i < COLUMNS_NR; i++)
		printf(" %7.*f", columns[i].digits, median(c, of, columns[i].figure));
	printf("\n");
}

static void print_ratios(const struct compare *c, const char *name, const struct compare_play *arm,
			 const struct compare_play *over)
{
	printf("%-28s", name);
	for (int i = 0; i < COLUMNS_NR; i++)
		printf(" %7.2f",
		       ratio_of(c, arm, columns[i].figure, over, columns[i].figure).median);
	printf("\n%-28s", "  least");
	for (int i = 0; i < COLUMNS_NR; i++)
		printf(" %7.2f",
		       ratio_of(c, arm, columns[i].figure, over, columns[i].figure).least);
	printf("\n%-28s", "  most");
	for (int i = 0; i < COLUMNS_NR; i++)
		printf(" %7.2f", ratio_of(c, arm, columns[i].figure, over, columns[i].figure).most);
	printf("\n");
}

/* How the runs went: lateness, pieces, CPU; and why one does not count. */
static void print_runs(const struct compare *c, int load)
{
	for (unsigned a = 0; a < c->kind->arms; a++) {
		const struct compare_play *p = c->play[load][a];
		double late = 0, pieces = 0, cpu = 0, errors = 0, moves = 0, speed = INFINITY;
		double busy = 0, closes = 0;
		unsigned valid = 0;

		if (!c->options->arm[a])
			continue;
		for (unsigned r = 0; r < rounds_of(c); r++) {
			valid += good(&p[r]);
			late = fmax(late, p[r].late_ratio);
			cpu = fmax(cpu, p[r].router_cpu_share);
			pieces += p[r].pieces / rounds_of(c);
			closes += p[r].closes / rounds_of(c);
			moves += p[r].migrations / rounds_of(c);
			errors += p[r].errors;
			busy = fmax(busy, p[r].machine_load);
			speed = p[r].played ? fmin(speed, p[r].speed) : speed;
			if (!good(&p[r]))
				printf("%s, round %u does not count: %s\n", c->kind->arm[a].name,
				       r + 1, p[r].why);
		}
		printf("%s: %u of %u runs valid, speed %.3g, late by at most %.1f %%, %.0f pieces, "
		       "%.0f taken back and %.0f moves a run, router at most %.0f %% of a core, "
		       "%.0f errors, "
		       "machine up to %.0f %% busy\n",
		       c->kind->arm[a].name, valid, rounds_of(c), speed, 100 * late, pieces, closes,
		       moves, 100 * cpu, errors, 100 * busy);
	}
}

static void print_load(const struct compare *c, int load)
{
	int base = base_of(c, load);
	char name[100];

	printf("\n%s: %zu requests, %u rounds, model seconds (speed %.3g), medians of rounds\n",
	       compare_load_names[load], c->requests[load], rounds_of(c), c->speed);
	print_head();
	for (unsigned a = 0; a < c->kind->arms; a++)
		if (c->options->arm[a])
			print_medians(c, c->kind->arm[a].name, c->play[load][a]);
	for (unsigned a = 0; a < c->kind->arms && base >= 0; a++) {
		if ((int)a == base || !c->options->arm[a] || c->kind->arm[a].peer >= 0)
			continue;
		snprintf(name, sizeof(name), "%s / %s", c->kind->arm[a].name,
			 base && c->kind->arm[base].peer >= 0 ? "best peer"
							      : c->kind->arm[base].name);
		print_ratios(c, name, c->play[load][a], c->play[load][base]);
		if (c->replay[load][a][0].played)
			print_ratios(c, "  the same in replay", c->replay[load][a],
				     c->replay[load][base]);
	}
	if (base >= 0 && c->kind->arm[base].peer >= 0)
		printf("best peer: %s\n", c->kind->arm[base].name);
	print_runs(c, load);
}

void compare_print(const struct compare *c)
{
	struct load_target target[LOAD_TARGETS_MAX];

	load_machine_print();
	for (int load = 0; load < COMPARE_LOADS_NR; load++)
		if (c->options->load[load])
			print_load(c, load);
	printf("\nH2: HEAVY at turn >= 2; ideal: on an empty engine with a perfect cache; cold: "
	       "HEAVY at turn 1;\nvictims: H2 with over 80 %% cached somewhere that waited over 5 "
	       "s. Step times follow published\nsingle-stream speeds; batched decode is an "
	       "extrapolation. %.0f s in all.\n\n",
	       c->wall_s);
	load_targets_print(target, targets(c, target));
	if (!compare_all_valid(c))
		printf("NOT all runs are valid and without errors\n");
}

/* ---- JSON ---- */

static void json_columns(struct json *j, const double value[COLUMNS_NR])
{
	for (int i = 0; i < COLUMNS_NR; i++) {
		const char *group = columns[i].group;

		if (group && (i == 0 || columns[i - 1].group != group))
			json_object_begin(j, group);
		json_num(j, columns[i].key, value[i], 6);
		if (group && (i + 1 == COLUMNS_NR || columns[i + 1].group != group))
			json_object_end(j);
	}
}

static void json_arm(struct json *j, const struct compare *c, const char *name,
		     const struct compare_play *of)
{
	double value[COLUMNS_NR], late = 0, pieces = 0, closes = 0, errors = 0;
	unsigned valid = 0;

	for (int i = 0; i < COLUMNS_NR; i++)
		value[i] = median(c, of, columns[i].figure);
	for (unsigned r = 0; r < rounds_of(c); r++) {
		const struct compare_play *p = &of[r];

		valid += good(p);
		errors += p->errors;
		pieces += p->pieces / rounds_of(c);
		closes += p->closes / rounds_of(c);
		late = fmax(late, p->late_ratio);
	}
	json_object_begin(j, NULL);
	json_str(j, "name", name);
	json_columns(j, value);
	json_num(j, "errors", errors, 9);
	json_num(j, "pieces", pieces, 6);
	json_num(j, "requeued", closes, 6);
	json_num(j, "late_ratio", late, 6);
	json_u64(j, "rounds_valid", valid);
	json_object_end(j);
}

static void json_arms(struct json *j, const struct compare *c, int load)
{
	json_array_begin(j, "arms");
	for (unsigned a = 0; a < c->kind->arms; a++)
		if (c->options->arm[a])
			json_arm(j, c, c->kind->arm[a].name, c->play[load][a]);
	json_array_end(j);
}

static void json_ratio(struct json *j, const struct compare *c, int load, unsigned a, int base,
		       bool replay)
{
	const struct compare_play *arm = replay ? c->replay[load][a] : c->play[load][a];
	const struct compare_play *over = replay ? c->replay[load][base] : c->play[load][base];
	double value[COLUMNS_NR];

	json_object_begin(j, NULL);
	json_str(j, "name", c->kind->arm[a].name);
	json_str(j, "over", c->kind->arm[base].name);
	json_str(j, "where", replay ? "replay" : "live");
	for (int i = 0; i < COLUMNS_NR; i++) {
		value[i] = ratio_of(c, arm, columns[i].figure, over, columns[i].figure).median;
		value[i] = isinf(value[i]) ? NAN : value[i];
	}
	json_columns(j, value);
	json_object_end(j);
}

static void json_ratios(struct json *j, const struct compare *c, int load)
{
	int base = base_of(c, load);

	json_array_begin(j, "ratios");
	for (unsigned a = 0; a < c->kind->arms && base >= 0; a++) {
		if ((int)a == base || !c->options->arm[a])
			continue;
		json_ratio(j, c, load, a, base, false);
		if (c->replay[load][a][0].played)
			json_ratio(j, c, load, a, base, true);
	}
	json_array_end(j);
}

static void json_play(struct json *j, const struct compare *c, int load, unsigned a, unsigned r)
{
	const struct compare_play *p = &c->play[load][a][r], *sim = &c->replay[load][a][r];
	double value[COLUMNS_NR];

	json_object_begin(j, NULL);
	json_str(j, "name", c->kind->arm[a].name);
	json_bool(j, "valid", good(p));
	json_str(j, "why", p->why[0] ? p->why : NULL);
	json_u64(j, "place", p->place + 1);
	json_u64(j, "tries", p->tries);
	json_num(j, "speed", p->speed, 6);
	json_num(j, "machine_load", p->machine_load, 4);
	for (int i = 0; i < COLUMNS_NR; i++)
		value[i] = p->played ? p->figure[columns[i].figure] : NAN;
	json_columns(j, value);
	json_num(j, "errors", p->errors, 9);
	json_num(j, "late_ratio", p->late_ratio, 6);
	json_num(j, "engines_busy_s", p->busy_s, 6);
	json_num(j, "migrations", p->migrations, 9);
	json_num(j, "pieces", p->pieces, 9);
	json_num(j, "requeued", p->closes, 9);
	json_num(j, "router_cpu_share", p->router_cpu_share, 4);
	json_num(j, "wall_s", p->wall_s, 6);
	if (sim->played) {
		for (int i = 0; i < COLUMNS_NR; i++)
			value[i] = sim->figure[columns[i].figure];
		json_object_begin(j, "replay");
		json_columns(j, value);
		json_num(j, "pieces", sim->pieces, 9);
		json_num(j, "requeued", sim->closes, 9);
		json_object_end(j);
	}
	json_object_end(j);
}

static void json_load(struct json *j, const struct compare *c, int load)
{
	json_object_begin(j, NULL);
	json_str(j, "name", compare_load_names[load]);
	json_u64(j, "requests", c->requests[load]);
	json_arms(j, c, load);
	json_ratios(j, c, load);
	json_array_begin(j, "rounds");
	for (unsigned r = 0; r < rounds_of(c); r++) {
		json_object_begin(j, NULL);
		json_u64(j, "seed", c->live->seed + r);
		json_array_begin(j, "arms");
		for (unsigned a = 0; a < c->kind->arms; a++)
			if (c->options->arm[a])
				json_play(j, c, load, a, r);
		json_array_end(j);
		json_object_end(j);
	}
	json_array_end(j);
	json_object_end(j);
}

int compare_json(const struct compare *c, const char *path)
{
	static struct load_document doc;
	struct load_target target[LOAD_TARGETS_MAX];
	int first = 0, err = load_document_open(&doc, path, "compare", "live");

	if (err)
		return err;
	while (first < COMPARE_LOADS_NR - 1 && !c->options->load[first])
		first++;
	json_str(&doc.json, "compare", compare_kind_names[c->options->kind]);
	json_str(&doc.json, "api", live_api_names[c->live->api]);
	json_num(&doc.json, "speed", c->speed, 6);
	json_bool(&doc.json, "valid", compare_all_valid(c));
	json_u64(&doc.json, "pairs", rounds_of(c));
	json_u64(&doc.json, "pairs_asked", c->options->rounds);
	json_num(&doc.json, "wall_s", c->wall_s, 6);
	json_arms(&doc.json, c, first); /* of the design mix, if it was played */
	json_array_begin(&doc.json, "workloads");
	for (int load = 0; load < COMPARE_LOADS_NR; load++)
		if (c->options->load[load])
			json_load(&doc.json, c, load);
	json_array_end(&doc.json);
	load_targets_json(&doc.json, target, targets(c, target));
	return load_document_end(&doc);
}
