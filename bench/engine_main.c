/* turnward-engine: modelled engines, one a port, that speak and behave like vLLM, SGLang or
 * llama.cpp. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "bench/engine.h"
#include "shm/base/clock.h"
#include "shm/base/exit.h"
#include "shm/base/log.h"
#include "shm/base/opt.h"

/* X(id, name, value, help) */
#define ENGINE_OPTIONS(X)                                                                        \
	X(PORTS, "ports", "A[-B]", "one engine on each port")                                    \
	X(HOST, "host", "ADDRESS", "IPv4 address to listen on (127.0.0.1)")                      \
	X(SPEED, "speed", "X", "X times faster than life (1)")                                   \
	X(PROFILE, "profile", "P[,P]...", "q8b, q14b, q32b, q32f8, a3b: engine by engine (q8b)") \
	X(HEAD, "head", "H[,H]...", "vllm, sglang, llamacpp, engine by engine (vllm)")           \
	X(MODEL, "model", "NAME", "name served; may be repeated (the profile's)")                \
	X(SLOWDOWN, "slowdown", "F[,F]...", "steps take F times longer, engine by engine (1)")   \
	X(CONTEXT, "context", "TOKENS", "longest prompt plus answer (131072)")                   \
	X(SEQUENCES, "sequences", "N", "running at once (1024; llamacpp: 4)")                    \
	X(BUDGET, "budget", "TOKENS", "of one step (8192)")                                      \
	X(CAP, "long-prefill-cap", "N", "of one prompt in one step (none)")                      \
	X(KV, "kv-tokens", "TOKENS", "KV cache (the profile's)")                                 \
	X(IDLE, "idle-close", "S", "close idle connections after S wall seconds (5)")            \
	X(QUEUED, "max-queued", "N", "refuse when N requests run and wait (no bound)")           \
	X(REFUSE, "refuse-after", "N", "stop listening after N requests for tokens")             \
	X(FAIL, "fail-head", "N", "close every N-th request for tokens unanswered")              \
	X(CUT, "cut-after", "N", "break streams off after N tokens")                             \
	X(STAMPS, "stamps", "FILE", NULL)                                                        \
	X(IO, "io", "LOOP", NULL /* hidden: --help fits a screen */)                             \
	X(NO_HITS, "no-prefix-cache", NULL, NULL /* likewise */)                                 \
	X(REALTIME, "realtime", NULL, "SCHED_FIFO where permitted: GPUs need no host CPU")
#define OPTION_ENUM(id, name, value, help) OPTION_##id,
enum { OPTION_NONE, ENGINE_OPTIONS(OPTION_ENUM) };
#define OPTION_ROW(id_, name_, value_, help_) \
	{ .name = name_, .value = value_, .help = help_, .id = OPTION_##id_ },
static const struct opt options[] = { ENGINE_OPTIONS(OPTION_ROW){ 0 } };

static const struct opt_program program = {
	.name = "turnward-engine",
	.operands = "--ports A[-B] [options]",
	.purpose =
		"Modelled LLM engines on H20 GPUs: batching, KV cache and HTTP, without the GPU.",
	.options = options,
	.examples = "  turnward-engine --ports 8101-8108 --speed 10 --profile q8b\n",
};

static const char *const heads[] = { "vllm", "sglang", "llamacpp", NULL };

struct setup {
	uint16_t port_first, ports;
	struct in_addr host;
	const char *profiles, *heads, *slowdowns, *stamps;
	enum loop_kind io;
	bool realtime;
	struct engine_options engine;
};

static double number_of(const char *name, const char *text, double min, double max)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= min && value <= max))
		opt_fail(&program, "--%s must be %g..%g, not '%s'", name, min, max, text);
	return value;
}

static void ports_of(struct setup *s, const char *text)
{
	unsigned first, last;
	char rest;
	int n = sscanf(text, "%u-%u%c", &first, &last, &rest);

	if (n == 1 && !strchr(text, '-'))
		last = first;
	if (n < 1 || n > 2 || (n == 1 && strchr(text, '-')) || first < 1 || last > 65535 ||
	    first > last || last - first >= ENGINES_MAX)
		opt_fail(&program, "--ports must be A or A-B, at most %d ports, not '%s'",
			 ENGINES_MAX, text);
	s->port_first = (uint16_t)first;
	s->ports = (uint16_t)(last - first + 1);
}

