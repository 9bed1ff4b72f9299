/*
 * turnward-engine from the inside: a process of modelled engines, one a port, on one event loop.
 *
 * Time: the model's clock runs `speed` times faster than the wall's; both start at the engine's
 * start. A step that ended late hands its delay on to nobody: the next one is scheduled from the
 * moment the late one should have ended, as long as the delay is short (ENGINE_CATCH_UP_NS), so
 * that the engine keeps its rate; every delay counts as lateness.
 */
#ifndef TURNWARD_BENCH_ENGINE_H
#define TURNWARD_BENCH_ENGINE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "bench/engine_metrics.h"
#include "bench/engine_out.h"
#include "bench/engine_prompt.h"
#include "bench/engine_reply.h"
#include "bench/model/model.h"
#include "router/http/http.h"
#include "shm/loop/loop.h"
#include "shm/loop/wheel.h"

enum {
	ENGINES_MAX = 64,
	ENGINE_CONNS_MAX = 16384,
	ENGINE_BODY_MAX = 64 * 1024 * 1024,
	ENGINE_UNSENT_MAX = 64 * 1024 * 1024,  /* waiting for a client that does not read */
	ENGINE_AHEAD_MAX = 1024 * 1024,        /* received while an answer is under way */
	ENGINE_STORE_BYTES = 32 * 1024 * 1024, /* kept responses of one engine */
	ENGINE_STORE_MAX = 1024,
	ENGINE_MODELS_MAX = 16,
	ENGINE_CATCH_UP_NS = 2 * 1000 * 1000,
	ENGINE_LATE_BUCKETS = 160,     /* eight to a doubling, from 1 us */
	ENGINE_KEEP_BYTES = 64 * 1024, /* buffers above are not kept between requests */
};

struct engine_options {
	double speed;
	const char *model[ENGINE_MODELS_MAX];
	unsigned models;
	uint32_t context_max, sequences_max, budget_tokens, long_prefill_cap;
	uint64_t kv_tokens;
	uint64_t idle_ns;      /* keep-alive */
	uint64_t max_queued;   /* running + waiting; 0 = no bound */
	uint64_t refuse_after; /* generation requests, then the listener closes; 0 = never */
	uint64_t fail_head;    /* every N-th generation request is closed unanswered; 0 = none */
	uint64_t cut_after;    /* streams break off after N tokens; 0 = never */
	bool no_hits;          /* no prompt finds what another has left in the cache */
};

struct engine_lateness {
	uint64_t steps, late_ns, busy_ns, max_ns, behind; /* behind: steps beyond catching up */
	uint64_t bucket[ENGINE_LATE_BUCKETS];
};

struct stored {
	char id[48];
	uint32_t *ids;
	size_t nr;
	char *body; /* the finished response, as GET shows it */
	size_t body_len;
};

struct conn;

/* One sequence in the model: a choice of a request. */
struct ask {
	struct engine *engine;
	struct conn *conn;                    /* NULL: its client is gone */
	struct model_request *request;        /* NULL: ended */
	struct ask *next, **prev;             /* live ones of the engine */
	uint64_t seed, last_ns, abort_due_ns; /* wall; 0 = no abort pending */
	uint32_t choice, emitted, preempted, n;
	bool started, abort_at_start, streamed;
	bool capped; /* the request set its length: it ends with "length" */
};

struct engine {
	struct engine_world *world;
	uint16_t port;
	enum engine_head head;
	struct model *model;
	const char *profile;
	const char *served;        /* first name */
	int listener;              /* loop handle, -1 = closed */
	uint64_t begin_ns, due_ns; /* of the running step, wall; UINT64_MAX = none */
	uint32_t arrived;          /* submissions since the running step began */
	uint32_t step_tokens;
	struct engine_lateness late;
	struct metrics metrics;
	struct ask *asks, *graves; /* graves: freed when no event can name them any more */
	uint64_t taken;            /* generation requests */
	uint64_t prefill_tokens, prefill_busy_us; /* SGLang's own measure of its prefill */
	double moments[6];                        /* and of its decode steps */
	uint64_t rate_from_ns, rate_tokens;
	struct stored stored[ENGINE_STORE_MAX];
	size_t stored_at, stored_bytes;
	uint64_t ids_made;
};

