/* Prometheus metrics of the router: counters from their list, gauges per engine, histograms. */
#include "router/metrics.h"

#include "router/route.h"
#include "router/status/status.h"
#include "router/worker.h"
#include "shm/base/clock.h"
#include "shm/base/json.h"
#include "shm/base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#ifdef TURNWARD_JEMALLOC
#include <jemalloc/jemalloc.h>
#endif

void metrics_head(FILE *out, const char *name, const char *type, const char *help)
{
	fprintf(out, "# HELP turnward_%s %s\n# TYPE turnward_%s %s\n", name, help, name, type);
}

static void gauge(FILE *out, const char *name, const char *help, double value)
{
	metrics_head(out, name, "gauge", help);
	fprintf(out, "turnward_%s %.17g\n", name, value);
}

/* Microseconds are kept as whole numbers and shown in Prometheus' unit. */
static void counter(FILE *out, const char *word, const char *help, uint64_t value)
{
	size_t len = strlen(word);
	char name[80];

	if (len > 3 && strcmp(word + len - 3, "_us") == 0) {
		snprintf(name, sizeof(name), "%.*s_seconds_total", (int)len - 3, word);
		metrics_head(out, name, "counter", help);
		fprintf(out, "turnward_%s %.6f\n", name, (double)value * 1e-6);
		return;
	}
	snprintf(name, sizeof(name), "%s_total", word);
	metrics_head(out, name, "counter", help);
	fprintf(out, "turnward_%s %lu\n", name, (unsigned long)value);
}

static void counters(struct worker *w, FILE *out)
{
	char name[80];

	for (int i = 0; i < COUNTERS_NR; i++)
		counter(out, counter_names[i], counter_help[i], counter_value(&w->counters, i));
	for (int i = 0; i < ENGINE_COUNTERS_NR; i++) {
		snprintf(name, sizeof(name), "engine_%s_total", engine_counter_names[i]);
		metrics_head(out, name, "counter", engine_counter_help[i]);
		for (uint32_t e = 0; e < w->engines_nr; e++)
			fprintf(out, "turnward_%s{engine=\"%s\"} %lu\n", name,
				w->engines[e].at.name,
				(unsigned long)engine_counter_value(&w->counters, e, i));
	}
}

/* A gauge with one value per engine. */
#define ENGINE_GAUGES(X)                                                                           \
	X("engine_up", "1 if the engine may get new work", engine_up(w, e))                        \
	X("engine_models_known", "1 if it is known which models it serves",                        \
	  e->source != MODELS_UNKNOWN)                                                             \
	X("engine_drained", "1 if the operator has drained it", e->drained)                        \
	X("engine_inflight_requests", "requests of this router in the engine", sums.user_requests) \
	X("engine_waiting_requests", "of these, without a first token",                            \
	  sums.user_waiting_requests)                                                              \
	X("engine_pending_prefill_tokens", "uncached prompt tokens of these", sums.waiting_tokens) \
	X("engine_decoding_sequences", "of these, past their first token", sums.decoding)          \
	X("engine_links", "connections to the engine", e->links_nr)                                \
	X("engine_idle_links", "of these, resting", e->idle_nr)                                    \
	X("engine_calibration_ratio", "measured over predicted TTFT, 0 = none yet",                \
	  e->learnt->calibration.ratio)                                                            \
	X("engine_ttft_p90_seconds", "recent TTFT, 90th percentile",                               \
	  latency_of(&e->latency)->ttft_p90_s)                                                     \
	X("agent_attached", "1 if an agent's record of the engine is there", e->attached)          \
	X("agent_sample_age_seconds", "age of the agent's record, 0 = none",                       \
	  e->state.read_ns ? (double)(w->now_ns - e->state.read_ns) * 1e-9 : 0)

static void engines(struct worker *w, FILE *out)
{
#define PRINT(text, help, value)                                                     \
	metrics_head(out, text, "gauge", help);                                      \
	for (uint32_t i = 0; i < w->engines_nr; i++) {                               \
		const struct engine *e = &w->engines[i];                             \
		struct ledger_sums sums;                                             \
		ledger_books_get(w->ledger, i, &sums);                               \
		fprintf(out, "turnward_" text "{engine=\"%s\"} %.17g\n", e->at.name, \
			(double)(value));                                            \
	}
	ENGINE_GAUGES(PRINT)
#undef PRINT
}

