/*
 * A storm: thousands of client connections that ask, leave at random and check every answer.
 *
 * A closed loop: each connection sends its next request when the one before has ended. What a
 * request is, whether and where it is given up, and how, depends on the seed and its number only.
 * The sums at the end are one JSON object on stdout: sent = completed + aborted + cross_talk + sum
 * of errors.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "shm/base/addr.h"
#include "shm/base/clock.h"
#include "shm/base/exit.h"
#include "shm/base/opt.h"
#include "shm/loop/loop.h"
#include "shm/loop/wheel.h"
#include "tests/lib/storm_ask.h"
#include "tests/lib/storm_reply.h"

#define STORM_OPTIONS(X)                                                                 \
	X(ADDRESS, "address", "A:P", "where to send (127.0.0.1:8080)")                   \
	X(REQUESTS, "requests", "N", "requests in all (1000)")                           \
	X(CONNECTIONS, "connections", "C", "at once (100)")                              \
	X(ABORT, "abort", "PERCENT", "of the requests given up somewhere (0)")           \
	X(CLOSE, "close", "PERCENT", "of the requests that ask to close after them (5)") \
	X(SPLIT, "split", "PERCENT", "of the requests sent in two parts (10)")           \
	X(BODY, "body", "MIN-MAX", "bytes of bodies (200-100000)")                       \
	X(TOKENS, "tokens", "MIN-MAX", "of answers, at least 4 (4-12)")                  \
	X(KINDS, "kinds", "K[,K]...",                                                    \
	  "chat, chat-stream, text, text-stream, message, "                              \
	  "message-stream, embedding, tokenize (all)")                                   \
	X(MODEL, "model", "NAME", "to ask for (m)")                                      \
	X(SESSIONS, "sessions", "N", "different session ids (200)")                      \
	X(SECONDS, "seconds", "S", "start no request after S seconds")                   \
	X(PAUSE, "pause", "MS", "between two requests of a connection (0)")              \
	X(PATIENCE, "patience", "S", "for one request (60)")                             \
	X(HOLD, "hold", NULL, "tell when every connection streams; SIGTERM leaves")      \
	X(SEED, "seed", "N", "of everything that is random (1)")                         \
	X(IO, "io", "LOOP", "auto, uring, epoll (auto)")
#define OPTION_ENUM(id, name, value, help) OPTION_##id,
enum { OPTION_NONE, STORM_OPTIONS(OPTION_ENUM) };
#define OPTION_ROW(id_, name_, value_, help_) \
	{ .name = name_, .value = value_, .help = help_, .id = OPTION_##id_ },
static const struct opt options[] = { STORM_OPTIONS(OPTION_ROW){ 0 } };

static const struct opt_program program = {
	.name = "storm",
	.operands = "[options]",
	.purpose = "Many clients at once, some of which leave; every answer is checked.",
	.options = options,
	.examples = "  storm --address 127.0.0.1:8080 --requests 10000 --abort 30\n",
};

/* X(id, word): how a request can fail that was not given up. */
#define ERRORS(X)                                                           \
	X(CONNECT, "connect")         /* no connection */                   \
	X(EARLY, "closed_unanswered") /* not a byte of an answer */         \
	X(CUT, "cut")                 /* it ended in mid-answer */          \
	X(STATUS, "status")           /* not 200; see `statuses` */         \
	X(GARBAGE, "garbage")         /* not HTTP, or bytes beyond */       \
	X(SILENT, "no_value")         /* 200 without a value */             \
	X(UNENDED, "no_end")          /* a stream without its last event */ \
	X(LATE, "timeout")
#define ERROR_ENUM(id, word) ERROR_##id,
enum error_kind { ERRORS(ERROR_ENUM) ERRORS_NR };
#define ERROR_WORD(id, word) word,
static const char *const error_words[] = { ERRORS(ERROR_WORD) };

/* Where a request is given up. */
enum leave { STAY, LEAVE_IN_HEAD, LEAVE_IN_BODY, LEAVE_WHEN_SENT, LEAVE_SOON, LEAVE_IN_ANSWER };
enum { LEAVES = LEAVE_IN_ANSWER };
enum purpose {
	DRAW_LEAVE = 1,
	DRAW_WHERE,
	DRAW_RESET,
	DRAW_SPLIT,
	DRAW_CUT,
	DRAW_WAIT,
	DRAW_CLOSE
};
enum { WAIT_MAX_US = 3000, RECEIPTS_MAX = 4, STATUSES = 600 };
enum { REFUSED_WAIT_NS = 20 * NS_PER_MS };

