/*
 * Parses heads: our own strict pass over the lines, llhttp as a second reader, and the rules on
 * top. A head on which the two readers do not agree is refused: that is where smuggling lives. On a
 * plain head they cannot differ (tests hold that against llhttp): it is read once.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <strings.h>

#include <llhttp.h>

#include "router/http/http.h"

static const struct http_error_info errors[] = {
#define X(name, status, code, text) [HTTP_ERROR_##name] = { #name, code, text, status },
	HTTP_ERRORS(X)
#undef X
};

enum { FIELD_NAME_MAX = 20 }; /* bytes of the longest known name, at least */

enum { HOP_E, HOP_H }; /* the letters of HTTP_FIELDS */

static const struct {
	const char *name;
	uint8_t len;
	bool hop;
} fields[] = {
#define X(id, name, hop) [HTTP_FIELD_##id] = { name, sizeof(name) - 1, HOP_##hop == HOP_H },
	HTTP_FIELDS(X)
#undef X
};

static const struct {
	const char *name;
	uint8_t len;
} methods[] = {
#define X(name) [HTTP_METHOD_##name] = { #name, sizeof(#name) - 1 },
	HTTP_METHODS(X)
#undef X
};

const struct http_error_info *http_error_info(enum http_error error)
{
	assert(error < HTTP_ERROR_NR);
	return &errors[error];
}

static int refuse(struct http_head *head, enum http_error error)
{
	head->error = error;
	return errors[error].status == 431 || errors[error].status == 414 ? -E2BIG : -EPROTO;
}

static size_t leading_blank(const char *buf, size_t len)
{
	size_t at = 0;

	while (at < len && (buf[at] == '\r' || buf[at] == '\n'))
		at++;
	return at;
}

size_t http_head_end(const char *buf, size_t len, size_t from)
{
	size_t start = leading_blank(buf, len), at = from > 3 ? from - 3 : 0;

	if (at < start)
		at = start;
	while (at < len) {
		const char *line_end = memchr(buf + at, '\n', len - at);

		if (!line_end)
			return 0;
		at = (size_t)(line_end - buf) + 1;
		/* A bare LF ends a head too, so that it is refused now and not by a time limit. */
		if (at < len && buf[at] == '\n')
			return at + 1;
		if (at + 1 < len && buf[at] == '\r' && buf[at + 1] == '\n')
			return at + 2;
	}
	return 0;
}

enum http_error http_head_too_long(const char *buf, size_t len)
{
	size_t start = leading_blank(buf, len);

	return memchr(buf + start, '\n', len - start) ? HTTP_ERROR_HEAD_LONG
						      : HTTP_ERROR_TARGET_LONG;
}

enum {
	TOKEN = 1,        /* of a name of a field or method */
	PLAIN_NAME = 2,   /* of a name in a plain head */
	PLAIN_TARGET = 4, /* of its target */
	AUTHORITY = 8,    /* of a host's name */
	PLAIN = TOKEN | PLAIN_NAME | PLAIN_TARGET | AUTHORITY,
};

static const uint8_t bytes[256] = {
	['0' ... '9'] = PLAIN,
	['A' ... 'Z'] = PLAIN,
	['a' ... 'z'] = PLAIN,
	['-'] = PLAIN,
	['_'] = PLAIN,
	['.'] = TOKEN | PLAIN_TARGET | AUTHORITY,
	['~'] = TOKEN | PLAIN_TARGET | AUTHORITY,
	['%'] = TOKEN | PLAIN_TARGET | AUTHORITY,
	['&'] = TOKEN | PLAIN_TARGET | AUTHORITY,
	['/'] = PLAIN_TARGET,
	['?'] = PLAIN_TARGET,
	['='] = PLAIN_TARGET | AUTHORITY,
	['('] = AUTHORITY,
	[')'] = AUTHORITY,
	[';'] = AUTHORITY,
	['!'] = TOKEN | AUTHORITY,
	['#'] = TOKEN,
	['$'] = TOKEN | AUTHORITY,
	['\''] = TOKEN | AUTHORITY,
	['*'] = TOKEN | AUTHORITY,
	['+'] = TOKEN | AUTHORITY,
	['^'] = TOKEN,
	['`'] = TOKEN,
	['|'] = TOKEN,
};

