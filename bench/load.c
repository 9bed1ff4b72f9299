/* turnward-bench http, stream, body, idle, isolation, peers: command lines and rounds; load.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "bench/load.h"
#include "bench/load_scan.h"
#include "shm/base/exit.h"
#include "shm/base/opt.h"
#include "shm/region.h"

enum { ROUNDS = 5, SLOW_ROUNDS = 3 };

/* X(ID, name, value, help) */
#define LOAD_OPTIONS(X)                                                                         \
	X(ARMS, "arms", "A[,B]...", "of those below (direct, relay, turnward, haproxy, nginx)") \
	X(ROUNDS, "rounds", "N", "A B C A B C ...; medians of N (5)")                           \
	X(SECONDS, "seconds", "S", "of one measurement (2)")                                    \
	X(QUICK, "quick", NULL, "short measurements, memory in one round")                      \
	X(STREAMS, "streams", "N", "open no more than N (9000)")                                \
	X(URGENT, "urgent", NULL, "go before other work of this machine")                       \
	X(PEERS, "peers", "DIR", "configurations of peers (bench/peers)")                       \
	X(BEFORE, "before", "FILE", "an earlier turnward-router, beside ours")                  \
	X(JSON, "json", "FILE", "write JSON there; - is stdout")
#define OPTION_ENUM(id, name, value, help) OPTION_##id,
enum { OPTION_NONE, LOAD_OPTIONS(OPTION_ENUM) };
#define OPTION_ROW(id_, name_, value_, help_) \
	{ .name = name_, .value = value_, .help = help_, .id = OPTION_##id_ },
static const struct opt options[] = { LOAD_OPTIONS(OPTION_ROW){ 0 } };

#define ARM_NAME(id, name, family, program, detail) name,
static const char *const arm_names[] = { LOAD_ARMS(ARM_NAME) NULL };
#define ARM_LINE(id, name, family, program, detail) "  " name "\n"
#define CELL_NAME(id, name, title)                  name,
static const char *const cell_names[] = { LOAD_CELLS(CELL_NAME) NULL };

static struct opt_program program = {
	.operands = "[options]",
	.purpose = "Measures turnward beside a byte relay, no router, and its peers.",
	.options = options,
	.examples = LOAD_ARMS(ARM_LINE),
};

static double number_of(const char *name, const char *text, double min, double max)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= min && value <= max))
		opt_fail(&program, "--%s must be %g..%g, not '%s'", name, min, max, text);
	return value;
}

static void arms_read(struct load_options *o, const char *list)
{
	memset(o->arm, 0, sizeof(o->arm));
	while (*list) {
		size_t len = strcspn(list, ",");
		char word[64];
		bool known = false;

		snprintf(word, sizeof(word), "%.*s", (int)len, list);
		for (int a = 0; a < LOAD_ARMS_NR; a++) {
			/* "turnward" means both loops, "vllm-router" both policies. */
			size_t n = strlen(word);
			bool hit = strncmp(arm_names[a], word, n) == 0 &&
				   strchr("-:", arm_names[a][n]) != NULL;

			o->arm[a] |= hit;
			known |= hit;
		}
		if (!known)
			opt_unknown(&program, "arm", word, arm_names);
		list += len + (list[len] == ',');
	}
	o->arm[LOAD_ARM_DIRECT] = o->arm[LOAD_ARM_RELAY] = true;
}

static void option_take(struct load_options *o, int id, const char *value)
{
	switch (id) {
	case OPTION_ARMS:
		arms_read(o, value);
		break;
	case OPTION_ROUNDS:
		o->rounds = (unsigned)number_of("rounds", value, 1, LOAD_ROUNDS_MAX);
		break;
	case OPTION_SECONDS:
		o->seconds = number_of("seconds", value, 0.05, 600);
		break;
	case OPTION_QUICK:
		o->seconds = 0.6;
		o->slow_rounds = 1;
		break;
	case OPTION_STREAMS:
		o->streams_max = (unsigned)number_of("streams", value, 8, 9000);
		break;
	case OPTION_URGENT:
		load_urgent();
		break;
	case OPTION_PEERS:
		o->peers = value;
		break;
	case OPTION_BEFORE:
		o->before = value;
		break;
	case OPTION_JSON:
		o->json = value;
		break;
	}
}

static void options_read(struct load_options *o, const char *command, int argc, char **argv)
{
	static char name[64];
	bool all = strcmp(command, "peers") == 0;
	struct opt_scan scan;
	int id;

	snprintf(name, sizeof(name), "turnward-bench %s", command);
	program.name = name;
	*o = (struct load_options){ .command = command,
				    .rounds = ROUNDS,
				    .slow_rounds = SLOW_ROUNDS,
				    .seconds = 2,
				    .streams_max = 9000 };
	for (int c = 0; c < LOAD_CELLS_NR; c++)
		o->cell[c] = all || strcmp(cell_names[c], command) == 0;
	for (int a = 0; a < LOAD_ARMS_NR; a++)
		o->arm[a] = all || a <= LOAD_ARM_NGINX;
	opt_begin(&scan, &program, argc, argv);
	while ((id = opt_next(&scan)) != OPT_END)
		option_take(o, id, scan.value);
	if (scan.first < argc)
		opt_fail(&program, "'%s' is not expected", argv[scan.first]);
	if (o->before && access(o->before, X_OK) < 0)
		opt_fail(&program, "--before: %s: %s", o->before, strerror(errno));
	/* Each loop of ours that runs has its predecessor beside it. */
	o->arm[LOAD_ARM_BEFORE_URING] = o->before && o->arm[LOAD_ARM_URING];
	o->arm[LOAD_ARM_BEFORE_EPOLL] = o->before && o->arm[LOAD_ARM_EPOLL];
}

