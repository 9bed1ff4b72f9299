#!/usr/bin/env python3
"""Cases of bench/tools: real load tools through the router count what router and engines count.

A tool that is not installed (bench/tools/setup) is skipped by name; what bench/tools/run itself
promises is tried with a played one.
"""
import json
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import *  # noqa: E402,F403

RUN = os.path.join(ROOT, "bench/tools/run")
REQUESTS = 10

# Asks as aiperf does and reports in its form. PLAYED: what it does beside.
PLAYED_TOOL = r'''
import http.client, json, os, sys, time
def option(name):
    return sys.argv[sys.argv.index(name) + 1]
if os.environ.get("PLAYED") == "sleep":
    print("asleep", flush=True)
    time.sleep(100)
host, records = option("--url").split("//")[1], []
for number in range(int(option("--request-count"))):
    link, leaves = http.client.HTTPConnection(host), os.environ.get("PLAYED") == f"leave {number}"
    begun = time.time_ns()
    link.request("POST", "/v1/chat/completions", json.dumps({
        "model": option("--model"), "stream": True, "stream_options": {"include_usage": True},
        "max_tokens": 50, "messages": [{"role": "user", "content": f"number {number}"}]}),
        {"Content-Type": "application/json", "X-Request-ID": f"played-{number}"})
    answer, first = link.getresponse(), None
    for line in answer:
        if first is None and b'"content":" w' in line.replace(b": ", b":"):
            first = time.time_ns()
            if leaves:
                break
    link.close()
    took = {"time_to_first_token": first - begun, "request_latency": time.time_ns() - begun}
    records.append({"metadata": {"x_request_id": f"played-{number}", "request_start_ns": begun,
                                 "was_cancelled": leaves},
                    "metrics": {k: {"value": v / 1e6, "unit": "ms"} for k, v in took.items()},
                    "error": {"code": 500} if os.environ.get("PLAYED") == "fail" else None})
if os.environ.get("PLAYED") == "lie":
    records.append(dict(records[0], metadata=dict(records[0]["metadata"], x_request_id="made-up")))
folder = option("--artifact-dir")
with open(folder + "/profile_export.jsonl", "w") as file:
    file.writelines(json.dumps(r) + "\n" for r in records)
with open(folder + "/profile_export_aiperf.json", "w") as file:
    json.dump({}, file)
'''


