/* What records consist of, as text: it stands in every recording, and its hash in every record. */
#include "router/journal/journal.h"

#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

/*
 * Fields of what is not made from a list elsewhere. A test holds that they cover their structures:
 * a field that is added to one and not here fails it.
 */
/* clang-format off */
#define HEAD(X, s) X(s, kind) X(s, version) X(s, layout) X(s, wall_ns) X(s, ns) X(s, id)
#define DECISION(X, s) \
	X(s, head) X(s, model) X(s, session) X(s, took_ns) X(s, attempt) X(s, shadow) \
	X(s, engines_nr) X(s, params) X(s, request) X(s, choice)
#define REQUEST(X, s) \
	X(s, random) X(s, cursor) X(s, flags) X(s, home) X(s, prompt_tokens) X(s, output_tokens) \
	X(s, sequences) X(s, turn) X(s, moves) X(s, turns_since_move) X(s, since_move_s) \
	X(s, move_budget)
#define NAME(X, s) X(s, name)
#define ENGINE(X, s) \
	X(s, id) X(s, flags) X(s, staleness) X(s, weight) X(s, num_requests) X(s, decoding) \
	X(s, decode_context_tokens) X(s, pending_prefill_tokens) X(s, pending_prefill_s) \
	X(s, staged_rest_tokens) X(s, step_rest_s) X(s, prefill_tokens_per_s) \
	X(s, prefill_context_tokens) X(s, decode_iteration_s) X(s, hit_tokens) \
	X(s, step_budget_tokens) X(s, kv_used_tokens) X(s, kv_capacity_tokens) \
	X(s, max_model_len) X(s, age_s) X(s, fresh_s) X(s, penalty_s) X(s, calibration) \
	X(s, recent_ttft_s) X(s, recent_ttft_n) X(s, oldest_wait_s) X(s, requeueable_tokens) \
	X(s, reserved)
#define CHOICE(X, s) \
	X(s, engine) X(s, reason) X(s, class) X(s, trigger) X(s, move) X(s, target) \
	X(s, candidates) X(s, runner_up) X(s, cursor) X(s, gain_s) X(s, margin_s) \
	X(s, extra_prefill_s) X(s, predicted_raw_s) X(s, predicted_ttft_s)
#define COST(X, s) \
	X(s, factor) X(s, total_s) X(s, left_out) X(s, uncached_tokens) X(s, pull_from) \
	X(s, pull_tokens)
#define OUTCOME(X, s) \
	X(s, head) X(s, decision) X(s, engine) X(s, end) X(s, status) X(s, prompt_tokens) \
	X(s, cached_tokens) X(s, completion_tokens)
#define SHADOW(X, s) \
	X(s, head) X(s, decision) X(s, took_ns) X(s, comparable) X(s, regret) X(s, params) \
	X(s, choice)
#define REGRET(X, s) X(s, own_s) X(s, other_s) X(s, ttft_s)
/* clang-format on */

#define TYPE(m) \
	_Generic((m), double                                               \
		 : "f64", float                                            \
		 : "f32", uint32_t                                         \
		 : "u32", int32_t                                          \
		 : "i32", uint64_t                                         \
		 : "u64", uint64_t *: "u64s", uint32_t *: "u32s", char *: "text", default: "bytes")
#define FIELD(s, m)                   \
	{ #s,                         \
	  #m,                         \
	  offsetof(struct s, m),      \
	  sizeof(((struct s *)0)->m), \
	  sizeof(struct s),           \
	  TYPE(((struct s *)0)->m) },

#define PARAM_CHOICE(name, names, standard, meaning)              FIELD(policy_params, name)
#define PARAM_REAL(name, standard, min, max, kind, unit, meaning) FIELD(policy_params, name)
#define TERM(name, meaning)                                       FIELD(policy_cost, name)
#define MOMENT(name, meaning, phase)                              FIELD(journal_outcome, name##_s)
#define WAY(name, meaning)                                        FIELD(journal_outcome, name)

/* clang-format off */
static const struct journal_field fields[] = {
	HEAD(FIELD, journal_head)
	DECISION(FIELD, journal_decision)
	POLICY_CHOICE_PARAMS(PARAM_CHOICE)
	POLICY_REAL_PARAMS(PARAM_REAL)
	REQUEST(FIELD, policy_request)
	CHOICE(FIELD, policy_choice)
	NAME(FIELD, journal_engine)
	ENGINE(FIELD, policy_engine)
	POLICY_TERMS(TERM)
	COST(FIELD, policy_cost)
	OUTCOME(FIELD, journal_outcome)
	JOURNAL_MOMENTS(MOMENT)
	FIELD(journal_outcome, end_s)
	JOURNAL_WAYS(WAY)
	SHADOW(FIELD, journal_shadow)
	REGRET(FIELD, journal_regret)
};
/* clang-format on */

enum { FIELDS = sizeof(fields) / sizeof(fields[0]) };

const struct journal_field *journal_fields(unsigned *ret_nr)
{
	*ret_nr = FIELDS;
	return fields;
}

/* ---- the text ---- */

struct text {
	char *buffer;
	size_t size, used;
};

static void say(struct text *t, const char *word)
{
	for (; *word; word++)
		if (t->used + 1 < t->size)
			t->buffer[t->used++] = *word;
}

static void say_number(struct text *t, size_t n)
{
	if (n >= 10)
		say_number(t, n / 10);
	say(t, (const char[]){ (char)('0' + n % 10), 0 });
}

static void say_field(struct text *t, const struct journal_field *f)
{
	say(t, "  ");
	say(t, f->name);
	say(t, " ");
	say(t, f->type);
	say(t, " at ");
	say_number(t, f->offset);
	say(t, ", ");
	say_number(t, f->size);
	say(t, "\n");
}

/* Words whose numbers are recorded. X(what, name(i)) */
#define WORDS(X)                                             \
	X("policy", policy_name(i))                          \
	X("migrate", migrate_names[i])                       \
	X("migration_trigger", migration_trigger_names[i])   \
	X("migration_discount", migration_discount_names[i]) \
	X("v3_decode_tokens", decode_reading_names[i])       \
	X("reason", policy_reason_name(i))                   \
	X("class", policy_class_name(i))                     \
	X("move", policy_move_name(i))                       \
	X("left_out", policy_left_out_name(i))               \
	X("staleness", policy_staleness_name(i))

size_t journal_layout_text(char *buffer, size_t size)
{
	struct text t = { buffer, size, 0 };

	for (unsigned i = 0; i < FIELDS; i++) {
		if (i == 0 || strcmp(fields[i].of, fields[i - 1].of) != 0) {
			say(&t, "struct ");
			say(&t, fields[i].of);
			say(&t, " ");
			say_number(&t, fields[i].of_size);
			say(&t, "\n");
		}
		say_field(&t, &fields[i]);
	}
#define SAY(what, word)                             \
	say(&t, "words " what);                     \
	for (unsigned i = 0; (word) != NULL; i++) { \
		say(&t, " ");                       \
		say(&t, word);                      \
	}                                           \
	say(&t, "\n");
	WORDS(SAY)
#undef SAY
	if (size > 0)
		buffer[t.used] = '\0';
	return t.used;
}

uint64_t journal_layout(void)
{
	static uint64_t layout; /* the same whenever it is computed */
	char text[JOURNAL_LAYOUT_MAX];

	if (layout == 0)
		layout = XXH3_64bits_withSeed(text, journal_layout_text(text, sizeof(text)),
					      JOURNAL_VERSION);
	return layout;
}
