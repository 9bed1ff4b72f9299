/*
 * The region: a directory of shared-memory files, each with exactly one writer.
 *
 * A writer creates or re-attaches its file and holds an OFD write lock on it for life; the kernel
 * drops that lock at death, so "locked" is liveness and a pid is only for messages. Readers map
 * files read-only. Files are posix_fallocate()d, never truncated, replaced only by rename; a
 * foreign layout is refused. README.md of this directory is the protocol.
 */
#ifndef TURNWARD_SHM_REGION_H
#define TURNWARD_SHM_REGION_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

enum { REGION_PATH_MAX = 200, REGION_ERROR_MAX = 400 };

struct region {
	int dir_fd; /* O_DIRECTORY | O_CLOEXEC */
	char path[REGION_PATH_MAX];
	char note[REGION_ERROR_MAX]; /* "" or a sentence for the user: a place that is no tmpfs */
};

/* Every file begins with this; all values native, checked field by field at attach. */
struct region_header {
	char magic[8];    /* "TURNWARD" */
	uint32_t version; /* REGION_VERSION; another major one is refused */
	uint32_t header_size;
	uint64_t kind;         /* enum region_kind */
	uint64_t fingerprint;  /* of the payload's layout: sizes and offsets, hashed */
	uint64_t size;         /* of the whole file */
	char boot_id[40];      /* a file of another boot is re-initialised by its writer */
	uint64_t writer_pid;   /* for messages only */
	uint64_t writer_start; /* /proc/PID/stat field 22, for messages only */
	uint64_t generation;   /* writers that have held this file */
	uint64_t created_ns;   /* CLOCK_MONOTONIC */
	uint64_t reserved[3];
};
static_assert(sizeof(struct region_header) == 136, "layout 1");
static_assert(offsetof(struct region_header, boot_id) == 40, "layout 1");

enum { REGION_PAYLOAD = 256 }; /* where a file's payload begins; aligned for slots */

enum region_kind { REGION_ENGINE = 1, REGION_LATENCY, REGION_LEDGER, REGION_ROUTER };

enum { REGION_VERSION = 1 };

/*
 * What can be wrong with a header, in the order in which it is looked for. X(ID, what it means).
 * REGION_OK must stay first. To a writer OTHER_BOOT, SHORT and SIZE_CUT are no refusal: it begins
 * anew.
 */
#define REGION_DAMAGES(X)                                       \
	X(OK, "nothing is wrong")                               \
	X(SHORT, "the file is shorter than a header")           \
	X(MAGIC, "it is not a turnward file")                   \
	X(BYTE_ORDER, "it was written with another byte order") \
	X(VERSION_OLDER, "its layout is of an older version")   \
	X(VERSION_NEWER, "its layout is of a newer version")    \
	X(HEADER_SIZE, "its header has another size")           \
	X(KIND_UNKNOWN, "its kind is unknown")                  \
	X(KIND_OTHER, "it is of another kind")                  \
	X(SIZE_SMALL, "it claims to be smaller than a header")  \
	X(SIZE_UNEVEN, "its size is no multiple of 8")          \
	X(SIZE_CUT, "it has been cut short")                    \
	X(SIZE_GROWN, "it is longer than it says")              \
	X(BOOT_TEXT, "its boot id is no text")                  \
	X(PID, "its writer's pid is impossible")                \
	X(START, "its writer's start time is impossible")       \
	X(GENERATION, "its generation is impossible")           \
	X(CREATED, "its creation time is impossible")           \
	X(CREATED_LATER, "it was created in the future")        \
	X(RESERVED, "its reserved words are in use")            \
	X(OTHER_BOOT, "it was left by an earlier boot")         \
	X(FINGERPRINT, "its records have another layout")       \
	X(SIZE_OTHER, "it has another size than this program's")

#define REGION_DAMAGE_ENUM(id, text) REGION_##id,
enum region_damage { REGION_DAMAGES(REGION_DAMAGE_ENUM) REGION_DAMAGES_NR };
#undef REGION_DAMAGE_ENUM

