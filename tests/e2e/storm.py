#!/usr/bin/env python3
"""Thousands of clients, a third of which leave at any point: no answer is ever another's, and
afterwards nothing is left."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from world import *  # noqa: E402,F403


def storm(t, io, requests, connections):
    world = World(t, io, heads=("vllm", "sglang", "vllm", "sglang"),
                  settings=("engine_idle_timeout=0.5s",))
    at_rest(world)
    descriptors = world.descriptors()
    told = world.told(world.storm("--requests", requests, "--connections", connections,
                                  "--abort", 30, "--seed", 1), 110)
    clean(told)
    equal(told["sent"], requests, "sent")
    check(0.2 < told["aborted"] / requests < 0.4, f"aborted: {told}")
    at_rest(world, descriptors)
    sums = world.metrics()
    equal(sums["turnward_requests_failed_total"], 0, "failed")
    check(sums["turnward_requests_completed_total"] >= told["completed"], "completed")
    equal(sums["turnward_worker_starts_total"], 1, "workers started")
    return told


@case
def a_third_leaves_and_no_answer_is_anothers_on_uring(t):
    storm(t, "uring", 10000, 1000)


@case
def a_third_leaves_and_no_answer_is_anothers_on_epoll(t):
    storm(t, "epoll", 10000, 1000)


@slow
def of_100000_a_third_leaves_and_no_answer_is_anothers_on_uring(t):
    storm(t, "uring", 100000, 2000)


@slow
def of_100000_a_third_leaves_and_no_answer_is_anothers_on_epoll(t):
    storm(t, "epoll", 100000, 2000)


@case
def engines_that_keep_on_working_for_those_who_left_mix_no_answers(t):
    world = World(t, "auto", heads=("llamacpp", "vllm"), settings=("engine_idle_timeout=0.5s",),
                  engine_args=("--sequences", 64))
    told = world.told(world.storm("--requests", 2000, "--connections", 200, "--abort", 50,
                                  "--seed", 3, "--body", "200-5000"))
    clean(told)
    at_rest(world)


@case
def the_storm_sees_a_foreign_answer_a_cut_one_and_a_byte_too_many(t):
    text = "waaa wbbb wccc wddd"
    whole = response_bytes(200, {"choices": [{"message": {"content": text}}]})
    for script, kind in ((whole, "cross_talk"), (whole[:-1], "cut"), (whole + b"x", "garbage"),
                         (response_bytes(200, {"choices": []}), "no_value"),
                         (response_bytes(503, {}), "status"), (b"", "closed_unanswered")):
        def answer(wire, request, script=script, stay=kind not in ("cut", "closed_unanswered")):
            wire.send(script)
            return stay
        engine = t.engine(answer)
        storm = t.start("storm", "--address", engine.address, "--requests", 20, "--connections", 4,
                        "--kinds", "chat", "--body", "200-300")
        equal(storm.wait(20), 0, "exit")
        told = json.loads(storm.out[-1])
        equal({**told["errors"], "cross_talk": told["cross_talk"]},
              {"cross_talk": 20} if kind == "cross_talk" else {kind: 20, "cross_talk": 0})


main()
