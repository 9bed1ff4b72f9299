#!/usr/bin/env python3
"""The journal on disk: recorded beside a live router, re-decided exactly, by other policies too."""
import glob
import json
import os
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from world import *  # noqa: E402,F403
from harness import BUILD, PROGRAMS  # noqa: E402

POLICIES = ("round-robin", "least-requests", "power-of-two", "sticky", "linear", "v2", "v3",
            "contention", "eft")
TURNWARD = PROGRAMS["turnward"]


def recorder(t, path, *args):
    return t.start("turnward", "record", "--region", t.region, path, *args, ready="recording ")


def stopped(process):
    """Ends a recorder; the sums that it tells."""
    process.send_signal(signal.SIGINT)
    equal(process.wait(20), 0, "the recorder's exit")
    return json.loads(process.err[-1])


def replayed(t, *args, code=0):
    return t.run("turnward", "replay", "--json", *args, code=code).json()


def traffic(world, requests=300, *args):
    told = world.told(world.storm("--requests", requests, "--connections", 12, "--kinds",
                                  "chat-stream", "--body", "2000-60000", "--tokens", "4-20",
                                  "--close", 0, *args))
    clean(told)
    return told


@case
def what_was_recorded_is_decided_again_bit_for_bit(t):
    place, path = World(t, "auto"), t.path("a.twr")
    traffic(place, 50)  # the ring still holds these
    process = recorder(t, path)
    traffic(place, 250)
    at_rest(place)
    told = stopped(process)
    equal((told["decisions"], told["outcomes"], told["gaps"]), (300, 300, 0), str(told))
    got = replayed(t, path)
    equal((got["decisions"], got["differ"], got["outcomes"]), (300, 0, 300), str(got))
    check(got["ended"] and got["torn_bytes"] == 0, "the end is missing")
    equal(got["prediction"]["n"], 300, "predictions met by an outcome")
    text = t.run("turnward", "replay", path, code=0).out
    contains(text, "300 decisions, each decided the same again, bit for bit")


main()
