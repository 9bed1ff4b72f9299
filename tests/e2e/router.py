#!/usr/bin/env python3
"""A request's path through the router: routing, relaying, faults of either side, on both loops."""
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
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def models_known(router, engines):
    eventually(lambda: metric(router, "engine_models_known") == engines, 5, "lists are known")


# ---- routing ----

@on_both_loops
def every_request_goes_to_the_engine_that_serves_its_model(t, io):
    a, b = t.engine(models=("model-a",)), t.engine(models=("model-b", "lora-b"))
    router = t.router(a, b, args=("--io", io))
    for _ in range(5):
        for model in ("model-a", "model-b", "lora-b"):
            equal(ask(router.address, "POST", CHAT, dict(chat(), model=model)).status, 200)
    equal({r.json()["model"] for r in a.completions()}, {"model-a"}, "a")
    equal({r.json()["model"] for r in b.completions()}, {"model-b", "lora-b"}, "b")
    answer = ask(router.address, "POST", CHAT, dict(chat(), model="model-c"))
    equal(answer.status, 404)
    equal(answer.json()["error"]["code"], "model_not_found")
    models = ask(router.address, "GET", "/v1/models").json()["data"]
    equal(sorted(m["id"] for m in models), ["lora-b", "model-a", "model-b"])
    at_rest(router)


@case
def an_engine_without_a_list_takes_any_name(t):
    silent = t.engine()
    silent.answers["/v1/models"] = lambda: response_bytes(404, {"detail": "no"})
    router = t.router(silent)
    equal(ask(router.address, "POST", CHAT, dict(chat(), model="whatever")).status, 200)


@on_both_loops
def an_engine_that_is_not_ready_keeps_its_list(t, io):
    a, b = t.engine(models=("model-a",)), t.engine(models=("model-b",))
    router = t.router(a, b, args=("--io", io, "--policy", "round-robin",
                                  "--set", "models_period=200ms"))
    models_known(router, 2)
    a.answers["/v1/models"] = lambda: response_bytes(503, {"error": {"message": "loading"}})
    asked = metric(router, "engine_questions_total")
    eventually(lambda: metric(router, "engine_questions_total") > asked + 4, 10, "it was asked")
    for _ in range(4):
        equal(ask(router.address, "POST", CHAT, dict(chat(), model="model-b")).status, 200)
    equal(len(a.completions()), 0, "requests that took it for an engine of any model")


@on_both_loops
def keys_open_the_data_port_and_never_reach_an_engine(t, io):
    engine = t.engine()
    keys = t.write("keys", "# clients\nfirst-key\n\nsecond-key\n")
    router = t.router(engine, args=("--io", io, "--set", f"api_keys={keys}"))
    models_known(router, 1)
    for fields in ({}, {"Authorization": "Bearer first-ke"}, {"Authorization": "Bearer first-key2"},
                   {"x-api-key": "# clients"}, {"Authorization": "Bearer "}):
        equal(ask(router.address, "POST", CHAT, chat(), fields).status, 401, str(fields))
    for fields in ({"Authorization": "Bearer first-key"}, {"authorization": "bearer second-key"},
                   {"x-api-key": "second-key"}):
        equal(ask(router.address, "POST", CHAT, chat(), fields).status, 200, str(fields))
    for request in engine.completions():
        check(b"-key" not in request.head.lower().replace(b"x-api-key:", b""), "a key went on")
        check(request.get("authorization") is None, "Authorization went on")
    check(not any("first-key" in line or "second-key" in line for line in router.err), "logged")


@case
def a_key_that_is_too_long_is_refused_whole(t):
    keys = t.write("keys", "short\n" + "x" * 5000 + "\n")
    router = t.router(t.engine(), args=("--set", f"api_keys={keys}"), ready=False)
    equal(router.wait(10), 78, "exit")
    check(not any("xxx" in line for line in router.err), "it was shown")


@case
def the_operator_gets_in_when_clients_take_every_connection(t):
    router = t.router(t.engine(), args=("--set", "connections_max=16"))
    wires = [dial(router.address) for _ in range(40)]
    router.wait_line("places for connections are taken")
    equal(ask(router.admin, "GET", "/live").status, 200)
    for wire in wires:
        wire.close()
    eventually(lambda: answers(router.address), 5, "clients get in again")


