/* One sentence of why, from a choice: for `turnward explain`, logs and the reason header. */
#include "router/policy/internal.h"

struct sentence {
	char *buffer;
	size_t size, used;
};

static void say_char(struct sentence *s, char c)
{
	if (s->used + 1 < s->size)
		s->buffer[s->used++] = c;
}

static void say(struct sentence *s, const char *text)
{
	while (*text != '\0')
		say_char(s, *text++);
}

static void say_uint(struct sentence *s, uint64_t value)
{
	if (value >= 10)
		say_uint(s, value / 10);
	say_char(s, (char)('0' + value % 10));
}

/* Seconds with two decimals. */
static void say_s(struct sentence *s, double seconds)
{
	if (seconds < 0)
		say_char(s, '-');
	double size = lesser(seconds < 0 ? -seconds : seconds, 1e12);
	uint64_t hundredths = (uint64_t)(size * 100 + 0.5);

	say_uint(s, hundredths / 100);
	say_char(s, '.');
	say_char(s, (char)('0' + hundredths / 10 % 10));
	say_char(s, (char)('0' + hundredths % 10));
	say(s, " s");
}

static void say_term(struct sentence *s, int *first, double seconds, const char *what)
{
	if (seconds < 0.005)
		return;
	say(s, *first ? " = " : " + ");
	say_s(s, seconds);
	say_char(s, ' ');
	say(s, what);
	*first = 0;
}

static void say_cost(struct sentence *s, const struct policy_cost *cost)
{
	int first = 1;

	say(s, "cost ");
	say_s(s, cost->total_s);
	say_term(s, &first, cost->step_s + cost->decode_s + cost->passes_s, "decoding");
	say_term(s, &first, cost->queue_s + cost->staged_s, "prefill ahead");
	say_term(s, &first, cost->prefill_s, cost->pull_from < 0 ? "own prefill" : "pull and rest");
	say_term(s, &first, cost->harm_s, "harm to others");
	say_term(s, &first, cost->kv_wait_s, "for KV room");
	say_term(s, &first, cost->unknown_s, "for not being seen");
	say_term(s, &first, cost->penalty_s, "penalty");
	if (cost->discount_s >= 0.005) {
		say(s, " - ");
		say_s(s, cost->discount_s);
		say(s, " discount");
	}
}

static void say_move(struct sentence *s, const struct policy_choice *choice,
		     const char *const *names)
{
	if (choice->trigger != TRIGGER_NONE) {
		say(s, "; home nominated by ");
		say(s, policy_trigger_name(choice->trigger));
	}
	if (choice->move == MOVE_NONE)
		return;
	if (choice->target >= 0) {
		say(s, choice->move == MOVE_MADE ? "; the move to " : "; no move to ");
		say(s, names[choice->target]);
		say(s, " (gains ");
		say_s(s, choice->gain_s);
		say(s, ", must gain ");
		say_s(s, choice->margin_s);
		say_char(s, ')');
	} else {
		say(s, "; no move");
	}
	if (choice->move != MOVE_MADE) {
		say(s, ": ");
		say(s, policy_move_meaning(choice->move));
	}
}

size_t policy_explain(const struct policy_params *params, const struct policy_request *request,
		      const struct policy_choice *choice, unsigned engines_nr,
		      const char *const *names, char *buffer, size_t size)
{
	struct sentence s = { .buffer = buffer, .size = size };
	int32_t engine = choice->engine;

	assert(size > 0 && choice->reason < POLICY_REASONS_NR && engine < (int32_t)engines_nr);
	if (engine >= 0) {
		say(&s, names[engine]);
		say(&s, ": ");
	}
	say(&s, policy_reason_text(choice->reason));
	if (engine >= 0 && params->policy >= POLICY_LINEAR) {
		say(&s, "; ");
		say_cost(&s, &choice->cost[engine]);
	}
	if (choice->runner_up >= 0) {
		say(&s, "; next ");
		say(&s, names[choice->runner_up]);
		say(&s, " at ");
		say_s(&s, choice->cost[choice->runner_up].total_s);
	}
	say_move(&s, choice, names);
	s.buffer[s.used] = '\0';
	return s.used;
}
