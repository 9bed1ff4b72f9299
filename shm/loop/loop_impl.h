/* What the two loops and their front share: handles, lists of handles, the table of operations. */
#ifndef TURNWARD_SHM_LOOP_LOOP_IMPL_H
#define TURNWARD_SHM_LOOP_LOOP_IMPL_H

#include <assert.h>
#include <stdbool.h>

#include "shm/loop/loop.h"

/* What the caller has asked for and what has not ended; io_uring uses the same bits for `armed`. */
enum loop_want {
	WANT_ACCEPT = 1 << 0,
	WANT_CONNECT = 1 << 1,
	WANT_RECEIVE = 1 << 2,
	WANT_FILL = 1 << 3,
	WANT_SEND = 1 << 4,
	WANT_WATCH = 1 << 5,
	WANT_CANCEL = 1 << 6, /* only in `armed` */
	WANT_CLOSE = 1 << 7,
};

/* Each handle can be on every list, once. */
enum loop_list_id {
	LIST_FREE, /* unused handles */
	LIST_WORK, /* to be looked at in the next turn: readiness to use or operations to submit */
	LIST_DONE, /* results to deliver, handles to close; needs no system call but close() */
	LIST_STARVED, /* want a receive buffer and there was none */
	LIST_NR,
};

enum { LINK_NONE = -2, LINK_END = -1 };

struct loop_list {
	int head, tail;
	unsigned count;
};

struct loop_handle {
	uint64_t tag;
	uint32_t generation; /* of this index, so that what is late for its predecessor is known */
	int fd;
	uint8_t wants;
	uint8_t armed;      /* io_uring: operations whose last completion has not come */
	uint8_t ready;      /* epoll: READY_* */
	bool used, ended;   /* ended: the stream said end or error, once */
	bool singly;        /* io_uring: no multishot */
	bool drained;       /* io_uring: the last receive took all that was there */
	bool sent_known;    /* sent_res is to be delivered */
	bool connect_known; /* epoll: likewise */
	int sent_res, connect_res;
	int refused;            /* epoll: registering failed so, to be told */
	uint64_t accepted_turn; /* io_uring: when it last accepted */
	int next[LIST_NR];
	void *fill_into;
	size_t fill_len;
	size_t send_total, send_left;
	socklen_t addr_len;
	struct msghdr msg; /* msg_iov points into iov, at the first byte not yet sent */
	union {
		struct iovec iov[LOOP_IOV_MAX];
		struct sockaddr_storage addr; /* a connect ends before the first send begins */
	};
};

struct loop_ops {
	/* Called with params, buffers and handles in place; why gets the reason of a failure. */
	int (*start)(struct loop *loop, char *why, size_t why_size);
	void (*stop)(struct loop *loop);
	/* The handle's wants changed by `want`: act, or put it on a list. */
	void (*changed)(struct loop *loop, int handle, enum loop_want want);
	void (*forget)(struct loop *loop, int handle); /* just before the descriptor is closed */
	void (*give_back)(struct loop *loop, int buffer);
	int (*turn)(struct loop *loop, uint64_t timeout_ns);
	int (*quiet)(const struct loop *loop); /* NULL: it never is, for all that it can tell */
};

extern const struct loop_ops loop_epoll_ops, loop_uring_ops;

struct loop {
	const struct loop_ops *ops;
	enum loop_kind kind;
	struct loop_params params;
	loop_handler *handler;
	void *ctx;
	struct loop_handle *handles;
	struct loop_list lists[LIST_NR];
	uint8_t *memory; /* buffers x buffer_size */
	uint8_t *lent;   /* per buffer: 1 = the caller has it */
	struct loop_stats stats;
	bool more; /* the last turn did not see all that was at hand */
	void *impl;
	char why[256];
};

enum {
	LOOP_ACCEPTS_PER_TURN = 64,
	LOOP_DONE_ROUNDS = 4,
	LOOP_BUFFERS_MAX = 32768, /* of a ring of buffers in the kernel */
};

static inline uint8_t *loop_buffer(const struct loop *loop, int buffer)
{
	return loop->memory + (size_t)buffer * loop->params.buffer_size;
}

static inline unsigned loop_buffers_free(const struct loop *loop)
{
	return loop->params.buffers - loop->stats.buffers_out;
}

static inline bool loop_alive(const struct loop_handle *h, uint32_t generation)
{
	return h->used && h->generation == generation && !(h->wants & WANT_CLOSE);
}

void loop_list_push(struct loop *loop, enum loop_list_id id, int handle);
int loop_list_pop(struct loop *loop, enum loop_list_id id); /* -1 when empty */

void loop_deliver(struct loop *loop, int handle, enum loop_op op, int res);
void loop_deliver_buffer(struct loop *loop, int handle, int buffer, int len);

/* Delivers known results and closes what can be closed: a bounded number of rounds. */
void loop_deliver_done(struct loop *loop);

/* Accounts `sent` bytes and moves msg_iov to the rest; true when nothing is left. */
bool loop_send_advance(struct loop_handle *h, size_t sent);

/* The sending has ended so: LOOP_SENT is to be delivered. Always true. */
bool loop_sent(struct loop *loop, int handle, int res);

/*
 * Writes until everything is out (true: sent_res and sent_known say how it ended) or the socket
 * takes no more (false).
 */
bool loop_send_now(struct loop *loop, int handle);

/* Errors of accept(2) that concern the one connection only: the next may be fine. */
bool loop_accept_transient(int err);

/*
 * Accepts what is queued, at most LOOP_ACCEPTS_PER_TURN, while it is wanted. True when the queue
 * was seen empty; an error that stops accepting is told.
 */
bool loop_accept_queued(struct loop *loop, int handle);

#endif
