/* Reading sessions, and making the text of their prompts; see sessions.h for what holds of it. */
#include "bench/sessions.h"
#include "bench/grow.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/jread.h"
#include "shm/base/scoped.h"

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static uint64_t key_of(uint64_t a, uint64_t b)
{
	return mix(mix(a + 0x9e3779b97f4a7c15ull) ^ (b + 0xd1b54a32d192ed03ull));
}

/* ---- reading ---- */

static int complain(char *why, size_t line, const char *format, ...)
{
	va_list args;
	int n = snprintf(why, SESSIONS_WHY_MAX, "line %zu: ", line);

	va_start(args, format);
	vsnprintf(why + n, (size_t)(SESSIONS_WHY_MAX - n), format, args);
	va_end(args);
	return -EINVAL;
}

/* One entry of a list of ids: an id, or [first, last]. */
static int read_range(const struct jread *entry, struct sessions_range *ret_range)
{
	uint64_t first, last;

	if (entry->type == JREAD_NUMBER) {
		if (jread_u64(entry, &first) < 0)
			return -EINVAL;
		last = first;
	} else if (jread_get_u64(entry, "[0]", &first) < 0 ||
		   jread_get_u64(entry, "[1]", &last) < 0) {
		return -EINVAL;
	}
	if (last > UINT32_MAX || first > last)
		return -EINVAL;
	*ret_range = (struct sessions_range){ .first = (uint32_t)first, .last = (uint32_t)last };
	return 0;
}

static int read_ranges(struct sessions *s, const struct jread *list, struct sessions_turn *turn)
{
	struct jread_walk walk;

	turn->range = (uint32_t)s->ranges;
	turn->ranges = 0;
	jread_walk_begin(&walk, list);
	while (jread_walk_next(&walk) > 0) {
		if (grow((void **)&s->range, s->ranges, &s->ranges_room, sizeof(*s->range)) < 0)
			return -ENOMEM;
		if (read_range(&walk.value, &s->range[s->ranges]) < 0)
			return -EINVAL;
		s->ranges++;
		turn->ranges++;
	}
	return 0;
}

static uint64_t blocks_of(const struct sessions *s, const struct sessions_turn *turn)
{
	uint64_t blocks = 0;

	for (uint32_t i = 0; i < turn->ranges; i++)
		blocks += s->range[turn->range + i].last - s->range[turn->range + i].first + 1;
	return blocks;
}

/* The id of a prompt's n-th block; 0 for the last one, which is not full and has none. */
static uint32_t block_at(const struct sessions *s, const struct sessions_turn *turn, uint64_t n)
{
	for (uint32_t i = 0; i < turn->ranges; i++) {
		const struct sessions_range *range = &s->range[turn->range + i];
		uint64_t blocks = (uint64_t)range->last - range->first + 1;

		if (n < blocks)
			return range->first + (uint32_t)n;
		n -= blocks;
	}
	return 0;
}

static uint32_t kept_tokens(const struct sessions *s, const struct session_trace *session,
			    const struct sessions_turn *before, const struct sessions_turn *turn)
{
	uint64_t had = blocks_of(s, before), common = 0;

	while (common < had && block_at(s, before, common) == block_at(s, turn, common))
		common++;
	return common == had ? UINT32_MAX : (uint32_t)common * session->block;
}

/* [t, prompt, answer, think, service, ids] */
static int read_turn(struct sessions *s, const struct jread *row,
		     const struct sessions_limits *limits, struct sessions_turn *ret_turn)
{
	uint64_t prompt, answer;
	struct jread ids;
	double think_s;

	if (jread_get_u64(row, "[1]", &prompt) < 0 || jread_get_u64(row, "[2]", &answer) < 0 ||
	    jread_get_f64(row, "[3]", &think_s) < 0 || jread_get(row, "[5]", &ids) < 0)
		return -EINVAL;
	if (prompt < 1 || prompt > UINT32_MAX / 8 || answer > UINT32_MAX / 8 || !(think_s >= 0))
		return -EINVAL;
	*ret_turn = (struct sessions_turn){ .prompt_tokens = (uint32_t)prompt,
					    .output_tokens = answer ? (uint32_t)answer : 1 };
	ret_turn->think_s = think_s < limits->think_max_s ? think_s : limits->think_max_s;
	return read_ranges(s, &ids, ret_turn);
}

