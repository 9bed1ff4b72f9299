/* One JSON line for each request that ended: phases, engine, reason, tokens; no content, no keys.
 */
#ifndef TURNWARD_ROUTER_ACCESSLOG_H
#define TURNWARD_ROUTER_ACCESSLOG_H

struct worker;
struct exchange;

void accesslog_request(const struct worker *w, const struct exchange *x);

#endif
