/* Timers of O(1): a hashed wheel of intrusive nodes; one user of the loop owns it and drives it. */
#ifndef TURNWARD_SHM_LOOP_WHEEL_H
#define TURNWARD_SHM_LOOP_WHEEL_H

#include <stdint.h>

struct wheel_timer {
	struct wheel_timer *next, **prev; /* prev NULL = not armed */
	uint64_t due_ns;
};

enum { WHEEL_SLOTS = 1024 };

struct wheel {
	uint64_t tick_ns,
		now_tick; /* resolution; a timer fires at most one tick late, never early */
	uint64_t armed;
	uint64_t wake_ns;        /* nothing fires before; may be early by what was disarmed */
	struct wheel_timer *due; /* taken from passed slots, not yet returned */
	struct wheel_timer *slot[WHEEL_SLOTS];
	uint64_t least_ns[WHEEL_SLOTS]; /* no timer of the slot is due before; UINT64_MAX = empty */
};

void wheel_init(struct wheel *wheel, uint64_t tick_ns, uint64_t now_ns);
void wheel_arm(struct wheel *wheel, struct wheel_timer *timer, uint64_t due_ns); /* re-arms, too */
void wheel_disarm(struct wheel *wheel, struct wheel_timer *timer);

/* Unlinks and returns one due timer, or NULL when none is due at now_ns. */
struct wheel_timer *wheel_expire(struct wheel *wheel, uint64_t now_ns);

/* Nanoseconds until wheel_expire() must be asked again; UINT64_MAX when nothing is armed. */
uint64_t wheel_wait_ns(const struct wheel *wheel, uint64_t now_ns);

#endif
