/* Every policy and parameter by name, default and meaning: configuration, help and records use it.
 */
#ifndef TURNWARD_ROUTER_POLICY_PARAMS_H
#define TURNWARD_ROUTER_POLICY_PARAMS_H

#include <assert.h>
#include <stdint.h>

/*
 * What each charges engine i, and where the rule is from. Seconds; tokens: u uncached of the
 * prompt's L, h = L - u hit, p prefill pending (rest of running prefills included), c contexts
 * being decoded, o output still to come; n requests in the engine, d sequences decoding; T
 * tokens/s of prefill, t = decode_iteration_s. Terms common to all: README.md.
 *
 * round-robin: engines in turn by weight. The usual.
 *
 * least-requests: n / weight. The usual.
 *
 * power-of-two: n / weight, of two engines drawn at random. The usual (Mitzenmacher 2001).
 *
 * sticky: 0 at home; new sessions n / weight. The usual.
 *
 * linear: (linear_load_weight (p + c) + u) / T. The design document's baseline, as we read it.
 *
 * v2: (p + u) / T. The design document.
 *
 * v3: (p + o + u) / T; engines with (p + o) / T over overload_factor x mean are left out unless
 * all are. The design document; the gate is our reading of it.
 *
 * contention: n t + (p + u) / T - discount. The design document's model A.
 *
 * eft: rest of the step + p / T + own + passes t + own (harm_share + harm_per_request n +
 * harm_per_decode d) + wait for KV room; own = a u + b (L^2 - h^2), passes = ceil((p + u) / step
 * budget) while d > 0. Ours: the engines' own step times, the shares found by simulation.
 *
 * The discount of a move at turn >= 2, k = min(turn, migration_discount_cap): subtract k t,
 * amortise own prefill x (1 - 1/k), percent migration_discount_percent x k of the total.
 */
/* X(ID, name, one-line meaning) */
#define POLICIES(X)                                                                              \
	X(ROUND_ROBIN, "round-robin", "engines in turn, in proportion to their weights")         \
	X(LEAST_REQUESTS, "least-requests", "the engine with the fewest requests per weight")    \
	X(POWER_OF_TWO, "power-of-two", "the one with fewer requests of two drawn at random")    \
	X(STICKY, "sticky", "the session's home while it lives; new sessions by least requests") \
	X(LINEAR, "linear", "the baseline: uncached tokens plus weighted outstanding tokens")    \
	X(V2, "v2", "prefill backlog and own prefill, in seconds")                               \
	X(V3, "v3", "prefill and decode backlog and own prefill, overloaded engines left out")   \
	X(CONTENTION, "contention", "A: decode contention, prefill backlog and own prefill")     \
	X(EFT, "eft", "earliest first token, from the engine's step model")

/*
 * What may leave a home at turn >= 2. The rule before the cost model (the design document's B): a
 * trigger finds home busy, hit / L > cache_ratio, HEAVY, and another engine has n < home's n -
 * migration_request_gap. X(ID, name, meaning)
 */
#define MIGRATE_MODES(X)                                                           \
	X(OFF, "off", "no rule before the cost model, which chooses freely")       \
	X(FORCE, "force", "a triggered rule moves the session whatever the price") \
	X(PRICED, "priced", "every leave must gain more than its margin, within the budgets")

#define MIGRATION_TRIGGERS(X)                                                                     \
	X(NONE, "none", "nothing nominates")                                                      \
	X(FACTOR, "factor", "home's requests exceed migration_request_factor x the mean")         \
	X(ABSOLUTE, "absolute", "home's requests exceed the mean by migration_request_excess")    \
	X(RECENT_TTFT, "recent-ttft", "home's recent first tokens, or the oldest wait, are long") \
	X(PENDING, "pending", "home has more than migration_pending_s of prefill ahead")

#define MIGRATION_DISCOUNTS(X)                                                    \
	X(AUTO, "auto", "subtract for contention, none for the others")           \
	X(NONE, "none", "a move costs what it costs")                             \
	X(SUBTRACT, "subtract", "min(turn, cap) x decode_iteration_s off a move") \
	X(AMORTISE, "amortise", "a move's prefill divided by min(turn, cap)")     \
	X(PERCENT, "percent", "migration_discount_percent x min(turn, cap) off a move")

/* How v3 reads "decode tokens". */
#define DECODE_READINGS(X)                                                              \
	X(OUTPUT, "output", "tokens that the decoding sequences still have to produce") \
	X(CONTEXT, "context", "sum of the contexts being decoded")                      \
	X(SEQUENCES, "sequences", "one token per decoding sequence: the next step's")

