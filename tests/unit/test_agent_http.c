/* The agent's client takes whole answers, only whole answers, and always comes back in time. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/http.h"
#include "shm/base/clock.h"
#include "tests/lib/unit.h"

static const uint64_t patience_ns = 5ull * NS_PER_S;

/* What the server does with the next request. */
struct reply {
	const char *bytes; /* NULL = say nothing */
	size_t len;
	size_t piece; /* sends so many bytes at a time; 0 = all */
	int hang_up;  /* closes afterwards */
};

static struct server {
	int listener;
	uint16_t port;
	pthread_t thread;
	struct reply reply[4];
	_Atomic int replies, next, connections, stop;
	char incoming[4096];
	char request[4096]; /* the last whole head */
} server;

static struct http_client client;

static int wait_readable(int fd)
{
	struct pollfd poll_fd = { .fd = fd, .events = POLLIN };

	while (!atomic_load(&server.stop)) {
		if (poll(&poll_fd, 1, 10) > 0)
			return 0;
	}
	return -1;
}

/* 1 when a whole request head has come. */
static int take_request(int fd)
{
	size_t len = 0;

	memset(server.incoming, 0, sizeof(server.incoming));
	while (!strstr(server.incoming, "\r\n\r\n")) {
		if (wait_readable(fd) < 0)
			return 0;
		ssize_t n = recv(fd, server.incoming + len, sizeof(server.incoming) - 1 - len, 0);
		if (n <= 0)
			return 0;
		len += (size_t)n;
	}
	memcpy(server.request, server.incoming, sizeof(server.request));
	return 1;
}

static int give_reply(int fd)
{
	int i = atomic_fetch_add(&server.next, 1) % 4;
	const struct reply *reply = &server.reply[i];

	if (!reply->bytes)
		return wait_readable(fd);
	for (size_t at = 0; at < reply->len;) {
		size_t n = reply->len - at;

		n = reply->piece && reply->piece < n ? reply->piece : n;
		if (send(fd, reply->bytes + at, n, MSG_NOSIGNAL) < 0)
			return -1;
		at += n;
		if (reply->piece)
			usleep(200);
	}
	return reply->hang_up ? -1 : 0;
}

static void *serve(void *arg)
{
	while (wait_readable(server.listener) == 0) {
		int fd = accept(server.listener, NULL, NULL);

		atomic_fetch_add(&server.connections, 1);
		while (take_request(fd) && give_reply(fd) == 0)
			;
		close(fd);
	}
	return NULL;
}

static int set_up(void **state)
{
	struct sockaddr_in any = { .sin_family = AF_INET,
				   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(any);
	struct addr_engine engine;
	char url[64], why[ADDR_WHY_MAX];

	memset(&server, 0, sizeof(server));
	server.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(server.listener, (struct sockaddr *)&any, len), 0);
	assert_int_equal(listen(server.listener, 8), 0);
	getsockname(server.listener, (struct sockaddr *)&any, &len);
	server.port = ntohs(any.sin_port);
	assert_int_equal(pthread_create(&server.thread, NULL, serve, NULL), 0);
	snprintf(url, sizeof(url), "http://127.0.0.1:%u", server.port);
	assert_int_equal(addr_engine_parse(&engine, url, why), 0);
	return http_client_init(&client, &engine, NULL);
}

static void stop_server(void)
{
	if (server.listener < 0)
		return;
	atomic_store(&server.stop, 1);
	pthread_join(server.thread, NULL);
	close(server.listener);
	server.listener = -1;
}

static int tear_down(void **state)
{
	http_client_fini(&client);
	stop_server();
	return 0;
}

static void will_reply(int i, const char *bytes, int hang_up)
{
	server.reply[i] =
		(struct reply){ .bytes = bytes, .len = strlen(bytes), .hang_up = hang_up };
}

static int status;
static const char *body;
static size_t body_len;
static uint64_t start_id;

static int get(uint64_t timeout_ns)
{
	return http_get(&client, "/metrics", timeout_ns, &status, &body, &body_len, &start_id);
}

