/* turnward-probe: times engines' answers in the kernel and publishes windows of them. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bpf/collect.h"
#include "bpf/lease.h"
#include "bpf/place.h"
#include "bpf/probe.h"
#include "bpf/samples.h"
#include "bpf/show.h"
#include "bpf/sockets.h"
#include "bpf/targets.h"
#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/base/exit.h"
#include "shm/base/log.h"
#include "shm/base/opt.h"
#include "shm/base/scoped.h"
#include "shm/base/stop.h"

enum probe_opt {
	OPT_NONE,
	OPT_ENGINE,
	OPT_REGION,
	OPT_CGROUP,
	OPT_SAMPLES,
	OPT_PRINT,
	OPT_WINDOW,
	OPT_REQUIRE,
	OPT_BOUNDED,
	OPT_FIRST_EVENT,
	OPT_LOG_LEVEL,
};

static const struct opt options[] = {
	{ .name = "engine",
	  .value = "NAME=URL",
	  .help = "an engine to time; may be repeated (the region's)",
	  .id = OPT_ENGINE },
	{ .name = "region",
	  .value = "DIR",
	  .help = "the shared region; default as all programs",
	  .id = OPT_REGION },
	{ .name = "cgroup",
	  .value = "PATH",
	  .help = "watch this cgroup2 (the router's; / is all)",
	  .id = OPT_CGROUP },
	{ .name = "samples",
	  .value = "FILE",
	  .help = "one JSON line for each request that ended",
	  .id = OPT_SAMPLES },
	{ .name = "print", .help = "show a table every second", .id = OPT_PRINT },
	{ .name = "window",
	  .value = "TIME",
	  .help = "that quantiles look back (30s)",
	  .id = OPT_WINDOW },
	{ .name = "require-bpf",
	  .help = "fail with exit 5 where the kernel refuses",
	  .id = OPT_REQUIRE },
	{ .name = "bounded-loop", .id = OPT_BOUNDED },
	{ .name = "first-event", .id = OPT_FIRST_EVENT },
	{ .name = "log-level",
	  .value = "LEVEL",
	  .help = "error, warn, info (default), debug, trace",
	  .id = OPT_LOG_LEVEL },
	{ 0 },
};

static const struct opt_program program = {
	.name = "turnward-probe",
	.operands = "[options]",
	.purpose = "Times engines' first tokens in the kernel (eBPF), for the router or alone.",
	.options = options,
	.examples = "  turnward-probe\n"
		    "  turnward-probe --engine gpu0=http://127.0.0.1:8000 --print\n",
};

static const struct conf_key window_key = { .name = "window",
					    .type = CONF_TIME,
					    .size = sizeof(uint64_t),
					    .standard = "30s",
					    .min = 0.01,
					    .max = 3600 };

static const uint64_t HEARTBEAT_NS = 100ull * NS_PER_MS;
static const uint64_t NEWS_NS = 50ull * NS_PER_MS; /* between two records while something happens */

struct daemon_options {
	const char *region, *cgroup, *samples;
	const char *engine[STATE_ENGINES_MAX];
	unsigned engines;
	uint64_t window_ns;
	int print, require;
	struct probe_options probe;
	enum log_level log_level;
};

struct daemon {
	struct daemon_options options;
	struct place place;
	struct probe *probe;
	struct targets targets;
	struct collect collect;
	struct lease lease;
	char lease_said[REGION_ERROR_MAX];
	struct samples samples;
	struct latency_record records[STATE_ENGINES_MAX];
	struct probe_counters counters;
	uint64_t now_ns;
	uint64_t taken_ns;     /* a record came last */
	uint64_t taken, ended; /* records, and those of them that end a request */
	uint64_t publish_ns;   /* done last */
	uint64_t tick_ns, show_ns;
	uint8_t news; /* records came since the last publishing */
	sigset_t wait_mask;
};

/* ---- options ---- */

static void take_window(struct daemon_options *o, const char *text)
{
	char why[CONF_ERROR_MAX];

	if (conf_value(&window_key, &o->window_ns, text, why, sizeof(why)) < 0)
		opt_fail(&program, "--window %s: %s", text, why);
}

