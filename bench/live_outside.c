/* What the router, the engines and the kernel say of a live run, read before and after it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/ask.h"
#include "bench/live.h"
#include "shm/base/jread.h"
#include "shm/base/scoped.h"

/* A metric without labels, or -1. */
static double metric(const char *page, const char *name)
{
	size_t len = strlen(name);

	for (const char *at = page; (at = strstr(at, name)); at += len)
		if ((at == page || at[-1] == '\n') && at[len] == ' ')
			return strtod(at + len, NULL);
	return -1;
}

static void router_read(const struct live_options *o, struct live_outside *out, double sign)
{
	out->router_known = false;
	if (!o->has_admin)
		return;
	scoped(free_drop) char *page = ask_http(&o->admin, "GET", "/metrics", NULL);
	if (!page)
		return;
	double migrations = metric(page, "turnward_migrations_total");
	double cpu_s = metric(page, "process_cpu_seconds_total");
	double pieces = metric(page, "turnward_staged_pieces_total");
	double closes = metric(page, "turnward_requeue_closes_total");
	if (migrations < 0 || cpu_s < 0)
		return;
	out->router_known = true;
	out->migrations += sign * migrations;
	out->router_cpu_s += sign * cpu_s;
	out->pieces += sign * (pieces > 0 ? pieces : 0);
	out->closes += sign * (closes > 0 ? closes : 0);
}

/* Busy and total time of all cores since boot. */
static void machine_read(struct live_outside *out, double sign)
{
	unsigned long long v[8] = { 0 }, all = 0;
	scoped(file_drop) FILE *file = fopen("/proc/stat", "re");

	if (!file || fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1],
			    &v[2], &v[3], &v[4], &v[5], &v[6], &v[7]) != 8)
		return;
	for (int i = 0; i < 8; i++)
		all += v[i];
	double tick_s = 1.0 / (double)sysconf(_SC_CLK_TCK);
	out->machine_all_s += sign * (double)all * tick_s;
	out->machine_busy_s += sign * (double)(all - v[3] - v[4]) * tick_s;
}

static int lateness_read(const struct addr *engine, const char *method, struct live_outside *out)
{
	struct jread root;
	double steps, busy_s, late_s, p99_s, max_s, speed;
	size_t len;
	scoped(free_drop) char *text = ask_http(engine, method, "/turnward/lateness", &len);

	if (!text || jread_open(&root, text, len) < 0 ||
	    jread_get_f64(&root, "steps", &steps) < 0 ||
	    jread_get_f64(&root, "busy_s", &busy_s) < 0 ||
	    jread_get_f64(&root, "late_s", &late_s) < 0 ||
	    jread_get_f64(&root, "late_p99_s", &p99_s) < 0 ||
	    jread_get_f64(&root, "late_max_s", &max_s) < 0 ||
	    jread_get_f64(&root, "speed", &speed) < 0)
		return -1;
	out->steps += steps;
	out->busy_s += busy_s;
	out->late_s += late_s;
	out->late_p99_s = p99_s > out->late_p99_s ? p99_s : out->late_p99_s;
	out->late_max_s = max_s > out->late_max_s ? max_s : out->late_max_s;
	out->engine_speed = speed;
	return 0;
}

static int engines_read(const struct live_options *o, struct live_outside *out, const char *method)
{
	out->engines_known = o->engines > 0;
	out->steps = out->busy_s = out->late_s = out->late_p99_s = out->late_max_s = 0;
	for (unsigned i = 0; i < o->engines; i++)
		if (lateness_read(&o->engine[i], method, out) < 0) {
			fprintf(stderr, "live: engine %u of %u did not say how late it is\n", i + 1,
				o->engines);
			out->engines_known = false;
		}
	return out->engines_known || o->engines == 0 ? 0 : -1;
}

int live_outside_begin(const struct live_options *o, struct live_outside *out)
{
	*out = (struct live_outside){ 0 };
	int err = engines_read(o, out, "POST");

	router_read(o, out, -1);
	machine_read(out, -1);
	return err;
}

void live_outside_end(const struct live_options *o, struct live_outside *out)
{
	bool known = out->router_known;

	machine_read(out, 1);
	router_read(o, out, 1);
	out->router_known = out->router_known && known;
	engines_read(o, out, "GET");
}

int live_find_model(struct live_options *o)
{
	struct jread root;
	size_t len;
	scoped(free_drop) char *text = ask_http(&o->router, "GET", "/v1/models", &len);

	if (!text || jread_open(&root, text, len) < 0 ||
	    jread_get_str(&root, "data[0].id", o->model, sizeof(o->model)) < 0)
		return -1;
	return 0;
}

/* The engines whose agents the router's status page names. */
void live_find_engines(struct live_options *o)
{
	struct jread root, list;
	struct jread_walk walk;
	struct addr_engine at;
	char url[ADDR_URL_MAX], why[ADDR_WHY_MAX];
	size_t len;

	if (!o->has_admin)
		return;
	scoped(free_drop) char *text = ask_http(&o->admin, "GET", "/status", &len);
	if (!text || jread_open(&root, text, len) < 0 || jread_get(&root, "engines", &list) < 0)
		return;
	jread_walk_begin(&walk, &list);
	while (jread_walk_next(&walk) > 0 && o->engines < LIVE_ENGINES_MAX)
		if (jread_get_str(&walk.value, "agent.url", url, sizeof(url)) == 0 &&
		    addr_engine_parse(&at, url, why) == 0)
			o->engine[o->engines++] = at.addr;
}
