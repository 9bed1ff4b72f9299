/* The worker: attaches to the region, builds the pools, turns the loop until told to stop. */
#include "router/worker.h"

#include "router/net/parts.h"
#include "router/route.h"
#include "shm/base/clock.h"
#include "shm/base/exit.h"
#include "shm/base/log.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

enum {
	OUTS_SLOW = 256,             /* clients that take slowly, each with a full buffer */
	TICK_NS = NS_PER_S,          /* engines, agents, region */
	PUBLISH_NS = 50 * NS_PER_MS, /* books and own timing */
	TRIM_NS = 250 * NS_PER_MS,   /* memory that was of no use for so long goes back */
	WHEEL_TICK_NS = 4 * NS_PER_MS,
	FD_RESERVE = 32,  /* files of the region, log, loop, listeners, signals */
	FD_ENGINE = 2,    /* each engine's agent's file and our question to it */
	NOTE_BYTES = 256, /* of a record in the ledger's ring */
	LEDGER_NOTES = 4096,
	CLOCK_EVENTS = 16,       /* deliveries that share one reading of the clock */
	CROWDED_TURNS_MAX = 256, /* that timers wait for what is at hand */
};

/* A session that is silent for longer has lost its cache anyway. */
static const uint64_t ACCEPT_SAY_NS = 10ull * NS_PER_S; /* between two lines of the log */
static const uint64_t SESSION_IDLE_NS = 3600ull * NS_PER_S;

uint64_t worker_random(struct worker *w)
{
	uint64_t x = w->random;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return w->random = x;
}

static uint64_t random_seed(void)
{
	uint64_t seed = 0;

	if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
		seed = clock_ns() ^ (uint64_t)getpid() << 32;
	return seed ? seed : 1;
}

/* ---- the region ---- */

/* The calibration section: a seed, what is learnt per engine, then the token models. */
struct calibration {
	uint64_t content_seed;
	uint64_t reserved[7];
	struct engine_learnt learnt[STATE_ENGINES_MAX];
};
static_assert(sizeof(struct calibration) % TABLE_ALIGN == 0, "the token models follow, aligned");

static void sizes_get(const struct worker *w, struct router_file_sizes *s)
{
	const struct router_settings *set = w->set;
	uint64_t seed = region_fingerprint(0, "calibration", sizeof(struct calibration));

	memset(s, 0, sizeof(*s));
	s->sessions = (struct router_section_size){
		sessions_size(set->sessions),
		region_fingerprint(0, "session", sizeof(struct session)), set->sessions
	};
	s->responses = (struct router_section_size){
		responses_size(set->responses),
		region_fingerprint(0, "response", sizeof(struct response)), set->responses
	};
	s->prefix =
		(struct router_section_size){ prefix_size(w->prefix_engines, set->prefix_blocks),
					      region_fingerprint(w->prefix_engines, "prefix",
								 set->prefix_blocks),
					      set->prefix_blocks };
	s->calibration =
		(struct router_section_size){ sizeof(struct calibration) + tokens_size(),
					      region_fingerprint(seed, "tokens", tokens_size()),
					      TOKENS_MODELS_MAX };
	s->journal_records = set->decisions;
	s->journal_record_size = (journal_decision_size(w->prefix_engines) + 63) / 64 * 64;
	s->counters = COUNTERS_NR + ENGINE_COUNTERS_NR * STATE_ENGINES_MAX;
}

/* The configuration's sizes have changed: what the old tables held is taken along. */
static void migrate(void *ctx, enum router_section section, const void *old_mem, size_t old_size,
		    void *new_mem, size_t new_size)
{
	const struct worker *w = ctx;
	struct responses from, to;

	if (section == ROUTER_SESSIONS)
		sessions_move(new_mem, new_size, w->set->sessions, old_mem, old_size);
	if (section == ROUTER_RESPONSES && responses_view(&from, old_mem, old_size) == 0 &&
	    responses_clear(&to, new_mem, new_size) == 0)
		table_copy(&to.table, &from.table);
}

