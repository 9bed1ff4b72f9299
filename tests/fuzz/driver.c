/* Runs a fuzz target without a fuzzer: on its seeds and on variants of them, the same ones each
 * time. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"

enum { INPUT_MAX = 64 * 1024, VARIANTS = 3000 };

static uint64_t state = 0x9e3779b97f4a7c15;

static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static size_t read_file(const char *folder, const char *name, uint8_t *into)
{
	char path[1024];
	FILE *f;
	size_t n;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	f = fopen(path, "r");
	n = f ? fread(into, 1, INPUT_MAX, f) : 0;
	if (f)
		fclose(f);
	return n;
}

/* Changes some bytes, doubles or cuts a stretch. */
static size_t vary(uint8_t *data, size_t n)
{
	for (uint64_t i = next() % 8; n && i; i--)
		data[next() % n] = (uint8_t)(next() % 3 ? next() : 255 * (next() & 1));
	if (n && next() % 4 == 0)
		n = next() % n;
	if (n > 1 && n < INPUT_MAX / 2 && next() % 4 == 0) {
		size_t from = next() % n, len = 1 + next() % (n - from);

		memmove(data + from + len, data + from, n - from);
		n += len;
	}
	return n;
}

int main(int argc, char **argv)
{
	static uint8_t seed[INPUT_MAX], data[INPUT_MAX];
	struct dirent **entries;
	int n = argc == 2 ? scandir(argv[1], &entries, NULL, alphasort) : -1, runs = 0, seeds = 0;

	if (n < 0) {
		fprintf(stderr, "usage: %s FOLDER-OF-SEEDS\n", argv[0]);
		return 2;
	}
	for (int i = 0; i < n; i++) {
		size_t size = entries[i]->d_name[0] == '.'
				      ? 0
				      : read_file(argv[1], entries[i]->d_name, seed);

		for (int k = 0; size && k < VARIANTS / n + 1; k++, runs++) {
			size_t len = size;

			memcpy(data, seed, size);
			if (k)
				len = vary(data, size);
			else
				seeds++;
			LLVMFuzzerTestOneInput(data, len);
		}
		free(entries[i]);
	}
	free(entries);
	printf("%d seeds, %d inputs\n", seeds, runs);
	return seeds == 0;
}
