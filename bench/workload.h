/*
 * What is asked of the engines in replay: requests in sessions, every prompt known token by token
 * before the first is sent, so that each arm of a comparison plays the very same requests.
 *
 * A prompt is a list of segments; a segment's tokens follow from its key and place alone. A turn
 * repeats the segments of the turn before, that turn's answer included, and adds its own: equal
 * segments are equal tokens, which is all that a prefix cache looks at.
 */
#ifndef TURNWARD_BENCH_WORKLOAD_H
#define TURNWARD_BENCH_WORKLOAD_H

#include <stddef.h>
#include <stdint.h>

enum { WORKLOAD_WHY_MAX = 200 };

struct model_profile;

/* `tokens` tokens from place `at` on of the endless text that `key` stands for. */
struct workload_segment {
	uint64_t key;
	uint32_t at, tokens;
};

struct workload_turn {
	double at_s;            /* open loop: when it is sent; < 0 = closed loop, */
	double think_s;         /* this long after the answer before; of a first turn: 0 */
	uint32_t session, turn; /* turn counts from 1 */
	uint32_t prompt_tokens, output_tokens;
	uint32_t segment, segments; /* of the prompt, in the workload's list */
	struct workload_segment answer;
	uint32_t reserved;         /* 0 */
	uint32_t ideal_hit_tokens; /* what an endless cache, never missed, would hold of it */
};

struct workload_session {
	double start_s;       /* closed loop: its first turn */
	uint32_t turn, turns; /* closed loop: where its turns stand; open loop: turns only */
};

struct workload {
	struct workload_session *session;
	struct workload_turn *turn;
	struct workload_segment *segment;
	size_t sessions, turns, segments;
	size_t sessions_room, turns_room, segments_room;
};

/*
 * The design document's mix as a generator. X(name, default, meaning): lengths in tokens, times in
 * seconds; means are of exponential distributions on top of the least value where there is one.
 */
#define WORKLOAD_MIX(X)                                                                     \
	X(requests, 850, "requests in all")                                                 \
	X(rate, 0.8, "new sessions a second: the baseline then has the document's figures") \
	X(heavy_share, 0.37, "of the sessions, agentic ones with a long first prompt")      \
	X(medium_share, 0.54, "of the sessions, prompts of some thousand tokens")           \
	X(heavy_first_min, 18000, "shortest first prompt of a heavy session")               \
	X(heavy_first_mean, 22000, "mean of what comes on top")                             \
	X(heavy_first_max, 90000, "longest first prompt")                                   \
	X(medium_first_min, 3000, "shortest first prompt of a medium session")              \
	X(medium_first_spread, 6000, "most that comes on top, uniform")                     \
	X(small_first_min, 300, "shortest first prompt of a small session")                 \
	X(small_first_spread, 1200, "most that comes on top, uniform")                      \
	X(heavy_turns, 4, "mean turns of a heavy session, geometric")                       \
	X(medium_turns, 1.5, "the same of a medium one")                                    \
	X(small_turns, 2, "the same of a small one")                                        \
	X(heavy_new_min, 50, "fewest new tokens of a heavy session's turn")                 \
	X(heavy_new_mean, 1050, "mean of what comes on top")                                \
	X(light_new_min, 20, "the same for the other sessions")                             \
	X(light_new_mean, 300, "")                                                          \
	X(output_min, 20, "shortest answer")                                                \
	X(output_mean, 180, "mean of what comes on top")                                    \
	X(think, 8, "mean pause between an answer and the next turn")                       \
	X(context_max, 120000, "a session ends before a turn that exceeds it with its answer")

/* What differs in the mix of long agentic sessions: contexts that grow past what few of them leave
 * room for in KV memory, answers that hold it for minutes. X(name, value) */
#define WORKLOAD_LONG(X)           \
	X(requests, 600)           \
	X(rate, 0.07)              \
	X(heavy_share, 0.85)       \
	X(medium_share, 0.1)       \
	X(heavy_first_min, 20000)  \
	X(heavy_first_mean, 15000) \
	X(heavy_first_max, 60000)  \
	X(heavy_turns, 16)         \
	X(heavy_new_min, 300)      \
	X(heavy_new_mean, 2500)    \
	X(output_min, 300)         \
	X(output_mean, 1500)       \
	X(think, 10)               \
	X(context_max, 125000)

struct workload_mix {
#define WORKLOAD_MIX_MEMBER(name, standard, meaning) double name;
	WORKLOAD_MIX(WORKLOAD_MIX_MEMBER)
#undef WORKLOAD_MIX_MEMBER
};