static enum loop_kind io_of(const char *text)
{
	static const char *const kinds[] = { "auto", "uring", "epoll", NULL };

	for (int i = 0; kinds[i]; i++)
		if (strcmp(text, kinds[i]) == 0)
			return (enum loop_kind)i;
	opt_unknown(&program, "loop", text, kinds);
}

/* The i-th of "a,b,c"; beyond the list it starts again. */
static void item_of(const char *list, unsigned index, char ret_item[64])
{
	unsigned items = 1;

	for (const char *at = list; *at; at++)
		items += *at == ',';
	const char *at = list;
	for (index %= items; index > 0; index--)
		at = strchr(at, ',') + 1;
	snprintf(ret_item, 64, "%.*s", (int)(strcspn(at, ",") < 63 ? strcspn(at, ",") : 63), at);
}

/* What goes wrong on purpose. */
static int fault_take(struct engine_options *o, int id, const char *value)
{
	switch (id) {
	case OPTION_REFUSE:
		o->refuse_after = (uint64_t)number_of("refuse-after", value, 0, 1e9);
		return 1;
	case OPTION_FAIL:
		o->fail_head = (uint64_t)number_of("fail-head", value, 0, 1e9);
		return 1;
	case OPTION_CUT:
		o->cut_after = (uint64_t)number_of("cut-after", value, 0, 1e9);
		return 1;
	case OPTION_NO_HITS:
		o->no_hits = true;
		return 1;
	default:
		return 0;
	}
}

static void option_take(struct setup *s, int id, const char *value)
{
	struct engine_options *o = &s->engine;

	if (fault_take(o, id, value))
		return;
	switch (id) {
	case OPTION_PORTS:
		ports_of(s, value);
		break;
	case OPTION_PROFILE:
		s->profiles = value;
		break;
	case OPTION_HEAD:
		s->heads = value;
		break;
	case OPTION_SLOWDOWN:
		s->slowdowns = value;
		break;
	case OPTION_STAMPS:
		s->stamps = value;
		break;
	case OPTION_REALTIME:
		s->realtime = true;
		break;
	case OPTION_IO:
		s->io = io_of(value);
		break;
	case OPTION_SPEED:
		o->speed = number_of("speed", value, 0.01, 1000);
		break;
	case OPTION_CONTEXT:
		o->context_max = (uint32_t)number_of("context", value, 2, 4e6);
		break;
	case OPTION_SEQUENCES:
		o->sequences_max = (uint32_t)number_of("sequences", value, 1, 65536);
		break;
	case OPTION_BUDGET:
		o->budget_tokens = (uint32_t)number_of("budget", value, 1, 1e6);
		break;
	case OPTION_CAP:
		o->long_prefill_cap = (uint32_t)number_of("long-prefill-cap", value, 0, 1e6);
		break;
	case OPTION_KV:
		o->kv_tokens = (uint64_t)number_of("kv-tokens", value, 64, 1e9);
		break;
	case OPTION_IDLE:
		o->idle_ns = (uint64_t)(number_of("idle-close", value, 0.01, 1e6) * 1e9);
		break;
	case OPTION_QUEUED:
		o->max_queued = (uint64_t)number_of("max-queued", value, 0, 1e9);
		break;
	case OPTION_HOST:
		if (inet_pton(AF_INET, value, &s->host) != 1)
			opt_fail(&program, "--host must be an IPv4 address, not '%s'", value);
		break;
	case OPTION_MODEL:
		if (o->models == ENGINE_MODELS_MAX || strlen(value) > PROMPT_MODEL)
			opt_fail(&program, "at most %d models, with names of at most %d bytes",
				 ENGINE_MODELS_MAX, PROMPT_MODEL);
		o->model[o->models++] = value;
		break;
	}
}

static enum engine_head head_of(const char *list, unsigned index)
{
	char word[64];

	item_of(list, index, word);
	for (int i = 0; heads[i]; i++)
		if (strcmp(word, heads[i]) == 0)
			return (enum engine_head)i;
	opt_unknown(&program, "head", word, heads);
}

static const struct model_profile *profile_of(const char *list, unsigned index)
{
	const char *names[16] = { NULL };
	char word[64];

	item_of(list, index, word);
	if (!model_profile_find(word)) {
		for (unsigned i = 0; i < 15 && model_profile_at(i); i++)
			names[i] = model_profile_at(i)->name;
		opt_unknown(&program, "profile", word, names);
	}
	return model_profile_find(word);
}

