/* The content stream of a request: cut into blocks, hashed, and chained in template order. */
#ifndef TURNWARD_ROUTER_CHAT_STREAM_H
#define TURNWARD_ROUTER_CHAT_STREAM_H

#include "router/chat/scan.h"

/* Bytes that no JSON string holds unescaped: the end of a text, of a message's text, of its role.
 */
enum { STREAM_TEXT_END = 0x1d, STREAM_ITEM_END = 0x1e, STREAM_ROLE_END = 0x1f };

/* Begins a part again: of a repeated key the last one counts. */
void stream_begin(struct chat_scan *scan, enum chat_part part);

/* Appends to the current part. */
void stream_put(struct chat_scan *scan, const void *bytes, size_t len);
void stream_mark(struct chat_scan *scan, uint8_t mark);

/* The text of a string, through the filter for clients' nonces where one can be. */
void stream_text_begin(struct chat_scan *scan);
void stream_text(struct chat_scan *scan, const uint8_t *bytes, size_t len);
void stream_text_end(struct chat_scan *scan);

/* A hash of everything in the part so far. */
uint64_t stream_digest(const struct chat_scan *scan, enum chat_part part);

/* An image's bytes become 8 bytes of the stream. */
void stream_media_begin(struct chat_scan *scan);
void stream_media(struct chat_scan *scan, const uint8_t *bytes, size_t len);
void stream_media_end(struct chat_scan *scan);

/* XXH3 of one whole block with what stream_secret() makes of a seed: the same as with the seed. */
uint64_t stream_block_hash(const uint8_t *block, const uint8_t *secret);
void stream_secret(uint8_t secret[CHAT_SECRET], uint64_t seed);

/* Two hashes in order. */
uint64_t stream_join(uint64_t first, uint64_t second);
uint64_t stream_hash(const void *bytes, size_t len, uint64_t seed);

#endif
