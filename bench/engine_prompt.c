/* Bodies of the OpenAI and Anthropic APIs, rendered through one chat template into token ids. */
#include "bench/engine_prompt.h"

#include <errno.h>

#include "shm/base/jread.h"

/* Top-level keys that count; one walk finds them all. */
#define PROMPT_KEYS(X)           \
	X(model)                 \
	X(messages)              \
	X(prompt)                \
	X(input)                 \
	X(content)               \
	X(system)                \
	X(instructions)          \
	X(tools)                 \
	X(tool_choice)           \
	X(stream)                \
	X(stream_options)        \
	X(n)                     \
	X(max_tokens)            \
	X(max_completion_tokens) \
	X(max_output_tokens)     \
	X(cache_salt)            \
	X(previous_response_id)  \
	X(store)                 \
	X(tokens)                \
	X(add_generation_prompt) \
	X(encoding_format)
#define PROMPT_KEY_ENUM(name) KEY_##name,
enum { PROMPT_KEYS(PROMPT_KEY_ENUM) KEYS_NR };
#define PROMPT_KEY_NAME(name) #name,
static const char *const key_names[] = { PROMPT_KEYS(PROMPT_KEY_NAME) };

/* Keys of a message, an input item or a content part. */
#define ITEM_KEYS(X)  \
	X(type)       \
	X(role)       \
	X(content)    \
	X(text)       \
	X(tool_calls) \
	X(output)     \
	X(image_url)  \
	X(source)     \
	X(thinking)
#define ITEM_KEY_ENUM(name) ITEM_##name,
enum { ITEM_KEYS(ITEM_KEY_ENUM) ITEMS_NR };
#define ITEM_KEY_NAME(name) #name,
static const char *const item_names[] = { ITEM_KEYS(ITEM_KEY_NAME) };

struct field {
	bool there;
	struct jread value;
};

struct reading {
	struct prompt *p;
	const struct prompt_world *world;
	struct field key[KEYS_NR];
	bool hashing;  /* texts go into `hash` ... */
	bool counting; /* ... or into the ids, or both */
	uint64_t hash;
	struct jread last_user; /* the message whose text seeds the answer; len 0 = none */
};

uint64_t prompt_hash(uint64_t hash, const void *bytes, size_t len)
{
	for (const uint8_t *at = bytes, *end = at + len; at < end; at++)
		hash = (hash ^ *at) * 0x100000001b3ull;
	return hash;
}

void prompt_fini(struct prompt *p)
{
	tokenizer_ids_fini(&p->ids);
	out_free(&p->scratch);
}

__attribute__((format(printf, 4, 5))) static int refuse(struct prompt *p, int status,
							const char *param, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vsnprintf(p->why, sizeof(p->why), format, list);
	va_end(list);
	p->status = status;
	snprintf(p->param, sizeof(p->param), "%s", param);
	return -EINVAL;
}

static void fields_of(const struct jread *object, const char *const names[], unsigned nr,
		      struct field field[])
{
	struct jread_walk walk;

	memset(field, 0, nr * sizeof(*field));
	if (object->type != JREAD_OBJECT)
		return;
	jread_walk_begin(&walk, object);
	while (jread_walk_next(&walk) > 0)
		for (unsigned i = 0; i < nr; i++)
			if (jread_is(&walk.key, names[i])) {
				field[i].there = walk.value.type != JREAD_NULL;
				field[i].value = walk.value;
				break;
			}
}

static uint32_t hex4(const char *at)
{
	uint32_t value = 0;

	for (int i = 0; i < 4; i++)
		value = value << 4 | (uint32_t)((at[i] & 15) + (at[i] > '9' ? 9 : 0));
	return value;
}

static size_t utf8_write(char *to, uint32_t code)
{
	if (code < 0x80) {
		to[0] = (char)code;
		return 1;
	}
	int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
	for (int i = more; i > 0; i--, code >>= 6)
		to[i] = (char)(0x80 | (code & 0x3f));
	to[0] = (char)(0xff00 >> (more + 1) | code);
	return (size_t)more + 1;
}

