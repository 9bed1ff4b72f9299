/*
 * Sessions: where each conversation's last turn ran, how long its prompt was, whether it moved.
 *
 * A session's key is a keyed hash (its secret lies in the section, so keys survive restarts) of the
 * API key's scope, the client's session id and the identity of system prompt + first user message:
 * sub-agents share an id, not a prefix. Where the client names no session the longest known prefix
 * does. Bounded, least recently used goes first, idle ones expire. No clock: the caller says when.
 * One writer; other processes may read.
 */
#ifndef TURNWARD_ROUTER_SESSION_SESSION_H
#define TURNWARD_ROUTER_SESSION_SESSION_H

#include <stddef.h>
#include <stdint.h>

#include "router/tokens/tokens.h"
#include "shm/table.h"

enum {
	SESSION_NO_ENGINE = 0xffff, /* as an engine's index */
	SESSION_MOVES_KEPT = 5,     /* turns of which it is remembered whether they moved */
	SESSION_INFER_BLOCKS = 512, /* blocks a turn may add and still be recognised: 256 KiB */
	SESSIONS_MAX = 1 << 20,     /* entries of a section */
};

#define SESSION_UNKNOWN UINT64_MAX /* of a count that was not reported */

struct session_section;

/* A process's own view of the section. */
struct sessions {
	struct session_section *section;
	struct table table; /* key -> struct session */
	struct table tails; /* chain hash of a prompt's last full block -> session key */
	uint64_t idle_ns;   /* older ones are gone; 0 = no limit */
};

/* Two independent halves: one finds the entry, the other proves that it is the right one. */
struct session_key {
	uint64_t key, check;
};

/* Where and when, in every form that is needed: ages from monotonic, times for people from wall. */
struct session_time {
	uint64_t ns;     /* CLOCK_MONOTONIC */
	uint64_t wall_s; /* since 1970 */
};

/* One session. Whole words: it lies in the region as it is. */
struct session {
	uint64_t check;
	uint64_t scope;              /* keyed hash of the API key */
	uint64_t engine;             /* stable index of the last dispatch's, or SESSION_NO_ENGINE */
	uint64_t epoch;              /* that engine's start id then, 0 = unknown */
	uint64_t turn;               /* of the last dispatch, from 1 */
	uint64_t class;              /* of the last dispatch, the policy's enum */
	uint64_t dispatches;         /* retries included */
	uint64_t blocks;             /* full content blocks of the last dispatched prompt */
	uint64_t chain;              /* hash of the last of these, 0 = none */
	uint64_t base_turn;          /* the turn that the next four speak of, 0 = none answered */
	uint64_t prompt_tokens;      /* exact; 0 = never reported */
	uint64_t completion_tokens;  /* SESSION_UNKNOWN if not reported */
	uint64_t cached_tokens;      /* SESSION_UNKNOWN if not reported */
	struct tokens_prompt prompt; /* what that same prompt was made of */
	double output_tokens; /* EWMA of completions: what the next one may bring, 0 = unknown */
	uint64_t first_ns, last_ns;
	uint64_t first_wall_s, last_wall_s;
	uint64_t moves, last_move_ns;
	uint64_t moved_turns; /* bit 0 = the last turn moved, bit 1 = the one before, ... */
};
static_assert(sizeof(struct session) % 8 == 0, "a table's payload");

/* What is sent now. */
struct session_dispatch {
	uint32_t engine;
	uint64_t epoch;
	uint64_t turn;
	uint64_t class;
	const uint64_t *chain; /* of the prompt; may be NULL when blocks is 0 */
	uint32_t blocks;
};

/* What came back; the counts of the prompt are those scanned when it was sent. */
struct session_result {
	uint64_t turn;
	uint64_t prompt_tokens;     /* 0 = not reported */
	uint64_t completion_tokens; /* SESSION_UNKNOWN = not reported */
	uint64_t cached_tokens;     /* SESSION_UNKNOWN = not reported */
	struct tokens_prompt prompt;
};

struct session_totals {
	uint64_t entries, capacity, evicted, created, moves, inferred;
};

size_t sessions_size(uint64_t entries);

/*
 * Attaches as the writer. All-zero memory becomes empty and takes `secret` (random; not needed, and
 * not used, where a predecessor's content is kept). ret_dropped (may be NULL): torn entries
 * dropped. -EPROTO: another shape (sessions_clear() is the way out); -EINVAL: too small or
 * unaligned.
 */
