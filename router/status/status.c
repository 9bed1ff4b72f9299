/* Reads the region's files side by side into one picture. */
#include "router/status/status.h"

#include "shm/base/clock.h"
#include "shm/base/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kinds[] = { "unknown", "vllm", "sglang", "llamacpp" };
static const char *const healths[] = { "unknown", "up", "stalled", "down" };
static const char *const verdicts[] = { "ok", "warning", "critical", "unknown" };

enum { AGED_PERIODS = 20, AGED_NS = 2 * NS_PER_S, PARAMS_MAX = 32 * 1024 };

static const char *word(const char *const *words, size_t nr, uint64_t i)
{
	return words[i < nr ? i : 0];
}

/* ---- reading ---- */

static struct status_engine *engine_of(struct status *s, const char *name)
{
	struct status_engine *e;

	for (uint32_t i = 0; i < s->engines_nr; i++)
		if (strcmp(s->engines[i].name, name) == 0)
			return &s->engines[i];
	if (s->engines_nr == STATE_ENGINES_MAX || !region_engine_name_valid(name))
		return NULL;
	e = &s->engines[s->engines_nr++];
	memset(e, 0, sizeof(*e));
	snprintf(e->name, sizeof(e->name), "%s", name);
	e->region_index = -1;
	e->weight = 1;
	return e;
}

struct walk {
	struct status *status;
	const struct region *region;
};

static void read_agent(void *ctx, const char *file)
{
	struct walk *walk = ctx;
	char error[REGION_ERROR_MAX];
	struct engine_file agent;
	struct status_engine *e = engine_of(walk->status, file + strlen("engine."));

	if (!e || engine_file_attach(&agent, walk->region, e->name, error) < 0)
		return;
	e->agent_present = 1;
	e->agent_alive = region_file_alive(&agent.file) == 1;
	e->have_state = engine_file_read(&agent, &e->state, NULL) == 0 && e->state.read_ns;
	if (engine_file_read_info(&agent, &e->info, NULL) < 0)
		memset(&e->info, 0, sizeof(e->info));
	engine_file_drop(&agent);
}

static void read_router_engines(struct status *s, const struct router_file *file)
{
	for (unsigned i = 0; i < STATE_ENGINES_MAX; i++) {
		struct router_engine mine;
		struct status_engine *e;

		if (router_file_engine_read(file, i, &mine) < 0 || !mine.name[0])
			continue;
		mine.name[sizeof(mine.name) - 1] = 0;
		e = engine_of(s, mine.name);
		if (!e)
			continue;
		e->region_index = (int)i;
		e->drain = mine.drain;
		e->weight = mine.weight;
		e->have_timing = router_file_timing_read(file, i, &e->timing) == 0;
		e->timing_source = "router";
	}
}

static void read_counters(struct status *s, const struct router_file *file)
{
	unsigned nr = 0;
	struct router_counter *from = router_file_counters(file, &nr);

	s->counters = from && nr ? calloc(nr, sizeof(*s->counters)) : NULL;
	for (unsigned i = 0; s->counters && i < nr; i++) {
		struct router_counter *c = &s->counters[s->counters_nr];

		memcpy(c->name, from[i].name, sizeof(c->name));
		c->name[sizeof(c->name) - 1] = 0;
		if (!c->name[0])
			continue;
		atomic_store_explicit(&c->value,
				      atomic_load_explicit(&from[i].value, memory_order_relaxed),
				      memory_order_relaxed);
		s->counters_nr++;
	}
}

/* One line's value of the parameters in force: "policy.KEY = VALUE". */
static void param(const char *text, const char *key, char *ret, size_t size)
{
	const char *at = strstr(text, key);

	ret[0] = 0;
	if (at && (at == text || at[-1] == '\n')) {
		at += strlen(key);
		at += strspn(at, " =");
		snprintf(ret, size, "%.*s", (int)strcspn(at, "\n"), at);
	}
}

static void read_policies(struct status *s, const struct router_file *file)
{
	static const char policy[] = "policy.policy =", shadow[] = "policy.shadow_policy =";
	char text[PARAMS_MAX] = "";

	if (router_file_params_read(file, text, sizeof(text)) < 0)
		return;
	param(text, policy, s->policy, sizeof(s->policy));
	param(text, shadow, s->shadow_policy, sizeof(s->shadow_policy));
}

static void read_router(struct status *s, const struct region *region)
{
	char error[REGION_ERROR_MAX];
	struct router_file file;
	const struct region_header *h;

	if (router_file_attach(&file, region, error) < 0)
		return;
	h = (const struct region_header *)file.file.map;
	s->router_present = 1;
	s->router_alive = region_file_alive(&file.file) == 1;
	s->router_pid = h->writer_pid;
	s->router_generation = h->generation;
	read_router_engines(s, &file);
	read_counters(s, &file);
	read_policies(s, &file);
	router_file_drop(&file);
}

