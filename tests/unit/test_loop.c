/* The event loop's promises, each checked on epoll and on io_uring by the same function. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/loop/loop.h"

enum { PEERS = 512, BUFFERS = 64, BUFFER_SIZE = 2048, OPS = LOOP_READABLE + 1 };

enum { HANG_NS = 20 * 1000 * 1000 }; /* one wait; WAITS_MAX of them without an end is a hang */
enum { WAITS_MAX = 1000 };

/* What was seen of one handle, and how its events are answered. */
struct peer {
	int handle; /* -1 = free */
	unsigned count[OPS];
	int res[OPS];          /* of the last event */
	uint64_t bytes;        /* received and filled */
	unsigned ends, errors; /* of the receiving direction */
	enum { SINK, HOLD, ECHO } manner;
	bool sending, closing;
	struct loop_event queue[BUFFERS]; /* held, or to be echoed: [first, last) */
	unsigned first, last;
	uint8_t *sink;            /* SINK: the bytes are copied here, */
	const uint8_t *fill_into; /* those of a fill from there */
};

struct rig {
	enum loop_kind kind;
	struct loop *loop;
	bool inside, busy; /* a turn; a handler: events at any other time are a bug */
	enum { ECHO_ACCEPTED = 1 } accepted;
	int accepted_fd[PEERS];
	unsigned accepted_count;
	void (*on_event)(struct rig *rig, struct peer *peer, const struct loop_event *event);
	struct peer peer[PEERS];
};

static struct peer *rig_add(struct rig *rig, int fd)
{
	struct peer *peer = rig->peer;

	while (peer->handle >= 0)
		assert_true(++peer < rig->peer + PEERS);
	memset(peer, 0, sizeof(*peer));
	peer->handle = loop_add(rig->loop, fd, (uint64_t)(peer - rig->peer));
	assert_true(peer->handle >= 0);
	return peer;
}

static void rig_close(struct rig *rig, struct peer *peer)
{
	if (peer->closing)
		return;
	peer->closing = true;
	loop_close(rig->loop, peer->handle);
}

static void send_bytes(struct rig *rig, struct peer *peer, const void *bytes, size_t len)
{
	struct iovec iov = { .iov_base = (void *)(uintptr_t)bytes, .iov_len = len };

	peer->sending = true;
	loop_send(rig->loop, peer->handle, &iov, 1);
}

/* Sends the queue's first buffer; at the end of stream, once all is out, closes. */
static void echo_next(struct rig *rig, struct peer *peer)
{
	if (peer->sending || peer->closing)
		return;
	if (peer->first != peer->last) {
		struct loop_event *event = &peer->queue[peer->first % BUFFERS];

		send_bytes(rig, peer, event->data, (size_t)event->res);
	} else if (peer->ends + peer->errors > 0) {
		rig_close(rig, peer);
	}
}

static void give_back_queue(struct rig *rig, struct peer *peer)
{
	for (; peer->first != peer->last; peer->first++)
		loop_give_back(rig->loop, peer->queue[peer->first % BUFFERS].buffer);
}

static void on_received(struct rig *rig, struct peer *peer, const struct loop_event *event)
{
	if (event->res <= 0) {
		peer->ends += event->res == 0;
		peer->errors += event->res < 0;
	} else if (peer->manner == SINK) {
		if (peer->sink)
			memcpy(peer->sink + peer->bytes, event->data, (size_t)event->res);
		peer->bytes += (uint64_t)event->res;
		loop_give_back(rig->loop, event->buffer);
	} else {
		assert_true(peer->last - peer->first < BUFFERS);
		peer->bytes += (uint64_t)event->res;
		peer->queue[peer->last++ % BUFFERS] = *event;
	}
	if (peer->manner == ECHO)
		echo_next(rig, peer);
}

static void on_filled(struct peer *peer, const struct loop_event *event)
{
	if (event->res <= 0)
		return;
	if (peer->fill_into)
		memcpy(peer->sink + peer->bytes, peer->fill_into, (size_t)event->res);
	peer->bytes += (uint64_t)event->res;
}

static void on_sent(struct rig *rig, struct peer *peer, const struct loop_event *event)
{
	peer->sending = false;
	if (peer->manner != ECHO)
		return;
	assert_true(peer->first != peer->last);
	loop_give_back(rig->loop, peer->queue[peer->first++ % BUFFERS].buffer);
	if (event->res < 0)
		rig_close(rig, peer);
	else
		echo_next(rig, peer);
}

static void on_accepted(struct rig *rig, const struct loop_event *event)
{
	struct peer *peer;

	if (event->res < 0)
		return;
	if (rig->accepted != ECHO_ACCEPTED) {
		rig->accepted_fd[rig->accepted_count++] = event->res;
		return;
	}
	peer = rig_add(rig, event->res);
	peer->manner = ECHO;
	loop_receive(rig->loop, peer->handle);
}

static void on_event(void *ctx, const struct loop_event *event)
{
	struct rig *rig = ctx;
	struct peer *peer = &rig->peer[event->tag];

	assert_true(rig->inside && !rig->busy);
	rig->busy = true;
	assert_int_equal(event->handle, peer->handle);
	assert_true(!peer->closing || event->op == LOOP_SENT || event->op == LOOP_CLOSED);
	peer->count[event->op]++;
	peer->res[event->op] = event->res;
	if (event->op == LOOP_RECEIVED)
		on_received(rig, peer, event);
	else if (event->op == LOOP_FILLED)
		on_filled(peer, event);
	else if (event->op == LOOP_SENT)
		on_sent(rig, peer, event);
	else if (event->op == LOOP_ACCEPTED)
		on_accepted(rig, event);
	if (rig->on_event)
		rig->on_event(rig, peer, event);
	if (event->op == LOOP_CLOSED) {
		assert_false(peer->sending);
		give_back_queue(rig, peer);
		peer->handle = -1;
	}
	rig->busy = false;
}

/* Where the host forbids io_uring its half of the tests is skipped and says why. */
static void uring_or_skip(void)
{
	const struct loop_params params = { .kind = LOOP_URING,
					    .handles_max = 1,
					    .buffers = 2,
					    .buffer_size = 64,
					    .entries = 256 };
	static bool known;
	struct loop *loop;
	const char *why;

	if (known)
		return;
	if (loop_new(&loop, &params, on_event, NULL, &why) != 0) {
		print_message("%s\n", why);
		skip();
	}
	known = true;
	loop_free(loop);
}

static struct rig *rig_new_sized(enum loop_kind kind, unsigned buffers, unsigned buffer_size)
{
	struct rig *rig = calloc(1, sizeof(*rig));
	const struct loop_params params = {
		.kind = kind,
		.handles_max = PEERS,
		.buffers = buffers,
		.buffer_size = buffer_size,
		.entries = 256,
	};
	const char *why = NULL;

	assert_non_null(rig);
	for (unsigned i = 0; i < PEERS; i++)
		rig->peer[i].handle = -1;
	rig->kind = kind;
	if (loop_new(&rig->loop, &params, on_event, rig, &why) != 0) {
		print_message("%s\n", why);
		fail();
	}
	assert_int_equal(loop_kind_of(rig->loop), kind);
	return rig;
}

static struct rig *rig_new(void **state)
{
	if (*(enum loop_kind *)*state == LOOP_URING)
		uring_or_skip();
	return rig_new_sized(*(enum loop_kind *)*state, BUFFERS, BUFFER_SIZE);
}

static int rig_turn(struct rig *rig, uint64_t timeout_ns)
{
	int n;

	rig->inside = true;
	n = loop_turn(rig->loop, timeout_ns);
	rig->inside = false;
	assert_true(n >= 0);
	return n;
}

/* Turns until the condition holds; it must within WAITS_MAX waits that brought nothing. */
#define until(rig, condition)                                 \
	do {                                                  \
		for (int idle_ = 0; !(condition);) {          \
			idle_ += rig_turn(rig, HANG_NS) == 0; \
			assert_true(idle_ < WAITS_MAX);       \
		}                                             \
	} while (0)

