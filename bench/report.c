/* turnward-bench report: JSON results in, one HTML page out; see report.h. */
#include "bench/report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/bench.h"
#include "shm/base/exit.h"
#include "shm/base/opt.h"
#include "shm/base/scoped.h"

enum { OPTION_OUTPUT = 1, OPTION_HIGHLIGHT };

static const struct opt options[] = {
	{ .name = "output",
	  .value = "FILE",
	  .help = "the page; - is stdout (-)",
	  .id = OPTION_OUTPUT,
	  .letter = 'o' },
	{ .name = "highlight",
	  .value = "ARM,...",
	  .help = "arms drawn in colour, up to five beside the base (the best by TTFT p90)",
	  .id = OPTION_HIGHLIGHT },
	{ 0 }
};

static const struct opt_program program = {
	.name = "turnward-bench report",
	.operands = "[options] FILE...",
	.purpose = "Renders JSON results as one HTML page: tables, charts, no external files.",
	.options = options,
	.examples = "  turnward-bench replay --seeds 5 --json design.json\n"
		    "  turnward-bench report design.json -o design.html\n",
};

struct input {
	char *text;
	size_t len;
};

static int read_file(const char *path, struct input *ret, time_t *ret_written)
{
	scoped(file_drop) FILE *file = fopen(path, "re");
	struct stat st;

	if (!file || fstat(fileno(file), &st))
		return -errno;
	if (S_ISDIR(st.st_mode))
		return -EISDIR;
	*ret_written = st.st_mtime;
	for (size_t room = 0;;) {
		if (ret->len == room) {
			room = room ? 2 * room : 65536;
			char *grown = room > 2u * REPORT_FILE_MAX ? NULL : realloc(ret->text, room);

			if (!grown)
				return room > 2u * REPORT_FILE_MAX ? -EFBIG : -ENOMEM;
			ret->text = grown;
		}
		size_t got = fread(ret->text + ret->len, 1, room - ret->len, file);

		ret->len += got;
		if (got == 0)
			return ferror(file) ? -EIO : 0;
	}
}

static int complain(const char *path, const char *what, int err)
{
	fprintf(stderr, "turnward-bench report: %s: %s%s%s\n", path, what, err ? ": " : "",
		err ? strerror(-err) : "");
	return EXIT_RUNTIME;
}

static int open_doc(struct report_doc *doc, struct input *in, const char *path,
		    const char *highlight)
{
	struct jread value;
	size_t offset = 0;
	char what[96];
	int err = read_file(path, in, &doc->written);

	if (err)
		return complain(path, "cannot be read", err);
	err = jread_open_at(&value, in->text, in->len, &offset);
	if (err) {
		snprintf(what, sizeof(what), "%s at byte %zu of %zu",
			 err == -E2BIG       ? "JSON nested too deeply"
			 : offset == in->len ? "JSON breaks off"
					     : "no JSON",
			 offset, in->len);
		return complain(path, what, 0);
	}
	doc->path = path;
	if (report_doc_open(doc, &value, highlight))
		return complain(path, "no result of ours: an object was expected at byte 0", 0);
	return EXIT_GOOD;
}

/* All or nothing: a page that could not be written whole does not replace an older one. */
static int write_page(const struct out *o, const char *path)
{
	int to_stdout = strcmp(path, "-") == 0;
	scoped(free_drop) char *new_path = malloc(strlen(path) + 5);

	if (!new_path)
		return complain(path, "cannot be written", -ENOMEM);
	memcpy(new_path, path, strlen(path));
	memcpy(new_path + strlen(path), ".new", 5);
	FILE *file = to_stdout ? stdout : fopen(new_path, "we");

	if (!file)
		return complain(path, "cannot be written", -errno);
	int err = fwrite(o->text, 1, o->len, file) == o->len ? 0 : -errno;

	if ((to_stdout ? fflush(file) : fclose(file)) && !err)
		err = -errno;
	if (!err && !to_stdout && rename(new_path, path))
		err = -errno;
	if (!err)
		return EXIT_GOOD;
	if (!to_stdout)
		unlink(new_path);
	return complain(path, "cannot be written", err);
}

static int render(char **paths, size_t nr, const char *output, const char *highlight)
{
	static struct report_doc doc[REPORT_FILES_MAX];
	static struct input in[REPORT_FILES_MAX];
	struct out page = { 0 };
	int code = EXIT_GOOD;

	memset(doc, 0, sizeof(doc));
	memset(in, 0, sizeof(in));
	for (size_t i = 0; i < nr && code == EXIT_GOOD; i++)
		code = open_doc(&doc[i], &in[i], paths[i], highlight);
	if (code == EXIT_GOOD) {
		report_page(&page, doc, nr, time(NULL));
		code = page.err ? complain(output, "cannot be made", page.err)
				: write_page(&page, output);
	}
	for (size_t i = 0; i < nr; i++)
		free(in[i].text);
	out_free(&page);
	return code;
}

int bench_report(int argc, char **argv)
{
	const char *output = "-", *highlight = NULL;
	struct opt_scan scan;
	int id;

	opt_begin(&scan, &program, argc, argv);
	while ((id = opt_next(&scan)) != OPT_END) {
		if (id == OPTION_OUTPUT)
			output = scan.value;
		else
			highlight = scan.value;
	}
	if (scan.first == argc)
		opt_fail(&program, "a file is missing");
	if (argc - scan.first > REPORT_FILES_MAX)
		opt_fail(&program, "at most %d files", REPORT_FILES_MAX);
	return render(argv + scan.first, (size_t)(argc - scan.first), output, highlight);
}
