/* Writes the trace of a live run: blocks are numbered as they are first seen, lists are ranges. */
#include "bench/live_trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/model/model.h"
#include "router/chat/scan.h"
#include "shm/base/json.h"

enum { MAP_ROOM = 1 << 16 /* at first; a power of two */ };

/* Hash of a beginning -> its number. */
struct map {
	struct map_entry {
		uint64_t hash;
		uint32_t number; /* from 1; 0 = free */
	} * entry;
	uint32_t room, nr;
};

struct live_trace {
	FILE *file;
	int err;
	double speed;
	uint64_t begin_ns;
	size_t unlike;
	struct map blocks, content, sessions;
	struct tokenizer_ids ids;
	uint64_t *chain, *scan_blocks;
	size_t chain_room;
	struct chat_scan scan;
};

static int map_new(struct map *m, uint32_t room)
{
	m->entry = calloc(room, sizeof(*m->entry));
	m->room = room;
	m->nr = 0;
	return m->entry ? 0 : -ENOMEM;
}

static struct map_entry *map_at(const struct map *m, uint64_t hash)
{
	uint32_t i = (uint32_t)hash & (m->room - 1);

	while (m->entry[i].number && m->entry[i].hash != hash)
		i = (i + 1) & (m->room - 1);
	return &m->entry[i];
}

static int map_grow(struct map *m)
{
	struct map grown;
	int err = map_new(&grown, 2 * m->room);

	if (err)
		return err;
	for (uint32_t i = 0; i < m->room; i++)
		if (m->entry[i].number)
			*map_at(&grown, m->entry[i].hash) = m->entry[i];
	grown.nr = m->nr;
	free(m->entry);
	*m = grown;
	return 0;
}

/* The number of that beginning, from 0; a new one is the next. */
static int map_number(struct map *m, uint64_t hash, uint32_t *ret)
{
	struct map_entry *e;

	if (2 * (m->nr + 1) > m->room && map_grow(m) < 0)
		return -ENOMEM;
	e = map_at(m, hash);
	if (!e->number)
		*e = (struct map_entry){ hash, ++m->nr };
	*ret = e->number - 1;
	return 0;
}

static int to_file(void *ctx, const char *text, size_t len)
{
	return fwrite(text, 1, len, ctx) == len ? 0 : -errno;
}

static void range(struct json *j, uint32_t first, uint32_t last)
{
	json_array_begin(j, NULL);
	json_u64(j, NULL, first);
	json_u64(j, NULL, last);
	json_array_end(j);
}

/* [first, last] ranges of the numbers of `nr` beginnings. */
static int ranges(struct json *j, const char *key, struct map *m, const uint64_t *hash, size_t nr)
{
	uint32_t first = 0, last = 0, number = 0;

	json_array_begin(j, key);
	for (size_t i = 0; i < nr; i++) {
		if (map_number(m, hash[i], &number) < 0)
			return -ENOMEM;
		if (i > 0 && number != last + 1)
			range(j, first, last);
		if (i == 0 || number != last + 1)
			first = number;
		last = number;
	}
	if (nr > 0)
		range(j, first, last);
	json_array_end(j);
	return 0;
}

static int chain_room(struct live_trace *t, size_t nr)
{
	uint64_t *chain, *blocks;

	if (nr <= t->chain_room)
		return 0;
	chain = realloc(t->chain, 2 * nr * sizeof(*chain));
	if (!chain)
		return -ENOMEM;
	t->chain = chain;
	blocks = realloc(t->scan_blocks, 2 * nr * sizeof(*blocks));
	if (!blocks)
		return -ENOMEM;
	t->scan_blocks = blocks;
	t->chain_room = 2 * nr;
	return 0;
}

/* Prompt and answer as one text of tokens: what the engine's cache may hold of them. */
static int token_blocks(struct live_trace *t, const struct live_trace_entry *e, size_t *ret_nr)
{
	uint64_t hash = 0;
	size_t nr = 0;
	uint32_t last[MODEL_BLOCK];
	int err = 0;

	err = tokenizer_text(&t->ids, e->answer, e->answer_len);
	err = err ? err : chain_room(t, t->ids.nr / MODEL_BLOCK + 1);
	if (err)
		return err;
	for (size_t at = 0; at < t->ids.nr; at += MODEL_BLOCK) {
		size_t part = t->ids.nr - at < MODEL_BLOCK ? t->ids.nr - at : MODEL_BLOCK;

		/* One that is not full is like none that is: no token has that id. */
		memset(last, 0xff, sizeof(last));
		memcpy(last, t->ids.id + at, part * sizeof(last[0]));
		hash = model_block_hash(hash, last);
		t->chain[nr++] = hash;
	}
	*ret_nr = nr;
	return 0;
}

