/* What turnward record makes of a ring: every record once, gaps with their reason, files in bounds.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "router/ctl/follow.h"
#include "router/ctl/recording.h"
#include "tests/lib/unit.h"

enum { RECORDS = 32, RECORD_SIZE = 512, NO_LIMIT = 1 << 30 };

static char directory[64], path[128];
static uint8_t *mem;
static struct ring ring;
static struct sink sink;
static struct follow follow;
static struct recording recording;

static void ring_new(uint64_t first)
{
	size_t size = ring_size(RECORDS, RECORD_SIZE);

	memset(mem, 0, size);
	assert_int_equal(ring_clear(&ring, mem, size, RECORD_SIZE, first), 0);
}

static int set_up(void **state)
{
	snprintf(directory, sizeof(directory), "/tmp/turnward-test-XXXXXX");
	mem = aligned_alloc(RING_ALIGN, ring_size(RECORDS, RECORD_SIZE));
	if (!mem || !mkdtemp(directory))
		return -1;
	snprintf(path, sizeof(path), "%s/a", directory);
	ring_new(1);
	memset(&follow, 0, sizeof(follow));
	follow.sink = &sink;
	sink.fd = -1;
	return 0;
}

static int tear_down(void **state)
{
	DIR *dir = opendir(directory);
	char name[400];

	for (struct dirent *e; dir && (e = readdir(dir));) {
		snprintf(name, sizeof(name), "%s/%s", directory, e->d_name);
		unlink(name);
	}
	closedir(dir);
	free(mem);
	return rmdir(directory);
}

/* An outcome, `status` telling which. */
static uint64_t append(uint64_t status)
{
	struct journal_outcome o = { .status = status };

	journal_head_init(&o.head, JOURNAL_OUTCOME);
	o.head.wall_ns = 1000 + status;
	return ring_append(&ring, &o, sizeof(o));
}

static void append_many(unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		append(ring.next);
}

static void begin(uint64_t max_size, unsigned keep)
{
	assert_int_equal(sink_open(&sink, path, max_size, keep), 0);
	follow_ring(&follow, &ring);
}

static int pump(void)
{
	int err = follow_pump(&follow, &ring, ring_last(&ring));

	return err ? err : sink_flush(&sink);
}

static void end(void)
{
	assert_int_equal(follow_flush(&follow), 0);
	assert_int_equal(sink_close(&sink), 0);
}

/* What a file tells: its records' numbers, each with the status of that number, and its gaps. */
struct told {
	unsigned records, gaps;
	uint64_t first, last;
	struct record_gap gap[8];
};

static struct told told_by(const char *suffix)
{
	char name[160];
	struct told t = { 0 };
	struct record_item item;
	const struct journal_outcome *o;

	snprintf(name, sizeof(name), "%s%s", path, suffix);
	assert_int_equal(recording_open(&recording, name, "test"), 0);
	while (record_next(&recording.reader, &item) == 1) {
		if (record_gap_of(&item) && t.gaps < 8)
			t.gap[t.gaps++] = *record_gap_of(&item);
		if (item.kind != RECORD_JOURNAL)
			continue;
		assert_int_equal(journal_outcome_read(item.payload, item.length, &o), 0);
		assert_true(item.number > t.last);
		t.first = t.first ? t.first : item.number;
		t.last = item.number;
		t.records++;
	}
	assert_int_equal(recording.reader.torn + recording.reader.damaged, 0);
	recording_close(&recording);
	return t;
}

static int is_there(const char *suffix)
{
	char name[160];

	snprintf(name, sizeof(name), "%s%s", path, suffix);
	return access(name, F_OK) == 0;
}

static void a_ring_is_followed_from_what_it_still_holds(void **state)
{
	struct told t;

	append_many(50); /* 32 of them are there */
	begin(NO_LIMIT, 1);
	assert_int_equal(pump(), 0);
	for (int i = 0; i < 20; i++) {
		append_many(7);
		assert_int_equal(pump(), 0);
	}
	end();

	t = told_by("");
	assert_int_equal(t.first, 19);
	assert_int_equal(t.last, 190);
	assert_int_equal(t.records, 172);
	assert_int_equal(t.gaps, 0);
	assert_int_equal(follow.sum.outcomes, 172);
}

static void what_was_overwritten_first_is_one_gap(void **state)
{
	struct told t;

	begin(NO_LIMIT, 1);
	append_many(10);
	assert_int_equal(pump(), 0);
	append_many(100);
	assert_int_equal(pump(), 0);
	end();

	t = told_by("");
	assert_int_equal(t.gaps, 1);
	assert_int_equal(t.gap[0].first, 11);
	assert_int_equal(t.gap[0].last, 110 - RECORDS);
	assert_int_equal(t.gap[0].why, RECORD_GAP_OVERWRITTEN);
	assert_int_equal(t.records, 10 + RECORDS);
	assert_int_equal(follow.sum.lost, 100 - RECORDS);
}

