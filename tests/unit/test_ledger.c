/* The books: what is sent is counted until it ends, whatever the record says and whenever it comes.
 */
#include "router/ledger/ledger.h"
#include "tests/lib/unit.h"

#include <string.h>

enum { TICKETS = 4000 };

static const uint64_t MS = 1000000, S = 1000000000;
static const double RATE = 5000; /* tokens/s */

static struct ledger ledger; /* 1 MB */
static struct ledger_params params;
static struct ledger_ticket tickets[TICKETS];
static struct ledger_view view;
static struct ledger_sums sums;
static struct engine_state agent;

static int fresh_books(void **state)
{
	ledger_init(&ledger);
	ledger_params_init(&params);
	memset(tickets, 0, sizeof(tickets));
	memset(&agent, 0, sizeof(agent));
	agent.period_ns = 100 * MS;
	agent.epoch = 1;
	return 0;
}

static struct ledger_ticket *send(unsigned number, unsigned engine, uint32_t uncached, uint64_t at)
{
	struct ledger_ticket *ticket = &tickets[number];

	ticket->engine = engine;
	ticket->sequences = 1;
	ticket->prompt_tokens = 40000;
	ticket->uncached_tokens = uncached;
	ticket->prefill_s = uncached / RATE;
	ticket->flags = number % 5 == 4 ? LEDGER_REQUEUEABLE : 0;
	ledger_dispatch(&ledger, ticket, at);
	return ticket;
}

/* The record: read at that time, so many running and waiting. */
static void sample(uint64_t read_ns, uint64_t running, uint64_t waiting)
{
	agent.read_ns = read_ns;
	ENGINE_SET(&agent, running, running);
	ENGINE_SET(&agent, waiting, waiting);
	ledger_observe(&ledger, &params, 0, &agent, read_ns + MS);
}

static double requests_at(uint64_t now)
{
	ledger_effective(&ledger, &params, 0, &agent, NULL, RATE, now, &view);
	return view.num_requests;
}

static double pending_at(uint64_t now)
{
	ledger_effective(&ledger, &params, 0, &agent, NULL, RATE, now, &view);
	return view.pending_prefill_tokens;
}

static void assert_near(double value, double expected, double within)
{
	if (!(value >= expected - within && value <= expected + within))
		fail_msg("%.9g is not %.9g", value, expected);
}

static void assert_idle(unsigned engine)
{
	ledger_books_get(&ledger, engine, &sums);
	assert_int_equal(sums.requests, 0);
	assert_int_equal(sums.waiting_requests, 0);
	assert_int_equal(sums.waiting_tokens, 0);
	assert_true(sums.waiting_prefill_s == 0);
	assert_int_equal(sums.decoding, 0);
	assert_int_equal(sums.decode_context_tokens, 0);
	assert_int_equal(sums.pieces, 0);
	assert_int_equal(sums.dispatched_total, sums.finished_total);
}

/* B08, B13: not when headers arrive, not at the next sample. */
static void a_dispatch_counts_at_once(void **state)
{
	sample(10 * S, 0, 0);
	for (unsigned n = 0; n < 64; n++)
		send(n, 0, 32000, 10 * S + 50 * MS);

	assert_true(requests_at(10 * S + 50 * MS) == 64);
	assert_true(view.pending_prefill_tokens == 64 * 32000.0);
	assert_near(view.pending_prefill_s, 64 * 6.4, 1e-6);
}

/* Of 40,000 tokens each, whatever part of them is cached. */
static void whole_prompts_and_contexts_book_memory(void **state)
{
	struct ledger_ticket *a = send(0, 0, 1000, S), *b = send(1, 0, 40000, S);

	pending_at(S);
	assert_near(view.booked_tokens, 80000, 1e-9);
	ledger_first_token(&ledger, a, 2 * S);
	pending_at(2 * S);
	assert_near(view.booked_tokens, 80000, 1e-9);
	ledger_correct(&ledger, b, 50000, 50000, 2 * S);
	ledger_end(&ledger, a, LEDGER_COMPLETED, 3 * S);
	pending_at(3 * S);
	assert_near(view.booked_tokens, 50000, 1e-9);
	ledger_end(&ledger, b, LEDGER_FAILED, 3 * S);
	pending_at(3 * S);
	assert_near(view.booked_tokens, 0, 1e-9);
	send(2, 0, 10, 4 * S);
	ledger_engine_restarted(&ledger, 0, 5 * S);
	pending_at(5 * S);
	assert_near(view.booked_tokens, 0, 1e-9);
}

static void without_an_agent_the_books_alone_answer(void **state)
{
	struct ledger_ticket *first = send(0, 0, 5000, 10 * S);

	send(1, 0, 10000, 10 * S);
	ledger_first_token(&ledger, first, 11 * S);
	ledger_effective(&ledger, &params, 0, NULL, NULL, RATE, 11 * S, &view);

	assert_int_equal(view.staleness, LEDGER_UNKNOWN);
	assert_true(view.num_requests == 2 && view.decoding == 1);
	assert_true(view.decode_context_tokens == 40000);
	assert_true(view.pending_prefill_tokens == 10000);
	assert_true(view.age_s == 0 && view.foreign_requests == 0);
	requests_at(11 * S); /* a record that was never published is none */
	assert_int_equal(view.staleness, LEDGER_UNKNOWN);
}

