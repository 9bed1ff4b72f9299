/*
 * The event loop's seam: completion-shaped, with two implementations behind it (io_uring,
 * epoll).
 *
 * The caller adds a descriptor once and gets a handle; every completion carries the operation
 * and the caller's own 64-bit tag (a slot number and generation, never a pointer). Both loops
 * keep these rules.
 *
 * - Received bytes lie in a buffer of the loop's; the caller gives each back with
 *   loop_give_back(), now or later (io_uring: a ring of buffers; epoll: a pool of the same
 *   size).
 * - A send owns the caller's bytes until its LOOP_SENT, which comes when all bytes are out or
 *   the send failed; one send at a time per handle; short sends are continued inside the loop.
 * - loop_close() cancels whatever is pending, waits for each operation's own last completion,
 *   closes the descriptor, then reports LOOP_CLOSED, the last event of that handle. After the
 *   call no other event comes but LOOP_SENT, once for a send that was pending, so that its
 *   bytes can be freed; the memory of a pending fill is free with LOOP_CLOSED. Of calls for
 *   the handle only loop_close() and loop_pause(), which do nothing more, loop_retag() and
 *   loop_fd() are legal then.
 * - Nothing is delivered from inside a call into the loop, only from loop_turn().
 * - An error is told once and ends its direction; so does a stream's end, and the other
 *   direction goes on. SIGPIPE is never raised.
 * - One thread makes a loop and turns it; it does not survive fork(): make it in the child.
 */
#ifndef TURNWARD_SHM_LOOP_LOOP_H
#define TURNWARD_SHM_LOOP_LOOP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum loop_kind { LOOP_AUTO, LOOP_URING, LOOP_EPOLL };

enum loop_op {
	LOOP_ACCEPTED,  /* res = the new descriptor (non-blocking, CLOEXEC), or -errno */
	LOOP_CONNECTED, /* res = 0 or -errno */
	LOOP_RECEIVED,  /* res = bytes > 0 (then data, buffer are valid), 0 at end, or -errno */
	LOOP_FILLED,    /* loop_fill(): res = bytes > 0, 0 at end, or -errno */
	LOOP_SENT,      /* res = all the bytes, or -errno */
	LOOP_CLOSED,    /* the handle is free again */
	LOOP_READABLE,  /* loop_watch(): the descriptor became readable (signalfd, pipes) */
};

struct loop_event {
	enum loop_op op;
	int handle;
	uint64_t tag;
	int res;
	const uint8_t *data; /* LOOP_RECEIVED: loop-owned, until loop_give_back(buffer) */
	int buffer;
};

struct loop_params {
	enum loop_kind kind;
	unsigned handles_max; /* descriptors at once */
	unsigned buffers;     /* receive buffers, a power of two, at most 32768 */
	unsigned buffer_size; /* bytes of each */
	unsigned entries;     /* submission queue; halved down to 256 when memory lock is short */
};

struct loop;
typedef void loop_handler(void *ctx, const struct loop_event *event);

/*
 * LOOP_AUTO runs the start-up self-test and takes io_uring if it passes, epoll else. ret_why
 * receives one sentence (static or loop-owned, never freed by the caller) that says what was chosen
 * and why. LOOP_URING that fails returns -errno with the reason there.
 */
int loop_new(struct loop **ret_loop, const struct loop_params *params, loop_handler *handler,
	     void *ctx, const char **ret_why);
void loop_free(struct loop *loop);
enum loop_kind loop_kind_of(const struct loop *loop);
const char *loop_kind_name(enum loop_kind kind);

/*
 * Takes a non-blocking descriptor; returns a handle >= 0, or -ENFILE and leaves the descriptor with
 * the caller. The loop closes it in the end; loop_free() closes all that are left.
 */
int loop_add(struct loop *loop, int fd, uint64_t tag);
void loop_retag(struct loop *loop, int handle, uint64_t tag);
int loop_fd(const struct loop *loop, int handle);

/*
 * Keeps accepting until loop_pause(). An error that it tells (-EMFILE, -ENFILE, -ENOBUFS, -ENOMEM)
 * ends it: call again later, not at once. Errors of a single connection are passed over.
 */
void loop_accept(struct loop *loop, int handle);

/* -EAGAIN tells that a Unix listener's queue is full. Sending waits for LOOP_CONNECTED. */
void loop_connect(struct loop *loop, int handle, const struct sockaddr *addr, socklen_t len);

/*
 * Starts a stream of LOOP_RECEIVED events (multishot) that lasts until end of stream, an error or
 * loop_pause(). When buffers run out it resumes by itself once one is given back. Idempotent; after
 * the stream's end or error it does nothing.
 */
void loop_receive(struct loop *loop, int handle);

/*
 * From now on one receive of this handle is under way at a time, so that a peer who sends much at
 * once fills one buffer before the caller has a say (io_uring; epoll does so anyway).
 */
void loop_receive_singly(struct loop *loop, int handle);

/*
 * Back-pressure: stops loop_receive() or loop_accept(). Events already completed may still be
 * delivered after it, so the caller must have room for one more pool's worth per handle at most.
 */
void loop_pause(struct loop *loop, int handle);

/*
 * One receive of up to `len` bytes straight into the caller's memory, owned by the loop until
 * FILLED. Legal right after loop_pause(): what the stream still delivers comes first, as
 * LOOP_RECEIVED, and the fill begins only when the stream's last completion is in, so that no byte
 * is overtaken. Likewise loop_receive() after a fill: it begins when the fill has ended.
 */
void loop_fill(struct loop *loop, int handle, void *into, size_t len);

/*
 * Takes back a fill that has not begun: what was still to come of the stream has made its length or
 * its purpose obsolete. Legal in the turn that asked for it and while a LOOP_RECEIVED of that
 * handle is delivered: such bytes come before the fill begins.
 */
void loop_fill_cancel(struct loop *loop, int handle);

/*
 * Sends iov[0..n), n <= LOOP_IOV_MAX, at least a byte and at most INT_MAX; the array is copied, the
 * bytes are owned until LOOP_SENT. Where little is at hand, what the socket takes goes
 * out during the call; else with the next turn (io_uring).
 */
enum { LOOP_IOV_MAX = 8 };
void loop_send(struct loop *loop, int handle, const struct iovec *iov, int n);

/* LOOP_READABLE each time the descriptor turns readable, until closed: read it until EAGAIN. */
void loop_watch(struct loop *loop, int handle);

/* See the head comment. The tag stays with the handle until LOOP_CLOSED. */
void loop_close(struct loop *loop, int handle);

void loop_give_back(struct loop *loop, int buffer);

/*
 * Submits what was asked for, waits at most timeout_ns (UINT64_MAX = for ever, 0 = not at all) and
 * delivers the completions at hand. Returns the number delivered, or -errno if the loop is broken.
 */
int loop_turn(struct loop *loop, uint64_t timeout_ns);

/*
 * 1 if the last turn left completions for the next, which will not wait: epoll tells 512 at once,
 * io_uring since kernel 6.13 some twenty. Whoever calls somebody late asks first.
 */
int loop_has_more(const struct loop *loop);

/*
 * 1 if surely nothing has come in since the last turn, as far as io_uring tells without a call into
 * the kernel; epoll never knows.
 */
int loop_quiet(const struct loop *loop);

struct loop_stats {
	uint64_t turns, events, receives, sends, buffers_exhausted, overflows;
	uint64_t late;        /* completions nobody awaited, dropped: 0 on a sound kernel */
	unsigned buffers_out; /* not given back yet */
};
void loop_stats_get(const struct loop *loop, struct loop_stats *ret_stats);

#endif
