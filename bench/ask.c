/* Blocking HTTP/1.1 for a bench's few questions; see ask.h. */
#include "bench/ask.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "router/http/http.h"
#include "shm/base/scoped.h"

static int dial(const struct addr *addr)
{
	const struct timeval limit = { .tv_sec = ASK_TIMEOUT_S };
	int fd = socket(addr->sa.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	if (connect(fd, &addr->sa.any, addr->len) == 0)
		return fd;
	close(fd);
	return -1;
}

/* All bytes until the peer closes. */
static char *read_all(int fd, size_t *ret_len)
{
	size_t room = 65536, len = 0;
	char *text = malloc(room);

	while (text) {
		ssize_t n = recv(fd, text + len, room - len - 1, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		len += (size_t)n;
		if (room - len < 2) {
			char *grown = realloc(text, room *= 2);

			if (!grown)
				break;
			text = grown;
		}
	}
	if (text)
		text[len] = '\0';
	*ret_len = len;
	return text;
}

/* Moves the decoded body to the front of the text; false when it is not whole or not a 200. */
static bool body_only(char *text, size_t len, size_t *ret_len)
{
	struct http_head head;
	struct http_body body;
	const char *piece;
	size_t used, part, out = 0, at = http_head_end(text, len, 0);

	if (at == 0 || http_response_parse(&head, text, at, HTTP_METHOD_GET) < 0 ||
	    head.status != 200)
		return false;
	http_body_begin(&body, &head);
	for (int step = 0; step == 0 && at < len; at += used) {
		step = http_body_step(&body, text + at, len - at, &used, &piece, &part);
		if (step < 0)
			return false;
		memmove(text + out, piece, part);
		out += part;
	}
	text[out] = '\0';
	*ret_len = out;
	return true;
}

static char *ask_once(const struct addr *addr, const char *method, const char *path,
		      size_t *ret_len)
{
	scoped(fd_drop) int fd = dial(addr);
	char request[512];
	size_t len;
	int n = snprintf(request, sizeof(request),
			 "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s\r\n", method,
			 path, strcmp(method, "POST") == 0 ? "Content-Length: 0\r\n" : "");

	if (fd < 0 || send(fd, request, (size_t)n, MSG_NOSIGNAL) != n)
		return NULL;
	scoped(free_drop) char *text = read_all(fd, &len);
	if (!text || !body_only(text, len, ret_len ? ret_len : &len))
		return NULL;
	return take_ptr(text);
}

char *ask_http(const struct addr *addr, const char *method, const char *path, size_t *ret_len)
{
	char *text = NULL;

	for (int tries = 0; !text && tries < ASK_TRIES; tries++) {
		if (tries > 0)
			usleep(ASK_PAUSE_US);
		text = ask_once(addr, method, path, ret_len);
	}
	return text;
}