static bool is_token(unsigned char c)
{
	return bytes[c] & TOKEN;
}

enum http_error http_head_hopeless(const char *buf, size_t len)
{
	const char *line_end = memchr(buf, '\n', len);

	if (len && !is_token((unsigned char)buf[0]))
		return HTTP_ERROR_SYNTAX;
	if (!line_end)
		return HTTP_ERROR_NONE;
	if (line_end[-1] != '\r')
		return HTTP_ERROR_BARE_LINE_END;
	return memmem(buf, (size_t)(line_end - buf), " HTTP/", 6) ? HTTP_ERROR_NONE
								  : HTTP_ERROR_SYNTAX;
}

static bool is_space(char c)
{
	return c == ' ' || c == '\t';
}

static bool same(const char *buf, struct http_slice s, const char *name, size_t len)
{
	return s.len == len && strncasecmp(buf + s.at, name, len) == 0;
}

/* The known names of each length, a bit for each id. */
static uint32_t names[FIELD_NAME_MAX + 1];
static_assert(HTTP_FIELD_NR <= 32, "a bit for each");

__attribute__((constructor)) static void index_names(void)
{
	for (unsigned id = 0; id < HTTP_FIELD_NR; id++) {
		assert(fields[id].len <= FIELD_NAME_MAX);
		names[fields[id].len] |= 1u << id;
	}
}

static uint8_t field_id(const char *name, size_t len)
{
	uint32_t left = len <= FIELD_NAME_MAX ? names[len] : 0;

	for (; left; left &= left - 1) {
		unsigned id = (unsigned)__builtin_ctz(left);

		if (fields[id].name[0] == (name[0] | 32) &&
		    strncasecmp(name, fields[id].name, len) == 0)
			return (uint8_t)id;
	}
	return HTTP_FIELD_OTHER;
}

/* Whether a field of that id is one that any reader takes for the same. */
static bool plain_field(const char *buf, const struct http_field *field)
{
	switch (field->id) {
	case HTTP_FIELD_CONNECTION:
		return same(buf, field->value, "keep-alive", 10) ||
		       same(buf, field->value, "close", 5);
	case HTTP_FIELD_TRANSFER_ENCODING:
		return same(buf, field->value, "chunked", 7);
	case HTTP_FIELD_HTTP2_SETTINGS:
	case HTTP_FIELD_PROXY_CONNECTION:
	case HTTP_FIELD_UPGRADE:
		return false;
	default: /* of Content-Length the rules make sure */
		return true;
	}
}

/* One field line, without its end. */
static int take_field(struct http_head *head, const char *buf, size_t at, size_t end)
{
	size_t name = at;

	if (is_space(buf[at]))
		return refuse(head, HTTP_ERROR_FOLDED);
	if (end - at > LIMIT_HEAD_FIELD)
		return refuse(head, HTTP_ERROR_FIELD_LONG);
	if (head->fields == LIMIT_HEAD_FIELDS)
		return refuse(head, HTTP_ERROR_FIELDS_MANY);
	unsigned all = PLAIN, one;

	/* The line's end is none. */
	for (; (one = bytes[(unsigned char)buf[at]]) & TOKEN; at++)
		all &= one;
	if (at == name || at == end || buf[at] != ':')
		return refuse(head, HTTP_ERROR_FIELD_NAME);
	struct http_field *field = &head->field[head->fields++];

	field->name = (struct http_slice){ (uint16_t)name, (uint16_t)(at - name) };
	for (at++; at < end && is_space(buf[at]);)
		at++;
	while (end > at && is_space(buf[end - 1]))
		end--;
	field->value = (struct http_slice){ (uint16_t)at, (uint16_t)(end - at) };
	field->id = field_id(buf + name, field->name.len);
	field->hop = field->id != HTTP_FIELD_OTHER && fields[field->id].hop;
	if (field->id != HTTP_FIELD_OTHER && !head->first[field->id])
		head->first[field->id] = (uint8_t)head->fields;
	head->plain &= (all & PLAIN_NAME) && plain_field(buf, field);
	return 0;
}

typedef uint8_t vector __attribute__((vector_size(16), aligned(1)));

enum { SUSPECT = 1, NOT_PLAIN = 2 };

