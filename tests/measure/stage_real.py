#!/usr/bin/env python3
"""Measures what staging does on real engines: short turns of a cached session beside a cold prompt.

    tests/measure/stage_real.py [vllm] [sglang] [llamacpp] [--arms NAME,...] [--pairs N]
                                [--cold TOKENS] [--cap] [--no-checks] [--json FILE]

One engine at a time, an agent beside it, and before it a router that is started anew for each round
with the keys of its arm: plain (stage = off), pieces, most and half (pieces of 3/4 and 1/2 of a
step), requeue. In a round a stream decodes all along, a turn of +200 tokens on a cached session of
5,000 comes every second (llama.cpp: every two), and at 2.2 s a cold prompt. The arms take turns in
an order that rotates; every text is fresh, and arrival times are the same in all arms of a pair.
With --cap a second vLLM that has a cap of its own (a quarter of a step) takes turns with the first.
With --json everybody's log lies beside it. An SGLang that is started here writes down its passes:
how many a turn waited for does not depend on how busy the machine is. The checks after it are not
timed: what each piece and the request found cached, and whether greedy text is the same without
pieces.
"""
import argparse
import json
import os
import pydoc_data.topics
import random
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "real"))
from engines import *  # noqa: E402,F403
from engines import Test  # noqa: E402
from witness import Witness  # noqa: E402

