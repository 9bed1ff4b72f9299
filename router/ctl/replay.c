/* turnward replay FILE: decides every recorded decision again, exactly, or by another policy. */
#include "router/ctl/ctl.h"

#include "router/ctl/recording.h"
#include "router/ctl/regret.h"
#include "router/journal/compare.h"
#include "router/settings.h"
#include "router/stats/hist.h"
#include "shm/base/exit.h"
#include "shm/base/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPT_POLICY = CTL_OPT_OWN, OPT_SET };

static const struct opt options[] = {
	CTL_OPTIONS,
	{ "policy", "NAME", "compare with this policy", OPT_POLICY, 0, 0 },
	{ "set", "KEY=VALUE", "compare with this parameter changed; repeats", OPT_SET, 's', 0 },
	{ 0 }
};

static const struct opt_program program = {
	.name = "turnward replay",
	.operands = "[options] FILE...",
	.purpose =
		"Decides a recording again; exit 0 if every choice and term is the same bit for\n"
		"bit, 1 if not. With --policy or --set also: where another would differ, and its\n"
		"predicted regret. Several FILEs, oldest first, are one; FILE - is stdin.",
	.options = options,
	.examples = "  turnward replay today.twr\n"
		    "  turnward replay today.twr.1 today.twr --policy eft --set harm_share=0.3\n",
};

enum { DIFFERENCES_SHOWN = 5, GAPS_SHOWN = 20, SET_MAX = 64, AWAITED = 65536, KEPT = 1024 };

/* ---- the other policy ---- */

/* Parameters that the command line changes, by their place in struct policy_params. */
struct other {
	int asked;
	char name[128]; /* for people: "eft, harm_share=0.3" */
	unsigned nr;
	struct {
		size_t offset;
		uint64_t word;
	} change[SET_MAX];
};

static void other_name(struct other *o, const char *word)
{
	size_t n = strlen(o->name);

	snprintf(o->name + n, sizeof(o->name) - n, "%s%s", n ? ", " : "", word);
}

/* Every key that was given and belongs to the policy becomes a change; others are a mistake. */
static void other_collect(struct other *o, const struct router_settings *set,
			  const struct conf *conf)
{
	for (unsigned i = 0; router_keys[i].name; i++) {
		size_t at = router_keys[i].offset - offsetof(struct router_settings, policy);

		if (conf->origin[i] != CONF_OPTION)
			continue;
		if (router_keys[i].flags & CONF_NAMED ||
		    router_keys[i].offset < offsetof(struct router_settings, policy) ||
		    at >= sizeof(set->policy))
			opt_fail(&program, "%s is no parameter of a recorded decision",
				 router_keys[i].name);
		if (o->nr == SET_MAX)
			opt_fail(&program, "more than %d changes", SET_MAX);
		o->change[o->nr].offset = at;
		memcpy(&o->change[o->nr++].word, (const char *)&set->policy + at, 8);
	}
}

static void other_params(const struct other *o, const struct policy_params *recorded,
			 struct policy_params *ret)
{
	*ret = *recorded;
	for (unsigned i = 0; i < o->nr; i++)
		memcpy((char *)ret + o->change[i].offset, &o->change[i].word, 8);
}

/* ---- what is found ---- */

struct difference {
	char id[JOURNAL_ID_SIZE];
	uint64_t number;
	char recorded[STATE_NAME_MAX + 8], now[STATE_NAME_MAX + 8];
	const char *recorded_reason, *now_reason;
	char field[JOURNAL_FIELD_MAX], was[JOURNAL_VALUE_MAX], is[JOURNAL_VALUE_MAX];
};

struct awaited {
	uint64_t number;
	double predicted_s;
};

/* A decision's record, until its shadow's has come: within a few turns of the router's loop. */
struct kept {
	uint64_t number;
	size_t size, room;
	void *record;
};

