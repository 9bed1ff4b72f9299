/*
 * The worker: the one process that serves, and everything it owns. One event loop, no threads, no
 * locks.
 */
#ifndef TURNWARD_ROUTER_WORKER_H
#define TURNWARD_ROUTER_WORKER_H

#include "router/counters.h"
#include "router/engines.h"
#include "router/journal/journal.h"
#include "router/ledger/ledger.h"
#include "router/limits.h"
#include "router/net/ahead.h"
#include "router/net/conn.h"
#include "router/net/link.h"
#include "router/net/slab.h"
#include "router/net/staging.h"
#include "router/policy/policy.h"
#include "router/prefix/prefix.h"
#include "router/session/responses.h"
#include "router/session/session.h"
#include "router/settings.h"
#include "router/shadow.h"
#include "router/stats/hist.h"
#include "router/tokens/tokens.h"
#include "router/view/view.h"
#include "shm/files.h"
#include "shm/loop/loop.h"
#include "shm/loop/wheel.h"
#include "shm/region.h"

#include <sys/types.h>

enum { WORKER_LISTENERS_MAX = 16, WORKER_ID_BUCKETS = 4096, WORKER_ANSWERS = 16 };

/* What a completion's tag leads to: a slot number and its generation, never a pointer. */
enum worker_tag_kind { TAG_LISTENER = 1, TAG_CONN, TAG_LINK, TAG_SIGNAL };

static inline uint64_t worker_tag(enum worker_tag_kind kind, uint16_t generation, uint32_t index)
{
	return (uint64_t)kind << 48 | (uint64_t)generation << 32 | index;
}

/* Client keys that open the data port; none = it is open. */
struct api_keys {
	uint32_t nr;
	char **key;
};

struct listener {
	int fd, handle;
	uint8_t admin, accepting;
	char text[ADDR_TEXT_MAX];
};

struct worker {
	const struct router_settings *set;
	struct loop *loop;
	const char *loop_why;
	struct wheel wheel;
	uint64_t now_ns;  /* CLOCK_MONOTONIC, at most CLOCK_EVENTS deliveries old */
	uint8_t now_age;  /* deliveries since it was read */
	uint64_t turns;   /* of the loop */
	uint32_t crowded; /* turns in a row that left something at hand */
	uint64_t started_ns;
	uint64_t accept_said_ns; /* not before: another word on descriptors that are short */
	uint8_t draining, stopping;
	uint8_t full; /* every place for clients is taken: none is accepted */
	uint64_t drain_until_ns;
	pid_t supervisor;

	struct http_path_rules path_rules;
	struct api_keys api_keys;

	struct listener listeners[WORKER_LISTENERS_MAX];
	uint32_t listeners_nr;
	int signal_fd, signal_handle;

	/* pools */
	struct slab bodies, heads, outs, exchanges, scans, routes, asked, stagings;
	struct conn *conns, *conns_free, *hungry;
	struct conn *eldest; /* of the hungry: reads on although the arena is nearly full */
	uint32_t conns_max, conns_nr,
		admin_nr; /* those of the admin listener are in conns_nr, too */
	struct link *links, *links_free;
	uint32_t links_max, links_nr;
	struct exchange *inflight, *waiting; /* all; those on an engine without a first token */
	uint64_t inflight_nr;
	uint32_t unread_nr; /* connections whose read-ahead is full */
	struct exchange *ids[WORKER_ID_BUCKETS];
	uint64_t id_seed, id_next;

	/* scratch of one call, kept over an event only for who finds itself named beside it */
	struct http_head head;
	const struct exchange *head_of; /* whose request it is, NULL = an answer */

	/* engines and the region */
	struct engine engines[STATE_ENGINES_MAX];
	uint32_t engines_nr;
	struct region region;
	struct router_file file;
	struct ledger_file ledger_file;
	struct latency_file probe_file;
	uint8_t probe_attached;
	uint64_t tick_ns;    /* next once-a-second work */
	char date[32];       /* of Date fields */
	uint64_t publish_ns; /* next publishing of books and timing */
	uint64_t trim_ns;    /* next giving back of memory */

	/* what the decision uses */
	struct ledger *ledger;
	struct ledger_params ledger_params;
	struct sessions sessions;
	struct responses responses;
	struct prefix_index prefix;
	struct prefix_known prefix_known; /* by session */
	void *prefix_known_mem;
	uint32_t prefix_engines; /* region indices that it and the journal have room for */
	struct tokens tokens;
	struct view_answers answers[WORKER_ANSWERS]; /* by model key */
	struct policy_params params;
	struct shadow shadow;
	struct staging_rules stage;
	struct taking_back back;
	struct sent_ahead ahead;
	uint64_t cursor, random;
	struct view_budget moves;
	struct engine_learnt *learnt; /* STATE_ENGINES_MAX, in the region */
	uint64_t content_seed;        /* of block hashes; in the region */
	uint8_t record[64 * 1024];    /* a journal record under construction */
	uint32_t record_size;         /* of it, 0 = none is to be appended */

	struct counters counters;
	struct hist ttft, decision, e2e;
	struct hist phase[JOURNAL_MOMENTS_NR]; /* on the way to first tokens */
};

/*
 * Serves until told to stop; returns the exit code. Listening sockets come from the supervisor and
 * are not closed for good by this process's death.
 */
int worker_run(const struct router_settings *settings, const struct listener *listeners,
	       uint32_t nr);

/* An engine was found: gives it its index in the region, its counters, its learnt state. */
void worker_engines_changed(struct worker *w);

/* The last place for clients was taken; one is free again. */
void worker_full(struct worker *w);
void worker_room(struct worker *w);

/* A number for tie breaks and ids: xorshift, seeded at start. */
uint64_t worker_random(struct worker *w);

#endif