struct client {
	uint32_t index;
	int handle; /* -1 = none */
	bool refused, sending, busy, closing;
	uint64_t number;
	enum leave leave;
	bool rst;
	size_t sent_to,
		cut_at; /* bytes given to the loop; where the first part ends, 0 = nowhere */
	uint32_t receipts, receipts_max;
	uint64_t start_ns;
	struct ask ask;
	struct reply_in reply;
	struct wheel_timer step, patience; /* the next part or the leaving; the limit */
};

static struct storm {
	struct loop *loop;
	struct wheel wheel;
	struct ask_world world;
	struct addr to;
	enum loop_kind io;
	uint64_t requests, connections, next, live;
	double abort, close, split, seconds, patience_s, pause_ms;
	bool hold, held, stopping;
	struct client *clients;
	uint32_t *latency_us;
	uint64_t completed, aborted, cross_talk, errors[ERRORS_NR], statuses[STATUSES];
	uint64_t streaming, chunks, bytes_in, start_ns, last_ns, gap_ns;
} storm;

static volatile sig_atomic_t told_to_stop;

static double draw(const struct client *c, enum purpose purpose)
{
	return (double)(ask_draw(&storm.world, c->number, purpose) >> 11) / (double)(1ull << 53);
}

static void start(struct client *c);

/* ---- ends ---- */

static void shut(struct client *c, bool rst)
{
	const struct linger hard = { .l_onoff = 1, .l_linger = 0 };

	wheel_disarm(&storm.wheel, &c->step);
	wheel_disarm(&storm.wheel, &c->patience);
	if (c->handle < 0 || c->closing)
		return;
	if (rst)
		setsockopt(loop_fd(storm.loop, c->handle), SOL_SOCKET, SO_LINGER, &hard,
			   sizeof(hard));
	c->closing = true;
	loop_close(storm.loop, c->handle);
}

/* The request has ended; its connection goes with it unless `keep`. */
static void ended(struct client *c, bool keep)
{
	assert(c->busy);
	c->busy = false;
	storm.streaming -= storm.hold && c->receipts > 0;
	wheel_disarm(&storm.wheel, &c->patience);
	wheel_disarm(&storm.wheel, &c->step);
	if (!keep || c->sending) {
		shut(c, false);
		return; /* LOOP_CLOSED goes on */
	}
	if (storm.pause_ms > 0)
		wheel_arm(&storm.wheel, &c->step,
			  clock_ns() + (uint64_t)(storm.pause_ms * NS_PER_MS));
	else
		start(c);
}

static void failed(struct client *c, enum error_kind kind)
{
	storm.errors[kind]++;
	ended(c, false);
}

static void leave(struct client *c)
{
	storm.aborted++;
	c->busy = false;
	storm.streaming -= storm.hold && c->receipts > 0;
	shut(c, c->rst);
}

static void answered(struct client *c)
{
	uint64_t now_ns = clock_ns(), us = (now_ns - c->start_ns) / NS_PER_US;

	if (c->reply.status != 200) {
		storm.errors[ERROR_STATUS]++;
		storm.statuses[c->reply.status > 0 && c->reply.status < STATUSES ? c->reply.status
										 : 0]++;
		ended(c, !c->reply.close);
		return;
	}
	enum ask_verdict verdict = ask_check(&c->ask, c->reply.body, c->reply.body_len);
	if (verdict == ASK_FOREIGN) {
		storm.cross_talk++;
		fprintf(stderr, "storm: request %llu got another's answer: %.*s\n",
			(unsigned long long)c->number,
			(int)(c->reply.body_len < 400 ? c->reply.body_len : 400), c->reply.body);
	} else if (verdict == ASK_SILENT || verdict == ASK_UNENDED) {
		storm.errors[verdict == ASK_SILENT ? ERROR_SILENT : ERROR_UNENDED]++;
		fprintf(stderr, "storm: request %llu (%s): %.*s\n", (unsigned long long)c->number,
			ask_kind_names[c->ask.kind],
			(int)(c->reply.body_len < 400 ? c->reply.body_len : 400), c->reply.body);
	} else {
		storm.latency_us[storm.completed++] = us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
		if (now_ns - storm.last_ns > storm.gap_ns)
			storm.gap_ns = now_ns - storm.last_ns;
		storm.last_ns = now_ns;
	}
	ended(c, !c->reply.close);
}

