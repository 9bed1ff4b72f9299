#!/usr/bin/env python3
"""Requeue on live connections: cold prompts are taken back while others wait, and sent again."""
import json
import os
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import *  # noqa: E402,F403
from staging import *  # noqa: E402,F403

SLOW = ("--set", "throughput=2000")  # tokens a second: a step takes half a second


def yielding(t, io, *engines, args=(), **how):
    how.setdefault("mode", "requeue")
    return staged(t, io, *engines, args=(*SLOW, *args), **how)


def later(function):
    """Runs it in a thread; .result is there once it is joined."""
    def run():
        thread.result = function()
    thread = threading.Thread(target=run)
    thread.start()
    return thread


def send(router, body, target=CHAT, seconds=30, fields=()):
    return later(lambda: ask(router.address, "POST", target, body, fields, seconds=seconds))


def delaying(engine, stuck):
    """The same engine, with short requests that wait until they are let go."""
    def script(wire, request):
        if len(request.body) < 4000 and request.target == CHAT:
            stuck.wait(15)
        return engine(wire, request)
    return script


def taken_back(router, engine, body, target=CHAT, fields=(("x-request-id", "cold"),)):
    """A cold prompt that has been closed once for a short one, which is answered by then."""
    cold = send(router, body, target, fields=fields)
    eventually(lambda: engine.colds, 5, "the cold prompt is in the engine")
    equal(ask(router.address, "POST", CHAT, chat(300)).status, 200, "the short one")
    check("close" in engine.order, "the short one passed without a close")
    return cold


@on_both_loops
def a_cold_prompt_is_taken_back_for_a_short_one_and_sent_again(t, io):
    engine = Queueing()
    router = yielding(t, io, t.engine(engine))
    before = metric(router, "requests_started_total")
    raw = json.dumps(chat(seed=3, stream=True), indent=1)
    cold = taken_back(router, engine, raw)
    eventually(lambda: len(engine.colds) == 2, 5, "it is sent again")
    equal(metric(router, "engine_cold_prompts"), 1, "cold prompts")
    equal(engine.order, ["cold", "close", "short", "cold"])
    engine.go.set()
    cold.join(20)
    answer = cold.result
    equal((answer.status, answer.complete), (200, True))
    equal(len(answer.events), 3, "events of one whole stream")
    for request in engine.colds:
        equal(request.body.decode(), raw, "the client's request")
        equal(request.get("x-request-id"), "cold")
        check(request.get("x-turnward-internal") is None, "it is marked")
    equal(metric(router, "requeue_requests_total"), 1)
    equal(metric(router, "requeue_closes_total"), 1)
    equal(metric(router, "engine_requeue_closes_total"), 1)
    equal(metric(router, "requests_started_total") - before, 2, "users' requests")
    equal(metric(router, "cached_tokens_total"), 0, "tokens that a cache saved")
    equal(metric(router, "staged_pieces_total"), 0)
    equal(router.wait_log("request", id="cold")["taken_back"], 1)
    contains(t.run("turnward", "explain", "--region", t.region, "cold").out,
             "times it was taken back to let others in")
    contains(t.run("turnward", "status", "--region", t.region).out,
             "requeue: 1 prompts gave way, 1 times taken back")
    idle(router)


@on_both_loops
def alone_it_stays_and_its_head_comes_with_its_first_token(t, io):
    engine = Queueing()
    router = yielding(t, io, t.engine(engine))
    wire = dial(router.address)
    wire.send(request_bytes("POST", CHAT, json.dumps(chat(stream=True))))
    eventually(lambda: engine.colds, 5, "it is in the engine")
    time.sleep(1)
    wire.sock.setblocking(False)
    try:
        raise Failed(f"held back, and yet: {wire.sock.recv(100)!r}")
    except BlockingIOError:
        pass
    engine.go.set()
    answer = wire.read_response()
    equal((answer.status, answer.complete, len(answer.events)), (200, True, 3))
    equal(engine.order, ["cold"])
    equal(metric(router, "requeue_closes_total"), 0)
    idle(router)


@on_both_loops
def one_that_does_not_stream_is_taken_back_as_well(t, io):
    engine = Queueing()
    router = yielding(t, io, t.engine(engine))
    cold = taken_back(router, engine, json.dumps(chat(seed=4)))
    eventually(lambda: len(engine.colds) == 2, 5, "it is sent again")
    engine.go.set()
    cold.join(20)
    equal(cold.result.status, 200)
    equal(cold.result.json()["choices"][0]["message"]["content"], "ab")
    idle(router)