static void attach_tables(struct worker *w)
{
	size_t n;
	void *mem = router_file_section(&w->file, ROUTER_SESSIONS, &n);
	struct calibration *c;

	if (sessions_attach(&w->sessions, mem, n, w->set->sessions, random_seed(), NULL) < 0)
		sessions_clear(&w->sessions, mem, n, w->set->sessions, random_seed());
	w->sessions.idle_ns = SESSION_IDLE_NS;
	mem = router_file_section(&w->file, ROUTER_RESPONSES, &n);
	if (responses_attach(&w->responses, mem, n, NULL) < 0)
		responses_clear(&w->responses, mem, n);
	mem = router_file_section(&w->file, ROUTER_PREFIX, &n);
	if (prefix_attach(&w->prefix, mem, n, w->prefix_engines, w->set->prefix_blocks) < 0)
		prefix_clear(&w->prefix, mem, n, w->prefix_engines, w->set->prefix_blocks);
	c = router_file_section(&w->file, ROUTER_CALIBRATION, &n);
	if (tokens_attach(&w->tokens, c + 1, n - sizeof(*c), NULL) < 0)
		tokens_clear(&w->tokens, c + 1, n - sizeof(*c));
	if (c->content_seed == 0)
		c->content_seed = random_seed();
	w->content_seed = c->content_seed;
	w->learnt = c->learnt;
}

void worker_engines_changed(struct worker *w)
{
	const char *names[STATE_ENGINES_MAX];

	for (uint32_t i = 0; i < w->engines_nr; i++) {
		struct engine *e = &w->engines[i];
		struct router_engine mine = { .weight = e->weight };

		names[i] = e->at.name;
		if (e->learnt)
			continue;
		e->region_index = router_file_engine(&w->file, e->at.name, 1);
		assert(e->region_index >= 0 && e->region_index < STATE_ENGINES_MAX);
		e->learnt = &w->learnt[e->region_index];
		e->own_restarts = e->learnt->restarts;
		if (router_file_engine_read(&w->file, e->region_index, &mine) == 0)
			e->drained = mine.drain != 0;
		memcpy(mine.name, e->at.name, sizeof(mine.name));
		mine.weight = e->weight;
		memcpy(mine.url, e->at.url, sizeof(mine.url));
		router_file_engine_publish(&w->file, e->region_index, &mine);
	}
	if (counters_bind(&w->counters, &w->file, names, w->engines_nr) < 0)
		log_say(LOG_ERROR, "the region has no room for the counters of %u engines",
			w->engines_nr);
}

/* Every key's value into the region: what explain, status and record show as in force. */
static void publish_params(struct worker *w)
{
	char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);

	if (!out)
		return;
	settings_values(w->set, out);
	if (fclose(out) == 0)
		router_file_params_publish(&w->file, text);
	free(text);
}

/*
 * What was in flight when an earlier worker died is lost with it: its clients saw their connections
 * cut. Counting it as failed keeps started = completed + failed + aborted + in flight.
 */
static void settle_counters(struct worker *w)
{
	uint64_t started = counter_value(&w->counters, COUNTER_requests_started);
	uint64_t ended = counter_value(&w->counters, COUNTER_requests_completed) +
			 counter_value(&w->counters, COUNTER_requests_failed) +
			 counter_value(&w->counters, COUNTER_requests_aborted);

	count(&w->counters, COUNTER_worker_starts, 1);
	if (started <= ended)
		return;
	count(&w->counters, COUNTER_requests_failed, started - ended);
	count(&w->counters, COUNTER_requests_lost, started - ended);
	log_say(LOG_WARN, "%lu requests were in flight when the last worker ended",
		(unsigned long)(started - ended));
}

