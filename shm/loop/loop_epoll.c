/*
 * The loop over epoll: readiness turned into completions.
 *
 * Each descriptor is registered once, edge-triggered, for everything; what it was last known to be
 * ready for is kept in the handle and used when something is asked for. So pausing, resuming and
 * switching between reading and writing cost no system call, and an unread descriptor never makes
 * the loop spin.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "shm/loop/loop_impl.h"

enum {
	READY_READ = 1 << 0,
	READY_WRITE = 1 << 1,
	READY_HANGUP =
		1 << 2, /* the peer's end or an error is behind the bytes: read on to see it */
	READY_REGISTERED = 1 << 3,
	EVENTS_PER_WAIT = 512,
	BUFFERS_PER_TURN = 8, /* of one handle, so that a fast peer does not hold up the others */
};

struct epoll_loop {
	int fd;
	bool no_pwait2; /* kernel before 5.11: milliseconds only */
	unsigned free_count;
	int *free_buffers;
	struct epoll_event events[EVENTS_PER_WAIT];
};

static int epoll_start(struct loop *loop, char *why, size_t why_size)
{
	struct epoll_loop *ep = calloc(1, sizeof(*ep));

	snprintf(why, why_size, "epoll: out of memory");
	if (!ep)
		return -ENOMEM;
	ep->free_buffers = calloc(loop->params.buffers, sizeof(*ep->free_buffers));
	ep->fd = ep->free_buffers ? epoll_create1(EPOLL_CLOEXEC) : -1;
	if (ep->fd < 0) {
		int err = ep->free_buffers ? errno : ENOMEM;

		snprintf(why, why_size, "epoll: error %d creating it", err);
		free(ep->free_buffers);
		free(ep);
		return -err;
	}
	while (ep->free_count < loop->params.buffers) {
		ep->free_buffers[ep->free_count] = (int)(loop->params.buffers - 1 - ep->free_count);
		ep->free_count++;
	}
	loop->impl = ep;
	snprintf(why, why_size, "epoll, as asked for");
	return 0;
}

static void epoll_stop(struct loop *loop)
{
	struct epoll_loop *ep = loop->impl;

	close(ep->fd);
	free(ep->free_buffers);
	free(ep);
}

/* Late, so that a socket not yet connected is not taken for one that hung up. */
static int register_handle(struct loop *loop, int handle)
{
	struct epoll_loop *ep = loop->impl;
	struct loop_handle *h = &loop->handles[handle];
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET };

	if (h->ready & READY_REGISTERED)
		return 0;
	event.data.u64 = (uint64_t)h->generation << 32 | (uint32_t)handle;
	if (epoll_ctl(ep->fd, EPOLL_CTL_ADD, h->fd, &event) < 0)
		return -errno;
	h->ready |= READY_REGISTERED;
	return 0;
}

static void epoll_forget(struct loop *loop, int handle)
{
	struct epoll_loop *ep = loop->impl;
	struct loop_handle *h = &loop->handles[handle];

	/* Explicit: the description may live on in another process, and its events with it. */
	if (h->ready & READY_REGISTERED)
		epoll_ctl(ep->fd, EPOLL_CTL_DEL, h->fd, NULL);
	h->ready = 0;
}

static void connect_result(struct loop *loop, int handle, int res)
{
	struct loop_handle *h = &loop->handles[handle];

	h->connect_res = res;
	h->connect_known = true;
	loop_list_push(loop, LIST_DONE, handle);
}

static void start_connect(struct loop *loop, int handle)
{
	struct loop_handle *h = &loop->handles[handle];
	int err = connect(h->fd, (struct sockaddr *)&h->addr, h->addr_len) < 0 ? -errno : 0;

	if (err == -EINPROGRESS || err == -EINTR) {
		h->ready &= ~READY_WRITE;
		err = register_handle(loop, handle);
		if (err == 0)
			return;
	}
	if (err == 0)
		h->ready |= READY_WRITE;
	connect_result(loop, handle, err);
}

