/* Journal records: read back as written, decided again the same, damage refused at any length. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "router/journal/compare.h"
#include "router/journal/journal.h"
#include "tests/lib/guard.h"
#include "tests/lib/unit.h"
#include "tests/unit/policy_world.h"

static uint8_t record[64 * 1024];
static struct world world;
static struct journal_engine names[STATE_ENGINES_MAX];

/* A fleet in which the engines differ, and its decision as a record; returns its size. */
static size_t decide(unsigned engines)
{
	struct journal_decision *d = (void *)record;

	world_init(&world, POLICY_CONTENTION, engines);
	memset(names, 0, sizeof(names));
	for (unsigned i = 0; i < engines; i++) {
		world.engine[i].num_requests = (float)(i * 3 % 5);
		world.engine[i].pending_prefill_tokens = (float)(1000 * (i * 7 % 11));
		snprintf(names[i].name, sizeof(names[i].name), "gpu%u", i);
	}
	world_settle(&world, (int)(engines - 1), 4);
	world_choose(&world);
	memset(record, 0, sizeof(record));
	snprintf(d->head.id, sizeof(d->head.id), "my-1");
	d->params = world.params;
	d->request = world.request;
	return journal_decision_write(d, sizeof(record), names, world.engine, engines,
				      &world.choice);
}

static void a_decision_is_read_back_and_decided_again_the_same(void **state)
{
	for (unsigned engines = 1; engines <= STATE_ENGINES_MAX; engines += 7) {
		size_t size = decide(engines);
		struct policy_choice choice;
		struct journal_view view;

		assert_int_equal(size, journal_decision_size(engines));
		assert_int_equal(journal_decision_read(record, size, &view), 0);
		assert_int_equal(view.decision->engines_nr, engines);
		assert_int_equal(view.choice.engine, world.choice.engine);
		assert_string_equal(view.names[engines - 1].name, names[engines - 1].name);
		assert_memory_equal(view.engines, world.engine, engines * sizeof(world.engine[0]));
		assert_int_equal(journal_replay(&view, &choice), 0);
		assert_int_equal(choice.engine, world.choice.engine);
	}
}

static void a_record_that_was_changed_is_told_from_its_decision(void **state)
{
	size_t size = decide(4);
	struct policy_choice choice;
	struct journal_view view;

	assert_int_equal(journal_decision_read(record, size, &view), 0);
	((struct policy_engine *)view.engines)[view.choice.engine].pending_prefill_tokens += 1e6f;
	assert_int_equal(journal_replay(&view, &choice), 1);
}

static void the_largest_fleet_fits_the_workers_record(void **state)
{
	assert_true(journal_decision_size(STATE_ENGINES_MAX) <= sizeof(record));
	assert_true(decide(STATE_ENGINES_MAX) > 0);
}

static void a_record_longer_than_its_room_is_not_written(void **state)
{
	size_t size = decide(3);
	uint8_t before[256];

	memcpy(before, record, sizeof(before));
	assert_int_equal(journal_decision_write((void *)record, size - 1, names, world.engine, 3,
						&world.choice),
			 0);
	assert_memory_equal(record, before, sizeof(before));
	assert_int_equal(
		journal_decision_write((void *)record, size, names, world.engine, 3, &world.choice),
		size);
}

static void a_cut_record_is_refused_at_every_length(void **state)
{
	size_t size = decide(2);
	struct journal_view view;

	for (size_t len = 0; len < size - size % 8; len += 8) {
		struct guard g = guard_copy(record, len); /* reading on would end this test */

		assert_int_equal(journal_decision_read(g.bytes, len, &view), -EPROTO);
		assert_int_equal(journal_is(g.bytes, len, JOURNAL_DECISION, "other"), 0);
		guard_free(&g);
	}
}