static int read_turns(struct sessions *s, const struct jread *rows, struct session_trace *session,
		      const struct sessions_limits *limits)
{
	struct sessions_turn turn;
	struct jread_walk walk;
	int err;

	jread_walk_begin(&walk, rows);
	while (session->turns < limits->turns_max && jread_walk_next(&walk) > 0) {
		err = read_turn(s, &walk.value, limits, &turn);
		if (err)
			return err;
		if (turn.prompt_tokens + turn.output_tokens > limits->context_max)
			break;
		if (session->turns > 0)
			turn.kept_tokens = kept_tokens(s, session, &s->turn[s->turns - 1], &turn);
		if (grow((void **)&s->turn, s->turns, &s->turns_room, sizeof(*s->turn)) < 0)
			return -ENOMEM;
		s->turn[s->turns++] = turn;
		session->turns++;
	}
	return 0;
}

static uint64_t text_key(const char *text, size_t len)
{
	uint64_t hash = 0xcbf29ce484222325ull;

	for (size_t i = 0; i < len; i++)
		hash = (hash ^ (uint8_t)text[i]) * 0x100000001b3ull;
	return mix(hash);
}

static int read_session(struct sessions *s, const char *text, size_t len,
			const struct sessions_limits *limits, size_t line, char *why)
{
	uint64_t tools = 0, system = 0, block = SESSIONS_BLOCK;
	size_t turns = s->turns, ranges = s->ranges;
	struct jread root, id, rows;

	if (jread_open(&root, text, len) < 0 || root.type != JREAD_OBJECT)
		return complain(why, line, "not a JSON object");
	if (jread_get(&root, "id", &id) < 0 || jread_get(&root, "r", &rows) < 0 ||
	    rows.type != JREAD_ARRAY)
		return complain(why, line, "a session needs \"id\" and a list \"r\"");
	jread_get_u64(&root, "bs", &block);
	jread_get_u64(&root, "tool_tokens", &tools);
	jread_get_u64(&root, "system_tokens", &system);
	if (block < 1 || block > 1 << 20 || tools + system > UINT32_MAX / 8)
		return complain(why, line, "\"bs\" or a number of tokens is out of range");
	struct session_trace session = { .key = text_key(id.text, id.len),
					 .system_tokens = (uint32_t)(tools + system),
					 .system_key = key_of(tools, system),
					 .block = (uint32_t)block,
					 .turn = (uint32_t)turns };
	int err = read_turns(s, &rows, &session, limits);
	if (err == -EINVAL)
		return complain(why, line,
				"turn %u is not [t, prompt, answer, think, service, "
				"ids]",
				session.turns + 1);
	if (err)
		return err;
	if (session.turns == 0 || s->turn[turns].prompt_tokens > limits->first_prompt_max) {
		s->turns = turns;
		s->ranges = ranges;
		return 0;
	}
	if (grow((void **)&s->session, s->sessions, &s->sessions_room, sizeof(*s->session)) < 0)
		return -ENOMEM;
	s->session[s->sessions++] = session;
	return 0;
}

int sessions_read(struct sessions *ret_sessions, const char *path,
		  const struct sessions_limits *limits, char why[SESSIONS_WHY_MAX])
{
	scoped(free_drop) char *line = NULL;
	size_t room = 0, number = 0;
	ssize_t len;
	int err = 0;

	*ret_sessions = (struct sessions){ 0 };
	scoped(file_drop) FILE *file = fopen(path, "re");
	if (!file) {
		err = -errno;
		snprintf(why, SESSIONS_WHY_MAX, "%s", strerror(-err));
		return err;
	}
	while (!err && (len = getline(&line, &room, file)) > 0) {
		number++;
		if (len > 1)
			err = read_session(ret_sessions, line, (size_t)len, limits, number, why);
	}
	if (!err && ret_sessions->sessions == 0) {
		snprintf(why, SESSIONS_WHY_MAX, "no session fits the limits");
		return -EINVAL;
	}
	if (err == -ENOMEM)
		snprintf(why, SESSIONS_WHY_MAX, "out of memory");
	return err;
}

