/*
 * The state of everything, from the region alone: what `turnward status` and the admin page tell.
 *
 * Nothing is asked of any process: agents' records, the router's tables and the ledgers are mapped
 * and read. What is old is told with its age, what is absent is named, nothing absent is shown as
 * 0.
 */
#ifndef TURNWARD_ROUTER_STATUS_STATUS_H
#define TURNWARD_ROUTER_STATUS_STATUS_H

#include "shm/files.h"
#include "shm/region.h"
#include "shm/state.h"

#include <stdint.h>

struct json;

enum status_verdict { STATUS_OK, STATUS_WARNING, STATUS_CRITICAL, STATUS_UNKNOWN };

struct status_engine {
	char name[FILES_NAME_SIZE];
	int region_index; /* in the `router` file, -1 = the router does not know it */
	uint64_t drain;
	double weight;
	int agent_present; /* its file is there and whole */
	int agent_alive;
	int have_state;
	struct engine_state state;
	struct engine_info info;
	int have_timing;
	const char *timing_source; /* "probe" or "router" */
	struct latency_record timing;
	int have_books;
	struct ledger_books books; /* of the active worker */
};

struct status {
	char region[REGION_PATH_MAX];
	uint64_t now_ns;
	int router_present, router_alive;
	uint64_t router_pid, router_generation;
	char policy[32], shadow_policy[32]; /* "" = not known, or none is asked */
	uint32_t engines_nr;
	struct status_engine engines[STATE_ENGINES_MAX];
	struct router_counter *counters; /* copies; NULL = none */
	uint32_t counters_nr;
	enum status_verdict verdict;
	char sentence[160]; /* the verdict in words */
};

/* Reads the region; needs about 250 KB in *ret. 0 or -errno. status_free() gives the counters back.
 */
int status_read(struct status *ret_status, const struct region *region);
void status_free(struct status *status);

/* A counter by its name in the region; 0 for one that is not there. */
uint64_t status_counter(const struct status *status, const char *name);

void status_json(struct json *j, const struct status *status);

#endif
