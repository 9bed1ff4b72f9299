#!/usr/bin/env python3
"""The harness itself: it must see crashes and reports, end what it started, and speak HTTP."""
import os
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import *  # noqa: E402,F403
import harness  # noqa: E402


def verdict_of(function):
    verdict = harness.run_case(function)
    signal.alarm(60)
    return verdict


def expect_failure(function, text):
    verdict = verdict_of(function)
    check(verdict and verdict[0] == "not ok", f"{function.__name__} passed")
    contains(verdict[1], text, function.__name__)


@case
def a_crash_of_any_child_fails_the_case(t):
    def crash(inner):
        inner.start("sh", "-c", "kill -SEGV $$").wait()
    expect_failure(crash, "died of SIGSEGV")


@case
def a_sanitizers_report_fails_the_case(t):
    def report(inner):
        inner.run("sh", "-c", "echo 'x.c:1:2: runtime error: shift' >&2")
    expect_failure(report, "runtime error")


@case
def a_crash_of_a_child_s_child_that_is_told_fails_the_case(t):
    def told(inner):
        inner.run("sh", "-c", "echo 'worker 7 was ended by signal 11 (Segmentation fault)' >&2")
    expect_failure(told, "signal 11")


@case
def a_failed_claim_shows_what_the_children_said(t):
    def fail(inner):
        inner.run("sh", "-c", "echo last words >&2")
        equal(1, 2, "sum")
    expect_failure(fail, "sum: got 1, wanted 2")
    expect_failure(fail, "sh: last words")


@case
def a_skipped_case_says_why(t):
    def skipped(inner):
        raise Skip("no such kernel")
    equal(verdict_of(skipped), ("skip", "no such kernel"))


@case
def a_child_that_ignores_sigterm_is_killed_and_told(t):
    pids = []

    def stubborn(inner):
        p = inner.start("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done",
                        ready="up")
        pids.append(p.pid)
    expect_failure(stubborn, "did not end at SIGTERM")
    check(not os.path.exists(f"/proc/{pids[0]}"), "it still runs")


@case
def what_a_case_made_is_gone_afterwards(t):
    places = []

    def make(inner):
        inner.write("file", "x")
        places.extend([inner.dir, inner.region])
    equal(verdict_of(make), None)
    check(not any(os.path.exists(p) for p in places), "a folder is left")


@case
def a_grandchild_left_behind_is_ended_too(t):
    pids = []

    def leave(inner):
        p = inner.start("sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!", ready="")
        p.wait()
        pids.append(int(p.out[0]))
    equal(verdict_of(leave), None)
    eventually(lambda: not os.path.exists(f"/proc/{pids[0]}"), 2, "it ends")


@case
def other_processes_are_left_alone(t):
    other = subprocess.Popen(["sleep", "60"])

    def short(inner):
        inner.start("sleep", "60")
    equal(verdict_of(short), None)
    alive = other.poll() is None
    other.kill()
    other.wait()
    check(alive, "a process that is not the case's was ended")


@case
def the_fake_engine_answers_and_keeps_what_it_got(t):
    engine = t.engine()
    wire = dial(engine.address)
    wire.send(request_bytes("POST", "/v1/chat/completions", {"model": "m"}, {"X-A": "1"}))
    equal(wire.read_response().json()["usage"]["prompt_tokens"], 10)
    wire.send(request_bytes("POST", "/v1/chat/completions", {"stream": True}))
    answer = wire.read_response()
    equal(answer.events[-1], "[DONE]")
    check(answer.complete, "the stream was cut")
    equal(engine.connections, 1)
    equal([r.method for r in engine.completions()], ["POST", "POST"])
    equal(engine.requests[0].get("x-a"), "1")
    equal(ask(engine.address, "GET", "/v1/models").json()["data"][0]["id"], "m")


@case
def a_cut_stream_is_seen_as_cut(t):
    def script(wire, request):
        wire.send(harness.STREAM_HEAD + token("a"))
        return False
    answer = ask(t.engine(script).address, "POST", "/x", {})
    equal(len(answer.events), 1)
    check(not answer.complete, "it passed for whole")


@case
def an_engine_that_dies_resets_and_refuses(t):
    def script(wire, request):
        wire.send(harness.STREAM_HEAD)
        wire.wait_closed(20)
        return False
    engine = t.engine(script)
    wire = dial(engine.address)
    wire.send(request_bytes("POST", "/x", {}))
    wire.read_head()
    engine.die()
    check(wire.wait_closed(2) < 1, "the connection stays")
    try:
        dial(engine.address)
    except ConnectionRefusedError:
        return
    raise Failed("it still listens")


@case
def unix_sockets_and_ipv6_work_too(t):
    engine = t.engine(path=t.path("e.sock"))
    equal(ask(engine.url, "GET", "/health").status, 200)
    if not socket.has_ipv6 or not os.path.exists("/proc/net/if_inet6"):
        raise Skip("no IPv6 here")
    engine = t.engine(family=socket.AF_INET6)
    equal(ask(engine.address, "GET", "/health").status, 200)


@case
def log_lines_are_found_by_event_and_field(t):
    p = t.start("sh", "-c", """echo noise >&2; echo '{"ev":"a","n":1}' >&2; sleep 0.1
                echo '{"ev":"a","n":2}' >&2; exec sleep 5""")
    equal(p.wait_log("a", n=2)["n"], 2)
    equal(len(p.log("a")), 2)
    started = time.monotonic()
    p.stop()
    check(time.monotonic() - started < 4, "it was waited for")


main()
