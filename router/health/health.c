/* Opens and shuts engines by what is seen of them. */
#include "router/health/health.h"

#define NS_PER_MS 1000000ull

static const uint64_t refused_ns = 250 * NS_PER_MS; /* after 429 or 503 without Retry-After */
/* A probe that fails while answers flow says nothing: engines probe themselves by generating. */
static const uint64_t heard_lately_ns = 5000 * NS_PER_MS;

struct cause {
	uint32_t first_ms, longest_ms;
	uint8_t probes_open;
};

static const struct cause causes[HEALTH_CAUSES_NR] = {
#define HEALTH_CAUSE_ROW(id, name, first_ms, longest_ms, probes_open) \
	[HEALTH_##id] = { first_ms, longest_ms, probes_open },
	HEALTH_CAUSES(HEALTH_CAUSE_ROW)
#undef HEALTH_CAUSE_ROW
};

const char *const health_cause_names[HEALTH_CAUSES_NR] = {
#define HEALTH_CAUSE_NAME(id, name, first_ms, longest_ms, probes_open) [HEALTH_##id] = name,
	HEALTH_CAUSES(HEALTH_CAUSE_NAME)
#undef HEALTH_CAUSE_NAME
};

enum health_standing health_standing(const struct health *health, uint64_t now_ns)
{
	if (health->cause != HEALTH_NONE && (health->trial || health->until_ns > now_ns))
		return HEALTH_CLOSED;
	return health->spared_ns > now_ns ? HEALTH_SPARED : HEALTH_OPEN;
}

uint64_t health_ends_ns(const struct health *health)
{
	uint64_t shut = health->cause == HEALTH_NONE ? 0 : health->until_ns;

	return shut > health->spared_ns ? shut : health->spared_ns;
}

int health_dispatched(struct health *health)
{
	if (health->cause == HEALTH_NONE || health->trial)
		return 0;
	health->trial = 1;
	return 1;
}

void health_trial_void(struct health *health)
{
	health->trial = 0;
}

static int shut(struct health *health, uint64_t now_ns, enum health_cause cause)
{
	int was_open = health->cause == HEALTH_NONE;
	uint64_t ms = causes[cause].first_ms;

	/* Requests that were under way when it was shut say the same thing once more. */
	if (!was_open && !health->trial && health->until_ns > now_ns && health->cause == cause)
		return 0;
	for (uint8_t i = 0; i < health->pauses && ms < causes[cause].longest_ms; i++)
		ms *= 2;
	if (ms > causes[cause].longest_ms)
		ms = causes[cause].longest_ms;
	health->cause = (uint8_t)cause;
	health->trial = 0;
	health->good_probes = 0;
	health->until_ns = now_ns + ms * NS_PER_MS;
	if (health->pauses < UINT8_MAX)
		health->pauses++;
	return was_open;
}

static int opened(struct health *health, uint64_t now_ns)
{
	if (health->cause == HEALTH_NONE)
		return 0;
	health->cause = HEALTH_NONE;
	health->trial = health->pauses = 0;
	health->failures = health->bad_probes = health->good_probes = 0;
	health->until_ns = 0;
	health->opened_ns = now_ns;
	return 1;
}

int health_connect_failed(struct health *health, uint64_t now_ns)
{
	return shut(health, now_ns, HEALTH_CONNECT);
}

int health_failed(struct health *health, uint64_t now_ns)
{
	if (health->failures < UINT8_MAX)
		health->failures++;
	if (health->failures < HEALTH_FAILURES && !health->trial)
		return 0;
	return shut(health, now_ns, HEALTH_ANSWERS);
}

int health_answered(struct health *health, uint64_t now_ns)
{
	health->failures = 0;
	health->heard_ns = now_ns;
	return opened(health, now_ns);
}

int health_refused(struct health *health, uint64_t now_ns, uint64_t pause_ns)
{
	uint64_t until = now_ns + (pause_ns ? pause_ns : refused_ns);
	int was_opened = health_answered(health, now_ns);

	if (until > health->spared_ns)
		health->spared_ns = until;
	return was_opened;
}

int health_probed(struct health *health, uint64_t now_ns, int good)
{
	if (good) {
		health->bad_probes = 0;
		if (health->good_probes < UINT8_MAX)
			health->good_probes++;
		if (!causes[health->cause].probes_open || health->good_probes < HEALTH_UP_AFTER)
			return 0;
		return opened(health, now_ns);
	}
	health->good_probes = 0;
	if (health->heard_ns && now_ns - health->heard_ns < heard_lately_ns)
		return 0;
	if (health->bad_probes < UINT8_MAX)
		health->bad_probes++;
	if (health->bad_probes < HEALTH_DOWN_AFTER || health->cause == HEALTH_ANSWERS)
		return 0;
	return shut(health, now_ns, HEALTH_PROBES);
}

double health_slow(const struct health *health, uint64_t now_ns, uint64_t slow_start_ns)
{
	uint64_t since = now_ns - health->opened_ns;

	if (!health->opened_ns || since >= slow_start_ns)
		return 0;
	return 1 - (double)since / (double)slow_start_ns;
}
