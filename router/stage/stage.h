/*
 * A long uncached prompt lets short turns through: the life of one that is sent in pieces.
 *
 * Short turns wait behind cold prefills inside an engine's queue, where no placement helps. So a
 * cold prompt is sent as growing prefixes, one output token each and the answer dropped; every
 * piece lands in the engine's prefix cache, and between two pieces the engine takes what waits. The
 * client's own request, unchanged, goes last.
 *
 * Pure: no clock, no allocation, no I/O. The caller sends what it is told, reports what came of it,
 * and keeps the books by `rest_tokens`. Guard, requeue and rescue: guard.h, requeue.h, rescue.h.
 */
#ifndef TURNWARD_ROUTER_STAGE_STAGE_H
#define TURNWARD_ROUTER_STAGE_STAGE_H

#include "router/stage/params.h"

#include <stdint.h>

/* ---- whether, and how ---- */

/* What of a body forbids pieces; the caller sets what it saw. */
enum {
	STAGE_BODY_IMAGES = 1 << 0,
	STAGE_BODY_AUDIO = 1 << 1,
	STAGE_BODY_PROMPT_LOGPROBS = 1 << 2, /* the engine then skips its cache */
	STAGE_BODY_UNCUT = 1 << 3,           /* no tokeniser reads it, no boundary to cut at */
	STAGE_BODY_ARENA = 1 << 4,           /* body memory is above its threshold */
};

/* What is known of the engine; 0 = unknown and the value named is taken. */
enum {
	STAGE_ENGINE_STAGES = 1 << 0,    /* takes pieces (`stage` is a key of each engine) */
	STAGE_ENGINE_REQUEUES = 1 << 1,  /* an abort keeps what was computed, at a step's end */
	STAGE_ENGINE_HALF_STEP = 1 << 2, /* pieces of half a step (llama.cpp's n_batch) */
	STAGE_ENGINE_OFF = 1 << 3,       /* by guard.h: nothing tells there whether pieces hit */
	STAGE_ENGINE_ASYNC = 1 << 4,     /* plans its next step before the one under way ends */
};
struct stage_engine {
	uint32_t flags;
	uint32_t step_tokens;    /* 8192 */
	uint32_t sequences_max;  /* they may decode beside a piece: a sixteenth of a step */
	uint32_t block_tokens;   /* grain of its prefix cache: 16 */
	uint32_t kv_free_tokens; /* with kv_capacity_tokens: not held by live requests */
	uint32_t kv_capacity_tokens;
	float others;     /* requests in it, and waiting in the router for it */
	float expected_s; /* seconds between short requests coming to it; 0 = unknown, never */
};

struct stage_case {
	uint32_t body;          /* STAGE_BODY_... */
	uint32_t prompt_tokens; /* exact or estimated */
	uint32_t hit_tokens;    /* on this engine */
	uint32_t guarded;       /* by guard.h: off for this model and shape */
	float prefill_s;        /* of what is uncached, predicted */
	struct stage_engine engine;
};

/* Why a prompt is not sent in pieces. X(ID, name, meaning) */
#define STAGE_REASONS(X)                                                                   \
	X(NONE, "none", "it is sent in pieces")                                            \
	X(OFF, "off", "by configuration, of the router or the engine")                     \
	X(SHORT, "short", "too little of it is uncached")                                  \
	X(IMAGES, "images", "the body has images")                                         \
	X(AUDIO, "audio", "the body has audio")                                            \
	X(PROMPT_LOGPROBS, "prompt-logprobs", "asked for, and computed without the cache") \
	X(SHAPE, "shape", "nothing cuts this body")                                        \
	X(BLOCKS, "blocks", "the engine's cache blocks are too coarse")                    \
	X(KV_ROOM, "kv-room", "the engine's free KV memory is less than the prompt")       \
	X(MEMORY, "memory", "body memory is short")                                        \
	X(GUARD, "guard", "pieces of this model and shape have missed")                    \
	X(EVIDENCE, "evidence", "nothing shows on this engine whether pieces hit")         \
	X(ALONE, "alone", "nobody else is on the engine or expected there")                \
	X(MISSED, "missed", "given up: a piece did not find the one before it")            \
	X(EVICTED, "evicted", "given up: later pieces were evicted between two parts")     \
	X(REFUSED, "refused", "given up: the engine answered a piece with an error")       \
	X(TIMEOUT, "timeout", "given up: a piece took too long")                           \
	X(TOKENISE, "tokenise", "the engine would not tokenise it")
#define STAGE_REASON_ENUM(id, name, meaning) STAGE_REASON_##id,
enum stage_reason { STAGE_REASONS(STAGE_REASON_ENUM) STAGE_REASONS_NR };
#undef STAGE_REASON_ENUM

enum stage_way { STAGE_WHOLE, STAGE_IN_PIECES, STAGE_BY_REQUEUE };

/* Which way a prompt goes to this engine; *ret_reason: why not in pieces. */
enum stage_way stage_choose(const struct stage_params *params, const struct stage_case *c,
			    enum stage_reason *ret_reason);

/* New tokens of one piece of this prompt on this engine, in whole blocks. */
uint32_t stage_piece_tokens(const struct stage_params *params, const struct stage_engine *engine,
			    uint32_t prompt_tokens);

/* ---- one staged request ---- */

