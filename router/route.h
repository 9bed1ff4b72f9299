/*
 * From a scanned request to an engine: gathers what is known, asks the policy, keeps the books.
 *
 * This is the one file where the pure parts meet: tokens, sessions, prefix index, ledger, agents'
 * records, policy, journal. The data path calls it at five moments of a request and never looks
 * inside.
 */
#ifndef TURNWARD_ROUTER_ROUTE_H
#define TURNWARD_ROUTER_ROUTE_H

#include "router/chat/scan.h"
#include "router/health/health.h"
#include "router/http/path.h"
#include "router/ledger/ledger.h"
#include "router/net/conn.h"
#include "router/policy/policy.h"
#include "router/session/session.h"
#include "router/tokens/tokens.h"

#include <stdint.h>

struct worker;
struct exchange;
struct engine;

enum {
	ROUTE_HOLD = -1000, /* cannot be decided yet: engines are being asked for their models */
	ROUTE_WAIT = -1001, /* waits in the router for a cold slot */
};

/* What only choosing and sending need: given back once nothing can make an engine be chosen again.
 */
struct route_asked {
	struct chat_request request;
	char header_session[LIMIT_SESSION_ID];
	uint16_t header_session_len;
	struct session before; /* as it was when this request was dispatched */
	struct exchange *x;
	uint64_t cursor, random[2]; /* of a guess, 0 = none was made: the decision has the same */
	struct admit_entry wait;    /* for a cold slot (room.c) */
	struct requeue_cold yields; /* a cold prompt that gives way to others (requeue.c) */
};

/* What the decision of one request needs and remembers until its end. */
struct route {
	struct route_asked *asked; /* NULL once it is settled, as is `chain` */
	uint64_t *chain;           /* block hashes, in chain_block; NULL = none */
	struct block *chain_block;
	uint32_t chain_nr;
	uint8_t chain_small; /* its block is of the output pool */
	uint8_t scanned;     /* `asked->request` is valid */
	uint8_t has_session;
	uint8_t waited;     /* long enough for lists of models: decides with what is known */
	uint8_t refreshed;  /* engines have been asked for their models because of it */
	uint8_t exact_base; /* prompt_tokens builds on an exact count */
	uint8_t dispatched; /* a ticket is in the books */
	uint8_t token_seen;
	uint8_t was_known;   /* `asked->before` is valid */
	uint8_t moved_home;  /* the session has been told of the dispatch */
	uint64_t takers;     /* of the candidates, those whose health lets them have it */
	uint64_t candidates; /* bit mask: engines that serve it */
	uint64_t bound_turn, bound_tokens; /* that it continues from */
	uint64_t model_key;
	uint64_t scope;
	struct session_key session;
	uint64_t had_tokens, said_tokens; /* its last prompt and answer, if was_known */
	int bound; /* engine that holds its state (response ids), -1 = free */
	int home;  /* index into worker.engines, -1 = none */
	struct tokens_prompt prompt;
	uint32_t turn;
	uint32_t prompt_tokens, uncached_tokens, hit_tokens;
	uint32_t class, reason;
	double predicted_ttft_s, predicted_raw_s;
	double assume_s;   /* from its sending to a first token that nobody can see */
	uint64_t decision; /* its number in the journal, 0 = none */
	struct ledger_ticket ticket;
};

/* Memory for it. -ENOBUFS at the bound. */
int route_begin(struct worker *w, struct exchange *x);

/*
 * Chooses an engine and puts the request into the books: index into worker.engines; ROUTE_HOLD or
 * ROUTE_WAIT; or -enum conn_end. Engines in x->tried are left out. With x->staging set, pieces go
 * first and it is in the books from route_send() on.
 */
int route_decide(struct worker *w, struct exchange *x);

/*
 * What route_decide() would choose if the rest of the body were like what has come of it: index, or
 * -1 where that is not clear or would not be sent whole. Nothing is booked or remembered of it, but
 * how ties are broken.
 */
int route_guess(struct worker *w, struct exchange *x);

/* Its record goes into the journal, where it stands before all that follows from it. */
void route_noted(struct worker *w);

/* 1 if another engine than those tried could take it, of no worse standing than that. */
int route_has_other(struct worker *w, const struct exchange *x, enum health_standing worst);

/* Of a staged one: its own request is being sent, with so much of it in the engine's cache. */
void route_send(struct worker *w, struct exchange *x, uint32_t prompt_tokens,
		uint32_t cached_tokens, double prefill_s);

/* The engine did not take it after all: out of the books, as if never sent. */
void route_undo(struct worker *w, struct exchange *x);

void route_first_token(struct worker *w, struct exchange *x);

/* Nothing will be sent again: 1 if what only that needs is given back, 0 while it is needed yet. */
int route_settle(struct worker *w, struct exchange *x);
void route_ended(struct worker *w, struct exchange *x); /* x->end and the watch are final */
void route_free(struct worker *w, struct exchange *x);

uint64_t route_seed(const struct worker *w); /* of content hashes: the same over restarts */

/* What of the head the decision needs later: scope of the API key, session header. */
void route_head(struct worker *w, struct exchange *x, const struct http_head *head,
		const char *buf);

/* The answer named its response id. */
void route_response_made(struct worker *w, struct exchange *x);

/* First tokens that nobody can see (no stream): taken as out at their predicted time. */
void route_assume_tokens(struct worker *w);

/* An agent's record has changed; an engine was seen away. */
void route_observe(struct worker *w, struct engine *e);
void route_engine_lost(struct worker *w, struct engine *e);
uint64_t route_epoch(const struct engine *e); /* of its cache, 0 = unknown */

/* Books into the region. */
void route_publish(struct worker *w);

/* 1 if the client may use the data port: its key is known, or none is asked for. */
int route_authorized(const struct worker *w, const struct http_head *head, const char *buf);

/* The router answers it itself. */
int route_is_own(const struct http_route *target);

/* Sets x->id from the head's x-request-id (suffixed if a live request has it) or makes one. */
void request_id_take(struct worker *w, struct exchange *x, const struct http_head *head,
		     const char *buf);
void request_id_forget(struct worker *w, struct exchange *x);

#endif
