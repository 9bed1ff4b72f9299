/*
 * Lines of the stream outside, JSON events inside; `where` says what each open container of the
 * event's document is. Nothing but short captured strings is kept.
 */
#include <assert.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "router/chat/keys.h"
#include "router/chat/watch.h"

/* The keys that mean something, in strcmp's order. */
#define KEYS(X)                                                       \
	X(CACHE_CREATION_INPUT_TOKENS, "cache_creation_input_tokens") \
	X(CACHE_N, "cache_n")                                         \
	X(CACHE_READ_INPUT_TOKENS, "cache_read_input_tokens")         \
	X(CACHED_TOKENS, "cached_tokens")                             \
	X(CHOICES, "choices")                                         \
	X(CODE, "code")                                               \
	X(COMPLETION_TOKENS, "completion_tokens")                     \
	X(CONTENT, "content")                                         \
	X(CONTENT_BLOCK, "content_block")                             \
	X(DELTA, "delta")                                             \
	X(ERROR, "error")                                             \
	X(FUNCTION_CALL, "function_call")                             \
	X(ID, "id")                                                   \
	X(INPUT_TOKENS, "input_tokens")                               \
	X(INPUT_TOKENS_DETAILS, "input_tokens_details")               \
	X(ITEM, "item")                                               \
	X(MESSAGE, "message")                                         \
	X(META_INFO, "meta_info")                                     \
	X(OBJECT, "object")                                           \
	X(OUTPUT_TOKENS, "output_tokens")                             \
	X(PARTIAL_JSON, "partial_json")                               \
	X(PREDICTED_N, "predicted_n")                                 \
	X(PROMPT_N, "prompt_n")                                       \
	X(PROMPT_TOKENS, "prompt_tokens")                             \
	X(PROMPT_TOKENS_DETAILS, "prompt_tokens_details")             \
	X(REASONING, "reasoning")                                     \
	X(REASONING_CONTENT, "reasoning_content")                     \
	X(REFUSAL, "refusal")                                         \
	X(RESPONSE, "response")                                       \
	X(STOP, "stop")                                               \
	X(TEXT, "text")                                               \
	X(THINKING, "thinking")                                       \
	X(TIMINGS, "timings")                                         \
	X(TOKEN_IDS, "token_ids")                                     \
	X(TOOL_CALLS, "tool_calls")                                   \
	X(TYPE, "type")                                               \
	X(USAGE, "usage")

enum {
#define X(name, text) KEY_##name,
	KEYS(X)
#undef X
		KEY_OTHER
};

static const struct chat_key keys[] = {
#define X(name, text) CHAT_KEY(text),
	KEYS(X)
#undef X
};

enum {
	WHERE_SKIP,
	WHERE_ROOT,
	WHERE_CHOICES,
	WHERE_CHOICE,
	WHERE_CHOICE_DELTA,
	WHERE_ANY,   /* whatever stands in here is a token */
	WHERE_DELTA, /* of Anthropic's events */
	WHERE_BLOCK, /* content_block */
	WHERE_ITEM,  /* of the Responses API */
	WHERE_RESPONSE,
	WHERE_MESSAGE,
	WHERE_USAGE,
	WHERE_DETAILS,
	WHERE_TIMINGS,
	WHERE_META, /* of SGLang's own API */
	WHERE_ERROR,
};

enum {
	SINK_SKIP,
	SINK_TOKEN,
	SINK_ERROR_TEXT,
	SINK_KEY, /* from here on the string is captured */
	SINK_TYPE,
	SINK_OBJECT,
	SINK_ID,
	SINK_BLOCK_TYPE,
	SINK_ITEM_TYPE,
	SINK_ERROR_KIND,
};

enum { LINE_NAME, LINE_VALUE, LINE_DATA, LINE_EVENT, LINE_IGNORED };

static const char done_word[] = "[DONE]";
enum { DONE_LEN = sizeof(done_word) - 1, DONE_NOT = DONE_LEN + 1 };