#define POLICY_ENUM_POLICY(id, name, meaning)   POLICY_##id,
#define POLICY_ENUM_MIGRATE(id, name, meaning)  MIGRATE_##id,
#define POLICY_ENUM_TRIGGER(id, name, meaning)  TRIGGER_##id,
#define POLICY_ENUM_DISCOUNT(id, name, meaning) DISCOUNT_##id,
#define POLICY_ENUM_READING(id, name, meaning)  READING_##id,
enum policy_kind { POLICIES(POLICY_ENUM_POLICY) POLICIES_NR };
enum migrate_mode { MIGRATE_MODES(POLICY_ENUM_MIGRATE) MIGRATE_MODES_NR };
enum migration_trigger { MIGRATION_TRIGGERS(POLICY_ENUM_TRIGGER) MIGRATION_TRIGGERS_NR };
enum migration_discount { MIGRATION_DISCOUNTS(POLICY_ENUM_DISCOUNT) MIGRATION_DISCOUNTS_NR };
enum decode_reading { DECODE_READINGS(POLICY_ENUM_READING) DECODE_READINGS_NR };
#undef POLICY_ENUM_POLICY
#undef POLICY_ENUM_MIGRATE
#undef POLICY_ENUM_TRIGGER
#undef POLICY_ENUM_DISCOUNT
#undef POLICY_ENUM_READING

/*
 * Parameters that are a word from a list; in the struct a uint64_t index, as the configuration's
 * CONF_CHOICE. X(name, list of names, default as text, meaning)
 */
#define POLICY_CHOICE_PARAMS(X)                                                                   \
	X(policy, policy_names, "eft", "how the engine of a request is chosen")                   \
	X(migrate, migrate_names, "priced", "what may move a session from its home")              \
	X(migration_trigger, migration_trigger_names, "pending", "what nominates a home as busy") \
	X(migration_discount, migration_discount_names, "auto", "what a move is forgiven")        \
	X(v3_decode_tokens, decode_reading_names, "output", "how v3 reads decode tokens")

/*
 * What a unit means when all engines run X times faster than life: POLICY_TIME values are divided
 * by X, POLICY_RATE values multiplied, the rest stay.
 */
enum policy_unit { POLICY_PLAIN, POLICY_TIME, POLICY_RATE };

/*
 * Parameters that are numbers; each a double. X(name, default as a literal, min, max, enum
 * policy_unit, unit, meaning). Times are in seconds of the engines' world.
 */
