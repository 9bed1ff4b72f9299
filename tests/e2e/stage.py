#!/usr/bin/env python3
"""Staging on live connections: pieces before the request, cold slots, the guard, the books."""
import json
import os
import random
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import *  # noqa: E402,F403
from staging import *  # noqa: E402,F403

# ---- pieces ----

@on_both_loops
def a_long_prompt_comes_as_growing_prefixes_and_then_unchanged(t, io):
    cache = Caching()
    router = staged(t, io, t.engine(cache))
    before = metric(router, "requests_started_total")
    raw = json.dumps(chat(tools=[{"type": "function", "function": {"name": "f"}}], n=1,
                          stop=["END"], cache_salt="s", stream=True), indent=1)
    answer = ask(router.address, "POST", CHAT, raw, [("Authorization", "Bearer mine"),
                                                     ("x-data-parallel-rank", "1"),
                                                     ("x-request-id", "one")])
    equal(answer.status, 200)
    (last, whole), = cache.requests
    equal(last.body.decode(), raw, "the client's request")
    equal(last.get("x-request-id"), "one")
    check(last.get("x-turnward-internal") is None, "the request itself is marked")
    check(len(cache.pieces) >= 3, f"{len(cache.pieces)} pieces")
    length = 0
    for piece, ids in cache.pieces:
        equal(ids, whole[:len(ids)], "a prefix")
        equal(len(ids) % 16, 0, "whole blocks")
        check(0 < len(ids) - length <= PIECE, f"{len(ids) - length} new tokens")
        length = len(ids)
        body = piece.json()
        equal(set(body), {"model", "prompt", "max_tokens", "temperature", "cache_salt"}, "members")
        equal((body["max_tokens"], body["cache_salt"]), (1, "s"))
        equal(piece.get("authorization"), "Bearer mine")
        equal(piece.get("x-data-parallel-rank"), "1")
        contains(piece.get("x-request-id"), "one-p")
    check(len(whole) - length <= 1.25 * PIECE, "the rest is as long as a piece and a quarter")
    equal(metric(router, "staged_pieces_total"), len(cache.pieces))
    equal(metric(router, "requests_started_total") - before, 1, "users' requests")
    equal(metric(router, "prompt_tokens_total"), len(whole), "prompt tokens of users")
    equal(metric(router, "cached_tokens_total"), 0, "tokens that a cache saved")
    router.wait_log("request", pieces=len(cache.pieces))
    equal(sum('"path":"CHAT"' in line or '"path":"COMPLETIONS"' in line for line in router.err), 1,
          "lines of the log")
    idle(router)


@on_both_loops
def bodies_that_no_tokeniser_reads_are_cut_between_messages(t, io):
    cache = Caching()
    router = staged(t, io, t.engine(cache), kind="auto")
    talk = chat(6000, parts=24)
    claude = {"model": "m", "system": "be brief", "max_tokens": 9000, "stop_sequences": ["x"],
              "thinking": {"type": "enabled", "budget_tokens": 4000},
              "stream": True, "tool_choice": {"type": "any"}, "tools": [{"name": "f"}],
              "messages": talk["messages"][1:]}
    codex = {"model": "m", "instructions": "be brief", "max_output_tokens": 8, "store": True,
             "input": [{"type": "message", **m} for m in chat(6000, 2, 24)["messages"][1:]]}
    for target, body, limit in ((MESSAGES, claude, "max_tokens"),
                                (RESPONSES, codex, "max_output_tokens"),
                                (CHAT, chat(6000, 3, 24), "max_tokens")):
        cache.pieces, cache.requests = [], []
        raw = json.dumps(body)
        equal(ask(router.address, "POST", target, raw).status, 200)
        (last, whole), = cache.requests
        equal(last.body.decode(), raw, "the client's request")
        check(len(cache.pieces) >= 3, f"{target}: {len(cache.pieces)} pieces")
        key = "input" if target == RESPONSES else "messages"
        length = 0
        for piece, ids in cache.pieces:
            got = piece.json()
            equal(piece.target, target)
            equal(got[limit], 1)
            equal(got[key], body[key][:len(got[key])], "messages")
            equal(got[key][-1]["role"], "user", "the last message")
            equal(ids, whole[:len(ids)], "a prefix")
            check(len(ids) > length, "they do not grow")
            length = len(ids)
            for name in ("stop_sequences", "stream", "tool_choice"):
                check(name not in got, name)
            equal(got.get("tools"), body.get("tools"), "tools")
            # A budget must lie under the limit; the other kind of thinking has none.
            equal(got.get("thinking"), body.get("thinking") and {"type": "adaptive"}, "thinking")
            equal(got.get("store", False), False)
    equal(cache.asked, 0, "questions to the tokeniser")
    idle(router)


