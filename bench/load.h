/*
 * What turnward-bench's load commands measure: figures by cell, arms in turn, round after round,
 * their medians, ratios and targets.
 */
#ifndef TURNWARD_BENCH_LOAD_H
#define TURNWARD_BENCH_LOAD_H

#include <math.h>

#include "bench/load_arms.h"
#include "bench/load_client.h"
#include "shm/base/json.h"

/* X(ID, name, title): what is measured of an arm while it runs. */
#define LOAD_CELLS(X)                                                                 \
	X(HTTP1, "http", "small requests, 300 B, one connection")                     \
	X(HTTP16, "http", "small requests, 300 B, sixteen connections")               \
	X(OPEN, "http", "open loop, 16 connections, latency from when it was due")    \
	X(STREAM_LOW, "stream", "200 streams, 20 events/s each")                      \
	X(STREAM_MID, "stream", "256 streams, 50 events/s each")                      \
	X(STREAM_HIGH, "stream", "512 streams, 50 events/s each")                     \
	X(BODY, "body", "CPU of request bodies, one connection")                      \
	X(HOP, "body", "body paced at 1 GB/s: last byte written to engine having it") \
	X(IDLE, "idle", "open streams without traffic; live ones, one event/s each")  \
	X(ISOLATION, "isolation", "1 % of clients stalled, one engine of 8 stopped")

#define LOAD_CELL_ENUM(id, name, title) LOAD_CELL_##id,
enum load_cell { LOAD_CELLS(LOAD_CELL_ENUM) LOAD_CELLS_NR };
#undef LOAD_CELL_ENUM

