/* The session table: one entry per conversation, found by name or by the beginning of its prompt.
 */
#include "router/session/session.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <xxhash.h>

#include "shm/words.h"

enum {
	TAILS_PER_SESSION = 2,     /* the last prompt's and the one before it, for forks */
	TAILS_AHEAD = 8,           /* look-ups in flight */
	OUTPUT_ALPHA_PERCENT = 30, /* weight of the newest completion in the expected one */
};

#define MAGIC        0x316e6f6973736553ull /* "Session1" */
#define GET(a)       atomic_load_explicit(&(a), memory_order_acquire)
#define PUT(a, v)    word_set(&(a), (v))
#define COUNT(a, by) PUT(a, GET(a) + (by))

struct session_section {
	_Alignas(TABLE_ALIGN) _Atomic uint64_t magic; /* written last, cleared first */
	uint64_t secret;
	uint64_t entries; /* as asked for */
	_Atomic uint64_t created, moves, inferred;
};
static_assert(sizeof(struct session_section) == TABLE_ALIGN, "the tables behind it are aligned");

/* What the second table says about a prompt's last full block. */
struct tail {
	struct session_key session;
	uint64_t scope;
	uint64_t blocks;
};
static_assert(sizeof(struct tail) % 8 == 0, "a table's payload");

static size_t sessions_part(uint64_t entries)
{
	size_t size = table_size(entries, sizeof(struct session));

	return (size + TABLE_ALIGN - 1) / TABLE_ALIGN * TABLE_ALIGN;
}

static size_t tails_part(uint64_t entries)
{
	return table_size(entries * TAILS_PER_SESSION, sizeof(struct tail));
}

size_t sessions_size(uint64_t entries)
{
	return sizeof(struct session_section) + sessions_part(entries) + tails_part(entries);
}

static int shape_checked(const void *mem, size_t size, uint64_t entries)
{
	if ((uintptr_t)mem % TABLE_ALIGN || entries == 0 || entries > SESSIONS_MAX)
		return -EINVAL;
	return size < sessions_size(entries) ? -EINVAL : 0;
}

static uint8_t *table_at(const struct session_section *section)
{
	return (uint8_t *)(uintptr_t)(section + 1);
}

int sessions_clear(struct sessions *ret_sessions, void *mem, size_t size, uint64_t entries,
		   uint64_t secret)
{
	struct session_section *section = mem;
	struct sessions sessions = { .section = section };
	int err = shape_checked(mem, size, entries);

	if (err)
		return err;
	PUT(section->magic, 0);
	err = table_clear(&sessions.table, table_at(section), sessions_part(entries),
			  sizeof(struct session));
	if (err)
		return err;
	err = table_clear(&sessions.tails, table_at(section) + sessions_part(entries),
			  tails_part(entries), sizeof(struct tail));
	if (err)
		return err;
	section->secret = secret;
	section->entries = entries;
	PUT(section->created, 0);
	PUT(section->moves, 0);
	PUT(section->inferred, 0);
	PUT(section->magic, MAGIC);
	*ret_sessions = sessions;
	return 0;
}

int sessions_attach(struct sessions *ret_sessions, void *mem, size_t size, uint64_t entries,
		    uint64_t secret, uint64_t *ret_dropped)
{
	struct session_section *section = mem;
	struct sessions sessions = { .section = section };
	uint64_t dropped = 0, dropped_tails = 0;
	int err = shape_checked(mem, size, entries);

	if (err)
		return err;
	if (GET(section->magic) == 0) { /* new, or its maker died while clearing it */
		err = sessions_clear(ret_sessions, mem, size, entries, secret);
	} else if (GET(section->magic) != MAGIC || section->entries != entries) {
		err = -EPROTO;
	} else {
		err = table_attach(&sessions.table, table_at(section), sessions_part(entries),
				   sizeof(struct session), &dropped);
		if (!err)
			err = table_attach(
				&sessions.tails, table_at(section) + sessions_part(entries),
				tails_part(entries), sizeof(struct tail), &dropped_tails);
		if (!err)
			*ret_sessions = sessions;
	}
	if (!err && ret_dropped)
		*ret_dropped = dropped + dropped_tails;
	return err;
}

