/* The engines as the router knows them: attached agents, model lists, passive health. */
#include "router/engines.h"

#include "router/http/http.h"
#include "router/net/link.h"
#include "router/net/parts.h"
#include "router/route.h"
#include "router/worker.h"
#include "shm/base/clock.h"
#include "shm/base/jread.h"
#include "shm/base/log.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

enum {
	SLOW_START_SHARE = 5, /* one that has come back is charged so much of slow_start */
	AGENT_SILENT_S = 10,  /* an agent's list is trusted this long after its last sample */
};

static uint64_t name_hash(const char *name, size_t len)
{
	return XXH3_64bits(name, len);
}

/* ---- set-up ---- */

struct engine *engine_by_name(struct worker *w, const char *name)
{
	for (uint32_t i = 0; i < w->engines_nr; i++)
		if (strcmp(w->engines[i].at.name, name) == 0)
			return &w->engines[i];
	return NULL;
}

static struct engine *add(struct worker *w, const struct addr_engine *at)
{
	struct engine *e = &w->engines[w->engines_nr]; /* zero since the start, never given back */

	if (w->engines_nr == STATE_ENGINES_MAX)
		return NULL;
	e->index = w->engines_nr++;
	e->region_index = -1;
	e->at = *at;
	e->weight = 1;
	e->agent.file.fd = -1;
	latency_engine_init(w, &e->latency);
	return e;
}

int engines_init(struct worker *w, char *error)
{
	const struct router_settings *set = w->set;

	for (uint32_t i = 0; i < set->engines_nr; i++) {
		const struct settings_engine *from = &set->engines[i];
		struct engine *e = add(w, &from->at);

		if (!e) {
			snprintf(error, REGION_ERROR_MAX, "more than %d engines",
				 STATE_ENGINES_MAX);
			return -E2BIG;
		}
		e->configured = 1;
		e->weight = from->weight;
		e->any_model = from->any_model;
		e->kv_capacity = from->kv_capacity;
		e->kind = (uint32_t)from->kind;
		e->stage = (uint32_t)from->stage;
		e->step_budget = (uint32_t)from->step_budget;
		snprintf(e->key, sizeof(e->key), "%s", from->key[0] ? from->key : set->engine_key);
	}
	return 0;
}

void engines_fini(struct worker *w)
{
	for (uint32_t i = 0; i < w->engines_nr; i++)
		if (w->engines[i].attached)
			engine_file_drop(&w->engines[i].agent);
}

/* ---- models ---- */

static void models_clear(struct engine *e, enum models_source source)
{
	e->models_nr = 0;
	e->source = source;
}

static void models_add(struct engine *e, const char *name)
{
	size_t len = strnlen(name, STATE_MODEL_MAX + 1);

	if (len == 0 || len > STATE_MODEL_MAX || e->models_nr == STATE_MODELS_MAX)
		return;
	e->models_hash[e->models_nr] = name_hash(name, len);
	memcpy(e->models[e->models_nr], name, len);
	e->models[e->models_nr++][len] = 0;
}

/* Requests that waited for a list are decided now. */
static void wake_held(struct worker *w)
{
	for (struct exchange *x = w->inflight, *next; x; x = next) {
		next = x->next;
		if (x->conn->state == CONN_HOLD)
			conn_step(w, x->conn, CONN_EV_DECIDE, &(struct conn_input){ 0 });
	}
}

static void models_from_agent(struct worker *w, struct engine *e)
{
	uint32_t nr = e->info.models_nr < STATE_MODELS_MAX ? e->info.models_nr : STATE_MODELS_MAX;

	models_clear(e, nr ? MODELS_AGENT : MODELS_ANY);
	for (uint32_t i = 0; i < nr; i++) {
		e->info.models[i][STATE_MODEL_MAX] = 0;
		models_add(e, e->info.models[i]);
	}
	wake_held(w);
}