#define POLICY_REAL_PARAMS(X)                                                                      \
	X(decode_iteration_s, 0.05, 0, 10, POLICY_TIME, "s",                                       \
	  "time of one decode step until an engine's own is measured")                             \
	X(throughput, 4000, 1, 1e7, POLICY_RATE, "tokens/s",                                       \
	  "prefill throughput until an engine's own is measured")                                  \
	X(throughput_context, 23000, 0, 1e7, POLICY_PLAIN, "tokens",                               \
	  "prompt + hit length at which throughput holds; eft takes the quadratic part out of it") \
	X(attention_s, 2.05e-9, 0, 1, POLICY_TIME, "s/token^2",                                    \
	  "b of eft's own prefill a u + b (L^2 - h^2)")                                            \
	X(heavy_threshold, 16384, 1, 1e9, POLICY_PLAIN, "tokens",                                  \
	  "prompts of this length or more are HEAVY")                                              \
	X(warm_threshold, 2048, 0, 1e9, POLICY_PLAIN, "tokens",                                    \
	  "shorter prompts with at most this much uncached are WARM, the rest MEDIUM")             \
	X(cache_ratio, 0.5, 0, 1, POLICY_PLAIN, "ratio",                                           \
	  "hit / prompt above which the rule before the cost model considers a session")           \
	X(migration_discount_cap, 5, 1, 1000, POLICY_PLAIN, "turns",                               \
	  "turns that count in the discount of a move")                                            \
	X(migration_discount_percent, 10, 0, 100, POLICY_PLAIN, "%",                               \
	  "forgiven per turn in discount percent")                                                 \
	X(migration_request_factor, 1.5, 1, 100, POLICY_PLAIN, "x",                                \
	  "trigger factor: home's requests over the mean")                                         \
	X(migration_request_excess, 3, 0, 1e6, POLICY_PLAIN, "requests",                           \
	  "trigger absolute: home's requests above the mean")                                      \
	X(migration_request_gap, 2, 0, 1e6, POLICY_PLAIN, "requests",                              \
	  "a triggered target has fewer requests than home by more than this")                     \
	X(migration_ttft_s, 5, 0, 1e6, POLICY_TIME, "s",                                           \
	  "trigger recent-ttft: the window's quantile above this")                                 \
	X(migration_ttft_samples, 5, 1, 1e6, POLICY_PLAIN, "samples",                              \
	  "fewer samples in the window say nothing")                                               \
	X(migration_wait_s, 5, 0, 1e6, POLICY_TIME, "s",                                           \
	  "trigger recent-ttft: the oldest wait for a first token above this")                     \
	X(migration_pending_s, 5, 0, 1e6, POLICY_TIME, "s",                                        \
	  "trigger pending: home's prefill ahead above this")                                      \
	X(migration_hysteresis_s, 1, 0, 1e6, POLICY_TIME, "s",                                     \
	  "least net gain of a priced move, at most the extra prefill itself")                     \
	X(migration_margin, 0.25, 0, 100, POLICY_PLAIN, "x",                                       \
	  "least net gain of a priced move in parts of its extra prefill")                         \
	X(migration_cooldown_s, 10, 0, 1e6, POLICY_TIME, "s",                                      \
	  "a session that moved stays this long, and one turn")                                    \
	X(migration_moves, 2, 0, 5, POLICY_PLAIN, "moves",                                         \
	  "most moves of a session in its last 5 turns")                                           \
	X(migration_overrule_s, 10, 0, 1e6, POLICY_TIME, "s",                                      \
	  "a priced move that gains this much waits for no cool-down or budget")                   \
	X(overload_factor, 2, 1, 1000, POLICY_PLAIN, "x",                                          \
	  "v3 leaves out engines whose backlog exceeds this x the mean")                           \
	X(linear_load_weight, 0.35, 0, 1000, POLICY_PLAIN, "x",                                    \
	  "linear: weight of an outstanding token against an uncached one")                        \
	X(output_tokens, 200, 1, 1e6, POLICY_PLAIN, "tokens",                                      \
	  "answer length where the request does not say")                                          \
	X(harm_share, 0.5, 0, 100, POLICY_PLAIN, "x",                                              \
	  "eft: what own prefill costs the others, in parts of itself")                            \
	X(harm_per_request, 0, 0, 100, POLICY_PLAIN, "x",                                          \
	  "the same, per request in the engine, waiting or running")                               \
	X(harm_per_decode, 0.1, 0, 100, POLICY_PLAIN, "x",                                         \
	  "the same, per sequence decoding on the engine")                                         \
	X(long_tokens, 9600, 1, 1e9, POLICY_PLAIN, "tokens",                                       \
	  "a request with more uncached counts what is staged or held for an engine")              \
	X(tie_band, 0.02, 0, 1, POLICY_PLAIN, "ratio",                                             \
	  "costs this close are equal: home, else a random draw, decides")                         \
	X(tie_band_s, 0.002, 0, 10, POLICY_TIME, "s", "the same, absolute")                        \
	X(stale_penalty, 0.5, 0, 100, POLICY_PLAIN, "s/s",                                         \
	  "cost per second that a record is older than it should be")                              \
	X(probe_tokens, 2048, 0, 1e9, POLICY_PLAIN, "tokens",                                      \
	  "longest uncached part of a request that may probe an engine")                           \
	X(measured_band, 1, 0, 10, POLICY_PLAIN, "ratio",                                          \
	  "engines whose measured throughput is this close to the median one's are equally fast")  \
	X(calibration_band, 0.3, 0, 10, POLICY_PLAIN, "ratio",                                     \
	  "deviation from the median engine that calibration ignores")                             \
	X(calibration_max, 6, 1, 100, POLICY_PLAIN, "x",                                           \
	  "calibration is held within 1/this .. this; 1 switches it off")                          \
	X(kv_transfer, 0, 0, 1, POLICY_PLAIN, "0 or 1",                                            \
	  "price pulling a prefix from another engine where engines can")                          \
	X(kv_transfer_setup_s, 0.05, 0, 100, POLICY_TIME, "s", "set-up of one pull")               \
	X(kv_transfer_bandwidth, 10e9, 1e6, 1e13, POLICY_RATE, "bytes/s", "of one pull")           \
	X(kv_bytes_per_token, 147456, 1, 1e9, POLICY_PLAIN, "bytes/token",                         \
	  "of the model's KV cache")

/* In force for a decision; plain words, recorded verbatim. policy_params_init sets the defaults. */
struct policy_params {
#define POLICY_CHOICE_MEMBER(name, names, standard, meaning) uint64_t name;
	POLICY_CHOICE_PARAMS(POLICY_CHOICE_MEMBER)
#undef POLICY_CHOICE_MEMBER
#define POLICY_REAL_MEMBER(name, standard, min, max, kind, unit, meaning) double name;
	POLICY_REAL_PARAMS(POLICY_REAL_MEMBER)
#undef POLICY_REAL_MEMBER
};
static_assert(sizeof(struct policy_params) % 8 == 0, "records hold words");

/* NULL-terminated, in the order of the enums: what CONF_CHOICE wants. */
extern const char *const policy_names[];
extern const char *const migrate_names[];
extern const char *const migration_trigger_names[];
extern const char *const migration_discount_names[];
extern const char *const decode_reading_names[];

/* The defaults above. */
void policy_params_init(struct policy_params *ret_params);

/* Divides every time and multiplies every rate by `speed`: the world runs that much faster. */
void policy_params_scale(struct policy_params *params, double speed);

#endif
