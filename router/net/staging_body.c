/* Bodies of the router's own making: members of the client's, copied byte by byte. */
#include "router/net/staging.h"

#include "router/net/parts.h"
#include "router/route.h"
#include "router/worker.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void staging_map(const struct chain *chain, struct chat_map *ret_map)
{
	chat_map_begin(ret_map);
	for (const struct block *b = chain->head; b; b = b->next)
		chat_map_step(ret_map, b->data + b->start, b->end - b->start);
}

/* Calls for every byte of chain[at, end) are too many: a span of one block at a time. */
static size_t span(const struct chain *chain, uint64_t at, const uint8_t **ret_data)
{
	for (const struct block *b = chain->head; b; b = b->next) {
		uint64_t n = b->end - b->start;

		if (at < n) {
			*ret_data = b->data + b->start + at;
			return n - at;
		}
		at -= n;
	}
	return 0;
}

/* ---- what can be done with a body ---- */

static const struct chat_map_member *has(const struct staging *st, enum chat_map_key key)
{
	return chat_map_find(&st->map, key);
}

/* These three, and no list of prompts. */
static const char *const render_paths[HTTP_PATH_NR] = {
	[HTTP_PATH_CHAT] = "/v1/chat/completions/render",
	[HTTP_PATH_MESSAGES] = "/v1/messages/render",
	[HTTP_PATH_RESPONSES] = "/v1/responses/render",
};

int staging_renders(const struct exchange *x, const struct staging *st)
{
	return st->kind == ENGINE_KIND_VLLM && !st->map.odd && render_paths[x->target.path] != NULL;
}

int staging_tokenises(const struct exchange *x, const struct staging *st)
{
	const struct chat_map_member *m;
	const uint8_t *first;

	if (st->kind == ENGINE_KIND_UNKNOWN || st->map.odd || has(st, CHAT_MAP_DOCUMENTS))
		return 0;
	if (x->target.path == HTTP_PATH_CHAT)
		return has(st, CHAT_MAP_MESSAGES) != NULL;
	return x->target.path == HTTP_PATH_COMPLETIONS && (m = has(st, CHAT_MAP_PROMPT)) != NULL &&
	       span(&x->body, m->value, &first) > 0 && *first == '"';
}

int staging_cuts(const struct exchange *x, const struct staging *st)
{
	return !st->map.odd && st->map.cuts > 0 &&
	       (x->target.path == HTTP_PATH_CHAT || x->target.path == HTTP_PATH_MESSAGES ||
		x->target.path == HTTP_PATH_RESPONSES);
}

static const struct chat_map_member *list_of(const struct staging *st)
{
	const struct chat_map_member *m = has(st, CHAT_MAP_MESSAGES);

	return m ? m : has(st, CHAT_MAP_INPUT);
}

void staging_cuts_place(struct staging *st, uint32_t prompt_tokens)
{
	static const enum chat_map_key first[] = { CHAT_MAP_TOOLS, CHAT_MAP_SYSTEM,
						   CHAT_MAP_INSTRUCTIONS };
	const struct chat_map_member *list = list_of(st);
	double before = 0, all;

	for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++) {
		const struct chat_map_member *m = has(st, first[i]);

		before += m ? (double)(m->end - m->value) : 0;
	}
	all = before + (double)(list->end - list->value);
	for (uint32_t i = 0; i < st->map.cuts; i++)
		st->cut_tokens[i] =
			(uint32_t)(prompt_tokens *
				   (before + (double)(st->map.cut[i] - list->value)) / all);
}

/* ---- ids ---- */

static const struct chat_map_member *ids_of(const struct staging *st)
{
	const struct chat_map_member *m = chat_map_find(&st->told, CHAT_MAP_TOKENS);

	return m ? m : chat_map_find(&st->told, CHAT_MAP_TOKEN_IDS);
}

uint64_t staging_ids_count(struct staging *st)
{
	const struct chat_map_member *m;
	uint64_t commas = 0, digits = 0;
	const uint8_t *p;

	staging_map(&st->answer, &st->told);
	m = ids_of(st);
	if (st->told.odd || !m || m->end < m->value + 3)
		return 0;
	for (uint64_t at = m->value; at < m->end;) {
		size_t n = span(&st->answer, at, &p);

		if (n > m->end - at)
			n = m->end - at;
		if (n == 0)
			return 0;
		for (size_t i = 0; i < n; i++) {
			int edge = at + i == m->value || at + i + 1 == m->end;

			commas += p[i] == ',';
			digits += p[i] >= '0' && p[i] <= '9';
			if (!edge && p[i] != ',' && p[i] != ' ' && !(p[i] >= '0' && p[i] <= '9'))
				return 0;
		}
		at += n;
	}
	st->seek_id = 0;
	st->seek_at = m->value + 1;
	st->ids = digits > commas ? commas + 1 : 0;
	return st->ids;
}