static int engine_open(struct engine_world *w, struct engine *e, const struct setup *s,
		       unsigned index)
{
	const struct model_profile *profile = profile_of(s->profiles, index);
	char word[64];

	e->world = w;
	e->port = (uint16_t)(s->port_first + index);
	e->head = head_of(s->heads, index);
	e->profile = profile->name;
	e->served = w->options.models ? w->options.model[0] : profile->model;
	e->due_ns = UINT64_MAX;
	item_of(s->slowdowns, index, word);
	struct model_options limits = { .budget_tokens = w->options.budget_tokens,
					.sequences_max = w->options.sequences_max,
					.long_prefill_cap = w->options.long_prefill_cap,
					.context_max = w->options.context_max,
					.kv_tokens = w->options.kv_tokens,
					.slowdown = number_of("slowdown", word, 0.01, 1000) };
	if (e->head == HEAD_LLAMACPP && !limits.sequences_max)
		limits.sequences_max = 4;
	int err = model_new(&e->model, profile, &limits);
	if (err)
		return err;
	const struct metrics_world page = { .head = e->head,
					    .model = e->served,
					    .start_wall_ns = w->start_wall_ns,
					    .kv_blocks = model_blocks_total(e->model),
					    .kv_bytes = model_blocks_total(e->model) * MODEL_BLOCK *
							profile->kv_bytes_per_token,
					    .context_max =
						    model_options_of(e->model)->context_max };
	metrics_init(&e->metrics, &page);
	return 0;
}

enum { TAG_LISTENER = 0xff000000, TAG_SIGNAL = 0xfe000000 };

static int engine_listen(struct engine_world *w, struct engine *e, unsigned index,
			 struct in_addr host)
{
	const struct sockaddr_in at = { .sin_family = AF_INET,
					.sin_port = htons(e->port),
					.sin_addr = host };
	int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (const struct sockaddr *)&at, sizeof(at)) < 0 || listen(fd, 4096) < 0) {
		int err = -errno;

		close(fd);
		return err;
	}
	e->listener = loop_add(w->loop, fd, TAG_LISTENER + index);
	if (e->listener < 0) {
		close(fd);
		return e->listener;
	}
	loop_accept(w->loop, e->listener);
	return 0;
}

static void on_event(void *ctx, const struct loop_event *event)
{
	struct engine_world *w = ctx;
	uint32_t low = (uint32_t)event->tag;

	if (event->tag >> 32 == 0 && low >= TAG_LISTENER) {
		struct engine *e = &w->engine[low - TAG_LISTENER];

		if (event->op == LOOP_ACCEPTED && event->res >= 0)
			conn_accepted(e, event->res);
		return;
	}
	if (event->tag == TAG_SIGNAL) {
		w->stopping = true;
		return;
	}
	conn_event(w, event);
}

static int world_open(struct engine_world *w, const struct setup *s)
{
	struct rlimit limit = { 0 };
	const char *why = "";

	w->options = s->engine;
	w->start_ns = clock_ns();
	w->start_wall_ns = clock_wall_ns();
	wheel_init(&w->wheel, 10 * NS_PER_MS, w->start_ns);
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	w->conns_max = ENGINE_CONNS_MAX;
	if (limit.rlim_cur < ENGINE_CONNS_MAX + 128)
		w->conns_max = limit.rlim_cur > 256 ? (uint32_t)limit.rlim_cur - 128 : 128;
	w->conn = calloc(w->conns_max, sizeof(struct conn *));
	w->memory = calloc(1, sizeof(*w->memory));
	if (!w->conn || !w->memory)
		return -ENOMEM;
	if (s->stamps && !(w->stamps = fopen(s->stamps, "we"))) {
		log_say(LOG_ERROR, "--stamps %s: %s", s->stamps, strerror(errno));
		return -errno;
	}
	if (w->stamps)
		setvbuf(w->stamps, NULL, _IOLBF, 0);
	const struct loop_params params = { .kind = s->io,
					    .handles_max = w->conns_max + ENGINES_MAX + 8,
					    .buffers = 64,
					    .buffer_size = 64 * 1024,
					    .entries = 4096 };
	int err = loop_new(&w->loop, &params, on_event, w, &why);
	if (err) {
		log_say(LOG_ERROR, "no event loop: %s", why);
		return err;
	}
	for (w->engines = 0; w->engines < s->ports; w->engines++) {
		struct engine *e = &w->engine[w->engines];

		err = engine_open(w, e, s, w->engines);
		if (!err)
			err = engine_listen(w, e, w->engines, s->host);
		if (err) {
			log_say(LOG_ERROR, "port %u: %s", s->port_first + w->engines,
				strerror(-err));
			return err;
		}
	}
	return 0;
}

