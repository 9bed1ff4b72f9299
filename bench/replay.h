/*
 * The policy laboratory: modelled engines and the router's own pure libraries on a virtual clock.
 *
 * One play is one arm (a policy with its parameters, in a world of engines) over one workload. It
 * makes every decision by the calls the router makes, with inputs found as the router finds them:
 * agents' samples plus its own books, hits by its prefix index, homes by session. Same arm, same
 * workload, same seed: the same bytes out. No clock, no I/O; it allocates.
 */
#ifndef TURNWARD_BENCH_REPLAY_H
#define TURNWARD_BENCH_REPLAY_H

#include <stddef.h>
#include <stdint.h>

#include "bench/model/model.h"
#include "bench/workload.h"
#include "router/admit/admit.h"
#include "router/policy/peers.h"
#include "router/policy/policy.h"
#include "router/stage/stage.h"
#include "router/view/rules.h"

enum { REPLAY_NAME_MAX = 96, REPLAY_WHY_MAX = 200, REPLAY_PROFILES_MAX = 4 };

/* How the router knows what engines have. X(ID, name, meaning) */
#define REPLAY_STATES(X)                                                                         \
	X(BOOKS, "books", "agents' samples plus own dispatches they cannot contain: the router") \
	X(RECORD, "record", "agents' samples as they are, all fields, own dispatches left out")  \
	X(LIVE, "live", "the engines' true state at the moment of the decision")
#define REPLAY_HEADS(X)                                                          \
	X(VLLM, "vllm", "no queued tokens, figures as old as the running step")  \
	X(SGLANG, "sglang", "queued tokens and contexts, figures of the moment") \
	X(NONE, "none", "no agents: the router's own books alone")
#define REPLAY_CACHES(X)                                                     \
	X(INDEX, "index", "the router's prefix index, blocks of 128 tokens") \
	X(EXACT, "exact", "the engines' true caches")
#define REPLAY_ORACLES(X)                                                     \
	X(OFF, "off", "the policy decides")                                   \
	X(OWN, "own", "where copies run ahead show the first token earliest") \
	X(SOCIAL, "social", "the same plus what it adds to the answers of all present")
#define REPLAY_SCHEDULINGS(X)                                  \
	X(SYNC, "sync", "a step takes whoever came before it") \
	X(ASYNC, "async", "each step is planned when the one before it begins")
#define REPLAY_ENUM_SCHEDULING(id, name, meaning) REPLAY_SCHEDULING_##id,
enum replay_scheduling { REPLAY_SCHEDULINGS(REPLAY_ENUM_SCHEDULING) REPLAY_SCHEDULINGS_NR };
#undef REPLAY_ENUM_SCHEDULING
#define REPLAY_ENUM_STATE(id, name, meaning) REPLAY_STATE_##id,
#define REPLAY_ENUM_HEAD(id, name, meaning)  REPLAY_HEAD_##id,
#define REPLAY_ENUM_CACHE(id, name, meaning) REPLAY_CACHE_##id,
enum replay_state { REPLAY_STATES(REPLAY_ENUM_STATE) REPLAY_STATES_NR };
enum replay_head { REPLAY_HEADS(REPLAY_ENUM_HEAD) REPLAY_HEADS_NR };
enum replay_cache { REPLAY_CACHES(REPLAY_ENUM_CACHE) REPLAY_CACHES_NR };
#define REPLAY_ENUM_ORACLE(id, name, meaning) REPLAY_ORACLE_##id,
enum replay_oracle { REPLAY_ORACLES(REPLAY_ENUM_ORACLE) REPLAY_ORACLES_NR };
#undef REPLAY_ENUM_ORACLE
#undef REPLAY_ENUM_STATE
#undef REPLAY_ENUM_HEAD
#undef REPLAY_ENUM_CACHE

