/* turnward-bench live: agentic sessions, closed-loop, against a running router; see live.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/compare.h"
#include "bench/live.h"
#include "shm/base/exit.h"
#include "shm/base/opt.h"

/* X(id, name, value, help) */
#define LIVE_OPTIONS(X)                                                                         \
	X(ROUTER, "router", "A:P", "where to send requests (127.0.0.1:8080)")                   \
	X(ADMIN, "admin", "A:P", "the router's admin listener, or unix:PATH: its counters")     \
	X(LATENESS, "lateness", "URL", "a modelled engine to ask; may be repeated (agents')")   \
	X(SESSIONS, "sessions", "FILE", "see traces/README.md (traces/claude_code.jsonl)")      \
	X(LIMIT, "limit", "N", "sessions to play (all of the file, each once)")                 \
	X(RATE, "rate", "R", "new sessions per model second (0.25); 0: all at once")            \
	X(SPEED, "speed", "X", "what the engines were started with (1)")                        \
	X(SEED, "seed", "N", "of order and arrival times (1)")                                  \
	X(THINK_MAX, "think-max", "S", "longest think time, model seconds (60)")                \
	X(TURNS, "turns", "N", "of a session at most (12)")                                     \
	X(REQUESTS, "requests", "N", "begin no more than N (no bound)")                         \
	X(MODEL, "model", "NAME", "to ask for (the first of /v1/models)")                       \
	X(NO_ID, "no-session-id", NULL, "send no x-session-id")                                 \
	X(LONG_FIRST, "long-first", NULL, "sessions that take long arrive first: no idle tail") \
	X(MEASURE, "measure", "S", "stop after S wall seconds: shows whether the speed holds")  \
	X(API, "api", "NAME", "chat, messages or responses (chat)")                             \
	X(COMPARE, "compare", "WHAT", "staging or routers, each with a world of its own")       \
	X(PAIRS, "pairs", "N", "of --compare: each arm N times, in turn (5)")                   \
	X(ARMS, "arms", "A[,B]...", "of --compare: those of its arms")                          \
	X(WORKLOAD, "workload", "NAME", "of --compare: design, sessions (both)")                \
	X(QUICK, "quick", NULL, "of --compare: one pair, 250 requests: shows that it works")    \
	X(SET, "set", "KEY=VALUE", "of --compare: for turnward's routers, all arms")            \
	X(PEERS, "peers", "DIR", "of --compare: configurations of peers (bench/peers)")         \
	X(VERIFY, "verify-model", NULL, "one engine: compare with the model's virtual time")    \
	X(TRACE, "trace", "FILE", "what was asked, when, where it went: for replay --follow")   \
	X(IO, "io", "LOOP", "auto, uring, epoll (auto)")                                        \
	X(JSON, "json", "FILE", "write JSON there; - is stdout")
#define OPTION_ENUM(id, name, value, help) OPTION_##id,
enum { OPTION_NONE, LIVE_OPTIONS(OPTION_ENUM) };
#define OPTION_ROW(id_, name_, value_, help_) \
	{ .name = name_, .value = value_, .help = help_, .id = OPTION_##id_ },
static const struct opt options[] = { LIVE_OPTIONS(OPTION_ROW){ 0 } };

static const struct opt_program program = {
	.name = "turnward-bench live",
	.operands = "[options]",
	.purpose = "Plays agentic sessions, turn after turn, against a running router.",
	.options = options,
	.examples = "  turnward-bench live --router 127.0.0.1:8080 --speed 10 --limit 40\n"
		    "  turnward-bench live --compare staging --json staging.json\n",
};

enum { QUICK_REQUESTS = 250 };

struct command {
	struct live_options live;
	struct compare_options compare;
	const char *arms; /* of the comparison; NULL = its own choice */
	bool compares;
};

static double number_of(const char *name, const char *text, double min, double max)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= min && value <= max))
		opt_fail(&program, "--%s must be %g..%g, not '%s'", name, min, max, text);
	return value;
}

static struct addr addr_of(const char *name, const char *text)
{
	char why[ADDR_WHY_MAX];
	struct addr addr;

	if (addr_parse(&addr, text, why) < 0)
		opt_fail(&program, "--%s %s: %s", name, text, why);
	return addr;
}

