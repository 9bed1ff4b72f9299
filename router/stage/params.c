/* Names, meanings and defaults of staging's parameters and words. */
#include "router/stage/params.h"
#include "router/stage/stage.h"

#include <stddef.h>

#define NAME(id, name, meaning)    name,
#define MEANING(id, name, meaning) meaning,
const char *const stage_mode_names[] = { STAGE_MODES(NAME) NULL };
static const char *const reason_names[] = { STAGE_REASONS(NAME) };
static const char *const reason_meanings[] = { STAGE_REASONS(MEANING) };
static const char *const state_names[] = { STAGE_STATES(NAME) };
static const char *const action_names[] = { STAGE_ACTIONS(NAME) };
#undef NAME
#undef MEANING

static int same_text(const char *a, const char *b)
{
	while (*a != '\0' && *a == *b)
		a++, b++;
	return *a == *b;
}

static uint64_t index_of(const char *const *names, const char *name)
{
	uint64_t i = 0;

	while (names[i] != NULL && !same_text(names[i], name))
		i++;
	assert(names[i] != NULL); /* the table's own default */
	return i;
}

void stage_params_init(struct stage_params *ret_params)
{
#define INIT(name, names, standard, meaning) ret_params->name = index_of(names, standard);
	STAGE_CHOICE_PARAMS(INIT)
#undef INIT
#define INIT(name, standard, min, max, kind, unit, meaning) ret_params->name = standard;
	STAGE_REAL_PARAMS(INIT)
#undef INIT
}

void stage_params_scale(struct stage_params *params, double speed)
{
	assert(speed > 0);
#define SCALE(name, standard, min, max, kind, unit, meaning) \
	params->name = (kind) == STAGE_TIME ? params->name / speed : params->name;
	STAGE_REAL_PARAMS(SCALE)
#undef SCALE
}

const char *stage_reason_name(unsigned reason)
{
	return reason < STAGE_REASONS_NR ? reason_names[reason] : NULL;
}

const char *stage_reason_meaning(unsigned reason)
{
	return reason < STAGE_REASONS_NR ? reason_meanings[reason] : NULL;
}

const char *stage_state_name(unsigned state)
{
	return state < STAGE_STATES_NR ? state_names[state] : NULL;
}

const char *stage_action_name(unsigned action)
{
	return action < STAGE_ACTIONS_NR ? action_names[action] : NULL;
}
