/*
 * Where the parts of a request body lie: its members, and the ends of messages at which it can be
 * cut.
 *
 * For bodies that the scanner (scan.h) has read whole and found to be one JSON object: only their
 * structure is followed here. Staging copies members out by these places and never rewrites a
 * client's value.
 */
#ifndef TURNWARD_ROUTER_CHAT_MAP_H
#define TURNWARD_ROUTER_CHAT_MAP_H

#include "router/limits.h"

#include <stddef.h>
#include <stdint.h>

/* Members that staging must know. What is DROPPED asks for more or other output than one token.
 * X(ID, key) */
#define CHAT_MAP_KEYS(X)                                        \
	X(MODEL, "model")                                       \
	X(MESSAGES, "messages")                                 \
	X(INPUT, "input")                                       \
	X(PROMPT, "prompt")                                     \
	X(SYSTEM, "system")                                     \
	X(INSTRUCTIONS, "instructions")                         \
	X(TOOLS, "tools")                                       \
	X(TOOL_CHOICE, "tool_choice")                           \
	X(CHAT_TEMPLATE, "chat_template")                       \
	X(CHAT_TEMPLATE_KWARGS, "chat_template_kwargs")         \
	X(ADD_GENERATION_PROMPT, "add_generation_prompt")       \
	X(CONTINUE_FINAL_MESSAGE, "continue_final_message")     \
	X(ADD_SPECIAL_TOKENS, "add_special_tokens")             \
	X(DOCUMENTS, "documents")                               \
	X(REASONING_EFFORT, "reasoning_effort")                 \
	X(THINKING, "thinking")                                 \
	X(CACHE_SALT, "cache_salt")                             \
	X(EXTRA_KEY, "extra_key")                               \
	X(ROUTED_DP_RANK, "routed_dp_rank")                     \
	X(DATA_PARALLEL_RANK, "data_parallel_rank")             \
	X(PRIORITY, "priority")                                 \
	X(LORA_PATH, "lora_path")                               \
	X(PROMPT_LOGPROBS, "prompt_logprobs")                   \
	X(TOKENS, "tokens")         /* of an engine's answer */ \
	X(TOKEN_IDS, "token_ids")   /* the same */              \
	X(MAX_TOKENS, "max_tokens") /* from here on DROPPED */  \
	X(MAX_COMPLETION_TOKENS, "max_completion_tokens")       \
	X(MAX_OUTPUT_TOKENS, "max_output_tokens")               \
	X(MIN_TOKENS, "min_tokens")                             \
	X(STREAM, "stream")                                     \
	X(STREAM_OPTIONS, "stream_options")                     \
	X(STOP, "stop")                                         \
	X(STOP_SEQUENCES, "stop_sequences")                     \
	X(STOP_TOKEN_IDS, "stop_token_ids")                     \
	X(RESPONSE_FORMAT, "response_format")                   \
	X(STRUCTURED_OUTPUTS, "structured_outputs")             \
	X(TEXT, "text")                                         \
	X(GRAMMAR, "grammar")                                   \
	X(JSON_SCHEMA, "json_schema")                           \
	X(GUIDED_JSON, "guided_json")                           \
	X(GUIDED_REGEX, "guided_regex")                         \
	X(GUIDED_CHOICE, "guided_choice")                       \
	X(GUIDED_GRAMMAR, "guided_grammar")                     \
	X(N, "n")                                               \
	X(BEST_OF, "best_of")                                   \
	X(USE_BEAM_SEARCH, "use_beam_search")                   \
	X(LOGPROBS, "logprobs")                                 \
	X(TOP_LOGPROBS, "top_logprobs")                         \
	X(ECHO, "echo")                                         \
	X(SUFFIX, "suffix")                                     \
	X(STORE, "store")                                       \
	X(BACKGROUND, "background")                             \
	X(IGNORE_EOS, "ignore_eos")                             \
	X(N_PREDICT, "n_predict")                               \
	X(REQUEST_ID, "request_id")                             \
	X(RID, "rid")

enum chat_map_key {
	CHAT_MAP_OTHER, /* any other: kept as it is */
#define CHAT_MAP_ENUM(id, key) CHAT_MAP_##id,
	CHAT_MAP_KEYS(CHAT_MAP_ENUM)
#undef CHAT_MAP_ENUM
		CHAT_MAP_KEYS_NR,
	CHAT_MAP_DROPPED = CHAT_MAP_MAX_TOKENS,
};

/* Offsets into the body; end is behind the value's last byte. */
struct chat_map_member {
	uint32_t key; /* enum chat_map_key */
	uint32_t reserved;
	uint64_t at, value, end;
};

struct chat_map {
	uint64_t bytes; /* seen so far */
	struct chat_map_member member[LIMIT_BODY_MEMBERS];
	uint32_t members;
	/* Ends of messages behind which the list can end: a user's, or the last result of a tool.
	 */
	uint64_t cut[LIMIT_STAGE_CUTS];
	uint32_t cuts;
	uint32_t odd; /* a key with escapes, twice, or too many: nothing is to be made of this body
		       */

	/* the scan's own */
	uint32_t depth, in_list, stride, seen_cuts;
	uint8_t in_string, escape, capture, over, is_key, colon, item_colon, item_key, open,
		item_role;
	uint64_t last, candidate;
	uint32_t text_len;
	char text[32];
};

void chat_map_begin(struct chat_map *map);
void chat_map_step(struct chat_map *map, const void *bytes, size_t len);

/* The member of that key, or NULL. */
const struct chat_map_member *chat_map_find(const struct chat_map *map, enum chat_map_key key);

#endif
