#!/usr/bin/env python3
"""Which engines get work: what shuts and opens one, and that the last one is always asked."""
import contextlib
import os
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import *  # noqa: E402,F403

CHAT = "/v1/chat/completions"


def chat(text="hello", **more):
    return dict({"model": "m", "messages": [{"role": "user", "content": text}]}, **more)


def metric(router, name, engine=None):
    """A metric's value; of the n-th engine if it has one for each."""
    text = ask(router.admin, "GET", "/metrics").body.decode()
    found = [float(l.split()[-1]) for l in text.split("\n") if l.startswith(f"turnward_{name}")]
    return found[engine or 0]


class Switch:
    """What an engine answers: a status, or a script; can be changed while it runs."""

    def __init__(self, status=200, fields=()):
        self.status, self.fields, self.script = status, fields, None

    def __call__(self, wire, request):
        if self.script:
            return self.script(wire, request)
        body = {"error": {"message": "x"}} if self.status >= 400 else {"choices": []}
        wire.send(response_bytes(self.status, body, self.fields))
        return True


def pair(t, io, **keys):
    """Two engines, the first with a switch, and a router that takes them in turn."""
    switch = Switch()
    sick, well = t.engine(switch), t.engine()
    router = t.router(sick, well, args=settings(io, policy="round-robin", health_period="0",
                                                **keys))
    return switch, sick, well, router


def send(router, n=1, **fields):
    return [ask(router.address, "POST", CHAT, chat(f"{time.monotonic()}"), fields).status
            for _ in range(n)]


# ---- what shuts an engine ----

@on_both_loops
def an_engine_that_fails_in_a_row_is_left_alone_and_tried_once(t, io):
    switch, sick, _, router = pair(t, io)
    switch.status = 500
    statuses = send(router, 20)
    equal(statuses.count(500), 5, "requests that met it")
    equal(metric(router, "engine_up", 0), 0)
    hold, entered = threading.Event(), threading.Event()

    def slow(wire, request):
        entered.set()
        hold.wait(20)
        wire.send(response_bytes(200, {"choices": []}))
        return True
    switch.script = slow
    before = len(sick.completions())
    results = []
    time.sleep(1.1)  # its pause
    threads = [threading.Thread(target=lambda: results.extend(send(router))) for _ in range(10)]
    for thread in threads:
        thread.start()
    check(entered.wait(10 * PATIENCE), "no trial")
    eventually(lambda: len(results) == 9, 10, "the others are served elsewhere")
    equal(len(sick.completions()) - before, 1, "trials at once")
    hold.set()
    for thread in threads:
        thread.join()
    equal(results, [200] * 10)
    switch.script, switch.status = None, 200
    equal(metric(router, "engine_up", 0), 1)


@on_both_loops
def a_trial_that_its_client_leaves_is_followed_by_another(t, io):
    switch, sick, _, router = pair(t, io)
    switch.status = 500
    send(router, 12)
    entered = threading.Event()

    def hang(wire, request):
        entered.set()
        wire.wait_closed(20)
        return False
    switch.script = hang
    time.sleep(1.1)
    while not entered.is_set():
        wire = dial(router.address)
        wire.send(request_bytes("POST", CHAT, chat()))
        entered.wait(0.2)
        wire.close()
    switch.script, switch.status = None, 200
    before = len(sick.completions())
    eventually(lambda: send(router) and len(sick.completions()) > before, 10, "a second trial")


@on_both_loops
def client_errors_never_count(t, io):
    switch, sick, _, router = pair(t, io)
    switch.status = 400
    statuses = send(router, 60)
    equal(statuses.count(400), 30)
    equal(metric(router, "engine_up", 0), 1)
    equal(len(sick.completions()), 30)


@on_both_loops
def a_kept_connection_that_closes_counts_against_nobody(t, io):
    def once(wire, request):
        wire.send(response_bytes(200, {"choices": []}))
        time.sleep(0.02)
        return False  # closes after each answer, without having said so
    switch, sick, _, router = pair(t, io)
    switch.script = once
    equal(set(send(router, 100)), {200})
    equal(metric(router, "engine_up", 0), 1)
    equal(metric(router, "engine_errors_total", 0), 0)