void chat_watch_begin(struct chat_watch *watch, enum chat_watch_mode mode)
{
	memset(watch, 0, sizeof(*watch));
	watch->mode = (uint8_t)mode;
	watch->line = LINE_NAME;
	pull_begin(&watch->json);
}

static void see(struct chat_watch *watch, uint32_t what)
{
	watch->seen |= what;
	watch->news |= what;
}

/* The first token matters in streams only: of one document it says nothing about time. */
static void token(struct chat_watch *watch)
{
	if (watch->mode == CHAT_WATCH_SSE)
		see(watch, CHAT_SEEN_TOKEN);
}

static bool captured_is(const struct chat_watch *watch, const char *word)
{
	return strlen(word) == watch->copy.len && memcmp(watch->text, word, watch->copy.len) == 0;
}

static uint8_t open_in_root(struct chat_watch *watch, bool object)
{
	switch (watch->key) {
	case KEY_CHOICES:
		return object ? WHERE_SKIP : WHERE_CHOICES;
	case KEY_DELTA:
		return WHERE_DELTA;
	case KEY_CONTENT_BLOCK:
		return WHERE_BLOCK;
	case KEY_ITEM:
		return WHERE_ITEM;
	case KEY_RESPONSE:
		return WHERE_RESPONSE;
	case KEY_MESSAGE:
		return WHERE_MESSAGE;
	case KEY_USAGE:
		return WHERE_USAGE;
	case KEY_TIMINGS:
		return WHERE_TIMINGS;
	case KEY_META_INFO:
		return WHERE_META;
	case KEY_ERROR:
		see(watch, CHAT_SEEN_ERROR);
		return WHERE_ERROR;
	default:
		return WHERE_SKIP;
	}
}

static uint8_t open_in_response(struct chat_watch *watch)
{
	if (watch->key == KEY_ERROR) {
		see(watch, CHAT_SEEN_ERROR);
		return WHERE_ERROR;
	}
	return watch->key == KEY_USAGE ? WHERE_USAGE : WHERE_SKIP;
}

static uint8_t open_where(struct chat_watch *watch, uint8_t outer, bool object)
{
	uint8_t key = watch->key;

	switch (outer) {
	case WHERE_ROOT:
		return open_in_root(watch, object);
	case WHERE_CHOICES:
		return object ? WHERE_CHOICE : WHERE_SKIP;
	case WHERE_CHOICE:
		if (key == KEY_DELTA)
			return WHERE_CHOICE_DELTA;
		return key == KEY_TOKEN_IDS ? WHERE_ANY : WHERE_SKIP;
	case WHERE_CHOICE_DELTA:
		return key == KEY_TOOL_CALLS || key == KEY_FUNCTION_CALL ? WHERE_ANY : WHERE_SKIP;
	case WHERE_ANY:
		token(watch);
		return WHERE_SKIP;
	case WHERE_RESPONSE:
	case WHERE_MESSAGE:
		return open_in_response(watch);
	case WHERE_USAGE:
		return key == KEY_PROMPT_TOKENS_DETAILS || key == KEY_INPUT_TOKENS_DETAILS
			       ? WHERE_DETAILS
			       : WHERE_SKIP;
	default:
		return WHERE_SKIP;
	}
}

/* What the innermost open container is. */
static uint8_t where_now(const struct chat_watch *watch)
{
	return watch->json.depth <= CHAT_WATCH_DEPTH ? watch->where[watch->json.depth] : WHERE_SKIP;
}

static void opened(struct chat_watch *watch, bool object)
{
	unsigned depth = watch->json.depth;

	assert(depth >= 1 && depth <= PULL_DEPTH);
	if (depth == 1)
		watch->where[1] = object ? WHERE_ROOT : WHERE_SKIP;
	else if (depth <= CHAT_WATCH_DEPTH)
		watch->where[depth] = open_where(watch, watch->where[depth - 1], object);
	watch->key = KEY_OTHER;
}

