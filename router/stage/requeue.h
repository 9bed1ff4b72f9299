/*
 * Requeue: a cold prompt is sent whole, and taken back when others wait behind it.
 *
 * An engine that keeps what an aborted prefill has computed loses nothing by it: close the cold
 * request, let every waiting non-cold one in, send the same bytes again after their first tokens.
 * Needs no tokeniser and costs nothing while nobody waits. The caller keeps one requeue_cold in a
 * request that is sent so, one requeue_pass in every other request, tells what happens to them,
 * polls after each and when requeue_due_ns() says so. O(1), pure. The head of a cold request's
 * answer must be held back until its first event: what was relayed cannot be taken back.
 */
#ifndef TURNWARD_ROUTER_STAGE_REQUEUE_H
#define TURNWARD_ROUTER_STAGE_REQUEUE_H

#include "router/stage/params.h"
#include "shm/state.h"

#include <stdint.h>

#define REQUEUE_NEVER UINT64_MAX

enum requeue_state {
	REQUEUE_IDLE,     /* not by this engine's rule; a zeroed one is idle */
	REQUEUE_RUNNING,  /* with the engine, no first token yet */
	REQUEUE_AWAY,     /* closed; others go first */
	REQUEUE_RETURNING /* told to be sent again */
};

/* A cold request that gives way. Must not move while it is not idle. */
struct requeue_cold {
	uint32_t state; /* enum requeue_state */
	uint32_t engine;
	uint32_t closes;
	uint32_t owed;            /* who waited when it was closed, and still does */
	uint32_t uncached_tokens; /* when it was last sent */
	uint32_t computed_tokens; /* of these, estimated, when it was last closed */
	uint32_t kept_tokens;     /* by all its closed sends to this engine */
	uint32_t reserved;
	uint32_t step_tokens, going_tokens;
	uint64_t sent_ns, start_ns, resend_by_ns;
	double tokens_per_s, step_s;
};

/* Any other request in that engine, from its dispatch to its first token or end. */
struct requeue_pass {
	uint64_t round; /* closes of that engine's cold requests before it came */
	uint32_t engine;
	uint32_t waiting; /* 0 = not counted; a zeroed one is not */
};

struct requeue_engine {
	struct requeue_cold *cold; /* NULL = none is watched */
	uint64_t round, last_close_ns;
	uint64_t off_until_ns; /* it has not kept what it computed */
	uint32_t waiting;      /* passes without a first token */
	uint32_t lost;         /* times running that too little was kept */
};

struct requeue {
	struct requeue_engine engine[STATE_ENGINES_MAX];
};

/* How the request goes out; all predicted. */
struct requeue_send {
	uint32_t uncached_tokens, step_tokens;
	uint32_t going_tokens; /* computed whenever it is closed: of a step, of two with async */
	double tokens_per_s, step_s;
	uint64_t start_ns; /* when what is ahead of it will have been computed */
};

enum requeue_action { REQUEUE_NOTHING, REQUEUE_CLOSE, REQUEUE_SEND };

/* May a cold prompt for this engine be sent so now: none else is, and the engine keeps its work. */
int requeue_may(const struct requeue *rq, unsigned engine, uint64_t now_ns);

/* Its bytes are being sent, for the first time or again. */
void requeue_sent(struct requeue *rq, struct requeue_cold *cold, unsigned engine,
		  const struct requeue_send *send, uint64_t now_ns);

/* First token, end, error, client gone, engine lost: it gives way no more. Harmless when idle. */
void requeue_over(struct requeue *rq, struct requeue_cold *cold);

/* Another request was sent to the engine; has its first token, or its end. Leaving twice is
 * harmless. */
void requeue_enter(struct requeue *rq, struct requeue_pass *pass, unsigned engine);
void requeue_leave(struct requeue *rq, struct requeue_pass *pass);

/*
 * What to do about the engine's cold request: CLOSE its connection and keep its body, or SEND it
 * again. Either is said once. *ret_cold is whom it is about.
 */
enum requeue_action requeue_poll(struct requeue *rq, const struct stage_params *params,
				 unsigned engine, uint64_t now_ns, struct requeue_cold **ret_cold);

/* When to poll even if nothing happens; REQUEUE_NEVER. */
uint64_t requeue_due_ns(const struct requeue *rq, const struct stage_params *params,
			unsigned engine);

/*
 * A request that had been closed was answered; `cached_tokens` is what its last send found, less
 * what was cached when it first came. Returns 1 if the engine gets no more of this, just now.
 */
int requeue_kept(struct requeue *rq, const struct stage_params *params,
		 const struct requeue_cold *cold, uint32_t cached_tokens, uint64_t now_ns);

#endif
