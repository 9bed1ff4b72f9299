/*
 * Survives a region file that somebody truncates: touching a page beyond its end is SIGBUS, and the
 * handler puts zero pages there, which every reader of the region takes for "nothing published".
 */
#include "shm/guard.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>

#include "shm/region.h"

enum { GUARD_MAPS_MAX = 512 }; /* beyond, a mapping is unguarded, as it was before region_guard() */

static struct {
	_Atomic uintptr_t start; /* 0 = free; stored last */
	_Atomic size_t size;
	_Atomic int prot;
} maps[GUARD_MAPS_MAX];

void guard_add(void *map, size_t size, int prot)
{
	for (int i = 0; i < GUARD_MAPS_MAX; i++) {
		uintptr_t none = 0;

		/* 1 is no address: taken, not yet valid. */
		if (!atomic_compare_exchange_strong(&maps[i].start, &none, 1))
			continue;
		maps[i].size = size;
		maps[i].prot = prot;
		maps[i].start = (uintptr_t)map;
		return;
	}
}

void guard_remove(void *map)
{
	for (int i = 0; i < GUARD_MAPS_MAX; i++)
		if (maps[i].start == (uintptr_t)map)
			maps[i].start = 0;
}

/* Only async-signal-safe work: mmap() is a plain system call. */
static void on_bus_error(int signal_number, siginfo_t *info, void *context)
{
	uintptr_t at = (uintptr_t)info->si_addr;

	for (int i = 0; i < GUARD_MAPS_MAX; i++) {
		uintptr_t start = maps[i].start;

		if (start <= 1 || at < start || at >= start + maps[i].size)
			continue;
		if (mmap((void *)start, maps[i].size, maps[i].prot,
			 MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED)
			return;
	}
	signal(signal_number, SIG_DFL); /* not ours: the instruction faults again and ends us */
}

void region_guard(void)
{
	struct sigaction action = { .sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO };

	sigaction(SIGBUS, &action, NULL);
}