@on_both_loops
def what_a_vllm_renders_is_cut_by_its_ids_whichever_path_it_is_for(t, io):
    cache = Caching(renders=True)
    router = staged(t, io, t.engine(cache))
    talks = [chat(4000, seed)["messages"] for seed in range(3)]
    for target, body in (
            (CHAT, {"messages": talks[0], "reasoning_effort": "low", "stream": True}),
            (MESSAGES, {"messages": talks[1][1:], "system": "be brief", "max_tokens": 9000,
                        "thinking": {"type": "enabled", "budget_tokens": 4000},
                        "cache_salt": "s"}),
            (RESPONSES, {"input": [{"type": "message", **m} for m in talks[2]], "store": True})):
        cache.pieces, cache.requests, cache.rendered = [], [], []
        raw = json.dumps({"model": "m", **body})
        equal(ask(router.address, "POST", target, raw).status, 200)
        (last, whole), = cache.requests
        (asked,) = cache.rendered
        equal((last.body.decode(), asked.body.decode()), (raw, raw), "the client's request")
        equal((asked.target, asked.get("x-turnward-internal")), (target + "/render", "tokenise"))
        check(len(cache.pieces) >= 3, f"{target}: {len(cache.pieces)} pieces")
        for piece, ids in cache.pieces:
            equal(piece.target, "/v1/completions")
            equal(ids, whole[:len(ids)], "a prefix")
            equal(piece.json().get("cache_salt"), body.get("cache_salt"), "salt")
    equal(cache.asked, 0, "questions to the tokeniser")
    idle(router)


@on_both_loops
def a_prompt_of_plain_text_is_cut_too_a_list_of_them_is_not(t, io):
    cache = Caching()

    def script(wire, request):
        if request.target == "/v1/completions" and not request.get("x-turnward-internal"):
            text = " ".join([request.json()["prompt"]] if isinstance(request.json()["prompt"], str)
                            else request.json()["prompt"])
            request.body = json.dumps({"prompt": cache.ids({"messages": text})}).encode()
        elif request.target == "/tokenize":
            request.body = json.dumps({"messages": request.json()["prompt"]}).encode()
        return cache(wire, request)
    router = staged(t, io, t.engine(script))
    for prompt, pieces in ((words(4000, 1), 3), ([words(4000, 2)], 3), ([words(2000, 3)] * 2, 3)):
        equal(ask(router.address, "POST", "/v1/completions",
                  {"model": "m", "prompt": prompt, "max_tokens": 3}).status, 200)
        equal(len(cache.pieces), pieces, "pieces so far")
    idle(router)


@on_both_loops
def a_vllm_that_only_tokenises_is_told_what_its_template_reads(t, io):
    cache, asked = Caching(), []
    engine = t.engine(lambda wire, request: (request.target == "/tokenize" and
                                             asked.append(request.json())) or cache(wire, request))
    router = staged(t, io, engine)
    for seed, (more, wanted) in enumerate((
            ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
            ({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False,
                                                                  "reasoning_effort": "high"}},
             {"reasoning_effort": "low", "enable_thinking": False}),
            ({"chat_template_kwargs": {"a": [1]}}, {"a": [1]}), ({}, None),
            ({"reasoning_effort": None}, None))):
        equal(ask(router.address, "POST", CHAT, chat(4000, seed, **more)).status, 200)
        equal(asked[-1].get("chat_template_kwargs"), wanted, f"{more}")
        equal(asked[-1]["add_generation_prompt"], True)
    equal(len(asked), 5)
    idle(router)


