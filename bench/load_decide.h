/* What a decision reads and reckons, in parts that can be timed alone, warm and cold. */
#ifndef TURNWARD_BENCH_LOAD_DECIDE_H
#define TURNWARD_BENCH_LOAD_DECIDE_H

#include "router/ledger/ledger.h"
#include "router/policy/policy.h"
#include "router/prefix/prefix.h"
#include "router/stats/hist.h"
#include "shm/files.h"

enum {
	DECIDE_ENGINES = 8,
	DECIDE_BLOCKS = 1600, /* 200,000 tokens of prefix */
	DECIDE_ROOM = 4096,   /* per engine; what is flushed before each cold sample */
	DECIDE_TICKETS = 200,
};

struct decide {
	struct region region;
	struct engine_file own[DECIDE_ENGINES];  /* the writer's maps */
	struct engine_file seen[DECIDE_ENGINES]; /* the reader's */
	struct engine_state state[DECIDE_ENGINES];
	struct engine_state *plain[DECIDE_ENGINES]; /* of the same size, a page each */
	struct ledger ledger;
	struct ledger_params books;
	struct ledger_ticket ticket[DECIDE_TICKETS];
	struct ledger_view view[DECIDE_ENGINES];
	struct policy_engine engine[DECIDE_ENGINES];
	struct policy_params params;
	struct policy_request request;
	struct policy_choice choice;
	struct prefix_index index;
	void *memory; /* of the index */
	size_t memory_size;
	uint64_t chain[DECIDE_BLOCKS];
	uint32_t blocks[DECIDE_ENGINES];
};

/*
 * X(ID, name, cold): what is timed. Cold: every line of it has been flushed from all caches.
 * Fetched: as the router does it, all engines' lines asked for before the first is read.
 */
#define DECIDE_PARTS(X)                                                            \
	X(COPY_WARM, "plain copy of one engine's state, warm", copy_one, 0)        \
	X(SLOT_WARM, "slot read of one engine's state, warm", slot_one, 0)         \
	X(COPY_COLD, "plain copies of eight, cold", copy_all, 1)                   \
	X(SLOT_COLD, "slot reads of eight, cold", slot_all, 1)                     \
	X(PREFIX_WARM, "prefix of 1,600 blocks in eight engines, warm", prefix, 0) \
	X(PREFIX_COLD, "prefix of 1,600 blocks in eight engines, cold", prefix, 1) \
	X(BOOKS_WARM, "effective loads of eight engines, warm", books, 0)          \
	X(CONTENTION, "the choice, contention, warm", contention, 0)               \
	X(EFT, "the choice, eft, warm", eft, 0)                                    \
	X(LINEAR, "the choice, linear, warm", linear, 0)                           \
	X(BARE_COLD, "decision without prefix, cold", bare, 1)                     \
	X(WHOLE_WARM, "decision with prefix, warm", whole, 0)                      \
	X(WHOLE_COLD, "decision with prefix, cold", whole, 1)

#define DECIDE_PART_ENUM(id, name, op, cold) DECIDE_##id,
enum decide_part { DECIDE_PARTS(DECIDE_PART_ENUM) DECIDE_PARTS_NR };
#undef DECIDE_PART_ENUM

/* The region's files are made in `dir`. -errno. */
int decide_init(struct decide *d, const char *dir);
void decide_fini(struct decide *d);

/* Nanoseconds of one, `samples` times, without the clock's own. */
void decide_time(struct decide *d, enum decide_part part, unsigned samples, struct hist *ret_ns);

/* What readers see of a writer in another process, on another core. */
struct decide_shared {
	uint64_t reads, torn, gave_up; /* gave_up: -EAGAIN, the last good copy stays */
	uint64_t overtaken;            /* the writer published during the read */
	uint64_t publications;
	struct hist ns; /* of a read */
};

/* Reads for so long beside a writer: 0 = as fast as it can, else so many a second. */
int decide_beside(struct decide *d, unsigned per_s, double seconds, struct decide_shared *ret);

/* The writer is stopped wherever it is, `times` times, and read from meanwhile. */
int decide_stopped(struct decide *d, unsigned times, struct decide_shared *ret);

#endif
