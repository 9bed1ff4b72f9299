/*
 * The agent's HTTP/1.1 client: one GET at a time over one kept connection, each with a deadline.
 *
 * It waits in ppoll() with the caller's signal mask, so a signal ends the wait at once. A
 * connection that a server closed while it was idle is replaced silently, once, and only if not a
 * byte of the answer had come. Whole answers only: half a page is an error, never a page.
 */
#ifndef TURNWARD_AGENT_HTTP_H
#define TURNWARD_AGENT_HTTP_H

#include <llhttp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/base/addr.h"

enum {
	HTTP_BODY_MAX = 1024 * 1024, /* as METRICS_PAGE_MAX */
	HTTP_HEAD_MAX = 64 * 1024,
	HTTP_KEY_MAX = 1024,
	HTTP_FIELD_MAX = 64,     /* bytes kept of a field's name or value */
	HTTP_IDLE_MAX_MS = 4000, /* engines close after 5 s; a request must not race that */
};

struct http_client {
	struct addr addr;
	char host[ADDR_HOST_MAX];
	char key[HTTP_KEY_MAX];            /* bearer token, "" = none */
	const sigset_t *wait_mask;         /* in force while waiting; NULL = unchanged */
	const volatile sig_atomic_t *stop; /* not 0: -EINTR; NULL = never */

	int fd;
	uint64_t used_ns; /* when the connection last carried an answer */

	/* The answer being received. */
	llhttp_t parser;
	llhttp_settings_t settings;
	char *body;
	size_t body_len, head_len;
	char field[HTTP_FIELD_MAX], value[HTTP_FIELD_MAX];
	size_t field_len, value_len;
	uint64_t start_id;
	int status, complete, keep, error;
};

/* 0 or -ENOMEM. `key` may be NULL. */
int http_client_init(struct http_client *client, const struct addr_engine *engine, const char *key);
void http_client_fini(struct http_client *client);
void http_client_close(struct http_client *client);

/*
 * GET. 0 with status, body and len set (valid until the next call). -ECONNREFUSED, -ENOENT (no such
 * Unix socket), -ETIMEDOUT, -EINTR (stopped), -ECONNRESET (closed in the answer), -EFBIG (over
 * HTTP_BODY_MAX), -EPROTO (no HTTP), or another -errno of connect().
 */
int http_get(struct http_client *client, const char *path, uint64_t timeout_ns, int *ret_status,
	     const char **ret_body, size_t *ret_len, uint64_t *ret_start_id);

#endif
