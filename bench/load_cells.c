/* What is done to an arm, cell by cell; load_cells_slow.c has memory and isolation. */
#include <string.h>

#include "bench/load_cells.h"
#include "shm/base/clock.h"

enum { MB = 1000 * 1000, SMALL_BODY = 300 };

#define FIGURE_KEY(id, key, cell, title)   key,
#define FIGURE_TITLE(id, key, cell, title) title,
#define FIGURE_CELL(id, key, cell, title)  LOAD_CELL_##cell,
const char *const load_figure_keys[LOAD_FIGURES_NR] = { LOAD_FIGURES(FIGURE_KEY) };
const char *const load_figure_titles[LOAD_FIGURES_NR] = { LOAD_FIGURES(FIGURE_TITLE) };
const enum load_cell load_figure_cells[LOAD_FIGURES_NR] = { LOAD_FIGURES(FIGURE_CELL) };

void load_set(struct load_run *run, enum load_arm_id id, enum load_figure figure, double value)
{
	run->value[id][figure][run->round] = value;
}

double load_get(const struct load_run *run, enum load_arm_id id, enum load_figure figure)
{
	return run->value[id][figure][run->round];
}

struct load_client *load_client_for(struct load_run *run, enum load_arm_id id,
				    const struct load_ask *ask)
{
	unsigned ports;
	const uint16_t *port = load_arm_ports(&run->place, id, &ports);
	struct load_client *client = load_client_new(port, ports);

	if (client && load_client_ask(client, ask) == 0)
		return client;
	load_client_free(client);
	return NULL;
}

uint64_t load_arm_cpu_ns(const struct load_run *run, enum load_arm_id id)
{
	pid_t pid = run->place.arm[id].proc.pid;

	return pid ? load_proc_cpu_ns(pid) : 0;
}

bool load_good(struct load_run *run, enum load_arm_id id, const struct load_told *told)
{
	struct load_arm *arm = &run->place.arm[id];

	if (told->failed && !arm->why[0])
		snprintf(arm->why, sizeof(arm->why), "%llu failed: %.150s",
			 (unsigned long long)told->failed, told->complaint);
	return told->failed == 0 && told->requests + told->events > 0;
}

/* Warms up, then measures; false when something failed. Gives the CPU of the arm meanwhile. */
static bool measure(struct load_run *run, enum load_arm_id id, struct load_client *client,
		    double seconds, const struct load_told **ret_told, double *ret_cpu_us)
{
	load_client_run(client, seconds / 4);
	uint64_t before = load_arm_cpu_ns(run, id);
	*ret_told = load_client_measure(client, seconds);
	*ret_cpu_us = (double)(load_arm_cpu_ns(run, id) - before) / NS_PER_US;
	return load_good(run, id, *ret_told);
}

static void http(struct load_run *run, enum load_arm_id id, unsigned connections,
		 enum load_figure first)
{
	struct load_ask ask = { .body_bytes = SMALL_BODY, .word = "", .events = 16 };
	struct load_client *client = load_client_for(run, id, &ask);
	bool one = connections == 1;
	const struct load_told *told;
	double cpu_us;

	if (client && load_client_open(client, connections, false) == 0 &&
	    measure(run, id, client, run->options->seconds, &told, &cpu_us)) {
		enum load_figure p50 = one ? LOAD_FIGURE_LATENCY_1_P50 : LOAD_FIGURE_LATENCY_16_P50;
		enum load_figure p99 = one ? LOAD_FIGURE_LATENCY_1_P99 : LOAD_FIGURE_LATENCY_16_P99;

		load_set(run, id, p50, hist_quantile(&told->latency_us, 0.5));
		load_set(run, id, p99, hist_quantile(&told->latency_us, 0.99));
		load_set(run, id, first, load_get(run, id, p50) - load_get(run, 0, p50));
		load_set(run, id, first + 1, load_get(run, id, p99) - load_get(run, 0, p99));
		if (id != LOAD_ARM_DIRECT)
			load_set(run, id, first + 2, cpu_us / (double)told->requests);
		if (!one)
			load_set(run, id, LOAD_FIGURE_RATE_16,
				 (double)told->requests * NS_PER_S /
					 (double)(told->ended_ns - told->began_ns));
	}
	load_client_free(client);
}

static void http_open(struct load_run *run, enum load_arm_id id)
{
	struct load_ask ask = { .body_bytes = SMALL_BODY, .word = "", .events = 16, .rate = 500 };
	struct load_client *client = load_client_for(run, id, &ask);
	const struct load_told *told;
	double cpu_us;

	if (client && load_client_open(client, 16, false) == 0 &&
	    measure(run, id, client, run->options->seconds, &told, &cpu_us)) {
		load_set(run, id, LOAD_FIGURE_OPEN_P50, hist_quantile(&told->latency_us, 0.5));
		load_set(run, id, LOAD_FIGURE_OPEN_P99, hist_quantile(&told->latency_us, 0.99));
		load_set(run, id, LOAD_FIGURE_OPEN_MAX, told->latency_us.max);
	}
	load_client_free(client);
}

