/*
 * A recording: the journal's records in a file, each framed with its length, number and checksum.
 *
 * The head tells format, byte order, the program that wrote it and, as text, the layout of the
 * records; a file of another layout is refused with both versions named. Frames are appended whole,
 * so that a writer's death at any instant costs at most the frame it was writing: reading ends
 * before it, or goes on behind damage at the next frame that is sound. What the writer could not
 * read in time stands as a gap. No input or output here: bytes come through a callback.
 */
#ifndef TURNWARD_ROUTER_JOURNAL_RECORD_H
#define TURNWARD_ROUTER_JOURNAL_RECORD_H

#include "router/journal/journal.h"

#include <stddef.h>
#include <stdint.h>

enum {
	RECORD_VERSION = 1,
	RECORD_PAYLOAD_MAX = 64 * 1024, /* the ring's own bound */
	RECORD_PROGRAM_MAX = 96,
	RECORD_ERROR_MAX = 512,
	RECORD_HEAD_MAX = 32 * 1024,
	RECORD_BUFFER = 256 * 1024,
};

/* First in the file; the layout's text follows, zero-padded to whole words. */
struct record_head {
	char magic[8];       /* "TWRECORD" */
	uint32_t byte_order; /* 0x01020304 as the writer has it */
	uint32_t version;    /* RECORD_VERSION */
	uint64_t layout;     /* journal_layout() */
	uint64_t size;       /* with the text */
	uint64_t wall_ns;    /* when it was begun */
	uint64_t part;       /* files that this recording filled before */
	char program[RECORD_PROGRAM_MAX];
	uint64_t check; /* over the rest of the head and the text */
};
static_assert(sizeof(struct record_head) == 152, "format 1");

/* X(ID, name) */
#define RECORD_KINDS(X)                                                   \
	X(JOURNAL, "journal") /* a record of the ring under its number */ \
	X(GAP, "gap")         /* struct record_gap */                     \
	X(SOURCE, "source")   /* struct record_source */                  \
	X(END, "end")         /* struct record_end */
#define RECORD_KIND_ENUM(id, name) RECORD_##id,
enum record_kind { RECORD_KIND_NONE, RECORD_KINDS(RECORD_KIND_ENUM) RECORD_KINDS_END };
#undef RECORD_KIND_ENUM

struct record_frame {
	uint32_t magic;
	uint32_t kind;   /* enum record_kind */
	uint64_t length; /* of the payload, which is zero-padded to whole words */
	uint64_t number; /* of the ring's record; of others: of the one that comes next */
	uint64_t check;  /* over kind, length, number and payload */
};
static_assert(sizeof(struct record_frame) == 32, "format 1");

/* Why records are missing. X(ID, name, meaning) */
#define RECORD_GAPS(X)                                                     \
	X(OVERWRITTEN, "overwritten", "overwritten before they were read") \
	X(TORN, "torn", "torn by a writer that died")                      \
	X(FOREIGN, "foreign", "written by another version of the router")  \
	X(UNWRITTEN, "unwritten", "lost while the file took nothing")
#define RECORD_GAP_ENUM(id, name, meaning) RECORD_GAP_##id,
enum record_gap_why { RECORD_GAPS(RECORD_GAP_ENUM) RECORD_GAPS_NR };
#undef RECORD_GAP_ENUM

struct record_gap {
	uint64_t first, last; /* numbers, inclusive */
	uint64_t why;         /* enum record_gap_why */
};

/* Where the records that follow come from: at the beginning, and whenever it changes. */
struct record_source {
	char boot_id[40];
	uint64_t ino, created_ns;        /* of the region's `router` file */
	uint64_t generation, writer_pid; /* workers that have held it; the one that does */
	uint64_t wall_ns;
	uint64_t first;     /* number of the next record */
	uint64_t continues; /* 1: numbers go on, 0: they begin anew */
};

struct record_end {
	uint64_t decisions, outcomes, shadows, gaps, lost; /* in all parts of the recording */
	uint64_t wall_ns;
};

/* ---- writing; each returns the bytes written, or 0 if they exceed `room` ---- */

size_t record_head_write(void *into, size_t room, const char *program, uint64_t wall_ns,
			 uint64_t part);
size_t record_frame_write(void *into, size_t room, enum record_kind kind, uint64_t number,
			  const void *payload, size_t length);

/* ---- reading ---- */

/* Up to `room` bytes more: their number, 0 at the end, -errno. */
typedef long record_pull(void *ctx, void *into, size_t room);

struct record_item {
	enum record_kind kind;
	uint64_t number;
	const void *payload; /* until the next call */
	size_t length;
};

struct record_reader {
	record_pull *pull;
	void *ctx;
	int ended; /* the input has */
	size_t at, have;
	struct record_head head;
	uint64_t frames;
	uint64_t damaged;  /* bytes passed over before a frame that was sound again */
	uint64_t torn;     /* bytes at the end that are no whole frame */
	uint64_t skipping; /* bytes passed over since the last sound frame */
	uint64_t buffer[RECORD_BUFFER / 8];
};

/*
 * Reads the head. 0; -EPROTO: no recording, or one that this build cannot read; -errno of pulling.
 * `error` (RECORD_ERROR_MAX) says what and, of versions, names both: `program` is this one.
 */
int record_open(struct record_reader *ret_reader, record_pull *pull, void *ctx, const char *program,
		char *error);

/* 1 with the next sound frame, 0 at the end, -errno of pulling. */
int record_next(struct record_reader *reader, struct record_item *ret_item);

/* The payload of an item of that kind, or NULL when it is another or too short. */
const struct record_gap *record_gap_of(const struct record_item *item);
const struct record_source *record_source_of(const struct record_item *item);
const struct record_end *record_end_of(const struct record_item *item);

const char *record_gap_name(uint64_t why);
const char *record_gap_meaning(uint64_t why);

#endif