static void models_from_answer(struct worker *w, struct engine *e, const char *text, size_t len)
{
	struct jread doc, data;
	struct jread_walk walk;

	models_clear(e, MODELS_ANY); /* no list that can be read: it takes any name */
	if (len && jread_open(&doc, text, len) == 0 && jread_get(&doc, "data", &data) == 0) {
		jread_walk_begin(&walk, &data);
		while (data.type == JREAD_ARRAY && jread_walk_next(&walk)) {
			char name[STATE_MODEL_MAX + 8];

			if (jread_get_str(&walk.value, "id", name, sizeof(name)) == 0)
				models_add(e, name);
		}
		if (e->models_nr)
			e->source = MODELS_ASKED;
	}
	wake_held(w);
}

uint64_t engines_serving(const struct worker *w, const char *model, size_t len)
{
	uint64_t hash = name_hash(model, len), mask = 0;

	for (uint32_t i = 0; i < w->engines_nr; i++) {
		const struct engine *e = &w->engines[i];
		int serves = len == 0 || e->any_model || e->source == MODELS_ANY;

		for (uint32_t m = 0; !serves && m < e->models_nr; m++)
			serves = e->models_hash[m] == hash && len <= STATE_MODEL_MAX &&
				 memcmp(e->models[m], model, len) == 0 && !e->models[m][len];
		if (serves)
			mask |= 1ull << i;
	}
	return mask;
}

int engines_asking(const struct worker *w, int first)
{
	for (uint32_t i = 0; i < w->engines_nr; i++)
		if (w->engines[i].ask.link && (!first || w->engines[i].source == MODELS_UNKNOWN))
			return 1;
	return 0;
}

uint64_t engines_unlisted(const struct worker *w)
{
	uint64_t mask = 0;

	for (uint32_t i = 0; i < w->engines_nr; i++)
		if (w->engines[i].source == MODELS_UNKNOWN)
			mask |= 1ull << i;
	return mask;
}

/* ---- questions of our own ---- */

static void engine_probed(struct worker *w, struct engine *e, int good);

static void ask_end(struct worker *w, struct engine *e, int good)
{
	struct engine_ask *ask = &e->ask;
	struct block *answer = ask->answer;
	struct link *link = ask->link;

	ask->link = NULL;
	if (link->sending) {
		link->held_head = ask->out;
		ask->out = NULL;
	}
	link_drop(w, link);
	if (ask->out)
		slab_give(&w->heads, ask->out);
	ask->out = ask->answer = NULL;
	/*
	 * An engine that cannot be reached, or that is not ready, keeps what was known of it; one
	 * that answers without a list takes any name. What follows may ask the next question.
	 */
	if (ask->what == ASK_HEALTH)
		engine_probed(w, e, good && ask->status < 500);
	else if (good && ask->status < 500)
		models_from_answer(w, e, (char *)answer->data, ask->status == 200 ? ask->len : 0);
	else
		wake_held(w);
	slab_give(&w->bodies, answer);
}

static void ask_begin(struct worker *w, struct engine *e, enum engine_question what)
{
	struct engine_ask *ask = &e->ask;

	if (ask->link)
		return;
	*ask = (struct engine_ask){ .what = what };
	if (what == ASK_HEALTH) {
		e->probed_ns = w->now_ns;
	} else {
		e->asked_ns = w->now_ns;
		e->asked_restarts = e->own_restarts;
	}
	ask->out = block_take(&w->heads);
	ask->answer = block_take(&w->bodies);
	if (ask->out && ask->answer)
		ask->link = link_dial(w, e, LINK_ASK, 0);
	if (ask->link) {
		count(&w->counters, COUNTER_engine_questions, 1);
		return;
	}
	if (ask->out)
		slab_give(&w->heads, ask->out);
	if (ask->answer)
		slab_give(&w->bodies, ask->answer);
	*ask = (struct engine_ask){ 0 };
}

void engines_ask(struct worker *w)
{
	for (uint32_t i = 0; i < w->engines_nr; i++) {
		struct engine *e = &w->engines[i];

		if (w->now_ns - e->asked_ns > NS_PER_S / 2)
			ask_begin(w, e, ASK_MODELS);
	}
}