struct stage_plan {
	uint32_t prompt_tokens, hit_tokens;
	uint32_t piece_tokens;
	uint32_t block_tokens; /* cuts are multiples of it */
	uint32_t last_tokens;  /* with no more than this left, the request itself is next */
	float prefill_s;       /* of all that is uncached, predicted */
	uint32_t cuts_nr;      /* of `cut`; 0 = it can be cut anywhere */
	const uint32_t
		*cut; /* rising places where the body can be cut, where not everywhere is one */
};

/* X(ID, name, meaning) */
#define STAGE_STATES(X)                                                      \
	X(IDLE, "idle", "not begun")                                         \
	X(PIECE, "piece", "a piece is under way, or about to be")            \
	X(REQUEST, "request", "the client's own request is with the engine") \
	X(OVER, "over", "ended, however")
#define STAGE_EVENTS(X)                                                         \
	X(PIECE_DONE, "piece-done", "a piece's answer is complete, status 200") \
	X(REFUSED, "refused", "a piece was answered with an error")             \
	X(TIMEOUT, "timeout", "a piece takes longer than it may")               \
	X(ENGINE_LOST, "engine-lost", "the engine or its connection is gone")   \
	X(CLIENT_GONE, "client-gone", "the client has left")                    \
	X(ENDED, "ended", "first token or end of the request itself")
#define STAGE_ENUM_STATE(id, name, meaning) STAGE_STATE_##id,
#define STAGE_ENUM_EVENT(id, name, meaning) STAGE_EVENT_##id,
enum stage_state { STAGE_STATES(STAGE_ENUM_STATE) STAGE_STATES_NR };
enum stage_event { STAGE_EVENTS(STAGE_ENUM_EVENT) STAGE_EVENTS_NR };
#undef STAGE_ENUM_STATE
#undef STAGE_ENUM_EVENT

/* What to do next. X(ID, name, meaning) */
#define STAGE_ACTIONS(X)                                                               \
	X(NOTHING, "nothing", "go on waiting")                                         \
	X(SEND_PIECE, "send-piece", "the prompt's first cut_tokens, one output token") \
	X(SEND_REQUEST, "send-request", "the client's own request, unchanged")         \
	X(GIVE_UP, "give-up", "the same, at once: pieces do not pay; reason says why") \
	X(PLACE, "place", "decide again where it goes, from the beginning")            \
	X(DROP, "drop", "close what is under way; nobody wants it any more")
#define STAGE_ACTION_ENUM(id, name, meaning) STAGE_##id,
enum stage_action { STAGE_ACTIONS(STAGE_ACTION_ENUM) STAGE_ACTIONS_NR };
#undef STAGE_ACTION_ENUM

/* What a finished piece has shown about the one before it; guard.h finds out. */
enum stage_verdict { STAGE_HIT, STAGE_MISS, STAGE_UNCLEAR, STAGE_NO_SOURCE };

struct stage {
	struct stage_plan plan;
	uint32_t state; /* enum stage_state */
	uint32_t cut;   /* of the piece under way; 0 = none */
	uint32_t
		cached; /* prefix that the engine should hold: the hit, then the last piece's cut */
	uint32_t pieces; /* sent */
	uint32_t done;   /* of these, answered */
	uint32_t reason; /* enum stage_reason: why it was given up, NONE = it was not */
	double paused_s; /* between its parts, for others' sake */
};

struct stage_next {
	enum stage_action action;
	enum stage_reason reason;
	uint32_t cut_tokens;      /* SEND_PIECE: length of the prefix */
	uint32_t expected_tokens; /* of it, or of the request, that the engine should find cached */
	uint32_t rest_tokens;     /* uncached and not in the engine once this is sent */
};

/* The plan of a prompt that stage_choose() wants in pieces. */
void stage_plan_make(const struct stage_params *params, const struct stage_case *c,
		     struct stage_plan *ret_plan);

/* Begins; the first action is SEND_PIECE, or SEND_REQUEST where nothing of it can be cut. */
void stage_begin(struct stage *stage, const struct stage_plan *plan, struct stage_next *ret_next);

/* Something happened; the verdict counts with PIECE_DONE, from the second piece on. */
void stage_event(struct stage *stage, const struct stage_params *params, enum stage_event event,
		 enum stage_verdict verdict, struct stage_next *ret_next);

/* Who else is on the engine when a piece has come back, or a pause is over. */
struct stage_others {
	uint32_t waiting; /* for their first token; pieces are nobody */
	uint32_t decoding;
	double waiting_s; /* predicted, until all of them have it */
	double began_s;   /* since the last one had it; INFINITY = nobody yet */
	double piece_s;   /* that the piece took; 0 = a pause is over */
};

/*
 * Seconds that `next` is to be held back, so that answers just begun get on: each token beside a
 * piece takes the whole of it, and short answers would be all but ended by then. Noted as paused.
 */
double stage_pause_s(struct stage *stage, const struct stage_params *params,
		     const struct stage_next *next, const struct stage_others *others);

/* Exact counts became known after the beginning (the engine tokenised it). */
void stage_correct(struct stage *stage, uint32_t prompt_tokens);

const char *stage_reason_name(unsigned reason); /* NULL out of range, as below */
const char *stage_reason_meaning(unsigned reason);
const char *stage_state_name(unsigned state);
const char *stage_action_name(unsigned action);

#endif
