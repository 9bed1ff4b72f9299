/* Workloads in memory, the design document's mix, and what a perfect cache would hold of them. */
#include "bench/grow.h"
#include "bench/workload_forms.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/model/model.h"
#include "shm/base/scoped.h"

static uint64_t mix64(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

uint64_t workload_random(uint64_t *state)
{
	*state += 0x9e3779b97f4a7c15ull;
	return mix64(*state);
}

double workload_uniform(uint64_t *state)
{
	return (double)(workload_random(state) >> 11) * 0x1p-53;
}

double workload_exponential(uint64_t *state, double mean)
{
	return -mean * log(1 - workload_uniform(state));
}

uint64_t workload_key(uint64_t a, uint64_t b)
{
	return mix64(mix64(a + 0x9e3779b97f4a7c15ull) ^ (b + 0xd1b54a32d192ed03ull));
}

/* ---- lists ---- */

int workload_add_session(struct workload *w, double start_s)
{
	if (grow((void **)&w->session, w->sessions, &w->sessions_room, sizeof(*w->session)) < 0)
		return -ENOMEM;
	w->session[w->sessions++] =
		(struct workload_session){ .start_s = start_s, .turn = (uint32_t)w->turns };
	return 0;
}

int workload_add_turn(struct workload *w, const struct workload_turn *turn)
{
	struct workload_turn copy = *turn;

	assert(turn->session < w->sessions && turn->prompt_tokens > 0 && turn->output_tokens > 0);
	copy.segments = (uint32_t)(w->segments - copy.segment);
	if (grow((void **)&w->turn, w->turns, &w->turns_room, sizeof(*w->turn)) < 0)
		return -ENOMEM;
	w->turn[w->turns++] = copy;
	w->session[turn->session].turns++;
	return 0;
}

int workload_add_segment(struct workload *w, struct workload_segment segment)
{
	if (segment.tokens == 0)
		return 0;
	if (grow((void **)&w->segment, w->segments, &w->segments_room, sizeof(*w->segment)) < 0)
		return -ENOMEM;
	w->segment[w->segments++] = segment;
	return 0;
}

int workload_repeat(struct workload *w, const struct workload_turn *before, uint32_t tokens)
{
	uint32_t first = before->segment, nr = before->segments;
	int err = 0;

	for (uint32_t i = 0; i < nr && tokens > 0 && !err; i++) {
		struct workload_segment segment = w->segment[first + i];

		if (segment.tokens > tokens)
			segment.tokens = tokens;
		tokens -= segment.tokens;
		err = workload_add_segment(w, segment);
	}
	return err;
}

void workload_free(struct workload *w)
{
	free(w->session);
	free(w->turn);
	free(w->segment);
	*w = (struct workload){ 0 };
}

/* ---- tokens ---- */

void workload_ids(const struct workload_segment *segment, uint32_t *ret_ids)
{
	for (uint32_t i = 0; i < segment->tokens; i++)
		ret_ids[i] = (uint32_t)mix64(segment->key + segment->at + i);
}

void workload_prompt(const struct workload *w, const struct workload_turn *turn, uint32_t *ret_ids)
{
	uint32_t tokens = 0;

	for (uint32_t i = 0; i < turn->segments; i++) {
		const struct workload_segment *segment = &w->segment[turn->segment + i];

		assert(segment->tokens <= turn->prompt_tokens - tokens);
		workload_ids(segment, ret_ids + tokens);
		tokens += segment->tokens;
	}
	assert(tokens == turn->prompt_tokens);
}

/* ---- a perfect cache: every block ever computed, found by its chained hash ---- */

struct endless {
	uint64_t *hash; /* open addressing; 0 = empty */
	size_t nr, room;
};

static int endless_has(const struct endless *e, uint64_t hash)
{
	for (size_t i = hash & (e->room - 1); e->room && e->hash[i]; i = (i + 1) & (e->room - 1))
		if (e->hash[i] == hash)
			return 1;
	return 0;
}

static void endless_put(struct endless *e, uint64_t hash)
{
	size_t i = hash & (e->room - 1);

	while (e->hash[i] && e->hash[i] != hash)
		i = (i + 1) & (e->room - 1);
	e->nr += e->hash[i] == 0;
	e->hash[i] = hash;
}

static int endless_add(struct endless *e, uint64_t hash)
{
	struct endless old = *e;

	if (2 * e->nr >= e->room) {
		e->room = old.room ? 2 * old.room : 1 << 16;
		e->nr = 0;
		e->hash = calloc(e->room, sizeof(*e->hash));
		if (!e->hash) {
			*e = old;
			return -ENOMEM;
		}
		for (size_t i = 0; i < old.room; i++)
			if (old.hash[i])
				endless_put(e, old.hash[i]);
		free(old.hash);
	}
	endless_put(e, hash);
	return 0;
}

/* The turn's prompt and answer go in; the tokens of the prompt that were there come out. */
static int endless_turn(struct endless *e, const uint32_t *ids, uint32_t prompt, uint32_t answer,
			uint32_t *ret_hit)
{
	uint32_t hit = 0, all = prompt + answer;
	uint64_t hash = 0;
	int found = 1;

	for (uint32_t i = 0; i + MODEL_BLOCK <= all; i += MODEL_BLOCK) {
		hash = model_block_hash(hash, ids + i);
		found = found && endless_has(e, hash);
		if (found && i + MODEL_BLOCK < prompt) /* the last token is always computed */
			hit = i + MODEL_BLOCK;
		if (!found && endless_add(e, hash) < 0)
			return -ENOMEM;
	}
	*ret_hit = hit;
	return 0;
}

int workload_finish(struct workload *w)
{
	struct endless e = { 0 };
	size_t most = 1;
	int err = 0;

	for (size_t i = 0; i < w->turns; i++) {
		size_t all = (size_t)w->turn[i].prompt_tokens + w->turn[i].output_tokens;

		most = all > most ? all : most;
	}
	scoped(free_drop) uint32_t *ids = malloc(most * sizeof(*ids));
	if (!ids)
		return -ENOMEM;
	for (size_t i = 0; i < w->turns && !err; i++) {
		struct workload_turn *turn = &w->turn[i];

		assert(turn->answer.tokens == turn->output_tokens);
		assert(turn->at_s >= 0 || turn->turn == 1 ||
		       (i > 0 && turn->session == turn[-1].session));
		workload_prompt(w, turn, ids);
		workload_ids(&turn->answer, ids + turn->prompt_tokens);
		err = endless_turn(&e, ids, turn->prompt_tokens, turn->output_tokens,
				   &turn->ideal_hit_tokens);
	}
	free(e.hash);
	return err;
}

/* ---- the design document's mix ---- */

void workload_mix_init(struct workload_mix *ret_mix)
{
#define STANDARD(name, standard, meaning) ret_mix->name = standard;
	WORKLOAD_MIX(STANDARD)
#undef STANDARD
}

void workload_mix_long(struct workload_mix *ret_mix)
{
	workload_mix_init(ret_mix);
#define SET(name, value) ret_mix->name = value;
	WORKLOAD_LONG(SET)
#undef SET
}

enum kind { KIND_HEAVY, KIND_MEDIUM, KIND_SMALL };

struct draw {
	const struct workload_mix *mix;
	enum kind kind;
	uint64_t random;
};

static uint32_t first_prompt(struct draw *d)
{
	const struct workload_mix *m = d->mix;
	double tokens;

	switch (d->kind) {
	case KIND_HEAVY:
		tokens = m->heavy_first_min + workload_exponential(&d->random, m->heavy_first_mean);
		return (uint32_t)(tokens < m->heavy_first_max ? tokens : m->heavy_first_max);
	case KIND_MEDIUM:
		return (uint32_t)(m->medium_first_min +
				  workload_uniform(&d->random) * m->medium_first_spread);
	case KIND_SMALL:
		break;
	}
	return (uint32_t)(m->small_first_min +
			  workload_uniform(&d->random) * m->small_first_spread);
}

static uint32_t new_tokens(struct draw *d)
{
	const struct workload_mix *m = d->mix;

	if (d->kind == KIND_HEAVY)
		return (uint32_t)(m->heavy_new_min +
				  workload_exponential(&d->random, m->heavy_new_mean));
	return (uint32_t)(m->light_new_min + workload_exponential(&d->random, m->light_new_mean));
}

/* Geometric: after each turn the session goes on with the same chance. */
static int goes_on(struct draw *d)
{
	const struct workload_mix *m = d->mix;
	double mean = d->kind == KIND_HEAVY    ? m->heavy_turns
		      : d->kind == KIND_MEDIUM ? m->medium_turns
					       : m->small_turns;

	return workload_uniform(&d->random) < 1 - 1 / mean;
}

/* Appends the turn after `before` (NULL: the first): its words, its answer. */
static int design_turn(struct workload *w, struct draw *d, uint64_t key,
		       const struct workload_turn *before, struct workload_turn *ret_turn)
{
	struct workload_turn turn = { .at_s = -1,
				      .session = (uint32_t)w->sessions - 1,
				      .turn = 1,
				      .segment = (uint32_t)w->segments };
	uint32_t kept = before ? before->prompt_tokens : 0, more;
	int err = 0;

	if (before) {
		turn.turn = before->turn + 1;
		turn.think_s = workload_exponential(&d->random, d->mix->think);
		err = workload_repeat(w, before, kept);
		if (!err)
			err = workload_add_segment(w, before->answer);
		kept += before->output_tokens;
	}
	more = before ? new_tokens(d) : first_prompt(d);
	more = more ? more : 1;
	turn.output_tokens = (uint32_t)(d->mix->output_min +
					workload_exponential(&d->random, d->mix->output_mean));
	turn.prompt_tokens = kept + more;
	turn.answer =
		(struct workload_segment){ workload_key(key, turn.turn), 0, turn.output_tokens };
	if (!err)
		err = workload_add_segment(w, (struct workload_segment){ key, kept, more });
	*ret_turn = turn;
	return err;
}

static int design_session(struct workload *w, const struct workload_mix *mix, uint64_t seed)
{
	struct draw d = { .mix = mix, .random = seed };
	struct workload_turn before, turn;
	double kind = workload_uniform(&d.random);
	int err;

	d.kind = kind < mix->heavy_share                       ? KIND_HEAVY
		 : kind < mix->heavy_share + mix->medium_share ? KIND_MEDIUM
							       : KIND_SMALL;
	err = design_turn(w, &d, seed, NULL, &turn);
	while (!err && turn.prompt_tokens + turn.output_tokens <= mix->context_max) {
		err = workload_add_turn(w, &turn);
		if (err || (double)w->turns >= mix->requests || !goes_on(&d))
			return err;
		before = w->turn[w->turns - 1];
		err = design_turn(w, &d, seed, &before, &turn);
	}
	if (!err)
		w->segments = turn.segment; /* of the turn that was too long */
	return err;
}

int workload_generate(struct workload *ret, const struct workload_mix *mix,
		      const struct workload_pick *pick)
{
	uint64_t seed = pick->seed, arrivals = workload_key(seed, 1);
	double start_s = 0;
	int err = 0;

	*ret = (struct workload){ 0 };
	while (!err && (double)ret->turns < mix->requests && forms_may_begin(ret, pick)) {
		err = workload_add_session(ret, start_s);
		if (!err)
			err = design_session(ret, mix, workload_key(seed, ret->sessions + 1));
		start_s += workload_exponential(&arrivals, 1 / mix->rate);
	}
	err = err ? err : workload_finish(ret);
	if (!err && pick->loop == WORKLOAD_OPEN)
		workload_open(ret, pick->idle);
	return err;
}

int workload_design(struct workload *ret, const struct workload_mix *mix, uint64_t seed)
{
	struct workload_pick pick;

	workload_pick_init(&pick);
	pick.seed = seed;
	return workload_generate(ret, mix, &pick);
}