/* Turns until nothing has come for a while: what has not happened by then does not happen. */
static void settle(struct rig *rig)
{
	for (int quiet = 0; quiet < 3;)
		quiet = rig_turn(rig, HANG_NS / 4) == 0 ? quiet + 1 : 0;
}

static unsigned buffers_out(const struct rig *rig)
{
	struct loop_stats stats;

	loop_stats_get(rig->loop, &stats);
	return stats.buffers_out;
}

static void rig_free(struct rig *rig)
{
	loop_free(rig->loop);
	free(rig);
}

/* Closes everything the decent way, checks that nothing leaked, and frees. */
static void rig_end(struct rig *rig)
{
	unsigned open;

	for (unsigned i = 0; i < PEERS; i++) {
		if (rig->peer[i].handle >= 0)
			rig_close(rig, &rig->peer[i]);
	}
	do {
		rig_turn(rig, HANG_NS);
		open = 0;
		for (unsigned i = 0; i < PEERS; i++)
			open += rig->peer[i].handle >= 0;
	} while (open > 0);
	assert_int_equal(buffers_out(rig), 0);
	rig_free(rig);
}

static void set_nonblocking(int fd)
{
	assert_int_equal(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK), 0);
}

static int tcp_listener(struct sockaddr_in *ret_addr)
{
	struct sockaddr_in addr = { .sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(addr);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, len), 0);
	assert_int_equal(listen(fd, 1024), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &len), 0);
	*ret_addr = addr;
	return fd;
}

static int tcp_dial(const struct sockaddr_in *addr)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (const struct sockaddr *)addr, sizeof(*addr)), 0);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

/* [0] non-blocking, for the loop; [1] blocking, for the test. */
static void tcp_pair(int pair[2])
{
	struct sockaddr_in addr;
	int listener = tcp_listener(&addr);

	pair[1] = tcp_dial(&addr);
	pair[0] = accept(listener, NULL, NULL);
	assert_true(pair[0] >= 0);
	set_nonblocking(pair[0]);
	close(listener);
}

static void unix_pair(int pair[2])
{
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	set_nonblocking(pair[0]);
}

static uint8_t byte_at(uint64_t seed, uint64_t at)
{
	uint64_t x = (at + seed * 1000003) * 0x9e3779b97f4a7c15u;

	return (uint8_t)(x >> 56);
}

static void fill_pattern(uint8_t *bytes, size_t len, uint64_t seed, uint64_t at)
{
	for (size_t i = 0; i < len; i++)
		bytes[i] = byte_at(seed, at + i);
}

static void check_pattern(const uint8_t *bytes, size_t len, uint64_t seed, uint64_t at)
{
	for (size_t i = 0; i < len; i++) {
		if (bytes[i] != byte_at(seed, at + i))
			fail_msg("byte %llu of %llu is wrong", (unsigned long long)(at + i),
				 (unsigned long long)seed);
	}
}

/* A client of the echo test: plain non-blocking socket, writes and checks what comes back. */
struct echo_client {
	int fd;
	uint64_t seed, written, read, total;
};