@on_both_loops
def engines_that_send_garbage_or_nothing_are_left_alone(t, io):
    for junk in (b"garbage\r\n\r\n", b""):
        switch, sick, _, router = pair(t, io)

        def script(wire, request, junk=junk):
            wire.send(junk)
            return False
        switch.script = script
        statuses = send(router, 20)
        equal(statuses.count(502), 5, f"requests that met {junk!r}")
        equal(metric(router, "engine_up", 0), 0)
        router.stop()


# ---- back-pressure ----

@on_both_loops
def an_engine_that_refuses_is_spared_as_long_as_it_says(t, io):
    switch, sick, well, router = pair(t, io)
    switch.status, switch.fields = 429, [("Retry-After", "1")]
    equal(set(send(router, 10)), {200}, "the other engine takes them")
    equal(len(sick.completions()), 1, "asked while it was spared")
    switch.status, switch.fields = 200, ()
    time.sleep(1.1)
    send(router, 10)
    check(len(sick.completions()) > 3, "no work after its pause")
    equal(metric(router, "engine_up", 0), 1)


@on_both_loops
def a_storm_of_refusals_is_followed_by_service(t, io):
    for status in (429, 503):
        switches = [Switch(status) for _ in range(3)]
        router = t.router(*[t.engine(s) for s in switches],
                          args=settings(io, policy="round-robin"))
        equal(set(send(router, 30)), {status})
        for switch in switches:
            switch.status = 200
        equal(send(router, 20), [200] * 20, "healthy requests right after the storm")
        router.stop()


@on_both_loops
def a_request_that_every_engine_fails_shuts_out_nobody_else(t, io):
    switches = [Switch(500) for _ in range(3)]
    router = t.router(*[t.engine(s) for s in switches], args=settings(io, policy="round-robin"))
    equal(set(send(router, 40)), {500})
    for switch in switches:
        switch.status = 200
    equal(send(router, 20), [200] * 20, "healthy requests right after")


# ---- probes ----

@on_both_loops
def probes_shut_and_open_an_idle_engine_with_hysteresis(t, io):
    sick, well = t.engine(), t.engine()
    state = {"status": 200}
    sick.answers["/health"] = lambda: response_bytes(state["status"])
    router = t.router(sick, well, args=settings(io, policy="round-robin", health_period="100ms"))
    state["status"] = 503
    router.wait_line("GET /health fails", 15)
    equal(set(send(router, 6)), {200})
    equal(sick.completions(), [])
    state["status"] = 200
    eventually(lambda: metric(router, "engine_up", 0) == 1, 15, "it is opened")
    send(router, 6)
    check(len(sick.completions()) == 3, "no work")


@on_both_loops
def a_probe_alone_does_not_shut_an_engine_that_answers(t, io):
    sick = t.engine()
    sick.answers["/health"] = lambda: response_bytes(503)
    router = t.router(sick, t.engine(), args=settings(io, policy="round-robin",
                                                      health_period="100ms"))
    end = time.monotonic() + 5
    while time.monotonic() < end:
        equal(set(send(router, 2)), {200})
        time.sleep(0.05)
    equal(metric(router, "engine_up", 0), 1)


# ---- engines that die ----

class Ending(Switch):
    """From end() on it closes each connection that rests, and no request under way is hurt."""

    def __init__(self):
        super().__init__()
        self.lock, self.resting, self.ended = threading.Lock(), set(), False

    def __call__(self, wire, request):
        with self.lock:
            self.resting.discard(wire)
        super().__call__(wire, request)
        with self.lock:
            self.resting.add(wire)
            if self.ended:
                wire.half_close()
        return True

    def end(self):
        with self.lock:
            self.ended = True
            for wire in self.resting:
                with contextlib.suppress(OSError):
                    wire.half_close()


