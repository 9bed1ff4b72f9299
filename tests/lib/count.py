#!/usr/bin/env python3
"""Counts claims in meson test logs: count.py LABEL=BUILD... prints failures, then totals."""
import json
import os
import re
import sys

TAP = re.compile(r"^(not )?ok\b\s*\d*\s*(?:- )?([^#]*?)\s*(?:# *(SKIP)\b\s*(.*))?$", re.I)
PLAN = re.compile(r"^1\.\.(\d+)")
TAIL = 40  # lines of a failed test's output


class Totals:
    """Claims that passed, failed, were skipped; with the words for the last two."""

    def __init__(self):
        self.passed = 0
        self.failed, self.skipped = [], []


def count_tap(label, test, totals):
    """A TAP test: one count per line; what its plan promised and did not come has failed."""
    planned, seen, failed = 0, 0, 0
    for line in (test.get("stdout") or "").split("\n"):
        plan, match = PLAN.match(line), TAP.match(line)
        if plan:
            planned = int(plan.group(1))
        elif match:
            seen += 1
            name = f"{label}: {test['name']}: {match.group(2)}"
            if match.group(3):
                totals.skipped.append(f"{name}: {match.group(4)}")
            elif match.group(1):
                failed += 1
                totals.failed.append(name)
            else:
                totals.passed += 1
    for _ in range(planned - seen):
        failed += 1
        totals.failed.append(f"{label}: {test['name']}: ended before its plan")
    if not failed and test["result"] not in ("OK", "SKIP"):
        failed += 1
        totals.failed.append(f"{label}: {test['name']}: {test['result']}")
    return failed


def count_plain(label, test, totals):
    """A program whose exit status is its only word."""
    if test["result"] == "OK":
        totals.passed += 1
    elif test["result"] == "SKIP":
        why = re.search(r"skipped: (.*)", test.get("stdout") or "")
        totals.skipped.append(f"{label}: {test['name']}: {why.group(1) if why else 'no reason'}")
    else:
        totals.failed.append(f"{label}: {test['name']}: {test['result']}")
        return 1
    return 0


def show(label, test):
    print(f"---- {label}: {test['name']}: {test['result']}")
    for name in ("stdout", "stderr"):
        lines = (test.get(name) or "").rstrip("\n").split("\n")
        for line in [l for l in lines if l and not l.startswith("ok ")][-TAIL:]:
            print(f"     {line}")


def count_build(label, build, totals):
    path = os.path.join(build, "meson-logs", "testlog.json")
    with open(path, encoding="utf-8") as file:
        for line in file:
            test = json.loads(line)
            tap = PLAN.search(test.get("stdout") or "") is not None
            if (count_tap if tap else count_plain)(label, test, totals):
                show(label, test)


def main():
    totals = Totals()
    for argument in sys.argv[1:]:
        label, _, build = argument.partition("=")
        if build == "failed":
            totals.failed.append(f"{label}: did not build")
            continue
        try:
            count_build(label, build, totals)
        except (OSError, ValueError) as error:
            totals.failed.append(f"{label}: no test log: {error}")
    for text in totals.skipped:
        print(f"skipped: {text}")
    for text in totals.failed:
        print(f"FAILED: {text}")
    print(f"{totals.passed} passed, {len(totals.failed)} failed, {len(totals.skipped)} skipped")
    sys.exit(1 if totals.failed or not totals.passed else 0)


main()