@on_both_loops
def each_kind_is_asked_in_its_own_way(t, io):
    for kind in ("sglang", "llamacpp"):
        cache, asked = Caching(), []

        def script(wire, request, cache=cache, asked=asked):
            if request.target == "/apply-template":
                asked.append(request)
                text = json.dumps(request.json()["messages"]) + ' "<end>\\"'
                wire.send(response_bytes(200, {"prompt": text}))
                return True
            if request.target == "/tokenize":
                asked.append(request)
                body = request.json()
                if "content" in body:
                    talk = json.loads(body["content"].removesuffix(' "<end>\\"'))
                    body = {"messages": talk}
                wire.send(response_bytes(200, {"tokens": cache.ids({
                    "messages": body["messages"], **({"tools": body["tools"]} if "tools" in body
                                                     else {})})}))
                return True
            return cache(wire, request)
        router = staged(t, io, t.engine(script), kind=kind)
        talk = chat(seed=kind, tool_choice="none", stop=["x"])  # the region remembers the other
        equal(ask(router.address, "POST", CHAT, talk).status, 200)
        check(len(cache.pieces) >= 3, f"{kind}: {len(cache.pieces)} pieces")
        (_, whole), = cache.requests
        for piece, ids in cache.pieces:
            equal(piece.target, "/v1/completions")
            equal(ids, whole[:len(ids)], "a prefix")
        if kind == "sglang":
            equal(set(asked[0].json()), {"model", "messages", "tool_choice"}, "members")
        else:
            equal([r.target for r in asked], ["/apply-template", "/tokenize"])
            equal(asked[1].json()["add_special"], True)
        idle(router)
        router.stop()


@on_both_loops
def an_engine_without_a_tokeniser_is_asked_once(t, io):
    cache = Caching(tokenises=False)
    router = staged(t, io, t.engine(cache))
    for seed in range(3):
        equal(ask(router.address, "POST", CHAT, chat(6000, seed, 24)).status, 200)
    equal(cache.asked, 1, "times that it was asked")
    equal(len(cache.rendered), 0, "bodies rendered")
    check(len(cache.pieces) >= 9, f"{len(cache.pieces)} pieces")
    equal(len(cache.requests), 3)
    idle(router)


@on_both_loops
def nobody_pays_when_there_is_nothing_to_gain(t, io):
    cache = Caching()
    router = staged(t, io, t.engine(cache), alone="0.1")
    equal(ask(router.address, "POST", CHAT, chat()).status, 200)
    equal(reason(router, "alone"), 1)
    equal(ask(router.address, "POST", CHAT, chat(300)).status, 200)
    equal(reason(router, "short"), 1)
    equal(ask(router.address, "POST", CHAT, chat()).status, 200)  # it is cached by now
    equal(reason(router, "short"), 2)
    equal((cache.asked, len(cache.pieces)), (0, 0), "asked, pieces")
    idle(router)


