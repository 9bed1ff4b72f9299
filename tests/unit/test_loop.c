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
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/clock.h"
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

static void pause_after_eight(struct rig *rig, struct peer *peer, const struct loop_event *event)
{
	if (event->op == LOOP_RECEIVED && peer->manner == HOLD && peer->last - peer->first >= 8)
		loop_pause(rig->loop, peer->handle);
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
	struct rig *rig = rig_new_sized(*(enum loop_kind *)*state, POOL, 512);
	struct peer *peer[STREAMS];
	unsigned sent[STREAMS];
	uint64_t at[STREAMS] = { 0 }, exhausted;
	int pair[STREAMS][2];

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
	for (int done = 0, i = 0; done < STREAMS; i = (i + 1) % STREAMS) {
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
		BOTH(a_stopped_reader_bounds_its_buffers_and_holds_up_nobody),
		BOTH(an_empty_pool_stops_streams_without_spinning_and_all_recover),
		BOTH(a_paused_stream_keeps_its_bytes_in_the_socket_until_resumed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
