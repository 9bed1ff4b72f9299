#!/usr/bin/env python3
"""Measures what staging costs where there is nothing to gain, and what it brings where there is.

    tests/measure/staging.py [nothing [PAIRS]] [gain [ROUNDS]]

nothing: routers with one engine each that answers at once, `stage` = off, pieces, requeue; the same
short prompts go to all, alternated; the ratio of their latencies, pair by pair.
gain: a modelled vLLM for each way; a session of 2,600 words with +100 every 0.8 s, in its third
turn a cold prompt of 20,000, by each way in turn; seconds of the model.
"""
import json
import os
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import *  # noqa: E402,F403
from staging import *  # noqa: E402,F403


def one(wire, body):
    start = time.perf_counter()
    wire.send(request_bytes("POST", CHAT, body))
    equal(wire.read_response().status, 200)
    return time.perf_counter() - start


def cpu_s(router):
    """What the router's worker has run so far: less noisy than a clock on a busy machine."""
    with open(f"/proc/{worker_of(router)}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[0]) * 1e-9


def nothing(t, pairs):
    wires, routers = [], []
    for mode in ("off", "pieces", "requeue"):
        engine = t.engine()
        t.region = t.path(mode)
        os.mkdir(t.region, 0o750)
        routers.append(staged(t, "auto", engine, mode=mode, alone="0.1"))
        wires.append(dial(routers[-1].address))
    took, ran = [[], [], []], [0, 0, 0]
    for number in range(pairs + 50):
        body = json.dumps(chat(200, number))
        order = [0, 1, 2] if number % 2 else [2, 1, 0]
        for i in order:
            before = cpu_s(routers[i])
            seconds = one(wires[i], body)
            if number >= 50:
                took[i].append(seconds)
                ran[i] += cpu_s(routers[i]) - before
    for i, mode in ((1, "pieces"), (2, "requeue")):
        ratios = sorted(b / a for a, b in zip(took[0], took[i]))
        print(f"{mode}: median {statistics.median(took[i]) * 1e6:.0f} us, off "
              f"{statistics.median(took[0]) * 1e6:.0f} us; median of {pairs} paired ratios "
              f"{statistics.median(ratios):.3f}, quartiles {ratios[pairs // 4]:.3f} "
              f"{ratios[3 * pairs // 4]:.3f}; CPU of the router's worker {ran[i] / ran[0]:.3f} x; "
              f"pieces {metric(routers[i], 'staged_pieces_total'):.0f}, "
              f"tokenised {metric(routers[i], 'staged_tokenised_total'):.0f}")


SPEED = 4
MODES = ("off", "pieces", "requeue", "both")


def timed(router, body):
    """Seconds of the model to the first token and to the end."""
    start, first, end = asked(router, body)
    return (first - start) * SPEED, (end - start) * SPEED


def play(router, seed):
    """Short turns of one session, and a cold prompt in the third; what each took."""
    shorts, colds, threads = [], [], []
    talk = chat(2600, f"{seed}s", stream=True, max_tokens=16)
    timed(router, talk)
    for turn in range(16):
        start = time.monotonic()
        talk["messages"] += [{"role": "assistant", "content": "so"},
                             {"role": "user", "content": words(100, f"{seed}/{turn}")}]
        body = json.loads(json.dumps(talk))
        threads.append(threading.Thread(target=lambda body=body: shorts.append(
            timed(router, body))))
        if turn == 2:
            threads.append(threading.Thread(target=lambda: colds.append(
                timed(router, chat(20000, f"{seed}c", stream=True, max_tokens=16)))))
            threads[-1].start()
            threads[-2].start()
        else:
            threads[-1].start()
        time.sleep(max(0, 0.8 / SPEED - (time.monotonic() - start)))
    for thread in threads:
        thread.join()
    return shorts, colds


def gain(t, rounds):
    got = {mode: ([], []) for mode in MODES}
    routers = {}
    for mode in MODES:
        port = t.port()
        t.start("turnward-engine", "--ports", str(port), "--speed", str(SPEED), "--model", "m",
                ready=f":{port}")

        class Engine:
            url = f"http://127.0.0.1:{port}"
        t.region = t.path("gain-" + mode)
        os.mkdir(t.region, 0o750)
        routers[mode] = staged(t, "auto", Engine, mode=mode, step_budget=8192, cold_tokens=8192,
                               args=("--set", f"time_scale={SPEED}"))
    for number in range(rounds):
        for mode in MODES if number % 2 else reversed(MODES):
            shorts, colds = play(routers[mode], f"{mode}{number}")
            got[mode][0].extend(shorts)
            got[mode][1].extend(colds)
    for mode, (shorts, colds) in got.items():
        first = sorted(s[0] for s in shorts)
        print(f"{mode:8} short turns {len(first)}: first token mean {statistics.mean(first):.2f} "
              f"p90 {first[len(first) * 9 // 10]:.2f} max {first[-1]:.2f} s, end mean "
              f"{statistics.mean(s[1] for s in shorts):.2f} s; cold {len(colds)}: first token mean "
              f"{statistics.mean(c[0] for c in colds):.2f} s; "
              f"pieces {metric(routers[mode], 'staged_pieces_total'):.0f}, "
              f"taken back {metric(routers[mode], 'requeue_closes_total'):.0f}, "
              f"guards {metric(routers[mode], 'staged_guards_total'):.0f}", flush=True)


def run(name, measured, number):
    test = Test(name)
    try:
        measured(test, number)
    finally:
        complaint = test.finish()
        if complaint:
            print(complaint)


if __name__ == "__main__":
    words_given = sys.argv[1:] or ["nothing", "gain"]
    for at, word in enumerate(words_given):
        numbers = [int(w) for w in words_given[at + 1:at + 2] if w.isdigit()]
        if word == "nothing":
            run(word, nothing, numbers[0] if numbers else 1000)
        elif word == "gain":
            run(word, gain, numbers[0] if numbers else 5)
