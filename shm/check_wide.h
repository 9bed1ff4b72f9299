/* The checksum's other form; for check.c and its test. */
#ifndef TURNWARD_SHM_CHECK_WIDE_H
#define TURNWARD_SHM_CHECK_WIDE_H

#include <stddef.h>
#include <stdint.h>

/* Where the processor has AVX2. */
uint64_t shm_check_avx2(const void *data, size_t size, uint64_t seed);

#endif
