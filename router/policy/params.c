/* The defaults of every parameter, and their translation to a faster world. */
#include "router/policy/params.h"

#include <stddef.h>

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

void policy_params_init(struct policy_params *ret_params)
{
	assert(ret_params != NULL);
#define INIT(name, names, standard, meaning) ret_params->name = index_of(names, standard);
	POLICY_CHOICE_PARAMS(INIT)
#undef INIT
#define INIT(name, standard, min, max, kind, unit, meaning) ret_params->name = standard;
	POLICY_REAL_PARAMS(INIT)
#undef INIT
}

static double scaled(double value, enum policy_unit kind, double speed)
{
	switch (kind) {
	case POLICY_TIME:
		return value / speed;
	case POLICY_RATE:
		return value * speed;
	case POLICY_PLAIN:
		break;
	}
	return value;
}

void policy_params_scale(struct policy_params *params, double speed)
{
	assert(speed > 0);
#define SCALE(name, standard, min, max, kind, unit, meaning) \
	params->name = scaled(params->name, kind, speed);
	POLICY_REAL_PARAMS(SCALE)
#undef SCALE
}