/* As the router scans it. */
static int content_blocks(struct live_trace *t, const struct live_trace_entry *e, size_t *ret_nr)
{
	size_t most = chat_scan_blocks(e->body_len[0] + e->body_len[1] + e->body_len[2]);
	int err = chain_room(t, most);

	if (err)
		return err;
	chat_scan_begin(&t->scan, t->scan_blocks, (uint32_t)most, 1);
	for (int i = 0; i < 3; i++)
		chat_scan_step(&t->scan, e->body[i], e->body_len[i]);
	*ret_nr = chat_scan_end(&t->scan, true, t->chain, (uint32_t)t->chain_room);
	return 0;
}

static double model_s(const struct live_trace *t, uint64_t wall_ns)
{
	return wall_ns ? (double)(wall_ns - t->begin_ns) * 1e-9 * t->speed : -1;
}

/* As the router tells sessions apart: by the client's and by how the prompt begins. */
static int session_of(struct live_trace *t, const struct live_trace_entry *e, uint32_t *ret)
{
	uint32_t words[MODEL_BLOCK] = { e->player + 1 };

	return map_number(&t->sessions, model_block_hash(t->scan.req.identity, words), ret);
}

static int add_prompt(struct live_trace *t, struct json *j, const struct live_trace_entry *e)
{
	uint32_t session;
	size_t nr;
	int err;

	t->ids.nr = 0;
	err = talk_ids(e->talk, &t->ids);
	if (err)
		return err;
	if (e->request->prompt_tokens != t->ids.nr)
		t->unlike++;
	json_u64(j, "prompt_tokens", t->ids.nr);
	json_u64(j, "counted_tokens", e->request->prompt_tokens);
	json_u64(j, "cached_tokens", e->request->cached_tokens);
	json_u64(j, "output_tokens", e->request->output_tokens);
	json_u64(j, "max_tokens", e->max_tokens);
	err = token_blocks(t, e, &nr);
	err = err ? err : ranges(j, "blocks", &t->blocks, t->chain, nr);
	err = err ? err : content_blocks(t, e, &nr);
	if (err)
		return err;
	err = session_of(t, e, &session);
	if (err)
		return err;
	json_u64(j, "session", session);
	json_u64(j, "turn", t->scan.req.turn);
	json_u64(j, "content_bytes", t->scan.req.content_bytes);
	return ranges(j, "content", &t->content, t->chain, nr);
}

void live_trace_add(struct live_trace *t, const struct live_trace_entry *e)
{
	const struct live_request *r = e->request;
	char buf[4096];
	struct json j;
	int err = 0;

	json_init(&j, buf, sizeof(buf));
	json_sink_set(&j, to_file, t->file);
	json_object_begin(&j, NULL);
	json_str(&j, "id", e->id);
	json_f64(&j, "at_s", model_s(t, r->start_ns));
	json_f64(&j, "first_s", model_s(t, r->first_ns));
	json_f64(&j, "end_s", model_s(t, r->end_ns));
	json_str(&j, "engine", e->engine);
	json_bool(&j, "failed", r->failure != LIVE_none);
	if (r->failure == LIVE_none)
		err = add_prompt(t, &j, e);
	json_object_end(&j);
	err = err ? err : json_finish(&j);
	if (fputc('\n', t->file) == EOF && !err)
		err = -errno;
	t->err = t->err ? t->err : err;
}

int live_trace_new(struct live_trace **ret_trace, const char *path, double speed, const char *model,
		   uint64_t begin_ns)
{
	struct live_trace *t = calloc(1, sizeof(*t));
	char buf[1024];
	struct json j;

	if (!t)
		return -ENOMEM;
	t->speed = speed;
	t->begin_ns = begin_ns;
	t->file = fopen(path, "we");
	t->err = t->file ? 0 : -errno;
	if (!t->err && (map_new(&t->blocks, MAP_ROOM) < 0 || map_new(&t->content, MAP_ROOM) < 0 ||
			map_new(&t->sessions, MAP_ROOM) < 0))
		t->err = -ENOMEM;
	if (t->err) {
		int err = t->err;

		live_trace_free(t, NULL);
		return err;
	}
	json_init(&j, buf, sizeof(buf));
	json_sink_set(&j, to_file, t->file);
	json_object_begin(&j, NULL);
	json_str(&j, "format", "turnward-live-trace");
	json_u64(&j, "version", 1);
	json_num(&j, "speed", speed, 6);
	json_str(&j, "model", model);
	json_u64(&j, "block_tokens", MODEL_BLOCK);
	json_object_end(&j);
	t->err = json_finish(&j);
	fputc('\n', t->file);
	*ret_trace = t;
	return 0;
}

int live_trace_free(struct live_trace *t, size_t *ret_unlike)
{
	int err = t->err;

	if (t->file && fclose(t->file) != 0 && !err)
		err = -errno;
	if (ret_unlike)
		*ret_unlike = t->unlike;
	tokenizer_ids_fini(&t->ids);
	free(t->blocks.entry);
	free(t->content.entry);
	free(t->sessions.entry);
	free(t->chain);
	free(t->scan_blocks);
	free(t);
	return err;
}
