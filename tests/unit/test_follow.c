/* Claims about replay beside a live run: what is read, what is carried out, what is told apart. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/follow.h"

#define HEAD                                                                             \
	"{\"format\":\"turnward-live-trace\",\"version\":1,\"speed\":8,\"model\":\"m\"," \
	"\"block_tokens\":16}\n"

static struct follow f;
static struct replay_run run;
static struct replay_arm arm;
static struct follow_verdict *verdict;
static char path[64], why[FOLLOW_WHY_MAX];

static int setup(void **state)
{
	(void)state;
	replay_arm_init(&arm);
	assert_int_equal(replay_arm_set(&arm, "policy", "eft", why), 0);
	assert_int_equal(replay_arm_set(&arm, "engines", "2", why), 0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	follow_free(&f);
	replay_run_free(&run);
	free(verdict);
	verdict = NULL;
	if (path[0])
		unlink(path);
	path[0] = 0;
	return 0;
}

static int reads(const char *text)
{
	snprintf(path, sizeof(path), "follow-XXXXXX");
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
	return follow_read(&f, path, why);
}

/* One request: 5,000 to 8,000 tokens are blocks 0 to 312 and more; the last is not full. */
#define REQUEST(id, session, at, engine, turn, prompt, output, blocks, content)              \
	"{\"id\":\"" id "\",\"session\":" session ",\"at_s\":" at ",\"first_s\":" at         \
	",\"end_s\":90,\"engine\":\"" engine "\",\"failed\":false,\"prompt_tokens\":" prompt \
	",\"counted_tokens\":" prompt ",\"cached_tokens\":0,\"output_tokens\":" output       \
	",\"max_tokens\":64,\"blocks\":" blocks ",\"turn\":" turn                            \
	",\"content_bytes\":25000,\"content\":" content "}\n"

/* A session of two turns and another's, in the order of their ends. */
#define SECOND REQUEST("b", "4", "20", "gpu1", "2", "8100", "20", "[[0,313],[400,593]]", "[[0,60]]")
#define FIRST  REQUEST("a", "4", "0", "gpu1", "1", "5000", "24", "[[0,313]]", "[[0,47]]")
#define OTHER  REQUEST("c", "7", "0.1", "gpu0", "1", "8000", "9", "[[600,1100]]", "[[90,140]]")

static void a_trace_becomes_the_prompts_that_were_asked(void **state)
{
	uint32_t first[5000], second[8100], answer[24];

	(void)state;
	assert_int_equal(reads(HEAD SECOND FIRST OTHER), 0);
	assert_int_equal(f.workload.turns, 3);
	assert_int_equal(f.workload.sessions, 2);
	assert_int_equal(f.engines, 2);
	assert_string_equal(f.name[0], "gpu0");
	assert_string_equal(f.turn[0].id, "a"); /* in order of arrival */
	assert_string_equal(f.turn[1].id, "c");
	assert_string_equal(f.turn[2].id, "b");
	assert_int_equal(f.turn[0].engine, 1);
	assert_int_equal(f.turn[1].engine, 0);
	workload_prompt(&f.workload, &f.workload.turn[0], first);
	workload_prompt(&f.workload, &f.workload.turn[2], second);
	workload_ids(&f.workload.turn[0].answer, answer);
	assert_memory_equal(first, second, sizeof(first));
	assert_memory_equal(answer, second + 5000, sizeof(answer)); /* the history has it */
	assert_int_equal(f.workload.turn[2].ideal_hit_tokens, 5024 - 5024 % 16);
	assert_int_equal(f.workload.turn[1].ideal_hit_tokens, 0);
	assert_int_equal(f.turn[2].chain_nr, 61);
	assert_memory_equal(f.chain + f.turn[0].chain, f.chain + f.turn[2].chain,
			    48 * sizeof(*f.chain));
}