static void take_log_level(struct daemon_options *o, const char *text)
{
	static const char *const words[] = { "error", "warn", "info", "debug", "trace", NULL };
	int level = log_level_parse(text);

	if (level < 0)
		opt_unknown(&program, "log level", text, words);
	o->log_level = (enum log_level)level;
}

static void take_option(struct daemon_options *o, enum probe_opt id, const char *value)
{
	switch (id) {
	case OPT_NONE:
		break;
	case OPT_ENGINE:
		if (o->engines == STATE_ENGINES_MAX)
			opt_fail(&program, "at most %d engines", STATE_ENGINES_MAX);
		o->engine[o->engines++] = value;
		break;
	case OPT_REGION:
		o->region = value;
		break;
	case OPT_CGROUP:
		o->cgroup = value;
		break;
	case OPT_SAMPLES:
		o->samples = value;
		break;
	case OPT_PRINT:
		o->print = 1;
		break;
	case OPT_WINDOW:
		take_window(o, value);
		break;
	case OPT_REQUIRE:
		o->require = 1;
		break;
	case OPT_BOUNDED:
		o->probe.bounded = true;
		break;
	case OPT_FIRST_EVENT:
		o->probe.first_event_rule = true;
		break;
	case OPT_LOG_LEVEL:
		take_log_level(o, value);
		break;
	}
}

static void options_read(struct daemon_options *o, int argc, char **argv)
{
	struct opt_scan scan;
	int id;

	*o = (struct daemon_options){ .window_ns = 30ull * NS_PER_S, .log_level = LOG_INFO };
	opt_begin(&scan, &program, argc, argv);
	while ((id = opt_next(&scan)) != OPT_END)
		take_option(o, (enum probe_opt)id, scan.value);
	if (scan.first < argc)
		opt_fail(&program, "'%s' is not expected", argv[scan.first]);
}

/* ---- where the kernel refuses ---- */

enum { CAP_NET_ADMIN_BIT = 12, CAP_SYS_ADMIN_BIT = 21, CAP_PERFMON_BIT = 38, CAP_BPF_BIT = 39 };

static uint64_t capabilities(void)
{
	scoped(file_drop) FILE *in = fopen("/proc/self/status", "re");
	unsigned long long have = 0;
	char line[256];

	while (in && fgets(line, sizeof(line), in))
		if (sscanf(line, "CapEff: %llx", &have) == 1)
			break;
	return have;
}

/* What is missing and how to grant it, one command each. */
static void say_grants(void)
{
	static const struct {
		int bit;
		const char *name;
	} needed[] = { { CAP_BPF_BIT, "CAP_BPF" },
		       { CAP_NET_ADMIN_BIT, "CAP_NET_ADMIN" },
		       { CAP_PERFMON_BIT, "CAP_PERFMON" } };
	uint64_t have = capabilities();
	char self[512] = "turnward-probe";
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	int missing = 0;

	if (n > 0)
		self[n] = 0;
	for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
		if (have >> needed[i].bit & 1)
			continue;
		fprintf(stderr, "turnward-probe: %s is missing\n", needed[i].name);
		missing = 1;
	}
	if (!missing)
		return;
	fprintf(stderr,
		"turnward-probe: grant them to the program:\n"
		"  setcap cap_bpf,cap_net_admin,cap_perfmon=ep %s\n"
		"turnward-probe: or to its systemd unit:\n"
		"  AmbientCapabilities=CAP_BPF CAP_NET_ADMIN CAP_PERFMON\n",
		self);
}

/* Nothing depends on the probe: the router's own timing is there, and readers say which they have.
 */
static int fall_back(const struct daemon *d, int err, const char *reason)
{
	fprintf(stderr, "turnward-probe: %s\n", reason);
	if (err == -EPERM)
		say_grants();
	if (d->options.require)
		return EXIT_KERNEL;
	fprintf(stderr, "turnward-probe: nothing to do: latency comes from the router's own "
			"timing (source \"router\")\n");
	return EXIT_GOOD;
}

/* ---- records ---- */

