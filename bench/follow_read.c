/* Reads the trace of a live run into a workload whose prompts share what the live ones shared. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench/follow.h"
#include "bench/grow.h"
#include "bench/workload_forms.h"
#include "shm/base/jread.h"

enum { BLOCK_MAX = 4096, TURN_MAX = 1 << 20 };
#define TEXT_KEY 0x74726163u /* all blocks are places of one endless text */

/* A line as it was read; lines stand in order of ends, a workload in order of arrivals. */
struct entry {
	struct follow_turn live;
	double at_s;
	uint64_t session;
	uint32_t turn, prompt_tokens, output_tokens;
	uint32_t segment, segments; /* in reading.segment: prompt and answer as one text */
	size_t line;
};

struct reading {
	struct follow *f;
	struct entry *entry;
	size_t entries, entries_room;
	struct workload_segment *segment;
	size_t segments, segments_room;
	size_t chain, chain_room;
	uint32_t block;
	const struct lines *lines;
	char *why;
};

#define complain(r, ...) forms_complain((r)->why, (r)->lines->number, __VA_ARGS__)

static int u32_of(struct reading *r, const struct jread *root, const char *key, uint64_t min,
		  uint64_t max, uint32_t *ret)
{
	uint64_t value;

	if (jread_get_u64(root, key, &value) < 0 || value < min || value > max)
		return complain(r, "\"%s\" must be a number %lu..%lu", key, (unsigned long)min,
				(unsigned long)max);
	*ret = (uint32_t)value;
	return 0;
}

static int seconds_of(struct reading *r, const struct jread *root, const char *key, double min,
		      double *ret)
{
	if (jread_get_f64(root, key, ret) < 0 || !(*ret >= min && *ret <= 1e9))
		return complain(r, "\"%s\" must be a time in seconds, not before %g", key, min);
	return 0;
}

/* One [first, last] of a list. */
static int range_of(struct reading *r, const char *key, const struct jread *value,
		    uint64_t ret_range[2])
{
	if (jread_get_u64(value, "[0]", &ret_range[0]) < 0 ||
	    jread_get_u64(value, "[1]", &ret_range[1]) < 0 || ret_range[0] > ret_range[1] ||
	    ret_range[1] >= UINT32_MAX / BLOCK_MAX)
		return complain(r, "\"%s\" must be a list of [first, last]", key);
	return 0;
}

static int blocks_take(struct reading *r, const struct jread *root, struct entry *e)
{
	uint64_t tokens = 0, range[2];
	struct jread list;
	struct jread_walk walk;

	if (jread_get(root, "blocks", &list) < 0 || list.type != JREAD_ARRAY)
		return complain(r, "\"blocks\" must be a list of [first, last]");
	e->segment = (uint32_t)r->segments;
	jread_walk_begin(&walk, &list);
	while (jread_walk_next(&walk) > 0) {
		int err = range_of(r, "blocks", &walk.value, range);

		if (err)
			return err;
		if (grow((void **)&r->segment, r->segments, &r->segments_room,
			 sizeof(*r->segment)) < 0)
			return -ENOMEM;
		r->segment[r->segments++] = (struct workload_segment){
			.key = TEXT_KEY,
			.at = (uint32_t)range[0] * r->block,
			.tokens = (uint32_t)(range[1] - range[0] + 1) * r->block,
		};
		tokens += r->segment[r->segments - 1].tokens;
	}
	e->segments = (uint32_t)(r->segments - e->segment);
	if (tokens < e->prompt_tokens)
		return complain(r, "\"blocks\" are %lu tokens, the prompt has %u",
				(unsigned long)tokens, e->prompt_tokens);
	return 0;
}

static int content_take(struct reading *r, const struct jread *root, struct entry *e)
{
	struct jread list;
	struct jread_walk walk;
	uint64_t range[2];

	if (jread_get(root, "content", &list) < 0 || list.type != JREAD_ARRAY)
		return complain(r, "\"content\" must be a list of [first, last]");
	e->live.chain = (uint32_t)r->chain;
	jread_walk_begin(&walk, &list);
	while (jread_walk_next(&walk) > 0) {
		int err = range_of(r, "content", &walk.value, range);

		if (err)
			return err;
		for (uint64_t i = range[0]; i <= range[1]; i++) {
			if (r->chain >= FORMS_SEGMENTS_MAX)
				return complain(r, "too many blocks of content");
			if (grow((void **)&r->f->chain, r->chain, &r->chain_room,
				 sizeof(*r->f->chain)) < 0)
				return -ENOMEM;
			r->f->chain[r->chain++] = workload_key(TEXT_KEY, i) | 1;
		}
	}
	e->live.chain_nr = (uint32_t)(r->chain - e->live.chain);
	return 0;
}

