/*
 * An engine for the probe's tests: answers in the shape that x-shape names after x-delay-us, and
 * notes when it wrote the token.
 *
 *   probe_engine FILE ADDRESS:PORT...     FILE: one JSON line an answer, whole when it ends; - none
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "shm/base/addr.h"
#include "shm/base/clock.h"
#include "tests/lib/probe_shapes.h"

static FILE *notes;

/* Events of an API before its first token, the token's, and the like after it. */
struct api {
	const char *before, *token, *more;
};

#define ID                                                                                     \
	"\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"model\":" \
	"\"q\""
#define DELTA "data: {" ID ",\"choices\":[{\"index\":0,\"delta\":{"
#define TAIL  "},\"logprobs\":null,\"finish_reason\":null}]}\n\n"
#define ROLE  DELTA "\"role\":\"assistant\",\"content\":\"\"" TAIL
#define MARK  PROBE_TOKEN_MARK

static const struct api
	api_chat = { ROLE, DELTA "\"content\":\"" MARK " \"" TAIL,
		     DELTA "\"content\":\" w\"" TAIL },
	api_thought = { DELTA "\"role\":\"assistant\",\"content\":null" TAIL,
			DELTA "\"reasoning_content\":\"" MARK " \"" TAIL,
			DELTA "\"reasoning\":\" w\"" TAIL },
	api_tools = { ROLE,
		      DELTA "\"tool_calls\":[{\"index\":0,\"id\":\"" MARK
			    "\",\"type\":\"function\",\"function\":{\"name\":\"f\"}}]" TAIL,
		      DELTA
		      "\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"1\"}}]" TAIL },
	api_spaced = { "data: {\"choices\": [{\"delta\": {\"role\": \"assistant\", \"content\": "
		       "\"\"}}]}\n\n",
		       "data: {\"choices\": [{\"delta\": {\"content\": \"" MARK "\"}}]}\n\n",
		       "data: {\"choices\": [{\"delta\": {\"content\": \"w\"}}]}\n\n" },
	api_completions = { "",
			    "data: {" ID ",\"choices\":[{\"index\":0,\"text\":\"" MARK "\"}]}\n\n",
			    "data: {" ID ",\"choices\":[{\"index\":0,\"text\":\"w\"}]}\n\n" },
	api_responses = { "event: response.created\ndata: "
			  "{\"type\":\"response.created\",\"response\":"
			  "{\"id\":\"resp_1\",\"tools\":[{\"text\":\"not a token\"}]}}\n\n"
			  "event: response.content_part.added\ndata: "
			  "{\"part\":{\"text\":\"\"}}\n\n",
			  "event: response.output_text.delta\ndata: {\"delta\":\"" MARK "\"}\n\n",
			  "event: response.output_text.delta\ndata: {\"delta\":\" w\"}\n\n" },
	api_messages = {
		"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n"
		"event: content_block_start\ndata: {\"content_block\":{\"type\":\"text\","
		"\"text\":\"\"}}\n\n",
		"event: content_block_delta\ndata: {\"delta\":{\"text\":\"" MARK "\"}}\n\n",
		"event: content_block_delta\ndata: {\"delta\":{\"text\":\"w\"}}\n\n"
	};

static const struct shape {
	const struct api *api;
	const char *script;
} shapes[] = {
#define X(name, api, script) { &api_##api, script },
	PROBE_SHAPES(X)
#undef X
};

struct answer {
	int fd;
	const struct api *api;
	unsigned delay_us;
	int unframed, failed, close;
	uint64_t token_ns, end_ns;
	size_t n, token_at; /* of what is not yet written */
	char bytes[16384];
};

static void put(struct answer *a, const char *text)
{
	size_t n = strlen(text);

	if (a->n + n >= sizeof(a->bytes))
		abort();
	memcpy(a->bytes + a->n, text, n + 1);
	a->n += n;
}

static void put_event(struct answer *a, const char *text)
{
	char size[32];

	if (!*text)
		return;
	snprintf(size, sizeof(size), "%zx\r\n", strlen(text));
	if (!a->unframed)
		put(a, size);
	put(a, text);
	if (!a->unframed)
		put(a, "\r\n");
}

