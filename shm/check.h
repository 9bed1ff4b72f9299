/* The checksum of what lies in tables and rings: XXH3 with a seed, as wide as the processor can. */
#ifndef TURNWARD_SHM_CHECK_H
#define TURNWARD_SHM_CHECK_H

#include <stddef.h>
#include <stdint.h>

uint64_t shm_check(const void *data, size_t size, uint64_t seed);

#endif