/* Of a stream cell; X as below. */
#define LOAD_STREAM_FIGURES(X, ID, key)                                              \
	X(CPU_##ID, "cpu_chunk_" key "_us", STREAM_##ID, "CPU us/chunk")             \
	X(READS_##ID, "reads_chunk_" key, STREAM_##ID, "reads/chunk")                \
	X(ITL_RATIO_##ID, "itl_ratio_" key, STREAM_##ID, "ITL p50 / direct")         \
	X(ITL_P50_##ID, "itl_p50_" key "_us", STREAM_##ID, "ITL p50 us")             \
	X(ITL_P99_##ID, "itl_p99_" key "_us", STREAM_##ID, "ITL p99 us")             \
	X(DELAY_P50_##ID, "added_delay_p50_" key "_us", STREAM_##ID, "added p50 us") \
	X(DELAY_P99_##ID, "added_delay_p99_" key "_us", STREAM_##ID, "added p99 us") \
	X(WHOLE_P50_##ID, "delay_p50_" key "_us", STREAM_##ID, NULL)                 \
	X(WHOLE_P99_##ID, "delay_p99_" key "_us", STREAM_##ID, NULL)

/* X(ID, key, cell, title): one column of the cell's table; title NULL = JSON only. */
#define LOAD_FIGURES(X)                                                        \
	X(ADDED_1_P50, "added_1_p50_us", HTTP1, "added p50 us")                \
	X(ADDED_1_P99, "added_1_p99_us", HTTP1, "added p99 us")                \
	X(CPU_1, "cpu_request_1_us", HTTP1, "CPU us/request")                  \
	X(LATENCY_1_P50, "latency_1_p50_us", HTTP1, "p50 us")                  \
	X(LATENCY_1_P99, "latency_1_p99_us", HTTP1, "p99 us")                  \
	X(ADDED_16_P50, "added_16_p50_us", HTTP16, "added p50 us")             \
	X(ADDED_16_P99, "added_16_p99_us", HTTP16, "added p99 us")             \
	X(CPU_16, "cpu_request_16_us", HTTP16, "CPU us/request")               \
	X(LATENCY_16_P50, "latency_16_p50_us", HTTP16, "p50 us")               \
	X(RATE_16, "requests_16_per_s", HTTP16, "requests/s")                  \
	X(LATENCY_16_P99, "latency_16_p99_us", HTTP16, NULL)                   \
	X(OPEN_P50, "open_p50_us", OPEN, "p50 us")                             \
	X(OPEN_P99, "open_p99_us", OPEN, "p99 us")                             \
	X(OPEN_MAX, "open_max_us", OPEN, "max us")                             \
	LOAD_STREAM_FIGURES(X, LOW, "low")                                     \
	LOAD_STREAM_FIGURES(X, MID, "mid")                                     \
	LOAD_STREAM_FIGURES(X, HIGH, "high")                                   \
	X(CPU_100K, "cpu_mb_100k_us", BODY, "us/MB, 100 KB")                   \
	X(CPU_1M, "cpu_mb_1m_us", BODY, "us/MB, 1 MB")                         \
	X(CPU_10M, "cpu_mb_10m_us", BODY, "us/MB, 10 MB")                      \
	X(SCAN_1M, "scan_mb_us", BODY, NULL)                                   \
	X(HOP_40K_P50, "hop_40k_p50_us", HOP, "40 KB p50 us")                  \
	X(HOP_400K_P50, "hop_400k_p50_us", HOP, "400 KB p50 us")               \
	X(HOP_400K_P99, "hop_400k_p99_us", HOP, "400 KB p99 us")               \
	X(HOP_4M_P50, "hop_4m_p50_us", HOP, "4 MB p50 us")                     \
	X(HOP_SLOPE, "hop_slope", HOP, "4 MB / 40 KB")                         \
	X(RSS_STREAM, "rss_stream_bytes", IDLE, "RSS B/stream")                \
	X(LIVE, "live_streams", IDLE, "live, none late")                       \
	X(LATE, "late_chunks", IDLE, "late beyond")                            \
	X(RSS_START, "rss_start_mib", IDLE, "RSS MiB before")                  \
	X(CPU_ABORT, "cpu_abort_us", IDLE, "CPU us/abort")                     \
	X(IDLE_CPU, "idle_cpu_ms_per_s", IDLE, "CPU ms/s")                     \
	X(ISOLATION_RATIO, "isolation_ratio", ISOLATION, "p99 with / without") \
	X(HEALTHY_BASE, "healthy_p99_base_us", ISOLATION, "p99 us without")    \
	X(HEALTHY, "healthy_p99_us", ISOLATION, "p99 us with")                 \
	X(RSS_GROWTH, "rss_growth_mib", ISOLATION, "RSS MiB more")

#define LOAD_FIGURE_ENUM(id, key, cell, title) LOAD_FIGURE_##id,
enum load_figure { LOAD_FIGURES(LOAD_FIGURE_ENUM) LOAD_FIGURES_NR };
#undef LOAD_FIGURE_ENUM

enum { LOAD_ROUNDS_MAX = 32 };

struct load_options {
	const char *command; /* the subcommand's word */
	unsigned rounds;
	unsigned slow_rounds; /* of idle and isolation, which differ little */
	double seconds;       /* of one measurement */
	unsigned streams_max;
	bool arm[LOAD_ARMS_NR];
	bool cell[LOAD_CELLS_NR];
	const char *json, *peers, *before;
	bool quiet; /* no progress */
};

struct load_run {
	const struct load_options *options;
	struct load_sink sink;
	struct load_place place;
	unsigned round;
	double scan_mb_us; /* scan and prefix hash of 1 MB, alone */
	double value[LOAD_ARMS_NR][LOAD_FIGURES_NR][LOAD_ROUNDS_MAX]; /* NAN = not measured */
};

extern const char *const load_figure_keys[LOAD_FIGURES_NR];
extern const char *const load_figure_titles[LOAD_FIGURES_NR];
extern const enum load_cell load_figure_cells[LOAD_FIGURES_NR];

/* Measures one cell of the arm that runs. */
void load_cell_run(struct load_run *run, enum load_arm_id id, enum load_cell cell);

/* Quantiles over what was measured: the median of the rounds; NAN when there is none. */
double load_median(const double *values, unsigned n);
double load_least(const double *values, unsigned n);
double load_most(const double *values, unsigned n);

/* The median over rounds of the arm's figure over the best (least) of the base arms' in that round.
 */
double load_ratio(const struct load_run *run, enum load_arm_id id, enum load_figure figure,
		  unsigned base);

#define LOAD_BASE(id) (1u << LOAD_ARM_##id)

/* ---- targets ---- */

struct load_target {
	const char *name;
	double value, limit; /* value NAN: could not be had */
	bool at_least;
	bool met;
};

enum { LOAD_TARGETS_MAX = 80 };

/* Those of the cells that were measured; returns how many. */
unsigned load_targets(const struct load_run *run, struct load_target *ret_targets);

/* value <= limit, or >=; never when the value is not known. */
struct load_target load_target_of(const char *name, double value, double limit, bool at_least);
void load_targets_print(const struct load_target *targets, unsigned n);
void load_targets_json(struct json *j, const struct load_target *targets, unsigned n);

/* ---- results ---- */

void load_print(const struct load_run *run);

/* Arms, peers: into an open document. */
void load_json(struct json *j, const struct load_run *run);

/* Opens a document with kind, command and the machine in it; and closes it. */
struct load_document {
	struct json json;
	char buf[65536];
	int fd;
};
int load_document_begin(struct load_document *doc, const char *path, const char *command);
int load_document_open(struct load_document *doc, const char *path, const char *kind,
		       const char *command); /* of another kind than "load" */
int load_document_end(struct load_document *doc);

/* ---- parts that need no arm: run once, told by each of the others ---- */

int load_decide_run(unsigned samples, double seconds);
unsigned load_decide_targets(struct load_target *ret_targets);
void load_decide_print(void);
void load_decide_json(struct json *j);

/* On failure `error` (REGION_ERROR_MAX) may say more. */
int load_agents_run(const char *head, double seconds, char *error);
unsigned load_agents_targets(struct load_target *ret_targets);
void load_agents_print(void);
void load_agents_json(struct json *j);

/* Kernel, processor, cores, load, the cost of a null system call: a line for people. */
void load_machine_print(void);
double load_null_call_us(void);

#endif