static void a_record_that_holds_the_dispatch_does_not_count_it_again(void **state)
{
	send(0, 0, 8000, 10 * S);
	sample(10 * S + 500 * MS, 1, 0);

	assert_true(requests_at(10 * S + 510 * MS) == 1);
	assert_true(view.foreign_requests == 0);
}

static void a_record_from_before_the_dispatch_does_not_hide_it(void **state)
{
	sample(10 * S, 3, 0); /* three foreign ones */
	send(0, 0, 8000, 10 * S + 20 * MS);

	assert_true(requests_at(10 * S + 30 * MS) == 4);
}

/* Sent 50 ms before the reading: in it or not, who knows. */
static void a_doubtful_dispatch_counts_twice_rather_than_not_at_all(void **state)
{
	send(0, 0, 8000, 10 * S);
	sample(10 * S + 50 * MS, 1, 0);
	assert_true(requests_at(10 * S + 60 * MS) == 2);

	sample(10 * S + 150 * MS, 1, 0); /* now it must be in */
	assert_true(requests_at(10 * S + 160 * MS) == 1);
}

/* B19: gauges of an engine in a long step lag by seconds. */
static void a_lagging_gauge_never_hides_what_we_sent(void **state)
{
	send(0, 0, 8000, 10 * S);
	send(1, 0, 8000, 10 * S);
	sample(13 * S, 0, 0);

	assert_true(requests_at(13 * S) == 2);
	assert_true(view.pending_prefill_tokens > 0);
}

/* A gauge of before the end still shows the request; the books know better. */
static void what_ended_after_the_reading_is_taken_out_of_it(void **state)
{
	struct ledger_ticket *ticket = send(0, 0, 8000, 10 * S);

	sample(11 * S, 1, 0);
	ledger_first_token(&ledger, ticket, 11 * S + 20 * MS);
	ledger_end(&ledger, ticket, LEDGER_COMPLETED, 11 * S + 50 * MS);

	assert_true(requests_at(11 * S + 60 * MS) == 0);
	assert_idle(0);
}

static void foreign_traffic_is_counted_beside_ours(void **state)
{
	struct ledger_ticket *ticket = send(0, 0, 6000, 10 * S);

	ledger_first_token(&ledger, ticket, 10 * S + 500 * MS);
	sample(12 * S, 3, 2); /* one of the running is ours */

	assert_true(requests_at(12 * S) == 5);
	assert_true(view.foreign_requests == 4);
	assert_near(view.decoding, 1 + 4 * 0.6, 1e-9);
	/* 4 x 0.4 of them wait and are taken for the mean of ours */
	assert_near(view.pending_prefill_tokens, 1.6 * 6000, 1e-6);
}

static void the_context_that_others_decode_is_counted_too(void **state)
{
	struct ledger_ticket *ticket = send(0, 0, 800, 10 * S);

	ledger_first_token(&ledger, ticket, 10 * S + 200 * MS);
	ENGINE_SET(&agent, decode_context_tokens, 100000);
	sample(12 * S, 2, 0);
	requests_at(12 * S);

	assert_true(view.decode_context_tokens == 100000);
	ledger_end(&ledger, ticket, LEDGER_COMPLETED, 12 * S + 20 * MS);
	requests_at(12 * S + 30 * MS);
	assert_true(view.decode_context_tokens == 60000);
}

static void other_workers_requests_are_not_foreign(void **state)
{
	struct ledger_sums others = { .requests = 3,
				      .decoding = 2,
				      .waiting_requests = 1,
				      .waiting_tokens = 7000,
				      .decode_context_tokens = 900 };

	sample(12 * S, 3, 0);
	ledger_effective(&ledger, &params, 0, &agent, &others, RATE, 12 * S, &view);

	assert_true(view.num_requests == 3 && view.foreign_requests == 0);
	assert_true(view.decoding == 2 && view.pending_prefill_tokens == 7000);
	assert_true(view.pending_prefill_s < 0); /* their seconds are not in the region */
}

/* ---- pending prefill ---- */

static void a_running_prefill_counts_by_its_uncomputed_rest(void **state)
{
	struct ledger_ticket *first = send(0, 0, 10000, 10 * S); /* two seconds of work */

	send(1, 0, 5000, 10 * S + 500 * MS);
	sample(11 * S, 2, 0);
	assert_near(pending_at(11 * S), 5000 + 5000, 1);
	assert_near(view.pending_prefill_s, 2, 1e-6);
	assert_near(pending_at(11 * S + 500 * MS), 2500 + 5000, 1);
	assert_near(view.oldest_wait_s, 1.5, 1e-9);

	/* Late: its estimate is used up, the next one's is not touched. */
	assert_near(pending_at(15 * S), 5000, 1);
	ledger_first_token(&ledger, first, 15 * S);
	assert_near(pending_at(15 * S), 5000, 1);
	assert_near(pending_at(15 * S + 400 * MS), 3000, 1);
}