/* ---- sending ---- */

/* Bytes [sent_to, to) of the request. */
static void send_up_to(struct client *c, size_t to)
{
	struct iovec iov[ASK_IOV];
	size_t at = 0;
	int n = 0;

	assert(to > c->sent_to && to <= c->ask.bytes);
	for (int i = 0; i < ASK_IOV; i++) {
		size_t len = c->ask.iov[i].iov_len;
		size_t from = c->sent_to > at ? c->sent_to - at : 0;
		size_t until = to > at ? to - at : 0;

		until = until < len ? until : len;
		if (until > from)
			iov[n++] = (struct iovec){ (char *)c->ask.iov[i].iov_base + from,
						   until - from };
		at += len;
	}
	c->sent_to = to;
	c->sending = true;
	loop_send(storm.loop, c->handle, iov, n);
}

static void step_later(struct client *c)
{
	wheel_arm(&storm.wheel, &c->step,
		  clock_ns() + (uint64_t)(draw(c, DRAW_WAIT) * WAIT_MAX_US * NS_PER_US));
}

static void send_first(struct client *c)
{
	size_t to = c->cut_at ? c->cut_at : c->ask.bytes;

	if (c->leave != LEAVE_IN_HEAD && c->leave != LEAVE_IN_BODY)
		wheel_arm(&storm.wheel, &c->patience,
			  clock_ns() + (uint64_t)(storm.patience_s * NS_PER_S));
	send_up_to(c, to);
}

