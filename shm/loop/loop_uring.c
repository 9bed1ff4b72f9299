/*
 * The loop over io_uring: one enter a turn submits what was asked for and collects what was done.
 *
 * A call into the loop only notes what is wanted and puts the handle on the work list; the turn
 * compares `wants` with `armed` and makes the difference good, so that pause and resume in one turn
 * cost nothing. An operation is armed until its own last completion, and a descriptor is closed
 * only when nothing is: a number used again can then never receive what was meant for its
 * predecessor.
 */
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "shm/loop/loop_impl.h"
#include "shm/loop/loop_selftest.h"

enum {
	BUFFER_GROUP = 1,
	BUFFERS_FIRST = 16,
	ENTRIES_MIN = 256,
	DIRECT_MAX = 4, /* completions at hand; of more the sends are submitted in one call */
	COMPLETIONS_MAX = 65536, /* the kernel's own bound */
};

/* What travels in user_data: numbers, no pointer, so that nothing stale can be followed. */
union op_tag {
	uint64_t u64;
	struct {
		uint32_t handle;
		uint32_t generation : 24;
		uint32_t want : 8;
	};
};
static_assert(sizeof(union op_tag) == 8, "it travels in user_data");

struct uring_loop {
	struct io_uring ring;
	struct io_uring_buf_ring *buffers; /* the free ones, shared with the kernel */
	unsigned buffers_given; /* so far: what was never short of them touches no more memory */
	unsigned dry;           /* streams that found none in turn `dry_turn` */
	unsigned at_hand;       /* completions when this turn began to look at them */
	uint64_t dry_turn;
	size_t buffers_size;
};

/* ---- start and stop ---- */

static long read_number(const char *path)
{
	FILE *file = fopen(path, "re");
	long number = -1;

	if (!file)
		return -1;
	if (fscanf(file, "%ld", &number) != 1)
		number = -1;
	fclose(file);
	return number;
}

static size_t memlock_bytes(void)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_MEMLOCK, &limit) == 0 ? (size_t)limit.rlim_cur : 0;
}

static void explain_setup(int err, char *why, size_t why_size)
{
	switch (err) {
	case -ENOSYS:
		snprintf(why, why_size, "io_uring is not in this kernel (ENOSYS)");
		break;
	case -EPERM:
		snprintf(why, why_size,
			 "io_uring is forbidden here (EPERM): by a seccomp filter of the container "
			 "or by kernel.io_uring_disabled, which is %ld",
			 read_number("/proc/sys/kernel/io_uring_disabled"));
		break;
	case -ENOMEM:
		snprintf(
			why, why_size,
			"io_uring finds no memory it may lock (ENOMEM): RLIMIT_MEMLOCK is %zu KiB, "
			"too little for %d entries",
			memlock_bytes() / 1024, ENTRIES_MIN);
		break;
	case -EINVAL:
		snprintf(why, why_size,
			 "io_uring of this kernel is too old (EINVAL): 6.1 or later is needed");
		break;
	default:
		snprintf(why, why_size, "io_uring cannot be set up: %s", strerror(-err));
	}
}

static unsigned power_of_two(unsigned n)
{
	unsigned p = 1;

	while (p < n)
		p *= 2;
	return p;
}

static int make_ring(struct uring_loop *ur, unsigned entries, unsigned completions)
{
	struct io_uring_params p = {
		.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
			 IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP,
		.cq_entries = completions > 2 * entries ? completions : 2 * entries,
	};

	return io_uring_queue_init_params(entries, &ur->ring, &p);
}

static void add_buffer(struct loop *loop, int buffer, int offset)
{
	struct uring_loop *ur = loop->impl;

	io_uring_buf_ring_add(ur->buffers, loop_buffer(loop, buffer), loop->params.buffer_size,
			      (unsigned short)buffer, io_uring_buf_ring_mask(loop->params.buffers),
			      offset);
}

