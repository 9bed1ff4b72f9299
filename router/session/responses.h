/*
 * Which engine made which stored response: `previous_response_id` and /v1/responses/{id} must go
 * there, and the session's turn and length continue from it. Bounded, least recently used goes
 * first. One writer; other processes may read.
 */
#ifndef TURNWARD_ROUTER_SESSION_RESPONSES_H
#define TURNWARD_ROUTER_SESSION_RESPONSES_H

#include <stddef.h>
#include <stdint.h>

#include "router/session/session.h"
#include "shm/table.h"

enum { RESPONSES_ID_MAX = 256 }; /* longer ids are not kept: none of the engines makes such */

/* A process's own view of the section. */
struct responses {
	struct table table;
	uint64_t idle_ns; /* older ones are gone; 0 = no limit */
};

/* One response. Whole words: it lies in the region as it is. */
struct response {
	uint64_t check;  /* hash of the whole id, independent of the key */
	uint64_t engine; /* stable index */
	uint64_t epoch;  /* its start id then, 0 = unknown */
	struct session_key session;
	uint64_t turn;
	uint64_t tokens; /* context so far: prompt + completion; 0 = not reported */
	uint64_t made_ns, made_wall_s;
};
static_assert(sizeof(struct response) % 8 == 0, "a table's payload");

size_t responses_size(uint64_t entries);

/* As table_attach(): zero memory becomes empty, torn entries are dropped, -EPROTO if foreign. */
int responses_attach(struct responses *ret_responses, void *mem, size_t size,
		     uint64_t *ret_dropped);
int responses_view(struct responses *ret_responses, const void *mem, size_t size);
int responses_clear(struct responses *ret_responses, void *mem, size_t size);

/* Keeps where `id` was made; check and times of *response are filled in here. -EINVAL: id empty or
 * longer than RESPONSES_ID_MAX. */
int responses_put(struct responses *responses, const void *id, size_t len,
		  const struct response *response, struct session_time now);

/* The same entry when the counts are known (the id is sent first, usage last). -ENOENT if gone. */
int responses_set_tokens(struct responses *responses, const void *id, size_t len, uint64_t tokens,
			 uint64_t now_ns);

/* 0, -ENOENT (unknown, too old, too long). A find by the writer also makes the entry young. */
int responses_find(struct responses *responses, const void *id, size_t len, uint64_t now_ns,
		   struct response *ret_response);

/* The response was deleted: 1 if it was known. */
int responses_forget(struct responses *responses, const void *id, size_t len);

/* The engine that has it, or SESSION_NO_ENGINE if that has restarted since or is no more. */
uint32_t response_home(const struct response *response, const uint64_t *epochs, uint32_t engines);

#endif
