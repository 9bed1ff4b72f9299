/* The active worker's file: a directory of sections, how it is made, grown and taken over. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "shm/base/scoped.h"
#include "shm/files.h"
#include "shm/refuse.h"
#include "shm/words.h"

enum {
	JOURNAL_RECORDS = 16384,
	JOURNAL_RECORD_SIZE = 4096,
	PARAMS_BYTES = 32768,
	COUNTERS = 2048,
	SECTION_ALIGN = 4096,
	DIRECTORY_SIZE = 32, /* entries; room for sections yet unknown */
	HOLD_TRIES = 10,
};

struct router_section_entry {
	uint64_t id; /* enum router_section + 1, 0 = none */
	uint64_t offset, size, fingerprint, count;
	uint64_t reserved[3];
};
static_assert(sizeof(struct router_section_entry) == 64, "layout 1");

struct router_directory {
	_Atomic uint64_t complete; /* stored last: 0 = still being made */
	uint64_t reserved[7];
	struct router_section_entry entry[DIRECTORY_SIZE];
};
static_assert((int)ROUTER_SECTIONS_NR <= (int)DIRECTORY_SIZE,
	      "each section has its entry, at its own number");

typedef SLOT(struct latency_record) timing_slot;
typedef SLOT(struct router_engine) engine_slot;
typedef SLOT(struct router_cursor) cursor_slot;

const char *router_section_name(enum router_section section)
{
#define ROUTER_SECTION_NAME(id, name, meaning) [ROUTER_##id] = name,
	static const char *const names[] = { ROUTER_SECTIONS(ROUTER_SECTION_NAME) };
#undef ROUTER_SECTION_NAME

	assert(section < ROUTER_SECTIONS_NR);
	return names[section];
}

/* ---- what a file of these sizes looks like ---- */

static uint64_t or_default(uint64_t value, uint64_t standard)
{
	return value ? value : standard;
}

static void entry_set(struct router_directory *dir, enum router_section section, uint64_t size,
		      uint64_t fingerprint, uint64_t count)
{
	dir->entry[section] = (struct router_section_entry){
		.id = section + 1, .size = size, .fingerprint = fingerprint, .count = count
	};
}

static void entry_set_given(struct router_directory *dir, enum router_section section,
			    const struct router_section_size *given)
{
	if (given->size)
		entry_set(dir, section, (given->size + 7) / 8 * 8, given->fingerprint,
			  given->count);
}

/* Returns the size of the whole file. */
static size_t directory_plan(struct router_directory *dir, const struct router_file_sizes *sizes)
{
	uint64_t records = or_default(sizes->journal_records, JOURNAL_RECORDS);
	uint64_t record_size = or_default(sizes->journal_record_size, JOURNAL_RECORD_SIZE);
	uint64_t params = or_default(sizes->params_bytes, PARAMS_BYTES) / 8 * 8;
	uint64_t counters = or_default(sizes->counters, COUNTERS);
	uint64_t at = REGION_PAYLOAD + sizeof(*dir);

	assert(params > 0 && params <= SLOT_VALUE_MAX);
	memset(dir, 0, sizeof(*dir));
	entry_set_given(dir, ROUTER_SESSIONS, &sizes->sessions);
	entry_set_given(dir, ROUTER_RESPONSES, &sizes->responses);
	entry_set_given(dir, ROUTER_PREFIX, &sizes->prefix);
	entry_set_given(dir, ROUTER_CALIBRATION, &sizes->calibration);
	entry_set(dir, ROUTER_TIMING, sizeof(timing_slot[STATE_ENGINES_MAX]),
		  latency_record_fingerprint(), STATE_ENGINES_MAX);
	entry_set(dir, ROUTER_PARAMS, SLOT_SIZE(params), region_fingerprint(0, "params", 1),
		  params);
	entry_set(dir, ROUTER_ENGINES, sizeof(engine_slot[STATE_ENGINES_MAX]),
		  region_fingerprint(0, "engines", sizeof(struct router_engine)),
		  STATE_ENGINES_MAX);
	entry_set(dir, ROUTER_JOURNAL, ring_size(records, record_size),
		  region_fingerprint(0, "journal", 1), record_size);
	entry_set(dir, ROUTER_COUNTERS, counters * sizeof(struct router_counter),
		  region_fingerprint(0, "counters", sizeof(struct router_counter)), counters);
	entry_set(dir, ROUTER_CURSORS, sizeof(cursor_slot[LEDGER_FILES_MAX]),
		  region_fingerprint(0, "cursors", sizeof(struct router_cursor)), LEDGER_FILES_MAX);
	for (int i = 0; i < ROUTER_SECTIONS_NR; i++) {
		if (!dir->entry[i].id)
			continue;
		at = (at + SECTION_ALIGN - 1) / SECTION_ALIGN * SECTION_ALIGN;
		dir->entry[i].offset = at;
		at += dir->entry[i].size;
	}
	return (at + SECTION_ALIGN - 1) / SECTION_ALIGN * SECTION_ALIGN;
}

