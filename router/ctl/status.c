/* turnward status: one line a component for people, everything for scripts. */
#include "router/ctl/ctl.h"

#include "router/status/status.h"
#include "shm/base/exit.h"
#include "shm/base/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const struct opt options[] = { CTL_OPTIONS, { 0 } };

static const struct opt_program program = {
	.name = "turnward status",
	.operands = "[options]",
	.purpose = "Shows router, agents and engines; exit 0 ok, 1 warning, 2 critical, 3 unknown.",
	.options = options,
	.examples = "  turnward status\n  turnward status --json | jq '.engines[].agent.age_s'\n",
};

static int to_stdout(void *ctx, const char *text, size_t len)
{
	return fwrite(text, 1, len, stdout) == len ? 0 : -EIO;
}

static void number(const struct status_engine *e, enum engine_field field, double value)
{
	if (e->have_state && engine_has(&e->state, field))
		printf(" %9.0f", value);
	else
		printf(" %9s", "-");
}

static void print_policies(const struct status *s)
{
	uint64_t asked = status_counter(s, "shadow_decisions");
	uint64_t others = status_counter(s, "shadow_disagreements");

	printf("policy %s", s->policy[0] ? s->policy : "not known");
	if (s->shadow_policy[0])
		printf("; shadow %s: another engine in %lu of %lu decisions (%.1f %%), which by "
		       "its "
		       "model would have saved %.3f s, by the policy in force cost %.3f s",
		       s->shadow_policy, (unsigned long)others, (unsigned long)asked,
		       asked ? 100.0 * (double)others / (double)asked : 0,
		       (double)status_counter(s, "shadow_regret_us") * 1e-6,
		       (double)status_counter(s, "shadow_excess_us") * 1e-6);
	printf("\n");
}

static void print_staging(const struct status *s)
{
	uint64_t staged = status_counter(s, "staged_requests");
	uint64_t waits = status_counter(s, "cold_waits");
	uint64_t yields = status_counter(s, "requeue_requests");
	uint64_t rescued = status_counter(s, "rescued");
	uint64_t passed = status_counter(s, "staged_passed");

	if (yields)
		printf("requeue: %lu prompts gave way, %lu times taken back; switched off %lu "
		       "times\n",
		       (unsigned long)yields, (unsigned long)status_counter(s, "requeue_closes"),
		       (unsigned long)status_counter(s, "requeue_guards"));
	if (passed)
		printf("%lu requests went ahead of cold prompts, spared %.1f s of prefill each\n",
		       (unsigned long)passed,
		       (double)status_counter(s, "staged_passed_us") * 1e-6 / (double)passed);
	if (rescued)
		printf("rescue: %lu requests left engines that hung\n", (unsigned long)rescued);
	if (staged == 0 && waits == 0)
		return;
	printf("staging: %lu prompts in %lu pieces, %lu of them given up; switched off %lu times; "
	       "%lu cold prompts waited, %.1f s on average\n",
	       (unsigned long)staged, (unsigned long)status_counter(s, "staged_pieces"),
	       (unsigned long)status_counter(s, "staged_given_up"),
	       (unsigned long)status_counter(s, "staged_guards"), (unsigned long)waits,
	       waits ? (double)status_counter(s, "cold_waited_us") * 1e-6 / (double)waits : 0);
}

static void print_engine_staging(const struct status_engine *e)
{
	if (!e->have_books)
		return;
	if (e->books.pieces || e->books.held)
		printf("  %lu pieces, %lu held", (unsigned long)e->books.pieces,
		       (unsigned long)e->books.held);
	if (e->books.staging_off)
		printf("  no pieces: nothing tells whether they hit");
}

static void print(const struct status *s)
{
	static const char *const healths[] = { "unknown", "up", "stalled", "down" };

	printf("%s: %s\n", s->region, s->sentence);
	if (s->router_present)
		print_policies(s);
	print_staging(s);
	printf("\n");
	printf("%-16s %-8s %8s %9s %9s %9s %9s %9s %8s %6s\n", "engine", "health", "age ms",
	       "running", "waiting", "kv used", "in flight", "pending", "ttft p90", "by");
	for (uint32_t i = 0; i < s->engines_nr; i++) {
		const struct status_engine *e = &s->engines[i];
		const char *health = !e->agent_present     ? "no agent"
				     : !e->agent_alive     ? "agent -"
				     : e->state.health < 4 ? healths[e->state.health]
							   : "?";

		printf("%-16s %-8s", e->name, health);
		if (e->have_state)
			printf(" %8.0f", (double)(s->now_ns - e->state.read_ns) * 1e-6);
		else
			printf(" %8s", "-");
		number(e, ENGINE_FIELD_running, (double)e->state.running);
		number(e, ENGINE_FIELD_waiting, (double)e->state.waiting);
		number(e, ENGINE_FIELD_kv_used_tokens, (double)e->state.kv_used_tokens);
		if (e->have_books)
			printf(" %9lu %9lu",
			       (unsigned long)(e->books.waiting_requests + e->books.decoding),
			       (unsigned long)e->books.waiting_tokens);
		else
			printf(" %9s %9s", "-", "-");
		if (e->have_timing && e->timing.n)
			printf(" %8.3f %6s", e->timing.ttft_p90_s, e->timing_source);
		else
			printf(" %8s %6s", "-", "-");
		print_engine_staging(e);
		printf("%s\n", e->drain ? "  drained" : "");
	}
}

int ctl_status(int argc, char **argv)
{
	const char *where = NULL;
	int id, json = 0, code;
	struct opt_scan scan;
	struct region region;
	struct status *s;

	opt_begin(&scan, &program, argc, argv);
	while ((id = opt_next(&scan)) != OPT_END) {
		if (id == CTL_OPT_REGION)
			where = scan.value;
		if (id == CTL_OPT_JSON)
			json = 1;
	}
	if (scan.first < argc)
		opt_fail(&program, "%s: takes no operands", argv[scan.first]);
	if (ctl_region(&region, where) < 0)
		return EXIT_ABSENT;
	s = malloc(sizeof(*s));
	if (!s)
		return EXIT_RUNTIME;
	status_read(s, &region);
	if (json) {
		char buf[4096];
		struct json j;

		json_init(&j, buf, sizeof(buf));
		json_sink_set(&j, to_stdout, NULL);
		status_json(&j, s);
		json_finish(&j);
		putchar('\n');
	} else {
		print(s);
	}
	code = (int)s->verdict;
	status_free(s);
	free(s);
	region_close(&region);
	return code;
}