STEP = {"vllm": 2048, "sglang": 1024, "llamacpp": 2048}
OPTIONS = {
    "vllm": ("--block-size", 32, "--max-num-batched-tokens", STEP["vllm"],
             "--max-model-len", 65536),
    "sglang": ("--max-total-tokens", 262144, "--chunked-prefill-size", STEP["sglang"],
               "--max-prefill-tokens", STEP["sglang"], "--max-running-requests", 16,
               "--sleep-on-idle"),
    "llamacpp": ("--slots", 8, "--context", 196608),
}
CAP = ("--long-prefill-token-threshold", STEP["vllm"] // 4)
GAP = {"llamacpp": 2.0}  # seconds between turns; a turn a second is more than it can do
BLOCK = {"vllm": 32}
COLD_AT, WINDOW = 2.2, 9.0
SESSION, TURN, ANSWER = 5000, 200, 16
TOKENS_A_WORD = 2.72
ARMS = {"plain": {"stage": "off"}, "pieces": {"stage": "pieces"}, "requeue": {"stage": "requeue"},
        "most": {"stage": "pieces", "piece_tokens": 0.75},
        "half": {"stage": "pieces", "piece_tokens": 0.5}}
TOOLS = [{"type": "function", "function": {
    "name": name, "description": f"reads or writes a file: {name}",
    "parameters": {"type": "object", "properties": {
        "path": {"type": "string"}, "n": {"type": "integer"}}}}}
    for name in ("read", "write", "grep", "bash")]
WORDS = sorted({word for text in pydoc_data.topics.topics.values() for word in text.split()
                if word.isascii() and word.isalpha() and 3 <= len(word) <= 12})


# ---- what is asked ----

def words(draw, tokens):
    return " ".join(draw.choice(WORDS) for _ in range(int(tokens / TOKENS_A_WORD)))


def talk(seed, tokens):
    """Messages of so many tokens in all, unlike those of any other seed from the beginning on."""
    draw = random.Random(seed)
    parts = [words(draw, tokens // 8) for _ in range(8)]
    roles = ["system"] + ["user", "assistant"] * 3 + ["user"]
    return [{"role": role, "content": f"{seed}. {part}"} for role, part in zip(roles, parts)]


def chat(messages, tokens, **more):
    return {"model": MODEL, "messages": messages, "max_tokens": tokens, "temperature": 0,
            "stream": True, "stream_options": {"include_usage": True}, "tools": TOOLS,
            "tool_choice": "none", **more}


class Reply:
    """A streamed answer as it came: seconds after the request, text, usage."""

    def __init__(self, address, path, body, stop=None):
        wire = dial(address, 300)
        self.begun = time.monotonic()
        self.stamps, self.text, self.usage, self.rid = [], "", {}, None
        wire.send(request_bytes("POST", path, body, JSON))
        head = wire.read_head()
        check(head and head.status == 200, f"{path}: {head and head.start}")
        rest = b""
        while wire.read_chunk(head):
            *lines, rest = (rest + head.body).split(b"\n")
            head.body = b""
            for line in lines:
                self._line(line)
            if stop and stop.is_set():
                break
        self.seconds = time.monotonic() - self.begun
        self.id = head.get("x-request-id")
        wire.close()

    def _line(self, line):
        if not line.startswith(b"data: {"):
            return
        event_ = json.loads(line[6:])
        self.usage, self.rid = event_.get("usage") or self.usage, event_.get("id")
        for choice in event_.get("choices") or ():
            text = choice.get("text") or (choice.get("delta") or {}).get("content")
            if text:
                self.stamps.append(time.monotonic())
                self.text += text

    @property
    def ttft_s(self):
        return self.stamps[0] - self.begun if self.stamps else self.seconds

    @property
    def cached(self):
        return (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


# ---- one round ----

def passes_of(path, replies):
    """What the engine computed until each reply's first token, from when it was asked for: prefill
    passes, the one under way then included, and seconds of the CPU in all passes."""
    with open(path, encoding="utf-8") as file:
        passes = [json.loads(line) for line in file]
    for reply in replies:
        own = max(p["at"] for p in passes
                  if reply.rid in (rid for rid, _, _ in p["prefill"] or ()))
        waited = [p for p in passes if reply.begun < p["at"] <= own]
        yield sum(bool(p["prefill"]) for p in waited), sum(p["cpu_s"] for p in waited)


class Round:
    """One arm's: what its short turns, its cold prompt and its running stream saw."""

    def __init__(self, router, base, seed, pair, cold_tokens, gap, passes=None):
        self.router, self.base, self.seed, self.passes = router, base, seed, passes
        self.shorts, self.failures = [], []
        self.before = (self.counted("requeue_closes"),
                       self.counted("staged_guards", "requeue_guards"))
        stop = threading.Event()
        self.begun = time.monotonic()
        timing = random.Random(pair)
        moments = [0.7 + k * gap + timing.uniform(-0.25, 0.25) * gap
                   for k in range(int((WINDOW + 3) / gap))]
        threads = [self._thread(self._short, k, at) for k, at in enumerate(moments)]
        stream = self._thread(self._stream, stop)
        self._cold(cold_tokens)
        for thread in threads:
            thread.join()
        stop.set()
        stream.join()
        check(not self.failures, f"{self.failures[:1]}")

    def _thread(self, run, *args):
        def guarded():
            try:
                run(*args)
            except Exception as failure:  # pylint: disable=broad-except
                self.failures.append(repr(failure))
        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    def _wait(self, at):
        time.sleep(max(0, self.begun + at - time.monotonic()))

    def _stream(self, stop):
        body = {"model": MODEL, "prompt": words(random.Random(self.seed), 60), "max_tokens": 8000,
                "temperature": 0, "stream": True}
        self.stamps = Reply(self.router.address, "/v1/completions", body, stop).stamps

    def _short(self, number, at):
        text = words(random.Random(f"{self.seed} {number}"), TURN)
        self._wait(at)
        reply = Reply(self.router.address, CHAT, chat(self.base + [
            {"role": "assistant", "content": "ok"},
            {"role": "user", "content": f"{self.seed}.{number} {text}"}], ANSWER))
        self.shorts.append((at, reply))

    def _cold(self, tokens):
        body = chat(talk(self.seed, tokens), 8)
        self._wait(COLD_AT)
        self.cold = Reply(self.router.address, CHAT, body)

    def counted(self, *names):
        """Of the region: they outlive a router."""
        return int(sum(metric(self.router, f"{name}_total") for name in names))

    def told(self):
        window = [r for at, r in self.shorts if COLD_AT <= at <= COLD_AT + WINDOW]
        first, last = self.cold.begun, self.cold.begun + self.cold.ttft_s
        line = self.router.wait_log("request", id=self.cold.id)
        engine = list(passes_of(self.passes, window + [self.cold])) if self.passes else []
        return {
            "short_passes": engine[:-1], "cold_passes": engine[-1:],
            "cold_ttft_s": self.cold.ttft_s, "prompt": self.cold.usage["prompt_tokens"],
            "cached": self.cold.cached, "pieces": line.get("pieces", 0),
            "closes": self.counted("requeue_closes") - self.before[0],
            "guards": self.counted("staged_guards", "requeue_guards") - self.before[1],
            "short_ttft_s": [r.ttft_s for r in window],
            "short_e2e_s": [r.seconds for r in window],
            "short_cached": min(r.cached for r in window),
            "gaps_s": [b - a for a, b in zip(self.stamps, self.stamps[1:]) if first <= b and
                       a <= last],
        }


# ---- an engine, its agent, its routers ----

def quantile(values, q):
    values = sorted(values)
    at = (len(values) - 1) * q
    low = int(at)
    return values[low] + (values[min(low + 1, len(values) - 1)] - values[low]) * (at - low)


class Place:
    """An engine under a name, with its agent in a region of its own, and one router at a time."""

    def __init__(self, t, kind, engine, name):
        self.t, self.kind, self.engine, self.name, self.now = t, kind, engine, name, None
        self.passes = getattr(engine, "passes", None)
        self.region = os.path.join(t.region, name)
        os.mkdir(self.region, 0o750)
        t.start("turnward-agent", "--engine", f"{name}={engine.url}", "--region", self.region)

    def router(self, arm, url=None, **more):
        keys = {"step_budget": STEP[self.kind], **ARMS[arm], **more}
        if "piece_tokens" in keys:
            keys["piece_tokens"] = int(keys["piece_tokens"] * STEP[self.kind])
        if self.now:
            self.now.stop()
        words_ = [w for k, v in keys.items() for w in ("--set", f"{k}={v}")]
        process = self.t.router(f"{self.name}={url or self.engine.url}", args=(
            "--region", self.region, *words_))
        process.admin = f"unix:{self.region}/admin.sock"
        self.now = process
        eventually(lambda: metric(process, "engine_models_known") == 1 and
                   metric(process, "agent_attached") == 1, 30, "engine and agent are known")
        return process


def engine_of(t, kind, *more):
    """TEST_REAL_VLLM=URL, TEST_REAL_VLLM_CAP=URL and TEST_REAL_SGLANG=URL name running ones."""
    if kind == "llamacpp":
        return llamacpp(t, *OPTIONS[kind], wide=True)
    given = os.environ.get("TEST_REAL_" + kind.upper() + ("_CAP" if more else ""))
    passes = t.path("passes")
    engine = Running(given) if given else started(kind, OPTIONS[kind] + more,
                                                  {"SGLANG_PASSES": passes}, wide=True)
    if not given:
        engine.passes = passes if kind == "sglang" else None
        t.ends.append(engine.end)
    return engine


def version_of(kind, engine):
    if kind == "vllm":
        return ask(engine.address, "GET", "/version").json()["version"]
    if kind == "sglang":
        return ask(engine.address, "GET", "/get_server_info").json().get("version")
    return ask(engine.address, "GET", "/props").json().get("build_info")


# ---- the checks that are not timed ----

def checks(place, tokens, count=3):
    """Prompts in pieces past a witness: what each part found cached; its text against plain."""
    kind, block = place.kind, BLOCK.get(place.kind, 1)
    witness = Witness(place.engine)
    place.t.engines.append(witness)
    router, found, same = place.router("pieces", witness.url, stage_alone=0), [], 0
    for _ in range(count):
        body = chat(talk(time.time_ns(), tokens), 24)
        reply = Reply(router.address, CHAT, body)
        pieces = witness.pieces(reply.id)
        cuts = [len(r.json()["prompt"]) for r, _ in pieces] + [reply.usage["prompt_tokens"]]
        hits = [cached(a) for _, a in pieces] + [reply.cached]
        short = [max(0, cut - hit) for cut, hit in zip(cuts, hits[1:])]
        whole = Reply(place.engine.address, CHAT, untouched(kind, place.engine, body))
        same += whole.text == reply.text and len(whole.text) > 0
        found.append({"cuts": cuts, "cached": hits, "short_of_cut": short,
                      "within_a_block": all(s < block for s in short)})
    given_up, guards = (metric(router, f"staged_{n}_total") for n in ("given_up", "guards"))
    return {"prompts": found, "text_equal": same, "of": count, "given_up": given_up,
            "guards": guards}


# ---- figures ----

def summary(rounds, base):
    """Of one arm over its rounds; ratios to the first arm's, pair by pair."""
    ttft = [s for r in rounds for s in r["short_ttft_s"]]
    gaps = [g for r in rounds for g in r["gaps_s"]] or [0]
    p90 = [quantile(r["short_ttft_s"], 0.9) for r in rounds]
    told = {
        "rounds": len(rounds), "turns": len(ttft),
        "short_ttft_s": {"mean": statistics.mean(ttft), "p50": quantile(ttft, 0.5),
                         "p90": quantile(ttft, 0.9), "max": max(ttft)},
        "short_e2e_s": statistics.mean(s for r in rounds for s in r["short_e2e_s"]),
        "cold_ttft_s": statistics.mean(r["cold_ttft_s"] for r in rounds),
        "stream_gap_s": {"p50": quantile(gaps, 0.5), "p90": quantile(gaps, 0.9),
                         "max": max(gaps)},
        "prompt": rounds[0]["prompt"], "cached": [r["cached"] for r in rounds],
        "pieces": [r["pieces"] for r in rounds], "closes": [r["closes"] for r in rounds],
        "guards": [r["guards"] for r in rounds],
        "short_cached": min(r["short_cached"] for r in rounds),
        "short_passes": [p for r in rounds for p in r["short_passes"]],
        "cold_passes": [p for r in rounds for p in r["cold_passes"]],
    }
    if base:
        pairs = list(zip(rounds, base))
        all_base = [s for r in base for s in r["short_ttft_s"]]
        told["ratio"] = {
            "short_p50": told["short_ttft_s"]["p50"] / quantile(all_base, 0.5),
            "short_p90": told["short_ttft_s"]["p90"] / quantile(all_base, 0.9),
            "short_p90_pairs": [a / quantile(b["short_ttft_s"], 0.9)
                                for a, (_, b) in zip(p90, pairs)],
            "cold": statistics.median(a["cold_ttft_s"] / b["cold_ttft_s"] for a, b in pairs),
            "cold_pairs": [a["cold_ttft_s"] / b["cold_ttft_s"] for a, b in pairs],
        }
    return told


def row(name, told):
    ttft, ratio = told["short_ttft_s"], told.get("ratio")
    parts = [name, f"{ttft['mean']:.2f}", f"{ttft['p50']:.2f}", f"{ttft['p90']:.2f}",
             f"{ttft['max']:.2f}", f"{told['cold_ttft_s']:.2f}", f"{told['short_e2e_s']:.2f}",
             f"{told['stream_gap_s']['p90']:.2f} / {told['stream_gap_s']['max']:.2f}",
             f"{statistics.mean(told['pieces']):.0f}", f"{statistics.mean(told['closes']):.1f}",
             f"{100 * statistics.mean(told['cached']) / told['prompt']:.0f} %"]
    parts += [f"{ratio['short_p90']:.2f}", f"{ratio['cold']:.2f}"] if ratio else ["", ""]
    return "| " + " | ".join(parts) + " |"


def one_round(place, arm, pair, cold_tokens):
    router, base = place.router(arm), talk("session", SESSION)
    for _ in range(2):  # into the engine's cache, and into what the router knows of it
        Reply(router.address, CHAT, chat(base, 1))
    return Round(router, base, f"{arm} {pair} {time.time_ns()}", pair, cold_tokens,
                 GAP.get(place.kind, 1.0), place.passes).told()


def measure(t, kind, options):
    """One engine (with --cap two) and all its arms."""
    began = time.monotonic()
    model_folder(wide=True)
    wanted = {"own": ()}
    if options.cap and kind == "vllm":
        wanted["cap"] = CAP
    engines = together(*(lambda more=more: engine_of(t, kind, *more) for more in wanted.values()))
    places = [Place(t, kind, engine, name) for engine, name in zip(engines, wanted)]
    arms = [(arm, places[0], arm) for arm in options.arms.split(",")]
    arms += [("cap", place, "plain") for place in places[1:]]
    print(f"# {kind} {version_of(kind, places[0].engine)}: ready after "
          f"{time.monotonic() - began:.0f} s", flush=True)
    rounds = {name: [] for name, _, _ in arms}
    for pair in range(options.pairs):
        turn = pair % len(arms)
        for name, place, arm in arms[turn:] + arms[:turn]:
            told = one_round(place, arm, pair, options.cold)
            rounds[name].append(told)
            print(f"# pair {pair}, {name}: cold {told['cold_ttft_s']:.2f} s, short p90 "
                  f"{quantile(told['short_ttft_s'], 0.9):.2f} s, {told['pieces']} pieces, taken "
                  f"back {told['closes']} times, {told['cached']} of {told['prompt']} cached",
                  flush=True)
    first = arms[0][0]
    told = {"engine": kind, "version": version_of(kind, places[0].engine),
            "date": time.strftime("%Y-%m-%d %H:%M"), "load": os.getloadavg(),
            "arms": [{"name": name, **summary(rounds[name], rounds[first] if name != first
                                              else None)} for name, _, _ in arms]}
    if not options.no_checks:
        told["checks"] = checks(places[0], options.cold // 2)
    told["seconds"] = time.monotonic() - began
    if options.json:
        keep_logs(f"{options.json}.{kind}.log", engines, t.processes)
    return told


def keep_logs(path, engines, processes):
    """What engine, agent and routers said: where a round that went wrong is explained."""
    own = [p for p in (getattr(engine, "process", None) for engine in engines) if p]
    with open(path, "w", encoding="utf-8") as file:
        for process in own + processes:
            file.writelines(f"{process.name}: {line}\n" for line in process.out + process.err)


def show(told):
    print(f"\n{told['engine']} {told['version']}, {told['date']}, {told['seconds']:.0f} s\n")
    print("| arm | turns' TTFT mean | p50 | p90 | max | cold TTFT | turn's end | "
          "stream's gaps p90 / max | pieces | taken back | request cached | p90 ratio | "
          "cold ratio |\n|" + "---|" * 13)
    for arm in told["arms"]:
        print(row(arm["name"], arm))
    for arm in (a for a in told["arms"] if a["short_passes"]):
        for whose in ("short", "cold"):
            for unit, values in zip(("prefill passes", "s of the CPU"),
                                    zip(*arm[f"{whose}_passes"])):
                print(f"{arm['name']}, {unit} until the {whose} ones' first token: p50 "
                      f"{quantile(values, 0.5):.2f}, p90 {quantile(values, 0.9):.2f}, max "
                      f"{max(values):.2f}")
    found = told.get("checks")
    if found:
        for prompt in found["prompts"]:
            print(f"pieces and request {prompt['cuts']}: cached {prompt['cached']}; short of the "
                  f"cut before by {prompt['short_of_cut']}")
        print(f"text equal {found['text_equal']} of {found['of']}, given up {found['given_up']:g}, "
              f"guards {found['guards']:g}")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=[])
    parser.add_argument("--arms", default="plain,pieces")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--cold", type=int, default=16384, help="tokens of the cold prompt")
    parser.add_argument("--cap", action="store_true")
    parser.add_argument("--no-checks", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    results = []
    for kind in options.kinds or KINDS:
        t = Test(f"stage-real-{kind}")
        t.ends = []
        try:
            results.append(measure(t, kind, options))
            show(results[-1])
        except (Skip, Failed) as reason:
            print(f"# {kind}: {reason}", flush=True)
        finally:
            complaint = t.finish()
            for end in t.ends:
                end()
            if complaint:
                print(f"# {kind}: {complaint}", flush=True)
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
