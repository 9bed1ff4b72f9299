/* One kept connection, one question at a time; see http.h. */
#include "agent/http.h"

#include <assert.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "shm/base/clock.h"

static struct http_client *client_of(llhttp_t *parser)
{
	return parser->data;
}

static int append(char *text, size_t *len, const char *at, size_t n)
{
	size_t room = HTTP_FIELD_MAX - *len;

	n = n < room ? n : room;
	memcpy(text + *len, at, n);
	*len += n;
	return 0;
}

static int on_field(llhttp_t *parser, const char *at, size_t n)
{
	struct http_client *c = client_of(parser);

	if (c->value_len) /* the first piece of the next field's name */
		c->field_len = c->value_len = 0;
	return append(c->field, &c->field_len, at, n);
}

static int on_value(llhttp_t *parser, const char *at, size_t n)
{
	struct http_client *c = client_of(parser);

	return append(c->value, &c->value_len, at, n);
}

static int on_value_complete(llhttp_t *parser)
{
	static const char wanted[] = "process-start-time-unix";
	struct http_client *c = client_of(parser);

	if (c->field_len == sizeof(wanted) - 1 &&
	    strncasecmp(c->field, wanted, c->field_len) == 0) {
		c->start_id = 14695981039346656037u;
		for (size_t i = 0; i < c->value_len; i++)
			c->start_id = (c->start_id ^ (uint8_t)c->value[i]) * 1099511628211u;
		c->start_id += c->start_id == 0;
	}
	c->field_len = c->value_len = 0;
	return 0;
}

static int on_body(llhttp_t *parser, const char *at, size_t n)
{
	struct http_client *c = client_of(parser);

	if (n > HTTP_BODY_MAX - c->body_len) {
		c->error = -EFBIG;
		return HPE_USER;
	}
	memcpy(c->body + c->body_len, at, n);
	c->body_len += n;
	return 0;
}

static int on_complete(llhttp_t *parser)
{
	struct http_client *c = client_of(parser);

	if (parser->status_code / 100 == 1) /* the real answer follows */
		return 0;
	c->status = parser->status_code;
	c->keep = llhttp_should_keep_alive(parser);
	c->complete = 1;
	return HPE_PAUSED;
}

int http_client_init(struct http_client *client, const struct addr_engine *engine, const char *key)
{
	*client = (struct http_client){ .fd = -1, .addr = engine->addr };
	assert(!key || strlen(key) < HTTP_KEY_MAX);
	snprintf(client->host, sizeof(client->host), "%s", engine->host);
	snprintf(client->key, sizeof(client->key), "%s", key ? key : "");
	llhttp_settings_init(&client->settings);
	client->settings.on_header_field = on_field;
	client->settings.on_header_value = on_value;
	client->settings.on_header_value_complete = on_value_complete;
	client->settings.on_body = on_body;
	client->settings.on_message_complete = on_complete;
	client->body = malloc(HTTP_BODY_MAX);
	return client->body ? 0 : -ENOMEM;
}

void http_client_close(struct http_client *client)
{
	if (client->fd >= 0)
		close(client->fd);
	client->fd = -1;
}

void http_client_fini(struct http_client *client)
{
	http_client_close(client);
	free(client->body);
	explicit_bzero(client->key, sizeof(client->key));
	client->body = NULL;
}

/* Waits for `events`. 0, -ETIMEDOUT, -EINTR. */
static int wait_for(const struct http_client *c, short events, uint64_t deadline_ns)
{
	struct pollfd poll = { .fd = c->fd, .events = events };

	for (;;) {
		uint64_t now_ns = clock_ns();
		uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
		struct timespec left = { .tv_sec = (time_t)(left_ns / NS_PER_S),
					 .tv_nsec = (long)(left_ns % NS_PER_S) };

		if (c->stop && *c->stop)
			return -EINTR;
		int n = ppoll(&poll, 1, &left, c->wait_mask);
		if (n > 0)
			return 0;
		if (n == 0)
			return -ETIMEDOUT;
		if (errno != EINTR)
			return -errno;
	}
}

static int connect_now(struct http_client *c, uint64_t deadline_ns)
{
	int one = 1, err = 0;
	socklen_t size = sizeof(err);

	c->fd = socket(c->addr.sa.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (c->fd < 0)
		return -errno;
	if (c->addr.sa.any.sa_family != AF_UNIX)
		setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (connect(c->fd, &c->addr.sa.any, c->addr.len) == 0)
		return 0;
	if (errno ==
	    EAGAIN) /* a Unix socket with a full backlog: it is there, but does not take us */
		return -ETIMEDOUT;
	if (errno != EINPROGRESS)
		return -errno;
	int waited = wait_for(c, POLLOUT, deadline_ns);
	if (waited < 0)
		return waited;
	if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &err, &size) < 0)
		return -errno;
	return -err;
}

