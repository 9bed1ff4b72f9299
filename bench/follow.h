/*
 * Replay beside a live run: its arrivals, and after each decision its choice, in the laboratory's
 * own world; how often the laboratory would have chosen the same, and why not where it would not.
 *
 * The trace is what turnward-bench live --trace wrote (live.md). The recording of the same run, by
 * `turnward record`, holds what the router saw: with it a difference is traced to the inputs that
 * differed. It allocates, reads files, and knows no clock.
 */
#ifndef TURNWARD_BENCH_FOLLOW_H
#define TURNWARD_BENCH_FOLLOW_H

#include "bench/replay.h"
#include "bench/workload.h"
#include "shm/state.h"

enum { FOLLOW_ID_MAX = 80, FOLLOW_NAME_MAX = 64, FOLLOW_WHY_MAX = WORKLOAD_WHY_MAX };
#define FOLLOW_CLEAR 0.05 /* costs that differ by more are no matter of taste */

/*
 * Inputs of a decision in groups: which of them, taken from the live run, turn the laboratory's
 * choice into the live one. X(ID, name, meaning)
 */
#define FOLLOW_INPUTS(X)                                                                   \
	X(SESSION, "session", "home, turn, moves and budget")                              \
	X(TOKENS, "tokens", "the router's estimate of prompt and answer")                  \
	X(HITS, "hits", "prefix hits, estimated differently")                              \
	X(PREFILL, "prefill", "prefill ahead: what the engines still had to compute")      \
	X(REQUESTS, "requests", "requests on the engines")                                 \
	X(DECODE, "decode", "sequences decoding, and their contexts")                      \
	X(SPEED, "speed", "speeds that agents measured")                                   \
	X(CALIBRATION, "calibration", "measured over predicted, and recent, first tokens") \
	X(AGE, "age", "age of the records and what is thought of it")                      \
	X(ROOM, "room", "KV memory and the like")                                          \
	X(DRAW, "draw", "the random draw")

/* Why a choice differs: one of the inputs alone, or */
#define FOLLOW_OTHERS(X)                                                                         \
	X(SEVERAL, "several", "only several of these together")                                  \
	X(RULE, "rule", "not the inputs: other parameters, or an engine that would not take it") \
	X(UNKNOWN, "unknown", "the recording does not have the decision, or none was given")

#define FOLLOW_ENUM(id, name, meaning) FOLLOW_##id,
enum follow_cause {
	FOLLOW_INPUTS(FOLLOW_ENUM) FOLLOW_INPUTS_NR,
	FOLLOW_INPUTS_END = FOLLOW_INPUTS_NR - 1,
	FOLLOW_OTHERS(FOLLOW_ENUM) FOLLOW_CAUSES_NR
};
#undef FOLLOW_ENUM

/* What the live run says of one request, beside the workload's turn of the same index. */
struct follow_turn {
	char id[FOLLOW_ID_MAX];
	int engine; /* that served it */
	double first_s, end_s;
	uint32_t max_tokens, cached_tokens;
	uint64_t content_bytes;
	uint32_t chain, chain_nr; /* of the content's blocks, in follow.chain */
	int recorded;             /* the two below are what the router saw, in model time */
	struct policy_request request;
	struct policy_engine *engines; /* all of the run's */
};

struct follow {
	struct workload workload; /* in order of arrival */
	struct follow_turn *turn;
	uint64_t *chain;
	char name[STATE_ENGINES_MAX][FOLLOW_NAME_MAX]; /* of the engines */
	unsigned engines;
	double speed;
	size_t left_out;             /* requests that failed, or whose engine is not known */
	size_t decisions;            /* of the recording, that belong to a request here */
	struct policy_params params; /* of the recording, in model time */
	double sample_s;             /* likewise: the agents' period, 0 = not known */
	struct policy_engine *seen;  /* where turn.engines lie */
};

/* Inputs that are shown side by side. X(name, field of the policy's engine) */
#define FOLLOW_BESIDES(X)                             \
	X(requests, num_requests)                     \
	X(pending_tokens, pending_prefill_tokens)     \
	X(hit_tokens, hit_tokens)                     \
	X(decoding, decoding)                         \
	X(context_tokens, decode_context_tokens)      \
	X(prefill_tokens_per_s, prefill_tokens_per_s) \
	X(decode_iteration_s, decode_iteration_s)     \
	X(calibration, calibration)                   \
	X(recent_ttft_s, recent_ttft_s)               \
	X(age_s, age_s)

enum {
#define FOLLOW_BESIDE(name, from) FOLLOW_BESIDE_##name,
	FOLLOW_BESIDES(FOLLOW_BESIDE) FOLLOW_BESIDES_NR
#undef FOLLOW_BESIDE
};

/* The laboratory's answer to one request. */
struct follow_verdict {
	int engine; /* that it would have chosen */
	double gap; /* of the two cheapest, in parts of the cheapest; < 0: the policy has no costs
		     */
	double regret;  /* of the live choice against its own, likewise; 0 where they agree */
	uint32_t alone; /* a bit per group of inputs that explains it alone */
	enum follow_cause cause;
	/* Of the engine that was chosen live, here and as the router saw it; recorded ones only. */
	float beside[FOLLOW_BESIDES_NR][2];
};

/* -EINVAL with the line in `why`; -errno. follow_free() in any case. */
int follow_read(struct follow *ret, const char *path, char why[FOLLOW_WHY_MAX]);
/* The recording of that run: -EINVAL if it is of another one. */
int follow_recording(struct follow *f, const char *path, char why[FOLLOW_WHY_MAX]);
void follow_free(struct follow *f);

/* Plays an arm along the run; one verdict a turn, the caller frees it. As replay_play(). */
int follow_play(struct follow_verdict **ret_verdict, struct replay_run *ret_run,
		const struct replay_arm *arm, const struct follow *f, uint64_t seed);

/* ---- what comes of it ---- */

struct follow_agreement {
	size_t decisions, agree;
	size_t cause[FOLLOW_CAUSES_NR]; /* of those that do not */
	size_t alone[FOLLOW_CAUSES_NR]; /* each group that explains one alone, not only the first */
	double regret_mean;             /* of those that do not, by the laboratory's costs */
};

struct follow_summary {
	struct follow_agreement all, clear; /* clear: gap > FOLLOW_CLEAR */
	size_t recorded;                    /* decisions that the next two are of */
	double mean[FOLLOW_BESIDES_NR][2];  /* here, live */
	double near[FOLLOW_BESIDES_NR];     /* share that is equal to within 1 % */
	double live_ttft_s[3], replay_ttft_s[3], ttft_off_s[3]; /* mean, p50, p90 */
};

/* -ENOMEM. */
int follow_summarize(struct follow_summary *ret, const struct follow *f,
		     const struct follow_verdict *verdict, const struct replay_run *run);

/* 1.0 where there was nothing to decide. */
static inline double follow_share(const struct follow_agreement *a)
{
	return a->decisions ? (double)a->agree / (double)a->decisions : 1;
}

/* What is to be followed, and how it is told. */
struct follow_command {
	const char *trace, *recording, *json; /* the latter two may be NULL */
	const struct replay_arm *base;        /* of arms that the recording gives */
	const struct replay_arm *arm;
	size_t arms; /* 0: the recording's policy and parameters */
	uint64_t seed;
};
int follow_run(const struct follow_command *c); /* exit code */

#endif
