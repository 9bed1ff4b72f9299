/*
 * The start-up check of io_uring: opcodes say little (multishot is a flag, and some kernels
 * answered it wrongly), so the very sequences that the loop relies on are run on a socket pair.
 */
#include "shm/loop/loop_selftest.h"

#include <errno.h>
#include <liburing.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "shm/base/scoped.h"

enum {
	TRIAL_GROUP = 0x7e57,
	TRIAL_ENTRIES = 16, /* of the buffer ring */
	TRIAL_BUFFERS = 2,  /* so few are given that the third message finds none */
	TRIAL_SIZE = 64,
	TRIAL_RING_BYTES = 4096,
};

enum trial_op { TRIAL_RECEIVE = 1, TRIAL_CANCEL, TRIAL_SEND, TRIAL_ACCEPT, TRIAL_CONNECT };

struct trial {
	struct io_uring *ring;
	struct io_uring_buf_ring *buffers;
	uint8_t *memory;
	int near, far; /* the pair's ends; the ring works on the near one */
};

struct completion {
	uint64_t op;
	int res;
	unsigned flags;
};

/* Submits and waits for one completion; a silent kernel is -ETIME. */
static int next_completion(struct trial *t, struct completion *ret)
{
	struct __kernel_timespec second = { .tv_sec = 1 };
	struct io_uring_cqe *cqe;
	int err = io_uring_submit_and_wait_timeout(t->ring, &cqe, 1, &second, NULL);

	if (err < 0)
		return err;
	if (io_uring_peek_cqe(t->ring, &cqe) != 0)
		return -ETIME;
	*ret = (struct completion){ .op = cqe->user_data, .res = cqe->res, .flags = cqe->flags };
	io_uring_cqe_seen(t->ring, cqe);
	return 0;
}

/* The result of `op`, which must come next. */
static int await(struct trial *t, enum trial_op op, unsigned *ret_flags)
{
	struct completion got;
	int err = next_completion(t, &got);

	if (err)
		return err;
	*ret_flags = got.flags;
	return got.op == op ? got.res : -ENOTSUP;
}

static int check_opcodes(struct trial *t)
{
	static const uint8_t needed[] = { IORING_OP_RECV,        IORING_OP_SEND,
					  IORING_OP_SENDMSG,     IORING_OP_ACCEPT,
					  IORING_OP_CONNECT,     IORING_OP_POLL_ADD,
					  IORING_OP_ASYNC_CANCEL };
	struct io_uring_probe *probe = io_uring_get_probe_ring(t->ring);
	int err = probe ? 0 : -ENOTSUP;

	for (size_t i = 0; probe && i < sizeof(needed); i++) {
		if (!io_uring_opcode_supported(probe, needed[i]))
			err = -ENOTSUP;
	}
	io_uring_free_probe(probe);
	if (err == 0 && !(t->ring->features & IORING_FEAT_EXT_ARG))
		err = -ENOTSUP;
	return err;
}

static void give_buffer(struct trial *t, int buffer)
{
	io_uring_buf_ring_add(t->buffers, t->memory + buffer * TRIAL_SIZE, TRIAL_SIZE,
			      (unsigned short)buffer, io_uring_buf_ring_mask(TRIAL_ENTRIES), 0);
	io_uring_buf_ring_advance(t->buffers, 1);
}

static int check_buffers(struct trial *t)
{
	struct io_uring_buf_reg reg = { .ring_addr = (uint64_t)(uintptr_t)t->buffers,
					.ring_entries = TRIAL_ENTRIES,
					.bgid = TRIAL_GROUP };
	int err = io_uring_register_buf_ring(t->ring, &reg, 0);

	if (err)
		return err;
	io_uring_buf_ring_init(t->buffers);
	for (int i = 0; i < TRIAL_BUFFERS; i++)
		give_buffer(t, i);
	return 0;
}

static int arm_stream(struct trial *t)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(t->ring);

	if (!sqe)
		return -EBUSY;
	io_uring_prep_recv_multishot(sqe, t->near, NULL, 0, 0);
	sqe->flags |= IOSQE_BUFFER_SELECT;
	sqe->buf_group = TRIAL_GROUP;
	io_uring_sqe_set_data64(sqe, TRIAL_RECEIVE);
	return 0;
}

/* One message through the armed stream: a buffer of ours with its bytes, and armed still. */
static int check_message(struct trial *t, const char *text, bool written)
{
	int len = (int)strlen(text), res;
	unsigned flags = 0, buffer;

	if (!written && send(t->far, text, (size_t)len, MSG_NOSIGNAL) != len)
		return -errno;
	res = await(t, TRIAL_RECEIVE, &flags);
	if (res < 0)
		return res;
	buffer = flags >> IORING_CQE_BUFFER_SHIFT;
	if (res != len || !(flags & IORING_CQE_F_BUFFER) || !(flags & IORING_CQE_F_MORE) ||
	    buffer >= TRIAL_BUFFERS ||
	    memcmp(t->memory + buffer * TRIAL_SIZE, text, (size_t)len) != 0)
		return -ENOTSUP;
	return 0;
}

