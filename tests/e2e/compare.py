#!/usr/bin/env python3
"""Cases of turnward-bench live --compare: its arithmetic, and that nothing of it stays behind."""
import json
import os
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import *  # noqa: E402,F403

TRACE = os.path.join(ROOT, "bench/traces/claude_code.jsonl")
TINY = ("--requests", 16, "--rate", 4, "--turns", 3, "--sessions", TRACE, "--speed", 20)
TIMES = (("ttft_s", "mean"), ("ttft_s", "p50"), ("ttft_s", "p90"), ("ttft_s", "p99"),
         ("heavy_t2_mean_s",), ("cold_ttft_s", "p90"), ("e2e_s", "mean"), ("e2e_s", "p50"),
         ("tpot_s", "mean"), ("tpot_s", "p90"))


def at(arm, path):
    for key in path:
        arm = arm[key]
    return arm


def median(values):
    values = sorted(values)
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


def near(got, wanted, text):
    check(abs(got - wanted) <= 1e-3 * abs(wanted) + 1e-5, f"{text}: {got}, not {wanted}")


def told_of(t, *args, seconds=150):
    """A busy machine makes runs invalid (then the status is 1); what is told holds all the same."""
    out = t.path("compare.json")
    done = t.run("turnward-bench", "live", "--compare", *args, *TINY, "--json", out,
                 seconds=seconds)
    check(done.code in (0, 1), f"status {done.code}\n{done.err}")
    with open(out, encoding="utf-8") as file:
        told = json.load(file)
    equal(done.code == 0, told["valid"], "the status says whether all is valid")
    return told


def judge_load(load, names):
    """Medians and ratios are those of the rounds."""
    equal([arm["name"] for arm in load["arms"]], names, "arms")
    rounds = [{arm["name"]: arm for arm in r["arms"]} for r in load["rounds"]]
    for arm in load["arms"]:
        runs = [r[arm["name"]] for r in rounds]
        equal(arm["errors"], 0, f"{arm['name']}: errors")
        good = [run for run in runs if run["valid"]]
        equal(arm["rounds_valid"], len(good), "valid rounds")
        check(all(run["why"] for run in runs if not run["valid"]), "not valid without a reason")
        for path in TIMES:
            if good:
                near(at(arm, path), median([at(run, path) for run in good]), f"{path}")
    for ratio in load["ratios"]:
        where = (lambda run: run["replay"]) if ratio["where"] == "replay" else lambda run: run
        pairs = [(r[ratio["name"]], r[ratio["over"]]) for r in rounds]
        good = [(where(a), where(b)) for a, b in pairs
                if ratio["where"] == "replay" or a["valid"] and b["valid"]]
        for path in TIMES:
            if good and all(at(b, path) > 0 for _, b in good):
                near(at(ratio, path), median([at(a, path) / at(b, path) for a, b in good]),
                     f"{ratio['where']} {path}")


def judge_targets(told):
    equal(told["targets_missed"], sum(not target["met"] for target in told["targets"]), "missed")
    for target in told["targets"]:
        met = target["value"] is not None and target["value"] <= target["limit"]
        equal(target["met"], met, target["name"])


@case
def staging_is_compared_in_pairs(t):
    told = told_of(t, "staging", "--pairs", 2)
    equal((told["kind"], told["compare"], told["api"]), ("compare", "staging", "chat"), "kind")
    equal([load["name"] for load in told["workloads"]], ["design", "sessions"], "workloads")
    equal(told["arms"], told["workloads"][0]["arms"], "the design mix's arms stand at the top")
    for load in told["workloads"]:
        judge_load(load, ["plain", "staged"])
        equal([(ratio["name"], ratio["over"], ratio["where"]) for ratio in load["ratios"]],
              [("staged", "plain", "live"), ("staged", "plain", "replay")], "ratios")
        places = [[arm["place"] for arm in r["arms"]] for r in load["rounds"]]
        equal(places, [[1, 2], [2, 1]], "the order alternates")
        check(all(arm["pieces"] == 0 for arm in load["arms"][:1]), "plain prompts in pieces")
    judge_targets(told)


