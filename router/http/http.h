/*
 * HTTP/1.1 heads and bodies as a router must see them: strict where two readers could disagree,
 * byte for byte where only one of them matters.
 *
 * A head is parsed whole (http_head_end says when it is there) into a scratch struct, one per
 * worker; its slices are offsets into the bytes that were parsed, so these may move. Framing is
 * never passed on: the writers drop the hop-by-hop and framing fields and emit our own.
 */
#ifndef TURNWARD_ROUTER_HTTP_HTTP_H
#define TURNWARD_ROUTER_HTTP_HTTP_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "router/limits.h"

enum {
	HTTP_CHUNK_LINE_MAX = 256,         /* size line of a chunk with its extensions */
	HTTP_CHUNK_EXCESS_MAX = 16 * 1024, /* of size lines over what their chunks bring */
	HTTP_TRAILER_MAX = 8 * 1024,       /* all trailer lines of a message together */
};

/* Everything a head or body can be refused for: name, status, code and text of the answer. */
#define HTTP_ERRORS(X)                                                                          \
	X(NONE, 200, "", "nothing is wrong")                                                    \
	X(SYNTAX, 400, "bad_request", "the request head is not valid HTTP/1.1")                 \
	X(BARE_LINE_END, 400, "bad_request", "a line of the head does not end in CR LF")        \
	X(CONTROL_BYTE, 400, "bad_request", "the head holds a control character")               \
	X(FOLDED, 400, "bad_request", "the head holds a folded field line")                     \
	X(FIELD_NAME, 400, "bad_request", "a field name is not a token followed by a colon")    \
	X(TARGET, 400, "bad_target", "the request target is not valid for this method")         \
	X(HOST, 400, "bad_host", "HTTP/1.1 needs exactly one valid Host field")                 \
	X(LENGTH, 400, "bad_content_length", "Content-Length is not one decimal number")        \
	X(TRANSFER, 400, "bad_transfer_encoding", "Transfer-Encoding is not exactly chunked")   \
	X(AMBIGUOUS, 400, "ambiguous_framing", "Content-Length and Transfer-Encoding together") \
	X(STATUS, 502, "bad_status", "the status line is not valid")                            \
	X(METHOD, 501, "method_not_implemented", "this method is not implemented")              \
	X(EXPECT, 417, "expectation_failed", "only Expect: 100-continue is understood")         \
	X(VERSION, 505, "version_not_supported", "only HTTP/1.0 and HTTP/1.1 are spoken here")  \
	X(TARGET_LONG, 414, "target_too_long", "the request target is longer than 8 KiB")       \
	X(FIELD_LONG, 431, "field_too_long", "a field line is longer than 16 KiB")              \
	X(FIELDS_MANY, 431, "too_many_fields", "the head has more than 128 fields")             \
	X(HEAD_LONG, 431, "head_too_long", "the head is longer than 32 KiB")                    \
	X(CHUNK, 400, "bad_chunk", "the chunked body is malformed")

enum http_error {
#define X(name, status, code, text) HTTP_ERROR_##name,
	HTTP_ERRORS(X)
#undef X
		HTTP_ERROR_NR
};

struct http_error_info {
	const char *name, *code, *text;
	int status; /* what a client is answered; an engine's fault is 502 whatever this says */
};
const struct http_error_info *http_error_info(enum http_error error);

/* Methods that are passed on. CONNECT, TRACE and unknown ones are refused (HTTP_ERROR_METHOD). */
#define HTTP_METHODS(X) X(GET) X(HEAD) X(POST) X(PUT) X(DELETE) X(OPTIONS) X(PATCH)

enum http_method {
#define X(name) HTTP_METHOD_##name,
	HTTP_METHODS(X)
#undef X
		HTTP_METHOD_NR
};

