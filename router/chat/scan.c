/*
 * Walks the events of the tokeniser. `where` says what each open container is, the key says what
 * its value is for; together they choose what a string is fed to (`sink`).
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "router/chat/count.h"
#include "router/chat/keys.h"
#include "router/chat/scan.h"
#include "router/chat/stream.h"

/* The keys that mean something, in strcmp's order. */
#define KEYS(X)                                           \
	X(ARGUMENTS, "arguments")                         \
	X(AUDIO, "audio")                                 \
	X(AUDIO_URL, "audio_url")                         \
	X(BEST_OF, "best_of")                             \
	X(CACHE_CONTROL, "cache_control")                 \
	X(CACHE_SALT, "cache_salt")                       \
	X(CALL_ID, "call_id")                             \
	X(CONTENT, "content")                             \
	X(CONVERSATION, "conversation")                   \
	X(CONVERSATION_ID, "conversation_id")             \
	X(DATA, "data")                                   \
	X(DETAIL, "detail")                               \
	X(ENCRYPTED_CONTENT, "encrypted_content")         \
	X(FILE, "file")                                   \
	X(FILE_DATA, "file_data")                         \
	X(FILE_ID, "file_id")                             \
	X(FILE_URL, "file_url")                           \
	X(FUNCTIONS, "functions")                         \
	X(ID, "id")                                       \
	X(IMAGE, "image")                                 \
	X(IMAGE_URL, "image_url")                         \
	X(INCLUDE_USAGE, "include_usage")                 \
	X(INPUT, "input")                                 \
	X(INPUT_AUDIO, "input_audio")                     \
	X(INPUT_IDS, "input_ids")                         \
	X(INPUT_SCHEMA, "input_schema")                   \
	X(INSTRUCTIONS, "instructions")                   \
	X(LORA, "lora")                                   \
	X(LORA_PATH, "lora_path")                         \
	X(MAX_COMPLETION_TOKENS, "max_completion_tokens") \
	X(MAX_NEW_TOKENS, "max_new_tokens")               \
	X(MAX_OUTPUT_TOKENS, "max_output_tokens")         \
	X(MAX_TOKENS, "max_tokens")                       \
	X(MESSAGES, "messages")                           \
	X(METADATA, "metadata")                           \
	X(MODEL, "model")                                 \
	X(N, "n")                                         \
	X(N_PREDICT, "n_predict")                         \
	X(PARAMETERS, "parameters")                       \
	X(PREVIOUS_RESPONSE_ID, "previous_response_id")   \
	X(PROMPT, "prompt")                               \
	X(PROMPT_CACHE_KEY, "prompt_cache_key")           \
	X(ROLE, "role")                                   \
	X(SAMPLING_PARAMS, "sampling_params")             \
	X(SESSION_ID, "session_id")                       \
	X(SIGNATURE, "signature")                         \
	X(SOURCE, "source")                               \
	X(STATUS, "status")                               \
	X(STREAM, "stream")                               \
	X(STREAM_OPTIONS, "stream_options")               \
	X(SYSTEM, "system")                               \
	X(TEXT, "text")                                   \
	X(TOKEN_IDS, "token_ids")                         \
	X(TOKENS, "tokens")                               \
	X(TOOL_CALL_ID, "tool_call_id")                   \
	X(TOOL_USE_ID, "tool_use_id")                     \
	X(TOOLS, "tools")                                 \
	X(TYPE, "type")                                   \
	X(USER, "user")                                   \
	X(USER_ID, "user_id")                             \
	X(VIDEO, "video")                                 \
	X(VIDEO_URL, "video_url")

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
	WHERE_LIST,  /* messages, input items, or prompts */
	WHERE_IDS,   /* one prompt of token ids in a list of them */
	WHERE_ITEM,  /* a message */
	WHERE_PARTS, /* content blocks */
	WHERE_PART,
	WHERE_MEDIA,  /* an image, an audio, a file */
	WHERE_SOURCE, /* the same in Anthropic's form; its data may be plain text */
	WHERE_TOOLS,
	WHERE_TREE, /* tool schemas and arguments: keys are text too */
	WHERE_METADATA,
	WHERE_CONVERSATION,
	WHERE_STREAM_OPTIONS,
	WHERE_SAMPLING,
	WHERE_SALT, /* LoRA adapters */
};

