/*
 * The probe's library and nothing else: attaches, and writes one line of JSON per finished request,
 * so that the kernel side is tested without the daemon. At its end, on stdout, the counters.
 *
 *   probe_samples --cgroup DIR --samples FILE [--bounded] [--first-event] [--idle-ms N]
 * [NAME=]URL...
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bpf/probe.h"
#include "shm/base/addr.h"
#include "shm/base/scoped.h"

struct samples {
	FILE *file;
	struct addr_engine engines[64];
	unsigned engines_nr;
	uint64_t kinds[PROBE_END + 1];
};

static volatile sig_atomic_t stopping;

static void on_signal(int number)
{
	stopping = 1;
}

static void take(void *context, const struct probe_record *r)
{
	struct samples *samples = context;

	samples->kinds[r->kind <= PROBE_END ? r->kind : PROBE_NONE]++;
	if (r->kind != PROBE_END)
		return;
	fprintf(samples->file,
		"{\"engine\":\"%s\",\"client_port\":%u,\"status\":%u,\"flags\":%u,"
		"\"t0_first_ns\":%llu,\"t0_last_ns\":%llu,\"t_hdr_ns\":%llu,\"t_tok_ns\":%llu,"
		"\"t_end_ns\":%llu,\"tx_bytes\":%llu,\"rx_bytes\":%llu}\n",
		r->engine < samples->engines_nr ? samples->engines[r->engine].name : "?",
		r->client_port, r->status, r->flags & ~PROBE_FLAG_STREAM, r->t0_first_ns,
		r->t0_last_ns, r->t_hdr_ns, r->t_tok_ns, r->t_end_ns, r->tx_bytes, r->rx_bytes);
}

static int fail(const char *what, const char *why)
{
	fprintf(stderr, "probe_samples: %s: %s\n", what, why);
	return 1;
}

static void nap(unsigned ms)
{
	struct timespec pause = { ms / 1000, (long)(ms % 1000) * 1000000 };

	nanosleep(&pause, NULL);
}

static int engines_add(struct samples *samples, struct probe_address *list, const char *text)
{
	char why[ADDR_WHY_MAX];
	unsigned n = samples->engines_nr;

	if (n == 64 || addr_engine_parse(&samples->engines[n], text, why))
		return fail(text, n == 64 ? "too many" : why);
	memcpy(&list[n].address, &samples->engines[n].addr.sa,
	       sizeof(samples->engines[n].addr.sa.v6));
	list[n].engine = (uint8_t)n;
	samples->engines_nr++;
	return 0;
}

static int finish(struct probe *probe, struct samples *samples)
{
	struct probe_counters counters;

	while (probe_drain(probe, take, samples) > 0)
		;
	if (probe_counters(probe, &counters))
		return fail("counters", "cannot be read");
	printf("{\"START\":%" PRIu64 ",\"TOKEN\":%" PRIu64 ",\"END\":%" PRIu64,
	       samples->kinds[PROBE_START], samples->kinds[PROBE_TOKEN], samples->kinds[PROBE_END]);
#define X(name, meaning) printf(",\"" #name "\":%llu", counters.name);
	PROBE_COUNTERS(X)
#undef X
	printf("}\n");
	probe_close(probe);
	return fclose(samples->file) ? fail("samples", strerror(errno)) : 0;
}

int main(int argc, char **argv)
{
	static struct samples samples;
	static struct probe_address list[64];
	struct probe_options options = { .cgroup_fd = -1 };
	char reason[PROBE_REASON_SIZE];
	struct probe *probe;
	unsigned idle_ms = PROBE_DRAIN_MS;
	int err;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--bounded") == 0)
			options.bounded = true;
		else if (strcmp(argv[i], "--first-event") == 0)
			options.first_event_rule = true;
		else if (strcmp(argv[i], "--cgroup") == 0 && i + 1 < argc)
			options.cgroup_fd = open(argv[++i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		else if (strcmp(argv[i], "--samples") == 0 && i + 1 < argc)
			samples.file = fopen(argv[++i], "w");
		else if (strcmp(argv[i], "--idle-ms") == 0 && i + 1 < argc)
			idle_ms = (unsigned)strtoul(argv[++i], NULL, 10);
		else if (engines_add(&samples, list, argv[i]))
			return 2;
	}
	if (!samples.file || !samples.engines_nr)
		return fail("usage", "--cgroup DIR --samples FILE [NAME=]URL...");
	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);
	err = probe_open(&probe, &options, reason);
	if (err) {
		fprintf(stderr, "refused %d: %s\n", err, reason);
		return 3;
	}
	probe_engines_set(probe, list, samples.engines_nr);
	fprintf(stderr, "attached: %s\n", probe_variant(probe));
	while (!stopping) {
		nap(idle_ms);
		probe_drain(probe, take, &samples);
		fflush(samples.file);
	}
	return finish(probe, &samples);
}
