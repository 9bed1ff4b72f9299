/* Chooses how the checksum is reckoned; whichever way, it is the same number. */
#include "shm/check.h"

#include "shm/check_wide.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t shm_check(const void *data, size_t size, uint64_t seed)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx2"))
		return shm_check_avx2(data, size, seed);
#endif
	return XXH3_64bits_withSeed(data, size, seed);
}
