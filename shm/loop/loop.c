/* The loop's front: the table of handles, the rules of each call, and the choice between the two
 * loops. */
#include "shm/loop/loop.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/loop/loop_impl.h"

static_assert(sizeof(struct sockaddr_storage) <= sizeof(struct iovec[LOOP_IOV_MAX]),
	      "the union costs nothing");

void loop_list_push(struct loop *loop, enum loop_list_id id, int handle)
{
	struct loop_list *list = &loop->lists[id];
	struct loop_handle *h = &loop->handles[handle];

	if (h->next[id] != LINK_NONE)
		return;
	h->next[id] = LINK_END;
	if (list->count++ == 0)
		list->head = handle;
	else
		loop->handles[list->tail].next[id] = handle;
	list->tail = handle;
}

int loop_list_pop(struct loop *loop, enum loop_list_id id)
{
	struct loop_list *list = &loop->lists[id];
	int handle = list->head;

	if (list->count == 0)
		return -1;
	list->count--;
	list->head = loop->handles[handle].next[id];
	loop->handles[handle].next[id] = LINK_NONE;
	return handle;
}

void loop_deliver(struct loop *loop, int handle, enum loop_op op, int res)
{
	struct loop_event event = { .op = op, .handle = handle, .res = res, .buffer = -1 };

	event.tag = loop->handles[handle].tag;
	loop->stats.events++;
	if (op == LOOP_FILLED)
		loop->stats.receives++;
	loop->handler(loop->ctx, &event);
}

void loop_deliver_buffer(struct loop *loop, int handle, int buffer, int len)
{
	struct loop_event event = { .op = LOOP_RECEIVED, .handle = handle, .res = len };

	assert(!loop->lent[buffer] && len > 0);
	loop->lent[buffer] = 1;
	loop->stats.buffers_out++;
	loop->stats.receives++;
	loop->stats.events++;
	event.tag = loop->handles[handle].tag;
	event.data = loop_buffer(loop, buffer);
	event.buffer = buffer;
	loop->handler(loop->ctx, &event);
}

static void finish_close(struct loop *loop, int handle)
{
	struct loop_handle *h = &loop->handles[handle];

	loop->ops->forget(loop, handle);
	close(h->fd);
	if (h->wants & WANT_SEND) {
		h->wants &= ~WANT_SEND;
		loop_deliver(loop, handle, LOOP_SENT, h->sent_known ? h->sent_res : -ECANCELED);
	}
	/* Its number may be taken again from inside the handler, hence freed first. */
	struct loop_event event = {
		.op = LOOP_CLOSED, .handle = handle, .tag = h->tag, .buffer = -1
	};

	h->used = false;
	h->wants = 0;
	h->generation++;
	loop_list_push(loop, LIST_FREE, handle);
	loop->stats.events++;
	loop->handler(loop->ctx, &event);
}

static void deliver_done_one(struct loop *loop, int handle)
{
	struct loop_handle *h = &loop->handles[handle];
	uint32_t generation = h->generation;

	if (!h->used)
		return;
	if (h->connect_known && loop_alive(h, generation)) {
		h->connect_known = false;
		h->wants &= ~WANT_CONNECT;
		loop_deliver(loop, handle, LOOP_CONNECTED, h->connect_res);
	}
	if (h->sent_known && loop_alive(h, generation)) {
		h->sent_known = false;
		h->wants &= ~WANT_SEND;
		loop_deliver(loop, handle, LOOP_SENT, h->sent_res);
	}
	if ((h->wants & WANT_CLOSE) && h->armed == 0)
		finish_close(loop, handle);
}

void loop_deliver_done(struct loop *loop)
{
	for (int round = 0; round < LOOP_DONE_ROUNDS && loop->lists[LIST_DONE].count > 0; round++) {
		for (unsigned n = loop->lists[LIST_DONE].count; n > 0; n--)
			deliver_done_one(loop, loop_list_pop(loop, LIST_DONE));
	}
}

