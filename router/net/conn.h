/*
 * One client connection and the request it carries: states, events, reasons to end.
 *
 * A connection's state changes in one place, conn_step(), which looks the pair (state, event) up in
 * one table (conn.c). What belongs to one request lives in a struct exchange that is taken from a
 * pool when its first byte arrives and given back when it ends, so that an idle connection costs a
 * slot.
 */
#ifndef TURNWARD_ROUTER_NET_CONN_H
#define TURNWARD_ROUTER_NET_CONN_H

#include "router/admit/admit.h"
#include "router/chat/watch.h"
#include "router/http/http.h"
#include "router/http/path.h"
#include "router/journal/journal.h"
#include "router/ledger/ledger.h"
#include "router/limits.h"
#include "router/net/chain.h"
#include "router/stage/requeue.h"
#include "router/tokens/tokens.h"
#include "shm/loop/loop.h"
#include "shm/loop/wheel.h"
#include "shm/state.h"

#include <stdint.h>

struct worker;
struct link;
struct exchange;
struct staging;

#define CONN_STATES(X)                                                        \
	X(FREE, "in the pool")                                                \
	X(IDLE, "no byte of a request yet")                                   \
	X(HEAD, "receiving the request head")                                 \
	X(BODY, "receiving the body, not decided")                            \
	X(AHEAD, "the same, sent on to the engine that it will probably get") \
	X(HOLD, "complete, waiting until an engine can be chosen")            \
	X(STAGE, "pieces of its prompt are sent before it")                   \
	X(AWAY, "taken back from its engine: others go first")                \
	X(DIAL, "engine chosen, connecting to it")                            \
	X(WAIT, "request on its way or sent, no answer yet")                  \
	X(RELAY, "the answer flows")                                          \
	X(FLUSH, "answer complete, the client takes the rest")                \
	X(LINGER, "answered early, reading off what the client still sends")  \
	X(CLOSE, "descriptor being closed")

#define CONN_STATE_ENUM(name, text) CONN_##name,
enum conn_state { CONN_STATES(CONN_STATE_ENUM) CONN_STATES_NR };
#undef CONN_STATE_ENUM

#define CONN_EVENTS(X)                                                                            \
	X(ACCEPTED)      /* a fresh descriptor */                                                 \
	X(CLIENT_BYTES)  /* data, len */                                                          \
	X(CLIENT_FILLED) /* len bytes of the body are in c->fill */                               \
	X(CLIENT_GONE)   /* end of stream, reset, or half-close */                                \
	X(CLIENT_TOOK)   /* a send to the client ended well */                                    \
	X(CLIENT_CLOSED) /* the loop is done with the descriptor */                               \
	X(ENGINE_UP)     /* connected */                                                          \
	X(ENGINE_DOWN)   /* error: connecting failed, or the connection broke (res = -errno) */   \
	X(ENGINE_TOOK)   /* a send to the engine ended well */                                    \
	X(ENGINE_BYTES)  /* data, len */                                                          \
	X(ENGINE_EOF)    /* the engine closed */                                                  \
	X(ENGINE_CLOSED) /* our close of the engine's connection is done: another may be tried */ \
	X(DECIDE)        /* what HOLD waited for has come (models known, or it will not come) */  \
	X(GIVE_WAY)      /* a cold prompt is taken back, so that others get in (requeue.c) */     \
	X(RETURN)        /* it is sent again */                                                   \
	X(RESCUE)        /* its engine hangs: another one gets it (rescue.c) */                   \
	X(TIMEOUT)

#define CONN_EVENT_ENUM(name) CONN_EV_##name,
enum conn_event { CONN_EVENTS(CONN_EVENT_ENUM) CONN_EVENTS_NR };
#undef CONN_EVENT_ENUM

enum conn_outcome { OUTCOME_COMPLETED, OUTCOME_FAILED, OUTCOME_ABORTED };

/*
 * Why a request ended: log word, how it counts, status answered if nothing was relayed yet (0 = the
 * connection is cut), OpenAI error type and code, text. The metric, the log and the answer come
 * from this table.
 */