static void take_record(void *context, const struct probe_record *record)
{
	struct daemon *d = context;
	char line[COLLECT_SAMPLE_MAX];

	d->news = 1;
	d->taken_ns = d->now_ns;
	d->taken++;
	if (!collect_take(&d->collect, record, d->now_ns))
		return;
	d->ended++;
	if (d->options.samples)
		samples_put(&d->samples, line,
			    collect_sample(line, record, d->targets.target[record->engine].name));
}

struct settling {
	const struct sockets *sockets;
	uint64_t now_ns;
};

/* An entry whose records were lost may be of an earlier request of a socket that waits again. */
static enum open_socket ask_socket(void *ctx, struct open_entry *entry)
{
	const struct settling *s = ctx;
	const struct socket_seen *seen = sockets_find(s->sockets, entry->cookie);
	uint64_t sent_ns;

	if (!seen)
		return OPEN_SOCKET_GONE;
	if (seen->received_ms < seen->sent_ms)
		return OPEN_SOCKET_ANSWERED;
	sent_ns = s->now_ns - seen->sent_ms * (uint64_t)NS_PER_MS;
	if (sent_ns > entry->sent_ns + NS_PER_S)
		entry->start_ns = entry->sent_ns = sent_ns;
	return OPEN_SOCKET_SILENT;
}

/* Records were lost: what waits is asked of the sockets themselves. */
static void settle(struct daemon *d)
{
	struct sockets sockets = { 0 };
	struct settling s = { &sockets, d->now_ns };
	int err = sockets_read(&sockets);

	log_say(LOG_WARN, "%llu records lost so far: what waits is settled by %u sockets%s%s",
		d->counters.drops, sockets.n, err < 0 ? ", " : "", err < 0 ? strerror(-err) : "");
	open_settle(&d->collect.open, ask_socket, &s);
	sockets_free(&sockets);
}

static void publish(struct daemon *d)
{
	if (probe_counters(d->probe, &d->counters) == 0 &&
	    collect_lost(&d->collect, d->counters.drops))
		settle(d);
	collect_records(&d->collect, d->now_ns, d->records, d->targets.nr);
	for (uint32_t i = 0; i < d->targets.nr; i++) {
		struct latency_record *r = &d->records[i];

		memcpy(r->name, d->targets.target[i].name, sizeof(r->name));
		/* What cannot be seen must not hide what the router sees of it. */
		if (!r->name[0] || d->targets.target[i].addresses_nr == 0)
			r->updated_ns = 0;
	}
	lease_publish(&d->lease, d->records, d->targets.nr);
	d->publish_ns = d->now_ns;
	d->news = 0;
}

/* ---- engines, cgroup, lease ---- */

static int watch_targets(struct daemon *d)
{
	static struct probe_address list[PROBE_ADDRESSES_MAX];
	unsigned n = targets_addresses(&d->targets, list, PROBE_ADDRESSES_MAX);
	int err = probe_engines_set(d->probe, list, n);

	for (uint32_t i = 0; i < d->targets.nr; i++) {
		const struct target *t = &d->targets.target[i];

		if ((d->targets.renamed >> i & 1) &&
		    collect_engine_reset(&d->collect, i, d->options.window_ns) < 0)
			log_say(LOG_ERROR, "engine %s is not timed: no memory", t->name);
		if (t->name[0])
			log_say(LOG_INFO, "engine %s: %s, %u addresses%s%s", t->name, t->url,
				t->addresses_nr, t->why[0] ? ": " : "", t->why);
	}
	d->targets.renamed = 0;
	d->targets.changed = 0;
	if (err < 0)
		log_say(LOG_ERROR, "the engines' addresses are not taken: %s", strerror(-err));
	return err;
}

static void keep_lease(struct daemon *d)
{
	static const struct {
		enum log_level level;
		const char *text;
	} news[] = {
#define LEASE_NEWS_ROW(id, level, text) { level, text },
		LEASE_NEWS(LEASE_NEWS_ROW)
#undef LEASE_NEWS_ROW
	};
	enum lease_news n = lease_keep(&d->lease, d->now_ns);

	/* What fails is tried four times a second, and told once. */
	if (n == LEASE_FAILED && strcmp(d->lease.error, d->lease_said) == 0)
		return;
	if (n != LEASE_NONE)
		snprintf(d->lease_said, sizeof(d->lease_said), "%s", d->lease.error);
	if (n != LEASE_NONE)
		log_say(news[n].level, "%s%s%s", news[n].text, d->lease.error[0] ? ": " : "",
			d->lease.error);
}