static void what_the_ring_may_hold_by_damage_is_refused(void **state)
{
	struct journal_decision *d = (void *)record;
	const struct journal_outcome *outcome;
	struct journal_view view;
	size_t size = decide(2);

	d->engines_nr = STATE_ENGINES_MAX + 1;
	assert_int_equal(journal_decision_read(record, sizeof(record), &view), -EPROTO);
	d->engines_nr = UINT64_MAX / sizeof(struct policy_engine) + 2; /* the size would wrap */
	assert_int_equal(journal_decision_read(record, sizeof(record), &view), -EPROTO);
	d->engines_nr = 2;
	d->head.version++;
	assert_int_equal(journal_decision_read(record, size, &view), -EPROTO);
	d->head.version--;
	d->head.layout++;
	assert_int_equal(journal_decision_read(record, size, &view), -EPROTO);
	d->head.layout--;
	d->head.kind = JOURNAL_OUTCOME;
	assert_int_equal(journal_decision_read(record, size, &view), -EPROTO);
	d->head.kind = JOURNAL_DECISION;
	assert_int_equal(journal_outcome_read(record, size, &outcome), -EPROTO);
	memset(d->head.id, 'x', sizeof(d->head.id));
	assert_int_equal(journal_decision_read(record, size, &view), -EPROTO);
}

static void an_engine_that_is_not_there_is_refused(void **state)
{
	size_t size = decide(2);
	struct journal_decision *d = (void *)record;
	struct policy_choice *choice = (void *)d->choice;
	struct journal_view view;

	choice->engine = 2;
	assert_int_equal(journal_decision_read(record, size, &view), -EPROTO);
	choice->engine = -1;
	choice->target = INT32_MAX;
	assert_int_equal(journal_decision_read(record, size, &view), -EPROTO);
	choice->target = -1;
	assert_int_equal(journal_decision_read(record, size, &view), 0);
}

/* What policy_choose() asserts must not be reached from outside. */
static void inputs_that_no_policy_takes_are_refused(void **state)
{
	size_t size = decide(2);
	struct journal_decision *d = (void *)record;
	struct policy_choice *choice = (void *)d->choice;
	struct policy_engine *engine = (void *)(record + sizeof(*d) + 2 * sizeof(names[0]));
	struct journal_view view;

	d->params.policy = POLICIES_NR;
	assert_int_equal(journal_decision_read(record, size, &view), -EPROTO);
	d->params.policy = POLICY_ROUND_ROBIN;
	engine[1].id = engine[0].id;
	assert_int_equal(journal_decision_read(record, size, &view), -EPROTO);
	engine[1].id++;
	choice->reason = POLICY_REASONS_NR;
	assert_int_equal(journal_decision_read(record, size, &view), -EPROTO);
	choice->reason = 0;
	assert_int_equal(journal_decision_read(record, size, &view), 0);
}

static void every_field_of_a_record_is_in_its_layout(void **state)
{
	unsigned nr;
	const struct journal_field *f = journal_fields(&nr);
	size_t at = 0;

	/* Each structure's fields in order and without holes, so one that is forgotten shows. */
	for (unsigned i = 0; i < nr; i++) {
		int last = i + 1 == nr || strcmp(f[i].of, f[i + 1].of) != 0;
		size_t end = strcmp(f[i].of, "policy_choice")
				     ? f[i].of_size
				     : offsetof(struct policy_choice, cost);

		if (f[i].offset != at)
			fail_msg("%s.%s is at %zu, not %zu", f[i].of, f[i].name, f[i].offset, at);
		at += f[i].size;
		if (last && at != end)
			fail_msg("%s ends at %zu of %zu", f[i].of, at, end);
		if (last)
			at = 0;
	}
}

static void the_layouts_text_is_whole(void **state)
{
	static char text[JOURNAL_LAYOUT_MAX];
	size_t length = journal_layout_text(text, sizeof(text));

	assert_true(length + 1 < sizeof(text));
	assert_int_equal(text[length], 0);
	assert_true(journal_layout() != 0);
	assert_true(journal_layout() == journal_layout());
}

