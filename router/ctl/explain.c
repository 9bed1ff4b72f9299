/* turnward explain ID: every engine's terms at that decision, the rule that won, what came of it.
 */
#include "router/ctl/ctl.h"

#include "router/journal/journal.h"
#include "router/policy/policy.h"
#include "shm/base/exit.h"
#include "shm/base/json.h"
#include "shm/files.h"
#include "shm/ring.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct opt options[] = { CTL_OPTIONS, { 0 } };

static const struct opt_program program = {
	.name = "turnward explain",
	.operands = "[options] ID",
	.purpose = "Tells why the request with x-request-id ID went where it went.",
	.options = options,
	.examples = "  turnward explain 4be1f0c2a3b4c5d6\n  turnward explain --json my-request-7\n",
};

struct wanted {
	enum journal_kind kind;
	const char *id;
};

static int match(void *ctx, const void *record, size_t size)
{
	const struct wanted *w = ctx;

	return journal_is(record, size, w->kind, w->id);
}

static int to_stdout(void *ctx, const char *text, size_t len)
{
	return fwrite(text, 1, len, stdout) == len ? 0 : -EIO;
}

/* The reason in one sentence, from the policy's own table. */
static void sentence(const struct journal_view *v, char *out, size_t size)
{
	const char *names[STATE_ENGINES_MAX];

	for (uint64_t i = 0; i < v->decision->engines_nr; i++)
		names[i] = v->names[i].name;
	policy_explain(&v->decision->params, &v->decision->request, &v->choice,
		       (unsigned)v->decision->engines_nr, names, out, size);
}

/* ---- for people ---- */

static void print_engines(const struct journal_view *v)
{
	printf("\n  %-16s %9s %8s %9s %9s %9s", "engine", "requests", "hit", "pending", "age ms",
	       "total s");
#define HEAD(name, meaning) printf(" %9.9s", #name);
	POLICY_TERMS(HEAD)
#undef HEAD
	printf("\n");
	for (uint64_t i = 0; i < v->decision->engines_nr; i++) {
		const struct policy_engine *e = &v->engines[i];
		const struct policy_cost *c = &v->choice.cost[i];

		printf("%c %-16s %9.1f %8u %9.0f %9.0f", (int)i == v->choice.engine ? '>' : ' ',
		       v->names[i].name, e->num_requests, e->hit_tokens, e->pending_prefill_tokens,
		       e->age_s * 1e3);
		if (c->left_out) {
			printf(" %9s  %s\n", "-", policy_left_out_meaning(c->left_out));
			continue;
		}
		printf(" %9.4f", c->total_s);
#define TERM(name, meaning) printf(" %9.4f", c->name);
		POLICY_TERMS(TERM)
#undef TERM
		printf("\n");
	}
}

static void print_phase(const char *name, double s, const char *meaning)
{
	if (s >= 0)
		printf("  %-12s %.6f s  %s\n", name, s, meaning);
}

static void print_outcome(const struct journal_outcome *o, const struct journal_view *v)
{
	printf("\noutcome: %s, status %lu, on %s\n", o->end, (unsigned long)o->status,
	       o->engine[0] ? o->engine : "no engine");
#define MOMENT(name, meaning, phase) print_phase(#name, o->name##_s, meaning);
	JOURNAL_MOMENTS(MOMENT)
#undef MOMENT
	print_phase("end", o->end_s, "the answer ended");
	if (o->first_token_s >= 0 && o->sent_s >= 0)
		printf("  TTFT %.4f s, predicted %.4f s\n", o->first_token_s - o->sent_s,
		       v->choice.predicted_ttft_s);
	if (o->prompt_tokens != UINT64_MAX)
		printf("  prompt %lu tokens (estimated %u)", (unsigned long)o->prompt_tokens,
		       v->decision->request.prompt_tokens);
	if (o->cached_tokens != UINT64_MAX && v->choice.engine >= 0)
		printf(", cached %lu (believed %u)", (unsigned long)o->cached_tokens,
		       v->engines[v->choice.engine].hit_tokens);
	printf("\n");
}

static void print(const struct journal_view *v, const struct journal_outcome *o, int differs)
{
	const struct policy_request *r = &v->decision->request;
	char why[512];

	sentence(v, why, sizeof(why));
	printf("%s\n", why);
	printf("policy %s, class %s, turn %u, prompt %u tokens, home %s, decided in %lu ns\n",
	       policy_name((unsigned)v->decision->params.policy),
	       policy_class_name(v->choice.class), r->turn, r->prompt_tokens,
	       r->home >= 0 && (uint64_t)r->home < v->decision->engines_nr ? v->names[r->home].name
									   : "none",
	       (unsigned long)v->decision->took_ns);
	print_engines(v);
	printf("\ndecided again from the record: %s\n",
	       differs ? "ANOTHER choice (a different build, or damage)"
		       : "the same, byte for byte");
	if (o)
		print_outcome(o, v);
	else
		printf("no outcome yet\n");
}

/* ---- for scripts ---- */

