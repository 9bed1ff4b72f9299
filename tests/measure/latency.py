#!/usr/bin/env python3
"""Measures what bpf/README.md states of timing: predictions, agreement, step response, cost.

    tests/measure/latency.py [prediction] [agreement] [step] [cost]

Modelled engines on the wall clock, the real router, and the probe where the kernel permits it.
"""
import json
import os
import random
import re
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from world import *  # noqa: E402,F403
from harness import BUILD, PROGRAMS, Test  # noqa: E402

CHAT = "/v1/chat/completions"


def live(t, place, speed, *args):
    """Plays agentic sessions through a world's router; the bench's report."""
    argv = [w for e in place.engines for w in ("--lateness", e.url)]
    done = t.run("turnward-bench", "live", "--router", place.router.address, "--admin",
                 place.router.admin, "--speed", speed, "--json", "-", *argv, *args, seconds=200)
    return json.loads(done.out)


RATE = float(os.environ.get("RATE", "0.12"))


def prediction(t, speed=5):
    """Predicted against measured TTFT, engine by engine. Many are a tenth of a model second, so the
    host's own delays count; they do so less the slower the engines are."""
    for policy in ("contention", "eft"):
        place = fresh_world(t, engines=4, speed=speed, engine_args=("--realtime",),
                            settings=(f"policy={policy}", f"time_scale={speed}"))
        told = live(t, place, speed, "--limit", 100, "--rate", RATE, "--measure", 80,
                    "--think-max", 20)
        page = place.metrics()
        errors = [page[f'turnward_ttft_prediction_error_median{{engine="e{i}",by="announced"}}']
                  for i in range(4)]
        model = [page[f'turnward_ttft_prediction_error_median{{engine="e{i}",by="model"}}']
                 for i in range(4)]
        count = [page[f'turnward_ttft_prediction_ratio_count{{engine="e{i}"}}'] for i in range(4)]
        print(f"{policy}: median error " + ", ".join(f"{e * 100:.1f} %" for e in errors) +
              ", before calibration " + ", ".join(f"{e * 100:.1f} %" for e in model) +
              f" over {count} first tokens; mean TTFT {told['arms'][0]['ttft_s']['mean']:.2f} "
              f"model s; run valid: {told['valid']}", flush=True)
        place.router.stop()


# ---- one engine becomes five times slower under traffic, and well again ----

STEP_SPEED = 6
BEFORE_S, SLOW_S, AFTER_S = 8, 12, 14  # wall
CLIENTS, TURNS, TURN_WORDS, THINK_S = 10, 6, (600, 3000), 1.0
ARMS = {
    "probe": ("migration_trigger=recent-ttft",),
    "router": ("migration_trigger=recent-ttft",),
    "neither": ("migration_trigger=none", "calibration_max=1"),
}


class Load:
    """Clients that each play session after session, turn after turn, thinking in between."""

    def __init__(self, address, clients):
        self.address, self.stopping, self.ttft = address, False, []
        self.threads = [threading.Thread(target=self.play, args=(i,)) for i in range(clients)]
        for thread in self.threads:
            thread.start()

    def play(self, number):
        draw = random.Random(number)
        wire = dial(self.address, 60)
        while not self.stopping:
            name = f"{number}-{draw.random()}"
            messages = []
            for _ in range(TURNS):
                words = draw.randrange(*TURN_WORDS)
                messages.append({"role": "user", "content": f"{name} " * 4 + "word " * words})
                begun = time.monotonic()
                wire.send(request_bytes("POST", CHAT, {
                    "model": MODEL, "stream": True, "max_tokens": 12, "messages": messages},
                    {"X-Session-Id": name}))
                wire.read_response()
                self.ttft.append((begun, time.monotonic() - begun))
                messages.append({"role": "assistant", "content": "so it is " * 3})
                if self.stopping:
                    return
                time.sleep(draw.random() * 2 * THINK_S / STEP_SPEED)

    def stop(self):
        self.stopping = True
        for thread in self.threads:
            thread.join()


def shares(counts, moments, index=0, span_s=1.0):
    """Pairs (time, the engine's share of what was sent in the span before)."""
    found = []
    for i, now in enumerate(moments):
        j = next((k for k in range(i) if moments[k] >= now - span_s), i)
        sent = [b - a for a, b in zip(counts[j], counts[i])]
        if sum(sent) >= 4:
            found.append((now, sent[index] / sum(sent)))
    return found


