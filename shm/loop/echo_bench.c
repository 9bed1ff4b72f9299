/* What an echoed message costs on either loop: a server child on the loop, a paced client, CPU by
 * rusage. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shm/loop/loop.h"

enum {
	MESSAGE = 300, /* bytes: about an SSE event */
	CONNECTIONS_MAX = 1024,
	BUFFERS = 4096,
	BUFFER_SIZE = 8192,
};

/* One buffer at a time is enough: a client awaits its answer before it writes again. */
struct server {
	struct loop *loop;
	int buffer[CONNECTIONS_MAX + 2];
	unsigned next, open;
};

static void on_event(void *ctx, const struct loop_event *event)
{
	struct server *s = ctx;
	struct iovec iov;

	switch (event->op) {
	case LOOP_ACCEPTED: {
		int one = 1, handle;

		if (event->res < 0)
			exit(1);
		setsockopt(event->res, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		handle = loop_add(s->loop, event->res, ++s->next);
		s->open++;
		loop_receive(s->loop, handle);
		break;
	}
	case LOOP_RECEIVED:
		if (event->res <= 0) {
			loop_close(s->loop, event->handle);
			break;
		}
		iov = (struct iovec){ (void *)(uintptr_t)event->data, (size_t)event->res };
		s->buffer[event->tag] = event->buffer;
		loop_send(s->loop, event->handle, &iov, 1);
		break;
	case LOOP_SENT:
		loop_give_back(s->loop, s->buffer[event->tag]);
		break;
	case LOOP_CLOSED:
		s->open--;
		break;
	default:
		break;
	}
}

static void serve(enum loop_kind kind, int listener)
{
	static struct server s;
	const struct loop_params params = { .kind = kind,
					    .handles_max = CONNECTIONS_MAX + 1,
					    .buffers = BUFFERS,
					    .buffer_size = BUFFER_SIZE,
					    .entries = 4096 };
	struct loop_stats stats;
	const char *why;

	if (loop_new(&s.loop, &params, on_event, &s, &why) != 0) {
		fprintf(stderr, "%s\n", why);
		exit(1);
	}
	loop_accept(s.loop, loop_add(s.loop, listener, 0));
	do
		loop_turn(s.loop, UINT64_MAX);
	while (s.next == 0 || s.open > 0);
	loop_stats_get(s.loop, &stats);
	printf(" %6.1f events a turn", (double)stats.events / (double)stats.turns);
	fflush(stdout);
	_exit(0);
}

static int make_listener(struct sockaddr_in *addr)
{
	socklen_t len = sizeof(*addr);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	*addr = (struct sockaddr_in){ .sin_family = AF_INET,
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	if (bind(fd, (struct sockaddr *)addr, len) < 0 || listen(fd, CONNECTIONS_MAX) < 0 ||
	    getsockname(fd, (struct sockaddr *)addr, &len) < 0)
		exit(1);
	return fd;
}

/* Each round writes to every connection, then reads every answer: what a decode step does. */
static void converse(const struct sockaddr_in *addr, int connections, int rounds, int per_second)
{
	const struct timespec pause = { .tv_nsec = per_second ? 1000000000 / per_second : 0 };
	static int fd[CONNECTIONS_MAX];
	char bytes[MESSAGE] = "data: ";
	int one = 1;

	for (int i = 0; i < connections; i++) {
		fd[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (connect(fd[i], (const struct sockaddr *)addr, sizeof(*addr)) < 0)
			exit(1);
		setsockopt(fd[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	}
	for (int round = 0; round < rounds; round++) {
		for (int i = 0; i < connections; i++) {
			if (send(fd[i], bytes, MESSAGE, 0) != MESSAGE)
				exit(1);
		}
		for (int i = 0; i < connections; i++) {
			if (recv(fd[i], bytes, MESSAGE, MSG_WAITALL) != MESSAGE)
				exit(1);
		}
		if (per_second)
			nanosleep(&pause, NULL);
	}
	for (int i = 0; i < connections; i++)
		close(fd[i]);
}

static double cpu_us(const struct rusage *use)
{
	return 1e6 * (double)(use->ru_utime.tv_sec + use->ru_stime.tv_sec) +
	       (double)(use->ru_utime.tv_usec + use->ru_stime.tv_usec);
}

static void measure(enum loop_kind kind, int connections, int rounds, int per_second)
{
	struct sockaddr_in addr;
	struct rusage use;
	int listener = make_listener(&addr), status;
	pid_t server;

	printf("%-6s %4d connections %5d rounds", loop_kind_name(kind), connections, rounds);
	fflush(stdout); /* the server's half of the line comes next */
	server = fork();
	if (server == 0)
		serve(kind, listener);
	close(listener);
	converse(&addr, connections, rounds, per_second);
	wait4(server, &status, 0, &use);
	printf(" %6.2f us a message (user %.0f %%)\n", cpu_us(&use) / connections / rounds,
	       100 * 1e6 * ((double)use.ru_utime.tv_sec + (double)use.ru_utime.tv_usec / 1e6) /
		       cpu_us(&use));
}

/* The operand at `i`, -1 when it is no number. */
static int operand(int argc, char **argv, int i, int standard)
{
	char *end;
	long value = i < argc ? strtol(argv[i], &end, 10) : standard;

	return i < argc && (*end || end == argv[i] || value > 1000000) ? -1 : (int)value;
}

int main(int argc, char **argv)
{
	int connections = operand(argc, argv, 1, 512);
	int rounds = operand(argc, argv, 2, 200);
	int per_second = operand(argc, argv, 3, 50);

	if (connections < 1 || connections > CONNECTIONS_MAX || rounds < 1 || per_second < 0) {
		fprintf(stderr,
			"usage: echo-bench [CONNECTIONS 1..%d [ROUNDS [ROUNDS_PER_SECOND, 0 = "
			"all]]]\n",
			CONNECTIONS_MAX);
		return 2;
	}
	for (int i = 0; i < 3; i++) {
		measure(LOOP_EPOLL, connections, rounds, per_second);
		measure(LOOP_URING, connections, rounds, per_second);
	}
	return 0;
}
