#!/usr/bin/env python3
"""The data path's limits: descriptors, time, Unix sockets and IPv6, what proxies in front wrote."""
import json
import os
import re
import resource
import signal
import socket
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import *  # noqa: E402,F403

STREAM = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}


def chat(**more):
    return dict({"model": "m", "messages": [{"role": "user", "content": "x"}]}, **more)


def cpu_s(pid):
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[0]) * 1e-9


# ---- heads, and what lies between requests ----

def counted(router, started, failed):
    page = ask(router.admin, "GET", "/metrics").body.decode()
    values = dict(l.rsplit(" ", 1) for l in page.split("\n") if l.startswith("turnward_requests_"))
    equal([float(values[f"turnward_requests_{how}_total"]) for how in
           ("started", "failed")], [started, failed], "started and failed")


@on_both_loops
def a_head_that_never_ends_is_counted_and_logged(t, io):
    router = t.router(t.engine(), args=settings(io, head_timeout="300ms"))
    router.wait_log("request")  # what showed that it runs
    before = len(router.log("request"))
    for data, status, end in ((b"GET / HTTP/1.1\r\nA: " + b"x" * 40000, 431, "refused"),
                              (b"GET /" + b"x" * 40000, 414, "refused"),
                              (b"GET / HTTP/1.1\r\nA: ", 408, "head_timeout"),
                              (b"G", 408, "head_timeout")):
        wire = dial(router.address)
        wire.send(data)
        answer = wire.read_response()
        equal(answer.status, status)
        line = router.wait_log("request", id=answer.get("x-request-id"))
        equal((line["code"], line["end"]), (status, end))
        wire.close()
    equal(len(router.log("request")) - before, 4, "lines")
    wire = dial(router.address)  # no byte, no request
    wire.wait_closed(5)
    equal(len(router.log("request")) - before, 4, "lines")
    counted(router, before + 4, 4)


@on_both_loops
def empty_lines_between_requests_are_no_request(t, io):
    router = t.router(t.engine(), args=settings(io, head_timeout="300ms"))
    wire = dial(router.address)
    post = request_bytes("POST", "/v1/chat/completions", chat())
    wire.send(b"\r\n\r")
    time.sleep(0.02)
    wire.send(b"\n" + post + b"\r\n")
    equal(wire.read_response().status, 200)
    for blank in (b"\r", b"\n\r\n\r", b"\n"):
        wire.send(blank)
        time.sleep(0.4)
    wire.send(post)
    equal(wire.read_response().status, 200, "long after empty lines")
    wire.send(b"\r")
    time.sleep(0.02)
    wire.send(post)
    equal(wire.read_response().status, 400, "half an empty line")
    wire.close()


@on_both_loops
def a_refusal_waits_for_a_client_that_is_still_sending(t, io):
    router = t.router(t.engine(), args=settings(io, max_body="1M"))
    wire = dial(router.address)
    wire.send("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"
              "Content-Length: 9000000\r\n\r\n")
    for _ in range(30):
        wire.send(b"x" * 10000)
        time.sleep(0.1)
    equal(wire.read_response().status, 413)
    wire.wait_closed(5)
    began = time.monotonic()
    wire.close()
    check(time.monotonic() - began < 3, "it lingers when nothing comes")


@on_both_loops
def a_client_that_leaves_while_it_is_not_read_is_noticed(t, io):
    left = []

    def script(wire, request):
        wire.send(STREAM_HEAD + token("a"))
        left.append(wire.wait_closed(5) and time.monotonic())
        return False
    router = t.router(t.engine(script), args=settings(io))
    for how in ("reset", "close"):
        wire = dial(router.address)
        wire.send(request_bytes("POST", "/v1/chat/completions", STREAM))
        wire.read_head()
        wire.send(request_bytes("POST", "/v1/chat/completions", b"x" * 100000))
        time.sleep(0.1)
        getattr(wire, how)()
        router.wait_log("request", seconds=2, end="client_gone", bytes_in=len(json.dumps(STREAM)))
        eventually(lambda: left, 2, "the engine is freed")
        left.clear()