static uint64_t container_fingerprint(void)
{
	return region_fingerprint(0, "router", sizeof(struct router_directory));
}

/* ---- reading the directory, which another process wrote ---- */

static struct router_directory *directory_of(const struct region_file *file)
{
	return region_payload(file);
}

static int directory_complete(const struct region_file *file)
{
	return file->size >= REGION_PAYLOAD + sizeof(struct router_directory) &&
	       atomic_load_explicit(&directory_of(file)->complete, memory_order_acquire) == 1;
}

/* A copy of the entry, its bounds checked; 0 if there is none such. */
static int entry_get(const struct region_file *file, enum router_section section,
		     struct router_section_entry *ret_entry)
{
	struct router_section_entry e;

	assert(section < ROUTER_SECTIONS_NR);
	if (!directory_complete(file))
		return 0;
	/* Read once, before it is judged. */
	words_get(&e, (const _Atomic uint64_t *)&directory_of(file)->entry[section], sizeof(e));
	if (e.id != section + 1 || e.offset % SECTION_ALIGN != 0 || e.offset > file->size ||
	    e.size > file->size - e.offset ||
	    e.offset < REGION_PAYLOAD + sizeof(struct router_directory))
		return 0;
	*ret_entry = e;
	return 1;
}

static void *section_at(const struct region_file *file, enum router_section section,
			size_t *ret_size)
{
	struct router_section_entry e;

	if (!entry_get(file, section, &e))
		return NULL;
	if (ret_size)
		*ret_size = e.size;
	return file->map + e.offset;
}

void *router_file_section(const struct router_file *file, enum router_section section,
			  size_t *ret_size)
{
	return section_at(&file->file, section, ret_size);
}

uint64_t router_file_section_fingerprint(const struct router_file *file,
					 enum router_section section)
{
	struct router_section_entry e;

	return entry_get(&file->file, section, &e) ? e.fingerprint : 0;
}

/* ---- making, growing, taking over ---- */

/* What region_file_replace() hands to move_sections(). */
struct growth {
	const struct router_directory *plan;
	router_migrate *migrate;
	void *ctx;
	char *note;
};

static void directory_write(struct region_file *file, const struct router_directory *plan)
{
	struct router_directory *dir = directory_of(file);

	memcpy(dir->entry, plan->entry, sizeof(dir->entry));
	atomic_store_explicit(&dir->complete, 1, memory_order_release);
}

static void move_journal(const void *old_mem, size_t old_size, void *new_mem,
			 const struct router_section_entry *e)
{
	struct ring from, to;

	if (ring_view(&from, old_mem, old_size) < 0)
		return;
	if (ring_attach(&to, new_mem, e->size, e->count, NULL) == 0)
		ring_copy(&to, &from);
}

/* Params are republished by every worker and the rest of our own sections have one size. */
static void move_changed(const struct growth *growth, const struct router_section_entry *e,
			 const void *old_mem, size_t old_size, void *new_mem)
{
	enum router_section section = e->id - 1;

	if (section == ROUTER_JOURNAL)
		move_journal(old_mem, old_size, new_mem, e);
	else if (section == ROUTER_COUNTERS)
		memcpy(new_mem, old_mem, old_size < e->size ? old_size : e->size);
	else if (section <= ROUTER_CALIBRATION && growth->migrate)
		growth->migrate(growth->ctx, section, old_mem, old_size, new_mem, e->size);
}