/* The world of an arm in numbers. X(name, default, min, max, meaning) */
#define REPLAY_WORLD(X)                                                                            \
	X(engines, 8, 1, STATE_ENGINES_MAX, "engines of the profile")                              \
	X(slow, 1, 1, 100, "how many times slower the first engine is")                            \
	X(stall, 0, 0, 3600, "seconds that an engine stands still, one after the other; 0 = none") \
	X(stall_every, 60, 0.1, 1e6, "seconds from stall to stall")                                \
	X(restart_every, 0, 0, 1e6,                                                                \
	  "seconds from restart to restart, one engine after the other: what it had is lost and "  \
	  "sent again; 0 = none")                                                                  \
	X(restart_down, 20, 0, 1e6, "seconds that it is away")                                     \
	X(resend, 1, 0, 3600, "seconds until a client sends a lost request again")                 \
	X(kv_seen, 1, 0, 1, "0: agents say nothing of KV memory, so nobody waits for room in it")  \
	X(sample, 0.1, 0.001, 3600, "seconds between an agent's samples")                          \
	X(measured, 1, 0, 1, "1: agents publish measured speeds; 0: the policy's priors rule")     \
	X(prefill_seen, 1, 0, 1,                                                                   \
	  "0: reported prefill ahead leaves out what running prefills have still to do")           \
	X(index_scale, 1, 0.01, 100, "capacity of the prefix index against the router's")          \
	X(index_touch, 0, 0, 1, "1: a prompt enters the index again when its answer ends")         \
	X(calibrate_misses, 1, 0, 1,                                                               \
	  "0: first tokens of prompts that the engine had evicted teach no calibration")           \
	X(first_hits, 1, 0, 1,                                                                     \
	  "0: first turns are placed as if no engine had any of their prompt")                     \
	X(long_prefill_cap, 0, 0, 1e6, "most prompt tokens of one request in a step; 0 = no cap")  \
	X(budget, 0, 0, 1e6, "tokens of a step; 0 = the model's 8192")                             \
	X(kv_tokens, 0, 0, 1e9, "KV capacity; 0 = the profile's")                                  \
	X(hold, 0, 0, 3600,                                                                        \
	  "seconds that a decided request waits in the router before it is sent")                  \
	X(recheck, 1, 0, 1, "1: it is decided again when it leaves; 0: goes where it was to go")   \
	X(pull_bandwidth, 10e9, 1, 1e13, "bytes/s that a pull really takes place at")              \
	X(pull_setup, 0.05, 0, 100, "seconds that a pull's set-up really takes")                   \
	X(piece_overhead, 46, 0, 10000,                                                            \
	  "tokens of a piece that are computed and thrown away: template and a part of a block")   \
	X(piece_api, 0.015, 0, 10, "seconds before each part of a staged prompt but the first")    \
	X(pieces_hit, 1, 0, 1, "0: no piece finds the one before it, nor the request any")         \
	X(evidence, 1, 0, 3, "that pieces hit: 0 none, 1 cached tokens, 2 hit counter, 3 time")    \
	X(uncuttable, 0, 0, 1, "part of the sessions whose bodies cannot be cut")                  \
	X(requeue_api, 0.115, 0, 10, "seconds before a prompt taken back is sent again")           \
	X(calibrate_staged, 0, 0, 1, "1: staged and requeued prompts teach calibration, too")      \
	X(rescue, 0, 0, 1, "1: who waits for a first token leaves an engine that hangs")

struct replay_arm {
	char name[REPLAY_NAME_MAX];
	struct policy_params params;
	struct view_rules rules; /* the router's defaults */
	int peer;                /* enum policy_peer, -1 = the policy of params */
	struct peer_params peer_params;
	const struct model_profile
		*profile; /* what the policy's parameters are for: the first of */
	const struct model_profile *mixed[REPLAY_PROFILES_MAX]; /* these, which go round */
	unsigned profiles;
	enum replay_state state;
	enum replay_head head;
	enum replay_cache cache;
	enum replay_oracle oracle;
	enum replay_scheduling scheduling;
	struct stage_params stage;
	struct admit_params admit;
#define REPLAY_WORLD_MEMBER(name, standard, min, max, meaning) double name;
	REPLAY_WORLD(REPLAY_WORLD_MEMBER)
#undef REPLAY_WORLD_MEMBER
};