static void write_some(struct answer *a, size_t n)
{
	for (size_t at = 0; at < n && !a->failed;) {
		ssize_t wrote = send(a->fd, a->bytes + at, n - at, MSG_NOSIGNAL);

		if (wrote <= 0)
			a->failed = 1;
		else
			at += (size_t)wrote;
	}
	memmove(a->bytes, a->bytes + n, a->n - n + 1);
	a->n -= n;
}

static void wait_us(unsigned us)
{
	struct timespec t = { us / 1000000, us % 1000000 * 1000L };

	if (us)
		nanosleep(&t, NULL);
}

/* The token's event cut in the key and right before the token. */
static void write_split(struct answer *a)
{
	size_t mark = (size_t)(strstr(a->bytes, MARK) - a->bytes);

	write_some(a, mark - 6);
	wait_us(300);
	write_some(a, 6);
	wait_us(300);
	a->token_ns = clock_ns();
}

static void put_end(struct answer *a)
{
	put_event(a, "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n");
	put_event(a, "data: [DONE]\n\n");
	put(a, "0\r\n\r\n");
}

#define EVENTS \
	"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
#define JSON "{\"choices\":[{\"message\":{\"role\":\"assistant\",\"content\":\"" MARK "\"}}]}"

/* What a letter writes; 0 = it waits. */
static int put_step(struct answer *a, char step)
{
	static const char json[] = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
	char length[64];

	switch (step) {
	case 'H':
		put(a, EVENTS "Transfer-Encoding: chunked\r\n\r\n");
		return 1;
	case 'h':
		put(a, EVENTS "connection: close\r\n\r\n");
		a->unframed = 1;
		return 1;
	case 'C':
		put(a, "HTTP/1.1 100 Continue\r\n\r\n");
		return 1;
	case 'R':
		put_event(a, a->api->before);
		return 1;
	case 'T':
	case 'S':
		put_event(a, a->api->token);
		return 1;
	case 'N':
		for (int i = 0; i < 3; i++)
			put_event(a, a->api->more);
		return 1;
	case 'E':
		put_end(a);
		return 1;
	case 'J':
		snprintf(length, sizeof(length), "content-length: %zu\r\n\r\n", strlen(JSON));
		put(a, json);
		put(a, length);
		put(a, JSON);
		return 1;
	case 'j':
		put(a, json);
		put(a, "transfer-encoding: chunked\r\n\r\n");
		put_event(a, JSON);
		put(a, "0\r\n\r\n");
		return 1;
	case 'B':
		put(a, "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
		       "content-length: 20\r\n\r\n{\"error\":\"overload\"}");
		return 1;
	default:
		return 0;
	}
}

static void wait_step(struct answer *a, char step)
{
	if (step == 'X') {
		a->close = 1;
	} else if (step == 'P') {
		for (int i = 0; i < 3; i++) {
			wait_us(a->delay_us / 3);
			put_event(a, ": ping \"content\":\"x\"\n\n");
			write_some(a, a->n);
		}
	} else {
		wait_us(step == 'w'   ? a->delay_us * 3 / 10
			: step == 'v' ? a->delay_us * 7 / 10
				      : a->delay_us);
	}
}

static void play(struct answer *a, const char *script)
{
	for (; *script && !a->failed && !a->close; script++) {
		if (*script == '+')
			continue;
		if (!put_step(a, *script)) {
			wait_step(a, *script);
			continue;
		}
		if (script[1] == '+')
			continue;
		if (!a->token_ns && strstr(a->bytes, MARK))
			a->token_ns = clock_ns();
		if (*script == 'S')
			write_split(a);
		if (!script[1] || script[1] == 'X')
			a->end_ns = clock_ns();
		write_some(a, a->n);
	}
}

static unsigned long field(const char *head, const char *name)
{
	const char *at = strcasestr(head, name);

	return at ? strtoul(at + strlen(name), NULL, 10) : 0;
}