/* Figures of a stream cell lie one behind another: LOAD_STREAM_FIGURES. */
static void stream_note(struct load_run *run, enum load_arm_id id, enum load_figure first,
			const struct load_told *told, double cpu_us)
{
	enum load_figure p50 = first + (LOAD_FIGURE_WHOLE_P50_LOW - LOAD_FIGURE_CPU_LOW);

	if (id != LOAD_ARM_DIRECT)
		load_set(run, id, first, cpu_us / (double)told->events);
	load_set(run, id, first + 1, (double)told->reads / (double)told->events);
	load_set(run, id, first + 3, hist_quantile(&told->itl_us, 0.5));
	load_set(run, id, first + 4, hist_quantile(&told->itl_us, 0.99));
	load_set(run, id, first + 2, load_get(run, id, first + 3) / load_get(run, 0, first + 3));
	load_set(run, id, p50, hist_quantile(&told->delay_us, 0.5));
	load_set(run, id, p50 + 1, hist_quantile(&told->delay_us, 0.99));
	load_set(run, id, first + 5, load_get(run, id, p50) - load_get(run, 0, p50));
	load_set(run, id, first + 6, load_get(run, id, p50 + 1) - load_get(run, 0, p50 + 1));
}

void load_wait_streaming(struct load_client *client, unsigned streams, double seconds)
{
	uint64_t end = clock_ns() + (uint64_t)(seconds * NS_PER_S);

	while (load_client_streaming(client) < streams && clock_ns() < end && !load_interrupted())
		load_client_run(client, 0.05);
}

static void stream(struct load_run *run, enum load_arm_id id, unsigned streams, unsigned per_s,
		   enum load_figure first)
{
	struct load_ask ask = { .body_bytes = 900, .word = "", .stream = true, .events = 1000000 };
	const struct load_told *told;
	double cpu_us;

	streams = streams < run->options->streams_max ? streams : run->options->streams_max;
	atomic_store(&run->sink.shared->period_ns, NS_PER_S / per_s);
	struct load_client *client = load_client_for(run, id, &ask);
	if (client && load_client_open(client, streams, false) == 0) {
		load_wait_streaming(client, streams, 5);
		if (measure(run, id, client, run->options->seconds, &told, &cpu_us))
			stream_note(run, id, first, told, cpu_us);
	}
	load_client_free(client);
}

static void body_cpu(struct load_run *run, enum load_arm_id id)
{
	static const struct {
		size_t bytes;
		enum load_figure figure;
	} sizes[] = { { MB / 10, LOAD_FIGURE_CPU_100K },
		      { MB, LOAD_FIGURE_CPU_1M },
		      { 10 * MB, LOAD_FIGURE_CPU_10M } };

	load_set(run, id, LOAD_FIGURE_SCAN_1M, run->scan_mb_us);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct load_ask ask = { .body_bytes = sizes[i].bytes, .word = "", .events = 16 };
		struct load_client *client = load_client_for(run, id, &ask);
		const struct load_told *told;
		double cpu_us;

		if (client && load_client_open(client, 1, false) == 0 &&
		    measure(run, id, client, run->options->seconds, &told, &cpu_us) &&
		    told->body_bytes > 0 && id != LOAD_ARM_DIRECT)
			load_set(run, id, sizes[i].figure, cpu_us * MB / (double)told->body_bytes);
		load_client_free(client);
	}
}

static void body_hop(struct load_run *run, enum load_arm_id id)
{
	static const struct {
		size_t bytes;
		enum load_figure p50;
	} sizes[] = { { 40 * 1000, LOAD_FIGURE_HOP_40K_P50 },
		      { 400 * 1000, LOAD_FIGURE_HOP_400K_P50 },
		      { 4 * MB, LOAD_FIGURE_HOP_4M_P50 } };

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct load_ask ask = {
			.body_bytes = sizes[i].bytes, .word = "", .events = 16, .pace = 1e9
		};
		struct load_client *client = load_client_for(run, id, &ask);
		const struct load_told *told;
		double cpu_us;

		if (client && load_client_open(client, 1, false) == 0 &&
		    measure(run, id, client, run->options->seconds, &told, &cpu_us)) {
			load_set(run, id, sizes[i].p50, hist_quantile(&told->body_us, 0.5));
			if (sizes[i].p50 == LOAD_FIGURE_HOP_400K_P50)
				load_set(run, id, LOAD_FIGURE_HOP_400K_P99,
					 hist_quantile(&told->body_us, 0.99));
		}
		load_client_free(client);
	}
	double small = load_get(run, id, LOAD_FIGURE_HOP_40K_P50);
	if (small > 1) /* without a router the engine may have it before the write returns */
		load_set(run, id, LOAD_FIGURE_HOP_SLOPE,
			 load_get(run, id, LOAD_FIGURE_HOP_4M_P50) / small);
}

void load_cell_run(struct load_run *run, enum load_arm_id id, enum load_cell cell)
{
	switch (cell) {
	case LOAD_CELL_HTTP1:
		http(run, id, 1, LOAD_FIGURE_ADDED_1_P50);
		break;
	case LOAD_CELL_HTTP16:
		http(run, id, 16, LOAD_FIGURE_ADDED_16_P50);
		break;
	case LOAD_CELL_OPEN:
		http_open(run, id);
		break;
	case LOAD_CELL_STREAM_LOW:
		stream(run, id, 200, 20, LOAD_FIGURE_CPU_LOW);
		break;
	case LOAD_CELL_STREAM_MID:
		stream(run, id, 256, 50, LOAD_FIGURE_CPU_MID);
		break;
	case LOAD_CELL_STREAM_HIGH:
		stream(run, id, 512, 50, LOAD_FIGURE_CPU_HIGH);
		break;
	case LOAD_CELL_BODY:
		body_cpu(run, id);
		break;
	case LOAD_CELL_HOP:
		body_hop(run, id);
		break;
	case LOAD_CELL_IDLE:
		load_cell_idle(run, id);
		break;
	case LOAD_CELL_ISOLATION:
		load_cell_isolation(run, id);
		break;
	case LOAD_CELLS_NR:
		break;
	}
}
