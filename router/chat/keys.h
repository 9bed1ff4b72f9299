/* Looks up a JSON key in a sorted table by its first eight bytes, as one number. */
#ifndef TURNWARD_ROUTER_CHAT_KEYS_H
#define TURNWARD_ROUTER_CHAT_KEYS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct chat_key {
	uint64_t head; /* the first eight bytes, the first one on top, zeros after the end */
	const char *text;
	size_t len;
};

#define CHAT_KEY_BYTE(s, i)                                                              \
	((uint64_t)(unsigned char)(sizeof(s) > (i) ? (s)[sizeof(s) > (i) ? (i) : 0] : 0) \
	 << (56 - 8 * (i)))
#define CHAT_KEY(s)                                                                       \
	{                                                                                 \
		CHAT_KEY_BYTE(s, 0) | CHAT_KEY_BYTE(s, 1) | CHAT_KEY_BYTE(s, 2) |         \
			CHAT_KEY_BYTE(s, 3) | CHAT_KEY_BYTE(s, 4) | CHAT_KEY_BYTE(s, 5) | \
			CHAT_KEY_BYTE(s, 6) | CHAT_KEY_BYTE(s, 7),                        \
			s, sizeof(s) - 1                                                  \
	}

/* Its index, or n. `text` must be readable for 8 bytes, whatever its length. */
static inline unsigned chat_key_find(const struct chat_key *keys, unsigned n, const char *text,
				     size_t len)
{
	uint64_t head;
	unsigned low = 0, high = n;

	memcpy(&head, text, sizeof(head));
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	head = __builtin_bswap64(head);
#endif
	if (len < 8)
		head = len ? head & ~0ull << (64 - 8 * len) : 0;
	while (low < high) {
		unsigned middle = (low + high) / 2;

		if (keys[middle].head < head)
			low = middle + 1;
		else
			high = middle;
	}
	for (; low < n && keys[low].head == head; low++)
		if (keys[low].len == len && (len <= 8 || memcmp(keys[low].text, text, len) == 0))
			return low;
	return n;
}

#endif