/* Sixteen bytes and the one that follows each. */
static void survey_some(const uint8_t *b, vector *wrong, vector *odd)
{
	vector c = *(const vector *)b, next = *(const vector *)(b + 1);
	vector cr = (vector)(c == '\r'), tab = (vector)(c == '\t');

	*wrong |= (vector)(c < 0x20) & ~(cr | tab | (vector)(c == '\n'));
	*wrong |= (vector)(c == 0x7f) | (cr & (vector)(next != '\n'));
	*odd |= tab | (vector)(c > 0x7f);
}

static bool any(vector v)
{
	uint64_t halves[2];

	memcpy(halves, &v, sizeof(halves));
	return halves[0] | halves[1];
}

/*
 * One look at all of a head, a vector at a time, whether its lines must be checked one by one and
 * whether something keeps it from being plain. The last look may go over bytes once more.
 */
static unsigned survey(const char *buf, size_t len)
{
	const uint8_t *b = (const uint8_t *)buf;
	vector wrong = { 0 }, odd = { 0 };

	if (len <= sizeof(vector))
		return SUSPECT | NOT_PLAIN;
	for (size_t i = 0; i + sizeof(vector) < len; i += sizeof(vector))
		survey_some(b + i, &wrong, &odd);
	survey_some(b + len - sizeof(vector) - 1, &wrong, &odd);
	return (any(wrong) ? SUSPECT : 0) | (any(odd) ? NOT_PLAIN : 0);
}

/* A line holds no line end and no other control byte than a tab. */
static int check_line(struct http_head *head, const char *buf, size_t at, size_t end)
{
	for (; at < end; at++) {
		unsigned char c = (unsigned char)buf[at];

		if ((c < 0x20 && c != '\t') || c == 0x7f)
			return refuse(head, c == '\r' ? HTTP_ERROR_BARE_LINE_END
						      : HTTP_ERROR_CONTROL_BYTE);
	}
	return 0;
}

/* The start line's bounds go to *ret_line; the fields to head->field. */
static int take_lines(struct http_head *head, const char *buf, size_t len, size_t start,
		      struct http_slice *ret_line)
{
	unsigned seen = survey(buf, len);
	size_t at = start;

	head->plain = start == 0 && !(seen & NOT_PLAIN);
	for (;;) {
		const char *line_end = memchr(buf + at, '\n', len - at);
		size_t end = line_end ? (size_t)(line_end - buf) : 0;

		if (!line_end || end == at || buf[end - 1] != '\r')
			return refuse(head, HTTP_ERROR_BARE_LINE_END);
		end--;
		if (end == at)
			break;
		int err = seen & SUSPECT ? check_line(head, buf, at, end) : 0;

		if (err)
			return err;
		if (at == start)
			*ret_line = (struct http_slice){ (uint16_t)at, (uint16_t)(end - at) };
		else if ((err = take_field(head, buf, at, end)))
			return err;
		at = end + 2;
	}
	return at + 2 == len ? 0 : refuse(head, HTTP_ERROR_SYNTAX);
}

/* What the second reader saw. */
struct second {
	const char *buf;
	struct http_slice method, target;
	uint64_t content_length;
	uint16_t flags;
	bool whole;
};

static void note(struct second *seen, struct http_slice *slice, const char *at, size_t len)
{
	if (!slice->len)
		slice->at = (uint16_t)(at - seen->buf);
	slice->len += (uint16_t)len;
}

static int on_method(llhttp_t *p, const char *at, size_t len)
{
	struct second *seen = p->data;

	note(seen, &seen->method, at, len);
	return 0;
}

static int on_url(llhttp_t *p, const char *at, size_t len)
{
	struct second *seen = p->data;

	note(seen, &seen->target, at, len);
	return 0;
}

static int on_head(llhttp_t *p)
{
	struct second *seen = p->data;

	seen->whole = true;
	seen->flags = p->flags;
	seen->content_length = p->content_length;
	return 0;
}

static enum http_error read_again(struct second *seen, llhttp_type_t type, size_t start, size_t len)
{
	static const llhttp_settings_t settings = { .on_method = on_method,
						    .on_url = on_url,
						    .on_headers_complete = on_head };
	llhttp_t parser;

