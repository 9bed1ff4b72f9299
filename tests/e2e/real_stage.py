#!/usr/bin/env python3
"""Pieces of long prompts on real vLLM, SGLang and llama.cpp: `tests/run --real`.

A witness between router and engine keeps every byte, so that the engine's own account of what was
cached is held against the cuts. Nothing is timed: tests/measure/stage_real.py does that.
"""
import json
import os
import random
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "real"))
from engines import *  # noqa: E402,F403
from witness import Witness  # noqa: E402

STEP, BLOCK = 1024, {"vllm": 32}
FLEET = Fleet({
    "vllm": ("--block-size", BLOCK["vllm"], "--max-num-batched-tokens", STEP, "--enable-scale-out",
             "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    "sglang": ("--chunked-prefill-size", STEP, "--max-prefill-tokens", STEP,
               "--tool-call-parser", "qwen25"),
})
MESSAGES, RESPONSES, COMPLETIONS = "/v1/messages", "/v1/responses", "/v1/completions"
TOOLS = [{"type": "function", "function": {
    "name": name, "description": f"does {name}", "parameters": {
        "type": "object", "properties": {"path": {"type": "string"}}}}} for name in "abcd"]


# ---- what is asked ----

def prose(words, seed):
    """Text unlike any other from its beginning on; two or three tokens a word."""
    draw = random.Random(seed)
    known = sorted(set(PROSE.split()))
    return f"{seed} " + " ".join(draw.choice(known) for _ in range(words))


def fresh():
    return str(time.time_ns())


def talk(seed, parts=7, words=330):
    roles = ["user", "assistant"] * parts
    return [{"role": role, "content": prose(words, f"{seed}.{i}")}
            for i, role in enumerate(roles[:parts - 1] + ["user"])]


def claude(seed):
    """A talk as Claude Code sends it: blocks, a tool's use and its result."""
    messages = talk(seed, 9)
    for i, message in enumerate(messages):
        message["content"] = [{"type": "text", "text": message["content"]}]
        if i in (1, 3):
            message["content"].append({"type": "tool_use", "id": f"t{i}", "name": "a",
                                       "input": {"path": "x"}})
        if i in (2, 4):
            text = message["content"].pop()["text"]
            message["content"].append({"type": "tool_result", "tool_use_id": f"t{i - 1}",
                                       "content": [{"type": "text", "text": text}]})
    messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    return {"model": MODEL, "max_tokens": 2048, "temperature": 0, "messages": messages,
            "stop_sequences": ["e"],
            "system": [{"type": "text", "text": f"{seed} {PROSE}",
                        "cache_control": {"type": "ephemeral"}}],
            "metadata": {"user_id": "somebody"}, "tools": [
                {"name": t["function"]["name"], "description": "does it",
                 "input_schema": t["function"]["parameters"]} for t in TOOLS]}


def codex(seed):
    """A talk as Codex sends it: items, a call and its output."""
    items = []
    for i, message in enumerate(talk(seed, 9)):
        kind = "output_text" if message["role"] == "assistant" else "input_text"
        items.append({"type": "message", "role": message["role"],
                      "content": [{"type": kind, "text": message["content"]}]})
        if i in (1, 3):
            items.append({"type": "function_call", "call_id": f"c{i}", "name": "a",
                          "arguments": json.dumps({"path": "x"})})
            items.append({"type": "function_call_output", "call_id": f"c{i}",
                          "output": prose(100, f"{seed} output {i}")})
    return {"model": MODEL, "instructions": f"{seed} {PROSE}", "input": items, "temperature": 0,
            "max_output_tokens": 8, "store": False, "parallel_tool_calls": False,
            "prompt_cache_key": seed, "tool_choice": "auto", "tools": [
                {"type": "function", "name": t["function"]["name"], "description": "does it",
                 "parameters": t["function"]["parameters"]} for t in TOOLS]}


# ---- the router, and what its engine says ----

