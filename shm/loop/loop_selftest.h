/* Does this kernel's io_uring do what the loop relies on? Asked before the first descriptor. */
#ifndef TURNWARD_SHM_LOOP_LOOP_SELFTEST_H
#define TURNWARD_SHM_LOOP_LOOP_SELFTEST_H

struct io_uring;

/*
 * Runs the operations on a socket pair and leaves the ring as it was. Returns 0, or -errno with the
 * step that failed named in *ret_step (static text); -ENOTSUP = the kernel answered, but wrongly.
 */
int loop_uring_selftest(struct io_uring *ring, const char **ret_step);

#endif
