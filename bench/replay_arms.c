/* Arms by name: presets, and the words and numbers that change them. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/replay.h"
#include "router/settings.h"

#define BIT(id)   (1u << REPLAY_SUITE_##id)
#define DESIGN    BIT(DESIGN)
#define MIGRATION BIT(MIGRATION)
#define PEERS     BIT(PEERS)
#define STATE     BIT(STATE)
#define ORACLE    BIT(ORACLE)
#define STAGE     BIT(STAGE)
#define FAULTS    BIT(FAULTS)
#define LONG      BIT(LONG)

/*
 * X(name, what it sets, suites, meaning). "A" is the contention model without any rule or discount.
 * Staged arms take engines within a factor of 2 for equally fast: where short turns share steps
 * with pieces, the throughput that agents measure drops without the engine being slow.
 */
#define PRESETS(X)                                                                                 \
	X("linear", "policy=linear+migrate=off",                                                   \
	  DESIGN | MIGRATION | PEERS | ORACLE | FAULTS | LONG, "the baseline")                     \
	X("round-robin", "policy=round-robin", DESIGN, "")                                         \
	X("least-requests", "policy=least-requests", DESIGN, "")                                   \
	X("power-of-two", "policy=power-of-two", DESIGN, "")                                       \
	X("sticky", "policy=sticky", DESIGN | LONG, "")                                            \
	X("v2", "policy=v2+migrate=off", DESIGN, "")                                               \
	X("v3", "policy=v3+migrate=off", DESIGN, "")                                               \
	X("v3-context", "policy=v3+migrate=off+v3_decode_tokens=context", DESIGN,                  \
	  "decode tokens read as contexts")                                                        \
	X("A", "policy=contention+migrate=off+migration_discount=none",                            \
	  DESIGN | MIGRATION | PEERS | STATE | ORACLE | FAULTS | LONG, "contention, nothing else") \
	X("A-subtract", "policy=contention+migrate=off+migration_discount=subtract",               \
	  DESIGN | MIGRATION, "with the design document's discount")                               \
	X("A-amortise", "policy=contention+migrate=off+migration_discount=amortise", MIGRATION,    \
	  "recompute cost divided by the turns")                                                   \
	X("A-percent", "policy=contention+migrate=off+migration_discount=percent", MIGRATION, "")  \
	X("A-priced", "policy=contention+migrate=priced+migration_discount=none", MIGRATION, "")   \
	X("A+B-1.5",                                                                               \
	  "policy=contention+migrate=force+migration_discount=none+migration_trigger=factor",      \
	  DESIGN | MIGRATION, "forced above 1.5 x the mean")                                       \
	X("A+B-1.3",                                                                               \
	  "policy=contention+migrate=force+migration_discount=none+migration_trigger=factor+"      \
	  "migration_request_factor=1.3",                                                          \
	  MIGRATION, "forced above 1.3 x the mean")                                                \
	X("A+B-1.2",                                                                               \
	  "policy=contention+migrate=force+migration_discount=none+migration_trigger=factor+"      \
	  "migration_request_factor=1.2",                                                          \
	  MIGRATION, "forced above 1.2 x the mean")                                                \
	X("A+B-excess",                                                                            \
	  "policy=contention+migrate=force+migration_discount=none+migration_trigger=absolute",    \
	  MIGRATION, "forced above the mean + 3")                                                  \
	X("A+B-ttft",                                                                              \
	  "policy=contention+migrate=force+migration_discount=none+migration_trigger=recent-ttft", \
	  MIGRATION, "forced by recent first tokens")                                              \
	X("A+B-pending",                                                                           \
	  "policy=contention+migrate=force+migration_discount=none+migration_trigger=pending",     \
	  MIGRATION, "forced by the prefill ahead")                                                \
	X("eft", "policy=eft+migrate=off",                                                         \
	  DESIGN | MIGRATION | PEERS | STATE | STAGE | ORACLE | FAULTS | LONG, "chooses freely")   \
	X("oracle", "policy=eft+migrate=off+oracle=own", DESIGN | ORACLE | LONG,                   \
	  "engines' copies run ahead: the earliest first token")                                   \
	X("oracle-social", "policy=eft+migrate=off+oracle=social", DESIGN | ORACLE,                \
	  "the same plus what it adds to all present")                                             \
	X("eft-priced", "policy=eft+migrate=priced", DESIGN | MIGRATION | LONG, "leaves must pay") \
	X("eft-uncalibrated", "policy=eft+migrate=off+calibration_max=1", DESIGN, "")              \
	X("eft-calibration-1.5", "policy=eft+migrate=off+calibration_max=1.5", DESIGN,             \
	  "calibration held within 2/3 .. 1.5")                                                    \
	X("eft-plain-calibration", "policy=eft+migrate=off+calibration_band=0", DESIGN,            \
	  "no dead band")                                                                          \
	X("eft+cap", "policy=eft+migrate=off+long_prefill_cap=2048", DESIGN | STAGE,               \
	  "engines cap long prefills at 2,048 tokens a step")                                      \
	X("eft-one-cold", "policy=eft+migrate=off+cold_slots=1", STAGE,                            \
	  "an engine has one cold prompt at a time, sent whole")                                   \
	X("eft-staged", "policy=eft+migrate=off+cold_slots=1+stage=pieces+measured_band=1",        \
	  DESIGN | STAGE, "cold prompts in pieces, one at a time")                                 \
	X("eft-staged-4k",                                                                         \
	  "policy=eft+migrate=off+cold_slots=1+stage=pieces+piece_tokens=4096+long_tokens=5120+"   \
	  "measured_band=1",                                                                       \
	  STAGE, "pieces of half a step")                                                          \
	X("eft-staged-gentle",                                                                     \
	  "policy=eft+migrate=off+cold_slots=1+cold_tokens=4096+stage=pieces+harm_per_decode=0.2+" \
	  "measured_band=1",                                                                       \
	  STAGE, "prompts of half a step wait for the slot, too; decodes count double")            \
	X("eft-staged-any", "policy=eft+migrate=off+stage=pieces+measured_band=1", STAGE,          \
	  "in pieces, any number of them at a time")                                               \
	X("eft-staged+cap",                                                                        \
	  "policy=eft+migrate=off+cold_slots=1+stage=pieces+long_prefill_cap=2048+measured_band="  \
	  "1",                                                                                     \
	  STAGE, "")                                                                               \
	X("eft-requeue", "policy=eft+migrate=off+cold_slots=1+stage=requeue+measured_band=1",      \
	  DESIGN | STAGE, "cold prompts give way to others, one at a time")                        \
	X("eft-requeue+cap",                                                                       \
	  "policy=eft+migrate=off+cold_slots=1+stage=requeue+long_prefill_cap=2048+measured_band=" \
	  "1",                                                                                     \
	  STAGE, "")                                                                               \
	X("eft-staged-uncut",                                                                      \
	  "policy=eft+migrate=off+cold_slots=1+stage=pieces+uncuttable=0.3+measured_band=1",       \
	  STAGE, "three in ten bodies cannot be cut")                                              \
	X("eft-both",                                                                              \
	  "policy=eft+migrate=off+cold_slots=1+stage=both+uncuttable=0.3+measured_band=1", STAGE,  \
	  "these by requeue")                                                                      \
	X("eft-staged-missing",                                                                    \
	  "policy=eft+migrate=off+cold_slots=1+stage=pieces+pieces_hit=0+measured_band=1", STAGE,  \
	  "no piece hits: the guard ends it")                                                      \
	X("eft-staged-forced",                                                                     \
	  "policy=eft+migrate=off+cold_slots=1+stage=pieces+pieces_hit=0+stage_force=1+measured_"  \
	  "band=1",                                                                                \
	  STAGE, "no piece hits, and no guard")                                                    \
	X("eft+pull", "policy=eft+migrate=off+kv_transfer=1", MIGRATION, "prefixes pulled")        \
	X("eft-priced+pull", "policy=eft+migrate=priced+kv_transfer=1", DESIGN | MIGRATION,        \
	  "prefixes pulled at 10 GB/s, leaves must pay")                                           \
	X("sglang", "peer=sglang", PEERS | LONG, "")                                               \
	X("least-load", "peer=least-load", PEERS, "")                                              \
	X("dynamo", "peer=dynamo", PEERS | LONG, "")                                               \
	X("llm-d", "peer=llm-d", PEERS | LONG, "")                                                 \
	X("llm-d-affinity", "peer=llm-d-affinity", PEERS, "")                                      \
	X("aibrix", "peer=aibrix", PEERS, "")                                                      \
	X("preble", "peer=preble", PEERS | LONG, "")                                               \
	X("llumnix", "peer=llumnix", PEERS | LONG, "")                                             \
	X("eft-live", "policy=eft+migrate=off+state=live+cache=exact", STATE, "perfect state")     \
	X("A-live",                                                                                \
	  "policy=contention+migrate=off+migration_discount=none+state=live+cache=exact", STATE,   \
	  "perfect state")                                                                         \
	X("eft-no-agents", "policy=eft+migrate=off+head=none", STATE, "own books alone")           \
	X("eft-sglang", "policy=eft+migrate=off+head=sglang", STATE, "queued tokens reported")     \
	X("eft-record", "policy=eft+migrate=off+state=record", STATE,                              \
	  "samples of 100 ms, own dispatches left out")                                            \
	X("eft-record-1s", "policy=eft+migrate=off+state=record+sample=1", STATE, "of a second")   \
	X("eft-1s", "policy=eft+migrate=off+sample=1", STATE, "samples of a second")               \
	X("eft-5s", "policy=eft+migrate=off+sample=5", STATE, "")                                  \
	X("eft-half-index", "policy=eft+migrate=off+index_scale=0.5", STATE, "")                   \
	X("eft-no-kv", "policy=eft+migrate=off+kv_seen=0", LONG,                                   \
	  "agents tell nothing of KV memory")                                                      \
	X("linear-slow", "policy=linear+migrate=off+slow=2.5", FAULTS,                             \
	  "the first engine is 2.5 x slower")                                                      \
	X("A-slow", "policy=contention+migrate=off+migration_discount=none+slow=2.5", FAULTS, "")  \
	X("eft-slow", "policy=eft+migrate=off+slow=2.5", FAULTS, "")                               \
	X("eft-slow-unmeasured", "policy=eft+migrate=off+slow=2.5+measured=0", FAULTS,             \
	  "agents measure no speeds")                                                              \
	X("eft-slow-blind", "policy=eft+migrate=off+slow=2.5+measured=0+calibration_max=1",        \
	  FAULTS, "nor is anything calibrated")                                                    \
	X("oracle-slow", "policy=eft+migrate=off+slow=2.5+oracle=own", FAULTS, "")                 \
	X("linear-stall", "policy=linear+migrate=off+stall=20", FAULTS,                            \
	  "each minute another engine stands still for 20 s")                                      \
	X("A-stall", "policy=contention+migrate=off+migration_discount=none+stall=20", FAULTS, "") \
	X("eft-stall", "policy=eft+migrate=off+stall=20", FAULTS, "")                              \
	X("sglang-stall", "peer=sglang+stall=20", FAULTS, "")                                      \
	X("oracle-stall", "policy=eft+migrate=off+stall=20+oracle=own", FAULTS,                    \
	  "knows when each is over")                                                               \
	X("linear-restart", "policy=linear+migrate=off+restart_every=60", FAULTS,                  \
	  "each minute another engine comes back empty after 20 s")                                \
	X("A-restart", "policy=contention+migrate=off+migration_discount=none+restart_every=60",   \
	  FAULTS, "")                                                                              \
	X("eft-restart", "policy=eft+migrate=off+restart_every=60", FAULTS, "")                    \
	X("sglang-restart", "peer=sglang+restart_every=60", FAULTS, "")

