/* What the two halves of the load generator share: a connection, its request, what it tells. */
#ifndef TURNWARD_BENCH_LOAD_CLIENT_IMPL_H
#define TURNWARD_BENCH_LOAD_CLIENT_IMPL_H

#include "bench/load_client.h"

enum { LOAD_ASKS_MAX = 8, LOAD_HEAD_MAX = 1500, LOAD_CARRY = 24 };

enum load_state { LOAD_IDLE, LOAD_SENDING, LOAD_WAITING, LOAD_READING, LOAD_OVER };

struct load_conn {
	int fd;
	enum load_state state;
	uint8_t ask;
	bool streaming, chunked;
	size_t sent;
	uint64_t due_ns, sent_ns;
	uint64_t last_ns; /* of its last event */
	uint64_t left;    /* of the answer's body */
	uint16_t head_len, carry_len;
	char head[LOAD_HEAD_MAX];
	char carry[LOAD_CARRY]; /* the end of the read before: a stamp may be cut anywhere */
};

struct load_request {
	struct load_ask ask;
	char *bytes; /* head and body; number and session are written anew for each use */
	size_t len, body_at, number, session;
};

struct load_client {
	int epoll;
	uint16_t port[LOAD_ENGINES];
	unsigned ports, conns, asks, streaming;
	uint32_t seed;
	struct load_request ask[LOAD_ASKS_MAX];
	struct load_told told;
	struct load_conn conn[LOAD_CONNECTIONS_MAX];
};

/* Sends the next request, which was due then. */
void load_conn_fire(struct load_client *client, struct load_conn *c, uint64_t due_ns);
void load_conn_next(struct load_client *client, struct load_conn *c, uint64_t now_ns);
void load_conn_fail(struct load_client *client, struct load_conn *c, const char *why);
void load_conn_end(struct load_client *client, struct load_conn *c);

/* Reads once and takes what came. */
void load_conn_read(struct load_client *client, struct load_conn *c);

/* Takes bytes of an answer as they came from the socket at now_ns; true when it is whole. */
bool load_reply_take(struct load_client *client, struct load_conn *c, const char *bytes, size_t len,
		     uint64_t now_ns);

/* When a connection's next request is due: late answers move no due time. */
uint64_t load_due_next(uint64_t due_ns, double rate, unsigned connections);

#endif