@on_both_loops
def what_follows_an_answer_of_our_own_is_served(t, io):
    """Whoever answered, and wherever the second request is cut."""
    keys = t.write("keys", "k\n")
    router = t.router(t.engine(), args=settings(io, api_keys=keys))
    key = {"Authorization": "Bearer k"}
    last = request_bytes("POST", "/v1/chat/completions", chat(), key)
    for status, first in ((404, request_bytes("GET", "/nowhere", fields=key)),
                          (401, request_bytes("GET", "/v1/things")),
                          (404, request_bytes("POST", "/nowhere", fields=key)),
                          (200, request_bytes("GET", "/health", fields=key)),
                          (200, request_bytes("GET", "/v1/models", fields=key)),
                          (200, request_bytes("OPTIONS", "/v1/things",
                                              fields={"Max-Forwards": "0", **key})),
                          (404, request_bytes("POST", "/v1/chat/completions",
                                              chat(model="another"), key))):
        for cut in (0, 1, 30, len(last) - 20, len(last) - 1, len(last)):
            wire = dial(router.address)
            wire.send(first + last[:cut])
            if cut < len(last):
                time.sleep(0.02)
                wire.send(last[cut:])
            found = [wire.read_response().status for _ in range(2)]
            equal(found, [status, 200], f"{first[:40]}, the next cut at {cut}")
            wire.close()
    at_rest(router)


@on_both_loops
def errors_below_messages_are_in_anthropics_form(t, io):
    """Whatever it is that fails, and however little of the head could be read."""
    keys = t.write("keys", "k\n")
    engine = t.engine(lambda wire, request: False)
    router = t.router(engine, args=settings(io, api_keys=keys, max_body="1M", head_timeout="1s"))
    key = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    head = b"POST /v1/messages HTTP/1.1\r\n"
    for status, kind, data in (
            (401, "authentication_error", request_bytes("POST", "/v1/messages", chat())),
            (404, "not_found_error", request_bytes("POST", "/v1/messages", chat(model="n"), key)),
            (502, "api_error", request_bytes("POST", "/v1/messages?beta=true", chat(), key)),
            (502, "api_error", request_bytes("POST", "/v1/messages/count_tokens", chat(), key)),
            (502, "api_error", request_bytes("POST", "/v1/%6dessages", chat(), key)),
            (413, "request_too_large", head + b"Host: a\r\nx-api-key: k\r\n"
                                              b"Content-Length: 2000000\r\n\r\n"),
            (400, "invalid_request_error", head + b"\r\n"),
            (400, "invalid_request_error", head + b"Host: a\r\nA : b\r\n\r\n"),
            (400, "invalid_request_error", head.replace(b"/v1", b"http://a:1/v1") + b"\r\n"),
            (431, "invalid_request_error", head + b"A: " + b"x" * 40000),
            (408, "invalid_request_error", head + b"A: ")):
        wire = dial(router.address)
        wire.send(data)
        answer = wire.read_response()
        equal((answer.status, answer.json()["type"], answer.json()["error"]["type"]),
              (status, "error", kind), data[:60])
        check(set(answer.json()["error"]) == {"type", "message"}, f"{answer.body}")
        equal(answer.json()["request_id"], answer.get("x-request-id"))
        wire.close()
    for target in ("/v1/messagesx", "/v1/chat/completions", "/v1/x?/v1/messages"):
        answer = ask(router.address, "POST", target, chat(model="n"))
        equal(answer.json()["error"]["code"], "invalid_api_key", target)
    engine.die()
    answer = ask(router.address, "POST", "/v1/messages", chat(), key)
    equal((answer.status, answer.json()["error"]["type"]), (503, "overloaded_error"))


