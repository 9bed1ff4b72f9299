#!/usr/bin/env python3
"""Measures what READMEs state of the router: decisions, added latency, CPU per chunk, memory.

    tests/measure/measure.py [--other BUILD] [decide] [latency] [chunks] [memory]
                                             [shadow] [record]

Short rounds of the things compared, in turn, and their medians: run it on a quiet machine. With
--other the memory of a second build's router stands beside (-Djemalloc=disabled).
"""
import json
import os
import re
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from world import *  # noqa: E402,F403
from harness import BUILD, PROGRAMS, Test  # noqa: E402

ROUNDS = 5


def cpu_s(pid):
    """Seconds that the process has run."""
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[0]) / 1e9


def rss_mib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return int(re.search(r"RssAnon:\s+(\d+)", file.read())[1]) / 1024


def storm(t, address, *args):
    process = t.start("storm", "--address", address, "--model", MODEL, "--split", 0, *args)
    equal(process.wait(100), 0, "the storm's exit")
    told = json.loads(process.out[-1])
    clean(told)
    return told


def world(t, io, settings=(), **how):
    """A world with a region of its own within the test's."""
    base = t.base = getattr(t, "base", t.region)
    t.region = os.path.join(base, os.urandom(3).hex())
    os.mkdir(t.region, 0o750)
    return World(t, io, settings=("log_level=warn", *settings), **how)


def quantile(told, name, q):
    """Of a histogram on the router's page: the upper bound of the bucket that q falls in."""
    buckets = sorted((float(re.search(r'le="([^"]+)"', key)[1]), value)
                     for key, value in told.items() if key.startswith(f"turnward_{name}_bucket"))
    total = buckets[-1][1]
    return next(bound for bound, count in buckets if count >= q * total)


def decide(t):
    """The router's own clock around a decision: eight engines, sessions that grow."""
    place = world(t, "auto", engines=8)
    storm(t, place.router.address, "--requests", 4000, "--connections", 8, "--kinds", "chat",
          "--body", "20000-100000", "--tokens", "4-4")
    told = place.metrics()
    mean = (told["turnward_route_decision_seconds_sum"] /
            told["turnward_route_decision_seconds_count"])
    print(f"decision, 8 engines, prompts of 5,000 to 25,000 tokens: mean {mean * 1e6:.1f} us, "
          f"p50 <= {quantile(told, 'route_decision_seconds', 0.5) * 1e6:g} us, "
          f"p99 <= {quantile(told, 'route_decision_seconds', 0.99) * 1e6:g} us")


def latency(t):
    """A small answer without a stream, one client: straight from the engine, then through."""
    places = {io: world(t, io, engines=1) for io in LOOPS}
    figures = {}
    for _ in range(ROUNDS):
        for io, place in places.items():
            for way, address in (("direct", place.engines[0].address),
                                 ("router", place.router.address)):
                told = storm(t, address, "--requests", 1500, "--connections", 1, "--kinds", "chat",
                             "--body", "300-400", "--tokens", "4-4", "--close", 0)
                for q in ("p50", "p90", "p99"):
                    figures.setdefault((io, way, q), []).append(told["latency_us"][q])
    for io in places:
        for q in ("p50", "p90", "p99"):
            direct, through = (statistics.median(figures[io, way, q])
                               for way in ("direct", "router"))
            print(f"latency {io} {q}: direct {direct:.0f} us, through the router {through:.0f} us, "
                  f"added {through - direct:.0f} us")


def chunks(t):
    """Worker's CPU over chunks relayed, fifty streams at once, so slow that events come singly."""
    places = {io: world(t, io, engines=2, speed=5) for io in LOOPS}
    figures = {}
    for _ in range(ROUNDS):
        for io, place in places.items():
            before = cpu_s(place.worker())
            told = storm(t, place.router.address, "--requests", 300, "--connections", 50, "--kinds",
                         "chat-stream", "--body", "300-400", "--tokens", "100-100")
            used = cpu_s(place.worker()) - before
            figures.setdefault(io, []).append(used / told["chunks"] * 1e6)
            per_request = told["chunks"] / told["completed"]
            check(per_request > 50, f"events came together: {per_request:.0f} chunks a stream")
    for io in places:
        print(f"CPU per streamed chunk {io}: {statistics.median(figures[io]):.2f} us "
              f"(rounds {' '.join(f'{f:.2f}' for f in figures[io])})")