def first_time(pairs, begin, end, holds, span_s=1.0):
    """Seconds after `begin` from when on the condition holds for a span; None if never."""
    since = None
    for now, share in pairs:
        if not begin <= now <= end:
            continue
        if not holds(share):
            since = None
        elif since is None:
            since = now
        if since is not None and now - since >= span_s:
            return since - begin
    return None


def step_arm(t, arm):
    place = fresh_world(t, engines=4, speed=STEP_SPEED, engine_args=("--realtime",), agents=False,
                        settings=(f"time_scale={STEP_SPEED}", "policy=contention", *ARMS[arm]))
    if arm == "probe":
        process = t.start("turnward-probe", "--region", t.region, "--require-bpf", "--window",
                          f"{30 / STEP_SPEED}s")
        eventually(lambda: process.log("attached"), 10, "the probe attaches")
    load = Load(place.router.address, CLIENTS)
    moments, counts, begun = [], [], time.monotonic()
    slow, well = begun + BEFORE_S, begun + BEFORE_S + SLOW_S
    told = {slow: "5", well: "1"}
    while time.monotonic() < well + AFTER_S:
        page = place.metrics()
        moments.append(time.monotonic())
        counts.append([page[f'turnward_engine_requests_total{{engine="e{i}"}}']
                       for i in range(4)])
        for when in [w for w in told if time.monotonic() >= w]:
            ask(place.engines[0].address, "POST", "/turnward/slowdown", told.pop(when))
        time.sleep(0.1)
    load.stop()
    pairs = shares(counts, moments)
    mean = {name: [s for n, s in pairs if a <= n < b] for name, a, b in (
        ("before", begun + 3, slow), ("slow", slow + SLOW_S / 2, well), ("after", well, 1e18))}
    fell = first_time(pairs, slow, well, lambda s: s < 0.125)
    back = first_time(pairs, well, 1e18, lambda s: s > 0.1875)
    def shown(s):
        return "never" if s is None else f"{s * STEP_SPEED:5.1f} s"
    print(f"{arm:8}: share of e0 before {statistics.mean(mean['before']):.2f}, while slow "
          f"{statistics.mean(mean['slow']):.2f}; below half after {shown(fell)}, back above three "
          f"quarters after {shown(back)} (model seconds)", flush=True)


def step(t):
    for arm in ARMS:
        if arm == "probe" and not os.path.exists(os.path.join(BUILD, PROGRAMS["turnward-probe"])):
            print("probe: not built")
            continue
        step_arm(t, arm)


# ---- probe, router, client and engine on the same requests ----

def probe_new(t, *args):
    process = t.start("turnward-probe", "--region", t.region, "--require-bpf", *args)
    eventually(lambda: process.log("attached") or not process.alive, 10, "the probe attaches")
    if not process.alive:
        raise Skip("BPF is refused here: " + process.err[0])
    return process


def first_token(address, name, number, path):
    """The moments, in nanoseconds, of the request's first byte and of the token at the client."""
    words = "word " * (50 + 400 * (number % 5))
    body = {"model": MODEL, "stream": True, "max_tokens": 8}
    body.update({"prompt": words} if path == "/v1/completions" else
                {"messages": [{"role": "user", "content": words}]})
    wire = dial(address, 30)
    begun = time.monotonic_ns()
    wire.send(request_bytes("POST", path, body, {"X-Request-Id": name}))
    mark = b'"text":"' if path == "/v1/completions" else b'"content":"'
    while not any(mark in e and mark + b'"' not in e
                  for e in wire.buffer.replace(b'": "', b'":"').split(b"\n\n")):
        check(wire.more(), "the answer ends without a token")
    at = time.monotonic_ns()
    while b"0\r\n\r\n" not in wire.buffer and wire.more():
        pass
    wire.close()
    return begun, at


def agreement(t, requests=60):
    """The table of README: how far the four clocks are apart on one first token."""
    print("| loop | shape | n | TTFT by the probe | token: probe after engine's write "
          "| client after probe | TTFT: router's minus probe's |\n|---|---|---|---|---|---|---|")
    for io in LOOPS:
        for head in ("vllm", "sglang", "llamacpp"):
            agreement_of(t, io, head, requests)