def staged(t, kind, hide=(), deaf=(), watched=True, mode="pieces"):
    """Engine, witness, router; an agent beside it if watched."""
    engine = FLEET.engine(t, kind)
    witness = Witness(engine, hide, deaf)
    t.engines.append(witness)
    if watched:
        agent(t, kind, engine.url)
        until(t, kind, lambda s: s["health"] == "up" and s["kind"] == kind and
              s["fields"].get("running") == 0, "up, and idle", 60)
    lines = ["[router]", "debug_headers = on", "[stage]", f"stage = {mode}", "stage_alone = 0",
             "cold_tokens = 2000", f"[engine {kind}]", f"url = {witness.url}",
             f"kind = {kind}", f"step_budget = {STEP}"]
    front = t.router(args=("-c", t.write("staged.conf", "\n".join(lines) + "\n")))
    eventually(lambda: metric(front, "engine_models_known") == 1 and
               metric(front, "agent_attached") == watched, 20, "engine and agent are known")
    return engine, witness, front


def ids_of(piece):
    return piece.json()["prompt"]


def told_cached(answer):
    """By whichever of the four ways to ask."""
    found = usage_of(answer)
    details = found.get("prompt_tokens_details") or found.get("input_tokens_details") or {}
    return details.get("cached_tokens", found.get("cache_read_input_tokens")) or 0


def usage_of(answer):
    if "event-stream" in (answer.get("content-type") or ""):
        return usage(answer) or {}
    return answer.json()["usage"]


def told_prompt(answer):
    found = usage_of(answer)
    if "prompt_tokens" in found:
        return found["prompt_tokens"]
    inside = "input_tokens_details" in found
    return found["input_tokens"] + (0 if inside else (found.get("cache_read_input_tokens") or 0) +
                                    (found.get("cache_creation_input_tokens") or 0))


def asked(front, witness, path, body, fields=()):
    """One request; its answer, and its pieces with theirs."""
    answer = post(front.address, path, body, dict(fields), seconds=100)
    equal(answer.status, 200, f"{path}: {answer.body[:300]}")
    return answer, witness.pieces(answer.get("x-request-id"))


def decisions(front):
    """How often which reason was given, of those that were."""
    page = ask(front.admin, "GET", "/metrics").body.decode()
    return [line.partition("reason=")[2] for line in page.split("\n")
            if line.startswith("turnward_staged_decisions_total{") and not line.endswith(" 0")]


def no_trouble(front, pieces):
    """Every piece in the books, none of them as a user's request, the guard silent."""
    equal(metric(front, "staged_pieces_total"), pieces, "pieces")
    equal((metric(front, "staged_given_up_total"), metric(front, "staged_guards_total")), (0, 0),
          "given up, guards")
    settled(front)


# ---- pieces hit ----

def ways(kind, seed):
    """Name, path and body of what is cut by token ids."""
    yield "tools", CHAT, dict(greedy({"role": "system", "content": prose(50, seed)},
                                     *talk(seed), tokens=12), tools=TOOLS, tool_choice="none",
                              stream=True, stream_options={"include_usage": True})
    yield "template's arguments", CHAT, dict(
        greedy(*talk(seed + "b"), tokens=12),
        chat_template_kwargs={"preface": prose(60, seed + "p")})
    yield "plain text", COMPLETIONS, {"model": MODEL, "prompt": prose(3500, seed + "c"),
                                      "max_tokens": 12, "temperature": 0}
    if kind == "vllm":
        yield "a salt", CHAT, dict(greedy(*talk(seed + "d"), tokens=12), cache_salt="mine",
                                   priority=0)


def text_of(path, answer):
    return answer.json()["choices"][0]["text"] if path == COMPLETIONS else said(answer)