#define CONN_ENDS(X)                                                                               \
	X(OK, "ok", COMPLETED, 0, "", "", "")                                                      \
	X(REFUSED, "refused", FAILED, 400, "invalid_request_error", "bad_request",                 \
	  "the request is not valid HTTP")                                                         \
	X(PATH, "path", FAILED, 404, "invalid_request_error", "path_not_forwarded",                \
	  "this path is not forwarded; the option paths lists what is, paths = all opens the "     \
	  "rest")                                                                                  \
	X(UNAUTHORIZED, "unauthorized", FAILED, 401, "invalid_request_error", "invalid_api_key",   \
	  "missing or unknown API key")                                                            \
	X(BODY_TOO_LARGE, "body_too_large", FAILED, 413, "invalid_request_error",                  \
	  "body_too_large", "the body exceeds max_body")                                           \
	X(MODEL, "model_not_found", FAILED, 404, "invalid_request_error", "model_not_found",       \
	  "no engine serves this model")                                                           \
	X(NO_ENGINE, "no_engine", FAILED, 503, "server_error", "no_engine_available",              \
	  "no engine can take the request now")                                                    \
	X(OVERLOAD, "overload", FAILED, 503, "server_error", "overloaded",                         \
	  "the router holds as many requests as its memory allows")                                \
	X(HEAD_TIMEOUT, "head_timeout", FAILED, 408, "invalid_request_error", "head_timeout",      \
	  "the request head did not arrive in time")                                               \
	X(BODY_TIMEOUT, "body_timeout", FAILED, 408, "invalid_request_error", "body_timeout",      \
	  "the request body did not arrive in time")                                               \
	X(BODY_RATE, "body_rate", FAILED, 408, "invalid_request_error", "body_rate",               \
	  "the request body came too slowly")                                                      \
	X(CONNECT, "connect", FAILED, 503, "server_error", "engine_unreachable",                   \
	  "no connection to the engine")                                                           \
	X(FIRST_BYTE_TIMEOUT, "first_byte_timeout", FAILED, 504, "server_error", "engine_timeout", \
	  "the engine did not answer in time")                                                     \
	X(STREAM_IDLE, "stream_idle_timeout", FAILED, 504, "server_error", "engine_timeout",       \
	  "the engine fell silent")                                                                \
	X(ENGINE_GONE, "engine_gone", FAILED, 502, "server_error", "engine_gone",                  \
	  "the engine closed the connection without an answer")                                    \
	X(ENGINE_GARBAGE, "engine_garbage", FAILED, 502, "server_error", "engine_invalid",         \
	  "the engine's answer is not valid HTTP")                                                 \
	X(CLIENT_GONE, "client_gone", ABORTED, 0, "", "", "the client left")                       \
	X(CLIENT_STUCK, "client_send_timeout", ABORTED, 0, "", "", "the client took nothing")      \
	X(STOPPED, "stopped", FAILED, 503, "server_error", "shutting_down",                        \
	  "the router is stopping")

#define CONN_END_ENUM(name, word, outcome, status, type, code, text) END_##name,
enum conn_end { CONN_ENDS(CONN_END_ENUM) CONN_ENDS_NR };
#undef CONN_END_ENUM

struct conn_end_info {
	const char *word;
	enum conn_outcome outcome;
	int status;
	const char *type, *code, *text;
};
extern const struct conn_end_info conn_ends[CONN_ENDS_NR];
extern const char *const conn_state_names[CONN_STATES_NR];

/* What one event carries. */
struct conn_input {
	const uint8_t *data;
	size_t len;
	int res;
};

struct conn {
	uint8_t state;       /* enum conn_state; assigned in conn_step() only */
	uint8_t admin;       /* came in on the admin listener */
	uint8_t sending;     /* a loop_send() to the client is under way */
	uint8_t paused;      /* the client is not read on: read-ahead is full, or a fill is used */
	uint8_t filling;     /* a loop_fill() is under way */
	uint8_t close_after; /* no further request on this connection */
	uint8_t hungry;      /* waits for room in the body arena */
	uint8_t gone;        /* the client closed: nothing to linger for */
	uint8_t cut;         /* its answer, whose end is the close, is not whole: it gets a reset */
	uint8_t replaying;   /* its read-ahead is being taken */
	uint8_t blank_cr;    /* between requests: half of an empty line */
	uint8_t unread;      /* paused with a full read-ahead: its end is asked for now and then */
	uint16_t generation;
	int handle;
	uint32_t index;
	uint32_t served;
	uint64_t confirmed;      /* bytes that the client had taken at the last look, */
	uint64_t took_ns;        /* and when it was last seen to take some */
	size_t in_flight;        /* bytes of `out` that the loop owns */
	struct chain out, early; /* to the client; read ahead of the current request */
	struct block *fill;      /* the body block that the loop fills while `filling` */
	struct exchange *x;
	struct wheel_timer timer, send_timer, comment_timer;
	struct conn *next;        /* free list */
	struct conn *hungry_next; /* those that wait for room in the body arena */
};

/*
 * One request, from its first byte to its last. Each group's small members stand so that they fill
 * words: there are as many of these as open streams.
 */
struct exchange {
	struct conn *conn;
	struct exchange *next, **prev;           /* all that are in flight */
	struct exchange *wait_next, **wait_prev; /* on an engine, no first token yet; NULL = not */
	struct exchange *same_id;                /* next in the bucket of live ids */
	char id[LIMIT_REQUEST_ID + 12];