static void note_empty(char *note, enum router_section section)
{
	size_t n = strlen(note);

	snprintf(note + n, REGION_ERROR_MAX - n, "%s%s",
		 n ? ", " : "of another layout, begun empty: ", router_section_name(section));
}

static void move_sections(void *ctx, const struct region_file *old, struct region_file *new_file)
{
	const struct growth *growth = ctx;

	directory_write(new_file, growth->plan);
	for (enum router_section i = 0; i < ROUTER_SECTIONS_NR; i++) {
		struct router_section_entry was, e;

		if (!entry_get(new_file, i, &e) || !entry_get(old, i, &was))
			continue;
		if (was.fingerprint != e.fingerprint)
			note_empty(growth->note, i);
		else if (was.size == e.size && was.count == e.count)
			memcpy(new_file->map + e.offset, old->map + was.offset, e.size);
		else
			move_changed(growth, &e, old->map + was.offset, was.size,
				     new_file->map + e.offset);
	}
}

static int same_plan(const struct region_file *file, const struct router_directory *plan)
{
	return directory_complete(file) &&
	       memcmp(directory_of(file)->entry, plan->entry, sizeof(plan->entry)) == 0;
}

/* One attempt: -ESTALE when another worker came and went between our looks. */
static int hold_container(struct region_file *ret_file, const struct region *region, size_t size,
			  char *note, char *error)
{
	uint64_t fingerprint = container_fingerprint();
	int r = region_file_hold(ret_file, region, "router", REGION_ROUTER, fingerprint, 0, 0,
				 error);

	if (r == -ENOENT) {
		r = region_file_hold(ret_file, region, "router", REGION_ROUTER, fingerprint, size,
				     0, error);
		return r == -EPROTO ? -ESTALE : r;
	}
	if (r != -EPROTO)
		return r;
	region_say_renewed(note, error);
	return region_file_hold(ret_file, region, "router", REGION_ROUTER, fingerprint, size, 1,
				error);
}

static int fit_container(struct region_file *file, const struct region *region, size_t size,
			 struct growth *growth, char *error)
{
	int r = 0;

	if (same_plan(file, growth->plan))
		return 0;
	if (!directory_complete(file) && file->size == size) {
		directory_write(file, growth->plan); /* new, or its maker died right here */
		file->fresh = 1;
		return 0;
	}
	if (!directory_complete(file))
		file->fresh = 1;
	r = region_file_replace(file, region, REGION_ROUTER, container_fingerprint(), size,
				move_sections, growth, error);
	if (r < 0)
		region_file_drop(file);
	return r;
}

int router_file_hold(struct router_file *ret, const struct region *region,
		     const struct router_file_sizes *sizes, router_migrate *migrate, void *ctx,
		     char *note, char *error)
{
	struct router_directory plan;
	size_t size = directory_plan(&plan, sizes), journal_size = 0;
	struct router_file file = { .file.fd = -1 };
	struct growth growth = { &plan, migrate, ctx, note };
	int r = -ESTALE;

	note[0] = 0;
	for (int i = 0; i < HOLD_TRIES && r == -ESTALE; i++)
		r = hold_container(&file.file, region, size, note, error);
	if (r == 0)
		r = fit_container(&file.file, region, size, &growth, error);
	if (r < 0)
		return r;

	void *journal = section_at(&file.file, ROUTER_JOURNAL, &journal_size);
	size_t record_size = plan.entry[ROUTER_JOURNAL].count;

	if (ring_attach(&file.journal, journal, journal_size, record_size, NULL) < 0) {
		r = ring_clear(&file.journal, journal, journal_size, record_size, 1);
		assert(r == 0);
	}
	*ret = file;
	return 0;
}