/* The end of the first `ids` of them; cuts only grow, so it goes on where it was. */
static uint64_t ids_end(struct staging *st, uint64_t ids)
{
	const uint8_t *p;

	while (st->seek_id < ids) {
		size_t n = span(&st->answer, st->seek_at, &p), i = 0;

		if (n == 0)
			return 0;
		while (i < n && st->seek_id < ids)
			st->seek_id += p[i++] == ',';
		st->seek_at += i;
	}
	return st->seek_at - 1; /* behind the id, before its comma */
}

/* ---- writing ---- */

struct writer {
	struct worker *w;
	struct staging *st;
	const struct chain *from; /* the client's body */
	int err;
	int members;
};

static void put(struct writer *o, const void *data, size_t len)
{
	if (o->err == 0 && chain_append(&o->st->out, &o->w->bodies, data, len) < 0)
		o->err = -ENOBUFS;
}

static void text(struct writer *o, const char *s)
{
	put(o, s, strlen(s));
}

static void copy(struct writer *o, const struct chain *from, uint64_t at, uint64_t end)
{
	const uint8_t *p;

	while (o->err == 0 && at < end) {
		size_t n = span(from, at, &p);

		if (n > end - at)
			n = end - at;
		if (n == 0)
			o->err = -EINVAL;
		put(o, p, n);
		at += n;
	}
}

/* One more member; `json` as it stands. */
static void add(struct writer *o, const char *json)
{
	text(o, o->members++ ? "," : "{");
	text(o, json);
}

/* A member of the client's, if it is there. */
static int keep(struct writer *o, enum chat_map_key key)
{
	const struct chat_map_member *m = has(o->st, key);

	if (!m)
		return 0;
	text(o, o->members++ ? "," : "{");
	copy(o, o->from, m->at, m->end);
	return 1;
}

/* Is this in a member's first bytes? */
static int holds(struct writer *o, const struct chat_map_member *m, const char *word)
{
	char value[256];
	const uint8_t *p;
	size_t len = 0;

	for (uint64_t at = m->value; at < m->end && len < sizeof(value);) {
		size_t n = span(o->from, at, &p);

		if (n == 0)
			break;
		n = n < m->end - at ? n : m->end - at;
		n = n < sizeof(value) - len ? n : sizeof(value) - len;
		memcpy(value + len, p, n);
		len += n;
		at += n;
	}
	return memmem(value, len, word, strlen(word)) != NULL;
}

/* Everything of the client's that may change its prompt, whatever the template reads. */
static void template_ask(struct writer *o)
{
	for (uint32_t i = 0; i < o->st->map.members; i++) {
		const struct chat_map_member *m = &o->st->map.member[i];

		if (m->key >= CHAT_MAP_DROPPED ||
		    (m->key == CHAT_MAP_ADD_GENERATION_PROMPT && o->st->kind == ENGINE_KIND_SGLANG))
			continue; /* SGLang then renders otherwise than for a chat */
		text(o, o->members++ ? "," : "{");
		copy(o, o->from, m->at, m->end);
	}
	text(o, "}");
}

/* vLLM makes arguments of its template out of this member, but not when asked for tokens. */
static void template_arguments(struct writer *o)
{
	const struct chat_map_member *effort = has(o->st, CHAT_MAP_REASONING_EFFORT);
	const struct chat_map_member *more = has(o->st, CHAT_MAP_CHAT_TEMPLATE_KWARGS);

	if (!effort || holds(o, effort, "null")) {
		keep(o, CHAT_MAP_CHAT_TEMPLATE_KWARGS);
		return;
	}
	/* Of two of one name the last one counts. */
	add(o, "\"chat_template_kwargs\":{\"enable_thinking\":");
	text(o, holds(o, effort, "\"none\"") ? "false," : "true,");
	if (more && holds(o, more, ":")) {
		copy(o, o->from, more->value + 1, more->end - 1);
		text(o, ",");
	}
	copy(o, o->from, effort->at, effort->end);
	text(o, "}");
}

/* llama.cpp: the template's text, or the client's own. */
static void content_ask(struct writer *o)
{
	const struct chat_map_member *m = chat_map_find(&o->st->told, CHAT_MAP_PROMPT);

	add(o, "\"content\":");
	if (o->st->answer.bytes && m) {
		copy(o, &o->st->answer, m->value, m->end);
	} else if ((m = has(o->st, CHAT_MAP_PROMPT)) != NULL) {
		copy(o, o->from, m->value, m->end);
	} else {
		o->err = -EINVAL;
	}
	add(o, "\"add_special\":true");
	add(o, "\"parse_special\":true");
	text(o, "}");
}