static uint8_t string_in_root(const struct chat_watch *watch)
{
	switch (watch->key) {
	case KEY_DELTA:
	case KEY_CONTENT:
	case KEY_TEXT:
		return SINK_TOKEN;
	case KEY_TYPE:
		return SINK_TYPE;
	case KEY_OBJECT:
		return SINK_OBJECT;
	case KEY_ID:
		return SINK_ID;
	case KEY_ERROR:
		return SINK_ERROR_TEXT;
	default:
		return SINK_SKIP;
	}
}

static bool is_text(uint8_t key)
{
	switch (key) {
	case KEY_CONTENT:
	case KEY_PARTIAL_JSON:
	case KEY_REASONING:
	case KEY_REASONING_CONTENT:
	case KEY_REFUSAL:
	case KEY_TEXT:
	case KEY_THINKING:
		return true;
	default:
		return false;
	}
}

static uint8_t string_sink(struct chat_watch *watch)
{
	switch (where_now(watch)) {
	case WHERE_ROOT:
		return string_in_root(watch);
	case WHERE_CHOICE:
		return watch->key == KEY_TEXT ? SINK_TOKEN : SINK_SKIP;
	case WHERE_CHOICE_DELTA:
	case WHERE_DELTA:
		return is_text(watch->key) ? SINK_TOKEN : SINK_SKIP;
	case WHERE_BLOCK:
		if (watch->key == KEY_TYPE)
			return SINK_BLOCK_TYPE;
		return is_text(watch->key) ? SINK_TOKEN : SINK_SKIP;
	case WHERE_ITEM:
		return watch->key == KEY_TYPE ? SINK_ITEM_TYPE : SINK_SKIP;
	case WHERE_RESPONSE:
		return watch->key == KEY_ID ? SINK_ID : SINK_SKIP;
	case WHERE_ERROR:
		return watch->key == KEY_TYPE || watch->key == KEY_CODE ? SINK_ERROR_KIND
									: SINK_SKIP;
	case WHERE_ANY:
		token(watch);
		return SINK_SKIP;
	default:
		return SINK_SKIP;
	}
}

static void begin_string(struct chat_watch *watch, uint8_t sink)
{
	watch->sink = sink;
	if (sink == SINK_ID && watch->response_id_len == 0)
		watch->copy = (struct pull_copy){ .to = watch->response_id, .max = CHAT_WATCH_ID };
	else if (sink >= SINK_KEY)
		watch->copy = (struct pull_copy){ .to = watch->text, .max = sizeof(watch->text) };
}

/* An event's type, or its name. */
static void event_type(struct chat_watch *watch)
{
	static const char *const ends[] = {
		"message_stop",
		"response.completed",
		"response.incomplete",
		"response.failed",
	};

	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		if (captured_is(watch, ends[i]))
			watch->ends = true;
	if (captured_is(watch, "error") || captured_is(watch, "response.failed"))
		see(watch, CHAT_SEEN_ERROR);
}

static void error_kind(struct chat_watch *watch)
{
	static const char *const overloads[] = {
		"overloaded_error",    "rate_limit_error",    "rate_limit_exceeded",
		"SERVICE_UNAVAILABLE", "Service Unavailable", "unavailable_error",
		"server_overloaded",
	};

	for (size_t i = 0; i < sizeof(overloads) / sizeof(overloads[0]); i++)
		if (captured_is(watch, overloads[i]))
			see(watch, CHAT_SEEN_OVERLOAD);
}

static void error_code(struct chat_watch *watch, int32_t code)
{
	watch->error_code = code;
	if (code == 429 || code == 503)
		see(watch, CHAT_SEEN_OVERLOAD);
}

/* The first one is that of the response; it lies where it stays. */
static void end_id(struct chat_watch *watch)
{
	if (watch->response_id_len || watch->copy.over || watch->copy.len < 5 ||
	    memcmp(watch->response_id, "resp_", 5) != 0)
		return;
	watch->response_id[watch->copy.len] = 0;
	watch->response_id_len = watch->copy.len;
	see(watch, CHAT_SEEN_RESPONSE_ID);
}

static bool ends_with_call(const struct chat_watch *watch)
{
	return watch->copy.len >= 5 && memcmp(watch->text + watch->copy.len - 5, "_call", 5) == 0;
}

