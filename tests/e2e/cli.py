#!/usr/bin/env python3
"""Command lines: every program tells about itself and about mistakes in the same way."""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import *  # noqa: E402,F403
from harness import BUILD, PROGRAMS  # noqa: E402

COLUMNS, LINES = 80, 24


def built():
    """Command lines to try: each program, and each of the operator's sub-commands."""
    found = [[n] for n, path in PROGRAMS.items() if os.path.exists(os.path.join(BUILD, path))]
    if ["turnward"] in found:
        text = subprocess.run([os.path.join(BUILD, PROGRAMS["turnward"]), "--help"],
                              capture_output=True, text=True, check=False).stdout
        # A sub-command's line begins with its name, two spaces in.
        names = re.findall(r"^  ([a-z][a-z-]+)(?: [A-Z]+)?  ", text, re.M)
        names += re.findall(r"^  turnward ([a-z-]+)  ", text, re.M)
        found += [["turnward", name] for name in names]
    if not found:
        raise Skip("no program is built yet")
    return found


@case
def help_goes_to_stdout_and_fits_the_screen(t):
    for command in built():
        name = " ".join(command)
        done = t.run(*command, "--help", code=0)
        lines = done.out.rstrip("\n").split("\n")
        equal(done.err, "", f"{name} --help on stderr")
        check(lines[0].startswith(f"Usage: {name}"), f"{name}: begins with {lines[0]!r}")
        check(max(map(len, lines)) <= COLUMNS, f"{name}: wider than {COLUMNS} columns")
        check(len(lines) <= LINES, f"{name}: {len(lines)} lines, {LINES} fit")
        contains(done.out, "\nExamples:\n", name)
        check(lines[-1].startswith("  "), f"{name}: examples come last, not {lines[-1]!r}")


@case
def version_is_one_line_of_one_form(t):
    for command in built():
        done = t.run(*command, "--version", code=0)
        check(re.fullmatch(r"turnward \d+\.\d+\.\d+ \([0-9a-z]+\).*\n", done.out),
              f"{command}: {done.out!r}")


@case
def an_unknown_option_is_a_usage_error_with_a_hint(t):
    for command in built():
        name = " ".join(command)
        done = t.run(*command, "--hepl", code=2)
        equal(done.out, "", f"{name}: stdout")
        contains(done.err, f"{name}: unknown option '--hepl'; did you mean '--help'?", name)


@case
def a_mistake_in_the_file_is_told_with_its_place(t):
    path = t.write("turnward.conf", "[router]\nlisten = :0\n[policy]\ncache_ratoi = 0.5\n")
    done = t.run("turnward-router", "-c", path, "--region", t.region, code=78)
    contains(done.err, f"{path}:4:1: unknown key cache_ratoi; did you mean cache_ratio?")


@case
def a_mistake_on_the_command_line_is_a_usage_error(t):
    for arguments, text in (
            (["--policy", "best"], "policy = best: must be one of"),
            (["--engine", "https://127.0.0.1:1"], "https is not spoken to engines"),
            (["--listen", "8080"], "listen = 8080: write ADDRESS:PORT"),
            (["--set", "head_timeout=5"], "needs a unit")):
        done = t.run("turnward-router", "--region", t.region, *arguments)
        contains((2, 78), done.code, f"{arguments}: exit status")
        contains(done.err, text)


@case
def the_example_file_starts_the_router(t):
    example = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "router", "etc",
                           "turnward.conf")
    engine = t.engine()
    router = t.router(engine, args=["-c", example])
    answer = ask(router.address, "POST", "/v1/chat/completions",
                 {"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    equal(answer.status, 200)
    equal(answer.json()["choices"][0]["message"]["content"], "ab")
    equal(router.stop(), 0, "exit status after SIGTERM")


main()