/* Forms of files. X(ID, name, meaning) */
#define WORKLOAD_FORMS(X)                                                                       \
	X(SESSIONS, "sessions", "traces/README.md: sessions with pauses; one JSON object each") \
	X(MOONCAKE, "mooncake",                                                                 \
	  "JSON lines: timestamp in ms, input_length, output_length, "                          \
	  "hash_ids; or these four as a list, ids also as ranges")                              \
	X(QWEN, "qwen",                                                                         \
	  "Qwen-Bailian's JSON lines: chat_id, parent_chat_id, timestamp in s, "                \
	  "input_length, output_length, type, turn, hash_ids")                                  \
	X(AZURE, "azure", "CSV: TIMESTAMP,ContextTokens,GeneratedTokens; also seconds")
enum workload_form {
#define WORKLOAD_FORM_ENUM(id, name, meaning) WORKLOAD_FORM_##id,
	WORKLOAD_FORMS(WORKLOAD_FORM_ENUM)
#undef WORKLOAD_FORM_ENUM
		WORKLOAD_FORMS_NR
};
extern const char *const workload_form_names[];

/*
 * When turns come. CLOSED: a pause after the answer before; where a trace has arrivals alone, the
 * pause is what passed between them, at most think_max_s (so the answer's time is in it), or
 * drawn with the mean think_s. OPEN: at times that do not depend on the engines: the recorded
 * ones, or those at which an idle engine would have made a closed loop's turns come.
 */
enum workload_loop { WORKLOAD_AS_RECORDED, WORKLOAD_CLOSED, WORKLOAD_OPEN };

/* What of a workload is played, and how. */
struct workload_pick {
	uint64_t seed;
	double rate;     /* new sessions a second; open loop of a file of arrivals: requests a
			    second; 0 = as recorded */
	size_t requests; /* 0 = all */
	size_t sessions; /* 0 = all */
	uint32_t turns_max, first_prompt_max, context_max;
	double think_max_s;
	double think_s; /* >= 0: pauses of a closed loop are drawn anew, with this mean */
	uint32_t block; /* tokens of a hash block: 0 = the form's (mooncake 512, qwen 16) */
	enum workload_loop loop;
	const struct model_profile *idle; /* of OPEN's idle engine; NULL = the first */
};

void workload_mix_init(struct workload_mix *ret_mix);
void workload_mix_long(struct workload_mix *ret_mix);
void workload_pick_init(struct workload_pick *ret_pick);

/*
 * Each makes a workload from nothing: 0, -ENOMEM, -EINVAL with `why` (a broken line's number),
 * -E2BIG with `why`, -errno of the file. On failure, too, workload_free() is due. Of `pick` a
 * generated mix follows seed, sessions and loop.
 */
int workload_generate(struct workload *ret, const struct workload_mix *mix,
		      const struct workload_pick *pick);
int workload_design(struct workload *ret, const struct workload_mix *mix, uint64_t seed);
int workload_read(struct workload *ret, const char *path, enum workload_form form,
		  const struct workload_pick *pick, char why[WORKLOAD_WHY_MAX]);
/* The form that the file's first line has. */
int workload_form_of(const char *path, enum workload_form *ret_form, char why[WORKLOAD_WHY_MAX]);
void workload_free(struct workload *w);

/* The tokens of a turn's prompt (room for prompt_tokens), or of one segment. */
void workload_prompt(const struct workload *w, const struct workload_turn *turn, uint32_t *ret_ids);
void workload_ids(const struct workload_segment *segment, uint32_t *ret_ids);

/* For those who make workloads: append, and at the end work out ideal_hit_tokens. */
int workload_add_session(struct workload *w, double start_s);
int workload_add_turn(struct workload *w, const struct workload_turn *turn);
int workload_add_segment(struct workload *w, struct workload_segment segment);
/* Opens a turn's segments with the first `tokens` tokens of another turn's prompt. */
int workload_repeat(struct workload *w, const struct workload_turn *before, uint32_t tokens);
int workload_finish(struct workload *w);

/* A generator of random numbers whose state is one word, the same everywhere. */
uint64_t workload_random(uint64_t *state);
double workload_uniform(uint64_t *state);                  /* [0, 1) */
double workload_exponential(uint64_t *state, double mean); /* > 0 */
uint64_t workload_key(uint64_t a, uint64_t b);

#endif
