#!/usr/bin/env python3
"""Any process may be killed or stopped at any instant under load: only what it held is lost."""
import os
import signal
import socket
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from world import *  # noqa: E402,F403

CHAT = "/v1/chat/completions"
# Streams of a quarter of a second and short answers, on connections that are kept.
LOAD = ("--connections", 60, "--requests", 100000, "--body", "200-4000", "--tokens", "8-24",
        "--kinds", "chat,chat-stream,text,message-stream")
LONG = "word and " * 4000


def loaded(t, io, seconds, settings=()):
    """A world under load, with requests under way on every engine."""
    world = World(t, io, engines=3, speed=20,
                  settings=("engine_idle_timeout=0.5s", *settings))
    storm = world.storm(*LOAD, "--seconds", seconds)
    eventually(lambda: all(world.metric("engine_requests_total", engine=f"e{i}") > 10
                           for i in range(3)), 10, "every engine works")
    return world, storm


def turn(world, number, content, **fields):
    """One turn of a session; the answer's usage and how it was decided."""
    answer = ask(world.router.address, "POST", CHAT,
                 {"model": MODEL, "max_tokens": 4, "messages": [
                     {"role": "user", "content": content}]},
                 {"X-Session-Id": "turns", "X-Request-Id": f"turn-{number}", **fields}, 30)
    equal(answer.status, 200, "status")
    told = world.t.run("turnward", "explain", f"turn-{number}", "--region", world.t.region,
                       "--json").json()
    return answer.json()["usage"], told


# ---- agents ----

@case
def a_killed_agent_costs_no_request_and_its_successor_is_taken_up(t, io="auto"):
    world, storm = loaded(t, io, 3)
    world.agents[0].kill()
    eventually(lambda: not world.engine_status(0)["agent"]["alive"], 5, "status tells of it")
    time.sleep(0.5)
    world.agents[0] = agent_new(t, "e0", world.engines[0])
    eventually(lambda: world.engine_status(0)["agent"]["alive"], 5, "the new one is there")
    eventually(lambda: world.metric("agent_sample_age_seconds", engine="e0") < 0.3, 10,
               "the router reads the new one")
    clean(world.told(storm))
    equal(world.metric("worker_starts_total"), 1, "workers started")
    at_rest(world)


@case
def a_stopped_agent_draws_no_herd_to_its_engine(t, io="auto"):
    world, storm = loaded(t, io, 4)
    world.agents[0].send_signal(signal.SIGSTOP)
    before = [world.metric("engine_requests_total", engine=f"e{i}") for i in range(3)]
    eventually(lambda: world.engine_status(0)["agent"]["age_s"] > 2, 10, "its age shows")
    share = [world.metric("engine_requests_total", engine=f"e{i}") - before[i] for i in range(3)]
    world.agents[0].send_signal(signal.SIGCONT)
    check(share[0] < 2 * sum(share) / 3, f"the herd went to the silent one: {share}")
    eventually(lambda: world.metric("agent_sample_age_seconds", engine="e0") < 0.3, 10,
               "it is fresh again")
    clean(world.told(storm))
    at_rest(world)


# ---- engines ----

@on_both_loops
def a_killed_engine_cuts_its_own_streams_only_and_is_used_again(t, io):
    world, storm = loaded(t, io, 4)
    world.engines[0].kill()
    time.sleep(1)
    world.again(0)
    sent = world.metric("engine_requests_total", engine="e0")
    eventually(lambda: world.metric("engine_requests_total", engine="e0") > sent + 10, 10,
               "the new one is used")
    told = world.told(storm)
    # What had begun is cut or told as 502; nothing waits in vain, nothing else fails.
    clean(told, allowed=("cut", "status"))
    check(told["errors"], f"nothing was under way on it: {told}")
    check(set(told["statuses"]) <= {"502"}, f"statuses: {told}")
    check(sum(told["errors"].values()) <= 60, f"more than were under way: {told}")
    at_rest(world)


@on_both_loops
def a_stream_on_a_killed_engine_is_visibly_cut(t, io):
    world = World(t, io, engines=2, speed=2)
    wire = dial(world.router.address)
    wire.send(request_bytes("POST", CHAT, {
        "model": MODEL, "stream": True, "max_tokens": 2000,
        "messages": [{"role": "user", "content": "go on"}]}, {"X-Request-Id": "long"}))
    answer = wire.read_head()
    check(wire.read_chunk(answer) and wire.read_chunk(answer), "it streams")
    at = [i for i in range(2) if world.metric("engine_inflight_requests", engine=f"e{i}")]
    world.engines[at[0]].kill()
    wire.read_body(answer)
    check(not answer.complete and b"[DONE]" not in answer.body, "it passed for whole")
    equal(world.metric("requests_failed_total"), 1, "failed")


