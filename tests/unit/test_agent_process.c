/* The agent as users run it: a process beside an engine that dies, dawdles and talks nonsense. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/base/exit.h"
#include "shm/base/scoped.h"
#include "shm/files.h"
#include "tests/lib/unit.h"

enum { PATIENCE_S = 20, OUTPUT_MAX = 8192 };

enum manner { GOOD, SLOW, HALF, GARBAGE, SILENT, LOCKED };

/* Shared with the engine's process, which the test may kill and replace. */
static struct fake {
	_Atomic int manner;
	_Atomic unsigned started; /* start id of the next life */
	_Atomic unsigned running;
	_Atomic unsigned tokens;
} * fake;

static int listener = -1;
static uint16_t port;
static pid_t engine_pid, agent_pid;
static int agent_stderr = -1;
static char region_path[64], socket_path[96];
static struct region region;
static struct engine_file file;

/* ---- the engine ---- */

static void send_text(int fd, const char *text, size_t len)
{
	while (len > 0) {
		ssize_t n = send(fd, text, len, MSG_NOSIGNAL);

		if (n <= 0)
			return;
		text += n;
		len -= (size_t)n;
	}
}

static void answer_page(int fd, const char *status, const char *body)
{
	char text[4096];
	int len = snprintf(text, sizeof(text), "HTTP/1.1 %s\r\nContent-Length: %zu\r\n\r\n%s",
			   status, strlen(body), body);

	if (atomic_load(&fake->manner) == HALF)
		len -= 20;
	send_text(fd, text, (size_t)len);
}

static void answer(int fd, const char *request)
{
	char body[1024] = "";

	if (atomic_load(&fake->manner) == LOCKED && !strstr(request, "Bearer sk-right\r\n")) {
		answer_page(fd, "401 Unauthorized", "{}");
		return;
	}
	if (strncmp(request, "GET /v1/models ", 15) == 0)
		snprintf(body, sizeof(body), "{\"data\":[{\"id\":\"m\",\"owned_by\":\"vllm\"}]}");
	else if (strncmp(request, "GET /metrics ", 13) == 0)
		snprintf(body, sizeof(body),
			 "vllm:num_requests_running{engine=\"0\"} %u.0\n"
			 "vllm:num_requests_waiting{engine=\"0\"} 1.0\n"
			 "vllm:generation_tokens_total{engine=\"0\"} %u.0\n"
			 "vllm:prompt_tokens_created{engine=\"0\"} %u.0\n",
			 atomic_load(&fake->running), atomic_fetch_add(&fake->tokens, 1),
			 atomic_load(&fake->started));
	if (body[0])
		answer_page(fd, "200 OK", body);
	else
		answer_page(fd, "404 Not Found", "{\"detail\":\"Not Found\"}");
}

static void *converse(void *arg)
{
	int fd = (int)(intptr_t)arg;
	char request[2048];
	ssize_t n;

	while ((n = recv(fd, request, sizeof(request) - 1, 0)) > 0) {
		request[n] = 0; /* the agent's requests come in one piece */
		switch (atomic_load(&fake->manner)) {
		case SILENT:
			continue;
		case SLOW:
			usleep(80 * 1000);
			break;
		case GARBAGE:
			send_text(fd, "\x16\x03\x01 nonsense\r\n\r\n", 17);
			n = 0;
			break;
		}
		if (n == 0)
			break;
		answer(fd, request);
		if (atomic_load(&fake->manner) == HALF)
			break;
	}
	close(fd);
	return NULL;
}

static void engine_run(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		pthread_t thread;
		int fd = accept(listener, NULL, NULL);

		if (fd >= 0 && pthread_create(&thread, NULL, converse, (void *)(intptr_t)fd) == 0)
			pthread_detach(thread);
	}
}

/* The port refuses while no engine lives: nobody but it listens. */
static void engine_start(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_port = htons(port),
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(address);
	int one = 1;

	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	assert_int_equal(bind(listener, (struct sockaddr *)&address, len), 0);
	assert_int_equal(listen(listener, 16), 0);
	getsockname(listener, (struct sockaddr *)&address, &len);
	port = ntohs(address.sin_port);
	engine_pid = fork();
	if (engine_pid == 0)
		engine_run();
	close(listener);
}

static void engine_kill(void)
{
	if (engine_pid > 0) {
		kill(engine_pid, SIGKILL);
		waitpid(engine_pid, NULL, 0);
	}
	engine_pid = 0;
}

/* ---- the agent ---- */