def played(t):
    """A place where bench/tools/run finds the played tool as aiperf."""
    place = t.path("aiperf")
    os.makedirs(f"{place}/bin")
    for name, text in (("python", "#!/bin/sh\nexit 0\n"),
                       ("aiperf", f"#!{sys.executable}\n{PLAYED_TOOL}")):
        with open(f"{place}/bin/{name}", "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(f"{place}/bin/{name}", 0o755)
    return place


def run(t, tool, *options, env=None, seconds=250):
    """bench/tools/run: its exit status and, if it wrote any, its figures."""
    process = t.start(RUN, tool, "--build", BUILD, "--json", "-", *options, env=env)
    left = signal.alarm(0)  # a tool's imports take a minute on a busy machine
    code = process.wait(seconds)
    signal.alarm(left)
    if code == 77:
        raise Skip(f"{tool} is not installed: bench/tools/setup {tool}")
    equal(process.family(), [], "processes left behind")
    text = "\n".join(process.out)
    return code, json.loads(text) if text.startswith("{") else {}


def all_agree(told, tool, streamed=True):
    counts = told["counts"]
    for who in (tool, "router", "engines") + (("in the router's histogram",) if streamed else ()):
        equal(counts[who], REQUESTS, f"requests by {who}")
    if told["probe"] == "attached":
        equal(counts["probe"], REQUESTS, "requests by the probe")
    equal(told["errors"], 0, "errors")
    arms = {arm["name"]: arm for arm in told["arms"]}
    for name in (tool, "router"):
        for time in ("e2e_s",) + (("ttft_s",) if streamed else ()):
            check(arms[name][time]["p50"] > 0, f"{name}: {time}")
    # Before the router saw it a request was the tool's, and after its end the answer is: by one
    # clock's rounding at most does the tool see less of it.
    check(told["added"]["e2e_s"]["mean"] > -0.001, f"the tool saw less: {told['added']}")


@case
def a_tool_and_what_it_is_compared_with_count_the_same(t):
    code, told = run(t, "aiperf", "--place", played(t), "--requests", REQUESTS)
    equal(code, 0, "exit status")
    equal(told["counts"]["paired by"], "id")
    equal(told["counts"]["aiperf"], REQUESTS)
    equal(told["counts"]["engines"], REQUESTS)
    check(0 < told["added"]["ttft_s"]["p50"] < 10, f"TTFT of tool less router: {told['added']}")


@case
def a_request_that_the_router_never_saw_is_a_difference(t):
    code, told = run(t, "aiperf", "--place", played(t), "--requests", REQUESTS,
                     env={"PLAYED": "lie"})
    equal((code, told["agree"]), (1, False))
    equal((told["counts"]["aiperf"], told["counts"]["router"]), (REQUESTS + 1, REQUESTS))


@case
def a_request_that_the_tool_cancels_is_seen_to_leave(t):
    code, told = run(t, "aiperf", "--place", played(t), "--requests", REQUESTS,
                     env={"PLAYED": "leave 3"})
    counts = told["counts"]
    equal([counts[n] for n in ("aiperf", "router", "engines", "cancelled by the tool",
                               "seen to leave", "in the router's histogram")],
          [REQUESTS - 1] * 3 + [1, 1, REQUESTS - 1])
    equal((code, told["errors"]), (0, 0))


@case
def an_error_of_the_tool_fails_the_run(t):
    code, told = run(t, "aiperf", "--place", played(t), "--requests", REQUESTS,
                     env={"PLAYED": "fail"})
    equal((code, told["errors"]), (1, REQUESTS))


@case
def an_interrupted_run_leaves_nothing_behind(t):
    before = set(os.listdir("/dev/shm"))
    process = t.start(RUN, "aiperf", "--build", BUILD, "--place", played(t), "--engines", 3,
                      env={"PLAYED": "sleep"})
    process.wait_line("tools: ", 30)
    eventually(lambda: len(process.family()) >= 7, 20, "engines, agents, router, tool")
    process.send_signal(signal.SIGINT)
    equal(process.wait(20), 130, "exit status")
    equal(process.family(), [], "processes left behind")
    left = {n for n in os.listdir("/dev/shm") if n.startswith("turnward-demo-")} - before
    equal(left, set(), "folders left behind")


@case
def a_tool_that_is_not_there_is_named_with_the_way_to_get_it(t):
    done = t.run(RUN, "guidellm", "--place", t.path("nowhere"), code=77)
    contains(done.err, "bench/tools/setup guidellm")


@case
def the_list_of_models_has_what_a_tool_without_a_model_reads(t):
    router = t.router(t.engine(models=("first", "second")))
    def listed():
        return ask(router.address, "GET", "/v1/models").json()["data"]
    eventually(listed, 5, "the engine's models are known")
    # guidellm takes the first id; vLLM's tool the first id and its root.
    equal([(m["id"], m["root"]) for m in listed()], [("first", "first"), ("second", "second")])


@case
def aiperf_streams_chat_and_all_count_the_same(t):
    code, told = run(t, "aiperf", "--requests", REQUESTS)
    all_agree(told, "aiperf")
    equal((code, told["counts"]["paired by"]), (0, "id"))


@slow
def guidellm_asks_for_completions_without_streams_and_all_count_the_same(t):
    code, told = run(t, "guidellm", "--requests", REQUESTS, "--api", "completions", "--no-stream")
    all_agree(told, "guidellm", streamed=False)
    equal(code, 0)


@slow
def vllm_bench_streams_chat_and_all_count_the_same(t):
    code, told = run(t, "vllm", "--requests", REQUESTS)
    all_agree(told, "vllm")
    equal((code, told["counts"]["paired by"]), (0, "id"))


main()
