/* The checksum for processors with AVX2; compiled for them. */
#include "shm/check_wide.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t shm_check_avx2(const void *data, size_t size, uint64_t seed)
{
	return XXH3_64bits_withSeed(data, size, seed);
}