/* As a writer leaves it that died in mid-record, behind an attaching one's repair. */
static void tear(uint64_t number)
{
	size_t slot = (ring_size(2, RECORD_SIZE) - ring_size(1, RECORD_SIZE));

	memset(mem + ring_size(1, RECORD_SIZE) - slot + (number % RECORDS) * slot, 0, 8);
}

static void torn_records_are_a_gap_of_their_own(void **state)
{
	struct told t;

	begin(NO_LIMIT, 1);
	append_many(20);
	tear(5);
	tear(6);
	tear(20);
	assert_int_equal(pump(), 0);
	append_many(1);
	assert_int_equal(pump(), 0);
	end();

	t = told_by("");
	assert_int_equal(t.records, 18);
	assert_int_equal(t.gaps, 2);
	assert_int_equal(t.gap[0].first, 5);
	assert_int_equal(t.gap[0].last, 6);
	assert_int_equal(t.gap[0].why, RECORD_GAP_TORN);
	assert_int_equal(t.gap[1].first, 20);
	assert_int_equal(t.gap[1].last, 20);
}

static void records_of_another_version_are_left_out_as_a_gap(void **state)
{
	struct journal_head other = { .kind = JOURNAL_OUTCOME, .version = JOURNAL_VERSION };
	struct told t;

	other.layout = journal_layout() + 1;
	begin(NO_LIMIT, 1);
	append_many(2);
	ring_append(&ring, &other, sizeof(other));
	ring_append(&ring, "short", 5);
	append_many(2);
	assert_int_equal(pump(), 0);
	end();

	t = told_by("");
	assert_int_equal(t.records, 4);
	assert_int_equal(t.gaps, 1);
	assert_int_equal(t.gap[0].first, 3);
	assert_int_equal(t.gap[0].last, 4);
	assert_int_equal(t.gap[0].why, RECORD_GAP_FOREIGN);
}

/* A ring that grew holds the same records under the same numbers, whatever came behind ours. */
static void a_ring_with_our_last_record_goes_on(void **state)
{
	struct journal_head other = { .kind = JOURNAL_OUTCOME, .version = JOURNAL_VERSION };

	begin(NO_LIMIT, 1);
	append_many(8);
	ring_append(&ring, &other, sizeof(other)); /* read last, and not known again */
	assert_int_equal(pump(), 0);
	append_many(3);

	assert_int_equal(follow_ring(&follow, &ring), 1);
	assert_int_equal(follow.next, 10);
	assert_int_equal(pump(), 0);
	end();
	assert_int_equal(told_by("").records, 11);
}

static void another_ring_begins_anew(void **state)
{
	begin(NO_LIMIT, 1);
	append_many(8);
	assert_int_equal(pump(), 0);
	ring_new(1);
	for (unsigned i = 0; i < 12; i++)
		append(500 + i);

	assert_int_equal(follow_ring(&follow, &ring), 0);
	assert_int_equal(follow.next, 1);
	sink_close(&sink);
}

static void a_full_file_moves_on_and_only_so_many_stay(void **state)
{
	struct record_source source = { .generation = 7 };
	uint64_t last = 0;
	struct told t;

	begin(SINK_SIZE_MIN, 2);
	assert_int_equal(sink_put(&sink, RECORD_SOURCE, 1, &source, sizeof(source)), 0);
	for (int i = 0; i < 150; i++) {
		append_many(20);
		assert_int_equal(pump(), 0);
	}
	end();

	assert_true(sink.part > 4);
	assert_true(is_there("") && is_there(".1") && is_there(".2"));
	assert_false(is_there(".3") || is_there(".new"));
	for (int i = 2; i >= 0; i--) {
		char name[160], suffix[4] = "";
		struct stat st;

		if (i)
			snprintf(suffix, sizeof(suffix), ".%d", i);
		snprintf(name, sizeof(name), "%s%s", path, suffix);
		assert_int_equal(stat(name, &st), 0);
		assert_in_range(st.st_size, 1000, SINK_SIZE_MIN);
		t = told_by(suffix);
		assert_true(t.gaps == 0 && (last == 0 || t.first == last + 1));
		last = t.last;
		assert_int_equal(recording.reader.head.part, sink.part - 1 - (uint64_t)i);
	}
	assert_int_equal(last, 3000);
}

/* So that each part alone tells which records it has. */
static void later_parts_begin_with_their_source(void **state)
{
	struct record_source source = { .generation = 7, .first = 1 };
	const struct record_source *got;
	struct record_item item;

	begin(SINK_SIZE_MIN, 1);
	assert_int_equal(sink_put(&sink, RECORD_SOURCE, 1, &source, sizeof(source)), 0);
	while (sink.part < 3) {
		append_many(20);
		assert_int_equal(pump(), 0);
	}
	end();

	assert_int_equal(recording_open(&recording, path, "test"), 0);
	assert_int_equal(record_next(&recording.reader, &item), 1);
	got = record_source_of(&item);
	assert_non_null(got);
	assert_int_equal(got->generation, 7);
	assert_int_equal(got->continues, 1);
	recording_close(&recording);
}

