/* The agent's rounds; see sampler.h. */
#include "agent/sampler.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "shm/base/clock.h"

enum { PACE_FAST_ROUNDS = 8, SNAPSHOT_IDLE_PERIODS = 2 };

static const uint64_t slow_scrape_ns = 50ull * NS_PER_MS;
static const uint64_t round_max_ns = 2ull * NS_PER_S;    /* slowest sampling while it answers */
static const uint64_t source_max_ns = 30ull * NS_PER_S;  /* of a page beside the load */
static const uint64_t retry_max_ns = 500ull * NS_PER_MS; /* while nobody listens */
static const uint64_t unsupported_ns = 30ull * NS_PER_S; /* before a 404 is tried again */
static const uint64_t empty_ns = 5ull * NS_PER_S;        /* before a page without signals is */
static const uint64_t again_ns = 5ull * NS_PER_S;      /* before a failed page beside the load is */
static const uint64_t beside_max_ns = 1ull * NS_PER_S; /* the answer of such a page */
static const uint64_t fetch_max_ns = 5ull * NS_PER_S;  /* one answer, whole */
static const uint64_t snapshot_max_ns = 60ull * NS_PER_S; /* older: not this host's clock */

static void pace_set(struct pace *pace, uint64_t base_ns, uint64_t max_ns)
{
	*pace = (struct pace){ base_ns, base_ns, max_ns > base_ns ? max_ns : base_ns, 0 };
}

static void pace_took(struct pace *pace, uint64_t took_ns)
{
	if (took_ns > slow_scrape_ns) {
		pace->fast = 0;
		pace->now_ns = pace->now_ns * 2 < pace->max_ns ? pace->now_ns * 2 : pace->max_ns;
	} else if (pace->now_ns > pace->base_ns && ++pace->fast >= PACE_FAST_ROUNDS) {
		pace->fast = 0;
		pace->now_ns = pace->now_ns / 2 > pace->base_ns ? pace->now_ns / 2 : pace->base_ns;
	}
}

static uint64_t now(const struct sampler *s)
{
	return s->io.now_ns(s->io.ctx);
}

/* Without a list the engine takes any name: the router must not refuse what may be served. */
static void forget_models(struct sampler *s)
{
	s->info.models_nr = 0;
	memset(s->info.models, 0, sizeof(s->info.models));
}

/* Another process, or another kind: what was measured on the old one says nothing. */
static void forget(struct sampler *s)
{
	s->speeds = (struct speeds){ 0 };
	s->inherited = (struct engine_state){ 0 };
	s->snapshot_wall_ns = s->refresh_ns = 0;
	forget_models(s);
	for (size_t i = 0; s->ops && i < s->ops->uses_nr; i++) {
		if (!s->ops->uses[i].tells_load)
			s->work[i].due_ns = 0;
	}
}

static void use_ops(struct sampler *s, const struct engine_ops *ops)
{
	assert(ops->uses_nr <= SAMPLER_USES_MAX);
	if (s->state.kind != ENGINE_KIND_UNKNOWN && s->state.kind != (uint64_t)ops->kind) {
		s->watch.epoch = 0;
		forget(s);
		memset(s->info.version, 0, sizeof(s->info.version));
		s->info.metrics_source = 0;
	}
	s->ops = ops;
	memset(s->work, 0, sizeof(s->work));
	for (size_t i = 0; i < ops->uses_nr; i++)
		pace_set(&s->work[i].pace, ops->uses[i].interval_ns, source_max_ns);
	pace_set(&s->pace, s->params.period_ns ? s->params.period_ns : ops->period_ns,
		 round_max_ns);
	s->state.kind = ops->kind;
	s->state.period_ns = s->pace.now_ns;
}

void sampler_init(struct sampler *s, const struct sampler_params *params,
		  const struct sampler_io *io)
{
	*s = (struct sampler){ .params = *params, .io = *io };
	watch_init(&s->watch, params->stall_ns);
	pace_set(&s->pace, params->period_ns ? params->period_ns : 100ull * NS_PER_MS,
		 round_max_ns);
	s->state.period_ns = s->pace.now_ns;
	if (params->kind != ENGINE_KIND_UNKNOWN)
		use_ops(s, engine_ops_of(params->kind));
}

