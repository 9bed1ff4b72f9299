/*
 * The seam between the files that move one request: intake.c reads it, dispatch.c takes it to an
 * engine, relay.c brings the answer, conn.c holds the state table and the client's side of sending.
 */
#ifndef TURNWARD_ROUTER_NET_PARTS_H
#define TURNWARD_ROUTER_NET_PARTS_H

#include "router/chat/scan.h"
#include "router/net/conn.h"
#include "router/worker.h"

#include <assert.h>

/* The engine that a request was given to; it must have one. */
static inline struct engine *engine_of(struct worker *w, const struct exchange *x)
{
	assert(x->engine >= 0 && (uint32_t)x->engine < w->engines_nr);
	return &w->engines[x->engine];
}

/* What an entry of the state table is: does one event's work, returns the next state. */
typedef enum conn_state conn_action(struct worker *w, struct conn *c, const struct conn_input *in);

/* The scan of a body and the memory for its block hashes; needed only while the body arrives. */
struct scan_room {
	struct chat_scan scan;
	uint64_t blocks[LIMIT_CONTENT_BLOCKS];
};

/* conn.c: output to the client */
int out_append(struct worker *w, struct conn *c, const void *data, size_t len);
void out_pump(struct worker *w, struct conn *c);
/* Keeps what came before its time; stops reading the client when there is too much of it. */
void early_keep(struct worker *w, struct conn *c, const uint8_t *data, size_t len);
void client_read(struct worker *w, struct conn *c); /* goes on receiving */
void hungry_add(struct worker *w, struct conn *c);
void client_timer(struct worker *w, struct conn *c, uint64_t after_ns);
enum conn_state conn_finish(struct worker *w, struct conn *c); /* out is filled: FLUSH or CLOSE */
enum conn_state conn_shut(struct worker *w, struct conn *c);   /* loop_close; CLOSE */

/* conn.c: ends of a request. Each logs, counts, frees the exchange and the engine's side. */
void exchange_end(struct worker *w, struct conn *c, enum conn_end end);
/* Answers in the form of the API that was asked if nothing was relayed, else cuts the stream.
 * Returns the next state. */
enum conn_state exchange_fail(struct worker *w, struct conn *c, enum conn_end end);
/* A complete answer of the router's own. `body` is copied. */
enum conn_state exchange_answer(struct worker *w, struct conn *c, int status, const char *type,
				const char *body, size_t len);

/* intake.c */
struct exchange *intake_begin(struct worker *w, struct conn *c);
conn_action intake_idle_bytes, intake_head_bytes, intake_head_late, intake_body_bytes,
	intake_filled, intake_late_bytes, intake_late_filled;
/* Asks for more of the body in the way that suits what is left. */
void intake_read_on(struct worker *w, struct conn *c);
/* Where memory is short, what of the body was sent is not kept. */
void intake_relieve(struct worker *w, struct exchange *x);
/* body_rate counts from here: the head is read, or the router itself reads on again. */
void intake_pace(const struct worker *w, struct exchange *x);
void intake_body_timer(struct worker *w, struct conn *c);    /* for the rest of the body */
int bodies_beyond(const struct worker *w, unsigned percent); /* of the body arena are in use */
void scan_release(struct worker *w, struct exchange *x);

/* dispatch.c */
enum conn_state dispatch_start(struct worker *w, struct conn *c, int fresh);
enum conn_state dispatch_decide(struct worker *w, struct conn *c);
void dispatch_pump(struct worker *w, struct exchange *x);
int dispatch_write_head(struct worker *w, struct exchange *x); /* into x->out_head; 0, -errno */
enum conn_state dispatch_goes(struct worker *w,
			      struct conn *c); /* to x->engine, its head written */
/* In WAIT: for the rest of the body as long as the client sends, then for the engine's answer. */
void dispatch_timer(struct worker *w, struct conn *c);
void dispatch_forget_body(struct worker *w, struct exchange *x); /* no resend from here on */
void dispatch_head_back(struct worker *w, struct exchange *x);   /* out_head, if any, to its pool */
void dispatch_release(struct worker *w, struct exchange *x);     /* the engine's side, at the end */
/* What the request says of its engine's health; the one place where a trial ends. */
enum dispatch_verdict { VERDICT_NOTHING, VERDICT_ANSWERED, VERDICT_FAILED, VERDICT_UNREACHED };
void dispatch_judge(struct worker *w, struct exchange *x, enum dispatch_verdict verdict);
conn_action dispatch_up, dispatch_down, dispatch_closed, dispatch_took, dispatch_broke;
/* Both: CONN_STATES_NR when the answer stands. */
enum conn_state dispatch_refused(struct worker *w, struct conn *c);
enum conn_state dispatch_stale(struct worker *w, struct conn *c);
/* The line that names us in Via, for a message received in HTTP/1.minor; NULL without `via`. */
const char *via_line(const struct worker *w, unsigned minor, char *text, size_t size);

/* The client's head as this engine gets it; how->extra and path are the caller's. 0 or -errno. */
int dispatch_head_write(struct worker *w, struct exchange *x, struct http_forward *how, char *out,
			size_t size, size_t *ret_len);
/* Closes this engine's connection; then another engine is chosen, or this one dialled again. */
enum conn_state dispatch_again(struct worker *w, struct conn *c, int other);

/* relay.c */
conn_action relay_head_bytes, relay_bytes, relay_eof;
void relay_client_took(struct worker *w, struct conn *c);
void relay_comment(struct worker *w, struct conn *c); /* the comment timer is due */

/* own.c: what the router answers itself on the data port, and the admin listener */
enum conn_state own_answer(struct worker *w, struct conn *c);

#endif
