#!/usr/bin/env python3
"""Cases of live --trace and replay --follow: a live run on modelled engines, decided once more."""
import json
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import *  # noqa: E402,F403

SPEED = 20
SESSIONS = os.path.join(ROOT, "bench/traces/claude_code.jsonl")


def run_live(t, policy, named=True):
    """A few sessions through a router with two engines and agents; its trace and recording."""
    ports = [t.port(), t.port()]
    urls = []
    for i, port in enumerate(ports):
        t.start("turnward-engine", "--ports", port, "--speed", SPEED,
                ready=lambda port=port: answers(f"127.0.0.1:{port}"))
        urls.append(f"gpu{i}=http://127.0.0.1:{port}")
        t.start("turnward-agent", "--engine", urls[-1], "--kind", "vllm", "--period", 20,
                "--region", t.region)
    router = t.router(*urls, args=("--policy", policy, "--set", f"time_scale={SPEED}", "--set",
                                   f"debug_headers={'yes' if named else 'no'}"))
    recording, trace = t.path("recording"), t.path("trace.jsonl")
    recorder = t.start("turnward", "record", "--region", t.region, recording, ready="recording ")
    done = t.run("turnward-bench", "live", "--router", router.address, "--sessions", SESSIONS,
                 "--speed", SPEED, "--limit", 6, "--rate", 1, "--turns", 3, "--think-max", 6,
                 "--trace", trace, seconds=60)
    recorder.send_signal(signal.SIGINT)
    equal(recorder.wait(20), 0, "the recorder's exit")
    return trace, recording, done


def follow(t, trace, *args, code=0):
    return t.run("turnward-bench", "replay", "--follow", trace, *args, code=code, seconds=60)


@case
def a_live_run_is_decided_again_from_its_trace(t):
    trace, recording, _ = run_live(t, "contention")
    with open(trace, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    equal(lines[0]["format"], "turnward-live-trace", "format")
    requests = lines[1:]
    for r in requests:
        equal(r["prompt_tokens"], r["counted_tokens"], "tokens, as engine and client count them")
        check(r["engine"] in ("gpu0", "gpu1"), f"engine {r['engine']}")
        check(r["at_s"] < r["first_s"] <= r["end_s"], "times")
    out = json.loads(follow(t, trace, "--recording", recording, "--json", "-").out)
    equal((out["requests"], out["left_out"]), (len(requests), 0), "requests")
    equal(out["recorded"], len(requests), "decisions in the recording")
    arm = out["arms"][0]
    equal(arm["name"], "contention", "the recording's own policy")
    equal(arm["all"]["decisions"], len(requests), "decisions")
    check(arm["all"]["agree"] <= arm["all"]["decisions"], "more agree than there are")
    check(arm["clear"]["agreement"] >= 0.7, f"hardly any agree: {arm['clear']}")
    equal(len(arm["differ"]), arm["all"]["decisions"] - arm["all"]["agree"], "those that differ")
    equal(sum(arm["all"]["causes"].values()), len(arm["differ"]), "a cause each")
    check("unknown" not in arm["all"]["causes"], "recorded ones have a cause")
    check(arm["ttft_apart_s"]["p50"] < 0.5, f"first tokens: {arm['ttft_apart_s']}")
    again = follow(t, trace, "--recording", recording, "--json", "-").out
    equal(json.loads(again)["arms"], out["arms"], "two plays")


@case
def another_policy_differs_and_nobody_knows_why_without_a_recording(t):
    trace, _, _ = run_live(t, "round-robin")
    out = json.loads(follow(t, trace, "--arms", "eft+engines=2,round-robin+engines=2", "--json",
                            "-").out)
    eft, same = out["arms"]
    check(eft["all"]["agree"] < eft["all"]["decisions"], "eft chooses as round-robin does")
    equal(set(eft["all"]["causes"]), {"unknown"}, "causes")
    check(eft["all"]["regret_mean"] > 0, "what the live choice costs more")
    equal(same["clear"]["decisions"], 0, "a policy without costs has no clear decisions")
    said = follow(t, trace, "--arms", "eft+engines=2").out
    contains(said, "agree:", "for people")


@case
def a_router_that_names_no_engine_is_told_of(t):
    trace, _, done = run_live(t, "eft", named=False)
    contains(done.err, "debug_headers = yes", "live says what is missing")
    done = follow(t, trace, "--arms", "eft", code=1)
    contains(done.err, "no request in it that can be followed", "replay, too")


@case
def mistakes_are_told(t):
    path = t.write("trace", '{"format":"something"}\n')
    contains(follow(t, path, "--arms", "eft", code=1).err, "line 1: not the trace of a live run",
             "another file")
    contains(follow(t, "/nowhere", "--arms", "eft", code=1).err, "No such file", "no file")
    contains(follow(t, path, code=2).err, "--arms or --recording", "no policy")
    done = t.run("turnward-bench", "replay", "--recording", path, code=2)
    contains(done.err, "--recording goes with --follow", "alone")


main()