static void end_string(struct chat_watch *watch)
{
	switch (watch->sink) {
	case SINK_KEY:
		watch->key = (uint8_t)chat_key_find(keys, KEY_OTHER, watch->text, watch->copy.len);
		if (where_now(watch) == WHERE_ANY)
			token(watch);
		break;
	case SINK_TYPE:
		event_type(watch);
		break;
	case SINK_OBJECT:
		if (!captured_is(watch, "error"))
			break;
		see(watch, CHAT_SEEN_ERROR);
		if (watch->root_code)
			error_code(watch, watch->root_code);
		break;
	case SINK_ID:
		end_id(watch);
		break;
	case SINK_BLOCK_TYPE:
		if (captured_is(watch, "tool_use") || captured_is(watch, "server_tool_use"))
			token(watch);
		break;
	case SINK_ITEM_TYPE:
		if (ends_with_call(watch))
			token(watch);
		break;
	case SINK_ERROR_KIND:
		error_kind(watch);
		break;
	default:
		break;
	}
}

/* String bytes up to `end`; true when the string is over. */
static bool string_bytes(struct chat_watch *watch, const uint8_t **p, const uint8_t *end)
{
	const uint8_t *from = *p;

	if (watch->sink >= SINK_KEY)
		return pull_capture(&watch->json, p, end, &watch->copy);
	bool over = pull_span(&watch->json, p, end);

	if (*p - from > over && watch->sink == SINK_TOKEN)
		token(watch);
	if (*p - from > over && watch->sink == SINK_ERROR_TEXT)
		see(watch, CHAT_SEEN_ERROR);
	return over;
}

/* Where the number of this key belongs, or CHAT_COUNT_NR. */
static enum chat_count count_of(const struct chat_watch *watch)
{
	switch (where_now(watch)) {
	case WHERE_USAGE:
	case WHERE_DETAILS:
	case WHERE_META:
		break;
	case WHERE_TIMINGS:
		return watch->key == KEY_CACHE_N       ? CHAT_COUNT_TIMED_CACHED
		       : watch->key == KEY_PROMPT_N    ? CHAT_COUNT_TIMED_PROMPT
		       : watch->key == KEY_PREDICTED_N ? CHAT_COUNT_TIMED_COMPLETION
						       : CHAT_COUNT_NR;
	default:
		return CHAT_COUNT_NR;
	}
	switch (watch->key) {
	case KEY_PROMPT_TOKENS:
		return CHAT_COUNT_PROMPT;
	case KEY_COMPLETION_TOKENS:
	case KEY_OUTPUT_TOKENS:
		return CHAT_COUNT_COMPLETION;
	case KEY_INPUT_TOKENS:
		return CHAT_COUNT_INPUT;
	case KEY_CACHE_READ_INPUT_TOKENS:
		return CHAT_COUNT_CACHE_READ;
	case KEY_CACHE_CREATION_INPUT_TOKENS:
		return CHAT_COUNT_CACHE_CREATION;
	case KEY_CACHED_TOKENS:
		return CHAT_COUNT_CACHED;
	default:
		return CHAT_COUNT_NR;
	}
}

static void take_count(struct chat_watch *watch, enum chat_count which, uint64_t value)
{
	watch->count[which] = value < UINT32_MAX ? (uint32_t)value : UINT32_MAX;
	watch->given |= (uint16_t)(1u << which);
	switch (which) {
	case CHAT_COUNT_CACHED:
	case CHAT_COUNT_CACHE_READ:
	case CHAT_COUNT_TIMED_CACHED:
		see(watch, CHAT_SEEN_CACHED);
		break;
	case CHAT_COUNT_CACHE_CREATION:
		break;
	default:
		see(watch, CHAT_SEEN_USAGE);
		break;
	}
}