@case
def a_new_engines_cache_is_not_assumed(t, io="auto"):
    world = World(t, io, engines=2, speed=20)
    _, first = turn(world, 1, LONG)
    usage, told = turn(world, 2, LONG)
    home = told["engine"]
    check(usage["prompt_tokens_details"]["cached_tokens"] > 5000, f"it was not cached: {usage}")
    equal((told["home"], first["engine"]), (home, home), "home")
    index = int(home[1:])
    world.engines[index].kill()
    eventually(lambda: world.engine_status(index)["agent"]["health"] == "down", 10, "it is down")
    world.again(index)
    eventually(lambda: world.engine_status(index)["agent"]["health"] == "up", 10, "it is up")
    usage, told = turn(world, 3, LONG)
    equal(usage["prompt_tokens_details"]["cached_tokens"], 0, "cached")
    equal([e["input"]["hit_tokens"] for e in told["engines"]], [0, 0], "predicted hits")


@on_both_loops
def a_stopped_engine_holds_up_nobody_else(t, io):
    world, storm = loaded(t, io, 5)
    world.engines[0].send_signal(signal.SIGSTOP)
    time.sleep(0.5)
    held = world.metric("engine_inflight_requests", engine="e0")
    before = world.metric("requests_completed_total")
    for _ in range(3):
        time.sleep(0.5)
        now = world.metric("requests_completed_total")
        check(now > before, "the others do not go on")
        before = now
    more = world.metric("engine_inflight_requests", engine="e0") - held
    world.engines[0].send_signal(signal.SIGCONT)
    check(held + more < 55, f"the herd waits at the stopped one: {held} and {more} more of 60")
    clean(world.told(storm))
    at_rest(world)


# ---- the router ----

@on_both_loops
def a_killed_worker_is_back_at_once_with_its_sessions(t, io):
    world, storm = loaded(t, io, 3)
    turn(world, 1, LONG)
    known = world.metric("sessions")
    started = time.monotonic()
    os.kill(world.worker(), signal.SIGKILL)
    eventually(lambda: answers(world.router.address), 10, "it answers again")
    gap = time.monotonic() - started
    print(f"# the worker was back after {gap * 1000:.0f} ms", flush=True)
    check(gap < 2 * PATIENCE, f"back after {gap:.1f} s")
    check(world.metric("sessions") >= known, "sessions were lost")
    usage, told = turn(world, 2, LONG)
    check(told["home"] is not None and told["engine"] == told["home"], f"no home: {told}")
    check(usage["prompt_tokens_details"]["cached_tokens"] > 5000, "its cache was not used")
    told = world.told(storm)
    clean(told, allowed=("cut", "closed_unanswered"))
    check(sum(told["errors"].values()) <= 60, f"more than were under way: {told}")
    equal(world.metric("worker_starts_total"), 2, "workers started")
    check(world.metric("requests_lost_total") <= 61, "lost")
    at_rest(world)


@on_both_loops
def a_worker_that_was_stopped_takes_nothing_for_late_that_had_come(t, io):
    world = World(t, io, engines=3, settings=("connect_timeout=0.2s", "engine_idle_timeout=0s"))
    storm = world.storm("--connections", 300, "--requests", 1000000, "--seconds", 4, "--body",
                        "200-400", "--tokens", "4-8", "--close", 20)
    for _ in range(5):  # each request dials: some are dialling whenever it stops
        time.sleep(0.2)
        os.kill(world.worker(), signal.SIGSTOP)
        time.sleep(0.4)
        os.kill(world.worker(), signal.SIGCONT)
    clean(world.told(storm))
    equal(world.metric("engine_connect_failures_total"), 0, "connects taken for failed")
    at_rest(world)


@on_both_loops
def a_killed_supervisors_worker_ends_what_it_has_and_leaves(t, io):
    world = World(t, io, engines=3, speed=4)
    storm = world.storm("--connections", 60, "--requests", 60, "--body", "200-4000", "--tokens",
                        "200-300", "--kinds", "chat-stream")
    eventually(lambda: world.metric("requests_inflight") == 60, 10, "all are under way")
    worker = world.worker()
    world.router.kill()
    clean(world.told(storm))
    eventually(lambda: not os.path.exists(f"/proc/{worker}"), 10, "the worker leaves")
    host, port = world.router.address.split(":")
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, int(port)))
    told = t.run("turnward", "status", "--region", t.region, "--json")
    equal(told.code, 2, "status")
    check(not told.json()["router"]["alive"], "a dead router is shown alive")


main()