/* The engine's index by its name; the first to be named is the first, until they are sorted. */
static int engine_of(struct follow *f, const char *name)
{
	for (unsigned i = 0; i < f->engines; i++)
		if (strcmp(f->name[i], name) == 0)
			return (int)i;
	if (f->engines == STATE_ENGINES_MAX)
		return -ENOSPC;
	snprintf(f->name[f->engines], FOLLOW_NAME_MAX, "%s", name);
	return (int)f->engines++;
}

static int figures_take(struct reading *r, const struct jread *root, struct entry *e)
{
	int err = seconds_of(r, root, "at_s", 0, &e->at_s);

	err = err ? err : seconds_of(r, root, "first_s", e->at_s, &e->live.first_s);
	err = err ? err : seconds_of(r, root, "end_s", e->live.first_s, &e->live.end_s);
	err = err ? err : u32_of(r, root, "turn", 1, TURN_MAX, &e->turn);
	err = err ? err : u32_of(r, root, "prompt_tokens", 1, FORMS_TOKENS_MAX, &e->prompt_tokens);
	err = err ? err : u32_of(r, root, "output_tokens", 1, FORMS_TOKENS_MAX, &e->output_tokens);
	err = err ? err : u32_of(r, root, "max_tokens", 0, UINT32_MAX, &e->live.max_tokens);
	err = err ? err : u32_of(r, root, "cached_tokens", 0, UINT32_MAX, &e->live.cached_tokens);
	if (!err && (jread_get_u64(root, "session", &e->session) < 0 || e->session > UINT32_MAX))
		return complain(r, "\"session\" must be a number");
	if (!err && jread_get_u64(root, "content_bytes", &e->live.content_bytes) < 0)
		return complain(r, "\"content_bytes\" must be a number");
	err = err ? err : blocks_take(r, root, e);
	return err ? err : content_take(r, root, e);
}

static int line_take(struct reading *r)
{
	char engine[FOLLOW_NAME_MAX] = "";
	struct entry e = { .line = r->lines->number };
	struct jread root;
	int failed, err;

	if (jread_open(&root, r->lines->line, r->lines->len) < 0 || root.type != JREAD_OBJECT)
		return complain(r, "not a JSON object");
	if (jread_get_str(&root, "id", e.live.id, sizeof(e.live.id)) < 0)
		return complain(r, "\"id\" must be a string");
	struct jread word;
	if (jread_get(&root, "failed", &word) < 0 || jread_bool(&word, &failed) < 0)
		return complain(r, "\"failed\" must be true or false");
	if (jread_get_str(&root, "engine", engine, sizeof(engine)) < 0)
		return complain(r, "\"engine\" must be a name");
	if (failed || !engine[0]) {
		r->f->left_out++;
		return 0;
	}
	e.live.engine = engine_of(r->f, engine);
	if (e.live.engine < 0)
		return complain(r, "more than %d engines", STATE_ENGINES_MAX);
	err = figures_take(r, &root, &e);
	if (err)
		return err;
	if (r->entries == FORMS_TURNS_MAX)
		return complain(r, "more than %d requests", FORMS_TURNS_MAX);
	if (grow((void **)&r->entry, r->entries, &r->entries_room, sizeof(*r->entry)) < 0)
		return -ENOMEM;
	r->entry[r->entries++] = e;
	return 0;
}

static int head_take(struct reading *r)
{
	uint64_t version, block;
	struct jread root, format;

	if (jread_open(&root, r->lines->line, r->lines->len) < 0 ||
	    jread_get(&root, "format", &format) < 0 || !jread_is(&format, "turnward-live-trace"))
		return complain(r, "not the trace of a live run (turnward-bench live --trace)");
	if (jread_get_u64(&root, "version", &version) < 0 || version != 1)
		return complain(r, "a trace of another version: 1 is known");
	if (jread_get_f64(&root, "speed", &r->f->speed) < 0 || !(r->f->speed > 0))
		return complain(r, "\"speed\" must be above 0");
	if (jread_get_u64(&root, "block_tokens", &block) < 0 || block < 1 || block > BLOCK_MAX)
		return complain(r, "\"block_tokens\" must be 1..%d", BLOCK_MAX);
	r->block = (uint32_t)block;
	return 0;
}

static int by_arrival(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;

	if (x->at_s != y->at_s)
		return x->at_s < y->at_s ? -1 : 1;
	return (x->line > y->line) - (x->line < y->line);
}

