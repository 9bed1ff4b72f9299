/* Which prompts are cut, where, and what follows each piece. */
#include "router/stage/stage.h"

#include <math.h>
#include <stddef.h>

enum {
	STEP_TOKENS = 8192, /* of an engine that does not tell */
	BLOCK_TOKENS = 16,
	PIECES = 16, /* or so: a piece costs by the whole prefix again */
};

static const double grace_share = 0.2;  /* of a prompt's own prefill, pauses at most */
static const double least_pause = 0.02; /* of stage_grace_s: shorter ones are none */

/* ---- whether, and how ---- */

static uint32_t step_of(const struct stage_engine *engine)
{
	return engine->step_tokens ? engine->step_tokens : STEP_TOKENS;
}

static uint32_t block_of(const struct stage_engine *engine)
{
	return engine->block_tokens ? engine->block_tokens : BLOCK_TOKENS;
}

static uint32_t uncached_of(const struct stage_case *c)
{
	return c->prompt_tokens > c->hit_tokens ? c->prompt_tokens - c->hit_tokens : 0;
}

/* Just under a step, so that a piece and all that decodes beside it are one pass. */
static uint32_t under_a_step(const struct stage_engine *engine)
{
	uint32_t step = step_of(engine), half = step / 2;
	uint32_t beside = engine->sequences_max ? engine->sequences_max : step / 16;

	if ((engine->flags & STAGE_ENGINE_HALF_STEP) || beside > half)
		return half;
	return step - beside;
}

uint32_t stage_piece_tokens(const struct stage_params *params, const struct stage_engine *engine,
			    uint32_t prompt_tokens)
{
	uint32_t tokens = (uint32_t)params->piece_tokens, block = block_of(engine), steps;

	if (tokens == 0)
		tokens = under_a_step(engine);
	tokens -= tokens % block;
	if (tokens == 0)
		tokens = block;
	/* Of whole steps: what is a little over one costs the engine a pass for the rest. */
	steps = (prompt_tokens / PIECES + tokens / 2) / tokens;
	return steps > 1 ? steps * tokens : tokens;
}

static uint32_t last_of(const struct stage_params *params, uint32_t piece_tokens)
{
	return (uint32_t)(params->stage_last * piece_tokens);
}

static enum stage_reason body_reason(const struct stage_case *c)
{
	static const struct {
		uint32_t body;
		enum stage_reason reason;
	} forbids[] = {
		{ STAGE_BODY_IMAGES, STAGE_REASON_IMAGES },
		{ STAGE_BODY_AUDIO, STAGE_REASON_AUDIO },
		{ STAGE_BODY_PROMPT_LOGPROBS, STAGE_REASON_PROMPT_LOGPROBS },
		{ STAGE_BODY_UNCUT, STAGE_REASON_SHAPE },
		{ STAGE_BODY_ARENA, STAGE_REASON_MEMORY },
	};

	for (unsigned i = 0; i < sizeof(forbids) / sizeof(forbids[0]); i++)
		if (c->body & forbids[i].body)
			return forbids[i].reason;
	return STAGE_REASON_NONE;
}

static int alone(const struct stage_params *params, const struct stage_case *c)
{
	const struct stage_engine *engine = &c->engine;
	double expected = engine->expected_s > 0 ? c->prefill_s / engine->expected_s : 0;

	return engine->others <= 0 && expected < params->stage_alone;
}

/* Why not in pieces, where pieces are wanted at all. */
static enum stage_reason reason_of(const struct stage_params *params, const struct stage_case *c)
{
	const struct stage_engine *engine = &c->engine;
	enum stage_reason reason = body_reason(c);