	llhttp_init(&parser, type, &settings);
	parser.data = seen;
	switch (llhttp_execute(&parser, seen->buf + start, len - start)) {
	case HPE_OK:
	case HPE_PAUSED_UPGRADE:
		return seen->whole ? HTTP_ERROR_NONE : HTTP_ERROR_SYNTAX;
	case HPE_INVALID_METHOD:
		return HTTP_ERROR_METHOD;
	case HPE_INVALID_URL:
		return HTTP_ERROR_TARGET;
	case HPE_INVALID_VERSION:
	case HPE_PAUSED_H2_UPGRADE:
		return HTTP_ERROR_VERSION;
	case HPE_INVALID_STATUS:
		return HTTP_ERROR_STATUS;
	default:
		return HTTP_ERROR_SYNTAX;
	}
}

/* The next member of a comma-separated list, without the space around it. */
static bool list_next(const char **p, const char *end, const char **ret_item, size_t *ret_len)
{
	while (*p < end) {
		const char *item = *p, *stop = memchr(item, ',', (size_t)(end - item));

		if (!stop)
			stop = end;
		*p = stop < end ? stop + 1 : end;
		while (item < stop && is_space(*item))
			item++;
		while (stop > item && is_space(stop[-1]))
			stop--;
		if (item == stop)
			continue;
		*ret_item = item;
		*ret_len = (size_t)(stop - item);
		return true;
	}
	return false;
}

static bool is_word(const char *item, size_t len, const char *word)
{
	return strlen(word) == len && strncasecmp(item, word, len) == 0;
}

static void mark_hop(struct http_head *head, const char *buf, const char *name, size_t len)
{
	/* Host belongs to the message whatever Connection says: without it no engine answers. */
	for (unsigned i = 0; i < head->fields; i++)
		if (head->field[i].id != HTTP_FIELD_HOST &&
		    same(buf, head->field[i].name, name, len))
			head->field[i].hop = true;
}

static void read_connection(struct http_head *head, const char *buf)
{
	bool close = false, keep = false;

	for (unsigned i = 0; i < head->fields; i++) {
		const char *p = buf + head->field[i].value.at, *end = p + head->field[i].value.len,
			   *item;
		size_t len;

		if (head->field[i].id != HTTP_FIELD_CONNECTION)
			continue;
		while (list_next(&p, end, &item, &len)) {
			close |= is_word(item, len, "close");
			keep |= is_word(item, len, "keep-alive");
			mark_hop(head, buf, item, len);
		}
	}
	head->keep_alive = !close && (head->minor == 1 || keep);
	head->upgrade = http_head_field(head, HTTP_FIELD_UPGRADE) != NULL;
}

static uint32_t parameter(const char *item, size_t len, const char *name)
{
	size_t at = strlen(name);
	uint64_t value = 0;

	if (len <= at || strncasecmp(item, name, at) != 0)
		return 0;
	for (; at < len && item[at] >= '0' && item[at] <= '9' && value < UINT32_MAX; at++)
		value = value * 10 + (uint64_t)(item[at] - '0');
	return at == len && value <= UINT32_MAX ? (uint32_t)value : 0;
}

static void read_keep_alive(struct http_head *head, const char *buf)
{
	const struct http_field *field = http_head_field(head, HTTP_FIELD_KEEP_ALIVE);

	if (!field)
		return;
	const char *p = buf + field->value.at, *end = p + field->value.len, *item;
	size_t len;

	while (list_next(&p, end, &item, &len)) {
		uint32_t timeout = parameter(item, len, "timeout=");
		uint32_t max = parameter(item, len, "max=");

		head->keep_alive_timeout_s = timeout ? timeout : head->keep_alive_timeout_s;
		head->keep_alive_max = max ? max : head->keep_alive_max;
	}
}

static void read_content_type(struct http_head *head, const char *buf)
{
	const struct http_field *field = http_head_field(head, HTTP_FIELD_CONTENT_TYPE);

	if (!field)
		return;
	const char *type = buf + field->value.at;
	const char *semicolon = memchr(type, ';', field->value.len);
	size_t len = semicolon ? (size_t)(semicolon - type) : field->value.len;

	while (len && is_space(type[len - 1]))
		len--;
	head->sse = is_word(type, len, "text/event-stream");
	head->json = is_word(type, len, "application/json") ||
		     (len > 5 && is_word(type + len - 5, 5, "+json"));
}