/*
 * The kernel goes round the ring, so that every buffer in it comes to be used and stays resident:
 * the ring begins small and doubles when several streams find it dry in one turn. One stream that
 * takes them all is only asked to wait for the next turn.
 */
static void give_more(struct loop *loop, struct uring_loop *ur)
{
	unsigned n = ur->buffers_given ? ur->buffers_given : BUFFERS_FIRST;

	if (n > loop->params.buffers - ur->buffers_given)
		n = loop->params.buffers - ur->buffers_given;
	for (unsigned i = 0; i < n; i++)
		add_buffer(loop, (int)(ur->buffers_given + i), (int)i);
	io_uring_buf_ring_advance(ur->buffers, (int)n);
	ur->buffers_given += n;
}

static void ran_dry(struct loop *loop, struct uring_loop *ur)
{
	if (ur->dry_turn != loop->stats.turns)
		ur->dry = 0;
	ur->dry_turn = loop->stats.turns;
	if (ur->buffers_given == loop->params.buffers)
		loop->stats.buffers_exhausted++;
	else if (++ur->dry * 4 >= ur->buffers_given)
		give_more(loop, ur);
}

static int make_buffers(struct loop *loop, struct uring_loop *ur)
{
	struct io_uring_buf_reg reg = { .ring_entries = loop->params.buffers,
					.bgid = BUFFER_GROUP };
	void *memory;
	int err;

	ur->buffers_size = loop->params.buffers * sizeof(struct io_uring_buf);
	memory = mmap(NULL, ur->buffers_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		      -1, 0);
	if (memory == MAP_FAILED)
		return -ENOMEM;
	ur->buffers = memory;
	reg.ring_addr = (uint64_t)(uintptr_t)memory;
	err = io_uring_register_buf_ring(&ur->ring, &reg, 0);
	if (err) {
		munmap(memory, ur->buffers_size);
		return err;
	}
	io_uring_buf_ring_init(ur->buffers);
	ur->buffers_given = 0;
	give_more(loop, ur);
	return 0;
}

/* One attempt at a ring of this size; *ret_step stays NULL when the set-up itself failed. */
static int try_size(struct loop *loop, unsigned entries, unsigned completions,
		    const char **ret_step)
{
	struct uring_loop *ur = loop->impl;
	int err;

	*ret_step = NULL;
	err = make_ring(ur, entries, completions);
	if (err)
		return err;
	err = loop_uring_selftest(&ur->ring, ret_step);
	if (err == 0) {
		*ret_step = "registering the receive buffers";
		err = make_buffers(loop, ur);
	}
	if (err)
		io_uring_queue_exit(&ur->ring);
	return err;
}

/* What the kernel locks: both queues, the ring of buffers and that of the self-test, and some
 * pages. */
static size_t locked_bytes(const struct loop *loop, unsigned entries, unsigned completions)
{
	return (size_t)entries * (sizeof(struct io_uring_sqe) + sizeof(uint32_t)) +
	       (size_t)completions * sizeof(struct io_uring_cqe) +
	       (size_t)loop->params.buffers * sizeof(struct io_uring_buf) + 16 * 1024;
}

/*
 * Halves the ring until the memory that may be locked suffices. A closed ring, of this attempt or
 * of a predecessor, is charged a little longer: a size that should fit is tried again before a
 * smaller one.
 */
static int fit_ring(struct loop *loop, unsigned *entries, const char **ret_step)
{
	const struct timespec pause = { .tv_nsec = 20 * 1000 * 1000 };
	const struct loop_params *params = &loop->params;
	/* All buffers and two operations of each handle may complete before one is looked at. */
	unsigned completions = power_of_two(params->buffers + 2 * params->handles_max);

	if (completions > COMPLETIONS_MAX)
		completions = COMPLETIONS_MAX;
	*entries = power_of_two(params->entries > ENTRIES_MIN ? params->entries : ENTRIES_MIN);
	for (int pauses_left = 10;;) {
		int err = try_size(loop, *entries, completions, ret_step);

		if (err != -ENOMEM)
			return err;
		if (locked_bytes(loop, *entries, completions) <= memlock_bytes() &&
		    pauses_left-- > 0) {
			nanosleep(&pause, NULL);
			continue;
		}
		if (*entries <= ENTRIES_MIN)
			return err;
		*entries /= 2;
		completions /= 2;
	}
}

