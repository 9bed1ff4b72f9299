/* Queues by class, and a heap by deadline. */
#include "router/admit/admit.h"

#include <errno.h>
#include <string.h>

static const double GAP_GAIN = 0.1; /* of gap_s: about the last ten */

enum { RETRY_MOST_S = 60 }; /* a client told longer than this does not come back */

#define NAME(id, name, meaning) name,
static const char *const wait_names[] = { ADMIT_WAITS(NAME) };
#undef NAME

const char *admit_wait_name(unsigned what)
{
	return what < ADMIT_WAITS_NR ? wait_names[what] : NULL;
}

void admit_params_init(struct admit_params *ret_params)
{
#define INIT(name, standard, min, max, kind, unit, meaning) ret_params->name = standard;
	ADMIT_PARAMS(INIT)
#undef INIT
}

void admit_params_scale(struct admit_params *params, double speed)
{
	assert(speed > 0);
#define SCALE(name, standard, min, max, kind, unit, meaning) \
	params->name = (kind) == ADMIT_TIME ? params->name / speed : params->name;
	ADMIT_PARAMS(SCALE)
#undef SCALE
}

static uint64_t ns_of(double seconds)
{
	return (uint64_t)(seconds * 1e9);
}

size_t admit_size(uint32_t limit)
{
	return limit * sizeof(struct admit_entry *);
}

void admit_reload(struct admit_room *room, const struct admit_params *params)
{
	room->handicap_ns = ns_of(params->queue_handicap_s);
}

void admit_init(struct admit_room *room, const struct admit_params *params, void *memory,
		uint32_t limit)
{
	memset(room, 0, sizeof(*room));
	room->heap = memory;
	room->limit = limit;
	admit_reload(room, params);
}

/* ---- by deadline ---- */

static void heap_put(struct admit_room *room, uint32_t at, struct admit_entry *entry)
{
	room->heap[at] = entry;
	entry->heap_at = at + 1;
}

static void heap_up(struct admit_room *room, uint32_t at, struct admit_entry *entry)
{
	for (; at > 0; at = (at - 1) / 2) {
		struct admit_entry *above = room->heap[(at - 1) / 2];

		if (above->deadline_ns <= entry->deadline_ns)
			break;
		heap_put(room, at, above);
	}
	heap_put(room, at, entry);
}

static void heap_down(struct admit_room *room, uint32_t at, struct admit_entry *entry)
{
	uint32_t child;

	for (; (child = 2 * at + 1) < room->heap_nr; at = child) {
		if (child + 1 < room->heap_nr &&
		    room->heap[child + 1]->deadline_ns < room->heap[child]->deadline_ns)
			child++;
		if (entry->deadline_ns <= room->heap[child]->deadline_ns)
			break;
		heap_put(room, at, room->heap[child]);
	}
	heap_put(room, at, entry);
}

static void heap_remove(struct admit_room *room, struct admit_entry *entry)
{
	uint32_t at = entry->heap_at - 1;
	struct admit_entry *last = room->heap[--room->heap_nr];

	entry->heap_at = 0;
	if (last == entry)
		return;
	heap_down(room, at, last);
	heap_up(room, last->heap_at - 1, last);
}

/* ---- by class ---- */

static struct admit_list *list_of(struct admit_room *room, const struct admit_entry *entry)
{
	return &room->list[entry->waiting - 1][entry->class];
}

static void append(struct admit_list *list, struct admit_entry *entry)
{
	entry->older = list->newest;
	entry->newer = NULL;
	*(entry->older ? &entry->older->newer : &list->oldest) = entry;
	list->newest = entry;
	list->nr++;
}

static void take_out(struct admit_room *room, struct admit_entry *entry)
{
	struct admit_list *list = list_of(room, entry);

	*(entry->older ? &entry->older->newer : &list->oldest) = entry->newer;
	*(entry->newer ? &entry->newer->older : &list->newest) = entry->older;
	entry->older = entry->newer = NULL;
	list->nr--;
	room->nr--;
	if (entry->heap_at)
		heap_remove(room, entry);
	entry->waiting = 0;
}