static void world_close(struct engine_world *w)
{
	if (w->stamps)
		fclose(w->stamps);
	loop_free(w->loop);
	for (unsigned i = 0; i < ENGINES_MAX; i++) {
		struct engine *e = &w->engine[i];

		while (e->asks) {
			struct ask *a = e->asks;

			e->asks = a->next;
			free(a);
		}
		engine_bury(e);
		engine_store_free(e);
		model_free(e->model);
		metrics_fini(&e->metrics);
	}
	conns_free(w);
	prompt_fini(&w->prompt);
	out_free(&w->scratch);
	free(w->memory);
	free(w);
}

static int signals_open(struct engine_world *w)
{
	sigset_t set;

	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	int fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
	if (fd < 0)
		return -errno;
	int handle = loop_add(w->loop, fd, TAG_SIGNAL);
	if (handle < 0) {
		close(fd);
		return handle;
	}
	loop_watch(w->loop, handle);
	return 0;
}

static int world_run(struct engine_world *w)
{
	while (!w->stopping) {
		uint64_t now_ns = clock_ns(), due_ns = engine_due(w);
		uint64_t wait_ns = due_ns <= now_ns ? 0 : due_ns - now_ns;
		uint64_t idle_ns = wheel_wait_ns(&w->wheel, now_ns);

		if (due_ns == UINT64_MAX)
			wait_ns = UINT64_MAX;
		int err = loop_turn(w->loop, wait_ns < idle_ns ? wait_ns : idle_ns);
		if (err < 0 && err != -EINTR)
			return err;
		now_ns = clock_ns();
		for (unsigned i = 0; i < w->engines; i++)
			engine_pump(&w->engine[i], now_ns);
		while (conn_idle_expire(w, now_ns))
			;
		log_flush();
	}
	return 0;
}

/*
 * Eight modelled engines use a tenth of a core and stand for hardware that would use none; on a
 * busy host the ordinary scheduler makes their steps milliseconds late.
 */
static void realtime_ask(void)
{
	const struct sched_param param = { .sched_priority = 1 };

	if (sched_setscheduler(0, SCHED_FIFO, &param) < 0)
		log_say(LOG_WARN, "--realtime: not permitted (%s), steps may end late",
			strerror(errno));
}

static void announce(const struct engine_world *w)
{
	struct log_line line;

	log_begin(&line, LOG_INFO, "listening");
	log_u64(&line, "first_port", w->engine[0].port);
	log_u64(&line, "engines", w->engines);
	log_f64(&line, "speed", w->options.speed);
	log_str(&line, "loop", loop_kind_name(loop_kind_of(w->loop)));
	log_str(&line, "note", "batched decode is extrapolated from batch-1 figures");
	log_end(&line);
	log_flush();
}

int main(int argc, char **argv)
{
	struct setup setup = { .profiles = "q8b", .heads = "vllm", .slowdowns = "1" };
	struct engine_world *w = calloc(1, sizeof(*w));
	struct opt_scan scan;
	int id;

	setup.host.s_addr = htonl(INADDR_LOOPBACK);
	setup.engine.speed = 1;
	setup.engine.idle_ns = 5ull * NS_PER_S;
	opt_begin(&scan, &program, argc, argv);
	while ((id = opt_next(&scan)) != OPT_END)
		option_take(&setup, id, scan.value);
	if (scan.first < argc)
		opt_fail(&program, "unexpected operand '%s'", argv[scan.first]);
	if (!setup.ports)
		opt_fail(&program, "--ports is needed");
	log_open("turnward-engine", LOG_INFO);
	prctl(PR_SET_TIMERSLACK, 1ul); /* steps end when they should, not 50 us later */
	if (!w || world_open(w, &setup) < 0 || signals_open(w) < 0) {
		log_drain(100);
		return EXIT_RUNTIME;
	}
	if (setup.realtime)
		realtime_ask();
	announce(w);
	int err = world_run(w);
	world_close(w);
	if (err)
		log_say(LOG_ERROR, "the event loop failed: %s", strerror(-err));
	log_drain(100);
	return err ? EXIT_RUNTIME : EXIT_GOOD;
}