static void literal(struct chat_watch *watch)
{
	uint8_t where = where_now(watch);
	enum chat_count which = count_of(watch);
	uint64_t value = 0;

	if (where == WHERE_ANY)
		token(watch);
	if (where == WHERE_ROOT && watch->key == KEY_STOP && pull_is_true(&watch->json))
		watch->ends = true;
	if (!pull_count(&watch->json, &value))
		return;
	if (which != CHAT_COUNT_NR)
		take_count(watch, which, value);
	if (watch->key != KEY_CODE || value > INT32_MAX)
		return;
	if (where == WHERE_ERROR)
		error_code(watch, (int32_t)value);
	if (where != WHERE_ROOT)
		return;
	watch->root_code = (int32_t)value;
	if ((watch->seen & CHAT_SEEN_ERROR) && !watch->error_code)
		error_code(watch, watch->root_code);
}

static bool event(struct chat_watch *watch, const uint8_t **p, const uint8_t *end)
{
	switch (pull_next(&watch->json, p, end)) {
	case PULL_OBJECT:
		opened(watch, true);
		break;
	case PULL_ARRAY:
		opened(watch, false);
		break;
	case PULL_CLOSE:
		break;
	case PULL_KEY:
		/* Keys are looked up only where one could matter. */
		begin_string(watch, where_now(watch) == WHERE_SKIP ? SINK_SKIP : SINK_KEY);
		break;
	case PULL_STRING:
		begin_string(watch, string_sink(watch));
		break;
	case PULL_LITERAL_END:
		literal(watch);
		break;
	case PULL_BAD:
		watch->broken = true;
		return false;
	case PULL_MORE:
		return false;
	}
	return true;
}

/* An event that begins in the bytes of this step, and its last text that counts as a token. */
struct whole {
	const uint8_t *begin, *text, *text_end; /* NULL = not met */
	uint32_t events;                        /* before it */
};

static void document_bytes(struct chat_watch *watch, const uint8_t *p, const uint8_t *end,
			   struct whole *whole)
{
	while (p < end && !watch->broken) {
		if (!watch->json.in_string) {
			if (!event(watch, &p, end))
				break;
			if (watch->json.in_string && watch->sink == SINK_TOKEN)
				whole->text = p;
		} else if (string_bytes(watch, &p, end)) {
			if (watch->sink == SINK_TOKEN)
				whole->text_end = p - 1;
			end_string(watch);
		}
	}
}

static void data_bytes(struct chat_watch *watch, const uint8_t *p, const uint8_t *end,
		       struct whole *whole)
{
	for (const uint8_t *at = p; at < end && watch->done_match < DONE_NOT; at++)
		watch->done_match =
			watch->done_match < DONE_LEN && *at == (uint8_t)done_word[watch->done_match]
				? watch->done_match + 1
				: DONE_NOT;
	document_bytes(watch, p, end, whole);
}

/* An empty line: the event is whole. */
static void dispatch(struct chat_watch *watch)
{
	if (watch->data && watch->done_match == DONE_LEN) {
		see(watch, CHAT_SEEN_DONE);
	} else if (watch->data) {
		watch->events++;
		see(watch, CHAT_SEEN_EVENT);
		if (watch->ends)
			see(watch, CHAT_SEEN_DONE);
	}
	watch->inside = watch->data = watch->broken = watch->ends = false;
	watch->done_match = 0;
	watch->root_code = 0;
	pull_begin(&watch->json);
}

static void end_line(struct chat_watch *watch)
{
	if (watch->line == LINE_NAME && watch->field_len == 0)
		dispatch(watch);
	if (watch->line == LINE_EVENT)
		event_type(watch);
	watch->line = LINE_NAME;
	watch->field_len = 0;
}

static bool field_is(const struct chat_watch *watch, const char *name)
{
	return strlen(name) == watch->field_len &&
	       memcmp(watch->field, name, watch->field_len) == 0;
}

static void end_name(struct chat_watch *watch)
{
	watch->line = LINE_IGNORED;
	if (field_is(watch, "data")) {
		watch->line = LINE_VALUE;
		watch->data = true;
	} else if (field_is(watch, "event")) {
		watch->line = LINE_VALUE;
	}
}