	if (!(engine->flags & STAGE_ENGINE_STAGES))
		return STAGE_REASON_OFF;
	if (reason != STAGE_REASON_NONE)
		return reason;
	if (block_of(engine) > params->stage_block_max)
		return STAGE_REASON_BLOCKS;
	if (engine->kv_capacity_tokens && engine->kv_free_tokens < c->prompt_tokens)
		return STAGE_REASON_KV_ROOM;
	if (params->stage_force == 0 && c->guarded)
		return STAGE_REASON_GUARD;
	if (params->stage_force == 0 && (engine->flags & STAGE_ENGINE_OFF))
		return STAGE_REASON_EVIDENCE;
	return alone(params, c) ? STAGE_REASON_ALONE : STAGE_REASON_NONE;
}

enum stage_way stage_choose(const struct stage_params *params, const struct stage_case *c,
			    enum stage_reason *ret_reason)
{
	const uint32_t no_requeue = STAGE_BODY_PROMPT_LOGPROBS | STAGE_BODY_ARENA;
	uint32_t piece = stage_piece_tokens(params, &c->engine, c->prompt_tokens);

	*ret_reason = STAGE_REASON_OFF;
	if (params->stage == STAGE_OFF)
		return STAGE_WHOLE;
	*ret_reason = STAGE_REASON_SHORT;
	if (uncached_of(c) <= last_of(params, piece))
		return STAGE_WHOLE;
	*ret_reason = params->stage == STAGE_REQUEUE ? STAGE_REASON_OFF : reason_of(params, c);
	if (*ret_reason == STAGE_REASON_NONE)
		return STAGE_IN_PIECES;
	if (params->stage == STAGE_PIECES || *ret_reason == STAGE_REASON_ALONE)
		return STAGE_WHOLE;
	if (!(c->engine.flags & STAGE_ENGINE_REQUEUES) || (c->body & no_requeue))
		return STAGE_WHOLE;
	return STAGE_BY_REQUEUE;
}

/* ---- one staged request ---- */

void stage_plan_make(const struct stage_params *params, const struct stage_case *c,
		     struct stage_plan *ret_plan)
{
	uint32_t piece = stage_piece_tokens(params, &c->engine, c->prompt_tokens);

	*ret_plan = (struct stage_plan){ .prompt_tokens = c->prompt_tokens,
					 .hit_tokens = c->hit_tokens,
					 .piece_tokens = piece,
					 .block_tokens = block_of(&c->engine),
					 .last_tokens = last_of(params, piece),
					 .prefill_s = c->prefill_s };
}

/* The farthest place to cut that is no farther than a piece, else the next one there is. */
static uint32_t place_to_cut(const struct stage_plan *plan, uint32_t cached)
{
	uint32_t most = cached + plan->piece_tokens, best = 0;

	if (plan->cuts_nr == 0)
		return most - most % plan->block_tokens;
	for (uint32_t i = 0; i < plan->cuts_nr; i++) {
		if (plan->cut[i] < cached + plan->block_tokens)
			continue;
		if (plan->cut[i] > most && best != 0)
			break;
		best = plan->cut[i];
		if (best > most)
			break;
	}
	return best;
}

static void send_request(struct stage *stage, enum stage_action action, struct stage_next *next)
{
	stage->state = STAGE_STATE_REQUEST;
	stage->cut = 0;
	next->action = action;
	next->reason = (enum stage_reason)stage->reason;
	next->expected_tokens = stage->cached;
}

static void go_on(struct stage *stage, struct stage_next *next)
{
	const struct stage_plan *plan = &stage->plan;
	uint32_t cut = place_to_cut(plan, stage->cached);

	if (cut <= stage->cached || cut >= plan->prompt_tokens ||
	    plan->prompt_tokens - stage->cached <= plan->last_tokens) {
		send_request(stage, STAGE_SEND_REQUEST, next);
		return;
	}
	stage->state = STAGE_STATE_PIECE;
	stage->cut = cut;
	stage->pieces++;
	next->action = STAGE_SEND_PIECE;
	next->cut_tokens = cut;
	next->expected_tokens = stage->cached;
	next->rest_tokens = plan->prompt_tokens - cut;
}