static int uring_start(struct loop *loop, char *why, size_t why_size)
{
	struct uring_loop *ur = calloc(1, sizeof(*ur));
	const char *step = NULL;
	unsigned entries = 0;
	int err;

	snprintf(why, why_size, "io_uring: out of memory");
	if (!ur)
		return -ENOMEM;
	loop->impl = ur;
	err = fit_ring(loop, &entries, &step);
	if (err) {
		if (step && err != -ENOMEM)
			snprintf(why, why_size, "io_uring does not work here, %s: %s", step,
				 strerror(-err));
		else
			explain_setup(err, why, why_size);
		free(ur);
		loop->impl = NULL;
		return err;
	}
	io_uring_register_ring_fd(&ur->ring); /* where it fails the plain descriptor serves */
	snprintf(why, why_size, "io_uring passed its self-test, %u entries", entries);
	if (entries < loop->params.entries)
		snprintf(why, why_size,
			 "io_uring passed its self-test with %u entries instead of %u, since "
			 "RLIMIT_MEMLOCK is %zu KiB",
			 entries, loop->params.entries, memlock_bytes() / 1024);
	return 0;
}

/* Descriptors accepted but never told are closed; other late completions need nothing. */
static void drop_completions(struct uring_loop *ur)
{
	struct io_uring_cqe *cqe;
	unsigned head, n = 0;

	io_uring_get_events(&ur->ring);
	io_uring_for_each_cqe(&ur->ring, head, cqe)
	{
		union op_tag tag = { .u64 = cqe->user_data };

		n++;
		if (tag.want == WANT_ACCEPT && cqe->res >= 0)
			close(cqe->res);
	}
	io_uring_cq_advance(&ur->ring, n);
}

static void uring_stop(struct loop *loop)
{
	struct uring_loop *ur = loop->impl;
	struct io_uring_sync_cancel_reg all = { .fd = -1,
						.flags = IORING_ASYNC_CANCEL_ANY |
							 IORING_ASYNC_CANCEL_ALL,
						.timeout = { .tv_sec = 1 } };

	/* The kernel may write into buffers until each operation has ended. */
	io_uring_submit(&ur->ring);
	io_uring_register_sync_cancel(&ur->ring, &all);
	drop_completions(ur);
	io_uring_unregister_buf_ring(&ur->ring, BUFFER_GROUP);
	io_uring_queue_exit(&ur->ring);
	munmap(ur->buffers, ur->buffers_size);
	free(ur);
}

/* ---- submission ---- */

/* NULL when the queue is full and the kernel takes no more before completions are collected. */
static struct io_uring_sqe *get_sqe(struct loop *loop)
{
	struct uring_loop *ur = loop->impl;
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ur->ring);

	if (sqe)
		return sqe;
	io_uring_submit(&ur->ring);
	return io_uring_get_sqe(&ur->ring);
}

static uint64_t tag_of(const struct loop *loop, int handle, enum loop_want want)
{
	union op_tag tag = { .handle = (uint32_t)handle, .want = want };

	tag.generation = loop->handles[handle].generation & 0xffffff;
	return tag.u64;
}