static int open_region(struct worker *w)
{
	char error[REGION_ERROR_MAX] = "", note[REGION_ERROR_MAX] = "";
	struct router_file_sizes sizes;

	if (region_open(&w->region, w->set->region[0] ? w->set->region : NULL, 1, error) < 0) {
		log_say(LOG_ERROR, "%s", error);
		return -EXIT_REGION;
	}
	if (w->region.note[0])
		log_say(LOG_WARN, "%s", w->region.note);
	if (engines_init(w, error) < 0) {
		log_say(LOG_ERROR, "%s", error);
		return -EXIT_CONFIG;
	}
	sizes_get(w, &sizes);
	if (router_file_hold(&w->file, &w->region, &sizes, migrate, w, note, error) < 0 ||
	    ledger_file_hold(&w->ledger_file, &w->region, LEDGER_NOTES, NOTE_BYTES, error) < 0) {
		log_say(LOG_ERROR, "%s", error);
		return -EXIT_REGION;
	}
	if (note[0])
		log_say(LOG_WARN, "%s", note);
	attach_tables(w);
	worker_engines_changed(w);
	settle_counters(w);
	publish_params(w);
	return 0;
}

/* ---- memory ---- */

/*
 * Blocks of output: all that an eighth of the clients may have waiting, or 256 where that is more;
 * beyond, press_back() gives each less. What had been received when a stream was paused comes on
 * top.
 */
static uint64_t outs_max(const struct worker *w)
{
	uint64_t n = w->conns_max, slow = n / 8 > OUTS_SLOW ? n / 8 : n < OUTS_SLOW ? n : OUTS_SLOW;
	uint64_t received = w->set->receive_buffers * w->set->receive_buffer_size;

	return (slow * LIMIT_STREAM_BUFFER + received) / LIMIT_OUT_BLOCK + 1024;
}

static void pools_init(struct worker *w)
{
	uint32_t n = w->conns_max;

	slab_init(&w->bodies, "bodies", LIMIT_BODY_BLOCK, w->set->body_memory / LIMIT_BODY_BLOCK);
	slab_init(&w->heads, "heads", LIMIT_HEAD_BYTES + 2048, 2 * n + 64);
	slab_init(&w->outs, "outs", LIMIT_OUT_BLOCK, outs_max(w));
	slab_init(&w->exchanges, "exchanges", sizeof(struct exchange), n);
	slab_init(&w->scans, "scans", sizeof(struct scan_room), n);
	slab_init(&w->routes, "routes", sizeof(struct route), n);
	slab_init(&w->asked, "asked", sizeof(struct route_asked), n);
	slab_init(&w->stagings, "stagings", sizeof(struct staging),
		  n < LIMIT_STAGED ? n : LIMIT_STAGED);
}

/* Untouched pages of it cost nothing: as much as there are sessions. */
static int known_init(struct worker *w)
{
	uint32_t engines = w->prefix_engines;
	char *mem = calloc(1, prefix_known_size(engines) + PREFIX_KNOWN_ALIGN);

	if (!mem)
		return -ENOMEM;
	w->prefix_known_mem = mem;
	mem += PREFIX_KNOWN_ALIGN - (uintptr_t)mem % PREFIX_KNOWN_ALIGN;
	prefix_known_init(&w->prefix_known, mem, engines);
	return 0;
}

static int slots_init(struct worker *w)
{
	w->links_max = w->conns_max + STATE_ENGINES_MAX;
	w->conns = calloc(w->conns_max, sizeof(*w->conns));
	w->links = calloc(w->links_max, sizeof(*w->links));
	w->ledger = malloc(sizeof(*w->ledger));
	if (!w->conns || !w->links || !w->ledger || known_init(w) < 0 || staging_init(w) < 0)
		return -ENOMEM;
	ledger_init(w->ledger);
	ledger_params_init(&w->ledger_params);
	ledger_params_scale(&w->ledger_params, w->set->time_scale);
	for (uint32_t i = w->conns_max; i-- > 0;) {
		w->conns[i].index = i;
		w->conns[i].handle = -1;
		w->conns[i].next = w->conns_free;
		w->conns_free = &w->conns[i];
	}
	for (uint32_t i = w->links_max; i-- > 0;) {
		struct link *l = &w->links[i];

		l->index = i;
		l->handle = -1;
		l->next = w->links_free;
		l->prev = &w->links_free;
		if (l->next)
			l->next->prev = &l->next;
		w->links_free = l;
	}
	pools_init(w);
	return 0;
}

