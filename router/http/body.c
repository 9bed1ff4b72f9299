/*
 * Decodes bodies in place, one contiguous piece a call.
 *
 * Chunks are read by our own decoder, not llhttp's: that one calls back instead of returning a
 * piece, takes 96 bytes a connection, puts no bound on chunk extensions and reads some line ends
 * leniently even in strict mode.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "router/http/http.h"

enum {
	AT_SIZE, /* first digit of a chunk's size */
	AT_MORE_SIZE,
	AT_EXTENSION,
	AT_QUOTED,  /* in a quoted string of an extension: its end must come in this line */
	AT_ESCAPED, /* after a backslash there */
	AT_SIZE_LF,
	AT_DATA,
	AT_DATA_CR,
	AT_DATA_LF,
	AT_TRAILER, /* first byte of a trailer line, or the end */
	AT_TRAILER_NAME,
	AT_IN_TRAILER,
	AT_TRAILER_LF,
	AT_LAST_LF,
	AT_END,
};

void http_body_begin(struct http_body *body, const struct http_head *head)
{
	*body = (struct http_body){ .framing = (uint8_t)head->framing, .state = AT_SIZE };
	if (head->framing == HTTP_LENGTH)
		body->left = head->content_length;
	if (head->framing == HTTP_NO_BODY || (head->framing == HTTP_LENGTH && !body->left))
		body->state = AT_END;
}