static void with_nothing_kept_only_the_newest_stays(void **state)
{
	begin(SINK_SIZE_MIN, 0);
	while (sink.part < 3) {
		append_many(20);
		assert_int_equal(pump(), 0);
	}
	end();

	assert_true(is_there(""));
	assert_false(is_there(".1") || is_there(".new"));
	assert_int_equal(told_by("").last, ring_last(&ring));
}

static void an_earlier_recording_is_moved_along(void **state)
{
	append_many(3);
	begin(NO_LIMIT, 2);
	assert_int_equal(pump(), 0);
	end();
	append_many(2);
	memset(&follow, 0, sizeof(follow));
	follow.sink = &sink;
	begin(NO_LIMIT, 2);
	assert_int_equal(pump(), 0);
	end();

	assert_int_equal(told_by("").records, 5);
	assert_int_equal(told_by(".1").records, 3);
}

static void what_is_no_recording_is_left_alone(void **state)
{
	char text[16] = "";
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	assert_int_equal(write(fd, "my notes", 8), 8);
	assert_int_equal(sink_open(&sink, path, NO_LIMIT, 1), -EEXIST);
	assert_int_equal(pread(fd, text, sizeof(text), 0), 8);
	assert_string_equal(text, "my notes");
	close(fd);
	snprintf(path, sizeof(path), "%s/none/a", directory);
	assert_int_equal(sink_open(&sink, path, NO_LIMIT, 1), -ENOENT);
}

static void a_recording_has_one_writer(void **state)
{
	static struct sink second;

	begin(NO_LIMIT, 1);
	assert_int_equal(sink_open(&second, path, NO_LIMIT, 1), -EBUSY);
	end();
	assert_int_equal(sink_open(&second, path, NO_LIMIT, 1), 0);
	assert_int_equal(sink_close(&second), 0);
}

static void file_limit(rlim_t bytes)
{
	struct rlimit limit;

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = bytes;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void a_full_disk_leaves_the_file_whole_and_is_got_over(void **state)
{
	struct told t;
	int failed = 0;

	signal(SIGXFSZ, SIG_IGN);
	begin(NO_LIMIT, 1);
	append_many(20);
	assert_int_equal(pump(), 0);
	file_limit(sink.size + 3000);
	for (int i = 0; i < 20; i++) { /* more than the ring holds */
		append_many(20);
		failed += !sink.failing && pump() == -EFBIG;
	}
	assert_true(failed == 1 && sink.failing);
	t = told_by("");
	assert_true(t.gaps == 0 && t.last < 100);

	file_limit(RLIM_INFINITY);
	follow.hindered = 1; /* as record does at each try */
	assert_int_equal(sink_flush(&sink), 0);
	assert_int_equal(pump(), 0);
	end();
	t = told_by("");
	assert_int_equal(t.last, 420);
	assert_int_equal(t.gaps, 1);
	assert_int_equal(t.gap[0].why, RECORD_GAP_UNWRITTEN);
	assert_int_equal(t.records + t.gap[0].last - t.gap[0].first + 1, 420);
}

static void a_file_that_was_moved_away_is_followed_by_another(void **state)
{
	char name[160];

	begin(NO_LIMIT, 1);
	append_many(4);
	assert_int_equal(pump(), 0);
	assert_int_equal(sink_look(&sink), 0);
	assert_int_equal(sink.part, 1);
	snprintf(name, sizeof(name), "%s-old", path);
	assert_int_equal(rename(path, name), 0);
	assert_int_equal(sink_look(&sink), 0);
	append_many(3);
	assert_int_equal(pump(), 0);
	end();

	assert_int_equal(told_by("-old").records, 4);
	assert_int_equal(told_by("").records, 3);
}

int main(void)
{
#define IN_PLACE(claim) cmocka_unit_test_setup_teardown(claim, set_up, tear_down)
	const struct CMUnitTest claims[] = {
		IN_PLACE(a_ring_is_followed_from_what_it_still_holds),
		IN_PLACE(what_was_overwritten_first_is_one_gap),
		IN_PLACE(torn_records_are_a_gap_of_their_own),
		IN_PLACE(records_of_another_version_are_left_out_as_a_gap),
		IN_PLACE(a_ring_with_our_last_record_goes_on),
		IN_PLACE(another_ring_begins_anew),
		IN_PLACE(a_full_file_moves_on_and_only_so_many_stay),
		IN_PLACE(later_parts_begin_with_their_source),
		IN_PLACE(with_nothing_kept_only_the_newest_stays),
		IN_PLACE(an_earlier_recording_is_moved_along),
		IN_PLACE(what_is_no_recording_is_left_alone),
		IN_PLACE(a_recording_has_one_writer),
		IN_PLACE(a_full_disk_leaves_the_file_whole_and_is_got_over),
		IN_PLACE(a_file_that_was_moved_away_is_followed_by_another),
	};

	return cmocka_run_group_tests_name("recorder", claims, NULL, NULL);
}
