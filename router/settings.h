/*
 * Every setting of turnward-router, in one table: the file, --set, the options, `turnward check
 * --dump` and the example file all come from it.
 *
 * Load into a fresh struct and swap: after an error the struct is not to be used.
 */
#ifndef TURNWARD_ROUTER_SETTINGS_H
#define TURNWARD_ROUTER_SETTINGS_H

#include "router/admit/admit.h"
#include "router/policy/params.h"
#include "router/stage/params.h"
#include "router/view/rules.h"
#include "shm/base/addr.h"
#include "shm/base/conf.h"
#include "shm/base/opt.h"
#include "shm/state.h"

#include <stdint.h>
#include <stdio.h>

enum {
	SETTINGS_PATH_MAX = 192,
	SETTINGS_LIST_MAX = 32, /* entries of a comma-separated list */
	SETTINGS_WORD_MAX = 64, /* bytes of one, with its closing zero */
	SETTINGS_SECRET_MAX = 192,
	SETTINGS_GIVEN_MAX = 96, /* --set, --engine and other settings on a command line */
};

enum settings_half_close { HALF_CLOSE_ABORT, HALF_CLOSE_CONTINUE };
enum settings_forwarded { FORWARDED_OFF, FORWARDED_APPEND, FORWARDED_TRUST };
/* `as-router`, then the router's own choices in their order (enum stage_mode). */
enum settings_stage { ENGINE_STAGE_AS_ROUTER, ENGINE_STAGE_OFF };

/* An engine as configured; `kind` is in the order of engine_kinds: auto, vllm, sglang, llamacpp. */
struct settings_engine {
	char name[ADDR_NAME_MAX + 8];
	char url[SETTINGS_PATH_MAX];
	double weight;
	uint64_t any_model;            /* takes any model name, whatever its list says */
	uint64_t kv_capacity;          /* tokens; 0 = as the agent says */
	uint64_t kind;                 /* enum engine_kind; 0 = find out */
	uint64_t stage;                /* enum settings_stage */
	uint64_t step_budget;          /* tokens; 0 = as the agent says, else the router's */
	char key[SETTINGS_SECRET_MAX]; /* "" = the router's engine_key */
	struct addr_engine at;         /* the URL, resolved */
};

struct settings_list {
	unsigned nr;
	char word[SETTINGS_LIST_MAX][SETTINGS_WORD_MAX];
};

struct router_settings {
	/* Where. */
	char listen[ADDR_TEXT_MAX], admin[ADDR_TEXT_MAX];
	char region[SETTINGS_PATH_MAX];
	uint64_t io;                         /* enum loop_kind */
	struct addr listen_addr, admin_addr; /* of the texts; admin_addr.len 0: in the region */

	/* What is let through. */
	char paths_text[SETTINGS_PATH_MAX], session_headers_text[SETTINGS_PATH_MAX];
	struct settings_list paths, session_headers; /* parsed; headers in lower case */
	int paths_all;
	char api_keys[SETTINGS_PATH_MAX];
	char engine_key[SETTINGS_SECRET_MAX];
	uint64_t debug_headers, on_half_close, retry_reused, stream_hint;
	uint64_t forwarded_for;      /* enum settings_forwarded */
	char via[SETTINGS_WORD_MAX]; /* our name in Via; "" = no Via */

	/* Bounds, in bytes and counts. */
	uint64_t max_body, body_memory, body_cut_through, body_ahead;
	uint64_t connections_max, ring_entries, receive_buffers, receive_buffer_size;
	uint64_t sessions, responses, prefix_blocks, decisions;
	uint64_t body_rate; /* bytes/s; 0 = any */

	/* Time limits, in nanoseconds. */
	uint64_t keepalive_comment; /* 0 = none */
	uint64_t connect_timeout, head_timeout, body_timeout, first_byte_timeout;
	uint64_t stream_idle_timeout, client_send_timeout, keepalive_timeout, engine_idle_timeout;
	uint64_t drain_timeout, models_period;
	uint64_t health_period; /* 0 = engines are not probed */
	uint64_t health_timeout, slow_start;