static int hex_digit(unsigned char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 32;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* After the size's digits. */
static int end_of_size(struct http_body *body, unsigned char c)
{
	if (c == '\r')
		body->state = AT_SIZE_LF;
	else if (c == ';')
		body->state = AT_EXTENSION;
	else
		return -EPROTO;
	return 0;
}

static int extension_byte(struct http_body *body, unsigned char c)
{
	bool control = (c < 0x20 && c != '\t') || c == 0x7f;

	if (control && (c != '\r' || body->state != AT_EXTENSION))
		return -EPROTO;
	if (c == '\r')
		body->state = AT_SIZE_LF;
	else if (body->state == AT_ESCAPED)
		body->state = AT_QUOTED;
	else if (c == '"')
		body->state = body->state == AT_QUOTED ? AT_EXTENSION : AT_QUOTED;
	else if (c == '\\' && body->state == AT_QUOTED)
		body->state = AT_ESCAPED;
	return 0;
}

/*
 * A size line costs its sender nothing and says nothing: what it has beyond 16 bytes and twice its
 * chunk is counted against the message, so that extensions cannot outweigh the body for ever.
 */
static int end_of_size_line(struct http_body *body)
{
	uint64_t allowed = 16 + 2 * body->left, excess = (uint64_t)body->excess + body->line;

	body->excess = excess > allowed ? (uint32_t)(excess - allowed) : 0;
	if (body->excess > HTTP_CHUNK_EXCESS_MAX)
		return -EPROTO;
	body->state = body->left ? AT_DATA : AT_TRAILER;
	body->line = 0;
	return 0;
}

static int size_byte(struct http_body *body, unsigned char c)
{
	int digit = hex_digit(c);

	if (++body->line > HTTP_CHUNK_LINE_MAX)
		return -EPROTO;
	switch (body->state) {
	case AT_SIZE:
		if (digit < 0)
			return -EPROTO;
		body->left = (uint64_t)digit;
		body->state = AT_MORE_SIZE;
		return 0;
	case AT_MORE_SIZE:
		if (digit < 0)
			return end_of_size(body, c);
		if (body->left >> 58) /* leaves room for sums of sizes */
			return -EPROTO;
		body->left = body->left << 4 | (uint64_t)digit;
		return 0;
	case AT_EXTENSION:
	case AT_QUOTED:
	case AT_ESCAPED:
		return extension_byte(body, c);
	default:
		return c == '\n' ? end_of_size_line(body) : -EPROTO;
	}
}

static int trailer_byte(struct http_body *body, unsigned char c)
{
	if (++body->line > HTTP_TRAILER_MAX)
		return -EPROTO;
	switch (body->state) {
	case AT_TRAILER:
		if (c == '\r')
			body->state = AT_LAST_LF;
		else if (c <= ' ' || c == ':' || c >= 0x7f)
			return -EPROTO;
		else
			body->state = AT_TRAILER_NAME;
		return 0;
	case AT_TRAILER_NAME:
		if (c <= ' ' || c >= 0x7f)
			return -EPROTO;
		if (c == ':')
			body->state = AT_IN_TRAILER;
		return 0;
	case AT_IN_TRAILER:
		if (c == '\r')
			body->state = AT_TRAILER_LF;
		else if ((c < 0x20 && c != '\t') || c == 0x7f)
			return -EPROTO;
		return 0;
	default:
		if (c != '\n')
			return -EPROTO;
		body->state = body->state == AT_LAST_LF ? AT_END : AT_TRAILER;
		return 0;
	}
}

static int frame_byte(struct http_body *body, unsigned char c)
{
	if (body->state <= AT_SIZE_LF)
		return size_byte(body, c);
	if (body->state >= AT_TRAILER)
		return trailer_byte(body, c);
	if (c != (body->state == AT_DATA_CR ? '\r' : '\n'))
		return -EPROTO;
	body->state = body->state == AT_DATA_CR ? AT_DATA_LF : AT_SIZE;
	return 0;
}

static size_t take(struct http_body *body, size_t len)
{
	size_t piece = len < body->left ? len : (size_t)body->left;

	body->left -= piece;
	body->decoded += piece;
	return piece;
}

static int chunked_step(struct http_body *body, const char *in, size_t len, size_t *ret_used,
			const char **ret_piece, size_t *ret_piece_len)
{
	struct http_body next = *body; /* untouched on failure */
	size_t at = 0, piece = 0;

	while (at < len && next.state != AT_DATA && next.state != AT_END)
		if (frame_byte(&next, (unsigned char)in[at++]))
			return -EPROTO;
	*ret_piece = in + at;
	if (next.state == AT_DATA) {
		piece = take(&next, len - at);
		if (!next.left)
			next.state = AT_DATA_CR;
	}
	*body = next;
	*ret_piece_len = piece;
	*ret_used = at + piece;
	return body->state == AT_END;
}

int http_body_step(struct http_body *body, const char *in, size_t len, size_t *ret_used,
		   const char **ret_piece, size_t *ret_piece_len)
{
	assert(body->framing <= HTTP_TO_CLOSE);
	if (body->framing == HTTP_CHUNKED && body->state != AT_END)
		return chunked_step(body, in, len, ret_used, ret_piece, ret_piece_len);
	*ret_piece = in;
	if (body->state == AT_END) {
		*ret_used = *ret_piece_len = 0;
		return 1;
	}
	if (body->framing == HTTP_TO_CLOSE) {
		body->decoded += len;
		*ret_used = *ret_piece_len = len;
		return 0;
	}
	*ret_used = *ret_piece_len = take(body, len);
	if (!body->left)
		body->state = AT_END;
	return body->state == AT_END;
}

int http_body_eof(const struct http_body *body)
{
	return body->state == AT_END || body->framing == HTTP_TO_CLOSE ? 0 : -EPROTO;
}

size_t http_chunk_head(char out[HTTP_CHUNK_HEAD_MAX], uint64_t chunk_bytes)
{
	char digits[16];
	size_t n = 0, at = 0;

	assert(chunk_bytes > 0); /* a chunk of 0 bytes would end the body */
	for (; chunk_bytes; chunk_bytes >>= 4)
		digits[n++] = "0123456789abcdef"[chunk_bytes & 15];
	while (n)
		out[at++] = digits[--n];
	out[at++] = '\r';
	out[at++] = '\n';
	return at;
}
