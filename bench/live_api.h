/* How a conversation is asked for: the request's body and the text of a stream's event, by API. */
#ifndef TURNWARD_BENCH_LIVE_API_H
#define TURNWARD_BENCH_LIVE_API_H

#include <stddef.h>
#include <sys/uio.h>

#include "bench/sessions.h"
#include "shm/base/jread.h"

/* X(name, path, what of an event is answer text) */
#define LIVE_APIS(X)                                                \
	X(chat, "/v1/chat/completions", "choices[0].delta.content") \
	X(messages, "/v1/messages", "delta.text")                   \
	X(responses, "/v1/responses", "delta")

enum live_api {
#define X(name, path, text) LIVE_API_##name,
	LIVE_APIS(X)
#undef X
		LIVE_APIS_NR
};
extern const char *const live_api_names[];
extern const char *const live_api_paths[];

enum { LIVE_BODY_PARTS = 5, LIVE_TAIL_MAX = 320 };

/* A body in parts: of the conversation, of constants and of `tail`. */
struct live_body {
	struct iovec part[LIVE_BODY_PARTS];
	int parts;
	size_t len;
	char tail[LIVE_TAIL_MAX];
};

/* Points into the talk, which must stand still until the body is sent. */
void live_body_make(struct live_body *ret_body, enum live_api api, const struct talk *talk,
		    const char *model);

/* The answer's text in an event, as it stands between the quotes; -ENOENT: it has none. */
int live_api_text(enum live_api api, const struct jread *event, const char **ret_text,
		  size_t *ret_len);

#endif