static void dial(struct client *c)
{
	int one = 1,
	    fd = socket(storm.to.sa.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	c->handle = fd < 0 ? -1 : loop_add(storm.loop, fd, c->index);
	if (c->handle < 0) {
		fprintf(stderr, "storm: no descriptor for a connection: %s\n", strerror(errno));
		exit(EXIT_RUNTIME);
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	c->closing = c->sending = false;
	loop_connect(storm.loop, c->handle, &storm.to.sa.any, storm.to.len);
}

/* Draws what becomes of it: stays or leaves where, in how many parts it is sent. */
static void plan(struct client *c)
{
	size_t head = c->ask.head_len, body = c->ask.bytes - head;

	c->leave = draw(c, DRAW_LEAVE) < storm.abort
			   ? (enum leave)(1 + (int)(draw(c, DRAW_WHERE) * LEAVES))
			   : STAY;
	c->rst = draw(c, DRAW_RESET) < 0.5;
	c->receipts_max = 1 + (uint32_t)(draw(c, DRAW_CUT) * RECEIPTS_MAX);
	c->cut_at = 0;
	if (c->leave == LEAVE_IN_HEAD)
		c->cut_at = 1 + (size_t)(draw(c, DRAW_CUT) * (double)(head - 1));
	else if (c->leave == LEAVE_IN_BODY)
		c->cut_at = head + (size_t)(draw(c, DRAW_CUT) * (double)body);
	else if (draw(c, DRAW_SPLIT) < storm.split)
		c->cut_at = 1 + (size_t)(draw(c, DRAW_CUT) * (double)(c->ask.bytes - 1));
}

static void start(struct client *c)
{
	bool over = storm.seconds > 0 &&
		    clock_ns() - storm.start_ns > (uint64_t)(storm.seconds * NS_PER_S);

	if (storm.next == storm.requests || over || storm.stopping) {
		if (c->handle >= 0)
			shut(c, false);
		else
			storm.live--;
		return;
	}
	c->number = storm.next++;
	c->busy = true;
	c->receipts = 0;
	c->sent_to = 0;
	ask_make(&c->ask, &storm.world, c->number, draw(c, DRAW_CLOSE) < storm.close);
	plan(c);
	reply_reset(&c->reply);
	c->start_ns = clock_ns();
	if (c->handle < 0)
		dial(c);
	else
		send_first(c);
}

/* ---- events ---- */

static void on_timer(struct client *c, struct wheel_timer *timer)
{
	if (timer == &c->patience)
		failed(c, ERROR_LATE);
	else if (!c->busy)
		start(c);
	else if (c->sent_to < c->ask.bytes && c->leave != LEAVE_IN_HEAD &&
		 c->leave != LEAVE_IN_BODY)
		send_up_to(c, c->ask.bytes);
	else
		leave(c);
}

static void on_sent(struct client *c, int res)
{
	c->sending = false;
	if (c->closing || !c->busy || res < 0)
		return; /* the receiving side tells what became of it */
	if (c->sent_to < c->ask.bytes || c->leave == LEAVE_SOON)
		step_later(c);
	else if (c->leave == LEAVE_WHEN_SENT)
		leave(c);
}

static void on_bytes(struct client *c, const uint8_t *data, size_t len)
{
	storm.bytes_in += len;
	if (!c->busy) { /* nothing was asked */
		storm.errors[ERROR_GARBAGE]++;
		shut(c, false);
		return;
	}
	uint64_t before = c->reply.chunks;
	reply_bytes(&c->reply, data, len);
	storm.chunks += c->reply.chunks - before;
	if (c->receipts++ == 0 && storm.hold)
		storm.streaming++;
	if (c->reply.state == REPLY_BAD)
		failed(c, ERROR_GARBAGE);
	else if (c->reply.state == REPLY_DONE)
		answered(c);
	else if (c->leave == LEAVE_IN_ANSWER && c->receipts >= c->receipts_max)
		leave(c);
}

static void on_end(struct client *c)
{
	if (!c->busy) {
		shut(c, false); /* between two requests that is its right */
		return;
	}
	reply_eof(&c->reply);
	if (c->reply.state == REPLY_DONE) {
		c->reply.close = 1;
		answered(c);
		return;
	}
	failed(c, c->receipts > 0 ? ERROR_CUT : ERROR_EARLY);
}

static void on_event(void *ctx, const struct loop_event *ev)
{
	struct client *c = &storm.clients[ev->tag];

	switch (ev->op) {
	case LOOP_CONNECTED:
		if (c->closing)
			return;
		c->refused = ev->res < 0;
		if (ev->res < 0) {
			failed(c, ERROR_CONNECT);
			return;
		}
		loop_receive(storm.loop, c->handle);
		send_first(c);
		return;
	case LOOP_SENT:
		on_sent(c, ev->res);
		return;
	case LOOP_RECEIVED:
		if (!c->closing && ev->res > 0)
			on_bytes(c, ev->data, (size_t)ev->res);
		else if (!c->closing)
			on_end(c);
		if (ev->res > 0)
			loop_give_back(storm.loop, ev->buffer);
		return;
	case LOOP_CLOSED:
		c->handle = -1;
		if (c->refused && !storm.stopping) /* no faster than a client would */
			wheel_arm(&storm.wheel, &c->step, clock_ns() + REFUSED_WAIT_NS);
		else
			start(c);
		return;
	default:
		return;
	}
}

/* ---- the whole ---- */

static void span(const char *name, const char *text, uint64_t *ret_min, uint64_t *ret_max)
{
	unsigned long long min, max;

	if (sscanf(text, "%llu-%llu", &min, &max) != 2 || min > max || min == 0)
		opt_fail(&program, "--%s must be MIN-MAX, not '%s'", name, text);
	*ret_min = min;
	*ret_max = max;
}

static double number(const char *name, const char *text)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || value < 0)
		opt_fail(&program, "--%s must be a number, not '%s'", name, text);
	return value;
}

static void kinds_take(const char *text)
{
#define ASK_SHARE(id, name, share) share,
	static const uint32_t shares[] = { ASK_KINDS(ASK_SHARE) };
	const char *names[ASK_KINDS_NR + 1] = { NULL };
	char word[32];

	memset(storm.world.share, 0, sizeof(storm.world.share));
	for (int i = 0; i < ASK_KINDS_NR; i++)
		names[i] = ask_kind_names[i];
	while (*text) {
		size_t len = strcspn(text, ",");
		int found = -1;

		snprintf(word, sizeof(word), "%.*s", (int)len, text);
		for (int i = 0; i < ASK_KINDS_NR; i++)
			if (strcmp(word, names[i]) == 0)
				found = i;
		if (found < 0 && strcmp(word, "all") != 0)
			opt_unknown(&program, "kind", word, names);
		for (int i = 0; i < ASK_KINDS_NR; i++)
			if (found < 0 || i == found)
				storm.world.share[i] = shares[i];
		text += len + (text[len] == ',');
	}
}

