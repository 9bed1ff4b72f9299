#!/usr/bin/env python3
"""Measures what bpf/README.md states of the kernel side: accuracy, cost to others, run time.

    tests/measure/probe.py [accuracy] [throughput] [programs]

Throughput is of pairs, with and without, in turn; take it on a quiet machine. Needs root.
"""
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from probe_truth import *  # noqa: E402,F403
from harness import Test  # noqa: E402

PAIRS = 6


def accuracy(t):
    for host, uring in (("127.0.0.1", False), ("127.0.0.1", True), ("::1", False)):
        run = play(t, STREAMS, host, uring, requests=3 * len(STREAMS), seed=5)
        print(f"{host}{' io_uring' if uring else ''}: {len(run.client)} requests")
        for name, values in errors_us(run).items():
            sizes = [abs(v) for v in values]
            print(f"  {name}: n {len(values)}, median {statistics.median(values):.0f} us, "
                  f"p99 {quantile(sizes, .99):.0f} us, worst {max(sizes):.0f} us")


def throughput(t):
    for routed in (False, True):
        print("through the router:" if routed else "client to engine:")
        measured = [pair(t, number % 2, routed) for number in range(PAIRS)]
        for off, on in measured:
            print(f"  {off.rate:.0f}/s and {off.cpu_us:.1f} us without, {on.rate:.0f}/s and "
                  f"{on.cpu_us:.1f} us with; {on.told['drops']} of {3 * on.told['requests']} "
                  f"records dropped", flush=True)
        for name, values in (
                ("throughput with to without", [on.rate / off.rate for off, on in measured]),
                ("CPU of a request, without to with", [off.cpu_us / on.cpu_us
                                                       for off, on in measured])):
            print(f"  {name}: median {statistics.median(values):.3f} "
                  f"(quartiles {quantile(values, .25):.3f}, {quantile(values, .75):.3f})")
        added = statistics.median(on.cpu_us - off.cpu_us for off, on in measured)
        print(f"  added CPU of a request: median {added:.1f} us")


def programs(t):
    told = load_timed(t).told
    for one in told["programs"]:
        print(f"{one['name']}: {run_ns(one):.0f} ns a packet, {one['run_cnt']} packets, "
              f"{one['bytes_jited']} bytes of code")
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