enum {
	SINK_SKIP,
	SINK_TEXT,
	SINK_MEDIA,
	SINK_KEY, /* from here on the string is captured */
	SINK_ROLE,
	SINK_TYPE,
	SINK_SOURCE_TYPE,
	SINK_MODEL,
	SINK_PREVIOUS,
	SINK_SALT,
	SINK_METADATA,
	SINK_SESSION, /* + enum chat_session_source */
};

/* Roles and types lie in arrays longer than any word, so that a few bytes are compared at once. */
#define IS(array, word) (memcmp(array, word, sizeof(word)) == 0)

size_t chat_scan_blocks(uint64_t body_bytes)
{
	uint64_t blocks = body_bytes / LIMIT_CONTENT_BLOCK_BYTES + 2;

	return blocks < LIMIT_CONTENT_BLOCKS ? (size_t)blocks : LIMIT_CONTENT_BLOCKS;
}

void chat_scan_begin(struct chat_scan *scan, uint64_t *blocks, uint32_t blocks_max, uint64_t seed)
{
	memset(scan, 0, sizeof(*scan));
	pull_begin(&scan->json);
	scan->blocks = blocks;
	scan->blocks_max = blocks_max < LIMIT_CONTENT_BLOCKS ? blocks_max : LIMIT_CONTENT_BLOCKS;
	scan->seed = seed;
	stream_secret(scan->secret, seed);
	scan->req.brace = -1;
	scan->req.n = scan->req.turn = 1;
	scan->now = CHAT_MESSAGES;
}

void chat_scan_grow(struct chat_scan *scan, uint64_t *blocks, uint32_t blocks_max)
{
	assert(blocks_max >= scan->blocks_used);
	memcpy(blocks, scan->blocks, scan->blocks_used * sizeof(*blocks));
	scan->blocks = blocks;
	scan->blocks_max = blocks_max < LIMIT_CONTENT_BLOCKS ? blocks_max : LIMIT_CONTENT_BLOCKS;
}

const char *chat_session_name(enum chat_session_source source)
{
	static const char *const names[] = {
#define X(name, text) [CHAT_SESSION_##name] = text,
		CHAT_SESSIONS(X)
#undef X
	};

	assert(source < CHAT_SESSION_NR);
	return names[source];
}

static uint8_t *here(struct chat_scan *scan)
{
	return &scan->where[scan->json.depth];
}

static struct chat_stream *stream_now(struct chat_scan *scan)
{
	return &scan->part[scan->now];
}

static void begin_messages(struct chat_scan *scan)
{
	stream_begin(scan, CHAT_MESSAGES);
	scan->messages = scan->assistants = scan->prompts = 0;
	scan->first_user_seen = scan->in_output = scan->system_item = false;
	scan->identity_messages = 0;
	scan->req.prompt_is_ids = false;
}

static void begin_tools(struct chat_scan *scan)
{
	stream_begin(scan, CHAT_TOOLS);
	scan->req.tools = 0;
}

/* In messages and their parts: values that no template renders. */
static bool is_unseen(uint8_t key)
{
	switch (key) {
	case KEY_CACHE_CONTROL:
	case KEY_CALL_ID:
	case KEY_DETAIL:
	case KEY_ENCRYPTED_CONTENT:
	case KEY_ID:
	case KEY_SIGNATURE:
	case KEY_STATUS:
	case KEY_TOOL_CALL_ID:
	case KEY_TOOL_USE_ID:
	case KEY_TYPE:
		return true;
	default:
		return false;
	}
}

static bool is_media(uint8_t key)
{
	switch (key) {
	case KEY_AUDIO:
	case KEY_AUDIO_URL:
	case KEY_FILE:
	case KEY_FILE_DATA:
	case KEY_FILE_ID:
	case KEY_FILE_URL:
	case KEY_IMAGE:
	case KEY_IMAGE_URL:
	case KEY_INPUT_AUDIO:
	case KEY_VIDEO:
	case KEY_VIDEO_URL:
		return true;
	default:
		return false;
	}
}

