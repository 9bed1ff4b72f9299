/* A writer in another process, running or stopped at any instruction, and what is read of it. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "bench/load_decide.h"
#include "bench/load_proc.h"
#include "shm/base/clock.h"

enum { READS_STOPPED = 200, WORDS = sizeof(struct engine_state) / 8 };

struct writer {
	struct decide *d;
	unsigned per_s;
};

/* Every word of a record is the same number, so that a mixture shows. */
static void write_on(void *ctx)
{
	const struct writer *w = ctx;
	struct timespec pause = { .tv_nsec = w->per_s ? NS_PER_S / (long)w->per_s : 0 };
	uint64_t words[WORDS];
	struct engine_state state;

	for (uint64_t n = 1;; n++) {
		for (unsigned i = 0; i < WORDS; i++)
			words[i] = n;
		memcpy(&state, words, sizeof(state));
		engine_file_publish(&w->d->own[0], &state);
		if (w->per_s)
			nanosleep(&pause, NULL);
	}
}

static void read_once(struct decide *d, struct decide_shared *told)
{
	struct engine_state state;
	uint64_t words[WORDS], seq = 0, first, before = clock_ns();
	int err = engine_file_read(&d->seen[0], &state, &seq);

	hist_add(&told->ns, (double)(clock_ns() - before));
	told->reads++;
	if (err) {
		told->gave_up++;
		return;
	}
	memcpy(words, &state, sizeof(state));
	first = words[0];
	for (unsigned i = 1; i < WORDS; i++)
		if (words[i] != first) {
			told->torn++;
			break;
		}
}

static uint64_t seq_of(struct decide *d)
{
	struct engine_state state;
	uint64_t seq = 0;

	while (engine_file_read(&d->seen[0], &state, &seq) == -EAGAIN)
		;
	return seq;
}

static int writer_start(struct writer *w, struct load_proc *ret_proc)
{
	uint64_t seq = seq_of(w->d);
	int err = load_proc_fork(ret_proc, load_core_measured(), write_on, w);

	while (!err && seq_of(w->d) == seq)
		;
	return err;
}

static void writer_end(struct load_proc *proc)
{
	kill(proc->pid, SIGKILL);
	load_proc_stop(proc);
}

int decide_beside(struct decide *d, unsigned per_s, double seconds, struct decide_shared *ret)
{
	struct writer w = { .d = d, .per_s = per_s };
	struct load_proc proc = { 0 };
	int err = writer_start(&w, &proc);

	memset(ret, 0, sizeof(*ret));
	if (err)
		return err;
	uint64_t end = clock_ns() + (uint64_t)(seconds * NS_PER_S), first = seq_of(d), last = first;
	while (clock_ns() < end) {
		struct engine_state state;
		uint64_t seq = last;

		read_once(d, ret);
		if (engine_file_read(&d->seen[0], &state, &seq) == 0) {
			ret->overtaken += seq != last;
			last = seq;
		}
	}
	ret->publications = last - first;
	writer_end(&proc);
	return 0;
}

int decide_stopped(struct decide *d, unsigned times, struct decide_shared *ret)
{
	struct writer w = { .d = d };
	struct load_proc proc = { 0 };
	int err = writer_start(&w, &proc);

	memset(ret, 0, sizeof(*ret));
	if (err)
		return err;
	for (unsigned i = 0; i < times; i++) {
		kill(proc.pid, SIGSTOP);
		waitpid(proc.pid, NULL, WUNTRACED);
		for (unsigned r = 0; r < READS_STOPPED; r++)
			read_once(d, ret);
		kill(proc.pid, SIGCONT);
		nanosleep(&(struct timespec){ .tv_nsec = 50 * NS_PER_US + (long)i * 37 }, NULL);
	}
	writer_end(&proc);
	return 0;
}