/* Which prompts went in pieces, and why the others did not. */
static void staging(struct worker *w, FILE *out)
{
	metrics_head(out, "staged_decisions_total", "counter",
		     "prompts for engines with staging, by why they went whole; none: in pieces");
	for (unsigned i = 0; i < STAGE_REASONS_NR; i++)
		fprintf(out, "turnward_staged_decisions_total{reason=\"%s\"} %lu\n",
			stage_reason_name(i), (unsigned long)w->stage.reasons[i]);
	metrics_head(out, "rescue_decisions_total", "counter",
		     "requests on engines that hang, by why they stayed; none: they left");
	for (unsigned i = 0; i < RESCUE_REASONS_NR; i++)
		fprintf(out, "turnward_rescue_decisions_total{reason=\"%s\"} %lu\n",
			rescue_reason_name(i), (unsigned long)w->back.rescues[i]);
	gauge(out, "cold_waiting", "cold prompts that wait in the router for a cold slot",
	      admit_waiting(&w->stage.room, ADMIT_COLD));
#define STAGING_GAUGE(text, help, value)                                                      \
	metrics_head(out, text, "gauge", help);                                               \
	for (uint32_t i = 0; i < w->engines_nr; i++) {                                        \
		struct ledger_sums sums;                                                      \
		ledger_books_get(w->ledger, i, &sums);                                        \
		fprintf(out, "turnward_" text "{engine=\"%s\"} %lu\n", w->engines[i].at.name, \
			(unsigned long)(value));                                              \
	}
	STAGING_GAUGE("engine_pieces",
		      "load of nobody's request in the engine: pieces, and what was left there",
		      sums.pieces)
	STAGING_GAUGE("engine_staged_rest_tokens", "of prompts in pieces, not in the engine yet",
		      sums.staged_rest_tokens)
	STAGING_GAUGE("engine_cold_prompts", "cold prompts in progress", sums.cold_prompts)
	STAGING_GAUGE("engine_held_requests", "waiting in the router for it", sums.held)
	STAGING_GAUGE("engine_staging_off", "1: nothing tells there whether pieces hit",
		      stage_guard_engine_off(&w->stage.guard, i, w->now_ns))
	STAGING_GAUGE("engine_requeue_off", "1: it does not keep what it had computed",
		      w->back.requeue.engine[i].off_until_ns > w->now_ns)
#undef STAGING_GAUGE
}

