/*
 * Follows the journal's ring into a recording: every record once and in order, and what was missed
 * as a gap with its reason.
 */
#ifndef TURNWARD_ROUTER_CTL_FOLLOW_H
#define TURNWARD_ROUTER_CTL_FOLLOW_H

#include "router/ctl/sink.h"
#include "router/journal/record.h"
#include "shm/ring.h"

struct follow {
	struct sink *sink;
	uint64_t next;                   /* number to read next */
	uint64_t last_number, last_wall; /* of the record read last, to know it again elsewhere */
	int hindered; /* what is missing next is so because the file took nothing */
	int foreign_told;
	struct record_gap gap; /* not yet written; first 0 = none */
	struct record_end sum;
	uint64_t record[RING_RECORD_MAX / 8];
};

/*
 * Begins with another ring, or the same one elsewhere. Returns 1 if its numbers go on where the one
 * before stood, 0 if they begin anew: then with the oldest record that is there.
 */
int follow_ring(struct follow *follow, const struct ring *ring);

/* Everything up to record `last`. -errno, with the place kept, when the file takes nothing. */
int follow_pump(struct follow *follow, const struct ring *ring, uint64_t last);

/* A gap that is noted goes into the file before something else does. */
int follow_flush(struct follow *follow);

#endif
