/* Workloads from files: lines, forms by content, sessions (traces/README.md), Azure's CSV. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "bench/sessions.h"
#include "bench/workload_forms.h"
#include "shm/base/jread.h"

const char *const workload_form_names[] = {
#define NAME(id, name, meaning) name,
	WORKLOAD_FORMS(NAME) NULL
#undef NAME
};

void workload_pick_init(struct workload_pick *ret_pick)
{
	*ret_pick = (struct workload_pick){ .seed = 1,
					    .turns_max = 12,
					    .first_prompt_max = 40000,
					    .context_max = 120000,
					    .think_max_s = 60,
					    .think_s = -1 };
}

int forms_complain(char *why, size_t line, const char *format, ...)
{
	va_list args;
	int n = snprintf(why, WORKLOAD_WHY_MAX, "line %zu: ", line);

	va_start(args, format);
	vsnprintf(why + n, (size_t)(WORKLOAD_WHY_MAX - n), format, args);
	va_end(args);
	return -EINVAL;
}

int forms_enough(const struct workload *w, const struct workload_pick *pick)
{
	return pick->requests && w->turns >= pick->requests;
}

int forms_may_begin(const struct workload *w, const struct workload_pick *pick)
{
	return !pick->sessions || w->sessions < pick->sessions;
}

/* ---- lines ---- */

int lines_open(struct lines *l, const char *path, char why[WORKLOAD_WHY_MAX])
{
	*l = (struct lines){ .file = fopen(path, "re") };
	if (l->file)
		return 0;
	int err = -errno;
	snprintf(why, WORKLOAD_WHY_MAX, "%s", strerror(-err));
	return err;
}

void lines_close(struct lines *l)
{
	if (l->file)
		fclose(l->file);
	free(l->line);
	*l = (struct lines){ 0 };
}

static int line_put(struct lines *l, int c)
{
	if (l->len == l->room) {
		size_t room = l->room ? 2 * l->room : 4096;
		char *grown = realloc(l->line, room);

		if (!grown)
			return -ENOMEM;
		l->line = grown;
		l->room = room;
	}
	l->line[l->len++] = (char)c;
	return 0;
}

/* One line, blank or not; 0 at the end of the file. */
static int line_read(struct lines *l, char *why)
{
	int c, err = 0;

	l->len = 0;
	l->number++;
	while (!err && (c = getc_unlocked(l->file)) != EOF && c != '\n') {
		if (l->len >= FORMS_LINE_MAX)
			return forms_complain(why, l->number, "longer than %d MiB",
					      FORMS_LINE_MAX >> 20);
		err = line_put(l, c);
	}
	if (!err && ferror(l->file)) {
		err = -EIO;
		snprintf(why, WORKLOAD_WHY_MAX, "line %zu cannot be read", l->number);
	}
	if (err || (c == EOF && l->len == 0))
		return err;
	while (l->len && (l->line[l->len - 1] == '\r' || l->line[l->len - 1] == ' '))
		l->len--;
	err = line_put(l, 0);
	l->len -= !err;
	return err ? err : 1;
}

int lines_next(struct lines *l, char why[WORKLOAD_WHY_MAX])
{
	int more;

	do
		more = line_read(l, why);
	while (more > 0 && l->len == 0);
	return more;
}

/* ---- which form ---- */

static int form_of_json(const struct jread *root, enum workload_form *ret_form)
{
	struct jread part;

	if (root->type == JREAD_ARRAY)
		*ret_form = WORKLOAD_FORM_MOONCAKE;
	else if (jread_get(root, "r", &part) == 0)
		*ret_form = WORKLOAD_FORM_SESSIONS;
	else if (jread_get(root, "chat_id", &part) == 0)
		*ret_form = WORKLOAD_FORM_QWEN;
	else if (jread_get(root, "input_length", &part) == 0)
		*ret_form = WORKLOAD_FORM_MOONCAKE;
	else
		return -EINVAL;
	return 0;
}

static int form_of_line(const struct lines *l, enum workload_form *ret_form, char *why)
{
	static const char packed[] = "\xfd\x37zXZ";
	struct jread root;

	if (l->len >= 5 && memcmp(l->line, packed, 5) == 0)
		return forms_complain(why, l->number, "packed: unpack it with xz -d first");
	if (l->line[0] == '{' || l->line[0] == '[') {
		if (jread_open(&root, l->line, l->len) == 0 && form_of_json(&root, ret_form) == 0)
			return 0;
	} else if (strchr(l->line, ',')) {
		*ret_form = WORKLOAD_FORM_AZURE;
		return 0;
	}
	return forms_complain(why, l->number, "of no form that is known");
}

int workload_form_of(const char *path, enum workload_form *ret_form, char why[WORKLOAD_WHY_MAX])
{
	struct lines l;
	int err = lines_open(&l, path, why);

	if (err)
		return err;
	err = lines_next(&l, why);
	if (err > 0) {
		err = form_of_line(&l, ret_form, why);
	} else if (err == 0) {
		snprintf(why, WORKLOAD_WHY_MAX, "the file is empty");
		err = -EINVAL;
	}
	lines_close(&l);
	return err;
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

	for (uint32_t k = 0; k < trace->turns && !err && !forms_enough(w, pick); k++)
		err = add_trace_turn(w, trace, &s->turn[trace->turn + k],
				     workload_key(trace->key, w->sessions));
	return err;
}