static bool is_prompt(uint8_t key)
{
	switch (key) {
	case KEY_CONTENT:
	case KEY_INPUT:
	case KEY_INPUT_IDS:
	case KEY_MESSAGES:
	case KEY_PROMPT:
	case KEY_TEXT:
	case KEY_TOKENS:
	case KEY_TOKEN_IDS:
		return true;
	default:
		return false;
	}
}

static uint8_t open_in_root(struct chat_scan *scan, bool object)
{
	/* As objects, Responses' `text` sets a format and its `prompt` names a stored one. */
	if (is_prompt(scan->key) && !object) {
		begin_messages(scan);
		return WHERE_LIST;
	}
	switch (scan->key) {
	case KEY_SYSTEM:
	case KEY_INSTRUCTIONS:
		stream_begin(scan, CHAT_SYSTEM);
		return object ? WHERE_PART : WHERE_PARTS;
	case KEY_TOOLS:
	case KEY_FUNCTIONS:
		begin_tools(scan);
		return object ? WHERE_TREE : WHERE_TOOLS;
	case KEY_METADATA:
		return object ? WHERE_METADATA : WHERE_SKIP;
	case KEY_CONVERSATION:
		return object ? WHERE_CONVERSATION : WHERE_SKIP;
	case KEY_STREAM_OPTIONS:
		scan->req.stream_options = true;
		scan->req.include_usage = false;
		return object ? WHERE_STREAM_OPTIONS : WHERE_SKIP;
	case KEY_SAMPLING_PARAMS:
		return object ? WHERE_SAMPLING : WHERE_SKIP;
	case KEY_LORA:
	case KEY_LORA_PATH:
		return WHERE_SALT;
	default:
		return WHERE_SKIP;
	}
}

static uint8_t open_in_part(struct chat_scan *scan, bool object)
{
	if (is_unseen(scan->key))
		return WHERE_SKIP;
	if (is_media(scan->key)) {
		stream_now(scan)->images++;
		return WHERE_MEDIA;
	}
	switch (scan->key) {
	case KEY_SOURCE:
		scan->text_source = false;
		return object ? WHERE_SOURCE : WHERE_SKIP;
	case KEY_INPUT:
	case KEY_ARGUMENTS:
	case KEY_PARAMETERS:
	case KEY_INPUT_SCHEMA:
		return WHERE_TREE;
	default:
		return object ? WHERE_PART : WHERE_PARTS;
	}
}

static void begin_item(struct chat_scan *scan)
{
	scan->role[0] = scan->type[0] = 0;
	scan->system_item = false;
}

static void tree_byte(struct chat_scan *scan)
{
	stream_now(scan)->classes.punct++;
}

/* What the container that opens now is, from where it opens. */
static uint8_t open_where(struct chat_scan *scan, bool object)
{
	switch (*here(scan)) {
	case WHERE_ROOT:
		return open_in_root(scan, object);
	case WHERE_LIST:
		if (object)
			begin_item(scan);
		return object ? WHERE_ITEM : WHERE_IDS;
	case WHERE_ITEM:
	case WHERE_PART:
		return open_in_part(scan, object);
	case WHERE_PARTS:
		return object ? WHERE_PART : WHERE_PARTS;
	case WHERE_MEDIA:
	case WHERE_SOURCE:
		return scan->key == KEY_CACHE_CONTROL ? WHERE_SKIP : WHERE_MEDIA;
	case WHERE_TOOLS:
		scan->req.tools++;
		return WHERE_TREE;
	case WHERE_TREE:
		return scan->key == KEY_CACHE_CONTROL ? WHERE_SKIP : WHERE_TREE;
	case WHERE_SALT:
		return WHERE_SALT;
	default:
		return WHERE_SKIP;
	}
}