static bool slow(int cell)
{
	return cell == LOAD_CELL_IDLE || cell == LOAD_CELL_ISOLATION;
}

/* Starts the arm anew, runs those of the cells, ends it. */
static void turn(struct load_run *run, enum load_arm_id id, const bool cells[LOAD_CELLS_NR])
{
	bool any = false;

	for (int cell = 0; cell < LOAD_CELLS_NR; cell++)
		any |= cells[cell];
	if (!any)
		return;
	if (load_arm_start(&run->place, id) < 0) {
		fprintf(stderr, "%s did not start: %s\n", arm_names[id], run->place.arm[id].why);
		return;
	}
	for (int cell = 0; cell < LOAD_CELLS_NR; cell++)
		if (cells[cell] && !load_interrupted())
			load_cell_run(run, id, (enum load_cell)cell);
	load_arm_stop(&run->place, id);
}

/* What grows a process, or leaves work behind, has a process of its own. */
static void turns(struct load_run *run, enum load_arm_id id)
{
	const struct load_options *o = run->options;
	bool together[LOAD_CELLS_NR] = { 0 };

	fprintf(stderr, "round %u of %u: %s\n", run->round + 1, o->rounds, arm_names[id]);
	for (int cell = 0; cell < LOAD_CELLS_NR; cell++) {
		bool alone[LOAD_CELLS_NR] = { 0 };

		together[cell] = o->cell[cell] && !slow(cell);
		alone[cell] = o->cell[cell] && slow(cell) && run->round < o->slow_rounds;
		turn(run, id, alone);
	}
	turn(run, id, together);
}

static void rounds(struct load_run *run)
{
	for (int a = 0; a < LOAD_ARMS_NR; a++) {
		run->place.arm[a].wanted = run->options->arm[a];
		for (int f = 0; f < LOAD_FIGURES_NR; f++)
			for (int r = 0; r < LOAD_ROUNDS_MAX; r++)
				run->value[a][f][r] = NAN;
	}
	if (run->options->cell[LOAD_CELL_BODY])
		run->scan_mb_us = load_scan_mb_us();
	for (run->round = 0; run->round < run->options->rounds; run->round++)
		for (int a = 0; a < LOAD_ARMS_NR; a++)
			if (run->options->arm[a] && !load_interrupted())
				turns(run, (enum load_arm_id)a);
}

static int fail(const char *what, int err)
{
	fprintf(stderr, "%s: %s: %s\n", program.name, what, strerror(-err));
	return EXIT_RUNTIME;
}

static int json(const struct load_run *run, const struct load_target *targets, unsigned n, bool all)
{
	static struct load_document doc;
	int err = load_document_begin(&doc, run->options->json, run->options->command);

	if (err)
		return err;
	load_json(&doc.json, run);
	load_targets_json(&doc.json, targets, n);
	if (all) {
		json_object_begin(&doc.json, "decide");
		load_decide_json(&doc.json);
		json_object_end(&doc.json);
		json_object_begin(&doc.json, "agents");
		load_agents_json(&doc.json);
		json_object_end(&doc.json);
	}
	return load_document_end(&doc);
}

static void print(const struct load_run *run, const struct load_target *targets, unsigned n,
		  bool all)
{
	load_machine_print();
	load_print(run);
	if (all) {
		load_decide_print();
		load_agents_print();
	}
	load_targets_print(targets, n);
}

/* What of `peers` needs no arm. */
static unsigned others(const struct load_options *o, struct load_target *ret_targets)
{
	char error[REGION_ERROR_MAX] = "";
	int err = load_decide_run(o->seconds < 1 ? 300 : 1000, o->seconds);

	if (err)
		fprintf(stderr, "decide: %s\n", strerror(-err));
	err = load_agents_run("vllm", 2 * o->seconds, error);
	if (err)
		fprintf(stderr, "agents: %s\n", error[0] ? error : strerror(-err));
	unsigned n = load_decide_targets(ret_targets);
	return n + load_agents_targets(ret_targets + n);
}

static int load_command(const char *command, int argc, char **argv)
{
	static struct load_run run;
	struct load_target targets[LOAD_TARGETS_MAX];
	struct load_options o;

	options_read(&o, command, argc, argv);
	run.options = &o;
	load_descriptors();
	int err = load_sink_start(&run.sink);
	if (err)
		return fail("engines", err);
	load_pin(load_core_own());
	err = load_place_init(&run.place, &run.sink, o.peers, o.before);
	if (err) {
		load_sink_stop(&run.sink);
		return fail("bench/peers", err);
	}
	load_interrupt_catch();
	rounds(&run);
	load_sink_stop(&run.sink);
	load_place_fini(&run.place);
	if (load_interrupted())
		return EXIT_RUNTIME;
	bool all = strcmp(command, "peers") == 0;
	unsigned n = load_targets(&run, targets);
	if (all)
		n += others(&o, targets + n);
	if (!o.json || strcmp(o.json, "-") != 0)
		print(&run, targets, n, all);
	if (o.json && (err = json(&run, targets, n, all)) < 0)
		return fail(o.json, err);
	return EXIT_GOOD;
}

#define LOAD_COMMAND(word)                              \
	int bench_##word(int argc, char **argv)         \
	{                                               \
		return load_command(#word, argc, argv); \
	}
LOAD_COMMAND(http)
LOAD_COMMAND(stream)
LOAD_COMMAND(body)
LOAD_COMMAND(idle)
LOAD_COMMAND(isolation)
LOAD_COMMAND(peers)