	/* the request */
	uint8_t method;  /* enum http_method */
	uint8_t framing; /* enum http_framing */
	uint8_t minor, stream, generates, keep_alive, counted, complete, cut_through;
	uint8_t head_only;    /* HEAD: the answer has no body */
	uint8_t ahead;        /* 1 + the engine that it is sent ahead to (ahead.c), 0 = none */
	uint8_t ahead_stream; /* what the head that was sent ahead says */
	uint8_t was_ahead;    /* one guess is enough */
	uint8_t body_dropped; /* the arena was short: no resend */
	uint8_t pace_short;   /* the timer runs for body_rate, not for a pause */
	struct block *head;   /* as received; kept until no resend is possible */
	uint32_t head_len;
	int status; /* of the answer */
	struct http_route target;
	uint64_t length;   /* of the body, when framing says so */
	uint64_t received; /* body bytes so far, decoded */
	struct http_body in;
	uint64_t pace_ns, pace_bytes; /* from when and from which byte body_rate counts */
	struct chain body;
	struct scan_room *scan; /* while the body is being read */
	uint64_t bytes_in, bytes_out;

	/* the decision (route.c) */
	struct route *route;

	/* before it is sent (room.c, staging.c) */
	uint8_t held;            /* it waits for a cold slot and is in that engine's books */
	uint8_t cold;            /* 1 + the engine that has it among its cold prompts, 0 = none */
	uint8_t staged;          /* it goes, or went, in pieces */
	uint8_t gives_way;       /* a cold prompt, by that rule (requeue.c) */
	uint32_t pieces;         /* that were answered */
	uint32_t pieces_tokens;  /* of its prompt that they have brought into the engine's cache */
	uint32_t first_cached;   /* that the first piece found, UINT32_MAX = it did not say */
	uint64_t guard_key;      /* of model and shape, with pieces */
	struct staging *staging; /* NULL = no pieces are to be sent */

	/* taken back from an engine (requeue.c, rescue.c) */
	struct requeue_pass passes; /* one of those that others give way to */
	uint8_t holds_back; /* of its answer nothing has gone to the client: it may be taken back */
	uint8_t again;      /* to be sent once its connection is closed */
	uint8_t rescued;    /* once is enough */
	uint8_t stranded;   /* it would have been rescued, but for a reason that was counted */
	uint32_t away_tokens;   /* that are booked as staged while it is AWAY */
	uint64_t alone_total;   /* dispatches to its engine when it returned there alone, else 0 */
	uint64_t first_sent_ns; /* when it was first sent, 0 = it was never taken back */

	/* the engine's side */
	struct link *link;
	uint64_t tried; /* bit mask of engines that refused or failed */
	int engine;     /* index into worker.engines, -1 = none */
	uint32_t at_offset;
	const struct block *at; /* send cursor: the block and offset next to go out */
	struct block *out_head; /* the head written for the engine */
	uint64_t sent_bytes;    /* of head and body together */
	uint64_t queued_bytes;  /* given to the loop, not yet taken */
	uint8_t attempts, resent, sent, answered, reused, relayed_event;
	uint8_t trial;    /* its outcome opens or shuts an engine (health.h) */
	uint8_t heard;    /* a byte of an answer has come over this connection */
	uint8_t settled;  /* it is not sent again: what that would need is given back */
	uint8_t interims; /* 1xx heads of the answer */

	/* the answer */
	uint8_t answer_chunked; /* towards the client */
	uint8_t answer_to_close;
	uint8_t answer_complete, engine_keep_alive, engine_paused, sse;
	struct block *answer_head; /* a head that arrived in pieces */
	struct http_body answer;
	uint64_t moved_ns; /* when something of the answer last went on */
	uint8_t comments;  /* the stream can take SSE comments of ours */

	uint8_t end;           /* enum conn_end */
	uint16_t error_status; /* of END_REFUSED: from the parser's table */
	const char *error_code, *error_text;

	/* CLOCK_MONOTONIC, 0 = has not happened */
	uint64_t start_ns, head_ns;
#define EXCHANGE_MOMENT(name, meaning, phase) uint64_t name##_ns;
	JOURNAL_MOMENTS(EXCHANGE_MOMENT)
#undef EXCHANGE_MOMENT
	size_t token_left; /* bytes that the client must take until it has the first token */

	struct chat_watch watch; /* last: begun with the answer, not with the request */
};

void conn_step(struct worker *w, struct conn *c, enum conn_event event,
	       const struct conn_input *in);

/* The loop's events for one connection, by tag. */
void conn_event(struct worker *w, struct conn *c, const struct loop_event *ev);
void conn_timeout(struct worker *w, struct conn *c, struct wheel_timer *timer);

/* A descriptor just accepted; closes it when there is no slot. */
void conn_accept(struct worker *w, int fd, int admin);

/* Room in the body arena has come back: the first that waits for it reads on. */
void conn_feed_hungry(struct worker *w);

/* Ends the requests of clients that left while they were not read; called now and then. */
void conn_leavers(struct worker *w);

/* Draining: no further request on any connection, idle ones close. */
void conn_drain_all(struct worker *w);
/* Ends every exchange now (a second SIGTERM). */
void conn_stop_all(struct worker *w);

#endif
