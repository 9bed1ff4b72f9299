/*
 * Processes under measurement: started on a core of their own, weighed by the kernel's clock of
 * what they ran, ended by their id and with whoever started them.
 */
#ifndef TURNWARD_BENCH_LOAD_PROC_H
#define TURNWARD_BENCH_LOAD_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct load_proc {
	pid_t pid; /* 0: none */
};

/* The caller's own core, and that of what is measured: 0 and 1, both 0 on one core. */
int load_core_own(void);
int load_core_measured(void);
enum { LOAD_CORE_ANY = -1 };
void load_pin(int core);

/* A command line, word by word. */
enum { LOAD_WORDS_MAX = 48, LOAD_WORD_BYTES = 512 };
struct load_command {
	char text[LOAD_WORDS_MAX][LOAD_WORD_BYTES];
	char *argv[LOAD_WORDS_MAX + 1];
	int n;
};
void load_word(struct load_command *c, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* From here on we and our children go before what else runs here, where that is permitted. */
void load_urgent(void);

/* Raises the soft limit of descriptors to the hard one and returns it. */
unsigned load_descriptors(void);

/* From here on SIGINT and SIGTERM only set what load_interrupted() tells: time to clean up. */
void load_interrupt_catch(void);
bool load_interrupted(void);

/* Runs a function in a child; -errno if there is none. */
int load_proc_fork(struct load_proc *ret_proc, int core, void (*run)(void *ctx), void *ctx);

/* Runs a program, argv ended by NULL; what it says goes to `log` (NULL: nowhere). */
int load_proc_exec(struct load_proc *ret_proc, int core, const char *log, char *const argv[]);

bool load_proc_alive(struct load_proc *proc);

/* SIGTERM, and after three seconds SIGKILL, to its descendants likewise; waits for the end. */
void load_proc_stop(struct load_proc *proc);

/* Ends, likewise, whoever outlived the process of ours that had started it. */
void load_orphans_stop(void);

/* Nanoseconds that all threads of the process and of its descendants have run. */
uint64_t load_proc_cpu_ns(pid_t pid);

/* Resident bytes of the process and its descendants. */
uint64_t load_proc_rss(pid_t pid);

/* The end of what went to a log, one line of at most size - 1 bytes; "" when it is empty. */
void load_last_words(const char *log, char *ret_text, size_t size);

/* Removes a directory of ours with all that is in it. */
void load_remove(const char *dir);

/* First line of what a program prints for `flag`, at most size - 1 bytes; "" if it does not run. */
void load_proc_ask(const char *program, const char *flag, char *ret_text, size_t size);

#endif