@on_both_loops
def a_single_model_is_told_from_the_same_list(t, io):
    router = t.router(t.engine(models=("m", "org/a b")), t.engine(models=("n",)), args=settings(io))
    eventually(lambda: len(ask(router.address, "GET", "/v1/models").json()["data"]) == 3, 5)
    listed = {m["id"]: m for m in ask(router.address, "GET", "/v1/models").json()["data"]}
    for target, name in (("m", "m"), ("n", "n"), ("%6e?x=1", "n"), ("org%2Fa%20b", "org/a b"),
                         ("org/a%20b", "org/a b")):
        answer = ask(router.address, "GET", f"/v1/models/{target}")
        equal((answer.status, answer.json()), (200, listed[name]), target)
    for target in ("x", "m/", "M", "org", "m%00"):
        answer = ask(router.address, "GET", f"/v1/models/{target}")
        check(answer.status == 404 and answer.json()["error"]["type"] == "invalid_request_error",
              f"{target}: {answer.start} {answer.body}")
    answer = ask(router.address, "DELETE", "/v1/models/m")
    equal((answer.status, answer.get("allow")), (405, "GET, HEAD"))


@on_both_loops
def an_engine_that_takes_any_name_has_every_model(t, io):
    engine = t.engine(models=("m",))
    lines = ("[router]", f"io = {io}", "[engine e]", f"url = {engine.url}", "any_model = yes")
    router = t.router(args=("-c", t.write("any.conf", "\n".join(lines) + "\n")))
    eventually(lambda: ask(router.address, "GET", "/v1/models/x").status == 200, 5)
    equal(ask(router.address, "GET", "/v1/models/x").json()["id"], "x")


@on_both_loops
def draining_serves_who_has_connected_and_refuses_who_has_not(t, io):
    """Also where the connection lay in the listen queue when the signal came."""
    held = threading.Event()

    def script(wire, request):
        if request.get("x-do") == "hold":
            held.wait(20)
        return FakeEngine.answer_shortly(wire, request)
    engine = t.engine(script)
    post, local = request_bytes("POST", "/v1/chat/completions", chat()), t.path("s")
    for where in (None, local):
        args = ("--region", t.path("r"), "--listen", f"unix:{where}") if where else ()
        router = t.router(engine, args=list(settings(io)) + list(args), ready=False)
        address = f"unix:{where}" if where else router.address
        eventually(lambda address=address: answers(address), 5, "the router answers")
        seen = len(engine.completions())
        holder = dial(address)
        holder.send(request_bytes("POST", "/v1/chat/completions", chat(), {"x-do": "hold"}))
        eventually(lambda s=seen: len(engine.completions()) > s, 5, "it has arrived")
        os.kill(worker_of(router), signal.SIGSTOP)
        queued = [dial(address) for _ in range(5)]
        queued[0].send(post)
        router.send_signal(signal.SIGTERM)
        os.kill(worker_of(router), signal.SIGCONT)
        router.wait_line("draining")
        for wire in queued[1:]:
            wire.send(post)
        for wire in queued:  # the first may have been served before the signal was seen
            answer = wire.read_response()
            equal(answer.status, 200)
            check(wire is queued[0] or answer.get("connection") == "close", "it may stay")
            wire.close()

        def refused(address=address):
            try:
                dial(address).close()
            except ConnectionRefusedError:
                return True
            return False
        eventually(refused, 2, "connecting is refused")
        held.set()
        equal(holder.read_response().status, 200)
        equal(router.wait(10), 0)
        held.clear()


@case
def signals_without_a_meaning_here_end_nothing(t):
    router = t.router(t.engine())
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        router.send_signal(number)
        router.send_signal(number)
    router.wait_line("has no effect")
    equal(ask(router.address, "POST", "/v1/chat/completions", chat()).status, 200)


@on_both_loops
def a_408_of_a_kept_connection_is_no_answer(t, io):
    def script(wire, request):
        if wire in used or b"always" in request.body:
            wire.send(response_bytes(408, "", {"Connection": "close"}.items()))
            return False
        used.add(wire)
        return FakeEngine.answer_shortly(wire, request)
    used = set()
    engine = t.engine(script)
    router = t.router(engine, args=settings(io))
    for n in range(3):
        answer = ask(router.address, "POST", "/v1/chat/completions", chat())
        equal(answer.status, 200, f"request {n}")
    seen = len(engine.completions())
    body = chat(x="always")
    equal(ask(router.address, "POST", "/v1/chat/completions", body).status, 408, "a second one")
    equal(len(engine.completions()) - seen, 2, "sent again once")
    equal(ask(router.address, "POST", "/v1/chat/completions", body).status, 408, "a fresh one")
    equal(len(engine.completions()) - seen, 3, "not sent again")