/* Known fields: id, name, and whether it ends at this hop (E: end to end, H: hop by hop). */
#define HTTP_FIELDS(X)                                   \
	X(ACCEPT, "accept", E)                           \
	X(ACCEL_BUFFERING, "x-accel-buffering", E)       \
	X(API_KEY, "x-api-key", E)                       \
	X(AUTHORIZATION, "authorization", E)             \
	X(CONNECTION, "connection", H)                   \
	X(CONTENT_ENCODING, "content-encoding", E)       \
	X(CONTENT_LENGTH, "content-length", H)           \
	X(CONTENT_TYPE, "content-type", E)               \
	X(DATE, "date", E)                               \
	X(EXPECT, "expect", H)                           \
	X(HOST, "host", E)                               \
	X(HTTP2_SETTINGS, "http2-settings", H)           \
	X(KEEP_ALIVE, "keep-alive", H)                   \
	X(MAX_FORWARDS, "max-forwards", E)               \
	X(PROXY_AUTHENTICATE, "proxy-authenticate", H)   \
	X(PROXY_AUTHORIZATION, "proxy-authorization", H) \
	X(PROXY_CONNECTION, "proxy-connection", H)       \
	X(REQUEST_ID, "x-request-id", E)                 \
	X(RETRY_AFTER, "retry-after", E)                 \
	X(SERVER, "server", E)                           \
	X(TE, "te", H)                                   \
	X(TRAILER, "trailer", H)                         \
	X(TRANSFER_ENCODING, "transfer-encoding", H)     \
	X(TURNWARD_INTERNAL, "x-turnward-internal", H)   \
	X(TURNWARD_STREAM, "x-turnward-stream", H)       \
	X(UPGRADE, "upgrade", H)                         \
	X(VIA, "via", E)                                 \
	X(X_FORWARDED_FOR, "x-forwarded-for", E)

enum http_field_id {
#define X(id, name, hop) HTTP_FIELD_##id,
	HTTP_FIELDS(X)
#undef X
		HTTP_FIELD_NR,
	HTTP_FIELD_OTHER = HTTP_FIELD_NR
};

enum http_framing {
	HTTP_NO_BODY, /* nothing follows the head */
	HTTP_LENGTH,  /* content_length bytes */
	HTTP_CHUNKED,
	HTTP_TO_CLOSE, /* responses only: the body ends with the connection */
};

struct http_slice {
	uint16_t at, len; /* bytes of the buffer that was parsed */
};
static_assert(LIMIT_HEAD_BYTES <= UINT16_MAX, "a slice reaches all of a head");

struct http_field {
	struct http_slice name, value; /* value without the space around it */
	uint8_t id;                    /* enum http_field_id */
	bool hop;                      /* ends here: known as such, or named in Connection */
};

struct http_head {
	enum http_error error; /* why the parse failed */
	enum http_method method;
	enum http_framing framing;
	uint16_t bytes;  /* length of the head with its blank line */
	uint16_t status; /* responses */
	uint8_t minor;   /* HTTP/1.minor */
	bool keep_alive; /* the sender keeps the connection after this message */
	bool expect_continue;
	bool upgrade;  /* asked for; never forwarded */
	bool plain;    /* only lines that no two readers take for different things */
	bool last_hop; /* OPTIONS with Max-Forwards: 0, to be answered here */
	bool sse;      /* content-type is text/event-stream */
	bool json;     /* content-type is application/json or .../...+json */
	uint32_t keep_alive_timeout_s, keep_alive_max; /* of Keep-Alive; 0: not said */
	uint64_t content_length; /* HTTP_LENGTH; also what a HEAD answer says */
	bool has_content_length;
	struct http_slice method_text, target; /* as received */
	struct http_slice path;                /* the target's origin form: path and query */
	struct http_slice authority;           /* of an absolute-form target, else empty */
	struct http_slice reason;
	uint16_t fields;
	uint8_t first[HTTP_FIELD_NR]; /* 1 + index of the first field with that id; 0: absent */
	struct http_field field[LIMIT_HEAD_FIELDS];
};

/*
 * Position after the head's blank line, or 0 while it has not arrived. `from` = what an earlier
 * call has already seen (0 at first). Empty lines before the head are skipped over, as part of it.
 */
size_t http_head_end(const char *buf, size_t len, size_t from);

/*
 * Why a head that has no end yet is refused all the same, or HTTP_ERROR_NONE: what speaks another
 * protocol (TLS, PROXY, HTTP/0.9) sends no blank line, and its client must not wait for a time
 * limit.
 */
enum http_error http_head_hopeless(const char *buf, size_t len);

/* Why a head of `len` bytes without an end is refused once len >= LIMIT_HEAD_BYTES: 414 or 431. */
enum http_error http_head_too_long(const char *buf, size_t len);

/*
 * Parses the head in buf[0..len), len being what http_head_end() returned.
 * 0; -EPROTO or (a limit) -E2BIG with head->error.
 */
int http_request_parse(struct http_head *head, const char *buf, size_t len);
int http_response_parse(struct http_head *head, const char *buf, size_t len,
			enum http_method request_method);

/* What a second reader (llhttp) says of a head that was parsed: true = the same. */
bool http_head_confirmed(const struct http_head *head, const char *buf, size_t len, bool request);

