/* A whole HTTP request on a connection of its own, waited for: what benches ask before and after.
 */
#ifndef TURNWARD_BENCH_ASK_H
#define TURNWARD_BENCH_ASK_H

#include <stddef.h>

#include "shm/base/addr.h"

enum { ASK_TIMEOUT_S = 5, ASK_TRIES = 3, ASK_PAUSE_US = 50 * 1000 };

/*
 * The answer's body, zero-terminated, to be freed by the caller, or NULL: no connection, another
 * status than 200, or time-out, three times in a row. `ret_len` may be NULL.
 */
char *ask_http(const struct addr *addr, const char *method, const char *path, size_t *ret_len);

#endif