/* Sent elsewhere: at turn >= 2 than to the engine of the turn before, at turn 1 than to one that
 * held over 128 tokens more of the prompt. */
enum replay_offload { REPLAY_STAYED, REPLAY_MIGRATED, REPLAY_OFFLOADED };

/* What became of one turn of the workload; times are nanoseconds of the virtual clock. */
struct replay_request {
	uint64_t arrive_ns, first_ns, end_ns;
	double predicted_ttft_s;
	double stay_s; /* of an offload: to the first token in a copy of the engine it was not
			  sent to, run ahead from the decision without later arrivals */
	uint32_t cached_tokens;   /* as the engine found them */
	uint32_t best_hit_tokens; /* on any engine, at the decision, truly */
	uint32_t pulled_tokens;
	uint32_t held_tokens;  /* by home at the decision, truly; at turn 1: as best_hit_tokens */
	uint32_t offload;      /* enum replay_offload */
	uint32_t reason, move; /* of the policy's choice */
	uint32_t lost;         /* answers that broke off with their engine; it was sent again */
	uint32_t resends;      /* that often, and when no engine was there */
	int16_t engine, home;
};

/* What staging did in a play. */
struct replay_stage_counts {
	uint64_t staged, pieces, pieces_done; /* prompts, their pieces, those that came back */
	uint64_t closes, rescued, guards;     /* guards: times that something was switched off */
	uint64_t waited;                      /* requests, in the router */
	double waited_s;
	uint64_t reason[STAGE_REASONS_NR]; /* why prompts were not cut, or not to the end */
};

struct replay_run {
	struct replay_request *request; /* one a turn of the workload, same index */
	size_t requests;
	double most_tokens, fewest_tokens; /* prompt tokens that an engine computed */
	double end_s;                      /* when the last request ended */
	uint64_t preemptions, events;
	uint64_t rerouted; /* held requests that the re-check at commit sent elsewhere */
	double computed_tokens;
	struct replay_stage_counts stage;
	double waited_kv_s, waited_budget_s; /* in engines' queues, for what; sum over requests */
	double held_share; /* of the KV blocks, held by requests: mean over the steps' time */
};

static inline const struct model_profile *replay_profile_of(const struct replay_arm *arm,
							    unsigned engine)
{
	return arm->mixed[engine % arm->profiles];
}

void replay_arm_init(struct replay_arm *ret_arm);

/*
 * Plays every turn of the workload. 0; -ENOMEM; -E2BIG: a prompt that no engine of this world can
 * hold. replay_run_free() in any case.
 */
int replay_play(struct replay_run *ret_run, const struct replay_arm *arm,
		const struct workload *workload, uint64_t seed);
void replay_run_free(struct replay_run *run);

/* By length, and by what even a perfect cache would leave to compute: the same in every arm. */
static inline enum policy_class replay_class_of(const struct replay_arm *arm,
						const struct workload_turn *turn)
{
	uint32_t uncached = turn->prompt_tokens - turn->ideal_hit_tokens;

	if (turn->prompt_tokens >= arm->params.heavy_threshold)
		return CLASS_HEAVY;
	return uncached <= arm->params.warm_threshold ? CLASS_WARM : CLASS_MEDIUM;
}

/* ---- figures ---- */