static void prepare(const struct loop *loop, struct io_uring_sqe *sqe, struct loop_handle *h,
		    enum loop_want want)
{
	switch (want) {
	case WANT_ACCEPT:
		io_uring_prep_accept(sqe, h->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		break;
	case WANT_CONNECT:
		io_uring_prep_connect(sqe, h->fd, (struct sockaddr *)&h->addr, h->addr_len);
		break;
	case WANT_RECEIVE:
		if (h->singly) {
			io_uring_prep_recv(sqe, h->fd, NULL, loop->params.buffer_size, 0);
			if (h->drained) /* an attempt before the wait would be for nothing */
				sqe->ioprio |= IORING_RECVSEND_POLL_FIRST;
		} else {
			io_uring_prep_recv_multishot(sqe, h->fd, NULL, 0, 0);
		}
		sqe->flags |= IOSQE_BUFFER_SELECT;
		sqe->buf_group = BUFFER_GROUP;
		break;
	case WANT_FILL:
		io_uring_prep_recv(sqe, h->fd, h->fill_into, h->fill_len, 0);
		break;
	case WANT_SEND:
		if (h->msg.msg_iovlen == 1)
			io_uring_prep_send(sqe, h->fd, h->msg.msg_iov->iov_base,
					   h->msg.msg_iov->iov_len, MSG_WAITALL | MSG_NOSIGNAL);
		else
			io_uring_prep_sendmsg(sqe, h->fd, &h->msg, MSG_WAITALL | MSG_NOSIGNAL);
		break;
	case WANT_WATCH:
		io_uring_prep_poll_multishot(sqe, h->fd, POLLIN);
		break;
	default:
		assert(!"no such operation");
	}
}

static bool arm(struct loop *loop, int handle, enum loop_want want)
{
	struct io_uring_sqe *sqe = get_sqe(loop);

	if (!sqe)
		return false;
	prepare(loop, sqe, &loop->handles[handle], want);
	io_uring_sqe_set_data64(sqe, tag_of(loop, handle, want));
	loop->handles[handle].armed |= want;
	return true;
}

/*
 * Cancels one armed operation, by its tag, which the kernel finds in a table; by descriptor it
 * would look through all that are pending. Armed itself, so that the handle outlives it.
 */
static bool arm_cancel(struct loop *loop, int handle, enum loop_want target)
{
	struct loop_handle *h = &loop->handles[handle];
	struct io_uring_sqe *sqe;

	if (h->armed & WANT_CANCEL)
		return true;
	sqe = get_sqe(loop);
	if (!sqe)
		return false;
	io_uring_prep_cancel64(sqe, tag_of(loop, handle, target), 0);
	io_uring_sqe_set_data64(sqe, tag_of(loop, handle, WANT_CANCEL));
	h->armed |= WANT_CANCEL;
	return true;
}

static enum loop_want first_armed(const struct loop_handle *h)
{
	uint32_t left = h->armed & ~(uint32_t)WANT_CANCEL;

