/* Keeping the books: every request is in them from its dispatch to its end, and never twice. */
#include "router/ledger/internal.h"

#include <string.h>

static const double MEAN_GAIN =
	0.05; /* of mean_uncached_tokens: about the last twenty dispatches */

void ledger_init(struct ledger *ledger)
{
	memset(ledger, 0, sizeof(*ledger));
}

void ledger_params_init(struct ledger_params *ret_params)
{
	*ret_params = (struct ledger_params){ .admission_lag_s = 0.1,
					      .unknown_periods = 20,
					      .unknown_s = 2,
					      .fresh_periods = 2,
					      .probe_after_s = 10,
					      .probe_every_s = 5,
					      .settle_s = 5 };
}

void ledger_params_scale(struct ledger_params *params, double speed)
{
	assert(speed > 0);
	params->admission_lag_s /= speed;
	params->probe_after_s /= speed;
	params->probe_every_s /= speed;
	params->settle_s /= speed;
}

static struct ledger_engine *books_of(struct ledger *ledger, unsigned engine)
{
	assert(engine < STATE_ENGINES_MAX);
	return &ledger->engine[engine];
}

/* Books of this ticket, or NULL if they were emptied since its dispatch. */
static struct ledger_engine *live_books(struct ledger *ledger, const struct ledger_ticket *ticket)
{
	struct ledger_engine *books = books_of(ledger, ticket->engine);

	return ticket->epoch == books->epoch ? books : NULL;
}

static void subtract(uint64_t *sum, uint64_t amount)
{
	assert(*sum >= amount); /* what leaves the books was in them */
	*sum -= amount;
}

static uint64_t context_of(const struct ledger_ticket *ticket)
{
	return (uint64_t)ticket->prompt_tokens * ticket->sequences;
}

static void join_waiting(struct ledger_engine *books, struct ledger_ticket *ticket, uint64_t now_ns)
{
	ticket->older = books->newest;
	ticket->newer = NULL;
	if (books->newest != NULL) {
		books->newest->newer = ticket;
	} else {
		books->oldest = ticket;
		books->head_ns = now_ns;
	}
	books->newest = ticket;
	books->sent++;
	books->sent_prompt_tokens += context_of(ticket);
	books->uncached_tokens += ticket->uncached_tokens;
	books->prefill_s += ticket->prefill_s;
	if (ticket->flags & LEDGER_REQUEUEABLE)
		books->requeueable_tokens += ticket->uncached_tokens;
}

/*
 * Takes a ticket from those without a first token. The next head begins when its predecessor
 * leaves; one that was computed out of turn took its time from the head's.
 */
static void leave_waiting(struct ledger_engine *books, struct ledger_ticket *ticket, int computed,
			  uint64_t now_ns)
{
	if (books->oldest == ticket) {
		books->head_ns = now_ns;
	} else if (computed) {
		books->head_ns += (uint64_t)(ticket->prefill_s * 1e9);
		if (books->head_ns > now_ns)
			books->head_ns = now_ns;
	}
	if (ticket->older != NULL)
		ticket->older->newer = ticket->newer;
	else
		books->oldest = ticket->newer;
	if (ticket->newer != NULL)
		ticket->newer->older = ticket->older;
	else
		books->newest = ticket->older;
	ticket->older = ticket->newer = NULL;
	subtract(&books->sent, 1);
	subtract(&books->sent_prompt_tokens, context_of(ticket));
	subtract(&books->uncached_tokens, ticket->uncached_tokens);
	if (ticket->flags & LEDGER_REQUEUEABLE)
		subtract(&books->requeueable_tokens, ticket->uncached_tokens);
	books->prefill_s -= ticket->prefill_s;
	if (books->sent == 0 || books->prefill_s < 0)
		books->prefill_s = 0; /* rounding must not pile up */
	books->totals.uncached_out += ticket->uncached_tokens;
}

void ledger_dispatch(struct ledger *ledger, struct ledger_ticket *ticket, uint64_t now_ns)
{
	struct ledger_engine *books = books_of(ledger, ticket->engine);

	assert(ticket->phase == LEDGER_FREE);
	if (ticket->sequences == 0)
		ticket->sequences = 1;
	if (!(ticket->prefill_s >= 0 && ticket->prefill_s < 1e6))
		ticket->prefill_s = 0;
	ticket->phase = LEDGER_SENT;
	ticket->dispatch_ns = now_ns;
	ticket->epoch = books->epoch;
	ledger_mark(books, now_ns);
	join_waiting(books, ticket, now_ns);
	books->totals.dispatched++;
	books->totals.uncached_in += ticket->uncached_tokens;
	books->last_dispatch_ns = now_ns;
	if (ticket->flags & LEDGER_PIECE) {
		books->pieces++;
		books->pieces_sent++;
		return;
	}
	double mean = books->mean_uncached_tokens, own = ticket->uncached_tokens;

	books->mean_uncached_tokens = mean == 0 ? own : mean + MEAN_GAIN * (own - mean);
}

