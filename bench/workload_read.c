/* Workloads from files: sessions (traces/README.md), Mooncake's JSON lines, Azure's CSV. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/sessions.h"
#include "bench/workload.h"
#include "shm/base/jread.h"
#include "shm/base/scoped.h"

enum {
	MOONCAKE_BLOCK = 512,       /* tokens of a hash block */
	MOONCAKE_IDS_MAX = 1 << 26, /* block ids of a file */
	TOKENS_MAX = 1 << 22, /* of one prompt or answer in a file; more is taken for an error */
};

void workload_pick_init(struct workload_pick *ret_pick)
{
	*ret_pick = (struct workload_pick){ .seed = 1,
					    .turns_max = 12,
					    .first_prompt_max = 40000,
					    .context_max = 120000,
					    .think_max_s = 60 };
}

static int complain(char *why, size_t line, const char *format, ...)
{
	va_list args;
	int n = snprintf(why, WORKLOAD_WHY_MAX, "line %zu: ", line);

	va_start(args, format);
	vsnprintf(why + n, (size_t)(WORKLOAD_WHY_MAX - n), format, args);
	va_end(args);
	return -EINVAL;
}

static int enough(const struct workload *w, const struct workload_pick *pick)
{
	return pick->requests && w->turns >= pick->requests;
}

/* ---- sessions ---- */

/* Appends what the trace's turn says: what is kept of the turn before, its answer, new text. */
static int add_trace_turn(struct workload *w, const struct session_trace *trace,
			  const struct sessions_turn *from, uint64_t key)
{
	const struct workload_session *session = &w->session[w->sessions - 1];
	struct workload_turn before = { 0 };
	struct workload_turn turn = { .at_s = -1,
				      .session = (uint32_t)w->sessions - 1,
				      .turn = session->turns + 1,
				      .prompt_tokens = from->prompt_tokens,
				      .output_tokens = from->output_tokens,
				      .segment = (uint32_t)w->segments };
	uint32_t kept = trace->system_tokens;
	int err = 0;

	turn.answer =
		(struct workload_segment){ workload_key(key, turn.turn), 0, turn.output_tokens };
	if (session->turns == 0) {
		kept = kept < turn.prompt_tokens ? kept : turn.prompt_tokens - 1;
		err = workload_add_segment(w,
					   (struct workload_segment){ trace->system_key, 0, kept });
	} else {
		before = w->turn[w->turns - 1];
		turn.think_s = from->think_s;
		kept = before.prompt_tokens;
		kept = from->kept_tokens < kept ? from->kept_tokens : kept;
		kept = kept < turn.prompt_tokens ? kept : turn.prompt_tokens - 1;
		err = workload_repeat(w, &before, kept);
		uint32_t room = turn.prompt_tokens - kept - 1;
		if (!err && kept == before.prompt_tokens && room > 0) {
			struct workload_segment answer = before.answer;

			answer.tokens = answer.tokens < room ? answer.tokens : room;
			err = workload_add_segment(w, answer);
			kept += answer.tokens;
		}
	}
	if (!err)
		err = workload_add_segment(
			w, (struct workload_segment){ workload_key(key, 1000 + turn.turn), 0,
						      turn.prompt_tokens - kept });
	return err ? err : workload_add_turn(w, &turn);
}

static int add_trace(struct workload *w, const struct sessions *s, size_t i,
		     const struct workload_pick *pick, double start_s)
{
	const struct session_trace *trace = &s->session[i];
	int err = workload_add_session(w, start_s);

	for (uint32_t k = 0; k < trace->turns && !err && !enough(w, pick); k++)
		err = add_trace_turn(w, trace, &s->turn[trace->turn + k],
				     workload_key(trace->key, w->sessions));
	return err;
}

int workload_sessions(struct workload *ret, const char *path, const struct workload_pick *pick,
		      char why[WORKLOAD_WHY_MAX])
{
	struct sessions_limits limits = { .first_prompt_max = pick->first_prompt_max,
					  .turns_max = pick->turns_max,
					  .context_max = pick->context_max,
					  .think_max_s = pick->think_max_s };
	uint64_t random = workload_key(pick->seed, 2);
	struct sessions s;
	double start_s = 0;
	size_t *order;
	int err;

	*ret = (struct workload){ 0 };
	_Static_assert((int)WORKLOAD_WHY_MAX >= (int)SESSIONS_WHY_MAX, "the reader writes into it");
	err = sessions_read(&s, path, &limits, why);
	order = err ? NULL : malloc(s.sessions * sizeof(*order));
	if (!err && !order)
		err = -ENOMEM;
	for (size_t i = 0; i < s.sessions && !err; i++) {
		/* shuffled, by exchange with any place so far */
		size_t k = workload_random(&random) % (i + 1);

		order[i] = order[k];
		order[k] = i;
	}
	for (size_t i = 0; i < s.sessions && !err && !enough(ret, pick); i++) {
		err = add_trace(ret, &s, order[i], pick, start_s);
		start_s += workload_exponential(&random, pick->rate > 0 ? 1 / pick->rate : 4);
	}
	free(order);
	sessions_free(&s);
	return err ? err : workload_finish(ret);
}

