/* How the region's code refuses: one statement that writes the sentence and gives the code. */
#ifndef TURNWARD_SHM_REFUSE_H
#define TURNWARD_SHM_REFUSE_H

/* Writes into `error` (REGION_ERROR_MAX bytes) what, where, and what to do; returns `code`. */
int region_refuse(int code, char *error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