/* A short turn that passed the head took its time from it. */
static void work_done_out_of_turn_is_not_credited_to_the_oldest(void **state)
{
	struct ledger_ticket *turn;

	send(0, 0, 10000, 10 * S);
	turn = send(1, 0, 2500, 10 * S);
	assert_near(pending_at(11 * S), 12500 - 5000, 1);
	ledger_first_token(&ledger, turn, 11 * S); /* half a second of that one was this */

	assert_near(pending_at(11 * S), 10000 - 2500, 1);
}

static void an_aborted_head_lets_the_next_begin(void **state)
{
	struct ledger_ticket *head = send(0, 0, 50000, 10 * S);

	send(1, 0, 5000, 10 * S);
	ledger_end(&ledger, head, LEDGER_ABORTED, 13 * S);

	assert_near(pending_at(13 * S), 5000, 1);
	assert_near(pending_at(13 * S + 500 * MS), 2500, 1);
}

static void a_reported_backlog_is_aged_and_topped_up(void **state)
{
	ENGINE_SET(&agent, pending_prefill_tokens, 20000);
	sample(10 * S, 2, 2);
	send(0, 0, 3000, 10 * S + 50 * MS);

	assert_near(pending_at(10 * S + 100 * MS), 20000 + 3000 - 500, 1);
	assert_near(view.pending_prefill_s, 22500 / RATE, 1e-3); /* at our own books' pace */
	ledger_end(&ledger, &tickets[0], LEDGER_ABORTED, 10 * S + 100 * MS);
	pending_at(10 * S + 100 * MS);
	assert_true(view.pending_prefill_s < 0);
}

/* It cannot be less gone than what we saw leave. */
static void a_first_token_since_the_sample_takes_its_work_with_it(void **state)
{
	struct ledger_ticket *ticket = send(0, 0, 9000, 9 * S);

	ENGINE_SET(&agent, pending_prefill_tokens, 10000);
	sample(10 * S, 1, 1);
	ledger_first_token(&ledger, ticket, 10 * S + 20 * MS);

	assert_near(pending_at(10 * S + 30 * MS), 1000, 1);
	assert_near(pending_at(10 * S + 199 * MS), 1000, 1); /* 995 by rate */
	agent.pending_prefill_tokens = 400;
	assert_true(pending_at(10 * S + 30 * MS) == 0); /* never negative */
}

static void exact_counts_replace_estimates(void **state)
{
	struct ledger_ticket *ticket = send(0, 0, 8000, 10 * S);

	ledger_correct(&ledger, ticket, 41000, 2000, 10 * S);
	assert_near(pending_at(10 * S), 2000, 1e-6);
	assert_near(view.pending_prefill_s, 0.4, 1e-9);
	ledger_first_token(&ledger, ticket, 11 * S);
	ledger_correct(&ledger, ticket, 42000, 2000, 12 * S);
	requests_at(12 * S);
	assert_true(view.decode_context_tokens == 42000);
	ledger_end(&ledger, ticket, LEDGER_COMPLETED, 13 * S);
	assert_idle(0);
}

/* ---- age ---- */

static void age_is_judged_by_the_announced_period(void **state)
{
	static const struct {
		uint64_t period_ms, age_ms;
		uint32_t staleness;
	} cases[] = {
		{ 100, 200, LEDGER_FRESH },     { 100, 201, LEDGER_AGED },
		{ 100, 2000, LEDGER_AGED },     { 100, 2001, LEDGER_UNKNOWN },
		{ 500, 1000, LEDGER_FRESH },    { 500, 10000, LEDGER_AGED },
		{ 500, 10001, LEDGER_UNKNOWN }, { 20, 41, LEDGER_AGED },
		{ 20, 2000, LEDGER_AGED },      { 20, 2001, LEDGER_UNKNOWN },
	};

	for (unsigned k = 0; k < sizeof(cases) / sizeof(*cases); k++) {
		agent.period_ns = cases[k].period_ms * MS;
		agent.read_ns = 100 * S;
		requests_at(100 * S + cases[k].age_ms * MS);
		assert_int_equal(view.staleness, cases[k].staleness);
		assert_near(view.age_s, (double)cases[k].age_ms / 1000, 1e-9);
	}
	requests_at(99 * S); /* a clock read before the sample was: no age */
	assert_true(view.staleness == LEDGER_FRESH && view.age_s == 0);
}

/* S3: samples frozen at "busy" lose their hold, frozen at "idle" hide nothing of ours. */
static void a_silent_agent_fades_and_our_books_stay(void **state)
{
	sample(10 * S, 10, 0);
	send(0, 0, 8000, 10 * S);
	assert_true(requests_at(10 * S + 200 * MS) == 11);
	assert_near(requests_at(11 * S + 100 * MS), 1 + 5, 1e-6); /* half way from 0.2 to 2 s */
	assert_true(requests_at(12 * S + MS) == 1);
	assert_true(view.pending_prefill_tokens <= 8000);
}

