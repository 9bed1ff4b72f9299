/* turnward explain ID: every engine's terms at that decision, the rule that won, what came of it.
 */
#include "router/ctl/ctl.h"

#include "router/ctl/recording.h"
#include "router/ctl/story.h"
#include "shm/base/exit.h"
#include "shm/files.h"
#include "shm/ring.h"

#include <stdio.h>
#include <string.h>

enum { OPT_FILE = CTL_OPT_OWN };

static const struct opt options[] = { CTL_OPTIONS,
				      { "file", "FILE", "from a recording, not the running journal",
					OPT_FILE, 'f', 0 },
				      { 0 } };

static const struct opt_program program = {
	.name = "turnward explain",
	.operands = "[options] ID",
	.purpose = "Tells why the request with x-request-id ID went where it went: the sentence,\n"
		   "every engine's terms, the outcome, and where the time to its first token went.",
	.options = options,
	.examples = "  turnward explain 4be1f0c2a3b4c5d6\n"
		    "  turnward explain --file today.twr --json my-request-7\n",
};

/* Records as found, aligned; they belong to one decision. */
struct found {
	uint64_t number; /* of the decision, 0 = not found */
	int have_outcome, have_shadow;
	uint64_t decision[RING_RECORD_MAX / 8], outcome[RING_RECORD_MAX / 8],
		shadow[RING_RECORD_MAX / 8];
	size_t decision_size, outcome_size, shadow_size;
};

/* ---- in the journal ---- */

struct wanted {
	enum journal_kind kind;
	const char *id;
	uint64_t decision; /* an outcome or a shadow of that one; 0 = any */
};

static int match(void *ctx, const void *record, size_t size)
{
	const struct journal_outcome *outcome;
	const struct journal_shadow *shadow;
	const struct wanted *w = ctx;

	if (!journal_is(record, size, w->kind, w->id))
		return 0;
	if (w->kind == JOURNAL_OUTCOME)
		return journal_outcome_read(record, size, &outcome) == 0 &&
		       outcome->decision == w->decision;
	if (w->kind == JOURNAL_SHADOW)
		return journal_shadow_read(record, size, &shadow) == 0 &&
		       shadow->decision == w->decision;
	return 1;
}

static int find(const struct ring *ring, const char *id, struct found *f)
{
	struct wanted want = { JOURNAL_DECISION, id, 0 };
	size_t room = sizeof(f->decision);

	f->decision_size = f->outcome_size = f->shadow_size = room;
	if (ring_find_last(ring, match, &want, f->decision, room, &f->number) < 0)
		return -1;
	want.decision = f->number;
	want.kind = JOURNAL_OUTCOME;
	f->have_outcome = ring_find_last(ring, match, &want, f->outcome, room, NULL) == 0;
	want.kind = JOURNAL_SHADOW;
	f->have_shadow = ring_find_last(ring, match, &want, f->shadow, room, NULL) == 0;
	return 0;
}

/* ---- in a recording ---- */

static void keep(const struct record_item *item, uint64_t *into, size_t *ret_size)
{
	memcpy(into, item->payload, item->length);
	*ret_size = item->length;
}

/* The last decision of that id, and what followed of it. */
static void look(struct found *f, const char *id, const struct record_item *item)
{
	struct wanted want = { JOURNAL_DECISION, id, f->number };

	if (match(&want, item->payload, item->length)) {
		f->number = item->number;
		f->have_outcome = f->have_shadow = 0;
		keep(item, f->decision, &f->decision_size);
	}
	want.kind = JOURNAL_OUTCOME;
	if (f->number && match(&want, item->payload, item->length)) {
		f->have_outcome = 1;
		keep(item, f->outcome, &f->outcome_size);
	}
	want.kind = JOURNAL_SHADOW;
	if (f->number && match(&want, item->payload, item->length)) {
		f->have_shadow = 1;
		keep(item, f->shadow, &f->shadow_size);
	}
}

static int search_file(const char *path, const char *id, struct found *f)
{
	static struct recording recording;
	struct record_item item;
	int got;

	if (recording_open(&recording, path, program.name) < 0)
		return EXIT_RUNTIME;
	while ((got = record_next(&recording.reader, &item)) > 0)
		if (item.kind == RECORD_JOURNAL)
			look(f, id, &item);
	recording_close(&recording);
	if (got < 0)
		fprintf(stderr, "%s: %s: %s\n", program.name, path, strerror(-got));
	else if (f->number == 0)
		fprintf(stderr, "%s: %s is not in %s\n", program.name, id, path);
	return got < 0 || f->number == 0 ? EXIT_RUNTIME : EXIT_GOOD;
}

static int search_region(const char *where, const char *id, struct found *f)
{
	char error[REGION_ERROR_MAX] = "";
	struct router_file file;
	struct region region;
	int code = EXIT_GOOD;

	if (ctl_region(&region, where) < 0)
		return EXIT_ABSENT;
	if (router_file_attach(&file, &region, error) < 0) {
		fprintf(stderr, "%s: %s\n", program.name, error);
		region_close(&region);
		return EXIT_ABSENT;
	}
	if (find(&file.journal, id, f) < 0) {
		fprintf(stderr,
			"%s: %s is not in the journal (%lu records back to number %lu); of older "
			"ones turnward record keeps a file\n",
			program.name, id, (unsigned long)file.journal.records,
			(unsigned long)ring_first(&file.journal));
		code = EXIT_RUNTIME;
	}
	router_file_drop(&file);
	region_close(&region);
	return code;
}

/* ---- */

static int tell(const struct found *f, const char *id, int json)
{
	static struct story s;

	s.number = f->number;
	if (journal_decision_read(f->decision, f->decision_size, &s.view) < 0) {
		fprintf(stderr, "%s: the record of %s is damaged\n", program.name, id);
		return EXIT_RUNTIME;
	}
	if (f->have_outcome)
		journal_outcome_read(f->outcome, f->outcome_size, &s.outcome);
	if (f->have_shadow)
		journal_shadow_read(f->shadow, f->shadow_size, &s.shadow);
	s.differs = journal_replay(&s.view, &s.again);
	if (json)
		story_json(&s);
	else
		story_print(&s);
	return s.differs ? EXIT_RUNTIME : EXIT_GOOD;
}

int ctl_explain(int argc, char **argv)
{
	static struct found found;
	const char *where = NULL, *file = NULL, *wanted;
	struct opt_scan scan;
	int id, json = 0, code;

	opt_begin(&scan, &program, argc, argv);
	while ((id = opt_next(&scan)) != OPT_END) {
		if (id == CTL_OPT_REGION)
			where = scan.value;
		if (id == CTL_OPT_JSON)
			json = 1;
		if (id == OPT_FILE)
			file = scan.value;
	}
	if (scan.first + 1 != argc)
		opt_fail(&program, "give one request id");
	wanted = argv[scan.first];
	code = file ? search_file(file, wanted, &found) : search_region(where, wanted, &found);
	return code == EXIT_GOOD ? tell(&found, wanted, json) : code;
}