static void engine_json(struct json *j, const struct journal_view *v, uint64_t i)
{
	const struct policy_engine *e = &v->engines[i];
	const struct policy_cost *c = &v->choice.cost[i];

	json_object_begin(j, NULL);
	json_str(j, "name", v->names[i].name);
	json_bool(j, "chosen", (int)i == v->choice.engine);
	json_str(j, "left_out", c->left_out ? policy_left_out_name(c->left_out) : NULL);
	json_object_begin(j, "cost");
#define TERM(name, meaning) json_f64(j, #name, c->name);
	POLICY_TERMS(TERM)
#undef TERM
	json_f64(j, "factor", c->factor);
	json_f64(j, "total_s", c->total_s);
	json_object_end(j);
	json_object_begin(j, "input");
	json_f64(j, "num_requests", e->num_requests);
	json_f64(j, "decoding", e->decoding);
	json_f64(j, "decode_context_tokens", e->decode_context_tokens);
	json_f64(j, "pending_prefill_tokens", e->pending_prefill_tokens);
	json_u64(j, "hit_tokens", e->hit_tokens);
	json_u64(j, "uncached_tokens", c->uncached_tokens);
	json_f64(j, "prefill_tokens_per_s", e->prefill_tokens_per_s);
	json_f64(j, "decode_iteration_s", e->decode_iteration_s);
	json_f64(j, "age_s", e->age_s);
	json_str(j, "staleness", policy_staleness_name(e->staleness));
	json_f64(j, "calibration", e->calibration);
	json_object_end(j);
	json_object_end(j);
}

static void phase_json(struct json *j, const char *key, double s)
{
	if (s >= 0)
		json_f64(j, key, s);
	else
		json_null(j, key);
}

static void count_json(struct json *j, const char *key, uint64_t n)
{
	if (n != UINT64_MAX)
		json_u64(j, key, n);
	else
		json_null(j, key);
}

static void outcome_json(struct json *j, const struct journal_outcome *o)
{
	json_object_begin(j, "outcome");
	json_str(j, "end", o->end);
	json_u64(j, "status", o->status);
	json_str(j, "engine", o->engine);
#define MOMENT(name, meaning, phase) phase_json(j, #name "_s", o->name##_s);
	JOURNAL_MOMENTS(MOMENT)
#undef MOMENT
	phase_json(j, "end_s", o->end_s);
	count_json(j, "prompt_tokens", o->prompt_tokens);
	count_json(j, "cached_tokens", o->cached_tokens);
	count_json(j, "completion_tokens", o->completion_tokens);
	json_object_end(j);
}

static void print_json(const struct journal_view *v, const struct journal_outcome *o, int differs)
{
	const struct journal_decision *d = v->decision;
	char buf[4096], why[512];
	struct json j;

	sentence(v, why, sizeof(why));
	json_init(&j, buf, sizeof(buf));
	json_sink_set(&j, to_stdout, NULL);
	json_object_begin(&j, NULL);
	json_str(&j, "id", d->head.id);
	json_str(&j, "policy", policy_name((unsigned)d->params.policy));
	json_str(&j, "engine", v->choice.engine >= 0 ? v->names[v->choice.engine].name : NULL);
	json_str(&j, "reason", policy_reason_name(v->choice.reason));
	json_str(&j, "why", why);
	json_str(&j, "class", policy_class_name(v->choice.class));
	json_str(&j, "move", policy_move_name(v->choice.move));
	json_u64(&j, "turn", d->request.turn);
	json_u64(&j, "prompt_tokens", d->request.prompt_tokens);
	json_str(&j, "home",
		 d->request.home >= 0 && (uint64_t)d->request.home < d->engines_nr
			 ? v->names[d->request.home].name
			 : NULL);
	json_u64(&j, "attempt", d->attempt);
	json_u64(&j, "took_ns", d->took_ns);
	json_f64(&j, "predicted_ttft_s", v->choice.predicted_ttft_s);
	json_bool(&j, "replay_same", !differs);
	json_array_begin(&j, "engines");
	for (uint64_t i = 0; i < d->engines_nr; i++)
		engine_json(&j, v, i);
	json_array_end(&j);
	if (o)
		outcome_json(&j, o);
	else
		json_null(&j, "outcome");
	json_object_end(&j);
	json_finish(&j);
	putchar('\n');
}

/* ---- */

static int explain(const struct router_file *file, const char *id, int json)
{
	static uint64_t decision[RING_RECORD_MAX / 8], outcome[RING_RECORD_MAX / 8];
	static struct policy_choice again;
	struct wanted want = { JOURNAL_DECISION, id };
	const struct journal_outcome *o = NULL;
	struct journal_view view;
	int differs;

	if (ring_find_last(&file->journal, match, &want, decision, sizeof(decision), NULL) < 0 ||
	    journal_decision_read(decision, sizeof(decision), &view) < 0) {
		fprintf(stderr,
			"turnward explain: %s is not in the journal (%lu records back to number "
			"%lu)\n",
			id, (unsigned long)file->journal.records,
			(unsigned long)ring_first(&file->journal));
		return EXIT_RUNTIME;
	}
	want.kind = JOURNAL_OUTCOME;
	if (ring_find_last(&file->journal, match, &want, outcome, sizeof(outcome), NULL) == 0)
		journal_outcome_read(outcome, sizeof(outcome), &o);
	differs = journal_replay(&view, &again);
	if (json)
		print_json(&view, o, differs);
	else
		print(&view, o, differs);
	return differs ? EXIT_RUNTIME : EXIT_GOOD;
}

int ctl_explain(int argc, char **argv)
{
	const char *where = NULL;
	char error[REGION_ERROR_MAX] = "";
	int id, json = 0, code;
	struct router_file file;
	struct opt_scan scan;
	struct region region;

	opt_begin(&scan, &program, argc, argv);
	while ((id = opt_next(&scan)) != OPT_END) {
		if (id == CTL_OPT_REGION)
			where = scan.value;
		if (id == CTL_OPT_JSON)
			json = 1;
	}
	if (scan.first + 1 != argc)
		opt_fail(&program, "give one request id");
	if (ctl_region(&region, where) < 0)
		return EXIT_ABSENT;
	if (router_file_attach(&file, &region, error) < 0) {
		fprintf(stderr, "turnward explain: %s\n", error);
		region_close(&region);
		return EXIT_ABSENT;
	}
	code = explain(&file, argv[scan.first], json);
	router_file_drop(&file);
	region_close(&region);
	return code;
}