/* ---- open loop ---- */

/* Arrivals at `rate` a second on average instead of the recorded ones, their rhythm kept. */
static void rescale(struct workload *w, const struct workload_pick *pick)
{
	double first_s = w->turns ? w->turn[0].at_s : 0;
	double span_s = w->turns ? w->turn[w->turns - 1].at_s - first_s : 0;
	double factor = 1;

	if (pick->rate > 0 && span_s > 0)
		factor = (double)w->turns / (pick->rate * span_s);
	for (size_t i = 0; i < w->turns; i++)
		w->turn[i].at_s = (w->turn[i].at_s - first_s) * factor;
}

/* The session of the longest known beginning: block id -> session whose prompt ended with it. */
struct tails {
	uint32_t *session; /* + 1 */
	size_t room;
};

static int tail_set(struct tails *t, uint32_t id, uint32_t session)
{
	if (id >= t->room) {
		size_t room = t->room ? t->room : 1 << 16;

		while (room <= id)
			room *= 2;
		uint32_t *grown = realloc(t->session, room * sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		memset(grown + t->room, 0, (room - t->room) * sizeof(*grown));
		t->session = grown;
		t->room = room;
	}
	t->session[id] = session + 1;
	return 0;
}

/* Adds the ids of one list entry as blocks, cut to what the prompt still has room for; *ret_last
 * is the last full one. */
static int add_blocks(struct workload *w, const struct jread *entry, uint32_t *left,
		      uint32_t *ret_last)
{
	uint64_t first, last;
	int err = 0;

	if (entry->type == JREAD_NUMBER) {
		if (jread_u64(entry, &first) < 0)
			return -EINVAL;
		last = first;
	} else if (jread_get_u64(entry, "[0]", &first) < 0 ||
		   jread_get_u64(entry, "[1]", &last) < 0) {
		return -EINVAL;
	}
	if (first > last || last >= MOONCAKE_IDS_MAX)
		return -EINVAL;
	for (uint64_t id = first; id <= last && *left > 0 && !err; id++) {
		uint32_t tokens = *left < MOONCAKE_BLOCK ? *left : MOONCAKE_BLOCK;

		err = workload_add_segment(
			w, (struct workload_segment){ workload_key(9, id), 0, tokens });
		*left -= tokens;
		if (tokens == MOONCAKE_BLOCK)
			*ret_last = (uint32_t)id;
	}
	return err;
}

struct mooncake_row {
	double at_s;
	uint64_t input, output;
	struct jread ids;
};

static int mooncake_row(const struct jread *root, struct mooncake_row *ret_row)
{
	static const char *const words[2][4] = {
		{ "timestamp", "input_length", "output_length", "hash_ids" },
		{ "[0]", "[1]", "[2]", "[3]" },
	};
	const char *const *word = words[root->type == JREAD_ARRAY];
	double ms;

	if (jread_get_f64(root, word[0], &ms) < 0 ||
	    jread_get_u64(root, word[1], &ret_row->input) < 0 ||
	    jread_get_u64(root, word[2], &ret_row->output) < 0 ||
	    jread_get(root, word[3], &ret_row->ids) < 0 || ret_row->ids.type != JREAD_ARRAY)
		return -EINVAL;
	if (ret_row->input < 1 || ret_row->input > TOKENS_MAX || ret_row->output > TOKENS_MAX)
		return -EINVAL;
	ret_row->at_s = ms * 1e-3;
	return 0;
}

static int add_row(struct workload *w, struct tails *tails, const struct mooncake_row *row)
{
	struct workload_turn turn = { .at_s = row->at_s,
				      .prompt_tokens = (uint32_t)row->input,
				      .output_tokens = row->output ? (uint32_t)row->output : 1,
				      .segment = (uint32_t)w->segments };
	uint32_t left = turn.prompt_tokens, last = 0, known = 0, blocks = 0;
	struct jread_walk walk;
	int err = 0;

	jread_walk_begin(&walk, &row->ids);
	while (!err && left > 0 && jread_walk_next(&walk) > 0) {
		err = add_blocks(w, &walk.value, &left, &last);
		/* Two blocks are what everybody shares; a conversation shares more. */
		blocks = (uint32_t)(w->segments - turn.segment);
		if (!err && blocks > 2 && last < tails->room && tails->session[last])
			known = tails->session[last];
	}
	if (!err && left > 0) /* fewer ids than the length says: the rest is nobody else's */
		err = workload_add_segment(
			w, (struct workload_segment){ workload_key(10, w->turns), 0, left });
	if (!err && !known) {
		err = workload_add_session(w, row->at_s);
		known = (uint32_t)w->sessions;
	}
	if (!err && blocks > 2)
		err = tail_set(tails, last, known - 1);
	if (err)
		return err;
	turn.session = known - 1;
	turn.turn = w->session[known - 1].turns + 1;
	turn.answer =
		(struct workload_segment){ workload_key(11, w->turns), 0, turn.output_tokens };
	return workload_add_turn(w, &turn);
}

int workload_mooncake(struct workload *ret, const char *path, const struct workload_pick *pick,
		      char why[WORKLOAD_WHY_MAX])
{
	scoped(free_drop) char *line = NULL;
	struct tails tails = { 0 };
	struct mooncake_row row;
	struct jread root;
	size_t room = 0, number = 0;
	ssize_t len;
	int err = 0;

	*ret = (struct workload){ 0 };
	scoped(file_drop) FILE *file = fopen(path, "re");
	if (!file) {
		snprintf(why, WORKLOAD_WHY_MAX, "%s", strerror(errno));
		return -errno;
	}
	while (!err && !enough(ret, pick) && (len = getline(&line, &room, file)) > 0) {
		number++;
		if (len <= 1)
			continue;
		if (jread_open(&root, line, (size_t)len) < 0 || mooncake_row(&root, &row) < 0)
			err = complain(why, number, "not a request of Mooncake's form");
		else if (row.input + row.output <= pick->context_max)
			err = add_row(ret, &tails, &row);
	}
	free(tails.session);
	if (!err)
		rescale(ret, pick);
	return err ? err : workload_finish(ret);
}

/* "12.5", or the clock part of "2023-11-16 18:17:03.9799600" with whole days added. */
static int azure_time(const char *text, char **ret_end, double *ret_s)
{
	unsigned year, month, day, hour, minute;
	double second;
	int used = 0;

	if (sscanf(text, "%4u-%2u-%2u %2u:%2u:%lf%n", &year, &month, &day, &hour, &minute, &second,
		   &used) == 6 &&
	    used > 0) {
		*ret_s = ((day * 24.0 + hour) * 60 + minute) * 60 + second;
		*ret_end = (char *)text + used;
		return 0;
	}
	*ret_s = strtod(text, ret_end);
	return *ret_end == text ? -EINVAL : 0;
}

static int azure_row(struct workload *w, const char *text, const struct workload_pick *pick)
{
	struct workload_turn turn = { .turn = 1, .segment = (uint32_t)w->segments };
	unsigned long input, output;
	char *end;
	int err = azure_time(text, &end, &turn.at_s);

	if (err || *end != ',')
		return -EINVAL;
	input = strtoul(end + 1, &end, 10);
	if (*end != ',')
		return -EINVAL;
	output = strtoul(end + 1, &end, 10);
	if (input < 1 || input > TOKENS_MAX || output > TOKENS_MAX)
		return -EINVAL;
	if (input + output > pick->context_max)
		return 0;
	turn.prompt_tokens = (uint32_t)input;
	turn.output_tokens = output ? (uint32_t)output : 1;
	turn.session = (uint32_t)w->sessions;
	turn.answer =
		(struct workload_segment){ workload_key(12, w->turns), 0, turn.output_tokens };
	err = workload_add_session(w, turn.at_s);
	if (!err)
		err = workload_add_segment(w, (struct workload_segment){ workload_key(13, w->turns),
									 0, turn.prompt_tokens });
	return err ? err : workload_add_turn(w, &turn);
}

int workload_azure(struct workload *ret, const char *path, const struct workload_pick *pick,
		   char why[WORKLOAD_WHY_MAX])
{
	scoped(free_drop) char *line = NULL;
	size_t room = 0, number = 0;
	int err = 0;

	*ret = (struct workload){ 0 };
	scoped(file_drop) FILE *file = fopen(path, "re");
	if (!file) {
		snprintf(why, WORKLOAD_WHY_MAX, "%s", strerror(errno));
		return -errno;
	}
	while (!err && !enough(ret, pick) && getline(&line, &room, file) > 0) {
		if (++number == 1 && line[0] >= 'A') /* the columns' names */
			continue;
		err = azure_row(ret, line, pick);
		if (err == -EINVAL)
			complain(why, number, "not time,input,output");
	}
	if (!err)
		rescale(ret, pick);
	return err ? err : workload_finish(ret);
}