int router_file_attach(struct router_file *ret, const struct region *region, char *error)
{
	struct router_file file = { .file.fd = -1 };
	size_t size = 0;
	void *journal;
	int r = region_file_attach(&file.file, region, "router", REGION_ROUTER,
				   container_fingerprint(), 0, error);

	if (r < 0)
		return r;
	journal = section_at(&file.file, ROUTER_JOURNAL, &size);
	if (!journal || ring_view(&file.journal, journal, size) < 0) {
		region_file_drop(&file.file);
		return region_refuse(-ENOENT, error, "%s/router is being made", region->path);
	}
	*ret = file;
	return 0;
}

void router_file_drop(struct router_file *file)
{
	region_file_drop(&file->file);
	file->journal = (struct ring){ 0 };
}

/* ---- timing, engines, cursors: arrays of slots ---- */

/* The array of a section whose size must be exactly this, or NULL. */
static void *array_of(const struct router_file *file, enum router_section section, size_t size)
{
	size_t have;
	void *mem = section_at(&file->file, section, &have);

	return mem && have == size ? mem : NULL;
}

static timing_slot *timing_of(const struct router_file *file)
{
	return array_of(file, ROUTER_TIMING, sizeof(timing_slot[STATE_ENGINES_MAX]));
}

static engine_slot *engines_of(const struct router_file *file)
{
	return array_of(file, ROUTER_ENGINES, sizeof(engine_slot[STATE_ENGINES_MAX]));
}

static cursor_slot *cursors_of(const struct router_file *file)
{
	return array_of(file, ROUTER_CURSORS, sizeof(cursor_slot[LEDGER_FILES_MAX]));
}

void router_file_timing_publish(struct router_file *file, unsigned i,
				const struct latency_record *record)
{
	assert(file->file.writable && i < STATE_ENGINES_MAX);
	SLOT_PUBLISH(&timing_of(file)[i], record);
}

int router_file_timing_read(const struct router_file *file, unsigned i,
			    struct latency_record *ret_record)
{
	timing_slot *slots = timing_of(file);
	int r;

	if (!slots || i >= STATE_ENGINES_MAX)
		return -EINVAL;
	r = SLOT_READ(&slots[i], ret_record, NULL);
	if (r == 0)
		ret_record->name[sizeof(ret_record->name) - 1] = 0;
	return r;
}

void router_file_engine_publish(struct router_file *file, unsigned i,
				const struct router_engine *engine)
{
	assert(file->file.writable && i < STATE_ENGINES_MAX);
	SLOT_PUBLISH(&engines_of(file)[i], engine);
}

int router_file_engine_read(const struct router_file *file, unsigned i,
			    struct router_engine *ret_engine)
{
	engine_slot *slots = engines_of(file);
	int r;

	if (!slots || i >= STATE_ENGINES_MAX)
		return -EINVAL;
	r = SLOT_READ(&slots[i], ret_engine, NULL);
	if (r == 0) {
		ret_engine->name[sizeof(ret_engine->name) - 1] = 0;
		ret_engine->url[sizeof(ret_engine->url) - 1] = 0;
	}
	return r;
}

int router_file_engine_find(const struct router_file *file, const char *name)
{
	struct router_engine engine;

	for (unsigned i = 0; i < STATE_ENGINES_MAX; i++)
		if (router_file_engine_read(file, i, &engine) == 0 &&
		    strcmp(engine.name, name) == 0)
			return (int)i;
	return -ENOENT;
}

int router_file_engine(struct router_file *file, const char *name, int make)
{
	int i = router_file_engine_find(file, name);
	struct router_engine engine = { .weight = 1 };

	if (i >= 0 || !make)
		return i;
	if (!region_engine_name_valid(name))
		return -EINVAL;
	snprintf(engine.name, sizeof(engine.name), "%s", name);
	for (unsigned n = 0; n < STATE_ENGINES_MAX; n++) {
		struct router_engine taken;

		if (router_file_engine_read(file, n, &taken) == 0 && taken.name[0])
			continue;
		router_file_engine_publish(file, n, &engine);
		return (int)n;
	}
	return -ENOSPC;
}

void router_file_cursor_set(struct router_file *file, unsigned ledger,
			    const struct router_cursor *cursor)
{
	assert(file->file.writable && ledger < LEDGER_FILES_MAX);
	SLOT_PUBLISH(&cursors_of(file)[ledger], cursor);
}

