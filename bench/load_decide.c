/* turnward-bench decide: what a decision costs and what reading shared memory adds to it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/load.h"
#include "bench/load_decide.h"
#include "shm/base/exit.h"
#include "shm/base/opt.h"

enum { SAMPLES = 1000, TURN = 20, STOPS = 200 };

/* X(ID, name, value, help) */
#define DECIDE_OPTIONS(X)                                         \
	X(SECONDS, "seconds", "S", "beside a running writer (2)") \
	X(SAMPLES, "samples", "N", "of each part (1000)")         \
	X(JSON, "json", "FILE", "write JSON there; - is stdout")
#define OPTION_ENUM(id, name, value, help) OPTION_##id,
enum { OPTION_NONE, DECIDE_OPTIONS(OPTION_ENUM) };
#define OPTION_ROW(id_, name_, value_, help_) \
	{ .name = name_, .value = value_, .help = help_, .id = OPTION_##id_ },
static const struct opt options[] = { DECIDE_OPTIONS(OPTION_ROW){ 0 } };

static const struct opt_program program = {
	.name = "turnward-bench decide",
	.operands = "[options]",
	.purpose = "Times a decision among eight engines, and reads beside a writer.",
	.options = options,
	.examples = "  turnward-bench decide\n",
};

#define PART_NAME(id, name, op, cold) name,
static const char *const part_names[] = { DECIDE_PARTS(PART_NAME) };

static struct told {
	double p50_ns[DECIDE_PARTS_NR], p99_ns[DECIDE_PARTS_NR];
	struct decide_shared fast, steady, stopped;
} told;

static const struct {
	const char *name;
	struct decide_shared *of;
} shared[] = { { "reads beside a writer that never pauses", &told.fast },
	       { "reads beside a writer at 1 kHz", &told.steady },
	       { "reads of a writer stopped anywhere", &told.stopped } };

enum { SHARED = sizeof(shared) / sizeof(shared[0]) };

static double part_ratio(enum decide_part of, enum decide_part over)
{
	return told.p50_ns[over] > 0 ? told.p50_ns[of] / told.p50_ns[over] : NAN;
}

unsigned load_decide_targets(struct load_target *t)
{
	unsigned n = 0;
	uint64_t torn = 0;

	for (int i = 0; i < SHARED; i++)
		torn += shared[i].of->torn;
	t[n++] = load_target_of("decision, cold, p50, us", told.p50_ns[DECIDE_WHOLE_COLD] / 1e3, 5,
				false);
	t[n++] = load_target_of("decision, cold, p99, us", told.p99_ns[DECIDE_WHOLE_COLD] / 1e3, 15,
				false);
	t[n++] = load_target_of("decision without prefix / plain cold read of 8",
				part_ratio(DECIDE_BARE_COLD, DECIDE_COPY_COLD), 2, false);
	t[n++] = load_target_of("slot read / copy, warm",
				part_ratio(DECIDE_SLOT_WARM, DECIDE_COPY_WARM), 1.5, false);
	t[n++] = load_target_of("slot read / copy, cold",
				part_ratio(DECIDE_SLOT_COLD, DECIDE_COPY_COLD), 1.2, false);
	t[n++] = load_target_of("torn reads", (double)torn, 0, false);
	t[n++] = load_target_of("reads of a stopped writer that gave up",
				(double)told.stopped.gave_up, 0, false);
	return n;
}

void load_decide_print(void)
{
	printf("\n%-52s %10s %10s\n", "eight engines, one process", "p50 ns", "p99 ns");
	for (int i = 0; i < DECIDE_PARTS_NR; i++)
		printf("%-52s %10.1f %10.1f\n", part_names[i], told.p50_ns[i], told.p99_ns[i]);
	printf("\n%-40s %10s %6s %8s %10s %10s %10s %10s\n", "two processes, two cores", "reads",
	       "torn", "gave up", "overtaken", "published", "p50 ns", "p99.9 ns");
	for (int i = 0; i < SHARED; i++) {
		const struct decide_shared *s = shared[i].of;

		printf("%-40s %10llu %6llu %8llu %10llu %10llu %10.0f %10.0f\n", shared[i].name,
		       (unsigned long long)s->reads, (unsigned long long)s->torn,
		       (unsigned long long)s->gave_up, (unsigned long long)s->overtaken,
		       (unsigned long long)s->publications, hist_quantile(&s->ns, 0.5),
		       hist_quantile(&s->ns, 0.999));
	}
}

void load_decide_json(struct json *j)
{
	json_array_begin(j, "arms");
	for (int i = 0; i < DECIDE_PARTS_NR; i++) {
		json_object_begin(j, NULL);
		json_str(j, "name", part_names[i]);
		json_num(j, "p50_ns", told.p50_ns[i], 6);
		json_num(j, "p99_ns", told.p99_ns[i], 6);
		json_object_end(j);
	}
	json_array_end(j);
	json_array_begin(j, "readers");
	for (int i = 0; i < SHARED; i++) {
		const struct decide_shared *s = shared[i].of;

		json_object_begin(j, NULL);
		json_str(j, "name", shared[i].name);
		json_u64(j, "reads", s->reads);
		json_u64(j, "torn", s->torn);
		json_u64(j, "gave_up", s->gave_up);
		json_u64(j, "overtaken", s->overtaken);
		json_u64(j, "publications", s->publications);
		json_num(j, "p50_ns", hist_quantile(&s->ns, 0.5), 6);
		json_num(j, "p999_ns", hist_quantile(&s->ns, 0.999), 6);
		json_object_end(j);
	}
	json_array_end(j);
}

static void print(const struct load_target *targets, unsigned n)
{
	load_machine_print();
	load_decide_print();
	load_targets_print(targets, n);
}

static int json(const char *path, const struct load_target *targets, unsigned n)
{
	static struct load_document doc;
	int err = load_document_begin(&doc, path, "decide");

	if (err)
		return err;
	load_decide_json(&doc.json);
	load_targets_json(&doc.json, targets, n);
	return load_document_end(&doc);
}

int load_decide_run(unsigned samples, double seconds)
{
	static struct decide d;
	static struct hist ns[DECIDE_PARTS_NR];
	char dir[] = "/dev/shm/turnward-decide-XXXXXX";

	if (!mkdtemp(dir))
		return -errno;
	int err = decide_init(&d, dir);
	for (int i = 0; i < DECIDE_PARTS_NR; i++)
		hist_reset(&ns[i]);
	/* By turns: what else the machine does falls on all alike. */
	for (unsigned left = samples, some; left && !err; left -= some) {
		some = left < TURN ? left : TURN;
		for (int i = 0; i < DECIDE_PARTS_NR; i++)
			decide_time(&d, (enum decide_part)i, some, &ns[i]);
	}
	for (int i = 0; i < DECIDE_PARTS_NR; i++) {
		told.p50_ns[i] = hist_quantile(&ns[i], 0.5);
		told.p99_ns[i] = hist_quantile(&ns[i], 0.99);
	}
	if (!err)
		err = decide_beside(&d, 0, seconds, &told.fast);
	if (!err)
		err = decide_beside(&d, 1000, seconds, &told.steady);
	if (!err)
		err = decide_stopped(&d, STOPS, &told.stopped);
	decide_fini(&d);
	load_remove(dir);
	return err;
}

static double number_of(const char *name, const char *text, double min, double max)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= min && value <= max))
		opt_fail(&program, "--%s must be %g..%g, not '%s'", name, min, max, text);
	return value;
}

int bench_decide(int argc, char **argv)
{
	struct load_target targets[LOAD_TARGETS_MAX];
	const char *path = NULL;
	unsigned samples = SAMPLES;
	double seconds = 2;
	struct opt_scan scan;
	int id;

	opt_begin(&scan, &program, argc, argv);
	while ((id = opt_next(&scan)) != OPT_END) {
		if (id == OPTION_SECONDS)
			seconds = number_of("seconds", scan.value, 0.01, 600);
		else if (id == OPTION_SAMPLES)
			samples = (unsigned)number_of("samples", scan.value, 1, 1e7);
		else
			path = scan.value;
	}
	if (scan.first < argc)
		opt_fail(&program, "'%s' is not expected", argv[scan.first]);
	load_pin(load_core_own());
	int err = load_decide_run(samples, seconds);
	unsigned n = load_decide_targets(targets);
	if (!err && (!path || strcmp(path, "-") != 0))
		print(targets, n);
	if (!err && path)
		err = json(path, targets, n);
	if (err)
		fprintf(stderr, "turnward-bench decide: %s\n", strerror(-err));
	return err ? EXIT_RUNTIME : EXIT_GOOD;
}