def shadow(t):
    """Worker's CPU per request without and with a shadow policy, eight engines, in turn."""
    places = {"without": world(t, "auto", engines=8, settings=("policy=eft",)),
              "with": world(t, "auto", engines=8,
                            settings=("policy=eft", "shadow_policy=contention"))}
    figures = {}
    for number in range(ROUNDS):
        for kind, place in places.items():
            before = cpu_s(place.worker())
            told = storm(t, place.router.address, "--requests", 2000, "--connections", 8, "--kinds",
                         "chat", "--body", "2000-20000", "--tokens", "4-4", "--seed", number)
            figures.setdefault(kind, []).append(
                (cpu_s(place.worker()) - before) / told["completed"] * 1e6)
    told = places["with"].metrics()
    mean = (told["turnward_shadow_decision_seconds_sum"] /
            told["turnward_shadow_decision_seconds_count"])
    for kind in places:
        print(f"CPU per request {kind} shadow policy: {statistics.median(figures[kind]):.1f} us "
              f"(rounds {' '.join(f'{f:.1f}' for f in figures[kind])})")
    print(f"one evaluation: mean {mean * 1e6:.2f} us, "
          f"p99 <= {quantile(told, 'shadow_decision_seconds', 0.99) * 1e6:g} us; evaluated "
          f"{told['turnward_shadow_decisions_total']:.0f}, skipped "
          f"{told['turnward_shadow_skipped_total']:.0f}")


def record(t):
    """CPU of turnward record, and of the worker beside it, at about 1,000 decisions a second."""
    place = world(t, "auto", engines=8)
    path = t.path("a.twr")
    figures = []
    for recording in (False, True, False, True):
        recorder = None
        if recording:
            recorder = t.start("turnward", "record", "--region", t.region, path,
                               ready="recording ")
        worker, pid = place.worker(), recorder and recorder.pid
        before, own, began = cpu_s(worker), recorder and cpu_s(pid), time.monotonic()
        process = t.start("storm", "--address", place.router.address, "--model", MODEL,
                          "--requests", 8000, "--connections", 2, "--pause", 1, "--kinds", "chat",
                          "--body", "300-4000", "--tokens", "4-4", "--split", 0, "--close", 0)
        equal(process.wait(100), 0, "the storm's exit")
        took = time.monotonic() - began
        line = f"{8000 / took:.0f} decisions/s: worker {(cpu_s(worker) - before) / 8000 * 1e6:.1f}"
        line += " us of CPU a request"
        if recorder:
            line += f", record {(cpu_s(pid) - own) / took * 100:.2f} % of a core"
            line += f" ({(cpu_s(pid) - own) / 8000 * 1e6:.1f} us a request)"
            recorder.stop()
            line += f", {os.path.getsize(path) / 8000:.0f} bytes a request"
            told = json.loads(recorder.err[-1])
            equal(told["gaps"], 0, "gaps")
        figures.append(line)
    print("\n".join(figures))


def memory(t, other):
    """Anonymous memory of the worker: at start, with 4,000 idle streams, after storms."""
    program = PROGRAMS["turnward-router"]
    for label, build in (("this build", BUILD), ("other build", other)):
        if not build:
            continue
        PROGRAMS["turnward-router"] = os.path.join(build, program)
        place = world(t, "auto", engines=4, speed=0.05)
        pid, figures = place.worker(), []
        figures.append(("start", rss_mib(pid)))
        held = t.start("storm", "--address", place.router.address, "--model", MODEL, "--requests",
                       4000, "--connections", 4000, "--hold", "--patience", 300, "--kinds",
                       "chat-stream", "--body", "300-400", "--tokens", "1000-1000")
        held.wait_line("holding", 60)
        figures.append(("4,000 idle streams", rss_mib(pid)))
        held.stop()
        eventually(lambda: place.metric("requests_inflight") == 0, 20)
        time.sleep(1)
        figures.append(("after them", rss_mib(pid)))
        for engine in place.engines:
            engine.kill()
        fast = world(t, "auto", engines=4)
        pid = fast.worker()
        for number in range(3):
            told = storm(t, fast.router.address, "--requests", 10000, "--connections", 1000,
                         "--abort", 30, "--seed", number)
            figures.append((f"storm {number + 1} ({told['seconds']:.1f} s, worker "
                            f"{cpu_s(pid):.2f} s)", rss_mib(pid)))
        time.sleep(5)
        figures.append(("5 s later", rss_mib(pid)))
        print(f"anonymous memory of the worker, {label}: " +
              ", ".join(f"{name} {mib:.1f} MiB" for name, mib in figures))
    PROGRAMS["turnward-router"] = program


def main():
    words = sys.argv[1:]
    other = None
    if "--other" in words:
        at = words.index("--other")
        other = os.path.abspath(words[at + 1])
        del words[at:at + 2]
    for name, function in (("decide", decide), ("latency", latency), ("chunks", chunks),
                           ("shadow", shadow), ("record", record),
                           ("memory", lambda t: memory(t, other))):
        if words and name not in words:
            continue
        t = Test(name)
        try:
            function(t)
        finally:
            t.region = getattr(t, "base", t.region)
            complaint = t.finish()
            if complaint:
                print(f"{name}: {complaint}", file=sys.stderr)
        sys.stdout.flush()


main()
