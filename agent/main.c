/* turnward-agent: reads one engine and publishes what it says into the region. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/gpu.h"
#include "agent/http.h"
#include "agent/publish.h"
#include "agent/report.h"
#include "agent/sampler.h"
#include "shm/base/addr.h"
#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/base/exit.h"
#include "shm/base/log.h"
#include "shm/base/opt.h"
#include "shm/base/scoped.h"
#include "shm/base/stop.h"

enum agent_opt {
	OPT_ENGINE = 1,
	OPT_KIND,
	OPT_GPU,
	OPT_PERIOD,
	OPT_STALL,
	OPT_KEY_FILE,
	OPT_REGION,
	OPT_ONCE,
	OPT_JSON,
	OPT_LOG_LEVEL
};

static const struct opt options[] = {
	{ .name = "engine",
	  .value = "[NAME=]URL",
	  .help = "the engine: http://host:port or unix:PATH",
	  .id = OPT_ENGINE },
	{ .name = "kind",
	  .value = "KIND",
	  .help = "auto (default), vllm, sglang, llamacpp",
	  .id = OPT_KIND },
	{ .name = "gpu",
	  .value = "N",
	  .help = "publish this GPU's load and memory, too",
	  .id = OPT_GPU },
	{ .name = "period",
	  .value = "MS",
	  .help = "between two samples; default 100 for vllm, else 50",
	  .id = OPT_PERIOD },
	{ .name = "stall",
	  .value = "TIME",
	  .help = "requests run and nothing moves for this long: stalled (10s)",
	  .id = OPT_STALL },
	{ .name = "key-file",
	  .value = "FILE",
	  .help = "its first line is the engine's API key",
	  .id = OPT_KEY_FILE },
	{ .name = "region",
	  .value = "DIR",
	  .help = "the shared region; default as all programs",
	  .id = OPT_REGION },
	{ .name = "once",
	  .help = "print one sample and leave; the region is not touched",
	  .id = OPT_ONCE },
	{ .name = "json", .help = "with --once: as JSON", .id = OPT_JSON, .dash = 1 },
	{ .name = "log-level",
	  .value = "LEVEL",
	  .help = "error, warn, info (default), debug, trace",
	  .id = OPT_LOG_LEVEL },
	{ 0 },
};

static const struct opt_program program = {
	.name = "turnward-agent",
	.operands = "--engine [NAME=]URL [options]",
	.purpose = "Reads one engine and publishes its state for the router.",
	.options = options,
	.examples = "  turnward-agent --engine gpu0=http://127.0.0.1:8000 --gpu 0\n"
		    "  turnward-agent --engine http://127.0.0.1:8000 --once --json\n",
};

static const struct conf_key period_key = { .name = "period",
					    .type = CONF_TIME,
					    .size = sizeof(uint64_t),
					    .standard = "100ms",
					    .min = 0.001,
					    .max = 60 };
static const struct conf_key stall_key = { .name = "stall",
					   .type = CONF_TIME,
					   .size = sizeof(uint64_t),
					   .standard = "10s",
					   .min = 0.01,
					   .max = 3600 };

struct agent_options {
	struct addr_engine engine;
	struct sampler_params sampler;
	const char *region;
	char key[HTTP_KEY_MAX];
	int gpu; /* -1 = none */
	int once, json;
	enum log_level log_level;
};

struct agent {
	struct agent_options options;
	struct http_client http;
	struct sampler sampler;
	struct publisher publisher;
	struct report report;
	struct gpu gpu;
	sigset_t wait_mask;
};

static void take_kind(struct agent_options *o, const char *text)
{
	static const char *const words[] = { "auto", "vllm", "sglang", "llamacpp", NULL };
	const struct engine_ops *ops = engine_ops_named(text);

	if (!ops && strcmp(text, "auto") != 0)
		opt_unknown(&program, "engine kind", text, words);
	o->sampler.kind = ops ? ops->kind : ENGINE_KIND_UNKNOWN;
}

/* A plain number is milliseconds where the option says so. */
static void take_time(const struct conf_key *key, const char *text, int plain_ms, uint64_t *ret_ns)
{
	char with_unit[64], why[CONF_ERROR_MAX];
	int plain = plain_ms && text[0] && text[strspn(text, "0123456789.")] == 0;

	snprintf(with_unit, sizeof(with_unit), "%.40s%s", text, plain ? "ms" : "");
	if (conf_value(key, ret_ns, with_unit, why, sizeof(why)) < 0)
		opt_fail(&program, "--%s %s: %s", key->name, text, why);
}

static void take_gpu(struct agent_options *o, const char *text)
{
	char *end;
	long index = strtol(text, &end, 10);

	if (!isdigit((unsigned char)text[0]) || *end || index > 1023)
		opt_fail(&program, "--gpu %s: a number, as nvidia-smi counts", text);
	o->gpu = (int)index;
}