static unsigned count_fields(const struct http_head *head, enum http_field_id id)
{
	unsigned n = 0;

	for (unsigned i = 0; i < head->fields; i++)
		n += head->field[i].id == id;
	return n;
}

static bool decimal(const char *text, size_t len, uint64_t *ret_value)
{
	uint64_t value = 0;

	if (!len)
		return false;
	for (size_t i = 0; i < len; i++) {
		unsigned digit = (unsigned char)text[i] - '0';

		if (digit > 9 || value > ((uint64_t)INT64_MAX - digit) / 10)
			return false;
		value = value * 10 + digit;
	}
	*ret_value = value;
	return true;
}

/* Content-Length and Transfer-Encoding as they stand: at most one of them, once, unmistakable. */
static enum http_error read_framing(struct http_head *head, const char *buf)
{
	const struct http_field *length = http_head_field(head, HTTP_FIELD_CONTENT_LENGTH);
	const struct http_field *transfer = http_head_field(head, HTTP_FIELD_TRANSFER_ENCODING);

	if (length && transfer)
		return HTTP_ERROR_AMBIGUOUS;
	if (length) {
		if (count_fields(head, HTTP_FIELD_CONTENT_LENGTH) != 1 ||
		    !decimal(buf + length->value.at, length->value.len, &head->content_length))
			return HTTP_ERROR_LENGTH;
		head->has_content_length = true;
		head->framing = HTTP_LENGTH;
	}
	if (transfer) {
		if (head->minor == 0 || count_fields(head, HTTP_FIELD_TRANSFER_ENCODING) != 1 ||
		    !same(buf, transfer->value, "chunked", 7))
			return HTTP_ERROR_TRANSFER;
		head->framing = HTTP_CHUNKED;
	}
	return HTTP_ERROR_NONE;
}

/* host [":" port], without user information. */
static bool valid_authority(const char *text, size_t len)
{
	size_t at = 0;

	if (len && text[0] == '[') {
		while (at < len && text[at] != ']')
			if (++at < len && !strchr("0123456789abcdefABCDEF:.]", text[at]))
				return false;
		if (at++ < 2 || at > len)
			return false;
	} else {
		while (at < len && (bytes[(unsigned char)text[at]] & AUTHORITY))
			at++;
	}
	if (at == 0)
		return false;
	if (at < len && text[at] == ':')
		for (at++; at < len && text[at] >= '0' && text[at] <= '9';)
			at++;
	return at == len;
}

static bool valid_host(const struct http_head *head, const char *buf)
{
	const struct http_field *host = http_head_field(head, HTTP_FIELD_HOST);

	if (!host)
		return head->minor == 0;
	return count_fields(head, HTTP_FIELD_HOST) == 1 &&
	       valid_authority(buf + host->value.at, host->value.len);
}

/* Origin form, absolute form, or * with OPTIONS. */
static bool read_target(struct http_head *head, const char *buf)
{
	const char *target = buf + head->target.at;
	size_t len = head->target.len;

	unsigned all = PLAIN;

	for (size_t i = 0; i < len; i++) {
		all &= bytes[(unsigned char)target[i]];
		if ((unsigned char)target[i] <= ' ' || (unsigned char)target[i] > '~' ||
		    target[i] == '#')
			return false;
	}
	head->plain &= (all & PLAIN_TARGET) && target[0] == '/' && head->minor == 1;
	head->path = head->target;
	if (len && target[0] == '/')
		return true;
	if (len == 1 && target[0] == '*')
		return head->method == HTTP_METHOD_OPTIONS;
	size_t scheme = len >= 7 && strncasecmp(target, "http://", 7) == 0    ? 7
			: len >= 8 && strncasecmp(target, "https://", 8) == 0 ? 8
									      : 0;

	if (!scheme)
		return false;
	size_t end = scheme;

	while (end < len && target[end] != '/' && target[end] != '?')
		end++;
	head->authority = (struct http_slice){ (uint16_t)(head->target.at + scheme),
					       (uint16_t)(end - scheme) };
	head->path =
		(struct http_slice){ (uint16_t)(head->target.at + end), (uint16_t)(len - end) };
	return valid_authority(target + scheme, end - scheme);
}

