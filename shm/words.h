/*
 * Copies in and out of shared memory word by word, with release stores and acquire loads.
 *
 * memcpy() would be a race that neither the compiler nor ThreadSanitizer must accept; and the
 * compiler may not tear, repeat or reorder these.
 */
#ifndef TURNWARD_SHM_WORDS_H
#define TURNWARD_SHM_WORDS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "shm/step.h"

/* Set where wider loads than a word are out: another processor, or ThreadSanitizer is to judge. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WORDS_ONLY 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || !defined(__SSE2__)
#define WORDS_ONLY 1
#endif

static inline uint64_t word_get(const _Atomic uint64_t *word)
{
	return atomic_load_explicit(word, memory_order_acquire);
}

static inline void word_set(_Atomic uint64_t *word, uint64_t value)
{
	atomic_store_explicit(word, value, memory_order_release);
	STEP();
}

#if !defined(WORDS_ONLY) && !defined(SHM_STEP_HOOK)
/* Two words a store; x86-64 keeps stores in order. Returns how many words are done. */
static inline size_t words_put_pairs(_Atomic uint64_t *to, const uint8_t *bytes, size_t words)
{
	typedef uint64_t pair __attribute__((vector_size(16), may_alias, aligned(8)));
	volatile pair *pairs = (volatile pair *)to;
	size_t i;

	atomic_signal_fence(memory_order_seq_cst);
#pragma GCC unroll 4
	for (i = 0; i < words / 2; i++) {
		pair two;

		memcpy(&two, bytes + 16 * i, 16);
		pairs[i] = two;
	}
	atomic_signal_fence(memory_order_seq_cst);
	return 2 * i;
}
#else
static inline size_t words_put_pairs(_Atomic uint64_t *to, const uint8_t *bytes, size_t words)
{
	return 0;
}
#endif

/* `size` bytes; a last word that is not whole is padded with zeroes. */
static inline void words_put(_Atomic uint64_t *to, const void *from, size_t size)
{
	const uint8_t *bytes = from;
	size_t i;

	for (i = words_put_pairs(to, bytes, size / 8); i < size / 8; i++) {
		uint64_t w;

		memcpy(&w, bytes + 8 * i, 8);
		word_set(&to[i], w);
	}
	if (size % 8) {
		uint64_t w = 0;

		memcpy(&w, bytes + 8 * i, size % 8);
		word_set(&to[i], w);
	}
}

static inline void words_get(void *to, const _Atomic uint64_t *from, size_t size)
{
	uint8_t *bytes = to;

	for (size_t i = 0; i < size / 8; i++) {
		uint64_t w = word_get(&from[i]);

		memcpy(bytes + 8 * i, &w, 8);
	}
	if (size % 8) {
		uint64_t w = word_get(&from[size / 8]);

		memcpy(bytes + size / 8 * 8, &w, size % 8);
	}
}

#endif
