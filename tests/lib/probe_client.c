/*
 * A client for the probe's tests: keeps connections busy with requests of given shapes and notes
 * when its bytes went and came, with blocking calls or with io_uring.
 *
 *   probe_client [--uring] [--conns N] [--requests N] [--body MAX] [--delay-us MIN:MAX] [--seed N]
 *                [--cgroup DIR] [--count FILE] FILE SHAPE,SHAPE... ADDRESS:PORT...
 *
 * FILE -: nothing is noted. At its end it prints how many requests a second there were; the file
 * of --count holds all the time, as a number of four bytes, how many were begun.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <liburing.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "shm/base/addr.h"
#include "shm/base/clock.h"
#include "tests/lib/probe_shapes.h"

enum { CONNS_MAX = 256, ADDRESSES_MAX = 64, IN_SIZE = 1 << 18, HEAD_SIZE = 1024 };

static struct {
	FILE *notes;
	int uring;
	unsigned conns, requests, body, delay_min, delay_max, seed;
	unsigned shapes[SHAPES_NR], shapes_nr;
	struct addr addresses[ADDRESSES_MAX];
	unsigned addresses_nr;
} job = { .conns = 16, .requests = 16, .body = 200000, .delay_min = 2000, .delay_max = 30000 };

static _Atomic unsigned own_count, *next_id = &own_count;

struct worker {
	unsigned number, seed;
	int fd, port;
	struct io_uring ring;
	char *out, *in;
};

struct asked {
	unsigned id, shape, delay_us;
	size_t tx, rx;
	int status;
	const char *end; /* how the answer ended */
	uint64_t send_ns, sent_ns, token_ns, end_ns;
};

static unsigned pick(struct worker *w, unsigned n)
{
	return (unsigned)rand_r(&w->seed) % n;
}

static ssize_t transfer(struct worker *w, int sends, char *bytes, size_t n)
{
	if (!job.uring)
		return sends ? send(w->fd, bytes, n, MSG_NOSIGNAL) : recv(w->fd, bytes, n, 0);
	struct io_uring_sqe *sqe = io_uring_get_sqe(&w->ring);
	struct io_uring_cqe *cqe;

	if (sends)
		io_uring_prep_send(sqe, w->fd, bytes, n, MSG_NOSIGNAL);
	else
		io_uring_prep_recv(sqe, w->fd, bytes, n, 0);
	io_uring_submit_and_wait(&w->ring, 1);
	if (io_uring_wait_cqe(&w->ring, &cqe))
		return -1;
	ssize_t result = cqe->res;

	io_uring_cqe_seen(&w->ring, cqe);
	return result;
}

