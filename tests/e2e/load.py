#!/usr/bin/env python3
"""Cases of turnward-bench's load commands: short runs of each give the figures they promise."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import *  # noqa: E402,F403

SHORT = ("--rounds", 1, "--seconds", 0.2, "--streams", 16)


def bench(t, command, *args, seconds=100):
    done = t.run("turnward-bench", command, *args, "--json", "-", seconds=seconds)
    equal(done.code, 0, "exit status")
    told = done.json()
    equal(told["kind"], "load", "kind")
    equal(told["command"], command, "command")
    for key in ("date", "kernel", "cpu", "cores", "load_average", "null_call_us"):
        check(key in told["machine"], f"machine has no {key}")
    check(all(isinstance(target["met"], bool) for target in told["targets"]), "targets without met")
    equal(told["targets_missed"], sum(not target["met"] for target in told["targets"]), "missed")
    return told


def arms(told):
    return {arm["name"]: arm for arm in told["arms"]}


def short(t, command, names="turnward", *args):
    told = bench(t, command, *SHORT, "--arms", names, *args)
    ran = arms(told)
    for name in ("direct", "relay") + (("turnward-uring", "turnward-epoll")
                                       if names == "turnward" else ()):
        check(name in ran, f"{name} did not run: {told['peers']}")
    return ran


def command_of(program, parent):
    """The command line of a process of that name whose parent this is, as words; [] if none."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                mother = int(file.read().rsplit(")", 1)[1].split()[1])
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().decode("utf-8", "replace").split("\0")
            if mother == parent and words[0].endswith("/" + program):
                return words
    return []


def positive(arm, *keys):
    for key in keys:
        check(key in arm and arm[key] > 0, f"{arm['name']}: {key} is {arm.get(key)}")
        low, high = arm["ranges"][key]
        check(low <= arm[key] <= high, f"{key}: {arm[key]} is not within {low}..{high}")


@case
def http_tells_latency_and_cpu_of_every_arm(t):
    ran = short(t, "http")
    for name, arm in ran.items():
        positive(arm, "latency_1_p50_us", "latency_16_p50_us", "latency_16_p99_us",
                 "requests_16_per_s", "open_p50_us", "open_p99_us")
        check(name == "direct" or arm["cpu_request_16_us"] > 0, f"{name}: no CPU")
    equal(ran["direct"]["added_1_p50_us"], 0, "what no router adds")
    check("cpu_request_16_us" not in ran["direct"], "direct has no process to weigh")


@case
def an_earlier_build_runs_beside_each_loop_of_ours_that_runs(t):
    told = bench(t, "http", *SHORT, "--arms", "turnward-epoll", "--before",
                 t.program("turnward-router"))
    check({"turnward-epoll", "before-epoll"} <= set(arms(told)), f"{told['peers']}")
    check("before-uring" not in arms(told), "an arm has come that has no successor here")
    check(any("/ before" in target["name"] for target in told["targets"]), "no target compares")


@case
def streams_are_whole_and_weighed_at_three_loads(t):
    for name, arm in short(t, "stream").items():
        for load in ("low", "mid", "high"):
            positive(arm, f"reads_chunk_{load}", f"itl_p50_{load}_us", f"itl_p99_{load}_us",
                     f"delay_p50_{load}_us")
            check(arm[f"reads_chunk_{load}"] <= 1, f"{name}: more reads than chunks")
            check(name == "direct" or arm[f"cpu_chunk_{load}_us"] > 0, f"{name}: no CPU")


@case
def bodies_are_weighed_by_the_megabyte(t):
    told = bench(t, "body", *SHORT, "--arms", "turnward-epoll")
    check(told["scan_mb_us"] > 0, "scan and hash cost nothing")
    for name, arm in arms(told).items():
        if name != "direct":
            positive(arm, "cpu_mb_100k_us", "cpu_mb_1m_us", "hop_40k_p50_us", "hop_400k_p99_us",
                     "hop_4m_p50_us")


@case
def idle_streams_are_weighed_and_live_ones_counted(t):
    for name, arm in short(t, "idle").items():
        check(arm["live_streams"] in (0, 16), f"{name}: {arm['live_streams']} live streams of 16")
        check("late_chunks" in arm, "late chunks are not counted")
        check(name == "direct" or {"rss_stream_bytes", "cpu_abort_us"} <= set(arm), f"{arm}")


