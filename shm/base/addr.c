/* Reads addresses strictly, so that a typing error is told at start and not met at the first
 * request. */
#include "shm/base/addr.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { PORT_HTTP = 80 };

#define refuse(why, ...) (snprintf(why, ADDR_WHY_MAX, __VA_ARGS__), -EINVAL)

/* 1..65535 (0 too where a listener may ask for any), or -EINVAL. */
static int port_of(const char *text)
{
	size_t len = strlen(text);
	long port = 0;

	if (!len || len > 5 || strspn(text, "0123456789") != len)
		return -EINVAL;
	port = strtol(text, NULL, 10);
	return port <= 65535 ? (int)port : -EINVAL;
}

static int parse_local(struct addr *ret_addr, const char *path, char *why)
{
	struct addr addr = { .sa.local.sun_family = AF_UNIX };
	size_t len = strlen(path);

	if (!len)
		return refuse(why, "unix: needs a path");
	if (len >= sizeof(addr.sa.local.sun_path))
		return refuse(why, "the path has %zu characters, a Unix socket's may have %zu", len,
			      sizeof(addr.sa.local.sun_path) - 1);
	memcpy(addr.sa.local.sun_path, path, len + 1);
	addr.len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + 1);
	*ret_addr = addr;
	return 0;
}

static void set_v4(struct addr *ret_addr, struct in_addr ip, int port)
{
	*ret_addr = (struct addr){ .len = sizeof(struct sockaddr_in) };
	ret_addr->sa.v4.sin_family = AF_INET;
	ret_addr->sa.v4.sin_addr = ip;
	ret_addr->sa.v4.sin_port = htons((uint16_t)port);
}

static void set_v6(struct addr *ret_addr, struct in6_addr ip, int port)
{
	*ret_addr = (struct addr){ .len = sizeof(struct sockaddr_in6) };
	ret_addr->sa.v6.sin6_family = AF_INET6;
	ret_addr->sa.v6.sin6_addr = ip;
	ret_addr->sa.v6.sin6_port = htons((uint16_t)port);
}

/*
 * Splits "host:port", "[v6]:port" or "host" at the last colon that is no part of an IPv6 address.
 * *ret_port is NULL when there is none. Brackets are taken off.
 */
static int split_host(char *text, char **ret_host, char **ret_port, char *why)
{
	char *colon;

	*ret_port = NULL;
	*ret_host = text;
	if (*text == '[') {
		char *close = strchr(text, ']');

		if (!close || (close[1] && close[1] != ':'))
			return refuse(why, "an IPv6 address is written [ADDRESS]:PORT");
		*close = '\0';
		*ret_host = text + 1;
		if (close[1])
			*ret_port = close + 2;
		return 0;
	}
	colon = strchr(text, ':');
	if (colon && strchr(colon + 1, ':'))
		return refuse(why, "an IPv6 address is written [ADDRESS]:PORT");
	if (colon) {
		*colon = '\0';
		*ret_port = colon + 1;
	}
	return 0;
}

/* Numbers only; 0, or -EINVAL when `host` is no address. */
static int parse_number(struct addr *ret_addr, const char *host, int port)
{
	struct in6_addr v6;
	struct in_addr v4;

	if (inet_pton(AF_INET, host, &v4) == 1)
		set_v4(ret_addr, v4, port);
	else if (inet_pton(AF_INET6, host, &v6) == 1)
		set_v6(ret_addr, v6, port);
	else
		return -EINVAL;
	return 0;
}

int addr_parse(struct addr *ret_addr, const char *text, char *why)
{
	char copy[ADDR_TEXT_MAX], *host, *port_text;
	int port, err;

	if (!strncmp(text, "unix:", 5))
		return parse_local(ret_addr, text + 5, why);
	if (strlen(text) >= sizeof(copy))
		return refuse(why, "too long for an address");
	snprintf(copy, sizeof(copy), "%s", text);
	err = split_host(copy, &host, &port_text, why);
	if (err)
		return err;
	if (!port_text)
		return refuse(why, "write ADDRESS:PORT, :PORT or unix:PATH");
	port = port_of(port_text);
	if (port < 0)
		return refuse(why, "'%.20s' is no port: must be 0..65535", port_text);
	if (!*host || !strcmp(host, "*"))
		set_v4(ret_addr, (struct in_addr){ htonl(INADDR_ANY) }, port);
	else if (!strcmp(host, "localhost"))
		set_v4(ret_addr, (struct in_addr){ htonl(INADDR_LOOPBACK) }, port);
	else if (parse_number(ret_addr, host, port))
		return refuse(why, "'%.60s' is no address: write numbers, as 127.0.0.1 or [::1]",
			      host);
	return 0;
}

