/* What the readers of workloads share: lines of a file, complaints that name them, bounds. */
#ifndef TURNWARD_BENCH_WORKLOAD_FORMS_H
#define TURNWARD_BENCH_WORKLOAD_FORMS_H

#include <stdio.h>

#include "bench/workload.h"

enum {
	FORMS_LINE_MAX = 1 << 24,     /* bytes of a line */
	FORMS_TOKENS_MAX = 1 << 22,   /* of one prompt or answer; more is taken for an error */
	FORMS_TURNS_MAX = 1 << 22,    /* requests of a file */
	FORMS_SEGMENTS_MAX = 1 << 26, /* of all prompts: a gigabyte */
	FORMS_SPAN_MAX_S =
		1000000, /* from the first arrival to the last: agents sample all of it */
};

/* A file's lines one by one, blank ones left out; `number` counts from 1. */
struct lines {
	FILE *file;
	char *line; /* zero-terminated, without its end */
	size_t len, room, number;
};

int lines_open(struct lines *l, const char *path, char why[WORKLOAD_WHY_MAX]); /* -errno */
int lines_next(struct lines *l, char why[WORKLOAD_WHY_MAX]); /* 1, 0 = the end, -errno */
void lines_close(struct lines *l);

/* Puts "line N: ..." into `why`; -EINVAL. */
int forms_complain(char *why, size_t line, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Whether what was asked for has been read. */
int forms_enough(const struct workload *w, const struct workload_pick *pick);
/* Whether one more session may begin. */
int forms_may_begin(const struct workload *w, const struct workload_pick *pick);

int workload_blocks(struct workload *w, const char *path, enum workload_form form,
		    const struct workload_pick *pick, char why[WORKLOAD_WHY_MAX]);

/* Puts open-loop turns into the order of their times and stretches these to the rate asked for. */
int workload_settle(struct workload *w, const struct workload_pick *pick);
/* Open loop to closed: see enum workload_loop. */
int workload_close(struct workload *w, const struct workload_pick *pick);
/* Draws the pauses anew where that is asked for. */
void workload_think(struct workload *w, const struct workload_pick *pick);
void workload_open(struct workload *w, const struct model_profile *profile);

#endif