static void opened(struct chat_scan *scan, bool object)
{
	unsigned depth = scan->json.depth;
	uint8_t where;

	assert(depth >= 1 && depth <= PULL_DEPTH);
	if (depth == 1) {
		where = object ? WHERE_ROOT : WHERE_SKIP;
		scan->req.unreadable = !object;
	} else {
		scan->json.depth--; /* look from outside */
		where = open_where(scan, object);
		scan->json.depth++;
	}
	scan->where[depth] = where;
	/* Members of an array, and the first key of an object, have no key from before. */
	scan->key = KEY_OTHER;
	if (where == WHERE_TREE || where == WHERE_TOOLS)
		tree_byte(scan);
}

/* Output items of the Responses API come without a role. */
static bool from_model(const struct chat_scan *scan)
{
	static const char *const types[] = {
		"reasoning",        "function_call",
		"custom_tool_call", "local_shell_call",
		"shell_call",       "web_search_call",
		"file_search_call", "code_interpreter_call",
		"computer_call",    "image_generation_call",
		"mcp_call",         "apply_patch_call",
	};

	if (scan->role[0])
		return IS(scan->role, "assistant") || IS(scan->role, "model");
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (strcmp(scan->type, types[i]) == 0)
			return true;
	return false;
}

static void first_user(struct chat_scan *scan)
{
	if (scan->first_user_seen)
		return;
	scan->first_user_seen = true;
	scan->identity_messages = stream_digest(scan, CHAT_MESSAGES);
}

static void end_item(struct chat_scan *scan)
{
	const char *name = scan->role[0] ? scan->role : scan->type;
	bool output = from_model(scan);
	char mark[sizeof(scan->type) + 2] = { STREAM_ITEM_END };
	size_t len = strlen(name);

	memcpy(mark + 1, name, len);
	mark[len + 1] = STREAM_ROLE_END;
	stream_put(scan, mark, len + 2);
	scan->messages++;
	/* One answer of the Responses API is a run of items, which carry a type each. */
	if (output && !(scan->in_output && scan->type[0]))
		scan->assistants++;
	scan->in_output = output;
	scan->system_item = false;
	if (IS(name, "user"))
		first_user(scan);
}

static void end_prompt(struct chat_scan *scan)
{
	stream_mark(scan, STREAM_ITEM_END);
	scan->prompts++;
}

static void closed(struct chat_scan *scan)
{
	switch (scan->where[scan->json.depth + 1]) {
	case WHERE_ITEM:
		end_item(scan);
		break;
	case WHERE_IDS:
		end_prompt(scan);
		break;
	case WHERE_LIST:
		if (scan->req.prompt_is_ids && !scan->prompts)
			scan->prompts = 1;
		break;
	case WHERE_SOURCE:
		stream_now(scan)->images += !scan->text_source;
		break;
	case WHERE_TREE:
	case WHERE_TOOLS:
		tree_byte(scan);
		break;
	default:
		break;
	}
}

static uint8_t string_in_root(struct chat_scan *scan)
{
	switch (scan->key) {
	case KEY_MODEL:
		return SINK_MODEL;
	case KEY_PREVIOUS_RESPONSE_ID:
		return SINK_PREVIOUS;
	case KEY_CACHE_SALT:
	case KEY_LORA:
	case KEY_LORA_PATH:
		return SINK_SALT;
	case KEY_USER:
		return SINK_SESSION + CHAT_SESSION_USER;
	case KEY_CONVERSATION:
		return SINK_SESSION + CHAT_SESSION_CONVERSATION;
	case KEY_CONVERSATION_ID:
		return SINK_SESSION + CHAT_SESSION_CONVERSATION_ID;
	case KEY_PROMPT_CACHE_KEY:
		return SINK_SESSION + CHAT_SESSION_PROMPT_CACHE_KEY;
	case KEY_SESSION_ID:
		return SINK_SESSION + CHAT_SESSION_SESSION_ID;
	case KEY_SYSTEM:
	case KEY_INSTRUCTIONS:
		stream_begin(scan, CHAT_SYSTEM);
		return SINK_TEXT;
	default:
		if (!is_prompt(scan->key))
			return SINK_SKIP;
		begin_messages(scan);
		return SINK_TEXT;
	}
}