@on_both_loops
def what_an_engine_says_before_it_is_asked_is_no_answer(t, io):
    """It lies on a kept connection, not told yet, when a request takes that connection."""
    engine = t.engine()
    router = t.router(engine, args=settings(io))
    worker = worker_of(router)
    post = request_bytes("POST", "/v1/chat/completions", chat())
    stray = response_bytes(200, {"choices": "not asked for"})
    for round_ in range(20):
        wire = dial(router.address)
        wire.send(post)
        equal(wire.read_response().status, 200)
        kept = engine.completions()[-1].wire
        kept.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        os.kill(worker, signal.SIGSTOP)
        steps = [lambda: wire.send(post), lambda: kept.send(stray)]
        for step in steps[::round_ % 2 * 2 - 1]:
            step()
            time.sleep(0.005)
        os.kill(worker, signal.SIGCONT)
        answer = wire.read_response()
        check(answer.status == 200 and b"asked" not in answer.body, f"it got {answer.body!r}")
        wire.close()
    equal(metric(router, "engine_errors_total"), 0, "counted as the engine's error")


@case
def refusals_bear_the_fields_they_owe(t):
    router = t.router(t.engine(), args=("--set", f"api_keys={t.write('keys', 'a-key')}"))
    answer = ask(router.address, "POST", "/v1/chat/completions", chat())
    equal((answer.status, answer.get("www-authenticate")), (401, "Bearer"))
    check(re.fullmatch(r"..., \d\d ... \d{4} \d\d:\d\d:\d\d GMT", answer.get("date")), "no Date")
    for address in (router.address, router.admin):
        answer = ask(address, "POST", "/health", fields={"x-api-key": "a-key"})
        equal((answer.status, answer.get("allow")), (405, "GET, HEAD"))


# ---- descriptors ----

@on_both_loops
def few_descriptors_are_told_and_served_within(t, io):
    engine = t.engine()
    soft = 256
    port = t.port()
    router = t.start("prlimit", f"--nofile={soft}:{soft}", "--", t.program("turnward-router"),
                     "--listen", f"127.0.0.1:{port}", "--region", t.region, "--engine",
                     engine.url, *settings(io), ready=lambda: answers(f"127.0.0.1:{port}"))
    said = router.wait_log("started")
    allowed = said["connections"]
    check(0 < allowed < soft, f"{allowed} connections with {soft} descriptors")
    held = [dial(f"127.0.0.1:{port}") for _ in range(soft)]
    for wire in held[:10]:  # those that are in are served
        wire.send(request_bytes("POST", "/v1/chat/completions", chat()))
        equal(wire.read_response().status, 200)
    worker = worker_of(router)
    before, since = cpu_s(worker), time.monotonic()
    time.sleep(1)
    share = (cpu_s(worker) - before) / (time.monotonic() - since)
    check(share < 0.1 * PATIENCE, f"it spins at the limit: {share:.0%} of a core")
    for wire in held[10:]:
        wire.close()
    answer = eventually(lambda: served(f"127.0.0.1:{port}"), 5, "it accepts again")
    equal(answer.status, 200)
    for wire in held:
        wire.close()


@case
def closed_standard_streams_are_nobody_elses_descriptors(t):
    port, engine = t.port(), t.engine()
    router = t.start("/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", t.program("turnward-router"),
                     "--listen", f"127.0.0.1:{port}", "--region", t.region, "--engine", engine.url,
                     ready=lambda: answers(f"127.0.0.1:{port}"))
    for pid in router.family():
        equal([os.readlink(f"/proc/{pid}/fd/{n}") for n in range(3)], ["/dev/null"] * 3)
    equal(ask(f"127.0.0.1:{port}", "POST", "/v1/chat/completions", chat()).status, 200)