/* The books of the worker that lives; a dead one's count as zero. */
static void read_ledgers(struct status *s, const struct region *region)
{
	for (unsigned n = 0; n < LEDGER_FILES_MAX; n++) {
		char error[REGION_ERROR_MAX];
		struct ledger_file ledger;

		if (ledger_file_attach(&ledger, region, n, error) < 0)
			continue;
		for (unsigned i = 0; region_file_alive(&ledger.file) == 1 && i < STATE_ENGINES_MAX;
		     i++) {
			struct ledger_books books;
			struct status_engine *e;

			if (ledger_file_read(&ledger, i, &books) < 0 || !books.name[0])
				continue;
			books.name[sizeof(books.name) - 1] = 0;
			e = engine_of(s, books.name);
			if (!e)
				continue;
#define ADD(field, meaning) e->books.field += books.field;
			LEDGER_FIELDS(ADD)
#undef ADD
			e->books.updated_ns = books.updated_ns;
			e->have_books = 1;
		}
		ledger_file_drop(&ledger);
	}
}

/* The probe's record beats the router's own while it is younger than a second. */
static void read_probe(struct status *s, const struct region *region)
{
	char error[REGION_ERROR_MAX];
	struct latency_file file;

	if (latency_file_attach(&file, region, error) < 0)
		return;
	for (unsigned i = 0; i < STATE_ENGINES_MAX; i++) {
		struct status_engine *e;
		struct latency_record r;

		/* It may time engines of which neither router nor agent knows. */
		if (latency_file_read(&file, i, &r) < 0 || !latency_fresh(&r, s->now_ns) ||
		    !(e = engine_of(s, r.name)))
			continue;
		e->timing = r;
		e->have_timing = 1;
		e->timing_source = "probe";
	}
	latency_file_drop(&file);
}

static int engine_is_old(const struct status *s, const struct status_engine *e)
{
	uint64_t age = s->now_ns - e->state.read_ns, limit = AGED_PERIODS * e->state.period_ns;

	return age > (limit > AGED_NS ? limit : AGED_NS);
}

static void judge(struct status *s)
{
	uint32_t up = 0, bad = 0, known = 0;

	for (uint32_t i = 0; i < s->engines_nr; i++) {
		const struct status_engine *e = &s->engines[i];

		if (e->region_index < 0 && !e->agent_present)
			continue; /* only the probe knows it */
		known++;
		if (e->have_state && e->agent_alive && !engine_is_old(s, e))
			e->state.health == ENGINE_HEALTH_UP ? up++ : bad++;
		else if (e->agent_present)
			bad++;
		else
			up++; /* no agent: the router's own books serve it */
	}
	if (!s->router_alive && known == 0) {
		s->verdict = STATUS_UNKNOWN;
		snprintf(s->sentence, sizeof(s->sentence), "nothing runs in this region");
	} else if (!s->router_alive || up == 0) {
		s->verdict = STATUS_CRITICAL;
		snprintf(s->sentence, sizeof(s->sentence), "%s, %u of %u engines usable",
			 s->router_alive ? "router up" : "no router", up, known);
	} else {
		s->verdict = bad ? STATUS_WARNING : STATUS_OK;
		snprintf(s->sentence, sizeof(s->sentence), "router up, %u of %u engines usable", up,
			 known);
	}
}

int status_read(struct status *s, const struct region *region)
{
	struct walk walk = { s, region };

	memset(s, 0, sizeof(*s));
	snprintf(s->region, sizeof(s->region), "%s", region->path);
	read_router(s, region);
	region_list(region, "engine.", read_agent, &walk);
	read_ledgers(s, region);
	s->now_ns = clock_ns(); /* behind every reading: no age is negative */
	read_probe(s, region);
	judge(s);
	return 0;
}

void status_free(struct status *s)
{
	free(s->counters);
	s->counters = NULL;
}

uint64_t status_counter(const struct status *s, const char *name)
{
	for (uint32_t i = 0; i < s->counters_nr; i++)
		if (strcmp(s->counters[i].name, name) == 0)
			return atomic_load_explicit(&s->counters[i].value, memory_order_relaxed);
	return 0;
}

/* ---- JSON ---- */

static void age(struct json *j, const char *key, const struct status *s, uint64_t ns)
{
	if (ns)
		json_num(j, key, s->now_ns > ns ? (double)(s->now_ns - ns) * 1e-9 : 0, 6);
	else
		json_null(j, key);
}

/* uint64_t and double fields alike: the list knows the type. */
#define JSON_FIELD(j, name, value) \
	_Generic((value), double : json_f64, uint64_t : json_u64)(j, name, value)

