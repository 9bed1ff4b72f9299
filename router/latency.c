/* Times requests, publishes the records, chooses between the router's and the probe's. */
#include "router/latency.h"

#include "router/metrics.h"
#include "router/route.h"
#include "router/worker.h"
#include "shm/base/clock.h"
#include "shm/base/log.h"

#include <math.h>
#include <string.h>

enum { ERROR_SPAN_NS_SHIFT = 5 }; /* predictions are judged over 32 windows of TTFT */

void latency_engine_init(const struct worker *w, struct engine_latency *latency)
{
	timing_init(&latency->own, w->set->view.ttft_window);
	slices_init(&latency->error, w->set->view.ttft_window << ERROR_SPAN_NS_SHIFT);
	slices_init(&latency->model_error, w->set->view.ttft_window << ERROR_SPAN_NS_SHIFT);
	latency->probe_index = -1;
}

static double since_s(const struct worker *w, uint64_t ns)
{
	return w->now_ns > ns ? (double)(w->now_ns - ns) * 1e-9 : 0;
}

/* ---- one request ---- */

void latency_first_token(struct worker *w, const struct exchange *x)
{
	struct engine_latency *l = &w->engines[x->engine].latency;
	double ttft_s = since_s(w, x->sent_ns), predicted_s = x->route->predicted_ttft_s;

	timing_first_token(&l->own, w->now_ns, ttft_s);
	hist_add(&w->ttft, since_s(w, x->start_ns));
	if (!(predicted_s > 0) || !(ttft_s > 0))
		return;
	hist_add(&l->ratio, ttft_s / predicted_s);
	slices_add(&l->error, w->now_ns, fabs(predicted_s - ttft_s) / ttft_s);
	predicted_s = x->route->predicted_raw_s;
	if (predicted_s > 0)
		slices_add(&l->model_error, w->now_ns, fabs(predicted_s - ttft_s) / ttft_s);
}

/* One phase ends at `at_ns`; moments that come out of order have taken no time. */
static void phase_add(struct hist *phase, uint64_t *before_ns, uint64_t at_ns)
{
	if (at_ns == 0)
		return;
	hist_add(phase, at_ns > *before_ns ? (double)(at_ns - *before_ns) * 1e-9 : 0);
	if (at_ns > *before_ns)
		*before_ns = at_ns;
}

/* Where the time to the client's first token went, moment by moment. */
static void phases(struct worker *w, const struct exchange *x)
{
	uint64_t before_ns = x->start_ns;
	struct hist *phase = w->phase;

#define PHASE(name, meaning, what) phase_add(phase++, &before_ns, x->name##_ns);
	JOURNAL_MOMENTS(PHASE)
#undef PHASE
}

/* Between its tokens, on average; < 0 when that cannot be said. */
static double token_gap_s(const struct worker *w, const struct exchange *x)
{
	struct chat_usage usage;
	uint64_t tokens = x->watch.events;

	if (x->first_token_ns == 0)
		return -1;
	if (chat_watch_usage(&x->watch, &usage))
		tokens = usage.completion_tokens;
	return tokens > 1 ? since_s(w, x->first_token_ns) / (double)(tokens - 1) : -1;
}

void latency_ended(struct worker *w, const struct exchange *x)
{
	enum conn_outcome outcome = conn_ends[x->end].outcome;
	struct timing *own;

	if (x->engine < 0)
		return;
	own = &w->engines[x->engine].latency.own;
	if (x->first_token_ns)
		phases(w, x);
	if (x->answered && outcome == OUTCOME_COMPLETED) {
		hist_add(&w->e2e, since_s(w, x->start_ns));
		if (x->generates && x->status < 400)
			timing_finished(own, w->now_ns, since_s(w, x->sent_ns), token_gap_s(w, x));
	}
	if (x->status >= 400 || outcome == OUTCOME_FAILED)
		own->errors++;
	else if (outcome != OUTCOME_COMPLETED && x->generates && x->stream && x->sent_ns &&
		 !x->first_token_ns)
		timing_given_up(own, w->now_ns, since_s(w, x->sent_ns));
	if (outcome == OUTCOME_ABORTED)
		own->aborts++;
}