static void a_late_sample_changes_nothing(void **state)
{
	sample(20 * S, 0, 0);
	agent.epoch = 1;
	agent.read_ns = 19 * S;
	agent.running = 77;

	assert_int_equal(ledger_observe(&ledger, &params, 0, &agent, 20 * S + MS), 0);
	assert_int_equal(ledger.engine[0].read_ns, 20 * S);
	assert_int_equal(ledger.engine[0].foreign_since_ns, 0);
}

/* ---- trusted counters ---- */

static void trust_admitted(uint64_t read_ns, uint64_t admitted, uint64_t running)
{
	ENGINE_SET(&agent, admitted_total, admitted);
	agent.trusted = 1ull << ENGINE_FIELD_admitted_total;
	sample(read_ns, running, 0);
}

/* Dispatched 50 ms before the reading, and the counter says whether it was taken. */
static void a_trusted_counter_settles_the_doubt(void **state)
{
	trust_admitted(100 * S, 500, 0);
	send(0, 0, 8000, 110 * S);
	trust_admitted(110 * S + 50 * MS, 501, 1);
	assert_true(requests_at(110 * S + 60 * MS) == 1);

	send(1, 0, 8000, 120 * S);
	trust_admitted(120 * S + 50 * MS, 501, 4); /* not yet: these are foreign */
	assert_true(requests_at(120 * S + 60 * MS) == 2 + 3);
}

/* The first sample finds one of ours under way: its counter cannot be tied to our books yet. */
static void a_counter_is_not_trusted_from_the_middle_of_things(void **state)
{
	send(0, 0, 8000, 110 * S);
	trust_admitted(110 * S + 50 * MS, 500, 3);

	assert_true(requests_at(110 * S + 60 * MS) == 4);
}

/* The engine sat in one long step: long past the lag, the counter has not moved. */
static void a_trusted_counter_sees_a_dispatch_that_was_not_taken_for_long(void **state)
{
	trust_admitted(100 * S, 500, 5);
	send(0, 0, 8000, 110 * S);
	trust_admitted(113 * S, 500, 5);

	assert_true(requests_at(113 * S) == 6);
}

static void a_lost_dispatch_and_foreign_admissions_heal(void **state)
{
	struct ledger_ticket *lost;

	trust_admitted(100 * S, 500, 0);
	lost = send(0, 0, 8000, 110 * S); /* aborted before the engine took it */
	ledger_end(&ledger, lost, LEDGER_ABORTED, 110 * S + 10 * MS);
	trust_admitted(120 * S, 500, 0);
	send(1, 0, 8000, 130 * S);
	trust_admitted(131 * S, 501, 1);
	assert_true(requests_at(131 * S) == 1);

	trust_admitted(140 * S, 521, 3); /* twenty that were never ours */
	assert_true(requests_at(140 * S) == 3);
	send(2, 0, 8000, 150 * S);
	trust_admitted(150 * S + 500 * MS, 522, 4);
	assert_true(requests_at(150 * S + 500 * MS) == 4);
}

/* Our totals are larger than a young engine's counter. */
static void a_restarted_counter_starts_below_our_totals(void **state)
{
	for (unsigned n = 0; n < 50; n++)
		ledger_end(&ledger, send(n, 0, 100, 50 * S), LEDGER_COMPLETED, 51 * S);
	trust_admitted(100 * S, 50, 0);
	agent.epoch = 2;
	trust_admitted(101 * S, 0, 0);
	send(0, 0, 100, 110 * S);
	trust_admitted(110 * S + 50 * MS, 1, 1);

	assert_true(requests_at(110 * S + 60 * MS) == 1);
}

/* ---- restarts ---- */

static void a_restart_empties_the_books_and_old_tickets_do_no_harm(void **state)
{
	struct ledger_ticket *sent = send(0, 0, 8000, 10 * S);
	struct ledger_ticket *decoding = send(1, 0, 8000, 10 * S);

	ledger_first_token(&ledger, decoding, 11 * S);
	sample(11 * S, 2, 0);
	agent.epoch = 2;
	agent.read_ns = 20 * S;
	agent.running = agent.waiting = 0;
	assert_int_equal(ledger_observe(&ledger, &params, 0, &agent, 20 * S), 1);
	assert_true(requests_at(20 * S) == 0);
	assert_idle(0);

	send(2, 0, 5000, 21 * S);
	ledger_first_token(&ledger, sent, 21 * S);
	ledger_end(&ledger, sent, LEDGER_FAILED, 21 * S);
	ledger_end(&ledger, decoding, LEDGER_FAILED, 21 * S);
	assert_true(requests_at(21 * S) == 1);
	ledger_end(&ledger, &tickets[2], LEDGER_COMPLETED, 22 * S);
	assert_idle(0);
	assert_int_equal(sums.ends_total[LEDGER_FAILED], 2);
	assert_int_equal(ledger_observe(&ledger, &params, 0, &agent, 22 * S), 0);
}