void ledger_first_token(struct ledger *ledger, struct ledger_ticket *ticket, uint64_t now_ns)
{
	if (ticket->phase != LEDGER_SENT)
		return;
	ticket->phase = LEDGER_DECODING;
	struct ledger_engine *books = live_books(ledger, ticket);

	if (books == NULL)
		return;
	ledger_mark(books, now_ns);
	if (ticket->flags & LEDGER_PIECE)
		subtract(&books->pieces_sent, 1);
	leave_waiting(books, ticket, 1, now_ns);
	books->decoding += ticket->sequences;
	books->decode_context_tokens += context_of(ticket);
	books->totals.context_in += context_of(ticket);
}

static void correct_waiting(struct ledger_engine *books, struct ledger_ticket *ticket,
			    uint32_t prompt_tokens, uint32_t uncached_tokens)
{
	double scale =
		ticket->uncached_tokens ? (double)uncached_tokens / ticket->uncached_tokens : 1;
	double prefill_s = ticket->prefill_s * scale;

	if (uncached_tokens > ticket->uncached_tokens)
		books->totals.uncached_in += uncached_tokens - ticket->uncached_tokens;
	else
		books->totals.uncached_out += ticket->uncached_tokens - uncached_tokens;
	books->sent_prompt_tokens += (uint64_t)prompt_tokens * ticket->sequences;
	subtract(&books->sent_prompt_tokens, context_of(ticket));
	books->uncached_tokens += uncached_tokens;
	subtract(&books->uncached_tokens, ticket->uncached_tokens);
	if (ticket->flags & LEDGER_REQUEUEABLE) {
		books->requeueable_tokens += uncached_tokens;
		subtract(&books->requeueable_tokens, ticket->uncached_tokens);
	}
	books->prefill_s += prefill_s - ticket->prefill_s;
	if (books->prefill_s < 0)
		books->prefill_s = 0;
	ticket->prefill_s = prefill_s;
}

static void correct_decoding(struct ledger_engine *books, const struct ledger_ticket *ticket,
			     uint32_t prompt_tokens)
{
	uint64_t context = (uint64_t)prompt_tokens * ticket->sequences;

	if (context > context_of(ticket))
		books->totals.context_in += context - context_of(ticket);
	else
		books->totals.context_out += context_of(ticket) - context;
	books->decode_context_tokens += context;
	subtract(&books->decode_context_tokens, context_of(ticket));
}

void ledger_correct(struct ledger *ledger, struct ledger_ticket *ticket, uint32_t prompt_tokens,
		    uint32_t uncached_tokens, uint64_t now_ns)
{
	if (ticket->phase == LEDGER_FREE)
		return;
	struct ledger_engine *books = live_books(ledger, ticket);

	if (books != NULL) {
		ledger_mark(books, now_ns);
		if (ticket->phase == LEDGER_SENT)
			correct_waiting(books, ticket, prompt_tokens, uncached_tokens);
		else
			correct_decoding(books, ticket, prompt_tokens);
	}
	ticket->prompt_tokens = prompt_tokens;
	ticket->uncached_tokens = uncached_tokens;
}

void ledger_end(struct ledger *ledger, struct ledger_ticket *ticket, enum ledger_end how,
		uint64_t now_ns)
{
	if (ticket->phase == LEDGER_FREE)
		return;
	struct ledger_engine *books = live_books(ledger, ticket);

	assert(how < LEDGER_ENDS_NR);
	if (ticket->flags & LEDGER_PIECE)
		books_of(ledger, ticket->engine)->pieces_ended++;
	else
		books_of(ledger, ticket->engine)->by_end[how]++;
	if (books != NULL) {
		ledger_mark(books, now_ns);
		if (ticket->phase == LEDGER_SENT) {
			if (ticket->flags & LEDGER_PIECE)
				subtract(&books->pieces_sent, 1);
			leave_waiting(books, ticket, how == LEDGER_COMPLETED, now_ns);
		} else {
			subtract(&books->decoding, ticket->sequences);
			subtract(&books->decode_context_tokens, context_of(ticket));
			books->totals.context_out += context_of(ticket);
		}
		if (ticket->flags & LEDGER_PIECE)
			subtract(&books->pieces, 1);
		books->totals.ended++;
	}
	ticket->phase = LEDGER_FREE;
	ticket->older = ticket->newer = NULL;
}

