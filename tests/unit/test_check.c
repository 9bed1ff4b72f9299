/* The checksum is XXH3 of the library, however wide the processor reckons. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "shm/check.h"
#include "shm/check_wide.h"
#include "tests/lib/unit.h"

static void every_form_gives_the_librarys_number(void **state)
{
	uint8_t data[3200];

	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * 167 + i / 256);
	for (size_t size = 0; size < sizeof(data) - 16; size += size < 600 ? 1 : 97) {
		uint64_t seed = size * 0x9e3779b97f4a7c15ull;
		uint64_t want = XXH3_64bits_withSeed(data + size % 16, size, seed);

		assert_int_equal(shm_check(data + size % 16, size, seed), want);
#ifdef __x86_64__
		if (__builtin_cpu_supports("avx2"))
			assert_int_equal(shm_check_avx2(data + size % 16, size, seed), want);
#endif
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_form_gives_the_librarys_number),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
