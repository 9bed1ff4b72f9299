#!/usr/bin/env python3
"""Cases of turnward-bench replay: the policy laboratory's command line, its files and its JSON."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import *  # noqa: E402,F403

SMALL = ("--requests", "80", "--seeds", "2")


def replay(t, *args, code=0):
    return t.run("turnward-bench", "replay", *args, "--json", "-", code=code, seconds=60)


def older(program):
    """Whether the program was built before a source that decides what it computes was changed."""
    made = os.stat(program).st_mtime
    return any(os.stat(os.path.join(folder, name)).st_mtime > made
               for top in ("bench", "router/policy", "router/ledger", "router/view", "router/stage",
                           "router/prefix", "router/session", "router/admit")
               for folder, _, names in os.walk(os.path.join(ROOT, top))
               for name in names if name.endswith((".c", ".h")))


@case
def equal_seeds_give_equal_bytes(t):
    first = replay(t, *SMALL, "--arms", "linear,eft,dynamo")
    again = replay(t, *SMALL, "--arms", "linear,eft,dynamo")
    other = replay(t, *SMALL, "--arms", "linear,eft,dynamo", "--seed", "7")
    equal(first.out, again.out, "two runs")
    check(first.out != other.out, "another seed gives the same figures")


@case
def another_compilers_build_gives_the_same_figures(t):
    """Of every kind of arm; tests/run builds with clang beside gcc."""
    kinds = ("--arms", "linear,A+B-ttft,eft,eft-priced+pull,oracle,oracle-social,eft-staged,"
             "eft-requeue,llumnix,eft-no-agents,eft+restart_every=20+stall=5+slow=2,"
             "eft+profile=a3b:q14b")
    mine, tried = json.loads(replay(t, *SMALL, *kinds).out)["arms"], 0
    for name in ("build", "build-clang"):
        other = os.path.join(ROOT, name, "bench", "turnward-bench")
        if not os.path.exists(other) or os.path.samefile(other, os.path.join(
                BUILD, "bench", "turnward-bench")) or older(other):
            continue
        done = t.run(other, "replay", *SMALL, *kinds, "--json", "-", code=0, seconds=120)
        equal(json.loads(done.out)["arms"], mine, f"arms of {name}")
        tried += 1
    if not tried:
        raise Skip("no other compiler's build of these sources lies beside this one")


@case
def every_arm_has_the_figures_scripts_rely_on(t):
    figures = json.loads(replay(t, *SMALL, "--arms", "linear,eft").out)
    equal([arm["name"] for arm in figures["arms"]], ["linear", "eft"], "arms")
    for arm in figures["arms"]:
        for q in ("mean", "p50", "p90", "p99"):
            check(arm["ttft_s"][q] > 0, f"ttft_s.{q}")
        check(arm["tpot_s"]["p90"] > 0 and arm["e2e_s"]["p50"] > arm["ttft_s"]["p50"], "times")
        equal(sorted(arm["class"]), ["HEAVY", "MEDIUM", "WARM"], "classes")
        for name, one in arm["class"].items():
            equal(sorted(one), ["mean_s", "n", "p90_s"], f"class {name}")
        equal(sum(one["n"] for one in arm["class"].values()), 80, "requests of all classes")
        for key in ("heavy_t2_mean_s", "victims", "migrations", "hit_ratio", "balance"):
            check(isinstance(arm[key], (int, float)), key)
        check(len(arm["figures"]["ttft_p90_s"]["seeds"]) == 2, "a value a seed")
    base = figures["arms"][0]["figures"]["ttft_p90_s"]
    equal(base["against_base_percent"], 0, "the base against itself")


@case
def the_design_suite_has_every_kind_of_policy(t):
    path = t.path("design.json")
    t.run("turnward-bench", "replay", "--suite", "design", "--requests", "60", "--seeds", "1",
          "--json", path, code=0, seconds=120)
    with open(path) as f:
        arms = {arm["name"]: arm for arm in json.load(f)["arms"]}
    for name in ("linear", "v2", "v3", "A", "A+B-1.5", "eft", "eft-staged", "eft-requeue",
                 "oracle", "oracle-social"):
        check(name in arms, f"no arm {name}")
        equal(sum(one["n"] for one in arms[name]["class"].values()), 60, "requests")


@case
def the_long_suite_brings_its_workload(t):
    figures = json.loads(replay(t, "--suite", "long", "--requests", "25", "--seeds", "1").out)
    equal(figures["workload"], "long", "workload")
    check(figures["arms"][0]["figures"]["kv_held"]["mean"] > 0, "KV memory that is held")
    other = json.loads(replay(t, "--suite", "long", "--workload", "design", "--requests", "25",
                              "--seeds", "1").out)
    equal(other["workload"], "design", "workload")


@case
def recorded_sessions_are_played(t):
    trace = os.path.join(ROOT, "bench/traces/claude_code.jsonl")
    figures = json.loads(replay(t, *SMALL, "--workload", "sessions", "--file", trace, "--arms",
                                "sticky").out)
    arm = figures["arms"][0]
    equal(figures["requests"], 80, "requests")
    equal(arm["migrations"], 0, "sticky sessions that moved")
    check(arm["hit_ratio"] > 0.5, f"later turns find nothing cached: {arm['hit_ratio']}")


@case
def targets_are_judged_by_paired_plays(t):
    trace = os.path.join(ROOT, "bench/traces/claude_code.jsonl")
    few = ("--requests", "60", "--seeds", "2")
    done = t.run("turnward-bench", "replay", "--suite", "targets", "--file", trace, *few,
                 "--json", "-", code=None, seconds=120)
    exam = json.loads(done.out)
    targets = {one["name"]: one for one in exam["targets"]}
    equal(exam["of"], len(targets), "targets")
    equal(exam["met"], sum(one["met"] for one in targets.values()), "targets that are met")
    equal(done.code, 0 if exam["met"] == exam["of"] else 1, "exit code")
    for one in targets.values():
        if one["value"] is not None:
            below = one["value"] <= one["limit"]
            equal(one["met"], below if one["sense"] == "at most" else not below, one["name"])
    one = targets["staged-all"]
    arms = json.loads(replay(t, *few, "--arms", one["arm"] + "," + one["over"]).out)["arms"]
    staged, plain = (arm["figures"]["ttft_p90_s"]["seeds"] for arm in arms)
    ratio = sum(a / b for a, b in zip(staged, plain)) / 2
    check(abs(one["value"] - ratio) < 1e-4, f"value {one['value']}, by hand {ratio}")


@case
def a_file_is_known_by_its_content(t):
    path = os.path.join(t.dir, "chats.jsonl")
    with open(path, "w") as f:
        for i in range(12):
            f.write(json.dumps({"chat_id": i, "parent_chat_id": i - 4 if i >= 4 else -1,
                                "timestamp": 3.0 * i, "input_length": 1600 + 160 * (i // 4),
                                "output_length": 20, "type": "text", "turn": 1 + i // 4,
                                "hash_ids": [1000 * (i % 4) + k for k in range(100 + 10 * (i // 4))]
                                }) + "\n")
    for how in ((), ("--closed", "--think", "2"), ("--open",), ("--form", "qwen", "--rate", "9")):
        figures = json.loads(replay(t, "--file", path, "--arms", "eft", "--seeds", "1", *how).out)
        equal(figures["requests"], 12, "requests")
        check(figures["arms"][0]["hit_ratio"] > 0.5, "chats that find nothing of theirs")
    with open(path, "a") as f:
        f.write('{"chat_id": 99}\n')
    done = t.run("turnward-bench", "replay", "--file", path, code=1)
    contains(done.err, "chats.jsonl: line 13: ", "a broken line")


@case
def what_an_engine_loses_is_sent_again(t):
    faults = ("--restart", "20", "--stall", "9", "--slow", "2")
    figures = json.loads(replay(t, *SMALL, "--arms", "eft,sglang", *faults).out)
    for arm in figures["arms"]:
        check(arm["figures"]["lost"]["mean"] > 0, "no answer broke off")
        equal(sum(one["n"] for one in arm["class"].values()), 80, "requests of all classes")


@case
def mistakes_are_told(t):
    done = t.run("turnward-bench", "replay", "--arms", "nobody", code=2)
    contains(done.err, "there is no arm 'nobody'", "an unknown arm")
    done = t.run("turnward-bench", "replay", "--set", "sample=0", code=2)
    contains(done.err, "sample must be", "a number out of bounds")
    done = t.run("turnward-bench", "replay", "--form", "azure", "--file", "/nowhere", code=1)
    contains(done.err, "No such file", "a file that is not there")


main()
