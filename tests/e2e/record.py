#!/usr/bin/env python3
"""The journal on disk: recorded beside a live router, re-decided exactly, by other policies too."""
import glob
import json
import os
import re
import resource
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from world import *  # noqa: E402,F403
from harness import BUILD, PROGRAMS  # noqa: E402

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


def policies(t):
    """Every policy's name, from what is said to a wrong one."""
    said = t.run("turnward", "replay", "--policy", "none of them", "x", code=2).err
    return re.findall(r"[a-z0-9-]+", said.split("must be one of")[1].split("(")[0].split("\n")[0])


def settled(place):
    """Every outcome is in the journal."""
    eventually(lambda: place.metric("requests_inflight") == 0, 10, "nothing is in flight")


@case
def what_was_recorded_is_decided_again_bit_for_bit(t):
    place, path = World(t, "auto"), t.path("a.twr")
    traffic(place, 50)  # the ring still holds these
    process = recorder(t, path)
    traffic(place, 250)
    settled(place)
    told = stopped(process)
    equal((told["decisions"], told["outcomes"], told["gaps"]), (300, 300, 0), str(told))
    got = replayed(t, path)
    equal((got["decisions"], got["differ"], got["outcomes"]), (300, 0, 300), str(got))
    check(got["ended"] and got["torn_bytes"] == 0, "the end is missing")
    equal(got["prediction"]["n"], 300, "predictions met by an outcome")
    text = t.run("turnward", "replay", path, code=0).out
    contains(text, "300 decisions, each decided the same again, bit for bit")


def decide_again(t, path, decisions):
    """Whole and exact, by this build."""
    got = replayed(t, path)
    equal((got["decisions"], got["differ"], got["unreadable"]), (decisions, 0, 0), str(got))
    return got


@case
def every_policy_is_decided_again_and_told_from_the_others(t):
    differs = {}
    base = t.region
    names = policies(t)
    check({"round-robin", "v3", "contention", "eft"} <= set(names), f"policies: {names}")
    for name in names:
        t.region = os.path.join(base, name)
        os.mkdir(t.region, 0o750)
        place, path = World(t, "auto", engines=3, settings=(f"policy={name}",)), t.path(name)
        process = recorder(t, path)
        traffic(place, 150)
        settled(place)
        equal(stopped(process)["decisions"], 150, name)
        got = decide_again(t, path, 150)
        equal(got["policies"], {name: 150}, "policies")
        other = "least-requests" if name != "least-requests" else "eft"
        told = replayed(t, path, "--policy", other)["other"]
        equal(told["decisions"], 150, f"{name} against {other}")
        equal(replayed(t, path, "--policy", name)["other"]["differ"], 0, f"{name} against itself")
        differs[name] = told["differ"]
        for program in (place.router, *place.agents, *place.engines):
            program.stop()
    t.region = base
    check(sum(n > 0 for n in differs.values()) >= 5, f"others choose the same: {differs}")


@case
def what_another_policy_would_have_done_is_priced_by_both(t):
    place, path = World(t, "auto"), t.path("a.twr")
    process = recorder(t, path)
    traffic(place, 300)
    stopped(process)
    got = replayed(t, path, "--policy", "round-robin")["other"]
    check(got["differ"] > 0, "round-robin chose the same")
    equal(sum(c["differ"] for c in got["classes"]), got["differ"] - got["incomparable"], "classes")
    equal(sum(c["decisions"] for c in got["reasons"]), 300, "reasons")
    # What the policy in force found cheapest cannot be dearer by its own model, ties apart.
    check(got["regret"]["own"]["mean_s"] >= 0, f"own regret {got['regret']['own']}")
    worst = got["top"][0]
    check(worst["engine"] != worst["other_engine"], "the worst case is none")
    check(all(a["other_s"] >= b["other_s"] for a, b in zip(got["top"], got["top"][1:])), "order")
    dearer = replayed(t, path, "--set", "decode_iteration_s=5")["other"]
    equal(dearer["policy"], "decode_iteration_s=5")
    text = t.run("turnward", "replay", path, "--policy", "round-robin", code=0).out
    contains(text, f"round-robin would have chosen another engine in {got['differ']} of 300")
    contains(text, worst["id"])
    wrong = t.run("turnward", "replay", path, "--policy", "best", code=2).err
    contains(wrong, "must be one of")
    wrong = t.run("turnward", "replay", path, "--set", "max_body=5M", code=2).err
    contains(wrong, "max_body is no parameter of a recorded decision")