struct replay {
	struct other other;
	uint64_t files, decisions, outcomes, differ, unreadable;
	uint64_t gaps, lost, torn, damaged;
	uint64_t sources; /* workers and files that were followed */
	struct record_source source;
	int ended; /* the last file ends as its writer meant it to */
	char written_by[RECORD_PROGRAM_MAX];
	uint64_t policies[POLICIES_NR];
	struct difference differences[DIFFERENCES_SHOWN];
	struct record_gap gap[GAPS_SHOWN];
	struct regret regret;
	struct regret shadow; /* as journalled at the time, and compared again */
	uint64_t shadow_policies[POLICIES_NR], shadow_unmatched;
	struct kept kept[KEPT];
	unsigned kept_next;
	struct awaited awaited[AWAITED]; /* decisions whose outcome may come */
	struct hist error_s;             /* |measured - predicted| first token */
	double measured_sum_s, predicted_sum_s;
};

static const char *engine_name(const struct journal_view *view, int32_t engine)
{
	return engine >= 0 && (uint64_t)engine < view->decision->engines_nr
		       ? view->names[engine].name
		       : "none";
}

static void note_difference(struct replay *r, uint64_t number, const struct journal_view *view,
			    const struct policy_choice *again)
{
	struct difference *d = &r->differences[r->differ];

	if (r->differ++ >= DIFFERENCES_SHOWN)
		return;
	*d = (struct difference){ .number = number,
				  .recorded_reason = policy_reason_name(view->choice.reason),
				  .now_reason = policy_reason_name(again->reason) };
	snprintf(d->id, sizeof(d->id), "%s", view->decision->head.id);
	snprintf(d->recorded, sizeof(d->recorded), "%s", engine_name(view, view->choice.engine));
	snprintf(d->now, sizeof(d->now), "%s", engine_name(view, again->engine));
	if (journal_difference(view, again, d->field, d->was, d->is) < 0)
		snprintf(d->field, sizeof(d->field), "the shadow's regret");
}

static int on_decision(struct replay *r, uint64_t number, const struct journal_view *view)
{
	static struct journal_comparison comparison;
	static struct policy_choice again;
	struct policy_params params;

	r->decisions++;
	r->policies[view->decision->params.policy]++;
	r->awaited[number % AWAITED] = (struct awaited){ number, view->choice.predicted_ttft_s };
	if (journal_replay(view, &again))
		note_difference(r, number, view, &again);
	if (view->decision->shadow && view->decision->shadow <= POLICIES_NR) {
		regret_asked(&r->shadow, view);
		r->shadow_policies[view->decision->shadow - 1]++;
	}
	if (!r->other.asked)
		return 0;
	other_params(&r->other, &view->decision->params, &params);
	journal_compare(view, &params, &comparison);
	regret_asked(&r->regret, view);
	return regret_add(&r->regret, number, view, &comparison);
}

static void on_outcome(struct replay *r, const struct journal_outcome *o)
{
	const struct awaited *a = &r->awaited[o->decision % AWAITED];
	double measured_s = o->first_token_s - o->sent_s;

	r->outcomes++;
	if (o->decision == 0 || a->number != o->decision || o->first_token_s < 0 || o->sent_s < 0)
		return;
	hist_add(&r->error_s, fabs(measured_s - a->predicted_s));
	r->measured_sum_s += measured_s;
	r->predicted_sum_s += a->predicted_s;
}

static int keep(struct replay *r, const struct record_item *item)
{
	struct kept *k = &r->kept[r->kept_next];

	if (k->room < item->length) {
		void *more = realloc(k->record, item->length);

		if (!more)
			return -ENOMEM;
		k->record = more;
		k->room = item->length;
	}
	memcpy(k->record, item->payload, item->length);
	k->size = item->length;
	k->number = item->number;
	r->kept_next = (r->kept_next + 1) % KEPT;
	return 0;
}