static void engine_add(struct live_options *o, const char *text)
{
	struct addr_engine at;
	char why[ADDR_WHY_MAX];

	if (o->engines == LIVE_ENGINES_MAX)
		opt_fail(&program, "at most %d engines", LIVE_ENGINES_MAX);
	if (addr_engine_parse(&at, text, why) < 0)
		opt_fail(&program, "--lateness %s: %s", text, why);
	o->engine[o->engines++] = at.addr;
}

static const char *const loops[] = { "auto", "uring", "epoll", NULL };

static unsigned index_of(const char *what, const char *text, const char *const *names)
{
	for (unsigned i = 0; names[i]; i++)
		if (strcmp(text, names[i]) == 0)
			return i;
	opt_unknown(&program, what, text, names);
}

/* Returns whether the option is one of the comparison's. */
static bool option_compare(struct command *c, int id, const char *value)
{
	struct compare_options *o = &c->compare;

	switch (id) {
	case OPTION_COMPARE:
		o->kind = (enum compare_kind_id)index_of("comparison", value, compare_kind_names);
		c->compares = true;
		return true;
	case OPTION_PAIRS:
		o->rounds = (unsigned)number_of("pairs", value, 1, COMPARE_ROUNDS_MAX);
		return true;
	case OPTION_ARMS:
		c->arms = value;
		return true;
	case OPTION_WORKLOAD:
		o->load[index_of("workload", value, compare_load_names)] = true;
		return true;
	case OPTION_QUICK:
		o->rounds = 1;
		c->live.requests_max = QUICK_REQUESTS;
		return true;
	case OPTION_SET:
		if (o->sets == COMPARE_SETS_MAX)
			opt_fail(&program, "at most %d times --set", COMPARE_SETS_MAX);
		o->set[o->sets++] = value;
		return true;
	case OPTION_PEERS:
		o->peers = value;
		return true;
	}
	return false;
}

static void option_take(struct live_options *o, int id, const char *value)
{
	switch (id) {
	case OPTION_ROUTER:
		o->router = addr_of("router", value);
		break;
	case OPTION_ADMIN:
		o->admin = addr_of("admin", value);
		o->has_admin = true;
		break;
	case OPTION_LATENESS:
		engine_add(o, value);
		break;
	case OPTION_SESSIONS:
		o->path = value;
		break;
	case OPTION_LIMIT:
		o->sessions_max = (size_t)number_of("limit", value, 1, 1e5);
		break;
	case OPTION_RATE:
		o->rate = number_of("rate", value, 0, 1e6);
		break;
	case OPTION_SPEED:
		o->speed = number_of("speed", value, 0.01, 1000);
		break;
	case OPTION_SEED:
		o->seed = (uint64_t)number_of("seed", value, 0, 1e15);
		break;
	case OPTION_THINK_MAX:
		o->limits.think_max_s = number_of("think-max", value, 0, 1e6);
		break;
	case OPTION_TURNS:
		o->limits.turns_max = (uint32_t)number_of("turns", value, 1, 1e6);
		break;
	case OPTION_REQUESTS:
		o->requests_max = (size_t)number_of("requests", value, 1, 1e9);
		break;
	case OPTION_MODEL:
		if (strlen(value) >= sizeof(o->model) || strpbrk(value, "\"\\"))
			opt_fail(&program, "--model '%s' is no name of a model", value);
		snprintf(o->model, sizeof(o->model), "%s", value);
		break;
	case OPTION_NO_ID:
		o->session_header = false;
		break;
	case OPTION_LONG_FIRST:
		o->long_first = true;
		break;
	case OPTION_MEASURE:
		o->measure_s = number_of("measure", value, 0.1, 1e6);
		break;
	case OPTION_VERIFY:
		o->verify_model = true;
		break;
	case OPTION_TRACE:
		o->trace = value;
		break;
	case OPTION_API:
		o->api = (enum live_api)index_of("API", value, live_api_names);
		break;
	case OPTION_IO:
		o->io = (enum loop_kind)index_of("loop", value, loops);
		break;
	case OPTION_JSON:
		o->json = value;
		break;
	}
}

