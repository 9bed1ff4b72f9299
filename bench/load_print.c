/* Tables of load commands for people, the machine they ran on, and their JSON. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "bench/load.h"
#include "shm/base/clock.h"
#include "shm/base/opt.h"

enum { NULL_CALLS = 20000, COLUMN = 26 };

#define PROXIES (LOAD_BASE(HAPROXY) | LOAD_BASE(NGINX))

#define CELL_TITLE(id, name, title) title,
static const char *const cell_titles[] = { LOAD_CELLS(CELL_TITLE) };

/* ---- the machine ---- */

double load_null_call_us(void)
{
	uint64_t before = clock_ns();

	for (int i = 0; i < NULL_CALLS; i++)
		syscall(SYS_getppid);
	return (double)(clock_ns() - before) / NULL_CALLS / NS_PER_US;
}

static void cpu_name(char *ret_name, size_t size)
{
	char line[256];
	FILE *file = fopen("/proc/cpuinfo", "re");

	snprintf(ret_name, size, "?");
	while (file && fgets(line, sizeof(line), file)) {
		const char *colon = strchr(line, ':');

		if (strncmp(line, "model name", 10) != 0 || !colon)
			continue;
		snprintf(ret_name, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
		break;
	}
	if (file)
		fclose(file);
}

static double load_average(void)
{
	double one = 0;
	FILE *file = fopen("/proc/loadavg", "re");

	if (file && fscanf(file, "%lf", &one) != 1)
		one = 0;
	if (file)
		fclose(file);
	return one;
}

static void today(char ret_date[32])
{
	time_t now = time(NULL);
	struct tm utc;

	gmtime_r(&now, &utc);
	strftime(ret_date, 32, "%Y-%m-%dT%H:%M:%SZ", &utc);
}

void load_machine_print(void)
{
	struct utsname os;
	char cpu[128], date[32];

	uname(&os);
	cpu_name(cpu, sizeof(cpu));
	today(date);
	printf("%s, kernel %s, %ld x %s, load %.2f, null call %.2f us\n", date, os.release,
	       sysconf(_SC_NPROCESSORS_ONLN), cpu, load_average(), load_null_call_us());
}

static void machine_json(struct json *j)
{
	struct utsname os;
	char text[128];

	uname(&os);
	json_object_begin(j, "machine");
	today(text);
	json_str(j, "date", text);
	json_str(j, "kernel", os.release);
	cpu_name(text, sizeof(text));
	json_str(j, "cpu", text);
	json_u64(j, "cores", (uint64_t)sysconf(_SC_NPROCESSORS_ONLN));
	json_num(j, "load_average", load_average(), 4);
	json_num(j, "null_call_us", load_null_call_us(), 4);
	json_object_end(j);
	opt_version(text, sizeof(text));
	json_str(j, "version", text);
}

/* ---- tables ---- */

static void title_print(const struct load_run *run, enum load_cell cell)
{
	printf("\n%s\n  %-28s", cell_titles[cell], "");
	for (int f = 0; f < LOAD_FIGURES_NR; f++)
		if (load_figure_cells[f] == cell && load_figure_titles[f])
			printf(" %-*s", COLUMN, load_figure_titles[f]);
	putchar('\n');
}

static void number(char *ret_text, size_t size, double value)
{
	if (fabs(value) < 0.001) /* a histogram's lowest bucket stands for zero */
		value = 0;
	snprintf(ret_text, size, fabs(value) >= 100 ? "%.0f" : "%.3g", value);
}

/* Ratios are told where less is better, and of what an arm adds. */
static bool has_ratio(enum load_figure figure)
{
	static const char *const none[] = { "ratio", "slope", "reads",  "requests_",
					    "live",  "late_", "growth", "idle_cpu" };

	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
		if (strstr(load_figure_keys[figure], none[i]))
			return false;
	return true;
}

/* "0.71 x 69 [40-77]": ratio to the better proxy, median, range. */
static void cell_print(const struct load_run *run, enum load_arm_id id, enum load_figure figure)
{
	unsigned n = run->options->rounds;
	const double *v = run->value[id][figure];
	double ratio = load_ratio(run, id, figure, PROXIES);
	char text[100] = "-", factor[16] = "", median[24], least[24], most[24];

	if (!isnan(ratio) && has_ratio(figure) && id != LOAD_ARM_DIRECT)
		snprintf(factor, sizeof(factor), "%.2f x ", ratio);
	number(median, sizeof(median), load_median(v, n));
	number(least, sizeof(least), load_least(v, n));
	number(most, sizeof(most), load_most(v, n));
	if (!isnan(load_median(v, n)))
		snprintf(text, sizeof(text), "%s%s [%s-%s]", factor, median, least, most);
	printf(" %-*s", COLUMN, text);
}

void load_print(const struct load_run *run)
{
	printf("%u rounds, arms in turn; x: to the better of haproxy and nginx; median "
	       "[least-most]\n",
	       run->options->rounds);
	for (int cell = 0; cell < LOAD_CELLS_NR; cell++) {
		if (!run->options->cell[cell])
			continue;
		title_print(run, (enum load_cell)cell);
		for (int a = 0; a < LOAD_ARMS_NR; a++) {
			if (!run->place.arm[a].ran)
				continue;
			printf("  %-28s", run->place.arm[a].name);
			for (int f = 0; f < LOAD_FIGURES_NR; f++)
				if (load_figure_cells[f] == (enum load_cell)cell &&
				    load_figure_titles[f])
					cell_print(run, (enum load_arm_id)a, (enum load_figure)f);
			putchar('\n');
		}
	}
	if (run->options->cell[LOAD_CELL_BODY])
		printf("\nscan and prefix hash of 1 MB, alone: %.0f us\n", run->scan_mb_us);
	putchar('\n');
	for (int a = 0; a < LOAD_ARMS_NR; a++) {
		const struct load_arm *arm = &run->place.arm[a];

		if (!arm->wanted || arm->family == LOAD_FLOOR)
			continue;
		printf("%-28s %-10s %s%s%s\n", arm->name, arm->version,
		       arm->ran ? "ran" : "DID NOT RUN", arm->why[0] ? ": " : "", arm->why);
	}
}

/* ---- JSON ---- */

static int write_all(void *ctx, const char *text, size_t len)
{
	int fd = *(int *)ctx;

	while (len) {
		ssize_t n = write(fd, text, len);

		if (n < 0)
			return -errno;
		text += n, len -= (size_t)n;
	}
	return 0;
}

int load_document_begin(struct load_document *doc, const char *path, const char *command)
{
	return load_document_open(doc, path, "load", command);
}

int load_document_open(struct load_document *doc, const char *path, const char *kind,
		       const char *command)
{
	doc->fd = strcmp(path, "-") == 0
			  ? dup(1)
			  : open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (doc->fd < 0)
		return -errno;
	json_init(&doc->json, doc->buf, sizeof(doc->buf));
	json_sink_set(&doc->json, write_all, &doc->fd);
	json_object_begin(&doc->json, NULL);
	json_str(&doc->json, "kind", kind);
	json_str(&doc->json, "command", command);
	machine_json(&doc->json);
	return 0;
}

int load_document_end(struct load_document *doc)
{
	json_object_end(&doc->json);
	int err = json_finish(&doc->json);
	write_all(&doc->fd, "\n", 1);
	if (close(doc->fd) < 0 && !err)
		err = -errno;
	return err;
}

static void arm_json(struct json *j, const struct load_run *run, enum load_arm_id id)
{
	unsigned n = run->options->rounds;

	json_object_begin(j, NULL);
	json_str(j, "name", run->place.arm[id].name);
	for (int f = 0; f < LOAD_FIGURES_NR; f++)
		if (!isnan(load_median(run->value[id][f], n)))
			json_num(j, load_figure_keys[f], load_median(run->value[id][f], n), 6);
	json_object_begin(j, "ranges");
	for (int f = 0; f < LOAD_FIGURES_NR; f++) {
		if (isnan(load_median(run->value[id][f], n)))
			continue;
		json_array_begin(j, load_figure_keys[f]);
		json_num(j, NULL, load_least(run->value[id][f], n), 6);
		json_num(j, NULL, load_most(run->value[id][f], n), 6);
		json_array_end(j);
	}
	json_object_end(j);
	json_object_end(j);
}

static void peers_json(struct json *j, const struct load_run *run)
{
	json_array_begin(j, "peers");
	for (int a = 0; a < LOAD_ARMS_NR; a++) {
		const struct load_arm *arm = &run->place.arm[a];

		if (!arm->wanted || arm->family == LOAD_FLOOR)
			continue;
		json_object_begin(j, NULL);
		json_str(j, "name", arm->name);
		json_str(j, "version", arm->version);
		json_bool(j, "ran", arm->ran);
		json_str(j, "why", arm->why[0] ? arm->why : NULL);
		json_object_end(j);
	}
	json_array_end(j);
}

void load_json(struct json *j, const struct load_run *run)
{
	json_u64(j, "rounds", run->options->rounds);
	json_num(j, "seconds", run->options->seconds, 4);
	json_array_begin(j, "arms");
	for (int a = 0; a < LOAD_ARMS_NR; a++)
		if (run->place.arm[a].ran)
			arm_json(j, run, (enum load_arm_id)a);
	json_array_end(j);
	peers_json(j, run);
	json_num(j, "scan_mb_us", run->scan_mb_us, 5);
}
