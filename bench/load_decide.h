/* What a decision reads and reckons, in parts that can be timed alone, warm and cold. */
#ifndef TURNWARD_BENCH_LOAD_DECIDE_H
#define TURNWARD_BENCH_LOAD_DECIDE_H

#include "router/ledger/ledger.h"
#include "router/policy/policy.h"
#include "router/prefix/prefix.h"
#include "router/session/session.h"
#include "router/stats/hist.h"
#include "router/view/view.h"
#include "shm/files.h"

enum {
	DECIDE_ENGINES = 8,
	DECIDE_HOME = 3,
	DECIDE_BLOCKS = 1600, /* 200,000 tokens of prefix: the session's last turn, at home */
	DECIDE_NEW = 40,      /* more since then */
	DECIDE_CHAIN = DECIDE_BLOCKS + DECIDE_NEW,
	DECIDE_TICKETS = 25, /* per engine: half of them wait, half decode */
	DECIDE_ROOM = 4096,  /* blocks per engine; what is flushed before each cold sample */
};

/* A region, books and an index as a router has them that has been busy for seconds, and a turn of a
 * long session that comes now. */
struct decide {
	struct region region;
	struct engine_file own[DECIDE_ENGINES];                          /* the writer's maps */
	struct engine_file seen[DECIDE_ENGINES];                         /* the reader's */
	struct engine_state said[DECIDE_ENGINES], state[DECIDE_ENGINES]; /* published; read */
	struct engine_state *plain[DECIDE_ENGINES]; /* of the same size, a page each */
	uint64_t seq[DECIDE_ENGINES];
	uint64_t now_ns;
	struct ledger ledger;
	struct ledger_params books;
	struct ledger_ticket ticket[DECIDE_ENGINES][DECIDE_TICKETS];
	struct session session;
	struct view_calibration calibration[DECIDE_ENGINES];
	struct view_budget moves;
	struct view_rules rules;
	struct policy_engine engine[DECIDE_ENGINES];
	struct policy_params params;
	struct policy_request request;
	struct policy_choice choice;
	struct prefix_index index;
	void *memory; /* of the index */
	size_t memory_size;
	struct prefix_known known;
	void *known_memory;
	uint64_t chain[DECIDE_CHAIN];
	uint32_t blocks[DECIDE_ENGINES];
};

/* What has been flushed from all caches before each sample. */
enum decide_cold {
	DECIDE_HOT,
	DECIDE_REGION, /* what others write: the engines' files */
	DECIDE_BOOKS,  /* and the router's own books and tickets */
	DECIDE_ALL,    /* and the prefix index, the prompt's hashes and the last depths */
};

/*
 * X(ID, name, what is timed, cold). Cold ones read records that have been published since they were
 * read last. All ask for every engine's lines before the first is read, plain copies, too.
 */
#define DECIDE_PARTS(X)                                                                         \
	X(COPY_WARM, "plain copy of one engine's state, warm", copy_one, DECIDE_HOT)            \
	X(SLOT_WARM, "slot read of one engine's state, warm", slot_one, DECIDE_HOT)             \
	X(COPY_COLD, "plain copies of eight, cold", copy_all, DECIDE_REGION)                    \
	X(SLOT_COLD, "slot reads of eight, cold", slot_all, DECIDE_REGION)                      \
	X(SAME_COLD, "finding that eight slots are unchanged, cold", same_all, DECIDE_REGION)   \
	X(PREFIX_WARM, "prefix of 1,600 blocks in eight engines, warm", prefix, DECIDE_HOT)     \
	X(PREFIX_COLD, "prefix of 1,600 blocks in eight engines, cold", prefix, DECIDE_ALL)     \
	X(PREFIX_KNOWN, "the same, the session's last depths known, cold", prefix_known,        \
	  DECIDE_ALL)                                                                           \
	X(OBSERVE, "new records of eight into the books, books cold", observe, DECIDE_BOOKS)    \
	X(FILL_WARM, "inputs of the choice, eight engines, warm", fill, DECIDE_HOT)             \
	X(CONTENTION, "the choice, contention, warm", contention, DECIDE_HOT)                   \
	X(EFT, "the choice, eft, warm", eft, DECIDE_HOT)                                        \
	X(LINEAR, "the choice, linear, warm", linear, DECIDE_HOT)                               \
	X(BARE_WARM, "decision without prefix, warm", bare, DECIDE_HOT)                         \
	X(BARE_REGION, "decision without prefix, region cold, books warm", bare, DECIDE_REGION) \
	X(BARE_COLD, "decision without prefix, cold", bare, DECIDE_BOOKS)                       \
	X(WHOLE_WARM, "decision with prefix, warm", whole, DECIDE_HOT)                          \
	X(FIRST_COLD, "decision with prefix, the router's first of the session, cold", first,   \
	  DECIDE_ALL)                                                                           \
	X(WHOLE_COLD, "decision with prefix, cold", whole, DECIDE_ALL)

#define DECIDE_PART_ENUM(id, name, op, cold) DECIDE_##id,
enum decide_part { DECIDE_PARTS(DECIDE_PART_ENUM) DECIDE_PARTS_NR };
#undef DECIDE_PART_ENUM

/* The region's files are made in `dir`. -errno. */
int decide_init(struct decide *d, const char *dir);
void decide_fini(struct decide *d);

enum { DECIDE_SESSION = 77 }; /* its key */

/* Every agent publishes: a little later, otherwise the same. */
void decide_publish(struct decide *d);

/* Nanoseconds of one, `samples` times, without the clock's own, into the histogram. */
void decide_time(struct decide *d, enum decide_part part, unsigned samples, struct hist *hist_ns);

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
