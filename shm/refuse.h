/* How the region's code refuses: one statement that writes the sentence and gives the code. */
#ifndef TURNWARD_SHM_REFUSE_H
#define TURNWARD_SHM_REFUSE_H

/* Writes into `error` (REGION_ERROR_MAX bytes) what, where, and what to do; returns `code`. */
int region_refuse(int code, char *error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Ends a refusal of a file's layout; who makes the file anew says so in its place. */
#define REGION_ADVICE ": stop all turnward programs of the other version, or remove the file"

/* Copies the sentence (REGION_ERROR_MAX bytes) with ": made anew" for the advice. */
void region_say_renewed(char *ret_note, const char *refusal);

#endif
