#!/usr/bin/env python3
"""Measures what bpf/README.md states of timing: predictions, agreement, step response, cost.

    tests/measure/latency.py [prediction] [agreement] [step] [cost]

Modelled engines on the wall clock, the real router, and the probe where the kernel permits it.
"""
import json
import os
import random
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from world import *  # noqa: E402,F403
from harness import BUILD, PROGRAMS, Test  # noqa: E402

CHAT = "/v1/chat/completions"


def live(t, place, speed, *args):
    """Plays agentic sessions through a world's router; the bench's report."""
    argv = [w for e in place.engines for w in ("--lateness", e.url)]
    done = t.run("turnward-bench", "live", "--router", place.router.address, "--admin",
                 place.router.admin, "--speed", speed, "--json", "-", *argv, *args, seconds=100)
    return json.loads(done.out)


def prediction(t, speed=6):
    """Predicted against measured TTFT, engine by engine."""
    for policy in ("contention", "eft"):
        place = fresh_world(t, engines=4, speed=speed, engine_args=("--realtime",),
                            settings=(f"policy={policy}", f"time_scale={speed}"))
        told = live(t, place, speed, "--limit", 60, "--rate", 0.6, "--measure", 25,
                    "--think-max", 20)
        errors = {k.split('"')[1]: v for k, v in place.metrics().items()
                  if k.startswith("turnward_ttft_prediction_error_median{")}
        print(f"{policy}: median error " +
              ", ".join(f"{name} {value * 100:.1f} %" for name, value in sorted(errors.items())) +
              f"; {json.dumps(told)[:300]}", flush=True)


# ---- one engine becomes five times slower under traffic, and well again ----

STEP_SPEED = 6
BEFORE_S, SLOW_S, AFTER_S = 8, 12, 14  # wall
CLIENTS, TURNS, TURN_WORDS, THINK_S = 24, 6, (600, 3000), 1.0
ARMS = {
    "probe": ("migration_trigger=recent-ttft",),
    "router": ("migration_trigger=recent-ttft",),
    "neither": ("migration_trigger=none", "calibration_max=1"),
}


class Load:
    """Clients that each play session after session, turn after turn, thinking in between."""

    def __init__(self, address, clients):
        self.address, self.stopping, self.ttft = address, False, []
        self.threads = [threading.Thread(target=self.play, args=(i,)) for i in range(clients)]
        for thread in self.threads:
            thread.start()

    def play(self, number):
        draw = random.Random(number)
        wire = dial(self.address, 60)
        while not self.stopping:
            name = f"{number}-{draw.random()}"
            messages = []
            for _ in range(TURNS):
                words = draw.randrange(*TURN_WORDS)
                messages.append({"role": "user", "content": f"{name} " * 4 + "word " * words})
                begun = time.monotonic()
                wire.send(request_bytes("POST", CHAT, {
                    "model": MODEL, "stream": True, "max_tokens": 12, "messages": messages},
                    {"X-Session-Id": name}))
                wire.read_response()
                self.ttft.append((begun, time.monotonic() - begun))
                messages.append({"role": "assistant", "content": "so it is " * 3})
                if self.stopping:
                    return
                time.sleep(draw.random() * 2 * THINK_S / STEP_SPEED)

    def stop(self):
        self.stopping = True
        for thread in self.threads:
            thread.join()


def shares(counts, moments, index=0, span_s=1.0):
    """Pairs (time, the engine's share of what was sent in the span before)."""
    found = []
    for i, now in enumerate(moments):
        j = next((k for k in range(i) if moments[k] >= now - span_s), i)
        sent = [b - a for a, b in zip(counts[j], counts[i])]
        if sum(sent) >= 4:
            found.append((now, sent[index] / sum(sent)))
    return found


def first_time(pairs, begin, end, holds, span_s=1.0):
    """Seconds after `begin` from when on the condition holds for a span; None if never."""
    since = None
    for now, share in pairs:
        if not begin <= now <= end:
            continue
        if not holds(share):
            since = None
        elif since is None:
            since = now
        if since is not None and now - since >= span_s:
            return since - begin
    return None


def step_arm(t, arm):
    place = fresh_world(t, engines=4, speed=STEP_SPEED, engine_args=("--realtime",), agents=False,
                        settings=(f"time_scale={STEP_SPEED}", "policy=contention", *ARMS[arm]))
    if arm == "probe":
        process = t.start("turnward-probe", "--region", t.region, "--require-bpf", "--window",
                          f"{30 / STEP_SPEED}s")
        eventually(lambda: process.log("attached"), 10, "the probe attaches")
    load = Load(place.router.address, CLIENTS)
    moments, counts, begun = [], [], time.monotonic()
    slow, well = begun + BEFORE_S, begun + BEFORE_S + SLOW_S
    told = {slow: "5", well: "1"}
    while time.monotonic() < well + AFTER_S:
        page = place.metrics()
        moments.append(time.monotonic())
        counts.append([page[f'turnward_engine_requests_total{{engine="e{i}"}}']
                       for i in range(4)])
        for when in [w for w in told if time.monotonic() >= w]:
            ask(place.engines[0].address, "POST", "/turnward/slowdown", told.pop(when))
        time.sleep(0.1)
    load.stop()
    pairs = shares(counts, moments)
    mean = {name: [s for n, s in pairs if a <= n < b] for name, a, b in (
        ("before", begun + 3, slow), ("slow", slow + SLOW_S / 2, well), ("after", well, 1e18))}
    fell = first_time(pairs, slow, well, lambda s: s < 0.125)
    back = first_time(pairs, well, 1e18, lambda s: s > 0.1875)
    def shown(s):
        return "never" if s is None else f"{s * STEP_SPEED:5.1f} s"
    print(f"{arm:8}: share of e0 before {statistics.mean(mean['before']):.2f}, while slow "
          f"{statistics.mean(mean['slow']):.2f}; below half after {shown(fell)}, back above three "
          f"quarters after {shown(back)} (model seconds)", flush=True)


def step(t):
    for arm in ARMS:
        if arm == "probe" and not os.path.exists(os.path.join(BUILD, PROGRAMS["turnward-probe"])):
            print("probe: not built")
            continue
        step_arm(t, arm)


def fresh_world(t, io="auto", **how):
    base = t.base = getattr(t, "base", t.region)
    t.region = os.path.join(base, os.urandom(3).hex())
    os.mkdir(t.region, 0o750)
    how.setdefault("settings", ())
    how["settings"] = ("log_level=warn", *how["settings"])
    return World(t, io, **how)


MEASURES = {f.__name__: f for f in (prediction, step)}


def main():
    for name in sys.argv[1:] or MEASURES:
        test = Test(name)
        complaint = None
        try:
            MEASURES[name](test)
        finally:
            complaint = test.finish()
        if complaint:
            print(f"{name}: {complaint}")


if __name__ == "__main__":
    main()