static void ask_send(struct worker *w, struct engine *e)
{
	static const char *const paths[] = {
#define PATH(id, path, meaning) [ASK_##id] = path,
		ENGINE_QUESTIONS(PATH)
#undef PATH
	};
	struct engine_ask *ask = &e->ask;
	struct iovec iov;

	ask->out->end =
		snprintf((char *)ask->out->data, block_capacity(&w->heads),
			 "GET %s HTTP/1.1\r\nhost: %s\r\n%s%s%s"
			 "x-turnward-internal: 1\r\nconnection: close\r\n\r\n",
			 paths[ask->what], e->at.host, e->key[0] ? "authorization: Bearer " : "",
			 e->key, e->key[0] ? "\r\n" : "");
	iov = (struct iovec){ ask->out->data, ask->out->end };
	ask->link->state = LINK_BUSY;
	ask->link->sending = 1;
	loop_send(w->loop, ask->link->handle, &iov, 1);
	loop_receive(w->loop, ask->link->handle);
	wheel_arm(&w->wheel, &ask->link->timer, w->now_ns + w->set->health_timeout);
}

/* Collects head and body in one block, the body decoded over the head's place. 1 when complete. */
static int ask_take(struct worker *w, struct engine *e, const uint8_t *data, size_t len)
{
	struct engine_ask *ask = &e->ask;
	struct block *b = ask->answer;
	size_t had = b->end, cap = block_capacity(&w->bodies);
	size_t at = 0;

	if (!ask->have_head) {
		size_t n = len < cap - had ? len : cap - had, end;

		memcpy(b->data + had, data, n);
		b->end += n;
		end = http_head_end((char *)b->data, b->end, had);
		if (end == 0)
			return b->end == cap ? -E2BIG : 0;
		w->head_of = NULL;
		if (http_response_parse(&w->head, (char *)b->data, end, HTTP_METHOD_GET) < 0)
			return -EPROTO;
		ask->have_head = 1;
		ask->status = w->head.status;
		http_body_begin(&ask->body, &w->head);
		at = end - had;
		b->end = 0;
	}
	for (;;) {
		const char *piece;
		size_t used, n;
		int done = http_body_step(&ask->body, (const char *)data + at, len - at, &used,
					  &piece, &n);

		if (done < 0)
			return done;
		if (n > cap - ask->len)
			return -E2BIG;
		memcpy(b->data + ask->len, piece, n);
		ask->len += n;
		at += used;
		if (done || at == len)
			return done;
	}
}

static void ask_unreached(struct worker *w, struct engine *e)
{
	ask_end(w, e, 0);
	engine_connect_failed(w, e);
}

void engine_ask_event(struct worker *w, struct link *link, const struct loop_event *ev)
{
	struct engine *e = &w->engines[link->engine];
	int got;

	assert(e->ask.link == link);
	switch (ev->op) {
	case LOOP_CONNECTED:
		if (ev->res == 0 && link->state == LINK_DIALING)
			ask_send(w, e);
		else
			ask_unreached(w, e);
		break;
	case LOOP_RECEIVED:
		if (ev->res > 0)
			got = ask_take(w, e, ev->data, ev->res);
		else
			got = ev->res == 0 && e->ask.have_head && http_body_eof(&e->ask.body) == 0
				      ? 1
				      : -EPIPE;
		if (got != 0)
			ask_end(w, e, got > 0);
		break;
	default:
		break;
	}
}

/* ---- agents ---- */

static void detach(struct engine *e)
{
	engine_file_drop(&e->agent);
	e->attached = 0;
	e->info_seq = e->state_seq = 0;
	memset(&e->state, 0, sizeof(e->state));
}

static void attach(struct worker *w, struct engine *e)
{
	char error[REGION_ERROR_MAX];

	if (e->attached && region_file_moved(&w->region, &e->agent.file))
		detach(e);
	if (!e->attached && engine_file_attach(&e->agent, &w->region, e->at.name, error) == 0)
		e->attached = 1;
}

