/*
 * The supervisor: owns the listening sockets, so that a worker's death costs the connections that
 * it had and no other: what waits in the accept queue is served by the next worker.
 */
#ifndef TURNWARD_ROUTER_SUPERVISOR_H
#define TURNWARD_ROUTER_SUPERVISOR_H

#include "router/settings.h"

/* Binds, starts a worker, replaces it when it dies, ends with it. Returns the exit code. */
int supervisor_run(const struct router_settings *settings);

#endif