/* METHOD SP target SP HTTP/1.x and nothing else. */
static enum http_error read_request_line(struct http_head *head, const char *buf,
					 struct http_slice line)
{
	const char *text = buf + line.at, *last = text + line.len;
	const char *space = memchr(text, ' ', line.len);
	size_t method_len = space ? (size_t)(space - text) : line.len;

	for (head->method = 0; head->method < HTTP_METHOD_NR; head->method++)
		if (methods[head->method].len == method_len &&
		    memcmp(text, methods[head->method].name, method_len) == 0)
			break;
	for (size_t i = 0; i < method_len; i++)
		if (!is_token((unsigned char)text[i]))
			return HTTP_ERROR_SYNTAX;
	if (!space || method_len == 0)
		return HTTP_ERROR_SYNTAX;
	if (head->method == HTTP_METHOD_NR)
		return HTTP_ERROR_METHOD;
	head->method_text = (struct http_slice){ line.at, (uint16_t)method_len };
	const char *target = space + 1, *space2 = memchr(target, ' ', (size_t)(last - target));

	if (!space2 || last - space2 != 9 || memcmp(space2, " HTTP/", 6) != 0)
		return HTTP_ERROR_SYNTAX;
	if (space2[6] != '1' || space2[7] != '.' || (space2[8] != '0' && space2[8] != '1'))
		return HTTP_ERROR_VERSION;
	head->minor = (uint8_t)(space2[8] - '0');
	if (space2 - target > LIMIT_TARGET_BYTES)
		return HTTP_ERROR_TARGET_LONG;
	head->target = (struct http_slice){ (uint16_t)(target - buf), (uint16_t)(space2 - target) };
	return read_target(head, buf) ? HTTP_ERROR_NONE : HTTP_ERROR_TARGET;
}

static enum http_error read_status_line(struct http_head *head, const char *buf,
					struct http_slice line)
{
	const char *text = buf + line.at;

	if (line.len < 12 || memcmp(text, "HTTP/", 5) != 0)
		return HTTP_ERROR_STATUS;
	if (text[5] != '1' || text[6] != '.' || (text[7] != '0' && text[7] != '1'))
		return HTTP_ERROR_VERSION;
	if (text[8] != ' ' || (line.len > 12 && text[12] != ' '))
		return HTTP_ERROR_STATUS;
	for (int i = 9; i < 12; i++) {
		if (text[i] < '0' || text[i] > '9')
			return HTTP_ERROR_STATUS;
		head->status = (uint16_t)(head->status * 10 + text[i] - '0');
	}
	head->minor = (uint8_t)(text[7] - '0');
	if (line.len > 13)
		head->reason =
			(struct http_slice){ (uint16_t)(line.at + 13), (uint16_t)(line.len - 13) };
	head->plain &= line.len > 13 && head->minor == 1 && head->status >= 200 &&
		       head->status != 204 && head->status != 304;
	return head->status >= 100 && head->status <= 599 && head->status != 101
		       ? HTTP_ERROR_NONE
		       : HTTP_ERROR_STATUS;
}

static int begin(struct http_head *head, const char *buf, size_t len, size_t *ret_start,
		 struct http_slice *ret_line)
{
	assert(len > 0);
	memset(head, 0, offsetof(struct http_head, field));
	if (len > LIMIT_HEAD_BYTES)
		return refuse(head, http_head_too_long(buf, len));
	head->bytes = (uint16_t)len;
	size_t start = leading_blank(buf, len);

	for (size_t i = 0; i < start; i++)
		if (buf[i] != "\r\n"[i & 1] || (start & 1))
			return refuse(head, HTTP_ERROR_BARE_LINE_END);
	*ret_start = start;
	return take_lines(head, buf, len, start, ret_line);
}

static bool agrees(const struct http_head *head, const struct second *seen)
{
	bool chunked = seen->flags & F_CHUNKED;

	if (chunked != (http_head_field(head, HTTP_FIELD_TRANSFER_ENCODING) != NULL))
		return false;
	return !head->has_content_length || seen->content_length == head->content_length;
}

static bool same_target(const struct http_head *head, const struct second *seen)
{
	return head->target.at == seen->target.at && head->target.len == seen->target.len;
}

