#!/usr/bin/env python3
"""Agents and router in front of llama.cpp's real server with a tiny model, on both loops."""
import os
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "real"))
from engines import *  # noqa: E402,F403


def pair(t, io, *settings, options=()):
    """Two engines, an agent beside each, a router over both that has heard of all of them."""
    engines = [llamacpp(t, *options), llamacpp(t, *options)]
    for name, engine in zip("ab", engines):
        agent(t, name, engine.url)
        until(t, name, lambda s: s["health"] == "up", "up")
    return engines, router(t, io, dict(zip("ab", engines)), *settings)


def busy(engine):
    return [s for s in slots(engine) if s["is_processing"]]


def long_stream(address, tokens=20000, text=PROSE):
    wire = dial(address, 30)
    wire.send(request_bytes("POST", CHAT, greedy(user(text), tokens=tokens, stream=True)))
    return wire


# ---- the agent ----

@case
def the_agent_knows_llamacpp_by_itself_and_tells_its_load(t):
    engine = llamacpp(t, "--slots", "1")
    agent(t, "a", engine.url)
    rest = until(t, "a", lambda s: s["kind"] == "llamacpp" and s["models"], "llamacpp")
    equal((rest["health"], rest["models"], rest["fields"]["running"], rest["fields"]["waiting"]),
          ("up", [MODEL], 0, 0))
    check(rest["fields"]["kv_capacity_tokens"] > 0, "the only slot's capacity is not told")
    streams = [long_stream(engine.address) for _ in range(3)]
    work = until(t, "a", lambda s: (s["fields"]["running"], s["fields"]["waiting"]) == (1, 2) and
                 s["fields"]["decode_context_tokens"] > 100, "one runs, two wait")
    until(t, "a", lambda s: s["fields"]["kv_used_tokens"] > work["fields"]["kv_used_tokens"],
          "the context grows")
    equal(busy(engine)[0]["is_processing"], True)
    engine.kill()
    for wire in streams:
        wire.close()


@case
def the_agent_measures_llamacpps_decode_step(t):
    engine = llamacpp(t)
    agent(t, "a", engine.url)
    until(t, "a", lambda s: s["kind"] == "llamacpp", "llamacpp")
    total = 0
    for _ in range(10):
        answer = ask(engine.address, "POST", CHAT, greedy(user(PROSE), tokens=200))
        equal(usage(answer)["completion_tokens"], 200)
        total += 200
        time.sleep(0.1)  # a sample or two in between
    told = until(t, "a", lambda s: s["fields"].get("generation_tokens_total") == total, "tokens")
    check(0 < told["fields"]["decode_iteration_s"] < 0.1, f"{told['fields']}")
    check(told["fields"]["cached_tokens_total"] > 0, "prompts repeat: the cache must be hit")


@case
def a_restarted_llamacpp_has_another_epoch(t):
    engine = llamacpp(t)
    agent(t, "a", engine.url)
    first = until(t, "a", lambda s: s["kind"] == "llamacpp", "llamacpp")
    engine.kill()
    until(t, "a", lambda s: s["health"] == "down", "down")
    llamacpp(t, port=engine.port)
    second = until(t, "a", lambda s: s["health"] == "up", "up again")
    check(second["epoch"] != first["epoch"], "the same epoch after a restart")
    time.sleep(0.3)
    equal(seen(t, "a")["epoch"], second["epoch"], "epoch of a living engine")


@case
def a_frozen_llamacpp_is_stalled_and_comes_back(t):
    engine = llamacpp(t)
    agent(t, "a", engine.url, "--stall", "1s")
    first = until(t, "a", lambda s: s["kind"] == "llamacpp", "llamacpp")
    wire = long_stream(engine.address)
    until(t, "a", lambda s: s["fields"]["running"] == 1, "it works")
    engine.send_signal(signal.SIGSTOP)
    until(t, "a", lambda s: s["health"] != "up", "no more up", 20)
    engine.send_signal(signal.SIGCONT)
    again = until(t, "a", lambda s: s["health"] == "up", "up again", 20)
    equal(again["epoch"], first["epoch"], "epoch")
    wire.close()


# ---- the router: what passes ----

