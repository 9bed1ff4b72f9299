/* Which TCP sockets of this network namespace live, and whether they have been answered. */
#ifndef TURNWARD_BPF_SOCKETS_H
#define TURNWARD_BPF_SOCKETS_H

#include <stdint.h>

enum { SOCKETS_MAX = 65536 };

struct socket_seen {
	uint64_t cookie;
	uint32_t sent_ms, received_ms; /* since data last went out, came in */
};

struct sockets {
	struct socket_seen *seen; /* by cookie, ascending */
	uint32_t n;
};

/* Asks the kernel (sock_diag). 0, or -errno when it does not say; give back with sockets_free(). */
int sockets_read(struct sockets *ret_sockets);
void sockets_free(struct sockets *sockets);

/* NULL = there is none such here. */
const struct socket_seen *sockets_find(const struct sockets *sockets, uint64_t cookie);

#endif