void sampler_inherit(struct sampler *s, const struct engine_state *state)
{
	watch_inherit(&s->watch, state);
	s->inherited = *state;
}

/* What a failed fetch, or a status that is none of success, says about the engine. */
static enum watch_failure failure_of(int err)
{
	switch (err) {
	case -ECONNREFUSED:
	case -ENOENT:
		return WATCH_REFUSED;
	case -ETIMEDOUT:
		return WATCH_SILENT;
	default:
		return WATCH_ERROR;
	}
}

/* The page is not there, which says nothing against the engine. */
static int is_unsupported(int status)
{
	return status == 404 || status == 405 || status == 501;
}

/* It is there, but not for us: the engine lives, and may serve clients that have a key. */
static int is_locked(int status)
{
	return status == 401 || status == 403;
}

static void note_failure(struct sampler *s, const char *path, int err, int status)
{
	if (err == -EFBIG)
		snprintf(s->note, sizeof(s->note), "GET %s: the page is over %d bytes", path,
			 METRICS_PAGE_MAX);
	else if (err < 0)
		snprintf(s->note, sizeof(s->note), "GET %s: %s", path, strerror(-err));
	else
		snprintf(s->note, sizeof(s->note), "GET %s: status %d%s", path, status,
			 is_locked(status) ? ": give the engine's key with --key-file" : "");
}

static int fetch(struct sampler *s, enum engine_source source, uint64_t max_ns,
		 struct sampler_answer *ret_answer)
{
	uint64_t timeout_ns = s->params.stall_ns / 2;
	const char *path = engine_source_path(source);

	timeout_ns = timeout_ns < max_ns ? timeout_ns : max_ns;
	int err = s->io.fetch(s->io.ctx, path, timeout_ns, ret_answer);

	if (err == -EINTR)
		return err;
	if (err < 0 || (ret_answer->status != 200 && !is_unsupported(ret_answer->status)))
		note_failure(s, path, err, err < 0 ? 0 : ret_answer->status);
	return err;
}

/* 1 if some kind knows the page as its own. */
static int recognise(struct sampler *s, const struct engine_page *page)
{
	for (size_t k = 0; engine_kinds[k]; k++) {
		if (engine_kinds[k]->probe(page)) {
			use_ops(s, engine_kinds[k]);
			return 1;
		}
	}
	return 0;
}

/*
 * Asks the pages by which kinds differ. 0 when the kind is known, or when what answers is alive but
 * of no kind that we know; -EPROTO when it does not behave like an engine at all; -errno of a
 * fetch.
 */
static int find_kind(struct sampler *s)
{
	static const enum engine_source sources[] = { SOURCE_MODELS, SOURCE_METRICS, SOURCE_LOADS,
						      SOURCE_PROPS };
	int alive = 0;

	for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++) {
		struct sampler_answer answer;
		int err = fetch(s, sources[i], fetch_max_ns, &answer);

		if (err < 0)
			return err;
		alive |= sources[i] == SOURCE_MODELS && is_locked(answer.status);
		if (answer.status != 200)
			continue;
		struct engine_page page = { sources[i], answer.body, answer.len, answer.start_id };
		if (recognise(s, &page))
			return 0;
		alive |= engine_other.probe(&page);
	}
	if (alive) {
		use_ops(s, &engine_other);
		s->recognise_ns = now(s) + unsupported_ns;
		return 0;
	}
	if (!s->note[0])
		snprintf(s->note, sizeof(s->note),
			 "no page tells which engine this is: give --kind");
	return -EPROTO;
}

/* Sources further down the table are asked more often while none above tells the load. */
static uint64_t interval_of(const struct sampler *s, size_t i)
{
	const struct engine_source_use *use = &s->ops->uses[i];
	int told = 0;

	for (size_t above = 0; above < i; above++)
		told |= s->ops->uses[above].tells_load && s->work[above].works;
	if (use->alone_ns && !told)
		return use->alone_ns;
	return use->interval_ns ? s->work[i].pace.now_ns : 0;
}

static uint64_t saturating_add(uint64_t a, uint64_t b)
{
	return a + b < a ? UINT64_MAX : a + b;
}

/* Takes one answer of a source. 1: it told something; 0: it did not, which is no failure; -errno.
 */