/* 1 if the kept connection may carry one more request. */
static int still_good(const struct http_client *c)
{
	char byte;

	if (c->fd < 0 || clock_ns() - c->used_ns > HTTP_IDLE_MAX_MS * (uint64_t)NS_PER_MS)
		return 0;
	return recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

static int send_all(struct http_client *c, const char *text, size_t len, uint64_t deadline_ns)
{
	while (len > 0) {
		ssize_t n = send(c->fd, text, len, MSG_NOSIGNAL);

		if (n > 0) {
			text += n;
			len -= (size_t)n;
			continue;
		}
		if (errno != EAGAIN)
			return errno == EPIPE ? -ECONNRESET : -errno;
		int err = wait_for(c, POLLOUT, deadline_ns);
		if (err < 0)
			return err;
	}
	return 0;
}

static void begin_answer(struct http_client *c)
{
	llhttp_init(&c->parser, HTTP_RESPONSE, &c->settings);
	c->parser.data = c;
	c->body_len = c->head_len = c->field_len = c->value_len = 0;
	c->start_id = 0;
	c->status = c->complete = c->keep = c->error = 0;
}

static int parse(struct http_client *c, const char *bytes, size_t n)
{
	llhttp_errno_t err = llhttp_execute(&c->parser, bytes, n);

	if (c->complete)
		return 0;
	if (c->error)
		return c->error;
	return err == HPE_OK ? 0 : -EPROTO;
}

/* The server closed: the end of an answer without a length, or half an answer. */
static int at_close(struct http_client *c)
{
	if (llhttp_finish(&c->parser) == HPE_OK && c->complete)
		return 0;
	if (c->complete)
		return 0;
	return -ECONNRESET;
}

/* Receives until the answer is whole. *ret_bytes counts what came, so that a retry knows. */
static int receive(struct http_client *c, uint64_t deadline_ns, size_t *ret_bytes)
{
	char chunk[16384];
	int err = 0;

	*ret_bytes = 0;
	while (err == 0 && !c->complete) {
		ssize_t n = recv(c->fd, chunk, sizeof(chunk), 0);

		if (n > 0) {
			*ret_bytes += (size_t)n;
			err = parse(c, chunk, (size_t)n);
			if (err == 0 && *ret_bytes - c->body_len > HTTP_HEAD_MAX + c->body_len / 2)
				err = -EFBIG; /* an endless head, or chunks of nothing but framing
					       */
		} else if (n == 0) {
			c->keep = 0;
			return *ret_bytes ? at_close(c) : -ECONNRESET;
		} else if (errno == EAGAIN) {
			err = wait_for(c, POLLIN, deadline_ns);
		} else {
			err = -errno;
		}
		if (err == 0 && !c->complete && clock_ns() > deadline_ns)
			err = -ETIMEDOUT; /* drop by drop is no answer either */
	}
	return err;
}

static int exchange(struct http_client *c, const char *request, size_t len, uint64_t deadline_ns,
		    size_t *ret_bytes)
{
	*ret_bytes = 0;
	begin_answer(c);
	int err = send_all(c, request, len, deadline_ns);

	return err < 0 ? err : receive(c, deadline_ns, ret_bytes);
}

int http_get(struct http_client *c, const char *path, uint64_t timeout_ns, int *ret_status,
	     const char **ret_body, size_t *ret_len, uint64_t *ret_start_id)
{
	uint64_t deadline_ns = clock_ns() + timeout_ns;
	char request[HTTP_KEY_MAX + 1024];
	size_t bytes = 0;
	int err = 0;
	int len = snprintf(request, sizeof(request),
			   "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: turnward-agent\r\n"
			   "Accept: */*\r\n%s%s%s\r\n",
			   path, c->host, c->key[0] ? "Authorization: Bearer " : "", c->key,
			   c->key[0] ? "\r\n" : "");

	assert(len > 0 && (size_t)len < sizeof(request));
	int reused = still_good(c);
	if (reused)
		err = exchange(c, request, (size_t)len, deadline_ns, &bytes);
	if (!reused || (err == -ECONNRESET && bytes == 0)) {
		http_client_close(c);
		err = connect_now(c, deadline_ns);
		if (err == 0)
			err = exchange(c, request, (size_t)len, deadline_ns, &bytes);
	}
	explicit_bzero(request, sizeof(request));
	if (err < 0 || !c->keep)
		http_client_close(c);
	if (err < 0)
		return err;
	c->used_ns = clock_ns();
	*ret_status = c->status;
	*ret_body = c->body;
	*ret_len = c->body_len;
	*ret_start_id = c->start_id;
	return 0;
}