static void agent_json(struct json *j, const struct status *s, const struct status_engine *e)
{
	json_object_begin(j, "agent");
	json_bool(j, "alive", e->agent_alive);
	age(j, "age_s", s, e->have_state ? e->state.read_ns : 0);
	json_num(j, "period_s", (double)e->state.period_ns * 1e-9, 6);
	json_str(j, "kind", word(kinds, 4, e->state.kind));
	json_str(j, "health", word(healths, 4, e->state.health));
	json_fmt(j, "epoch", "%016lx", (unsigned long)e->state.epoch);
	json_u64(j, "scrapes", e->state.scrapes);
	json_u64(j, "failures", e->state.failures);
	json_str(j, "url", e->info.url);
	json_str(j, "version", e->info.version);
	json_str(j, "gpu", e->info.gpu);
	json_array_begin(j, "models");
	for (uint64_t i = 0; i < e->info.models_nr && i < STATE_MODELS_MAX; i++)
		json_str(j, NULL, e->info.models[i]);
	json_array_end(j);
	json_object_begin(j, "fields");
#define PRESENT(name, type, unit, meaning) \
	if (ENGINE_HAS(&e->state, name))   \
		JSON_FIELD(j, #name, e->state.name);
	if (e->have_state) {
		ENGINE_FIELDS(PRESENT)
	}
#undef PRESENT
	json_object_end(j);
	json_array_begin(j, "missing");
#define MISSING(name, type, unit, meaning) \
	if (!ENGINE_HAS(&e->state, name))  \
		json_str(j, NULL, #name);
	ENGINE_FIELDS(MISSING)
#undef MISSING
	json_array_end(j);
	json_object_end(j);
}

static void timing_json(struct json *j, const struct status *s, const struct status_engine *e)
{
	const struct latency_record *t = &e->timing;

	json_object_begin(j, "latency");
	json_str(j, "source", e->timing_source);
	age(j, "age_s", s, t->updated_ns);
	age(j, "oldest_wait_s", s, t->oldest_wait_start_ns);
#define FIELD(name, type, meaning)                                                          \
	if (strcmp(#name, "updated_ns") != 0 && strcmp(#name, "oldest_wait_start_ns") != 0) \
		JSON_FIELD(j, #name, t->name);
	LATENCY_FIELDS(FIELD)
#undef FIELD
	json_object_end(j);
}

static void books_json(struct json *j, const struct status *s, const struct status_engine *e)
{
	json_object_begin(j, "ledger");
	age(j, "age_s", s, e->books.updated_ns);
#define FIELD(name, meaning)                  \
	if (strcmp(#name, "updated_ns") != 0) \
		json_u64(j, #name, e->books.name);
	LEDGER_FIELDS(FIELD)
#undef FIELD
	json_object_end(j);
}

static void engine_json(struct json *j, const struct status *s, const struct status_engine *e)
{
	json_object_begin(j, NULL);
	json_str(j, "name", e->name);
	json_str(j, "source", e->have_state ? "agent" : e->have_books ? "router" : "none");
	json_bool(j, "known_to_router", e->region_index >= 0);
	json_bool(j, "drained", e->drain != 0);
	json_num(j, "weight", e->weight, 6);
	if (e->agent_present)
		agent_json(j, s, e);
	else
		json_null(j, "agent");
	if (e->have_books)
		books_json(j, s, e);
	else
		json_null(j, "ledger");
	if (e->have_timing)
		timing_json(j, s, e);
	else
		json_null(j, "latency");
	json_object_end(j);
}

static void shadow_json(struct json *j, const struct status *s)
{
	if (!s->shadow_policy[0]) {
		json_null(j, "shadow");
		return;
	}
	json_object_begin(j, "shadow");
	json_str(j, "policy", s->shadow_policy);
	json_u64(j, "decisions", status_counter(s, "shadow_decisions"));
	json_u64(j, "disagreements", status_counter(s, "shadow_disagreements"));
	json_u64(j, "skipped", status_counter(s, "shadow_skipped"));
	json_f64(j, "regret_s", (double)status_counter(s, "shadow_regret_us") * 1e-6);
	json_f64(j, "excess_s", (double)status_counter(s, "shadow_excess_us") * 1e-6);
	json_object_end(j);
}

void status_json(struct json *j, const struct status *s)
{
	json_object_begin(j, NULL);
	json_str(j, "region", s->region);
	json_str(j, "verdict", word(verdicts, 4, s->verdict));
	json_str(j, "sentence", s->sentence);
	json_object_begin(j, "router");
	json_bool(j, "alive", s->router_alive);
	json_u64(j, "pid", s->router_pid);
	json_u64(j, "generation", s->router_generation);
	json_str(j, "policy", s->policy[0] ? s->policy : NULL);
	shadow_json(j, s);
	json_object_begin(j, "counters");
	for (uint32_t i = 0; i < s->counters_nr; i++)
		json_u64(j, s->counters[i].name,
			 atomic_load_explicit(&s->counters[i].value, memory_order_relaxed));
	json_object_end(j);
	json_object_end(j);
	json_array_begin(j, "engines");
	for (uint32_t i = 0; i < s->engines_nr; i++)
		engine_json(j, s, &s->engines[i]);
	json_array_end(j);
	json_object_end(j);
}