/* X(name in JSON, unit, meaning) */
#define REPLAY_FIGURES(X)                                                                          \
	X(ttft_mean_s, "s", "time to first token, mean")                                           \
	X(ttft_p50_s, "s", "")                                                                     \
	X(ttft_p90_s, "s", "")                                                                     \
	X(ttft_p99_s, "s", "")                                                                     \
	X(tpot_mean_s, "s", "time per output token after the first")                               \
	X(tpot_p90_s, "s", "")                                                                     \
	X(e2e_mean_s, "s", "from arrival to the last token")                                       \
	X(e2e_p50_s, "s", "")                                                                      \
	X(e2e_p90_s, "s", "")                                                                      \
	X(warm_mean_s, "s", "TTFT of WARM requests")                                               \
	X(warm_p90_s, "s", "")                                                                     \
	X(medium_mean_s, "s", "of MEDIUM ones")                                                    \
	X(medium_p90_s, "s", "")                                                                   \
	X(heavy_mean_s, "s", "of HEAVY ones")                                                      \
	X(heavy_p90_s, "s", "")                                                                    \
	X(heavy_t1_mean_s, "s", "of HEAVY ones at turn 1")                                         \
	X(heavy_t1_p90_s, "s", "")                                                                 \
	X(heavy_t2_mean_s, "s", "of HEAVY ones at turn >= 2")                                      \
	X(heavy_t2_p90_s, "s", "")                                                                 \
	X(warm_n, "requests", "")                                                                  \
	X(medium_n, "requests", "")                                                                \
	X(heavy_n, "requests", "")                                                                 \
	X(warm_share, "ratio",                                                                     \
	  "of the requests; classes are by a perfect cache, so that every "                        \
	  "arm has the same")                                                                      \
	X(medium_share, "ratio", "")                                                               \
	X(heavy_t1_share, "ratio", "")                                                             \
	X(heavy_t2_share, "ratio", "")                                                             \
	X(candidates, "requests", "HEAVY at turn >= 2")                                            \
	X(hot, "requests", "of these, some engine held more than 80 % of the prompt")              \
	X(victims, "requests", "of these, waited more than 5 s for the first token")               \
	X(migrations, "requests", "at turn >= 2 sent elsewhere than the turn before")              \
	X(migrations_hot, "requests", "of these, hot ones")                                        \
	X(migrations_forced, "requests", "of these, by the rule before the cost model")            \
	X(migrations_paid, "requests",                                                             \
	  "of these, first token before a copy of the home left, run ahead from the decision, "    \
	  "gives it")                                                                              \
	X(offloads, "requests", "migrations and those at turn 1")                                  \
	X(offloads_t1, "requests",                                                                 \
	  "sent elsewhere than where most of the prompt was cached, at turn 1")                    \
	X(offloads_t1_paid, "requests", "of these, as above")                                      \
	X(lost, "answers",                                                                         \
	  "that broke off with their engine; all were sent again, and nothing "                    \
	  "of the broken answer counts")                                                           \
	X(pulls, "requests", "whose prefix came from another engine")                              \
	X(hit_ratio, "ratio", "prompt tokens that the engines found cached")                       \
	X(ideal_hit_ratio, "ratio", "that an endless, never missed cache would have held")         \
	X(balance, "x", "most over fewest prompt tokens computed by an engine")                    \
	X(floor_mean_s, "s", "TTFT on an empty engine with a perfect cache")                       \
	X(floor_p90_s, "s", "")                                                                    \
	X(floor_heavy_t2_mean_s, "s", "")                                                          \
	X(ideal_mean_s, "s", "TTFT on an empty engine holding what home held at the decision")     \
	X(ideal_heavy_t2_mean_s, "s", "")                                                          \
	X(over_ideal, "x", "mean TTFT over mean ideal")                                            \
	X(heavy_t2_over_ideal, "x", "")                                                            \
	X(waited_kv_s, "s", "a request, in an engine's queue that KV room holds up")               \
	X(waited_budget_s, "s", "in one that the step's tokens hold up")                           \
	X(kv_held, "ratio", "of the KV blocks by live requests, while steps run")                  \
	X(heavy_t1_tokens, "tokens", "mean prompt of HEAVY turn 1")                                \
	X(heavy_t2_hit_p10, "ratio", "of a prompt, in a perfect cache")                            \
	X(heavy_t2_hit_p50, "ratio", "")                                                           \
	X(heavy_t2_hit_p90, "ratio", "")                                                           \
	X(prediction_error, "log", "mean |ln(measured / predicted)| of first tokens, 50 ms added") \
	X(rerouted, "requests", "held ones that the re-check at commit sent elsewhere")            \
	X(preemptions, "requests", "")                                                             \
	X(computed_tokens, "tokens",                                                               \
	  "of prompts, by all engines, pieces and repetitions included")                           \
	X(staged, "requests", "sent in pieces")                                                    \
	X(pieces, "pieces", "")                                                                    \
	X(closes, "requests", "taken back by requeue")                                             \
	X(waited, "requests", "in the router, for a cold slot or room")                            \
	X(waited_mean_s, "s", "of these")                                                          \
	X(guards, "times", "that staging or requeue was switched off for a while")                 \
	X(rescued, "requests", "taken off an engine that hung")                                    \
	X(span_s, "s", "until the last answer ended")