int sessions_view(struct sessions *ret_sessions, const void *mem, size_t size, uint64_t entries)
{
	const struct session_section *section = mem;
	struct sessions sessions = { .section = (struct session_section *)(uintptr_t)mem };
	int err = shape_checked(mem, size, entries);

	if (err)
		return err;
	if (GET(section->magic) != MAGIC || section->entries != entries)
		return -EPROTO;
	err = table_view(&sessions.table, table_at(section), sessions_part(entries),
			 sizeof(struct session));
	if (!err)
		err = table_view(&sessions.tails, table_at(section) + sessions_part(entries),
				 tails_part(entries), sizeof(struct tail));
	if (!err)
		*ret_sessions = sessions;
	return err;
}

/* ------- keys */

static uint64_t not_zero(uint64_t hash)
{
	return hash ? hash : 1;
}

int sessions_move(void *mem, size_t size, uint64_t entries, const void *old_mem, size_t old_size)
{
	const struct session_section *old = old_mem;
	struct sessions from, to;
	int err;

	if (old_size < sizeof(*old))
		return -EPROTO;
	err = sessions_view(&from, old_mem, old_size, old->entries);
	if (!err)
		err = sessions_clear(&to, mem, size, entries, old->secret);
	if (err)
		return err;
	table_copy(&to.table, &from.table);
	table_copy(&to.tails, &from.tails);
	return 0;
}

uint64_t sessions_hash(const struct sessions *sessions, const void *data, size_t len)
{
	assert(sessions->section != NULL);
	return not_zero(XXH3_64bits_withSeed(data, len, sessions->section->secret));
}

static struct session_key key_of(const struct sessions *sessions, const uint64_t *words,
				 size_t size)
{
	XXH128_hash_t hash = XXH3_128bits_withSeed(words, size, sessions->section->secret);

	return (struct session_key){ not_zero(hash.low64), hash.high64 };
}

struct session_key sessions_key(const struct sessions *sessions, uint64_t scope, const void *id,
				size_t id_len, uint64_t identity)
{
	XXH128_hash_t name = XXH3_128bits_withSeed(id, id_len, sessions->section->secret);
	uint64_t words[] = { 1, scope, name.low64, name.high64, identity };

	return key_of(sessions, words, sizeof words);
}

static uint64_t tail_key(const struct sessions *sessions, uint64_t scope, uint64_t chain)
{
	uint64_t words[] = { 2, scope, chain };

	return key_of(sessions, words, sizeof words).key;
}

static int tail_find(const struct sessions *sessions, uint64_t key, uint64_t scope, uint32_t blocks,
		     struct tail *ret_tail)
{
	struct tail tail;

	if (table_read(&sessions->tails, key, &tail, NULL))
		return -ENOENT;
	if (tail.scope != scope || tail.blocks != blocks)
		return -ENOENT;
	*ret_tail = tail;
	return 0;
}

/* The session that the last full blocks lead to: 0 with its key, -ENOENT if none does, -EEXIST if
 * that one has gone on another way and this prompt is its sibling. */
static int infer_by_tail(const struct sessions *sessions, uint64_t scope, const uint64_t *chain,
			 uint32_t n, uint64_t now_ns, struct session_key *ret_key)
{
	uint32_t last = n > SESSION_INFER_BLOCKS ? n - SESSION_INFER_BLOCKS : 0;
	uint64_t keys[TAILS_AHEAD];
	uint32_t asked = n; /* blocks above it have been asked for */
	struct session session;
	struct tail tail;

	for (uint32_t blocks = n; blocks > last; blocks--) {
		for (; asked > last && blocks - asked < TAILS_AHEAD; asked--) {
			keys[asked % TAILS_AHEAD] = tail_key(sessions, scope, chain[asked - 1]);
			table_prefetch(&sessions->tails, keys[asked % TAILS_AHEAD]);
		}
		if (tail_find(sessions, keys[blocks % TAILS_AHEAD], scope, blocks, &tail))
			continue;
		if (session_find(sessions, tail.session, now_ns, &session))
			continue;
		if (!session_continues(&session, chain, n))
			return -EEXIST;
		*ret_key = tail.session;
		return 0;
	}
	return -ENOENT;
}

