/*
 * A long body is sent ahead, while it arrives, to the engine that it will probably get.
 *
 * The engine is guessed once, by the policy itself, from what was scanned so far. The decision is
 * made as ever when the body is whole; where it turns out otherwise, that connection is closed and
 * everything goes to the other engine. No engine can run what it was sent ahead: the last byte goes
 * out after the decision.
 */
#ifndef TURNWARD_ROUTER_NET_AHEAD_H
#define TURNWARD_ROUTER_NET_AHEAD_H

#include "router/net/conn.h"

/* The worker's: whether it pays. */
struct sent_ahead {
	double wrong;          /* share of late guesses that were, smoothed */
	uint64_t off_until_ns; /* after too many of them */
	uint64_t candidates;   /* of the last decision, whatever its model */
	uint8_t stream;        /* what the last body said in the end */
};

/* More of the body has come: it is sent ahead, or not. Returns AHEAD or BODY. */
enum conn_state ahead_go(struct worker *w, struct conn *c);

/*
 * route_decide() for a request of which something may have been sent ahead. If to the engine that
 * is chosen, x->ahead stays set; else that connection is being closed, and gone or still x->link.
 */
int ahead_decide(struct worker *w, struct exchange *x);

/* The decision was that engine: the rest follows. */
enum conn_state ahead_goes_on(struct worker *w, struct conn *c);

enum conn_state ahead_up(struct worker *w, struct conn *c, const struct conn_input *in);
enum conn_state ahead_lost(struct worker *w, struct conn *c, const struct conn_input *in);
enum conn_state ahead_closed(struct worker *w, struct conn *c, const struct conn_input *in);

#endif