static void a_difference_is_named_by_its_first_field(void **state)
{
	char field[JOURNAL_FIELD_MAX], was[JOURNAL_VALUE_MAX], is[JOURNAL_VALUE_MAX];
	size_t size = decide(4);
	struct policy_choice again;
	struct journal_view view;

	assert_int_equal(journal_decision_read(record, size, &view), 0);
	assert_int_equal(journal_replay(&view, &again), 0);
	assert_int_equal(journal_difference(&view, &again, field, was, is), -ENOENT);
	again.cost[2].queue_s = 0.5;
	assert_int_equal(journal_difference(&view, &again, field, was, is), 0);
	assert_string_equal(field, "cost[gpu2].queue_s");
	assert_string_equal(is, "0.5");
	again.runner_up = -1;
	view.choice.runner_up = 3;
	assert_int_equal(journal_difference(&view, &again, field, was, is), 0);
	assert_string_equal(field, "runner_up");
	assert_string_equal(was, "3");
	assert_string_equal(is, "-1");
}

/* Home holds the prompt and has a queue: sticky stays, least-requests goes. */
static void another_policy_is_priced_by_both_models(void **state)
{
	struct journal_comparison c;
	struct policy_params other;
	struct journal_view view;
	size_t size;

	decide(3);
	world_init(&world, POLICY_EFT, 3);
	world_settle(&world, 1, 3);
	world.engine[1].num_requests = 2;
	world_choose(&world);
	assert_int_equal(world.choice.engine, 1);
	((struct journal_decision *)record)->params = world.params;
	((struct journal_decision *)record)->request = world.request;
	size = journal_decision_write((void *)record, sizeof(record), names, world.engine, 3,
				      &world.choice);
	assert_int_equal(journal_decision_read(record, size, &view), 0);

	other = world.params;
	journal_compare(&view, &other, &c);
	assert_int_equal(c.differs, 0);
	other.policy = POLICY_LEAST_REQUESTS;
	journal_compare(&view, &other, &c);

	assert_int_equal(c.differs, 1);
	assert_int_equal(c.comparable, 1);
	assert_int_not_equal(c.other.engine, 1);
	/* By both (least-requests shows the step model's costs) leaving costs the whole prefill. */
	assert_near(c.regret.own_s,
		    world.choice.cost[c.other.engine].total_s - world.choice.cost[1].total_s, 0);
	assert_true(c.regret.own_s > 7 && c.regret.other_s < -7 && c.regret.ttft_s < -7);
}

/* Nobody moves the recorded cursor on where another policy is in force. */
static void round_robin_beside_another_policy_goes_round(void **state)
{
	unsigned chosen[4] = { 0 };

	for (uint64_t i = 0; i < 64; i++) {
		struct journal_comparison c;
		struct policy_params other;
		struct journal_view view;
		size_t size = decide(4);

		((struct journal_decision *)record)->request.random[1] = i * 0x9e3779b97f4a7c15;
		assert_int_equal(journal_decision_read(record, size, &view), 0);
		other = view.decision->params;
		other.policy = POLICY_ROUND_ROBIN;
		journal_compare(&view, &other, &c);
		chosen[c.other.engine]++;
	}
	for (unsigned i = 0; i < 4; i++)
		assert_in_range(chosen[i], 4, 32);
}

static void a_shadows_word_is_read_only_whole(void **state)
{
	const struct journal_shadow *got;
	struct journal_shadow s = { .head = { .id = "a" }, .decision = 7 };

	policy_params_init(&s.params);
	journal_head_init(&s.head, JOURNAL_SHADOW);
	assert_int_equal(journal_shadow_read(&s, sizeof(s) - 1, &got), -EPROTO);
	assert_int_equal(journal_shadow_read(&s, sizeof(s), &got), 0);
	assert_int_equal(got->decision, 7);
	s.params.policy = POLICIES_NR;
	assert_int_equal(journal_shadow_read(&s, sizeof(s), &got), -EPROTO);
}

