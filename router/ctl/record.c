/* turnward record FILE: what the journal holds and will hold, into a file, until told to stop. */
#include "router/ctl/ctl.h"

#include "router/ctl/follow.h"
#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/base/exit.h"
#include "shm/base/json.h"
#include "shm/files.h"
#include "shm/ring.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPT_MAX_SIZE = CTL_OPT_OWN, OPT_KEEP };

static const struct opt options[] = {
	CTL_OPTIONS,
	{ "max-size", "SIZE", "of one file (K, M, G); then a new one [256M]", OPT_MAX_SIZE, 0, 0 },
	{ "keep", "N", "full files kept beside it: FILE.1 ... [3]", OPT_KEEP, 0, 0 },
	{ 0 }
};

static const struct opt_program program = {
	.name = "turnward record",
	.operands = "[options] FILE",
	.purpose = "Writes every decision and outcome into FILE, from what the journal still\n"
		   "holds on, until SIGINT or SIGTERM; then tells what it wrote. FILE - is stdout.",
	.options = options,
	.examples = "  turnward record --max-size 64M today.twr\n"
		    "  timeout -s INT 60 turnward record - | turnward replay -\n",
};

struct wanted {
	uint64_t max_size, keep;
};

static const struct conf_key numbers[] = {
	{ "record", "max-size", CONF_BYTES, offsetof(struct wanted, max_size), 8, "256M",
	  SINK_SIZE_MIN, 1ll << 40, NULL, 0, "" },
	{ "record", "keep", CONF_UINT, offsetof(struct wanted, keep), 8, "3", 0, 1000, NULL, 0,
	  "" },
	{ 0 }
};

enum {
	PERIOD_MAX_MS = 50, /* a ring of 4,096 records lasts 2 s at 1,000 decisions a second */
	PERIOD_MIN_MS = 1,
	PATIENCE_MS = 1000, /* between looks for another file, and tries of a full disk */
	WAITING_MS = 100,   /* between looks for a first one */
};

struct recorder {
	struct sink sink;
	const char *place; /* --region */
	struct region region;
	struct router_file file;
	int attached, waiting_told;
	int source_due, continues; /* the file has not been told yet where records come from now */
	uint64_t generation;
	uint64_t looked_ns, tried_ns;
	struct follow follow;
};

static uint64_t generation_of(const struct recorder *r)
{
	const struct region_header *h = (const void *)r->file.file.map;

	return __atomic_load_n(&h->generation, __ATOMIC_ACQUIRE);
}

static int put_source(struct recorder *r)
{
	const struct region_header *h = (const void *)r->file.file.map;
	struct record_source s = {
		.ino = r->file.file.ino,
		.created_ns = h->created_ns,
		.generation = generation_of(r),
		.writer_pid = __atomic_load_n(&h->writer_pid, __ATOMIC_ACQUIRE),
		.wall_ns = clock_wall_ns(),
		.first = r->follow.next,
		.continues = (uint64_t)r->continues,
	};
	int err = follow_flush(&r->follow);

	memcpy(s.boot_id, h->boot_id, sizeof(s.boot_id));
	if (!err)
		err = sink_put(&r->sink, RECORD_SOURCE, r->follow.next, &s, sizeof(s));
	if (err)
		return err;
	r->generation = s.generation;
	r->source_due = 0;
	r->continues = 1;
	return 0;
}

/* ---- where it comes from ---- */

static int attach(struct recorder *r)
{
	char error[REGION_ERROR_MAX] = "";

	if (router_file_attach(&r->file, &r->region, error) < 0) {
		if (!r->waiting_told)
			fprintf(stderr, "turnward record: waiting for a router in %s: %s\n",
				r->region.path, error);
		r->waiting_told = 1;
		return 0;
	}
	r->continues = follow_ring(&r->follow, &r->file.journal);
	r->source_due = r->attached = 1;
	r->waiting_told = 0;
	fprintf(stderr, "recording %s/router from record %lu on to %s%s\n", r->region.path,
		(unsigned long)r->follow.next, r->sink.path,
		region_file_alive(&r->file.file) ? "" : " (no router is running)");
	return put_source(r);
}

static void detach(struct recorder *r)
{
	if (r->attached)
		router_file_drop(&r->file);
	r->attached = 0;
}

/* The last words of a file that was replaced are read before it is left. */
static int look_around(struct recorder *r)
{
	char error[REGION_ERROR_MAX];
	struct region other;
	int err = 0;

	if (r->attached && !region_file_moved(&r->region, &r->file.file) &&
	    !region_moved(&r->region))
		return 0;
	if (r->attached) {
		err = follow_pump(&r->follow, &r->file.journal, ring_last(&r->file.journal));
		if (err)
			return err;
		detach(r);
	}
	if (region_moved(&r->region) && region_open(&other, r->place, 0, error) == 0) {
		region_close(&r->region);
		r->region = other;
	}
	return attach(r);
}

/* ---- the loop ---- */

