/* Bodies of the three APIs that agents speak, and what their streams say; see live_api.h. */
#include "bench/live_api.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

const char *const live_api_names[] = {
#define X(name, path, text) #name,
	LIVE_APIS(X) NULL
#undef X
};
const char *const live_api_paths[] = {
#define X(name, path, text) path,
	LIVE_APIS(X)
#undef X
};
static const char *const texts[] = {
#define X(name, path, text) text,
	LIVE_APIS(X)
#undef X
};
/* What follows the conversation; the model's name and the longest answer go in. */
static const char *const tails[] = {
	[LIVE_API_chat] = ("],\"model\":\"%s\",\"max_tokens\":%u,\"stream\":true,"
			   "\"stream_options\":{\"include_usage\":true}}"),
	[LIVE_API_messages] = "],\"model\":\"%s\",\"max_tokens\":%u,\"stream\":true}",
	[LIVE_API_responses] =
		"],\"model\":\"%s\",\"max_output_tokens\":%u,\"stream\":true,\"store\":false}",
};

static void add(struct live_body *body, const char *text, size_t len)
{
	assert(body->parts < LIVE_BODY_PARTS);
	body->part[body->parts++] = (struct iovec){ (char *)text, len };
	body->len += len;
}

static void add_literal(struct live_body *body, const char *text)
{
	add(body, text, strlen(text));
}

void live_body_make(struct live_body *ret_body, enum live_api api, const struct talk *talk,
		    const char *model)
{
	const struct talk_message *m = talk->message;
	size_t from = 0;

	ret_body->parts = 0;
	ret_body->len = 0;
	snprintf(ret_body->tail, sizeof(ret_body->tail), tails[api], model,
		 talk_turn(talk)->output_tokens);
	if (api == LIVE_API_messages && talk->messages > 1 && m->role == TALK_SYSTEM) {
		from = m[1].at; /* its system prompt stands outside the list */
		add_literal(ret_body, "{\"system\":\"");
		add(ret_body, talk->text + m->text_at, m->text_len);
		add_literal(ret_body, "\",\"messages\":[");
	} else {
		add_literal(ret_body,
			    api == LIVE_API_responses ? "{\"input\":[" : "{\"messages\":[");
	}
	add(ret_body, talk->text + from, talk->len - from);
	add_literal(ret_body, ret_body->tail);
}

int live_api_text(enum live_api api, const struct jread *event, const char **ret_text,
		  size_t *ret_len)
{
	struct jread text;

	if (jread_get(event, texts[api], &text) < 0 || text.type != JREAD_STRING)
		return -ENOENT;
	*ret_text = text.text + 1;
	*ret_len = text.len - 2;
	return 0;
}
