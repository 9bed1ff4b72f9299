/*
 * How other dispatchers choose, by their documented rules and with their own defaults: arms to
 * compare with, not policies that the router offers.
 *
 * Re-implemented from what their documentation and papers say, over the same inputs as our own
 * policies. They are given our view of the engines, which is fresher and more exact than what most
 * of them would have; what a rule lacks (a session's home, say) it does not use.
 *
 * The rules, with the names of the parameters below; u uncached tokens of the prompt's L, h = L - u
 * hit, p uncached tokens pending in the engine, c contexts decoding there, n requests, q those it
 * reports as waiting, k KV used / capacity. Equal engines are drawn at random.
 *
 * sglang: max n - min n > balance_abs and max n > balance_rel min n: least n. Else the longest
 * match if h / L > cache_threshold, else least n. SGLang router, defaults of its command line.
 *
 * least-load: p / throughput + kv_weight k / (1 - k), seconds, k at most 0.999; hits do not
 * count. SGLang model gateway; its polls of ten seconds are not imitated.
 *
 * dynamo: prefill_scale max(0, p + L - overlap_credit h) + c + L + request_weight n, in blocks.
 * NVIDIA Dynamo KV router; temperature 0, no decay, no busy thresholds, as it comes.
 *
 * llm-d: greatest queue (max q - q) / (max q - min q) + kv (1 - k) + prefix h / L. llm-d endpoint
 * picker's default profile.
 *
 * llm-d-affinity: engines with h / L >= affinity alone, by the scores above, unless the best of
 * them is later by penalty_s than the best other; lateness is p / throughput. llm-d's filter.
 *
 * aibrix: max n - min n > imbalance: least n. Else by longest match, then least n, the first
 * with n <= mean + sigma standard deviations; else least n. AIBrix gateway, prefix-cache, the
 * defaults of its code.
 *
 * preble: engines with the longest hit if h > u, else all; least of window prefill + n
 * output_tokens tpot_s + u / T, seconds. Preble's E2 (arXiv 2407.00023); its moving of whole
 * subtrees is not imitated.
 *
 * llumnix: u + p, then n. Llumnix's cache-aware metric; its live migration of running requests
 * needs engines that can.
 */
#ifndef TURNWARD_ROUTER_POLICY_PEERS_H
#define TURNWARD_ROUTER_POLICY_PEERS_H

#include "router/policy/policy.h"

/* X(ID, name, whose rule and how it is set) */
#define POLICY_PEERS(X)                                                                           \
	X(SGLANG, "sglang", "SGLang router, cache-aware: affinity until imbalanced, then counts") \
	X(LEAST_LOAD, "least-load", "SGLang model gateway, least-load: queued tokens, KV usage")  \
	X(DYNAMO, "dynamo", "NVIDIA Dynamo, KV router: prefill blocks less overlap, plus decode") \
	X(LLM_D, "llm-d", "llm-d, default scorers: 2 queue, 2 KV usage, 3 prefix")                \
	X(LLM_D_AFFINITY, "llm-d-affinity", "llm-d, prefix affinity filter before its scorers")   \
	X(AIBRIX, "aibrix", "AIBrix, prefix-cache: longest match that is not overloaded")         \
	X(PREBLE, "preble", "Preble, E2: exploit a long prefix, else explore by window load")     \
	X(LLUMNIX, "llumnix", "Llumnix: tokens to compute, own misses and all prefills")

#define POLICY_PEER_ENUM(id, name, meaning) PEER_##id,
enum policy_peer { POLICY_PEERS(POLICY_PEER_ENUM) PEERS_NR };
#undef POLICY_PEER_ENUM

/* Their defaults. X(name, default, meaning) */
#define PEER_PARAMS(X)                                                                        \
	X(sglang_cache_threshold, 0.3, "share of the prompt that a match must exceed")        \
	X(sglang_balance_abs, 64, "requests: most minus fewest beyond which counts decide")   \
	X(sglang_balance_rel, 1.5, "and most over fewest")                                    \
	X(least_load_throughput, 2000, "tokens/s")                                            \
	X(least_load_kv_weight, 0.15, "s: weight of k / (1 - k)")                             \
	X(dynamo_overlap_credit, 1, "of overlapping blocks")                                  \
	X(dynamo_prefill_scale, 1, "of prefill blocks against decode blocks")                 \
	X(dynamo_request_weight, 0, "of active requests")                                     \
	X(dynamo_block, 16, "tokens")                                                         \
	X(llm_d_queue, 2, "weight of the queue scorer")                                       \
	X(llm_d_kv, 2, "weight of the KV usage scorer")                                       \
	X(llm_d_prefix, 3, "weight of the prefix scorer")                                     \
	X(llm_d_affinity, 0.8, "share of the prompt that makes an engine sticky")             \
	X(llm_d_penalty_s, 18, "by which the best sticky engine may be later")                \
	X(llm_d_throughput, 15928, "tokens/s: its peak prefill throughput")                   \
	X(aibrix_imbalance, 8, "requests: most minus fewest beyond which the least one goes") \
	X(aibrix_sigma, 1, "standard deviations above the mean that a match may have")        \
	X(preble_tpot_s, 0.05, "s: what an output token of an active request weighs")         \
	X(preble_output_tokens, 200, "tokens: median answer")

struct peer_params {
#define PEER_PARAM_MEMBER(name, standard, meaning) double name;
	PEER_PARAMS(PEER_PARAM_MEMBER)
#undef PEER_PARAM_MEMBER
};

/* What some of them see and our own policies do not ask for. */
struct peer_engine {
	double waiting;          /* requests that the engine itself reports as queued */
	double window_prefill_s; /* prefill of what was sent there in the last three minutes */
};

void peer_params_init(struct peer_params *ret_params);
const char *peer_name(unsigned peer); /* NULL out of range */
const char *peer_meaning(unsigned peer);
int peer_parse(const char *name); /* -1: no such peer */

/*
 * As policy_choose(), by a peer's rule; candidates, class and the costs shown (the step model's)
 * are found as for policies without costs. peers[i] goes with engines[i].
 */
void peer_choose(enum policy_peer peer, const struct peer_params *peer_params,
		 const struct policy_params *params, const struct policy_request *request,
		 const struct policy_engine *engines, const struct peer_engine *peers,
		 unsigned engines_nr, struct policy_choice *ret_choice);

#endif