	return (enum loop_want)(left & -left);
}

/* The stream flows unless it is paused or a fill waits for its end. */
static bool stream_wanted(const struct loop_handle *h)
{
	return (h->wants & (WANT_RECEIVE | WANT_FILL)) == WANT_RECEIVE;
}

/* Of receiving only one operation is armed, so that no byte overtakes another. */
static bool arm_receiving(struct loop *loop, int handle)
{
	struct loop_handle *h = &loop->handles[handle];

	if (h->armed & WANT_RECEIVE)
		return stream_wanted(h) || arm_cancel(loop, handle, WANT_RECEIVE);
	if (h->armed & WANT_FILL)
		return true;
	if (h->wants & WANT_FILL)
		return arm(loop, handle, WANT_FILL);
	if (!(h->wants & WANT_RECEIVE))
		return true;
	if (loop_buffers_free(loop) == 0) {
		loop_list_push(loop, LIST_STARVED, handle);
		return true;
	}
	return arm(loop, handle, WANT_RECEIVE);
}

/* Makes `armed` follow `wants`; false when there is no room for the submission. */
static bool arm_wanted(struct loop *loop, int handle)
{
	static const uint8_t simple[] = { WANT_ACCEPT, WANT_CONNECT, WANT_SEND, WANT_WATCH };
	struct loop_handle *h = &loop->handles[handle];

	if (!h->used)
		return true;
	if (h->wants & WANT_CLOSE)
		return h->armed == 0 || arm_cancel(loop, handle, first_armed(h));
	for (size_t i = 0; i < sizeof(simple); i++) {
		uint32_t missing = h->wants & ~h->armed & simple[i];

		if (missing == WANT_SEND && h->sent_known)
			continue;
		if (missing && !arm(loop, handle, simple[i]))
			return false;
	}
	if ((h->armed & ~h->wants & WANT_ACCEPT) && !arm_cancel(loop, handle, WANT_ACCEPT))
		return false;
	return arm_receiving(loop, handle);
}

static void arm_list(struct loop *loop, enum loop_list_id id, unsigned most)
{
	for (; most > 0 && loop->lists[id].count > 0; most--) {
		int handle = loop_list_pop(loop, id);

		if (!arm_wanted(loop, handle)) {
			loop_list_push(loop, LIST_WORK, handle);
			return;
		}
	}
}

static void uring_changed(struct loop *loop, int handle, enum loop_want what)
{
	const struct uring_loop *ur = loop->impl;

	/* Most sends fit into the socket: where there are few, a call of its own is as cheap as an
	 * operation and earlier. */
	if (what == WANT_SEND && ur->at_hand <= DIRECT_MAX && loop_send_now(loop, handle))
		return;
	if (what == WANT_CLOSE && loop->handles[handle].armed == 0)
		loop_list_push(loop, LIST_DONE, handle);
	else
		loop_list_push(loop, LIST_WORK, handle);
}

static void uring_forget(struct loop *loop, int handle)
{
	assert(loop->handles[handle].armed == 0);
}

static void uring_give_back(struct loop *loop, int buffer)
{
	struct uring_loop *ur = loop->impl;

	add_buffer(loop, buffer, 0);
	io_uring_buf_ring_advance(ur->buffers, 1);
}

/* ---- completion ---- */

static void complete_accept(struct loop *loop, int handle, int res)
{
	struct loop_handle *h = &loop->handles[handle];
	bool burst = h->accepted_turn + 1 == loop->stats.turns;

	h->armed &= ~WANT_ACCEPT;
	if (h->wants & WANT_CLOSE) {
		if (res >= 0)
			close(res);
		return;
	}
	loop_list_push(loop, LIST_WORK, handle);
	if (res == -ECANCELED || loop_accept_transient(-res))
		return;
	h->accepted_turn = loop->stats.turns;
	if (res < 0)
		h->wants &= ~WANT_ACCEPT;
	loop_deliver(loop, handle, LOOP_ACCEPTED, res);
	/* Two turns running: a queue waits, which one accept a turn would keep waiting. */
	if (burst && (h->wants & (WANT_ACCEPT | WANT_CLOSE)) == WANT_ACCEPT)
		loop_accept_queued(loop, handle);
}

static void complete_connect(struct loop *loop, int handle, int res)
{
	struct loop_handle *h = &loop->handles[handle];

	h->armed &= ~WANT_CONNECT;
	if (h->wants & WANT_CLOSE)
		return;
	h->wants &= ~WANT_CONNECT;
	loop_deliver(loop, handle, LOOP_CONNECTED, res);
}

static void end_stream(struct loop *loop, int handle, int res)
{
	struct loop_handle *h = &loop->handles[handle];

	/* An end met while paused is met again when the stream resumes; an error is told only once.
	 */
	if (res == 0 && !stream_wanted(h))
		return;
	h->wants &= ~WANT_RECEIVE;
	h->ended = true;
	loop_deliver(loop, handle, LOOP_RECEIVED, res);
}

static void complete_receive(struct loop *loop, int handle, int res, unsigned flags)
{
	struct loop_handle *h = &loop->handles[handle];
	int buffer = flags & IORING_CQE_F_BUFFER ? (int)(flags >> IORING_CQE_BUFFER_SHIFT) : -1;

	if (!(flags & IORING_CQE_F_MORE))
		h->armed &= ~WANT_RECEIVE;
	if (buffer >= 0 && (res <= 0 || h->wants & WANT_CLOSE)) {
		uring_give_back(loop, buffer);
		buffer = -1;
	}
	if (h->wants & WANT_CLOSE)
		return;
	h->drained = res > 0 && (unsigned)res < loop->params.buffer_size;
	/* Armed again, cancelled again or fed when there is a buffer: the next turn decides. */
	if (!(flags & IORING_CQE_F_MORE) || !stream_wanted(h))
		loop_list_push(loop, LIST_WORK, handle);
	if (buffer >= 0)
		loop_deliver_buffer(loop, handle, buffer, res);
	else if (res == -ENOBUFS)
		ran_dry(loop, loop->impl);
	else if (res != -ECANCELED && res != -EINTR)
		end_stream(loop, handle, res);
}

static void complete_fill(struct loop *loop, int handle, int res)
{
	struct loop_handle *h = &loop->handles[handle];

	h->armed &= ~WANT_FILL;
	if (h->wants & WANT_CLOSE)
		return;
	loop_list_push(loop, LIST_WORK, handle);
	if (res == -EINTR)
		return;
	h->wants &= ~WANT_FILL;
	loop_deliver(loop, handle, LOOP_FILLED, res);
}

static void complete_send(struct loop *loop, int handle, int res)
{
	struct loop_handle *h = &loop->handles[handle];
	bool all = res > 0 && loop_send_advance(h, (size_t)res);

	h->armed &= ~WANT_SEND;
	if (!all && (res > 0 || res == -EINTR)) {
		if (!(h->wants & WANT_CLOSE)) {
			loop_list_push(loop, LIST_WORK, handle);
			return;
		}
		res = -ECANCELED;
	}
	h->wants &= ~WANT_SEND;
	loop_deliver(loop, handle, LOOP_SENT, all ? (int)h->send_total : res == 0 ? -EPIPE : res);
}

static void complete_watch(struct loop *loop, int handle, int res, unsigned flags)
{
	struct loop_handle *h = &loop->handles[handle];

	if (!(flags & IORING_CQE_F_MORE))
		h->armed &= ~WANT_WATCH;
	if (h->wants & WANT_CLOSE)
		return;
	if (res < 0)
		h->wants &= ~WANT_WATCH;
	else if (!(flags & IORING_CQE_F_MORE))
		loop_list_push(loop, LIST_WORK, handle);
	loop_deliver(loop, handle, LOOP_READABLE, res < 0 ? res : 0);
}

/* "Found" is not "finished": what is still armed in the next turn is cancelled again. */
static void complete_cancel(struct loop *loop, int handle)
{
	struct loop_handle *h = &loop->handles[handle];

	h->armed &= ~WANT_CANCEL;
	if (h->armed)
		loop_list_push(loop, LIST_WORK, handle);
}

/* Not awaited, so of a former owner: what it carries goes back. No kernel should, hence counted. */
static void drop_late(struct loop *loop, const struct io_uring_cqe *cqe)
{
	union op_tag tag = { .u64 = cqe->user_data };

	loop->stats.late++;
	if (tag.want == WANT_ACCEPT && cqe->res >= 0)
		close(cqe->res);
	if (tag.want == WANT_RECEIVE && (cqe->flags & IORING_CQE_F_BUFFER))
		uring_give_back(loop, (int)(cqe->flags >> IORING_CQE_BUFFER_SHIFT));
}

static void complete(struct loop *loop, const struct io_uring_cqe *cqe)
{
	union op_tag tag = { .u64 = cqe->user_data };
	int handle = (int)tag.handle;
	struct loop_handle *h = &loop->handles[handle];

	if (tag.handle >= loop->params.handles_max || !h->used || !(h->armed & tag.want) ||
	    tag.generation != (h->generation & 0xffffff)) {
		drop_late(loop, cqe);
		return;
	}
	switch (tag.want) {
	case WANT_ACCEPT:
		complete_accept(loop, handle, cqe->res);
		break;
	case WANT_CONNECT:
		complete_connect(loop, handle, cqe->res);
		break;
	case WANT_RECEIVE:
		complete_receive(loop, handle, cqe->res, cqe->flags);
		break;
	case WANT_FILL:
		complete_fill(loop, handle, cqe->res);
		break;
	case WANT_SEND:
		complete_send(loop, handle, cqe->res);
		break;
	case WANT_WATCH:
		complete_watch(loop, handle, cqe->res, cqe->flags);
		break;
	default:
		complete_cancel(loop, handle);
	}
	if ((h->wants & WANT_CLOSE) && h->armed == 0)
		loop_list_push(loop, LIST_DONE, handle);
}

/* ---- the turn ---- */

static int enter(struct loop *loop, uint64_t timeout_ns)
{
	struct uring_loop *ur = loop->impl;
	struct __kernel_timespec ts = { .tv_sec = (long long)(timeout_ns / 1000000000),
					.tv_nsec = (long long)(timeout_ns % 1000000000) };
	struct io_uring_cqe *cqe;
	int err;

	if (timeout_ns == 0)
		err = io_uring_submit_and_get_events(&ur->ring);
	else
		err = io_uring_submit_and_wait_timeout(&ur->ring, &cqe, 1,
						       timeout_ns == UINT64_MAX ? NULL : &ts, NULL);
	switch (err) {
	case -ETIME:
	case -EINTR:
	case -EAGAIN:
	case -EBUSY: /* completions in the way: they are collected now */
		return 0;
	default:
		return err < 0 ? err : 0;
	}
}

static void collect(struct loop *loop)
{
	struct uring_loop *ur = loop->impl;
	struct io_uring_cqe *cqe;
	unsigned head, n = 0;

	ur->at_hand = io_uring_cq_ready(&ur->ring);
	io_uring_for_each_cqe(&ur->ring, head, cqe)
	{
		complete(loop, cqe);
		n++;
	}
	io_uring_cq_advance(&ur->ring, n);
}

/* Kernels since 6.13 finish a score of operations an enter; whether more are done a flag tells. */
static bool more_at_hand(const struct uring_loop *ur)
{
	return IO_URING_READ_ONCE(*ur->ring.sq.kflags) & IORING_SQ_TASKRUN;
}

static int uring_quiet(const struct loop *loop)
{
	return !more_at_hand(loop->impl);
}

static int uring_turn(struct loop *loop, uint64_t timeout_ns)
{
	struct uring_loop *ur = loop->impl;
	int err;

	arm_list(loop, LIST_WORK, loop->lists[LIST_WORK].count);
	arm_list(loop, LIST_STARVED, loop_buffers_free(loop));
	if (loop->lists[LIST_WORK].count > 0 || loop->lists[LIST_DONE].count > 0 ||
	    (loop->lists[LIST_STARVED].count > 0 && loop_buffers_free(loop) > 0))
		timeout_ns = 0;
	if (io_uring_cq_has_overflow(&ur->ring)) {
		loop->stats.overflows++;
		timeout_ns = 0;
	}
	err = enter(loop, timeout_ns);
	if (err)
		return err;
	collect(loop);
	loop->more = more_at_hand(ur);
	loop_deliver_done(loop);
	return 0;
}

const struct loop_ops loop_uring_ops = {
	.start = uring_start,
	.stop = uring_stop,
	.changed = uring_changed,
	.forget = uring_forget,
	.give_back = uring_give_back,
	.turn = uring_turn,
	.quiet = uring_quiet,
};