void sessions_free(struct sessions *s)
{
	free(s->session);
	free(s->turn);
	free(s->range);
	*s = (struct sessions){ 0 };
}

/* ---- text ---- */

void sessions_word(uint64_t key, uint32_t index, char ret_word[TOKENIZER_WORD_BYTES])
{
	uint32_t number = (uint32_t)mix(key + index * 0x9e3779b97f4a7c15ull) % TOKENIZER_WORDS;

	ret_word[0] = ' ';
	ret_word[1] = 'w';
	for (int i = 0; i < 3; i++)
		ret_word[2 + i] = (char)('a' + (number >> (8 - 4 * i) & 15));
}

void talk_init(struct talk *talk, const struct sessions *sessions, size_t session, uint32_t copy)
{
	assert(session < sessions->sessions);
	*talk = (struct talk){ .sessions = sessions, .trace = &sessions->session[session] };
	talk->key = key_of(talk->trace->key, copy);
}

void talk_fini(struct talk *talk)
{
	free(talk->text);
	free(talk->message);
	talk->text = NULL;
	talk->message = NULL;
}

const struct sessions_turn *talk_turn(const struct talk *talk)
{
	assert(talk->turn > 0);
	return &talk->sessions->turn[talk->trace->turn + talk->turn - 1];
}

static int reserve(struct talk *talk, size_t more)
{
	size_t room = talk->room ? talk->room : 65536;

	while (room - talk->len < more)
		room *= 2;
	if (room == talk->room)
		return 0;
	char *grown = realloc(talk->text, room);
	if (!grown)
		return -ENOMEM;
	talk->text = grown;
	talk->room = room;
	return 0;
}

static const char *const role_names[] = { "system", "user", "assistant" };

/* Opens a message and makes room for its text; message_close() ends it. */
static int message_open(struct talk *talk, enum talk_role role, uint32_t tokens, size_t text_len)
{
	size_t room = talk->messages_room;

	if (grow((void **)&talk->message, talk->messages, &room, sizeof(*talk->message)) < 0 ||
	    reserve(talk, text_len + 64) < 0)
		return -ENOMEM;
	talk->messages_room = (uint32_t)room;
	if (talk->messages > 0)
		talk->text[talk->len++] = ',';
	struct talk_message *m = &talk->message[talk->messages++];
	*m = (struct talk_message){ .at = (uint32_t)talk->len,
				    .first = talk->tokens,
				    .tokens = tokens,
				    .role = (uint8_t)role };
	talk->len += (size_t)snprintf(talk->text + talk->len, 64, "{\"role\":\"%s\",\"content\":\"",
				      role_names[role]);
	m->text_at = (uint32_t)talk->len;
	return 0;
}

static void message_close(struct talk *talk)
{
	struct talk_message *m = &talk->message[talk->messages - 1];

	m->text_len = (uint32_t)talk->len - m->text_at;
	memcpy(talk->text + talk->len, "\"}", 2);
	talk->len += 2;
	talk->tokens = m->first + m->tokens;
}

/* Text of the prompt's positions from here on: each word follows from its block's id and place. */
static int add_words(struct talk *talk, enum talk_role role, uint32_t tokens)
{
	const struct sessions_turn *turn = talk_turn(talk);
	uint32_t block = talk->trace->block, words = tokens - SESSIONS_FRAME;
	uint64_t key = talk->trace->system_key, before = UINT64_MAX;
	int err = message_open(talk, role, tokens, (size_t)words * TOKENIZER_WORD_BYTES);

	if (err)
		return err;
	for (uint32_t i = 0; i < words; i++) {
		uint32_t at = talk->tokens + i;

		if (role != TALK_SYSTEM && at / block != before) {
			uint32_t id = block_at(talk->sessions, turn, at / block);

			before = at / block;
			key = key_of(talk->key, id ? id : (uint64_t)talk->turn << 32 | before);
		}
		sessions_word(key, role == TALK_SYSTEM ? i : at % block, talk->text + talk->len);
		talk->len += TOKENIZER_WORD_BYTES;
	}
	message_close(talk);
	return 0;
}