static void note(const struct answer *a, unsigned long id, unsigned shape, uint64_t got_ns)
{
	if (!notes)
		return;
	flockfile(notes);
	fprintf(notes,
		"{\"id\":%lu,\"shape\":\"%s\",\"got_ns\":%" PRIu64 ",\"token_ns\":%" PRIu64
		",\"end_ns\":%" PRIu64 ",\"failed\":%d}\n",
		id, probe_shape_names[shape], got_ns, a->token_ns, a->end_ns, a->failed);
	fflush(notes);
	funlockfile(notes);
}

/* Reads on until the head is whole; its length, 0 = the connection is over. */
static size_t read_head(int fd, char *bytes, size_t size, size_t *have)
{
	for (;;) {
		bytes[*have] = 0;
		char *end = strstr(bytes, "\r\n\r\n");

		if (end)
			return (size_t)(end - bytes) + 4;
		ssize_t n = recv(fd, bytes + *have, size - 1 - *have, 0);

		if (n <= 0)
			return 0;
		*have += (size_t)n;
	}
}

static int answer_one(int fd, char *bytes, size_t size, size_t *have)
{
	size_t head = read_head(fd, bytes, size, have);

	if (!head)
		return -1;
	bytes[head - 1] = 0;
	const char *name = strcasestr(bytes, "x-shape: ");
	unsigned shape = name ? probe_shape_find(name + 9, strcspn(name + 9, "\r")) : SHAPES_NR;
	unsigned long id = field(bytes, "x-id: "), length = field(bytes, "content-length: ");
	struct answer a = { .fd = fd, .delay_us = (unsigned)field(bytes, "x-delay-us: ") };

	if (shape == SHAPES_NR)
		return -1;
	const char *script = shapes[shape].script;

	a.api = shapes[shape].api;
	if (*script == 'C') {
		put_step(&a, *script++);
		write_some(&a, a.n);
	}
	while (*have < head + length) {
		ssize_t n = recv(fd, bytes + *have, size - 1 - *have, 0);

		if (n <= 0)
			return -1;
		*have += (size_t)n;
	}
	uint64_t got_ns = clock_ns();

	memmove(bytes, bytes + head + length, *have - head - length);
	*have -= head + length;
	play(&a, script);
	note(&a, id, shape, got_ns);
	return a.failed || a.close ? -1 : 0;
}

static void *serve(void *arg)
{
	int fd = (int)(intptr_t)arg, one = 1;
	enum { SIZE = 1 << 20 };
	char *bytes = malloc(SIZE);
	size_t have = 0;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	while (answer_one(fd, bytes, SIZE, &have) == 0)
		;
	close(fd);
	free(bytes);
	return NULL;
}

static void spawn(void *(*run)(void *), int fd)
{
	pthread_attr_t attr;
	pthread_t thread;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, 256 * 1024);
	if (pthread_create(&thread, &attr, run, (void *)(intptr_t)fd))
		close(fd);
	pthread_attr_destroy(&attr);
}

static void *accept_all(void *arg)
{
	int listener = (int)(intptr_t)arg;

	for (;;) {
		int fd = accept(listener, NULL, NULL);

		if (fd >= 0)
			spawn(serve, fd);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	char why[ADDR_WHY_MAX];
	sigset_t ends;
	int number;

	if (argc < 3)
		return 2;
	if (strcmp(argv[1], "-") != 0)
		notes = fopen(argv[1], "w");
	sigemptyset(&ends);
	sigaddset(&ends, SIGINT);
	sigaddset(&ends, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &ends, NULL);
	for (int i = 2; i < argc; i++) {
		struct addr addr;
		int one = 1;

		if (addr_parse(&addr, argv[i], why))
			return 2;
		int fd = socket(addr.sa.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		if (bind(fd, &addr.sa.any, addr.len) || listen(fd, 256)) {
			perror(argv[i]);
			return 1;
		}
		spawn(accept_all, fd);
	}
	fprintf(stderr, "listening\n");
	sigwait(&ends, &number);
	return 0;
}