static const struct kept *kept_of(const struct replay *r, uint64_t number)
{
	for (unsigned i = 0; i < KEPT; i++)
		if (r->kept[i].record && r->kept[i].number == number)
			return &r->kept[i];
	return NULL;
}

/* What the shadow said at the time is what its policy says of the same inputs now. */
static int on_shadow(struct replay *r, const struct journal_shadow *s)
{
	static struct journal_comparison c;
	const struct kept *k = kept_of(r, s->decision);
	struct journal_view view;

	if (!k || journal_decision_read(k->record, k->size, &view) < 0) {
		r->shadow_unmatched++;
		return 0;
	}
	journal_compare(&view, &s->params, &c);
	if (memcmp(s->choice, &c.other, sizeof(s->choice)) != 0 ||
	    memcmp(&s->regret, &c.regret, sizeof(c.regret)) != 0) {
		view.choice = c.other; /* its terms were not journalled: the choice is compared */
		memcpy(&view.choice, s->choice, sizeof(s->choice));
		note_difference(r, s->decision, &view, &c.other);
	}
	return regret_add(&r->shadow, s->decision, &view, &c);
}

static int on_record(struct replay *r, const struct record_item *item)
{
	const struct journal_head *head = item->payload;
	const struct journal_outcome *outcome;
	const struct journal_shadow *shadow;
	struct journal_view view;
	int err = 0;

	if (item->length < sizeof(*head))
		r->unreadable++;
	else if (journal_decision_read(item->payload, item->length, &view) == 0) {
		err = view.decision->shadow ? keep(r, item) : 0;
		return err ? err : on_decision(r, item->number, &view);
	} else if (journal_shadow_read(item->payload, item->length, &shadow) == 0)
		return on_shadow(r, shadow);
	else if (journal_outcome_read(item->payload, item->length, &outcome) == 0)
		on_outcome(r, outcome);
	else
		r->unreadable++;
	return 0;
}

static int on_item(struct replay *r, const struct record_item *item)
{
	const struct record_gap *gap = record_gap_of(item);
	const struct record_source *source = record_source_of(item);

	r->ended = item->kind == RECORD_END;
	if (gap) {
		if (r->gaps < GAPS_SHOWN)
			r->gap[r->gaps] = *gap;
		r->gaps++;
		r->lost += gap->last - gap->first + 1;
	}
	if (source) {
		r->sources +=
			source->ino != r->source.ino || source->generation != r->source.generation;
		r->source = *source;
		if (!source->continues) { /* the same numbers, other decisions */
			memset(r->awaited, 0, sizeof(r->awaited));
			for (unsigned i = 0; i < KEPT; i++)
				r->kept[i].number = 0;
		}
	}
	return item->kind == RECORD_JOURNAL ? on_record(r, item) : 0;
}

static int replay_file(struct replay *r, const char *path)
{
	static struct recording recording;
	struct record_item item;
	int err = recording_open(&recording, path, program.name), got;

	if (err)
		return err;
	r->files++;
	snprintf(r->written_by, sizeof(r->written_by), "%s", recording.reader.head.program);
	while ((got = record_next(&recording.reader, &item)) > 0 && !err)
		err = on_item(r, &item);
	if (got < 0 && !err)
		err = got;
	if (err)
		fprintf(stderr, "%s: %s: %s\n", program.name, path, strerror(-err));
	r->torn += recording.reader.torn;
	r->damaged += recording.reader.damaged;
	recording_close(&recording);
	return err;
}

/* The policy that was asked beside those in force, "" if there were several. */
static const char *shadow_name(const struct replay *r)
{
	const char *name = NULL;

	for (unsigned i = 0; i < POLICIES_NR; i++)
		if (r->shadow_policies[i])
			name = name ? "" : policy_name(i);
	return name ? name : "";
}

/* ---- for scripts ---- */

static int to_stdout(void *ctx, const char *text, size_t len)
{
	return fwrite(text, 1, len, stdout) == len ? 0 : -EIO;
}