static void name_byte(struct chat_watch *watch, uint8_t c)
{
	static const uint8_t mark[] = { 0xef, 0xbb, 0xbf }; /* may begin a stream */

	if (c == ':')
		end_name(watch);
	else if (watch->field_len == 0 && memchr(mark, c, sizeof(mark)))
		return;
	else if (watch->field_len < CHAT_WATCH_FIELD)
		watch->field[watch->field_len++] = (char)c;
	else
		watch->line = LINE_IGNORED;
}

/* After the colon: one space may stand before the value. */
static void begin_value(struct chat_watch *watch, const uint8_t **p)
{
	if (**p == ' ')
		++*p;
	watch->line = field_is(watch, "data") ? LINE_DATA : LINE_EVENT;
	/* A data line may be the second of its event: strings cannot go over line ends. */
	if (watch->line == LINE_EVENT)
		watch->copy = (struct pull_copy){ .to = watch->text, .max = sizeof(watch->text) };
}

static void event_name_bytes(struct chat_watch *watch, const uint8_t *p, const uint8_t *end)
{
	for (; p < end; p++) {
		if (watch->copy.len < watch->copy.max)
			watch->copy.to[watch->copy.len++] = (char)*p;
		else
			watch->copy.over = true;
	}
}

static const uint8_t *line_end(const uint8_t *p, const uint8_t *end)
{
	const uint8_t *lf = memchr(p, '\n', (size_t)(end - p));

	if (lf)
		end = lf;
	const uint8_t *cr = memchr(p, '\r', (size_t)(end - p));

	return cr ? cr : end;
}

/* Whether p..end, without a line feed, may stand between the quotes of one string in one line. */
static bool is_text_of_one(const uint8_t *p, const uint8_t *end)
{
	size_t len = (size_t)(end - p);

	if (memchr(p, '\r', len))
		return false;
	if (!memchr(p, '"', len) && !memchr(p, '\\', len))
		return true;
	while (p < end && *p != '"')
		p += *p == '\\' ? 2 : 1;
	return p == end;
}

/*
 * Events of one stream are alike but for their text. Where one stands between the very bytes that
 * the last one stood between, reading it brings what that one brought: a token. Returns its length,
 * 0 when it must be read.
 */
static size_t like_the_last(const struct chat_watch *watch, const uint8_t *p, const uint8_t *end)
{
	const uint8_t *text = p + watch->like_head, *line, *tail;

	if (watch->like_tail == 0 || (size_t)(end - p) < watch->like_head + watch->like_tail + 1u)
		return 0;
	line = memchr(text, '\n', (size_t)(end - text));
	if (!line || line + 1 == end || line[1] != '\n' || line + 2 - text <= watch->like_tail)
		return 0;
	tail = line + 2 - watch->like_tail;
	if (XXH3_64bits(p, watch->like_head) != watch->like_head_hash ||
	    XXH3_64bits(tail, watch->like_tail) != watch->like_tail_hash ||
	    !is_text_of_one(text, tail))
		return 0;
	return (size_t)(line + 2 - p);
}

/* The event that ends before `end` has been read: the next one may be like it. */
static void note_whole(struct chat_watch *watch, const struct whole *whole, const uint8_t *end)
{
	const uint8_t *begin = whole->begin;

	watch->like_tail = 0;
	if (watch->news != (CHAT_SEEN_EVENT | CHAT_SEEN_TOKEN) || watch->seen & CHAT_SEEN_ERROR)
		return;
	if (!whole->text || whole->text_end <= whole->text || end - begin > UINT16_MAX ||
	    end - begin < 2 || end[-1] != '\n' || end[-2] != '\n' ||
	    memchr(begin, '\r', (size_t)(end - begin)))
		return;
	watch->like_head = (uint16_t)(whole->text - begin);
	watch->like_tail = (uint16_t)(end - whole->text_end);
	watch->like_head_hash = XXH3_64bits(begin, watch->like_head);
	watch->like_tail_hash = XXH3_64bits(whole->text_end, watch->like_tail);
}

static bool between(const struct chat_watch *watch)
{
	return watch->line == LINE_NAME && watch->field_len == 0 && !watch->inside &&
	       !watch->after_cr;
}

