/* Follows a body's structure: strings, depth, the keys of the root and of its messages. */
#include "router/chat/map.h"

#include <string.h>

enum { ROOT = 1, LIST = 2, ITEM = 3 }; /* depths */
enum { ROLE_OTHER, ROLE_USER, ROLE_TOOL };
enum { ITEM_KEY_OTHER, ITEM_KEY_ROLE, ITEM_KEY_TYPE };

static const char *const keys[] = {
#define KEY(id, key) [CHAT_MAP_##id] = key,
	CHAT_MAP_KEYS(KEY)
#undef KEY
};

void chat_map_begin(struct chat_map *map)
{
	map->bytes = map->last = map->candidate = 0;
	map->members = map->cuts = map->odd = 0;
	map->depth = map->in_list = map->seen_cuts = 0;
	map->stride = 1;
	map->in_string = map->escape = map->capture = map->over = map->is_key = map->colon = 0;
	map->item_colon = map->item_key = map->open = map->item_role = 0;
	map->text_len = 0;
}

const struct chat_map_member *chat_map_find(const struct chat_map *map, enum chat_map_key key)
{
	for (uint32_t i = 0; i < map->members; i++)
		if (map->member[i].key == key)
			return &map->member[i];
	return NULL;
}

static int text_is(const struct chat_map *map, const char *text)
{
	return !map->over && strlen(text) == map->text_len &&
	       memcmp(map->text, text, map->text_len) == 0;
}

/* ---- the root's members ---- */

static void member_begin(struct chat_map *map)
{
	struct chat_map_member *m = &map->member[map->members];

	m->key = CHAT_MAP_OTHER;
	for (uint32_t i = CHAT_MAP_OTHER + 1; i < CHAT_MAP_KEYS_NR; i++)
		if (text_is(map, keys[i]))
			m->key = i;
	if (m->key != CHAT_MAP_OTHER && chat_map_find(map, m->key))
		map->odd = 1;
	m->value = 0;
	map->open = 1;
}

static void member_end(struct chat_map *map)
{
	if (!map->open)
		return;
	map->member[map->members++].end = map->last;
	map->open = 0;
}

static void key_begin(struct chat_map *map, uint64_t at)
{
	if (map->members == LIMIT_BODY_MEMBERS) {
		map->odd = 1;
		return;
	}
	map->member[map->members].at = at;
}

/* ---- messages ---- */

/* Every place, then every second, every fourth ... as the body is longer. */
static void cut_add(struct chat_map *map, uint64_t at)
{
	if (map->seen_cuts++ % map->stride)
		return;
	if (map->cuts == LIMIT_STAGE_CUTS) {
		for (uint32_t i = 0; i < LIMIT_STAGE_CUTS / 2; i++)
			map->cut[i] = map->cut[2 * i + 1];
		map->cuts = LIMIT_STAGE_CUTS / 2;
		map->stride *= 2;
	}
	map->cut[map->cuts++] = at;
}

/* What one message answers of a tool belongs together with those beside it. */
static void item_end(struct chat_map *map, uint64_t end)
{
	if (map->candidate && map->item_role != ROLE_TOOL)
		cut_add(map, map->candidate);
	map->candidate = map->item_role != ROLE_OTHER ? end : 0;
}

static void item_string(struct chat_map *map)
{
	if (map->is_key) {
		map->item_key = text_is(map, "role")   ? ITEM_KEY_ROLE
				: text_is(map, "type") ? ITEM_KEY_TYPE
						       : ITEM_KEY_OTHER;
		return;
	}
	if (map->item_key == ITEM_KEY_ROLE && text_is(map, "user"))
		map->item_role = ROLE_USER;
	if (map->item_key == ITEM_KEY_ROLE && text_is(map, "tool"))
		map->item_role = ROLE_TOOL;
	if (map->item_key == ITEM_KEY_TYPE && text_is(map, "function_call_output"))
		map->item_role = ROLE_TOOL;
}

/* ---- bytes ---- */

static void string_end(struct chat_map *map)
{
	map->in_string = 0;
	if (!map->capture)
		return;
	if (map->depth == ROOT && map->is_key && !map->odd)
		member_begin(map);
	if (map->depth == ITEM)
		item_string(map);
	map->capture = 0;
}

static void string_begin(struct chat_map *map, uint64_t at)
{
	map->in_string = 1;
	map->text_len = map->over = 0;
	map->capture = 0;
	if (map->depth == ROOT && !map->colon) {
		map->capture = map->is_key = 1;
		key_begin(map, at);
	} else if (map->depth == ITEM && map->in_list) {
		map->is_key = !map->item_colon;
		map->capture = map->is_key || map->item_key != ITEM_KEY_OTHER;
	}
}

/* Takes what it can of a string; returns the bytes taken. */
static size_t in_string(struct chat_map *map, const char *p, size_t len)
{
	size_t n = 0;

	for (; n < len; n++) {
		if (map->escape) {
			map->escape = 0;
			continue;
		}
		if (p[n] == '"') {
			string_end(map);
			return n + 1;
		}
		if (p[n] == '\\') {
			map->escape = 1;
			if (map->capture && map->is_key && map->depth == ROOT)
				map->odd = 1;
			map->over = 1;
			continue;
		}
		if (map->capture && map->text_len < sizeof(map->text))
			map->text[map->text_len++] = p[n];
		else
			map->over = 1;
	}
	return n;
}

static void opened(struct chat_map *map, char c)
{
	map->depth++;
	if (map->depth == LIST && c == '[' && map->open) {
		uint32_t key = map->member[map->members].key;

		map->in_list = key == CHAT_MAP_MESSAGES || key == CHAT_MAP_INPUT;
	}
	if (map->depth == ITEM) {
		map->item_colon = 0;
		map->item_key = ITEM_KEY_OTHER;
		map->item_role = ROLE_OTHER;
	}
}

static void closed(struct chat_map *map, uint64_t at)
{
	if (map->depth == 0)
		return;
	map->depth--;
	if (map->depth == LIST && map->in_list)
		item_end(map, at + 1);
	if (map->depth == ROOT)
		map->in_list = 0;
	if (map->depth == 0)
		member_end(map);
}

static void punctuation(struct chat_map *map, char c)
{
	if (map->depth == ROOT) {
		if (c == ',')
			member_end(map);
		map->colon = c == ':';
	} else if (map->depth == ITEM) {
		map->item_colon = c == ':';
		if (c == ',')
			map->item_key = ITEM_KEY_OTHER;
	}
}

static int is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void one(struct chat_map *map, char c, uint64_t at)
{
	if (is_space(c))
		return;
	if (map->open && map->depth == ROOT && map->colon && !map->member[map->members].value)
		map->member[map->members].value = at;
	if (c == '"')
		string_begin(map, at);
	else if (c == '{' || c == '[')
		opened(map, c);
	else if (c == '}' || c == ']')
		closed(map, at);
	else if (c == ',' || c == ':')
		punctuation(map, c);
}

void chat_map_step(struct chat_map *map, const void *bytes, size_t len)
{
	const char *p = bytes;

	for (size_t i = 0; i < len && !map->odd;) {
		if (map->in_string) {
			i += in_string(map, p + i, len - i);
			map->last = map->bytes + i;
			continue;
		}
		one(map, p[i], map->bytes + i);
		if (!is_space(p[i]))
			map->last = map->bytes + i + 1;
		i++;
	}
	map->bytes += len;
}