static void the_first_epoch_seen_is_no_restart(void **state)
{
	send(0, 0, 8000, 10 * S);
	agent.read_ns = 11 * S;

	assert_int_equal(ledger_observe(&ledger, &params, 0, &agent, 11 * S), 0);
	assert_true(requests_at(11 * S) == 1);
}

/* ---- never starved ---- */

static void an_engine_claiming_unseen_work_is_probed_and_not_starved(void **state)
{
	uint64_t now;

	for (now = 10 * S; now < 19 * S; now += 100 * MS) {
		sample(now, 500, 0);
		assert_true(requests_at(now) == 500);
		assert_false(view.probe);
	}
	for (; now < 21 * S; now += 100 * MS)
		sample(now, 500, 0);
	requests_at(now);
	assert_true(view.probe);

	struct ledger_ticket *ticket = send(0, 0, 500, now);

	requests_at(now);
	assert_false(view.probe);
	ledger_end(&ledger, ticket, LEDGER_COMPLETED, now + 100 * MS);
	sample(now + S, 500, 0);
	requests_at(now + S);
	assert_false(view.probe); /* not again so soon */
	sample(now + 6 * S, 500, 0);
	requests_at(now + 6 * S);
	assert_true(view.probe);
}

/* Our own stream there will tell. */
static void an_engine_with_a_stream_of_ours_needs_no_probe(void **state)
{
	struct ledger_ticket *stream = send(0, 0, 500, 5 * S);

	ledger_first_token(&ledger, stream, 6 * S);
	for (uint64_t now = 10 * S; now < 30 * S; now += 100 * MS) {
		sample(now, 500, 0);
		requests_at(now);
		assert_false(view.probe);
	}
}

static void foreign_work_that_moves_is_believed(void **state)
{
	for (uint64_t now = 10 * S; now < 40 * S; now += 100 * MS) {
		ENGINE_SET(&agent, generation_tokens_total, now / MS);
		sample(now, 50, 0);
		requests_at(now);
		assert_false(view.probe);
	}
}

/* ---- ends, twice and never ---- */

/* B05: every way out of every phase, each tried twice. */
static void every_end_of_every_phase_empties_the_books_once(void **state)
{
	for (int how = 0; how < LEDGER_ENDS_NR; how++)
		for (int decoding = 0; decoding < 2; decoding++) {
			struct ledger_ticket *ticket = send(0, 0, 8000, 10 * S);

			if (decoding) {
				ledger_first_token(&ledger, ticket, 11 * S);
				ledger_first_token(&ledger, ticket, 11 * S);
			}
			ledger_end(&ledger, ticket, (enum ledger_end)how, 12 * S);
			ledger_end(&ledger, ticket, (enum ledger_end)how, 12 * S);
			ledger_first_token(&ledger, ticket, 12 * S);
			assert_idle(0);
		}
	assert_int_equal(sums.dispatched_total, 6);
	for (int how = 0; how < LEDGER_ENDS_NR; how++)
		assert_int_equal(sums.ends_total[how], 2);
}

/* B22: one stream of twenty minutes; B06: two hundred samples of an engine that says nothing. */
static void a_long_stream_counts_until_it_ends(void **state)
{
	struct ledger_ticket *ticket = send(0, 0, 8000, 10 * S);

	ledger_first_token(&ledger, ticket, 12 * S);
	for (unsigned n = 1; n <= 200; n++)
		sample(12 * S + n * 6 * S, 0, 0);
	assert_true(requests_at(1212 * S) == 1);
	assert_true(view.decoding == 1);
	ledger_end(&ledger, ticket, LEDGER_ABORTED, 1213 * S);
	assert_true(requests_at(1213 * S) == 0);
}

static void pieces_and_what_waits_in_the_router_have_their_sums(void **state)
{
	struct ledger_ticket *piece = &tickets[0];

	*piece = (struct ledger_ticket){
		.engine = 0, .flags = LEDGER_PIECE, .uncached_tokens = 7680, .prefill_s = 1.5
	};
	ledger_dispatch(&ledger, piece, 10 * S);
	ledger_staged(&ledger, 0, 30000);
	ledger_cold(&ledger, 0, 1);
	ledger_held(&ledger, 0, 2, 50000);
	ledger_books_get(&ledger, 0, &sums);
	assert_int_equal(sums.pieces, 1);
	assert_int_equal(sums.cold_prompts, 1);
	assert_int_equal(sums.held, 2);
	requests_at(10 * S);
	assert_true(view.staged_rest_tokens == 80000);
	assert_true(ledger.engine[0].mean_uncached_tokens == 0); /* no user's request */

	ledger_end(&ledger, piece, LEDGER_COMPLETED, 12 * S);
	ledger_staged(&ledger, 0, -40000);
	ledger_cold(&ledger, 0, -2);
	ledger_held(&ledger, 0, -2, -50000);
	assert_idle(0);
	assert_int_equal(sums.staged_rest_tokens + sums.cold_prompts + sums.held, 0);
	assert_int_equal(sums.held_tokens, 0);
}

