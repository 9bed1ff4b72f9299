/* turnward-bench replay: policies against each other in virtual time; see replay.h. */
#include "bench/replay.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "bench/follow.h"
#include "bench/replay_detail.h"
#include "bench/replay_targets.h"
#include "shm/base/clock.h"
#include "shm/base/exit.h"
#include "shm/base/opt.h"
#include "shm/base/scoped.h"

enum { ARMS_MAX = 64, SETS_MAX = 32, SEEDS_MAX = 1000 };

/* X(id, name, value, help) */
#define REPLAY_OPTIONS(X)                                                                    \
	X(SUITE, "suite", "NAME", "one of --list (design)")                                  \
	X(ARMS, "arms", "LIST", "NAME[+KEY=VALUE]...,... instead of a suite")                \
	X(BASE, "base", "ARM", "what differences are against (the first arm)")               \
	X(SEEDS, "seeds", "N", "workloads, one a seed (5)")                                  \
	X(SEED, "seed", "N", "the first (1)")                                                \
	X(WORKLOAD, "workload", "KIND", "design, long, sessions (traces/claude_code.jsonl)") \
	X(FILE, "file", "FILE", "play this instead")                                         \
	X(FORM, "form", "NAME", "of it: sessions, mooncake, qwen, azure (as it looks)")      \
	X(REQUESTS, "requests", "N", "of one seed (850; files: all)")                        \
	X(SESSIONS, "sessions", "N", "at most")                                              \
	X(RATE, "rate", "R", "new sessions, or a file's requests, a second")                 \
	X(CLOSED, "closed", NULL, "turns come a pause after the answer before")              \
	X(OPEN, "open", NULL, "turns come whether or not answers do")                        \
	X(THINK, "think", "S", "mean pause of a closed loop, drawn anew")                    \
	X(TURNS, "turns", "N", "most turns of a file's session (12)")                        \
	X(CONTEXT, "context", "N", "longest prompt and answer of a file (120000)")           \
	X(BLOCK, "block", "N", "tokens of a file's hash block (512, qwen: 16)")              \
	X(MIX, "mix", "KEY=V", "changes the generator of design; may be repeated")           \
	X(SET, "set", "KEY=V", "for every arm: engines, long_prefill_cap ... (--list)")      \
	X(PROFILE, "profile", "NAME", "q8b, q14b, q32b, q32f8, a3b; A:B go round (q8b)")     \
	X(ENGINES, "engines", "N", NULL)                                                     \
	X(SLOW, "slow", "F", "the first is F times slower, unknown to the router")           \
	X(STALL, "stall", "S", "every 60 s another engine stands still for S seconds")       \
	X(RESTART, "restart", "S", "every S seconds another engine comes back empty")        \
	X(SAMPLE, "sample", "S", "seconds between agents' samples (0.1)")                    \
	X(NO_OWN, "no-own-dispatches", NULL, "samples as they are, nothing added")           \
	X(BANDWIDTH, "kv-bandwidth", "GB/S", "prefixes are pulled, believed and really")     \
	X(CAP, "long-prefill-cap", "N", NULL)                                                \
	X(FOLLOW, "follow", "FILE", "beside a live run: the trace of live --trace")          \
	X(RECORDING, "recording", "FILE", "of that run, by turnward record: the causes")     \
	X(LIST, "list", NULL, "shows arms and keys")                                         \
	X(JSON, "json", "FILE", "write JSON there; - is stdout")                             \
	X(DETAIL, "detail", "N", NULL)
#define OPTION_ENUM(id, name, value, help) OPTION_##id,
enum { OPTION_NONE, REPLAY_OPTIONS(OPTION_ENUM) };
#define OPTION_ROW(id_, name_, value_, help_) \
	{ .name = name_, .value = value_, .help = help_, .id = OPTION_##id_ },
static const struct opt options[] = { REPLAY_OPTIONS(OPTION_ROW){ 0 } };

static const struct opt_program program = {
	.name = "turnward-bench replay",
	.operands = "[options]",
	.purpose = "Plays policies against each other in virtual time.",
	.options = options,
	.examples = "  turnward-bench replay --arms linear,A,eft+calibration_max=1 --seeds 12\n"
		    "  turnward-bench replay --suite design --seeds 5 --json design.json\n",
};

enum kind { KIND_DESIGN, KIND_LONG, KIND_SESSIONS, KIND_FILE };
static const char *const sessions_file = "bench/traces/claude_code.jsonl";
static const char *const kind_names[] = { "design", "long", "sessions", NULL };

struct command {
	struct replay_arm base, arm[ARMS_MAX];
	size_t arms, base_index;
	const char *arm_list, *base_name, *file, *json;
	const char *follow, *recording;
	unsigned suite;
	enum kind kind;
	int form; /* enum workload_form, -1 = by content */
	struct workload_mix mix;
	const char *mix_set[SETS_MAX];
	size_t mix_sets;
	int kind_set, profile_set; /* said, not only assumed */
	struct workload_pick pick;
	uint64_t seed;
	size_t seeds;
	unsigned points;
};

static double number_of(const char *name, const char *text, double min, double max)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= min && value <= max))
		opt_fail(&program, "--%s must be %g..%g, not '%s'", name, min, max, text);
	return value;
}