@case
def a_killed_recorder_leaves_a_file_that_is_read(t):
    place = World(t, "auto")
    for number in range(4):
        path = t.path(f"{number}.twr")
        process = recorder(t, path)
        storm = place.storm("--requests", 400, "--connections", 12, "--kinds", "chat-stream",
                            "--body", "2000-9000", "--tokens", "4-8", "--seed", number)
        eventually(lambda p=path: os.path.getsize(p) > 100000 * (number + 1), 20, "it grows")
        process.kill()
        place.told(storm)
        got = replayed(t, path)
        check(got["decisions"] > 20 and got["differ"] == 0 and not got["ended"], str(got))
        equal(got["unreadable"] + got["damaged_bytes"], 0, str(got))


@case
def a_recording_cut_within_a_record_is_read_up_to_it(t):
    place, path = World(t, "auto", engines=2), t.path("a.twr")
    traffic(place, 40)
    stopped(recorder(t, path))
    with open(path, "rb") as file:
        whole = file.read()
    last = 10 ** 9
    for size in (len(whole) - 1, len(whole) * 2 // 3 + 3, len(whole) // 2, len(whole) // 3 + 1):
        cut = t.path("cut.twr")
        with open(cut, "wb") as file:
            file.write(whole[:size])
        got = replayed(t, cut)
        check(got["decisions"] <= last and got["differ"] == 0, str(got))
        check(got["torn_bytes"] > 0 or not got["ended"], "a cut passed for whole")
        last = got["decisions"]
    check(0 < last < 40, f"{last} decisions in a third of the file")
    with open(cut, "wb") as file:
        file.write(whole[:-3000] + bytes(64) + whole[-2936:])
    got = replayed(t, cut)
    check(got["damaged_bytes"] > 0 and got["ended"], f"damage in the middle: {got}")


@case
def recording_goes_on_over_a_killed_worker_and_a_new_router(t):
    place, path = World(t, "auto"), t.path("a.twr")
    process = recorder(t, path)
    traffic(place, 60)
    worker = place.worker()
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: place.worker() not in (None, worker), 10, "another worker")
    eventually(lambda: place.metric("agent_attached") == 4, 10, "agents are seen again")
    traffic(place, 60, "--seed", 2)
    place.router.stop()
    place.router = t.router(*[f"e{i}={e.url}" for i, e in enumerate(place.engines)],
                            args=("--set", "decisions=8192"))  # another ring: the file is replaced
    eventually(lambda: place.metric("agent_attached") == 4, 10, "agents are seen again")
    traffic(place, 60, "--seed", 3)
    told = stopped(process)
    check(told["decisions"] >= 180 and told["gaps"] == 0, str(told))
    got = decide_again(t, path, told["decisions"])
    check(got["sources"] >= 3, f"sources: {got['sources']}")


@case
def a_new_regions_numbers_begin_anew(t):
    place, path = World(t, "auto", engines=2), t.path("a.twr")
    process = recorder(t, path)
    traffic(place, 30)
    place.router.stop()
    os.unlink(os.path.join(t.region, "router"))
    place.router = t.router(*[f"e{i}={e.url}" for i, e in enumerate(place.engines)])
    eventually(lambda: place.metric("agent_attached") == 2, 10, "agents are seen again")
    traffic(place, 30, "--seed", 2)
    eventually(lambda: len([l for l in process.err if l.startswith("recording ")]) == 2, 10,
               "it has found the new one")
    told = stopped(process)
    equal((told["decisions"], told["outcomes"], told["gaps"]), (60, 60, 0), str(told))
    equal(decide_again(t, path, 60)["prediction"]["n"], 60, "outcomes that met their decision")