@on_both_loops
def answers_are_the_engines_own(t, io):
    engines, front = pair(t, io)
    body = greedy(user(PROSE * 3), tokens=40)
    text = said(ask(engines[0].address, "POST", CHAT, body))
    used = set()
    for more in ({}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}):
        for _ in range(3):
            answer = ask(front.address, "POST", CHAT, dict(body, **more))
            check(answer.complete and answer.status == 200, f"{more}: {answer.start}")
            equal(said(answer), text, f"text {more}")
            used.add(answer.get("x-turnward-engine"))
            if "stream_options" in more:
                equal(usage(answer)["completion_tokens"], 40)
    check(used <= {"a", "b"}, f"engines: {used}")
    settled(front)


@on_both_loops
def both_engines_get_work(t, io):
    engines, front = pair(t, io, "policy=round-robin")
    answers = together(*(lambda i=i: ask(
        front.address, "POST", CHAT, greedy(user(f"{i} {PROSE}"), tokens=50, stream=i % 2 == 0))
        for i in range(12)))
    equal({a.status for a in answers}, {200})
    equal(sorted({a.get("x-turnward-engine") for a in answers}), ["a", "b"])
    for engine in engines:
        check(metric_of(engine, "llamacpp:tokens_predicted_total") >= 50, "an engine had no work")
    settled(front)


@on_both_loops
def other_paths_of_llamacpp_are_served(t, io):
    engines, front = pair(t, io, options=("--embeddings",))
    for path, body in (("/tokenize", {"content": PROSE}),
                       ("/detokenize", {"tokens": [300, 400, 500]}),
                       ("/v1/embeddings", {"model": MODEL, "input": PROSE}),
                       ("/v1/messages/count_tokens", {"model": MODEL, "messages": [user(PROSE)]})):
        direct = ask(engines[0].address, "POST", path, body)
        equal(direct.status, 200, f"the engine's own {path}")
        equal(ask(front.address, "POST", path, body).json(), direct.json(), path)
    for path, body in (("/v1/completions", {"model": MODEL, "prompt": PROSE, "max_tokens": 9}),
                       ("/v1/messages", {"model": MODEL, "messages": [user("x")], "max_tokens": 9}),
                       ("/v1/responses", {"model": MODEL, "input": "x", "max_output_tokens": 9})):
        for stream in (False, True):
            answer = ask(front.address, "POST", path, dict(body, stream=stream))
            check(answer.status == 200 and answer.complete, f"{path} {stream}: {answer.start}")
    settled(front)


@on_both_loops
def refusals_of_the_engine_pass_as_they_are(t, io):
    engines, front = pair(t, io)
    long = greedy(user("a b c d e f g h " * 9000))
    for name, body in (("too long", long), ("no messages", {"model": MODEL, "messages": 7}),
                       ("not JSON", b'{"model": "tiny", "messages": [')):
        direct = ask(engines[0].address, "POST", CHAT, body)
        answer = ask(front.address, "POST", CHAT, body)
        equal((answer.status, answer.json()["error"]["type"]),
              (direct.status, direct.json()["error"]["type"]), name)
        check(answer.status >= 400, f"{name}: {answer.status}")
    answer = ask(front.address, "POST", CHAT, dict(greedy(user("x")), model="no-such-model"))
    equal((answer.status, answer.json()["error"]["code"]), (404, "model_not_found"))
    settled(front)


# ---- the router: connections ----

def kept_requests(t, io, count, streamed):
    """Requests one after the other on one kept connection of the client's."""
    front = router(t, io, {"a": llamacpp(t)})
    before = metric(front, "requests_completed_total")
    wire = dial(front.address)
    for i in range(count):
        wire.send(request_bytes("POST", CHAT, greedy(user("x"), tokens=1, stream=streamed(i))))
        answer = wire.read_response()
        check(answer.status == 200 and answer.complete, f"request {i}: {answer.start}")
        check(said(answer), f"request {i} was answered with nothing")
    equal(metric(front, "requests_completed_total") - before, count, "completed")
    equal(metric(front, "requests_failed_total"), 0, "failed")
    settled(front)


@on_both_loops
def the_hundredth_request_of_a_connection_costs_nothing(t, io):
    """The engine closes with its 100th answer, and says so."""
    kept_requests(t, io, 350, lambda i: False)


@on_both_loops
def a_connection_closed_after_a_stream_costs_nothing(t, io):
    """The engine closes after each streamed answer, and does not say so."""
    kept_requests(t, io, 150, lambda i: i % 2 == 0)