static int step(struct recorder *r)
{
	uint64_t now = clock_ns();
	int err = 0;

	if (r->sink.failing) {
		if (now < r->tried_ns + (uint64_t)PATIENCE_MS * NS_PER_MS)
			return 0;
		r->tried_ns = now;
		r->follow.hindered = 1;
		err = sink_flush(&r->sink);
	}
	if (!err &&
	    now >= r->looked_ns + (uint64_t)(r->attached ? PATIENCE_MS : WAITING_MS) * NS_PER_MS) {
		r->looked_ns = now;
		err = sink_look(&r->sink);
		if (!err)
			err = look_around(r);
	}
	if (!err && r->attached && !r->source_due && generation_of(r) != r->generation) {
		err = follow_pump(&r->follow, &r->file.journal, ring_last(&r->file.journal));
		r->source_due = !err;
	}
	if (!err && r->attached && r->source_due)
		err = put_source(r);
	if (!err && r->attached)
		err = follow_pump(&r->follow, &r->file.journal, ring_last(&r->file.journal));
	if (!err)
		err = sink_flush(&r->sink);
	return err;
}

/* Sooner when much has come, so that the ring does not overtake us. */
static int period_after(const struct recorder *r, uint64_t before, int period)
{
	uint64_t came = r->follow.next - before;

	if (r->attached && came > r->file.journal.records / 8)
		return period > 2 * PERIOD_MIN_MS ? period / 2 : PERIOD_MIN_MS;
	return period * 2 < PERIOD_MAX_MS ? period * 2 : PERIOD_MAX_MS;
}

/* Until a signal. 0, or -errno when going on is pointless: nobody reads stdout. */
static int record(struct recorder *r, const sigset_t *signals)
{
	int period = PERIOD_MIN_MS, err;

	for (;;) {
		struct timespec wait = { .tv_nsec = (long)period * NS_PER_MS };
		uint64_t before = r->follow.next;

		err = step(r);
		if (err && strcmp(r->sink.path, "-") == 0)
			return err;
		if (sigtimedwait(signals, NULL, &wait) > 0)
			return 0;
		period = period_after(r, before, period);
	}
}

static int finish(struct recorder *r)
{
	int err = 0;

	r->tried_ns = r->looked_ns = 0; /* a file that took this one's place just now counts, too */
	err = step(r);
	if (!err)
		err = follow_flush(&r->follow);
	r->follow.sum.wall_ns = clock_wall_ns();
	if (!err)
		err = sink_put(&r->sink, RECORD_END, r->follow.next, &r->follow.sum,
			       sizeof(r->follow.sum));
	if (!err)
		err = sink_close(&r->sink);
	if (err)
		fprintf(stderr, "turnward record: %s ends before record %lu\n", r->sink.path,
			(unsigned long)r->follow.next);
	return err;
}

static void sum_json(const struct recorder *r, FILE *out)
{
	char buf[512];
	struct json j;

	json_init(&j, buf, sizeof(buf));
	json_object_begin(&j, NULL);
	json_u64(&j, "decisions", r->follow.sum.decisions);
	json_u64(&j, "outcomes", r->follow.sum.outcomes);
	json_u64(&j, "shadows", r->follow.sum.shadows);
	json_u64(&j, "gaps", r->follow.sum.gaps);
	json_u64(&j, "lost", r->follow.sum.lost);
	json_u64(&j, "bytes", r->sink.total);
	json_u64(&j, "files", r->sink.part ? r->sink.part : 1);
	json_object_end(&j);
	if (json_finish(&j) == 0)
		fprintf(out, "%.*s\n", (int)j.len, buf);
}

static int run(struct recorder *r, const char *path, const struct wanted *wanted, int json)
{
	sigset_t signals;
	int err;

	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	signal(SIGXFSZ, SIG_IGN); /* a file-size limit is an error of write() like others */
	signal(SIGPIPE, SIG_IGN);
	region_guard();
	r->follow.sink = &r->sink;
	err = sink_open(&r->sink, path, wanted->max_size, (unsigned)wanted->keep);
	if (err)
		return EXIT_RUNTIME;
	err = record(r, &signals);
	if (!err)
		err = finish(r);
	detach(r);
	sum_json(r, stderr);
	if (json && strcmp(path, "-") != 0)
		sum_json(r, stdout);
	return err ? EXIT_RUNTIME : EXIT_GOOD;
}

int ctl_record(int argc, char **argv)
{
	static struct recorder recorder;
	struct wanted wanted;
	struct conf conf;
	struct opt_scan scan;
	int id, json = 0, code;

	conf_init(&conf, numbers, &wanted);
	opt_begin(&scan, &program, argc, argv);
	while ((id = opt_next(&scan)) != OPT_END) {
		if (id == CTL_OPT_REGION)
			recorder.place = scan.value;
		if (id == CTL_OPT_JSON)
			json = 1;
		if (id != OPT_MAX_SIZE && id != OPT_KEEP)
			continue;
		if (conf_set_key(&conf, &wanted, id == OPT_KEEP ? "keep" : "max-size", scan.value))
			opt_fail(&program, "%s", conf.error);
	}
	if (scan.first + 1 != argc)
		opt_fail(&program, "give one FILE");
	if (ctl_region(&recorder.region, recorder.place) < 0)
		return EXIT_ABSENT;
	code = run(&recorder, argv[scan.first], &wanted, json);
	region_close(&recorder.region);
	return code;
}