struct session_key sessions_infer(struct sessions *sessions, uint64_t scope, uint64_t identity,
				  const uint64_t *chain, uint32_t n, uint64_t now_ns)
{
	uint64_t begun[] = { 3, scope, identity, 0, 0 };
	uint64_t fresh[] = { 3, scope, identity, n ? chain[n - 1] : 0, 0 };
	struct session_key key;
	struct session session;
	int err = infer_by_tail(sessions, scope, chain, n, now_ns, &key);

	if (err == -ENOENT && n) { /* its last prompt may have been shorter than a block */
		key = key_of(sessions, begun, sizeof begun);
		if (!session_find(sessions, key, now_ns, &session) && session.blocks == 0)
			err = 0;
	}
	if (!err && sessions->table.writable)
		COUNT(sessions->section->inferred, 1);
	if (!err)
		return key;
	if (err == -EEXIST) /* siblings may be as long as each other and need keys of their own */
		fresh[4] = GET(sessions->section->created) + 1;
	return key_of(sessions, fresh, sizeof fresh);
}

/* ------- finding */

static int expired(const struct sessions *sessions, const struct session *session, uint64_t now_ns)
{
	return sessions->idle_ns && now_ns > session->last_ns &&
	       now_ns - session->last_ns > sessions->idle_ns;
}

void session_prefetch(const struct sessions *sessions, struct session_key key)
{
	table_prefetch(&sessions->table, key.key);
}

void session_prefetch_entry(const struct sessions *sessions, struct session_key key)
{
	table_prefetch_entry(&sessions->table, key.key);
}

int session_find(const struct sessions *sessions, struct session_key key, uint64_t now_ns,
		 struct session *ret_session)
{
	struct session session;

	if (table_read(&sessions->table, key.key, &session, NULL))
		return -ENOENT;
	if (session.check != key.check || expired(sessions, &session, now_ns))
		return -ENOENT;
	if (ret_session)
		*ret_session = session;
	return 0;
}

uint32_t session_home(const struct session *session, const uint64_t *epochs, uint32_t engines)
{
	uint64_t engine = session->engine;

	if (engine >= engines)
		return SESSION_NO_ENGINE;
	if (session->epoch && epochs[engine] && session->epoch != epochs[engine])
		return SESSION_NO_ENGINE;
	return (uint32_t)engine;
}

int session_continues(const struct session *session, const uint64_t *chain, uint32_t n)
{
	if (session->blocks == 0)
		return 1; /* too short to tell: nothing speaks against it */
	return session->blocks <= n && chain[session->blocks - 1] == session->chain;
}

uint32_t session_recent_moves(const struct session *session)
{
	uint64_t kept = session->moved_turns & ((1u << SESSION_MOVES_KEPT) - 1);

	return (uint32_t)__builtin_popcountll(kept);
}

/* ------- noting */

static void tail_note(struct sessions *sessions, struct session_key key,
		      const struct session *session, uint64_t now_ns)
{
	struct tail tail = { key, session->scope, session->blocks };

	if (session->blocks)
		table_put(&sessions->tails, tail_key(sessions, session->scope, session->chain),
			  now_ns, &tail, NULL);
}

void session_init(struct session *ret_session, struct session_time now)
{
	*ret_session = (struct session){ .engine = SESSION_NO_ENGINE,
					 .completion_tokens = SESSION_UNKNOWN,
					 .cached_tokens = SESSION_UNKNOWN,
					 .first_ns = now.ns,
					 .first_wall_s = now.wall_s };
}

/* Bit 0 stands for the newest turn; a retry or a second request of the same turn adds to it. */
static void moves_note(struct session *session, uint64_t turn, int moved, uint64_t now_ns)
{
	uint64_t turns = turn > session->turn ? turn - session->turn : 0;

	session->moved_turns = turns < SESSION_MOVES_KEPT ? session->moved_turns << turns : 0;
	session->moved_turns |= (uint64_t)moved;
	session->moved_turns &= (1u << SESSION_MOVES_KEPT) - 1;
	if (moved) {
		session->moves++;
		session->last_move_ns = now_ns;
	}
}

int session_dispatched(struct session *session, const struct session_dispatch *dispatch,
		       struct session_time now)
{
	int moved = session->engine != SESSION_NO_ENGINE && session->engine != dispatch->engine;

	assert(dispatch->engine < SESSION_NO_ENGINE);
	assert(dispatch->blocks == 0 || dispatch->chain != NULL);
	moves_note(session, dispatch->turn, moved, now.ns);
	session->engine = dispatch->engine;
	session->epoch = dispatch->epoch;
	session->turn = dispatch->turn;
	session->class = dispatch->class;
	session->dispatches++;
	session->blocks = dispatch->blocks;
	session->chain = dispatch->blocks ? dispatch->chain[dispatch->blocks - 1] : 0;
	session->last_ns = now.ns;
	session->last_wall_s = now.wall_s;
	return moved;
}

