/* Every bound of the router, with its reason. What exceeds one is refused by name, never cut. */
#ifndef TURNWARD_ROUTER_LIMITS_H
#define TURNWARD_ROUTER_LIMITS_H

enum {
	LIMIT_HEAD_BYTES = 32 * 1024,  /* a request or response head; clients send ~1 KB */
	LIMIT_HEAD_FIELD = 16 * 1024,  /* one field line */
	LIMIT_HEAD_FIELDS = 128,       /* fields of a head */
	LIMIT_TARGET_BYTES = 8 * 1024, /* request target */
	LIMIT_BODY_BLOCK = 64 * 1024,  /* of the body arena; one large receive fills one */
	LIMIT_OUT_BLOCK = 4 * 1024,    /* of output to a client; most events fit in a part of one */
	LIMIT_STREAM_BUFFER = 256 * 1024, /* for a slow client; then the engine is not read on */
	LIMIT_SESSION_ID = 256,           /* bytes of a client's session id that count */
	LIMIT_MODEL_NAME = 120,           /* longest model name that can be matched */
	LIMIT_CONTENT_BLOCKS = 16384,     /* blocks hashed per request; the rest is not indexed */
	LIMIT_CONTENT_BLOCK_BYTES = 512,  /* per block: ~128 tokens, the index's grain */
	LIMIT_REQUEST_ID = 64,            /* accepted x-request-id */
	LIMIT_WAITING_ROOM = 4096,        /* requests that wait in the router; then 503 */
	LIMIT_STAGE_GUARDS = 64,          /* models and shapes that staging is switched off for */
	LIMIT_BODY_MEMBERS = 64, /* of a body's root that staging looks at; clients send under 30 */
	LIMIT_STAGE_CUTS = 512,  /* ends of messages kept of one body; longer ones: every second */
	LIMIT_STAGED = 256,      /* requests in pieces at once; the next goes whole */
	LIMIT_STAGE_ANSWER = 16 * 1024 * 1024, /* of a tokeniser; seven bytes a token */
	LIMIT_LEFT_BEHIND =
		256, /* of what was taken back, in engines; beyond, not in their books */
	LIMIT_HELD_BACK = 32 * 1024, /* of an answer without a token; then it is given out */
	LIMIT_STAGE_UNCLEAR = 16,    /* pieces of an engine in a row of which nothing tells a hit */
};

#endif
