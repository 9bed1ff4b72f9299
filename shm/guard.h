/* Internal to shm/: which mappings a SIGBUS may be answered with zero pages in (region_guard()). */
#ifndef TURNWARD_SHM_GUARD_H
#define TURNWARD_SHM_GUARD_H

#include <stddef.h>

void guard_add(void *map, size_t size, int prot);
void guard_remove(void *map);

#endif