static int take_answer(struct sampler *s, size_t i, const struct sampler_answer *answer)
{
	const struct engine_source_use *use = &s->ops->uses[i];
	struct engine_page page = { use->source, answer->body, answer->len, answer->start_id };
	struct source_work *work = &s->work[i];
	struct engine_reading layer = { 0 };

	work->works = 0;
	if (use->tells_load) /* an old load must not cover another page's fresh one */
		work->has_layer = 0;
	s->info.metrics_source &= ~(1ull << use->source);
	if (answer->status != 200) {
		if (!is_unsupported(answer->status) && !is_locked(answer->status))
			return -EPROTO;
		work->has_layer = 0;
		work->due_ns = now(s) + (is_locked(answer->status) ? again_ns : unsupported_ns);
		return 0;
	}
	int err = s->ops->sample(&page, &layer, &s->info);
	if (err == -ENODATA) { /* served, but empty of what we need: as good as not there */
		work->has_layer = 0;
		work->due_ns = now(s) + empty_ns;
		return 0;
	}
	if (err < 0) {
		snprintf(s->note, sizeof(s->note), "GET %s: not a page of %s",
			 engine_source_path(use->source), s->ops->name);
		return err;
	}
	work->layer = layer;
	work->works = work->has_layer = 1;
	s->info.metrics_source |= 1ull << use->source;
	return 1;
}

/* What a round of fetches came to. */
struct round {
	uint64_t start_ns, sent_ns; /* sent: of the first page that told the load */
	uint64_t sent_wall_ns, load_took_ns;
	int told;     /* pages that told the load */
	int answered; /* pages that answered at all, unsupported ones included */
	int err;      /* of the last load page that failed */
};

/* Asks one source if it is due. Only -EINTR and a dead connection end the round. */
static int ask_source(struct sampler *s, size_t i, struct round *round)
{
	const struct engine_source_use *use = &s->ops->uses[i];
	struct source_work *work = &s->work[i];
	struct sampler_answer answer;
	uint64_t sent_ns = now(s), sent_wall_ns = s->io.wall_ns(s->io.ctx);

	if (work->due_ns > sent_ns)
		return 0;
	int err = fetch(s, use->source, use->interval_ns ? beside_max_ns : fetch_max_ns, &answer);
	uint64_t took_ns = now(s) - sent_ns;
	if (err < 0) {
		if (use->interval_ns)
			work->due_ns = now(s) + again_ns;
		round->err = err;
		return err;
	}
	uint64_t interval = interval_of(s, i);
	work->due_ns = use->tells_load && interval == 0 ? 0 : saturating_add(sent_ns, interval);
	int told = take_answer(s, i, &answer);
	if (told < 0 && use->interval_ns && !use->vital)
		work->due_ns = sent_ns + again_ns;
	if (told <= 0 && use->source == SOURCE_MODELS)
		forget_models(s);
	round->answered |= told >= 0;
	work->sick = use->vital && told < 0;
	if (use->interval_ns && use->interval_ns < source_max_ns)
		pace_took(&work->pace, took_ns);
	if (!use->tells_load)
		return 0;
	if (told < 0)
		round->err = told;
	if (!use->interval_ns)
		round->load_took_ns += took_ns;
	if (told > 0 && round->told++ == 0) {
		round->sent_ns = sent_ns;
		round->sent_wall_ns = sent_wall_ns;
	}
	return 0;
}

#define MERGE_FIELD(name, type, unit, meaning) \
	if (ENGINE_HAS(&from->state, name))    \
		into->state.name = from->state.name;

