#!/usr/bin/env python3
"""Agents and router in front of real vLLM, SGLang and llama.cpp: `tests/run --real`.

vLLM and SGLang take minutes to start, so each is started once, when a case first asks for it, and
serves all of them. TEST_REAL_VLLM=URL and TEST_REAL_SGLANG=URL name running ones to use instead.
"""
import os
import re
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "real"))
from engines import *  # noqa: E402,F403
from engines import CLIENTS, PYTHON  # noqa: E402

# Small bounds, so that a test can fill a queue: requests running, requests waiting.
RUNNING, WAITING = 4, 6
OPTIONS = {
    "vllm": ("--max-num-seqs", RUNNING, "--max-num-queued-reqs", RUNNING + WAITING,
             "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    "sglang": ("--max-running-requests", RUNNING, "--max-queued-requests", WAITING,
               "--tool-call-parser", "qwen25", "--enable-response-store"),
}
ENVIRONMENT = {"VLLM_ENABLE_RESPONSES_API_STORE": "1"}
FLEET = Fleet(OPTIONS, ENVIRONMENT)
engine_of = FLEET.engine


def on_queueing_engines(function):
    on_each_engine(function, ("vllm", "sglang"))


def with_agent(t, kind):
    engine = engine_of(t, kind)
    agent(t, kind, engine.url)
    until(t, kind, lambda s: s["health"] == "up" and s["kind"] == kind and
          s["fields"].get("running") == 0, "up, and idle", 30)
    return engine


def running(t, kind):
    return seen(t, kind)["fields"].get("running")


def stream(address, tokens, text=PROSE):
    wire = dial(address, 100)
    wire.send(request_bytes("POST", CHAT, greedy(user(text), tokens=tokens, stream=True), JSON))
    return wire


# ---- agents ----

@real
def three_agents_tell_three_kinds_and_their_load(t):
    engines = {kind: with_agent(t, kind) for kind in KINDS}
    before = {kind: seen(t, kind) for kind in KINDS}
    for kind, told in before.items():
        equal((told["models"], told["fields"]["waiting"]), ([MODEL], 0), kind)
        check(told["version"] and int(told["epoch"], 16), f"{kind}: {told}")
    wires = [stream(e.address, 20000 if k == "llamacpp" else 400, f"{k} {n} {PROSE * 9}")
             for k, e in engines.items() for n in range(2)]
    for kind in KINDS:
        until(t, kind, lambda s: s["fields"]["running"] == 2, "two run", 60)
        until(t, kind, lambda s: s["fields"]["kv_used_tokens"] > 0, "KV is used", 30)
    for wire in wires:
        wire.close()
    for kind, engine in engines.items():
        rest = until(t, kind, lambda s: s["fields"]["running"] == 0, "idle again", 30)
        used = [usage(post(engine.address, CHAT, greedy(user(PROSE * 60), tokens=30), seconds=60))
                for _ in range(3)]
        cached = rest["fields"].get("cached_tokens_total", 0) + used[0]["prompt_tokens"]
        told = until(t, kind, lambda s: s["fields"]["running"] == 0 and s["fields"].get(
            "decode_iteration_s") and s["fields"].get("cached_tokens_total", 0) >= cached,
            "a measured step, and the tokens of its cache", 20)
        equal((told["epoch"], told["health"]), (before[kind]["epoch"], "up"), kind)
        print("#", kind, told["version"], told["fields"], flush=True)


# ---- what passes ----

def clients_pass(t, kind, io, *which):
    need("openai", "anthropic")
    engine = with_agent(t, kind)
    front = router(t, io, {kind: engine})
    but = "tool_call" if kind != "vllm" else ""  # only this one's grammar is installed
    done = t.run(PYTHON, CLIENTS, f"http://{front.address}", MODEL, "--clients", ",".join(which),
                 "--but", but, seconds=110)
    failed = [line for line in done.out.split("\n") if line.startswith("FAIL")]
    equal((done.code, failed), (0, []), done.out + done.err)
    settled(front)


@on_each_engine
def the_openai_client_finds_nothing_amiss(t, kind):
    clients_pass(t, kind, "uring", "openai")


@on_each_engine
def the_anthropic_client_finds_nothing_amiss(t, kind):
    clients_pass(t, kind, "epoll", "anthropic")


