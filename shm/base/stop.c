/* Takes the signals that ask a program to stop. */
#include "shm/base/stop.h"

#include <stddef.h>

volatile sig_atomic_t stop_asked;

static void on_stop(int signal)
{
	stop_asked = signal;
}

void stop_signals(sigset_t *ret_wait_mask)
{
	struct sigaction stop = { .sa_handler = on_stop };
	sigset_t blocked;

	sigemptyset(&blocked);
	sigaddset(&blocked, SIGTERM);
	sigaddset(&blocked, SIGINT);
	sigprocmask(SIG_BLOCK, &blocked, ret_wait_mask);
	sigdelset(ret_wait_mask, SIGTERM);
	sigdelset(ret_wait_mask, SIGINT);
	sigaction(SIGTERM, &stop, NULL);
	sigaction(SIGINT, &stop, NULL);
	signal(SIGHUP, SIG_IGN);
}
