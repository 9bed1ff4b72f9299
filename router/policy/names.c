/* The words of every list, for configuration, logs and people. */
#include "router/policy/policy.h"

#define NAME(id, name, meaning)    name,
#define MEANING(id, name, meaning) meaning,

const char *const policy_names[] = { POLICIES(NAME) NULL };
const char *const migrate_names[] = { MIGRATE_MODES(NAME) NULL };
const char *const migration_trigger_names[] = { MIGRATION_TRIGGERS(NAME) NULL };
const char *const migration_discount_names[] = { MIGRATION_DISCOUNTS(NAME) NULL };
const char *const decode_reading_names[] = { DECODE_READINGS(NAME) NULL };

static const char *const policy_meanings[] = { POLICIES(MEANING) };
static const char *const reason_names[] = { POLICY_REASONS(NAME) };
static const char *const reason_texts[] = { POLICY_REASONS(MEANING) };
static const char *const class_names[] = { POLICY_CLASSES(NAME) };
static const char *const move_names[] = { POLICY_MOVES(NAME) };
static const char *const move_meanings[] = { POLICY_MOVES(MEANING) };
static const char *const left_out_names[] = { POLICY_LEFT_OUT(NAME) };
static const char *const left_out_meanings[] = { POLICY_LEFT_OUT(MEANING) };
static const char *const staleness_names[] = { POLICY_STALENESS(NAME) };

static const char *word(const char *const *words, unsigned nr, unsigned i)
{
	return i < nr ? words[i] : NULL;
}

const char *policy_name(unsigned policy)
{
	return word(policy_names, POLICIES_NR, policy);
}

const char *policy_meaning(unsigned policy)
{
	return word(policy_meanings, POLICIES_NR, policy);
}

const char *policy_reason_name(unsigned reason)
{
	return word(reason_names, POLICY_REASONS_NR, reason);
}

const char *policy_reason_text(unsigned reason)
{
	return word(reason_texts, POLICY_REASONS_NR, reason);
}

const char *policy_class_name(unsigned class_)
{
	return word(class_names, POLICY_CLASSES_NR, class_);
}

const char *policy_move_name(unsigned move)
{
	return word(move_names, POLICY_MOVES_NR, move);
}

const char *policy_move_meaning(unsigned move)
{
	return word(move_meanings, POLICY_MOVES_NR, move);
}

const char *policy_trigger_name(unsigned trigger)
{
	return word(migration_trigger_names, MIGRATION_TRIGGERS_NR, trigger);
}

const char *policy_left_out_name(unsigned left_out)
{
	return word(left_out_names, POLICY_LEFT_OUT_NR, left_out);
}

const char *policy_left_out_meaning(unsigned left_out)
{
	return word(left_out_meanings, POLICY_LEFT_OUT_NR, left_out);
}

const char *policy_staleness_name(unsigned staleness)
{
	return word(staleness_names, POLICY_STALENESS_NR, staleness);
}

static int same_text(const char *a, const char *b)
{
	while (*a != '\0' && *a == *b)
		a++, b++;
	return *a == *b;
}

int policy_parse(const char *name)
{
	for (int i = 0; i < POLICIES_NR; i++)
		if (same_text(policy_names[i], name))
			return i;
	return -1;
}
