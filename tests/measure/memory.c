/* Measures what a decision pays for the prefix index, the session table and the token estimate. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "router/prefix/prefix.h"
#include "router/session/session.h"
#include "router/stats/hist.h"
#include "router/tokens/tokens.h"
#include "shm/base/clock.h"

enum { ENGINES = 8, ROOM = 16384, BLOCKS = 1600, SESSIONS = 80, ROUNDS = 2000, ENTRIES = 16384 };
enum { FLUSH_BYTES = 16 << 20 };

static uint64_t chains[SESSIONS][BLOCKS];
static uint8_t *flush;

/* Pushes what the last round used out of the first two cache levels, as relaying does in between.
 */
static void push_out(void)
{
	for (size_t i = 0; i < FLUSH_BYTES; i += 64)
		flush[i]++;
}

static void *memory_of(size_t size)
{
	size_t rounded = (size + 4095) / 4096 * 4096;
	void *mem = aligned_alloc(4096, rounded);

	if (!mem)
		exit(1);
	return memset(mem, 0, rounded);
}

static void print(const char *what, const struct hist *hist)
{
	printf("%-44s p50 %8.0f ns   p99 %8.0f ns\n", what, hist_quantile(hist, 0.5),
	       hist_quantile(hist, 0.99));
}

static void make_chains(void)
{
	for (int s = 0; s < SESSIONS; s++) {
		uint64_t hash = 1;

		for (int d = 0; d < BLOCKS; d++) { /* the first 40 blocks: a system prompt of all */
			hash = (hash ^ hash >> 29) * 0xbf58476d1ce4e5b9 +
			       (d < 40 ? 1 : (uint64_t)s + 3);
			chains[s][d] = hash ^ hash >> 32;
		}
	}
}

/* `cold`: caches are pushed out before each round, but for the chain, which has just been made. */
static void measure_match(const struct prefix_index *index, const char *what, uint32_t engines,
			  int cold)
{
	static struct hist hist;
	uint32_t blocks[ENGINES];
	uint64_t sum = 0;

	hist_reset(&hist);
	for (int i = 0; i < ROUNDS; i++) {
		const uint64_t *chain = chains[(i * 7) % SESSIONS];

		if (cold) {
			push_out();
			for (int d = 0; d < BLOCKS; d++)
				sum += chain[d];
			__asm__ volatile("" : : "r"(sum)); /* keeps the reads */
		}
		uint64_t before = clock_ns();

		prefix_match_all(index, engines, chain, BLOCKS, NULL, blocks);
		hist_add(&hist, (double)(clock_ns() - before));
	}
	print(what, &hist);
}

static void measure_prefix(void)
{
	static struct hist hist;
	size_t size = prefix_size(ENGINES, ROOM);
	void *mem = memory_of(size);
	struct prefix_index index;

	if (prefix_attach(&index, mem, size, ENGINES, ROOM))
		exit(1);
	for (uint32_t e = 0; e < ENGINES; e++)
		prefix_set_capacity(&index, e, ROOM);
	for (int round = 0; round < 3; round++)
		for (uint32_t s = 0; s < SESSIONS;
		     s++) /* each at home, and a shared prefix elsewhere */
			prefix_insert(&index, s % ENGINES, chains[s], BLOCKS - 20);
	for (int i = 0; i < ROUNDS; i++) {
		uint32_t s = (uint32_t)(i * 7) % SESSIONS;

		push_out();
		uint64_t before = clock_ns();

		prefix_insert(&index, s % ENGINES, chains[s], BLOCKS - 20);
		hist_add(&hist, (double)(clock_ns() - before));
	}
	measure_match(&index, "match 1,600 blocks, 8 engines, cold", ENGINES, 1);
	measure_match(&index, "match 1,600 blocks, 8 engines, warm", ENGINES, 0);
	measure_match(&index, "match 1,600 blocks, 1 engine, cold", 1, 1);
	print("insert 1,580 known blocks, cold", &hist);
	hist_reset(&hist);
	for (int i = 0; i < 20; i++) {
		uint64_t before = clock_ns();

		prefix_attach(&index, mem, size, ENGINES, ROOM);
		hist_add(&hist, (double)(clock_ns() - before));
	}
	print("attach 8 engines, 16,384 blocks of room each", &hist);
	free(mem);
}

static struct session_key key_of(const struct sessions *sessions, unsigned i)
{
	return sessions_key(sessions, 1, &i, sizeof i, 5);
}

static void measure_sessions(void)
{
	static struct hist find, note, infer;
	size_t size = sessions_size(ENTRIES);
	void *mem = memory_of(size);
	struct sessions sessions;
	struct session session;

	if (sessions_attach(&sessions, mem, size, ENTRIES, 99, NULL))
		exit(1);
	for (unsigned i = 0; i < 4 * ROUNDS; i++) {
		struct session_dispatch d = { .engine = i % 8,
					      .turn = 1,
					      .chain = chains[i % 80],
					      .blocks = 1 + i % BLOCKS };
		struct session_time now = { i + 1, i };
		struct session_key key = key_of(&sessions, i % ROUNDS);

		push_out();
		uint64_t t0 = clock_ns();

		session_find(&sessions, key, now.ns, &session);
		uint64_t t1 = clock_ns();

		session_note_dispatch(&sessions, key, 1, &d, now);
		uint64_t t2 = clock_ns();

		if (i < ROUNDS)
			continue;
		hist_add(&find, (double)(t1 - t0));
		hist_add(&note, (double)(t2 - t1));
		t0 = clock_ns();
		sessions_infer(&sessions, 7, i, chains[i % SESSIONS], BLOCKS, now.ns);
		hist_add(&infer, (double)(clock_ns() - t0));
	}
	print("find a session, cold", &find);
	print("note a dispatch after it", &note);
	print("infer: no session named, none known", &infer);
	free(mem);
}

static void measure_tokens(void)
{
	static struct hist estimate, learn;
	size_t size = tokens_size();
	void *mem = memory_of(size);
	struct tokens tokens;
	struct tokens_prompt p = { .text = { 300000, 9000, 50000, 60000, 500, 0 }, .messages = 40 };

	if (tokens_attach(&tokens, mem, size, NULL))
		exit(1);
	for (unsigned i = 0; i < ROUNDS; i++) {
		push_out();
		uint64_t t0 = clock_ns();

		tokens_estimate(&tokens, 77, &p);
		uint64_t t1 = clock_ns();

		tokens_learn(&tokens, 77, &p, 120000, i + 1);
		uint64_t t2 = clock_ns();

		hist_add(&estimate, (double)(t1 - t0));
		hist_add(&learn, (double)(t2 - t1));
	}
	print("estimate tokens, cold", &estimate);
	print("learn from a usage", &learn);
	free(mem);
}

int main(void)
{
	flush = memory_of(FLUSH_BYTES);
	make_chains();
	measure_prefix();
	measure_sessions();
	measure_tokens();
	free(flush);
	return 0;
}