/* Judges a header against what is wanted; `size` 0 = any. Pure but for the boot id and the clock.
 */
enum region_damage region_header_check(const struct region_header *header, size_t file_size,
				       enum region_kind kind, uint64_t fingerprint, size_t size);
const char *region_damage_text(enum region_damage damage);

/* A file held for writing (locked) or mapped for reading. All zero but fd = -1 means "none". */
struct region_file {
	int fd;
	int writable;
	char name[64];
	uint8_t *map; /* the header is at its start */
	size_t size;
	uint64_t dev, ino;
	int fresh; /* writer: 1 if the content was initialised now, 0 if a predecessor's was kept */
};

/*
 * Finds or makes the region's directory: `option` (may be NULL), $TURNWARD_REGION, an existing
 * readable /run/turnward, else as root /run/turnward, else $XDG_RUNTIME_DIR/turnward, else
 * /dev/shm/turnward-UID. create = 0 looks only (-ENOENT when there is none). On failure `error`
 * (REGION_ERROR_MAX bytes) says what, where and what to do.
 */
int region_open(struct region *ret_region, const char *option, int create, char *error);
void region_close(struct region *region);

/*
 * Creates or re-attaches `name` for writing and locks it for life. -EBUSY: another writer lives
 * (the error names its pid); -EPROTO: foreign layout (both named), unless `reinit` is set, which
 * replaces the file; -ENOSPC; -EPERM: wrong owner, a link, rights too wide. The payload is zero
 * when fresh. A writer that lost its file (region_file_moved()) drops it before it holds again.
 * `size` is the whole file's; 0 re-attaches one of any size and never creates: -ENOENT.
 */
int region_file_hold(struct region_file *ret_file, const struct region *region, const char *name,
		     enum region_kind kind, uint64_t fingerprint, size_t size, int reinit,
		     char *error);

/*
 * Replaces a held file by a new one of `size` bytes, complete before it appears under the name, and
 * keeps holding: `fill` moves what it can from the old map to the new (zero but for its header).
 */
int region_file_replace(struct region_file *file, const struct region *region,
			enum region_kind kind, uint64_t fingerprint, size_t size,
			void (*fill)(void *ctx, const struct region_file *old,
				     struct region_file *new_file),
			void *ctx, char *error);

/*
 * Maps `name` read-only. -ENOENT; -EPROTO for a damaged or foreign header, with the error naming
 * it. `size` 0 takes the size that the header says (bounded by the file's).
 */
int region_file_attach(struct region_file *ret_file, const struct region *region, const char *name,
		       enum region_kind kind, uint64_t fingerprint, size_t size, char *error);

void region_file_drop(struct region_file *file);

/* 1 if a living writer holds it, 0 if not. One system call: not for the hot path. */
int region_file_alive(const struct region_file *file);

/* 1 if the name now leads to another file (replaced or unlinked): attach again. */
int region_file_moved(const struct region *region, const struct region_file *file);

/* Likewise for the directory itself: open the region again. */
int region_moved(const struct region *region);

/*
 * Once per process: a file that somebody truncates under us turns into zero pages instead of
 * SIGBUS; region_file_moved() then says so. Other SIGBUS keep their default.
 */
void region_guard(void);

/* Calls back with each file name that begins with `prefix` ("engine."), in name order. */
int region_list(const struct region *region, const char *prefix,
		void (*each)(void *ctx, const char *name), void *ctx);

/* A file's content begins here. */
static inline void *region_payload(const struct region_file *file)
{
	return file->map + REGION_PAYLOAD;
}

/* FNV-1a over (name, size) pairs: how layouts compute their fingerprints. */
uint64_t region_fingerprint(uint64_t seed, const char *text, uint64_t value);

/* 1 if `name` is a valid engine name ([A-Za-z0-9][A-Za-z0-9._-]{0,31}). */
int region_engine_name_valid(const char *name);

#endif
