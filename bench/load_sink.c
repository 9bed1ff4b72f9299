/* The scripted engines' processes and sockets: what is read; load_sink_say.c has what is said. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/load_sink_impl.h"
#include "shm/base/clock.h"

enum { EVENTS = 512, BACKLOG = 8192, RECEIVE = 1 << 20 };

int load_listen(uint16_t *ret_port)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(at);
	int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&at, len) < 0 || listen(fd, BACKLOG) < 0 ||
	    getsockname(fd, (struct sockaddr *)&at, &len) < 0) {
		int err = -errno;

		close(fd);
		return err;
	}
	*ret_port = ntohs(at.sin_port);
	return fd;
}

uint16_t load_port_free(void)
{
	uint16_t port = 0;
	int fd = load_listen(&port);

	if (fd >= 0)
		close(fd);
	return port;
}

/* 1 if nobody listens there. */
static bool port_is_free(uint16_t port)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_port = htons(port),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool free_now = fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0;

	if (fd >= 0)
		close(fd);
	return free_now;
}

uint16_t load_ports_free(unsigned n)
{
	/* Below the ports that the kernel gives to whoever connects. */
	uint32_t start = 12000 + (uint32_t)(clock_ns() / NS_PER_MS % 18000);

	for (uint32_t first = start; first < start + 2000; first += n) {
		unsigned good = 0;

		while (good < n && port_is_free((uint16_t)(first + good)))
			good++;
		if (good == n)
			return (uint16_t)first;
	}
	return 0;
}

uint64_t load_stamp_find(const char *text, size_t len, const char **ret_end)
{
	const char *at = text, *end = text + len;

	while ((at = memmem(at, (size_t)(end - at), "T=", 2)) != NULL) {
		uint64_t value = 0;
		int digits = 0;

		for (at += 2; at < end && digits < LOAD_STAMP_DIGITS; at++, digits++) {
			if (*at < '0' || *at > '9')
				break;
			value = value * 10 + (uint64_t)(*at - '0');
		}
		if (digits < LOAD_STAMP_DIGITS)
			continue;
		if (ret_end)
			*ret_end = at;
		return value;
	}
	return 0;
}

/* ---- one connection ---- */

static void conn_drop(struct sink *sink, struct sink_conn *c)
{
	if (c->state == SINK_STREAM)
		atomic_fetch_add_explicit(&sink->shared->aborted, 1, memory_order_relaxed);
	sink_stream_leave(sink, c);
	close(c->fd);
	free(c->whole);
	free(c->out);
	free(c);
}

/* Keeps a body's first and last bytes, where routers put what they write; all of it for /render. */
static void body_keep(struct sink_conn *c, const char *bytes, size_t len)
{
	size_t room = sizeof(c->head) - c->head_len, n = len < room ? len : room;

	memcpy(c->head + c->head_len, bytes, n);
	c->head_len += n;
	if (len >= sizeof(c->tail)) {
		memcpy(c->tail, bytes + len - sizeof(c->tail), sizeof(c->tail));
		c->tail_len = sizeof(c->tail);
	} else {
		size_t keep = sizeof(c->tail) - len;

		if (c->tail_len > keep) {
			memmove(c->tail, c->tail + c->tail_len - keep, keep);
			c->tail_len = keep;
		}
		memcpy(c->tail + c->tail_len, bytes, len);
		c->tail_len += len;
	}
	if (c->renders) {
		char *grown = realloc(c->whole, c->whole_len + len);

		if (!grown)
			return;
		c->whole = grown;
		memcpy(c->whole + c->whole_len, bytes, len);
		c->whole_len += len;
	}
}

static void head_read(struct sink_conn *c)
{
	const char *end = memmem(c->head, c->head_len, "\r\n\r\n", 4);

	if (!end)
		return;
	c->state = SINK_BODY;
	c->body_at = (size_t)(end + 4 - c->head);
	c->renders = memmem(c->head, c->body_at, "/render ", 8) != NULL ||
		     memmem(c->head, c->body_at, "/tokenize ", 10) != NULL;
	c->chunked = false;
	c->left = 0;
	for (const char *at = c->head; at < end; at++) {
		if (*at != '\n')
			continue;
		if (strncasecmp(at + 1, "content-length:", 15) == 0)
			c->left = strtoull(at + 16, NULL, 10);
		else if (strncasecmp(at + 1, "transfer-encoding:", 18) == 0)
			c->chunked = true;
	}
}