@on_both_loops
def connections_that_rested_cost_nothing(t, io):
    """The engines close theirs after 5 s, the router its own after engine_idle_timeout."""
    engines = [llamacpp(t, "--name", f"rest{i}", "--slots", "4") for i in range(5)]
    fronts = [router(t, io, dict(zip("abcde", engines)), "engine_idle_timeout=" + limit)
              for limit in ("3s", "60s")]

    def four_requests(front, number):
        body = dict(greedy(user("x"), tokens=2), model=f"rest{number}")
        return together(*[lambda: ask(front.address, "POST", CHAT, body, seconds=30)] * 4)

    def rest(front, number, seconds):
        time.sleep(seconds)
        return four_requests(front, number)
    answers = sum(together(*(lambda f=f, i=i: four_requests(f, i)
                             for f in fronts for i in range(5))), [])
    for rests in ((2.9, 2.95, 3.0, 3.05, 3.1), (4.9, 4.95, 5.0, 5.05, 5.1), (5.2,) * 5):
        answers += sum(together(*(lambda f=f, i=i, s=s: rest(f, i, s)
                                  for f in fronts for i, s in enumerate(rests))), [])
    equal({a.status for a in answers}, {200}, "statuses")
    for front in fronts:
        equal(metric(front, "requests_failed_total"), 0)
        settled(front)


@on_both_loops
def a_client_that_leaves_a_stream_frees_the_slot(t, io):
    engine = llamacpp(t, "--slots", "1")
    agent(t, "a", engine.url)
    front = router(t, io, {"a": engine})
    for _ in range(3):
        wire = long_stream(front.address)
        wire.read_head()
        eventually(lambda: busy(engine), 10, "the slot works")
        wire.close()
        eventually(lambda: not busy(engine), 10, "the slot is free")
    until(t, "a", lambda s: s["fields"]["running"] == 0, "nothing runs")
    equal(metric(front, "requests_aborted_total"), 3)
    settled(front)


@on_both_loops
def an_engine_that_restarts_under_traffic_fails_only_what_it_had(t, io):
    engines, front = pair(t, io, "policy=round-robin")
    stop, results = threading.Event(), []

    def client(number):
        while not stop.is_set():
            begun = time.monotonic()
            body = greedy(user(f"client {number}"), tokens=20, stream=number % 2 == 0)
            answer = ask(front.address, "POST", CHAT, body, seconds=30)
            results.append((begun, answer.status == 200 and answer.complete, answer))
            time.sleep(0.005)

    def drive():
        victim = engines[1]
        time.sleep(0.5)
        for _ in range(2):
            victim.kill()
            dead = time.monotonic()
            time.sleep(0.7)
            victim = llamacpp(t, port=victim.port)
            time.sleep(0.7)
            # What began once it was dead had never been sent to it.
            bad = [a.start for b, good, a in results if b > dead and not good]
            equal(bad, [], "failed without having been sent")
        stop.set()
    try:
        together(drive, *(lambda n=n: client(n) for n in range(6)))
    finally:
        stop.set()
    check(sum(not good for _, good, _ in results) <= 12, "more failed than were in flight")
    check(len(results) > 50, f"only {len(results)} requests in all")
    eventually(lambda: ask(front.address, "POST", CHAT, greedy(user("x"))).get(
        "x-turnward-engine") == "b", 10, "the restarted engine gets work")
    settled(front)


# ---- the router: home ----

@on_both_loops
def a_second_turn_goes_home_and_the_engine_has_its_prefix(t, io):
    _, front = pair(t, io)
    histories = [[user(f"Session {n}. " + PROSE * 60)] for n in range(3)]
    homes, lengths = [], []
    for turn in range(3):
        for n, history in enumerate(histories):
            answer = ask(front.address, "POST", CHAT, greedy(*history),
                         {"x-session-id": f"session-{n}"})
            equal(answer.status, 200)
            if turn == 0:
                homes.append(answer.get("x-turnward-engine"))
                lengths.append(usage(answer)["prompt_tokens"])
            else:
                equal(answer.get("x-turnward-engine"), homes[n], f"session {n}, turn {turn + 1}")
                check(cached(answer) >= 0.95 * lengths[n],
                      f"session {n}: {cached(answer)} of {lengths[n]} tokens were cached")
            history += [{"role": "assistant", "content": said(answer)}, user("And then?")]
    check(min(lengths) > 1000, f"prompts of {lengths} tokens")
    settled(front)


main()
