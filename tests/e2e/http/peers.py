#!/usr/bin/env python3
"""Plays the conformance cases against HAProxy, nginx and Envoy, too, and prints the columns.

    python3 tests/e2e/http/peers.py [--failures]

Cases of [ours] (limits and paths of turnward) are left out. A peer that is not installed is named.
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "lib"))
sys.path.insert(0, os.path.join(HERE, ".."))
import peers  # noqa: E402
from conformance import HASTY, LIMITS, cases_of  # noqa: E402
from harness import Failed, Skip, Test, dial, eventually, settings  # noqa: E402
from wirecases import Recorder, Stage  # noqa: E402

COLUMNS = ("turnward uring", "turnward epoll") + peers.NAMES


def listening(address):
    try:
        dial(address, 1).close()
        return True
    except (OSError, Failed):
        return False


def start(test, column, recorder):
    if column.startswith("turnward"):
        return test.router(recorder.url,
                           args=settings(column.split(" ")[1], **LIMITS, **HASTY))
    process = peers.start(test, column, [f"127.0.0.1:{recorder.port}"], limit_s=1)
    eventually(lambda: process._expect_alive() and listening(process.address), 20,
               f"{column} listens")
    return process


def play_all(column):
    """{(kind, name): complaint or None}, and the proxy's version."""
    test, recorder, found = Test(column.replace(" ", "-")), Recorder(), {}
    try:
        process = start(test, column, recorder)
        strict = column.startswith("turnward")
        stage = Stage(process.address, recorder, strict)
        for kind in ("requests", "responses"):
            for case in cases_of(kind):
                if "ours" in case.tags:
                    continue
                play = stage.play_request if kind == "requests" else stage.play_response
                try:
                    found[kind, case.name] = play(case)
                except (Failed, OSError) as failure:
                    found[kind, case.name] = str(failure)
                if not process.alive:
                    found[kind, case.name] = "the proxy died"
                    process = start(test, column, recorder)
                    stage = Stage(process.address, recorder, strict)
    finally:
        recorder.stop()
        test.finish()
    return found


def main():
    columns, results = [], {}
    for column in COLUMNS:
        try:
            results[column] = play_all(column)
            columns.append(column)
        except Skip as reason:
            print(f"{column}: {reason}", file=sys.stderr)
    names = [c if c.startswith("turnward") else f"{c} {peers.version(c)}" for c in columns]
    print("| as asked | " + " | ".join(names) + " |\n|---|" + "---|" * len(columns))
    for kind in ("requests", "responses"):
        keys = [k for k in results[columns[0]] if k[0] == kind]
        cells = [str(sum(results[c][k] is None for k in keys)) for c in columns]
        print(f"| {kind}, of {len(keys)} | " + " | ".join(cells) + " |")
    if "--failures" in sys.argv:
        for column in columns:
            for (kind, name), complaint in results[column].items():
                if complaint is not None:
                    print(f"{column}: {kind[:-1]} {name}: {complaint}")


if __name__ == "__main__":
    main()
