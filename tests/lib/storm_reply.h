/*
 * An HTTP answer read as strictly as its bytes allow, with nothing of the router's own parser, so
 * that a fault there cannot hide here.
 */
#ifndef TURNWARD_TESTS_LIB_STORM_REPLY_H
#define TURNWARD_TESTS_LIB_STORM_REPLY_H

#include <stddef.h>
#include <stdint.h>

enum reply_state { REPLY_HEAD, REPLY_LENGTH, REPLY_CHUNKED, REPLY_TO_END, REPLY_DONE, REPLY_BAD };

struct reply_in {
	enum reply_state state;
	int status, close;
	uint64_t left; /* of the body, or of the chunk */
	int at_size;   /* chunked: the next byte belongs to a size line */
	uint64_t chunks;
	char *raw, *body; /* not yet understood; the body so far */
	size_t raw_len, raw_room, body_len, body_room;
};

void reply_reset(struct reply_in *reply); /* keeps the memory */
void reply_fini(struct reply_in *reply);

/* Bytes as they came. Afterwards the state tells; bytes beyond the message's end are REPLY_BAD. */
void reply_bytes(struct reply_in *reply, const uint8_t *bytes, size_t len);
void reply_eof(struct reply_in *reply); /* REPLY_TO_END becomes REPLY_DONE */

#endif