@on_both_loops
def what_cannot_be_cut_goes_whole_and_its_reason_is_counted(t, io):
    cache = Caching()
    router = staged(t, io, t.engine(cache), kind="auto", cold_slots=0)
    images = chat(seed=1)
    images["messages"][1]["content"] = [
        {"type": "text", "text": words(4000, 5)},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    equal(ask(router.address, "POST", CHAT, images).status, 200)
    equal(reason(router, "images"), 1)
    equal(ask(router.address, "POST", CHAT, chat(seed=2, prompt_logprobs=1)).status, 200)
    equal(reason(router, "prompt-logprobs"), 1)
    equal(ask(router.address, "POST", RESPONSES, {"model": "m", "input": words(4000, 6)}).status,
          200)
    equal(reason(router, "shape"), 1)
    equal(len(cache.pieces), 0, "pieces")
    equal(len(cache.requests), 3)
    idle(router)


@on_both_loops
def without_the_key_nothing_is_asked(t, io):
    cache = Caching()
    engine = t.engine(cache)
    router = staged(t, io, engine, args=("--set", "stage=off"))
    equal(ask(router.address, "POST", CHAT, chat()).status, 200)
    equal((cache.asked, len(cache.pieces), len(cache.requests)), (0, 0, 1))
    equal(metric(router, "staged_decisions_total"), 0)
    idle(router)


# ---- the guard ----

@on_both_loops
def pieces_that_miss_are_given_up_at_the_second(t, io):
    cache = Caching(hits=False)
    router = staged(t, io, t.engine(cache))
    equal(ask(router.address, "POST", CHAT, chat(8000)).status, 200)
    equal(len(cache.pieces), 2, "pieces")
    equal(ask(router.address, "POST", CHAT, chat(8000, 2)).status, 200)
    equal(len(cache.pieces), 2, "pieces after the guard has spoken")
    equal(len(cache.requests), 2)
    equal(reason(router, "missed"), 1)
    equal(reason(router, "guard"), 1)
    equal(sum("did not find the one before" in line for line in router.err), 1, "lines of the log")
    idle(router)


@on_both_loops
def force_goes_on_all_the_same(t, io):
    cache = Caching(hits=False)
    router = staged(t, io, t.engine(cache), stage_force=1)
    equal(ask(router.address, "POST", CHAT, chat(8000)).status, 200)
    check(len(cache.pieces) > 4, f"{len(cache.pieces)} pieces")
    idle(router)


@on_both_loops
def a_request_that_does_not_find_its_own_pieces_ends_it(t, io):
    cache = Caching()
    real = cache.ids
    cache.ids = lambda body: real(body) if "add_generation_prompt" in body else [7] + real(body)
    router = staged(t, io, t.engine(cache))
    equal(ask(router.address, "POST", CHAT, chat()).status, 200)
    check(len(cache.pieces) >= 3, "pieces")
    pieces = len(cache.pieces)
    equal(ask(router.address, "POST", CHAT, chat(seed=2)).status, 200)
    equal(len(cache.pieces), pieces, "pieces of the next")
    equal(sum("did not find its own pieces" in line for line in router.err), 1, "lines of the log")
    idle(router)


@on_both_loops
def without_any_evidence_an_engine_gets_no_pieces(t, io):
    cache = Caching(details=False)
    router = staged(t, io, t.engine(cache))
    for seed in range(3):
        equal(ask(router.address, "POST", CHAT, chat(8000, seed)).status, 200)
    equal(len(cache.pieces), 2, "pieces")
    equal(reason(router, "evidence"), 3)
    equal(metric(router, "engine_staging_off"), 1)
    equal(sum("--enable-prompt-tokens-details" in line for line in router.err), 1, "lines")
    eventually(lambda: "nothing tells whether they hit" in t.run(
        "turnward", "status", "--region", t.region).out, 5, "status says it")
    contains(t.run("turnward", "status", "--region", t.region).out,
             "staging: 1 prompts in 2 pieces, 1 of them given up; switched off 1 times")
    idle(router)


@on_both_loops
def the_engines_own_counters_are_evidence_enough(t, io):
    for hits in (True, False):
        cache = Caching(details=False, hits=hits)
        sums = {"queries": 0, "hits": 0}
        cached_of = cache.prefill

        def prefill(ids, sums=sums, cached_of=cached_of):
            cached = cached_of(ids)
            sums["queries"] += len(ids)
            sums["hits"] += cached
            return cached
        cache.prefill = prefill
        engine = t.engine(cache)
        engine.answers["/metrics"] = lambda sums=sums: response_bytes(200, "".join(
            f'vllm:{name}{{model_name="m"}} {value}\n' for name, value in (
                ("num_requests_running", 0), ("num_requests_waiting", 0),
                ("prefix_cache_queries_total", sums["queries"]),
                ("prefix_cache_hits_total", sums["hits"]))))
        router = staged(t, io, engine)
        agent = t.start("turnward-agent", "--engine", f"e0={engine.url}", "--kind", "vllm",
                        "--period", "20", "--region", t.region)
        eventually(lambda: metric(router, "agent_queried_tokens_total") == 0 and
                   metric(router, "agent_attached") == 1, 5, "the agent is read")
        equal(ask(router.address, "POST", CHAT, chat(8000)).status, 200)
        if hits:
            check(len(cache.pieces) > 4, f"{len(cache.pieces)} pieces")
            equal(metric(router, "staged_guards_total"), 0)
        else:
            equal(len(cache.pieces), 2, "pieces")
            equal(reason(router, "missed"), 1)
        idle(router)
        agent.stop()
        router.stop()


@on_both_loops
def the_time_that_pieces_take_is_evidence_enough(t, io):
    for hits in (True, False):
        cache = Caching(details=False, hits=hits, rate=4000)
        router = staged(t, io, t.engine(cache))
        for seed in range(4):  # its pace is learnt
            equal(ask(router.address, "POST", CHAT, chat(900, f"{hits}{seed}", stream=True)).status,
                  200)
        equal(ask(router.address, "POST", CHAT, chat(4500, hits)).status, 200)
        if hits:
            check(len(cache.pieces) >= 3, f"{len(cache.pieces)} pieces")
            equal(metric(router, "staged_guards_total"), 0)
        else:
            equal(len(cache.pieces), 2, "pieces")
            equal(reason(router, "missed"), 1)
            equal(sum("did not find the one before" in line for line in router.err), 1, "lines")
        equal(len(cache.requests), 5)
        idle(router)
        router.stop()


@on_both_loops
def a_template_that_is_not_prefix_stable_ends_it_after_two_pieces(t, io):
    cache = Caching()
    real = cache.ids
    cache.ids = lambda body: [len(body["messages"])] + real(body)
    router = staged(t, io, t.engine(cache), kind="auto")
    for seed in range(2):
        raw = json.dumps({"model": "m", "max_tokens": 8,
                          "messages": chat(6000, seed, 24)["messages"][1:]})
        equal(ask(router.address, "POST", MESSAGES, raw).status, 200)
        equal(cache.requests[-1][0].body.decode(), raw, "the client's request")
    equal(len(cache.pieces), 2, "pieces")
    equal(reason(router, "missed"), 1)
    equal(reason(router, "guard"), 1)
    equal(sum("did not find the one before" in line for line in router.err), 1, "lines of the log")
    idle(router)


# ---- faults ----

@on_both_loops
def what_is_evicted_between_pieces_costs_nothing_but_the_rest(t, io):
    cache = Caching()

    def hook(number, wire):
        if number == 4:
            with cache.lock:
                cache.kept.clear()
        return True
    cache.hook = hook
    router = staged(t, io, t.engine(cache))
    equal(ask(router.address, "POST", CHAT, chat(8000)).status, 200)
    equal(len(cache.pieces), 4, "pieces")
    equal(reason(router, "evicted"), 1)
    equal(metric(router, "staged_guards_total"), 0)
    equal(ask(router.address, "POST", CHAT, chat(8000, 2)).status, 200)
    check(len(cache.pieces) > 8, "the next prompt got no pieces")
    idle(router)


@on_both_loops
def an_engine_that_dies_between_pieces_is_left(t, io):
    caches = [Caching(), Caching()]
    engines = [t.engine(cache) for cache in caches]
    for cache, engine in zip(caches, engines):
        def hook(number, wire, engine=engine):
            if number == 2 and not any(c.requests for c in caches) and \
                    sum(len(c.pieces) for c in caches) == 2:
                engine.die()
                return False
            return True
        cache.hook = hook
    router = staged(t, io, *engines)
    equal(ask(router.address, "POST", CHAT, chat(6000)).status, 200)
    equal(sum(len(c.requests) for c in caches), 1)
    first = [c for c in caches if not c.requests][0]
    equal(len(first.pieces), 2, "pieces of the engine that died")
    idle(router)


@on_both_loops
def connections_that_break_and_caches_that_forget_cost_no_answer(t, io):
    draw, caches = random.Random(5), [Caching(delay=0.002) for _ in range(3)]
    for cache in caches:
        def hook(number, wire, cache=cache):
            luck = draw.random()
            if 0.1 < luck < 0.2:
                with cache.lock:
                    cache.kept.clear()
            return luck > 0.1
        cache.hook = hook
    router = staged(t, io, *map(t.engine, caches), stage_guard_off=0.001)
    got, lock, left = [], threading.Lock(), list(range(30))

    def client():
        while True:
            with lock:
                if not left:
                    return
                seed = left.pop()
            answer = ask(router.address, "POST", CHAT, chat(5000, seed), seconds=30)
            got.append((seed, answer.status))
    threads = [threading.Thread(target=client) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(sorted(got), [(seed, 200) for seed in range(30)], "answers")
    equal(sorted(request.body for cache in caches for request, _ in cache.requests),
          sorted(json.dumps(chat(5000, seed)).encode() for seed in range(30)), "requests")
    check(sum(len(c.pieces) for c in caches) > 60, "too few pieces")
    idle(router)


@on_both_loops
def a_piece_refused_is_no_harm(t, io):
    cache = Caching()
    engine = t.engine()

    def script(wire, request):
        if request.get("x-turnward-internal") == "piece":
            wire.send(response_bytes(400, {"error": {"message": "no"}}))
            return True
        return cache(wire, request)
    engine.script = script
    router = staged(t, io, engine)
    equal(ask(router.address, "POST", CHAT, chat()).status, 200)
    equal(ask(router.address, "POST", CHAT, chat(seed=2)).status, 200)
    equal(metric(router, "staged_pieces_total"), 1)
    equal(reason(router, "refused"), 1)
    idle(router)


@on_both_loops
def a_piece_that_takes_too_long_is_closed_and_the_request_goes(t, io):
    cache = Caching()
    gone = threading.Event()

    def hook(number, wire):
        if number > 1:
            return True
        wire.wait_closed(10)
        gone.set()
        return False
    cache.hook = hook
    router = staged(t, io, t.engine(cache), args=("--set", "first_byte_timeout=700ms"))
    equal(ask(router.address, "POST", CHAT, chat()).status, 200)
    check(gone.wait(5), "the piece was not closed")
    equal(reason(router, "timeout"), 1)
    equal(len(cache.pieces), 1)
    idle(router)


@on_both_loops
def a_worker_killed_between_pieces_leaves_nothing_behind(t, io):
    cache = Caching()
    may = threading.Semaphore(0)
    cache.hook = lambda number, wire: may.acquire() or True
    router = staged(t, io, t.engine(cache))
    wire = dial(router.address)
    wire.send(request_bytes("POST", CHAT, json.dumps(chat())))
    eventually(lambda: cache.pieces, 5, "a piece is in the engine")
    with open(f"/proc/{router.pid}/task/{router.pid}/children", encoding="ascii") as file:
        os.kill(int(file.read().split()[0]), signal.SIGKILL)
    wire.wait_closed(5)
    for _ in range(40):
        may.release()
    eventually(lambda: answers(router.address), 5, "the next worker answers")
    equal(metric(router, "requests_lost_total"), 1)
    equal(ask(router.address, "POST", CHAT, chat()).status, 200)
    equal(len(cache.requests), 1)
    idle(router)


def leavers(t, io, number_of):
    """So many clients leave at random moments; what the engine gets of each stops with it."""
    cache = Caching(delay=0.004)
    router = staged(t, io, t.engine(cache), cold_slots=0)
    leave(router, number_of, lambda number: chat(3000, number), 0.05)
    idle(router)
    pieces = len(cache.pieces)
    time.sleep(0.2)
    equal(len(cache.pieces), pieces, "pieces after all have left")
    check(metric(router, "requests_aborted_total") > number_of / 4, "too few left in time")
    equal(ask(router.address, "POST", CHAT, chat(3000, "last")).status, 200)
    idle(router)


@on_both_loops
def no_piece_comes_once_its_client_has_gone(t, io):
    cache = Caching()
    router = staged(t, io, t.engine(cache))
    for number in range(12):
        last, inside, may = len(cache.pieces) + number % 3 + 1, threading.Event(), threading.Event()
        cache.hook = lambda piece, wire, last=last, inside=inside, may=may: \
            piece < last or inside.set() or may.wait(10)
        wire = dial(router.address)
        wire.send(request_bytes("POST", CHAT, json.dumps(chat(5000, f"gone{number}"))))
        check(inside.wait(10), "the piece is in the engine")
        wire.reset() if number % 2 else wire.close()
        eventually(lambda number=number: metric(router, "requests_aborted_total") == number + 1, 5,
                   "it has left")
        may.set()
        idle(router)
        time.sleep(0.02)
        equal(len(cache.pieces), last, "pieces")
    equal(len(cache.requests), 0, "requests")


@on_both_loops
def clients_that_leave_between_pieces_leave_nothing_behind(t, io):
    leavers(t, io, 100)


@slow
def a_thousand_clients_that_leave_between_pieces_leave_nothing_behind(t):
    leavers(t, "auto", 1000)


# ---- cold slots ----

@on_both_loops
def one_cold_prompt_at_a_time_and_short_ones_pass(t, io):
    cache = Caching()
    may, inside = threading.Semaphore(0), []

    def hook(number, wire):
        inside.append(number)
        may.acquire()
        return True
    cache.hook = hook
    router = staged(t, io, t.engine(cache))
    answers_got, clients = [], []
    for seed in range(3):
        client = threading.Thread(target=lambda seed=seed: answers_got.append(
            ask(router.address, "POST", CHAT, chat(4000, seed), seconds=30).status))
        client.start()
        clients.append(client)
        eventually(lambda: inside, 5, "the first piece is in the engine")
        eventually(lambda seed=seed: metric(router, "cold_waiting") == seed, 5, "they wait")
    equal(metric(router, "engine_cold_prompts"), 1)
    equal(metric(router, "engine_held_requests"), 2)
    equal(ask(router.address, "POST", CHAT, chat(300)).status, 200, "a short one")
    equal(len(inside), 1, "pieces in the engine")
    equal(metric(router, "staged_passed_total"), 1, "what went ahead of them")
    # Of the first all but its first piece, of the other two everything: some 11,000 tokens.
    spared = metric(router, "staged_passed_seconds_total")
    equal(2 < spared < 8, True, f"{spared} s of prefill spared, at 4,000 tokens a second")
    wire = dial(router.address)  # one more waits, and leaves
    wire.send(request_bytes("POST", CHAT, json.dumps(chat(4000, 9))))
    eventually(lambda: metric(router, "cold_waiting") == 3, 5, "it waits")
    wire.close()
    eventually(lambda: metric(router, "cold_waiting") == 2, 5, "it has left")
    equal(metric(router, "engine_held_requests"), 2)
    for _ in range(40):
        may.release()
    for client in clients:
        client.join(20)
    equal(answers_got, [200, 200, 200])
    equal(metric(router, "cold_waits_total"), 3)
    tags = [Caching.ids(p.json()) if "messages" in p.json() else tuple(ids[:64])
            for p, ids in cache.pieces]
    changes = sum(a != b for a, b in zip(tags, tags[1:]))
    equal(changes, 2, "changes between prompts: pieces of two were mixed")
    idle(router)


# ---- a modelled engine ----

@on_both_loops
def a_modelled_engine_finds_every_piece(t, io):
    port = t.port()
    t.start("turnward-engine", "--ports", str(port), "--speed", "50", "--model", "m",
            ready=f":{port}")

    class Engine:
        url = f"http://127.0.0.1:{port}"
    router = staged(t, io, Engine)
    for seed in range(2):
        answer = ask(router.address, "POST", CHAT, chat(6000, seed, stream=True,
                                                        stream_options={"include_usage": True}))
        equal(answer.status, 200)
    pieces = metric(router, "staged_pieces_total")
    check(pieces >= 8, f"{pieces} pieces")
    equal(metric(router, "staged_guards_total"), 0)
    equal(metric(router, "staged_given_up_total"), 0)
    equal(metric(router, "cached_tokens_total"), 0, "tokens that a cache saved")
    eventually(lambda: sum('"pieces"' in line for line in router.err) == 2, 5, "lines of the log")
    found = [json.loads(line) for line in router.err if '"pieces"' in line]
    for line in found:
        check(line["cached"] > 0.7 * line["in"], f"it did not find its pieces: {line}")
    idle(router)


@on_both_loops
def a_modelled_engine_without_a_prefix_cache_ends_it_after_two_pieces(t, io):
    port = t.port()
    t.start("turnward-engine", "--ports", str(port), "--speed", "50", "--model", "m",
            "--no-prefix-cache", ready=f":{port}")

    class Engine:
        url = f"http://127.0.0.1:{port}"
    router = staged(t, io, Engine)
    for seed in range(2):
        answer = ask(router.address, "POST", CHAT, chat(6000, seed, stream=True))
        equal((answer.status, answer.complete), (200, True))
    equal(metric(router, "staged_pieces_total"), 2)
    equal(metric(router, "staged_guards_total"), 1)
    equal(sum("did not find the one before" in line for line in router.err), 1, "lines of the log")
    idle(router)


if __name__ == "__main__":
    main()
