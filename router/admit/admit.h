/*
 * The waiting room: the one place where a request can wait in the router.
 *
 * Two things are waited for: room (every engine has as much as it may have; with a deadline, then
 * 429 and Retry-After) and a cold slot (an engine takes one cold prompt at a time; no deadline).
 * Each is first come first served within a class; between classes a lighter one goes first unless
 * a heavier one has waited longer by its handicap, so nobody starves. Where a request goes is
 * decided when it is let out, not when it enters.
 *
 * Pure: no clock, no allocation after admit_init(), no I/O. Entries are the caller's, inside its
 * own request. Enter and leave cost O(log n) by the deadline, O(1) without one.
 */
#ifndef TURNWARD_ROUTER_ADMIT_ADMIT_H
#define TURNWARD_ROUTER_ADMIT_ADMIT_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define ADMIT_NEVER UINT64_MAX

enum { ADMIT_CLASSES = 3 }; /* WARM, MEDIUM, HEAVY: the policy's, in its order */

/* What is waited for. X(ID, name, meaning) */
#define ADMIT_WAITS(X)                                               \
	X(ROOM, "room", "until an engine may take one more request") \
	X(COLD, "cold-slot", "until an engine has no cold prompt in progress")
#define ADMIT_ENUM(id, name, meaning) ADMIT_##id,
enum admit_wait { ADMIT_WAITS(ADMIT_ENUM) ADMIT_WAITS_NR };
#undef ADMIT_ENUM

/* X(name, default, min, max, enum admit_unit, unit, meaning); times are divided by the speed-up. */
enum admit_unit { ADMIT_PLAIN, ADMIT_TIME };
#define ADMIT_PARAMS(X)                                                                     \
	X(cold_tokens, 8192, 1, 1e9, ADMIT_PLAIN, "tokens",                                 \
	  "a request with this much uncached or more on its engine is cold")                \
	X(cold_slots, 0, 0, 64, ADMIT_PLAIN, "prompts",                                     \
	  "cold ones that an engine takes at a time, all workers together; 0 = any number") \
	X(engine_requests, 0, 0, 1e6, ADMIT_PLAIN, "requests",                              \
	  "that an engine may have before others wait for room; 0 = any number")            \
	X(queue_timeout_s, 30, 0, 1e6, ADMIT_TIME, "s", "longest wait for room")            \
	X(queue_handicap_s, 5, 0, 1e6, ADMIT_TIME, "s",                                     \
	  "a class goes before the next heavier one's requests that came up to this earlier")

struct admit_params {
#define ADMIT_MEMBER(name, standard, min, max, kind, unit, meaning) double name;
	ADMIT_PARAMS(ADMIT_MEMBER)
#undef ADMIT_MEMBER
};

/* In the caller's request; must not move while it waits. A zeroed one does not wait. */
struct admit_entry {
	struct admit_entry *older, *newer;
	uint64_t since_ns, deadline_ns; /* ADMIT_NEVER = none */
	uint32_t waiting;               /* 1 + enum admit_wait; 0 = it does not wait */
	uint32_t class;
	uint32_t heap_at; /* 1 + place by deadline, 0 = none */
	int32_t engine;   /* the caller's: where it would go now, -1 = nowhere */
	uint64_t tokens;  /* the caller's: uncached there, as counted by the ledger */
};

struct admit_list {
	struct admit_entry *oldest, *newest;
	uint32_t nr;
	uint32_t reserved;
};

struct admit_room {
	struct admit_list list[ADMIT_WAITS_NR][ADMIT_CLASSES];
	struct admit_entry **heap; /* by deadline; the caller's memory */
	uint32_t heap_nr, limit, nr;
	uint32_t reserved;
	uint64_t handicap_ns;
	uint64_t released_ns; /* when one was last let out for room */
	double gap_s;         /* EWMA between two of these, 0 = unknown */
	uint64_t entered_total, released_total, expired_total, left_total;
};

void admit_params_init(struct admit_params *ret_params);
void admit_params_scale(struct admit_params *params, double speed);

/* Memory for `limit` entries, see LIMIT_WAITING_ROOM; aligned as pointers are. */
size_t admit_size(uint32_t limit);
void admit_init(struct admit_room *room, const struct admit_params *params, void *memory,
		uint32_t limit);
/* The handicap may change while requests wait. */
void admit_reload(struct admit_room *room, const struct admit_params *params);

/* May this engine take a cold prompt: `in_progress` is the sum over all workers' ledgers. */
static inline int admit_takes_cold(const struct admit_params *params, uint64_t in_progress)
{
	return params->cold_slots == 0 || (double)in_progress < params->cold_slots;
}

static inline int admit_is_cold(const struct admit_params *params, uint64_t uncached_tokens)
{
	return (double)uncached_tokens >= params->cold_tokens;
}

/* Is there room on an engine that has so many requests? */
static inline int admit_has_room(const struct admit_params *params, double requests)
{
	return params->engine_requests == 0 || requests < params->engine_requests;
}

/* -ENOSPC: the room is full (503). A cold one waits without a deadline. */
int admit_enter(struct admit_room *room, const struct admit_params *params,
		struct admit_entry *entry, enum admit_wait what, unsigned class_, uint64_t now_ns);

/* Let out: where it goes was decided. */
void admit_release(struct admit_room *room, struct admit_entry *entry, uint64_t now_ns);

/* Its client is gone, or it is refused. Leaving twice is harmless. */
void admit_leave(struct admit_room *room, struct admit_entry *entry);

/*
 * The order of service. The entry just returned may be released, or leave; no other may go away
 * meanwhile, and one that enters may be missed.
 */
struct admit_walk {
	struct admit_entry *head[ADMIT_CLASSES];
	uint64_t handicap_ns;
};
void admit_walk_begin(struct admit_walk *walk, const struct admit_room *room, enum admit_wait what);
struct admit_entry *admit_walk_next(struct admit_walk *walk); /* NULL at the end */

/* Takes out one whose deadline has passed (429), the longest past first; NULL = there is none. */
struct admit_entry *admit_expire(struct admit_room *room, uint64_t now_ns);
uint64_t admit_deadline_ns(const struct admit_room *room); /* the next one, ADMIT_NEVER */

/* Whole seconds for Retry-After: when the queue for room will have passed, by its recent pace. */
uint32_t admit_retry_after_s(const struct admit_room *room, const struct admit_params *params);

uint32_t admit_waiting(const struct admit_room *room, enum admit_wait what);

const char *admit_wait_name(unsigned what); /* NULL out of range */

#endif