/* Engines in the order of their names, whatever order they answered in. */
static void engines_sort(struct reading *r)
{
	struct follow *f = r->f;
	int place[STATE_ENGINES_MAX];
	char name[STATE_ENGINES_MAX][FOLLOW_NAME_MAX];

	for (unsigned i = 0; i < f->engines; i++) {
		place[i] = 0;
		for (unsigned j = 0; j < f->engines; j++)
			place[i] += strverscmp(f->name[j], f->name[i]) < 0;
		memcpy(name[place[i]], f->name[i], FOLLOW_NAME_MAX);
	}
	memcpy(f->name, name, sizeof(name[0]) * f->engines);
	for (size_t i = 0; i < r->entries; i++)
		r->entry[i].live.engine = place[r->entry[i].live.engine];
}

/* The tokens from place `at` on, if they are one piece of the endless text; else text of its own.
 */
static struct workload_segment answer_of(const struct reading *r, const struct entry *e, size_t i)
{
	struct workload_segment answer = { workload_key(TEXT_KEY, i), 0, e->output_tokens };
	uint32_t at = e->prompt_tokens, have = 0;

	for (uint32_t k = 0; k < e->segments; k++) {
		const struct workload_segment *s = &r->segment[e->segment + k];

		if (have == 0 && at >= s->tokens) {
			at -= s->tokens;
			continue;
		}
		if (have == 0)
			answer = (struct workload_segment){ s->key, s->at + at, e->output_tokens };
		else if (s->at != answer.at + have)
			break;
		have += s->tokens - (have ? 0 : at);
		if (have >= e->output_tokens)
			return answer;
	}
	return (struct workload_segment){ workload_key(TEXT_KEY, i), 0, e->output_tokens };
}

static int turn_add(struct reading *r, const struct entry *e, size_t i, uint32_t session)
{
	struct workload *w = &r->f->workload;
	struct workload_turn turn = { .at_s = e->at_s,
				      .session = session,
				      .turn = e->turn,
				      .prompt_tokens = e->prompt_tokens,
				      .output_tokens = e->output_tokens,
				      .segment = (uint32_t)w->segments };
	uint32_t left = e->prompt_tokens;
	int err = 0;

	for (uint32_t k = 0; k < e->segments && left > 0 && !err; k++) {
		struct workload_segment s = r->segment[e->segment + k];

		s.tokens = s.tokens < left ? s.tokens : left;
		left -= s.tokens;
		err = workload_add_segment(w, s);
	}
	turn.answer = answer_of(r, e, i);
	return err ? err : workload_add_turn(w, &turn);
}

static int settle(struct reading *r)
{
	struct follow *f = r->f;
	uint64_t most = 0;
	int err = 0;

	qsort(r->entry, r->entries, sizeof(*r->entry), by_arrival);
	engines_sort(r);
	f->turn = calloc(r->entries + 1, sizeof(*f->turn));
	for (size_t i = 0; i < r->entries; i++)
		most = r->entry[i].session > most ? r->entry[i].session : most;
	uint32_t *session = calloc(most + 1, sizeof(*session)); /* + 1; 0 = none yet */
	if (!f->turn || !session)
		err = -ENOMEM;
	for (size_t i = 0; i < r->entries && !err; i++) {
		const struct entry *e = &r->entry[i];

		if (!session[e->session]) {
			err = workload_add_session(&f->workload, e->at_s);
			session[e->session] = (uint32_t)f->workload.sessions;
		}
		f->turn[i] = e->live;
		err = err ? err : turn_add(r, e, i, session[e->session] - 1);
	}
	free(session);
	return err ? err : workload_finish(&f->workload);
}

static int lines_take(struct reading *r, struct lines *l)
{
	int more, err = 0;

	while (!err && (more = lines_next(l, r->why)) != 0)
		err = more < 0 ? more : r->block ? line_take(r) : head_take(r);
	if (err)
		return err;
	if (!r->block || !r->entries) {
		snprintf(r->why, FOLLOW_WHY_MAX, "no request in it that can be followed");
		return -EINVAL;
	}
	return settle(r);
}

int follow_read(struct follow *ret, const char *path, char why[FOLLOW_WHY_MAX])
{
	struct lines lines;
	struct reading r = { .f = ret, .lines = &lines, .why = why };
	int err;

	*ret = (struct follow){ 0 };
	err = lines_open(&lines, path, why);
	if (err)
		return err;
	err = lines_take(&r, &lines);
	lines_close(&lines);
	free(r.entry);
	free(r.segment);
	if (err == -ENOMEM)
		snprintf(why, FOLLOW_WHY_MAX, "out of memory");
	return err;
}

void follow_free(struct follow *f)
{
	workload_free(&f->workload);
	free(f->turn);
	free(f->chain);
	free(f->seen);
	*f = (struct follow){ 0 };
}