static void an_engine_that_the_other_leaves_out_has_no_price(void **state)
{
	struct journal_comparison c;
	struct policy_params other;
	struct journal_view view;
	size_t size = decide(2);

	assert_int_equal(journal_decision_read(record, size, &view), 0);
	view.choice.engine = view.decision->request.home == 0 ? 1 : 0;
	view.choice.cost[0].left_out = view.choice.cost[1].left_out = LEFT_OUT_OVERLOADED;
	other = view.decision->params;
	other.policy = POLICY_STICKY;
	journal_compare(&view, &other, &c);

	assert_int_equal(c.differs, 1);
	assert_int_equal(c.comparable, 0);
	assert_near(c.regret.own_s, 0, 0);
}

static void names_of_a_hostile_record_end(void **state)
{
	size_t size = decide(2);
	struct journal_decision *d = (void *)record;
	struct journal_view view;

	memset(d + 1, 'x', 2 * sizeof(struct journal_engine));
	memset(d->model, 'x', sizeof(d->model));
	assert_int_equal(journal_decision_read(record, size, &view), -EPROTO);
}

static void a_record_is_found_by_its_whole_id(void **state)
{
	size_t size = decide(2);

	assert_int_equal(journal_is(record, size, JOURNAL_DECISION, "my-1"), 1);
	assert_int_equal(journal_is(record, size, JOURNAL_DECISION, NULL), 1);
	assert_int_equal(journal_is(record, size, JOURNAL_DECISION, "my-"), 0);
	assert_int_equal(journal_is(record, size, JOURNAL_DECISION, "my-12"), 0);
	assert_int_equal(journal_is(record, size, JOURNAL_OUTCOME, "my-1"), 0);
}

static void an_outcome_is_read_only_whole(void **state)
{
	struct journal_outcome o = {
		.head = { .id = "a" }, .status = 200, .engine = "gpu0", .end = "ok"
	};
	const struct journal_outcome *got;

	journal_head_init(&o.head, JOURNAL_OUTCOME);
	assert_int_equal(journal_outcome_read(&o, sizeof(o) - 1, &got), -EPROTO);
	assert_int_equal(journal_outcome_read(&o, sizeof(o), &got), 0);
	assert_int_equal(got->status, 200);
	memset(o.engine, 'x', sizeof(o.engine));
	assert_int_equal(journal_outcome_read(&o, sizeof(o), &got), -EPROTO);
	memset(o.engine, 0, sizeof(o.engine));
	memset(o.end, 'x', sizeof(o.end));
	assert_int_equal(journal_outcome_read(&o, sizeof(o), &got), -EPROTO);
}

int main(void)
{
	const struct CMUnitTest claims[] = {
		CLAIM(a_decision_is_read_back_and_decided_again_the_same),
		CLAIM(a_record_that_was_changed_is_told_from_its_decision),
		CLAIM(the_largest_fleet_fits_the_workers_record),
		CLAIM(a_record_longer_than_its_room_is_not_written),
		CLAIM(a_cut_record_is_refused_at_every_length),
		CLAIM(what_the_ring_may_hold_by_damage_is_refused),
		CLAIM(an_engine_that_is_not_there_is_refused),
		CLAIM(inputs_that_no_policy_takes_are_refused),
		CLAIM(every_field_of_a_record_is_in_its_layout),
		CLAIM(the_layouts_text_is_whole),
		CLAIM(a_difference_is_named_by_its_first_field),
		CLAIM(another_policy_is_priced_by_both_models),
		CLAIM(round_robin_beside_another_policy_goes_round),
		CLAIM(a_shadows_word_is_read_only_whole),
		CLAIM(an_engine_that_the_other_leaves_out_has_no_price),
		CLAIM(names_of_a_hostile_record_end),
		CLAIM(a_record_is_found_by_its_whole_id),
		CLAIM(an_outcome_is_read_only_whole),
	};

	return cmocka_run_group_tests_name("journal", claims, NULL, NULL);
}