/* The first field of that id or name (lower case), or NULL. */
const struct http_field *http_head_field(const struct http_head *head, enum http_field_id id);
const struct http_field *http_head_named(const struct http_head *head, const char *buf,
					 const char *name);

/* The body that follows a head, decoded in place: state of a connection, not of a worker. */
struct http_body {
	uint64_t left;    /* of the body (LENGTH) or the chunk */
	uint64_t decoded; /* bytes handed out so far */
	uint32_t line;    /* bytes of the current chunk line or of all trailers */
	uint32_t excess;  /* of size lines so far */
	uint8_t framing;  /* enum http_framing */
	uint8_t state;
};
static_assert(sizeof(struct http_body) <= 32, "two of them live in every connection");

void http_body_begin(struct http_body *body, const struct http_head *head);

/*
 * Takes in[0..len) up to the end of one decoded piece, which lies inside it (*ret_piece_len may be
 * 0). 1: the message is complete, what was not used belongs to the next one; 0: call again with the
 * rest, or with more once *ret_used == len; -EPROTO: malformed, nothing is returned.
 */
int http_body_step(struct http_body *body, const char *in, size_t len, size_t *ret_used,
		   const char **ret_piece, size_t *ret_piece_len);

/* 0 if the connection may end here (to-close, or complete); -EPROTO: the message is cut. */
int http_body_eof(const struct http_body *body);

/* "1a2b\r\n" before a chunk's bytes, "\r\n" after them, HTTP_LAST_CHUNK at the end. */
enum { HTTP_CHUNK_HEAD_MAX = 18 };
size_t http_chunk_head(char out[HTTP_CHUNK_HEAD_MAX], uint64_t chunk_bytes);
#define HTTP_LAST_CHUNK "0\r\n\r\n"

/* How a request goes to an engine. Zero: as it came, without a body. */
struct http_forward {
	enum http_framing framing;  /* NO_BODY, LENGTH or CHUNKED */
	uint64_t content_length;    /* LENGTH */
	const char *path;           /* other path (and query) than the client's, or NULL */
	const char *authorization;  /* whole value; "": dropped; NULL: the client's passes */
	const char *request_id;     /* sets x-request-id; NULL: the client's passes */
	const char *client_address; /* appended to X-Forwarded-For; NULL: left alone */
	const char *extra;          /* whole lines with CR LF, or NULL */
};

/* 0 and the length written; -ENOSPC: `size` is too small. */
int http_request_write(char *out, size_t size, const struct http_head *head, const char *buf,
		       const struct http_forward *how, size_t *ret_len);

/* How an engine's answer goes to a client. */
struct http_answer {
	enum http_framing framing; /* TO_CLOSE: for HTTP/1.0 clients; implies close */
	uint64_t content_length;
	bool close;             /* our connection ends after this answer */
	bool keep_alive_1_0;    /* a HTTP/1.0 client asked to keep it and may */
	const char *request_id; /* sets x-request-id; NULL: the engine's passes */
	const char *date;       /* for an answer that has none, or NULL */
	const char *extra;      /* whole lines with CR LF, or NULL */
};

int http_response_write(char *out, size_t size, const struct http_head *head, const char *buf,
			const struct http_answer *how, size_t *ret_len);

/* Whose error form an answer of our own has: what the client of that API reads. */
enum http_error_form { HTTP_FORM_OPENAI, HTTP_FORM_ANTHROPIC };

/* A whole answer of our own. */
struct http_failure {
	int status;
	enum http_error_form form;
	const char *type;       /* OpenAI's; NULL: http_error_type(status) */
	const char *code;       /* OpenAI's; NULL: null */
	const char *message;    /* escaped here, cut at 1 KiB */
	const char *request_id; /* or NULL */
	const char *date;       /* or NULL */
	uint32_t retry_after_s; /* 0: no Retry-After */
	bool close;             /* adds Connection: close */
	bool head_only;         /* answers a HEAD: no body */
	const char *extra;      /* whole lines with CR LF, or NULL */
};

int http_error_write(char *out, size_t size, const struct http_failure *failure, size_t *ret_len);

/* "invalid_request_error", "authentication_error", "rate_limit_error" or "server_error". */
const char *http_error_type(int status);
/* The word that Anthropic's clients know for it. */
const char *http_anthropic_type(int status);
const char *http_status_text(int status);

#define HTTP_CONTINUE "HTTP/1.1 100 Continue\r\n\r\n"

#endif