@case
def stalled_clients_and_a_stopped_engine_leave_the_others_streams(t):
    for arm in short(t, "isolation").values():
        positive(arm, "healthy_p99_base_us", "healthy_p99_us", "isolation_ratio")


@case
def no_read_of_shared_memory_is_torn(t):
    told = bench(t, "decide", "--seconds", 0.3, "--samples", 20)
    check(len(told["arms"]) > 10, "parts are missing")
    check(all(arm["p50_ns"] <= arm["p99_ns"] for arm in told["arms"]), "p50 above p99")
    for reader in told["readers"]:
        check(reader["reads"] > 0, f"{reader['name']}: nothing read")
        equal(reader["torn"], 0, reader["name"])
    equal(told["readers"][-1]["gave_up"], 0, "reads of a stopped writer that gave up")


@case
def agents_are_weighed_and_their_samples_have_an_age(t):
    arm = bench(t, "agents", "--seconds", 1)["arms"][0]
    check(arm["cpu_core_percent"] > 0 and arm["page_bytes"] > 10000, f"{arm}")
    check(0 < arm["age_p50_ms"] <= arm["age_p99_ms"], f"{arm}")


@case
def peers_misses_what_it_could_not_compare(t):
    told = bench(t, "peers", *SHORT, "--arms", "relay")
    equal(sorted(arms(told)), ["direct", "relay"], "arms")
    missed = {target["name"] for target in told["targets"] if not target["met"]}
    check("CPU per request, io_uring / better proxy" in missed, "a peer that did not run is met")
    check("CPU per request / best LLM router" in missed, "an LLM router that did not run is met")
    check(any(r["torn"] == 0 for r in told["decide"]["readers"]), "decide is not in it")
    check(told["agents"]["arms"][0]["cpu_core_percent"] > 0, "agents are not in it")


@case
def a_peer_that_does_not_start_is_reported(t):
    places = t.path("peers")
    os.mkdir(places)
    for name in ("haproxy.cfg", "nginx.conf", "envoy.yaml"):
        with open(os.path.join(places, name), "w", encoding="ascii") as file:
            file.write("nonsense {\n")
    told = bench(t, "http", *SHORT, "--arms", "haproxy", "--peers", places)
    peer = told["peers"][0]
    equal((peer["name"], peer["ran"]), ("haproxy", False), "the peer")
    check(peer["why"], "it does not say why")
    check("haproxy" not in arms(told), "figures of a peer that did not run")


@case
def human_tables_have_floor_and_direct(t):
    done = t.run("turnward-bench", "stream", *SHORT, "--arms", "relay")
    equal(done.code, 0, "exit status")
    for text in ("direct", "relay", "CPU us/chunk", "kernel", "targets missed"):
        contains(done.out, text)


@case
def results_become_a_page_with_pictures(t):
    results, page = t.path("a.json"), t.path("a.html")
    equal(t.run("turnward-bench", "http", *SHORT, "--arms", "relay", "--json", results).code, 0,
          "exit status")
    equal(t.run("turnward-bench", "report", results, "-o", page).code, 0, "exit status")
    with open(page, encoding="utf-8") as file:
        text = file.read()
    for words in ("<svg", "small requests, 300 B, one connection", "relay", "All figures"):
        contains(text, words)


@case
def an_interrupted_run_leaves_nothing_behind(t):
    process = t.start("turnward-bench", "http", "--seconds", 0.3, "--rounds", 32, "--arms",
                      "turnward-epoll")
    process.wait_line("turnward-epoll", 60)
    place = next(word.split("=")[1].rsplit("/", 1)[0] for word in eventually(
        lambda: command_of("turnward-router", process.pid), 20) if word.startswith("--region="))
    equal(process.stop(20, signal.SIGINT), 1, "exit status")
    check(not os.path.exists(place), f"{place} is left")
    check(not command_of("turnward-router", process.pid), "its router is left")


@case
def unknown_arms_are_named(t):
    done = t.run("turnward-bench", "http", "--arms", "haprxy")
    equal(done.code, 2, "exit status")
    contains(done.err, "haproxy")


main()