def agreement_of(t, io, head, requests):
    stamps, told = t.path(f"stamps-{io}-{head}"), t.path(f"samples-{io}-{head}")
    place = fresh_world(t, io, engines=1, speed=20, heads=(head,), agents=False,
                        engine_args=("--stamps", stamps))
    process = probe_new(t, "--samples", told)
    eventually(lambda: process.wait_line("engine e0"), 10, "it knows the engine")
    rows = []
    for i in range(requests):
        name = f"{io}-{head}-{i}"
        begun, client = first_token(place.router.address, name, i,
                                    CHAT if i % 2 else "/v1/completions")
        outcome = eventually(lambda name=name: t.run(
            "turnward", "explain", name, "--region", t.region, "--json").json()["outcome"], 5)
        rows.append((begun, client, outcome))
    eventually(lambda: len(open(told, encoding="ascii").readlines()) == requests, 10, "all told")
    process.stop()
    with open(stamps, encoding="ascii") as file:
        written = [json.loads(line)["token_ns"] for line in file]
    with open(told, encoding="ascii") as file:
        seen = [json.loads(line) for line in file]
    after_write = [s["t_tok_ns"] - w for s, w in zip(seen, written)]
    ttft = [s["t_tok_ns"] - s["t0_first_ns"] for s in seen]
    router = [(o["first_token_s"] - o["sent_s"]) * 1e9 - p for (_, _, o), p in zip(rows, ttft)]
    client = [c - s["t_tok_ns"] for (_, c, _), s in zip(rows, seen)]
    check(min(after_write) >= 0 and min(client) >= 0, "client >= probe >= engine's write")

    def shown(values, unit=1e3):
        low, high = statistics.median(values), sorted(values)[len(values) * 9 // 10]
        return f"{low / unit:.3g} / {high / unit:.3g}"
    print(f"| {io} | {head} | {len(seen)} | {shown(ttft, 1e6)} ms | {shown(after_write)} us | "
          f"{shown(client)} us | {shown(router)} us |", flush=True)
    place.router.stop()


# ---- what the probe costs ----

def cost(t, seconds=10, rate=10000):
    """CPU and memory of the daemon, and of its programs, at 10,000 tokens a second."""
    # Step time of one sequence is 13.2 ms: n streams at speed x make n x / 0.0132 tokens a second.
    speed, streams = 10, 14
    place = fresh_world(t, engines=4, speed=speed, agents=False, engine_args=("--realtime",))
    process = probe_new(t)
    stats("1")
    load = place.storm("--connections", streams, "--requests", 1000000, "--seconds", seconds + 4,
                       "--kinds", "chat-stream", "--body", "400-500", "--tokens", "400-500")
    time.sleep(2)
    cpu, runs, before = cpu_s(process.pid), programs_run(), place.metrics()
    begun = time.monotonic()
    time.sleep(seconds)
    wall = time.monotonic() - begun
    cpu, after = cpu_s(process.pid) - cpu, programs_run()
    tokens = sum(e["tokens"] for e in [{"tokens": generated(e)} for e in place.engines])
    ns = sum(n for n, _ in after.values()) - sum(n for n, _ in runs.values())
    count = sum(c for _, c in after.values()) - sum(c for _, c in runs.values())
    stats("0")
    load.stop()
    print(f"{tokens / (seconds + 2):.0f} tokens/s: daemon {cpu / wall * 100:.2f} % of a core, "
          f"{rss_mib(process.pid):.1f} MiB; programs {ns / wall / 1e7:.2f} % of a core, "
          f"{count / wall:.0f} packets/s, {ns / max(count, 1):.0f} ns each", flush=True)


def generated(engine):
    page = ask(engine.address, "GET", "/metrics").body.decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.split("\n")
               if line.startswith("vllm:generation_tokens_total{"))


def cpu_s(pid):
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[0]) / 1e9


def rss_mib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1]) / 1024


def stats(on):
    with open("/proc/sys/kernel/bpf_stats_enabled", "w", encoding="ascii") as file:
        file.write(on)


def programs_run():
    """Program id -> (run time in ns, runs), of the cgroup programs that are loaded."""
    told = json.loads(subprocess.run(["bpftool", "-j", "prog"], capture_output=True, check=True,
                                     text=True).stdout)
    return {p["id"]: (p.get("run_time_ns", 0), p.get("run_cnt", 0)) for p in told
            if p["type"] == "cgroup_skb"}


def fresh_world(t, io="auto", **how):
    base = t.base = getattr(t, "base", t.region)
    t.region = os.path.join(base, os.urandom(3).hex())
    os.mkdir(t.region, 0o750)
    how.setdefault("settings", ())
    how["settings"] = ("log_level=warn", *how["settings"])
    return World(t, io, **how)


MEASURES = {f.__name__: f for f in (prediction, agreement, step, cost)}


def main():
    for name in sys.argv[1:] or MEASURES:
        test = Test(name)
        complaint = None
        try:
            MEASURES[name](test)
        finally:
            complaint = test.finish()
        if complaint:
            print(f"{name}: {complaint}")


if __name__ == "__main__":
    main()
