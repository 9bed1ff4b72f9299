/* The floor: a byte relay without any knowledge of HTTP, one thread, epoll, read and write. */
#ifndef TURNWARD_BENCH_LOAD_RELAY_H
#define TURNWARD_BENCH_LOAD_RELAY_H

#include "bench/load_sink.h"

struct load_relay {
	int fd; /* listening */
	uint16_t port;
	uint16_t engine[LOAD_ENGINES];
	struct load_proc proc;
};

/* Connection k goes to engine k modulo LOAD_ENGINES. */
int load_relay_start(struct load_relay *relay, const uint16_t engine[LOAD_ENGINES]);
void load_relay_stop(struct load_relay *relay);

#endif