static void conn_take(struct sink *sink, struct sink_conn *c, const char *bytes, size_t len)
{
	if (c->state == SINK_STREAM)
		return;
	if (c->state == SINK_HEAD) {
		size_t room = sizeof(c->head) - c->head_len, n = len < room ? len : room;
		size_t before = c->head_len;

		memcpy(c->head + c->head_len, bytes, n);
		c->head_len += n;
		head_read(c);
		if (c->state == SINK_HEAD)
			return;
		size_t used = c->body_at - before;

		c->head_len = c->body_at;
		bytes += used, len -= used;
	}
	body_keep(c, bytes, len);
	c->left -= c->left < len ? c->left : len;
	if (c->chunked ? c->tail_len >= 5 && memcmp(c->tail + c->tail_len - 5, "0\r\n\r\n", 5) == 0
		       : c->left == 0) {
		c->taken_ns = clock_ns();
		sink_answer(sink, c);
		c->head_len = c->tail_len = c->whole_len = 0;
	}
}

static void conn_ready(struct sink *sink, struct sink_conn *c, uint32_t what)
{
	static char bytes[RECEIVE];

	if (what & EPOLLOUT)
		sink_flush(sink, c);
	if (!(what & (EPOLLIN | EPOLLHUP | EPOLLERR)))
		return;
	ssize_t n = recv(c->fd, bytes, sizeof(bytes), 0);
	if (n > 0)
		conn_take(sink, c, bytes, (size_t)n);
	else if (n == 0 || errno != EAGAIN)
		conn_drop(sink, c);
}

/* ---- the process ---- */

static void accept_all(struct sink *sink, unsigned engine)
{
	int fd, one = 1;

	while ((fd = accept4(sink->listener[engine], NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >=
	       0) {
		struct sink_conn *c = calloc(1, sizeof(*c));
		struct epoll_event ev = { .events = EPOLLIN, .data.ptr = c };

		if (!c) {
			close(fd);
			return;
		}
		c->fd = fd;
		c->engine = (uint8_t)engine;
		c->place = -1;
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		epoll_ctl(sink->epoll, EPOLL_CTL_ADD, fd, &ev);
	}
}

static int wait_for(struct sink *sink, struct epoll_event *ready)
{
	uint64_t wait = sink_step(sink, clock_ns());
	struct timespec ts = { .tv_sec = (time_t)(wait / NS_PER_S),
			       .tv_nsec = (long)(wait % NS_PER_S) };

	return epoll_pwait2(sink->epoll, ready, EVENTS, wait == UINT64_MAX ? NULL : &ts, NULL);
}

static void sink_run(void *ctx)
{
	struct sink *sink = ctx;
	struct epoll_event ready[EVENTS];

	signal(SIGPIPE, SIG_IGN);
	sink->epoll = epoll_create1(EPOLL_CLOEXEC);
	for (unsigned e = sink->first; e < sink->last; e++) {
		struct epoll_event ev = { .events = EPOLLIN, .data.ptr = &sink->listener[e] };

		epoll_ctl(sink->epoll, EPOLL_CTL_ADD, sink->listener[e], &ev);
	}
	for (;;) {
		int n = wait_for(sink, ready);

		for (int i = 0; i < n; i++) {
			int *at = ready[i].data.ptr;

			if (at >= sink->listener && at < sink->listener + LOAD_ENGINES)
				accept_all(sink, (unsigned)(at - sink->listener));
			else
				conn_ready(sink, ready[i].data.ptr, ready[i].events);
		}
	}
}

static int process_start(struct load_sink *to, int which)
{
	static struct sink sink[2];
	struct sink *own = &sink[which];

	*own = (struct sink){ .shared = to->shared };
	own->first = which == 0 ? 0 : LOAD_ENGINES - 1;
	own->last = which == 0 ? LOAD_ENGINES - 1 : LOAD_ENGINES;
	memcpy(own->listener, to->fd, sizeof(own->listener));
	return load_proc_fork(&to->proc[which], load_core_own(), sink_run, own);
}

int load_sink_start(struct load_sink *ret_sink)
{
	struct load_sink sink = { 0 };
	int err = 0;

	sink.shared = mmap(NULL, sizeof(*sink.shared), PROT_READ | PROT_WRITE,
			   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (sink.shared == MAP_FAILED)
		return -errno;
	atomic_store(&sink.shared->period_ns, 20 * NS_PER_MS);
	for (int i = 0; i < LOAD_ENGINES; i++)
		sink.fd[i] = -1;
	for (int i = 0; i < LOAD_ENGINES && err >= 0; i++)
		err = sink.fd[i] = load_listen(&sink.port[i]);
	for (int i = 0; i < 2 && err >= 0; i++)
		err = process_start(&sink, i);
	if (err < 0)
		load_sink_stop(&sink);
	else
		*ret_sink = sink;
	return err < 0 ? err : 0;
}

void load_sink_stop(struct load_sink *sink)
{
	for (int i = 0; i < 2; i++)
		load_proc_stop(&sink->proc[i]);
	for (int i = 0; i < LOAD_ENGINES; i++)
		if (sink->fd[i] >= 0)
			close(sink->fd[i]);
	munmap(sink->shared, sizeof(*sink->shared));
}

void load_sink_halt(struct load_sink *sink, bool halted)
{
	kill(sink->proc[1].pid, halted ? SIGSTOP : SIGCONT);
}
