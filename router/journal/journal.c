/* Writes and reads journal records; every length is checked against the record's own size. */
#include "router/journal/journal.h"

#include <errno.h>
#include <string.h>

void journal_head_init(struct journal_head *head, enum journal_kind kind)
{
	head->kind = kind;
	head->version = JOURNAL_VERSION;
	head->layout = journal_layout();
}

size_t journal_decision_size(unsigned engines_nr)
{
	return sizeof(struct journal_decision) +
	       engines_nr * (sizeof(struct journal_engine) + sizeof(struct policy_engine) +
			     sizeof(struct policy_cost));
}

size_t journal_decision_write(struct journal_decision *into, size_t room,
			      const struct journal_engine *names,
			      const struct policy_engine *engines, unsigned engines_nr,
			      const struct policy_choice *choice)
{
	size_t size = journal_decision_size(engines_nr);
	uint8_t *at = (uint8_t *)(into + 1);

	if (size > room)
		return 0;
	journal_head_init(&into->head, JOURNAL_DECISION);
	into->engines_nr = engines_nr;
	memcpy(into->choice, choice, sizeof(into->choice));
	memcpy(at, names, engines_nr * sizeof(*names));
	at += engines_nr * sizeof(*names);
	memcpy(at, engines, engines_nr * sizeof(*engines));
	at += engines_nr * sizeof(*engines);
	memcpy(at, choice->cost, engines_nr * sizeof(choice->cost[0]));
	return size;
}

int journal_is(const void *record, size_t size, enum journal_kind kind, const char *id)
{
	const struct journal_head *head = record;

	if (size < sizeof(*head) || head->version != JOURNAL_VERSION ||
	    head->layout != journal_layout() || head->kind != kind)
		return 0;
	if (!memchr(head->id, 0, sizeof(head->id)))
		return 0;
	return !id || strcmp(head->id, id) == 0;
}

static int ends(const char *text, size_t size)
{
	return memchr(text, 0, size) != NULL;
}

static int counts(const char *const *names, uint64_t value)
{
	for (uint64_t i = 0; names[i]; i++)
		if (i == value)
			return 1;
	return 0;
}

/* Within its bounds; times and rates also as a world up to a thousand times faster or slower has
 * them. */
static int real_sound(double value, double min, double max, enum policy_unit unit)
{
	double scale = unit == POLICY_PLAIN ? 1 : 1001;

	return value >= min / scale && value <= max * scale;
}

/* What the policy takes for granted. */
static int params_sound(const struct policy_params *params)
{
#define COUNTS(name, names, standard, meaning) \
	if (!counts(names, params->name))      \
		return 0;
	POLICY_CHOICE_PARAMS(COUNTS)
#undef COUNTS
#define REAL(name, standard, min, max, unit_kind, unit, meaning) \
	if (!real_sound(params->name, min, max, unit_kind))      \
		return 0;
	POLICY_REAL_PARAMS(REAL)
#undef REAL
	return 1;
}

static int ids_differ(const struct journal_view *view)
{
	int64_t nr = (int64_t)view->decision->engines_nr;

	for (int64_t i = 0; i < nr; i++)
		for (int64_t k = 0; k < i; k++)
			if (view->engines[i].id == view->engines[k].id)
				return 0;
	return 1;
}

/* What readers take for strings are some, what they take for indices lead somewhere. */
static int sound(const struct journal_view *view)
{
	const struct policy_choice *choice = &view->choice;
	int64_t nr = (int64_t)view->decision->engines_nr;

	for (int64_t i = 0; i < nr; i++)
		if (!ends(view->names[i].name, sizeof(view->names[i].name)) ||
		    choice->cost[i].left_out >= POLICY_LEFT_OUT_NR)
			return 0;
	return ends(view->decision->model, sizeof(view->decision->model)) && choice->engine < nr &&
	       choice->target < nr && choice->runner_up < nr &&
	       choice->reason < POLICY_REASONS_NR && choice->class < POLICY_CLASSES_NR &&
	       choice->move < POLICY_MOVES_NR && choice->trigger < MIGRATION_TRIGGERS_NR &&
	       params_sound(&view->decision->params) && ids_differ(view);
}

int journal_decision_read(const void *record, size_t size, struct journal_view *ret_view)
{
	const struct journal_decision *d = record;
	const uint8_t *at = (const uint8_t *)(d + 1);
	struct journal_view view = { .decision = d };

	if (size < sizeof(*d) || !journal_is(record, size, JOURNAL_DECISION, NULL) ||
	    d->engines_nr > STATE_ENGINES_MAX || size < journal_decision_size(d->engines_nr))
		return -EPROTO;
	view.names = (const void *)at;
	at += d->engines_nr * sizeof(*view.names);
	view.engines = (const void *)at;
	at += d->engines_nr * sizeof(*view.engines);
	memcpy(&view.choice, d->choice, sizeof(d->choice));
	memcpy(view.choice.cost, at, d->engines_nr * sizeof(view.choice.cost[0]));
	if (!sound(&view))
		return -EPROTO;
	*ret_view = view;
	return 0;
}

int journal_outcome_read(const void *record, size_t size, const struct journal_outcome **ret)
{
	const struct journal_outcome *o = record;

	if (size < sizeof(*o) || !journal_is(record, size, JOURNAL_OUTCOME, NULL) ||
	    !ends(o->engine, sizeof(o->engine)) || !ends(o->end, sizeof(o->end)))
		return -EPROTO;
	*ret = o;
	return 0;
}

int journal_shadow_read(const void *record, size_t size, const struct journal_shadow **ret)
{
	const struct journal_shadow *s = record;

	if (size < sizeof(*s) || !journal_is(record, size, JOURNAL_SHADOW, NULL) ||
	    !params_sound(&s->params))
		return -EPROTO;
	*ret = s;
	return 0;
}

int journal_replay(const struct journal_view *view, struct policy_choice *ret_choice)
{
	unsigned nr = view->decision->engines_nr;

	policy_choose(&view->decision->params, &view->decision->request, view->engines, nr,
		      ret_choice);
	return memcmp(ret_choice, &view->choice, policy_choice_size(nr)) != 0;
}
