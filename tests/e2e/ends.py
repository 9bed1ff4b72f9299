#!/usr/bin/env python3
"""Every reason for which a request can end is met once, and told as router/net/conn.h lists it."""
import os
import re
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import *  # noqa: E402,F403

CHAT = "/v1/chat/completions"
KEY = {"Authorization": "Bearer k"}
LIMITS = {"head_timeout": "500ms", "body_timeout": "500ms", "body_rate": 1000, "max_body": "1M",
          "first_byte_timeout": "700ms", "stream_idle_timeout": "700ms", "body_memory": "8M",
          "client_send_timeout": "500ms"}


def listed():
    """word -> (outcome, status, code), from the table itself."""
    with open(os.path.join(ROOT, "router/net/conn.h"), encoding="utf-8") as file:
        text = re.sub(r"\s*\\\n\s*", " ", file.read())
    rows = re.findall(r'X\(\w+, "(\w+)", (\w+), (\d+), "\w*", "(\w*)",', text)
    return {word: (outcome.lower(), int(status), code) for word, outcome, status, code in rows}


def chat(**more):
    return dict({"model": "m", "messages": [{"role": "user", "content": "x"}]}, **more)


def script(wire, request):
    """Does what the request asks for."""
    what = request.get("x-do")
    if what == "garbage":
        wire.send(b"garbage\r\n\r\n")
    if what in ("stream", "flood"):
        wire.send(STREAM_HEAD + token("a"))
    while what == "flood":  # until the router lets go
        wire.send(token("x" * 8000))
    if what in ("stream", "hold"):
        wire.wait_closed(30)
    return FakeEngine.answer_shortly(wire, request) if what is None else False


class Play:
    """A client of one router that knows the table."""

    def __init__(self, router):
        self.router, self.table, self.wires = router, listed(), []

    def send(self, data=None, fields=None, dialled=dial, **body):
        wire = dialled(self.router.address)
        self.wires.append(wire)
        wire.send(data or request_bytes("POST", CHAT, chat(**body), {**KEY, **(fields or {})}))
        return wire

    def told(self, word, wire):
        """The answer, and the line in the log, are the table's."""
        answer = wire.read_response()
        _, status, code = self.table[word]
        equal(answer.status, status, word)
        if word != "refused":  # the parser's own code
            equal(answer.json()["error"]["code"], code, word)
        line = self.router.wait_log("request", id=answer.get("x-request-id"))
        equal((line["end"], line["code"]), (word, status))

    def logged(self, word):
        self.router.wait_log("request", seconds=10, end=word)


def upload(length, body=b"", fields=None):
    head = request_bytes("POST", CHAT, fields={**KEY, **(fields or {})})
    return head.replace(b"Content-Length: 0", b"Content-Length: %d" % length) + body


def trickle(play):
    wire = play.send(upload(5000))
    for _ in range(100):
        try:
            wire.send(b"x")
            time.sleep(0.02)
        except OSError:
            break
    return wire


def too_much(play):
    """Bodies that fill their memory, and stop there: those that were not read on are told so."""
    wires = [play.send(upload(900000, b"x" * 250000)) for _ in range(40)]
    found = [wire.read_response() for wire in wires]
    check({a.status for a in found} <= {408, 503}, f"answered {[a.status for a in found]}")
    play.logged("overload")


@on_both_loops
def every_reason_to_end_is_met_and_told_as_it_is_listed(t, io):
    keys = t.write("keys", "k\n")
    engine = t.engine(script)
    router = t.router(engine, args=settings(io, api_keys=keys, **LIMITS))
    play = Play(router)
    equal(play.send().read_response().status, 200)
    play.told("refused", play.send(b"GET /v1/models HTTP/1.1\r\n\r\n"))
    play.told("path", play.send(request_bytes("GET", "/nowhere", fields=KEY)))
    play.told("unauthorized", play.send(request_bytes("POST", CHAT, chat())))
    play.told("body_too_large", play.send(upload(2000000)))
    play.told("model_not_found", play.send(model="another"))
    play.told("head_timeout", play.send(b"GET /v1/models HTTP/1.1\r\nA: "))
    play.told("body_timeout", play.send(upload(100)))
    play.told("body_rate", trickle(play))
    play.told("first_byte_timeout", play.send(fields={"x-do": "hold"}))
    play.told("engine_gone", play.send(fields={"x-do": "close"}))
    play.told("engine_garbage", play.send(fields={"x-do": "garbage"}))
    check(not play.send(fields={"x-do": "stream"}, stream=True).read_response().complete, "whole")
    play.logged("stream_idle_timeout")
    seen = len(engine.completions())
    leaving = play.send(fields={"x-do": "hold"})
    eventually(lambda: len(engine.completions()) > seen, 5, "it has arrived")
    leaving.close()
    play.logged("client_gone")
    play.send(fields={"x-do": "flood"}, dialled=dial_narrow, stream=True)
    play.logged("client_send_timeout")
    too_much(play)
    engine.die()
    play.told("connect", play.send())
    at_rest(router)
    seen = ends_of(play)
    seen |= ends_of(without_engines(t, io)) | ends_of(stopped(t, io))
    equal(seen, set(play.table), "reasons")


def without_engines(t, io):
    play = Play(t.router(args=settings(io) + ["--region", t.path("none")]))
    play.told("no_engine", play.send())
    return play


def stopped(t, io):
    engine = t.engine(script)
    play = Play(t.router(engine, args=settings(io) + ["--region", t.path("stopped")]))
    play.send(fields={"x-do": "hold"})
    eventually(engine.completions, 5, "it has arrived")
    for _ in range(2):
        play.router.send_signal(signal.SIGTERM)
        play.router.wait_line("draining")
    equal(play.router.wait(10), 0, "exit")
    return play


def ends_of(play):
    """The words that were logged; each counts as the table says."""
    for wire in play.wires:
        wire.close()
    lines = play.router.log("request")
    if play.router.alive:
        for how in ("completed", "failed", "aborted"):
            equal(metric(play.router, f"requests_{how}_total"),
                  sum(play.table[line["end"]][0] == how for line in lines), how)
    return {line["end"] for line in lines}


if __name__ == "__main__":
    main()