bool loop_send_advance(struct loop_handle *h, size_t sent)
{
	assert(sent <= h->send_left);
	h->send_left -= sent;
	while (sent > 0) {
		struct iovec *iov = h->msg.msg_iov;
		size_t step = sent < iov->iov_len ? sent : iov->iov_len;

		iov->iov_base = (uint8_t *)iov->iov_base + step;
		iov->iov_len -= step;
		sent -= step;
		if (iov->iov_len == 0) {
			h->msg.msg_iov++;
			h->msg.msg_iovlen--;
		}
	}
	return h->send_left == 0;
}

bool loop_sent(struct loop *loop, int handle, int res)
{
	struct loop_handle *h = &loop->handles[handle];

	h->sent_res = res;
	h->sent_known = true;
	loop_list_push(loop, LIST_DONE, handle);
	return true;
}

bool loop_send_now(struct loop *loop, int handle)
{
	struct loop_handle *h = &loop->handles[handle];

	for (;;) {
		struct iovec *iov = h->msg.msg_iov;
		const int flags = MSG_NOSIGNAL | MSG_DONTWAIT;
		ssize_t sent = h->msg.msg_iovlen == 1
				       ? send(h->fd, iov->iov_base, iov->iov_len, flags)
				       : sendmsg(h->fd, &h->msg, flags);

		if (sent >= 0) {
			if (loop_send_advance(h, (size_t)sent))
				return loop_sent(loop, handle, (int)h->send_total);
		} else if (errno == EAGAIN) {
			return false;
		} else if (errno != EINTR) {
			return loop_sent(loop, handle, -errno);
		}
	}
}

bool loop_accept_transient(int err)
{
	switch (err) {
	case ECONNABORTED:
	case EINTR:
	case EPROTO:
	case EPERM: /* a firewall rule of this host */
	case ENETDOWN:
	case ENOPROTOOPT:
	case EHOSTDOWN:
	case ENONET:
	case EHOSTUNREACH:
	case ENETUNREACH:
		return true;
	default:
		return false;
	}
}

