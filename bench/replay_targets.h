/* The laboratory's own examination: what its policies must show, played and judged. */
#ifndef TURNWARD_BENCH_REPLAY_TARGETS_H
#define TURNWARD_BENCH_REPLAY_TARGETS_H

#include "bench/replay.h"

/*
 * Each target is one figure of an arm over the same figure of another, seed by seed, on the design
 * document's mix (LIGHTER: at 0.6 new sessions a second, since its own rate is more than seven
 * engines and a slow one can take, and contention at it runs out of KV memory in one seed of
 * twelve, which would decide alone) or on Claude Code sessions; its value is the mean of these
 * ratios. X(name, workload, arm, over, figure, AT_MOST or AT_LEAST, limit)
 */
#define REPLAY_TARGETS(X)                                                                      \
	X("contention-over-linear", DESIGN, "contention+migrate=off", "linear", ttft_p90_s,    \
	  AT_MOST, 0.72)                                                                       \
	X("eft-tpot", DESIGN, "eft", "contention+migrate=off", tpot_p90_s, AT_MOST, 0.85)      \
	X("eft-ttft", DESIGN, "eft", "contention+migrate=off", ttft_p90_s, AT_MOST, 1.06)      \
	X("samples-and-books-eft", DESIGN, "eft", "eft+state=live", ttft_p90_s, AT_MOST, 1.06) \
	X("samples-and-books-contention", LIGHTER, "contention+migrate=off",                   \
	  "contention+migrate=off+state=live", ttft_p90_s, AT_MOST, 1.06)                      \
	X("queued-prefill-only", DESIGN, "contention+migrate=off+state=live+prefill_seen=0",   \
	  "contention+migrate=off+state=live", ttft_p90_s, AT_LEAST, 1.15)                     \
	X("pull-10-gb-s", DESIGN, "eft-priced+pull", "eft-priced", ttft_p90_s, AT_MOST, 0.90)  \
	X("slow-engine-calibrated", LIGHTER, "eft+slow=2.5+measured=0",                        \
	  "eft+slow=2.5+measured=0+calibration_max=1", ttft_mean_s, AT_MOST, 1.00)             \
	X("slow-engine-calibrated-and-measured", LIGHTER, "eft+slow=2.5",                      \
	  "eft+slow=2.5+calibration_max=1", ttft_mean_s, AT_MOST, 1.06)                        \
	X("healthy-engines-calibrated", DESIGN, "eft", "eft+calibration_max=1", tpot_p90_s,    \
	  AT_MOST, 1.06)                                                                       \
	X("staged-all", DESIGN, "eft-staged", "eft", ttft_p90_s, AT_MOST, 0.92)                \
	X("staged-heavy-t2", DESIGN, "eft-staged", "eft", heavy_t2_mean_s, AT_MOST, 0.55)      \
	X("staged-heavy-t1", DESIGN, "eft-staged", "eft", heavy_t1_p90_s, AT_MOST, 1.10)       \
	X("staged-medium", DESIGN, "eft-staged", "eft", medium_p90_s, AT_MOST, 1.06)           \
	X("staged-e2e", DESIGN, "eft-staged", "eft", e2e_mean_s, AT_MOST, 1.06)                \
	X("staged-sessions", SESSIONS, "eft-staged", "eft", ttft_p90_s, AT_MOST, 0.88)

/* How it is played: where nothing is said, 850 requests of the mix, 1,000 of the sessions. */
struct replay_targets_play {
	const struct replay_arm *base; /* what holds for all arms */
	uint64_t seed;
	size_t seeds, requests; /* 0 requests = as above */
	const char *sessions;   /* the trace */
	const char *json;       /* file, "-" = stdout, NULL = none */
	/* Called before each play. */
	void (*progress)(size_t done, size_t of, const char *arm);
};

/* Plays, prints what is met and what is not. An exit code: EXIT_RUNTIME if a target is missed. */
int replay_targets(const struct replay_targets_play *play);

#endif
