/* Hostile configuration files: the whole way from bytes to checked settings. */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "router/settings.h"
#include "tests/fuzz/fuzz.h"

/* What was taken reads back to the same value from its own text. */
static void check_round_trip(const struct router_settings *settings)
{
	static struct router_settings back;
	char text[SETTINGS_PATH_MAX + 1], again[SETTINGS_PATH_MAX + 1], why[400];

	back = *settings;
	for (const struct conf_key *key = router_keys; key->name; key++) {
		if (key->flags & CONF_NAMED)
			continue;
		conf_text(key, settings, text, sizeof(text));
		assert(conf_value(key, &back, text, why, sizeof(why)) == 0);
		conf_text(key, &back, again, sizeof(again));
		assert(strcmp(text, again) == 0);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct router_settings settings;
	static struct conf conf;
	static int memory = -1;
	static char path[40];
	struct settings_given given = { .file = path };

	if (memory < 0) {
		memory = memfd_create("conf", MFD_CLOEXEC);
		snprintf(path, sizeof(path), "/proc/self/fd/%d", memory);
	}
	/* A name would be looked up, perhaps far away: only numbers here. */
	if (memmem(data, size, "url", 3) && !memmem(data, size, "127.0.0.1", 9))
		return 0;
	if (ftruncate(memory, 0) || pwrite(memory, data, size, 0) != (ssize_t)size)
		return 0;

	int err = settings_load(&settings, &conf, &given);

	assert(!err == !conf.error[0]);
	assert(memchr(conf.error, '\0', sizeof(conf.error)));
	if (!err)
		check_round_trip(&settings);
	return 0;
}