static void read_info(struct worker *w, struct engine *e)
{
	uint64_t seq = 0;
	struct engine_info info;

	if (engine_file_read_info(&e->agent, &info, &seq) < 0 || seq == e->info_seq)
		return;
	e->info = info;
	e->info_seq = seq;
	/* An agent that has just begun knows no list yet: one that is known is asked for again. */
	if (e->info.models_nr || e->source == MODELS_UNKNOWN || e->source == MODELS_ANY)
		models_from_agent(w, e);
	else if (e->source == MODELS_AGENT)
		ask_begin(w, e, ASK_MODELS);
}

/* An engine that only the region names: from its agent's file. */
static void found(void *ctx, const char *file)
{
	struct worker *w = ctx;
	const char *name = file + strlen("engine.");
	char text[STATE_NAME_MAX + ADDR_URL_MAX + 4], error[REGION_ERROR_MAX], why[ADDR_WHY_MAX];
	struct engine_file agent;
	struct engine_info info;
	struct addr_engine at;
	struct engine *e;

	if (!region_engine_name_valid(name) || engine_by_name(w, name) ||
	    engine_file_attach(&agent, &w->region, name, error) < 0)
		return;
	if (engine_file_read_info(&agent, &info, NULL) == 0 &&
	    region_file_alive(&agent.file) == 1) {
		info.url[sizeof(info.url) - 1] = 0;
		snprintf(text, sizeof(text), "%s=%s", name, info.url);
		if (addr_engine_parse(&at, text, why) == 0 && (e = add(w, &at))) {
			snprintf(e->key, sizeof(e->key), "%s", w->set->engine_key);
			worker_engines_changed(w);
			log_say(LOG_INFO, "engine %s found in the region: %s", name, info.url);
		}
	}
	engine_file_drop(&agent);
}

static int agent_fresh(const struct worker *w, const struct engine *e)
{
	return e->attached && e->state.read_ns &&
	       w->now_ns - e->state.read_ns < AGENT_SILENT_S * (uint64_t)NS_PER_S;
}

/* An agent looks after its engine itself; one that is shut is looked after at every tick. */
static int probe_due(const struct worker *w, const struct engine *e)
{
	return w->set->health_period && (e->health.cause != HEALTH_NONE ||
					 w->now_ns - e->probed_ns >= w->set->health_period);
}

void engines_tick(struct worker *w)
{
	if (w->set->engines_nr == 0)
		region_list(&w->region, "engine.", found, w);
	for (uint32_t i = 0; i < w->engines_nr; i++) {
		struct engine *e = &w->engines[i];
		struct router_engine mine;

		attach(w, e);
		if (e->attached)
			read_info(w, e);
		if (e->region_index >= 0 &&
		    router_file_engine_read(&w->file, e->region_index, &mine) == 0)
			e->drained = mine.drain != 0;
		if (!agent_fresh(w, e) &&
		    (e->source == MODELS_UNKNOWN || e->own_restarts != e->asked_restarts ||
		     w->now_ns - e->asked_ns > w->set->models_period))
			ask_begin(w, e, ASK_MODELS);
		else if (!agent_fresh(w, e) && probe_due(w, e))
			ask_begin(w, e, ASK_HEALTH);
	}
}

void engines_prefetch(struct worker *w)
{
	for (uint32_t i = 0; i < w->engines_nr; i++) {
		if (w->engines[i].attached)
			engine_file_prefetch(&w->engines[i].agent, w->engines[i].state_seq);
		ledger_prefetch(w->ledger, i);
	}
}

/* All engines' misses are waited for together. Returns a bit for each with a new record. */
static uint64_t find_new(struct worker *w)
{
	uint64_t new = 0;

	for (uint32_t i = 0; i < w->engines_nr; i++) {
		const struct engine *e = &w->engines[i];

		if (e->attached && engine_file_seq(&e->agent) != e->state_seq) {
			engine_file_prefetch_state(&e->agent, e->state_seq);
			ledger_prefetch_recent(w->ledger, i);
			new |= 1ull << i;
		} else {
			ledger_prefetch_known(w->ledger, i);
		}
	}
	return new;
}

