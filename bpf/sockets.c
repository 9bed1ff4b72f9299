/* A dump of sock_diag, v4 then v6; needs no privilege. */
#include "bpf/sockets.h"

#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "shm/base/scoped.h"

enum { STATES_ALIVE = 1 << 1 /* ESTABLISHED */ | 1 << 8 /* CLOSE_WAIT */ };

static void take(struct sockets *s, const struct nlmsghdr *h)
{
	const struct inet_diag_msg *m = NLMSG_DATA(h);
	int left = (int)h->nlmsg_len - (int)NLMSG_LENGTH(sizeof(*m));
	struct socket_seen *seen = &s->seen[s->n];

	if (s->n == SOCKETS_MAX || left < 0)
		return;
	seen->cookie = (uint64_t)m->id.idiag_cookie[1] << 32 | m->id.idiag_cookie[0];
	for (struct rtattr *a = (struct rtattr *)(m + 1); RTA_OK(a, left); a = RTA_NEXT(a, left)) {
		struct tcp_info info = { 0 };
		size_t n = RTA_PAYLOAD(a);

		if (a->rta_type != INET_DIAG_INFO)
			continue;
		memcpy(&info, RTA_DATA(a), n < sizeof(info) ? n : sizeof(info));
		seen->sent_ms = info.tcpi_last_data_sent;
		seen->received_ms = info.tcpi_last_data_recv;
	}
	s->n++;
}

static int ask(int fd, int family)
{
	struct {
		struct nlmsghdr head;
		struct inet_diag_req_v2 body;
	} q = { .head = { .nlmsg_len = sizeof(q),
			  .nlmsg_type = SOCK_DIAG_BY_FAMILY,
			  .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP },
		.body = { .sdiag_family = (uint8_t)family,
			  .sdiag_protocol = IPPROTO_TCP,
			  .idiag_ext = 1 << (INET_DIAG_INFO - 1),
			  .idiag_states = STATES_ALIVE } };

	return send(fd, &q, sizeof(q), 0) < 0 ? -errno : 0;
}

/* 1 when the dump is complete, 0 for more, -errno. */
static int answer(struct sockets *s, const char *buf, ssize_t n)
{
	const struct nlmsghdr *h = (const struct nlmsghdr *)buf;

	for (; NLMSG_OK(h, n); h = NLMSG_NEXT(h, n)) {
		if (h->nlmsg_type == NLMSG_DONE)
			return 1;
		if (h->nlmsg_type == NLMSG_ERROR)
			return ((const struct nlmsgerr *)NLMSG_DATA(h))->error;
		take(s, h);
	}
	return 0;
}

static int dump(struct sockets *s, int fd, int family)
{
	static _Alignas(8) char buf[65536];
	int r = ask(fd, family);

	while (r == 0) {
		ssize_t n = recv(fd, buf, sizeof(buf), 0);

		if (n <= 0)
			return n < 0 ? -errno : -EPIPE;
		r = answer(s, buf, n);
	}
	return r < 0 ? r : 0;
}

static int by_cookie(const void *a, const void *b)
{
	const struct socket_seen *x = a, *y = b;

	return (x->cookie > y->cookie) - (x->cookie < y->cookie);
}

int sockets_read(struct sockets *ret_sockets)
{
	static const struct timeval patience = { .tv_sec = 1 };
	struct sockets s = { .seen = calloc(SOCKETS_MAX, sizeof(*s.seen)) };
	scoped(fd_drop) int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
	int r = fd < 0 ? -errno : !s.seen ? -ENOMEM : 0;

	if (r == 0) {
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
		r = dump(&s, fd, AF_INET);
	}
	if (r == 0)
		r = dump(&s, fd, AF_INET6);
	if (r < 0) {
		sockets_free(&s);
		return r;
	}
	qsort(s.seen, s.n, sizeof(*s.seen), by_cookie);
	*ret_sockets = s;
	return 0;
}

void sockets_free(struct sockets *sockets)
{
	free(sockets->seen);
	*sockets = (struct sockets){ 0 };
}

const struct socket_seen *sockets_find(const struct sockets *sockets, uint64_t cookie)
{
	struct socket_seen key = { .cookie = cookie };

	return sockets->n ? bsearch(&key, sockets->seen, sockets->n, sizeof(key), by_cookie) : NULL;
}