@on_both_loops
def the_number_of_sends_is_bounded_however_many_come(t, io):
    engine = Queueing()
    router = yielding(t, io, t.engine(engine), requeue_sends=3)
    cold = send(router, json.dumps(chat(12000, stream=True)))
    eventually(lambda: engine.colds, 5, "it is in the engine")
    for number in range(2):
        equal(ask(router.address, "POST", CHAT, chat(300, number)).status, 200)
        eventually(lambda number=number: len(engine.colds) == number + 2, 5, "it is sent again")
    last = send(router, chat(300, "last"))
    time.sleep(1)
    equal(len(engine.colds), 3, "sends")
    engine.go.set()
    for thread in (cold, last):
        thread.join(20)
        equal(thread.result.status, 200)
    equal(metric(router, "requeue_closes_total"), 2)
    idle(router)


@on_both_loops
def it_returns_in_time_though_the_others_still_wait(t, io):
    engine = Queueing()
    stuck = threading.Event()
    router = yielding(t, io, t.engine(delaying(engine, stuck)))
    cold = send(router, json.dumps(chat(stream=True)))
    eventually(lambda: engine.colds, 5, "it is in the engine")
    short = send(router, chat(300))
    eventually(lambda: len(engine.colds) == 2, 10, "it is sent again after two steps")
    equal(engine.order, ["cold", "close", "cold"])
    engine.go.set()
    stuck.set()
    for thread in (cold, short):
        thread.join(20)
        equal(thread.result.status, 200)
    idle(router)


@on_both_loops
def bodies_that_cannot_be_cut_go_so_with_both(t, io):
    engine = Queueing()
    router = yielding(t, io, t.engine(engine), mode="both")
    body = {"model": "m", "input": words(4000, 6), "stream": True}
    cold = taken_back(router, engine, json.dumps(body), RESPONSES)
    eventually(lambda: len(engine.colds) == 2, 5, "it is sent again")
    equal(reason(router, "tokenise"), 1)
    engine.go.set()
    cold.join(20)
    equal(cold.result.status, 200)
    equal(ask(router.address, "POST", CHAT, chat(seed=9)).status, 200)
    check(len(engine.pieces) >= 3, f"{len(engine.pieces)} pieces of one that can be cut")
    idle(router)


@on_both_loops
def engines_and_bodies_that_would_lose_by_it_are_left_alone(t, io):
    for kind, body in (("sglang", chat(seed=1)), ("llamacpp", chat(seed=2)), ("auto", chat(seed=3)),
                       ("vllm", chat(seed=4, prompt_logprobs=1)),
                       ("vllm", chat(seed=5, background=True))):
        engine = Queueing()
        engine.go.set()
        router = yielding(t, io, t.engine(engine), kind=kind)
        equal(ask(router.address, "POST", CHAT, body).status, 200)
        equal(metric(router, "requeue_requests_total"), 0, kind)
        idle(router)
        router.stop()


@on_both_loops
def an_engine_that_keeps_nothing_gets_no_more(t, io):
    engine = Queueing(keeps=False)
    router = yielding(t, io, t.engine(engine))
    for seed in range(3):
        engine.go.clear()
        engine.colds, engine.order = [], []
        cold = send(router, json.dumps(chat(seed=seed, stream=True)))
        eventually(lambda: engine.colds, 5, "it is in the engine")
        short = send(router, chat(300, seed))
        if seed < 2:
            eventually(lambda: len(engine.colds) == 2, 10, "it is sent again")
        else:
            time.sleep(0.7)
            equal(len(engine.colds), 1, "sends after the engine has lost two")
        engine.go.set()
        for thread in (cold, short):
            thread.join(20)
            equal(thread.result.status, 200)
    equal(metric(router, "requeue_guards_total"), 1)
    equal(metric(router, "engine_requeue_off"), 1)
    equal(sum("computes again what it had" in line for line in router.err), 1, "lines of the log")
    idle(router)


@on_both_loops
def an_engine_that_names_no_cached_tokens_is_judged_by_its_time(t, io):
    for keeps in (True, False):
        engine = Queueing(keeps=keeps, details=False, rate=4000)
        router = staged(t, io, t.engine(engine), mode="requeue", requeue_run=0.3)
        for seed in range(4):  # its pace is learnt
            talk = chat(900, f"{keeps}{seed}", stream=True)
            equal(ask(router.address, "POST", CHAT, talk).status, 200)
        for seed in range(2):
            engine.go.clear()
            engine.order = []
            cold = send(router, json.dumps(chat(5000, f"{keeps}{seed}", stream=True)))
            eventually(lambda: engine.order, 5, "it is in the engine")
            equal(ask(router.address, "POST", CHAT, chat(300, seed)).status, 200)
            engine.go.set()
            cold.join(20)
            equal(cold.result.status, 200)
            contains(engine.order, "close")
        equal(metric(router, "requeue_guards_total"), 0 if keeps else 1, f"keeps {keeps}")
        idle(router)
        router.stop()


# ---- faults ----