/* Two descriptors a request. The limit was raised to the hard one by the supervisor. */
static uint32_t connections_allowed(const struct worker *w)
{
	struct rlimit limit;
	uint64_t n = w->set->connections_max;
	uint64_t engines = w->set->engines_nr ? w->set->engines_nr : STATE_ENGINES_MAX;
	uint64_t kept = FD_RESERVE + FD_ENGINE * engines;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
		uint64_t fit = limit.rlim_cur > kept + 16 ? (limit.rlim_cur - kept) / 2 : 8;

		if (fit < n)
			n = fit;
	}
	return (uint32_t)n;
}

/* ---- events ---- */

static void accept_on(struct worker *w, struct listener *l)
{
	l->accepting = 1;
	loop_accept(w->loop, l->handle);
}

static void listener_event(struct worker *w, struct listener *l, const struct loop_event *ev)
{
	if (ev->op != LOOP_ACCEPTED)
		return;
	if (ev->res >= 0) {
		conn_accept(w, ev->res, l->admin);
		return;
	}
	l->accepting = 0; /* taken up again by the tick, when something may have been freed */
	if (w->now_ns >= w->accept_said_ns && !w->draining) {
		log_say(LOG_WARN, "no connection can be accepted: %s", strerror(-ev->res));
		w->accept_said_ns = w->now_ns + ACCEPT_SAY_NS;
	}
}

/* What stopped for want of descriptors, places or memory, and may go on. */
static void accept_again(struct worker *w)
{
	for (uint32_t i = 0; i < w->listeners_nr; i++)
		if (!w->listeners[i].accepting &&
		    (w->listeners[i].admin || !(w->draining || w->full)))
			accept_on(w, &w->listeners[i]);
}

static void stop_accepting(struct worker *w)
{
	for (uint32_t i = 0; i < w->listeners_nr; i++) {
		if (!w->listeners[i].admin)
			loop_pause(w->loop, w->listeners[i].handle);
		w->listeners[i].accepting = w->listeners[i].admin;
	}
}

void worker_full(struct worker *w)
{
	if (w->full)
		return;
	w->full = 1;
	stop_accepting(w);
	if (w->now_ns < w->accept_said_ns)
		return;
	log_say(LOG_WARN, "all %u places for connections are taken: others wait", w->conns_max);
	w->accept_said_ns = w->now_ns + ACCEPT_SAY_NS;
}

void worker_room(struct worker *w)
{
	if (!w->full)
		return;
	w->full = 0;
	accept_again(w);
}

/*
 * Whoever has connected is served; from here on connecting is refused, so that clients turn
 * elsewhere at once instead of waiting in a queue that nobody takes from.
 */
