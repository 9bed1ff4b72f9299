/*
 * turnward-bench live from the inside: sessions played closed-loop against a running router.
 *
 * One thread, one event loop. A session's next turn begins think time after its last answer ended,
 * on the session's own kept connection, as its client would. All times kept are wall nanoseconds;
 * the report multiplies by the speed ("model seconds").
 */
#ifndef TURNWARD_BENCH_LIVE_H
#define TURNWARD_BENCH_LIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench/live_api.h"
#include "bench/sessions.h"
#include "router/policy/policy.h"
#include "shm/base/addr.h"
#include "shm/loop/loop.h"

enum {
	LIVE_ENGINES_MAX = 64,
	LIVE_STALL_S = 120,    /* wall, without a byte from anybody: the run is given up */
	LIVE_LINE_MAX = 16384, /* of an event; longer ones are watched, not kept */
	LIVE_HEAD_MAX = 8192,  /* of an answer's head */
	LIVE_LATE_PERCENT = 5, /* of engines' busy time; beyond, the run is invalid */
	LIVE_MODEL_NAME = 128,
};

/* How a request can fail. X(name, meaning) */
#define LIVE_FAILURES(X)                                       \
	X(none, "it did not")                                  \
	X(connect, "no connection")                            \
	X(send, "the request could not be sent")               \
	X(closed, "the connection ended before the answer")    \
	X(cut, "the answer broke off")                         \
	X(malformed, "the answer is not HTTP or not a stream") \
	X(refused, "status 429 or 503")                        \
	X(client, "another status below 500")                  \
	X(server, "another status of 500 and above")           \
	X(event, "an error inside the stream")                 \
	X(incomplete, "no [DONE], no usage or no token")       \
	X(stalled, "nothing came any more")

enum live_failure {
#define X(name, meaning) LIVE_##name,
	LIVE_FAILURES(X)
#undef X
		LIVE_FAILURES_NR
};

struct live_options {
	struct addr router, admin;
	bool has_admin, session_header, verify_model, long_first;
	struct addr engine[LIVE_ENGINES_MAX];
	unsigned engines;
	const char *path, *json, *trace;
	struct sessions_limits limits;
	size_t sessions_max, requests_max;
	double rate, speed, measure_s;
	uint64_t seed;
	enum loop_kind io;
	enum live_api api;
	const double *start_s; /* of each session, model seconds; NULL = drawn by seed and rate */
	char model[LIVE_MODEL_NAME];
};

/* One request, from when its client wanted it. Wall nanoseconds; 0 = not yet. */
struct live_request {
	uint64_t start_ns, first_ns, last_ns, end_ns;
	uint32_t prompt_tokens, cached_tokens, output_tokens;
	uint32_t session, turn; /* turn from 1 */
	uint16_t status;
	uint8_t failure; /* enum live_failure */
	uint8_t class;   /* enum policy_class; of those that did not fail */
	uint32_t *ids;   /* verify_model: the prompt, else NULL */
};

struct live_run {
	const struct live_options *options;
	struct sessions sessions;
	struct live_request *request;
	size_t requests, planned;        /* begun; in all sessions that are to be played */
	size_t ended, failed, abandoned; /* abandoned: behind a failure, never begun */
	uint64_t begin_ns, end_ns;
	bool interrupted;
	bool stop; /* `progress` may set it: nothing more is begun, what is in flight ends */
	void *ctx; /* for `progress` */
	const char *io_name;
	size_t trace_unlike,
		trace_unnamed; /* requests whose engine counted other tokens; is unknown */
};

/* live_client.c: plays all sessions; 0 or -errno. `report` is called about four times a second. */
typedef void live_progress(struct live_run *run, uint64_t now_ns);
int live_play(struct live_run *run, live_progress *progress);

/* What the engines and the router say of a run: differences over it, where they are counters. */
struct live_outside {
	bool router_known, engines_known;
	double migrations, pieces, closes, router_cpu_s;
	double steps, busy_s, late_s, late_p99_s, late_max_s, engine_speed;
	double machine_busy_s, machine_all_s; /* of all cores */
};

/* live_outside.c */
int live_outside_begin(const struct live_options *options, struct live_outside *out);
void live_outside_end(const struct live_options *options, struct live_outside *out);
int live_find_model(struct live_options *options);
void live_find_engines(struct live_options *options);

/* live_report.c: exact quantiles of samples that it sorts. */
double live_quantile(double *values, size_t nr, double q);
void live_classify(struct live_request *request, const struct policy_params *params);
void live_progress_print(struct live_run *run, uint64_t now_ns);
double live_late_ratio(const struct live_outside *out);
bool live_valid(const struct live_run *run, const struct live_outside *out);
void live_report_print(const struct live_run *run, const struct live_outside *out);
int live_report_json(const struct live_run *run, const struct live_outside *out, const char *path);

/* live_verify.c: the same requests in the model's virtual time, beside what was measured. */
int live_verify(const struct live_run *run);

#endif
