/* The admin listener's pages: Prometheus metrics, status, index. */
#ifndef TURNWARD_ROUTER_METRICS_H
#define TURNWARD_ROUTER_METRICS_H

#include "router/stats/hist.h"

#include <stdio.h>

struct worker;

int metrics_write(struct worker *w, FILE *out);
/* Pieces of the page for other files: HELP and TYPE; one histogram, its label NULL or an extra one.
 */
void metrics_head(FILE *out, const char *name, const char *type, const char *help);
void metrics_histogram(FILE *out, const char *name, const char *label, const char *value,
		       const struct hist *h, const double *bounds, int n);

int status_page_write(struct worker *w, FILE *out);
int admin_index_write(struct worker *w, FILE *out);

#endif
