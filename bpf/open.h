/*
 * Requests under way, by their sockets: who waits for a first token, and since when.
 *
 * Records may be lost, so an entry can miss its end. It leaves then with the next request of its
 * socket, with the socket (open_settle() after a loss), or of age; so what waits cannot pile up.
 */
#ifndef TURNWARD_BPF_OPEN_H
#define TURNWARD_BPF_OPEN_H

#include "bpf/record.h"

#include <stddef.h>
#include <stdint.h>

enum {
	OPEN_MAX = 16384, /* requests under way at once; a power of two */
	OPEN_PLACES = 2 * OPEN_MAX,
	OPEN_AGE_MAX_S = 15 * 60, /* then nobody believes that an end will come */
};

struct open_entry {
	uint64_t cookie; /* 0 = free place */
	uint64_t start_ns, sent_ns;
	uint32_t sequence;
	uint8_t engine;
	uint8_t streams; /* known to */
	uint8_t token;   /* its first token has been seen, and counted where it is to be */
	uint8_t doubt;   /* a record was lost while it was open */
};

/* All-zero is empty; about 1 MB, the caller's memory. */
struct open_table {
	struct open_entry place[OPEN_PLACES];
	uint32_t n;
	uint64_t unseen; /* requests that found no room, ever */
};

/* START, or a TOKEN whose START was lost: the entry, made or found; NULL when the table is full. */
struct open_entry *open_begin(struct open_table *table, const struct probe_record *record);

/* The entry of exactly this request, or NULL. */
struct open_entry *open_find(struct open_table *table, const struct probe_record *record);

void open_end(struct open_table *table, struct open_entry *entry);

/* Records were lost: any entry that is open now may have missed its end. */
void open_doubt(struct open_table *table);

/* What is known of an entry's socket. */
enum open_socket { OPEN_SOCKET_GONE, OPEN_SOCKET_ANSWERED, OPEN_SOCKET_SILENT };

/* Doubted entries stay only if their socket still waits: answered ones will be told by their END.
 */
void open_settle(struct open_table *table,
		 enum open_socket (*ask)(void *ctx, struct open_entry *entry), void *ctx);

/* Drops what is older than OPEN_AGE_MAX_S; returns how many. */
unsigned open_expire(struct open_table *table, uint64_t now_ns);

/* Entries in no order: for (e = open_next(t, NULL); e; e = open_next(t, e)). Any change ends it. */
const struct open_entry *open_next(const struct open_table *table, const struct open_entry *after);

#endif
