#!/usr/bin/env python3
"""Measures what bpf/README.md states of the kernel side: accuracy, cost to others, run time.

    tests/measure/probe.py [accuracy] [throughput] [programs]

Throughput is of pairs, with and without, in turn; take it on a quiet machine. Needs root.
"""
import os
import resource
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from probe_truth import *  # noqa: E402,F403
from harness import Test  # noqa: E402

PAIRS = 10
REQUESTS = 1500  # of each of 16 connections


def accuracy(t):
    for host, uring in (("127.0.0.1", False), ("127.0.0.1", True), ("::1", False)):
        run = play(t, STREAMS, host, uring, requests=3 * len(STREAMS), seed=5)
        print(f"{host}{' io_uring' if uring else ''}: {len(run.client)} requests")
        for name, values in errors_us(run).items():
            sizes = [abs(v) for v in values]
            print(f"  {name}: n {len(values)}, median {statistics.median(values):.0f} us, "
                  f"p99 {quantile(sizes, .99):.0f} us, worst {max(sizes):.0f} us")


def cpu_s(pid):
    """Seconds that the process has run, and the system for it."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(t, probed, requests=REQUESTS):
    """Requests a second of short streams, the CPU time of each in microseconds (client, engine and
    probe, with the interrupts that hit them), and what the probe counted."""
    port = t.port()
    engine = t.start(os.path.join(LIB, "probe_engine"), "-", f"127.0.0.1:{port}",
                     ready="listening")
    with cgroup() as group:
        others = set(loaded())
        probe = library(t, group, [f"http://127.0.0.1:{port}"])[0] if probed else None
        own = set(loaded()) - others
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        client = t.start(os.path.join(LIB, "probe_client"), "--conns", 16, "--requests", requests,
                         "--body", 100, "--delay-us", "0:0", "--cgroup", group, "-", "role",
                         f"127.0.0.1:{port}")
        equal(client.wait(60), 0, "the client's exit")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took_s = after.ru_utime + after.ru_stime - children.ru_utime - children.ru_stime
        took_s += cpu_s(engine.pid) + (cpu_s(probe.pid) if probe else 0)
        told = {}
        if probe:
            programs = [program for key, program in loaded().items() if key in own]
            probe.stop(number=signal.SIGINT)
            told = dict(json.loads(probe.out[-1]), programs=programs)
    engine.stop()
    return float(client.out[-1]), took_s * 1e6 / (16 * requests), told


def loaded():
    """The probe's programs, this one's and others', by their numbers."""
    done = subprocess.run([need("bpftool"), "-j", "prog", "show"], capture_output=True, check=False)
    return {p["id"]: p for p in json.loads(done.stdout or b"[]")
            if p.get("name", "").startswith("turnward_")}


def throughput(t):
    ratios, costs, added = [], [], []
    for number in range(PAIRS):
        with_first = number % 2
        first = load(t, with_first)
        second = load(t, not with_first)
        on, off = (first, second) if with_first else (second, first)
        ratios.append(on[0] / off[0])
        costs.append(off[1] / on[1])
        added.append(on[1] - off[1])
        print(f"  {off[0]:.0f}/s and {off[1]:.1f} us without, {on[0]:.0f}/s and {on[1]:.1f} us "
              f"with; {on[2]['drops']} of {3 * on[2]['requests']} records dropped", flush=True)
    for name, values in (("throughput with to without", ratios),
                         ("CPU of a request, without to with", costs)):
        print(f"{name}: median {statistics.median(values):.3f} "
              f"(quartiles {quantile(values, .25):.3f}, {quantile(values, .75):.3f})")
    print(f"added CPU of a request: median {statistics.median(added):.1f} us")


def programs(t):
    switch = "/proc/sys/kernel/bpf_stats_enabled"
    with open(switch, encoding="ascii") as file:
        before = file.read()
    try:
        with open(switch, "w", encoding="ascii") as file:
            file.write("1")
        told = load(t, True, 4 * REQUESTS)[2]
    finally:
        with open(switch, "w", encoding="ascii") as file:
            file.write(before)
    for one in told["programs"]:
        count = max(one.get("run_cnt", 0), 1)
        print(f"{one['name']}: {one.get('run_time_ns', 0) / count:.0f} ns a packet, "
              f"{count} packets, {one['bytes_jited']} bytes of code")
    print(f"scanned {told['scanned_bytes'] / told['requests']:.0f} bytes a request, "
          f"{told['packets'] / told['requests']:.1f} segments, "
          f"{told['records'] / told['requests']:.1f} records")


def main():
    wanted = sys.argv[1:] or ["accuracy", "throughput", "programs"]
    for measure in (accuracy, throughput, programs):
        if measure.__name__ not in wanted:
            continue
        test = Test(measure.__name__)
        try:
            measure(test)
        except Skip as reason:
            print(f"{measure.__name__}: skipped: {reason}")
        finally:
            complaint = test.finish()
        if complaint:
            sys.exit(complaint)


main()
