/* A workload as conversations, so that live plays with text what replay plays with numbers. */
#include "bench/workload_talk.h"

#include <errno.h>
#include <stdlib.h>

#include "bench/grow.h"

/* The tokens of the turn before that this one begins with; UINT32_MAX: all of its prompt. */
static uint32_t kept_of(const struct workload *w, const struct workload_turn *before,
			const struct workload_turn *turn)
{
	uint32_t common = 0;

	for (uint32_t i = 0; i < before->segments && i < turn->segments; i++) {
		const struct workload_segment *x = &w->segment[before->segment + i];
		const struct workload_segment *y = &w->segment[turn->segment + i];
		uint32_t less = x->tokens < y->tokens ? x->tokens : y->tokens;

		if (x->key != y->key || x->at != y->at)
			break;
		common += less;
		if (less < x->tokens)
			break;
	}
	return common >= before->prompt_tokens ? UINT32_MAX : common;
}

static int add_turn(struct sessions *s, const struct workload *w, const struct workload_turn *turn)
{
	if (turn->at_s >= 0)
		return -EINVAL;
	if (grow((void **)&s->turn, s->turns, &s->turns_room, sizeof(*s->turn)) < 0)
		return -ENOMEM;
	s->turn[s->turns++] = (struct sessions_turn){
		.prompt_tokens = turn->prompt_tokens,
		.output_tokens = turn->output_tokens,
		.think_s = turn->think_s,
		.kept_tokens = turn->turn == 1 ? 0 : kept_of(w, turn - 1, turn),
	};
	return 0;
}

static int add_session(struct sessions *s, const struct workload *w,
		       const struct workload_session *from)
{
	const struct workload_turn *first = &w->turn[from->turn];
	const struct workload_segment *segment = &w->segment[first->segment];
	struct session_trace session = { .key = segment[first->segments - 1].key,
					 .block = SESSIONS_BLOCK,
					 .turn = (uint32_t)s->turns,
					 .turns = from->turns };
	int err = 0;

	/* What stands before a first turn's own text is what other sessions begin with, too. */
	if (first->segments > 1) {
		session.system_key = segment[0].key;
		session.system_tokens = segment[0].tokens;
	}
	if (grow((void **)&s->session, s->sessions, &s->sessions_room, sizeof(*s->session)) < 0)
		return -ENOMEM;
	s->session[s->sessions++] = session;
	for (uint32_t i = 0; i < from->turns && !err; i++)
		err = add_turn(s, w, first + i);
	return err;
}

int workload_sessions(struct sessions *ret_sessions, const struct workload *w)
{
	int err = 0;

	*ret_sessions = (struct sessions){ 0 };
	for (size_t i = 0; i < w->sessions && !err; i++)
		err = w->session[i].turns ? add_session(ret_sessions, w, &w->session[i]) : -EINVAL;
	return err;
}
