#!/usr/bin/env python3
"""Measures what staging costs where there is nothing to gain: short prompts, an idle engine.

    tests/measure/staging.py [PAIRS]

Two routers with one engine that answers at once, one with `stage = off`, one with `stage = pieces`;
the same short prompts go to both, alternated; the ratio of their latencies, pair by pair.
"""
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import *  # noqa: E402,F403
from staging import *  # noqa: E402,F403


def one(wire, body):
    start = time.perf_counter()
    wire.send(request_bytes("POST", CHAT, body))
    equal(wire.read_response().status, 200)
    return time.perf_counter() - start


def measure(t, pairs):
    wires, routers = [], []
    for mode in ("off", "pieces", "requeue"):
        engine = t.engine()
        t.region = t.path(mode)
        os.mkdir(t.region, 0o750)
        routers.append(staged(t, "auto", engine, mode=mode, alone="0.1"))
        wires.append(dial(routers[-1].address))
    took = [[], [], []]
    for number in range(pairs + 50):
        body = json.dumps(chat(200, number))
        order = [0, 1, 2] if number % 2 else [2, 1, 0]
        for i in order:
            seconds = one(wires[i], body)
            if number >= 50:
                took[i].append(seconds)
    for i, mode in ((1, "pieces"), (2, "requeue")):
        ratios = sorted(b / a for a, b in zip(took[0], took[i]))
        print(f"{mode}: median {statistics.median(took[i]) * 1e6:.0f} us, off "
              f"{statistics.median(took[0]) * 1e6:.0f} us; median of {pairs} paired ratios "
              f"{statistics.median(ratios):.3f}, quartiles {ratios[pairs // 4]:.3f} "
              f"{ratios[3 * pairs // 4]:.3f}; "
              f"pieces {metric(routers[i], 'staged_pieces_total'):.0f}, "
              f"tokenised {metric(routers[i], 'staged_tokenised_total'):.0f}")


if __name__ == "__main__":
    test = Test("staging")
    try:
        measure(test, int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
    finally:
        complaint = test.finish()
        if complaint:
            print(complaint)