void addr_text(const struct addr *addr, char ret_text[ADDR_TEXT_MAX])
{
	char host[INET6_ADDRSTRLEN];

	switch (addr->sa.any.sa_family) {
	case AF_UNIX:
		snprintf(ret_text, ADDR_TEXT_MAX, "unix:%s", addr->sa.local.sun_path);
		return;
	case AF_INET:
		inet_ntop(AF_INET, &addr->sa.v4.sin_addr, host, sizeof(host));
		snprintf(ret_text, ADDR_TEXT_MAX, "%s:%u", host, ntohs(addr->sa.v4.sin_port));
		return;
	case AF_INET6:
		inet_ntop(AF_INET6, &addr->sa.v6.sin6_addr, host, sizeof(host));
		snprintf(ret_text, ADDR_TEXT_MAX, "[%s]:%u", host, ntohs(addr->sa.v6.sin6_port));
		return;
	default:
		snprintf(ret_text, ADDR_TEXT_MAX, "?");
	}
}

int addr_is_local(const struct addr *addr)
{
	const struct in6_addr *v6 = &addr->sa.v6.sin6_addr;

	switch (addr->sa.any.sa_family) {
	case AF_UNIX:
		return 1;
	case AF_INET:
		return ntohl(addr->sa.v4.sin_addr.s_addr) >> 24 == 127;
	case AF_INET6:
		return IN6_IS_ADDR_LOOPBACK(v6) ||
		       (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
	default:
		return 0;
	}
}

int addr_equal(const struct addr *a, const struct addr *b)
{
	char left[ADDR_TEXT_MAX], right[ADDR_TEXT_MAX];

	addr_text(a, left);
	addr_text(b, right);
	return a->sa.any.sa_family == b->sa.any.sa_family && !strcmp(left, right);
}

/* ---- engines ---- */

int addr_engine_name_valid(const char *name)
{
	size_t len = strnlen(name, ADDR_NAME_MAX + 1);

	if (!len || len > ADDR_NAME_MAX || !isalnum((unsigned char)name[0]))
		return 0;
	for (size_t i = 0; i < len; i++)
		if (!isascii(name[i]) ||
		    (!isalnum((unsigned char)name[i]) && !strchr("._-", name[i])))
			return 0;
	return 1;
}

/* "host-port", made valid and short: what is no name's letter becomes '-', the tail is kept. */
static void make_name(struct addr_engine *engine, const char *text)
{
	size_t len = strlen(text);
	const char *from = len > ADDR_NAME_MAX ? text + len - ADDR_NAME_MAX : text;
	size_t n = 0;

	for (; *from; from++) {
		int good =
			isascii(*from) && (isalnum((unsigned char)*from) || strchr("._-", *from));

		if (n || (good && isalnum((unsigned char)*from)))
			engine->name[n++] = good ? *from : '-';
	}
	if (!n)
		memcpy(engine->name, "engine", n = sizeof("engine") - 1);
	engine->name[n] = '\0';
}

static int look_up(struct addr *ret_addr, const char *host, int port, char *why)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG };
	struct addrinfo *list = NULL;
	int err = getaddrinfo(host, NULL, &hints, &list);

	if (err) {
		snprintf(why, ADDR_WHY_MAX, "cannot look up '%.80s': %s", host, gai_strerror(err));
		return -EHOSTUNREACH;
	}
	/* IPv4 first: engines listen there by default, and "localhost" has both. */
	struct addrinfo *best = list;

	for (struct addrinfo *i = list; i; i = i->ai_next)
		if (i->ai_family == AF_INET) {
			best = i;
			break;
		}
	if (best->ai_family == AF_INET)
		set_v4(ret_addr, ((struct sockaddr_in *)(void *)best->ai_addr)->sin_addr, port);
	else
		set_v6(ret_addr, ((struct sockaddr_in6 *)(void *)best->ai_addr)->sin6_addr, port);
	freeaddrinfo(list);
	return 0;
}