/* What agents report, one gauge a field; and what they do not. */
static void agents(struct worker *w, FILE *out)
{
#define AGENT_FIELD(field, type, unit, meaning)                                          \
	metrics_head(out, "agent_" #field, "gauge", meaning " [" unit "]");              \
	for (uint32_t i = 0; i < w->engines_nr; i++)                                     \
		if (ENGINE_HAS(&w->engines[i].state, field))                             \
			fprintf(out, "turnward_agent_" #field "{engine=\"%s\"} %.17g\n", \
				w->engines[i].at.name, (double)w->engines[i].state.field);
	ENGINE_FIELDS(AGENT_FIELD)
#undef AGENT_FIELD
	metrics_head(out, "engine_signal_missing", "gauge",
		     "1 if the engine's agent cannot report it");
#define MISSING(field, type, unit, meaning)                                             \
	if (e->attached && e->state.read_ns)                                            \
		fprintf(out,                                                            \
			"turnward_engine_signal_missing{engine=\"%s\",signal=\"" #field \
			"\"} %d\n",                                                     \
			e->at.name, !ENGINE_HAS(&e->state, field));
	for (uint32_t i = 0; i < w->engines_nr; i++) {
		const struct engine *e = &w->engines[i];

		ENGINE_FIELDS(MISSING)
	}
#undef MISSING
}

void metrics_histogram(FILE *out, const char *name, const char *label, const char *value,
		       const struct hist *h, const double *bounds, int n)
{
	char mine[128] = "", braced[136] = "";

	if (label) {
		snprintf(mine, sizeof(mine), "%s=\"%s\",", label, value);
		snprintf(braced, sizeof(braced), "{%s=\"%s\"}", label, value);
	}
	for (int i = 0; i < n; i++)
		fprintf(out, "turnward_%s_bucket{%sle=\"%g\"} %lu\n", name, mine, bounds[i],
			(unsigned long)(h->n - hist_count_above(h, bounds[i])));
	fprintf(out, "turnward_%s_bucket{%sle=\"+Inf\"} %lu\n", name, mine, (unsigned long)h->n);
	fprintf(out, "turnward_%s_sum%s %.17g\nturnward_%s_count%s %lu\n", name, braced, h->sum,
		name, braced, (unsigned long)h->n);
}

static void histogram(FILE *out, const char *name, const char *help, const struct hist *h,
		      const double *bounds, int n)
{
	metrics_head(out, name, "histogram", help);
	metrics_histogram(out, name, NULL, NULL, h, bounds, n);
}

static void histograms(struct worker *w, FILE *out)
{
	static const double seconds[] = { 0.05, 0.1, 0.25, 0.5, 1,  2.5, 5,
					  7.5,  10,  15,   20,  40, 80,  160 };
	static const double micro[] = { 1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 1e-3 };

	histogram(out, "ttft_seconds", "first byte of the request to first token of its stream",
		  &w->ttft, seconds, 14);
	histogram(out, "request_duration_seconds", "requests that completed", &w->e2e, seconds, 14);
	histogram(out, "route_decision_seconds", "inputs gathered and policy asked", &w->decision,
		  micro, 8);
	if (w->shadow.on)
		histogram(out, "shadow_decision_seconds",
			  "the shadow policy asked and both priced, beside the request's path",
			  &w->shadow.took, micro, 8);
}

static void pools(struct worker *w, FILE *out)
{
	const struct slab *all[] = { &w->bodies, &w->heads,  &w->outs,  &w->exchanges,
				     &w->scans,  &w->routes, &w->asked, &w->stagings };

	metrics_head(out, "memory_blocks", "gauge", "blocks of each pool in use");
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		fprintf(out, "turnward_memory_blocks{pool=\"%s\"} %lu\n", all[i]->name,
			(unsigned long)all[i]->used);
	metrics_head(out, "memory_limit_blocks", "gauge", "blocks that each pool may have");
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		fprintf(out, "turnward_memory_limit_blocks{pool=\"%s\"} %lu\n", all[i]->name,
			(unsigned long)all[i]->limit);
#ifdef TURNWARD_JEMALLOC
	uint64_t epoch = 1;
	size_t n = sizeof(epoch), value, size = sizeof(value);

	mallctl("epoch", &epoch, &n, &epoch, n);
	if (mallctl("stats.allocated", &value, &size, NULL, 0) == 0)
		gauge(out, "jemalloc_allocated_bytes", "bytes that the router asked for", value);
	if (mallctl("stats.resident", &value, &size, NULL, 0) == 0)
		gauge(out, "jemalloc_resident_bytes", "bytes that the allocator holds", value);
#endif
}

static void process(struct worker *w, FILE *out)
{
	struct rusage usage;
	unsigned long size = 0, resident = 0;
	FILE *statm = fopen("/proc/self/statm", "re");

	if (statm) {
		if (fscanf(statm, "%lu %lu", &size, &resident) != 2)
			resident = 0;
		fclose(statm);
	}
	getrusage(RUSAGE_SELF, &usage);
	fprintf(out,
		"# HELP process_cpu_seconds_total CPU time of the worker\n"
		"# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total %.6f\n",
		(double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
			(double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6);
	fprintf(out,
		"# HELP process_resident_memory_bytes of the worker\n"
		"# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes %lu\n",
		resident * (unsigned long)sysconf(_SC_PAGESIZE));
	gauge(out, "uptime_seconds", "of the worker", (double)(w->now_ns - w->started_ns) * 1e-9);
}

int metrics_write(struct worker *w, FILE *out)
{
	struct session_totals sessions;

	metrics_head(out, "build_info", "gauge", "always 1");
	fprintf(out, "turnward_build_info{version=\"%s\",io=\"%s\",policy=\"%s\"} 1\n",
		TURNWARD_VERSION, loop_kind_name(loop_kind_of(w->loop)),
		policy_name(w->params.policy));
	counters(w, out);
	gauge(out, "requests_inflight", "requests whose head was read and that have not ended",
	      (double)(counter_value(&w->counters, COUNTER_requests_started) -
		       counter_value(&w->counters, COUNTER_requests_completed) -
		       counter_value(&w->counters, COUNTER_requests_failed) -
		       counter_value(&w->counters, COUNTER_requests_aborted)));
	gauge(out, "connections", "client connections", w->conns_nr);
	gauge(out, "connections_max", "client connections that fit", w->conns_max);
	sessions_totals(&w->sessions, &sessions);
	gauge(out, "sessions", "sessions known", (double)sessions.entries);
	engines(w, out);
	staging(w, out);
	agents(w, out);
	latency_metrics(w, out);
	histograms(w, out);
	pools(w, out);
	metrics_head(out, "log_dropped_total", "counter", "log lines that stderr did not take");
	fprintf(out, "turnward_log_dropped_total %lu\n", (unsigned long)log_dropped());
	process(w, out);
	return ferror(out) ? -1 : 0;
}

static int to_file(void *ctx, const char *text, size_t len)
{
	return fwrite(text, 1, len, ctx) == len ? 0 : -EIO;
}

/* The same picture, read from the same files, as `turnward status --json`. */
int status_page_write(struct worker *w, FILE *out)
{
	struct status *s = malloc(sizeof(*s));
	char buf[4096];
	struct json j;
	int err;

	if (!s)
		return -ENOMEM;
	status_read(s, &w->region);
	json_init(&j, buf, sizeof(buf));
	json_sink_set(&j, to_file, out);
	status_json(&j, s);
	err = json_finish(&j);
	status_free(s);
	free(s);
	return err;
}

int admin_index_write(struct worker *w, FILE *out)
{
	fprintf(out,
		"turnward-router %s, region %s\n\n"
		"/live     200 while the loop turns\n"
		"/ready    200 with at least one usable engine and not draining\n"
		"/metrics  Prometheus\n"
		"/status   engines, sessions, parameters as JSON\n",
		TURNWARD_VERSION, w->region.path);
	return 0;
}