static int check_stream(struct trial *t)
{
	int err = arm_stream(t);

	if (err == 0)
		err = check_message(t, "one", false);
	if (err == 0)
		err = check_message(t, "second", false);
	return err;
}

/* Both buffers are out: one refusal that disarms, no flood of them, and a fresh start with one
 * back. */
static int check_exhaustion(struct trial *t)
{
	struct io_uring_cqe *cqe;
	unsigned flags = 0;
	int err;

	if (send(t->far, "third", 5, MSG_NOSIGNAL) != 5)
		return -errno;
	if (await(t, TRIAL_RECEIVE, &flags) != -ENOBUFS || (flags & IORING_CQE_F_MORE))
		return -ENOTSUP;
	io_uring_get_events(t->ring);
	if (io_uring_peek_cqe(t->ring, &cqe) == 0)
		return -ENOTSUP;
	give_buffer(t, 0);
	err = arm_stream(t);
	return err ? err : check_message(t, "third", true);
}

/* The cancel's answer and the stream's own last completion, in either order. */
static int check_cancel(struct trial *t)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(t->ring);

	if (!sqe)
		return -EBUSY;
	io_uring_prep_cancel_fd(sqe, t->near, IORING_ASYNC_CANCEL_ALL);
	io_uring_sqe_set_data64(sqe, TRIAL_CANCEL);
	for (int left = 2; left > 0; left--) {
		struct completion got;
		int err = next_completion(t, &got);

		if (err)
			return err;
		if (got.op == TRIAL_CANCEL
			    ? got.res < 0
			    : got.res != -ECANCELED || (got.flags & IORING_CQE_F_MORE))
			return -ENOTSUP;
	}
	return 0;
}

static int check_send(struct trial *t)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(t->ring);
	unsigned flags;
	char got[8];

	if (!sqe)
		return -EBUSY;
	io_uring_prep_send(sqe, t->near, "answer", 6, MSG_WAITALL | MSG_NOSIGNAL);
	io_uring_sqe_set_data64(sqe, TRIAL_SEND);
	if (await(t, TRIAL_SEND, &flags) != 6)
		return -ENOTSUP;
	return recv(t->far, got, sizeof(got), MSG_DONTWAIT) == 6 ? 0 : -ENOTSUP;
}

/* Both ends through the ring, the accept first and on a non-blocking listener: it must wait. */
static int check_connect(struct trial *t)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	socklen_t len = sizeof(addr.sun_family); /* the kernel finds a free abstract name */
	scoped(fd_drop) int listener =
		socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	scoped(fd_drop) int dialler =
		socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	struct io_uring_sqe *sqe = io_uring_get_sqe(t->ring);

	if (!sqe || listener < 0 || dialler < 0 ||
	    bind(listener, (struct sockaddr *)&addr, len) < 0 || listen(listener, 1) < 0)
		return -errno;
	len = sizeof(addr);
	if (getsockname(listener, (struct sockaddr *)&addr, &len) < 0)
		return -errno;
	io_uring_prep_accept(sqe, listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	io_uring_sqe_set_data64(sqe, TRIAL_ACCEPT);
	if (io_uring_submit(t->ring) < 0 || !(sqe = io_uring_get_sqe(t->ring)))
		return -EBUSY;
	io_uring_prep_connect(sqe, dialler, (struct sockaddr *)&addr, len);
	io_uring_sqe_set_data64(sqe, TRIAL_CONNECT);
	for (int left = 2; left > 0; left--) {
		struct completion got;
		int err = next_completion(t, &got);

		if (err || got.res < 0)
			return err ? err : got.res;
		if (got.op == TRIAL_ACCEPT)
			close(got.res);
	}
	return 0;
}

static int run_steps(struct trial *t, const char **ret_step)
{
	static const struct {
		const char *name;
		int (*check)(struct trial *t);
	} steps[] = {
		{ "the list of operations", check_opcodes },
		{ "registering a ring of buffers", check_buffers },
		{ "a multishot receive", check_stream },
		{ "a receive without a buffer", check_exhaustion },
		{ "cancelling by descriptor", check_cancel },
		{ "sending", check_send },
		{ "connecting and accepting", check_connect },
	};

	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		int err = steps[i].check(t);

		if (err) {
			*ret_step = steps[i].name;
			return err;
		}
	}
	return 0;
}

int loop_uring_selftest(struct io_uring *ring, const char **ret_step)
{
	size_t bytes = TRIAL_RING_BYTES + (size_t)TRIAL_BUFFERS * TRIAL_SIZE;
	uint8_t *memory =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int pair[2], err;

	*ret_step = "its socket pair";
	if (memory == MAP_FAILED)
		return -ENOMEM;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) < 0) {
		err = -errno;
		munmap(memory, bytes);
		return err;
	}
	scoped(fd_drop) int near = pair[0];
	scoped(fd_drop) int far = pair[1];
	struct trial t = { .ring = ring,
			   .buffers = (void *)memory,
			   .memory = memory + TRIAL_RING_BYTES,
			   .near = near,
			   .far = far };

	err = run_steps(&t, ret_step);
	io_uring_unregister_buf_ring(ring, TRIAL_GROUP);
	munmap(memory, bytes);
	return err;
}