static const struct {
	const char *name, *sets, *meaning;
	unsigned suites;
} presets[] = {
#define ROW(name_, sets_, suites_, meaning_) \
	{ .name = name_, .sets = sets_, .meaning = meaning_, .suites = suites_ },
	PRESETS(ROW)
#undef ROW
};

static const char *const state_names[] = {
#define NAME(id, name, meaning) name,
	REPLAY_STATES(NAME) NULL
};
static const char *const head_names[] = { REPLAY_HEADS(NAME) NULL };
static const char *const cache_names[] = { REPLAY_CACHES(NAME) NULL };
static const char *const scheduling_names[] = { REPLAY_SCHEDULINGS(NAME) NULL };
static const char *const oracle_names[] = { REPLAY_ORACLES(NAME) NULL };
const char *const replay_suite_names[] = { REPLAY_SUITES(NAME) NULL };
#undef NAME

const char *replay_preset(size_t i, const char **ret_meaning, unsigned *ret_suites)
{
	if (i >= sizeof(presets) / sizeof(presets[0]))
		return NULL;
	*ret_meaning = presets[i].meaning[0] ? presets[i].meaning : presets[i].sets;
	*ret_suites = presets[i].suites;
	return presets[i].name;
}

static void rules_init(struct view_rules *ret_rules)
{
	static struct router_settings settings; /* large */
	struct conf conf;

	conf_init(&conf, router_keys, &settings);
	*ret_rules = settings.view;
}