static void stop_listening(struct worker *w)
{
	for (uint32_t i = 0; i < w->listeners_nr; i++) {
		int listener = loop_fd(w->loop, w->listeners[i].handle), fd;

		if (w->listeners[i].admin)
			continue;
		fcntl(listener, F_SETFL, fcntl(listener, F_GETFL) | O_NONBLOCK);
		while (w->conns_free && !w->full &&
		       (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0)
			conn_accept(w, fd, 0);
		shutdown(listener, SHUT_RD);
	}
}

static void drain_begin(struct worker *w)
{
	log_say(LOG_INFO, "draining: %lu requests in flight, at most %lu s",
		(unsigned long)w->inflight_nr, (unsigned long)(w->set->drain_timeout / NS_PER_S));
	w->draining = 1;
	w->drain_until_ns = w->now_ns + w->set->drain_timeout;
	stop_accepting(w);
	stop_listening(w);
	conn_drain_all(w);
	for (uint32_t i = 0; i < w->engines_nr; i++)
		link_drop_idle(w, &w->engines[i]);
}

static void stop_now(struct worker *w)
{
	w->stopping = 1;
	conn_stop_all(w);
}

static void signal_event(struct worker *w)
{
	struct signalfd_siginfo si;

	while (read(w->signal_fd, &si, sizeof(si)) == sizeof(si)) {
		/* A signal to the whole group reaches us twice: the supervisor's counts. */
		if ((pid_t)si.ssi_pid != w->supervisor && getppid() == w->supervisor)
			continue;
		if (si.ssi_signo == SIGTERM || si.ssi_signo == SIGINT) {
			if (w->draining || si.ssi_signo == SIGINT)
				stop_now(w);
			else
				drain_begin(w);
		}
	}
}

static void on_event(void *ctx, const struct loop_event *ev)
{
	struct worker *w = ctx;
	uint32_t index = (uint32_t)ev->tag;
	uint16_t generation = (uint16_t)(ev->tag >> 32);

	if (w->now_age == 0)
		w->now_ns = clock_ns();
	w->now_age = (w->now_age + 1) % CLOCK_EVENTS;
	switch ((enum worker_tag_kind)(ev->tag >> 48)) {
	case TAG_CONN:
		if (w->conns[index].generation == generation)
			conn_event(w, &w->conns[index], ev);
		break;
	case TAG_LINK:
		if (w->links[index].generation == generation)
			link_event(w, &w->links[index], ev);
		break;
	case TAG_LISTENER:
		listener_event(w, &w->listeners[index], ev);
		break;
	case TAG_SIGNAL:
		signal_event(w);
		break;
	}
	/* Nothing keeps received bytes beyond its event: what must stay has been copied. */
	if (ev->op == LOOP_RECEIVED && ev->res > 0)
		loop_give_back(w->loop, ev->buffer);
}

/* ---- timers ---- */

/*
 * Fires what was due before the loop was last asked, so that all that had come in time has been
 * seen: a process that did not run for a while takes nobody else for late.
 */
static void expire(struct worker *w, uint64_t asked_ns)
{
	struct wheel_timer *t;

	while ((t = wheel_expire(&w->wheel, asked_ns))) {
		uintptr_t p = (uintptr_t)t;

		if (p >= (uintptr_t)w->conns && p < (uintptr_t)(w->conns + w->conns_max)) {
			size_t i = (p - (uintptr_t)w->conns) / sizeof(*w->conns);

			conn_timeout(w, &w->conns[i], t);
		} else {
			size_t i = (p - (uintptr_t)w->links) / sizeof(*w->links);

			assert(i < w->links_max);
			link_timeout(w, &w->links[i]);
		}
	}
}

static void pools_trim(struct worker *w)
{
	struct slab *all[] = { &w->bodies, &w->heads,  &w->outs,  &w->exchanges,
			       &w->scans,  &w->routes, &w->asked, &w->stagings };

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		slab_trim(all[i]);
	w->trim_ns = w->now_ns + TRIM_NS;
}

static void date_set(struct worker *w)
{
	time_t now = time(NULL);
	struct tm tm;

	strftime(w->date, sizeof(w->date), "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &tm));
}

static void tick(struct worker *w)
{
	date_set(w);
	engines_tick(w);
	w->stage.freed = 1; /* engines come and go, too */
	latency_tick(w);
	accept_again(w);
	w->tick_ns = w->now_ns + TICK_NS;
}

static void periodic(struct worker *w)
{
	if (w->now_ns >= w->publish_ns) {
		engines_read(w);
		route_assume_tokens(w);
		route_publish(w);
		latency_publish(w);
		conn_leavers(w);
		rescue_look(w);
		w->publish_ns = w->now_ns + PUBLISH_NS;
	}
	if (w->now_ns >= w->trim_ns)
		pools_trim(w);
	if (w->now_ns >= w->tick_ns)
		tick(w);
}

static int finished(struct worker *w)
{
	if (w->stopping)
		return w->conns_nr == 0;
	if (!w->draining)
		return 0;
	if (w->now_ns >= w->drain_until_ns) {
		log_say(LOG_WARN, "drain_timeout: %lu requests are cut",
			(unsigned long)w->inflight_nr);
		stop_now(w);
		return 0;
	}
	return w->conns_nr == w->admin_nr;
}

static uint64_t wait_ns(const struct worker *w)
{
	uint64_t wait = wheel_wait_ns(&w->wheel, w->now_ns), until = w->publish_ns;

	if (w->tick_ns < until)
		until = w->tick_ns;
	until = until > w->now_ns ? until - w->now_ns : 0;
	return wait < until ? wait : until;
}

static int turn(struct worker *w)
{
	while (!finished(w)) {
		uint64_t asked_ns = w->now_ns; /* a little earlier: nobody is taken for late */
		int err;

		w->now_age = 0; /* the loop may wait */
		w->turns++;
		err = loop_turn(w->loop, shadow_due(w) ? 0 : wait_ns(w));

		if (err < 0) {
			log_say(LOG_ERROR, "the event loop failed: %s", strerror(-err));
			return EXIT_RUNTIME;
		}
		w->now_ns = clock_ns();
		if (!loop_has_more(w->loop) || ++w->crowded == CROWDED_TURNS_MAX) {
			w->crowded = 0;
			expire(w, asked_ns);
		}
		if (w->hungry)
			conn_feed_hungry(w);
		requeue_turn(w);
		staging_let_out(w);
		periodic(w);
		shadow_turn(w, err);
		log_flush();
	}
	return EXIT_GOOD;
}

/* ---- start ---- */

static int loop_init(struct worker *w)
{
	struct loop_params params = {
		.kind = (enum loop_kind)w->set->io,
		.handles_max = w->conns_max + w->links_max + WORKER_LISTENERS_MAX + 4,
		.buffers = w->set->receive_buffers,
		.buffer_size = w->set->receive_buffer_size,
		.entries = w->set->ring_entries,
	};
	int err = loop_new(&w->loop, &params, on_event, w, &w->loop_why);

	if (err < 0) {
		log_say(LOG_ERROR, "%s", w->loop_why ? w->loop_why : strerror(-err));
		return -EXIT_KERNEL;
	}
	return 0;
}

static int signals_init(struct worker *w)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	if (sigprocmask(SIG_SETMASK, &set, NULL) < 0)
		return -errno;
	w->signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
	if (w->signal_fd < 0)
		return -errno;
	w->signal_handle = loop_add(w->loop, w->signal_fd, worker_tag(TAG_SIGNAL, 0, 0));
	if (w->signal_handle < 0)
		return w->signal_handle;
	loop_watch(w->loop, w->signal_handle);
	return 0;
}

/* One key a line; blank lines and lines that begin with # are left out. The file is read once. */
static int keys_load(struct worker *w)
{
	char line[SETTINGS_SECRET_MAX];
	unsigned line_nr = 1;
	FILE *in;

	if (!w->set->api_keys[0])
		return 0;
	in = fopen(w->set->api_keys, "re");
	if (!in) {
		log_say(LOG_ERROR, "api_keys: %s: %s", w->set->api_keys, strerror(errno));
		return -EXIT_CONFIG;
	}
	while (fgets(line, sizeof(line), in)) {
		size_t len = strcspn(line, "\r\n");
		char **more;

		if (line[len] == 0 && len == sizeof(line) - 1) { /* its rest would be a key, too */
			log_say(LOG_ERROR, "api_keys: %s: line %u is longer than %d bytes",
				w->set->api_keys, line_nr, SETTINGS_SECRET_MAX - 2);
			fclose(in);
			return -EXIT_CONFIG;
		}
		line_nr++;
		line[len] = 0;
		if (len == 0 || line[0] == '#')
			continue;
		more = realloc(w->api_keys.key, (w->api_keys.nr + 1) * sizeof(*more));
		if (!more)
			break;
		w->api_keys.key = more;
		more[w->api_keys.nr++] = strdup(line);
	}
	fclose(in);
	if (w->api_keys.nr)
		return 0;
	log_say(LOG_ERROR, "api_keys: %s holds no key", w->set->api_keys);
	return -EXIT_CONFIG;
}

static void paths_init(struct worker *w)
{
	w->path_rules.all = w->set->paths_all;
	for (unsigned i = 0; i < w->set->paths.nr && i < HTTP_PATHS_EXTRA; i++)
		w->path_rules.extra[w->path_rules.extras++] = w->set->paths.word[i];
}

static int listeners_init(struct worker *w, const struct listener *listeners, uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++) {
		struct listener *l = &w->listeners[i];

		*l = listeners[i];
		l->handle = loop_add(w->loop, l->fd, worker_tag(TAG_LISTENER, 0, i));
		if (l->handle < 0)
			return l->handle;
		accept_on(w, l);
	}
	w->listeners_nr = nr;
	return 0;
}