static void take_log_level(struct agent_options *o, const char *text)
{
	static const char *const words[] = { "error", "warn", "info", "debug", "trace", NULL };
	int level = log_level_parse(text);

	if (level < 0)
		opt_unknown(&program, "log level", text, words);
	o->log_level = (enum log_level)level;
}

static int key_is_clean(const char *key)
{
	for (; *key; key++) {
		if ((unsigned char)*key <= ' ' || (unsigned char)*key > '~')
			return 0;
	}
	return 1;
}

/* The first line, without blanks around it. A bad file is a configuration error, said at once. */
static void read_key(struct agent_options *o, const char *path)
{
	char line[HTTP_KEY_MAX + 2] = "";
	scoped(file_drop) FILE *file = fopen(path, "re");
	struct stat st;

	if (!file || !fgets(line, sizeof(line), file)) {
		fprintf(stderr, "turnward-agent: %s: %s\n", path,
			file ? "is empty" : strerror(errno));
		exit(EXIT_CONFIG);
	}
	char *key = line + strspn(line, " \t");
	key[strcspn(key, " \t\r\n")] = 0;
	if (!key[0] || strlen(key) >= HTTP_KEY_MAX || !key_is_clean(key)) {
		fprintf(stderr,
			"turnward-agent: %s: its first line is no key of 1 to %d printable bytes\n",
			path, HTTP_KEY_MAX - 1);
		exit(EXIT_CONFIG);
	}
	if (fstat(fileno(file), &st) == 0 && (st.st_mode & 077))
		fprintf(stderr, "turnward-agent: %s can be read by others: chmod 600 it\n", path);
	memcpy(o->key, key, strlen(key) + 1);
	explicit_bzero(line, sizeof(line));
}

static void take_engine(struct agent_options *o, const char *text)
{
	char why[ADDR_WHY_MAX];

	if (o->engine.name[0])
		opt_fail(&program, "--engine is given twice: one agent reads one engine");
	int err = addr_engine_parse(&o->engine, text, why);
	if (err == -EHOSTUNREACH) {
		fprintf(stderr, "turnward-agent: --engine %s: %s\n", text, why);
		exit(EXIT_CONFIG);
	}
	if (err < 0)
		opt_fail(&program, "--engine %s: %s", text, why);
}

static void take_option(struct agent_options *o, int id, const char *value)
{
	switch ((enum agent_opt)id) {
	case OPT_ENGINE:
		take_engine(o, value);
		break;
	case OPT_KIND:
		take_kind(o, value);
		break;
	case OPT_GPU:
		take_gpu(o, value);
		break;
	case OPT_PERIOD:
		take_time(&period_key, value, 1, &o->sampler.period_ns);
		break;
	case OPT_STALL:
		take_time(&stall_key, value, 0, &o->sampler.stall_ns);
		break;
	case OPT_KEY_FILE:
		read_key(o, value);
		break;
	case OPT_REGION:
		o->region = value;
		break;
	case OPT_ONCE:
		o->once = 1;
		break;
	case OPT_JSON:
		o->json = 1;
		break;
	case OPT_LOG_LEVEL:
		take_log_level(o, value);
		break;
	}
}

static void options_read(struct agent_options *o, int argc, char **argv)
{
	struct opt_scan scan;
	int id;

	*o = (struct agent_options){ .gpu = -1, .log_level = LOG_INFO };
	o->sampler.stall_ns = 10ull * NS_PER_S;
	opt_begin(&scan, &program, argc, argv);
	while ((id = opt_next(&scan)) != OPT_END)
		take_option(o, id, scan.value);
	if (scan.first < argc)
		opt_fail(&program, "'%s' is not expected", argv[scan.first]);
	if (!o->engine.name[0])
		opt_fail(&program, "--engine is missing");
	if (o->json && !o->once)
		opt_fail(&program, "--json goes with --once");
}

/* ---- what the sampler asks of the world ---- */

static int io_fetch(void *ctx, const char *path, uint64_t timeout_ns, struct sampler_answer *ret)
{
	struct agent *agent = ctx;

	return http_get(&agent->http, path, timeout_ns, &ret->status, &ret->body, &ret->len,
			&ret->start_id);
}

static uint64_t io_now(void *ctx)
{
	return clock_ns();
}

static uint64_t io_wall(void *ctx)
{
	return clock_wall_ns();
}

/* ---- the life of an agent ---- */