static unsigned index_of(const char *what, const char *text, const char *const *words)
{
	for (unsigned i = 0; words[i]; i++)
		if (strcmp(words[i], text) == 0)
			return i;
	opt_unknown(&program, what, text, words);
}

/* "KEY=VALUE" into its halves; *ret_value points behind the '='. */
static void halves(const char *name, const char *text, char key[64], const char **ret_value)
{
	size_t len = strcspn(text, "=");

	if (!text[len] || len >= 64)
		opt_fail(&program, "--%s needs KEY=VALUE, not '%s'", name, text);
	memcpy(key, text, len);
	key[len] = 0;
	*ret_value = text + len + 1;
}

static void fail_file(const struct command *c, const char *why) __attribute__((noreturn));
static void fail_file(const struct command *c, const char *why)
{
	fprintf(stderr, "turnward-bench replay: %s: %s\n", c->file, why);
	exit(EXIT_RUNTIME);
}

static void set_base(struct command *c, const char *key, const char *value)
{
	char why[REPLAY_WHY_MAX];

	if (replay_arm_set(&c->base, key, value, why) < 0)
		opt_fail(&program, "%s", why);
}

static void set_mix(struct command *c, const char *text)
{
	const char *value;
	char key[64];

	halves("mix", text, key, &value);
#define KEY(name, standard, meaning)                           \
	if (strcmp(key, #name) == 0) {                         \
		c->mix.name = number_of("mix", value, 0, 1e9); \
		return;                                        \
	}
	WORKLOAD_MIX(KEY)
#undef KEY
	opt_fail(&program, "the mix has no '%s' (--list shows its keys)", key);
}

static void set_bandwidth(struct command *c, const char *text)
{
	double bytes = 1e9 * number_of("kv-bandwidth", text, 0.001, 10000);

	c->base.params.kv_transfer = 1;
	c->base.params.kv_transfer_bandwidth = bytes;
	c->base.pull_bandwidth = bytes;
}

static void list(void)
{
	const char *meaning, *name;
	unsigned suites;

	printf("Suites:\n");
#define ROW(id, name, text) printf("  %-22s %s\n", name, text);
	REPLAY_SUITES(ROW)
#undef ROW
	printf("Arms (any policy's or peer's name is one, too):\n");
	for (size_t i = 0; (name = replay_preset(i, &meaning, &suites)); i++)
		printf("  %-22s %s\n", name, meaning);
	printf("Keys of the world, for an arm or --set:\n");
#define ROW(name, standard, min, max, text) \
	printf("  %-22s %g: %s\n", #name, (double)standard, text);
	REPLAY_WORLD(ROW)
#undef ROW
#define ROW(id, name, text) printf("  %-22s %s\n", name, text);
	printf("  profile, peer; state, head, cache, oracle, scheduling with these words:\n");
	REPLAY_STATES(ROW)
	REPLAY_HEADS(ROW)
	REPLAY_CACHES(ROW)
	REPLAY_ORACLES(ROW)
	REPLAY_SCHEDULINGS(ROW)
#undef ROW
	printf("Keys of the mix, for --mix:\n");
#define ROW(name, standard, text) printf("  %-22s %g: %s\n", #name, (double)standard, text);
	WORKLOAD_MIX(ROW)
#undef ROW
	printf("Keys of staging and the waiting room:\n");
#define ROW(name, names, standard, text) printf("  %-22s %s: %s\n", #name, standard, text);
	STAGE_CHOICE_PARAMS(ROW)
#undef ROW
#define ROW(name, standard, min, max, kind, unit, text) \
	printf("  %-22s %g: %s, %s\n", #name, (double)standard, text, unit);
	STAGE_REAL_PARAMS(ROW)
	ADMIT_PARAMS(ROW)
#undef ROW
	printf("Keys of a policy: as in the router's configuration.\n");
}

static void take_world(struct command *c, int id, const char *value)
{
	const char *set;
	char key[64];

	switch (id) {
	case OPTION_SET:
		halves("set", value, key, &set);
		set_base(c, key, set);
		break;
	case OPTION_PROFILE:
		set_base(c, "profile", value);
		c->profile_set = 1;
		break;
	case OPTION_ENGINES:
		set_base(c, "engines", value);
		break;
	case OPTION_SLOW:
		set_base(c, "slow", value);
		break;
	case OPTION_STALL:
		set_base(c, "stall", value);
		break;
	case OPTION_RESTART:
		set_base(c, "restart_every", value);
		break;
	case OPTION_SAMPLE:
		set_base(c, "sample", value);
		break;
	case OPTION_NO_OWN:
		c->base.state = REPLAY_STATE_RECORD;
		break;
	case OPTION_BANDWIDTH:
		set_bandwidth(c, value);
		break;
	case OPTION_CAP:
		set_base(c, "long_prefill_cap", value);
		break;
	}
}

static int take_pick(struct command *c, int id, const char *value)
{
	struct workload_pick *pick = &c->pick;

	switch (id) {
	case OPTION_REQUESTS:
		pick->requests = (size_t)number_of("requests", value, 1, 1e7);
		return 1;
	case OPTION_SESSIONS:
		pick->sessions = (size_t)number_of("sessions", value, 1, 1e7);
		return 1;
	case OPTION_RATE:
		pick->rate = number_of("rate", value, 1e-3, 1e6);
		return 1;
	case OPTION_THINK:
		pick->think_s = number_of("think", value, 0, 1e6);
		return 1;
	case OPTION_TURNS:
		pick->turns_max = (uint32_t)number_of("turns", value, 1, 1e6);
		return 1;
	case OPTION_CONTEXT:
		pick->context_max = (uint32_t)number_of("context", value, 2, 1e7);
		pick->first_prompt_max = pick->context_max;
		return 1;
	case OPTION_BLOCK:
		pick->block = (uint32_t)number_of("block", value, 1, 32768);
		return 1;
	}
	return 0;
}

/* Returns whether the option is one of the workload's. */
static int take_load(struct command *c, int id, const char *value)
{
	switch (id) {
	case OPTION_WORKLOAD:
		c->kind = (enum kind)index_of("workload", value, kind_names);
		c->kind_set = 1;
		return 1;
	case OPTION_FILE:
		c->file = value;
		return 1;
	case OPTION_FORM:
		c->form = (int)index_of("form", value, workload_form_names);
		return 1;
	case OPTION_CLOSED:
		c->pick.loop = WORKLOAD_CLOSED;
		return 1;
	case OPTION_OPEN:
		c->pick.loop = WORKLOAD_OPEN;
		return 1;
	}
	return take_pick(c, id, value);
}

static void take(struct command *c, int id, const char *value)
{
	switch (id) {
	case OPTION_SUITE:
		c->suite = index_of("suite", value, replay_suite_names);
		break;
	case OPTION_ARMS:
		c->arm_list = value;
		break;
	case OPTION_BASE:
		c->base_name = value;
		break;
	case OPTION_SEEDS:
		c->seeds = (size_t)number_of("seeds", value, 1, SEEDS_MAX);
		break;
	case OPTION_SEED:
		c->seed = (uint64_t)number_of("seed", value, 0, 1e15);
		break;
	case OPTION_MIX:
		if (c->mix_sets == SETS_MAX)
			opt_fail(&program, "at most %d times --mix", SETS_MAX);
		c->mix_set[c->mix_sets++] = value;
		break;
	case OPTION_FOLLOW:
		c->follow = value;
		break;
	case OPTION_RECORDING:
		c->recording = value;
		break;
	case OPTION_LIST:
		list();
		exit(EXIT_GOOD);
	case OPTION_JSON:
		c->json = value;
		break;
	case OPTION_DETAIL:
		c->points = (unsigned)number_of("detail", value, 0, DETAIL_POINTS_MAX);
		if (c->points == 1)
			opt_fail(&program, "--detail must be 0 or at least 2");
		break;
	default:
		if (!take_load(c, id, value))
			take_world(c, id, value);
	}
}

static void add_arm(struct command *c, const char *text)
{
	char why[REPLAY_WHY_MAX];

	if (c->arms == ARMS_MAX)
		opt_fail(&program, "at most %d arms", ARMS_MAX);
	if (replay_arm_parse(&c->arm[c->arms], &c->base, text, why) < 0)
		opt_fail(&program, "%s", why);
	c->arms++;
}

static void choose_arms(struct command *c)
{
	char one[2 * REPLAY_NAME_MAX];
	const char *name, *meaning, *rest = c->arm_list;
	unsigned suites;

	while (rest && *rest) {
		size_t len = strcspn(rest, ",");

		if (len >= sizeof(one))
			opt_fail(&program, "an arm's text is too long");
		memcpy(one, rest, len);
		one[len] = 0;
		add_arm(c, one);
		rest += len + (rest[len] == ',');
	}
	for (size_t i = 0; !c->arm_list && (name = replay_preset(i, &meaning, &suites)); i++)
		if (suites >> c->suite & 1)
			add_arm(c, name);
	if (c->arms == 0)
		opt_fail(&program, "no arm is chosen");
	for (size_t i = 0; c->base_name && i <= c->arms; i++) {
		if (i == c->arms)
			opt_fail(&program, "--base %s is none of the arms", c->base_name);
		c->base_index = i;
		if (strcmp(c->arm[i].name, c->base_name) == 0)
			break;
	}
}

/* A suite that is about one load brings it along, unless another one is asked for. */
static void settle_suite(struct command *c)
{
	if (c->suite == REPLAY_SUITE_LONG && !c->arm_list && !c->kind_set && !c->file)
		c->kind = KIND_LONG;
	if (c->kind == KIND_LONG && !c->profile_set)
		set_base(c, "profile", "q14b");
}

static void settle_mix(struct command *c)
{
	const struct workload_pick *pick = &c->pick;

	if (c->kind == KIND_LONG)
		workload_mix_long(&c->mix);
	else
		workload_mix_init(&c->mix);
	for (size_t i = 0; i < c->mix_sets; i++)
		set_mix(c, c->mix_set[i]);
	if (pick->rate > 0)
		c->mix.rate = pick->rate;
	if (pick->think_s >= 0)
		c->mix.think = pick->think_s;
	if (pick->requests || pick->sessions) /* sessions alone: all turns of so many */
		c->mix.requests = pick->requests ? (double)pick->requests : INFINITY;
}

/* Which file, of which form, at which rate; how much of a generated mix. */
static void settle_load(struct command *c)
{
	enum workload_form form;
	char why[WORKLOAD_WHY_MAX];

	if (!c->file && c->kind == KIND_SESSIONS) {
		c->file = sessions_file;
		c->form = WORKLOAD_FORM_SESSIONS;
	}
	c->pick.idle = c->base.profile;
	if (!c->file) {
		if (c->form >= 0)
			opt_fail(&program, "--form says what --file is, and there is none");
		return;
	}
	c->kind = KIND_FILE;
	if (c->form < 0) {
		if (workload_form_of(c->file, &form, why) < 0)
			fail_file(c, why);
		c->form = (int)form;
	}
	if (c->form == WORKLOAD_FORM_SESSIONS && c->pick.rate == 0)
		c->pick.rate = 0.25;
}

static void command_read(struct command *c, int argc, char **argv)
{
	struct opt_scan scan;
	int id;

	memset(c, 0, sizeof(*c));
	replay_arm_init(&c->base);
	workload_pick_init(&c->pick);
	c->seed = 1;
	c->seeds = 5;
	c->points = DETAIL_POINTS;
	c->form = -1;
	opt_begin(&scan, &program, argc, argv);
	while ((id = opt_next(&scan)) != OPT_END)
		take(c, id, scan.value);
	if (scan.first < argc)
		opt_fail(&program, "'%s' is not expected", argv[scan.first]);
	if (c->recording && !c->follow)
		opt_fail(&program, "--recording goes with --follow");
	if (c->follow && c->file)
		opt_fail(&program, "--follow plays the live run's requests, not --file");
	if (c->follow && !c->recording && !c->arm_list)
		opt_fail(&program, "--follow needs the live run's policy: --arms or --recording");
	settle_suite(c);
	settle_mix(c);
	if (c->suite == REPLAY_SUITE_TARGETS && !c->arm_list) {
		if (c->form >= 0 || c->pick.rate != 0)
			opt_fail(&program, "targets are played on the mix and on sessions as they "
					   "are");
		return;
	}
	settle_load(c);
	if (!c->follow || c->arm_list)
		choose_arms(c);
}

static int workload_make(struct workload *ret, const struct command *c, uint64_t seed,
			 char why[WORKLOAD_WHY_MAX])
{
	struct workload_pick pick = c->pick;

	pick.seed = seed;
	if (c->kind == KIND_FILE)
		return workload_read(ret, c->file, (enum workload_form)c->form, &pick, why);
	return workload_generate(ret, &c->mix, &pick);
}

static void progress(const struct command *c, size_t seed, size_t arm, uint64_t since_ns)
{
	static uint64_t said_ns;
	uint64_t now_ns = clock_ns();
	int tty = isatty(STDERR_FILENO);

	said_ns = said_ns ? said_ns : since_ns;
	if (now_ns - said_ns < (tty ? 100000000ull : 5ull * NS_PER_S))
		return;
	said_ns = now_ns;
	fprintf(stderr, "%sreplay: seed %zu of %zu, arm %zu of %zu (%s), %.0f s%s",
		tty ? "\r\033[K" : "", seed + 1, c->seeds, arm + 1, c->arms, c->arm[arm].name,
		(double)(now_ns - since_ns) * 1e-9, tty ? "" : "\n");
}

static void targets_progress(size_t done, size_t of, const char *arm)
{
	if (isatty(STDERR_FILENO))
		fprintf(stderr, "\r\033[Kreplay: play %zu of %zu (%s)%s", done + 1, of, arm,
			done + 1 < of ? "" : "\r\033[K");
	else if (done % 20 == 0)
		fprintf(stderr, "replay: play %zu of %zu (%s)\n", done + 1, of, arm);
}

static int examine(const struct command *c)
{
	struct replay_targets_play play = { .base = &c->base,
					    .seed = c->seed,
					    .seeds = c->seeds,
					    .requests = c->pick.requests,
					    .sessions = c->file ? c->file : sessions_file,
					    .json = c->json,
					    .progress = targets_progress };

	return replay_targets(&play);
}

static int play_seed(const struct command *c, size_t seed, struct replay_table *t, double *figure,
		     uint64_t since_ns, char why[WORKLOAD_WHY_MAX])
{
	struct workload w;
	int err = workload_make(&w, c, c->seed + seed, why);

	if (err && c->file)
		fail_file(c, why);
	t->requests = seed ? t->requests : w.turns;
	for (size_t i = 0; i < c->arms && !err; i++) {
		struct replay_run run;

		progress(c, seed, i, since_ns);
		err = replay_detail_play(t->detail, i, &run, &c->arm[i], &w, c->seed + seed);
		if (!err)
			err = replay_figures(&run, &c->arm[i], &w,
					     figure + (i * c->seeds + seed) * REPLAY_FIGURES_NR);
		else
			snprintf(why, WORKLOAD_WHY_MAX, "arm %s: %s", c->arm[i].name,
				 err == -E2BIG ? "a prompt fits into no engine" : strerror(-err));
		replay_run_free(&run);
	}
	workload_free(&w);
	return err;
}

static int report(const struct command *c, const struct replay_table *t)
{
	int err = 0;

	if (!c->json || strcmp(c->json, "-") != 0)
		replay_report_print(t);
	if (c->json)
		err = replay_report_json(t, c->json);
	if (err)
		fprintf(stderr, "turnward-bench replay: %s: %s\n", c->json, strerror(-err));
	return err ? EXIT_RUNTIME : EXIT_GOOD;
}

static int follow(const struct command *c)
{
	struct follow_command followed = { .trace = c->follow,
					   .recording = c->recording,
					   .json = c->json,
					   .base = &c->base,
					   .arm = c->arm,
					   .arms = c->arms,
					   .seed = c->seed };

	return follow_run(&followed);
}

int bench_replay(int argc, char **argv)
{
	static struct command c;
	char why[WORKLOAD_WHY_MAX] = "out of memory";
	uint64_t since_ns = clock_ns();
	int err = 0;

	command_read(&c, argc, argv);
	if (c.follow)
		return follow(&c);
	if (c.suite == REPLAY_SUITE_TARGETS && !c.arm_list)
		return examine(&c);
	scoped(free_drop) double *figure =
		calloc(c.arms * c.seeds * REPLAY_FIGURES_NR, sizeof(*figure));
	struct replay_table t = { .arm = c.arm,
				  .arms = c.arms,
				  .seeds = c.seeds,
				  .base = c.base_index,
				  .figure = figure,
				  .workload = c.file ? c.file : kind_names[c.kind],
				  .seed = c.seed,
				  .argc = argc,
				  .argv = argv };

	if (c.json)
		err = replay_detail_new(&t.detail, c.arms, c.points);
	for (size_t i = 0; i < c.seeds && !err; i++)
		err = figure ? play_seed(&c, i, &t, figure, since_ns, why) : -ENOMEM;
	if (isatty(STDERR_FILENO))
		fputs("\r\033[K", stderr);
	if (err) {
		fprintf(stderr, "turnward-bench replay: %s\n", why);
		replay_detail_free(t.detail);
		return EXIT_RUNTIME;
	}
	int code = report(&c, &t);

	replay_detail_free(t.detail);
	return code;
}