@case
def a_log_at_its_file_size_limit_ends_nothing(t):
    port, engine, log = t.port(), t.engine(), t.path("log")
    router = t.start("/bin/sh", "-c", 'log=$1; shift; exec "$@" 2>"$log"', "sh", log,
                     t.program("turnward-router"), "--listen", f"127.0.0.1:{port}", "--region",
                     t.region, "--engine", engine.url, ready=lambda: answers(f"127.0.0.1:{port}"))
    for pid in router.family():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (os.path.getsize(log) + 700,) * 2)
    for _ in range(20):
        equal(ask(f"127.0.0.1:{port}", "POST", "/v1/chat/completions", chat()).status, 200)
    time.sleep(0.2)
    equal(ask(f"127.0.0.1:{port}", "POST", "/v1/chat/completions", chat()).status, 200)
    with open(log, "rb") as file:
        check(b"ended by signal" not in file.read(), "a worker was ended")
    check(len(router.family()) == 2, "a process is missing")


@on_both_loops
def descriptors_that_run_out_at_once_stop_nothing_else(t, io):
    router = t.router(t.engine(), args=settings(io))
    worker = worker_of(router)
    kept = dial(router.address)
    kept.send(request_bytes("POST", "/v1/chat/completions", chat()))
    equal(kept.read_response().status, 200)
    _, hard = resource.prlimit(worker, resource.RLIMIT_NOFILE)
    used = len(os.listdir(f"/proc/{worker}/fd"))
    resource.prlimit(worker, resource.RLIMIT_NOFILE, (used, hard))
    held = [dial(router.address) for _ in range(20)]
    router.wait_line("no connection can be accepted")
    before, since = cpu_s(worker), time.monotonic()
    time.sleep(1)
    share = (cpu_s(worker) - before) / (time.monotonic() - since)
    check(share < 0.1 * PATIENCE, f"it spins without descriptors: {share:.0%} of a core")
    kept.send(request_bytes("POST", "/v1/chat/completions", chat()))
    equal(kept.read_response().status, 200)
    resource.prlimit(worker, resource.RLIMIT_NOFILE, (hard, hard))
    held[-1].send(request_bytes("POST", "/v1/chat/completions", chat()))
    equal(held[-1].read_response().status, 200)
    said = [l for l in router.err if "no connection can be accepted" in l]
    check(len(said) <= 1, f"said {len(said)} times")
    for wire in held + [kept]:
        wire.close()


def served(address):
    try:
        return ask(address, "POST", "/v1/chat/completions", chat())
    except (OSError, Failed):
        return None


# ---- addresses ----

@on_both_loops
def unix_sockets_serve_on_both_sides(t, io):
    engine = t.engine(path=t.path("engine.sock"))
    listen = f"unix:{t.path('router.sock')}"
    t.start("turnward-router", "--listen", listen, "--region", t.region, "--engine",
            f"a={engine.url}", *settings(io), ready=lambda: answers(listen))
    equal(ask(listen, "POST", "/v1/chat/completions", chat()).status, 200)
    streamed = ask(listen, "POST", "/v1/chat/completions", STREAM)
    equal(streamed.events[-1], "[DONE]")
    equal(len(engine.completions()), 2)


@on_both_loops
def ipv6_serves_on_both_sides(t, io):
    engine = t.engine(family=socket.AF_INET6)
    port = t.port()
    t.start("turnward-router", "--listen", f"[::1]:{port}", "--region", t.region, "--engine",
            engine.url, *settings(io), ready=lambda: answers(f"[::1]:{port}"))
    equal(ask(f"[::1]:{port}", "POST", "/v1/chat/completions", chat()).status, 200)


# ---- what proxies write ----

@on_both_loops
def forwarded_for_is_added_as_configured(t, io):
    for how, sent, wanted in (("off", None, []), ("off", "203.0.113.7", ["203.0.113.7"]),
                              ("append", None, ["127.0.0.1"]),
                              ("append", "203.0.113.7", ["203.0.113.7, 127.0.0.1"]),
                              ("trust", None, ["127.0.0.1"]),
                              ("trust", "203.0.113.7", ["203.0.113.7"])):
        engine = t.engine()
        router = t.router(engine, args=settings(io, forwarded_for=how))
        fields = [("X-Forwarded-For", sent)] if sent else []
        ask(router.address, "POST", "/v1/chat/completions", chat(), fields)
        equal(engine.completions()[-1].all("x-forwarded-for"), wanted, f"{how}, sent {sent}")
        router.stop()


