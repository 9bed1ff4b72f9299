/*
 * What lies in the region's four kinds of file, and typed ways to hold, attach, write and read
 * them.
 *
 *   engine.NAME  one agent          struct engine_file
 *   latency      the probe          struct latency_file
 *   ledger.N     one router worker  struct ledger_file: books per engine, ring of notes
 *   router       the active worker  struct router_file: a directory of sections
 *
 * Who holds a file writes it, everybody else maps it read-only. What is read is a copy that was
 * whole at some instant; nothing read here is used as an index, a length or a pointer without a
 * bound.
 */
#ifndef TURNWARD_SHM_FILES_H
#define TURNWARD_SHM_FILES_H

#include "shm/latency.h"
#include "shm/region.h"
#include "shm/ring.h"
#include "shm/slot.h"
#include "shm/state.h"

/* ---- engine.NAME ---- */

struct engine_file {
	struct region_file file;
};

struct engine_layout {
	SLOT(struct engine_state) state;
	SLOT(struct engine_info) info;
};

static inline struct engine_layout *engine_file_layout(const struct engine_file *file)
{
	return (struct engine_layout *)region_payload(&file->file);
}

/* Like latency_file_hold(): 0 with `error` "", or the reason why a dead writer's file of another
 * layout was made anew. */
int engine_file_hold(struct engine_file *ret, const struct region *region, const char *engine,
		     char *error);
int engine_file_attach(struct engine_file *ret, const struct region *region, const char *engine,
		       char *error);
void engine_file_drop(struct engine_file *file);
void engine_file_publish(struct engine_file *file, const struct engine_state *state);
void engine_file_publish_info(struct engine_file *file, const struct engine_info *info);

/* 0, -ENODATA, -EAGAIN: as slot_read(). This and the next three are a decision's, hence inline. */
static inline int engine_file_read(const struct engine_file *file, struct engine_state *ret_state,
				   uint64_t *ret_seq)
{
	return SLOT_READ(&engine_file_layout(file)->state, ret_state, ret_seq);
}
int engine_file_read_info(const struct engine_file *file, struct engine_info *ret_info,
			  uint64_t *ret_seq);

/* The number of the newest state: as at the last read = nothing new is there. */
static inline uint64_t engine_file_seq(const struct engine_file *file)
{
	return slot_seq(&engine_file_layout(file)->state.head);
}

/*
 * For many engines at once: the first for all, then the second for all, then the reads. All wait
 * for memory together, once where one new state has come since number `seen`, which is what the
 * first asks for, else twice.
 */
static inline void engine_file_prefetch(const struct engine_file *file, uint64_t seen)
{
	const struct slot_head *slot = &engine_file_layout(file)->state.head;

	slot_prefetch(slot);
	slot_prefetch_copy(slot, sizeof(struct engine_state), seen + 1);
}
static inline void engine_file_prefetch_state(const struct engine_file *file, uint64_t seen)
{
	uint64_t seq = engine_file_seq(file);

	if ((seq & 1) == (seen & 1) && seq != seen)
		slot_prefetch_copy(&engine_file_layout(file)->state.head,
				   sizeof(struct engine_state), seq);
}

/* ---- latency: the probe's windows; the router's own timing has the same record ---- */

uint64_t latency_record_fingerprint(void);

/* How the times are got; published once and whenever it changes. */
struct latency_info {
	char source[64];  /* "cgroup_skb", "router" */
	char detail[192]; /* one sentence for people */
	uint64_t started_ns, attached;
	uint64_t window_ns;
};

struct latency_file {
	struct region_file file;
};

int latency_file_hold(struct latency_file *ret, const struct region *region, char *error);
int latency_file_attach(struct latency_file *ret, const struct region *region, char *error);
void latency_file_drop(struct latency_file *file);

/* `i` < STATE_ENGINES_MAX is the writer's own numbering; readers go by the record's name. */
void latency_file_publish(struct latency_file *file, unsigned i,
			  const struct latency_record *record);
void latency_file_publish_info(struct latency_file *file, const struct latency_info *info);
int latency_file_read(const struct latency_file *file, unsigned i,
		      struct latency_record *ret_record);