@case
def only_listed_paths_are_forwarded(t):
    engine = t.engine()
    router = t.router(engine)
    for path in ("/metrics", "/status", "/admin", "/v1/../metrics", "/%2e%2e/metrics", "/slots"):
        answer = ask(router.address, "GET", path)
        check(answer.status in (400, 404), f"{path}: {answer.status}")
    equal(engine.completions(), [], "forwarded")
    for path in ("/tokenize", "/v1/embeddings", "/v1/completions", "/v1/messages",
                 "/v1/responses"):
        equal(ask(router.address, "POST", path, chat()).status, 200, path)
    at_rest(router)


@on_both_loops
def a_session_returns_to_its_home(t, io):
    engines = [t.engine() for _ in range(4)]
    router = t.router(*engines, args=("--io", io, "--policy", "eft"))
    text = "the quick brown fox " * 2000
    history = [{"role": "user", "content": text}]
    for turn in range(4):
        body = {"model": "m", "messages": history}
        equal(ask(router.address, "POST", CHAT, body, {"x-session-id": "s"}).status, 200)
        history = history + [{"role": "assistant", "content": "ab"},
                             {"role": "user", "content": f"turn {turn}"}]
    equal(sorted(len(e.completions()) for e in engines), [0, 0, 0, 4], "requests")


@on_both_loops
def follow_ups_reach_the_engine_that_made_the_response(t, io):
    def script(wire, request):
        if request.method == "POST":
            name = f"resp_{request.wire.sock.getsockname()[1]}_{len(request.body)}"
            wire.send(response_bytes(200, {"id": name, "object": "response", "output": [],
                                           "usage": {"input_tokens": 9, "output_tokens": 3}}))
        else:
            wire.send(response_bytes(404, {"error": {"message": "gone", "code": 404}}))
        return True
    engines = [t.engine(script) for _ in range(4)]
    router = t.router(*engines, args=("--io", io, "--policy", "round-robin"))
    first = ask(router.address, "POST", "/v1/responses", {"model": "m", "input": "x"})
    rid = first.json()["id"]
    home = next(e for e in engines if str(e.port) in rid)
    for _ in range(3):
        ask(router.address, "POST", "/v1/responses",
            {"model": "m", "input": "y", "previous_response_id": rid})
    equal(len(home.completions()), 4, "at home")
    os.kill(worker_of(router), signal.SIGKILL)
    eventually(lambda: answers(router.address), 5, "the next worker answers")
    ask(router.address, "POST", "/v1/responses",
        {"model": "m", "input": "z", "previous_response_id": rid})
    equal(ask(router.address, "GET", f"/v1/responses/{rid}").status, 404, "the engine's own 404")
    equal(len(home.completions()), 6, "at home after the crash")


@on_both_loops
def a_response_without_a_session_can_be_continued(t, io):
    """Nothing in the request names a session, and it has no content to infer one from."""
    def script(wire, request):
        wire.send(response_bytes(200, {"id": "resp_x", "object": "response", "output": [],
                                       "usage": {"input_tokens": 9, "output_tokens": 3}}))
        return True
    router = t.router(t.engine(script), args=("--io", io))
    equal(ask(router.address, "POST", "/v1/responses", {"model": "m"}).status, 200)
    equal(ask(router.address, "POST", "/v1/responses",
              {"model": "m", "input": "y", "previous_response_id": "resp_x"}).status, 200)
    equal(metric(router, "worker_starts_total"), 1, "workers")
    at_rest(router)


@on_both_loops
def a_refused_move_leaves_the_session_at_home(t, io):
    def refuse(wire, request):
        if b"refuse" in request.body:
            wire.send(response_bytes(503, {"error": {"message": "full"}}))
            return True
        return FakeEngine.answer_shortly(wire, request)
    engines = [f"e{i}={t.engine(refuse if i else None).url}" for i in range(2)]
    router = t.router(*engines, args=("--io", io, "--policy", "round-robin"))
    models_known(router, 2)
    text = "the quick brown fox " * 200
    history = [{"role": "user", "content": text}]
    homes = []
    for turn, word in enumerate(("first", "refuse", "again")):
        body = {"model": "m", "messages": history + [{"role": "user", "content": word}]}
        fields = {"x-session-id": "s", "x-request-id": f"r{turn}"}
        equal(ask(router.address, "POST", CHAT, body, fields).status, 200)
        told = t.run("turnward", "explain", f"r{turn}", "--region", t.region, "--json").json()
        homes.append((told["home"], told["engine"], told["attempt"]))
        history = history + [{"role": "user", "content": word},
                             {"role": "assistant", "content": "ab"}]
    equal(homes[:2], [(None, "e0", 1), ("e0", "e0", 2)], "home, engine, attempt")
    equal(homes[2][0], "e0", "home of the third")
    at_rest(router)


