/* Subcommands of turnward-bench: each takes its own command line and returns an exit code. */
#ifndef TURNWARD_BENCH_BENCH_H
#define TURNWARD_BENCH_BENCH_H

/* X(name, what it measures): bench_NAME(argc, argv), argv[0] being the subcommand's word. */
#define BENCH_COMMANDS(X)                                              \
	X(http, "latency and CPU of small requests")                   \
	X(stream, "CPU and fidelity of streams")                       \
	X(body, "CPU of large bodies, delay of their last byte")       \
	X(agents, "CPU of eight agents, age of what they say")         \
	X(decide, "a decision and the shared memory it reads")         \
	X(idle, "memory of open streams, how many live at once")       \
	X(isolation, "what stalled clients and engines do to others")  \
	X(peers, "all of these beside every peer that is here")        \
	X(live, "plays agentic sessions against a running router")     \
	X(replay, "plays policies against each other in virtual time") \
	X(report, "renders results on one HTML page")

#define BENCH_DECLARE(name, purpose) int bench_##name(int argc, char **argv);
BENCH_COMMANDS(BENCH_DECLARE)
#undef BENCH_DECLARE

#endif
