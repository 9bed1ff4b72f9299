/* Chat bodies of any size, with text as long and as escaped as code in a prompt is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/load_client.h"

enum { MESSAGE_BYTES = 4096, SLACK = 1024 };

char *load_body_new(const struct load_ask *ask, size_t *ret_len, size_t *ret_number)
{
	static const char code[] =
		"static int take(struct box *b, const char *name)\\n{\\n\\tif (strcmp(name, "
		"\\\"none\\\") == 0)\\n\\t\\treturn -1; /* nothing to take */\\n\\tb->held += 1, "
		"b->last = name;\\n\\treturn b->held > b->most ? -2 : 0;\\n}\\n\\n";
	size_t size = ask->body_bytes + SLACK, n;
	char *text = malloc(size), tail[128];

	if (!text)
		return NULL;
	snprintf(tail, sizeof(tail), "\"}],\"stream\":%s,\"max_tokens\":%llu}",
		 ask->stream ? "true" : "false", (unsigned long long)ask->events);
	n = (size_t)snprintf(text, size,
			     "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"%s ",
			     ask->word);
	*ret_number = n;
	n += (size_t)snprintf(text + n, size - n, "00000000 is the turn. ");
	size_t in_message = 0, step = 0, room = strlen(tail);
	while (n + room < ask->body_bytes) {
		size_t left = ask->body_bytes - room - n;

		if (in_message >= MESSAGE_BYTES && left > 200) {
			n += (size_t)snprintf(text + n, size - n,
					      "\"},{\"role\":\"%s\",\"content\":\"step %zu: ",
					      step % 2 ? "user" : "assistant", step);
			in_message = 0, step++;
			continue;
		}
		if (left < sizeof(code)) {
			memset(text + n, '.', left);
			n += left;
			continue;
		}
		memcpy(text + n, code, sizeof(code) - 1);
		n += sizeof(code) - 1;
		in_message += sizeof(code) - 1;
	}
	memcpy(text + n, tail, room + 1);
	*ret_len = n + room;
	return text;
}
