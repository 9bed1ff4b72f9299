/* Evaluates the shadow policy on what the journal holds, in the time that the loop has left. */
#include "router/shadow.h"

#include "router/worker.h"
#include "shm/base/clock.h"

#include <string.h>

void shadow_init(struct worker *w)
{
	w->shadow.on = w->set->shadow_on;
	w->shadow.params = w->set->shadow;
}

uint64_t shadow_word(const struct worker *w)
{
	return w->shadow.on ? 1 + w->shadow.params.policy : 0;
}

static uint64_t take(struct shadow *s)
{
	uint64_t number = s->queue[s->first];

	s->first = (s->first + 1) % SHADOW_QUEUE;
	s->nr--;
	s->due -= s->due > 0;
	return number;
}

void shadow_note(struct worker *w, uint64_t number)
{
	struct shadow *s = &w->shadow;

	if (!s->on || number == 0)
		return;
	if (s->nr == SHADOW_QUEUE) {
		take(s);
		count(&w->counters, COUNTER_shadow_skipped, 1);
	}
	s->queue[(s->first + s->nr++) % SHADOW_QUEUE] = number;
}

int shadow_due(struct worker *w)
{
	w->shadow.due = w->shadow.nr;
	return w->shadow.due > 0;
}

/* What is lost is a sum that only grows; a regret below 0 says that the other would have lost. */
static uint64_t microseconds(double s)
{
	return s > 0 && s < 1e9 ? (uint64_t)(s * 1e6 + 0.5) : 0;
}

static void disagree(struct worker *w, uint64_t number, const struct journal_view *view,
		     uint64_t took_ns)
{
	const struct journal_comparison *c = &w->shadow.comparison;
	struct journal_shadow record;

	memset(&record, 0, sizeof(record));
	record.head = view->decision->head;
	journal_head_init(&record.head, JOURNAL_SHADOW);
	record.decision = number;
	record.took_ns = took_ns;
	record.comparable = (uint64_t)c->comparable;
	record.regret = c->regret;
	record.params = w->shadow.params;
	memcpy(record.choice, &c->other, sizeof(record.choice));
	if (sizeof(record) <= w->file.journal.record_size)
		ring_append(&w->file.journal, &record, sizeof(record));
	count(&w->counters, COUNTER_shadow_disagreements, 1);
	count(&w->counters, COUNTER_shadow_regret_us, microseconds(c->regret.other_s));
	count(&w->counters, COUNTER_shadow_excess_us, microseconds(c->regret.own_s));
}

static void evaluate(struct worker *w, uint64_t number)
{
	struct shadow *s = &w->shadow;
	uint64_t before = clock_ns(), took_ns;
	struct journal_view view;
	size_t size;

	/* Its own memory, and no other writer: only many records since can have taken its place. */
	if (ring_read(&w->file.journal, number, w->record, sizeof(w->record), &size) < 0 ||
	    journal_decision_read(w->record, size, &view) < 0) {
		count(&w->counters, COUNTER_shadow_skipped, 1);
		return;
	}
	journal_compare(&view, &s->params, &s->comparison);
	took_ns = clock_ns() - before;
	hist_add(&s->took, (double)took_ns * 1e-9);
	count(&w->counters, COUNTER_shadow_decisions, 1);
	if (s->comparison.differs)
		disagree(w, number, &view, took_ns);
}

void shadow_turn(struct worker *w, int delivered)
{
	struct shadow *s = &w->shadow;
	unsigned n = s->due < SHADOW_AT_ONCE ? s->due : SHADOW_AT_ONCE;

	if (delivered > 0 && s->nr < SHADOW_QUEUE / 2)
		return; /* what the events asked for goes out first */
	for (; n > 0; n--)
		evaluate(w, take(s));
}