static void agent_init(struct agent *agent)
{
	const struct agent_options *o = &agent->options;
	struct sampler_io io = { agent, io_fetch, io_now, io_wall };
	char why[GPU_WHY_MAX];

	if (http_client_init(&agent->http, &o->engine, o->key[0] ? o->key : NULL) < 0)
		abort(); /* a megabyte at start */
	agent->http.wait_mask = &agent->wait_mask;
	agent->http.stop = &stop_asked;
	sampler_init(&agent->sampler, &o->sampler, &io);
	snprintf(agent->sampler.info.name, sizeof(agent->sampler.info.name), "%s", o->engine.name);
	snprintf(agent->sampler.info.url, sizeof(agent->sampler.info.url), "%s", o->engine.url);
	if (o->gpu < 0)
		return;
	if (gpu_open(&agent->gpu, (unsigned)o->gpu, why) < 0)
		log_say(LOG_WARN, "no GPU data: %s", why);
	snprintf(agent->sampler.info.gpu, sizeof(agent->sampler.info.gpu), "%s", agent->gpu.name);
}

static void agent_fini(struct agent *agent)
{
	gpu_close(&agent->gpu);
	http_client_fini(&agent->http);
	explicit_bzero(agent->options.key, sizeof(agent->options.key));
}

static void agent_sample_gpu(struct agent *agent)
{
	gpu_sample(&agent->gpu, clock_ns(), &agent->sampler.state);
	if (ENGINE_HAS(&agent->sampler.state, gpu_utilization) ||
	    ENGINE_HAS(&agent->sampler.state, gpu_memory_used))
		agent->sampler.info.metrics_source |= 1ull << SOURCE_GPU;
}

static void wait_until(const struct agent *agent, uint64_t due_ns)
{
	uint64_t now_ns = clock_ns();

	while (!stop_asked && now_ns < due_ns) {
		uint64_t left_ns = due_ns - now_ns;
		struct timespec left = { .tv_sec = (time_t)(left_ns / NS_PER_S),
					 .tv_nsec = (long)(left_ns % NS_PER_S) };

		ppoll(NULL, 0, &left, &agent->wait_mask);
		now_ns = clock_ns();
	}
}

static int run_once(struct agent *agent)
{
	uint64_t due_ns;

	agent_init(agent);
	if (sampler_round(&agent->sampler, &due_ns) < 0)
		return EXIT_RUNTIME;
	agent_sample_gpu(agent);
	int err = report_print(&agent->sampler, &agent->sampler.state, agent->options.json);
	return err == 0 && agent->sampler.state.scrapes > 0 ? EXIT_GOOD : EXIT_RUNTIME;
}

/* 0, or the exit code with which the agent must end. */
static int agent_keep_place(struct agent *agent)
{
	int err = publisher_check(&agent->publisher, clock_ns());

	if (err == 1)
		log_say(LOG_WARN, "region %s was removed or replaced: made again",
			agent->publisher.region.path);
	if (err == -EBUSY)
		log_say(LOG_ERROR, "%s", agent->publisher.error);
	else if (err < 0)
		log_say(LOG_WARN, "not published: %s", agent->publisher.error);
	return err == -EBUSY ? EXIT_REGION : EXIT_GOOD;
}

static int run(struct agent *agent)
{
	int code = EXIT_GOOD;

	while (!stop_asked && code == EXIT_GOOD) {
		uint64_t due_ns;

		if (sampler_round(&agent->sampler, &due_ns) < 0)
			break;
		agent_sample_gpu(agent);
		code = agent_keep_place(agent);
		publisher_put(&agent->publisher, &agent->sampler.state, &agent->sampler.info);
		report_changes(&agent->report, &agent->sampler, clock_ns());
		log_flush();
		wait_until(agent, due_ns);
	}
	return code;
}

static int start(struct agent *agent)
{
	const struct agent_options *o = &agent->options;
	struct engine_state before;
	struct log_line line;

	region_guard();
	if (publisher_open(&agent->publisher, o->region, o->engine.name) < 0) {
		fprintf(stderr, "turnward-agent: %s\n", agent->publisher.error);
		return EXIT_REGION;
	}
	if (agent->publisher.region.note[0])
		log_say(LOG_WARN, "%s", agent->publisher.region.note);
	if (agent->publisher.error[0]) /* a dead agent's file of another layout was renewed */
		log_say(LOG_WARN, "%s", agent->publisher.error);
	agent_init(agent);
	if (publisher_inherit(&agent->publisher, &before) == 0)
		sampler_inherit(&agent->sampler, &before);
	log_begin(&line, LOG_INFO, "start");
	log_str(&line, "region", agent->publisher.region.path);
	log_str(&line, "engine", o->engine.name);
	log_str(&line, "url", o->engine.url);
	log_end(&line);
	int code = run(agent);
	publisher_close(&agent->publisher);
	log_say(LOG_INFO, "%s", stop_asked ? "stopped" : "ended");
	return code;
}

int main(int argc, char **argv)
{
	static struct agent agent;

	stop_signals(&agent.wait_mask); /* first: from the first instant on a stop is clean */
	options_read(&agent.options, argc, argv);
	log_open(program.name, agent.options.log_level);
	int code = agent.options.once ? run_once(&agent) : start(&agent);
	agent_fini(&agent);
	log_drain(200);
	return code;
}