static void a_piece_is_load_and_no_users_request(void **state)
{
	struct ledger_ticket *piece = &tickets[0];

	*piece = (struct ledger_ticket){
		.engine = 0, .flags = LEDGER_PIECE, .uncached_tokens = 7680, .prefill_s = 1.5
	};
	ledger_dispatch(&ledger, piece, 10 * S);
	send(1, 0, 500, 12 * S);

	assert_near(requests_at(13 * S), 2, 0);
	assert_near(view.oldest_wait_s, 1, 1e-9); /* nobody waits for the piece itself */
	ledger_books_get(&ledger, 0, &sums);
	assert_int_equal(sums.requests, 2);
	assert_int_equal(sums.user_requests, 1);
	assert_int_equal(sums.user_waiting_requests, 1);
	assert_int_equal(sums.waiting_requests, 2);

	ledger_first_token(&ledger, piece, 14 * S);
	ledger_end(&ledger, piece, LEDGER_COMPLETED, 14 * S);
	ledger_end(&ledger, &tickets[1], LEDGER_COMPLETED, 14 * S);
	assert_idle(0);
	assert_int_equal(sums.user_requests + sums.user_waiting_requests, 0);
	assert_int_equal(sums.pieces_ended_total, 1);
	assert_int_equal(sums.ends_total[LEDGER_COMPLETED], 1);
	assert_int_equal(sums.finished_total, 2); /* load: what the engine counts, too */
}

/* What was taken back is sent again while the engine may still hold it; neither is a user's end. */
static void what_was_taken_back_is_load_until_it_is_gone(void **state)
{
	struct ledger_ticket *cold = send(4, 0, 20000, 10 * S), left = { 0 };

	send(0, 0, 500, 10 * S);
	ledger_leave(&ledger, cold, &left);
	assert_int_equal(cold->phase, LEDGER_FREE);
	ledger_books_get(&ledger, 0, &sums);
	assert_int_equal(sums.requests, 2);
	assert_int_equal(sums.user_requests, 1);
	assert_int_equal(sums.user_waiting_requests, 1);
	assert_int_equal(sums.waiting_tokens, 20500);
	assert_int_equal(sums.oldest_ns, 10 * S);
	assert_true(pending_at(10 * S) == 20500);
	assert_true(view.requeueable_tokens == 0);
	assert_near(view.oldest_wait_s, 0, 0);

	ledger_correct(&ledger, &left, left.prompt_tokens, 8192, 10 * S);
	send(4, 0, 12000, 11 * S);
	ledger_end(&ledger, &left, LEDGER_ABORTED, 11 * S);
	ledger_books_get(&ledger, 0, &sums);
	assert_int_equal(sums.waiting_tokens, 12500);
	for (unsigned how = 0; how < LEDGER_ENDS_NR; how++)
		assert_int_equal(sums.ends_total[how], 0);
	ledger_end(&ledger, &tickets[0], LEDGER_COMPLETED, 12 * S);
	ledger_end(&ledger, cold, LEDGER_COMPLETED, 12 * S);
	assert_idle(0);
}

static void what_gives_way_is_known_and_shrinks_as_it_is_computed(void **state)
{
	struct ledger_ticket *cold = &tickets[0];

	*cold = (struct ledger_ticket){ .flags = LEDGER_REQUEUEABLE,
					.prompt_tokens = 20000,
					.uncached_tokens = 20000,
					.prefill_s = 4 };
	ledger_dispatch(&ledger, cold, 10 * S);
	send(1, 0, 500, 10 * S);
	pending_at(11 * S);
	assert_near(view.requeueable_tokens, 15000, 1);
	assert_near(view.pending_prefill_tokens, 15500, 1);
	ledger_correct(&ledger, cold, 20000, 10000, 11 * S);
	pending_at(10 * S);
	assert_near(view.requeueable_tokens, 10000, 1);
	ledger_first_token(&ledger, cold, 14 * S);
	pending_at(14 * S);
	assert_true(view.requeueable_tokens == 0);
}

static void parallel_answers_are_decoded_each(void **state)
{
	struct ledger_ticket *ticket = &tickets[0];

	*ticket = (struct ledger_ticket){ .sequences = 4, .prompt_tokens = 1000 };
	ledger_dispatch(&ledger, ticket, 10 * S);
	ledger_first_token(&ledger, ticket, 11 * S);
	ledger_books_get(&ledger, 0, &sums);

	assert_int_equal(sums.requests, 1);
	assert_int_equal(sums.decoding, 4);
	assert_int_equal(sums.decode_context_tokens, 4000);
}

/* ---- B14: waves against slow samples ---- */

static unsigned least_of(uint64_t now, const struct engine_state *agents)
{
	unsigned best = 0;
	double least = 1e9;

	for (unsigned i = 0; i < 8; i++) {
		ledger_effective(&ledger, &params, i, &agents[i], NULL, RATE, now, &view);
		if (view.num_requests < least) {
			least = view.num_requests;
			best = i;
		}
	}
	return best;
}

