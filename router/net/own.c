/* What the router answers itself: the union of models, its health, and the admin listener. */
#include "router/net/parts.h"

#include "router/metrics.h"
#include "router/route.h"
#include "shm/base/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OWN_JSON_BYTES = 256 * 1024 };

static int ready(const struct worker *w)
{
	if (w->draining)
		return 0;
	for (uint32_t i = 0; i < w->engines_nr; i++)
		if (engine_up(w, &w->engines[i]))
			return 1;
	return 0;
}

static int already(const struct worker *w, uint32_t engine, const char *model)
{
	for (uint32_t i = 0; i < engine; i++)
		for (uint32_t m = 0; m < w->engines[i].models_nr; m++)
			if (strcmp(w->engines[i].models[m], model) == 0)
				return 1;
	return 0;
}

static void model(struct json *j, const struct engine *e, const char *name)
{
	json_object_begin(j, NULL);
	json_str(j, "id", name);
	json_str(j, "object", "model");
	json_u64(j, "created", 0);
	json_str(j, "owned_by", "turnward");
	json_str(j, "root", name); /* vLLM's own clients read it */
	if (ENGINE_HAS(&e->state, max_model_len))
		json_u64(j, "max_model_len", e->state.max_model_len);
	json_object_end(j);
}

static enum conn_state models(struct worker *w, struct conn *c)
{
	static char buf[OWN_JSON_BYTES];
	struct json j;

	json_init(&j, buf, sizeof(buf));
	json_object_begin(&j, NULL);
	json_str(&j, "object", "list");
	json_array_begin(&j, "data");
	for (uint32_t i = 0; i < w->engines_nr; i++) {
		const struct engine *e = &w->engines[i];

		for (uint32_t m = 0; m < e->models_nr; m++) {
			if (!already(w, i, e->models[m]))
				model(&j, e, e->models[m]);
		}
	}
	json_array_end(&j);
	json_object_end(&j);
	if (json_finish(&j) < 0)
		return exchange_fail(w, c, END_OVERLOAD);
	return exchange_answer(w, c, 200, "application/json", buf, j.len);
}

/* Of those that would be asked, the first speaks for it, as in the list; one that takes any name
 * has every model. */
static enum conn_state one_model(struct worker *w, struct conn *c)
{
	const struct http_route *target = &c->x->target;
	char name[HTTP_PATH_BYTES], buf[4096];
	struct json j;
	uint64_t serving;

	http_path_decode(target->id, target->id_len, name);
	serving = engines_serving(w, name, strlen(name));
	if (!serving)
		return exchange_fail(w, c, END_MODEL);
	json_init(&j, buf, sizeof(buf));
	model(&j, &w->engines[__builtin_ctzll(serving)], name);
	if (json_finish(&j) < 0)
		return exchange_fail(w, c, END_OVERLOAD);
	return exchange_answer(w, c, 200, "application/json", buf, j.len);
}

static enum conn_state health(struct worker *w, struct conn *c)
{
	if (ready(w))
		return exchange_answer(w, c, 200, "application/json", "{\"status\":\"ok\"}", 15);
	return exchange_answer(w, c, 503, "application/json", "{\"status\":\"unavailable\"}", 24);
}

/* ---- admin ---- */

static enum conn_state text(struct worker *w, struct conn *c, int status, const char *body)
{
	return exchange_answer(w, c, status, "text/plain; charset=utf-8", body, strlen(body));
}

static enum conn_state written(struct worker *w, struct conn *c, const char *type,
			       int (*write)(struct worker *w, FILE *out))
{
	char *buf = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&buf, &len);
	enum conn_state next;
	int err = out ? write(w, out) : -ENOMEM;

	if (out && fclose(out) != 0)
		err = -ENOMEM;
	next = err < 0 ? exchange_fail(w, c, END_OVERLOAD)
		       : exchange_answer(w, c, 200, type, buf, len);
	free(buf);
	return next;
}

static enum conn_state admin(struct worker *w, struct conn *c, const char *path, size_t len)
{
	static const struct {
		const char *path;
		const char *type;
		int (*write)(struct worker *w, FILE *out);
	} pages[] = {
		{ "/metrics", "text/plain; version=0.0.4; charset=utf-8", metrics_write },
		{ "/status", "application/json", status_page_write },
		{ "/", "text/plain; charset=utf-8", admin_index_write },
	};

	if (len == 5 && memcmp(path, "/live", 5) == 0)
		return text(w, c, 200, "live\n");
	if (len == 6 && memcmp(path, "/ready", 6) == 0)
		return ready(w) ? text(w, c, 200, "ready\n") : text(w, c, 503, "not ready\n");
	for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++)
		if (strlen(pages[i].path) == len && memcmp(path, pages[i].path, len) == 0)
			return written(w, c, pages[i].type, pages[i].write);
	return text(w, c, 404, "/live /ready /metrics /status\n");
}

enum conn_state own_answer(struct worker *w, struct conn *c)
{
	struct exchange *x = c->x;
	const char *path = (const char *)x->head->data + w->head.path.at;
	const char *query = memchr(path, '?', w->head.path.len);
	size_t len = query ? (size_t)(query - path) : w->head.path.len;

	if (w->head.last_hop)
		return exchange_answer(w, c, 200, "text/plain; charset=utf-8", "", 0);
	if (x->method != HTTP_METHOD_GET && x->method != HTTP_METHOD_HEAD) {
		x->error_status = 405;
		x->error_code = "method_not_allowed";
		x->error_text = "only GET and HEAD";
		return exchange_fail(w, c, END_REFUSED);
	}
	if (c->admin)
		return admin(w, c, path, len);
	switch (x->target.path) {
	case HTTP_PATH_MODELS:
		return models(w, c);
	case HTTP_PATH_MODEL:
		return one_model(w, c);
	default:
		return health(w, c);
	}
}
