/* What the two halves of the scripted engines share: a connection, its process. */
#ifndef TURNWARD_BENCH_LOAD_SINK_IMPL_H
#define TURNWARD_BENCH_LOAD_SINK_IMPL_H

#include "bench/load_sink.h"

enum sink_state { SINK_HEAD, SINK_BODY, SINK_STREAM };

enum { SINK_KEPT = 4096 };

struct sink_conn {
	int fd;
	int place; /* among its engine's streams, -1 = in none */
	uint8_t engine;
	enum sink_state state;
	bool chunked, renders, flood;
	uint64_t left;     /* of the body; of a stream: events still to come */
	uint64_t taken_ns; /* the request was whole */
	size_t body_at, head_len, tail_len;
	char head[2 * SINK_KEPT]; /* the head, and the body's beginning */
	char tail[SINK_KEPT];     /* the body's end */
	char *whole;              /* the body, when its tokens are asked for */
	size_t whole_len;
	char *out; /* what the socket did not take */
	size_t out_len;
};

struct sink {
	struct load_sink_shared *shared;
	int epoll;
	int listener[LOAD_ENGINES];
	unsigned first, last; /* engines first..last-1 are this process's */
	uint64_t stepped;     /* the last step taken, counted since the clock's zero */
	unsigned streams;
	struct {
		struct sink_conn **conn;
		int n, room;
	} engine[LOAD_ENGINES];
};

/* The request is whole: answers it, or begins its stream. */
void sink_answer(struct sink *sink, struct sink_conn *c);
void sink_flush(struct sink *sink, struct sink_conn *c);
void sink_stream_leave(struct sink *sink, struct sink_conn *c);

/* Takes the steps that are due, one engine each; nanoseconds to the next, UINT64_MAX: none. */
uint64_t sink_step(struct sink *sink, uint64_t now_ns);

#endif