@on_both_loops
def a_client_that_leaves_while_it_is_away_leaves_nothing_behind(t, io):
    engine = Queueing()
    stuck = threading.Event()
    router = yielding(t, io, t.engine(delaying(engine, stuck)), requeue_patience=40)
    wire = dial(router.address)
    wire.send(request_bytes("POST", CHAT, json.dumps(chat(stream=True))))
    eventually(lambda: engine.colds, 5, "it is in the engine")
    short = send(router, chat(300))
    eventually(lambda: engine.order == ["cold", "close"], 5, "it is taken back")
    wire.reset()
    eventually(lambda: metric(router, "requests_aborted_total") == 1, 5, "it has left")
    stuck.set()
    short.join(20)
    equal(short.result.status, 200)
    idle(router)
    equal(len(engine.colds), 1, "sends")


@on_both_loops
def an_engine_that_dies_while_it_is_away_is_left(t, io):
    engines = [Queueing(), Queueing()]
    played = [t.engine(engine) for engine in engines]
    router = yielding(t, io, *played, args=("--policy", "round-robin"))
    cold = send(router, json.dumps(chat(stream=True)))
    eventually(lambda: engines[0].colds or engines[1].colds, 5, "it is in an engine")
    first = 0 if engines[0].colds else 1
    stuck = threading.Event()
    dead = played[first]
    script = dead.script
    dead.script = lambda wire, request: stuck.wait(15) and False if \
        len(request.body) < 4000 and request.target == CHAT else script(wire, request)
    shorts = []
    while not any(r.target == CHAT and len(r.body) < 4000 for r in dead.requests):
        shorts.append(send(router, chat(300, len(shorts))))
        time.sleep(0.1)
        check(len(shorts) < 20, "no short one goes there")
    eventually(lambda: "close" in engines[first].order, 5, "it is taken back")
    engines[1 - first].go.set()
    dead.die()
    cold.join(20)
    equal((cold.result.status, cold.result.complete), (200, True))
    equal(len(engines[1 - first].colds), 1, "sends to the other")
    stuck.set()
    for short in shorts:
        short.join(20)
    idle(router)


@on_both_loops
def an_engine_that_breaks_before_the_first_token_is_answered_for(t, io):
    inner = t.engine()

    def script(wire, request):
        wire.send(STREAM_HEAD)
        time.sleep(0.2)
        return False
    inner.script = script
    router = yielding(t, io, inner)
    answer = ask(router.address, "POST", CHAT, chat(stream=True))
    equal(answer.status, 502, "nothing had been relayed")
    idle(router)


@on_both_loops
def a_worker_killed_while_it_is_away_leaves_nothing_behind(t, io):
    engine = Queueing()
    router = yielding(t, io, t.engine(engine), requeue_patience=40)
    wire = dial(router.address)
    wire.send(request_bytes("POST", CHAT, json.dumps(chat(stream=True))))
    eventually(lambda: engine.colds, 5, "it is in the engine")
    ask(router.address, "POST", CHAT, chat(300))
    check("close" in engine.order, "it was not taken back")
    os.kill(worker_of(router), signal.SIGKILL)
    wire.wait_closed(5)
    eventually(lambda: answers(router.address), 5, "the next worker answers")
    engine.go.set()
    equal(ask(router.address, "POST", CHAT, chat(seed=2)).status, 200)
    idle(router)


@on_both_loops
def clients_that_leave_at_any_time_leave_nothing_behind(t, io):
    engine = Queueing()
    router = yielding(t, io, t.engine(engine), requeue_run=0.02, step_budget=64, cold_slots=2)
    leave(router, 100, lambda number: chat(3000 if number % 3 else 300, number,
                                           stream=number % 2 == 0), 0.2)
    engine.go.set()
    idle(router)
    check(metric(router, "requeue_closes_total") > 5, "too few were taken back")
    equal(ask(router.address, "POST", CHAT, chat(3000, "last")).status, 200)
    idle(router)


# ---- a modelled engine ----

@on_both_loops
def a_modelled_engine_keeps_what_it_had_computed(t, io):
    port = t.port()
    t.start("turnward-engine", "--ports", str(port), "--speed", "2", "--model", "m",
            "--slowdown", "8", "--budget", "1024", ready=f":{port}")

    class Engine:
        url = f"http://127.0.0.1:{port}"
    router = yielding(t, io, Engine, args=("--set", "throughput=1200"))
    more = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 2}
    cold = send(router, json.dumps(chat(6000, 7, **more)), fields=(("x-request-id", "cold"),))
    time.sleep(0.8)
    short = ask(router.address, "POST", CHAT, chat(300, **more))
    equal(short.status, 200)
    cold.join(25)
    equal((cold.result.status, cold.result.complete), (200, True))
    line = router.wait_log("request", id="cold")
    equal(line["taken_back"], 1)
    check(line["cached"] > 500, f"it did not find what had been computed: {line}")
    equal(metric(router, "requeue_guards_total"), 0)
    idle(router)


if __name__ == "__main__":
    main()
