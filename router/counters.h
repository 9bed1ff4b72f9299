/* Every counter of the router: one list for the code, the region, /metrics and the documentation.
 */
#ifndef TURNWARD_ROUTER_COUNTERS_H
#define TURNWARD_ROUTER_COUNTERS_H

#include "shm/files.h"
#include "shm/state.h"

#include <stdint.h>

/* X(name, help): turnward_NAME_total; what ends in _us is shown in seconds. started = completed +
 * failed + aborted + in flight. */
#define COUNTERS(X)                                                                                \
	X(requests_started, "requests whose head was read")                                        \
	X(requests_completed, "requests answered whole")                                           \
	X(requests_failed, "requests that ended in an error of the router's or an engine's")       \
	X(requests_aborted, "requests whose client left")                                          \
	X(requests_lost, "requests in flight when an earlier worker died; counted as failed too")  \
	X(connections_accepted, "client connections accepted")                                     \
	X(connections_refused, "client connections closed for want of a slot")                     \
	X(decisions, "engine choices made")                                                        \
	X(migrations, "sessions sent to another engine than their home")                           \
	X(resent_connect, "requests sent again because connecting failed")                         \
	X(resent_reused, "requests sent again because a reused connection was closed")             \
	X(resent_refused, "requests sent again because an engine answered 429 or 503")             \
	X(ahead_requests, "bodies of which something was sent before the decision")                \
	X(ahead_wrong, "of these, then sent to another engine, or anew")                           \
	X(staged_requests, "long prompts that were sent in pieces")                                \
	X(staged_pieces, "pieces of prompts sent to engines, no users' requests")                  \
	X(staged_pieces_cached_tokens, "of pieces, prompt tokens that were served from a cache")   \
	X(staged_passed, "requests that went ahead of prompts in pieces, held or taken back")      \
	X(staged_passed_us, "prefill of these that they did not wait for, by the model")           \
	X(staged_given_up, "of these prompts, sent on whole after some pieces")                    \
	X(staged_tokenised, "prompts that engines were asked to tokenise")                         \
	X(staged_guards, "times that staging was switched off, for a shape or an engine")          \
	X(requeue_requests, "cold prompts sent whole that give way to others")                     \
	X(requeue_closes, "times that one was taken back, to be sent again")                       \
	X(requeue_guards, "times that an engine was found not to keep what it had computed")       \
	X(rescued, "requests taken off an engine that hung, and sent elsewhere")                   \
	X(cold_waits, "cold prompts that waited for a cold slot")                                  \
	X(cold_waited_us, "time that they waited")                                                 \
	X(prompt_tokens, "prompt tokens that engines reported")                                    \
	X(cached_tokens, "of these, served from a prefix cache")                                   \
	X(completion_tokens, "tokens that engines reported as generated")                          \
	X(bytes_in, "body bytes from clients")                                                     \
	X(bytes_out, "bytes to clients")                                                           \
	X(engine_questions, "requests of the router's own to engines")                             \
	X(body_memory_refused, "requests refused because bodies fill their memory")                \
	X(worker_starts, "workers started on this region")                                         \
	X(shadow_decisions, "decisions on which the shadow policy was asked, too")                 \
	X(shadow_disagreements, "of these, it would have chosen another engine")                   \
	X(shadow_skipped, "decisions on which it could not be asked for want of time")             \
	X(shadow_regret_us, "by the shadow's model, what the choices made cost more than its own") \
	X(shadow_excess_us, "by the model in force, what the shadow's choices would cost more")

/* X(name, help): turnward_engine_NAME_total{engine}. */
#define ENGINE_COUNTERS(X)                                                          \
	X(requests, "requests sent to the engine")                                  \
	X(errors, "answers of status 500 and above, and broken connections")        \
	X(refusals, "answers 429 and 503")                                          \
	X(connect_failures, "connections that could not be made")                   \
	X(aborts, "requests on the engine whose client left")                       \
	X(staged_pieces, "pieces of prompts sent to it")                            \
	X(staged_guards, "times that nothing told there whether pieces hit")        \
	X(requeue_closes, "times that a cold prompt was taken back from it")        \
	X(rescued, "requests that left it because it hung")                         \
	X(hit_tokens_predicted, "prompt tokens believed to be in its prefix cache") \
	X(cached_tokens, "prompt tokens that it reported as cached")                \
	X(prompt_tokens, "prompt tokens that it reported")

#define COUNTER_ENUM(name, help) COUNTER_##name,
enum counter { COUNTERS(COUNTER_ENUM) COUNTERS_NR };
#undef COUNTER_ENUM
#define ENGINE_COUNTER_ENUM(name, help) ENGINE_COUNTER_##name,
enum engine_counter { ENGINE_COUNTERS(ENGINE_COUNTER_ENUM) ENGINE_COUNTERS_NR };
#undef ENGINE_COUNTER_ENUM

/* They live in the `router` file, so they go on over a worker's crash. */
struct counters {
	struct router_counter *base; /* COUNTERS_NR, then ENGINE_COUNTERS_NR per engine */
};

extern const char *const counter_names[COUNTERS_NR], *const counter_help[COUNTERS_NR];
extern const char *const engine_counter_names[ENGINE_COUNTERS_NR];
extern const char *const engine_counter_help[ENGINE_COUNTERS_NR];

/* Binds the names, those of engines as "name/ENGINE". 0 or -ENOSPC. */
int counters_bind(struct counters *counters, struct router_file *file, const char *const *engines,
		  unsigned nr);

static inline void count(struct counters *c, enum counter counter, uint64_t n)
{
	router_counter_add(&c->base[counter], n);
}

static inline void count_engine(struct counters *c, unsigned engine, enum engine_counter counter,
				uint64_t n)
{
	router_counter_add(&c->base[COUNTERS_NR + engine * ENGINE_COUNTERS_NR + counter], n);
}

static inline uint64_t counter_value(const struct counters *c, enum counter counter)
{
	return atomic_load_explicit(&c->base[counter].value, memory_order_relaxed);
}

static inline uint64_t engine_counter_value(const struct counters *c, unsigned engine,
					    enum engine_counter counter)
{
	return atomic_load_explicit(
		&c->base[COUNTERS_NR + engine * ENGINE_COUNTERS_NR + counter].value,
		memory_order_relaxed);
}

#endif
