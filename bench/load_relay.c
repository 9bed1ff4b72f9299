/*
 * The floor's process: whoever forwards by read and write on this machine cannot cost less; see
 * load_relay.h.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/load_relay.h"

enum { EVENTS = 512, BUFFER = 1 << 20 };

struct end {
	int fd;
	struct end *other;
	char *kept; /* read from `other`, not yet taken by this one */
	size_t kept_len;
	bool dead;
};

struct floor_state {
	int epoll;
	unsigned connections;
	struct end *dead[2 * EVENTS]; /* to be freed once the batch is through */
	unsigned dead_n;
	char buffer[BUFFER];
};

static void want(struct floor_state *f, struct end *e, int how)
{
	struct epoll_event ev = { .data.ptr = e };

	/* Who has bytes kept for him is asked for room; meanwhile his partner is not read. */
	ev.events = (e->other && e->other->kept_len ? 0u : (uint32_t)EPOLLIN) |
		    (e->kept_len ? (uint32_t)EPOLLOUT : 0u);
	epoll_ctl(f->epoll, how, e->fd, &ev);
}

static void part(struct floor_state *f, struct end *e)
{
	struct end *both[2] = { e, e->other };

	for (int i = 0; i < 2; i++) {
		close(both[i]->fd);
		free(both[i]->kept);
		both[i]->kept = NULL;
		both[i]->dead = true;
		f->dead[f->dead_n++] = both[i];
	}
}

static void join(struct floor_state *f, int client, uint16_t port)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_port = htons(port),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct end *a = calloc(1, sizeof(*a)), *b = calloc(1, sizeof(*b));

	if (fd < 0 || !a || !b || connect(fd, (struct sockaddr *)&at, sizeof(at)) < 0) {
		close(fd);
		close(client);
		free(a);
		free(b);
		return;
	}
	setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	*a = (struct end){ .fd = client, .other = b };
	*b = (struct end){ .fd = fd, .other = a };
	want(f, a, EPOLL_CTL_ADD);
	want(f, b, EPOLL_CTL_ADD);
}

static void keep(struct floor_state *f, struct end *to, const char *bytes, size_t len)
{
	to->kept = malloc(len);
	if (!to->kept) {
		part(f, to);
		return;
	}
	memcpy(to->kept, bytes, len);
	to->kept_len = len;
	want(f, to, EPOLL_CTL_MOD);
	want(f, to->other, EPOLL_CTL_MOD);
}

static void flush(struct floor_state *f, struct end *to)
{
	ssize_t n = send(to->fd, to->kept, to->kept_len, MSG_NOSIGNAL | MSG_DONTWAIT);

	if (n < 0 && errno == EAGAIN)
		return;
	if (n < 0) {
		part(f, to);
		return;
	}
	to->kept_len -= (size_t)n;
	memmove(to->kept, to->kept + n, to->kept_len);
	if (to->kept_len)
		return;
	free(to->kept);
	to->kept = NULL;
	want(f, to, EPOLL_CTL_MOD);
	want(f, to->other, EPOLL_CTL_MOD);
}

static void pass(struct floor_state *f, struct end *from)
{
	if (from->other->kept_len) { /* not asked for: it has gone */
		part(f, from);
		return;
	}
	ssize_t n = recv(from->fd, f->buffer, sizeof(f->buffer), MSG_DONTWAIT);

	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 0) {
		part(f, from);
		return;
	}
	ssize_t sent = send(from->other->fd, f->buffer, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (sent < 0 && errno != EAGAIN)
		part(f, from);
	else if (sent < n)
		keep(f, from->other, f->buffer + (sent > 0 ? sent : 0),
		     (size_t)(n - (sent > 0 ? sent : 0)));
}

static void relay_run(void *ctx)
{
	static struct floor_state f;
	const struct load_relay *relay = ctx;
	struct epoll_event ready[EVENTS], ev = { .events = EPOLLIN, .data.ptr = NULL };
	int fd;

	signal(SIGPIPE, SIG_IGN);
	f.epoll = epoll_create1(EPOLL_CLOEXEC);
	epoll_ctl(f.epoll, EPOLL_CTL_ADD, relay->fd, &ev);
	for (;;) {
		int n = epoll_wait(f.epoll, ready, EVENTS, -1);

		for (int i = 0; i < n; i++) {
			struct end *e = ready[i].data.ptr;

			if (!e) {
				while ((fd = accept4(relay->fd, NULL, NULL, SOCK_CLOEXEC)) >= 0)
					join(&f, fd, relay->engine[f.connections++ % LOAD_ENGINES]);
				continue;
			}
			if (!e->dead && e->kept_len && ready[i].events & EPOLLOUT)
				flush(&f, e);
			if (!e->dead && ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
				pass(&f, e);
		}
		while (f.dead_n)
			free(f.dead[--f.dead_n]);
	}
}

int load_relay_start(struct load_relay *relay, const uint16_t engine[LOAD_ENGINES])
{
	*relay = (struct load_relay){ 0 };
	memcpy(relay->engine, engine, sizeof(relay->engine));
	relay->fd = load_listen(&relay->port);
	if (relay->fd < 0)
		return relay->fd;
	int err = load_proc_fork(&relay->proc, load_core_measured(), relay_run, relay);
	if (err)
		close(relay->fd);
	return err;
}

void load_relay_stop(struct load_relay *relay)
{
	load_proc_stop(&relay->proc);
	close(relay->fd);
}
