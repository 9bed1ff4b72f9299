/*
 * The trace of a live run: what was asked, when, and where it went, for replay to follow.
 *
 * Prompts stand in it by identity, not by text: each block of tokens, and each block of content as
 * the router hashes it, has a number of its own by all that comes before its end; equal numbers are
 * equal beginnings. live.md describes the file.
 */
#ifndef TURNWARD_BENCH_LIVE_TRACE_H
#define TURNWARD_BENCH_LIVE_TRACE_H

#include "bench/live.h"

struct live_trace;

/* One request as it ended; times are in `request`. */
struct live_trace_entry {
	const struct live_request *request;
	const char *id, *engine; /* x-request-id; "" = the router did not say */
	uint32_t player;         /* of the run: which conversation */
	const struct talk *talk; /* as it was when the request was sent */
	const char *body[3];     /* the request's body in three pieces */
	size_t body_len[3];
	const char *answer; /* its text, as it stands in JSON strings */
	size_t answer_len;
	uint32_t max_tokens;
};

/* Creates the file and writes its first line; -errno. */
int live_trace_new(struct live_trace **ret_trace, const char *path, double speed, const char *model,
		   uint64_t begin_ns);
void live_trace_add(struct live_trace *trace, const struct live_trace_entry *entry);

/* Ends the file. 0, or the first failure of writing; `ret_unlike`: requests whose engine counted
 * other tokens than this client, whose numbers of blocks therefore mean little. */
int live_trace_free(struct live_trace *trace, size_t *ret_unlike);

#endif