static void check_connect(struct loop *loop, int handle)
{
	struct loop_handle *h = &loop->handles[handle];
	int err = 0;
	socklen_t len = sizeof(err);

	if (getsockopt(h->fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0)
		err = errno;
	connect_result(loop, handle, -err);
}

/* What the socket does not take now its edge will tell. */
static void try_send(struct loop *loop, int handle)
{
	struct loop_handle *h = &loop->handles[handle];
	int err;

	if (loop_send_now(loop, handle))
		return;
	h->ready &= ~READY_WRITE;
	err = register_handle(loop, handle);
	if (err)
		loop_sent(loop, handle, err);
}

/* A result is final or the descriptor is not to be read until its next edge. */
static ssize_t receive_into(struct loop_handle *h, void *into, size_t len)
{
	ssize_t got;

	do
		got = recv(h->fd, into, len, MSG_DONTWAIT);
	while (got < 0 && errno == EINTR);
	if (got < 0) {
		if (errno == EAGAIN)
			h->ready &= ~READY_READ;
		return -errno;
	}
	/* A short count means drained, unless an end waits behind the bytes. */
	if ((size_t)got < len && !(h->ready & READY_HANGUP))
		h->ready &= ~READY_READ;
	return got;
}

static void work_fill(struct loop *loop, int handle)
{
	struct loop_handle *h = &loop->handles[handle];
	ssize_t got = receive_into(h, h->fill_into, h->fill_len);

	if (got == -EAGAIN)
		return;
	h->wants &= ~WANT_FILL;
	loop_deliver(loop, handle, LOOP_FILLED, (int)got);
}

/* One buffer's worth; false when this handle has had its share or has nothing more. */
static bool receive_one(struct loop *loop, int handle)
{
	struct epoll_loop *ep = loop->impl;
	struct loop_handle *h = &loop->handles[handle];
	ssize_t got;
	int buffer;

	if (ep->free_count == 0) {
		loop->stats.buffers_exhausted++;
		loop_list_push(loop, LIST_STARVED, handle);
		return false;
	}
	buffer = ep->free_buffers[ep->free_count - 1];
	got = receive_into(h, loop_buffer(loop, buffer), loop->params.buffer_size);
	if (got == -EAGAIN)
		return false;
	if (got > 0) {
		ep->free_count--;
		loop_deliver_buffer(loop, handle, buffer, (int)got);
		return true;
	}
	h->wants &= ~WANT_RECEIVE;
	h->ended = true;
	loop_deliver(loop, handle, LOOP_RECEIVED, (int)got);
	return false;
}

static void work_receive(struct loop *loop, int handle)
{
	struct loop_handle *h = &loop->handles[handle];
	uint32_t generation = h->generation;

	for (int i = 0; i < BUFFERS_PER_TURN; i++) {
		if (!receive_one(loop, handle))
			return;
		if (!loop_alive(h, generation) || !(h->wants & WANT_RECEIVE) ||
		    !(h->ready & READY_READ))
			return;
	}
	loop_list_push(loop, LIST_WORK, handle);
}

static void work_accept(struct loop *loop, int handle)
{
	if (loop_accept_queued(loop, handle))
		loop->handles[handle].ready &= ~READY_READ;
	else
		loop_list_push(loop, LIST_WORK, handle); /* looked at only while it is wanted */
}

/* A registration that failed is told as the failure of what was asked for. */
static void work_refused(struct loop *loop, int handle)
{
	static const struct {
		enum loop_want want;
		enum loop_op op;
	} told[] = {
		{ WANT_ACCEPT, LOOP_ACCEPTED },
		{ WANT_FILL, LOOP_FILLED },
		{ WANT_RECEIVE, LOOP_RECEIVED },
		{ WANT_WATCH, LOOP_READABLE },
	};
	struct loop_handle *h = &loop->handles[handle];
	uint32_t generation = h->generation;
	int err = h->refused;

	h->refused = 0;
	for (size_t i = 0; i < sizeof(told) / sizeof(told[0]); i++) {
		if (!loop_alive(h, generation) || !(h->wants & told[i].want))
			continue;
		h->wants &= ~told[i].want;
		loop_deliver(loop, handle, told[i].op, err);
	}
}

static void work_one(struct loop *loop, int handle)
{
	struct loop_handle *h = &loop->handles[handle];
	uint32_t generation = h->generation;

	if (!loop_alive(h, generation))
		return;
	if (h->refused)
		work_refused(loop, handle);
	if (!loop_alive(h, generation))
		return;
	if ((h->wants & WANT_CONNECT) && (h->ready & READY_WRITE) && !h->connect_known)
		check_connect(loop, handle);
	if ((h->wants & WANT_SEND) && (h->ready & READY_WRITE) && !h->sent_known)
		try_send(loop, handle);
	if (!(h->ready & READY_READ))
		return;
	if (h->wants & WANT_WATCH) {
		h->ready &= ~READY_READ;
		loop_deliver(loop, handle, LOOP_READABLE, 0);
	} else if (h->wants & WANT_ACCEPT) {
		work_accept(loop, handle);
	} else if (h->wants & WANT_FILL) {
		work_fill(loop, handle);
		/* A stream asked for behind the fill begins with the next turn. */
		if (loop_alive(h, generation) && (h->wants & WANT_RECEIVE))
			loop_list_push(loop, LIST_WORK, handle);
	} else if (h->wants & WANT_RECEIVE) {
		work_receive(loop, handle);
	}
}

static void epoll_changed(struct loop *loop, int handle, enum loop_want what)
{
	struct loop_handle *h = &loop->handles[handle];

	switch (what) {
	case WANT_CONNECT:
		start_connect(loop, handle);
		break;
	case WANT_SEND:
		try_send(loop, handle);
		break;
	case WANT_CLOSE:
		loop_list_push(loop, LIST_DONE, handle);
		break;
	default:
		if (h->wants & (WANT_ACCEPT | WANT_RECEIVE | WANT_FILL | WANT_WATCH))
			h->refused = register_handle(loop, handle);
		if (h->refused || (h->ready & READY_READ))
			loop_list_push(loop, LIST_WORK, handle);
	}
}

static void epoll_give_back(struct loop *loop, int buffer)
{
	struct epoll_loop *ep = loop->impl;

	ep->free_buffers[ep->free_count++] = buffer;
}

/* As many as there are buffers; the others keep their places. */
static void feed_starved(struct loop *loop)
{
	struct epoll_loop *ep = loop->impl;
	struct loop_list *starved = &loop->lists[LIST_STARVED];

	for (unsigned n = ep->free_count; n > 0 && starved->count > 0; n--)
		loop_list_push(loop, LIST_WORK, loop_list_pop(loop, LIST_STARVED));
}

static int wait_events(struct epoll_loop *ep, uint64_t timeout_ns)
{
	struct timespec ts = { .tv_sec = (time_t)(timeout_ns / 1000000000),
			       .tv_nsec = (long)(timeout_ns % 1000000000) };
	uint64_t ms = timeout_ns / 1000000 + (timeout_ns % 1000000 != 0);

	if (!ep->no_pwait2) {
		int n = epoll_pwait2(ep->fd, ep->events, EVENTS_PER_WAIT,
				     timeout_ns == UINT64_MAX ? NULL : &ts, NULL);

		if (n >= 0 || (errno != ENOSYS && errno != EPERM))
			return n < 0 ? -errno : n;
		ep->no_pwait2 = true;
	}
	int n = epoll_wait(ep->fd, ep->events, EVENTS_PER_WAIT,
			   timeout_ns == UINT64_MAX ? -1
			   : ms > INT_MAX           ? INT_MAX
						    : (int)ms);

	return n < 0 ? -errno : n;
}

static void note_ready(struct loop *loop, const struct epoll_event *event)
{
	int handle = (int)(uint32_t)event->data.u64;
	struct loop_handle *h = &loop->handles[handle];

	if (!h->used || h->generation != (uint32_t)(event->data.u64 >> 32))
		return;
	if (event->events & (EPOLLIN | EPOLLPRI))
		h->ready |= READY_READ;
	if (event->events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
		h->ready |= READY_READ | READY_HANGUP;
	if (event->events & (EPOLLOUT | EPOLLHUP | EPOLLERR))
		h->ready |= READY_WRITE;
	if (h->wants)
		loop_list_push(loop, LIST_WORK, handle);
}

static int epoll_turn(struct loop *loop, uint64_t timeout_ns)
{
	struct epoll_loop *ep = loop->impl;
	int n;

	feed_starved(loop);
	if (loop->lists[LIST_WORK].count > 0 || loop->lists[LIST_DONE].count > 0)
		timeout_ns = 0;
	n = wait_events(ep, timeout_ns);
	if (n < 0 && n != -EINTR)
		return n;
	loop->more = n == EVENTS_PER_WAIT;
	for (int i = 0; i < n; i++)
		note_ready(loop, &ep->events[i]);
	for (unsigned todo = loop->lists[LIST_WORK].count; todo > 0; todo--)
		work_one(loop, loop_list_pop(loop, LIST_WORK));
	loop_deliver_done(loop);
	return 0;
}

const struct loop_ops loop_epoll_ops = {
	.start = epoll_start,
	.stop = epoll_stop,
	.changed = epoll_changed,
	.forget = epoll_forget,
	.give_back = epoll_give_back,
	.turn = epoll_turn,
};