static void dial(struct worker *w)
{
	const struct addr *to = &job.addresses[w->number % job.addresses_nr];
	struct sockaddr_storage own;
	socklen_t len = sizeof(own);
	int one = 1;

	w->fd = socket(to->sa.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (connect(w->fd, &to->sa.any, to->len)) {
		perror("connect");
		exit(1);
	}
	setsockopt(w->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	getsockname(w->fd, (struct sockaddr *)&own, &len);
	w->port =
		ntohs(((struct sockaddr_in *)&own)->sin_port); /* the same place in both families */
}

static void hang_up(struct worker *w)
{
	close(w->fd);
	w->fd = -1;
}

/* Head and body into w->out; returns where the body begins. */
static size_t make_request(struct worker *w, struct asked *a)
{
	size_t body = 40 + (pick(w, 4) && job.body > 4000 ? pick(w, 4000) : pick(w, job.body));
	const char *fields = a->shape == SHAPE_interim    ? "Expect: 100-continue\r\n"
			     : a->shape == SHAPE_internal ? "x-turnward-internal: piece\r\n"
							  : "";
	const char *path = a->shape == SHAPE_completions || a->shape == SHAPE_echo ? "completions"
			   : a->shape == SHAPE_responses                           ? "responses"
			   : a->shape == SHAPE_messages                            ? "messages"
							: "chat/completions";
	const char *start =
		a->shape == SHAPE_echo ? "{\"echo\":true,\"prompt\":\"" : "{\"prompt\":\"";
	static const char end[] = "\",\"stream\":true}";
	int get = a->shape == SHAPE_metrics;

	body = get ? 0 : body + strlen(start) + strlen(end);
	int head = get ? snprintf(w->out, HEAD_SIZE, "GET /metrics HTTP/1.1\r\n")
		       : snprintf(w->out, HEAD_SIZE, "POST /v1/%s HTTP/1.1\r\n", path);

	head += snprintf(w->out + head, (size_t)(HEAD_SIZE - head),
			 "Host: x\r\nx-shape: %s\r\nx-id: %u\r\nx-delay-us: %u\r\n%s"
			 "Content-Length: %zu\r\n\r\n",
			 probe_shape_names[a->shape], a->id, a->delay_us, fields, body);
	memset(w->out + head, 'x', body);
	if (body) {
		memcpy(w->out + head, start, strlen(start));
		memcpy(w->out + (size_t)head + body - strlen(end), end, strlen(end));
	}
	a->tx = (size_t)head + body;
	return (size_t)head;
}

static void send_some(struct worker *w, size_t from, size_t to)
{
	while (from < to) {
		ssize_t n = transfer(w, 1, w->out + from, to - from);

		if (n <= 0)
			return;
		from += (size_t)n;
	}
}

/* Whether the answer is whole, and its status. */
static int is_whole(struct worker *w, struct asked *a)
{
	char *head = w->in, *end;

	while ((end = strstr(head, "\r\n\r\n")) && strncmp(head + 9, "1", 1) == 0)
		head = end + 4;
	if (!end)
		return 0;
	a->status = (int)strtol(head + 9, NULL, 10);
	char *length = strcasestr(head, "content-length: ");

	if (length && length < end)
		return a->rx >= (size_t)(end + 4 - w->in) + strtoul(length + 16, NULL, 10);
	return a->rx > 5 && memcmp(w->in + a->rx - 5, "0\r\n\r\n", 5) == 0;
}

static int receive_some(struct worker *w, struct asked *a)
{
	ssize_t n = transfer(w, 0, w->in + a->rx, IN_SIZE - 1 - a->rx);
	uint64_t now = clock_ns();

	a->end_ns = now;
	if (n <= 0) {
		a->end = "closed";
		hang_up(w);
		return 1;
	}
	a->rx += (size_t)n;
	w->in[a->rx] = 0;
	if (!a->token_ns && strstr(w->in, PROBE_TOKEN_MARK))
		a->token_ns = now;
	if (!is_whole(w, a))
		return 0;
	a->end = "whole";
	return 1;
}

static void note(const struct worker *w, int port, const struct asked *a)
{
	if (!job.notes)
		return;
	flockfile(job.notes);
	fprintf(job.notes,
		"{\"id\":%u,\"shape\":\"%s\",\"client_port\":%d,\"engine\":%u,\"status\":%d,"
		"\"end\":\"%s\",\"tx\":%zu,\"rx\":%zu,\"send_ns\":%" PRIu64 ",\"sent_ns\":%" PRIu64
		",\"token_ns\":%" PRIu64 ",\"end_ns\":%" PRIu64 "}\n",
		a->id, probe_shape_names[a->shape], port, w->number % job.addresses_nr, a->status,
		a->end, a->tx, a->rx, a->send_ns, a->sent_ns, a->token_ns, a->end_ns);
	funlockfile(job.notes);
}

static void ask(struct worker *w, unsigned turn)
{
	struct asked a = { .id = (*next_id)++,
			   .shape = job.shapes[(w->number + turn) % job.shapes_nr],
			   .delay_us = job.delay_min + pick(w, job.delay_max - job.delay_min + 1) };
	size_t body = make_request(w, &a);
	int port;

	if (w->fd < 0)
		dial(w);
	port = w->port;
	w->in[0] = 0;
	a.send_ns = clock_ns();
	if (a.shape == SHAPE_interim) {
		send_some(w, 0, body);
		while (!strstr(w->in, "\r\n\r\n") && !receive_some(w, &a))
			;
		send_some(w, body, a.tx);
	} else {
		send_some(w, 0, a.tx);
	}
	a.sent_ns = clock_ns();
	if (a.shape == SHAPE_left) {
		struct timespec t = { 0, a.delay_us * 1000L };

		nanosleep(&t, NULL);
		a.end = "left";
		a.end_ns = clock_ns();
		hang_up(w);
	}
	while (!a.end && !receive_some(w, &a))
		;
	note(w, port, &a);
}

static void *run(void *arg)
{
	struct worker w = { .number = (unsigned)(intptr_t)arg, .fd = -1 };

	w.seed = job.seed * 1000 + w.number;
	w.out = malloc(HEAD_SIZE + job.body + 8192);
	w.in = malloc(IN_SIZE);
	if (job.uring && io_uring_queue_init(8, &w.ring, 0))
		exit(4); /* not permitted here */
	for (unsigned i = 0; i < job.requests; i++)
		ask(&w, i);
	if (w.fd >= 0)
		close(w.fd);
	if (job.uring)
		io_uring_queue_exit(&w.ring);
	free(w.out);
	free(w.in);
	return NULL;
}

static int enter_cgroup(const char *folder)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/cgroup.procs", folder);
	FILE *file = fopen(path, "w");

	return !file || fprintf(file, "%d", getpid()) < 0 || fclose(file) ? -1 : 0;
}

static int share_count(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	void *place = MAP_FAILED;

	if (fd >= 0 && ftruncate(fd, sizeof(*next_id)) == 0)
		place = mmap(NULL, sizeof(*next_id), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (place != MAP_FAILED)
		next_id = place;
	return place == MAP_FAILED ? -1 : 0;
}

static int set_option(const char *name, const char *value)
{
	char *colon;

	if (strcmp(name, "--conns") == 0)
		job.conns = (unsigned)strtoul(value, NULL, 10);
	else if (strcmp(name, "--requests") == 0)
		job.requests = (unsigned)strtoul(value, NULL, 10);
	else if (strcmp(name, "--body") == 0)
		job.body = (unsigned)strtoul(value, NULL, 10);
	else if (strcmp(name, "--seed") == 0)
		job.seed = (unsigned)strtoul(value, NULL, 10);
	else if (strcmp(name, "--delay-us") == 0) {
		job.delay_min = (unsigned)strtoul(value, &colon, 10);
		job.delay_max = (unsigned)strtoul(colon + 1, NULL, 10);
	} else if (strcmp(name, "--cgroup") == 0) {
		return enter_cgroup(value);
	} else if (strcmp(name, "--count") == 0) {
		return share_count(value);
	} else {
		return -1;
	}
	return 0;
}

static int set_shapes(const char *list)
{
	while (*list) {
		size_t n = strcspn(list, ",");
		unsigned shape = probe_shape_find(list, n);

		if (shape == SHAPES_NR || job.shapes_nr == SHAPES_NR)
			return -1;
		job.shapes[job.shapes_nr++] = shape;
		list += n + (list[n] == ',');
	}
	return 0;
}

static int bad(const char *what)
{
	fprintf(stderr, "probe_client: %s\n", what);
	return 2;
}

int main(int argc, char **argv)
{
	pthread_t threads[CONNS_MAX];
	char why[ADDR_WHY_MAX];
	int i = 1;

	for (; i < argc && strncmp(argv[i], "--", 2) == 0; i++) {
		if (strcmp(argv[i], "--uring") == 0)
			job.uring = 1;
		else if (i + 1 == argc || set_option(argv[i], argv[i + 1]))
			return bad(argv[i]);
		else
			i++;
	}
	if (argc - i < 3 || job.conns > CONNS_MAX || argc - i - 2 > ADDRESSES_MAX)
		return bad("usage: see the source");
	if (strcmp(argv[i], "-") != 0 && !(job.notes = fopen(argv[i], "w")))
		return bad(argv[i]);
	if (set_shapes(argv[i + 1]))
		return bad(argv[i + 1]);
	for (i += 2; i < argc; i++)
		if (addr_parse(&job.addresses[job.addresses_nr++], argv[i], why))
			return bad(why);
	signal(SIGPIPE, SIG_IGN);
	uint64_t began = clock_ns();

	for (unsigned n = 0; n < job.conns; n++)
		if (pthread_create(&threads[n], NULL, run, (void *)(intptr_t)n))
			return bad("threads");
	for (unsigned n = 0; n < job.conns; n++)
		pthread_join(threads[n], NULL);
	printf("%.1f\n",
	       job.conns * (double)job.requests * NS_PER_S / (double)(clock_ns() - began));
	return job.notes && fclose(job.notes) ? 1 : 0;
}