int admit_enter(struct admit_room *room, const struct admit_params *params,
		struct admit_entry *entry, enum admit_wait what, unsigned class_, uint64_t now_ns)
{
	assert(entry->waiting == 0 && class_ < ADMIT_CLASSES && what < ADMIT_WAITS_NR);
	if (room->nr >= room->limit)
		return -ENOSPC;
	entry->waiting = 1 + (uint32_t)what;
	entry->class = class_;
	entry->since_ns = now_ns;
	entry->heap_at = 0;
	entry->deadline_ns = ADMIT_NEVER;
	append(list_of(room, entry), entry);
	room->nr++;
	room->entered_total++;
	if (what == ADMIT_ROOM) {
		entry->deadline_ns = now_ns + ns_of(params->queue_timeout_s);
		heap_up(room, room->heap_nr++, entry);
	}
	return 0;
}

static void note_pace(struct admit_room *room, uint64_t now_ns)
{
	double gap_s = (double)(now_ns - room->released_ns) * 1e-9;

	if (room->released_ns != 0)
		room->gap_s += (room->gap_s > 0 ? GAP_GAIN : 1) * (gap_s - room->gap_s);
	room->released_ns = now_ns;
}

void admit_release(struct admit_room *room, struct admit_entry *entry, uint64_t now_ns)
{
	assert(entry->waiting != 0);
	if (entry->waiting == 1 + ADMIT_ROOM)
		note_pace(room, now_ns);
	take_out(room, entry);
	room->released_total++;
}

void admit_leave(struct admit_room *room, struct admit_entry *entry)
{
	if (entry->waiting == 0)
		return;
	take_out(room, entry);
	room->left_total++;
}

void admit_walk_begin(struct admit_walk *walk, const struct admit_room *room, enum admit_wait what)
{
	for (unsigned i = 0; i < ADMIT_CLASSES; i++)
		walk->head[i] = room->list[what][i].oldest;
	walk->handicap_ns = room->handicap_ns;
}

struct admit_entry *admit_walk_next(struct admit_walk *walk)
{
	unsigned best = ADMIT_CLASSES;
	uint64_t least = 0;

	for (unsigned i = 0; i < ADMIT_CLASSES; i++) {
		if (!walk->head[i])
			continue;
		uint64_t rank = walk->head[i]->since_ns + i * walk->handicap_ns;

		if (best == ADMIT_CLASSES || rank < least) {
			best = i;
			least = rank;
		}
	}
	if (best == ADMIT_CLASSES)
		return NULL;
	struct admit_entry *entry = walk->head[best];

	walk->head[best] = entry->newer;
	return entry;
}

struct admit_entry *admit_expire(struct admit_room *room, uint64_t now_ns)
{
	struct admit_entry *entry = room->heap_nr ? room->heap[0] : NULL;

	if (!entry || entry->deadline_ns > now_ns)
		return NULL;
	take_out(room, entry);
	room->expired_total++;
	return entry;
}

uint64_t admit_deadline_ns(const struct admit_room *room)
{
	return room->heap_nr ? room->heap[0]->deadline_ns : ADMIT_NEVER;
}

uint32_t admit_waiting(const struct admit_room *room, enum admit_wait what)
{
	uint32_t nr = 0;

	for (unsigned i = 0; i < ADMIT_CLASSES; i++)
		nr += room->list[what][i].nr;
	return nr;
}

uint32_t admit_retry_after_s(const struct admit_room *room, const struct admit_params *params)
{
	double wait_s = room->gap_s * (admit_waiting(room, ADMIT_ROOM) + 1);

	if (room->gap_s == 0)
		wait_s = params->queue_timeout_s;
	if (wait_s > RETRY_MOST_S)
		return RETRY_MOST_S;
	return wait_s < 1 ? 1 : (uint32_t)(wait_s + 0.999);
}
