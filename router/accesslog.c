/* One JSON line for each request that ended. */
#include "router/accesslog.h"

#include "router/net/conn.h"
#include "router/route.h"
#include "router/worker.h"
#include "shm/base/log.h"

static void phase(struct log_line *line, const struct exchange *x, const char *key, uint64_t ns)
{
	if (ns)
		log_f64(line, key, (double)(ns - x->start_ns) * 1e-9);
}

void accesslog_request(const struct worker *w, const struct exchange *x)
{
	const struct route *r = x->route;
	struct chat_usage usage;
	struct log_line line;

	log_begin(&line, LOG_INFO, "request");
	if (line.off)
		return;
	log_str(&line, "id", x->id);
	log_str(&line, "end", conn_ends[x->end].word);
	log_u64(&line, "code", x->status);
	log_str(&line, "path", http_path_name(x->target.path));
	if (x->engine >= 0)
		log_str(&line, "engine", w->engines[x->engine].at.name);
	if (r && x->decided_ns && x->generates) {
		log_str(&line, "class", policy_class_name(r->class));
		log_u64(&line, "turn", r->turn);
		log_u64(&line, "prompt_tokens", r->prompt_tokens);
		log_f64(&line, "hit",
			r->prompt_tokens ? (double)r->hit_tokens / r->prompt_tokens : 0);
		log_str(&line, "reason", policy_reason_name(r->reason));
		log_f64(&line, "predicted_ttft_s", r->predicted_ttft_s);
		log_bool(&line, "stream", x->stream);
	}
	phase(&line, x, "body_s", x->body_ns);
	phase(&line, x, "decided_s", x->decided_ns);
	phase(&line, x, "sent_s", x->sent_ns);
	phase(&line, x, "first_byte_s", x->first_byte_ns);
	phase(&line, x, "ttft_s", x->first_token_ns);
	phase(&line, x, "dur_s", w->now_ns);
	if (x->answered && chat_watch_usage(&x->watch, &usage)) {
		log_u64(&line, "in", usage.prompt_tokens);
		log_u64(&line, "out", usage.completion_tokens);
		if (x->watch.seen & CHAT_SEEN_CACHED)
			log_u64(&line, "cached", usage.cached_tokens);
	}
	log_u64(&line, "bytes_in", x->bytes_in);
	log_u64(&line, "bytes_out", x->bytes_out);
	if (x->staged)
		log_u64(&line, "pieces", x->pieces);
	if (requeue_closes(x))
		log_u64(&line, "taken_back", requeue_closes(x));
	if (x->rescued)
		log_bool(&line, "rescued", 1);
	if (x->attempts > 1)
		log_u64(&line, "attempts", x->attempts);
	log_end(&line);
}
