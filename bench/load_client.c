/* The load generator's connections and its loop; load_reply.c reads what comes back. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/load_client_impl.h"
#include "shm/base/clock.h"

enum { EVENTS = 512, OPEN_BATCH = 32, STALLED_BUFFER = 4096, HEAD_MAX = 512, FAILURES_MAX = 1000 };

struct load_client *load_client_new(const uint16_t *port, unsigned ports)
{
	struct load_client *client = calloc(1, sizeof(*client));

	if (!client)
		return NULL;
	memcpy(client->port, port, ports * sizeof(*port));
	client->ports = ports;
	client->epoll = epoll_create1(EPOLL_CLOEXEC);
	client->seed = (uint32_t)(clock_ns() / NS_PER_MS) % 100000000;
	client->told.began_ns = clock_ns();
	prctl(PR_SET_TIMERSLACK, 1); /* paced bodies sleep for microseconds */
	signal(SIGPIPE, SIG_IGN);
	return client;
}

int load_client_ask(struct load_client *client, const struct load_ask *ask)
{
	size_t len, number;
	char *body = load_body_new(ask, &len, &number), *bytes;

	if (!body || client->asks == LOAD_ASKS_MAX) {
		free(body);
		return -ENOMEM;
	}
	struct load_request *r = &client->ask[client->asks];
	bytes = malloc(HEAD_MAX + len);
	if (!bytes) {
		free(body);
		return -ENOMEM;
	}
	r->ask = *ask;
	r->body_at =
		(size_t)snprintf(bytes, HEAD_MAX,
				 "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
				 "Authorization: Bearer sk-aaaaaaaaaaaaaaaaaaaaaaaa\r\n"
				 "User-Agent: turnward-bench\r\nAccept: application/json\r\n"
				 "X-Session-Id: 00000000\r\n"
				 "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
				 len);
	memcpy(bytes + r->body_at, body, len);
	free(body);
	r->bytes = bytes;
	r->len = r->body_at + len;
	r->number = r->body_at + number;
	r->session = (size_t)((char *)memmem(bytes, HEAD_MAX, "00000000", 8) - bytes);
	client->asks++;
	return 0;
}

static void watch(struct load_client *client, struct load_conn *c, uint32_t what, int how)
{
	struct epoll_event ev = { .events = what, .data.ptr = c };

	epoll_ctl(client->epoll, how, c->fd, &ev);
}

static int dial(struct load_client *client, struct load_conn *c, bool stalled)
{
	uint16_t port = client->port[(size_t)(c - client->conn) % client->ports];
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_port = htons(port),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int one = 1, small = STALLED_BUFFER;

	c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (c->fd < 0)
		return -errno;
	if (stalled)
		setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	if (connect(c->fd, (struct sockaddr *)&at, sizeof(at)) < 0) {
		int err = -errno;

		close(c->fd);
		c->fd = -1;
		return err;
	}
	setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return 0;
}

void load_conn_end(struct load_client *client, struct load_conn *c)
{
	struct linger none = { .l_onoff = 1, .l_linger = 0 };

	if (c->fd < 0)
		return;
	setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
	close(c->fd);
	c->fd = -1;
	client->streaming -= c->streaming;
	c->streaming = false;
	c->state = LOAD_OVER;
}

void load_conn_fail(struct load_client *client, struct load_conn *c, const char *why)
{
	if (client->told.failed++ == 0)
		snprintf(client->told.complaint, sizeof(client->told.complaint), "%s", why);
	bool again = !client->ask[c->ask].ask.stream && client->told.failed < FAILURES_MAX;

	load_conn_end(client, c);
	if (again && dial(client, c, false) == 0) {
		watch(client, c, EPOLLIN, EPOLL_CTL_ADD);
		load_conn_fire(client, c, clock_ns());
	}
}