def played_by(t, api):
    told = told_of(t, "staging", "--pairs", 1, "--api", api, "--workload", "design")
    equal(told["api"], api, "API")
    judge_load(told["workloads"][0], ["plain", "staged"])


@case
def routers_are_compared_as_far_as_they_are_here(t):
    """Turnward's arms without its peers: the form is the same, and there is no best of them."""
    told = told_of(t, "routers", "--pairs", 1, "--workload", "design", "--arms",
                   "turnward,turnward-staged")
    equal(told["compare"], "routers", "comparison")
    judge_load(told["workloads"][0], ["turnward", "turnward-staged"])
    judge_targets(told)
    check(told["targets"] and not told["targets"][0]["met"], "met without a peer")


@case
def sessions_play_as_messages(t):
    played_by(t, "messages")


@case
def sessions_play_as_responses(t):
    played_by(t, "responses")


# ---- what it leaves ----

def children(pid):
    """Processes whose parent this is: their ids by program."""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                name, rest = file.read().rsplit(")", 1)
            if int(rest.split()[1]) == pid:
                found.setdefault(name.split("(", 1)[1], []).append(int(entry))
    return found


def place_of(agent):
    """The directory that the run was given, from where its region is."""
    with open(f"/proc/{agent}/cmdline", encoding="utf-8") as file:
        region = next(w for w in file.read().split("\0") if w.startswith("--region="))
    return os.path.dirname(os.path.dirname(region[len("--region="):]))


def begun(t):
    """A comparison whose router has clients, its children, and its directory."""
    bench = t.start("turnward-bench", "live", "--compare", "staging", "--sessions", TRACE,
                    "--speed", 5, "--pairs", 1, "--workload", "design")
    eventually(lambda: "turnward-router" in children(bench.pid), 15, "the router is started")
    time.sleep(1.5)
    ids = children(bench.pid)
    equal(len(ids.get("turnward-agent", [])), 8, "agents")
    return bench, ids, place_of(ids["turnward-agent"][0])


def nothing_left(bench, ids, place):
    equal(bench.wait(30), 1, "status")
    for name, pids in ids.items():
        for pid in pids:
            check(not os.path.exists(f"/proc/{pid}"), f"{name} {pid} is still there")
    check(not os.path.exists(place), f"{place} is still there")


@case
def an_engine_that_dies_ends_the_comparison(t):
    bench, ids, place = begun(t)
    os.kill(ids["turnward-engine"][0], signal.SIGKILL)
    nothing_left(bench, ids, place)
    contains("\n".join(bench.err), "the engines' process ended during the run", "what it says")


@case
def a_router_that_dies_ends_the_comparison(t):
    bench, ids, place = begun(t)
    os.kill(ids["turnward-router"][0], signal.SIGKILL)
    nothing_left(bench, ids, place)
    contains("\n".join(bench.err), "ended during the run", "what it says")


@case
def an_interruption_leaves_nothing(t):
    bench, ids, place = begun(t)
    bench.send_signal(signal.SIGINT)
    nothing_left(bench, ids, place)


@case
def an_interruption_reports_the_rounds_that_are_whole(t):
    path = t.path("told.json")
    bench = t.start("turnward-bench", "live", "--compare", "staging", "--sessions", TRACE,
                    "--speed", 60, "--requests", 40, "--pairs", 9, "--workload", "design",
                    "--json", path)
    eventually(lambda: "round 2 of 9" in "\n".join(bench.err), 90, "the first round is over")
    bench.send_signal(signal.SIGINT)
    equal(bench.wait(30), 1, "status")
    contains("\n".join(bench.err), "interrupted: 1 of 9 rounds", "what it says")
    with open(path, encoding="utf-8") as file:
        told = json.load(file)
    equal((told["pairs"], told["pairs_asked"]), (1, 9), "rounds")
    judge_load(told["workloads"][0], ["plain", "staged"])


main()
