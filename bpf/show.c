/* One line an engine, times in the unit that fits; on a terminal it is drawn over itself. */
#include "bpf/show.h"

#include <string.h>
#include <unistd.h>

#include "shm/base/clock.h"

static void put_time(FILE *out, double s, int known)
{
	char text[16];

	if (!known)
		snprintf(text, sizeof(text), "-");
	else if (s < 1)
		snprintf(text, sizeof(text), "%.1f ms", s * 1e3);
	else
		snprintf(text, sizeof(text), "%.2f s", s);
	fprintf(out, " %9s", text);
}

static void put_engine(FILE *out, const struct target *t, const struct latency_record *r,
		       uint64_t now_ns)
{
	fprintf(out, "%-16.16s", t->name);
	if (t->addresses_nr == 0) {
		fprintf(out, " not timed: %s\n", t->why);
		return;
	}
	fprintf(out, " %6lu", (unsigned long)r->n);
	put_time(out, r->ttft_p50_s, r->n > 0);
	put_time(out, r->ttft_p90_s, r->n > 0);
	put_time(out, r->ttft_p99_s, r->n > 0);
	put_time(out, r->e2e_p50_s, r->e2e_p50_s > 0);
	put_time(out, r->itl_p50_s, r->itl_p50_s > 0);
	fprintf(out, " %5lu", (unsigned long)r->waiting);
	put_time(out,
		 now_ns > r->oldest_wait_start_ns
			 ? (double)(now_ns - r->oldest_wait_start_ns) * 1e-9
			 : 0,
		 r->oldest_wait_start_ns != 0);
	fprintf(out, " %6lu %6lu\n", (unsigned long)r->errors, (unsigned long)r->aborts);
}

void show_table(FILE *out, const struct targets *targets, const struct latency_record *records,
		const struct probe_counters *counters, uint64_t now_ns, uint64_t window_ns)
{
	if (isatty(fileno(out)))
		fprintf(out, "\033[H\033[2J");
	fprintf(out, "%-16s %6s %9s %9s %9s %9s %9s %5s %9s %6s %6s\n", "engine", "tokens",
		"TTFT p50", "p90", "p99", "E2E p50", "gap p50", "wait", "oldest", "errors",
		"aborts");
	for (uint32_t i = 0; i < targets->nr; i++)
		if (targets->target[i].name[0])
			put_engine(out, &targets->target[i], &records[i], now_ns);
	fprintf(out,
		"last %.3g s; %llu requests seen, %llu others, %llu internal, %llu records "
		"lost\n\n",
		(double)window_ns * 1e-9, counters->requests, counters->ignored, counters->internal,
		counters->drops);
	fflush(out);
}