static void say_started(const struct worker *w)
{
	struct log_line line;

	log_begin(&line, LOG_INFO, "started");
	log_str(&line, "region", w->region.path);
	log_str(&line, "io", loop_kind_name(loop_kind_of(w->loop)));
	log_str(&line, "io_why", w->loop_why);
	log_u64(&line, "connections", w->conns_max);
	log_u64(&line, "engines", w->engines_nr);
	log_str(&line, "policy", policy_name(w->params.policy));
	if (w->shadow.on)
		log_str(&line, "shadow_policy", policy_name(w->shadow.params.policy));
	log_u64(&line, "sessions_known", w->sessions.table.used);
	log_end(&line);
}

int worker_run(const struct router_settings *settings, const struct listener *listeners,
	       uint32_t nr)
{
	struct worker *w = calloc(1, sizeof(*w));
	int code;

	if (!w)
		return EXIT_RUNTIME;
	w->set = settings;
	w->params = settings->policy;
	shadow_init(w);
	w->prefix_engines = STATE_ENGINES_MAX;
	if (settings->engines_nr)
		w->prefix_engines = settings->engines_nr < 8 ? 8 : settings->engines_nr;
	w->supervisor = getppid();
	w->random = random_seed();
	w->id_seed = random_seed();
	w->now_ns = w->started_ns = clock_ns();
	w->conns_max = connections_allowed(w);
	wheel_init(&w->wheel, WHEEL_TICK_NS, w->now_ns);
	region_guard(); /* a file truncated under us reads as zero, it does not end us */
	if (slots_init(w) < 0)
		return EXIT_RUNTIME;
	paths_init(w);
	code = keys_load(w);
	if (code == 0)
		code = open_region(w);
	if (code == 0)
		code = loop_init(w);
	if (code < 0)
		return -code;
	if (signals_init(w) < 0 || listeners_init(w, listeners, nr) < 0)
		return EXIT_RUNTIME;
	w->moves.since_ns = w->now_ns;
	tick(w);
	say_started(w);
	code = turn(w);
	route_publish(w);
	latency_publish(w);
	log_drain(500);
	engines_fini(w);
	if (w->probe_attached)
		latency_file_drop(&w->probe_file);
	ledger_file_drop(&w->ledger_file);
	router_file_drop(&w->file);
	region_close(&w->region);
	return code;
}
