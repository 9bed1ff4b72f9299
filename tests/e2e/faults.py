#!/usr/bin/env python3
"""Whole kinds of fault: death at every byte, bodies of any bytes, races, slow clients, secrets."""
import json
import os
import random
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


# ---- an engine that dies at each byte ----

WHOLE = {
    "a length": response_bytes(200, {"id": "r", "usage": {"prompt_tokens": 1}}),
    "chunks": (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
               b"Transfer-Encoding: chunked\r\n\r\n" + chunk('{"id":') +
               chunk('"r"}') + LAST_CHUNK),
    "a stream": STREAM_HEAD + token("a") + token("b") + DONE,
}


@on_both_loops
def an_engine_that_dies_at_any_byte_is_never_taken_for_whole(t, io):
    now = {}

    def script(wire, request):
        wire.send(now["bytes"])
        if now["reset"]:
            time.sleep(0.002)  # a reset overtakes what was sent just before
            wire.reset()
        return False
    router = t.router(t.engine(script), args=settings(io))
    for kind, whole in WHOLE.items():
        body = chat(stream=kind == "a stream")
        for cut in range(len(whole)):
            now.update(bytes=whole[:cut], reset=cut % 2)
            wire = dial(router.address)
            wire.send(request_bytes("POST", CHAT, body))
            head = wire.read_head()
            check(head is not None, f"{kind}, cut at {cut}: no answer at all")
            wire.read_body(head, to_end=True)
            wire.close()
            if head.status == 200:
                check(not head.complete, f"{kind}, cut at {cut}: passed for whole")
            else:
                check(head.status == 502 and head.complete, f"{kind}, cut at {cut}: {head.start}")
    now.update(bytes=WHOLE["a length"], reset=False)
    equal(ask(router.address, "POST", CHAT, chat()).status, 200)
    at_rest(router)


# ---- bodies ----

