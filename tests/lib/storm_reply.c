/* Reads one HTTP answer: head, then the body by length, in chunks or up to the end. */
#include "tests/lib/storm_reply.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

void reply_reset(struct reply_in *reply)
{
	struct reply_in kept = *reply;

	*reply = (struct reply_in){ .raw = kept.raw,
				    .raw_room = kept.raw_room,
				    .body = kept.body,
				    .body_room = kept.body_room };
}

void reply_fini(struct reply_in *reply)
{
	free(reply->raw);
	free(reply->body);
	*reply = (struct reply_in){ 0 };
}

static void append(char **at, size_t *len, size_t *room, const void *bytes, size_t more)
{
	if (*len + more > *room) {
		*room = (*len + more) * 2;
		*at = realloc(*at, *room);
		assert(*at);
	}
	if (more > 0)
		memcpy(*at + *len, bytes, more);
	*len += more;
}

static void body_add(struct reply_in *r, const char *bytes, size_t len)
{
	append(&r->body, &r->body_len, &r->body_room, bytes, len);
}

static void field(struct reply_in *r, const char *line, size_t len)
{
	char text[128];

	snprintf(text, sizeof(text), "%.*s", (int)len, line);
	if (strncasecmp(text, "content-length:", 15) == 0) {
		r->left = strtoull(text + 15, NULL, 10);
		r->state = r->left ? REPLY_LENGTH : REPLY_DONE;
	} else if (strncasecmp(text, "transfer-encoding: chunked", 26) == 0) {
		r->state = REPLY_CHUNKED;
		r->at_size = 1;
	} else if (strncasecmp(text, "connection: close", 17) == 0) {
		r->close = 1;
	}
}

/* Bytes of the head at the buffer's begin that it took, 0 = it is not whole. */
static size_t head_read(struct reply_in *r)
{
	char *end = memmem(r->raw, r->raw_len, "\r\n\r\n", 4), *at = r->raw, *line_end;

	if (!end)
		return 0;
	if (r->raw_len < 16 || memcmp(r->raw, "HTTP/1.1 ", 9) != 0) {
		r->state = REPLY_BAD;
		return 0;
	}
	r->status = (int)strtol(r->raw + 9, NULL, 10);
	if (r->status == 100)
		return (size_t)(end - r->raw) + 4;
	r->state = REPLY_TO_END;
	while (at < end) {
		line_end = memmem(at, (size_t)(end - at) + 2, "\r\n", 2);
		field(r, at, (size_t)(line_end - at));
		at = line_end + 2;
	}
	if (r->status == 204 || r->status == 304)
		r->state = REPLY_DONE;
	return (size_t)(end - r->raw) + 4;
}

/* One size line or a piece of a chunk, from raw[at..]; bytes taken, 0 = more are needed. */
static size_t chunk_read(struct reply_in *r, const char *at, size_t len)
{
	const char *end;
	char *stop;

	if (!r->at_size && r->left > 0) {
		size_t n = len < r->left ? len : (size_t)r->left;

		body_add(r, at, n);
		r->left -= n;
		return n;
	}
	if (!r->at_size) { /* the line end after a chunk */
		if (len < 2)
			return 0;
		if (memcmp(at, "\r\n", 2) != 0)
			r->state = REPLY_BAD;
		r->at_size = 1;
		return 2;
	}
	end = memmem(at, len, "\r\n", 2);
	if (!end)
		return 0;
	r->left = strtoull(at, &stop, 16);
	if (stop == at || stop > end) {
		r->state = REPLY_BAD;
		return len;
	}
	if (r->left == 0) {
		if (len - (size_t)(end - at) < 4)
			return 0;
		r->state = memcmp(end, "\r\n\r\n", 4) == 0 ? REPLY_DONE : REPLY_BAD;
		return (size_t)(end - at) + 4;
	}
	r->at_size = 0;
	r->chunks++;
	return (size_t)(end - at) + 2;
}

static size_t step(struct reply_in *r, const char *at, size_t len)
{
	size_t n = len;

	switch (r->state) {
	case REPLY_LENGTH:
		n = len < r->left ? len : (size_t)r->left;
		body_add(r, at, n);
		r->left -= n;
		if (r->left == 0)
			r->state = REPLY_DONE;
		return n;
	case REPLY_CHUNKED:
		return chunk_read(r, at, len);
	case REPLY_TO_END:
		body_add(r, at, len);
		return len;
	case REPLY_DONE:
		r->state = REPLY_BAD;
		return len;
	default:
		return len;
	}
}

void reply_bytes(struct reply_in *r, const uint8_t *bytes, size_t len)
{
	size_t at = 0, n = 1;

	append(&r->raw, &r->raw_len, &r->raw_room, bytes, len);
	while (r->state == REPLY_HEAD && (n = head_read(r)) > 0) {
		memmove(r->raw, r->raw + n, r->raw_len - n);
		r->raw_len -= n;
	}
	if (r->state == REPLY_HEAD)
		return;
	while (at < r->raw_len && (n = step(r, r->raw + at, r->raw_len - at)) > 0)
		at += n;
	memmove(r->raw, r->raw + at, r->raw_len - at);
	r->raw_len -= at;
}

void reply_eof(struct reply_in *r)
{
	if (r->state == REPLY_TO_END)
		r->state = REPLY_DONE;
}