/* One escape at `at` (behind the backslash) to `to`; returns the bytes it took. */
static size_t unescape(const char *at, const char *end, char *to, size_t *ret_len)
{
	static const char from[] = "bfnrt", into[] = "\b\f\n\r\t";
	uint32_t code;

	*ret_len = 1;
	if (*at != 'u') {
		const char *known = strchr(from, *at);

		*to = known ? into[known - from] : *at;
		return 1;
	}
	code = hex4(at + 1);
	if (code >= 0xd800 && code < 0xdc00 && end - at >= 11 && at[5] == '\\' && at[6] == 'u' &&
	    hex4(at + 7) >= 0xdc00 && hex4(at + 7) < 0xe000) {
		code = 0x10000 + ((code - 0xd800) << 10) + (hex4(at + 7) - 0xdc00);
		*ret_len = utf8_write(to, code);
		return 11;
	}
	*ret_len = utf8_write(to, code >= 0xd800 && code < 0xe000 ? 0xfffd : code);
	return 5;
}

/*
 * The decoded string, in the scratch until the next call. jread has checked it, so this only copies
 * what lies between escapes: prompts are megabytes, and every engine of the process waits
 * meanwhile.
 */
static const char *decoded(struct prompt *p, const struct jread *string, size_t *ret_len)
{
	const char *at = string->text + 1, *end = string->text + string->len - 1, *escape;
	size_t len;

	assert(string->len >= 2);
	p->scratch.len = 0;
	out_reserve(&p->scratch, string->len);
	while ((escape = memchr(at, '\\', (size_t)(end - at)))) {
		out_mem(&p->scratch, at, (size_t)(escape - at));
		at = escape + 1;
		at += unescape(at, end, p->scratch.at + p->scratch.len, &len);
		p->scratch.len += len;
	}
	out_mem(&p->scratch, at, (size_t)(end - at));
	*ret_len = p->scratch.len;
	return p->scratch.at;
}

static void add_text(struct reading *r, const struct jread *string)
{
	size_t len;
	const char *text = decoded(r->p, string, &len);

	if (r->hashing)
		r->hash = prompt_hash(r->hash, text, len);
	if (r->counting)
		tokenizer_text(&r->p->ids, text, len);
}

/* JSON that the template prints as it stands: tools, calls. */
static void add_raw(struct reading *r, const struct jread *value)
{
	if (r->counting)
		tokenizer_text(&r->p->ids, value->text, value->len);
}

static void add_call(struct reading *r, const struct jread *call)
{
	if (r->counting)
		tokenizer_marker(&r->p->ids, TOKENIZER_CALL);
	add_raw(r, call);
}

/* A picture costs the same whatever it shows, and two pictures differ. */
static void add_image(struct reading *r, const struct jread *value)
{
	uint64_t hash = prompt_hash(PROMPT_HASH_START, value->text, value->len);

	if (!r->counting)
		return;
	tokenizer_marker(&r->p->ids, TOKENIZER_IMAGE);
	for (uint32_t i = 1; i < TOKENIZER_IMAGE_TOKENS; i++)
		tokenizer_id(&r->p->ids, TOKENIZER_PIECE_FIRST +
						 (uint32_t)((hash >> i % 40) % TOKENIZER_PIECES));
}

static void add_content(struct reading *r, const struct jread *content, int depth);

static void add_part(struct reading *r, const struct jread *part, int depth)
{
	struct field f[ITEMS_NR];

	fields_of(part, item_names, ITEMS_NR, f);
	if (f[ITEM_type].there && jread_is(&f[ITEM_type].value, "tool_use")) {
		add_call(r, part);
	} else if (f[ITEM_text].there && f[ITEM_text].value.type == JREAD_STRING) {
		add_text(r, &f[ITEM_text].value);
	} else if (f[ITEM_image_url].there || f[ITEM_source].there) {
		add_image(r,
			  f[ITEM_source].there ? &f[ITEM_source].value : &f[ITEM_image_url].value);
	} else if (f[ITEM_content].there) {
		add_content(r, &f[ITEM_content].value, depth + 1);
	} else if (f[ITEM_thinking].there && f[ITEM_thinking].value.type == JREAD_STRING) {
		add_text(r, &f[ITEM_thinking].value);
	} else {
		add_raw(r, part);
	}
}

/* A string, or a list of parts; a tool's result holds such a list again. */
static void add_content(struct reading *r, const struct jread *content, int depth)
{
	struct jread_walk walk;

	if (content->type == JREAD_STRING) {
		add_text(r, content);
	} else if (content->type == JREAD_ARRAY && depth < 4) {
		jread_walk_begin(&walk, content);
		while (jread_walk_next(&walk) > 0) {
			if (walk.value.type == JREAD_STRING)
				add_text(r, &walk.value);
			else
				add_part(r, &walk.value, depth);
		}
	}
}

static enum tokenizer_marker role_of(const struct field f[])
{
	char role[16];