static bool echo_client_step(struct echo_client *c)
{
	uint8_t bytes[7001];
	ssize_t n;

	if (c->written < c->total) {
		size_t len = 1 + (c->written * 31 + c->seed * 17) % 7000;

		if (len > c->total - c->written)
			len = (size_t)(c->total - c->written);
		fill_pattern(bytes, len, c->seed, c->written);
		n = send(c->fd, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n > 0)
			c->written += (uint64_t)n;
		if (c->written == c->total)
			shutdown(c->fd, SHUT_WR);
	}
	while ((n = recv(c->fd, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0) {
		check_pattern(bytes, (size_t)n, c->seed, c->read);
		c->read += (uint64_t)n;
	}
	return n == 0;
}

static void many_connections_of_odd_sizes_are_echoed_byte_for_byte(void **state)
{
	enum { CLIENTS = 100 };
	struct rig *rig = rig_new(state);
	struct echo_client client[CLIENTS];
	struct sockaddr_in addr;
	struct peer *listener = rig_add(rig, tcp_listener(&addr));
	unsigned done = 0;

	rig->accepted = ECHO_ACCEPTED;
	loop_accept(rig->loop, listener->handle);
	for (unsigned i = 0; i < CLIENTS; i++) {
		client[i] = (struct echo_client){ .seed = i, .total = 1 + 1777 * i };
		client[i].fd = tcp_dial(&addr);
	}
	for (unsigned round = 0; done < CLIENTS; round++) {
		assert_true(round < 100000);
		for (unsigned i = 0; i < CLIENTS; i++) {
			if (client[i].fd < 0 || !echo_client_step(&client[i]))
				continue;
			assert_int_equal(client[i].read, client[i].total);
			close(client[i].fd);
			client[i].fd = -1;
			done++;
		}
		rig_turn(rig, 0);
	}

	assert_int_equal(listener->count[LOOP_ACCEPTED], CLIENTS);
	rig_end(rig);
}

static void a_half_closed_peer_is_an_end_told_once_and_can_still_be_answered(void **state)
{
	struct rig *rig = rig_new(state);
	int pair[2];
	char answer[8];

	tcp_pair(pair);
	struct peer *peer = rig_add(rig, pair[0]);
	loop_receive(rig->loop, peer->handle);
	assert_int_equal(send(pair[1], "bye", 3, 0), 3);
	assert_int_equal(shutdown(pair[1], SHUT_WR), 0);
	until(rig, peer->ends > 0);
	loop_receive(rig->loop, peer->handle);
	settle(rig);
	send_bytes(rig, peer, "answer", 6);
	until(rig, peer->count[LOOP_SENT] > 0);

	assert_int_equal(peer->bytes, 3);
	assert_int_equal(peer->ends, 1);
	assert_int_equal(peer->res[LOOP_SENT], 6);
	assert_int_equal(recv(pair[1], answer, sizeof(answer), 0), 6);
	close(pair[1]);
	rig_end(rig);
}

static void a_reset_is_an_error_told_once(void **state)
{
	const struct linger now = { .l_onoff = 1 };
	struct rig *rig = rig_new(state);
	int pair[2];

	tcp_pair(pair);
	struct peer *peer = rig_add(rig, pair[0]);
	loop_receive(rig->loop, peer->handle);
	rig_turn(rig, 0);
	setsockopt(pair[1], SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	close(pair[1]);
	until(rig, peer->errors > 0);
	loop_receive(rig->loop, peer->handle);
	settle(rig);

	assert_int_equal(peer->res[LOOP_RECEIVED], -ECONNRESET);
	assert_int_equal(peer->count[LOOP_RECEIVED], 1);
	rig_end(rig);
}

static void a_paused_stream_keeps_its_bytes_in_the_socket_until_resumed(void **state)
{
	struct rig *rig = rig_new(state);
	int pair[2];
	uint8_t bytes[4000];

	unix_pair(pair);
	struct peer *peer = rig_add(rig, pair[0]);
	uint8_t got[4 * sizeof(bytes)];
	peer->sink = got;
	loop_receive(rig->loop, peer->handle);
	fill_pattern(bytes, sizeof(bytes), 1, 0);
	assert_int_equal(send(pair[1], bytes, sizeof(bytes), 0), sizeof(bytes));
	until(rig, peer->bytes == sizeof(bytes));
	loop_pause(rig->loop, peer->handle);
	settle(rig);
	fill_pattern(bytes, sizeof(bytes), 1, sizeof(bytes));
	assert_int_equal(send(pair[1], bytes, sizeof(bytes), 0), sizeof(bytes));
	settle(rig);
	assert_int_equal(peer->bytes, sizeof(bytes));

	loop_receive(rig->loop, peer->handle);
	until(rig, peer->bytes == 2 * sizeof(bytes));

	check_pattern(got, 2 * sizeof(bytes), 1, 0);
	close(pair[1]);
	rig_end(rig);
}

/* Blocking ends of a transfer, each in a thread of its own. */
struct transfer {
	int fd;
	uint64_t bytes;
	bool right;
};

enum { TRANSFER_SEED = 11, TRANSFER_STEP = 50021 };

static void *transfer_write(void *ctx)
{
	struct transfer *t = ctx;
	uint8_t bytes[TRANSFER_STEP];

	for (uint64_t at = 0; at < t->bytes;) {
		uint64_t len = t->bytes - at < sizeof(bytes) ? t->bytes - at : sizeof(bytes);
		ssize_t n;

		fill_pattern(bytes, len, TRANSFER_SEED, at);
		n = send(t->fd, bytes, len, MSG_NOSIGNAL | MSG_WAITALL);
		if (n <= 0)
			return NULL;
		at += (uint64_t)n;
	}
	shutdown(t->fd, SHUT_WR);
	t->right = true;
	return NULL;
}

static void *transfer_read(void *ctx)
{
	struct transfer *t = ctx;
	uint8_t bytes[TRANSFER_STEP];
	uint64_t at = 0;
	ssize_t n;

	while ((n = recv(t->fd, bytes, sizeof(bytes), 0)) > 0) {
		for (ssize_t i = 0; i < n; i++) {
			if (bytes[i] != byte_at(TRANSFER_SEED, at + (uint64_t)i))
				return NULL;
		}
		at += (uint64_t)n;
	}
	t->right = n == 0 && at == t->bytes;
	return NULL;
}

/* Two blocks in turn: one is filled while the other is sent, in up to eight odd pieces. */
struct relay {
	struct peer *from, *to;
	uint8_t block[2][65536];
	size_t len[2];
	unsigned filled, sent; /* blocks so far */
	bool filling, sending, ended;
};

static void relay_step(struct rig *rig, struct relay *r)
{
	if (!r->filling && !r->ended && r->filled - r->sent < 2) {
		loop_fill(rig->loop, r->from->handle, r->block[r->filled % 2], sizeof(r->block[0]));
		r->filling = true;
	}
	if (!r->sending && r->filled != r->sent) {
		struct iovec iov[LOOP_IOV_MAX];
		uint8_t *at = r->block[r->sent % 2];
		size_t left = r->len[r->sent % 2];
		int n = 0;

		for (; left > 0; n++) {
			size_t len = n < LOOP_IOV_MAX - 1 && left > 999 ? left / 3 : left;

			iov[n] = (struct iovec){ .iov_base = at, .iov_len = len };
			at += len;
			left -= len;
		}
		loop_send(rig->loop, r->to->handle, iov, n);
		r->sending = true;
	}
	if (r->ended && r->filled == r->sent)
		rig_close(rig, r->to);
}

static struct relay *relay_of_test;

static void relay_event(struct rig *rig, struct peer *peer, const struct loop_event *event)
{
	struct relay *r = relay_of_test;

	if (event->op == LOOP_CLOSED)
		return;
	if (event->op == LOOP_FILLED) {
		r->filling = false;
		assert_true(event->res >= 0);
		r->ended = event->res == 0;
		r->len[r->filled % 2] = (size_t)event->res;
		r->filled += event->res > 0;
	} else {
		assert_int_equal(event->op, LOOP_SENT);
		r->sending = false;
		assert_int_equal(event->res, r->len[r->sent % 2]);
		r->sent++;
	}
	relay_step(rig, r);
}

static void a_large_body_passes_through_fill_and_send_unchanged(void **state)
{
	enum { BODY = 64 << 20 };
	struct rig *rig = rig_new(state);
	struct relay *r = calloc(1, sizeof(*r));
	int in[2], out[2];
	pthread_t writer, reader;

	tcp_pair(in);
	tcp_pair(out);
	struct transfer from = { .fd = in[1], .bytes = BODY }, to = { .fd = out[1], .bytes = BODY };
	r->from = rig_add(rig, in[0]);
	r->to = rig_add(rig, out[0]);
	relay_of_test = r;
	rig->on_event = relay_event;
	pthread_create(&writer, NULL, transfer_write, &from);
	pthread_create(&reader, NULL, transfer_read, &to);
	relay_step(rig, r);
	until(rig, r->to->handle < 0);
	pthread_join(writer, NULL);
	pthread_join(reader, NULL);

	assert_true(from.right);
	assert_true(to.right);
	close(in[1]);
	close(out[1]);
	rig_end(rig);
	free(r);
}

static void no_byte_overtakes_another_however_stream_and_fill_alternate(void **state)
{
	enum { TOTAL = 3000000 };
	struct rig *rig = rig_new(state);
	int pair[2];
	uint8_t *got = malloc(TOTAL), part[5000];
	pthread_t writer;

	unix_pair(pair);
	struct transfer from = { .fd = pair[1], .bytes = TOTAL };
	struct peer *peer = rig_add(rig, pair[0]);
	peer->sink = got;
	pthread_create(&writer, NULL, transfer_write, &from);
	for (unsigned i = 0; peer->bytes < TOTAL; i++) {
		unsigned fills = peer->count[LOOP_FILLED];

		loop_receive(rig->loop, peer->handle);
		if (i % 3 != 0)
			rig_turn(rig, i % 3 == 1 ? 0 : HANG_NS);
		loop_pause(rig->loop, peer->handle);
		if (i % 5 == 0) { /* resumed before the pause can have taken effect */
			loop_receive(rig->loop, peer->handle);
			rig_turn(rig, 0);
			loop_pause(rig->loop, peer->handle);
		}
		if (peer->ends > 0)
			break;
		peer->fill_into = part;
		loop_fill(rig->loop, peer->handle, part, 1 + i * 37 % sizeof(part));
		if (i % 2 == 0)
			loop_receive(rig->loop, peer->handle);
		until(rig, peer->count[LOOP_FILLED] > fills);
	}
	pthread_join(writer, NULL);

	assert_int_equal(peer->bytes, TOTAL);
	check_pattern(got, TOTAL, TRANSFER_SEED, 0);
	close(pair[1]);
	rig_end(rig);
	free(got);
}

static unsigned send_until_full(int fd, uint64_t seed)
{
	uint8_t bytes[1024];
	unsigned sent = 0;
	ssize_t n;

	for (;;) {
		fill_pattern(bytes, sizeof(bytes), seed, sent);
		n = send(fd, bytes, sizeof(bytes), MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n <= 0)
			return sent;
		sent += (unsigned)n;
	}
}

static void a_fill_behind_a_paused_stream_gets_the_bytes_that_come_later(void **state)
{
	struct rig *rig = rig_new(state);
	char part[5];
	int pair[2];

	unix_pair(pair);
	struct peer *peer = rig_add(rig, pair[0]);
	loop_receive(rig->loop, peer->handle);
	settle(rig);
	loop_pause(rig->loop, peer->handle);
	loop_fill(rig->loop, peer->handle, part, sizeof(part));
	settle(rig);
	assert_int_equal(send(pair[1], "laterlast", 9, 0), 9);
	until(rig, peer->bytes == 5);
	settle(rig);
	assert_int_equal(peer->count[LOOP_RECEIVED], 0); /* paused: the rest waits in the socket */
	assert_memory_equal(part, "later", 5);
	loop_receive(rig->loop, peer->handle);
	until(rig, peer->bytes == 9);

	assert_int_equal(peer->res[LOOP_RECEIVED], 4);
	close(pair[1]);
	rig_end(rig);
}

static void a_fill_taken_back_leaves_its_bytes_to_the_stream(void **state)
{
	struct rig *rig = rig_new(state);
	char part[5] = "?????";
	int pair[2];

	unix_pair(pair);
	struct peer *peer = rig_add(rig, pair[0]);
	loop_receive(rig->loop, peer->handle);
	settle(rig);
	assert_int_equal(send(pair[1], "early", 5, 0), 5);
	loop_pause(rig->loop, peer->handle);
	loop_fill(rig->loop, peer->handle, part, sizeof(part));
	loop_fill_cancel(rig->loop, peer->handle);
	loop_receive(rig->loop, peer->handle);
	until(rig, peer->bytes == 5);
	assert_int_equal(send(pair[1], "later", 5, 0), 5);
	until(rig, peer->bytes == 10);

	assert_int_equal(peer->count[LOOP_FILLED], 0);
	assert_memory_equal(part, "?????", 5);
	close(pair[1]);
	rig_end(rig);
}

static struct peer *flood_of_test;
static uint64_t flooded_before_other;

static int answered_to;
static ssize_t answered;

static void answer_and_look(struct rig *rig, struct peer *peer, const struct loop_event *event)
{
	char byte;

	if (event->op != LOOP_RECEIVED || event->res <= 0)
		return;
	send_bytes(rig, peer, "y", 1);
	answered = recv(answered_to, &byte, 1, MSG_DONTWAIT);
}

static void what_the_socket_takes_is_out_before_its_event_is_over(void **state)
{
	struct rig *rig = rig_new(state);
	int pair[2];

	unix_pair(pair);
	struct peer *peer = rig_add(rig, pair[0]);
	answered_to = pair[1];
	rig->on_event = answer_and_look;
	loop_receive(rig->loop, peer->handle);
	for (unsigned i = 1; i <= 3; i++) {
		answered = 0;
		assert_int_equal(send(pair[1], "x", 1, 0), 1);
		until(rig, peer->count[LOOP_SENT] == i);
		assert_int_equal(answered, 1);
	}
	close(pair[1]);
	rig_end(rig);
}

static void note_flood(struct rig *rig, struct peer *peer, const struct loop_event *event)
{
	if (peer != flood_of_test && event->op == LOOP_RECEIVED)
		flooded_before_other = flood_of_test->bytes;
}

static void a_flood_on_one_descriptor_lets_the_others_through(void **state)
{
	struct rig *rig = rig_new(state);
	int flood[2], other[2];

	unix_pair(flood);
	unix_pair(other);
	flood_of_test = rig_add(rig, flood[0]);
	struct peer *quiet = rig_add(rig, other[0]);
	rig->on_event = note_flood;
	const unsigned sent = send_until_full(flood[1], 1);
	assert_int_equal(send(other[1], "x", 1, 0), 1);
	loop_receive(rig->loop, flood_of_test->handle);
	loop_receive(rig->loop, quiet->handle);
	until(rig, quiet->bytes == 1);
	until(rig, flood_of_test->bytes == sent);

	/* io_uring's share is the kernel's choice, epoll's is ours. */
	assert_true(sent > 20 * BUFFER_SIZE);
	if (rig->kind == LOOP_EPOLL)
		assert_true(flooded_before_other <= 8 * BUFFER_SIZE);
	close(flood[1]);
	close(other[1]);
	rig_end(rig);
}

static void pause_after_eight(struct rig *rig, struct peer *peer, const struct loop_event *event)
{
	if (event->op == LOOP_RECEIVED && peer->manner == HOLD && peer->last - peer->first >= 8)
		loop_pause(rig->loop, peer->handle);
}

static void a_stopped_reader_bounds_its_buffers_and_holds_up_nobody(void **state)
{
	struct rig *rig = rig_new(state);
	const int small = 16 * 1024;
	int slow[2], quick[2];
	uint8_t got[300];

	tcp_pair(slow);
	unix_pair(quick);
	setsockopt(slow[0], SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	struct peer *stopped = rig_add(rig, slow[0]), *other = rig_add(rig, quick[0]);
	stopped->manner = HOLD;
	other->manner = ECHO;
	rig->on_event = pause_after_eight;
	loop_receive(rig->loop, stopped->handle);
	loop_receive(rig->loop, other->handle);
	for (int i = 0; i < 20; i++) {
		send_until_full(slow[1], 1);
		settle(rig);
	}
	for (uint64_t at = 0; at < 100 * sizeof(got); at += sizeof(got)) {
		fill_pattern(got, sizeof(got), 2, at);
		assert_int_equal(send(quick[1], got, sizeof(got), 0), sizeof(got));
		until(rig, other->bytes >= at + sizeof(got) && !other->sending);
		assert_int_equal(recv(quick[1], got, sizeof(got), 0), sizeof(got));
		check_pattern(got, sizeof(got), 2, at);
	}

	assert_true(buffers_out(rig) >= 8 && buffers_out(rig) < BUFFERS);
	assert_int_equal(buffers_out(rig), stopped->last - stopped->first);
	close(slow[1]);
	close(quick[1]);
	rig_end(rig);
}

static void pause_at_once(struct rig *rig, struct peer *peer, const struct loop_event *event)
{
	if (event->op == LOOP_RECEIVED)
		loop_pause(rig->loop, peer->handle);
}

/* What comes behind the first buffer can then be received elsewhere. */
static void a_handle_read_singly_takes_one_buffer_before_its_pause(void **state)
{
	struct rig *rig = rig_new(state);
	static uint8_t into[4 * BUFFER_SIZE];
	int pair[2];

	tcp_pair(pair);
	struct peer *peer = rig_add(rig, pair[0]);
	peer->manner = HOLD;
	rig->on_event = pause_at_once;
	const unsigned sent = send_until_full(pair[1], 1);
	loop_receive_singly(rig->loop, peer->handle);
	loop_receive(rig->loop, peer->handle);
	settle(rig);
	assert_true(sent > 20 * BUFFER_SIZE);
	assert_int_equal(peer->bytes, BUFFER_SIZE);
	loop_fill(rig->loop, peer->handle, into, sizeof(into));
	until(rig, peer->count[LOOP_FILLED] == 1);
	check_pattern(into, (size_t)peer->res[LOOP_FILLED], 1, BUFFER_SIZE);
	loop_receive(rig->loop, peer->handle);
	until(rig, peer->count[LOOP_RECEIVED] == 2);
	close(pair[1]);
	rig_end(rig);
}

static uint64_t times_exhausted(const struct rig *rig)
{
	struct loop_stats stats;

	loop_stats_get(rig->loop, &stats);
	return stats.buffers_exhausted;
}

/* Checks the oldest held buffer of a peer and gives it back. */
static void release_one(struct rig *rig, struct peer *peer, uint64_t seed, uint64_t *at)
{
	struct loop_event *event;

	if (peer->first == peer->last)
		return;
	event = &peer->queue[peer->first++ % BUFFERS];
	check_pattern(event->data, (size_t)event->res, seed, *at);
	*at += (uint64_t)event->res;
	loop_give_back(rig->loop, event->buffer);
}

static void an_empty_pool_stops_streams_without_spinning_and_all_recover(void **state)
{
	enum { STREAMS = 6, POOL = 16 };
	struct rig *rig;
	struct peer *peer[STREAMS];
	unsigned sent[STREAMS];
	uint64_t at[STREAMS] = { 0 }, exhausted;
	int pair[STREAMS][2];

	if (*(enum loop_kind *)*state == LOOP_URING)
		uring_or_skip();
	rig = rig_new_sized(*(enum loop_kind *)*state, POOL, 512);
	for (int i = 0; i < STREAMS; i++) {
		unix_pair(pair[i]);
		sent[i] = send_until_full(pair[i][1], (uint64_t)i);
		peer[i] = rig_add(rig, pair[i][0]);
		peer[i]->manner = HOLD;
		loop_receive(rig->loop, peer[i]->handle);
	}
	until(rig, buffers_out(rig) == POOL);
	settle(rig);
	exhausted = times_exhausted(rig);
	for (int i = 0; i < 5; i++)
		assert_int_equal(rig_turn(rig, HANG_NS / 4), 0);
	assert_true(exhausted > 0);
	assert_int_equal(times_exhausted(rig), exhausted);
	for (int done = 0, i = 0, rounds = 0; done < STREAMS; i = (i + 1) % STREAMS) {
		assert_true(rounds++ < 100000);
		release_one(rig, peer[i], (uint64_t)i, &at[i]);
		rig_turn(rig, 0);
		done = 0;
		for (int j = 0; j < STREAMS; j++)
			done += at[j] == sent[j];
	}
	for (int i = 0; i < STREAMS; i++)
		close(pair[i][1]);
	rig_end(rig);
}

/* A listener whose queue is full, so that the next connect stays pending. */
static int full_listener(struct sockaddr_in *ret_addr, int fillers[3])
{
	int listener = tcp_listener(ret_addr);

	assert_int_equal(listen(listener, 0), 0);
	for (int i = 0; i < 3; i++) {
		fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		connect(fillers[i], (struct sockaddr *)ret_addr, sizeof(*ret_addr));
	}
	return listener;
}

enum state {
	STATE_IDLE,
	STATE_CONNECTING,
	STATE_RECEIVING,
	STATE_RECEIVING_BYTES,
	STATE_PAUSED,
	STATE_STARVED,
	STATE_FILLING,
	STATE_SENDING,
	STATE_SENDING_AND_RECEIVING,
	STATE_PEER_GONE,
	STATE_WATCHING,
	STATE_NR,
};

struct stage {
	int pair[2];
	char bytes[4 << 20]; /* more than a socket takes */
	char fill[64];
};

/* Brings a fresh handle into the state; what is to be sent stays in the stage. */
static struct peer *enter_state(struct rig *rig, struct stage *stage, enum state state)
{
	struct sockaddr_in addr;
	struct peer *peer;
	int fillers[3];

	if (state == STATE_CONNECTING) {
		stage->pair[1] = full_listener(&addr, fillers);
		stage->pair[0] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		peer = rig_add(rig, stage->pair[0]);
		loop_connect(rig->loop, peer->handle, (struct sockaddr *)&addr, sizeof(addr));
		for (int i = 0; i < 3; i++)
			close(fillers[i]);
		return peer;
	}
	tcp_pair(stage->pair);
	peer = rig_add(rig, stage->pair[0]);
	if (state == STATE_RECEIVING_BYTES || state == STATE_STARVED)
		send_until_full(stage->pair[1], 1);
	peer->manner = state == STATE_STARVED ? HOLD : SINK;
	if (state == STATE_PEER_GONE)
		close(stage->pair[1]);
	if (state == STATE_FILLING)
		loop_fill(rig->loop, peer->handle, stage->fill, sizeof(stage->fill));
	else if (state == STATE_WATCHING)
		loop_watch(rig->loop, peer->handle);
	else if (state != STATE_IDLE && state != STATE_SENDING)
		loop_receive(rig->loop, peer->handle);
	if (state == STATE_PAUSED)
		loop_pause(rig->loop, peer->handle);
	if (state == STATE_SENDING || state == STATE_SENDING_AND_RECEIVING)
		send_bytes(rig, peer, stage->bytes, sizeof(stage->bytes));
	return peer;
}

static void a_close_in_any_state_ends_with_one_closed_and_frees_the_descriptor(void **state)
{
	struct stage *stage = calloc(1, sizeof(*stage));

	for (int i = 0; i < STATE_NR * 4; i++) {
		struct rig *rig = rig_new(state);
		struct peer *peer = enter_state(rig, stage, i % STATE_NR);
		bool sending = peer->sending;

		for (int turns = i / STATE_NR; turns > 0; turns--)
			rig_turn(rig, turns == 1 ? HANG_NS / 8 : 0);
		rig_close(rig, peer);
		if (peer->sending)
			assert_int_equal(peer->count[LOOP_SENT], 0);
		until(rig, peer->handle < 0);

		assert_int_equal(peer->count[LOOP_CLOSED], 1);
		assert_int_equal(peer->count[LOOP_SENT], sending);
		assert_true(!sending || peer->res[LOOP_SENT] == -ECANCELED);
		assert_int_equal(fcntl(stage->pair[0], F_GETFD), -1);
		if (i % STATE_NR != STATE_PEER_GONE)
			close(stage->pair[1]);
		rig_end(rig);
	}
	free(stage);
}

static void a_loop_freed_with_everything_pending_closes_every_descriptor(void **state)
{
	struct stage *stage = calloc(STATE_NR, sizeof(*stage));
	struct rig *rig = rig_new(state);

	for (int i = 0; i < STATE_NR; i++)
		enter_state(rig, &stage[i], i);
	rig_turn(rig, 0);
	for (unsigned i = 0; i < PEERS; i++) { /* memory held by tests is no concern of the loop */
		if (rig->peer[i].handle >= 0)
			give_back_queue(rig, &rig->peer[i]);
	}
	rig_free(rig);

	for (int i = 0; i < STATE_NR; i++) {
		assert_int_equal(fcntl(stage[i].pair[0], F_GETFD), -1);
		if (i != STATE_PEER_GONE)
			close(stage[i].pair[1]);
	}
	free(stage);
}

static void a_refused_connect_is_told(void **state)
{
	struct rig *rig = rig_new(state);
	struct sockaddr_in addr;
	int listener = tcp_listener(&addr);

	close(listener);
	struct peer *peer =
		rig_add(rig, socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
	loop_connect(rig->loop, peer->handle, (struct sockaddr *)&addr, sizeof(addr));
	assert_int_equal(peer->count[LOOP_CONNECTED], 0);
	until(rig, peer->count[LOOP_CONNECTED] > 0);
	settle(rig);

	assert_int_equal(peer->res[LOOP_CONNECTED], -ECONNREFUSED);
	assert_int_equal(peer->count[LOOP_CONNECTED], 1);
	rig_end(rig);
}

static void say_and_hear(struct rig *rig, struct peer *client, uint64_t seed)
{
	static uint8_t bytes[30000], got[sizeof(bytes)];

	fill_pattern(bytes, sizeof(bytes), seed, 0);
	client->sink = got;
	client->bytes = 0;
	loop_receive(rig->loop, client->handle);
	send_bytes(rig, client, bytes, sizeof(bytes));
	until(rig, client->bytes == sizeof(bytes) && !client->sending);
	check_pattern(got, sizeof(bytes), seed, 0);
}

static void both_ends_of_a_connection_may_live_in_one_loop(void **state)
{
	struct rig *rig = rig_new(state);
	struct sockaddr_in addr;
	struct peer *listener = rig_add(rig, tcp_listener(&addr));

	rig->accepted = ECHO_ACCEPTED;
	loop_accept(rig->loop, listener->handle);
	for (uint64_t i = 0; i < 50; i++) {
		struct peer *client = rig_add(
			rig, socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));

		loop_connect(rig->loop, client->handle, (struct sockaddr *)&addr, sizeof(addr));
		until(rig, client->count[LOOP_CONNECTED] > 0);
		assert_int_equal(client->res[LOOP_CONNECTED], 0);
		say_and_hear(rig, client, i);
		rig_close(rig, client);
	}

	rig_end(rig);
}

static int unix_listener(struct sockaddr_un *ret_addr, socklen_t *ret_len, int backlog)
{
	static unsigned serial;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	*ret_addr = (struct sockaddr_un){ .sun_family = AF_UNIX };
	snprintf(ret_addr->sun_path + 1, sizeof(ret_addr->sun_path) - 1, "test_loop.%d.%u",
		 (int)getpid(), serial++);
	*ret_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
			       strlen(ret_addr->sun_path + 1));
	assert_int_equal(bind(fd, (struct sockaddr *)ret_addr, *ret_len), 0);
	assert_int_equal(listen(fd, backlog), 0);
	return fd;
}

static void unix_sockets_are_accepted_connected_and_echoed(void **state)
{
	struct rig *rig = rig_new(state);
	struct sockaddr_un addr;
	socklen_t len;
	struct peer *listener = rig_add(rig, unix_listener(&addr, &len, 64));

	rig->accepted = ECHO_ACCEPTED;
	loop_accept(rig->loop, listener->handle);
	struct peer *client =
		rig_add(rig, socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
	loop_connect(rig->loop, client->handle, (struct sockaddr *)&addr, len);
	until(rig, client->count[LOOP_CONNECTED] > 0);
	assert_int_equal(client->res[LOOP_CONNECTED], 0);
	say_and_hear(rig, client, 5);

	rig_end(rig);
}

static void a_full_unix_listener_is_told_at_once_and_holds_up_nobody(void **state)
{
	struct rig *rig = rig_new(state);
	struct peer *client[4];
	struct sockaddr_un addr;
	socklen_t len;
	int listener = unix_listener(&addr, &len, 0), quick[2];

	for (int i = 0; i < 4; i++) {
		client[i] = rig_add(rig,
				    socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
		loop_connect(rig->loop, client[i]->handle, (struct sockaddr *)&addr, len);
	}
	settle(rig);
	unix_pair(quick);
	struct peer *other = rig_add(rig, quick[0]);
	loop_receive(rig->loop, other->handle);
	assert_int_equal(send(quick[1], "x", 1, 0), 1);
	until(rig, other->bytes == 1);

	assert_int_equal(client[0]->res[LOOP_CONNECTED], 0);
	for (int i = 1; i < 4; i++) {
		assert_int_equal(client[i]->count[LOOP_CONNECTED], 1);
		assert_int_equal(client[i]->res[LOOP_CONNECTED], -EAGAIN);
	}
	close(quick[1]);
	rig_end(rig);
	close(listener);
}

static void a_send_to_one_who_left_is_an_error_and_no_signal(void **state)
{
	struct rig *rig = rig_new(state);
	int pair[2];

	signal(SIGPIPE, SIG_DFL);
	unix_pair(pair);
	struct peer *peer = rig_add(rig, pair[0]);
	close(pair[1]);
	for (unsigned i = 1; i <= 2; i++) {
		send_bytes(rig, peer, "anyone?", 7);
		until(rig, peer->count[LOOP_SENT] == i);
		assert_int_equal(peer->res[LOOP_SENT], -EPIPE);
	}

	rig_end(rig);
}

static void set_descriptor_limit(rlim_t soft)
{
	struct rlimit limit;

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = soft;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void without_descriptors_accepting_stops_and_goes_on_when_asked(void **state)
{
	struct rig *rig = rig_new(state);
	struct sockaddr_in addr;
	struct peer *listener = rig_add(rig, tcp_listener(&addr));
	struct rlimit before;
	int client[6], next = open("/dev/null", O_RDONLY | O_CLOEXEC);

	close(next);
	getrlimit(RLIMIT_NOFILE, &before);
	for (int i = 0; i < 6; i++)
		client[i] = tcp_dial(&addr);
	set_descriptor_limit((rlim_t)client[5] + 1 + 2); /* two more and no third */
	loop_accept(rig->loop, listener->handle);
	until(rig, listener->res[LOOP_ACCEPTED] < 0);
	for (int i = 0; i < 5; i++)
		assert_int_equal(rig_turn(rig, HANG_NS / 4), 0);
	set_descriptor_limit(before.rlim_cur);
	assert_int_equal(listener->res[LOOP_ACCEPTED], -EMFILE);
	assert_int_equal(listener->count[LOOP_ACCEPTED], 3);

	loop_accept(rig->loop, listener->handle);
	until(rig, rig->accepted_count == 6);

	for (int i = 0; i < 6; i++) {
		close(client[i]);
		close(rig->accepted_fd[i]);
	}
	rig_end(rig);
}

static void a_paused_listener_leaves_its_queue_and_a_resumed_one_empties_it(void **state)
{
	struct rig *rig = rig_new(state);
	struct sockaddr_in addr;
	struct peer *listener = rig_add(rig, tcp_listener(&addr));
	int client[3];

	loop_accept(rig->loop, listener->handle);
	client[0] = tcp_dial(&addr);
	until(rig, rig->accepted_count == 1);
	loop_pause(rig->loop, listener->handle);
	settle(rig);
	client[1] = tcp_dial(&addr);
	client[2] = tcp_dial(&addr);
	settle(rig);
	assert_int_equal(rig->accepted_count, 1);
	loop_accept(rig->loop, listener->handle);
	until(rig, rig->accepted_count == 3);

	for (int i = 0; i < 3; i++) {
		close(client[i]);
		close(rig->accepted_fd[i]);
	}
	rig_end(rig);
}

static void a_long_queue_of_connections_is_accepted_in_few_turns(void **state)
{
	enum { QUEUED = 300 };
	struct rig *rig = rig_new(state);
	struct sockaddr_in addr;
	struct peer *listener = rig_add(rig, tcp_listener(&addr));
	int client[QUEUED], turns = 0;

	for (int i = 0; i < QUEUED; i++)
		client[i] = tcp_dial(&addr);
	loop_accept(rig->loop, listener->handle);
	for (; rig->accepted_count < QUEUED; turns++)
		rig_turn(rig, 0);
	settle(rig);

	assert_true(turns < 10);
	assert_int_equal(listener->count[LOOP_ACCEPTED], QUEUED);
	for (int i = 0; i < QUEUED; i++) {
		close(client[i]);
		close(rig->accepted_fd[i]);
	}
	rig_end(rig);
}

static void watched_signals_and_pipes_tell_each_time_they_turn_readable(void **state)
{
	struct rig *rig = rig_new(state);
	struct signalfd_siginfo info;
	sigset_t set;
	int pipes[2];
	char byte;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	assert_int_equal(pipe2(pipes, O_NONBLOCK | O_CLOEXEC), 0);
	struct peer *signals = rig_add(rig, signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
	struct peer *reader = rig_add(rig, pipes[0]);
	loop_watch(rig->loop, signals->handle);
	loop_watch(rig->loop, reader->handle);
	settle(rig);
	for (unsigned i = 1; i <= 3; i++) {
		kill(getpid(), SIGUSR1);
		until(rig, signals->count[LOOP_READABLE] == i);
		assert_int_equal(read(loop_fd(rig->loop, signals->handle), &info, sizeof(info)),
				 sizeof(info));
		assert_int_equal(write(pipes[1], "x", 1), 1);
		until(rig, reader->count[LOOP_READABLE] == i);
		assert_int_equal(read(pipes[0], &byte, 1), 1);
	}
	settle(rig);

	assert_int_equal(signals->count[LOOP_READABLE], 3);
	assert_int_equal(reader->count[LOOP_READABLE], 3);
	close(pipes[1]);
	rig_end(rig);
}

static void a_full_table_refuses_and_a_closed_handle_makes_room(void **state)
{
	struct rig *rig = rig_new(state);
	struct peer *last = NULL;

	for (unsigned i = 0; i < PEERS; i++)
		last = rig_add(rig, socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
	assert_int_equal(loop_add(rig->loop, 0, 0), -ENFILE);
	rig_close(rig, last);
	until(rig, last->handle < 0);
	rig_add(rig, socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));

	rig_end(rig);
}

/*
 * Connections that come and go at random points beside steady ones. Each carries its own number in
 * its first four bytes and a pattern made of it behind them, so that a byte of another is seen at
 * either end.
 */
enum { STORM = 20000, STORM_WIDTH = 48, STORM_STEADY = 8, STORM_BYTES = 6000 };

struct storm_client {
	int fd; /* -1 = none */
	uint32_t number, total, sent, read, leave_at;
	bool reset, steady;
};

struct storm {
	struct storm_client client[STORM_WIDTH + STORM_STEADY];
	uint32_t number[PEERS], seen[PEERS]; /* the server's side of a connection */
	uint32_t started, answered, left;
	uint64_t random;
	struct sockaddr_in addr;
};

static struct storm *storm_of_test;

static uint64_t storm_random(struct storm *s)
{
	s->random ^= s->random << 13;
	s->random ^= s->random >> 7;
	s->random ^= s->random << 17;
	return s->random;
}

static uint8_t storm_byte(uint32_t number, uint32_t at)
{
	return at < 4 ? (uint8_t)(number >> (8 * at)) : byte_at(number, at);
}

/* The server's end: each byte must belong to the number that opened the connection. */
static void storm_event(struct rig *rig, struct peer *peer, const struct loop_event *event)
{
	struct storm *s = storm_of_test;
	size_t i = (size_t)(peer - rig->peer);

	if (event->op == LOOP_CLOSED)
		s->number[i] = s->seen[i] = 0;
	if (event->op != LOOP_RECEIVED || event->res <= 0)
		return;
	for (int k = 0; k < event->res; k++, s->seen[i]++) {
		if (s->seen[i] < 4)
			s->number[i] |= (uint32_t)event->data[k] << (8 * s->seen[i]);
		else
			assert_int_equal(event->data[k], byte_at(s->number[i], s->seen[i]));
	}
	/* Steady ones have numbers beyond the storm and are never cut. */
	if (s->seen[i] >= 4 && s->number[i] <= STORM && storm_random(s) % 8 == 0)
		rig_close(rig, peer);
}

static void storm_open(struct storm *s, struct storm_client *c, bool steady)
{
	*c = (struct storm_client){ .fd = tcp_dial(&s->addr), .steady = steady };
	c->number = steady ? STORM + 1 + (uint32_t)(storm_random(s) % 1000000) : ++s->started;
	c->total = 4 + (uint32_t)(storm_random(s) % STORM_BYTES);
	c->leave_at = steady ? UINT32_MAX : (uint32_t)(storm_random(s) % (2 * c->total));
	c->reset = storm_random(s) % 2;
}

static void storm_close(struct storm *s, struct storm_client *c)
{
	const struct linger now = { .l_onoff = 1 };

	if (c->reset && !c->steady)
		setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	close(c->fd);
	c->fd = -1;
	s->answered += c->read == c->total;
	s->left += c->read != c->total;
	assert_true(!c->steady || c->read == c->total);
}

/* A step of one client; the connection ends when it has its whole answer, leaves, or was cut. */
static void storm_step(struct storm *s, struct storm_client *c)
{
	uint8_t bytes[STORM_BYTES + 4];
	ssize_t n = 1;

	if (c->sent < c->total) {
		uint32_t len = 4 + (uint32_t)(storm_random(s) % c->total);

		if (len > c->total - c->sent)
			len = c->total - c->sent;
		for (uint32_t i = 0; i < len; i++)
			bytes[i] = storm_byte(c->number, c->sent + i);
		n = send(c->fd, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT);
		c->sent += n > 0 ? (uint32_t)n : 0;
	}
	if (n > 0 || errno == EAGAIN) {
		n = recv(c->fd, bytes, sizeof(bytes), MSG_DONTWAIT);
		for (ssize_t i = 0; i < n; i++)
			assert_int_equal(bytes[i], storm_byte(c->number, c->read + (uint32_t)i));
		c->read += n > 0 ? (uint32_t)n : 0;
	}
	if (c->read == c->total || c->sent + c->read >= c->leave_at || n == 0 ||
	    (n < 0 && errno != EAGAIN))
		storm_close(s, c);
}

static unsigned open_descriptors(void)
{
	unsigned n = 0;

	for (int fd = 0; fd < 4096; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static void a_storm_of_aborted_connections_crosses_no_bytes_and_leaks_nothing(void **state)
{
	unsigned before = open_descriptors();
	struct rig *rig = rig_new(state);
	struct storm *s = calloc(1, sizeof(*s));
	struct peer *listener = rig_add(rig, tcp_listener(&s->addr));
	bool open = true;

	storm_of_test = s;
	s->random = 88172645463325252u;
	rig->accepted = ECHO_ACCEPTED;
	rig->on_event = storm_event;
	loop_accept(rig->loop, listener->handle);
	for (unsigned i = 0; i < STORM_WIDTH + STORM_STEADY; i++)
		s->client[i].fd = -1;
	while (open) {
		open = s->started < STORM;
		for (unsigned i = 0; i < STORM_WIDTH + STORM_STEADY; i++) {
			struct storm_client *c = &s->client[i];

			if (c->fd < 0 && s->started < STORM)
				storm_open(s, c, i >= STORM_WIDTH);
			if (c->fd >= 0)
				storm_step(s, c);
			open |= c->fd >= 0;
		}
		rig_turn(rig, 0);
	}

	assert_int_equal(s->started, STORM);
	assert_true(s->answered > STORM / 20 && s->left > STORM / 20);
	rig_end(rig);
	assert_int_equal(open_descriptors(), before);
	free(s);
}

/* The ring's descriptor, found the way an operator would. */
static int find_ring(void)
{
	for (int fd = 0; fd < 4096; fd++) {
		char path[64], target[64] = "";

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		if (readlink(path, target, sizeof(target) - 1) > 0 && strstr(target, "[io_uring]"))
			return fd;
	}
	fail_msg("no ring among the descriptors");
	return -1;
}

/* Posts completions into the loop's ring from another: user_data and result are ours to choose. */
static void post_completions(int ring_fd, uint64_t user_data, unsigned res, unsigned n)
{
	struct io_uring ring;

	assert_int_equal(io_uring_queue_init(8, &ring, 0), 0);
	for (unsigned i = 0; i < n; i++) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
		struct io_uring_cqe *cqe;

		io_uring_prep_msg_ring(sqe, ring_fd, res, user_data, 0);
		io_uring_submit(&ring);
		assert_int_equal(io_uring_wait_cqe(&ring, &cqe), 0);
		if (cqe->res < 0) {
			print_message("this kernel posts nothing between rings: %d\n", cqe->res);
			skip();
		}
		io_uring_cqe_seen(&ring, cqe);
	}
	io_uring_queue_exit(&ring);
}

/* The loop's own form of user_data: operation, generation, handle. */
static uint64_t late_tag(unsigned want, unsigned generation, unsigned handle)
{
	return (uint64_t)want << 56 | (uint64_t)generation << 32 | handle;
}

static void late_completions_of_a_former_owner_are_dropped(void **state)
{
	enum { LATE = 5000 }; /* more than the completion queue holds */
	struct rig *rig;
	struct loop_stats stats;
	int pair[2], ring_fd;

	uring_or_skip();
	rig = rig_new_sized(LOOP_URING, 4, 512);
	ring_fd = find_ring();
	unix_pair(pair);
	struct peer *peer = rig_add(rig, pair[0]);
	loop_receive(rig->loop, peer->handle);
	settle(rig);
	/* Not armed; of another generation; a handle that never was; a descriptor for nobody. */
	post_completions(ring_fd, late_tag(16, 0, (unsigned)peer->handle), 7, LATE);
	post_completions(ring_fd, late_tag(4, 77, (unsigned)peer->handle), 7, 1);
	post_completions(ring_fd, late_tag(4, 0, UINT32_MAX), 0, 1);
	post_completions(ring_fd, late_tag(1, 0, 3), (unsigned)dup(pair[1]), 1);
	assert_int_equal(send(pair[1], "still here", 10, 0), 10);
	until(rig, peer->bytes == 10);
	settle(rig);

	loop_stats_get(rig->loop, &stats);
	assert_int_equal(stats.late, LATE + 3);
	assert_int_equal(peer->count[LOOP_SENT], 0);
	close(pair[1]); /* the duplicate is closed, too: the end is seen */
	until(rig, peer->ends == 1);
	rig_end(rig);
}

/* A process that gave up a right, and what a loop of its own became there. */
struct outcome {
	int err;
	enum loop_kind kind;
	bool works;
	uint64_t overflows;
	char why[300];
};

/* Takes what comes and gives it back at once. */
struct taker {
	struct loop *loop;
	int received;
};

static void take_event(void *ctx, const struct loop_event *event)
{
	struct taker *taker = ctx;

	if (event->op != LOOP_RECEIVED || event->res <= 0)
		return;
	taker->received += event->res;
	loop_give_back(taker->loop, event->buffer);
}

enum { TAKEN = 60000, SINGLE = 700 };

static void try_loop(enum loop_kind kind, struct outcome *ret)
{
	static const char bytes[TAKEN / 40];
	/* Many streams that begin in one turn: more completions than a ring cut to the minimum
	 * holds. */
	const struct loop_params params = { .kind = kind,
					    .handles_max = SINGLE + 64,
					    .buffers = 4096,
					    .buffer_size = 16,
					    .entries = 4096 };
	struct rlimit files;
	struct taker taker = { 0 };
	struct loop_stats stats;
	const char *why = "";
	int pair[2];

	ret->err = loop_new(&taker.loop, &params, take_event, &taker, &why);
	snprintf(ret->why, sizeof(ret->why), "%s", why);
	if (ret->err)
		return;
	ret->kind = loop_kind_of(taker.loop);
	ret->works = getrlimit(RLIMIT_NOFILE, &files) == 0;
	files.rlim_cur = files.rlim_max;
	ret->works &= setrlimit(RLIMIT_NOFILE, &files) == 0;
	for (int i = 0; i < TAKEN / (int)sizeof(bytes); i++) {
		ret->works &= socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0;
		ret->works &= send(pair[1], bytes, sizeof(bytes), 0) == sizeof(bytes);
		loop_receive(taker.loop, loop_add(taker.loop, pair[0], 0));
	}
	for (int i = 0; i < SINGLE; i++) {
		ret->works &= socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0;
		ret->works &= send(pair[1], bytes, 1, 0) == 1;
		loop_receive(taker.loop, loop_add(taker.loop, pair[0], 0));
	}
	for (int i = 0; i < 2000 && taker.received < TAKEN + SINGLE; i++)
		loop_turn(taker.loop, HANG_NS);
	ret->works &= taker.received == TAKEN + SINGLE;
	loop_stats_get(taker.loop, &stats);
	ret->overflows = stats.overflows;
	loop_free(taker.loop);
}

/* No assertion in the child: it must never come back into the test program. */
static struct outcome in_child(enum loop_kind kind, bool (*give_up)(long what), long what)
{
	struct outcome outcome = { .err = -ECHILD };
	int result[2], status;
	pid_t pid;

	assert_int_equal(pipe(result), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		if (give_up(what))
			try_loop(kind, &outcome);
		_exit(write(result[1], &outcome, sizeof(outcome)) == sizeof(outcome) ? 0 : 1);
	}
	close(result[1]);
	assert_int_equal(read(result[0], &outcome, sizeof(outcome)), sizeof(outcome));
	close(result[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	return outcome;
}

/* io_uring_setup fails with the error, as under a container's filter or on an old kernel. */
static bool filter_setup(long err)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)err),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { .len = sizeof(filter) / sizeof(filter[0]), .filter = filter };

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void where_io_uring_is_refused_auto_takes_epoll_and_says_why(void **state)
{
	static const struct {
		int err;
		const char *word[2];
	} cases[] = {
		{ EPERM, { "seccomp", "kernel.io_uring_disabled" } },
		{ ENOSYS, { "not in this kernel", "ENOSYS" } },
		{ ENOMEM, { "RLIMIT_MEMLOCK", "KiB" } },
		{ EINVAL, { "too old", "6.1" } },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct outcome any = in_child(LOOP_AUTO, filter_setup, cases[i].err);
		struct outcome uring = in_child(LOOP_URING, filter_setup, cases[i].err);

		assert_int_equal(any.err, 0);
		assert_int_equal(any.kind, LOOP_EPOLL);
		assert_true(any.works);
		assert_non_null(strstr(any.why, "epoll"));
		assert_int_equal(uring.err, -cases[i].err);
		for (int k = 0; k < 2; k++) {
			assert_non_null(strstr(any.why, cases[i].word[k]));
			assert_non_null(strstr(uring.why, cases[i].word[k]));
		}
	}
}

/* A user of his own each time: locked memory is counted per user and released late. */
static bool become_limited(long memlock_kib)
{
	static uid_t uid = 64900;
	struct rlimit limit = { .rlim_cur = (rlim_t)memlock_kib * 1024,
				.rlim_max = (rlim_t)memlock_kib * 1024 };

	return setrlimit(RLIMIT_MEMLOCK, &limit) == 0 &&
	       setuid(uid + (uid_t)(memlock_kib % 97)) == 0;
}

static void little_locked_memory_halves_the_ring_and_none_means_epoll(void **state)
{
	struct outcome outcome;

	uring_or_skip();
	if (geteuid() != 0) {
		print_message("changing the user needs root\n");
		skip();
	}
	outcome = in_child(LOOP_AUTO, become_limited, 4096);
	if (outcome.err == -ECHILD) {
		print_message("this root may not change its user\n");
		skip();
	}
	assert_int_equal(outcome.err, 0);
	assert_int_equal(outcome.kind, LOOP_URING);
	assert_non_null(strstr(outcome.why, "4096 entries"));
	assert_true(outcome.works);

	outcome = in_child(LOOP_AUTO, become_limited, 128);
	assert_int_equal(outcome.err, 0);
	assert_int_equal(outcome.kind, LOOP_URING);
	assert_non_null(strstr(outcome.why, "instead of 4096, since RLIMIT_MEMLOCK is 128 KiB"));
	assert_true(outcome.overflows > 0);
	assert_true(outcome.works);

	outcome = in_child(LOOP_AUTO, become_limited, 0);
	assert_int_equal(outcome.err, 0);
	assert_int_equal(outcome.kind, LOOP_EPOLL);
	assert_non_null(strstr(outcome.why, "RLIMIT_MEMLOCK is 0 KiB"));
	assert_true(outcome.works);
}

static enum loop_kind kinds[] = { LOOP_EPOLL, LOOP_URING };

/* The same claim of either loop. */
#define BOTH(f)                                            \
	{ #f " (epoll)", f, NULL, NULL, &kinds[0] },       \
	{                                                  \
#f " (io_uring)", f, NULL, NULL, &kinds[1] \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(many_connections_of_odd_sizes_are_echoed_byte_for_byte),
		BOTH(a_half_closed_peer_is_an_end_told_once_and_can_still_be_answered),
		BOTH(a_reset_is_an_error_told_once),
		BOTH(a_large_body_passes_through_fill_and_send_unchanged),
		BOTH(no_byte_overtakes_another_however_stream_and_fill_alternate),
		BOTH(a_fill_behind_a_paused_stream_gets_the_bytes_that_come_later),
		BOTH(a_fill_taken_back_leaves_its_bytes_to_the_stream),
		BOTH(a_flood_on_one_descriptor_lets_the_others_through),
		BOTH(a_stopped_reader_bounds_its_buffers_and_holds_up_nobody),
		BOTH(what_the_socket_takes_is_out_before_its_event_is_over),
		BOTH(a_handle_read_singly_takes_one_buffer_before_its_pause),
		BOTH(an_empty_pool_stops_streams_without_spinning_and_all_recover),
		BOTH(a_paused_stream_keeps_its_bytes_in_the_socket_until_resumed),
		BOTH(a_close_in_any_state_ends_with_one_closed_and_frees_the_descriptor),
		BOTH(a_loop_freed_with_everything_pending_closes_every_descriptor),
		BOTH(a_refused_connect_is_told),
		BOTH(both_ends_of_a_connection_may_live_in_one_loop),
		BOTH(unix_sockets_are_accepted_connected_and_echoed),
		BOTH(a_full_unix_listener_is_told_at_once_and_holds_up_nobody),
		BOTH(a_send_to_one_who_left_is_an_error_and_no_signal),
		BOTH(without_descriptors_accepting_stops_and_goes_on_when_asked),
		BOTH(a_paused_listener_leaves_its_queue_and_a_resumed_one_empties_it),
		BOTH(a_long_queue_of_connections_is_accepted_in_few_turns),
		BOTH(watched_signals_and_pipes_tell_each_time_they_turn_readable),
		BOTH(a_storm_of_aborted_connections_crosses_no_bytes_and_leaks_nothing),
		BOTH(a_full_table_refuses_and_a_closed_handle_makes_room),
		cmocka_unit_test(late_completions_of_a_former_owner_are_dropped),
		cmocka_unit_test(where_io_uring_is_refused_auto_takes_epoll_and_says_why),
		cmocka_unit_test(little_locked_memory_halves_the_ring_and_none_means_epoll),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
