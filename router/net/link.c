/* Connections to engines: dial, use, rest, drop. */
#include "router/net/link.h"

#include "router/engines.h"
#include "router/net/conn.h"
#include "router/worker.h"
#include "shm/base/clock.h"

#include <assert.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LATE_NS = 50 * NS_PER_MS /* of a timer: no turn of a worker that runs takes so long */ };

static void list_push(struct link **list, struct link *link)
{
	link->next = *list;
	link->prev = list;
	if (*list)
		(*list)->prev = &link->next;
	*list = link;
}

static void list_remove(struct link *link)
{
	*link->prev = link->next;
	if (link->next)
		link->next->prev = link->prev;
	link->prev = NULL;
	link->next = NULL;
}

static int socket_open(const struct engine *e)
{
	int one = 1;
	int family = e->at.addr.sa.any.sa_family;
	int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	if (family != AF_UNIX)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

struct link *link_dial(struct worker *w, struct engine *e, enum link_owner owner, uint32_t conn)
{
	struct link *link = w->links_free;
	int fd, handle;

	if (!link)
		return NULL;
	fd = socket_open(e);
	if (fd < 0)
		return NULL;
	handle = loop_add(w->loop, fd, worker_tag(TAG_LINK, link->generation, link->index));
	if (handle < 0) {
		close(fd);
		return NULL;
	}
	list_remove(link);
	link->state = LINK_DIALING;
	link->owner = owner;
	link->conn = conn;
	link->engine = e->index;
	link->handle = handle;
	link->reused = link->sending = link->deaf = 0;
	link->left = UINT32_MAX;
	link->idle_ns = w->set->engine_idle_timeout;
	e->links_nr++;
	w->links_nr++;
	loop_connect(w->loop, handle, &e->at.addr.sa.any, e->at.addr.len);
	wheel_arm(&w->wheel, &link->timer, w->now_ns + w->set->connect_timeout);
	return link;
}

/* An end, or bytes that nobody asked for, of which the loop has not told yet. */
static int spoilt(const struct worker *w, const struct link *link)
{
	uint8_t byte;

	return !loop_quiet(w->loop) &&
	       (recv(loop_fd(w->loop, link->handle), &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 ||
		errno != EAGAIN);
}

struct link *link_get(struct worker *w, struct engine *e, enum link_owner owner, uint32_t conn)
{
	struct link *link;

	while ((link = e->idle) && spoilt(w, link))
		link_drop(w, link);
	if (!link)
		return link_dial(w, e, owner, conn);
	assert(link->state == LINK_IDLE && link->engine == e->index);
	list_remove(link);
	e->idle_nr--;
	wheel_disarm(&w->wheel, &link->timer);
	link->state = LINK_BUSY;
	link->owner = owner;
	link->conn = conn;
	link->reused = 1;
	/* io_uring has read what it tells in this turn before it sends; epoll sends at once. */
	link->taken = loop_kind_of(w->loop) == LOOP_URING ? w->turns : 0;
	return link;
}

void link_rest(struct worker *w, struct link *link)
{
	struct engine *e = &w->engines[link->engine];

	assert(link->state == LINK_BUSY && !link->sending);
	if (link->left != UINT32_MAX)
		link->left--;
	if (link->left == 0 || link->idle_ns == 0 || w->draining) {
		link_drop(w, link);
		return;
	}
	link->state = LINK_IDLE;
	link->owner = LINK_NOBODY;
	list_push(&e->idle, link);
	e->idle_nr++;
	/* The last of its answer may have come when its stream stood paused already. */
	loop_receive(w->loop, link->handle);
	wheel_arm(&w->wheel, &link->timer, w->now_ns + link->idle_ns);
}

static void closing(struct worker *w, struct link *link)
{
	if (link->state == LINK_IDLE) {
		list_remove(link);
		w->engines[link->engine].idle_nr--;
	}
	wheel_disarm(&w->wheel, &link->timer);
	link->state = LINK_CLOSING;
	loop_close(w->loop, link->handle);
}

void link_drop(struct worker *w, struct link *link)
{
	assert(link->state != LINK_FREE);
	link->owner = LINK_NOBODY;
	if (link->state != LINK_CLOSING)
		closing(w, link);
}

void link_drop_and_tell(struct worker *w, struct link *link)
{
	assert(link->owner == LINK_CONN && link->state != LINK_CLOSING);
	closing(w, link);
}

void link_drop_idle(struct worker *w, struct engine *e)
{
	while (e->idle)
		link_drop(w, e->idle);
}

static void closed(struct worker *w, struct link *link)
{
	uint32_t conn = link->conn;
	int tell = link->owner == LINK_CONN;

	assert(link->state == LINK_CLOSING);
	if (link->held_head)
		slab_give(&w->heads, link->held_head);
	link->held_head = NULL;
	chain_clear(&link->held_body, &w->bodies);
	w->engines[link->engine].links_nr--;
	w->links_nr--;
	link->state = LINK_FREE;
	link->owner = LINK_NOBODY;
	link->generation++;
	link->handle = -1;
	list_push(&w->links_free, link);
	if (tell)
		conn_step(w, &w->conns[conn], CONN_EV_ENGINE_CLOSED, &(struct conn_input){ 0 });
}

static void to_conn(struct worker *w, struct link *link, enum conn_event event,
		    const struct loop_event *ev)
{
	struct conn_input in = { .data = ev->data,
				 .len = ev->res > 0 ? (size_t)ev->res : 0,
				 .res = ev->res };

	conn_step(w, &w->conns[link->conn], event, &in);
}

static void busy_event(struct worker *w, struct link *link, const struct loop_event *ev)
{
	static const struct loop_event none = { .op = LOOP_RECEIVED };

	switch (ev->op) {
	case LOOP_CONNECTED:
		if (ev->res == 0) {
			link->state = LINK_BUSY;
			wheel_disarm(&w->wheel, &link->timer);
			loop_receive(w->loop, link->handle);
		}
		to_conn(w, link, ev->res == 0 ? CONN_EV_ENGINE_UP : CONN_EV_ENGINE_DOWN, ev);
		break;
	case LOOP_SENT:
		/* An engine may answer and close before it has read everything: what it said, or
		 * that it is gone, is told by the receiving side. */
		if (ev->res < 0)
			link->deaf = 1;
		else
			to_conn(w, link, CONN_EV_ENGINE_TOOK, ev);
		break;
	case LOOP_RECEIVED:
		if (ev->res > 0 && link->reused && link->taken == w->turns)
			to_conn(w, link, CONN_EV_ENGINE_EOF, &none); /* said to nobody */
		else if (ev->res > 0)
			to_conn(w, link, CONN_EV_ENGINE_BYTES, ev);
		else
			to_conn(w, link, ev->res == 0 ? CONN_EV_ENGINE_EOF : CONN_EV_ENGINE_DOWN,
				ev);
		break;
	default:
		break;
	}
}

void link_event(struct worker *w, struct link *link, const struct loop_event *ev)
{
	if (ev->op == LOOP_SENT)
		link->sending = 0;
	if (ev->op == LOOP_CLOSED) {
		closed(w, link);
		return;
	}
	if (link->state == LINK_IDLE) {
		/* Closed by the engine while resting, or bytes that nobody asked for. */
		link_drop(w, link);
	} else if (link->state != LINK_CLOSING && link->owner == LINK_CONN) {
		busy_event(w, link, ev);
	} else if (link->state != LINK_CLOSING && link->owner == LINK_ASK) {
		engine_ask_event(w, link, ev);
	}
}

void link_timeout(struct worker *w, struct link *link)
{
	struct loop_event ev = { .op = LOOP_CONNECTED, .handle = link->handle, .res = -ETIMEDOUT };

	/* It is we who did not run: the connect may have gone out only now. */
	if (link->state == LINK_DIALING && w->now_ns - link->timer.due_ns > LATE_NS)
		wheel_arm(&w->wheel, &link->timer, w->now_ns + w->set->connect_timeout);
	else if (link->state == LINK_IDLE)
		link_drop(w, link);
	else if (link->owner == LINK_ASK)
		engine_ask_event(w, link, &ev);
	else if (link->state == LINK_DIALING && link->owner == LINK_CONN)
		busy_event(w, link, &ev);
}