	if (f[ITEM_role].there && jread_str(&f[ITEM_role].value, role, sizeof(role), NULL) == 0)
		return tokenizer_role(role, strlen(role));
	if (f[ITEM_output].there)
		return TOKENIZER_TOOL;
	return TOKENIZER_ASSISTANT; /* a function call as an input item */
}

/* What a message says: its content, a tool's output, or the calls it makes. */
static void add_body(struct reading *r, const struct jread *message, const struct field f[])
{
	if (f[ITEM_content].there)
		add_content(r, &f[ITEM_content].value, 0);
	else if (f[ITEM_output].there)
		add_content(r, &f[ITEM_output].value, 0);
	else if (!f[ITEM_role].there)
		add_call(r, message);
	if (f[ITEM_tool_calls].there)
		add_call(r, &f[ITEM_tool_calls].value);
}

/* One message of any API. */
static void add_message(struct reading *r, const struct jread *message)
{
	struct field f[ITEMS_NR];

	fields_of(message, item_names, ITEMS_NR, f);
	if (f[ITEM_type].there && jread_is(&f[ITEM_type].value, "reasoning"))
		return; /* templates drop earlier reasoning */
	enum tokenizer_marker role = role_of(f);
	tokenizer_open(&r->p->ids, role);
	add_body(r, message, f);
	tokenizer_close(&r->p->ids);
	if (role == TOKENIZER_USER)
		r->last_user = *message;
}

/* FNV-1a of a text, or of the texts of a message: FNV is slow, so only of the one that counts. */
static uint64_t hash_of(struct reading *r, const struct jread *value)
{
	struct field f[ITEMS_NR];

	r->hash = PROMPT_HASH_START;
	r->hashing = true;
	r->counting = false;
	fields_of(value, item_names, ITEMS_NR, f);
	if (value->type == JREAD_STRING)
		add_text(r, value);
	else if (value->len)
		add_body(r, value, f);
	r->hashing = false;
	r->counting = true;
	return r->hash;
}

static void add_tools(struct reading *r)
{
	const struct field *tools = &r->key[KEY_tools], *choice = &r->key[KEY_tool_choice];

	if (!tools->there || jread_count(&tools->value) == 0)
		return;
	if (!r->world->tools_always && choice->there && choice->value.type == JREAD_STRING &&
	    jread_is(&choice->value, "none"))
		return;
	tokenizer_open(&r->p->ids, TOKENIZER_TOOLS);
	add_raw(r, &tools->value);
	tokenizer_close(&r->p->ids);
}

/* Anthropic's system: a string or blocks, of which one may change with every request. */
static void add_system(struct reading *r)
{
	static const char billing[] = "\"x-anthropic-billing-header";
	const struct field *system = &r->key[KEY_system];
	struct jread_walk walk;
	struct jread text;

	if (!system->there)
		return;
	tokenizer_open(&r->p->ids, TOKENIZER_SYSTEM);
	if (system->value.type == JREAD_ARRAY) {
		jread_walk_begin(&walk, &system->value);
		while (jread_walk_next(&walk) > 0) {
			if (jread_get(&walk.value, "text", &text) < 0 ||
			    (r->world->skip_billing && text.len > sizeof(billing) &&
			     memcmp(text.text, billing, sizeof(billing) - 1) == 0))
				continue;
			add_content(r, &text, 0);
		}
	} else {
		add_content(r, &system->value, 0);
	}
	tokenizer_close(&r->p->ids);
}

static void part_end(struct prompt *p, size_t at, uint64_t hash)
{
	p->part[p->parts++] = (struct prompt_part){ .at = at, .nr = p->ids.nr - at, .hash = hash };
}

/* Whether the template opens the answer: not when /tokenize says otherwise. */
static bool wants_answer(const struct reading *r)
{
	int yes = 1;

	if (r->key[KEY_add_generation_prompt].there)
		jread_bool(&r->key[KEY_add_generation_prompt].value, &yes);
	return yes;
}

static int read_messages(struct reading *r)
{
	const struct field *messages = &r->key[KEY_messages];
	struct jread_walk walk;

	if (!messages->there)
		return refuse(r->p, 400, "body.messages",
			      "1 validation error:\n  {'type': 'missing', 'loc': 'body.messages', "
			      "'msg': 'Field required'}");
	if (messages->value.type != JREAD_ARRAY || jread_count(&messages->value) == 0)
		return refuse(r->p, 400, "body.messages",
			      "messages must be a list that is not empty");
	add_tools(r);
	add_system(r);
	jread_walk_begin(&walk, &messages->value);
	while (jread_walk_next(&walk) > 0)
		add_message(r, &walk.value);
	if (wants_answer(r))
		tokenizer_open(&r->p->ids, TOKENIZER_ASSISTANT);
	part_end(r->p, 0, hash_of(r, &r->last_user));
	return 0;
}