int session_note_dispatch(struct sessions *sessions, struct session_key key, uint64_t scope,
			  const struct session_dispatch *dispatch, struct session_time now)
{
	struct session session;
	int moved;

	if (session_find(sessions, key, now.ns, &session)) {
		session_init(&session, now);
		session.check = key.check;
		session.scope = scope;
		COUNT(sessions->section->created, 1);
	}
	moved = session_dispatched(&session, dispatch, now);
	table_put(&sessions->table, key.key, now.ns, &session, NULL);
	tail_note(sessions, key, &session, now.ns);
	if (moved)
		COUNT(sessions->section->moves, 1);
	return moved;
}

void session_undo_dispatch(struct sessions *sessions, struct session_key key,
			   const struct session *before, uint32_t engine, uint64_t now_ns)
{
	static const struct session unknown = { .engine = SESSION_NO_ENGINE };
	struct session session;

	if (!before)
		before = &unknown;
	if (session_find(sessions, key, now_ns, &session) || session.engine != engine ||
	    session.dispatches != before->dispatches + 1)
		return;
	session.engine = before->engine;
	session.epoch = before->epoch;
	session.turn = before->turn;
	session.class = before->class;
	session.dispatches = before->dispatches;
	session.blocks = before->blocks;
	session.chain = before->chain;
	session.moves = before->moves;
	session.last_move_ns = before->last_move_ns;
	session.moved_turns = before->moved_turns;
	table_put(&sessions->table, key.key, now_ns, &session, NULL);
}

void session_answered(struct session *session, const struct session_result *result,
		      struct session_time now)
{
	double output = (double)result->completion_tokens;

	if (result->completion_tokens != SESSION_UNKNOWN) {
		double weight = session->output_tokens > 0 ? OUTPUT_ALPHA_PERCENT / 100.0 : 1;

		session->output_tokens += weight * (output - session->output_tokens);
	}
	/* An older answer than the one noted is late; unless the client has rewound the session. */
	if (result->prompt_tokens &&
	    (result->turn >= session->base_turn || session->turn < session->base_turn)) {
		session->base_turn = result->turn;
		session->prompt_tokens = result->prompt_tokens;
		session->completion_tokens = result->completion_tokens;
		session->cached_tokens = result->cached_tokens;
		session->prompt = result->prompt;
	}
	session->last_ns = now.ns;
	session->last_wall_s = now.wall_s;
}

void session_note_result(struct sessions *sessions, struct session_key key,
			 const struct session_result *result, struct session_time now)
{
	struct session session;

	if (session_find(sessions, key, now.ns, &session))
		return;
	session_answered(&session, result, now);
	table_put(&sessions->table, key.key, now.ns, &session, NULL);
}

uint64_t sessions_forget_engine(struct sessions *sessions, uint32_t engine)
{
	uint64_t cursor = 0, key, stamp, count = 0;
	struct session session;

	while (table_next(&sessions->table, &cursor, &key, &stamp, &session)) {
		if (session.engine != engine)
			continue;
		session.engine = SESSION_NO_ENGINE;
		table_put(&sessions->table, key, stamp, &session, NULL);
		count++;
	}
	return count;
}

/* ------- looking in */

int sessions_next(const struct sessions *sessions, uint64_t *cursor, uint64_t now_ns,
		  struct session_key *ret_key, struct session *ret_session)
{
	struct session session;
	uint64_t key;

	while (table_next(&sessions->table, cursor, &key, NULL, &session)) {
		if (expired(sessions, &session, now_ns))
			continue;
		if (ret_key)
			*ret_key = (struct session_key){ key, session.check };
		if (ret_session)
			*ret_session = session;
		return 1;
	}
	return 0;
}

void sessions_totals(const struct sessions *sessions, struct session_totals *ret_totals)
{
	*ret_totals = (struct session_totals){
		.entries = sessions->table.used,
		.capacity = sessions->table.buckets * TABLE_WAYS,
		.evicted = sessions->table.evicted,
		.created = GET(sessions->section->created),
		.moves = GET(sessions->section->moves),
		.inferred = GET(sessions->section->inferred),
	};
}