static void the_live_choice_is_carried_out_whatever_would_be_better(void **state)
{
	(void)state;
	/* All on one engine, the other idle: only the first was a draw. */
	assert_int_equal(reads(HEAD FIRST REQUEST("c", "7", "0.1", "gpu1", "1", "8000", "9",
						  "[[600,1100]]", "[[90,140]]")
				       REQUEST("d", "8", "0.2", "gpu1", "1", "8000", "9",
					       "[[1600,2100]]", "[[190,240]]")),
			 0);
	assert_int_equal(f.engines, 1); /* nobody was sent to the other */
	f.turn[0].engine = f.turn[1].engine = f.turn[2].engine = 1;
	assert_int_equal(follow_play(&verdict, &run, &arm, &f, 1), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(run.request[i].engine, 1);
	assert_int_equal(verdict[1].engine, 0);
	assert_int_equal(verdict[2].engine, 0);
	assert_true(verdict[1].gap > FOLLOW_CLEAR && verdict[1].regret > FOLLOW_CLEAR);
	assert_int_equal(verdict[1].cause, FOLLOW_UNKNOWN); /* without a recording */
	struct follow_summary s;
	assert_int_equal(follow_summarize(&s, &f, verdict, &run), 0);
	assert_int_equal(s.all.decisions, 3);
	assert_int_equal(s.clear.decisions, 2);
	assert_int_equal(s.clear.agree, 0);
	assert_int_equal(s.clear.cause[FOLLOW_UNKNOWN], 2);
	assert_true(follow_share(&s.clear) == 0);
}

/* What the router saw is written down as the laboratory sees it, but for one input. */
static void recorded_as_played(size_t i, struct policy_engine engines[2])
{
	memset(engines, 0, 2 * sizeof(*engines));
	for (uint32_t k = 0; k < 2; k++)
		engines[k] = (struct policy_engine){ .id = k,
						     .flags = POLICY_SERVES | POLICY_ALIVE,
						     .weight = 1 };
	f.turn[i].recorded = 1;
	f.turn[i].engines = engines;
	f.turn[i].request = (struct policy_request){ .home = -1,
						     .prompt_tokens = 8000,
						     .output_tokens = 64,
						     .sequences = 1,
						     .turn = 1,
						     .since_move_s = -1,
						     .flags = POLICY_STREAMED };
}

static void a_difference_is_put_down_to_the_input_that_makes_it(void **state)
{
	struct policy_engine engines[2];

	(void)state;
	assert_int_equal(reads(HEAD FIRST REQUEST("c", "7", "0.1", "gpu1", "1", "8000", "9",
						  "[[600,1100]]", "[[90,140]]")),
			 0);
	f.turn[0].engine = f.turn[1].engine = 1;
	recorded_as_played(1, engines);
	engines[0].decoding = 40; /* the router saw the idle one busy */
	engines[0].decode_context_tokens = 1e6;
	engines[0].num_requests = 40;
	assert_int_equal(replay_arm_set(&arm, "policy", "contention", why), 0);
	assert_int_equal(follow_play(&verdict, &run, &arm, &f, 1), 0);
	assert_int_equal(verdict[1].engine, 0);
	assert_int_equal(verdict[1].cause, FOLLOW_REQUESTS);
	assert_int_equal(verdict[1].alone, 1u << FOLLOW_REQUESTS);
	assert_true(verdict[1].beside[FOLLOW_BESIDE_requests][0] == 1);
	assert_true(verdict[1].beside[FOLLOW_BESIDE_requests][1] == 0);
}

static void a_difference_that_no_input_explains_is_the_rules(void **state)
{
	struct policy_engine engines[2];

	(void)state;
	assert_int_equal(reads(HEAD FIRST REQUEST("c", "7", "0.1", "gpu1", "1", "8000", "9",
						  "[[600,1100]]", "[[90,140]]")),
			 0);
	f.turn[0].engine = f.turn[1].engine = 1;
	recorded_as_played(1, engines);
	engines[1].num_requests = 9; /* all that was seen speaks against it */
	engines[1].pending_prefill_tokens = 1e5;
	assert_int_equal(follow_play(&verdict, &run, &arm, &f, 1), 0);
	assert_int_equal(verdict[1].cause, FOLLOW_RULE);
	assert_int_equal(verdict[1].alone, 0);
}

static void requests_that_failed_are_left_out(void **state)
{
	(void)state;
	assert_int_equal(reads(HEAD
			       "{\"id\":\"x\",\"session\":1,\"at_s\":3,\"first_s\":-1,\"end_s\":4,"
			       "\"engine\":\"\",\"failed\":true}\n" FIRST),
			 0);
	assert_int_equal(f.workload.turns, 1);
	assert_int_equal(f.left_out, 1);
}

static void refused(const char *text, const char *what)
{
	assert_true(reads(text) < 0);
	if (!strstr(why, what))
		fail_msg("'%s' does not say '%s'", why, what);
	teardown(NULL);
}

static void what_is_wrong_with_a_trace_is_named_by_its_line(void **state)
{
	(void)state;
	refused("", "no request");
	refused("{\"id\":1}\n", "line 1: not the trace of a live run");
	refused("{\"format\":\"turnward-live-trace\",\"version\":2}\n", "another version");
	refused(HEAD, "no request");
	refused(HEAD "\n[]\n", "line 3: not a JSON object");
	refused(HEAD FIRST "{\"id\":\"x\",\"failed\":false,\"engine\":\"e\",\"at_s\":-1}\n",
		"line 3: \"at_s\" must be");
	refused(HEAD REQUEST("a", "4", "0", "gpu1", "1", "5000", "24", "[[0,3]]", "[]"),
		"line 2: \"blocks\" are 64 tokens, the prompt has 5000");
	refused(HEAD REQUEST("a", "4", "0", "gpu1", "1", "5000", "24", "[[3,0]]", "[]"),
		"\"blocks\" must be a list of [first, last]");
	refused(HEAD REQUEST("a", "4", "0", "gpu1", "0", "5000", "24", "[[0,313]]", "[]"),
		"\"turn\" must be");
	refused(HEAD REQUEST("a", "4", "0", "gpu1", "1", "5000", "24", "[[0,313]]", "7"),
		"\"content\" must be");
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		CLAIM(a_trace_becomes_the_prompts_that_were_asked),
		CLAIM(the_live_choice_is_carried_out_whatever_would_be_better),
		CLAIM(a_difference_is_put_down_to_the_input_that_makes_it),
		CLAIM(a_difference_that_no_input_explains_is_the_rules),
		CLAIM(requests_that_failed_are_left_out),
		CLAIM(what_is_wrong_with_a_trace_is_named_by_its_line),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