static int read_responses(struct reading *r)
{
	const struct field *input = &r->key[KEY_input];
	struct prompt *p = r->p;
	struct jread_walk walk;

	if (!input->there)
		return refuse(p, 400, "body.input",
			      "1 validation error:\n  {'type': 'missing', 'loc': 'body.input', "
			      "'msg': 'Field required'}");
	add_tools(r);
	if (r->key[KEY_instructions].there) {
		tokenizer_open(&p->ids, TOKENIZER_SYSTEM);
		add_content(r, &r->key[KEY_instructions].value, 0);
		tokenizer_close(&p->ids);
	}
	p->conversation_at = (uint32_t)p->ids.nr;
	if (p->previous[0] && !r->world->recall(r->world->ctx, p->previous, &p->ids))
		return refuse(p, 404, "previous_response_id", "Response with id '%s' not found.",
			      p->previous);
	if (input->value.type == JREAD_STRING) {
		tokenizer_open(&p->ids, TOKENIZER_USER);
		add_text(r, &input->value);
		tokenizer_close(&p->ids);
		r->last_user = input->value;
	} else {
		jread_walk_begin(&walk, &input->value);
		while (input->value.type == JREAD_ARRAY && jread_walk_next(&walk) > 0)
			add_message(r, &walk.value);
	}
	tokenizer_open(&p->ids, TOKENIZER_ASSISTANT);
	part_end(p, 0, hash_of(r, &r->last_user));
	return 0;
}

static int read_ids(struct reading *r, const struct jread *array)
{
	uint64_t id, hash = PROMPT_HASH_START;
	struct prompt *p = r->p;
	size_t at = p->ids.nr;
	struct jread_walk walk;

	jread_walk_begin(&walk, array);
	while (jread_walk_next(&walk) > 0) {
		if (jread_u64(&walk.value, &id) < 0 || id > UINT32_MAX)
			return refuse(p, 400, "prompt", "a token id is not a number in range");
		uint32_t word = (uint32_t)id;
		hash = prompt_hash(hash, &word, sizeof(word));
		tokenizer_id(&p->ids, word);
	}
	part_end(p, at, hash);
	return 0;
}

/* A prompt that is text: ids and hash in one pass. */
static void add_hashed(struct reading *r, const struct jread *value, size_t at)
{
	r->hash = PROMPT_HASH_START;
	r->hashing = true;
	add_content(r, value, 0);
	r->hashing = false;
	part_end(r->p, at, r->hash);
}

/* A string, token ids, or a list of either. */
static int read_prompt(struct reading *r, const struct field *prompt, const char *name)
{
	struct jread_walk walk;
	struct prompt *p = r->p;

	if (!prompt->there)
		return refuse(p, 400, name,
			      "1 validation error:\n  {'type': 'missing', 'loc': '%s', "
			      "'msg': 'Field required'}",
			      name);
	if (prompt->value.type == JREAD_STRING) {
		add_hashed(r, &prompt->value, 0);
		return 0;
	}
	if (prompt->value.type != JREAD_ARRAY)
		return refuse(p, 400, name, "%s must be a string or a list", name);
	jread_walk_begin(&walk, &prompt->value);
	if (jread_walk_next(&walk) <= 0 || walk.value.type == JREAD_NUMBER)
		return read_ids(r, &prompt->value);
	jread_walk_begin(&walk, &prompt->value);
	while (jread_walk_next(&walk) > 0) {
		if (p->parts == PROMPT_PARTS)
			return refuse(p, 400, name, "more than %d prompts in one request",
				      PROMPT_PARTS);
		if (walk.value.type == JREAD_ARRAY) {
			if (read_ids(r, &walk.value) < 0)
				return -EINVAL;
			continue;
		}
		add_hashed(r, &walk.value, p->ids.nr);
	}
	return 0;
}

static bool flag(const struct field *f)
{
	int yes = 0;

	return f->there && jread_bool(&f->value, &yes) == 0 && yes;
}

