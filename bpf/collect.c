/* Which moments of a request count for what. */
#include "bpf/collect.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void collect_init(struct collect *c)
{
	*c = (struct collect){ 0 };
}

void collect_fini(struct collect *c)
{
	for (unsigned i = 0; i < STATE_ENGINES_MAX; i++)
		free(c->engine[i]);
}

int collect_engine_reset(struct collect *c, unsigned engine, uint64_t window_ns)
{
	assert(engine < STATE_ENGINES_MAX);
	free(c->engine[engine]);
	c->engine[engine] = calloc(1, sizeof(struct timing));
	if (!c->engine[engine])
		return -ENOMEM;
	timing_init(c->engine[engine], window_ns);
	return 0;
}

static double seconds(uint64_t from_ns, uint64_t to_ns)
{
	return to_ns > from_ns ? (double)(to_ns - from_ns) * 1e-9 : 0;
}

static void first_token(struct timing *t, const struct probe_record *r, uint64_t now_ns)
{
	if (!(r->flags & PROBE_FLAGS_NO_TTFT))
		timing_first_token(t, now_ns, seconds(r->t0_first_ns, r->t_tok_ns));
}

/* In a lost TOKEN's stead comes the END with the same time. */
static void token(struct collect *c, const struct probe_record *r, uint64_t now_ns)
{
	struct open_entry *e = open_begin(&c->open, r);

	if (!e || e->token)
		return; /* without a place END cannot know: it is left to it */
	e->token = e->streams = 1;
	first_token(c->engine[r->engine], r, now_ns);
}

/* Mean time between tokens: engines write each as it comes, so a segment is about one. */
static double token_gap_s(const struct probe_record *r)
{
	if (r->t_tok_ns == 0 || r->segments < 2)
		return -1;
	return seconds(r->t_tok_ns, r->t_end_ns) / (double)(r->segments - 1);
}

static void end(struct collect *c, const struct probe_record *r, uint64_t now_ns)
{
	struct timing *t = c->engine[r->engine];
	struct open_entry *e = open_find(&c->open, r);
	int counted = e && e->token, broken = r->flags & (PROBE_FLAG_ABORT | PROBE_FLAG_TRUNC);

	if (r->t_tok_ns && !counted)
		first_token(t, r, now_ns);
	if (e)
		open_end(&c->open, e);
	if (r->flags & (PROBE_FLAG_ERROR | PROBE_FLAG_TRUNC))
		t->errors++;
	if (r->flags & PROBE_FLAG_ABORT)
		t->aborts++;
	if (r->flags & PROBE_FLAGS_NO_TTFT & ~(PROBE_FLAG_NONSTREAM | PROBE_FLAG_ERROR))
		t->flagged++;
	if ((r->flags & PROBE_FLAG_ABORT) && (r->flags & PROBE_FLAG_STREAM) && !r->t_tok_ns)
		timing_given_up(t, now_ns, seconds(r->t0_first_ns, r->t_end_ns));
	/* An inferred end says that the request ended well enough, and nothing of when. */
	if (!broken && !(r->flags & (PROBE_FLAG_ERROR | PROBE_FLAG_LAZY)))
		timing_finished(t, now_ns, seconds(r->t0_first_ns, r->t_end_ns), token_gap_s(r));
}

int collect_take(struct collect *c, const struct probe_record *r, uint64_t now_ns)
{
	if (r->engine >= STATE_ENGINES_MAX || !c->engine[r->engine] || r->cookie == 0)
		return 0;
	switch (r->kind) {
	case PROBE_START:
		open_begin(&c->open, r);
		return 0;
	case PROBE_TOKEN:
		token(c, r, now_ns);
		return 0;
	case PROBE_END:
		end(c, r, now_ns);
		return 1;
	}
	return 0;
}

int collect_lost(struct collect *c, uint64_t drops)
{
	if (drops == c->lost)
		return 0;
	c->lost = drops;
	open_doubt(&c->open);
	return 1;
}

void collect_records(struct collect *c, uint64_t now_ns,
		     struct latency_record records[STATE_ENGINES_MAX], unsigned engines_nr)
{
	static struct timing_open open[STATE_ENGINES_MAX]; /* large; cleared at every call */

	memset(open, 0, engines_nr * sizeof(open[0]));
	for (const struct open_entry *e = open_next(&c->open, NULL); e; e = open_next(&c->open, e))
		if (!e->token && e->engine < engines_nr)
			timing_open_add(&open[e->engine], now_ns, e->start_ns, e->streams);
	for (unsigned i = 0; i < engines_nr; i++) {
		if (!c->engine[i])
			continue;
		timing_record(c->engine[i], now_ns, &open[i], &records[i]);
		records[i].lost = c->lost;
	}
}

unsigned collect_sample(char line[COLLECT_SAMPLE_MAX], const struct probe_record *r,
			const char *engine)
{
	unsigned flags = r->flags & ~(unsigned)PROBE_FLAG_STREAM;
	int n = snprintf(line, COLLECT_SAMPLE_MAX,
			 "{\"engine\":\"%s\",\"client_port\":%u,\"status\":%u,\"flags\":%u,"
			 "\"t0_first_ns\":%llu,\"t0_last_ns\":%llu,\"t_hdr_ns\":%llu,"
			 "\"t_tok_ns\":%llu,\"t_end_ns\":%llu,\"tx_bytes\":%llu,"
			 "\"rx_bytes\":%llu}\n",
			 engine, r->client_port, r->status, flags, r->t0_first_ns, r->t0_last_ns,
			 r->t_hdr_ns, r->t_tok_ns, r->t_end_ns, r->tx_bytes, r->rx_bytes);

	assert(n > 0 && n < COLLECT_SAMPLE_MAX);
	return (unsigned)n;
}
