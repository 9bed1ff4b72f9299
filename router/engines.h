/*
 * The engines as the router knows them: where they are, what they serve, how they are, who may get
 * work.
 *
 * An engine's state comes from its agent through the region where there is one; without an agent
 * the router asks /v1/models itself and routes on its own books. Refreshing is done once a second
 * and on need, never in a decision.
 */
#ifndef TURNWARD_ROUTER_ENGINES_H
#define TURNWARD_ROUTER_ENGINES_H

#include "router/health/health.h"
#include "router/latency.h"
#include "router/net/chain.h"
#include "router/view/view.h"
#include "shm/base/addr.h"
#include "shm/files.h"
#include "shm/state.h"

#include "router/http/http.h"

#include <stdint.h>

struct loop_event;
struct worker;
struct link;

/* Where the list of models comes from. */
enum models_source { MODELS_UNKNOWN, MODELS_AGENT, MODELS_ASKED, MODELS_ANY };

/* What the router asks engines that have no agent. X(ID, path, meaning) */
#define ENGINE_QUESTIONS(X)                               \
	X(MODELS, "/v1/models", "which models it serves") \
	X(HEALTH, "/health", "whether it is well")
#define ENGINE_QUESTION_ENUM(id, path, meaning) ASK_##id,
enum engine_question { ENGINE_QUESTIONS(ENGINE_QUESTION_ENUM) ENGINE_QUESTIONS_NR };
#undef ENGINE_QUESTION_ENUM

/* A question of the router's own to an engine: GET PATH, the answer's body in one block. */
struct engine_ask {
	struct link *link; /* NULL = none under way */
	enum engine_question what;
	struct block *out, *answer;
	uint8_t have_head;
	int status;
	struct http_body body;
	size_t len;
};

/* What outlives the worker about an engine, in the calibration section by region index. */
struct engine_learnt {
	struct view_calibration calibration;
	uint64_t restarts; /* times the router saw it away */
};

/*
 * One engine. What a decision reads comes first, in few lines of one page: the whole is large, and
 * there are eight of them.
 */
struct engine {
	uint32_t index;    /* in worker.engines and in the ledger */
	int region_index;  /* in the `router` file: stable over restarts */
	uint8_t any_model; /* configured so: takes any name */
	uint8_t drained;
	uint8_t configured; /* from the configuration; else found in the region */
	int attached;       /* its agent's file */
	double weight;
	uint64_t kv_capacity;         /* configured, tokens; 0 = as its agent says */
	uint64_t epoch, own_restarts; /* of its cache: the agent's, or counted here when the engine
					 was seen down */
	struct engine_learnt *learnt; /* in the region */
	double recent_ttft_s; /* the quantile that the policy sees, unfinished waits counted */
	uint64_t recent_ttft_n;
	uint64_t probed_wait_ns; /* start of the oldest wait that the probe sees, 0 = none */
	struct health health;
	enum models_source source; /* of the list of models */
	uint32_t models_nr;
	uint64_t state_seq;                     /* the record's number in the slot, 0 = none */
	struct engine_state state;              /* last good copy; read_ns 0 = none */
	uint64_t models_hash[STATE_MODELS_MAX]; /* of the names */
	struct engine_file agent;
	struct addr_engine at;

	/* as configured or found out */
	uint32_t kind;        /* enum engine_kind, configured; 0 = as its agent says */
	uint32_t stage;       /* enum settings_stage */
	uint32_t step_budget; /* configured, tokens; 0 = not */
	uint8_t no_tokeniser; /* it does not tokenise; asked again after its restart */
	uint8_t no_renderer;  /* likewise: ids of a body as it is */
	char key[256];        /* sent as Authorization instead of the client's; "" = untouched */
	struct engine_info info;
	uint64_t info_seq;

	/* models */
	char models[STATE_MODELS_MAX][STATE_MODEL_MAX + 8];
	uint64_t asked_ns; /* when the list was last asked for */
	struct engine_ask ask;
	uint64_t asked_restarts; /* own_restarts when it was asked */

	uint8_t away;       /* connecting failed, and it has not answered since */
	uint64_t probed_ns; /* when GET /health was last begun */

	/* links */
	struct link *idle;
	uint32_t idle_nr, links_nr;

	struct engine_latency latency; /* see latency.h */
};

/* Reads the configuration's engines (settings) into worker.engines. 0 or -errno with `error`. */
int engines_init(struct worker *w, char *error);
void engines_fini(struct worker *w);

/* Once a second: agents that came, went or were replaced; region's engines when none is configured.
 */
void engines_tick(struct worker *w);

/* Copies every agent's newest record into engine->state. In place, no system call. A caller with
 * something else to do first asks for the memory before that. */
void engines_prefetch(struct worker *w);
void engines_read(struct worker *w);

/* Bit mask of engines that serve the model; all that take any name included. len 0 = any engine. */
uint64_t engines_serving(const struct worker *w, const char *model, size_t len);

/* 1 if some engine is being asked for its list; with `first`, one of which no list is known yet. */
int engines_asking(const struct worker *w, int first);

/* Those whose list could not be had so far. */
uint64_t engines_unlisted(const struct worker *w);

/* Asks every engine without an agent for its models (again). */
void engines_ask(struct worker *w);

/* What the data path saw of it (health/health.h). */
void engine_connect_failed(struct worker *w, struct engine *e);
void engine_failed(struct worker *w, struct engine *e); /* no answer, garbage, silence, 5xx */
void engine_answered(struct worker *w, struct engine *e);
void engine_refused(struct worker *w, struct engine *e, uint64_t pause_ns); /* 429 or 503 */

/* Its health, and what its agent says of it. */
enum health_standing engine_standing(const struct worker *w, const struct engine *e);
/* 1 unless it is shut, be it between two trials: what operators are told. */
int engine_up(const struct worker *w, const struct engine *e);
/*
 * Of these engines (a bit each), those that may get a request now: all that are open, else the one
 * whose pause ends first, so that there is always one where there is any.
 */
uint64_t engines_takers(const struct worker *w, uint64_t engines);
/* Seconds charged to one that has just come back, for each request in it. */
double engine_slow_start_s(const struct worker *w, const struct engine *e);

/* The link's events when it belongs to a question of ours. */
void engine_ask_event(struct worker *w, struct link *link, const struct loop_event *ev);

struct engine *engine_by_name(struct worker *w, const char *name);

#endif
