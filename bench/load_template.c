/* Fills in the configurations of bench/peers/ and finds versions in what programs say. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "bench/load_arms.h"

enum { LINE_MAX_BYTES = 512, LIMIT_S = 600 };

struct words {
	struct {
		const char *key;
		char value[256];
	} at[12];
	int n;
};

static void word_add(struct words *words, const char *key, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

static void word_add(struct words *words, const char *key, const char *format, ...)
{
	__builtin_va_list args;

	words->at[words->n].key = key;
	__builtin_va_start(args, format);
	vsnprintf(words->at[words->n].value, sizeof(words->at[0].value), format, args);
	__builtin_va_end(args);
	words->n++;
}

static void line_write(FILE *out, const char *line, const struct words *words)
{
	while (*line) {
		int found = -1;

		for (int i = 0; i < words->n && *line == '@'; i++)
			if (strncmp(line, words->at[i].key, strlen(words->at[i].key)) == 0)
				found = i;
		if (found < 0) {
			fputc(*line++, out);
			continue;
		}
		fputs(words->at[found].value, out);
		line += strlen(words->at[found].key);
	}
}

int load_template(const char *from, const char *to, const char *dir, uint16_t port,
		  unsigned streams, const uint16_t engine[LOAD_ENGINES])
{
	static const char each[] = "@FOR ENGINES@";
	char line[LINE_MAX_BYTES];
	struct words words = { .n = 0 };
	FILE *in = fopen(from, "re"), *out = in ? fopen(to, "we") : NULL;

	if (!out) {
		int err = -errno;

		if (in)
			fclose(in);
		return err;
	}
	word_add(&words, "@PORT@", "%u", port);
	word_add(&words, "@DIR@", "%s", dir);
	word_add(&words, "@LIMIT@", "%d", LIMIT_S);
	word_add(&words, "@STREAMS@", "%u", streams);
	word_add(&words, "@CONNECTIONS@", "%u", 2 * streams);
	while (fgets(line, sizeof(line), in)) {
		bool many = strncmp(line, each, sizeof(each) - 1) == 0;

		for (int e = 0; e < (many ? LOAD_ENGINES : 1); e++) {
			struct words all = words;

			word_add(&all, "@N@", "%d", e + 1);
			word_add(&all, "@ADDRESS@", "127.0.0.1:%u", engine[e]);
			word_add(&all, "@HOST@", "127.0.0.1");
			word_add(&all, "@EPORT@", "%u", engine[e]);
			line_write(out, many ? line + sizeof(each) - 1 : line, &all);
		}
	}
	fclose(in);
	return fclose(out) ? -errno : 0;
}

void load_version_find(const char *text, char *ret_version, size_t size)
{
	for (const char *at = text; *at; at++) {
		size_t len = strspn(at, "0123456789.");
		int dots = 0;

		for (size_t i = 0; i < len; i++)
			dots += at[i] == '.';
		if (dots >= 2 && isdigit((unsigned char)*at)) {
			while (at[len - 1] == '.')
				len--;
			snprintf(ret_version, size, "%.*s", (int)len, at);
			return;
		}
		at += len ? len - 1 : 0;
	}
	snprintf(ret_version, size, "?");
}