void replay_arm_init(struct replay_arm *ret_arm)
{
	*ret_arm = (struct replay_arm){ .peer = -1,
					.profile = model_profile_at(0),
					.mixed = { model_profile_at(0) },
					.profiles = 1 };
	policy_params_init(&ret_arm->params);
	stage_params_init(&ret_arm->stage);
	admit_params_init(&ret_arm->admit);
	rules_init(&ret_arm->rules);
	peer_params_init(&ret_arm->peer_params);
#define STANDARD(name_, standard, min, max, meaning) ret_arm->name_ = standard;
	REPLAY_WORLD(STANDARD)
#undef STANDARD
}

/* ---- one key ---- */

static int complain(char *why, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(why, REPLAY_WHY_MAX, format, args);
	va_end(args);
	return -EINVAL;
}

static int number_of(const char *key, const char *text, double min, double max, double *ret,
		     char *why)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= min && value <= max))
		return complain(why, "%s must be %g..%g, not '%s'", key, min, max, text);
	*ret = value;
	return 0;
}

static int word_of(const char *key, const char *text, const char *const *words, uint64_t *ret,
		   char *why)
{
	for (uint64_t i = 0; words[i]; i++)
		if (strcmp(words[i], text) == 0) {
			*ret = i;
			return 0;
		}
	return complain(why, "%s: '%s' is none of its words", key, text);
}