enum replay_figure {
#define REPLAY_FIGURE_ENUM(name, unit, meaning) REPLAY_##name,
	REPLAY_FIGURES(REPLAY_FIGURE_ENUM)
#undef REPLAY_FIGURE_ENUM
		REPLAY_FIGURES_NR
};
extern const char *const replay_figure_names[];

/* -ENOMEM. */
int replay_figures(const struct replay_run *run, const struct replay_arm *arm,
		   const struct workload *workload, double ret_figure[REPLAY_FIGURES_NR]);

/* Mean and its standard error; 0 and 0 without values, error 0 of one. */
struct replay_mean {
	double mean, error;
};
struct replay_mean replay_mean_of(const double *values, size_t nr);

/* ---- arms by name ---- */

/* Sets one key of an arm (a policy parameter, a number or word of the world, `peer`); -EINVAL. */
int replay_arm_set(struct replay_arm *arm, const char *key, const char *value,
		   char why[REPLAY_WHY_MAX]);

/*
 * An arm from text: NAME or NAME+KEY=VALUE+..., NAME being a preset, a policy or a peer. The arm
 * starts from `base`, so that what holds for all is set there.
 */
int replay_arm_parse(struct replay_arm *ret_arm, const struct replay_arm *base, const char *text,
		     char why[REPLAY_WHY_MAX]);

/* The i-th preset and the suites (a bit each) it belongs to; NULL past the last. */
const char *replay_preset(size_t i, const char **ret_meaning, unsigned *ret_suites);

/* X(ID, name, meaning) */
#define REPLAY_SUITES(X)                                                          \
	X(DESIGN, "design", "the design document's policies and our own")         \
	X(MIGRATION, "migration", "what may move a session, and pulls")           \
	X(PEERS, "peers", "other dispatchers' rules")                             \
	X(STATE, "state", "how fresh the state is, and who adds what to it")      \
	X(FAULTS, "faults", "a slow engine, stalls, restarts")                    \
	X(LONG, "long", "long contexts on q14b, where queues wait for KV memory") \
	X(ORACLE, "oracle", "what knowing the engines fully would give")          \
	X(STAGE, "stage", "pieces, requeue and the cold slot")                    \
	X(TARGETS, "targets", "what must be shown, played and judged")
enum replay_suite {
#define REPLAY_SUITE_ENUM(id, name, meaning) REPLAY_SUITE_##id,
	REPLAY_SUITES(REPLAY_SUITE_ENUM)
#undef REPLAY_SUITE_ENUM
		REPLAY_SUITES_NR
};
extern const char *const replay_suite_names[];

/* ---- report ---- */

struct replay_detail;

/* Figures of arms x seeds, and what they were played on. */
struct replay_table {
	const struct replay_arm *arm;
	size_t arms, seeds;
	size_t base;          /* the arm that differences are against */
	const double *figure; /* [arm][seed][figure] */
	const char *workload;
	size_t requests; /* of one seed, the first */
	uint64_t seed;   /* the first */
	int argc;        /* the command that asked for it */
	char **argv;
	struct replay_detail *detail; /* replay_detail.h; may be NULL */
};

void replay_report_print(const struct replay_table *t);
int replay_report_json(const struct replay_table *t, const char *path); /* -errno */

#endif