@on_both_loops
def via_names_the_router_both_ways_when_asked(t, io):
    engine = t.engine()
    router = t.router(engine, args=settings(io, via="turnward"))
    answer = ask(router.address, "POST", "/v1/chat/completions", chat(), [("Via", "1.1 front")])
    equal(engine.completions()[-1].all("via"), ["1.1 front", "1.1 turnward"])
    equal(answer.all("via"), ["1.1 turnward"])


# ---- time ----

@on_both_loops
def a_body_that_trickles_is_given_up(t, io):
    engine = t.engine()
    router = t.router(engine, args=settings(io, body_timeout="400ms", body_rate=1000))
    wire = dial(router.address)
    wire.send("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n")
    for _ in range(100):  # never silent for long, never fast enough
        try:
            wire.send(b"x")
            time.sleep(0.02)
        except OSError:
            break
    answer = wire.read_response()
    equal(answer.status, 408)
    equal(answer.json()["error"]["code"], "body_rate")
    equal(router.wait_log("request")["end"], "body_rate")
    equal(engine.completions(), [])


@on_both_loops
def a_body_sent_ahead_is_whole_and_where_it_was_decided(t, io):
    """The guess comes true; is wrong in the end, as another model is named; its engine goes."""
    first, other = t.engine(), t.engine(models=("other",))
    router = t.router(first, other, args=("--io", io, "--set", "body_ahead=100K",
                                          "--set", "stream_hint=no", "--set", "body_timeout=900ms"))
    served(router.address)

    def whole(engine):
        return [r for r in engine.completions() if r.complete]

    def send(model, early, rest=True):
        body = ('{"model":"m","messages":[{"role":"user","content":"%s"}],"model":"%s"}'
                % ("word " * 60000, model)).encode()
        wire = dial(router.address)
        wire.send(request_bytes("POST", "/v1/chat/completions").replace(
            b"Content-Length: 0", b"Content-Length: %d" % len(body)) + body[:200000])
        eventually(lambda: metric(router, "ahead_requests_total") > early, 5, "sent ahead")
        if rest:
            wire.send(body[200000:])
        return wire, body

    for model, engine, wrong in (("m", first, 0), ("other", other, 1), ("m", first, 1)):
        had = len(whole(first)) + len(whole(other))
        wire, body = send(model, metric(router, "ahead_requests_total"))
        equal(wire.read_response().status, 200, model)
        equal(whole(engine)[-1].body, body, "whole, at its engine")
        equal(len(whole(first)) + len(whole(other)), had + 1, "and at no other")
        equal(metric(router, "ahead_wrong_total"), wrong, "wrong guesses")
        wire.close()
    had = len(whole(first))
    send("m", metric(router, "ahead_requests_total"), rest=False)[0].close()
    router.wait_log("request", end="client_gone")
    wire, _ = send("m", metric(router, "ahead_requests_total"), rest=False)
    equal(wire.read_response().status, 408, "one that stops")
    equal(len(whole(first)), had, "no engine has run a part")
    wire, body = send("m", metric(router, "ahead_requests_total"), rest=False)
    first.die()
    wire.send(body[200000:])
    equal(wire.read_response().status, 503, "no engine is left for it")


@on_both_loops
def a_body_that_keeps_its_rate_may_take_longer_than_body_timeout(t, io):
    engine = t.engine()
    router = t.router(engine, args=settings(io, body_timeout="500ms", body_rate=1000))
    body = json.dumps(chat(user="x" * 5000)).encode()
    wire = dial(router.address)
    wire.send("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"
              f"Content-Length: {len(body)}\r\n\r\n")
    for at in range(0, len(body), 250):
        wire.send(body[at:at + 250])
        time.sleep(0.04)
    equal(wire.read_response().status, 200)