void ledger_leave(struct ledger *ledger, struct ledger_ticket *ticket, struct ledger_ticket *left)
{
	struct ledger_engine *books = live_books(ledger, ticket);

	assert(left->phase == LEDGER_FREE);
	if (ticket->phase == LEDGER_FREE)
		return;
	*left = *ticket;
	ticket->phase = LEDGER_FREE;
	ticket->older = ticket->newer = NULL;
	if (books == NULL) { /* it went with the engine */
		left->phase = LEDGER_FREE;
		return;
	}
	if (left->phase == LEDGER_SENT) {
		if (left->older != NULL)
			left->older->newer = left;
		else
			books->oldest = left;
		if (left->newer != NULL)
			left->newer->older = left;
		else
			books->newest = left;
		if (left->flags & LEDGER_REQUEUEABLE)
			subtract(&books->requeueable_tokens, left->uncached_tokens);
		books->pieces_sent += !(left->flags & LEDGER_PIECE);
	}
	books->pieces += !(left->flags & LEDGER_PIECE);
	left->flags = LEDGER_PIECE;
}

static void change(uint64_t *sum, int64_t by)
{
	if (by < 0 && *sum < (uint64_t)-by)
		*sum = 0;
	else
		*sum += (uint64_t)by;
}

void ledger_staged(struct ledger *ledger, unsigned engine, int64_t tokens)
{
	change(&books_of(ledger, engine)->staged_rest_tokens, tokens);
}

void ledger_cold(struct ledger *ledger, unsigned engine, int prompts)
{
	change(&books_of(ledger, engine)->cold, prompts);
}

void ledger_held(struct ledger *ledger, unsigned engine, int requests, int64_t tokens)
{
	change(&books_of(ledger, engine)->held, requests);
	change(&books_of(ledger, engine)->held_tokens, tokens);
}

void ledger_engine_restarted(struct ledger *ledger, unsigned engine, uint64_t now_ns)
{
	struct ledger_engine *books = books_of(ledger, engine);

	books->epoch++;
	books->oldest = books->newest = NULL;
	books->head_ns = now_ns;
	books->sent = books->decoding = books->decode_context_tokens = books->uncached_tokens = 0;
	books->pieces = books->pieces_sent = books->requeueable_tokens = 0;
	books->sent_prompt_tokens = 0;
	books->prefill_s = 0;
	books->totals.ended = books->totals.dispatched;
	books->totals.uncached_out = books->totals.uncached_in;
	books->totals.context_out = books->totals.context_in;
	books->marks = 0; /* nothing of before can be in a record of after */
	books->admitted_known = 0;
	books->drift_ns = 0;
	books->foreign_since_ns = 0;
	books->progress_ns = now_ns;
}

void ledger_books_get(const struct ledger *ledger, unsigned engine, struct ledger_sums *ret_sums)
{
	assert(engine < STATE_ENGINES_MAX);
	const struct ledger_engine *books = &ledger->engine[engine];

	*ret_sums = (struct ledger_sums){
		.requests = ledger_in_engine(books),
		.waiting_requests = books->sent,
		.user_requests = ledger_in_engine(books) - books->pieces,
		.user_waiting_requests = books->sent - books->pieces_sent,
		.waiting_tokens = books->uncached_tokens,
		.waiting_prefill_s = books->prefill_s,
		.decoding = books->decoding,
		.decode_context_tokens = books->decode_context_tokens,
		.staged_rest_tokens = books->staged_rest_tokens,
		.pieces = books->pieces,
		.cold_prompts = books->cold,
		.held = books->held,
		.held_tokens = books->held_tokens,
		.dispatched_total = books->totals.dispatched,
		.finished_total = books->totals.ended,
		.pieces_ended_total = books->pieces_ended,
		.progress_ns = books->progress_ns,
		.oldest_ns = books->oldest != NULL ? books->oldest->dispatch_ns : 0,
	};
	for (int how = 0; how < LEDGER_ENDS_NR; how++)
		ret_sums->ends_total[how] = books->by_end[how];
}
