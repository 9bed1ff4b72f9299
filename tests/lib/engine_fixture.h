/* Loads a page of tests/fixtures/engines/, and finds the body of one captured with its head. */
#ifndef TURNWARD_TESTS_LIB_ENGINE_FIXTURE_H
#define TURNWARD_TESTS_LIB_ENGINE_FIXTURE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/unit.h"

enum { FIXTURE_MAX = 128 * 1024 };

struct fixture {
	char text[FIXTURE_MAX];
	const char *body;
	size_t len; /* of the body */
};

static inline void fixture_load(struct fixture *f, const char *name)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/tests/fixtures/engines/%s", getenv("TEST_SOURCE_ROOT"),
		 name);
	FILE *file = fopen(path, "r");
	if (!file)
		fail_msg("no %s", path);
	size_t len = fread(f->text, 1, sizeof(f->text) - 1, file);
	fclose(file);
	f->text[len] = 0;
	f->body = f->text;
	const char *blank = strstr(f->text, "\r\n\r\n");
	if (strncmp(f->text, "HTTP/", 5) == 0 && blank)
		f->body = blank + 4;
	f->len = len - (size_t)(f->body - f->text);
}

#endif