static enum loop_kind io_of(const char *text)
{
	static const char *const kinds[] = { "auto", "uring", "epoll", NULL };

	for (int i = 0; kinds[i]; i++)
		if (strcmp(text, kinds[i]) == 0)
			return (enum loop_kind)i;
	opt_unknown(&program, "loop", text, kinds);
}

static void option_take(int id, const char *value)
{
	char why[ADDR_WHY_MAX];
	uint64_t min, max;

	if (id == OPTION_ADDRESS && addr_parse(&storm.to, value, why) < 0)
		opt_fail(&program, "--address: %s", why);
	if (id == OPTION_REQUESTS)
		storm.requests = (uint64_t)number("requests", value);
	if (id == OPTION_CONNECTIONS)
		storm.connections = (uint64_t)number("connections", value);
	if (id == OPTION_ABORT)
		storm.abort = number("abort", value) / 100;
	if (id == OPTION_CLOSE)
		storm.close = number("close", value) / 100;
	if (id == OPTION_SPLIT)
		storm.split = number("split", value) / 100;
	if (id == OPTION_SECONDS)
		storm.seconds = number("seconds", value);
	if (id == OPTION_PAUSE)
		storm.pause_ms = number("pause", value);
	if (id == OPTION_PATIENCE)
		storm.patience_s = number("patience", value);
	if (id == OPTION_SESSIONS)
		storm.world.sessions = (uint32_t)number("sessions", value);
	if (id == OPTION_SEED)
		storm.world.seed = (uint64_t)number("seed", value);
	if (id == OPTION_MODEL)
		storm.world.model = value;
	if (id == OPTION_HOLD)
		storm.hold = true;
	if (id == OPTION_IO)
		storm.io = io_of(value);
	if (id == OPTION_KINDS)
		kinds_take(value);
	if (id == OPTION_BODY) {
		span("body", value, &min, &max);
		if (max > 200 + ASK_FILLER / 2)
			opt_fail(&program, "--body: at most %d bytes", 200 + ASK_FILLER / 2);
		storm.world.body_min = min, storm.world.body_max = max;
	}
	if (id == OPTION_TOKENS) {
		span("tokens", value, &min, &max);
		storm.world.tokens_min = (uint32_t)min, storm.world.tokens_max = (uint32_t)max;
	}
}

