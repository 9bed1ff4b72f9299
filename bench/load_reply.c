/* Reads answers and events as they come, and notes what the stamps in them say. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "bench/load_client_impl.h"
#include "shm/base/clock.h"

enum { RECEIVE = 256 * 1024 };

static void note_event(struct load_client *client, struct load_conn *c, uint64_t stamp,
		       uint64_t now_ns)
{
	struct load_told *told = &client->told;
	double delay_us = now_ns > stamp ? (double)(now_ns - stamp) / NS_PER_US : 0;

	hist_add(&told->delay_us, delay_us);
	if (c->last_ns)
		hist_add(&told->itl_us, (double)(now_ns - c->last_ns) / NS_PER_US);
	c->last_ns = now_ns;
	told->events++;
	told->late += delay_us > LOAD_LATE_MS * 1000;
	if (!c->streaming) {
		c->streaming = true;
		client->streaming++;
	}
}

static void note_whole(struct load_client *client, struct load_conn *c, uint64_t stamp)
{
	double us = stamp > c->sent_ns ? (double)(stamp - c->sent_ns) / NS_PER_US : 0;

	hist_add(&client->told.body_us, us);
}

/* Looks through text that continues the carry; leaves the next carry. */
static void stamps_take(struct load_client *client, struct load_conn *c, const char *text,
			size_t len, uint64_t now_ns)
{
	const char *at = text, *end = text + len, *behind;
	bool stream = client->ask[c->ask].ask.stream, any = false;
	uint64_t stamp;

	while ((stamp = load_stamp_find(at, (size_t)(end - at), &behind)) != 0) {
		if (stream)
			note_event(client, c, stamp, now_ns);
		else
			note_whole(client, c, stamp);
		any = true;
		at = behind;
	}
	client->told.reads += stream && any;
	size_t keep = (size_t)(end - at);
	if (keep > LOAD_CARRY - 1)
		keep = LOAD_CARRY - 1;
	memcpy(c->carry, end - keep, keep);
	c->carry_len = (uint16_t)keep;
}

static bool body_take(struct load_client *client, struct load_conn *c, const char *bytes,
		      size_t len, uint64_t now_ns)
{
	static char text[LOAD_CARRY + RECEIVE];
	size_t before = c->carry_len;

	memcpy(text, c->carry, before);
	memcpy(text + before, bytes, len);
	bool last = before + len >= 5 && memcmp(text + before + len - 5, "0\r\n\r\n", 5) == 0;
	stamps_take(client, c, text, before + len, now_ns);
	if (c->chunked)
		return last;
	c->left -= len < c->left ? len : c->left;
	return c->left == 0;
}

/* The head is whole up to `end`; false when it is no good answer. */
static bool head_take(struct load_client *client, struct load_conn *c, const char *end)
{
	c->chunked = false;
	c->left = 0;
	if (c->head_len < 12 || memcmp(c->head + 9, "200", 3) != 0)
		return false;
	for (const char *at = c->head; at < end; at++) {
		if (*at != '\n')
			continue;
		if (strncasecmp(at + 1, "content-length:", 15) == 0)
			c->left = strtoull(at + 16, NULL, 10);
		else if (strncasecmp(at + 1, "transfer-encoding:", 18) == 0)
			c->chunked = true;
	}
	c->state = LOAD_READING;
	return c->chunked || c->left > 0;
}

bool load_reply_take(struct load_client *client, struct load_conn *c, const char *bytes, size_t len,
		     uint64_t now_ns)
{
	if (c->state == LOAD_READING)
		return body_take(client, c, bytes, len, now_ns);
	size_t room = sizeof(c->head) - 1 - c->head_len, n = len < room ? len : room;
	size_t before = c->head_len;

	memcpy(c->head + before, bytes, n);
	c->head_len = (uint16_t)(before + n);
	c->head[c->head_len] = 0;
	const char *end = memmem(c->head, c->head_len, "\r\n\r\n", 4);
	if (!end && c->head_len < sizeof(c->head) - 1)
		return false;
	if (!end || !head_take(client, c, end)) {
		char why[120];

		snprintf(why, sizeof(why), "answered \"%.80s\"", c->head);
		why[strcspn(why, "\r")] = 0;
		load_conn_fail(client, c, why);
		return false;
	}
	size_t used = (size_t)(end + 4 - c->head) - before;
	return len > used && body_take(client, c, bytes + used, len - used, now_ns);
}

void load_conn_read(struct load_client *client, struct load_conn *c)
{
	static char bytes[RECEIVE];
	struct load_told *told = &client->told;
	ssize_t n = recv(c->fd, bytes, sizeof(bytes), MSG_DONTWAIT);

	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 0) {
		load_conn_fail(client, c, n == 0 ? "closed in mid-answer" : strerror(errno));
		return;
	}
	uint64_t now = clock_ns();
	if (!load_reply_take(client, c, bytes, (size_t)n, now))
		return;
	const struct load_request *r = &client->ask[c->ask];
	hist_add(&told->latency_us, (double)(now - c->due_ns) / NS_PER_US);
	told->requests++;
	told->body_bytes += r->len - r->body_at;
	client->streaming -= c->streaming;
	c->streaming = false;
	load_conn_next(client, c, now);
}