/* Writes on; what does not fit waits for room. */
static void conn_send(struct load_client *client, struct load_conn *c)
{
	const struct load_request *r = &client->ask[c->ask];

	while (c->sent < r->len) {
		ssize_t n = send(c->fd, r->bytes + c->sent, r->len - c->sent,
				 MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0 && errno == EAGAIN) {
			if (c->state != LOAD_SENDING)
				watch(client, c, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
			c->state = LOAD_SENDING;
			return;
		}
		if (n < 0) {
			load_conn_fail(client, c, strerror(errno));
			return;
		}
		c->sent += (size_t)n;
	}
	c->sent_ns = clock_ns();
	if (c->state == LOAD_SENDING)
		watch(client, c, EPOLLIN, EPOLL_CTL_MOD);
	c->state = LOAD_WAITING;
}

/* Head at once, body in pieces that are due one after another; blocks until all is written. */
static void conn_send_paced(struct load_client *client, struct load_conn *c)
{
	const struct load_request *r = &client->ask[c->ask];
	double piece_ns = LOAD_PACE_WRITE / r->ask.pace * NS_PER_S;
	uint64_t begin = clock_ns();

	for (size_t end = r->body_at; c->sent < r->len;) {
		ssize_t n = send(c->fd, r->bytes + c->sent, end - c->sent, MSG_NOSIGNAL);

		if (n < 0) {
			load_conn_fail(client, c, strerror(errno));
			return;
		}
		c->sent += (size_t)n;
		if (c->sent < end || c->sent == r->len)
			continue;
		size_t pieces = (c->sent - r->body_at) / LOAD_PACE_WRITE;
		uint64_t due = begin + (uint64_t)((double)pieces * piece_ns);
		struct timespec at = { .tv_sec = (time_t)(due / NS_PER_S),
				       .tv_nsec = (long)(due % NS_PER_S) };

		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
		end = c->sent + LOAD_PACE_WRITE < r->len ? c->sent + LOAD_PACE_WRITE : r->len;
	}
	c->sent_ns = clock_ns();
	c->state = LOAD_WAITING;
}

void load_conn_fire(struct load_client *client, struct load_conn *c, uint64_t due_ns)
{
	struct load_request *r = &client->ask[c->ask];
	uint32_t number = client->seed++ % 100000000;

	for (int d = 7; d >= 0; d--, number /= 10)
		r->bytes[r->number + (size_t)d] = r->bytes[r->session + (size_t)d] =
			(char)('0' + number % 10);
	c->due_ns = due_ns;
	c->sent = 0;
	c->last_ns = 0;
	c->head_len = c->carry_len = 0;
	c->state = LOAD_WAITING;
	if (r->ask.pace > 0)
		conn_send_paced(client, c);
	else
		conn_send(client, c);
}

/* The answer is whole: asks again, at once or when it is due. */
void load_conn_next(struct load_client *client, struct load_conn *c, uint64_t now_ns)
{
	double rate = client->ask[c->ask].ask.rate;

	if (rate <= 0) {
		load_conn_fire(client, c, now_ns);
		return;
	}
	uint64_t due = load_due_next(c->due_ns, rate, client->conns);
	if (due <= now_ns) {
		load_conn_fire(client, c, due);
		return;
	}
	c->due_ns = due;
	c->state = LOAD_IDLE;
}

uint64_t load_due_next(uint64_t due_ns, double rate, unsigned connections)
{
	return due_ns + (uint64_t)(NS_PER_S / rate * connections);
}

int load_client_open(struct load_client *client, unsigned connections, bool stalled)
{
	double rate = client->ask[client->asks - 1].ask.rate;
	unsigned first = client->conns;
	uint64_t now = clock_ns();

	if (first + connections > LOAD_CONNECTIONS_MAX)
		return -EMFILE;
	client->conns += rate > 0 ? connections : 0; /* the schedule's interval needs all of them */
	for (unsigned i = 0; i < connections; i++) {
		struct load_conn *c = &client->conn[first + i];
		int err = dial(client, c, stalled);

		if (err) {
			client->conns = first + i;
			return err;
		}
		c->ask = (uint8_t)(client->asks - 1);
		watch(client, c, stalled ? 0u : (uint32_t)EPOLLIN, EPOLL_CTL_ADD);
		client->conns = rate > 0 ? client->conns : first + i + 1;
		c->due_ns = now + (rate > 0 ? (uint64_t)(NS_PER_S / rate * i) : 0);
		if (rate > 0)
			c->state = LOAD_IDLE;
		else
			load_conn_fire(client, c, clock_ns());
		if (rate <= 0 && i % OPEN_BATCH == OPEN_BATCH - 1)
			load_client_run(client, 0.002);
	}
	return 0;
}

/* Fires what is due; nanoseconds until the next. */
static uint64_t schedule(struct load_client *client)
{
	uint64_t now = clock_ns(), wait = UINT64_MAX;

	if (client->asks == 0 || client->ask[client->asks - 1].ask.rate <= 0)
		return UINT64_MAX;
	for (unsigned i = 0; i < client->conns; i++) {
		struct load_conn *c = &client->conn[i];

		if (c->state != LOAD_IDLE)
			continue;
		if (c->due_ns <= now)
			load_conn_fire(client, c, c->due_ns);
		else if (c->due_ns - now < wait)
			wait = c->due_ns - now;
	}
	return wait;
}

void load_client_run(struct load_client *client, double seconds)
{
	struct epoll_event ready[EVENTS];
	uint64_t now = clock_ns(), end = now + (uint64_t)(seconds * NS_PER_S);

	for (; now < end && !load_interrupted(); now = clock_ns()) {
		uint64_t wait = schedule(client);
		struct timespec ts;

		wait = wait < end - now ? wait : end - now;
		ts.tv_sec = (time_t)(wait / NS_PER_S);
		ts.tv_nsec = (long)(wait % NS_PER_S);
		int n = epoll_pwait2(client->epoll, ready, EVENTS, &ts, NULL);

		for (int i = 0; i < n; i++) {
			struct load_conn *c = ready[i].data.ptr;

			if (c->state == LOAD_SENDING && ready[i].events & EPOLLOUT)
				conn_send(client, c);
			if (c->fd >= 0 && ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
				load_conn_read(client, c);
		}
	}
	client->told.ended_ns = now;
}

const struct load_told *load_client_measure(struct load_client *client, double seconds)
{
	memset(&client->told, 0, sizeof(client->told));
	client->told.began_ns = clock_ns();
	load_client_run(client, seconds);
	return &client->told;
}

unsigned load_client_streaming(const struct load_client *client)
{
	return client->streaming;
}

void load_client_abort(struct load_client *client, unsigned connections)
{
	for (unsigned i = 0; i < client->conns && connections; i++)
		if (client->conn[i].streaming) {
			load_conn_end(client, &client->conn[i]);
			connections--;
		}
}

void load_client_free(struct load_client *client)
{
	if (!client)
		return;
	for (unsigned i = 0; i < client->conns; i++)
		load_conn_end(client, &client->conn[i]);
	for (unsigned i = 0; i < client->asks; i++)
		free(client->ask[i].bytes);
	close(client->epoll);
	free(client);
}
