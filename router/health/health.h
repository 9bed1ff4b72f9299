/*
 * Whether an engine should get work: what its connections, answers and probes say, as one small
 * state machine per engine.
 *
 * Pure: no clock (CLOCK_MONOTONIC ns come in), no I/O, no allocation. It only chooses *among*
 * engines: when every candidate is shut, the caller takes the one whose pause ends first
 * (health_ends_ns) at once, so that health never answers for the last engine.
 *
 *   connecting failed            shut at once; 0.1 s, doubling to 2 s
 *   no answer, garbage, 5xx      shut after HEALTH_FAILURES in a row; 1 s, doubling to 30 s
 *   GET /health fails            shut after HEALTH_DOWN_AFTER in a row, unless the engine is heard
 *   429, 503                     spared: works, but others first, until Retry-After or 0.25 s
 *   4xx, a reused connection
 *   closed before any byte       nothing
 *
 * When its pause is over exactly one request goes to a shut engine (the trial). An answer opens it,
 * a failure shuts it for twice as long. HEALTH_UP_AFTER good probes open it, too, but for one that
 * answered wrongly: it may well answer probes. One that has been opened starts slowly.
 */
#ifndef TURNWARD_ROUTER_HEALTH_HEALTH_H
#define TURNWARD_ROUTER_HEALTH_HEALTH_H

#include <stdint.h>

enum {
	HEALTH_FAILURES = 5,   /* of requests, in a row */
	HEALTH_DOWN_AFTER = 3, /* failed probes in a row */
	HEALTH_UP_AFTER = 2,   /* good probes in a row */
};

/* Why it is shut. X(ID, name, first pause ms, longest pause ms, whether good probes open it) */
#define HEALTH_CAUSES(X)                      \
	X(NONE, "none", 0, 0, 0)              \
	X(CONNECT, "connect", 100, 2000, 1)   \
	X(ANSWERS, "answers", 1000, 30000, 0) \
	X(PROBES, "probes", 1000, 30000, 1)

enum health_cause {
#define HEALTH_CAUSE_ENUM(id, name, first_ms, longest_ms, probes_open) HEALTH_##id,
	HEALTH_CAUSES(HEALTH_CAUSE_ENUM)
#undef HEALTH_CAUSE_ENUM
		HEALTH_CAUSES_NR
};
extern const char *const health_cause_names[HEALTH_CAUSES_NR];

struct health {
	uint8_t cause;    /* enum health_cause; NONE = open */
	uint8_t trial;    /* one request is out to see whether it is well again */
	uint8_t failures; /* of requests in a row */
	uint8_t bad_probes, good_probes;
	uint8_t pauses;     /* in a row, without an answer between */
	uint64_t until_ns;  /* of the pause, while shut */
	uint64_t spared_ns; /* until then others go first */
	uint64_t opened_ns; /* when it was last opened again; 0 = it never was shut */
	uint64_t heard_ns;  /* last byte of an answer */
};

/* What a request may expect. */
enum health_standing {
	HEALTH_OPEN,   /* work */
	HEALTH_SPARED, /* work that no open one can take */
	HEALTH_CLOSED, /* only if nothing else is left */
};
enum health_standing health_standing(const struct health *health, uint64_t now_ns);

/* When it may be tried again: the order in which closed and spared engines are taken. */
uint64_t health_ends_ns(const struct health *health);

/* A request goes there. 1: it is the trial of a shut engine; its end must be told as such. */
int health_dispatched(struct health *health);
/* The trial ended without saying anything (its client left). */
void health_trial_void(struct health *health);

/* These return 1 if the engine has just been shut (or opened) by it. */
int health_connect_failed(struct health *health, uint64_t now_ns);
int health_failed(struct health *health, uint64_t now_ns);   /* no answer, garbage, 5xx, silence */
int health_answered(struct health *health, uint64_t now_ns); /* any other status */
int health_probed(struct health *health, uint64_t now_ns, int good);

/* 429 or 503, with Retry-After (0 = it said none). It answers: that opens it, too (then 1). */
int health_refused(struct health *health, uint64_t now_ns, uint64_t pause_ns);

/* 1 .. 0 over `slow_start_ns` since it was opened; 0 for one that was never shut. */
double health_slow(const struct health *health, uint64_t now_ns, uint64_t slow_start_ns);

#endif