/* Lays one page's reading over another's: what `from` has wins. */
static void merge(struct engine_reading *into, const struct engine_reading *from)
{
	ENGINE_FIELDS(MERGE_FIELD)
	into->state.trusted &= ~from->state.present;
	into->state.trusted |= from->state.trusted;
	into->state.present |= from->state.present;
	into->start_id = from->start_id ? from->start_id : into->start_id;
	into->snapshot_wall_ns =
		from->snapshot_wall_ns ? from->snapshot_wall_ns : into->snapshot_wall_ns;
	into->digits = from->digits ? from->digits : into->digits;
	if (from->has & READING_PREFILL) {
		into->prefill_tokens = from->prefill_tokens;
		into->prefill_s = from->prefill_s;
		into->prefills = from->prefills;
	}
	if (from->has & READING_DECODE) {
		into->decode_steps = from->decode_steps;
		into->decode_s = from->decode_s;
	}
	if (from->has & READING_MOMENTS)
		memcpy(into->moments, from->moments, sizeof(into->moments));
	if (from->has & READING_SEQUENCE)
		into->sequence = from->sequence;
	if (from->has & READING_PROGRESS)
		into->progress = engine_mix(into->progress, (double)(from->progress >> 11));
	into->has |= from->has;
	for (size_t i = 0; i < METRICS_WANTS_MAX; i++)
		into->found[i] = from->found[i] ? from->found[i] : into->found[i];
}
#undef MERGE_FIELD

#define INHERIT(s, state, name)                                                                 \
	(ENGINE_HAS(&(s)->inherited, name) ? (void)ENGINE_SET(state, name, (s)->inherited.name) \
					   : (void)0)

static void set_speeds(const struct sampler *s, struct engine_state *state)
{
	double seconds;

	if (speeds_prefill(&s->speeds, &seconds) == 0)
		ENGINE_SET(state, prefill_tokens_per_s, 1 / seconds);
	else
		INHERIT(s, state, prefill_tokens_per_s);
	if (speeds_decode(&s->speeds, s->reading.has & READING_MOMENTS, &seconds) == 0)
		ENGINE_SET(state, decode_iteration_s, seconds);
	else
		INHERIT(s, state, decode_iteration_s);
	if (speeds_per_sequence(&s->speeds, &seconds) == 0)
		ENGINE_SET(state, decode_per_sequence_s, seconds);
	else
		INHERIT(s, state, decode_per_sequence_s);
}

/*
 * When the numbers were true. An engine that stamps its own snapshot is taken at its word while it
 * works; an idle one may sleep on an old stamp, yet is as idle now as it was then.
 */
static uint64_t true_at(struct sampler *s, const struct round *round)
{
	const struct engine_reading *reading = &s->reading;
	uint64_t idle_max = SNAPSHOT_IDLE_PERIODS * s->pace.now_ns;
	int busy = reading->state.running > 0 || reading->state.waiting > 0;

	if (reading->snapshot_wall_ns == 0 || reading->snapshot_wall_ns > round->sent_wall_ns)
		return round->sent_ns;
	uint64_t age = round->sent_wall_ns - reading->snapshot_wall_ns;
	if (age > snapshot_max_ns)
		return round->sent_ns;
	if (busy && s->snapshot_wall_ns && reading->snapshot_wall_ns > s->snapshot_wall_ns) {
		uint64_t step = reading->snapshot_wall_ns - s->snapshot_wall_ns;

		step = step < round_max_ns ? step : round_max_ns;
		s->refresh_ns = s->refresh_ns ? (s->refresh_ns * 7 + step) / 8 : step;
	}
	s->snapshot_wall_ns = reading->snapshot_wall_ns;
	if (!busy && age > idle_max)
		age = idle_max;
	return age < round->sent_ns ? round->sent_ns - age : round->sent_ns;
}

/* The sampling period that readers judge an age by: no shorter than the engine's own refreshing. */
static uint64_t period_in_force(const struct sampler *s, const struct round *round)
{
	uint64_t period = UINT64_MAX;

	for (size_t i = 0; i < s->ops->uses_nr; i++) {
		uint64_t interval = interval_of(s, i);

		if (!s->work[i].works || (round->told && !s->ops->uses[i].tells_load))
			continue;
		interval = interval > s->pace.now_ns ? interval : s->pace.now_ns;
		period = interval < period ? interval : period;
	}
	if (period == UINT64_MAX)
		period = s->pace.now_ns;
	return s->refresh_ns > period ? s->refresh_ns : period;
}

