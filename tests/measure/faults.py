#!/usr/bin/env python3
"""Measures how turnward, HAProxy and nginx take faults of their clients and engines, side by side.

    tests/measure/faults.py [--columns turnward,haproxy,nginx] [NAME...]

Every row is played against each column in turn, in the same run; figures are medians unless the row
says otherwise. Peers run with bench/peers/'s configurations. Run it on a quiet machine.
"""
import contextlib
import os
import re
import resource
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import peers  # noqa: E402
from harness import *  # noqa: E402,F403

CHAT = "/v1/chat/completions"
LIMIT_S = 2  # of heads, silence and first bytes where a row waits for it
ROUNDS = 15
ROWS = []


def row(function):
    ROWS.append(function)
    return function


def chat(**more):
    return dict({"model": "m", "messages": [{"role": "user", "content": "x"}]}, **more)


def post(stream=False, **fields):
    return request_bytes("POST", CHAT, chat(stream=stream),
                         dict({"Content-Type": "application/json"}, **fields))


class Place:
    """One proxy of a column in front of engines."""

    def __init__(self, column, *scripts, limit_s=600):
        self.test = Test(f"measure-{column}")
        self.engines = [self.test.engine(script) for script in scripts]
        if column == "turnward":
            limits = ("head_timeout", "first_byte_timeout", "stream_idle_timeout")
            self.proxy = self.test.router(*self.engines, args=[
                w for k in limits for w in ("--set", f"{k}={limit_s}s")] +
                ["--set", "policy=round-robin", "--set", "connections_max=9000"])
            self.pid = worker_of(self.proxy)
        else:
            self.proxy = peers.start(self.test, column, [e.address for e in self.engines],
                                     limit_s)
            self.pid = self.proxy.pid
        self.address = self.proxy.address
        eventually(lambda: self.ask_status() is not None, 20, f"{column} serves")
        for engine in self.engines:
            engine.requests.clear()

    def ask_status(self, seconds=20):
        try:
            wire = dial(self.address, seconds)
            wire.send(post())
            answer = wire.read_response()
            wire.close()
            return answer.status
        except (OSError, Failed):
            return None

    def rss_mib(self):
        with open(f"/proc/{self.pid}/status", encoding="ascii") as file:
            return int(re.search(r"RssAnon:\s+(\d+)", file.read())[1]) / 1024

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.test.finish()


def plain(wire, request):
    wire.send(response_bytes(200, {"choices": []}))
    return True


def ms(values):
    return f"{statistics.median(values) * 1e3:.1f} ms"


# ---- clients that leave ----

def aborts(column, kind):
    """Seconds from the client's close to the engine's seeing it."""
    left, arrived = threading.Event(), threading.Event()
    moment = {}

    def script(wire, request):
        if not request.get("x-kind"):
            return plain(wire, request)
        if kind == "mid-stream":
            wire.send(STREAM_HEAD + token("a"))
        arrived.set()
        wire.wait_closed(30)
        moment["seen"] = time.monotonic()
        left.set()
        return False
    took = []
    with Place(column, script) as place:
        for _ in range(ROUNDS):
            left.clear()
            arrived.clear()
            wire = dial(place.address)
            wire.send(post(stream=kind != "not streamed", **{"x-kind": "1"}))
            arrived.wait(10)
            if kind == "mid-stream":
                wire.read_until(b"data:")
            time.sleep(0.02)
            gone = time.monotonic()
            wire.close()
            if not left.wait(10):
                return "not within 10 s"
            took.append(moment["seen"] - gone)
    return f"{ms(took)}, worst {max(took) * 1e3:.0f}"


@row
def client_leaves_while_waiting_engine_freed_after(column):
    return aborts(column, "waiting")


@row
def client_leaves_mid_stream(column):
    return aborts(column, "mid-stream")


@row
def client_leaves_not_streamed(column):
    return aborts(column, "not streamed")


# ---- slow and idle clients ----

