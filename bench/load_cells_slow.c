/* Cells that hold thousands of streams, or disturb some of them: memory, live streams, isolation.
 */
#include "bench/load_cells.h"
#include "shm/base/clock.h"

enum {
	IDLE_STREAMS = 2000,
	LIVE_FIRST = 2250, /* doubled up to LIVE_MOST */
	LIVE_MOST = 9000,
	ISOLATED = 200,
	STALLED = 2, /* 1 % of them */
	MIB = 1024 * 1024,
	ABORT_S = 20,
};

static unsigned at_most(const struct load_run *run, unsigned streams)
{
	return streams < run->options->streams_max ? streams : run->options->streams_max;
}

/* All clients leave at once: what that costs until their engines know. */
static void idle_abort(struct load_run *run, enum load_arm_id id, struct load_client *client)
{
	unsigned streams = load_client_streaming(client);
	uint64_t cpu = load_arm_cpu_ns(run, id), before = atomic_load(&run->sink.shared->aborted);
	uint64_t end = clock_ns() + ABORT_S * (uint64_t)NS_PER_S;

	load_client_abort(client, streams);
	while (atomic_load(&run->sink.shared->aborted) < before + streams && clock_ns() < end &&
	       !load_interrupted())
		load_client_run(client, 0.02);
	if (streams && id != LOAD_ARM_DIRECT)
		load_set(run, id, LOAD_FIGURE_CPU_ABORT,
			 (double)(load_arm_cpu_ns(run, id) - cpu) / NS_PER_US / streams);
}

static void idle_memory(struct load_run *run, enum load_arm_id id)
{
	struct load_ask ask = {
		.body_bytes = 900, .word = "@idle", .stream = true, .events = 1000
	};
	struct load_client *client = load_client_for(run, id, &ask);
	unsigned streams = at_most(run, IDLE_STREAMS);
	pid_t pid = run->place.arm[id].proc.pid;
	double before = pid ? (double)load_proc_rss(pid) : 0;

	if (!client || load_client_open(client, streams, false) < 0) {
		load_client_free(client);
		return;
	}
	load_wait_streaming(client, streams, 15);
	load_client_run(client, 0.5);
	uint64_t cpu = load_arm_cpu_ns(run, id);
	if (pid && load_client_streaming(client) == streams) {
		load_client_run(client, run->options->seconds);
		load_set(run, id, LOAD_FIGURE_IDLE_CPU,
			 (double)(load_arm_cpu_ns(run, id) - cpu) / NS_PER_MS /
				 run->options->seconds);
		load_set(run, id, LOAD_FIGURE_RSS_START, before / MIB);
		load_set(run, id, LOAD_FIGURE_RSS_STREAM,
			 ((double)load_proc_rss(pid) - before) / streams);
		idle_abort(run, id, client);
	}
	load_client_free(client);
}

/* Adds streams until an event is late or a stream is lost. */
static void idle_live(struct load_run *run, enum load_arm_id id)
{
	struct load_ask ask = { .body_bytes = 900, .word = "", .stream = true, .events = 1000000 };
	unsigned open = 0, good = 0;

	atomic_store(&run->sink.shared->period_ns, NS_PER_S);
	struct load_client *client = load_client_for(run, id, &ask);
	if (!client)
		return;
	for (unsigned n = at_most(run, LIVE_FIRST); n > open; n = at_most(run, 2 * n)) {
		if (n > LIVE_MOST || load_client_open(client, n - open, false) < 0)
			break;
		open = n;
		load_wait_streaming(client, n, 10);
		load_client_run(client, 0.5);
		const struct load_told *told = load_client_measure(client, 2);

		load_set(run, id, LOAD_FIGURE_LATE, (double)told->late);
		if (!load_good(run, id, told) || told->late || load_client_streaming(client) < n)
			break;
		good = n;
	}
	load_set(run, id, LOAD_FIGURE_LIVE, good);
	load_client_free(client);
}

void load_cell_idle(struct load_run *run, enum load_arm_id id)
{
	idle_memory(run, id);
	idle_live(run, id);
}

void load_cell_isolation(struct load_run *run, enum load_arm_id id)
{
	struct load_ask ask = { .body_bytes = 900, .word = "", .stream = true, .events = 1000000 };
	struct load_ask flood = ask;
	unsigned streams = at_most(run, ISOLATED);
	double seconds = 2 * run->options->seconds;
	pid_t pid = run->place.arm[id].proc.pid;

	flood.word = "@flood";
	atomic_store(&run->sink.shared->period_ns, 20 * NS_PER_MS);
	struct load_client *client = load_client_for(run, id, &ask);
	struct load_client *stalled = load_client_for(run, id, &flood);

	if (client && stalled && load_client_open(client, streams, false) == 0) {
		load_wait_streaming(client, streams, 5);
		load_client_run(client, seconds / 4);
		const struct load_told *told = load_client_measure(client, seconds);
		double base = hist_quantile(&told->delay_us, 0.99);
		double rss = pid ? (double)load_proc_rss(pid) : 0;

		load_client_open(stalled, STALLED, true);
		load_client_run(client, seconds);
		load_sink_halt(&run->sink, true);
		told = load_client_measure(client, seconds);
		load_sink_halt(&run->sink, false);
		if (load_good(run, id, told)) {
			double with = hist_quantile(&told->delay_us, 0.99);

			load_set(run, id, LOAD_FIGURE_HEALTHY_BASE, base);
			load_set(run, id, LOAD_FIGURE_HEALTHY, with);
			load_set(run, id, LOAD_FIGURE_ISOLATION_RATIO, with / base);
			if (pid)
				load_set(run, id, LOAD_FIGURE_RSS_GROWTH,
					 ((double)load_proc_rss(pid) - rss) / MIB);
		}
	}
	load_client_free(stalled);
	load_client_free(client);
}