static void difference_json(struct json *j, const struct difference *d)
{
	json_object_begin(j, NULL);
	json_str(j, "id", d->id);
	json_u64(j, "number", d->number);
	json_str(j, "engine", d->recorded);
	json_str(j, "engine_now", d->now);
	json_str(j, "reason", d->recorded_reason);
	json_str(j, "reason_now", d->now_reason);
	json_str(j, "field", d->field);
	json_str(j, "recorded", d->was);
	json_str(j, "now", d->is);
	json_object_end(j);
}

static void file_json(struct json *j, const struct replay *r)
{
	json_u64(j, "files", r->files);
	json_str(j, "written_by", r->written_by);
	json_u64(j, "sources", r->sources);
	json_u64(j, "gaps", r->gaps);
	json_u64(j, "lost", r->lost);
	json_array_begin(j, "gap_list");
	for (uint64_t i = 0; i < r->gaps && i < GAPS_SHOWN; i++) {
		json_object_begin(j, NULL);
		json_u64(j, "first", r->gap[i].first);
		json_u64(j, "last", r->gap[i].last);
		json_str(j, "why", record_gap_name(r->gap[i].why));
		json_object_end(j);
	}
	json_array_end(j);
	json_u64(j, "torn_bytes", r->torn);
	json_u64(j, "damaged_bytes", r->damaged);
	json_bool(j, "ended", r->ended);
}

static void prediction_json(struct json *j, const struct replay *r)
{
	double n = (double)r->error_s.n;

	if (n == 0) {
		json_null(j, "prediction");
		return;
	}
	json_object_begin(j, "prediction");
	json_u64(j, "n", r->error_s.n);
	json_f64(j, "measured_mean_s", r->measured_sum_s / n);
	json_f64(j, "predicted_mean_s", r->predicted_sum_s / n);
	json_f64(j, "error_p50_s", hist_quantile(&r->error_s, 0.5));
	json_f64(j, "error_p90_s", hist_quantile(&r->error_s, 0.9));
	json_object_end(j);
}

static void print_json(const struct replay *r)
{
	char buf[4096];
	struct json j;

	json_init(&j, buf, sizeof(buf));
	json_sink_set(&j, to_stdout, NULL);
	json_object_begin(&j, NULL);
	json_u64(&j, "decisions", r->decisions);
	json_u64(&j, "differ", r->differ);
	json_u64(&j, "outcomes", r->outcomes);
	json_u64(&j, "unreadable", r->unreadable);
	file_json(&j, r);
	json_object_begin(&j, "policies");
	for (unsigned i = 0; i < POLICIES_NR; i++)
		if (r->policies[i])
			json_u64(&j, policy_name(i), r->policies[i]);
	json_object_end(&j);
	json_array_begin(&j, "differences");
	for (uint64_t i = 0; i < r->differ && i < DIFFERENCES_SHOWN; i++)
		difference_json(&j, &r->differences[i]);
	json_array_end(&j);
	prediction_json(&j, r);
	if (r->shadow.decisions)
		regret_json(&j, "shadow", &r->shadow, shadow_name(r));
	else
		json_null(&j, "shadow");
	if (r->other.asked)
		regret_json(&j, "other", &r->regret, r->other.name);
	else
		json_null(&j, "other");
	json_object_end(&j);
	json_finish(&j);
	putchar('\n');
}

/* ---- for people ---- */

static void print_gaps(const struct replay *r)
{
	for (uint64_t i = 0; i < r->gaps && i < GAPS_SHOWN; i++)
		printf("  records %lu to %lu are missing: %s\n", (unsigned long)r->gap[i].first,
		       (unsigned long)r->gap[i].last, record_gap_meaning(r->gap[i].why));
	if (r->gaps > GAPS_SHOWN)
		printf("  and %lu more gaps\n", (unsigned long)(r->gaps - GAPS_SHOWN));
	if (r->torn)
		printf("  %lu bytes at the end are no whole record: the writer was killed\n",
		       (unsigned long)r->torn);
	if (r->damaged)
		printf("  %lu damaged bytes were passed over\n", (unsigned long)r->damaged);
	if (r->unreadable)
		printf("  %lu records cannot be read\n", (unsigned long)r->unreadable);
}