/* A host name's letters, or an IPv6 address between brackets: nothing that could end a head field.
 */
static int host_valid(const char *host)
{
	size_t len = strlen(host);

	return len && len <= 253 &&
	       strspn(host, "0123456789abcdefghijklmnopqrstuvwxyz"
			    "ABCDEFGHIJKLMNOPQRSTUVWXYZ._-:") == len;
}

/* What follows "http://": host, port, perhaps one slash. */
static int parse_http(struct addr_engine *engine, const char *rest, char *why)
{
	char copy[ADDR_URL_MAX], label[ADDR_HOST_MAX], *host, *port_text;
	size_t len = strcspn(rest, "/?#");
	int port = PORT_HTTP, err;

	if (rest[len] && strcmp(rest + len, "/"))
		return refuse(why, "give the engine's base URL without a path: http://HOST:PORT");
	snprintf(copy, sizeof(copy), "%.*s", (int)len, rest);
	if (strchr(copy, '@'))
		return refuse(why, "a URL with a user is not taken; see key engine_key");
	err = split_host(copy, &host, &port_text, why);
	if (err)
		return err;
	if (port_text)
		port = port_of(port_text);
	if (port <= 0)
		return refuse(why, "'%.20s' is no port: must be 1..65535", port_text);
	if (!host_valid(host))
		return refuse(why, "'%.60s' is no host", host);
	snprintf(engine->host, sizeof(engine->host), strchr(host, ':') ? "[%s]:%d" : "%s:%d", host,
		 port);
	snprintf(label, sizeof(label), "%s-%d", host, port);
	if (!engine->named)
		make_name(engine, label);
	/* Known without a look-up, so that a machine without /etc/hosts works, too. */
	if (!parse_number(&engine->addr, strcasecmp(host, "localhost") ? host : "127.0.0.1", port))
		return 0;
	return look_up(&engine->addr, host, port, why);
}

static int parse_url(struct addr_engine *engine, const char *url, char *why)
{
	size_t len = strlen(url);
	int err;

	if (len >= sizeof(engine->url))
		return refuse(why, "the URL is longer than %zu characters",
			      sizeof(engine->url) - 1);
	snprintf(engine->url, sizeof(engine->url), "%s", url);
	if (!strncasecmp(url, "https://", 8))
		return refuse(why,
			      "https is not spoken to engines: they are on this host; use http://");
	if (!strncmp(url, "unix:", 5)) {
		err = parse_local(&engine->addr, url + 5, why);
		if (err)
			return err;
		snprintf(engine->host, sizeof(engine->host), "localhost");
		if (!engine->named)
			make_name(engine, strrchr(url, '/') ? strrchr(url, '/') + 1 : url + 5);
		return 0;
	}
	if (strncasecmp(url, "http://", 7))
		return refuse(why, "write http://HOST:PORT or unix:PATH");
	err = parse_http(engine, url + 7, why);
	if (!err && engine->url[len - 1] == '/')
		engine->url[len - 1] = '\0';
	return err;
}

int addr_engine_parse(struct addr_engine *ret_engine, const char *text, char *why)
{
	struct addr_engine engine = { 0 };
	size_t name_len = strcspn(text, "=:/");
	int err;

	if (text[name_len] == '=') {
		engine.named = 1;
		snprintf(engine.name, sizeof(engine.name), "%.*s", (int)name_len, text);
		if (name_len > ADDR_NAME_MAX || !addr_engine_name_valid(engine.name))
			return refuse(
				why,
				"'%.*s' is no engine name: letters, digits and . _ -, at most %d, "
				"the first a letter or digit",
				(int)(name_len < 40 ? name_len : 40), text, ADDR_NAME_MAX);
		text += name_len + 1;
	}
	err = parse_url(&engine, text, why);
	if (err)
		return err;
	*ret_engine = engine;
	return 0;
}
