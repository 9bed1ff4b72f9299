/*
 * Blocks are hashed as they fill, each on its own; the chain is made at the end, when it is known
 * what comes first. Bytes are taken as they stand in the body, escapes included: a client writes
 * its history the same way every turn.
 */
#include <assert.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "router/chat/stream.h"

enum {
	STRIPE = 64, /* XXH3 takes so much at once */
	STRIPES = LIMIT_CONTENT_BLOCK_BYTES / STRIPE,
	SECRET_STEP = 8,   /* from one stripe's key to the next one's */
	SECRET_LAST = 121, /* the key of the last stripe */
	SECRET_MERGE = 11,
};
static_assert(sizeof(XXH3_state_t) <= sizeof(((struct chat_scan *)0)->media),
	      "the state of the image hash fits");
static_assert(_Alignof(XXH3_state_t) <= 64, "and lies right");
static_assert((int)CHAT_SECRET == (int)XXH_SECRET_DEFAULT_SIZE, "what a seed makes");
static_assert(LIMIT_CONTENT_BLOCK_BYTES > XXH3_MIDSIZE_MAX &&
		      LIMIT_CONTENT_BLOCK_BYTES <= (CHAT_SECRET - STRIPE) / SECRET_STEP * STRIPE,
	      "XXH3's form for long inputs, without its second round");

uint64_t stream_hash(const void *bytes, size_t len, uint64_t seed)
{
	return XXH3_64bits_withSeed(bytes, len, seed);
}

uint64_t stream_join(uint64_t first, uint64_t second)
{
	return XXH3_64bits_withSeed(&second, sizeof(second), first);
}

#ifdef __x86_64__
#define AVX512 __attribute__((target("avx512f,bmi2")))

static uint64_t word_at(const uint8_t *at)
{
	uint64_t word;

	memcpy(&word, at, sizeof(word));
	return word;
}

/* Two lanes, kept in registers: gcc 12 lays a vector's array wrongly in a sanitizer's frame. */
AVX512 static inline uint64_t folded(__m128i lanes, const uint8_t *key)
{
	uint64_t a = (uint64_t)_mm_cvtsi128_si64(lanes) ^ word_at(key);
	uint64_t b = (uint64_t)_mm_extract_epi64(lanes, 1) ^ word_at(key + 8);
	unsigned __int128 product = (unsigned __int128)a * b;

	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* XXH3 of one block, its eight lanes in one register: a third of the library's time with SSE2. */
AVX512 static uint64_t block_hash_avx512(const uint8_t *block, const uint8_t *secret)
{
	__m512i sum = _mm512_setr_epi64(0xC2B2AE3D, (long long)0x9E3779B185EBCA87,
					(long long)0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9,
					(long long)0x85EBCA77C2B2AE63, 0x85EBCA77,
					0x27D4EB2F165667C5, 0x9E3779B1);
	uint64_t hash = LIMIT_CONTENT_BLOCK_BYTES * 0x9E3779B185EBCA87;

	for (int i = 0; i < STRIPES; i++) {
		int at = i < STRIPES - 1 ? i * SECRET_STEP : SECRET_LAST;
		__m512i data = _mm512_loadu_si512(block + i * STRIPE);
		__m512i keyed = _mm512_xor_si512(data, _mm512_loadu_si512(secret + at));

		sum = _mm512_add_epi64(sum, _mm512_shuffle_epi32(data, _MM_PERM_BADC));
		sum = _mm512_add_epi64(sum, _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32)));
	}
	hash += folded(_mm512_extracti32x4_epi32(sum, 0), secret + SECRET_MERGE) +
		folded(_mm512_extracti32x4_epi32(sum, 1), secret + SECRET_MERGE + 16) +
		folded(_mm512_extracti32x4_epi32(sum, 2), secret + SECRET_MERGE + 32) +
		folded(_mm512_extracti32x4_epi32(sum, 3), secret + SECRET_MERGE + 48);
	hash = (hash ^ hash >> 37) * 0x165667919E3779F9;
	return hash ^ hash >> 32;
}
#endif

uint64_t stream_block_hash(const uint8_t *block, const uint8_t *secret)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx512f"))
		return block_hash_avx512(block, secret);
#endif
	return XXH3_64bits_withSecret(block, LIMIT_CONTENT_BLOCK_BYTES, secret, CHAT_SECRET);
}

void stream_secret(uint8_t secret[CHAT_SECRET], uint64_t seed)
{
	XXH3_generateSecret_fromSeed(secret, seed);
}

void stream_begin(struct chat_scan *scan, enum chat_part part)
{
	scan->now = (uint8_t)part;
	scan->part[part] = (struct chat_stream){ .first = scan->blocks_used };
}

static void block_full(struct chat_scan *scan, struct chat_stream *stream, const uint8_t *block)
{
	uint64_t hash = stream_block_hash(block, scan->secret);

	/* Asked for of the system prompt and of what leads to the first user's message. */
	if (!scan->first_user_seen || scan->now == CHAT_SYSTEM)
		stream->fold = stream_join(stream->fold, hash);
	/* Once one is missing no later one can be chained. */
	if (scan->blocks_used == scan->blocks_max)
		scan->req.blocks_full = true;
	if (scan->req.blocks_full)
		return;
	scan->blocks[scan->blocks_used++] = hash;
	stream->blocks++;
}