static int read_length(struct reading *r)
{
	static const int keys[] = { KEY_max_completion_tokens, KEY_max_output_tokens,
				    KEY_max_tokens };
	struct prompt *p = r->p;
	uint64_t value;

	p->output_tokens = PROMPT_OUTPUT_TOKENS;
	for (unsigned i = 0; i < 3 && !p->output_given; i++) {
		if (!r->key[keys[i]].there)
			continue;
		if (jread_u64(&r->key[keys[i]].value, &value) < 0 || value < 1)
			return refuse(p, 400, key_names[keys[i]], "%s must be at least 1",
				      key_names[keys[i]]);
		p->output_tokens = value < UINT32_MAX / 2 ? (uint32_t)value : UINT32_MAX / 2;
		p->output_given = true;
	}
	if (r->key[KEY_n].there) {
		if (jread_u64(&r->key[KEY_n].value, &value) < 0 || value < 1 ||
		    value > PROMPT_CHOICES)
			return refuse(p, 400, "n", "n must be 1..%d", PROMPT_CHOICES);
		p->n = (uint32_t)value;
	}
	return 0;
}

static int read_params(struct reading *r)
{
	struct prompt *p = r->p;
	struct jread usage;
	int yes = 0;
	size_t len;

	if (r->key[KEY_model].there)
		jread_str(&r->key[KEY_model].value, p->model, sizeof(p->model), NULL);
	if (r->key[KEY_previous_response_id].there)
		jread_str(&r->key[KEY_previous_response_id].value, p->previous, sizeof(p->previous),
			  NULL);
	if (r->key[KEY_cache_salt].there && r->key[KEY_cache_salt].value.type == JREAD_STRING) {
		const char *salt = decoded(p, &r->key[KEY_cache_salt].value, &len);

		p->salt = prompt_hash(PROMPT_HASH_START, salt, len);
	}
	p->stream = flag(&r->key[KEY_stream]);
	p->store = !r->key[KEY_store].there || flag(&r->key[KEY_store]);
	p->base64 = r->key[KEY_encoding_format].there &&
		    jread_is(&r->key[KEY_encoding_format].value, "base64");
	if (r->key[KEY_stream_options].there &&
	    jread_get(&r->key[KEY_stream_options].value, "include_usage", &usage) == 0)
		p->include_usage = jread_bool(&usage, &yes) == 0 && yes;
	return read_length(r);
}

static int read_tokenize(struct reading *r)
{
	if (r->key[KEY_messages].there)
		return read_messages(r);
	if (r->key[KEY_prompt].there)
		return read_prompt(r, &r->key[KEY_prompt], "prompt");
	return read_prompt(r, &r->key[KEY_content], "prompt");
}

static int read_by_api(struct reading *r, enum prompt_api api)
{
	switch (api) {
	case PROMPT_CHAT:
	case PROMPT_MESSAGES:
		return read_messages(r);
	case PROMPT_RESPONSES:
		return read_responses(r);
	case PROMPT_COMPLETIONS:
		return read_prompt(r, &r->key[KEY_prompt], "prompt");
	case PROMPT_EMBEDDINGS:
		return read_prompt(r, &r->key[KEY_input], "input");
	case PROMPT_TOKENIZE:
		return read_tokenize(r);
	case PROMPT_DETOKENIZE:
		return read_prompt(r, &r->key[KEY_tokens], "tokens");
	}
	return -EINVAL;
}

int prompt_read(struct prompt *p, enum prompt_api api, const char *body, size_t len,
		const struct prompt_world *world)
{
	struct reading r = { .p = p, .world = world, .counting = true };
	struct jread root;

	*p = (struct prompt){ .ids = p->ids, .scratch = p->scratch, .n = 1 };
	p->ids.nr = 0;
	if (jread_open(&root, body, len) < 0 || root.type != JREAD_OBJECT)
		return refuse(p, 400, "body",
			      "1 validation error:\n  {'type': 'json_invalid', "
			      "'loc': 'body', 'msg': 'JSON decode error'}");
	fields_of(&root, key_names, KEYS_NR, r.key);
	int err = read_params(&r);
	if (!err)
		err = read_by_api(&r, api);
	if (!err && (uint64_t)p->n * p->parts > PROMPT_CHOICES)
		err = refuse(p, 400, "n", "n times the number of prompts exceeds %d",
			     PROMPT_CHOICES);
	for (uint32_t i = 0; !err && i < p->parts; i++)
		if (p->part[i].nr == 0 && api != PROMPT_TOKENIZE && api != PROMPT_DETOKENIZE)
			err = refuse(p, 400, "prompt", "the prompt is empty");
	return err;
}
