/* Staging's parameters by name, default and meaning: configuration, help and the bench use it. */
#ifndef TURNWARD_ROUTER_STAGE_PARAMS_H
#define TURNWARD_ROUTER_STAGE_PARAMS_H

#include <assert.h>
#include <stdint.h>

/* How short turns get past a cold prompt inside an engine. X(ID, name, meaning) */
#define STAGE_MODES(X)                                                                         \
	X(OFF, "off", "a prompt goes in one request, whatever waits behind it")                \
	X(PIECES, "pieces", "as growing prefixes, the client's request unchanged at last")     \
	X(REQUEUE, "requeue", "whole; taken back when others wait behind it, then sent again") \
	X(BOTH, "both", "as pieces where the body can be cut, by requeue where it cannot")
#define STAGE_MODE_ENUM(id, name, meaning) STAGE_##id,
enum stage_mode { STAGE_MODES(STAGE_MODE_ENUM) STAGE_MODES_NR };
#undef STAGE_MODE_ENUM

/* Parameters that are a word. X(name, list of names, default as text, meaning) */
#define STAGE_CHOICE_PARAMS(X) \
	X(stage, stage_mode_names, "off", "how a long uncached prompt lets short turns through")

/*
 * Times are divided by X where all engines run X times faster than life. X(name, default, min, max,
 * enum stage_unit, unit, meaning)
 */
enum stage_unit { STAGE_PLAIN, STAGE_TIME };
#define STAGE_REAL_PARAMS(X)                                                                     \
	X(piece_tokens, 0, 0, 1e6, STAGE_PLAIN, "tokens",                                        \
	  "new tokens of a piece; 0 = just under one step of the engine")                        \
	X(stage_last, 1.25, 1, 10, STAGE_PLAIN, "pieces",                                        \
	  "a prompt with no more than this uncached goes whole; so does the last part")          \
	X(stage_grace_s, 0, 0, 100, STAGE_TIME, "s",                                             \
	  "who waited for a piece answers this long before the next one; 0 = no pause")          \
	X(stage_grace_most_s, 1.5, 0, 100, STAGE_TIME, "s", "of pauses, for one prompt in all")  \
	X(stage_force, 0, 0, 1, STAGE_PLAIN, "0 or 1",                                           \
	  "1: pieces go on though nothing shows whether they hit, and after they missed")        \
	X(stage_alone, 0.1, 0, 100, STAGE_PLAIN, "requests",                                     \
	  "a prompt goes whole to an idle engine where fewer are expected while it computes")    \
	X(stage_block_max, 512, 1, 1e6, STAGE_PLAIN, "tokens",                                   \
	  "engines whose cache blocks are coarser get no pieces")                                \
	X(stage_guard_ratio, 0.9, 0, 1, STAGE_PLAIN, "ratio",                                    \
	  "a second piece that finds less than this of the first cached has missed")             \
	X(stage_guard_off_s, 600, 0, 1e6, STAGE_TIME, "s", "staging then stays off this long")   \
	X(requeue_run_s, 0.4, 0, 100, STAGE_TIME, "s",                                           \
	  "a cold prompt is not taken back sooner than this after it was sent")                  \
	X(requeue_sends, 8, 1, 1000, STAGE_PLAIN, "sends", "of one request at most")             \
	X(requeue_gap_s, 0, 0, 100, STAGE_TIME, "s", "least time between two on one engine")     \
	X(requeue_rest, 1, 0, 100, STAGE_PLAIN, "steps",                                         \
	  "a prompt that will have less left after the step under way is left alone")            \
	X(requeue_patience, 2, 0, 100, STAGE_PLAIN, "steps",                                     \
	  "it is sent again after this long at the latest")                                      \
	X(requeue_kept_ratio, 0.8, 0, 1, STAGE_PLAIN, "ratio",                                   \
	  "an engine that keeps less of what it had computed, twice running, gets no more")      \
	X(rescue_overdue_s, 6, 0, 1e6, STAGE_TIME, "s",                                          \
	  "past its step's predicted end an engine is left by who waits for a first token; 0 = " \
	  "never")

struct stage_params {
#define STAGE_CHOICE_MEMBER(name, names, standard, meaning) uint64_t name;
	STAGE_CHOICE_PARAMS(STAGE_CHOICE_MEMBER)
#undef STAGE_CHOICE_MEMBER
#define STAGE_REAL_MEMBER(name, standard, min, max, kind, unit, meaning) double name;
	STAGE_REAL_PARAMS(STAGE_REAL_MEMBER)
#undef STAGE_REAL_MEMBER
};
static_assert(sizeof(struct stage_params) % 8 == 0, "records hold words");

extern const char *const stage_mode_names[]; /* in the order of the enum, NULL at the end */

void stage_params_init(struct stage_params *ret_params);
void stage_params_scale(struct stage_params *params, double speed);

#endif
