/*
 * The journal's records: each decision with all that the policy saw, each outcome, in one ring.
 *
 * A decision's record holds parameters, request and engines word for word, so that policy_choose()
 * on it gives the recorded choice again, byte for byte; names stand beside them for people. No
 * prompt text, no session id of a client's, no key. Lengths are checked on reading: the ring is
 * shared memory.
 */
#ifndef TURNWARD_ROUTER_JOURNAL_JOURNAL_H
#define TURNWARD_ROUTER_JOURNAL_JOURNAL_H

#include "router/limits.h"
#include "router/policy/policy.h"
#include "shm/state.h"

#include <stddef.h>
#include <stdint.h>

enum journal_kind { JOURNAL_DECISION = 1, JOURNAL_OUTCOME, JOURNAL_SHADOW };

enum { JOURNAL_VERSION = 3, JOURNAL_ID_SIZE = LIMIT_REQUEST_ID + 16 };

/* All kinds begin so. */
struct journal_head {
	uint32_t kind;    /* enum journal_kind */
	uint32_t version; /* JOURNAL_VERSION */
	uint64_t layout;  /* journal_layout() */
	uint64_t wall_ns, ns;
	char id[JOURNAL_ID_SIZE]; /* x-request-id, zero-terminated */
};

struct journal_engine {
	char name[STATE_NAME_MAX + 8];
};

/* Followed by engines_nr x (journal_engine, policy_engine, policy_cost), each array whole. */
struct journal_decision {
	struct journal_head head;
	char model[LIMIT_MODEL_NAME + 8];
	uint64_t session; /* keyed hash, for telling sessions apart only */
	uint64_t took_ns; /* inputs gathered and policy asked */
	uint64_t attempt; /* 1 = first choice for this request */
	uint64_t shadow;  /* 1 + the policy asked beside it (enum policy_kind), 0 = none was */
	uint64_t engines_nr;
	struct policy_params params;
	struct policy_request request;
	uint8_t choice[offsetof(struct policy_choice, cost)]; /* its fixed part */
};
static_assert(sizeof(struct journal_decision) % 8 == 0, "arrays follow");

/*
 * The way of a request to its first token at the client's, each with the moment that ends it; the
 * outcome's record, explain and the metrics come from this list. X(name, meaning, phase): `phase`
 * names what lies between this moment and the one before it.
 */
#define JOURNAL_MOMENTS(X)                                                     \
	X(body, "the request's last byte was read", "receive")                 \
	X(decided, "an engine was chosen", "decide")                           \
	X(sent, "its first byte was given to the engine's connection", "dial") \
	X(uploaded, "its last byte was taken by it", "upload")                 \
	X(first_byte, "the engine's answer began", "engine_head")              \
	X(first_token, "the first token came from the engine", "engine_token") \
	X(relayed, "the client's connection took the first token", "relay")

#define JOURNAL_MOMENT_ENUM(name, meaning, phase) JOURNAL_MOMENT_##name,
enum journal_moment { JOURNAL_MOMENTS(JOURNAL_MOMENT_ENUM) JOURNAL_MOMENTS_NR };
#undef JOURNAL_MOMENT_ENUM

/* How it went, beside the usual way: whole, once, to one engine. X(name, meaning) */
#define JOURNAL_WAYS(X)                                           \
	X(pieces, "pieces of its prompt were computed before it") \
	X(taken_back, "times it was taken back to let others in") \
	X(rescued, "times it left an engine that hung")

struct journal_outcome {
	struct journal_head head;
	uint64_t decision; /* number of its record, 0 = was never decided */
	char engine[STATE_NAME_MAX + 8];
	char end[24]; /* log word */
	uint64_t status;
	uint64_t prompt_tokens, cached_tokens, completion_tokens; /* UINT64_MAX = not reported */
	/* seconds since the request's first byte; < 0 = has not happened */
#define JOURNAL_MOMENT_MEMBER(name, meaning, phase) double name##_s;
	JOURNAL_MOMENTS(JOURNAL_MOMENT_MEMBER)
#undef JOURNAL_MOMENT_MEMBER
	double end_s;
#define JOURNAL_WAY_MEMBER(name, meaning) uint64_t name;
	JOURNAL_WAYS(JOURNAL_WAY_MEMBER)
#undef JOURNAL_WAY_MEMBER
};

/*
 * What the choice of one policy costs by the model of another. "own" is the policy that was in
 * force, "other" the one that was asked beside it or afterwards.
 */
struct journal_regret {
	double own_s;   /* by the own model: what the other's engine would have cost more */
	double other_s; /* by the other's model: what the chosen engine costs more */
	double ttft_s;  /* by the step model: predicted first token there minus the other's */
};

/* A shadow policy that would have chosen another engine; where it agrees there is no record. */
struct journal_shadow {
	struct journal_head head;
	uint64_t decision;   /* number of its record */
	uint64_t took_ns;    /* both policies priced, after the request had been sent */
	uint64_t comparable; /* each one's engine was a candidate of the other: `regret` is valid */
	struct journal_regret regret;
	struct policy_params params; /* the shadow's */
	uint8_t choice[offsetof(struct policy_choice, cost)];
};

/* A decision taken apart; the pointers lead into the record. */
struct journal_view {
	const struct journal_decision *decision;
	const struct journal_engine *names;
	const struct policy_engine *engines;
	struct policy_choice choice;
};

/* One field of one of the structures above or in the policy's headers. */
struct journal_field {
	const char *of, *name; /* "policy_request", "turn" */
	size_t offset, size, of_size;
	const char *type; /* "u32", "i32", "u64", "f32", "f64", "text", "bytes", "u64s", "u32s" */
};

enum { JOURNAL_LAYOUT_MAX = 16 * 1024 };

/* All of them, those of one structure together. */
const struct journal_field *journal_fields(unsigned *ret_nr);

/*
 * What records consist of, as text: each structure with its fields, each list of words whose
 * numbers are recorded. Returns the length (without the zero), cut to `size`.
 */
size_t journal_layout_text(char *buffer, size_t size);

/* That text's hash: what tells this build's records from another version's. */
uint64_t journal_layout(void);

/* Kind, version and layout. */
void journal_head_init(struct journal_head *head, enum journal_kind kind);

/* Bytes of a decision's record. */
size_t journal_decision_size(unsigned engines_nr);

/* Appends the arrays and the choice behind `into`, whose other fields the caller has set. Returns
 * the record's size, or 0 if it exceeds `room`. */
size_t journal_decision_write(struct journal_decision *into, size_t room,
			      const struct journal_engine *names,
			      const struct policy_engine *engines, unsigned engines_nr,
			      const struct policy_choice *choice);

/* 0; -EPROTO for a record that is none, is cut, or was written by another version. */
int journal_decision_read(const void *record, size_t size, struct journal_view *ret_view);
int journal_outcome_read(const void *record, size_t size, const struct journal_outcome **ret);

int journal_shadow_read(const void *record, size_t size, const struct journal_shadow **ret);

/* 1 if the record is of that kind and, unless id is NULL, of that request. */
int journal_is(const void *record, size_t size, enum journal_kind kind, const char *id);

/*
 * Decides again from the record. 0 with the fresh choice; 1 if it differs from the recorded one in
 * any byte (another build's policy, or damage).
 */
int journal_replay(const struct journal_view *view, struct policy_choice *ret_choice);

#endif