static void waves_against_500_ms_samples_spread_evenly(void **state)
{
	struct engine_state agents[8];
	unsigned sent[8] = { 0 }, number = 0;
	uint64_t now = 10 * S;

	for (unsigned wave = 0; wave < 10; wave++, now += 250 * MS) {
		for (unsigned i = 0; i < 8 && wave % 2 == 0; i++) {
			agents[i] = agent;
			agents[i].period_ns = 500 * MS;
			agents[i].read_ns = now;
			ENGINE_SET(&agents[i], running, sent[i]);
			ENGINE_SET(&agents[i], waiting, 0);
			ledger_observe(&ledger, &params, i, &agents[i], now);
		}
		for (unsigned n = 0; n < 100; n++, now += 20000) {
			unsigned i = least_of(now, agents);

			send(number++, i, 1000, now);
			sent[i]++;
		}
		for (unsigned i = 0; i < 8; i++) /* within one of the mean, not 15 % */
			assert_near(sent[i], 12.5 * (wave + 1), 1);
	}
}

/* ---- against a naive model ---- */

struct naive {
	unsigned sent, decoding;
	uint64_t uncached, context, yields, pieces;
};

static struct naive count(unsigned engine)
{
	struct naive sum = { 0 };

	for (unsigned n = 0; n < TICKETS; n++) {
		const struct ledger_ticket *t = &tickets[n];

		if (t->engine != engine || t->epoch != ledger.engine[engine].epoch)
			continue;
		sum.pieces += t->phase != LEDGER_FREE && t->flags & LEDGER_PIECE;
		if (t->phase == LEDGER_SENT) {
			sum.yields += t->flags & LEDGER_REQUEUEABLE ? t->uncached_tokens : 0;
			sum.sent++;
			sum.uncached += t->uncached_tokens;
		} else if (t->phase == LEDGER_DECODING) {
			sum.decoding += t->sequences;
			sum.context += (uint64_t)t->prompt_tokens * t->sequences;
		}
	}
	return sum;
}

static uint64_t next_random(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return *seed >> 33;
}

static void step(uint64_t *seed, uint64_t now)
{
	struct ledger_ticket *ticket = &tickets[next_random(seed) % TICKETS];
	unsigned engine = (unsigned)(next_random(seed) % 4);
	uint64_t what = next_random(seed) % 100;

	if (what < 70 && ticket->phase == LEDGER_FREE) {
		send((unsigned)(ticket - tickets), engine, (uint32_t)(next_random(seed) % 9000),
		     now);
	} else if (what < 4 && tickets[what].phase == LEDGER_FREE) {
		ledger_leave(&ledger, ticket, &tickets[what]);
	} else if (what < 30) {
		ledger_first_token(&ledger, ticket, now);
	} else if (what < 70) {
		ledger_end(&ledger, ticket, (enum ledger_end)(what % LEDGER_ENDS_NR), now);
	} else if (what < 80) {
		ledger_correct(&ledger, ticket, (uint32_t)(next_random(seed) % 90000),
			       (uint32_t)(next_random(seed) % 9000), now);
	} else if (what < 99) {
		agent.read_ns = now - next_random(seed) % (300 * MS);
		ENGINE_SET(&agent, running, next_random(seed) % 40);
		ENGINE_SET(&agent, pending_prefill_tokens, next_random(seed) % 40000);
		ENGINE_SET(&agent, admitted_total, next_random(seed) % 100000);
		agent.trusted = what % 2 ? 1ull << ENGINE_FIELD_admitted_total : 0;
		agent.present ^= (what % 3 == 0) << ENGINE_FIELD_pending_prefill_tokens;
		ledger_observe(&ledger, &params, engine, &agent, now);
	} else if (next_random(seed) % 40 == 0) {
		ledger_engine_restarted(&ledger, engine, now);
	}
}

static void check_engine(unsigned engine, uint64_t now)
{
	struct naive naive = count(engine);

	ledger_books_get(&ledger, engine, &sums);
	assert_int_equal(sums.waiting_requests, naive.sent);
	assert_int_equal(sums.waiting_tokens, naive.uncached);
	assert_int_equal(sums.decoding, naive.decoding);
	assert_int_equal(sums.decode_context_tokens, naive.context);
	assert_int_equal(ledger.engine[engine].requeueable_tokens, naive.yields);
	assert_int_equal(sums.pieces, naive.pieces);
	assert_int_equal(sums.dispatched_total, sums.finished_total + sums.requests);
	ledger_effective(&ledger, &params, engine, &agent, NULL, RATE, now, &view);
	assert_true(view.num_requests >= (double)sums.requests);
	assert_true(view.decoding >= (double)sums.decoding);
	assert_true(view.pending_prefill_tokens >= 0 && view.pending_prefill_tokens < 1e12);
	assert_true(view.foreign_requests >= 0 && view.decode_context_tokens >= 0);
	assert_true(view.pending_prefill_s >= -1 && view.pending_prefill_s < 1e12);
}

static void random_operations_agree_with_a_naive_model(void **state)
{
	uint64_t seed = 42, now = 100 * S;

	for (unsigned n = 0; n < 200000; n++) {
		step(&seed, now);
		now += next_random(&seed) % (2 * MS);
		if (n % 400 == 0)
			check_engine(n / 400 % 4, now);
	}
	for (unsigned n = 0; n < TICKETS; n++)
		ledger_end(&ledger, &tickets[n], LEDGER_ABORTED, now);
	for (unsigned engine = 0; engine < 4; engine++)
		assert_idle(engine);
}

