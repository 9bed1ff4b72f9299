#!/usr/bin/env python3
"""Overdue rescue on live connections: who waits on an engine that hangs goes to another, once."""
import json
import os
import select
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import *  # noqa: E402,F403
from staging import *  # noqa: E402,F403

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}],
                   "stream": True})


class Hanging:
    """Answers until it is told to hang; then heads come, and nothing else until `go`."""

    def __init__(self, head=True):
        self.hangs, self.go, self.head = threading.Event(), threading.Event(), head
        self.came, self.closed, self.events = 0, [], []

    def __call__(self, wire, request):
        self.came += 1
        self.events.append(("came", time.monotonic()))
        stream = b'"stream": true' in request.body
        if not self.hangs.is_set():
            return FakeEngine.answer_shortly(wire, request)
        if stream and self.head:
            wire.send(STREAM_HEAD)
        while not self.go.is_set():
            if select.select([wire.sock], [], [], 0.005)[0] and not wire.more():
                self.closed.append(time.monotonic())
                return False
        if stream:
            wire.send((b"" if self.head else STREAM_HEAD) + token("late") + DONE)
            return True
        return FakeEngine.answer_shortly(wire, request)


def two(t, io, first, second, kind="vllm", overdue=1):
    """A router that has sent the first of two engines enough to know its pace."""
    engines = [t.engine(first), t.engine(second)]
    lines = ["[router]", f"io = {io}", "[stage]", f"rescue_overdue = {overdue}"]
    for i, engine in enumerate(engines):
        lines += [f"[engine e{i}]", f"url = {engine.url}", f"kind = {kind}"]
    router = t.router(args=("-c", t.write("rescue.conf", "\n".join(lines) + "\n"),
                            "--policy", "round-robin"))
    eventually(lambda: metric(router, "engine_models_known") == 2, 5, "lists are known")
    for _ in range(8):
        equal(ask(router.address, "POST", CHAT, BODY).status, 200)
    check(first.came and second.came, "an engine had nothing")
    return router


def stuck(router, engine, body=BODY):
    """A request in the hanging engine, and how many tries it took."""
    engine.hangs.set()
    came = engine.came
    for _ in range(4):
        box = []
        thread = threading.Thread(target=lambda box=box: box.append(
            ask(router.address, "POST", CHAT, body, [("x-request-id", "stuck")], seconds=20)))
        thread.start()
        time.sleep(0.2)
        if engine.came > came:
            return thread, box
        thread.join(10)
    raise Failed("no request goes to the engine that hangs")


def leaves(t, io, head):
    """A request in an engine that hangs, with its head out or not, is answered by the other."""
    bad, good = Hanging(head), Hanging()
    router = two(t, io, bad, good)
    thread, box = stuck(router, bad)
    came = good.came
    thread.join(15)
    answer, = box
    equal((answer.status, answer.complete), (200, True))
    equal(answer.body.count(b"[DONE]"), 1, "ends")
    check(b"late" not in answer.body, "it came from the engine that hangs")
    equal(good.came, came + 1)
    check(bad.closed and bad.closed[0] <= good.events[-1][1] + 0.02, "two engines had it at a time")
    equal(metric(router, "rescued_total"), 1)
    equal(metric(router, "engine_rescued_total"), 1)
    equal(metric(router, 'rescue_decisions_total{reason="none"}'), 1)
    equal(router.wait_log("request", id="stuck")["rescued"], True)
    equal(sum("hangs, silent for" in line for line in router.err), 1, "lines of the log")
    contains(t.run("turnward", "status", "--region", t.region).out, "rescue: 1 ")
    contains(t.run("turnward", "explain", "--region", t.region, "stuck").out,
             "times it left an engine that hung")
    bad.go.set()


@on_both_loops
def a_stream_leaves_an_engine_that_hangs_and_its_client_sees_one_answer(t, io):
    leaves(t, io, head=True)


@on_both_loops
def a_stream_without_a_head_leaves_it_too(t, io):
    leaves(t, io, head=False)


@on_both_loops
def a_piece_in_an_engine_that_hangs_is_left_there_and_begun_elsewhere(t, io):
    caches, hung = [Caching(), Caching()], []

    def hook(number, wire, cache):
        if hung:
            return True
        hung.append(cache)
        wire.wait_closed(20)
        return False
    for cache in caches:
        cache.hook = lambda number, wire, cache=cache: hook(number, wire, cache)
    router = staged(t, io, *map(t.engine, caches), rescue_overdue=1,
                    args=("--policy", "round-robin"))
    for number in range(8):
        equal(ask(router.address, "POST", CHAT, chat(50, number, stream=True)).status, 200)
    answer = ask(router.address, "POST", CHAT, chat(5000, "cold", stream=True), seconds=30)
    equal((answer.status, answer.complete), (200, True))
    bad, = hung
    good, = [cache for cache in caches if cache is not bad]
    equal(len(bad.pieces), 1, "pieces of the engine that hangs")
    check(len(good.pieces) >= 3, f"{len(good.pieces)} pieces of the other")
    equal(metric(router, "rescued_total"), 1)
    equal(metric(router, "engine_pieces"), 1, "left there")
    before = len(bad.requests)
    while len(bad.requests) == before:
        talk = chat(50, time.monotonic(), stream=True)
        equal(ask(router.address, "POST", CHAT, talk).status, 200)
    idle(router)