static uint8_t string_in_part(struct chat_scan *scan)
{
	if (*here(scan) == WHERE_ITEM && scan->key == KEY_ROLE)
		return SINK_ROLE;
	if (*here(scan) == WHERE_ITEM && scan->key == KEY_TYPE)
		return SINK_TYPE;
	if (is_unseen(scan->key))
		return SINK_SKIP;
	if (!is_media(scan->key))
		return scan->key == KEY_DATA ? SINK_SKIP : SINK_TEXT;
	stream_now(scan)->images++;
	return SINK_MEDIA;
}

static uint8_t string_sink(struct chat_scan *scan)
{
	switch (*here(scan)) {
	case WHERE_ROOT:
		return string_in_root(scan);
	case WHERE_ITEM:
	case WHERE_PART:
		return string_in_part(scan);
	case WHERE_LIST:
	case WHERE_PARTS:
	case WHERE_TOOLS:
		return SINK_TEXT;
	case WHERE_TREE:
		return scan->key == KEY_CACHE_CONTROL ? SINK_SKIP : SINK_TEXT;
	case WHERE_SOURCE:
		if (scan->key == KEY_TYPE)
			return SINK_SOURCE_TYPE;
		return scan->text_source && scan->key == KEY_DATA ? SINK_TEXT : SINK_MEDIA;
	case WHERE_MEDIA:
		return SINK_MEDIA;
	case WHERE_METADATA:
		if (scan->key == KEY_SESSION_ID)
			return SINK_SESSION + CHAT_SESSION_SESSION_ID;
		return scan->key == KEY_USER_ID ? SINK_METADATA : SINK_SKIP;
	case WHERE_CONVERSATION:
		return scan->key == KEY_ID ? SINK_SESSION + CHAT_SESSION_CONVERSATION : SINK_SKIP;
	case WHERE_SALT:
		return SINK_SALT;
	default:
		return SINK_SKIP;
	}
}

static void begin_string(struct chat_scan *scan, uint8_t sink)
{
	scan->sink = sink;
	if (sink == SINK_TEXT) {
		scan->cut = (struct chat_cut){ 0 };
		stream_text_begin(scan);
		if (*here(scan) == WHERE_TREE || *here(scan) == WHERE_TOOLS)
			stream_now(scan)->classes.punct += 2;
	} else if (sink == SINK_MEDIA) {
		stream_media_begin(scan);
	} else if (sink >= SINK_KEY) {
		scan->copy = (struct pull_copy){ .to = scan->text, .max = sizeof(scan->text) };
	}
}

/* Short text that was captured on its way, as if it had been a string of its own. */
static void put_captured(struct chat_scan *scan, const char *text, size_t len)
{
	struct chat_cut cut = { 0 };

	/* The classes stop at a quote, which is text here. */
	for (size_t at = 0; at < len; at++)
		at += chat_count(&stream_now(scan)->classes, &cut, (const uint8_t *)text + at,
				 len - at);
	stream_put(scan, text, len);
	stream_mark(scan, STREAM_TEXT_END);
}

static void end_key(struct chat_scan *scan)
{
	scan->key = (uint8_t)chat_key_find(keys, KEY_OTHER, scan->text, scan->copy.len);
	if (*here(scan) != WHERE_TREE || scan->key == KEY_CACHE_CONTROL)
		return;
	stream_now(scan)->classes.punct += 3; /* quotes and colon */
	put_captured(scan, scan->text, scan->copy.len);
}

static void set_session(struct chat_scan *scan, uint8_t source, const char *text, size_t len)
{
	char clean[LIMIT_SESSION_ID];
	uint16_t n = 0;

	for (size_t i = 0; i < len && n < LIMIT_SESSION_ID; i++)
		if ((unsigned char)text[i] >= 0x20 && text[i] != 0x7f)
			clean[n++] = text[i];
	if (!n || source < scan->req.session_source)
		return;
	memcpy(scan->req.session, clean, n);
	scan->req.session[n] = 0;
	scan->req.session_len = n;
	scan->req.session_source = source;
}