static int by_value(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static uint32_t quantile(double q)
{
	return storm.completed ? storm.latency_us[(uint64_t)(q * (double)(storm.completed - 1))]
			       : 0;
}

static void tell(void)
{
	double seconds = (double)(clock_ns() - storm.start_ns) * 1e-9;
	const char *comma = "";

	qsort(storm.latency_us, storm.completed, sizeof(uint32_t), by_value);
	printf("{\"sent\":%llu,\"completed\":%llu,\"aborted\":%llu,\"cross_talk\":%llu,"
	       "\"errors\":{",
	       (unsigned long long)storm.next, (unsigned long long)storm.completed,
	       (unsigned long long)storm.aborted, (unsigned long long)storm.cross_talk);
	for (int i = 0; i < ERRORS_NR; i++)
		if (storm.errors[i]) {
			printf("%s\"%s\":%llu", comma, error_words[i],
			       (unsigned long long)storm.errors[i]);
			comma = ",";
		}
	printf("},\"statuses\":{");
	comma = "";
	for (int i = 0; i < STATUSES; i++)
		if (storm.statuses[i]) {
			printf("%s\"%d\":%llu", comma, i, (unsigned long long)storm.statuses[i]);
			comma = ",";
		}
	printf("},\"seconds\":%.3f,\"longest_gap_s\":%.3f,\"chunks\":%llu,\"bytes_in\":%llu,"
	       "\"latency_us\":{\"p50\":%u,\"p90\":%u,\"p99\":%u}}\n",
	       seconds, (double)storm.gap_ns * 1e-9, (unsigned long long)storm.chunks,
	       (unsigned long long)storm.bytes_in, quantile(0.5), quantile(0.9), quantile(0.99));
	fflush(stdout);
}

static void on_signal(int signal_number)
{
	told_to_stop = 1;
}

static struct client *client_of(struct wheel_timer *timer)
{
	size_t at = (size_t)((char *)timer - (char *)storm.clients);

	return &storm.clients[at / sizeof(struct client)];
}

static void open_all(void)
{
	struct rlimit limit = { 0 };
	const char *why = "";

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	const struct loop_params params = { .kind = storm.io,
					    .handles_max = (unsigned)storm.connections + 8,
					    .buffers = 256,
					    .buffer_size = 32 * 1024,
					    .entries = 4096 };
	if (loop_new(&storm.loop, &params, on_event, NULL, &why) < 0) {
		fprintf(stderr, "storm: no event loop: %s\n", why);
		exit(EXIT_RUNTIME);
	}
	storm.clients = calloc(storm.connections, sizeof(struct client));
	storm.latency_us = calloc(storm.requests + 1, sizeof(uint32_t));
	if (!storm.clients || !storm.latency_us || ask_world_init(&storm.world) < 0)
		exit(EXIT_RUNTIME);
	storm.start_ns = storm.last_ns = clock_ns();
	wheel_init(&storm.wheel, NS_PER_MS / 4, storm.start_ns);
	storm.live = storm.connections;
	for (uint32_t i = 0; i < storm.connections; i++) {
		storm.clients[i].index = i;
		storm.clients[i].handle = -1;
		start(&storm.clients[i]);
	}
}

/* Everybody leaves at once. */
static void stop_all(void)
{
	storm.stopping = true;
	for (uint32_t i = 0; i < storm.connections; i++) {
		struct client *c = &storm.clients[i];

		if (c->busy)
			leave(c);
		else if (c->handle >= 0)
			shut(c, false);
		else if (c->step.prev) { /* between two connections */
			wheel_disarm(&storm.wheel, &c->step);
			storm.live--;
		}
	}
}

static void run(void)
{
	struct wheel_timer *timer;

	while (storm.live > 0) {
		uint64_t wait_ns = wheel_wait_ns(&storm.wheel, clock_ns());
		int err = loop_turn(storm.loop,
				    wait_ns < 100 * NS_PER_MS ? wait_ns : 100 * NS_PER_MS);

		if (err < 0 && err != -EINTR) {
			fprintf(stderr, "storm: the event loop failed: %s\n", strerror(-err));
			exit(EXIT_RUNTIME);
		}
		while ((timer = wheel_expire(&storm.wheel, clock_ns())) != NULL)
			on_timer(client_of(timer), timer);
		if (storm.hold && !storm.held && storm.streaming == storm.connections) {
			storm.held = true;
			printf("holding\n");
			fflush(stdout);
		}
		if (told_to_stop && !storm.stopping)
			stop_all();
	}
}

int main(int argc, char **argv)
{
	struct opt_scan scan;
	char why[ADDR_WHY_MAX];
	int id;

	addr_parse(&storm.to, "127.0.0.1:8080", why);
	storm.requests = 1000, storm.connections = 100;
	storm.close = 0.05, storm.split = 0.1, storm.patience_s = 60;
	storm.world = (struct ask_world){ .seed = 1,
					  .model = "m",
					  .body_min = 200,
					  .body_max = 100 * 1000,
					  .tokens_min = 4,
					  .tokens_max = 12,
					  .sessions = 200 };
	kinds_take("all");
	opt_begin(&scan, &program, argc, argv);
	while ((id = opt_next(&scan)) != OPT_END)
		option_take(id, scan.value);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGTERM, on_signal);
	signal(SIGINT, on_signal);
	open_all();
	run();
	tell();
	loop_free(storm.loop);
	for (uint32_t i = 0; i < storm.connections; i++)
		reply_fini(&storm.clients[i].reply);
	free(storm.clients);
	free(storm.latency_us);
	ask_world_fini(&storm.world);
	return EXIT_GOOD;
}
