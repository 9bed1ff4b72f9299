/* The admin listener's pages: Prometheus metrics, status, index. */
#ifndef TURNWARD_ROUTER_METRICS_H
#define TURNWARD_ROUTER_METRICS_H

#include <stdio.h>

struct worker;

int metrics_write(struct worker *w, FILE *out);
int status_page_write(struct worker *w, FILE *out);
int admin_index_write(struct worker *w, FILE *out);

#endif
