#!/usr/bin/env python3
"""Cases of bench/demo: what it plays, what it leaves behind. The machine's load may make a run
invalid, which is no failure of the demo's."""
import json
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import *  # noqa: E402,F403

DEMO = os.path.join(ROOT, "bench/demo")


def left_in_shm(before):
    return {n for n in os.listdir("/dev/shm") if n.startswith("turnward-demo-")} - before


@case
def the_demo_compares_policies_and_says_so_in_json(t):
    out = t.path("demo.json")
    demo = t.start(DEMO, "--build", BUILD, "--sessions", 5, "--rate", 1, "--speed", 12, "--arms",
                   "round-robin,eft", "--json", out)
    demo.wait(110)
    with open(out, encoding="utf-8") as file:
        figures = json.load(file)
    equal([a["name"] for a in figures["arms"]], ["round-robin", "eft"], "arms")
    for arm in figures["arms"]:
        equal(arm["errors"], 0, f"{arm['name']}: errors")
        equal(arm["requests"], arm["planned"], f"{arm['name']}: requests")
        equal(arm["requests"], figures["arms"][0]["requests"], "the same sessions for all")
        for key in ("mean", "p50", "p90", "p99"):
            check(arm["ttft_s"][key] > 0, f"{arm['name']}: ttft_s.{key}")
        check(arm["tpot_s"]["p90"] > 0 and arm["e2e_s"]["mean"] > 0, f"{arm['name']}: times")
        check(arm["migrations"] is not None and 0 <= arm["hit_ratio"] <= 1, arm["name"])
    check(isinstance(figures["valid"], bool) and figures["speed"] > 0, "speed, valid")
    check(0 <= figures["agents_fresh"] <= 8, "agents_fresh")
    equal(demo.family(), [], "processes left behind")


@case
def an_interrupted_demo_leaves_nothing_behind(t):
    before = set(os.listdir("/dev/shm"))
    demo = t.start(DEMO, "--build", BUILD, "--arms", "eft", "--speed", 4)
    demo.wait_line("live: ", 30)
    check(len(demo.family()) > 10, "engines, agents and a router run")
    demo.send_signal(signal.SIGINT)
    equal(demo.wait(20), 130, "exit status")
    equal(demo.family(), [], "processes left behind")
    equal(left_in_shm(before), set(), "directories left behind")


main()
