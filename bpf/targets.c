/* Looks engines' names up and keeps their indices steady. */
#include "bpf/targets.h"

#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>

#include "shm/base/addr.h"
#include "shm/base/clock.h"

enum { RETRY_S = 5 };

/* "host:port" or "[v6]:port" apart. */
static int split(const char *text, char *host, size_t size, const char **ret_port)
{
	const char *colon = strrchr(text, ':');
	size_t n = colon ? (size_t)(colon - text) : 0;

	if (n == 0 || n >= size)
		return -EINVAL;
	if (text[0] == '[' && text[n - 1] == ']') {
		text++;
		n -= 2;
	}
	memcpy(host, text, n);
	host[n] = 0;
	*ret_port = colon + 1;
	return 0;
}

/* Every address of the name: a client may take any. */
static void resolve(struct target *t, const struct addr_engine *at)
{
	struct addrinfo want = { .ai_socktype = SOCK_STREAM }, *list = NULL;
	char host[ADDR_HOST_MAX];
	const char *port;
	int err;

	t->addresses_nr = 0;
	t->why[0] = 0;
	if (at->addr.sa.any.sa_family == AF_UNIX) {
		snprintf(t->why, sizeof(t->why),
			 "a Unix socket has no packets: the router's own timing serves it");
		return;
	}
	if (split(at->host, host, sizeof(host), &port) < 0)
		return;
	err = getaddrinfo(host, port, &want, &list);
	if (err) {
		snprintf(t->why, sizeof(t->why), "%.200s: %s", host, gai_strerror(err));
		return;
	}
	for (const struct addrinfo *a = list; a; a = a->ai_next)
		if ((a->ai_family == AF_INET || a->ai_family == AF_INET6) &&
		    t->addresses_nr < TARGET_ADDRESSES_MAX)
			memcpy(&t->address[t->addresses_nr++], a->ai_addr, a->ai_addrlen);
	freeaddrinfo(list);
}

static struct target *find(struct targets *ts, const char *name)
{
	for (uint32_t i = 0; i < ts->nr; i++)
		if (strcmp(ts->target[i].name, name) == 0)
			return &ts->target[i];
	return NULL;
}

static struct target *place(struct targets *ts)
{
	for (uint32_t i = 0; i < ts->nr; i++)
		if (!ts->target[i].name[0])
			return &ts->target[i];
	return ts->nr < STATE_ENGINES_MAX ? &ts->target[ts->nr++] : NULL;
}

/* Parses, and looks up what is new or has moved. */
static int put(struct targets *ts, const char *text, uint64_t now_ns, char why[TARGET_WHY_MAX])
{
	char reason[ADDR_WHY_MAX];
	struct addr_engine at;
	struct target *t;
	int err = addr_engine_parse(&at, text, reason);

	if (err < 0) {
		snprintf(why, TARGET_WHY_MAX, "%.150s: %s", text, reason);
		return err;
	}
	t = find(ts, at.name);
	if (t) {
		t->found = 1;
		if (strcmp(t->url, at.url) == 0)
			return 0;
	} else {
		t = place(ts);
		if (!t)
			return -ENOSPC;
		memset(t, 0, sizeof(*t));
		snprintf(t->name, sizeof(t->name), "%s", at.name);
		ts->renamed |= 1ull << (t - ts->target);
	}
	t->found = 1;
	t->resolved_ns = now_ns;
	snprintf(t->url, sizeof(t->url), "%s", at.url);
	resolve(t, &at);
	ts->changed = 1;
	return 0;
}

int targets_add(struct targets *targets, const char *text, uint64_t now_ns,
		char why[TARGET_WHY_MAX])
{
	return put(targets, text, now_ns, why);
}

/* ---- the region ---- */

struct walk {
	struct targets *targets;
	const struct region *region;
	uint64_t now_ns;
};

static void put_pair(struct walk *walk, const char *name, const char *url)
{
	char text[STATE_NAME_MAX + ADDR_URL_MAX + 4], why[TARGET_WHY_MAX];
	struct target *known = find(walk->targets, name);

	if (!url[0] || !region_engine_name_valid(name))
		return;
	/* Of two that name it, the first found rules: agents before the router. */
	if (known && (known->found || strcmp(known->url, url) == 0)) {
		known->found = 1; /* and is not looked up again */
		return;
	}
	snprintf(text, sizeof(text), "%s=%s", name, url);
	put(walk->targets, text, walk->now_ns, why);
}

static void each_agent(void *ctx, const char *file)
{
	struct walk *walk = ctx;
	const char *name = file + strlen("engine.");
	char error[REGION_ERROR_MAX];
	struct engine_file agent;
	struct engine_info info;

	if (engine_file_attach(&agent, walk->region, name, error) < 0)
		return;
	if (engine_file_read_info(&agent, &info, NULL) == 0)
		put_pair(walk, name, info.url);
	engine_file_drop(&agent);
}

static void each_of_router(struct walk *walk)
{
	char error[REGION_ERROR_MAX];
	struct router_engine engine;
	struct router_file file;

	if (router_file_attach(&file, walk->region, error) < 0)
		return;
	for (unsigned i = 0; i < STATE_ENGINES_MAX; i++)
		if (router_file_engine_read(&file, i, &engine) == 0 && engine.name[0])
			put_pair(walk, engine.name, engine.url);
	router_file_drop(&file);
}

void targets_follow(struct targets *targets, const struct region *region, uint64_t now_ns)
{
	struct walk walk = { targets, region, now_ns };

	for (uint32_t i = 0; i < targets->nr; i++)
		targets->target[i].found = 0;
	region_list(region, "engine.", each_agent, &walk);
	each_of_router(&walk);
	for (uint32_t i = 0; i < targets->nr; i++) {
		struct target *t = &targets->target[i];

		if (!t->name[0] || t->found)
			continue;
		*t = (struct target){ 0 };
		targets->changed = 1;
	}
}

void targets_retry(struct targets *targets, uint64_t now_ns)
{
	char text[STATE_NAME_MAX + ADDR_URL_MAX + 4], why[ADDR_WHY_MAX];

	for (uint32_t i = 0; i < targets->nr; i++) {
		struct target *t = &targets->target[i];
		struct addr_engine at;

		if (!t->name[0] || t->addresses_nr ||
		    now_ns - t->resolved_ns < RETRY_S * (uint64_t)NS_PER_S)
			continue;
		t->resolved_ns = now_ns;
		snprintf(text, sizeof(text), "%s=%s", t->name, t->url);
		if (addr_engine_parse(&at, text, why) < 0)
			continue;
		resolve(t, &at);
		targets->changed |= t->addresses_nr > 0;
	}
}

unsigned targets_addresses(const struct targets *targets, struct probe_address *ret_list,
			   unsigned room)
{
	unsigned n = 0;

	for (uint32_t i = 0; i < targets->nr; i++)
		for (uint32_t a = 0; a < targets->target[i].addresses_nr && n < room; a++)
			ret_list[n++] =
				(struct probe_address){ .address = targets->target[i].address[a],
							.engine = (uint8_t)i };
	return n;
}