def pieces_hit(t, kind, deaf=()):
    engine, witness, front = staged(t, kind, deaf=deaf)
    block, count = BLOCK.get(kind, 1), 0
    before = metric(front, "requests_started_total")
    for number, (name, path, body) in enumerate(ways(kind, fresh()), 1):
        answer, pieces = asked(front, witness, path, json.dumps(body))
        cuts = [len(ids_of(r)) for r, _ in pieces]
        hits = [cached(a) for _, a in pieces] + [cached(answer)]
        print(f"# {kind}, {name}: pieces of {cuts}, prompt of {usage(answer)['prompt_tokens']}; "
              f"cached {hits}", flush=True)
        check(len(pieces) >= 4, f"{name}: {len(pieces)} pieces; {decisions(front)}")
        for (shorter, _), (longer, _) in zip(pieces, pieces[1:]):
            equal(ids_of(longer)[:len(ids_of(shorter))], ids_of(shorter), f"{name}: a prefix")
        for cut, hit in zip(cuts, hits[1:]):
            check(cut - block < hit, f"{name}: {hit} cached where {cut} should be")
        request, _ = witness.others()[-1]
        equal(request.json(), body, f"{name}: the client's request")
        reference = post(engine.address, path, untouched(kind, engine, body), seconds=100)
        equal(text_of(path, answer), text_of(path, reference), f"{name}: text")
        count += len(pieces)
        equal(metric(front, "requests_started_total") - before, number, "users' requests")
    no_trouble(front, count)
    lines = front.log("request")
    equal(sum(line.get("pieces", 0) for line in lines), count, "pieces in the log")
    equal(len([line for line in lines if line.get("path") in ("CHAT", "COMPLETIONS")]), number,
          "lines of the log")


@on_each_engine
def each_piece_finds_the_one_before_it_and_the_request_the_last(t, kind):
    pieces_hit(t, kind)


@real
def a_vllm_that_does_not_render_is_asked_for_tokens_and_pieces_hit(t):
    pieces_hit(t, "vllm", ("/render",))


@real
def bodies_of_other_clients_are_cut_by_what_vllm_renders(t):
    _, witness, front = staged(t, "vllm")
    seed, count = fresh(), 0
    for path, body in ((MESSAGES, claude(seed + "m")), (RESPONSES, codex(seed + "r"))):
        answer, pieces = asked(front, witness, path, body)
        cuts = [len(ids_of(r)) for r, _ in pieces]
        hits = [cached(a) for _, a in pieces] + [told_cached(answer)]
        print(f"# vllm, {path}: pieces of {cuts}, prompt of {told_prompt(answer)}; cached {hits}",
              flush=True)
        check(len(pieces) >= 4, f"{path}: {len(pieces)} pieces; {decisions(front)}")
        for cut, hit in zip(cuts, hits[1:]):
            check(cut - BLOCK["vllm"] < hit, f"{path}: {hit} cached where {cut} should be")
        count += len(pieces)
    no_trouble(front, count)


@on_each_engine
def bodies_of_other_clients_are_cut_between_messages_and_hit(t, kind):
    engine, witness, front = staged(t, kind, deaf=("/render",))
    seed, count = fresh(), 0
    for path, body in ((MESSAGES, claude(seed + "m")), (RESPONSES, codex(seed + "r"))):
        direct = post(engine.address, path, body, seconds=100)
        equal(direct.status, 200, f"the engine's own {path}: {direct.body[:300]}")
        body = claude(seed + "mm") if path == MESSAGES else codex(seed + "rr")
        answer, pieces = asked(front, witness, path, body)
        lengths = [told_prompt(a) for _, a in pieces]
        hits = [told_cached(a) for _, a in pieces] + [told_cached(answer)]
        print(f"# {kind}, {path}: pieces of {lengths}, prompt of {told_prompt(answer)}; cached "
              f"{hits}", flush=True)
        check(len(pieces) >= 3, f"{path}: {len(pieces)} pieces; decisions {decisions(front)}")
        for length, hit in zip(lengths, hits[1:]):
            # Lost: what the template puts behind the last message, and the rest of a block.
            check(hit > length - 40 - BLOCK.get(kind, 1), f"{path}: {hit} of {length} cached")
        count += len(pieces)
    no_trouble(front, count)


@on_each_engine
def the_next_turn_finds_the_whole_prompt(t, kind):
    _, witness, front = staged(t, kind)
    history = talk(fresh())
    first, pieces = asked(front, witness, CHAT, greedy(*history))
    check(len(pieces) >= 4, f"{len(pieces)} pieces")
    second, none = asked(front, witness, CHAT, greedy(
        *history, {"role": "assistant", "content": said(first)}, user("And then?")))
    equal(len(none), 0, "pieces of the second turn")
    check(cached(second) > usage(first)["prompt_tokens"] - 40 - BLOCK.get(kind, 1),
          f"{usage(second)}, first {usage(first)}")
    no_trouble(front, len(pieces))