bool loop_accept_queued(struct loop *loop, int handle)
{
	struct loop_handle *h = &loop->handles[handle];
	uint32_t generation = h->generation;

	for (int i = 0; i < LOOP_ACCEPTS_PER_TURN; i++) {
		int fd = accept4(h->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		int err = fd < 0 ? errno : 0;

		if (err == EAGAIN)
			return true;
		if (loop_accept_transient(err))
			continue;
		if (err)
			h->wants &= ~WANT_ACCEPT;
		loop_deliver(loop, handle, LOOP_ACCEPTED, err ? -err : fd);
		if (!loop_alive(h, generation) || !(h->wants & WANT_ACCEPT))
			return false;
	}
	return false;
}

/* Memory of the loop, all of it; nothing is allocated afterwards. */
static int loop_allocate(struct loop *loop, const struct loop_params *params)
{
	size_t bytes = (size_t)params->buffers * params->buffer_size;

	loop->handles = calloc(params->handles_max, sizeof(*loop->handles));
	loop->lent = calloc(params->buffers, 1);
	if (!loop->handles || !loop->lent)
		return -ENOMEM;
	loop->memory =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (loop->memory == MAP_FAILED) {
		loop->memory = NULL;
		return -ENOMEM;
	}
	for (unsigned i = 0; i < params->handles_max; i++) {
		for (int id = 0; id < LIST_NR; id++)
			loop->handles[i].next[id] = LINK_NONE;
		loop_list_push(loop, LIST_FREE, (int)i);
	}
	return 0;
}

static void loop_release(struct loop *loop)
{
	if (loop->memory)
		munmap(loop->memory, (size_t)loop->params.buffers * loop->params.buffer_size);
	free(loop->lent);
	free(loop->handles);
	free(loop);
}

static int loop_start(struct loop *loop, enum loop_kind kind)
{
	loop->kind = kind;
	loop->ops = kind == LOOP_URING ? &loop_uring_ops : &loop_epoll_ops;
	return loop->ops->start(loop, loop->why, sizeof(loop->why));
}

/* io_uring's reason for refusing stays in `why`, with what was taken instead. */
static int loop_start_auto(struct loop *loop)
{
	char reason[sizeof(loop->why)];
	int err = loop_start(loop, LOOP_URING);

	if (err == 0)
		return 0;
	memcpy(reason, loop->why, sizeof(reason));
	err = loop_start(loop, LOOP_EPOLL);
	if (err == 0)
		snprintf(loop->why, sizeof(loop->why), "epoll, since %.230s", reason);
	return err;
}

int loop_new(struct loop **ret_loop, const struct loop_params *params, loop_handler *handler,
	     void *ctx, const char **ret_why)
{
	static char failure[sizeof(((struct loop *)0)->why)];
	struct loop *loop = calloc(1, sizeof(*loop));
	int err;

	assert(params->buffers > 0 && (params->buffers & (params->buffers - 1)) == 0);
	assert(params->buffers <= LOOP_BUFFERS_MAX);
	assert(params->handles_max > 0 && params->buffer_size > 0);
	*ret_why = "out of memory";
	if (!loop)
		return -ENOMEM;
	loop->params = *params;
	loop->handler = handler;
	loop->ctx = ctx;
	err = loop_allocate(loop, params);
	if (err == 0) {
		err = params->kind == LOOP_AUTO ? loop_start_auto(loop)
						: loop_start(loop, params->kind);
		*ret_why = loop->why;
	}
	if (err) {
		snprintf(failure, sizeof(failure), "%s", *ret_why);
		*ret_why = failure;
		loop_release(loop);
		return err;
	}
	*ret_loop = loop;
	return 0;
}

void loop_free(struct loop *loop)
{
	if (!loop)
		return;
	loop->ops->stop(loop);
	for (unsigned i = 0; i < loop->params.handles_max; i++) {
		if (loop->handles[i].used)
			close(loop->handles[i].fd);
	}
	loop_release(loop);
}

enum loop_kind loop_kind_of(const struct loop *loop)
{
	return loop->kind;
}

const char *loop_kind_name(enum loop_kind kind)
{
	static const char *const names[] = {
		[LOOP_AUTO] = "auto",
		[LOOP_URING] = "uring",
		[LOOP_EPOLL] = "epoll",
	};

	assert((size_t)kind < sizeof(names) / sizeof(names[0]));
	return names[kind];
}

int loop_add(struct loop *loop, int fd, uint64_t tag)
{
	int handle = loop_list_pop(loop, LIST_FREE);
	struct loop_handle *h;

	if (handle < 0)
		return -ENFILE;
	h = &loop->handles[handle];
	assert(fd >= 0 && !h->used && h->armed == 0);
	h->tag = tag;
	h->fd = fd;
	h->used = true;
	h->wants = h->ready = 0;
	h->refused = 0;
	h->accepted_turn = 0;
	h->ended = h->sent_known = h->connect_known = h->singly = h->drained = false;
	return handle;
}

/* The handle of a call: a wrong one is a bug of the caller's. */
static struct loop_handle *handle_of(const struct loop *loop, int handle)
{
	assert(handle >= 0 && (unsigned)handle < loop->params.handles_max);
	assert(loop->handles[handle].used);
	return &loop->handles[handle];
}

static struct loop_handle *open_handle_of(const struct loop *loop, int handle)
{
	struct loop_handle *h = handle_of(loop, handle);

	assert(!(h->wants & WANT_CLOSE));
	return h;
}

void loop_retag(struct loop *loop, int handle, uint64_t tag)
{
	handle_of(loop, handle)->tag = tag;
}

int loop_fd(const struct loop *loop, int handle)
{
	return handle_of(loop, handle)->fd;
}

static void want(struct loop *loop, int handle, enum loop_want what)
{
	struct loop_handle *h = open_handle_of(loop, handle);

	h->wants |= what;
	loop->ops->changed(loop, handle, what);
}

void loop_accept(struct loop *loop, int handle)
{
	want(loop, handle, WANT_ACCEPT);
}

void loop_connect(struct loop *loop, int handle, const struct sockaddr *addr, socklen_t len)
{
	struct loop_handle *h = open_handle_of(loop, handle);

	assert(len <= sizeof(h->addr) && !(h->wants & (WANT_CONNECT | WANT_SEND)));
	memcpy(&h->addr, addr, len);
	h->addr_len = len;
	want(loop, handle, WANT_CONNECT);
}

void loop_receive(struct loop *loop, int handle)
{
	struct loop_handle *h = open_handle_of(loop, handle);

	if (!h->ended && !(h->wants & WANT_RECEIVE))
		want(loop, handle, WANT_RECEIVE);
}

void loop_receive_singly(struct loop *loop, int handle)
{
	open_handle_of(loop, handle)->singly = true;
}

void loop_pause(struct loop *loop, int handle)
{
	struct loop_handle *h = handle_of(loop, handle);

	if (h->wants & WANT_CLOSE || !(h->wants & (WANT_RECEIVE | WANT_ACCEPT)))
		return;
	h->wants &= ~(WANT_RECEIVE | WANT_ACCEPT);
	loop->ops->changed(loop, handle, 0);
}

void loop_fill(struct loop *loop, int handle, void *into, size_t len)
{
	struct loop_handle *h = open_handle_of(loop, handle);

	assert(!(h->wants & (WANT_RECEIVE | WANT_FILL)) && len > 0 && len <= INT_MAX);
	h->fill_into = into;
	h->fill_len = len;
	want(loop, handle, WANT_FILL);
}

void loop_fill_cancel(struct loop *loop, int handle)
{
	struct loop_handle *h = open_handle_of(loop, handle);

	assert((h->wants & WANT_FILL) && !(h->armed & WANT_FILL));
	h->wants &= ~WANT_FILL;
	loop->ops->changed(loop, handle, 0);
}

void loop_send(struct loop *loop, int handle, const struct iovec *iov, int n)
{
	struct loop_handle *h = open_handle_of(loop, handle);
	size_t total = 0;
	int parts = 0;

	assert(n > 0 && n <= LOOP_IOV_MAX && !(h->wants & (WANT_SEND | WANT_CONNECT)));
	for (int i = 0; i < n; i++) {
		if (iov[i].iov_len == 0)
			continue;
		h->iov[parts++] = iov[i];
		total += iov[i].iov_len;
	}
	assert(total > 0 && total <= INT_MAX);
	h->send_total = h->send_left = total;
	h->msg = (struct msghdr){ .msg_iov = h->iov, .msg_iovlen = (size_t)parts };
	loop->stats.sends++;
	want(loop, handle, WANT_SEND);
}

void loop_watch(struct loop *loop, int handle)
{
	want(loop, handle, WANT_WATCH);
}

void loop_close(struct loop *loop, int handle)
{
	struct loop_handle *h = handle_of(loop, handle);

	if (h->wants & WANT_CLOSE)
		return;
	/* A send is still owed its LOOP_SENT; everything else is forgotten. */
	h->wants &= WANT_SEND;
	want(loop, handle, WANT_CLOSE);
}

void loop_give_back(struct loop *loop, int buffer)
{
	assert(buffer >= 0 && (unsigned)buffer < loop->params.buffers && loop->lent[buffer]);
	loop->lent[buffer] = 0;
	loop->stats.buffers_out--;
	loop->ops->give_back(loop, buffer);
}

int loop_turn(struct loop *loop, uint64_t timeout_ns)
{
	uint64_t before = loop->stats.events;
	int err;

	loop->stats.turns++;
	err = loop->ops->turn(loop, timeout_ns);
	return err < 0 ? err : (int)(loop->stats.events - before);
}

int loop_has_more(const struct loop *loop)
{
	return loop->more;
}

int loop_quiet(const struct loop *loop)
{
	return loop->ops->quiet && loop->ops->quiet(loop);
}

void loop_stats_get(const struct loop *loop, struct loop_stats *ret_stats)
{
	*ret_stats = loop->stats;
}