/* Claude Code writes its session into the user id, as JSON or at the end of one long word. */
static void read_metadata(struct chat_scan *scan)
{
	static const char key[] = "\"session_id\"", infix[] = "_session_";
	const char *text = scan->text, *end = text + scan->copy.len;
	const char *at = memmem(text, scan->copy.len, key, sizeof(key) - 1);

	if (at) {
		at += sizeof(key) - 1;
		while (at < end && (*at == ' ' || *at == ':'))
			at++;
		const char *close =
			at < end && *at == '"' ? memchr(at + 1, '"', (size_t)(end - at - 1)) : NULL;

		if (close)
			set_session(scan, CHAT_SESSION_METADATA, at + 1, (size_t)(close - at - 1));
		return;
	}
	at = memmem(text, scan->copy.len, infix, sizeof(infix) - 1);
	if (at)
		set_session(scan, CHAT_SESSION_METADATA, at + sizeof(infix) - 1,
			    (size_t)(end - at) - (sizeof(infix) - 1));
	else
		set_session(scan, CHAT_SESSION_USER, text, scan->copy.len);
}

static void keep(char *to, size_t size, const struct pull_copy *copy)
{
	size_t len = copy->len < size - 1 ? copy->len : size - 1;

	memcpy(to, copy->to, len);
	to[len] = 0;
}

static void end_model(struct chat_scan *scan)
{
	scan->req.model_long = scan->copy.len > LIMIT_MODEL_NAME;
	keep(scan->req.model, sizeof(scan->req.model), &scan->copy);
	scan->req.model_len = scan->req.model_long ? LIMIT_MODEL_NAME : scan->copy.len;
}

/* An id too long for the table cannot be one of ours. */
static void end_previous(struct chat_scan *scan)
{
	bool fits = scan->copy.len <= CHAT_RESPONSE_ID;

	scan->req.previous_response_id_len = fits ? scan->copy.len : 0;
	keep(scan->req.previous_response_id, fits ? sizeof(scan->req.previous_response_id) : 1,
	     &scan->copy);
}

static bool is_system(const char *role)
{
	return IS(role, "system") || IS(role, "developer");
}

static void end_text(struct chat_scan *scan)
{
	stream_text_end(scan);
	switch (*here(scan)) {
	case WHERE_LIST:
		end_prompt(scan);
		break;
	case WHERE_ROOT:
		if (scan->now != CHAT_MESSAGES)
			break;
		if (scan->key != KEY_INPUT) {
			scan->prompts = 1;
			break;
		}
		/* A plain input is what the same text in a user's message is. */
		begin_item(scan);
		memcpy(scan->role, "user", sizeof("user"));
		end_item(scan);
		break;
	default:
		break;
	}
}

static void end_string(struct chat_scan *scan)
{
	switch (scan->sink) {
	case SINK_SKIP:
		break;
	case SINK_TEXT:
		end_text(scan);
		break;
	case SINK_MEDIA:
		stream_media_end(scan);
		break;
	case SINK_KEY:
		end_key(scan);
		break;
	case SINK_ROLE:
		keep(scan->role, sizeof(scan->role), &scan->copy);
		scan->system_item = is_system(scan->role);
		break;
	case SINK_TYPE:
		keep(scan->type, sizeof(scan->type), &scan->copy);
		break;
	case SINK_SOURCE_TYPE:
		scan->text_source = scan->copy.len == 4 && memcmp(scan->text, "text", 4) == 0;
		break;
	case SINK_MODEL:
		end_model(scan);
		break;
	case SINK_PREVIOUS:
		end_previous(scan);
		break;
	case SINK_SALT:
		scan->salt =
			stream_join(scan->salt, stream_hash(scan->text, scan->copy.len, scan->key));
		break;
	case SINK_METADATA:
		read_metadata(scan);
		break;
	default:
		set_session(scan, scan->sink - SINK_SESSION, scan->text, scan->copy.len);
		break;
	}
}