/* The past is right at any moment of it, also after the ring of marks has gone round. */
static void the_past_is_right_within_its_grain(void **state)
{
	uint64_t now = 10 * S;

	for (unsigned n = 0; n < 450; n++, now += 10 * MS)
		send(n, 0, 0, now); /* a mark each */
	for (unsigned n = 450; n < 1450; n++, now += MS)
		send(n, 0, 0, now);
	agent.running = 9000;
	agent.present = 1ull << ENGINE_FIELD_running;
	agent.period_ns = S; /* fresh all the while */
	for (uint64_t back = 0; back < 800; back += 7) {
		agent.read_ns = now - back * MS + 100 * MS; /* the lag away */
		ledger_effective(&ledger, &params, 0, &agent, NULL, RATE, now + 100 * MS, &view);
		/* foreign = 9,000 - taken; one was sent each ms; at most 8 ms low */
		double taken = 9000 - view.foreign_requests, sent = 1450 - (double)back;

		assert_true(taken <= sent + 1 && taken >= sent - 8);
	}
}

static void a_faster_world_has_shorter_times_and_the_same_patience(void **state)
{
	struct ledger_params fast;

	(void)state;
	ledger_params_init(&fast);
	ledger_params_scale(&fast, 10);
	assert_true(fast.admission_lag_s == params.admission_lag_s / 10);
	assert_true(fast.settle_s == params.settle_s / 10);
	assert_true(fast.probe_after_s == params.probe_after_s / 10);
	assert_true(fast.probe_every_s == params.probe_every_s / 10);
	assert_true(fast.unknown_s == params.unknown_s);
	assert_true(fast.unknown_periods == params.unknown_periods);
}

int main(void)
{
#define BOOKS(claim) cmocka_unit_test_setup(claim, fresh_books)
	const struct CMUnitTest tests[] = {
		BOOKS(a_dispatch_counts_at_once),
		BOOKS(a_faster_world_has_shorter_times_and_the_same_patience),
		BOOKS(whole_prompts_and_contexts_book_memory),
		BOOKS(without_an_agent_the_books_alone_answer),
		BOOKS(a_record_that_holds_the_dispatch_does_not_count_it_again),
		BOOKS(a_record_from_before_the_dispatch_does_not_hide_it),
		BOOKS(a_doubtful_dispatch_counts_twice_rather_than_not_at_all),
		BOOKS(a_lagging_gauge_never_hides_what_we_sent),
		BOOKS(what_ended_after_the_reading_is_taken_out_of_it),
		BOOKS(foreign_traffic_is_counted_beside_ours),
		BOOKS(the_context_that_others_decode_is_counted_too),
		BOOKS(other_workers_requests_are_not_foreign),
		BOOKS(a_running_prefill_counts_by_its_uncomputed_rest),
		BOOKS(work_done_out_of_turn_is_not_credited_to_the_oldest),
		BOOKS(an_aborted_head_lets_the_next_begin),
		BOOKS(a_reported_backlog_is_aged_and_topped_up),
		BOOKS(a_first_token_since_the_sample_takes_its_work_with_it),
		BOOKS(exact_counts_replace_estimates),
		BOOKS(age_is_judged_by_the_announced_period),
		BOOKS(a_silent_agent_fades_and_our_books_stay),
		BOOKS(a_late_sample_changes_nothing),
		BOOKS(a_trusted_counter_settles_the_doubt),
		BOOKS(a_counter_is_not_trusted_from_the_middle_of_things),
		BOOKS(a_trusted_counter_sees_a_dispatch_that_was_not_taken_for_long),
		BOOKS(a_lost_dispatch_and_foreign_admissions_heal),
		BOOKS(a_restarted_counter_starts_below_our_totals),
		BOOKS(a_restart_empties_the_books_and_old_tickets_do_no_harm),
		BOOKS(the_first_epoch_seen_is_no_restart),
		BOOKS(an_engine_claiming_unseen_work_is_probed_and_not_starved),
		BOOKS(an_engine_with_a_stream_of_ours_needs_no_probe),
		BOOKS(foreign_work_that_moves_is_believed),
		BOOKS(every_end_of_every_phase_empties_the_books_once),
		BOOKS(a_long_stream_counts_until_it_ends),
		BOOKS(pieces_and_what_waits_in_the_router_have_their_sums),
		BOOKS(a_piece_is_load_and_no_users_request),
		BOOKS(what_gives_way_is_known_and_shrinks_as_it_is_computed),
		BOOKS(what_was_taken_back_is_load_until_it_is_gone),
		BOOKS(parallel_answers_are_decoded_each),
		BOOKS(waves_against_500_ms_samples_spread_evenly),
		BOOKS(random_operations_agree_with_a_naive_model),
		BOOKS(the_past_is_right_within_its_grain),
	};

	return cmocka_run_group_tests_name("ledger", tests, NULL, NULL);
}
