#!/usr/bin/env python3
"""HTTP conformance: every case of tests/e2e/http/, on both loops. Names after the file choose."""
import glob
import os
import random
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import LOOPS, Failed, Test, settings  # noqa: E402
from wirecases import Recorder, Stage, read_cases  # noqa: E402

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "http")
LIMITS = {"max_body": "1M", "models_period": "1h"}
HASTY = {"head_timeout": "1s", "body_timeout": "1s", "first_byte_timeout": "1s",
         "stream_idle_timeout": "1s"}  # for cases in which one lapses: [lapse]


def cases_of(kind):
    found = []
    for path in sorted(glob.glob(os.path.join(DATA, kind, "*.txt"))):
        found += read_cases(path)
    return found


def followed(stage):
    """What became of a request right behind each of the cases, where it was neither served as it
    is nor left alone. One cut each, the same every time."""
    draw, wrong = random.Random(9), []
    for case in cases_of("requests"):
        if "lapse" in case.tags or any(isinstance(piece, str) for piece in case.pieces):
            continue
        share = draw.random()
        try:
            complaint = stage.play_followed(case, share)
        except (Failed, OSError) as failure:
            complaint = str(failure)
        if complaint:
            wrong.append(f"{case.where} {case.name}, cut at {share:.4f}: {complaint}")
    return wrong


def main():
    kinds = [(kind, io, case) for io in LOOPS for kind in ("requests", "responses")
             for case in cases_of(kind) if len(sys.argv) < 2 or case.name in sys.argv[1:]]
    print(f"1..{len(kinds) + 2 * len(LOOPS)}", flush=True)
    number = failed = 0
    for io in LOOPS:
        test = Test(io)
        recorder = Recorder()
        patient = test.router(recorder.url, args=settings(io, **LIMITS))
        hasty = test.router(recorder.url, args=settings(io, **LIMITS, **HASTY) +
                            ["--region", test.path("hasty")])
        stages = [Stage(router.address, recorder) for router in (patient, hasty)]
        for kind, _, case in (k for k in kinds if k[1] == io):
            number += 1
            stage = stages["lapse" in case.tags]
            play = stage.play_request if kind == "requests" else stage.play_response
            try:
                complaint = play(case)
            except (Failed, OSError) as failure:
                complaint = str(failure)
            section = " ".join(case.rfc.split(" ")[:2])
            name = f"{kind[:-1]} {case.name} ({section}, {io})"
            if complaint is None:
                print(f"ok {number} - {name}", flush=True)
            else:
                failed += 1
                print(f"not ok {number} - {name}\n# {case.where}: {complaint}", flush=True)
        number += 1
        wrong = followed(stages[0])
        failed += bool(wrong)
        print(f"{'not ok' if wrong else 'ok'} {number} - a request behind each of them is served "
              f"as it is or not at all ({io})")
        for line in wrong[:20]:
            print(f"# {line}", flush=True)
        number += 1
        recorder.stop()
        complaint = test.finish()
        failed += complaint is not None
        print(f"{'not ok' if complaint else 'ok'} {number} - the router outlives it all ({io})")
        if complaint:
            print(f"# {complaint}", flush=True)
    signal.alarm(0)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