static int add_answer(struct talk *talk, const char *answer, size_t len, uint32_t had,
		      uint32_t tokens)
{
	size_t skip = had > tokens ? (size_t)((double)len / had * (had - tokens)) : 0;

	/* A space is the only place where no escape can be cut; words of five bytes fall on it. */
	while (skip > 0 && skip < len && answer[skip] != ' ')
		skip++;
	int err = message_open(talk, TALK_ASSISTANT, tokens + SESSIONS_FRAME, len - skip);
	if (err)
		return err;
	if (len > skip)
		memcpy(talk->text + talk->len, answer + skip, len - skip);
	talk->len += len - skip;
	message_close(talk);
	return 0;
}

static void drop_last(struct talk *talk)
{
	const struct talk_message *m = &talk->message[--talk->messages];

	talk->tokens = m->first;
	talk->len = m->at - (talk->messages > 0); /* the comma before it goes, too */
}

/* Takes away what lies beyond `tokens`; the system prompt stays, an answer goes whole. */
static void cut(struct talk *talk, uint32_t tokens)
{
	while (talk->messages > 1 && talk->tokens > tokens) {
		struct talk_message *m = &talk->message[talk->messages - 1];

		if (m->role != TALK_USER || m->first + SESSIONS_MESSAGE_MIN > tokens) {
			drop_last(talk);
			continue;
		}
		m->tokens = tokens - m->first;
		talk->len =
			m->text_at + (size_t)(m->tokens - SESSIONS_FRAME) * TOKENIZER_WORD_BYTES;
		message_close(talk);
	}
}

static int first_turn(struct talk *talk)
{
	uint32_t all = talk_turn(talk)->prompt_tokens, system = talk->trace->system_tokens;
	const uint32_t least = SESSIONS_MESSAGE_MIN + SESSIONS_OPENING;

	if (system + least > all)
		system = all > least ? all - least : 0;
	int err = system >= SESSIONS_MESSAGE_MIN ? add_words(talk, TALK_SYSTEM, system) : 0;
	if (err)
		return err;
	uint32_t rest = all > talk->tokens + least ? all - talk->tokens - SESSIONS_OPENING
						   : SESSIONS_MESSAGE_MIN;
	return add_words(talk, TALK_USER, rest);
}

/* The tokens that the prompt still has room for. */
static uint32_t room_of(const struct talk *talk)
{
	uint32_t all = talk_turn(talk)->prompt_tokens;

	return all > talk->tokens + SESSIONS_OPENING ? all - talk->tokens - SESSIONS_OPENING : 0;
}

int talk_next(struct talk *talk, const char *answer, size_t len, uint32_t answer_tokens)
{
	uint32_t before = talk->tokens;
	int err = 0;

	if (talk->turn == talk->trace->turns)
		return -ENODATA;
	talk->turn++;
	if (talk->turn == 1)
		return first_turn(talk);
	bool goes_on = talk_turn(talk)->prompt_tokens > before + 2 * SESSIONS_MESSAGE_MIN;
	cut(talk, talk_turn(talk)->kept_tokens);
	if (goes_on && before - talk->tokens >= SESSIONS_MESSAGE_MIN)
		err = add_words(talk, TALK_USER, before - talk->tokens); /* rewritten */
	uint32_t least = SESSIONS_MESSAGE_MIN + SESSIONS_FRAME + 1, room = room_of(talk);
	if (!err && goes_on && answer_tokens > 0 && room >= least) {
		uint32_t fits = room - SESSIONS_MESSAGE_MIN - SESSIONS_FRAME;

		err = add_answer(talk, answer, len, answer_tokens,
				 answer_tokens < fits ? answer_tokens : fits);
	}
	room = room_of(talk);
	return err ? err
		   : add_words(talk, TALK_USER,
			       room > SESSIONS_MESSAGE_MIN ? room : SESSIONS_MESSAGE_MIN);
}

int talk_ids(const struct talk *talk, struct tokenizer_ids *ids)
{
	int err = 0;

	for (uint32_t i = 0; i < talk->messages && !err; i++) {
		const struct talk_message *m = &talk->message[i];
		const char *role = role_names[m->role];

		err = tokenizer_open(ids, tokenizer_role(role, strlen(role)));
		if (!err)
			err = tokenizer_text(ids, talk->text + m->text_at, m->text_len);
		if (!err)
			err = tokenizer_close(ids);
	}
	return err ? err : tokenizer_open(ids, TOKENIZER_ASSISTANT);
}