#define HELLO "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"

static void a_page_comes_with_its_length(void **state)
{
	will_reply(0, HELLO, 0);

	assert_int_equal(get(patience_ns), 0);
	assert_int_equal(status, 200);
	assert_int_equal(body_len, 5);
	assert_memory_equal(body, "hello", 5);
	assert_non_null(strstr(server.request, "GET /metrics HTTP/1.1\r\n"));
	assert_null(strstr(server.request, "Accept-Encoding"));
	assert_null(strstr(server.request, "Authorization"));
}

static void chunks_are_put_together_however_they_are_cut(void **state)
{
	will_reply(0,
		   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
		   "3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nTrailer: 1\r\n\r\n",
		   0);
	server.reply[0].piece = 1;

	assert_int_equal(get(patience_ns), 0);
	assert_int_equal(body_len, 5);
	assert_memory_equal(body, "hello", 5);
}

static void one_connection_carries_many_pages(void **state)
{
	for (int i = 0; i < 4; i++)
		will_reply(i, HELLO, 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(get(patience_ns), 0);
	assert_int_equal(atomic_load(&server.connections), 1);
}

static void a_server_that_says_close_is_asked_over_a_new_connection(void **state)
{
	will_reply(0, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", 1);
	will_reply(1, HELLO, 0);

	assert_int_equal(get(patience_ns), 0);
	assert_int_equal(client.fd, -1);
	assert_int_equal(get(patience_ns), 0);
	assert_int_equal(atomic_load(&server.connections), 2);
}

static void a_kept_connection_that_dies_unused_is_replaced_silently(void **state)
{
	will_reply(0, HELLO, 0);
	will_reply(1, "", 1); /* takes the second request and hangs up without a byte */
	will_reply(2, HELLO, 0);

	assert_int_equal(get(patience_ns), 0);
	assert_int_equal(get(patience_ns), 0);
	assert_int_equal(body_len, 5);
	assert_int_equal(atomic_load(&server.connections), 2);
}

static void a_fresh_connection_that_dies_is_an_error(void **state)
{
	will_reply(0, "", 1);
	assert_int_equal(get(patience_ns), -ECONNRESET);
}

static void half_a_page_is_no_page(void **state)
{
	will_reply(0, "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello", 1);
	will_reply(1, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", 1);
	will_reply(2, "HTTP/1.1 200 O", 1);
	for (int i = 0; i < 3; i++)
		assert_int_equal(get(patience_ns), -ECONNRESET);
	assert_int_equal(client.fd, -1);
}

static void a_page_without_a_length_ends_with_the_connection(void **state)
{
	will_reply(0, "HTTP/1.1 200 OK\r\n\r\nhello", 1);
	assert_int_equal(get(patience_ns), 0);
	assert_int_equal(body_len, 5);
}

static void what_is_no_http_is_refused(void **state)
{
	will_reply(0, "SSH-2.0-OpenSSH_9.2\r\n", 0);
	will_reply(1, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", 0);
	assert_int_equal(get(patience_ns), -EPROTO);
	assert_int_equal(get(patience_ns), -EPROTO);
}

static void interim_answers_are_passed_over(void **state)
{
	will_reply(0, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" HELLO, 0);
	assert_int_equal(get(patience_ns), 0);
	assert_int_equal(status, 200);
}

static void a_page_beyond_the_bound_is_refused_by_name(void **state)
{
	size_t len = HTTP_BODY_MAX + 200;
	char *page = malloc(len + 1);

	memset(page, 'x', len);
	page[len] = 0;
	int head =
		sprintf(page, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", HTTP_BODY_MAX + 1);
	page[head] = 'x';
	will_reply(0, page, 1);
	assert_int_equal(get(patience_ns), -EFBIG);
	free(page);
}

static void an_endless_head_is_refused(void **state)
{
	char *head = malloc(300000);
	int len = sprintf(head, "HTTP/1.1 200 OK\r\n");

	while (len < 200000)
		len += sprintf(head + len, "X-Filler: %0200d\r\n", len);
	will_reply(0, head, 0);
	assert_int_equal(get(patience_ns), -EFBIG);
	free(head);
}

static void silence_ends_at_the_deadline(void **state)
{
	uint64_t start_ns = clock_ns();

	server.reply[0].bytes = NULL;
	assert_int_equal(get(30ull * NS_PER_MS), -ETIMEDOUT);
	assert_true(clock_ns() - start_ns >= 30ull * NS_PER_MS);
	assert_int_equal(client.fd, -1); /* a late answer must not meet the next question */
}

static void a_stop_signal_ends_the_wait(void **state)
{
	static volatile sig_atomic_t stop = 1;

	client.stop = &stop;
	server.reply[0].bytes = NULL;
	assert_int_equal(get(patience_ns), -EINTR);
}

static void nobody_there_is_told_at_once(void **state)
{
	stop_server();
	assert_int_equal(get(patience_ns), -ECONNREFUSED);
}

static void a_start_time_is_an_id_and_nothing_more(void **state)
{
	will_reply(0,
		   "HTTP/1.1 200 OK\r\nprocess-START-time-unix: 675639855\r\nContent-Length: "
		   "0\r\n\r\n",
		   0);
	will_reply(1,
		   "HTTP/1.1 200 OK\r\nX: y\r\nProcess-Start-Time-Unix: "
		   "675639856\r\nContent-Length: 0\r\n\r\n",
		   0);
	will_reply(2, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 0);

	assert_int_equal(get(patience_ns), 0);
	uint64_t first = start_id;
	assert_int_equal(get(patience_ns), 0);
	assert_true(first && start_id && first != start_id);
	assert_int_equal(get(patience_ns), 0);
	assert_int_equal(start_id, 0);
}

static void a_key_is_sent_as_bearer(void **state)
{
	strcpy(client.key, "sk-test");
	will_reply(0, HELLO, 0);
	assert_int_equal(get(patience_ns), 0);
	assert_non_null(strstr(server.request, "\r\nAuthorization: Bearer sk-test\r\n"));
}

static uint64_t next_random(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

static void mutated_answers_never_crash_or_hang(void **state)
{
	static const char good[] = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
				   "Process-Start-Time-Unix: 12\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
	uint64_t seed = 362436069;
	char text[sizeof(good)];

	for (int round = 0; round < 2000; round++) {
		memcpy(text, good, sizeof(good));
		for (int i = 0; i < 3; i++)
			text[next_random(&seed) % (sizeof(good) - 1)] = (char)next_random(&seed);
		http_client_close(&client);
		for (int i = 0; i < 4; i++)
			server.reply[i] = (struct reply){ .bytes = text,
							  .len = sizeof(good) - 1,
							  .hang_up = 1 };
		int err = get(patience_ns);
		assert_true(err == 0 || err == -EPROTO || err == -ECONNRESET);
	}
}

#define SERVED(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SERVED(a_page_comes_with_its_length),
		SERVED(chunks_are_put_together_however_they_are_cut),
		SERVED(one_connection_carries_many_pages),
		SERVED(a_server_that_says_close_is_asked_over_a_new_connection),
		SERVED(a_kept_connection_that_dies_unused_is_replaced_silently),
		SERVED(a_fresh_connection_that_dies_is_an_error),
		SERVED(half_a_page_is_no_page),
		SERVED(a_page_without_a_length_ends_with_the_connection),
		SERVED(what_is_no_http_is_refused),
		SERVED(interim_answers_are_passed_over),
		SERVED(a_page_beyond_the_bound_is_refused_by_name),
		SERVED(an_endless_head_is_refused),
		SERVED(silence_ends_at_the_deadline),
		SERVED(a_stop_signal_ends_the_wait),
		SERVED(nobody_there_is_told_at_once),
		SERVED(a_start_time_is_an_id_and_nothing_more),
		SERVED(a_key_is_sent_as_bearer),
		SERVED(mutated_answers_never_crash_or_hang),
	};

	return cmocka_run_group_tests_name("agent_http", tests, NULL, NULL);
}