/* String bytes up to `end`; true when the string is over. */
static bool string_bytes(struct chat_scan *scan, const uint8_t **p, const uint8_t *end)
{
	const uint8_t *from = *p;

	if (scan->sink >= SINK_KEY)
		return pull_capture(&scan->json, p, end, &scan->copy);
	if (scan->sink == SINK_TEXT) {
		size_t n = chat_count(&stream_now(scan)->classes, &scan->cut, from,
				      (size_t)(end - from));

		stream_text(scan, from, n);
		*p += n;
		if (*p == end)
			return false;
		++*p;
		scan->json.in_string = false;
		return true;
	}
	bool over = pull_span(&scan->json, p, end);

	if (scan->sink == SINK_MEDIA)
		stream_media(scan, from, (size_t)(*p - from) - over);
	return over;
}

static void set_max_tokens(struct chat_scan *scan, uint8_t rank)
{
	uint64_t value;

	/* The newer spelling wins where both are there, as engines read them. */
	if (rank < scan->max_tokens_rank || !pull_count(&scan->json, &value))
		return;
	scan->max_tokens_rank = rank;
	scan->req.max_tokens = value;
}

static uint32_t small_count(const struct chat_scan *scan)
{
	uint64_t value = 0;

	pull_count(&scan->json, &value);
	return value > UINT32_MAX ? UINT32_MAX : (uint32_t)value;
}

static void setting(struct chat_scan *scan)
{
	switch (scan->key) {
	case KEY_STREAM:
		scan->req.stream = pull_is_true(&scan->json);
		break;
	case KEY_N:
		scan->n = small_count(scan);
		break;
	case KEY_BEST_OF:
		scan->best_of = small_count(scan);
		break;
	case KEY_MAX_COMPLETION_TOKENS:
	case KEY_MAX_OUTPUT_TOKENS:
		set_max_tokens(scan, 2);
		break;
	case KEY_MAX_TOKENS:
	case KEY_MAX_NEW_TOKENS:
	case KEY_N_PREDICT:
		set_max_tokens(scan, 1);
		break;
	case KEY_MODEL:
		scan->req.model_len = 0; /* null after all */
		scan->req.model[0] = 0;
		break;
	case KEY_PREVIOUS_RESPONSE_ID:
		scan->req.previous_response_id_len = 0;
		scan->req.previous_response_id[0] = 0;
		break;
	default:
		break;
	}
}

static void token_id(struct chat_scan *scan)
{
	uint64_t value;

	if (!pull_count(&scan->json, &value))
		return;
	uint32_t id = (uint32_t)value;

	/* Four bytes an id: the same grain as text, some 128 tokens a block. */
	stream_put(scan, &id, sizeof(id));
	stream_now(scan)->token_ids++;
	scan->req.prompt_is_ids = true;
}

static void literal(struct chat_scan *scan)
{
	size_t len = scan->json.literal_len;

	switch (*here(scan)) {
	case WHERE_ROOT:
	case WHERE_SAMPLING:
		setting(scan);
		break;
	case WHERE_LIST:
	case WHERE_IDS:
		token_id(scan);
		break;
	case WHERE_TREE:
		if (scan->key != KEY_CACHE_CONTROL)
			put_captured(scan, scan->json.literal, len);
		break;
	case WHERE_STREAM_OPTIONS:
		if (scan->key == KEY_INCLUDE_USAGE)
			scan->req.include_usage = pull_is_true(&scan->json);
		break;
	case WHERE_SALT:
		scan->salt =
			stream_join(scan->salt, stream_hash(scan->json.literal, len, scan->key));
		break;
	default:
		break;
	}
}

static void give_up(struct chat_scan *scan)
{
	scan->req.unreadable = true;
}