int latency_file_read_info(const struct latency_file *file, struct latency_info *ret_info);
int latency_file_find(const struct latency_file *file, const char *engine); /* i or -ENOENT */

/* ---- ledger.N ---- */

/* What one router worker has on one engine. X(name, meaning); all are counts. */
#define LEDGER_FIELDS(X)                                                                \
	X(waiting_requests, "dispatched and without first token")                       \
	X(waiting_tokens, "uncached prompt tokens of these")                            \
	X(decoding, "sequences past their first token")                                 \
	X(decode_context_tokens, "contexts of these")                                   \
	X(staged_rest_tokens, "uncached tokens of cold prompts not yet sent as pieces") \
	X(pieces, "pieces in flight")                                                   \
	X(cold_prompts, "cold prompts being staged")                                    \
	X(held, "requests bound for it that wait in the router")                        \
	X(held_tokens, "uncached prompt tokens of these")                               \
	X(staging_off, "1: no pieces go there, nothing tells whether they hit")         \
	X(dispatched_total, "requests ever sent")                                       \
	X(finished_total, "requests ever ended, by any reason")                         \
	X(updated_ns, "CLOCK_MONOTONIC of this record")

struct ledger_books {
	char name[FILES_NAME_SIZE]; /* the engine's; "" = the place is free */
#define LEDGER_FIELD_MEMBER(name, meaning) uint64_t name;
	LEDGER_FIELDS(LEDGER_FIELD_MEMBER)
#undef LEDGER_FIELD_MEMBER
};
static_assert(sizeof(struct ledger_books) % 8 == 0, "the slot copies words");

struct ledger_file {
	struct region_file file;
	unsigned number; /* N of ledger.N */
	struct ring ring;
};

enum { LEDGER_FILES_MAX = 16 }; /* LIMIT_LEDGERS and slack for leftovers */

/*
 * Holds the lowest number that no living worker holds, and starts it empty: books are their
 * worker's own and count as zero once it is dead. Numbering of notes goes on where the predecessor
 * stopped, so a reader's cursor stays good. `notes` records of up to `note_size` bytes.
 */
int ledger_file_hold(struct ledger_file *ret, const struct region *region, uint64_t notes,
		     size_t note_size, char *error);
int ledger_file_attach(struct ledger_file *ret, const struct region *region, unsigned number,
		       char *error);
void ledger_file_drop(struct ledger_file *file);

void ledger_file_publish(struct ledger_file *file, unsigned engine,
			 const struct ledger_books *books);
int ledger_file_read(const struct ledger_file *file, unsigned engine,
		     struct ledger_books *ret_books);

/* ---- router ---- */

/* X(ID, name, meaning). The first four are the pure libraries' own memory, the rest is defined
 * below. */
#define ROUTER_SECTIONS(X)                                                             \
	X(SESSIONS, "sessions", "router/session: session -> home, turn, tokens")       \
	X(RESPONSES, "responses", "router/session: response id -> engine, session")    \
	X(PREFIX, "prefix", "router/prefix: which engine holds which content blocks")  \
	X(CALIBRATION, "calibration", "router/policy, router/tokens: what was learnt") \
	X(TIMING, "timing", "the router's own latency records")                        \
	X(PARAMS, "params", "parameters in force, as text")                            \
	X(ENGINES, "engines", "index -> name, drain, weight")                          \
	X(JOURNAL, "journal", "ring of decisions and outcomes")                        \
	X(COUNTERS, "counters", "named counters")                                      \
	X(CURSORS, "cursors", "how far each ledger's notes have been applied")

#define ROUTER_SECTION_ENUM(id, name, meaning) ROUTER_##id,
enum router_section { ROUTER_SECTIONS(ROUTER_SECTION_ENUM) ROUTER_SECTIONS_NR };
#undef ROUTER_SECTION_ENUM

const char *router_section_name(enum router_section section);

/* A section of a pure library's: bytes, the fingerprint of its layout, and what it counts for
 * people. */
struct router_section_size {
	uint64_t size, fingerprint, count;
};

/* Given by the router at start, from its configuration; 0 takes the default named beside it. */
struct router_file_sizes {
	struct router_section_size sessions, responses, prefix, calibration;
	uint64_t journal_records;     /* 16384 */
	uint64_t journal_record_size; /* 4096 bytes at most of one */
	uint64_t params_bytes;        /* 32768 */
	uint64_t counters;            /* 2048 */
};