bool http_head_confirmed(const struct http_head *head, const char *buf, size_t len, bool request)
{
	struct second seen = { .buf = buf };
	enum http_error error = read_again(&seen, request ? HTTP_REQUEST : HTTP_RESPONSE,
					   leading_blank(buf, len), len);

	return !error && (!request || same_target(head, &seen)) && agrees(head, &seen);
}

static bool is_last_hop(const struct http_head *head, const char *buf)
{
	const struct http_field *most = http_head_field(head, HTTP_FIELD_MAX_FORWARDS);
	uint64_t hops;

	return most && head->method == HTTP_METHOD_OPTIONS &&
	       decimal(buf + most->value.at, most->value.len, &hops) && hops == 0;
}

int http_request_parse(struct http_head *head, const char *buf, size_t len)
{
	struct second seen = { .buf = buf };
	struct http_slice line = { 0, 0 };
	size_t start;
	int err = begin(head, buf, len, &start, &line);

	if (err)
		return err;
	enum http_error error = read_request_line(head, buf, line), second = HTTP_ERROR_NONE;

	if (!error && !head->plain) {
		second = read_again(&seen, HTTP_REQUEST, start, len);
		if (!same_target(head, &seen))
			error = HTTP_ERROR_TARGET;
	}
	if (!error && !valid_host(head, buf))
		error = HTTP_ERROR_HOST;
	if (!error)
		error = read_framing(head, buf);
	const struct http_field *expect = http_head_field(head, HTTP_FIELD_EXPECT);

	if (!error && expect && head->minor == 1) {
		head->expect_continue = same(buf, expect->value, "100-continue", 12);
		if (!head->expect_continue || count_fields(head, HTTP_FIELD_EXPECT) != 1)
			error = HTTP_ERROR_EXPECT;
	}
	if (!error)
		error = second;
	if (!error && !head->plain && !agrees(head, &seen))
		error = HTTP_ERROR_AMBIGUOUS;
	if (error)
		return refuse(head, error);
	head->last_hop = is_last_hop(head, buf);
	read_connection(head, buf);
	read_keep_alive(head, buf);
	read_content_type(head, buf);
	return 0;
}

/* Answers that have no body whatever their fields say (RFC 9112, 6.3). */
static enum http_error bodyless(struct http_head *head, enum http_method request_method)
{
	bool interim = head->status < 200 || head->status == 204;

	if (interim && (head->framing == HTTP_CHUNKED || head->content_length > 0))
		return HTTP_ERROR_AMBIGUOUS;
	if (interim || head->status == 304 || request_method == HTTP_METHOD_HEAD)
		head->framing = HTTP_NO_BODY;
	else if (head->framing == HTTP_NO_BODY)
		head->framing = HTTP_TO_CLOSE;
	return HTTP_ERROR_NONE;
}

int http_response_parse(struct http_head *head, const char *buf, size_t len,
			enum http_method request_method)
{
	struct second seen = { .buf = buf };
	struct http_slice line = { 0, 0 };
	size_t start;
	int err = begin(head, buf, len, &start, &line);

	if (err)
		return err;
	enum http_error error = read_status_line(head, buf, line);

	if (!error)
		error = read_framing(head, buf);
	if (!error && !head->plain)
		error = read_again(&seen, HTTP_RESPONSE, start, len);
	if (!error && !head->plain && !agrees(head, &seen))
		error = HTTP_ERROR_AMBIGUOUS;
	if (!error)
		error = bodyless(head, request_method);
	if (error)
		return refuse(head, error);
	read_connection(head, buf);
	if (head->framing == HTTP_TO_CLOSE)
		head->keep_alive = false;
	read_keep_alive(head, buf);
	read_content_type(head, buf);
	return 0;
}

const struct http_field *http_head_field(const struct http_head *head, enum http_field_id id)
{
	assert(id < HTTP_FIELD_NR);
	return head->first[id] ? &head->field[head->first[id] - 1] : NULL;
}

const struct http_field *http_head_named(const struct http_head *head, const char *buf,
					 const char *name)
{
	size_t len = strlen(name);

	for (unsigned i = 0; i < head->fields; i++)
		if (same(buf, head->field[i].name, name, len))
			return &head->field[i];
	return NULL;
}
