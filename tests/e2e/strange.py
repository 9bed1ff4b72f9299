#!/usr/bin/env python3
"""Engines and clients of kinds that lists leave out: deaf, squatting, vanishing, early, many."""
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import *  # noqa: E402,F403

CHAT = "/v1/chat/completions"


def chat(text="hello", **more):
    return dict({"model": "m", "messages": [{"role": "user", "content": text}]}, **more)


class RawEngine:
    """Answers the router's questions; serve(wire, head) does the rest, the body unread."""

    def __init__(self, serve, port=0, greeting=b""):
        self.serve, self.greeting = serve, greeting
        self.wires, self.asked = [], 0
        self.listener = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(Wire(sock, 600),), daemon=True).start()

    def _one(self, wire):
        with contextlib.suppress(OSError, ValueError, Failed):
            wire.send(self.greeting)
            head = wire.read_head()
            if head and head.method == "GET":
                wire.send(response_bytes(200, {"data": [{"id": "m"}]}))
            elif head:
                self.asked += 1
                self.wires.append(wire)
                self.serve(wire, head)
        wire.close()

    def close(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def send(router, n=1):
    return [ask(router.address, "POST", CHAT, chat()).status for _ in range(n)]


# ---- boundaries ----

def padded(start, size):
    """A head of that many bytes."""
    lines, left = start, size - len(start) - 2
    while left > 12000 + 100:
        lines += b"X-Pad: " + b"p" * 11991 + b"\r\n"
        left -= 12000
    return lines + b"X-Pad: " + b"p" * (left - 9) + b"\r\n\r\n"


@on_both_loops
def heads_that_end_at_any_boundary_of_a_buffer_are_read_the_same(t, io):
    now = {}

    def script(wire, request):
        wire.send(padded(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n", now["size"]) + b"0123456789")
        return True
    engine = t.engine(script)
    router = t.router(engine, args=settings(io))
    start = b"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Length: 13\r\n"
    wire = dial(router.address)
    for now["size"] in (n + d for n in (1024, 4096, 8192, 16384, 32768) for d in range(-3, 4)):
        if now["size"] > 32768:
            continue
        wire.send(padded(start, now["size"]) + b'{"model":"m"}')
        answer = wire.read_response()
        equal((answer.status, answer.body), (200, b"0123456789"), f"a head of {now['size']}")
        equal(engine.completions()[-1].body, b'{"model":"m"}', f"a head of {now['size']}")
    at_rest(router)


@on_both_loops
def read_ahead_of_any_size_is_served_in_order(t, io):
    def script(wire, request):
        time.sleep(0.01)
        wire.send(response_bytes(200, {"n": request.json()["n"]}))
        return True
    router = t.router(t.engine(script), args=settings(io))
    for size in (n + d for n in (4096 - 16, 4096, 16384, 32768 - 4096, 32768) for d in (-1, 0, 1)):
        wire = dial(router.address)
        first = request_bytes("POST", "/v1/embeddings", {"model": "m", "n": 0})
        body = {"model": "m", "n": 1, "x": ""}
        body["x"] = "y" * (size - len(request_bytes("POST", "/v1/embeddings", body)) - 4)
        last = request_bytes("POST", "/v1/embeddings", {"model": "m", "n": 2})
        wire.send(first + request_bytes("POST", "/v1/embeddings", body) + last)
        equal([wire.read_response().json()["n"] for _ in range(3)], [0, 1, 2], f"{size} bytes")
        wire.close()
    at_rest(router)


@on_both_loops
def events_of_any_size_around_a_block_arrive_whole(t, io):
    sizes = [n + d for n in (4096, 8192, 16384) for d in range(-40, 8)]

    def script(wire, request):
        wire.send(STREAM_HEAD)
        for size in sizes:
            wire.send(event("z" * (size - 8)))
        wire.send(DONE)
        return True
    router = t.router(t.engine(script), args=settings(io))
    answer = ask(router.address, "POST", CHAT, chat(stream=True))
    check(answer.complete, "the stream is cut")
    equal([len(e) for e in answer.events[:-1]], [size - 8 for size in sizes])


# ---- engines ----

@on_both_loops
def an_engine_that_never_reads_costs_time_and_nothing_else(t, io):
    released = []

    def deaf(wire, head):
        time.sleep(0.2)
        released.append(wire)
        threading.Event().wait(8 * PATIENCE)
    engine = RawEngine(deaf)
    router = t.router(engine.url, args=settings(io, first_byte_timeout="1s"))
    body = json.dumps(chat("x" * 8000000)).encode()
    equal(ask(router.address, "POST", CHAT, body).status, 504)
    at_rest(router)
    wire = dial(router.address)
    wire.send(request_bytes("POST", CHAT, body))
    eventually(lambda: engine.asked == 2, 5, "it has arrived")
    wire.close()
    router.wait_log("request", end="client_gone")
    at_rest(router)
    engine.close()


@on_both_loops
def a_reset_within_a_body_is_told_and_not_repeated(t, io):
    def breaks(wire, head):
        wire.read_exactly(1000)
        wire.reset()
    engine = RawEngine(breaks)
    router = t.router(engine.url, args=settings(io))
    for n in range(1, 4):
        answer = ask(router.address, "POST", CHAT, chat("x" * 3000000))
        equal((answer.status, answer.json()["error"]["code"]), (502, "engine_gone"))
        equal(engine.asked, n, "arrivals")
    at_rest(router)
    engine.close()


@on_both_loops
def an_answer_before_the_end_of_the_body_is_passed_on_and_ends_the_connection(t, io):
    def early(wire, head):
        wire.send(response_bytes(200, {"early": 1}))
        with contextlib.suppress(OSError, Failed):
            wire.wait_closed(10)
    engine = RawEngine(early)
    router = t.router(engine.url, args=settings(io, body_cut_through="64K"))
    body = json.dumps(chat("x" * 400000)).encode()
    for _ in range(3):
        wire = dial(router.address)
        data = request_bytes("POST", CHAT, body)
        wire.send(data[:200000])
        answer = wire.read_response()
        equal((answer.status, answer.json(), answer.get("connection")),
              (200, {"early": 1}, "close"))
        with contextlib.suppress(OSError):
            wire.send(data[200000:] + request_bytes("POST", CHAT, chat()))
        equal((wire.read_head(), wire.buffer), (None, b""), "behind it")
        wire.close()
    equal(engine.asked, 3, "on a connection of its own each")
    at_rest(router)
    engine.close()


@on_both_loops
def another_service_on_an_engines_port_is_left_alone(t, io):
    def smtp(wire, head):
        wire.send(b"500 what?\r\n")
        wire.wait_closed(10)
    lost, well = t.engine(), t.engine()
    router = t.router(lost, well, args=settings(io, policy="round-robin"))
    equal(send(router, 4), [200] * 4)
    lost.die()
    squatter = RawEngine(smtp, port=lost.port, greeting=b"220 mail.test ESMTP\r\n\r\n")
    statuses = send(router, 40)
    check(set(statuses) <= {200, 502}, f"answered {set(statuses)}")
    check(statuses.count(502) <= 6, f"{statuses.count(502)} met it")
    equal(send(router, 10), [200] * 10, "when it is known")
    squatter.close()
    at_rest(router)


@on_both_loops
def a_unix_socket_that_vanishes_and_comes_back_costs_no_request(t, io):
    path = t.path("engine.sock")
    first, well = t.engine(path=path), t.engine()
    router = t.router(f"a={first.url}", f"b={well.url}",
                      args=settings(io, policy="round-robin", health_period="100ms"))
    equal(send(router, 6), [200] * 6)
    check(first.completions(), "never used")
    first.die()
    equal(send(router, 6), [200] * 6, "nobody listens")
    os.unlink(path)
    equal(send(router, 6), [200] * 6, "there is no such file")
    os.mkdir(path)
    equal(send(router, 6), [200] * 6, "it is a directory")
    os.rmdir(path)
    second = t.engine(path=path)
    eventually(lambda: send(router) and second.completions(), 15, "it is used again")
    at_rest(router)


@on_both_loops
def two_engines_of_eight_are_enough_from_the_start(t, io):
    dead = [f"http://127.0.0.1:{t.port()}" for _ in range(6)]
    router = t.router(*dead, t.engine(), t.engine(), args=settings(io), ready=False)
    eventually(lambda: answers(router.address), 10, "it listens")
    equal(send(router, 30), [200] * 30)
    at_rest(router)


@on_both_loops
def many_answers_that_stop_at_their_head_are_cut_and_hold_up_nobody(t, io):
    def script(wire, request):
        if request.get("x-do") == "stop":
            wire.send(STREAM_HEAD if b'"stream": true' in request.body else
                      b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
            wire.wait_closed(30)
            return False
        return FakeEngine.answer_shortly(wire, request)
    engine = t.engine(script)
    router = t.router(engine, args=settings(io, stream_idle_timeout="1s", first_byte_timeout="1s"))
    wires = []
    for n in range(40):
        wires.append(dial(router.address))
        wires[-1].send(request_bytes("POST", CHAT, chat(stream=n % 2 == 0), {"x-do": "stop"}))
    equal(send(router, 20), [200] * 20)
    for wire in wires:
        head = wire.read_head()
        check(head.status == 200 and not wire.read_body(head, to_end=True).complete, "whole")
        wire.close()
    eventually(lambda: len(engine.open) <= 2, 5, "the engine is let go")
    at_rest(router)


# ---- clients ----

@on_both_loops
def two_hundred_dribbling_bodies_hold_up_nobody_on_a_kept_connection(t, io):
    router = t.router(t.engine(), args=settings(io, body_timeout="1s", body_rate=1000))
    wires = [dial(router.address) for _ in range(200)]
    for wire in wires:
        wire.send("POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n{")
    kept, alive = dial(router.address), set(wires)
    end = time.monotonic() + 20 * PATIENCE
    while alive and time.monotonic() < end:
        for wire in list(alive):
            try:
                wire.sock.send(b" ")
                wire.sock.setblocking(False)
                wire.sock.recv(1000)
                alive.discard(wire)  # answered, or closed
            except BlockingIOError:
                pass
            except OSError:
                alive.discard(wire)
        kept.send(request_bytes("POST", CHAT, chat()))
        equal(kept.read_response().status, 200)
        time.sleep(0.02)  # 50 bytes/s: without it a fast loop sends all of a body in time
    check(not alive, f"{len(alive)} were never cut")

    def told():
        return [line["end"] for line in router.log("request") if line["code"] == 408]
    eventually(lambda: len(told()) == 200, 10, "200 are told")
    equal(set(told()) - {"body_rate", "body_timeout"}, set())
    for wire in wires:
        wire.close()
    at_rest(router)


def flood(wire, request):
    if request.get("x-do") != "flood":
        return FakeEngine.answer_shortly(wire, request)
    wire.send(STREAM_HEAD)
    while True:  # until the router lets go
        wire.send(token("x" * 60000))


@on_both_loops
def stopped_readers_on_half_of_few_connections_cut_nobody_else(t, io):
    engine, port = t.engine(flood), t.port()
    t.start("prlimit", "--nofile=256:256", "--", t.program("turnward-router"), "--listen",
            f"127.0.0.1:{port}", "--region", t.region, "--engine", engine.url,
            *settings(io), ready=lambda: answers(f"127.0.0.1:{port}"))
    stopped = [dial_narrow(f"127.0.0.1:{port}") for _ in range(50)]
    for wire in stopped:
        wire.send(request_bytes("POST", CHAT, chat(stream=True), {"x-do": "flood"}))
    for _ in range(100):
        answer = ask(f"127.0.0.1:{port}", "POST", CHAT, chat(stream=True))
        check(answer.status == 200 and answer.complete, f"{answer.start}, cut")
    for wire in stopped:  # they are paused, not ended
        for _ in range(20):
            check(wire.more(), "a stopped one was cut")
        wire.close()


@on_both_loops
def a_client_that_pipelines_and_never_reads_holds_little(t, io):
    router = t.router(t.engine(), args=settings(io, client_send_timeout="2s"))
    wire, data = dial_narrow(router.address), request_bytes("GET", "/v1/models") * 1000
    wire.sock.settimeout(0.3)
    with contextlib.suppress(OSError):
        for _ in range(1000):
            wire.sock.sendall(data)
    equal(send(router, 20), [200] * 20)
    check(metric(router, 'memory_blocks{pool="outs"}') < 400, "answers that nobody reads pile up")
    wire.close()
    at_rest(router)


@on_both_loops
def a_router_that_did_not_run_for_a_while_takes_nobody_for_late(t, io):
    def script(wire, request):
        wire.send(STREAM_HEAD + token("a"))
        time.sleep(0.3)
        wire.send(token("b"))
        time.sleep(0.3)
        wire.send(DONE)
        return True
    router = t.router(t.engine(script), args=settings(
        io, head_timeout="1s", body_timeout="1s", first_byte_timeout="1s",
        stream_idle_timeout="1s", client_send_timeout="1s", keepalive_timeout="1s"))
    kept, begun, body = [dial(router.address) for _ in range(3)]
    post = request_bytes("POST", CHAT, chat(stream=True))
    kept.send(post)
    equal(kept.read_response().events[-1], "[DONE]")
    begun.send(post[:30])
    body.send(post[:-10])
    waiting = dial(router.address)
    waiting.send(post)
    waiting.read_head()
    os.kill(worker_of(router), signal.SIGSTOP)
    time.sleep(0.1)
    begun.send(post[30:])
    body.send(post[-10:])
    kept.send(post)
    time.sleep(2)
    os.kill(worker_of(router), signal.SIGCONT)
    for wire in (kept, begun, body):
        equal(wire.read_response().events[-1], "[DONE]")
    check(b"[DONE]" in wire_rest(waiting), "a stream that waited is cut")
    at_rest(router)


def wire_rest(wire):
    message = parse_head(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    return wire.read_body(message).body


@on_both_loops
def clients_that_reset_amid_pipelined_requests_leave_nothing_behind(t, io):
    engine = t.engine()
    router = t.router(engine, args=settings(io))
    for n in range(60):
        wire = dial(router.address)
        wire.send(request_bytes("POST", CHAT, chat("x" * (n * 400), stream=n % 2 == 0)) * 8)
        if n % 3:
            wire.read_head()
        (wire.reset if n % 2 else wire.close)()
    equal(ask(router.address, "POST", CHAT, chat()).status, 200)
    at_rest(router)
    equal(metric(router, "worker_starts_total"), 1, "workers")


if __name__ == "__main__":
    main()
