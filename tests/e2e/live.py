#!/usr/bin/env python3
"""Cases of turnward-bench live and of the demo's parts: real engines' model, router and client."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import *  # noqa: E402,F403

SPEED = 40
TRACE = os.path.join(ROOT, "bench/traces/claude_code.jsonl")


def modelled(t, count=2, *args):
    """Modelled engines; their URLs."""
    ports = [t.port() for _ in range(count)]
    for port in ports:
        t.start("turnward-engine", "--ports", port, "--speed", SPEED, *args,
                ready=lambda port=port: answers(f"127.0.0.1:{port}"))
    return [f"http://127.0.0.1:{port}" for port in ports]


def live(t, address, *args, code=0, seconds=60):
    out = t.path("live.json")
    t.run("turnward-bench", "live", "--router", address, "--sessions", TRACE, "--speed", SPEED,
          "--json", out, *args, code=code, seconds=seconds)
    with open(out, encoding="utf-8") as file:
        return json.load(file)


def play(t, io):
    urls = modelled(t)
    router = t.router(*urls, args=("--io", io, "--set", f"time_scale={SPEED}"))
    figures = live(t, router.address, "--admin", router.admin, "--io", io, "--limit", 6, "--rate",
                   1, "--turns", 4, "--think-max", 10, "--lateness", urls[0], "--lateness", urls[1])
    arm = figures["arms"][0]
    equal(arm["errors"], 0, "errors")
    equal(arm["requests"], arm["planned"], "requests")
    check(arm["requests"] > 12, "too few requests for a test")
    check(arm["hit_ratio"] > 0.3, f"later turns find nothing cached: {arm['hit_ratio']}")
    check(arm["ttft_s"]["p50"] > 0 and arm["e2e_s"]["p50"] > arm["ttft_s"]["p50"], "times")
    check(arm["late_ratio"] is not None and arm["migrations"] is not None, "outside figures")


@case
def sessions_play_through_a_router_on_io_uring(t):
    play(t, "uring")


@case
def sessions_play_through_a_router_on_epoll(t):
    play(t, "epoll")


@case
def prompts_have_the_lengths_of_the_trace(t):
    """The engine's usage says so: the first turns of two sessions, to the token."""
    wanted = []
    with open(TRACE, encoding="utf-8") as file:
        for line in list(file)[:2]:
            wanted += [turn[1] for turn in json.loads(line)["r"][:1]]
    short = t.path("two.jsonl")
    with open(TRACE, encoding="utf-8") as file, open(short, "w", encoding="utf-8") as out:
        out.writelines(list(file)[:2])
    urls = modelled(t, 1)
    arm = live(t, urls[0][7:], "--sessions", short, "--turns", 1)["arms"][0]
    equal(arm["prompt_tokens"], sum(wanted), "prompt tokens")


@case
def equal_system_prompts_are_found_cached(t):
    """A second session with the same tools hits what the first one left, at turn 1."""
    with open(TRACE, encoding="utf-8") as file:
        sessions = [json.loads(line) for line in file]
    by_size = {}
    for s in sessions:
        by_size.setdefault((s["tool_tokens"], s["system_tokens"]), []).append(s)
    same = next(group for group in by_size.values() if len(group) >= 2)[:2]
    path = t.write("same.jsonl", "".join(json.dumps(s) + "\n" for s in same))
    urls = modelled(t, 1)
    arm = live(t, urls[0][7:], "--sessions", path, "--turns", 1, "--rate", 0.05)["arms"][0]
    system = same[0]["tool_tokens"] + same[0]["system_tokens"]
    share = system / sum(s["r"][0][1] for s in same)
    check(abs(arm["hit_ratio"] - share) < 0.01, f"hit {arm['hit_ratio']}, shared {share}")


@case
def a_refusing_engine_is_counted_by_kind(t):
    def script(wire, request):
        wire.send(response_bytes(503, {"error": {"message": "no"}}))
        return True
    engine = t.engine(script)
    arm = live(t, engine.address, "--limit", 2, "--turns", 1, code=1)["arms"][0]
    equal((arm["errors"], arm["errors_by_kind"]["refused"]), (2, 2), "errors")


@case
def a_cut_stream_is_counted_by_kind(t):
    def script(wire, request):
        wire.send(STREAM_HEAD + token("a"))
        return False
    engine = t.engine(script)
    arm = live(t, engine.address, "--limit", 1, "--turns", 1, code=1)["arms"][0]
    equal(arm["errors_by_kind"]["cut"], 1, "cut streams")


@case
def large_bodies_follow_each_other_on_one_connection(t):
    """What comes with, before or behind a body read in one piece belongs to the right request."""
    router = t.router(t.engine())
    wire = dial(router.address)
    for size in (1000, 60000, 100000, 200000, 17000, 60000, 300, 90000):
        body = {"messages": [{"role": "user", "content": "x" * size}], "model": "m"}
        wire.send(request_bytes("POST", "/v1/chat/completions", body))
        equal(wire.read_response().status, 200, f"status after {size} bytes")


@case
def a_stream_may_wait_for_its_first_token_longer_than_for_others(t):
    """An engine that sends its head at once computes the prompt after it."""
    def script(wire, request):
        wire.send(STREAM_HEAD)
        time.sleep(0.6)
        wire.send(token("a") + DONE)
        return True
    router = t.router(t.engine(script), args=("--set", "stream_idle_timeout=150ms"))
    body = {"messages": [{"role": "user", "content": "x"}], "model": "m", "stream": True}
    answer = ask(router.address, "POST", "/v1/chat/completions", body)
    check(answer.complete, "the stream was cut before its first token")


@case
def a_home_that_evicted_its_session_is_not_believed_to_hold_it(t):
    """Three sessions that an engine's cache cannot hold together: the first one's is gone."""
    url = modelled(t, 1, "--kv-tokens", 16000)[0]
    router = t.router(f"a={url}")
    t.start("turnward-agent", "--engine", f"a={url}", "--kind", "vllm", "--period", 50, "--region",
            t.region)
    eventually(lambda: b'turnward_agent_kv_capacity_tokens{engine="a"}' in
               ask(router.admin, "GET", "/metrics").body, text="the agent's record is there")

    def turn(name, *more):
        messages = [{"role": "user", "content": f" w{name * 3}" * 9000}, *more]
        body = {"messages": messages, "model": "Qwen3-8B", "max_tokens": 4}
        answer = ask(router.address, "POST", "/v1/chat/completions", body,
                     [("x-session-id", name)], seconds=30)
        equal(answer.status, 200, "status")
        return answer.json()
    first = turn("a")["choices"][0]["message"]
    again = turn("a", first, {"role": "user", "content": "and"})
    equal(again["usage"]["prompt_tokens_details"]["cached_tokens"] > 8000, True, "cached at once")
    for name in "bc":
        turn(name)
    turn("a", first, {"role": "user", "content": "then"})
    said = eventually(lambda: len(router.log("request", path="CHAT")) == 5 and
                      router.log("request", path="CHAT"))
    check(said[1]["hit"] > 0.9, f"home holds what it has just computed: {said[1]['hit']}")
    check(said[4]["hit"] < 0.2, f"home is believed to hold what it evicted: {said[4]['hit']}")


main()
