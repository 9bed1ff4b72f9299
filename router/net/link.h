/*
 * Connections to engines: dialled, used by one request at a time, kept idle in a LIFO pool per
 * engine.
 *
 * An idle link stays armed for receiving, so one that its engine closes, or on which it says what
 * nobody asked for, is noticed and never handed out. What has come in but is not yet told is looked
 * for when it is taken, and what the loop tells in the turn in which it was taken came before the
 * request went out: neither is its answer. The race that remains (closed as the request goes out)
 * is what the resend rule for reused connections is for. The idle limit is below the engines' own
 * (5 s).
 */
#ifndef TURNWARD_ROUTER_NET_LINK_H
#define TURNWARD_ROUTER_NET_LINK_H

#include "router/net/chain.h"
#include "shm/loop/loop.h"
#include "shm/loop/wheel.h"

#include <stdint.h>

struct worker;
struct engine;

enum link_state { LINK_FREE, LINK_DIALING, LINK_BUSY, LINK_IDLE, LINK_CLOSING };

/* Who uses a link: a request of a client, or the router's own question to the engine. */
enum link_owner { LINK_NOBODY, LINK_CONN, LINK_ASK };

struct link {
	uint8_t state, owner;
	uint8_t reused;  /* it has carried a request before this one */
	uint8_t sending; /* a loop_send() is under way: its bytes belong to the loop */
	uint8_t deaf;    /* a send failed: nothing more is sent, an answer may still come */
	uint16_t generation;
	int handle;
	uint32_t index;
	uint32_t engine; /* index into worker.engines */
	uint32_t conn;   /* LINK_CONN: index into worker.conns */
	uint64_t taken; /* the loop's turn in which it was reused, if what that tells came before */
	uint32_t left;  /* requests it may still carry (Keep-Alive: max=), UINT32_MAX = no limit */
	uint64_t idle_ns; /* how long it may rest, from the engine's Keep-Alive and our own limit */
	struct wheel_timer timer;
	struct link *next, **prev; /* idle list of its engine, or the free list */
	struct block *held_head;   /* what the loop may still read although the request has ended */
	struct chain held_body;
};

/* An idle link of the engine (state BUSY), or a new one that dials (DIALING); NULL: no slot or
 * socket. */
struct link *link_get(struct worker *w, struct engine *engine, enum link_owner owner,
		      uint32_t conn);

/* Always dials: the second try after a reused link failed. */
struct link *link_dial(struct worker *w, struct engine *engine, enum link_owner owner,
		       uint32_t conn);

/* The exchange is over and the connection clean: into the pool, unless its limits say otherwise. */
void link_rest(struct worker *w, struct link *link);

/*
 * Closes it; whatever is on its way is dropped, and the engine takes that as the client's abort.
 * The owner hears no more of it. If a send is under way, the caller has moved what is being sent
 * into held_head and held_body: they go back to their pools once the loop is done with them.
 */
void link_drop(struct worker *w, struct link *link);

/* Closes it, and tells the owning connection (CONN_EV_ENGINE_CLOSED) when that is done: only then
 * may the request go to another engine. */
void link_drop_and_tell(struct worker *w, struct link *link);

/* Closes every idle link of an engine. */
void link_drop_idle(struct worker *w, struct engine *engine);

void link_event(struct worker *w, struct link *link, const struct loop_event *ev);
void link_timeout(struct worker *w, struct link *link);

#endif