/* A good round: all layers together become the state to publish. */
static void publishable(struct sampler *s, const struct round *round)
{
	struct engine_reading reading = { 0 };
	struct engine_state *state = &s->state;

	for (size_t i = s->ops->uses_nr; i-- > 0;) {
		if (s->work[i].has_layer)
			merge(&reading, &s->work[i].layer);
	}
	s->reading = reading;
	double step_s = ENGINE_HAS(state, decode_iteration_s) ? state->decode_iteration_s : 0;
	if (s->watch.inherited && s->watch.last.kind != (uint64_t)s->ops->kind)
		s->watch.epoch = 0;
	int first = s->watch.epoch == 0;
	int another = watch_reading(&s->watch, &reading, now(s), s->io.wall_ns(s->io.ctx), step_s);
	if (another && !first)
		forget(s);
	if (first)
		s->inherited = (struct engine_state){ 0 };
	speeds_feed(&s->speeds, &reading);
	reading.state.read_ns = true_at(s, round);
	reading.state.period_ns = period_in_force(s, round);
	reading.state.epoch = s->watch.epoch;
	reading.state.kind = s->ops->kind;
	reading.state.health = s->watch.health;
	reading.state.scrapes = state->scrapes + 1;
	reading.state.failures = state->failures;
	*state = reading.state;
	set_speeds(s, state);
}

static void failed_round(struct sampler *s, int err)
{
	watch_failed(&s->watch, failure_of(err), now(s));
	s->state.failures++;
	s->state.health = s->watch.health;
	s->failed_in_row++;
	for (size_t i = 0; s->watch.gone && s->ops && i < s->ops->uses_nr; i++) {
		s->work[i].works = s->work[i].has_layer = 0;
		s->work[i].due_ns = 0;
	}
	/* What comes back may be something else. */
	if (s->watch.health == ENGINE_HEALTH_DOWN && s->params.kind == ENGINE_KIND_UNKNOWN)
		s->ops = NULL;
}

/* Never before the round has ended; less and less often while it fails. */
static uint64_t next_due(const struct sampler *s, const struct round *round, int err)
{
	uint64_t end_ns = now(s), wait_ns = s->pace.now_ns;

	if (err < 0) {
		for (unsigned i = 1; i < s->failed_in_row && wait_ns < retry_max_ns; i++)
			wait_ns *= 2;
		wait_ns = wait_ns < retry_max_ns ? wait_ns : retry_max_ns;
		if (s->pace.now_ns > wait_ns)
			wait_ns = s->pace.now_ns;
		if (err ==
		    -ETIMEDOUT) /* it still works on the question we gave up: let it breathe */
			return end_ns + fetch_max_ns / 5;
	}
	uint64_t due_ns = round->start_ns + wait_ns;

	return due_ns > end_ns ? due_ns : end_ns + wait_ns / 4;
}

/* A vital page that answered with an error is believed until it answers well. */
static int is_sick(const struct sampler *s)
{
	for (size_t i = 0; s->ops && i < s->ops->uses_nr; i++) {
		if (s->work[i].sick)
			return 1;
	}
	return 0;
}

/* What the round says about the engine. 0, or the failure. */
static int conclude(struct sampler *s, struct round *round)
{
	if (is_sick(s)) {
		if (!s->note[0])
			snprintf(s->note, sizeof(s->note), "its health page reports an error");
		return -EPROTO;
	}
	if (round->told)
		return 0;
	/* An engine that tells no load but answers is up, only unknown. */
	if (round->err)
		return round->err;
	round->sent_ns = round->start_ns;
	round->sent_wall_ns = s->io.wall_ns(s->io.ctx);
	return 0;
}

int sampler_round(struct sampler *s, uint64_t *ret_due_ns)
{
	struct round round = { .start_ns = now(s) };
	int err = 0;

	s->note[0] = 0;
	if (!s->ops || (s->ops == &engine_other && s->recognise_ns <= round.start_ns))
		round.err = err = find_kind(s);
	for (size_t i = 0; err == 0 && s->ops && i < s->ops->uses_nr; i++)
		err = ask_source(s, i, &round);
	if (err == -EINTR)
		return -EINTR;
	err = conclude(s, &round);
	if (err < 0) {
		failed_round(s, err);
	} else if (round.told || round.answered) {
		s->failed_in_row = 0;
		pace_took(&s->pace, round.load_took_ns);
		publishable(s, &round);
	} /* else nothing was due: no load is told, and the other pages come at their own times */
	*ret_due_ns = next_due(s, &round, err);
	return 0;
}