static void stream_bytes(struct chat_watch *watch, const uint8_t *p, const uint8_t *end)
{
	struct whole whole = { 0 };
	uint32_t news = 0; /* of the events before */

	while (p < end) {
		if (between(watch)) {
			size_t len = like_the_last(watch, p, end);

			news |= watch->news;
			watch->news = 0;
			if (len) {
				p += len;
				watch->events++;
				see(watch, CHAT_SEEN_EVENT | CHAT_SEEN_TOKEN);
				continue;
			}
			whole = (struct whole){ .begin = p, .events = watch->events };
		}
		if (*p == '\n' || *p == '\r') {
			if (*p == '\r' || !watch->after_cr)
				end_line(watch);
			watch->after_cr = *p++ == '\r';
			if (whole.begin && watch->events != whole.events)
				note_whole(watch, &whole, p);
			continue;
		}
		watch->after_cr = false;
		watch->inside = true;
		if (watch->line == LINE_NAME) {
			name_byte(watch, *p++);
			continue;
		}
		if (watch->line == LINE_VALUE) {
			begin_value(watch, &p);
			continue;
		}
		const uint8_t *stop = line_end(p, end);

		if (watch->line == LINE_DATA)
			data_bytes(watch, p, stop, &whole);
		else if (watch->line == LINE_EVENT)
			event_name_bytes(watch, p, stop);
		p = stop;
	}
	watch->news |= news;
}

uint32_t chat_watch_step(struct chat_watch *watch, const void *bytes, size_t len)
{
	const uint8_t *p = bytes;

	watch->news = 0;
	if (watch->mode == CHAT_WATCH_SSE)
		stream_bytes(watch, p, p + len);
	else
		document_bytes(watch, p, p + len, &(struct whole){ 0 });
	return watch->news;
}

uint32_t chat_watch_end(struct chat_watch *watch)
{
	enum pull_event last;

	watch->news = 0;
	if (watch->mode == CHAT_WATCH_SSE) {
		end_line(watch);
		dispatch(watch);
	} else if (!watch->broken && pull_finish(&watch->json, &last) == 0) {
		see(watch, CHAT_SEEN_DONE);
	}
	return watch->news;
}

bool chat_watch_between(const struct chat_watch *watch)
{
	return watch->mode == CHAT_WATCH_SSE && !watch->inside && !watch->after_cr;
}

static bool given(const struct chat_watch *watch, enum chat_count which)
{
	return watch->given >> which & 1;
}

/* The first of the two that was named; 0 if none was. */
static uint64_t either(const struct chat_watch *watch, enum chat_count first,
		       enum chat_count second)
{
	return watch->count[given(watch, first) ? first : second];
}

bool chat_watch_usage(const struct chat_watch *watch, struct chat_usage *ret_usage)
{
	struct chat_usage usage = { 0 };
	const uint32_t *count = watch->count;

	if (!(watch->seen & CHAT_SEEN_USAGE))
		return false;
	usage.completion_tokens = either(watch, CHAT_COUNT_COMPLETION, CHAT_COUNT_TIMED_COMPLETION);
	usage.cached_tokens = given(watch, CHAT_COUNT_CACHED) ? count[CHAT_COUNT_CACHED]
							      : either(watch, CHAT_COUNT_CACHE_READ,
								       CHAT_COUNT_TIMED_CACHED);
	if (given(watch, CHAT_COUNT_PROMPT))
		usage.prompt_tokens = count[CHAT_COUNT_PROMPT];
	else if (given(watch, CHAT_COUNT_INPUT))
		usage.prompt_tokens = (uint64_t)count[CHAT_COUNT_INPUT] +
				      count[CHAT_COUNT_CACHE_READ] +
				      count[CHAT_COUNT_CACHE_CREATION];
	else
		usage.prompt_tokens =
			(uint64_t)count[CHAT_COUNT_TIMED_PROMPT] + count[CHAT_COUNT_TIMED_CACHED];
	*ret_usage = usage;
	return true;
}