@real
def the_same_words_come_from_every_engine(t):
    words = {}
    for kind in KINDS:
        front = router(t, "auto", {kind: engine_of(t, kind)})
        for streamed in (False, True):
            answer = post(front.address, CHAT, greedy(
                user(PROSE), tokens=24, stream=streamed), seconds=60)
            check(answer.status == 200 and answer.complete, f"{kind}: {answer.start}")
            words[kind, streamed] = said(answer)
        settled(front)
    equal(len(set(words.values())), 1, f"texts {words}")


@on_each_engine
def the_routers_count_of_tokens_is_the_engines(t, kind):
    """For each of the four ways to ask, streamed and not; the outcome in the journal has both."""
    front = router(t, "auto", {kind: engine_of(t, kind)})
    ways = {
        CHAT: greedy(user(PROSE * 30)),
        "/v1/completions": {"model": MODEL, "prompt": PROSE * 30, "max_tokens": 8,
                            "temperature": 0},
        "/v1/messages": {"model": MODEL, "messages": [user(PROSE * 30)], "max_tokens": 8,
                         "temperature": 0},
        "/v1/responses": {"model": MODEL, "input": PROSE * 30, "max_output_tokens": 8,
                          "temperature": 0},
    }
    read = {}
    for path, body in ways.items():
        for streamed in (False, True):
            more = {"stream": streamed}
            if streamed and path in (CHAT, "/v1/completions"):
                more["stream_options"] = {"include_usage": True}
            answer = post(front.address, path, dict(body, **more), {"x-request-id": "u"},
                         seconds=60)
            check(answer.status == 200 and answer.complete, f"{path}: {answer.start}")
            line = front.wait_log("request", id=answer.get("x-request-id"))
            read.setdefault(line["in"], []).append((path, streamed))
            # SGLang's /v1/responses stops two tokens early.
            told = re.findall(rb'"(?:completion|output)_tokens": ?(\d+)', answer.body)
            equal((str(line["out"]), line["out"] > 5), (told[-1].decode(), True),
                  f"{path}, stream {streamed}: answer tokens")
    # A chat's template adds a few tokens to the bare prompt.
    check(len(read) == 2 and 0 < max(read) - min(read) < 20, f"prompt tokens: {read}")


# ---- who leaves, who is refused ----

@on_each_engine
def a_client_that_leaves_takes_its_request_out_of_the_engine(t, kind):
    engine = with_agent(t, kind)
    front = router(t, "auto", {kind: engine})
    wires = [stream(front.address, 20000 if kind == "llamacpp" else 3000) for _ in range(2)]
    for wire in wires:
        check(wire.read_head().status == 200 and wire.more(), "no stream")
    until(t, kind, lambda s: s["fields"]["running"] == 2, "two run", 30)
    for wire in wires:
        wire.close()
    until(t, kind, lambda s: s["fields"]["running"] == 0, "none runs", 30)
    equal(metric(front, "requests_aborted_total"), 2)
    settled(front)