# ---- bodies ----

@on_both_loops
def a_body_of_64_mib_arrives_unchanged(t, io):
    got = {}

    def script(wire, request):
        got["body"] = request.body
        wire.send(response_bytes(200, {"ok": 1}))
        return True
    router = t.router(t.engine(script), args=("--io", io))
    start = b'{"model":"m","messages":[{"role":"user","content":"'
    body = start + os.urandom(1 << 20).hex().encode() * 32
    body = body[:(64 << 20) - 4] + b'"}]}'
    equal(len(body), 64 << 20)
    equal(ask(router.address, "POST", CHAT, body, seconds=60).status, 200)
    check(got["body"] == body, "the bytes have changed")
    at_rest(router)


@on_both_loops
def a_longer_body_gets_413_before_it_is_sent(t, io):
    engine = t.engine()
    router = t.router(engine, args=("--io", io, "--max-body", "1M"))
    wire = dial(router.address)
    wire.send(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {1 << 21}\r\n\r\n".encode())
    equal(wire.read_response().status, 413)
    wire = dial(router.address)
    wire.send(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    for _ in range(16):
        wire.send(chunk(b"x" * 65536))
    wire.send(chunk(b"y"))
    equal(wire.read_response().status, 413)
    equal(engine.completions(), [], "forwarded")
    at_rest(router)


@on_both_loops
def a_chunked_body_goes_on_with_its_length(t, io):
    engine = t.engine()
    router = t.router(engine, args=("--io", io))
    body = json.dumps(chat("z" * 50000)).encode()
    wire = dial(router.address)
    wire.send(f"POST {CHAT}?a=b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    for at in range(0, len(body), 777):
        wire.send(chunk(body[at:at + 777]))
    wire.send(LAST_CHUNK)
    equal(wire.read_response().status, 200)
    request = engine.completions()[0]
    check(request.body == body, "the body has changed")
    equal(request.target, CHAT + "?a=b")
    equal(request.get("content-length"), str(len(body)))
    check(request.get("transfer-encoding") is None, "both framings")


@on_both_loops
def a_request_cut_anywhere_is_read_the_same(t, io):
    engine = t.engine()
    router = t.router(engine, args=("--io", io))
    raw = request_bytes("POST", CHAT, chat("word " * 30))
    for at in range(1, len(raw), 29):
        wire = dial(router.address)
        wire.send(raw[:at])
        time.sleep(0.002)
        wire.send(raw[at:])
        equal(wire.read_response().status, 200, f"cut at {at}")
        wire.close()
    equal(len({r.body for r in engine.completions()}), 1, "different bodies")


@on_both_loops
def pipelined_requests_are_answered_in_order(t, io):
    def script(wire, request):
        wire.send(response_bytes(200, {"echo": request.json()["messages"][0]["content"]}))
        return True
    router = t.router(t.engine(script), args=("--io", io))
    wire = dial(router.address)
    wire.send(b"".join(request_bytes("POST", CHAT, chat(f"n{i}")) for i in range(20)))
    equal([wire.read_response().json()["echo"] for _ in range(20)],
          [f"n{i}" for i in range(20)])


@on_both_loops
def read_ahead_that_ends_within_a_head_is_joined_with_what_follows(t, io):
    """A body above 16 KiB that lies in the read-ahead: nothing of it is left on the socket."""
    router = t.router(t.engine(), args=("--io", io))
    for size in (17000, 25000):
        third = request_bytes("POST", CHAT, chat("third"))
        wire = dial(router.address)
        wire.send(request_bytes("POST", CHAT, chat("first")) +
                  request_bytes("POST", CHAT, chat("x" * size)) + third[:40])
        equal([wire.read_response().status for _ in range(2)], [200, 200])
        time.sleep(0.05)
        wire.send(third[40:])
        equal(wire.read_response().status, 200, "the third")
        wire.send(request_bytes("POST", CHAT, chat("fourth")))
        equal(wire.read_response().status, 200, "the fourth")
    equal(metric(router, "worker_starts_total"), 1, "workers")
    at_rest(router)


@on_both_loops
def a_body_that_was_cut_through_keeps_every_time_limit(t, io):
    def silent(wire, request):
        wire.wait_closed(20)
        return False
    router = t.router(t.engine(silent), args=(
        "--io", io, "--set", "body_cut_through=64K", "--set", "first_byte_timeout=700ms",
        "--set", "body_timeout=500ms"))
    body = json.dumps(chat("x" * 300000)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    wire = dial(router.address)
    wire.send(head + body[:200000])
    equal(wire.read_response().status, 408, "a client that stops sending")
    wire = dial(router.address)
    wire.send(head + body[:200000])
    time.sleep(0.1)
    wire.send(body[200000:])
    equal(wire.read_response().status, 504, "an engine that does not answer")
    at_rest(router)


@on_both_loops
def bodies_that_fill_their_memory_together_do_not_block_each_other(t, io):
    router = t.router(t.engine(), args=(
        "--io", io, "--max-body", "1M", "--set", "body_memory=8M", "--set", "body_timeout=9s"))
    body = json.dumps(chat("x" * 300000)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    wires = [dial(router.address, 20) for _ in range(48)]
    for wire in wires:
        wire.send(head + body[:200000])
    eventually(lambda: metric(router, 'memory_blocks{pool="bodies"}') > 110, 5, "it is full")
    start = time.monotonic()
    for wire in wires:
        threading.Thread(target=wire.sock.sendall, args=(body[200000:],), daemon=True).start()
    told = [wire.read_response().status for wire in wires]
    check(set(told) <= {200, 503} and told.count(200) >= 10, f"answers: {told}")
    check(time.monotonic() - start < 5 * PATIENCE, "some waited for their time limit")
    at_rest(router)


@on_both_loops
def expect_100_continue_is_answered_here(t, io):
    engine = t.engine()
    router = t.router(engine, args=("--io", io))
    body = json.dumps(chat()).encode()
    wire = dial(router.address)
    wire.send(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
              f"Content-Length: {len(body)}\r\n\r\n".encode())
    contains(wire.read_until(b"\r\n\r\n"), b"100 Continue")
    wire.send(body)
    equal(wire.read_response().status, 200)
    check(engine.completions()[0].get("expect") is None, "Expect was forwarded")


# ---- faults of an engine ----

@on_both_loops
def a_dead_engine_costs_no_request(t, io):
    alive, dead = t.engine(), t.engine()
    router = t.router(alive, dead, args=("--io", io, "--policy", "round-robin"))
    models_known(router, 2)
    dead.die()
    for _ in range(10):
        equal(ask(router.address, "POST", CHAT, chat()).status, 200)
    check(metric(router, "resent_connect_total") >= 1, "nothing was resent")
    at_rest(router)


@on_both_loops
def no_engine_left_is_told_as_503(t, io):
    dead = t.engine()
    router = t.router(dead, args=("--io", io))
    dead.die()
    answer = ask(router.address, "POST", CHAT, chat())
    equal(answer.status, 503)
    equal(answer.get("retry-after"), "1")
    check(answer.json()["error"]["type"] == "server_error", "not in OpenAI's form")
    at_rest(router)


@on_both_loops
def a_reused_connection_that_closes_is_tried_again_on_a_fresh_one(t, io):
    def script(wire, request):
        if b"close" in request.body and not getattr(wire, "fresh_seen", False) and \
                getattr(wire, "used", False):
            return False
        wire.used = True
        wire.send(response_bytes(200, {"ok": 1}))
        return True
    engine = t.engine(script)
    router = t.router(engine, args=("--io", io))
    equal(ask(router.address, "POST", CHAT, chat("open")).status, 200)
    equal(ask(router.address, "POST", CHAT, chat("close")).status, 200)
    equal(metric(router, "resent_reused_total"), 1)
    at_rest(router)


@on_both_loops
def a_fresh_connection_that_closes_is_not_tried_again(t, io):
    engine = t.engine(lambda wire, request: False)
    router = t.router(engine, args=("--io", io))
    equal(ask(router.address, "POST", CHAT, chat()).status, 502)
    equal(len(engine.completions()), 1, "attempts")
    at_rest(router)


@on_both_loops
def a_refusal_is_tried_on_one_other_engine_once(t, io):
    def refuse(wire, request):
        wire.send(response_bytes(503, {"error": {"message": "full"}}))
        return True
    full, free = t.engine(refuse), t.engine()
    router = t.router(full, free, args=("--io", io, "--policy", "round-robin"))
    models_known(router, 2)
    for _ in range(4):
        equal(ask(router.address, "POST", CHAT, chat()).status, 200)
    check(len(full.completions()) >= 1, "never tried")
    router2 = t.router(full, args=("--io", io, "--region", t.path("other")))
    answer = ask(router2.address, "POST", CHAT, chat())
    equal((answer.status, answer.json()["error"]["message"]), (503, "full"), "the last word")


@on_both_loops
def an_engine_that_refused_one_request_is_asked_again_where_there_is_no_other(t, io):
    def script(wire, request):
        if b"refuse" in request.body:
            wire.send(response_bytes(429, {"error": {"message": "not you"}},
                                     [("Retry-After", "30")]))
            return True
        return FakeEngine.answer_shortly(wire, request)
    engines = [t.engine(script), t.engine()]
    alone = t.router(engines[0], args=("--io", io))
    equal(ask(alone.address, "POST", CHAT, chat("refuse")).status, 429)
    equal(ask(alone.address, "POST", CHAT, chat()).status, 200)
    equal(ask(alone.admin, "GET", "/ready").status, 200)
    router = t.router(*engines, args=("--io", io, "--policy", "round-robin", "--region",
                                      t.path("other")))
    models_known(alone, 1)
    equal([ask(router.address, "POST", CHAT, chat("refuse")).status for _ in range(2)], [200] * 2)
    before = len(engines[0].completions())
    for _ in range(4):
        equal(ask(router.address, "POST", CHAT, chat()).status, 200)
    equal(len(engines[0].completions()), before, "it is spared while another is open")


@on_both_loops
def a_stream_cut_by_its_engine_is_visibly_cut(t, io):
    def script(wire, request):
        wire.send(STREAM_HEAD + token("a"))
        return False
    router = t.router(t.engine(script), args=("--io", io))
    answer = ask(router.address, "POST", CHAT, chat(stream=True))
    check(not answer.complete, "it passed for whole")
    contains(answer.body, b'"content": "a"')
    equal(metric(router, "requests_failed_total"), 1)
    at_rest(router)


def send_what_is_taken(wire, data):
    with contextlib.suppress(OSError, ConnectionError):
        wire.sock.sendall(data)


@on_both_loops
def an_early_refusal_of_a_long_body_reaches_the_client(t, io):
    """The engine answers and closes without reading on: its answer counts, not the failed send."""
    early = t.engine()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        for _ in range(20):
            sock, _ = listener.accept()
            wire = Wire(sock)
            if b"GET " in (wire.read_until(b"\r\n\r\n") or b"GET "):
                wire.send(early.answers["/v1/models"]())
            else:
                wire.send(response_bytes(413, {"error": {"message": "too long for me"}},
                                         [("Connection", "close")]))
            wire.close()
    threading.Thread(target=serve, daemon=True).start()
    router = t.router(f"http://127.0.0.1:{listener.getsockname()[1]}",
                      args=("--io", io, "--set", "body_cut_through=64K"))
    body = json.dumps(chat("x" * 6000000)).encode()
    for _ in range(8):
        wire = dial(router.address)
        sender = threading.Thread(target=send_what_is_taken, args=(
            wire, request_bytes("POST", CHAT, body)))
        sender.start()
        answer = wire.read_response()
        equal((answer.status, answer.json()["error"]["message"]), (413, "too long for me"))
        sender.join()
        wire.close()
    at_rest(router)


@on_both_loops
def garbage_from_an_engine_becomes_502(t, io):
    for junk in (b"\x00\x01\x02\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"hello\r\n\r\n" * 100,
                 b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
                 b"\r\nHTTP/1.1 100 Continue\r\n\r\n" + response_bytes(200, "no")):
        def script(wire, request, junk=junk):
            wire.send(junk)
            return False
        router = t.router(t.engine(script), args=("--io", io, "--region", t.path(str(len(junk)))))
        equal(ask(router.address, "POST", CHAT, chat()).status, 502, repr(junk[:20]))
        router.stop()


# ---- faults of a client ----

@on_both_loops
def a_client_that_leaves_takes_its_request_along_in_every_state(t, io):
    gate = threading.Event()
    closed = []

    def script(wire, request):
        if b"stream" in request.body:
            wire.send(STREAM_HEAD + token("a"))
        wire.wait_closed(10)
        closed.append(1)
        return False
    engine = t.engine(script)
    router = t.router(engine, args=("--io", io))
    for number, body in enumerate((chat(), chat(stream=True)), 1):
        wire = dial(router.address)
        wire.send(request_bytes("POST", CHAT, body))
        eventually(lambda n=number: len(engine.completions()) == n, 5, "it reached the engine")
        wire.close()
        eventually(lambda n=number: len(closed) == n, 5, "the engine's connection closed")
    half = dial(router.address)
    half.send(request_bytes("POST", CHAT, chat())[:80])
    half.close()
    gate.set()
    eventually(lambda: metric(router, "requests_aborted_total") >= 2, 5, "aborts are counted")
    at_rest(router)


@on_both_loops
def a_half_close_counts_as_leaving(t, io):
    def script(wire, request):
        wire.wait_closed(10)
        return False
    engine = t.engine(script)
    router = t.router(engine, args=("--io", io))
    wire = dial(router.address)
    wire.send(request_bytes("POST", CHAT, chat()))
    eventually(lambda: engine.completions(), 5, "it reached the engine")
    wire.half_close()
    eventually(lambda: not engine.open, 5, "the engine's connection closed")
    at_rest(router)


@on_both_loops
def a_client_that_does_not_read_stops_only_its_own_engine_stream(t, io):
    sent = []

    def script(wire, request):
        if b"slow" in request.body:
            wire.send(STREAM_HEAD)
            wire.sock.settimeout(0.5)
            piece = token("x" * 8000)
            try:
                for _ in range(4000):
                    wire.sock.sendall(piece)
                    sent.append(len(piece))
            except OSError:
                pass
            wire.wait_closed(20)
            return False
        return FakeEngine.answer_shortly(wire, request)
    router = t.router(t.engine(script), args=("--io", io))
    slow = dial_narrow(router.address)
    slow.send(request_bytes("POST", CHAT, chat("slow", stream=True)))
    eventually(lambda: sent and time.sleep(0.7) is None and sum(sent) > 0, 10, "it streams")
    before = sum(sent)
    for _ in range(20):
        equal(ask(router.address, "POST", CHAT, chat(stream=True)).status, 200)
    time.sleep(0.7)
    check(sum(sent) - before < 1 << 20, "the engine was read on without end")
    # Where the machine is busy, what a pause finds received already comes on top: a pool at most.
    check(metric(router, 'memory_blocks{pool="outs"}') * 4096 < 20 << 20, "output without bound")
    slow.close()
    at_rest(router)


@on_both_loops
def junk_on_any_port_harms_nobody(t, io):
    router = t.router(t.engine(), args=("--io", io))
    seeds = [os.urandom(n) for n in (1, 7, 100, 5000, 70000)] + [
        b"GET / HTTP/1.1\r\n\r\n", b"\r\n" * 5000,
        b"POST / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"GET " + b"/" * 40000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"]
    for address in (router.address, router.admin):
        for junk in seeds:
            wire = dial(address)
            try:
                wire.send(junk)
                wire.half_close()
                wire.wait_closed(12)
            except (OSError, Failed):
                pass
            wire.close()
    equal(ask(router.address, "POST", CHAT, chat()).status, 200)
    at_rest(router)


# ---- processes ----

@on_both_loops
def a_killed_worker_is_replaced_and_sessions_stay(t, io):
    engines = [t.engine() for _ in range(3)]
    router = t.router(*engines, args=("--io", io))
    text = "some long shared text " * 1000
    body = chat(text)
    equal(ask(router.address, "POST", CHAT, body, {"x-session-id": "s"}).status, 200)
    home = max(engines, key=lambda e: len(e.completions()))
    os.kill(worker_of(router), signal.SIGKILL)
    body["messages"] += [{"role": "assistant", "content": "ab"}, {"role": "user", "content": "go"}]
    eventually(lambda: answers(router.address), 5, "the next worker answers")
    equal(ask(router.address, "POST", CHAT, body, {"x-session-id": "s"}).status, 200)
    equal(len(home.completions()), 2, "the session came home")
    equal(metric(router, "worker_starts_total"), 2)
    at_rest(router)


@on_both_loops
def requests_in_flight_at_a_crash_are_counted_as_lost(t, io):
    def script(wire, request):
        wire.wait_closed(20)
        return False
    router = t.router(t.engine(script), args=("--io", io))
    wires = [dial(router.address) for _ in range(5)]
    for wire in wires:
        wire.send(request_bytes("POST", CHAT, chat()))
    eventually(lambda: metric(router, "requests_inflight") == 5, 5, "five are in flight")
    os.kill(worker_of(router), signal.SIGKILL)
    eventually(lambda: answers(router.address), 5, "the next worker answers")
    equal(metric(router, "requests_lost_total"), 5)
    at_rest(router)


@on_both_loops
def sigterm_drains_and_a_second_one_ends_at_once(t, io):
    release = threading.Event()

    def script(wire, request):
        wire.send(STREAM_HEAD + token("a"))
        release.wait(20)
        wire.send(token("b") + DONE)
        return True
    engine = t.engine(script)
    router = t.router(engine, args=("--io", io))
    result = []
    client = threading.Thread(target=lambda: result.append(
        ask(router.address, "POST", CHAT, chat(stream=True), seconds=30)))
    client.start()
    eventually(lambda: engine.completions(), 5, "it streams")
    router.send_signal(signal.SIGTERM)
    eventually(lambda: ask(router.admin, "GET", "/ready").status == 503, 5, "not ready any more")
    check(router.alive, "it did not wait")
    release.set()
    client.join()
    check(result[0].complete, "the stream was cut")
    equal(router.wait(10), 0, "exit")
    release.clear()
    router = t.router(engine, args=("--io", io))
    wire = dial(router.address)
    wire.send(request_bytes("POST", CHAT, chat(stream=True)))
    eventually(lambda: len(engine.completions()) == 2, 5, "it streams")
    router.send_signal(signal.SIGTERM)
    eventually(lambda: ask(router.admin, "GET", "/ready").status == 503, 5, "it drains")
    router.send_signal(signal.SIGTERM)
    equal(router.wait(10), 0, "exit")
    release.set()
    check(not wire.read_response().complete, "the cut is not visible")


@case
def two_routers_cannot_share_a_region(t):
    t.router(t.engine())
    second = t.run("turnward-router", "--listen", f"127.0.0.1:{t.port()}", "--region", t.region,
                   "--admin", f"127.0.0.1:{t.port()}", "--engine", "http://127.0.0.1:9")
    equal(second.code, 4, "exit")


# ---- explain and status ----

@case
def every_decision_can_be_explained(t):
    engines = [f"e{i}={t.engine().url}" for i in range(3)]
    router = t.router(*engines)
    equal(ask(router.address, "POST", CHAT, chat(), {"x-request-id": "my-1"}).get("x-request-id"),
          "my-1")
    told = t.run("turnward", "explain", "my-1", "--region", t.region, "--json", code=0).json()
    equal(told["id"], "my-1")
    equal(len(told["engines"]), 3)
    equal([e["chosen"] for e in told["engines"]].count(True), 1)
    check(told["replay_same"], "another decision from the record")
    equal(told["outcome"]["end"], "ok")
    equal(t.run("turnward", "explain", "other", "--region", t.region).code, 1)


@case
def status_tells_of_everything_from_the_region_alone(t):
    engine = t.engine()
    router = t.router(f"gpu0={engine.url}")
    equal(ask(router.address, "POST", CHAT, chat()).status, 200)
    time.sleep(0.2)
    told = t.run("turnward", "status", "--region", t.region, "--json", "-").json()
    check(told["router"]["alive"], "the router is not seen")
    equal([e["name"] for e in told["engines"]], ["gpu0"])
    equal(told["engines"][0]["ledger"]["dispatched_total"], 1)
    check(told["router"]["counters"]["decisions"] == 1, "decisions")
    router.stop()
    told = t.run("turnward", "status", "--region", t.region, "--json")
    equal(told.code, 2, "exit")
    check(not told.json()["router"]["alive"], "a dead router is shown alive")


main()
