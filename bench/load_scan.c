/* What reading and hashing a body costs alone: the least that a router that reads it must pay. */
#include <stdlib.h>

#include "bench/load_client.h"
#include "bench/load_scan.h"
#include "router/chat/scan.h"
#include "shm/base/clock.h"

enum { MB = 1000 * 1000, PIECE = 16 * 1024, ROUNDS = 31, BLOCKS = 16384 };

double load_scan_mb_us(void)
{
	static uint64_t blocks[BLOCKS], chain[BLOCKS];
	struct load_ask ask = { .body_bytes = MB, .word = "", .events = 16 };
	struct chat_scan *scan = malloc(sizeof(*scan));
	size_t len = 0, number;
	char *body = load_body_new(&ask, &len, &number);
	double least = 0;

	for (int r = 0; r < ROUNDS && scan && body; r++) {
		uint64_t before = clock_ns();

		chat_scan_begin(scan, blocks, BLOCKS, 1);
		for (size_t at = 0; at < len; at += PIECE)
			chat_scan_step(scan, body + at, len - at < PIECE ? len - at : PIECE);
		chat_scan_end(scan, true, chain, BLOCKS);
		double us = (double)(clock_ns() - before) / NS_PER_US * MB / (double)len;
		if (r == 0 || us < least)
			least = us;
	}
	free(scan);
	free(body);
	return least;
}