int router_file_cursor_get(const struct router_file *file, unsigned ledger,
			   struct router_cursor *ret_cursor)
{
	cursor_slot *slots = cursors_of(file);

	if (!slots || ledger >= LEDGER_FILES_MAX)
		return -EINVAL;
	return SLOT_READ(&slots[ledger], ret_cursor, NULL);
}

/* ---- parameters ---- */

static struct slot_head *params_of(const struct router_file *file, size_t *ret_bytes)
{
	struct router_section_entry e;

	if (!entry_get(&file->file, ROUTER_PARAMS, &e) || e.count == 0 || e.count % 8 ||
	    e.count > SLOT_VALUE_MAX || e.size != SLOT_SIZE(e.count))
		return NULL;
	*ret_bytes = e.count;
	return (struct slot_head *)(file->file.map + e.offset);
}

void router_file_params_publish(struct router_file *file, const char *text)
{
	char value[SLOT_VALUE_MAX];
	size_t bytes, n = strlen(text);
	struct slot_head *slot = params_of(file, &bytes);

	assert(file->file.writable && slot);
	n = n < bytes ? n : bytes - 1;
	memcpy(value, text, n);
	memset(value + n, 0, bytes - n);
	slot_publish(slot, value, bytes);
}

int router_file_params_read(const struct router_file *file, char *ret_text, size_t size)
{
	char value[SLOT_VALUE_MAX];
	size_t bytes;
	struct slot_head *slot = params_of(file, &bytes);
	int r = slot ? slot_read(slot, value, bytes, NULL) : -EINVAL;

	assert(size > 0);
	if (r < 0)
		return r;
	snprintf(ret_text, size, "%.*s", (int)bytes, value);
	return 0;
}

/* ---- counters ---- */

struct router_counter *router_file_counters(const struct router_file *file, unsigned *ret_nr)
{
	size_t size;
	void *mem = section_at(&file->file, ROUTER_COUNTERS, &size);

	*ret_nr = mem ? (unsigned)(size / sizeof(struct router_counter)) : 0;
	return mem;
}

static int counter_is(const struct router_counter *counter, const char *name)
{
	return strncmp(counter->name, name, sizeof(counter->name)) == 0;
}

/* The value that `name` had, wherever it stood; looked for near `hint` first, where it mostly is.
 */
static uint64_t counter_value(const struct router_counter *all, unsigned nr, unsigned hint,
			      const char *name)
{
	for (unsigned k = 0; k < nr; k++) {
		const struct router_counter *c = &all[(hint + k) % nr];

		if (counter_is(c, name))
			return atomic_load_explicit(&c->value, memory_order_relaxed);
	}
	return 0;
}

/* Killed in here, a counter is without name or starts again at 0; none gets another's value. */
static void counter_rename(struct router_counter *counter, const char *name, uint64_t value)
{
	memset(counter->name, 0, sizeof(counter->name));
	atomic_store_explicit(&counter->value, 0, memory_order_release);
	snprintf(counter->name, sizeof(counter->name), "%s", name);
	atomic_store_explicit(&counter->value, value, memory_order_release);
}

int router_file_counters_bind(struct router_file *file, const char *const *names, unsigned nr)
{
	unsigned room;
	struct router_counter *all = router_file_counters(file, &room);
	unsigned same = 0;

	assert(file->file.writable);
	if (nr > room)
		return -ENOSPC;
	while (same < nr && counter_is(&all[same], names[same]))
		same++;
	if (same == nr && (nr == room || all[nr].name[0] == 0))
		return 0;

	scoped(free_drop) uint64_t *value = calloc(nr + 1, sizeof(*value));

	if (!value)
		return -ENOMEM;
	for (unsigned i = 0; i < nr; i++)
		value[i] = counter_value(all, room, i, names[i]);
	for (unsigned i = 0; i < room; i++)
		if (i >= nr ? all[i].name[0] != 0 : !counter_is(&all[i], names[i]))
			counter_rename(&all[i], i < nr ? names[i] : "", i < nr ? value[i] : 0);
	return 0;
}