@on_both_loops
def what_was_abandoned_stays_in_the_books_until_the_engine_moves(t, io):
    bad, good = Hanging(), Hanging()
    router = two(t, io, bad, good)
    thread, _ = stuck(router, bad)
    thread.join(15)
    equal(metric(router, "requests_inflight"), 0)
    time.sleep(0.3)
    equal(metric(router, 'engine_pieces{engine="e0"}'), 1, "left in the engine")
    equal(metric(router, 'engine_pieces{engine="e1"}'), 0)
    bad.hangs.clear()
    bad.go.set()
    came = bad.came
    while bad.came == came:
        equal(ask(router.address, "POST", CHAT, BODY).status, 200)
    idle(router)


@on_both_loops
def an_agent_that_sees_the_engine_idle_clears_its_books(t, io):
    bad, good, running = Hanging(), Hanging(), [1]
    router = two(t, io, bad, good)
    t.engines[0].answers["/metrics"] = lambda: response_bytes(200, "".join(
        f'vllm:{name}{{model_name="m"}} {value}\n' for name, value in (
            ("num_requests_running", running[0]), ("num_requests_waiting", 0))))
    t.start("turnward-agent", "--engine", f"e0={t.engines[0].url}", "--kind", "vllm", "--period",
            "20", "--region", t.region)
    eventually(lambda: metric(router, "agent_running") == 1, 5, "the agent is read")
    thread, box = stuck(router, bad)
    thread.join(15)
    equal(box[0].status, 200)
    time.sleep(0.5)
    equal(metric(router, 'engine_pieces{engine="e0"}'), 1, "left in the engine")
    running[0] = 0
    idle(router)


@on_both_loops
def a_second_engine_that_answers_otherwise_cuts_the_stream(t, io):
    bad, good = Hanging(), Hanging()
    router = two(t, io, bad, good)
    thread, box = stuck(router, bad)
    good_engine = t.engines[1]
    good_engine.script = lambda wire, request: wire.send(
        response_bytes(400, {"error": {"message": "no"}})) or True
    thread.join(15)
    answer, = box
    equal((answer.status, answer.complete), (200, False), "a cut stream")
    equal(metric(router, "requests_failed_total"), 1)
    bad.go.set()


@on_both_loops
def who_cannot_be_rescued_stays_and_the_reason_is_counted(t, io):
    for kind, body, reason_is in (("vllm", BODY.replace("true", "false"), None),
                                  ("llamacpp", BODY, "engine"), ("auto", BODY, "engine")):
        bad, good = Hanging(), Hanging()
        router = two(t, io, bad, good, kind=kind)
        thread, box = stuck(router, bad, body)
        if reason_is:
            eventually(lambda: metric(
                router, f'rescue_decisions_total{{reason="{reason_is}"}}') == 1, 10, reason_is)
        else:  # its first token cannot be seen, and is taken as out when it should be
            time.sleep(3)
        bad.go.set()
        thread.join(10)
        equal(box[0].status, 200)
        equal(metric(router, "rescued_total"), 0)
        idle(router)
        router.stop()


@on_both_loops
def an_engine_whose_answers_flow_does_not_hang(t, io):
    bad, good = Hanging(), Hanging()
    router = two(t, io, bad, good)
    flows, ends = threading.Event(), threading.Event()

    def stream(wire, request):
        if b"flows" not in request.body:
            return bad(wire, request)
        wire.send(STREAM_HEAD + token("a"))
        flows.set()
        while not ends.wait(0.2):
            wire.send(token("b"))
        wire.send(DONE)
        return True
    t.engines[0].script = stream
    wires = []
    while not flows.is_set():
        wires.append(dial(router.address))
        wires[-1].send(request_bytes("POST", CHAT, BODY.replace("hello", "flows")))
        time.sleep(0.1)
        check(len(wires) < 5, "it goes nowhere")
    thread, box = stuck(router, bad)
    time.sleep(2.5)
    equal(metric(router, "rescued_total"), 0)
    bad.go.set()
    ends.set()
    thread.join(10)
    equal(box[0].status, 200)


@on_both_loops
def a_client_that_leaves_before_it_is_rescued_is_not(t, io):
    bad, good = Hanging(), Hanging()
    router = two(t, io, bad, good)
    bad.hangs.set()
    for _ in range(4):
        wire = dial(router.address)
        wire.send(request_bytes("POST", CHAT, BODY))
        time.sleep(0.2)
        wire.close()
    time.sleep(1.5)
    equal(metric(router, "rescued_total"), 0)
    idle(router)


if __name__ == "__main__":
    main()
