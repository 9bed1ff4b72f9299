/*
 * The load generator: chat requests and streams over plain sockets, one thread, every event of
 * every stream stamped at its arrival.
 *
 * Closed loop: a connection asks again when it was answered. Open loop: each has a schedule, and
 * latency counts from the moment a request was due, so that a stall is felt by all who would have
 * asked during it. It drives no event loop of turnward's: what is measured does not measure itself.
 */
#ifndef TURNWARD_BENCH_LOAD_CLIENT_H
#define TURNWARD_BENCH_LOAD_CLIENT_H

#include "bench/load_sink.h"
#include "router/stats/hist.h"

enum {
	LOAD_CONNECTIONS_MAX = 20000,
	LOAD_LATE_MS = 100,          /* an event is late beyond */
	LOAD_PACE_WRITE = 16 * 1024, /* bytes of one write of a paced body */
};

/* What is asked. Bodies are chats whose text begins with `word` and a number of their
 * own, which is the session's id as well. */
struct load_ask {
	size_t body_bytes;
	const char *word; /* for the scripted engines, "" = nothing special */
	bool stream;
	uint64_t events; /* max_tokens */
	double rate;     /* requests/s of all connections together; 0: closed loop */
	double pace;     /* bytes/s at which a body is written; 0: at once */
};

struct load_told {
	struct hist latency_us; /* first byte sent (open loop: due) to last byte read */
	struct hist delay_us;   /* event written by the engine to event read */
	struct hist itl_us;     /* between events of a stream; 0 for those of one read */
	struct hist body_us;    /* body's last byte written to the engine having it */
	uint64_t requests, failed, body_bytes;
	uint64_t events, reads; /* reads that brought an event */
	uint64_t late;          /* events later than LOAD_LATE_MS */
	uint64_t began_ns, ended_ns;
	char complaint[160]; /* of the first failure */
};

struct load_client;

/* Connection k goes to port k modulo ports. NULL without memory. */
struct load_client *load_client_new(const uint16_t *port, unsigned ports);

/* Closes everything by reset, so that no port is kept. */
void load_client_free(struct load_client *client);

/* What connections opened from now on ask. -ENOMEM. */
int load_client_ask(struct load_client *client, const struct load_ask *ask);

/* Opens and asks; stalled ones never read. 0, or -errno of the first that failed. */
int load_client_open(struct load_client *client, unsigned connections, bool stalled);

/* Works for so long, or until the interrupt. */
void load_client_run(struct load_client *client, double seconds);

/* As load_client_run(), and what was told before is forgotten. */
const struct load_told *load_client_measure(struct load_client *client, double seconds);

/* Streams that have had an event and are not over. */
unsigned load_client_streaming(const struct load_client *client);

/* Resets the first `connections` that stream. */
void load_client_abort(struct load_client *client, unsigned connections);

/* A chat of about so many bytes (300 at least), for whoever wants the same; free() it. */
char *load_body_new(const struct load_ask *ask, size_t *ret_len, size_t *ret_number);

#endif
