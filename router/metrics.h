/* The admin listener's text pages: Prometheus metrics and the index. */
#ifndef TURNWARD_ROUTER_METRICS_H
#define TURNWARD_ROUTER_METRICS_H

#include <stdio.h>

struct worker;

int metrics_write(struct worker *w, FILE *out);
int admin_index_write(struct worker *w, FILE *out);

#endif