static void tokens_ask(struct writer *o)
{
	keep(o, CHAT_MAP_MODEL);
	keep(o, CHAT_MAP_MESSAGES);
	keep(o, CHAT_MAP_PROMPT);
	keep(o, CHAT_MAP_TOOLS);
	template_arguments(o);
	keep(o, CHAT_MAP_ADD_SPECIAL_TOKENS);
	keep(o, CHAT_MAP_CHAT_TEMPLATE);
	keep(o, CHAT_MAP_CONTINUE_FINAL_MESSAGE);
	if (has(o->st, CHAT_MAP_MESSAGES) && !keep(o, CHAT_MAP_ADD_GENERATION_PROMPT))
		add(o, "\"add_generation_prompt\":true");
	text(o, "}");
}

static void ids_piece(struct writer *o)
{
	/* What decides which cache it goes to, and when. */
	static const enum chat_map_key kept[] = {
		CHAT_MAP_CACHE_SALT, CHAT_MAP_EXTRA_KEY,      CHAT_MAP_PRIORITY,
		CHAT_MAP_LORA_PATH,  CHAT_MAP_ROUTED_DP_RANK, CHAT_MAP_DATA_PARALLEL_RANK
	};
	const struct chat_map_member *m = ids_of(o->st);
	uint64_t end = ids_end(o->st, o->st->next.cut_tokens);

	if (!m || end <= m->value) {
		o->err = -EINVAL;
		return;
	}
	keep(o, CHAT_MAP_MODEL);
	add(o, "\"prompt\":[");
	copy(o, &o->st->answer, m->value + 1, end);
	text(o, "]");
	add(o, "\"max_tokens\":1,\"temperature\":0");
	for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
		keep(o, kept[i]);
	text(o, "}");
}

/* A choice of tools that is forced would forbid an answer of one token; the others are in the
 * prompt. */
static int forces_a_tool(struct writer *o, const struct chat_map_member *m)
{
	return !holds(o, m, "\"auto\"") && !holds(o, m, "\"none\"");
}

/* A budget for thinking must lie under the answer's limit; which of the two kinds of thinking it is
 * makes no difference to the prompt. */
static int thinks_by_budget(struct writer *o, const struct chat_map_member *m)
{
	return m->key == CHAT_MAP_THINKING && o->st->kind != ENGINE_KIND_LLAMACPP &&
	       holds(o, m, "\"budget_tokens\"");
}

/* Where the messages end that this piece has. */
static uint64_t messages_end(const struct staging *st)
{
	uint32_t i = 0;

	while (i + 1 < st->map.cuts && st->cut_tokens[i] < st->next.cut_tokens)
		i++;
	return st->map.cut[i];
}

static void messages_piece(struct writer *o, enum http_path path)
{
	const struct chat_map_member *list = list_of(o->st);

	for (uint32_t i = 0; i < o->st->map.members; i++) {
		const struct chat_map_member *m = &o->st->map.member[i];

		if (m->key >= CHAT_MAP_DROPPED ||
		    (m->key == CHAT_MAP_TOOL_CHOICE && forces_a_tool(o, m)))
			continue;
		if (thinks_by_budget(o, m)) {
			add(o, "\"thinking\":{\"type\":\"adaptive\"}");
			continue;
		}
		text(o, o->members++ ? "," : "{");
		copy(o, o->from, m->at, m == list ? messages_end(o->st) : m->end);
		if (m == list)
			text(o, "]");
	}
	if (path != HTTP_PATH_RESPONSES)
		add(o, "\"max_tokens\":1");
	else if (o->st->kind == ENGINE_KIND_SGLANG) /* keeps two for itself, and refuses less */
		add(o, "\"max_output_tokens\":3,\"store\":false");
	else
		add(o, "\"max_output_tokens\":1,\"store\":false");
	text(o, "}");
}

int staging_body_write(struct worker *w, struct exchange *x, const char **ret_path)
{
	struct staging *st = x->staging;
	struct writer o = { .w = w, .st = st, .from = &x->body };

	chain_clear(&st->out, &w->bodies);
	*ret_path = "/tokenize";
	if (st->phase == STAGING_RENDER) {
		*ret_path = render_paths[x->target.path];
		copy(&o, &x->body, 0, x->body.bytes);
	} else if (st->phase == STAGING_TEMPLATE) {
		*ret_path = "/apply-template";
		template_ask(&o);
	} else if (st->phase == STAGING_TOKENS) {
		if (st->kind == ENGINE_KIND_LLAMACPP)
			content_ask(&o);
		else if (st->kind == ENGINE_KIND_SGLANG)
			template_ask(&o);
		else
			tokens_ask(&o);
		chain_clear(&st->answer, &w->bodies); /* the ids come in its place */
	} else if (st->by_ids) {
		*ret_path = "/v1/completions";
		ids_piece(&o);
	} else {
		*ret_path = NULL;
		messages_piece(&o, x->target.path);
	}
	return o.err;
}