/* ---- the records ---- */

/* A second hand on it costs nothing: what is read is a copy, judged by its own time. */
static void read_probed(struct worker *w, struct engine *e)
{
	struct engine_latency *l = &e->latency;
	struct latency_record r;
	uint8_t was = l->from_probe;

	if (w->probe_attached && l->probe_index >= 0 &&
	    latency_file_read(&w->probe_file, (unsigned)l->probe_index, &r) == 0 &&
	    strcmp(r.name, e->at.name) == 0)
		l->probed = r;
	l->from_probe = (uint8_t)latency_fresh(&l->probed, w->now_ns);
	e->probed_wait_ns = l->from_probe ? l->probed.oldest_wait_start_ns : 0;
	if (l->from_probe != was)
		log_say(LOG_INFO, "latency of engine %s: %s", e->at.name,
			l->from_probe ? "from the probe" : "from the router's own timing");
}

void latency_publish(struct worker *w)
{
	static struct timing_open open[STATE_ENGINES_MAX]; /* large; written before it is read */

	for (uint32_t i = 0; i < w->engines_nr; i++)
		open[i] = (struct timing_open){ 0 };
	for (const struct exchange *x = w->waiting; x; x = x->wait_next)
		if (x->sent_ns)
			timing_open_add(&open[x->engine], w->now_ns, x->sent_ns, x->stream);
	for (uint32_t i = 0; i < w->engines_nr; i++) {
		struct engine *e = &w->engines[i];
		struct latency_record *mine = &e->latency.mine;

		memcpy(mine->name, e->at.name, sizeof(mine->name));
		timing_record(&e->latency.own, w->now_ns, &open[i], mine);
		if (e->region_index >= 0)
			router_file_timing_publish(&w->file, (unsigned)e->region_index, mine);
		read_probed(w, e);
		e->recent_ttft_s =
			timing_recent(latency_of(&e->latency), w->set->view.ttft_quantile);
		e->recent_ttft_n = latency_of(&e->latency)->recent_n;
	}
}

void latency_tick(struct worker *w)
{
	char error[REGION_ERROR_MAX];

	if (w->probe_attached && region_file_moved(&w->region, &w->probe_file.file)) {
		latency_file_drop(&w->probe_file);
		w->probe_attached = 0;
	}
	if (!w->probe_attached && latency_file_attach(&w->probe_file, &w->region, error) == 0)
		w->probe_attached = 1;
	for (uint32_t i = 0; i < w->engines_nr; i++) {
		struct engine_latency *l = &w->engines[i].latency;

		if (w->probe_attached && !l->from_probe)
			l->probe_index = latency_file_find(&w->probe_file, w->engines[i].at.name);
	}
}

/* ---- metrics ---- */

static const double ratios[] = { 0.1,  0.25, 0.5,  0.7, 0.8, 0.85, 0.9, 0.95, 1,
				 1.05, 1.1,  1.15, 1.2, 1.3, 1.5,  2,   4,    10 };
static const double seconds[] = { 1e-5, 1e-4, 5e-4, 1e-3, 5e-3, 0.01, 0.05, 0.1, 0.25,
				  0.5,  1,    2.5,  5,    10,   20,   40,   80,  160 };

#define COUNT(list) ((int)(sizeof(list) / sizeof((list)[0])))

/* A moment becomes an age, and a name says its unit as the page's other names do. */
static void field_name(const char *field, char *ret_name, size_t size)
{
	size_t n = strlen(field);

	if (n > 9 && strcmp(field + n - 9, "_start_ns") == 0)
		snprintf(ret_name, size, "latency_%.*s_seconds", (int)(n - 9), field);
	else if (strcmp(field, "updated_ns") == 0)
		snprintf(ret_name, size, "latency_age_seconds");
	else if (n > 2 && strcmp(field + n - 2, "_s") == 0)
		snprintf(ret_name, size, "latency_%.*s_seconds", (int)(n - 2), field);
	else
		snprintf(ret_name, size, "latency_%s", field);
}