	struct view_rules view; /* beside the choice of an engine */

	/* Long prompts in pieces, and one cold prompt an engine. */
	struct stage_params stage;
	struct admit_params admit;
	uint64_t step_budget; /* of engines that do not tell theirs */

	uint64_t log_level, log_format;
	double time_scale;

	struct policy_params policy;

	/* Asked beside it and never obeyed: `policy` with shadow_policy and shadow_set in place. */
	char shadow_policy[SETTINGS_WORD_MAX], shadow_set[SETTINGS_PATH_MAX];
	int shadow_on;
	struct policy_params shadow;

	unsigned engines_nr;
	struct settings_engine engines[STATE_ENGINES_MAX];
};

/* Alphabetical within a section; ended by .name == NULL. */
extern const struct conf_key router_keys[];

/* What a command line said about settings, kept so that a reload can say it again. */
struct settings_given {
	const char *file; /* -c; NULL = no file is read */
	unsigned nr;
	struct {
		const char *key; /* NULL: `value` is KEY=VALUE; "": it is [NAME=]URL of an engine */
		const char *value;
	} item[SETTINGS_GIVEN_MAX];
};

/* Options that turnward-router and `turnward check` share; put the list into their tables. */
enum {
	SETTINGS_OPT_FILE = 900,
	SETTINGS_OPT_SET,
	SETTINGS_OPT_ENGINE,
	SETTINGS_OPT_LISTEN,
	SETTINGS_OPT_ADMIN,
	SETTINGS_OPT_REGION,
	SETTINGS_OPT_POLICY,
	SETTINGS_OPT_IO,
	SETTINGS_OPT_MAX_BODY,
};
/* clang-format off */
#define SETTINGS_OPTIONS \
	{ "config", "FILE", "read settings from FILE", SETTINGS_OPT_FILE, 'c', 0 }, \
	{ "set", "KEY=VALUE", "one setting, above the file's", SETTINGS_OPT_SET, 's', 0 }, \
	{ "engine", "[NAME=]URL", "an engine; once for each", SETTINGS_OPT_ENGINE, 'e', 0 }, \
	{ "listen", "A:P|unix:PATH", "where clients connect", SETTINGS_OPT_LISTEN, 'l', 0 }, \
	{ "admin", "A:P|unix:PATH", "where operators connect", SETTINGS_OPT_ADMIN, 0, 0 }, \
	{ "region", "DIR", "directory of the shared memory", SETTINGS_OPT_REGION, 0, 0 }, \
	{ "policy", "NAME", "how an engine is chosen", SETTINGS_OPT_POLICY, 0, 0 }, \
	{ "io", "KIND", "event loop: auto, uring or epoll", SETTINGS_OPT_IO, 0, 0 }, \
	{ "max-body", "SIZE", "largest request body", SETTINGS_OPT_MAX_BODY, 0, 0 }
/* clang-format on */

/* Notes one of the options above; -ENOENT for another id, -ENOSPC when there are too many. */
int settings_note(struct settings_given *given, int id, const char *value);

/*
 * Defaults, then the file, then what was given; engines are resolved and everything is checked. On
 * failure conf->error says what, where and what would be right: -EINVAL for the file, -EDOM for the
 * command line (exit 2), else -errno of reading the file.
 */
int settings_load(struct router_settings *ret_settings, struct conf *conf,
		  const struct settings_given *given);

/* Brings times and rates of the engines' world to time_scale; once, after loading. */
void settings_scale(struct router_settings *settings);

/* The first key without CONF_RELOAD that differs, or NULL: it would need a restart. */
const char *settings_needs_restart(const struct router_settings *now,
				   const struct router_settings *wanted);

/* Each key with its value and origin ("# default", "# FILE:LINE", "# option"); secrets starred. */
void settings_dump(const struct router_settings *settings, const struct conf *conf,
		   const char *file, FILE *out);

/* Each key and value, a line each, secrets starred: what the region says is in force. */
void settings_values(const struct router_settings *settings, FILE *out);

/* What router/etc/turnward.conf holds. */
int settings_write_example(int fd);

#endif