static pid_t spawn(const char *const *extra, int *ret_output)
{
	char path[512], url[128];
	const char *argv[24] = { path, "--engine", url, "--region", region_path, "--period", "20" };
	int n = 7, pipes[2];

	snprintf(path, sizeof(path), "%s/agent/turnward-agent", getenv("TEST_BUILD_ROOT"));
	if (socket_path[0])
		snprintf(url, sizeof(url), "e=unix:%s", socket_path);
	else
		snprintf(url, sizeof(url), "e=http://127.0.0.1:%u", port);
	while (extra && *extra)
		argv[n++] = *extra++;
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	pid_t pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(pipes[1], 2);
		dup2(pipes[1], 1);
		execv(path, (char *const *)(uintptr_t)argv);
		_exit(127);
	}
	close(pipes[1]);
	*ret_output = pipes[0];
	return pid;
}

static void agent_start(const char *const *extra)
{
	agent_pid = spawn(extra, &agent_stderr);
}

/* Ends the agent; its exit status, or 128 + signal. */
static int agent_end(int signal_number)
{
	int status = 0;

	if (agent_pid <= 0)
		return -1;
	kill(agent_pid, signal_number);
	waitpid(agent_pid, &status, 0);
	agent_pid = 0;
	close(agent_stderr);
	agent_stderr = -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Runs the agent to its end and keeps what it printed. */
static int agent_run(const char *const *extra, char output[OUTPUT_MAX])
{
	int fd, status;
	size_t len = 0;
	pid_t pid = spawn(extra, &fd);
	ssize_t n;

	while ((n = read(fd, output + len, OUTPUT_MAX - 1 - len)) > 0)
		len += (size_t)n;
	output[len] = 0;
	close(fd);
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- what the region shows ---- */

static struct engine_state seen;

static int look(void)
{
	char error[REGION_ERROR_MAX];

	if (region.dir_fd >= 0 && region_moved(&region)) {
		engine_file_drop(&file);
		region_close(&region);
		region.dir_fd = -1;
	}
	if (region.dir_fd < 0) {
		file.file.fd = -1;
		if (region_open(&region, region_path, 0, error) < 0) {
			region.dir_fd = -1;
			return -ENOENT;
		}
	}
	if (file.file.fd >= 0 && region_file_moved(&region, &file.file))
		engine_file_drop(&file);
	if (file.file.fd < 0 && engine_file_attach(&file, &region, "e", error) < 0) {
		file.file.fd = -1;
		return -ENOENT;
	}
	return engine_file_read(&file, &seen, NULL);
}

/* Looks until the condition holds of `seen`; no test depends on how long that takes. */
#define UNTIL(condition)                                                          \
	do {                                                                      \
		uint64_t limit_ns = clock_ns() + PATIENCE_S * (uint64_t)NS_PER_S; \
		while (look() < 0 || !(condition)) {                              \
			if (clock_ns() > limit_ns)                                \
				fail_msg("never: %s", #condition);                \
			usleep(3000);                                             \
		}                                                                 \
	} while (0)

static int set_up(void **state)
{
	static unsigned number;

	snprintf(region_path, sizeof(region_path), "/dev/shm/turnward-test-%d-%u", getpid(),
		 number++);
	socket_path[0] = 0;
	port = 0;
	region.dir_fd = -1;
	file.file.fd = -1;
	*fake = (struct fake){ .started = 100, .running = 2 };
	engine_start();
	return 0;
}

static void remove_region(void)
{
	char path[160];

	snprintf(path, sizeof(path), "%s/engine.e", region_path);
	unlink(path);
	rmdir(region_path);
}

static int tear_down(void **state)
{
	agent_end(SIGKILL);
	engine_kill();
	if (file.file.fd >= 0)
		engine_file_drop(&file);
	if (region.dir_fd >= 0)
		region_close(&region);
	remove_region();
	if (socket_path[0])
		unlink(socket_path);
	return 0;
}

static void an_engines_state_and_models_appear_in_the_region(void **state)
{
	struct engine_info info;

	agent_start(NULL);
	UNTIL(seen.health == ENGINE_HEALTH_UP);

	assert_int_equal(seen.kind, ENGINE_KIND_VLLM);
	assert_int_equal(seen.running, 2);
	assert_int_equal(seen.waiting, 1);
	assert_int_equal(seen.period_ns, 20ull * NS_PER_MS);
	assert_false(ENGINE_HAS(&seen, kv_used_tokens));
	assert_int_equal(engine_file_read_info(&file, &info, NULL), 0);
	assert_string_equal(info.name, "e");
	assert_int_equal(info.models_nr, 1);
	assert_string_equal(info.models[0], "m");
	assert_true(region_file_alive(&file.file));
}

static void a_restarted_engine_gets_another_epoch(void **state)
{
	agent_start(NULL);
	UNTIL(seen.health == ENGINE_HEALTH_UP);
	uint64_t epoch = seen.epoch;

	engine_kill();
	UNTIL(seen.health == ENGINE_HEALTH_DOWN);
	assert_int_equal(seen.epoch, epoch);
	atomic_store(&fake->started, 200);
	engine_start();
	UNTIL(seen.health == ENGINE_HEALTH_UP);

	assert_true(seen.epoch != epoch);
}

static void an_agent_before_its_engine_waits_for_it(void **state)
{
	engine_kill();
	agent_start(NULL);
	UNTIL(seen.health == ENGINE_HEALTH_DOWN && seen.failures > 3);
	assert_int_equal(seen.read_ns, 0);

	engine_start();
	UNTIL(seen.health == ENGINE_HEALTH_UP && seen.running == 2);
}

static void half_answers_and_garbage_are_failures_never_states(void **state)
{
	agent_start(NULL);
	UNTIL(seen.health == ENGINE_HEALTH_UP);

	atomic_store(&fake->running, 77);
	atomic_store(&fake->manner, HALF);
	UNTIL(seen.health == ENGINE_HEALTH_DOWN);
	uint64_t failures = seen.failures;
	atomic_store(&fake->manner, GARBAGE);
	UNTIL(seen.failures > failures + 3);
	assert_int_equal(seen.health, ENGINE_HEALTH_DOWN);
	atomic_store(&fake->manner, GOOD);
	UNTIL(seen.health == ENGINE_HEALTH_UP);
	assert_int_equal(seen.running, 77);
}

static void a_slow_engine_is_asked_less_often_and_that_is_published(void **state)
{
	agent_start(NULL);
	UNTIL(seen.health == ENGINE_HEALTH_UP);
	atomic_store(&fake->manner, SLOW);
	UNTIL(seen.period_ns >= 160ull * NS_PER_MS);
	assert_int_equal(seen.health, ENGINE_HEALTH_UP);
	atomic_store(&fake->manner, GOOD);
	UNTIL(seen.period_ns == 20ull * NS_PER_MS);
}

static void a_silent_engine_ages_and_ends_up_stalled(void **state)
{
	static const char *const extra[] = { "--stall", "300ms", NULL };

	agent_start(extra);
	UNTIL(seen.health == ENGINE_HEALTH_UP);
	atomic_store(&fake->manner, SILENT);
	UNTIL(seen.health == ENGINE_HEALTH_STALLED);
	assert_true(clock_ns() - seen.read_ns > 300ull * NS_PER_MS);
	atomic_store(&fake->manner, GOOD);
	UNTIL(seen.health == ENGINE_HEALTH_UP);
}

static void a_second_agent_for_one_engine_leaves_naming_file_and_pid(void **state)
{
	char output[OUTPUT_MAX], pid[32], path[128];

	agent_start(NULL);
	UNTIL(seen.health == ENGINE_HEALTH_UP);
	snprintf(pid, sizeof(pid), "%d", agent_pid);
	snprintf(path, sizeof(path), "%s/engine.e", region_path);

	assert_int_equal(agent_run(NULL, output), EXIT_REGION);
	assert_non_null(strstr(output, pid));
	assert_non_null(strstr(output, path));
}

static void a_region_that_is_removed_is_made_again(void **state)
{
	agent_start(NULL);
	UNTIL(seen.health == ENGINE_HEALTH_UP);
	uint64_t inode = file.file.ino;

	remove_region();
	UNTIL(file.file.ino != inode && seen.health == ENGINE_HEALTH_UP);
}

static void a_file_that_is_removed_is_made_again(void **state)
{
	char path[128];

	agent_start(NULL);
	UNTIL(seen.health == ENGINE_HEALTH_UP);
	uint64_t inode = file.file.ino;

	snprintf(path, sizeof(path), "%s/engine.e", region_path);
	unlink(path);
	UNTIL(file.file.ino != inode && seen.health == ENGINE_HEALTH_UP);
}

static void sigterm_ends_it_cleanly_also_while_it_waits_for_an_answer(void **state)
{
	agent_start(NULL);
	UNTIL(seen.health == ENGINE_HEALTH_UP);
	assert_int_equal(agent_end(SIGTERM), EXIT_GOOD);
	assert_false(region_file_alive(&file.file));

	atomic_store(&fake->manner, SILENT);
	agent_start(NULL);
	UNTIL(region_file_alive(&file.file));
	assert_int_equal(agent_end(SIGTERM), EXIT_GOOD);
}

static void a_killed_agents_successor_keeps_the_engines_epoch(void **state)
{
	agent_start(NULL);
	UNTIL(seen.health == ENGINE_HEALTH_UP);
	uint64_t epoch = seen.epoch;

	agent_end(SIGKILL);
	assert_false(region_file_alive(&file.file));
	agent_start(NULL);
	uint64_t old_read_ns = seen.read_ns;
	UNTIL(seen.read_ns > old_read_ns && seen.health == ENGINE_HEALTH_UP);
	assert_int_equal(seen.epoch, epoch);
}

static void a_key_from_a_file_opens_a_locked_engine(void **state)
{
	char path[128], output[OUTPUT_MAX];
	const char *with_key[] = { "--once", "--key-file", path, NULL };
	static const char *const without_key[] = { "--once", NULL };

	snprintf(path, sizeof(path), "%s.key", region_path);
	int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	assert_int_equal(write(fd, "sk-right\n", 9), 9);
	close(fd);
	atomic_store(&fake->manner, LOCKED);

	assert_int_equal(agent_run(without_key, output), EXIT_GOOD);
	assert_null(strstr(output, "running"));
	assert_non_null(strstr(output, "--key-file"));
	assert_int_equal(agent_run(with_key, output), EXIT_GOOD);
	assert_non_null(strstr(output, "running"));
	assert_null(strstr(output, "sk-right"));
	unlink(path);
}

static void once_prints_json_and_touches_no_region(void **state)
{
	static const char *const extra[] = { "--once", "--json", NULL };
	char output[OUTPUT_MAX];

	assert_int_equal(agent_run(extra, output), EXIT_GOOD);
	assert_non_null(strstr(output, "\"running\":2"));
	assert_non_null(strstr(output, "\"kind\":\"vllm\""));
	assert_int_equal(access(region_path, F_OK), -1);
}

static void an_engine_on_a_unix_socket_is_read(void **state)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	engine_kill();
	snprintf(socket_path, sizeof(socket_path), "%s.sock", region_path);
	memcpy(address.sun_path, socket_path, strlen(socket_path) + 1);
	agent_start(NULL);
	UNTIL(seen.health == ENGINE_HEALTH_DOWN);
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(listener, 16), 0);
	engine_pid = fork();
	if (engine_pid == 0)
		engine_run();
	close(listener);
	UNTIL(seen.health == ENGINE_HEALTH_UP);
}

static void usage_errors_exit_2_and_name_what_was_meant(void **state)
{
	static const struct {
		const char *extra[4], *said;
	} cases[] = {
		{ { "--kind", "vlm" }, "vllm" },
		{ { "--period", "never" }, "--period" },
		{ { "--stall", "10" }, "--stall" },
		{ { "--gpu", "-1" }, "--gpu" },
		{ { "--engin", "x" }, "turnward-agent" },
		{ { "--json" }, "--once" },
		{ { "--engine", "b=http://127.0.0.1:1" }, "twice" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char output[OUTPUT_MAX];

		assert_int_equal(agent_run(cases[i].extra, output), EXIT_USAGE);
		if (!strstr(output, cases[i].said))
			fail_msg("%s: %s", cases[i].extra[0], output);
	}
}

static void an_absent_gpu_is_named_and_does_no_harm(void **state)
{
	static const char *const extra[] = { "--once", "--gpu", "1000", NULL };
	char output[OUTPUT_MAX];

	assert_int_equal(agent_run(extra, output), EXIT_GOOD);
	assert_non_null(strstr(output, "no GPU data"));
	assert_null(strstr(output, "gpu_memory_used"));
}

#define ALIVE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		ALIVE(an_engines_state_and_models_appear_in_the_region),
		ALIVE(a_restarted_engine_gets_another_epoch),
		ALIVE(an_agent_before_its_engine_waits_for_it),
		ALIVE(half_answers_and_garbage_are_failures_never_states),
		ALIVE(a_slow_engine_is_asked_less_often_and_that_is_published),
		ALIVE(a_silent_engine_ages_and_ends_up_stalled),
		ALIVE(a_second_agent_for_one_engine_leaves_naming_file_and_pid),
		ALIVE(a_region_that_is_removed_is_made_again),
		ALIVE(a_file_that_is_removed_is_made_again),
		ALIVE(sigterm_ends_it_cleanly_also_while_it_waits_for_an_answer),
		ALIVE(a_killed_agents_successor_keeps_the_engines_epoch),
		ALIVE(a_key_from_a_file_opens_a_locked_engine),
		ALIVE(once_prints_json_and_touches_no_region),
		ALIVE(an_engine_on_a_unix_socket_is_read),
		ALIVE(usage_errors_exit_2_and_name_what_was_meant),
		ALIVE(an_absent_gpu_is_named_and_does_no_harm),
	};

	fake = mmap(NULL, sizeof(*fake), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return cmocka_run_group_tests_name("agent_process", tests, NULL, NULL);
}
