/* Classifies targets against the table of paths; whatever could be read in two ways stays out. */
#include <assert.h>
#include <string.h>

#include "router/http/path.h"

static const struct {
	const char *name, *text;
	uint8_t size;
	bool generates;
} paths[] = {
#define X(name, text, generates) [HTTP_PATH_##name] = { #name, text, sizeof(text) - 1, generates },
	HTTP_PATHS(X)
#undef X
};

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 32;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

size_t http_path_decode(const char *raw, size_t len, char out[HTTP_PATH_BYTES])
{
	size_t n = 0;

	for (size_t at = 0; at < len; at++) {
		char c = raw[at];

		if (c == '%') {
			int high = at + 2 < len ? hex_digit(raw[at + 1]) : -1;
			int low = at + 2 < len ? hex_digit(raw[at + 2]) : -1;

			if (high < 0 || low < 0)
				return 0;
			c = (char)(high << 4 | low);
			at += 2;
			if (c == '%')
				return 0;
		}
		if ((unsigned char)c < 0x20 || c == 0x7f || c == '\\' || n == HTTP_PATH_BYTES - 1)
			return 0;
		out[n++] = c;
	}
	out[n] = 0;
	return n;
}

/* Dot segments (with or without ";parameters") and empty ones mean different things to different
 * readers. */
static bool plain_segments(const char *path, size_t len)
{
	for (size_t at = 0; at < len;) {
		size_t begin = at + 1, end = begin, name;

		if (path[at] != '/')
			return false;
		while (end < len && path[end] != '/')
			end++;
		for (name = begin; name < end && path[name] != ';';)
			name++;
		size_t size = name - begin;

		if (end == begin && end < len)
			return false;
		if ((size == 0 && name < end) || (size == 1 && path[begin] == '.') ||
		    (size == 2 && path[begin] == '.' && path[begin + 1] == '.'))
			return false;
		at = end;
	}
	return true;
}

/* `rule` is a whole path, or a prefix ending in '*' that stands for at least one byte. */
static bool matches(const char *rule, const char *path, size_t len)
{
	size_t size = strlen(rule);

	if (size && rule[size - 1] == '*')
		return len > size - 1 && memcmp(path, rule, size - 1) == 0;
	return size && len == size && memcmp(path, rule, size) == 0;
}

static enum http_path lookup(const char *path, size_t len, const struct http_path_rules *rules)
{
	/* What SGLang also serves below /v1. */
	if (matches("/v1/tokenize", path, len))
		return HTTP_PATH_TOKENIZE;
	if (matches("/v1/detokenize", path, len))
		return HTTP_PATH_DETOKENIZE;
	for (unsigned i = 0; i < HTTP_PATH_NR; i++)
		if (matches(paths[i].text, path, len))
			return i;
	for (uint32_t i = 0; i < rules->extras; i++)
		if (matches(rules->extra[i], path, len))
			return HTTP_PATH_CONFIGURED;
	return rules->all ? HTTP_PATH_CONFIGURED : HTTP_PATH_FORBIDDEN;
}

/* The id and what follows it, in the target as it came. */
static void split_id(struct http_route *route, const char *target, size_t len)
{
	const char *id = target + strlen(paths[route->path].text) - 1, *end = target + len;
	const char *slash =
		route->path == HTTP_PATH_RESPONSE ? memchr(id, '/', (size_t)(end - id)) : NULL;

	route->id = id;
	route->id_len = (uint32_t)((slash ? slash : end) - id);
	if (slash && slash + 1 < end) {
		route->sub = slash + 1;
		route->sub_len = (uint32_t)(end - route->sub);
	}
}

/* Most targets are a path of the table to the letter: nothing in them has two readings. */
static bool is_listed(const char *raw, size_t len, struct http_route *ret_route)
{
	for (unsigned i = 0; i < HTTP_PATH_NR; i++) {
		if (paths[i].size != len || !len || paths[i].text[len - 1] == '*' ||
		    memcmp(raw, paths[i].text, len) != 0)
			continue;
		ret_route->path = i;
		ret_route->generates = paths[i].generates;
		return true;
	}
	return false;
}

void http_path_classify(const char *target, size_t len, const struct http_path_rules *rules,
			struct http_route *ret_route)
{
	char path[HTTP_PATH_BYTES];
	const char *query = memchr(target, '?', len);
	size_t raw = query ? (size_t)(query - target) : len, n;

	*ret_route = (struct http_route){ .path = HTTP_PATH_FORBIDDEN };
	if (is_listed(target, raw, ret_route))
		return;
	n = http_path_decode(target, raw, path);
	if (!n || !plain_segments(path, n))
		return;
	ret_route->path = lookup(path, n, rules);
	ret_route->generates = paths[ret_route->path].generates;
	if (ret_route->path != HTTP_PATH_RESPONSE && ret_route->path != HTTP_PATH_MODEL)
		return;
	/* The prefix itself may have come encoded: then the id cannot be pointed at. */
	size_t prefix = strlen(paths[ret_route->path].text) - 1;

	if (raw > prefix && memcmp(target, path, prefix) == 0)
		split_id(ret_route, target, raw);
	else
		*ret_route = (struct http_route){ .path = HTTP_PATH_FORBIDDEN };
}

bool http_asks_anthropic(const char *head, size_t len)
{
	static const char api[] = "/v1/messages";
	const size_t size = sizeof(api) - 1;
	const char *end = head + len, *target;

	for (target = head; target < end && (*target == '\r' || *target == '\n');)
		target++;
	target = memchr(target, ' ', (size_t)(end - target));
	if (!target++)
		return false;
	if (end - target > 8 && memcmp(target, "http", 4) == 0) { /* absolute form */
		const char *host = memchr(target, '/', 7);

		target = host ? memchr(host + 2, '/', (size_t)(end - host - 2)) : NULL;
	}
	if (!target || (size_t)(end - target) < size || memcmp(target, api, size) != 0)
		return false;
	return (size_t)(end - target) == size || strchr(" ?/\t\r\n", target[size]);
}

const char *http_path_name(enum http_path path)
{
	assert(path < HTTP_PATH_NR);
	return paths[path].name;
}
