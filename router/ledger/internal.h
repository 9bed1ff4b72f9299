/* What the ledger's parts share: an engine's recent past, as totals at any moment of it. */
#ifndef TURNWARD_ROUTER_LEDGER_INTERNAL_H
#define TURNWARD_ROUTER_LEDGER_INTERNAL_H

#include "router/ledger/ledger.h"

/* Call before an event: so that the past keeps what the totals were. */
void ledger_mark(struct ledger_engine *engine, uint64_t now_ns);

/* Totals at a moment: certainly reached by then; and certainly not exceeded by then.
 * Valid until the next event. */
const struct ledger_totals *ledger_reached(const struct ledger_engine *engine, uint64_t at_ns);
const struct ledger_totals *ledger_bounded(const struct ledger_engine *engine, uint64_t at_ns);

/* Finds and notes the two marks that a record's moments lead to, and asks for their lines. */
void ledger_locate(struct ledger_engine *engine, uint64_t taken_ns, uint64_t left_ns);

static inline uint64_t since(uint64_t now, uint64_t then)
{
	return now > then ? now - then : 0;
}

/* Requests in the engine, past their first token or not. */
static inline uint64_t ledger_in_engine(const struct ledger_engine *engine)
{
	return engine->totals.dispatched - engine->totals.ended;
}

#endif
