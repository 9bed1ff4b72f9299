/*
 * Requests that are taken back from an engine: cold prompts that give way to others and return
 * (requeue.c), and whoever waits on an engine that hangs and goes elsewhere (rescue.c).
 *
 * The rules are pure (router/stage/requeue.h, rescue.h); here are connections and books. Nothing of
 * an answer may have reached the client: that of a request which may give way is held back until
 * its first token. What an engine may still be computing of it stays in that engine's books, under
 * a ticket of its own, until the engine shows that it is gone.
 */
#ifndef TURNWARD_ROUTER_NET_REQUEUE_H
#define TURNWARD_ROUTER_NET_REQUEUE_H

#include "router/ledger/ledger.h"
#include "router/limits.h"
#include "router/net/conn.h"
#include "router/stage/requeue.h"
#include "router/stage/rescue.h"

struct stage_case;

/* What an engine has not yet shown to be gone. */
struct left_behind {
	struct ledger_ticket ticket; /* free: the place is, too */
	uint64_t since_ns, until_ns; /* until: it is gone in any case */
};

/* The worker's. */
struct taking_back {
	struct requeue requeue;
	struct left_behind left[LIMIT_LEFT_BEHIND];
	uint32_t left_nr;
	uint64_t looked_ns, excused_ns; /* rescue_look(): last; when we ourselves had not run */
	uint64_t alive_ns[STATE_ENGINES_MAX]; /* its last sign of life, of those we see */
	uint64_t rescues[RESCUE_REASONS_NR];  /* requests on engines that hang, by outcome */
};

/* ---- requeue.c ---- */

/* Can it be taken back from this engine, and its answer be held back? */
int requeue_fits(struct worker *w, struct exchange *x, const struct stage_case *c);
/* It goes whole and gives way: before its ticket is in the books. */
void requeue_take(struct worker *w, struct exchange *x);
/* Its bytes are about to be sent, whoever it is. */
void requeue_goes(struct worker *w, struct exchange *x);
/* Gives way no more, or is waited for no more: first token, end, or another engine's. */
void requeue_done(struct worker *w, struct exchange *x);
/* The request ends or starts from the beginning: nothing of it is left in any book. */
void requeue_forget(struct worker *w, struct exchange *x);
/* A head has come and nothing of it has gone out: is what follows held back? */
int requeue_holds(struct worker *w, struct conn *c, int status, int sse);
/* What was held back is forgotten: the client has seen nothing. */
void requeue_unsay(struct worker *w, struct conn *c);
/* What it found cached, as the engine says; the smaller number is what was there before it came. */
uint64_t requeue_found(struct worker *w, const struct exchange *x, uint64_t cached_tokens,
		       int known);
/* Once a turn of the loop: who is taken back, who returns. */
void requeue_turn(struct worker *w);
enum conn_state requeue_give_way(struct worker *w, struct conn *c, const struct conn_input *in);
enum conn_state requeue_closed(struct worker *w, struct conn *c, const struct conn_input *in);
enum conn_state requeue_return(struct worker *w, struct conn *c, const struct conn_input *in);

/* How often it was taken back. */
uint32_t requeue_closes(const struct exchange *x);

/* ---- rescue.c ---- */

/* The engine has moved: something of an answer's body, which no engine sends before it computes. */
static inline void rescue_alive(struct taking_back *t, unsigned engine, uint64_t now_ns)
{
	t->alive_ns[engine] = now_ns;
}
/* Now and then: who leaves an engine that hangs; what was left behind and is gone by now. */
void rescue_look(struct worker *w);
enum conn_state rescue_leave(struct worker *w, struct conn *c, const struct conn_input *in);
/*
 * Its ticket is free: the engine may go on with it for a while, so it stays in its books, with so
 * much of it at most, until the engine shows it gone, `until_ns` at the latest.
 */
void rescue_leave_behind(struct worker *w, struct ledger_ticket *ticket, uint32_t tokens_max,
			 uint64_t until_ns);

#endif