struct router_engine {
	char name[FILES_NAME_SIZE]; /* "" = the index is free */
	uint64_t drain;             /* 1: nothing new goes there */
	double weight;              /* 1.0 is normal */
	char url[256];              /* where the router reaches it */
};

struct router_cursor {
	uint64_t ledger_ino; /* which file `ring` counts in */
	struct ring_cursor ring;
};

struct router_file {
	struct region_file file;
	struct ring journal; /* attached as writer by hold, as reader by attach */
};

/*
 * Called when an existing file has a section of the same fingerprint and another size: moves what
 * it can from the old memory (only to be read) to the new (zero). Sections that did not change are
 * copied by the library; one with another fingerprint starts empty, and the note says so.
 */
typedef void router_migrate(void *ctx, enum router_section section, const void *old_mem,
			    size_t old_size, void *new_mem, size_t new_size);

/*
 * Holds `router`: the active role. -EBUSY while another worker has it. A predecessor's content is
 * kept; one of other sizes is copied into a new file by `migrate` (NULL: changed sections start
 * empty) and renamed over, readers re-attach. A foreign layout starts empty: ret->file.fresh is 1
 * and `note` (REGION_ERROR_MAX bytes) says why, "" otherwise.
 */
int router_file_hold(struct router_file *ret, const struct region *region,
		     const struct router_file_sizes *sizes, router_migrate *migrate, void *ctx,
		     char *note, char *error);
int router_file_attach(struct router_file *ret, const struct region *region, char *error);
void router_file_drop(struct router_file *file);

/* A section's memory, or NULL when the file has none; sizes are bounded by the file. */
void *router_file_section(const struct router_file *file, enum router_section section,
			  size_t *ret_size);
uint64_t router_file_section_fingerprint(const struct router_file *file,
					 enum router_section section);

/* Own timing, as latency_file_*. */
void router_file_timing_publish(struct router_file *file, unsigned i,
				const struct latency_record *record);
int router_file_timing_read(const struct router_file *file, unsigned i,
			    struct latency_record *ret_record);

/* Parameters in force: text cut at params_bytes - 1; -ENODATA, -EAGAIN. */
void router_file_params_publish(struct router_file *file, const char *text);
int router_file_params_read(const struct router_file *file, char *ret_text, size_t size);

/* Engines keep their index while the file lives. router_file_engine(): the index of a name, given
 * the lowest free one if `make` is set; -ENOENT, -ENOSPC. Setting name "" frees an index. */
int router_file_engine(struct router_file *file, const char *name, int make);
int router_file_engine_find(const struct router_file *file, const char *name);
void router_file_engine_publish(struct router_file *file, unsigned i,
				const struct router_engine *engine);
int router_file_engine_read(const struct router_file *file, unsigned i,
			    struct router_engine *ret_engine);

/* ---- counters: one writer, relaxed atomics, an index on the hot path ---- */

struct router_counter {
	char name[56]; /* "requests_started" or "requests_started/gpu0" */
	_Atomic uint64_t value;
};
static_assert(sizeof(struct router_counter) == 64, "a counter is one line");

/*
 * Gives counter i the name names[i]; values follow their names over restarts and upgrades, names no
 * longer used are forgotten. -ENOSPC if `nr` exceeds the section.
 */
int router_file_counters_bind(struct router_file *file, const char *const *names, unsigned nr);
struct router_counter *router_file_counters(const struct router_file *file, unsigned *ret_nr);
static inline void router_counter_add(struct router_counter *counter, uint64_t n)
{
	/* Single writer: a load and a store, no locked instruction. */
	uint64_t v = atomic_load_explicit(&counter->value, memory_order_relaxed);

	atomic_store_explicit(&counter->value, v + n, memory_order_relaxed);
}

/* ---- cursors into the ledgers' rings, one per ledger number ---- */
void router_file_cursor_set(struct router_file *file, unsigned ledger,
			    const struct router_cursor *cursor);
int router_file_cursor_get(const struct router_file *file, unsigned ledger,
			   struct router_cursor *ret_cursor);

#endif
