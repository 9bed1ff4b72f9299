/* The timer wheel: arming touches one list, expiry walks only slots with something due. */
#include "shm/loop/wheel.h"

#include <assert.h>
#include <stddef.h>

/* A due time far beyond any uptime; keeps the arithmetic below from wrapping. */
#define DUE_MAX_NS (UINT64_MAX / 2)

static void link_timer(struct wheel_timer **head, struct wheel_timer *timer)
{
	timer->next = *head;
	timer->prev = head;
	if (timer->next)
		timer->next->prev = &timer->next;
	*head = timer;
}

static void unlink_timer(struct wheel_timer *timer)
{
	*timer->prev = timer->next;
	if (timer->next)
		timer->next->prev = timer->prev;
	timer->next = NULL;
	timer->prev = NULL;
}

static uint64_t tick_at_or_after(const struct wheel *wheel, uint64_t ns)
{
	return ns / wheel->tick_ns + (ns % wheel->tick_ns != 0);
}

void wheel_init(struct wheel *wheel, uint64_t tick_ns, uint64_t now_ns)
{
	assert(tick_ns > 0);
	*wheel = (struct wheel){
		.tick_ns = tick_ns,
		.now_tick = now_ns / tick_ns,
		.wake_ns = UINT64_MAX,
	};
	for (unsigned i = 0; i < WHEEL_SLOTS; i++)
		wheel->least_ns[i] = UINT64_MAX;
}

void wheel_arm(struct wheel *wheel, struct wheel_timer *timer, uint64_t due_ns)
{
	uint64_t tick, slot;

	wheel_disarm(wheel, timer);
	timer->due_ns = due_ns < DUE_MAX_NS ? due_ns : DUE_MAX_NS;
	tick = tick_at_or_after(wheel, timer->due_ns);
	wheel->armed++;
	if (tick <= wheel->now_tick) {
		link_timer(&wheel->due, timer);
		return;
	}
	slot = tick % WHEEL_SLOTS;
	link_timer(&wheel->slot[slot], timer);
	if (timer->due_ns < wheel->least_ns[slot])
		wheel->least_ns[slot] = timer->due_ns;
	if (tick * wheel->tick_ns < wheel->wake_ns)
		wheel->wake_ns = tick * wheel->tick_ns;
}

void wheel_disarm(struct wheel *wheel, struct wheel_timer *timer)
{
	if (!timer->prev)
		return;
	unlink_timer(timer);
	assert(wheel->armed > 0);
	wheel->armed--;
}

/* Moves what is due at `tick` to the due list; what belongs to a later round stays. */
static void pass_slot(struct wheel *wheel, uint64_t tick)
{
	uint64_t slot = tick % WHEEL_SLOTS, limit_ns = tick * wheel->tick_ns, least_ns = UINT64_MAX;
	struct wheel_timer *next;

	if (wheel->least_ns[slot] > limit_ns)
		return;
	for (struct wheel_timer *t = wheel->slot[slot]; t; t = next) {
		next = t->next;
		if (t->due_ns <= limit_ns) {
			unlink_timer(t);
			link_timer(&wheel->due, t);
		} else if (t->due_ns < least_ns) {
			least_ns = t->due_ns;
		}
	}
	wheel->least_ns[slot] = least_ns;
}

/* The first tick at which a slot may have something due: in this round, else in a later one. */
static uint64_t next_wake_ns(const struct wheel *wheel)
{
	uint64_t later_ns = UINT64_MAX;

	for (uint64_t tick = wheel->now_tick + 1; tick <= wheel->now_tick + WHEEL_SLOTS; tick++) {
		uint64_t least_ns = wheel->least_ns[tick % WHEEL_SLOTS];

		if (least_ns <= tick * wheel->tick_ns)
			return tick * wheel->tick_ns;
		if (least_ns < later_ns)
			later_ns = least_ns;
	}
	return later_ns == UINT64_MAX ? UINT64_MAX
				      : tick_at_or_after(wheel, later_ns) * wheel->tick_ns;
}

static void advance(struct wheel *wheel, uint64_t now_ns)
{
	uint64_t tick = now_ns / wheel->tick_ns;

	if (tick <= wheel->now_tick)
		return;
	if (now_ns >= wheel->wake_ns) {
		/* After a long sleep one look at each slot finds everything. */
		uint64_t from = wheel->now_tick + 1;

		if (tick - wheel->now_tick > WHEEL_SLOTS)
			from = tick - WHEEL_SLOTS + 1;
		for (; from <= tick; from++)
			pass_slot(wheel, from);
		wheel->now_tick = tick;
		wheel->wake_ns = next_wake_ns(wheel);
	}
	wheel->now_tick = tick;
}

struct wheel_timer *wheel_expire(struct wheel *wheel, uint64_t now_ns)
{
	struct wheel_timer *timer;

	if (!wheel->due)
		advance(wheel, now_ns);
	timer = wheel->due;
	if (timer)
		wheel_disarm(wheel, timer);
	return timer;
}

uint64_t wheel_wait_ns(const struct wheel *wheel, uint64_t now_ns)
{
	if (wheel->due)
		return 0;
	if (wheel->armed == 0 || wheel->wake_ns == UINT64_MAX)
		return UINT64_MAX;
	return wheel->wake_ns > now_ns ? wheel->wake_ns - now_ns : 0;
}