void engines_read(struct worker *w)
{
	uint64_t new = find_new(w), read = 0;

	for (; new; new &= new - 1) {
		struct engine *e = &w->engines[__builtin_ctzll(new)];
		uint64_t seen = e->state.read_ns;

		if (engine_file_read(&e->agent, &e->state, &e->state_seq) < 0)
			continue; /* the last good copy stays, with its age */
		if (e->state.read_ns == seen)
			continue;
		ledger_prefetch_past(w->ledger, &w->ledger_params, e->index, &e->state);
		read |= new & -new;
	}
	for (; read; read &= read - 1)
		route_observe(w, &w->engines[__builtin_ctzll(read)]);
}

/* ---- health ---- */

static void say_opened(struct worker *w, struct engine *e)
{
	log_say(LOG_INFO, "engine %s answers again", e->at.name);
	e->away = 0;
	ask_begin(w, e, ASK_MODELS);
}

static void say_shut(struct engine *e, const char *why)
{
	log_say(LOG_WARN, "engine %s gets no new work: %s", e->at.name, why);
}

void engine_connect_failed(struct worker *w, struct engine *e)
{
	if (health_connect_failed(&e->health, w->now_ns))
		say_shut(e, "it cannot be reached");
	if (!e->away) {
		/* Whatever its cache held is not assumed of the process that comes next. */
		e->away = 1;
		e->own_restarts++;
		route_engine_lost(w, e);
	}
	link_drop_idle(w, e);
}

void engine_failed(struct worker *w, struct engine *e)
{
	if (health_failed(&e->health, w->now_ns))
		say_shut(e, "its answers fail, one after the other");
}

void engine_answered(struct worker *w, struct engine *e)
{
	if (health_answered(&e->health, w->now_ns))
		say_opened(w, e);
}

void engine_refused(struct worker *w, struct engine *e, uint64_t pause_ns)
{
	if (health_refused(&e->health, w->now_ns, pause_ns))
		say_opened(w, e);
}

static void engine_probed(struct worker *w, struct engine *e, int good)
{
	if (!health_probed(&e->health, w->now_ns, good))
		return;
	if (good)
		say_opened(w, e);
	else
		say_shut(e, "GET /health fails");
}

static int agent_says_down(const struct worker *w, const struct engine *e)
{
	return agent_fresh(w, e) && e->state.health == ENGINE_HEALTH_DOWN;
}

enum health_standing engine_standing(const struct worker *w, const struct engine *e)
{
	return agent_says_down(w, e) ? HEALTH_CLOSED : health_standing(&e->health, w->now_ns);
}

int engine_up(const struct worker *w, const struct engine *e)
{
	return e->health.cause == HEALTH_NONE && !agent_says_down(w, e);
}

uint64_t engines_takers(const struct worker *w, uint64_t engines)
{
	uint64_t open = 0, first = 0, first_ns = UINT64_MAX;

	for (uint32_t i = 0; i < w->engines_nr; i++) {
		const struct engine *e = &w->engines[i];
		uint64_t ends_ns;
		int down;

		if (!(engines >> i & 1))
			continue;
		down = agent_says_down(w, e);
		if (!down && health_standing(&e->health, w->now_ns) == HEALTH_OPEN)
			open |= 1ull << i;
		/* An agent looks more often than requests come: last of all. */
		ends_ns = down ? UINT64_MAX - 1 : health_ends_ns(&e->health);
		if (ends_ns < first_ns) {
			first = 1ull << i;
			first_ns = ends_ns;
		}
	}
	return open ? open : first;
}

double engine_slow_start_s(const struct worker *w, const struct engine *e)
{
	return health_slow(&e->health, w->now_ns, w->set->slow_start) * (double)w->set->slow_start *
	       1e-9 / SLOW_START_SHARE;
}