void stream_put(struct chat_scan *scan, const void *bytes, size_t len)
{
	struct chat_stream *stream = &scan->part[scan->now];
	uint8_t *block = scan->block[scan->now];
	const uint8_t *from = bytes;

	stream->bytes += len;
	while (len) {
		size_t room = LIMIT_CONTENT_BLOCK_BYTES - stream->fill, n = len < room ? len : room;

		if (n == LIMIT_CONTENT_BLOCK_BYTES) {
			block_full(scan, stream, from); /* no copy: it lies whole in the body */
		} else {
			memcpy(block + stream->fill, from, n);
			stream->fill += (uint32_t)n;
			if (stream->fill == LIMIT_CONTENT_BLOCK_BYTES) {
				block_full(scan, stream, block);
				stream->fill = 0;
			}
		}
		from += n;
		len -= n;
	}
}

void stream_mark(struct chat_scan *scan, uint8_t mark)
{
	stream_put(scan, &mark, 1);
}

uint64_t stream_digest(const struct chat_scan *scan, enum chat_part part)
{
	const struct chat_stream *stream = &scan->part[part];

	return stream_join(stream->fold, stream_hash(scan->block[part], stream->fill, scan->seed));
}

/*
 * Two nonces that engines do not keep, or keep at the very end of the system prompt: Claude Code's
 * billing block, and a line with the tokens left. Neither may change the hash of what surrounds it.
 */
enum { NONCE_NONE, NONCE_BILLING, NONCE_DROP_BILLING, NONCE_OPEN, NONCE_DROP_LINE };

static const char billing[] = "x-anthropic-billing-header:";
static const char line_open[] = "<total_tokens>", line_close[] = "</total_tokens>";

static void put_text(struct chat_scan *scan, const void *bytes, size_t len)
{
	scan->said |= len > 0;
	stream_put(scan, bytes, len);
}

void stream_text_begin(struct chat_scan *scan)
{
	bool filter = scan->now == CHAT_SYSTEM || (scan->now == CHAT_MESSAGES && scan->system_item);

	scan->said = false;
	scan->nonce = 0;
	scan->nonce_kind = filter ? NONCE_BILLING : NONCE_NONE;
}

/* One byte while a nonce may be under way; true when it is used up. */
static bool nonce_byte(struct chat_scan *scan, char c)
{
	const char *word = scan->nonce_kind == NONCE_BILLING ? billing : line_open;

	if (scan->nonce_kind == NONCE_DROP_BILLING) {
		/* It is one line: a proxy may have joined the blocks. `nonce`: a backslash came. */
		if (scan->nonce && c == 'n')
			scan->nonce_kind = NONCE_NONE;
		scan->nonce = !scan->nonce && c == '\\';
		return true;
	}
	if (scan->nonce_kind == NONCE_DROP_LINE) {
		scan->nonce = c == line_close[scan->nonce] ? scan->nonce + 1 : c == line_close[0];
		if (scan->nonce == sizeof(line_close) - 1)
			scan->nonce_kind = NONCE_NONE;
		return true;
	}
	if (c != word[scan->nonce]) {
		put_text(scan, word, scan->nonce);
		scan->nonce_kind = NONCE_NONE;
		return false;
	}
	if (word[++scan->nonce])
		return true;
	scan->nonce = 0;
	scan->nonce_kind = scan->nonce_kind == NONCE_BILLING ? NONCE_DROP_BILLING : NONCE_DROP_LINE;
	return true;
}

static void filtered_text(struct chat_scan *scan, const uint8_t *bytes, size_t len)
{
	size_t at = 0;

	while (at < len) {
		if (scan->nonce_kind != NONCE_NONE) {
			at += nonce_byte(scan, (char)bytes[at]);
			continue;
		}
		const uint8_t *open = memchr(bytes + at, line_open[0], len - at);
		size_t before = open ? (size_t)(open - bytes) - at : len - at;

		put_text(scan, bytes + at, before);
		at += before;
		if (open) {
			scan->nonce_kind = NONCE_OPEN;
			scan->nonce = 1;
			at++;
		}
	}
}

void stream_text(struct chat_scan *scan, const uint8_t *bytes, size_t len)
{
	bool filter = scan->now == CHAT_SYSTEM || (scan->now == CHAT_MESSAGES && scan->system_item);

	if (filter)
		filtered_text(scan, bytes, len);
	else
		put_text(scan, bytes, len);
}

void stream_text_end(struct chat_scan *scan)
{
	if (scan->nonce_kind == NONCE_BILLING)
		put_text(scan, billing, scan->nonce);
	if (scan->nonce_kind == NONCE_OPEN)
		put_text(scan, line_open, scan->nonce);
	scan->nonce_kind = NONCE_NONE;
	if (scan->said)
		stream_mark(scan, STREAM_TEXT_END);
}

void stream_media_begin(struct chat_scan *scan)
{
	XXH3_64bits_reset_withSeed((XXH3_state_t *)scan->media, scan->seed);
}

void stream_media(struct chat_scan *scan, const uint8_t *bytes, size_t len)
{
	XXH3_64bits_update((XXH3_state_t *)scan->media, bytes, len);
}

void stream_media_end(struct chat_scan *scan)
{
	uint64_t digest = XXH3_64bits_digest((XXH3_state_t *)scan->media);

	stream_put(scan, &digest, sizeof(digest));
}
