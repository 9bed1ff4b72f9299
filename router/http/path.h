/* What a request's target is to the router: which API, whether it makes tokens, or that it stays
 * out. */
#ifndef TURNWARD_ROUTER_HTTP_PATH_H
#define TURNWARD_ROUTER_HTTP_PATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Name, path, 1 if a POST to it makes an engine produce tokens. */
#define HTTP_PATHS(X)                                                                 \
	X(FORBIDDEN, "", 0) /* not forwarded: 404 naming the option `paths` */        \
	X(CHAT, "/v1/chat/completions", 1)                                            \
	X(COMPLETIONS, "/v1/completions", 1)                                          \
	X(RESPONSES, "/v1/responses", 1)  /* the collection */                        \
	X(RESPONSE, "/v1/responses/*", 0) /* one of them: `id`, and `sub` below it */ \
	X(MESSAGES, "/v1/messages", 1)                                                \
	X(COUNT_TOKENS, "/v1/messages/count_tokens", 0)                               \
	X(EMBEDDINGS, "/v1/embeddings", 0)                                            \
	X(MODELS, "/v1/models", 0)  /* answered by the router */                      \
	X(MODEL, "/v1/models/*", 0) /* likewise; `id`: its name, percent-encoded */   \
	X(OTHER_V1, "/v1/*", 0)                                                       \
	X(TOKENIZE, "/tokenize", 0)                                                   \
	X(DETOKENIZE, "/detokenize", 0)                                               \
	X(GENERATE, "/generate", 1)                                                   \
	X(INFERENCE, "/inference/*", 1)                                               \
	X(VERSION, "/version", 0)                                                     \
	X(HEALTH, "/health", 0) /* answered by the router */                          \
	X(CONFIGURED, "", 0)    /* named in the configuration, or paths = all */

enum http_path {
#define X(name, text, generates) HTTP_PATH_##name,
	HTTP_PATHS(X)
#undef X
		HTTP_PATH_NR
};

enum { HTTP_PATH_BYTES = 1024, HTTP_PATHS_EXTRA = 16 };

/* What the configuration opens beside the table: exact paths, or prefixes ending in '*'. */
struct http_path_rules {
	bool all;
	uint32_t extras;
	const char *extra[HTTP_PATHS_EXTRA];
};

struct http_route {
	enum http_path path;
	bool generates;
	const char *id;  /* inside the target; RESPONSE and MODEL, else NULL */
	const char *sub; /* RESPONSE: "cancel", "input_items", ...; NULL: none */
	uint32_t id_len, sub_len;
};

/*
 * Classifies an origin-form target (query included). The path is percent-decoded once, as engines
 * do; one that is still ambiguous after that - dot segments, empty segments, backslashes, control
 * bytes, a second layer of encoding - is FORBIDDEN whatever the rules say. Case counts.
 */
void http_path_classify(const char *target, size_t len, const struct http_path_rules *rules,
			struct http_route *ret_route);

/* Decodes once, into a string. 0: too long, a bad escape, or a byte that no path may hold. */
size_t http_path_decode(const char *raw, size_t len, char out[HTTP_PATH_BYTES]);

/*
 * Whether a head, as far as it has come and whether or not it can be parsed, asks for something of
 * Anthropic's API: for the form of its refusal, for nothing else.
 */
bool http_asks_anthropic(const char *head, size_t len);

const char *http_path_name(enum http_path path);

#endif
