/*
 * Scripted engines for load commands: answers that cost next to nothing, streams that are paced by
 * decode steps, and a stamp of the clock in everything that leaves.
 *
 * What a request wants stands in its text, since LLM routers rewrite bodies and drop headers but
 * pass text on: "@idle" (one event, then silence), "@flood" (32 KiB a step, for clients that
 * stall), anything else (max_tokens events, or one whole answer when nothing is streamed). Every
 * event and answer holds "T=" and twenty digits: CLOCK_MONOTONIC in ns at its writing, or for a
 * whole answer when the request's last byte was there.
 */
#ifndef TURNWARD_BENCH_LOAD_SINK_H
#define TURNWARD_BENCH_LOAD_SINK_H

#include <stdatomic.h>

#include "bench/load_proc.h"

enum {
	LOAD_ENGINES = 8,
	LOAD_STAMP_DIGITS = 20,
	LOAD_EVENT_BYTES = 285, /* what vLLM sends for a token of a chat */
};

/* Read and written by both sides at any time. */
struct load_sink_shared {
	_Atomic uint64_t period_ns; /* of one decode step; engines step one after another in it */
	_Atomic uint64_t requests;  /* answered: whole ones, and streams begun */
	_Atomic uint64_t renders;   /* a router asked for a prompt's tokens */
	_Atomic uint64_t events;
	_Atomic uint64_t aborted; /* streams whose asker went away */
	_Atomic uint64_t at_engine[LOAD_ENGINES];
};

/* Two processes, so that the last engine can be stopped alone. */
struct load_sink {
	struct load_sink_shared *shared;
	struct load_proc proc[2];
	uint16_t port[LOAD_ENGINES];
	int fd[LOAD_ENGINES]; /* listening; the children have them */
};

/* Ports are the kernel's choice. */
int load_sink_start(struct load_sink *ret_sink);
void load_sink_stop(struct load_sink *sink);

/* Stops the last engine as SIGSTOP does, or lets it go on. */
void load_sink_halt(struct load_sink *sink, bool halted);

/* The stamp in a piece of text, at most `len` bytes; 0 when there is none. ret_end may be NULL. */
uint64_t load_stamp_find(const char *text, size_t len, const char **ret_end);

/* A listening descriptor on 127.0.0.1 with a port of the kernel's choice, non-blocking. */
int load_listen(uint16_t *ret_port);

/* A port that nobody has right now. */
uint16_t load_port_free(void);

/* The first of so many in a row; 0 when none is found. */
uint16_t load_ports_free(unsigned n);

#endif