/* ---- the place in the cgroup tree ---- */

static void describe(struct daemon *d)
{
	struct latency_info info = { .started_ns = d->now_ns,
				     .attached = 1,
				     .window_ns = d->options.window_ns };
	const char *cgroup = d->place.cgroup.path;
	struct log_line line;

	snprintf(info.source, sizeof(info.source), "%s", probe_variant(d->probe));
	snprintf(info.detail, sizeof(info.detail), "every socket made in cgroup %.100s (%s)",
		 cgroup, place_words(&d->place));
	lease_describe(&d->lease, &info);
	log_begin(&line, LOG_INFO, "attached");
	log_str(&line, "region", d->lease.open ? d->lease.region.path : "none");
	log_str(&line, "cgroup", cgroup);
	log_str(&line, "chosen", place_words(&d->place));
	log_str(&line, "variant", info.source);
	log_u64(&line, "engines", d->targets.nr);
	log_end(&line);
	if (d->place.cgroup.made)
		log_say(LOG_WARN,
			"cgroup %s was made and is empty: start the router in it "
			"(echo $$ > %s/cgroup.procs, then the router)",
			cgroup, cgroup);
}

/* What waits was sent by sockets that may be out of sight now, and would wait for ever. */
static enum open_socket out_of_sight(void *ctx, struct open_entry *entry)
{
	return entry->token ? OPEN_SOCKET_SILENT : OPEN_SOCKET_GONE;
}

/* Sockets belong to the cgroup that their maker was in when it made them. 1 = another place. */
static int follow_router(struct daemon *d)
{
	char inside[CGROUP_PATH_MAX];
	struct place to;
	int err;

	if (!d->lease.open)
		return 0;
	if (place_misses_router(&d->place, &d->lease.region, inside))
		log_say(LOG_WARN,
			"the router (pid %d) is in cgroup %s, outside of %s: none of its "
			"connections is seen; start it in there, or leave --cgroup out",
			d->place.outside_pid, inside, d->place.cgroup.path);
	if (!place_moved(&d->place, &d->lease.region, &to))
		return 0;
	err = probe_move(d->probe, to.cgroup.fd);
	if (err < 0) {
		log_say(LOG_ERROR, "cgroup %s (%s) cannot be attached to: %s", to.cgroup.path,
			place_words(&to), strerror(-err));
		cgroup_close(&to.cgroup);
		return 0;
	}
	cgroup_close(&d->place.cgroup);
	d->place = to;
	open_doubt(&d->collect.open);
	open_settle(&d->collect.open, out_of_sight, NULL);
	return 1;
}

static void tick(struct daemon *d)
{
	d->tick_ns = d->now_ns;
	if (d->options.engines == 0 && d->lease.open)
		targets_follow(&d->targets, &d->lease.region, d->now_ns);
	targets_retry(&d->targets, d->now_ns);
	if (d->targets.changed)
		watch_targets(d);
	if (open_expire(&d->collect.open, d->now_ns))
		log_say(LOG_INFO, "requests older than %d s are no longer counted as waiting",
			OPEN_AGE_MAX_S);
	if (follow_router(d))
		describe(d);
}

/* ---- the life of a probe ---- */

/* 0, or -errno when the ring is lost. */
static int turn(struct daemon *d)
{
	int drained;

	d->now_ns = clock_ns();
	drained = probe_drain(d->probe, take_record, d);
	if (d->options.samples && samples_flush(&d->samples) < 0)
		log_say(LOG_ERROR, "%s: %s", d->options.samples, strerror(errno));
	keep_lease(d);
	if (d->now_ns - d->publish_ns >= (d->news ? NEWS_NS : HEARTBEAT_NS))
		publish(d);
	if (d->now_ns - d->tick_ns >= NS_PER_S)
		tick(d);
	if (d->options.print && d->now_ns - d->show_ns >= NS_PER_S) {
		d->show_ns = d->now_ns;
		show_table(stdout, &d->targets, d->records, &d->counters, d->now_ns,
			   d->options.window_ns);
	}
	log_flush();
	return drained < 0 ? drained : 0;
}

