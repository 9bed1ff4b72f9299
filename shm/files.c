/* The files of agent, probe and router worker: layouts, fingerprints, typed access. */
#include "shm/files.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "shm/refuse.h"

static_assert(REGION_PAYLOAD % SLOT_ALIGN == 0, "slots begin on their lines");

/*
 * Holds a file whose content is its writer's present alone: a dead writer's of another layout is no
 * loss and must not keep its successor from starting after an upgrade. `error` then says what was
 * replaced.
 */
static int hold_or_renew(struct region_file *ret_file, const struct region *region,
			 const char *name, enum region_kind kind, uint64_t fingerprint, size_t size,
			 char *error)
{
	char renewed[REGION_ERROR_MAX];
	int r;

	error[0] = 0;
	r = region_file_hold(ret_file, region, name, kind, fingerprint, size, 0, error);
	if (r != -EPROTO)
		return r;
	region_say_renewed(renewed, error);
	r = region_file_hold(ret_file, region, name, kind, fingerprint, size, 1, error);
	if (r == 0)
		memcpy(error, renewed, sizeof(renewed));
	return r;
}

/* ---- engine.NAME ---- */

static uint64_t engine_fingerprint(void)
{
	uint64_t h = region_fingerprint(0, "engine", sizeof(struct engine_layout));

#define FOLD(name, type, unit, meaning) \
	h = region_fingerprint(h, #name ":" #type ":" unit, offsetof(struct engine_state, name));
	ENGINE_FIELDS(FOLD)
#undef FOLD
	h = region_fingerprint(h, "info.models", offsetof(struct engine_info, models));
	return region_fingerprint(h, "info", sizeof(struct engine_info));
}

static int engine_file_name(char ret_name[64], const char *engine, char *error)
{
	if (!region_engine_name_valid(engine))
		return region_refuse(
			-EINVAL, error,
			"'%.40s' is no engine name: letters, digits, '.', '_', '-', %d at "
			"most, a letter or digit first",
			engine, STATE_NAME_MAX);
	snprintf(ret_name, 64, "engine.%s", engine);
	return 0;
}

int engine_file_hold(struct engine_file *ret, const struct region *region, const char *engine,
		     char *error)
{
	char name[64];
	int r = engine_file_name(name, engine, error);

	if (r < 0)
		return r;
	return hold_or_renew(&ret->file, region, name, REGION_ENGINE, engine_fingerprint(),
			     REGION_PAYLOAD + sizeof(struct engine_layout), error);
}

int engine_file_attach(struct engine_file *ret, const struct region *region, const char *engine,
		       char *error)
{
	char name[64];
	int r = engine_file_name(name, engine, error);

	if (r < 0)
		return r;
	return region_file_attach(&ret->file, region, name, REGION_ENGINE, engine_fingerprint(),
				  REGION_PAYLOAD + sizeof(struct engine_layout), error);
}

void engine_file_drop(struct engine_file *file)
{
	region_file_drop(&file->file);
}

void engine_file_publish(struct engine_file *file, const struct engine_state *state)
{
	assert(file->file.writable);
	SLOT_PUBLISH(&engine_file_layout(file)->state, state);
}

void engine_file_publish_info(struct engine_file *file, const struct engine_info *info)
{
	assert(file->file.writable);
	SLOT_PUBLISH(&engine_file_layout(file)->info, info);
}

/* Strings come from another process: close them and bound the list before anybody walks it. */
int engine_file_read_info(const struct engine_file *file, struct engine_info *ret_info,
			  uint64_t *ret_seq)
{
	int r = SLOT_READ(&engine_file_layout(file)->info, ret_info, ret_seq);

	if (r < 0)
		return r;
	ret_info->name[sizeof(ret_info->name) - 1] = 0;
	ret_info->url[sizeof(ret_info->url) - 1] = 0;
	ret_info->version[sizeof(ret_info->version) - 1] = 0;
	ret_info->gpu[sizeof(ret_info->gpu) - 1] = 0;
	if (ret_info->models_nr > STATE_MODELS_MAX)
		ret_info->models_nr = STATE_MODELS_MAX;
	for (int i = 0; i < STATE_MODELS_MAX; i++)
		ret_info->models[i][sizeof(ret_info->models[i]) - 1] = 0;
	return 0;
}

/* ---- latency ---- */

struct latency_layout {
	SLOT(struct latency_info) info;
	SLOT(struct latency_record) engine[STATE_ENGINES_MAX];
};

static uint64_t latency_fingerprint(void)
{
	uint64_t h = region_fingerprint(0, "latency", sizeof(struct latency_layout));

#define FOLD(name, type, meaning) \
	h = region_fingerprint(h, #name ":" #type, offsetof(struct latency_record, name));
	LATENCY_FIELDS(FOLD)
#undef FOLD
	return h;
}

uint64_t latency_record_fingerprint(void)
{
	return latency_fingerprint();
}

static struct latency_layout *latency_layout(const struct latency_file *file)
{
	return region_payload(&file->file);
}

int latency_file_hold(struct latency_file *ret, const struct region *region, char *error)
{
	int r = hold_or_renew(&ret->file, region, "latency", REGION_LATENCY, latency_fingerprint(),
			      REGION_PAYLOAD + sizeof(struct latency_layout), error);

	/* A predecessor's windows are over; its numbering of engines was its own. */
	for (unsigned i = 0; r == 0 && i < STATE_ENGINES_MAX; i++)
		latency_file_publish(ret, i, &(struct latency_record){ 0 });
	return r;
}

int latency_file_attach(struct latency_file *ret, const struct region *region, char *error)
{
	return region_file_attach(&ret->file, region, "latency", REGION_LATENCY,
				  latency_fingerprint(),
				  REGION_PAYLOAD + sizeof(struct latency_layout), error);
}

void latency_file_drop(struct latency_file *file)
{
	region_file_drop(&file->file);
}

void latency_file_publish(struct latency_file *file, unsigned i,
			  const struct latency_record *record)
{
	assert(file->file.writable && i < STATE_ENGINES_MAX);
	SLOT_PUBLISH(&latency_layout(file)->engine[i], record);
}

void latency_file_publish_info(struct latency_file *file, const struct latency_info *info)
{
	assert(file->file.writable);
	SLOT_PUBLISH(&latency_layout(file)->info, info);
}

int latency_file_read(const struct latency_file *file, unsigned i,
		      struct latency_record *ret_record)
{
	int r;

	if (i >= STATE_ENGINES_MAX)
		return -EINVAL;
	r = SLOT_READ(&latency_layout(file)->engine[i], ret_record, NULL);
	if (r == 0)
		ret_record->name[sizeof(ret_record->name) - 1] = 0;
	return r;
}

int latency_file_read_info(const struct latency_file *file, struct latency_info *ret_info)
{
	int r = SLOT_READ(&latency_layout(file)->info, ret_info, NULL);

	if (r == 0) {
		ret_info->source[sizeof(ret_info->source) - 1] = 0;
		ret_info->detail[sizeof(ret_info->detail) - 1] = 0;
	}
	return r;
}

int latency_file_find(const struct latency_file *file, const char *engine)
{
	struct latency_record record;

	for (unsigned i = 0; i < STATE_ENGINES_MAX; i++)
		if (latency_file_read(file, i, &record) == 0 && strcmp(record.name, engine) == 0)
			return (int)i;
	return -ENOENT;
}

/* ---- ledger.N ---- */

struct ledger_layout {
	SLOT(struct ledger_books) engine[STATE_ENGINES_MAX];
	_Alignas(SLOT_ALIGN) uint8_t ring[]; /* to the end of the file */
};

static uint64_t ledger_fingerprint(void)
{
	uint64_t h = region_fingerprint(0, "ledger", sizeof(struct ledger_layout));

#define FOLD(name, meaning) h = region_fingerprint(h, #name, offsetof(struct ledger_books, name));
	LEDGER_FIELDS(FOLD)
#undef FOLD
	return h;
}

static struct ledger_layout *ledger_layout(const struct region_file *file)
{
	return region_payload(file);
}

static size_t ledger_ring_size(const struct region_file *file)
{
	return file->size - REGION_PAYLOAD - sizeof(struct ledger_layout);
}

/* Moves the notes to a file of another size, under their own numbers. */
static void ledger_move(void *ctx, const struct region_file *old, struct region_file *new_file)
{
	const size_t *note_size = ctx;
	struct ring from, to;
	int r = ring_attach(&to, ledger_layout(new_file)->ring, ledger_ring_size(new_file),
			    *note_size, NULL);

	assert(r == 0);
	if (ring_view(&from, ledger_layout(old)->ring, ledger_ring_size(old)) == 0)
		ring_copy(&to, &from);
}

/* Holds one number, whatever size a predecessor's file had. */
static int ledger_hold_number(struct region_file *ret_file, const struct region *region,
			      const char *name, size_t size, size_t note_size, char *error)
{
	uint64_t fingerprint = ledger_fingerprint();
	int r = region_file_hold(ret_file, region, name, REGION_LEDGER, fingerprint, 0, 0, error);

	if (r == -ENOENT || r == -EPROTO)
		return region_file_hold(ret_file, region, name, REGION_LEDGER, fingerprint, size, 1,
					error);
	if (r < 0 || ret_file->size == size)
		return r;
	r = region_file_replace(ret_file, region, REGION_LEDGER, fingerprint, size, ledger_move,
				&note_size, error);
	if (r < 0)
		region_file_drop(ret_file);
	return r;
}

static void ledger_start(struct ledger_file *file, size_t note_size)
{
	struct ledger_layout *layout = ledger_layout(&file->file);
	size_t size = ledger_ring_size(&file->file);
	int r = ring_attach(&file->ring, layout->ring, size, note_size, NULL);

	if (r < 0) /* the same bytes in all, another record size */
		r = ring_clear(&file->ring, layout->ring, size, note_size, 1);
	assert(r == 0);
	for (unsigned i = 0; i < STATE_ENGINES_MAX; i++)
		ledger_file_publish(file, i, &(struct ledger_books){ 0 });
}

int ledger_file_hold(struct ledger_file *ret, const struct region *region, uint64_t notes,
		     size_t note_size, char *error)
{
	size_t size = REGION_PAYLOAD + sizeof(struct ledger_layout) + ring_size(notes, note_size);
	struct ledger_file file = { .file.fd = -1 };
	char name[64];
	int r = -EBUSY;

	for (unsigned n = 0; n < LEDGER_FILES_MAX && r == -EBUSY; n++) {
		file.number = n;
		snprintf(name, sizeof(name), "ledger.%u", n);
		r = ledger_hold_number(&file.file, region, name, size, note_size, error);
	}
	if (r == -EBUSY)
		return region_refuse(-EBUSY, error, "%s: all %d ledgers are held by living workers",
				     region->path, LEDGER_FILES_MAX);
	if (r < 0)
		return r;
	ledger_start(&file, note_size);
	*ret = file;
	return 0;
}

int ledger_file_attach(struct ledger_file *ret, const struct region *region, unsigned number,
		       char *error)
{
	struct ledger_file file = { .number = number };
	char name[64];
	int r;

	snprintf(name, sizeof(name), "ledger.%u", number);
	r = region_file_attach(&file.file, region, name, REGION_LEDGER, ledger_fingerprint(), 0,
			       error);
	if (r < 0)
		return r;
	if (file.file.size < REGION_PAYLOAD + sizeof(struct ledger_layout) ||
	    ring_view(&file.ring, ledger_layout(&file.file)->ring, ledger_ring_size(&file.file)) <
		    0) {
		region_file_drop(&file.file);
		return region_refuse(-ENOENT, error, "%s/%s is being made", region->path, name);
	}
	*ret = file;
	return 0;
}

void ledger_file_drop(struct ledger_file *file)
{
	region_file_drop(&file->file);
	file->ring = (struct ring){ 0 };
}

void ledger_file_publish(struct ledger_file *file, unsigned engine,
			 const struct ledger_books *books)
{
	assert(file->file.writable && engine < STATE_ENGINES_MAX);
	SLOT_PUBLISH(&ledger_layout(&file->file)->engine[engine], books);
}

int ledger_file_read(const struct ledger_file *file, unsigned engine,
		     struct ledger_books *ret_books)
{
	int r;

	if (engine >= STATE_ENGINES_MAX)
		return -EINVAL;
	r = SLOT_READ(&ledger_layout(&file->file)->engine[engine], ret_books, NULL);
	if (r == 0)
		ret_books->name[sizeof(ret_books->name) - 1] = 0;
	return r;
}