@row
def slow_reader_of_64_mb_proxy_memory(column):
    size = 64 << 20

    def script(wire, request):
        if not request.get("x-kind"):
            return plain(wire, request)
        wire.send(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n")
        with contextlib.suppress(OSError, Failed):
            wire.send(b"x" * size)
        return False
    with Place(column, script) as place:
        before = place.rss_mib()
        wire = dial(place.address)
        wire.send(post(**{"x-kind": "1"}))
        wire.sock.recv(1000)
        worst = before
        for _ in range(30):
            time.sleep(0.1)
            wire.sock.recv(4096)
            worst = max(worst, place.rss_mib())
        wire.close()
    return f"+{worst - before:.2f} MiB"


def gaps(address, streams, events):
    """Gaps between events, seconds, of streams that an engine paces at 20 ms."""
    found, lock = [], threading.Lock()

    def client():
        wire = dial(address, 30)
        wire.send(post(stream=True, **{"x-kind": str(events)}))
        answer = wire.read_response()
        mine = [b - a for a, b in zip(answer.times, answer.times[1:])]
        with lock:
            found.extend(mine)
    threads = [threading.Thread(target=client) for _ in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@row
def gap_between_events_p99_of_20_streams_through_over_direct(column):
    def script(wire, request):
        if not request.get("x-kind"):
            return plain(wire, request)
        wire.send(STREAM_HEAD)
        due = time.monotonic()
        for _ in range(int(request.get("x-kind"))):
            due += 0.02
            time.sleep(max(0, due - time.monotonic()))
            wire.send(token("a"))
        wire.send(DONE)
        return True
    ratios = []
    with Place(column, script) as place:
        for _ in range(5):
            direct = gaps(place.engines[0].address, 20, 100)
            through = gaps(place.address, 20, 100)
            ratios.append(statistics.quantiles(through, n=100)[98] /
                          statistics.quantiles(direct, n=100)[98])
    return f"{statistics.median(ratios):.3f}"


@row
def idle_streams_4000_memory_each(column):
    def script(wire, request):
        if not request.get("x-kind"):
            return plain(wire, request)
        wire.send(STREAM_HEAD + token("a"))
        wire.wait_closed(100)
        return False
    threading.stack_size(128 * 1024)
    with Place(column, script) as place:
        before = place.rss_mib()
        wires = []
        for _ in range(4000):
            wire = dial(place.address, 30)
            wire.send(post(stream=True, **{"x-kind": "1"}))
            wire.read_until(b"data:")
            wires.append(wire)
        each = (place.rss_mib() - before) * 1024 / len(wires)
        took = []
        for _ in range(20):
            began = time.monotonic()
            if place.ask_status() != 200:
                return "does not serve beside them"
            took.append(time.monotonic() - began)
        for wire in wires:
            wire.close()
    return f"{each:.1f} KiB; a request beside them {ms(took)}"


@row
def slowloris_200_heads_cut_after(column):
    with Place(column, plain, limit_s=LIMIT_S) as place:
        wires, began = [dial(place.address) for _ in range(200)], time.monotonic()
        alive, cut = set(range(200)), []
        while alive and time.monotonic() - began < 30:
            for n in list(alive):
                try:
                    wires[n].sock.setblocking(False)
                    wires[n].sock.send(b"GET /v1/x HTTP/1.1\r\nHost: a\r\nX: "[:1] if not cut
                                       else b"a")
                    wires[n].sock.recv(1000)
                    alive.discard(n)
                    cut.append(time.monotonic() - began)
                except BlockingIOError:
                    pass
                except OSError:
                    alive.discard(n)
                    cut.append(time.monotonic() - began)
            time.sleep(0.05)
        for wire in wires:
            wire.close()
    return f"{statistics.median(cut):.1f} s" if not alive else f"{len(alive)} never"


# ---- engines ----

@row
def kept_connections_that_close_1000_times_failed(column):
    import random
    r = random.Random(5)

    def script(wire, request):
        wire.send(response_bytes(200, {"choices": []}))
        time.sleep(r.random() * 0.002)
        return False
    bad = 0
    with Place(column, script) as place:
        wire = dial(place.address)
        for _ in range(1000):
            try:
                wire.send(post())
                bad += wire.read_response().status != 200
            except (OSError, Failed):
                bad += 1
                wire = dial(place.address)
            time.sleep(r.random() * 0.002)
    return str(bad)


@row
def engine_hangs_answered_after(column):
    def script(wire, request):
        if not request.get("x-kind"):
            return plain(wire, request)
        wire.wait_closed(60)
        return False
    with Place(column, script, limit_s=LIMIT_S) as place:
        began = time.monotonic()
        wire = dial(place.address, 60)
        wire.send(post(**{"x-kind": "1"}))
        status = wire.read_response().status
        return f"{status} after {time.monotonic() - began:.1f} s"


@row
def answer_stalls_client_sees(column):
    def script(wire, request):
        if not request.get("x-kind"):
            return plain(wire, request)
        wire.send(STREAM_HEAD + token("a"))
        wire.wait_closed(60)
        return False
    with Place(column, script, limit_s=LIMIT_S) as place:
        began = time.monotonic()
        wire = dial(place.address, 60)
        wire.send(post(stream=True, **{"x-kind": "1"}))
        answer = wire.read_response()
        return f"{'whole' if answer.complete else 'cut'} after {time.monotonic() - began:.1f} s"


@row
def answer_cut_at_each_byte_taken_for_whole(column):
    whole = STREAM_HEAD + token("a") + DONE
    now = {}

    def script(wire, request):
        if not request.get("x-kind"):
            return plain(wire, request)
        wire.send(whole[:now["cut"]])
        return False
    wrong = 0
    with Place(column, script) as place:
        for cut in range(1, len(whole)):
            now["cut"] = cut
            wire = dial(place.address, 20)
            wire.send(post(stream=True, **{"x-kind": "1"}))
            with contextlib.suppress(OSError, Failed):
                head = wire.read_head()
                if head and head.status == 200:
                    wire.read_body(head, to_end=True)
                    wrong += head.complete
            wire.close()
    return f"{wrong} of {len(whole) - 1}"


@row
def all_engines_down_told_after(column):
    with Place(column, plain, plain, plain, plain) as place:
        for engine in place.engines:
            engine.die()
        took, statuses = [], set()
        for _ in range(ROUNDS):
            began = time.monotonic()
            statuses.add(place.ask_status())
            took.append(time.monotonic() - began)
    return f"{'/'.join(map(str, statuses))} after {ms(took)}, worst {max(took) * 1e3:.0f}"


@row
def healthy_requests_served_after_a_storm_of_503(column):
    state = {"status": 200}

    def script(wire, request):
        wire.send(response_bytes(state["status"], {"choices": []}))
        return True
    with Place(column, script, script, script) as place:
        state["status"] = 503
        for _ in range(60):
            place.ask_status()
        state["status"] = 200
        return f"{sum(place.ask_status() == 200 for _ in range(20))} of 20"


@row
def half_the_engines_dead_under_load_failed(column):
    with Place(column, plain, plain, plain, plain) as place:
        results, stop = [], threading.Event()

        def client():
            while not stop.is_set():
                results.append(place.ask_status())
        threads = [threading.Thread(target=client) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        for engine in place.engines[:2]:
            engine.refuse()
            for wire in list(engine.open):
                with contextlib.suppress(OSError):
                    wire.half_close()
        time.sleep(2)
        stop.set()
        for thread in threads:
            thread.join()
    return f"{sum(r != 200 for r in results)} of {len(results)}"


def main():
    columns = ["turnward", "haproxy", "nginx"]
    words = sys.argv[1:]
    if words[:1] == ["--columns"]:
        columns, words = words[1].split(","), words[2:]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print("| | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns), flush=True)
    for function in ROWS:
        if words and function.__name__ not in words:
            continue
        cells = []
        for column in columns:
            try:
                cells.append(function(column))
            except (Skip, Failed, OSError) as reason:
                cells.append(f"({str(reason)[:60]})")
        print(f"| {function.__name__.replace('_', ' ')} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
