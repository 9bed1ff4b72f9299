/*
 * Long prompts let short turns through: pieces of a prompt go before the client's request, and one
 * cold prompt an engine is taken at a time, the next ones wait in the router.
 *
 * The rules are pure (router/stage, router/admit); here are the bytes: what is asked of an engine,
 * what comes back, and the books. room.c holds who waits, staging.c moves one request through its
 * pieces, staging_body.c writes their bodies. Nothing of it touches the client's own request, which
 * goes last and unchanged by the ordinary path (dispatch.c).
 */
#ifndef TURNWARD_ROUTER_NET_STAGING_H
#define TURNWARD_ROUTER_NET_STAGING_H

#include "router/admit/admit.h"
#include "router/chat/map.h"
#include "router/http/http.h"
#include "router/ledger/ledger.h"
#include "router/net/chain.h"
#include "router/net/conn.h"
#include "router/net/requeue.h"
#include "router/policy/policy.h"
#include "router/stage/guard.h"
#include "router/stage/stage.h"

struct engine;

/* An engine's API takes up to this, whatever is cached. */
static const double STAGING_CLOCK_S = 0.1;

/* What is asked of an engine for one prompt. */

enum staging_phase {
	STAGING_RENDER,   /* vLLM: the ids of the client's own body, whichever path it is for */
	STAGING_TEMPLATE, /* llama.cpp: the prompt's text */
	STAGING_TOKENS,   /* its token ids */
	STAGING_PIECE,
	STAGING_JUDGE, /* nothing is under way: waits for a sample that shows whether it hit */
	STAGING_GRACE, /* nothing either: others answer */
};

/* One request on its way through its pieces; from a pool, and given back before its own request
 * goes. */
struct staging {
	struct stage stage;
	struct stage_next next;
	struct stage_params params; /* the router's, with its engine's mode */
	struct stage_case asked;
	struct policy_engine seen; /* when it was decided */
	uint8_t phase;             /* enum staging_phase */
	uint8_t by_ids;            /* pieces are token ids; else whole messages */
	uint8_t first_phase;       /* by which the ids are asked for */
	uint8_t heard, reused, have_head, keep_alive;
	uint32_t kind; /* enum engine_kind */
	uint32_t booked_tokens, waits;
	int status;
	struct block *head; /* of the answer, gathered */
	struct http_body body;
	struct chain out;  /* what is still to be sent, the loop's while link->sending */
	size_t out_flight; /* of these, given to the loop */
	struct chain answer;
	struct chat_watch watch;
	struct ledger_ticket ticket; /* of the piece under way */
	uint64_t sent_ns, done_ns;
	uint64_t dispatched, hit_before, queried_before; /* when the piece was sent */
	uint8_t idle_before, has_before;
	uint32_t found_tokens; /* prompt tokens that the last piece had, as the engine counted; 0 */
	uint64_t ids, seek_id, seek_at;        /* in the tokens' answer */
	struct chat_map map;                   /* of the client's body */
	struct chat_map told;                  /* of the answer */
	uint32_t cut_tokens[LIMIT_STAGE_CUTS]; /* estimated, where messages end */
};

/* The worker's. */
struct staging_rules {
	struct stage_params params;
	struct admit_params admit;
	struct stage_guard guard;
	struct admit_room room;
	void *room_memory;
	uint8_t on;    /* some engine gets pieces, by configuration */
	uint8_t freed; /* a cold slot may be free: whoever waits is decided anew */
	uint64_t reasons[STAGE_REASONS_NR];
	struct {
		double expects; /* short requests of the last minute */
		uint64_t ns;
		uint64_t began_ns; /* the last first token of one that was not cold; 0 = none */
	} comes[STATE_ENGINES_MAX];
};

/* ---- room.c ---- */

int staging_init(struct worker *w); /* 0 or -ENOMEM */
/* How this engine gets long prompts. */
enum stage_mode staging_mode(const struct worker *w, const struct engine *e);

/*
 * The policy's choice, before it is in the books: 0 = it goes; ROUTE_WAIT = it waits for a cold
 * slot and is decided anew; -END_OVERLOAD = too many wait.
 */
int staging_waits(struct worker *w, struct exchange *x, const struct policy_choice *choice,
		  uint32_t uncached_tokens);
/* About to be decided again: what is held for it is no longer. */
void staging_unhold(struct worker *w, struct exchange *x);
/* It goes to x's engine: among its cold prompts, or one of the short ones that are expected. */
void staging_comes(struct worker *w, struct exchange *x, unsigned engine, uint32_t uncached_tokens);
/* End, or taken back. */
void staging_uncold(struct worker *w, struct exchange *x);
/* Its first token: what pieces leave time to, if it was not cold itself. */
void staging_answers(struct worker *w, struct exchange *x);
/* Its steps and its kind, as configured or as its agent says. */
uint32_t staging_step(const struct worker *w, const struct engine *e);
uint32_t staging_kind(const struct engine *e);
/* Short requests a second that come to the engine. */
double staging_rate(struct worker *w, unsigned engine, int comes);
/* Once a turn of the loop: whoever may go now. */
void staging_let_out(struct worker *w);
void staging_restarted(struct worker *w, struct engine *e);

/* ---- staging.c ---- */

/* The choice is made: 1 if pieces go first (x->staging), 0 if it goes whole, perhaps giving way. */
int staging_choose(struct worker *w, struct exchange *x, const struct policy_engine *seen,
		   double prefill_s);
enum conn_state staging_begin(struct worker *w, struct conn *c);
enum conn_state staging_up(struct worker *w, struct conn *c, const struct conn_input *in);
enum conn_state staging_down(struct worker *w, struct conn *c, const struct conn_input *in);
enum conn_state staging_took(struct worker *w, struct conn *c, const struct conn_input *in);
enum conn_state staging_bytes(struct worker *w, struct conn *c, const struct conn_input *in);
enum conn_state staging_late(struct worker *w, struct conn *c, const struct conn_input *in);
/* A piece of it is with the engine, without an answer. */
int staging_under_way(const struct exchange *x);
/* Its engine hangs: from the beginning on another, the piece stays in the books there. */
enum conn_state staging_elsewhere(struct worker *w, struct conn *c, uint64_t until_ns);
/* The request ends, or starts again from the beginning: nothing of its staging is left. */
void staging_over(struct worker *w, struct exchange *x);
/* What its own request found cached, as the engine says. */
void staging_found(struct worker *w, const struct exchange *x, uint64_t cached_tokens);

/* ---- staging_body.c ---- */

/* What the engine is asked in this phase, into st->out; *ret_path NULL = the client's. 0 or
 * -errno. */
int staging_body_write(struct worker *w, struct exchange *x, const char **ret_path);
void staging_map(const struct chain *chain, struct chat_map *ret_map);
/* The answer holds a flat list of token ids: their number; 0 = it does not. */
uint64_t staging_ids_count(struct staging *st);
/* Can its ids be asked for, of the body as it is or of its parts, and its messages be cut? */
int staging_renders(const struct exchange *x, const struct staging *st);
int staging_tokenises(const struct exchange *x, const struct staging *st);
int staging_cuts(const struct exchange *x, const struct staging *st);
/* Where messages end, in tokens, by their share of the body. */
void staging_cuts_place(struct staging *st, uint32_t prompt_tokens);

#endif