@on_both_loops
def half_the_engines_dead_under_load_cost_no_request_that_was_not_sent(t, io):
    switches = [Ending() for _ in range(4)]
    engines = [t.engine(switch) for switch in switches]
    router = t.router(*engines, args=settings(io, policy="round-robin"))
    results, stop, go = [], threading.Event(), threading.Event()
    under_way = threading.Semaphore(4)

    def client():
        while not stop.is_set():
            go.wait()
            with under_way:
                if go.is_set():
                    results.extend(send(router))
    threads = [threading.Thread(target=client) for _ in range(4)]
    for thread in threads:
        thread.start()
    go.set()
    eventually(lambda: len(results) > 50)
    go.clear()
    for _ in threads:  # a connection that no engine has taken yet would take a request with it
        under_way.acquire()
    for engine in engines[:2]:
        engine.refuse()
    under_way.release(4)
    go.set()
    eventually(lambda: len(results) > 60)
    for switch in switches[:2]:
        switch.end()
    seen = len(results)
    eventually(lambda: len(results) > seen + 200, 30)
    stop.set()
    for thread in threads:
        thread.join()
    bad = [s for s in results if s != 200]
    check(not bad, f"{len(bad)} of {len(results)} failed: {bad[:5]}")


@on_both_loops
def with_every_engine_down_clients_are_told_at_once(t, io):
    engines = [t.engine() for _ in range(4)]
    router = t.router(*engines, args=settings(io))
    for engine in engines:
        engine.die()
    for _ in range(5):
        began = time.monotonic()
        answer = ask(router.address, "POST", CHAT, chat())
        equal(answer.status, 503)
        check(time.monotonic() - began < 1 * PATIENCE, "it took long")
    eventually(lambda: ask(router.admin, "GET", "/ready").status == 503, 10, "not ready")
    equal(ask(router.admin, "GET", "/live").status, 200)


@on_both_loops
def engines_that_come_back_have_empty_caches_and_start_slowly(t, io):
    ports = [t.port(), t.port()]

    def start_all():
        return [t.start("turnward-engine", "--ports", str(port), "--speed", "50", "--model", "m",
                        ready=lambda port=port: answers(f"127.0.0.1:{port}")) for port in ports]
    engines = start_all()
    router = t.router(*[f"http://127.0.0.1:{port}" for port in ports],
                      args=settings(io, health_period="100ms", slow_start="60s"))

    def looked_at():
        """What a decision knew of the engines: their most hits and highest penalty."""
        answer = ask(router.address, "POST", CHAT, chat("word " * 3000, max_tokens=2))
        equal(answer.status, 200)
        told = t.run("turnward", "explain", answer.get("x-request-id"), "--region", t.region,
                     "--json", code=0).json()["engines"]
        return (max(e["input"]["hit_tokens"] for e in told),
                max(e["cost"]["penalty_s"] for e in told))
    looked_at()
    hit, penalty = looked_at()
    check(hit > 2000 and penalty == 0, f"before: {hit} tokens, {penalty} s")
    for engine in engines:
        engine.kill()
    for n in range(2):
        eventually(lambda n=n: metric(router, "engine_up", n) == 0, 10, "it is shut")
    start_all()
    for n in range(2):
        eventually(lambda n=n: metric(router, "engine_up", n) == 1, 10, "it is opened")
    hit, penalty = looked_at()
    check(hit == 0 and penalty == 0, f"idle, after: {hit} tokens, {penalty} s")
    wires = [dial(router.address) for _ in range(4)]
    for n, wire in enumerate(wires):
        wire.send(request_bytes("POST", CHAT, chat(f"{n}", max_tokens=20000, stream=True)))
        wire.read_until(b"data:")
    _, penalty = looked_at()
    check(penalty > 1, f"loaded, after: {penalty} s")
    for wire in wires:
        wire.close()


@on_both_loops
def without_any_engine_it_starts_and_takes_them_up_when_they_come(t, io):
    router = t.router(args=settings(io))
    equal(ask(router.admin, "GET", "/ready").status, 503)
    equal(ask(router.address, "POST", CHAT, chat()).status, 503)
    engine = t.engine()
    t.start("turnward-agent", "--engine", f"late={engine.url}", "--region", t.region)
    eventually(lambda: ask(router.admin, "GET", "/ready").status == 200, 15, "it is ready")
    equal(ask(router.address, "POST", CHAT, chat()).status, 200)


if __name__ == "__main__":
    main()