/* What the counters of the parts amount to. */
static void sum_up(struct chat_scan *scan)
{
	struct chat_request *req = &scan->req;

	req->classes = (struct chat_classes){ 0 };
	req->content_bytes = req->token_ids = req->images = 0;
	for (int i = 0; i < CHAT_PARTS; i++) {
		const struct chat_stream *part = &scan->part[i];

#define ADD(name, meaning) req->classes.name += part->classes.name;
		CHAT_CLASSES(ADD)
#undef ADD
		req->content_bytes += part->bytes;
		req->token_ids += part->token_ids;
		req->images += part->images;
	}
	req->n = scan->n > scan->best_of ? scan->n : scan->best_of;
	req->n = req->n ? req->n : 1;
	req->messages = scan->messages;
	req->assistant_messages = scan->assistants;
	req->turn = scan->assistants + 1;
	req->prompts = scan->prompts;
	req->identity = 0;
	if (scan->first_user_seen)
		req->identity =
			stream_join(stream_digest(scan, CHAT_SYSTEM), scan->identity_messages);
}

static bool event(struct chat_scan *scan, const uint8_t **p, const uint8_t *end)
{
	switch (pull_next(&scan->json, p, end)) {
	case PULL_OBJECT:
		if (scan->json.depth == 1)
			scan->req.brace =
				(int64_t)(scan->req.body_bytes - (uint64_t)(end - *p)) - 1;
		opened(scan, true);
		break;
	case PULL_ARRAY:
		opened(scan, false);
		break;
	case PULL_CLOSE:
		closed(scan);
		break;
	case PULL_KEY:
		begin_string(scan, SINK_KEY);
		break;
	case PULL_STRING:
		begin_string(scan, string_sink(scan));
		break;
	case PULL_LITERAL_END:
		literal(scan);
		break;
	case PULL_BAD:
		give_up(scan);
		return false;
	case PULL_MORE:
		return false;
	}
	return true;
}

static const uint8_t byte_order_mark[] = { 0xef, 0xbb, 0xbf };

/* In front of the body it says nothing; engines' JSON readers take it. */
static const uint8_t *skip_mark(struct chat_scan *scan, const uint8_t *p, const uint8_t *end)
{
	if (scan->mark < scan->req.body_bytes) /* something else has come */
		return p;
	while (p < end && scan->mark < sizeof(byte_order_mark) &&
	       *p == byte_order_mark[scan->mark]) {
		scan->mark++;
		p++;
	}
	return p;
}

void chat_scan_step(struct chat_scan *scan, const void *bytes, size_t len)
{
	const uint8_t *end = (const uint8_t *)bytes + len, *p = skip_mark(scan, bytes, end);

	scan->req.body_bytes += len;
	if (p < end && scan->mark % sizeof(byte_order_mark)) /* a part of one is no mark */
		give_up(scan);
	if (scan->req.unreadable)
		return;
	while (p < end) {
		if (!scan->json.in_string) {
			if (!event(scan, &p, end))
				break;
		} else if (string_bytes(scan, &p, end)) {
			end_string(scan);
		}
	}
	sum_up(scan);
}

static uint64_t chain_key(const struct chat_scan *scan)
{
	uint64_t model = stream_hash(scan->req.model, scan->req.model_len, scan->seed);

	return stream_join(model, scan->salt);
}

uint32_t chat_scan_end(struct chat_scan *scan, bool complete, uint64_t *chain, uint32_t chain_max)
{
	uint64_t hash = chain_key(scan);
	uint32_t n = 0;
	enum pull_event last;

	if (complete) {
		scan->req.complete = scan->req.brace >= 0 && !scan->req.unreadable &&
				     pull_finish(&scan->json, &last) == 0;
		scan->req.unreadable = !scan->req.complete;
	}
	for (int i = 0; i < CHAT_PARTS; i++) {
		const struct chat_stream *part = &scan->part[i];

		for (uint32_t at = 0; at < part->blocks && n < chain_max; at++) {
			hash = stream_join(hash, scan->blocks[part->first + at]);
			chain[n++] = hash;
		}
		/* A part's short last block is covered by the next block's hash. */
		if (i != CHAT_MESSAGES && part->fill)
			hash = stream_join(hash,
					   stream_hash(scan->block[i], part->fill, scan->seed));
	}
	return n;
}