/* 1 = the key is a parameter of the policy and has been dealt with, *ret_err says how. */
static int set_policy(struct replay_arm *arm, const char *key, const char *value, char *why,
		      int *ret_err)
{
#define CHOICE(name, names, standard, meaning)                                 \
	if (strcmp(key, #name) == 0) {                                         \
		*ret_err = word_of(key, value, names, &arm->params.name, why); \
		return 1;                                                      \
	}
	POLICY_CHOICE_PARAMS(CHOICE)
#undef CHOICE
#define REAL(name, standard, min, max, kind, unit, meaning)                         \
	if (strcmp(key, #name) == 0) {                                              \
		*ret_err = number_of(key, value, min, max, &arm->params.name, why); \
		return 1;                                                           \
	}
	POLICY_REAL_PARAMS(REAL)
#undef REAL
	return 0;
}

/* The same for what is staged and what waits. */
static int set_stage(struct replay_arm *arm, const char *key, const char *value, char *why,
		     int *ret_err)
{
#define CHOICE(name, names, standard, meaning)                                \
	if (strcmp(key, #name) == 0) {                                        \
		*ret_err = word_of(key, value, names, &arm->stage.name, why); \
		return 1;                                                     \
	}
	STAGE_CHOICE_PARAMS(CHOICE)
#undef CHOICE
#define REAL(name, standard, min, max, kind, unit, meaning)                        \
	if (strcmp(key, #name) == 0) {                                             \
		*ret_err = number_of(key, value, min, max, &arm->stage.name, why); \
		return 1;                                                          \
	}
	STAGE_REAL_PARAMS(REAL)
#undef REAL
#define REAL(name, standard, min, max, kind, unit, meaning)                        \
	if (strcmp(key, #name) == 0) {                                             \
		*ret_err = number_of(key, value, min, max, &arm->admit.name, why); \
		return 1;                                                          \
	}
	ADMIT_PARAMS(REAL)
#undef REAL
	return 0;
}

static int set_world(struct replay_arm *arm, const char *key, const char *value, char *why,
		     int *ret_err)
{
#define NUMBER(name, standard, min, max, meaning)                            \
	if (strcmp(key, #name) == 0) {                                       \
		*ret_err = number_of(key, value, min, max, &arm->name, why); \
		return 1;                                                    \
	}
	REPLAY_WORLD(NUMBER)
#undef NUMBER
#define NUMBER(name, standard, meaning)                                                 \
	if (strcmp(key, #name) == 0) {                                                  \
		*ret_err = number_of(key, value, 0, 1e12, &arm->peer_params.name, why); \
		return 1;                                                               \
	}
	PEER_PARAMS(NUMBER)
#undef NUMBER
	return 0;
}

/* NAME, or NAME:NAME... of engines in turn. */
static int set_profile(struct replay_arm *arm, const char *value, char *why)
{
	char name[REPLAY_NAME_MAX];
	unsigned nr = 0;

	while (*value) {
		size_t len = strcspn(value, ":");

		if (nr == REPLAY_PROFILES_MAX || len >= sizeof(name))
			return complain(why, "at most %d profiles go round", REPLAY_PROFILES_MAX);
		memcpy(name, value, len);
		name[len] = 0;
		arm->mixed[nr] = model_profile_find(name);
		if (!arm->mixed[nr])
			return complain(why, "there is no profile '%s'", name);
		nr++;
		value += len + (value[len] == ':');
	}
	if (nr == 0)
		return complain(why, "a profile needs a name");
	arm->profiles = nr;
	arm->profile = arm->mixed[0];
	arm->params.kv_bytes_per_token = (double)arm->profile->kv_bytes_per_token;
	arm->params.attention_s = arm->profile->attention_s;
	return 0;
}

static int set_word(struct replay_arm *arm, const char *key, const char *value, char *why)
{
	uint64_t word = 0;
	int err;

#define WORD(name)                                                   \
	if (strcmp(key, #name) == 0) {                               \
		err = word_of(key, value, name##_names, &word, why); \
		if (!err)                                            \
			arm->name = word;                            \
		return err;                                          \
	}
	WORD(state)
	WORD(head)
	WORD(cache)
	WORD(oracle)
	WORD(scheduling)
#undef WORD
	if (strcmp(key, "peer") == 0) {
		arm->peer = peer_parse(value);
		return arm->peer < 0 ? complain(why, "there is no peer '%s'", value) : 0;
	}
	if (strcmp(key, "profile") == 0)
		return set_profile(arm, value, why);
	return complain(why, "there is no key '%s'", key);
}

int replay_arm_set(struct replay_arm *arm, const char *key, const char *value,
		   char why[REPLAY_WHY_MAX])
{
	int err = 0;

	if (set_policy(arm, key, value, why, &err) || set_stage(arm, key, value, why, &err) ||
	    set_world(arm, key, value, why, &err))
		return err;
	return set_word(arm, key, value, why);
}

/* ---- a whole arm ---- */

/* KEY=VALUE+KEY=VALUE...; a '+' begins the next only where a '=' follows before another '+'. */
static int set_all(struct replay_arm *arm, const char *text, char *why)
{
	char piece[128], *value;
	int err = 0;

	while (*text && !err) {
		size_t len = strcspn(text, "+");

		if (len >= sizeof(piece))
			return complain(why, "'%.40s...' is too long", text);
		memcpy(piece, text, len);
		piece[len] = 0;
		text += len + (text[len] == '+');
		value = strchr(piece, '=');
		if (!value)
			return complain(why, "'%s' is not KEY=VALUE", piece);
		*value++ = 0;
		err = replay_arm_set(arm, piece, value, why);
	}
	return err;
}

static int start_from(struct replay_arm *arm, const char *name, char *why)
{
	for (size_t i = 0; i < sizeof(presets) / sizeof(presets[0]); i++)
		if (strcmp(presets[i].name, name) == 0)
			return set_all(arm, presets[i].sets, why);
	if (policy_parse(name) >= 0)
		return replay_arm_set(arm, "policy", name, why);
	if (peer_parse(name) >= 0)
		return replay_arm_set(arm, "peer", name, why);
	return complain(why, "there is no arm '%s' (--list shows them)", name);
}

int replay_arm_parse(struct replay_arm *ret_arm, const struct replay_arm *base, const char *text,
		     char why[REPLAY_WHY_MAX])
{
	char name[REPLAY_NAME_MAX];
	size_t len = strlen(text);
	const char *equals = strchr(text, '=');
	int err;

	*ret_arm = *base;
	if (len >= sizeof(name))
		return complain(why, "'%.40s...' is too long", text);
	/* Names may hold a '+': what is set begins at the last one before the first '='. */
	if (equals) {
		while (equals > text && *equals != '+')
			equals--;
		len = (size_t)(equals - text);
	}
	memcpy(name, text, len);
	name[len] = 0;
	err = start_from(ret_arm, name, why);
	if (!err && text[len])
		err = set_all(ret_arm, text + len + 1, why);
	snprintf(ret_arm->name, sizeof(ret_arm->name), "%s", text);
	return err;
}