struct choice {
	struct ask *ask; /* NULL: complete */
	uint64_t seed;
	uint32_t tokens;
};

enum conn_state {
	CONN_FREE,
	CONN_HEAD,    /* idle, or receiving a request's head */
	CONN_BODY,    /* receiving its body */
	CONN_READY,   /* the request is whole */
	CONN_BUSY,    /* its answer is under way */
	CONN_CLOSING, /* closed, the loop still holds the handle */
};

struct conn {
	struct engine *engine;
	uint32_t index, generation;
	int handle;
	enum conn_state state;
	struct out in; /* received and not yet used */
	size_t head_seen;
	struct http_body framing;
	struct out body;
	struct out sending, pending;
	bool send_busy, close_after, paused, keep, is_1_0;
	unsigned served;
	struct wheel_timer idle;

	/* the request at hand */
	enum http_method method;
	char path[256];
	char extra[64]; /* a field line for the next head */
	enum metrics_handler handler;
	int status;
	uint64_t began_ns, body_bytes, sent_bytes;
	struct reply reply;
	struct choice *choice;
	uint32_t choices, choices_live, choices_room;
	bool head_sent, first_sent, failed;
	uint32_t *kept_ids; /* responses: what the next turn begins with, without the answer */
	size_t kept_nr;
	struct conn *next_free;
};

struct engine_world {
	struct loop *loop;
	struct wheel wheel;
	struct engine_options options;
	struct engine engine[ENGINES_MAX];
	unsigned engines;
	struct conn **conn;
	uint32_t conns, conns_max;
	struct conn *free_conn;
	struct prompt prompt; /* of the request being read */
	struct tokenizer_memory *memory;
	struct out scratch;
	uint64_t start_ns, start_wall_ns;
	FILE *stamps; /* when first tokens were written, a line each; NULL = none */
	bool stopping;
};

/* engine_step.c: the model against the wall clock */
uint64_t engine_model_ns(const struct engine_world *w, uint64_t wall_ns);
void engine_pump(struct engine *e, uint64_t now_ns); /* ends what is due, begins what can run */
uint64_t engine_due(const struct engine_world *w);   /* earliest end of a step, or abort */
int engine_submit(struct engine *e, struct conn *c, const struct prompt *p, uint64_t now_ns);
void engine_ask_drop(struct ask *a, uint64_t now_ns); /* its client is gone */
void engine_bury(struct engine *e);
void engine_lateness_json(const struct engine *e, struct out *o);
void engine_show(struct engine *e);

/* engine_conn.c: sockets, requests, answers' bytes */
void conn_event(struct engine_world *w, const struct loop_event *event);
void conn_accepted(struct engine *e, int fd);
void conn_send_head(struct conn *c, int status, const char *type, int64_t length); /* < 0: stream */
void conn_answer(struct conn *c, int status, const char *type, const void *body, size_t len);
void conn_error(struct conn *c, int status, const char *type, const char *param,
		const char *message);
void conn_flush(struct conn *c);
void conn_done(struct conn *c); /* the answer is complete */
void conn_cut(struct conn *c);  /* closes at once */
bool conn_idle_expire(struct engine_world *w, uint64_t now_ns);
struct conn *conn_of_tag(struct engine_world *w, uint64_t tag);
void conns_free(struct engine_world *w);

/* engine_api.c: what each path answers; engine_answer.c: the paths that make tokens */
void api_handle(struct conn *c, uint64_t now_ns);
void api_refuse(struct conn *c, int status, const char *param, const char *message);
void answer_generate(struct conn *c, enum prompt_api api, uint64_t now_ns);
void answer_started(struct ask *a);
void answer_token(struct ask *a, uint32_t id, bool last);
void answer_stored(struct conn *c, const char *id);
int answer_read(struct conn *c, enum prompt_api api); /* fills the world's prompt or answers 4xx */
void engine_store_free(struct engine *e);

#endif