static void print_differences(const struct replay *r)
{
	for (uint64_t i = 0; i < r->differ && i < DIFFERENCES_SHOWN; i++) {
		const struct difference *d = &r->differences[i];

		printf("  %s: %s (%s), now %s (%s); first differs %s: %s, now %s\n", d->id,
		       d->recorded, d->recorded_reason, d->now, d->now_reason, d->field, d->was,
		       d->is);
	}
	if (r->differ > DIFFERENCES_SHOWN)
		printf("  and %lu more\n", (unsigned long)(r->differ - DIFFERENCES_SHOWN));
}

static void print(const struct replay *r)
{
	double n = (double)r->error_s.n;

	if (r->differ)
		printf("%lu of %lu decisions are decided differently now\n",
		       (unsigned long)r->differ, (unsigned long)r->decisions);
	else
		printf("%lu decisions, each decided the same again, bit for bit\n",
		       (unsigned long)r->decisions);
	print_differences(r);
	printf("written by %s;", r->written_by);
	for (unsigned i = 0; i < POLICIES_NR; i++)
		if (r->policies[i])
			printf(" %s %lu", policy_name(i), (unsigned long)r->policies[i]);
	printf("; %lu outcomes\n", (unsigned long)r->outcomes);
	print_gaps(r);
	if (n > 0)
		printf("first tokens: mean %.3f s, predicted %.3f s; error p50 %.3f s, p90 %.3f s "
		       "(%lu)\n",
		       r->measured_sum_s / n, r->predicted_sum_s / n,
		       hist_quantile(&r->error_s, 0.5), hist_quantile(&r->error_s, 0.9),
		       (unsigned long)r->error_s.n);
	if (r->shadow.decisions) {
		char name[64];

		snprintf(name, sizeof(name), "the shadow policy %s", shadow_name(r));
		regret_print(&r->shadow, name, stdout);
	}
	if (r->other.asked)
		regret_print(&r->regret, r->other.name, stdout);
}

/* ---- */

static int scan_options(struct opt_scan *scan, struct other *o)
{
	static struct router_settings set;
	static struct conf conf;
	int id, json = 0, err = 0;

	conf_init(&conf, router_keys, &set);
	while ((id = opt_next(scan)) != OPT_END) {
		if (id == CTL_OPT_JSON)
			json = 1;
		if (id == OPT_POLICY)
			err = conf_set_key(&conf, &set, "policy", scan->value);
		if (id == OPT_SET)
			err = conf_set(&conf, &set, scan->value);
		if (err)
			opt_fail(&program, "%s", conf.error);
		if (id == OPT_POLICY || id == OPT_SET) {
			o->asked = 1;
			other_name(o, scan->value);
		}
	}
	other_collect(o, &set, &conf);
	return json;
}

int ctl_replay(int argc, char **argv)
{
	static struct replay r;
	struct opt_scan scan;
	int json, err = 0;

	opt_begin(&scan, &program, argc, argv);
	json = scan_options(&scan, &r.other);
	if (scan.first >= argc)
		opt_fail(&program, "give at least one FILE");
	for (int i = scan.first; i < argc && !err; i++)
		err = replay_file(&r, argv[i]);
	if (r.files && json)
		print_json(&r);
	else if (r.files)
		print(&r);
	regret_free(&r.regret);
	regret_free(&r.shadow);
	for (unsigned i = 0; i < KEPT; i++)
		free(r.kept[i].record);
	return err || r.differ || r.unreadable ? EXIT_RUNTIME : EXIT_GOOD;
}