/* What a comparison chooses by itself differs from what one run does. */
static void options_settle(struct command *c)
{
	struct live_options *o = &c->live;
	bool any = false;

	for (int load = 0; load < COMPARE_LOADS_NR; load++)
		any |= c->compare.load[load];
	for (int load = 0; load < COMPARE_LOADS_NR && !any; load++)
		c->compare.load[load] = true;
	const char *unknown = compare_arms_choose(&c->compare, c->arms);
	if (unknown)
		opt_fail(&program, "--arms: %s is none of this comparison's", unknown);
	if (o->trace && (c->compares || o->api != LIVE_API_chat))
		opt_fail(&program, "--trace is of one run, of chat completions");
	if (c->compares)
		return;
	o->rate = o->rate < 0 ? 0.25 : o->rate;
	o->speed = o->speed > 0 ? o->speed : 1;
}

static void options_read(struct command *c, int argc, char **argv)
{
	struct live_options *o = &c->live;
	struct opt_scan scan;
	int id;

	*c = (struct command){ .compare.rounds = COMPARE_ROUNDS };
	*o = (struct live_options){
		.session_header = true,
		.path = "bench/traces/claude_code.jsonl",
		.limits = { .first_prompt_max = 40000,
			    .turns_max = 12,
			    .context_max = 120000,
			    .think_max_s = 60 },
		.requests_max = SIZE_MAX,
		.rate = -1, /* as chosen in options_settle() */
		.seed = 1,
	};
	o->router = addr_of("router", "127.0.0.1:8080");
	opt_begin(&scan, &program, argc, argv);
	while ((id = opt_next(&scan)) != OPT_END)
		if (!option_compare(c, id, scan.value))
			option_take(o, id, scan.value);
	if (scan.first < argc)
		opt_fail(&program, "'%s' is not expected", argv[scan.first]);
	options_settle(c);
}

static int fail(const char *what, const char *why)
{
	fprintf(stderr, "turnward-bench live: %s: %s\n", what, why);
	return EXIT_RUNTIME;
}

static int report(struct live_run *run, const struct live_outside *out)
{
	const struct live_options *o = run->options;
	struct policy_params params;
	int err = 0;

	policy_params_init(&params);
	for (size_t i = 0; i < run->requests; i++)
		live_classify(&run->request[i], &params);
	if (!o->json || strcmp(o->json, "-") != 0)
		live_report_print(run, out);
	if (o->json)
		err = live_report_json(run, out, o->json);
	if (err)
		return fail(o->json, strerror(-err));
	return run->failed || run->abandoned || run->interrupted ? EXIT_RUNTIME : EXIT_GOOD;
}

static int play(const struct live_options *o, struct live_run *run)
{
	struct live_outside out;

	if (live_outside_begin(o, &out) < 0)
		return fail("an engine", "GET /turnward/lateness was not answered");
	int err = live_play(run, live_progress_print);
	if (err)
		return fail(o->trace ? "event loop or trace" : "event loop", strerror(-err));
	if (run->trace_unlike)
		fprintf(stderr,
			"turnward-bench live: %zu requests' engines counted other tokens than the "
			"trace has\n",
			run->trace_unlike);
	if (run->trace_unnamed)
		fprintf(stderr,
			"turnward-bench live: %zu requests' engines are not in the trace: the "
			"router names them with debug_headers = yes\n",
			run->trace_unnamed);
	live_outside_end(o, &out);
	int code = report(run, &out);
	if (o->verify_model && live_verify(run) < 0)
		code = EXIT_RUNTIME;
	return code;
}

int bench_live(int argc, char **argv)
{
	static struct command c;
	struct live_options *o = &c.live;
	struct live_run run = { .options = o };
	char why[SESSIONS_WHY_MAX];

	options_read(&c, argc, argv);
	if (c.compares)
		return compare_run(&c.compare, o);
	if (sessions_read(&run.sessions, o->path, &o->limits, why) < 0) {
		sessions_free(&run.sessions);
		return fail(o->path, why);
	}
	if (o->engines == 0)
		live_find_engines(o);
	int code = !o->model[0] && live_find_model(o) < 0
			   ? fail("router", "GET /v1/models was not answered with a model")
			   : play(o, &run);
	for (size_t i = 0; i < run.requests; i++)
		free(run.request[i].ids);
	free(run.request);
	sessions_free(&run.sessions);
	return code;
}