static void rest(const struct daemon *d)
{
	int ms = d->now_ns - d->taken_ns < NS_PER_S ? PROBE_DRAIN_MS : PROBE_DRAIN_IDLE_MS;
	struct timespec wait = { .tv_nsec = (long)ms * NS_PER_MS };

	ppoll(NULL, 0, &wait, &d->wait_mask);
}

/* 0 or the exit code to end with at once. */
static int engines_given(struct daemon *d)
{
	char why[TARGET_WHY_MAX];

	for (unsigned i = 0; i < d->options.engines; i++) {
		int err = targets_add(&d->targets, d->options.engine[i], d->now_ns, why);

		if (err == -EHOSTUNREACH) {
			fprintf(stderr, "turnward-probe: --engine %s\n", why);
			return EXIT_CONFIG;
		}
		if (err < 0)
			opt_fail(&program, "--engine %s", why);
	}
	return 0;
}

static int region_given(struct daemon *d)
{
	const struct daemon_options *o = &d->options;

	region_guard();
	if (lease_open(&d->lease, o->region) == 0) {
		if (d->lease.region.note[0])
			log_say(LOG_WARN, "%s", d->lease.region.note);
		return 0;
	}
	if (!o->region && o->engines && (o->print || o->samples)) {
		log_say(LOG_WARN, "nothing is published: %s", d->lease.error);
		return 0;
	}
	fprintf(stderr, "turnward-probe: %s\n", d->lease.error);
	return EXIT_REGION;
}

/* The kernel's counts beside ours: what does not add up was lost. */
static void count_up(struct daemon *d)
{
	struct log_line line;

	probe_counters(d->probe, &d->counters);
	log_begin(&line, LOG_INFO, "counted");
	log_u64(&line, "requests", d->counters.requests);
	log_u64(&line, "taken", d->taken);
	log_u64(&line, "ended", d->ended);
	log_u64(&line, "lost", d->counters.drops);
	log_u64(&line, "open", d->collect.open.n);
	log_end(&line);
}

static int start(struct daemon *d)
{
	char reason[PROBE_REASON_SIZE], why[CGROUP_WHY_MAX];
	int code = engines_given(d), err;

	if (code)
		return code;
	err = place_open(&d->place, d->options.cgroup, d->options.engines > 0, why);
	if (err < 0) {
		if (d->options.cgroup)
			d->options.require = 1; /* asked for by name: not passed over */
		return fall_back(d, err, why);
	}
	d->options.probe.cgroup_fd = d->place.cgroup.fd;
	err = probe_open(&d->probe, &d->options.probe, reason);
	if (err < 0)
		return fall_back(d, err, reason);
	code = region_given(d);
	if (code)
		return code;
	if (d->options.samples && samples_open(&d->samples, d->options.samples) < 0) {
		fprintf(stderr, "turnward-probe: --samples %s: %s\n", d->options.samples,
			strerror(errno));
		return EXIT_RUNTIME;
	}
	collect_init(&d->collect);
	follow_router(d);
	describe(d);
	while (err == 0 && !stop_asked) {
		err = turn(d);
		rest(d);
	}
	turn(d); /* what is in the ring still */
	count_up(d);
	if (err < 0)
		log_say(LOG_ERROR, "the ring cannot be read: %s", strerror(-err));
	return err < 0 ? EXIT_RUNTIME : EXIT_GOOD;
}

int main(int argc, char **argv)
{
	static struct daemon d;
	int code;

	stop_signals(&d.wait_mask); /* first: from the first instant on a stop is clean */
	options_read(&d.options, argc, argv);
	log_open(program.name, d.options.log_level);
	d.place.cgroup.fd = d.samples.fd = -1;
	d.now_ns = clock_ns();
	code = start(&d);
	if (d.probe)
		probe_close(d.probe);
	if (samples_close(&d.samples) < 0 && code == EXIT_GOOD)
		code = EXIT_RUNTIME;
	lease_close(&d.lease);
	collect_fini(&d.collect);
	cgroup_close(&d.place.cgroup);
	if (stop_asked)
		log_say(LOG_INFO, "stopped");
	log_drain(200);
	return code;
}
