/* turnward-bench agents: what eight agents cost, and how old what they publish is when read. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/ask.h"
#include "bench/bench.h"
#include "bench/load.h"
#include "shm/base/clock.h"
#include "shm/base/exit.h"
#include "shm/base/opt.h"
#include "shm/files.h"

enum { READY_S = 20, WORDS = 24, WORD_BYTES = 256, READ_EVERY_US = 1000 };

/* X(ID, name, value, help) */
#define AGENTS_OPTIONS(X)                                                        \
	X(SECONDS, "seconds", "S", "of one measurement (5)")                     \
	X(HEAD, "head", "KIND", "of the engines: vllm, sglang, llamacpp (vllm)") \
	X(JSON, "json", "FILE", "write JSON there; - is stdout")
#define OPTION_ENUM(id, name, value, help) OPTION_##id,
enum { OPTION_NONE, AGENTS_OPTIONS(OPTION_ENUM) };
#define OPTION_ROW(id_, name_, value_, help_) \
	{ .name = name_, .value = value_, .help = help_, .id = OPTION_##id_ },
static const struct opt options[] = { AGENTS_OPTIONS(OPTION_ROW){ 0 } };

static const struct opt_program program = {
	.name = "turnward-bench agents",
	.operands = "[options]",
	.purpose = "Weighs eight agents and the age of what they publish.",
	.options = options,
	.examples = "  turnward-bench agents --seconds 10\n",
};

static struct world {
	char dir[64], region[80], engine[256], agent[256];
	const char *head;
	double seconds;
	uint16_t port; /* of the first engine, the others follow */
	struct load_proc engines, agents[LOAD_ENGINES];
	struct region place;
	struct engine_file file[LOAD_ENGINES];
	size_t page_bytes;
	double core_percent, engine_percent, period_ms;
	struct hist age_ms;
} w;

static int spawn(struct load_proc *ret_proc, int core, const char *const *words)
{
	static char text[WORDS][WORD_BYTES];
	char log[100], *argv[WORDS + 1] = { 0 };

	for (int i = 0; words[i]; i++) {
		snprintf(text[i], WORD_BYTES, "%s", words[i]);
		argv[i] = text[i];
	}
	snprintf(log, sizeof(log), "%s/log", w.dir);
	return load_proc_exec(ret_proc, core, log, argv);
}

static int start(void)
{
	char ports[32], engine[64];
	int err;

	snprintf(ports, sizeof(ports), "%u-%u", w.port, w.port + LOAD_ENGINES - 1);
	err = spawn(&w.engines, load_core_own(),
		    (const char *[]){ w.engine, "--ports", ports, "--head", w.head, NULL });
	for (int i = 0; i < LOAD_ENGINES && !err; i++) {
		snprintf(engine, sizeof(engine), "e%d=http://127.0.0.1:%u", i, w.port + i);
		err = spawn(&w.agents[i], load_core_measured(),
			    (const char *[]){ w.agent, "--engine", engine, "--region", w.region,
					      NULL });
	}
	return err;
}

static void pause_us(unsigned us)
{
	nanosleep(&(struct timespec){ .tv_nsec = (long)us * NS_PER_US }, NULL);
}

/* Until every agent has published a sample. */
static int attach(char *error)
{
	uint64_t end = clock_ns() + READY_S * (uint64_t)NS_PER_S;
	struct engine_state state;
	int ready = 0, err = region_open(&w.place, w.region, 1, error);

	while (!err && ready < LOAD_ENGINES) {
		struct engine_file *file = &w.file[ready];
		char name[16];

		snprintf(name, sizeof(name), "e%d", ready);
		if (clock_ns() > end) {
			snprintf(error, REGION_ERROR_MAX, "agent %s published nothing", name);
			return -ETIMEDOUT;
		}
		if (!file->file.map && engine_file_attach(file, &w.place, name, error) < 0)
			pause_us(20000);
		else if (engine_file_read(file, &state, NULL) < 0 || state.read_ns == 0)
			pause_us(20000);
		else
			ready++;
	}
	return err;
}

static void page_weigh(void)
{
	char text[64], why[ADDR_WHY_MAX];
	struct addr at;

	snprintf(text, sizeof(text), "127.0.0.1:%u", w.port);
	if (addr_parse(&at, text, why) == 0)
		free(ask_http(&at, "GET", "/metrics", &w.page_bytes));
}

static uint64_t agents_cpu_ns(void)
{
	uint64_t sum = 0;

	for (int i = 0; i < LOAD_ENGINES; i++)
		sum += load_proc_cpu_ns(w.agents[i].pid);
	return sum;
}

static void measure(void)
{
	uint64_t begin = clock_ns(), end = begin + (uint64_t)(w.seconds * NS_PER_S), now;
	uint64_t cpu = agents_cpu_ns(), engines = load_proc_cpu_ns(w.engines.pid);
	struct engine_state state;

	while ((now = clock_ns()) < end) {
		for (int i = 0; i < LOAD_ENGINES; i++) {
			if (engine_file_read(&w.file[i], &state, NULL) < 0)
				continue;
			hist_add(&w.age_ms, (double)(clock_ns() - state.read_ns) / NS_PER_MS);
			w.period_ms = (double)state.period_ns / NS_PER_MS;
		}
		pause_us(READ_EVERY_US);
	}
	double took = (double)(clock_ns() - begin);
	w.core_percent = (double)(agents_cpu_ns() - cpu) / took * 100;
	w.engine_percent = (double)(load_proc_cpu_ns(w.engines.pid) - engines) / took * 100;
}

static void stop(void)
{
	for (int i = 0; i < LOAD_ENGINES; i++) {
		if (w.file[i].file.map)
			engine_file_drop(&w.file[i]);
		load_proc_stop(&w.agents[i]);
	}
	load_proc_stop(&w.engines);
	region_close(&w.place);
	load_remove(w.dir);
}

unsigned load_agents_targets(struct load_target *t)
{
	t[0] = load_target_of("CPU of eight agents, % of a core", w.core_percent, 2, false);
	t[1] = load_target_of("age at read, p99 / period",
			      hist_quantile(&w.age_ms, 0.99) / w.period_ms, 1.2, false);
	return 2;
}

void load_agents_print(void)
{
	printf("\neight agents, %s pages of %zu bytes every %.0f ms\n", w.head, w.page_bytes,
	       w.period_ms);
	printf("  agents %.2f %% of a core together; the engines' own answers %.2f %%\n",
	       w.core_percent, w.engine_percent);
	printf("  age at read: p50 %.1f ms, p99 %.1f ms, most %.1f ms (%llu reads)\n",
	       hist_quantile(&w.age_ms, 0.5), hist_quantile(&w.age_ms, 0.99), w.age_ms.max,
	       (unsigned long long)w.age_ms.n);
}

void load_agents_json(struct json *j)
{
	json_array_begin(j, "arms");
	json_object_begin(j, NULL);
	json_str(j, "name", w.head);
	json_num(j, "cpu_core_percent", w.core_percent, 5);
	json_num(j, "engines_core_percent", w.engine_percent, 5);
	json_u64(j, "page_bytes", w.page_bytes);
	json_num(j, "period_ms", w.period_ms, 5);
	json_num(j, "age_p50_ms", hist_quantile(&w.age_ms, 0.5), 5);
	json_num(j, "age_p99_ms", hist_quantile(&w.age_ms, 0.99), 5);
	json_num(j, "age_max_ms", w.age_ms.max, 5);
	json_object_end(j);
	json_array_end(j);
}

static void print(const struct load_target *targets, unsigned n)
{
	load_machine_print();
	load_agents_print();
	load_targets_print(targets, n);
}

static int json(const char *path, const struct load_target *targets, unsigned n)
{
	static struct load_document doc;
	int err = load_document_begin(&doc, path, "agents");

	if (err)
		return err;
	load_agents_json(&doc.json);
	load_targets_json(&doc.json, targets, n);
	return load_document_end(&doc);
}

int load_agents_run(const char *head, double seconds, char *error)
{
	static struct load_place place;

	w.head = head;
	w.seconds = seconds;
	snprintf(w.dir, sizeof(w.dir), "/dev/shm/turnward-agents-XXXXXX");
	if (!mkdtemp(w.dir))
		return -errno;
	snprintf(w.region, sizeof(w.region), "%s/region", w.dir);
	load_build_find(&place);
	load_program(&place, "turnward-engine", w.engine, sizeof(w.engine));
	load_program(&place, "turnward-agent", w.agent, sizeof(w.agent));
	w.port = load_ports_free(LOAD_ENGINES);
	int err = start();
	if (!err)
		err = attach(error);
	if (!err) {
		page_weigh();
		measure();
	}
	stop();
	return err;
}

int bench_agents(int argc, char **argv)
{
	static const char *const heads[] = { "vllm", "sglang", "llamacpp", NULL };
	struct load_target targets[LOAD_TARGETS_MAX];
	char error[REGION_ERROR_MAX] = "", *end = NULL;
	const char *path = NULL;
	struct opt_scan scan;
	int id;

	const char *head = heads[0];
	double seconds = 5;
	opt_begin(&scan, &program, argc, argv);
	while ((id = opt_next(&scan)) != OPT_END) {
		if (id == OPTION_SECONDS) {
			seconds = strtod(scan.value, &end);
			if (*end || !(seconds >= 0.1 && seconds <= 3600))
				opt_fail(&program, "--seconds must be 0.1..3600, not '%s'",
					 scan.value);
		} else if (id == OPTION_HEAD) {
			head = scan.value;
			if (strcmp(head, heads[0]) && strcmp(head, heads[1]) &&
			    strcmp(head, heads[2]))
				opt_unknown(&program, "head", head, heads);
		} else {
			path = scan.value;
		}
	}
	if (scan.first < argc)
		opt_fail(&program, "'%s' is not expected", argv[scan.first]);
	load_pin(load_core_own());
	int err = load_agents_run(head, seconds, error);
	if (err) {
		fprintf(stderr, "turnward-bench agents: %s\n", error[0] ? error : strerror(-err));
		return EXIT_RUNTIME;
	}
	unsigned n = load_agents_targets(targets);
	if (!path || strcmp(path, "-") != 0)
		print(targets, n);
	return path && json(path, targets, n) < 0 ? EXIT_RUNTIME : EXIT_GOOD;
}