static void value(const struct worker *w, FILE *out, const char *field, const struct engine *e,
		  const char *source, double v)
{
	char name[80];

	field_name(field, name, sizeof(name));
	if (strstr(field, "_ns") && v > 0)
		v = since_s(w, (uint64_t)v);
	fprintf(out, "turnward_%s{engine=\"%s\",source=\"%s\"} %.17g\n", name, e->at.name, source,
		v);
}

static void field_head(FILE *out, const char *field, const char *meaning)
{
	char name[80];

	field_name(field, name, sizeof(name));
	metrics_head(out, name, strstr(field, "_total") ? "counter" : "gauge", meaning);
}

static void records(struct worker *w, FILE *out)
{
#define FIELD(field, type, meaning)                                                         \
	field_head(out, #field, meaning);                                                   \
	for (const struct engine *e = w->engines; e < w->engines + w->engines_nr; e++) {    \
		value(w, out, #field, e, "router", (double)e->latency.mine.field);          \
		if (e->latency.from_probe)                                                  \
			value(w, out, #field, e, "probe", (double)e->latency.probed.field); \
	}
	LATENCY_FIELDS(FIELD)
#undef FIELD
	metrics_head(out, "latency_source", "gauge", "1 for the record in force");
	for (uint32_t i = 0; i < w->engines_nr; i++)
		for (int probe = 0; probe < 2; probe++)
			fprintf(out, "turnward_latency_source{engine=\"%s\",source=\"%s\"} %d\n",
				w->engines[i].at.name, probe ? "probe" : "router",
				w->engines[i].latency.from_probe == probe);
}

static void own_delay(struct worker *w, FILE *out)
{
	metrics_head(out, "router_delay_seconds", "gauge",
		     "TTFT by the router minus TTFT by the probe: what this process adds");
	for (uint32_t i = 0; i < w->engines_nr; i++) {
		const struct engine_latency *l = &w->engines[i].latency;

		if (!l->from_probe || l->probed.n == 0 || l->mine.n == 0)
			continue;
#define DELAY(q, field)                                                            \
	fprintf(out,                                                               \
		"turnward_router_delay_seconds{engine=\"%s\",quantile=\"" q "\"} " \
		"%.9f\n",                                                          \
		w->engines[i].at.name, l->mine.field - l->probed.field)
		DELAY("0.5", ttft_p50_s);
		DELAY("0.9", ttft_p90_s);
#undef DELAY
	}
}

void latency_metrics(struct worker *w, FILE *out)
{
	static const char *const phase_names[] = {
#define PHASE(name, meaning, what) what,
		JOURNAL_MOMENTS(PHASE)
#undef PHASE
	};

	records(w, out);
	own_delay(w, out);
	metrics_head(out, "ttft_phase_seconds", "histogram",
		     "of requests with a first token: where the time to it went");
	for (int i = 0; i < JOURNAL_MOMENTS_NR; i++)
		metrics_histogram(out, "ttft_phase_seconds", "phase", phase_names[i], &w->phase[i],
				  seconds, COUNT(seconds));
	metrics_head(out, "ttft_prediction_ratio", "histogram", "measured over predicted TTFT");
	for (uint32_t i = 0; i < w->engines_nr; i++)
		metrics_histogram(out, "ttft_prediction_ratio", "engine", w->engines[i].at.name,
				  &w->engines[i].latency.ratio, ratios, COUNT(ratios));
	metrics_head(out, "ttft_prediction_error_median", "gauge",
		     "|predicted - measured| / measured TTFT, of late: announced, and before "
		     "calibration");
	for (uint32_t i = 0; i < w->engines_nr; i++) {
		struct engine_latency *l = &w->engines[i].latency;

		slices_expire(&l->error, w->now_ns);
		slices_expire(&l->model_error, w->now_ns);
		fprintf(out,
			"turnward_ttft_prediction_error_median{engine=\"%s\",by=\"announced\"} "
			"%.6f\n"
			"turnward_ttft_prediction_error_median{engine=\"%s\",by=\"model\"} %.6f\n",
			w->engines[i].at.name, hist_quantile(&l->error.total, 0.5),
			w->engines[i].at.name, hist_quantile(&l->model_error.total, 0.5));
	}
}