def odd_bodies():
    """What parsers stumble over; none of it is the router's business."""
    deep = 100000
    texts = [
        "", " ", "{", "}", "[", "]", "{}", "[]", "null", "true", "1", "-", "-0", "1e400", "1E+",
        ".5",
        "0x10", "NaN", "Infinity", "'a'", "\"a", "\"\\", "\"\\u", "\"\\u12", "\"\\uD800\"",
        "\"\\uDC00\\uD800\"", "\"\\u0000\"", "[1,]", "[,1]", "{\"a\":}", "{\"a\"}", "{a:1}",
        "{\"a\":1,}",
        "{\"model\":1}", "{\"model\":null}", "{\"model\":[]}", "{\"model\":\"m\",\"model\":\"x\"}",
        "{\"mod\\u0065l\":\"m\"}", "{\"model\":\"m\"}trailing", "{\"model\":\"m\"}{}", "// c\n{}",
        "{\"model\":\"m\",\"messages\":null}", "{\"model\":\"m\",\"messages\":{}}",
        "{\"model\":\"m\",\"messages\":[null,1,\"a\",[],{}]}",
        "{\"model\":\"m\",\"messages\":[{\"content\":{}}]}", "{\"model\":\"m\",\"stream\":\"yes\"}",
        "{\"model\":\"m\",\"n\":-1}", "{\"model\":\"m\",\"n\":1e99}",
        "{\"model\":\"m\",\"max_tokens\":\"9\"}",
        "{\"model\":\"m\",\"seed\":123456789012345678901234567890}",
        "[" * deep, "[" * deep + "]" * deep, "{\"a\":" * deep, "[{\"a\":" * deep,
        "{\"model\":\"m\",\"messages\":" + "[" * deep, "\"" + "a" * 3000000,
        "{\"model\":\"m\",\"x\":\"" + "\\\\" * 500000 + "\"}", "[" + "0," * 500000 + "0]",
        "{" + ",".join(f"\"k{i}\":{i}" for i in range(50000)) + "}", "\ufeff{}", "\u2028", "é",
    ]
    r = random.Random(7)
    raw = [b"\x00", b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
           b"{\"model\":\"\xff\"}", b"\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"0\r\n\r\n"]
    raw += [bytes(r.randrange(256) for _ in range(r.randrange(1, 400))) for _ in range(60)]
    raw += [bytes(r.choice(b'{}[]",:\\ \n01etn') for _ in range(r.randrange(1, 400)))
            for _ in range(60)]
    return [text.encode("utf-8", "surrogatepass") for text in texts] + raw


@on_both_loops
def bodies_of_any_bytes_arrive_unchanged_and_harm_nobody(t, io):
    engine = t.engine(models=())  # takes any name
    router = t.router(engine, args=settings(io))
    for path in (CHAT, "/v1/completions", "/v1/responses", "/v1/messages"):
        for body in odd_bodies():
            seen = len(engine.completions())
            answer = ask(router.address, "POST", path, body,
                         [("Content-Type", "application/json")], seconds=30)
            equal(answer.status, 200, f"{path} {body[:60]!r}")
            check(engine.completions()[seen].body == body, f"{path} changed {body[:60]!r}")
    equal(router.log("notice", lvl="error"), [])
    at_rest(router)


@on_both_loops
def bodies_at_every_boundary_of_a_buffer_arrive_whole(t, io):
    engine = t.engine(models=())
    router = t.router(engine, args=settings(io))
    sizes = [n + d for n in (16384, 32768, 65536, 131072, 262144, 1 << 20, 4 << 20, 8 << 20)
             for d in (-1, 0, 1)]
    for size in sizes:
        body = b'{"model":"m","x":"' + b"y" * (size - 20) + b'"}'
        for chunked in (False, True):
            wire = dial(router.address, 30)
            if chunked:
                wire.send("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"
                          "Transfer-Encoding: chunked\r\n\r\n")
                for at in range(0, size, 100000):
                    wire.send(chunk(body[at:at + 100000]))
                wire.send(LAST_CHUNK)
            else:
                wire.send(request_bytes("POST", CHAT, body))
            equal(wire.read_response().status, 200)
            wire.close()
            check(engine.completions()[-1].body == body, f"{size} bytes, chunked {chunked}")


@on_both_loops
def answers_of_any_size_arrive_whole(t, io):
    size = {}

    def script(wire, request):
        if request.get("x-event"):
            wire.send(STREAM_HEAD)
            wire.send(event("z" * size["now"]) + DONE)
        else:
            wire.send(response_bytes(200, b"z" * size["now"]))
        return True
    router = t.router(t.engine(script), args=settings(io))
    for size["now"] in (1, 16383, 16384, 16385, 65536, 1 << 20, 5 << 20, 50 << 20):
        answer = ask(router.address, "POST", "/v1/embeddings", chat(), seconds=60)
        check(answer.complete and answer.body == b"z" * size["now"], f"{size} bytes")
    for size["now"] in (16384, 1 << 20, 5 << 20):  # one event
        answer = ask(router.address, "POST", CHAT, chat(stream=True), {"x-event": "1"}, 60)
        check(answer.complete and len(answer.events[0]) == size["now"], f"an event of {size}")


@on_both_loops
def the_list_of_models_is_whole_while_an_engine_is_down(t, io):
    engines = [t.engine(models=("a", "b")), t.engine(models=("b", "c"))]
    router = t.router(*engines, args=settings(io))

    def listed():
        return sorted(m["id"] for m in ask(router.address, "GET", "/v1/models").json()["data"])
    eventually(lambda: listed() == ["a", "b", "c"], 10, "the union")
    engines[0].die()
    for _ in range(5):
        check(set(listed()) >= {"b", "c"}, listed())
        time.sleep(0.1)


# ---- races ----

@on_both_loops
def kept_connections_that_close_under_a_request_cost_none_in_a_thousand(t, io):
    r = random.Random(11)

    def script(wire, request):
        wire.send(response_bytes(200, {"choices": []}))
        time.sleep(r.random() * 0.002)
        return False
    router = t.router(t.engine(script), args=settings(io))
    wire, bad = dial(router.address), []
    for _ in range(1000):
        wire.send(request_bytes("POST", CHAT, chat()))
        answer = wire.read_response()
        if answer.status != 200:
            bad.append(answer.start)
        time.sleep(r.random() * 0.002)
    wire.close()
    check(not bad, f"{len(bad)} failed: {bad[:3]}")
    check(metric(router, "resent_reused_total") > 0, "the race was never met")


@on_both_loops
def an_answer_that_ends_while_its_stream_is_paused_leaves_a_connection_that_hears(t, io):
    def script(wire, request):
        if request.get("x-size"):
            worker = worker_of(router)
            os.kill(worker, signal.SIGSTOP)  # so that much of it is read in one turn
            threading.Timer(0.03, os.kill, (worker, signal.SIGCONT)).start()
            wire.send(response_bytes(200, b"z" * int(request.get("x-size"))))
            return True
        return FakeEngine.answer_shortly(wire, request)
    engine = t.engine(script)
    router = t.router(engine, args=settings(io, first_byte_timeout="3s"))
    for size in range(240 << 10, 640 << 10, 16 << 10):
        answer = ask(router.address, "POST", CHAT, chat(), {"x-size": str(size)})
        equal((answer.complete, len(answer.body)), (True, size))
        equal(ask(router.address, "POST", CHAT, chat()).status, 200, f"behind {size} bytes")
    at_rest(router)


@on_both_loops
def an_engine_that_took_the_request_on_a_fresh_connection_gets_it_once(t, io):
    def script(wire, request):
        wire.reset()
        return False
    engines = [t.engine(script) for _ in range(2)]
    router = t.router(*engines, args=settings(io))
    equal(ask(router.address, "POST", CHAT, chat()).status, 502)
    equal(sum(len(e.completions()) for e in engines), 1, "arrivals")
    equal(metric(router, "resent_reused_total") + metric(router, "resent_refused_total"), 0)


# ---- clients that are slow, or leave ----

@on_both_loops
def two_hundred_dribbling_heads_are_cut_and_hold_up_nobody(t, io):
    router = t.router(t.engine(), args=settings(io, head_timeout="1s"))
    wires = [dial(router.address) for _ in range(200)]
    head = request_bytes("POST", CHAT, chat()).decode()
    alive, at, end = set(range(200)), 0, time.monotonic() + 20 * PATIENCE
    while alive and time.monotonic() < end:
        for n in list(alive):
            try:
                wires[n].sock.send(head[at % 40].encode() if at % 40 else b"P")
                wires[n].sock.setblocking(False)
                if wires[n].sock.recv(1000) is not None:
                    alive.discard(n)  # answered 408, or closed
            except BlockingIOError:
                pass
            except OSError:
                alive.discard(n)
        at += 1
        equal(ask(router.address, "POST", CHAT, chat()).status, 200)
    check(not alive, f"{len(alive)} were never cut")
    for wire in wires:
        wire.close()
    at_rest(router)


@on_both_loops
def a_client_that_leaves_frees_the_engine_in_every_state(t, io):
    left, arrived = {}, []

    def script(wire, request):
        kind = request.get("x-kind")
        arrived.append(kind)
        if kind == "streaming":
            wire.send(STREAM_HEAD + token("a"))
        if kind == "answering":
            wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nbegun")
        wire.wait_closed(20)
        left[kind] = time.monotonic()
        return False
    router = t.router(t.engine(script), args=settings(io))
    for kind in ("waiting", "streaming", "answering"):
        for reset in (False, True):
            left.clear()
            arrived.clear()
            wire = dial(router.address)
            wire.send(request_bytes("POST", CHAT, chat(stream=kind == "streaming"),
                                    {"x-kind": kind}))
            if kind != "waiting":
                wire.read_head()
            else:
                eventually(lambda: arrived, 5, "it has arrived")
            (wire.reset if reset else wire.close)()
            gone = time.monotonic()
            eventually(lambda: kind in left, 5, f"{kind}: the engine is let go")
            check(left[kind] - gone < 0.5 * PATIENCE, f"{kind}: after {left[kind] - gone:.3f} s")
    at_rest(router)


# ---- what is told ----

@on_both_loops
def secrets_are_nowhere(t, io):
    canary = "canary-7f3a"

    def script(wire, request):
        wire.send(STREAM_HEAD + token(canary + "-completion") + DONE)
        return True
    record = t.path("record")
    router = t.router(t.engine(script), args=settings(io, log_level="debug"))
    recorder = t.start("turnward", "record", record, "--region", t.region, ready="recording")
    fields = {"Authorization": f"Bearer {canary}-key", "x-api-key": f"{canary}-key",
              "Cookie": f"a={canary}-cookie", "X-Session-Id": f"{canary}-session",
              "X-Other": f"{canary}-other"}
    body = chat(f"{canary}-prompt", stream=True, user=f"{canary}-user",
                metadata={"user_id": f"{canary}-user"})
    for _ in range(3):
        answer = ask(router.address, "POST", f"{CHAT}?key={canary}-query", body, fields)
        contains(answer.body, f"{canary}-completion".encode())
    ask(router.address, "POST", f"/nowhere/{canary}-path", body, fields)
    ask(router.address, "GET", f"/v1/models?{canary}-query", fields=fields)
    told = {"the log": "\n".join(router.err).encode(),
            "/metrics": ask(router.admin, "GET", "/metrics").body,
            "/status": ask(router.admin, "GET", "/status").body,
            "explain": t.run("turnward", "explain", answer.get("x-request-id"), "--region",
                             t.region, code=0).out.encode()}
    recorder.stop()
    for place in os.listdir(t.region):
        path = os.path.join(t.region, place)
        if os.path.isfile(path):
            with open(path, "rb") as file:
                told[place] = file.read()
    with open(record, "rb") as file:
        told["the recording"] = file.read()
    for place, data in told.items():
        check(canary.encode() not in data, f"a secret is in {place}")
    check(len(told) > 5, f"looked only at {list(told)}")


@on_both_loops
def a_log_that_nobody_reads_holds_up_nobody(t, io):
    engine, port, fifo = t.engine(), t.port(), t.path("fifo")
    os.mkfifo(fifo)
    end = os.open(fifo, os.O_RDWR)  # open, and never read
    router = " ".join([t.program("turnward-router"), "--listen", f"127.0.0.1:{port}", "--region",
                       t.region, "--engine", engine.url] + settings(io))
    t.start("sh", "-c", f"exec {router} 2>{fifo}", ready=lambda: answers(f"127.0.0.1:{port}"))
    wire = dial(f"127.0.0.1:{port}")
    for _ in range(1000):
        wire.send(request_bytes("POST", CHAT, chat()))
        equal(wire.read_response().status, 200)
    wire.close()
    text = ask(f"unix:{t.region}/admin.sock", "GET", "/metrics").body.decode()
    dropped = [l for l in text.split("\n") if l.startswith("turnward_log_dropped_total")]
    check(dropped and float(dropped[0].split()[-1]) > 0, f"nothing was dropped: {dropped}")
    os.close(end)


@on_both_loops
def every_request_leaves_one_line_that_parses(t, io):
    router = t.router(t.engine(), args=settings(io))
    odd = ["\"quote", "back\\slash", "\x7f", "\u2028", "tab\there"]
    with socket.create_connection(tuple(router.address.rsplit(":", 1))) as sock:
        sock.sendall(b"junk\x1b[31m\n\r\n\r\n")
        sock.recv(1000)
    for text in odd:
        raw = text.encode("utf-8")
        wire = dial(router.address)
        wire.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX-Session-Id: " +
                  raw.replace(b"\x7f", b"x") + b"\r\nx-request-id: " + raw.replace(b"\x7f", b"x") +
                  b"\r\nContent-Length: 13\r\n\r\n" + b'{"model":"m"}')
        equal(wire.read_response().status, 200)
        wire.close()
        ask(router.address, "POST", CHAT, json.dumps(chat(model=text)))
    at_rest(router)
    time.sleep(0.1)
    for line in router.err:
        json.loads(line)
        check("\x1b" not in line, f"an escape in {line!r}")
    ended = [e for e in router.log("request") if e.get("path") != "HEALTH"]
    equal(len(ended), 2 * len(odd) + 1, "lines")
    for entry in ended:
        check(entry.get("end") and "dur_s" in entry and "bytes_in" in entry, entry)


if __name__ == "__main__":
    main()