# ---- who leaves ----

@on_each_engine
def a_client_that_leaves_between_pieces_frees_the_engine(t, kind):
    _, witness, front = staged(t, kind)
    for pieces in (1, 3):
        before = metric(front, "staged_pieces_total")
        wire = dial(front.address, 100)
        wire.send(request_bytes("POST", CHAT, greedy(*talk(fresh(), 15, 1200), stream=True), JSON))
        eventually(lambda: metric(front, "staged_pieces_total") >= before + pieces, 60,
                   "pieces are sent", pause=0.002)
        wire.close()
        until(t, kind, lambda s: s["fields"].get("running") == 0, "none runs", 60)
        settled(front)
        sent = len(witness.pieces())
        time.sleep(0.5)
        equal(len(witness.pieces()), sent, "pieces after the client has left")
    equal(metric(front, "requests_aborted_total"), 2)
    equal(len(witness.others()), 0, "requests that reached the engine")
    answer, pieces = asked(front, witness, CHAT, greedy(*talk(fresh())))
    check(len(pieces) >= 4, f"{len(pieces)} pieces of the next")


# ---- taken back ----

@real
def a_prompt_taken_back_from_vllm_is_sent_again_and_says_the_same(t):
    engine, witness, front = staged(t, "vllm", mode="requeue")
    for _ in range(5):
        body = dict(greedy(*talk(fresh(), 9, 550), tokens=12, stream=True),
                    stream_options={"include_usage": True})
        told = []
        cold = threading.Thread(target=lambda: told.append(
            post(front.address, CHAT, json.dumps(body), seconds=100)), daemon=True)
        cold.start()
        while cold.is_alive():
            time.sleep(0.5)
            short = post(front.address, CHAT, greedy(user(prose(50, fresh()))), seconds=100)
            equal((short.status, len(said(short)) > 0), (200, True), "a short one")
        answer, closes = told[0], metric(front, "requeue_closes_total")
        sent = [a for r, a in witness.others() if r.body == json.dumps(body).encode()]
        print(f"# taken back {closes:g} times, sent {len(sent)} times, "
              f"{cached(answer)} of {usage(answer)['prompt_tokens']} cached", flush=True)
        if closes:
            break
    check(closes >= 1, f"never taken back; {decisions(front)}")
    equal((answer.status, answer.complete, len(sent)), (200, True, closes + 1), "times sent")
    reference = post(engine.address, CHAT, untouched("vllm", engine, body), seconds=100)
    equal(said(answer), said(reference), "text")
    settled(front)


# ---- the guard ----

HIDDEN = ("cached_tokens", "cache_n", "cache_read_input_tokens")
FLAGS = {"vllm": "--enable-prompt-tokens-details", "sglang": "--enable-cache-report"}


@on_each_engine
def an_engine_that_says_nothing_of_its_cache_gets_no_more_pieces(t, kind):
    _, witness, front = staged(t, kind, HIDDEN, watched=False)
    _, pieces = asked(front, witness, CHAT, greedy(*talk(fresh())))
    equal(len(pieces), 2, "pieces")
    _, pieces = asked(front, witness, CHAT, greedy(*talk(fresh())))
    equal(len(pieces), 0, "pieces of the next")
    told = [line for line in front.err if "gets no pieces" in line]
    equal(len(told), 1, f"lines of the log: {told}")
    contains(told[0], FLAGS.get(kind, "nothing tells"))
    equal(metric(front, "engine_staging_off"), 1)
    settled(front)


@real
def where_vllms_counters_tell_that_pieces_hit_they_go_on(t):
    _, witness, front = staged(t, "vllm", HIDDEN)
    for _ in range(2):
        _, pieces = asked(front, witness, CHAT, greedy(*talk(fresh())))
        check(len(pieces) >= 4, f"{len(pieces)} pieces; {decisions(front)}")
    equal(metric(front, "staged_guards_total"), 0)
    settled(front)


main()
