#!/usr/bin/env python3
"""Measures what bpf/README.md states of the kernel side: accuracy, cost to others, run time.

    tests/measure/probe.py [accuracy] [throughput] [programs]
    tests/measure/probe.py against BUILD

Throughput is of one load, to which the programs are attached every other 0.3 s; take it on a quiet
machine (on a busy one `chrt -f 1` before it helps). `against` runs the programs of this build and
of another on the very same packets. Needs root.
"""
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from probe_truth import *  # noqa: E402,F403
from harness import Test  # noqa: E402

PAIRS = 100  # of 0.3 s without and 0.3 s with
BUILDS = 10  # pairs of one build's programs with another's


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
        print("through the router:" if routed else "client to engine:", flush=True)
        measured, words = alternated(t, routed, PAIRS)
        for name, values in (
                ("throughput with to without", [on.rate / off.rate for off, on in measured]),
                ("CPU of a request, without to with", [off.cpu_us / on.cpu_us
                                                       for off, on in measured])):
            print(f"  {name}: median {statistics.median(values):.3f} "
                  f"(quartiles {quantile(values, .25):.3f}, {quantile(values, .75):.3f})")
        off, on = ([statistics.median(getattr(m[i], what) for m in measured)
                    for what in ("rate", "cpu_us")] for i in (0, 1))
        added = statistics.median(on.cpu_us - off.cpu_us for off, on in measured)
        print(f"  {off[0]:.0f}/s and {off[1]:.1f} us without, {on[0]:.0f}/s and {on[1]:.1f} us "
              f"with; added CPU of a request: median {added:.1f} us\n  {words['lost']} of "
              f"{words['lost'] + words['taken']} records dropped, {len(measured)} pairs",
              flush=True)


def show_programs(told):
    of_request = 0
    for one in told["programs"]:
        of_request += one.get("run_time_ns", 0) / told["requests"]
        print(f"  {one['name']}: {run_ns(one):.0f} ns a packet, "
              f"{one['run_cnt'] / told['requests']:.1f} packets a request, "
              f"{one['bytes_jited']} bytes of code")
    print(f"  {of_request:.0f} ns a request; scanned "
          f"{told['scanned_bytes'] / told['requests']:.0f} bytes, "
          f"{told['packets'] / told['requests']:.1f} segments, "
          f"{told['records'] / told['requests']:.1f} records")
    return of_request


def programs(t):
    show_programs(load_timed(t)[0])


def against(t, build):
    """Who comes second finds the packet in the cache: each does once in a pair."""
    other, ratios = os.path.join(build, "tests", "lib"), []
    for number in range(BUILDS):
        libs = (LIB, other) if number % 2 else (other, LIB)
        told = load_timed(t, libs)
        mine, its = told if number % 2 else reversed(told)
        print("this build:")
        of_mine = show_programs(mine)
        print("the other:")
        ratios.append(of_mine / show_programs(its))
    print(f"run time of a request, this build's to the other's: median "
          f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


def main():
    wanted, given = sys.argv[1:] or ["accuracy", "throughput", "programs"], []
    if wanted[0] == "against":
        wanted, given = wanted[:1], wanted[1:]
    for measure in (accuracy, throughput, programs, against):
        if measure.__name__ not in wanted:
            continue
        test = Test(measure.__name__)
        try:
            measure(test, *given)
        except Skip as reason:
            print(f"{measure.__name__}: skipped: {reason}")
        finally:
            complaint = test.finish()
        if complaint:
            sys.exit(complaint)


main()