@on_both_loops
def a_client_that_takes_its_answer_slowly_is_not_one_that_takes_nothing(t, io):
    size = 8 << 20

    def script(wire, request):
        wire.send(response_bytes(200, b"z" * size))
        return True
    router = t.router(t.engine(script), args=settings(io, client_send_timeout="2s"))
    wire = dial_narrow(router.address)
    wire.send(request_bytes("POST", "/v1/embeddings", chat()))
    equal(wire.read_head().status, 200)
    read, end = 0, time.monotonic() + 5
    while time.monotonic() < end:  # far less than one send of the router's in each 2 s
        read += len(wire.buffer)
        wire.buffer = b""
        time.sleep(0.05)
        wire.sock.settimeout(10 * PATIENCE)
        wire.buffer = wire.sock.recv(512)
    check(read < size // 4, "it read too fast to show anything")
    equal(read + len(wire.read_exactly(size - read)), size, "bytes")
    equal(router.wait_log("request", path="EMBEDDINGS")["end"], "ok")


@on_both_loops
def a_half_close_that_is_believed_ends_after_every_answer(t, io):
    def script(wire, request):
        time.sleep(0.01)
        wire.send(response_bytes(200, {"echo": request.json()["n"]}))
        return True
    router = t.router(t.engine(script), args=settings(io, on_half_close="continue"))

    def post(n, size=10):
        return request_bytes("POST", "/v1/embeddings", {"model": "m", "n": n, "x": "y" * size})
    for count, size, rest in ((1, 10, b""), (3, 10, b""), (80, 1000, b""), (2, 10, post(9)[:-5]),
                              (2, 10, post(9)[:40])):
        wire = dial(router.address)
        wire.send(b"".join(post(n, size) for n in range(count)) + rest)
        wire.half_close()
        equal([wire.read_response().json()["echo"] for _ in range(count)], list(range(count)))
        equal((wire.read_head(), wire.buffer), (None, b""), "behind the last")
        wire.close()
    equal(len(router.log("request", end="client_gone")), 1, "the one whose body was cut")
    at_rest(router)


@on_both_loops
def a_silent_stream_gets_comments_when_asked(t, io):
    def script(wire, request):
        wire.send(STREAM_HEAD)
        time.sleep(0.6)
        wire.send(token("a"))
        wire.send(chunk("event: x\n"))  # not between events: no comment here
        time.sleep(0.6)
        wire.send(chunk('data: {"choices":[]}\n\n') + DONE)
        return True
    router = t.router(t.engine(script), args=settings(io, keepalive_comment="100ms"))
    answer = ask(router.address, "POST", "/v1/chat/completions", STREAM)
    check(answer.complete, "the stream is cut")
    before, _, after = answer.body.partition(b'"content": "a"')
    check(before.count(b": keepalive\n\n") >= 2, f"no comments while waiting: {before!r}")
    check(b"event: x\ndata:" in after, f"a comment within an event: {after!r}")
    equal(answer.events[-1], "[DONE]")


@on_both_loops
def no_comment_is_sent_unasked_or_into_other_answers(t, io):
    def script(wire, request):
        if b"stream" in request.body:
            wire.send(STREAM_HEAD)
            time.sleep(0.3)
            wire.send(token("a") + DONE)
        else:
            wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                      b"Transfer-Encoding: chunked\r\n\r\n")
            time.sleep(0.3)
            wire.send(chunk("{}") + LAST_CHUNK)
        return True
    engine = t.engine(script)
    router = t.router(engine, args=settings(io))
    check(b"keepalive" not in ask(router.address, "POST", "/v1/chat/completions", STREAM).body,
          "a comment that nobody asked for")
    router.stop()
    router = t.router(engine, args=settings(io, keepalive_comment="50ms"))
    equal(ask(router.address, "POST", "/v1/chat/completions", chat()).body, b"{}")


@case
def a_via_that_is_no_token_is_refused(t):
    done = t.run("turnward-router", "--set", "via=not a token", code=78)
    contains(done.err, "via")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(
        resource.RLIMIT_NOFILE)[1]))
    main()