@case
def a_recorder_waits_for_a_router(t):
    path = t.path("a.twr")
    process = t.start("turnward", "record", "--region", t.region, path,
                      ready="waiting for a router")
    place = World(t, "auto", engines=2)
    traffic(place, 20)
    process.wait_line("recording ")
    equal(stopped(process)["decisions"], 20, "decisions")


@case
def what_was_overwritten_first_is_a_gap(t):
    place, path = World(t, "auto", engines=2, settings=("decisions=64",)), t.path("a.twr")
    process = recorder(t, path)
    traffic(place, 20)
    eventually(lambda: os.path.getsize(path) > 20000, 10, "the first are written")
    process.send_signal(signal.SIGSTOP)
    traffic(place, 200, "--seed", 2)
    process.send_signal(signal.SIGCONT)
    told = stopped(process)
    check(told["gaps"] == 1 and told["lost"] >= 200 * 2 - 64, str(told))
    contains("\n".join(process.err), "overwritten before they were read")
    got = decide_again(t, path, told["decisions"])
    equal((got["gaps"], got["lost"]), (told["gaps"], told["lost"]), "gaps in the file")
    equal(got["gap_list"][0]["why"], "overwritten")
    equal(told["decisions"] + told["outcomes"] + told["lost"], 440, "nothing is unaccounted for")


@case
def a_full_file_makes_room_for_the_next(t):
    place, path = World(t, "auto", engines=8), t.path("a.twr")
    process = recorder(t, path, "--max-size", "256K", "--keep", "2")
    traffic(place, 500)
    told = stopped(process)
    parts = sorted(glob.glob(path + "*"))
    equal(parts, [path, path + ".1", path + ".2"], "files")
    check(all(os.path.getsize(part) <= 256 * 1024 for part in parts), "larger than asked for")
    check(told["files"] > 3, str(told))
    got = replayed(t, path + ".2", path + ".1", path)
    check(0 < got["decisions"] < 500 and got["differ"] == 0 and got["gaps"] == 0, str(got))
    again = recorder(t, path, "--keep", "4")  # an earlier recording is kept, too
    stopped(again)
    equal(replayed(t, path + ".1")["decisions"], replayed(t, path + ".1")["decisions"])
    check(os.path.exists(path + ".3"), "it was not moved along")


@case
def a_recording_that_is_moved_away_is_followed_by_another(t):
    place, path = World(t, "auto", engines=2), t.path("a.twr")
    process = recorder(t, path, "--keep", "0")
    traffic(place, 30)
    eventually(lambda: os.path.getsize(path) > 40000, 10, "they are written")
    os.rename(path, t.path("old"))
    process.wait_line("has been moved away")
    traffic(place, 30, "--seed", 2)
    equal(stopped(process)["decisions"], 60, "decisions")
    got = replayed(t, t.path("old"), path)
    equal((got["decisions"], got["differ"], got["outcomes"]), (60, 0, 60), str(got))
    equal((got["sources"], replayed(t, path)["sources"]), (1, 1), "both say where they are from")


@case
def what_is_no_recording_is_left_alone(t):
    World(t, "auto", engines=1)
    path = t.write("notes", "not to be lost")
    done = t.run("turnward", "record", "--region", t.region, path, code=1)
    contains(done.err, "no recording: it is left alone")
    equal(open(path, encoding="ascii").read(), "not to be lost")
    first = recorder(t, t.path("a.twr"))
    done = t.run("turnward", "record", "--region", t.region, t.path("a.twr"), code=1)
    contains(done.err, "is being written by another recorder")
    stopped(first)
    done = t.run("turnward", "replay", path, code=1)
    contains(done.err, "no recording of turnward")
    equal(t.run("turnward", "replay", t.path("none"), code=1).out, "")


