/* The table of the router's keys, and what must hold between them. */
#include "router/settings.h"

#include "router/policy/policy.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const char *const io_kinds[] = { "auto", "uring", "epoll", NULL };
static const char *const half_closes[] = { "abort", "continue", NULL };
static const char *const forwarded[] = { "off", "append", "trust", NULL };
static const char *const log_levels[] = { "error", "warn", "info", "debug", "trace", NULL };
static const char *const log_formats[] = { "json", "text", NULL };
#define STAGE_NAME(id, name, meaning) name,
static const char *const engine_stages[] = { "as-router", STAGE_MODES(STAGE_NAME) NULL };
static const char *const engine_kinds[] = { "auto", "vllm", "sglang", "llamacpp", NULL };

#define AT(member) \
	offsetof(struct router_settings, member), sizeof(((struct router_settings *)0)->member)
#define IN(member) \
	offsetof(struct settings_engine, member), sizeof(((struct settings_engine *)0)->member)

enum { R = CONF_RELOAD, F = CONF_RELOAD | CONF_FASTER, N = CONF_NAMED | CONF_RELOAD };

/* The policy's own lists give its keys. Values with a default written as 10e9 keep that text. */
#define CHOICE(key, names, standard, meaning) \
	{ "policy", #key, CONF_CHOICE, AT(policy.key), standard, 0, 0, names, R, meaning },
/* clang-format off */
#define REAL(key, standard, min, max, unit_kind, unit, meaning) \
	{ "policy", #key, CONF_REAL, AT(policy.key), #standard, min, max, NULL, \
	  (unsigned)R | (unit_kind == POLICY_TIME ? CONF_FASTER : \
			 unit_kind == POLICY_RATE ? CONF_PER_S : 0u), \
	  meaning " [" unit "]" },
/* clang-format on */

#define SESSION_HEADERS                                                                     \
	"x-claude-code-session-id, session-id, session_id, conversation_id, x-session-id, " \
	"x-session-affinity, x-conversation-id"

/* clang-format off */
const struct conf_key router_keys[] = {
	{ "router", "admin", CONF_TEXT, AT(admin), "", 0, 0, NULL, 0,
	  "where operators connect; empty is unix:REGION/admin.sock; over TCP loopback only" },
	{ "router", "api_keys", CONF_TEXT, AT(api_keys), "", 0, 0, NULL, R,
	  "file with one client key a line; empty lets Authorization pass untouched" },
	{ "router", "body_ahead", CONF_BYTES, AT(body_ahead), "0", 0, 1 << 30, NULL, R,
	  "a body this long is sent, while it arrives, to the engine that it will probably get; "
	  "0 is none" },
	{ "router", "body_cut_through", CONF_BYTES, AT(body_cut_through), "4M", 65536,
	  1 << 30, NULL, R,
	  "a longer body is decided on what was scanned so far, and sent while it arrives" },
	{ "router", "body_memory", CONF_BYTES, AT(body_memory), "1G", 1 << 20, 1ll << 40, NULL, 0,
	  "for all request bodies together" },
	{ "router", "body_rate", CONF_UINT, AT(body_rate), "500", 0, 1e9, NULL, R,
	  "mean bytes/s that a body must keep once body_timeout is over; 0 is any" },
	{ "router", "body_timeout", CONF_TIME, AT(body_timeout), "60s", 0.001, 86400, NULL, R,
	  "longest pause of a client within its body" },
	{ "router", "client_send_timeout", CONF_TIME, AT(client_send_timeout), "60s", 0.001, 86400,
	  NULL, R, "longest time in which a client takes nothing of its answer" },
	{ "router", "connect_timeout", CONF_TIME, AT(connect_timeout), "1s", 0.001, 3600, NULL, R,
	  "to connect to an engine" },
	{ "router", "connections_max", CONF_UINT, AT(connections_max), "10000", 1, 1e6, NULL, 0,
	  "client connections at once; each may need a second descriptor" },
	{ "router", "debug_headers", CONF_BOOL, AT(debug_headers), "no", 0, 0, NULL, R,
	  "tell clients engine, reason and predicted time in x-turnward-... headers" },
	{ "router", "decisions", CONF_UINT, AT(decisions), "4096", 64, 1 << 20, NULL, 0,
	  "records in the journal that explain and record read" },
	{ "router", "drain_timeout", CONF_TIME, AT(drain_timeout), "300s", 0, 86400, NULL, R,
	  "for streams to end after SIGTERM or an upgrade" },
	{ "router", "engine_idle_timeout", CONF_TIME, AT(engine_idle_timeout), "3s", 0, 3600, NULL,
	  R, "an idle connection to an engine is closed after this; below the engine's own limit" },
	{ "router", "engine_key", CONF_TEXT, AT(engine_key), "", 0, 0, NULL, R | CONF_SECRET,
	  "bearer key that engines want from us; with api_keys it replaces the client's" },
	{ "router", "first_byte_timeout", CONF_TIME, AT(first_byte_timeout), "600s", 0.001, 86400,
	  NULL, F, "from dispatch to the engine's first byte, and on to a stream's first token" },
	{ "router", "forwarded_for", CONF_CHOICE, AT(forwarded_for), "off", 0, 0, forwarded, R,
	  "x-forwarded-for: as it came, with the client's address behind it, or that only where "
	  "no proxy in front has written one" },
	{ "router", "head_timeout", CONF_TIME, AT(head_timeout), "10s", 0.001, 3600, NULL, R,
	  "from a request's first byte to the end of its head" },
	{ "router", "health_period", CONF_TIME, AT(health_period), "5s", 0, 3600, NULL, R,
	  "between GET /health to engines without an agent; 0 is none" },
	{ "router", "health_timeout", CONF_TIME, AT(health_timeout), "2s", 0.001, 3600, NULL, R,
	  "for an engine's answer to that, and to the question for its models" },
	{ "router", "io", CONF_CHOICE, AT(io), "auto", 0, 0, io_kinds, 0, "event loop" },
	{ "router", "keepalive_comment", CONF_TIME, AT(keepalive_comment), "0", 0, 86400, NULL, R,
	  "an SSE comment for clients whose stream has been silent this long; 0 is none" },
	{ "router", "keepalive_timeout", CONF_TIME, AT(keepalive_timeout), "75s", 0, 86400, NULL, R,
	  "an idle client connection is closed after this" },
	{ "router", "listen", CONF_TEXT, AT(listen), "127.0.0.1:8080", 0, 0, NULL, 0,
	  "where clients connect: ADDRESS:PORT, :PORT (all of IPv4), [::]:PORT or unix:PATH" },
	{ "router", "log_format", CONF_CHOICE, AT(log_format), "json", 0, 0, log_formats, R,
	  "of lines on stderr" },
	{ "router", "log_level", CONF_CHOICE, AT(log_level), "info", 0, 0, log_levels, R,
	  "lines above it are left out" },
	{ "router", "max_body", CONF_BYTES, AT(max_body), "64M", 1024, 1ll << 32, NULL, R,
	  "longest request body; beyond, 413" },
	{ "router", "models_period", CONF_TIME, AT(models_period), "30s", 0.1, 86400, NULL, R,
	  "between readings of an engine's model list" },
	{ "router", "on_half_close", CONF_CHOICE, AT(on_half_close), "abort", 0, 0, half_closes, R,
	  "when a client closes its sending side before the answer" },
	{ "router", "paths", CONF_TEXT, AT(paths_text), "", 0, 0, NULL, R,
	  "further path prefixes to forward, comma-separated; all opens every path" },
	{ "router", "prefix_blocks", CONF_UINT, AT(prefix_blocks), "65536", 1024, 262144, NULL, 0,
	  "room for content blocks per engine in the prefix index" },
	{ "router", "receive_buffer_size", CONF_BYTES, AT(receive_buffer_size), "16K", 1024, 65536,
	  NULL, 0, "of one buffer" },
	{ "router", "receive_buffers", CONF_UINT, AT(receive_buffers), "1024", 16, 32768, NULL, 0,
	  "buffers of the event loop, a power of two" },
	{ "router", "region", CONF_TEXT, AT(region), "", 0, 0, NULL, 0,
	  "directory of the shared memory; empty looks for /run/turnward and its kin" },
	{ "router", "responses", CONF_UINT, AT(responses), "65536", 64, 1 << 24, NULL, 0,
	  "response ids whose engine is remembered" },
	{ "router", "retry_reused", CONF_BOOL, AT(retry_reused), "yes", 0, 0, NULL, R,
	  "send once more when a kept connection closed before any byte of the answer" },
	{ "router", "ring_entries", CONF_UINT, AT(ring_entries), "4096", 256, 32768, NULL, 0,
	  "of io_uring's submission queue, a power of two" },
	{ "router", "session_headers", CONF_TEXT, AT(session_headers_text), SESSION_HEADERS, 0, 0,
	  NULL, R, "headers that name a session, comma-separated, the first present counts" },
	{ "router", "sessions", CONF_UINT, AT(sessions), "65536", 64, 1 << 24, NULL, 0,
	  "sessions whose home and length are remembered" },
	{ "router", "slow_start", CONF_TIME, AT(slow_start), "10s", 0, 3600, NULL, F,
	  "an engine that came back is charged a fifth of this per request in it, fading over it" },
	{ "router", "stream_hint", CONF_BOOL, AT(stream_hint), "yes", 0, 0, NULL, R,
	  "mark streamed requests to engines with x-turnward-stream: 1, for turnward-probe" },
	{ "router", "stream_idle_timeout", CONF_TIME, AT(stream_idle_timeout), "60s", 0.001, 86400,
	  NULL, F, "longest pause within an engine's answer once it has begun" },
	{ "router", "time_scale", CONF_REAL, AT(time_scale), "1", 0.001, 1000, NULL, R,
	  "for engines this much faster than life: divides their times, multiplies their rates" },
	{ "router", "via", CONF_TEXT, AT(via), "", 0, 0, NULL, R,
	  "our name in the Via field of requests and answers; empty adds none" },

	{ "policy", "migration_burst", CONF_REAL, AT(view.migration_burst), "8", 0, 1e6, NULL, R,
	  "moves that the pool may make at once" },
	{ "policy", "migration_rate", CONF_REAL, AT(view.migration_rate), "1", 0, 1e6, NULL,
	  R | CONF_PER_S, "moves that the pool may make in the long run [1/s]" },
	{ "policy", "shadow_policy", CONF_TEXT, AT(shadow_policy), "", 0, 0, NULL, R,
	  "a second policy, asked on the same inputs and never obeyed; empty asks none" },
	{ "policy", "shadow_set", CONF_TEXT, AT(shadow_set), "", 0, 0, NULL, R,
	  "KEY=VALUE, KEY=VALUE: what else is different for it, of the policy's keys" },
	{ "policy", "ttft_quantile", CONF_REAL, AT(view.ttft_quantile), "0.9", 0.01, 1, NULL, R,
	  "of recent first tokens, as the policy sees them" },
	{ "policy", "ttft_window", CONF_TIME, AT(view.ttft_window), "30s", 0.001, 3600, NULL, F,
	  "how far recent first tokens reach back" },
	POLICY_CHOICE_PARAMS(CHOICE)
	POLICY_REAL_PARAMS(REAL)

	{ "stage", "cold_slots", CONF_REAL, AT(admit.cold_slots), "1", 0, 64, NULL, R,
	  "cold prompts that an engine with staging takes at a time, others wait here; 0 is any "
	  "number" },
	{ "stage", "cold_tokens", CONF_REAL, AT(admit.cold_tokens), "8192", 1, 1e9, NULL, R,
	  "a request with this much uncached or more on its engine is cold" },
	{ "stage", "piece_tokens", CONF_REAL, AT(stage.piece_tokens), "0", 0, 1e6, NULL, R,
	  "new tokens of a piece; 0 is just under one step of the engine" },
	{ "stage", "queue_handicap", CONF_REAL, AT(admit.queue_handicap_s), "5", 0, 1e6, NULL, F,
	  "a class goes before the next heavier one's requests that came up to this earlier [s]" },
	{ "stage", "requeue_gap", CONF_REAL, AT(stage.requeue_gap_s), "0", 0, 100, NULL, F,
	  "least time between two prompts that are taken back from one engine [s]" },
	{ "stage", "requeue_kept_ratio", CONF_REAL, AT(stage.requeue_kept_ratio), "0.8", 0, 1, NULL,
	  R, "an engine that keeps less of what it had computed, twice running, gets no more" },
	{ "stage", "requeue_patience", CONF_REAL, AT(stage.requeue_patience), "2", 0, 100, NULL, R,
	  "a prompt taken back is sent again after so many steps at the latest" },
	{ "stage", "requeue_rest", CONF_REAL, AT(stage.requeue_rest), "1", 0, 100, NULL, R,
	  "one of which fewer steps will be left after that under way is left alone" },
	{ "stage", "requeue_run", CONF_REAL, AT(stage.requeue_run_s), "0.4", 0, 100, NULL, F,
	  "one is not taken back sooner than this after it was sent [s]" },
	{ "stage", "requeue_sends", CONF_REAL, AT(stage.requeue_sends), "8", 1, 1000, NULL, R,
	  "of one prompt at most" },
	{ "stage", "rescue_overdue", CONF_REAL, AT(stage.rescue_overdue_s), "6", 0, 1e6, NULL, F,
	  "an engine that shows nothing so long past its step's predicted end is left by who "
	  "waits for a first token [s]; 0 is never" },
	{ "stage", "stage", CONF_CHOICE, AT(stage.stage), "off", 0, 0, engine_stages + 1, R,
	  "how long uncached prompts let short turns through: off, pieces (growing prefixes, the "
	  "client's request unchanged at last), requeue (whole; vLLM: taken back while others "
	  "wait), both (requeue where pieces cannot)" },
	{ "stage", "stage_alone", CONF_REAL, AT(stage.stage_alone), "0.1", 0, 100, NULL, R,
	  "a prompt goes whole to an idle engine where fewer requests are expected meanwhile" },
	{ "stage", "stage_block_max", CONF_REAL, AT(stage.stage_block_max), "512", 1, 1e6, NULL, R,
	  "engines whose cache blocks are coarser get no pieces [tokens]" },
	{ "stage", "stage_force", CONF_REAL, AT(stage.stage_force), "0", 0, 1, NULL, R,
	  "1: pieces go on though nothing shows whether they hit, and after they missed" },
	{ "stage", "stage_grace", CONF_REAL, AT(stage.stage_grace_s), "0", 0, 100, NULL, F,
	  "who waited for a piece answers this long before the next one; 0 = no pause [s]" },
	{ "stage", "stage_grace_most", CONF_REAL, AT(stage.stage_grace_most_s), "1.5", 0, 100, NULL,
	  F, "of such pauses, for one prompt in all [s]" },
	{ "stage", "stage_guard_off", CONF_REAL, AT(stage.stage_guard_off_s), "600", 0, 1e6, NULL,
	  F, "staging stays off this long for a model and shape whose pieces miss [s]" },
	{ "stage", "stage_guard_ratio", CONF_REAL, AT(stage.stage_guard_ratio), "0.9", 0, 1, NULL,
	  R, "a second piece that finds less than this of the first cached has missed" },
	{ "stage", "stage_last", CONF_REAL, AT(stage.stage_last), "1.25", 1, 10, NULL, R,
	  "a prompt with no more pieces than this uncached goes whole; so does the last part" },
	{ "stage", "step_budget", CONF_UINT, AT(step_budget), "8192", 64, 1e6, NULL, R,
	  "tokens of one step of engines that do not tell theirs" },

	{ "engine", "any_model", CONF_BOOL, IN(any_model), "no", 0, 0, NULL, N,
	  "takes every model name, whatever its list says" },
	{ "engine", "key", CONF_TEXT, IN(key), "", 0, 0, NULL, N | CONF_SECRET,
	  "bearer key of this engine; empty is engine_key" },
	{ "engine", "kind", CONF_CHOICE, IN(kind), "auto", 0, 0, engine_kinds, N,
	  "server software" },
	{ "engine", "kv_capacity", CONF_UINT, IN(kv_capacity), "0", 0, 1e9, NULL, N,
	  "tokens of its KV cache; 0 is what its agent says" },
	{ "engine", "stage", CONF_CHOICE, IN(stage), "as-router", 0, 0, engine_stages, N,
	  "how its long uncached prompts let short turns through" },
	{ "engine", "step_budget", CONF_UINT, IN(step_budget), "0", 0, 1e6, NULL, N,
	  "most tokens of one of its steps; 0 is what its agent says, else [stage] step_budget" },
	{ "engine", "url", CONF_TEXT, IN(url), "", 0, 0, NULL, N,
	  "http://HOST:PORT or unix:PATH" },
	{ "engine", "weight", CONF_REAL, IN(weight), "1", 0, 100, NULL, N,
	  "share of the load; 0 takes work only if nothing else can" },
	{ 0 }
};
/* clang-format on */

static_assert(sizeof(((struct settings_engine *)0)->name) ==
		      sizeof(((struct addr_engine *)0)->name),
	      "copied whole");
static_assert(sizeof(router_keys) / sizeof(*router_keys) <= CONF_KEYS_MAX,
	      "origins are kept for all");

/* ---- the command line ---- */

int settings_note(struct settings_given *given, int id, const char *value)
{
	static const char *const keys[] = {
		[SETTINGS_OPT_LISTEN - SETTINGS_OPT_FILE] = "listen",
		[SETTINGS_OPT_ADMIN - SETTINGS_OPT_FILE] = "admin",
		[SETTINGS_OPT_REGION - SETTINGS_OPT_FILE] = "region",
		[SETTINGS_OPT_POLICY - SETTINGS_OPT_FILE] = "policy",
		[SETTINGS_OPT_IO - SETTINGS_OPT_FILE] = "io",
		[SETTINGS_OPT_MAX_BODY - SETTINGS_OPT_FILE] = "max_body",
		[SETTINGS_OPT_ENGINE - SETTINGS_OPT_FILE] = "",
	};

	if (id < SETTINGS_OPT_FILE || id > SETTINGS_OPT_MAX_BODY)
		return -ENOENT;
	if (id == SETTINGS_OPT_FILE) {
		given->file = value;
		return 0;
	}
	if (given->nr == SETTINGS_GIVEN_MAX)
		return -ENOSPC;
	given->item[given->nr].key = keys[id - SETTINGS_OPT_FILE];
	given->item[given->nr++].value = value;
	return 0;
}

/* ---- loading ---- */

struct loading {
	struct router_settings *settings;
	struct conf *conf;
	char why[CONF_ERROR_MAX];
};

static int complain(struct conf *conf, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(conf->error, sizeof(conf->error), format, args);
	va_end(args);
	return -EINVAL;
}

static struct settings_engine *engine_named(struct router_settings *settings, const char *name)
{
	for (unsigned i = 0; i < settings->engines_nr; i++)
		if (!strcmp(settings->engines[i].name, name))
			return &settings->engines[i];
	return NULL;
}

static struct settings_engine *engine_new(struct router_settings *settings, const char *name)
{
	struct settings_engine *engine;

	if (settings->engines_nr == STATE_ENGINES_MAX)
		return NULL;
	engine = &settings->engines[settings->engines_nr++];
	conf_entry_init(router_keys, "engine", engine);
	snprintf(engine->name, sizeof(engine->name), "%s", name);
	return engine;
}

/* [engine NAME] and its keys. */
static int on_engine(void *ctx, const char *section, const char *title, const struct conf_key *key,
		     const char *value, const char **why)
{
	struct loading *loading = ctx;
	struct router_settings *settings = loading->settings;

	*why = loading->why;
	if (key)
		return conf_value(key, &settings->engines[settings->engines_nr - 1], value,
				  loading->why, sizeof(loading->why));
	if (!addr_engine_name_valid(title)) {
		*why = "a name has letters, digits and . _ -, at most 32, the first a letter or "
		       "digit";
		return -EINVAL;
	}
	if (engine_named(settings, title)) {
		*why = "this engine has a section already";
		return -EINVAL;
	}
	if (!engine_new(settings, title)) {
		snprintf(loading->why, sizeof(loading->why), "more than %d engines",
			 STATE_ENGINES_MAX);
		return -EINVAL;
	}
	return 0;
}

/* --engine [NAME=]URL: another URL for the engine of that name, or one more. */
static int give_engine(struct router_settings *settings, struct conf *conf, const char *text)
{
	struct addr_engine at;
	struct settings_engine *engine;
	char why[ADDR_WHY_MAX];

	if (addr_engine_parse(&at, text, why))
		return complain(conf, "--engine %.150s: %s", text, why);
	engine = engine_named(settings, at.name);
	if (!engine)
		engine = engine_new(settings, at.name);
	if (!engine)
		return complain(conf, "--engine %.150s: more than %d engines", text,
				STATE_ENGINES_MAX);
	if (strlen(at.url) >= sizeof(engine->url))
		return complain(conf, "--engine %.150s: the URL is too long", text);
	snprintf(engine->url, sizeof(engine->url), "%s", at.url);
	return 0;
}

static int apply_given(struct router_settings *settings, struct conf *conf,
		       const struct settings_given *given)
{
	int err = 0;

	for (unsigned i = 0; i < given->nr && !err; i++) {
		const char *key = given->item[i].key, *value = given->item[i].value;

		if (!key)
			err = conf_set(conf, settings, value);
		else if (!*key)
			err = give_engine(settings, conf, value);
		else
			err = conf_set_key(conf, settings, key, value);
	}
	return err ? -EDOM : 0;
}

/* ---- what must hold between keys ---- */

/* Splits at commas and spaces; `good` judges a word. */
static int split_list(struct conf *conf, const char *key, const char *text,
		      struct settings_list *ret_list, int (*good)(const char *word),
		      const char *what)
{
	ret_list->nr = 0;
	for (text += strspn(text, ", "); *text; text += strspn(text, ", ")) {
		size_t len = strcspn(text, ", ");
		char *word = ret_list->word[ret_list->nr];

		if (ret_list->nr == SETTINGS_LIST_MAX)
			return complain(conf, "%s: more than %d entries", key, SETTINGS_LIST_MAX);
		if (len >= SETTINGS_WORD_MAX)
			return complain(conf, "%s: '%.*s' is longer than %d", key, (int)len, text,
					SETTINGS_WORD_MAX - 1);
		memcpy(word, text, len);
		word[len] = '\0';
		if (!good(word))
			return complain(conf, "%s: '%s' is no %s", key, word, what);
		ret_list->nr++;
		text += len;
	}
	return 0;
}

static int path_good(const char *word)
{
	return word[0] == '/' || !strcmp(word, "all");
}

/* A field name as HTTP has it; made lower case in passing. */
static int header_good(const char *word)
{
	static const char others[] = "!#$%&'*+-.^_`|~";

	for (char *c = (char *)word; *c; c++) {
		if (!isascii(*c) || (!isalnum((unsigned char)*c) && !strchr(others, *c)))
			return 0;
		*c = (char)tolower((unsigned char)*c);
	}
	return 1;
}

static int check_lists(struct router_settings *s, struct conf *conf)
{
	int err = split_list(conf, "paths", s->paths_text, &s->paths, path_good,
			     "path: it must begin with /, or be all");

	if (err)
		return err;
	for (unsigned i = 0; i < s->paths.nr; i++)
		s->paths_all |= s->paths.word[i][0] != '/';
	if (s->via[0] && !header_good(s->via))
		return complain(conf, "via = %s: must be a token such as turnward", s->via);
	return split_list(conf, "session_headers", s->session_headers_text, &s->session_headers,
			  header_good, "header's name");
}

static int check_addresses(struct router_settings *s, struct conf *conf)
{
	char why[ADDR_WHY_MAX];

	if (addr_parse(&s->listen_addr, s->listen, why))
		return complain(conf, "listen = %s: %s", s->listen, why);
	if (!s->admin[0])
		return 0;
	if (addr_parse(&s->admin_addr, s->admin, why))
		return complain(conf, "admin = %s: %s", s->admin, why);
	if (!addr_is_local(&s->admin_addr))
		return complain(conf, "admin = %s: must be a loopback address or unix:PATH",
				s->admin);
	if (addr_equal(&s->listen_addr, &s->admin_addr))
		return complain(conf, "admin = %s: is where clients connect; give it its own",
				s->admin);
	return 0;
}

/* Whether a connection to `to` would come in at the listener `at`, which may be on every address.
 */
static int meets(const struct addr *to, const struct addr *at)
{
	int any = at->sa.any.sa_family == AF_INET6
			  ? IN6_IS_ADDR_UNSPECIFIED(&at->sa.v6.sin6_addr)
			  : at->sa.any.sa_family == AF_INET && !at->sa.v4.sin_addr.s_addr;
	int families = at->sa.any.sa_family == AF_INET6 || to->sa.any.sa_family == AF_INET;

	if (addr_equal(to, at))
		return 1;
	/* The port lies at the same place in both families. */
	return any && families && to->sa.any.sa_family != AF_UNIX && addr_is_local(to) &&
	       to->sa.v4.sin_port == at->sa.v4.sin_port;
}

static int check_engines(struct router_settings *s, struct conf *conf)
{
	char why[ADDR_WHY_MAX];

	for (unsigned i = 0; i < s->engines_nr; i++) {
		struct settings_engine *engine = &s->engines[i];

		if (!engine->url[0])
			return complain(conf, "[engine %s]: url is missing", engine->name);
		if (addr_engine_parse(&engine->at, engine->url, why))
			return complain(conf, "[engine %s]: url = %s: %s", engine->name,
					engine->url, why);
		memcpy(engine->at.name, engine->name, sizeof(engine->at.name));
		if (meets(&engine->at.addr, &s->listen_addr) ||
		    (s->admin[0] && meets(&engine->at.addr, &s->admin_addr)))
			return complain(conf, "engine %s: %s is this router itself", engine->name,
					engine->url);
		for (unsigned k = 0; k < i; k++)
			if (addr_equal(&s->engines[k].at.addr, &engine->at.addr))
				return complain(conf, "engines %s and %s are the same: %s",
						s->engines[k].name, engine->name, engine->url);
	}
	return 0;
}

/* One KEY=VALUE of shadow_set, into s->policy. */
static int set_shadow_key(struct router_settings *s, struct conf *conf, char *word)
{
	char *value = strchr(word, '='), why[CONF_ERROR_MAX / 2];
	const char *near;
	int i;

	if (!value)
		return complain(conf, "shadow_set: '%s' is no KEY=VALUE", word);
	*value++ = '\0';
	i = conf_find(router_keys, "policy", word);
	near = i < 0 ? conf_nearest(router_keys, word) : NULL;
	if (i < 0)
		return complain(conf, "shadow_set: unknown key %s%s%s", word,
				near ? "; did you mean " : "", near ? near : "");
	if (router_keys[i].offset < offsetof(struct router_settings, policy) ||
	    router_keys[i].offset >= offsetof(struct router_settings, policy) + sizeof(s->policy) ||
	    !strcmp(word, "policy"))
		return complain(conf, "shadow_set: %s is not a choice's own parameter", word);
	if (conf_value(&router_keys[i], s, value, why, sizeof(why)))
		return complain(conf, "shadow_set: %s = %s: %s", word, value, why);
	return 0;
}

/* The shadow's parameters: those in force, but for its policy and what shadow_set changes. */
static int load_shadow(struct router_settings *s, struct conf *conf)
{
	const struct policy_params in_force = s->policy;
	char text[SETTINGS_PATH_MAX], *next = text, *word;
	int policy = policy_parse(s->shadow_policy), err = 0;

	s->shadow_on = s->shadow_policy[0] != 0;
	if (!s->shadow_on && s->shadow_set[0])
		return complain(conf, "shadow_set is given, and no shadow_policy that it is for");
	if (s->shadow_on && policy < 0)
		return complain(conf, "shadow_policy = %s: is no policy; see the key policy",
				s->shadow_policy);
	snprintf(text, sizeof(text), "%s", s->shadow_set);
	while (!err && (word = strsep(&next, ", ")))
		if (*word)
			err = set_shadow_key(s, conf, word);
	s->shadow = s->policy;
	s->policy = in_force;
	if (s->shadow_on)
		s->shadow.policy = (uint64_t)policy;
	return err;
}

static int power_of_two(uint64_t n)
{
	return n && !(n & (n - 1));
}

static int check_numbers(const struct router_settings *s, struct conf *conf)
{
	if (!power_of_two(s->receive_buffers))
		return complain(conf, "receive_buffers = %lu: must be a power of two",
				s->receive_buffers);
	if (!power_of_two(s->ring_entries))
		return complain(conf, "ring_entries = %lu: must be a power of two",
				s->ring_entries);
	if (s->max_body > s->body_memory)
		return complain(conf,
				"max_body is larger than body_memory, which is for all bodies");
	if (s->policy.warm_threshold > s->policy.heavy_threshold)
		return complain(conf, "warm_threshold is larger than heavy_threshold");
	return 0;
}

int settings_load(struct router_settings *ret_settings, struct conf *conf,
		  const struct settings_given *given)
{
	struct loading loading = { .settings = ret_settings, .conf = conf };
	int err = 0;

	memset(ret_settings, 0, sizeof(*ret_settings));
	stage_params_init(&ret_settings->stage); /* what of it is no key */
	admit_params_init(&ret_settings->admit);
	conf_init(conf, router_keys, ret_settings);
	if (given->file)
		err = conf_file(conf, ret_settings, given->file, on_engine, &loading);
	if (!err)
		err = apply_given(ret_settings, conf, given);
	if (!err)
		err = check_addresses(ret_settings, conf);
	if (!err)
		err = check_lists(ret_settings, conf);
	if (!err)
		err = check_numbers(ret_settings, conf);
	if (!err)
		err = load_shadow(ret_settings, conf);
	if (!err)
		err = check_engines(ret_settings, conf);
	return err;
}

void settings_scale(struct router_settings *settings)
{
	struct router_settings shadow = *settings;

	if (settings->time_scale == 1)
		return;
	/* By the same table: parameters that are equal stay so to the last bit. */
	shadow.policy = settings->shadow;
	conf_scale(router_keys, NULL, &shadow, settings->time_scale);
	conf_scale(router_keys, NULL, settings, settings->time_scale);
	settings->shadow = shadow.policy;
}

const char *settings_needs_restart(const struct router_settings *now,
				   const struct router_settings *wanted)
{
	char have[SETTINGS_PATH_MAX + 1], want[SETTINGS_PATH_MAX + 1];

	for (const struct conf_key *key = router_keys; key->name; key++) {
		if (key->flags & (CONF_RELOAD | CONF_NAMED))
			continue;
		conf_text(key, now, have, sizeof(have));
		conf_text(key, wanted, want, sizeof(want));
		if (strcmp(have, want))
			return key->name;
	}
	return NULL;
}

/* ---- showing ---- */

static void dump_key(const struct conf_key *key, const void *settings, FILE *out)
{
	char text[SETTINGS_PATH_MAX + 1];

	conf_text(key, settings, text, sizeof(text));
	if (key->flags & CONF_SECRET && text[0])
		snprintf(text, sizeof(text), "***");
	fprintf(out, "%s =%s%s", key->name, text[0] ? " " : "", text);
}

void settings_dump(const struct router_settings *settings, const struct conf *conf,
		   const char *file, FILE *out)
{
	const char *section = "";

	for (int i = 0; router_keys[i].name; i++) {
		const struct conf_key *key = &router_keys[i];

		if (key->flags & CONF_NAMED)
			continue;
		if (strcmp(section, key->section))
			fprintf(out, "%s[%s]\n", *section ? "\n" : "", key->section);
		section = key->section;
		dump_key(key, settings, out);
		if (conf->origin[i] == CONF_FILE)
			fprintf(out, " # %s:%d\n", file, conf->line[i]);
		else
			fprintf(out, " # %s\n",
				conf->origin[i] == CONF_OPTION ? "option" : "default");
	}
	for (unsigned i = 0; i < settings->engines_nr; i++) {
		fprintf(out, "\n[engine %s]\n", settings->engines[i].name);
		for (const struct conf_key *key = router_keys; key->name; key++)
			if (key->flags & CONF_NAMED) {
				dump_key(key, &settings->engines[i], out);
				fprintf(out, "\n");
			}
	}
}

void settings_values(const struct router_settings *settings, FILE *out)
{
	for (const struct conf_key *key = router_keys; key->name; key++)
		if (!(key->flags & CONF_NAMED)) {
			fprintf(out, "%s.", key->section);
			dump_key(key, settings, out);
			fprintf(out, "\n");
		}
}

int settings_write_example(int fd)
{
	return conf_write_example(router_keys, fd);
}