@on_queueing_engines
def a_full_queue_is_told_to_the_client_or_tried_elsewhere(t, kind):
    engine, other = with_agent(t, kind), llamacpp(t)
    alone = router(t, "uring", {kind: engine})
    wires = [stream(engine.address, 3000, f"{i} {PROSE}") for i in range(RUNNING + WAITING)]
    try:
        until(t, kind, lambda s: (s["fields"]["running"], s["fields"]["waiting"]) ==
              (RUNNING, WAITING), "its queue is full", 60)
        told = post(alone.address, CHAT, greedy(user("x")), seconds=60)
        equal(told.status, 503, "not streamed")
        told = post(alone.address, CHAT, greedy(user("x"), stream=True), seconds=60)
        check(told.status == 503 or '"code":503' in told.body.decode().replace(" ", ""),
              f"streamed: {told.start} {told.body[:300]}")
        both = router(t, "epoll", {kind: engine, "other": other}, "policy=round-robin")
        for i in range(8):
            answer = post(both.address, CHAT, greedy(
                user("x"), stream=i // 2 % 2 == 1), seconds=60)
            check(answer.status == 200 and answer.complete and said(answer),
                  f"request {i}: {answer.start} {answer.body[:300]}")
            equal(answer.get("x-turnward-engine"), "other", f"request {i}")
    finally:
        for wire in wires:
            wire.close()
    until(t, kind, lambda s: s["fields"]["running"] == 0, "idle again", 60)
    settled(alone)
    settled(both)


@real
def one_request_id_twice_at_once_is_no_clash(t):
    """vLLM refuses or mixes up two live requests of one id."""
    front = router(t, "auto", {"vllm": engine_of(t, "vllm")})
    wires = [dial(front.address, 60) for _ in range(4)]
    for number, wire in enumerate(wires):
        wire.send(request_bytes("POST", CHAT, greedy(
            user(f"{number} {PROSE}"), tokens=3000, stream=True), {**JSON, "x-request-id": "same"}))
    heads = [wire.read_head() for wire in wires]  # all of them live
    equal({head.status for head in heads}, {200})
    equal(len({head.get("x-request-id") for head in heads}), 4, "ids")
    for wire in wires:
        wire.close()
    settled(front)


@real
def a_model_that_no_engine_lists_is_refused_by_name(t):
    front = router(t, "auto", {kind: engine_of(t, kind) for kind in KINDS})
    answer = post(front.address, CHAT, dict(greedy(user("x")), model="other"), seconds=30)
    equal((answer.status, answer.json()["error"]["code"]), (404, "model_not_found"))
    models = ask(front.address, "GET", "/v1/models").json()["data"]
    equal([m["id"] for m in models], [MODEL])


# ---- home ----

@on_each_engine
def a_second_turn_goes_home_and_the_engine_has_its_prefix(t, kind):
    """The first turn is played with one engine only; the router is then given all of them."""
    engines = {k: with_agent(t, k) for k in KINDS}
    front = router(t, "auto", {kind: engines[kind]})
    history = [user(f"{time.time()} {PROSE * 300}")]
    named = {"x-session-id": "a session"}
    first = post(front.address, CHAT, greedy(*history), named, seconds=100)
    equal((first.status, cached(first) < 200), (200, True), f"first turn {usage(first)}")
    front.stop()
    front = router(t, "auto", engines, place=t.region)
    for turn in (2, 3):
        history += [{"role": "assistant", "content": said(first)}, user("And then?")]
        answer = post(front.address, CHAT, greedy(*history), named, seconds=100)
        equal(answer.get("x-turnward-engine"), kind, f"turn {turn}")
        check(cached(answer) >= 0.9 * usage(first)["prompt_tokens"],
              f"turn {turn}: {usage(answer)}, first {usage(first)}")
    settled(front)


@on_queueing_engines
def a_follow_up_goes_to_the_engine_that_made_the_response(t, kind):
    engines = {k: engine_of(t, k) for k in KINDS}
    front = router(t, "auto", {kind: engines[kind]})
    body = {"model": MODEL, "input": "Name a colour.", "max_output_tokens": 8, "store": True}
    first = post(front.address, "/v1/responses", body, seconds=60)
    equal(first.status, 200)
    front.stop()
    front = router(t, "auto", engines, "policy=round-robin", place=t.region)
    for _ in range(3):
        answer = post(front.address, "/v1/responses", dict(
            body, input="Another.", previous_response_id=first.json()["id"]), seconds=60)
        equal((answer.status, answer.get("x-turnward-engine")), (200, kind), answer.body[:300])
    answer = ask(front.address, "GET", "/v1/responses/" + first.json()["id"])
    equal((answer.status, answer.json()["id"]), (200, first.json()["id"]))


# ---- death; the last case, for it costs an engine ----

@real
def a_vllm_whose_core_died_is_down_and_its_streams_are_cut(t):
    engine = with_agent(t, "vllm")
    if not engine.process:
        raise Skip("this vLLM is somebody's own")
    front = router(t, "auto", {"vllm": engine, "other": llamacpp(t)})  # in the agent's region
    alone = router(t, "auto", {"vllm": engine})
    wires = [stream(alone.address, 3000) for _ in range(2)]
    heads = [wire.read_head() for wire in wires]
    until(t, "vllm", lambda s: s["fields"]["running"] == 2, "two run", 30)
    for pid in engine.children("EngineCor"):
        os.kill(pid, signal.SIGKILL)
    until(t, "vllm", lambda s: s["health"] == "down", "down", 60)
    for wire, answer in zip(wires, heads):
        wire.read_body(answer)
        check(not answer.complete or b'"error"' in answer.body, "a cut stream passed for whole")
    for _ in range(6):
        answer = post(front.address, CHAT, greedy(user("x")), seconds=60)
        equal((answer.status, answer.get("x-turnward-engine")), (200, "other"))


main()
