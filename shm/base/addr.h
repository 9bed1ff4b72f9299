/*
 * Addresses as users write them: listeners ("127.0.0.1:8080", "[::1]:8080", ":8080", "unix:PATH")
 * and engines ("[NAME=]http://host:port", "[NAME=]unix:PATH").
 */
#ifndef TURNWARD_SHM_BASE_ADDR_H
#define TURNWARD_SHM_BASE_ADDR_H

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

enum {
	ADDR_TEXT_MAX = 128, /* "unix:" and the longest path, or an IPv6 address with its port */
	ADDR_HOST_MAX = 254 + 7,
	ADDR_NAME_MAX = 32, /* of an engine: [A-Za-z0-9][A-Za-z0-9._-]{0,31} */
	ADDR_URL_MAX = 256,
	ADDR_WHY_MAX = 200,
};

struct addr {
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
		struct sockaddr_un local;
	} sa;
	socklen_t len;
};

/*
 * A listener's address. ":P" and "*:P" mean every IPv4 address, "[::]:P" every address of both
 * families. Numbers only: no name is looked up. On -EINVAL `why` (ADDR_WHY_MAX) says what is wrong.
 */
int addr_parse(struct addr *ret_addr, const char *text, char *why);

/* Back to the text that addr_parse() takes. */
void addr_text(const struct addr *addr, char ret_text[ADDR_TEXT_MAX]);

/* 1 if only processes of this host can reach it: a Unix socket or a loopback address. */
int addr_is_local(const struct addr *addr);

int addr_equal(const struct addr *a, const struct addr *b);

struct addr_engine {
	char name[ADDR_NAME_MAX + 8];
	int named;                /* 1: given by the user, 0: made from host and port */
	char url[ADDR_URL_MAX];   /* as written, without the name and the closing slash */
	char host[ADDR_HOST_MAX]; /* for the Host field: "host:port", "localhost" for a Unix socket
				   */
	struct addr addr;         /* where to connect */
};

/*
 * "[NAME=]URL". https is refused with a reason, and so is a URL with a path, a query or a user. A
 * host name is looked up here, once (this may block: only at start). -EINVAL: wrong text;
 * -EHOSTUNREACH: the name is unknown; `why` (ADDR_WHY_MAX) tells.
 */
int addr_engine_parse(struct addr_engine *ret_engine, const char *text, char *why);

/* 1 if it is [A-Za-z0-9][A-Za-z0-9._-]{0,31}. */
int addr_engine_name_valid(const char *name);

#endif
