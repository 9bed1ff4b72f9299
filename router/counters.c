/* The counters' names, from the one list, bound to the region's section. */
#include "router/counters.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define NAME(name, help) #name,
#define HELP(name, help) help,
const char *const counter_names[COUNTERS_NR] = { COUNTERS(NAME) };
const char *const counter_help[COUNTERS_NR] = { COUNTERS(HELP) };
const char *const engine_counter_names[ENGINE_COUNTERS_NR] = { ENGINE_COUNTERS(NAME) };
const char *const engine_counter_help[ENGINE_COUNTERS_NR] = { ENGINE_COUNTERS(HELP) };

int counters_bind(struct counters *counters, struct router_file *file, const char *const *engines,
		  unsigned nr)
{
	unsigned all = COUNTERS_NR + nr * ENGINE_COUNTERS_NR, have = 0;
	const char **names = calloc(all, sizeof(*names));
	char(*text)[56] = calloc(all, sizeof(*text));
	int err = -ENOMEM;

	if (names && text) {
		for (unsigned i = 0; i < all; i++) {
			unsigned j = i - COUNTERS_NR;

			if (i < COUNTERS_NR)
				snprintf(text[i], sizeof(*text), "%s", counter_names[i]);
			else
				snprintf(text[i], sizeof(*text), "%s/%s",
					 engine_counter_names[j % ENGINE_COUNTERS_NR],
					 engines[j / ENGINE_COUNTERS_NR]);
			names[i] = text[i];
		}
		err = router_file_counters_bind(file, names, all);
	}
	free(names);
	free(text);
	if (err < 0)
		return err;
	counters->base = router_file_counters(file, &have);
	return counters->base && have >= all ? 0 : -ENOSPC;
}