static int read_sessions(struct workload *w, const char *path, const struct workload_pick *pick,
			 char *why)
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

	_Static_assert((int)WORKLOAD_WHY_MAX >= (int)SESSIONS_WHY_MAX, "the reader writes into it");
	err = sessions_read(&s, path, &limits, why);
	order = err ? NULL : malloc((s.sessions + 1) * sizeof(*order));
	if (!err && !order)
		err = -ENOMEM;
	for (size_t i = 0; i < s.sessions && !err; i++) {
		/* shuffled, by exchange with any place so far */
		size_t k = workload_random(&random) % (i + 1);

		order[i] = order[k];
		order[k] = i;
	}
	for (size_t i = 0; i < s.sessions && !err && !forms_enough(w, pick); i++) {
		if (!forms_may_begin(w, pick))
			break;
		err = add_trace(w, &s, order[i], pick, start_s);
		start_s += workload_exponential(&random, pick->rate > 0 ? 1 / pick->rate : 4);
	}
	free(order);
	sessions_free(&s);
	return err;
}

/* ---- Azure ---- */

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
		return isfinite(*ret_s) ? 0 : -EINVAL;
	}
	*ret_s = strtod(text, ret_end);
	return *ret_end == text || !isfinite(*ret_s) ? -EINVAL : 0;
}

static int azure_row(struct workload *w, const char *text, const struct workload_pick *pick)
{
	struct workload_turn turn = { .turn = 1, .segment = (uint32_t)w->segments };
	unsigned long input, output;
	char *end, *after;
	int err = azure_time(text, &end, &turn.at_s);

	if (err || *end != ',')
		return -EINVAL;
	input = strtoul(end + 1, &after, 10);
	if (*after != ',' || after == end + 1)
		return -EINVAL;
	output = strtoul(after + 1, &end, 10);
	if (end == after + 1 || (*end && *end != ',') || input < 1 || input > FORMS_TOKENS_MAX ||
	    output > FORMS_TOKENS_MAX)
		return -EINVAL;
	if (input + output > pick->context_max || !forms_may_begin(w, pick))
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

static int read_azure(struct workload *w, const char *path, const struct workload_pick *pick,
		      char *why)
{
	struct lines l;
	int more = 1, err = lines_open(&l, path, why);

	while (!err && more > 0 && !forms_enough(w, pick)) {
		more = lines_next(&l, why);
		if (more <= 0) {
			err = more;
			continue;
		}
		if (l.number == 1 && l.line[0] >= 'A') /* the columns' names */
			continue;
		err = w->turns < FORMS_TURNS_MAX ? azure_row(w, l.line, pick) : -E2BIG;
		if (err == -EINVAL)
			forms_complain(why, l.number, "not time,input,output");
		else if (err == -E2BIG)
			forms_complain(why, l.number, "more requests than are read");
	}
	lines_close(&l);
	return err;
}

/* ---- all of them ---- */

static int check_span(const struct workload *w, char *why)
{
	double last_s = 0;

	for (size_t i = 0; i < w->turns; i++) {
		const struct workload_turn *turn = &w->turn[i];

		last_s = fmax(last_s,
			      turn->at_s >= 0 ? turn->at_s : w->session[turn->session].start_s);
	}
	if (last_s <= FORMS_SPAN_MAX_S)
		return 0;
	snprintf(why, WORKLOAD_WHY_MAX,
		 "its arrivals span %.3g s, more than %d: --rate brings "
		 "them together",
		 last_s, FORMS_SPAN_MAX_S);
	return -E2BIG;
}

int workload_read(struct workload *ret, const char *path, enum workload_form form,
		  const struct workload_pick *pick, char why[WORKLOAD_WHY_MAX])
{
	int closed = form == WORKLOAD_FORM_SESSIONS, err;

	*ret = (struct workload){ 0 };
	if (closed)
		err = read_sessions(ret, path, pick, why);
	else if (form == WORKLOAD_FORM_AZURE)
		err = read_azure(ret, path, pick, why);
	else
		err = workload_blocks(ret, path, form, pick, why);
	if (!err && ret->turns == 0) {
		snprintf(why, WORKLOAD_WHY_MAX, "no request of it can be played");
		err = -EINVAL;
	}
	if (!err && !closed)
		err = workload_settle(ret, pick);
	if (!err && !closed && pick->loop == WORKLOAD_CLOSED)
		err = workload_close(ret, pick);
	if (!err && closed)
		workload_think(ret, pick);
	if (!err)
		err = check_span(ret, why);
	if (!err)
		err = workload_finish(ret);
	if (!err && closed && pick->loop == WORKLOAD_OPEN)
		workload_open(ret, pick->idle);
	return err;
}
