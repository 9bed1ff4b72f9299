/*
 * SIGTERM and SIGINT as a wish to stop: they are blocked but while the program waits, so that no
 * call is cut half-way.
 */
#ifndef TURNWARD_SHM_BASE_STOP_H
#define TURNWARD_SHM_BASE_STOP_H

#include <signal.h>

/* The signal that asked for it, 0 = none yet. */
extern volatile sig_atomic_t stop_asked;

/* First thing of a program: from then on a stop is clean. *ret_wait_mask is for ppoll(). */
void stop_signals(sigset_t *ret_wait_mask);

#endif