void stage_begin(struct stage *stage, const struct stage_plan *plan, struct stage_next *ret_next)
{
	assert(plan->piece_tokens > 0 && plan->block_tokens > 0);
	*stage = (struct stage){ .plan = *plan, .cached = plan->hit_tokens };
	*ret_next = (struct stage_next){ 0 };
	go_on(stage, ret_next);
}

static void give_up(struct stage *stage, enum stage_reason reason, struct stage_next *next)
{
	stage->reason = reason;
	send_request(stage, STAGE_GIVE_UP, next);
}

static void over(struct stage *stage, enum stage_action action, struct stage_next *next)
{
	stage->state = STAGE_STATE_OVER;
	stage->cut = 0;
	next->action = action;
}

static void piece_done(struct stage *stage, const struct stage_params *params,
		       enum stage_verdict verdict, struct stage_next *next)
{
	stage->done++;
	stage->cached = stage->cut;
	stage->cut = 0;
	if (stage->done < 2 || params->stage_force != 0 || verdict == STAGE_HIT ||
	    verdict == STAGE_UNCLEAR) {
		go_on(stage, next);
		return;
	}
	if (verdict == STAGE_NO_SOURCE)
		give_up(stage, STAGE_REASON_EVIDENCE, next);
	else
		give_up(stage, stage->done == 2 ? STAGE_REASON_MISSED : STAGE_REASON_EVICTED, next);
}

static void in_piece(struct stage *stage, const struct stage_params *params, enum stage_event event,
		     enum stage_verdict verdict, struct stage_next *next)
{
	switch (event) {
	case STAGE_EVENT_PIECE_DONE:
		piece_done(stage, params, verdict, next);
		return;
	case STAGE_EVENT_REFUSED:
		give_up(stage, STAGE_REASON_REFUSED, next);
		return;
	case STAGE_EVENT_TIMEOUT:
		give_up(stage, STAGE_REASON_TIMEOUT, next);
		return;
	case STAGE_EVENT_ENGINE_LOST:
		over(stage, STAGE_PLACE, next);
		return;
	case STAGE_EVENT_CLIENT_GONE:
		over(stage, STAGE_DROP, next);
		return;
	case STAGE_EVENT_ENDED: /* the request is not out yet */
	case STAGE_EVENTS_NR:
		break;
	}
	assert(!"a staged request cannot end before it is sent");
}

/* Once the client's own request is out, staging has nothing more to say about it. */
void stage_event(struct stage *stage, const struct stage_params *params, enum stage_event event,
		 enum stage_verdict verdict, struct stage_next *ret_next)
{
	*ret_next = (struct stage_next){ 0 };
	if (stage->state == STAGE_STATE_PIECE)
		in_piece(stage, params, event, verdict, ret_next);
	else if (stage->state == STAGE_STATE_REQUEST)
		over(stage, event == STAGE_EVENT_CLIENT_GONE ? STAGE_DROP : STAGE_NOTHING,
		     ret_next);
}

/* ---- between two pieces ---- */

/* What is owed to who waits, or to the youngest answer: the piece itself was no time for it. */
static double owed_s(const struct stage_params *params, const struct stage_others *others)
{
	double had_s = fmax(0, others->began_s - others->piece_s);

	if (others->waiting)
		return params->stage_grace_s + others->waiting_s;
	return others->decoding ? params->stage_grace_s - had_s : 0;
}

double stage_pause_s(struct stage *stage, const struct stage_params *params,
		     const struct stage_next *next, const struct stage_others *others)
{
	double most_s = fmin(params->stage_grace_most_s, grace_share * stage->plan.prefill_s);
	double pause_s = fmin(owed_s(params, others), most_s - stage->paused_s);

	/* The last part goes at once: nobody holds the blocks that it is to find. */
	if (params->stage_grace_s <= 0 || next->action != STAGE_SEND_PIECE ||
	    pause_s < least_pause * params->stage_grace_s)
		return 0;
	stage->paused_s += pause_s;
	return pause_s;
}

void stage_correct(struct stage *stage, uint32_t prompt_tokens)
{
	stage->plan.prompt_tokens = prompt_tokens;
}
