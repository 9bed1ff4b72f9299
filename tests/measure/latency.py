#!/usr/bin/env python3
"""Measures what bpf/README.md states of timing: predictions, agreement, step response, cost.

    tests/measure/latency.py [prediction] [agreement] [step] [cost]

Modelled engines on the wall clock, the real router, and the probe where the kernel permits it.
"""
import json
import os
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from world import *  # noqa: E402,F403
from harness import PROGRAMS, Test  # noqa: E402

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


def fresh_world(t, io="auto", **how):
    base = t.base = getattr(t, "base", t.region)
    t.region = os.path.join(base, os.urandom(3).hex())
    os.mkdir(t.region, 0o750)
    how.setdefault("settings", ())
    how["settings"] = ("log_level=warn", *how["settings"])
    return World(t, io, **how)


MEASURES = {f.__name__: f for f in (prediction,)}


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
