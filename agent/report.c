/* The agent's words; see report.h. */
#include "agent/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/base/json.h"
#include "shm/base/log.h"

static const uint64_t repeat_ns = 60ull * NS_PER_S;

static const char *kind_name(uint64_t kind)
{
	const struct engine_ops *ops = engine_ops_of((enum engine_kind)kind);

	return ops ? ops->name : "unknown";
}

/* The name under which row `i` of the kind's table was found, or NULL. */
static const char *found_name(const struct engine_ops *ops, const struct engine_reading *reading,
			      size_t i, size_t *ret_len)
{
	const char *name = ops->wants[i].names;

	if (reading->found[i] == 0)
		return NULL;
	for (unsigned alias = 1; alias < reading->found[i]; alias++)
		name = strchr(name, '|') + 1;
	*ret_len = strcspn(name, "|");
	return name;
}

static void json_value_uint64_t(struct json *j, const char *name, uint64_t value)
{
	json_u64(j, name, value);
}

static void json_value_double(struct json *j, const char *name, double value)
{
	json_num(j, name, value, 6);
}

static void json_fields(struct json *j, const struct engine_state *state)
{
	json_object_begin(j, "fields");
#define JSON_FIELD(name, type, unit, meaning) \
	if (ENGINE_HAS(state, name))          \
		json_value_##type(j, #name, state->name);
	ENGINE_FIELDS(JSON_FIELD)
#undef JSON_FIELD
	json_object_end(j);
	json_array_begin(j, "missing");
#define JSON_MISSING(name, type, unit, meaning) \
	if (!ENGINE_HAS(state, name))           \
		json_str(j, NULL, #name);
	ENGINE_FIELDS(JSON_MISSING)
#undef JSON_MISSING
	json_array_end(j);
	json_array_begin(j, "trusted");
#define JSON_TRUSTED(name, type, unit, meaning)        \
	if (state->trusted >> ENGINE_FIELD_##name & 1) \
		json_str(j, NULL, #name);
	ENGINE_FIELDS(JSON_TRUSTED)
#undef JSON_TRUSTED
	json_array_end(j);
}

static void json_sources(struct json *j, const struct sampler *s)
{
	json_array_begin(j, "sources");
	for (size_t i = 0; i < SOURCES_NR; i++) {
		if (s->info.metrics_source >> i & 1)
			json_str(j, NULL, engine_source_path((enum engine_source)i));
	}
	json_array_end(j);
	json_array_begin(j, "metrics");
	for (size_t i = 0; s->ops && i < s->ops->wants_nr; i++) {
		size_t len;
		const char *name = found_name(s->ops, &s->reading, i, &len);

		if (name)
			json_mem(j, NULL, name, len);
	}
	json_array_end(j);
}

static int print_json(const struct sampler *s, const struct engine_state *state)
{
	char text[REPORT_JSON_MAX];
	struct json j;

	json_init(&j, text, sizeof(text));
	json_object_begin(&j, NULL);
	json_str(&j, "engine", s->info.name);
	json_str(&j, "url", s->info.url);
	json_str(&j, "kind", kind_name(state->kind));
	json_str(&j, "version", s->info.version);
	json_str(&j, "health", engine_health_name((enum engine_health)state->health));
	json_str(&j, "error", s->note[0] ? s->note : NULL);
	json_fmt(&j, "epoch", "%016" PRIx64, state->epoch);
	json_num(&j, "period_s", (double)state->period_ns * 1e-9, 6);
	json_str(&j, "gpu", s->info.gpu[0] ? s->info.gpu : NULL);
	json_array_begin(&j, "models");
	for (size_t i = 0; i < s->info.models_nr; i++)
		json_str(&j, NULL, s->info.models[i]);
	json_array_end(&j);
	json_fields(&j, state);
	json_sources(&j, s);
	json_object_end(&j);
	int err = json_finish(&j);
	if (err < 0)
		return err;
	printf("%.*s\n", (int)j.len, text);
	return 0;
}

static void print_uint64_t(const char *name, uint64_t value, const char *unit)
{
	printf("  %-24s %16" PRIu64 " %s\n", name, value, unit);
}

static void print_double(const char *name, double value, const char *unit)
{
	printf("  %-24s %16.6g %s\n", name, value, unit);
}

int report_print(const struct sampler *s, const struct engine_state *state, int as_json)
{
	if (as_json)
		return print_json(s, state);
	printf("%s at %s: %s %s, %s%s%s\n", s->info.name, s->info.url, kind_name(state->kind),
	       s->info.version, engine_health_name((enum engine_health)state->health),
	       s->note[0] ? ": " : "", s->note);
	for (size_t i = 0; i < s->info.models_nr; i++)
		printf("  serves %s\n", s->info.models[i]);
#define PRINT_FIELD(name, type, unit, meaning) \
	if (ENGINE_HAS(state, name))           \
		print_##type(#name, state->name, unit);
	ENGINE_FIELDS(PRINT_FIELD)
#undef PRINT_FIELD
	return 0;
}

static void log_missing(const struct sampler *s)
{
	char missing[LOG_TEXT_MAX] = "";
	size_t len = 0;
	struct log_line line;

#define ADD_MISSING(name, type, unit, meaning)                                         \
	if (!ENGINE_HAS(&s->state, name) && len + sizeof(#name) + 1 < sizeof(missing)) \
		len += (size_t)snprintf(missing + len, sizeof(missing) - len, "%s%s",  \
					len ? " " : "", #name);
	ENGINE_FIELDS(ADD_MISSING)
#undef ADD_MISSING
	log_begin(&line, LOG_INFO, "signals_missing");
	log_str(&line, "engine", s->info.name);
	log_str(&line, "fields", missing);
	log_end(&line);
}

/* Old names in use: a hint that the engine is old, and proof of which number is read. */
static void log_aliases(const struct sampler *s)
{
	for (size_t i = 0; s->ops && i < s->ops->wants_nr; i++) {
		struct log_line line;
		size_t len;
		const char *name = found_name(s->ops, &s->reading, i, &len);

		if (!name || s->reading.found[i] == 1)
			continue;
		log_begin(&line, LOG_INFO, "metric_alias");
		log_str(&line, "engine", s->info.name);
		log_mem(&line, "found", name, len);
		log_end(&line);
	}
}

static void log_engine(const struct report *was, const struct sampler *s)
{
	const struct engine_state *is = &s->state;
	int bad = is->health == ENGINE_HEALTH_DOWN || is->health == ENGINE_HEALTH_STALLED;
	struct log_line line;

	log_begin(&line, bad ? LOG_WARN : LOG_INFO, "engine");
	log_str(&line, "engine", s->info.name);
	log_str(&line, "health", engine_health_name((enum engine_health)is->health));
	log_str(&line, "kind", kind_name(is->kind));
	log_bool(&line, "restarted", was->epoch && was->epoch != is->epoch);
	log_u64(&line, "models", s->info.models_nr);
	log_f64(&line, "period_s", (double)is->period_ns * 1e-9);
	if (s->note[0])
		log_str(&line, "why", s->note);
	log_end(&line);
}

static void log_note(struct report *report, const struct sampler *s, uint64_t now_ns)
{
	struct log_line line;

	if (!s->note[0] ||
	    (strcmp(report->note, s->note) == 0 && now_ns - report->note_ns < repeat_ns))
		return;
	memcpy(report->note, s->note, sizeof(report->note));
	report->note_ns = now_ns;
	log_begin(&line, LOG_WARN, "scrape_failed");
	log_str(&line, "engine", s->info.name);
	log_str(&line, "why", s->note);
	log_u64(&line, "failures", s->state.failures);
	log_end(&line);
}

void report_changes(struct report *report, const struct sampler *s, uint64_t now_ns)
{
	const struct engine_state *is = &s->state;

	if (report->health != is->health || report->epoch != is->epoch || report->kind != is->kind)
		log_engine(report, s);
	if (report->sources != s->info.metrics_source && is->scrapes > 0) {
		log_aliases(s);
		log_missing(s);
	}
	log_note(report, s, now_ns);
	report->health = is->health;
	report->epoch = is->epoch;
	report->kind = is->kind;
	report->sources = s->info.metrics_source;
}
