/*
 * What stands between clients and engines: nothing, the relay, turnward, an earlier build of it,
 * and its peers with the configurations of bench/peers/, each started for its turn and ended after
 * it.
 */
#ifndef TURNWARD_BENCH_LOAD_ARMS_H
#define TURNWARD_BENCH_LOAD_ARMS_H

#include "bench/load_relay.h"

enum load_family { LOAD_FLOOR, LOAD_OWN, LOAD_BEFORE, LOAD_PROXY, LOAD_LLM };

/*
 * X(ID, name, family, program, detail): in the order of a round. The detail is turnward's loop, a
 * proxy's file, an LLM router's policy.
 */
#define LOAD_ARMS(X)                                                                       \
	X(DIRECT, "direct", FLOOR, NULL, NULL)                                             \
	X(RELAY, "relay", FLOOR, NULL, NULL)                                               \
	X(URING, "turnward-uring", OWN, "turnward-router", "uring")                        \
	X(EPOLL, "turnward-epoll", OWN, "turnward-router", "epoll")                        \
	X(BEFORE_URING, "before-uring", BEFORE, "turnward-router", "uring")                \
	X(BEFORE_EPOLL, "before-epoll", BEFORE, "turnward-router", "epoll")                \
	X(HAPROXY, "haproxy", PROXY, "haproxy", "haproxy.cfg")                             \
	X(NGINX, "nginx", PROXY, "nginx", "nginx.conf")                                    \
	X(ENVOY, "envoy", PROXY, "envoy", "envoy.yaml")                                    \
	X(VLLM_CACHE, "vllm-router:cache_aware", LLM, "vllm-router", "cache_aware")        \
	X(VLLM_HASH, "vllm-router:consistent_hash", LLM, "vllm-router", "consistent_hash") \
	X(SGLANG_CACHE, "sglang-router:cache_aware", LLM, "smg", "cache_aware")

#define LOAD_ARM_ENUM(id, name, family, program, detail) LOAD_ARM_##id,
enum load_arm_id { LOAD_ARMS(LOAD_ARM_ENUM) LOAD_ARMS_NR };
#undef LOAD_ARM_ENUM

struct load_arm {
	const char *name;
	enum load_family family;
	const char *program, *detail;
	bool wanted, ran;
	char version[64];
	char why[200]; /* it did not run */
	char path[256];
	struct load_proc proc;
	uint16_t port;
};

/* Where everything is; the directory is made for the run. */
struct load_place {
	const struct load_sink *sink;
	int core; /* of arms; LOAD_CORE_ANY = wherever */
	struct load_relay relay;
	unsigned starts;
	char dir[64];    /* configurations, the region, logs */
	char peers[256]; /* templates */
	char build[256]; /* "" = programs come by PATH */
	char venv[256];
	struct load_arm arm[LOAD_ARMS_NR];
};

/*
 * -errno; `peers` NULL looks for bench/peers, `before` (or NULL) is an earlier turnward-router.
 * Finds the programs and asks for their versions.
 */
int load_place_init(struct load_place *place, const struct load_sink *sink, const char *peers,
		    const char *before);
void load_place_fini(struct load_place *place);

/* Starts the arm before the engines, and waits for its first answer; else `why` says what. */
int load_arm_start(struct load_place *place, enum load_arm_id id);
void load_arm_stop(struct load_place *place, enum load_arm_id id);

/* The ports that a client of this arm connects to. */
const uint16_t *load_arm_ports(const struct load_place *place, enum load_arm_id id,
			       unsigned *ret_ports);

/* Where our own program was built: place->build. */
void load_build_find(struct load_place *place);

/* A program of turnward's beside our own, or by PATH. */
void load_program(const struct load_place *place, const char *name, char *ret_path, size_t size);

/*
 * Writes a template's text: @PORT@, @DIR@, @LIMIT@, @STREAMS@, @CONNECTIONS@ (twice that), and
 * lines that begin with "@FOR ENGINES@" once for each engine, with @N@, @ADDRESS@, @HOST@ and
 * @EPORT@. -errno.
 */
int load_template(const char *from, const char *to, const char *dir, uint16_t port,
		  unsigned streams, const uint16_t engine[LOAD_ENGINES]);

/* "2.6.12" in any text, "?" when there is none. */
void load_version_find(const char *text, char *ret_version, size_t size);

#endif