@case
def a_disk_that_fills_is_told_once_and_tried_again(t):
    place, path = World(t, "auto", engines=8), t.path("a.twr")
    process = recorder(t, path)
    limit = 400 * 1024
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    traffic(place, 300)
    process.wait_line("cannot write")
    check(os.path.getsize(path) <= limit, "beyond the limit")
    got = replayed(t, path)
    check(got["differ"] == 0 and got["torn_bytes"] == 0, f"not whole while the disk is full: {got}")
    before = cpu_ticks(process.pid)
    time.sleep(1.2)
    check(cpu_ticks(process.pid) - before < 20, "it spins")
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE,
                     (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    process.wait_line("writing again")
    told = stopped(process)
    equal(sum("cannot write" in line for line in process.err), 1, "told once")
    equal((told["decisions"], told["gaps"]), (300, 0), str(told))
    decide_again(t, path, 300)


def cpu_ticks(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


@case
def a_pipe_carries_a_recording(t):
    place = World(t, "auto", engines=2)
    traffic(place, 30)
    turnward = t.program("turnward")
    done = t.run("sh", "-c", f"timeout -s INT 1 {turnward} record --region {t.region} - | "
                 f"{turnward} replay - --json", code=0)
    got = json.loads(done.out)
    equal((got["decisions"], got["differ"], got["ended"]), (30, 0, True), str(got))


def other_builds():
    """Other builds' `turnward` beside this one, with the compiler that each names."""
    found = []
    for place in sorted(glob.glob(os.path.join(os.path.dirname(BUILD), "build*", TURNWARD))):
        if os.path.realpath(place) != os.path.realpath(os.path.join(BUILD, TURNWARD)):
            found.append(place)
    return found


@case
def another_compilers_build_decides_the_same(t):
    """gcc's recording in clang's build, and a recording by clang's build in gcc's."""
    place, path = World(t, "auto"), t.path("a.twr")
    traffic(place, 200)
    stopped(recorder(t, path))
    mine, tried = replayed(t, path), set()
    for other in other_builds():
        theirs = t.path("theirs.twr")
        process = t.start(other, "record", "--region", t.region, theirs, ready="recording ")
        process.send_signal(signal.SIGINT)
        equal(process.wait(20), 0, f"{other} record")
        done = t.run("turnward", "replay", theirs, "--json")
        if "layout" in done.err:
            continue  # an old build
        written_by = json.loads(done.out)["written_by"].split(", ")[1].split(" ")[0]
        for program, file in ((other, path), ("turnward", theirs)):
            got = t.run(program, "replay", file, "--json", code=0).json()
            equal((got["decisions"], got["differ"]), (200, 0), f"{program} on {file}")
        ours = replayed(t, path, "--policy", "linear")["other"]
        got = t.run(other, "replay", path, "--json", "--policy", "linear", code=0).json()["other"]
        equal(got, ours, "the other policy's regrets")
        tried.add(written_by)
    own = mine["written_by"].split(", ")[1].split(" ")[0]
    if not tried - {own}:
        raise Skip("no other compiler's build lies beside this one (tests/run makes build-clang)")



@case
def a_shadow_policy_is_asked_and_never_obeyed(t):
    """Its counts on the metrics page, in the status and in the recording are replay's own."""
    place = World(t, "auto", settings=("policy=eft", "shadow_policy=least-requests",
                                       "shadow_set=tie_band=0.1, migration_margin=1"))
    path, plain = t.path("a.twr"), t.path("b.twr")
    process = recorder(t, path)
    traffic(place, 300)
    eventually(lambda: place.metric("shadow_decisions_total") == 300, 10, "all are evaluated")
    told = stopped(process)
    equal(place.metric("shadow_skipped_total"), 0, "skipped")
    equal(told["shadows"], place.metric("shadow_disagreements_total"), "disagreements recorded")
    check(told["shadows"] > 10, f"they hardly differ: {told}")
    got = replayed(t, path)
    equal((got["decisions"], got["differ"], got["policies"]), (300, 0, {"eft": 300}), str(got))
    shadow = got["shadow"]
    equal((shadow["policy"], shadow["decisions"], shadow["differ"]),
          ("least-requests", 300, told["shadows"]), "as replayed")
    other = replayed(t, path, "--policy", "least-requests", "--set", "tie_band=0.1", "--set",
                     "migration_margin=1")["other"]
    for key in ("differ", "incomparable", "regret", "classes", "reasons", "top"):
        equal(shadow[key], other[key], f"the shadow's {key}")
    for name, measure in (("regret", "other"), ("excess", "own")):
        loss = shadow["regret"][measure]["loss_s"]
        metric = place.metric(f"shadow_{name}_seconds_total")
        check(abs(metric - loss) <= 1e-6 * 300, f"{name}: {metric} on the page, {loss} replayed")
    page = json.loads(ask(place.router.admin, "GET", "/status").body)
    for status in (place.status()["router"], page["router"]):
        equal((status["policy"], status["shadow"]["policy"], status["shadow"]["decisions"],
               status["shadow"]["disagreements"]),
              ("eft", "least-requests", 300, told["shadows"]), "status")
    contains(t.run("turnward", "status", "--region", t.region).out,
             f"shadow least-requests: another engine in {told['shadows']} of 300 decisions")
    equal(place.metric("shadow_decision_seconds_count"), 300, "evaluations timed")
    told = t.run("turnward", "replay", path, code=0).out
    contains(told, "the shadow policy least-requests would have chosen another engine in")

    place.router.stop()
    base, t.region = t.region, os.path.join(t.region, "plain")
    os.mkdir(t.region, 0o750)
    place = World(t, "auto", settings=("policy=eft",))
    process = recorder(t, plain)
    traffic(place, 50)
    settled(place)
    equal(stopped(process)["shadows"], 0, "no shadow is asked unless configured")
    equal(replayed(t, plain)["shadow"], None, "and none is told of")
    t.region = base


@case
def a_decision_is_explained_from_a_recording_as_from_the_journal(t):
    place = World(t, "auto", settings=("policy=eft", "shadow_policy=least-requests"))
    path = t.path("a.twr")
    process = recorder(t, path)
    traffic(place, 200)
    settled(place)
    eventually(lambda: place.metric("shadow_decisions_total") == 200, 10, "all are evaluated")
    stopped(process)
    worst = replayed(t, path)["shadow"]["top"][0]
    for words in ((worst["id"], "--json"), (worst["id"],), ("storm-0", "--json")):
        live = t.run("turnward", "explain", "--region", t.region, *words, code=0).out
        equal(t.run("turnward", "explain", "--file", path, *words, code=0).out, live, "explained")
    told = t.run("turnward", "explain", "--file", path, worst["id"], "--json", code=0).json()
    equal((told["engine"], told["reason"], told["shadow"]["engine"], told["shadow"]["other_s"]),
          (worst["engine"], worst["reason"], worst["other_engine"], worst["other_s"]), "the worst")
    check(told["shadow"]["differs"] and told["replay_same"], str(told["shadow"]))
    equal(told["params"]["policy"], "eft")
    equal(told["shadow"]["params"]["policy"], "least-requests")
    equal(len(told["request"]["random"]), 2, "random draws")
    outcome, phases = told["outcome"], told["outcome"]["phases_s"]
    equal((outcome["end"], outcome["status"], outcome["engine"]), ("ok", 200, told["engine"]))
    moments = [outcome[name] or 0 for name in ("sent_s", "first_token_s", "relayed_s")]
    check(abs(sum(s or 0 for s in phases.values()) - max(moments)) < 1e-9,
          f"{phases} of {outcome}")
    text = t.run("turnward", "explain", "--file", path, worst["id"], code=0).out
    for word in ("shadow least-requests: " + worst["other_engine"], "engine_token", "% ",
                 "decided again the same, bit for bit", "outcome: ok, status 200"):
        contains(text, word)
    done = t.run("turnward", "explain", "--file", path, "never-was", code=1)
    contains(done.err, f"never-was is not in {path}")


@case
def a_shadow_that_cannot_be_is_a_mistake(t):
    for settings, text in (
            (["shadow_policy=best"], "shadow_policy = best: is no policy"),
            (["shadow_set=tie_band=0.1"], "no shadow_policy that it is for"),
            (["shadow_policy=eft", "shadow_set=tie_bnad=0.1"], "did you mean tie_band"),
            (["shadow_policy=eft", "shadow_set=tie_band=7"], "shadow_set: tie_band = 7: must be"),
            (["shadow_policy=eft", "shadow_set=max_body=7"], "unknown key max_body")):
        words = [word for setting in settings for word in ("--set", setting)]
        done = t.run("turnward-router", "--region", t.region, *words)
        contains((2, 78), done.code, f"{settings}: exit status")
        contains(done.err, text)


main()