int sessions_attach(struct sessions *ret_sessions, void *mem, size_t size, uint64_t entries,
		    uint64_t secret, uint64_t *ret_dropped);
int sessions_view(struct sessions *ret_sessions, const void *mem, size_t size, uint64_t entries);
int sessions_clear(struct sessions *ret_sessions, void *mem, size_t size, uint64_t entries,
		   uint64_t secret);

/*
 * Fills a fresh section (zero memory) with what an older one of another size holds, secret and all;
 * of too many the youngest stay. -EPROTO: the old memory is no such section.
 */
int sessions_move(void *mem, size_t size, uint64_t entries, const void *old_mem, size_t old_size);

/* Keyed hash of anything that must not lie readable in the region (API keys); never 0. */
uint64_t sessions_hash(const struct sessions *sessions, const void *data, size_t len);

/* The key of a session that the client names. scope = sessions_hash(API key), 0 without one;
 * identity = hash of system prompt and first user message. */
struct session_key sessions_key(const struct sessions *sessions, uint64_t scope, const void *id,
				size_t id_len, uint64_t identity);

/*
 * The key where the client names none: the session whose last prompt is the longest known beginning
 * of this one; if that session has gone on another way (a fork), or there is none, a new key. The
 * last SESSION_INFER_BLOCKS blocks are looked at. Prompts without a full block go by identity.
 */
struct session_key sessions_infer(struct sessions *sessions, uint64_t scope, uint64_t identity,
				  const uint64_t *chain, uint32_t n, uint64_t now_ns);

/* Begins to fetch what session_find() will read first; and, once that is there, the rest. */
void session_prefetch(const struct sessions *sessions, struct session_key key);
void session_prefetch_entry(const struct sessions *sessions, struct session_key key);

/* 0, -ENOENT (unknown or idle too long). ret_session may be NULL. Any process. */
int session_find(const struct sessions *sessions, struct session_key key, uint64_t now_ns,
		 struct session *ret_session);

/*
 * The engine of the session's last turn, or SESSION_NO_ENGINE: never sent, no such engine any more,
 * or that engine has restarted since (epochs[i] = start id now, 0 = unknown, which proves nothing).
 */
uint32_t session_home(const struct session *session, const uint64_t *epochs, uint32_t engines);

/* 1 if the prompt continues the session's last one block by block: its counts may be built on. */
int session_continues(const struct session *session, const uint64_t *chain, uint32_t n);

/* Moves among the last SESSION_MOVES_KEPT turns. */
uint32_t session_recent_moves(const struct session *session);

/*
 * What a dispatch and an answer change of an entry, wherever it lies; the two functions behind them
 * do the same to the table's. session_dispatched() returns 1 if the home moved.
 */
void session_init(struct session *ret_session, struct session_time now);
int session_dispatched(struct session *session, const struct session_dispatch *dispatch,
		       struct session_time now);
void session_answered(struct session *session, const struct session_result *result,
		      struct session_time now);

/* A request leaves for an engine; creates the session. Returns 1 if its home moved. A retry of the
 * same turn calls it again. */
int session_note_dispatch(struct sessions *sessions, struct session_key key, uint64_t scope,
			  const struct session_dispatch *dispatch, struct session_time now);

/*
 * That dispatch came to nothing: the engine did not take it. The session is again where it was
 * `before` (NULL: it was not known), unless another request of it has left meanwhile. Its results
 * stay.
 */
void session_undo_dispatch(struct sessions *sessions, struct session_key key,
			   const struct session *before, uint32_t engine, uint64_t now_ns);

/* A request was answered. A result older than the one already noted changes only the averages; one
 * whose session has been evicted meanwhile is dropped. */
void session_note_result(struct sessions *sessions, struct session_key key,
			 const struct session_result *result, struct session_time now);

/* Every session of this engine loses its home: its stable index will serve another engine. Walks
 * the whole table: for reloads. Returns how many there were. */
uint64_t sessions_forget_engine(struct sessions *sessions, uint32_t engine);

/* Walks living sessions, *cursor from 0; 1 with a copy, 0 at the end. Any process. */
int sessions_next(const struct sessions *sessions, uint64_t *cursor, uint64_t now_ns,
		  struct session_key *ret_key, struct session *ret_session);

void sessions_totals(const struct sessions *sessions, struct session_totals *ret_totals);

#endif
